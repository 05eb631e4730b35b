// The listener: connections in, requests to the proxy or to tokid's own pages.
#pragma once

#include <toki/engine.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/proxy.hpp>
#include <toki/http/task_group.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include "gate.hpp"
#include "operations.hpp"

namespace tokid {

struct ServerLimits {
  std::size_t max_body = std::size_t{64} << 20;
  std::size_t max_connections = 1024;
};

class Server {
 public:
  Server(boost::asio::any_io_executor executor, toki::http::Proxy& proxy, toki::Engine& engine,
         Operations& operations, const toki::http::BackendMonitor& monitor, Gate& gate,
         ServerLimits limits, std::function<toki::Stats()> stats);

  /// For requests that come from now on.
  void set_limits(const ServerLimits& limits) { limits_ = limits; }

  toki::Result<std::uint16_t> listen(const std::string& host, std::uint16_t port);
  boost::asio::awaitable<void> accept();
  /// No new connections; idle ones are closed, running answers get `limit`, then all are ended.
  /// False when some are left even then.
  boost::asio::awaitable<bool> drain(toki::http::Millis limit);

 private:
  struct Session;
  boost::asio::awaitable<void> serve(boost::asio::ip::tcp::socket socket,
                                     boost::asio::cancellation_signal& serving);
  boost::asio::awaitable<bool> one_request(Session& session);
  boost::asio::awaitable<void> answer_request(Session& session,
                                              const toki::http::ClientRequest& request,
                                              const Gate::Visit& visit,
                                              toki::http::AnswerWriter& answer);

  boost::asio::ip::tcp::acceptor acceptor_;
  toki::http::Proxy& proxy_;
  toki::Engine& engine_;
  Operations& operations_;
  const toki::http::BackendMonitor& monitor_;
  Gate& gate_;
  ServerLimits limits_;
  std::function<toki::Stats()> stats_;
  std::list<Session*> sessions_;
  toki::http::TaskGroup tasks_;
  bool draining_ = false;
};

}  // namespace tokid
