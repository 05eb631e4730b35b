#include "http/messages_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "http/json_string.hpp"

namespace toki::http {
namespace {

constexpr std::string_view kBilling = "x-anthropic-billing-header:";

// What a body's shape is made of.
enum Shape : std::uint32_t {
  kAny = 1U << 0,
  kSystemText = 1U << 1,
  kSystemBlocks = 1U << 2,
  kBillingLine = 1U << 3,
  kBlocks = 1U << 4,
  kReasoning = 1U << 5,
  kCalls = 1U << 6,
  kResultText = 1U << 7,
  kResultBlocks = 1U << 8,
  kTools = 1U << 9,
  kBareTools = 1U << 10,  // without a schema: the server's own, like web search
  kToolChoice = 1U << 11,
  kThinking = 1U << 12,
  kTemplateFields = 1U << 13,
  kContinued = 1U << 14,  // the last message is the assistant's
  kEmptyResult = 1U << 15,
};

constexpr int kMaxInputDepth = 32;  // of a tool's input: each level is read again

Error unknown() {
  return {Errc::unsupported, "this /v1/messages body has no known chat form"};
}

Error unknown_block(std::string_view type) {
  return type == "image" ? Error{Errc::unsupported, "the prompt holds media"} : unknown();
}

std::optional<std::string_view> raw_string(const JsonField& object, std::string_view key) {
  const auto found = member(object.value, key);
  return found && found->kind == JsonKind::string ? std::optional(found->value) : std::nullopt;
}

std::string text_of(const JsonField& object, std::string_view key) {
  const auto raw = raw_string(object, key);
  return raw ? unescape(*raw) : std::string();
}

std::string string_or_empty(const JsonField& object, std::string_view key) {
  return std::string(raw_string(object, key).value_or("\"\""));
}

// A system text's inner bytes, as the server takes them. Only a line that is written without escapes
// is known again; no client writes another.
std::string billing_evened(std::string_view text, bool even) {
  std::string result(text);
  const std::size_t stamp =
      text.starts_with(kBilling) ? text.find("cch=", kBilling.size()) : std::string_view::npos;
  constexpr std::size_t kDigits = 5;
  if (even && stamp != std::string_view::npos && stamp + 4 + kDigits < text.size() &&
      text[stamp + 4 + kDigits] == ';') {
    result.replace(stamp + 4, kDigits, kDigits, 'f');
  }
  return result;
}

// A number as the server writes it again, where that is certain: an integer, or a plain fraction.
std::optional<std::string_view> same_number(std::string_view number) {
  constexpr std::size_t kDigits = 15;  // that a double keeps
  const std::string_view digits = number.substr(number.starts_with('-') ? 1 : 0);
  const std::size_t point = digits.find('.');
  if (digits.size() > kDigits + 1 || digits.find_first_of("eE") != std::string_view::npos ||
      number == "-0") {
    return std::nullopt;
  }
  if (point == std::string_view::npos) {
    return number;
  }
  const bool tiny = digits.starts_with("0.000");  // may become an exponent
  const bool shortest = digits.back() != '0' || digits.size() == point + 2;  // 2.50 becomes 2.5
  return !tiny && shortest ? std::optional(number) : std::nullopt;
}

// A value as the server's JSON library writes it, without white space. It is small and flat mostly:
// what a model gave to a tool.
bool append_compact(std::string& out, const JsonField& value, int depth = 0) {
  if (depth > kMaxInputDepth) {
    return false;
  }
  switch (value.kind) {
    case JsonKind::object:
    case JsonKind::array: {
      const bool object = value.kind == JsonKind::object;
      out += object ? '{' : '[';
      bool first = true;
      Children items(value.value);
      while (const JsonField* item = items.next()) {
        out += first ? "" : ",";
        first = false;
        if (object) {
          out.append(quote(item->key)).append(":");
        }
        if (!append_compact(out, *item, depth + 1)) {
          return false;
        }
      }
      out += object ? '}' : ']';
      return true;
    }
    case JsonKind::string: {
      out += quote(unescape(value.value));
      return true;
    }
    case JsonKind::number: {
      const auto number = same_number(value.value);
      out += number.value_or("");
      return number.has_value();
    }
    case JsonKind::boolean:
    case JsonKind::null: out += value.value; return true;
  }
  return false;
}

// One entry of `messages` with a list of blocks, on its way to become one message and the tool
// messages behind it.
struct Turn {
  std::vector<std::string> parts, calls, results;
  std::string reasoning;  // inner bytes
  std::uint32_t shape = 0;

