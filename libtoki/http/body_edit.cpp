// The checker is one loop over the text. A stack of closing brackets stands in for recursion:
//
//     item()         skips white space, closes an empty container, reads a member's key
//       value()      reads a scalar, or opens a container and returns into its first item
//       after_value  goes past the comma to the next item, or closes containers until there is one
//
// Functions that read take a position and return the one behind what they read, or null after they
// noted an error. Plain string bytes are skipped 16 at a time. Positions are kept only for the
// members of the outermost object; keys that must not repeat are kept as (hash, offset) and sorted
// when their object ends. The order is hash, then bytes, so colliding hashes cost comparisons of
// the keys themselves (size times log of count at worst) and never a quadratic search.
#include <toki/http/body_edit.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace toki::http {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::uint32_t kReplacement = 0xFFFD;

constexpr std::uint8_t byte_at(const char* at) noexcept {
  return static_cast<std::uint8_t>(*at);
}

constexpr bool is_space(char c) noexcept {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

constexpr bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

/// A byte that cannot just be skipped within a string.
constexpr bool is_special(char c) noexcept {
  const auto byte = static_cast<std::uint8_t>(c);
  return byte < 0x20 || byte >= 0x80 || c == '"' || c == '\\';
}

/// Whether any of eight bytes is special. Exact, in any byte order.
constexpr bool has_special(std::uint64_t word) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  constexpr std::uint64_t kHighs = kOnes << 7;
  const std::uint64_t quotes = word ^ (kOnes * '"');
  const std::uint64_t backslashes = word ^ (kOnes * '\\');
  const std::uint64_t found = ((quotes - kOnes) & ~quotes) |
                              ((backslashes - kOnes) & ~backslashes) |
                              ((word - kOnes * 0x20) & ~word) | word;
  return (found & kHighs) != 0;
}

#if defined(__SSE2__)
/// One bit for each of sixteen bytes that is special.
unsigned special_bits(const char* at) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  // Signed comparison: bytes from 0x80 are negative, so they count as below 0x20 too.
  const __m128i low = _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x20));
  const __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
  const __m128i backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
  const __m128i found = _mm_or_si128(low, _mm_or_si128(quote, backslash));
  return static_cast<unsigned>(_mm_movemask_epi8(found));
}
#endif

/// The first special byte from `at` on, or `end`.
const char* skip_plain(const char* at, const char* end) noexcept {
#if defined(__SSE2__)
  while (end - at >= 16) {
    const unsigned bits = special_bits(at);
    if (bits != 0) {
      return at + std::countr_zero(bits);
    }
    at += 16;
  }
#endif
  while (end - at >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    if (has_special(word)) {
      break;
    }
    at += 8;
  }
  while (at != end && !is_special(*at)) {
    ++at;
  }
  return at;
}

const char* skip_space(const char* at, const char* end) noexcept {
  while (at != end && is_space(*at)) {
    ++at;
  }
  return at;
}

const char* skip_digits(const char* at, const char* end) noexcept {
  while (at != end && is_digit(*at)) {
    ++at;
  }
  return at;
}

/// The size of a string that starts with a quote, both quotes included; of checked text only, or
/// 0 when it does not end.
std::size_t string_size(std::string_view text) noexcept {
  std::size_t from = 1;
  while (true) {
    const std::size_t quote = text.find('"', from);
    if (quote == std::string_view::npos) {
      return 0;
    }
    std::size_t before = quote;
    while (before > from && text[before - 1] == '\\') {
      --before;
    }
    if ((quote - before) % 2 == 0) {
      return quote + 1;
    }
    from = quote + 1;
  }
}

/// What may stand behind a number, true, false or null.
constexpr bool ends_scalar(char c) noexcept {
  return is_space(c) || c == ',' || c == ']' || c == '}';
}

/// The size of a value of checked text: nested ones by counting brackets.
std::size_t value_size(std::string_view text) noexcept {
  std::size_t depth = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      const std::size_t size = string_size(text.substr(at));
      at = size == 0 ? text.size() : at + size;
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at;
    } else if (depth == 0) {
      return static_cast<std::size_t>(
          std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), ends_scalar) -
          text.begin());
    } else {
      depth -= c == '}' || c == ']' ? 1U : 0U;
      ++at;
    }
    if (depth == 0) {
      break;
    }
  }
  return at;
}

JsonKind kind_of(char first) noexcept {
  switch (first) {
    case '{': return JsonKind::object;
    case '[': return JsonKind::array;
    case '"': return JsonKind::string;
    case 't':
    case 'f': return JsonKind::boolean;
    case 'n': return JsonKind::null;
    default: return JsonKind::number;
  }
}

