// LlamaServerBackend's calls against the scripted llama-server: what it says, and how it fails.
#include <toki/blocking_driver.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include "run_call.hpp"
#include "scripted_upstream.hpp"
#include "wait.hpp"

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
  template <class T>
  T run(boost::asio::awaitable<T> call) {
    return toki::test::run_call(io, std::move(call));
  }
  Result<Rendered> full(std::string_view path, std::string_view body) {
    return run(backend.async_render({path, body, {}}));
  }
  // What the server was asked to tokenize, since the log was cleared.
  std::vector<std::string> tokenized() const {
    std::vector<std::string> texts;
    for (const LoggedRequest& request : scripted.requests_to("POST", "/tokenize")) {
      texts.push_back(request.json()["content"].str());
    }
    return texts;
  }
  Result<BackendDescription> describe() {
    return wait_for<BackendDescription>([&](auto done) { backend.describe(std::move(done)); });
  }
  Result<Prefilled> prefill(std::uint32_t slot, const Tokens& prompt) {
    return wait_for<Prefilled>(
        [&](auto done) { backend.prefill({.index = slot}, prompt, std::move(done)); });
  }
  Result<std::uint64_t> save(std::uint32_t slot, std::string_view name) {
    const auto saved =
        wait_for<Timed>([&](auto done) { backend.save({.index = slot}, name, std::move(done)); });
    return saved ? Result<std::uint64_t>(saved->tokens) : saved.error();
  }
  Result<std::uint64_t> restore(std::uint32_t slot, std::string_view name) {
    const auto restored = wait_for<Timed>(
        [&](auto done) { backend.restore({.index = slot}, name, std::move(done)); });
    return restored ? Result<std::uint64_t>(restored->tokens) : restored.error();
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

TEST_CASE("backend: a model file that was written again is another model") {
  Bench b;
  const toki::test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/m.gguf";
  std::ofstream(path) << "weights";
  b.scripted.configure([&](Behaviour& behaviour) { behaviour.model_path = path; });
  const std::string identity = b.describe()->identity;
  CHECK(b.describe()->identity == identity);
  const std::array<timespec, 2> later{timespec{.tv_sec = 2'000'000'000, .tv_nsec = 0},
                                      timespec{.tv_sec = 2'000'000'000, .tv_nsec = 1}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), later.data(), 0) == 0);
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

namespace {

Behaviour with_specials() {
  Behaviour behaviour;
  behaviour.cuts_specials = true;
  behaviour.chat_template = "{{ '<|im_start|>' + role }} <|im_end|> <|nl|> {{ x['<|no|>'] }} <i>";
  return behaviour;
}

std::string chat(const std::vector<std::string>& turns) {
  std::string messages;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    messages += (i > 0 ? "," : "") + std::string(R"({"role":")") +
                (i % 2 == 0 ? "user" : "assistant") + R"(","content":)" +
                toki::test::quote(turns[i]) + "}";
  }
  return R"({"messages":[)" + messages + "]}";
}

constexpr const char* kChatPath = "/v1/chat/completions";

}  // namespace

TEST_CASE("backend: of a conversation that goes on only the new end is tokenized") {
  Bench b(with_specials());
  REQUIRE(b.describe());
  CHECK(b.run(b.backend.async_learn_special_tokens()) == 4);  // <i> is no special token
  b.scripted.clear_log();
  const auto first = b.full(kChatPath, chat({"one \"two\"\n three"}));
  REQUIRE(first);
  CHECK_FALSE(first->from_parts);
  CHECK_FALSE(first->surrogate);
  const auto second = b.full(kChatPath, chat({"one \"two\"\n three", "yes", "four <|im_end|> x"}));
  REQUIRE(second);
  CHECK(second->from_parts);
  const auto texts = b.tokenized();
  REQUIRE(texts.size() == 2);
  CHECK(texts[1].rfind("<|im_start|>assistant\nyes <|im_end|>", 0) == 0);
  CHECK(texts[1].find("one") == std::string::npos);
  const auto exact = b.scripted.tokenize(toki::test::Json::parse(second->text)->str());
  CHECK(second->tokens == Tokens(exact.begin(), exact.end()));

  const auto again = b.full(kChatPath, chat({"one \"two\"\n three", "yes", "four <|im_end|> x"}));
  CHECK(b.tokenized().size() == 2);
  CHECK(again->tokens == second->tokens);
  const auto stats = b.backend.token_cache_stats();
  CHECK(stats.texts == 1);
  CHECK(stats.bytes > 0);
  CHECK(stats.whole_hits == 1);
  CHECK(stats.part_hits == 1);
  CHECK(stats.tokens_saved == first->tokens.size() - 2 + second->tokens.size());
}

TEST_CASE("backend: the prompt of a completion uses what is known of its text") {
  Bench b(with_specials());
  CHECK(b.run(b.backend.async_learn_special_tokens()) == 4);
  REQUIRE(b.full("/v1/completions", R"({"prompt":"a b<|nl|>c"})"));
  b.scripted.clear_log();
  CHECK(b.full("/completion", R"({"prompt":"a b<|nl|>d e"})")->tokens.size() == 6);
  CHECK(b.full("/completion", R"({"prompt":"a b<|nl|>c"})")->tokens.size() == 5);
  CHECK(b.tokenized() == std::vector<std::string>{"<|nl|>d e"});
  CHECK(b.full("/completion", R"({"prompt":[1,2]})")->tokens == Tokens{1, 2});
}

TEST_CASE("backend: special tokens that cannot be cut at are not used, whole texts are") {
  Behaviour behaviour = with_specials();
  behaviour.cuts_specials = false;  // then letters beside them belong to them
  Bench b(behaviour);
  CHECK(b.run(b.backend.async_learn_special_tokens()) == 0);
  REQUIRE(b.full(kChatPath, chat({"one"})));
  b.scripted.clear_log();
  CHECK_FALSE(b.full(kChatPath, chat({"one", "yes", "two"}))->from_parts);
  REQUIRE(b.full(kChatPath, chat({"one", "yes", "two"})));
  CHECK(b.tokenized().size() == 1);
  CHECK(b.tokenized()[0].find("one") != std::string::npos);
}

TEST_CASE("backend: a server that does not answer while its tokens are tried is used without") {
  Bench b(with_specials());
  std::atomic<int> calls{0};
  b.scripted.on_request([&](const LoggedRequest& request, toki::test::Connection& connection) {
    return request.path == "/tokenize" && ++calls > 9 && connection.respond(500, "{}");
  });
  CHECK(b.run(b.backend.async_learn_special_tokens()) == 0);
  CHECK(calls == 10);
}

TEST_CASE("backend: wrong remembered tokens end the cache until the server is started again") {
  Bench b(with_specials());
  CHECK(b.run(b.backend.async_learn_special_tokens()) == 4);
  REQUIRE(b.full(kChatPath, chat({"one"})));
  CHECK(b.backend.tokens_were_wrong());
  CHECK_FALSE(b.backend.tokens_were_wrong());
  CHECK(b.backend.token_cache_stats().off);
  CHECK(b.backend.token_cache_stats().texts == 0);
  b.scripted.clear_log();
  REQUIRE(b.full(kChatPath, chat({"one"})));
  REQUIRE(b.full(kChatPath, chat({"one"})));
  CHECK(b.tokenized().size() == 2);
  b.backend.forget_tokens();
  REQUIRE(b.full(kChatPath, chat({"one"})));
  REQUIRE(b.full(kChatPath, chat({"one"})));
  CHECK(b.tokenized().size() == 3);
  CHECK_FALSE(b.backend.token_cache_stats().off);
}

namespace {
boost::asio::awaitable<bool> forget(LlamaServerBackend& backend) {
  backend.forget_tokens();
  co_return true;
}
}  // namespace

TEST_CASE("backend: a restart while a prompt is tokenized mixes no tokens of two tokenizers") {
  Bench b(with_specials());
  CHECK(b.run(b.backend.async_learn_special_tokens()) == 4);
  REQUIRE(b.full("/completion", R"({"prompt":"a b<|nl|>c"})"));
  b.scripted.clear_log();
  std::atomic<bool> first{true};
  b.scripted.on_request([&](const LoggedRequest& request, toki::test::Connection&) {
    if (request.path == "/tokenize" && first.exchange(false)) {
      b.run(forget(b.backend));
    }
    return false;
  });
  const auto rendered = b.full("/completion", R"({"prompt":"a b<|nl|>d"})");
  REQUIRE(rendered);
  CHECK_FALSE(rendered->from_parts);
  CHECK(b.tokenized() == std::vector<std::string>{"<|nl|>d", "a b<|nl|>d"});
}

TEST_CASE("backend: without memory for it nothing is remembered and nothing tried") {
  Bench b(with_specials());
  LlamaServerBackend backend(b.io.get_executor(), b.upstream, {.token_cache_bytes = 0});
  CHECK(b.run(backend.async_learn_special_tokens()) == 0);
  const PromptSource source{"/completion", R"({"prompt":"a"})", {}};
  CHECK(b.run(backend.async_render(source)));
  CHECK(b.run(backend.async_render(source)));
  CHECK(b.tokenized().size() == 2);
}

namespace {

std::string with_media(const std::string& parts) {
  return R"({"messages":[{"role":"user","content":[{"type":"text","text":"what is this"},)" +
         parts + R"(,{"type":"text","text":"after it"}]}]})";
}
std::string image(const std::string& url) {
  return R"({"type":"image_url","image_url":{"url":")" + url + R"("}})";
}

}  // namespace

TEST_CASE("backend: a medium stands in the tokens with what its bytes are") {  // B30
  Bench b(with_specials());
  REQUIRE(b.describe());  // tells the marker
  const auto red = b.full(kChatPath, with_media(image("data:image/png;base64,UkVE")));
  const auto blue = b.full(kChatPath, with_media(image("data:image/png;base64,QkxVRQ==")));
  const auto red_again = b.full(kChatPath, with_media(image("data:image/png;base64,UkVE")));
  REQUIRE((red && blue && red_again));
  CHECK(red->surrogate);
  CHECK(red->tokens == red_again->tokens);
  const std::size_t before = 1 + 2 + 3;  // start, <|im_start|> user, what is this
  const std::size_t after = 2 + 2 + 2;   // after it, <|im_end|> <|nl|>, <|im_start|> assistant
  CHECK(red->tokens.size() == before + 8 + after);
  CHECK(common_prefix(red->tokens, blue->tokens) == before);
  for (std::size_t i = before; i < before + 8; ++i) {
    CHECK(red->tokens[i] < 0);
    CHECK(blue->tokens[i] < 0);
    CHECK(red->tokens[i] != blue->tokens[i]);
  }
  CHECK(TokenSpan(red->tokens).subspan(before + 8).size() == after);

  const auto named = b.full(kChatPath, with_media(image("http://127.0.0.1/red.png")));
  const auto named_again = b.full(kChatPath, with_media(image("http://127.0.0.1/red.png")));
  CHECK(common_prefix(named->tokens, named_again->tokens) == before);

  // As a Backend it only gives exact tokens.
  const auto exact = b.render(kChatPath, with_media(image("data:image/png;base64,UkVE")));
  CHECK(exact.error().code == Errc::unsupported);
}

TEST_CASE("backend: media whose number is not that of the markers are not guessed at") {
  Bench b;
  REQUIRE(b.describe());
  const std::string marker = b.scripted.media_marker();
  const std::string red = image("data:image/png;base64,UkVE");
  for (const std::string& body : {chat({"a text with " + marker}),
                                  with_media(red + R"(,{"type":"text","text":")" + marker + "\"}"),
                                  with_media(R"({"type":"unheard_of","x":"y"})")}) {
    const auto rendered = b.full(kChatPath, body);
    REQUIRE_FALSE(rendered);
    CHECK(rendered.error().code == Errc::unsupported);
    CHECK(rendered.error().detail == "the prompt holds media");
  }
  CHECK(b.full(kChatPath, with_media(red + "," + red))->tokens.size() ==
        1 + 1 + 3 + 16 + 2 + 2 + 1);
}

TEST_CASE("url: what is no address of a server is refused with the reason") {
  CHECK(parse_url("https://example.org")->port == "443");
  CHECK(parse_url("https://example.org")->tls);
  CHECK(parse_url("unix:/run/llama.sock")->path == "/run/llama.sock");
  CHECK(parse_url("unix:/run/llama.sock")->authority() == "localhost");
  CHECK(parse_url("unix:/run/llama.sock")->name() == "unix:/run/llama.sock");
  CHECK(parse_url("http://127.0.0.1:8080")->authority() == "127.0.0.1:8080");
  CHECK(parse_url("http://localhost/")->port == "80");
  CHECK(parse_url("http://[::1]:9")->authority() == "[::1]:9");
  for (const char* bad : {"", "localhost:8080", "ftp://x", "https://", "unix:", "unix:x.sock",
                          "http://", "http://x:0", "http://x:99999", "http://x:8a", "http://x/path",
                          "http://u@x", "http://[::1", "http://x:"}) {
    CAPTURE(bad);
    const auto result = parse_url(bad);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == Errc::invalid_argument);
  }
}

TEST_CASE("connections of a burst are kept for the next one, and all but two closed soon after") {
  using namespace boost::asio::experimental::awaitable_operators;
  Bench bench;
  const auto ask = [&] { return bench.backend.async_health(); };
  const auto twice = [&]() -> boost::asio::awaitable<bool> {
    for (int i = 0; i < 2; ++i) {
      co_await (ask() && ask() && ask() && ask());
    }
    co_return true;
  };
  // A machine that stands still between the two may take the first one's connections for unused.
  const auto reused = [&] {
    bench.scripted.clear_log();
    bench.run(twice());
    std::set<std::uint64_t> used;
    for (const LoggedRequest& request : bench.scripted.requests()) {
      used.insert(request.connection);
    }
    return bench.scripted.requests().size() == 8 && used.size() == 4;
  };
  CHECK(toki::test::wait_until(reused));
  CHECK(toki::test::wait_until([&] { return bench.scripted.open_connections() == 2; }));
}
