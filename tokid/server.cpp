#include "server.hpp"

#include <toki/http/generation_request.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "query.hpp"
#include "request_check.hpp"
#include "routes.hpp"

namespace tokid {

namespace asio = boost::asio;
namespace beast = boost::beast;
using beast::http::field;
using toki::http::AnswerWriter;
using toki::http::HttpError;
using toki::http::Millis;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kMostSurplus = 32;             // connections that wait to be refused
constexpr std::chrono::seconds kIdleLimit{75};       // between requests, and for a header
constexpr std::chrono::seconds kHandshakeLimit{10};  // of TLS
constexpr Millis kFirstRequestLimit{500};  // of a new connection, when no more are accepted
constexpr std::uint32_t kHeaderLimit = 64 * 1024;
constexpr std::size_t kBufferLimit =
    std::size_t{192} * 1024;  // also for a chunk's extensions, and trailers

using Parser = beast::http::request_parser<beast::http::string_body>;

// Nobody needs long ones, and each is held whole.
void limit_extension(std::uint64_t /*size*/, beast::string_view extension, beast::error_code& ec) {
  if (extension.size() > toki::http::kMostChunkExtension) {
    ec = beast::http::error::bad_chunk_extension;
  }
}

// What to tell a client whose request could not be read; nothing when it just left.
std::optional<HttpError> refusal(const beast::error_code& ec, std::size_t max_body) {
  HttpError error{.status = 400, .type = "invalid_request_error", .message = {}};
  if (ec == beast::http::error::body_limit) {
    error.status = 413;
    error.message =
        fmt::format("the body is larger than the limit of {} bytes (--max-body-mib)", max_body);
  } else if (ec == beast::http::error::header_limit || ec == beast::http::error::buffer_overflow) {
    error.status = 431;
    error.message = fmt::format("the header is larger than {} bytes", kHeaderLimit);
  } else if (ec == beast::error::timeout) {
    error.status = 408;
    error.message = "the request comes too slowly";
  } else if (ec == beast::http::error::partial_message ||
             ec.category() !=
                 beast::http::make_error_code(beast::http::error::bad_method).category() ||
             ec == beast::http::error::end_of_stream) {
    return std::nullopt;
  } else {
    error.message = "this is no HTTP/1.1 request: " + ec.message();
  }
  return error;
}

}  // namespace

