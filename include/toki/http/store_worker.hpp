// StoreWorker: a KvStore for coroutines. Its file work runs on one thread beside the executor's, so
// that no byte of an answer waits for a disk.
//
// Threads:   call it on the executor; coroutines resume there.
// Ownership: the KvStore must outlive it; it keeps copies of what it is given. Its destructor waits
//            for the work under way.
// Errors:    as the KvStore's.
// Cost:      one hop to the thread and one back, some us beside the file work.
#pragma once

#include <toki/export.hpp>
#include <toki/kv_store.hpp>
#include <toki/result.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace toki::http {

class TOKI_EXPORT StoreWorker {
 public:
  explicit StoreWorker(KvStore& store) : store_(store) {}

  boost::asio::awaitable<Result<Taken>> take(Scope scope, Tokens expected, std::string name,
                                             bool whole, double prefill_ms);
  boost::asio::awaitable<Result<std::uint64_t>> compose(Scope scope, Tokens prompt,
                                                        std::uint32_t slot, std::string name);
  boost::asio::awaitable<Result<std::uint64_t>> forget(std::optional<std::uint64_t> id);
  boost::asio::awaitable<Result<std::uint64_t>> forget(Scope scope, Tokens prompt,
                                                       std::uint64_t shared);
  /// Not waited for. A file that is not there may be one that the backend has yet to write, for a
  /// save that was given up: discard_again() tries those for ten minutes.
  void discard(std::string name);
  void discard_again();
  void discard_other_runs(std::string own);
  void maintain();

 private:
  template <class T, class Work>
  boost::asio::awaitable<Result<T>> run(Work work);

  struct Unwanted {
    std::string name;
    std::chrono::steady_clock::time_point since;
  };

  KvStore& store_;
  std::vector<Unwanted> unwanted_;  // touched on the thread only
  std::atomic<bool> has_unwanted_{false};
  boost::asio::thread_pool thread_{1};
};

}  // namespace toki::http
