// Child processes: started in a group of their own, watched in /proc, ended for certain. They also
// die with this program, however it ends; so start them from the main thread only (the kernel
// watches the thread that forked).
#pragma once

#include <toki/result.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <sys/types.h>
#include <vector>

namespace replay {

struct Usage {
  double cpu_s = 0;
  double peak_mib = 0;
};

class Child {
 public:
  /// stdout and stderr go to the end of the file `log`.
  static toki::Result<Child> start(const std::vector<std::string>& words,
                                   const std::filesystem::path& log);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  ///< stop()

  /// False once it ended; why_ended() then tells how.
  bool alive();
  std::string why_ended() const;
  /// SIGTERM to its group, and SIGKILL after 20 s (3 s when the program shall stop). Returns what it had used until then.
  Usage stop();
  Usage usage() const;  ///< since it was started
  /// The end of its log on one line, for an error message.
  std::string last_words() const;

 private:
  Child(pid_t pid, std::filesystem::path log) : pid_(pid), log_(std::move(log)) {}
  bool reap(int options);
  std::string log_text() const;

  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  std::filesystem::path log_;
};

/// A loopback port that nobody listens on now.
int free_port();

/// Bytes that the files below a folder take on the disk; a file with two names counts once.
std::uint64_t disk_bytes(const std::filesystem::path& folder);

/// What a program prints, its first line; empty when it cannot be started.
std::string first_line_of(const std::vector<std::string>& words);

}  // namespace replay
