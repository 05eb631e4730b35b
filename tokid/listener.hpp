// Where clients connect: a TCP address, or a Unix socket.
#pragma once

#include <toki/http/stream.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace tokid {

struct ListenAddress {
  std::string host;  // an IP address, without brackets
  std::uint16_t port = 0;
  std::string path;      // of a Unix socket; then host is empty
  unsigned mode = 0600;  // of its file

  /// "ADDRESS:PORT", "[ADDRESS]:PORT" or "unix:/PATH", which is also how read_listen() reads it.
  std::string name() const;
};

toki::Result<ListenAddress> read_listen(const std::string& text);

/// Removes the file of a Unix socket that nobody listens on any more. Errc::busy: somebody does;
/// Errc::invalid_argument: the file is no socket.
toki::Status remove_dead_socket(const std::string& path);

class Listener {
 public:
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

  explicit Listener(const boost::asio::any_io_executor& executor) : acceptor_(executor) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { close(); }

  toki::Status open(const ListenAddress& address);
  /// Also removes its socket file, unless another one took its place.
  void close();

  Acceptor& acceptor() { return acceptor_; }
  /// With the port that was taken.
  const ListenAddress& address() const { return address_; }

 private:
  Acceptor acceptor_;
  ListenAddress address_;
  dev_t device_ = 0;  // of the socket file
  ino_t file_ = 0;
};

}  // namespace tokid
