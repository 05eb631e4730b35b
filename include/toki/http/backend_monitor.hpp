// BackendMonitor: keeps the engine's picture of a llama-server true. It notices when the server
// comes, goes, is started again, sleeps, or changes its model, tries at each start what a pinned
// slot is worth, and frees fenced slots.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: everything given must outlive it.
// Errors:    none; a server that is away is a state.
// Cost:      GET /health and GET /props each interval (neither wakes a sleeping model), /slots only
// while a slot is fenced; the
//            trial computes some 100 tokens once per start of the server.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/fingerprints.hpp>
#include <toki/http/admission.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/http/upstream.hpp>
#include <toki/log.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace toki::http {

/// Where states of slots go. Without it none are saved.
struct StateSetup {
  std::string trial_dir;         ///< for the trial's own store
  std::string slot_dir;          ///< the server's --slot-save-path
  StoreWorker* named = nullptr;  ///< instead of both: over NamedStates
  /// tells models of one name apart; null: they are not told apart
  Fingerprints* fingerprints = nullptr;
};

/// How often it looks, and what it was told of the server.
struct MonitorOptions {
  Millis interval{1000};  ///< between two looks
  bool own_cache =
      true;  ///< the server may keep prompts outside its slots (not started with --cache-ram 0)
  std::optional<StateSetup> states{};  ///< none: no state is saved
  std::uint64_t exact_batch = 0;  ///< as EngineOptions has it: what such a run computes has a scope
                                  ///< of its own
  bool starts_with_us = false;    ///< the server was started just now: that nobody listens yet is
                                  ///< not worth a line
};

/// Notices that the server comes, goes, restarts, sleeps or has another model, tries at each start
/// what can be done with its slots, and tells the engine.
class TOKI_EXPORT BackendMonitor {
 public:
  /// Of the server, as of the last look.
  enum class State : std::uint8_t {
    down,     ///< cannot be reached
    loading,  ///< answers, but not ready
    trying,   ///< serves; the trial is under way
    ready,    ///< serves; the trial is over
  };

  /// All that is passed by reference must outlive it.
  BackendMonitor(const boost::asio::any_io_executor& executor, LlamaServerBackend& backend,
                 Upstream& upstream, Engine& engine, Admission& admission, MonitorOptions options,
                 LogSink log);

  /// Runs until it is cancelled.
  boost::asio::awaitable<void> run();
  /// Before a request: looks again when a connection was closed on us, which a restart would do.
  boost::asio::awaitable<void> verify();
  /// Waits while the trial is under way, for a minute at most: what it finds is part of identity().
  boost::asio::awaitable<void> tried();
  /// Other adapters are in force: slots are erased before they are used, and the trial is made again,
  /// because with them it is another model.
  void adapters_changed();
  /// Look at once instead of at the next interval.
  void poke();
  /// A prompt put together from remembered tokens was counted otherwise by the backend: nothing is
  /// remembered until the backend's next start, and the log says so.
  void tokens_were_wrong();

  /// Where tenants share nothing: pins of these get slots. Empty: nobody is told apart.
  void set_tenants(std::vector<std::string> tenants);

  /// As of the last look.
  State state() const noexcept { return state_; }
  /// The backend is a router before several models: which slot works for which is not known.
  bool several_models() const noexcept { return several_models_; }
  /// Requests may be sent.
  bool serving() const noexcept { return state_ == State::trying || state_ == State::ready; }
  /// It serves, as far as is known, but has not answered for several looks, and not because of our own
  /// requests. What its slots hold is kept until more is known.
  bool silent() const noexcept { return serving() && silent_; }
  /// "silent", or the state's name. Static string.
  std::string_view status() const noexcept;
  /// What cannot be done with the slots' states, and why, as the last trial found; empty: nothing.
  /// While the server is down, why that is so.
  std::string states_why() const;
  /// Equal only while KV cache may be shared; the first part of every Scope.
  const std::string& identity() const noexcept { return identity_; }

 private:
  boost::asio::awaitable<void> look();
  boost::asio::awaitable<void> look_closer();
  void note_absence(State now);
  void note_silence();
  void note_answer();
  boost::asio::awaitable<void> adopt(bool restarted);
  void serve_pins();
  boost::asio::awaitable<void> unfence();
  std::string scoped(const std::string& identity) const;
  boost::asio::awaitable<void> say_how_exact();
  boost::asio::awaitable<void> trial();
  boost::asio::awaitable<void> try_special_tokens();
  boost::asio::awaitable<bool> keeps_pinned_prompt();
  boost::asio::awaitable<void> try_slot_states(std::uint32_t slots);
  void say(LogLevel level, std::string_view text) const;

  boost::asio::steady_timer timer_;
  LlamaServerBackend& backend_;
  Upstream& upstream_;
  Engine& engine_;
  Admission& admission_;
  MonitorOptions options_;
  LogSink log_;
  State state_ = State::down;
  std::string identity_;        // the scope: said_identity_, and how the model answers
  std::string said_identity_;   // of /props and /v1/models
  std::string props_identity_;  // of /props alone: what each look can compare
  std::string start_marker_;
  std::string states_why_;
  std::vector<std::string> tenants_;
  std::string tls_failure_;  // told last
  std::chrono::steady_clock::time_point asked_slots_{};
  bool several_models_ = false;
  bool looked_ = false;  // once
  bool was_away_ = false;
  bool asleep_ = false;
  bool silent_ = false;
  int silent_looks_ = 0;  // in a row, while nothing of ours was under way
  bool needs_trial_ = false;
  bool looking_ = false;
  bool said_no_actions_ = false;
};

/// The name of the enumerator. Static string.
TOKI_EXPORT std::string_view to_string(BackendMonitor::State state) noexcept;

}  // namespace toki::http
