// Many threads on one engine, and on one tree. Run under ThreadSanitizer.
#include <toki/block_tree.hpp>
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

TEST_CASE("tree: many readers find whole truths while one writes and evicts") {
  BlockTree tree({.block_size = 8, .max_blocks = 400});
  const Scope scope({"m"});
  std::atomic<bool> done{false};
  // Token i of prompt p is p * 1000 + i, so a match can be checked against the prompt alone.
  const auto prompt = [](Token p, std::size_t count) {
    Tokens tokens(count);
    for (std::size_t i = 0; i < count; ++i) {
      tokens[i] = p * 1000 + static_cast<Token>(i);
    }
    return tokens;
  };
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      for (Token p = static_cast<Token>(r); !done; p = (p + 7) % 100) {
        const BlockTree::Match match = tree.match(scope, prompt(p, 60));
        wrong += match.tokens > 50 || match.blocks > 6 ? 1U : 0U;
        (void)tree.blocks();
      }
    });
  }
  for (int i = 0; i < 3000; ++i) {
    tree.insert(scope, prompt(static_cast<Token>(i % 100), 50));
  }
  done = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
  CHECK(wrong == 0);
  tree.check_invariants();
}
