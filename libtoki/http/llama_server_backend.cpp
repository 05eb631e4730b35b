#include <toki/http/body_edit.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/scope.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <utility>

#include "http/responses_input.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

namespace {

using Pieces = std::vector<std::string_view>;

Error nonsense(std::string_view call) {
  return {Errc::backend,
          fmt::format("{} answered something that is not what llama-server answers", call)};
}

// A member of a reply, or `otherwise`: every field is optional, because builds differ.
template <class T>
T member(dom::element root, std::string_view pointer, T otherwise) {
  T value{};
  return root.at_pointer(pointer).get(value) == simdjson::SUCCESS ? value : otherwise;
}

std::uint64_t number(dom::element root, std::string_view pointer) {
  return member<std::uint64_t>(root, pointer, 0);
}

std::string text(dom::element root, std::string_view pointer) {
  return std::string(member<std::string_view>(root, pointer, {}));
}

// What the server said of its failure, without the request's text: its own message may quote the
// prompt, so only the type is kept.
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

Result<Tokens> read_ids(const JsonField& list) {
  Tokens tokens;
  Children items(list.value);
  while (const JsonField* item = items.next()) {
    const auto value = as_integer(*item);
    if (!value || *value < INT32_MIN || *value > INT32_MAX) {
      return Error{Errc::unsupported, "the prompt's token ids are not integers"};
    }
    tokens.push_back(static_cast<Token>(*value));
  }
  return tokens;
}

std::string prefill_body(SlotId slot, TokenSpan prompt) {
  return fmt::format(R"({{"prompt":[{}],"n_predict":0,"id_slot":{},"cache_prompt":true}})",
                     fmt::join(prompt, ","), slot.index);
}

// The text of a JSON string, without its quotes.
std::string_view inner(std::string_view raw) {
  return raw.substr(1, raw.size() - 2);
}

// A call that is ended before it answers drops its completion, which reports that.
template <class T>
asio::awaitable<void> complete(asio::awaitable<Result<T>> call, Completion<T> done) {
  done(co_await std::move(call));
}

}  // namespace

LlamaServerBackend::LlamaServerBackend(asio::any_io_executor executor, Upstream& upstream,
                                       LlamaServerLimits limits)
    : executor_(std::move(executor)), upstream_(upstream), limits_(limits) {}

asio::awaitable<Result<Reply>> LlamaServerBackend::get(std::string_view target, Millis limit) {
  co_return co_await upstream_.call("GET", target, {}, {}, limit);
}

asio::awaitable<Result<Reply>> LlamaServerBackend::post(std::string_view target,
                                                        std::string_view json, Millis limit,
                                                        std::string_view authorization) {
  const std::array<std::string_view, 1> body{json};
  co_return co_await upstream_.call("POST", target, body, authorization, limit);
}

asio::awaitable<Health> LlamaServerBackend::async_health() {
  auto reply = co_await get("/health", limits_.probe);
  if (!reply) {
    co_return reply.error().code == Errc::timed_out ? Health::silent : Health::down;
  }
  co_return reply->status == 200 ? Health::ok : Health::loading;
}

asio::awaitable<Result<BackendDescription>> LlamaServerBackend::async_props() {
  auto reply = co_await get("/props", limits_.probe);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused("/props", *reply);
  }
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS ||
      !root.is_object()) {
    co_return nonsense("/props");
  }
  BackendDescription said;
  said.slots =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(number(root, "/total_slots"), 4096));
  said.context = number(root, "/default_generation_settings/n_ctx");
  said.start_marker = text(root, "/media_marker");
  said.model = text(root, "/model_path");
  said.sleeping = member(root, "/is_sleeping", false);
  if (said.slots == 0) {
    co_return nonsense("/props");
  }
  if (!said.start_marker.empty()) {
    media_marker_ = said.start_marker;
  }
  const std::string context = std::to_string(said.context);
  const std::string slots = std::to_string(said.slots);
  said.identity = Scope({said.model, text(root, "/model_alias"), text(root, "/model_ftype"),
                         text(root, "/chat_template"), text(root, "/build_info"), context, slots})
                      .bytes();
  co_return said;
}

