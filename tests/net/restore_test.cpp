// What is done with slot states on disk: the scripted upstream writes and reads real state files in
// a folder that tokid shares.
#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>

#include "net_test.hpp"

namespace {

using namespace toki::test;

struct SlotFolder {
  TemporaryDirectory slots;
};

// A rig with a shared folder, whose trial found that states can be saved and restored.
class KvRig : private SlotFolder, public Rig {
 public:
  explicit KvRig(const Behaviour& behaviour = {}, std::vector<std::string> options = {})
      : Rig(in(slots.path(), behaviour), with(slots.path(), std::move(options))) {
    INFO(tokid.log());
    REQUIRE(tokid.stat("can_save") == 1);
  }

  // The request, and its state on disk.
  Answer save(const std::string& body) const {
    const double before = tokid.stat("saves_total");
    Answer answer = chat(body);
    REQUIRE(wait_until([&] { return tokid.stat("saves_total") > before; }));
    return answer;
  }
  // Starts the upstream again, changed.
  void restart(const std::function<void(Behaviour&)>& change = [](Behaviour&) {}) {
    const double before = tokid.stat("upstream_restarts_total");
    up.stop();
    up.configure(change);
    up.start();
    REQUIRE(tokid.wait_stat("upstream_restarts_total", before + 1));
    REQUIRE(tokid.wait_ready());
    INFO(tokid.log());
    REQUIRE(tokid.stat("can_save") == 1);
    up.clear_log();
  }
  std::vector<LoggedRequest> actions(const std::string& action) const {
    auto all = up.requests();
    std::erase_if(all, [&](const LoggedRequest& r) { return r.query != "action=" + action; });
    return all;
  }

