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

#include "http/control_call.hpp"
#include "http/media_tokens.hpp"
#include "http/responses_input.hpp"
#include "http/special_texts.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

namespace {

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

// A router says no number of slots, and queues by itself.
constexpr std::uint32_t kRouterSlots = 64;

std::string prefill_body(SlotId slot, TokenSpan prompt) {
  return fmt::format(R"({{"prompt":[{}],"n_predict":0,"id_slot":{},"cache_prompt":true}})",
                     fmt::join(prompt, ","), slot.index);
}

// A call that is ended before it answers drops its completion, which reports that.
template <class T>
asio::awaitable<void> complete(asio::awaitable<Result<T>> call, Completion<T> done) {
  done(co_await std::move(call));
}

}  // namespace

LlamaServerBackend::LlamaServerBackend(asio::any_io_executor executor, Upstream& upstream,
                                       LlamaServerLimits limits, Embedder* embedder)
    : executor_(std::move(executor)),
      upstream_(upstream),
      limits_(limits),
      embedder_(embedder),
      token_cache_(limits.token_cache_bytes) {}

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
  if (const auto failed = failure("/props", reply)) {
    co_return *failed;
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
  said.several_models = text(root, "/role") == "router";
  if (said.slots == 0 && said.several_models) {
    said.slots = kRouterSlots;
  }
  if (said.slots == 0) {
    co_return nonsense("/props");
  }
  if (!said.start_marker.empty()) {
    media_marker_ = said.start_marker;
  }
  const std::string context = std::to_string(said.context);
  const std::string slots = std::to_string(said.slots);
  // How it drafts: a restore brings back the main model's state alone. Builds say it in either form.
  const std::string_view settings = "/default_generation_settings";
  const std::string drafts =
      text(root, fmt::format("{}/params/speculative.types", settings)) +
      (member(root, fmt::format("{}/speculative", settings), false) ? "+" : "");
  model_alias_ = text(root, "/model_alias");
  said.identity =
      Scope({said.model, text(root, "/model_alias"), text(root, "/model_ftype"),
             text(root, "/chat_template"), text(root, "/build_info"), context, slots, drafts})
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
    dom::array list;
    said->several_models =
        said->several_models || (root["data"].get(list) == simdjson::SUCCESS && list.size() > 1);
    std::string shape;
    for (const char* name : {"n_vocab", "n_embd", "n_params", "size", "n_ctx_train"}) {
      shape += fmt::format("{},", number(root, fmt::format("/data/0/meta/{}", name)));
    }
    said->identity = Scope({said->identity, shape}).bytes();
    vocabulary_ = number(root, "/data/0/meta/n_vocab");
  }
  dom::array list;
  if (auto slots = co_await get("/slots", limits_.probe);
      slots && slots->status == 200 &&
      parser.parse(slots->body.data(), slots->body.size()).get(list) == simdjson::SUCCESS) {
    // A slot that never worked shows neither a task nor a prompt.
    bool drafts = false;
    for (const dom::element slot : list) {
      drafts = drafts || member(slot, "/speculative", false);
      said->slots_used.push_back(member<std::int64_t>(slot, "/id_task", -1) >= 0 ||
                                 number(slot, "/n_prompt_tokens") > 0);
    }
    said->identity = Scope({said->identity, drafts ? "drafts" : ""}).bytes();
    if (said->slots_used.size() != said->slots) {
      said->slots_used.clear();
    }
  }
  co_return said;
}

namespace {

// A value of each slot in an answer to GET /slots; `read` returns none where there is none.
template <class Value, class Read>
Result<std::vector<Value>> read_slots(const Result<Reply>& reply, Read read) {
  if (const auto failed = failure("/slots", reply)) {
    return *failed;
  }
  dom::parser parser;
  dom::array slots;
  if (parser.parse(reply->body.data(), reply->body.size()).get(slots) != simdjson::SUCCESS) {
    return nonsense("/slots");
  }
  std::vector<Value> values;
  for (const dom::element slot : slots) {
    const std::optional<Value> value = read(slot);
    if (!value) {
      return nonsense("/slots");
    }
    values.push_back(*value);
  }
  return values;
}

}  // namespace

