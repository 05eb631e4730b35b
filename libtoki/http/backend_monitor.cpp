#include <toki/http/async_driver.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/state_trial.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <utility>
#include <vector>

namespace toki::http {

namespace asio = boost::asio;

// llama-server looks for clients that have left only after a second without any other result, and an answer to /slots is one:
// asking more often would keep an abandoned generation alive.
constexpr Millis kSlotsInterval{1500};
constexpr Millis kTrialPatience{60000};
constexpr double kExactTolerance = 1e-6;  // of a log probability, in exact mode
constexpr int kSilentLooks = 4;  // with limits and intervals at their defaults, some ten seconds

std::string_view to_string(BackendMonitor::State state) noexcept {
  switch (state) {
    case BackendMonitor::State::down: return "down";
    case BackendMonitor::State::loading: return "loading";
    case BackendMonitor::State::trying: return "trying";
    case BackendMonitor::State::ready: return "ok";
  }
  return "down";
}

std::string_view BackendMonitor::status() const noexcept {
  return silent() ? "silent" : to_string(state_);
}

BackendMonitor::BackendMonitor(const asio::any_io_executor& executor, LlamaServerBackend& backend,
                               Upstream& upstream, Engine& engine, Admission& admission,
                               MonitorOptions options, LogSink log)
    : timer_(executor),
      backend_(backend),
      upstream_(upstream),
      engine_(engine),
      admission_(admission),
      options_(options),
      log_(std::move(log)) {}

void BackendMonitor::say(LogLevel level, std::string_view text) const {
  if (log_) {
    log_(level, text);
  }
}

void BackendMonitor::adapters_changed() {
  if (several_models_) {
    return;  // nothing is known that could be wrong now
  }
  engine_.forget_residency(true);
  engine_.set_abilities({});
  engine_.serve_pins({});
  needs_trial_ = true;
  state_ = State::trying;
  say(LogLevel::info, "other adapters: nothing that was computed before is reused");
  poke();
}

void BackendMonitor::poke() {
  timer_.cancel();
}

void BackendMonitor::tokens_were_wrong() {
  if (backend_.tokens_were_wrong()) {
    say(LogLevel::warn,
        "a prompt put together from remembered tokens did not have as many tokens as the backend "
        "counted: every prompt is tokenized whole until the backend is started again");
  }
}

asio::awaitable<void> BackendMonitor::run() {
  for (;;) {
    bool tried = false;
    try {
      co_await look();
      tried = needs_trial_ && !asleep_ && serving();
      if (tried) {
        co_await trial();
      }
    } catch (const boost::system::system_error&) {
      throw;                                 // we are to end
    } catch (const std::exception& error) {  // whatever it was, who would look if not we
      tried = false;
      say(LogLevel::error, fmt::format("a look at the backend failed: {}", error.what()));
    }
    if (tried) {
      continue;  // it may have taken long: look again at once
    }
    timer_.expires_after(options_.interval);
    (void)co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

asio::awaitable<void> BackendMonitor::verify() {
  if (upstream_.take_suspicion() && serving()) {
    co_await look();
  }
}

asio::awaitable<void> BackendMonitor::look() {
  if (std::exchange(looking_, true)) {
    co_return;
  }
  struct Done {
    bool& flag;
    ~Done() { flag = false; }
  } const done{looking_};

  const Health health = co_await backend_.async_health();
  // Nothing else tells whoever set it up what is wrong with a certificate.
  if (upstream_.tls_failure() != tls_failure_) {
    tls_failure_ = upstream_.tls_failure();
    if (!tls_failure_.empty()) {
      say(LogLevel::error, tls_failure_);
    }
  }
  if (health == Health::silent) {
    note_silence();
    co_return;
  }
  note_answer();
  if (health != Health::ok) {
    note_absence(health == Health::down ? State::down : State::loading);
    co_return;
  }
  looked_ = true;
  co_await look_closer();
}

// At the start it counts as down before it was looked at. A fault of TLS was told already.
void BackendMonitor::note_absence(State now) {
  const bool first = !std::exchange(looked_, true);
  const bool news =
      now != state_ || (first && !options_.starts_with_us && upstream_.tls_failure().empty());
  was_away_ = was_away_ || (now == State::down && !identity_.empty());
  state_ = now;
  if (news && now == State::down) {
    say(LogLevel::warn, "backend is down: " + backend_.health_failure());
  } else if (news) {
    say(LogLevel::warn, "backend is loading its model");
  }
}

std::string BackendMonitor::states_why() const {
  return state_ == State::down && !backend_.health_failure().empty()
             ? "the backend is down: " + backend_.health_failure()
             : states_why_;
}

// At a backend that is well: is it the one that is known?
asio::awaitable<void> BackendMonitor::look_closer() {
  const auto said = co_await backend_.async_props();
  if (!said) {
    if (state_ != State::loading) {
      say(LogLevel::warn, "backend cannot be described: " + said.error().detail);
    }
    state_ = State::loading;
    co_return;
  }
  if (said->sleeping && !std::exchange(asleep_, true)) {
    engine_.backend_slept();
    say(LogLevel::info, "backend sleeps: nothing is in its slots any more");
  }
  asleep_ = said->sleeping;
  const bool first = identity_.empty();
  const bool changed = said->identity != props_identity_;
  // Where the server marks its starts the marker decides; else having been away does.
  const bool restarted =
      !first && (said->start_marker.empty() ? was_away_ : said->start_marker != start_marker_);
  was_away_ = false;
  if (changed || restarted) {
    props_identity_ = said->identity;
    co_await adopt(restarted);
    start_marker_ = said->start_marker;
  }
  if (!serving() && !identity_.empty()) {
    state_ = needs_trial_ ? State::trying : State::ready;
  }
  serve_pins();
  co_await unfence();
}

// No reason to give up what it holds. While it works for us it may be too busy to answer, and then its
// silence says nothing.
void BackendMonitor::note_silence() {
  silent_looks_ = upstream_.in_use() > 0 ? 0 : silent_looks_ + 1;
  if (silent_looks_ >= kSilentLooks && !std::exchange(silent_, true)) {
    say(LogLevel::warn, "backend does not answer any more, though it takes connections");
  }
}

void BackendMonitor::note_answer() {
  silent_looks_ = 0;
  if (std::exchange(silent_, false)) {
    say(LogLevel::info, "backend answers again");
  }
}

asio::awaitable<void> BackendMonitor::adopt(bool restarted) {
  const auto said = co_await backend_.async_describe();
  if (!said) {
    state_ = State::loading;
    props_identity_.clear();  // so that the next look tries again
    co_return;
  }
  backend_.forget_tokens();
  if (restarted) {
    engine_.backend_restarted();
    asleep_ = said->sleeping;
    say(LogLevel::warn, "backend was started again: nothing is in its slots any more");
  }
  if (said->identity != said_identity_) {
    engine_.backend_changed({.slots = said->slots,
                             .slots_used = said->slots_used,
                             .context = said->context,
                             .own_cache = options_.own_cache,
                             .pinning = true});
    said_identity_ = said->identity;
    identity_ = scoped(said_identity_);
    say(LogLevel::info, fmt::format("backend has {} slots of {} tokens, model {}", said->slots,
                                    said->context, said->model));
  }
  several_models_ = said->several_models;
  engine_.set_pinning(!several_models_);
  identity_ = scoped(said_identity_);  // until the trial tells which model it is
  if (several_models_) {
    needs_trial_ = false;
    state_ = State::ready;
    states_why_ = "the backend serves several models";
    say(LogLevel::warn,
        "the backend serves several models: requests go to it as they are, nothing is reused or "
        "saved by toki; start one tokid for each model's llama-server instead");
    co_return;
  }
  needs_trial_ = true;
  state_ = State::trying;
  poke();  // the trial is not left to the next look
}

// Pins get slots once it is known which model this is and what it can do, and not while it sleeps.
void BackendMonitor::serve_pins() {
  const bool ready = state_ == State::ready && !needs_trial_ && !asleep_;
  std::vector<Scope> scopes;
  if (ready) {
    scopes.push_back(query_for(GenerationRequest{}, identity_).scope);
    for (const std::string& tenant : tenants_) {
      scopes.push_back(query_for(GenerationRequest{}, identity_, tenant).scope);
    }
  }
  engine_.serve_pins(std::move(scopes));
}

void BackendMonitor::set_tenants(std::vector<std::string> tenants) {
  tenants_ = std::move(tenants);
  serve_pins();
}

asio::awaitable<void> BackendMonitor::unfence() {
  const auto fenced = engine_.fenced();
  const auto now = std::chrono::steady_clock::now();
  if (fenced.empty() || now - asked_slots_ < kSlotsInterval) {
    co_return;
  }
  asked_slots_ = now;
  const auto working = co_await backend_.async_working();
  for (const std::uint32_t slot : fenced) {
    if (working && slot < working->size() && !(*working)[slot]) {
      engine_.unfence(slot);
      say(LogLevel::info, fmt::format("slot {} is idle again and gets work", slot));
    }
  }
}

// Does slot 0 still hold its prompt after slot 1 worked? llama-server's defaults move idle slots to
// its own cache and clear them. Unknown counts as yes: then cache_n will tell.
asio::awaitable<bool> BackendMonitor::keeps_pinned_prompt() {
  const auto first = co_await backend_.async_tokenize(
      R"("toki asks once whether a slot keeps what it was given: one two three four five six seven eight nine ten")",
      true);
  const auto second = co_await backend_.async_tokenize(
      R"("another prompt for another slot, only so that the first one is idle while this one is computed, and nothing else")",
      true);
  if (!first || !second || first->size() < 4) {
    co_return true;
  }
  (void)co_await backend_.async_prefill({.index = 0}, *first);
  (void)co_await backend_.async_prefill({.index = 1}, *second);
  const auto again = co_await backend_.async_prefill({.index = 0}, *first);
  co_return !again || again->cached + 1 >= first->size() / 2;
}

// What is computed in other batches, or beside others, must never be mixed with what is exact.
std::string BackendMonitor::scoped(const std::string& identity) const {
  return options_.exact_batch == 0
             ? identity
             : Scope({identity, "exact", std::to_string(options_.exact_batch)}).bytes();
}

asio::awaitable<void> BackendMonitor::say_how_exact() {
  const auto working = co_await backend_.async_working();
  if (!working) {
    say(LogLevel::error,
        "exact mode needs the backend's /slots (started without --no-slots): after a client that "
        "left before its answer's end nothing would ever run again");
  }
  if (engine_.stats().can_cut != 0) {
    say(LogLevel::info,
        fmt::format("exact: answers are those of a cold run, one at a time; prompts "
                    "are reused in multiples of {} tokens",
                    options_.exact_batch));
  } else {
    say(LogLevel::warn,
        "exact: every prompt is computed whole, one at a time, because no state can "
        "be saved and cut" +
            (states_why_.empty() ? std::string() : ": " + states_why_));
  }
}

asio::awaitable<void> BackendMonitor::try_slot_states(std::uint32_t slots) {
  if (!options_.states) {
    states_why_ = "there is no store (--slot-dir, --remote-states)";
    co_return;
  }
  const StateSetup& states = *options_.states;
  const StateTrialSetup setup{
      .dir = states.trial_dir, .slot_dir = states.slot_dir, .named = states.named, .slots = slots};
  const StateFindings found = co_await try_states(backend_, setup);
  if (needs_trial_) {
    co_return;  // meanwhile the adapters changed: it was of others
  }
  states_why_ = found.why;
  if (!found.reference.tokens.empty()) {
    // In exact mode the trial ran alone, in one batch: what differs at all is another model.
    const double tolerance = options_.exact_batch > 0 ? kExactTolerance : Fingerprints::kTolerance;
    const std::uint64_t number =
        states.fingerprints == nullptr
            ? 0
            : states.fingerprints->number_of(said_identity_, found.reference.tokens,
                                             found.reference.logprobs, tolerance);
    identity_ = scoped(Scope({said_identity_, std::to_string(number), found.layout}).bytes());
  }
  engine_.set_abilities(found.abilities);
  if (!found.actions) {
    co_return;  // trial() says it
  }
  if (!found.abilities.saves) {
    say(LogLevel::warn, "slot states are not saved: " + found.why);
  } else {
    say(LogLevel::info, fmt::format("slot states are saved and restored{}{}{}",
                                    !found.abilities.cuts     ? " whole"
                                    : states.named != nullptr ? " whole, and rewound"
                                                              : ", cut to any length",
                                    found.abilities.rewinds ? "" : "; the model cannot rewind",
                                    found.why.empty() ? "" : " (" + found.why + ")"));
  }
}

asio::awaitable<void> BackendMonitor::tried() {
  asio::steady_timer pause(timer_.get_executor());
  const auto deadline = std::chrono::steady_clock::now() + kTrialPatience;
  while (state_ == State::trying && std::chrono::steady_clock::now() < deadline) {
    pause.expires_after(Millis(10));
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<void> BackendMonitor::try_special_tokens() {
  const std::size_t count = co_await backend_.async_learn_special_tokens();
  say(LogLevel::info,
      count > 0 ? fmt::format("tokens are remembered up to any of {} special tokens", count)
                : std::string("tokens are remembered of whole prompts only: no special token of "
                              "the chat template bounds them"));
}

asio::awaitable<void> BackendMonitor::trial() {
  co_await try_special_tokens();  // takes no slot
  Query all;
  all.bypass = Reason::not_cacheable;
  all.sequences = static_cast<std::uint32_t>(engine_.slots());
  auto ticket = co_await admission_.acquire(all);
  if (!ticket) {
    co_return;
  }
  needs_trial_ = false;
  if (!co_await backend_.async_learn_chat_tokens()) {
    say(LogLevel::warn,
        "the backend counts a chat's prompt tokens differently from its own /apply-template and "
        "/tokenize: chats whose "
        "count differs are served, but not remembered");
  }
  bool pinning = true;
  if (all.sequences > 1 && !co_await keeps_pinned_prompt()) {
    pinning = false;
    engine_.set_pinning(false);
    states_why_ = "the backend clears idle slots";
    say(LogLevel::warn,
        "the backend clears idle slots, so requests are not pinned to slots and nothing is saved "
        "by toki; start "
        "llama-server with -np N (and --cache-ram 0), or with --no-cache-idle-slots");
  }
  if (pinning) {
    co_await try_slot_states(all.sequences);
  }
  bool erased = true;
  const std::vector<std::uint32_t> touched =
      all.sequences > 1 ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{0};
  for (const std::uint32_t slot : touched) {
    const auto done = co_await backend_.async_erase({.index = slot});
    erased = erased && done.has_value();
  }
  if (!erased && !std::exchange(said_no_actions_, true)) {
    say(options_.states ? LogLevel::warn : LogLevel::info,  // else nobody wants any saved
        "the backend has no slot actions (--slot-save-path): no state is saved, and faulty slots "
        "are computed over, not erased");
  }
  std::move(*ticket).dismiss(touched, erased ? SlotContent::empty : SlotContent::unknown);
  if (options_.exact_batch > 0) {
    co_await say_how_exact();
  }
  if (state_ == State::trying && !needs_trial_) {
    state_ = State::ready;
    say(LogLevel::info, "backend is ready");
    serve_pins();
  }
}

}  // namespace toki::http
