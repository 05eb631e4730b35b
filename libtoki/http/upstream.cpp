#include <toki/http/upstream.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sys/un.h>

namespace toki::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

// Open, and with nothing to read: neither closed by the server nor holding bytes of an old answer.
bool clean(Connection& connection) {
  return connection.buffer.size() == 0 && connection.stream.quiet();
}

std::vector<asio::const_buffer> buffers(std::string_view head,
                                        std::span<const std::string_view> body) {
  std::vector<asio::const_buffer> result{asio::buffer(head)};
  for (const std::string_view piece : body) {
    result.push_back(asio::buffer(piece));
  }
  return result;
}

// Whoever waited has given up: that says nothing of the server.
Error cancelled() {
  return {Errc::cancelled, "the call was given up"};
}

}  // namespace

std::string Address::authority() const {
  if (!path.empty()) {
    return "localhost";
  }
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string Address::name() const {
  return path.empty() ? authority() : "unix:" + path;
}

namespace {

constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";
constexpr std::string_view kUnix = "unix:";

}  // namespace

Result<Address> parse_url(std::string_view url) {
  const auto bad = [&](std::string_view why) {
    return Error{Errc::invalid_argument,
                 fmt::format("'{}' is no http://HOST[:PORT], https://HOST[:PORT] or unix:/PATH: {}",
                             url, why)};
  };
  if (url.starts_with(kUnix)) {
    const std::string_view path = url.substr(kUnix.size());
    return !path.starts_with('/') ? Result<Address>(bad("the path must be absolute"))
           : path.size() >= sizeof(sockaddr_un::sun_path)
               ? bad("the path is too long")
               : Result(Address{.path = std::string(path)});
  }
  const bool tls = url.starts_with(kHttps);
  if (!tls && !url.starts_with(kHttp)) {
    return bad("it must start with http://, https:// or unix:/");
  }
  std::string_view rest = url.substr(tls ? kHttps.size() : kHttp.size());
  if (rest.ends_with('/')) {
    rest.remove_suffix(1);
  }
  if (rest.find_first_of("/?#@ ") != std::string_view::npos) {
    return bad("a path, query or user is not supported");
  }
  Address address{.host = {}, .port = tls ? "443" : "80", .path = {}, .tls = tls};
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) {
      return bad("the bracket is not closed");
    }
    address.host = rest.substr(1, close - 1);
    error_code wrong;
    asio::ip::make_address_v6(address.host, wrong);
    if (wrong) {
      return bad("what stands in brackets is no IPv6 address");
    }
    port = rest.substr(close + 1);
  } else {
    const auto colon = std::min(rest.find(':'), rest.size());
    address.host = rest.substr(0, colon);
    port = rest.substr(colon);
  }
  if (address.host.empty()) {
    return bad("the host is empty");
  }
  if (!port.empty()) {
    unsigned number = 0;
    const auto [end, ec] = std::from_chars(port.data() + 1, port.data() + port.size(), number);
    if (port[0] != ':' || ec != std::errc{} || end != port.data() + port.size() || number == 0 ||
        number > 65535) {
      return bad("the port is not a number from 1 to 65535");
    }
    address.port = port.substr(1);
  }
  return address;
}

Upstream::Upstream(asio::any_io_executor executor, Address address, std::string key, TlsContext tls)
    : executor_(std::move(executor)), address_(std::move(address)), tls_(std::move(tls)) {
  if (!key.empty()) {
    authorization_ = "Bearer " + key;
  }
}

// A kept connection that is open and clean. One that the server closed early makes us suspicious;
// an old one is just dropped.
std::unique_ptr<Connection> Upstream::take_idle() {
  while (!idle_.empty()) {
    auto connection = std::move(idle_.back());
    idle_.pop_back();
    if (std::chrono::steady_clock::now() - connection->idle_since > kMaxIdleAge) {
      suspicion_ = true;  // too old to tell whether the server is still the same
      continue;
    }
    if (clean(*connection)) {
      connection->reused = true;
      return connection;
    }
    suspicion_ = true;
  }
  return nullptr;
}

