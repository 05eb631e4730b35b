// Pinned prefixes: which slot keeps which, who may run there, and how they get there.
#include "core/pins.hpp"

#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;
using Kind = Step::Kind;

namespace {

const Scope kScope({"model", "", ""});
const Tokens kPin = range(1, 400);
const Tokens kOther = range(5000, 300);

struct Bench {
  std::chrono::steady_clock::time_point now{};
  std::vector<Tokens> stored;
  std::vector<PinRecord> kept;  // as the listener was told last
  Engine engine;

  explicit Bench(std::uint32_t slots, std::size_t hot = 0, bool own_cache = false)
      : engine({.hot_pins = hot}, [this] { return now; }) {
    engine.on_pins_change([this](std::vector<PinRecord> pins) { kept = std::move(pins); });
    backend(slots, own_cache);
    engine.serve_pins({kScope});
  }
  void backend(std::uint32_t slots, bool own_cache = false) {
    engine.backend_changed({.slots = slots,
                            .slots_used = std::vector<bool>(slots, false),
                            .context = 8192,
                            .own_cache = own_cache});
  }
  void with_store(StateAbilities abilities = {.saves = true, .cuts = true}) {
    engine.use_store([this, cuts = abilities.cuts](const Scope& scope, TokenSpan tokens) {
      StoredPrefix best;
      for (const Tokens& one : stored) {
        const auto common = common_prefix(one, tokens);
        if (scope == kScope && (cuts || common == one.size())) {
          best.tokens = std::max<std::uint64_t>(best.tokens, common);
        }
      }
      return best;
    });
    engine.set_abilities(abilities);
  }

  Query query(const Tokens& tokens) const { return {.scope = kScope, .tokens = tokens}; }

  std::vector<Kind> run_steps(Ticket& ticket, std::optional<Kind> failing = {}) {
    std::vector<Kind> kinds;
    while (const Step* next = ticket.next_step()) {
      const Step step = *next;
      kinds.push_back(step.kind);
      StepReport report{.ms = 1};
      if (failing == step.kind) {
        report.error = Error{Errc::backend, "no"};
      } else if (step.kind == Kind::save) {
        report.tokens = step.tokens;
        stored.push_back(step.tokens);
      } else if (step.kind == Kind::restore) {
        report.reused = step.tokens.size();
      } else if (step.kind == Kind::prefill) {
        report.computed = step.tokens.size();
        report.ms = static_cast<double>(step.tokens.size());
      }
      ticket.step_done(std::move(report));
    }
    return kinds;
  }
  // What is done while nothing runs; the kinds of its steps.
  std::vector<Kind> chore(std::optional<Kind> failing = {}) {
    auto ticket = engine.begin_chore();
    if (!ticket) {
      return {};
    }
    auto kinds = run_steps(*ticket, failing);
    std::move(*ticket).dismiss({}, SlotContent::unknown);
    return kinds;
  }
  // The slot in which the prompt ran.
  std::uint32_t run(const Tokens& tokens, Ending ending = Ending::completed) {
    auto ticket = engine.begin(query(tokens));
    REQUIRE(ticket);
    run_steps(*ticket);
    ticket->sent();
    REQUIRE(ticket->slot());
    const std::uint32_t slot = ticket->slot()->index;
    std::move(*ticket).finish({.ending = ending,
                               .computed = true,
                               .prompt_tokens = tokens.size(),
                               .cached_tokens = ticket->predicted(),
                               .generated_tokens = 4});
    return slot;
  }
  std::optional<std::uint32_t> pinned_slot() const {
    const auto pins = engine.pins();
    return pins.size() == 1 ? pins[0].slot : std::nullopt;
  }
};

}  // namespace

