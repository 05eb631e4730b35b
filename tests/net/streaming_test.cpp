// Streams: bytes untouched and at once, keep-alives only where they may be, ends that tell the
// truth.
#include <atomic>
#include <thread>

#include "net_test.hpp"

namespace {

using namespace toki::test;

const std::string kStream = R"(,"stream":true)";

// An event stream's body without toki's own comments.
std::string without_comments(std::string body, const std::string& form = ": toki\n\n") {
  for (auto at = body.find(form); at != std::string::npos; at = body.find(form, at)) {
    body.erase(at, form.size());
  }
  return body;
}

bool has_comments(const HttpResponse& response, std::size_t count) {
  return occurrences(response.body, ": toki\n") >= count;
}

// Sends a streamed chat, whose answer the gate holds until so many comments came; the whole answer.
HttpResponse stream_held(const Rig& rig, Gate& gate, const std::string& question,
                         std::size_t comments) {
  RawClient client(rig.port());
  client.send_json(kChat, cc({M(question)}, kStream));
  HttpResponse response = client.read_head();
  CHECK(client.read_body_until(
      response, [&](const HttpResponse& so_far) { return has_comments(so_far, comments); }));
  gate.open();
  client.read_rest(response);
  return response;
}

// A chat event of the upstream's own.
std::string event(const std::string& text) {
  return R"(data: {"choices":[{"index":0,"delta":{"content":)" + quote(text) + "}}]}\n\n";
}

}  // namespace

// B05
TEST_CASE("a client that leaves during prefill takes its generation with it") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(30000);
  Rig rig(behaviour);
  const bool stream = GENERATE(false, true);
  const bool hard = GENERATE(false, true);
  const std::string body = cc({M(W(3000))}, stream ? kStream : "");
  RawClient client(rig.port());
  client.send_json(kChat, body);
  REQUIRE(rig.up.wait_generations(1));
  REQUIRE(wait_until([&] { return !rig.up.generations()[0].prompt.empty(); }));
  hard ? client.reset() : client.close();
  REQUIRE(wait_until([&] { return rig.up.generations()[0].cancelled; }));
  CHECK(rig.up.generations()[0].peer != PeerEnd::open);
  CHECK(rig.tokid.wait_stat("requests_cancelled", 1));
  CHECK(rig.tokid.stat("requests_total") == 1);
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
  // The slot kept an unknown part of the prompt: nothing beyond it may be claimed.
  rig.up.configure([](Behaviour& b) { b.answer_delay = milliseconds(0); });
  const Answer again = rig.chat(cc({M(W(3000))}));
  CHECK(again.status == 200);
  CHECK(again.reused <= again.cache_n);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B05
TEST_CASE("what a cancelled prefill left in its slot is no integrity fault") {
  Behaviour behaviour;
  behaviour.slots = 1;
  Rig rig(behaviour);
  // The first request is short, so that what answers may add is known to be little.
  CHECK(rig.chat(cc({M("first")})).status == 200);
  // The next one is half computed when its client leaves.
  std::atomic<bool> half{false};
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    rig.up.hold_slot(0);
    connection.wait_peer_gone(milliseconds(30000));
    rig.up.set_slot(0, rig.up.tokenize("<|im_start|>user " + W(500)));
    rig.up.release_slot(0);
    connection.close();
    half = true;
    return true;
  }));
  RawClient client(rig.port());
  client.send_json(kChat, cc({M(W(1000))}));
  REQUIRE(rig.up.wait_generations(2));
  client.close();
  REQUIRE(wait_until([&] { return half.load(); }));
  CHECK(rig.tokid.wait_stat("requests_cancelled", 1));
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
  rig.up.on_request({});
  const Answer again = rig.chat(cc({M(W(1000))}));
  CHECK(again.status == 200);
  CHECK(again.cache_n == 502);
  CHECK(again.reused <= again.cache_n);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B05
