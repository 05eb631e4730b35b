#include <toki/http/stream.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_suffix.hpp>
#include <boost/beast/http/error.hpp>

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <tuple>
#include <utility>

#include "http/tls_layer.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using beast::error_code;
using Time = std::chrono::steady_clock::time_point;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kLeastRead = std::size_t{8} * 1024;
constexpr std::size_t kMostChunkLine = kMostChunkExtension + 64;  // with its size
constexpr std::size_t kMostRead = std::size_t{64} * 1024;

}  // namespace

struct Stream::State {
  explicit State(Socket s) : socket(std::move(s)), timer(socket.get_executor()) {}

  Socket socket;
  std::unique_ptr<TlsLayer> tls;
  asio::steady_timer timer;
  Time deadline = Time::max();
  Time rings = Time::max();  // when the timer does
  bool expired = false;

  static void set(const std::shared_ptr<State>& state);
  void ring(const std::shared_ptr<State>& self);
};

void Stream::State::set(const std::shared_ptr<State>& state) {
  state->rings = state->deadline;
  state->timer.expires_at(state->rings);
  state->timer.async_wait([weak = std::weak_ptr(state)](const error_code& ec) {
    if (ec) {
      return;  // set anew, or gone
    }
    if (const auto alive = weak.lock()) {
      alive->ring(alive);
    }
  });
}

void Stream::State::ring(const std::shared_ptr<State>& self) {
  rings = Time::max();
  if (deadline == Time::max()) {
    return;
  }
  if (std::chrono::steady_clock::now() < deadline) {
    set(self);
    return;
  }
  expired = true;
  error_code ignored;
  socket.cancel(ignored);
}

namespace {

// Unix sockets know no delay, which is no fault.
error_code prepare(Stream::Socket& socket) {
  error_code ec;
  socket.set_option(tcp::no_delay(true), ec);
  socket.non_blocking(true, ec);
  return ec;
}

}  // namespace

Stream::Stream(const asio::any_io_executor& executor) : Stream(Socket(executor)) {}

Stream::Stream(Socket socket) : state_(std::make_shared<State>(std::move(socket))) {
  if (state_->socket.is_open()) {
    (void)prepare(state_->socket);
  }
}

Stream::~Stream() = default;

Stream::Socket& Stream::socket() noexcept {
  return state_->socket;
}

asio::any_io_executor Stream::executor() {
  return state_->socket.get_executor();
}

void Stream::expires_after(std::chrono::nanoseconds limit) {
  state_->expired = false;
  state_->deadline = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
  if (state_->deadline < state_->rings) {
    State::set(state_);
  }
}

void Stream::expires_never() noexcept {
  state_->expired = false;
  state_->deadline = Time::max();
}

// What had ended already when the deadline passed was not cancelled; what comes behind it must not
// begin.
bool Stream::expired() const noexcept {
  return state_->expired;
}

// What was cancelled by the deadline says so.
error_code Stream::reason(error_code ec) const {
  return ec == asio::error::operation_aborted && state_->expired ? error_code(beast::error::timeout)
                                                                 : ec;
}

asio::awaitable<error_code> Stream::connect(const std::vector<Endpoint>& endpoints) {
  auto [ec, endpoint] = co_await asio::async_connect(state_->socket, endpoints, kAsTuple);
  if (!ec) {
    ec = prepare(state_->socket);
  }
  co_return reason(ec);
}

asio::awaitable<Status> Stream::accept_tls(const TlsContext& context) {
  state_->tls = std::make_unique<TlsLayer>(context, state_->socket.native_handle());
  return handshake();
}

asio::awaitable<Status> Stream::begin_tls(const TlsContext& context, const std::string& host) {
  state_->tls = std::make_unique<TlsLayer>(context, state_->socket.native_handle(), host);
  return handshake();
}

bool Stream::encrypted() const noexcept {
  return state_->tls != nullptr;
}

asio::awaitable<Status> Stream::handshake() {
  for (;;) {
    const TlsLayer::Step step = state_->tls->handshake();
    if (step.ec) {
      const bool plain = state_->tls->plain_http();
      Error error{plain ? Errc::invalid_argument : Errc::unavailable, state_->tls->failure()};
      if (plain) {
        state_->tls = nullptr;
      }
      co_return error;
    }
    if (step.wants == TlsLayer::Wants::nothing) {
      co_return Done{};
    }
    const error_code ec = co_await ready(step.wants == TlsLayer::Wants::read);
    if (ec) {
      Error error{ec == beast::error::timeout ? Errc::timed_out : Errc::unavailable, ec.message()};
      co_return error;
    }
  }
}

