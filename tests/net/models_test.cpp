// Several backends behind one tokid: the model that a request names picks one, and each has slots,
// figures and folders of its own.
#include <filesystem>

#include "net_test.hpp"

namespace {

using namespace toki::test;

std::string chat_for(const std::string& model, const std::string& text) {
  return R"({"model":)" + quote(model) + R"(,"messages":[{"role":"user","content":)" + quote(text) +
         "}]}";
}

// Two backends that can be told apart, and what is put before them.
struct Models {
  explicit Models(std::vector<std::string> options = {}, const std::string& backend = {})
      : tokid(backend, with(std::move(options))) {
    REQUIRE(wait_until([&] { return get(tokid.port(), "/toki/ready").status == 200; },
                       milliseconds(15000)));
    REQUIRE(wait_until([&] {
      return status("/toki/health?backend=big") == 200 &&
             status("/toki/health?backend=a%2Fb") == 200;
    }));
    big.clear_log();
    small.clear_log();
  }

  std::vector<std::string> with(std::vector<std::string> options) const {
    for (const std::string& model :
         {"big=" + big.url(), "a/b=" + small.url(), "also=" + small.url()}) {
      options.insert(options.end(), {"--model", model});
    }
    return options;
  }
  int status(const std::string& path) const { return get(tokid.port(), path).status; }
  HttpResponse chat(const std::string& model, const std::string& text) const {
    return post_json(tokid.port(), kChat, chat_for(model, text));
  }
  Json page(const std::string& path) const {
    const HttpResponse answer = get(tokid.port(), path);
    INFO(path << ": " << answer.body);
    REQUIRE(answer.status == 200);
    return answer.json();
  }

  ScriptedUpstream big{named("big-file")}, small{named("small-file")};
  Tokid tokid;

 private:
  static Behaviour named(const std::string& alias) {
    Behaviour behaviour;
    behaviour.alias = alias;
    return behaviour;
  }
};

}  // namespace

TEST_CASE("models: the model that a request names picks the backend") {
  Models rig;
  CHECK(rig.chat("big", "one").status == 200);
  CHECK(rig.chat("a/b", "two").status == 200);
  CHECK(rig.chat("also", "three").status == 200);
  CHECK(rig.big.generations().size() == 1);
  REQUIRE(rig.small.generations().size() == 2);
  CHECK(forwarding_fault(chat_for("a/b", "two"), rig.small.generations()[0].body()).empty());
  // So do calls that need no slot, and those without a body.
  CHECK(post_json(rig.tokid.port(), "/v1/messages/count_tokens", chat_for("also", "x")).status ==
        200);
  CHECK(rig.status("/props?model=a%2Fb") == 200);
  CHECK(rig.small.requests_to("POST", "/v1/messages/count_tokens").size() == 1);
  // Who names none gets the first.
  CHECK(post_json(rig.tokid.port(), "/completion", R"({"prompt":"x"})").status == 200);
  CHECK(post_json(rig.tokid.port(), "/tokenize", R"({"content":"x"})").status == 200);
  CHECK(rig.big.generations().size() == 2);
  CHECK(rig.chat("big", "{").status == 200);
  check_error(post_json(rig.tokid.port(), kChat, "{"), 400, "invalid_request_error");
}

TEST_CASE("models: a name that nobody serves is refused, with the names there are") {
  Models rig;
  const HttpResponse refused = rig.chat("gone", "secret");
  check_error(refused, 404, "model_not_found");
  CHECK(refused.json()["error"]["message"].str() ==
        "there is no model gone; there are: big, a/b, also");
  check_error(get(rig.tokid.port(), "/props?model=gone"), 404, "model_not_found");
  check_error(get(rig.tokid.port(), "/toki/stats?backend=gone"), 404, "invalid_request_error");
  CHECK(rig.big.generations().empty());
  CHECK(rig.small.generations().empty());
}

TEST_CASE("models: with --backend every other name is its") {
  ScriptedUpstream rest;
  Models rig({}, rest.url());
  REQUIRE(wait_until([&] { return rig.status("/toki/health") == 200; }));
  rest.clear_log();
  CHECK(rig.chat("gpt-4o", "one").status == 200);
  CHECK(rig.chat("big", "two").status == 200);
  CHECK(rest.generations().size() == 1);
  CHECK(rig.big.generations().size() == 1);
  const Json list = rig.page("/v1/models")["data"];
  REQUIRE(list.items().size() == 4);
  CHECK(list[std::size_t{0}]["id"].str() == "m");
  CHECK(rig.page("/toki/stats?backend=default")["requests_total"].integer() == 1);
  CHECK(rig.page("/toki/stats")["requests_total"].integer() == 1);
}

TEST_CASE("models: /v1/models lists the names, with what each backend says") {
  Models rig;
  const Json list = rig.page("/v1/models");
  CHECK(list["object"].str() == "list");
  REQUIRE(list["data"].items().size() == 3);
  CHECK(list["data"][std::size_t{0}]["id"].str() == "big");
  CHECK(list["data"][1]["id"].str() == "a/b");
  CHECK(list["data"][2]["id"].str() == "also");
  CHECK(list["data"][1]["meta"]["n_vocab"].integer() == 49152);
  rig.small.stop();
  REQUIRE(wait_until([&] { return rig.status("/toki/ready") == 503; }));
  const Json rest = rig.page("/models");
  REQUIRE(rest["data"].items().size() == 3);
  CHECK(rest["data"][2]["id"].str() == "also");
  rig.small.start();
}

