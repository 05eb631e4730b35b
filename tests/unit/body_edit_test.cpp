#include <toki/http/body_edit.hpp>

#include <catch2/catch.hpp>
#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace {

using namespace toki::http;
namespace dom = simdjson::dom;

/// A chat request with everything a front end may send, in unusual writing.
const std::string kChat =
    " {\"model\":\"m\", \"messages\" : [ {\"role\":\"system\",\"content\":\"a\\\"b\\\\\"},\n"
    "  {\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"na\xC3\xAFve \xE2\x82\xAC "
    "\xF0\x9F\x98\x80 \\ud83d\\ude00 \\ud83d\"}]} ],\r\n\t\"temperature\":0.70,"
    "\"seed\":12345678901234567890123,\"stop\":[],\"x\":{\"stop\":null},\"stream\":true} \n";

Body parsed(std::string_view text) {
  auto result = Body::parse(text);
  if (const BodyError* error = std::get_if<BodyError>(&result)) {
    FAIL(text.substr(0, 200) << " was refused at " << error->offset << ": " << error->reason);
  }
  return std::get<Body>(std::move(result));
}

BodyError refused(std::string_view text) {
  auto result = Body::parse(text);
  if (std::holds_alternative<Body>(result)) {
    FAIL(text.substr(0, 200) << " was accepted");
  }
  return std::get<BodyError>(result);
}

bool accepted(std::string_view text) {
  return std::holds_alternative<Body>(Body::parse(text));
}

void check_refused(std::string_view text, std::size_t offset, std::string_view reason) {
  const BodyError error = refused(text);
  CAPTURE(text);
  CHECK(error.offset == offset);
  CHECK(error.reason == reason);
}

std::string spliced(std::string_view text, const std::vector<BodyEdit>& edits) {
  const Body body = parsed(text);
  std::vector<std::string> storage;
  std::string out;
  for (const std::string_view piece : splice(body, edits, storage)) {
    out += piece;
  }
  return out;
}

std::string nested(std::size_t depth) {
  return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
}

/// What simdjson says, where the two are meant to agree.
enum class Verdict { accepted, refused, outside };

Verdict dom_verdict(std::string_view text) {
  dom::parser parser;
  dom::object object;
  switch (parser.parse(simdjson::padded_string(text)).get(object)) {
    case simdjson::SUCCESS: return Verdict::accepted;
    case simdjson::NUMBER_ERROR:  // grammatical, but out of its range
    case simdjson::STRING_ERROR:  // lone surrogates
      return Verdict::outside;
    default: return Verdict::refused;
  }
}

/// Seeded random JSON, in random writing.
class Generator {
 public:
  /// Keys may repeat within an object unless they are to be unique.
  explicit Generator(std::uint32_t seed, bool unique = true) : unique_(unique), random_(seed) {}

  std::size_t below(std::size_t limit) { return random_() % limit; }

  std::string object(int depth) {
    std::string out = "{" + space();
    std::set<std::string> used;
    for (std::size_t left = below(5); left > 0; --left) {
      const std::string name = key();
      if (unique_ && !used.insert(name).second) {
        continue;
      }
      out += (out.find(':') == std::string::npos ? "" : ",") + space() + quote(name) + space() +
             ":" + space() + value(depth - 1) + space();
    }
    return out + "}";
  }

  std::string value(int depth) {
    static const char* const kScalars[] = {"true", "false", "null", "0",       "-0",   "12",
                                           "-3.5", "1e3",   "2E-2", "0.25e+1", "\"\"", "[]"};
    switch (below(depth > 0 ? 6 : 4)) {
      case 0: return kScalars[below(std::size(kScalars))];
      case 1: return std::to_string(static_cast<std::int32_t>(random_()));
      case 2:
      case 3: return string();
      case 4: return object(depth);
      default: return array(depth);
    }
  }

