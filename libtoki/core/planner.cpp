// Costs are milliseconds. For every idle slot s, with what it can begin with (its own content, a
// stored prefix restored into it, or a copy of what another idle slot holds):
//
//   run in s           get + (prompt - had) * rate + chance(s) * turns(s) * back(s)
//     get              0, restore(tokens), or save(other slot) + restore(tokens)
//     had              tokens that need no prefill then
//     rate             of one prefill, times those under way
//     back(s)          what it costs to have its present content again: compute what is lost of it,
//                      or restore the stored part and compute the rest
//     save first       where it pays: back(s) becomes restore(held), for save(held), which every
//                      busy slot waits for as well
//   wait for busy s    the same plus the expected wait, within the caller's patience; without
//                      experience what it has waited so far, so it never costs more than twice the
//                      better choice. Or only until what it holds of the prompt, or what is saved
//                      of it just now because another displaces it, can be restored into another
//                      slot.
//   leave to backend   (prompt - trust * available) * rate, while the backend's own cache has
//                      earned trust
//
// A slot that keeps a pin is barred for every prompt that does not begin with all of it: nothing runs
// there, nothing is displaced there, nobody waits for it; what it holds of a prompt may be copied.
// While there is one, nothing is left to the backend's own cache: the backend might choose that slot.
//
// chance(s) is how likely the content of slot s is wanted again: 1 for the slot used last, falling
// with the number of leases since, so that cold and short contents go first and a small side request
// never displaces a long conversation while something worth less is there.
//
// turns(s): nothing is lost when the prompt goes on from all that is known to be there (the rest is
// its own last answer), or holds the end of it again further on (the same conversation with a word
// changed early on, such as the time). Once, when they part within the last turn: somebody edited
// it or asks again; and once what stands behind a pin. Else it is another conversation, which pays
// for its loss each time the two take turns: kTurns times. Ties go to the coldest slot.
#include "core/planner.hpp"

#include <algorithm>
#include <limits>

