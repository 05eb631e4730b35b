// The policy as tables: what is known on the left, where the request runs on the right.
#include "core/planner.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

using namespace toki;
using Action = Plan::Action;

namespace {

constexpr PlanWorld kWorld{.tick = 100, .prefill_ms_per_token = 1.0, .own_cache_trust = 0};

SlotView empty(std::uint32_t index) {
  return {.index = index, .idle = true, .empty = true};
}

// An idle slot that holds `known` tokens and a generated tail, of which `common` are the prompt's.
SlotView holding(std::uint32_t index, std::uint64_t common, std::uint64_t known,
                 std::uint64_t last_used, std::uint64_t turn_start = 0) {
  return {.index = index,
          .idle = true,
          .common = common,
          .held = known + 10,
          .known = known,
          .turn_start = turn_start,
          .last_used = last_used};
}

SlotView busy(std::uint32_t index, std::uint64_t common, std::uint64_t known,
              double remaining_ms = -1) {
  return {.index = index,
          .busy = true,
          .common = common,
          .held = known,
          .known = known,
          .last_used = 100,
          .remaining_ms = remaining_ms};
}

Plan decide(const std::vector<SlotView>& slots, PlanQuery query, PlanWorld world = kWorld) {
  return plan(slots, query, world);
}

}  // namespace

TEST_CASE("plan: the next turn of a conversation goes on in its slot") {
  const Plan p = decide({empty(0), holding(1, 500, 500, 90)}, {.prompt = 560});
  CHECK(p.action == Action::run);
  CHECK(p.slot == 1);
  CHECK(p.predicted == 500);
  CHECK(p.reason == Reason::slot_prefix);
}

TEST_CASE("plan: where no cost is a number it still runs") {
  for (const double rate : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    PlanWorld world = kWorld;
    world.prefill_ms_per_token = rate;
    CHECK(decide({empty(0), holding(1, 5, 500, 90)}, {.prompt = 560}, world).action == Action::run);
  }
}

TEST_CASE("plan: a full hit still computes one token") {
  CHECK(decide({holding(0, 50, 50, 1)}, {.prompt = 50}).predicted == 49);
  CHECK(decide({holding(0, 50, 80, 1)}, {.prompt = 50}).predicted == 49);
}

TEST_CASE(
    "plan: a short side request never displaces a long conversation while a colder slot exists") {  // B04
  CHECK(decide({holding(0, 3, 4000, 100), empty(1)}, {.prompt = 20}).slot == 1);
  CHECK(decide({holding(0, 3, 4000, 100), holding(1, 3, 30, 99)}, {.prompt = 20}).slot == 1);
}

TEST_CASE(
    "plan: sharing that destroys more than it saves is refused while an empty slot exists") {  // B07
  const Plan p = decide({holding(0, 300, 5300, 100), empty(1)}, {.prompt = 305});
  CHECK(p.slot == 1);
  CHECK(p.reason == Reason::empty_slot);
}

TEST_CASE("plan: two conversations with one system prompt do not take turns in one slot") {
  CHECK(decide({holding(0, 400, 456, 100), empty(1)}, {.prompt = 440}).slot == 1);
}

TEST_CASE("plan: asking again, or editing the last turn, stays in the slot") {
  CHECK(decide({holding(0, 4999, 5000, 100), empty(1)}, {.prompt = 5000}).slot == 0);
  CHECK(decide({holding(0, 4800, 5000, 100, 4700), empty(1)}, {.prompt = 4850}).slot == 0);
}

TEST_CASE("plan: with nothing in common the coldest and shortest goes") {
  const Plan p =
      decide({holding(0, 0, 1000, 100), holding(1, 0, 1000, 20), holding(2, 0, 1000, 60)},
             {.prompt = 700});
  CHECK(p.slot == 1);
  CHECK(p.reason == Reason::displaced);
  CHECK(p.predicted == 0);
}

TEST_CASE("plan: equal slots are taken coldest first") {
  SlotView warm = empty(0);
  warm.last_used = 5;
  CHECK(decide({warm, empty(1)}, {.prompt = 10}).slot == 1);
}

TEST_CASE("plan: waits for the busy slot with the prefix only within its patience") {  // B18
  const std::vector<SlotView> slots{busy(0, 1001, 1004), empty(1)};
  CHECK(decide(slots, {.prompt = 1004, .patience_ms = 500}).action == Action::wait);
  const Plan p = decide(slots, {.prompt = 1004, .patience_ms = 0});
  CHECK(p.action == Action::run);
  CHECK(p.slot == 1);
  CHECK(decide({busy(0, 1001, 1004, 5000), empty(1)}, {.prompt = 1004, .patience_ms = 500}).slot ==
        1);
}

