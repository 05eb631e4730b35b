#include "listener.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace tokid {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using toki::Errc;
using toki::Error;
using toki::Status;

namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kWaiting = 1024;  // connections that were not accepted yet

Error failed(const std::string& path, int number) {
  return {Errc::unavailable, fmt::format("{}: {}", path, std::strerror(number))};
}

}  // namespace

std::string ListenAddress::name() const {
  if (!path.empty()) {
    return fmt::format("{}{}", kUnix, path);
  }
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

toki::Result<ListenAddress> read_listen(const std::string& text) {
  const auto bad = [&](std::string_view why) {
    return Error{Errc::invalid_argument, fmt::format("--listen {}: {}", text, why)};
  };
  ListenAddress address;
  if (text.starts_with(kUnix)) {
    address.path = text.substr(kUnix.size());
    if (!address.path.starts_with('/')) {
      return bad("the socket's path must be absolute");
    }
    return address.path.size() < sizeof(sockaddr_un::sun_path)
               ? toki::Result(std::move(address))
               : bad("the socket's path is too long");
  }
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) {
    return bad("expected ADDRESS:PORT or unix:/PATH");
  }
  std::string host = text.substr(0, colon);
  if (host.empty()) {
    return bad("the address is missing");
  }
  const std::string port = text.substr(colon + 1);
  const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || ec != std::errc{} || end != port.data() + port.size()) {
    return bad("the port is not a number from 0 to 65535");
  }
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  address.host = host == "localhost" ? "127.0.0.1" : host;
  error_code wrong;
  asio::ip::make_address(address.host, wrong);
  if (wrong) {
    return bad("the address is no IP address");
  }
  return address;
}

Status remove_dead_socket(const std::string& path) {
  struct stat file {};
  if (::lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? Status(toki::Done{}) : Status(failed(path, errno));
  }
  if (!S_ISSOCK(file.st_mode)) {
    return Error{Errc::invalid_argument, path + " is there and is no socket"};
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) {
    return failed(path, errno);
  }
  const bool refused =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  ::close(probe);
  if (!refused) {
    return Error{Errc::busy, path + ": address in use"};
  }
  return ::unlink(path.c_str()) == 0 ? Status(toki::Done{}) : Status(failed(path, errno));
}

Status Listener::open(const ListenAddress& address) {
  asio::generic::stream_protocol::endpoint endpoint;
  error_code ec;
  if (address.path.empty()) {
    endpoint = tcp::endpoint(asio::ip::make_address(address.host, ec), address.port);
  } else {
    if (auto status = remove_dead_socket(address.path); !status) {
      return Error{Errc::unavailable,
                   fmt::format("cannot listen on {}: {}", address.name(), status.error().detail)};
    }
    endpoint = asio::local::stream_protocol::endpoint(address.path);
  }
  if (!ec) acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
  // The file gets the socket's mode, less the umask: there is no moment at which others can open it.
  if (!ec && !address.path.empty() && ::fchmod(acceptor_.native_handle(), 0600) != 0) {
    ec.assign(errno, boost::system::system_category());
  }
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec && !address.path.empty() && ::chmod(address.path.c_str(), address.mode) != 0) {
    ec.assign(errno, boost::system::system_category());
  }
  if (!ec) acceptor_.listen(kWaiting, ec);
  if (ec) {
    return Error{Errc::unavailable,
                 fmt::format("cannot listen on {}: {}", address.name(), ec.message())};
  }
  address_ = address;
  if (address.path.empty()) {
    tcp::endpoint taken;
    const auto bound = acceptor_.local_endpoint();
    std::memcpy(taken.data(), bound.data(), bound.size());
    address_.port = taken.port();
  } else if (struct stat made{}; ::lstat(address.path.c_str(), &made) == 0) {
    device_ = made.st_dev;
    file_ = made.st_ino;
  }
  return toki::Done{};
}

void Listener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  struct stat now {};
  if (file_ != 0 && ::lstat(address_.path.c_str(), &now) == 0 && now.st_dev == device_ &&
      now.st_ino == file_) {
    ::unlink(address_.path.c_str());
  }
  file_ = 0;
}

}  // namespace tokid
