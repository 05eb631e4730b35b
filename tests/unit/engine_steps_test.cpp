// What a ticket asks to be done before its request is sent, and what that leaves behind.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;
using Kind = Step::Kind;

namespace {

const Scope kScope({"model"});

// An engine over a store that is a list of token lists.
struct Bench {
  std::chrono::steady_clock::time_point now{};
  std::vector<Tokens> stored;
  Engine engine{{}, [this] { return now; }};

  explicit Bench(std::uint32_t slots, bool cuts = true) {
    engine.backend_changed(
        {.slots = slots, .slots_used = std::vector<bool>(slots, false), .own_cache = false});
    engine.use_store([this](const Scope& scope, TokenSpan tokens) {
      StoredPrefix best;
      for (const Tokens& one : stored) {
        if (scope == kScope) {
          best.tokens = std::max<std::uint64_t>(best.tokens, common_prefix(one, tokens));
        }
      }
      return best;
    });
    engine.set_abilities({.saves = true, .cuts = cuts});
  }

  Result<Ticket> begin(const Tokens& tokens, bool from_ids = false,
                       std::chrono::milliseconds lead_patience = {}) {
    Query query{.scope = kScope, .tokens = tokens};
    query.from_ids = from_ids;
    query.followed = from_ids;
    query.lead_patience = lead_patience;
    return engine.begin(query);
  }

  // Runs a step as a backend and a store that work.
  void done(Ticket& ticket, std::uint64_t generated = 4) {
    const Step step = *ticket.next_step();
    StepReport report{.ms = 1};
    switch (step.kind) {
      case Kind::erase: break;
      case Kind::save:
        report.tokens = step.tokens + range(900000, generated);
        stored.push_back(report.tokens);
        break;
      case Kind::restore: report.reused = step.tokens.size(); break;
      case Kind::prefill:
        report.computed = step.tokens.size();
        report.ms = static_cast<double>(step.tokens.size());
        break;
    }
    ticket.step_done(std::move(report));
  }
  std::vector<Kind> run_steps(Ticket& ticket) {
    std::vector<Kind> kinds;
    while (const Step* step = ticket.next_step()) {
      kinds.push_back(step->kind);
      done(ticket);
    }
    return kinds;
  }
  Account finish(Ticket ticket, const Tokens& tokens, std::optional<std::uint64_t> cached = {}) {
    ticket.sent();
    const std::uint64_t reused = cached.value_or(ticket.predicted());
    return std::move(ticket).finish({.ending = Ending::completed,
                                     .computed = true,
                                     .prompt_tokens = tokens.size(),
                                     .cached_tokens = reused,
                                     .generated_tokens = 4});
  }
  std::vector<Kind> run(const Tokens& tokens) {
    auto ticket = begin(tokens);
    REQUIRE(ticket);
    auto kinds = run_steps(*ticket);
    finish(std::move(*ticket), tokens);
    return kinds;
  }
};

const Tokens kA = range(1, 400);
const Tokens kB = range(2000, 400);

}  // namespace

TEST_CASE("steps: a conversation that is displaced is saved, and restored when it goes on") {
  Bench b(1);
  CHECK(b.run(kA).empty());
  CHECK(b.run(kB) == std::vector{Kind::save});
  auto ticket = b.begin(kA + range(700, 20));
  REQUIRE(ticket);
  CHECK(ticket->predicted() == 400);
  CHECK(ticket->source() == Source::disk);
  CHECK(ticket->reason() == Reason::restored);
  CHECK(b.run_steps(*ticket) == std::vector{Kind::save, Kind::restore});
  const Account account = b.finish(std::move(*ticket), kA + range(700, 20));
  CHECK_FALSE(account.integrity_fault);
  CHECK(account.reused == 400);
  CHECK(b.engine.stats().source_disk == 1);
  CHECK(b.engine.stats().restored_tokens_total == 400);
}

TEST_CASE("steps: what is stored already is not saved again when it is displaced") {
  Bench b(1);
  b.run(kA);
  b.run(kB);
  b.run(kA + range(700, 1));
  b.stored.push_back(b.stored.back());
  b.stored[0] = kA + range(700, 1) + range(900000, 4);
  auto ticket = b.begin(kB);
  REQUIRE(ticket);
  const auto kinds = b.run_steps(*ticket);
  CHECK(std::count(kinds.begin(), kinds.end(), Kind::restore) == 1);
}

TEST_CASE("steps: a save tells what the slot holds, the answer's ids too") {
  Bench b(1);
  b.run(kA);
  auto chore = b.engine.begin_chore();
  REQUIRE(chore);
  CHECK(b.run_steps(*chore) == std::vector{Kind::save});
  std::move(*chore).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.slot_table()[0].known_tokens == 404);
  CHECK(b.engine.slot_table()[0].unknown_tail == 0);
  CHECK(b.engine.begin_chore().error().code == Errc::not_found);
  CHECK(b.begin(kA + range(900000, 4) + range(700, 9))->predicted() == 404);
}

