// Many threads on one engine, and on one tree. Run under ThreadSanitizer.
#include <toki/block_tree.hpp>
#include <toki/blocking_driver.hpp>
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unit/bare_store.hpp"
#include "unit/token_ranges.hpp"

using namespace toki;

namespace {

// The slots of a backend, and the files that it saves them to: what is really there.
class Truth final : public Backend {
 public:
  explicit Truth(std::size_t slots) : slots_(slots) {}

  void prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) override {
    const std::uint64_t cached = compute(slot.index, prompt, {});
    done(Prefilled{.cached = cached, .computed = prompt.size() - cached});
  }
  void save(SlotId slot, std::string_view name, Completion<Timed> done) override {
    done(Timed{.tokens = copy(slot.index, std::string(name), true), .ms = 1});
  }
  void restore(SlotId slot, std::string_view name, Completion<Timed> done) override {
    done(Timed{.tokens = copy(slot.index, std::string(name), false), .ms = 1});
  }
  void erase(SlotId slot, Completion<Done> done) override {
    {
      const std::lock_guard lock(mutex_);
      slots_.at(slot.index).clear();
    }
    done(Done{});
  }

  // Works on a prompt and its answer; how much of the prompt was there.
  std::uint64_t compute(std::uint32_t slot, TokenSpan prompt, const Tokens& answer) {
    const std::lock_guard lock(mutex_);
    Tokens& held = slots_.at(slot);
    const std::uint64_t there = std::min(common_prefix(held, prompt), prompt.size() - 1);
    held = Tokens(prompt.begin(), prompt.end()) + answer;
    return there;
  }
  Tokens file(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(name);
    return at == files_.end() ? Tokens{} : at->second;
  }

 private:
  std::size_t copy(std::uint32_t slot, const std::string& name, bool to_file) {
    const std::lock_guard lock(mutex_);
    Tokens& held = slots_.at(slot);
    Tokens& file = files_[name];
    (to_file ? file : held) = to_file ? held : file;
    return file.size();
  }

  mutable std::mutex mutex_;
  std::vector<Tokens> slots_;
  std::map<std::string, Tokens> files_;
};

// Keeps every file that was saved.
class Shelf final : public toki::test::BareStore {
 public:
  explicit Shelf(const Truth& truth) : truth_(truth) {}

  StoredPrefix match(const Scope&, TokenSpan prompt) const override {
    const auto [file, held] = best(prompt);
    return {.tokens = common_prefix(held, prompt), .read = held.size()};
  }
  Result<std::string> begin_save(const Step& step) override { return step.file; }
  Result<Taken> end_save(const Step& step, std::string_view file, const Timed&) override {
    Tokens held = truth_.file(std::string(file));
    if (common_prefix(held, step.tokens) != step.tokens.size()) {
      return Error{Errc::corrupt, "not what the slot was thought to hold"};
    }
    const std::lock_guard lock(mutex_);
    kept_[std::string(file)] = held;
    return Taken{.tokens = std::move(held)};
  }
  bool discard(std::string_view) override { return true; }
  void discard_other_runs(std::string_view) override {}
  Result<Restorable> begin_restore(const Step& step) override {
    auto [file, held] = best(step.tokens);
    if (common_prefix(held, step.tokens) != step.tokens.size()) {
      return Error{Errc::not_found, "it was never there"};
    }
    const std::uint64_t tokens = held.size();
    return Restorable{.file = std::move(file), .tokens = tokens, .held = std::move(held)};
  }
  void end_restore(std::string_view, const Result<Timed>&) override {}

 private:
  std::pair<std::string, Tokens> best(TokenSpan prompt) const {
    const std::lock_guard lock(mutex_);
    std::pair<std::string, Tokens> found;
    for (const auto& one : kept_) {
      if (common_prefix(one.second, prompt) > common_prefix(found.second, prompt)) {
        found = one;
      }
    }
    return found;
  }

  const Truth& truth_;
  mutable std::mutex mutex_;
  std::map<std::string, Tokens> kept_;
};

// Runs `work` in so many threads at once, each with a number of its own.
template <class Work>
void in_threads(unsigned count, const Work& work) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back(work, t);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

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
  in_threads(4, [&](unsigned number) { work(number * 7919U + 1); });
  const Stats s = engine.stats();
  CHECK(s.slots_busy == 0);
  CHECK(s.requests_total == granted);
  CHECK(s.requests_total == s.requests_completed + s.requests_failed + s.requests_cancelled);
  CHECK(wakes > 0);
}

