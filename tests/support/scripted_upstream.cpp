#include "scripted_upstream.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

#include "state_bytes.hpp"

namespace toki::test {
namespace {

constexpr int kStartToken = 1;
constexpr int kFirstWord = 10;
constexpr std::string_view kStartWord = "<s>";

const char* reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 429: return "Too Many Requests";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Status";
  }
}

std::string error_body(int code, std::string_view message, std::string_view type) {
  return R"({"error":{"code":)" + std::to_string(code) + R"(,"message":)" + quote(message) +
         R"(,"type":)" + quote(type) + "}}";
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while ((begin = text.find_first_not_of(" \t\r\n", begin)) != std::string_view::npos) {
    const auto end = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

// Takes <|…|> and <s> out of the words, wherever they stand.
std::vector<std::string> cut_specials(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string_view word : words) {
    std::size_t from = 0;
    for (std::size_t at = 0; at < word.size(); ++at) {
      const std::string_view rest = word.substr(at);
      const auto close = rest.find("|>");
      const std::size_t length = rest.starts_with(kStartWord) ? kStartWord.size()
                                 : rest.starts_with("<|") && close != std::string_view::npos
                                     ? close + 2
                                     : 0;
      if (length == 0) continue;
      if (at > from) out.emplace_back(word.substr(from, at - from));
      out.emplace_back(rest.substr(0, length));
      from = at + length;
      at = from - 1;
    }
    if (from < word.size()) out.emplace_back(word.substr(from));
  }
  return out;
}

std::string with_decimals(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

// What a generation reports about itself.
struct Report {
  int prompt_tokens = 0;
  int cache_n = 0;
  int prompt_n = 0;
  double prompt_ms = 0;
  int predicted_n = 0;

  std::string timings() const {
    return R"("timings":{"cache_n":)" + std::to_string(cache_n) + R"(,"prompt_n":)" +
           std::to_string(prompt_n) + R"(,"prompt_ms":)" + with_decimals(prompt_ms) +
           R"(,"predicted_n":)" + std::to_string(predicted_n) + R"(,"predicted_ms":1.0})";
  }
  std::string usage() const {
    return R"("usage":{"completion_tokens":)" + std::to_string(predicted_n) +
           R"(,"prompt_tokens":)" + std::to_string(prompt_tokens) + R"(,"total_tokens":)" +
           std::to_string(prompt_tokens + predicted_n) +
           R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cache_n) + "}}";
  }
  std::string responses_usage() const {
    return R"("usage":{"input_tokens":)" + std::to_string(prompt_tokens) + R"(,"output_tokens":)" +
           std::to_string(predicted_n) + R"(,"total_tokens":)" +
           std::to_string(prompt_tokens + predicted_n) +
           R"(,"input_tokens_details":{"cached_tokens":)" + std::to_string(cache_n) + "}}";
  }
};

enum class Shape { native, completion, chat, responses, messages };

Shape shape_of(std::string_view path) {
  if (path == "/v1/chat/completions" || path == "/chat/completions") return Shape::chat;
  if (path == "/v1/completions") return Shape::completion;
  if (path == "/v1/responses") return Shape::responses;
  if (path == "/v1/messages") return Shape::messages;
  return Shape::native;
}

// Writes a generation's answers in the shape its path asks for.
struct Writer {
  Shape shape;
  std::uint64_t number;
  std::string model;
  int slot;
  std::string text;      // whole
  std::vector<int> ids;  // of the generated words
  std::vector<std::string> words;
  Report report;
  bool return_tokens = false;
  bool include_usage = false;
  std::string finish = "stop";

  std::string tail(std::string_view object) const {
    return R"(,"created":1700000000,"model":)" + quote(model) +
           R"(,"system_fingerprint":"b1-scripted","object":")" + std::string(object) +
           R"(","id":"chatcmpl-)" + std::to_string(number) + "\"";
  }

  static std::string list(const std::vector<int>& ids) {
    std::string out = "[";
    for (const int id : ids) {
      if (out.size() > 1) out += ',';
      out += std::to_string(id);
    }
    return out + "]";
  }

  std::string native_final(std::string_view content, const std::vector<int>& tokens,
                           int index) const {
    return R"({"index":)" + std::to_string(index) + R"(,"content":)" + quote(content) +
           R"(,"tokens":)" + list(tokens) + R"(,"id_slot":)" + std::to_string(slot) +
           R"(,"stop":true,"model":)" + quote(model) + R"(,"tokens_predicted":)" +
           std::to_string(report.predicted_n) + R"(,"tokens_evaluated":)" +
           std::to_string(report.prompt_tokens) + R"(,"truncated":false,"stop_type":"eos",)" +
           report.timings() + "}";
  }

  std::string responses_object(std::string_view status) const {
    return R"({"id":"resp_)" + std::to_string(number) +
           R"(","object":"response","created_at":1700000000,"status":")" + std::string(status) +
           R"(","model":)" + quote(model) +
           R"(,"output":[{"type":"message","role":"assistant","status":"completed","id":"msg_1",)" +
           R"("content":[{"type":"output_text","annotations":[],"logprobs":[],"text":)" +
           quote(text) + "}]}]," + report.responses_usage() + "}";
  }

  std::string whole(int answers) const {
    std::string choices;
    for (int i = 0; i < answers; ++i) {
      if (i > 0) choices += ',';
      const std::string index = std::to_string(i);
      if (shape == Shape::native) {
        choices += native_final(text, return_tokens ? ids : std::vector<int>(), i);
      } else if (shape == Shape::completion) {
        choices += R"({"text":)" + quote(text) + R"(,"index":)" + index +
                   R"(,"logprobs":null,"finish_reason":")" + finish + "\"}";
      } else {
        choices += R"({"finish_reason":")" + finish + R"(","index":)" + index +
                   R"(,"message":{"role":"assistant","content":)" + quote(text) + "}}";
      }
    }
    switch (shape) {
      case Shape::native: return answers > 1 ? "[" + choices + "]" : choices;
      case Shape::responses: return responses_object("completed");
      case Shape::messages:
        return R"({"id":"msg_)" + std::to_string(number) +
               R"(","type":"message","role":"assistant","model":)" + quote(model) +
               R"(,"content":[{"type":"text","text":)" + quote(text) +
               R"(}],"stop_reason":"end_turn","usage":{"input_tokens":)" +
               std::to_string(report.prompt_n) + R"(,"cache_read_input_tokens":)" +
               std::to_string(report.cache_n) + R"(,"output_tokens":)" +
               std::to_string(report.predicted_n) + "}}";
      case Shape::completion:
      case Shape::chat:
        return R"({"choices":[)" + choices + "]" +
               tail(shape == Shape::chat ? "chat.completion" : "text_completion") + "," +
               report.usage() + "," + report.timings() + "}";
    }
    return {};
  }

  std::vector<std::string> events() const {
    std::vector<std::string> out;
    auto data = [&](const std::string& json) { out.push_back("data: " + json + "\n\n"); };
    auto named = [&](const std::string& name, const std::string& json) {
      out.push_back("event: " + name + "\ndata: " + json + "\n\n");
    };
    const std::string space = " ";
    switch (shape) {
      case Shape::native:
        for (std::size_t i = 0; i < words.size(); ++i) {
          data(R"({"index":0,"content":)" + quote((i > 0 ? space : "") + words[i]) +
               R"(,"tokens":)" + list({ids[i]}) + R"(,"stop":false,"id_slot":-1})");
        }
        data(native_final("", {}, 0));
        break;
      case Shape::completion:
        for (std::size_t i = 0; i < words.size(); ++i) {
          data(R"({"choices":[{"text":)" + quote((i > 0 ? space : "") + words[i]) +
               R"(,"index":0,"logprobs":null,"finish_reason":null}])" + tail("text_completion") +
               "}");
        }
        data(R"({"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":")" + finish +
             R"("}])" + tail("text_completion") + "," + report.usage() + "," + report.timings() +
             "}");
        data("[DONE]");
        break;
      case Shape::chat: {
        const std::string end = tail("chat.completion.chunk");
        auto choice = [&](const std::string& reason, const std::string& delta) {
          return R"({"choices":[{"finish_reason":)" + reason + R"(,"index":0,"delta":)" + delta +
                 "}]" + end;
        };
        data(choice("null", R"({"role":"assistant","content":null})") + "}");
        for (std::size_t i = 0; i < words.size(); ++i) {
          data(choice("null", R"({"content":)" + quote((i > 0 ? space : "") + words[i]) + "}") +
               "}");
        }
        const std::string last = choice("\"" + finish + "\"", "{}");
        if (include_usage) {
          data(last + "}");
          data(R"({"choices":[])" + end + "," + report.usage() + "," + report.timings() + "}");
        } else {
          data(last + "," + report.timings() + "}");
        }
        data("[DONE]");
        break;
      }
      case Shape::responses:
        named("response.created",
              R"({"type":"response.created","response":{"id":"resp_1","status":"in_progress"}})");
        for (std::size_t i = 0; i < words.size(); ++i) {
          named("response.output_text.delta",
                R"({"type":"response.output_text.delta","item_id":"msg_1","delta":)" +
                    quote((i > 0 ? space : "") + words[i]) + "}");
        }
        named("response.completed", R"({"type":"response.completed","response":)" +
                                        responses_object("completed") + "," + report.timings() +
                                        "}");
        break;
      case Shape::messages:
        named("message_start", R"({"type":"message_start","message":{"role":"assistant","usage":)"
                               R"({"input_tokens":)" +
                                   std::to_string(report.prompt_n) +
                                   R"(,"cache_read_input_tokens":)" +
                                   std::to_string(report.cache_n) + R"(,"output_tokens":0}}})");
        for (const auto& word : words) {
          named("content_block_delta",
                R"({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":)" +
                    quote(word) + "}}");
        }
        named("message_stop", R"({"type":"message_stop"})");
        break;
    }
    return out;
  }
};

}  // namespace

