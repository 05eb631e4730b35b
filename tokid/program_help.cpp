#include "program_help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn.hpp"

namespace tokid {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using toki::Errc;
using toki::Error;

namespace {

/// False: the end did not come in time.
bool read_to_end(int from, std::string& text, milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
    pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
    const int found = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (found == 0) {
      return false;
    }
    std::array<char, 4096> piece{};
    const ssize_t got = found > 0 ? ::read(from, piece.data(), piece.size()) : -1;
    if (got == 0 || (got < 0 && errno != EINTR)) {
      return true;
    }
    text.append(piece.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
}

}  // namespace

toki::Result<std::string> program_help(const std::string& program, milliseconds limit) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Error{Errc::unavailable, std::string("pipe: ") + std::strerror(errno)};
  }
  auto pid = spawn({program, "--help"}, ends[1]);
  ::close(ends[1]);
  std::string text;
  bool ended = true;
  if (pid) {
    ended = read_to_end(ends[0], text, limit);
    ::kill(-*pid, SIGKILL);
    ::waitpid(*pid, nullptr, 0);
  }
  ::close(ends[0]);
  if (!pid) {
    return std::move(pid).error();
  }
  if (!ended) {
    return Error{Errc::timed_out,
                 fmt::format("{} --help did not end within {:g} s: behind -- belongs llama-server, "
                             "or a wrapper that passes its arguments on",
                             program, static_cast<double>(limit.count()) / 1000)};
  }
  return text;
}

}  // namespace tokid
