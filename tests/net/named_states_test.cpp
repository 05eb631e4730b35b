// A llama-server whose folder for slot states tokid cannot reach.
#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "net_test.hpp"

using namespace toki::test;

namespace {

std::size_t occurrences_in(const std::string& text, std::string_view what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

std::size_t actions(const ScriptedUpstream& up, std::string_view action) {
  const auto all = up.requests();
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const auto& request) {
    return request.query == "action=" + std::string(action);
  }));
}

std::set<std::string> files(const ScriptedUpstream& up) {
  std::set<std::string> names;
  for (const auto& request : up.requests()) {
    if (request.query == "action=save") {
      names.insert(request.json()["filename"].str());
    }
  }
  return names;
}

// Prefill dear enough that a save pays.
Behaviour slow() {
  Behaviour behaviour;
  behaviour.slots = 1;
  behaviour.per_new_token = std::chrono::microseconds(1000);
  return behaviour;
}

std::string talk(int number) {
  return cc({M(words("t" + std::to_string(number) + "_", 150))});
}

}  // namespace

TEST_CASE("without slot actions no state is saved, and the log says so once") {
  Behaviour behaviour;
  behaviour.slot_action_status = 501;
  ScriptedUpstream up(behaviour);
  Tokid tokid(up.url(), {"--remote-states", "4"});
  REQUIRE(tokid.wait_ready());
  up.stop();
  REQUIRE(wait_until([&] { return tokid.health_status() != 200; }));
  up.start();
  REQUIRE(tokid.wait_ready());
  CHECK(tokid.wait_stat("upstream_restarts_total", 1));
  for (int i = 0; i < 4; ++i) {
    CHECK(post_json(tokid.port(), kChat, talk(i)).status == 200);
  }
  CHECK(tokid.stat("can_save") == 0);
  CHECK(tokid.stat("save_failures_total") == 0);
  CHECK(tokid.stat("named_states") == 0);
  CHECK(actions(up, "save") == 0);
  CHECK(occurrences_in(tokid.log(), "no slot actions") == 1);
  CHECK(occurrences_in(tokid.log(), "warning the backend has no slot actions") == 1);
  CHECK(occurrences_in(tokid.log(), "not saved") == 0);
}

TEST_CASE("with --remote-states 0 nothing is saved where the folder cannot be reached") {
  Rig rig(slow(), {"--remote-states", "0"});
  for (int i = 0; i < 3; ++i) {
    rig.chat(talk(i));
  }
  CHECK(rig.tokid.stat("can_save") == 0);
  CHECK(rig.tokid.stat("named_limit") == 0);
  CHECK(actions(rig.up, "save") == 0);
}

TEST_CASE("displaced conversations are saved whole under a fixed set of names, and come back") {
  Rig rig(slow(), {"--remote-states", "3"});
  CHECK(rig.tokid.stat("can_save") == 1);
  CHECK(rig.tokid.stat("can_cut") == 1);
  CHECK(rig.tokid.stat("named_limit") == 3);
  CHECK(rig.tokid.stat("named_states") == 0);  // the trial's is gone again
  for (int i = 0; i < 7; ++i) {
    rig.chat(talk(i));
  }
  CHECK(rig.tokid.stat("named_states") == 3);
  CHECK(files(rig.up).size() == 3);
  const Answer again = rig.chat(talk(5));
  CHECK(again.reason == "restored");
  CHECK(again.cache_n >= 150);
  CHECK(again.reused >= 150);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("a prompt that shares the beginning of a saved state gets it, and rewinds") {
  Rig rig(slow(), {"--remote-states", "3"});
  const std::string system = words("s", 150);
  rig.chat(cc({S(system), M("one two three")}));
  rig.chat(talk(1));
  const Answer other = rig.chat(cc({S(system), M("four five six")}));
  CHECK(other.reason == "restored");
  CHECK(other.cache_n >= 150);
  CHECK(other.cache_n >= other.reused);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

TEST_CASE("a file that is gone costs its prompt a prefill and is forgotten") {
  Rig rig(slow(), {"--remote-states", "4"});
  rig.chat(talk(0));
  rig.chat(talk(1));
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    return request.query == "action=restore" &&
           connection.respond(400, R"({"error":{"code":400,"message":"","type":"invalid"}})");
  });
  const Answer answer = rig.chat(talk(0));
  CHECK(answer.status == 200);
  CHECK(answer.cache_n == 0);
  CHECK(rig.tokid.wait_stat("named_dropped_total", 1));
  CHECK(rig.tokid.stat("restore_failures_total") == 1);
}