int common_prefix(const std::vector<int>& a, const std::vector<int>& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<int>(end - a.begin());
}

bool is_generation_path(std::string_view path) {
  static constexpr std::array<std::string_view, 8> kPaths = {
      "/completion",   "/completions",      "/v1/completions", "/v1/chat/completions",
      "/v1/responses", "/chat/completions", "/infill",         "/v1/messages"};
  return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end();
}

// ---------------------------------------------------------------------------------- Connection

Connection::Connection(ScriptedUpstream& upstream, Fd fd, std::uint64_t number)
    : upstream_(upstream), number_(number), fd_(std::move(fd)) {
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Connection::note_peer(PeerEnd end) {
  const std::lock_guard lock(upstream_.mutex_);
  if (upstream_.stopping_ || !current_ || current_->peer != PeerEnd::open) return;
  current_->peer = end;
  current_->peer_at = Clock::now();
  upstream_.changed_.notify_all();
}

int Connection::poll_peer(int timeout_ms) {
  if (closed_) return 1;
  pollfd entry{fd_.get(), POLLRDHUP, 0};
  const int n = ::poll(&entry, 1, timeout_ms);
  if (n <= 0) return 0;
  note_peer((entry.revents & POLLERR) != 0 ? PeerEnd::rst : PeerEnd::fin);
  return 1;
}

bool Connection::peer_gone() {
  return poll_peer(0) == 1;
}

bool Connection::sleep(milliseconds time) {
  const auto end = Clock::now() + time;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
    if (poll_peer(static_cast<int>(std::clamp<long long>(left, 0, 60000))) == 1) return false;
    if (Clock::now() >= end) return true;
  }
}

bool Connection::wait_woken(milliseconds limit) {
  const auto end = Clock::now() + limit;
  std::uint64_t seen = 0;
  {
    const std::lock_guard lock(upstream_.mutex_);
    seen = upstream_.wakes_;
  }
  while (Clock::now() < end) {
    {
      const std::lock_guard lock(upstream_.mutex_);
      if (upstream_.wakes_ != seen) return true;
    }
    if (poll_peer(5) == 1) return false;
  }
  return false;
}

bool Connection::wait_peer_gone(milliseconds limit) {
  return !sleep(limit);
}

