#include "log.hpp"

#include <toki/http/body_edit.hpp>

#include <boost/asio/post.hpp>
#include <fmt/compile.h>
#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <utility>

#include "json_text.hpp"

namespace tokid {
namespace {

namespace asio = boost::asio;

constexpr const char* kRequests = "requests";

class GatheredStderr final : public spdlog::sinks::base_sink<std::mutex>,
                             public std::enable_shared_from_this<GatheredStderr> {
 public:
  ~GatheredStderr() override { write_out(); }
  GatheredStderr() = default;
  GatheredStderr(const GatheredStderr&) = delete;
  GatheredStderr& operator=(const GatheredStderr&) = delete;

  void gather(asio::any_io_executor executor) {
    const std::lock_guard lock(mutex_);
    executor_ = std::move(executor);
    write_out();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    formatter_->format(message, lines_);
    if (!executor_ || message.level >= spdlog::level::warn || lines_.size() > kMostBytes) {
      write_out();
    } else if (!std::exchange(posted_, true)) {
      asio::post(executor_, [self = shared_from_this()] { self->turn_ended(); });
    }
  }
  void flush_() override { write_out(); }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{64} * 1024;
  static constexpr std::size_t kMostKept = std::size_t{1024} * 1024;

  void turn_ended() {
    const std::lock_guard lock(mutex_);
    posted_ = false;
    write_out();
  }
  // Never waits: a pipe that nobody reads must not hold up the event loop. What has no room is kept for
  // the next time, up to kMostKept, then dropped and counted.
  void write_out() {
    kept_.append(lines_.data(), lines_.size());
    lines_.clear();
    std::size_t written = 0;
    while (written < kept_.size()) {
      pollfd entry{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      if (::poll(&entry, 1, 0) != 1) {
        break;
      }
      // A pipe that is ready takes so much at once.
      const std::size_t piece = std::min<std::size_t>(kept_.size() - written, PIPE_BUF);
      const auto got = ::write(STDERR_FILENO, kept_.data() + written, piece);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        break;
      }
      written = got >= 0 ? written + static_cast<std::size_t>(got) : kept_.size();
    }
    kept_.erase(0, written);
    if (kept_.size() > kMostKept) {
      dropped_ += static_cast<std::size_t>(std::count(kept_.begin(), kept_.end(), '\n'));
      kept_.clear();
    } else if (kept_.empty() && dropped_ > 0) {
      say_dropped(std::exchange(dropped_, 0));
    }
  }
  void say_dropped(std::size_t lines) {
    const std::string text =
        fmt::format("{} lines of the log were dropped: nobody read them", lines);
    formatter_->format({"", spdlog::level::warn, text}, lines_);
    kept_.append(lines_.data(), lines_.size());
    lines_.clear();
  }

  asio::any_io_executor executor_;  // none: every line is written at once
  spdlog::memory_buf_t lines_;
  std::string kept_;         // written before what comes next
  std::size_t dropped_ = 0;  // lines
  bool posted_ = false;
};

const std::shared_ptr<GatheredStderr>& sink() {
  static const auto made = std::make_shared<GatheredStderr>();
  return made;
}

// A line's own text as a JSON string; what log_request() wrote is JSON already.
class Members final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    if (message.logger_name == spdlog::string_view_t(kRequests)) {
      out.append(text);
    } else {
      out.append(std::string_view("\"message\":"));
      out.append(toki::http::quote(printable(text)));
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Members>();
  }

 private:
  // A JSON text must be UTF-8, and a path or an error of the system may hold any byte.
  static std::string printable(std::string_view text) {
    std::string plain(text);
    std::replace_if(
        plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x7f; },
        '?');
    return plain;
  }
};

// Where the request's lines go: like all others, but their text is not text.
std::shared_ptr<spdlog::logger>& requests() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}
LogFormat written = LogFormat::text;

std::unique_ptr<spdlog::formatter> formatter_of(LogFormat format) {
  auto made = std::make_unique<spdlog::pattern_formatter>();
  if (format == LogFormat::text) {
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  } else {
    made->add_flag<Members>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%*})");
  }
  return made;
}

// Milliseconds with two decimals, without the cost of a floating point number in decimal form.
void add_ms(fmt::memory_buffer& line, std::string_view name, double ms) {
  const auto hundredths = static_cast<std::uint64_t>(std::max(ms, 0.0) * 100 + 0.5);
  fmt::format_to(std::back_inserter(line), FMT_COMPILE("{}{}.{}{}"), name, hundredths / 100,
                 hundredths / 10 % 10, hundredths % 10);
}

