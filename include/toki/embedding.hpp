// Embeddings: what a prompt is about, as a unit vector. They only nominate known prompts that may
// share a prefix; token ids decide.
//
// Threads:   pure functions.
// Ownership: results own their values; spans are only looked at during the call.
// Errors:    none; an empty prompt has the zero vector. A dimension of 0, an overlap not less than
//            the window, or lengths that are not one a part are broken preconditions.
// Cost:      hash_embedding: some nanoseconds a token. average: one pass over the parts.
//
// Two kinds, never compared with each other: `model` comes from an embedding model; `hash` is made
// from the token ids alone, the same on every machine and in every run, and cannot fail. Feature
// hashing: K. Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009.
#pragma once

#include <toki/export.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki {

/// Who made an embedding.
enum class EmbeddingKind : std::uint8_t {
  none,   ///< there is none
  model,  ///< made by an embedding model
  hash,   ///< made from token n-grams
};
/// The name of the enumerator. Static string.
TOKI_EXPORT std::string_view to_string(EmbeddingKind kind) noexcept;

/// A vector for a prompt, by which similar prompts are found. It only nominates: token ids decide.
struct Embedding {
  /// none: `values` is empty.
  EmbeddingKind kind = EmbeddingKind::none;
  std::vector<float> values;  ///< `dimension` of them, length 1
  std::string model{};        ///< which model made it; only embeddings of one are compared
};

/// The dimension of hash embeddings where no model gives another.
inline constexpr std::size_t kHashDimension = 384;

/// More values than any embedding has. Sums of products of so many int8 still fit 32 bits.
inline constexpr std::size_t kMaxDimension = 65536;

/// Feature hashing of the prompt's token n-grams (1 to 3) into `dimension` values. Of each sum the
/// square root is taken (with its sign), so that frequent tokens do not drown the rest.
TOKI_EXPORT Embedding hash_embedding(TokenSpan tokens, std::size_t dimension = kHashDimension);

/// A part of a prompt that fits the embedding model's context. Units: tokens.
struct Segment {
  std::size_t begin = 0;  ///< its first token
  std::size_t count = 0;  ///< its length
};

/// Cuts `tokens` into segments of at most `window` that overlap by `overlap` (less than `window`);
/// together they cover everything.
TOKI_EXPORT std::vector<Segment> embedding_segments(std::size_t tokens, std::size_t window,
                                                    std::size_t overlap);

/// The mean of the segments' vectors, each weighted by its length in tokens, normalised. Empty when
/// there are no parts or their dimensions differ; zero when a value is no finite number.
TOKI_EXPORT std::vector<float> average(std::span<const std::vector<float>> parts,
                                       std::span<const std::size_t> lengths);

/// Scales to length 1; a zero or non-finite vector becomes zero.
TOKI_EXPORT void normalise(std::span<float> values) noexcept;

}  // namespace toki
