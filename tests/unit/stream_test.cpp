// Streams on real sockets of each kind: deadlines that move, writes larger than the kernel takes at
// once, and messages that come in parts. The end of a client that is watched. TLS between them.
#include <toki/http/client_watch.hpp>
#include <toki/http/stream.hpp>
#include <toki/http/task_group.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <catch2/catch.hpp>

#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/certificate.hpp"

using namespace toki::http;
using std::chrono::milliseconds;
namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

namespace {

enum class Kind { tcp, local, tls };

const toki::test::Certificate& certificate() {
  static const toki::test::Certificate made;
  return made;
}

TlsContext server_context() {
  return *TlsContext::server(certificate().file(), certificate().key());
}

// Both ends of a connection.
struct Pair {
  explicit Pair(Kind kind, bool shake_hands = true) : Pair(new_sockets(kind)) {
    if (kind == Kind::tls && shake_hands) {
      std::vector<toki::Status> ended;
      tasks.spawn(accept_tls(ended));
      tasks.spawn(begin_tls(ended, "localhost", certificate().file()));
      run();
      REQUIRE(ended.size() == 2);
      REQUIRE(ended[0].has_value());
      REQUIRE(ended[1].has_value());
    }
  }

  std::unique_ptr<asio::io_context> context;
  asio::io_context& io{*context};
  TaskGroup tasks{io.get_executor()};
  Stream peer;
  Stream stream;

  // Until all tasks have ended. Alarms may be left.
  void run() {
    io.restart();
    while (tasks.size() > 0 && io.run_one() > 0) {
    }
    CHECK(tasks.size() == 0);
  }
  // A timer that rang after this has seen every alarm that was set before it for an earlier time.
  asio::awaitable<void> pass(milliseconds time) {
    asio::steady_timer timer(io, time);
    co_await timer.async_wait(asio::use_awaitable);
  }
  void peer_sends(std::string_view text) {
    const std::array<asio::const_buffer, 1> pieces{asio::buffer(text)};
    const Moved moved = peer.try_write(pieces);
    REQUIRE(moved.bytes == text.size());
  }
  asio::awaitable<void> accept_tls(std::vector<toki::Status>& ended) {
    ended.push_back(co_await stream.accept_tls(server_context()));
  }
  asio::awaitable<void> begin_tls(std::vector<toki::Status>& ended, std::string host,
                                  std::string ca) {
    const auto trusted = TlsContext::client(ca);
    ended.push_back(co_await peer.begin_tls(*trusted, host));
  }

 private:
  struct Sockets {
    std::unique_ptr<asio::io_context> context;
    Stream::Socket peer;
    Stream::Socket stream;
  };
  explicit Pair(Sockets sockets)
      : context(std::move(sockets.context)),
        peer(std::move(sockets.peer)),
        stream(std::move(sockets.stream)) {}
  static Sockets new_sockets(Kind kind) {
    auto context = std::make_unique<asio::io_context>(1);
    if (kind == Kind::local) {
      asio::local::stream_protocol::socket a(*context);
      asio::local::stream_protocol::socket b(*context);
      asio::local::connect_pair(a, b);
      return {std::move(context), std::move(a), std::move(b)};
    }
    tcp::acceptor acceptor(*context, {asio::ip::address_v4::loopback(), 0});
    tcp::socket a(*context);
    a.connect(acceptor.local_endpoint());
    tcp::socket b = acceptor.accept();
    return {std::move(context), std::move(a), std::move(b)};
  }
};

Kind any_kind() {
  return GENERATE(Kind::tcp, Kind::local, Kind::tls);
}

constexpr std::chrono::hours kLong{1};

}  // namespace

TEST_CASE("stream: what waits ends at its deadline, which may have been moved nearer") {
  Pair pair(any_kind());
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
  Pair pair(any_kind());
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
    pair.peer_sends("late");
  };
  pair.tasks.spawn(waits());
  pair.tasks.spawn(writes());
  pair.run();
  CHECK(read.ec == beast::error_code());
  CHECK(read.bytes == 4);
}

TEST_CASE("stream: an expired deadline does not end what waits after it was set anew") {
  Pair pair(any_kind());
  std::vector<beast::error_code> ended;
  const auto waits = [&]() -> asio::awaitable<void> {
    std::array<char, 10> bytes{};
    for (int i = 0; i < 2; ++i) {
      pair.stream.expires_after(milliseconds(10));
      const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
      ended.push_back(read.ec);
    }
    pair.stream.expires_after(kLong);
    pair.peer_sends("x");
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
  Pair pair(any_kind());
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
      const Moved read = co_await pair.peer.read_some(asio::buffer(bytes));
      REQUIRE(!read.ec);
      received.append(bytes.data(), read.bytes);
    }
  };
  pair.tasks.spawn(reads());
  pair.tasks.spawn(writes());
  pair.run();
  CHECK(moved.ec == beast::error_code());
  CHECK(moved.bytes == sent.size());
  CHECK((received == sent));
}