TEST_CASE("steps: nothing is saved in the background while a request runs, or without ability") {
  Bench b(2);
  b.run(kA);
  auto other = b.begin(kB);
  CHECK_FALSE(b.engine.begin_chore());
  std::move(*other).dismiss({}, SlotContent::unknown);
  b.engine.set_abilities({});
  CHECK_FALSE(b.engine.begin_chore());
  CHECK(b.run(range(9000, 400)).empty());
}

TEST_CASE("steps: a second conversation with the same beginning gets a copy of it") {
  Bench b(2);
  b.run(kA + range(700, 100));
  auto ticket = b.begin(kA + range(800, 100));
  REQUIRE(ticket);
  CHECK(ticket->slot()->index == 1);
  CHECK(ticket->reason() == Reason::copied);
  CHECK(ticket->source() == Source::copy);
  CHECK(b.engine.idle_slots() == 0);
  CHECK(b.run_steps(*ticket) == std::vector{Kind::save, Kind::restore});
  CHECK(ticket->predicted() == 400);
  CHECK(b.engine.idle_slots() == 1);  // the copied one is free again
  b.finish(std::move(*ticket), kA + range(800, 100));
  CHECK(b.engine.stats().copies_total == 1);
  // Both are where they were.
  CHECK(b.begin(kA + range(700, 100) + range(20, 5))->predicted() == 500);
}

TEST_CASE("steps: of requests with one cold prefix the first computes it, the others restore it") {
  using std::chrono::milliseconds;
  Bench b(3);
  const Tokens system = range(1, 1000);
  auto leader = b.begin(system + range(5000, 10), true, milliseconds(5000));
  REQUIRE(leader);
  REQUIRE(leader->next_step());
  CHECK(leader->next_step()->kind == Kind::prefill);
  CHECK(leader->next_step()->tokens.size() == 1009);
  const Tokens second = system + range(6000, 10);
  CHECK(b.begin(second, true, milliseconds(5000)).error().code == Errc::busy);
  CHECK(b.begin(second, true, milliseconds(10)));  // no patience: it computes for itself
  b.done(*leader);
  REQUIRE(leader->next_step());
  CHECK(leader->next_step()->kind == Kind::save);  // somebody waits
  CHECK(b.begin(second, true, milliseconds(5000)).error().code == Errc::busy);
  b.done(*leader, 0);
  CHECK(leader->next_step() == nullptr);
  auto follower = b.begin(second, true, milliseconds(5000));
  REQUIRE(follower);
  CHECK(follower->predicted() == 1000);
  CHECK(b.run_steps(*follower) == std::vector{Kind::restore});
  // The leader's request reuses what its own step computed: that is no reuse.
  const Account account = b.finish(std::move(*leader), system + range(5000, 10), 1009);
  CHECK(account.reused == 0);
  CHECK(account.cache_class == CacheClass::miss);
  CHECK_FALSE(account.integrity_fault);
}

TEST_CASE("steps: a leader for whom nobody waits saves nothing") {
  Bench b(2);
  auto leader = b.begin(range(1, 1000), true);
  CHECK(b.run_steps(*leader) == std::vector{Kind::prefill});
}

TEST_CASE(
    "steps: a prompt leads only when others wait, it is long and can be computed from its ids") {
  Bench b(2);
  const Tokens prompt = range(1, 1000);
  Query query{.scope = kScope, .tokens = prompt};
  CHECK(b.engine.lead_ms(query) == 0);
  query.from_ids = true;
  CHECK(b.engine.lead_ms(query) == Approx(1000));
  CHECK(b.engine.begin(query)->next_step() == nullptr);
  query.followed = true;
  CHECK(b.engine.begin(query)->next_step() != nullptr);
  const Tokens short_prompt = range(1, 100);
  query.tokens = short_prompt;
  CHECK(b.engine.lead_ms(query) == 0);
  CHECK(b.engine.begin(query)->next_step() == nullptr);
}

TEST_CASE("steps: a prompt that nobody saw before leads when others are at work") {
  Bench b(3);
  const auto begin = [&](const Tokens& tokens) {
    Query query{.scope = kScope, .tokens = tokens};
    query.from_ids = true;
    return b.engine.begin(query);
  };
  auto alone = begin(range(1, 1000));
  REQUIRE(alone);
  CHECK(alone->next_step() == nullptr);
  auto beside = begin(range(5000, 1000));
  REQUIRE(beside);
  REQUIRE(beside->next_step());
  CHECK(beside->next_step()->kind == Kind::prefill);
  b.finish(std::move(*alone), range(1, 1000), 0);
  auto next = begin(range(1, 1000) + range(9000, 3000));  // a quarter of it is known
  REQUIRE(next);
  CHECK(next->predicted() == 1000);
  CHECK(next->next_step() == nullptr);
}

