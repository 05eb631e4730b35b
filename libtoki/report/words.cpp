#include "report/words.hpp"

#include <algorithm>
#include <array>

namespace toki::report {
namespace {

constexpr char32_t kNoCharacter = 0x110000;  // plus the byte
// Code has many of these signs; prose that has so large a share of them is taken for code.
constexpr std::string_view kCodeSigns = "{}[]<>=;|&$";
constexpr std::size_t kCodeShare = 20;  // one sign in so many characters

bool within(char32_t c, char32_t low, char32_t high) noexcept {
  return c >= low && c <= high;
}

bool is_digit(char32_t c) noexcept {
  return within(c, '0', '9') || within(c, 0xFF10, 0xFF19) || within(c, 0x0660, 0x0669) ||
         within(c, 0x06F0, 0x06F9) || within(c, 0x0966, 0x096F);
}

// Superscripts and fractions count as numbers, too.
bool is_number_sign(char32_t c) noexcept {
  return c == 0xB2 || c == 0xB3 || c == 0xB9 || within(c, 0xBC, 0xBE) ||
         within(c, 0x2070, 0x2079) || within(c, 0x2080, 0x2089) || within(c, 0x2150, 0x218F);
}

bool is_han(char32_t c) noexcept {
  return within(c, 0x3400, 0x4DBF) || within(c, 0x4E00, 0x9FFF) || within(c, 0xF900, 0xFAFF) ||
         within(c, 0x20000, 0x3FFFF);
}

bool is_letter(char32_t c) noexcept {
  if (c < 0x80) {
    return within(c, 'a', 'z') || within(c, 'A', 'Z') || c == '_';
  }
  if (c >= kNoCharacter || is_space(c) || is_number_sign(c)) {
    return false;
  }
  const bool sign = within(c, 0x80, 0xBF) || c == 0xD7 || c == 0xF7 || within(c, 0x2000, 0x2BFF) ||
                    within(c, 0x3000, 0x303F) || within(c, 0xFF00, 0xFF20) ||
                    within(c, 0xFF3B, 0xFF40) || within(c, 0xFF5B, 0xFF65) ||
                    within(c, 0x1F000, 0x1FAFF) || within(c, 0xFE30, 0xFE6F) || c == 0x060C ||
                    c == 0x061B || c == 0x061F || c == 0x0964;
  return !sign || c == 0xAA || c == 0xB5 || c == 0xBA;
}

Script script_of(char32_t c) noexcept {
  if (within(c, 'a', 'z') || within(c, 'A', 'Z') || within(c, 0xC0, 0x24F)) {
    return Script::latin;
  }
  if (within(c, 0x370, 0x3FF)) {
    return Script::greek;
  }
  if (within(c, 0x400, 0x52F)) {
    return Script::cyrillic;
  }
  if (within(c, 0x3041, 0x30FF)) {
    return Script::kana;
  }
  if (within(c, 0xAC00, 0xD7A3) || within(c, 0x1100, 0x11FF)) {
    return Script::hangul;
  }
  return is_han(c) ? Script::han : is_letter(c) && c >= 0x80 ? Script::other : Script::none;
}

// Scripts without gaps between words: a character is a word.
bool stands_alone(char32_t c) noexcept {
  return is_han(c) || within(c, 0x3041, 0x30FF) || within(c, 0x0E00, 0x0EFF) ||
         within(c, 0x1000, 0x109F) || within(c, 0x1780, 0x17FF);
}

bool is_upper(char32_t c) noexcept {
  return within(c, 'A', 'Z') || (within(c, 0xC0, 0xDE) && c != 0xD7) ||
         (within(c, 0x100, 0x137) && c % 2 == 0) || (within(c, 0x139, 0x148) && c % 2 == 1) ||
         (within(c, 0x14A, 0x177) && c % 2 == 0) || within(c, 0x391, 0x3A9) ||
         within(c, 0x400, 0x42F);
}

char32_t lower(char32_t c) noexcept {
  if (!is_upper(c)) {
    return within(c, 0xFF10, 0xFF19) ? c - 0xFF10 + '0' : c;
  }
  if (within(c, 0x100, 0x177)) {
    return c + 1;
  }
  return within(c, 0x400, 0x40F) ? c + 0x50 : c + 0x20;
}

void append(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (c >= kNoCharacter) {
    put(c - kNoCharacter);
  } else if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_apostrophe(char32_t c) noexcept {
  return c == '\'' || c == 0x2019 || c == 0x02BC;
}

bool is_minus(char32_t c) noexcept {
  return c == '-' || c == 0x2212;
}

// "1,234,567" is 1234567; "1,5" stays as it is.
std::string without_separators(std::string number) {
  std::size_t comma = number.find(',');
  if (comma == std::string::npos || comma > 3 || number.find('-') == 1) {
    return number;
  }
  for (std::size_t at = comma; at != std::string::npos && at < number.size();) {
    const std::size_t next = std::min(number.find_first_of(",.", at + 1), number.size());
    if (next - at != 4) {
      return number;
    }
    at = next < number.size() && number[next] == ',' ? next : std::string::npos;
  }
  std::erase(number, ',');
  return number;
}

// Cuts a text into words.
class Cutter {
 public:
  explicit Cutter(std::string_view text) : text_(text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      characters_.push_back({next_code_point(text, at), begin});
    }
    characters_.push_back({0, text.size()});
  }

  std::vector<Word> cut() {
    while (at_ + 1 < characters_.size()) {
      const char32_t c = here();
      if (is_space(c)) {
        starts_ = starts_ || c == '\n';
        ++at_;
      } else if (begins_number()) {
        number();
      } else if (is_letter(c)) {
        letters();
      } else {
        sign();
      }
    }
    return std::move(words_);
  }

 private:
  struct Character {
    char32_t c;
    std::size_t begin;
  };

  char32_t here(std::size_t ahead = 0) const noexcept {
    return at_ + ahead + 1 < characters_.size() ? characters_[at_ + ahead].c : 0;
  }

  bool begins_number() const noexcept {
    const char32_t before = at_ > 0 ? characters_[at_ - 1].c : 0;
    const bool sign = is_minus(here()) && is_digit(here(1)) && !is_letter(before) &&
                      !is_digit(before) && before != ')';
    return sign || is_digit(here()) || is_number_sign(here());
  }

  Word& open(Word::Kind kind) {
    Word& word = words_.emplace_back();
    word.kind = kind;
    word.begin = characters_[at_].begin;
    word.starts = starts_;
    return word;
  }

  void take(Word& word) {
    const char32_t c = is_minus(here()) ? U'-' : here();
    append(word.folded, is_apostrophe(c) ? U'\'' : lower(c));
    ++at_;
    word.text = text_.substr(word.begin, characters_[at_].begin - word.begin);
  }

  // Digits with what belongs to them: 3.14, 14:30, 2.4.1, 1,000, A380 (begun as letters), 42nd.
  void number() {
    Word& word = open(Word::Kind::number);
    take(word);
    while (is_digit(here()) || is_number_sign(here()) ||
           (is_letter(here()) && !stands_alone(here())) ||
           ((here() == '.' || here() == ',' || here() == ':') && is_digit(here(1)))) {
      take(word);
    }
    word.folded = without_separators(std::move(word.folded));
    starts_ = false;
  }

  void letters() {
    Word& word = open(Word::Kind::letters);
    word.capital = is_upper(here());
    word.script = script_of(here());
    const bool alone = stands_alone(here());
    std::size_t capitals = word.capital ? 1 : 0;
    std::size_t count = 1;
    take(word);
    while (!alone && !stands_alone(here())) {
      const bool joins = is_apostrophe(here()) && is_letter(here(1));
      if (is_digit(here())) {
        word.kind = Word::Kind::number;
      } else if (!is_letter(here()) && !joins) {
        break;
      }
      capitals += is_upper(here()) ? 1U : 0U;
      ++count;
      take(word);
    }
    word.all_capitals = count > 1 && capitals == count;
    // `snakeCase` and `snake_case` are names in code.
    word.code = count > 1 &&
                (word.folded.find('_') != std::string::npos || (!word.capital && capitals > 0));
    starts_ = false;
  }

  void sign() {
    constexpr std::array<char32_t, 10> kEnds = {'.', '!',    '?',    ':',    '*',
                                                '#', 0x3002, 0xFF01, 0xFF1F, 0x2026};
    const char32_t c = here();
    Word& word = open(Word::Kind::sign);
    take(word);
    const bool opens = c == '"' || c == '(' || c == '-' || c == '>' || c == 0x201C || c == 0x201E;
    starts_ = std::find(kEnds.begin(), kEnds.end(), c) != kEnds.end() || (starts_ && opens) ||
              c == '"' || c == 0x201C || c == 0x201E;
  }

  std::string_view text_;
  std::vector<Character> characters_;  // and one behind the last
  std::size_t at_ = 0;
  bool starts_ = true;
  std::vector<Word> words_;
};

bool looks_like_code(const std::vector<Word>& words) {
  std::size_t characters = 0;
  std::size_t signs = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].code) {
      continue;
    }
    characters += words[i].text.size();
    const bool call = words[i].text == "(" && i > 0 && words[i - 1].kind != Word::Kind::sign &&
                      words[i - 1].begin + words[i - 1].text.size() == words[i].begin;
    signs += call ? 2U : kCodeSigns.find(words[i].text) != std::string_view::npos ? 1U : 0U;
  }
  return signs > 1 && signs * kCodeShare >= characters;
}

