// Streams on real sockets: deadlines that move, writes larger than the kernel takes at once, and
// messages that come in parts. The end of a client that is watched.
#include <toki/http/client_watch.hpp>
#include <toki/http/stream.hpp>
#include <toki/http/task_group.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <catch2/catch.hpp>

#include <array>
#include <string>
#include <string_view>
#include <vector>

using namespace toki::http;
using std::chrono::milliseconds;
namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

namespace {

// A stream and the plain socket at its other end.
struct Pair {
  Pair() : peer(io), stream(accepted()) {}

  asio::io_context io{1};
  TaskGroup tasks{io.get_executor()};
  tcp::socket peer;
  Stream stream;

  // Until all tasks have ended. Alarms may be left.
  void run() {
    while (tasks.size() > 0 && io.run_one() > 0) {
    }
    CHECK(tasks.size() == 0);
  }
  // A timer that rang after this has seen every alarm that was set before it for an earlier time.
  asio::awaitable<void> pass(milliseconds time) {
    asio::steady_timer timer(io, time);
    co_await timer.async_wait(asio::use_awaitable);
  }

 private:
  tcp::socket accepted() {
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    peer.connect(acceptor.local_endpoint());
    return acceptor.accept();
  }
};

constexpr std::chrono::hours kLong{1};

}  // namespace

TEST_CASE("stream: what waits ends at its deadline, which may have been moved nearer") {
  Pair pair;
  const bool moved = GENERATE(false, true);
  beast::error_code ec;
  const auto waits = [&]() -> asio::awaitable<void> {
    std::array<char, 10> bytes{};
    if (moved) {
      pair.stream.expires_after(kLong);
    }
    pair.stream.expires_after(milliseconds(20));
    const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
    ec = read.ec;
  };
  pair.tasks.spawn(waits());
  pair.run();
  CHECK(ec == beast::error::timeout);
}

TEST_CASE("stream: a deadline that was moved away or taken back ends nothing") {
  Pair pair;
  const bool never = GENERATE(false, true);
  Moved read;
  const auto waits = [&]() -> asio::awaitable<void> {
    std::array<char, 10> bytes{};
    pair.stream.expires_after(milliseconds(10));
    never ? pair.stream.expires_never() : pair.stream.expires_after(kLong);
    read = co_await pair.stream.read_some(asio::buffer(bytes));
  };
  const auto writes = [&]() -> asio::awaitable<void> {
    co_await pair.pass(milliseconds(30));
    pair.peer.send(asio::buffer("late", 4));
  };
  pair.tasks.spawn(waits());
  pair.tasks.spawn(writes());
  pair.run();
  CHECK(read.ec == beast::error_code());
  CHECK(read.bytes == 4);
}

TEST_CASE("stream: an expired deadline does not end what waits after it was set anew") {
  Pair pair;
  std::vector<beast::error_code> ended;
  const auto waits = [&]() -> asio::awaitable<void> {
    std::array<char, 10> bytes{};
    for (int i = 0; i < 2; ++i) {
      pair.stream.expires_after(milliseconds(10));
      const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
      ended.push_back(read.ec);
    }
    pair.stream.expires_after(kLong);
    pair.peer.send(asio::buffer("x", 1));
    const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
    ended.push_back(read.ec);
  };
  pair.tasks.spawn(waits());
  pair.run();
  REQUIRE(ended.size() == 3);
  CHECK(ended[0] == beast::error::timeout);
  CHECK(ended[1] == beast::error::timeout);
  CHECK(ended[2] == beast::error_code());
}

TEST_CASE("stream: a write larger than the kernel takes at once is finished, in order") {
  Pair pair;
  std::string sent;
  for (int i = 0; sent.size() < std::size_t{16} << 20; ++i) {
    sent += std::to_string(i) + ",";
  }
  const std::string_view text = sent;
  const std::array<asio::const_buffer, 3> pieces{asio::buffer(text.substr(0, 1000)),
                                                 asio::buffer(text.substr(1000, 9000000)),
                                                 asio::buffer(text.substr(9001000))};
  std::string received;
  Moved moved;
  const auto writes = [&]() -> asio::awaitable<void> {
    moved = pair.stream.try_write(pieces);
    CHECK(moved.ec == asio::error::would_block);
    CHECK(moved.bytes < sent.size());
    moved = co_await pair.stream.write_rest(pieces, moved.bytes);
  };
  const auto reads = [&]() -> asio::awaitable<void> {
    std::vector<char> bytes(100000);
    while (received.size() < sent.size()) {
      const std::size_t got =
          co_await pair.peer.async_read_some(asio::buffer(bytes), asio::use_awaitable);
      received.append(bytes.data(), got);
    }
  };
  pair.tasks.spawn(reads());
  pair.tasks.spawn(writes());
  pair.run();
  CHECK(moved.ec == beast::error_code());
  CHECK(moved.bytes == sent.size());
  CHECK(received == sent);
}

TEST_CASE("stream: body bytes are not held back for the rest of a chunk's header") {
  Pair pair;
  beast::flat_buffer buffer;
  beast::http::response_parser<beast::http::buffer_body> parser;
  std::array<char, 100> body{};
  std::string got;
  const auto reads = [&]() -> asio::awaitable<void> {
    pair.stream.expires_after(kLong);
    pair.peer.send(asio::buffer(std::string_view("HTTP/1.1 200 OK\r\nTransfer-Enc")));
    pair.peer.send(asio::buffer(std::string_view("oding: chunked\r\n\r\n5\r\nhello\r\n")));
    co_await read_header<false>(pair.stream, buffer, parser);
    REQUIRE(parser.is_header_done());
    while (got.size() < 5) {
      parser.get().body().data = body.data();
      parser.get().body().size = body.size();
      const Moved read = co_await read_some<false>(pair.stream, buffer, parser);
      REQUIRE(!read.ec);
      got.append(body.data(), body.size() - parser.get().body().size);
    }
    pair.peer.shutdown(tcp::socket::shutdown_send);
    const Moved end = co_await read_all<false>(pair.stream, buffer, parser);
    CHECK(end.ec == beast::http::error::partial_message);
  };
  pair.tasks.spawn(reads());
  pair.run();
  CHECK(got == "hello");
}

TEST_CASE("client watch: a client that closes its side ends the coroutine, only while watched") {
  Pair pair;
  const bool watched = GENERATE(true, false);
  const bool pipelined = GENERATE(false, true);  // bytes of a next request hide the end
  bool ended_early = false;
  bool left = false;
  const auto serves = [&](asio::cancellation_signal& serving) -> asio::awaitable<void> {
    ClientWatch watch(pair.stream, serving);
    watch.begin();
    if (!watched) {
      watch.end();
    }
    if (pipelined) {
      pair.peer.send(asio::buffer("GET", 3));
    }
    pair.peer.shutdown(tcp::socket::shutdown_send);
    try {
      co_await pair.pass(milliseconds(watched ? 20000 : 300));
    } catch (const boost::system::system_error&) {
      ended_early = true;
    }
    left = watch.left();
  };
  pair.tasks.spawn_with(serves);
  pair.run();
  CHECK(ended_early == watched);
  CHECK(left == watched);
}