 private:
  static Behaviour in(const std::string& folder, Behaviour behaviour) {
    behaviour.slot_dir = folder;
    return behaviour;
  }
  static std::vector<std::string> with(const std::string& folder,
                                       std::vector<std::string> options) {
    options.insert(options.begin(), {"--slot-dir", folder});
    return options;
  }
};

Behaviour slots(int count) {
  Behaviour behaviour;
  behaviour.slots = count;
  return behaviour;
}

int slot_of(const LoggedRequest& action) {
  return std::atoi(action.path.c_str() + std::string("/slots/").size());
}

// The first request that did something in the slot after request `number`.
LoggedRequest next_in_slot(const ScriptedUpstream& up, int slot, std::uint64_t number) {
  for (const LoggedRequest& request : up.requests()) {
    const bool there = request.path == slot_action_path(slot) ||
                       (is_generation_path(request.path) && request.slot == slot);
    if (there && request.number > number) return request;
  }
  return {};
}

// Lets nobody on before so many have come.
class Meeting {
 public:
  explicit Meeting(int all) : missing_(all) {}
  void come() {
    std::unique_lock lock(mutex_);
    --missing_;
    met_.notify_all();
    met_.wait_for(lock, std::chrono::seconds(10), [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable met_;
  int missing_;
};

const std::string kA = cc({S(W(1500)), M("q")});

std::string other(int number) {
  return cc({M(words("other" + std::to_string(number) + "_", 1500))});
}

}  // namespace

TEST_CASE("a displaced conversation comes back from disk") {
  KvRig rig(slots(1));
  rig.save(kA);
  rig.chat(other(1));
  const Answer again = rig.chat(kA);
  CHECK(again.reason == "restored");
  CHECK(again.reused == again.prompt_tokens - 1);
  CHECK(again.cache_n == again.reused);
  CHECK(rig.tokid.stat("source_disk") == 1);
  CHECK(rig.tokid.stat("restore_failures_total") == 0);
}

// B03
TEST_CASE("a restore of which nothing is reused is a failure, and after three no more are made") {
  KvRig rig(slots(1));
  rig.save(kA);
  rig.up.configure([](Behaviour& b) { b.cache_n = 0; });
  const auto attempt = [&](int i) {
    INFO("attempt " << i);
    rig.chat(other(i));
    const Answer again = rig.chat(kA);
    CHECK(again.status == 200);
    CHECK(again.cache_n == 0);
  };
  // One whose request overtook its restore, on a slow machine, says nothing of it.
  for (int i = 1; i <= 20 && rig.tokid.stat("restore_failures_total") < 3; ++i) {
    attempt(i);
  }
  CHECK(rig.tokid.stat("restore_failures_total") == 3);
  const std::size_t made = rig.actions("restore").size();
  CHECK(made >= 3);
  attempt(21);
  CHECK(rig.actions("restore").size() == made);
  CHECK(rig.tokid.stat("restore_failures_total") == 3);
  CHECK(rig.tokid.stat("source_disk") == 0);
  CHECK(rig.tokid.stat("class_hit") == 0);
  CHECK(rig.tokid.stat("can_save") == 0);
  CHECK(wait_until(
      [&] { return rig.tokid.log().find("restore_failures_total is 3") != std::string::npos; }));
  // The server's next start makes a new trial.
  rig.restart([](Behaviour& b) { b.cache_n.reset(); });
  CHECK(rig.chat(kA).reason == "restored");
  CHECK(rig.tokid.stat("source_disk") == 1);
}

// B24, B70
TEST_CASE("nothing is restored into another model, context, template, build, draft or KV type") {
  KvRig rig(slots(1));
  rig.save(kA);
  const Behaviour first = rig.up.behaviour();
  const std::vector<std::pair<std::string, std::function<void(Behaviour&)>>> changes = {
      {"size", [](Behaviour& b) { ++b.model_size; }},
      {"path", [](Behaviour& b) { b.model_path = "/models/other.gguf"; }},
      {"context", [](Behaviour& b) { b.n_ctx /= 2; }},
      {"template", [](Behaviour& b) { b.chat_template = "{{ other }}"; }},
      {"build", [](Behaviour& b) { b.build_info = "b2-scripted"; }},
      {"draft", [](Behaviour& b) { b.draft = "draft-simple"; }},
      {"KV type", [](Behaviour& b) { b.state_row_bytes = 4; }}};
  for (const auto& [what, change] : changes) {
    INFO(what);
    rig.restart([&](Behaviour& b) {
      b = first;
      change(b);
    });
    const Answer answer = rig.chat(kA);
    CHECK(answer.status == 200);
    CHECK(answer.reused == 0);
    CHECK(answer.cache_n == 0);
    CHECK(rig.actions("restore").empty());
  }
  // What belongs to the first is kept for it.
  rig.restart([&](Behaviour& b) { b = first; });
  CHECK(rig.chat(kA).reason == "restored");
  CHECK(rig.tokid.stat("restore_failures_total") == 0);
}

// B28
TEST_CASE("a longer version in the server's own cache is not spoilt by a shorter one from disk") {
  Behaviour behaviour = slots(1);
  behaviour.own_cache = true;
  KvRig rig(behaviour);
  const std::string grown = W(1000) + " " + words("grown", 2000);
  rig.save(cc({S(W(1000)), M("q")}));
  REQUIRE(rig.tokid.stat("can_save") == 1);
  // From here on nothing more gets to disk, so that it keeps the short version.
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    if (request.query != "action=save") return false;
    connection.respond(500, R"({"error":{"code":500,"message":"no","type":"server_error"}})");
    return true;
  });
  const auto& long_chat = cc({S(grown), M("q")});
  REQUIRE(rig.chat(long_chat).status == 200);
  REQUIRE(rig.chat(cc({M("a title")})).status == 200);
  rig.up.clear_log();
  const Answer next = rig.chat(cc({S(grown), M("q"), R("ok"), M("q2")}));
  CHECK(next.reason == "backend_cache");
  CHECK(next.cache_n >= 3000);
  CHECK(rig.actions("restore").empty());
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B29
TEST_CASE(
    "a restore that takes too long is left behind with its slot, and the request goes on cold") {
  KvRig rig(slots(2), {"--restore-limit-ms", "400"});
  rig.save(kA);
  rig.chat(other(1));
  rig.chat(other(2));
  std::atomic<int> stuck{-1};
  std::atomic<std::uint64_t> number{0};
  rig.up.clear_log();
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.query != "action=restore") return false;
    rig.up.hold_slot(slot_of(request));
    number = request.number;
    stuck = slot_of(request);
    connection.wait_peer_gone(milliseconds(30000));
    connection.close();
    return true;
  });
  const Answer answer = rig.chat(kA);
  REQUIRE(stuck >= 0);
  CHECK(answer.status == 200);
  CHECK(answer.cache_n <= 1);
  CHECK(answer.slot == std::to_string(1 - stuck));
  CHECK(rig.tokid.stat("restore_failures_total") == 1);
  CHECK(rig.tokid.stat("slots_fenced") == 1);
  // Whatever comes uses the other slot, and is not restored.
  for (int i = 3; i < 6; ++i) CHECK(rig.chat(other(i)).slot == std::to_string(1 - stuck));
  CHECK(rig.chat(kA).status == 200);
  CHECK(rig.actions("restore").size() == 1);
  CHECK(next_in_slot(rig.up, stuck, number).number == 0);
  // The server's restore ends at last: the slot is erased before it gets work.
  rig.up.set_slot(stuck, rig.up.generations().at(0).prompt);
  rig.up.release_slot(stuck);
  REQUIRE(rig.tokid.wait_stat("slots_fenced", 0));
  const Answer there =
      rig.chat(cc({S(W(1500)), M("q2")}, R"(,"id_slot":)" + std::to_string(stuck)));
  CHECK(there.status == 200);
  CHECK(there.cache_n == 0);
  CHECK(next_in_slot(rig.up, stuck, number).query == "action=erase");
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B29
TEST_CASE("a save that takes too long is given up, and the request goes on") {
  KvRig rig(slots(1), {"--save-limit-ms", "300"});
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.query != "action=save") return false;
    connection.wait_peer_gone(milliseconds(30000));
    connection.close();
    return true;
  });
  CHECK(rig.chat(kA).status == 200);
  CHECK(rig.chat(other(1)).status == 200);
  CHECK(rig.tokid.stat("save_failures_total") == 1);
  CHECK(rig.tokid.stat("can_save") == 0);  // for a minute
  CHECK(rig.chat(other(2)).status == 200);
  CHECK(rig.actions("save").size() == 1);
}

