#include "http/responses_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace toki::http {
namespace {

struct Message {
  std::string role;
  std::vector<std::string> parts;
  std::vector<std::string> calls;
  std::optional<std::string> text;  // a plain string instead of parts
  std::string tail;                 // further members, with a leading comma
};

struct Item {
  std::vector<JsonField> fields;
  const JsonField* find(std::string_view key) const {
    const auto it = std::find_if(fields.begin(), fields.end(),
                                 [&](const JsonField& field) { return field.key == key; });
    return it == fields.end() ? nullptr : &*it;
  }
  std::string string(std::string_view key) const {
    const JsonField* field = find(key);
    return field != nullptr && field->kind == JsonKind::string ? unescape(field->value)
                                                               : std::string();
  }
  std::optional<std::string_view> raw_string(std::string_view key) const {
    const JsonField* field = find(key);
    return field != nullptr && field->kind == JsonKind::string ? std::optional(field->value)
                                                               : std::nullopt;
  }
};

std::string text_part(std::string_view raw) {
  return fmt::format(R"({{"text":{},"type":"text"}})", raw);
}

std::optional<std::vector<std::string>> text_parts(const JsonField& content) {
  std::vector<std::string> parts;
  if (content.kind == JsonKind::string) {
    parts.push_back(text_part(content.value));
    return parts;
  }
  if (content.kind != JsonKind::array) {
    return std::nullopt;
  }
  for (const JsonField& element : children(content.value)) {
    if (element.kind != JsonKind::object) {
      return std::nullopt;
    }
    const Item part{children(element.value)};
    const std::string type = part.string("type");
    const auto text = part.raw_string("text");
    if ((type != "input_text" && type != "output_text") || !text) {
      return std::nullopt;
    }
    parts.push_back(text_part(*text));
  }
  return parts;
}

bool add_message(const Item& item, std::vector<Message>& messages) {
  const std::string role = item.string("role");
  const JsonField* content = item.find("content");
  if (content == nullptr) {
    return false;
  }
  const bool assistant = role == "assistant";
  const bool known = role == "user" || role == "system" || role == "developer" ||
                     (assistant && item.string("type") == "message");
  auto parts = text_parts(*content);
  if (!known || !parts || (assistant && !messages.empty() && messages.back().role == "assistant")) {
    return false;
  }
  messages.push_back(
      {.role = role, .parts = std::move(*parts), .calls = {}, .text = {}, .tail = {}});
  return true;
}

bool add_call(const Item& item, std::vector<Message>& messages) {
  const auto arguments = item.raw_string("arguments");
  const auto id = item.raw_string("call_id");
  const auto name = item.raw_string("name");
  if (!arguments || !id || !name) {
    return false;
  }
  if (messages.empty() || messages.back().role != "assistant") {
    messages.push_back({.role = "assistant", .parts = {}, .calls = {}, .text = {}, .tail = {}});
  }
  messages.back().calls.push_back(
      fmt::format(R"({{"function":{{"arguments":{},"name":{}}},"id":{},"type":"function"}})",
                  *arguments, *name, *id));
  return true;
}

bool add_output(const Item& item, std::vector<Message>& messages) {
  const auto output = item.raw_string("output");
  const auto id = item.raw_string("call_id");
  if (!output || !id) {
    return false;
  }
  messages.push_back({.role = "tool",
                      .parts = {},
                      .calls = {},
                      .text = std::string(*output),
                      .tail = fmt::format(",\"tool_call_id\":{}", *id)});
  return true;
}

bool add_item(const JsonField& element, std::vector<Message>& messages) {
  if (element.kind != JsonKind::object) {
    return false;
  }
  const Item item{children(element.value)};
  const std::string type = item.string("type");
  if (type == "function_call") {
    return add_call(item, messages);
  }
  if (type == "function_call_output") {
    return add_output(item, messages);
  }
  return (type.empty() || type == "message") && add_message(item, messages);
}

std::string render(const std::vector<Message>& messages) {
  std::string out = "[";
  for (const Message& message : messages) {
    out += out.size() > 1 ? "," : "";
    out += fmt::format("{{\"role\":\"{}\"", message.role);
    if (message.text) {
      out += ",\"content\":" + *message.text;
    } else if (!message.parts.empty() || message.calls.empty()) {
      out += fmt::format(",\"content\":[{}]", fmt::join(message.parts, ","));
    }
    if (!message.calls.empty()) {
      out += fmt::format(",\"tool_calls\":[{}]", fmt::join(message.calls, ","));
    }
    out += message.tail + "}";
  }
  return out + "]";
}

std::optional<std::string> tools_as_chat(const JsonField& tools) {
  if (tools.kind != JsonKind::array) {
    return std::nullopt;
  }
  std::string out = "[";
  for (const JsonField& element : children(tools.value)) {
    const Item tool{element.kind == JsonKind::object ? children(element.value)
                                                     : std::vector<JsonField>{}};
    if (tool.string("type") != "function") {
      return std::nullopt;
    }
    std::string members;
    for (const JsonField& field : tool.fields) {
      if (field.key != "type") {
        members += (members.empty() ? "" : ",") + quote(field.key) + ":" + std::string(field.value);
      }
    }
    members += tool.find("strict") == nullptr
                   ? (members.empty() ? "\"strict\":true" : ",\"strict\":true")
                   : "";
    out += fmt::format("{}{{\"type\":\"function\",\"function\":{{{}}}}}", out.size() > 1 ? "," : "",
                       members);
  }
  return out + "]";
}

}  // namespace

Result<std::vector<BodyEdit>> responses_as_chat(const Body& body) {
  const Error unknown{Errc::unsupported, "this /v1/responses input has no known chat form"};
  std::vector<Message> messages;
  if (const JsonField* instructions = body.find("instructions")) {
    messages.push_back({.role = "system",
                        .parts = {},
                        .calls = {},
                        .text = instructions->kind == JsonKind::string
                                    ? std::string(instructions->value)
                                    : std::string("\"\""),
                        .tail = {}});
  }
  const JsonField* input = body.find("input");
  if (input == nullptr || body.find("previous_response_id") != nullptr) {
    return unknown;
  }
  if (input->kind == JsonKind::string) {
    messages.push_back(
        {.role = "user", .parts = {}, .calls = {}, .text = std::string(input->value), .tail = {}});
  } else if (input->kind != JsonKind::array) {
    return unknown;
  } else {
    for (const JsonField& element : children(input->value)) {
      if (!add_item(element, messages)) {
        return unknown;
      }
    }
  }
  std::vector<BodyEdit> edits{{"messages", render(messages)}};
  if (const JsonField* tools = body.find("tools"); tools != nullptr && tools->value != "[]") {
    auto chat = tools_as_chat(*tools);
    if (!chat) {
      return unknown;
    }
    edits.push_back({"tools", std::move(*chat)});
  }
  if (const JsonField* reasoning = body.find("reasoning");
      reasoning != nullptr && reasoning->kind == JsonKind::object) {
    const Item settings{children(reasoning->value)};
    if (const JsonField* effort = settings.find("effort")) {
      edits.push_back({"reasoning_effort", std::string(effort->value)});
    }
  }
  return edits;
}

}  // namespace toki::http