TEST_CASE("a client that leaves in mid-stream takes its generation with it") {
  Behaviour behaviour;
  behaviour.answer = words("a", 200);
  behaviour.event_delay = milliseconds(100);
  Rig rig(behaviour);
  RawClient client(rig.port());
  client.send_json(kChat, cc({M(W(100))}, kStream));
  HttpResponse response = client.read_head();
  REQUIRE(client.read_body_until(
      response, [](const HttpResponse& r) { return r.body.find("\n\n") != std::string::npos; }));
  client.close();
  REQUIRE(wait_until([&] { return rig.up.generations()[0].cancelled; }));
  CHECK(rig.tokid.wait_stat("requests_cancelled", 1));
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
  const Answer again = rig.chat(cc({M(W(100))}));
  CHECK(again.reused <= again.cache_n);
}

// B05, B19
TEST_CASE("a queued client that leaves is never seen by the upstream") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(30000);
  Rig rig(behaviour, {"--slot-wait-ms", "50"});
  RawClient first(rig.port());
  first.send_json(kChat, cc({M("one")}));
  RawClient second(rig.port());
  second.send_json(kChat, cc({M("two")}));
  REQUIRE(rig.up.wait_generations(2));
  RawClient queued(rig.port());
  queued.send_json(kChat, cc({M("QUEUED")}, GENERATE(true, false) ? kStream : ""));
  REQUIRE(rig.tokid.wait_stat("queue_length", 1));
  queued.close();
  CHECK(rig.tokid.wait_stat("queue_length", 0));
  first.close();
  second.close();
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
  rig.up.configure([](Behaviour& b) { b.answer_delay = milliseconds(0); });
  CHECK(rig.chat(cc({M("next")})).status == 200);
  const auto log = rig.up.generations();
  CHECK(log.size() == 3);
  for (const auto& request : log) CHECK(request.body().find("QUEUED") == std::string::npos);
  CHECK(rig.tokid.stat("requests_cancelled") == 3);
}

// B06
TEST_CASE("comments keep a long prefill alive, and only a stream gets them") {
  Gate gate;
  Rig rig({}, {"--keepalive-grace-ms", "300", "--keepalive-interval-ms", "300"});
  rig.up.on_request(gate.holds_generations());
  Background plain(rig.port(), kChat, cc({M("hi")}));
  REQUIRE(rig.up.wait_generations(1));
  const auto begun = Clock::now();
  const HttpResponse stream = stream_held(rig, gate, "other hi", 7);
  CHECK(stream.status == 200);
  CHECK(stream.whole());
  CHECK(ms_between(begun, stream.head_at) > 250);
  const std::string before = stream.body.substr(0, stream.body.find("data:"));
  CHECK(occurrences(before, ": toki\n\n") >= 7);
  CHECK(without_comments(before).empty());
  CHECK(sse_data(stream.body).back() == "[DONE]");
  // The body of the other one is exactly the upstream's.
  const Answer& answer = plain.join();
  CHECK(answer.status == 200);
  CHECK(answer.http.body.front() == '{');
  CHECK(answer.http.body.find("toki") == std::string::npos);
  CHECK(answer.http.header("content-length") == std::to_string(answer.http.body.size()));
}

// B06
TEST_CASE("comments also keep a wait in the queue alive") {
  Behaviour behaviour;
  behaviour.slots = 1;
  Gate gate;
  Rig rig(behaviour, {"--keepalive-grace-ms", "200", "--keepalive-interval-ms", "200"});
  rig.up.on_request(gate.holds_generations());
  Background first(rig.port(), kChat, cc({M("one")}));
  REQUIRE(rig.up.wait_generations(1));
  const HttpResponse second = stream_held(rig, gate, "two", 3);
  CHECK(second.status == 200);
  CHECK(second.header("x-toki-cache") == "queued");
  CHECK(second.body.rfind(": toki\n\n", 0) == 0);
  CHECK(sse_data(second.body).back() == "[DONE]");
  CHECK(first.join().status == 200);
}

// B11
TEST_CASE("the form of a keep-alive is an option") {
  const std::string form = GENERATE("comment", "line", "off");
  Gate gate;
  Rig rig({}, {"--keepalive-grace-ms", "200", "--keepalive-interval-ms", "100", "--keepalive-form",
               form});
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    form == "off" ? connection.sleep(milliseconds(800)) : gate.pass(connection);
    return false;
  }));
  const HttpResponse response = form == "off" ? post_json(rig.port(), kChat, cc({M("hi")}, kStream))
                                              : stream_held(rig, gate, "hi", 2);
  CHECK(response.status == 200);
  CHECK(occurrences(response.body, ": toki\n\n") >= (form == "comment" ? 2u : 0u));
  CHECK(occurrences(response.body, ": toki\n") >= (form == "off" ? 0u : 2u));
  if (form == "off") CHECK(response.body.find(": toki") == std::string::npos);
  if (form == "line") {
    // Only what separates the last line from the first event may be an empty line.
    CHECK(response.body.rfind(": toki\n: toki\n", 0) == 0);
  }
  CHECK(sse_data(response.body).back() == "[DONE]");
}