TEST_CASE("pins: a pin is computed when nothing runs, and its slot takes nothing else") {
  Bench b(2);
  const auto id = b.engine.pin(kScope, kPin);
  REQUIRE(id);
  CHECK(b.engine.pins()[0].state == PinState::waiting);
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.engine.pins()[0].state == PinState::held);
  const std::uint32_t slot = b.pinned_slot().value();
  CHECK(b.engine.slot_table()[slot].pin == *id);
  CHECK(b.engine.slot_table()[slot].known_tokens == 400);
  for (Token i = 0; i < 30; ++i) {
    CHECK(b.run(range(10000 + 1000 * i, 350)) == 1 - slot);
  }
  const Tokens long_share = range(1, 399) + kOther;
  CHECK(b.run(long_share) == 1 - slot);
  auto ticket = b.engine.begin(b.query(kPin + kOther));
  REQUIRE(ticket);
  CHECK(ticket->slot()->index == slot);
  CHECK(ticket->predicted() == 400);
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  CHECK(b.chore().empty());
  CHECK(b.engine.stats().pins_held == 1);
}

TEST_CASE(
    "pins: what a request leaves behind the pin does not keep others that begin with it away") {
  Bench b(2);
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  const std::uint32_t slot = b.pinned_slot().value();
  CHECK(b.run(kPin + range(20000, 200)) == slot);
  CHECK(b.run(kPin + range(30000, 200)) == slot);
  CHECK(b.pinned_slot() == slot);
}

TEST_CASE("pins: a slot that holds the prefix already keeps it at once") {
  Bench b(2);
  const std::uint32_t slot = b.run(kPin + kOther);
  REQUIRE(b.engine.pin(kScope, kPin));
  CHECK(b.pinned_slot() == slot);
  CHECK(b.chore().empty());
}

TEST_CASE("pins: the same tokens are one pin") {
  Bench b(3);
  const auto id = b.engine.pin(kScope, kPin);
  CHECK(*b.engine.pin(kScope, kPin) == *id);
  CHECK(b.engine.pins().size() == 1);
  CHECK(*b.engine.pin(Scope({"other"}), kPin) != *id);
  CHECK(b.engine.pins()[1].state == PinState::other_model);
}

TEST_CASE("pins: one slot stays free of them") {
  Bench b(3);
  CHECK(b.engine.pin(kScope, kPin));
  CHECK(b.engine.pin(kScope, kOther));
  CHECK(b.engine.pin(kScope, range(9000, 50)).error().code == Errc::busy);
  b.chore();
  b.chore();
  CHECK(b.engine.stats().pins_held == 2);
  CHECK(b.run(range(9000, 50)) == 2);
  Bench one(1);
  CHECK(one.engine.pin(kScope, kPin).error().code == Errc::busy);
  Engine nobody({}, &std::chrono::steady_clock::now);
  CHECK(nobody.pin(kScope, kPin).error().code == Errc::unavailable);
}

TEST_CASE("pins: without tokens, or longer than a slot, there is nothing to pin") {
  Bench b(2);
  CHECK(b.engine.pin(kScope, {}).error().code == Errc::invalid_argument);
  CHECK(b.engine.pin(kScope, range(1, 8192)).error().code == Errc::invalid_argument);
}

TEST_CASE("pins: one that is given up leaves its slot to everybody") {
  Bench b(2);
  const auto id = b.engine.pin(kScope, kPin);
  b.chore();
  CHECK_FALSE(b.engine.unpin(*id + 1));
  CHECK(b.engine.unpin(*id));
  CHECK_FALSE(b.engine.unpin(*id));
  CHECK(b.engine.pins().empty());
  CHECK(b.kept.empty());
  CHECK(b.engine.stats().pins_held == 0);
  auto first = b.engine.begin(b.query(kOther));
  auto second = b.engine.begin(b.query(range(10000, 90)));
  CHECK(first);
  CHECK(second);
}

TEST_CASE("pins: while the pin is computed it can be given up") {
  Bench b(2);
  const auto id = b.engine.pin(kScope, kPin);
  auto ticket = b.engine.begin_chore();
  REQUIRE(ticket);
  CHECK(b.engine.unpin(*id));
  b.run_steps(*ticket);
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.stats().pins_held == 0);
}

