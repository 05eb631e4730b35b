// /v1/messages: Anthropic's form of a chat. It cannot name its slot, is reused all the same, and is told
// errors in its own form.
#include <set>

#include "net_test.hpp"

namespace {

using namespace toki::test;

constexpr const char* kMessages = "/v1/messages";

std::string text_block(const std::string& text) {
  return R"({"type":"text","text":)" + quote(text) + R"(,"cache_control":{"type":"ephemeral"}})";
}

// `turns`: raw entries of `messages`.
std::string body_of(const std::string& system, const std::vector<std::string>& turns,
                    const std::string& extra = "") {
  std::string list;
  for (const auto& turn : turns) list += (list.empty() ? "" : ",") + turn;
  return R"({"model":"m","max_tokens":8,"system":[)" + text_block(system) + R"(],"messages":[)" +
         list + "]" + extra + "}";
}
std::string user(const std::string& text) {
  return R"({"role":"user","content":[)" + text_block(text) + "]}";
}
std::string assistant(const std::string& text) {
  return R"({"role":"assistant","content":[{"type":"text","text":)" + quote(text) + "}]}";
}

// What the upstream did for the messages it got, steps of toki left out.
std::vector<LoggedRequest> served(Rig& rig) {
  return rig.up.requests_to("POST", kMessages);
}

void check_anthropic_error(const HttpResponse& response, int status, std::string_view type) {
  INFO("body: " << response.body);
  CHECK(response.status == status);
  const Json json = response.json();
  CHECK(json["type"].str() == "error");
  CHECK(json["error"]["type"].str() == type);
  CHECK_FALSE(json["error"]["message"].str().empty());
  CHECK_FALSE(json["error"].has("code"));
}

}  // namespace

TEST_CASE("messages: conversations keep their slots, and bodies and answers their bytes") {
  Behaviour behaviour;
  behaviour.slots = 4;
  Rig rig(behaviour);
  const std::string stream = GENERATE("", R"(,"stream":true)");
  std::vector<std::vector<std::string>> talks(3);
  std::vector<int> slots(3, -1);
  std::vector<std::size_t> sent(3, 0);
  for (int turn = 0; turn < 4; ++turn) {
    for (std::size_t i = 0; i < talks.size(); ++i) {
      // All begin with the same system prompt, which the server alone would choose by.
      talks[i].push_back(user(words("t" + std::to_string(i) + "n" + std::to_string(turn), 30)));
      const std::string body = body_of(W(200), talks[i], stream);
      const Answer answer = rig.post(kMessages, body);
      REQUIRE(answer.status == 200);
      const auto log = served(rig).back();
      CHECK(log.body() == body);
      CHECK(std::to_string(log.slot) == answer.slot);
      if (turn > 0) {
        CHECK(log.slot == slots[i]);
        CHECK(log.cache_n >= static_cast<int>(sent[i] * 97 / 100));
        CHECK(answer.cache == "hit");
        CHECK(answer.reused <= log.cache_n);
      }
      slots[i] = log.slot;
      sent[i] = log.prompt.size();
      talks[i].push_back(assistant("ok"));
    }
  }
  CHECK(std::set<int>(slots.begin(), slots.end()).size() == 3);
  CHECK(rig.tokid.wait_stat("requests_completed", 12));
  CHECK(rig.tokid.stat("class_bypass") == 0);
  CHECK(rig.tokid.wait_stat("class_hit", 9));
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  CHECK(rig.up.requests_to("POST", "/v1/messages/count_tokens").size() == 1);  // once a shape
}

TEST_CASE("messages: a chat goes on with what a message computed, and the other way round") {
  Rig rig;
  rig.post(kMessages, body_of(W(300), {user("one")}));
  const Answer chat = rig.chat(cc({S(W(300)), M("two")}));
  CHECK(chat.cache_n >= 300);
  rig.post(kMessages, body_of(W(300), {user("two")}));
  CHECK(served(rig).back().cache_n >= 300);
}

