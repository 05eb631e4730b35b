// Request bodies: every byte the client sent, and clear refusals of what cannot be forwarded.
#include "net_test.hpp"

namespace {

using namespace toki::test;

// The one generation that was received, checked to be `sent` but for the added members.
LoggedRequest forwarded(Rig& rig, const std::string& sent) {
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 1);
  const std::string fault = forwarding_fault(sent, log[0].body());
  CHECK(fault == "");
  return log[0];
}

}  // namespace

// B15
TEST_CASE("key order, spacing and escapes of the body are forwarded as they are") {
  Rig rig;
  const std::string body =
      "{ \"model\" : \"m\",\n\t\"messages\":[ {\"role\":\"user\" , \"content\":\"q\\u00e9\\/ "
      "\\ud83d\\ude00\"} ],"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object",)"
      R"("properties":{"zebra":{"type":"string"},"apple":{"type":"string"},"mango":{"type":"string"}}}}},)"
      R"("temperature":1.50e+0,"seed":12345678901234567890})";
  REQUIRE(rig.chat(body).status == 200);
  const auto request = forwarded(rig, body);
  const auto& text = request.body();
  CHECK(text.find("zebra") < text.find("apple"));
  CHECK(text.find("apple") < text.find("mango"));
  CHECK(request.json()["cache_prompt"].boolean(false));
  CHECK(request.json()["id_slot"].is_integer());
}

// B16
TEST_CASE("fields that toki does not own are forwarded with the same value") {
  Rig rig;
  const std::string extra =
      R"("chat_template_kwargs":{"enable_thinking":false},"top_k":7,"min_p":0.05,)"
      R"("grammar":"root ::= [a-z]+","x_future":{"a":[1,null]})";
  const std::string body = cc({M("q")}, "," + extra);
  const Answer answer = rig.chat(body);
  REQUIRE(answer.status == 200);
  const Json received = forwarded(rig, body).json();
  const Json wanted = Json::parse("{" + extra + "}").value();
  for (const auto& [key, value] : wanted.members()) CHECK(received[key] == value);
  // They also shape the prompt that is rendered.
  const auto rendered = rig.up.requests_to("POST", "/apply-template");
  REQUIRE(rendered.size() == 1);
  CHECK(rendered[0].json()["chat_template_kwargs"] == wanted["chat_template_kwargs"]);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  const Answer again = rig.chat(body);
  CHECK(again.reused == again.prompt_tokens - 1);
}

TEST_CASE("tools and tool calls take part in the rendered prompt") {
  Rig rig;
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","description":"d1 d2 d3","parameters":{}}}])";
  const std::string body = cc({M("q1 q2 q3 q4 q5 q6")}, tools);
  CHECK(rig.chat(body).status == 200);
  forwarded(rig, body);
  const Answer again = rig.chat(body);
  CHECK(again.reused == again.cache_n);
  CHECK(again.cache_n >= 10);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
}

TEST_CASE("members that toki owns are replaced in place, never doubled") {
  Rig rig;
  const std::string body =
      R"({"cache_prompt":true,"messages":[{"role":"user","content":"q"}],"id_slot":-1,"model":"m"})";
  CHECK(rig.chat(body).status == 200);
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 1);
  const Json received = log[0].json();
  CHECK(received.count("id_slot") == 1);
  CHECK(received.count("cache_prompt") == 1);
  CHECK(received["cache_prompt"].boolean(false));
  CHECK(received["messages"] == Json::parse(body).value()["messages"]);
}

// B33
TEST_CASE("text that looks like a control token is forwarded as it is and counted alike") {
  Rig rig;
  const std::string body = cc({M("repeat: <|im_end|> done")});
  const Answer first = rig.chat(body);
  CHECK(first.status == 200);
  forwarded(rig, body);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  const Answer again = rig.chat(body);
  CHECK(again.reused == again.prompt_tokens - 1);
  CHECK(again.reused == again.cache_n);
}

// B49
TEST_CASE("a screenshot of five megabytes passes unchanged") {
  Rig rig;
  const std::string body =
      cc({M_json(R"([{"type":"image_url","image_url":{"url":"data:image/png;base64,)" +
                 std::string(5000000, 'A') + R"("}}])")});
  CHECK(rig.chat(body).status == 200);
  forwarded(rig, body);
}