TEST_CASE("steps: a restore behind a save of the same slot may be begun before that is done") {
  Bench b(1);
  b.stored.push_back(kA);
  b.run(kB);
  auto ticket = b.begin(kA + range(700, 20));
  REQUIRE(ticket);
  REQUIRE(ticket->next_step()->kind == Kind::save);
  const Step* behind = ticket->begin_behind();
  REQUIRE(behind != nullptr);
  CHECK(behind->kind == Kind::restore);
  SECTION("and when the client leaves meanwhile, nobody knows what the slot holds") {
    { const Ticket left = std::move(*ticket); }
    auto next = b.begin(kB);
    REQUIRE(next);
    CHECK(next->next_step()->kind == Kind::erase);
  }
  SECTION("and behind it there is none") {
    b.done(*ticket);
    REQUIRE(ticket->next_step()->kind == Kind::restore);
    CHECK(ticket->begin_behind() == nullptr);
    b.done(*ticket);
    CHECK(ticket->next_step() == nullptr);
    CHECK(ticket->predicted() == 400);
  }
}

TEST_CASE("steps: a request may be sent behind the restore that is its last step") {
  Bench b(1);
  const Tokens next_turn = kA + range(700, 20);
  b.stored.push_back(kA);
  b.run(kB);
  auto ticket = b.begin(next_turn);
  REQUIRE(ticket);
  REQUIRE(ticket->next_step()->kind == Kind::save);
  CHECK_FALSE(ticket->may_send_behind());
  REQUIRE(ticket->begin_behind() != nullptr);
  CHECK(ticket->may_send_behind());
  CHECK(ticket->predicted() == 400);
  CHECK(b.engine.begin({.scope = kScope, .tokens = kB}).error().code == Errc::busy);
  ticket->sent();
  b.done(*ticket);
  REQUIRE(ticket->next_step() != nullptr);
  const auto calm = ticket->apart();
  const auto end = [&](std::uint64_t cached) {
    return std::move(*ticket).finish({.ending = Ending::completed,
                                      .computed = true,
                                      .prompt_tokens = next_turn.size(),
                                      .cached_tokens = cached,
                                      .generated_tokens = 4});
  };
  const auto apart_now = [&] { return b.begin(kA)->apart(); };
  const auto next_steps = [&] {
    auto next = b.begin(next_turn + range(800, 20));
    const Step* first = next->next_step();
    return first == nullptr ? std::optional<Kind>() : std::optional(first->kind);
  };
  SECTION("which is reported while it runs") {
    b.done(*ticket);
    CHECK(ticket->next_step() == nullptr);
    const Account account = end(400);
    CHECK(account.cache_class == CacheClass::hit);
    CHECK_FALSE(account.integrity_fault);
    CHECK(next_steps() == std::nullopt);
  }
  SECTION("which fails: nothing is begun any more, and the slot is erased for the next one") {
    ticket->step_done({.error = Error{Errc::backend, "no"}});
    CHECK(ticket->next_step() == nullptr);
    const Account account = end(GENERATE(0U, 7U));
    CHECK_FALSE(account.integrity_fault);
    CHECK_FALSE(account.restore_failed);
    CHECK(next_steps() == Kind::erase);
  }
  SECTION("which the request overtook: the next one erases, and calls are made further apart") {
    ticket->step_done({.reused = 400, .ms = 1, .overtaken = true});
    const Account account = end(3);
    CHECK_FALSE(account.integrity_fault);
    CHECK_FALSE(account.restore_failed);
    CHECK(account.cache_class == CacheClass::soft_hit);
    CHECK(next_steps() == Kind::erase);
    CHECK(apart_now() == 2 * calm);
  }
  SECTION("which only seemed to be overtaken: what was restored was reused") {
    ticket->step_done({.reused = 400, .ms = 1, .overtaken = true});
    CHECK_FALSE(end(400).integrity_fault);
    CHECK(next_steps() == std::nullopt);
    CHECK(apart_now() == calm);
  }
  SECTION("which is not done when the client leaves: the next one erases") {
    { const Ticket left = std::move(*ticket); }
    CHECK(next_steps() == Kind::erase);
  }
}