  Status add(const JsonField& block);
  Status add_result(const JsonField& block);
};

Status Turn::add_result(const JsonField& block) {
  const auto content = member(block.value, "content");
  std::string text = "\"\"";
  if (content && content->kind == JsonKind::string) {
    text = content->value;
    shape |= kResultText;
  } else if (content && content->kind == JsonKind::array) {
    text = "\"";
    for (const JsonField& part : children(content->value)) {
      const std::string type = part.kind == JsonKind::object ? text_of(part, "type") : "";
      if (type != "text") {
        return unknown_block(type);
      }
      text += inner(string_or_empty(part, "text"));
    }
    text += "\"";
    shape |= kResultBlocks;
  } else if (content && content->kind != JsonKind::null) {
    return unknown();
  } else {
    shape |= kEmptyResult;
  }
  results.push_back(fmt::format(R"({{"role":"tool","tool_call_id":{},"content":{}}})",
                                string_or_empty(block, "tool_use_id"), text));
  return Done{};
}

Status Turn::add(const JsonField& block) {
  const std::string type = block.kind == JsonKind::object ? text_of(block, "type") : "";
  if (type == "text") {
    parts.emplace_back(block.value);
    shape |= kBlocks;
    return Done{};
  }
  if (type == "thinking") {
    reasoning += inner(string_or_empty(block, "thinking"));
    shape |= kReasoning;
    return Done{};
  }
  if (type == "tool_result") {
    return add_result(block);
  }
  if (type != "tool_use") {
    return unknown_block(type);
  }
  shape |= kCalls;
  std::string arguments = "{}";
  if (const auto input = member(block.value, "input")) {
    arguments.clear();
    if (input->kind != JsonKind::object || !append_compact(arguments, *input)) {
      return unknown();
    }
  }
  calls.push_back(
      fmt::format(R"({{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                  string_or_empty(block, "id"), string_or_empty(block, "name"), quote(arguments)));
  return Done{};
}

std::string joined(const std::vector<std::string>& list) {
  return fmt::format("[{}]", fmt::join(list, ","));
}

Status add_message(const JsonField& entry, std::vector<std::string>& messages,
                   std::uint32_t& shape) {
  const auto role = entry.kind == JsonKind::object ? raw_string(entry, "role") : std::nullopt;
  const auto content = role ? member(entry.value, "content") : std::nullopt;
  if (!content) {
    return unknown();
  }
  if (content->kind == JsonKind::string) {
    messages.emplace_back(entry.value);
    return Done{};
  }
  if (content->kind != JsonKind::array) {
    return unknown();
  }
  Turn turn;
  Children blocks(content->value);
  while (const JsonField* block = blocks.next()) {
    if (auto added = turn.add(*block); !added) {
      return added;
    }
  }
  shape |= turn.shape;
  if (!turn.parts.empty() || !turn.calls.empty() || !turn.reasoning.empty()) {
    std::string message = fmt::format(R"({{"role":{},"content":{})", *role,
                                      turn.parts.empty() ? "\"\"" : joined(turn.parts));
    if (!turn.calls.empty()) {
      message += ",\"tool_calls\":" + joined(turn.calls);
    }
    if (!turn.reasoning.empty()) {
      message += fmt::format(R"(,"reasoning_content":"{}")", turn.reasoning);
    }
    messages.push_back(message + "}");
  }
  messages.insert(messages.end(), turn.results.begin(), turn.results.end());
  return Done{};
}

Status add_system(const Body& body, bool even_billing, std::vector<std::string>& messages,
                  std::uint32_t& shape) {
  const JsonField* system = body.find("system");
  if (system == nullptr || system->kind == JsonKind::null) {
    return Done{};
  }
  std::string text;
  if (system->kind == JsonKind::string) {
    text = billing_evened(inner(system->value), even_billing);
    shape |= kSystemText;
  } else if (system->kind == JsonKind::array) {
    for (const JsonField& block : children(system->value)) {
      if (block.kind != JsonKind::object || text_of(block, "type") != "text") {
        return unknown();
      }
      text += billing_evened(inner(string_or_empty(block, "text")), even_billing);
    }
    shape |= kSystemBlocks;
  } else {
    return unknown();
  }
  shape |= has_billing_line(body) ? kBillingLine : 0U;
  messages.push_back(fmt::format(R"({{"role":"system","content":"{}"}})", text));
  return Done{};
}

Result<std::string> tools_as_chat(const JsonField& tools, std::uint32_t& shape) {
  std::vector<std::string> list;
  for (const JsonField& tool : children(tools.value)) {
    if (tool.kind != JsonKind::object) {
      return unknown();
    }
    const auto schema = member(tool.value, "input_schema");
    shape |= schema ? kTools : kBareTools;
    list.push_back(fmt::format(
        R"({{"type":"function","function":{{"name":{},"description":{},"parameters":{}}}}})",
        string_or_empty(tool, "name"), string_or_empty(tool, "description"),
        schema ? schema->value : "{}"));
  }
  return joined(list);
}

// The other fields that a template or the server's choice of one looks at.
std::string settings(const Body& body, std::uint32_t& shape) {
  std::string out;
  if (const JsonField* choice = body.find("tool_choice");
      choice != nullptr && choice->kind == JsonKind::object) {
    const std::string type = text_of(*choice, "type");
    out += type == "auto"                    ? R"(,"tool_choice":"auto")"
           : type == "any" || type == "tool" ? R"(,"tool_choice":"required")"
                                             : "";
    shape |= kToolChoice;
  }
  if (const JsonField* fields = body.find("chat_template_kwargs")) {
    out.append(R"(,"chat_template_kwargs":)").append(fields->value);
    shape |= kTemplateFields;
  }
  if (const JsonField* thinking = body.find("thinking"); thinking != nullptr &&
                                                         thinking->kind == JsonKind::object &&
                                                         text_of(*thinking, "type") == "enabled") {
    const auto budget = member(thinking->value, "budget_tokens");
    out += fmt::format(R"(,"thinking_budget_tokens":{})",
                       budget ? as_integer(*budget).value_or(10000) : 10000);
    shape |= kThinking;
  }
  return out;
}

}  // namespace

bool has_billing_line(const Body& body) {
  const JsonField* system = body.find("system");
  if (system == nullptr) {
    return false;
  }
  if (system->kind != JsonKind::array) {
    return system->kind == JsonKind::string && inner(system->value).starts_with(kBilling);
  }
  const std::vector<JsonField> blocks = children(system->value);
  return std::any_of(blocks.begin(), blocks.end(), [](const JsonField& block) {
    return block.kind == JsonKind::object &&
           inner(string_or_empty(block, "text")).starts_with(kBilling);
  });
}

Result<MessagesChat> messages_as_chat(const Body& body, bool even_billing) {
  MessagesChat chat{.body = {}, .shape = kAny};
  std::vector<std::string> messages;
  if (auto added = add_system(body, even_billing, messages, chat.shape); !added) {
    return added.error();
  }
  const JsonField* list = body.find("messages");
  if (list == nullptr || list->kind != JsonKind::array) {
    return unknown();
  }
  std::string_view last_role;
  for (Children entries(list->value); const JsonField* entry = entries.next();) {
    if (auto added = add_message(*entry, messages, chat.shape); !added) {
      return added.error();
    }
    last_role = raw_string(*entry, "role").value_or("");
  }
  chat.shape |= last_role == "\"assistant\"" ? kContinued : 0U;
  chat.body = "{\"messages\":" + joined(messages);
  if (const JsonField* tools = body.find("tools");
      tools != nullptr && tools->kind == JsonKind::array) {
    auto converted = tools_as_chat(*tools, chat.shape);
    if (!converted) {
      return converted.error();
    }
    chat.body += ",\"tools\":" + *converted;
  }
  chat.body += settings(body, chat.shape) + "}";
  return chat;
}

}  // namespace toki::http
