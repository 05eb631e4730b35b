// The test support tested against itself: the raw client in front of the scripted upstream, with
// nothing between them. What these show is what the other tests rely on.
#include <catch2/catch.hpp>

#include <thread>

#include "raw_client.hpp"
#include "scripted_upstream.hpp"
#include "tokid_process.hpp"
#include "wait.hpp"

namespace {

using namespace toki::test;

Answer ask(const ScriptedUpstream& up, std::string_view body) {
  return as_answer(post_json(up.port(), "/v1/chat/completions", body));
}

}  // namespace

TEST_CASE("the JSON reader keeps order, duplicates and lone surrogates") {
  const auto json = Json::parse(R"({"b":1,"a":[1.5,null,true],"b":"x","c":"\ud83d","d":"\ude00"})");
  REQUIRE(json);
  CHECK(json->members()[0].first == "b");
  CHECK(json->count("b") == 2);
  CHECK((*json)["a"][0].num() == 1.5);
  CHECK((*json)["a"][2].boolean());
  CHECK((*json)["c"].str() != (*json)["d"].str());
  CHECK_FALSE(Json::parse("{} x"));
  CHECK_FALSE(Json::parse("{\"a\":"));
  CHECK(Json::parse(json->dump()).value() == *json);
}

TEST_CASE("a chunk decoder takes pieces of any size and refuses nonsense") {
  const std::string wire = "5\r\nhello\r\n10;ext=1\r\n0123456789abcdef\r\n0\r\nX: y\r\n\r\nrest";
  for (std::size_t piece : {std::size_t{1}, std::size_t{3}, wire.size()}) {
    ChunkDecoder decoder;
    std::string payload;
    std::size_t used = 0;
    while (used < wire.size() && !decoder.done()) {
      used += decoder.feed(std::string_view(wire).substr(used, piece), payload);
    }
    CHECK(payload == "hello0123456789abcdef");
    CHECK(used == wire.size() - 4);
  }
  ChunkDecoder decoder;
  std::string payload;
  decoder.feed("zz\r\n", payload);
  CHECK(decoder.failed());
}

TEST_CASE("the upstream describes itself as llama-server does") {
  ScriptedUpstream up;
  CHECK(get(up.port(), "/health").json()["status"].str() == "ok");
  const Json props = get(up.port(), "/props").json();
  CHECK(props["total_slots"].integer() == 2);
  CHECK(props["default_generation_settings"]["n_ctx"].integer() == 65536);
  CHECK(props["media_marker"].str() == up.media_marker());
  CHECK_FALSE(props["is_sleeping"].boolean(true));
  CHECK(get(up.port(), "/v1/models").json()["data"][0]["meta"]["n_vocab"].integer() == 49152);
  const Json slots = get(up.port(), "/slots").json();
  REQUIRE(slots.items().size() == 2);
  CHECK_FALSE(slots[1]["is_processing"].boolean(true));
  CHECK(get(up.port(), "/nope").status == 404);
}

TEST_CASE("what the upstream renders and tokenizes is what it evaluates") {
  ScriptedUpstream up;
  const std::string body = cc({S("a b"), M("c <|im_end|> d")});
  const auto rendered = post_json(up.port(), "/apply-template", body).json()["prompt"].str();
  const auto ids =
      post_json(up.port(), "/tokenize",
                R"({"add_special":true,"parse_special":true,"content":)" + quote(rendered) + "}")
          .json()["tokens"];
  const auto answer = ask(up, body);
  CHECK(static_cast<int>(ids.items().size()) == answer.prompt_tokens);
  CHECK(answer.prompt_tokens == 1 + 3 + 2 + 3 + 3 + 1);
  CHECK(up.tokenize("<|im_end|>", false, true).size() == 1);
  CHECK(up.tokenize("<|im_end|>", false, false).size() == 3);
}

TEST_CASE("a slot reuses the common prefix but always computes one token") {
  ScriptedUpstream up;
  const auto first = ask(up, cc({M(W(20))}, R"(,"id_slot":1)"));
  CHECK(first.cache_n == 0);
  CHECK(first.prompt_n == 25);
  const auto again = ask(up, cc({M(W(20))}, R"(,"id_slot":1)"));
  CHECK(again.cache_n == 24);
  CHECK(again.cached_tokens == 24);
  const auto next = ask(up, cc({M(W(20)), R("ok"), M("q2")}, R"(,"id_slot":1)"));
  CHECK(next.cache_n == 25);
  CHECK(up.generations()[2].slot == 1);
  SECTION("the last generated token is not held") {
    up.configure([](Behaviour& b) { b.answer = "x y z"; });
    ask(up, cc({M("hi")}, R"(,"id_slot":0)"));
    CHECK(up.slot(0).size() == 6 + 2);
  }
  SECTION("without reuse nothing is cached") {
    CHECK(ask(up, cc({M(W(20))}, R"(,"id_slot":1,"cache_prompt":false)")).cache_n == 0);
  }
  SECTION("a slot out of range means any") {
    CHECK(ask(up, cc({M(W(20))}, R"(,"id_slot":7)")).cache_n == 24);
  }
  SECTION("without id_slot the similar slot is taken, else the least recently used") {
    CHECK(ask(up, cc({M(W(20))})).cache_n == 24);
    ask(up,
        cc({M("something quite different from it, so that only two of these many words, the start "
              "and the role, are what a slot may hold")}));
    CHECK(up.generations().back().slot == 0);
  }
}