  std::string mutated(std::string text) {
    static const std::string kBytes = "{}[]\",:\\u0019eE+-.tfn \n\x01\x7F\x80\xC3\xA9\xED\xF4\xFF";
    for (std::size_t left = 1 + below(3); left > 0; --left) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = kBytes[below(kBytes.size())]; break;
        case 1: text.insert(at, 1, kBytes[below(kBytes.size())]); break;
        case 2: text.erase(at, 1 + below(3)); break;
        default: text.insert(at, text.substr(below(text.size()), below(12)));
      }
      if (text.empty()) {
        return "{}";
      }
    }
    return text;
  }

 private:
  std::string key() {
    static const char* const kKeys[] = {"id_slot",  "cache_prompt", "messages", "a", "b\n",
                                        "\xC3\xA9", "stream",       "",         "k", "\"q\""};
    return kKeys[below(std::size(kKeys))];
  }

  std::string space() {
    static const char* const kSpaces[] = {"", "", "", "", " ", "\n", "\t\r\n", "    "};
    return kSpaces[below(std::size(kSpaces))];
  }

  std::string string() {
    static const char* const kParts[] = {"plain text that is longer than sixteen bytes ",
                                         "x",
                                         "\\n",
                                         "\\\"",
                                         "\\\\",
                                         "\\/",
                                         "\\u00e9",
                                         "\\ud83d\\ude00",
                                         "\xC3\xA9",
                                         "\xE6\x97\xA5\xE6\x9C\xAC",
                                         "\xF0\x9F\x98\x80",
                                         "\xF4\x8F\xBF\xBF",
                                         "\xEF\xBB\xBF",
                                         "\x7F",
                                         "{[",
                                         "12345678"};
    std::string out = "\"";
    for (std::size_t left = below(8); left > 0; --left) {
      out += kParts[below(std::size(kParts))];
    }
    return out + "\"";
  }

  std::string array(int depth) {
    std::string out = "[" + space();
    for (std::size_t left = below(5), first = left; left > 0; --left) {
      out += (left == first ? "" : ",") + space() + value(depth - 1) + space();
    }
    return out + "]";
  }

  bool unique_;
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("body: top-level members are found with their raw values", "[body]") {
  const Body body = parsed(kChat);
  REQUIRE(body.fields().size() == 7);
  CHECK(body.text() == kChat);
  CHECK(body.find("model")->value == "\"m\"");
  CHECK(body.find("temperature")->value == "0.70");
  CHECK(body.find("seed")->value == "12345678901234567890123");
  CHECK(body.find("stop")->value == "[]");
  CHECK(body.find("stream")->kind == JsonKind::boolean);
  CHECK(body.find("messages")->kind == JsonKind::array);
  CHECK(body.find("messages")->value.front() == '[');
  CHECK(body.find("messages")->value.back() == ']');
  CHECK(body.find("role") == nullptr);
  CHECK(parsed("{}").fields().empty());
  CHECK(parsed(" \n{\t} ").fields().empty());
}

TEST_CASE("body: every kind of value is told by its kind", "[body]") {
  const Body body =
      parsed("{\"o\":{},\"a\":[],\"s\":\"\",\"n\":-1,\"t\":true,\"f\":false,\"z\":null}");
  const std::vector<JsonKind> kinds = {JsonKind::object, JsonKind::array,   JsonKind::string,
                                       JsonKind::number, JsonKind::boolean, JsonKind::boolean,
                                       JsonKind::null};
  REQUIRE(body.fields().size() == kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CHECK(body.fields()[i].kind == kinds[i]);
  }
}

TEST_CASE("body: what is not one JSON object is refused where it stops making sense", "[body]") {
  check_refused("", 0, "empty body");
  check_refused("  \n", 3, "empty body");
  check_refused("[]", 0, "not a JSON object");
  check_refused(" null", 1, "not a JSON object");
  check_refused("{:", 1, "expected a key");
  check_refused("{", 1, "unexpected end");
  check_refused("{\"a\":1}x", 7, "bytes after the object");
  check_refused("{\"a\":1}{}", 7, "bytes after the object");
  check_refused(std::string_view("{}\0", 3), 2, "bytes after the object");
  check_refused("\xEF\xBB\xBF{}", 0, "byte order mark");
  check_refused("{\"a\":}", 5, "expected a value");
  check_refused("{\"a\" 1}", 5, "expected :");
  check_refused("{\"a\":1 \"b\":2}", 7, "expected , or }");
  check_refused("{\"a\":1,}", 7, "expected a key");
  check_refused("{,}", 1, "expected a key");
  check_refused("{a:1}", 1, "expected a key");
  check_refused("{\"a\":[1 2]}", 8, "expected , or ]");
  check_refused("{\"a\":[1,]}", 8, "expected a value");
  check_refused("{\"a\":[1}}", 7, "expected , or ]");
  check_refused("{\"a\":nul}", 8, "unknown literal");
  check_refused("{\"a\":nulll}", 9, "expected , or }");
  check_refused("{\"a\":NaN}", 5, "expected a value");
  check_refused("{\"a\":'b'}", 5, "expected a value");
  check_refused("{\"a\":1}//", 7, "bytes after the object");
}

