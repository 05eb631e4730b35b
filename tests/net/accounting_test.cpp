// What tokid counts and says: once per request, from what the upstream reported, and nothing that
// is private.
#include <map>
#include <set>
#include <sstream>

#include "net_test.hpp"

namespace {

using namespace toki::test;

const std::vector<std::string> kCounters = {"requests_total",
                                            "unauthorized_total",
                                            "forbidden_total",
                                            "tenant_limited_total",
                                            "requests_completed",
                                            "requests_failed",
                                            "requests_cancelled",
                                            "requests_refused",
                                            "class_hit",
                                            "class_soft_hit",
                                            "class_miss",
                                            "class_bypass",
                                            "class_unreported",
                                            "prompt_tokens_total",
                                            "available_tokens_total",
                                            "predicted_tokens_total",
                                            "reused_tokens_total",
                                            "computed_tokens_total",
                                            "saved_ms_total",
                                            "tokenization_mismatch_total",
                                            "integrity_faults_total",
                                            "upstream_restarts_total",
                                            "queue_full_total",
                                            "queue_timeouts_total",
                                            "slot_waits_total",
                                            "progress_timeouts_total",
                                            "passthrough_total",
                                            "source_slot",
                                            "source_tree",
                                            "source_similar",
                                            "source_disk",
                                            "source_copy",
                                            "source_none",
                                            "saves_total",
                                            "save_failures_total",
                                            "restores_total",
                                            "restore_failures_total",
                                            "restored_tokens_total",
                                            "copies_total",
                                            "leads_total",
                                            "coalesced_total",
                                            "kv_evicted_total",
                                            "kv_quarantined_total",
                                            "kv_failed_total",
                                            "named_dropped_total",
                                            "similar_searches_total",
                                            "similar_gained_tokens_total",
                                            "embeddings_total",
                                            "embeddings_late_total",
                                            "embeddings_failed_total",
                                            "embeddings_dropped_total",
                                            "token_cache_whole_total",
                                            "token_cache_part_total",
                                            "token_cache_tokens_total",
                                            "volatile_lines_dropped_total",
                                            "index_written_total",
                                            "index_dropped_total",
                                            "index_set_aside_total",
                                            "audits_total",
                                            "audit_identical_total",
                                            "audit_whitespace_total",
                                            "audit_noise_total",
                                            "audit_substantive_total",
                                            "audits_dropped_total",
                                            "recorded_total"};
const std::vector<std::string> kGauges = {"slots_total",
                                          "slots_busy",
                                          "slots_fenced",
                                          "queue_length",
                                          "tree_blocks",
                                          "tree_bytes",
                                          "prefill_ms_per_token",
                                          "connections",
                                          "backend_ready",
                                          "pinning",
                                          "own_cache",
                                          "backend_cache_mib",
                                          "pins_by_hand",
                                          "pins_hot",
                                          "pins_held",
                                          "recording",
                                          "kv_snapshots",
                                          "kv_sharing_ratio",
                                          "prompts_known",
                                          "prompt_bytes",
                                          "token_cache_bytes",
                                          "token_cache_off",
                                          "index_open",
                                          "index_loaded",
                                          "index_queued",
                                          "index_bytes",
                                          "index_log_bytes",
                                          "can_save",
                                          "can_cut",
                                          "can_rewind",
                                          "kv_segments",
                                          "kv_bytes",
                                          "kv_tokens",
                                          "kv_prompt_tokens",
                                          "kv_writable",
                                          "named_states",
                                          "named_limit",
                                          "named_tokens",
                                          "kv_limit_bytes"};

// Samples of a Prometheus text page; REQUIREs that every line makes sense.
std::map<std::string, double> samples(const std::string& page,
                                      std::map<std::string, std::string>& types) {
  std::map<std::string, double> out;
  std::istringstream lines(page);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    INFO(line);
    std::istringstream words(line);
    std::string first, second, third, fourth;
    words >> first >> second >> third >> fourth;
    if (first == "#") {
      REQUIRE((second == "HELP" || second == "TYPE"));
      if (second == "TYPE") types[third] = fourth;
      continue;
    }
    REQUIRE(third.empty());
    std::size_t used = 0;
    out[first.substr(0, first.find('{'))] = std::stod(second, &used);
    REQUIRE(used == second.size());
  }
  return out;
}

}  // namespace