TEST_CASE("models: figures, slots and pins are told apart") {
  Models rig;
  rig.chat("big", W(40));
  rig.chat("also", W(40));
  CHECK(as_answer(rig.chat("also", W(40))).cache_n > 30);
  CHECK(rig.page("/toki/stats?backend=big")["requests_total"].integer() == 1);
  CHECK(rig.page("/toki/stats?backend=a%2Fb")["requests_total"].integer() == 2);
  CHECK(rig.page("/toki/stats?backend=also")["requests_total"].integer() == 2);
  CHECK(rig.page("/toki/requests?after=1&backend=also")["requests"].items().size() == 1);
  const std::string metrics = get(rig.tokid.port(), "/metrics").body;
  CHECK(occurrences(metrics, "# TYPE toki_requests_total counter\n") == 1);
  CHECK(metrics.find("toki_requests_total{backend=\"big\"} 1\n") != metrics.npos);
  CHECK(metrics.find("toki_requests_total{backend=\"a/b\"} 2\n") != metrics.npos);
  const Json overview = rig.page("/toki/overview?after=0&backend=a%2Fb");
  CHECK(overview["backends"].dump() == R"(["big","a/b"])");
  CHECK(overview["backend"].str() == "a/b");
  CHECK(overview["stats"]["requests_total"].integer() == 2);
  CHECK(post_json(rig.tokid.port(), "/toki/pins?backend=a%2Fb", R"({"text":"one two three four"})")
            .status == 200);
  CHECK(rig.page("/toki/pins?backend=a%2Fb")["pins"].items().size() == 1);
  CHECK(rig.page("/toki/pins")["pins"].items().empty());
  // A lookup names its model, as the request would.
  const HttpResponse found = post_json(rig.tokid.port(), "/toki/lookup", chat_for("also", W(40)));
  CHECK(found.json()["class"].str() == "hit");
  CHECK(request(rig.tokid.port(), "DELETE", "/toki/entries?backend=a%2Fb").status == 200);
  CHECK(rig.page("/toki/tree?backend=a%2Fb")["total"].integer() == 0);
  CHECK(rig.page("/toki/tree?backend=big")["total"].integer() == 1);
  CHECK(std::filesystem::exists(rig.tokid.data_dir() + "/models/big/index.db"));
  CHECK(std::filesystem::exists(rig.tokid.data_dir() + "/models/a%2Fb/index.db"));
  CHECK(occurrences(rig.tokid.log(), "big: backend is ready") == 1);
  CHECK(rig.tokid.log().find(" backend=a/b") != std::string::npos);
}

TEST_CASE("models: ready tells which backend is not, live does not care") {
  Models rig;
  rig.small.stop();
  HttpResponse not_ready;
  REQUIRE(wait_until([&] {  // it may have gone between two calls of one look, and counts as loading
    not_ready = get(rig.tokid.port(), "/toki/ready");
    return not_ready.status == 503 && not_ready.json()["reason"].str() == "backend a/b is down";
  }));
  CHECK(not_ready.json()["ready"].dump() == "false");
  CHECK(rig.status("/toki/ready?backend=big") == 200);
  CHECK(rig.status("/toki/ready?backend=a%2Fb") == 503);
  CHECK(rig.page("/toki/live").dump() == R"({"live":true})");
  CHECK(rig.chat("big", "still served").status == 200);
  CHECK(rig.chat("also", "not served").status == 503);
  rig.small.start();
  CHECK(wait_until([&] { return rig.status("/toki/ready") == 200; }));
}

TEST_CASE("one backend is ready when it answers, without any name") {
  Rig rig;
  const HttpResponse ready = get(rig.port(), "/toki/ready");
  CHECK(ready.status == 200);
  CHECK(ready.json().dump() == R"({"ready":true})");
  check_error(get(rig.port(), "/toki/ready?backend=x"), 404, "invalid_request_error");
  check_error(post_json(rig.port(), "/toki/live", "{}"), 405, "invalid_request_error");
  CHECK(get(rig.port(), "/metrics").body.find("{backend") == std::string::npos);
  CHECK(rig.chat(chat_for("whatever", "x")).status == 200);
  rig.up.stop();
  REQUIRE(wait_until([&] {
    const HttpResponse told = get(rig.port(), "/toki/ready");
    return told.status == 503 && told.json()["reason"].str() == "backend is down";
  }));
  CHECK(get(rig.port(), "/toki/live").status == 200);
  rig.up.start();
}

TEST_CASE("models: a setting that cannot be meant is one line and exit code 2") {
  struct Case {
    std::vector<std::string> options;
    const char* told;
  };
  const auto one = GENERATE(
      values<Case>({{{"--model", "x.gguf"}, "expected NAME=URL"},
                    {{"--model", "=http://a"}, "expected NAME=URL"},
                    {{"--model", "a=ftp://b"}, "--model a: "},
                    {{"--model", "a=http://b", "--model", "a=http://c"}, "is there twice"},
                    {{"--backend", "http://b", "--model", "a=http://b"}, "this is --backend"},
                    {{"--backend", "http://b", "--model", "default=http://c"},
                     "this is how --backend is called"},
                    {{"--model", "a=http://b", "--", "llama-server"}, "behind --"}}));
  Process process(tokid_path(), one.options);
  CHECK(process.wait_exit() == 2);
  CHECK_THAT(process.err(), Catch::Contains(one.told));
  CHECK(occurrences(process.err(), "\n") == 1);
}
