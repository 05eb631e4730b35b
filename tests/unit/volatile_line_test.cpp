#include <toki/http/volatile_line.hpp>

#include <catch2/catch.hpp>

#include <string>
#include <vector>

using namespace toki::http;

namespace {

const std::vector<std::string> kBilling{"x-anthropic-billing-header:"};

std::string without(Endpoint endpoint, const std::string& text,
                    const std::vector<std::string>& beginnings = kBilling) {
  const auto parsed = Body::parse(text);
  const auto rest = without_volatile_line(endpoint, std::get<Body>(parsed), beginnings);
  if (rest) {
    CHECK(std::holds_alternative<Body>(Body::parse(*rest)));
  }
  return rest.value_or("untouched");
}

}  // namespace

TEST_CASE("volatile line: the first line of the system prompt goes, in every form of it") {
  struct Example {
    Endpoint endpoint;
    std::string body, rest;
  };
  const std::vector<Example> examples{
      {Endpoint::messages, R"({"system":"x-anthropic-billing-header: cch=1;\nYou are","m":1})",
       R"({"system":"You are","m":1})"},
      {Endpoint::messages,
       R"({"system":[ {"type":"text","text":"x-anthropic-billing-header: 1"} , {"type":"text","text":"B"}]})",
       R"({"system":[ {"type":"text","text":"B"}]})"},
      {Endpoint::messages, R"({"system":[{"text":"x-anthropic-billing-header: 1"}]})",
       R"({"system":[]})"},
      {Endpoint::messages,
       R"({"system":[{"type":"text","text":"x-anthropic-billing-header: 1\nrest"}]})",
       R"({"system":[{"type":"text","text":"rest"}]})"},
      {Endpoint::chat,
       R"({"messages":[{"role":"system","content":"x-anthropic-billing-header: a\\n\nB"}]})",
       R"({"messages":[{"role":"system","content":"B"}]})"},
      {Endpoint::chat,
       R"({"messages":[{"content":[{"type":"text","text":"x-anthropic-billing-header:"}],"role":"developer"}]})",
       R"({"messages":[{"content":[],"role":"developer"}]})"},
      {Endpoint::chat,
       R"({"messages":[{"role":"system","content":"x-anthropic-billing-header: a\u000aB\nC"}]})",
       R"({"messages":[{"role":"system","content":"B\nC"}]})"},
      {Endpoint::chat,
       R"({"messages":[{"role":"system","content":"x-anthropic-billing-header: \\u000a\r\u000AB"}]})",
       R"({"messages":[{"role":"system","content":"B"}]})"},
      {Endpoint::responses, R"({"instructions":"x-anthropic-billing-header: a\nB","input":"q"})",
       R"({"instructions":"B","input":"q"})"},
      {Endpoint::responses,
       R"({"input":[{"role":"system","content":"\u0078-anthropic-billing-header: a\nB"}]})",
       R"({"input":[{"role":"system","content":"B"}]})"},
  };
  for (const Example& example : examples) {
    CHECK(without(example.endpoint, example.body) == example.rest);
  }
}

TEST_CASE("volatile line: nothing else is touched") {
  const std::string line = R"("x-anthropic-billing-header: 1")";
  for (const char* role : {"user", "assistant", "tool"}) {
    const std::string body =
        R"({"messages":[{"role":")" + std::string(role) + R"(","content":)" + line + "}]}";
    CHECK(without(Endpoint::chat, body) == "untouched");
  }
  CHECK(without(Endpoint::chat,
                R"({"messages":[{"role":"user","content":"q"},{"role":"system","content":)" + line +
                    "}]}") == "untouched");
  CHECK(
      without(Endpoint::chat,
              R"({"messages":[{"role":"system","content":"A\nx-anthropic-billing-header: 1"}]})") ==
      "untouched");
  CHECK(without(Endpoint::messages, R"({"messages":[{"role":"system","content":)" + line + "}]}") ==
        "untouched");
  CHECK(without(Endpoint::completions, R"({"prompt":)" + line + "}") == "untouched");
  CHECK(without(Endpoint::messages, R"({"system":7})") == "untouched");
  CHECK(without(Endpoint::messages, R"({"system":[7]})") == "untouched");
  CHECK(without(Endpoint::messages, R"({"system":[]})") == "untouched");
  CHECK(without(Endpoint::chat, R"({"messages":[]})") == "untouched");
  CHECK(without(Endpoint::chat, R"({"messages":[null]})") == "untouched");
  CHECK(without(Endpoint::messages, R"({"system":)" + line + "}", {}) == "untouched");
  CHECK(without(Endpoint::messages, R"({"system":)" + line + "}", {""}) == "untouched");
}