asio::awaitable<Result<std::vector<bool>>> LlamaServerBackend::async_working() {
  const auto reply = co_await get("/slots", limits_.probe);
  co_return read_slots<bool>(reply, [](dom::element slot) {
    bool busy = false;
    return slot["is_processing"].get(busy) == simdjson::SUCCESS ? std::optional(busy)
                                                                : std::nullopt;
  });
}

asio::awaitable<Result<std::vector<std::uint64_t>>> LlamaServerBackend::async_held() {
  const auto reply = co_await get("/slots", limits_.probe);
  co_return read_slots<std::uint64_t>(reply, [](dom::element slot) {
    return std::optional<std::uint64_t>(number(slot, "/n_prompt_tokens"));
  });
}

asio::awaitable<Result<Tokens>> LlamaServerBackend::async_tokenize(std::string_view json_string,
                                                                   bool add_special,
                                                                   std::string_view authorization) {
  const TokenizeFlags flags{.add_special = add_special};
  co_return co_await tokenize(upstream_, inner(json_string), flags, authorization, limits_.render);
}

// Asks the server only for what the cache does not know: the rest after the last known boundary.
asio::awaitable<Result<Rendered>> LlamaServerBackend::tokenize_text(std::string_view escaped,
                                                                    bool start_token,
                                                                    std::string_view authorization,
                                                                    std::string_view tenant) {
  Rendered rendered;
  auto known =
      cache_stats_.off ? TokenCache::Known{} : token_cache_.find(escaped, start_token, tenant);
  const std::uint64_t epoch = tokenizer_epoch_;
  const std::size_t saved = known.tokens.size();
  rendered.tokens = std::move(known.tokens);
  if (known.bytes > 0 && known.bytes == escaped.size()) {
    ++cache_stats_.whole_hits;
    cache_stats_.tokens_saved += saved;
    co_return rendered;
  }
  rendered.from_parts = known.bytes > 0;
  const TokenizeFlags flags{.add_special = start_token && !rendered.from_parts};
  const auto rest = co_await tokenize(upstream_, escaped.substr(known.bytes), flags, authorization,
                                      limits_.render);
  if (!rest) {
    co_return rest.error();
  }
  if (epoch != tokenizer_epoch_ && rendered.from_parts) {  // the parts are of two tokenizers
    co_return co_await tokenize_text(escaped, start_token, authorization, tenant);
  }
  cache_stats_.part_hits += rendered.from_parts ? 1 : 0;
  cache_stats_.tokens_saved += saved;
  rendered.tokens.insert(rendered.tokens.end(), rest->begin(), rest->end());
  if (epoch == tokenizer_epoch_ && !cache_stats_.off) {
    token_cache_.put(escaped, start_token, rendered.tokens, tenant);
  }
  co_return rendered;
}

// The text between the media has its own tokens, each medium its pseudo tokens.
asio::awaitable<Result<Rendered>> LlamaServerBackend::render_media(std::string_view prompt,
                                                                   const std::vector<Tokens>& media,
                                                                   std::string_view authorization,
                                                                   std::string_view tenant) {
  Rendered rendered{.tokens = {}, .surrogate = true, .from_parts = false, .text = {}};
  std::string_view rest = prompt;
  for (std::size_t i = 0; i <= media.size(); ++i) {
    const std::size_t end = rest.find(media_marker_);
    if ((end == std::string_view::npos) != (i == media.size())) {
      co_return Error{Errc::unsupported, "the prompt holds media"};
    }
    const std::string_view piece = rest.substr(0, end);
    rest.remove_prefix(i < media.size() ? end + media_marker_.size() : rest.size());
    if (i == 0 || !piece.empty()) {
      const bool start = i == 0 && chat_start_token_;
      const auto part = co_await tokenize_text(piece, start, authorization, tenant);
      if (!part) {
        co_return part.error();
      }
      rendered.tokens.insert(rendered.tokens.end(), part->tokens.begin(), part->tokens.end());
    }
    if (i < media.size()) {
      rendered.tokens.insert(rendered.tokens.end(), media[i].begin(), media[i].end());
    }
  }
  co_return rendered;
}

