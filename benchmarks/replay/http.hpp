// One HTTP call on a connection of its own, with times. Blocking, for a thread that has nothing
// else to do; it ends early when the program shall stop. Costs two system calls for each piece that
// comes, so that the server keeps the processor.
#pragma once

#include <toki/http/upstream.hpp>
#include <toki/result.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace replay {

using Clock = std::chrono::steady_clock;
using toki::http::Address;

struct Reply {
  unsigned status = 0;
  std::string source;  ///< x-toki-source, empty without one
  std::string body;    ///< empty when its pieces were handed on
};

struct Call {
  std::string_view method = "GET";
  std::string_view path;
  std::string_view body;                                         ///< JSON, for POST
  std::chrono::milliseconds silence = std::chrono::minutes(10);  ///< longest wait for the next byte
  bool until_stop = true;                                        ///< a stop of the program ends it
  /// Gets each piece of the body of a 200 and when it came.
  std::function<void(std::string_view, Clock::time_point)> on_piece;
};

/// Errc::unavailable: nobody there, or the answer broke off; cancelled: the program shall stop.
toki::Result<Reply> call(const Address& address, const Call& call);

}  // namespace replay
