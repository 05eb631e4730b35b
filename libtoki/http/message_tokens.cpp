#include "http/message_tokens.hpp"

#include <toki/http/generation_request.hpp>

#include <array>
#include <string>

namespace toki::http {

namespace asio = boost::asio;

namespace {

bool has_role(const JsonField& message, std::string_view quoted) {
  if (message.kind != JsonKind::object) {
    return false;
  }
  const auto role = member(message.value, "role");
  return role && role->value == quoted;
}

bool is_system(const JsonField& message) {
  return has_role(message, R"("system")") || has_role(message, R"("developer")");
}

}  // namespace

// An assistant's message at the end would be rendered as one to be continued, and a system's alone not
// at all by some templates: an empty user's follows them.
asio::awaitable<std::optional<std::size_t>> message_tokens(LlamaServerBackend& backend,
                                                           const Body& body, std::size_t count,
                                                           TokenSpan prompt,
                                                           std::string_view authorization,
                                                           std::string_view tenant) {
  std::string list;
  Children messages(body.find("messages")->value);
  for (std::size_t i = 0; i < count; ++i) {
    const JsonField& message = *messages.next();
    list.append(i == 0 ? "[" : ",").append(message.value);
    if (i + 1 == count && (has_role(message, R"("assistant")") || is_system(message))) {
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
  const PromptSource part{.path = path_of(Endpoint::chat),
                          .body = text,
                          .authorization = authorization,
                          .tenant = tenant};
  const auto rendered = co_await backend.async_render(part);
  co_return rendered ? std::optional(common_prefix(rendered->tokens, prompt)) : std::nullopt;
}

asio::awaitable<std::vector<std::uint64_t>> prompt_boundaries(LlamaServerBackend& backend,
                                                              const Body& body, TokenSpan prompt,
                                                              std::string_view authorization,
                                                              std::string_view tenant) {
  std::vector<std::uint64_t> boundaries;
  const JsonField* messages = body.find("messages");
  if (messages == nullptr || messages->kind != JsonKind::array) {
    co_return boundaries;
  }
  Children list(messages->value);
  const JsonField* first = list.next();
  if (first == nullptr || !is_system(*first)) {
    co_return boundaries;
  }
  const auto end = co_await message_tokens(backend, body, 1, prompt, authorization, tenant);
  if (end && *end > 0) {
    boundaries.push_back(*end);
  }
  co_return boundaries;
}

}  // namespace toki::http
