// Keys and tenants over the wire: who gets in, what reaches the backend, and that nothing of one tenant
// shows to another.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sys/stat.h>

#include "net_test.hpp"

namespace {

using namespace toki::test;

const Headers kAlice{{"Authorization", "Bearer alice-key"}};
const Headers kBob{{"x-api-key", "bob-key"}};
const Headers kAdmin{{"authorization", "bearer top-secret"}};

// Files with keys of alice, bob and the admin.
class KeyFiles {
 public:
  KeyFiles() {
    write("alice alice-key\nbob bob-key\n");
    std::ofstream(admin()) << "top-secret\n";
  }
  void write(const std::string& text) const { std::ofstream(keys()) << text; }
  std::string keys() const { return directory_.path() + "/keys"; }
  std::string admin() const { return directory_.path() + "/admin"; }
  std::vector<std::string> options(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--api-keys", keys(), "--admin-key-file", admin()});
    return more;
  }

 private:
  TemporaryDirectory directory_;
};

struct KeyRig : KeyFiles, Rig {
  explicit KeyRig(Behaviour behaviour = {}, std::vector<std::string> more = {})
      : Rig(behaviour, options(std::move(more))) {}

  Answer ask(const Headers& who, std::string_view body, const char* path = kChat) const {
    return as_answer(post_json(port(), path, body, who));
  }
  Json stats() const { return get(port(), "/toki/stats", kAdmin).json(); }
};

Behaviour slots(int count) {
  Behaviour behaviour;
  behaviour.slots = count;
  return behaviour;
}

std::string cache_prompt(const LoggedRequest& request) {
  const Json body = request.json();
  return !body.has("cache_prompt") ? "-" : body["cache_prompt"].boolean() ? "true" : "false";
}

void check_unauthorized(const HttpResponse& response) {
  INFO(response.body);
  CHECK(response.status == 401);
  CHECK(response.header("www-authenticate").rfind("Bearer", 0) == 0);
  CHECK(response.json()["error"]["code"].str() == "invalid_api_key");
  CHECK_FALSE(response.json()["error"]["message"].str().empty());
}

}  // namespace

TEST_CASE("without a good key nobody comes in, and nothing goes to the backend") {
  KeyRig rig;
  const std::string body = cc({M("q")});
  check_unauthorized(post_json(rig.port(), kChat, body));
  for (const char* value : {"Bearer wrong", "Bearer ", "Bearer", "alice-key", "Basic alice-key",
                            "Bearer alice-key ,", "Bearer bob-keybob-key", ""}) {
    INFO(value);
    check_unauthorized(post_json(rig.port(), kChat, body, {{"Authorization", value}}));
  }
  check_unauthorized(post_json(rig.port(), kChat, body, {{"x-api-key", "Bearer bob-key"}}));
  check_unauthorized(get(rig.port(), "/v1/models"));
  check_unauthorized(get(rig.port(), "/"));
  check_unauthorized(get(rig.port(), "/metrics"));
  check_unauthorized(get(rig.port(), "/toki/pins"));
  const HttpResponse anthropic = post_json(rig.port(), "/v1/messages", body);
  CHECK(anthropic.status == 401);
  CHECK(anthropic.json()["error"]["type"].str() == "authentication_error");
  CHECK(rig.up.requests_to("POST", kChat).empty());
  CHECK(rig.up.requests_to("GET", "/v1/models").empty());
  // Its body is not waited for, and not asked for either.
  RawClient client(rig.port());
  CHECK(
      client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"));
  check_unauthorized(client.read_response());
  CHECK(rig.stats()["unauthorized_total"].integer() >= 15);
}

TEST_CASE("whether toki lives may be asked without a key, and no more is told") {
  KeyRig rig;
  const HttpResponse short_one = get(rig.port(), "/toki/health");
  CHECK(short_one.status == 200);
  CHECK(short_one.body == "{\"status\":\"ok\"}\n");
  CHECK(get(rig.port(), "/toki/health", kAlice).body == short_one.body);
  CHECK(get(rig.port(), "/toki/health", kAdmin).json().has("states"));
  CHECK(get(rig.port(), "/health").status == 200);
}

TEST_CASE("a client's key stays here: the backend gets its own, or none") {
  const bool own = GENERATE(false, true);
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/backend") << "backend-key\n";
  KeyRig rig({}, own ? std::vector<std::string>{"--backend-key-file", directory.path() + "/backend"}
                     : std::vector<std::string>{});
  CHECK(rig.ask(kAlice, cc({M("q1")})).status == 200);
  CHECK(rig.ask(kBob, cc({M("q2")}, R"(,"stream":true)")).status == 200);
  CHECK(get(rig.port(), "/v1/models", kAlice).status == 200);
  CHECK(post_json(rig.port(), "/toki/lookup", cc({M("q3")}), kBob).status == 200);
  Headers both = kAlice;
  both.add("x-api-key", "bob-key");
  CHECK(post_json(rig.port(), "/tokenize", R"({"content":"x"})", both).status == 200);
  for (const auto& request : rig.up.requests()) {
    INFO(request.raw_head);
    CHECK(request.headers.get("authorization") == (own ? "Bearer backend-key" : ""));
    CHECK_FALSE(request.headers.has("x-api-key"));
    CHECK(request.raw_head.find("alice-key") == std::string::npos);
    CHECK(request.raw_head.find("bob-key") == std::string::npos);
  }
  CHECK(rig.tokid.log().find("-key\"") == std::string::npos);
  for (const char* key : {"alice-key", "bob-key", "top-secret"}) {
    CHECK(rig.tokid.log().find(key) == std::string::npos);
  }
  CHECK(wait_until([&] { return rig.tokid.log().find(" tenant=alice") != std::string::npos; }));
  const auto requests = get(rig.port(), "/toki/requests", kAdmin).json()["requests"].items();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0]["tenant"].str() == "bob");
}