/// Also encodes surrogates, in the manner of other three-byte forms.
void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// The code unit of a `\uXXXX` that `text` starts with.
std::optional<std::uint32_t> escaped_unit(std::string_view text) noexcept {
  if (text.size() < 6 || text[0] != '\\' || text[1] != 'u') {
    return std::nullopt;
  }
  std::uint32_t unit = 0;
  const char* end = text.data() + 6;
  const auto [at, error] = std::from_chars(text.data() + 2, end, unit, 16);
  return at == end && error == std::errc() ? std::optional(unit) : std::nullopt;
}

char simple_escape(char c) noexcept {
  switch (c) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return c;
  }
}

enum class LoneSurrogates : std::uint8_t { replace, keep };

/// Appends what the escape at the start of `text` stands for; returns its size.
std::size_t append_escape(std::string& out, std::string_view text, LoneSurrogates lone) {
  const std::optional<std::uint32_t> first = escaped_unit(text);
  if (!first) {
    if (text.size() > 1) {
      out.push_back(simple_escape(text[1]));
    }
    return std::min<std::size_t>(text.size(), 2);
  }
  if (*first < 0xD800 || *first > 0xDFFF) {
    append_utf8(out, *first);
    return 6;
  }
  const std::optional<std::uint32_t> second = escaped_unit(text.substr(6));
  if (*first < 0xDC00 && second && *second >= 0xDC00 && *second <= 0xDFFF) {
    append_utf8(out, 0x10000 + ((*first - 0xD800) << 10) + (*second - 0xDC00));
    return 12;
  }
  append_utf8(out, lone == LoneSurrogates::keep ? *first : kReplacement);
  return 6;
}

/// `raw` has its quotes. Keeping lone surrogates makes the result as distinct as the strings are.
std::string unescape_string(std::string_view raw, LoneSurrogates lone) {
  if (raw.size() < 2) {
    return {};
  }
  std::string_view rest = raw.substr(1, raw.size() - 2);
  std::string out;
  while (true) {
    const std::size_t plain = std::min(rest.find('\\'), rest.size());
    out.append(rest.substr(0, plain));
    rest.remove_prefix(plain);
    if (rest.empty()) {
      return out;
    }
    rest.remove_prefix(append_escape(out, rest, lone));
  }
}

/// The keys of one object that must not repeat.
class KeySet {
 public:
  void add(std::string_view text, std::string_view raw) {
    keys_.push_back({hash(raw), static_cast<std::size_t>(raw.data() - text.data())});
  }
  void clear() noexcept { keys_.clear(); }

  /// The offset of the first key that repeats an earlier one. Leaves the set sorted.
  std::optional<std::size_t> first_repeated(std::string_view text) {
    std::sort(keys_.begin(), keys_.end(), [text](const Key& a, const Key& b) {
      if (a.hash != b.hash) {
        return a.hash < b.hash;
      }
      const int order = compare(text, a, b);
      return order != 0 ? order < 0 : a.offset < b.offset;
    });
    std::optional<std::size_t> first;
    for (std::size_t i = 1; i < keys_.size(); ++i) {
      if (keys_[i - 1].hash == keys_[i].hash && compare(text, keys_[i - 1], keys_[i]) == 0) {
        first = std::min(first.value_or(keys_[i].offset), keys_[i].offset);
      }
    }
    return first;
  }

 private:
  struct Key {
    std::size_t hash;
    std::size_t offset;  // of the opening quote
  };

  static bool escaped(std::string_view raw) noexcept {
    return raw.find('\\') != std::string_view::npos;
  }

  static std::size_t hash(std::string_view raw) {
    return escaped(raw) ? std::hash<std::string>()(unescape_string(raw, LoneSurrogates::keep))
                        : std::hash<std::string_view>()(raw.substr(1, raw.size() - 2));
  }

  static int compare(std::string_view text, const Key& a, const Key& b) {
    const auto raw = [text](const Key& key) {
      const std::string_view rest = text.substr(key.offset);
      return rest.substr(0, string_size(rest));
    };
    const std::string_view left = raw(a);
    const std::string_view right = raw(b);
    if (!escaped(left) && !escaped(right)) {
      return left.substr(1, left.size() - 2).compare(right.substr(1, right.size() - 2));
    }
    return unescape_string(left, LoneSurrogates::keep)
        .compare(unescape_string(right, LoneSurrogates::keep));
  }

