// How many of a chat prompt's tokens its first messages make, asked of the backend's own template.
#pragma once

#include <toki/http/body_edit.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace toki::http {

/// Leading tokens of `prompt` that the first `count` entries of the body's `messages` make; none when
/// the template does not render them without the rest. REQUIRES: there are as many.
boost::asio::awaitable<std::optional<std::size_t>> message_tokens(
    LlamaServerBackend& backend, const Body& body, std::size_t count, TokenSpan prompt,
    std::string_view authorization, std::string_view tenant);

/// Where prompts that begin like this one are likely to part from it: after the system message. Empty
/// for what is no chat or has none. (See Query::boundaries.)
boost::asio::awaitable<std::vector<std::uint64_t>> prompt_boundaries(LlamaServerBackend& backend,
                                                                     const Body& body,
                                                                     TokenSpan prompt,
                                                                     std::string_view authorization,
                                                                     std::string_view tenant);

}  // namespace toki::http
