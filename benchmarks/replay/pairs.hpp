// The answers of two arms to the same prompts, pair by pair: equal or not, and where they part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "figures.hpp"

namespace replay {

/// How two answers to one prompt differ. The one place where a finer classifier belongs.
struct Verdict {
  std::string name;              ///< "identical" or "different"
  std::size_t common_chars = 0;  ///< leading characters (code points) that they share
};
Verdict compare(std::string_view a, std::string_view b);

struct PartedPair {
  std::size_t repeat = 0;
  std::size_t index = 0;  ///< of the workload's request
  Verdict verdict;
  std::int64_t cached_a = 0;  ///< the reuse that each of them had
  std::int64_t cached_b = 0;
};

/// Of two arms, over all repeats.
struct Comparison {
  std::string a;
  std::string b;
  std::size_t pairs = 0;      ///< answered in both arms, with the same prompt
  std::size_t identical = 0;  ///< of them
  std::size_t other_prompts =
      0;  ///< answered in both, but an earlier answer made the prompts differ
  std::vector<PartedPair> parted;
};

/// Adds the pairs of one repeat.
void compare_runs(const Run& a, const Run& b, Comparison& into);

}  // namespace replay
