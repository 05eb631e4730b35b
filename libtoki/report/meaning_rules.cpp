// Rules look at what is different, not at what both texts share. Each errs to the side of
// "substantive": noise is what nothing speaks against. In the order in which they are asked:
//
//   code        a differing word or sign stands in code, JSON, a path, or is an identifier
//   order       the same words otherwise arranged, but for a list or a part that moved as a whole
//   truncation  one ends where the other goes on
//   numbers     the numbers of both texts, in order, are not the same
//   negation    a hunk has more negations on one side
//   opposites   one side has a word, the other one that excludes it
//   names       each side has capitalised words that the other lacks
//   omission    several words in a row on one side only
//   symbols, question, script
#include "report/meaning_rules.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "report/meaning_words.hpp"

namespace toki::report {
namespace {

using Side = std::span<const Word* const>;
using List = std::span<const std::string_view>;

constexpr std::size_t kOmitted = 5;        // words in a row
constexpr std::size_t kMaxReordered = 64;  // words; longer ones are not looked at for moved parts

bool among(List list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Calls `use` with each word of a line of words until it answers true.
template <class Use>
bool any_word(std::string_view line, Use use) {
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    if (end > 0 && use(line.substr(0, end))) {
      return true;
    }
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return false;
}

// ---- code

bool code_differs(const Texts& texts) {
  const auto has_code = [](Side side) {
    return std::any_of(side.begin(), side.end(), [](const Word* word) { return word->code; });
  };
  const auto& hunks = texts.diff.hunks();
  return std::any_of(hunks.begin(), hunks.end(),
                     [&](const Hunk& hunk) { return has_code(hunk.a) || has_code(hunk.b); });
}

// ---- numbers

struct Number {
  std::string value;
  bool weak = false;
};

std::optional<Number> number_of(const Word& word) {
  if (word.kind == Word::Kind::number) {
    return Number{word.folded, false};
  }
  if (word.kind != Word::Kind::letters) {
    return std::nullopt;
  }
  const std::string_view text = word.folded;
  for (const std::string_view line : kNumberWords) {
    const std::size_t gap = line.find(' ');
    if (any_word(line.substr(gap), [&](std::string_view name) { return name == text; })) {
      return Number{std::string(line.substr(0, gap)), line.starts_with("1 ")};
    }
  }
  const bool compound =
      std::any_of(kNumberEndings.begin(), kNumberEndings.end(),
                  [&](std::string_view ending) { return text.ends_with(ending); });
  return compound ? std::optional(Number{word.folded, false}) : std::nullopt;
}

std::vector<Number> numbers_in(Side side) {
  std::vector<Number> numbers;
  for (const Word* word : side) {
    if (auto number = number_of(*word)) {
      numbers.push_back(std::move(*number));
    }
  }
  return numbers;
}

// One may be an article: numbers are the same when they are with all of those, or with none.
bool numbers_differ(const Texts& texts) {
  const Hunk core = texts.diff.core();
  const std::vector<Number> a = numbers_in(core.a);
  const std::vector<Number> b = numbers_in(core.b);
  const auto same_values = [](const Number& x, const Number& y) { return x.value == y.value; };
  if (std::equal(a.begin(), a.end(), b.begin(), b.end(), same_values)) {
    return false;
  }
  const auto strong = [](std::vector<Number> numbers) {
    std::erase_if(numbers, [](const Number& number) { return number.weak; });
    return numbers;
  };
  const std::vector<Number> strong_a = strong(a);
  const std::vector<Number> strong_b = strong(b);
  return !std::equal(strong_a.begin(), strong_a.end(), strong_b.begin(), strong_b.end(),
                     same_values);
}

// ---- negation

// Characters that negate, but not before (or behind) these.
bool negates_no_more(const Word& word, const Word* before, const Word* behind) {
  const std::string_view next = behind != nullptr ? std::string_view(behind->folded) : "";
  const std::string_view last = before != nullptr ? std::string_view(before->folded) : "";
  if (word.folded == "不") {
    return next == "过" || next == "仅" || next == "但";
  }
  if (word.folded == "非") {
    return next == "常";
  }
  return word.folded == "别" &&
         (last == "特" || last == "区" || last == "分" || last == "级" || next == "的");
}

std::size_t negations_in(Side side) {
  std::size_t others = 0;
  std::size_t ne = 0;  // French: "ne ... pas" is one negation
  for (std::size_t i = 0; i < side.size(); ++i) {
    const std::string_view word = side[i]->folded;
    const Word* before = i > 0 ? side[i - 1] : nullptr;
    const Word* behind = i + 1 < side.size() ? side[i + 1] : nullptr;
    const bool listed = among(kNegations, word) && !negates_no_more(*side[i], before, behind);
    const bool within = word.ends_with("n't") || word.find("않") != std::string_view::npos ||
                        word.find("없") != std::string_view::npos || word == "안" || word == "못";
    const bool kana =
        (word == "な" && behind != nullptr && (behind->folded == "い" || behind->folded == "か")) ||
        (word == "せ" && behind != nullptr && behind->folded == "ん");
    others += listed || within || kana ? 1U : 0U;
    ne += word == "ne" || word.starts_with("n'") ? 1U : 0U;
  }
  return std::max(others, ne);
}

bool negation_differs(const Texts& texts) {
  const auto& hunks = texts.diff.hunks();
  return std::any_of(hunks.begin(), hunks.end(),
                     [](const Hunk& hunk) { return negations_in(hunk.a) != negations_in(hunk.b); });
}

// ---- opposites

bool matches(std::string_view entry, std::string_view word) {
  if (entry.ends_with('*')) {
    entry.remove_suffix(1);
    return word.starts_with(entry);
  }
  return entry == word;
}

// Which sides of a line of opposites the words are on: a bit each.
std::uint32_t sides_of(std::string_view line, const std::set<std::string_view>& words) {
  std::uint32_t sides = 0;
  for (std::uint32_t bit = 1; !line.empty(); bit <<= 1) {
    const std::size_t end = std::min(line.find('|'), line.size());
    const auto found = [&](std::string_view entry) {
      return entry.ends_with('*') ? std::any_of(words.begin(), words.end(),
                                                [&](auto word) { return matches(entry, word); })
                                  : words.contains(entry);
    };
    sides |= any_word(line.substr(0, end), found) ? bit : 0;
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return sides;
}

// possible and impossible, harmful and harmless, приятный and неприятный.
bool negated_form(std::string_view word, std::string_view other) {
  constexpr std::array<std::string_view, 10> kPrefixes = {"un",  "in",  "im",  "ir", "il",
                                                          "dis", "non", "dés", "не", "mis"};
  if (word.size() >= 4 && std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](auto prefix) {
        return other.starts_with(prefix) && other.substr(prefix.size()) == word;
      })) {
    return true;
  }
  return word.ends_with("ful") && other.ends_with("less") &&
         word.substr(0, word.size() - 3) == other.substr(0, other.size() - 4);
}

std::set<std::string_view> set_of(Side side) {
  std::set<std::string_view> words;
  for (const Word* word : side) {
    words.insert(word->folded);
  }
  return words;
}

bool negated_forms(const std::set<std::string_view>& a, const std::set<std::string_view>& b) {
  constexpr std::size_t kMost = 200;  // words that only one has: longer lists are no slip
  if (a.size() > kMost || b.size() > kMost) {
    return false;
  }
  return std::any_of(a.begin(), a.end(), [&](auto word) {
    return std::any_of(b.begin(), b.end(), [&](auto other) {
      return negated_form(word, other) || negated_form(other, word);
    });
  });
}

bool opposites_differ(const Texts& texts) {
  const auto a = set_of(texts.diff.only_a());
  const auto b = set_of(texts.diff.only_b());
  if (a.empty() || b.empty()) {
    return false;
  }
  const bool listed = std::any_of(kOpposites.begin(), kOpposites.end(), [&](auto line) {
    const std::uint32_t of_a = sides_of(line, a);
    const std::uint32_t of_b = sides_of(line, b);
    return of_a != 0 && of_b != 0 && (of_a & of_b) == 0;
  });
  return listed || negated_forms(a, b);
}

// ---- names

bool looks_german(const Texts& texts) {
  std::set<std::string_view> found;
  for (const WordRefs* refs : {&texts.diff.a(), &texts.diff.b()}) {
    for (const Word* word : *refs) {
      if (among(kGerman, word->folded)) {
        found.insert(word->folded);
      }
    }
  }
  return found.size() > 1;
}

bool has_name(Side side, bool german) {
  return std::any_of(side.begin(), side.end(), [german](const Word* word) {
    const bool name = word->capital && !word->starts && word->text.size() > 1 && !german &&
                      !word->folded.starts_with("i'");
    return name || word->all_capitals;
  });
}

bool names_differ(const Texts& texts) {
  const bool german = looks_german(texts);
  return has_name(texts.diff.only_a(), german) && has_name(texts.diff.only_b(), german);
}

// ---- order

bool any_among(Side side, List list) {
  return std::any_of(side.begin(), side.end(),
                     [list](const Word* word) { return among(list, word->folded); });
}

bool equal_words(Side a, Side b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Word* x, const Word* y) { return same(*x, *y); });
}

