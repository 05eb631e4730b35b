// Daemon: all of a tokid that serves: its listeners, its backends, and the server that it started
// itself; from the first look at the backends to the last save.
//
// Threads:   the executor's.
// Ownership: the context and the options must outlive it.
// Errors:    open() tells what cannot be used. Afterwards: the log, and exit_code().
#pragma once

#include <toki/http/task_group.hpp>
#include <toki/result.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gate.hpp"
#include "options.hpp"
#include "recorder.hpp"
#include "server.hpp"
#include "server_command.hpp"
#include "services.hpp"
#include "supervisor.hpp"

namespace tokid {

class Daemon {
 public:
  Daemon(boost::asio::io_context& io, const Options& options);

  /// Opens what is kept, listens, and starts the server behind `--`, if there is one (else null).
  /// Connections wait until run().
  toki::Status open(const ServerCommand* command);
  /// What is listened on, as people write it; and the backends.
  const std::vector<std::string>& places() const noexcept { return places_; }
  std::vector<std::string> backends() const;

  /// Serves until SIGINT or SIGTERM, in the context's run(). `reread`: the settings as they are now,
  /// for SIGHUP; `settings`: as they were at the start.
  void run(std::function<Parsed()> reread, std::string settings);
  /// 0; or that of a server behind `--` which never served.
  int exit_code() const noexcept { return exit_code_; }

 private:
  toki::Status open_recorder();
  toki::Status listen();
  toki::Status start_child(const ServerCommand& command);
  void use_keys(const Options& now);
  void reload(const Options& now);
  boost::asio::awaitable<void> start_serving();
  boost::asio::awaitable<void> supervise();
  boost::asio::awaitable<void> reload_on_signal(std::function<Parsed()> reread,
                                                std::string settings);
  boost::asio::awaitable<void> stop_on_signal();
  boost::asio::awaitable<bool> wind_down();

  boost::asio::io_context& io_;
  const Options& options_;
  std::optional<Recorder> recorder_;
  Services services_;
  Gate gate_;
  Server server_;
  std::vector<std::string> places_;
  std::unique_ptr<Supervisor> child_;
  boost::asio::signal_set ending_;  // cancelled: the child is given up
  int exit_code_ = 0;
  toki::http::TaskGroup tasks_;
};

}  // namespace tokid