TEST_CASE("pins: a client that names the slot of a pin gets another") {
  Bench b(2);
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  const std::uint32_t slot = b.pinned_slot().value();
  Query query = b.query(kOther);
  query.slot = slot;
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  CHECK(ticket->slot()->index == 1 - slot);
  CHECK(ticket->reason() == Reason::slot_pinned);
  CHECK(b.engine.begin(query).error().code == Errc::busy);  // and waits for it, if it must
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  const Tokens going_on = kPin + kOther;
  query.tokens = going_on;
  ticket = b.engine.begin(query);
  REQUIRE(ticket);
  CHECK(ticket->slot()->index == slot);
  CHECK(ticket->reason() == Reason::requested_slot);
}

TEST_CASE("pins: requests that toki cannot read are sent to another slot") {
  Bench b(2);
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  const std::uint32_t slot = b.pinned_slot().value();
  for (const Reason reason : {Reason::tokenize_failed, Reason::too_large, Reason::media}) {
    Query query{.scope = kScope};
    query.bypass = reason;
    auto ticket = b.engine.begin(query);
    REQUIRE(ticket);
    REQUIRE(ticket->slot());
    CHECK(ticket->slot()->index == 1 - slot);
    CHECK(ticket->reason() == reason);
    ticket->sent();
    std::move(*ticket).finish({.ending = Ending::completed, .computed = true});
    CHECK(b.engine.stats().integrity_faults_total == 0);
  }
  const Tokens going_on = kPin + kOther;
  Query no_reuse = b.query(going_on);
  no_reuse.bypass = Reason::cache_prompt_false;
  auto ticket = b.engine.begin(no_reuse);
  REQUIRE(ticket);
  CHECK(ticket->slot()->index == 1 - slot);
}

TEST_CASE("pins: where the backend chooses it may lose one, which is then computed again") {
  Bench b(2);
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  const std::uint32_t slot = b.pinned_slot().value();
  Query query{.scope = kScope};
  query.bypass = Reason::not_cacheable;
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  CHECK_FALSE(ticket->slot());
  ticket->sent();
  const std::vector<std::uint32_t> in_use{slot};
  ticket->settle(in_use);
  std::move(*ticket).finish({.ending = Ending::completed, .computed = true});
  CHECK(b.engine.pins()[0].state == PinState::waiting);
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.engine.pins()[0].state == PinState::held);
}

TEST_CASE("pins: after a restart of the backend they are restored when they are stored") {
  Bench b(2);
  b.with_store();
  REQUIRE(b.engine.pin(kScope, kPin));
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.chore() == std::vector{Kind::save});
  b.engine.backend_restarted();
  CHECK_FALSE(b.pinned_slot());
  CHECK(b.chore().empty());  // nothing is known of the backend yet
  b.with_store();
  b.engine.serve_pins({kScope});
  CHECK(b.chore() == std::vector{Kind::restore});
  CHECK(b.pinned_slot());
  CHECK(b.engine.slot_table()[b.pinned_slot().value()].known_tokens == 400);
}

TEST_CASE("pins: a restore that fails is computed instead, and one that cannot be computed waits") {
  Bench b(2);
  b.with_store();
  b.stored.push_back(kPin);
  REQUIRE(b.engine.pin(kScope, kPin));
  CHECK(b.chore(Kind::restore) == std::vector{Kind::restore, Kind::erase, Kind::prefill});
  CHECK(b.pinned_slot());
  b.engine.backend_restarted();
  b.stored.clear();
  b.engine.serve_pins({kScope});
  CHECK(b.chore(Kind::prefill) == std::vector{Kind::prefill});
  CHECK_FALSE(b.pinned_slot());
  CHECK(b.chore().empty());
  b.now += std::chrono::seconds(61);
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.pinned_slot());
}

