#include "http.hpp"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stop.hpp"

namespace replay {
namespace {

namespace http = boost::beast::http;
using toki::Errc;
using toki::Error;
using toki::Status;
using Parser = http::response_parser<http::string_body>;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Waits for `events` on the socket.
Status wait_for(int fd, short events, const Call& call) {
  std::array<pollfd, 2> entries{{{fd, events, 0}, {stop::fd(), POLLIN, 0}}};
  for (;;) {
    const int ready =
        ::poll(entries.data(), call.until_stop ? 2 : 1, static_cast<int>(call.silence.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (call.until_stop && stop::requested()) return Error{Errc::cancelled, "stopped"};
    if (ready == 0) {
      return Error{Errc::timed_out,
                   fmt::format("no byte within {} s", call.silence.count() / 1000)};
    }
    return toki::Done{};
  }
}

Status connect_to(const Socket& socket, const addrinfo& where, const Call& call) {
  if (::connect(socket.get(), where.ai_addr, where.ai_addrlen) == 0) return toki::Done{};
  if (errno != EINPROGRESS) return Error{Errc::unavailable, std::strerror(errno)};
  if (auto status = wait_for(socket.get(), POLLOUT, call); !status) return status;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Status(toki::Done{}) : Status(Error{Errc::unavailable, std::strerror(error)});
}

Status send_all(int fd, std::string_view bytes, const Call& call) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Error{Errc::unavailable, std::strerror(errno)};
    if (auto status = wait_for(fd, POLLOUT, call); !status) return status;
  }
  return toki::Done{};
}

// Feeds what came to the parser and hands on the body; what it wants again with more behind it, an
// unfinished line, stays in `bytes`.
Status feed(Parser& parser, std::string& bytes, Clock::time_point now, const Call& call,
            Reply& reply) {
  std::size_t used = 1;
  while (used > 0 && !bytes.empty() && !parser.is_done()) {
    boost::system::error_code ec;
    used = parser.put(boost::asio::buffer(bytes), ec);
    if (ec && ec != http::error::need_more) {
      return Error{Errc::backend, "no HTTP answer: " + ec.message()};
    }
    bytes.erase(0, used);
    if (parser.is_header_done() && reply.status == 0) {
      reply.status = parser.get().result_int();
      reply.source = std::string(parser.get()["x-toki-source"]);
    }
    std::string& body = parser.get().body();
    if (!body.empty() && call.on_piece && reply.status == 200) {
      call.on_piece(body, now);
    } else {
      reply.body += body;
    }
    body.clear();
  }
  return toki::Done{};
}

// Reads to the end of the answer.
toki::Result<Reply> receive(int fd, const Call& call) {
  Parser parser;
  parser.eager(true);
  parser.body_limit(boost::none);
  parser.header_limit(64 * 1024);
  Reply reply;
  std::string rest;
  std::array<char, 65536> piece;
  while (!parser.is_done()) {
    if (auto status = wait_for(fd, POLLIN, call); !status) return std::move(status).error();
    const ssize_t got = ::recv(fd, piece.data(), piece.size(), 0);
    const Clock::time_point now = Clock::now();
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) {
      boost::system::error_code ec;
      if (got == 0 && parser.is_header_done()) parser.put_eof(ec);
      if (got == 0 && parser.is_done() && !ec) break;
      return Error{Errc::unavailable,
                   reply.status == 0 ? "closed before an answer came" : "the answer broke off"};
    }
    rest.append(piece.data(), static_cast<std::size_t>(got));
    if (auto status = feed(parser, rest, now, call, reply); !status) {
      return std::move(status).error();
    }
  }
  return reply;
}

}  // namespace

toki::Result<Reply> call(const Address& address, const Call& call) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
      failed != 0) {
    return Error{Errc::unavailable, ::gai_strerror(failed)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  // "localhost" may be ::1 first while the server listens on 127.0.0.1 only.
  std::optional<Socket> socket;
  Status connected = Error{Errc::unavailable, "no address"};
  for (const addrinfo* where = found; where != nullptr && !connected; where = where->ai_next) {
    socket.emplace(::socket(where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    connected = connect_to(*socket, *where, call);
  }
  if (!connected) return std::move(connected).error();
  const int on = 1;
  ::setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::string request = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
                                    call.method, call.path, address.authority());
  if (call.method == "POST") {
    request +=
        fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  }
  request += "\r\n";
  request += call.body;
  if (auto status = send_all(socket->get(), request, call); !status) {
    return std::move(status).error();
  }
  return receive(socket->get(), call);
}

}  // namespace replay