TEST_CASE("stream: body bytes are not held back for the rest of a chunk's header") {
  Pair pair(any_kind());
  beast::flat_buffer buffer;
  beast::http::response_parser<beast::http::buffer_body> parser;
  std::array<char, 100> body{};
  std::string got;
  const auto reads = [&]() -> asio::awaitable<void> {
    pair.stream.expires_after(kLong);
    pair.peer_sends("HTTP/1.1 200 OK\r\nTransfer-Enc");
    pair.peer_sends("oding: chunked\r\n\r\n5\r\nhello\r\n");
    co_await read_header<false>(pair.stream, buffer, parser);
    REQUIRE(parser.is_header_done());
    while (got.size() < 5) {
      parser.get().body().data = body.data();
      parser.get().body().size = body.size();
      const Moved read = co_await read_some<false>(pair.stream, buffer, parser);
      REQUIRE(!read.ec);
      got.append(body.data(), body.size() - parser.get().body().size);
    }
    pair.peer.end_sending();
    const Moved end = co_await read_all<false>(pair.stream, buffer, parser);
    CHECK(end.ec == beast::http::error::partial_message);
  };
  pair.tasks.spawn(reads());
  pair.run();
  CHECK(got == "hello");
}

TEST_CASE("stream: empty lines before a request are left out, however they are cut") {
  Pair pair(any_kind());
  beast::flat_buffer buffer;
  beast::http::request_parser<beast::http::string_body> parser;
  const std::string wire = "\r\n\r\nGET /x HTTP/1.1\r\nHost: x\r\n\r\n";
  const auto reads = [&]() -> asio::awaitable<void> {
    pair.stream.expires_after(kLong);
    const Moved header = co_await read_header<true>(pair.stream, buffer, parser);
    CHECK(header.ec == beast::error_code());
  };
  const auto sends = [&]() -> asio::awaitable<void> {
    for (const char c : wire) {
      pair.peer_sends(std::string(1, c));
      co_await pair.pass(milliseconds(1));
    }
  };
  pair.tasks.spawn(reads());
  pair.tasks.spawn(sends());
  pair.run();
  REQUIRE(parser.is_header_done());
  CHECK(parser.get().target() == "/x");
  CHECK(buffer.size() == 0);
}

TEST_CASE("stream: a body that begins with a blank is no folded line, wherever the read is cut") {
  const std::string head = "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n";
  const std::string wire = head + " {}";
  for (std::size_t cut = 1; cut < wire.size(); ++cut) {
    Pair pair(Kind::local);
    beast::flat_buffer buffer;
    beast::http::request_parser<beast::http::string_body> parser;
    const auto reads = [&]() -> asio::awaitable<void> {
      pair.stream.expires_after(kLong);
      const Moved all = co_await read_all<true>(pair.stream, buffer, parser);
      INFO(cut);
      CHECK(all.ec == beast::error_code());
    };
    const auto sends = [&]() -> asio::awaitable<void> {
      co_await pair.pass(milliseconds(1));
      pair.peer_sends(wire.substr(cut));
    };
    pair.peer_sends(wire.substr(0, cut));
    pair.tasks.spawn(reads());
    pair.tasks.spawn(sends());
    pair.run();
    CHECK(parser.get().body() == " {}");
  }
}

TEST_CASE("stream: a trailer that is longer than a field can be is an error, no exception") {
  Pair pair(Kind::local);
  beast::flat_buffer buffer;
  beast::http::response_parser<beast::http::string_body> parser;
  parser.header_limit(1 << 20);
  Moved all;
  const std::string wire =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nLong: " + std::string(70000, 'x') +
      "\r\n\r\n";
  const auto reads = [&]() -> asio::awaitable<void> {
    pair.stream.expires_after(kLong);
    all = co_await read_all<false>(pair.stream, buffer, parser);
  };
  const auto sends = [&]() -> asio::awaitable<void> {
    const std::array<asio::const_buffer, 1> pieces{asio::buffer(wire)};
    const Moved moved = pair.peer.try_write(pieces);
    if (moved.ec) {
      co_await pair.peer.write_rest(pieces, moved.bytes);
    }
  };
  pair.tasks.spawn(reads());
  pair.tasks.spawn(sends());
  pair.run();
  CHECK(all.ec == beast::http::error::header_limit);
}