  std::vector<Key> keys_;
};

}  // namespace

class BodyParser {
 public:
  explicit BodyParser(std::string_view text) noexcept
      : text_(text), end_(text.data() + text.size()) {}

  std::variant<Body, BodyError> run() {
    if (!document()) {
      return error_;
    }
    Body body;
    body.text_ = text_;
    body.fields_ = std::move(fields_);
    return body;
  }

 private:
  using Position = const char*;  // null after an error

  Position fail(Position at, std::string_view reason) noexcept {
    error_.offset = static_cast<std::size_t>(at - text_.data());
    error_.reason = at == end_ ? "unexpected end" : reason;
    return nullptr;
  }

  bool document();
  Position item(Position at);
  Position value(Position at);
  Position after_value(Position at);
  Position open(Position at);
  Position close(Position at);
  Position member_key(Position at);
  bool note_key(Position from, Position to);
  bool no_repeated(KeySet& keys);
  bool in_entry() const noexcept { return depth_ == 3 && in_messages_ && closers_[1] == ']'; }

  Position string(Position at);
  Position escape(Position at);
  Position unicode_escape(Position at);
  Position wide_characters(Position at);
  Position number(Position at);
  Position some_digits(Position at);
  Position literal(Position at, std::string_view word);

  std::string_view text_;
  Position end_;
  BodyError error_;
  std::vector<JsonField> fields_;
  KeySet top_keys_;
  KeySet entry_keys_;
  Position top_value_ = nullptr;  // start of the present top-level value
  bool in_messages_ = false;      // that value is the member "messages"
  bool fresh_ = false;            // the innermost container was just opened
  std::size_t depth_ = 0;
  std::array<char, kMaxJsonDepth> closers_{};
};

bool BodyParser::document() {
  if (text_.starts_with(kByteOrderMark)) {
    fail(text_.data(), "byte order mark");
    return false;
  }
  Position at = skip_space(text_.data(), end_);
  if (at == end_) {
    error_ = {text_.size(), "empty body"};
    return false;
  }
  if (*at != '{') {
    fail(at, "not a JSON object");
    return false;
  }
  at = open(at);
  while (at != nullptr && depth_ != 0) {
    at = item(at);
  }
  if (at == nullptr) {
    return false;
  }
  at = skip_space(at, end_);
  if (at != end_) {
    fail(at, "bytes after the object");
    return false;
  }
  return true;
}

BodyParser::Position BodyParser::item(Position at) {
  at = skip_space(at, end_);
  const char closer = closers_[depth_ - 1];
  if (std::exchange(fresh_, false) && at != end_ && *at == closer) {
    at = close(at);
    return at == nullptr ? nullptr : after_value(at);
  }
  if (closer == '}') {
    at = member_key(at);
  }
  return at == nullptr ? nullptr : value(at);
}

BodyParser::Position BodyParser::value(Position at) {
  if (at == end_) {
    return fail(at, "expected a value");
  }
  if (depth_ == 1) {
    top_value_ = at;
  }
  switch (*at) {
    case '{':
    case '[': return open(at);
    case '"': at = string(at + 1); break;
    case 't': at = literal(at, "true"); break;
    case 'f': at = literal(at, "false"); break;
    case 'n': at = literal(at, "null"); break;
    default:
      if (*at != '-' && !is_digit(*at)) {
        return fail(at, "expected a value");
      }
      at = number(at);
  }
  return at == nullptr ? nullptr : after_value(at);
}

BodyParser::Position BodyParser::after_value(Position at) {
  while (at != nullptr && depth_ != 0) {
    if (depth_ == 1) {
      fields_.back().value = {top_value_, static_cast<std::size_t>(at - top_value_)};
      fields_.back().kind = kind_of(*top_value_);
    }
    at = skip_space(at, end_);
    if (at != end_ && *at == ',') {
      return at + 1;
    }
    const char closer = closers_[depth_ - 1];
    if (at == end_ || *at != closer) {
      return fail(at, closer == '}' ? "expected , or }" : "expected , or ]");
    }
    at = close(at);
  }
  return at;
}

BodyParser::Position BodyParser::open(Position at) {
  if (depth_ == kMaxJsonDepth) {
    return fail(at, "nested too deep");
  }
  closers_[depth_++] = *at == '{' ? '}' : ']';
  fresh_ = true;
  return at + 1;
}

BodyParser::Position BodyParser::close(Position at) {
  if (depth_ == 1 && !no_repeated(top_keys_)) {
    return nullptr;
  }
  if (in_entry() && !no_repeated(entry_keys_)) {
    return nullptr;
  }
  --depth_;
  return at + 1;
}