TEST_CASE("pins: a long one is computed in pieces") {
  Bench b(2);
  b.run(range(10000, 50));
  REQUIRE(b.engine.pin(kScope, range(100000, 8000)));
  CHECK(b.chore() == std::vector<Kind>(1, Kind::prefill));
  b.engine.unpin(b.engine.pins()[0].id);
  Bench slow(2);
  auto ticket = slow.engine.begin(slow.query(kOther));
  ticket->sent();
  std::move(*ticket).finish({.ending = Ending::completed,
                             .computed = true,
                             .prompt_tokens = 300,
                             .cached_tokens = 0,
                             .prompt_ms = 3000,
                             .generated_tokens = 1});
  REQUIRE(slow.engine.pin(kScope, range(100000, 2500)));
  auto chore = slow.engine.begin_chore();
  REQUIRE(chore);
  CHECK(chore->next_step()->tokens.size() == 1000);  // ten seconds' worth
  slow.run_steps(*chore);
  std::move(*chore).dismiss({}, SlotContent::unknown);
  CHECK(slow.engine.slot_table()[slow.pinned_slot().value()].known_tokens == 2500);
}

TEST_CASE("pins: a request that begins with a pin waits while it is computed") {
  Bench b(2);
  b.with_store();
  REQUIRE(b.engine.pin(kScope, range(1, 2000)));
  auto chore = b.engine.begin_chore();
  REQUIRE(chore);
  const Tokens going_on = range(1, 2000) + kOther;
  Query query = b.query(going_on);
  query.lead_patience = std::chrono::seconds(30);
  CHECK(b.engine.begin(query).error().code == Errc::busy);
  CHECK(b.engine.begin(b.query(kOther)));
  b.run_steps(*chore);
  std::move(*chore).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.begin(query)->predicted() == 2000);
}

TEST_CASE("pins: a request that begins with a pin waits while its slot is saved") {
  Bench b(2);
  b.with_store();
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  auto save = b.engine.begin_chore();
  REQUIRE(save);
  const Tokens going_on = kPin + kOther;
  Query query = b.query(going_on);
  query.patience = std::chrono::seconds(1);
  CHECK(b.engine.begin(query).error().code == Errc::busy);
  CHECK(b.engine.begin(b.query(kOther)));
  b.run_steps(*save);
  std::move(*save).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.begin(query)->predicted() == 400);
}

TEST_CASE("pins: requests come first, and none is put into a slot at the end") {
  Bench b(3);
  REQUIRE(b.engine.pin(kScope, kPin));
  auto running = b.engine.begin(b.query(kOther));
  CHECK(b.chore().empty());
  std::move(*running).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.begin_chore(true).error().code == Errc::not_found);
  CHECK(b.chore() == std::vector{Kind::prefill});
}

TEST_CASE("pins: what is worth a save is saved before a pin displaces it") {
  Bench b(2);
  b.with_store();
  b.run(kOther);
  b.run(range(20000, 300));
  REQUIRE(b.engine.pin(kScope, kPin));
  CHECK(b.chore() == std::vector{Kind::save, Kind::prefill});
}

TEST_CASE(
    "pins: a slot that stopped answering takes its pin's place with it, not the last free slot") {
  Bench b(2);
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  const std::uint32_t slot = b.pinned_slot().value();
  auto ticket = b.engine.begin(b.query(kOther));
  ticket->sent();
  std::move(*ticket).finish({.ending = Ending::stalled});
  CHECK(b.engine.fenced() == std::vector{1 - slot});
  CHECK_FALSE(b.pinned_slot());
  CHECK(b.run(range(9000, 60)) == slot);
  b.engine.unfence(1 - slot);
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.pinned_slot());
}