TEST_CASE("body: numbers follow the RFC's grammar and may be of any size", "[body]") {
  for (const char* good : {"0", "-0", "1", "10", "-12", "0.0", "1.50", "1e5", "1E+5", "1e-05",
                           "123456789012345678901234567890", "1e99999", "-0.1e-1"}) {
    CAPTURE(good);
    CHECK(parsed("{\"a\":" + std::string(good) + "}").find("a")->value == good);
  }
  check_refused("{\"a\":01}", 6, "malformed number");
  check_refused("{\"a\":-}", 6, "malformed number");
  check_refused("{\"a\":-01}", 7, "malformed number");
  check_refused("{\"a\":1.}", 7, "malformed number");
  check_refused("{\"a\":1.e1}", 7, "malformed number");
  check_refused("{\"a\":1e}", 7, "malformed number");
  check_refused("{\"a\":1e+}", 8, "malformed number");
  check_refused("{\"a\":.5}", 5, "expected a value");
  check_refused("{\"a\":+1}", 5, "expected a value");
  check_refused("{\"a\":0x1}", 6, "expected , or }");
}

TEST_CASE("body: strings may not hold control characters or unknown escapes", "[body]") {
  CHECK(accepted("{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00aF\x7F\"}"));
  check_refused("{\"a\":\"x\ny\"}", 7, "control character in a string");
  check_refused(std::string_view("{\"a\":\"\0\"}", 9), 6, "control character in a string");
  check_refused("{\"a\":\"\\q\"}", 7, "unknown escape");
  check_refused("{\"a\":\"\\u00g0\"}", 10, "expected four hexadecimal digits");
  check_refused("{\"a\":\"\\u12\"}", 10, "expected four hexadecimal digits");
  check_refused("{\"a\":\"\\U0041\"}", 7, "unknown escape");
}

TEST_CASE("body: a special byte is found at every place of a long string", "[body]") {
  for (std::size_t at = 0; at < 70; ++at) {
    std::string text = "{\"a\":\"" + std::string(70, 'x') + "\"}";
    text[6 + at] = '\x1F';
    check_refused(text, 6 + at, "control character in a string");
    text[6 + at] = '\x80';
    check_refused(text, 6 + at, "invalid UTF-8");
    text[6 + at] = '"';
    check_refused(text, 7 + at, "expected , or }");
  }
}

