// TokenCache by small examples: what is found, up to where, and what is forgotten.
#include <toki/token_cache.hpp>

#include <catch2/catch.hpp>

#include <string>
#include <vector>

using namespace toki;

namespace {

const std::vector<SpecialToken> kSpecials{{"<u>", 1}, {"<a>", 2}, {"<s>", 3}};

struct Cache : TokenCache {
  explicit Cache(std::size_t max_bytes = 1 << 20, std::vector<SpecialToken> specials = kSpecials)
      : TokenCache(max_bytes) {
    reset(std::move(specials));
  }
  std::size_t known(std::string_view text, bool start_token = true) {
    return find(text, start_token).bytes;
  }
};

}  // namespace

TEST_CASE("token cache: a whole text is found again with its tokens") {
  Cache cache;
  cache.put("plain text", true, Tokens{3, 10, 11});
  const auto found = cache.find("plain text", true);
  CHECK(found.bytes == 10);
  CHECK(found.tokens == Tokens{3, 10, 11});
  CHECK(cache.known("plain tex") == 0);
  CHECK(cache.known("plain text ") == 0);
  CHECK(cache.known("") == 0);
}

TEST_CASE("token cache: with and without a start token are two texts") {
  Cache cache;
  cache.put("x<u>y", true, Tokens{3, 10, 1, 11});
  cache.put("x<u>z", false, Tokens{10, 1, 12});
  CHECK(cache.find("x<u>q", true).tokens == Tokens{3, 10});
  CHECK(cache.find("x<u>q", false).tokens == Tokens{10});
  CHECK(cache.known("x<u>y", false) == 1);
  CHECK(cache.known("x<u>z", true) == 1);
}

TEST_CASE("token cache: a text is known up to the last boundary that it shares with another") {
  Cache cache;
  cache.put("sys<u>one<a>two<u>", true, Tokens{3, 20, 1, 21, 2, 22, 1});
  CHECK(cache.find("sys<u>one<a>other", true).tokens == Tokens{3, 20, 1, 21});
  CHECK(cache.known("sys<u>one<a>other") == 9);
  CHECK(cache.find("sys<u>on", true).tokens == Tokens{3, 20});
  CHECK(cache.find("sys<u>one", true).bytes == 9);  // ends at a boundary of the other
  CHECK(cache.known("sys two") == 0);
  CHECK(cache.known("sys") == 3);
  CHECK(cache.known("sy") == 0);
}

TEST_CASE("token cache: the end of a known text counts where a special token follows it") {
  Cache cache;
  cache.put("one two", true, Tokens{3, 10, 11});
  CHECK(cache.find("one two<u>three", true).tokens == Tokens{3, 10, 11});
  CHECK(cache.known("one two three") == 0);
}

TEST_CASE("token cache: the longest special token counts where several begin") {
  Cache cache(1 << 20, {{"<a", 1}, {"<a>b", 2}, {"[X]", 4}});
  cache.put("q<a>bc[X]d", true, Tokens{10, 2, 11, 4, 12});
  CHECK(cache.find("q<a>bc[X]e", true).tokens == Tokens{10, 2, 11});
  CHECK(cache.find("q<a>b[X]", true).tokens == Tokens{10});
  CHECK(cache.find("q<ax", true).tokens == Tokens{10});
}

TEST_CASE("token cache: a text whose special tokens are not those of its tokens is only whole") {
  Cache cache;
  const std::vector<Tokens> wrong{
      {3, 10, 11, 2, 12},        // one too few
      {3, 10, 1, 11, 2, 12, 1},  // one too many
      {3, 10, 2, 11, 1, 12},     // in another order
  };
  for (const Tokens& tokens : wrong) {
    cache.reset(kSpecials);
    cache.put("a<u>b<a>c", true, tokens);
    CHECK(cache.known("a<u>b<a>d") == 0);
    CHECK(cache.known("a<u>") == 0);
    CHECK(cache.find("a<u>b<a>c", true).tokens == tokens);
  }
}

TEST_CASE("token cache: a start token in front may be a special token itself") {
  Cache cache;
  cache.put("<s>a<u>b", true, Tokens{3, 3, 10, 1, 11});  // once added, once written
  CHECK(cache.find("<s>a<u>c", true).tokens == Tokens{3, 3, 10});
  cache.put("z<u>b", true, Tokens{15, 1, 11});  // a tokenizer that adds none
  CHECK(cache.find("z<u>c", true).tokens == Tokens{15});
}

TEST_CASE("token cache: without special tokens only whole texts are found") {
  Cache cache(1 << 20, {});
  cache.put("a<u>b", true, Tokens{10, 1, 11});
  CHECK(cache.known("a<u>c") == 0);
  CHECK(cache.known("a<u>b") == 5);
}

