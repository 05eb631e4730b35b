// The server behind all arms: one thread, answers that are ready at once. What it does not know (what
// tokid asks at its start) is asked of a ScriptedUpstream, so that tokid works as with a
// llama-server.
//
// Threads:   one of its own.
// Ownership: owns thread and sockets; the scripted upstream must outlive it.
// Errors:    std::runtime_error from the constructor.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "scripted_upstream.hpp"

namespace bench {

/// A conversation's requests in the forms that are measured. Its number stands in "user".
struct Conversation {
  std::string chat;         ///< body for /v1/chat/completions
  std::string chat_stream;  ///< the same, streamed
  std::string ids;          ///< body for /completion: the same prompt as token ids
};

/// Events of a stream hold the time when they were written: `"sent_ns":N,`.
struct StreamShape {
  int events = 0;
  std::chrono::microseconds gap{0};
};

class Upstream {
 public:
  Upstream(toki::test::ScriptedUpstream& scripted, int conversations, int words,
           StreamShape stream);
  ~Upstream();
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  const Conversation& conversation(std::size_t number) const { return talks_[number].sent; }
  int prompt_tokens(std::size_t number) const { return talks_[number].tokens; }
  std::uint64_t connections() const { return connections_; }  ///< accepted so far

 private:
  struct Talk {
    Conversation sent;
    std::string rendered;  // whole answer of /apply-template
    int tokens = 0;
  };
  struct Peer {
    toki::test::Fd fd;
    std::string in;
    int events_left = 0;  // of the stream that is under way
    std::chrono::steady_clock::time_point next_event{};
    std::string facts;  // for its last event
  };

  void run();
  void accept();
  void read(Peer& peer);
  bool answer(Peer& peer, std::string_view head, std::string_view body);
  bool generate(Peer& peer, std::string_view path, std::string_view body);
  void ask_scripted(Peer& peer, std::string_view head, std::string_view body);
  void send_due_events();
  std::optional<timespec> until_next_event() const;

  toki::test::ScriptedUpstream& scripted_;
  StreamShape stream_;
  std::vector<Talk> talks_;
  std::vector<std::size_t> slot_holds_;  // number of the conversation + 1
  std::string models_;
  std::string health_;
  toki::test::Fd listener_;
  toki::test::Fd epoll_;
  toki::test::Fd stop_;
  int port_ = 0;
  std::unordered_map<int, std::unique_ptr<Peer>> peers_;
  std::size_t streams_ = 0;
  std::atomic<std::uint64_t> connections_{0};
  std::thread thread_;
};

}  // namespace bench
