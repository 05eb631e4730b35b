#include "json.hpp"

#include <simdjson.h>

#include <cstdio>

namespace toki::test {

struct JsonBuilder {
  static Json from(const simdjson::dom::element& element) {
    using Type = simdjson::dom::element_type;
    Json out;
    switch (element.type()) {
      case Type::NULL_VALUE: break;
      case Type::BOOL:
        out.kind_ = Json::Kind::boolean;
        out.boolean_ = bool(element);
        break;
      case Type::INT64:
        out.kind_ = Json::Kind::integer;
        out.integer_ = std::int64_t(element);
        break;
      case Type::UINT64:
      case Type::DOUBLE:
        out.kind_ = Json::Kind::real;
        out.real_ = double(element);
        break;
      case Type::STRING:
        out.kind_ = Json::Kind::string;
        out.string_ = std::string(std::string_view(element));
        break;
      case Type::ARRAY:
        out.kind_ = Json::Kind::array;
        for (const auto item : simdjson::dom::array(element)) out.items_.push_back(from(item));
        break;
      case Type::OBJECT:
        out.kind_ = Json::Kind::object;
        for (const auto member : simdjson::dom::object(element)) {
          out.members_.emplace_back(std::string(member.key), from(member.value));
        }
        break;
    }
    return out;
  }
};

namespace {

const Json& null_json() {
  static const Json value;
  return value;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The code unit of the \uXXXX escape at `at`, or -1.
int escape_at(std::string_view text, std::size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return -1;
  int unit = 0;
  for (std::size_t i = at + 2; i < at + 6; ++i) {
    const int digit = hex_value(text[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

// simdjson refuses lone surrogates, which servers are sent nevertheless: U+D800..U+DFFF become
// U+E000..U+E7FF.
std::string without_lone_surrogates(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '\\') {
      out += text[i++];
      continue;
    }
    const int unit = escape_at(text, i);
    if (unit < 0) {
      out.append(text.substr(i, 2));
      i += 2;
      continue;
    }
    const int next = escape_at(text, i + 6);
    if (unit >= 0xD800 && unit < 0xDC00 && next >= 0xDC00 && next < 0xE000) {
      out.append(text.substr(i, 12));
      i += 12;
      continue;
    }
    if (unit >= 0xD800 && unit < 0xE000) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", 0xE000 + (unit - 0xD800));
      out += escape;
    } else {
      out.append(text.substr(i, 6));
    }
    i += 6;
  }
  return out;
}

}  // namespace

std::optional<Json> Json::parse(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  if (parser.parse(simdjson::padded_string(text)).get(element) == simdjson::SUCCESS) {
    return JsonBuilder::from(element);
  }
  if (text.find("\\u") == std::string_view::npos) return std::nullopt;
  if (parser.parse(simdjson::padded_string(without_lone_surrogates(text))).get(element) ==
      simdjson::SUCCESS) {
    return JsonBuilder::from(element);
  }
  return std::nullopt;
}

const Json& Json::operator[](std::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (name == key) return value;
  }
  return null_json();
}

const Json& Json::operator[](std::size_t index) const {
  return index < items_.size() ? items_[index] : null_json();
}

std::size_t Json::count(std::string_view key) const {
  std::size_t found = 0;
  for (const auto& member : members_) {
    if (member.first == key) ++found;
  }
  return found;
}

double Json::num(double otherwise) const {
  if (kind_ == Kind::integer) return static_cast<double>(integer_);
  if (kind_ == Kind::real) return real_;
  if (kind_ == Kind::boolean) return boolean_ ? 1 : 0;
  return otherwise;
}

std::int64_t Json::integer(std::int64_t otherwise) const {
  if (kind_ == Kind::integer) return integer_;
  if (kind_ == Kind::real) return static_cast<std::int64_t>(real_);
  return otherwise;
}

bool Json::boolean(bool otherwise) const {
  return kind_ == Kind::boolean ? boolean_ : otherwise;
}

std::string Json::dump() const {
  switch (kind_) {
    case Kind::null: return "null";
    case Kind::boolean: return boolean_ ? "true" : "false";
    case Kind::integer: return std::to_string(integer_);
    case Kind::real: {
      char number[40];
      std::snprintf(number, sizeof number, "%.17g", real_);
      return number;
    }
    case Kind::string: return quote(string_);
    case Kind::array: {
      std::string out = "[";
      for (const auto& item : items_) {
        if (out.size() > 1) out += ',';
        out += item.dump();
      }
      return out + "]";
    }
    case Kind::object: {
      std::string out = "{";
      for (const auto& [key, value] : members_) {
        if (out.size() > 1) out += ',';
        out += quote(key) + ":" + value.dump();
      }
      return out + "}";
    }
  }
  return "null";
}

bool operator==(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.num() == b.num();
  return a.kind_ == b.kind_ && a.boolean_ == b.boolean_ && a.string_ == b.string_ &&
         a.items_ == b.items_ && a.members_ == b.members_;
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  out.reserve(text.size() + 2);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace toki::test
