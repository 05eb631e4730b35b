// LlamaServerBackend's calls against the scripted llama-server: what it says, and how it fails.
#include <toki/blocking_driver.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <memory>
#include <string>
#include <thread>

#include "scripted_upstream.hpp"

using namespace toki;
using namespace toki::http;
using toki::test::Behaviour;
using toki::test::LoggedRequest;
using toki::test::ScriptedUpstream;

namespace {

// The backend on a thread of its own, called through its completions as a blocking program would.
struct Bench {
  explicit Bench(Behaviour behaviour = {}, std::string key = {})
      : scripted(std::move(behaviour)),
        upstream(io.get_executor(), *parse_url(scripted.url()), std::move(key)),
        backend(io.get_executor(), upstream,
                {.render = Millis(1000), .control = Millis(1000), .probe = Millis(1000)}),
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
  LlamaServerBackend backend;
  std::thread thread;

  Result<Tokens> render(std::string_view path, std::string_view body) {
    return wait_for<Tokens>([&](auto done) { backend.render({path, body, {}}, std::move(done)); });
  }
  Result<BackendDescription> describe() {
    return wait_for<BackendDescription>([&](auto done) { backend.describe(std::move(done)); });
  }
  Result<Prefilled> prefill(std::uint32_t slot, const Tokens& prompt) {
    return wait_for<Prefilled>(
        [&](auto done) { backend.prefill({.index = slot}, prompt, std::move(done)); });
  }
  Result<std::uint64_t> save(std::uint32_t slot, std::string_view name) {
    return wait_for<std::uint64_t>(
        [&](auto done) { backend.save({.index = slot}, name, std::move(done)); });
  }
  Result<std::uint64_t> restore(std::uint32_t slot, std::string_view name) {
    return wait_for<std::uint64_t>(
        [&](auto done) { backend.restore({.index = slot}, name, std::move(done)); });
  }
  Status erase(std::uint32_t slot) {
    return wait_for<Done>([&](auto done) { backend.erase({.index = slot}, std::move(done)); });
  }
};

}  // namespace

TEST_CASE("backend: a description tells slots, context, identity and which slots have worked") {
  Bench b;
  auto said = b.describe();
  REQUIRE(said);
  CHECK(said->slots == 2);
  CHECK(said->context == 65536);
  CHECK(said->start_marker == b.scripted.media_marker());
  CHECK_FALSE(said->sleeping);
  const std::string identity = said->identity;
  CHECK(b.describe()->identity == identity);
  b.scripted.configure([](Behaviour& behaviour) { behaviour.chat_template = "another"; });
  CHECK(b.describe()->identity != identity);
}

TEST_CASE("backend: a chat is rendered and tokenized with its whole body") {
  Bench b;
  const std::string body = R"({"messages":[{"role":"user","content":"a b c"}],"x":1})";
  const auto tokens = b.render("/v1/chat/completions", body);
  REQUIRE(tokens);
  CHECK(tokens->size() == 1 + 3 + 3 + 1);
  CHECK(b.scripted.requests_to("POST", "/apply-template").at(0).body() == body);
}

TEST_CASE("backend: every prompt form gives the tokens that the server computes") {
  Bench b;
  CHECK(*b.render("/completion", R"({"prompt":[1,15,27]})") == Tokens{1, 15, 27});
  CHECK(b.render("/v1/completions", R"({"prompt":"one two"})")->size() == 3);
  CHECK(
      b.render("/infill", R"({"input_extra":[{"filename":"f","text":"x y"}],"input_prefix":"p q"})")
          ->size() == 5);
  CHECK(b.render("/v1/responses", R"({"input":"one two"})")->size() ==
        b.render("/v1/chat/completions", R"({"messages":[{"role":"user","content":"one two"}]})")
            ->size());
}

