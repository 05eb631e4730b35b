// The Asio driver: waits for a Backend's completions in coroutines and runs a ticket's steps.
//
// Threads:   the coroutine resumes on its own executor, whatever thread completed the call.
// Ownership: nothing is kept.
// Errors:    as the backend's completions say.
// Cost:      one small allocation and one post a call.
#pragma once

#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/result.hpp>
#include <toki/step_report.hpp>

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace toki::http {

/// Starts one call of a Backend and waits for its end:
///     auto tokens = co_await await<Tokens>([&](auto done) { backend.render(source,
///     std::move(done)); });
/// GCC 12 destroys a capturing lambda twice when it stands inside a co_await expression: name it
/// first, or capture only references, as here.
template <class T, class Start>
boost::asio::awaitable<Result<T>> await(Start start) {
  namespace asio = boost::asio;
  auto initiate = [&start](auto handler) {
    using Handler = decltype(handler);
    auto shared = std::make_shared<Handler>(std::move(handler));
    auto executor = asio::get_associated_executor(*shared);
    auto work = asio::make_work_guard(executor);
    start(Completion<T>([shared, executor, work](Result<T> result) mutable {
      auto value = std::make_shared<Result<T>>(std::move(result));
      asio::post(executor, [shared, value] { std::move (*shared)(std::move(*value)); });
      work.reset();
    }));
  };
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(Result<T>)>(
      initiate, asio::use_awaitable);
}

/// Calls of a Backend as coroutines. LlamaServerBackend has the same calls itself, and there leaving
/// the coroutine ends the call.
struct AwaitedBackend {
  Backend& backend;  ///< must outlive what is asked of it

  /// Backend::save().
  boost::asio::awaitable<Result<Timed>> async_save(SlotId slot, std::string_view name) {
    auto start = [&](Completion<Timed> done) { backend.save(slot, name, std::move(done)); };
    co_return co_await await<Timed>(start);
  }
  /// Backend::restore().
  boost::asio::awaitable<Result<Timed>> async_restore(SlotId slot, std::string_view name) {
    auto start = [&](Completion<Timed> done) { backend.restore(slot, name, std::move(done)); };
    co_return co_await await<Timed>(start);
  }
  /// Backend::erase().
  boost::asio::awaitable<Result<Done>> async_erase(SlotId slot) {
    auto start = [&](Completion<Done> done) { backend.erase(slot, std::move(done)); };
    co_return co_await await<Done>(start);
  }
  /// Backend::prefill().
  boost::asio::awaitable<Result<Prefilled>> async_prefill(SlotId slot, TokenSpan prompt) {
    auto start = [&](Completion<Prefilled> done) {
      backend.prefill(slot, prompt, std::move(done));
    };
    co_return co_await await<Prefilled>(start);
  }
};

/// Tells the store of a save or restore that ends with its coroutine: the caller left.
class OpenFile {
 public:
  /// For the file of a save, or of a restore.
  OpenFile(StoreWorker& store, std::string name, bool saving)
      : store_(store), name_(std::move(name)), saving_(saving) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (open_) {
      saving_ ? store_.discard(name_)
              : store_.end_restore(name_, Error{Errc::cancelled, "the caller left"});
    }
  }
  /// The store was told, or will be: nothing is left to do here.
  void ended() { open_ = false; }
  /// Of the file.
  const std::string& name() const { return name_; }

 private:
  StoreWorker& store_;
  std::string name_;
  bool saving_;
  bool open_ = true;
};

/// A state that a store made ready, the restore that may use it, and how that ended.
struct Prepared {
  Result<Restorable> state;                 ///< what the store made, or why not
  std::unique_ptr<OpenFile> file;           ///< tells the store if nobody comes for it
  std::optional<Result<Timed>> restored{};  ///< none: the backend was not asked yet
  bool overtaken = false;  ///< by the request that was sent behind it, or so it seems
};
using Preparation = std::optional<Prepared>;  ///< none: the store was not asked