// B11
TEST_CASE("comments and unknown fields of the upstream pass unchanged, and usage is still read") {
  Rig rig({}, {"--keepalive-form", "off"});
  const std::string bytes =
      std::string(":\n\n") + ": ping\n" + "event: x\n\n" + event("a") +
      R"(data: {"choices":[],"usage":{"completion_tokens":1,"prompt_tokens":6,)"
      R"("total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}},)"
      R"("timings":{"cache_n":0,"prompt_n":6,"prompt_ms":3.0}})"
      "\n\n" +
      "data: [DONE]\n\n";
  const std::size_t piece = GENERATE(std::size_t{1}, std::size_t{7}, std::size_t{100000});
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.begin_stream();
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      connection.send_chunk(std::string_view(bytes).substr(at, piece));
    }
    connection.end_stream();
    return true;
  }));
  const HttpResponse response = post_json(rig.port(), kChat, cc({M("q")}, kStream));
  CHECK(response.whole());
  CHECK(response.body == bytes);
  CHECK(rig.tokid.wait_stat("requests_completed", 1));
  CHECK(rig.tokid.stat("computed_tokens_total") == 6);
  CHECK(rig.tokid.stat("prompt_tokens_total") == 6);
}

// B11
TEST_CASE("keep-alives come before the first event and never cut one in two") {
  Gate gate;
  Rig rig({}, {"--keepalive-grace-ms", "100", "--keepalive-interval-ms", "100"});
  const std::string bytes = event("first") + event("second") + "data: [DONE]\n\n";
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    gate.pass(connection);
    connection.begin_stream();
    connection.send_chunk("data: {\"choi");
    connection.sleep(milliseconds(600));
    connection.send_chunk(event("first").substr(12));
    connection.sleep(milliseconds(600));
    connection.send_chunk(event("second").substr(0, event("second").size() - 1));
    connection.sleep(milliseconds(600));
    connection.send_chunk("\n");
    connection.send_chunk("data: [DONE]\n\n");
    connection.end_stream();
    return true;
  }));
  const HttpResponse response = stream_held(rig, gate, "q", 2);
  CHECK(response.whole());
  const auto first = response.body.find("data:");
  REQUIRE(first != std::string::npos);
  CHECK(without_comments(response.body.substr(0, first)).empty());
  CHECK(response.body.substr(first) == bytes);
}

// B12
TEST_CASE("a stream that is refused at once keeps the upstream's status, body and Retry-After") {
  Rig rig;
  const int status = GENERATE(400, 503, 429, 500);
  const std::string body = R"({"error":{"code":)" + std::to_string(status) +
                           R"(,"message":"bad","type":"invalid_request_error"}})";
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.sleep(milliseconds(50));
    connection.respond(status, body, {{"Retry-After", "2"}});
    return true;
  }));
  const HttpResponse response = post_json(rig.port(), kChat, cc({M("x")}, kStream));
  CHECK(response.status == status);
  CHECK(response.body == body);
  CHECK(response.header("retry-after") == "2");
  CHECK(response.header("content-type") == "application/json; charset=utf-8");
  CHECK(response.whole());
  rig.up.on_request({});
  CHECK(rig.chat(cc({M("x")}, kStream)).status == 200);
}