namespace {

// A name that is looked up. Nothing ends that early: where it takes too long its end is not waited for.
struct Lookup {
  explicit Lookup(const asio::any_io_executor& executor, Millis limit)
      : resolver(executor), done(executor, limit) {}
  tcp::resolver resolver;
  asio::steady_timer done;
  error_code ec = asio::error::timed_out;
  tcp::resolver::results_type found;
};

}  // namespace

asio::awaitable<Result<std::vector<Stream::Endpoint>>> Upstream::endpoints(Millis limit) {
  std::vector<Stream::Endpoint> all;
  error_code failure;
  if (!address_.path.empty()) {
    all.emplace_back(asio::local::stream_protocol::endpoint(address_.path));
    co_return all;
  }
  const auto literal = asio::ip::make_address(address_.host, failure);
  if (!failure) {
    const auto port = static_cast<unsigned short>(std::stoi(address_.port));
    all.emplace_back(tcp::endpoint(literal, port));
    co_return all;
  }
  const auto lookup = std::make_shared<Lookup>(executor_, limit);
  lookup->resolver.async_resolve(
      address_.host, address_.port,
      [lookup](const error_code& ec, tcp::resolver::results_type results) {
        lookup->ec = ec;
        lookup->found = std::move(results);
        lookup->done.cancel();
      });
  (void)co_await lookup->done.async_wait(kAsTuple);
  if (lookup->ec) {
    co_return Error{Errc::unavailable,
                    fmt::format("cannot resolve {}: {}", address_.host, lookup->ec.message())};
  }
  for (const auto& entry : lookup->found) {
    all.emplace_back(entry.endpoint());
  }
  co_return all;
}

asio::awaitable<Status> Upstream::encrypt(Stream& stream) {
  if (!tls_) {
    auto system = TlsContext::client({});
    if (!system) {
      co_return std::move(system).error();
    }
    tls_ = std::move(*system);
  }
  auto status = co_await stream.begin_tls(tls_, address_.host);
  tls_failure_.clear();
  if (!status) {
    tls_failure_ =
        fmt::format("cannot speak TLS with {}: {}", address_.name(), status.error().detail);
    Error error{Errc::unavailable, tls_failure_};
    co_return error;
  }
  co_return status;
}

asio::awaitable<Result<std::unique_ptr<Connection>>> Upstream::connect(Millis limit) {
  auto connection = std::make_unique<Connection>(executor_);
  connection->counted = counter_;
  limit = std::min(limit, kConnectLimit);
  connection->stream.expires_after(limit);
  auto found = co_await endpoints(limit);
  if (!found) {
    co_return std::move(found).error();
  }
  const error_code ec = co_await connection->stream.connect(*found);
  if (ec) {
    co_return Error{Errc::unavailable,
                    fmt::format("cannot connect to {}: {}", address_.name(), ec.message())};
  }
  if (address_.tls) {
    auto status = co_await encrypt(connection->stream);
    if (!status) {
      co_return std::move(status).error();
    }
  }
  co_return connection;
}

void Upstream::give_back(std::unique_ptr<Connection> connection) {
  if (!keeps_ || idle_.size() >= kMaxBurst || connection->buffer.size() != 0 || connection->cut) {
    return;
  }
  connection->stream.expires_never();
  connection->idle_since = std::chrono::steady_clock::now();
  idle_.push_back(std::move(connection));
  if (idle_.size() > kMaxIdle && trimming_ == nullptr) {
    trim_later();
  }
}

std::size_t Upstream::in_use() const noexcept {
  return static_cast<std::size_t>(counter_.use_count()) - 1 - idle_.size();
}

void Upstream::keep_none() {
  keeps_ = false;
  idle_.clear();
  trimming_.reset();
}

void Upstream::trim_later() {
  trimming_ = std::make_shared<asio::steady_timer>(executor_, kBurstAge);
  trimming_->async_wait([this, weak = std::weak_ptr(trimming_)](const error_code&) {
    if (weak.lock()) {  // else we are gone
      trimming_.reset();
      trim();
    }
  });
}

