// An upstream that is down, slow, dying or talking nonsense: one clear answer, and the next request
// works.
#include <atomic>

#include "net_test.hpp"

namespace {

using namespace toki::test;

void check_next_works(Rig& rig) {
  rig.up.on_request({});
  const Answer answer = rig.chat(cc({M("the next one")}));
  CHECK(answer.status == 200);
  CHECK(answer.http.whole());
  CHECK(rig.tokid.process().running());
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
}

}  // namespace

// B52
TEST_CASE("a pooled connection that the upstream closed is not used again") {
  Behaviour behaviour;
  behaviour.idle_close = milliseconds(300);
  // Between the requests nobody looks whether it is there, which would keep a connection alive.
  Rig rig(behaviour, {"--probe-interval-ms", "60000"});
  for (int i = 0; i < 4; ++i) {
    const Answer answer = rig.chat(cc({M(W(100))}));
    CHECK(answer.status == 200);
    // A closed connection alone is no restart: what the slots hold is still known.
    if (i > 0) CHECK(answer.reused >= 100);
    REQUIRE(wait_until([&] { return rig.up.open_connections() == 0; }));
  }
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 4);
  for (std::size_t i = 1; i < 4; ++i) CHECK(log[i].connection > log[i - 1].connection);
  CHECK(rig.tokid.stat("upstream_restarts_total") == 0);
}

// B52
TEST_CASE("a late answer is never given to the next request") {
  Rig rig({}, {"--progress-limit-ms", "300", "--slot-wait-ms", "50"});
  std::atomic<bool> first{true};
  std::atomic<bool> answered{false};
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    if (!first.exchange(false)) return false;
    // Deaf to the closed connection, as a server that is stuck.
    std::this_thread::sleep_for(milliseconds(900));
    connection.respond(200, R"({"late":"AAA"})");
    answered = true;
    return true;
  }));
  const Answer a = rig.chat(cc({M("a")}));
  check_error(a.http, 504, "timeout_error");
  const Answer b = rig.chat(cc({M("b")}));
  CHECK(b.status == 200);
  CHECK(b.http.body.find("AAA") == std::string::npos);
  REQUIRE(wait_until([&] { return answered.load(); }));
  const Answer c = rig.chat(cc({M("c")}));
  CHECK(c.status == 200);
  CHECK(c.http.body.find("AAA") == std::string::npos);
}

// B52
TEST_CASE("a request that was sent is never sent again") {
  Rig rig;
  const bool warm = GENERATE(false, true);
  if (warm) CHECK(rig.chat(cc({M("warm")})).status == 200);
  rig.up.clear_log();
  const bool hard = GENERATE(false, true);
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    hard ? connection.reset() : connection.close();
    return true;
  }));
  const Answer answer = rig.chat(cc({M("once")}));
  check_error(answer.http, 502, "upstream_error");
  CHECK(wait_until([&] { return occurrences(rig.tokid.log(), "status=502 ending=failed") == 1; }));
  CHECK(get(rig.port(), "/toki/requests").json()["requests"][std::size_t{0}]["status"].integer() ==
        502);
  CHECK(rig.up.generations().size() == 1);
  CHECK(rig.tokid.stat("requests_failed") == 1);
  check_next_works(rig);
}

TEST_CASE("nonsense instead of an answer is one 502") {
  Rig rig;
  const std::string ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
  const auto [name, bytes] = GENERATE_COPY(table<std::string, std::string>({
      {"garbage", "BLAH BLAH BLAH\r\n\r\n"},
      {"another protocol", std::string("\x16\x03\x01\0\x05hello\r\n\r\n", 14)},
      {"no status", "HTTP/1.1 \r\n\r\n"},
      {"status of letters", "HTTP/1.1 abc OK\r\n\r\n"},
      {"header without colon", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"},
      {"negative length", ok + "Content-Length: -5\r\n\r\n{}"},
      {"length of letters", ok + "Content-Length: abc\r\n\r\n{}"},
      {"huge header", ok + "X-Big: " + std::string(1 << 20, 'x') + "\r\n\r\n{}"},
      {"half a head", "HTTP/1.1 200 OK\r\nContent-Ty"},
      {"nothing", ""},
  }));
  INFO(name);
  rig.up.on_request(on_generation([bytes = bytes](const LoggedRequest&, Connection& connection) {
    connection.send(bytes);
    connection.close();
    return true;
  }));
  const bool stream = GENERATE(false, true);
  const Answer answer = rig.chat(cc({M("q")}, stream ? R"(,"stream":true)" : ""));
  check_error(answer.http, 502, "upstream_error");
  // Nothing of it leaks to the client.
  CHECK(answer.http.body.find("BLAH") == std::string::npos);
  CHECK(rig.up.generations().size() == 1);
  check_next_works(rig);
}

TEST_CASE("an invalid chunk is no complete answer") {
  Rig rig;
  const std::string chunk =
      GENERATE("zz\r\n", "5\r\nabcdefgh\r\n", "ffffffffffffffffff\r\n", "-1\r\n");
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.send(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{\"\r\n" +
        chunk);
    connection.close();
    return true;
  }));
  const Answer answer = rig.chat(cc({M("q")}));
  INFO(to_string(answer.http.end) << " " << answer.http.body);
  CHECK((answer.status == 502 || !answer.http.whole()));
  check_next_works(rig);
}