TEST_CASE("pins: a model that cannot rewind gets a pin back from its snapshot after each use") {
  Bench b(3);
  b.with_store({.saves = true, .cuts = false, .rewinds = false});
  REQUIRE(b.engine.pin(kScope, kPin));
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.chore() == std::vector{Kind::save});
  const std::uint32_t slot = b.pinned_slot().value();
  CHECK(b.run(kPin + kOther) == slot);
  CHECK_FALSE(b.pinned_slot());
  const auto kinds = b.chore();
  CHECK(kinds == std::vector{Kind::restore});
  CHECK(b.pinned_slot());
  CHECK(b.pinned_slot() != slot);  // the conversation goes on in its own
}

TEST_CASE("pins: they survive as records, and are told at every change") {
  Bench b(3);
  const auto id = b.engine.pin(kScope, kPin);
  REQUIRE(b.kept.size() == 1);
  CHECK(b.kept[0].id == *id);
  CHECK(b.kept[0].tokens == kPin);
  Bench next(3);
  next.engine.adopt_pins(b.kept);
  CHECK(next.engine.pins()[0].id == *id);
  CHECK(next.chore() == std::vector{Kind::prefill});
  CHECK(*next.engine.pin(kScope, kOther) > *id);
}

TEST_CASE(
    "pins: the hottest prefixes are pinned where that is asked for, and give way to hotter ones") {
  Bench b(3, 1);
  const auto ask = [&](Token first, int times, Token question) {
    for (int i = 0; i < times; ++i) {
      b.run(range(first, 320) + range(question + 100 * i, 40));
    }
    b.now += std::chrono::seconds(11);
    while (!b.chore().empty()) {
    }
  };
  ask(1, 10, 100000);
  auto pins = b.engine.pins();
  REQUIRE(pins.size() == 1);
  CHECK_FALSE(pins[0].by_hand);
  CHECK(pins[0].tokens == 320);
  CHECK(pins[0].state == PinState::held);
  CHECK(b.kept.size() == 1);
  ask(5000, 11, 200000);  // hardly hotter
  CHECK(b.engine.pins()[0].id == pins[0].id);
  ask(5000, 12, 300000);
  REQUIRE(b.engine.pins().size() == 1);
  CHECK(b.engine.pins()[0].id != pins[0].id);
  CHECK(b.engine.pins()[0].state == PinState::held);
}

TEST_CASE("pins: a hot pin makes way for one by hand") {
  Pins pins(1);
  std::vector<BlockTree::HotPrefix> hot{{kScope, range(1, 300), 9}, {kScope, range(5000, 300), 8}};
  CHECK(pins.choose_hot(std::vector{kScope}, hot, 2, 3));
  CHECK(pins.size() == 2);
  CHECK(pins.add(kScope, range(9000, 10), 3));
  CHECK(pins.size() == 3);
  CHECK(pins.add(kScope, range(9500, 10), 3));
  CHECK(pins.size() == 3);
  CHECK(pins.of(std::vector{kScope}).back()->tokens == range(1, 300));
  CHECK_FALSE(pins.choose_hot(std::vector{kScope}, hot, 2, 3));
  CHECK(pins.add(kScope, range(1, 300), 3));  // the hot one is by hand from now on
  CHECK(pins.by_hand() == 3);
  CHECK(pins.add(kScope, range(9900, 10), 3).error().code == Errc::busy);
}

TEST_CASE("pins: prefixes that are no ids, belong to others or are used too seldom are not hot") {
  Pins pins(1);
  const std::vector<BlockTree::HotPrefix> hot{{kScope, Tokens(300, -5), 9},
                                              {Scope({"other"}), range(1, 300), 9},
                                              {kScope, range(5000, 300), 3}};
  CHECK_FALSE(pins.choose_hot(std::vector{kScope}, hot, 2, 3));
}

TEST_CASE("pins: everything is forgotten, and a pin by hand is computed again") {
  Bench b(2);
  const auto id = b.engine.pin(kScope, kPin);
  b.chore();
  REQUIRE(b.pinned_slot());
  b.run(kPin + kOther);
  b.engine.forget_all();
  CHECK_FALSE(b.pinned_slot());
  CHECK(b.engine.pins()[0].id == *id);
  CHECK(b.engine.lookup(b.query(kPin)).available == 0);
  auto erasing = b.engine.begin_erasing();
  REQUIRE(erasing);
  CHECK(b.run_steps(*erasing) == std::vector{Kind::erase});
  std::move(*erasing).dismiss({}, SlotContent::unknown);
  CHECK(b.chore() == std::vector{Kind::prefill});
  CHECK(b.pinned_slot());
}

