// The edges: what passes through, what is refused, and what happens when everyone comes at once.
#include <set>

#include "net_test.hpp"

namespace {

using namespace toki::test;

bool same_slots(const std::vector<SlotView>& a, const std::vector<SlotView>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const SlotView& x, const SlotView& y) {
                      return x.id == y.id && x.state == y.state && x.tokens == y.tokens &&
                             x.known_tokens == y.known_tokens;
                    });
}

}  // namespace

// B35
TEST_CASE("paths that toki does not handle reach the upstream as they are, and change no slot") {
  Rig rig;
  rig.chat(cc({M(W(50))}));
  const auto slots = rig.tokid.slots();
  rig.up.clear_log();
  const std::string count = R"({"model":"m","messages":[{"role":"user","content":"hi"}]})";
  const HttpResponse counted = post_json(rig.port(), "/v1/messages/count_tokens?beta=true", count);
  CHECK(counted.status == 200);
  CHECK(counted.json()["input_tokens"].integer() == 6);
  const HttpResponse embedded = post_json(rig.port(), "/v1/embeddings", R"({"input":"x"})");
  CHECK(embedded.status == 501);
  CHECK(embedded.json()["error"]["type"].str() == "not_supported_error");
  const auto counts = rig.up.requests_to("POST", "/v1/messages/count_tokens");
  REQUIRE(counts.size() == 1);
  CHECK(counts[0].target == "/v1/messages/count_tokens?beta=true");
  CHECK(counts[0].body() == count);
  CHECK(counts[0].headers.get("content-type") == "application/json");
  const auto embeddings = rig.up.requests_to("POST", "/v1/embeddings");
  REQUIRE(embeddings.size() == 1);
  CHECK(embeddings[0].body() == R"({"input":"x"})");
  CHECK(same_slots(slots, rig.tokid.slots()));
  CHECK(rig.tokid.stat("passthrough_total") == 2);
  CHECK(rig.tokid.stat("requests_total") == 1);
}

TEST_CASE("every method and raw target passes through, answers keep status and headers") {
  Rig rig;
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    if (request.path == "/health" || request.path == "/props") return false;
    connection.respond(request.method == "DELETE" ? 404 : 200,
                       request.method + " " + request.target + " " + request.body(),
                       {{"X-Answer", "yes"}, {"Set-Cookie", "a=1"}, {"Set-Cookie", "b=2"}},
                       "text/plain");
    return true;
  });
  for (const char* method : {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
    for (const char* target : {"/any", "/a/%2e%2e/b%20c?x=%20y&z=1;2&q", "//double//slash/", "/?",
                               "/v1/chat/completions/more", "/toki-like/x", "/caf%C3%A9"}) {
      const std::string body = std::string(method) == "GET" ? "" : "raw \xFF body";
      const HttpResponse response = request(rig.port(), method, target, body);
      INFO(method << " " << target);
      CHECK(response.body == std::string(method) + " " + target + " " + body);
      CHECK(response.status == (std::string(method) == "DELETE" ? 404 : 200));
      CHECK(response.header("x-answer") == "yes");
      CHECK(response.headers.count("set-cookie") == 2);
      CHECK(response.header("content-type") == "text/plain");
    }
  }
  // Other methods on the cached paths are not ours either.
  CHECK(get(rig.port(), kChat).body == std::string("GET ") + kChat + " ");
}

TEST_CASE("answers without a body end where they must, and the connection goes on") {
  Rig rig;
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    if (request.path == "/204") return connection.send("HTTP/1.1 204 No Content\r\n\r\n");
    if (request.path == "/304")
      return connection.send("HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n");
    if (request.method == "HEAD") {
      return connection.send("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nX-Head: 1\r\n\r\n");
    }
    return false;
  });
  RawClient client(rig.port(), milliseconds(5000));
  client.send_request("HEAD", "/v1/models");
  const HttpResponse head = client.read_response(true);
  CHECK(head.status == 200);
  CHECK(head.header("x-head") == "1");
  CHECK(head.header("content-length") == "12345");
  client.send_request("GET", "/204");
  CHECK(client.read_response().status == 204);
  client.send_request("GET", "/304");
  CHECK(client.read_response().status == 304);
  client.send_request("GET", "/v1/models");
  const HttpResponse models = client.read_response();
  CHECK(models.status == 200);
  CHECK(models.json()["data"][0]["id"].str() == "m");
}

