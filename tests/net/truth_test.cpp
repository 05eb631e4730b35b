// What toki believes about slots stays true whatever a client does: each test shows a way in which
// it once did not.
#include "net_test.hpp"

using namespace toki::test;

namespace {

// A conversation whose slot is known, and what its next turn must find there.
struct Known {
  explicit Known(Rig& rig) : rig_(rig) {
    rig_.chat(cc({S(words("known", 300)), M("q")}));
    rig_.up.clear_log();
  }
  void still_true() {
    const Answer next = rig_.chat(cc({S(words("known", 300)), M("q"), R("ok"), M("more")}));
    REQUIRE(next.status == 200);
    CHECK(next.reused <= next.cache_n);
    CHECK(rig_.tokid.stat("integrity_faults_total") == 0);
  }
  Rig& rig_;
};

}  // namespace

TEST_CASE("a request that the upstream refuses leaves the slots as they were") {
  Rig rig;
  rig.chat(cc({S(words("known", 300)), M("q")}));
  const int status = GENERATE(400, 500);
  rig.up.on_request(
      on_generation([status](const LoggedRequest&, toki::test::Connection& connection) {
        connection.respond(
            status, R"({"error":{"code":400,"message":"no","type":"invalid_request_error"}})");
        return true;
      }));
  CHECK(rig.chat(cc({M("refused")})).status == status);
  CHECK(rig.post("/v1/completions", R"({"prompt":["a","b"]})").status == status);
  rig.up.on_request({});
  const Answer next = rig.chat(cc({S(words("known", 300)), M("q"), R("ok"), M("more")}));
  CHECK(next.reused >= 300);
  CHECK(next.reused <= next.cache_n);
}

TEST_CASE("a client that leaves in mid-answer leaves its prompt behind for the next try") {
  Behaviour behaviour;
  behaviour.answer = words("a", 200);
  behaviour.event_delay = milliseconds(20);
  Rig rig(behaviour);
  const std::string body = cc({S(words("long", 300)), M("q")}, R"(,"stream":true)");
  {
    RawClient client(rig.port());
    client.send_json(kChat, body);
    HttpResponse response = client.read_head();
    REQUIRE(client.read_body_until(response,
                                   [](const HttpResponse& r) { return r.pieces.size() >= 5; }));
  }
  REQUIRE(rig.tokid.wait_stat("slots_busy", 0));
  REQUIRE(wait_until([&] { return !rig.up.slot_busy(0) && !rig.up.slot_busy(1); }));
  CHECK(rig.tokid.stat("requests_cancelled") == 1);
  rig.up.configure([](Behaviour& now) {
    now.answer = "ok";
    now.event_delay = milliseconds(0);
  });
  const Answer again = rig.chat(cc({S(words("long", 300)), M("q")}));
  CHECK(again.reused >= 300);
  CHECK(again.reused <= again.cache_n);
}

TEST_CASE("several answers are recognised however they are asked for, and take no pin") {  // B56
  Rig rig;
  Known known(rig);
  const std::string extra = GENERATE(R"(,"n":2)", R"(,"n":2.0)", R"(,"n_cmpl":2)",
                                     R"(,"n":1,"n_cmpl":2)", R"(,"n":2,"id_slot":0)");
  const Answer answer = rig.chat(cc({M("several")}, extra));
  CHECK(answer.status == 200);
  CHECK(answer.slot == "any");
  CHECK(answer.reason == "several_answers");
  known.still_true();
}

TEST_CASE("a generation behind an odd spelling of its path is recognised") {
  Rig rig;
  Known known(rig);
  const std::string path =
      GENERATE("/v1/chat/completion%73", "/v1%2Fchat/completions", "/v1/chat/completions?x=%73");
  const double before = rig.tokid.stat("passthrough_total");
  rig.post(path, cc({M("spelled")}));
  CHECK(rig.tokid.stat("passthrough_total") == before);
  CHECK(rig.tokid.stat("requests_total") == 2);
}

TEST_CASE("a slot action through toki makes it forget what the slots hold") {
  Rig rig;
  Known known(rig);
  CHECK(post_json(rig.port(), "/slots/0?action=erase", "{}").status == 200);
  CHECK(post_json(rig.port(), "/slots/1?action=erase", "{}").status == 200);
  known.still_true();
}