/// Part of run_steps(): lets the store make the step's state ready.
inline boost::asio::awaitable<void> prepare_restore(const Step& step, StoreWorker& store,
                                                    Preparation& out) {
  auto state = co_await store.begin_restore(step);
  std::unique_ptr<OpenFile> file;
  if (state) {
    file = std::make_unique<OpenFile>(store, state->file, false);
  }
  out.emplace(Prepared{std::move(state), std::move(file)});
}

/// When a ticket's request may be sent: when its steps are done, or shortly behind the restore that is
/// its last one. The backend works off what it is asked in the order of asking, once between two
/// batches: so a save, the restore behind it and the request behind that wait for one batch together.
/// The order is that of several connections, hence Ticket::apart().
class Departure {
 public:
  /// `answered`: the request's answer has begun. Both must outlive it.
  Departure(boost::asio::any_io_executor executor, const Ticket& ticket, const bool& answered)
      : opened_(std::move(executor), boost::asio::steady_timer::time_point::max()),
        ticket_(ticket),
        answered_(answered) {}

  /// The request may be sent.
  void open() {
    open_ = true;
    opened_.cancel();
  }
  /// Until it may be. Throws operation_aborted when it is cancelled.
  boost::asio::awaitable<void> wait() {
    while (!open_) {
      co_await opened_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
      const auto state = co_await boost::asio::this_coro::cancellation_state;
      if (state.cancelled() != boost::asio::cancellation_type::none) {
        throw boost::system::system_error(boost::asio::error::operation_aborted);
      }
    }
  }
  /// Ticket::may_send_behind().
  bool may_open_early() const { return ticket_.may_send_behind(); }
  /// Returns only by being cancelled.
  boost::asio::awaitable<void> open_soon() {
    boost::asio::steady_timer timer(opened_.get_executor(), ticket_.apart());
    co_await timer.async_wait(boost::asio::use_awaitable);
    open();
    timer.expires_at(boost::asio::steady_timer::time_point::max());
    co_await timer.async_wait(boost::asio::use_awaitable);
  }
  /// The request's answer has begun.
  bool answered() const { return answered_; }

 private:
  boost::asio::steady_timer opened_;
  const Ticket& ticket_;
  const bool& answered_;
  bool open_ = false;
};

/// Part of run_steps(): the backend restores what was made ready.
template <class AnyBackend>
boost::asio::awaitable<void> ask_restore(const Step& step, AnyBackend& backend, Prepared& prepared,
                                         Departure* departure) {
  using namespace boost::asio::experimental::awaitable_operators;
  auto restoring = backend.async_restore(step.slot, prepared.file->name());
  if (departure == nullptr || !departure->may_open_early()) {
    prepared.restored = co_await std::move(restoring);
    co_return;
  }
  auto opening = departure->open_soon();
  auto ended = co_await (std::move(restoring) || std::move(opening));
  prepared.restored = std::get<0>(std::move(ended));
  prepared.overtaken = departure->answered();
}

/// Part of run_steps(): the restore that comes behind a save, begun `apart` after it.
template <class AnyBackend>
boost::asio::awaitable<void> restore_behind(std::chrono::milliseconds apart, const Step& step,
                                            AnyBackend& backend, StoreWorker& store,
                                            Preparation& out, Departure* departure) {
  boost::asio::steady_timer begin(co_await boost::asio::this_coro::executor, apart);
  co_await prepare_restore(step, store, out);
  co_await begin.async_wait(boost::asio::use_awaitable);
  if (out->state) {
    co_await ask_restore(step, backend, *out, departure);
  }
}

/// How a save ended. Behind the restore that was asked for later it holds another conversation.
template <class Saving>
boost::asio::awaitable<Result<Timed>> save_first(Saving saving, const Preparation& behind,
                                                 bool& overtaken) {
  auto saved = co_await std::move(saving);
  overtaken = saved && behind && behind->restored && *behind->restored;
  if (overtaken) {
    co_return Error{Errc::backend, "the restore behind the save was done first"};
  }
  co_return saved;
}