TEST_CASE("steps: nothing is sent behind a save, nor behind a state that can only be used whole") {
  const bool cuts = GENERATE(true, false);
  Bench b(1, cuts);
  b.run(kB);
  auto ticket = b.begin(kA);
  REQUIRE(ticket);
  REQUIRE(ticket->next_step()->kind == Kind::save);
  CHECK(ticket->begin_behind() == nullptr);
  CHECK_FALSE(ticket->may_send_behind());
  b.run_steps(*ticket);
  b.finish(std::move(*ticket), kA);
  auto again = b.begin(b.stored.front() + range(700, 20));
  REQUIRE(again);
  while (again->next_step()->kind != Kind::restore) {
    b.done(*again);
  }
  CHECK(again->may_send_behind() == cuts);
}

TEST_CASE("steps: how far apart calls are made doubles with each that overtook, up to 80 ms") {
  Bench b(1);
  const auto overtaken_save = [&](const Tokens& tokens) {
    auto ticket = b.begin(tokens);
    REQUIRE(ticket);
    REQUIRE(ticket->next_step()->kind == Kind::save);
    ticket->step_done({.error = Error{Errc::backend, "later"}, .overtaken = true});
    b.finish(std::move(*ticket), tokens);
    b.now += std::chrono::minutes(2);  // saves pause after some failures
    return b.begin(tokens)->apart().count();
  };
  b.run(kA);
  CHECK(overtaken_save(kB) == 20);
  CHECK(overtaken_save(kA) == 40);
  CHECK(overtaken_save(kB) == 80);
  CHECK(overtaken_save(kA) == 80);
  for (std::uint32_t i = 0; i < 600; ++i) {
    b.run(range(static_cast<Token>(10000 + 1000 * i), 400));
  }
  CHECK(b.begin(kA)->apart().count() == 10);
}

TEST_CASE("steps: a conversation that goes on while it is displaced waits for its save") {
  Bench b(2);
  b.run(kA);
  b.run(range(4000, 400));
  const Tokens next_turn = kA + range(700, 20);
  const std::chrono::milliseconds patience(5000);
  std::optional<Ticket> other(std::move(*b.begin(kB)));
  REQUIRE(other->next_step());
  CHECK(other->next_step()->kind == Kind::save);
  CHECK(other->next_step()->tokens == kA);
  CHECK_FALSE(b.begin(next_turn, false, patience));
  SECTION("and is restored when that is done") {
    const auto stored = other->stored();
    other->step_done({.ms = 1, .pending = true});
    auto ticket = b.begin(next_turn, false, patience);
    REQUIRE(ticket);
    CHECK(ticket->reason() == Reason::restored);
    CHECK(ticket->predicted() == 400);
    stored(Done{});
  }
  SECTION("and is computed when that fails, or its client leaves") {
    if (GENERATE(true, false)) {
      other->step_done({.error = Error{Errc::backend, "no"}});
    } else {
      other.reset();
    }
    CHECK(b.begin(next_turn, false, patience));
  }
}

TEST_CASE("steps: a leader that fails or leaves releases those who wait") {
  using std::chrono::milliseconds;
  Bench b(2);
  const Tokens prompt = range(1, 1000);
  std::optional<Ticket> leader(std::move(*b.begin(prompt, true, milliseconds(5000))));
  const Tokens second = prompt + range(6000, 10);
  REQUIRE(leader->next_step());
  CHECK_FALSE(b.begin(second, true, milliseconds(5000)));
  SECTION("failed") {
    leader->step_done({.error = Error{Errc::backend, "no"}});
    CHECK(leader->next_step() == nullptr);
    CHECK(b.begin(second, true, milliseconds(5000)));
  }
  SECTION("left") {
    leader.reset();
    CHECK(b.begin(second, true, milliseconds(5000)));
    CHECK(b.engine.slot_table()[0].content != SlotContent::known);
  }
}

TEST_CASE("steps: after a failed restore the slot is erased, and the prompt computed") {  // B43
  Bench b(1);
  b.stored.push_back(kA);
  auto ticket = b.begin(kA + range(700, 20));
  REQUIRE(ticket->next_step()->kind == Kind::restore);
  SECTION("told by the backend") {
    ticket->step_done({.error = Error{Errc::backend, "400"}});
  }
  SECTION("told by another count") {
    ticket->step_done({.reused = 0});
  }
  REQUIRE(ticket->next_step());
  CHECK(ticket->next_step()->kind == Kind::erase);
  CHECK(ticket->predicted() == 0);
  b.done(*ticket);
  CHECK(ticket->next_step() == nullptr);
  CHECK(ticket->may_reuse());
  CHECK(b.finish(std::move(*ticket), kA + range(700, 20)).cache_class == CacheClass::miss);
  CHECK(b.engine.stats().restore_failures_total == 1);
}

TEST_CASE("steps: a client that leaves during a restore leaves a slot that is erased first") {
  Bench b(1);
  b.stored.push_back(kA);
  std::optional<Ticket> ticket(std::move(*b.begin(kA)));
  REQUIRE(ticket->next_step()->kind == Kind::restore);
  ticket.reset();
  auto next = b.begin(kB);
  REQUIRE(next);
  CHECK(next->next_step()->kind == Kind::erase);
}

