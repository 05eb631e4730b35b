#include <toki/http/volatile_line.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace toki::http {
namespace {

// A part of the body's text, to be taken out.
using Range = std::string_view;

// Behind the first line of a raw JSON string's inner text: after its line feed (`\n` or `\u000a`),
// or its end.
std::size_t line_end(std::string_view inner) {
  for (std::size_t i = 0; i + 1 < inner.size(); ++i) {
    if (inner[i] != '\\') {
      continue;
    }
    if (inner[i + 1] == 'n') {
      return i + 2;
    }
    const std::string_view escape = inner.substr(i, 6);
    if (escape == "\\u000a" || escape == "\\u000A") {
      return i + 6;
    }
    ++i;
  }
  return inner.size();
}

// The first line of a JSON string, when it is volatile.
std::optional<Range> volatile_line(std::string_view string,
                                   std::span<const std::string> beginnings) {
  const std::string_view inner = string.substr(1, string.size() - 2);
  const std::string_view line = inner.substr(0, line_end(inner));
  const std::string text = unescape(std::string(1, '"').append(line).append("\""));
  const bool named = std::any_of(beginnings.begin(), beginnings.end(), [&](const auto& beginning) {
    return !beginning.empty() && text.starts_with(beginning);
  });
  return named ? std::optional<Range>(line) : std::nullopt;
}

// A list of content parts: the first one's text. The whole part when nothing else is in it, with
// the comma that follows.
std::optional<Range> in_parts(std::string_view list, std::span<const std::string> beginnings) {
  Children parts(list);
  const JsonField* part = parts.next();
  if (part == nullptr || part->kind != JsonKind::object) {
    return std::nullopt;
  }
  const std::string_view whole = part->value;
  const auto text = member(whole, "text");
  if (!text || text->kind != JsonKind::string) {
    return std::nullopt;
  }
  const auto line = volatile_line(text->value, beginnings);
  const bool all = line && line->size() + 2 == text->value.size();
  if (!all) {
    return line;
  }
  const JsonField* next = parts.next();
  const char* end = next != nullptr ? next->value.data() : whole.data() + whole.size();
  return Range(whole.data(), static_cast<std::size_t>(end - whole.data()));
}

std::optional<Range> in_content(const JsonField& content, std::span<const std::string> beginnings) {
  if (content.kind == JsonKind::string) {
    return volatile_line(content.value, beginnings);
  }
  return content.kind == JsonKind::array ? in_parts(content.value, beginnings) : std::nullopt;
}

std::optional<Range> in_first_message(const JsonField& list,
                                      std::span<const std::string> beginnings) {
  if (list.kind != JsonKind::array) {
    return std::nullopt;
  }
  Children entries(list.value);
  const JsonField* entry = entries.next();
  if (entry == nullptr || entry->kind != JsonKind::object) {
    return std::nullopt;
  }
  const auto role = member(entry->value, "role");
  const auto content = member(entry->value, "content");
  const bool system = role && (role->value == "\"system\"" || role->value == "\"developer\"");
  return system && content ? in_content(*content, beginnings) : std::nullopt;
}

}  // namespace

std::optional<std::string> without_volatile_line(Endpoint endpoint, const Body& body,
                                                 std::span<const std::string> beginnings) {
  std::optional<Range> range;
  for (const std::string_view key : {"system", "instructions", "messages", "input"}) {
    const JsonField* field = beginnings.empty() ? nullptr : body.find(key);
    if (field == nullptr || range) {
      continue;
    }
    const bool own_field = (key == "system" && endpoint == Endpoint::messages) ||
                           (key == "instructions" && endpoint == Endpoint::responses);
    const bool entries = (key == "messages" && endpoint == Endpoint::chat) ||
                         (key == "input" && endpoint == Endpoint::responses);
    range = own_field ? in_content(*field, beginnings)
            : entries ? in_first_message(*field, beginnings)
                      : std::nullopt;
  }
  if (!range) {
    return std::nullopt;
  }
  const std::string_view text = body.text();
  const auto begin = static_cast<std::size_t>(range->data() - text.data());
  std::string rest;
  rest.reserve(text.size() - range->size());
  rest.append(text.substr(0, begin)).append(text.substr(begin + range->size()));
  return rest;
}

}  // namespace toki::http