struct Server::Session {
  Session(std::list<Session*>& all, toki::http::Stream::Socket socket,
          asio::cancellation_signal& serving)
      : sessions(all), stream(std::move(socket)), watch(stream, serving) {
    place = sessions.insert(sessions.end(), this);
    beast::error_code ec;
    local = stream.socket().local_endpoint(ec).protocol().family() == AF_UNIX;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { sessions.erase(place); }

  std::list<Session*>& sessions;
  std::list<Session*>::iterator place;
  toki::http::Stream stream;
  toki::http::ClientWatch watch;
  beast::flat_buffer buffer{kBufferLimit};
  std::optional<Parser> parser;  // of the request that is served
  bool busy = false;
  bool asked = false;      // a request has come, so the client knows that it may be the last
  bool local = false;      // over a Unix socket
  bool let_in = false;     // the gate has let a request of it in
  bool surplus = false;    // there were too many when it came
  bool ended = false;      // for the sake of another
  bool preflight = false;  // the request is only a browser's question
};

Server::Server(asio::any_io_executor executor, Services& services, Gate& gate, ServerLimits limits)
    : executor_(std::move(executor)),
      services_(services),
      gate_(gate),
      limits_(limits),
      tasks_(executor_) {}

toki::Result<ListenAddress> Server::listen(const ListenAddress& address) {
  Listener& listener = listeners_.emplace_back(executor_);
  if (auto status = listener.open(address); !status) {
    listeners_.pop_back();
    return std::move(status).error();
  }
  return listener.address();
}

void Server::start() {
  for (Listener& listener : listeners_) {
    tasks_.spawn(accept(listener));
  }
}

asio::awaitable<void> Server::accept(Listener& listener) {
  const bool local = !listener.address().path.empty();
  for (;;) {
    auto [ec, socket] = co_await listener.acceptor().async_accept(kAsTuple);
    if (!ec) {
      begin(std::move(socket), local);
    }
    if (draining_ || ec == asio::error::operation_aborted) {
      co_return;
    }
    if (ec) {  // out of descriptors, mostly: wait for some to come back
      asio::steady_timer pause(executor_, Millis(50));
      (void)co_await pause.async_wait(kAsTuple);
    }
  }
}

void Server::begin(toki::http::Stream::Socket socket, bool local) {
  tasks_.spawn_with([&](asio::cancellation_signal& serving) {
    return serve(std::move(socket), local ? toki::http::TlsContext() : tls_, serving);
  });
}

// Closing a listener resets the connections that wait in it, whose clients may have sent a request.
void Server::take_waiting(Listener& listener) {
  beast::error_code ec;
  listener.acceptor().non_blocking(true, ec);
  while (!ec) {
    toki::http::Stream::Socket socket(executor_);
    listener.acceptor().accept(socket, ec);
    if (!ec) {
      begin(std::move(socket), !listener.address().path.empty());
    }
  }
}

// Clients forget the s of https.
asio::awaitable<bool> Server::begin_tls(Session& session, const toki::http::TlsContext& tls) {
  session.stream.expires_after(kHandshakeLimit);
  const toki::Status status = co_await session.stream.accept_tls(tls);
  if (!status && status.error().code == toki::Errc::invalid_argument) {
    AnswerWriter answer(session.stream, false, false, false);
    const HttpError plain{.status = 400,
                          .type = "invalid_request_error",
                          .message = "this port speaks TLS: the URL begins with https://"};
    co_await answer.error(plain);
  }
  co_return status.has_value();
}

// Whoever only holds connections must not keep out those who have a key: the oldest one that is idle and
// was never let in goes. False: there is none; of those that wait to be refused only some may.
bool Server::make_room(const Session& newcomer) {
  const auto end_first = [&](bool surplus) {
    const auto idle = std::find_if(sessions_.begin(), sessions_.end(), [&](const Session* session) {
      return session != &newcomer && !session->busy && !session->let_in && !session->ended &&
             session->surplus == surplus;
    });
    if (idle == sessions_.end()) {
      return false;
    }
    (*idle)->ended = true;
    (*idle)->stream.cancel();
    return true;
  };
  if (end_first(false)) {
    return true;
  }
  if (sessions_.size() > limits_.max_connections + kMostSurplus) {
    end_first(true);
  }
  return false;
}

asio::awaitable<void> Server::serve(toki::http::Stream::Socket socket, toki::http::TlsContext tls,
                                    asio::cancellation_signal& serving) {
  Session session(sessions_, std::move(socket), serving);
  session.surplus = sessions_.size() > limits_.max_connections && !make_room(session);
  try {
    bool goes_on = true;
    if (tls) {
      goes_on = co_await begin_tls(session, tls);
    }
    while (goes_on && !(draining_ && session.asked)) {
      goes_on = co_await one_request(session);
    }
  } catch (const boost::system::system_error&) {
    // The client is gone or does not read: nobody is left to be told.
  } catch (const std::exception& error) {
    spdlog::error("a connection ended by a fault of ours: {}", error.what());
  }
  if (session.watch.left()) {
    co_return;
  }
  // Let a refusal reach a client that still sends: close our side first and read what is on the
  // way, within limits.
  session.stream.end_sending();
  beast::error_code ec;
  std::array<char, 16384> rest{};
  session.stream.expires_after(std::chrono::seconds(1));
  for (int i = 0; i < 64 && !ec && !draining_; ++i) {
    const auto read = co_await session.stream.read_some(asio::buffer(rest));
    ec = read.ec;
  }
}

namespace {

// What those are told of /toki/health, /toki/live and /toki/ready who may not see more.
Page in_short(const Service& service, std::string_view target, Page page) {
  const std::string_view path = target.substr(0, target.find('?'));
  if (path == "/toki/health") {
    return health_in_short(service.monitor);
  }
  if (page.status != 200) {
    page.body = "{\"ready\":false}\n";
  }
  return page;
}

}  // namespace

Page Server::page_of(Service& service, const toki::http::ClientRequest& request, bool only) const {
  auto pages = services_.pages();
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    chosen = services_.all()[i].get() == &service ? i : chosen;
    pages[i].stats = [this, of = std::move(pages[i].stats)] {
      toki::Stats all = of();
      all.connections = sessions_.size();
      gate_.add_to(all);
      return all;
    };
  }
  return own_page(request.method, request.target, pages, chosen, only);
}