TEST_CASE("an answer that trickles in is passed on whole") {
  Rig rig;
  const std::string body = R"({"choices":[],"x":"slow"})";
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.send_each("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n\r\n" + body,
                         1, milliseconds(2));
    return true;
  }));
  const Answer answer = rig.chat(cc({M("q")}));
  CHECK(answer.status == 200);
  CHECK(answer.http.body == body);
  check_next_works(rig);
}

TEST_CASE("a backend that hangs is not ready until it answers again, and keeps what it holds") {
  std::atomic<bool> hangs{true};
  std::atomic<int> looks{0};
  Rig rig;
  const std::string body = cc({S(W(100)), M("q")});
  const Answer first = rig.chat(body);
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (!hangs || request.path != "/health") return false;
    ++looks;
    connection.wait_peer_gone(milliseconds(30000));
    return true;
  });
  const auto ready = [&] { return get(rig.port(), "/toki/ready").status; };
  REQUIRE(wait_until([&] { return looks >= 2; }, milliseconds(20000)));
  const bool early = ready() == 200;
  CHECK((early || looks >= 4));
  REQUIRE(wait_until([&] { return ready() == 503; }, milliseconds(60000)));
  CHECK(looks >= 4);
  CHECK(get(rig.port(), "/toki/ready").json()["reason"].str() == "backend is silent");
  const HttpResponse health = get(rig.port(), "/toki/health");
  CHECK(health.status == 503);
  CHECK(health.json()["status"].str() == "silent");
  CHECK(rig.chat(body).cache_n == first.prompt_tokens - 1);
  hangs = false;
  REQUIRE(rig.tokid.wait_ready());
  CHECK(ready() == 200);
  CHECK(rig.tokid.slot(0).known_tokens + rig.tokid.slot(1).known_tokens >= first.prompt_tokens - 1);
  CHECK(rig.chat(body).cache_n == first.prompt_tokens - 1);
  CHECK(rig.tokid.stat("upstream_restarts_total") == 0);
}

TEST_CASE("a backend that is silent while it works for us stays ready") {
  std::atomic<bool> works{true};
  std::atomic<int> looks{0};
  Rig rig;
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path == "/health" && works) {
      ++looks;
      connection.wait_peer_gone(milliseconds(30000));
      return true;
    }
    if (!is_generation_path(request.path)) return false;
    while (works && connection.sleep(milliseconds(10))) {
    }
    return false;
  });
  Background computes(rig.port(), kChat, cc({M("q")}), milliseconds(90000));
  REQUIRE(rig.up.wait_generations(1));
  const int before = looks;
  REQUIRE(wait_until([&] { return looks >= before + 5; }, milliseconds(60000)));
  CHECK(get(rig.port(), "/toki/ready").status == 200);
  works = false;
  CHECK(computes.join().status == 200);
}

TEST_CASE("a silent upstream is a 504 for the plain call") {
  Rig rig({}, {"--progress-limit-ms", "400"});
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.wait_peer_gone(milliseconds(10000));
    connection.close();
    return true;
  }));
  check_error(rig.chat(cc({M("q")})).http, 504, "timeout_error");
  rig.up.on_request({});
  CHECK(wait_until([&] { return rig.chat(cc({M("next")})).status == 200; }));
}

TEST_CASE("progress is what counts, not the length of a generation") {
  Behaviour behaviour;
  behaviour.answer = words("a", 20);
  behaviour.event_delay = milliseconds(100);
  Rig rig(behaviour, {"--progress-limit-ms", "800"});
  const Answer answer = rig.chat(cc({M("q")}, R"(,"stream":true)"));
  CHECK(answer.status == 200);
  CHECK(answer.http.whole());
  CHECK(sse_data(answer.http.body).back() == "[DONE]");
}

TEST_CASE("rendering or tokenizing nonsense only costs the cache") {
  Rig rig;
  const std::string path = GENERATE("/apply-template", "/tokenize");
  const std::string bytes = GENERATE(
      "not json", "", "[]", "null", R"({"tokens":"x","prompt":7})",
      R"({"tokens":[1,"x",2.5],"prompt":null})", R"({"tokens":[-1,99999999999],"prompt":[]})",
      R"({"tokens":{"a":1},"prompt":{}})", "{\"prompt\":\"\xFF\",\"tokens\":[\"\xFF\"]}");
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != path) return false;
    connection.respond(200, bytes);
    return true;
  });
  const Answer answer = rig.chat(cc({M("q")}));
  INFO(path << " answers " << bytes);
  CHECK(answer.status == 200);
  CHECK(answer.cache == "bypass");
  CHECK(answer.reason == "tokenize_failed");
  CHECK_FALSE(rig.up.generations().at(0).json().has("id_slot"));
  check_next_works(rig);
}