TEST_CASE("messages: tools, calls and results are part of the prompt") {
  Rig rig;
  const std::string tools =
      R"(,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":{"type":"auto"})";
  const std::string call =
      R"({"role":"assistant","content":[{"type":"text","text":"calling"},{"type":"tool_use","id":"c1","name":"f","input":{"a":[1,2.5]}}]})";
  const std::string result =
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"four "},{"type":"text","text":"two"}]},{"type":"text","text":"and?"}]})";
  rig.post(kMessages, body_of(W(100), {user("q")}, tools));
  rig.post(kMessages, body_of(W(100), {user("q"), call, result}, tools));
  rig.post(kMessages,
           body_of(W(100), {user("q"), call, result, assistant("ok"), user("r")}, tools));
  const auto log = served(rig);
  REQUIRE(log.size() == 3);
  CHECK(log[2].cache_n >= static_cast<int>(log[1].prompt.size()) - 1);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  CHECK(rig.tokid.stat("class_bypass") == 0);
}

TEST_CASE("messages: what the server counts otherwise is served uncached") {
  Behaviour behaviour;
  behaviour.messages_suffix = " unexpected";
  Rig rig(behaviour);
  for (int i = 0; i < 3; ++i) {
    const Answer answer = rig.post(kMessages, body_of(W(100), {user("q")}));
    CHECK(answer.status == 200);
    CHECK(answer.cache == "bypass");
    CHECK(answer.reason == "tokenize_failed");
  }
  CHECK(rig.up.requests_to("POST", "/v1/messages/count_tokens").size() == 1);
  CHECK(rig.tokid.wait_stat("class_bypass", 3));
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
}

TEST_CASE("messages: a count that becomes wrong later is noticed") {
  Rig rig;
  CHECK(rig.post(kMessages, body_of(W(100), {user("q")})).cache == "miss");
  rig.up.configure([](Behaviour& b) { b.messages_suffix = " unexpected"; });
  rig.post(kMessages, body_of(W(100), {user("r")}));
  CHECK(rig.tokid.wait_stat("tokenization_mismatch_total", 1));
  CHECK(rig.post(kMessages, body_of(W(100), {user("r")})).reason == "tokenize_failed");
}

TEST_CASE("messages: blocks of an unknown kind and images are served uncached") {
  Rig rig;
  const std::string unknown = R"({"role":"user","content":[{"type":"document","title":"x"}]})";
  CHECK(rig.post(kMessages, body_of("s", {unknown, user("q")})).reason == "tokenize_failed");
  const std::string image =
      R"({"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]})";
  CHECK(rig.post(kMessages, body_of("s", {image, user("q")})).reason == "media");
  CHECK(rig.tokid.wait_stat("class_bypass", 2));
}