asio::awaitable<Result<Rendered>> LlamaServerBackend::render_chat(
    std::span<const std::string_view> body, std::string_view authorization,
    std::string_view tenant) {
  auto reply =
      co_await upstream_.call("POST", "/apply-template", body, authorization, limits_.render);
  if (const auto failed = failure("/apply-template", reply)) {
    co_return *failed;
  }
  const auto parsed = Body::parse(reply->body);
  const Body* answer = std::get_if<Body>(&parsed);
  const JsonField* prompt = answer != nullptr ? answer->find("prompt") : nullptr;
  if (prompt == nullptr || prompt->kind != JsonKind::string) {
    co_return nonsense("/apply-template");
  }
  if (prompt->value.find(media_marker_) != std::string_view::npos) {
    std::string chat;
    for (const std::string_view piece : body) {
      chat += piece;
    }
    const std::vector<Tokens> media = media_tokens(chat);
    co_return co_await render_media(inner(prompt->value), media, authorization, tenant);
  }
  auto rendered =
      co_await tokenize_text(inner(prompt->value), chat_start_token_, authorization, tenant);
  if (rendered) {
    rendered->text = prompt->value;
  }
  co_return rendered;
}

asio::awaitable<Result<Rendered>> LlamaServerBackend::async_render(PromptSource source) {
  const Endpoint endpoint = endpoint_of("POST", source.path);
  if (endpoint == Endpoint::chat) {
    const std::array<std::string_view, 1> whole{source.body};
    co_return co_await render_chat(whole, source.authorization, source.tenant);
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
      co_return co_await render_chat(pieces, source.authorization, source.tenant);
    }
    case Endpoint::completions:
    case Endpoint::completion: {
      const JsonField* prompt = body->find("prompt");
      if (prompt != nullptr && prompt->kind == JsonKind::array) {
        auto ids = read_ids(*prompt);
        if (!ids) {
          co_return std::move(ids).error();
        }
        Rendered rendered;
        rendered.tokens = std::move(*ids);
        co_return rendered;
      }
      if (prompt == nullptr || prompt->kind != JsonKind::string) {
        co_return unknown;
      }
      auto rendered =
          co_await tokenize_text(inner(prompt->value), true, source.authorization, source.tenant);
      if (rendered) {
        rendered->text = prompt->value;
      }
      co_return rendered;
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
      auto tokens = co_await async_tokenize(joined, false, source.authorization);
      if (!tokens) {
        co_return std::move(tokens).error();
      }
      Rendered rendered{
          .tokens = std::move(*tokens), .surrogate = true, .from_parts = false, .text = {}};
      co_return rendered;
    }
    case Endpoint::messages:
      co_return co_await render_messages(*body, source.authorization, source.tenant);
    case Endpoint::chat:
    case Endpoint::none: break;
  }
  co_return unknown;
}

