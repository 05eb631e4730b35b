// Exact mode against a naive twin: a backend in which every computed row depends on the tokens before it
// *and* on the batch it was computed in. Random conversations, forks, failures, clients that leave and
// restarts: each answer has to be the one that a backend without any cache gives.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

using namespace toki;
using Kind = Step::Kind;

namespace {

constexpr std::uint32_t kSlots = 3;
constexpr std::size_t kBatch = 16;
const Scope kScope({"m"});

// What a slot, a file or the store holds: tokens, and what was computed of each.
struct State {
  Tokens tokens;
  std::vector<std::uint64_t> rows;

  void keep(std::size_t count) {
    tokens.resize(std::min(count, tokens.size()));
    rows.resize(tokens.size());
  }
  // The next tokens in one batch.
  void compute(TokenSpan batch) {
    const std::uint64_t begin = tokens.size();
    for (const Token token : batch) {
      std::uint64_t row = rows.empty() ? 7 : rows.back();
      for (const std::uint64_t part :
           {static_cast<std::uint64_t>(token), begin, begin + batch.size()}) {
        row = (row ^ part) * 0x9e3779b97f4a7c15ULL;
        row ^= row >> 29U;
      }
      tokens.push_back(token);
      rows.push_back(row);
    }
  }
  // All of the prompt behind what is there, in batches.
  void prompt(TokenSpan whole) {
    while (tokens.size() < whole.size()) {
      compute(whole.subspan(tokens.size(), std::min(kBatch, whole.size() - tokens.size())));
    }
  }
};

State cold(TokenSpan prompt) {
  State state;
  state.prompt(prompt);
  return state;
}

// The answer to a prompt, as far as anybody sees it.
Tokens answer_of(const State& state, std::size_t count) {
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<Token>((state.rows.back() >> (8 * (i % 8))) % 200));
  }
  return tokens;
}

struct Twin {
  std::mt19937 random;
  bool named;  // a store that keeps whole states, and cannot read them
  std::chrono::steady_clock::time_point now{};
  Engine engine{{.exact_batch = kBatch}, [this] { return now; }};
  std::vector<State> slots{kSlots};
  struct Stored {
    Tokens known;
    State state;
  };
  std::vector<Stored> store;
  std::vector<Tokens> talks;
  std::uint64_t reused = 0, prompts = 0, cuts = 0;

  Twin(unsigned seed, bool names) : random(seed), named(names) {
    engine.backend_changed(
        {.slots = kSlots, .slots_used = std::vector<bool>(kSlots, false), .own_cache = false});
    engine.use_store([this](const Scope&, TokenSpan tokens) {
      StoredPrefix best;
      for (const Stored& one : store) {
        best.tokens = std::max<std::uint64_t>(best.tokens, common_prefix(one.known, tokens));
      }
      return best;
    });
    tried();
  }
  void tried() { engine.set_abilities({.saves = true, .cuts = true, .reads = !named}); }

  bool one_in(unsigned count) { return random() % count == 0; }
  Tokens some(std::size_t most) {
    Tokens tokens(1 + random() % most);
    for (Token& token : tokens) {
      token = static_cast<Token>(random() % 200);
    }
    return tokens;
  }

  // What the backend does with a prompt; how many of its tokens it did not compute.
  std::uint64_t work(State& slot, TokenSpan prompt, bool may_reuse) {
    const std::size_t had =
        may_reuse ? std::min(common_prefix(slot.tokens, prompt), prompt.size() - 1) : 0;
    slot.keep(had);
    slot.prompt(prompt);
    return had;
  }