TEST_CASE("requests that are pipelined on one connection are answered in order") {
  Rig rig;
  RawClient client(rig.port());
  const std::string body = cc({M("pipelined")});
  std::string wire = "GET /toki/health HTTP/1.1\r\nHost: x\r\n\r\n";
  wire += "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
          std::to_string(body.size()) + "\r\n\r\n" + body;
  wire += "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
  wire += "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{";
  wire += "GET /toki/slots HTTP/1.1\r\nHost: x\r\n\r\n";
  client.send(wire);
  CHECK(client.read_response().json()["status"].str() == "ok");
  CHECK(client.read_response().json()["choices"].items().size() == 1);
  CHECK(client.read_response().json()["data"].items().size() == 1);
  CHECK(client.read_response().status == 400);
  CHECK(client.read_response().json()["slots"].items().size() == 2);
}

TEST_CASE("a connection stays open after an answer, closes when asked to, and HTTP/1.0 is served") {
  Rig rig;
  RawClient kept(rig.port());
  for (int i = 0; i < 3; ++i) {
    kept.send_json(kChat, cc({M("q")}, i == 1 ? R"(,"stream":true)" : ""));
    CHECK(kept.read_response().status == 200);
  }
  kept.send_json(kChat, cc({M("q")}), {{"Connection", "close"}});
  CHECK(kept.read_response().status == 200);
  CHECK(kept.wait_closed(milliseconds(3000)));
  RawClient old(rig.port());
  old.send("GET /v1/models HTTP/1.0\r\n\r\n");
  const HttpResponse response = old.read_response();
  CHECK(response.status == 200);
  CHECK(response.whole());
  CHECK_FALSE(response.headers.has("transfer-encoding"));
  CHECK(old.wait_closed(milliseconds(3000)));
}

TEST_CASE("hop-by-hop headers are dropped in both directions, others pass") {
  Rig rig;
  const std::string path = GENERATE("/v1/models", "/v1/chat/completions");
  const bool cached = path == kChat;
  std::string received_length;
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path != path) return false;
    const std::string body = R"({"choices":[]})";
    connection.send(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-End: kept\r\n"
        "Connection: keep-alive, X-Hop-Back\r\nX-Hop-Back: 1\r\nKeep-Alive: timeout=5\r\n"
        "Proxy-Authenticate: Basic\r\nTrailer: X-T\r\nUpgrade: h2c\r\nTE: trailers\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
    return true;
  });
  const Headers sent = {{"Connection", "keep-alive, X-Secret-Hop, upgrade"},
                        {"X-Secret-Hop", "1"},
                        {"Keep-Alive", "300"},
                        {"TE", "trailers"},
                        {"Trailer", "X-T"},
                        {"Upgrade", "h2c"},
                        {"Proxy-Connection", "keep-alive"},
                        {"Proxy-Authorization", "Basic x"},
                        {"Authorization", "Bearer sk-test"},
                        {"x-api-key", "k2"},
                        {"User-Agent", "tests/1"},
                        {"X-Stainless-OS", "Linux"},
                        {"Accept", "*/*"}};
  const HttpResponse response =
      cached ? post_json(rig.port(), path, cc({M("q")}), sent) : get(rig.port(), path, sent);
  CHECK(response.status == 200);
  CHECK(response.header("x-end") == "kept");
  for (const char* name :
       {"x-hop-back", "keep-alive", "proxy-authenticate", "trailer", "upgrade", "te"}) {
    INFO(name);
    CHECK_FALSE(response.headers.has(name));
  }
  const auto log = rig.up.requests_to(cached ? "POST" : "GET", path);
  REQUIRE(log.size() == 1);
  const Headers& got = log[0].headers;
  for (const char* name : {"x-secret-hop", "keep-alive", "te", "trailer", "upgrade",
                           "proxy-connection", "proxy-authorization"}) {
    INFO(name);
    CHECK_FALSE(got.has(name));
  }
  CHECK(got.get("authorization") == "Bearer sk-test");
  CHECK(got.get("x-api-key") == "k2");
  CHECK(got.get("user-agent") == "tests/1");
  CHECK(got.get("x-stainless-os") == "Linux");
  CHECK(got.count("host") == 1);
  CHECK(got.count("content-length") == (cached ? 1u : 0u));
  CHECK(got.get("connection").find("X-Secret-Hop") == std::string::npos);
}

