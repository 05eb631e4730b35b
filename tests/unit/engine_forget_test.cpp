// What the engine lets go of when it is told to, and what it would lose.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;
using Kind = Step::Kind;

namespace {

const Scope kScope({"model"});
const Tokens kSystem = range(1, 200);
const Tokens kA = kSystem + range(1000, 100);
const Tokens kB = kSystem + range(2000, 100);
const Tokens kC = range(5000, 300);

struct Bench {
  std::chrono::steady_clock::time_point now{};
  std::vector<PromptChange> changes;
  Engine engine{{}, [this] { return now; }};

  explicit Bench(std::uint32_t slots) {
    engine.backend_changed(
        {.slots = slots, .slots_used = std::vector<bool>(slots, false), .own_cache = false});
    engine.on_prompt_change([this](PromptChange change) { changes.push_back(std::move(change)); });
  }
  Ticket begin(const Tokens& tokens, std::optional<std::uint32_t> slot = {}) {
    Query query{.scope = kScope, .tokens = tokens};
    query.slot = slot;
    auto ticket = engine.begin(query);
    REQUIRE(ticket);
    while (ticket->next_step() != nullptr) {
      ticket->step_done({});
    }
    ticket->sent();
    return std::move(*ticket);
  }
  static Account finish(Ticket ticket, const Tokens& tokens) {
    const std::uint64_t reused = ticket.predicted();
    return std::move(ticket).finish({.ending = Ending::completed,
                                     .computed = true,
                                     .prompt_tokens = tokens.size(),
                                     .cached_tokens = reused,
                                     .generated_tokens = 4});
  }
  std::uint64_t run(const Tokens& tokens, std::optional<std::uint32_t> slot = {}) {
    return finish(begin(tokens, slot), tokens).prompt;
  }
  Lookup lookup(const Tokens& tokens) const {
    return engine.lookup({.scope = kScope, .tokens = tokens});
  }
  // Erases what is to be erased; which slots.
  std::vector<std::uint32_t> erase() {
    std::vector<std::uint32_t> slots;
    auto ticket = engine.begin_erasing();
    while (ticket && ticket->next_step() != nullptr) {
      CHECK(ticket->next_step()->kind == Kind::erase);
      slots.push_back(ticket->next_step()->slot.index);
      ticket->step_done({});
    }
    if (ticket) {
      std::move(*ticket).dismiss({}, SlotContent::unknown);
    }
    return slots;
  }
};

}  // namespace

TEST_CASE("forget: one prompt goes, what it shares with others stays") {
  Bench b(3);
  const std::uint64_t a = b.run(kA, 0);
  b.run(kB, 1);
  b.run(kC, 2);
  b.changes.clear();
  const auto gone = b.engine.forget(a);
  REQUIRE(gone);
  CHECK(gone->tokens == kA);
  CHECK(gone->shared == 200);
  REQUIRE(b.changes.size() == 1);
  CHECK(b.changes[0].kind == PromptChange::Kind::removed);
  CHECK(b.changes[0].prompt.id == a);
  CHECK(b.lookup(kA).available == 200);
  CHECK(b.lookup(kB).available == 300);
  CHECK(b.lookup(kC).predicted == 299);
  CHECK(b.engine.prompts(9).size() == 2);
  CHECK(b.erase() == std::vector<std::uint32_t>{0});
  CHECK(b.engine.slot_table()[0].content == SlotContent::empty);
  CHECK(b.engine.slot_table()[1].content == SlotContent::known);
  CHECK(b.engine.forget(a).error().code == Errc::not_found);
}

TEST_CASE("forget: everything goes, and no slot is matched or used before it is erased") {
  Bench b(2);
  b.run(kA, 0);
  b.run(kC, 1);
  CHECK(b.engine.forget_all() == 2);
  CHECK(b.changes.back().kind == PromptChange::Kind::cleared);
  CHECK(b.lookup(kA).available == 0);
  CHECK(b.lookup(kA).predicted == 0);
  CHECK(b.engine.stats().prompts_known == 0);
  CHECK(b.engine.stats().tree_blocks == 0);
  auto ticket = b.engine.begin({.scope = kScope, .tokens = kA});
  REQUIRE(ticket);
  REQUIRE(ticket->next_step() != nullptr);
  CHECK(ticket->next_step()->kind == Kind::erase);
}

