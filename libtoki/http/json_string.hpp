// JSON strings as they stand in a text.
#pragma once

#include <string_view>

namespace toki::http {

/// The inside of a JSON string, still escaped.
inline std::string_view inner(std::string_view json_string) {
  return json_string.substr(1, json_string.size() - 2);
}

}  // namespace toki::http