bool BodyParser::no_repeated(KeySet& keys) {
  const std::optional<std::size_t> offset = keys.first_repeated(text_);
  keys.clear();
  if (offset) {
    fail(text_.data() + *offset, "duplicate key");
  }
  return !offset;
}

/// Reads a key and its colon, up to the value.
BodyParser::Position BodyParser::member_key(Position at) {
  if (at == end_ || *at != '"') {
    return fail(at, "expected a key");
  }
  const Position from = at;
  at = string(at + 1);
  if (at == nullptr || !note_key(from, at)) {
    return nullptr;
  }
  at = skip_space(at, end_);
  if (at == end_ || *at != ':') {
    return fail(at, "expected :");
  }
  return skip_space(at + 1, end_);
}

bool BodyParser::note_key(Position from, Position to) {
  const std::string_view raw(from, static_cast<std::size_t>(to - from));
  if (depth_ == 1) {
    if (fields_.size() == kMaxJsonFields) {
      fail(from, "too many members");
      return false;
    }
    top_keys_.add(text_, raw);
    fields_.push_back({unescape(raw), {}, JsonKind::null});
    in_messages_ = fields_.back().key == "messages";
  } else if (in_entry()) {
    entry_keys_.add(text_, raw);
  }
  return true;
}

/// `at` is behind the opening quote.
BodyParser::Position BodyParser::string(Position at) {
  while (at != nullptr) {
    at = skip_plain(at, end_);
    if (at == end_) {
      return fail(at, "expected \"");
    }
    if (*at == '"') {
      return at + 1;
    }
    if (*at == '\\') {
      at = escape(at + 1);
    } else if (byte_at(at) >= 0x80) {
      at = wide_characters(at);
    } else {
      return fail(at, "control character in a string");
    }
  }
  return nullptr;
}

/// `at` is behind the backslash.
BodyParser::Position BodyParser::escape(Position at) {
  if (at == end_) {
    return fail(at, "unknown escape");
  }
  switch (*at) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return at + 1;
    case 'u': return unicode_escape(at + 1);
    default: return fail(at, "unknown escape");
  }
}

BodyParser::Position BodyParser::unicode_escape(Position at) {
  for (int i = 0; i < 4; ++i, ++at) {
    const bool hex =
        at != end_ && (is_digit(*at) || (*at >= 'a' && *at <= 'f') || (*at >= 'A' && *at <= 'F'));
    if (!hex) {
      return fail(at, "expected four hexadecimal digits");
    }
  }
  return at;
}

/// Reads all characters outside ASCII that follow each other (Unicode 15, table 3-7).
BodyParser::Position BodyParser::wide_characters(Position at) {
  while (at != end_ && byte_at(at) >= 0x80) {
    const std::uint8_t lead = byte_at(at);
    if (lead < 0xC2 || lead > 0xF4) {
      return fail(at, "invalid UTF-8");
    }
    const std::ptrdiff_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    std::uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    std::uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (std::ptrdiff_t i = 1; i < size; ++i) {
      if (end_ - at == i) {
        return fail(end_, "invalid UTF-8");
      }
      if (byte_at(at + i) < low || byte_at(at + i) > high) {
        return fail(at, "invalid UTF-8");
      }
      low = 0x80;
      high = 0xBF;
    }
    at += size;
  }
  return at;
}

BodyParser::Position BodyParser::number(Position at) {
  if (*at == '-') {
    ++at;
  }
  const Position whole = at;
  at = some_digits(at);
  if (at != nullptr && *whole == '0' && at - whole > 1) {
    return fail(whole + 1, "malformed number");
  }
  if (at != nullptr && at != end_ && *at == '.') {
    at = some_digits(at + 1);
  }
  if (at != nullptr && at != end_ && (*at == 'e' || *at == 'E')) {
    ++at;
    at = some_digits(at != end_ && (*at == '+' || *at == '-') ? at + 1 : at);
  }
  return at;
}

BodyParser::Position BodyParser::some_digits(Position at) {
  const Position to = skip_digits(at, end_);
  return to == at ? fail(at, "malformed number") : to;
}

BodyParser::Position BodyParser::literal(Position at, std::string_view word) {
  for (const char c : word) {
    if (at == end_ || *at != c) {
      return fail(at, "unknown literal");
    }
    ++at;
  }
  return at;
}

std::variant<Body, BodyError> Body::parse(std::string_view text) {
  return BodyParser(text).run();
}

