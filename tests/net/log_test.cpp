// The log: its two forms, the ids of requests, and what must never be in it.
#include <sstream>

#include "net_test.hpp"

namespace {

using namespace toki::test;

std::vector<std::string> lines_with(const std::string& log, const std::string& part) {
  std::vector<std::string> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(part) != line.npos) found.push_back(line);
  }
  return found;
}

HttpResponse chat_as(const Rig& rig, const std::string& id) {
  return post_json(rig.port(), kChat, cc({M("q")}), {{"X-Request-Id", id}});
}

}  // namespace

TEST_CASE("a JSON log has one object a line, with the figures of the text") {
  Rig rig({}, {"--log-format", "json"});
  CHECK(rig.chat(cc({M(W(40))})).status == 200);
  CHECK(chat_as(rig, "mine").status == 200);
  CHECK(rig.chat("{").status == 400);
  CHECK(get(rig.port(), "/v1/models?key=x").status == 200);
  REQUIRE(wait_until([&] { return lines_with(rig.tokid.log(), "/v1/models").size() == 1; }));
  std::istringstream lines(rig.tokid.log());
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    INFO(line);
    const auto value = Json::parse(line);
    REQUIRE(value);
    CHECK((*value)["time"].str().size() == std::string("2026-01-01T00:00:00.000+00:00").size());
    CHECK_FALSE((*value)["level"].str().empty());
    CHECK(((*value)["event"].str() == "request" || !(*value)["message"].str().empty()));
  }
  CHECK(count > 5);
  const auto requests = lines_with(rig.tokid.log(), R"("event":"request")");
  REQUIRE(requests.size() == 4);
  const Json first = *Json::parse(requests[0]);
  CHECK(first["path"].str() == kChat);
  CHECK(first["status"].integer() == 200);
  CHECK(first["ending"].str() == "completed");
  CHECK(first["class"].str() == "miss");
  CHECK(first["slot"].integer() >= 0);
  CHECK(first["prompt"].integer() > 40);
  CHECK(first["total_ms"].num() > 0);
  CHECK(first["id"].str().size() == 16);
  CHECK(first["backend"].is_null());
  CHECK(first["error"].is_null());
  CHECK(Json::parse(requests[1])->operator[]("id").str() == "mine");
  CHECK_FALSE(Json::parse(requests[2])->operator[]("error").str().empty());
  CHECK(Json::parse(requests[3])->operator[]("path").str() == "/v1/models");
}

TEST_CASE("the log's path ends before a query and before a fragment") {
  Rig rig;
  for (const char* rest : {"?a=SECRET", "#SECRET", "#b?SECRET"}) {
    post_json(rig.port(), std::string(kChat) + rest, cc({M("q")}));
    get(rig.port(), std::string("/v1/models") + rest);
  }
  const auto lines = [&](const char* path) {
    return lines_with(rig.tokid.log(), std::string("path=") + path + " ").size();
  };
  CHECK(wait_until([&] { return lines(kChat) == 3 && lines("/v1/models") == 3; }));
  CHECK(lines_with(rig.tokid.log(), "SECRET").empty());
}

TEST_CASE("a request's id comes from the client, goes to the backend and comes back") {
  Rig rig;
  const HttpResponse answer = chat_as(rig, "req-1/\"x\"");
  CHECK(answer.status == 200);
  CHECK(answer.headers.count("x-request-id") == 1);
  CHECK(answer.header("x-request-id") == "req-1/\"x\"");
  REQUIRE(rig.up.generations().size() == 1);
  CHECK(rig.up.generations()[0].headers.count("x-request-id") == 1);
  CHECK(rig.up.generations()[0].headers.get("x-request-id") == "req-1/\"x\"");
  CHECK(wait_until([&] { return !lines_with(rig.tokid.log(), "id=req-1/\"x\" ").empty(); }));
  const Json told = get(rig.port(), "/toki/requests").json();
  CHECK(told["requests"][std::size_t{0}]["id"].str() == "req-1/\"x\"");
  // Errors and tokid's own pages have one, too.
  CHECK(request(rig.port(), "POST", kChat, "{", {{"X-Request-Id", "bad"}}).header("x-request-id") ==
        "bad");
  CHECK_FALSE(get(rig.port(), "/toki/stats").header("x-request-id").empty());
}

TEST_CASE("an id that is no plain word is replaced by one of ours, each another") {
  Rig rig;
  std::vector<std::string> made;
  for (const std::string& bad : {std::string(), std::string("two words"), std::string(129, 'x'),
                                 std::string("caf\xC3\xA9")}) {
    made.push_back(chat_as(rig, bad).header("x-request-id"));
    INFO(made.back());
    CHECK(made.back().size() == 16);
    CHECK(made.back().find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(rig.up.generations().back().headers.get("x-request-id") == made.back());
  }
  std::sort(made.begin(), made.end());
  CHECK(std::unique(made.begin(), made.end()) == made.end());
  CHECK(chat_as(rig, std::string(128, 'x')).header("x-request-id") == std::string(128, 'x'));
  RawClient client(rig.port());
  client.send_request("GET", "/toki/live", {}, {{"X-Request-Id", "a"}, {"X-Request-Id", "b"}});
  CHECK(client.read_response().header("x-request-id").size() == 16);
}

TEST_CASE("a backend that sends an id of its own does not double it") {
  Rig rig;
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    return request.path == "/any" && connection.respond(200, "{}", {{"X-Request-Id", "theirs"}});
  });
  const HttpResponse answer = get(rig.port(), "/any", {{"X-Request-Id", "ours"}});
  CHECK(answer.headers.count("x-request-id") == 1);
  CHECK(answer.header("x-request-id") == "ours");
}

TEST_CASE("no prompt, key or query is in the log, whatever happens to the request") {
  const std::string format = GENERATE(as<std::string>{}, "text", "json");
  const std::string marker = "zanzibar";
  const std::string key = "Bearer sk-quokka";
  Rig rig({}, {"--log-level", "debug", "--log-format", format});
  const Headers headers{{"Authorization", key}, {"X-Api-Key", "sk-quokka"}};
  const auto send = [&](const std::string& target, const std::string& body) {
    post_json(rig.port(), target + "?key=" + marker, body, headers);
  };
  const std::string chat = cc({S("system " + marker), M(marker + " <b>" + marker)});
  const auto all = [&] {
    for (const char* path : {kChat, "/v1/completions", "/completion", "/infill", "/v1/responses",
                             "/v1/messages", "/tokenize", "/toki/lookup", "/toki/pins"}) {
      send(path, chat);
      send(path, R"({"prompt":")" + marker + R"(","input":")" + marker + R"("})");
      send(path, R"({"text":")" + marker + " one two three\"}");
      send(path, "{\"" + marker + "\" x");
    }
  };
  all();
  RawClient raw(rig.port());
  raw.send(marker + " / HTTP/9.9\r\nAuthorization: " + key + "\r\n\r\n");
  raw.read_response();
  rig.up.configure([](Behaviour& b) { b.tokenize_status = b.template_status = 500; });
  all();
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    return connection.respond(500, R"({"error":{"message":")" + marker + R"(","type":"x"}})");
  }));
  all();
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.close();
    return true;
  }));
  all();
  rig.up.on_request({});
  rig.up.stop();
  all();
  get(rig.port(), "/toki/live");
  rig.up.start();
  REQUIRE(rig.tokid.wait_ready());
  const std::string log = rig.tokid.log();
  CHECK(occurrences(log, format == "json" ? "\"event\":\"request\"" : " request id=") > 100);
  CHECK(log.find(marker) == log.npos);
  CHECK(log.find("quokka") == log.npos);
}