// Whether b is a with two parts exchanged that are joined by nothing, or by "and": X M Y, Y M X.
bool parts_exchanged(Side a, Side b) {
  const std::size_t n = a.size();
  for (std::size_t x = 1; x < n; ++x) {
    if (!equal_words(a.first(x), b.last(x))) {
      continue;
    }
    for (std::size_t y = 1; x + y <= n; ++y) {
      const Side middle = a.subspan(x, n - x - y);
      const bool joined = std::all_of(middle.begin(), middle.end(),
                                      [](const Word* word) { return among(kJoins, word->folded); });
      if (joined && equal_words(a.last(y), b.first(y)) &&
          equal_words(middle, b.subspan(y, n - x - y))) {
        return true;
      }
    }
  }
  return false;
}

// A word that is long enough to mean something and moved from one hunk to another.
bool word_moved(const Texts& texts) {
  constexpr std::size_t kLongEnough = 4;  // bytes: one Han character has three and is not enough
  std::set<std::string_view> gone;
  for (const Hunk& hunk : texts.diff.hunks()) {
    for (const Word* word : hunk.a) {
      if (word->folded.size() >= kLongEnough && !among(kRelations, word->folded)) {
        gone.insert(word->folded);
      }
    }
  }
  const auto& hunks = texts.diff.hunks();
  return std::any_of(hunks.begin(), hunks.end(), [&](const Hunk& hunk) {
    return std::any_of(hunk.b.begin(), hunk.b.end(),
                       [&](const Word* word) { return gone.contains(word->folded); });
  });
}