TEST_CASE("what one tenant had computed is nothing to another, in the slot and in what is told") {
  KeyRig rig(slots(1));
  const std::string body = cc({S(W(300)), M("q")});
  CHECK(rig.ask(kAlice, body).status == 200);
  rig.up.clear_log();
  const Json before = post_json(rig.port(), "/toki/lookup", body, kBob).json();
  CHECK(before["class"].str() == "miss");
  CHECK(before["known_tokens"].integer() == 0);
  CHECK(before["nearest"].is_null());
  CHECK(before["slot"].is_null());
  const Answer first = rig.ask(kBob, body);
  CHECK(first.status == 200);
  CHECK(first.cache == "miss");
  CHECK(first.reused == 0);
  CHECK(first.http.header("x-toki-known") == "0");
  CHECK(first.http.header("x-toki-source") == "none");
  CHECK(first.slot == "any");
  CHECK(first.reason == "displaced");
  CHECK(first.cache_n == 0);
  CHECK(first.cached_tokens == 0);
  REQUIRE(rig.up.generations().size() == 1);
  CHECK(cache_prompt(rig.up.generations()[0]) == "false");
  // The slot is bob's now.
  const Answer again = rig.ask(kBob, body);
  CHECK(again.cache == "hit");
  CHECK(again.cache_n > 300);
  CHECK(cache_prompt(rig.up.generations()[1]) == "true");
  CHECK(rig.ask(kAlice, body).cache_n == 0);
  // Each knows its own.
  CHECK(post_json(rig.port(), "/toki/lookup", body, kAlice).json()["known_tokens"].integer() > 300);
}

TEST_CASE("a tenant's first request is told the same in a slot that nobody used") {
  KeyRig rig(slots(1));
  const Answer first = rig.ask(kBob, cc({M(W(50))}));
  CHECK(first.reason == "displaced");
  CHECK(first.slot == "any");
}

