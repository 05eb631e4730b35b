// Recorder: the bodies of generation requests, one JSON line each, for toki-replay. Nothing of a
// header is written.
//
// Threads:   one at a time.
// Ownership: owns the file's descriptor.
// Errors:    open() tells; later a write that fails ends the recording, which is told to the log
//            once. A request never notices.
// Cost:      one write to the page cache a request, on the caller's thread: 5 us for 10 KB, 0.3 ms
//            for 1 MB at the median. A write that would wait, as to a full pipe, counts as failed.
#pragma once

#include <toki/log.hpp>
#include <toki/result.hpp>
#include <toki/stats.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace tokid {

class Recorder {
 public:
  /// Appends to `path`, of which nobody else is to write; a new file can be read by its owner only.
  /// At `max_bytes` the recording ends.
  static toki::Result<Recorder> open(const std::string& path, std::uint64_t max_bytes,
                                     toki::LogSink log);
  Recorder(Recorder&& other) noexcept;
  Recorder& operator=(Recorder&& other) = delete;
  ~Recorder();

  /// REQUIRES: `body` is checked JSON, so that a line feed in it is white space. `unix_ms`: when it
  /// came.
  void record(std::string_view path, std::string_view body, std::int64_t unix_ms);

  void add_to(toki::Stats& stats) const noexcept;

 private:
  Recorder(int fd, std::string path, std::uint64_t max_bytes, toki::LogSink log);
  void end(const std::string& why);

  int fd_;  // -1: ended
  std::string path_;
  std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;  // that the file has
  std::uint64_t recorded_ = 0;
  toki::LogSink log_;
};

}  // namespace tokid
