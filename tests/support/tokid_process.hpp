// tokid as a child process, its answers, and conversations to send to it.
//
// Threads:   one object, one thread; two threads of its own collect stdout and stderr.
// Ownership: owns the process and its data directory; the destructor ends both (SIGKILL if need
// be).
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

#include "raw_client.hpp"
#include "scripted_upstream.hpp"
#include "wait.hpp"

namespace toki::test {

/// A program with collected output. TOKID in the environment replaces the built tokid.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const;  ///< all that it has written until now
  std::string err() const;  ///< the same
  void signal(int number) const;
  void kill();  ///< SIGKILL, and waits
  /// Exit code (128 + N when signal N ended it), and all that it wrote was read; or nothing when it
  /// still runs at the limit.
  std::optional<int> wait_exit(milliseconds limit = milliseconds(10000));
  bool running() { return !wait_exit(milliseconds(0)).has_value(); }
  bool killed() const { return killed_; }  ///< by kill()

 private:
  void collect(int fd, std::string& into);
  static bool take(int fd, std::string& into);

  pid_t pid_ = -1;
  std::optional<int> code_;
  bool killed_ = false;
  Fd out_fd_, err_fd_;
  mutable std::mutex mutex_;
  mutable std::string out_, err_;
  std::atomic<int> readers_{2};
  std::thread out_reader_, err_reader_;
};

std::string tokid_path();

struct SlotView {
  int id = -1;
  std::string state;
  int tokens = -1;
  int known_tokens = -1;
};

class TokidProcess {
 public:
  /// Without a `backend_url` the options say where the backend is.
  ///
  /// Starts tokid with --listen on a free port, a temporary --data-dir, --probe-interval-ms 100,
  /// --remote-states 0 and `options` (which win over these), then `program` after `--`. Returns when it has said where it
  /// listens; throws when it did not.
  explicit TokidProcess(const std::string& backend_url, std::vector<std::string> options = {},
                        std::vector<std::string> program = {});

  ~TokidProcess();

  int port() const { return port_; }
  Process& process() { return process_; }
  std::string log() const { return process_.err(); }
  /// Stops it, if it still runs, and tells what went wrong in its life: a crash, a bad exit code, a
  /// sanitizer's report. "" when nothing did. With TOKI_TEST_LOG in the environment the log is
  /// written to stderr.
  std::string finish();
  const std::string& data_dir() const { return data_dir_.path(); }

  /// Waits until GET /toki/health answers 200.
  bool wait_ready(milliseconds limit = milliseconds(15000));
  int health_status() const;  ///< 0 when it cannot be reached

  std::map<std::string, double> stats() const;
  double stat(const std::string& name) const;  ///< NaN when it is missing
  bool wait_stat(const std::string& name, double value,
                 milliseconds limit = milliseconds(10000)) const;
  std::vector<SlotView> slots() const;
  SlotView slot(int id) const;

  long open_descriptors() const;
  long memory_kib() const;       ///< VmRSS
  long peak_memory_kib() const;  ///< VmHWM
  /// Sanitizers multiply memory: limits on it do not hold then.
  bool sanitized() const;

 private:
  TemporaryDirectory data_dir_;
  Process process_;
  int port_ = 0;
  std::optional<std::string> fault_;
};

/// The answer to a request that is cached, with what toki and the upstream said about it.
struct Answer {
  HttpResponse http;
  int status = 0;
  std::string cache;   ///< x-toki-cache
  int reused = -1;     ///< x-toki-reused, -1 when missing
  std::string slot;    ///< x-toki-slot
  std::string reason;  ///< x-toki-reason
  int cache_n = -1;    ///< timings.cache_n of the answer
  int prompt_n = -1;
  int prompt_tokens = -1;  ///< usage.prompt_tokens
  int cached_tokens = -1;  ///< usage.prompt_tokens_details.cached_tokens
};
Answer as_answer(HttpResponse response);

// Conversations, in the notation of the case list.
struct Message {
  std::string role;
  std::string content;  ///< raw JSON
};
Message S(std::string_view text);
Message M(std::string_view text);
Message R(std::string_view text);
Message M_json(std::string_view raw_content);
std::string W(int words);  ///< "w1 w2 ... wN"
/// {"model":"m","messages":[...]EXTRA}; `extra` is raw, for example `,"stream":true`.
std::string cc(const std::vector<Message>& messages, std::string_view extra = {});

/// `received` as a forwarded `sent`: the same bytes, but for "id_slot" and "cache_prompt" right
/// behind the first `{`. Returns "" when it is so, else what is wrong.
std::string forwarding_fault(std::string_view sent, std::string_view received);

}  // namespace toki::test
