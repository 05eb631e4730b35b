// Random texts through TokenCache and a naive toy tokenizer: whatever is found is exactly what the
// tokenizer makes of that part of the text, and tokenizing the rest alone completes it.
#include <toki/token_cache.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

using namespace toki;

namespace {

// Takes special tokens out first, the longest where several begin, and merges greedily between
// them; `&lt;` stands for an escaped `<`, which the tokenizer reads as `<` and the cache does not.
struct Toy {
  std::vector<SpecialToken> specials{{"<u>", 1}, {"<us>", 2}, {"<a", 3},
                                     {"<a>", 4}, {"[X]", 5},  {"<s>", 6}};
  std::array<std::string_view, 9> pieces{"abab", "ab", "bab", "a ", " a", "a", "b", " ", "  "};

  Tokens operator()(std::string_view raw, bool start) const {
    std::string text;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const bool escaped = raw.substr(i).starts_with("&lt;");
      text += escaped ? '<' : raw[i];
      i += escaped ? 3U : 0U;
    }
    Tokens out;
    if (start) out.push_back(6);
    std::string_view rest = text;
    while (!rest.empty()) {
      const SpecialToken* best = nullptr;
      for (const auto& token : specials) {
        if (rest.starts_with(token.text) && (!best || token.text.size() > best->text.size())) {
          best = &token;
        }
      }
      if (best != nullptr) {
        out.push_back(best->id);
        rest.remove_prefix(best->text.size());
        continue;
      }
      std::size_t length = 1;
      Token id = 100 + static_cast<unsigned char>(rest[0]);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (rest.starts_with(pieces[i]) && pieces[i].size() > length) {
          length = pieces[i].size();
          id = 400 + static_cast<Token>(i);
        }
      }
      out.push_back(id);
      rest.remove_prefix(length);
    }
    return out;
  }
};

}  // namespace

TEST_CASE("token cache model: what is found is what the tokenizer makes of that part") {
  const unsigned seed = GENERATE(1U, 2U, 3U, 4U);
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Toy toy;
  constexpr std::array<std::string_view, 16> kParts{"a",   "b",    "ab", " ",   "<",   "&lt;u>",
                                                    "<u>", "<us>", "<a", "<a>", "[X]", "<s>",
                                                    "[",   "bab ", ">",  "u>"};
  const std::size_t budget = seed % 2 == 0 ? 6000 : 1 << 20;
  TokenCache cache(budget);
  cache.reset(toy.specials);
  std::vector<std::string> texts{""};
  std::size_t whole = 0;
  std::size_t parts = 0;
  for (int step = 0; step < 10000; ++step) {
    const std::size_t recent = std::min<std::size_t>(texts.size(), 50);
    std::string text = texts[texts.size() - 1 - random() % recent];
    if (random() % 4 == 0) {
      text.resize(random() % (text.size() + 1));
    }
    for (std::size_t n = random() % 6; n > 0; --n) {
      text += kParts[random() % kParts.size()];
    }
    const bool start = random() % 3 != 0;
    CAPTURE(step, text, start);

    const auto known = cache.find(text, start);
    REQUIRE(known.bytes <= text.size());
    const std::string_view rest = std::string_view(text).substr(known.bytes);
    Tokens tokens = known.tokens;
    if (known.bytes > 0) {
      REQUIRE(tokens == toy(text.substr(0, known.bytes), start));
      const Tokens more = toy(rest, false);
      tokens.insert(tokens.end(), more.begin(), more.end());
      ++(rest.empty() ? whole : parts);
    } else {
      REQUIRE(tokens.empty());
      tokens = toy(text, start);
    }
    REQUIRE(tokens == toy(text, start));

    cache.put(text, start, tokens);
    REQUIRE(cache.bytes() <= budget);
    if (!text.empty() && text.size() < 1000) {
      REQUIRE(cache.find(text, start).tokens == tokens);
    }
    if (text.size() < 400) {
      texts.push_back(text);
    }
    if (random() % 1000 == 0) {
      cache.reset(toy.specials);
      REQUIRE(cache.texts() == 0);
    }
  }
  CHECK(whole > 100);
  CHECK(parts > 1000);
}
