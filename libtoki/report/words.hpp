// A text as words: what the divergence rules look at. Letters and digits make words, every other
// sign but white space is a word of its own; in scripts without word gaps each character is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace toki::report {

enum class Script : std::uint8_t { none, latin, greek, cyrillic, han, kana, hangul, other };

struct Word {
  enum class Kind : std::uint8_t { letters, number, sign } kind = Kind::sign;
  Script script = Script::none;
  std::string folded;         // lower case; numbers without thousands separators
  std::string_view text;      // as it stands
  std::size_t begin = 0;      // in bytes
  bool capital = false;       // begins with a capital
  bool all_capitals = false;  // two letters or more, all of them
  bool starts = false;        // the first word of a sentence, a line or a list item
  bool code = false;          // within code: compared letter by letter
};

/// One code point of `text` at `at`, which moves on. Bytes that are no UTF-8 are returned one by one
/// as 0x110000 + byte.
char32_t next_code_point(std::string_view text, std::size_t& at) noexcept;

bool is_space(char32_t c) noexcept;

std::vector<Word> words_of(std::string_view text);

}  // namespace toki::report