asio::awaitable<Result<BackendDescription>> LlamaServerBackend::async_describe() {
  auto said = co_await async_props();
  if (!said || said->sleeping) {
    co_return said;
  }
  dom::parser parser;
  dom::element root;
  if (auto models = co_await get("/v1/models", limits_.probe);
      models && models->status == 200 &&
      parser.parse(models->body.data(), models->body.size()).get(root) == simdjson::SUCCESS) {
    std::string shape;
    for (const char* name : {"n_vocab", "n_embd", "n_params", "size", "n_ctx_train"}) {
      shape += fmt::format("{},", number(root, fmt::format("/data/0/meta/{}", name)));
    }
    said->identity = Scope({said->identity, shape}).bytes();
  }
  dom::array list;
  if (auto slots = co_await get("/slots", limits_.probe);
      slots && slots->status == 200 &&
      parser.parse(slots->body.data(), slots->body.size()).get(list) == simdjson::SUCCESS) {
    // A slot that never worked shows neither a task nor a prompt.
    for (const dom::element slot : list) {
      said->slots_used.push_back(member<std::int64_t>(slot, "/id_task", -1) >= 0 ||
                                 number(slot, "/n_prompt_tokens") > 0);
    }
    if (said->slots_used.size() != said->slots) {
      said->slots_used.clear();
    }
  }
  co_return said;
}

asio::awaitable<Result<std::vector<bool>>> LlamaServerBackend::async_working() {
  auto reply = co_await get("/slots", limits_.probe);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused("/slots", *reply);
  }
  dom::parser parser;
  dom::array slots;
  if (parser.parse(reply->body.data(), reply->body.size()).get(slots) != simdjson::SUCCESS) {
    co_return nonsense("/slots");
  }
  std::vector<bool> working;
  for (const dom::element slot : slots) {
    bool busy = false;
    if (slot["is_processing"].get(busy) != simdjson::SUCCESS) {
      co_return nonsense("/slots");
    }
    working.push_back(busy);
  }
  co_return working;
}

asio::awaitable<Result<Tokens>> LlamaServerBackend::async_tokenize(std::string_view json_string,
                                                                   bool add_special,
                                                                   std::string_view authorization) {
  const std::array<std::string_view, 3> body{R"({"content":)", json_string,
                                             add_special
                                                 ? R"(,"add_special":true,"parse_special":true})"
                                                 : R"(,"add_special":false,"parse_special":true})"};
  auto reply = co_await upstream_.call("POST", "/tokenize", body, authorization, limits_.render);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused("/tokenize", *reply);
  }
  co_return read_tokens(*reply);
}

asio::awaitable<Result<Tokens>> LlamaServerBackend::render_chat(
    std::span<const std::string_view> body, std::string_view authorization) {
  auto reply =
      co_await upstream_.call("POST", "/apply-template", body, authorization, limits_.render);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused("/apply-template", *reply);
  }
  const auto parsed = Body::parse(reply->body);
  const Body* answer = std::get_if<Body>(&parsed);
  const JsonField* prompt = answer != nullptr ? answer->find("prompt") : nullptr;
  if (prompt == nullptr || prompt->kind != JsonKind::string) {
    co_return nonsense("/apply-template");
  }
  if (prompt->value.find(media_marker_) != std::string_view::npos) {
    co_return Error{Errc::unsupported, "the prompt holds media"};
  }
  co_return co_await async_tokenize(prompt->value, chat_start_token_, authorization);
}

asio::awaitable<Result<Tokens>> LlamaServerBackend::async_render(PromptSource source) {
  const Endpoint endpoint = endpoint_of("POST", source.path);
  if (endpoint == Endpoint::chat) {
    const std::array<std::string_view, 1> whole{source.body};
    co_return co_await render_chat(whole, source.authorization);
  }
  const auto parsed = Body::parse(source.body);
  const Body* body = std::get_if<Body>(&parsed);
  const Error unknown{Errc::unsupported, "the request's prompt has no known form"};
  if (body == nullptr) {
    co_return unknown;
  }
  switch (endpoint) {
    case Endpoint::responses: {
      auto edits = responses_as_chat(*body);
      if (!edits) {
        co_return std::move(edits).error();
      }
      std::vector<std::string> storage;
      const auto pieces = splice(*body, *edits, storage);
      co_return co_await render_chat(pieces, source.authorization);
    }
    case Endpoint::completions:
    case Endpoint::completion: {
      const JsonField* prompt = body->find("prompt");
      if (prompt != nullptr && prompt->kind == JsonKind::array) {
        co_return read_ids(*prompt);
      }
      if (prompt == nullptr || prompt->kind != JsonKind::string) {
        co_return unknown;
      }
      co_return co_await async_tokenize(prompt->value, true, source.authorization);
    }
    case Endpoint::infill: {
      std::string joined = "\"";
      if (const JsonField* extra = body->find("input_extra");
          extra != nullptr && extra->kind == JsonKind::array) {
        for (const JsonField& file : children(extra->value)) {
          const auto members =
              file.kind == JsonKind::object ? children(file.value) : std::vector<JsonField>{};
          for (const JsonField& member : members) {
            if ((member.key == "filename" || member.key == "text") &&
                member.kind == JsonKind::string) {
              joined.append(inner(member.value)).append("\\n");
            }
          }
        }
      }
      const JsonField* prefix = body->find("input_prefix");
      if (prefix == nullptr || prefix->kind != JsonKind::string) {
        co_return unknown;
      }
      joined.append(inner(prefix->value)).append("\"");
      co_return co_await async_tokenize(joined, false, source.authorization);
    }
    case Endpoint::chat:
    case Endpoint::messages:
    case Endpoint::none: break;
  }
  co_return unknown;
}

