// Two texts side by side: which words both have in the same order, and the hunks between them.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "report/words.hpp"

namespace toki::report {

using WordRefs = std::vector<const Word*>;

/// Words of a that b lacks at a place, and words of b that a lacks there. One of the two may be
/// empty.
struct Hunk {
  std::span<const Word* const> a;
  std::span<const Word* const> b;
};

/// Whether two words are the same: code letter by letter, prose in any case.
bool same(const Word& a, const Word& b) noexcept;

/// How often each word occurs.
using WordCounts = std::map<std::string_view, std::size_t>;

class WordDiff {
 public:
  /// Signs of prose are left out of the comparison. The texts' words must outlive it.
  WordDiff(const std::vector<Word>& a, const std::vector<Word>& b);

  const WordRefs& a() const noexcept { return a_; }
  const WordRefs& b() const noexcept { return b_; }
  const std::vector<Hunk>& hunks() const noexcept { return hunks_; }
  std::size_t common_prefix() const noexcept { return prefix_; }
  /// The words between the first and the last difference.
  Hunk core() const noexcept;
  /// Words that one text has and the other has not, wherever they stand: nothing that only moved.
  const WordRefs& only_a() const noexcept { return only_a_; }
  const WordRefs& only_b() const noexcept { return only_b_; }

 private:
  void align();

  WordRefs a_, b_;
  std::size_t prefix_ = 0, suffix_ = 0;
  std::vector<Hunk> hunks_;
  WordRefs only_a_, only_b_;
};

}  // namespace toki::report