TEST_CASE("pins: a prompt is forgotten, and a pin by hand stays") {
  Bench b(2);
  REQUIRE(b.engine.pin(kScope, kPin));
  b.chore();
  const std::uint32_t slot = b.pinned_slot().value();
  const Tokens prompt = kPin + kOther;
  std::uint64_t prompt_id = 0;
  SECTION("of a prompt in another slot") {
    CHECK(b.run(kOther) == 1 - slot);
    b.engine.each_prompt(1, [&](const PromptRecord& record) { prompt_id = record.id; });
    const auto gone = b.engine.forget(prompt_id);
    REQUIRE(gone);
    CHECK(gone->shared == 0);
    CHECK(b.pinned_slot() == slot);
  }
  SECTION("that the prompt begins with: its slot is erased") {
    CHECK(b.run(prompt) == slot);
    b.engine.each_prompt(1, [&](const PromptRecord& record) { prompt_id = record.id; });
    const auto gone = b.engine.forget(prompt_id);
    REQUIRE(gone);
    CHECK(gone->shared == kPin.size());
    CHECK(b.engine.shared(kScope, prompt) == kPin.size());
    CHECK_FALSE(b.pinned_slot());
    CHECK(b.chore() == std::vector{Kind::prefill});
    CHECK(b.pinned_slot());
  }
}

TEST_CASE("pins: hot pins go with the prompts that they are a part of") {
  const Tokens hot = range(1, 300), other = range(5000, 300), by_hand = range(8000, 300);
  Pins pins(1);
  REQUIRE(pins.add(kScope, by_hand, 3));
  const std::vector<BlockTree::HotPrefix> hottest{{kScope, hot, 9}, {kScope, other, 8}};
  REQUIRE(pins.choose_hot(std::vector{kScope}, hottest, 2, 3));
  CHECK_FALSE(pins.drop_hot(kScope, hot + kOther, 300));
  CHECK(pins.drop_hot(kScope, hot + kOther, 299));
  CHECK(pins.of(std::vector{kScope}).size() == 2);
  CHECK(pins.drop_hot());
  REQUIRE(pins.size() == 1);
  CHECK(pins.records()[0].tokens == by_hand);
  CHECK(pins.common_by_hand(kScope, by_hand + kOther) == 300);
  CHECK(pins.common_by_hand(Scope({"another model"}), by_hand) == 0);
}

TEST_CASE("pins: the beginning of a remembered prompt is pinned by the prompt's id") {
  Bench b(3);
  b.run(kPin + range(9000, 50));
  b.now += std::chrono::seconds(5);
  const std::uint32_t slot = b.run(kPin + range(7000, 60));
  const std::uint64_t prompt = b.engine.prompts(1)[0].id;
  const SlotInfo info = b.engine.slot_table()[slot];
  CHECK(info.prompt == prompt);
  CHECK(info.common == kPin.size() + 60);
  CHECK(info.used_ago == std::chrono::milliseconds(0));
  b.now += std::chrono::seconds(2);
  CHECK(b.engine.slot_table()[slot].used_ago == std::chrono::milliseconds(2000));
  const auto id = b.engine.pin_prompt(prompt, kPin.size());
  REQUIRE(id);
  CHECK(b.engine.pin(kScope, kPin).value() == *id);
  REQUIRE(b.engine.pins().size() == 1);
  CHECK(b.engine.pins()[0].tokens == kPin.size());
  CHECK(b.engine.pins()[0].prompt != 0);
  CHECK(b.engine.pins()[0].state == PinState::held);
  CHECK(b.kept.size() == 1);
  const auto whole = b.engine.pin_prompt(prompt, 0);
  REQUIRE(whole);
  CHECK(*whole != *id);
  b.engine.forget_all();
  CHECK(b.engine.pins()[0].prompt == 0);
}