// B12
TEST_CASE("after the grace period a refusal is exactly one error event and no DONE") {
  Gate gate;
  Rig rig({}, {"--keepalive-grace-ms", "200", "--keepalive-interval-ms", "200"});
  const bool dies = GENERATE(false, true);
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    gate.pass(connection);
    if (dies) {
      connection.reset();
    } else {
      connection.respond(
          400, R"({"error":{"code":400,"message":"bad","type":"invalid_request_error"}})");
    }
    return true;
  }));
  const HttpResponse response = stream_held(rig, gate, "x", 1);
  CHECK(response.status == 200);
  CHECK(response.end == End::clean);
  const auto data = sse_data(response.body);
  REQUIRE(data.size() == 1);
  const Json error = Json::parse(data[0]).value_or(Json())["error"];
  CHECK(error["code"].integer() == (dies ? 502 : 400));
  if (!dies) CHECK(error["message"].str() == "bad");
  CHECK(response.body.find("[DONE]") == std::string::npos);
  CHECK(rig.tokid.wait_stat("requests_failed", 1));
}

// B19
TEST_CASE("a client that gives up waiting does not disturb the one that is served") {
  Behaviour behaviour;
  behaviour.slots = 1;
  Gate gate;
  Rig rig(behaviour);
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.begin_stream();
    for (int i = 1; i <= 20; ++i) {
      if (i == 11) gate.pass(connection);
      connection.send_chunk(event("event" + std::to_string(i)));
    }
    connection.send_chunk("data: [DONE]\n\n");
    connection.end_stream();
    return true;
  }));
  Background first(rig.port(), kChat, cc({M("main")}, kStream));
  REQUIRE(rig.up.wait_generations(1));
  RawClient aux(rig.port());
  aux.send_json(kChat, cc({M("aux")}));
  REQUIRE(rig.tokid.wait_stat("queue_length", 1));
  aux.close();
  CHECK(rig.tokid.wait_stat("queue_length", 0));
  gate.open();
  const Answer& answer = first.join();
  CHECK(answer.http.whole());
  for (int i = 1; i <= 20; ++i) {
    CHECK(answer.http.body.find("event" + std::to_string(i) + "\"") != std::string::npos);
  }
  CHECK(sse_data(answer.http.body).back() == "[DONE]");
  CHECK(rig.up.generations().size() == 1);
}

// B26
TEST_CASE("an upstream that dies in mid-answer is never a complete answer") {
  Rig rig;
  const int way = GENERATE(0, 1, 2, 3);
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    if (way == 0 || way == 1) {
      connection.begin_stream();
      connection.send_chunk(event("one"));
      connection.send_chunk(event("two"));
      connection.sleep(milliseconds(100));
      way == 0 ? connection.reset() : connection.close();
    } else {
      connection.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" +
                      std::string(way == 2 ? "Content-Length: 100" : "Transfer-Encoding: chunked") +
                      "\r\n\r\n" + (way == 2 ? "" : "28\r\n") + std::string(40, '{'));
      connection.close();
    }
    return true;
  }));
  const std::string body = cc({M(W(100))}, way < 2 ? kStream : "");
  const HttpResponse response = post_json(rig.port(), kChat, body);
  INFO("way " << way << " end " << to_string(response.end) << " body " << response.body);
  CHECK(response.body.find("[DONE]") == std::string::npos);
  if (way < 2) {
    const bool error_event = response.body.find("data: {\"error\"") != std::string::npos;
    CHECK((!response.whole() || error_event));
    CHECK(response.body.rfind(event("one") + event("two"), 0) == 0);
  } else {
    CHECK((!response.whole() || response.status == 502));
  }
  CHECK(rig.tokid.wait_stat("requests_failed", 1));
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
  rig.up.on_request({});
  // What the slot holds is not known now.
  CHECK(rig.chat(cc({M(W(100))})).reused == 0);
}

// B53
TEST_CASE("on SIGTERM a stream that outlives the drain time is aborted") {
  Behaviour behaviour;
  behaviour.answer = words("a", 600);
  behaviour.event_delay = milliseconds(100);
  Rig rig(behaviour, {"--drain-ms", "1000"});
  RawClient client(rig.port());
  client.send_json(kChat, cc({M("q")}, kStream));
  HttpResponse response = client.read_head();
  REQUIRE(
      client.read_body_until(response, [](const HttpResponse& r) { return r.pieces.size() >= 3; }));
  const auto asked = Clock::now();
  rig.tokid.process().signal(15);
  client.read_rest(response);
  CHECK_FALSE(response.whole());
  CHECK(response.body.find("[DONE]") == std::string::npos);
  // The answer would take a minute.
  CHECK(rig.tokid.process().wait_exit(milliseconds(20000)) == 0);
  CHECK(ms_between(asked, Clock::now()) > 800);
  CHECK(rig.up.generations().size() == 1);
}