// B21
TEST_CASE("each request is counted once, by what was delivered") {
  Behaviour behaviour;
  behaviour.slots = 1;
  behaviour.answer_delay = milliseconds(30000);
  behaviour.cache_n = 0;
  Rig rig(behaviour, {"--slot-wait-ms", "50"});
  RawClient occupant(rig.port());
  occupant.send_json(kChat, cc({M("occupant")}));
  REQUIRE(rig.up.wait_generations(1));
  Background waiter(rig.port(), kChat, cc({M(W(50))}));
  REQUIRE(rig.tokid.wait_stat("queue_length", 1));
  // Whoever comes or leaves, the queue is looked through.
  constexpr int kLeft = 3;
  for (int i = 0; i < kLeft; ++i) {
    RawClient leaves(rig.port());
    leaves.send_json(kChat, cc({M("leaves")}));
    REQUIRE(rig.tokid.wait_stat("queue_length", 2));
    leaves.close();
    REQUIRE(rig.tokid.wait_stat("queue_length", 1));
  }
  rig.up.configure([](Behaviour& b) { b.answer_delay = milliseconds(0); });
  occupant.close();
  CHECK(waiter.join().status == 200);
  rig.up.on_request(on_generation([](const LoggedRequest&, Connection& connection) {
    connection.respond(500, R"({"error":{"code":500,"message":"no","type":"server_error"}})");
    return true;
  }));
  CHECK(rig.chat(cc({M(W(50))})).status == 500);
  REQUIRE(rig.tokid.wait_stat("requests_total", 3 + kLeft));
  const auto stats = rig.tokid.stats();
  CHECK(stats.at("requests_completed") == 1);
  CHECK(stats.at("requests_failed") == 1);
  CHECK(stats.at("requests_cancelled") == 1 + kLeft);
  CHECK(stats.at("class_hit") == 0);
  CHECK(stats.at("class_soft_hit") == 0);
  CHECK(stats.at("class_miss") == 1);
  CHECK(stats.at("reused_tokens_total") == 0);
  CHECK(stats.at("computed_tokens_total") == 55);
}

TEST_CASE("tokens available, predicted, reused and computed are told apart") {
  Rig rig;
  double reused = 0;
  double computed = 0;
  double prompt = 0;
  double predicted = 0;
  const std::vector<std::string> bodies = {
      cc({S(W(300)), M("q1")}), cc({S(W(300)), M("q1"), R("ok"), M("q2")}), cc({M("short")}),
      cc({S(W(300)), M("q1"), R("ok"), M("q2"), R("ok"), M("q3")})};
  for (const auto& body : bodies) {
    const Answer answer = rig.chat(body);
    REQUIRE(answer.status == 200);
    reused += answer.cache_n;
    computed += answer.prompt_n;
    prompt += answer.prompt_tokens;
    predicted += answer.reused;
    CHECK(answer.cache == (answer.reused >= 10 ? "hit" : answer.reused > 0 ? "soft_hit" : "miss"));
  }
  const auto stats = rig.tokid.stats();
  CHECK(stats.at("reused_tokens_total") == reused);
  CHECK(stats.at("computed_tokens_total") == computed);
  CHECK(stats.at("prompt_tokens_total") == prompt);
  CHECK(stats.at("predicted_tokens_total") == predicted);
  CHECK(stats.at("available_tokens_total") >= predicted);
  CHECK(stats.at("class_hit") == 2);
  CHECK(stats.at("class_hit") + stats.at("class_soft_hit") + stats.at("class_miss") == 4);
  CHECK(stats.at("saved_ms_total") > 0);
  CHECK(stats.at("prefill_ms_per_token") > 0);
  CHECK(stats.at("tree_blocks") > 0);
  CHECK(stats.at("tree_bytes") > 0);
}

TEST_CASE("what counts as a hit is an option, and few tokens are a soft hit") {
  Rig rig({}, {"--min-reuse-for-hit", "200"});
  rig.chat(cc({M(W(100))}));
  CHECK(rig.chat(cc({M(W(100)), R("ok"), M("q")})).cache == "soft_hit");
  CHECK(rig.tokid.stat("class_soft_hit") == 1);
  CHECK(rig.tokid.stat("class_hit") == 0);
}

TEST_CASE("an answer without numbers is counted as unreported") {
  Rig rig;
  rig.up.on_request(on_generation([](const LoggedRequest&, Connection& connection) {
    connection.respond(200, R"({"choices":[]})");
    return true;
  }));
  CHECK(rig.chat(cc({M(W(50))})).status == 200);
  CHECK(rig.tokid.stat("class_unreported") == 1);
  CHECK(rig.tokid.stat("requests_completed") == 1);
}

