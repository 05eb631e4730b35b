// Pins over HTTP: what GET, POST and DELETE on /toki/pins do.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: views are only used until the coroutine ends.
// Errors:    values, as an HttpError for the client: 400 for a body that cannot be pinned, 404 for an
//            unknown id, 409 when no slot would stay free, 503 while the backend does not serve.
// Cost:      POST: the backend renders and tokenizes the prefix two or three times. Nothing is
//            computed: that is done when no request runs.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/answer_writer.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace toki::http {

/// What it does to a body.
struct PinLimits {
  std::span<const std::string> volatile_lines;            ///< as in volatile_line.hpp
  std::size_t max_rendered_bytes = std::size_t{8} << 20;  ///< larger bodies are refused
};

/// Who asks. A tenant sees and removes only its own pins, and what it pins is its own.
struct PinAsker {
  std::string_view authorization;  ///< for the backend
  std::string_view tenant;         ///< empty: sees all, and pins for requests without a tenant
};

/// The JSON of the list, one {"id":..,"tokens":..,"by_hand":..,"state":..,"slot":..,"prompt":..} a pin.
TOKI_EXPORT std::string list_pins(const Engine& engine, std::string_view tenant = {});

/// Pins what `body` names by one of `text`, `messages` (and what else /apply-template takes),
/// `tokens`, or `prompt` (the id of a remembered one; `length`: its first so many tokens). The tokens at the end of a text depend on what follows it, so what is pinned are those
/// that stay the same whatever follows. Returns the pin's JSON.
TOKI_EXPORT boost::asio::awaitable<std::variant<std::string, HttpError>> add_pin(
    LlamaServerBackend& backend, BackendMonitor& monitor, Engine& engine, std::string_view body,
    const PinAsker& asker, const PinLimits& limits);

/// `id`: of the one pin to remove; empty: all. Returns the JSON of how many were.
TOKI_EXPORT std::variant<std::string, HttpError> remove_pins(Engine& engine, std::string_view id,
                                                             std::string_view tenant = {});

}  // namespace toki::http
