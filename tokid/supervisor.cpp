#include "supervisor.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "listener.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::Errc;
using toki::Error;
using toki::LogLevel;
using toki::http::Address;
using toki::http::Millis;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

std::string errno_text(int number) {
  return std::strerror(number);
}

// fork and exec. The child dies with us, even when we are killed; `output`: its stdout and stderr
// go there instead of ours.
toki::Result<pid_t> spawn(const std::vector<std::string>& words, int output = -1) {
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    return Error{Errc::unavailable, "pipe: " + errno_text(errno)};
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
    return Error{Errc::not_found, fmt::format("cannot start {}: {}", words[0], errno_text(error))};
  }
  return pid;
}

toki::Result<std::string> help_text(const std::string& program) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Error{Errc::unavailable, "pipe: " + errno_text(errno)};
  }
  auto pid = spawn({program, "--help"}, ends[1]);
  ::close(ends[1]);
  std::string text;
  if (pid) {
    std::array<char, 4096> piece{};
    ssize_t got = 0;
    while ((got = ::read(ends[0], piece.data(), piece.size())) > 0) {
      text.append(piece.data(), static_cast<std::size_t>(got));
    }
    ::waitpid(*pid, nullptr, 0);
  }
  ::close(ends[0]);
  if (!pid) {
    return std::move(pid).error();
  }
  return text;
}

std::string free_port() {
  asio::io_context context;
  const asio::ip::tcp::acceptor probe(context, {asio::ip::address_v4::loopback(), 0});
  return std::to_string(probe.local_endpoint().port());
}

struct Flag {
  std::string_view name;
  std::string_view short_name;
  const char* environment;
};
constexpr Flag kHost{"--host", "", "LLAMA_ARG_HOST"};
constexpr Flag kPort{"--port", "", "LLAMA_ARG_PORT"};
constexpr Flag kParallel{"--parallel", "-np", "LLAMA_ARG_N_PARALLEL"};
constexpr Flag kSlotPath{"--slot-save-path", "", "LLAMA_ARG_SLOT_SAVE_PATH"};
constexpr Flag kCacheRam{"--cache-ram", "-cram", "LLAMA_ARG_CACHE_RAM"};
constexpr Flag kBatch{"--batch-size", "-b", "LLAMA_ARG_BATCH"};
constexpr Flag kPieces{"--ubatch-size", "-ub", "LLAMA_ARG_UBATCH"};
constexpr Flag kMetrics{"--metrics", "", "LLAMA_ARG_ENDPOINT_METRICS"};

// The value given for a flag, "" for one without; nothing when it is not given.
std::optional<std::string> given(const std::vector<std::string>& words, const Flag& flag) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == flag.name || (!flag.short_name.empty() && words[i] == flag.short_name)) {
      return i + 1 < words.size() ? words[i + 1] : std::string();
    }
    if (words[i].starts_with(std::string(flag.name) + "=")) {
      return words[i].substr(flag.name.size() + 1);
    }
  }
  if (const char* value = std::getenv(flag.environment)) {
    return value;
  }
  return std::nullopt;
}

std::uint64_t number_of(const std::vector<std::string>& words, const Flag& flag,
                        std::uint64_t otherwise) {
  const std::string text = given(words, flag).value_or("");
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc{} && number > 0 ? number : otherwise;
}

// A batch is computed in pieces, so they end at the multiples of a piece where it holds a whole number of
// them.
std::uint64_t batch_of(const std::vector<std::string>& words) {
  const std::uint64_t batch = number_of(words, kBatch, 2048);
  const std::uint64_t piece = std::min(number_of(words, kPieces, 512), batch);
  return batch % piece == 0 ? piece : batch;
}

bool is_socket_path(std::string_view host) {
  return host.ends_with(".sock");  // as llama-server tells them from addresses
}

// As its words and `wanted` (--backend, or null) say, else a free port.
toki::Result<Address> where_it_listens(const std::vector<std::string>& words, const Address* wanted,
                                       bool knows_port) {
  const auto host = given(words, kHost);
  const auto port = given(words, kPort);
  const auto bad = [](std::string why) { return Error{Errc::invalid_argument, std::move(why)}; };
  if (wanted != nullptr && wanted->tls) {
    return bad("--backend https://: tokid starts llama-server without TLS; name http:// or unix:");
  }
  const std::string wanted_host = wanted == nullptr      ? "127.0.0.1"
                                  : wanted->path.empty() ? wanted->host
                                                         : wanted->path;
  if (wanted != nullptr && !wanted->path.empty() && !is_socket_path(wanted->path)) {
    return bad(
        fmt::format("--backend {}: llama-server takes it for a socket only when it ends "
                    "with .sock",
                    wanted->name()));
  }
  const bool local = is_socket_path(host.value_or(wanted_host));
  if (wanted != nullptr &&
      ((host && *host != wanted_host) || (port && !local && *port != wanted->port))) {
    return bad(
        fmt::format("--backend {} and the server's own --host and --port differ", wanted->name()));
  }
  if (local) {
    const std::string path = std::filesystem::absolute(host.value_or(wanted_host)).string();
    return toki::http::parse_url("unix:" + path);
  }
  if (wanted == nullptr && !port && !knows_port) {
    return bad(
        fmt::format("{} --help lists no --port, so its server cannot be told where to "
                    "listen: name llama-server itself behind --, or say where it listens "
                    "with --backend",
                    words[0]));
  }
  Address address{.host = host.value_or(wanted_host),
                  .port = port                ? *port
                          : wanted != nullptr ? wanted->port
                                              : free_port()};
  if (address.host == "0.0.0.0" || address.host == "::") {
    address.host = "127.0.0.1";
  }
  return address;
}

}  // namespace