TEST_CASE("requests that toki cannot read reuse nothing of others either") {
  KeyRig rig(slots(2));
  const std::string body = cc({S(W(300)), M("q")});
  const std::string many = cc({S(W(300)), M("q")}, R"(,"n":2)");
  const std::string asked = cc({S(W(300)), M("q")}, R"(,"cache_prompt":true,"id_slot":0)");
  CHECK(rig.ask(kAlice, body).status == 200);
  CHECK(rig.ask(kAlice, cc({S(words("z", 300)), M("other")})).status == 200);
  rig.up.clear_log();
  SECTION("several answers") {
    CHECK(rig.ask(kBob, many).status == 200);
  }
  SECTION("a client that asks for a slot and for reuse") {
    CHECK(rig.ask(kBob, asked).status == 200);
  }
  SECTION("a prompt whose tokens are not known") {
    rig.up.configure([](Behaviour& now) { now.template_status = 500; });
    CHECK(rig.ask(kBob, body).status == 200);
    REQUIRE(rig.up.generations().size() == 1);
    CHECK(rig.up.generations()[0].json().has("id_slot"));
  }
  for (const auto& request : rig.up.generations()) {
    CHECK(cache_prompt(request) == "false");
    CHECK(request.cache_n <= 0);
  }
}

TEST_CASE("a text that one tenant sent is tokenized again for another") {
  KeyRig rig;
  const std::string body = cc({M(W(200))});
  const auto tokenized = [&](const Headers& who) {
    rig.up.clear_log();
    CHECK(rig.ask(who, body).status == 200);
    return rig.up.requests_to("POST", "/tokenize").size();
  };
  const std::size_t fresh = tokenized(kAlice);
  CHECK(fresh > 0);
  CHECK(tokenized(kAlice) == 0);
  CHECK(tokenized(kBob) == fresh);
  CHECK(tokenized(kBob) == 0);
}

TEST_CASE("tenants that share are given what others had computed") {
  KeyRig rig(slots(1), {"--share-tenants"});
  const std::string body = cc({S(W(300)), M("q")});
  CHECK(rig.ask(kAlice, body).status == 200);
  const Answer second = rig.ask(kBob, body);
  CHECK(second.cache == "hit");
  CHECK(second.cache_n > 300);
  CHECK(second.slot == "0");
}

TEST_CASE("Anthropic messages run where nothing of others is, or not at all") {
  const std::string body =
      R"({"model":"m","max_tokens":8,"messages":[{"role":"user","content":")" + W(50) + R"("}]})";
  SECTION("a backend that may keep prompts elsewhere gets none") {
    KeyRig rig;
    const HttpResponse refused = post_json(rig.port(), "/v1/messages", body, kBob);
    CHECK(refused.status == 501);
    CHECK(rig.up.requests_to("POST", "/v1/messages").empty());
  }
  SECTION("else the slots that hold something of others are erased first") {
    KeyRig rig(slots(2), {"--no-backend-cache"});
    CHECK(rig.ask(kAlice, body, "/v1/messages").status == 200);
    CHECK(rig.ask(kAlice, cc({M(words("x", 60))})).status == 200);
    CHECK(rig.ask(kBob, body, "/v1/messages").status == 200);
    const auto log = rig.up.requests_to("POST", "/v1/messages");
    REQUIRE(log.size() == 2);
    CHECK(log[0].cache_n == 0);
    CHECK(log[1].cache_n == 0);
    CHECK(log[1].body() == body);
    // His own he may have.
    CHECK(rig.ask(kBob, body, "/v1/messages").status == 200);
    CHECK(rig.up.requests_to("POST", "/v1/messages")[2].cache_n > 50);
  }
}

TEST_CASE("a tenant pins for itself, and sees and removes no other's pins") {
  KeyRig rig(slots(4));
  const std::string body = cc({S(W(100))});
  const HttpResponse made = post_json(rig.port(), "/toki/pins", body, kAlice);
  REQUIRE(made.status == 200);
  CHECK(made.json()["slot"].is_null());
  const std::string id = std::to_string(made.json()["id"].integer());
  const auto count = [&](const Headers& who) {
    return get(rig.port(), "/toki/pins", who).json()["pins"].items().size();
  };
  CHECK(count(kAlice) == 1);
  CHECK(count(kBob) == 0);
  CHECK(count(kAdmin) == 1);
  CHECK(request(rig.port(), "DELETE", "/toki/pins?id=" + id, {}, kBob).status == 404);
  CHECK(request(rig.port(), "DELETE", "/toki/pins", {}, kBob).json()["removed"].integer() == 0);
  CHECK(post_json(rig.port(), "/toki/pins", R"({"prompt":1})", kBob).status == 400);
  // It is held, and serves alice alone.
  CHECK(wait_until([&] { return rig.stats()["pins_held"].integer() == 1; }));
  CHECK(get(rig.port(), "/toki/pins", kAlice).json()["pins"].items().at(0)["state"].str() ==
        "held");
  CHECK(rig.ask(kBob, cc({S(W(100)), M("q")})).cache_n == 0);
  CHECK(rig.ask(kAlice, cc({S(W(100)), M("q")})).cache_n > 100);
  // The admin pins for a tenant.
  CHECK(post_json(rig.port(), "/toki/pins?tenant=bob", cc({S(words("b", 80))}), kAdmin).status ==
        200);
  CHECK(count(kBob) == 1);
  CHECK(request(rig.port(), "DELETE", "/toki/pins?id=" + id, {}, kAlice).status == 200);
  CHECK(count(kAdmin) == 1);
}

