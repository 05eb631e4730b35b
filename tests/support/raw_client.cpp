#include "raw_client.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace toki::test {
namespace {

// Waits for `events`; false when the deadline passed.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
    if (left < 0) return false;
    pollfd entry{fd, events, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(std::min<long long>(left + 1, 60000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;
  }
}

}  // namespace

std::string to_string(End end) {
  switch (end) {
    case End::open: return "open";
    case End::clean: return "clean";
    case End::truncated: return "truncated";
    case End::reset: return "reset";
    case End::nonsense: return "nonsense";
    case End::timeout: return "timeout";
  }
  return "?";
}

RawClient::RawClient(int port, milliseconds limit)
    : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), limit_(limit) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
  }
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool RawClient::send(std::string_view bytes) {
  const auto deadline = Clock::now() + limit_;
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      if (!wait_for(fd_.get(), POLLOUT, deadline)) return false;
    } else if (n < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool RawClient::send_slowly(std::string_view bytes, std::size_t piece, milliseconds pause) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(piece, bytes.size());
    if (!send(bytes.substr(0, n))) return false;
    bytes.remove_prefix(n);
    std::this_thread::sleep_for(pause);
  }
  return true;
}

bool RawClient::send_request(std::string_view method, std::string_view target,
                             std::string_view body, const Headers& headers) {
  std::string head;
  head.append(method).append(" ").append(target).append(" HTTP/1.1\r\n");
  if (!headers.has("host")) head += "Host: 127.0.0.1\r\n";
  head += headers.lines();
  if (!body.empty() || method == "POST" || method == "PUT") {
    if (!headers.has("content-length") && !headers.has("transfer-encoding")) {
      head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
  }
  head += "\r\n";
  if (body.size() < 65536) return send(head.append(body));
  return send(head) && send(body);
}

bool RawClient::send_json(std::string_view target, std::string_view body, const Headers& headers) {
  Headers all = headers;
  if (!all.has("content-type")) all.add("Content-Type", "application/json");
  return send_request("POST", target, body, all);
}

RawClient::Read RawClient::read_more(Clock::time_point deadline) {
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      in_.append(buffer, static_cast<std::size_t>(n));
      return Read::some;
    }
    if (n == 0) return Read::fin;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Read::rst;
    if (!wait_for(fd_.get(), POLLIN, deadline)) return Read::timeout;
  }
}

bool RawClient::read_head_into(HttpResponse& response) {
  const auto deadline = Clock::now() + limit_;
  std::size_t end = 0;
  while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
    const Read read = read_more(deadline);
    if (read == Read::some) continue;
    response.end = read == Read::fin       ? End::truncated
                   : read == Read::timeout ? End::timeout
                                           : End::reset;
    return false;
  }
  response.head_at = Clock::now();
  const auto head = parse_head(std::string_view(in_).substr(0, end + 4));
  in_.erase(0, end + 4);
  if (!head || head->first_line.size() < 12 || head->first_line.rfind("HTTP/1.", 0) != 0) {
    response.end = End::nonsense;
    return false;
  }
  response.first_line = head->first_line;
  response.headers = head->headers;
  response.status = std::atoi(head->first_line.c_str() + 9);
  return true;
}

void RawClient::begin_body(const HttpResponse& response, bool head_only) {
  left_ = 0;
  chunks_ = ChunkDecoder();
  const std::string length = response.header("content-length");
  if (head_only || response.status / 100 == 1 || response.status == 204 || response.status == 304) {
    framing_ = Framing::none;
  } else if (equal_without_case(response.header("transfer-encoding"), "chunked")) {
    framing_ = Framing::chunked;
  } else if (!length.empty()) {
    framing_ = Framing::length;
    std::from_chars(length.data(), length.data() + length.size(), left_);
  } else {
    framing_ = Framing::until_close;
  }
}

void RawClient::take_body(HttpResponse& response) {
  std::string payload;
  switch (framing_) {
    case Framing::none: response.end = End::clean; return;
    case Framing::length: {
      const std::size_t n = std::min(left_, in_.size());
      payload = in_.substr(0, n);
      in_.erase(0, n);
      left_ -= n;
      if (left_ == 0) response.end = End::clean;
      break;
    }
    case Framing::chunked: {
      in_.erase(0, chunks_.feed(in_, payload));
      if (chunks_.done()) response.end = End::clean;
      if (chunks_.failed()) response.end = End::nonsense;
      break;
    }
    case Framing::until_close: payload.swap(in_); break;
  }
  if (payload.empty()) return;
  response.body += payload;
  response.pieces.push_back({Clock::now(), std::move(payload)});
}

bool RawClient::read_body_until(HttpResponse& response,
                                const std::function<bool(const HttpResponse&)>& enough) {
  const auto deadline = Clock::now() + limit_;
  for (;;) {
    if (response.end == End::open) take_body(response);
    if (enough(response)) return true;
    if (response.end != End::open) return false;
    switch (read_more(deadline)) {
      case Read::some: break;
      case Read::fin:
        response.end = framing_ == Framing::until_close ? End::clean : End::truncated;
        break;
      case Read::rst: response.end = End::reset; break;
      case Read::timeout: response.end = End::timeout; break;
    }
  }
}

void RawClient::read_rest(HttpResponse& response) {
  read_body_until(response, [](const HttpResponse&) { return false; });
}

HttpResponse RawClient::read_head() {
  HttpResponse response;
  if (read_head_into(response)) begin_body(response, false);
  return response;
}

HttpResponse RawClient::read_response(bool head_only) {
  for (;;) {
    HttpResponse response;
    if (!read_head_into(response)) return response;
    if (response.status / 100 == 1) continue;
    begin_body(response, head_only);
    read_rest(response);
    return response;
  }
}

bool RawClient::wait_closed(milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    const Read read = read_more(deadline);
    in_.clear();
    if (read == Read::timeout) return false;
    if (read != Read::some) return true;
  }
}

bool RawClient::readable(milliseconds limit) {
  return !in_.empty() || wait_for(fd_.get(), POLLIN, Clock::now() + limit);
}

void RawClient::close() {
  fd_.reset();
}

void RawClient::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  fd_.reset();
}

void RawClient::finish_sending() {
  ::shutdown(fd_.get(), SHUT_WR);
}

HttpResponse request(int port, std::string_view method, std::string_view target,
                     std::string_view body, const Headers& headers, milliseconds limit) {
  RawClient client(port, limit);
  client.send_request(method, target, body, headers);
  return client.read_response(method == "HEAD");
}

HttpResponse get(int port, std::string_view target, const Headers& headers) {
  return request(port, "GET", target, {}, headers);
}

HttpResponse post_json(int port, std::string_view target, std::string_view body,
                       const Headers& headers, milliseconds limit) {
  RawClient client(port, limit);
  client.send_json(target, body, headers);
  return client.read_response();
}

std::vector<std::string> sse_data(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const auto end = body.find('\n');
    std::string_view line = body.substr(0, end);
    body.remove_prefix(end == std::string_view::npos ? body.size() : end + 1);
    if (line.rfind("data:", 0) == 0) out.emplace_back(trimmed(line.substr(5)));
  }
  return out;
}

std::size_t occurrences(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace toki::test