// B53
TEST_CASE("on SIGTERM a stream that ends within the drain time is whole") {
  Gate gate;
  Rig rig;
  rig.up.on_request(gate.holds_generations());
  const int number = GENERATE(15, 2);
  Background stream(rig.port(), kChat, cc({M("q")}, kStream));
  REQUIRE(rig.up.wait_generations(1));
  rig.tokid.process().signal(number);
  // No new connections from now on.
  CHECK(wait_until([&] { return rig.tokid.health_status() == 0; }));
  gate.open();
  CHECK(stream.join().http.whole());
  CHECK(sse_data(stream.join().http.body).back() == "[DONE]");
  CHECK(rig.tokid.process().wait_exit() == 0);
}

// B53
TEST_CASE("a second signal ends the process at once") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(30000);
  Rig rig(behaviour, {"--drain-ms", "20000"});
  Background stream(rig.port(), kChat, cc({M("q")}, kStream));
  REQUIRE(rig.up.wait_generations(1));
  rig.tokid.process().signal(15);
  REQUIRE(wait_until([&] { return rig.tokid.health_status() == 0; }));  // it has seen the first
  CHECK(rig.tokid.process().running());
  rig.tokid.process().signal(15);
  CHECK(rig.tokid.process().wait_exit().has_value());
}

TEST_CASE("an idle tokid ends at once on SIGTERM, also with idle client connections") {
  Rig rig({}, {"--drain-ms", "20000"});
  RawClient idle(rig.port());
  idle.send_request("GET", "/toki/health");
  CHECK(idle.read_response().status == 200);
  RawClient silent(rig.port());
  rig.tokid.process().signal(15);
  CHECK(rig.tokid.process().wait_exit() == 0);
}

TEST_CASE("a client has each 14-byte event before the next one is written") {
  constexpr std::size_t kEvents = 10;
  std::atomic<std::size_t> read{0};
  Rig rig;
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.begin_stream();
    for (std::size_t i = 0; i < kEvents; ++i) {
      while (read < i && connection.sleep(milliseconds(1))) {
      }
      connection.send_chunk("data: " + std::to_string(100000 + i) + "\n\n");
    }
    connection.end_stream();
    return true;
  }));
  RawClient client(rig.port());
  client.send_json(kChat, cc({M("q")}, kStream));
  HttpResponse response = client.read_head();
  for (std::size_t i = 1; i <= kEvents; ++i) {
    REQUIRE(client.read_body_until(
        response, [&](const HttpResponse& so_far) { return so_far.body.size() >= 14 * i; }));
    CHECK(response.body.size() == 14 * i);
    read = i;
  }
  client.read_rest(response);
  CHECK(response.whole());
}

TEST_CASE("a head goes out before its body, also when a part of a chunk's size came with it") {
  Rig rig;
  const std::string came = GENERATE("", "5", "5\r", "5\r\n");
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != "/slow") return false;
    connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + came);
    connection.wait_woken(milliseconds(15000));
    connection.send(std::string("5\r\nhello\r\n0\r\n\r\n").substr(came.size()));
    return true;
  });
  RawClient client(rig.port(), milliseconds(8000));
  client.send_request("GET", "/slow");
  HttpResponse response = client.read_head();
  CHECK(response.status == 200);
  // The head may be here before its sender waits.
  std::atomic<bool> read = false;
  std::thread waker([&] {
    while (!read) {
      rig.up.wake();
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  client.read_rest(response);
  read = true;
  waker.join();
  CHECK(response.whole());
  CHECK(response.body == "hello");
}

TEST_CASE("an event stream written byte by byte arrives byte for byte") {
  Rig rig;
  const bool chunked = GENERATE(true, false);
  const std::string bytes =
      ": c\r\n\r\ndata: {\"a\":\"\xC3\xA9 \xF0\x9F\x98\x80\"}\r\n\r\nid: 7\n" + event("x") +
      "retry: 5\n\ndata\n\ndata: [DONE]\n\n";
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    std::string wire = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
    if (chunked) {
      wire += "Transfer-Encoding: chunked\r\n\r\n";
      for (const char c : bytes) wire += std::string("1;x=y\r\n") + c + "\r\n";
      wire += "0\r\nX-Trailer: 1\r\n\r\n";
    } else {
      wire += "Connection: close\r\n\r\n" + bytes;
    }
    connection.send_each(wire, 1, milliseconds(0));
    if (!chunked) connection.close();
    return true;
  }));
  const HttpResponse response = post_json(rig.port(), kChat, cc({M("q")}, kStream));
  CHECK(response.status == 200);
  CHECK(response.whole());
  CHECK(response.body == bytes);
}