void Upstream::trim() {
  const auto fresh = std::chrono::steady_clock::now() - kBurstAge;
  while (idle_.size() > kMaxIdle && idle_.front()->idle_since < fresh) {
    idle_.erase(idle_.begin());
  }
  if (idle_.size() > kMaxIdle) {
    trim_later();
  }
}

// Whatever ends the server ends all connections, so the latest used two tell.
bool Upstream::take_suspicion() {
  std::vector<std::unique_ptr<Connection>> open;
  while (open.size() < kMaxIdle) {
    auto connection = take_idle();
    if (connection == nullptr) {
      break;
    }
    open.insert(open.begin(), std::move(connection));
  }
  std::move(open.begin(), open.end(), std::back_inserter(idle_));
  return std::exchange(suspicion_, false);
}

asio::awaitable<Result<std::unique_ptr<Connection>>> Upstream::send(
    std::string_view head, std::span<const std::string_view> body, bool fresh, Millis limit) {
  for (;; fresh = true) {
    Result<std::unique_ptr<Connection>> connection = fresh ? nullptr : take_idle();
    if (*connection == nullptr) {
      connection = co_await connect(limit);
    }
    if (!connection) {
      co_return connection;
    }
    Stream& stream = (*connection)->stream;
    const auto pieces = buffers(head, body);
    Moved moved = stream.try_write(pieces);
    if (moved.ec == asio::error::would_block) {
      moved = co_await stream.write_request(pieces, moved.bytes, limit);
    }
    const auto [ec, sent] = moved;
    (*connection)->cut = sent < asio::buffer_size(pieces);
    if (ec == beast::error::timeout) {
      co_return Error{Errc::timed_out, fmt::format("{} takes no more of the request for {} ms",
                                                   address_.name(), limit.count())};
    }
    if (!ec || sent > 0) {
      // After a write error the server may still have answered (for example 413) before it closed:
      // let the caller read.
      co_return connection;
    }
    if (ec == asio::error::operation_aborted) {
      co_return cancelled();
    }
    if (!(*connection)->reused) {
      co_return Error{Errc::unavailable,
                      fmt::format("cannot send to {}: {}", address_.name(), ec.message())};
    }
    suspicion_ = true;
  }
}

asio::awaitable<Result<Reply>> Upstream::call(std::string_view method, std::string_view target,
                                              std::span<const std::string_view> body,
                                              std::string_view authorization, Millis limit) {
  const auto started = std::chrono::steady_clock::now();
  std::size_t length = 0;
  for (const std::string_view piece : body) {
    length += piece.size();
  }
  std::string head =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", method, target, address_.authority());
  if (!authorization_.empty() || !authorization.empty()) {
    head += fmt::format("Authorization: {}\r\n",
                        authorization_.empty() ? authorization : authorization_);
  }
  if (method != "GET") {
    head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", length);
  }
  head += "\r\n";
  const auto left = [&] {
    const auto spent = std::chrono::steady_clock::now() - started;
    return std::max(limit - std::chrono::duration_cast<Millis>(spent), Millis(1));
  };
  for (bool fresh = false;; fresh = true) {
    auto connection = co_await send(head, body, fresh, left());
    if (!connection) {
      co_return std::move(connection).error();
    }
    beast::http::response_parser<beast::http::string_body> parser;
    parser.body_limit(kMaxReplyBytes);
    (*connection)->stream.expires_after(left());
    const auto [ec, got] =
        co_await read_all<false>((*connection)->stream, (*connection)->buffer, parser);
    if (ec == beast::error::timeout) {
      co_return Error{Errc::timed_out,
                      fmt::format("{} {}: no answer within {} ms", method, target, limit.count())};
    }
    if (ec == asio::error::operation_aborted) {
      co_return cancelled();
    }
    if (ec && (*connection)->reused && got == 0) {
      suspicion_ = true;
      continue;
    }
    if (ec) {
      co_return Error{Errc::backend, fmt::format("{} {}: {}", method, target, ec.message())};
    }
    Reply reply{.status = parser.get().result_int(), .body = std::move(parser.get().body())};
    if (parser.keep_alive()) {
      give_back(std::move(*connection));
    }
    co_return reply;
  }
}

}  // namespace toki::http
