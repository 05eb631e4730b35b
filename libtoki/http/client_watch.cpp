#include <toki/http/client_watch.hpp>

#include <boost/asio/steady_timer.hpp>

#include <chrono>

namespace toki::http {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// While a pipelined request hides the end of the stream.
constexpr std::chrono::milliseconds kLookAgain{250};

}  // namespace

struct TOKI_HIDDEN ClientWatch::State : std::enable_shared_from_this<State> {
  State(Stream& c, asio::cancellation_signal& s)
      : client(c), serving(s), look_again(client.executor()) {}

  Stream& client;
  asio::cancellation_signal& serving;
  asio::steady_timer look_again;
  bool active = false;
  bool waiting = false;  // for the socket or the timer
  bool left = false;

  void wait_readable();
  void woken(const error_code& ec);
  void look();
};

// After a readable socket that is not at its end, the next look is later: it stays readable.
void ClientWatch::State::wait_readable() {
  waiting = true;
  client.socket().async_wait(Stream::Socket::wait_read,
                             [weak = weak_from_this()](const error_code& ec) {
                               if (const auto self = weak.lock()) {
                                 self->woken(ec);
                               }
                             });
}

void ClientWatch::State::woken(const error_code& ec) {
  waiting = false;
  if (!active) {
    return;  // the next request came
  }
  if (ec || client.hung_up()) {
    left = true;
    serving.emit(asio::cancellation_type::terminal);
    return;
  }
  waiting = true;
  look_again.expires_after(kLookAgain);
  look_again.async_wait([weak = weak_from_this()](const error_code&) {
    if (const auto self = weak.lock()) {
      self->look();
    }
  });
}

void ClientWatch::State::look() {
  waiting = false;
  if (active) {
    wait_readable();
  }
}

ClientWatch::ClientWatch(Stream& client, asio::cancellation_signal& serving)
    : state_(std::make_shared<State>(client, serving)) {}

ClientWatch::~ClientWatch() = default;

void ClientWatch::begin() {
  state_->active = true;
  if (!state_->waiting && !state_->left) {
    state_->wait_readable();
  }
}

void ClientWatch::end() noexcept {
  state_->active = false;
}

bool ClientWatch::left() const noexcept {
  return state_->left;
}

}  // namespace toki::http
