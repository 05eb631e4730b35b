// tokid as a program: its options and exit codes, and llama-server as its child.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>

#include "net_test.hpp"

namespace {

using namespace toki::test;

struct Start {
  pid_t pid = 0;
  std::vector<std::string> arguments;

  std::size_t count(const std::string& argument) const {
    return static_cast<std::size_t>(std::count(arguments.begin(), arguments.end(), argument));
  }
  std::string value(const std::string& option) const {
    for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
      if (arguments[i] == option) return arguments[i + 1];
    }
    return "";
  }
};

// The fake llama-server of one test: its calls are logged in a file of its own.
class Fake {
 public:
  explicit Fake(const std::string& mode = "") {
    ::setenv("FAKE_LLAMA_LOG", log().c_str(), 1);
    ::setenv("FAKE_LLAMA_MODE", mode.c_str(), 1);
  }

  std::string log() const { return directory_.path() + "/log"; }
  std::vector<Start> starts() const {
    std::vector<Start> out;
    std::ifstream file(log());
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      Start start;
      words >> start.pid;
      std::string word;
      while (words >> word) start.arguments.push_back(word);
      out.push_back(start);
    }
    return out;
  }

 private:
  TemporaryDirectory directory_;
};

bool alive(pid_t pid) {
  // A zombie has ended, whoever has yet to collect it.
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const auto close = line.rfind(')');
  return close != std::string::npos && close + 2 < line.size() && line[close + 2] != 'Z';
}

std::vector<std::string> fake_program(std::vector<std::string> arguments = {"-m", "x.gguf"}) {
  arguments.insert(arguments.begin(), TOKI_FAKE_LLAMA_SERVER);
  return arguments;
}

std::string local_url(int port) {
  return "http://127.0.0.1:" + std::to_string(port);
}

}  // namespace

TEST_CASE("as many descriptors as may be had are asked for") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  Rig rig;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit raised{};
  REQUIRE(::prlimit(rig.tokid.process().pid(), RLIMIT_NOFILE, nullptr, &raised) == 0);
  CHECK(raised.rlim_cur == before.rlim_max);
}

TEST_CASE("help and version are printed with exit code 0") {
  Process help(tokid_path(), {"--help"});
  CHECK(help.wait_exit() == 0);
  REQUIRE(wait_until([&] { return help.out().find("--version") != std::string::npos; }));
  for (const char* option : {"--listen",
                             "--backend",
                             "--data-dir",
                             "--backend-key-file",
                             "--max-body-mib",
                             "--max-connections",
                             "--queue-length",
                             "--queue-wait-ms",
                             "--slot-wait-ms",
                             "--progress-limit-ms",
                             "--tokenize-limit-ms",
                             "--keepalive-grace-ms",
                             "--keepalive-interval-ms",
                             "--keepalive-form",
                             "--probe-interval-ms",
                             "--drain-ms",
                             "--min-reuse-for-hit",
                             "--log-level",
                             "--help",
                             "--version"}) {
    INFO(option);
    CHECK(help.out().find(option) != std::string::npos);
  }
  // B06: an upstream may compute for an hour before its first byte.
  CHECK(help.out().find("3600000") != std::string::npos);
  Process version(tokid_path(), {"--version"});
  CHECK(version.wait_exit() == 0);
  CHECK(wait_until([&] { return version.out().find('.') != std::string::npos; }));
}

