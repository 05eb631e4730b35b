#include "http/control_call.hpp"

#include <fmt/format.h>

#include <array>

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
  const Errc code = reply.status == 501 || reply.status == 404 ? Errc::unsupported : Errc::backend;
  return {code,
          fmt::format("{} answered {}{}{}", call, reply.status, type.empty() ? "" : " ", type)};
}

std::uint64_t number(dom::element root, std::string_view pointer) {
  return member<std::uint64_t>(root, pointer, 0);
}

std::string text(dom::element root, std::string_view pointer) {
  return std::string(member<std::string_view>(root, pointer, {}));
}

namespace {

Result<Tokens> read_tokens(const Reply& reply) {
  dom::parser parser;
  dom::array ids;
  dom::element root;
  if (parser.parse(reply.body.data(), reply.body.size()).get(root) != simdjson::SUCCESS ||
      root["tokens"].get(ids) != simdjson::SUCCESS) {
    return nonsense("/tokenize");
  }
  Tokens tokens;
  tokens.reserve(ids.size());
  for (const dom::element id : ids) {
    std::int64_t value = 0;
    if (id.get(value) != simdjson::SUCCESS || value < INT32_MIN || value > INT32_MAX) {
      return nonsense("/tokenize");
    }
    tokens.push_back(static_cast<Token>(value));
  }
  return tokens;
}

}  // namespace

asio::awaitable<Result<Tokens>> tokenize(Upstream& upstream, std::string_view escaped,
                                         TokenizeFlags flags, std::string_view authorization,
                                         Millis limit) {
  const std::array<std::string_view, 5> body{
      R"({"content":")", escaped,
      flags.add_special ? R"(","add_special":true)" : R"(","add_special":false)",
      flags.parse_special ? R"(,"parse_special":true)" : R"(,"parse_special":false)", "}"};
  auto reply = co_await upstream.call("POST", "/tokenize", body, authorization, limit);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused("/tokenize", *reply);
  }
  co_return read_tokens(*reply);
}

}  // namespace toki::http
