#include "upstream.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "json.hpp"
#include "raw_client.hpp"
#include "sockets.hpp"
#include "tokid_process.hpp"

namespace bench {

using namespace toki::test;

namespace {

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string whole_answer(int status, std::string_view type, std::string_view body) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + (status == 200 ? " OK" : " Status");
  text.append("\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nContent-Type: ");
  text.append(type).append("\r\nContent-Length: ").append(std::to_string(body.size()));
  return text.append("\r\n\r\n").append(body);
}

std::string json_answer(std::string_view body) {
  return whole_answer(200, "application/json; charset=utf-8", body);
}

std::string chunk(std::string_view payload) {
  std::array<char, 20> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), payload.size(), 16).ptr;
  std::string text(size.data(), end);
  return text.append("\r\n").append(payload).append("\r\n");
}

// The number behind `key` in a body that we wrote ourselves.
std::optional<std::size_t> number_after(std::string_view body, std::string_view key) {
  const auto at = body.find(key);
  std::size_t value = 0;
  if (at == std::string_view::npos ||
      std::from_chars(body.data() + at + key.size(), body.data() + body.size(), value).ec !=
          std::errc{}) {
    return std::nullopt;
  }
  return value;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string facts(int prompt, int cached) {
  return R"("usage":{"completion_tokens":1,"prompt_tokens":)" + std::to_string(prompt) +
         R"(,"total_tokens":)" + std::to_string(prompt + 1) +
         R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cached) +
         R"(}},"timings":{"cache_n":)" + std::to_string(cached) + R"(,"prompt_n":)" +
         std::to_string(prompt - cached) +
         R"(,"prompt_ms":1.0,"predicted_n":1,"predicted_ms":1.0})";
}

}  // namespace

Upstream::Upstream(ScriptedUpstream& scripted, int conversations, int words, StreamShape stream)
    : scripted_(scripted),
      stream_(stream),
      slot_holds_(static_cast<std::size_t>(scripted.behaviour().slots)) {
  models_ = json_answer(get(scripted.port(), "/v1/models").body);
  health_ = json_answer(get(scripted.port(), "/health").body);
  for (int i = 0; i < conversations; ++i) {
    const std::string user = R"(,"user":")" + std::to_string(i) + R"(","max_tokens":1)";
    const std::vector<Message> messages{S("agent" + std::to_string(i) + " " + W(words)),
                                        M("hello")};
    Talk talk;
    talk.sent.chat = cc(messages, user);
    talk.sent.chat_stream = cc(messages, user + R"(,"stream":true)");
    const std::string answered = post_json(scripted.port(), "/apply-template", talk.sent.chat).body;
    talk.rendered = json_answer(answered);
    const auto tokens = scripted.tokenize(Json::parse(answered).value_or(Json())["prompt"].str());
    talk.tokens = static_cast<int>(tokens.size());
    talk.sent.ids = R"({"prompt":[)";
    for (std::size_t at = 0; at < tokens.size(); ++at) {
      talk.sent.ids += (at > 0 ? "," : "") + std::to_string(tokens[at]);
    }
    talk.sent.ids += "]" + user + R"(,"n_predict":1})";
    talks_.push_back(std::move(talk));
  }
  listener_ = listen_somewhere(port_);
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
  watch(epoll_.get(), listener_.get());
  watch(epoll_.get(), stop_.get());
  thread_ = std::thread([this] { run(); });
}

Upstream::~Upstream() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Upstream::run() {
  ::prctl(PR_SET_TIMERSLACK, 1);  // events are not to be late by the kernel's usual 50 us
  std::array<epoll_event, 64> ready{};
  for (;;) {
    const auto wait = until_next_event();
    const int got =
        ::epoll_pwait2(epoll_.get(), ready.data(), ready.size(), wait ? &*wait : nullptr, nullptr);
    for (int i = 0; i < got; ++i) {
      const int fd = ready[static_cast<std::size_t>(i)].data.fd;
      if (fd == stop_.get()) {
        return;
      }
      if (fd == listener_.get()) {
        accept();
      } else if (const auto found = peers_.find(fd); found != peers_.end()) {
        read(*found->second);
      }
    }
    send_due_events();
  }
}

std::optional<timespec> Upstream::until_next_event() const {
  if (streams_ == 0) {
    return std::nullopt;
  }
  auto next = std::chrono::steady_clock::time_point::max();
  for (const auto& [fd, peer] : peers_) {
    if (peer->events_left > 0) {
      next = std::min(next, peer->next_event);
    }
  }
  const auto left = std::max(next - std::chrono::steady_clock::now(),
                             std::chrono::steady_clock::duration::zero());
  return timespec{.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
}

void Upstream::accept() {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) {
    return;
  }
  no_delay(fd.get());
  watch(epoll_.get(), fd.get());
  ++connections_;
  const int number = fd.get();
  peers_[number] = std::make_unique<Peer>();
  peers_[number]->fd = std::move(fd);
}