TEST_CASE("a bad option is one line on stderr and exit code 2") {
  const std::vector<std::string> options = GENERATE(
      std::vector<std::string>{"--no-such-option"}, std::vector<std::string>{"--listen"},
      std::vector<std::string>{"--listen", "nonsense"},
      std::vector<std::string>{"--listen", "127.0.0.1:99999"},
      std::vector<std::string>{"--listen", "unix:x.sock"},
      std::vector<std::string>{"--listen", "unix:/" + std::string(200, 'x')},
      std::vector<std::string>{"--backend", "unix:x.sock"},
      std::vector<std::string>{"--tls-cert", "/dev/null"},
      std::vector<std::string>{"--socket-mode", "rw"},
      std::vector<std::string>{"--tls-cert", "/dev/null", "--tls-key", "/dev/null"},
      std::vector<std::string>{"--backend", "https://x", "--backend-ca", "/dev/null"},
      std::vector<std::string>{"--backend", "ftp://x"}, std::vector<std::string>{"--backend", ""},
      std::vector<std::string>{"--max-body-mib", "-1"},
      std::vector<std::string>{"--max-body-mib", "many"},
      std::vector<std::string>{"--queue-length", "1x"},
      std::vector<std::string>{"--log-format", "xml"},
      std::vector<std::string>{"--keepalive-form", "bogus"},
      std::vector<std::string>{"--log-level", "loud"},
      std::vector<std::string>{"--backend-key-file", "/nonexistent/key"},
      std::vector<std::string>{"--exact", "--pin-hot", "1"},
      std::vector<std::string>{"--exact-batch", "64"}, std::vector<std::string>{"stray"});
  // Where a default would listen on a port of the machine, none is taken.
  std::vector<std::string> all = options;
  if (options[0] != "--listen") all.insert(all.begin(), {"--listen", "127.0.0.1:0"});
  Process process(tokid_path(), all);
  INFO(options[0]);
  CHECK(process.wait_exit() == 2);
  CHECK(wait_until([&] { return !process.err().empty(); }));
  CHECK(occurrences(process.err(), "\n") == 1);
  CHECK(process.out().empty());
}

TEST_CASE("a number that is none, or too large, is named as what it is") {
  const auto told = [](const std::string& value) {
    Process process(tokid_path(), {"--queue-length", value, "--check-config"});
    CHECK(process.wait_exit() == 2);
    return process.err();
  };
  CHECK(told("abc") == "tokid: --queue-length: 'abc' is no number\n");
  CHECK(told("1x") == "tokid: --queue-length: '1x' is no number\n");
  CHECK(told("1000001") == "tokid: --queue-length: 1000001 is not from 0 to 1000000\n");
}

TEST_CASE("an option that is not there is named, with what was probably meant") {
  const auto told = [](std::vector<std::string> options) {
    options.push_back("--check-config");
    Process process(tokid_path(), std::move(options));
    CHECK(process.wait_exit() == 2);
    return process.err();
  };
  CHECK(told({"--lsten", "1"}) == "tokid: there is no option --lsten; did you mean --listen?\n");
  CHECK(told({"--KV_GIB=1"}) == "tokid: there is no option --KV_GIB; did you mean --kv-gib?\n");
  CHECK(told({"--unheard-of"}) == "tokid: there is no option --unheard-of\n");
  const std::string hint =
      " (a server to start stands behind --: tokid [OPTIONS] -- llama-server -m ...)\n";
  CHECK(told({"-np", "4"}) == "tokid: there is no option -np" + hint);
  CHECK(told({"--n-gpu-layers", "4"}) == "tokid: there is no option --n-gpu-layers" + hint);
  CHECK(told({"llama-server"}) == "tokid: there is no option llama-server" + hint);
}

TEST_CASE("a key of the file that is not there is named, with what was probably meant") {
  const auto told = [](const std::string& text) {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/t";
    std::ofstream(path) << text;
    Process process(tokid_path(), {"--config", path, "--check-config"});
    CHECK(process.wait_exit() == 2);
    return process.err().substr(process.err().find(path) + path.size());
  };
  CHECK(told("admin-key = 1") ==
        ":1: there is no setting admin-key; did you mean admin-key-file?\n");
  CHECK(told("KV-GIB = 1") == ":1: there is no setting KV-GIB; did you mean kv-gib?\n");
  CHECK(told("TOKID_KV_GIB = 1") == ":1: there is no setting TOKID_KV_GIB; did you mean kv-gib?\n");
  CHECK(told("lol = 1") == ":1: there is no setting lol\n");
  CHECK(told("[tokid]\nkv-gib = 1") ==
        ":1: there are no tables such as [tokid]: settings stand above all of them\n");
}

TEST_CASE("a port in use is exit code 1") {
  ScriptedUpstream up;
  TemporaryDirectory directory;
  Process process(tokid_path(), {"--listen", "127.0.0.1:" + std::to_string(up.port()), "--backend",
                                 up.url(), "--data-dir", directory.path()});
  CHECK(process.wait_exit() == 1);
  CHECK(wait_until([&] { return !process.err().empty(); }));
}