TEST_CASE("stream: a request is given up when nothing of it goes for so long") {
  Pair pair(any_kind());
  const std::string large(32 << 20, 'x');
  Moved moved;
  const auto writes = [&]() -> asio::awaitable<void> {
    const std::array<asio::const_buffer, 1> pieces{asio::buffer(large)};
    const Moved first = pair.stream.try_write(pieces);
    moved = co_await pair.stream.write_request(pieces, first.bytes, milliseconds(20));
  };
  pair.tasks.spawn(writes());
  pair.run();
  CHECK(moved.ec == beast::error::timeout);
  CHECK(moved.bytes < large.size());
}

TEST_CASE("stream: a request that is answered before all of it went is sent no further") {
  Pair pair(Kind::local);
  const std::string large(32 << 20, 'x');
  Moved moved;
  const auto writes = [&]() -> asio::awaitable<void> {
    const std::array<asio::const_buffer, 1> pieces{asio::buffer(large)};
    const Moved first = pair.stream.try_write(pieces);
    moved = co_await pair.stream.write_request(pieces, first.bytes, kLong);
  };
  pair.peer_sends("HTTP/1.1 413 Too Large\r\n\r\n");
  pair.tasks.spawn(writes());
  pair.run();
  CHECK(moved.ec == beast::error_code());
  CHECK(moved.bytes > 0);
  CHECK(moved.bytes < large.size());
}

TEST_CASE("client watch: a client that closes its side ends the coroutine, only while watched") {
  Pair pair(any_kind());
  const bool watched = GENERATE(true, false);
  const bool pipelined = GENERATE(false, true);  // bytes of a next request hide the end
  const bool rude = GENERATE(false, true);       // it closes all, and says nothing in TLS
  bool ended_early = false;
  bool left = false;
  const auto serves = [&](asio::cancellation_signal& serving) -> asio::awaitable<void> {
    ClientWatch watch(pair.stream, serving);
    watch.begin();
    if (!watched) {
      watch.end();
    }
    if (pipelined) {
      pair.peer_sends("GET");
    }
    rude ? pair.peer.close() : pair.peer.end_sending();
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

TEST_CASE("stream: a deadline that passed while nothing waited ends what comes next") {
  Pair pair(any_kind());
  std::vector<beast::error_code> ended;
  const auto works = [&]() -> asio::awaitable<void> {
    pair.peer_sends("GET / HTTP/1.1\r\n\r\n");
    pair.stream.expires_after(milliseconds(1));
    co_await pair.pass(milliseconds(20));
    REQUIRE(pair.stream.expired());
    std::array<char, 10> bytes{};
    const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
    ended.push_back(read.ec);
    beast::flat_buffer buffer;
    beast::http::request_parser<beast::http::buffer_body> parser;
    const Moved header = co_await read_header<true>(pair.stream, buffer, parser);
    ended.push_back(header.ec);
    const std::string much(std::size_t{16} << 20, 'x');
    const std::array<asio::const_buffer, 1> pieces{asio::buffer(much)};
    const Moved some = pair.stream.try_write(pieces);
    REQUIRE(some.ec == asio::error::would_block);
    const Moved rest = co_await pair.stream.write_rest(pieces, some.bytes);
    ended.push_back(rest.ec);
    pair.stream.expires_never();
    const Moved late = co_await pair.stream.read_some(asio::buffer(bytes));
    CHECK(late.bytes == bytes.size());
  };
  pair.tasks.spawn(works());
  pair.run();
  REQUIRE(ended.size() == 3);
  CHECK(ended[0] == beast::error::timeout);
  CHECK(ended[1] == beast::error::timeout);
  CHECK(ended[2] == beast::error::timeout);
}

TEST_CASE("stream: it is quiet until something comes, and tells an orderly end from another") {
  const Kind kind = any_kind();
  Pair pair(kind);
  const bool rude = GENERATE(false, true);
  std::vector<beast::error_code> ended;
  const auto works = [&]() -> asio::awaitable<void> {
    std::array<char, 10> bytes{};
    // What TLS sends behind a handshake is nothing to read.
    co_await pair.pass(milliseconds(5));
    CHECK(pair.stream.quiet());
    CHECK(pair.peer.quiet());
    pair.peer_sends("ab");
    CHECK_FALSE(pair.stream.quiet());
    CHECK_FALSE(pair.stream.hung_up());
    rude ? pair.peer.close() : pair.peer.end_sending();
    CHECK_FALSE(pair.stream.quiet());
    CHECK(pair.stream.hung_up());
    const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
    CHECK(read.bytes == 2);
    const Moved end = co_await pair.stream.read_some(asio::buffer(bytes));
    ended.push_back(end.ec);
  };
  pair.tasks.spawn(works());
  pair.run();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0] == (kind == Kind::tls && rude ? asio::error::connection_reset
                                               : beast::error_code(asio::error::eof)));
}

