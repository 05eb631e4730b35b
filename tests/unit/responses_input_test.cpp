#include "http/responses_input.hpp"

#include <catch2/catch.hpp>

#include <string>
#include <variant>

using namespace toki;
using namespace toki::http;

namespace {

std::string chat_field(std::string_view text, std::string_view key) {
  auto parsed = Body::parse(text);
  REQUIRE(std::holds_alternative<Body>(parsed));
  auto edits = responses_as_chat(std::get<Body>(parsed));
  if (!edits) {
    return std::string(to_string(edits.error().code));
  }
  for (const BodyEdit& edit : *edits) {
    if (edit.key == key) {
      const std::string check = "{\"x\":" + edit.json + "}";
      REQUIRE(std::holds_alternative<Body>(Body::parse(check)));
      return edit.json;
    }
  }
  return "";
}

std::string messages(std::string_view text) {
  return chat_field(text, "messages");
}

}  // namespace

TEST_CASE("responses: a string is one user message, instructions are the system message") {
  CHECK(messages(R"({"input":"hi \u00e9"})") == R"([{"role":"user","content":"hi \u00e9"}])");
  CHECK(messages(R"({"instructions":"be","input":"hi"})") ==
        R"([{"role":"system","content":"be"},{"role":"user","content":"hi"}])");
}

TEST_CASE("responses: items become messages") {
  CHECK(messages(R"({"input":[{"role":"user","content":"a"},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
    {"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_text","text":"d"}]}]})") ==
        R"([{"role":"user","content":[{"text":"a","type":"text"}]},)"
        R"({"role":"assistant","content":[{"text":"b","type":"text"}]},)"
        R"({"role":"user","content":[{"text":"c","type":"text"},{"text":"d","type":"text"}]}])");
}

TEST_CASE("responses: calls join the assistant's message, outputs are tool messages") {
  CHECK(
      messages(R"({"input":[{"role":"user","content":"a"},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
    {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"42"}]})") ==
      R"([{"role":"user","content":[{"text":"a","type":"text"}]},)"
      R"({"role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"f"},"id":"c1","type":"function"},)"
      R"({"function":{"arguments":"{}","name":"g"},"id":"c2","type":"function"}]},)"
      R"({"role":"tool","content":"42","tool_call_id":"c1"}])");
}

TEST_CASE("responses: tools get their chat form") {
  CHECK(
      chat_field(
          R"({"input":"x","tools":[{"type":"function","name":"f","parameters":{"z":1,"a":2}}]})",
          "tools") ==
      R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2},"strict":true}}])");
  CHECK(chat_field(R"({"input":"x","reasoning":{"effort":"low"}})", "reasoning_effort") ==
        R"("low")");
}

TEST_CASE("responses: what has no exact chat form is left alone") {
  for (const char* text :
       {R"({})", R"({"input":5})", R"({"input":["x"]})",
        R"({"input":[{"role":"robot","content":"x"}]})",
        R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]})",
        R"({"input":"x","previous_response_id":"r"})",
        R"({"input":"x","tools":[{"type":"web_search"}]})",
        R"({"input":[{"type":"reasoning","summary":[]}]})",
        R"({"input":[{"role":"assistant","content":"x"}]})",
        R"({"input":[{"type":"function_call","name":"f"}]})",
        R"({"input":[{"type":"function_call_output","call_id":"c","output":[]}]})"}) {
    CAPTURE(text);
    CHECK(messages(text) == "unsupported");
  }
}
