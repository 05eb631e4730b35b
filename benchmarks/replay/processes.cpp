#include "processes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <netinet/in.h>
#include <set>
#include <sstream>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "stop.hpp"

namespace replay {
namespace {

using toki::Errc;
using toki::Error;

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* argv, int output, int failure, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // Ctrl-C is for us, and a wrapper's children end with it
  if (::getppid() != parent) ::_exit(126);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    ::signal(number, SIG_DFL);
  }
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execvp(argv[0], argv);
  const int error = errno;
  (void)!::write(failure, &error, sizeof error);
  ::_exit(127);
}

toki::Result<pid_t> spawn(const std::vector<std::string>& words, int output) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    return Error{Errc::unavailable, std::string("pipe: ") + std::strerror(errno)};
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(argv.data(), output, failure[1], parent);
  int error = pid < 0 ? errno : 0;
  ::close(failure[1]);
  const bool failed = pid < 0 || ::read(failure[0], &error, sizeof error) > 0;
  ::close(failure[0]);
  if (!failed) return pid;
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  return Error{Errc::not_found, fmt::format("cannot start {}: {}", words[0], std::strerror(error))};
}

}  // namespace

toki::Result<Child> Child::start(const std::vector<std::string>& words,
                                 const std::filesystem::path& log) {
  const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (output < 0) {
    return Error{Errc::unavailable, fmt::format("{}: {}", log.string(), std::strerror(errno))};
  }
  auto pid = spawn(words, output);
  ::close(output);
  if (!pid) return std::move(pid).error();
  return Child(*pid, log);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      ended_(other.ended_),
      status_(other.status_),
      log_(std::move(other.log_)) {}

Child& Child::operator=(Child&& other) noexcept {
  if (this != &other) {
    stop();
    pid_ = std::exchange(other.pid_, -1);
    ended_ = other.ended_;
    status_ = other.status_;
    log_ = std::move(other.log_);
  }
  return *this;
}

Child::~Child() {
  stop();
}

bool Child::reap(int options) {
  if (pid_ < 0) return true;
  if (!ended_ && ::waitpid(pid_, &status_, options) == pid_) ended_ = true;
  return ended_;
}

bool Child::alive() {
  return !reap(WNOHANG);
}

std::string Child::why_ended() const {
  return WIFSIGNALED(status_) ? fmt::format("ended by signal {}", WTERMSIG(status_))
                              : fmt::format("ended with {}", WEXITSTATUS(status_));
}

Usage Child::stop() {
  if (pid_ < 0) return {};
  const Usage used = usage();
  ::kill(-pid_, SIGTERM);
  const std::chrono::seconds patience(stop::requested() ? 3 : 20);
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (!reap(WNOHANG) && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(-pid_, SIGKILL);  // and whatever it left in its group
  reap(0);
  pid_ = -1;
  return used;
}

Usage Child::usage() const {
  Usage usage;
  std::ifstream stat(fmt::format("/proc/{}/stat", pid_));
  std::string line;
  if (!std::getline(stat, line) || line.rfind(')') == std::string::npos) return usage;
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  usage.cpu_s = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::ifstream status(fmt::format("/proc/{}/status", pid_));
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) usage.peak_mib = std::strtod(line.c_str() + 6, nullptr) / 1024;
  }
  return usage;
}

std::string Child::log_text() const {
  std::ifstream file(log_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Child::last_words() const {
  std::string text = log_text();
  while (text.ends_with('\n')) text.pop_back();
  constexpr std::size_t kLongest = 400;
  if (text.size() > kLongest) text = "..." + text.substr(text.size() - kLongest);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd >= 0 && ::bind(fd, plain, size) == 0;
  const bool known = bound && ::getsockname(fd, plain, &size) == 0;
  ::close(fd);
  return known ? ntohs(address.sin_port) : 0;
}

std::uint64_t disk_bytes(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::uint64_t total = 0;
  std::set<std::pair<dev_t, ino_t>> seen;
  std::error_code ec;
  // Files come and go meanwhile: whatever cannot be read counts nothing.
  for (auto at = fs::recursive_directory_iterator(folder, ec); !ec && at != end(at);
       at.increment(ec)) {
    struct stat info {};
    if (::lstat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (info.st_nlink > 1 && !seen.emplace(info.st_dev, info.st_ino).second) continue;
    total += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return total;
}

std::string first_line_of(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  auto pid = spawn(words, ends[1]);
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> piece{};
  ssize_t got = 0;
  while (pid && (got = ::read(ends[0], piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  if (pid) ::waitpid(*pid, nullptr, 0);
  return text.substr(0, text.find('\n'));
}

}  // namespace replay
