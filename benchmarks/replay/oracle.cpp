#include "oracle.hpp"

#include <fmt/format.h>

#include "answer.hpp"
#include "json.hpp"
#include "random.hpp"

namespace replay {
namespace {

using toki::Errc;
using toki::Error;

toki::Result<json::value> ask(const Address& server, std::string_view path,
                              const std::string& body) {
  Call request{.method = "POST", .path = path, .body = body};
  request.silence = std::chrono::seconds(30);
  request.until_stop = false;  // what was measured before a stop has an oracle, too
  auto reply = call(server, request);
  if (!reply) return std::move(reply).error();
  if (reply->status != 200) {
    return Error{Errc::backend,
                 fmt::format("{}: {} {}", path, reply->status, error_message(reply->body))};
  }
  boost::system::error_code ec;
  json::value value = json::parse(reply->body, ec);
  if (ec) return Error{Errc::backend, fmt::format("{}: no JSON", path)};
  return value;
}

toki::Result<toki::Tokens> as_tokens(const json::value& list) {
  const json::array* ids = list.if_array();
  if (ids == nullptr) return Error{Errc::backend, "no list of tokens"};
  toki::Tokens tokens;
  tokens.reserve(ids->size());
  for (const json::value& id : *ids) {
    if (!id.is_number()) return Error{Errc::unsupported, "several prompts in one request"};
    tokens.push_back(static_cast<toki::Token>(integer_of(id, 0)));
  }
  return tokens;
}

toki::Result<toki::Tokens> tokenize(const Address& server, const json::value& text) {
  const json::object request{{"content", text}, {"add_special", true}, {"parse_special", true}};
  auto answer = ask(server, "/tokenize", json::serialize(request));
  if (!answer) return std::move(answer).error();
  return as_tokens(member(*answer, "tokens"));
}

}  // namespace

std::size_t Oracle::add(toki::TokenSpan prompt) {
  std::uint64_t prefix = 0;
  std::size_t fresh = 0;
  for (const toki::Token token : prompt) {
    prefix = bench::mix(prefix * 0x9e3779b97f4a7c15ULL + static_cast<std::uint32_t>(token) + 1);
    if (seen_.insert(prefix).second) ++fresh;
  }
  return fresh;
}

toki::Result<toki::Tokens> tokens_of(const Address& server, const std::string& path,
                                     const std::string& body) {
  if (path.find("/chat/completions") != std::string::npos) {
    auto rendered = ask(server, "/apply-template", body);
    if (!rendered) return std::move(rendered).error();
    return tokenize(server, member(*rendered, "prompt"));
  }
  boost::system::error_code ec;
  const json::value value = json::parse(body, ec);
  const json::value& prompt = member(value, "prompt");
  if (path.find("/completion") == std::string::npos || prompt.is_null()) {
    return Error{Errc::unsupported, path + ": only the server knows the prompt"};
  }
  return prompt.is_array() ? as_tokens(prompt) : tokenize(server, prompt);
}

}  // namespace replay