const JsonField* Body::find(std::string_view key) const noexcept {
  const auto found = std::find_if(fields_.begin(), fields_.end(),
                                  [key](const JsonField& field) { return field.key == key; });
  return found == fields_.end() ? nullptr : &*found;
}

Children::Children(std::string_view value) noexcept
    : rest_(value.size() < 2 ? std::string_view() : value.substr(1, value.size() - 2)),
      in_object_(value.starts_with('{')) {}

const JsonField* Children::next() {
  const auto skip_to = [this](std::string_view separators) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(separators), rest_.size()));
  };
  skip_to(" \n\r\t,");
  if (in_object_) {
    const std::size_t size = rest_.starts_with('"') ? string_size(rest_) : 0;
    field_.key = unescape(rest_.substr(0, size));
    rest_.remove_prefix(size);
    skip_to(" \n\r\t:");
  }
  const std::size_t size = value_size(rest_);
  if (size == 0) {
    rest_ = {};
    return nullptr;
  }
  field_.value = rest_.substr(0, size);
  field_.kind = kind_of(rest_.front());
  rest_.remove_prefix(size);
  return &field_;
}

std::optional<JsonField> member(std::string_view object, std::string_view key) {
  Children members(object);
  while (const JsonField* found = members.next()) {
    if (found->key == key) {
      return *found;
    }
  }
  return std::nullopt;
}

std::vector<JsonField> children(std::string_view value) {
  std::vector<JsonField> all;
  Children walk(value);
  while (const JsonField* child = walk.next()) {
    all.push_back(*child);
  }
  return all;
}

std::string unescape(std::string_view value) {
  return unescape_string(value, LoneSurrogates::replace);
}

std::optional<std::int64_t> as_integer(const JsonField& field) noexcept {
  if (field.kind != JsonKind::number) {
    return std::nullopt;
  }
  std::int64_t number = 0;
  const char* end = field.value.data() + field.value.size();
  const auto [at, error] = std::from_chars(field.value.data(), end, number);
  return at == end && error == std::errc() ? std::optional(number) : std::nullopt;
}

std::string quote(std::string_view text) {
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  std::string out = "\"";
  out.reserve(text.size() + 2);
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (const std::size_t i = kShort.find(c); i != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kLetters[i]);
    } else if (byte < 0x20) {
      out.append("\\u00");
      out.push_back(kHexDigits[byte >> 4]);
      out.push_back(kHexDigits[byte & 0xF]);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

namespace {

/// The edits that count, in order: the last one of each key.
std::vector<const BodyEdit*> last_edits(std::span<const BodyEdit> edits) {
  std::vector<const BodyEdit*> last;
  for (const BodyEdit& edit : edits) {
    const auto earlier = std::find_if(last.begin(), last.end(), [&edit](const BodyEdit* other) {
      return other->key == edit.key;
    });
    if (earlier == last.end()) {
      last.push_back(&edit);
    } else {
      *earlier = &edit;
    }
  }
  return last;
}

}  // namespace

std::vector<std::string_view> splice(const Body& body, std::span<const BodyEdit> edits,
                                     std::vector<std::string>& storage) {
  struct Change {
    const char* at;     // where it goes
    std::size_t drops;  // bytes of the text that it stands for
    std::string_view json;
  };
  std::string inserted;
  std::vector<Change> changes;
  storage.clear();
  storage.reserve(edits.size() + 1);  // pieces point into it, short strings included
  for (const BodyEdit* edit : last_edits(edits)) {
    if (const JsonField* field = body.find(edit->key)) {
      changes.push_back(
          {field->value.data(), field->value.size(), storage.emplace_back(edit->json)});
    } else {
      inserted.append(inserted.empty() ? "" : ",").append(quote(edit->key)).append(":");
      inserted.append(edit->json);
    }
  }
  const std::string_view text = body.text();
  if (!inserted.empty()) {
    inserted.append(body.fields().empty() ? "" : ",");
    changes.push_back(
        {text.data() + text.find('{') + 1, 0, storage.emplace_back(std::move(inserted))});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.at < b.at; });

  std::vector<std::string_view> pieces;
  const char* at = text.data();
  for (const Change& change : changes) {
    pieces.emplace_back(at, static_cast<std::size_t>(change.at - at));
    pieces.push_back(change.json);
    at = change.at + change.drops;
  }
  pieces.emplace_back(at, static_cast<std::size_t>(text.data() + text.size() - at));
  return pieces;
}

}  // namespace toki::http
