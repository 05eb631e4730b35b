// Who may call what: keys and their files, the table of calls, names in Host, limits of a tenant.
#include "access.hpp"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

#include "keys.hpp"
#include "tenant_limits.hpp"

using namespace tokid;

namespace {

std::string name_of(const Keys& keys, std::string_view key) {
  const auto found = keys.find(key);
  return found.tenant == nullptr ? "-" : found.tenant->name;
}

class File {
 public:
  explicit File(const std::string& text, mode_t mode = 0600) {
    char path[] = "/tmp/toki-keys-XXXXXX";
    const int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    ::close(fd);
    path_ = path;
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }
  ~File() { ::unlink(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("keys: a line is a key, or a name and a key, and keys of one name are one tenant") {
  Keys keys;
  REQUIRE(
      keys.add_lines("# ours\n\nalice secret-a\n  bob\tsecret-b\r\nalice other-a\nplain\n", "f"));
  CHECK(keys.size() == 4);
  CHECK(name_of(keys, "secret-a") == "alice");
  CHECK(name_of(keys, "other-a") == "alice");
  CHECK(keys.find("secret-a").tenant == keys.find("other-a").tenant);
  CHECK(name_of(keys, "secret-b") == "bob");
  CHECK(name_of(keys, "plain") == "key4");
  CHECK(keys.tenants().size() == 3);
  for (const char* wrong : {"", "secret-", "secret-ab", "alice", "Plain", "plain ", "# ours"}) {
    CHECK(name_of(keys, wrong) == "-");
  }
}

TEST_CASE("keys: a hashed key is found by the key, not by its hash") {
  Keys plain;
  REQUIRE(plain.add_lines("abc\n", "f"));
  Keys keys;
  // SHA-256 of "abc", from FIPS 180-2.
  const std::string hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  REQUIRE(keys.add_lines("carol sha256:" + hash + "\n", "f"));
  CHECK(name_of(keys, "abc") == "carol");
  CHECK(name_of(keys, hash) == "-");
  CHECK(name_of(keys, "sha256:" + hash) == "-");
  Keys again;
  REQUIRE(again.add_lines("sha256:" + hash + "\n", "f"));
  CHECK(again.find("abc").tenant->id == plain.find("abc").tenant->id);
}

TEST_CASE("keys: a nameless key keeps its tenant wherever it stands, and no other gets it") {
  Keys before;
  Keys after;
  REQUIRE(before.add_lines("one\ntwo\n", "f"));
  REQUIRE(after.add_lines("two\nthree\n", "f"));
  CHECK(before.find("two").tenant->id == after.find("two").tenant->id);
  CHECK(before.find("one").tenant->id != after.find("three").tenant->id);
  CHECK(before.find("one").tenant->id != after.find("two").tenant->id);
  // Not even one whose name looks like it.
  Keys named;
  REQUIRE(named.add_lines("key1 x\n", "f"));
  CHECK(named.find("x").tenant->id != before.find("one").tenant->id);
}

TEST_CASE("keys: a line that is none is told by file and number, without what it holds") {
  const std::string long_key(5000, 'k');
  const auto [line, why] =
      GENERATE_COPY(std::pair<std::string, std::string>{"a b c", "NAME KEY"},
                    std::pair<std::string, std::string>{"sha256:1234", "64"},
                    std::pair<std::string, std::string>{"sha256:" + std::string(64, 'g'), "64"},
                    std::pair<std::string, std::string>{"al/ice topsecret", "a name has"},
                    std::pair<std::string, std::string>{"first", "given before"},
                    std::pair<std::string, std::string>{"bob first", "given before"},
                    std::pair<std::string, std::string>{"top\x01secret", "a key has"},
                    std::pair<std::string, std::string>{long_key, "a key has"});
  Keys keys;
  const auto status = keys.add_lines("first\n#\n" + line + "\n", "/etc/keys");
  REQUIRE_FALSE(status);
  CHECK(status.error().detail.rfind("/etc/keys:3: ", 0) == 0);
  CHECK(status.error().detail.find(why) != std::string::npos);
  CHECK(status.error().detail.find("secret") == std::string::npos);
  CHECK(status.error().detail.find("gggg") == std::string::npos);
  CHECK(status.error().detail.find("kkkk") == std::string::npos);
}

TEST_CASE("keys: they come from a file and the environment, the admin's is apart") {
  const File file("alice a-key\n");
  const File admin("top-key\nnot read\n", 0644);
  ::setenv("TOKID_API_KEYS", "e-key, f-key", 1);
  auto keys = Keys::read(file.path(), admin.path());
  ::unsetenv("TOKID_API_KEYS");
  REQUIRE(keys);
  CHECK(keys->size() == 3);
  CHECK(name_of(*keys, "a-key") == "alice");
  CHECK(name_of(*keys, "f-key") == "key3");
  CHECK(keys->find("top-key").admin);
  CHECK_FALSE(keys->find("a-key").admin);
  REQUIRE(keys->warnings().size() == 1);
  CHECK(keys->warnings()[0].find("everybody") != std::string::npos);
  CHECK(keys->named("alice") == keys->find("a-key").tenant);
  CHECK(keys->named("nobody") == nullptr);
}

TEST_CASE("keys: a client's key is never the admin's, too") {
  const File file("alice a-key\n");
  const File same("a-key\n");
  CHECK_FALSE(Keys::read(file.path(), same.path()));
}

TEST_CASE("keys: a pipe is no key file: nobody may write to it") {
  const File file("");
  ::unlink(file.path().c_str());
  REQUIRE(::mkfifo(file.path().c_str(), 0600) == 0);
  CHECK_FALSE(Keys::read(file.path(), ""));
}

TEST_CASE("keys: a file without keys, a folder and no file are errors, never open doors") {
  const File empty("# nothing\n\n");
  for (const std::string& path : {empty.path(), std::string("/tmp"), std::string("/none/there")}) {
    CHECK_FALSE(Keys::read(path, ""));
    CHECK_FALSE(Keys::read("", path));
  }
  auto none = Keys::read("", "");
  REQUIRE(none);
  CHECK_FALSE(none->any());
  CHECK(none->find("").tenant == nullptr);
}

TEST_CASE("access: what a call needs") {
  struct Row {
    const char* method;
    const char* target;
    Need need;
  };
  const std::vector<Row> rows{
      {"GET", "/health", Need::nothing},
      {"HEAD", "/v1/health", Need::nothing},
      {"GET", "/health/", Need::nothing},
      {"GET", "/toki/health", Need::nothing},
      {"POST", "/v1/chat/completions", Need::work},
      {"POST", "/chat/completions?x=1", Need::work},
      {"POST", "/v1/%63hat/completions", Need::work},
      {"POST", "/v1/completions", Need::work},
      {"POST", "/completion", Need::work},
      {"POST", "/infill", Need::work},
      {"POST", "/v1/responses", Need::work},
      {"POST", "/v1/messages", Need::work},
      {"POST", "/v1/embeddings", Need::work},
      {"POST", "/embedding", Need::work},
      {"POST", "/v1/rerank/", Need::work},
      {"POST", "/v1/messages/count_tokens", Need::key},
      {"POST", "/tokenize", Need::key},
      {"POST", "/detokenize/", Need::key},
      {"POST", "/apply-template", Need::key},
      {"GET", "/v1/models", Need::key},
      {"GET", "/models/", Need::key},
      {"POST", "/toki/lookup?path=/x", Need::key},
      {"GET", "/toki/pins", Need::key},
      {"DELETE", "/toki/pins?id=1", Need::key},
      // Everybody's, and what is not known.
      {"GET", "/", Need::admin},
      {"GET", "/v1/chat/completions", Need::admin},
      {"DELETE", "/v1/models", Need::admin},
      {"POST", "/health", Need::admin},
      {"GET", "/slots", Need::admin},
      {"POST", "/slots/0?action=save", Need::admin},
      {"GET", "/props", Need::admin},
      {"POST", "/props", Need::admin},
      {"GET", "/metrics", Need::admin},
      {"GET", "/lora-adapters", Need::admin},
      {"POST", "/lora-adapters", Need::admin},
      {"POST", "/v1/audio/transcriptions", Need::admin},
      {"POST", "/models/load", Need::admin},
      {"OPTIONS", "/v1/chat/completions", Need::admin},
      {"GET", "/toki", Need::admin},
      {"GET", "/toki/", Need::admin},
      {"GET", "/toki/stats", Need::admin},
      {"GET", "/toki/slots", Need::admin},
      {"GET", "/toki/overview", Need::admin},
      {"GET", "/toki/entries", Need::admin},
      {"DELETE", "/toki/entries", Need::admin},
      {"POST", "/toki/flush", Need::admin},
      {"PUT", "/toki/pins", Need::admin},
      {"GET", "/toki/new", Need::admin},
      // In disguise.
      {"GET", "//slots", Need::admin},
      {"GET", "//health", Need::admin},
      {"GET", "/v1/../slots", Need::admin},
      {"GET", "/v1/models/../../slots", Need::admin},
      {"GET", "/%73lots", Need::admin},
      {"GET", "/v1/models%2f..%2f..%2fslots", Need::admin},
      {"GET", "/health%00/slots", Need::admin},
      {"GET", "/health;/../slots", Need::admin},
      {"GET", "/health//", Need::admin},
      {"GET", "/models#/../slots", Need::admin},
      {"GET", "/v1/models%3f", Need::admin},
      {"GET", "/toki/health/", Need::admin},
      {"GET", "/toki/%68ealth", Need::admin},
      {"GET", "/toki/health/../stats", Need::admin},
      {"POST", "http://x/v1/chat/completions", Need::admin},
      {"GET", "http://localhost/slots", Need::admin},
      {"GET", "*", Need::admin},
      {"GET", "", Need::admin},
      {"GET", "slots", Need::admin},
      {"get", "/health", Need::admin},
      {"POST", "/V1/chat/completions", Need::admin},
      {"POST", "/v1/v1/embeddings", Need::admin},
      {"POST", "/v1//embeddings", Need::admin},
      {"POST", "/%2576/embeddings", Need::admin},
  };
  for (const Row& row : rows) {
    INFO(row.method << ' ' << row.target);
    CHECK(need_of(row.method, row.target) == row.need);
  }
}

TEST_CASE("access: who may") {
  const AccessRules open{};
  const AccessRules only_admin{.admin = true};
  const AccessRules keys{.keys = true};
  const AccessRules both{.keys = true, .admin = true};
  const AccessRules shared{.keys = true, .shared = true};
  const AccessRules shared_admin{.keys = true, .admin = true, .shared = true};
  using V = Verdict;
  for (const AccessRules& rules : {open, only_admin, keys, both, shared, shared_admin}) {
    CHECK(judge(Need::nothing, Caller::nobody, rules) == V::allowed);
    CHECK(judge(Need::work, Caller::tenant, rules) == V::allowed);
    CHECK(judge(Need::key, Caller::admin, rules) == V::allowed);
    CHECK(judge(Need::admin, Caller::admin, rules) == V::allowed);
    CHECK(judge(Need::work, Caller::nobody, rules) == (rules.keys ? V::who : V::allowed));
    CHECK(judge(Need::key, Caller::nobody, rules) == (rules.keys ? V::who : V::allowed));
    const bool guarded = rules.keys || rules.admin;
    CHECK(judge(Need::admin, Caller::nobody, rules) == (guarded ? V::who : V::allowed));
  }
  CHECK(judge(Need::admin, Caller::tenant, keys) == V::not_yours);
  CHECK(judge(Need::admin, Caller::tenant, both) == V::not_yours);
  CHECK(judge(Need::admin, Caller::tenant, shared) == V::allowed);
  CHECK(judge(Need::admin, Caller::tenant, shared_admin) == V::not_yours);
}

TEST_CASE("access: only loopback's names, and those that were given, are good in Host") {
  const std::vector<std::string> names{"Desk.local", "toki"};
  for (const char* good : {"localhost", "LocalHost:9090", "127.0.0.1", "127.0.0.1:80", "127.9.8.7",
                           "[::1]", "[::1]:9090", "desk.local", "DESK.LOCAL:1", "toki:65535"}) {
    INFO(good);
    CHECK(host_accepted(good, names));
  }
  for (const char* bad : {"",
                          "evil.example",
                          "localhost.evil.example",
                          "evil.example:9090",
                          "localhost:evil",
                          "localhost:",
                          "localhost:123456",
                          "127.0.0.1.evil.example",
                          "128.0.0.1",
                          "0.0.0.0",
                          "::1",
                          "[::1",
                          "[::2]",
                          "[::1]x",
                          "127.1",
                          "2130706433",
                          "localhost@evil",
                          "evil@localhost",
                          "localhost localhost",
                          "localhost.",
                          "user:pw@localhost"}) {
    INFO(bad);
    CHECK_FALSE(host_accepted(bad, names));
  }
  CHECK_FALSE(host_accepted("toki", {}));
}

TEST_CASE("access: which addresses other machines do not reach") {
  for (const char* loopback : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"}) {
    CHECK(is_loopback(loopback));
  }
  for (const char* other : {"0.0.0.0", "::", "192.168.1.5", "::ffff:10.0.0.1", "fe80::1", "x"}) {
    CHECK_FALSE(is_loopback(other));
  }
}

TEST_CASE("limits: so many requests at once, and a place that is left can be taken again") {
  TenantUse use;
  const TenantLimits limits{.requests = 2};
  const TenantUse::Time now{};
  auto first = use.take("a", limits, now);
  auto second = use.take("a", limits, now);
  CHECK(std::holds_alternative<TenantUse::Place>(first));
  CHECK(std::holds_alternative<TenantUse::Place>(second));
  auto third = use.take("a", limits, now);
  REQUIRE(std::holds_alternative<TenantUse::Refused>(third));
  CHECK_FALSE(std::get<TenantUse::Refused>(third).rate);
  CHECK(std::holds_alternative<TenantUse::Place>(use.take("b", limits, now)));
  TenantUse::Place moved = std::get<TenantUse::Place>(std::move(first));
  CHECK(std::holds_alternative<TenantUse::Refused>(use.take("a", limits, now)));
  moved = TenantUse::Place();
  CHECK(std::holds_alternative<TenantUse::Place>(use.take("a", limits, now)));
}

TEST_CASE("limits: a minute's worth of requests, then as many as the time brings") {
  TenantUse use;
  const TenantLimits limits{.per_minute = 6};
  TenantUse::Time now{};
  const auto taken = [&] {
    int count = 0;
    while (std::holds_alternative<TenantUse::Place>(use.take("a", limits, now))) ++count;
    return count;
  };
  CHECK(taken() == 6);
  auto refused = use.take("a", limits, now);
  CHECK(std::get<TenantUse::Refused>(refused).rate);
  CHECK(std::get<TenantUse::Refused>(refused).retry_after == 10);
  now += std::chrono::seconds(9);
  CHECK(taken() == 0);
  CHECK(std::get<TenantUse::Refused>(use.take("a", limits, now)).retry_after == 1);
  now += std::chrono::seconds(21);
  CHECK(taken() == 3);
  now += std::chrono::hours(5);
  CHECK(taken() == 6);
  CHECK(std::holds_alternative<TenantUse::Place>(use.take("b", limits, now)));
}
