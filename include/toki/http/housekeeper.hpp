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
#include <cstdint>
#include <vector>

namespace toki::http {

/// What a flush did.
struct Flushed {
  std::size_t saved = 0;               ///< states
  std::vector<std::uint32_t> unsaved;  ///< slots that stayed busy, or could not be saved
};

/// Does the engine's chores (pins, saves, erasing) when no request has run for half a second.
class TOKI_EXPORT Housekeeper {
 public:
  /// `store`: null where none is used. All that is passed by reference must outlive it.
  Housekeeper(const boost::asio::any_io_executor& executor, Engine& engine,
              LlamaServerBackend& backend, StoreWorker* store, LogSink log);

  /// Runs until it is cancelled.
  boost::asio::awaitable<void> run();
  /// Saves every slot that is worth it, busy ones when they are idle, at most for `limit` and one
  /// save more.
  boost::asio::awaitable<Flushed> flush(Millis limit);

 private:
  enum class Chore : std::uint8_t { none, failed, done };
  boost::asio::awaitable<Chore> do_one(bool while_busy);
  void watch();

  Engine& engine_;
  LlamaServerBackend& backend_;
  StoreWorker* store_;
  LogSink log_;
  bool saves_ = false;  // as it was last said in the log
  boost::asio::steady_timer timer_;
};

}  // namespace toki::http
