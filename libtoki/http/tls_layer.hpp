// TlsLayer: TLS on a socket that does not block. Each call does what can be done now and says what
// the socket has to become ready for.
#pragma once

#include <toki/http/stream.hpp>
#include <toki/http/tls.hpp>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

typedef struct ssl_st SSL;

namespace toki::http {

class TlsLayer {
 public:
  enum class Wants : std::uint8_t { nothing, read, write };
  struct Step {
    Wants wants = Wants::nothing;  // else nothing has moved
    boost::beast::error_code ec;
    std::size_t bytes = 0;
  };

  /// A server's side. REQUIRES: a context that was made for it.
  TlsLayer(const TlsContext& context, int socket);
  /// A client's side: the other one must prove that it is `host`, a name or an address.
  TlsLayer(const TlsContext& context, int socket, const std::string& host);
  ~TlsLayer();
  TlsLayer(const TlsLayer&) = delete;
  TlsLayer& operator=(const TlsLayer&) = delete;

  Step handshake();
  /// After a handshake that failed: why, and whether it began with an HTTP request in plain.
  const std::string& failure() const noexcept { return failure_; }
  bool plain_http() const noexcept { return plain_http_; }

  Step read(boost::asio::mutable_buffer into);
  /// One record of what stands behind the first `sent` bytes. Where it wants something, the next
  /// call must be for the same bytes.
  Step write(std::span<const boost::asio::const_buffer> pieces, std::size_t sent);
  /// The other side has said that nothing more comes, or is gone. Takes what has come so far from
  /// the socket.
  bool ended();
  /// There is nothing to read, and the other side has not ended.
  bool quiet();
  /// Tells the other side that nothing more comes, as far as the socket takes it.
  void shutdown();

 private:
  Step step(int result, std::size_t bytes);
  bool peek();  // for one byte: there is one

  SSL* ssl_;
  std::unique_ptr<char[]> record_;  // of pieces that are too small for one each
  std::string failure_;
  bool plain_http_ = false;
  bool broken_ = false;
};

}  // namespace toki::http