TEST_CASE("stream: what waits can be cancelled") {
  Pair pair(any_kind());
  beast::error_code ec;
  const auto waits = [&]() -> asio::awaitable<void> {
    std::array<char, 10> bytes{};
    const Moved read = co_await pair.stream.read_some(asio::buffer(bytes));
    ec = read.ec;
  };
  const auto cancels = [&]() -> asio::awaitable<void> {
    co_await pair.pass(milliseconds(1));
    pair.stream.cancel();
  };
  pair.tasks.spawn(waits());
  pair.tasks.spawn(cancels());
  pair.run();
  CHECK(ec == asio::error::operation_aborted);
}

TEST_CASE(
    "tls: a client that trusts nobody who vouches for the server, or meant another, ends it") {
  Pair pair(Kind::tls, false);
  const toki::test::Certificate other;
  struct Case {
    std::string host, ca, told;
  };
  const Case one = GENERATE_REF(Case{"localhost", other.file(), "self-signed"},
                                Case{"localhost", "", "self-signed"},
                                Case{"example.org", certificate().file(), "ostname mismatch"},
                                Case{"127.0.0.2", certificate().file(), "IP address mismatch"});
  INFO(one.host << " " << one.ca);
  std::vector<toki::Status> server;
  std::vector<toki::Status> client;
  pair.tasks.spawn(pair.accept_tls(server));
  pair.tasks.spawn(pair.begin_tls(client, one.host, one.ca));
  pair.run();
  REQUIRE(client.size() == 1);
  REQUIRE_FALSE(client[0].has_value());
  CHECK(client[0].error().code == toki::Errc::unavailable);
  CHECK_THAT(client[0].error().detail, Catch::Contains(one.told));
}

TEST_CASE("tls: a name and an address of the certificate are both the server") {
  Pair pair(Kind::tls, false);
  const std::string host = GENERATE("localhost", "127.0.0.1");
  std::vector<toki::Status> ended;
  pair.tasks.spawn(pair.accept_tls(ended));
  pair.tasks.spawn(pair.begin_tls(ended, host, certificate().file()));
  pair.run();
  REQUIRE(ended.size() == 2);
  CHECK((ended[0].has_value() && ended[1].has_value()));
}

TEST_CASE("tls: a handshake that never comes ends at the deadline, nonsense at once") {
  Pair pair(Kind::tls, false);
  const bool nonsense = GENERATE(false, true);
  std::vector<toki::Status> ended;
  const auto accepts = [&]() -> asio::awaitable<void> {
    pair.stream.expires_after(nonsense ? milliseconds(kLong) : milliseconds(20));
    co_await pair.accept_tls(ended);
  };
  if (nonsense) {
    pair.peer_sends("\x16\x03\x01\xff\xff nonsense");
    pair.peer_sends(std::string(70000, 'x'));
  }
  pair.tasks.spawn(accepts());
  pair.run();
  REQUIRE(ended.size() == 1);
  REQUIRE_FALSE(ended[0].has_value());
  CHECK(ended[0].error().code == (nonsense ? toki::Errc::unavailable : toki::Errc::timed_out));
}

TEST_CASE("tls: a client that speaks HTTP in plain can be told so in plain") {
  Pair pair(Kind::tls, false);
  std::vector<toki::Status> ended;
  std::string told;
  const auto works = [&]() -> asio::awaitable<void> {
    pair.peer_sends("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    co_await pair.accept_tls(ended);
    CHECK_FALSE(pair.stream.encrypted());
    const std::array<asio::const_buffer, 1> pieces{asio::buffer("TLS!", 4)};
    (void)pair.stream.try_write(pieces);
    std::array<char, 10> bytes{};
    const Moved read = co_await pair.peer.read_some(asio::buffer(bytes));
    told.assign(bytes.data(), read.bytes);
  };
  pair.tasks.spawn(works());
  pair.run();
  REQUIRE(ended.size() == 1);
  REQUIRE_FALSE(ended[0].has_value());
  CHECK(ended[0].error().code == toki::Errc::invalid_argument);
  CHECK(told == "TLS!");
}

TEST_CASE("tls: files that hold no certificate, no key or another's key are named") {
  const toki::test::Certificate other;
  const std::string nothing = certificate().file() + ".none";
  std::ofstream(nothing) << "nothing";
  const auto named = [](const auto& result, const std::string& file) {
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().code == toki::Errc::invalid_argument);
    CHECK_THAT(result.error().detail, Catch::Contains(file));
  };
  named(TlsContext::server("/nonexistent", certificate().key()), "/nonexistent");
  named(TlsContext::server(nothing, certificate().key()), nothing);
  named(TlsContext::server(certificate().file(), nothing), nothing);
  named(TlsContext::server(certificate().file(), other.key()), other.key());
  named(TlsContext::client("/nonexistent"), "/nonexistent");
}
