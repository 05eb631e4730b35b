#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <optional>
#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;

namespace {

const Scope kScope({"model"});

struct Bench {
  std::chrono::steady_clock::time_point now{};
  Engine engine{{}, [this] { return now; }};

  explicit Bench(std::uint32_t slots, bool own_cache = false) {
    engine.backend_changed(
        {.slots = slots, .slots_used = std::vector<bool>(slots, false), .own_cache = own_cache});
  }

  Result<Ticket> begin(const Tokens& tokens) {
    return engine.begin({.scope = kScope, .tokens = tokens});
  }

  // A request that the backend answers as it should: `cached` tokens reused, `generated` made.
  Account run(const Tokens& tokens, std::optional<std::uint64_t> cached = {},
              std::uint64_t generated = 4) {
    auto ticket = begin(tokens);
    REQUIRE(ticket);
    ticket->sent();
    const std::uint64_t reused = cached.value_or(ticket->predicted());
    return std::move(*ticket).finish(answer(tokens, reused, generated));
  }

  static Outcome answer(const Tokens& tokens, std::uint64_t cached, std::uint64_t generated = 4) {
    return {.ending = Ending::completed,
            .computed = true,
            .prompt_tokens = tokens.size(),
            .cached_tokens = cached,
            .prompt_ms = 0,
            .generated_tokens = generated,
            .generated = {}};
  }
};

}  // namespace

TEST_CASE("engine: figures that cannot be are not believed") {
  Bench b(1);
  const Tokens prompt = range(1, 100);
  for (const double ms : {1e308, -1.0, 5.0}) {
    for (const std::uint64_t cached : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      auto ticket = b.begin(prompt);
      REQUIRE(ticket);
      ticket->sent();
      Outcome outcome = Bench::answer(prompt, cached);
      outcome.prompt_ms = ms;
      std::move(*ticket).finish(outcome);
    }
  }
  CHECK(b.begin(prompt));
  CHECK(b.engine.stats().prefill_ms_per_token < 1e6);
}

TEST_CASE("engine: a request that was sent before its steps were run leaves nothing to believe") {
  Engine engine({.exact_batch = 32}, [] { return std::chrono::steady_clock::time_point{}; });
  engine.backend_changed({.slots = 2, .slots_used = {false, false}});
  const Tokens prompt = range(1, 100);
  for (int i = 0; i < 2; ++i) {
    auto ticket = engine.begin(
        {.scope = kScope, .tokens = prompt, .bypass = Reason::not_cacheable, .sequences = 2});
    REQUIRE(ticket);
    ticket->sent();
    std::move(*ticket).finish({.ending = Ending::completed, .computed = true});
  }
  CHECK(engine.idle_slots() == 2);
}

TEST_CASE("engine: what is told is told in order, also what a listener changes itself") {
  Bench b(1);
  std::vector<PromptChange::Kind> told;
  bool inside = false;
  b.engine.on_prompt_change([&](const PromptChange& change) {
    CHECK_FALSE(inside);
    inside = true;
    told.push_back(change.kind);
    if (change.kind == PromptChange::Kind::put) {
      CHECK(b.engine.forget(change.prompt.id));
    }
    inside = false;
  });
  b.run(range(1, 100));
  using Kind = PromptChange::Kind;
  CHECK(told == std::vector<Kind>{Kind::put, Kind::removed});
}

TEST_CASE(
    "engine: the second turn is predicted to reuse the whole first prompt, and counted by the "
    "backend's word") {
  Bench b(2);
  const Tokens first = range(1, 100);
  CHECK(b.run(first).cache_class == CacheClass::miss);
  const Tokens second = first + range(500, 20);
  auto ticket = b.begin(second);
  REQUIRE(ticket);
  CHECK(ticket->predicted() == 100);
  CHECK(ticket->available() == 100);
  CHECK(ticket->predicted_class() == CacheClass::hit);
  CHECK(ticket->reason() == Reason::slot_prefix);
  ticket->sent();
  const Account account = std::move(*ticket).finish(Bench::answer(second, 103));
  CHECK(account.cache_class == CacheClass::hit);
  CHECK_FALSE(account.integrity_fault);
  const Stats s = b.engine.stats();
  CHECK(s.requests_total == 2);
  CHECK(s.class_hit == 1);
  CHECK(s.class_miss == 1);
  CHECK(s.reused_tokens_total == 103);
  CHECK(s.computed_tokens_total == 100 + 17);
}

