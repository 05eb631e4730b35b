// The blocking driver: for programs with a thread per request. Runs a ticket's steps and waits for
// each.
//
// Threads:   each call uses the calling thread; several may run at once on one Engine.
// Ownership: nothing is kept.
// Errors:    as the backend's completions say.
// Cost:      one mutex and condition variable a call, beside the backend's work.
#pragma once

#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/result.hpp>
#include <toki/state_store.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace toki {

/// Starts one call of a Backend and waits for its end:
///     auto tokens = toki::wait_for<Tokens>([&](auto done) { backend.render(source,
///     std::move(done)); });
template <class T>
Result<T> wait_for(const std::function<void(Completion<T>)>& start) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable ready;
    std::optional<Result<T>> result;
  };
  const auto shared = std::make_shared<Shared>();
  start(Completion<T>([shared](Result<T> result) {
    const std::lock_guard lock(shared->mutex);
    shared->result.emplace(std::move(result));
    shared->ready.notify_one();
  }));
  std::unique_lock lock(shared->mutex);
  shared->ready.wait(lock, [&] { return shared->result.has_value(); });
  return std::move(*shared->result);
}

/// Runs all steps of the ticket in order and tells it how each ended. `store`: what the engine was
/// told to use (Engine::use_store), or null.
TOKI_EXPORT void run_steps(Ticket& ticket, Backend& backend, StateStore* store = nullptr);

}  // namespace toki
