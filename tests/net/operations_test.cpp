// What an operator can ask tokid for: saving now, forgetting; and two tokids on one folder.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "net_test.hpp"

namespace {

using namespace toki::test;

HttpResponse remove(const Rig& rig, const std::string& query = {}) {
  return request(rig.port(), "DELETE", "/toki/entries" + query);
}

Json entries(const Rig& rig) {
  return get(rig.port(), "/toki/entries").json();
}

std::string id_of_newest(const Rig& rig) {
  return entries(rig)["entries"][0]["id"].dump();
}

}  // namespace

TEST_CASE("a flush answers when the index has written what it was told") {
  Rig rig;
  rig.chat(cc({S(W(100)), M("q")}));
  const HttpResponse flushed = post_json(rig.port(), "/toki/flush", "");
  CHECK(flushed.status == 200);
  CHECK(flushed.json()["saved"].integer() == 0);
  CHECK(flushed.json()["unsaved"].items().empty());
  CHECK(flushed.json()["index"].dump() == "true");
  CHECK(rig.tokid.stat("index_queued") == 0);
  CHECK(rig.tokid.stat("index_written_total") >= 1);
  CHECK(post_json(rig.port(), "/toki/flush?limit_ms=100", "").status == 200);
}

TEST_CASE("what these pages do not understand changes nothing") {
  Rig rig;
  rig.chat(cc({S(W(100)), M("q")}));
  check_error(get(rig.port(), "/toki/flush"), 405, "invalid_request_error");
  check_error(post_json(rig.port(), "/toki/entries", "{}"), 405, "invalid_request_error");
  for (const char* query : {"?limit_ms=x", "?limit_ms=-1", "?limit_ms=600001", "?limit=1"}) {
    INFO(query);
    const std::string target = std::string("/toki/flush") + query;
    check_error(post_json(rig.port(), target, ""), 400, "invalid_request_error");
  }
  for (const char* query : {"?id=", "?id=x", "?ids=1", "?id=1&stored_id=1", "?all"}) {
    INFO(query);
    check_error(remove(rig, query), 400, "invalid_request_error");
  }
  check_error(remove(rig, "?id=1"), 404, "invalid_request_error");
  check_error(remove(rig, "?stored_id=1"), 404, "invalid_request_error");
  CHECK(entries(rig)["total"].integer() == 1);
}

TEST_CASE("one prompt is forgotten by its id, and others keep what they share with it") {
  Rig rig;
  const std::string system = W(200);
  const std::string kept = cc({S(system), M("kept " + words("k", 50))});
  const std::string gone = cc({S(system), M("gone " + words("g", 50))});
  const Answer first = rig.chat(kept);
  rig.chat(gone);
  const HttpResponse answer = remove(rig, "?id=" + id_of_newest(rig));
  CHECK(answer.status == 200);
  CHECK(answer.json()["prompts"].integer() == 1);
  CHECK(answer.json()["index"].dump() == "true");
  CHECK(entries(rig)["total"].integer() == 1);
  const Json look = post_json(rig.port(), "/toki/lookup", gone).json();
  CHECK(look["known_tokens"].integer() >= 200);
  CHECK(look["known_tokens"].integer() < first.prompt_tokens - 40);
  CHECK(look["reused_tokens"].integer() <= look["known_tokens"].integer());
  CHECK(rig.chat(kept).cache_n == first.prompt_tokens - 1);
}

TEST_CASE("everything is forgotten: it is computed again, also after a restart") {
  TemporaryDirectory data;
  ScriptedUpstream up;
  const std::string body = cc({S(W(300)), M("q1")});
  {
    Tokid tokid(up.url(), {"--data-dir", data.path()});
    REQUIRE(tokid.wait_ready());
    as_answer(post_json(tokid.port(), kChat, body));
    CHECK(as_answer(post_json(tokid.port(), kChat, body)).cache_n > 300);
    const HttpResponse gone = request(tokid.port(), "DELETE", "/toki/entries");
    CHECK(gone.status == 200);
    CHECK(gone.json()["prompts"].integer() == 1);
    CHECK(get(tokid.port(), "/toki/entries").json()["total"].integer() == 0);
    CHECK(post_json(tokid.port(), "/toki/lookup", body).json()["known_tokens"].integer() == 0);
    CHECK(as_answer(post_json(tokid.port(), kChat, body)).cache_n == 0);
    CHECK(request(tokid.port(), "DELETE", "/toki/entries").status == 200);
    tokid.process().kill();
  }
  Tokid tokid(up.url(), {"--data-dir", data.path()});
  REQUIRE(tokid.wait_ready());
  CHECK(tokid.wait_stat("index_open", 1));
  CHECK(tokid.stat("index_loaded") == 0);
  CHECK(tokid.stat("prompts_known") == 0);
}

// B82
TEST_CASE("a second tokid on a folder ends with one line, until the first one is gone") {
  TemporaryDirectory data, slots, other;
  ScriptedUpstream up;
  std::vector<std::string> first{"--data-dir", data.path()}, second = first;
  std::string named = data.path();
  SECTION("the data folder") {}
  SECTION("the folder of state files, with data folders of their own") {
    first.insert(first.end(), {"--slot-dir", slots.path()});
    second = {"--data-dir", other.path(), "--slot-dir", slots.path()};
    named = slots.path();
  }
  Tokid tokid(up.url(), first);
  REQUIRE(tokid.wait_ready());
  std::vector<std::string> arguments{"--listen", "127.0.0.1:0", "--backend", up.url()};
  arguments.insert(arguments.end(), second.begin(), second.end());
  Process refused(tokid_path(), arguments);
  CHECK(refused.wait_exit() == 1);
  CHECK(wait_until([&] { return refused.err().find('\n') != std::string::npos; }));
  const std::string said = refused.err();
  INFO(said);
  CHECK(said.find(named) != std::string::npos);
  CHECK(said.find("use") != std::string::npos);
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
  CHECK(as_answer(post_json(tokid.port(), kChat, cc({M("q")}))).status == 200);
  tokid.process().kill();
  Tokid next(up.url(), second);  // a lock of a killed process is none
  CHECK(next.wait_ready());
}

TEST_CASE("a store whose folder cannot be used is no reason not to serve") {
  TemporaryDirectory data, slots;
  std::ofstream(data.path() + "/kv") << "somebody's file";
  ScriptedUpstream up;
  Tokid tokid(up.url(), {"--data-dir", data.path(), "--slot-dir", slots.path()});
  REQUIRE(tokid.wait_ready());
  CHECK(as_answer(post_json(tokid.port(), kChat, cc({M("q")}))).status == 200);
  CHECK(tokid.stat("kv_writable") == 0);
  CHECK(tokid.stat("can_save") == 0);
  CHECK(tokid.log().find("no KV cache is kept on disk") != std::string::npos);
  const Json health = get(tokid.port(), "/toki/health").json();
  CHECK(health["states"]["saved"].dump() == "false");
  CHECK_FALSE(health["states"]["why"].str().empty());
  std::ifstream file(data.path() + "/kv");
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "somebody's file");
}
