// What a user's first program does: a prompt is computed, and the next one that begins alike is sent
// to the slot that holds its beginning.
#include <toki/toki.hpp>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

int main() {
  const std::string header =
      TEXT(TOKI_VERSION_MAJOR) "." TEXT(TOKI_VERSION_MINOR) "." TEXT(TOKI_VERSION_PATCH);
  if (header != toki::version()) {
    std::printf("header %s, library %s\n", header.c_str(), toki::version());
    return 1;
  }
  const toki::Scope scope{"a model"};
  toki::Tokens prompt(100);
  std::iota(prompt.begin(), prompt.end(), 0);

  toki::BlockTree tree;
  tree.insert(scope, prompt);

  toki::Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed({.slots = 2, .slots_used = {false, false}, .own_cache = false});
  std::uint64_t predicted = 0;
  for (int turn = 0; turn < 2; ++turn) {
    auto ticket = engine.begin({.scope = scope, .tokens = prompt});
    if (!ticket) {
      std::printf("%s\n", ticket.error().detail.c_str());
      return 1;
    }
    predicted = ticket->predicted();
    ticket->sent();
    std::move(*ticket).finish({.ending = toki::Ending::completed,
                               .computed = true,
                               .prompt_tokens = prompt.size(),
                               .cached_tokens = predicted});
    prompt.push_back(7);
  }
  std::printf("toki %s reuses %u of %u tokens\n", toki::version(), unsigned(predicted),
              unsigned(prompt.size() - 1));
  return predicted == 100 && tree.match(scope, prompt).tokens == 100 ? 0 : 1;
}
