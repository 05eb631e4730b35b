// Waiting on a condition with a deadline, and ownership of descriptors: what every test that talks
// to another process or thread needs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace toki::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Calls `condition` until it is true (returns true) or `limit` has passed (returns its last
/// value).
bool wait_until(const std::function<bool()>& condition, milliseconds limit = milliseconds(10000),
                milliseconds step = milliseconds(5));

/// Milliseconds from `from` to `to`, negative when `to` is earlier.
double ms_between(Clock::time_point from, Clock::time_point to);

/// Owns one file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

/// A directory below TMPDIR (or /tmp), removed with all its content at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A loopback port that nobody listened on a moment ago.
int unused_port();

}  // namespace toki::test