TEST_CASE("a key for the upstream replaces the client's own, also in toki's own calls") {
  TemporaryDirectory directory;
  const std::string file = directory.path() + "/key";
  {
    std::FILE* out = std::fopen(file.c_str(), "w");
    REQUIRE(out != nullptr);
    std::fputs("sk-backend\n", out);
    std::fclose(out);
  }
  Rig rig({}, {"--backend-key-file", file});
  CHECK(
      post_json(rig.port(), kChat, cc({M("q")}), {{"Authorization", "Bearer sk-client"}}).status ==
      200);
  CHECK(get(rig.port(), "/v1/models").status == 200);
  for (const auto& request : rig.up.requests()) {
    INFO(request.target);
    CHECK(request.headers.count("authorization") == 1);
    CHECK(request.headers.get("authorization") == "Bearer sk-backend");
  }
  CHECK(rig.tokid.log().find("sk-backend") == std::string::npos);
}

TEST_CASE("answers to cached calls say what toki expected, others do not") {
  Rig rig;
  const Answer first = rig.chat(cc({M(W(50))}));
  CHECK(first.cache == "miss");
  CHECK((first.reason == "empty_slot" || first.reason == "displaced"));
  CHECK(first.slot.find_first_not_of("0123456789") == std::string::npos);
  const Answer second = rig.chat(cc({M(W(50))}, R"(,"stream":true)"));
  CHECK(second.cache == "hit");
  CHECK(second.reason == "slot_prefix");
  CHECK(second.reused == 54);
  CHECK(second.slot == first.slot);
  for (const char* path : {"/v1/models", "/health", "/toki/stats", "/nope"}) {
    CHECK_FALSE(get(rig.port(), path).headers.has("x-toki-cache"));
  }
}

TEST_CASE("Anthropic messages take part in the queue, and their bytes pass unchanged") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(200);
  Rig rig(behaviour);
  const std::string body =
      R"({"model":"m","max_tokens":8,"system":"be brief","messages":[{"role":"user","content":")" +
      W(50) + R"("}]})";
  rig.chat(cc({M(words("a", 50))}));
  rig.chat(cc({M(words("b", 50))}));
  std::vector<std::unique_ptr<Background>> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(std::make_unique<Background>(rig.port(), "/v1/messages", body));
  }
  for (auto& request : all) CHECK(request->join().status == 200);
  const auto log = rig.up.requests_to("POST", "/v1/messages");
  REQUIRE(log.size() == 6);
  for (const auto& request : log) {
    CHECK(request.body() == body);
    CHECK_FALSE(request.deferred);
  }
  CHECK(rig.tokid.stat("class_bypass") == 0);
  const Answer after = rig.chat(cc({M(words("a", 50)), R("ok"), M("q")}));
  CHECK(after.reused <= after.cache_n);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("a full queue is refused with 429, a wait too long with 503") {
  Behaviour behaviour;
  behaviour.slots = 1;
  Gate gate;
  Rig rig(behaviour, {"--queue-length", "2", "--queue-wait-ms", "3000"});
  rig.up.on_request(gate.holds_generations());
  Background running(rig.port(), kChat, cc({M("running")}));
  REQUIRE(rig.up.wait_generations(1));
  Background one(rig.port(), kChat, cc({M("one")}));
  REQUIRE(rig.tokid.wait_stat("queue_length", 1));
  Background two(rig.port(), kChat, cc({M("two")}, R"(,"stream":true)"));
  REQUIRE(rig.tokid.wait_stat("queue_length", 2));
  const HttpResponse full = post_json(rig.port(), kChat, cc({M("three")}));
  check_error(full, 429, "rate_limit_error");
  CHECK(full.headers.has("retry-after"));
  check_error(one.join().http, 503, "unavailable_error");
  CHECK(one.join().http.headers.has("retry-after"));
  check_error(two.join().http, 503, "unavailable_error");
  CHECK(ms_between(one.sent_at(), one.done_at()) > 2800);
  gate.open();
  CHECK(running.join().status == 200);
  const auto stats = rig.tokid.stats();
  CHECK(stats.at("queue_full_total") == 1);
  CHECK(stats.at("queue_timeouts_total") == 2);
  CHECK(stats.at("requests_total") == stats.at("requests_completed") + stats.at("requests_failed") +
                                          stats.at("requests_cancelled"));
  CHECK(rig.up.generations().size() == 1);
  CHECK(rig.chat(cc({M("next")})).status == 200);
}