TEST_CASE("steps: saving is given up for good when it is not supported") {  // B45
  Bench b(1);
  b.run(kA);
  auto ticket = b.begin(kB);
  REQUIRE(ticket->next_step()->kind == Kind::save);
  ticket->step_done({.error = Error{Errc::unsupported, "501"}});
  CHECK(ticket->next_step() == nullptr);
  b.finish(std::move(*ticket), kB);
  CHECK(b.engine.stats().can_save == 0);
  CHECK(b.run(range(9000, 400)).empty());
}

TEST_CASE("steps: saving pauses for a minute after three failures in a row") {
  Bench b(1);
  for (Token i = 0; i < 4; ++i) {
    auto ticket = b.begin(range(10000 * (i + 1), 400));
    while (ticket->next_step()) {
      ticket->step_done({.error = Error{Errc::unavailable, "disk full"}});
    }
    b.finish(std::move(*ticket), range(10000 * (i + 1), 400));
  }
  CHECK(b.engine.stats().save_failures_total == 3);
  CHECK(b.engine.stats().can_save == 0);
  b.now += std::chrono::seconds(61);
  CHECK(b.engine.stats().can_save == 1);
  CHECK(b.run(kB) == std::vector{Kind::save});
}

TEST_CASE("steps: while saving pauses, what is stored is restored all the same") {
  Bench b(1);
  b.stored.push_back(kA);
  for (Token i = 0; i < 3; ++i) {
    auto ticket = b.begin(range(10000 * (i + 1), 400));
    while (ticket->next_step()) {
      ticket->step_done({.error = Error{Errc::unavailable, "disk full"}});
    }
    b.finish(std::move(*ticket), range(10000 * (i + 1), 400));
  }
  auto ticket = b.begin(range(90000, 400));
  while (ticket->next_step()) {
    ticket->step_done({.error = Error{Errc::unavailable, "disk full"}});
  }
  b.finish(std::move(*ticket), range(90000, 400));
  REQUIRE(b.engine.stats().can_save == 0);
  CHECK(b.run(kA) == std::vector{Kind::restore});
}

TEST_CASE("steps: clients that leave during a save are nobody's failure") {
  Bench b(1);
  b.run(kA);
  for (int i = 0; i < 5; ++i) {
    auto ticket = b.begin(kB);
    REQUIRE(ticket->next_step()->kind == Kind::save);
    ticket->step_done({.error = Error{Errc::cancelled, "the call was given up"}});
    CHECK(ticket->next_step() == nullptr);
  }
  CHECK(b.engine.stats().save_failures_total == 0);
  CHECK(b.engine.stats().can_save == 1);
  CHECK(b.begin(kA)->predicted() == 399);  // the slot is as it was
}

TEST_CASE("steps: forgetting the slots or a sleep takes no ability away, a restart does") {
  Bench b(1);
  b.engine.forget_residency();
  b.engine.backend_slept();
  CHECK(b.engine.stats().can_save == 1);
  b.engine.forget_residency(true);
  CHECK(b.begin(kA)->next_step()->kind == Kind::erase);
  b.engine.backend_restarted();
  CHECK(b.engine.stats().can_save == 0);
}

TEST_CASE("steps: what only stands for a slot's content is not saved") {
  Bench b(1);
  Query query{.scope = kScope, .tokens = kA};
  query.surrogate = true;
  auto ticket = b.engine.begin(query);
  b.finish(std::move(*ticket), kA);
  CHECK_FALSE(b.engine.begin_chore());
  CHECK(b.run(kB).empty());
}

TEST_CASE("steps: a restart of the backend in between ends them") {
  Bench b(1);
  b.run(kA);
  auto ticket = b.begin(kB);
  REQUIRE(ticket->next_step());
  b.engine.backend_restarted();
  ticket->step_done({.tokens = kA});
  CHECK(ticket->next_step() == nullptr);
  CHECK_FALSE(ticket->current());
  CHECK(b.engine.stats().can_save == 0);
}

TEST_CASE(
    "steps: where states can only be used whole, a prompt is computed in stages and each kept") {
  Bench b(2, false);
  const Tokens prompt = kA + range(700, 40);
  const std::vector<std::uint64_t> boundaries{200};
  Query query{.scope = kScope, .tokens = prompt, .from_ids = true, .boundaries = boundaries};
  CHECK(b.engine.wants_boundaries());
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  std::vector<std::size_t> prefilled, saved;
  while (const Step* step = ticket->next_step()) {
    (step->kind == Kind::prefill ? prefilled : saved).push_back(step->tokens.size());
    CHECK(common_prefix(step->tokens, prompt) == step->tokens.size());
    CHECK((step->kind == Kind::prefill || (step->whole && step->later)));
    b.done(*ticket, 0);
  }
  CHECK(prefilled == std::vector<std::size_t>{200, 439});
  CHECK(saved == prefilled);
  const Account account = b.finish(std::move(*ticket), prompt, 439);
  CHECK(account.reused == 0);  // all of it was computed for this request
  CHECK_FALSE(account.integrity_fault);
}

