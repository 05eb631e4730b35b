// A program with a thread per request and a backend of its own: three conversations over two slots.
// Each request waits for a slot, runs where most of its prompt is, and computes the rest.
#include <toki/toki.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

namespace {

// Stands for an inference server in this process: counts what it computes, and answers nonsense.
// Several threads use it at once, but never two the same slot, because only one ticket has it: what
// is the slots' own needs no lock, and what they share is atomic.
class Model final : public toki::Backend {
 public:
  static constexpr std::size_t kSlots = 2;

  toki::Prefilled compute(toki::SlotId slot, toki::TokenSpan prompt) {
    toki::Tokens& held = slots_[slot.index];
    const std::size_t kept = toki::common_prefix(held, prompt.first(prompt.size() - 1));
    held.assign(prompt.begin(), prompt.end());
    computed_ += prompt.size() - kept;
    return {.cached = kept, .computed = prompt.size() - kept};
  }
  toki::Tokens generate(toki::SlotId slot) {
    toki::Tokens& held = slots_[slot.index];
    const toki::Tokens answer(10, held.back() + 1);
    held.insert(held.end(), answer.begin(), answer.end() - 1);  // the last is not computed
    return answer;
  }
  std::size_t computed() const { return computed_; }

  void prefill(toki::SlotId slot, toki::TokenSpan prompt,
               toki::Completion<toki::Prefilled> done) override {
    done(compute(slot, prompt));
  }
  void erase(toki::SlotId slot, toki::Completion<toki::Done> done) override {
    slots_[slot.index].clear();
    done(toki::Done{});
  }

 private:
  std::array<toki::Tokens, kSlots> slots_;
  std::atomic<std::size_t> computed_{0};
};

class Server {
 public:
  Server() {
    engine_.on_slot_free([this] {
      const std::lock_guard lock(mutex_);
      ++freed_;
      slot_free_.notify_all();
    });
    engine_.backend_changed({.slots = Model::kSlots,
                             .slots_used = std::vector<bool>(Model::kSlots, false),
                             .own_cache = false});
  }

  /// From any thread; ends when the answer is there.
  toki::Tokens ask(const toki::Tokens& prompt) {
    toki::Ticket ticket = wait_for_slot({.scope = scope_, .tokens = prompt});
    toki::run_steps(ticket, model_);
    ticket.sent();
    const toki::SlotId slot = *ticket.slot();
    const toki::Prefilled done = model_.compute(slot, prompt);
    toki::Tokens answer = model_.generate(slot);
    std::move(ticket).finish({.ending = toki::Ending::completed,
                              .computed = true,
                              .prompt_tokens = prompt.size(),
                              .cached_tokens = done.cached,
                              .generated_tokens = answer.size(),
                              .generated = answer});
    return answer;
  }
  std::size_t computed() const { return model_.computed(); }
  toki::Stats stats() const { return engine_.stats(); }

 private:
  // [wait]
  toki::Ticket wait_for_slot(const toki::Query& query) {
    for (;;) {
      std::uint64_t seen = 0;
      {
        const std::lock_guard lock(mutex_);
        seen = freed_;
      }
      auto ticket = engine_.begin(query);
      if (ticket) return std::move(*ticket);
      std::unique_lock lock(mutex_);
      slot_free_.wait(lock, [&] { return freed_ != seen; });
    }
  }
  // [/wait]

  const toki::Scope scope_ = toki::Scope({"my model"});
  Model model_;
  std::mutex mutex_;
  std::condition_variable slot_free_;
  std::uint64_t freed_ = 0;
  toki::Engine engine_{{}, &std::chrono::steady_clock::now};
};

}  // namespace

int main() {
  Server server;
  std::vector<std::thread> threads;
  for (toki::Token conversation = 1; conversation <= 3; ++conversation) {
    threads.emplace_back([&server, conversation] {
      toki::Tokens tokens(2000, 0);  // the system prompt, the same for all
      for (toki::Token turn = 1; turn <= 4; ++turn) {
        tokens.insert(tokens.end(), 20, 100 * conversation + 10 * turn);  // the user says this
        const toki::Tokens answer = server.ask(tokens);
        tokens.insert(tokens.end(), answer.begin(), answer.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  const toki::Stats stats = server.stats();
  std::printf("%llu requests with %llu prompt tokens: %zu computed\n",
              static_cast<unsigned long long>(stats.requests_total),
              static_cast<unsigned long long>(stats.prompt_tokens_total), server.computed());
  // The system prompt once in each slot; then, at the worst, whole conversations behind it.
  return server.computed() <= 2 * 2000 + 12 * 120 ? 0 : 1;
}