TEST_CASE("what is everybody's is the admin's") {
  KeyRig rig;
  for (const char* path : {"/toki/stats", "/toki/slots", "/toki/", "/toki/overview", "/metrics",
                           "/toki/requests", "/toki/entries", "/toki/tree"}) {
    INFO(path);
    check_error(get(rig.port(), path, kAlice), 403, "permission_error");
    const HttpResponse unknown = get(rig.port(), path);
    check_unauthorized(unknown);
    CHECK(occurrences(unknown.first_line, "401") == 1);
    CHECK(get(rig.port(), path, kAdmin).status == 200);
  }
  check_error(request(rig.port(), "DELETE", "/toki/entries", {}, kAlice), 403, "permission_error");
  check_error(post_json(rig.port(), "/toki/flush", "", kBob), 403, "permission_error");
  // And the backend's own.
  rig.up.clear_log();
  for (const char* path : {"/slots", "//slots", "/%73lots", "/v1/../slots", "/props", "/new",
                           "/lora-adapters", "//toki/stats"}) {
    INFO(path);
    check_error(get(rig.port(), path, kAlice), 403, "permission_error");
  }
  check_error(post_json(rig.port(), "/slots/0?action=erase", "{}", kAlice), 403,
              "permission_error");
  CHECK(rig.up.requests_to("GET", "/props").size() <= 3);  // toki's own looks
  for (const auto& seen : rig.up.requests()) {
    CHECK((seen.path == "/health" || seen.path == "/props" || seen.path == "/slots"));
    CHECK(seen.query.empty());
  }
  CHECK(post_json(rig.port(), "/slots/0?action=erase", "{}", kAdmin).status == 200);
}

TEST_CASE("a browser gives the admin's key as a password, on toki's own pages only") {
  KeyRig rig;
  const auto basic = [](std::string_view encoded) {
    return Headers{{"Authorization", "Basic " + std::string(encoded)}};
  };
  const HttpResponse asked = get(rig.port(), "/toki/");
  CHECK(asked.status == 401);
  bool challenge = false;
  for (const auto& [name, value] : asked.headers) {
    challenge = challenge || value.rfind("Basic", 0) == 0;
  }
  CHECK(challenge);
  Headers good = basic("YW55Om5vYm9keTp0b3Atc2VjcmV0");  // any:nobody:top-secret
  CHECK(get(rig.port(), "/toki/", good).status == 401);
  good = basic("eDp0b3Atc2VjcmV0");  // x:top-secret
  CHECK(get(rig.port(), "/toki/", good).status == 200);
  CHECK(get(rig.port(), "/toki/", basic("OnRvcC1zZWNyZXQ=")).status == 200);  // :top-secret
  CHECK(get(rig.port(), "/toki/", basic("eDphbGljZS1rZXk=")).status == 401);  // x:alice-key
  for (const char* nonsense : {"", "=", "====", "eDp0b3Atc2VjcmV", "!!!!", "YQ=="}) {
    CHECK(get(rig.port(), "/toki/", basic(nonsense)).status == 401);
  }
  // Not when another site's page asks.
  good.add("Origin", "https://evil.example");
  CHECK(request(rig.port(), "POST", "/toki/flush", {}, good).status == 403);
  CHECK(get(rig.port(), "/toki/stats", good).status == 401);
  Headers fetched = basic("eDp0b3Atc2VjcmV0");
  fetched.add("Sec-Fetch-Site", "cross-site");
  CHECK(get(rig.port(), "/toki/stats", fetched).status == 401);
}

