// Embedder against the scripted llama-server: cutting, errors, and whose vectors may be compared.
#include <toki/blocking_driver.hpp>
#include <toki/http/embedder.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <string>
#include <thread>
#include <vector>

#include "run_call.hpp"
#include "scripted_upstream.hpp"

using namespace toki;
using namespace toki::http;
using toki::test::Behaviour;
using toki::test::Json;
using toki::test::LoggedRequest;
using toki::test::ScriptedUpstream;

namespace {

Behaviour embedding_server(int batch, int context) {
  Behaviour behaviour;
  behaviour.embed_batch = batch;
  behaviour.n_ctx = context;
  return behaviour;
}

std::string words(int count, const char* prefix = "w") {
  std::string text = "\"";
  for (int i = 0; i < count; ++i) {
    text += prefix + std::to_string(i) + " ";
  }
  return text + "\"";
}

struct Bench {
  explicit Bench(const Behaviour& behaviour = embedding_server(4096, 4096),
                 EmbedderLimits limits = {.call = Millis(1000), .pause = Millis(3600 * 1000)})
      : scripted(behaviour),
        upstream(io.get_executor(), *parse_url(scripted.url()), {}),
        embedder(upstream, limits),
        thread([this] { io.run(); }) {}
  ~Bench() {
    guard.reset();
    io.stop();
    thread.join();
  }

  ScriptedUpstream scripted;
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard{io.get_executor()};
  Upstream upstream;
  Embedder embedder;
  std::thread thread;

  Result<Embedding> embed(const std::string& json) {
    return toki::test::run_call(io, embedder.async_embed(json));
  }
  // The lengths of the segments of the last request.
  std::vector<std::size_t> lengths() const {
    std::vector<std::size_t> found;
    const Json body = scripted.requests_to("POST", "/v1/embeddings").back().json();
    for (const Json& input : body["input"].items()) {
      found.push_back(input.items().size());
    }
    return found;
  }
  std::size_t asked() const { return scripted.requests_to("POST", "/v1/embeddings").size(); }
};

}  // namespace

TEST_CASE("embedder: a text becomes a unit vector of the model") {
  Bench b;
  const auto made = b.embed(words(20));
  REQUIRE(made);
  CHECK(made->kind == EmbeddingKind::model);
  CHECK(made->model == b.embedder.identity());
  REQUIRE(made->values.size() == 8);
  double square = 0;
  for (const float value : made->values) {
    square += static_cast<double>(value) * static_cast<double>(value);
  }
  CHECK(square == Approx(1).epsilon(1e-5));
  CHECK(b.embed(words(20))->values == made->values);
  CHECK(b.embed(words(20, "other"))->values != made->values);
  const auto body = b.scripted.requests_to("POST", "/v1/embeddings")[0].json();
  CHECK(body["encoding_format"].str() == "float");
  CHECK(b.lengths() == std::vector<std::size_t>{21});  // with the model's own start token
}

TEST_CASE("embedder: a text longer than the context is cut into segments that overlap") {
  Bench b(embedding_server(4096, 101));  // one for the start token
  REQUIRE(b.embed(words(300)));
  const auto lengths = b.lengths();
  REQUIRE(lengths.size() > 3);
  std::size_t tokens = 0;
  for (const std::size_t length : lengths) {
    CHECK(length <= 101);
    tokens += length - 1;
  }
  CHECK(tokens >= 300 + (lengths.size() - 1) * 12);
  CHECK(b.asked() == 1);
}

TEST_CASE("embedder: what the server's batch allows is found once and kept") {
  Bench b(embedding_server(150, 4096));
  REQUIRE(b.embed(words(1000)));
  CHECK(b.asked() > 1);
  const std::size_t asked = b.asked();
  for (const std::size_t length : b.lengths()) {
    CHECK(length <= 150);
  }
  REQUIRE(b.embed(words(1000)));
  CHECK(b.asked() == asked + 1);
}

TEST_CASE("embedder: below a smallest window it gives up") {
  Bench b(embedding_server(8, 4096));
  const auto made = b.embed(words(1000));
  REQUIRE_FALSE(made);
  CHECK(made.error().code == Errc::backend);
  CHECK(b.lengths().front() == Embedder::kMinWindow + 1);
}

TEST_CASE("embedder: of a very long text a sample of segments is embedded, to its end") {
  Bench b(embedding_server(4096, 65));
  REQUIRE(b.embed(words(6000)));
  CHECK(b.lengths().size() == Embedder::kMaxSegments);
  const auto body = b.scripted.requests_to("POST", "/v1/embeddings").back().json();
  const auto last = b.scripted.tokenize("w5999", false).at(0);
  CHECK(body["input"].items().back().items().back().integer() == last);
  const auto first = b.scripted.tokenize("w0", false).at(0);
  CHECK(body["input"][0][1].integer() == first);
}