TEST_CASE("messages: a server that chooses otherwise is believed nothing") {
  Behaviour behaviour;
  behaviour.slots = 3;
  behaviour.compares_slots = false;
  Rig rig(behaviour);
  for (int i = 0; i < 10; ++i) {
    const Answer answer =
        rig.post(kMessages, body_of(words("s" + std::to_string(i), 100), {user("q")}));
    CHECK(answer.status == 200);
    if (i >= 8) CHECK(answer.reason == "not_cacheable");
    const Answer chat = rig.chat(cc({S(words("s" + std::to_string(i), 100)), M("q")}));
    CHECK(chat.reused <= chat.cache_n);
  }
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("messages: a pin's slot is not taken by what shares only some of it") {
  Behaviour behaviour;
  behaviour.slots = 2;
  Rig rig(behaviour);
  const HttpResponse pinned =
      post_json(rig.port(), "/toki/pins",
                R"({"messages":[{"role":"system","content":)" + quote(W(300)) + "}]}");
  REQUIRE(pinned.status == 200);
  REQUIRE(rig.tokid.wait_stat("pins_held", 1, milliseconds(5000)));
  for (int i = 0; i < 3; ++i) {
    rig.post(kMessages, body_of(W(200), {user(words("u" + std::to_string(i), 100))}));
  }
  CHECK(rig.tokid.stat("pins_held") == 1);
  rig.post(kMessages, body_of(W(300), {user("q")}));
  CHECK(served(rig).back().cache_n >= 300);
}

TEST_CASE("messages: a client that leaves leaves no wrong belief behind") {
  Behaviour behaviour;
  behaviour.slots = 2;
  Rig rig(behaviour);
  rig.post(kMessages, body_of(W(200), {user("q")}));
  rig.up.configure([](Behaviour& b) { b.answer_delay = milliseconds(30000); });
  RawClient client(rig.port());
  client.send_json(kMessages, body_of(W(200), {user("q"), assistant("ok"), user(words("x", 50))}));
  REQUIRE(wait_until([&] { return served(rig).size() == 2; }, milliseconds(3000)));
  client.reset();
  REQUIRE(rig.tokid.wait_stat("requests_cancelled", 1));
  rig.up.configure([](Behaviour& b) { b.answer_delay = milliseconds(0); });
  // The server may still be at it: toki waits for the slot it wants.
  const Answer again =
      rig.post(kMessages, body_of(W(200), {user("q"), assistant("ok"), user(words("y", 50))}));
  CHECK(again.status == 200);
  CHECK((again.slot == "any" || std::to_string(served(rig).back().slot) == again.slot));
  CHECK(served(rig).back().cache_n >= again.reused);
  const Answer chat = rig.chat(cc({S(W(200)), M("q")}));
  CHECK(chat.reused <= chat.cache_n);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("messages: errors of tokid's own have Anthropic's form") {
  SECTION("before the answer") {
    Rig rig({}, {"--max-body-mib", "1"});
    const HttpResponse bad = post_json(rig.port(), kMessages, "{\"model\":");
    check_anthropic_error(bad, 400, "invalid_request_error");
    CHECK(bad.json()["error"]["offset"].integer() == 9);
    const std::string large = body_of(std::string(2 << 20, 'a'), {user("q")});
    check_anthropic_error(post_json(rig.port(), kMessages, large), 413, "request_too_large");
    check_anthropic_error(post_json(rig.port(), "/v1/messages/count_tokens?beta=true", large), 413,
                          "request_too_large");
    for (const char* slip : {"/v1/v1/messages", "//v1/messages/"}) {
      check_anthropic_error(post_json(rig.port(), slip, "{"), 400, "invalid_request_error");
    }
    check_error(post_json(rig.port(), kChat, "{\"model\":"), 400, "invalid_request_error");
    check_error(post_json(rig.port(), "/v1/messagesX", large), 413, "invalid_request_error");
  }
  SECTION("of the backend's absence") {
    Rig rig;
    const std::string path = GENERATE("/v1/messages", "/v1/messages/count_tokens");
    rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
      if (request.path != path) return false;
      connection.reset();
      return true;
    });
    const HttpResponse gone = post_json(
        rig.port(), path,
        body_of("s",
                {path == kMessages ? R"({"role":"user","content":[{"type":"x"}]})" : user("q")}));
    check_anthropic_error(gone, 502, "api_error");
  }
  SECTION("of a full queue") {
    Behaviour behaviour;
    behaviour.slots = 1;
    behaviour.answer_delay = milliseconds(30000);
    Rig rig(behaviour, {"--queue-length", "0"});
    RawClient first(rig.port());
    first.send_json(kChat, cc({M("one")}));
    REQUIRE(rig.up.wait_generations(1));
    const HttpResponse full = post_json(rig.port(), kMessages, body_of("s", {user("q")}));
    check_anthropic_error(full, 429, "rate_limit_error");
    CHECK(full.headers.has("retry-after"));
    first.reset();
  }
}

TEST_CASE("messages: an error in a stream is Anthropic's event") {
  Rig rig({}, {"--keepalive-grace-ms", "100", "--keepalive-interval-ms", "100"});
  const std::string start = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
  const int way = GENERATE(0, 1, 2, 3);
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != kMessages) return false;
    if (way == 0) {  // late, by the backend
      connection.sleep(milliseconds(300));
      connection.respond(400, R"({"error":{"code":400,"message":"bad","type":"whatever"}})");
    } else if (way == 1) {  // late, by its death
      connection.sleep(milliseconds(300));
      connection.reset();
    } else {  // between two events, or within one
      connection.begin_stream();
      connection.send_chunk(start);
      if (way == 3) connection.send_chunk("event: content_blo");
      connection.sleep(milliseconds(50));
      connection.reset();
    }
    return true;
  });
  const HttpResponse response =
      post_json(rig.port(), kMessages, body_of("s", {user("q")}, R"(,"stream":true)"));
  INFO("way " << way << " body: " << response.body);
  const auto at = response.body.find("event: error\n");
  CHECK((at != std::string::npos) == (way < 3));
  CHECK(response.whole() == (way < 2));
  if (way == 3) {
    CHECK(response.body == start + "event: content_blo");
    return;
  }
  const auto data = sse_data(response.body);
  const Json json = Json::parse(data.back()).value_or(Json());
  CHECK(json["type"].str() == "error");
  CHECK(json["error"]["type"].str() == (way == 0 ? "invalid_request_error" : "api_error"));
  if (way == 0) CHECK(json["error"]["message"].str() == "bad");
  CHECK(response.body.substr(at).find("\n\n") == response.body.size() - at - 2);
}
