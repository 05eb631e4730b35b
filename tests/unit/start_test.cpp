// What tokid looks at before it starts: the program's help, and the place where it is to listen.
#include <catch2/catch.hpp>

#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include "listener.hpp"
#include "program_help.hpp"
#include "support/wait.hpp"

using namespace tokid;
using toki::Errc;
using toki::test::Fd;
using toki::test::TemporaryDirectory;
using toki::test::wait_until;

namespace {

constexpr std::chrono::milliseconds kShort{200};
constexpr std::chrono::milliseconds kLong{60000};

// A shell script in a folder of its own, which it works in.
class Script {
 public:
  explicit Script(const std::string& lines) {
    std::ofstream(path()) << "#!/bin/sh\ncd " << folder_.path() << "\n" << lines;
    REQUIRE(::chmod(path().c_str(), 0700) == 0);
  }
  std::string path() const { return folder_.path() + "/program"; }
  // A process id that it wrote.
  pid_t process(const std::string& file) const {
    pid_t id = 0;
    std::ifstream(folder_.path() + "/" + file) >> id;
    return id;
  }

 private:
  TemporaryDirectory folder_;
};

// A process that nobody has waited for is not one that runs.
bool runs(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string id, name, state;
  return file >> id >> name >> state && state != "Z" && state != "X";
}

}  // namespace

TEST_CASE("program help: both outputs are read, to their end") {
  const Script script("[ \"$1\" = --help ] && echo \"--port N\"\necho \"--host H\" >&2\nexit 3\n");
  const auto help = program_help(script.path(), kLong);
  REQUIRE(help);
  CHECK(*help == "--port N\n--host H\n");
}

TEST_CASE("program help: a help that is longer than a pipe holds is read whole") {
  const Script script("i=0\nwhile [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done\n");
  const auto help = program_help(script.path(), kLong);
  REQUIRE(help);
  CHECK(help->size() == 20000 * 11);
}

TEST_CASE("program help: a program that goes on instead is ended, with what it started") {
  const Script script("echo $$ > self\nsleep 1000 &\necho $! > child\nwait\n");
  // However slow the machine is, both have begun at some time.
  pid_t child = 0;
  REQUIRE(wait_until([&] {
    const auto help = program_help(script.path(), kShort);
    REQUIRE_FALSE(help);
    CHECK(help.error().code == Errc::timed_out);
    CHECK(help.error().detail.find(script.path() + " --help did not end within 0.2 s") == 0);
    child = script.process("child");
    return child > 0;
  }));
  CHECK(::kill(script.process("self"), 0) != 0);
  CHECK(wait_until([&] { return !runs(child); }));
}

TEST_CASE("program help: one that has said all and goes on in silence does not hold up the start") {
  const Script script("echo $$ > self\necho --port\nexec sleep 1000 >&- 2>&-\n");
  const auto help = program_help(script.path(), kLong);
  REQUIRE(help);
  CHECK(*help == "--port\n");
  CHECK(::kill(script.process("self"), 0) != 0);
}

TEST_CASE("program help: a program that is not there says so") {
  const TemporaryDirectory folder;
  const auto help = program_help(folder.path() + "/none", kLong);
  REQUIRE_FALSE(help);
  CHECK(help.error().code == Errc::not_found);
}

TEST_CASE("listener: without a descriptor to try it with, a dead socket is not said to be in use") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/socket";
  {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const Fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto removed = remove_dead_socket(path);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE_FALSE(removed);
  CHECK(removed.error().code == Errc::unavailable);
  CHECK(removed.error().detail == path + ": Too many open files");
  CHECK(remove_dead_socket(path));
  CHECK(::access(path.c_str(), F_OK) != 0);
}