  StepReport save(const Step& step) {
    Stored entry{.known = step.tokens, .state = slots[step.slot.index]};
    REQUIRE(step.only);
    REQUIRE(step.tokens.size() % kBatch == 0);
    REQUIRE(common_prefix(entry.state.tokens, step.tokens) == step.tokens.size());
    const std::uint64_t unknown = named ? entry.state.tokens.size() - entry.known.size() : 0;
    if (!named) {
      entry.state.keep(step.tokens.size());
      for (const Stored& other : store) {  // what was stored first stays
        const std::size_t common = common_prefix(other.state.tokens, entry.state.tokens);
        std::copy_n(other.state.rows.begin(), common, entry.state.rows.begin());
      }
    }
    const State once = cold(entry.known);
    REQUIRE(std::equal(once.rows.begin(), once.rows.end(), entry.state.rows.begin()));
    store.push_back(entry);
    return {.tokens = entry.known, .unknown = unknown, .ms = 1};
  }
  StepReport restore(const Step& step) {
    State& slot = slots[step.slot.index];
    if (one_in(10) && !store.empty()) {
      store.erase(store.begin());
    }
    const Stored* best = nullptr;
    std::size_t common = 0;
    for (const Stored& one : store) {
      if (common_prefix(one.known, step.tokens) > common) {
        common = common_prefix(one.known, step.tokens);
        best = &one;
      }
    }
    if (best == nullptr || one_in(12)) {
      slot = {};
      return {.error = Error{Errc::not_found, "gone"}};
    }
    slot = best->state;
    if (named) {
      return {.tokens = best->known,
              .unknown = slot.tokens.size() - best->known.size(),
              .reused = common,
              .ms = 1};
    }
    slot.keep(common);
    return {.reused = common, .ms = 1};
  }
  StepReport cut(const Step& step) {
    State& slot = slots[step.slot.index];
    ++cuts;
    if (one_in(15)) {
      return {.error = Error{Errc::backend, "no"}};
    }
    const std::uint64_t had = work(slot, step.tokens, true);
    if (one_in(40)) {
      return {.error = Error{Errc::timed_out, "late"}};
    }
    if (one_in(15)) {
      return {.error = Error{Errc::cancelled, "left"}};
    }
    return {.reused = had, .computed = step.tokens.size() - had, .ms = 1};
  }
  void run_steps(Ticket& ticket) {
    while (const Step* next = ticket.next_step()) {
      const Step step = *next;
      StepReport report;
      switch (step.kind) {
        case Kind::save: report = save(step); break;
        case Kind::restore: report = restore(step); break;
        case Kind::prefill: report = cut(step); break;
        case Kind::erase:
          if (one_in(10)) {
            report.error = Error{Errc::unsupported, "no"};
          } else {
            slots[step.slot.index] = {};
          }
          break;
      }
      const bool left = report.error && report.error->code == Errc::cancelled;
      ticket.step_done(std::move(report));
      if (left) {
        REQUIRE(ticket.next_step() == nullptr);
        return;
      }
    }
  }

  // Whose generation is still under way when its client is gone.
  void nobody_may_run() {
    const Tokens other = some(60);
    REQUIRE(engine.begin({.scope = kScope, .tokens = other}).error().code == Errc::busy);
    for (const std::uint32_t slot : engine.fenced()) {
      engine.unfence(slot);
    }
  }

  void request(const Tokens& prompt, std::optional<Reason> bypass, bool surrogate) {
    Query query{.scope = kScope, .tokens = prompt, .surrogate = surrogate, .bypass = bypass};
    query.from_ids = query.followed = !surrogate && !bypass;
    if (one_in(8)) {
      query.slot = static_cast<std::uint32_t>(random() % kSlots);
    }
    auto ticket = engine.begin(query);
    REQUIRE(ticket);
    REQUIRE(engine.idle_slots() == 0);
    REQUIRE(engine.begin(query).error().code == Errc::busy);
    run_steps(*ticket);
    if (!engine.fenced().empty()) {  // the client left in a step
      { const Ticket gone = std::move(*ticket); }
      nobody_may_run();
      return;
    }
    REQUIRE(ticket->slot());
    State& slot = slots[ticket->slot()->index];
    if (one_in(30)) {
      return;  // never sent
    }
    ticket->sent();
    if (one_in(20)) {
      std::move(*ticket).finish({.ending = Ending::refused});
      return;
    }
    if (one_in(12)) {  // the client left somewhere in the prompt
      const std::size_t had = ticket->may_reuse() ? common_prefix(slot.tokens, prompt) : 0;
      slot.keep(std::min(had, prompt.size() - 1));
      slot.prompt(TokenSpan(prompt).first(
          std::min(prompt.size(), slot.tokens.size() + random() % 5 * kBatch)));
      { const Ticket gone = std::move(*ticket); }
      nobody_may_run();
      return;
    }
    const std::uint64_t had = work(slot, prompt, ticket->may_reuse());
    REQUIRE(slot.rows.back() == cold(prompt).rows.back());
    const Tokens answer = answer_of(slot, 1 + random() % 40);
    for (std::size_t i = 0; i + 1 < answer.size(); ++i) {
      slot.compute(TokenSpan(answer).subspan(i, 1));
    }
    const bool left = one_in(12);
    const Account account =
        std::move(*ticket).finish({.ending = left ? Ending::cancelled : Ending::completed,
                                   .computed = true,
                                   .prompt_tokens = prompt.size(),
                                   .cached_tokens = had,
                                   .generated_tokens = answer.size(),
                                   .generated = answer});
    REQUIRE_FALSE(account.integrity_fault);
    if (left) {
      nobody_may_run();
      return;
    }
    reused += had;
    prompts += prompt.size();
    talks.push_back(prompt);
    talks.back().insert(talks.back().end(), answer.begin(), answer.end());
  }

