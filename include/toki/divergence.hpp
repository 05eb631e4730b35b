// Divergence: how the outputs of two runs of one prompt differ, and whether it matters.
//
//     identical        equal byte for byte
//     whitespace_only  the same words and signs, other white space between them
//     restore_noise    other words, the same meaning
//     substantive      the meaning may differ
//
// Exact rules speak first: a changed number, a negation, a truncation, code that differs and some
// more are substantive however alike the texts' embeddings are (docs/divergence.md lists them).
// Only what no rule has decided is left to the cosine of two embeddings, which the caller brings.
//
//     Comparison found = compare(a, b);
//     if (found.undecided) decide(found, &embedding_of_a, &embedding_of_b);
//     report.add(found);
//
// Threads:   pure functions and plain data.
// Ownership: texts are only looked at during the call; results own nothing of them.
// Errors:    none: any bytes are allowed, what is not UTF-8 counts byte by byte. compare() is
//            symmetric but for which text is which.
// Cost:      compare(): one pass over the words, and a table of at most 4 million cells for those
//            between the first and the last difference.
#pragma once

#include <toki/embedding.hpp>
#include <toki/export.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace toki {

/// How far two answers differ; from harmless to not.
enum class Divergence : std::uint8_t { identical, whitespace_only, restore_noise, substantive };
/// "identical", "whitespace-only", "restore-noise", "substantive".
TOKI_EXPORT std::string_view to_string(Divergence value) noexcept;

/// What decided.
enum class DivergenceReason : std::uint8_t {
  none,           ///< equal, or only white space differs
  same_words,     ///< only case and punctuation differ
  truncation,     ///< one ends where the other goes on, or is much shorter
  omission,       ///< several words in a row are missing in one
  code,           ///< code, JSON, a path or an identifier differs
  numbers,        ///< other numbers, or in another order
  negation,       ///< a negation on one side only
  opposites,      ///< words that exclude each other: more and less, red and green, km and miles
  names,          ///< another name
  order,          ///< the same words in an order that may mean something else
  symbols,        ///< another sign that carries meaning, such as = % $ <
  question,       ///< a statement became a question
  script,         ///< written in another script
  similarity,     ///< the cosine of the embeddings
  no_similarity,  ///< no rule has decided and there are no embeddings to compare
};
/// The name of the enumerator, for example "same_words". Static string.
TOKI_EXPORT std::string_view to_string(DivergenceReason value) noexcept;

/// Where two texts part: what of both is equal before.
struct Parting {
  std::size_t bytes = 0;       ///< equal bytes, up to a whole character
  std::size_t characters = 0;  ///< code points
  std::size_t words = 0;       ///< whole ones; in Chinese and Japanese each character is one
};

/// What compare() found of two texts `a` and `b`.
struct Comparison {
  /// The verdict.
  Divergence kind = Divergence::identical;
  /// The rule that decided.
  DivergenceReason reason = DivergenceReason::none;
  bool undecided = false;         ///< `kind` is substantive for now; decide() may find it noise
  Parting parting{};              ///< of identical texts: all of them
  std::size_t words_a = 0;        ///< of `a`
  std::size_t words_b = 0;        ///< of `b`
  std::size_t words_changed = 0;  ///< of a deleted, plus of b inserted
  double cosine = 0;              ///< 0 unless reason is similarity
};

/// What the exact rules say.
TOKI_EXPORT Comparison compare(std::string_view a, std::string_view b);

/// From this cosine on two texts mean the same, unless said otherwise. It is a figure of the
/// embedding model: docs/divergence.md tells which suits which and how to find one.
inline constexpr double kSameMeaning = 0.96;

/// Ends an undecided comparison. Embeddings that are missing or of two models cannot decide; then
/// it stays substantive. REQUIRES: `comparison.undecided`.
TOKI_EXPORT void decide(Comparison& comparison, const Embedding* a, const Embedding* b,
                        double threshold = kSameMeaning);

/// The range in which a share lies, by Wilson's score interval.
struct Interval {
  double low = 0;   ///< not below 0
  double high = 1;  ///< not above 1
};

/// `z` 1.96 gives 95 % confidence. Without observations all is possible: 0 to 1. E. B. Wilson,
/// "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927).
TOKI_EXPORT Interval wilson(std::uint64_t successes, std::uint64_t observations, double z = 1.96);

/// Counts of many comparisons.
struct TOKI_EXPORT DivergenceCounts {
  std::array<std::uint64_t, 4> of{};  ///< by Divergence

  /// Counts a comparison that is decided; an undecided one counts as substantive.
  void add(const Comparison& comparison) { ++of[static_cast<std::size_t>(comparison.kind)]; }
  /// Of this kind.
  std::uint64_t count(Divergence kind) const { return of[static_cast<std::size_t>(kind)]; }
  std::uint64_t pairs() const;      ///< of all kinds
  std::uint64_t divergent() const;  ///< all but the identical ones
  /// Share of the divergent pairs that are substantive; 0 when there are none.
  double substantive_share() const;
  /// The range of substantive_share(), with 95 % confidence.
  Interval substantive_interval() const;
};

}  // namespace toki
