#include "report/word_diff.hpp"

#include <algorithm>
#include <cstdint>

namespace toki::report {
namespace {

// Beyond this the words between the first and the last difference are one hunk: answers that differ
// over so many words are not the same ones with some words changed.
constexpr std::size_t kMaxCells = std::size_t{4} << 20;

WordRefs compared(const std::vector<Word>& words) {
  WordRefs refs;
  for (const Word& word : words) {
    if (word.kind != Word::Kind::sign || word.code) {
      refs.push_back(&word);
    }
  }
  return refs;
}

// What of `words` is left when each is taken out that `others` has, too.
WordRefs left_over(std::span<const Word* const> words, std::span<const Word* const> others) {
  WordCounts counts;
  for (const Word* word : others) {
    ++counts[word->folded];
  }
  WordRefs left;
  for (const Word* word : words) {
    const auto found = counts.find(word->folded);
    if (found == counts.end() || found->second == 0) {
      left.push_back(word);
    } else {
      --found->second;
    }
  }
  return left;
}

}  // namespace

bool same(const Word& a, const Word& b) noexcept {
  return a.code || b.code ? a.text == b.text : a.folded == b.folded;
}

WordDiff::WordDiff(const std::vector<Word>& a, const std::vector<Word>& b)
    : a_(compared(a)), b_(compared(b)) {
  const std::size_t shorter = std::min(a_.size(), b_.size());
  while (prefix_ < shorter && same(*a_[prefix_], *b_[prefix_])) {
    ++prefix_;
  }
  while (suffix_ < shorter - prefix_ &&
         same(*a_[a_.size() - 1 - suffix_], *b_[b_.size() - 1 - suffix_])) {
    ++suffix_;
  }
  align();
  const Hunk middle = core();
  only_a_ = left_over(middle.a, middle.b);
  only_b_ = left_over(middle.b, middle.a);
}

Hunk WordDiff::core() const noexcept {
  const std::span<const Word* const> a(a_);
  const std::span<const Word* const> b(b_);
  return {a.subspan(prefix_, a.size() - prefix_ - suffix_),
          b.subspan(prefix_, b.size() - prefix_ - suffix_)};
}

// The longest common subsequence by the usual table, from the end, so that hunks come out in order.
void WordDiff::align() {
  const Hunk middle = core();
  const std::size_t rows = middle.a.size();
  const std::size_t columns = middle.b.size();
  if (rows == 0 && columns == 0) {
    return;
  }
  if (rows == 0 || columns == 0 || rows > kMaxCells / columns) {
    hunks_.push_back(middle);
    return;
  }
  const std::size_t width = columns + 1;
  std::vector<std::uint32_t> longest((rows + 1) * width);
  for (std::size_t i = rows; i-- > 0;) {
    for (std::size_t j = columns; j-- > 0;) {
      longest[i * width + j] =
          same(*middle.a[i], *middle.b[j])
              ? longest[(i + 1) * width + j + 1] + 1
              : std::max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < rows || j < columns) {
    const std::size_t from_a = i;
    const std::size_t from_b = j;
    while ((i < rows || j < columns) &&
           !(i < rows && j < columns && same(*middle.a[i], *middle.b[j]))) {
      const bool down =
          j == columns || (i < rows && longest[(i + 1) * width + j] >= longest[i * width + j + 1]);
      ++(down ? i : j);
    }
    if (i > from_a || j > from_b) {
      hunks_.push_back(
          {middle.a.subspan(from_a, i - from_a), middle.b.subspan(from_b, j - from_b)});
    }
    while (i < rows && j < columns && same(*middle.a[i], *middle.b[j])) {
      ++i;
      ++j;
    }
  }
}

}  // namespace toki::report
