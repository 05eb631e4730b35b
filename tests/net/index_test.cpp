// What toki remembers of prompts, and tells: lookups, entries, volatile lines, restarts.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "net_test.hpp"

namespace {

using namespace toki::test;

Json lookup(const Rig& rig, const std::string& body, const std::string& path = "/toki/lookup") {
  const HttpResponse response = post_json(rig.port(), path, body);
  INFO(response.body);
  REQUIRE(response.status == 200);
  return response.json();
}

std::string header_of(const Answer& answer, const std::string& name) {
  return answer.http.header(name);
}

}  // namespace

TEST_CASE("a lookup says what would be reused, and runs nothing") {
  Rig rig;
  const std::string body = cc({S(W(300)), M("q1")});
  const Json before = lookup(rig, body);
  CHECK(before["class"].str() == "miss");
  CHECK(before["source"].str() == "none");
  CHECK(before["nearest"].is_null());
  const Answer first = rig.chat(body);
  const auto stats = rig.tokid.stats();
  const Json same = lookup(rig, body);
  CHECK(same["class"].str() == "hit");
  CHECK(same["source"].str() == "slot");
  CHECK(same["prompt_tokens"].integer() == first.prompt_tokens);
  CHECK(same["known_tokens"].integer() == first.prompt_tokens);
  CHECK(same["reused_tokens"].integer() == first.prompt_tokens - 1);
  CHECK(std::to_string(same["slot"].integer()) == first.slot);
  CHECK(same["waits"].dump() == "false");
  CHECK(same["nearest"]["common_tokens"].integer() == first.prompt_tokens);
  CHECK(same["nearest"]["parts_at_message"].is_null());
  CHECK(rig.up.generations().size() == 1);
  CHECK(rig.tokid.stats().at("requests_total") == stats.at("requests_total"));
  const Answer again = rig.chat(body);
  CHECK(again.cache_n == same["reused_tokens"].integer());
}

// B08
TEST_CASE("a lookup names the token and the message at which the prompt parts from the nearest") {
  Rig rig;
  const auto chat = [](const std::string& time, const std::string& last) {
    return cc({S(W(200) + " Now: " + time + " " + W(200)), M("q1"), R("a1"), M(last)});
  };
  const Answer first = rig.chat(chat("10:00:01", "q2"));
  const Json other_time = lookup(rig, chat("10:00:02", "q2"));
  CHECK(other_time["nearest"]["common_tokens"].integer() == 203);
  CHECK(other_time["nearest"]["parts_at_message"].integer() == 0);
  const Json other_end = lookup(rig, chat("10:00:01", "q3"));
  CHECK(other_end["nearest"]["parts_at_message"].integer() == 3);
  CHECK(other_end["nearest"]["tokens"].integer() == first.prompt_tokens);
  CHECK(other_end["known_tokens"].integer() == other_end["nearest"]["common_tokens"].integer());
  const Answer second = rig.chat(chat("10:00:02", "q2"));
  CHECK(header_of(second, "x-toki-known") == "203");
  CHECK(header_of(second, "x-toki-source") == "slot");
}

TEST_CASE("a lookup of other calls, and of what is none") {
  Rig rig;
  rig.post("/v1/completions", R"({"prompt":")" + W(60) + R"("})");
  CHECK(lookup(rig, R"({"prompt":")" + W(60) + R"("})")["class"].str() == "hit");
  CHECK(lookup(rig, R"({"prompt":")" + W(60) + R"("})", "/toki/lookup?path=/completion")["class"]
            .str() == "hit");
  CHECK(lookup(rig, R"({"input":"hello"})")["class"].str() == "miss");
  CHECK(lookup(rig, R"({"prompt":["a","b"]})")["reason"].str() == "several_answers");
  check_error(post_json(rig.port(), "/toki/lookup", R"({"model":"m"})"), 400,
              "invalid_request_error");
  check_error(post_json(rig.port(), "/toki/lookup", "{"), 400, "invalid_request_error");
  check_error(post_json(rig.port(), "/toki/lookup?path=/x", R"({"prompt":"a"})"), 400,
              "invalid_request_error");
  check_error(get(rig.port(), "/toki/lookup"), 405, "invalid_request_error");
  rig.up.configure([](Behaviour& b) { b.tokenize_status = 500; });
  const Json unknown = lookup(rig, cc({M("something new")}));
  CHECK(unknown["class"].str() == "bypass");
  CHECK(unknown["reason"].str() == "tokenize_failed");
  CHECK_FALSE(unknown["error"].str().empty());
}

TEST_CASE("a lookup says of a prompt that is not looked at what a request would say") {
  Rig rig;
  const std::string large = cc({M(std::string(9 << 20, 'x'))});
  CHECK(lookup(rig, large)["reason"].str() == "too_large");
  CHECK(rig.up.requests_to("POST", "/apply-template").empty());
  CHECK(rig.chat(large).reason == "too_large");
  CHECK(
      lookup(rig, R"({"prompt":"a"})", "/toki/lookup?x=1&path=%2Fcompletion&y=2")["class"].str() ==
      "miss");
}

