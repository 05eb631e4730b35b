// A small JSON tree for tests: keeps the order of members, duplicate keys and lone surrogates,
// so that what a server received can be looked at closely.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace toki::test {

class Json {
 public:
  enum class Kind { null, boolean, integer, real, string, array, object };
  using Member = std::pair<std::string, Json>;

  Json() = default;

  /// One JSON value with nothing behind it, else nothing. A lone surrogate escape becomes a private
  /// use character (distinct ones stay distinct).
  static std::optional<Json> parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_integer() const { return kind_ == Kind::integer; }
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::real; }

  /// The first member of that name, or the element of that index; a null value when there is none.
  const Json& operator[](std::string_view key) const;
  const Json& operator[](std::size_t index) const;
  bool has(std::string_view key) const { return count(key) > 0; }
  std::size_t count(std::string_view key) const;  ///< how often the key is there

  const std::string& str() const { return string_; }
  double num(double otherwise = 0) const;
  std::int64_t integer(std::int64_t otherwise = 0) const;
  bool boolean(bool otherwise = false) const;
  const std::vector<Json>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }

  std::string dump() const;
  friend bool operator==(const Json& a, const Json& b);

 private:
  friend struct JsonBuilder;
  Kind kind_ = Kind::null;
  bool boolean_ = false;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

bool operator==(const Json& a, const Json& b);

/// `text` as a JSON string, with its quotes.
std::string quote(std::string_view text);

}  // namespace toki::test
