#include "recorder.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tokid {

using toki::Errc;
using toki::Error;
using toki::LogLevel;

toki::Result<Recorder> Recorder::open(const std::string& path, std::uint64_t max_bytes,
                                      toki::LogSink log) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK,
                        S_IRUSR | S_IWUSR);
  struct stat about {};
  if (fd < 0 || ::fstat(fd, &about) != 0) {
    const Error error{Errc::invalid_argument,
                      fmt::format("--record {}: {}", path, std::strerror(errno))};
    if (fd >= 0) ::close(fd);
    return error;
  }
  Recorder recorder(fd, path, max_bytes, std::move(log));
  recorder.bytes_ = static_cast<std::uint64_t>(about.st_size);
  return recorder;
}

Recorder::Recorder(int fd, std::string path, std::uint64_t max_bytes, toki::LogSink log)
    : fd_(fd), path_(std::move(path)), max_bytes_(max_bytes), log_(std::move(log)) {}

Recorder::Recorder(Recorder&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      max_bytes_(other.max_bytes_),
      bytes_(other.bytes_),
      recorded_(other.recorded_),
      log_(std::move(other.log_)) {}

Recorder::~Recorder() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void Recorder::end(const std::string& why) {
  ::close(fd_);
  fd_ = -1;
  log_(LogLevel::warn, fmt::format("requests are recorded no more: {}: {}", path_, why));
}

void Recorder::record(std::string_view path, std::string_view body, std::int64_t unix_ms) {
  if (fd_ < 0) {
    return;
  }
  std::string line = fmt::format(R"({{"path":"{}","at_ms":{},"body":)", path, unix_ms);
  line.reserve(line.size() + body.size() + 2);
  line += body;
  if (body.find('\n') != body.npos || body.find('\r') != body.npos) {
    std::erase_if(line, [](char c) { return c == '\n' || c == '\r'; });
  }
  line += "}\n";
  struct stat about {};  // others may have cut the file, or a rotation emptied it
  if (::fstat(fd_, &about) == 0) {
    bytes_ = static_cast<std::uint64_t>(about.st_size);
  }
  if (bytes_ + line.size() > max_bytes_) {
    end("it is full (--record-mib)");
    return;
  }
  ssize_t written = 0;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    bytes_ += line.size();
    ++recorded_;
    return;
  }
  const std::string why = written < 0 ? std::strerror(errno) : "not all of a line could be written";
  if (written > 0) {
    (void)!::ftruncate(fd_, static_cast<off_t>(bytes_));  // half a line helps nobody
  }
  end(why);
}

void Recorder::add_to(toki::Stats& stats) const noexcept {
  stats.recorded_total = recorded_;
  stats.recording = fd_ >= 0 ? 1 : 0;
}

}  // namespace tokid