namespace toki {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Below this many tokens a restore cannot save what it costs, nor a slot be left to the backend's own
// cache: that keeps every idle slot until it is known which one it took.
constexpr std::uint64_t kMinGain = 16;
constexpr std::uint64_t kMinLeft = 32;
// How often two conversations in one slot are expected to take turns.
constexpr double kTurns = 32;

// Where a prompt's beginning can be had from, beside the slot's own content.
struct Origin {
  std::uint64_t tokens = 0;
  double ms = 0;
  std::optional<std::uint32_t> copied;  // from this slot, which is saved for it
};

struct Option {
  const SlotView* slot = nullptr;
  double ms = kNever;
  std::uint64_t had = 0;
  const Origin* origin = nullptr;
  bool save = false;
};

double chance_of_reuse(const SlotView& slot, const PlanWorld& world, std::size_t slots) {
  const auto age = static_cast<double>(world.tick - std::min(slot.last_used, world.tick));
  return 1.0 / (1.0 + age / static_cast<double>(slots));
}

// A full hit still computes one token, so that there are logits to sample from.
std::uint64_t reusable(std::uint64_t common, const PlanQuery& query, const PlanWorld& world) {
  const std::uint64_t most =
      query.reuse && query.prompt > 0 ? std::min(common, query.prompt - 1) : 0;
  return most - most % world.unit;
}

double prefill(std::uint64_t tokens, const PlanWorld& world) {
  return world.prefill_ms_per_token * static_cast<double>(tokens);
}

double turns(const SlotView& slot, const PlanQuery& query) {
  const std::uint64_t common = query.reuse ? slot.common : 0;
  if (slot.known > 0 && (common >= slot.known || (query.reuse && slot.superseded))) {
    return 0;
  }
  if (slot.pinned) {
    return 1;  // what stands behind its pin has to make way: the slot is there for the pin
  }
  return slot.turn_start > 0 && common >= slot.turn_start ? 1 : kTurns;
}

// To have the slot's content again when `kept` of it stay and `stored` are on disk.
double back(const SlotView& slot, std::uint64_t kept, std::uint64_t stored,
            const PlanWorld& world) {
  const double compute = prefill(slot.held - std::min(kept, slot.held), world);
  if (stored <= kept) {
    return compute;
  }
  const std::uint64_t rest = slot.held - std::min(stored, slot.held);
  return std::min(compute, world.restore.of(stored) + prefill(rest, world));
}

double saving(const SlotView& slot, const PlanWorld& world, std::size_t busy) {
  return world.save.of(slot.held) * static_cast<double>(1 + busy);
}

// The cheapest way to run in `slot` when the prompt's first `had` tokens are there.
Option take_over(const SlotView& slot, std::uint64_t had, const PlanQuery& query,
                 const PlanWorld& world, std::size_t slots, std::size_t busy) {
  const std::uint64_t kept = query.reuse ? slot.common : 0;
  const double weight = chance_of_reuse(slot, world, slots) * turns(slot, query);
  const double compute =
      prefill(query.prompt - had, world) * static_cast<double>(1 + world.prefilling);
  Option option{.slot = &slot, .had = had};
  option.ms = compute + weight * back(slot, kept, slot.stored, world);
  if (world.saves && slot.savable && slot.held > slot.stored && weight > 0) {
    const double saved =
        compute + saving(slot, world, busy) + weight * back(slot, kept, slot.held, world);
    if (saved < option.ms) {
      option.ms = saved;
      option.save = true;
    }
  }
  return option;
}

// The best place outside of the slot itself to take the prompt's beginning from.
Origin best_origin(std::span<const SlotView> slots, const PlanQuery& query, const PlanWorld& world,
                   std::size_t busy) {
  if (!world.restores) {
    return {};
  }
  Origin best{.tokens = reusable(query.stored, query, world)};
  best.ms = best.tokens > 0 ? world.restore.of(std::max(best.tokens, query.read)) : 0;
  for (const SlotView& slot : slots) {
    const std::uint64_t tokens = reusable(slot.common, query, world);
    if (!world.copies || !slot.idle || !slot.savable || tokens < best.tokens + kMinGain) {
      continue;
    }
    const double ms = saving(slot, world, busy) + world.restore.of(tokens);
    if (ms - best.ms < prefill(tokens - best.tokens, world)) {
      best = {.tokens = tokens, .ms = ms, .copied = slot.index};
    }
  }
  return best;
}

Reason reason_for(const Option& option, const PlanQuery& query) {
  if (query.slot) {
    return Reason::requested_slot;
  }
  if (!query.reuse) {
    return Reason::cache_prompt_false;
  }
  if (option.origin != nullptr) {
    return option.origin->copied ? Reason::copied : Reason::restored;
  }
  if (option.slot->common > 0) {
    return Reason::slot_prefix;
  }
  return option.slot->empty ? Reason::empty_slot : Reason::displaced;
}

bool better(const Option& a, const Option& b) {
  return b.slot == nullptr || a.ms < b.ms ||
         (a.ms == b.ms && a.slot->last_used < b.slot->last_used);
}

// The cheapest idle slot, with its own content or with `origin`.
Option best_idle(std::span<const SlotView> slots, const Origin& origin, const PlanQuery& query,
                 const PlanWorld& world, std::size_t busy) {
  Option best;
  for (const SlotView& slot : slots) {
    if (!slot.idle || slot.barred || (query.slot && slot.index != *query.slot)) {
      continue;
    }
    const std::uint64_t own = reusable(slot.common, query, world);
    const Option as_it_is = take_over(slot, own, query, world, slots.size(), busy);
    best = better(as_it_is, best) ? as_it_is : best;
    if (origin.tokens < own + kMinGain || origin.copied == slot.index) {
      continue;
    }
    Option filled = take_over(slot, origin.tokens, query, world, slots.size(), busy);
    filled.ms += origin.ms;
    filled.origin = &origin;
    best = better(filled, best) ? filled : best;
  }
  return best;
}

double wait_cost(double expected_ms, const PlanQuery& query) {
  const double wait = expected_ms < 0 ? query.waited_ms : expected_ms;
  const bool fits = query.patience_ms > 0 && (expected_ms < 0 || wait <= query.patience_ms);
  return fits ? wait : kNever;
}

// To restore what a busy slot holds of the prompt, when it is stored: for one that computes it now,
// when that is done; for others when they are free and were saved.
double copy_cost(const SlotView& slot, const PlanQuery& query, const PlanWorld& world) {
  const bool leads = slot.lead_ms >= 0;
  const double wait = leads ? slot.lead_ms : slot.remaining_ms + world.save.of(slot.held);
  if (!world.copies || !slot.savable || (!leads && slot.remaining_ms < 0) ||
      wait > query.lead_patience_ms) {
    return kNever;
  }
  const std::uint64_t had = reusable(slot.common, query, world);
  return wait + world.restore.of(had) + prefill(query.prompt - had, world);
}

// The cheapest of waiting for a busy slot, or for what it computes to be stored.
double best_wait(std::span<const SlotView> slots, const PlanQuery& query, const PlanWorld& world,
                 std::size_t busy) {
  double best = kNever;
  for (const SlotView& slot : slots) {
    if (!slot.busy) {
      continue;
    }
    best = std::min(best, copy_cost(slot, query, world));
    if (slot.barred || slot.leaving) {
      continue;
    }
    const std::uint64_t had = reusable(slot.common, query, world);
    const Option option = take_over(slot, had, query, world, slots.size(), busy);
    best = std::min(best, option.ms + wait_cost(slot.remaining_ms, query));
  }
  return best;
}

}  // namespace

