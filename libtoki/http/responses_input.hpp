// The chat form of a /v1/responses request, as llama-server makes it before it applies the model's
// template. Source of the rules: llama.cpp, tools/server/server-chat.cpp,
// server_chat_convert_responses_to_chatcmpl.
#pragma once

#include <toki/http/body_edit.hpp>
#include <toki/result.hpp>

#include <vector>

namespace toki::http {

/// The top-level fields to set on `body` so that /apply-template takes it. Errc::unsupported: it
/// holds something whose conversion is not known exactly.
Result<std::vector<BodyEdit>> responses_as_chat(const Body& body);

}  // namespace toki::http
