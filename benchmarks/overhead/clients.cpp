#include "clients.hpp"

#include <array>
#include <charconv>
#include <utility>

#include "sockets.hpp"

namespace bench {

using std::chrono::steady_clock;

namespace {

double us_since(steady_clock::time_point begun) {
  return std::chrono::duration<double, std::micro>(steady_clock::now() - begun).count();
}

std::size_t number_at(std::string_view text) {
  std::size_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Whether the answer in `text` is complete. The upstream and both proxies write these names so.
bool complete(std::string_view text) {
  const auto end = text.find("\r\n\r\n");
  if (end == std::string_view::npos) {
    return false;
  }
  const std::string_view head = text.substr(0, end + 2);
  constexpr std::string_view key = "\r\nContent-Length: ";
  const auto length = head.find(key);
  return length == std::string_view::npos
             ? text.ends_with("\r\n0\r\n\r\n")
             : text.size() >= end + 4 + number_at(head.substr(length + key.size()));
}

// Times of the events whose lines are whole and lie behind `from`.
std::size_t scan_events(std::string_view text, std::size_t from, std::vector<double>& delays) {
  constexpr std::string_view key = R"("sent_ns":)";
  const auto lines = text.rfind('\n');
  if (lines == std::string_view::npos || lines < from) {
    return from;
  }
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch())
          .count();
  for (auto at = text.find(key, from); at < lines; at = text.find(key, at + 1)) {
    delays.push_back(
        (static_cast<double>(now) - static_cast<double>(number_at(text.substr(at + key.size())))) /
        1000);
  }
  return lines;
}

}  // namespace

std::string http_request(std::string_view target, std::string_view body) {
  std::string text(body.empty() ? "GET " : "POST ");
  text.append(target).append(" HTTP/1.1\r\nHost: localhost\r\nUser-Agent: proxy_overhead\r\n");
  text.append("Accept: */*\r\n");
  if (!body.empty()) {
    text.append("Content-Type: application/json\r\nContent-Length: ");
    text.append(std::to_string(body.size())).append("\r\n");
  }
  return text.append("\r\n").append(body);
}

Clients::Clients(int port, std::size_t connections)
    : port_(port), epoll_(::epoll_create1(EPOLL_CLOEXEC)), clients_(connections) {
  for (std::size_t i = 0; i < connections; ++i) {
    open(i);
  }
}

void Clients::open(std::size_t i) {
  clients_[i].fd = connect_to(port_);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, clients_[i].fd.get(), &event);
}

void Clients::begin(std::size_t i, const std::string& request) {
  Client& client = clients_[i];
  if (!client.fd) {
    open(i);
  }
  client.busy = true;
  client.in.clear();
  client.scanned = 0;
  client.begun = steady_clock::now();
  send_all(client.fd.get(), request);  // when it fails, read() says so
}

// True when the answer has ended, or failed.
bool Clients::read(std::size_t i, Load& load) {
  Client& client = clients_[i];
  std::array<char, 65536> bytes;
  const ssize_t got = ::recv(client.fd.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0) {
    client.fd.reset();
    load.failed += client.busy ? 1U : 0U;
    return std::exchange(client.busy, false);
  }
  client.in.append(bytes.data(), static_cast<std::size_t>(got));
  client.scanned = scan_events(client.in, client.scanned, load.event_us);
  if (!complete(client.in)) {
    return false;
  }
  load.whole_us.push_back(us_since(client.begun));
  if (client.in.find("\r\nConnection: close\r\n") < client.in.find("\r\n\r\n")) {
    client.fd.reset();
  }
  load.failed += client.in.starts_with("HTTP/1.1 200 ") ? 0U : 1U;
  client.busy = false;
  return true;
}

Load Clients::run(const std::vector<std::string>& requests, std::size_t total) {
  Load load;
  const auto begun = steady_clock::now();
  std::size_t sent = 0;
  std::size_t under_way = 0;
  const auto next = [&](std::size_t i) {
    if (sent < total) {
      ++sent;
      ++under_way;
      begin(i, requests[i % requests.size()]);
    }
  };
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    next(i);
  }
  std::array<epoll_event, 64> ready{};
  while (under_way > 0) {
    const int got = ::epoll_wait(epoll_.get(), ready.data(), ready.size(), -1);
    for (int at = 0; at < got; ++at) {
      const std::size_t i = ready[static_cast<std::size_t>(at)].data.u64;
      if (read(i, load)) {
        --under_way;
        next(i);
      }
    }
  }
  load.seconds = us_since(begun) / 1e6;
  return load;
}

}  // namespace bench