// B25
TEST_CASE(
    "reuse that no known prefix explains is an integrity fault, and its slot is not trusted") {
  Rig rig;
  CHECK(rig.chat(cc({M(W(800))})).status == 200);
  rig.up.configure([](Behaviour& b) { b.cache_n = 500; });
  const std::string body = cc({M("zzz one two")});
  const Answer answer = rig.chat(body);
  CHECK(answer.status == 200);
  REQUIRE(rig.tokid.wait_stat("integrity_faults_total", 1));
  rig.up.configure([](Behaviour& b) { b.cache_n.reset(); });
  const int slot = rig.up.generations().at(1).slot;
  const Answer again = rig.chat(body);
  CHECK(again.status == 200);
  CHECK(again.reused == 0);
  // Before the slot is used again it is erased, or it is not used.
  bool erased = false;
  bool used_warm = false;
  std::size_t generations = 0;
  for (const auto& request : rig.up.requests()) {
    if (request.path == slot_action_path(slot) && request.query == "action=erase") erased = true;
    if (request.method != "POST" || !is_generation_path(request.path)) continue;
    if (++generations > 2 && request.slot == slot && !erased) used_warm = true;
  }
  CHECK_FALSE(used_warm);
  CHECK((erased || rig.tokid.stat("slots_fenced") == 1));
  CHECK(rig.tokid.stat("integrity_faults_total") == 1);
  CHECK(rig.tokid.log().find("zzz") == std::string::npos);
}

// B31
TEST_CASE("the tokens counted are the tokens evaluated, whoever adds the start token") {
  Behaviour behaviour;
  behaviour.template_has_start = GENERATE(false, true);
  Rig rig(behaviour);
  const std::string body = cc({M("hi"), R("there"), M(W(30))});
  const Answer first = rig.chat(body);
  CHECK(first.status == 200);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  const Answer again = rig.chat(body);
  CHECK(again.reused == first.prompt_tokens - 1);
  CHECK(again.cache_n == first.prompt_tokens - 1);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
}

// B31
TEST_CASE("a prompt whose reported length differs is counted and not stored") {
  Rig rig;
  CHECK(rig.chat(cc({M(words("a", 50))})).status == 200);
  const double blocks = rig.tokid.stat("tree_blocks");
  rig.up.configure([](Behaviour& b) { b.usage_offset = 1; });
  CHECK(rig.chat(cc({M(words("b", 200))})).status == 200);
  CHECK(rig.tokid.wait_stat("tokenization_mismatch_total", 1));
  CHECK(rig.tokid.stat("tree_blocks") <= blocks);
  rig.up.configure([](Behaviour& b) { b.usage_offset = 0; });
  CHECK(rig.chat(cc({M(words("b", 200))})).reused <= 1);
}

TEST_CASE("every statistic is in the JSON and, with its type, in the metrics") {
  Rig rig;
  rig.chat(cc({M(W(50))}));
  rig.chat(cc({M(W(50))}));
  REQUIRE(post_json(rig.port(), "/toki/flush", "").json()["index"].dump() == "true");
  const HttpResponse response = get(rig.port(), "/toki/stats");
  CHECK(response.status == 200);
  CHECK(response.header("content-type").rfind("application/json", 0) == 0);
  const auto stats = rig.tokid.stats();
  std::set<std::string> known;
  known.insert(kCounters.begin(), kCounters.end());
  known.insert(kGauges.begin(), kGauges.end());
  for (const auto& name : known) {
    INFO(name);
    CHECK(stats.count(name) == 1);
    CHECK(response.json().count(name) == 1);
  }
  CHECK(stats.size() == known.size());
  CHECK(stats.at("slots_total") == 2);
  CHECK(stats.at("backend_ready") == 1);
  CHECK(stats.at("pinning") == 1);
  CHECK(stats.at("own_cache") == 1);  // nothing spoke against it yet

  const HttpResponse page = get(rig.port(), "/metrics");
  CHECK(page.status == 200);
  CHECK(page.header("content-type").rfind("text/plain", 0) == 0);
  std::map<std::string, std::string> types;
  const auto metrics = samples(page.body, types);
  for (const auto& name : kCounters) {
    INFO(name);
    REQUIRE(metrics.count("toki_" + name) == 1);
    CHECK(metrics.at("toki_" + name) == Approx(stats.at(name)));
    CHECK(types["toki_" + name] == "counter");
  }
  for (const auto& name : kGauges) {
    INFO(name);
    REQUIRE(metrics.count("toki_" + name) == 1);
    CHECK(types["toki_" + name] == "gauge");
  }
  // Nothing is in the JSON alone.
  for (const auto& [name, value] : stats) CHECK(metrics.count("toki_" + name) == 1);
}

