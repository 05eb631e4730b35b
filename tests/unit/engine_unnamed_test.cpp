// Requests that cannot name their slot: the ticket's slot is made the one that the backend chooses, and
// nothing is believed of slots that was not seen.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;
using Kind = Step::Kind;

namespace {

const Scope kScope({"model"});

// A backend with llama-server's rule, and an engine before it.
struct Bench {
  struct Held {
    Tokens tokens;
    bool busy = false;
    std::uint64_t used = 0;
  };
  std::chrono::steady_clock::time_point now{};
  Engine engine{{}, [this] { return now; }};
  std::vector<Held> slots;
  bool compares = true;  // false: always the one used longest ago
  std::uint64_t uses = 0;

  explicit Bench(std::uint32_t count, bool own_cache = false) : slots(count) {
    engine.backend_changed(
        {.slots = count, .slots_used = std::vector<bool>(count, false), .own_cache = own_cache});
  }

  std::size_t choose(const Tokens& prompt) const {
    std::optional<std::size_t> best, coldest;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].busy) {
        continue;
      }
      const std::size_t common = common_prefix(slots[i].tokens, prompt);
      if (common * 10 > prompt.size() && common > longest) {
        best = i;
        longest = common;
      }
      if (!coldest || slots[i].used < slots[*coldest].used) {
        coldest = i;
      }
    }
    return compares && best ? *best : *coldest;
  }

  Result<Ticket> begin(const Tokens& tokens, bool unnamed = true) {
    Query query{.scope = kScope, .tokens = tokens};
    query.unnamed = unnamed;
    query.from_ids = true;
    return engine.begin(query);
  }
  std::uint64_t prefill(std::size_t slot, const Tokens& tokens) {
    const std::uint64_t cached =
        std::min(common_prefix(slots[slot].tokens, tokens), tokens.size() - 1);
    slots[slot].tokens = tokens;
    slots[slot].used = ++uses;
    return cached;
  }
  std::size_t run_steps(Ticket& ticket) {
    std::size_t computed = 0;
    while (const Step* step = ticket.next_step()) {
      REQUIRE(step->kind == Kind::prefill);
      const std::uint64_t cached = prefill(step->slot.index, step->tokens);
      computed += step->tokens.size() - cached;
      ticket.step_done({.reused = cached, .computed = step->tokens.size() - cached});
    }
    return computed;
  }

  // One request that is in the backend.
  struct Running {
    Ticket ticket;
    Tokens tokens;
    std::size_t slot = 0;
    std::uint64_t cached = 0;
  };
  Running send(Ticket ticket, const Tokens& tokens, bool unnamed) {
    ticket.sent();
    const std::size_t slot = unnamed ? choose(tokens) : ticket.slot()->index;
    const std::uint64_t cached = prefill(slot, tokens);
    slots[slot].busy = true;
    return {std::move(ticket), tokens, slot, cached};
  }
  Account end(Running running, bool asked = true) {
    Held& held = slots[running.slot];
    held.busy = false;
    held.used = ++uses;
    const Tokens answer = range(static_cast<Token>(100000 + 10 * uses), 3);
    held.tokens = held.tokens + answer;
    Outcome outcome{.ending = Ending::completed,
                    .computed = true,
                    .prompt_tokens = running.tokens.size(),
                    .cached_tokens = running.cached,
                    .generated_tokens = 4};
    if (asked && running.ticket.slot() && running.ticket.wants_proof(running.cached)) {
      outcome.held = slots[running.ticket.slot()->index].tokens.size();
    }
    return std::move(running.ticket).finish(outcome);
  }
  Account run(const Tokens& tokens, bool unnamed = true) {
    auto ticket = begin(tokens, unnamed);
    REQUIRE(ticket);
    if (ticket->slot()) {
      run_steps(*ticket);
    }
    return end(send(std::move(*ticket), tokens, unnamed));
  }

  // What the engine believes of idle slots is so.
  void check_beliefs(const std::vector<Tokens>& probes) const {
    const auto table = engine.slot_table();
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].leased || table[i].content == SlotContent::unknown) {
        continue;
      }
      REQUIRE(table[i].known_tokens + table[i].unknown_tail == slots[i].tokens.size());
    }
    for (const Tokens& probe : probes) {
      const Lookup found = engine.lookup({.scope = kScope, .tokens = probe});
      if (found.slot && found.predicted > 0) {
        REQUIRE(common_prefix(slots[*found.slot].tokens, probe) >= found.predicted);
      }
    }
  }
};

