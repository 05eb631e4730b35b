// Admission: the queue in front of the slots. Requests that find no slot wait here, bounded in number
// and time: those of one tenant in order of arrival, tenants in turn. One that waits for a certain busy
// slot lets others pass to slots it does not want.
//
// Threads:   the executor's; one thread or strand at a time. It takes the engine's on_slot_free.
// Ownership: the Engine must outlive it; it must outlive its waiters.
// Errors:    Errc::busy: the queue is full; timed_out: waited too long; unavailable: no slots now.
// Cost:      each freed slot asks the engine once per waiter, in order, until no slot is idle.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/upstream.hpp>
#include <toki/result.hpp>
#include <toki/stats.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

namespace toki::http {

/// How many requests may wait, and how long.
struct AdmissionLimits {
  std::size_t length = 256;  ///< most requests that wait
  Millis wait{60000};        ///< longest wait
  Millis slot_wait{1000};    ///< of that, longest wait for a better slot while others are idle
  Millis lead_wait{30000};   ///< and for a prefix that another request computes now
};

/// The queue in front of the slots: first come, first served, but for requests that a slot which is
/// free does not suit.
class TOKI_EXPORT Admission {
 public:
  /// One for each engine: it takes the engine's on_slot_free().
  Admission(boost::asio::any_io_executor executor, Engine& engine, AdmissionLimits limits);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  /// Waits for a ticket. Leaving the coroutine (the client left) takes the request out of the queue
  /// at once. `query` must stay valid until it returns.
  boost::asio::awaitable<Result<Ticket>> acquire(const Query& query);

  /// For requests that come from now on; the length at once.
  void set_limits(const AdmissionLimits& limits) { limits_ = limits; }

  /// Requests that wait.
  std::size_t length() const noexcept;
  /// Its figures, among all others.
  void add_to(Stats& stats) const noexcept;

 private:
  struct Waiter;
  struct Place;
  void serve_waiters();
  bool try_admit(Waiter& waiter);
  void took_turn(const Waiter& waiter);
  bool followed(const Waiter& waiter) const;
  boost::asio::awaitable<void> hold(Waiter& waiter);

  boost::asio::any_io_executor executor_;
  Engine& engine_;
  AdmissionLimits limits_;
  std::list<Waiter*> waiters_;
  std::uint64_t round_ = 0;                      // the last one of which somebody was served
  std::map<std::string, std::uint64_t> served_;  // tenants, and the round; past ones are left out
  // How many of them: that is asked by any thread that frees a slot.
  std::shared_ptr<std::atomic<std::size_t>> queued_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::uint64_t full_ = 0, timeouts_ = 0, slot_waits_ = 0, coalesced_ = 0, left_ = 0, unready_ = 0;
};

}  // namespace toki::http