TEST_CASE("steps: a stage ends where a known prompt parts from this one") {
  Bench b(2, false);
  b.run(kA);
  const Tokens prompt = range(1, 300) + range(5000, 100);
  Query query{.scope = kScope, .tokens = prompt, .from_ids = true};
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  std::vector<std::size_t> prefilled;
  while (const Step* step = ticket->next_step()) {
    if (step->kind == Kind::prefill) {
      prefilled.push_back(step->tokens.size());
    }
    b.done(*ticket, 0);
  }
  CHECK(prefilled == std::vector<std::size_t>{300, 399});
}

TEST_CASE("steps: a stage that is too short, or that is there already, is not computed") {
  Bench b(2, false);
  b.stored.push_back(range(1, 200));
  const Tokens prompt = range(1, 215);
  const std::vector<std::uint64_t> boundaries{5, 200};
  Query query{.scope = kScope, .tokens = prompt, .from_ids = true, .boundaries = boundaries};
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  CHECK(b.run_steps(*ticket) == std::vector{Kind::restore});
  b.finish(std::move(*ticket), prompt);
}

TEST_CASE("steps: when a stage cannot be computed the request goes on without the others") {
  Bench b(2, false);
  const std::vector<std::uint64_t> boundaries{200};
  Query query{.scope = kScope, .tokens = kA, .from_ids = true, .boundaries = boundaries};
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  REQUIRE(ticket->next_step()->kind == Kind::prefill);
  ticket->step_done({.error = Error{Errc::backend, "no"}});
  CHECK(ticket->next_step() == nullptr);
  CHECK(b.engine.stats().save_failures_total == 0);
  b.finish(std::move(*ticket), kA, 0);
}

TEST_CASE("steps: what is saved and not yet taken counts as stored until the store has failed") {
  Bench b(1);
  b.run(kA);
  auto ticket = b.begin(kB);
  REQUIRE(ticket);
  REQUIRE(ticket->next_step()->kind == Kind::save);
  CHECK(ticket->next_step()->later);
  const auto stored = ticket->stored();
  ticket->step_done({.ms = 1, .pending = true});
  b.finish(std::move(*ticket), kB);
  CHECK(b.engine.lookup({.scope = kScope, .tokens = kA}).source == Source::disk);
  CHECK(b.engine.stats().saves_total == 0);
  const bool fails = GENERATE(true, false);
  stored(fails ? Status(Error{Errc::unavailable, "full"}) : Status(Done{}));
  CHECK(b.engine.lookup({.scope = kScope, .tokens = kA}).source == Source::tree);
  CHECK(b.engine.stats().save_failures_total == (fails ? 1 : 0));
  CHECK(b.engine.stats().saves_total == (fails ? 0 : 1));
}

TEST_CASE("steps: a restore of which less than half is reused is a failure and no hit") {  // B03
  Bench b(1);
  b.stored.push_back(kA);
  const Tokens prompt = kA + range(700, 20);
  Token fresh = 100000;
  const auto again = [&](std::uint64_t cached) {
    b.run(range(fresh += 1000, 400));
    b.stored = {kA};
    auto ticket = b.begin(prompt);
    REQUIRE(ticket);
    const auto kinds = b.run_steps(*ticket);
    const Account account = b.finish(std::move(*ticket), prompt, cached);
    return std::pair(!kinds.empty() && kinds.back() == Kind::restore, account);
  };
  CHECK(again(199).second.restore_failed);
  const auto half = again(200);
  CHECK_FALSE(half.second.restore_failed);
  CHECK(half.second.cache_class == CacheClass::hit);
  const auto some = again(150);
  CHECK(some.second.cache_class == CacheClass::soft_hit);
  CHECK(again(0).second.cache_class == CacheClass::miss);
  CHECK(b.engine.stats().source_disk == 1);
  CHECK(b.engine.stats().can_save == 1);
  CHECK(again(0).first);  // the third in a row
  CHECK(b.engine.stats().restore_failures_total == 4);
  CHECK(b.engine.stats().can_save == 0);
  CHECK_FALSE(again(0).first);
  b.engine.set_abilities({.saves = true, .cuts = true});
  CHECK(again(400).first);
}

