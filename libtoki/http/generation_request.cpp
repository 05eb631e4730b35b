#include <toki/http/generation_request.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

namespace toki::http {
namespace {

using Refusal = HttpError;

// They stand in the scope of what is remembered of the request.
constexpr std::size_t kMaxAdapterBytes = 1024;

Refusal invalid(std::string message) {
  return {.status = 400, .type = "invalid_request_error", .message = std::move(message)};
}

// How many answers a field asks for; llama-server also takes 2.0.
std::uint32_t answers(const JsonField* field) {
  if (field == nullptr || field->kind != JsonKind::number) {
    return 1;
  }
  double value = 1;
  const char* end = field->value.data() + field->value.size();
  const auto [ptr, ec] = std::from_chars(field->value.data(), end, value);
  return ec == std::errc{} && value > 1 ? static_cast<std::uint32_t>(std::min(value, 256.0)) : 1;
}

bool is_true(const JsonField* field) {
  return field != nullptr && field->value == "true";
}
bool is_false(const JsonField* field) {
  return field != nullptr && field->value == "false";
}

// One sequence a prompt. A list of numbers is one prompt; a list with numbers and strings in it
// too.
void read_prompt(const Body& body, GenerationRequest& request) {
  const JsonField* prompt = body.find("prompt");
  if (prompt == nullptr || prompt->kind == JsonKind::string) {
    request.known_prompt = prompt != nullptr;
    return;
  }
  request.known_prompt = false;
  if (prompt->kind != JsonKind::array) {
    return;
  }
  std::size_t numbers = 0;
  std::size_t others = 0;
  Children items(prompt->value);
  while (const JsonField* item = items.next()) {
    ++(item->kind == JsonKind::number ? numbers : others);
  }
  if (numbers > 0 && others == 0) {
    request.known_prompt = true;
  } else if (numbers == 0 && others > 1) {
    request.sequences = static_cast<std::uint32_t>(std::min<std::size_t>(others, 1 << 16));
  }
}

std::optional<Refusal> read_slot(const Body& body, std::size_t slots, GenerationRequest& request) {
  const JsonField* field = body.find("id_slot");
  if (field == nullptr || field->kind == JsonKind::null) {
    return std::nullopt;
  }
  const auto number = as_integer(*field);
  if (!number) {
    return invalid("id_slot must be an integer");
  }
  if (*number == -1) {
    return std::nullopt;
  }
  if (*number < 0 || (slots > 0 && static_cast<std::uint64_t>(*number) >= slots)) {
    return invalid(fmt::format("id_slot must be -1 or less than the number of slots ({})", slots));
  }
  request.slot = static_cast<std::uint32_t>(*number);
  return std::nullopt;
}

// The first of each call is its usual path.
constexpr std::array<std::pair<std::string_view, Endpoint>, 10> kCalls{{
    {"/v1/chat/completions", Endpoint::chat},
    {"/chat/completions", Endpoint::chat},
    {"/api/chat", Endpoint::chat},
    {"/v1/completions", Endpoint::completions},
    {"/completion", Endpoint::completion},
    {"/completions", Endpoint::completion},
    {"/infill", Endpoint::infill},
    {"/v1/responses", Endpoint::responses},
    {"/responses", Endpoint::responses},
    {"/v1/messages", Endpoint::messages},
}};

}  // namespace

std::string decoded_path(std::string_view target) {
  std::string path;
  target = target.substr(0, target.find_first_of("?#"));
  for (std::size_t i = 0; i < target.size(); ++i) {
    unsigned value = 0;
    const bool escaped =
        target[i] == '%' && i + 2 < target.size() &&
        std::from_chars(target.data() + i + 1, target.data() + i + 3, value, 16).ptr ==
            target.data() + i + 3;
    path += escaped ? static_cast<char>(value) : target[i];
    i += escaped ? 2U : 0U;
  }
  return path;
}

std::string_view query_value(std::string_view target, std::string_view name) {
  const auto begin = target.find('?');
  std::string_view rest = begin == std::string_view::npos ? "" : target.substr(begin + 1);
  rest = rest.substr(0, rest.find('#'));
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) {
      return pair.substr(name.size() + 1);
    }
  }
  return {};
}

Endpoint endpoint_of(std::string_view method, std::string_view target) {
  if (method != "POST") {
    return Endpoint::none;
  }
  const std::string path = decoded_path(target);
  const auto found = std::find_if(kCalls.begin(), kCalls.end(),
                                  [&](const auto& call) { return call.first == path; });
  return found == kCalls.end() ? Endpoint::none : found->second;
}

