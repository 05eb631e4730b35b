// Which slot a request goes to, and what tokid believes the slots hold.
#include "net_test.hpp"

namespace {

using namespace toki::test;

// Tokens that the second of two prompts shares with the first, as the upstream evaluated them.
int shared(const std::vector<LoggedRequest>& log, std::size_t first, std::size_t second) {
  return common_prefix(log.at(first).prompt, log.at(second).prompt);
}

}  // namespace

// B02
TEST_CASE("a re-rendered last turn is predicted up to its first differing token") {
  Behaviour behaviour;
  behaviour.think_template = true;
  behaviour.generation_prompt = GENERATE(true, false);
  Rig rig(behaviour);
  const Answer first = rig.chat(cc({S(W(500)), M("q1")}));
  REQUIRE(first.status == 200);
  const Answer second = rig.chat(cc({S(W(500)), M("q1"), R("ok"), M("q2")}));
  REQUIRE(second.status == 200);
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 2);
  CHECK(second.reused == shared(log, 0, 1));
  CHECK(second.reused <= second.cache_n);
  CHECK(log[1].slot == log[0].slot);
  // The turn after that renders the first assistant turn differently once more.
  const Answer third = rig.chat(cc({S(W(500)), M("q1"), R("ok"), M("q2"), R("ok"), M("q3")}));
  REQUIRE(third.status == 200);
  CHECK(third.reused == shared(rig.up.generations(), 1, 2));
  CHECK(third.reused <= third.cache_n);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
}

TEST_CASE(
    "an answer that the next turn repeats is no integrity fault when its tokens are unknown") {
  // A chat answer does not say which tokens it is made of, so the upstream may reuse more than what
  // tokid knows.
  Behaviour behaviour;
  behaviour.answer = words("answer", 40);
  Rig rig(behaviour);
  rig.chat(cc({S(W(100)), M("q1")}));
  const Answer second = rig.chat(cc({S(W(100)), M("q1"), R(words("answer", 40)), M("q2")}));
  CHECK(second.cache_n > second.reused);
  CHECK(second.reused >= 100);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  CHECK(rig.tokid.stat("class_hit") == 1);
}

TEST_CASE("a native answer's ids are known, so the next prompt is predicted with them") {
  Behaviour behaviour;
  behaviour.answer = words("answer", 20);
  Rig rig(behaviour);
  const bool stream = GENERATE(false, true);
  const std::string ask = stream ? R"("stream":true)" : R"("return_tokens":true)";
  rig.post("/completion", R"({"prompt":)" + quote(W(100)) + "," + ask + "}");
  const Answer second = rig.post(
      "/completion", R"({"prompt":)" + quote(W(100) + " " + words("answer", 20) + " more") + "}");
  CHECK(second.status == 200);
  // The last generated token is never evaluated: predicting it would be too much.
  CHECK(second.cache_n == 101 + 19);
  CHECK(second.reused <= second.cache_n);
  CHECK(second.reused >= 101);
}

// B04
TEST_CASE("a small side request does not take the slot of a long conversation") {
  Rig rig;
  rig.chat(cc({S(W(4000)), M("q1")}));
  rig.chat(cc({M("make a title")}, R"(,"max_tokens":8)"));
  const Answer third = rig.chat(cc({S(W(4000)), M("q1"), R("ok"), M("q2")}));
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 3);
  CHECK(log[0].json()["id_slot"].integer(-1) == log[2].json()["id_slot"].integer(-2));
  CHECK(log[1].json()["id_slot"].integer(-1) != log[0].json()["id_slot"].integer(-1));
  CHECK(third.cache_n >= 4000);
}

// B07
TEST_CASE("a shared system prompt alone does not cut back a long conversation") {
  Rig rig;
  rig.chat(cc({S(W(300)), M(words("a", 5000))}));
  rig.chat(cc({S(W(300)), M("other")}));
  const Answer again = rig.chat(cc({S(W(300)), M(words("a", 5000)), R("ok"), M("next")}));
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 3);
  CHECK(log[1].slot != log[0].slot);
  CHECK(again.cache_n >= 5300);
}

// B08
TEST_CASE(
    "a changing word in the system prompt is reused up to that word, and the place is named") {
  Rig rig;
  const auto prompt = [](const std::string& time) {
    return cc({S(W(1000) + " Now: " + time + " " + W(1000)), M("q")});
  };
  rig.chat(prompt("10:00:01"));
  const Answer second = rig.chat(prompt("10:00:02"));
  REQUIRE(second.status == 200);
  const int divergence = shared(rig.up.generations(), 0, 1);
  CHECK(divergence == 1003);
  CHECK(second.reused == divergence);
  CHECK(second.cache_n == divergence);
}