void Upstream::read(Peer& peer) {
  std::array<char, 65536> bytes;
  const ssize_t got = ::recv(peer.fd.get(), bytes.data(), bytes.size(), 0);
  bool open = got > 0;
  if (open) {
    peer.in.append(bytes.data(), static_cast<std::size_t>(got));
  }
  while (open) {
    const auto end = peer.in.find("\r\n\r\n");
    if (end == std::string::npos) {
      return;
    }
    const std::string_view head = std::string_view(peer.in).substr(0, end + 4);
    const std::size_t length = number_after(head, "Content-Length: ").value_or(0);
    if (peer.in.size() < head.size() + length) {
      return;
    }
    open = answer(peer, head, std::string_view(peer.in).substr(head.size(), length));
    peer.in.erase(0, end + 4 + length);
  }
  streams_ -= peer.events_left > 0 ? 1 : 0;
  peers_.erase(peer.fd.get());
}

bool Upstream::answer(Peer& peer, std::string_view head, std::string_view body) {
  const std::string_view call = head.substr(0, head.find(" HTTP/"));
  if (call == "GET /v1/models") {
    return send_all(peer.fd.get(), models_);
  }
  if (call == "GET /health") {
    return send_all(peer.fd.get(), health_);
  }
  if (const auto user = number_after(body, R"("user":")"); user && *user < talks_.size()) {
    return call == "POST /apply-template" ? send_all(peer.fd.get(), talks_[*user].rendered)
                                          : generate(peer, call, body);
  }
  ask_scripted(peer, head, body);
  return true;
}

bool Upstream::generate(Peer& peer, std::string_view call, std::string_view body) {
  const std::size_t user = *number_after(body, R"("user":")");
  const Talk& talk = talks_[user];
  int cached = 0;
  if (const auto slot = number_after(body, R"("id_slot":)"); slot && *slot < slot_holds_.size()) {
    cached = slot_holds_[*slot] == user + 1 ? talk.tokens - 1 : 0;
    slot_holds_[*slot] = user + 1;
  }
  const std::string said = facts(talk.tokens, cached);
  if (body.find(R"("stream":true)") != std::string_view::npos) {
    peer.events_left = stream_.events;
    peer.next_event = std::chrono::steady_clock::now();
    peer.facts = said;
    ++streams_;
    return send_all(peer.fd.get(), kStreamHead);
  }
  if (call == "POST /completion") {
    return send_all(
        peer.fd.get(),
        json_answer(R"({"index":0,"content":"ok","stop":true,"tokens_evaluated":)" +
                    std::to_string(talk.tokens) + R"(,"tokens_predicted":1,)" + said + "}"));
  }
  return send_all(
      peer.fd.get(),
      json_answer(
          R"({"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"ok"}}],"created":1,"model":"m","object":"chat.completion",)" +
          said + "}"));
}

// Like llama-server, ends the connection after a stream without saying so.
void Upstream::send_due_events() {
  if (streams_ == 0) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  std::vector<int> ended;
  for (auto& [fd, peer] : peers_) {
    if (peer->events_left == 0 || peer->next_event > now) {
      continue;
    }
    const bool last = --peer->events_left == 0;
    peer->next_event += stream_.gap;
    const std::string begin = R"(data: {"choices":[{"finish_reason":null,"index":0,"delta":)"
                              R"({"content":"word"}}],"model":"m","sent_ns":)";
    std::string text = begin + std::to_string(now_ns()) + ",";
    text += last ? peer->facts + "}\n\ndata: [DONE]\n\n"
                 : std::string(R"("object":"chat.completion.chunk"})") + "\n\n";
    text = chunk(text);
    const bool sent = send_all(fd, last ? text + "0\r\n\r\n" : text);
    if (last || !sent) {
      streams_ -= 1;
      ended.push_back(fd);
    }
  }
  for (const int fd : ended) {
    peers_.erase(fd);
  }
}

void Upstream::ask_scripted(Peer& peer, std::string_view head, std::string_view body) {
  const auto first = head.find(' ');
  const std::string_view target = head.substr(first + 1, head.find(' ', first + 1) - first - 1);
  const HttpResponse said = request(scripted_.port(), head.substr(0, first), target, body,
                                    {{"Content-Type", "application/json"}});
  send_all(peer.fd.get(), whole_answer(said.status, said.header("content-type"), said.body));
}

}  // namespace bench
