// Siblings: the children of one node where there are several, ordered by their tokens, so that the
// one which shares most with a prompt is a neighbour of the place where the prompt belongs. Entries
// carry the first two tokens, so that most comparisons touch nothing else. Kept in chunks, so that
// inserting moves little.
#pragma once

#include <toki/result.hpp>
#include <toki/token.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace toki {

class Siblings {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Entry {
    std::uint64_t head;
    std::uint32_t node;
  };

  /// The first two tokens as one number that orders like them; a missing second one comes first.
  static std::uint64_t head_of(TokenSpan block) {
    const auto rank = [](Token token) { return static_cast<std::uint32_t>(token) ^ 0x80000000U; };
    return static_cast<std::uint64_t>(rank(block[0])) << 32 |
           (block.size() > 1 ? rank(block[1]) : 0);
  }

  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept {
    return chunks_.size() * ((kChunk + 1) * sizeof(Entry) + sizeof(std::vector<Entry>));
  }

  /// The entry that shares most with `block`, and how many tokens; kNone when none shares any.
  /// `tokens_of(node)` gives a block's tokens.
  template <class TokensOf>
  std::pair<std::uint32_t, std::size_t> nearest(TokenSpan block, TokensOf tokens_of) const {
    const auto [chunk, at] = place(block, tokens_of);
    std::pair<std::uint32_t, std::size_t> best{kNone, 0};
    const auto consider = [&](const Entry& entry) {
      const std::size_t common = common_with(entry, block, tokens_of);
      if (common > best.second) {
        best = {entry.node, common};
      }
    };
    if (at > 0) {
      consider(chunks_[chunk][at - 1]);
    } else if (chunk > 0) {
      consider(chunks_[chunk - 1].back());
    }
    if (at < chunks_[chunk].size()) {
      consider(chunks_[chunk][at]);
    } else if (chunk + 1 < chunks_.size()) {
      consider(fronts_[chunk + 1]);
    }
    return best;
  }

  template <class TokensOf>
  void insert(std::uint32_t node, TokensOf tokens_of) {
    const TokenSpan block = tokens_of(node);
    const auto [chunk, at] = place(block, tokens_of);
    std::vector<Entry>& entries = chunks_[chunk];
    entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(at), {head_of(block), node});
    fronts_[chunk] = entries.front();
    ++size_;
    if (entries.size() == kChunk) {
      std::vector<Entry> upper(entries.begin() + kChunk / 2, entries.end());
      upper.reserve(kChunk);
      entries.resize(kChunk / 2);
      fronts_.insert(fronts_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, upper.front());
      chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(upper));
    }
  }

  template <class TokensOf>
  void erase(std::uint32_t node, TokensOf tokens_of) {
    auto [chunk, at] = place(tokens_of(node), tokens_of);
    if (at == chunks_[chunk].size()) {  // the place between two chunks
      ++chunk;
      at = 0;
    }
    std::vector<Entry>& entries = chunks_[chunk];
    TOKI_CHECK(at < entries.size() && entries[at].node == node);
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
    --size_;
    if (!entries.empty()) {
      fronts_[chunk] = entries.front();
    } else if (chunks_.size() > 1) {
      fronts_.erase(fronts_.begin() + static_cast<std::ptrdiff_t>(chunk));
      chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk));
    }
  }

  template <class Visit>
  void for_each(Visit visit) const {
    for (const std::vector<Entry>& chunk : chunks_) {
      for (const Entry& entry : chunk) {
        visit(entry.node);
      }
    }
  }

 private:
  static constexpr std::size_t kChunk = 128;

  template <class TokensOf>
  static bool before(const Entry& entry, std::uint64_t head, TokenSpan block, TokensOf tokens_of) {
    if (entry.head != head) {
      return entry.head < head;
    }
    const TokenSpan other = tokens_of(entry.node);
    return std::lexicographical_compare(other.begin(), other.end(), block.begin(), block.end());
  }

  // Where the first two tokens decide, nothing else is touched.
  template <class TokensOf>
  static std::size_t common_with(const Entry& entry, TokenSpan block, TokensOf tokens_of) {
    const std::uint64_t differ = entry.head ^ head_of(block);
    if (differ != 0) {
      return differ >> 32 != 0 ? 0 : 1;
    }
    return common_prefix(tokens_of(entry.node), block);
  }

  // The first entry that is not before `block`: chunk and index, the index possibly one past the
  // chunk's end.
  template <class TokensOf>
  std::pair<std::size_t, std::size_t> place(TokenSpan block, TokensOf tokens_of) const {
    const std::uint64_t head = head_of(block);
    const auto less = [&](const Entry& entry) { return before(entry, head, block, tokens_of); };
    const auto chunk =
        std::partition_point(fronts_.begin() + 1, fronts_.end(), less) - fronts_.begin() - 1;
    const std::vector<Entry>& entries = chunks_[static_cast<std::size_t>(chunk)];
    const auto at = std::partition_point(entries.begin(), entries.end(), less) - entries.begin();
    return {static_cast<std::size_t>(chunk), static_cast<std::size_t>(at)};
  }

  std::vector<std::vector<Entry>> chunks_ = std::vector<std::vector<Entry>>(1);
  std::vector<Entry> fronts_ = std::vector<Entry>(1);  // the first entry of each chunk
  std::size_t size_ = 0;
};

}  // namespace toki