bool Connection::send(std::string_view raw) {
  while (!raw.empty()) {
    if (closed_) return false;
    const ssize_t n = ::send(fd_.get(), raw.data(), raw.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      note_peer(PeerEnd::rst);
      return false;
    }
    raw.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool Connection::send_each(std::string_view raw, std::size_t piece, milliseconds pause) {
  while (!raw.empty()) {
    if (!send(raw.substr(0, piece))) return false;
    raw.remove_prefix(std::min(piece, raw.size()));
    if (pause.count() > 0 && !sleep(pause)) return false;
  }
  return true;
}

bool Connection::respond(int status, std::string_view body, const Headers& headers,
                         std::string_view content_type) {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " + reason_of(status) +
                     "\r\nServer: llama.cpp\r\nContent-Type: " + std::string(content_type) +
                     "\r\n" + headers.lines() + "Content-Length: " + std::to_string(body.size()) +
                     "\r\nKeep-Alive: timeout=5, max=100\r\n\r\n";
  if (body.size() < 65536) return send(head.append(body));
  return send(head) && send(body);
}

bool Connection::begin_stream(int status, const Headers& headers, std::string_view content_type) {
  return send("HTTP/1.1 " + std::to_string(status) + " " + reason_of(status) +
              "\r\nServer: llama.cpp\r\nX-Accel-Buffering: no\r\nContent-Type: " +
              std::string(content_type) + "\r\n" + headers.lines() +
              "Transfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n");
}

bool Connection::send_chunk(std::string_view payload) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", payload.size());
  return send(std::string(size).append(payload).append("\r\n"));
}

bool Connection::end_stream() {
  return send("0\r\n\r\n");
}

void Connection::close() {
  const std::lock_guard lock(fd_mutex_);
  closed_ = true;
  fd_.reset();
}

void Connection::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

void Connection::shut_down() {
  const std::lock_guard lock(fd_mutex_);
  if (fd_) ::shutdown(fd_.get(), SHUT_RDWR);
}

bool Connection::fill(milliseconds limit) {
  if (closed_) return false;
  const auto end = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
    pollfd entry{fd_.get(), POLLIN, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 0, 60000)));
    if (n > 0) break;
    if (Clock::now() >= end) return false;
  }
  char buffer[65536];
  const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
  if (n > 0) {
    in_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }
  note_peer(n == 0 ? PeerEnd::fin : PeerEnd::rst);
  return false;
}

Connection::Got Connection::read_request(std::shared_ptr<LoggedRequest>& out) {
  constexpr milliseconds kLong(600000);
  std::size_t end = 0;
  while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
    const auto idle = upstream_.behaviour().idle_close.value_or(kLong);
    if (!fill(in_.empty() ? idle : kLong)) return Got::end;
  }
  auto request = std::make_shared<LoggedRequest>();
  request->connection = number_;
  request->at = Clock::now();
  request->raw_head = in_.substr(0, end + 4);
  in_.erase(0, end + 4);
  const auto head = parse_head(request->raw_head);
  if (!head) return Got::end;
  const auto parts = split_words(head->first_line);
  if (parts.size() != 3) return Got::end;
  request->method = parts[0];
  request->target = parts[1];
  const auto question = request->target.find('?');
  request->path = request->target.substr(0, question);
  if (question != std::string::npos) request->query = request->target.substr(question + 1);
  request->headers = head->headers;
  {
    // Logged before the body arrives: that a request was begun is worth knowing.
    const std::lock_guard lock(upstream_.mutex_);
    request->number = ++upstream_.last_request_;
    current_ = request;
    upstream_.log_.push_back(request);
    upstream_.changed_.notify_all();
  }
  if (equal_without_case(request->headers.get("expect"), "100-continue")) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  auto body = std::make_shared<std::string>();
  const bool chunked = equal_without_case(request->headers.get("transfer-encoding"), "chunked");
  if (chunked) {
    ChunkDecoder decoder;
    for (;;) {
      in_.erase(0, decoder.feed(in_, *body));
      if (decoder.failed()) return Got::end;
      if (decoder.done()) break;
      if (!fill(kLong)) return Got::end;
    }
  } else {
    std::size_t length = 0;
    const std::string text = request->headers.get("content-length");
    std::from_chars(text.data(), text.data() + text.size(), length);
    while (in_.size() < length) {
      if (!fill(kLong)) return Got::end;
    }
    if (in_.size() == length) {
      body->swap(in_);
    } else {
      *body = in_.substr(0, length);
      in_.erase(0, length);
    }
  }
  const std::lock_guard lock(upstream_.mutex_);
  request->chunked = chunked;
  request->raw_body = std::move(body);
  request->body_at = Clock::now();
  upstream_.changed_.notify_all();
  out = std::move(request);
  return Got::request;
}

// ---------------------------------------------------------------------------- ScriptedUpstream

ScriptedUpstream::ScriptedUpstream(Behaviour behaviour, int port)
    : port_(port), behaviour_(std::move(behaviour)) {
  start();
}

ScriptedUpstream::~ScriptedUpstream() {
  stop();
}

void ScriptedUpstream::reset_state_locked() {
  slots_.assign(static_cast<std::size_t>(behaviour_.slots), Slot());
  host_cache_.clear();
  std::random_device random;
  char marker[64];
  std::snprintf(marker, sizeof marker, "<__media_%08x%08x__>", random(), random());
  media_marker_ = marker;
  ++starts_;
}

void ScriptedUpstream::start() {
  const std::lock_guard lock(mutex_);
  if (!stopping_) return;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  socklen_t length = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd, 1024) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const std::string reason = std::strerror(errno);
    ::close(fd);
    throw std::runtime_error("scripted upstream cannot listen: " + reason);
  }
  port_ = ntohs(address.sin_port);
  listener_ = fd;
  stopping_ = false;
  reset_state_locked();
  acceptor_ = std::thread([this, fd] { accept_loop(fd); });
}

void ScriptedUpstream::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    changed_.notify_all();
  }
  acceptor_.join();
  std::list<std::shared_ptr<Connection>> connections;
  {
    const std::lock_guard lock(mutex_);
    ::close(std::exchange(listener_, -1));
    connections.swap(connections_);
  }
  for (const auto& connection : connections) connection->shut_down();
  for (const auto& connection : connections) connection->thread_.join();
}

void ScriptedUpstream::accept_loop(int listener) {
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return;
    std::list<std::shared_ptr<Connection>> done;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        ::close(fd);
        return;
      }
      for (auto it = connections_.begin(); it != connections_.end();) {
        const auto next = std::next(it);
        if ((*it)->finished_) done.splice(done.end(), connections_, it);
        it = next;
      }
      auto connection = std::make_shared<Connection>(*this, Fd(fd), ++last_connection_);
      connections_.push_back(connection);
      connection->thread_ = std::thread([this, connection] { serve(connection); });
    }
    for (const auto& connection : done) connection->thread_.join();
  }
}