TEST_CASE("with an admin key alone, only what is everybody's needs it") {
  const KeyFiles files;
  Rig rig({}, {"--admin-key-file", files.admin()});
  CHECK(rig.chat(cc({M("q")})).status == 200);
  CHECK(get(rig.port(), "/v1/models").status == 200);
  CHECK(get(rig.port(), "/toki/stats").status == 401);
  CHECK(get(rig.port(), "/slots").status == 401);
  CHECK(get(rig.port(), "/toki/stats", kAdmin).status == 200);
  // Other keys are the backend's to check.
  rig.up.clear_log();
  CHECK(get(rig.port(), "/v1/models", kAlice).status == 200);
  CHECK(get(rig.port(), "/v1/models", kAdmin).status == 200);
  const auto asked = rig.up.requests_to("GET", "/v1/models");
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].headers.get("authorization") == "Bearer alice-key");
  CHECK_FALSE(asked[1].headers.has("authorization"));
}

TEST_CASE("a tenant's requests at once and a minute are limited, and other tenants' are not") {
  SECTION("at once") {
    Behaviour behaviour = slots(4);
    behaviour.answer_delay = milliseconds(60000);
    KeyRig rig(behaviour, {"--tenant-requests", "2"});
    std::vector<std::unique_ptr<RawClient>> running;
    for (int i = 0; i < 2; ++i) {
      running.push_back(std::make_unique<RawClient>(rig.port()));
      running.back()->send_json(kChat, cc({M(words("x" + std::to_string(i), 30))}), kAlice);
    }
    REQUIRE(rig.up.wait_generations(2));
    const HttpResponse refused = post_json(rig.port(), kChat, cc({M("q")}), kAlice);
    check_error(refused, 429, "rate_limit_error");
    CHECK(refused.header("retry-after") == "1");
    CHECK(get(rig.port(), "/v1/models", kAlice).status == 200);
    rig.up.configure([](Behaviour& now) { now.answer_delay = milliseconds(0); });
    CHECK(rig.ask(kBob, cc({M("q")})).status == 200);
    running[0]->close();
    CHECK(wait_until([&] { return rig.ask(kAlice, cc({M("q")})).status == 200; }));
  }
  SECTION("a minute") {
    KeyRig rig({}, {"--tenant-rate", "3"});
    for (int i = 0; i < 3; ++i) CHECK(rig.ask(kAlice, cc({M("q")})).status == 200);
    const HttpResponse refused = post_json(rig.port(), kChat, cc({M("q")}), kAlice);
    check_error(refused, 429, "rate_limit_error");
    const int seconds = std::atoi(refused.header("retry-after").c_str());
    CHECK((seconds >= 1 && seconds <= 20));
    CHECK(rig.ask(kBob, cc({M("q")})).status == 200);
    CHECK(rig.ask(kAdmin, cc({M("q")})).status == 200);
    CHECK(rig.stats()["tenant_limited_total"].integer() == 1);
  }
}

TEST_CASE("without keys on loopback only loopback's names are good in Host") {
  Rig rig({}, {"--host-name", "desk.local"});
  const auto status = [&](const std::string& head) {
    RawClient client(rig.port());
    client.send("GET /v1/models HTTP/1.1\r\n" + head + "Connection: close\r\n\r\n");
    return client.read_response();
  };
  CHECK(status("Host: localhost:1\r\n").status == 200);
  CHECK(status("Host: 127.0.0.1\r\n").status == 200);
  CHECK(status("Host: [::1]:9090\r\n").status == 200);
  CHECK(status("Host: Desk.local:9090\r\n").status == 200);
  rig.up.clear_log();
  const HttpResponse refused = status("Host: evil.example\r\n");
  check_error(refused, 403, "permission_error");
  CHECK(refused.body.find("--host-name") != std::string::npos);
  CHECK(status("").status >= 400);
  CHECK(status("Host: localhost\r\nHost: evil.example\r\n").status >= 400);
  CHECK(rig.up.requests_to("GET", "/v1/models").empty());
  RawClient old(rig.port());
  old.send("GET /v1/models HTTP/1.0\r\n\r\n");
  CHECK(old.read_response().status == 200);
}

