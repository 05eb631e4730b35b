// The listener: connections in, requests to the proxy or to tokid's own pages.
#pragma once

#include <toki/http/proxy.hpp>
#include <toki/http/task_group.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>

#include "request_ids.hpp"
#include "services.hpp"

namespace tokid {

struct ServerLimits {
  std::size_t max_body = std::size_t{64} << 20;
  std::size_t max_connections = 1024;
};

class Server {
 public:
  Server(boost::asio::any_io_executor executor, Services& services, ServerLimits limits);

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
                                              toki::http::AnswerWriter& answer);
  boost::asio::awaitable<void> serve_by(Service& service, Session& session,
                                        const toki::http::ClientRequest& request,
                                        toki::http::AnswerWriter& answer);
  Page page_of(Service& service, const toki::http::ClientRequest& request, bool only) const;

  boost::asio::ip::tcp::acceptor acceptor_;
  Services& services_;
  ServerLimits limits_;
  RequestIds ids_;
  std::list<Session*> sessions_;
  toki::http::TaskGroup tasks_;
  bool draining_ = false;
};

}  // namespace tokid
