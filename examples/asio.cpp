// An Asio program that talks to a llama-server through toki::http, and sends one chat twice:
//
//     asio http://127.0.0.1:8080 "some text"
//
// cache_n is the server's own word for the tokens that it did not compute again.
#include <toki/engine.hpp>
#include <toki/http/answer_watch.hpp>
#include <toki/http/async_driver.hpp>
#include <toki/http/body_edit.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/upstream.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace asio = boost::asio;

namespace {

constexpr std::string_view kPath = "/v1/chat/completions";

struct Server {
  toki::Engine& engine;
  toki::http::Upstream& upstream;
  toki::http::LlamaServerBackend& backend;
};

template <class T>
T must(toki::Result<T> result) {
  if (!result) throw std::runtime_error(result.error().detail);
  return std::move(*result);
}

// [request]
/// Sends the chat to the slot that holds most of its prompt. What the server said of it.
asio::awaitable<toki::http::AnswerFacts> ask(Server server, const toki::Scope& scope,
                                             const std::string& chat) {
  const toki::PromptSource source{.path = kPath, .body = chat};
  const auto prompt = must(co_await server.backend.async_render(source));
  auto ticket = must(server.engine.begin({.scope = scope, .tokens = prompt.tokens}));
  co_await toki::http::run_steps(ticket, server.backend);

  const auto body = std::get<toki::http::Body>(toki::http::Body::parse(chat));
  std::vector<toki::http::BodyEdit> edits{{"cache_prompt", ticket.may_reuse() ? "true" : "false"}};
  if (ticket.slot()) edits.push_back({"id_slot", std::to_string(ticket.slot()->index)});
  std::vector<std::string> storage;
  const auto pieces = toki::http::splice(body, edits, storage);
  ticket.sent();
  const auto reply =
      must(co_await server.upstream.call("POST", kPath, pieces, {}, std::chrono::minutes(1)));

  toki::http::AnswerWatch watch(toki::http::AnswerKind::json);
  watch.feed(reply.body);
  watch.finish();
  const toki::http::AnswerFacts& facts = watch.facts();
  const bool ok = reply.status == 200;
  std::move(ticket).finish({.ending = ok ? toki::Ending::completed : toki::Ending::refused,
                            .computed = ok,
                            .prompt_tokens = facts.prompt_tokens,
                            .cached_tokens = facts.cached_tokens,
                            .prompt_ms = facts.prompt_ms.value_or(0),
                            .generated_tokens = facts.generated_tokens.value_or(0)});
  co_return facts;
}
// [/request]

asio::awaitable<void> ask_twice(Server server, std::string text) {
  (void)co_await server.backend.async_learn_chat_tokens();  // computes a tiny chat in slot 0
  const auto said = must(co_await server.backend.async_describe());
  toki::BackendFacts facts;
  facts.slots = said.slots;
  facts.slots_used = said.slots_used;
  facts.context = said.context;
  facts.own_cache = false;  // llama-server runs with --cache-ram 0
  server.engine.backend_changed(facts);

  const toki::Scope scope({said.identity});
  const std::string chat = R"({"messages":[{"role":"user","content":)" + toki::http::quote(text) +
                           R"(}],"max_tokens":8,"temperature":0})";
  for (int time = 0; time < 2; ++time) {
    const auto answer = co_await ask(server, scope, chat);
    std::printf("cache_n %llu of %llu tokens\n",
                static_cast<unsigned long long>(answer.cached_tokens.value_or(0)),
                static_cast<unsigned long long>(answer.prompt_tokens.value_or(0)));
  }
  server.upstream.keep_none();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("usage: asio URL TEXT");
    asio::io_context io{1};
    toki::http::Upstream upstream(io.get_executor(), must(toki::http::parse_url(argv[1])), {});
    toki::http::LlamaServerBackend backend(io.get_executor(), upstream);
    toki::Engine engine({}, &std::chrono::steady_clock::now);
    std::exception_ptr failure;
    asio::co_spawn(io, ask_twice({engine, upstream, backend}, argv[2]),
                   [&](std::exception_ptr error) { failure = error; });
    io.run();
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "asio: %s\n", error.what());
    return 1;
  }
}
