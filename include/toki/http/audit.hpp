// Audit: every Nth hit is asked again without cache while nothing else is done, and the answers are
// compared (toki/divergence.hpp).
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: everything given must outlive it. Keeps at most kMaxWaiting requests with their answers.
// Errors:    none: an audit that cannot be made is counted as dropped.
// Cost:      a look every quarter of a second. An audit computes a prompt and its answer once more,
//            in a slot whose content is worth nothing or was saved; it begins when no request has
//            come for half a second, and ends at once when one comes.
//
// Only what can be repeated is audited: temperature 0 or a seed, one answer, chat or text
// completions. llama-server's arithmetic depends on how many tokens are computed together, so a cold
// run may differ from a cached one where both are right (docs/divergence.md).
#pragma once

#include <toki/divergence.hpp>
#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/body_edit.hpp>
#include <toki/http/embedder.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/http/upstream.hpp>
#include <toki/log.hpp>
#include <toki/stats.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace toki::http {

/// How often, and what counts as the same.
struct AuditOptions {
  std::uint64_t every = 0;             ///< hits that could be repeated; not 0
  double same_meaning = kSameMeaning;  ///< cosine from which two answers mean the same
};

/// What an audit works with.
struct AuditSetup {
  Upstream& upstream;             ///< that the repeated request goes to
  Engine& engine;                 ///< that gives a spare slot
  LlamaServerBackend& backend;    ///< for the steps of that slot
  const BackendMonitor& monitor;  ///< nothing is repeated while it does not serve
  Embedder* embedder = nullptr;   ///< null: what no rule decides is substantive
  StoreWorker* store = nullptr;   ///< null: no slot is saved for it
};

/// A request that was a hit, with what its client got.
struct AuditedAnswer {
  std::string target;               ///< raw
  std::string body;                 ///< as it was sent to the backend, but for the slot
  std::string authorization;        ///< the client's own
  bool stream = false;              ///< the body asks for events
  std::optional<std::string> text;  ///< none: it was too long, or of another shape
  std::uint64_t prompt = 0;         ///< tokens of the prompt
  std::uint64_t reused = 0;         ///< of them, by the backend's own word
  std::uint32_t slot = 0;           ///< it ran in
  std::string_view source;          ///< static text
};

/// Every Nth hit that can be repeated, run once more without any cache while nothing else is done,
/// and compared (docs/divergence.md).
class TOKI_EXPORT Audit {
 public:
  /// answers that wait to be repeated; more are dropped
  static constexpr std::size_t kMaxWaiting = 4;
  static constexpr std::size_t kMaxBodyBytes = std::size_t{1} << 20;  ///< of a request that is kept
  static constexpr int kMaxTries = 3;                                 ///< that clients interrupted
  static constexpr std::chrono::minutes kMaxAge{10};                  ///< of an answer that waits

  /// What `setup` names must outlive it. REQUIRES: options.every is not 0.
  Audit(const boost::asio::any_io_executor& executor, const AuditSetup& setup,
        const AuditOptions& options, LogSink log);

  /// A client's generation, from its arrival to its end: no audit runs meanwhile.
  class TOKI_EXPORT Client {
   public:
    /// Null: nothing is audited. What runs now is interrupted.
    explicit Client(Audit* audit);
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    ~Client();

   private:
    Audit* audit_;
  };

  /// Whether the same answer may be expected when it is sent again.
  bool may_repeat(const GenerationRequest& request, const Body& body) const;
  /// Whether the next hit is to be audited, so that its text is worth keeping.
  bool due() const { return hits_ + 1 >= options_.every; }
  /// A request that may be repeated was a hit.
  void hit(AuditedAnswer answer);

  /// Runs until it is cancelled.
  boost::asio::awaitable<void> run();
  /// Its figures, among all others.
  void add_to(Stats& stats) const noexcept;

 private:
  struct Job {
    AuditedAnswer answer;
    std::chrono::steady_clock::time_point since;
    int tries = 0;
  };
  struct Lease;

  boost::asio::awaitable<void> next();
  boost::asio::awaitable<void> repeat(const AuditedAnswer& answer, std::uint32_t slot,
                                      std::optional<Reply>& reply);
  boost::asio::awaitable<void> judge(const AuditedAnswer& answer, const Reply& reply);
  boost::asio::awaitable<void> weigh(Comparison& found, std::string_view a, std::string_view b);
  boost::asio::awaitable<void> client_came();
  void drop_old();
  void drop(std::string_view why);
  void report(const AuditedAnswer& answer, const Comparison& found);

  AuditSetup setup_;
  AuditOptions options_;
  LogSink log_;
  boost::asio::steady_timer look_, interrupt_;
  std::deque<Job> waiting_;
  std::size_t clients_ = 0;
  std::uint64_t hits_ = 0;  // since the last one that was audited
  DivergenceCounts counts_;
  std::uint64_t dropped_ = 0;
};

}  // namespace toki::http