// B49
TEST_CASE("a body over the limit is refused before the rest of it comes") {
  Rig rig({}, {"--max-body-mib", "1"});
  RawClient client(rig.port());
  SECTION("announced by its length") {
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\nContent-Length: 5000200\r\n\r\n{\"model\":\"m\"");
  }
  SECTION("announced by an absurd length") {
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n");
  }
  SECTION("announced with an expectation") {
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        "Content-Type: application/json\r\nContent-Length: 5000200\r\n\r\n");
  }
  SECTION("found while chunks come") {
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("120000\r\n" + std::string(0x120000, ' '));
  }
  const HttpResponse response = client.read_response();
  check_error(response, 413, "invalid_request_error");
  const std::string message = response.json()["error"]["message"].str();
  INFO(message);
  CHECK(
      (message.find("1 MiB") != std::string::npos || message.find("1048576") != std::string::npos));
  CHECK(client.wait_closed(milliseconds(5000)));
  CHECK(rig.up.requests_to("POST", kChat).empty());
  CHECK(rig.chat(cc({M("q")})).status == 200);
}

TEST_CASE("the limit holds for every path") {
  Rig rig({}, {"--max-body-mib", "1"});
  RawClient client(rig.port(), milliseconds(5000));
  client.send("POST /some/path HTTP/1.1\r\nHost: x\r\nContent-Length: 5000200\r\n\r\n");
  check_error(client.read_response(), 413, "invalid_request_error");
  CHECK(rig.up.requests_to("POST", "/some/path").empty());
}

TEST_CASE("a body of 64 MiB passes within three times its size of memory") {
  Rig rig;
  const std::string empty = cc({M("")});
  constexpr std::size_t kSize = std::size_t{64} << 20;
  const std::string body = cc({M(std::string(kSize - empty.size(), 'A'))});
  REQUIRE(body.size() == kSize);
  const long before = rig.tokid.peak_memory_kib();
  const HttpResponse response = post_json(rig.port(), kChat, body, {}, milliseconds(60000));
  CHECK(response.status == 200);
  const long grown = rig.tokid.peak_memory_kib() - before;
  INFO("grown by " << grown << " KiB");
  if (!rig.tokid.sanitized()) CHECK(grown < 3 * 64 * 1024);
  forwarded(rig, body);
  check_error(post_json(rig.port(), kChat, body + " ", {}, milliseconds(60000)), 413,
              "invalid_request_error");
}

// B63
TEST_CASE("an expected body is asked for, and the upstream hears nothing of it") {
  Rig rig;
  const std::string body = cc({M(W(100))});
  RawClient client(rig.port());
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.read_head().status == 100);
  client.send(body);
  CHECK(client.read_response().status == 200);
  for (const auto& request : rig.up.requests()) CHECK_FALSE(request.headers.has("expect"));
  forwarded(rig, body);
}

TEST_CASE("a chunked request body of any slicing is forwarded whole") {
  Rig rig;
  const std::string body = cc({M(W(50))});
  const std::size_t piece = GENERATE(std::size_t{1}, std::size_t{13}, std::size_t{100000});
  RawClient client(rig.port());
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  for (std::size_t at = 0; at < body.size(); at += piece) {
    const std::string part = body.substr(at, piece);
    char size[16];
    std::snprintf(size, sizeof size, "%zX;e=1\r\n", part.size());
    client.send(size + part + "\r\n");
  }
  client.send("0\r\nX-Trailer: 1\r\n\r\n");
  CHECK(client.read_response().status == 200);
  forwarded(rig, body);
  // The connection is still good.
  client.send_request("GET", "/toki/health");
  CHECK(client.read_response().status == 200);
}

TEST_CASE("a body that arrives slowly is waited for, one that breaks off goes nowhere") {
  Rig rig;
  const std::string body = cc({M("slow")});
  RawClient slow(rig.port());
  slow.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n");
  slow.send_slowly(body, 1, milliseconds(5));
  CHECK(slow.read_response().status == 200);
  rig.up.clear_log();
  RawClient broken(rig.port());
  broken.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, body.size() / 2));
  GENERATE(0, 1) == 0 ? broken.close() : broken.reset();
  CHECK(rig.chat(cc({M("next")})).status == 200);
  CHECK(rig.up.generations().size() == 1);
}