TEST_CASE("every shape of stream passes unchanged and is read for its numbers") {
  Rig rig;
  struct Case {
    const char* path;
    std::string body;
  };
  const std::vector<Case> cases = {
      {"/v1/chat/completions", cc({M(W(60))}, kStream)},
      {"/v1/chat/completions",
       cc({M(W(60))}, R"(,"stream":true,"stream_options":{"include_usage":true})")},
      {"/v1/completions", R"({"prompt":"p1 p2 p3 p4 p5 p6 p7 p8 p9 p10 p11 p12","stream":true})"},
      {"/completion", R"({"prompt":"n1 n2 n3 n4 n5 n6 n7 n8 n9 n10 n11 n12","stream":true})"},
      {"/completions", R"({"prompt":[5,6,7,8,9,10,11,12,13,14,15,16],"stream":true})"},
      {"/v1/responses",
       R"({"model":"m","input":"r1 r2 r3 r4 r5 r6 r7 r8 r9 r10 r11","stream":true})"},
      {"/infill",
       R"({"input_prefix":"i1 i2 i3 i4 i5","input_suffix":"i6 i7 i8 i9","stream":true})"},
  };
  double cached = 0;
  double computed = 0;
  for (const auto& [path, body] : cases) {
    for (int i = 0; i < 2; ++i) {
      INFO(path << " " << i);
      const HttpResponse response = post_json(rig.port(), path, body);
      CHECK(response.status == 200);
      CHECK(response.whole());
      CHECK(response.header("content-type") == "text/event-stream");
      for (const char* name : {"x-toki-cache", "x-toki-reused", "x-toki-slot", "x-toki-reason"}) {
        CHECK(response.headers.count(name) == 1);
      }
      const auto log = rig.up.generations();
      const auto& seen = log.back();
      cached += seen.cache_n;
      computed += seen.prompt_n;
      CHECK(forwarding_fault(body, seen.body()).empty());
    }
  }
  CHECK(rig.tokid.wait_stat("requests_completed", static_cast<double>(cases.size() * 2)));
  CHECK(rig.tokid.stat("reused_tokens_total") == cached);
  CHECK(rig.tokid.stat("computed_tokens_total") == computed);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("a client that does not read holds the upstream back instead of filling memory") {
  Rig rig;
  constexpr std::size_t kChunk = 65536;
  constexpr std::size_t kChunks = 1024;
  std::atomic<std::size_t> sent{0};
  rig.up.on_request(on_generation([&](const LoggedRequest&, Connection& connection) {
    connection.begin_stream();
    const std::string chunk = "data: " + std::string(kChunk - 8, 'x') + "\n\n";
    for (std::size_t i = 0; i < kChunks && connection.send_chunk(chunk); ++i) ++sent;
    connection.end_stream();
    return true;
  }));
  const long before = rig.tokid.memory_kib();
  RawClient client(rig.port(), milliseconds(60000));
  client.send_json(kChat, cc({M("q")}, kStream));
  HttpResponse response = client.read_head();
  REQUIRE(response.status == 200);
  std::size_t last = 0;
  auto since = Clock::now();
  REQUIRE(wait_until(
      [&] {
        if (sent != last) {
          last = sent;
          since = Clock::now();
        }
        return ms_between(since, Clock::now()) > 500;
      },
      milliseconds(20000), milliseconds(20)));
  CHECK(sent < kChunks / 2);
  if (!rig.tokid.sanitized()) CHECK(rig.tokid.memory_kib() - before < 16 * 1024);
  client.read_rest(response);
  CHECK(response.whole());
  CHECK(response.body.size() == kChunk * kChunks);
  CHECK(sent == kChunks);
}
