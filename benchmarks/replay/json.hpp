// Boost.JSON, and reading a member that may be missing or of another kind.
#pragma once

#include <boost/json.hpp>

#include <cstdint>
#include <string_view>

namespace replay {

namespace json = boost::json;

inline const json::value& member(const json::value& value, std::string_view name) {
  static const json::value none;
  const json::object* object = value.if_object();
  const json::value* found = object != nullptr ? object->if_contains(name) : nullptr;
  return found != nullptr ? *found : none;
}

inline std::string_view text_of(const json::value& value) {
  const json::string* text = value.if_string();
  return text != nullptr ? std::string_view(*text) : std::string_view();
}

inline double number_of(const json::value& value, double otherwise) {
  if (!value.is_number()) return otherwise;
  return value.to_number<double>();
}

inline std::int64_t integer_of(const json::value& value, std::int64_t otherwise) {
  return value.is_number() ? static_cast<std::int64_t>(value.to_number<double>()) : otherwise;
}

}  // namespace replay
