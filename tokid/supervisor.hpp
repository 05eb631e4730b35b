// Starts llama-server as a child, and starts it again when it dies.
#pragma once

#include <toki/http/upstream.hpp>
#include <toki/log.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tokid {

class Supervisor {
 public:
  /// Deaths of a program that never served, until it is given up.
  static constexpr int kTries = 3;

  /// `socket`: the Unix socket that it will listen on; empty: none. `served`: has it ever answered?
  Supervisor(boost::asio::any_io_executor executor, std::vector<std::string> words,
             std::string socket, std::function<bool()> served, toki::LogSink log);

  toki::Status start();
  /// Waits for the child and starts it again, 1 to 30 s after it died; until stop(), or until it died
  /// kTries times without having served once: then its exit status, 128 and more for a signal.
  boost::asio::awaitable<std::optional<int>> run();
  /// SIGTERM, and SIGKILL when it is still there after `limit`.
  boost::asio::awaitable<void> stop(toki::http::Millis limit);
  /// SIGKILL, without waiting.
  void kill() const;

 private:
  bool reap();

  std::vector<std::string> words_;
  std::string socket_;
  std::function<bool()> served_;
  toki::LogSink log_;
  boost::asio::signal_set child_ended_;
  boost::asio::steady_timer timer_;
  pid_t pid_ = 0;
  int status_ = 0;  // of the last one that died
  bool stopping_ = false;
};

}  // namespace tokid
