// Any bytes as a request body: it is accepted exactly when simdjson's DOM reads it as an object
// (apart from the differences documented in body_edit.hpp), and after a splice the untouched bytes
// are the same and the edited members have the new values.
#include <toki/http/body_edit.hpp>

#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fuzz/require.hpp"

namespace {

using namespace toki::http;
namespace dom = simdjson::dom;

/// Where the two may differ, judged by why the one that refused did so.
void check_verdict(std::string_view text, const BodyError* refused) {
  dom::parser parser;
  dom::object object;
  const auto error = parser.parse(simdjson::padded_string(text)).get(object);
  if (refused != nullptr) {
    require(refused->offset <= text.size() && !refused->reason.empty());
    const bool stricter = refused->reason == "duplicate key" ||
                          refused->reason == "nested too deep" ||
                          refused->reason == "too many members";
    require(error != simdjson::SUCCESS || stricter);
  } else {
    // Numbers beyond its range, lone surrogate escapes.
    require(error == simdjson::SUCCESS || error == simdjson::NUMBER_ERROR ||
            error == simdjson::STRING_ERROR);
  }
}

/// Descends as a caller would, and reads all there is to read.
void walk(std::string_view value) {
  for (Children all(value); const JsonField* child = all.next();) {
    require(child->value.data() > value.data() &&
            child->value.data() + child->value.size() < value.data() + value.size());
    as_integer(*child);
    if (child->kind == JsonKind::string) {
      unescape(child->value);
    } else if (child->kind == JsonKind::object || child->kind == JsonKind::array) {
      walk(child->value);  // at most kMaxJsonDepth
    }
  }
}

void check_splice(const Body& body) {
  const std::vector<BodyEdit> edits = {{"id_slot", "3"}, {"a", "[true]"}, {"cache_prompt", "true"}};
  const std::string_view text = body.text();
  std::vector<std::string> storage;
  std::string edited;
  std::size_t kept = 0;
  const char* at = text.data();
  for (const std::string_view piece : splice(body, edits, storage)) {
    edited += piece;
    if (piece.data() >= text.data() && piece.data() <= text.data() + text.size()) {
      require(piece.data() >= at);  // views of the text in its own order: nothing is rewritten
      at = piece.data() + piece.size();
      kept += piece.size();
    }
  }
  const auto result = Body::parse(edited);
  require(std::holds_alternative<Body>(result));
  const Body& after = std::get<Body>(result);
  std::size_t inserted = 0;
  for (const BodyEdit& edit : edits) {
    const JsonField* old = body.find(edit.key);
    kept += old != nullptr ? old->value.size() : 0;
    inserted += old == nullptr ? 1 : 0;
    require(after.find(edit.key) != nullptr && after.find(edit.key)->value == edit.json);
  }
  require(kept == text.size() && after.fields().size() == body.fields().size() + inserted);
  for (const JsonField& old : body.fields()) {
    const JsonField& now = after.fields()[inserted++];
    const bool changed = old.key == "id_slot" || old.key == "a" || old.key == "cache_prompt";
    require(now.key == old.key && (changed || now.value == old.value));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  const auto result = Body::parse(text);
  check_verdict(text, std::get_if<BodyError>(&result));
  if (const Body* body = std::get_if<Body>(&result)) {
    walk(text.substr(text.find('{'), text.rfind('}') + 1 - text.find('{')));
    check_splice(*body);
  } else {
    walk(text);  // not allowed, but has to be safe
    unescape(text);
  }
  return 0;
}