TEST_CASE(
    "engine: history that is rendered differently is predicted up to the first differing token") {  // B02
  Bench b(2);
  const Tokens head = range(1, 503);
  b.run(head + range(900, 3));
  auto ticket = b.begin(head + range(950, 10));
  REQUIRE(ticket);
  CHECK(ticket->slot()->index == 0);
  CHECK(ticket->predicted() == 503);
}

TEST_CASE("engine: reuse below the limit is a soft hit, an unreported one is no guess") {
  Bench b(1);
  b.run(range(1, 50));
  CHECK(b.run(range(1, 6) + range(700, 20), 6).cache_class == CacheClass::soft_hit);
  auto ticket = b.begin(range(1, 50));
  ticket->sent();
  CHECK(std::move(*ticket).finish({.ending = Ending::completed, .computed = true}).cache_class ==
        CacheClass::unreported);
}

TEST_CASE("engine: each request counts once, whatever becomes of it") {  // B21
  Bench b(1);
  const Tokens prompt = range(1, 40);
  auto first = b.begin(prompt);
  REQUIRE(first);
  for (int i = 0; i < 5; ++i) {
    CHECK(b.begin(prompt).error().code == Errc::busy);
  }
  first->sent();
  std::move(*first).finish(Bench::answer(prompt, 0));
  auto second = b.begin(prompt);
  second->sent();
  std::move(*second).finish({.ending = Ending::failed});
  { auto third = b.begin(prompt); }
  const Stats s = b.engine.stats();
  CHECK(s.requests_total == 3);
  CHECK(s.requests_completed == 1);
  CHECK(s.requests_failed == 1);
  CHECK(s.requests_cancelled == 1);
  CHECK(s.class_hit == 0);
  CHECK(s.class_miss == 1);
}

TEST_CASE("engine: a ticket that was never sent leaves the slot as it was") {
  Bench b(1);
  b.run(range(1, 80));
  { auto ticket = b.begin(range(300, 50)); }
  CHECK(b.begin(range(1, 90))->predicted() == 80);
}

TEST_CASE("engine: after a cancelled request only what is certain counts") {
  Bench b(1);
  b.run(range(1, 80));
  {
    auto ticket = b.begin(range(1, 60) + range(500, 40));
    ticket->sent();
  }
  CHECK(b.begin(range(1, 60) + range(500, 40))->predicted() == 60);
  SECTION("an answer that had begun proves the prompt was computed") {
    auto ticket = b.begin(range(1, 60) + range(500, 40));
    ticket->sent();
    std::move(*ticket).finish(
        {.ending = Ending::cancelled, .computed = true, .generated_tokens = 3});
    CHECK(b.begin(range(1, 60) + range(500, 40) + range(7, 3))->predicted() == 100);
  }
}

TEST_CASE("engine: after a broken answer the slot's content is unknown") {  // B26
  Bench b(1);
  b.run(range(1, 80));
  auto ticket = b.begin(range(1, 80));
  ticket->sent();
  std::move(*ticket).finish({.ending = Ending::failed, .computed = true});
  CHECK(b.begin(range(1, 90))->predicted() == 0);
  CHECK(b.engine.slot_table()[0].content == SlotContent::unknown);
}

TEST_CASE(
    "engine: generated ids extend what the slot holds, but for the last, which was never "
    "computed") {
  Bench b(1);
  const Tokens prompt = range(1, 30);
  const Tokens generated = range(800, 5);
  auto ticket = b.begin(prompt);
  ticket->sent();
  Outcome outcome = Bench::answer(prompt, 0, 5);
  outcome.generated = generated;
  std::move(*ticket).finish(outcome);
  CHECK(b.begin(prompt + generated + range(1, 4))->predicted() == 34);
}