bool order_differs(const Texts& texts) {
  const Hunk core = texts.diff.core();
  if (core.a.empty() || core.b.empty()) {
    return false;
  }
  const bool same_words = texts.diff.only_a().empty() && texts.diff.only_b().empty();
  if (same_words) {
    return core.a.size() > kMaxReordered || any_among(core.a, kScopes) ||
           !parts_exchanged(core.a, core.b);
  }
  return any_among(texts.diff.a(), kRelations) && any_among(texts.diff.b(), kRelations) &&
         word_moved(texts);
}

// ---- truncation and omission

std::string_view without_end(std::string_view text) {
  while (!text.empty()) {
    const auto last = static_cast<unsigned char>(text.back());
    if (last > ' ') {
      break;
    }
    text.remove_suffix(1);
  }
  return text;
}

// Words of a hunk's side that the other text has nowhere.
std::size_t missing(Side side, const std::set<std::string_view>& only) {
  return static_cast<std::size_t>(std::count_if(
      side.begin(), side.end(), [&](const Word* word) { return only.contains(word->folded); }));
}

bool ends_early(std::string_view shorter, std::string_view longer, std::size_t more) {
  const std::string_view cut = without_end(shorter);
  return cut.size() < longer.size() && longer.starts_with(cut) && more > 0;
}

bool ends_with_sign(const std::vector<Word>& words) {
  return !words.empty() && words.back().kind == Word::Kind::sign;
}

bool truncated(const Texts& texts) {
  const WordDiff& diff = texts.diff;
  const std::size_t a = diff.a().size();
  const std::size_t b = diff.b().size();
  const std::size_t shorter = std::min(a, b);
  const std::size_t longer = std::max(a, b);
  if (shorter == 0 || diff.common_prefix() == shorter) {
    return longer > shorter;
  }
  if (ends_early(texts.a, texts.b, diff.only_b().size()) ||
      ends_early(texts.b, texts.a, diff.only_a().size())) {
    return true;
  }
  if (longer - shorter >= 4 && shorter * 5 < longer * 3) {
    return true;
  }
  const Hunk& last = diff.hunks().back();
  const bool at_end = (last.a.empty() || last.a.back() == diff.a().back()) &&
                      (last.b.empty() || last.b.back() == diff.b().back());
  const std::size_t less = std::min(last.a.size(), last.b.size());
  const std::size_t more = last.a.size() > last.b.size() ? missing(last.a, set_of(diff.only_a()))
                                                         : missing(last.b, set_of(diff.only_b()));
  const bool complete = ends_with_sign(texts.words_a) && ends_with_sign(texts.words_b);
  const auto sentence = [](Side side) { return !side.empty() && side.front()->starts; };
  const bool stops = less == 0 && (!complete || sentence(last.a) || sentence(last.b));
  return at_end && more > 0 && (stops || more >= 2 * less + kOmitted - 1);
}