TEST_CASE("engine: requests whose slots are saved and restored meet only what is really there") {
  constexpr std::uint32_t kSlots = 3;
  const Scope scope({"m"});
  Truth truth(kSlots);
  Shelf shelf(truth);
  Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed(
      {.slots = kSlots, .slots_used = std::vector<bool>(kSlots, false), .own_cache = false});
  engine.use_store([&](const Scope& s, TokenSpan tokens) { return shelf.match(s, tokens); });
  engine.set_abilities({.saves = true, .cuts = true});
  std::atomic<std::uint64_t> served{0}, false_claims{0};
  in_threads(4, [&](unsigned seed) {
    for (int i = 0; i < 150; ++i) {
      seed = seed * 1664525U + 1013904223U;
      // Seven conversations in three slots, of which some begin alike.
      const auto talk = static_cast<Token>(seed >> 16) % 7;
      const Tokens prompt = range(1 + talk / 2 * 10000, 200) + range(100000 * (talk + 1), 200);
      auto ticket = engine.begin({.scope = scope, .tokens = prompt});
      if (!ticket) {
        std::this_thread::yield();
        continue;
      }
      run_steps(*ticket, truth, &shelf);
      const std::uint64_t claimed = ticket->predicted();
      ticket->sent();
      const std::uint64_t there =
          truth.compute(ticket->slot()->index, prompt, range(900000 + 10 * talk, 3));
      false_claims += claimed > there ? 1U : 0U;
      ++served;
      std::move(*ticket).finish({.ending = Ending::completed,
                                 .computed = true,
                                 .prompt_tokens = prompt.size(),
                                 .cached_tokens = there,
                                 .generated_tokens = 4});
      if (auto chore = engine.begin_chore(seed % 8 == 0)) {
        run_steps(*chore, truth, &shelf);
        std::move(*chore).dismiss({}, SlotContent::unknown);
      }
      (void)engine.slot_table();
    }
  });
  const Stats s = engine.stats();
  CHECK(false_claims == 0);
  CHECK(s.integrity_faults_total == 0);
  CHECK(s.save_failures_total == 0);
  CHECK(s.restore_failures_total == 0);
  CHECK(s.saves_total > 0);
  CHECK(s.restores_total > 0);
  CHECK(s.requests_completed == served);
  CHECK(s.slots_busy == 0);
}

TEST_CASE("tree: many readers find whole truths while one writes and evicts") {
  constexpr std::size_t kInserted = 50;
  constexpr std::size_t kParts = 20;  // in the middle of a block
  BlockTree tree({.block_size = 8, .max_blocks = 400});
  const Scope scope({"m"});
  std::atomic<bool> done{false};
  // Token i of prompt p is p * 1000 + i, so a match can be checked against the prompt alone.
  const auto whole = [&](Token p) { return tree.match(scope, range(p * 1000, 60)); };
  const auto parted = [&](Token p) {
    return tree.match(scope, range(p * 1000, kParts) + range(p * 1000 + 500, 40));
  };
  std::atomic<std::uint64_t> wrong{0}, found{0};
  const auto read = [&](unsigned r) {
    // Some also when all is written, so that there is something to find on any machine.
    for (int i = 0; !done || i < 100; ++i) {
      const auto p = static_cast<Token>((r + 7U * static_cast<unsigned>(i)) % 100);
      const BlockTree::Match all = whole(p);
      const BlockTree::Match part = parted(p);
      wrong += all.tokens > kInserted || all.blocks != all.tokens / 8 ? 1U : 0U;
      wrong += part.tokens > kParts || part.blocks != part.tokens / 8 ? 1U : 0U;
      found += all.tokens == kInserted && part.tokens == kParts ? 1U : 0U;
      (void)tree.blocks();
    }
  };
  in_threads(4, [&](unsigned number) {
    if (number > 0) {
      return read(number);
    }
    for (int i = 0; i < 3000; ++i) {
      tree.insert(scope, range(static_cast<Token>(i % 100) * 1000, kInserted));
    }
    done = true;
  });
  CHECK(wrong == 0);
  CHECK(found > 0);
  tree.check_invariants();
  // What is there whole is found up to where a prompt parts from it, no more and no less.
  int kept = 0;
  for (Token p = 0; p < 100; ++p) {
    const bool all = whole(p).tokens == kInserted;
    kept += all ? 1 : 0;
    CHECK((!all || parted(p).tokens == kParts));
  }
  CHECK(kept > 20);
}
