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
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

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
  Backend& backend;

  boost::asio::awaitable<Result<Timed>> async_save(SlotId slot, std::string_view name) {
    auto start = [&](Completion<Timed> done) { backend.save(slot, name, std::move(done)); };
    co_return co_await await<Timed>(start);
  }
  boost::asio::awaitable<Result<Timed>> async_restore(SlotId slot, std::string_view name) {
    auto start = [&](Completion<Timed> done) { backend.restore(slot, name, std::move(done)); };
    co_return co_await await<Timed>(start);
  }
  boost::asio::awaitable<Result<Done>> async_erase(SlotId slot) {
    auto start = [&](Completion<Done> done) { backend.erase(slot, std::move(done)); };
    co_return co_await await<Done>(start);
  }
  boost::asio::awaitable<Result<Prefilled>> async_prefill(SlotId slot, TokenSpan prompt) {
    auto start = [&](Completion<Prefilled> done) {
      backend.prefill(slot, prompt, std::move(done));
    };
    co_return co_await await<Prefilled>(start);
  }
};

template <class AnyBackend>
boost::asio::awaitable<StepReport> run_save(const Step& step, AnyBackend& backend,
                                            StoreWorker* store) {
  if (store == nullptr) {
    co_return step_without_store();
  }
  const auto saved = co_await backend.async_save(step.slot, step.file);
  if (!saved) {
    store->discard(step.file);
    co_return failed_step(saved.error());
  }
  auto taken = co_await store->take(step.scope, step.tokens, step.file, step.whole, step.token_ms);
  co_return save_report(*saved, std::move(taken));
}

using Composed = std::optional<Result<std::uint64_t>>;

template <class AnyBackend>
boost::asio::awaitable<StepReport> run_restore(const Step& step, AnyBackend& backend,
                                               StoreWorker* store, Composed composed = {}) {
  if (store == nullptr) {
    co_return step_without_store();
  }
  if (!composed) {
    composed = co_await store->compose(step.scope, step.tokens, step.slot.index, step.file);
  }
  if (!*composed) {
    co_return failed_step(composed->error());
  }
  const auto restored = co_await backend.async_restore(step.slot, step.file);
  store->discard(step.file);
  co_return restore_report(**composed, restored);
}

/// A save that the request need not wait for (Step::later): the store takes the state while the
/// backend goes on; and before, while the backend saves, it composes what is restored next.
template <class AnyBackend>
boost::asio::awaitable<StepReport> run_save_later(Ticket& ticket, const Step& step,
                                                  AnyBackend& backend, StoreWorker& store,
                                                  Composed& composed) {
  using namespace boost::asio::experimental::awaitable_operators;
  const Step* next = ticket.step_after();
  std::optional<Result<Timed>> saved;
  auto saving = backend.async_save(step.slot, step.file);
  if (next != nullptr && next->kind == Step::Kind::restore) {
    auto composing = store.compose(next->scope, next->tokens, next->slot.index, next->file);
    auto both = co_await (std::move(saving) && std::move(composing));
    saved = std::move(std::get<0>(both));
    composed = std::move(std::get<1>(both));
  } else {
    saved = co_await std::move(saving);
  }
  if (!*saved) {
    store.discard(step.file);
    co_return failed_step(saved->error());
  }
  store.take_later(step, ticket.stored());
  co_return pending_report(**saved);
}

template <class AnyBackend>
boost::asio::awaitable<StepReport> run_step(Ticket& ticket, const Step& step, AnyBackend& backend,
                                            StoreWorker* store, Composed& composed) {
  switch (step.kind) {
    case Step::Kind::save:
      if (step.later && store != nullptr && !store->behind()) {
        co_return co_await run_save_later(ticket, step, backend, *store, composed);
      }
      co_return co_await run_save(step, backend, store);
    case Step::Kind::restore: {
      Composed made = std::exchange(composed, std::nullopt);
      co_return co_await run_restore(step, backend, store, std::move(made));
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
/// was told to use (Engine::use_store), or null.
template <class AnyBackend>
boost::asio::awaitable<void> run_steps(Ticket& ticket, AnyBackend& backend,
                                       StoreWorker* store = nullptr) {
  Composed composed;  // for the restore that comes next
  std::string file;
  while (const Step* step = ticket.next_step()) {
    file = ticket.step_after() != nullptr ? ticket.step_after()->file : std::string();
    StepReport report = co_await run_step(ticket, *step, backend, store, composed);
    ticket.step_done(std::move(report));
  }
  if (composed) {
    store->discard(file);
  }
}

}  // namespace toki::http
