#include <toki/embedding.hpp>
#include <toki/result.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/hash.hpp"

namespace toki {

namespace {

// An n-gram counts up or down in one place; the upper bits of its key say where, the lowest which.
void count(std::uint64_t key, std::span<std::int64_t> sums) noexcept {
  const std::uint64_t place = ((key >> 32) * sums.size()) >> 32;
  sums[place] += (key & 1) != 0 ? 1 : -1;
}

}  // namespace

std::string_view to_string(EmbeddingKind kind) noexcept {
  switch (kind) {
    case EmbeddingKind::none: return "none";
    case EmbeddingKind::model: return "model";
    case EmbeddingKind::hash: return "hash";
  }
  return "none";
}

Embedding hash_embedding(TokenSpan tokens, std::size_t dimension) {
  TOKI_CHECK(dimension > 0 && dimension <= std::numeric_limits<std::uint32_t>::max());
  std::vector<std::int64_t> sums(dimension);
  std::uint64_t one = 0;  // keys of the n-grams that end at the previous token
  std::uint64_t two = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens[i]));
    const std::uint64_t three = chain_key(two, token);
    two = chain_key(one, token);
    one = chain_key(1, token);
    count(one, sums);
    if (i >= 1) {
      count(two, sums);
    }
    if (i >= 2) {
      count(three, sums);
    }
  }
  // The root of each sum, with its sign, so that a frequent token does not drown the rest. The sum
  // of squares is then a sum of integers, and every value the same on every machine.
  std::int64_t length = 0;
  for (const std::int64_t sum : sums) {
    length += std::abs(sum);
  }
  Embedding made{EmbeddingKind::hash, std::vector<float>(dimension)};
  for (std::size_t i = 0; i < dimension && length > 0; ++i) {
    const double value =
        std::sqrt(static_cast<double>(std::abs(sums[i])) / static_cast<double>(length));
    made.values[i] = static_cast<float>(sums[i] < 0 ? -value : value);
  }
  return made;
}

std::vector<Segment> embedding_segments(std::size_t tokens, std::size_t window,
                                        std::size_t overlap) {
  TOKI_CHECK(overlap < window);
  std::vector<Segment> segments;
  for (std::size_t begin = 0; begin < tokens; begin += window - overlap) {
    segments.push_back({begin, std::min(window, tokens - begin)});
    if (tokens - begin <= window) {
      break;
    }
  }
  return segments;
}

std::vector<float> average(std::span<const std::vector<float>> parts,
                           std::span<const std::size_t> lengths) {
  TOKI_CHECK(parts.size() == lengths.size());
  if (parts.empty()) {
    return {};
  }
  std::vector<double> sums(parts.front().size());
  double total = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].size() != sums.size()) {
      return {};
    }
    const auto weight = static_cast<double>(lengths[p]);
    total += weight;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += weight * static_cast<double>(parts[p][i]);
    }
  }
  std::vector<float> mean(sums.size());
  for (std::size_t i = 0; i < sums.size() && total > 0; ++i) {
    mean[i] = static_cast<float>(sums[i] / total);
  }
  normalise(mean);
  return mean;
}

void normalise(std::span<float> values) noexcept {
  double squares = 0;  // as double no float's square leaves the range
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double length = std::sqrt(squares);
  const bool usable = std::isfinite(length) && length > 0;
  for (float& value : values) {
    value = usable ? static_cast<float>(static_cast<double>(value) / length) : 0.0F;
  }
}

}  // namespace toki
