// Any bytes as what a client sends, in pieces: read as tokid reads requests, one after the other, and
// looked at as it looks at their heads. What is not refused says its length in one way, names one
// host, means a path, and holds no byte that another reader could take for the end of a line.
#include <toki/http/answer_writer.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/stream.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "access.hpp"
#include "cors.hpp"
#include "fuzz/require.hpp"
#include "request_check.hpp"

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using toki::http::Stream;
using tokid::view;

void check_head(const tokid::RequestHead& head) {
  static const tokid::Cors cors = tokid::Cors::allowing({"http://localhost:3000"}).value();
  (void)cors.look(head);
  (void)tokid::refuse_coding(head);
  (void)toki::http::error_form_of(view(head.target()));
  if (tokid::refuse_head(head)) {
    return;
  }
  const auto lengths = head.count(http::field::content_length);
  require(lengths + head.count(http::field::transfer_encoding) <= 1);
  require(head.count(http::field::host) == 1 || head.version() == 10);
  const std::string_view target = view(head.target());
  require(target.starts_with('/'));
  for (const auto& field : head) {
    const std::string_view value = view(field.value());
    require(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos);
  }
  const auto usual = tokid::usual_target(view(head.method_string()), target);
  (void)tokid::need_of(view(head.method_string()), usual ? std::string_view(*usual) : target);
}

asio::awaitable<void> read_requests(Stream& stream) {
  boost::beast::flat_buffer buffer{std::size_t{192} * 1024};
  for (;;) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(std::uint32_t{64} * 1024);
    parser.body_limit(std::size_t{1} << 20);
    const auto header = co_await toki::http::read_header<true>(stream, buffer, parser);
    if (header.ec) {
      co_return;
    }
    check_head(parser.get());
    while (!parser.is_done()) {
      const auto read = co_await toki::http::read_some<true>(stream, buffer, parser);
      if (read.ec) {
        co_return;
      }
    }
    require(parser.get().body().size() <= std::size_t{1} << 20);
    if (!parser.keep_alive()) {
      co_return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  // The first byte: the size of the pieces.
  const std::size_t piece = data[0] == 0 ? size : data[0];
  std::string rest(data + 1, data + size);
  asio::io_context io;
  asio::local::stream_protocol::socket client(io);
  asio::local::stream_protocol::socket server(io);
  asio::local::connect_pair(client, server);
  Stream stream{Stream::Socket(std::move(server))};
  bool ended = false;
  asio::co_spawn(io, read_requests(stream), [&](const std::exception_ptr&) { ended = true; });
  boost::system::error_code ec;
  while (!rest.empty() && !ended && !ec) {
    asio::write(client, asio::buffer(rest.data(), std::min(piece, rest.size())), ec);
    rest.erase(0, piece);
    io.poll();
    io.restart();
  }
  client.close();
  io.run();
  require(ended);
  return 0;
}