TEST_CASE("steps: a restore that takes too long costs the ticket its slot") {  // B29
  Bench b(2);
  b.stored.push_back(kA);
  auto ticket = b.begin(kA);
  REQUIRE(ticket->next_step()->kind == Kind::restore);
  const std::uint32_t slot = ticket->slot()->index;
  ticket->step_done({.error = Error{Errc::timed_out, "no answer"}});
  CHECK(ticket->next_step() == nullptr);
  CHECK_FALSE(ticket->current());
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.fenced() == std::vector{slot});
  auto next = b.begin(kA);
  REQUIRE(next);
  CHECK(next->current());
  CHECK(next->slot()->index == 1 - slot);
  CHECK(next->next_step() == nullptr);  // nothing is restored for a minute
  CHECK_FALSE(b.begin(kA));
  b.engine.unfence(slot);
  auto there = b.begin(kB);
  REQUIRE(there);
  CHECK(there->slot()->index == slot);
  CHECK(there->next_step()->kind == Kind::erase);
  std::move(*there).dismiss({}, SlotContent::unknown);
  b.now += std::chrono::seconds(61);
  CHECK(b.begin(kA)->next_step()->kind == Kind::erase);
  CHECK(b.engine.stats().restore_failures_total == 1);
}

TEST_CASE("steps: one save that takes too long is enough for a pause") {  // B29
  Bench b(1);
  b.run(kA);
  auto ticket = b.begin(kB);
  REQUIRE(ticket->next_step()->kind == Kind::save);
  ticket->step_done({.error = Error{Errc::timed_out, "no answer"}});
  CHECK(ticket->current());
  CHECK(b.engine.stats().can_save == 0);
  b.now += std::chrono::seconds(61);
  CHECK(b.engine.stats().can_save == 1);
}

TEST_CASE(
    "steps: the backend's own cache is asked for more than the store has, while it delivers") {
  // B28
  Bench b(1);
  b.engine.backend_changed({.slots = 1, .slots_used = {false}, .own_cache = true});
  b.engine.set_abilities({.saves = true, .cuts = true});
  b.stored.push_back(kA);
  const Tokens grown = kA + range(700, 800);
  Token fresh = 100000;
  const auto displace = [&] {
    const Tokens other = range(fresh += 1000, 400);
    auto ticket = b.begin(other);
    while (ticket->next_step() != nullptr) {
      ticket->step_done({.error = Error{Errc::backend, "500"}});
    }
    b.finish(std::move(*ticket), other);
  };
  b.run(grown);
  displace();
  auto next = b.begin(grown + range(1600, 20));
  CHECK(next->reason() == Reason::backend_cache);
  CHECK(next->next_step() == nullptr);
  b.finish(std::move(*next), grown + range(1600, 20), 1200);
  int disappointments = 0;
  for (;;) {
    displace();
    auto ticket = b.begin(grown + range(1600, 30));
    const bool asked = ticket->reason() == Reason::backend_cache;
    const auto kinds = b.run_steps(*ticket);
    b.finish(std::move(*ticket), grown + range(1600, 30), asked ? 0 : 400);
    if (!asked) {
      CHECK(kinds.back() == Kind::restore);
      break;
    }
    REQUIRE(++disappointments < 4);
  }
  CHECK(disappointments > 0);
}

TEST_CASE("steps: a store that restores more than was asked for: the slot holds all of it") {
  Bench b(1);
  b.stored.push_back(kA + kB);
  auto ticket = b.begin(kA + range(700, 20));
  REQUIRE(ticket->next_step()->kind == Kind::restore);
  ticket->step_done({.tokens = kA + kB, .unknown = 3, .reused = 400, .ms = 1});
  CHECK(ticket->predicted() == 400);
  CHECK(b.engine.slot_table()[0].known_tokens == 800);
  CHECK(b.engine.slot_table()[0].unknown_tail == 3);
  const Account account = b.finish(std::move(*ticket), kA + range(700, 20));
  CHECK_FALSE(account.integrity_fault);
  CHECK(b.engine.slot_table()[0].known_tokens == 420);
}

TEST_CASE("steps: behind the known end of a restored state the backend may find more") {
  Bench b(1);
  b.stored.push_back(kA);
  const Tokens prompt = kA + range(700, 20);
  auto ticket = b.begin(prompt);
  REQUIRE(ticket->next_step()->kind == Kind::restore);
  ticket->step_done({.tokens = kA, .unknown = 15, .reused = 400, .ms = 1});
  CHECK_FALSE(b.finish(std::move(*ticket), prompt, 415).integrity_fault);
}

TEST_CASE("steps: a save says which stored state its ticket needs next") {
  Bench b(1);
  b.run(kA);
  b.stored.push_back(kB);
  auto ticket = b.begin(kB + range(700, 20));
  REQUIRE(ticket);
  const Step* step = ticket->next_step();
  REQUIRE(step->kind == Kind::save);
  CHECK(step->needed == kB);
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  CHECK(b.begin(range(9000, 400))->next_step()->needed.empty());
}