TEST_CASE("the slots page shows every slot's state") {
  Rig rig;
  for (const auto& slot : rig.tokid.slots()) {
    CHECK((slot.state == "empty" || slot.state == "known"));
  }
  const Answer answer = rig.chat(cc({M(W(50))}));
  const auto slots = rig.tokid.slots();
  REQUIRE(slots.size() == 2);
  CHECK(slots[0].id == 0);
  CHECK(slots[1].id == 1);
  const SlotView used = rig.tokid.slot(std::stoi(answer.slot));
  CHECK(used.state == "known");
  CHECK(used.known_tokens == answer.prompt_tokens);
  CHECK(used.tokens >= used.known_tokens);
  CHECK(get(rig.port(), "/toki/slots").json()["slots"][0]["last_used"].is_number());
  rig.up.configure([](Behaviour& b) { b.answer_delay = milliseconds(2000); });
  Background busy(rig.port(), kChat, cc({M(W(50))}));
  REQUIRE(rig.up.wait_generations(2));
  CHECK(rig.tokid.slot(std::stoi(answer.slot)).state == "busy");
  CHECK(rig.tokid.stat("slots_busy") == 1);
  CHECK(busy.join().status == 200);
}

TEST_CASE("health says whether the upstream can be used") {
  Rig rig;
  const HttpResponse ready = get(rig.port(), "/toki/health");
  CHECK(ready.status == 200);
  CHECK(ready.json()["status"].str() == "ok");
  rig.up.configure([](Behaviour& b) { b.health_status = 503; });
  REQUIRE(wait_until([&] { return rig.tokid.health_status() == 503; }));
  CHECK(get(rig.port(), "/toki/health").json()["status"].str() == "loading");
  CHECK(rig.tokid.stat("backend_ready") == 0);
  rig.up.stop();
  REQUIRE(
      wait_until([&] { return get(rig.port(), "/toki/health").json()["status"].str() == "down"; }));
}

// B75
TEST_CASE("no prompt, key or query value is in the log at any level, nor in metrics or errors") {
  Rig rig({}, {"--log-level", "debug"});
  const Headers key = {{"Authorization", "Bearer sk-MARK-2"}};
  std::string seen;
  const auto ask = [&](const HttpResponse& response) {
    seen += response.status == 200 ? "" : response.body + response.headers.lines();
  };
  ask(post_json(rig.port(), kChat, cc({M("PROMPT-MARK-1")}), key));
  ask(post_json(rig.port(), kChat, cc({M("PROMPT-MARK-1")}, R"(,"stream":true)"), key));
  ask(post_json(rig.port(), "/completion", R"({"prompt":"PROMPT-MARK-1"})", key));
  ask(post_json(rig.port(), kChat, R"({"messages":"PROMPT-MARK-1",)", key));
  ask(post_json(rig.port(), kChat, R"({"PROMPT-MARK-1":1,"PROMPT-MARK-1":2})", key));
  ask(get(rig.port(), "/v1/models?key=sk-MARK-3", key));
  ask(get(rig.port(), "/other?key=sk-MARK-3", {{"x-api-key", "sk-MARK-2"}}));
  rig.up.configure([](Behaviour& b) { b.tokenize_status = 400; });
  ask(post_json(rig.port(), kChat, cc({M("PROMPT-MARK-1")}), key));
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    if (request.path == "/health" || request.path == "/props") return false;
    connection.send("PROMPT-MARK-1 sk-MARK-2\r\n\r\n");
    connection.close();
    return true;
  });
  ask(post_json(rig.port(), kChat, cc({M("PROMPT-MARK-1")}), key));
  ask(get(rig.port(), "/v1/models?key=sk-MARK-3", key));
  rig.up.stop();
  ask(post_json(rig.port(), kChat, cc({M("PROMPT-MARK-1")}), key));
  ask(get(rig.port(), "/v1/models?key=sk-MARK-3", key));
  seen += get(rig.port(), "/metrics").body + get(rig.port(), "/toki/stats").body +
          get(rig.port(), "/toki/slots").body + get(rig.port(), "/toki/health").body;
  rig.tokid.process().signal(15);
  CHECK(rig.tokid.process().wait_exit().has_value());
  const std::string log = rig.tokid.log() + rig.tokid.process().out();
  CHECK_FALSE(log.empty());
  for (const char* mark : {"MARK-1", "MARK-2", "MARK-3"}) {
    INFO(mark);
    CHECK(log.find(mark) == std::string::npos);
  }
  for (const char* mark : {"MARK-1", "MARK-2", "MARK-3"}) {
    INFO(mark);
    CHECK(seen.find(mark) == std::string::npos);
  }
}

TEST_CASE("one log line a request says how it went") {
  Rig rig({}, {"--log-level", "info"});
  const auto before = occurrences(rig.tokid.log(), "\n");
  rig.chat(cc({M(W(50))}));
  rig.chat(cc({M(W(50))}));
  REQUIRE(wait_until([&] { return occurrences(rig.tokid.log(), "\n") >= before + 2; }));
  std::istringstream lines(rig.tokid.log());
  std::string line;
  std::size_t requests = 0;
  while (std::getline(lines, line)) {
    if (line.find(kChat) == std::string::npos) continue;
    ++requests;
    INFO(line);
    CHECK(line.find("status=200") != std::string::npos);
  }
  CHECK(requests == 2);
}
