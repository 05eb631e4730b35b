// The dashboard and the pages behind it: what they tell, and that no prompt text is in them.
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "net_test.hpp"

namespace {

using namespace toki::test;

Json page(const Rig& rig, const std::string& path) {
  const HttpResponse response = get(rig.port(), path);
  INFO(path << ": " << response.body);
  REQUIRE(response.status == 200);
  return response.json();
}

std::string id_of(const Json& prompt) {
  return std::to_string(prompt["id"].integer());
}

HttpResponse pin(const Rig& rig, const std::string& body) {
  return post_json(rig.port(), "/toki/pins", body);
}

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("the dashboard is one page whose policy lets nothing in from elsewhere") {
  Rig rig;
  const HttpResponse answer = get(rig.port(), "/toki/");
  CHECK(answer.status == 200);
  CHECK(answer.header("content-type") == "text/html; charset=utf-8");
  CHECK(answer.header("x-content-type-options") == "nosniff");
  CHECK(answer.header("referrer-policy") == "no-referrer");
  const std::string policy = answer.header("content-security-policy");
  INFO(policy);
  CHECK(policy.rfind("default-src 'none'; script-src 'sha256-", 0) == 0);
  CHECK(policy.find("style-src 'sha256-") != policy.npos);
  CHECK(policy.find("connect-src 'self'") != policy.npos);
  CHECK(policy.find("frame-ancestors 'none'") != policy.npos);
  CHECK(policy.find("unsafe") == policy.npos);
  CHECK(answer.body == file(TOKI_SOURCE_DIR "/tokid/dashboard.html"));
  for (const char* unsafe : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "src=\"http", "url(http"}) {
    INFO(unsafe);
    CHECK(answer.body.find(unsafe) == answer.body.npos);
  }
  CHECK(request(rig.port(), "HEAD", "/toki/").status == 200);
  const HttpResponse moved = get(rig.port(), "/toki");
  CHECK(moved.status == 308);
  CHECK(moved.header("location") == "toki/");
  check_error(post_json(rig.port(), "/toki/", "{}"), 405, "invalid_request_error");
  for (const LoggedRequest& sent : rig.up.requests()) {  // but for the looks at its health
    INFO(sent.target);
    CHECK((sent.path == "/health" || sent.path == "/props"));
  }
}

TEST_CASE("recent requests are told with figures only, the newest first") {
  Rig rig;
  CHECK(page(rig, "/toki/requests").dump() == R"({"last":0,"requests":[]})");
  const std::string system = W(200);
  rig.chat(cc({S(system), M("secret one")}));
  rig.chat(cc({S(system), M("other " + words("o", 30))}));
  rig.post("/v1/completions", R"({"prompt":"secret two"})");
  CHECK(rig.chat("{").status == 400);
  get(rig.port(), "/v1/models");  // needs no slot
  const HttpResponse raw = get(rig.port(), "/toki/requests");
  CHECK(raw.body.find("secret") == raw.body.npos);
  CHECK(raw.body.find("w7 ") == raw.body.npos);
  const Json told = raw.json();
  CHECK(told["last"].integer() == 4);
  REQUIRE(told["requests"].items().size() == 4);
  const Json& refused = told["requests"][std::size_t{0}];
  CHECK(refused["number"].integer() == 4);
  CHECK(refused["status"].integer() == 400);
  CHECK(refused["ending"].str() == "refused");
  CHECK(refused["class"].is_null());
  CHECK_FALSE(refused["error"].str().empty());
  CHECK(told["requests"][1]["endpoint"].str() == "/v1/completions");
  const Json& second = told["requests"][2];
  CHECK(second["endpoint"].str() == "/v1/chat/completions");
  CHECK(second["class"].str() == "hit");
  CHECK(second["source"].str() == "slot");
  CHECK(second["reason"].str() == "slot_prefix");
  CHECK(second["prompt_tokens"].integer() > second["known_tokens"].integer());
  CHECK(second["known_tokens"].integer() >= 200);  // the token at which it parts from the first
  CHECK(second["reused_tokens"].integer() == second["known_tokens"].integer());
  CHECK(second["total_ms"].num() >= second["first_byte_ms"].num());
  CHECK(second["ended_ms"].integer() > 1600000000000);
  CHECK(told["requests"][3]["class"].str() == "miss");
  const Json newer = page(rig, "/toki/requests?after=3");
  REQUIRE(newer["requests"].items().size() == 1);
  CHECK(newer["requests"][std::size_t{0}]["number"].integer() == 4);
  CHECK(page(rig, "/toki/requests?after=4")["requests"].items().empty());
  CHECK(page(rig, "/toki/requests?after=999")["last"].integer() == 4);
  for (const char* query : {"?after=", "?after=x", "?after=-1", "?limit=3"}) {
    INFO(query);
    check_error(get(rig.port(), std::string("/toki/requests") + query), 400,
                "invalid_request_error");
  }
}

