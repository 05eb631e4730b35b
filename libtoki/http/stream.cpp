#include <toki/http/stream.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_suffix.hpp>
#include <boost/beast/http/error.hpp>

#include <algorithm>
#include <utility>

namespace toki::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using beast::error_code;
using Time = std::chrono::steady_clock::time_point;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kLeastRead = std::size_t{8} * 1024;
constexpr std::size_t kMostRead = std::size_t{64} * 1024;

}  // namespace

struct Stream::State {
  explicit State(tcp::socket s) : socket(std::move(s)), timer(socket.get_executor()) {}

  tcp::socket socket;
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

Stream::Stream(const asio::any_io_executor& executor) : Stream(tcp::socket(executor)) {}

Stream::Stream(tcp::socket socket) : state_(std::make_shared<State>(std::move(socket))) {
  error_code ignored;
  if (state_->socket.is_open()) {
    state_->socket.non_blocking(true, ignored);
  }
}

Stream::~Stream() = default;

tcp::socket& Stream::socket() noexcept {
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

asio::awaitable<error_code> Stream::connect(const std::vector<tcp::endpoint>& endpoints) {
  auto [ec, endpoint] = co_await asio::async_connect(state_->socket, endpoints, kAsTuple);
  if (!ec) {
    state_->socket.non_blocking(true, ec);
  }
  co_return reason(ec);
}

asio::awaitable<Moved> Stream::read_some(asio::mutable_buffer into) {
  if (expired()) {
    Moved late{.ec = beast::error::timeout};
    co_return late;
  }
  auto [ec, got] = co_await state_->socket.async_read_some(into, kAsTuple);
  Moved moved{.ec = reason(ec), .bytes = got};
  co_return moved;
}

Moved Stream::try_write(std::span<const asio::const_buffer> pieces) {
  beast::buffers_suffix<std::span<const asio::const_buffer>> left(pieces);
  const std::size_t all = asio::buffer_size(pieces);
  Moved moved;
  while (moved.bytes < all && !moved.ec) {
    const std::size_t sent = state_->socket.write_some(left, moved.ec);
    left.consume(sent);
    moved.bytes += sent;
  }
  return moved;
}

asio::awaitable<Moved> Stream::write_rest(std::span<const asio::const_buffer> pieces,
                                          std::size_t sent) {
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

template <bool kRequest>
asio::awaitable<Moved> read_on(Stream& stream, beast::flat_buffer& buffer,
                               beast::http::basic_parser<kRequest>& parser, Goal goal) {
  Moved moved;
  while (!reached(goal, parser)) {
    const std::size_t used =
        buffer.size() > 0 ? parser.put(buffer.data(), moved.ec) : std::size_t{0};
    buffer.consume(used);
    moved.bytes += used;
    if (moved.ec == beast::http::error::need_more) {
      moved.ec = {};
    }
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
    auto [ec, got] = co_await stream.socket().async_read_some(buffer.prepare(room), kAsTuple);
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