TEST_CASE("steps: what was restored and not reused is doubted") {
  Bench b(1);
  std::vector<Tokens> doubted;
  b.engine.use_store(
      [](const Scope&, TokenSpan tokens) { return StoredPrefix{.tokens = tokens.size() - 20}; },
      [&](const Scope& scope, TokenSpan tokens) {
        CHECK(scope == kScope);
        doubted.emplace_back(tokens.begin(), tokens.end());
      });
  const auto restored = [&](const Tokens& prompt, std::uint64_t cached) {
    auto ticket = b.begin(prompt);
    REQUIRE(ticket);
    b.run_steps(*ticket);
    b.finish(std::move(*ticket), prompt, cached);
  };
  restored(kA + range(700, 20), 400);
  CHECK(doubted.empty());
  restored(kB + range(700, 20), 3);
  CHECK(doubted == std::vector<Tokens>{kB + range(700, 20)});
}

TEST_CASE("steps: ids that nobody told are saved only where that is of use") {
  Bench b(1);
  SECTION("the store reads them") {
    b.engine.set_abilities({.saves = true, .cuts = false});
    b.run(kA);
    CHECK(b.engine.begin_chore());
  }
  SECTION("the backend rewinds behind them") {
    b.engine.set_abilities({.saves = true, .cuts = true, .reads = false});
    b.run(kA);
    CHECK(b.engine.begin_chore());
  }
  SECTION("neither") {
    b.engine.set_abilities({.saves = true, .cuts = false, .rewinds = false, .reads = false});
    b.run(kA);
    CHECK_FALSE(b.engine.begin_chore());
  }
}

TEST_CASE("steps: a state that is kept whole is not restored for a prompt that is no longer") {
  Bench b(1, false);
  b.engine.use_store([](const Scope&, TokenSpan tokens) {
    return StoredPrefix{.tokens = tokens.size() >= kA.size() ? kA.size() : 0, .snapshot = true};
  });
  CHECK(b.begin(kA)->next_step() == nullptr);
  CHECK(b.begin(kA + range(700, 1))->next_step()->kind == Kind::restore);
}

TEST_CASE("steps: a slot is saved once in the background, even if the store had no room for it") {
  Bench b(2);
  b.run(kA);
  for (int i = 0; i < 2; ++i) {
    auto chore = b.engine.begin_chore();
    REQUIRE(chore.has_value() == (i == 0));
    if (chore) {
      b.run_steps(*chore);
      std::move(*chore).dismiss({}, SlotContent::unknown);
    }
    b.stored.clear();
  }
  b.run(kA + range(700, 100));
  CHECK(b.engine.begin_chore());
}

TEST_CASE(
    "steps: a spare slot is one whose content is worth nothing, and it is unknown afterwards") {
  Bench b(2);
  b.run(kA);
  auto spare = b.engine.begin_spare();
  REQUIRE(spare);
  CHECK(spare->slot()->index == 1);  // the empty one
  CHECK(spare->next_step() == nullptr);
  CHECK_FALSE(spare->may_reuse());
  CHECK_FALSE(b.engine.begin_spare());  // one at a time: something runs
  std::move(*spare).dismiss(std::vector<std::uint32_t>{1}, SlotContent::unknown);
  CHECK(b.engine.slot_table()[1].content == SlotContent::unknown);
  CHECK(b.engine.slot_table()[0].known_tokens == 400);
  CHECK(b.engine.stats().requests_total == 1);
  CHECK(b.engine.idle_slots() == 2);
}

TEST_CASE("steps: a spare slot's content is saved first when it is worth something") {
  Bench b(1);
  b.run(kA);
  auto spare = b.engine.begin_spare();
  REQUIRE(spare);
  CHECK(b.run_steps(*spare) == std::vector{Kind::save});
  std::move(*spare).dismiss(std::vector<std::uint32_t>{0}, SlotContent::unknown);
  CHECK(b.begin(kA + range(700, 20))->reason() == Reason::restored);
}

TEST_CASE("steps: no slot is spared while a request runs, or when its content would be lost") {
  Bench b(2);
  auto ticket = b.begin(kA);
  REQUIRE(ticket);
  CHECK(b.engine.begin_spare().error().code == Errc::not_found);
  b.finish(std::move(*ticket), kA);
  b.run(kB);
  b.engine.set_abilities({});
  CHECK_FALSE(b.engine.begin_spare());
  b.engine.set_pinning(false);
  b.engine.backend_restarted();
  CHECK_FALSE(b.engine.begin_spare());  // the backend would choose the slot
}
