#include "http/messages_input.hpp"

#include <catch2/catch.hpp>

#include <string>
#include <variant>

using namespace toki;
using namespace toki::http;

namespace {

Result<MessagesChat> convert(std::string_view text, bool even = true) {
  auto parsed = Body::parse(text);
  REQUIRE(std::holds_alternative<Body>(parsed));
  auto chat = messages_as_chat(std::get<Body>(parsed), even);
  if (chat) {
    REQUIRE(std::holds_alternative<Body>(Body::parse(chat->body)));
    CHECK(chat->shape != 0);
  }
  return chat;
}

std::string chat(std::string_view text, bool even = true) {
  const auto result = convert(text, even);
  return result ? result->body : result.error().detail;
}

// What becomes of a list of blocks in a user's message.
std::string blocks(const std::string& list, const std::string& role = "user") {
  const std::string text =
      chat(R"({"messages":[{"role":")" + role + R"(","content":)" + list + "}]}");
  const std::string head = R"({"messages":[)";
  return text.starts_with(head) ? text.substr(head.size(), text.size() - head.size() - 2) : text;
}

std::string input(const std::string& json) {
  const std::string text =
      blocks(R"([{"type":"tool_use","id":"c","name":"f","input":)" + json + "}]", "assistant");
  const std::string head =
      R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":)";
  return text.starts_with(head) ? text.substr(head.size(), text.size() - head.size() - 4) : text;
}

const std::string kUnknown = "this /v1/messages body has no known chat form";
const std::string kMedia = "the prompt holds media";

}  // namespace

TEST_CASE("messages: a system text is the first message, and messages of plain text stay") {
  CHECK(
      chat(
          R"({"model":"m","max_tokens":5,"system":"be \u00e9","messages":[{"role":"user","content":"hi"}]})") ==
      R"({"messages":[{"role":"system","content":"be \u00e9"},{"role":"user","content":"hi"}]})");
  CHECK(
      chat(
          R"({"system":null,"messages":[{"cache_control":{"type":"ephemeral"},"content":"a","role":"user"}]})") ==
      R"({"messages":[{"cache_control":{"type":"ephemeral"},"content":"a","role":"user"}]})");
}

TEST_CASE("messages: system blocks are one text, without anything between them") {
  CHECK(
      chat(
          R"({"system":[{"type":"text","text":"a"},{"type":"text","text":"b\n","cache_control":{"type":"ephemeral"}},{"type":"text"}],"messages":[]})") ==
      R"({"messages":[{"role":"system","content":"ab\n"}]})");
  CHECK(chat(R"({"system":[],"messages":[]})") ==
        R"({"messages":[{"role":"system","content":""}]})");
  CHECK(chat(R"({"system":[{"type":"image"}],"messages":[]})") == kUnknown);
  CHECK(chat(R"({"system":["a"],"messages":[]})") == kUnknown);
  CHECK(chat(R"({"system":7,"messages":[]})") == kUnknown);
}

TEST_CASE("messages: the stamp of a billing line is evened out where the server does it") {
  const std::string line = "x-anthropic-billing-header: cc_version=2.1; cch=a5145;";
  const std::string even = "x-anthropic-billing-header: cc_version=2.1; cch=fffff;";
  const auto body = [](const std::string& text) {
    return R"({"system":[{"type":"text","text":")" + text +
           R"("},{"type":"text","text":"You"}],"messages":[]})";
  };
  const auto as_chat = [](const std::string& text) {
    return R"({"messages":[{"role":"system","content":")" + text + R"("}]})";
  };
  CHECK(chat(body(line)) == as_chat(even + "You"));
  CHECK(chat(body(line), false) == as_chat(line + "You"));
  CHECK(chat(R"({"system":")" + line + R"( You","messages":[]})") == as_chat(even + " You"));
  // Nowhere else, and in no other form.
  CHECK(chat(body("b " + line)) == as_chat("b " + line + "You"));
  CHECK(chat(body("x-anthropic-billing-header: cch=a514;")) ==
        as_chat("x-anthropic-billing-header: cch=a514;You"));
  CHECK(chat(body("x-anthropic-billing-header: cch=a51456")) ==
        as_chat("x-anthropic-billing-header: cch=a51456You"));
  CHECK(chat(body("x-anthropic-billing-header: cch=a5")) ==
        as_chat("x-anthropic-billing-header: cch=a5You"));
  CHECK(convert(body(line))->shape != convert(body("You are"))->shape);
  for (const std::string& text : {body(line), R"({"system":")" + line + "\"}"}) {
    CHECK(has_billing_line(std::get<Body>(Body::parse(text))));
  }
  const std::string user =
      R"({"messages":[{"role":"user","content":")" + line + R"("}],"system":"a"})";
  CHECK_FALSE(has_billing_line(std::get<Body>(Body::parse(user))));
  CHECK(chat(user) == R"({"messages":[{"role":"system","content":"a"},{"role":"user","content":")" +
                          line + R"("}]})");
}

TEST_CASE("messages: blocks of text stay as they are, reasoning and calls join the turn") {
  CHECK(
      blocks(
          R"([{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}, {"text":"b","type":"text"}])") ==
      R"({"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"text":"b","type":"text"}]})");
  CHECK(
      blocks(
          R"([{"type":"thinking","thinking":"h\n","signature":"s"},{"type":"thinking","thinking":"m"},
      {"type":"text","text":"a"},{"type":"tool_use","id":"c1","name":"f","input":{"x":1}}])",
          "assistant") ==
      R"({"role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[{"id":"c1","type":"function",)"
      R"("function":{"name":"f","arguments":"{\"x\":1}"}}],"reasoning_content":"h\nm"})");
  CHECK(blocks(R"([{"type":"thinking","thinking":"h"}])", "assistant") ==
        R"({"role":"assistant","content":"","reasoning_content":"h"})");
  CHECK(blocks("[]").empty());
}

