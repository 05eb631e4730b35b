#include "supervisor.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sys/wait.h>
#include <utility>

#include "listener.hpp"
#include "spawn.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::LogLevel;
using toki::http::Millis;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

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