TEST_CASE("a lookup ends with its client, and only some run at once") {
  Rig rig;
  std::atomic<int> under_way{0};
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != "/apply-template") return false;
    ++under_way;
    connection.wait_peer_gone(milliseconds(20000));
    return true;
  });
  {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<RawClient>(rig.port()));
      clients.back()->send_json("/toki/lookup", cc({M("q")}));
    }
    REQUIRE(wait_until([&] { return under_way == 8; }));
    check_error(post_json(rig.port(), "/toki/lookup", cc({M("q")})), 429, "rate_limit_error");
  }
  CHECK(rig.tokid.wait_stat("connections", 1));
  rig.up.on_request({});
  CHECK(lookup(rig, cc({M("q")}))["class"].str() == "miss");
}

TEST_CASE("the entries page lists what is remembered, without its text") {
  Rig rig({}, {"--max-prompts", "2"});
  for (const char* prompt : {"alpha", "beta", "gamma"}) {
    rig.chat(cc({M(words(prompt, 40))}));
  }
  const HttpResponse page = get(rig.port(), "/toki/entries");
  CHECK(page.status == 200);
  const Json entries = page.json();
  CHECK(entries["total"].integer() == 2);
  REQUIRE(entries["entries"].items().size() == 2);
  CHECK(entries["entries"][0]["id"].integer() > entries["entries"][1]["id"].integer());
  CHECK(entries["entries"][0]["tokens"].integer() == 45);
  CHECK(entries["entries"][0]["embedding"].str() == "hash");
  CHECK(entries["entries"][0]["last_used_ms"].integer() > 1700000000000);
  CHECK(page.body.find("alpha") == std::string::npos);
}

// B01
TEST_CASE("a volatile first line of the system prompt is dropped where the user says so") {
  const auto body = [](const std::string& cch, const std::string& user) {
    return R"({"model":"m","max_tokens":8,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1.0; cch=)" +
           cch + R"(;"},{"type":"text","text":")" + W(2000) +
           R"("}],"messages":[{"role":"user","content":")" + user + R"("}]})";
  };
  const auto last_prompt = [](Rig& rig) { return rig.up.generations().back(); };
  SECTION("on: the next request reuses what the last one computed") {
    Rig rig({}, {"--drop-volatile-line", "x-anthropic-billing-header:"});
    rig.post("/v1/messages", body("aaaaa", "q1"));
    const auto first = last_prompt(rig);
    rig.post("/v1/messages", body("bbbbb", "q1"));
    CHECK(last_prompt(rig).cache_n >= static_cast<int>(first.prompt.size() * 95 / 100));
    CHECK(rig.tokid.stat("volatile_lines_dropped_total") == 2);
    CHECK(last_prompt(rig).body().find("bbbbb") == std::string::npos);
    const std::string sent =
        R"({"model":"m","system":")" + W(50) +
        R"(","messages":[{"role":"user","content":"x-anthropic-billing-header: 1"}]})";
    rig.post("/v1/messages", sent);
    CHECK(last_prompt(rig).body() == sent);
    CHECK(rig.tokid.stat("volatile_lines_dropped_total") == 2);
  }
  SECTION("on, for a chat") {
    Rig rig({}, {"--drop-volatile-line", "x-anthropic-billing-header:"});
    const auto chat = [](const std::string& cch) {
      return cc({{"system", quote("x-anthropic-billing-header: " + cch + "\n" + W(500))}, M("q")});
    };
    const Answer first = rig.chat(chat("aaaaa"));
    CHECK(lookup(rig, chat("ccccc"))["known_tokens"].integer() == first.prompt_tokens);
    const Answer second = rig.chat(chat("bbbbb"));
    CHECK(second.cache_n == first.prompt_tokens - 1);
  }
  SECTION("off: the body is untouched") {
    Rig rig;
    rig.post("/v1/messages", body("aaaaa", "q1"));
    CHECK(last_prompt(rig).body() == body("aaaaa", "q1"));
    CHECK(rig.tokid.stat("volatile_lines_dropped_total") == 0);
  }
}

// B71
TEST_CASE("a salt in the body does not choose what is shared") {
  Rig rig;
  const Answer plain = rig.chat(cc({S(W(300)), M("q")}));
  const Answer salted = rig.chat(cc({S(W(300)), M("q")}, R"(,"cache_salt":"K1")"));
  CHECK(salted.cache_n == plain.prompt_tokens - 1);  // one space, whatever the client says
}

