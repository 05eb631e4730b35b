// tokid's log: lines on stderr. While the event loop runs, what is logged in one of its turns goes
// out in one write, when the turn's answers are on their way; warnings and errors at once.
//
// Threads:   any.
// Ownership: the executor's context must outlive gather_log().
// Errors:    what cannot be written is lost. A crash loses the lines of its turn.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <string>

namespace tokid {

/// To be called once.
void start_log(const std::string& level);

/// Lines are gathered as long as it lives.
class LogGathering {
 public:
  explicit LogGathering(boost::asio::any_io_executor executor);
  ~LogGathering();
  LogGathering(const LogGathering&) = delete;
  LogGathering& operator=(const LogGathering&) = delete;
};

}  // namespace tokid