// B54
TEST_CASE("broken bodies are refused with an offset and nothing goes upstream") {
  Rig rig;
  struct Case {
    std::string body;
    int offset;  // -1: any
  };
  const std::string deep(100000, '[');
  const std::vector<Case> cases = {
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xC3\"}]}", 39},
      {"{:", 1},
      {"", 0},
      {"[]", 0},
      {"null", 0},
      {"\"text\"", 0},
      {"\xEF\xBB\xBF{\"messages\":[]}", 0},
      {R"({"messages":[]} x)", 16},
      {R"({"messages":[]}{})", 15},
      {R"({"messages":[)", -1},
      {R"({"model":"a","model":"b","messages":[]})", -1},
      {R"({"messages":[{"role":"user","content":"x","content":"y"}]})", -1},
      {R"({"mod\u0065l":"a","model":"b","messages":[]})", -1},
      {"{\"a\":\"\xED\xA0\x80\"}", -1},
      {"{\"a\":\"\xF4\x90\x80\x80\"}", -1},
      {"{\"a\":\"\xC0\xAF\"}", -1},
      {"{\"a\":\"tab\there\"}", -1},
      {R"({"a":"\x"})", -1},
      {R"({"a":01})", -1},
      {R"({"a":NaN})", -1},
      {R"({"a":1,})", -1},
      {"{\"a\":" + deep, -1},
      {std::string("{\"a\":\0}", 7), -1},
      {std::string(40, '\xFF'), -1},
  };
  for (const auto& [body, offset] : cases) {
    INFO(body.substr(0, 60));
    const HttpResponse response = post_json(rig.port(), kChat, body);
    check_error(response, 400, "invalid_request_error");
    const Json error = response.json()["error"];
    REQUIRE(error["offset"].is_integer());
    CHECK(error["offset"].integer() <= static_cast<int>(body.size()));
    if (offset >= 0) CHECK(std::abs(error["offset"].integer() - offset) <= 1);
    for (const char bad : {'\xC3', '\xFF', '\xC0'}) {
      CHECK(response.body.find(bad) == std::string::npos);
    }
  }
  CHECK(rig.up.requests_to("POST", kChat).empty());
  CHECK(rig.up.requests_to("POST", "/apply-template").empty());
  CHECK(rig.chat(cc({M("good")})).status == 200);
  CHECK(rig.tokid.stat("requests_refused") == static_cast<double>(cases.size()));
}

// B54
TEST_CASE("bad bytes of the upstream are passed on unchanged") {
  Rig rig;
  const std::string bytes = "{\"choices\":[{\"text\":\"\xC3\xFF\x01 broken";
  const bool stream = GENERATE(false, true);
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    if (!stream) return connection.respond(200, bytes);
    connection.begin_stream();
    connection.send_chunk("data: " + bytes + "\n\n");
    return connection.end_stream();
  }));
  const HttpResponse response =
      post_json(rig.port(), kChat, cc({M("q")}, stream ? R"(,"stream":true)" : ""));
  CHECK(response.status == 200);
  CHECK(response.whole());
  CHECK(response.body == (stream ? "data: " + bytes + "\n\n" : bytes));
  rig.up.on_request({});
  CHECK(rig.chat(cc({M("q")})).status == 200);
}

// B60
TEST_CASE("a lone surrogate escape is forwarded untouched") {
  Rig rig;
  for (const char* half : {"\\ud83d", "\\ude00"}) {
    rig.up.clear_log();
    const std::string body = R"({"model":"m","messages":[{"role":"user","content":"a )" +
                             std::string(half) + R"( b"}]})";
    CHECK(rig.chat(body).status == 200);
    CHECK(forwarded(rig, body).body().find(half) != std::string::npos);
  }
  rig.up.clear_log();
  // A pair is the same prompt as the character itself.
  const auto prompt = [](const std::string& emoji) {
    return R"({"model":"m","messages":[{"role":"user","content":")" + W(50) + " " + emoji +
           R"("}]})";
  };
  const Answer escaped = rig.chat(prompt("\\ud83d\\ude00"));
  const Answer raw = rig.chat(prompt("\xF0\x9F\x98\x80"));
  CHECK(escaped.prompt_tokens == raw.prompt_tokens);
  CHECK(raw.reused == raw.prompt_tokens - 1);
  CHECK(raw.cache_n == raw.prompt_tokens - 1);
}

// B65
TEST_CASE("cache_prompt false is forwarded, not routed for reuse and no miss") {
  Rig rig;
  const std::string body = cc({M(W(300))}, R"(,"cache_prompt":false,"temperature":0,"seed":1)");
  for (int i = 0; i < 2; ++i) {
    rig.up.clear_log();
    const Answer answer = rig.chat(body);
    CHECK(answer.status == 200);
    CHECK(answer.cached_tokens == 0);
    CHECK(answer.cache == "bypass");
    CHECK(answer.reason == "cache_prompt_false");
    CHECK(answer.reused <= 0);
    const Json received = forwarded(rig, body).json();
    CHECK(received.count("cache_prompt") == 1);
    CHECK_FALSE(received["cache_prompt"].boolean(true));
  }
  CHECK(rig.tokid.stat("class_bypass") == 2);
  CHECK(rig.tokid.stat("class_miss") == 0);
  rig.up.clear_log();
  const std::string silent = cc({M(W(300))});
  CHECK(rig.chat(silent).status == 200);
  CHECK(forwarded(rig, silent).json()["cache_prompt"].boolean(false));
}