TEST_CASE("what was known is known again after a restart of toki") {
  TemporaryDirectory data;
  ScriptedUpstream up;
  const std::string body = cc({S(W(300)), M("q1")});
  int tokens = 0;
  {
    Tokid tokid(up.url(), {"--data-dir", data.path()});
    REQUIRE(tokid.wait_ready());
    const Answer answer = as_answer(post_json(tokid.port(), kChat, body));
    tokens = answer.prompt_tokens;
    as_answer(post_json(tokid.port(), kChat, cc({M(words("other", 50))})));
    as_answer(post_json(tokid.port(), kChat, body));
    tokid.process().signal(SIGTERM);
    CHECK(tokid.process().wait_exit() == 0);
  }
  Tokid tokid(up.url(), {"--data-dir", data.path()});
  REQUIRE(tokid.wait_ready());
  CHECK(tokid.wait_stat("index_loaded", 2));
  CHECK(tokid.wait_stat("prompts_known", 2));
  const Json entries = get(tokid.port(), "/toki/entries").json();
  bool there = false;
  for (const auto& entry : entries["entries"].items()) {
    there = there || (entry["tokens"].integer() == tokens && entry["use"].dump().starts_with("2"));
  }
  CHECK(there);
  const Json found = post_json(tokid.port(), "/toki/lookup", body).json();
  CHECK(found["known_tokens"].integer() == tokens);
  CHECK(found["nearest"]["common_tokens"].integer() == tokens);
  CHECK(std::filesystem::status(data.path() + "/index.db").permissions() ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("an index file that is none is set aside, and nobody's request fails") {
  TemporaryDirectory data;
  std::ofstream(data.path() + "/index.db") << "this is no database, but it is somebody's file";
  ScriptedUpstream up;
  Tokid tokid(up.url(), {"--data-dir", data.path()});
  REQUIRE(tokid.wait_ready());
  const Answer answer = as_answer(post_json(tokid.port(), kChat, cc({M("q")})));
  CHECK(answer.status == 200);
  CHECK(tokid.wait_stat("index_set_aside_total", 1));
  CHECK(tokid.wait_stat("index_open", 1));
}

namespace {

// A tree with room for so few tokens that it has forgotten the first prompt: what is known of it is
// found by similarity only.
const std::vector<std::string> kSmallTree = {"--tree-mib", "1"};

std::string long_prompt(const std::string& words_of, const std::string& end) {
  return cc({M(words(words_of, 30000) + " " + end)});
}

void fill_tree(const Rig& rig) {
  for (int i = 0; i < 7; ++i) {
    rig.chat(long_prompt("p" + std::to_string(i) + "x", "q"));
  }
}

}  // namespace

TEST_CASE("a prompt that the tree has forgotten is found by similarity, and told as such") {
  Rig rig({}, kSmallTree);
  fill_tree(rig);
  const Answer again = rig.chat(long_prompt("p0x", "another end"));
  CHECK(header_of(again, "x-toki-source") == "similar");
  CHECK(std::stoi(header_of(again, "x-toki-known")) > 20000);
  CHECK(rig.tokid.stat("similar_searches_total") >= 1);
  CHECK(rig.tokid.stat("similar_gained_tokens_total") > 20000);
  CHECK(rig.tokid.stat("embeddings_total") == 0);
}

TEST_CASE("an embedding that is late is not waited for, and one that fails is replaced") {
  Behaviour slow;
  slow.embed_batch = 512;
  ScriptedUpstream embedder(slow);
  const bool hurry = GENERATE(false, true);  // else the limit is never met
  std::vector<std::string> options = kSmallTree;
  options.insert(options.end(),
                 {"--embed-backend", embedder.url(), "--embed-limit-ms", hurry ? "200" : "60000"});
  Rig rig({}, options);
  fill_tree(rig);
  CHECK(rig.tokid.wait_stat("embeddings_total", 7));  // of what is remembered
  if (hurry) {                                        // late: no search
    embedder.on_request([](const LoggedRequest& request, Connection& connection) {
      return request.path == "/v1/embeddings" && !connection.wait_peer_gone(milliseconds(20000));
    });
    const double before = rig.tokid.stat("embeddings_late_total");
    const auto begun = Clock::now();
    const Answer again = rig.chat(long_prompt("p0x", "another end"));
    CHECK(again.status == 200);
    CHECK(Clock::now() - begun < milliseconds(15000));
    CHECK(rig.tokid.stat("embeddings_late_total") == before + 1);
    CHECK(header_of(again, "x-toki-source") != "similar");
    return;
  }
  SECTION("in time: it nominates") {
    const Answer again = rig.chat(long_prompt("p0x", "another end"));
    CHECK(again.status == 200);
    CHECK(rig.tokid.stat("embeddings_total") >= 8);
    CHECK(rig.tokid.stat("embeddings_late_total") == 0);
  }
  SECTION("nonsense: an embedding larger than any is none") {
    embedder.on_request([](const LoggedRequest& request, Connection& connection) {
      if (request.path != "/v1/embeddings") return false;
      std::string values = "0.5";
      for (int i = 0; i < 70000; ++i) values += ",0.5";
      return connection.respond(200, R"({"data":[{"index":0,"embedding":[)" + values + "]}]}");
    });
    CHECK(rig.chat(cc({M("short")})).status == 200);
    CHECK(rig.tokid.wait_stat("embeddings_failed_total", 1));
    CHECK(rig.chat(cc({M("short")})).status == 200);
  }
  SECTION("failed: the token ids make one") {
    embedder.stop();
    const Answer again = rig.chat(long_prompt("p0x", "another end"));
    CHECK(again.status == 200);
    CHECK(rig.tokid.stat("embeddings_failed_total") >= 1);
    CHECK(header_of(again, "x-toki-source") == "similar");
  }
}
