// The messages that llama-server makes of a /v1/messages body (Anthropic's API) before it renders them
// as a chat: one system message from all text of `system`, calls and reasoning joined to their turn,
// each tool result a message of its own behind it.
//
// Threads:   pure functions.
// Ownership: the results own their bytes.
// Errors:    Errc::unsupported: the body has something whose form the server may choose otherwise.
// Cost:      one pass over the body, one copy of it.
#pragma once

#include <toki/http/body_edit.hpp>
#include <toki/result.hpp>

#include <cstdint>
#include <string>

namespace toki::http {

struct MessagesChat {
  /// A body for /apply-template: the fields that the server's own conversion keeps and a template may
  /// look at. Others (`id_slot`, `cache_prompt`, `add_generation_prompt`) are lost there too.
  std::string body;
  /// One bit for each kind of thing that was converted, never 0: bodies of one shape are converted by
  /// the same rules.
  std::uint32_t shape = 0;
};

/// `even_billing`: the server writes `fffff` over the five characters behind `cch=` in a system text
/// that begins with `x-anthropic-billing-header:`, as builds since April 2026 do. Media are
/// unsupported: "the prompt holds media".
Result<MessagesChat> messages_as_chat(const Body& body, bool even_billing);

/// Whether such a line is in it, so that `even_billing` matters.
bool has_billing_line(const Body& body);

}  // namespace toki::http