TEST_CASE("with keys any Host is good") {
  KeyRig rig;
  RawClient client(rig.port());
  client.send("GET /v1/models HTTP/1.1\r\nHost: toki.example\r\nx-api-key: bob-key\r\n\r\n");
  CHECK(client.read_response().status == 200);
}

TEST_CASE("tokid does not listen to other machines without keys unless it is told to") {
  const KeyFiles files;
  TemporaryDirectory directory;
  const std::vector<std::string> base{"--listen",           "0.0.0.0:0",  "--backend",
                                      "http://127.0.0.1:1", "--data-dir", directory.path()};
  const auto start = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return std::make_unique<Process>(tokid_path(), more);
  };
  const auto refused = start({});
  CHECK(refused->wait_exit() == 2);
  CHECK(wait_until([&] { return refused->err().find("--allow-open") != std::string::npos; }));
  CHECK(occurrences(refused->err(), "\n") == 1);
  for (const auto& options : {std::vector<std::string>{"--allow-open"},
                              std::vector<std::string>{"--api-keys", files.keys()}}) {
    const auto process = start(options);
    CHECK(wait_until([&] { return process->out().find("listening") != std::string::npos; }));
    process->signal(SIGTERM);
    CHECK(process->wait_exit() == 0);
  }
}

TEST_CASE("a line that is no key stops the start, by its number, and no key is ever printed") {
  const KeyFiles files;
  files.write("alice alice-key\nbob bob-key tail-key\n");
  Process process(tokid_path(), {"--api-keys", files.keys(), "--listen", "127.0.0.1:0"});
  CHECK(process.wait_exit() == 2);
  CHECK(wait_until([&] { return process.err().find(files.keys() + ":2: ") != std::string::npos; }));
  CHECK(process.err().find("-key") == std::string::npos);
  CHECK(occurrences(process.err(), "\n") == 1);
  ::setenv("TOKID_API_KEYS", "env-key", 1);
  ::setenv("TOKID_ADMIN_KEY", "top-key", 1);
  Process check(tokid_path(), {"--check-config"});
  CHECK(check.wait_exit() == 0);
  ::unsetenv("TOKID_API_KEYS");
  ::unsetenv("TOKID_ADMIN_KEY");
  CHECK(check.out().find("share-tenants") != std::string::npos);
  CHECK(check.out().find("env-key") == std::string::npos);
  CHECK(check.out().find("top-key") == std::string::npos);
}

TEST_CASE("SIGHUP reads the keys again; a bad file leaves the old ones in force") {
  KeyRig rig;
  const auto status = [&](const char* key) {
    return get(rig.port(), "/v1/models", {{"x-api-key", key}}).status;
  };
  const auto reload = [&](const std::string& text, const std::string& logged) {
    rig.write(text);
    const std::size_t before = occurrences(rig.tokid.log(), logged);
    rig.tokid.process().signal(SIGHUP);
    return wait_until([&] { return occurrences(rig.tokid.log(), logged) > before; });
  };
  CHECK(status("alice-key") == 200);
  CHECK(reload("carol carol-key\nalice new-alice\n", "settings read again"));
  CHECK(status("alice-key") == 401);
  CHECK(status("carol-key") == 200);
  CHECK(status("new-alice") == 200);
  for (const char* bad : {"", "# none\n", "a b c\n", "sha256:00\n"}) {
    CHECK(reload(bad, "the old settings stay"));
    CHECK(status("carol-key") == 200);
  }
  CHECK(rig.tokid.log().find("carol-key") == std::string::npos);
}

TEST_CASE("a file of keys that everybody can read is warned of") {
  const KeyFiles files;
  ::chmod(files.keys().c_str(), 0644);
  Rig rig({}, files.options());
  CHECK(rig.tokid.log().find("can be read by everybody") != std::string::npos);
}
