#include "log.hpp"

#include <boost/asio/post.hpp>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

namespace tokid {
namespace {

namespace asio = boost::asio;

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

  void turn_ended() {
    const std::lock_guard lock(mutex_);
    posted_ = false;
    write_out();
  }
  void write_out() {
    std::fwrite(lines_.data(), 1, lines_.size(), stderr);
    lines_.clear();
  }

  asio::any_io_executor executor_;  // none: every line is written at once
  spdlog::memory_buf_t lines_;
  bool posted_ = false;
};

const std::shared_ptr<GatheredStderr>& sink() {
  static const auto made = std::make_shared<GatheredStderr>();
  return made;
}

}  // namespace

void start_log(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("tokid", sink());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(logger);
}

LogGathering::LogGathering(asio::any_io_executor executor) {
  sink()->gather(std::move(executor));
}

LogGathering::~LogGathering() {
  sink()->gather({});
}

}  // namespace tokid