/// A save that the request need not wait for (Step::later) is taken by the store while the backend
/// goes on; and while the backend saves, the store prepares what is restored next.
template <class AnyBackend>
boost::asio::awaitable<StepReport> run_save(Ticket& ticket, const Step& step, AnyBackend& backend,
                                            StoreWorker* store, Preparation& prepared,
                                            Departure* departure) {
  using namespace boost::asio::experimental::awaitable_operators;
  if (store == nullptr) {
    co_return step_without_store();
  }
  auto name = store->begin_save(step);
  if (!name) {
    co_return failed_step(name.error());
  }
  OpenFile file(*store, std::move(*name), true);
  const bool later = step.later && !store->behind();
  const Step* behind = later ? ticket.begin_behind() : nullptr;
  bool overtaken = false;
  auto saving = save_first(backend.async_save(step.slot, file.name()), prepared, overtaken);
  std::optional<Result<Timed>> saved;
  if (behind != nullptr) {
    auto restoring = restore_behind(ticket.apart(), *behind, backend, *store, prepared, departure);
    saved = co_await (std::move(saving) && std::move(restoring));
  } else {
    saved = co_await std::move(saving);
  }
  if (!*saved) {
    StepReport failed = failed_step(saved->error());
    failed.overtaken = overtaken;
    co_return failed;
  }
  file.ended();
  if (later) {
    store->end_save_later(step, file.name(), **saved, ticket.stored());
    co_return pending_report(**saved);
  }
  auto taken = co_await store->end_save(step, file.name(), **saved);
  co_return save_report(**saved, std::move(taken));
}

/// Part of run_steps(): one restore, from what a save before it has made ready where it did.
template <class AnyBackend>
boost::asio::awaitable<StepReport> run_restore(const Step& step, AnyBackend& backend,
                                               StoreWorker* store, Preparation prepared,
                                               Departure* departure = nullptr) {
  if (store == nullptr) {
    co_return step_without_store();
  }
  if (!prepared) {
    co_await prepare_restore(step, *store, prepared);
  }
  if (!prepared->state) {
    co_return failed_step(prepared->state.error());
  }
  if (!prepared->restored) {
    co_await ask_restore(step, backend, *prepared, departure);
  }
  const Result<Timed>& restored = *prepared->restored;
  prepared->file->ended();
  store->end_restore(prepared->file->name(), restored);
  StepReport report = restore_report(step, std::move(*prepared->state), restored);
  report.overtaken = prepared->overtaken;
  co_return report;
}

/// Part of run_steps(): one step.
template <class AnyBackend>
boost::asio::awaitable<StepReport> run_step(Ticket& ticket, const Step& step, AnyBackend& backend,
                                            StoreWorker* store, Preparation& prepared,
                                            Departure* departure) {
  switch (step.kind) {
    case Step::Kind::save:
      co_return co_await run_save(ticket, step, backend, store, prepared, departure);
    case Step::Kind::restore: {
      Preparation made = std::exchange(prepared, std::nullopt);
      co_return co_await run_restore(step, backend, store, std::move(made), departure);
    }
    case Step::Kind::prefill: {
      const auto done = co_await backend.async_prefill(step.slot, step.tokens);
      co_return prefill_report(done);
    }
    case Step::Kind::erase: break;
  }
  const auto done = co_await backend.async_erase(step.slot);
  co_return erase_report(done);
}

/// Runs all steps of the ticket in order and tells it how each ended. `store`: over what the engine
/// was told to use (Engine::use_store), or null. `departure`: opened when the request may be sent;
/// without one it is sent when this has ended.
template <class AnyBackend>
boost::asio::awaitable<void> run_steps(Ticket& ticket, AnyBackend& backend,
                                       StoreWorker* store = nullptr,
                                       Departure* departure = nullptr) {
  Preparation prepared;  // for the restore that comes next
  while (const Step* step = ticket.next_step()) {
    StepReport report = co_await run_step(ticket, *step, backend, store, prepared, departure);
    ticket.step_done(std::move(report));
  }
  if (departure != nullptr) {
    departure->open();
  }
}

}  // namespace toki::http