toki::Result<ServerCommand> complete_command(std::vector<std::string> words,
                                             const toki::http::Address* wanted,
                                             const std::string& slot_dir) {
  auto help = help_text(words[0]);
  if (!help) {
    return std::move(help).error();
  }
  const auto known = [&](const Flag& flag) { return help->find(flag.name) != std::string::npos; };
  ServerCommand command;
  const auto add = [&](const Flag& flag, const std::string& value) {
    if (known(flag) && !given(words, flag)) {
      words.emplace_back(flag.name);
      if (!value.empty()) {
        words.push_back(value);
      }
    }
  };
  auto address = where_it_listens(words, wanted, known(kPort));
  if (!address) {
    return std::move(address).error();
  }
  command.address = std::move(*address);
  const bool local = !command.address.path.empty();
  add(kHost, local ? command.address.path : command.address.host);
  if (!local) {
    add(kPort, command.address.port);
  }
  add(kParallel, "4");
  add(kSlotPath, slot_dir);
  add(kCacheRam, "0");
  add(kMetrics, "");
  const std::string cache = known(kCacheRam) ? given(words, kCacheRam).value_or("") : "0";
  command.own_cache = cache != "0";
  const auto read = std::from_chars(cache.data(), cache.data() + cache.size(), command.cache_mib);
  command.cache_mib = read.ec == std::errc{} && command.cache_mib >= 0 ? command.cache_mib : -1;
  command.batch = batch_of(words);
  command.words = std::move(words);
  return command;
}

Supervisor::Supervisor(asio::any_io_executor executor, std::vector<std::string> words,
                       std::string socket, std::function<bool()> served, toki::LogSink log)
    : words_(std::move(words)),
      socket_(std::move(socket)),
      served_(std::move(served)),
      log_(std::move(log)),
      child_ended_(executor, SIGCHLD),
      timer_(executor) {}

toki::Status Supervisor::start() {
  if (!socket_.empty()) {  // llama-server leaves it behind, and then cannot start again
    if (auto status = remove_dead_socket(socket_); !status) {
      return status;
    }
  }
  auto pid = spawn(words_);
  if (!pid) {
    return std::move(pid).error();
  }
  pid_ = *pid;
  log_(LogLevel::info, fmt::format("started {} as process {}", words_[0], pid_));
  return toki::Done{};
}

bool Supervisor::reap() {
  int status = 0;
  if (pid_ == 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) {
    return false;
  }
  pid_ = 0;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (!stopping_) {
    log_(LogLevel::error,
         WIFSIGNALED(status)
             ? fmt::format("{} was ended by signal {}", words_[0], WTERMSIG(status))
             : fmt::format("{} ended with code {}", words_[0], WEXITSTATUS(status)));
  }
  return true;
}

asio::awaitable<std::optional<int>> Supervisor::run() {
  Millis pause{1000};
  int deaths = 0;
  auto started = std::chrono::steady_clock::now();
  while (!stopping_) {
    if (pid_ != 0 && !reap()) {
      (void)co_await child_ended_.async_wait(kAsTuple);
      continue;
    }
    // A wrong flag or model does not get better; a server that served once may have met anything.
    if (++deaths >= kTries && !served_()) {
      co_return status_;
    }
    if (std::chrono::steady_clock::now() - started > std::chrono::minutes(1)) {
      pause = Millis(1000);
    }
    timer_.expires_after(pause);
    (void)co_await timer_.async_wait(kAsTuple);
    pause = std::min(pause * 2, Millis(30000));
    if (stopping_) {
      break;
    }
    started = std::chrono::steady_clock::now();
    if (auto status = start(); !status) {
      log_(LogLevel::error, status.error().detail);
    }
  }
  co_return std::nullopt;
}

asio::awaitable<void> Supervisor::stop(Millis limit) {
  stopping_ = true;
  timer_.cancel();
  if (pid_ == 0 || reap()) {
    co_return;
  }
  ::kill(-pid_, SIGTERM);
  asio::steady_timer pause(timer_.get_executor());
  for (Millis waited{0}; waited < limit && !reap() && pid_ != 0; waited += Millis(20)) {
    pause.expires_after(Millis(20));
    (void)co_await pause.async_wait(kAsTuple);
  }
  if (pid_ != 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
}

void Supervisor::kill() const {
  if (pid_ != 0) {
    ::kill(-pid_, SIGKILL);
  }
}

}  // namespace tokid
