// --record: the bodies of generations as toki-replay reads them, and that a request never notices.
#include <fstream>
#include <sstream>
#include <sys/stat.h>

#include "net_test.hpp"

namespace {

using namespace toki::test;

// A file that --record may make.
class File {
 public:
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_, std::ios::binary).rdbuf();
    return all.str();
  }
  std::vector<Json> lines() const {
    std::vector<Json> found;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      const auto value = Json::parse(line);
      REQUIRE(value);
      found.push_back(*value);
    }
    return found;
  }

 private:
  TemporaryDirectory folder_;
  std::string path_ = folder_.path() + "/bodies.jsonl";
};

}  // namespace

TEST_CASE("record: each generation's body is one line, with its path and time") {
  File file;
  {
    Rig rig({}, {"--record", file.path()});
    CHECK(rig.tokid.stat("recording") == 1);
    CHECK(rig.chat(cc({M("one")})).status == 200);
    CHECK(rig.post("/completion?key=secret",
                   "{\r\n  \"prompt\": \"a\\nb  c\",\n\t\"n_predict\": 2\n}")
              .status == 200);
    CHECK(rig.post("/tokenize", R"({"content":"no generation"})").status == 200);
    CHECK(rig.chat("{ no json").status == 400);
    CHECK(rig.tokid.wait_stat("recorded_total", 2));
    CHECK(occurrences(rig.tokid.log(), "is recorded with its prompt: " + file.path()) == 1);
  }
  const std::vector<Json> lines = file.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["path"].str() == kChat);
  CHECK(lines[0]["body"] == *Json::parse(cc({M("one")})));
  CHECK(lines[1]["path"].str() == "/completion");
  CHECK(lines[1]["body"]["prompt"].str() == "a\nb  c");
  CHECK(lines[1]["body"]["n_predict"].integer() == 2);
  CHECK(lines[1]["at_ms"].integer() >= lines[0]["at_ms"].integer());
  CHECK(lines[0]["at_ms"].integer() > 1600000000000);
  CHECK(file.text().find("secret") == std::string::npos);
  CHECK(file.text().find("\"prompt\": \"a\\nb  c\"") != std::string::npos);  // bytes as they came
}

TEST_CASE("record: no header is written, and only the owner can read the file") {
  File file;
  Rig rig({}, {"--record", file.path()});
  const auto answer =
      post_json(rig.port(), kChat, cc({M("one")}),
                {{"Authorization", "Bearer topsecret"}, {"X-Api-Key", "othersecret"}});
  CHECK(answer.status == 200);
  REQUIRE(rig.tokid.wait_stat("recorded_total", 1));
  CHECK(file.text().find("secret") == std::string::npos);
  struct stat about {};
  REQUIRE(::stat(file.path().c_str(), &about) == 0);
  CHECK((about.st_mode & 0777) == 0600);
}

TEST_CASE("record: a later run goes on in the same file") {
  File file;
  for (int run = 0; run < 2; ++run) {
    Rig rig({}, {"--record", file.path()});
    CHECK(rig.chat(cc({M("run")})).status == 200);
  }
  CHECK(file.lines().size() == 2);
}

TEST_CASE("record: a disk that is full ends the recording, and no request notices") {
  Rig rig({}, {"--record", "/dev/full"});
  for (int i = 0; i < 3; ++i) {
    CHECK(rig.chat(cc({M("one")})).status == 200);
  }
  CHECK(rig.tokid.stat("recording") == 0);
  CHECK(rig.tokid.stat("recorded_total") == 0);
  const auto said = [&] {
    return occurrences(rig.tokid.log(), "requests are recorded no more: /dev/full: No space left");
  };
  CHECK(wait_until([&] { return said() == 1; }));
}

TEST_CASE("record: at its limit the file ends with a whole line") {
  File file;
  Rig rig({}, {"--record", file.path(), "--record-mib", "1"});
  const std::string body = cc({M(std::string(300 << 10, 'x'))});
  for (int i = 0; i < 5; ++i) {
    CHECK(rig.chat(body).status == 200);
  }
  CHECK(rig.tokid.stat("recorded_total") == 3);
  CHECK(rig.tokid.stat("recording") == 0);
  CHECK(wait_until([&] { return occurrences(rig.tokid.log(), "it is full (--record-mib)") == 1; }));
  CHECK(file.lines().size() == 3);
  CHECK(file.text().back() == '\n');
}

TEST_CASE("record: a file that others empty has room again") {
  File file;
  Rig rig({}, {"--record", file.path(), "--record-mib", "1"});
  const std::string large = cc({M(std::string(600000, 'x'))});
  CHECK(rig.chat(large).status == 200);
  REQUIRE(rig.tokid.wait_stat("recorded_total", 1));
  std::ofstream(file.path(), std::ios::trunc).close();
  CHECK(rig.chat(large).status == 200);
  CHECK(rig.tokid.wait_stat("recorded_total", 2));
  CHECK(rig.tokid.stat("recording") == 1);
  CHECK(file.lines().size() == 1);
}

TEST_CASE("record: a file that cannot be opened stops the start with one line") {
  Process tokid(tokid_path(), {"--listen", "127.0.0.1:0", "--data-dir", TemporaryDirectory().path(),
                               "--record", "/no/such/folder/file"});
  CHECK(tokid.wait_exit() == 2);
  CHECK(tokid.err() == "tokid: --record /no/such/folder/file: No such file or directory\n");
}

TEST_CASE("record: off unless asked for") {
  Rig rig;
  CHECK(rig.chat(cc({M("one")})).status == 200);
  CHECK(rig.tokid.stat("recording") == 0);
  CHECK(rig.tokid.log().find("record") == std::string::npos);
}