TEST_CASE("after an adapter change nothing that was computed before is reused") {  // B69
  Rig rig;
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    return request.method == "POST" && request.path.ends_with("adapters") &&
           connection.respond(200, R"({"success":true})");
  });
  const std::string body = cc({S(W(300)), M("q")});
  for (const char* path : {"/lora-adapters", "/lora%2Dadapters"}) {
    rig.chat(body);
    CHECK(rig.chat(body).cache_n > 300);
    CHECK(post_json(rig.port(), path, R"([{"id":0,"scale":0.5}])").status == 200);
    const Answer after = rig.chat(body);
    CHECK(after.reused == 0);
    CHECK(after.cache_n == 0);
  }
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("an adapter change that the upstream refuses forgets nothing") {
  Rig rig;
  rig.chat(cc({S(words("known", 300)), M("q")}));
  rig.up.on_request([](const LoggedRequest& request, toki::test::Connection& connection) {
    return request.path == "/lora-adapters" && connection.respond(400, "{}");
  });
  CHECK(post_json(rig.port(), "/lora-adapters", "[]").status == 400);
  CHECK(rig.chat(cc({S(words("known", 300)), M("q"), R("ok"), M("more")})).reused >= 300);
}

TEST_CASE("an unpinned request is not taken for a slot that still works off another's") {
  Rig rig;
  rig.chat(cc({S(words("known", 300)), M("q")}));
  // The other slot goes on working for somebody who has left.
  rig.up.hold_slot(1);
  // So the new request does not begin at once either.
  rig.up.on_request(on_generation([](const LoggedRequest&, toki::test::Connection& connection) {
    return !connection.sleep(milliseconds(300));
  }));
  const Answer answer = rig.post("/v1/completions", R"({"prompt":["one"]})");
  CHECK(answer.status == 200);
  CHECK(answer.slot == "any");
  rig.up.release_slot(1);
  const Answer next = rig.chat(cc({S(words("known", 300)), M("q"), R("ok"), M("more")}));
  CHECK(next.reused <= next.cache_n);
}

TEST_CASE("a fenced slot does not hold up a request for several") {  // B22
  Rig rig({}, {"--progress-limit-ms", "500", "--slot-wait-ms", "0"});
  std::atomic<bool> silent{true};
  rig.up.on_request(on_generation([&](const LoggedRequest&, toki::test::Connection& connection) {
    return silent.exchange(false) && !connection.wait_peer_gone(milliseconds(20000));
  }));
  rig.up.hold_slot(0);
  CHECK(rig.chat(cc({M("silent")})).status == 504);
  CHECK(rig.tokid.stat("slots_fenced") == 1);
  CHECK(rig.chat(cc({M("two")}, R"(,"n":2)")).status == 200);
  CHECK(rig.chat(cc({M("one")})).status == 200);
  rig.up.release_slot(0);
  CHECK(rig.tokid.wait_stat("slots_fenced", 0));
}

TEST_CASE("trailers of a request do not become header fields") {
  Rig rig;
  RawClient client(rig.port());
  const std::string body = cc({M("x")});
  char size[16];
  std::snprintf(size, sizeof size, "%zx", body.size());
  client.send(
      std::string("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                  "X-Real: 1\r\n\r\n") +
      size + "\r\n" + body + "\r\n0\r\nX-Smuggled: 1\r\nAuthorization: Bearer evil\r\n\r\n");
  CHECK(client.read_response().status == 200);
  const auto sent = rig.up.generations().at(0);
  CHECK(sent.headers.get("x-real") == "1");
  CHECK(sent.headers.get("x-smuggled").empty());
  CHECK(sent.headers.get("authorization").empty());
}

TEST_CASE("a chunk's extension without end is refused instead of kept") {
  Rig rig;
  RawClient client(rig.port());
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  const std::string piece(65536, 'e');
  for (int i = 0; i < 64 && client.send(piece); ++i) {
  }
  const HttpResponse answer = client.read_response();
  CHECK((answer.status == 431 || answer.status == 400 || answer.end == End::reset));
  CHECK(rig.up.generations().empty());
  if (!rig.tokid.sanitized()) {
    CHECK(rig.tokid.peak_memory_kib() < 64 * 1024);
  }
}

TEST_CASE("lengths that two readers may take for different ones are refused") {  // B77
  Rig rig;
  const std::string lines = GENERATE(
      "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
      "Content-Length: 2, 2", "Content-Length: 2\r\nContent-Length: 2",
      "Content-Length: 0\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked, gzip");
  RawClient client(rig.port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + lines + "\r\n\r\n{}");
  CHECK(client.read_response().status == 400);
  CHECK(client.wait_closed(milliseconds(5000)));
  CHECK(rig.up.requests_to("POST", kChat).empty());
}

TEST_CASE("an HTTP/1.0 client can tell a broken answer from a whole one") {  // B26
  Rig rig;
  rig.up.on_request(on_generation([](const LoggedRequest&, toki::test::Connection& connection) {
    connection.begin_stream();
    connection.send_chunk("data: {}\n\n");
    connection.reset();
    return true;
  }));
  RawClient client(rig.port());
  const std::string body = cc({M("x")}, R"(,"stream":true)");
  client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpResponse answer = client.read_response();
  CHECK(answer.end == End::reset);
}