TEST_CASE("a file that holds other tokens than was thought is not asked for again") {
  std::mutex mutex;
  std::map<std::string, std::size_t> saved;
  Rig rig(slow(), {"--remote-states", "4"});
  rig.up.on_request([&](const LoggedRequest& request, Connection& connection) {
    const std::string file = request.json()["filename"].str();
    const std::lock_guard lock(mutex);
    if (request.query == "action=save") {
      saved[file] = rig.up.slot(0).size();
    }
    if (request.query != "action=restore") {
      return false;
    }
    // As many tokens as there should be, but others.
    rig.up.set_slot(0, std::vector<int>(saved[file], 424242));
    return connection.respond(200, R"({"id_slot":0,"n_restored":)" + std::to_string(saved[file]) +
                                       R"(,"timings":{"restore_ms":1}})");
  });
  rig.chat(talk(0));
  rig.chat(talk(1));
  const Answer answer = rig.chat(talk(0));
  CHECK(answer.status == 200);
  CHECK(answer.reason == "restored");
  CHECK(answer.cache_n == 0);
  CHECK(rig.tokid.wait_stat("named_dropped_total", 1));
  CHECK(rig.tokid.stat("restore_failures_total") == 1);  // it is judged by what was reused
}

TEST_CASE("what lies under the names is known again after a restart of tokid") {
  ScriptedUpstream up(slow());
  TemporaryDirectory data;
  const std::vector<std::string> options{"--remote-states", "4", "--data-dir", data.path()};
  std::set<std::string> names;
  {
    Tokid tokid(up.url(), options);
    REQUIRE(tokid.wait_ready());
    for (int i = 0; i < 3; ++i) {
      CHECK(post_json(tokid.port(), kChat, talk(i)).status == 200);
    }
    names = files(up);
    CHECK(names.size() >= 2);
  }
  up.clear_log();
  Tokid tokid(up.url(), options);
  REQUIRE(tokid.wait_ready());
  CHECK(tokid.stat("named_states") >= 2);
  const Answer answer = as_answer(post_json(tokid.port(), kChat, talk(0)));
  CHECK(answer.reason == "restored");
  CHECK(answer.cache_n >= 150);
  std::string restored;  // the last one: there was a trial before
  for (const auto& request : up.requests()) {
    if (request.query == "action=restore") {
      restored = request.json()["filename"].str();
    }
  }
  CHECK(names.count(restored) == 1);
  for (int i = 3; i < 8; ++i) {
    CHECK(post_json(tokid.port(), kChat, talk(i)).status == 200);
  }
  const std::set<std::string> later = files(up);
  CHECK(later.size() >= 2);
  names.insert(later.begin(), later.end());
  CHECK(names.size() <= 4);
}

TEST_CASE("a forgotten state is not restored any more, others are, also after a restart") {
  ScriptedUpstream up(slow());
  TemporaryDirectory data;
  const std::vector<std::string> options{"--remote-states", "4", "--data-dir", data.path()};
  {
    Tokid tokid(up.url(), options);
    REQUIRE(tokid.wait_ready());
    for (int i = 0; i < 3; ++i) {
      CHECK(post_json(tokid.port(), kChat, talk(i)).status == 200);
    }
    CHECK(post_json(tokid.port(), "/toki/flush", "").json()["unsaved"].items().empty());
    CHECK(tokid.stat("named_states") == 3);
    const Json entries = get(tokid.port(), "/toki/entries").json();
    CHECK(entries["total"].integer() == 3);
    CHECK(entries["entries"][2]["stored_tokens"].integer() > 100);
    const std::string oldest = "/toki/entries?id=" + entries["entries"][2]["id"].dump();
    const HttpResponse gone = request(tokid.port(), "DELETE", oldest);
    CHECK(gone.status == 200);
    CHECK(gone.json()["segments"].integer() == 1);
    CHECK(tokid.stat("named_states") == 2);
    CHECK(as_answer(post_json(tokid.port(), kChat, talk(0))).cache_n < 10);
    CHECK(as_answer(post_json(tokid.port(), kChat, talk(1))).cache_n >= 150);
    CHECK(request(tokid.port(), "DELETE", "/toki/entries").status == 200);
    CHECK(tokid.stat("named_states") == 0);
    tokid.process().kill();
  }
  Tokid tokid(up.url(), options);
  REQUIRE(tokid.wait_ready());
  CHECK(tokid.stat("named_states") == 0);
  CHECK(as_answer(post_json(tokid.port(), kChat, talk(1))).cache_n == 0);
}
