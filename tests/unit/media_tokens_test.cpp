#include "http/media_tokens.hpp"

#include <catch2/catch.hpp>

#include <set>
#include <string>
#include <vector>

using toki::Token;
using toki::Tokens;
using toki::http::kMediaTokens;
using toki::http::media_tokens;

namespace {

std::vector<Tokens> of(const std::string& parts) {
  return media_tokens(R"({"messages":[{"role":"user","content":[)" + parts + "]}]}");
}

// Equal in two requests, and so told by its bytes.
bool lasting(const std::string& part) {
  const auto once = of(part);
  const auto again = of(part);
  REQUIRE(once.size() == 1);
  return once == again;
}

}  // namespace

TEST_CASE("media tokens: what the body holds is told by its bytes, what it names is never equal") {
  CHECK(lasting(R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}})"));
  CHECK(lasting(R"({"type":"image_url","image_url":"data:image/png;base64,AA"})"));
  CHECK(lasting(R"({"type":"input_image","image_url":"data:image/png;base64,AA"})"));
  CHECK(lasting(R"({"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}})"));
  CHECK_FALSE(lasting(R"({"type":"image_url","image_url":{"url":"http://x/data:"}})"));
  CHECK_FALSE(lasting(R"({"type":"image_url","image_url":{"url":"https://x/a.png"}})"));
  CHECK_FALSE(lasting(R"({"type":"image_url","image_url":{"url":"file:///a.png"}})"));
  CHECK_FALSE(lasting(R"({"type":"input_audio","input_audio":{"data":"http://x/a.wav"}})"));
  CHECK_FALSE(lasting(R"({"type":"input_audio","input_audio":{"data":""}})"));
  CHECK_FALSE(lasting(R"({"type":"input_image","file_id":"file-1"})"));
  CHECK_FALSE(lasting(R"({"type":"image_url"})"));
  CHECK_FALSE(lasting(R"({"type":"video","video":7})"));
}

TEST_CASE("media tokens: each medium has eight negative tokens of its own, in order") {
  const auto media = of(
      R"({"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:,1"}},
         {"type":"image_url","image_url":{"url":"data:,2"}},
         {"type":"image_url","image_url":{"url":"data:,1"}},
         {"type":"image_url","image_url":{"url":"data:,1","detail":"low"}})");
  REQUIRE(media.size() == 4);
  CHECK(media[0] == media[2]);
  std::set<Token> all;
  for (const Tokens& tokens : media) {
    CHECK(tokens.size() == kMediaTokens);
    for (const Token token : tokens) {
      CHECK(token < 0);
      all.insert(token);
    }
  }
  CHECK(all.size() == 3 * kMediaTokens);
}

TEST_CASE("media tokens: media of all messages are found, and nothing in any other place") {
  CHECK(media_tokens(
            R"({"messages":[{"role":"system","content":"data:"},
                {"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,1"}}]},
                {"role":"tool","content":[{"type":"input_audio","input_audio":{"data":"A"}}]}]})")
            .size() == 2);
  CHECK(media_tokens(R"({"messages":"x"})").empty());
  CHECK(media_tokens(R"({"image_url":"data:"})").empty());
  CHECK(media_tokens("no json").empty());
  CHECK(of(R"(1,"x",{"type":1},{"type":"text","image_url":"data:,1"},{})").empty());
}
