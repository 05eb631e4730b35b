// The volatile-line rule, opt-in: some agents put a line that changes with every request (a
// checksum, a billing header) first into the system prompt, so that no two prompts share more than
// its beginning. Where the user says how such a line begins, it is taken out of the body before
// anything else looks at it. Only the first line of the system prompt is ever touched.
//
// Threads:   pure function.
// Ownership: the result owns its bytes.
// Errors:    none; a body of another form is left alone.
// Cost:      nothing where no line is named; one copy of the body where one is dropped.
#pragma once

#include <toki/export.hpp>
#include <toki/http/body_edit.hpp>
#include <toki/http/generation_request.hpp>

#include <optional>
#include <span>
#include <string>

namespace toki::http {

/// The body without the first line of its system prompt, when that line begins with one of
/// `beginnings`; nothing otherwise. The system prompt is `system` of /v1/messages, `instructions`
/// of /v1/responses, else the first entry of `messages` or `input` when its role is system or
/// developer. A content part that held nothing else goes with the line.
TOKI_EXPORT std::optional<std::string> without_volatile_line(
    Endpoint endpoint, const Body& body, std::span<const std::string> beginnings);

}  // namespace toki::http
