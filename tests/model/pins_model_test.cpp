// Random pins, requests, chores and restarts on the engine and on a naive twin of a backend that
// computes every prompt: a slot that keeps a pin holds it, in the backend too, and nothing else runs
// there.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

using namespace toki;

namespace {

constexpr std::uint32_t kSlots = 4;

struct Running {
  Ticket ticket;
  Tokens prompt;
};

struct Twin {
  std::mt19937 random;
  Scope scope{{"m"}};
  Engine engine{{}, [this] { return now; }};
  std::chrono::steady_clock::time_point now{};
  std::vector<Tokens> backend{kSlots};
  std::map<std::uint64_t, Tokens> pins;
  std::vector<Running> running;
  std::optional<Ticket> chore;

  explicit Twin(unsigned seed) : random(seed) {
    engine.backend_changed(
        {.slots = kSlots, .slots_used = std::vector<bool>(kSlots, false), .own_cache = false});
    engine.serve_pins({scope});
  }

  Tokens some(std::size_t most) {
    Tokens tokens;
    for (std::size_t n = 1 + random() % most; n > 0; --n) {
      tokens.push_back(static_cast<Token>(random() % 2));
    }
    return tokens;
  }
  Tokens prompt() {
    Tokens tokens;
    if (!pins.empty() && random() % 2 == 0) {
      tokens = std::next(pins.begin(), static_cast<std::ptrdiff_t>(random() % pins.size()))->second;
      tokens.resize(tokens.size() - random() % 2);
    }
    const Tokens more = some(8);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }

  void pin() {
    const Tokens tokens = some(6);
    const bool known = std::any_of(pins.begin(), pins.end(),
                                   [&](const auto& pin) { return pin.second == tokens; });
    const auto id = engine.pin(scope, tokens);
    REQUIRE(id.has_value() == (known || pins.size() < kSlots - 1));
    if (id) {
      pins[*id] = tokens;
    }
  }
  void unpin() {
    if (!pins.empty()) {
      REQUIRE(engine.unpin(pins.begin()->first));
      pins.erase(pins.begin());
    }
  }
  void start() {
    const Tokens tokens = prompt();
    Query query{.scope = scope, .tokens = tokens};
    if (random() % 4 == 0) {
      query.slot = static_cast<std::uint32_t>(random() % kSlots);
    }
    const auto table = engine.slot_table();
    auto ticket = engine.begin(query);
    if (!ticket) {
      return;
    }
    REQUIRE(ticket->slot());
    const SlotInfo& slot = table[ticket->slot()->index];
    if (slot.pin != 0) {
      REQUIRE(common_prefix(pins.at(slot.pin), tokens) == pins.at(slot.pin).size());
    }
    REQUIRE(ticket->predicted() <= common_prefix(backend[ticket->slot()->index], tokens));
    running.push_back({std::move(*ticket), tokens});
  }
  void end() {
    if (running.empty()) {
      return;
    }
    std::swap(running[random() % running.size()], running.back());
    Running job = std::move(running.back());
    running.pop_back();
    Tokens& slot = backend[job.ticket.slot()->index];
    const std::size_t common = common_prefix(slot, job.prompt);
    const auto fate = random() % 6;
    if (fate == 0) {
      return;  // never sent
    }
    job.ticket.sent();
    slot = job.prompt;
    if (fate == 1) {  // its client left somewhere in the prefill
      slot.resize(common + random() % (job.prompt.size() - common + 1));
      return;
    }
    if (fate == 2) {
      slot.clear();
      std::move(job.ticket).finish({.ending = Ending::failed});
      return;
    }
    const Account account = std::move(job.ticket)
                                .finish({.ending = Ending::completed,
                                         .computed = true,
                                         .prompt_tokens = job.prompt.size(),
                                         .cached_tokens = std::min(common, job.prompt.size() - 1),
                                         .generated_tokens = 1});
    REQUIRE_FALSE(account.integrity_fault);
  }
  void begin_chore() {
    if (chore) {
      return;
    }
    auto ticket = engine.begin_chore();
    if (ticket) {
      REQUIRE(running.empty());
      chore.emplace(std::move(*ticket));
    }
  }
  void end_chore() {
    if (!chore) {
      return;
    }
    while (const Step* step = chore->next_step()) {
      REQUIRE(step->kind == Step::Kind::prefill);
      StepReport report;
      if (random() % 5 == 0) {
        backend[step->slot.index].clear();
        report.error = Error{Errc::backend, "no"};
        now += std::chrono::seconds(30);
      } else {
        report.reused = std::min(common_prefix(backend[step->slot.index], step->tokens),
                                 step->tokens.size() - 1);
        report.computed = step->tokens.size() - report.reused;
        backend[step->slot.index] = step->tokens;
      }
      chore->step_done(std::move(report));
    }
    std::move(*chore).dismiss({}, SlotContent::unknown);
    chore.reset();
  }
  void restart() {
    for (Tokens& slot : backend) {
      slot.clear();
    }
    engine.backend_restarted();
    engine.serve_pins({scope});
  }

  void check() {
    std::size_t held = 0;
    const auto table = engine.slot_table();
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      if (table[i].pin == 0) {
        continue;
      }
      ++held;
      REQUIRE(pins.contains(table[i].pin));
      const Tokens& pin = pins.at(table[i].pin);
      REQUIRE(common_prefix(backend[i], pin) == pin.size());
    }
    REQUIRE(held < kSlots);
    REQUIRE(engine.pins().size() == pins.size());
  }
};

}  // namespace

TEST_CASE("pins model: a slot that keeps a pin holds it, and only its prompts run there") {
  const unsigned seed = GENERATE(1U, 2U, 3U, 4U, 5U, 6U);
  CAPTURE(seed);
  Twin twin(seed);
  std::size_t most_held = 0;
  for (int step = 0; step < 4000; ++step) {
    switch (twin.random() % 16) {
      case 0: twin.pin(); break;
      case 1: step % 5 == 0 ? twin.unpin() : twin.pin(); break;
      case 2:
      case 3: twin.begin_chore(); break;
      case 4:
      case 5: twin.end_chore(); break;
      case 6: step % 20 == 0 ? twin.restart() : twin.end(); break;
      default: twin.random() % 5 < 2 ? twin.start() : twin.end(); break;
    }
    twin.check();
    most_held = std::max<std::size_t>(most_held, twin.engine.stats().pins_held);
  }
  CHECK(most_held == kSlots - 1);
}
