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
#include <sys/stat.h>
#include <utility>

#include "http/control_call.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

namespace {

// A router says no number of slots, and queues by itself.
constexpr std::uint32_t kRouterSlots = 64;

std::string prefill_body(SlotId slot, TokenSpan prompt) {
  return fmt::format(R"({{"prompt":[{}],"n_predict":0,"id_slot":{},"cache_prompt":true}})",
                     fmt::join(prompt, ","), slot.index);
}

// Of the file that the model is read from, where this machine has it: one that was trained a little
// further has the same path, size and shape, and continues most prompts alike. Empty: not known.
std::string file_stamp(const std::string& path) {
  struct stat about {};
  if (path.empty() || ::stat(path.c_str(), &about) != 0) {
    return {};
  }
  return fmt::format("{} bytes, changed at {}.{:09}", about.st_size, about.st_mtim.tv_sec,
                     about.st_mtim.tv_nsec);
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
  health_failure_.clear();
  if (!reply && reply.error().code != Errc::timed_out) {
    health_failure_ = std::move(reply).error().detail;
    co_return Health::down;
  }
  if (!reply) {
    co_return Health::silent;
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
  // What is not answered now is asked again: without it this would be another model.
  const auto models = co_await get("/v1/models", limits_.probe);
  if (!models) {
    co_return models.error();
  }
  if (models->status == 200 &&
      parser.parse(models->body.data(), models->body.size()).get(root) == simdjson::SUCCESS) {
    dom::array list;
    said->several_models =
        said->several_models || (root["data"].get(list) == simdjson::SUCCESS && list.size() > 1);
    std::string shape;
    for (const char* name : {"n_vocab", "n_embd", "n_params", "size", "n_ctx_train"}) {
      shape += fmt::format("{},", number(root, fmt::format("/data/0/meta/{}", name)));
    }
    said->identity = Scope({said->identity, shape, file_stamp(said->model)}).bytes();
    vocabulary_ = number(root, "/data/0/meta/n_vocab");
  }
  const auto slots = co_await get("/slots", limits_.probe);
  if (!slots) {
    co_return slots.error();
  }
  dom::array list;
  if (slots->status == 200 &&
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