// B10
TEST_CASE("a prompt that the server may hold in its own cache is not pinned to an empty slot") {
  Behaviour behaviour;
  behaviour.own_cache = true;
  Rig rig(behaviour);
  const std::string a = cc({M(words("a", 280))});
  const Answer first = rig.chat(a);
  rig.chat(cc({M(words("c", 280))}));
  rig.chat(cc({M(words("b", 280))}));
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 3);
  const int other = 1 - log[2].slot;
  rig.up.set_slot(other, {});
  const Answer again = rig.chat(a);
  REQUIRE(again.status == 200);
  CHECK(again.cache_n == first.prompt_tokens - 1);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("a server that clears idle slots is not pinned, and is still served") {
  Behaviour behaviour;
  behaviour.keeps_idle_slots = false;
  Rig rig(behaviour);
  CHECK(rig.tokid.stat("pinning") == 0);
  const Answer answer = rig.chat(cc({M(W(50))}));
  CHECK(answer.status == 200);
  CHECK(answer.reason == "pinning_off");
  CHECK(answer.slot == "any");
  CHECK_FALSE(rig.up.generations().at(0).json().has("id_slot"));
  // The log says which flags help.
  CHECK(rig.tokid.log().find("-np") != std::string::npos);
}

// B14
TEST_CASE("a restarted upstream loses all residency at once") {
  Rig rig;
  const std::string body = cc({S(W(1000)), M("q")});
  rig.chat(body);
  CHECK(rig.chat(body).reused >= 1000);
  rig.up.stop();
  SECTION("seen while it is down") {
    REQUIRE(wait_until([&] { return rig.tokid.health_status() == 503; }));
    rig.up.start();
  }
  SECTION("back before anyone looked") {
    rig.up.start();
  }
  REQUIRE(rig.tokid.wait_stat("upstream_restarts_total", 1));
  REQUIRE(rig.tokid.wait_ready());
  const Answer after = rig.chat(body);
  CHECK(after.status == 200);
  CHECK(after.reused == 0);
  CHECK(after.cached_tokens <= 1);
  CHECK(rig.tokid.stat("upstream_restarts_total") == 1);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B14
TEST_CASE("a restart between two probes is noticed by the next request") {
  Rig rig({}, {"--probe-interval-ms", "60000"});
  const std::string body = cc({S(W(1000)), M("q")});
  rig.chat(body);
  CHECK(rig.chat(body).reused >= 1000);
  rig.up.stop();
  rig.up.start();
  const Answer after = rig.chat(body);
  CHECK(after.status == 200);
  CHECK(after.reused == 0);
  CHECK(after.cached_tokens <= 1);
  CHECK(rig.tokid.stat("upstream_restarts_total") == 1);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B18
TEST_CASE("waiting for the slot with the prefix is bounded and reported") {
  Gate gate;
  Rig rig({}, {"--slot-wait-ms", "500"});
  rig.up.on_request(gate.holds_generations());
  Background first(rig.port(), kChat, cc({S(W(1000)), M("q1")}));
  REQUIRE(rig.up.wait_generations(1));
  Background second(rig.port(), kChat, cc({S(W(1000)), M("q2")}));
  REQUIRE(rig.up.wait_generations(2));  // while the first one still runs
  gate.open();
  REQUIRE(first.join().status == 200);
  REQUIRE(second.join().status == 200);
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 2);
  CHECK(log[1].slot != log[0].slot);
  CHECK_FALSE(log[1].deferred);
  CHECK(ms_between(second.sent_at(), log[1].at) > 350);
  CHECK(rig.tokid.stat("slot_waits_total") >= 1);
}

TEST_CASE("a request whose slot gets free within the wait limit uses it") {
  Gate gate;
  Rig rig({}, {"--slot-wait-ms", "20000"});
  rig.up.on_request(gate.holds_generations());
  Background first(rig.port(), kChat, cc({S(W(1000)), M("q1")}));
  REQUIRE(rig.up.wait_generations(1));
  Background waits(rig.port(), kChat, cc({S(W(1000)), M("q2")}));
  REQUIRE(rig.tokid.wait_stat("queue_length", 1));
  gate.open();
  const Answer& second = waits.join();
  CHECK(second.cache_n >= 1000);
  CHECK(second.reused >= 1000);
  CHECK(first.join().status == 200);
  CHECK_FALSE(rig.up.generations().at(1).deferred);
}

// B22
TEST_CASE("a slot without progress is fenced until it answers again") {
  Rig rig({}, {"--progress-limit-ms", "1000", "--slot-wait-ms", "200"});
  std::atomic<int> silent{-1};
  rig.up.on_request(on_generation([&](const LoggedRequest& request, Connection& connection) {
    int expected = -1;
    const int slot = static_cast<int>(request.json()["id_slot"].integer(0));
    if (!silent.compare_exchange_strong(expected, slot)) return false;
    rig.up.hold_slot(slot);
    connection.wait_peer_gone(milliseconds(30000));
    connection.close();
    return true;
  }));
  Background a(rig.port(), kChat, cc({S(W(500)), M("a")}));
  REQUIRE(wait_until([&] { return silent >= 0; }));
  Background b(rig.port(), kChat, cc({S(W(500)), M("b")}));
  CHECK(b.join().status == 200);
  check_error(a.join().http, 504, "timeout_error");
  CHECK(ms_between(a.sent_at(), a.done_at()) > 900);
  CHECK(rig.tokid.stat("progress_timeouts_total") == 1);
  CHECK(rig.tokid.stat("slots_fenced") == 1);
  CHECK(rig.tokid.slot(silent).state == "fenced");
  // New requests avoid it, whatever they ask for.
  for (int i = 0; i < 4; ++i)
    CHECK(rig.chat(cc({M(words("n" + std::to_string(i), 50))})).status == 200);
  for (const auto& request : rig.up.generations()) {
    if (request.slot >= 0) CHECK(request.slot != silent);
    CHECK_FALSE(request.deferred);
  }
  rig.up.release_slot(silent);
  CHECK(rig.tokid.wait_stat("slots_fenced", 0));
  // Idle again, but nothing is known of what it holds.
  CHECK(rig.tokid.slot(silent).known_tokens <= 0);
  CHECK(rig.chat(cc({M("x")}, R"(,"id_slot":)" + std::to_string(silent))).status == 200);
}

// B34
TEST_CASE("a prompt that cannot be tokenized is forwarded unpinned") {
  Rig rig;
  const bool by_template = GENERATE(false, true);
  rig.up.configure(
      [&](Behaviour& b) { (by_template ? b.template_status : b.tokenize_status) = 400; });
  const std::string body = cc({M("<__media_abc__>")});
  const Answer answer = rig.chat(body);
  CHECK(answer.status == 200);
  CHECK(answer.cache == "bypass");
  CHECK(answer.reason == "tokenize_failed");
  CHECK(answer.slot == "any");
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 1);
  CHECK_FALSE(log[0].json().has("id_slot"));
  CHECK(forwarding_fault(body, log[0].body()).empty());
  CHECK(rig.tokid.stat("class_bypass") == 1);
  // What the unpinned request did to the slots is not known, so nothing is claimed.
  rig.up.configure([](Behaviour& b) { b.template_status = b.tokenize_status = 200; });
  const Answer next = rig.chat(cc({M("<__media_abc__>"), R("ok"), M("next")}));
  CHECK(next.reused <= next.cache_n);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B37
TEST_CASE("tokid starts without its upstream and recovers by itself") {
  ScriptedUpstream up;
  up.stop();
  Tokid tokid(up.url());
  const std::string body = cc({M("q")});
  const HttpResponse down = post_json(tokid.port(), kChat, body);
  CHECK((down.status == 502 || down.status == 503));
  check_error(down, down.status, down.status == 502 ? "upstream_error" : "unavailable_error");
  CHECK(down.headers.has("retry-after"));
  const Json health = get(tokid.port(), "/toki/health").json();
  CHECK(health["status"].str() == "down");
  const std::string why =
      "cannot connect to 127.0.0.1:" + std::to_string(up.port()) + ": Connection refused";
  CHECK(health["states"]["why"].str() == "the backend is down: " + why);
  CHECK(occurrences(tokid.log(), "warning backend is down") == 1);
  CHECK(occurrences(tokid.log(), "warning backend is down: " + why) == 1);
  up.configure([](Behaviour& b) { b.health_status = 503; });
  up.start();
  REQUIRE(wait_until(
      [&] { return get(tokid.port(), "/toki/health").json()["status"].str() == "loading"; }));
  const HttpResponse loading = post_json(tokid.port(), kChat, body);
  check_error(loading, 503, "unavailable_error");
  CHECK(loading.headers.has("retry-after"));
  up.configure([](Behaviour& b) { b.health_status = 200; });
  CHECK(wait_until([&] { return post_json(tokid.port(), kChat, body).status == 200; },
                   milliseconds(2000)));
  CHECK(tokid.stat("upstream_restarts_total") <= 1);
}

// B45
TEST_CASE("slot actions that are not supported do not disturb routing") {
  Behaviour behaviour;
  behaviour.slot_action_status = 501;
  ScriptedUpstream up(behaviour);
  Tokid tokid(up.url());
  REQUIRE(tokid.wait_ready());
  for (int i = 0; i < 20; ++i) {
    const auto response =
        post_json(tokid.port(), kChat, cc({M(words("p" + std::to_string(i) + "_", 600))}));
    CHECK(response.status == 200);
  }
  std::size_t saves = 0;
  for (const auto& request : up.requests()) saves += occurrences(request.query, "action=save");
  CHECK(saves <= 2);
  const std::string again = cc({M(words("p19_", 600)), R("ok"), M("more")});
  CHECK(as_answer(post_json(tokid.port(), kChat, again)).cache_n >= 600);
}

// B48
TEST_CASE("without traffic only health and props are asked, and a sleep drops residency") {
  Rig rig;
  const std::string body = cc({S(W(200)), M("q")});
  rig.chat(body);
  CHECK(rig.chat(body).reused >= 200);
  rig.up.clear_log();
  const auto only_harmless = [&] {
    for (const auto& request : rig.up.requests()) {
      INFO(request.method << " " << request.target);
      CHECK(request.method == "GET");
      CHECK((request.target == "/health" || request.target == "/props"));
    }
  };
  REQUIRE(wait_until([&] { return rig.up.requests_to("GET", "/health").size() >= 15; }));
  CHECK_FALSE(rig.up.requests_to("GET", "/props").empty());
  only_harmless();
  rig.up.configure([](Behaviour& b) { b.is_sleeping = true; });
  CHECK(wait_until(
      [&] { return rig.tokid.slot(0).known_tokens <= 0 && rig.tokid.slot(1).known_tokens <= 0; }));
  const auto seen = rig.up.requests().size();
  REQUIRE(wait_until([&] { return rig.up.requests().size() >= seen + 10; }));
  only_harmless();
  CHECK(rig.up.behaviour().is_sleeping);
  const Answer after = rig.chat(body);
  CHECK(after.status == 200);
  CHECK(after.reused == 0);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B56
TEST_CASE("a list of ids is one prompt, several prompts or answers are left to the server") {
  Rig rig;
  const auto ask = [&](const std::string& prompt, const std::string& extra = {}) {
    const std::string body = R"({"model":"m","prompt":)" + prompt + extra + "}";
    rig.up.clear_log();
    const Answer answer = rig.post("/v1/completions", body);
    CHECK(answer.status == 200);
    const auto log = rig.up.generations();
    REQUIRE(log.size() == 1);
    INFO("sent " << body << " received " << log[0].body());
    CHECK(forwarding_fault(body, log[0].body()).empty());
    return std::pair(answer, log[0].json());
  };
  const auto [ids, ids_body] = ask("[1,15,27]");
  CHECK(ids_body["id_slot"].is_integer());
  CHECK(ids.prompt_tokens == 3);
  const auto [again, again_body] = ask("[1,15,27,28]");
  CHECK(again.reused == 3);
  CHECK(again.cache_n == 3);
  CHECK(again_body["id_slot"].is_integer());
  for (const char* prompt : {R"(["a b","c d"])", "[[1,2],[1,3]]", R"([1,"x"])"}) {
    const auto [answer, body] = ask(prompt);
    CHECK_FALSE(body.has("id_slot"));
    CHECK(answer.cache == "bypass");
    CHECK(answer.reused <= 0);
  }
  ask("\"\"");
  const auto [three, three_body] = ask("\"p\"", ",\"n\":3");
  CHECK_FALSE(three_body.has("id_slot"));
  CHECK(three.http.json()["choices"].items().size() == 3);
  CHECK(three.reason == "several_answers");
  for (const auto& slot : rig.tokid.slots()) {
    CHECK(slot.state != "known");
    CHECK(slot.known_tokens <= 0);
  }
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B57
TEST_CASE("no slot outside the server's count is ever asked for") {
  Rig rig;
  const auto ask = [&](const std::string& extra) {
    rig.up.clear_log();
    return rig.chat(cc({M("q")}, extra));
  };
  const auto received = [&] {
    const auto log = rig.up.generations();
    REQUIRE(log.size() == 1);
    return log[0].json();
  };
  for (const char* bad : {R"(,"id_slot":7)", R"(,"id_slot":2)", R"(,"id_slot":"0")",
                          R"(,"id_slot":1.5)", R"(,"id_slot":-2)", R"(,"id_slot":[0])"}) {
    INFO(bad);
    check_error(ask(bad).http, 400, "invalid_request_error");
    CHECK(rig.up.generations().empty());
  }
  for (const int wanted : {1, 0, 1}) {
    const Answer answer = ask(R"(,"id_slot":)" + std::to_string(wanted));
    CHECK(answer.status == 200);
    CHECK(answer.reason == "requested_slot");
    CHECK(answer.slot == std::to_string(wanted));
    CHECK(received()["id_slot"].integer(-1) == wanted);
    CHECK(received().count("id_slot") == 1);
  }
  CHECK(ask(R"(,"id_slot":-1)").status == 200);
  CHECK(received().count("id_slot") == 1);
  CHECK(received()["id_slot"].integer(-1) >= 0);
  CHECK(received()["id_slot"].integer(-1) < 2);
  // A name that is only similar is just an unknown field.
  CHECK(ask(R"(,"slot_id":1)").status == 200);
  CHECK(received()["slot_id"].integer() == 1);
  CHECK(received().count("id_slot") == 1);
  // The count is read again after a restart.
  rig.up.stop();
  rig.up.configure([](Behaviour& b) { b.slots = 1; });
  rig.up.start();
  REQUIRE(rig.tokid.wait_stat("slots_total", 1));
  REQUIRE(rig.tokid.wait_ready());
  CHECK(ask(R"(,"id_slot":1)").status == 400);
  CHECK(ask("").status == 200);
  CHECK(received()["id_slot"].integer(-1) == 0);
}

TEST_CASE("a client's own slot is waited for") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(400);
  Rig rig(behaviour, {"--slot-wait-ms", "50"});
  Background first(rig.port(), kChat, cc({M("a")}, R"(,"id_slot":1)"));
  REQUIRE(rig.up.wait_generations(1));
  Background second(rig.port(), kChat, cc({M("b")}, R"(,"id_slot":1)"));
  CHECK(second.join().status == 200);
  CHECK(first.join().status == 200);
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 2);
  CHECK(log[1].slot == 1);
  CHECK_FALSE(log[1].deferred);
}

TEST_CASE("concurrent conversations keep their slots and never meet in one") {
  Behaviour behaviour;
  behaviour.slots = 4;
  behaviour.per_new_token = std::chrono::microseconds(50);
  Rig rig(behaviour, {"--slot-wait-ms", "10000"});
  std::mutex mutex;
  std::vector<std::string> faults;
  std::vector<std::thread> agents;
  for (int agent = 0; agent < 4; ++agent) {
    agents.emplace_back([&, agent] {
      std::vector<Message> messages = {S(words("agent" + std::to_string(agent) + "_", 300))};
      int before = 0;
      for (int turn = 0; turn < 5; ++turn) {
        messages.push_back(M(words("t" + std::to_string(turn) + "_", 30)));
        const Answer answer = rig.chat(cc(messages));
        messages.push_back(R("ok"));
        const std::lock_guard lock(mutex);
        if (answer.status != 200) faults.push_back("status " + std::to_string(answer.status));
        if (answer.reused > answer.cache_n) faults.push_back("predicted too much");
        if (answer.cache_n * 100 < before * 97) {
          faults.push_back("reused " + std::to_string(answer.cache_n) + " of " +
                           std::to_string(before));
        }
        before = answer.prompt_tokens;
      }
    });
  }
  for (auto& agent : agents) agent.join();
  CHECK(faults == std::vector<std::string>());
  for (const auto& request : rig.up.generations()) CHECK_FALSE(request.deferred);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  CHECK(rig.tokid.stat("requests_completed") == 20);
  CHECK(rig.tokid.stat("slots_busy") == 0);
}

TEST_CASE("many unrelated requests never wait inside the server") {
  Behaviour behaviour;
  behaviour.slots = 3;
  behaviour.answer_delay = milliseconds(10);
  Rig rig(behaviour, {"--slot-wait-ms", "20"});
  std::vector<std::unique_ptr<Background>> all;
  for (int i = 0; i < 30; ++i) {
    all.push_back(std::make_unique<Background>(
        rig.port(), kChat, cc({S(W(50)), M(words("r" + std::to_string(i) + "_", 20))})));
  }
  for (auto& request : all) {
    CHECK(request->join().status == 200);
    CHECK(request->join().reused <= request->join().cache_n);
  }
  for (const auto& request : rig.up.generations()) CHECK_FALSE(request.deferred);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}
