// The answers of two arms to the same prompts, pair by pair: of which class (toki/divergence.hpp),
// where they part, and what each of the two requests began with.
#pragma once

#include <toki/divergence.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "figures.hpp"
#include "meaning.hpp"

namespace replay {

/// Where the beginning of a request's KV cache came from.
enum class Start : std::uint8_t {
  computed,  ///< nothing was reused
  live,      ///< a slot, or a cache of the server's own
  restored,  ///< a stored state: x-toki-source says disk or copy
  unknown,   ///< the answer does not say what was reused
};
std::string_view to_string(Start start);
Start start_of(const Outcome& outcome);

/// A divergent pair.
struct PartedPair {
  std::size_t repeat = 0;
  std::size_t index = 0;  ///< of the workload's request
  toki::Comparison found;
  std::int64_t tokens = -1;  ///< equal ones before they part; -1: not streamed
  Start start_a = Start::unknown;
  Start start_b = Start::unknown;
  std::int64_t cached_a = 0;  ///< the reuse that each of them had
  std::int64_t cached_b = 0;
};

/// Pairs that began alike.
struct PairGroup {
  Start a = Start::unknown;
  Start b = Start::unknown;
  bool equal_reuse = false;  ///< both reused as many tokens
  toki::DivergenceCounts counts;
};

/// Of two arms, over all repeats.
struct ArmPairs {
  std::string a;
  std::string b;
  toki::DivergenceCounts counts{};  ///< answered in both arms, with the same prompt
  std::vector<PairGroup> groups{};  ///< the same pairs by what they began with
  std::size_t other_prompts = 0;    ///< answered in both, but an earlier answer differed
  std::vector<PartedPair> parted{};
};

/// Tokens that both answers begin with. llama-server streams each token as an event of its own (those
/// that only together make a character as one), so it is known without guessing how a model would
/// cut the text. -1 when one of them was not streamed.
std::int64_t equal_tokens(const Outcome& a, const Outcome& b);

/// Adds the pairs of one repeat.
void compare_runs(const Run& a, const Run& b, Meaning& meaning, ArmPairs& into);

}  // namespace replay
