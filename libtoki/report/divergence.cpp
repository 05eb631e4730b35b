#include <toki/divergence.hpp>
#include <toki/result.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include "report/meaning_rules.hpp"
#include "report/word_diff.hpp"
#include "report/words.hpp"

namespace toki {
namespace {

// Of equal words there may be equal bytes behind the last one: whole characters only.
Parting parting_of(std::string_view a, std::string_view b, const std::vector<report::Word>& words) {
  Parting parting;
  std::size_t at_a = 0;
  std::size_t at_b = 0;
  while (at_a < a.size() && at_b < b.size() &&
         report::next_code_point(a, at_a) == report::next_code_point(b, at_b)) {
    parting.bytes = at_a;
    ++parting.characters;
  }
  const auto whole = [&](const report::Word& word) {
    return word.begin + word.text.size() <= parting.bytes;
  };
  parting.words = static_cast<std::size_t>(std::count_if(words.begin(), words.end(), whole));
  return parting;
}

bool equal_texts(const std::vector<report::Word>& a, const std::vector<report::Word>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.text == y.text; });
}

// REQUIRES: a <= b, so that it does not matter which of two texts comes first.
void judge(Comparison& result, std::string_view a, std::string_view b,
           const std::vector<report::Word>& words_a, const std::vector<report::Word>& words_b) {
  if (equal_texts(words_a, words_b)) {
    result.kind = Divergence::whitespace_only;
    return;
  }
  const report::WordDiff diff(words_a, words_b);
  for (const report::Hunk& hunk : diff.hunks()) {
    result.words_changed += hunk.a.size() + hunk.b.size();
  }
  const auto rule = report::substantive_by_rule({a, b, words_a, words_b, diff});
  if (rule) {
    result.kind = Divergence::substantive;
    result.reason = *rule;
  } else if (diff.hunks().empty()) {
    result.kind = Divergence::restore_noise;
    result.reason = DivergenceReason::same_words;
  } else {
    result.kind = Divergence::substantive;
    result.reason = DivergenceReason::no_similarity;
    result.undecided = true;
  }
}

bool comparable(const Embedding* a, const Embedding* b) {
  return a != nullptr && b != nullptr && a->kind != EmbeddingKind::none && a->kind == b->kind &&
         a->model == b->model && !a->values.empty() && a->values.size() == b->values.size();
}

}  // namespace

std::string_view to_string(Divergence value) noexcept {
  switch (value) {
    case Divergence::identical: return "identical";
    case Divergence::whitespace_only: return "whitespace-only";
    case Divergence::restore_noise: return "restore-noise";
    case Divergence::substantive: return "substantive";
  }
  return "substantive";
}

std::string_view to_string(DivergenceReason value) noexcept {
  switch (value) {
    case DivergenceReason::none: return "none";
    case DivergenceReason::same_words: return "same_words";
    case DivergenceReason::truncation: return "truncation";
    case DivergenceReason::omission: return "omission";
    case DivergenceReason::code: return "code";
    case DivergenceReason::numbers: return "numbers";
    case DivergenceReason::negation: return "negation";
    case DivergenceReason::opposites: return "opposites";
    case DivergenceReason::names: return "names";
    case DivergenceReason::order: return "order";
    case DivergenceReason::symbols: return "symbols";
    case DivergenceReason::question: return "question";
    case DivergenceReason::script: return "script";
    case DivergenceReason::similarity: return "similarity";
    case DivergenceReason::no_similarity: return "no_similarity";
  }
  return "none";
}

Comparison compare(std::string_view a, std::string_view b) {
  Comparison result;
  const std::vector<report::Word> words_a = report::words_of(a);
  const std::vector<report::Word> words_b = report::words_of(b);
  result.words_a = words_a.size();
  result.words_b = words_b.size();
  result.parting = parting_of(a, b, words_a);
  if (a == b) {
    return result;
  }
  a < b ? judge(result, a, b, words_a, words_b) : judge(result, b, a, words_b, words_a);
  return result;
}

void decide(Comparison& comparison, const Embedding* a, const Embedding* b, double threshold) {
  TOKI_CHECK(comparison.undecided);
  comparison.undecided = false;
  if (!comparable(a, b)) {
    return;
  }
  for (std::size_t i = 0; i < a->values.size(); ++i) {
    comparison.cosine += static_cast<double>(a->values[i]) * static_cast<double>(b->values[i]);
  }
  comparison.reason = DivergenceReason::similarity;
  comparison.kind =
      comparison.cosine >= threshold ? Divergence::restore_noise : Divergence::substantive;
}

Interval wilson(std::uint64_t successes, std::uint64_t observations, double z) {
  TOKI_CHECK(successes <= observations);
  if (observations == 0) {
    return {};
  }
  const auto n = static_cast<double>(observations);
  const double share = static_cast<double>(successes) / n;
  const double square = z * z;
  const double middle = share + square / (2 * n);
  const double half = z * std::sqrt(share * (1 - share) / n + square / (4 * n * n));
  const double scale = 1 + square / n;
  return {std::max(0.0, (middle - half) / scale), std::min(1.0, (middle + half) / scale)};
}

std::uint64_t DivergenceCounts::pairs() const {
  return of[0] + of[1] + of[2] + of[3];
}

std::uint64_t DivergenceCounts::divergent() const {
  return pairs() - count(Divergence::identical);
}

double DivergenceCounts::substantive_share() const {
  const std::uint64_t all = divergent();
  return all == 0 ? 0
                  : static_cast<double>(count(Divergence::substantive)) / static_cast<double>(all);
}

Interval DivergenceCounts::substantive_interval() const {
  return wilson(count(Divergence::substantive), divergent());
}

}  // namespace toki