TEST_CASE("plan: with no idle slot there is only waiting") {
  CHECK(decide({busy(0, 0, 10)}, {.prompt = 10}).action == Action::wait);
  CHECK(decide({busy(0, 0, 10)}, {.prompt = 10, .leave_to_backend = true}).action == Action::wait);
  CHECK(decide({}, {.prompt = 10}).action == Action::wait);
}

TEST_CASE("plan: the client's own slot is the only candidate") {  // B57
  const Plan p = decide({holding(0, 500, 500, 9), empty(1)}, {.prompt = 560, .slot = 1});
  CHECK(p.slot == 1);
  CHECK(p.reason == Reason::requested_slot);
  CHECK(decide({empty(0), busy(1, 0, 3)}, {.prompt = 5, .slot = 1, .patience_ms = 9}).action ==
        Action::wait);
}

TEST_CASE("plan: without reuse the worth of what is lost decides alone") {  // B65
  const Plan p =
      decide({holding(0, 500, 500, 100), holding(1, 0, 100, 50)}, {.prompt = 560, .reuse = false});
  CHECK(p.slot == 1);
  CHECK(p.predicted == 0);
  CHECK(p.reason == Reason::cache_prompt_false);
}

TEST_CASE(
    "plan: a known prefix that no slot holds is left to the backend's own cache while it "
    "delivers") {  // B10
  const std::vector<SlotView> slots{holding(0, 3, 400, 100), holding(1, 3, 400, 90)};
  PlanWorld world = kWorld;
  world.own_cache_trust = 1;
  const Plan p = decide(slots, {.prompt = 290, .available = 285}, world);
  CHECK(p.action == Action::leave_to_backend);
  CHECK(p.reason == Reason::backend_cache);
  world.own_cache_trust = 0.2;
  CHECK(decide(slots, {.prompt = 290, .available = 285}, world).action == Action::run);
  world.own_cache_trust = 1;
  CHECK(decide({holding(0, 280, 280, 9)}, {.prompt = 290, .available = 285}, world).action ==
        Action::run);
}

TEST_CASE("plan: fenced slots are no candidates") {  // B22
  SlotView fenced{.index = 0, .common = 500, .held = 500, .known = 500};
  CHECK(decide({fenced, empty(1)}, {.prompt = 510, .patience_ms = 1000}).slot == 1);
}

TEST_CASE("plan: without experience a wait is given up when it has cost what it could save") {
  const std::vector<SlotView> slots{busy(0, 1001, 1004), empty(1)};
  CHECK(decide(slots, {.prompt = 1004, .waited_ms = 500, .patience_ms = 9000}).action ==
        Action::wait);
  CHECK(decide(slots, {.prompt = 1004, .waited_ms = 1200, .patience_ms = 9000}).slot == 1);
}

TEST_CASE(
    "plan: a changed word early in the prompt does not send the conversation to another slot") {  // B08
  SlotView old = holding(0, 1003, 2007, 100);
  old.superseded = true;
  const Plan p = decide({old, empty(1)}, {.prompt = 2007});
  CHECK(p.slot == 0);
  CHECK(p.predicted == 1003);
}

namespace {

PlanWorld with_store() {
  PlanWorld world = kWorld;
  world.restores = world.saves = world.copies = true;
  world.save = world.restore = {.fixed = 5, .per_token = 0.02};
  return world;
}

SlotView savable(SlotView slot, std::uint64_t stored = 0) {
  slot.savable = true;
  slot.stored = stored;
  return slot;
}

}  // namespace

TEST_CASE("plan: a stored prefix is restored where it is cheaper than computing it") {
  const Plan p = decide({empty(0)}, {.prompt = 1000, .stored = 900}, with_store());
  CHECK(p.restore == 900);
  CHECK(p.predicted == 900);
  CHECK(p.reason == Reason::restored);
  CHECK(decide({empty(0)}, {.prompt = 1000, .stored = 900}).restore == 0);  // no ability
  CHECK(decide({empty(0)}, {.prompt = 1000, .stored = 15}, with_store()).restore == 0);
  PlanWorld slow = with_store();
  slow.restore.per_token = 2;  // slower than computing
  CHECK(decide({empty(0)}, {.prompt = 1000, .stored = 900}, slow).restore == 0);
}

TEST_CASE("plan: what the slot holds already is not restored") {
  const Plan p =
      decide({savable(holding(0, 900, 900, 1))}, {.prompt = 1000, .stored = 900}, with_store());
  CHECK(p.restore == 0);
  CHECK(p.predicted == 900);
}

TEST_CASE("plan: a conversation is saved before it is displaced, once") {
  const SlotView other = holding(0, 0, 2000, 100);
  CHECK(decide({savable(other)}, {.prompt = 500}, with_store()).save);
  CHECK_FALSE(decide({savable(other, 2010)}, {.prompt = 500}, with_store()).save);
  CHECK_FALSE(decide({other}, {.prompt = 500}, with_store()).save);  // its state is not what we say
  CHECK_FALSE(decide({savable(holding(0, 400, 400, 100))}, {.prompt = 500}, with_store()).save);
}