TEST_CASE("a tokenizer that breaks, hangs or stops only costs the cache") {
  Rig rig({}, {"--tokenize-limit-ms", "400"});
  const std::string path = GENERATE("/apply-template", "/tokenize");
  const int way = GENERATE(0, 1, 2, 3);
  std::atomic<bool> given_up{false};
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != path) return false;
    if (way == 0) connection.close();
    if (way == 1) connection.reset();
    if (way == 2) given_up = connection.wait_peer_gone(milliseconds(30000));
    if (way == 3) connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"tok");
    connection.close();
    return true;
  });
  const std::string body = cc({M("q")});
  const Answer answer = rig.chat(body);
  INFO(path << " way " << way);
  CHECK(answer.status == 200);
  CHECK(answer.reason == "tokenize_failed");
  if (way == 2) CHECK(wait_until([&] { return given_up.load(); }));
  CHECK(forwarding_fault(body, rig.up.generations().at(0).body()) == "");
  check_next_works(rig);
}

TEST_CASE("nonsense from the probes neither kills tokid nor the service for good") {
  ScriptedUpstream up;
  const std::string bytes = GENERATE("not json", "[]", "", R"({"total_slots":"x"})",
                                     R"({"total_slots":-3,"default_generation_settings":7})",
                                     R"({"total_slots":1000000000})");
  const bool from_start = GENERATE(true, false);
  std::atomic<bool> nonsense{from_start};
  up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (!nonsense || request.path != "/props") return false;
    connection.respond(200, bytes);
    return true;
  });
  INFO("props " << bytes << (from_start ? " from the start" : " later"));
  Tokid tokid(up.url());
  if (!from_start) {
    REQUIRE(tokid.wait_ready());
    nonsense = true;
  }
  up.clear_log();
  REQUIRE(wait_until([&] { return up.requests_to("GET", "/props").size() >= 5; }));
  const HttpResponse during = post_json(tokid.port(), kChat, cc({M("q")}));
  CHECK((during.status == 200 || during.status == 503 || during.status == 502));
  if (during.status != 200) {
    check_error(during, during.status,
                during.status == 502 ? "upstream_error" : "unavailable_error");
  }
  nonsense = false;
  REQUIRE(tokid.wait_ready());
  CHECK(wait_until([&] { return post_json(tokid.port(), kChat, cc({M("q")})).status == 200; }));
  CHECK(tokid.process().running());
}

TEST_CASE("an upstream that goes away in service is an error, and comes back by itself") {
  Rig rig;
  CHECK(rig.chat(cc({M("one")})).status == 200);
  rig.up.stop();
  for (int i = 0; i < 3; ++i) {
    const HttpResponse down = post_json(rig.port(), kChat, cc({M("two")}));
    CHECK((down.status == 502 || down.status == 503));
    check_error(down, down.status, down.status == 502 ? "upstream_error" : "unavailable_error");
  }
  const HttpResponse other = get(rig.port(), "/v1/models");
  CHECK((other.status == 502 || other.status == 503));
  check_error(other, other.status, other.status == 502 ? "upstream_error" : "unavailable_error");
  CHECK(get(rig.port(), "/toki/stats").status == 200);
  CHECK(get(rig.port(), "/toki/slots").status == 200);
  rig.up.start();
  CHECK(wait_until([&] { return rig.chat(cc({M("three")})).status == 200; }));
}

TEST_CASE("a passed-through call gets the upstream's failure as one clear answer too") {
  Rig rig;
  const bool garbage = GENERATE(false, true);
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != "/x") return false;
    if (garbage) connection.send("garbage\r\n\r\n");
    connection.close();
    return true;
  });
  check_error(get(rig.port(), "/x"), 502, "upstream_error");
  CHECK(wait_until([&] { return occurrences(rig.tokid.log(), "status=502 ending=failed") == 1; }));
  CHECK(get(rig.port(), "/v1/models").status == 200);
}

TEST_CASE("a prompt that does not fit gets the server's own error") {
  Behaviour behaviour;
  behaviour.n_ctx = 100;
  Rig rig(behaviour);
  const Answer answer = rig.chat(cc({M(W(200))}));
  CHECK(answer.status == 400);
  const Json error = answer.http.json()["error"];
  CHECK(error["type"].str() == "exceed_context_size_error");
  CHECK(error["n_prompt_tokens"].integer() == 205);
  check_next_works(rig);
}