TEST_CASE("llama-server is started with the flags that toki needs") {
  Fake fake;
  const int port = unused_port();
  Tokid tokid(local_url(port), {}, fake_program());
  REQUIRE(tokid.wait_ready());
  const auto starts = fake.starts();
  REQUIRE(starts.size() == 1);
  const Start& start = starts[0];
  CHECK(start.value("-m") == "x.gguf");
  CHECK(start.count("-np") + start.count("--parallel") == 1);
  CHECK(start.value("--port") == std::to_string(port));
  CHECK(start.value("--host") == "127.0.0.1");
  CHECK(start.value("--cache-ram") == "0");
  CHECK(start.count("--metrics") == 1);
  CHECK(start.count("--slot-save-path") == 1);
  CHECK(tokid.stat("backend_cache_mib") == 0);
  CHECK(occurrences(tokid.log(), "backend is down") == 0);  // it was only just started
  CHECK(post_json(tokid.port(), kChat, cc({M("q")})).status == 200);
  SECTION("and stopped at the end") {
    tokid.process().signal(SIGTERM);
    CHECK(tokid.process().wait_exit(milliseconds(8000)) == 0);
    CHECK(wait_until([&] { return !alive(start.pid); }, milliseconds(3000)));
  }
}

TEST_CASE("flags that were given are not given again") {
  Fake fake;
  Tokid tokid(local_url(unused_port()), {},
              fake_program({"-m", "x.gguf", "-np", "3", "--metrics", "--cache-ram", "100",
                            "--slot-save-path", "/tmp"}));
  REQUIRE(tokid.wait_ready());
  const auto starts = fake.starts();
  REQUIRE(starts.size() == 1);
  const Start& start = starts[0];
  CHECK(start.count("-np") + start.count("--parallel") == 1);
  CHECK(start.value("-np") == "3");
  CHECK(start.count("--metrics") == 1);
  CHECK(start.count("--cache-ram") == 1);
  CHECK(start.value("--cache-ram") == "100");
  CHECK(start.count("--slot-save-path") == 1);
  CHECK(tokid.stat("slots_total") == 3);
  CHECK(tokid.stat("backend_cache_mib") == 100);  // B47
}

TEST_CASE("flags that the program does not know are left out") {
  Fake fake("old");
  Tokid tokid(local_url(unused_port()), {}, fake_program());
  REQUIRE(tokid.wait_ready());
  REQUIRE(fake.starts().size() == 1);
  CHECK(fake.starts()[0].count("--cache-ram") == 0);
  CHECK(fake.starts()[0].count("--metrics") == 1);
}

TEST_CASE("requests that wait in the kernel when tokid is told to end are answered") {
  Rig rig;
  ::kill(rig.tokid.process().pid(), SIGSTOP);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(rig.port()));
    clients.back()->send_json(kChat, cc({M("q" + std::to_string(i))}));
  }
  rig.tokid.process().signal(SIGTERM);
  ::kill(rig.tokid.process().pid(), SIGCONT);
  for (auto& client : clients) {
    CHECK(client->read_response().status == 200);
  }
  CHECK(rig.tokid.process().wait_exit() == 0);
}

// B47
TEST_CASE("a killed llama-server is started again") {
  Fake fake;
  Tokid tokid(local_url(unused_port()), {}, fake_program());
  REQUIRE(tokid.wait_ready());
  const std::string body = cc({M(W(50))});
  CHECK(post_json(tokid.port(), kChat, body).status == 200);
  const pid_t first = fake.starts().at(0).pid;
  ::kill(first, SIGKILL);
  REQUIRE(wait_until([&] { return fake.starts().size() == 2; }));
  const pid_t second = fake.starts().at(1).pid;
  CHECK(second != first);
  REQUIRE(tokid.wait_stat("upstream_restarts_total", 1));
  REQUIRE(tokid.wait_ready());
  const Answer answer = as_answer(post_json(tokid.port(), kChat, body));
  CHECK(answer.status == 200);
  CHECK(answer.reused == 0);
  tokid.process().signal(SIGINT);
  CHECK(tokid.process().wait_exit(milliseconds(8000)) == 0);
  CHECK(wait_until([&] { return !alive(second); }, milliseconds(3000)));
}