TEST_CASE("body: ill-formed UTF-8 is refused at the first byte of the sequence", "[body]") {
  const std::vector<std::string> bad = {
      "\x80",              // a continuation alone
      "\xBF\xBF",          //
      "\xC0\x80",          // overlong
      "\xC1\xBF",          //
      "\xE0\x80\x80",      //
      "\xE0\x9F\xBF",      //
      "\xF0\x80\x80\x80",  //
      "\xF0\x8F\xBF\xBF",  //
      "\xED\xA0\x80",      // surrogates
      "\xED\xBF\xBF",      //
      "\xF4\x90\x80\x80",  // beyond U+10FFFF
      "\xF5\x80\x80\x80",  //
      "\xFF",              //
      "\xC3(",             // cut short
      "\xE2\x82(",         //
      "\xF0\x9F\x98(",     //
      "\xE2(\x82",         //
  };
  for (const std::string& bytes : bad) {
    for (const std::string before : {"", "x", "0123456789abcdefg", "\xC3\xA9"}) {
      check_refused("{\"a\":\"" + before + bytes + "\"}", 6 + before.size(), "invalid UTF-8");
    }
  }
  for (const std::string good :
       {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    CHECK(accepted("{\"" + good + "\":\"" + good + good + "\"}"));
  }
  check_refused("{\"a\":\"\xE2\x82", 8, "unexpected end");
  check_refused("{\"\xFF\":1}", 2, "invalid UTF-8");
  check_refused("{}\xFF", 2, "bytes after the object");
}

TEST_CASE("body: every truncation is refused, at its end", "[body]") {
  const std::string text = kChat.substr(0, kChat.rfind('}') + 1);
  REQUIRE(accepted(text));
  for (std::size_t size = 0; size < text.size(); ++size) {
    const BodyError error = refused(text.substr(0, size));
    CAPTURE(size);
    CHECK(error.offset == size);
    CHECK(error.reason == (size < 2 ? "empty body" : "unexpected end"));
  }
}

TEST_CASE("body: nesting is limited without recursion", "[body]") {
  CHECK(accepted(nested(kMaxJsonDepth)));
  check_refused(nested(kMaxJsonDepth + 1), 5 + kMaxJsonDepth - 1, "nested too deep");
  check_refused("{\"a\":" + std::string(1000000, '['), 5 + kMaxJsonDepth - 1, "nested too deep");
  std::string objects;
  for (std::size_t i = 0; i < 100000; ++i) {
    objects += "{\"a\":";
  }
  CHECK(refused(objects).reason == "nested too deep");
}

// B80
TEST_CASE("body: a repeated top-level key is refused, however it is written", "[body]") {
  check_refused("{\"a\":1,\"a\":2}", 7, "duplicate key");
  check_refused("{\"a\":1,\"b\":2,\"\\u0061\":3,\"b\":4}", 13, "duplicate key");
  check_refused("{\"mess\\u0061ges\":[],\"messages\":[]}", 20, "duplicate key");
  check_refused("{\"\":1,\"\":1}", 6, "duplicate key");
  check_refused("{\"\\ud83d\\ude00\":1,\"\xF0\x9F\x98\x80\":1}", 18, "duplicate key");
  check_refused("{\"\\/\":1,\"/\":1}", 8, "duplicate key");
  CHECK(accepted("{\"a\":1,\"A\":2,\"a \":3}"));
  // Both become U+FFFD in JsonField::key, but they are different keys.
  CHECK(accepted("{\"\\ud800\":1,\"\\ud801\":2,\"\xEF\xBF\xBD\":3}"));
}

TEST_CASE("body: a repeated key in an entry of messages is refused, elsewhere it is not",
          "[body]") {
  check_refused(
      "{\"messages\":[{\"role\":\"u\"},{\"role\":\"u\",\"content\":\"\",\"role\":\"s\"}]}", 51,
      "duplicate key");
  check_refused("{\"mess\\u0061ges\":[{\"a\":1,\"\\u0061\":1}]}", 25, "duplicate key");
  CHECK(accepted("{\"messages\":[{\"a\":1},{\"a\":1}]}"));
  CHECK(accepted("{\"messages\":[{\"a\":{\"b\":1,\"b\":2}}]}"));
  CHECK(accepted("{\"messages\":[[{\"a\":1,\"a\":2}]]}"));
  CHECK(accepted("{\"messages\":{\"x\":{\"a\":1,\"a\":2}}}"));
  CHECK(accepted("{\"tools\":[{\"a\":1,\"a\":2}],\"messages\":[]}"));
  CHECK(accepted("{\"messages\":[],\"tools\":[{\"a\":1,\"a\":2}]}"));
  CHECK(accepted("{\"x\":{\"messages\":[{\"a\":1,\"a\":2}]}}"));
}

TEST_CASE("body: a million keys are read and compared in little time", "[body]") {
  std::string text = "{";
  std::string entry = "{\"messages\":[{";
  for (std::size_t i = 0; i < 1000000; ++i) {
    const std::string member = "\"k" + std::to_string(i) + "\":0,";
    text += member;
    entry += member;
  }
  CHECK(parsed(text + "\"last\":1}").fields().size() == 1000001);
  check_refused(text + "\"k77\":1}", text.size(), "duplicate key");
  CHECK(accepted(entry + "\"last\":1}]}"));
  check_refused(entry + "\"k\\u0037\":1}]}", entry.size(), "duplicate key");
}

TEST_CASE("body: more members than the limit are refused at the first one too many", "[body]") {
  std::string text = "{\"0\":0";
  for (std::size_t i = 1; i < kMaxJsonFields; ++i) {
    text += ",\"" + std::to_string(i) + "\":0";
  }
  CHECK(accepted(text + "}"));
  check_refused(text + ",\"x\":0}", text.size() + 1, "too many members");
}

TEST_CASE("body: it agrees with simdjson on thousands of documents and mutations",
          "[body][model]") {
  std::size_t agreed = 0;
  std::size_t good = 0;
  for (std::uint32_t seed = 1; seed <= 20000; ++seed) {
    Generator generator(seed, seed % 8 != 0);
    const std::string whole = generator.object(4);
    const std::string text = seed % 3 == 0 ? whole : generator.mutated(whole);
    CAPTURE(seed, text);
    const Verdict verdict = dom_verdict(text);
    const auto result = Body::parse(text);
    const BodyError* error = std::get_if<BodyError>(&result);
    if (error != nullptr && error->reason == "duplicate key") {
      continue;
    }
    if (error == nullptr) {
      ++good;
      REQUIRE(verdict != Verdict::refused);
    } else {
      REQUIRE(verdict != Verdict::accepted);
      REQUIRE(error->offset <= text.size());
    }
    agreed += verdict != Verdict::outside ? 1U : 0U;
  }
  CHECK(good > 6000);
  CHECK(agreed > 15000);
}

TEST_CASE("body: after a splice only the edited members differ", "[body][model]") {
  const std::vector<BodyEdit> edits = {
      {"id_slot", "17"}, {"cache_prompt", "true"}, {"b\n", "[\"\\u0041\"]"}};
  for (std::uint32_t seed = 1; seed <= 5000; ++seed) {
    Generator generator(seed);
    const std::string text = generator.object(3);
    CAPTURE(seed, text);
    const Body body = parsed(text);
    const std::string edited = spliced(text, edits);

    // The same edit by hand: members replaced from the back, then the rest put in front.
    std::string expected = text;
    std::string front;
    for (auto field = body.fields().rbegin(); field != body.fields().rend(); ++field) {
      for (const BodyEdit& edit : edits) {
        if (edit.key == field->key) {
          expected.replace(static_cast<std::size_t>(field->value.data() - text.data()),
                           field->value.size(), edit.json);
        }
      }
    }
    for (const BodyEdit& edit : edits) {
      if (body.find(edit.key) == nullptr) {
        front += (front.empty() ? "" : ",") + quote(edit.key) + ":" + edit.json;
      }
    }
    front += front.empty() || body.fields().empty() ? "" : ",";
    expected.insert(expected.find('{') + 1, front);
    REQUIRE(edited == expected);

    dom::parser parser;
    dom::object object;
    REQUIRE(parser.parse(simdjson::padded_string(edited)).get(object) == simdjson::SUCCESS);
    REQUIRE(object["id_slot"].get_int64().value_unsafe() == 17);
    REQUIRE(object["cache_prompt"].get_bool().value_unsafe());
    REQUIRE(object["b\n"].at(0).get_string().value_unsafe() == "A");
  }
}

TEST_CASE("splice: a member is replaced in place or inserted right after the brace", "[body]") {
  CHECK(spliced("{}", {{"a", "1"}}) == "{\"a\":1}");
  CHECK(spliced(" {\n} ", {{"a", "1"}}) == " {\"a\":1\n} ");
  CHECK(spliced("{ \"x\" : 2 }", {{"a", "1"}}) == "{\"a\":1, \"x\" : 2 }");
  CHECK(spliced("{ \"x\" : 2 }", {{"x", "[3]"}}) == "{ \"x\" : [3] }");
  CHECK(spliced("{\"\\u0078\":{\"x\":1},\"y\":[]}", {{"x", "3"}}) == "{\"\\u0078\":3,\"y\":[]}");
  CHECK(spliced("{\"x\":1,\"y\":2}", {{"y", "5"}, {"b", "\"\""}, {"x", "4"}, {"a", "1"}}) ==
        "{\"b\":\"\",\"a\":1,\"x\":4,\"y\":5}");
  CHECK(spliced("{\"x\":1}", {{"x", "2"}, {"n", "1"}, {"x", "3"}, {"n", "2"}}) ==
        "{\"n\":2,\"x\":3}");
  CHECK(spliced("{}", {{"q\"\n", "1"}}) == "{\"q\\\"\\n\":1}");
  CHECK(spliced(kChat, {}) == kChat);
}

TEST_CASE("splice: the body is not copied", "[body]") {
  const std::string text = "{\"prompt\":\"" + std::string(100000, 'x') + "\",\"id_slot\":-1}";
  const Body body = parsed(text);
  const std::vector<BodyEdit> edits = {{"id_slot", "2"}, {"cache_prompt", "true"}};
  std::vector<std::string> storage = {"old"};
  const std::vector<std::string_view> pieces = splice(body, edits, storage);
  std::size_t own = 0;
  for (const std::string& part : storage) {
    own += part.size();
  }
  CHECK(own < 30);
  CHECK(pieces.size() == 5);
  CHECK(pieces.front().data() == text.data());
  CHECK(pieces.back().data() + pieces.back().size() == text.data() + text.size());
}

TEST_CASE("children: members and elements are walked in order", "[body]") {
  const Body body = parsed(kChat);
  const std::vector<JsonField> messages = children(body.find("messages")->value);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].key.empty());
  CHECK(messages[0].kind == JsonKind::object);
  const std::vector<JsonField> user = children(messages[1].value);
  REQUIRE(user.size() == 2);
  CHECK(user[0].key == "role");
  CHECK(unescape(user[0].value) == "user");
  const std::vector<JsonField> parts = children(user[1].value);
  REQUIRE(parts.size() == 1);
  CHECK(unescape(children(parts[0].value)[1].value) ==
        "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80 \xF0\x9F\x98\x80 \xEF\xBF\xBD");
  CHECK(children("[]").empty());
  CHECK(children("{ }").empty());
  const std::vector<JsonField> mixed = children("[ 1 ,-2.5, \"]\\\"}\" ,{\"]\":[1]}, [[]],null ]");
  REQUIRE(mixed.size() == 6);
  CHECK(mixed[1].value == "-2.5");
  CHECK(mixed[2].value == "\"]\\\"}\"");
  CHECK(mixed[3].value == "{\"]\":[1]}");
  CHECK(mixed[4].value == "[[]]");
  CHECK(mixed[5].kind == JsonKind::null);
}