TEST_CASE("messages: a call's input is written as the server writes it") {
  CHECK(input(R"({ "a" : [ 1 , 2.5, null,true ], "b\u00e9":"x\u0001\u007f\/\"" ,"c":{}})") ==
        R"("{\"a\":[1,2.5,null,true],\"bé\":\"x\\u0001)"
        "\x7f"
        R"(/\\\"\",\"c\":{}}")");
  CHECK(input("{}") == R"("{}")");
  for (const char* number : {"0", "-7", "123456789012345", "1.0", "-2.5", "0.125"}) {
    CHECK(input(std::string("{\"n\":") + number + "}") ==
          std::string(R"("{\"n\":)") + number + R"(}")");
  }
  // Whatever might be written in another way is not known.
  for (const char* number : {"-0", "1e5", "1E5", "2.50", "0.0001", "1234567890123456789", "0.00"}) {
    CHECK(input(std::string("{\"n\":") + number + "}") == kUnknown);
  }
  CHECK(input("7") == kUnknown);
  CHECK(input("[]") == kUnknown);
  CHECK(input("{\"a\":" + std::string(30, '[') + std::string(30, ']') + "}").starts_with("\"{"));
  CHECK(input("{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}") == kUnknown);
}

TEST_CASE("messages: results are messages of their own behind the turn") {
  CHECK(blocks(R"([{"type":"tool_result","tool_use_id":"c1","content":"42","is_error":false},
      {"type":"text","text":"and?"},
      {"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"type":"tool_result","tool_use_id":"c3"}])") ==
        R"({"role":"user","content":[{"type":"text","text":"and?"}]},)"
        R"({"role":"tool","tool_call_id":"c1","content":"42"},)"
        R"({"role":"tool","tool_call_id":"c2","content":"ab"},)"
        R"({"role":"tool","tool_call_id":"c3","content":""})");
  CHECK(blocks(R"([{"type":"tool_result","tool_use_id":"c","content":[{"type":"document"}]}])") ==
        kUnknown);
  CHECK(blocks(R"([{"type":"tool_result","tool_use_id":"c","content":7}])") == kUnknown);
}

TEST_CASE("messages: media are told apart, what is not known is said") {
  CHECK(blocks(R"([{"type":"image","source":{"type":"base64","data":"AAAA"}}])") == kMedia);
  CHECK(blocks(R"([{"type":"tool_result","content":[{"type":"image"}]}])") == kMedia);
  for (const char* block : {R"({"type":"document"})", R"({"type":"redacted_thinking","data":"x"})",
                            R"({"type":"server_tool_use"})", R"({"text":"no type"})", "7"}) {
    CHECK(blocks("[" + std::string(block) + "]") == kUnknown);
  }
  CHECK(chat("{}") == kUnknown);
  CHECK(chat(R"({"messages":{}})") == kUnknown);
  CHECK(chat(R"({"messages":["a"]})") == kUnknown);
  CHECK(chat(R"({"messages":[{"role":"user"}]})") == kUnknown);
  CHECK(chat(R"({"messages":[{"role":7,"content":"a"}]})") == kUnknown);
  CHECK(chat(R"({"messages":[{"role":"user","content":null}]})") == kUnknown);
}

TEST_CASE("messages: tools, the choice among them and template fields are passed on, no others") {
  CHECK(
      chat(
          R"({"messages":[],"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{}},
      {"type":"web_search_20250305","name":"web_search","max_uses":3}],"tool_choice":{"type":"tool","name":"f"}})") ==
      R"({"messages":[],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}},)"
      R"({"type":"function","function":{"name":"web_search","description":"","parameters":{}}}],"tool_choice":"required"})");
  CHECK(chat(R"({"messages":[],"tool_choice":{"type":"auto"}})") ==
        R"({"messages":[],"tool_choice":"auto"})");
  CHECK(chat(R"({"messages":[],"tool_choice":{"type":"none"}})") == R"({"messages":[]})");
  CHECK(chat(R"({"messages":[],"tools":[7]})") == kUnknown);
  CHECK(
      chat(
          R"({"messages":[],"thinking":{"type":"enabled","budget_tokens":2048},"chat_template_kwargs":{"a":1}})") ==
      R"({"messages":[],"chat_template_kwargs":{"a":1},"thinking_budget_tokens":2048})");
  CHECK(
      chat(
          R"({"messages":[],"thinking":{"type":"disabled"},"id_slot":2,"cache_prompt":false,"stream":true,
      "metadata":{"user_id":"u"},"stop_sequences":["x"],"add_generation_prompt":false,"temperature":1})") ==
      R"({"messages":[]})");
}

TEST_CASE("messages: bodies with the same kinds of things have one shape") {
  const auto shape = [](std::string_view text) { return convert(text)->shape; };
  const auto plain = shape(R"({"messages":[{"role":"user","content":"a"}]})");
  CHECK(
      shape(
          R"({"messages":[{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]})") ==
      plain);
  CHECK(
      shape(R"({"messages":[{"role":"user","content":"b"},{"role":"assistant","content":"c"}]})") !=
      plain);
  CHECK(shape(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]})") != plain);
  CHECK(shape(R"({"system":"s","messages":[{"role":"user","content":"a"}]})") != plain);
  CHECK(shape(R"({"tools":[],"messages":[{"role":"user","content":"a"}]})") == plain);
}
