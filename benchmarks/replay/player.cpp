#include "player.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "answer.hpp"
#include "stop.hpp"

namespace replay {
namespace {

double ms(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// Streams, and asks for the counts where the OpenAI API needs to be asked.
json::object as_sent(json::object body, const std::string& path, const json::object& more) {
  body["stream"] = true;
  const bool openai = path.find("/chat/completions") != std::string::npos ||
                      path.find("/v1/completions") != std::string::npos;
  if (openai) body["stream_options"] = json::object{{"include_usage", true}};
  for (const auto& [name, value] : more) body[name] = value;
  return body;
}

}  // namespace

Player::Player(const Workload& workload, const PlaySettings& settings, json::object more)
    : workload_(workload),
      settings_(settings),
      more_(std::move(more)),
      busy_(workload.sessions),
      history_(workload.sessions) {}

std::size_t Player::done() const {
  const std::lock_guard lock(mutex_);
  return outcomes_.size();
}

double Player::wall_ms() const {
  return wall_ms_ + (playing_ ? ms(Clock::now() - begun_) : 0);
}

void Player::play(const Address& address, std::size_t begin, std::size_t end,
                  const std::function<void()>& tick) {
  address_ = &address;
  waiting_.clear();
  for (std::size_t i = begin; i < end; ++i) waiting_.push_back(i);
  if (waiting_.empty() || !failed_.empty()) return;
  first_at_ms_ = workload_.requests[begin].at_ms;
  begun_ = Clock::now();
  playing_ = true;
  std::vector<std::thread> workers(std::min(settings_.at_once, waiting_.size()));
  working_ = workers.size();
  for (std::thread& worker : workers) {
    worker = std::thread([this] { work(); });
  }
  for (std::unique_lock lock(mutex_); working_ > 0;) {
    changed_.wait_for(lock, std::chrono::milliseconds(250), [this] { return working_ == 0; });
    lock.unlock();
    tick();
    lock.lock();
  }
  for (std::thread& worker : workers) worker.join();
  wall_ms_ = wall_ms();
  playing_ = false;
}

void Player::work() {
  std::unique_lock lock(mutex_);
  for (std::size_t index = 0; next(lock, index);) {
    lock.unlock();
    Outcome outcome = ask(index);
    lock.lock();
    take(std::move(outcome));
  }
  --working_;
  changed_.notify_all();
}

// The first request whose session rests and whose time has come; false when there is no more.
bool Player::next(std::unique_lock<std::mutex>& lock, std::size_t& index) {
  constexpr auto kLook = std::chrono::milliseconds(100);  // a stop wakes nobody here
  while (!waiting_.empty() && failed_.empty() && !stop::requested()) {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [this](std::size_t i) {
      return busy_[workload_.requests[i].session] == 0;
    });
    if (found == waiting_.end()) {
      changed_.wait_for(lock, kLook);
      continue;
    }
    if (settings_.timed) {
      const double until =
          workload_.requests[*found].at_ms - first_at_ms_ - ms(Clock::now() - begun_);
      if (until > 0) {
        changed_.wait_for(
            lock,
            std::min<Clock::duration>(
                kLook, std::chrono::microseconds(static_cast<std::int64_t>(until * 1000) + 1)));
        continue;
      }
    }
    index = *found;
    waiting_.erase(found);
    busy_[workload_.requests[index].session] = 1;
    return true;
  }
  return false;
}

// The body with the session's history. Only the worker that has the session touches it.
std::string Player::prepare(std::size_t index, std::string& to_send) {
  const Request& request = workload_.requests[index];
  json::object body = request.body;
  if (request.goes_on) {
    json::array& history = history_[request.session];
    for (const json::value& message : body["messages"].as_array()) history.push_back(message);
    body["messages"] = history;
  }
  std::string plain = json::serialize(body);
  to_send = json::serialize(as_sent(std::move(body), request.path, more_));
  return plain;
}

Outcome Player::ask(std::size_t index) {
  const Request& request = workload_.requests[index];
  Outcome outcome;
  outcome.index = index;
  std::string body;
  outcome.body = prepare(index, body);
  AnswerReader reader;
  Call post{.method = "POST", .path = request.path, .body = body};
  post.on_piece = [&](std::string_view piece, Clock::time_point now) { reader.take(piece, now); };
  const Clock::time_point begun = Clock::now();
  auto reply = call(*address_, post);
  const Clock::time_point ended = Clock::now();
  reader.end(ended);
  outcome.sent_ms = wall_ms_ + ms(begun - begun_);
  if (settings_.timed) {
    outcome.late_ms = std::max(0.0, ms(begun - begun_) - (request.at_ms - first_at_ms_));
  }
  outcome.total_ms = ms(ended - begun);
  outcome.first_ms = reader.first ? ms(*reader.first - begun) : outcome.total_ms;
  outcome.prompt_tokens = reader.prompt_tokens;
  outcome.cached_tokens = reader.cached_tokens;
  outcome.output_tokens = reader.output_tokens;
  outcome.text = std::move(reader.text);
  outcome.token_ends = std::move(reader.token_ends);
  if (!reply) {
    outcome.failure =
        reply.error().code == toki::Errc::cancelled ? "stopped" : reply.error().detail;
    return outcome;
  }
  outcome.status = reply->status;
  outcome.source = reply->source;
  if (reply->status != 200) {
    outcome.failure = fmt::format("{}: {}", reply->status, error_message(reply->body));
  } else if (!reader.error.empty()) {
    outcome.failure = reader.error;
  }
  return outcome;
}

void Player::take(Outcome outcome) {
  constexpr std::size_t kGone = 3;   // unanswered calls in a row: nobody is there any more
  constexpr std::size_t kWrong = 4;  // failed requests at the beginning: so will all others
  const Request& request = workload_.requests[outcome.index];
  busy_[request.session] = 0;
  changed_.notify_all();
  if (outcome.failure == "stopped") return;  // neither measured nor failed
  if (request.goes_on) {
    history_[request.session].push_back(
        json::object{{"role", "assistant"}, {"content", outcome.text}});
  }
  lost_ = !outcome.failure.empty() && outcome.status == 0 ? lost_ + 1 : 0;
  answered_ += outcome.failure.empty() ? 1U : 0U;
  const std::string failure = outcome.failure;
  outcomes_.push_back(std::move(outcome));
  if (failure.empty() || !failed_.empty()) return;
  if (lost_ >= kGone) {
    failed_ = "nobody answers any more: " + failure;
  } else if (answered_ == 0 && outcomes_.size() >= std::min(kWrong, workload_.requests.size())) {
    failed_ = fmt::format("the first {} requests failed: {}", outcomes_.size(), failure);
  }
}

}  // namespace replay
