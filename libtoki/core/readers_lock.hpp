// ReadersLock: one writer, many readers that do not wait on each other: each counts itself on a
// cache line of its own (of sixteen), the writer waits for all of them. Meets std::shared_mutex's
// needs for lock guards.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace toki {

class ReadersLock {
 public:
  void lock_shared() noexcept {
    std::atomic<std::uint32_t>& mine = lines_[line()].readers;
    for (;;) {
      mine.fetch_add(1);
      if (!writing_.load()) {
        return;
      }
      unlock_shared();
      writing_.wait(true);
    }
  }

  void unlock_shared() noexcept {
    std::atomic<std::uint32_t>& mine = lines_[line()].readers;
    if (mine.fetch_sub(1) == 1 && writing_.load()) {
      mine.notify_all();
    }
  }

  /// REQUIRES: no other writer.
  void lock() noexcept {
    writing_.store(true);
    for (Line& line : lines_) {
      for (std::uint32_t readers = line.readers.load(); readers != 0;
           readers = line.readers.load()) {
        line.readers.wait(readers);
      }
    }
  }

  void unlock() noexcept {
    writing_.store(false);
    writing_.notify_all();
  }

 private:
  struct alignas(64) Line {
    std::atomic<std::uint32_t> readers{0};
  };
  static constexpr std::size_t kLines = 16;

  static std::size_t line() noexcept {
    static std::atomic<std::size_t> threads{0};
    thread_local const std::size_t mine = threads.fetch_add(1) % kLines;
    return mine;
  }

  std::array<Line, kLines> lines_;
  alignas(64) std::atomic<bool> writing_{false};
};

class ReadGuard {
 public:
  explicit ReadGuard(ReadersLock& lock) noexcept : lock_(lock) { lock_.lock_shared(); }
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;
  ~ReadGuard() { lock_.unlock_shared(); }

 private:
  ReadersLock& lock_;
};

class WriteGuard {
 public:
  explicit WriteGuard(ReadersLock& lock) noexcept : lock_(lock) { lock_.lock(); }
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;
  ~WriteGuard() { lock_.unlock(); }

 private:
  ReadersLock& lock_;
};

}  // namespace toki
