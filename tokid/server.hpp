// Connections in, requests to the proxy or to tokid's own pages.
#pragma once

#include <toki/http/proxy.hpp>
#include <toki/http/task_group.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <list>
#include <optional>
#include <string_view>
#include <utility>

#include "cors.hpp"
#include "gate.hpp"
#include "listener.hpp"
#include "request_ids.hpp"
#include "services.hpp"

namespace tokid {

struct ServerLimits {
  std::size_t max_body = std::size_t{64} << 20;
  std::size_t max_connections = 1024;
};

class Server {
 public:
  Server(boost::asio::any_io_executor executor, Services& services, Gate& gate,
         ServerLimits limits);

  /// For requests that come from now on.
  void set_limits(const ServerLimits& limits) { limits_ = limits; }

  /// For requests that come from now on: which pages of other origins may use it.
  void set_cors(Cors cors) { cors_ = std::move(cors); }
  /// For connections over TCP that come from now on; none: they are in plain.
  void set_tls(toki::http::TlsContext tls) { tls_ = std::move(tls); }

  /// What is listened on now, with the port that was taken.
  toki::Result<ListenAddress> listen(const ListenAddress& address);
  /// Accepts connections on all of it.
  void start();
  /// No new connections; idle ones are closed, running answers get `limit`, then all are ended.
  /// False when some are left even then.
  boost::asio::awaitable<bool> drain(toki::http::Millis limit);

 private:
  struct Session;
  boost::asio::awaitable<void> accept(Listener& listener);
  void begin(toki::http::Stream::Socket socket, bool local);
  void take_waiting(Listener& listener);
  bool make_room(const Session& newcomer);
  boost::asio::awaitable<void> serve(toki::http::Stream::Socket socket, toki::http::TlsContext tls,
                                     boost::asio::cancellation_signal& serving);
  boost::asio::awaitable<bool> begin_tls(Session& session, const toki::http::TlsContext& tls);
  boost::asio::awaitable<bool> one_request(Session& session);
  Gate::Visit enter(Session& session, std::string_view target, toki::http::AnswerWriter& answer);
  std::optional<toki::http::HttpError> check_head(Session& session,
                                                  const boost::beast::error_code& ec,
                                                  toki::http::AnswerWriter& answer) const;
  boost::asio::awaitable<boost::beast::error_code> read_body(Session& session);
  boost::asio::awaitable<void> answer_request(Session& session,
                                              const toki::http::ClientRequest& request,
                                              const Gate::Visit& visit,
                                              toki::http::AnswerWriter& answer);
  boost::asio::awaitable<void> serve_by(Service& service, Session& session,
                                        const toki::http::ClientRequest& request,
                                        const Gate::Visit& visit, toki::http::AnswerWriter& answer);
  Page page_of(Service& service, const toki::http::ClientRequest& request, bool only) const;

  boost::asio::any_io_executor executor_;
  std::list<Listener> listeners_;
  toki::http::TlsContext tls_;
  Cors cors_;
  Services& services_;
  Gate& gate_;
  ServerLimits limits_;
  RequestIds ids_;
  std::list<Session*> sessions_;
  toki::http::TaskGroup tasks_;
  bool draining_ = false;
};

}  // namespace tokid