asio::awaitable<void> Server::answer_request(Session& session,
                                             const toki::http::ClientRequest& request,
                                             const Gate::Visit& visit, AnswerWriter& answer) {
  const auto chosen = services_.choose(request);
  if (const auto* unknown = std::get_if<HttpError>(&chosen)) {
    co_await answer.error(*unknown);
    co_return;
  }
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const std::string path =
      services_.named() && reads ? toki::http::decoded_path(request.target) : std::string();
  if (path == "/v1/models" || path == "/models") {
    const auto key = request.fields->find(field::authorization);
    const Page page = co_await services_.models(key == request.fields->end() ? std::string_view()
                                                                             : view(key->value()));
    co_await answer.whole(page.status, page.content_type, page.body);
    co_return;
  }
  co_await serve_by(*std::get<Service*>(chosen), session, request, visit, answer);
}

asio::awaitable<void> Server::serve_by(Service& service, Session& session,
                                       const toki::http::ClientRequest& given,
                                       const Gate::Visit& visit, AnswerWriter& answer) {
  toki::http::ClientRequest request = given;
  const OwnCall call = own_call(request.method, request.target);
  const bool only = call != OwnCall::none && !query_text(request.target, "backend").empty();
  const std::string target = only ? without_field(request.target, "backend") : std::string();
  request.target = only ? std::string_view(target) : request.target;
  std::optional<Page> page;
  switch (call) {
    case OwnCall::none: co_await service.proxy.serve(request, answer, session.watch); break;
    case OwnCall::lookup: co_await service.proxy.lookup(request, answer, session.watch); break;
    case OwnCall::pins: co_await service.proxy.pins(request, answer, session.watch); break;
    case OwnCall::flush: page = co_await service.operations.flush(request.target); break;
    case OwnCall::forget: page = co_await service.operations.forget(request.target); break;
    case OwnCall::page:
      page = visit.trusted ? page_of(service, request, only)
                           : in_short(service, request.target, page_of(service, request, only));
      break;
  }
  if (page) {
    answer.headers = page->headers;
    co_await answer.whole(page->status, page->content_type, page->body);
  }
}

// Also of a head that could not be read to its end: its client may be a page that wants to know why.
std::optional<HttpError> Server::check_head(Session& session, const beast::error_code& ec,
                                            AnswerWriter& answer) const {
  const RequestHead& head = session.parser->get();
  Cors::Verdict verdict = cors_.look(head);
  answer.standing_headers = std::move(verdict.headers);
  session.preflight = verdict.preflight;
  if (ec) {
    return refusal(ec, limits_.max_body);
  }
  if (auto refused = refuse_head(head)) {
    return refused;
  }
  if (verdict.refused) {
    return verdict.refused;
  }
  if (session.surplus && sessions_.size() > limits_.max_connections) {
    return HttpError{.status = 503,
                     .type = "unavailable_error",
                     .message = "too many connections (--max-connections)",
                     .offset = {},
                     .retry_after = 1};
  }
  return refuse_coding(head);
}

// What of the request did not come with its head: the body, for which some clients wait to be asked.
asio::awaitable<beast::error_code> Server::read_body(Session& session) {
  Parser& parser = *session.parser;
  const auto& head = parser.get();
  if (head.version() != 10 && head.find(field::expect) != head.end()) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    const std::array<asio::const_buffer, 1> pieces{asio::buffer(kContinue)};
    if (const auto ec = session.stream.try_write(pieces).ec) {
      co_return ec;
    }
  }
  const auto begun = std::chrono::steady_clock::now();
  std::size_t received = 0;
  while (!parser.is_done()) {
    const auto elapsed = std::chrono::steady_clock::now() - begun;
    const auto limit = patience(std::chrono::duration_cast<Millis>(elapsed), received);
    if (!limit) {
      co_return beast::error_code(beast::error::timeout);
    }
    session.stream.expires_after(*limit);
    const auto read = co_await toki::http::read_some<true>(session.stream, session.buffer, parser);
    received += read.bytes;
    if (read.ec) {
      co_return read.ec;
    }
  }
  co_return beast::error_code();
}