asio::awaitable<Result<Prefilled>> LlamaServerBackend::async_prefill(SlotId slot,
                                                                     TokenSpan prompt) {
  const std::string json = prefill_body(slot, prompt);
  auto reply = co_await post("/completion", json, limits_.control);
  if (const auto failed = failure("/completion", reply)) {
    co_return *failed;
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

asio::awaitable<Result<Timed>> LlamaServerBackend::slot_action(SlotId slot, std::string_view action,
                                                               std::string_view name,
                                                               std::string_view count,
                                                               std::string_view time) {
  const std::string target = fmt::format("/slots/{}?action={}", slot.index, action);
  std::string json = "{";
  if (!name.empty()) {
    json += fmt::format(R"("filename":{})", quote(name));
  }
  if (!model_alias_.empty()) {
    json += fmt::format(R"({}"model":{})", json.size() > 1 ? "," : "", quote(model_alias_));
  }
  json += "}";
  auto reply = co_await post(target, json, action == "save" ? limits_.save : limits_.restore);
  if (const auto failed = failure(target, reply)) {
    co_return *failed;
  }
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return nonsense(target);
  }
  Timed result{.tokens = number(root, count)};
  result.ms = member(root, time, 0.0);
  co_return result;
}

asio::awaitable<Result<Timed>> LlamaServerBackend::async_save(SlotId slot, std::string_view name) {
  return slot_action(slot, "save", name, "/n_saved", "/timings/save_ms");
}

asio::awaitable<Result<Timed>> LlamaServerBackend::async_restore(SlotId slot,
                                                                 std::string_view name) {
  return slot_action(slot, "restore", name, "/n_restored", "/timings/restore_ms");
}

asio::awaitable<Result<Done>> LlamaServerBackend::async_erase(SlotId slot) {
  const auto erased = co_await slot_action(slot, "erase", {}, "/n_erased", "");
  if (!erased) {
    co_return erased.error();
  }
  co_return Done{};
}

asio::awaitable<Result<Continued>> LlamaServerBackend::async_continue(SlotId slot, TokenSpan prompt,
                                                                      std::uint32_t count) {
  const std::string json = fmt::format(
      R"({{"prompt":[{}],"n_predict":{},"id_slot":{},"cache_prompt":true,"temperature":0,)"
      R"("top_k":1,"return_tokens":true,"n_probs":1,"ignore_eos":true}})",
      fmt::join(prompt, ","), count, slot.index);
  auto reply = co_await post("/completion", json, limits_.control);
  if (const auto failed = failure("/completion", reply)) {
    co_return *failed;
  }
  dom::parser parser;
  dom::element root;
  dom::array tokens;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS ||
      root["tokens"].get(tokens) != simdjson::SUCCESS) {
    co_return nonsense("/completion");
  }
  auto generated = read_tokens(tokens);
  if (!generated) {
    co_return nonsense("/completion");
  }
  Continued result{.tokens = std::move(*generated), .cached = number(root, "/timings/cache_n")};
  dom::array probabilities;
  if (root["completion_probabilities"].get(probabilities) == simdjson::SUCCESS) {
    for (const dom::element one : probabilities) {
      result.logprobs.push_back(member(one, "/logprob", 0.0));
    }
  }
  co_return result;
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
    const auto rendered = co_await render_chat(body, {}, {});
    if (rendered && rendered->tokens.size() == counted) {
      co_return true;
    }
  }
  chat_start_token_ = true;
  co_return false;
}

// The one token that `text` becomes when special tokens are read, and only then.
asio::awaitable<Result<std::optional<Token>>> LlamaServerBackend::special_id(
    std::string_view text) {
  const auto special = co_await tokenize(upstream_, text, {}, {}, limits_.render);
  if (!special) {
    co_return special.error();
  }
  const TokenizeFlags as_text{.add_special = false, .parse_special = false};
  const auto plain = co_await tokenize(upstream_, text, as_text, {}, limits_.render);
  if (!plain) {
    co_return plain.error();
  }
  co_return special->size() == 1 && *plain != *special ? std::optional<Token>((*special)[0])
                                                       : std::nullopt;
}

// Are tokens of the parts the tokens of the whole when it is cut in front of `text`? Some special
// tokens swallow white space beside them, some tokenizers put something in front of what follows.
asio::awaitable<Result<bool>> LlamaServerBackend::cuts_exactly(std::string_view text) {
  static constexpr std::array<std::string_view, 8> kAfter{
      "user\\nword ", " word\\n\\n", "word  ", "\\n  word\\t", "", " ", "-word.", "word"};
  std::vector<std::string> parts{"The word"};
  std::string whole = parts[0];
  for (const std::string_view after : kAfter) {
    parts.push_back(std::string(text).append(after));
    whole += parts.back();
  }
  const TokenizeFlags with_start{.add_special = true};
  const auto wanted = co_await tokenize(upstream_, whole, with_start, {}, limits_.render);
  if (!wanted) {
    co_return wanted.error();
  }
  Tokens joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TokenizeFlags flags{.add_special = i == 0};
    const auto tokens = co_await tokenize(upstream_, parts[i], flags, {}, limits_.render);
    if (!tokens) {
      co_return tokens.error();
    }
    joined.insert(joined.end(), tokens->begin(), tokens->end());
  }
  co_return joined == *wanted;
}