bool omitted(const Texts& texts) {
  const auto only_a = set_of(texts.diff.only_a());
  const auto only_b = set_of(texts.diff.only_b());
  const auto& hunks = texts.diff.hunks();
  return std::any_of(hunks.begin(), hunks.end(), [&](const Hunk& hunk) {
    return (hunk.b.empty() && missing(hunk.a, only_a) >= kOmitted) ||
           (hunk.a.empty() && missing(hunk.b, only_b) >= kOmitted);
  });
}

// ---- signs and script

std::map<std::string_view, std::size_t> signs_in(const std::vector<Word>& words, List list) {
  std::map<std::string_view, std::size_t> counts;
  for (const Word& word : words) {
    if (word.kind == Word::Kind::sign && !word.code && among(list, word.folded)) {
      ++counts[word.folded];
    }
  }
  return counts;
}

bool symbols_differ(const Texts& texts) {
  constexpr std::array<std::string_view, 22> kMeaning = {"=", "<", "+", "%", "$", "€", "£", "¥",
                                                         "°", "{", "}", "[", "]", "|", "^", "@",
                                                         "×", "÷", "±", "≤", "≥", "≠"};
  return signs_in(texts.words_a, kMeaning) != signs_in(texts.words_b, kMeaning);
}

bool question_differs(const Texts& texts) {
  constexpr std::array<std::string_view, 3> kAsks = {"?", "？", "؟"};
  constexpr std::array<std::string_view, 5> kSays = {".", "!", "。", "！", "।"};
  const auto total = [](const std::map<std::string_view, std::size_t>& counts) {
    std::size_t sum = 0;
    for (const auto& [sign, count] : counts) {
      sum += count;
    }
    return sum;
  };
  const std::size_t asks_a = total(signs_in(texts.words_a, kAsks));
  const std::size_t asks_b = total(signs_in(texts.words_b, kAsks));
  const std::size_t says_a = total(signs_in(texts.words_a, kSays));
  const std::size_t says_b = total(signs_in(texts.words_b, kSays));
  return (asks_a > asks_b && says_a < says_b) || (asks_a < asks_b && says_a > says_b);
}

// The script that most letters are of; Japanese mixes two.
Script main_script(const WordRefs& words) {
  std::array<std::size_t, 8> counts{};
  for (const Word* word : words) {
    const Script script = word->script == Script::kana ? Script::han : word->script;
    counts[static_cast<std::size_t>(script)] +=
        word->script == Script::none ? 0 : word->text.size();
  }
  const auto most = std::max_element(counts.begin(), counts.end());
  return *most == 0 ? Script::none : static_cast<Script>(most - counts.begin());
}

bool script_differs(const Texts& texts) {
  const Script a = main_script(texts.diff.a());
  const Script b = main_script(texts.diff.b());
  return a != b && a != Script::none && b != Script::none;
}

}  // namespace

std::optional<DivergenceReason> substantive_by_rule(const Texts& texts) {
  using Reason = DivergenceReason;
  using Rule = bool (*)(const Texts&);
  constexpr std::array<std::pair<Rule, Reason>, 8> kWords{{{code_differs, Reason::code},
                                                           {order_differs, Reason::order},
                                                           {truncated, Reason::truncation},
                                                           {numbers_differ, Reason::numbers},
                                                           {negation_differs, Reason::negation},
                                                           {opposites_differ, Reason::opposites},
                                                           {names_differ, Reason::names},
                                                           {omitted, Reason::omission}}};
  constexpr std::array<std::pair<Rule, Reason>, 3> kSigns{{{symbols_differ, Reason::symbols},
                                                           {question_differs, Reason::question},
                                                           {script_differs, Reason::script}}};
  if (!texts.diff.hunks().empty()) {
    for (const auto& [differs, reason] : kWords) {
      if (differs(texts)) {
        return reason;
      }
    }
  }
  for (const auto& [differs, reason] : kSigns) {
    if (differs(texts)) {
      return reason;
    }
  }
  return std::nullopt;
}

}  // namespace toki::report