TEST_CASE("only the last 256 requests are kept") {
  Rig rig;
  for (int i = 0; i < 260; ++i) {
    REQUIRE(rig.chat("[]").status == 400);
  }
  const Json told = page(rig, "/toki/requests");
  CHECK(told["last"].integer() == 260);
  REQUIRE(told["requests"].items().size() == 256);
  CHECK(told["requests"][std::size_t{0}]["number"].integer() == 260);
  CHECK(told["requests"][255]["number"].integer() == 5);
}

TEST_CASE("the tree tells how many leading tokens prompts share, and nothing else of them") {
  Rig rig;
  CHECK(page(rig, "/toki/tree").dump() == R"({"total":0,"prompts":[]})");
  const std::string system = W(200);
  const Answer a = rig.chat(cc({S(system), M(words("a", 40))}));
  const Answer b = rig.chat(cc({S(system), M(words("b", 20))}));
  const Answer c = rig.chat(cc({S(words("c", 70)), M("q")}));
  const HttpResponse raw = get(rig.port(), "/toki/tree");
  CHECK(raw.body.find("w7") == raw.body.npos);
  const Json tree = raw.json();
  CHECK(tree["total"].integer() == 3);
  REQUIRE(tree["prompts"].items().size() == 3);
  std::multiset<std::int64_t> lengths, commons;
  for (const Json& prompt : tree["prompts"].items()) {
    CHECK(prompt["id"].integer() > 0);
    CHECK(prompt["use"].num() == Approx(1));
    CHECK(prompt["stored_tokens"].integer() == 0);
    lengths.insert(prompt["tokens"].integer());
    commons.insert(prompt["common"].integer());
  }
  CHECK(lengths == std::multiset<std::int64_t>{a.prompt_tokens, b.prompt_tokens, c.prompt_tokens});
  CHECK(*commons.begin() == 0);
  CHECK(*commons.rbegin() >= 200);
  CHECK(*commons.rbegin() < b.prompt_tokens);
}

TEST_CASE("the overview is what the pages of its parts tell, in one answer") {
  Rig rig;
  rig.chat(cc({S(W(100)), M("one")}));
  rig.chat(cc({S(W(100)), M("two and more")}));
  const Json all = page(rig, "/toki/overview");
  CHECK(all["now_ms"].integer() > 1600000000000);
  CHECK(all["health"] == page(rig, "/toki/health"));
  CHECK(all["stats"]["requests_total"].integer() == 2);
  CHECK(all["pins"] == page(rig, "/toki/pins"));
  CHECK(all["tree"] == page(rig, "/toki/tree"));
  CHECK(all["requests"] == page(rig, "/toki/requests"));
  CHECK(all["slots"]["slots"].items().size() == page(rig, "/toki/slots")["slots"].items().size());
  CHECK(page(rig, "/toki/overview?after=1")["requests"]["requests"].items().size() == 1);
  check_error(get(rig.port(), "/toki/overview?after=x"), 400, "invalid_request_error");
  check_error(post_json(rig.port(), "/toki/overview", "{}"), 405, "invalid_request_error");
}

TEST_CASE("a slot tells which remembered prompt it holds, and how long ago it was used") {
  Rig rig;
  const Json slots = page(rig, "/toki/slots")["slots"];
  for (const Json& slot : slots.items()) {
    CHECK(slot["prompt"].is_null());
    CHECK(slot["prompt_tokens"].integer() == 0);
  }
  const auto asked = Clock::now();
  const Answer answer = rig.chat(cc({S(W(100)), M("one")}));
  const auto used = [&] { return page(rig, "/toki/slots")["slots"][std::stoul(answer.slot)]; };
  const Json slot = used();
  CHECK(slot["prompt"].integer() ==
        page(rig, "/toki/tree")["prompts"][std::size_t{0}]["id"].integer());
  CHECK(slot["prompt_tokens"].integer() == answer.prompt_tokens);
  REQUIRE(slot["used_ms_ago"].is_integer());
  const std::int64_t ago = slot["used_ms_ago"].integer();
  CHECK(static_cast<double>(ago) <= ms_between(asked, Clock::now()));
  CHECK(wait_until([&] { return used()["used_ms_ago"].integer() > ago; }));
}

