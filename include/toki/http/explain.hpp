// What would happen to a request, without running it: would it hit, where, how many tokens, and
// where it parts from the known prompt that is nearest.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: views are only used until the coroutine ends.
// Errors:    values, as an HttpError for the client.
// Cost:      the backend renders and tokenizes the prompt; to name the message at which it parts,
//            about log2(messages) times more. Nothing is computed and nothing is counted.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/answer_writer.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace toki::http {

/// What would happen to a request, and where it parts from the nearest known prompt.
struct Explanation {
  Lookup found;                     ///< as the engine says
  std::uint64_t prompt_tokens = 0;  ///< of the request; 0: not known
  /// The entry of `messages` in which prompt and nearest known prompt part; none: not a chat, or
  /// they part behind the last entry, or the template does not render parts of this chat.
  std::optional<std::size_t> message;
  std::string why;     ///< why the tokens could not be known; empty otherwise
  bool apart = false;  ///< for a tenant that shares nothing: what tells of others is not said
};

/// What it does to a body, and how long.
struct ExplainLimits {
  std::span<const std::string> volatile_lines;            ///< as in volatile_line.hpp
  std::size_t max_rendered_bytes = std::size_t{8} << 20;  ///< larger bodies are not tokenized
  Millis patience{5000};  ///< for naming the message at which the prompt parts
};

/// `source.path` says which call the body is meant for; empty: told by its fields.
TOKI_EXPORT boost::asio::awaitable<std::variant<Explanation, HttpError>> explain(
    LlamaServerBackend& backend, const BackendMonitor& monitor, const Engine& engine,
    PromptSource source, const ExplainLimits& limits);

/// The answer's JSON. Holds no prompt text.
TOKI_EXPORT std::string to_json(const Explanation& explanation);

}  // namespace toki::http