TEST_CASE("pins: no prompt of another scope, with media, too short or unknown is pinned") {
  Bench b(2);
  Tokens media = range(1, 50);
  media.insert(media.end(), {-5, -6});
  b.run(media + range(100, 50));
  const std::uint64_t with_media = b.engine.prompts(1)[0].id;
  CHECK(b.engine.pin_prompt(0, 1).error().code == Errc::not_found);
  CHECK(b.engine.pin_prompt(with_media, 0).error().code == Errc::invalid_argument);
  CHECK(b.engine.pin_prompt(with_media, 51).error().code == Errc::invalid_argument);
  CHECK(b.engine.pin_prompt(with_media, 103).error().code == Errc::invalid_argument);
  CHECK(b.engine.pins().empty());
  b.engine.serve_pins({Scope({"another model", "", ""})});
  CHECK(b.engine.pin_prompt(with_media, 50).error().code == Errc::invalid_argument);
  b.engine.serve_pins({});
  CHECK(b.engine.pin_prompt(with_media, 50).error().code == Errc::invalid_argument);
  b.engine.serve_pins({kScope});
  CHECK(b.engine.pin_prompt(with_media, 50));  // before the first medium
}

TEST_CASE("pins: none in exact mode") {
  Engine engine({.exact_batch = 64}, [] { return std::chrono::steady_clock::time_point(); });
  engine.backend_changed({.slots = 2, .slots_used = {false, false}, .own_cache = false});
  engine.serve_pins({kScope});
  CHECK(engine.pin(kScope, kPin).error().code == Errc::unsupported);
  engine.adopt_pins({{.id = 1, .scope = kScope, .tokens = kPin, .by_hand = true}});
  CHECK(engine.begin_chore().error().code == Errc::not_found);
}

TEST_CASE("pins: those of several scopes share the slots, and each serves its own scope alone") {
  const Scope alice({"model", "", "", "alice"});
  const Scope bob({"model", "", "", "bob"});
  EngineOptions options;
  options.isolated = true;
  Engine engine(options, [] { return std::chrono::steady_clock::time_point{}; });
  engine.backend_changed(
      {.slots = 3, .slots_used = std::vector<bool>(3, true), .context = 8192, .own_cache = false});
  engine.serve_pins({alice, bob});
  REQUIRE(engine.pin(alice, kPin));
  REQUIRE(engine.pin(bob, kPin));
  CHECK(engine.pin(alice, kOther).error().code == Errc::busy);  // one slot stays free
  // Nobody knows what the slots hold, so they are erased before a pin is computed.
  for (int i = 0; i < 2; ++i) {
    auto chore = engine.begin_chore();
    REQUIRE(chore);
    std::vector<Kind> kinds;
    while (const Step* step = chore->next_step()) {
      kinds.push_back(step->kind);
      StepReport report{.ms = 1};
      report.computed = step->kind == Kind::prefill ? step->tokens.size() : 0;
      chore->step_done(std::move(report));
    }
    CHECK(kinds == std::vector{Kind::erase, Kind::prefill});
    std::move(*chore).dismiss({}, SlotContent::unknown);
  }
  const auto pins = engine.pins();
  REQUIRE(pins.size() == 2);
  CHECK(pins[0].state == PinState::held);
  CHECK(pins[1].state == PinState::held);
  CHECK(pins[0].slot != pins[1].slot);
  const Tokens tokens = kPin + range(9000, 5);
  for (const PinInfo& pin : pins) {
    auto ticket = engine.begin({.scope = pin.scope, .tokens = tokens});
    REQUIRE(ticket);
    CHECK(ticket->slot()->index == *pin.slot);
    CHECK(ticket->predicted() == 400);
    CHECK(ticket->may_reuse());
    std::move(*ticket).dismiss({}, SlotContent::unknown);
  }
  auto stranger = engine.begin({.scope = Scope({"model", "", "", "carol"}), .tokens = tokens});
  REQUIRE(stranger);
  CHECK(stranger->predicted() == 0);
  CHECK_FALSE(stranger->may_reuse());
}

