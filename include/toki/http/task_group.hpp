// TaskGroup: coroutines that can be ended together and waited for, so that what they refer to may
// be destroyed.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: keeps its tasks until they end; must outlive them (see stop()).
// Errors:    an exception that leaves a task ends that task only.
// Cost:      one small allocation a task.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <list>
#include <utility>

namespace toki::http {

/// Coroutines that are ended together. Must outlive them: stop() before it goes.
class TaskGroup {
 public:
  /// On which they run.
  explicit TaskGroup(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  /// Starts it; what it throws ends it and nothing else.
  void spawn(boost::asio::awaitable<void> task) {
    spawn_with([&task](boost::asio::cancellation_signal&) { return std::move(task); });
  }

  /// `make` gets the signal that ends the task it returns.
  template <class Make>
  void spawn_with(const Make& make) {
    const auto place = signals_.emplace(signals_.end());
    boost::asio::awaitable<void> task = make(*place);
    auto ended = [this, place](const std::exception_ptr&) { signals_.erase(place); };
    boost::asio::co_spawn(executor_, std::move(task),
                          boost::asio::bind_cancellation_slot(place->slot(), std::move(ended)));
  }

  /// Tasks that have not ended.
  std::size_t size() const noexcept { return signals_.size(); }

  /// Tells all to end; does not wait for it.
  void cancel() {
    // A task may end while it is told to, which takes it out of the list.
    for (auto it = signals_.begin(); it != signals_.end();) {
      (it++)->emit(boost::asio::cancellation_type::terminal);
    }
  }

  /// Cancels all tasks and waits for their ends, at most `limit`; false when some are left.
  boost::asio::awaitable<bool> stop(std::chrono::milliseconds limit) {
    boost::asio::steady_timer pause(executor_);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    cancel();
    while (!signals_.empty() && std::chrono::steady_clock::now() < deadline) {
      pause.expires_after(std::chrono::milliseconds(5));
      (void)co_await pause.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
    co_return signals_.empty();
  }

 private:
  boost::asio::any_io_executor executor_;
  std::list<boost::asio::cancellation_signal> signals_;
};

}  // namespace toki::http
