// Headers and message heads as plain text, for the scripted upstream and the raw client.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace toki::test {

/// Names are compared without case; order and repetition are kept.
class Headers {
 public:
  Headers() = default;
  Headers(std::initializer_list<std::pair<std::string, std::string>> fields) : fields_(fields) {}

  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  /// Value of the first field of that name, "" when there is none.
  std::string get(std::string_view name) const;
  std::size_t count(std::string_view name) const;
  bool has(std::string_view name) const { return count(name) > 0; }
  bool empty() const { return fields_.empty(); }
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  std::string lines() const;  ///< "Name: value\r\n" for each

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

bool equal_without_case(std::string_view a, std::string_view b);
std::string_view trimmed(std::string_view text);

/// First line and fields of a message head that ends with an empty line.
struct Head {
  std::string first_line;
  Headers headers;
};
std::optional<Head> parse_head(std::string_view text);

/// Decodes a chunked body fed in pieces of any size.
class ChunkDecoder {
 public:
  /// Payload bytes among `bytes`, and how many bytes belonged to the body.
  std::size_t feed(std::string_view bytes, std::string& payload);
  bool done() const { return state_ == State::done; }
  bool failed() const { return state_ == State::failed; }

 private:
  enum class State { size, data, data_end, trailer, done, failed };
  State state_ = State::size;
  std::string line_;
  std::size_t left_ = 0;
};

}  // namespace toki::test