bool worth_saving(const SlotView& slot, const PlanWorld& world) {
  return world.saves && slot.idle && slot.savable && slot.held >= slot.stored + kMinGain &&
         world.save.of(slot.held) < prefill(slot.held - slot.stored, world);
}

Plan plan(std::span<const SlotView> slots, const PlanQuery& query, const PlanWorld& world) {
  const auto count = [&](auto what) {
    return static_cast<std::size_t>(std::count_if(slots.begin(), slots.end(), what));
  };
  const std::size_t idle = count([](const SlotView& s) { return s.idle; });
  if (query.leave_to_backend) {
    return {.action = idle > 0 ? Plan::Action::leave_to_backend : Plan::Action::wait};
  }
  const std::size_t busy = count([](const SlotView& s) { return s.busy; });
  const Origin origin = best_origin(slots, query, world, busy);
  const Option best = best_idle(slots, origin, query, world, busy);
  if (best.slot == nullptr || (!query.slot && best_wait(slots, query, world, busy) < best.ms)) {
    return {.action = Plan::Action::wait};
  }
  std::uint64_t known = origin.tokens;  // most that is to be had without the backend's own cache
  for (const SlotView& slot : slots) {
    known = std::max(known, reusable(slot.common, query, world));
  }
  const double trusted =
      world.own_cache_trust * static_cast<double>(reusable(query.available, query, world));
  const bool barred = count([](const SlotView& s) { return s.barred; }) > 0;
  if (query.reuse && !query.slot && !barred && world.own_cache_trust >= kMinOwnCacheTrust &&
      trusted >= static_cast<double>(known + kMinLeft) &&
      world.prefill_ms_per_token * (static_cast<double>(query.prompt) - trusted) < best.ms) {
    return {
        .action = Plan::Action::leave_to_backend, .reason = Reason::backend_cache, .known = known};
  }
  Plan plan{.action = Plan::Action::run,
            .slot = best.slot->index,
            .predicted = best.had,
            .reason = reason_for(best, query),
            .save = best.save};
  if (best.origin != nullptr) {
    plan.restore = best.had;
    plan.copied = best.origin->copied;
  }
  return plan;
}

}  // namespace toki
