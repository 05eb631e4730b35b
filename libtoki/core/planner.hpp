// The policy: where a request runs. A pure function of what is known; everything it weighs is in
// its arguments.
#pragma once

#include <toki/engine.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace toki {

/// One slot as the planner sees it.
struct SlotView {
  std::uint32_t index = 0;
  bool idle = false;             // may be leased now
  bool busy = false;             // leased by another ticket; not fenced
  bool empty = false;            // known to hold nothing
  std::uint64_t common = 0;      // leading prompt tokens it holds (for a busy one: will hold)
  std::uint64_t held = 0;        // tokens it holds, generated ones included
  std::uint64_t known = 0;       // of those, tokens whose ids are known
  std::uint64_t turn_start = 0;  // where the work of its last request begins; 0: nothing before it
  bool superseded = false;       // the prompt holds the end of its content again, further on
  std::uint64_t last_used = 0;   // tick of its last lease
  double remaining_ms = -1;      // busy: expected time until it is free; negative: no idea
};

struct PlanQuery {
  std::uint64_t prompt = 0;     // tokens
  std::uint64_t available = 0;  // tokens of it that were ever known, wherever they are
  bool reuse = true;            // false: what slots hold is of no use to it
  bool leave_to_backend =
      false;  // the backend must choose (several sequences, unknown tokens, pinning off)
  std::optional<std::uint32_t> slot;  // the client's own choice
  double waited_ms = 0;               // how long it has waited for a better slot
  double patience_ms = 0;             // how long it would still wait for a busy slot
};

// Below this share of what it was hoped to deliver the backend's own cache is not asked any more.
inline constexpr double kMinOwnCacheTrust = 0.25;

struct PlanWorld {
  std::uint64_t tick = 0;  // of the pool: one a lease
  double prefill_ms_per_token = 1.0;
  double own_cache_trust = 0;  // 0: the backend has no cache of its own; 1: it always delivered
};

struct Plan {
  enum class Action : std::uint8_t { run, leave_to_backend, wait } action = Action::wait;
  std::uint32_t slot = 0;       // action run
  std::uint64_t predicted = 0;  // tokens reused, if all is as known
  Reason reason = Reason::displaced;
};

/// Chooses the cheapest of: continue or take over an idle slot, wait for a busy one, leave it to
/// the backend's own cache.
Plan plan(std::span<const SlotView> slots, const PlanQuery& query, const PlanWorld& world);

}  // namespace toki
