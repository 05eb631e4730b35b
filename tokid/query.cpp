#include "query.hpp"

#include <toki/http/generation_request.hpp>

#include <algorithm>
#include <utility>

namespace tokid {
namespace {

std::size_t mark_of(std::string_view target) {
  return std::min(target.find('?'), target.size());
}

/// Calls `visit` with each field's name and the whole of it, until that says false.
template <class Visit>
void each_field(std::string_view target, const Visit& visit) {
  std::string_view query = target.substr(std::min(mark_of(target) + 1, target.size()));
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
    if (!visit(field.substr(0, field.find('=')), field)) {
      return;
    }
  }
}

}  // namespace

std::optional<std::string_view> query_field(std::string_view target, std::string_view name) {
  std::optional<std::string_view> value;
  each_field(target, [&](std::string_view key, std::string_view field) {
    if (key == name) {
      value = field.substr(std::min(key.size() + 1, field.size()));
    }
    return !value;
  });
  return value;
}

std::string query_text(std::string_view target, std::string_view name) {
  return toki::http::decoded_path(query_field(target, name).value_or(std::string_view()));
}

bool query_has_only(std::string_view target, std::initializer_list<std::string_view> names) {
  bool only = true;
  each_field(target, [&](std::string_view key, std::string_view /*field*/) {
    only = std::find(names.begin(), names.end(), key) != names.end();
    return only;
  });
  return only;
}

std::string without_field(std::string_view target, std::string_view name) {
  std::string rest(target.substr(0, mark_of(target)));
  char before = '?';
  each_field(target, [&](std::string_view key, std::string_view field) {
    if (key != name) {
      rest.append(1, std::exchange(before, '&')).append(field);
    }
    return true;
  });
  return rest;
}

}  // namespace tokid