asio::awaitable<Result<Prefilled>> LlamaServerBackend::async_prefill(SlotId slot,
                                                                     TokenSpan prompt) {
  const std::string json = prefill_body(slot, prompt);
  auto reply = co_await post("/completion", json, limits_.control);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused("/completion", *reply);
  }
  dom::parser parser;
  dom::element root;
  dom::element timings;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS ||
      root["timings"].get(timings) != simdjson::SUCCESS) {
    co_return nonsense("/completion");
  }
  Prefilled result{.cached = number(timings, "/cache_n"), .computed = number(timings, "/prompt_n")};
  result.ms = member(timings, "/prompt_ms", 0.0);
  co_return result;
}

asio::awaitable<Result<std::uint64_t>> LlamaServerBackend::async_slot_action(
    SlotId slot, std::string_view action, std::string_view name) {
  const std::string target = fmt::format("/slots/{}?action={}", slot.index, action);
  const std::string json = name.empty() ? "{}" : fmt::format(R"({{"filename":{}}})", quote(name));
  auto reply = co_await post(target, json, limits_.control);
  if (!reply) {
    co_return std::move(reply).error();
  }
  if (reply->status != 200) {
    co_return refused(target, *reply);
  }
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return nonsense(target);
  }
  co_return number(root, action == "save"      ? "/n_saved"
                         : action == "restore" ? "/n_restored"
                                               : "/n_erased");
}

asio::awaitable<bool> LlamaServerBackend::async_learn_chat_tokens() {
  static constexpr std::string_view kChat =
      R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"id_slot":0,"cache_prompt":false})";
  const std::array<std::string_view, 1> body{kChat};
  auto reply = co_await post("/v1/chat/completions", kChat, limits_.control);
  if (!reply || reply->status != 200) {
    co_return false;
  }
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return false;
  }
  const std::uint64_t counted = number(root, "/usage/prompt_tokens");
  for (const bool start_token : {true, false}) {
    chat_start_token_ = start_token;
    auto tokens = co_await render_chat(body, {});
    if (tokens && tokens->size() == counted) {
      co_return true;
    }
  }
  chat_start_token_ = true;
  co_return false;
}

void LlamaServerBackend::describe(Completion<BackendDescription> done) {
  asio::co_spawn(executor_, complete(async_describe(), std::move(done)), asio::detached);
}

namespace {

// Completions come with views that are only valid during the call: these coroutines own copies.
asio::awaitable<Result<Tokens>> render_copy(LlamaServerBackend& backend, std::string path,
                                            std::string body, std::string authorization) {
  co_return co_await backend.async_render({path, body, authorization});
}

asio::awaitable<Result<Prefilled>> prefill_copy(LlamaServerBackend& backend, SlotId slot,
                                                Tokens prompt) {
  co_return co_await backend.async_prefill(slot, prompt);
}

asio::awaitable<Result<std::uint64_t>> action_copy(LlamaServerBackend& backend, SlotId slot,
                                                   std::string_view action, std::string name) {
  co_return co_await backend.async_slot_action(slot, action, name);
}

asio::awaitable<Result<Done>> erase_slot(LlamaServerBackend& backend, SlotId slot) {
  auto erased = co_await backend.async_slot_action(slot, "erase", {});
  if (!erased) {
    co_return std::move(erased).error();
  }
  co_return Done{};
}

}  // namespace

void LlamaServerBackend::render(const PromptSource& source, Completion<Tokens> done) {
  auto call = render_copy(*this, std::string(source.path), std::string(source.body),
                          std::string(source.authorization));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) {
  auto call = prefill_copy(*this, slot, Tokens(prompt.begin(), prompt.end()));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::save(SlotId slot, std::string_view name, Completion<std::uint64_t> done) {
  auto call = action_copy(*this, slot, "save", std::string(name));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::restore(SlotId slot, std::string_view name,
                                 Completion<std::uint64_t> done) {
  auto call = action_copy(*this, slot, "restore", std::string(name));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::erase(SlotId slot, Completion<Done> done) {
  asio::co_spawn(executor_, complete(erase_slot(*this, slot), std::move(done)), asio::detached);
}

}  // namespace toki::http
