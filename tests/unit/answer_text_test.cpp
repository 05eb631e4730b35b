#include <toki/http/answer_text.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <string_view>

using namespace toki::http;

namespace {

std::optional<std::string> text_of(AnswerKind kind, std::string_view bytes,
                                   std::size_t piece = std::string_view::npos) {
  AnswerText text(kind);
  while (!bytes.empty()) {
    text.feed(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  text.finish();
  return text.text();
}

}  // namespace

TEST_CASE("answer text: whole answers of each shape") {
  const auto json = AnswerKind::json;
  CHECK(text_of(json, R"({"content":"a \"b\"\n","stop":true})") == "a \"b\"\n");
  CHECK(text_of(json, R"({"choices":[{"text":"abc"}]})") == "abc");
  CHECK(text_of(json, R"({"choices":[{"message":{"reasoning_content":"hm","content":"yes"}}]})") ==
        "hm\nyes");
  CHECK(text_of(json,
                R"({"choices":[{"message":{"content":null,"tool_calls":[{"id":"r4nd",)"
                R"("function":{"name":"f","arguments":"{\"x\":1}"}}]}}]})") == "f\n{\"x\":1}");
}

TEST_CASE("answer text: a stream says the same however it is cut into pieces") {
  const std::string stream =
      ": a comment\n\n"
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\r\n\r\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"Gr\\u00fc\"}}]}\n\n"
      "data:{\"choices\":[{\"delta\":{\"content\":\"\xC3\x9F\"}}]}\n\n"
      "data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";
  for (std::size_t piece = 1; piece < 40; ++piece) {
    CHECK(text_of(AnswerKind::sse, stream, piece) == "Gr\xC3\xBC\xC3\x9F");
  }
}

TEST_CASE("answer text: what is broken, foreign or too long has no text") {
  CHECK_FALSE(text_of(AnswerKind::json, R"({"content":"a)"));
  CHECK_FALSE(text_of(AnswerKind::json, R"({"data":[]})"));
  CHECK_FALSE(text_of(AnswerKind::json, ""));
  CHECK_FALSE(text_of(AnswerKind::sse, "data: {oops}\n\n"));
  const std::string longest(AnswerText::kMaxBytes, 'x');
  CHECK(text_of(AnswerKind::json, R"({"content":")" + longest + R"("})") == longest);
  CHECK_FALSE(text_of(AnswerKind::json, R"({"content":")" + longest + R"(x"})"));
  CHECK_FALSE(text_of(AnswerKind::sse, std::string(AnswerText::kMaxJson + 1, 'x'), 1000));
}

TEST_CASE("answer text: any bytes in any pieces do no harm") {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = R"(data: {"choices":[{"delta":{"content":"abc"}}]})"
                        "\n\n";
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    }
    const auto whole = text_of(AnswerKind::sse, bytes);
    CHECK(text_of(AnswerKind::sse, bytes, 1 + random() % 7) == whole);
    (void)text_of(AnswerKind::json, bytes);
  }
}