  // An API that can neither name a slot nor forbid reuse: the backend takes the slot that fits best.
  void message() {
    auto ticket = engine.begin({.scope = kScope, .bypass = Reason::not_cacheable});
    REQUIRE(ticket);
    bool erased = true;
    while (const Step* step = ticket->next_step()) {
      REQUIRE(step->kind == Kind::erase);
      slots[step->slot.index] = {};
      ticket->step_done({});
    }
    erased =
        std::all_of(slots.begin(), slots.end(), [](const State& s) { return s.tokens.empty(); });
    REQUIRE(erased);
    ticket->sent();
    slots[1] = cold(talks.empty() ? some(50) : talks.back());
    const std::vector<std::uint32_t> working{1};
    ticket->settle(working);
    std::move(*ticket).finish({.ending = Ending::completed, .computed = true});
  }

  Tokens next_prompt() {
    Tokens prompt;
    if (!talks.empty() && !one_in(6)) {
      prompt = talks[talks.size() - 1 - random() % std::min<std::size_t>(talks.size(), 8)];
      if (one_in(3)) {
        prompt.resize(1 + random() % prompt.size());
      }
      if (prompt.size() > 500) {
        prompt.resize(200);
      }
    }
    const Tokens more = some(one_in(2) ? 20 : 120);
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (one_in(5)) {  // ends with a batch
      prompt.resize(std::max<std::size_t>(prompt.size() / kBatch, 1) * kBatch, 3);
    }
    return prompt;
  }

  void chore() {
    while (auto ticket = engine.begin_chore(one_in(3))) {
      run_steps(*ticket);
      std::move(*ticket).dismiss({}, SlotContent::unknown);
    }
  }
  void spare() {
    auto ticket = engine.begin_spare();
    if (!ticket) {
      return;
    }
    run_steps(*ticket);
    const std::uint32_t slot = ticket->slot()->index;
    (void)work(slots[slot], some(90), false);
    std::move(*ticket).dismiss(std::vector{slot}, SlotContent::unknown);
    nobody_may_run();
  }
  void restart() {
    slots.assign(kSlots, {});
    engine.backend_restarted();
    tried();
  }

  void step() {
    switch (random() % 24) {
      case 0: chore(); break;
      case 1: message(); break;
      case 2: spare(); break;
      case 3:
        if (one_in(6)) {
          restart();
        }
        break;
      case 4: request(next_prompt(), Reason::cache_prompt_false, false); break;
      case 5: request(next_prompt(), std::nullopt, true); break;
      default: request(next_prompt(), std::nullopt, false); break;
    }
    now += std::chrono::seconds(random() % 20);
  }
};

}  // namespace

TEST_CASE("exact model: every answer is that of a backend without cache, and much is reused") {
  const unsigned seed = GENERATE(1U, 2U, 3U, 4U, 5U, 6U);
  const bool named = GENERATE(false, true);
  CAPTURE(seed, named);
  Twin twin(seed, named);
  for (int i = 0; i < 3000; ++i) {
    twin.step();
  }
  CHECK(twin.reused > twin.prompts / 3);
  CHECK(twin.cuts > 500);
  const Stats stats = twin.engine.stats();
  CHECK(stats.integrity_faults_total == 0);
  CHECK(stats.restores_total > 30);
  CHECK(stats.copies_total > 20);
}

TEST_CASE("exact model: without states that can be cut everything is computed") {
  Twin twin(1, false);
  twin.engine.set_abilities({.saves = true, .cuts = false});
  Tokens prompt;
  for (int i = 0; i < 20; ++i) {
    const Tokens more = twin.some(90);
    prompt.insert(prompt.end(), more.begin(), more.end());
    auto ticket = twin.engine.begin({.scope = kScope, .tokens = prompt});
    REQUIRE(ticket);
    CHECK(ticket->next_step() == nullptr);
    CHECK_FALSE(ticket->may_reuse());
    CHECK(ticket->predicted() == 0);
    ticket->sent();
    std::move(*ticket).finish({.ending = Ending::completed,
                               .computed = true,
                               .prompt_tokens = prompt.size(),
                               .cached_tokens = 0,
                               .generated_tokens = 4});
    CHECK_FALSE(twin.engine.begin_chore());
    CHECK_FALSE(twin.engine.wants_boundaries());
  }
}