TEST_CASE("pins: records that are known, empty or too many are not taken over") {
  Pins pins(1);
  const auto id = pins.add(kScope, kPin, 3);
  REQUIRE(id);
  const std::vector<PinRecord> records{
      {.id = *id, .scope = kScope, .tokens = kOther, .by_hand = true},       // the id of another
      {.id = *id + 5, .scope = kScope, .tokens = kPin, .by_hand = true},     // the same tokens
      {.id = 0, .scope = kScope, .tokens = kOther, .by_hand = true},         // no id
      {.id = *id + 6, .scope = kScope, .tokens = {}, .by_hand = true},       // nothing
      {.id = *id + 7, .scope = kScope, .tokens = kOther, .by_hand = false},  // hot ones not wanted
  };
  pins.adopt(records, false);
  CHECK(pins.size() == 1);
  std::vector<PinRecord> many;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    many.push_back({.id = 10000 - i,
                    .scope = Scope({"another model"}),
                    .tokens = range(static_cast<Token>(i), 4),
                    .by_hand = true});
  }
  pins.adopt(many, false);
  const std::size_t most = pins.size();
  CHECK(most < many.size());
  CHECK(pins.add(kScope, kOther, 3).error().code == Errc::busy);
  const auto all = pins.records();
  CHECK(std::is_sorted(all.begin(), all.end(),
                       [](const PinRecord& a, const PinRecord& b) { return a.id < b.id; }));
  REQUIRE(pins.remove(all.back().id));
  CHECK(*pins.add(kScope, kOther, 3) > 10000);  // an id is never given twice
}

TEST_CASE("pins: the listener hears that a hot pin is forgotten with its prompts") {
  const bool everything = GENERATE(false, true);
  Bench b(3, 1);
  for (int i = 0; i < 10; ++i) {
    b.run(range(1, 320) + range(100000 + 100 * i, 40));
  }
  b.now += std::chrono::seconds(11);
  while (!b.chore().empty()) {
  }
  REQUIRE(b.kept.size() == 1);
  if (everything) {
    CHECK(b.engine.forget_all() > 0);
  } else {
    std::vector<std::uint64_t> ids;
    b.engine.each_prompt(1000, [&](const PromptRecord& prompt) { ids.push_back(prompt.id); });
    for (const std::uint64_t id : ids) {
      REQUIRE(b.engine.forget(id));
    }
  }
  CHECK(b.kept.empty());
  CHECK(b.engine.pins().empty());
}

TEST_CASE("pins: an id tells when a pin was made, and nothing of how many others have made") {
  std::int64_t wall = 1'000'000;
  Engine engine(
      {}, [] { return std::chrono::steady_clock::time_point{}; }, [&] { return wall; });
  engine.backend_changed({.slots = 16, .slots_used = std::vector<bool>(16), .context = 8192});
  engine.serve_pins({kScope});
  const auto pin_at = [&](std::int64_t ms, Token first) {
    wall = ms;
    return engine.pin(kScope, range(first, 20)).value();
  };
  const auto first = pin_at(2'000'000, 1);
  const auto last = pin_at(3'000'000, 2);
  CHECK(last - first == 1'000'000 * 1024);
  const auto again = pin_at(4'000'000, 3);
  for (Token other = 4; other < 7; ++other) {
    CHECK(engine.pin(kScope, range(other, 20)).value() > again);  // in the same millisecond
  }
  CHECK(pin_at(5'000'000, 7) - again == 1'000'000 * 1024);
  CHECK(pin_at(1'000'000, 8) > again);  // a clock that was put back
}
