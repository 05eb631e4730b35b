// The Asio driver: waits for a Backend's completions in coroutines and runs a ticket's steps.
//
// Threads:   the coroutine resumes on its own executor, whatever thread completed the call.
// Ownership: nothing is kept.
// Errors:    as the backend's completions say.
// Cost:      one small allocation and one post a call.
#pragma once

#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/result.hpp>

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
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

/// Runs all steps of the ticket in order and tells it how each ended.
inline boost::asio::awaitable<void> run_steps(Ticket& ticket, Backend& backend) {
  for (std::size_t i = 0; i < ticket.steps().size(); ++i) {
    const Step step = ticket.steps()[i];
    auto start = [&backend, &step](Completion<Done> done) {
      backend.erase(step.slot, std::move(done));
    };
    auto status = co_await await<Done>(start);
    ticket.step_done(i, status);
  }
}

}  // namespace toki::http
