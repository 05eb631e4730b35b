// The query of a raw target: what stands behind its '?', fields between '&'. Fields may be
// percent-encoded; their names, numbers and tenants need no unescaping.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace tokid {

/// The raw value of the first field of that name, empty where it has none; nothing: it is not there.
std::optional<std::string_view> query_field(std::string_view target, std::string_view name);
/// The same, unescaped; empty where it is not there.
std::string query_text(std::string_view target, std::string_view name);
/// Whether all its fields have these names: a slip of the pen must not become "forget all".
bool query_has_only(std::string_view target, std::initializer_list<std::string_view> names);
/// The target without the fields of that name.
std::string without_field(std::string_view target, std::string_view name);

}  // namespace tokid
