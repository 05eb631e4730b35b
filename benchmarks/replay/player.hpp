// Plays a workload on one endpoint: so many requests at once, each a thread; a session's own one
// after the other. Keeps what each request took and what the server said about it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "http.hpp"
#include "workload.hpp"

namespace replay {

struct Outcome {
  std::size_t index = 0;  ///< of the workload's request
  double sent_ms = 0;     ///< since the arm's first request, without pauses
  double late_ms = 0;     ///< sent after its time, because others were on their way
  double first_ms = 0;    ///< from opening the connection to the first text; without text: total_ms
  double total_ms = 0;
  unsigned status = 0;
  std::string failure;  ///< empty: all well
  std::int64_t prompt_tokens = -1;
  std::int64_t cached_tokens = -1;
  std::int64_t output_tokens = -1;
  std::string source;                   ///< x-toki-source
  std::string body;                     ///< as sent, but for what this program and the arm add
  std::string text;                     ///< of the answer
  std::vector<std::size_t> token_ends;  ///< in it, of a stream: where each event's text ends
  std::int64_t oracle_tokens = -1;      ///< filled in later: new to the oracle
};

struct PlaySettings {
  std::size_t at_once = 1;
  bool timed = false;  ///< a request waits for its at_ms
};

class Player {
 public:
  Player(const Workload& workload, const PlaySettings& settings, json::object more);

  /// Plays the requests [begin, end). Calls `tick` about four times a second. Returns early when
  /// the program shall stop or the endpoint fails for good: failed() then says why.
  void play(const Address& address, std::size_t begin, std::size_t end,
            const std::function<void()>& tick);

  /// In the order in which they ended. Not while play() runs.
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  std::vector<Outcome>& outcomes() { return outcomes_; }
  std::size_t done() const;  ///< outcomes so far; at any time
  const std::string& failed() const { return failed_; }
  double wall_ms() const;  ///< of all play() so far; from the thread that calls play()

 private:
  void work();
  bool next(std::unique_lock<std::mutex>& lock, std::size_t& index);
  std::string prepare(std::size_t index, std::string& to_send);
  Outcome ask(std::size_t index);
  void take(Outcome outcome);

  const Workload& workload_;
  const PlaySettings settings_;
  const json::object more_;

  // Of the play() that runs.
  const Address* address_ = nullptr;
  Clock::time_point begun_;
  double first_at_ms_ = 0;
  std::size_t working_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> waiting_;  // requests not sent yet, in order
  std::vector<char> busy_;            // sessions
  std::vector<json::array> history_;  // messages of sessions that go on
  std::vector<Outcome> outcomes_;
  std::size_t answered_ = 0;
  std::size_t lost_ = 0;  // calls in a row that nobody answered
  std::string failed_;
  double wall_ms_ = 0;  // of the play() that ended
  bool playing_ = false;
};

}  // namespace replay
