// Reading and splicing a JSON request body without rewriting it: the body is checked once, its
// top-level fields are found, and edits are put in while every other byte stays as the client sent
// it.
//
// Threads:   distinct objects are independent; const calls may run at once.
// Ownership: Body and Children view the text they were made from; it must outlive them and must
//            not move.
// Errors:    values; BodyError has a byte offset and a fixed text, never bytes of the body.
// Cost:      one pass over the text (below 0.2 ns a byte in long strings, about 1 ns in small
//            values), no recursion. Memory: 56 bytes a top-level field (at most kMaxJsonFields of
//            them), 16 bytes a key while an object is checked for repeated ones.
//
// Strict RFC 8259: exactly one object, no byte order mark, valid UTF-8, nothing after it but white
// space. Numbers of any size and lone surrogate escapes such as "\ud83d" are grammatical and pass
// untouched.
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

/// Arrays and objects that may be open at once, the outermost object included.
inline constexpr std::size_t kMaxJsonDepth = 512;
/// Members the outermost object may have: bounds what a hostile body costs beyond its own bytes.
inline constexpr std::size_t kMaxJsonFields = std::size_t{1} << 20;

/// What a JSON value is.
enum class JsonKind : std::uint8_t { object, array, string, number, boolean, null };

/// Why a body was refused. `offset` is that of the first byte that cannot be part of any body:
/// - text.size() where the text merely ends too early, also within a UTF-8 sequence
/// - the first byte of an ill-formed UTF-8 sequence (whole overlong forms, surrogates, stray bytes)
/// - the byte after the backslash of an unknown escape, the wrong digit of a `\\u` escape
/// - the opening quote of a repeated key or of the first key too many, the bracket that is too deep
/// - 0 of a byte order mark
/// A repeated key is reported when its object ends, so an error before that end comes first.
struct BodyError {
  std::size_t offset = 0;   ///< into the text
  std::string_view reason;  ///< static text, for example "duplicate key", "invalid UTF-8"
};

/// One member of an object, or one element of an array (then `key` is empty).
struct JsonField {
  std::string key;                 ///< unescaped, as by unescape()
  std::string_view value;          ///< raw bytes of the value, without surrounding white space
  JsonKind kind = JsonKind::null;  ///< of the value
};

/// A checked JSON object, with the position of each top-level member.
class TOKI_EXPORT Body {
 public:
  /// Checks all of `text`. Repeated keys are refused at the top level and in each object that is an
  /// element of a top-level array named "messages"; keys are compared unescaped.
  static std::variant<Body, BodyError> parse(std::string_view text);

  /// All of the body, as it was given; its owner keeps it.
  std::string_view text() const noexcept { return text_; }
  /// In the order of the text.
  std::span<const JsonField> fields() const noexcept { return fields_; }
  /// The top-level member of that name; null: there is none.
  const JsonField* find(std::string_view key) const noexcept;

 private:
  friend class BodyParser;
  std::string_view text_;
  std::vector<JsonField> fields_;
};

/// Walks the members of an object or the elements of an array in order, one at a time and in
/// constant memory, so that a caller can go down level by level without a document tree. Skips
/// nested values without checking them again.
///
///     for (Children entries(messages.value); const JsonField* entry = entries.next();) { ... }
class TOKI_EXPORT Children {
 public:
  /// REQUIRES: `value` is an object or array taken from a checked Body. Anything else is safe, but
  /// what next() then returns is not specified.
  explicit Children(std::string_view value) noexcept;

  /// The next one, or null after the last. Valid until the next call.
  const JsonField* next();

 private:
  std::string_view rest_;
  JsonField field_;
  bool in_object_;
};

/// All that Children walks over. Costs 56 bytes each: for untrusted arrays of any length prefer
/// Children. REQUIRES: as Children.
TOKI_EXPORT std::vector<JsonField> children(std::string_view value);

/// The member of that name of an object. REQUIRES: `object` as for Children.
TOKI_EXPORT std::optional<JsonField> member(std::string_view object, std::string_view key);

/// The text of a JSON string value (with its quotes), unescaped to UTF-8. Lone surrogates become
/// U+FFFD here: use it for names and decisions, never to forward text. REQUIRES: `value` is a
/// string taken from a checked Body; of anything else safe, but not specified.
TOKI_EXPORT std::string unescape(std::string_view value);

/// The number as an integer, when it is written as one (no fraction, no exponent) and fits.
TOKI_EXPORT std::optional<std::int64_t> as_integer(const JsonField& field) noexcept;

/// `text` as a JSON string with quotes. Control characters, quotes and backslashes are escaped,
/// nothing else.
TOKI_EXPORT std::string quote(std::string_view text);

/// Sets a top-level member to `json` (raw JSON, not checked): replaces the value in place, or
/// inserts the member right after `{`.
struct BodyEdit {
  std::string_view key;  ///< unescaped
  std::string json;      ///< raw, its new value
};

/// The edited body as pieces to be sent one after the other: views into body.text() and into
/// `storage`, so a large body is never copied. Inserted members stand in the order of `edits`; of
/// several edits of one key the last counts. `storage` is overwritten, must outlive the pieces and
/// must not change.
TOKI_EXPORT std::vector<std::string_view> splice(const Body& body, std::span<const BodyEdit> edits,
                                                 std::vector<std::string>& storage);

}  // namespace toki::http