std::string_view or_dash(std::string_view word) {
  return word.empty() ? "-" : word;
}

std::string_view path_shown(std::string_view path) {
  const bool plain =
      std::all_of(path.begin(), path.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  return plain ? path : "-";
}

void write_text(fmt::memory_buffer& line, const toki::http::RequestReport& r,
                std::string_view backend) {
  const auto out = std::back_inserter(line);
  fmt::format_to(out, FMT_COMPILE("request id={} method={} path={} status={} ending={} slot="),
                 or_dash(r.id), r.method, path_shown(r.path), r.status, r.ending);
  r.slot ? fmt::format_to(out, FMT_COMPILE("{}"), *r.slot) : fmt::format_to(out, FMT_COMPILE("-"));
  fmt::format_to(out,
                 FMT_COMPILE(" reason={} source={} class={} prompt={} available={} predicted={} "
                             "reused={} generated={}"),
                 or_dash(r.reason), or_dash(r.source), or_dash(r.cache_class), r.prompt,
                 r.available, r.predicted, r.reused, r.generated);
  add_ms(line, " render_ms=", r.render_ms);
  add_ms(line, " queue_ms=", r.queue_ms);
  add_ms(line, " first_byte_ms=", r.first_byte_ms);
  add_ms(line, " total_ms=", r.total_ms);
  line.append(std::string_view(r.mismatch ? " mismatch=1" : ""));
  line.append(std::string_view(r.fault ? " integrity_fault=1" : ""));
  if (!backend.empty()) {
    fmt::format_to(out, FMT_COMPILE(" backend={}"), backend);
  }
  if (!r.error.empty()) {
    fmt::format_to(out, FMT_COMPILE(" error=\"{}\""), r.error);
  }
  if (!r.client.empty()) {
    fmt::format_to(out, FMT_COMPILE(" tenant={}"), r.client);
  }
}

void write_json(fmt::memory_buffer& line, const toki::http::RequestReport& r,
                std::string_view backend) {
  const auto out = std::back_inserter(line);
  fmt::format_to(
      out,
      FMT_COMPILE(R"("event":"request","id":{},"method":"{}","path":{},"status":{},"ending":"{}",)"
                  R"("slot":{},"reason":{},"source":{},"class":{},"prompt":{},"available":{},)"
                  R"("predicted":{},"reused":{},"generated":{})"),
      text_or_null(r.id), r.method, toki::http::quote(path_shown(r.path)), r.status, r.ending,
      r.slot ? std::to_string(*r.slot) : "null", text_or_null(r.reason), text_or_null(r.source),
      text_or_null(r.cache_class), r.prompt, r.available, r.predicted, r.reused, r.generated);
  add_ms(line, ",\"render_ms\":", r.render_ms);
  add_ms(line, ",\"queue_ms\":", r.queue_ms);
  add_ms(line, ",\"first_byte_ms\":", r.first_byte_ms);
  add_ms(line, ",\"total_ms\":", r.total_ms);
  fmt::format_to(
      out,
      FMT_COMPILE(R"(,"mismatch":{},"integrity_fault":{},"backend":{},"error":{},"tenant":{})"),
      r.mismatch, r.fault, text_or_null(backend), text_or_null(r.error), text_or_null(r.client));
}

}  // namespace

void start_log(const std::string& level, LogFormat format) {
  written = format;
  auto logger = std::make_shared<spdlog::logger>("tokid", sink());
  requests() = std::make_shared<spdlog::logger>(std::string(kRequests), sink());
  spdlog::set_default_logger(logger);
  spdlog::register_logger(requests());
  sink()->set_formatter(formatter_of(format));
  spdlog::set_level(spdlog::level::from_str(level));
}

void log_line(toki::LogLevel level, std::string_view text) {
  switch (level) {
    case toki::LogLevel::error: spdlog::error(text); break;
    case toki::LogLevel::warn: spdlog::warn(text); break;
    case toki::LogLevel::info: spdlog::info(text); break;
    case toki::LogLevel::debug: spdlog::debug(text); break;
  }
}

// One a request, so it counts what it costs: about a microsecond.
void log_request(const toki::http::RequestReport& report, std::string_view backend) {
  spdlog::logger& logger = *requests();
  if (!logger.should_log(spdlog::level::info)) {
    return;
  }
  fmt::memory_buffer line;
  written == LogFormat::text ? write_text(line, report, backend)
                             : write_json(line, report, backend);
  logger.log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

LogGathering::LogGathering(asio::any_io_executor executor) {
  sink()->gather(std::move(executor));
}

LogGathering::~LogGathering() {
  sink()->gather({});
}

}  // namespace tokid
