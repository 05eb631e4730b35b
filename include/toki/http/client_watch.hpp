// ClientWatch: ends the coroutine that works for a client when the client closes its side.
//
// Threads:   one thread (or strand).
// Ownership: stream and signal must outlive it. The signal's slot belongs to the coroutine that
//            serves the client (TaskGroup::spawn).
// Errors:    what the coroutine waits for ends with operation_aborted, and its next wait throws.
// Cost:      one system call a request and no coroutine: what waits for the client's end stays for
//            the next request.
#pragma once

#include <toki/export.hpp>
#include <toki/http/stream.hpp>

#include <boost/asio/cancellation_signal.hpp>

#include <memory>

namespace toki::http {

/// Ends the work for a client that leaves.
class TOKI_EXPORT ClientWatch {
 public:
  /// `serving` is emitted when the client leaves; both must outlive it.
  ClientWatch(Stream& client, boost::asio::cancellation_signal& serving);
  ~ClientWatch();
  ClientWatch(const ClientWatch&) = delete;
  ClientWatch& operator=(const ClientWatch&) = delete;

  /// From begin() to end() a client that closes its side, even only for sending, ends the coroutine.
  void begin();
  /// From here on nothing ends the coroutine.
  void end() noexcept;
  /// It did. The coroutine cannot wait for anything any more.
  bool left() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Watches as long as it lives.
class Watched {
 public:
  /// `watch` must outlive it.
  explicit Watched(ClientWatch& watch) : watch_(watch) { watch_.begin(); }
  ~Watched() { watch_.end(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  ClientWatch& watch_;
};

}  // namespace toki::http
