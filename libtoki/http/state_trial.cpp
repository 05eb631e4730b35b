#include <toki/http/async_driver.hpp>
#include <toki/http/state_trial.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/kv_store.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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
  bool named = false;  // the store is the daemon's own, and cannot read states
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

// Puts a state that begins with `tokens` into the slot; what went wrong, or nothing.
asio::awaitable<std::string> restore(Bench& bench, SlotId slot, Tokens tokens) {
  const std::size_t count = tokens.size();
  const Step step{.kind = Step::Kind::restore,
                  .slot = slot,
                  .scope = kScope,
                  .tokens = std::move(tokens),
                  .file = bench.next_file()};
  Preparation none;
  const StepReport report =
      co_await run_restore(step, bench.backend, &bench.store, std::move(none));
  if (report.error) {
    co_return report.error->detail;
  }
  co_return report.reused == count
      ? std::string()
      : fmt::format("{} of {} tokens were restored", report.reused, count);
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

// A prompt that shares only the first half: with a state cut there, or one restored whole that the
// backend rewinds to there. Continued as a live slot that was rewound to the same place: so both
// compute the same tokens in one batch, and nothing is rounded differently.
asio::awaitable<std::string> try_cut(Bench& bench) {
  const TokenSpan prompt(bench.prompt);
  const std::size_t middle = std::min(kCut, prompt.size() / 2);
  const TokenSpan beginning = prompt.first(middle);
  const auto other = std::find_if(prompt.begin(), prompt.end(),
                                  [&](Token token) { return token != prompt[middle]; });
  const Tokens apart =
      joined(beginning, prompt.subspan(static_cast<std::size_t>(other - prompt.begin())));
  (void)co_await bench.backend.async_prefill(bench.first, bench.prompt);
  const auto live = co_await bench.backend.async_continue(bench.first, apart, kNext);
  std::string wrong =
      co_await restore(bench, bench.other, Tokens(beginning.begin(), beginning.end()));
  if (!wrong.empty()) {
    co_return wrong;
  }
  const auto restored = co_await bench.backend.async_continue(bench.other, apart, kNext);
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

// What the slot holds after the reference: the last token was sampled and never computed.
Tokens held_after(const Bench& bench, const Continued& reference) {
  const TokenSpan generated(reference.tokens);
  return joined(bench.prompt, generated.first(generated.empty() ? 0 : generated.size() - 1));
}

asio::awaitable<Result<Taken>> save(Bench& bench, const Tokens& held) {
  const Step step{.kind = Step::Kind::save,
                  .slot = bench.first,
                  .scope = kScope,
                  .tokens = held,
                  .file = bench.next_file(),
                  .token_ms = 1};
  auto name = bench.store.begin_save(step);
  if (!name) {
    co_return name.error();
  }
  OpenFile file(bench.store, std::move(*name), true);
  const auto saved = co_await bench.backend.async_save(bench.first, file.name());
  if (!saved) {
    co_return saved.error();
  }
  file.ended();
  auto taken = co_await bench.store.end_save(step, file.name(), *saved);
  if (!taken) {
    taken = Error{taken.error().code, "the saved state cannot be used: " + taken.error().detail};
  }
  co_return taken;
}

// Saved, restored whole, restored in part: how far it gets.
asio::awaitable<void> try_saving(Bench& bench, StateFindings& findings) {
  const auto taken = co_await save(bench, held_after(bench, findings.reference));
  if (!taken) {
    findings.why = taken.error().detail;
    co_return;
  }
  findings.layout = taken->layout;
  findings.why = co_await try_whole(bench, taken->tokens);
  findings.abilities.saves = findings.why.empty();
  if (findings.abilities.saves && taken->snapshot) {
    findings.why = "states of this model are kept whole: their format is not understood";
  } else if (findings.abilities.saves) {
    findings.why = co_await try_cut(bench);
    findings.abilities.cuts = findings.why.empty();
  }
  if (bench.named && taken->id != 0) {
    (void)co_await bench.store.forget(taken->id);
  }
}

asio::awaitable<void> find(Bench& bench, StateFindings& findings) {
  const auto erased = co_await bench.backend.async_erase(bench.first);
  if (!erased && erased.error().code == Errc::unsupported && bench.named) {
    findings.actions = false;
    findings.why = "the backend has no slot actions";
    co_return;
  }
  auto reference = co_await bench.backend.async_continue(bench.first, bench.prompt, kNext);
  if (!reference) {
    findings.why = reference.error().detail;
    co_return;
  }
  findings.reference = std::move(*reference);
  co_await try_saving(bench, findings);
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
  const SlotId other{.index = setup.slots > 1 ? 1U : 0U};
  if (setup.named != nullptr) {
    Bench bench{.backend = backend,
                .store = *setup.named,
                .named = true,
                .other = other,
                .prompt = std::move(*tokens)};
    findings.abilities.reads = false;
    co_await find(bench, findings);
    co_return findings;
  }
  remove_folder(setup.dir);
  auto store =
      KvStore::open({.dir = setup.dir, .slot_dir = setup.slot_dir, .owns_slot_dir = false}, {});
  if (!store) {
    findings.why = store.error().detail;
    co_return findings;
  }
  {
    StoreWorker worker(**store);
    Bench bench{.backend = backend, .store = worker, .other = other, .prompt = std::move(*tokens)};
    co_await find(bench, findings);
  }
  store->reset();
  remove_folder(setup.dir);
  co_return findings;
}

}  // namespace toki::http