// Until the socket can be read from or written to.
asio::awaitable<error_code> Stream::ready(bool to_read) {
  if (expired()) {
    error_code late = beast::error::timeout;
    co_return late;
  }
  auto [ec] = co_await state_->socket.async_wait(to_read ? Socket::wait_read : Socket::wait_write,
                                                 kAsTuple);
  co_return reason(ec);
}

asio::awaitable<Moved> Stream::read_decrypted(asio::mutable_buffer into) {
  for (;;) {
    const TlsLayer::Step step = state_->tls->read(into);
    Moved moved{.ec = step.ec, .bytes = step.bytes};
    if (step.wants != TlsLayer::Wants::nothing) {
      moved.ec = co_await ready(step.wants == TlsLayer::Wants::read);
    }
    if (moved.ec || step.wants == TlsLayer::Wants::nothing) {
      co_return moved;
    }
  }
}

asio::awaitable<Moved> Stream::read_some(asio::mutable_buffer into) {
  if (expired()) {
    Moved late{.ec = beast::error::timeout};
    co_return late;
  }
  if (encrypted()) {
    co_return co_await read_decrypted(into);
  }
  auto [ec, got] = co_await state_->socket.async_read_some(into, kAsTuple);
  Moved moved{.ec = reason(ec), .bytes = got};
  co_return moved;
}

Moved Stream::try_write(std::span<const asio::const_buffer> pieces) {
  beast::buffers_suffix<std::span<const asio::const_buffer>> left(pieces);
  const std::size_t all = asio::buffer_size(pieces);
  Moved moved;
  while (encrypted() && moved.bytes < all && !moved.ec) {
    const TlsLayer::Step step = state_->tls->write(pieces, moved.bytes);
    moved.bytes += step.bytes;
    moved.ec = step.wants == TlsLayer::Wants::nothing ? step.ec : asio::error::would_block;
  }
  while (moved.bytes < all && !moved.ec) {
    const std::size_t sent = state_->socket.write_some(left, moved.ec);
    left.consume(sent);
    moved.bytes += sent;
  }
  return moved;
}

asio::awaitable<Moved> Stream::encrypt_rest(std::span<const asio::const_buffer> pieces,
                                            std::size_t sent) {
  const std::size_t all = asio::buffer_size(pieces);
  Moved moved{.ec = {}, .bytes = sent};
  while (moved.bytes < all && !moved.ec) {
    const TlsLayer::Step step = state_->tls->write(pieces, moved.bytes);
    moved.bytes += step.bytes;
    moved.ec = step.ec;
    if (step.wants != TlsLayer::Wants::nothing) {
      moved.ec = co_await ready(step.wants == TlsLayer::Wants::read);
    } else if (expired()) {
      moved.ec = beast::error::timeout;
    }
  }
  co_return moved;
}

asio::awaitable<Moved> Stream::write_rest(std::span<const asio::const_buffer> pieces,
                                          std::size_t sent) {
  if (encrypted()) {
    co_return co_await encrypt_rest(pieces, sent);
  }
  beast::buffers_suffix<std::span<const asio::const_buffer>> left(pieces);
  left.consume(sent);
  const std::size_t all = asio::buffer_size(pieces);
  Moved moved{.ec = {}, .bytes = sent};
  while (moved.bytes < all && !moved.ec) {
    if (expired()) {
      moved.ec = beast::error::timeout;
      break;
    }
    auto [ec, more] = co_await state_->socket.async_write_some(left, kAsTuple);
    left.consume(more);
    moved.bytes += more;
    moved.ec = reason(ec);
  }
  co_return moved;
}

