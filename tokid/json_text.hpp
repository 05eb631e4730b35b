// Texts in tokid's own JSON.
#pragma once

#include <toki/http/body_edit.hpp>

#include <string>
#include <string_view>

namespace tokid {

/// As a JSON string; null for names and errors that are missing.
inline std::string text_or_null(std::string_view text) {
  return text.empty() ? "null" : toki::http::quote(text);
}

}  // namespace tokid