TEST_CASE("a beginning of a remembered prompt is pinned by its id and length") {
  Rig rig;
  const std::string system = W(200);
  const Answer first = rig.chat(cc({S(system), M(words("a", 40))}));
  rig.chat(cc({S(system), M(words("b", 20))}));
  const Json prompts = page(rig, "/toki/tree")["prompts"];
  const Json second = prompts[1];
  const std::string length = std::to_string(second["common"].integer());
  const HttpResponse made =
      pin(rig, R"({"prompt":)" + id_of(second) + R"(,"length":)" + length + "}");
  INFO(made.body);
  REQUIRE(made.status == 200);
  CHECK(made.json()["tokens"].integer() == second["common"].integer());
  CHECK(made.json()["by_hand"].boolean());
  REQUIRE(rig.tokid.wait_stat("pins_held", 1));
  const Json listed = page(rig, "/toki/pins")["pins"][std::size_t{0}];
  const std::set<std::int64_t> both{prompts[std::size_t{0}]["id"].integer(),
                                    second["id"].integer()};
  CHECK(both.count(listed["prompt"].integer()) == 1);
  const Answer next = rig.chat(cc({S(system), M(words("c", 10))}));
  CHECK(next.slot == std::to_string(listed["slot"].integer()));
  CHECK(next.cache_n >= second["common"].integer());
  // The same tokens are the same pin, and without a length it is all of the prompt.
  CHECK(pin(rig, R"({"length":)" + length + R"(,"prompt":)" + id_of(second) + "}").json()["id"] ==
        made.json()["id"]);
  CHECK(request(rig.port(), "DELETE", "/toki/pins").status == 200);
  const HttpResponse whole = pin(rig, R"({"prompt":)" + id_of(second) + "}");
  CHECK(whole.json()["tokens"].integer() == second["tokens"].integer());
  CHECK(first.prompt_tokens > 240);
}

TEST_CASE("what is no beginning of a remembered prompt of this model is not pinned") {
  Rig rig;
  rig.chat(cc({S(W(50)), M("a")}));
  const std::string id = id_of(page(rig, "/toki/tree")["prompts"][std::size_t{0}]);
  check_error(pin(rig, R"({"prompt":1})"), 404, "invalid_request_error");
  for (const char* rest : {R"(,"length":9999})", R"(,"length":0})", R"(,"length":-5})",
                           R"(,"length":"5"})", R"(,"tokens":[1]})"}) {
    INFO(rest);
    check_error(pin(rig, R"({"prompt":)" + id + rest), 400, "invalid_request_error");
  }
  check_error(pin(rig, R"({"prompt":"x"})"), 400, "invalid_request_error");
  check_error(pin(rig, R"({"prompt":-1})"), 400, "invalid_request_error");
  rig.chat(cc({S(words("adapted", 50)), M("a")}, R"(,"lora":[{"id":0,"scale":1}])"));
  const Json prompts = page(rig, "/toki/tree")["prompts"];
  REQUIRE(prompts.items().size() == 2);
  const std::string adapted =
      id_of(prompts[id_of(prompts[std::size_t{0}]) == id ? std::size_t{1} : std::size_t{0}]);
  check_error(pin(rig, R"({"prompt":)" + adapted + "}"), 400, "invalid_request_error");
  CHECK(page(rig, "/toki/pins")["pins"].items().empty());
}

TEST_CASE("every metric that the Grafana dashboard names is in /metrics") {
  Rig rig;
  const std::string text = file(TOKI_SOURCE_DIR "/docs/grafana.json");
  const auto board = Json::parse(text);
  REQUIRE(board);
  CHECK_FALSE((*board)["panels"].items().empty());
  std::set<std::string> told;
  std::istringstream lines(get(rig.port(), "/metrics").body);
  for (std::string name; lines >> name; lines.ignore(4096, '\n')) {
    told.insert(name);
  }
  std::set<std::string> named;
  const std::string letters = "abcdefghijklmnopqrstuvwxyz_0123456789";
  for (const Json& panel : (*board)["panels"].items()) {
    for (const Json& target : panel["targets"].items()) {
      const std::string query = target["expr"].str();
      for (auto at = query.find("toki_"); at != query.npos; at = query.find("toki_", at + 1)) {
        named.insert(query.substr(at, query.find_first_not_of(letters, at) - at));
      }
    }
  }
  CHECK(named.size() > 20);
  for (const std::string& name : named) {
    INFO(name);
    CHECK(told.count(name) == 1);
  }
}
