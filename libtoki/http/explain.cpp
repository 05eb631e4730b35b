#include <toki/http/body_edit.hpp>
#include <toki/http/explain.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/volatile_line.hpp>

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "http/message_tokens.hpp"

namespace toki::http {

namespace asio = boost::asio;
using Time = std::chrono::steady_clock::time_point;

namespace {

Endpoint endpoint_for(std::string_view path, const Body& body) {
  if (!path.empty()) {
    return endpoint_of("POST", path);
  }
  const bool chat = body.find("messages") != nullptr;
  return chat && body.find("system") != nullptr ? Endpoint::messages
         : chat                                 ? Endpoint::chat
         : body.find("input") != nullptr        ? Endpoint::responses
         : body.find("prompt") != nullptr       ? Endpoint::completions
         : body.find("input_prefix") != nullptr ? Endpoint::infill
                                                : Endpoint::none;
}

HttpError refusal(unsigned status, std::string_view type, std::string message) {
  HttpError error{.status = status, .type = type, .message = std::move(message)};
  return error;
}

// The first message whose end lies behind `token`, by bisection.
asio::awaitable<std::optional<std::size_t>> message_at(LlamaServerBackend& backend,
                                                       const Body& body, TokenSpan prompt,
                                                       std::size_t token, Time deadline,
                                                       const PromptSource& asker) {
  const JsonField* messages = body.find("messages");
  if (messages == nullptr || messages->kind != JsonKind::array) {
    co_return std::nullopt;
  }
  const std::size_t count = children(messages->value).size();
  std::size_t before = 0;  // so many messages end at or before the token
  std::size_t behind = count + 1;
  while (before + 1 < behind) {
    if (std::chrono::steady_clock::now() > deadline) {
      co_return std::nullopt;
    }
    const std::size_t middle = before + (behind - before) / 2;
    const auto end =
        co_await message_tokens(backend, body, middle, prompt, asker.authorization, asker.tenant);
    if (!end) {
      co_return std::nullopt;
    }
    (*end <= token ? before : behind) = middle;
  }
  co_return behind > count ? std::nullopt : std::optional(before);
}

}  // namespace

asio::awaitable<std::variant<Explanation, HttpError>> explain(LlamaServerBackend& backend,
                                                              const BackendMonitor& monitor,
                                                              const Engine& engine,
                                                              PromptSource source,
                                                              const ExplainLimits& limits) {
  if (!monitor.serving()) {
    co_return refusal(503, "unavailable_error",
                      fmt::format("the backend is {}", to_string(monitor.state())));
  }
  auto parsed = Body::parse(source.body);
  if (const auto* bad = std::get_if<BodyError>(&parsed)) {
    HttpError error = refusal(400, "invalid_request_error",
                              fmt::format("{} at byte {}", bad->reason, bad->offset));
    error.offset = bad->offset;
    co_return error;
  }
  const Endpoint endpoint = endpoint_for(source.path, std::get<Body>(parsed));
  if (endpoint == Endpoint::none) {
    co_return refusal(400, "invalid_request_error",
                      "neither ?path= nor the body's fields name a call that takes a slot");
  }
  const auto shortened =
      without_volatile_line(endpoint, std::get<Body>(parsed), limits.volatile_lines);
  if (shortened) {
    source.body = *shortened;
    parsed = Body::parse(source.body);
  }
  const Body& body = std::get<Body>(parsed);
  auto read = read_generation_request(endpoint, body, engine.slots());
  if (const auto* bad = std::get_if<HttpError>(&read)) {
    co_return *bad;
  }
  auto& wanted = std::get<GenerationRequest>(read);
  if (monitor.several_models()) {
    leave_to_backend(wanted, Reason::several_models);
  }
  source.path = path_of(endpoint);
  const Time deadline = std::chrono::steady_clock::now() + limits.patience;
  Explanation result;
  Result<Rendered> rendered = Rendered{};
  if (wanted.known_prompt && source.body.size() > limits.max_rendered_bytes) {
    rendered = Error{Errc::invalid_argument, "too large"};
  } else if (wanted.known_prompt) {
    rendered = co_await backend.async_render(source);
  }
  Query query = query_for(wanted, monitor.identity(), source.tenant);
  if (rendered) {
    query.tokens = rendered->tokens;
    query.surrogate = query.surrogate || rendered->surrogate;
  } else {
    query.bypass = reason_unrendered(rendered.error());
    result.why = rendered.error().detail;
  }
  result.prompt_tokens = query.tokens.size();
  result.found = engine.lookup(query);
  if (endpoint == Endpoint::chat && result.found.nearest &&
      result.found.common < query.tokens.size()) {
    result.message =
        co_await message_at(backend, body, query.tokens, result.found.common, deadline, source);
  }
  result.apart = !source.tenant.empty();
  co_return result;
}

std::string to_json(const Explanation& explanation) {
  const Lookup& found = explanation.found;
  std::string nearest = "null";
  if (found.nearest) {
    nearest = fmt::format(R"({{"id":{},"tokens":{},"common_tokens":{},"parts_at_message":{}}})",
                          explanation.apart ? "null" : std::to_string(found.nearest->id),
                          found.nearest->tokens, found.common,
                          explanation.message ? std::to_string(*explanation.message) : "null");
  }
  return fmt::format(
      R"({{"class":"{}","prompt_tokens":{},"known_tokens":{},"reused_tokens":{},"source":"{}",)"
      R"("slot":{},"waits":{},"reason":"{}","nearest":{}{}}})"
      "\n",
      to_string(found.predicted_class), explanation.prompt_tokens, found.available, found.predicted,
      to_string(found.source),
      found.slot && !explanation.apart ? std::to_string(*found.slot) : "null",
      found.busy && !explanation.apart, to_string(apart_reason(found.reason, explanation.apart)),
      nearest, explanation.why.empty() ? "" : R"(,"error":)" + quote(explanation.why));
}

}  // namespace toki::http