TEST_CASE("children: anything that is no container is safe to walk", "[body]") {
  for (const std::string_view text : {"", "{", "1", "\"", "{\"", "{\"a", "[\"\\", "{\"a\":}", "[,]",
                                      "}}}}", "[]]]", "{a}", "[{[", "{\"a\" \"b\"}"}) {
    CHECK(children(text).size() <= text.size());
  }
}

TEST_CASE("children: the walk agrees with simdjson", "[body][model]") {
  for (std::uint32_t seed = 1; seed <= 2000; ++seed) {
    const std::string text = Generator(seed).object(4);
    dom::parser parser;
    dom::object object;
    CAPTURE(seed, text);
    REQUIRE(parser.parse(simdjson::padded_string(text)).get(object) == simdjson::SUCCESS);
    const std::vector<JsonField> fields = children(text);
    REQUIRE(fields.size() == object.size());
    std::size_t i = 0;
    for (const auto [key, value] : object) {
      REQUIRE(fields[i].key == key);
      dom::parser again;
      dom::element element;
      REQUIRE(again.parse(simdjson::padded_string(fields[i].value)).get(element) ==
              simdjson::SUCCESS);
      REQUIRE(simdjson::minify(element) == simdjson::minify(value));
      ++i;
    }
  }
}

TEST_CASE("unescape: escapes become UTF-8 and lone surrogates U+FFFD", "[body]") {
  CHECK(unescape("\"\"").empty());
  CHECK(unescape("\"a\\n\\t\\\"\\\\\\/\\b\\f\\r\"") == "a\n\t\"\\/\b\f\r");
  CHECK(unescape("\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\"") ==
        "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  CHECK(unescape("\"\\u0000\"") == std::string(1, '\0'));
  CHECK(unescape("\"\\ud83dx\\ude00\"") == "\xEF\xBF\xBDx\xEF\xBF\xBD");
  CHECK(unescape("\"\\ud83d\\ud83d\\ude00\"") == "\xEF\xBF\xBD\xF0\x9F\x98\x80");
  CHECK(unescape("\"\\ud83d\\u0041\"") ==
        "\xEF\xBF\xBD"
        "A");
}

