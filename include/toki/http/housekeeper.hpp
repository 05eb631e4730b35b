// Housekeeper: what is done while nothing else is to be done: pins are put into slots, slots whose
// content is worth it are saved, and the store looks after its files.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: everything given must outlive it. `store`: null where nothing is kept.
// Errors:    none; a save that fails is counted by the engine.
// Cost:      a look every quarter of a second; one pin or save at a time, begun only when no request
//            has run for half a second. A pin's prefill takes one slot, in calls of some ten seconds.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/log.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>

namespace toki::http {

class TOKI_EXPORT Housekeeper {
 public:
  Housekeeper(const boost::asio::any_io_executor& executor, Engine& engine,
              LlamaServerBackend& backend, StoreWorker* store, LogSink log);

  /// Runs until it is cancelled.
  boost::asio::awaitable<void> run();
  /// Saves every idle slot that is worth it, at most for `limit`; how many were saved.
  boost::asio::awaitable<std::size_t> flush(Millis limit);

 private:
  boost::asio::awaitable<bool> do_one(bool while_busy);
  void watch();

  Engine& engine_;
  LlamaServerBackend& backend_;
  StoreWorker* store_;
  LogSink log_;
  bool saves_ = false;  // as it was last said in the log
  boost::asio::steady_timer timer_;
};

}  // namespace toki::http
