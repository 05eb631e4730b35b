// Many threads on one engine. Run under ThreadSanitizer.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <atomic>
#include <thread>
#include <vector>

using namespace toki;

TEST_CASE("engine: threads with random endings leave no slot leased and counters that add up") {
  Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed({.slots = 4, .slots_used = std::vector<bool>(4, false)});
  std::atomic<int> wakes{0};
  engine.on_slot_free([&] { ++wakes; });
  std::atomic<std::uint64_t> granted{0};
  const auto work = [&](unsigned seed) {
    for (int i = 0; i < 500; ++i) {
      seed = seed * 1664525U + 1013904223U;
      Tokens tokens(20 + seed % 50, static_cast<Token>(seed % 7));
      auto ticket =
          engine.begin({.scope = Scope({"m"}), .tokens = tokens, .sequences = 1 + seed % 97 / 96});
      if (!ticket) {
        std::this_thread::yield();
        continue;
      }
      ++granted;
      if (seed % 5 == 0) {
        continue;
      }
      ticket->sent();
      const auto ending = static_cast<Ending>(seed / 8 % 4);
      std::move(*ticket).finish({.ending = ending,
                                 .computed = true,
                                 .prompt_tokens = tokens.size(),
                                 .cached_tokens = 0,
                                 .generated_tokens = 1});
      if (seed % 101 == 0) {
        engine.backend_restarted();
      }
      (void)engine.stats();
      (void)engine.slot_table();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back(work, t * 7919U + 1);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const Stats s = engine.stats();
  CHECK(s.slots_busy == 0);
  CHECK(s.requests_total == granted);
  CHECK(s.requests_total == s.requests_completed + s.requests_failed + s.requests_cancelled);
  CHECK(wakes > 0);
}
