// Pinned prefixes over HTTP: they are computed when nothing runs, keep their slot, and survive.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "net_test.hpp"

namespace {

using namespace toki::test;

Json pin(int port, const std::string& body) {
  const HttpResponse response = post_json(port, "/toki/pins", body);
  INFO(response.body);
  REQUIRE(response.status == 200);
  return response.json();
}

HttpResponse remove_pin(int port, const std::string& query = "") {
  return request(port, "DELETE", "/toki/pins" + query);
}

std::vector<Json> pins(int port) {
  return get(port, "/toki/pins").json()["pins"].items();
}

bool wait_held(const TokidProcess& tokid, double count = 1) {
  return tokid.wait_stat("pins_held", count);
}

std::string other(int i) {
  return cc({M(words("other" + std::to_string(i) + "x", 60))});
}

}  // namespace

TEST_CASE("a pinned chat prefix is computed without a request and keeps its slot") {
  Rig rig;
  const Json made = pin(rig.port(), cc({S(W(300))}));
  CHECK(made["state"].str() == "waiting");
  CHECK(made["tokens"].integer() > 300);
  REQUIRE(wait_held(rig.tokid));
  const Json held = pins(rig.port()).at(0);
  CHECK(held["id"].integer() == made["id"].integer());
  CHECK(held["state"].str() == "held");
  const auto slot = std::to_string(held["slot"].integer());
  CHECK(get(rig.port(), "/toki/slots").json()["slots"][std::stoul(slot)]["pin"].integer() ==
        made["id"].integer());
  for (int i = 0; i < 8; ++i) {
    CHECK(rig.chat(other(i)).slot != slot);
  }
  const Answer answer = rig.chat(cc({S(W(300)), M("q1")}));
  CHECK(answer.slot == slot);
  CHECK(answer.cache_n >= made["tokens"].integer());
  CHECK(answer.cache_n == answer.reused);
  const Answer second = rig.chat(cc({S(W(300)), M("q2 is another")}));
  CHECK(second.slot == slot);
  CHECK(second.cache_n >= made["tokens"].integer());
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("what is pinned is the beginning of every prompt that goes on from it") {
  Behaviour behaviour;
  behaviour.slots = 6;
  Rig rig(behaviour);
  const auto counted = [&](const std::string& prompt) {
    return rig.post("/v1/completions", R"({"prompt":")" + prompt + R"("})").prompt_tokens;
  };
  // The last word may go on: only what stands before it is sure.
  CHECK(pin(rig.port(), R"({"text":")" + W(50) + R"("})")["tokens"].integer() == 50);
  CHECK(counted(W(50)) == 51);
  // After a user's message the answer follows, asked for or in the history.
  const Json chat = pin(rig.port(), cc({S(W(40)), M(W(30))}));
  const Answer asked = rig.chat(cc({S(W(40)), M(W(30))}));
  CHECK(asked.prompt_tokens == chat["tokens"].integer());
  const Json ids = pin(rig.port(), R"({"tokens":[1,2,3,4]})");
  CHECK(ids["tokens"].integer() == 4);
  CHECK(pin(rig.port(), R"({"tokens":[1,2,3,4]})")["id"].integer() == ids["id"].integer());
}

TEST_CASE("bodies that cannot be pinned are refused, and so is the last free slot") {
  Rig rig;
  for (const char* body :
       {"{", R"({})", R"({"text":"a","tokens":[1]})", R"({"text":1})", R"({"messages":[]})",
        R"({"messages":"a"})", R"({"tokens":[]})", R"({"tokens":[-1]})", R"({"tokens":[1.5]})",
        R"({"tokens":["a"]})", R"({"tokens":[99999999999]})", R"({"tokens":[1,49152]})",
        R"({"text":"a b","lora":[{"id":0,"scale":1}]})"}) {
    INFO(body);
    check_error(post_json(rig.port(), "/toki/pins", body), 400, "invalid_request_error");
  }
  check_error(
      post_json(rig.port(), "/toki/pins", R"({"text":")" + std::string(9 << 20, 'x') + R"("})"),
      400, "invalid_request_error");
  pin(rig.port(), R"({"tokens":[1,2,3]})");
  check_error(post_json(rig.port(), "/toki/pins", R"({"tokens":[5,6]})"), 409,
              "invalid_request_error");
  check_error(remove_pin(rig.port(), "?id=1"), 404, "invalid_request_error");
  check_error(remove_pin(rig.port(), "?id=x"), 400, "invalid_request_error");
  check_error(request(rig.port(), "PUT", "/toki/pins", "{}"), 405, "invalid_request_error");
  rig.up.configure([](Behaviour& b) { b.template_status = 500; });
  CHECK(remove_pin(rig.port()).status == 200);
  check_error(post_json(rig.port(), "/toki/pins", cc({S("a b c")})), 400, "invalid_request_error");
}

TEST_CASE("a pin that is removed gives its slot back") {
  Rig rig;
  const Json made = pin(rig.port(), cc({S(W(300))}));
  REQUIRE(wait_held(rig.tokid));
  const HttpResponse gone = remove_pin(rig.port(), "?id=" + std::to_string(made["id"].integer()));
  CHECK(gone.status == 200);
  CHECK(gone.json()["removed"].integer() == 1);
  CHECK(rig.tokid.stat("pins_held") == 0);
  CHECK(pins(rig.port()).empty());
  CHECK(remove_pin(rig.port()).json()["removed"].integer() == 0);
}

TEST_CASE("a client's own id_slot does not clear a pin") {
  Rig rig;
  const Json made = pin(rig.port(), cc({S(W(300))}));
  REQUIRE(wait_held(rig.tokid));
  const auto slot = std::to_string(pins(rig.port()).at(0)["slot"].integer());
  const Answer refused = rig.chat(cc({M("something else")}, R"(,"id_slot":)" + slot));
  CHECK(refused.status == 200);
  CHECK(refused.slot != slot);
  CHECK(refused.reason == "slot_pinned");
  CHECK(std::to_string(rig.up.generations().back().slot) == refused.slot);
  const Answer allowed = rig.chat(cc({S(W(300)), M("q")}, R"(,"id_slot":)" + slot));
  CHECK(allowed.slot == slot);
  CHECK(allowed.cache_n >= made["tokens"].integer());
}

TEST_CASE("pins are put into slots again after a restart of the backend") {
  Rig rig;
  const Json made = pin(rig.port(), cc({S(W(300))}));
  REQUIRE(wait_held(rig.tokid));
  rig.up.stop();
  rig.up.start();
  REQUIRE(rig.tokid.wait_stat("upstream_restarts_total", 1));
  REQUIRE(wait_held(rig.tokid));
  const Answer answer = rig.chat(cc({S(W(300)), M("q")}));
  CHECK(answer.cache_n >= made["tokens"].integer());
}

TEST_CASE(
    "pins are there again after a restart of tokid, and a damaged file of them stops nobody") {
  ScriptedUpstream up;
  const TemporaryDirectory data;
  std::int64_t id = 0;
  {
    Tokid tokid(up.url(), {"--data-dir", data.path()});
    REQUIRE(tokid.wait_ready());
    id = pin(tokid.port(), cc({S(W(300))}))["id"].integer();
    REQUIRE(wait_held(tokid));
  }
  up.stop();
  up.start();
  {
    Tokid tokid(up.url(), {"--data-dir", data.path()});
    REQUIRE(tokid.wait_ready());
    REQUIRE(wait_held(tokid));
    CHECK(pins(tokid.port()).at(0)["id"].integer() == id);
    const Answer answer = as_answer(post_json(tokid.port(), kChat, cc({S(W(300)), M("q")})));
    CHECK(answer.cache_n > 300);
  }
  std::ofstream(data.path() + "/pins", std::ios::app) << "x";
  Tokid tokid(up.url(), {"--data-dir", data.path()});
  REQUIRE(tokid.wait_ready());
  CHECK(pins(tokid.port()).empty());
  CHECK(std::filesystem::exists(data.path() + "/pins.bad"));
}

TEST_CASE("the prefix that most prompts begin with is pinned where that is asked for") {
  Rig rig({}, {"--pin-hot", "1"});
  for (int i = 0; i < 9; ++i) {
    rig.chat(cc({S(W(400)), M(words("q" + std::to_string(i) + "x", 40))}));
  }
  REQUIRE(wait_held(rig.tokid));
  const Json made = pins(rig.port()).at(0);
  CHECK(made["by_hand"].dump() == "false");
  CHECK(made["tokens"].integer() == 384);  // whole blocks of 32
  CHECK(rig.tokid.stat("pins_hot") == 1);
  CHECK(pin(rig.port(), R"({"tokens":[1,2,3]})")["by_hand"].dump() == "true");
  CHECK(rig.tokid.stat("pins_hot") == 0);  // it made way
}

TEST_CASE("nothing is pinned while the backend is away") {
  Rig rig;
  rig.up.stop();
  REQUIRE(wait_until([&] { return rig.tokid.health_status() == 503; }));
  check_error(post_json(rig.port(), "/toki/pins", R"({"tokens":[1,2,3]})"), 503,
              "unavailable_error");
  CHECK(pins(rig.port()).empty());
}

TEST_CASE("a parameter that is no id removes no pin") {
  Rig rig;
  pin(rig.port(), cc({S(W(300))}));
  for (const char* query : {"?foo=1", "?ID=5", "?id=", "?", "?id=1&id=2", "?id=1&x=2"}) {
    INFO(query);
    CHECK(remove_pin(rig.port(), query).status == 400);
    CHECK(pins(rig.port()).size() == 1);
  }
  CHECK(remove_pin(rig.port()).status == 200);
  CHECK(pins(rig.port()).empty());
}