TEST_CASE("a program that never serves is started three times, then tokid ends with its status") {
  Fake fake("dies");
  const TemporaryDirectory directory;
  std::vector<std::string> all{"--listen", "127.0.0.1:0", "--data-dir", directory.path(), "--"};
  const auto program = fake_program();
  all.insert(all.end(), program.begin(), program.end());
  Process process(tokid_path(), all);
  CHECK(process.wait_exit(milliseconds(30000)) == 7);
  CHECK(fake.starts().size() == 3);
  CHECK(occurrences(process.err(), "ended 3 times and never once answered /health") == 1);
}

TEST_CASE("a llama-server that served once is not given up, however often it dies") {
  Fake fake("dies when told");
  Tokid tokid(local_url(unused_port()), {}, fake_program());
  REQUIRE(tokid.wait_ready());
  std::ofstream(fake.log() + ".die") << "now";
  ::kill(fake.starts().at(0).pid, SIGKILL);
  // One that never served would have been given up with its third death.
  REQUIRE(wait_until([&] { return occurrences(tokid.process().err(), "ended with code 7") == 2; },
                     milliseconds(30000)));
  CHECK(occurrences(tokid.process().err(), "ended by signal 9") == 1);
  CHECK(occurrences(tokid.process().err(), "never once answered") == 0);
  check_error(post_json(tokid.port(), kChat, cc({M("q")})), 503, "unavailable_error");
  tokid.process().signal(SIGTERM);
  CHECK(tokid.process().wait_exit(milliseconds(8000)) == 0);
}

namespace {

// A variable of the environment that is there as long as this is.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    before_ ? ::setenv(name_.c_str(), before_->c_str(), 1) : ::unsetenv(name_.c_str());
  }

 private:
  std::string name_;
  std::optional<std::string> before_;
};

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) { write(text); }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string path() const { return directory_.path() + "/tokid.toml"; }

 private:
  TemporaryDirectory directory_;
};