// B43
TEST_CASE("a damaged segment is never offered to the server") {
  KvRig rig(slots(1));
  rig.save(kA);
  rig.chat(other(1));
  for (const auto& entry : std::filesystem::directory_iterator(rig.tokid.data_dir() + "/kv")) {
    if (entry.path().extension() != ".trkv") continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-1000, std::ios::end);
    const int byte = file.peek();
    file.seekp(-1000, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  const Answer again = rig.chat(kA);
  CHECK(again.status == 200);
  CHECK(again.cache_n == 0);
  CHECK(rig.actions("restore").empty());
  CHECK(rig.tokid.stat("kv_quarantined_total") >= 1);
  // The entry is gone: nothing is tried with it again.
  const double failures = rig.tokid.stat("restore_failures_total");
  rig.chat(other(2));
  rig.chat(cc({S(W(1500)), M("another question")}));
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  CHECK(failures == 1);
}

// B43
TEST_CASE("after a refused restore the slot is erased and the request served cold") {
  KvRig rig(slots(1));
  rig.save(kA);
  rig.chat(other(1));
  std::atomic<std::uint64_t> number{0};
  rig.up.clear_log();
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.query != "action=restore") return false;
    number = request.number;
    rig.up.set_slot(0, {1, 2, 3});  // some part of it got there
    connection.respond(400, R"({"error":{"code":400,"message":"Unable to restore slot",)"
                            R"("type":"invalid_request_error"}})");
    return true;
  });
  const Answer again = rig.chat(kA);
  CHECK(again.status == 200);
  CHECK(again.cache_n == 0);
  REQUIRE(number > 0);
  CHECK(next_in_slot(rig.up, 0, number).query == "action=erase");
  CHECK(rig.tokid.stat("restore_failures_total") == 1);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B46
