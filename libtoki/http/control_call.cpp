#include "http/control_call.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

Error nonsense(std::string_view call) {
  return {Errc::backend,
          fmt::format("{} answered something that is not what llama-server answers", call)};
}

Error refused(std::string_view call, const Reply& reply) {
  dom::parser parser;
  std::string type;
  dom::element root;
  if (parser.parse(reply.body.data(), reply.body.size()).get(root) == simdjson::SUCCESS) {
    type = text(root, "/error/type");
  }
  const bool unknown = reply.status == 404 || reply.status == 405 || reply.status == 501;
  const Errc code = unknown ? Errc::unsupported : Errc::backend;
  return {code,
          fmt::format("{} answered {}{}{}", call, reply.status, type.empty() ? "" : " ", type)};
}

std::optional<Error> failure(std::string_view call, const Result<Reply>& reply) {
  if (!reply) {
    return reply.error();
  }
  return reply->status == 200 ? std::nullopt : std::optional(refused(call, *reply));
}

std::uint64_t number(dom::element root, std::string_view pointer) {
  return member<std::uint64_t>(root, pointer, 0);
}

std::string text(dom::element root, std::string_view pointer) {
  return std::string(member<std::string_view>(root, pointer, {}));
}

std::optional<Tokens> read_tokens(dom::array ids) {
  Tokens tokens;
  tokens.reserve(ids.size());
  for (const dom::element id : ids) {
    std::int64_t value = 0;
    if (id.get(value) != simdjson::SUCCESS || value < INT32_MIN || value > INT32_MAX) {
      return std::nullopt;
    }
    tokens.push_back(static_cast<Token>(value));
  }
  return tokens;
}

asio::awaitable<Result<Tokens>> tokenize(Upstream& upstream, std::string_view escaped,
                                         TokenizeFlags flags, std::string_view authorization,
                                         Millis limit) {
  const std::array<std::string_view, 5> body{
      R"({"content":")", escaped,
      flags.add_special ? R"(","add_special":true)" : R"(","add_special":false)",
      flags.parse_special ? R"(,"parse_special":true)" : R"(,"parse_special":false)", "}"};
  auto reply = co_await upstream.call("POST", "/tokenize", body, authorization, limit);
  if (const auto failed = failure("/tokenize", reply)) {
    co_return *failed;
  }
  dom::parser parser;
  dom::element root;
  dom::array ids;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS ||
      root["tokens"].get(ids) != simdjson::SUCCESS) {
    co_return nonsense("/tokenize");
  }
  auto tokens = read_tokens(ids);
  co_return tokens ? Result<Tokens>(std::move(*tokens)) : nonsense("/tokenize");
}

}  // namespace toki::http