TEST_CASE("engine: a prompt that the backend counts differently is not remembered") {  // B31
  Bench b(1);
  const Tokens prompt = range(1, 30);
  auto ticket = b.begin(prompt);
  ticket->sent();
  Outcome outcome = Bench::answer(prompt, 0);
  outcome.prompt_tokens = 31;
  CHECK(std::move(*ticket).finish(outcome).tokenization_mismatch);
  CHECK(b.engine.stats().tokenization_mismatch_total == 1);
  CHECK(b.engine.stats().tree_blocks == 0);
  CHECK(b.begin(prompt)->predicted() == 0);
}

TEST_CASE(
    "engine: more reuse than any known prompt allows is a fault; the slot is erased before its "
    "next use") {  // B25
  Bench b(1);
  b.run(range(1, 800));
  const Tokens other = range(5000, 6);
  CHECK(b.run(other, 500).integrity_fault);
  CHECK(b.engine.stats().integrity_faults_total == 1);
  auto next = b.begin(range(1, 800));
  REQUIRE(next);
  CHECK(next->predicted() == 0);
  REQUIRE(next->next_step() != nullptr);
  CHECK(next->next_step()->kind == Step::Kind::erase);
  SECTION("erased: it may be used as usual") {
    next->step_done({});
    CHECK(next->may_reuse());
  }
  SECTION("not erased: it is computed over") {
    next->step_done({.error = Error{Errc::unsupported, "no slot actions"}});
    CHECK_FALSE(next->may_reuse());
  }
  CHECK(next->next_step() == nullptr);
}

TEST_CASE("engine: reuse that a known prompt explains is no fault, wherever it came from") {
  Bench b(1, true);
  b.run(range(1, 300));
  b.run(range(2000, 300));
  auto ticket = b.begin(range(1, 300) + range(900, 5));
  CHECK(ticket->reason() == Reason::backend_cache);
  CHECK_FALSE(ticket->slot());
  ticket->sent();
  CHECK_FALSE(std::move(*ticket).finish(Bench::answer(range(1, 305), 303)).integrity_fault);
}

TEST_CASE("engine: the backend's own cache is asked only while it delivers") {
  Bench b(1, true);
  b.run(range(1, 300));
  int asked = 0;
  for (Token i = 0; i < 12; ++i) {
    b.run(range(2000 * (i + 2), 300), 0);
    auto ticket = b.begin(range(1, 300));
    REQUIRE(ticket);
    asked += ticket->slot() ? 0 : 1;
    ticket->sent();
    std::move(*ticket).finish(Bench::answer(range(1, 300), 0));
  }
  CHECK(asked > 0);
  CHECK(asked <= 3);
  CHECK(b.engine.stats().own_cache == 0);
}

TEST_CASE("engine: what a slot gives anyway does not make the backend's own cache trusted") {
  Bench b(1, true);
  const Tokens a = range(1, 300) + range(1000, 100);
  const Tokens c = range(1, 300) + range(2000, 100);
  b.run(a);
  int asked = 0;
  for (int i = 0; i < 12; ++i) {
    const Tokens& prompt = i % 2 == 0 ? c : a;
    auto ticket = b.begin(prompt);
    REQUIRE(ticket);
    asked += ticket->slot() ? 0 : 1;
    ticket->sent();
    if (!ticket->slot()) {
      const std::vector<std::uint32_t> in_use{0};
      ticket->settle(in_use);
    }
    std::move(*ticket).finish(Bench::answer(prompt, 300));
  }
  CHECK(asked > 0);
  CHECK(asked <= 3);
}

