#include <toki/http/body_edit.hpp>
#include <toki/http/explain.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/volatile_line.hpp>

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

namespace toki::http {

namespace asio = boost::asio;
using Time = std::chrono::steady_clock::time_point;

namespace {

Endpoint endpoint_for(std::string_view path, const Body& body) {
  if (!path.empty()) {
    return endpoint_of("POST", path);
  }
  return body.find("messages") != nullptr       ? Endpoint::chat
         : body.find("input") != nullptr        ? Endpoint::responses
         : body.find("prompt") != nullptr       ? Endpoint::completions
         : body.find("input_prefix") != nullptr ? Endpoint::infill
                                                : Endpoint::none;
}

HttpError refusal(unsigned status, std::string_view type, std::string message) {
  HttpError error{.status = status, .type = type, .message = std::move(message)};
  return error;
}

bool is_assistant(const JsonField& message) {
  const auto role = member(message.value, "role");
  return role && role->value == R"("assistant")";
}

// How many of the prompt's leading tokens its first `count` messages make; none when the template
// does not render them alone. An assistant's message at the end would be rendered as one to be
// continued, so an empty user's follows it.
asio::awaitable<std::optional<std::size_t>> tokens_up_to(LlamaServerBackend& backend,
                                                         const Body& body, std::size_t count,
                                                         TokenSpan prompt,
                                                         std::string_view authorization) {
  std::string list;
  Children messages(body.find("messages")->value);
  for (std::size_t i = 0; i < count; ++i) {
    const JsonField& message = *messages.next();
    list.append(i == 0 ? "[" : ",").append(message.value);
    if (i + 1 == count && is_assistant(message)) {
      list.append(R"(,{"role":"user","content":""})");
    }
  }
  const std::array<BodyEdit, 2> edits{
      {{"messages", list + "]"}, {"add_generation_prompt", "false"}}};
  std::vector<std::string> storage;
  std::string text;
  for (const std::string_view piece : splice(body, edits, storage)) {
    text.append(piece);
  }
  const PromptSource part{
      .path = path_of(Endpoint::chat), .body = text, .authorization = authorization};
  const auto rendered = co_await backend.async_render(part);
  co_return rendered ? std::optional(common_prefix(rendered->tokens, prompt)) : std::nullopt;
}

// The first message whose end lies behind `token`, by bisection.
asio::awaitable<std::optional<std::size_t>> message_at(LlamaServerBackend& backend,
                                                       const Body& body, TokenSpan prompt,
                                                       std::size_t token, Time deadline,
                                                       std::string_view authorization) {
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
    const auto end = co_await tokens_up_to(backend, body, middle, prompt, authorization);
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
  Query query = query_for(wanted, monitor.identity());
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
    result.message = co_await message_at(backend, body, query.tokens, result.found.common, deadline,
                                         source.authorization);
  }
  co_return result;
}

std::string to_json(const Explanation& explanation) {
  const Lookup& found = explanation.found;
  std::string nearest = "null";
  if (found.nearest) {
    nearest = fmt::format(R"({{"id":{},"tokens":{},"common_tokens":{},"parts_at_message":{}}})",
                          found.nearest->id, found.nearest->tokens, found.common,
                          explanation.message ? std::to_string(*explanation.message) : "null");
  }
  return fmt::format(
      R"({{"class":"{}","prompt_tokens":{},"known_tokens":{},"reused_tokens":{},"source":"{}",)"
      R"("slot":{},"waits":{},"reason":"{}","nearest":{}{}}})"
      "\n",
      to_string(found.predicted_class), explanation.prompt_tokens, found.available, found.predicted,
      to_string(found.source), found.slot ? std::to_string(*found.slot) : "null", found.busy,
      to_string(found.reason), nearest,
      explanation.why.empty() ? "" : R"(,"error":)" + quote(explanation.why));
}

}  // namespace toki::http
