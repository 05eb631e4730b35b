#include <toki/http/async_driver.hpp>
#include <toki/http/housekeeper.hpp>

#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <utility>

#include "http/idle_looks.hpp"

namespace toki::http {

namespace asio = boost::asio;

namespace {

constexpr Millis kLook{250};
constexpr Millis kBusyPause{20};     // of a flush, while slots are busy
constexpr int kDiscardLooks = 4;     // once a second
constexpr int kMaintainLooks = 240;  // once a minute

}  // namespace

Housekeeper::Housekeeper(const asio::any_io_executor& executor, Engine& engine,
                         LlamaServerBackend& backend, StoreWorker* store, LogSink log)
    : engine_(engine), backend_(backend), store_(store), log_(std::move(log)), timer_(executor) {}

// Saving may stop and begin again by itself: that is said.
void Housekeeper::watch() {
  const Stats stats = engine_.stats();
  const bool saves = stats.can_save != 0;
  if (saves_ && !saves && log_) {
    log_(LogLevel::warn, "slot states are not saved for now; save_failures_total is " +
                             std::to_string(stats.save_failures_total) +
                             ", restore_failures_total is " +
                             std::to_string(stats.restore_failures_total));
  } else if (!saves_ && saves && log_ && stats.save_failures_total > 0) {
    log_(LogLevel::info, "slot states are saved again");
  }
  saves_ = saves;
}

asio::awaitable<Housekeeper::Chore> Housekeeper::do_one(bool while_busy) {
  auto chore = engine_.begin_chore(while_busy);
  if (!chore) {
    co_return Chore::none;
  }
  co_await run_steps(*chore, backend_, store_);
  const bool done = chore->trouble().empty();
  std::move(*chore).dismiss({}, SlotContent::unknown);
  co_return done ? Chore::done : Chore::failed;
}

asio::awaitable<void> Housekeeper::run() {
  IdleLooks looks;
  for (int look = 1;; ++look) {
    timer_.expires_after(kLook);
    co_await timer_.async_wait(asio::use_awaitable);
    watch();
    if (looks.idle(engine_)) {
      while (co_await do_one(false) != Chore::none) {
      }
    }
    if (store_ == nullptr) {
      continue;
    }
    store_->discard_again();
    if (look % kDiscardLooks == 0) {
      store_->discard_other_runs(engine_.file_prefix());
    }
    if (look % kMaintainLooks == 0) {
      store_->maintain();
    }
  }
}

asio::awaitable<Flushed> Housekeeper::flush(Millis limit) {
  asio::steady_timer pause(timer_.get_executor());
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto in_time = [&] { return std::chrono::steady_clock::now() < deadline; };
  Flushed result;
  for (;;) {
    for (Chore last = Chore::done; in_time() && last != Chore::none;) {
      last = co_await do_one(true);
      result.saved += last == Chore::done ? 1 : 0;
    }
    if (store_ != nullptr) {
      (void)co_await store_->settled();
    }
    result.unsaved = engine_.unsaved();
    if (result.unsaved.empty() || !in_time() || engine_.stats().can_save == 0) {
      co_return result;
    }
    pause.expires_after(kBusyPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

}  // namespace toki::http
