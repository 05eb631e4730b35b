// tokid's log: lines on stderr, as text or as one JSON object each. No prompt text, key or query is
// ever in one. While the event loop runs, what is logged in one of its turns goes
// out in one write, when the turn's answers are on their way; warnings and errors at once.
//
// Threads:   any.
// Ownership: the executor's context must outlive the LogGathering.
// Errors:    what cannot be written is lost. A crash loses the lines of its turn.
#pragma once

#include <toki/http/proxy.hpp>
#include <toki/log.hpp>

#include <boost/asio/any_io_executor.hpp>

#include <string>
#include <string_view>

namespace tokid {

enum class LogFormat : std::uint8_t { text, json };

/// To be called once.
void start_log(const std::string& level, LogFormat format);

void log_line(toki::LogLevel level, std::string_view text);

/// The line of one request; `backend`: which of several, else empty.
void log_request(const toki::http::RequestReport& report, std::string_view backend);

/// Lines are gathered as long as it lives.
class LogGathering {
 public:
  explicit LogGathering(boost::asio::any_io_executor executor);
  ~LogGathering();
  LogGathering(const LogGathering&) = delete;
  LogGathering& operator=(const LogGathering&) = delete;
};

}  // namespace tokid
