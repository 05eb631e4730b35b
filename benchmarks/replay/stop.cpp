#include "stop.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <sys/eventfd.h>
#include <unistd.h>

namespace replay::stop {
namespace {

std::atomic<int> caught = 0;
std::atomic<int> event = -1;

void handle(int number) {
  if (caught.exchange(number) != 0) {
    ::_exit(128 + number);
  }
  const std::uint64_t one = 1;
  (void)!::write(event.load(), &one, sizeof one);
}

}  // namespace

void install() {
  event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = &handle;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

bool requested() {
  return caught.load() != 0;
}

int fd() {
  return event.load();
}

int signal_number() {
  return caught.load();
}

}  // namespace replay::stop