TEST_CASE("as_integer: only what is written as an integer and fits", "[body]") {
  const auto integer = [](std::string_view text) {
    const std::string object = "{\"a\":" + std::string(text) + "}";
    return as_integer(*parsed(object).find("a"));
  };
  CHECK(integer("0") == 0);
  CHECK(integer("-0") == 0);
  CHECK(integer("-1") == -1);
  CHECK(integer("9223372036854775807") == INT64_MAX);
  CHECK(integer("-9223372036854775808") == INT64_MIN);
  CHECK_FALSE(integer("9223372036854775808"));
  CHECK_FALSE(integer("1.0"));
  CHECK_FALSE(integer("1e2"));
  CHECK_FALSE(integer("\"1\""));
  CHECK_FALSE(integer("true"));
}

TEST_CASE("quote: only what must be escaped is escaped, and it reads back the same", "[body]") {
  CHECK(quote("") == "\"\"");
  CHECK(quote("a/b \xC3\xA9\x7F") == "\"a/b \xC3\xA9\x7F\"");
  CHECK(quote("\"\\\b\f\n\r\t\x01\x1F") == "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\"");
  std::string all;
  for (char c = 0; c < 127; ++c) {
    all += c;
  }
  CHECK(unescape(quote(all)) == all);
  CHECK(accepted("{\"a\":" + quote(all) + "}"));
}
