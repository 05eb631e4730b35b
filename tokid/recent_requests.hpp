// The last requests for a slot, for people who look: figures only, never prompt text.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: keeps copies.
// Errors:    none.
// Cost:      one line of JSON a request, some 400 bytes, for the last 256 of them.
#pragma once

#include <toki/http/proxy.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace tokid {

class RecentRequests {
 public:
  static constexpr std::size_t kKept = 256;

  /// Requests that need no slot are left out. `ended_ms`: Unix time.
  void add(const toki::http::RequestReport& report, std::int64_t ended_ms);
  /// {"last":N,"requests":[...]}, the newest first, only those with a number above `after`.
  std::string to_json(std::uint64_t after) const;

 private:
  std::deque<std::string> rows_;  // the newest last
  std::uint64_t last_ = 0;        // its number
};

}  // namespace tokid
