// The running audit: hits are repeated without cache while nothing else is done, and compared.
#include "net_test.hpp"

namespace {

using namespace toki::test;

const std::string kGreedy = R"(,"temperature":0)";

bool is_audit(const LoggedRequest& request) {
  return request.json()["cache_prompt"].kind() == Json::Kind::boolean &&
         !request.json()["cache_prompt"].boolean();
}

// The audits that reached the upstream.
std::vector<LoggedRequest> audits(const ScriptedUpstream& up) {
  std::vector<LoggedRequest> found;
  for (LoggedRequest& request : up.generations()) {
    if (is_audit(request)) {
      found.push_back(std::move(request));
    }
  }
  return found;
}

// What a cold run says, whatever was said before.
void say_when_cold(Rig& rig, const std::string& answer) {
  rig.up.on_request(on_generation([&rig, answer](const LoggedRequest& request, Connection&) {
    if (is_audit(request)) {
      rig.up.configure([&](Behaviour& b) { b.answer = answer; });
    }
    return false;
  }));
}

Behaviour answering(const std::string& answer) {
  Behaviour behaviour;
  behaviour.answer = answer;
  return behaviour;
}

// A conversation whose second turn is a hit.
void hit(Rig& rig, std::string_view extra = kGreedy) {
  REQUIRE(rig.chat(cc({M(W(60))}, extra)).status == 200);
  REQUIRE(rig.chat(cc({M(W(60)), R("ok"), M("more")}, extra)).cache == "hit");
}

}  // namespace

TEST_CASE("audit: a hit is asked again as it was, without cache, in another slot") {
  Rig rig(answering("it is fine"), {"--audit-every", "1"});
  hit(rig);
  REQUIRE(rig.tokid.wait_stat("audits_total", 1));
  CHECK(rig.tokid.stat("audit_identical_total") == 1);
  CHECK(rig.tokid.stat("requests_total") == 2);  // an audit is no request
  const auto found = audits(rig.up);
  REQUIRE(found.size() == 1);
  CHECK(found[0].cache_n == 0);
  CHECK(found[0].slot != rig.up.generations()[1].slot);
  CHECK(found[0].json()["messages"] == rig.up.generations()[1].json()["messages"]);
  CHECK(rig.tokid.log().find("audit class") == std::string::npos);  // identical: nothing is said
}

TEST_CASE("audit: what differs is classified, counted and said without a word of it") {
  Rig rig(answering("the total is 42 today"), {"--audit-every", "1"});
  say_when_cold(rig, "the total is 43 today");
  hit(rig);
  REQUIRE(rig.tokid.wait_stat("audits_total", 1));
  CHECK(rig.tokid.stat("audit_substantive_total") == 1);
  REQUIRE(wait_until([&] {
    return rig.tokid.log().find("audit class=substantive reason=numbers") != std::string::npos;
  }));
  const std::string log = rig.tokid.log();
  CHECK(log.find("parts_at_word=3") != std::string::npos);
  CHECK(log.find("total is") == std::string::npos);
}

TEST_CASE("audit: streams are collected from their events") {
  Rig rig(answering("one big dog"), {"--audit-every", "1"});
  say_when_cold(rig, "One big dog!");
  hit(rig, R"(,"temperature":0.0,"stream":true)");
  REQUIRE(rig.tokid.wait_stat("audits_total", 1));
  CHECK(rig.tokid.stat("audit_noise_total") == 1);  // only case and punctuation differ
}

TEST_CASE("audit: without embeddings, what no rule decides is substantive") {
  Rig rig(answering("the car is fast"), {"--audit-every", "1"});
  say_when_cold(rig, "the automobile is fast");
  hit(rig);
  REQUIRE(rig.tokid.wait_stat("audits_total", 1));
  CHECK(rig.tokid.stat("audit_substantive_total") == 1);
  CHECK(rig.tokid.log().find("reason=no_similarity") != std::string::npos);
}

TEST_CASE("audit: every Nth hit that can be repeated, and no other request") {
  Rig rig(answering("fine"), {"--audit-every", "2"});
  hit(rig, "");  // sampled: it cannot be repeated
  hit(rig, R"(,"temperature":0.7)");
  hit(rig);  // the first that can; its first turn is a hit as well
  REQUIRE(rig.tokid.wait_stat("audits_total", 1));
  CHECK(audits(rig.up).size() == 1);
  CHECK(audits(rig.up)[0].json()["temperature"].num(1) == 0);
}

TEST_CASE("audit: off unless asked for") {
  Rig rig(answering("fine"));
  hit(rig);
  CHECK(rig.tokid.stat("audits_total") == 0);
  CHECK(audits(rig.up).empty());
}

TEST_CASE("audit: a client that comes ends it at once, and it is made later") {
  Behaviour behaviour = answering("fine");
  behaviour.slots = 3;  // the client's conversation takes one that then is worth something
  Rig rig(behaviour, {"--audit-every", "1"});
  std::atomic<int> held{0};
  rig.up.on_request(on_generation([&held](const LoggedRequest& request, Connection& connection) {
    if (is_audit(request) && held++ == 0) {
      CHECK(connection.wait_peer_gone(milliseconds(20000)));
      return true;
    }
    return false;
  }));
  hit(rig);
  REQUIRE(wait_until([&held] { return held > 0; }));
  CHECK(rig.chat(cc({M("another")})).status == 200);
  REQUIRE(rig.tokid.wait_stat("audits_total", 1, milliseconds(20000)));
  CHECK(rig.tokid.stat("audit_identical_total") == 1);
  CHECK(rig.tokid.stat("requests_completed") == 3);
}

TEST_CASE("audit: no slot is taken whose content is worth something and stored nowhere") {
  Behaviour behaviour = answering("fine");
  behaviour.slots = 1;
  Rig rig(behaviour, {"--audit-every", "1"});
  hit(rig);
  REQUIRE(rig.tokid.wait_stat("slots_busy", 0));
  // The same program looks for something to audit about as often as every third time that it looks
  // at the health.
  const auto looks = [&] { return rig.up.requests_to("GET", "/health").size(); };
  const std::size_t before = looks();
  REQUIRE(wait_until([&] { return looks() >= before + 15; }));
  CHECK(audits(rig.up).empty());
  // It is the only slot; the next turn still finds its prefix.
  CHECK(rig.chat(cc({M(W(60)), R("ok"), M("more"), R("fine"), M("on")}, kGreedy)).cache == "hit");
  // That was all that kept both from being audited.
  CHECK(rig.post("/slots/0?action=erase", "{}").status == 200);
  CHECK(rig.tokid.wait_stat("audits_total", 2));
}

TEST_CASE("audit: a failed repetition is counted as dropped") {
  Rig rig(answering("fine"), {"--audit-every", "1"});
  rig.up.on_request(on_generation([](const LoggedRequest& request, Connection& connection) {
    if (!is_audit(request)) {
      return false;
    }
    connection.respond(500, R"({"error":{"code":500,"message":"no","type":"server_error"}})");
    return true;
  }));
  hit(rig);
  REQUIRE(rig.tokid.wait_stat("audits_dropped_total", 1));
  CHECK(rig.tokid.stat("audits_total") == 0);
}