TEST_CASE(
    "backend: what has no known form is unsupported, and what the server refuses is its error") {
  Bench b;
  CHECK(b.render("/v1/messages", "{}").error().code == Errc::unsupported);
  CHECK(b.render("/completion", R"({"prompt":["a","b"]})").error().code == Errc::unsupported);
  CHECK(b.render("/completion", R"({"prompt":[1.5]})").error().code == Errc::unsupported);
  CHECK(b.render("/completion", "not json").error().code == Errc::unsupported);
  b.scripted.configure([](Behaviour& behaviour) { behaviour.tokenize_status = 500; });
  const auto refused = b.render("/completion", R"({"prompt":"SECRET words"})");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Errc::backend);
  CHECK(refused.error().detail.find("SECRET") == std::string::npos);
}

TEST_CASE("backend: a prefill says what was reused and what was computed") {
  Bench b;
  CHECK(b.prefill(1, {5, 6, 7, 8})->computed == 4);
  const auto again = b.prefill(1, {5, 6, 7, 8, 9});
  CHECK(again->cached == 4);
  CHECK(again->computed == 1);
}

TEST_CASE("backend: save, restore and erase name slot and file, and report tokens") {
  Bench b;
  REQUIRE(b.prefill(0, {5, 6, 7, 8}));
  b.scripted.clear_log();
  CHECK(b.save(0, "a \"b\".bin"));
  CHECK(b.restore(1, "a \"b\".bin"));
  CHECK(b.erase(0));
  const auto log = b.scripted.requests();
  REQUIRE(log.size() == 3);
  CHECK(log[0].target == "/slots/0?action=save");
  CHECK(log[0].body() == R"({"filename":"a \"b\".bin"})");
  CHECK(log[1].target == "/slots/1?action=restore");
  CHECK(log[2].target == "/slots/0?action=erase");
}

TEST_CASE("backend: slot actions that the server does not have are unsupported") {  // B45
  Behaviour behaviour;
  behaviour.slot_action_status = 501;
  Bench b(behaviour);
  CHECK(b.save(0, "x").error().code == Errc::unsupported);
  CHECK(b.erase(0).error().code == Errc::unsupported);
}

TEST_CASE("backend: every failing call ends with an error that says which call it was") {
  Bench b;
  b.scripted.on_request([](const LoggedRequest&, toki::test::Connection& connection) {
    connection.respond(200, "[1,2,{]");
    return true;
  });
  CHECK(b.describe().error().detail.find("/props") != std::string::npos);
  CHECK(b.render("/completion", R"({"prompt":"x"})").error().detail.find("/tokenize") !=
        std::string::npos);
  CHECK(b.render("/v1/chat/completions", "{}").error().detail.find("/apply-template") !=
        std::string::npos);
  CHECK(b.prefill(0, {1}).error().detail.find("/completion") != std::string::npos);
  CHECK(b.save(0, "x").error().detail.find("/slots/0?action=save") != std::string::npos);
}

TEST_CASE("backend: a silent server is a time-out, a closed one unavailable") {
  Bench b;
  b.scripted.on_request([](const LoggedRequest&, toki::test::Connection& connection) {
    connection.wait_peer_gone(toki::test::milliseconds(20000));
    return true;
  });
  CHECK(b.describe().error().code == Errc::timed_out);
  b.scripted.stop();
  CHECK(b.describe().error().code == Errc::unavailable);
}

TEST_CASE("backend: its key is sent with every call") {
  Bench b({}, "sk-own");
  REQUIRE(b.describe());
  for (const LoggedRequest& request : b.scripted.requests()) {
    CHECK(request.headers.get("authorization") == "Bearer sk-own");
  }
}

TEST_CASE("url: what is no http address is refused with the reason") {
  CHECK(parse_url("http://127.0.0.1:8080")->authority() == "127.0.0.1:8080");
  CHECK(parse_url("http://localhost/")->port == "80");
  CHECK(parse_url("http://[::1]:9")->authority() == "[::1]:9");
  for (const char* bad :
       {"", "localhost:8080", "https://x", "http://", "http://x:0", "http://x:99999", "http://x:8a",
        "http://x/path", "http://u@x", "http://[::1", "http://x:"}) {
    CAPTURE(bad);
    const auto result = parse_url(bad);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == Errc::invalid_argument);
  }
}
