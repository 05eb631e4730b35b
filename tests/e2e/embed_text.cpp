// embed_text URL: reads one JSON string a line and prints for each what Embedder makes of it on the
// llama-server at URL: one JSON line with the vector and its identity, or the error.
#include <toki/http/embedder.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

namespace {

using namespace toki;
using namespace toki::http;

boost::asio::awaitable<void> embed_lines(Embedder& embedder) {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto made = co_await embedder.async_embed(line);
    if (!made) {
      std::printf("{\"error\":\"%s\",\"detail\":\"%s\"}\n",
                  std::string(to_string(made.error().code)).c_str(), made.error().detail.c_str());
      continue;
    }
    std::printf("{\"identity\":%zu,\"vector\":[", std::hash<std::string>()(embedder.identity()));
    for (std::size_t i = 0; i < made->values.size(); ++i) {
      std::printf("%s%.9g", i > 0 ? "," : "", static_cast<double>(made->values[i]));
    }
    std::printf("]}\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto address = parse_url(argc == 2 ? argv[1] : "");
  if (!address) {
    std::fprintf(stderr, "embed_text: %s\n", address.error().detail.c_str());
    return 2;
  }
  boost::asio::io_context io{1};
  Upstream upstream(io.get_executor(), *address, {});
  Embedder embedder(upstream, {.call = Millis(60000), .pause = Millis(0)});
  boost::asio::co_spawn(io, embed_lines(embedder), boost::asio::detached);
  io.run();
  return 0;
}