const Tokens kA = range(1, 400);
const Tokens kB = range(2000, 400);

}  // namespace

TEST_CASE("unnamed: a new prompt's beginning is computed in its slot, and the backend goes there") {
  Bench b(4);
  auto ticket = b.begin(kA);
  REQUIRE(ticket);
  const std::uint32_t slot = ticket->slot()->index;
  CHECK(b.run_steps(*ticket) == 51);
  auto running = b.send(std::move(*ticket), kA, true);
  CHECK(running.slot == slot);
  CHECK_FALSE(running.ticket.wants_proof(running.cached));
  const Account account = b.end(std::move(running));
  CHECK(account.reused == 0);  // what the step computed was not reused
  CHECK(account.cache_class == CacheClass::miss);
  CHECK_FALSE(account.elsewhere);
  b.check_beliefs({kA});
}

TEST_CASE("unnamed: a conversation that goes on needs no step") {
  Bench b(4);
  b.run(kA);
  const Tokens next = kA + range(700, 40);
  auto ticket = b.begin(next);
  REQUIRE(ticket);
  CHECK(ticket->next_step() == nullptr);
  const std::uint32_t slot = ticket->slot()->index;
  auto running = b.send(std::move(*ticket), next, true);
  CHECK(running.slot == slot);
  CHECK(b.end(std::move(running)).reused == 400);
}

TEST_CASE("unnamed: more is computed than any other slot shares, one that works included") {
  Bench b(3);
  b.run(kA);
  b.run(kA + range(900, 100), false);  // goes on in the same slot
  const Tokens branch = range(1, 300) + range(5000, 200);
  auto other = b.begin(range(1, 200) + range(7000, 200), false);  // shares 200, and works
  REQUIRE(other);
  auto at_work = b.send(std::move(*other), range(1, 200) + range(7000, 200), false);
  auto ticket = b.begin(branch);
  REQUIRE(ticket);
  b.run_steps(*ticket);
  const std::uint32_t slot = ticket->slot()->index;
  b.end(std::move(at_work));
  auto running = b.send(std::move(*ticket), branch, true);
  CHECK(running.slot == slot);
  CHECK_FALSE(b.end(std::move(running)).elsewhere);
  b.check_beliefs({kA, branch});
}

TEST_CASE(
    "unnamed: others that come while the beginning is computed are outdone before it is sent") {
  Bench b(2);
  const Tokens first = range(1, 300) + range(5000, 100);
  const Tokens second = range(1, 300) + range(6000, 100);
  auto one = b.begin(first);
  REQUIRE(one);
  const Step* step = one->next_step();
  REQUIRE(step != nullptr);
  CHECK(step->tokens.size() == 51);
  auto two = b.begin(second);  // shares 300, and gets 301 computed first
  REQUIRE(two);
  CHECK(b.run_steps(*two) == 301);
  CHECK(b.run_steps(*one) == 301);
  const std::uint32_t slot = one->slot()->index;
  auto running = b.send(std::move(*one), first, true);
  CHECK(running.slot == slot);
  auto other = b.send(std::move(*two), second, true);
  CHECK_FALSE(b.end(std::move(running)).elsewhere);
  CHECK_FALSE(b.end(std::move(other)).elsewhere);
}

TEST_CASE("unnamed: what follows the known tokens of the slot is not cut off") {
  Bench b(2);
  b.run(kA);
  const Tokens held = b.slots[0].tokens;  // with an answer whose ids nobody told
  REQUIRE(held.size() == 403);
  b.run(kA + range(3000, 30), false);  // another branch, in the same slot or beside it
  const Tokens next = kA + range(3000, 30) + range(4000, 30);
  auto ticket = b.begin(next);
  REQUIRE(ticket);
  b.run_steps(*ticket);
  auto running = b.send(std::move(*ticket), next, true);
  CHECK(running.cached >= 430);
  b.end(std::move(running));
}

