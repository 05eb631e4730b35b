// The programs in the middle, and what the system says of them.
//
// Threads:   one; must be made while the calling thread is pinned where the program is to run.
// Ownership: owns the process and its folder; both end with the object.
// Errors:    nullopt or std::runtime_error when it does not start.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>

#include "tokid_process.hpp"
#include "wait.hpp"

namespace bench {

/// nginx as a plain reverse proxy of `upstream_port`: one process, no buffering, kept connections,
/// no logs. Needs no root.
class Nginx {
 public:
  explicit Nginx(int upstream_port);
  /// Whether it listens; else `trouble()` says why not.
  bool wait_ready();
  std::string trouble() const;
  int port() const { return port_; }
  pid_t pid() const { return process_->pid(); }
  static std::optional<std::string> program();
  static std::string version();

 private:
  toki::test::TemporaryDirectory folder_;
  int port_;
  std::optional<toki::test::Process> process_;
};

/// CPU time of a process with all its threads.
double cpu_us(pid_t pid);
double peak_mib(pid_t pid);

/// The calling thread, and what it starts from now on, on one core.
void pin_to(int core);
/// All threads of this process.
void pin_all_to(int core);

}  // namespace bench
