#include <toki/http/body_edit.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/pins_call.hpp>
#include <toki/http/volatile_line.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace toki::http {

namespace asio = boost::asio;

namespace {

HttpError refusal(unsigned status, std::string message) {
  HttpError error{.status = status,
                  .type = status == 503 ? "unavailable_error" : "invalid_request_error",
                  .message = std::move(message)};
  if (status == 503) {
    error.retry_after = 1;
  }
  return error;
}

HttpError refusal(const Error& error) {
  const unsigned status = error.code == Errc::busy                                           ? 409U
                          : error.code == Errc::not_found                                    ? 404U
                          : error.code == Errc::unavailable || error.code == Errc::timed_out ? 503U
                                                                                             : 400U;
  return refusal(status, error.detail);
}

// Ids of prompts are counted for all tenants, and slots are the others' too.
std::string to_json(const PinInfo& pin, bool apart) {
  return fmt::format(R"({{"id":{},"tokens":{},"by_hand":{},"state":"{}","slot":{},"prompt":{}}})",
                     pin.id, pin.tokens, pin.by_hand, to_string(pin.state),
                     pin.slot && !apart ? std::to_string(*pin.slot) : "null",
                     pin.prompt != 0 && !apart ? std::to_string(pin.prompt) : "null");
}

std::optional<Tokens> read_token_list(const JsonField& field) {
  Tokens tokens;
  if (field.kind != JsonKind::array) {
    return std::nullopt;
  }
  Children entries(field.value);
  while (const JsonField* entry = entries.next()) {
    const auto number = as_integer(*entry);
    if (!number || *number < 0 || *number > std::numeric_limits<Token>::max()) {
      return std::nullopt;
    }
    tokens.push_back(static_cast<Token>(*number));
  }
  return tokens;
}

// `text` (a JSON string) as prompts that go on from it in different ways.
std::vector<std::string> continued_text(std::string_view text) {
  std::vector<std::string> bodies;
  const std::string_view open = text.substr(0, text.size() - 1);
  for (const std::string_view more : {" a", "z", "\\n1"}) {
    bodies.push_back(fmt::format(R"({{"prompt":{}{}"}})", open, more));
  }
  return bodies;
}

// The last entry's role: who speaks next depends on it.
bool answer_follows(const JsonField& messages) {
  std::string role;
  Children entries(messages.value);
  while (const JsonField* entry = entries.next()) {
    const auto said = entry->kind == JsonKind::object ? member(entry->value, "role") : std::nullopt;
    role = said && said->kind == JsonKind::string ? unescape(said->value) : "";
  }
  return role == "user" || role == "tool" || role == "function";
}

// The chat as it would go on in different ways. Behind a user's message that is the answer, so there
// the prompt that asks for it is one of the ways.
std::vector<std::string> continued_chat(const Body& body) {
  std::vector<std::string> bodies;
  const JsonField& messages = *body.find("messages");
  const bool answer = answer_follows(messages);
  if (answer) {
    bodies.emplace_back(body.text());
  }
  const std::string_view open = messages.value.substr(0, messages.value.size() - 1);
  for (const std::string_view word : {"a", "1"}) {
    std::string list(open);
    list += answer ? fmt::format(R"(,{{"role":"assistant","content":"{}"}})", word) : "";
    list += fmt::format(R"(,{{"role":"user","content":"{}"}}])", word);
    const std::array<BodyEdit, 1> edits{{{"messages", std::move(list)}}};
    std::vector<std::string> storage;
    std::string& text = bodies.emplace_back();
    for (const std::string_view piece : splice(body, edits, storage)) {
      text.append(piece);
    }
  }
  return bodies;
}

// The tokens with which all of these begin.
asio::awaitable<Result<Tokens>> common_tokens(LlamaServerBackend& backend, Endpoint endpoint,
                                              const std::vector<std::string>& bodies,
                                              const PinAsker& asker) {
  Tokens common;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    const PromptSource source{.path = path_of(endpoint),
                              .body = bodies[i],
                              .authorization = asker.authorization,
                              .tenant = asker.tenant};
    auto rendered = co_await backend.async_render(source);
    if (!rendered) {
      co_return std::move(rendered).error();
    }
    if (rendered->surrogate) {
      co_return Error{Errc::unsupported, "what holds media cannot be pinned"};
    }
    if (i == 0) {
      common = std::move(rendered->tokens);
    } else {
      common.resize(common_prefix(common, rendered->tokens));
    }
  }
  co_return common;
}

std::optional<HttpError> check(const Body& body, const PinLimits& limits) {
  std::size_t given = 0;
  for (const std::string_view name : {"text", "messages", "tokens", "prompt"}) {
    given += body.find(name) != nullptr ? 1U : 0U;
  }
  const JsonField* text = body.find("text");
  const JsonField* messages = body.find("messages");
  if (given != 1) {
    return refusal(400, "exactly one of text, messages, tokens and prompt is wanted");
  }
  if (text != nullptr && text->kind != JsonKind::string) {
    return refusal(400, "text must be a string");
  }
  if (messages != nullptr &&
      (messages->kind != JsonKind::array || !Children(messages->value).next())) {
    return refusal(400, "messages must be a list that is not empty");
  }
  if (body.find("lora") != nullptr) {
    return refusal(400, "what is computed with adapters of its own (lora) cannot be pinned");
  }
  if (body.find("tokens") == nullptr && body.text().size() > limits.max_rendered_bytes) {
    return refusal(400, "this is too large to be tokenized");
  }
  return std::nullopt;
}

