// Stream: one connection (TCP, Unix socket, either with TLS on it) whose waits end at a deadline, and
// HTTP messages read from it.
//
// Threads:   one thread (or strand); one read and one write may be under way at once.
// Ownership: owns its socket; destroying it ends what waits.
// Errors:    error codes; beast::error::timeout when the deadline has passed. With TLS an end that
//            the other side did not announce is connection_reset, never eof.
// Cost:      moving the deadline later is a store: its timer is set only when it would ring too
//            late. A write that the kernel takes at once is one system call and no hop through the
//            executor.
#pragma once

#include <toki/export.hpp>
#include <toki/http/tls.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace toki::http {

/// How an operation ended, and how many bytes it moved.
struct Moved {
  boost::beast::error_code ec;  ///< how it ended
  std::size_t bytes = 0;        ///< that it moved before that
};

/// One connection: TCP, a Unix socket, or TLS over either. One read and one write may wait at a
/// time; each ends at the deadline that was set last.
class TOKI_EXPORT Stream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;      ///< of either family
  using Endpoint = boost::asio::generic::stream_protocol::endpoint;  ///< of either family

  /// Not connected yet.
  explicit Stream(const boost::asio::any_io_executor& executor);
  /// Connected by somebody else.
  explicit Stream(Socket socket);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// For its options; reading and writing belong to this class.
  Socket& socket() noexcept;
  /// On which its waits resume.
  boost::asio::any_io_executor executor();

  /// For all that waits from now on, until it is called again.
  void expires_after(std::chrono::nanoseconds limit);
  /// Waits have no deadline from now on.
  void expires_never() noexcept;
  bool expired() const noexcept;  ///< the deadline has passed

  /// To the first of them that accepts, in order.
  boost::asio::awaitable<boost::beast::error_code> connect(const std::vector<Endpoint>& endpoints);
  /// TLS from now on, as the server. Errc::invalid_argument: the client sent HTTP in plain; then the
  /// stream is as it was without TLS, and those bytes are lost.
  boost::asio::awaitable<Status> accept_tls(const TlsContext& context);
  /// TLS from now on, as a client of `host`.
  boost::asio::awaitable<Status> begin_tls(const TlsContext& context, const std::string& host);
  /// TLS is spoken.
  bool encrypted() const noexcept;

  /// At least one byte, or an error: boost::asio::error::eof where the other side has ended.
  boost::asio::awaitable<Moved> read_some(boost::asio::mutable_buffer into);
  /// What the kernel takes at once of `pieces`, in order; would_block when that is not all. Then
  /// write_rest() sends what is left, of the same pieces.
  Moved try_write(std::span<const boost::asio::const_buffer> pieces);
  /// All of `pieces` behind the first `sent` bytes.
  boost::asio::awaitable<Moved> write_rest(std::span<const boost::asio::const_buffer> pieces,
                                           std::size_t sent);

  /// The same for a request, with its own deadline: `limit` for each piece that goes. Ends without an
  /// error when the other side says something before all went (not told where it speaks TLS), but for
  /// the first byte: then that is boost::asio::error::eof.
  boost::asio::awaitable<Moved> write_request(std::span<const boost::asio::const_buffer> pieces,
                                              std::size_t sent, std::chrono::nanoseconds limit);

  /// Open, and with nothing to read. REQUIRES (this and hung_up): no read is under way.
  bool quiet();
  /// The other side has ended its sending, whether or not bytes came before that, or is gone.
  bool hung_up();

  /// Ends what waits, with operation_aborted.
  void cancel();
  /// Nothing more is sent: the other side reads an orderly end.
  void end_sending();
  /// At once; what waits ends with an error.
  void close();

  /// beast::error::timeout for what the deadline cancelled, else `ec`.
  boost::beast::error_code reason(boost::beast::error_code ec) const;

 private:
  struct State;
  boost::asio::awaitable<Status> handshake();
  boost::asio::awaitable<boost::beast::error_code> ready(bool to_read);
  boost::asio::awaitable<Moved> read_decrypted(boost::asio::mutable_buffer into);
  boost::asio::awaitable<Moved> encrypt_rest(std::span<const boost::asio::const_buffer> pieces,
                                             std::size_t sent);

  std::shared_ptr<State> state_;
};

/// Of one chunk of a request, with its semicolons. A longer one whose line is not whole yet ends the
/// reading; of a whole line the parser's owner is told its extensions (on_chunk_header).
inline constexpr std::size_t kMostChunkExtension = std::size_t{4} * 1024;

/// What lies in `buffer` first, then more from the stream; what follows the message stays there.
/// read_some() returns as soon as it came further, which may be within a header. Empty lines (CRLF)
/// before a request are left out.
template <bool kRequest>
boost::asio::awaitable<Moved> read_header(Stream& stream, boost::beast::flat_buffer& buffer,
                                          boost::beast::http::basic_parser<kRequest>& parser);
template <bool kRequest>
/// What came of the message; the parser says how far it is.
boost::asio::awaitable<Moved> read_some(Stream& stream, boost::beast::flat_buffer& buffer,
                                        boost::beast::http::basic_parser<kRequest>& parser);
/// The whole message.
template <bool kRequest>
boost::asio::awaitable<Moved> read_all(Stream& stream, boost::beast::flat_buffer& buffer,
                                       boost::beast::http::basic_parser<kRequest>& parser);

}  // namespace toki::http