TEST_CASE("slot actions name the model") {
  Behaviour behaviour = slots(1);
  behaviour.slot_action_needs_model = true;
  KvRig rig(behaviour);
  rig.save(kA);
  for (const LoggedRequest& save : rig.actions("save")) CHECK(save.json()["model"].str() == "m");
  CHECK(rig.tokid.stat("save_failures_total") == 0);
}

// B46
TEST_CASE("of a server with several models nothing is claimed to be in a slot") {
  Behaviour behaviour;
  behaviour.alias = "m1";
  behaviour.more_models = {"m2"};
  behaviour.slot_action_needs_model = true;
  TemporaryDirectory folder;
  behaviour.slot_dir = folder.path();
  Rig rig(behaviour, {"--slot-dir", folder.path()});
  CHECK(rig.tokid.stat("can_save") == 0);
  CHECK(rig.tokid.stat("pinning") == 0);
  CHECK(wait_until([&] { return rig.tokid.log().find("several models") != std::string::npos; }));
  for (const std::string model : {"m1", "m2", "m1"}) {
    const std::string body = R"({"model":")" + model +
                             R"(","messages":[{"role":"user","content":)" + quote(W(500)) + "}]}";
    const Answer answer = rig.chat(body);
    CHECK(answer.status == 200);
    CHECK(answer.reused == 0);
    CHECK(answer.cache == "bypass");
    CHECK(answer.reason == "several_models");
    CHECK(answer.slot == "any");
    CHECK(rig.up.generations().back().body() == body);
  }
  for (const auto& slot : rig.tokid.slots()) CHECK(slot.known_tokens <= 0);
  CHECK(rig.up.requests_to("POST", "/tokenize").empty());
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  const auto lookup = post_json(rig.port(), "/toki/lookup", cc({M(W(500))}));
  CHECK(lookup.json()["reason"].str() == "several_models");
}

// B66
TEST_CASE("of two cold requests with one prefix one computes it and the other gets a copy") {
  // A server that says it is slow: the first is held back for a hundredth of what its prompt takes.
  Behaviour behaviour = slots(2);
  behaviour.per_new_token = std::chrono::milliseconds(20);
  Gate gate;  // of the call that computes the prefix, where it is held
  KvRig rig(behaviour);
  REQUIRE(rig.chat(cc({M(words("warm", 15))})).status == 200);
  rig.up.configure([](Behaviour& b) { b.per_new_token = std::chrono::microseconds(500); });
  rig.up.clear_log();
  Meeting meeting(2);
  std::atomic<bool> breaks{false};
  std::atomic<bool> broken{false};
  std::atomic<bool> holds{false};
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    if (request.path == "/tokenize") meeting.come();
    if (request.path == "/completion" && holds) gate.pass(connection);
    const bool hit = request.path == "/completion" && breaks && !broken.exchange(true);
    if (hit) connection.reset();
    return hit;
  });
  const auto ask = [](const char* question) { return cc({S(W(1000)), M(question)}); };
  SECTION("and its own few tokens") {
    Background a(rig.port(), kChat, ask("ask-a"));
    Background b(rig.port(), kChat, ask("ask-b"));
    CHECK(a.join().status == 200);
    CHECK(b.join().status == 200);
    int computed = 0;
    for (const auto& request : rig.up.generations()) computed += request.prompt_n;
    CHECK(computed <= 1100);
    CHECK(rig.tokid.stat("leads_total") == 1);
    CHECK(rig.tokid.stat("coalesced_total") == 1);
    CHECK(rig.tokid.stat("integrity_faults_total") == 0);
  }
  SECTION("and is served when the first one's call breaks off") {
    breaks = true;
    Background a(rig.port(), kChat, ask("ask-a"));
    Background b(rig.port(), kChat, ask("ask-b"));
    CHECK(a.join().status == 200);
    CHECK(b.join().status == 200);
    CHECK(broken);
    CHECK(rig.tokid.stat("leads_total") >= 1);
  }
  SECTION("and is served when the first one leaves") {
    holds = true;
    RawClient a(rig.port());
    RawClient b(rig.port());
    a.send_json(kChat, ask("ask-a"));
    b.send_json(kChat, ask("ask-b"));
    REQUIRE(rig.up.wait_generations(1));
    const int word = rig.up.tokenize("ask-a", false).front();
    const auto prompt = [&] { return rig.up.generations().at(0).json()["prompt"].items(); };
    REQUIRE(wait_until([&] { return !prompt().empty(); }));
    const auto first = prompt();
    const bool a_leads = std::any_of(first.begin(), first.end(),
                                     [&](const Json& id) { return id.integer() == word; });
    (a_leads ? a : b).close();
    REQUIRE(rig.tokid.wait_stat("requests_cancelled", 1));
    gate.open();
    const Answer answer = as_answer((a_leads ? b : a).read_response());
    CHECK(answer.status == 200);
    CHECK(answer.prompt_tokens > 1000);
    CHECK(rig.tokid.stat("leads_total") >= 1);
    CHECK(rig.tokid.stat("requests_cancelled") == 1);
  }
}

