// The policy: where a request runs, and what is done before. A pure function of what is known;
// everything it weighs is in its arguments.
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
  bool savable = false;          // its state is what its known tokens say
  std::uint64_t common = 0;      // leading prompt tokens it holds (for a busy one: will hold)
  std::uint64_t held = 0;        // tokens it holds, generated ones included
  std::uint64_t known = 0;       // of those, tokens whose ids are known
  std::uint64_t stored = 0;      // of those, leading tokens that the store holds as well
  std::uint64_t turn_start = 0;  // where the work of its last request begins; 0: nothing before it
  bool pinned = false;           // it keeps a pin
  bool barred = false;           // and the prompt does not begin with all of it: never runs there
  bool leaving = false;         // no slot any more, but what is saved of one just now: to be copied
  bool superseded = false;      // the prompt holds the end of its content again, further on
  std::uint64_t last_used = 0;  // tick of its last lease
  double remaining_ms = -1;     // busy: expected time until it is free; negative: no idea
  double lead_ms = -1;          // busy: expected time until what it computes now is stored for
                                // others to restore; negative: it will not be
};

struct PlanQuery {
  std::uint64_t prompt = 0;     // tokens
  std::uint64_t available = 0;  // tokens of it that the backend's own cache may hold
  std::uint64_t stored = 0;     // leading tokens that the store can restore
  std::uint64_t read = 0;       // tokens that it restores for them; 0: no more than they
  bool reuse = true;            // false: what slots hold is of no use to it
  bool leave_to_backend =
      false;  // the backend must choose (several sequences, unknown tokens, pinning off)
  std::optional<std::uint32_t> slot;  // the client's own choice
  double waited_ms = 0;               // how long it has waited for a better slot
  double patience_ms = 0;             // how long it would still wait for a busy slot
  double lead_patience_ms = 0;        // and for a prefix that another request computes now
};

// Below this share of what it was hoped to deliver the backend's own cache is not asked any more.
inline constexpr double kMinOwnCacheTrust = 0.25;

/// Time for something done to a state of n tokens, in ms.
struct Pace {
  double fixed = 0;
  double per_token = 0;
  double of(std::uint64_t tokens) const {
    return tokens == 0 ? 0 : fixed + per_token * static_cast<double>(tokens);
  }
};

struct PlanWorld {
  std::uint64_t tick = 0;  // of the pool: one a lease
  double prefill_ms_per_token = 1.0;
  std::uint64_t unit = 1;      // tokens are reused in multiples of it only
  std::size_t prefilling = 0;  // long prompts that are computed now: they share the machine
  double own_cache_trust = 0;  // 0: the backend has no cache of its own; 1: it always delivered
  bool restores = false;       // what the store holds can be restored into a slot
  bool saves = false;          // and a slot's state can be saved
  bool copies = false;         // and what another slot holds beyond the prefix does no harm
  Pace save{};                 // what each costs; a save holds up every slot
  Pace restore{};
};

struct Plan {
  enum class Action : std::uint8_t { run, leave_to_backend, wait } action = Action::wait;
  std::uint32_t slot = 0;       // action run
  std::uint64_t predicted = 0;  // tokens reused, if all is as known
  Reason reason = Reason::displaced;
  std::uint64_t known = 0;  // most that is to be had without the backend's own cache
  // What is done first, in this order.
  bool save = false;                      // save what the slot holds: it is displaced, and wanted
  std::optional<std::uint32_t> copied{};  // save this other slot, to restore from it
  std::uint64_t restore = 0;              // restore so many tokens into the slot
};

/// Chooses the cheapest of: continue or take over an idle slot, restore a stored prefix or copy
/// another slot's into it, wait for a busy one, leave it to the backend's own cache.
Plan plan(std::span<const SlotView> slots, const PlanQuery& query, const PlanWorld& world);

/// Whether the content of an idle slot is worth a save while nothing else is to be done.
bool worth_saving(const SlotView& slot, const PlanWorld& world);

}  // namespace toki
