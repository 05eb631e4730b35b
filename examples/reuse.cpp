// The smallest program that reuses a prefix: two questions behind one system prompt, of which the
// second computes only what is new. Its model is a stand-in; yours goes where compute() is.
#include <toki/toki.hpp>

#include <chrono>
#include <cstdio>

// A model with two sequences. Like a real one it keeps what a sequence and a prompt have in common,
// and computes the rest: at least one token.
struct Model final : toki::Backend {
  toki::Tokens held[2];

  std::size_t compute(toki::SlotId slot, toki::TokenSpan prompt) {
    const auto kept = toki::common_prefix(held[slot.index], prompt.first(prompt.size() - 1));
    held[slot.index].assign(prompt.begin(), prompt.end());
    return kept;
  }
  void prefill(toki::SlotId slot, toki::TokenSpan prompt,
               toki::Completion<toki::Prefilled> done) override {
    const std::size_t kept = compute(slot, prompt);
    done(toki::Prefilled{.cached = kept, .computed = prompt.size() - kept});
  }
  void erase(toki::SlotId slot, toki::Completion<toki::Done> done) override {
    held[slot.index].clear();
    done(toki::Done{});
  }
};

int main() {
  Model model;
  toki::Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed({.slots = 2, .slots_used = {false, false}, .own_cache = false});
  for (const toki::Token question : {1, 2}) {
    toki::Tokens prompt(2000, 0);  // the system prompt
    prompt.resize(2020, question);
    // [request]
    auto ticket = engine.begin({.scope = toki::Scope({"my model"}), .tokens = prompt});
    if (!ticket) return 1;            // every slot is busy: engine.on_slot_free() tells
    toki::run_steps(*ticket, model);  // usually there are none
    ticket->sent();
    const std::size_t kept = model.compute(*ticket->slot(), prompt);  // and generate
    std::move(*ticket).finish({.ending = toki::Ending::completed,
                               .computed = true,
                               .prompt_tokens = prompt.size(),
                               .cached_tokens = kept});
    // [/request]
    std::printf("%zu of %zu tokens computed\n", prompt.size() - kept, prompt.size());
  }
}