TEST_CASE("unnamed: a backend that chooses otherwise is believed nothing, and soon left alone") {
  Bench b(3);
  b.compares = false;
  for (int i = 0; i < 8; ++i) {
    const Tokens prompt = range(static_cast<Token>(1 + 1000 * i), 200);
    auto ticket = b.begin(prompt);
    REQUIRE(ticket);
    b.run_steps(*ticket);
    const Account account = b.end(b.send(std::move(*ticket), prompt, true));
    CHECK(account.elsewhere);
    CHECK_FALSE(account.integrity_fault);
    b.check_beliefs({prompt});
  }
  auto ticket = b.begin(kA);
  REQUIRE(ticket);
  CHECK(ticket->reason() == Reason::not_cacheable);
  CHECK_FALSE(ticket->slot());
  CHECK_FALSE(ticket->settled());
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  // A changed backend gets another trial.
  b.engine.backend_changed(
      {.slots = 3, .slots_used = std::vector<bool>(3, false), .own_cache = false});
  ticket = b.begin(kA);
  REQUIRE(ticket);
  CHECK(ticket->slot());
}

TEST_CASE("unnamed: where the backend has a cache of its own, the slot's length is the proof") {
  Bench b(2, true);
  auto ticket = b.begin(kA);
  REQUIRE(ticket);
  if (ticket->slot()) {
    b.run_steps(*ticket);
    auto running = b.send(std::move(*ticket), kA, true);
    CHECK(running.ticket.wants_proof(running.cached));
    SECTION("asked") {
      CHECK_FALSE(b.end(std::move(running)).elsewhere);
    }
    SECTION("not asked") {
      CHECK(b.end(std::move(running), false).elsewhere);
    }
  }
}

TEST_CASE("unnamed: one that leaves is only held against the backend before it was ever proven") {
  Bench b(2);
  const auto leave = [&](const Tokens& prompt) {
    auto ticket = b.begin(prompt);
    REQUIRE(ticket);
    b.run_steps(*ticket);
    auto running = b.send(std::move(*ticket), prompt, true);
    b.slots[running.slot].busy = false;
    return std::move(running.ticket).finish({.ending = Ending::cancelled});
  };
  CHECK(leave(kA).elsewhere);
  for (const SlotInfo& slot : b.engine.slot_table()) {
    CHECK(slot.content == SlotContent::unknown);
  }
  b.run(kA);
  b.run(kB);
  CHECK_FALSE(leave(kB + range(600, 50)).elsewhere);
  b.run(kA + range(700, 10));
}

TEST_CASE("unnamed: in exact mode it is left to the backend, and every slot is erased before") {
  EngineOptions options;
  options.exact_batch = 32;
  std::chrono::steady_clock::time_point now{};
  Engine engine(options, [&] { return now; });
  engine.backend_changed({.slots = 2, .slots_used = {true, true}, .own_cache = false});
  Query query{.scope = kScope, .tokens = kA};
  query.unnamed = true;
  CHECK(engine.lookup(query).reason == Reason::not_cacheable);
  auto ticket = engine.begin(query);
  REQUIRE(ticket);
  CHECK_FALSE(ticket->slot());
  REQUIRE(ticket->next_step() != nullptr);
  CHECK(ticket->next_step()->kind == Kind::erase);
}

TEST_CASE("unnamed: whatever runs beside it, no slot is believed to hold what it does not") {
  std::mt19937 random(20261130);
  const auto pick = [&](std::size_t below) {
    return static_cast<std::size_t>(
        std::uniform_int_distribution<std::size_t>(0, below - 1)(random));
  };
  for (int round = 0; round < 30; ++round) {
    Bench b(static_cast<std::uint32_t>(2 + pick(3)), pick(4) == 0);
    b.compares = pick(4) != 0;
    std::vector<Tokens> prompts{kA, kB, range(1, 200) + range(9000, 150)};
    std::vector<std::pair<Bench::Running, std::size_t>> running;
    for (int step = 0; step < 60; ++step) {
      const bool unnamed = pick(2) == 0;
      const std::size_t which = pick(prompts.size());
      if (pick(2) == 0 || running.empty()) {
        auto ticket = b.begin(prompts[which], unnamed);
        const bool fits = ticket && (ticket->slot() ? !b.slots[ticket->slot()->index].busy : false);
        if (!fits) {
          if (ticket) std::move(*ticket).dismiss({}, SlotContent::unknown);
          continue;
        }
        b.run_steps(*ticket);
        running.emplace_back(b.send(std::move(*ticket), prompts[which], unnamed), which);
      } else {
        const std::size_t i = pick(running.size());
        auto [one, from] = std::move(running[i]);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
        const Tokens sent = one.tokens;
        const Account account = b.end(std::move(one));
        CHECK_FALSE(account.integrity_fault);
        prompts[from] = sent + range(static_cast<Token>(200000 + 100 * step), 20);
        if (running.empty()) {
          b.check_beliefs(prompts);
        }
      }
    }
  }
}