asio::awaitable<std::size_t> LlamaServerBackend::async_learn_special_tokens() {
  forget_tokens();
  const std::uint64_t epoch = tokenizer_epoch_;
  if (limits_.token_cache_bytes == 0) {
    co_return 0;
  }
  const auto reply = co_await get("/props", limits_.probe);
  dom::parser parser;
  dom::element root;
  if (!reply || reply->status != 200 ||
      parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return 0;
  }
  const std::array<std::string, 3> sources{text(root, "/bos_token"), text(root, "/eos_token"),
                                           text(root, "/chat_template")};
  std::vector<SpecialToken> found;
  const std::vector<std::string> candidates = special_texts(sources);
  for (const std::string& candidate : candidates) {
    const auto id = co_await special_id(candidate);
    if (!id) {
      co_return 0;  // it does not answer: nothing is learnt
    }
    if (!*id) {
      continue;
    }
    const auto exact = co_await cuts_exactly(candidate);
    if (!exact) {
      co_return 0;
    }
    if (*exact) {
      found.push_back({.text = candidate, .id = **id});
    }
  }
  if (epoch != tokenizer_epoch_) {
    co_return 0;
  }
  const std::size_t count = found.size();
  token_cache_.reset(std::move(found));
  co_return count;
}

void LlamaServerBackend::forget_tokens() {
  ++tokenizer_epoch_;
  token_cache_.reset({});
  cache_stats_.off = false;
  messages_shapes_.clear();
  evens_billing_.reset();
}

bool LlamaServerBackend::tokens_were_wrong() {
  if (std::exchange(cache_stats_.off, true)) {
    return false;
  }
  token_cache_.reset({});
  return true;
}

TokenCacheStats LlamaServerBackend::token_cache_stats() const {
  TokenCacheStats stats = cache_stats_;
  stats.texts = token_cache_.texts();
  stats.bytes = token_cache_.bytes();
  return stats;
}

asio::awaitable<Result<Embedding>> LlamaServerBackend::async_embed(std::string_view json_string) {
  if (embedder_ == nullptr) {
    co_return Error{Errc::unsupported, "there is no embedding server"};
  }
  co_return co_await embedder_->async_embed(json_string);
}

void LlamaServerBackend::describe(Completion<BackendDescription> done) {
  asio::co_spawn(executor_, complete(async_describe(), std::move(done)), asio::detached);
}

namespace {

// Completions come with views that are only valid during the call: these coroutines own copies.
asio::awaitable<Result<Tokens>> render_copy(LlamaServerBackend& backend, std::string path,
                                            std::string body, std::string authorization,
                                            std::string tenant) {
  const PromptSource source{path, body, authorization, tenant};
  auto rendered = co_await backend.async_render(source);
  if (!rendered) {
    co_return std::move(rendered).error();
  }
  if (rendered->surrogate && endpoint_of("POST", path) != Endpoint::infill) {
    co_return Error{Errc::unsupported, "the prompt holds media"};
  }
  co_return std::move(rendered->tokens);
}

asio::awaitable<Result<Embedding>> embed_copy(LlamaServerBackend& backend, std::string json) {
  co_return co_await backend.async_embed(json);
}

asio::awaitable<Result<Prefilled>> prefill_copy(LlamaServerBackend& backend, SlotId slot,
                                                Tokens prompt) {
  co_return co_await backend.async_prefill(slot, prompt);
}

asio::awaitable<Result<Timed>> save_copy(LlamaServerBackend& backend, SlotId slot,
                                         std::string name) {
  co_return co_await backend.async_save(slot, name);
}

asio::awaitable<Result<Timed>> restore_copy(LlamaServerBackend& backend, SlotId slot,
                                            std::string name) {
  co_return co_await backend.async_restore(slot, name);
}

}  // namespace

void LlamaServerBackend::render(const PromptSource& source, Completion<Tokens> done) {
  auto call = render_copy(*this, std::string(source.path), std::string(source.body),
                          std::string(source.authorization), std::string(source.tenant));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) {
  auto call = prefill_copy(*this, slot, Tokens(prompt.begin(), prompt.end()));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::save(SlotId slot, std::string_view name, Completion<Timed> done) {
  auto call = save_copy(*this, slot, std::string(name));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::restore(SlotId slot, std::string_view name, Completion<Timed> done) {
  auto call = restore_copy(*this, slot, std::string(name));
  asio::co_spawn(executor_, complete(std::move(call), std::move(done)), asio::detached);
}

void LlamaServerBackend::erase(SlotId slot, Completion<Done> done) {
  asio::co_spawn(executor_, complete(async_erase(slot), std::move(done)), asio::detached);
}

void LlamaServerBackend::embed(std::string_view text, Completion<Embedding> done) {
  asio::co_spawn(executor_, complete(embed_copy(*this, quote(text)), std::move(done)),
                 asio::detached);
}

}  // namespace toki::http
