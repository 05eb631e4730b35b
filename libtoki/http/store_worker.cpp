#include <toki/http/store_worker.hpp>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
#include <utility>

namespace toki::http {

namespace asio = boost::asio;

// Work that was begun is not cancelled: it ends by itself, soon.
template <class T, class Work>
asio::awaitable<Result<T>> StoreWorker::run(Work work) {
  auto initiate = [this, &work](auto handler) {
    using Handler = decltype(handler);
    auto shared = std::make_shared<Handler>(std::move(handler));
    auto executor = asio::get_associated_executor(*shared);
    auto guard = asio::make_work_guard(executor);
    auto task = [shared, executor, guard, work = std::move(work)]() mutable {
      auto value = std::make_shared<Result<T>>(work());
      asio::post(executor, [shared, value] { std::move (*shared)(std::move(*value)); });
      guard.reset();
    };
    asio::post(thread_, std::move(task));
  };
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(Result<T>)>(
      initiate, asio::use_awaitable);
}

asio::awaitable<Result<Taken>> StoreWorker::take(Scope scope, Tokens expected, std::string name,
                                                 bool whole, double prefill_ms) {
  auto work = [this, scope = std::move(scope), expected = std::move(expected),
               name = std::move(name), whole,
               prefill_ms] { return store_.take(scope, expected, name, whole, prefill_ms); };
  co_return co_await run<Taken>(std::move(work));
}

asio::awaitable<Result<std::uint64_t>> StoreWorker::compose(Scope scope, Tokens prompt,
                                                            std::uint32_t slot, std::string name) {
  auto work = [this, scope = std::move(scope), prompt = std::move(prompt), slot,
               name = std::move(name)] {
    return store_.compose(scope, prompt, prompt.size(), slot, name);
  };
  co_return co_await run<std::uint64_t>(std::move(work));
}

asio::awaitable<Result<std::uint64_t>> StoreWorker::forget(std::optional<std::uint64_t> id) {
  auto work = [this, id] { return store_.forget(id); };
  co_return co_await run<std::uint64_t>(std::move(work));
}

void StoreWorker::discard(std::string name) {
  asio::post(thread_, [this, name = std::move(name)] { store_.discard(name); });
}

void StoreWorker::maintain() {
  asio::post(thread_, [this] { store_.maintain(); });
}

}  // namespace toki::http
