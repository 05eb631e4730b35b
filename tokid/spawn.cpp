#include "spawn.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tokid {

using toki::Errc;
using toki::Error;

toki::Result<pid_t> spawn(const std::vector<std::string>& words, int output) {
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    return Error{Errc::unavailable, std::string("pipe: ") + std::strerror(errno)};
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::setpgid(0, 0);  // a group of its own: Ctrl-C is for us, and a wrapper's children end with it
    if (::getppid() != parent) {
      ::_exit(1);
    }
    if (output >= 0) {
      ::dup2(output, STDOUT_FILENO);
      ::dup2(output, STDERR_FILENO);
    } else {
      ::dup2(STDERR_FILENO, STDOUT_FILENO);  // our stdout is for our own lines
    }
    std::signal(SIGHUP, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvp(argv[0], argv.data());
    const int error = errno;
    (void)!::write(failure[1], &error, sizeof error);
    ::_exit(127);
  }
  ::close(failure[1]);
  int error = pid < 0 ? errno : 0;
  const bool failed = pid < 0 || ::read(failure[0], &error, sizeof error) > 0;
  ::close(failure[0]);
  if (failed) {
    if (pid > 0) {
      ::waitpid(pid, nullptr, 0);
    }
    return Error{Errc::not_found,
                 fmt::format("cannot start {}: {}", words[0], std::strerror(error))};
  }
  return pid;
}

}  // namespace tokid