std::string settings_of(std::vector<std::string> options) {
  options.push_back("--check-config");
  Process process(tokid_path(), std::move(options));
  REQUIRE(process.wait_exit() == 0);
  REQUIRE(wait_until([&] { return process.out().find("log-level") != std::string::npos; }));
  return process.out();
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("a setting comes from the command line, else the environment, else the file") {
  const ConfigFile file(
      "queue-length = 1\nmax-prompts = 2\ntree-mib = 3\ndrop-volatile-line = [\"a \\\"b\", \"c\"]\n"
      "server = [\"true\", \"-m\", \"x y\"]\n");
  const Variable config("TOKID_CONFIG", file.path());
  const Variable environment("TOKID_MAX_PROMPTS", "20");
  const Variable both("TOKID_TREE_MIB", "30");
  const std::string settings = settings_of({"--tree-mib", "300"});
  CHECK(has_line(settings, "queue-length = 1"));
  CHECK(has_line(settings, "max-prompts = 20"));
  CHECK(has_line(settings, "tree-mib = 300"));
  CHECK(has_line(settings, "drop-volatile-line = [\"a \\\"b\", \"c\"]"));
  CHECK(has_line(settings, "server = [\"true\", \"-m\", \"x y\"]"));
  CHECK(has_line(settings, "kv-gib = 32"));
  SECTION("and what is printed says the same when it is read") {
    ::unsetenv("TOKID_TREE_MIB");
    ::unsetenv("TOKID_MAX_PROMPTS");
    file.write(settings);
    CHECK(settings_of({}) == settings);
  }
}

TEST_CASE("settings that look like other values are printed so that they are read as they are") {
  const std::vector<std::string> odd{"--data-dir",           "1.50", "--drop-volatile-line", "1.50",
                                     "--drop-volatile-line", "\x7f", "--audit-cosine",       ".9",
                                     "--queue-length",       "007"};
  const std::string settings = settings_of(odd);
  const ConfigFile file(settings);
  CHECK(settings_of({"--config", file.path()}) == settings);
  CHECK(has_line(settings, "data-dir = \"1.50\""));
}

TEST_CASE("a text in brackets is one text, wherever it stands") {
  const std::string line = "drop-volatile-line = [\"[a,b]\"]";
  CHECK(has_line(settings_of({"--drop-volatile-line", "[a,b]"}), line));
  const ConfigFile file("drop-volatile-line = \"[a,b]\"\n");
  CHECK(has_line(settings_of({"--config", file.path()}), line));
  const Variable variable("TOKID_DROP_VOLATILE_LINE", "[a,b]");
  CHECK(has_line(settings_of({}), line));
  CHECK(has_line(settings_of({"--drop-volatile-line", "x", "--drop-volatile-line", "[y]"}),
                 "drop-volatile-line = [\"x\", \"[y]\"]"));
}

TEST_CASE("a folder is no settings file") {
  Process process(tokid_path(), {"--config", "/tmp", "--check-config"});
  CHECK(process.wait_exit() == 2);
  CHECK(process.err() == "tokid: --config /tmp: is a folder\n");
}

TEST_CASE("a check of the settings makes no folder and takes no port") {
  const TemporaryDirectory directory;
  ScriptedUpstream up;
  const std::string folder = directory.path() + "/state";
  settings_of({"--data-dir", folder, "--listen", "127.0.0.1:" + std::to_string(up.port())});
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a check of the settings refuses what the start would, in one line") {
  const TemporaryDirectory directory;
  const std::string folder = directory.path();
  const std::string file = folder + "/file";
  std::ofstream(file) << "x";
  struct Case {
    std::vector<std::string> options;
    std::string told;
  };
  const std::vector<Case> cases{
      {{"--slot-dir", "/nope"}, "--slot-dir /nope"},
      {{"--slot-dir", file}, "--slot-dir"},
      {{"--data-dir", file}, "--data-dir"},
      {{"--data-dir", file + "/below/it"}, "--data-dir"},
      {{"--record", "/nope/x"}, "--record /nope/x"},
      {{"--record", folder}, "is a folder"},
      {{"--listen", "unix:" + file}, "is no socket"},
      {{"--listen", "unix:/nope/x.sock"}, "--listen unix:/nope/x.sock"},
      {{"--listen", "127.0.0.1:9", "--listen", "127.0.0.1:9"}, "--listen 127.0.0.1:9"},
      {{"--listen", "0.0.0.0:9", "--listen", "localhost:9", "--allow-open"}, "0.0.0.0:9"},
      {{"--listen", "unix:/tmp/x.sock", "--listen", "unix:/tmp/x.sock"}, "takes it already"},
      {{"--", "/nope/x"}, "cannot start /nope/x: No such file or directory"},
      {{"--", "no-such-program-anywhere"}, "cannot start no-such-program-anywhere"},
      {{"--", folder}, "cannot start"},
      {{"--", file}, "cannot start"},
      {{"--", "true", "--port", "1"}, ""},
      {{"--backend", "http://x:2", "--", "true", "--port", "1"}, "differ"}};
  for (const Case& one : cases) {
    std::vector<std::string> all{"--check-config"};
    all.insert(all.end(), one.options.begin(), one.options.end());
    Process process(tokid_path(), all);
    INFO(one.told);
    CHECK(process.wait_exit() == (one.told.empty() ? 0 : 2));
    CHECK_THAT(process.err(), Catch::Contains(one.told));
    CHECK(occurrences(process.err(), "\n") == (one.told.empty() ? 0 : 1));
  }
}

TEST_CASE("one port twice is refused, any free one may be taken twice") {
  CHECK(has_line(settings_of({"--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"}),
                 "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]"));
  CHECK(has_line(settings_of({"--listen", "127.0.0.1:9", "--listen", "[::1]:9"}),
                 "listen = [\"127.0.0.1:9\", \"[::1]:9\"]"));
}

TEST_CASE("a path that is given empty is refused, from wherever it comes") {
  for (const char* name : {"config", "tls-cert", "tls-key", "backend-ca", "data-dir", "slot-dir",
                           "backend-key-file", "record", "api-keys", "admin-key-file"}) {
    const std::string option = std::string("--") + name;
    INFO(name);
    Process process(tokid_path(), {option, "", "--check-config"});
    CHECK(process.wait_exit() == 2);
    CHECK(process.err() == "tokid: " + option + ": names nothing\n");
    if (option == "--config") continue;
    const ConfigFile file(std::string(name) + " = \"\"\n");
    Process reads(tokid_path(), {"--config", file.path(), "--check-config"});
    CHECK(reads.wait_exit() == 2);
    CHECK_THAT(reads.err(), Catch::Contains(option + ": names nothing"));
  }
}

TEST_CASE("what controls a terminal is shown, not written, and an error stays one line") {
  const Variable odd("TOKID_KV_GIB", "5\n6\x1b[31m\x7f");
  Process process(tokid_path(), {"--check-config"});
  CHECK(process.wait_exit() == 2);
  CHECK(process.err() == "tokid: --kv-gib: '5\\n6\\x1b[31m\\x7f' is no number\n");
}

TEST_CASE("a relative XDG_STATE_HOME counts for nothing") {
  const Variable home("HOME", "/dev/null");  // so it shows when the folder would be there
  const auto checked = [](const std::string& state) {
    const Variable variable("XDG_STATE_HOME", state);
    Process process(tokid_path(), {"--check-config"});
    return process.wait_exit();
  };
  CHECK(checked("state") == 2);
  CHECK(checked("./state") == 2);
  CHECK(checked("") == 2);
  CHECK(checked("/tmp/state") == 0);
}

TEST_CASE("a bad line in the settings file is named, with what was meant") {
  struct Case {
    const char* text;
    const char* told;
  };
  const auto one = GENERATE(values<Case>(
      {{"\nlog-levl = \"info\"", ":2: there is no setting log-levl; did you mean log-level?"},
       {"[kv]\ngib = 1", ":1: there are no tables such as [kv]"},
       {"max-body-mib = \"many\"", ":1: --max-body-mib"},
       {"backend = [\"a\", \"b\"]", ":1: backend takes one value"},
       {"listen = 2020-01-01", ":1: listen is no value"},
       {"listen = ", ":1: "},
       {"listen = \"nonsense\"", "--listen nonsense"}}));
  const ConfigFile file(one.text);
  Process process(tokid_path(), {"--config", file.path(), "--check-config"});
  CHECK(process.wait_exit() == 2);
  REQUIRE(wait_until([&] { return !process.err().empty(); }));
  CHECK_THAT(process.err(), Catch::Contains(one.told));
  CHECK(occurrences(process.err(), "\n") == 1);
}

TEST_CASE("a variable that means nothing stops the start") {
  const Variable wrong("TOKID_QUEUE_LENGHT", "1");
  Process process(tokid_path(), {"--check-config"});
  CHECK(process.wait_exit() == 2);
  CHECK(wait_until(
      [&] { return process.err().find("did you mean TOKID_QUEUE_LENGTH?") != std::string::npos; }));
}

TEST_CASE("a settings file that has become a pipe is refused, and holds up nothing") {
  ScriptedUpstream up;
  const ConfigFile file("max-body-mib = 2\n");
  Tokid tokid(up.url(), {"--config", file.path()});
  REQUIRE(tokid.wait_ready());
  REQUIRE(std::filesystem::remove(file.path()));
  REQUIRE(::mkfifo(file.path().c_str(), 0600) == 0);
  tokid.process().signal(SIGHUP);
  CHECK(wait_until(
      [&] { return tokid.log().find("a pipe cannot be read again") != std::string::npos; }));
  CHECK(post_json(tokid.port(), kChat, cc({M("x")})).status == 200);
}

TEST_CASE("SIGHUP reads the settings again, all or none") {
  ScriptedUpstream up;
  const ConfigFile file("max-body-mib = 2\n");
  Tokid tokid(up.url(), {"--config", file.path()});
  REQUIRE(tokid.wait_ready());
  const std::string big = cc({M(std::string(std::size_t{3} << 20, 'x'))});
  CHECK(post_json(tokid.port(), kChat, big).status == 413);
  const auto reload = [&](const std::string& text, const std::string& logged) {
    file.write(text);
    tokid.process().signal(SIGHUP);
    return wait_until([&] { return tokid.log().find(logged) != std::string::npos; });
  };
  CHECK(reload("max-body-mib = 4\ntree-mib = 7\n",
               "changed: max-body-mib; only after a restart: tree-mib"));
  CHECK(post_json(tokid.port(), kChat, big).status == 200);
  CHECK(reload("max-body-mib = 2\nnonsense = 1\n", "the old settings stay"));
  CHECK(post_json(tokid.port(), kChat, big).status == 200);
}