TEST_CASE("native answers carry the slot and the generated ids") {
  Behaviour behaviour;
  behaviour.answer = "x y";
  ScriptedUpstream up(behaviour);
  const Json answer = post_json(up.port(), "/completion",
                                R"({"prompt":[1,50,51],"id_slot":1,"return_tokens":true})")
                          .json();
  CHECK(answer["id_slot"].integer() == 1);
  CHECK(answer["tokens"].items().size() == 2);
  CHECK(up.slot(1).size() == 4);
  const auto stream = post_json(up.port(), "/completion", R"({"prompt":"a b","stream":true})");
  const auto events = sse_data(stream.body);
  REQUIRE(events.size() == 3);
  CHECK(Json::parse(events[0]).value()["tokens"].items().size() == 1);
  CHECK(Json::parse(events[2]).value()["timings"]["prompt_n"].integer() == 2);
}

TEST_CASE("streams come event by event and end whole") {
  Behaviour behaviour;
  behaviour.answer = "a b c";
  behaviour.event_delay = milliseconds(50);
  ScriptedUpstream up(behaviour);
  const auto response =
      post_json(up.port(), "/v1/chat/completions", cc({M("q")}, R"(,"stream":true)"));
  CHECK(response.whole());
  CHECK(response.pieces.size() >= 5);
  CHECK(sse_data(response.body).back() == "[DONE]");
  CHECK(as_answer(response).prompt_n == 6);
}

TEST_CASE("a request for a busy slot waits until it is free") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(300);
  ScriptedUpstream up(behaviour);
  std::thread first([&] { ask(up, cc({M("a")}, R"(,"id_slot":0)")); });
  REQUIRE(wait_until([&] { return up.slot_busy(0); }));
  ask(up, cc({M("b")}, R"(,"id_slot":0)"));
  first.join();
  const auto log = up.generations();
  REQUIRE(log.size() == 2);
  CHECK_FALSE(log[0].deferred);
  CHECK(log[1].deferred);
}

TEST_CASE("a closed connection cancels its generation and is logged as FIN or RST") {
  Behaviour behaviour;
  behaviour.per_new_token = std::chrono::microseconds(1000);
  ScriptedUpstream up(behaviour);
  const bool hard = GENERATE(false, true);
  RawClient client(up.port());
  client.send_json("/v1/chat/completions", cc({M(W(3000))}, R"(,"id_slot":0)"));
  REQUIRE(wait_until([&] { return up.slot_busy(0); }));
  hard ? client.reset() : client.close();
  REQUIRE(wait_until([&] { return up.generations()[0].cancelled; }, milliseconds(1000)));
  CHECK(up.generations()[0].peer == (hard ? PeerEnd::rst : PeerEnd::fin));
  CHECK_FALSE(up.slot_busy(0));
  CHECK(up.slot(0).size() < 3000);
}

TEST_CASE("the host cache serves only requests without id_slot") {
  Behaviour behaviour;
  behaviour.own_cache = true;
  ScriptedUpstream up(behaviour);
  const std::string a = cc({M(W(100))});
  ask(up, cc({M(W(100))}, R"(,"id_slot":0)"));
  ask(up, cc({M("b b b")}, R"(,"id_slot":0)"));
  up.set_slot(1, {});
  CHECK(ask(up, cc({M(W(100))}, R"(,"id_slot":1)")).cache_n == 0);
  up.set_slot(1, {});
  CHECK(ask(up, a).cache_n == 104);
}

TEST_CASE("several answers touch several slots") {
  ScriptedUpstream up;
  const auto answer =
      post_json(up.port(), "/v1/completions", R"({"prompt":["a b","c d"],"max_tokens":1})");
  CHECK(answer.json()["choices"].items().size() == 2);
  CHECK(up.slot(0).size() == 3);
  CHECK(up.slot(1).size() == 3);
}

