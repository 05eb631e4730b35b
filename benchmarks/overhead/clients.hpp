// Kept connections to one port, each with one request under way at a time.
//
// Threads:   the caller's.
// Ownership: owns its sockets.
// Errors:    connecting throws; a request that fails is counted, and its connection opened again.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wait.hpp"

namespace bench {

struct Load {
  double seconds = 0;
  std::vector<double> whole_us;  ///< of each request, from its first byte to its answer's last
  std::vector<double> event_us;  ///< of each event, from the upstream's write to its coming
  std::size_t failed = 0;
};

/// `POST target` with `body`, or GET where there is none.
std::string http_request(std::string_view target, std::string_view body);

class Clients {
 public:
  Clients(int port, std::size_t connections);

  /// `total` requests; connection i sends `requests[i]` (or the only one) again and again.
  Load run(const std::vector<std::string>& requests, std::size_t total);

 private:
  struct Client {
    toki::test::Fd fd;
    std::string in;
    std::size_t scanned = 0;  // of `in`, for events
    std::chrono::steady_clock::time_point begun;
    bool busy = false;
  };
  void open(std::size_t i);
  void begin(std::size_t i, const std::string& request);
  bool read(std::size_t i, Load& load);

  int port_;
  toki::test::Fd epoll_;
  std::vector<Client> clients_;
};

}  // namespace bench