TEST_CASE(
    "engine: a choice left to the backend keeps every idle slot until it is known which it took") {
  Bench b(3, true);
  Query query{.scope = kScope, .tokens = {}, .bypass = Reason::tokenize_failed};
  auto ticket = b.engine.begin(query);
  REQUIRE(ticket);
  CHECK(ticket->predicted_class() == CacheClass::bypass);
  CHECK(b.engine.idle_slots() == 0);
  ticket->sent();
  const std::vector<std::uint32_t> elsewhere{};
  ticket->settle(elsewhere);
  CHECK(b.engine.idle_slots() == 0);
  const std::vector<std::uint32_t> used{1};
  ticket->settle(used);
  CHECK(b.engine.idle_slots() == 2);
  CHECK(std::move(*ticket).finish(Bench::answer({}, 3)).cache_class == CacheClass::bypass);
  CHECK(b.engine.slot_table()[1].content == SlotContent::unknown);
  CHECK(b.engine.slot_table()[0].content == SlotContent::empty);
}

TEST_CASE("engine: of two choices left to the backend the second waits until the first is known") {
  Bench b(3, true);
  const Tokens other = range(1, 50);
  auto running = b.begin(other);
  REQUIRE(running->slot());
  Query query{.scope = kScope, .tokens = {}, .bypass = Reason::tokenize_failed};
  auto first = b.engine.begin(query);
  REQUIRE(first);
  first->sent();
  const std::uint32_t freed = running->slot()->index;
  { auto done = std::move(*running); }
  CHECK(b.engine.idle_slots() == 1);
  // The backend might put the first one there, and the second where the first is looked for.
  CHECK_FALSE(b.engine.begin(query));
  CHECK(b.begin(other)->slot()->index == freed);  // one that names its slot may go
  const std::vector<std::uint32_t> used{freed == 0 ? 1U : 0U};
  first->settle(used);
  CHECK(b.engine.begin(query));
}

TEST_CASE(
    "engine: several answers wait for as many slots and leave all they touched unknown") {  // B56
  Bench b(2);
  const Tokens tokens = range(1, 20);
  auto one = b.begin(tokens);
  Query query{.scope = kScope, .tokens = {}, .bypass = Reason::several_answers, .sequences = 2};
  CHECK_FALSE(b.engine.begin(query));
  { auto done = std::move(*one); }
  auto both = b.engine.begin(query);
  REQUIRE(both);
  both->sent();
  std::move(*both).finish(Bench::answer({}, 0));
  CHECK(b.engine.slot_table()[0].content == SlotContent::unknown);
  CHECK(b.engine.slot_table()[1].content == SlotContent::unknown);
}

TEST_CASE("engine: more answers than slots take them all") {
  Bench b(2);
  Query query{.scope = kScope, .tokens = {}, .bypass = Reason::several_answers, .sequences = 8};
  CHECK(b.engine.begin(query));
}

TEST_CASE("engine: where pinning does not work the backend chooses and slots only count") {
  Bench b(2);
  b.engine.set_pinning(false);
  auto one = b.begin(range(1, 20));
  auto two = b.begin(range(1, 20));
  REQUIRE(one);
  REQUIRE(two);
  CHECK_FALSE(one->slot());
  CHECK(one->reason() == Reason::pinning_off);
  CHECK(b.engine.idle_slots() == 0);
}

TEST_CASE("engine: a restart drops every claim, and what was under way records nothing") {  // B14
  Bench b(2);
  b.run(range(1, 200));
  auto running = b.begin(range(3000, 50));
  running->sent();
  b.engine.backend_restarted();
  auto next = b.begin(range(1, 200));
  REQUIRE(next);
  CHECK(next->predicted() == 0);
  CHECK(next->available() == 200);  // still known, but nowhere
  CHECK(next->source() == Source::tree);
  std::move(*running).finish(Bench::answer(range(3000, 50), 0));
  CHECK(b.begin(range(3000, 60))->predicted() == 0);
  CHECK(b.engine.stats().upstream_restarts_total == 1);
}

TEST_CASE("engine: a sleep empties the slots and is no restart") {  // B48
  Bench b(1);
  b.run(range(1, 200));
  b.engine.backend_slept();
  CHECK(b.begin(range(1, 200))->predicted() == 0);
  CHECK(b.engine.stats().upstream_restarts_total == 0);
}