void ScriptedUpstream::serve(const std::shared_ptr<Connection>& connection) {
  std::shared_ptr<LoggedRequest> request;
  while (connection->read_request(request) == Connection::Got::request) {
    Hook hook;
    LoggedRequest copy;
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
      copy = *request;
    }
    if (!hook || !hook(copy, *connection)) answer(request, *connection);
    if (connection->closed()) break;
    if (equal_without_case(copy.headers.get("connection"), "close")) break;
  }
  if (!connection->closed()) connection->close();
  connection->finished_ = true;
}

void ScriptedUpstream::configure(const std::function<void(Behaviour&)>& change) {
  const std::lock_guard lock(mutex_);
  change(behaviour_);
  changed_.notify_all();
}

Behaviour ScriptedUpstream::behaviour() const {
  const std::lock_guard lock(mutex_);
  return behaviour_;
}

void ScriptedUpstream::on_request(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

void ScriptedUpstream::wake() {
  const std::lock_guard lock(mutex_);
  ++wakes_;
  changed_.notify_all();
}

std::vector<LoggedRequest> ScriptedUpstream::requests() const {
  const std::lock_guard lock(mutex_);
  std::vector<LoggedRequest> out;
  out.reserve(log_.size());
  for (const auto& entry : log_) out.push_back(*entry);
  return out;
}

std::vector<LoggedRequest> ScriptedUpstream::generations() const {
  auto all = requests();
  std::erase_if(all, [](const LoggedRequest& r) {
    return r.method != "POST" || !is_generation_path(r.path);
  });
  return all;
}

std::vector<LoggedRequest> ScriptedUpstream::requests_to(std::string_view method,
                                                         std::string_view path) const {
  auto all = requests();
  std::erase_if(all, [&](const LoggedRequest& r) { return r.method != method || r.path != path; });
  return all;
}

void ScriptedUpstream::clear_log() {
  const std::lock_guard lock(mutex_);
  log_.clear();
}

bool ScriptedUpstream::wait_generations(std::size_t count, milliseconds limit) const {
  return wait_until([&] { return generations().size() >= count; }, limit);
}

std::size_t ScriptedUpstream::open_connections() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return !connection->finished_; }));
}

std::vector<int> ScriptedUpstream::slot(int id) const {
  const std::lock_guard lock(mutex_);
  return slots_.at(static_cast<std::size_t>(id)).tokens;
}

bool ScriptedUpstream::slot_busy(int id) const {
  const std::lock_guard lock(mutex_);
  const Slot& slot = slots_.at(static_cast<std::size_t>(id));
  return slot.busy || slot.held;
}

void ScriptedUpstream::set_slot(int id, std::vector<int> tokens) {
  const std::lock_guard lock(mutex_);
  slots_.at(static_cast<std::size_t>(id)).tokens = std::move(tokens);
}

void ScriptedUpstream::hold_slot(int id) {
  const std::lock_guard lock(mutex_);
  slots_.at(static_cast<std::size_t>(id)).held = true;
}

void ScriptedUpstream::release_slot(int id) {
  const std::lock_guard lock(mutex_);
  slots_.at(static_cast<std::size_t>(id)).held = false;
  changed_.notify_all();
}

std::string ScriptedUpstream::media_marker() const {
  const std::lock_guard lock(mutex_);
  return media_marker_;
}

std::vector<int> ScriptedUpstream::tokenize(std::string_view text, bool add_start,
                                            bool parse_special) {
  const std::lock_guard lock(mutex_);
  return tokenize_locked(text, add_start, parse_special);
}

std::vector<int> ScriptedUpstream::tokenize_locked(std::string_view text, bool add_start,
                                                   bool parse_special) {
  std::vector<int> ids;
  if (add_start) ids.push_back(kStartToken);
  auto push = [&](std::string_view word) {
    auto at = words_.find(word);
    if (at == words_.end()) {
      at = words_.emplace(std::string(word), kFirstWord + static_cast<int>(words_.size())).first;
    }
    ids.push_back(at->second);
  };
  std::vector<std::string> words = split_words(text);
  if (behaviour_.cuts_specials) words = cut_specials(words);
  for (const auto& word : words) {
    const auto close = word.find("|>");
    const bool special = word.rfind("<|", 0) == 0 && close != std::string::npos;
    if (word == kStartWord && parse_special) {
      ids.push_back(kStartToken);
    } else if (special && !parse_special) {
      push("<|");
      push(std::string_view(word).substr(2, close - 2));
      push(std::string_view(word).substr(close));
    } else {
      push(word);
    }
  }
  return ids;
}

// REQUIRES: mutex_ held.
std::string ScriptedUpstream::render(const Json& body, bool to_compute) const {
  // In what is computed a medium is known by its bytes, not by its marker.
  const auto medium = [&](const Json& part) {
    return to_compute ? "medium-" + std::to_string(std::hash<std::string>()(part.dump()))
                      : media_marker_;
  };
  std::string out;
  if (behaviour_.template_has_start) out += std::string(kStartWord) + " ";
  if (body["tools"].is_array() && !body["tools"].items().empty()) {
    out += "<|tools|> " + body["tools"].dump() + " <|nl|>\n";
  }
  const auto& messages = body["messages"].items();
  std::size_t last_assistant = messages.size();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"].str() == "assistant") last_assistant = i;
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    out += "<|im_start|>" + message["role"].str() + "\n";
    if (behaviour_.think_template && i == last_assistant) out += "think-open think-close ";
    if (message["content"].is_array()) {
      for (const auto& part : message["content"].items()) {
        out += (part.has("text") ? part["text"].str() : medium(part)) + " ";
      }
    } else {
      out += message["content"].str();
    }
    if (message.has("tool_calls")) out += " " + message["tool_calls"].dump();
    out += " <|im_end|> <|nl|>\n";
  }
  if (behaviour_.generation_prompt && body["add_generation_prompt"].boolean(true)) {
    out += "<|im_start|>assistant\n";
    if (!body["chat_template_kwargs"]["enable_thinking"].boolean(true)) out += "<|no_think|>\n";
  }
  return out;
}

