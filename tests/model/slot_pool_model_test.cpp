// Random tickets on the engine and on a naive twin of a backend that computes every prompt: what
// the engine predicts must never be more than the backend really holds.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

using namespace toki;

namespace {

struct TwinSlot {
  Tokens tokens;
};

struct Running {
  Ticket ticket;
  Tokens prompt;
};

}  // namespace

TEST_CASE("engine model: a prediction is never above what the backend holds") {
  const unsigned seed = GENERATE(1U, 2U, 3U, 4U);
  CAPTURE(seed);
  std::mt19937 random(seed);
  Engine engine({}, &std::chrono::steady_clock::now);
  std::vector<TwinSlot> backend(3);
  engine.backend_changed({.slots = 3, .slots_used = {false, false, false}, .own_cache = false});
  const Scope scope({"m"});
  std::vector<Running> running;
  std::vector<Tokens> seen{{1, 2, 3}};

  const auto start = [&] {
    Tokens prompt = seen[random() % seen.size()];
    prompt.resize(random() % (prompt.size() + 1));
    for (std::size_t n = 1 + random() % 12; n > 0; --n) {
      prompt.push_back(static_cast<Token>(random() % 4));
    }
    auto ticket = engine.begin({.scope = scope, .tokens = prompt});
    if (!ticket) {
      REQUIRE(running.size() == 3);
      return;
    }
    REQUIRE(ticket->slot());
    const Tokens& held = backend[ticket->slot()->index].tokens;
    REQUIRE(ticket->predicted() <= common_prefix(held, prompt));
    REQUIRE(ticket->predicted() < prompt.size());
    running.push_back({std::move(*ticket), prompt});
    seen.push_back(prompt);
  };

  const auto end = [&](std::size_t which) {
    Running job = std::move(running[which]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
    TwinSlot& slot = backend[job.ticket.slot()->index];
    const std::size_t common = common_prefix(slot.tokens, job.prompt);
    const std::size_t cached = std::min(common, job.prompt.size() - 1);
    const unsigned fate = random() % 8;
    if (fate == 0) {
      return;  // never sent
    }
    job.ticket.sent();
    if (fate == 1) {  // cancelled somewhere in its prefill
      slot.tokens = job.prompt;
      slot.tokens.resize(common + random() % (job.prompt.size() - common + 1));
      return;
    }
    slot.tokens = job.prompt;
    Tokens generated;
    for (std::size_t n = random() % 5; n > 0; --n) {
      generated.push_back(static_cast<Token>(random() % 4));
    }
    if (!generated.empty()) {
      slot.tokens.insert(slot.tokens.end(), generated.begin(), generated.end() - 1);
    }
    if (fate == 2) {  // the backend died in between
      slot.tokens.clear();
      std::move(job.ticket).finish({.ending = Ending::failed});
      return;
    }
    Outcome outcome{.ending = fate == 3 ? Ending::cancelled : Ending::completed,
                    .computed = true,
                    .prompt_tokens = job.prompt.size(),
                    .cached_tokens = cached,
                    .generated_tokens = generated.size()};
    if (random() % 2 == 0) {
      outcome.generated = generated;
    }
    const Account account = std::move(job.ticket).finish(outcome);
    REQUIRE_FALSE(account.integrity_fault);
  };

  for (int step = 0; step < 2500; ++step) {
    if (!running.empty() && (running.size() == 3 || random() % 2 == 0)) {
      end(random() % running.size());
    } else if (random() % 200 == 0) {
      for (TwinSlot& slot : backend) {
        slot.tokens.clear();
      }
      engine.backend_restarted();
    } else {
      start();
    }
    REQUIRE(engine.idle_slots() + running.size() == 3);
  }
}