// Marks what stands between backticks, be it one or a fence of three; or everything.
void mark_code(std::vector<Word>& words) {
  std::size_t ticks = 0;  // that opened the present code; 0: prose
  for (std::size_t i = 0; i < words.size();) {
    std::size_t run = 0;
    while (i + run < words.size() && words[i + run].text == "`") {
      ++run;
    }
    if (run == 0) {
      words[i].code = words[i].code || ticks > 0;
      ++i;
      continue;
    }
    ticks = ticks == 0 ? run : run >= ticks ? 0 : ticks;
    i += run;
  }
  if (looks_like_code(words)) {
    for (Word& word : words) {
      word.code = true;
    }
  }
}

// An address or a path: its signs and words stand without a gap.
void mark_paths(std::vector<Word>& words) {
  for (std::size_t i = 0; i < words.size();) {
    std::size_t end = i + 1;
    bool path = words[i].text == "/" || words[i].text == "\\";
    while (end < words.size() &&
           words[end - 1].begin + words[end - 1].text.size() == words[end].begin) {
      path = path || words[end].text == "/" || words[end].text == "\\" || words[end].text == "@";
      ++end;
    }
    // A sentence's own signs around it do not belong to it.
    std::size_t last = end;
    while (last > i && words[last - 1].kind == Word::Kind::sign && words[last - 1].text != "/") {
      --last;
    }
    for (std::size_t k = i; path && k < last; ++k) {
      words[k].code = words[k].code || end - i > 3 || words[i].text == "/";
    }
    i = end;
  }
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  bool whole = length > 0 && at + length <= text.size();
  char32_t c = length == 1 ? first : first & (0x7FU >> length);
  for (std::size_t i = 1; whole && i < length; ++i) {
    whole = (byte(at + i) & 0xC0U) == 0x80U;
    c = (c << 6) | (byte(at + i) & 0x3FU);
  }
  whole = whole && !(length == 3 && (c < 0x800 || within(c, 0xD800, 0xDFFF))) &&
          !(length == 4 && (c < 0x10000 || c > 0x10FFFF));
  at += whole ? length : 1;
  return whole ? c : kNoCharacter + first;
}

bool is_space(char32_t c) noexcept {
  return within(c, 0x09, 0x0D) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         within(c, 0x2000, 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::vector<Word> words_of(std::string_view text) {
  std::vector<Word> words = Cutter(text).cut();
  mark_code(words);
  mark_paths(words);
  return words;
}

}  // namespace toki::report
