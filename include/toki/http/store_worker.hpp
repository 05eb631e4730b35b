// StoreWorker: a KvStore for coroutines. Its file work runs on one thread beside the executor's, so
// that no byte of an answer waits for a disk.
//
// Threads:   call it on the executor; coroutines resume there.
// Ownership: the KvStore must outlive it; it keeps copies of what it is given. Its destructor waits
//            for the work under way.
// Errors:    as the KvStore's.
// Cost:      one hop to the thread and one back, some us beside the file work.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/kv_store.hpp>
#include <toki/result.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace toki::http {

class TOKI_EXPORT StoreWorker {
 public:
  explicit StoreWorker(KvStore& store) : store_(store) {}

  boost::asio::awaitable<Result<Taken>> take(Scope scope, Tokens expected, std::string name,
                                             bool whole, double prefill_ms);
  boost::asio::awaitable<Result<std::uint64_t>> compose(Scope scope, Tokens prompt,
                                                        std::uint32_t slot, std::string name);
  boost::asio::awaitable<Result<std::uint64_t>> forget(std::optional<std::uint64_t> id);
  /// Takes what a step saved, without being waited for. `done` is called by another thread.
  void take_later(const Step& step, std::function<void(const Status&)> done);
  /// So much is to be taken that whoever brings more should wait.
  bool behind() const noexcept { return later_ >= kMostLater; }
  /// Everything that was asked for until now is done.
  boost::asio::awaitable<Status> settled();
  /// Not waited for.
  void discard(std::string name);
  void maintain();

 private:
  template <class T, class Work>
  boost::asio::awaitable<Result<T>> run(Work work);

  static constexpr int kMostLater = 4;

  KvStore& store_;
  std::atomic<int> later_{0};
  boost::asio::thread_pool thread_{1};
};

}  // namespace toki::http