TEST_CASE("a queued stream whose head was sent gets its refusal as one event") {
  Behaviour behaviour;
  behaviour.slots = 1;
  Gate gate;
  Rig rig(behaviour, {"--queue-wait-ms", "800", "--keepalive-grace-ms", "200",
                      "--keepalive-interval-ms", "200"});
  rig.up.on_request(gate.holds_generations());
  Background running(rig.port(), kChat, cc({M("running")}));
  REQUIRE(rig.up.wait_generations(1));
  const HttpResponse response = post_json(rig.port(), kChat, cc({M("two")}, R"(,"stream":true)"));
  CHECK(response.status == 200);
  CHECK(response.header("x-toki-cache") == "queued");
  CHECK(response.end == End::clean);
  const auto data = sse_data(response.body);
  REQUIRE(data.size() == 1);
  CHECK(Json::parse(data[0]).value_or(Json())["error"]["code"].integer() == 503);
  gate.open();
  CHECK(running.join().status == 200);
}

TEST_CASE("waiting requests are served in the order they came") {
  Behaviour behaviour;
  behaviour.slots = 1;
  Gate gate;
  Rig rig(behaviour);
  rig.up.on_request(gate.holds_generations());
  std::vector<std::unique_ptr<Background>> all;
  all.push_back(std::make_unique<Background>(rig.port(), kChat, cc({M("first")})));
  REQUIRE(rig.up.wait_generations(1));
  for (int i = 0; i < 6; ++i) {
    all.push_back(
        std::make_unique<Background>(rig.port(), kChat, cc({M("n" + std::to_string(i))})));
    REQUIRE(rig.tokid.wait_stat("queue_length", i + 1));
  }
  gate.open();
  for (auto& request : all) CHECK(request->join().status == 200);
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 7);
  for (std::size_t i = 1; i < 7; ++i) {
    CHECK(log[i].body().find("n" + std::to_string(i - 1)) != std::string::npos);
  }
}

TEST_CASE("connections that only stand there keep nobody out") {
  Rig rig({}, {"--max-connections", "4"});
  REQUIRE(rig.tokid.wait_stat("connections", 1));
  RawClient client(rig.port(), milliseconds(5000));
  const auto asks = [](RawClient& one) {
    one.send_request("GET", "/toki/health");
    return one.read_response().status;
  };
  CHECK(asks(client) == 200);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 50; ++i) {
    idle.push_back(std::make_unique<RawClient>(rig.port()));
  }
  CHECK(asks(client) == 200);
  RawClient late(rig.port(), milliseconds(5000));
  CHECK(asks(late) == 200);
  CHECK(idle.front()->wait_closed(milliseconds(5000)));
}

TEST_CASE("more connections than the limit are refused with 503") {
  Rig rig({}, {"--max-connections", "3"});
  // The rig's own earlier connections must be gone first.
  const auto wait_alone = [&] { return rig.tokid.wait_stat("connections", 1); };
  REQUIRE(wait_alone());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(rig.port()));
    clients.back()->send_request("GET", "/toki/health");
    CHECK(clients.back()->read_response().status == 200);
  }
  RawClient more(rig.port(), milliseconds(5000));
  more.send_request("GET", "/toki/health");
  check_error(more.read_response(), 503, "unavailable_error");
  CHECK(more.wait_closed(milliseconds(5000)));
  clients.pop_back();
  CHECK(wait_until([&] {
    try {
      return get(rig.port(), "/toki/health").status == 200;
    } catch (const std::exception&) {
      return false;
    }
  }));
}

TEST_CASE("broken requests are refused and nothing of them goes upstream") {
  Rig rig;
  const std::string post = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n";
  const std::string wire =
      GENERATE_COPY(std::string("nonsense\r\n\r\n"), std::string("GET  HTTP/1.1\r\n\r\n"),
                    post + "Content-Length: abc\r\n\r\n{}", post + "Content-Length: -1\r\n\r\n{}",
                    post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
                    post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                    post + "X-Big: " + std::string(1 << 20, 'x') + "\r\n\r\n",
                    std::string("GET /") + std::string(1 << 20, 'x') + " HTTP/1.1\r\n\r\n");
  INFO(wire.substr(0, 120));
  RawClient client(rig.port(), milliseconds(5000));
  client.send(wire);
  const HttpResponse response = client.read_response();
  // An answer if there is one is a refusal; the connection ends in any case.
  CHECK((response.status == 0 || (response.status >= 400 && response.status < 500)));
  CHECK(client.wait_closed(milliseconds(5000)));
  for (const auto& request : rig.up.requests()) {
    CHECK((request.path == "/health" || request.path == "/props"));
  }
  CHECK(rig.chat(cc({M("next")})).status == 200);
}

