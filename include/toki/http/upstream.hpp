// Upstream: one HTTP server behind us (over TCP, TLS or a Unix socket), its address and a few idle
// connections to it.
//
// Threads:   one thread (or strand) at a time; coroutines run on the executor given.
// Ownership: must outlive the connections taken from it.
// Errors:    values: Errc::unavailable (cannot connect), timed_out, backend (broken HTTP).
// Cost:      a kept connection saves about 0.1 ms on loopback. llama-server spends one of its few
//            HTTP threads on each idle connection for five seconds: so two are kept, and more only
//            while they are used again within a quarter of a second.
#pragma once

#include <toki/export.hpp>
#include <toki/http/stream.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

using Millis = std::chrono::milliseconds;  ///< of every limit in toki::http

/// Where a server is.
struct Address {
  std::string host;               ///< name or IP address, without brackets
  std::string port;               ///< in digits
  std::string path;               ///< of a Unix socket; then host and port are empty
  bool tls = false;               ///< https
  std::string authority() const;  ///< as it stands in a Host header; "localhost" for a Unix socket
  std::string name() const;       ///< for people: the authority, or "unix:PATH"
};

/// "http://HOST[:PORT][/]", "https://HOST[:PORT][/]" or "unix:/PATH"; Errc::invalid_argument names
/// what is wrong.
TOKI_EXPORT Result<Address> parse_url(std::string_view url);

/// One connection. Destroying it closes it, which makes llama-server cancel what it does for it.
struct Connection {
  /// Not connected yet.
  explicit Connection(const boost::asio::any_io_executor& executor) : stream(executor) {}
  Stream stream;                     ///< to the server
  boost::beast::flat_buffer buffer;  ///< what was read and not used yet
  std::unique_ptr<char[]> piece;     ///< of the body that passes, made by whoever passes one
  bool reused = false;               ///< it was kept after an earlier exchange
  bool cut = false;                  ///< its request was answered before all of it was taken
  std::chrono::steady_clock::time_point idle_since{};  ///< when it was given back
  std::shared_ptr<const void> counted;                 ///< by Upstream::in_use()
};

/// A whole small answer.
struct Reply {
  unsigned status = 0;  ///< of it
  std::string body;     ///< all of it
};

/// One server and a few connections to it that are kept.
class TOKI_EXPORT Upstream {
 public:
  static constexpr std::size_t kMaxIdle = 2;    ///< connections that are kept
  static constexpr std::size_t kMaxBurst = 64;  ///< idle for less than kBurstAge
  static constexpr Millis kBurstAge{250};       ///< for so long more of them are
  static constexpr Millis kMaxIdleAge{4000};    ///< below llama-server's own five seconds
  static constexpr Millis kConnectLimit{5000};  ///< connecting, with TLS the handshake too
  static constexpr std::size_t kMaxReplyBytes = std::size_t{512} << 20;  ///< of an answer to call()

  /// `tls`: whom to trust behind an address with TLS; none: the system's authorities.
  Upstream(boost::asio::any_io_executor executor, Address address, std::string key,
           TlsContext tls = {});

  /// As it was made.
  const Address& address() const noexcept { return address_; }
  /// "Bearer …" for the server, or empty: then the client's own Authorization is passed on.
  const std::string& authorization() const noexcept { return authorization_; }

  /// Why the last try to speak TLS failed; empty: it did not.
  const std::string& tls_failure() const noexcept { return tls_failure_; }

  /// For a connection whose last answer was read whole and may be used again.
  void give_back(std::unique_ptr<Connection> connection);
  /// Closes what is kept, and keeps nothing from now on. Before that, the deadlines of kept
  /// connections keep an executor from running out of work.
  void keep_none();
  /// Connections on which something is under way.
  std::size_t in_use() const noexcept;
  /// True once after an idle connection was found closed by the server: it may have been restarted.
  bool take_suspicion();

  /// Sends `head` and then `body` piece by piece, on a kept connection unless `fresh`. When a kept
  /// connection turns out to be dead before a byte was taken, a new one is tried once; never
  /// otherwise, so that one request causes at most one generation. Ends early when an answer comes
  /// before all was taken: that is read then. `limit`: longest time in which nothing is taken.
  boost::asio::awaitable<Result<std::unique_ptr<Connection>>> send(
      std::string_view head, std::span<const std::string_view> body, bool fresh, Millis limit);

  /// A whole small exchange: JSON out, whole body in. For calls that may be repeated: one that
  /// finds its kept connection closed is sent again on a new one.
  boost::asio::awaitable<Result<Reply>> call(std::string_view method, std::string_view target,
                                             std::span<const std::string_view> body,
                                             std::string_view authorization, Millis limit);

 private:
  boost::asio::awaitable<Result<std::unique_ptr<Connection>>> connect(Millis limit);
  boost::asio::awaitable<Result<std::vector<Stream::Endpoint>>> endpoints(Millis limit);
  boost::asio::awaitable<Status> encrypt(Stream& stream);
  std::unique_ptr<Connection> take_idle();
  void trim();
  void trim_later();

  boost::asio::any_io_executor executor_;
  Address address_;
  std::string authorization_;
  TlsContext tls_;
  std::string tls_failure_;
  std::vector<std::unique_ptr<Connection>> idle_;                   // the latest used last
  std::shared_ptr<boost::asio::steady_timer> trimming_;             // under way: set
  std::shared_ptr<const void> counter_ = std::make_shared<char>();  // held by each connection
  bool keeps_ = true;
  bool suspicion_ = false;
};

}  // namespace toki::http