// What a /v1/messages body is as a chat, for the few kinds of blocks that tests send.
Json ScriptedUpstream::chat_of_messages(const Json& body) const {
  std::string list;
  const auto add = [&](const std::string& members) {
    list += (list.empty() ? "{" : ",{") + members + "}";
  };
  const auto text_in = [](const Json& value) {
    std::string text = value.str();
    for (const Json& block : value.items()) text += block["text"].str();
    return text;
  };
  if (body.has("system")) {
    add(R"("role":"system","content":)" +
        quote(text_in(body["system"]) + behaviour_.messages_suffix));
  }
  for (const Json& message : body["messages"].items()) {
    const std::string role = R"("role":)" + quote(message["role"].str());
    if (message["content"].is_string()) {
      add(role + R"(,"content":)" + message["content"].dump());
      continue;
    }
    std::string parts, calls;
    std::vector<std::string> results;
    for (const Json& block : message["content"].items()) {
      const std::string& type = block["type"].str();
      if (type == "tool_use") {
        calls += (calls.empty() ? "" : ",") + std::string(R"({"id":)") + block["id"].dump() +
                 R"(,"type":"function","function":{"name":)" + block["name"].dump() +
                 R"(,"arguments":)" + quote(block["input"].dump()) + "}}";
      } else if (type == "tool_result") {
        results.push_back(R"("role":"tool","tool_call_id":)" + block["tool_use_id"].dump() +
                          R"(,"content":)" + quote(text_in(block["content"])));
      } else {
        parts += (parts.empty() ? "" : ",") + block.dump();
      }
    }
    if (!parts.empty() || !calls.empty()) {
      add(role + R"(,"content":)" + (parts.empty() ? R"("")" : "[" + parts + "]") +
          (calls.empty() ? "" : R"(,"tool_calls":[)" + calls + "]"));
    }
    for (const std::string& result : results) add(result);
  }
  std::string tools;
  for (const Json& tool : body["tools"].items()) {
    tools += (tools.empty() ? "" : ",") + std::string(R"({"type":"function","function":{"name":)") +
             tool["name"].dump() + R"(,"description":)" + quote(tool["description"].str()) +
             R"(,"parameters":)" + tool["input_schema"].dump() + "}}";
  }
  return Json::parse(R"({"messages":[)" + list + R"(],"tools":[)" + tools + "]}").value_or(Json());
}

// REQUIRES: mutex_ held. An empty result means that the body makes no sense.
std::vector<std::vector<int>> ScriptedUpstream::prompts_of(std::string_view path,
                                                           const Json& body) {
  const bool add_start = !behaviour_.template_has_start;
  const Shape shape = shape_of(path);
  if (shape == Shape::chat || shape == Shape::messages) {
    if (!body["messages"].is_array()) return {};
    const Json chat = shape == Shape::messages ? chat_of_messages(body) : body;
    return {tokenize_locked(render(chat, true), add_start, true)};
  }
  if (shape == Shape::responses) {
    std::string messages;
    auto message = [&](std::string_view role, const Json& content) {
      messages += std::string(messages.empty() ? "" : ",") + R"({"role":)" + quote(role) +
                  R"(,"content":)" + content.dump() + "}";
    };
    if (body["instructions"].is_string()) message("system", body["instructions"]);
    if (body["input"].is_string()) {
      message("user", body["input"]);
    } else if (body["input"].is_array()) {
      for (const auto& item : body["input"].items()) message(item["role"].str(), item["content"]);
    } else {
      return {};
    }
    const auto chat = Json::parse(R"({"messages":[)" + messages + "]}");
    return {tokenize_locked(render(chat.value_or(Json()), true), add_start, true)};
  }
  if (path == "/infill") {
    return {tokenize_locked("<|fim_pre|> " + body["input_prefix"].str() + " <|fim_suf|> " +
                                body["input_suffix"].str() + " <|fim_mid|> " + body["prompt"].str(),
                            add_start, true)};
  }
  const Json& prompt = body["prompt"];
  auto one = [&](const Json& value) {
    std::vector<int> ids;
    if (value.is_string()) return tokenize_locked(value.str(), add_start, true);
    bool first = true;
    for (const auto& item : value.items()) {
      if (item.is_string()) {
        const auto more = tokenize_locked(item.str(), add_start && first, true);
        ids.insert(ids.end(), more.begin(), more.end());
      } else {
        ids.push_back(static_cast<int>(item.integer()));
      }
      first = false;
    }
    return ids;
  };
  if (prompt.is_string()) return {one(prompt)};
  if (!prompt.is_array() || prompt.items().empty()) return {};
  const auto& items = prompt.items();
  const bool flat =
      std::any_of(items.begin(), items.end(), [](const Json& item) { return item.is_integer(); });
  const bool nested =
      std::any_of(items.begin(), items.end(), [](const Json& item) { return item.is_array(); });
  if (flat && !nested) return {one(prompt)};
  std::vector<std::vector<int>> prompts;
  for (const auto& item : items) prompts.push_back(one(item));
  return prompts;
}

void ScriptedUpstream::wake_up() {
  const std::lock_guard lock(mutex_);
  if (!behaviour_.is_sleeping) return;
  behaviour_.is_sleeping = false;
  for (auto& slot : slots_) slot.tokens.clear();
  host_cache_.clear();
}