asio::awaitable<Moved> Stream::write_request(std::span<const asio::const_buffer> pieces,
                                             std::size_t sent, std::chrono::nanoseconds limit) {
  using namespace asio::experimental::awaitable_operators;
  expires_after(limit);
  if (encrypted()) {
    co_return co_await encrypt_rest(pieces, sent);
  }
  beast::buffers_suffix<std::span<const asio::const_buffer>> left(pieces);
  left.consume(sent);
  const std::size_t all = asio::buffer_size(pieces);
  Moved moved{.ec = {}, .bytes = sent};
  while (moved.bytes < all && !moved.ec) {
    auto first = co_await (ready(false) || ready(true));
    moved.ec = first.index() == 0 ? std::get<0>(first) : std::get<1>(first);
    if (moved.ec) {
      break;
    }
    if (!quiet()) {
      moved.ec = moved.bytes == 0 ? error_code(asio::error::eof) : error_code();
      break;
    }
    const std::size_t more = state_->socket.write_some(left, moved.ec);
    left.consume(more);
    moved.bytes += more;
    if (moved.ec == asio::error::would_block) {
      moved.ec = {};
    }
    if (more > 0) {
      expires_after(limit);
    }
  }
  co_return moved;
}

bool Stream::quiet() {
  if (encrypted()) {
    return state_->tls->quiet();
  }
  char byte = 0;
  const auto got = ::recv(state_->socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && errno == EAGAIN;
}

// A TLS client may say that it has ended and keep its socket open.
bool Stream::hung_up() {
  pollfd entry{.fd = state_->socket.native_handle(), .events = POLLRDHUP, .revents = 0};
  const bool gone =
      ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  return gone || (encrypted() && state_->tls->ended());
}

void Stream::end_sending() {
  if (encrypted()) {
    state_->tls->shutdown();
  }
  error_code ignored;
  state_->socket.shutdown(Socket::shutdown_send, ignored);
}

void Stream::cancel() {
  error_code ignored;
  state_->socket.cancel(ignored);
}

void Stream::close() {
  error_code ignored;
  state_->socket.close(ignored);
}

namespace {

// How much to ask for: a buffer that is kept stays small, a long body is read in long pieces.
template <bool kRequest>
std::size_t wanted(const beast::http::basic_parser<kRequest>& parser) {
  const auto left = parser.is_header_done() ? parser.content_length_remaining() : boost::none;
  return std::clamp(static_cast<std::size_t>(left.value_or(0)), kLeastRead, kMostRead);
}

enum class Goal : std::uint8_t { header, progress, message };

template <bool kRequest>
bool reached(Goal goal, const beast::http::basic_parser<kRequest>& parser) {
  return goal == Goal::header ? parser.is_header_done() : parser.is_done();
}

// A header line that is folded over two, which other readers take for two. `seen`: so many bytes were
// looked at before.
bool folded(std::string_view head, std::size_t seen) {
  if (head.empty()) {
    return false;
  }
  for (std::size_t line = head.find('\n', seen); line < head.size() - 1;
       line = head.find('\n', line + 1)) {
    const bool empty = line > 0 && head[line - 1] == '\r' && (line == 1 || head[line - 2] == '\n');
    if (empty) {
      return false;  // the header ended here, and what follows is the body
    }
    const char next = head[line + 1];
    if (next == '\r' || next == ' ' || next == '\t') {
      return next != '\r';  // else the header ends here
    }
  }
  return false;
}

// A chunk's first line that cannot become whole (a bare line feed, a line end within quotes: Beast
// would wait for more), or is longer than anybody needs.
bool broken_chunk_line(std::string_view line) {
  bool quoted = false;
  for (std::size_t i = line.starts_with("\r\n") ? 2 : 0; i < line.size(); ++i) {
    if (line[i] == '\n') {
      return quoted || line[i - std::min<std::size_t>(i, 1)] != '\r';
    }
    if (quoted && line[i] == '\\') {
      ++i;  // what is escaped ends no quote
      continue;
    }
    quoted = quoted != (line[i] == '"');
  }
  return line.size() > kMostChunkLine;
}

std::string_view view(const beast::flat_buffer& buffer) {
  return {static_cast<const char*>(buffer.data().data()), buffer.size()};
}

// Some clients end a body with a line end that is none of its bytes (RFC 9112, 2.2).
void drop_empty_lines(beast::flat_buffer& buffer) {
  while (view(buffer).starts_with("\r\n")) {
    buffer.consume(2);
  }
}

// Gives the parser what was read. How much of it went in; none: more is needed. `seen`: what needs no
// second look for a folded line.
template <bool kRequest>
std::size_t feed(beast::http::basic_parser<kRequest>& parser, beast::flat_buffer& buffer,
                 std::size_t& seen, error_code& ec) {
  const bool before = kRequest && !parser.got_some();
  if (before) {
    drop_empty_lines(buffer);
  }
  if (kRequest && !parser.is_header_done() && folded(view(buffer), seen)) {
    ec = beast::http::error::bad_obs_fold;
    return 0;
  }
  const bool waits = buffer.size() == 0 || (before && view(buffer) == "\r");  // half an empty line
  std::size_t used = 0;
  try {
    used = waits ? std::size_t{0} : parser.put(buffer.data(), ec);
  } catch (const std::length_error&) {
    ec = beast::http::error::header_limit;  // a trailer that is longer than a field can be
  }
  buffer.consume(used);
  seen = buffer.size() - std::min<std::size_t>(buffer.size(), 1);
  if (ec == beast::http::error::need_more) {
    const bool broken = kRequest && parser.is_header_done() && parser.chunked() && used == 0 &&
                        broken_chunk_line(view(buffer));
    ec = broken ? error_code(beast::http::error::bad_chunk_extension) : error_code();
  }
  return used;
}

template <bool kRequest>
asio::awaitable<Moved> read_on(Stream& stream, beast::flat_buffer& buffer,
                               beast::http::basic_parser<kRequest>& parser, Goal goal) {
  Moved moved;
  std::size_t seen = 0;
  while (!reached(goal, parser)) {
    const std::size_t used = feed(parser, buffer, seen, moved.ec);
    moved.bytes += used;
    if (moved.ec || (goal == Goal::progress && used > 0)) {
      break;
    }
    if (used > 0) {
      continue;
    }
    const std::size_t room = std::min(wanted(parser), buffer.max_size() - buffer.size());
    if (room == 0) {
      moved.ec = beast::http::error::buffer_overflow;
      break;
    }
    if (stream.expired()) {
      moved.ec = beast::error::timeout;
      break;
    }
    error_code ec;
    std::size_t got = 0;
    if (stream.encrypted()) {
      const Moved read = co_await stream.read_some(buffer.prepare(room));
      ec = read.ec;
      got = read.bytes;
    } else {
      std::tie(ec, got) = co_await stream.socket().async_read_some(buffer.prepare(room), kAsTuple);
    }
    buffer.commit(got);
    if (ec == asio::error::eof && parser.got_some()) {
      parser.put_eof(moved.ec);
      break;
    }
    moved.ec =
        ec == asio::error::eof ? error_code(beast::http::error::end_of_stream) : stream.reason(ec);
    if (moved.ec) {
      break;
    }
  }
  co_return moved;
}

}  // namespace

template <bool kRequest>
asio::awaitable<Moved> read_header(Stream& stream, beast::flat_buffer& buffer,
                                   beast::http::basic_parser<kRequest>& parser) {
  parser.eager(false);
  return read_on(stream, buffer, parser, Goal::header);
}

template <bool kRequest>
asio::awaitable<Moved> read_some(Stream& stream, beast::flat_buffer& buffer,
                                 beast::http::basic_parser<kRequest>& parser) {
  parser.eager(true);
  return read_on(stream, buffer, parser, Goal::progress);
}

template <bool kRequest>
asio::awaitable<Moved> read_all(Stream& stream, beast::flat_buffer& buffer,
                                beast::http::basic_parser<kRequest>& parser) {
  parser.eager(true);
  return read_on(stream, buffer, parser, Goal::message);
}

template TOKI_EXPORT asio::awaitable<Moved> read_header(Stream&, beast::flat_buffer&,
                                                        beast::http::basic_parser<true>&);
template TOKI_EXPORT asio::awaitable<Moved> read_header(Stream&, beast::flat_buffer&,
                                                        beast::http::basic_parser<false>&);
template TOKI_EXPORT asio::awaitable<Moved> read_some(Stream&, beast::flat_buffer&,
                                                      beast::http::basic_parser<true>&);
template TOKI_EXPORT asio::awaitable<Moved> read_some(Stream&, beast::flat_buffer&,
                                                      beast::http::basic_parser<false>&);
template TOKI_EXPORT asio::awaitable<Moved> read_all(Stream&, beast::flat_buffer&,
                                                     beast::http::basic_parser<true>&);
template TOKI_EXPORT asio::awaitable<Moved> read_all(Stream&, beast::flat_buffer&,
                                                     beast::http::basic_parser<false>&);

}  // namespace toki::http