// Whether the gate lets it in, as whose. The gate's keys are not the backend's to see.
Gate::Visit Server::enter(Session& session, std::string_view target, AnswerWriter& answer) {
  auto& head = session.parser->get();
  Gate::Visit visit = gate_.enter({.method = view(head.method_string()),
                                   .target = target,
                                   .fields = &head,
                                   .http10 = head.version() == 10,
                                   .local = session.local});
  answer.headers = visit.headers;
  if (visit.ours) {
    head.erase(field::authorization);
    head.erase("x-api-key");
  }
  return visit;
}

asio::awaitable<bool> Server::one_request(Session& session) {
  toki::http::Stream& stream = session.stream;
  Parser& parser = session.parser.emplace();
  parser.header_limit(kHeaderLimit);
  parser.body_limit(limits_.max_body);
  parser.on_chunk_header(limit_extension);
  session.busy = false;
  stream.expires_after(kIdleLimit);
  const auto header = co_await toki::http::read_header<true>(stream, session.buffer, parser);
  beast::error_code ec = header.ec;
  session.busy = session.asked = true;
  if (ec == beast::error::timeout && !parser.got_some()) {
    co_return false;
  }
  const auto& head = parser.get();
  AnswerWriter answer(stream, head.version() == 10, !ec && parser.keep_alive() && !draining_,
                      head.method() == beast::http::verb::head);
  std::optional<HttpError> refused = check_head(session, ec, answer);
  const std::string id = ids_.id_of(head);
  answer.standing_headers.append("x-request-id: ").append(id).append("\r\n");
  const auto meant =
      ec || refused ? std::nullopt : usual_target(view(head.method_string()), view(head.target()));
  const std::string_view target = meant ? std::string_view(*meant) : view(head.target());
  answer.error_form = toki::http::error_form_of(target);
  Gate::Visit visit;
  if (!ec && !refused && !session.preflight) {
    visit = enter(session, target, answer);
    refused = visit.refused;
    session.let_in = session.let_in || !refused;
  }
  // Trailers would come to stand among the header fields; they are dropped.
  const beast::http::fields fields =
      parser.chunked() ? beast::http::fields(head) : beast::http::fields();
  if (!ec && !refused && !parser.is_done()) {
    ec = co_await read_body(session);
    refused = ec ? refusal(ec, limits_.max_body) : std::nullopt;
  }
  stream.expires_never();
  if (refused) {
    answer.close_after();
    co_await answer.error(*refused);
    co_return false;
  }
  if (ec) {
    co_return false;
  }
  const toki::http::ClientRequest request{
      .method = view(head.method_string()),
      .target = target,
      .fields = parser.chunked() ? &fields : &head,
      .body = head.body(),
      .has_body = parser.chunked() || parser.content_length().has_value(),
      .id = id,
      .tenant = visit.scope,
      .client = visit.client};
  if (session.preflight) {
    co_await answer.head(204, toki::http::reason_phrase(204), {}, std::nullopt, true);
    co_await answer.end();
  } else {
    co_await answer_request(session, request, visit, answer);
  }
  if (answer.broken_off()) {
    // Not even a client that reads up to the end of the connection may take it as whole.
    stream.socket().set_option(asio::socket_base::linger(true, 0), ec);
    stream.close();
  }
  co_return answer.reusable() && !draining_;
}

asio::awaitable<bool> Server::drain(Millis limit) {
  draining_ = true;
  for (Listener& listener : listeners_) {
    take_waiting(listener);
    listener.close();
  }
  const auto close_idle = [this](bool new_ones) {
    for (Session* session : sessions_) {
      if (!session->busy && (session->asked || new_ones)) {
        session->stream.cancel();
      }
    }
  };
  close_idle(false);
  asio::steady_timer pause(executor_);
  const auto begun = std::chrono::steady_clock::now();
  for (auto now = begun; tasks_.size() > 0 && now < begun + limit;
       now = std::chrono::steady_clock::now()) {
    if (now > begun + kFirstRequestLimit) {
      close_idle(true);
    }
    pause.expires_after(Millis(10));
    (void)co_await pause.async_wait(kAsTuple);
  }
  co_return co_await tasks_.stop(Millis(500));
}

}  // namespace tokid