void ScriptedUpstream::answer(const std::shared_ptr<LoggedRequest>& request,
                              Connection& connection) {
  const std::string& method = request->method;
  const std::string& path = request->path;
  const Behaviour b = behaviour();
  auto error = [&](int code, std::string_view message, std::string_view type) {
    connection.respond(code, error_body(code, message, type));
  };
  if (b.health_status != 200) return error(b.health_status, "Loading model", "unavailable_error");
  if (method == "GET" && (path == "/health" || path == "/v1/health")) {
    connection.respond(200, R"({"status":"ok"})");
    return;
  }
  if (method == "GET" && path == "/props") {
    connection.respond(
        200, R"({"default_generation_settings":{"params":{"speculative.types":)" + quote(b.draft) +
                 R"(},"n_ctx":)" + std::to_string(b.n_ctx) + R"(},"total_slots":)" +
                 std::to_string(b.slots) + R"(,"model_alias":)" + quote(b.alias) +
                 R"(,"model_ftype":"Q4_1","model_path":)" + quote(b.model_path) +
                 R"(,"modalities":{"vision":false,"audio":false},"media_marker":)" +
                 quote(media_marker()) + R"(,"endpoint_slots":true,"chat_template":)" +
                 quote(b.chat_template) + R"(,"build_info":)" + quote(b.build_info) +
                 R"(,"is_sleeping":)" + (b.is_sleeping ? "true" : "false") + "}");
    return;
  }
  if (method == "GET" && (path == "/v1/models" || path == "/models")) {
    std::string more;
    for (const auto& name : b.more_models) {
      more += R"(,{"id":)" + quote(name) + R"(,"object":"model","owned_by":"llamacpp"})";
    }
    connection.respond(
        200, R"({"object":"list","data":[{"id":)" + quote(b.alias) +
                 R"(,"object":"model","created":1700000000,"owned_by":"llamacpp",)" +
                 R"("meta":{"vocab_type":2,"n_vocab":49152,"n_ctx":)" + std::to_string(b.n_ctx) +
                 R"(,"n_ctx_train":65536,"n_embd":576,"n_params":134515008,)" + R"("size":)" +
                 std::to_string(b.model_size) + R"(,"ftype":"Q4_1"}})" + more + "]}");
    return;
  }
  wake_up();
  if (method == "GET" && path == "/slots") {
    std::string out = "[";
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        if (i > 0) out += ',';
        out += R"({"id":)" + std::to_string(i) + R"(,"n_ctx":)" + std::to_string(b.n_ctx) +
               R"(,"speculative":false,"is_processing":)" +
               (slot.busy || slot.held ? "true" : "false");
        if (slot.task > 0) {
          out += R"(,"id_task":)" + std::to_string(slot.task) + R"(,"n_prompt_tokens":)" +
                 std::to_string(slot.tokens.size());
        }
        out += "}";
      }
    }
    connection.respond(200, out + "]");
    return;
  }
  if (method == "GET" && path == "/metrics") {
    connection.respond(200, "llamacpp:prompt_tokens_total 1\n", {}, "text/plain; version=0.0.4");
    return;
  }
  if (method == "POST" && path == "/tokenize") {
    if (b.tokenize_status != 200) {
      return error(b.tokenize_status, "Failed to tokenize prompt", "invalid_request_error");
    }
    const auto body = Json::parse(request->body());
    if (!body) return error(400, "bad JSON", "invalid_request_error");
    const auto ids = tokenize((*body)["content"].str(), (*body)["add_special"].boolean(false),
                              (*body)["parse_special"].boolean(true));
    connection.respond(200, R"({"tokens":)" + Writer::list(ids) + "}");
    return;
  }
  if (method == "POST" && path == "/apply-template") {
    if (b.template_status != 200) {
      return error(b.template_status, "Failed to apply template", "invalid_request_error");
    }
    const auto body = Json::parse(request->body());
    if (!body || !(*body)["messages"].is_array()) {
      return error(400, "\"messages\" is required", "invalid_request_error");
    }
    std::string text;
    {
      const std::lock_guard lock(mutex_);
      text = render(*body);
    }
    connection.respond(200, R"({"prompt":)" + quote(text) + "}");
    return;
  }
  if (method == "POST" && path.rfind("/slots/", 0) == 0) return slot_action(*request, connection);
  if (method == "POST" && is_generation_path(path)) return generate(request, connection);
  if (method == "POST" &&
      (path == "/v1/messages/count_tokens" || path == "/v1/chat/completions/input_tokens")) {
    std::size_t count = 7;
    if (path == "/v1/messages/count_tokens") {
      const auto body = Json::parse(request->body());
      const std::lock_guard lock(mutex_);
      const auto prompts = prompts_of("/v1/messages", body.value_or(Json()));
      count = prompts.empty() ? 0 : prompts[0].size();
    }
    connection.respond(200, R"({"input_tokens":)" + std::to_string(count) + "}");
    return;
  }
  if (method == "POST" && (path == "/v1/embeddings" || path == "/embedding")) {
    if (!b.embed_batch) {
      return error(501, "This server does not support embeddings", "not_supported_error");
    }
    return embed(*request, connection);
  }
  error(404, "File Not Found", "not_found_error");
}

// A text's vector counts its tokens, each in the place that its id gives it.
void ScriptedUpstream::embed(const LoggedRequest& request, Connection& connection) {
  const Behaviour b = behaviour();
  const Json body = request.json();
  std::string data;
  std::size_t index = 0;
  for (const Json& input : body["input"].items()) {
    const auto& ids = input.items();
    if (ids.size() > static_cast<std::size_t>(*b.embed_batch)) {
      connection.respond(
          500, error_body(500,
                          "input (" + std::to_string(ids.size()) +
                              " tokens) is too large to process. increase the physical batch size",
                          "server_error"));
      return;
    }
    std::vector<int> counts(static_cast<std::size_t>(b.embed_dimension));
    for (const Json& id : ids) {
      ++counts[static_cast<std::size_t>(id.integer()) % counts.size()];
    }
    // The last first: order is told by the index.
    data.insert(0, R"({"object":"embedding","index":)" + std::to_string(index++) +
                       R"(,"embedding":)" + Writer::list(counts) + "}" + (data.empty() ? "" : ","));
  }
  connection.respond(200, R"({"object":"list","model":"m","data":[)" + data + "]}");
}