TEST_CASE("slots are saved, restored and erased") {
  ScriptedUpstream up;
  ask(up, cc({M("a b c")}, R"(,"id_slot":0)"));
  const auto size = up.slot(0).size();
  const std::string file = R"({"filename":"x.bin"})";
  CHECK(post_json(up.port(), "/slots/0?action=save", file).json()["n_saved"].integer() ==
        static_cast<int>(size));
  CHECK(post_json(up.port(), "/slots/1?action=restore", file).json()["n_restored"].integer() ==
        static_cast<int>(size));
  CHECK(up.slot(1) == up.slot(0));
  CHECK(post_json(up.port(), "/slots/0?action=erase", "").status == 200);
  CHECK(up.slot(0).empty());
  CHECK(post_json(up.port(), "/slots/0?action=save", R"({"filename":"../x"})").status == 400);
  up.configure([](Behaviour& b) { b.slot_action_status = 501; });
  CHECK(post_json(up.port(), "/slots/0?action=save", file).status == 501);
}

TEST_CASE("a restarted upstream has the same port, empty slots and another media marker") {
  ScriptedUpstream up;
  ask(up, cc({M("a b c")}));
  const std::string marker = up.media_marker();
  RawClient idle(up.port());
  idle.send_request("GET", "/health");
  idle.read_response();
  up.stop();
  CHECK(idle.wait_closed(milliseconds(1000)));
  CHECK_THROWS(RawClient(up.port()));
  up.start();
  CHECK(get(up.port(), "/health").status == 200);
  CHECK(up.slot(0).empty());
  CHECK(up.media_marker() != marker);
}

TEST_CASE("work wakes a sleeping upstream with empty slots, health and props do not") {
  ScriptedUpstream up;
  ask(up, cc({M("a b c")}));
  up.configure([](Behaviour& b) { b.is_sleeping = true; });
  get(up.port(), "/health");
  CHECK(get(up.port(), "/props").json()["is_sleeping"].boolean());
  CHECK(ask(up, cc({M("a b c")})).cache_n == 0);
  CHECK_FALSE(get(up.port(), "/props").json()["is_sleeping"].boolean(true));
}

TEST_CASE("an idle connection is closed when the upstream has a limit") {
  Behaviour behaviour;
  behaviour.idle_close = milliseconds(100);
  ScriptedUpstream up(behaviour);
  RawClient client(up.port());
  client.send_request("GET", "/health");
  CHECK(client.read_response().status == 200);
  CHECK(client.wait_closed(milliseconds(1000)));
}

TEST_CASE("a hook gets the first say and can send anything") {
  ScriptedUpstream up;
  up.on_request([](const LoggedRequest& request, Connection& connection) {
    if (request.path == "/half") {
      connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
      connection.close();
    } else if (request.path == "/reset") {
      connection.begin_stream();
      connection.send_chunk("data: 1\n\n");
      connection.reset();
    } else if (request.path == "/endless") {
      connection.send("HTTP/1.1 200 OK\r\n\r\nuntil the close");
      connection.close();
    } else {
      return false;
    }
    return true;
  });
  CHECK(get(up.port(), "/half").end == End::truncated);
  CHECK(get(up.port(), "/reset").end == End::reset);
  const auto endless = get(up.port(), "/endless");
  CHECK(endless.end == End::clean);
  CHECK(endless.body == "until the close");
  CHECK(get(up.port(), "/health").status == 200);
}

TEST_CASE("chunked and expected bodies are read and logged") {
  ScriptedUpstream up;
  RawClient client(up.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  CHECK(client.read_head().status == 100);
  client.send_slowly("f\r\n{\"content\":\"a b\r\n2\r\n\"}\r\n0\r\n\r\n", 7, milliseconds(1));
  CHECK(client.read_response().json()["tokens"].items().size() == 2);
  const auto log = up.requests_to("POST", "/tokenize");
  REQUIRE(log.size() == 1);
  CHECK(log[0].chunked);
  CHECK(log[0].body() == R"({"content":"a b"})");
}

TEST_CASE("a process is started, its output collected, its end seen") {
  Process process("/bin/sh", {"-c", "echo out; echo err >&2; exit 7"});
  CHECK(process.wait_exit() == 7);
  CHECK(wait_until([&] { return process.out() == "out\n" && process.err() == "err\n"; }));
  Process sleeping("/bin/sleep", {"60"});
  CHECK(sleeping.running());
  sleeping.signal(15);
  CHECK(sleeping.wait_exit() == 128 + 15);
}

TEST_CASE("a forwarded body is compared byte by byte, but for the added members") {
  CHECK(forwarding_fault(R"({"a":1})", R"({"a":1})").empty());
  CHECK(forwarding_fault(R"({"a":1})", R"({"id_slot":3,"cache_prompt":true,"a":1})").empty());
  CHECK_FALSE(forwarding_fault(R"({"a":1})", R"({"id_slot":3,"a": 1})").empty());
  CHECK_FALSE(forwarding_fault(R"({"a":1})", R"({"other":3,"a":1})").empty());
}
