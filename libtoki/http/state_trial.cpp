#include <toki/http/state_trial.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/kv_store.hpp>

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <utility>

namespace toki::http {

namespace asio = boost::asio;

namespace {

constexpr std::string_view kText =
    R"("toki asks once what can be done with the state of a slot. It computes these words, saves )"
    R"(what it got, puts it into another slot, whole and cut in the middle, and goes on from there )"
    R"(each time: the next words have to be the same. One two three four five six seven eight nine )"
    R"(ten eleven twelve. A cat reads a book about a river, and the river runs on to the sea, where )"
    R"(the ships are. Nobody knows how old the sea is, but the book says that it is very old.")";
constexpr std::size_t kPrompt = 96;  // tokens of it
constexpr std::size_t kCut = 40;
constexpr std::size_t kFewest = 24;
constexpr std::uint32_t kNext = 8;
const Scope kScope({"toki trial"});

// What a trial has at hand.
struct Bench {
  LlamaServerBackend& backend;
  StoreWorker& store;
  SlotId first{.index = 0};
  SlotId other{};
  Tokens prompt;
  std::int64_t run = std::chrono::system_clock::now().time_since_epoch().count();
  int files = 0;

  // No two processes have the same names in one folder.
  std::string next_file() { return fmt::format("toki-trial-{}-{}.bin", run, ++files); }
};

Tokens joined(TokenSpan tokens, TokenSpan more) {
  Tokens all(tokens.begin(), tokens.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Puts the state of `tokens` into the slot; what went wrong, or nothing.
asio::awaitable<std::string> restore(Bench& bench, SlotId slot, Tokens tokens) {
  const std::string file = bench.next_file();
  const std::size_t count = tokens.size();
  const auto composed = co_await bench.store.compose(kScope, std::move(tokens), slot.index, file);
  if (!composed) {
    co_return composed.error().detail;
  }
  const auto restored = co_await bench.backend.async_restore(slot, file);
  bench.store.discard(file);
  if (!restored) {
    co_return restored.error().detail;
  }
  co_return *composed == count && restored->tokens == count
      ? std::string()
      : fmt::format("{} of {} tokens were restored", restored->tokens, count);
}

// Both continue the same tokens: equal, with `cached` of them reused in the restored slot?
std::string compare(const Result<Continued>& live, const Result<Continued>& restored,
                    std::size_t cached) {
  if (!live || !restored) {
    return (live ? restored : live).error().detail;
  }
  if (restored->cached != cached) {
    return fmt::format("{} of {} restored tokens were reused", restored->cached, cached);
  }
  return live->tokens == restored->tokens ? std::string() : "the next tokens differed";
}

// Restored whole into the other slot, and continued as the live one.
asio::awaitable<std::string> try_whole(Bench& bench, const Tokens& held) {
  const Tokens next = joined(held, TokenSpan(bench.prompt).first(1));
  const auto live = co_await bench.backend.async_continue(bench.first, next, kNext);
  std::string wrong = co_await restore(bench, bench.other, held);
  if (!wrong.empty()) {
    co_return wrong;
  }
  const auto restored = co_await bench.backend.async_continue(bench.other, next, kNext);
  co_return compare(live, restored, held.size());
}

// Cut in the middle, and continued as a live slot that was rewound to the same place: so both
// compute the same tokens in one batch, and nothing is rounded differently.
asio::awaitable<std::string> try_cut(Bench& bench) {
  const std::size_t middle = std::min(kCut, bench.prompt.size() / 2);
  const TokenSpan beginning = TokenSpan(bench.prompt).first(middle);
  const Tokens apart = joined(beginning, std::array{bench.prompt[0], bench.prompt[1]});
  (void)co_await bench.backend.async_prefill(bench.first, apart);
  const auto live = co_await bench.backend.async_continue(bench.first, bench.prompt, kNext);
  std::string wrong =
      co_await restore(bench, bench.other, Tokens(beginning.begin(), beginning.end()));
  if (!wrong.empty()) {
    co_return wrong;
  }
  const auto restored = co_await bench.backend.async_continue(bench.other, bench.prompt, kNext);
  co_return compare(live, restored, middle);
}

asio::awaitable<bool> try_rewind(Bench& bench) {
  const std::size_t shared = bench.prompt.size() - 8;
  const Tokens apart =
      joined(TokenSpan(bench.prompt).first(shared), TokenSpan(bench.prompt).first(4));
  (void)co_await bench.backend.async_prefill(bench.first, bench.prompt);
  const auto rewound = co_await bench.backend.async_prefill(bench.first, apart);
  co_return rewound && rewound->cached >= shared / 2;
}

asio::awaitable<void> find(Bench& bench, StateFindings& findings) {
  (void)co_await bench.backend.async_erase(bench.first);
  auto reference = co_await bench.backend.async_continue(bench.first, bench.prompt, kNext);
  if (!reference) {
    findings.why = reference.error().detail;
    co_return;
  }
  findings.reference = std::move(*reference);
  const std::string file = bench.next_file();
  const auto saved = co_await bench.backend.async_save(bench.first, file);
  if (!saved) {
    findings.why = saved.error().detail;
  } else {
    auto taken = co_await bench.store.take(kScope, bench.prompt, file, false, 1);
    if (!taken) {
      findings.why = "the saved state cannot be read: " + taken.error().detail;
    } else {
      findings.why = co_await try_whole(bench, taken->tokens);
      findings.abilities.saves = findings.why.empty();
      if (findings.abilities.saves && taken->snapshot) {
        findings.why = "states of this model are kept whole: their format is not understood";
      } else if (findings.abilities.saves) {
        findings.why = co_await try_cut(bench);
        findings.abilities.cuts = findings.why.empty();
      }
    }
  }
  findings.abilities.rewinds = co_await try_rewind(bench);
}

void remove_folder(const std::string& dir) {
  std::error_code ignored;
  std::filesystem::remove_all(dir, ignored);
}

}  // namespace

asio::awaitable<StateFindings> try_states(LlamaServerBackend& backend,
                                          const StateTrialSetup& setup) {
  StateFindings findings;
  auto tokens = co_await backend.async_tokenize(kText, true);
  if (!tokens || tokens->size() < kFewest) {
    findings.why = tokens ? "its text has too few tokens" : tokens.error().detail;
    co_return findings;
  }
  tokens->resize(std::min(tokens->size(), kPrompt));
  remove_folder(setup.dir);
  auto store =
      KvStore::open({.dir = setup.dir, .slot_dir = setup.slot_dir, .owns_slot_dir = false}, {});
  if (!store) {
    findings.why = store.error().detail;
    co_return findings;
  }
  {
    StoreWorker worker(**store);
    Bench bench{.backend = backend, .store = worker, .prompt = std::move(*tokens)};
    bench.other = {.index = setup.slots > 1 ? 1U : 0U};
    co_await find(bench, findings);
  }
  store->reset();
  remove_folder(setup.dir);
  co_return findings;
}

}  // namespace toki::http
