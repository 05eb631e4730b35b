// Costs are milliseconds of prefill:
//
//   run in slot s      (prompt - common(s)) * rate  +  chance(s) * lost(s) * rate
//   wait for busy s    the same plus the expected wait, within the caller's patience; without
//                      experience what it has waited so far, so it never costs more than twice the
//                      better choice
//   leave to backend   (prompt - trust * available) * rate, while the backend's own cache has
//                      earned trust
//
// chance(s) is how likely the content of slot s is wanted again: 1 for the slot used last, falling
// with the number of leases since, so that cold and short contents go first and a small side request
// never displaces a long conversation while something worth less is there.
//
// lost(s) is what s holds beyond the common prefix. Nothing, when the prompt goes on from all that
// is known to be there (the rest is its own last answer), or holds the end of it again further on
// (the same conversation with a word changed early on, such as the time). As it is, when they part
// within the last turn: somebody edited it or asks again. Else it is another conversation, which
// pays for its loss each time the two take turns: kTurns times. Ties go to the coldest slot.
#include "core/planner.hpp"

#include <algorithm>
#include <limits>

namespace toki {
namespace {

// Below this many tokens the backend's own cache cannot save what its search costs.
constexpr std::uint64_t kMinOwnCacheGain = 32;
// How often two conversations in one slot are expected to take turns.
constexpr double kTurns = 32;

double chance_of_reuse(const SlotView& slot, const PlanWorld& world, std::size_t slots) {
  const auto age = static_cast<double>(world.tick - std::min(slot.last_used, world.tick));
  return 1.0 / (1.0 + age / static_cast<double>(slots));
}

// A full hit still computes one token, so that there are logits to sample from.
std::uint64_t reusable(std::uint64_t common, const PlanQuery& query) {
  return query.reuse && query.prompt > 0 ? std::min(common, query.prompt - 1) : 0;
}

double lost(const SlotView& slot, const PlanQuery& query) {
  const std::uint64_t common = query.reuse ? slot.common : 0;
  const auto beyond = static_cast<double>(slot.held - std::min(common, slot.held));
  if (slot.known > 0 && (common >= slot.known || (query.reuse && slot.superseded))) {
    return 0;
  }
  const bool same_turn = slot.turn_start > 0 && common >= slot.turn_start;
  return same_turn ? beyond : beyond * kTurns;
}

double cost_of(const SlotView& slot, const PlanQuery& query, const PlanWorld& world,
               std::size_t slots) {
  const auto compute = static_cast<double>(query.prompt - reusable(slot.common, query));
  return world.prefill_ms_per_token *
         (compute + chance_of_reuse(slot, world, slots) * lost(slot, query));
}

Reason reason_for(const SlotView& slot, const PlanQuery& query) {
  if (query.slot) {
    return Reason::requested_slot;
  }
  if (!query.reuse) {
    return Reason::cache_prompt_false;
  }
  if (slot.common > 0) {
    return Reason::slot_prefix;
  }
  return slot.empty ? Reason::empty_slot : Reason::displaced;
}

double wait_cost(const SlotView& slot, const PlanQuery& query) {
  const double wait = slot.remaining_ms < 0 ? query.waited_ms : slot.remaining_ms;
  const bool fits = query.patience_ms > 0 && (slot.remaining_ms < 0 || wait <= query.patience_ms);
  return fits ? wait : std::numeric_limits<double>::infinity();
}

}  // namespace

Plan plan(std::span<const SlotView> slots, const PlanQuery& query, const PlanWorld& world) {
  const auto idle = std::count_if(slots.begin(), slots.end(), [](const auto& s) { return s.idle; });
  if (query.leave_to_backend) {
    return {.action = idle > 0 ? Plan::Action::leave_to_backend : Plan::Action::wait};
  }
  const SlotView* best = nullptr;
  double best_cost = std::numeric_limits<double>::infinity();
  std::uint64_t best_common = 0;  // over all slots, busy ones too
  for (const SlotView& slot : slots) {
    if (query.slot && slot.index != *query.slot) {
      continue;
    }
    best_common = std::max(best_common, reusable(slot.common, query));
    double cost = cost_of(slot, query, world, slots.size());
    if (!slot.idle) {
      if (!slot.busy || idle == 0 || query.slot) {
        continue;
      }
      cost += wait_cost(slot, query);
    }
    if (cost < best_cost ||
        (cost == best_cost && best != nullptr && slot.last_used < best->last_used)) {
      best = &slot;
      best_cost = cost;
    }
  }
  if (best == nullptr || !best->idle) {
    return {.action = Plan::Action::wait};
  }
  const double trusted =
      world.own_cache_trust * static_cast<double>(reusable(query.available, query));
  const bool backend_may_hold_more = query.reuse && !query.slot &&
                                     world.own_cache_trust >= kMinOwnCacheTrust &&
                                     trusted >= static_cast<double>(best_common + kMinOwnCacheGain);
  if (backend_may_hold_more) {
    const double cost = world.prefill_ms_per_token * (static_cast<double>(query.prompt) - trusted);
    if (cost < best_cost) {
      return {.action = Plan::Action::leave_to_backend, .reason = Reason::backend_cache};
    }
  }
  return {.action = Plan::Action::run,
          .slot = best->index,
          .predicted = reusable(best->common, query),
          .reason = reason_for(*best, query)};
}

}  // namespace toki
