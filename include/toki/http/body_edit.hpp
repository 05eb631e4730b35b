// Reading and splicing a JSON request body without rewriting it: the body is checked once, its
// top-level fields are found, and edits are put in while every other byte stays as the client sent
// it.
//
// Threads:   distinct objects are independent; const calls may run at once.
// Ownership: Body views the text it was made from; the text must outlive it and must not move.
// Errors:    values; BodyError has the byte offset and a fixed text, never bytes of the body.
// Cost:      one pass over the text (about 1 ns a byte or less), memory per top-level field only;
// depth is bounded.
//
// Strict RFC 8259: exactly one object, no byte order mark, valid UTF-8, nothing after it but white
// space. Lone surrogate escapes such as "\ud83d" are grammatical and pass untouched. Depth is
// limited to kMaxJsonDepth.
#pragma once

#include <toki/export.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace toki::http {

inline constexpr std::size_t kMaxJsonDepth = 512;

enum class JsonKind : std::uint8_t { object, array, string, number, boolean, null };

/// Why a body was refused: the byte offset where it stops making sense and a fixed sentence.
struct BodyError {
  std::size_t offset = 0;
  std::string_view reason;  ///< static text, for example "duplicate key", "invalid UTF-8"
};

/// One member of an object, or one element of an array (then `key` is empty).
struct JsonField {
  std::string key;         ///< unescaped
  std::string_view value;  ///< raw bytes of the value, without surrounding white space
  JsonKind kind = JsonKind::null;
};

/// A checked JSON object, with the position of each top-level member.
class TOKI_EXPORT Body {
 public:
  /// Checks all of `text`. Duplicate keys are refused at the top level and in each object that is
  /// an element of a top-level array named "messages".
  static std::variant<Body, BodyError> parse(std::string_view text);

  std::string_view text() const noexcept { return text_; }
  std::span<const JsonField> fields() const noexcept { return fields_; }
  const JsonField* find(std::string_view key) const noexcept;

 private:
  friend class BodyParser;
  std::string_view text_;
  std::vector<JsonField> fields_;
};

/// Members of the object, or elements of the array, whose raw bytes are `value`. REQUIRES: `value`
/// is an object or array taken from a checked Body. Lets a caller walk down one level at a time
/// without a document tree.
TOKI_EXPORT std::vector<JsonField> children(std::string_view value);

/// The text of a JSON string value (with its quotes), unescaped to UTF-8. Lone surrogates become
/// U+FFFD here: use it for names and decisions, never to forward text. REQUIRES: `value` is a
/// string taken from a checked Body.
TOKI_EXPORT std::string unescape(std::string_view value);

/// The number as an integer, when it is written as one (no fraction, no exponent) and fits.
TOKI_EXPORT std::optional<std::int64_t> as_integer(const JsonField& field) noexcept;

/// `text` as a JSON string with quotes. Control characters, quotes and backslashes are escaped,
/// nothing else.
TOKI_EXPORT std::string quote(std::string_view text);

/// Sets a top-level member to `json` (raw JSON): replaces the value in place, or inserts the member
/// right after `{`.
struct BodyEdit {
  std::string_view key;
  std::string json;
};

/// The edited body as pieces to be sent one after the other: views into body.text() and into
/// `storage`, so a large body is never copied. `storage` is overwritten, must outlive the pieces
/// and must not move.
TOKI_EXPORT std::vector<std::string_view> splice(const Body& body, std::span<const BodyEdit> edits,
                                                 std::vector<std::string>& storage);

}  // namespace toki::http