TEST_CASE("500 streaming clients at once are all answered or refused, and nothing stays behind") {
  Behaviour behaviour;
  behaviour.slots = 4;
  behaviour.answer = "a b c";
  behaviour.answer_delay = milliseconds(5);
  Rig rig(behaviour, {"--slot-wait-ms", "10"});
  const auto storm = [&] {
    std::vector<std::unique_ptr<RawClient>> clients;
    std::map<int, int> statuses;
    for (int i = 0; i < 500; ++i) {
      clients.push_back(std::make_unique<RawClient>(rig.port(), milliseconds(60000)));
      clients.back()->send_json(
          kChat, cc({S(W(20)), M(words("c" + std::to_string(i) + "_", 20))}, R"(,"stream":true)"));
    }
    for (auto& client : clients) {
      const HttpResponse response = client->read_response();
      ++statuses[response.status];
      CHECK(response.whole());
      if (response.status == 200) {
        const auto data = sse_data(response.body);
        REQUIRE_FALSE(data.empty());
        CHECK(data.back() == "[DONE]");
      } else {
        CHECK((response.status == 429 || response.status == 503));
        CHECK(response.headers.has("retry-after"));
      }
    }
    CHECK(statuses[200] >= 4);
    return statuses;
  };
  storm();
  REQUIRE(rig.tokid.wait_stat("connections", 1));
  const long descriptors = rig.tokid.open_descriptors();
  const long memory = rig.tokid.memory_kib();
  storm();
  REQUIRE(rig.tokid.wait_stat("connections", 1));
  CHECK(rig.tokid.stat("queue_length") == 0);
  CHECK(rig.tokid.stat("slots_busy") == 0);
  CHECK(wait_until([&] { return rig.tokid.open_descriptors() <= descriptors + 4; }));
  INFO("memory before " << memory << " KiB, after " << rig.tokid.memory_kib());
  if (!rig.tokid.sanitized()) CHECK(rig.tokid.memory_kib() < memory + 8 * 1024);
  for (const auto& request : rig.up.generations()) CHECK_FALSE(request.deferred);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("clients that come and go at any moment leave nothing behind") {
  Behaviour behaviour;
  behaviour.answer = words("a", 20);
  behaviour.answer_delay = milliseconds(3);
  behaviour.event_delay = milliseconds(1);
  Rig rig(behaviour, {"--slot-wait-ms", "5"});
  const std::string body = cc({S(W(30)), M("q")}, R"(,"stream":true)");
  const std::string wire = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body;
  REQUIRE(rig.tokid.wait_stat("connections", 1));
  const long descriptors = rig.tokid.open_descriptors();
  for (int i = 0; i < 150; ++i) {
    RawClient client(rig.port());
    // Cut at another place, after another time, the soft or the hard way.
    client.send(std::string_view(wire).substr(
        0, i % 3 == 0 ? wire.size() * static_cast<std::size_t>(i) / 150 : wire.size()));
    std::this_thread::sleep_for(milliseconds(i % 17));
    i % 2 == 0 ? client.reset() : client.close();
  }
  CHECK(rig.tokid.wait_stat("slots_busy", 0));
  CHECK(rig.tokid.wait_stat("queue_length", 0));
  REQUIRE(rig.tokid.wait_stat("connections", 1));
  CHECK(wait_until([&] { return rig.tokid.open_descriptors() <= descriptors + 4; }));
  const Answer after = rig.chat(cc({S(W(30)), M("q")}));
  CHECK(after.status == 200);
  CHECK(after.reused <= after.cache_n);
  const auto stats = rig.tokid.stats();
  CHECK(stats.at("requests_total") == stats.at("requests_completed") + stats.at("requests_failed") +
                                          stats.at("requests_cancelled"));
  CHECK(stats.at("integrity_faults_total") == 0);
}