// A state that cannot be cut serves only prompts that begin with all of it, so one is kept where prompts part.
TEST_CASE("where states cannot be cut the system message is computed and saved by itself") {
  KvRig rig;
  int restores = 0;
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    // The trial restores whole, then a part.
    if (request.query != "action=restore" || ++restores != 2) return false;
    connection.respond(500, R"({"error":{"code":500,"message":"no","type":"server_error"}})");
    return true;
  });
  rig.restart();
  REQUIRE(rig.tokid.stat("can_cut") == 0);
  const std::string system = W(1200);
  REQUIRE(rig.chat(cc({S(system), M("q1")})).status == 200);
  const auto alone = rig.up.requests_to("POST", "/completion");
  REQUIRE_FALSE(alone.empty());
  CHECK(alone.front().json()["n_predict"].integer() == 0);
  for (int i = 0; i < 3; ++i) CHECK(rig.chat(cc({M(W(900 + i))})).status == 200);
  CHECK(rig.chat(cc({S(system), M("q2")})).cache_n >= 1000);
  const std::string messages = R"({"model":"m","max_tokens":4,"system":)" + quote(W(1300)) +
                               R"(,"messages":[{"role":"user","content":"q"}]})";
  CHECK(rig.post("/v1/messages", messages).status == 200);
}

TEST_CASE("exact mode says at its start what it reuses, or why it reuses nothing") {
  TemporaryDirectory folder;
  Behaviour behaviour;
  SECTION("states are saved and cut") {
    behaviour.slot_dir = folder.path();
    const Rig rig(behaviour, {"--exact", "--slot-dir", folder.path()});
    CHECK(wait_until(
        [&] { return rig.tokid.log().find("multiples of 512 tokens") != std::string::npos; }));
  }
  SECTION("they are not") {
    const Rig rig(behaviour, {"--exact"});
    CHECK(wait_until([&] {
      return rig.tokid.log().find("every prompt is computed whole") != std::string::npos;
    }));
  }
  SECTION("nor can it be seen whether a slot works") {
    Rig rig(behaviour, {"--exact"});
    rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
      if (request.path != "/slots") return false;
      connection.respond(501, R"({"error":{"code":501,"message":"no","type":"not_supported"}})");
      return true;
    });
    rig.up.stop();
    rig.up.start();
    CHECK(wait_until([&] {
      return rig.tokid.log().find("exact mode needs the backend's /slots") != std::string::npos;
    }));
  }
}
