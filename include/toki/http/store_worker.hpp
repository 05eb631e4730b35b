// StoreWorker: a StateStore for coroutines. Its file work runs on one thread beside the executor's, so
// that no byte of an answer waits for a disk.
//
// Threads:   call it on the executor; coroutines resume there.
// Ownership: the store must outlive it, and it the coroutines; it keeps copies of what it is given.
//            Its destructor waits for the work under way.
// Errors:    as the store's.
// Cost:      one hop to the thread and one back, some us beside the file work.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/result.hpp>
#include <toki/state_store.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace toki::http {

/// A StateStore on a thread of its own, in the order of asking. Its coroutines resume on their own
/// executor.
class TOKI_EXPORT StoreWorker {
 public:
  /// `store` must outlive it.
  explicit StoreWorker(StateStore& store) : store_(store) {}
  /// Does what was asked for until now.
  ~StoreWorker() { thread_.join(); }
  StoreWorker(const StoreWorker&) = delete;
  StoreWorker& operator=(const StoreWorker&) = delete;

  /// StateStore::begin_save(), in the calling thread.
  Result<std::string> begin_save(const Step& step) { return store_.begin_save(step); }
  /// StateStore::end_save(), waited for.
  boost::asio::awaitable<Result<Taken>> end_save(const Step& step, std::string file, Timed saved);
  /// StateStore::begin_restore(), waited for.
  boost::asio::awaitable<Result<Restorable>> begin_restore(const Step& step);
  /// StateStore::forget(), waited for.
  boost::asio::awaitable<Result<std::uint64_t>> forget(std::optional<std::uint64_t> id);
  /// StateStore::forget(), waited for.
  boost::asio::awaitable<Result<std::uint64_t>> forget(Scope scope, Tokens prompt,
                                                       std::uint64_t shared);
  /// Takes what a step saved, without being waited for. `done` is called by another thread.
  void end_save_later(const Step& step, std::string file, Timed saved,
                      std::function<void(const Status&)> done);
  /// So much is to be taken that whoever brings more should wait.
  bool behind() const noexcept { return later_ >= kMostLater; }
  /// Everything that was asked for until now is done.
  boost::asio::awaitable<Status> settled();
  /// Not waited for. A file that is not there may be one that the backend has yet to write, for a
  /// save that was given up: discard_again() tries those for ten minutes.
  void discard(std::string file);
  /// Tries to remove again what was not there at discard().
  void discard_again();
  /// StateStore::discard_other_runs(), not waited for.
  void discard_other_runs(std::string own);
  /// StateStore::end_restore(), not waited for.
  void end_restore(std::string file, Result<Timed> restored);
  /// StateStore::doubt(), not waited for.
  void doubt(const Scope& scope, TokenSpan prompt);
  /// StateStore::maintain(), not waited for.
  void maintain();

 private:
  template <class T, class Work>
  boost::asio::awaitable<Result<T>> run(Work work);

  static constexpr int kMostLater = 4;
  struct Unwanted {
    std::string file;
    std::chrono::steady_clock::time_point since;
  };

  StateStore& store_;
  std::atomic<int> later_{0};
  std::vector<Unwanted> unwanted_;  // touched on the thread only
  std::atomic<bool> has_unwanted_{false};
  boost::asio::thread_pool thread_{1};
};

}  // namespace toki::http