TEST_CASE("plan: a shared beginning is copied into another slot, and its owner stays") {
  const Plan p =
      decide({savable(holding(0, 800, 1500, 100)), empty(1)}, {.prompt = 900}, with_store());
  CHECK(p.slot == 1);
  CHECK(p.copied == 0U);
  CHECK(p.restore == 800);
  CHECK_FALSE(p.save);
}

TEST_CASE("plan: a prefix that another computes now is waited for, within patience") {
  SlotView leader = savable(busy(0, 900, 950));
  leader.lead_ms = 600;
  PlanWorld world = with_store();
  world.prefilling = 1;
  CHECK(decide({leader, empty(1)}, {.prompt = 1000, .lead_patience_ms = 5000}, world).action ==
        Action::wait);
  CHECK(decide({leader, empty(1)}, {.prompt = 1000, .lead_patience_ms = 500}, world).action ==
        Action::run);
  leader.lead_ms = 4000;  // longer than computing it twice
  CHECK(decide({leader, empty(1)}, {.prompt = 1000, .lead_patience_ms = 5000}, world).action ==
        Action::run);
}

TEST_CASE("plan: in idle time only what is not stored and dear to compute is saved") {
  CHECK(worth_saving(savable(holding(0, 0, 1000, 1)), with_store()));
  CHECK_FALSE(worth_saving(savable(holding(0, 0, 1000, 1), 1000), with_store()));
  CHECK_FALSE(worth_saving(holding(0, 0, 1000, 1), with_store()));
  CHECK_FALSE(worth_saving(savable(busy(0, 0, 1000)), with_store()));
  CHECK_FALSE(worth_saving(savable(holding(0, 0, 1000, 1)), kWorld));
}

TEST_CASE("plan: a slot that keeps a pin takes nothing else, however dear the others are") {
  SlotView pinned = empty(0);
  pinned.pinned = pinned.barred = true;
  const Plan p = decide({pinned, holding(1, 0, 5000, 100)}, {.prompt = 20});
  CHECK(p.action == Action::run);
  CHECK(p.slot == 1);
  CHECK(decide({pinned}, {.prompt = 20}).action == Action::wait);
}

TEST_CASE("plan: what a prompt shares with a pin is copied out of its slot") {
  SlotView pinned = holding(0, 900, 1000, 100);
  pinned.pinned = pinned.barred = pinned.savable = true;
  PlanWorld world = kWorld;
  world.restores = world.saves = world.copies = true;
  world.save = world.restore = {.fixed = 5, .per_token = 0.02};
  const Plan p = decide({pinned, empty(1)}, {.prompt = 1200}, world);
  CHECK(p.slot == 1);
  CHECK(p.copied == 0U);
  CHECK(p.restore == 900);
}

TEST_CASE("plan: a prompt that begins with a pin runs in its slot, whatever stands behind it") {
  SlotView pinned = holding(0, 1000, 2500, 100);
  pinned.pinned = true;
  CHECK(decide({pinned, empty(1)}, {.prompt = 2900}).slot == 1);  // dearer to lose than to compute
  pinned = holding(0, 1000, 1200, 100);
  CHECK(decide({pinned, empty(1)}, {.prompt = 1100}).slot == 1);
  pinned.pinned = true;
  CHECK(decide({pinned, empty(1)}, {.prompt = 1100}).slot == 0);
}

TEST_CASE("plan: while a slot keeps a pin, nothing is left to the backend's own cache") {
  PlanWorld world = kWorld;
  world.own_cache_trust = 1;
  SlotView pinned = empty(0);
  const PlanQuery query{.prompt = 1000, .available = 900};
  CHECK(decide({pinned, empty(1)}, query, world).action == Action::leave_to_backend);
  pinned.pinned = pinned.barred = true;
  CHECK(decide({pinned, empty(1)}, query, world).slot == 1);
}

TEST_CASE(
    "plan: where only multiples are reused, a prompt gets no more of a slot or of the store") {
  PlanWorld world = kWorld;
  world.unit = 64;
  CHECK(decide({holding(0, 200, 200, 1)}, {.prompt = 300}, world).predicted == 192);
  CHECK(decide({holding(0, 192, 192, 1)}, {.prompt = 192}, world).predicted == 128);
  CHECK(decide({holding(0, 63, 63, 1)}, {.prompt = 300}, world).predicted == 0);
  world.restores = true;
  world.restore = {.fixed = 5, .per_token = 0.02};
  const Plan p = decide({holding(0, 130, 130, 1)}, {.prompt = 900, .stored = 700}, world);
  CHECK(p.restore == 640);
  CHECK(p.predicted == 640);
}