std::string_view path_of(Endpoint endpoint) noexcept {
  const auto found = std::find_if(kCalls.begin(), kCalls.end(),
                                  [&](const auto& call) { return call.second == endpoint; });
  return found == kCalls.end() ? std::string_view() : found->first;
}

bool takes_slot(std::string_view path) noexcept {
  while (path.ends_with('/')) {
    path.remove_suffix(1);
  }
  path.remove_prefix(path.starts_with("/v1/") ? 3 : 0);
  constexpr std::array<std::string_view, 5> kPaths{"/embedding", "/embeddings", "/rerank",
                                                   "/reranking", "/audio/transcriptions"};
  return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end();
}

std::variant<GenerationRequest, HttpError> read_generation_request(Endpoint endpoint,
                                                                   const Body& body,
                                                                   std::size_t slots) {
  GenerationRequest request{.endpoint = endpoint};
  request.stream = is_true(body.find("stream"));
  if (endpoint == Endpoint::messages) {
    return request;  // the server's conversion loses id_slot, cache_prompt and the like
  }
  if (auto refusal = read_slot(body, slots, request)) {
    return *refusal;
  }
  if (const JsonField* lora = body.find("lora")) {
    if (lora->value.size() > kMaxAdapterBytes) {
      leave_to_backend(request, Reason::too_large);
      return request;
    }
    request.adapters = lora->value;
  }
  if (endpoint == Endpoint::completions || endpoint == Endpoint::completion) {
    read_prompt(body, request);
  }
  request.sequences *= std::max(answers(body.find("n")), answers(body.find("n_cmpl")));
  request.shows_progress = is_true(body.find("return_progress"));
  request.shifts = body.find("n_cache_reuse") != nullptr;
  if (request.sequences > 1) {
    request.bypass = Reason::several_answers;
    request.known_prompt = false;
    request.slot.reset();  // only one of them can have it
  } else if (is_false(body.find("cache_prompt"))) {
    request.bypass = Reason::cache_prompt_false;
  } else if (!request.known_prompt) {
    request.bypass = Reason::tokenize_failed;
  }
  return request;
}

void leave_to_backend(GenerationRequest& request, Reason reason) {
  request.bypass = reason;
  request.known_prompt = false;
  request.slot.reset();
}

Query query_for(const GenerationRequest& request, std::string_view identity,
                std::string_view tenant) {
  const bool infill = request.endpoint == Endpoint::infill;
  const std::string_view call = infill ? "infill" : "";
  // Without tenants as it was before there were any: what was stored then is found again.
  Query query{.scope = tenant.empty() ? Scope({identity, request.adapters, call})
                                      : Scope({identity, request.adapters, call, tenant})};
  query.bypass = request.bypass;
  query.sequences = request.sequences;
  query.slot = request.slot;
  query.unnamed = request.endpoint == Endpoint::messages;
  query.surrogate = infill || request.shifts;
  return query;
}

std::string_view tenant_of(const Scope& scope) {
  const auto parts = scope.parts();
  return parts.size() == 4 ? parts[3] : std::string_view();
}

Reason apart_reason(Reason reason, bool apart) noexcept {
  return apart && reason == Reason::empty_slot ? Reason::displaced : reason;
}

Reason reason_unrendered(const Error& error) {
  if (error.code == Errc::invalid_argument) {
    return Reason::too_large;
  }
  return error.code == Errc::unsupported && error.detail == "the prompt holds media"
             ? Reason::media
             : Reason::tokenize_failed;
}

std::vector<BodyEdit> slot_edits(const GenerationRequest& request, const Body& body,
                                 std::optional<std::uint32_t> slot, bool may_reuse) {
  std::vector<BodyEdit> edits;
  if (request.endpoint == Endpoint::messages) {
    return edits;
  }
  if (slot && request.slot != slot) {
    edits.push_back({"id_slot", std::to_string(*slot)});
  }
  const JsonField* said = body.find("cache_prompt");
  if (said != nullptr && said->kind == JsonKind::null) {
    edits.push_back({"cache_prompt", may_reuse ? "true" : "false"});  // null says nothing
    return edits;
  }
  const std::string_view wanted = may_reuse ? "true" : "false";
  if ((said == nullptr && (request.known_prompt || !may_reuse)) ||
      (said != nullptr && !may_reuse && said->value != wanted)) {
    edits.push_back({"cache_prompt", std::string(wanted)});
  }
  return edits;
}

}  // namespace toki::http