TEST_CASE("forget: what runs while everything is forgotten leaves nothing behind") {
  Bench b(2);
  Ticket ticket = b.begin(kA);
  const std::uint32_t slot = ticket.slot()->index;
  b.engine.forget_all();
  CHECK_FALSE(ticket.current());
  CHECK(Bench::finish(std::move(ticket), kA).prompt == 0);
  CHECK(b.lookup(kA).available == 0);
  CHECK(b.erase() == std::vector<std::uint32_t>{slot});
}

TEST_CASE("forget: a slot in use is left to its request, and found again when it is idle") {
  Bench b(1);
  const std::uint64_t a = b.run(kA, 0);
  Ticket ticket = b.begin(kA + range(3000, 50));
  const auto gone = b.engine.forget(a);
  REQUIRE(gone);
  CHECK(b.erase().empty());
  std::move(ticket).finish({.ending = Ending::refused});
  CHECK(b.lookup(kA).predicted == 299);
  b.engine.forget_slots(*gone);
  CHECK(b.lookup(kA).predicted == 0);
  CHECK(b.erase() == std::vector<std::uint32_t>{0});
}

TEST_CASE("forget: the nearest prompt is told, and all are visited") {
  Bench b(2);
  CHECK(b.engine.nearest(kScope, kA).tokens == 0);
  const std::uint64_t a = b.run(kA);
  b.run(kC);
  const NearestPrompt near = b.engine.nearest(kScope, kB);
  CHECK(near.id == a);
  CHECK(near.tokens == 300);
  CHECK(near.common == 200);
  std::vector<Tokens> visited;
  b.engine.each_prompt(9, [&](const PromptRecord& prompt) { visited.push_back(prompt.tokens); });
  CHECK(visited == std::vector{kC, kA});
}

TEST_CASE("forget: slots that are not saved are told, also while saving pauses") {
  Bench b(3);
  CHECK(b.engine.unsaved().empty());
  std::vector<Tokens> stored;
  b.engine.use_store([&](const Scope&, TokenSpan tokens) {
    StoredPrefix best;
    for (const Tokens& one : stored) {
      best.tokens = std::max<std::uint64_t>(best.tokens, common_prefix(one, tokens));
    }
    return best;
  });
  b.engine.set_abilities({.saves = true, .cuts = true});
  b.run(kA, 0);
  b.run(kC, 1);
  CHECK(b.engine.unsaved() == std::vector<std::uint32_t>{0, 1});
  auto chore = b.engine.begin_chore(true);
  REQUIRE(chore);
  const Step step = *chore->next_step();
  CHECK(b.engine.saving() == std::vector{step.file});
  stored.push_back(step.tokens);
  chore->step_done({.tokens = step.tokens});
  CHECK(b.engine.saving().empty());
  std::move(*chore).dismiss({}, SlotContent::unknown);
  CHECK(b.engine.unsaved() == std::vector<std::uint32_t>{1});
  for (int i = 0; i < 3; ++i) {
    auto failing = b.engine.begin_chore(true);
    REQUIRE(failing);
    (void)failing->next_step();
    failing->step_done({.error = Error{Errc::backend, "no"}});
    std::move(*failing).dismiss({}, SlotContent::unknown);
  }
  CHECK_FALSE(b.engine.begin_chore(true));
  CHECK(b.engine.unsaved() == std::vector<std::uint32_t>{1});
  Ticket busy = b.begin(range(8000, 300), 2);
  CHECK(b.engine.unsaved() == std::vector<std::uint32_t>{1, 2});
}

TEST_CASE("forget: a moved engine goes on with what it knew, and tells the same listeners") {
  Bench b(2);
  b.run(kA, 0);
  b.changes.clear();
  Engine moved = std::move(b.engine);
  CHECK(moved.lookup({.scope = kScope, .tokens = kA}).available == kA.size());
  CHECK(moved.forget_all() == 1);
  REQUIRE(b.changes.size() == 1);
  CHECK(b.changes[0].kind == PromptChange::Kind::cleared);
  CHECK(moved.lookup({.scope = kScope, .tokens = kA}).available == 0);
}