void ScriptedUpstream::slot_action(const LoggedRequest& request, Connection& connection) {
  auto error = [&](int code, std::string_view message, std::string_view type) {
    connection.respond(code, error_body(code, message, type));
  };
  const Behaviour b = behaviour();
  const int status = b.slot_action_status;
  if (status != 200) {
    return error(status, "This feature is not supported by multimodal", "not_supported_error");
  }
  const std::string text = request.path.substr(7);
  int id = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (code != std::errc() || end != text.data() + text.size() || id < 0) {
    return error(400, "Invalid slot ID", "invalid_request_error");
  }
  const Json body = request.json();
  const std::string file = body["filename"].str();
  const bool erase = request.query == "action=erase";
  const bool save = request.query == "action=save";
  if (!erase && !save && request.query != "action=restore") {
    return error(400, "Invalid action", "invalid_request_error");
  }
  if (!erase && (file.empty() || file.find('/') != std::string::npos)) {
    return error(400, "Invalid filename", "invalid_request_error");
  }
  if (b.slot_action_needs_model && body["model"].str() != b.alias) {
    return error(400, "model name is missing from the request", "invalid_request_error");
  }
  // As a generation does, the action waits for a busy slot.
  std::unique_lock lock(mutex_);
  const auto index = std::min(static_cast<std::size_t>(id), slots_.size() - 1);
  while (!stopping_ && (slots_[index].busy || slots_[index].held)) {
    changed_.wait_for(lock, milliseconds(5));
    lock.unlock();
    if (connection.peer_gone()) return;
    lock.lock();
  }
  Slot& slot = slots_[index];
  const std::string who = R"({"id_slot":)" + std::to_string(id);
  const std::string name = R"(,"filename":)" + quote(file);
  std::string answer;
  if (erase) {
    answer = who + R"(,"n_erased":)" + std::to_string(slot.tokens.size()) + "}";
    slot.tokens.clear();
  } else if (save && !write_state_locked(file, id)) {
    lock.unlock();
    return error(500, "cannot write the state", "server_error");
  } else if (save) {
    answer = who + name + R"(,"n_saved":)" + std::to_string(slot.tokens.size()) +
             R"(,"n_written":)" + std::to_string(slot.tokens.size() * 1000) +
             R"(,"timings":{"save_ms":0.5}})";
  } else if (const auto tokens = read_state_locked(file, id)) {
    slot.tokens = *tokens;
    answer = who + name + R"(,"n_restored":)" + std::to_string(slot.tokens.size()) +
             R"(,"n_read":)" + std::to_string(slot.tokens.size() * 1000) +
             R"(,"timings":{"restore_ms":0.5}})";
  } else {
    slot.tokens.clear();
    lock.unlock();
    return error(400,
                 "Unable to restore slot: No available space in KV cache or invalid slot save file",
                 "invalid_request_error");
  }
  lock.unlock();
  connection.respond(200, answer);
}

// REQUIRES: mutex_ held, as for what follows.
bool ScriptedUpstream::write_state_locked(const std::string& file, int slot) {
  const auto& tokens = slots_[static_cast<std::size_t>(slot)].tokens;
  if (behaviour_.slot_dir.empty()) {
    saved_[file] = tokens;
    return true;
  }
  StateShape shape;
  shape.streams = static_cast<std::uint32_t>(slots_.size());
  shape.k_rows[0] = behaviour_.state_row_bytes;
  std::ofstream out(behaviour_.slot_dir + "/" + file, std::ios::binary);
  out << state_file(shape, tokens, static_cast<std::uint32_t>(slot));
  return static_cast<bool>(out.flush());
}

std::optional<std::vector<int>> ScriptedUpstream::read_state_locked(const std::string& file,
                                                                    int slot) const {
  if (behaviour_.slot_dir.empty()) {
    const auto at = saved_.find(file);
    return at == saved_.end() ? std::nullopt : std::optional(at->second);
  }
  std::ifstream in(behaviour_.slot_dir + "/" + file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  StateShape shape;
  shape.streams = static_cast<std::uint32_t>(slots_.size());
  shape.k_rows[0] = behaviour_.state_row_bytes;
  auto tokens = tokens_of_state_file(bytes);
  const bool right =
      tokens && bytes == state_file(shape, *tokens, static_cast<std::uint32_t>(slot));
  return right ? std::move(tokens) : std::nullopt;
}

int ScriptedUpstream::choose_locked(std::int64_t wanted, const std::vector<int>& prompt) const {
  const auto count = static_cast<std::int64_t>(slots_.size());
  auto idle = [&](const Slot& slot) { return !slot.busy && !slot.held; };
  if (behaviour_.honours_id_slot && wanted >= 0 && wanted < count) {
    return idle(slots_[static_cast<std::size_t>(wanted)]) ? static_cast<int>(wanted) : -1;
  }
  int best = -1;
  int longest = 0;
  int coldest = -1;
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const Slot& slot = slots_[static_cast<std::size_t>(i)];
    if (!idle(slot)) continue;
    const int common = common_prefix(slot.tokens, prompt);
    if (common > longest) {
      longest = common;
      best = i;
    }
    if (coldest < 0 || slot.last_used < slots_[static_cast<std::size_t>(coldest)].last_used) {
      coldest = i;
    }
  }
  const bool similar = longest * 10 > static_cast<int>(prompt.size());
  return best >= 0 && similar && behaviour_.compares_slots ? best : coldest;
}

std::optional<ScriptedUpstream::Taken> ScriptedUpstream::take(Connection& connection,
                                                              std::int64_t wanted, bool reuse,
                                                              const std::vector<int>& prompt) {
  Taken taken;
  std::unique_lock lock(mutex_);
  while ((taken.slot = choose_locked(wanted, prompt)) < 0) {
    if (stopping_) return std::nullopt;
    taken.deferred = true;
    changed_.wait_for(lock, milliseconds(5));
    lock.unlock();
    if (connection.peer_gone()) return std::nullopt;
    lock.lock();
  }
  Slot& slot = slots_[static_cast<std::size_t>(taken.slot)];
  const bool pinned = wanted >= 0 && wanted < static_cast<std::int64_t>(slots_.size()) &&
                      behaviour_.honours_id_slot;
  if (behaviour_.own_cache) {
    const auto before = slot.tokens;
    if (!pinned) {
      int longest = common_prefix(before, prompt);
      auto found = host_cache_.end();
      for (auto it = host_cache_.begin(); it != host_cache_.end(); ++it) {
        if (common_prefix(*it, prompt) > longest) {
          longest = common_prefix(*it, prompt);
          found = it;
        }
      }
      if (found != host_cache_.end()) {
        slot.tokens = *found;
        host_cache_.erase(found);
      }
    }
    const int kept = common_prefix(before, prompt);
    if (kept * 2 < static_cast<int>(before.size())) host_cache_.push_back(before);
  }
  if (!behaviour_.keeps_idle_slots) {
    for (auto& other : slots_) {
      if (&other != &slot && !other.busy) other.tokens.clear();
    }
  }
  const int most = std::max(0, static_cast<int>(prompt.size()) - 1);
  taken.cache_n = reuse ? std::min(common_prefix(slot.tokens, prompt), most) : 0;
  slot.tokens.resize(static_cast<std::size_t>(taken.cache_n));
  slot.busy = true;
  slot.last_used = ++uses_;
  slot.task = ++tasks_;
  return taken;
}

