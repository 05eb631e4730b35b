// What toki has to know of a generation request: which call it is, what it asks for, and which
// fields to add.
//
// Threads:   pure functions.
// Ownership: views point into the checked Body.
// Errors:    values: what a client has to change, as an HttpError.
// Cost:      a look at the top-level fields; no copy of the body.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/answer_writer.hpp>
#include <toki/http/body_edit.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace toki::http {

/// The calls of llama-server that take a slot.
enum class Endpoint : std::uint8_t {
  none,         ///< no generation
  chat,         ///< /v1/chat/completions
  completions,  ///< /v1/completions
  completion,   ///< native /completion, /completions
  infill,       ///< /infill
  responses,    ///< /v1/responses
  messages,     ///< /v1/messages: the server ignores id_slot there (see Query::unnamed)
};

/// The path of a raw target as the server reads it: without what follows `?` or `#`, and
/// percent-decoded.
TOKI_EXPORT std::string decoded_path(std::string_view target);

/// The value of a query parameter, raw; empty when it is not there.
TOKI_EXPORT std::string_view query_value(std::string_view target, std::string_view name);

/// By method and raw target, which may be percent-encoded; a query string does not matter.
TOKI_EXPORT Endpoint endpoint_of(std::string_view method, std::string_view target);

/// The usual path of such a call; empty for none.
TOKI_EXPORT std::string_view path_of(Endpoint endpoint) noexcept;

/// Whether llama-server works in a slot for a POST on this path without being a generation:
/// embeddings and rankings.
TOKI_EXPORT bool takes_slot(std::string_view path) noexcept;

/// What a generation's body asks for, as far as it decides about slots. Its views are into the
/// body.
struct GenerationRequest {
  Endpoint endpoint = Endpoint::none;  ///< the call
  bool stream = false;                 ///< it asks for events
  std::uint32_t sequences = 1;         ///< n, times the number of prompts
  std::optional<std::uint32_t> slot;   ///< the client's own id_slot
  std::optional<Reason> bypass;        ///< why its tokens are not looked at
  bool known_prompt = true;     ///< tokens can be asked for (also with bypass cache_prompt_false)
  bool shows_progress = false;  ///< events may come before the prompt is computed
  bool shifts =
      false;  ///< n_cache_reuse: the server may move KV cache, so reuse is no common prefix
  std::string_view adapters;  ///< raw value of "lora", or empty: part of the scope
};

/// REQUIRES: endpoint is not none. `slots`: number of slots of the backend; 0: not known, then
/// id_slot is not checked.
TOKI_EXPORT std::variant<GenerationRequest, HttpError> read_generation_request(Endpoint endpoint,
                                                                               const Body& body,
                                                                               std::size_t slots);

/// toki has no say in it, for this reason: its prompt is not looked at.
TOKI_EXPORT void leave_to_backend(GenerationRequest& request, Reason reason);

/// What to ask the engine, but for the tokens. `identity`: of the backend, the scope's first part.
/// `tenant`: its last part, and only there where tenants share nothing.
TOKI_EXPORT Query query_for(const GenerationRequest& request, std::string_view identity,
                            std::string_view tenant = {});

/// The tenant of a scope that query_for() made; empty: none. Valid as long as the scope.
TOKI_EXPORT std::string_view tenant_of(const Scope& scope);

/// What a tenant that shares nothing (`apart`) is told of a reason: whether others were in the slot
/// before is not.
TOKI_EXPORT Reason apart_reason(Reason reason, bool apart) noexcept;

/// Why a prompt that could not be rendered is not looked at.
TOKI_EXPORT Reason reason_unrendered(const Error& error);

/// The fields that make the backend do what the ticket says. `slot`: none when the backend chooses.
TOKI_EXPORT std::vector<BodyEdit> slot_edits(const GenerationRequest& request, const Body& body,
                                             std::optional<std::uint32_t> slot, bool may_reuse);

}  // namespace toki::http