TEST_CASE("embedder: a server that makes no embeddings is asked once, until it shall be again") {
  Behaviour behaviour;  // 501
  Bench b(behaviour);
  CHECK(b.embed(words(3)).error().code == Errc::unsupported);
  CHECK_FALSE(b.embedder.available());
  b.scripted.clear_log();
  CHECK(b.embed(words(3)).error().code == Errc::unsupported);
  CHECK(b.scripted.requests().empty());
  b.scripted.configure([](Behaviour& now) { now.embed_batch = 4096; });
  b.embedder.probe_again();
  CHECK(b.embedder.available());
  CHECK(b.embed(words(3)));
}

TEST_CASE("embedder: after a failure the server is left alone for a while") {
  Bench b;
  b.scripted.stop();
  CHECK(b.embed(words(3)).error().code == Errc::unavailable);
  CHECK_FALSE(b.embedder.available());
  b.scripted.start();
  b.scripted.clear_log();
  CHECK(b.embed(words(3)).error().code == Errc::unavailable);
  CHECK(b.scripted.requests().empty());

  Bench soon(embedding_server(4096, 4096), {.call = Millis(1000), .pause = Millis(0)});
  soon.scripted.stop();
  CHECK_FALSE(soon.embed(words(3)));
  soon.scripted.start();
  CHECK(soon.embed(words(3)));
}

TEST_CASE("embedder: an empty text is no failure of the server") {
  Bench b;
  CHECK(b.embed("\"\"").error().code == Errc::invalid_argument);
  CHECK(b.embedder.available());
}

TEST_CASE("embedder: embeddings of another model or dimension have another identity") {
  Bench b(embedding_server(4096, 4096), {.call = Millis(1000), .pause = Millis(0)});
  CHECK(b.embedder.identity().empty());
  REQUIRE(b.embed(words(3)));
  const std::string first = b.embedder.identity();
  CHECK_FALSE(first.empty());
  REQUIRE(b.embed(words(4)));
  CHECK(b.embedder.identity() == first);
  b.scripted.configure([](Behaviour& now) { now.embed_dimension = 9; });
  REQUIRE(b.embed(words(3)));
  CHECK(b.embedder.identity() != first);
  // Another model on the same address: its start closes our connection.
  b.scripted.configure([](Behaviour& now) {
    now.embed_dimension = 8;
    now.model_path = "/models/other.gguf";
  });
  b.scripted.stop();
  b.scripted.start();
  REQUIRE(b.embed(words(3)));
  CHECK(b.embedder.identity() != first);
}

TEST_CASE("embedder: answers that are none are refused") {
  const std::string answer = GENERATE(as<std::string>(), "[]", R"({"data":[]})",
                                      R"({"data":[{"index":0,"embedding":[]}]})",
                                      R"({"data":[{"index":1,"embedding":[1,2]}]})",
                                      R"({"data":[{"index":0,"embedding":[1,null]}]})",
                                      R"({"data":[{"index":0,"embedding":[1,1e300]}]})",
                                      R"({"data":[{"index":0,"embedding":[[1,2]]}]})");
  CAPTURE(answer);
  Bench b;
  b.scripted.on_request([&](const LoggedRequest& request, toki::test::Connection& connection) {
    return request.path == "/v1/embeddings" && connection.respond(200, answer);
  });
  const auto made = b.embed(words(3));
  REQUIRE_FALSE(made);
  CHECK(made.error().code == Errc::backend);
}

TEST_CASE("embedder: vectors of two dimensions in one answer are refused") {
  Bench b(embedding_server(4096, 33));
  b.scripted.on_request([&](const LoggedRequest& request, toki::test::Connection& connection) {
    if (request.path != "/v1/embeddings") return false;
    std::string data;
    const std::size_t count = request.json()["input"].items().size();
    for (std::size_t i = 0; i < count; ++i) {
      data += (i > 0 ? "," : "") + std::string(R"({"index":)") + std::to_string(i) +
              R"(,"embedding":[1)" + (i == 1 ? ",2" : "") + "]}";
    }
    return connection.respond(200, R"({"data":[)" + data + "]}");
  });
  CHECK(b.embed(words(20)));
  CHECK(b.embed(words(60)).error().code == Errc::backend);
}

TEST_CASE("embedder: a backend embeds through the one it was given") {
  Bench b;
  LlamaServerBackend with(b.io.get_executor(), b.upstream, {}, &b.embedder);
  const auto made =
      wait_for<Embedding>([&](auto done) { with.embed("a \"b\"\n", std::move(done)); });
  REQUIRE(made);
  CHECK(made->values == b.embed(R"("a \"b\"\n")")->values);
  LlamaServerBackend without(b.io.get_executor(), b.upstream);
  const auto none = wait_for<Embedding>([&](auto done) { without.embed("a", std::move(done)); });
  CHECK(none.error().code == Errc::unsupported);
}