void ScriptedUpstream::release(int slot, std::vector<int> tokens) {
  const std::lock_guard lock(mutex_);
  Slot& entry = slots_.at(static_cast<std::size_t>(slot));
  entry.tokens = std::move(tokens);
  entry.busy = false;
  entry.last_used = ++uses_;
  changed_.notify_all();
}

void ScriptedUpstream::generate(const std::shared_ptr<LoggedRequest>& request,
                                Connection& connection) {
  auto error = [&](int code, std::string_view message, std::string_view type) {
    connection.respond(code, error_body(code, message, type));
  };
  const auto parsed = Json::parse(request->body());
  if (!parsed || !parsed->is_object()) return error(400, "bad JSON", "invalid_request_error");
  const Json& body = *parsed;
  const Behaviour b = behaviour();
  std::vector<std::vector<int>> prompts;
  {
    const std::lock_guard lock(mutex_);
    prompts = prompts_of(request->path, body);
  }
  if (prompts.empty()) return error(400, "no prompt", "invalid_request_error");
  const std::vector<int>& prompt = prompts.front();
  if (static_cast<int>(prompt.size()) > b.n_ctx) {
    connection.respond(
        400, R"({"error":{"code":400,"message":"request exceeds the available context size",)"
             R"("type":"exceed_context_size_error","n_prompt_tokens":)" +
                 std::to_string(prompt.size()) + R"(,"n_ctx":)" + std::to_string(b.n_ctx) + "}}");
    return;
  }
  const Shape shape = shape_of(request->path);
  // The Anthropic endpoint ignores the field, as the real one does.
  const std::int64_t wanted = shape == Shape::messages ? -1 : body["id_slot"].integer(-1);
  const bool reuse = body["cache_prompt"].boolean(true);
  const auto taken = take(connection, wanted, reuse, prompt);
  if (!taken) {
    const std::lock_guard lock(mutex_);
    request->cancelled = true;
    return;
  }

  Writer writer;
  writer.shape = shape;
  writer.number = request->number;
  writer.model = b.alias;
  writer.slot = taken->slot;
  writer.words = split_words(b.answer);
  writer.return_tokens = body["return_tokens"].boolean();
  writer.include_usage = body["stream_options"]["include_usage"].boolean();
  for (const char* limit :
       {"n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    const auto most = body[limit].integer(-1);
    if (most >= 0 && static_cast<std::size_t>(most) < writer.words.size()) {
      writer.words.resize(static_cast<std::size_t>(most));
      writer.finish = "length";
    }
  }
  for (const auto& word : writer.words) {
    writer.text += (writer.text.empty() ? "" : " ") + word;
    const auto ids = tokenize(word, false, true);
    writer.ids.push_back(ids.empty() ? 0 : ids.front());
  }
  const int size = static_cast<int>(prompt.size());
  const int prompt_n = size - taken->cache_n;
  Report& report = writer.report;
  report.prompt_tokens = size + b.usage_offset;
  report.cache_n = b.cache_n.value_or(taken->cache_n);
  report.prompt_n = std::max(0, size - report.cache_n) + b.usage_offset;
  const double token_ms = b.per_new_token.count() > 0
                              ? std::chrono::duration<double, std::milli>(b.per_new_token).count()
                              : 0.5;
  report.prompt_ms = report.prompt_n * token_ms;
  report.predicted_n = std::max(1, static_cast<int>(writer.words.size()));

  {
    const std::lock_guard lock(mutex_);
    request->slot = taken->slot;
    request->prompt = prompt;
    request->cache_n = taken->cache_n;
    request->prompt_n = prompt_n;
    request->deferred = taken->deferred;
  }

  // Prefill. A peer that leaves keeps in the slot what was computed until then.
  const auto begun = Clock::now();
  const auto whole_prefill =
      b.answer_delay + std::chrono::duration_cast<milliseconds>(b.per_new_token * prompt_n);
  auto cancel = [&](std::size_t tokens) {
    release(taken->slot,
            std::vector<int>(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(tokens)));
    const std::lock_guard lock(mutex_);
    request->cancelled = true;
    changed_.notify_all();
  };
  if (!connection.sleep(whole_prefill)) {
    const double part = whole_prefill.count() == 0
                            ? 1.0
                            : std::min(1.0, ms_between(begun, Clock::now()) /
                                                static_cast<double>(whole_prefill.count()));
    return cancel(static_cast<std::size_t>(taken->cache_n + static_cast<int>(prompt_n * part)));
  }

  std::vector<int> held = prompt;
  for (std::size_t i = 0; i + 1 < writer.ids.size(); ++i) held.push_back(writer.ids[i]);
  const int answers =
      std::max<int>(static_cast<int>(prompts.size()), static_cast<int>(body["n"].integer(1)));
  auto finish = [&] {
    {
      // Further answers run at the same time: each in another slot, while there are idle ones.
      const std::lock_guard lock(mutex_);
      std::vector<Slot*> touched;
      for (int i = 1; i < answers; ++i) {
        const auto& other = prompts[static_cast<std::size_t>(i) % prompts.size()];
        const int slot = choose_locked(-1, other);
        if (slot < 0) break;
        touched.push_back(&slots_[static_cast<std::size_t>(slot)]);
        *touched.back() = {other, true, false, ++uses_, ++tasks_};
      }
      for (Slot* slot : touched) slot->busy = false;
    }
    release(taken->slot, held);
  };

  bool sent = false;
  if (body["stream"].boolean()) {
    const auto events = writer.events();
    sent = connection.begin_stream();
    for (std::size_t i = 0; sent && i < events.size(); ++i) {
      if (i > 0 && b.event_delay.count() > 0) sent = connection.sleep(b.event_delay);
      if (sent && connection.peer_gone()) sent = false;
      if (!sent) return cancel(prompt.size());
      if (i + 1 == events.size()) finish();  // the slot is free before the last byte is out
      sent = connection.send_chunk(events[i]);
    }
    sent = sent && connection.end_stream();
  } else {
    finish();
    sent = connection.respond(200, writer.whole(answers));
  }
  const std::lock_guard lock(mutex_);
  request->answered = sent;
  changed_.notify_all();
}

}  // namespace toki::test
