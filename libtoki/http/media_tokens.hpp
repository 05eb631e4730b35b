// Pseudo tokens that stand for the images, audio and video of a chat, so that prompts with media
// can be compared like others.
#pragma once

#include <toki/token.hpp>

#include <cstddef>
#include <string_view>
#include <vector>

namespace toki::http {

/// How many pseudo tokens stand for one medium. Each is negative and so never a token of the model.
inline constexpr std::size_t kMediaTokens = 8;

/// The media in the `messages` of a chat body, in their order. What the body itself holds (data
/// URLs, base64) is told apart by 248 bits of hash over its bytes as they are written. What it only
/// names (an address, a file) may change behind its name: it gets random tokens, equal to no others.
std::vector<Tokens> media_tokens(std::string_view chat_body);

}  // namespace toki::http