TEST_CASE("token cache: a growing conversation is held once") {
  Cache cache;
  std::string text = "sys<u>question<a>";
  Tokens tokens{3, 10, 1, 11, 2};
  cache.put(text, true, tokens);
  for (int turn = 0; turn < 20; ++turn) {
    const std::size_t before_answer = text.size() - 3;  // where its <a> begins
    text += "answer<u>question<a>";
    tokens.insert(tokens.end(), {12, 1, 11, 2});
    CHECK(cache.known(text) == before_answer);
    cache.put(text, true, tokens);
    CHECK(cache.texts() == 1);
  }
  cache.put("sys<u>another", true, Tokens{3, 10, 1, 13});
  CHECK(cache.texts() == 2);
  const std::string shared = "sys<u>question<a>answer";
  CHECK(cache.known(shared + "<u>x") == shared.size());
}

TEST_CASE("token cache: the budget holds and the longest unused text is forgotten first") {
  const std::string filler(900, 'x');
  Cache cache(4096);
  for (const char* name : {"1", "2", "3"}) {
    cache.put(name + filler, true, Tokens{3, 10});
  }
  REQUIRE(cache.texts() == 3);
  CHECK(cache.known("1" + filler) > 0);  // used: now 2 is the oldest
  cache.put("4" + filler, true, Tokens{3, 10});
  CHECK(cache.texts() == 3);
  CHECK(cache.known("2" + filler) == 0);
  CHECK(cache.known("1" + filler) > 0);
  CHECK(cache.known("3" + filler) > 0);
  CHECK(cache.bytes() <= 4096);
  cache.put("1" + filler, true, Tokens{3, 10, 11});  // again: no second copy
  CHECK(cache.texts() == 3);
  CHECK(cache.find("1" + filler, true).tokens.size() == 3);
}

TEST_CASE("token cache: what alone exceeds the budget is not remembered and displaces nothing") {
  Cache cache(2048);
  cache.put("small", true, Tokens{3, 10});
  cache.put(std::string(3000, 'x'), true, Tokens{3, 10});
  cache.put("few bytes, many tokens", true, Tokens(600, 7));
  std::string boundaries;
  for (int i = 0; i < 60; ++i) {
    boundaries += "<u>";
  }
  cache.put(boundaries, false, Tokens(60, 1));
  CHECK(cache.texts() == 1);
  CHECK(cache.known("small") == 5);
  Cache none(0);
  none.put("x", true, Tokens{3});
  CHECK(none.texts() == 0);
  CHECK(none.known("x") == 0);
}

TEST_CASE("token cache: of very many boundaries the first thousands are used") {
  Cache cache(64 << 20);
  const std::size_t count = 20000;
  std::string text = "a";
  Tokens tokens{10};
  for (std::size_t i = 0; i < count; ++i) {
    text += "<u>";
    tokens.push_back(1);
  }
  cache.put(text, false, tokens);
  const auto found = cache.find(text + "b", false);
  CHECK(found.bytes == 1 + 8191 * 3);
  CHECK(found.tokens == Tokens(tokens.begin(), tokens.begin() + 8192));
  CHECK(cache.known(text, false) == text.size());
}

TEST_CASE("token cache: a reset forgets everything") {
  Cache cache;
  cache.put("a<u>b", true, Tokens{3, 10, 1, 11});
  cache.reset(kSpecials);
  CHECK(cache.texts() == 0);
  CHECK(cache.bytes() == 0);
  CHECK(cache.known("a<u>b") == 0);
}

TEST_CASE("token cache: what one tenant's text was made of is not known to another") {
  Cache cache;
  cache.put("<u>one<a>two", true, Tokens{1, 10, 2, 11}, "alice");
  CHECK(cache.find("<u>one<a>two", true, "alice").bytes == 12);
  CHECK(cache.find("<u>one<a>other", true, "alice").bytes == 6);
  CHECK(cache.find("<u>one<a>two", true, "bob").bytes == 0);
  CHECK(cache.find("<u>one<a>other", true, "bob").bytes == 0);
  CHECK(cache.known("<u>one<a>two") == 0);
  cache.put("<u>one<a>two", true, Tokens{1, 10, 2, 12}, "bob");
  CHECK(cache.find("<u>one<a>two", true, "alice").tokens.back() == 11);
  CHECK(cache.find("<u>one<a>two", true, "bob").tokens.back() == 12);
  CHECK(cache.texts() == 2);
}

TEST_CASE("token cache: a moved cache knows what it knew") {
  TokenCache first(1 << 20);
  first.reset(kSpecials);
  first.put("plain text", true, Tokens{3, 10, 11});
  TokenCache second = std::move(first);
  CHECK(second.find("plain text", true).bytes == 10);
  TokenCache third(1 << 20);
  third.put("another", true, Tokens{3, 12});
  third = std::move(second);
  CHECK(third.find("plain text", true).tokens == Tokens{3, 10, 11});
  CHECK(third.find("another", true).bytes == 0);
}
