// What the network tests share.
#pragma once

#include <catch2/catch.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "raw_client.hpp"
#include "scripted_upstream.hpp"
#include "tokid_process.hpp"
#include "wait.hpp"

namespace toki::test {

inline constexpr const char* kChat = "/v1/chat/completions";

/// "<prefix>1 <prefix>2 ... <prefix>N": prompts that share nothing with each other.
inline std::string words(std::string_view prefix, int count) {
  std::string out;
  for (int i = 1; i <= count; ++i) {
    if (i > 1) out += ' ';
    out.append(prefix).append(std::to_string(i));
  }
  return out;
}

/// One clear error of toki's own: JSON with code, message and type, and a body that ends.
inline void check_error(const HttpResponse& response, int status, std::string_view type) {
  INFO("body: " << response.body << " end: " << to_string(response.end));
  CHECK(response.status == status);
  CHECK(response.whole());
  CHECK(response.header("content-type").rfind("application/json", 0) == 0);
  const Json error = response.json()["error"];
  CHECK(error["code"].integer() == status);
  CHECK(error["type"].str() == type);
  CHECK_FALSE(error["message"].str().empty());
}

/// tokid; what went wrong in its life is a failure of the test.
class Tokid : public TokidProcess {
 public:
  using TokidProcess::TokidProcess;
  ~Tokid() { CHECK(finish() == ""); }
};

/// A scripted upstream and a tokid in front of it that has finished its start; the upstream's log
/// is empty. The behaviour's delays and figures hold only from then on.
class Rig {
 public:
  explicit Rig(Behaviour behaviour = {}, std::vector<std::string> options = {})
      : up(at_start(behaviour)), tokid(up.url(), std::move(options)) {
    if (!tokid.wait_ready()) {
      throw std::runtime_error("tokid did not become ready; log: " + tokid.log());
    }
    up.configure([&](Behaviour& now) { now = behaviour; });
    up.clear_log();
  }

  ScriptedUpstream up;
  Tokid tokid;

  int port() const { return tokid.port(); }
  Answer chat(std::string_view body) const { return post(kChat, body); }
  Answer post(std::string_view path, std::string_view body) const {
    return as_answer(post_json(port(), path, body));
  }

 private:
  static Behaviour at_start(Behaviour behaviour) {
    behaviour.answer_delay = behaviour.event_delay = milliseconds(0);
    behaviour.per_new_token = std::chrono::microseconds(0);
    behaviour.cache_n.reset();
    behaviour.usage_offset = 0;
    return behaviour;
  }
};

/// A request in a thread of its own; join() gives its answer.
class Background {
 public:
  Background(int port, std::string path, std::string body, milliseconds limit = milliseconds(30000))
      : sent_at_(Clock::now()), thread_([this, port, path, body, limit] {
          try {
            answer_ = as_answer(post_json(port, path, body, {}, limit));
          } catch (const std::exception&) {
            // No connection: status 0 says so.
          }
          done_at_ = Clock::now();
          done_ = true;
        }) {}
  ~Background() { join(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  bool done() const { return done_; }
  Clock::time_point sent_at() const { return sent_at_; }
  Clock::time_point done_at() const { return done_at_; }
  const Answer& join() {
    if (thread_.joinable()) thread_.join();
    return answer_;
  }

 private:
  Answer answer_;
  Clock::time_point sent_at_, done_at_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// A hook for generations only.
inline ScriptedUpstream::Hook on_generation(ScriptedUpstream::Hook hook) {
  return [hook = std::move(hook)](const LoggedRequest& request, Connection& connection) {
    return request.method == "POST" && is_generation_path(request.path) &&
           hook(request, connection);
  };
}

/// What comes to it waits until it is opened. To be declared before the rig whose hook uses it.
class Gate {
 public:
  void open() { open_ = true; }
  /// False when the peer left or the upstream stops before it is open.
  bool pass(Connection& connection) const {
    while (!open_) {
      if (!connection.sleep(milliseconds(5))) return false;
    }
    return true;
  }
  /// A hook that holds generations back, which then are served as usual.
  ScriptedUpstream::Hook holds_generations() const {
    return on_generation([this](const LoggedRequest&, Connection& connection) {
      pass(connection);
      return false;
    });
  }

 private:
  std::atomic<bool> open_{false};
};

inline std::string slot_action_path(int slot) {
  return "/slots/" + std::to_string(slot);
}

}  // namespace toki::test