TEST_CASE("engine: fewer slots after a change do not break tickets of the old ones") {
  Bench b(4);
  std::vector<Ticket> running;
  for (Token i = 0; i < 4; ++i) {
    auto ticket = b.begin(range(1000 * i, 20));
    ticket->sent();
    running.push_back(std::move(*ticket));
  }
  b.engine.backend_changed({.slots = 1, .slots_used = {false}});
  running.clear();
  CHECK(b.engine.idle_slots() == 1);
  CHECK(b.begin(range(1, 10)));
}

TEST_CASE("engine: a stalled slot is fenced until it is said to be idle") {  // B22
  Bench b(2);
  auto ticket = b.begin(range(1, 20));
  ticket->sent();
  std::move(*ticket).finish({.ending = Ending::stalled});
  CHECK(b.engine.fenced() == std::vector<std::uint32_t>{0});
  CHECK(b.engine.idle_slots() == 1);
  CHECK(b.begin(range(1, 20))->slot()->index == 1);
  b.engine.unfence(0);
  CHECK(b.engine.fenced().empty());
  CHECK(b.engine.idle_slots() == 2);
  CHECK(b.engine.stats().progress_timeouts_total == 1);
}

TEST_CASE("engine: nothing is shared across scopes") {  // B69
  Bench b(1);
  b.run(range(1, 100));
  const Tokens tokens = range(1, 100);
  auto ticket = b.engine.begin({.scope = Scope({"model", "lora 0.5"}), .tokens = tokens});
  REQUIRE(ticket);
  CHECK(ticket->predicted() == 0);
  CHECK(ticket->available() == 0);
}

TEST_CASE("engine: the listener hears of every slot that becomes free") {
  Bench b(1);
  int heard = 0;
  b.engine.on_slot_free([&] { ++heard; });
  { auto ticket = b.begin(range(1, 5)); }
  CHECK(heard == 1);
  b.run(range(1, 5));
  CHECK(heard == 2);
}

TEST_CASE("engine: the saved time follows the measured prefill rate") {
  Bench b(1);
  const Tokens prompt = range(1, 100);
  auto ticket = b.begin(prompt);
  ticket->sent();
  Outcome outcome = Bench::answer(prompt, 0);
  outcome.prompt_ms = 250;
  std::move(*ticket).finish(outcome);
  CHECK(b.engine.stats().prefill_ms_per_token == Approx(2.5));
  b.run(prompt, 99);
  CHECK(b.engine.stats().saved_ms_total == Approx(247.5));
}

TEST_CASE("engine: a dismissed ticket is not counted") {
  Bench b(2);
  Query all{.scope = kScope, .tokens = {}, .bypass = Reason::not_cacheable, .sequences = 2};
  auto ticket = b.engine.begin(all);
  REQUIRE(ticket);
  const std::vector<std::uint32_t> touched{0};
  std::move(*ticket).dismiss(touched, SlotContent::unknown);
  CHECK(b.engine.stats().requests_total == 0);
  CHECK(b.engine.idle_slots() == 2);
  CHECK(b.engine.slot_table()[0].content == SlotContent::unknown);
  CHECK(b.engine.slot_table()[1].content == SlotContent::empty);
}

TEST_CASE("engine: a ticket may outlive its engine") {
  std::optional<Ticket> ticket;
  {
    Bench b(1);
    ticket.emplace(std::move(*b.begin(range(1, 5))));
    ticket->sent();
    b.engine = Engine({}, &std::chrono::steady_clock::now);
  }
  ticket.reset();
}

TEST_CASE("engine: every reason and ending has a name") {
  for (int i = 0; i <= static_cast<int>(Reason::not_cacheable); ++i) {
    CHECK(to_string(static_cast<Reason>(i)) != "unknown");
  }
  CHECK(to_string(Ending::completed) == "completed");
  CHECK(to_string(Ending::stalled) == "stalled");
}