asio::awaitable<Result<Tokens>> tokens_of(LlamaServerBackend& backend, const Body& body,
                                          const PinAsker& asker,
                                          std::span<const std::string> volatile_lines) {
  if (const JsonField* list = body.find("tokens")) {
    auto tokens = read_token_list(*list);
    if (!tokens) {
      co_return Error{Errc::invalid_argument, "tokens must be a list of token ids"};
    }
    const std::uint64_t known = backend.vocabulary();
    const auto beyond = [known](Token id) { return static_cast<std::uint64_t>(id) >= known; };
    if (known > 0 && std::any_of(tokens->begin(), tokens->end(), beyond)) {
      co_return Error{Errc::invalid_argument,
                      fmt::format("the model has only the token ids from 0 to {}", known - 1)};
    }
    co_return std::move(*tokens);
  }
  if (const JsonField* text = body.find("text")) {
    const auto bodies = continued_text(text->value);
    co_return co_await common_tokens(backend, Endpoint::completions, bodies, asker);
  }
  const auto shortened = without_volatile_line(Endpoint::chat, body, volatile_lines);
  std::optional<Body> without;
  if (shortened) {
    auto parsed = Body::parse(*shortened);
    without = std::get<Body>(std::move(parsed));
  }
  const auto bodies = continued_chat(without ? *without : body);
  co_return co_await common_tokens(backend, Endpoint::chat, bodies, asker);
}

// A remembered prompt, or its first `length` tokens: nobody has to send them again.
Result<std::uint64_t> pin_remembered(Engine& engine, const Body& body) {
  const JsonField* prompt = body.find("prompt");
  const JsonField* length = body.find("length");
  const auto id = prompt != nullptr ? as_integer(*prompt) : std::nullopt;
  const auto count = length != nullptr ? as_integer(*length) : std::optional<std::int64_t>(0);
  if (!id || *id < 0 || !count || *count < (length != nullptr ? 1 : 0)) {
    return Error{Errc::invalid_argument, "prompt and length must be numbers"};
  }
  return engine.pin_prompt(static_cast<std::uint64_t>(*id), static_cast<std::uint64_t>(*count));
}

}  // namespace

std::string list_pins(const Engine& engine, std::string_view tenant) {
  std::string rows;
  for (const PinInfo& pin : engine.pins()) {
    if (tenant.empty() || tenant_of(pin.scope) == tenant) {
      rows += (rows.empty() ? "" : ",") + to_json(pin, !tenant.empty());
    }
  }
  return "{\"pins\":[" + rows + "]}\n";
}

asio::awaitable<std::variant<std::string, HttpError>> add_pin(LlamaServerBackend& backend,
                                                              BackendMonitor& monitor,
                                                              Engine& engine, std::string_view body,
                                                              const PinAsker& asker,
                                                              const PinLimits& limits) {
  const auto parsed = Body::parse(body);
  if (const auto* bad = std::get_if<BodyError>(&parsed)) {
    HttpError error = refusal(400, fmt::format("{} at byte {}", bad->reason, bad->offset));
    error.offset = bad->offset;
    co_return error;
  }
  if (auto wrong = check(std::get<Body>(parsed), limits)) {
    co_return std::move(*wrong);
  }
  co_await monitor.verify();
  co_await monitor.tried();
  if (monitor.state() != BackendMonitor::State::ready) {
    co_return refusal(503, fmt::format("the backend is {}", to_string(monitor.state())));
  }
  const Body& wanted = std::get<Body>(parsed);
  if (wanted.find("prompt") != nullptr && !asker.tenant.empty()) {
    co_return refusal(400, "a tenant pins by text, messages or tokens");
  }
  Result<std::uint64_t> id = pin_remembered(engine, wanted);
  if (wanted.find("prompt") == nullptr) {
    const auto tokens = co_await tokens_of(backend, wanted, asker, limits.volatile_lines);
    const Scope scope = query_for(GenerationRequest{}, monitor.identity(), asker.tenant).scope;
    id = tokens ? engine.pin(scope, *tokens) : tokens.error();
  }
  if (!id) {
    co_return refusal(id.error());
  }
  const auto pins = engine.pins();
  const auto made =
      std::find_if(pins.begin(), pins.end(), [&](const PinInfo& pin) { return pin.id == *id; });
  co_return made == pins.end() ? std::string("{}\n") : to_json(*made, !asker.tenant.empty()) + "\n";
}

std::variant<std::string, HttpError> remove_pins(Engine& engine, std::string_view id,
                                                 std::string_view tenant) {
  std::size_t removed = 0;
  const auto pins = engine.pins();
  const auto may = [&](const PinInfo& pin) {
    return tenant.empty() || tenant_of(pin.scope) == tenant;
  };
  if (id.empty()) {
    for (const PinInfo& pin : pins) {
      removed += may(pin) && engine.unpin(pin.id) ? 1U : 0U;
    }
    return fmt::format("{{\"removed\":{}}}\n", removed);
  }
  std::uint64_t number = 0;
  const auto [end, ec] = std::from_chars(id.data(), id.data() + id.size(), number);
  if (ec != std::errc{} || end != id.data() + id.size()) {
    return refusal(400, "id must be a number");
  }
  const bool listed = std::any_of(pins.begin(), pins.end(),
                                  [&](const PinInfo& pin) { return pin.id == number && may(pin); });
  if (!listed || !engine.unpin(number)) {
    return refusal(404, "there is no pin of this id");
  }
  return std::string("{\"removed\":1}\n");
}

}  // namespace toki::http
