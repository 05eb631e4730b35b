#include <toki/http/async_driver.hpp>
#include <toki/http/store_worker.hpp>

#include <boost/asio/post.hpp>

#include <utility>

namespace toki::http {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::minutes kUnwanted{10};  // a save may wait so long behind an answer

}  // namespace

// Work that was begun is not cancelled: it ends by itself, soon.
template <class T, class Work>
asio::awaitable<Result<T>> StoreWorker::run(Work work) {
  auto start = [this, &work](Completion<T> done) {
    auto task = [work = std::move(work), done = std::move(done)]() mutable { done(work()); };
    asio::post(thread_, std::move(task));
  };
  co_return co_await await<T>(start);
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

asio::awaitable<Result<std::uint64_t>> StoreWorker::forget(Scope scope, Tokens prompt,
                                                           std::uint64_t shared) {
  auto work = [this, scope = std::move(scope), prompt = std::move(prompt), shared] {
    return store_.forget(scope, prompt, shared);
  };
  co_return co_await run<std::uint64_t>(std::move(work));
}

void StoreWorker::discard(std::string name) {
  auto task = [this, name = std::move(name)]() mutable {
    if (!store_.discard(name)) {
      unwanted_.push_back({std::move(name), std::chrono::steady_clock::now()});
      has_unwanted_ = true;
    }
  };
  asio::post(thread_, std::move(task));
}

void StoreWorker::discard_again() {
  if (!has_unwanted_) {
    return;
  }
  asio::post(thread_, [this] {
    const auto oldest = std::chrono::steady_clock::now() - kUnwanted;
    std::erase_if(unwanted_, [&](const Unwanted& file) {
      return store_.discard(file.name) || file.since < oldest;
    });
    has_unwanted_ = !unwanted_.empty();
  });
}

void StoreWorker::discard_other_runs(std::string own) {
  asio::post(thread_, [this, own = std::move(own)] { store_.discard_other_runs(own); });
}

void StoreWorker::maintain() {
  asio::post(thread_, [this] { store_.maintain(); });
}

}  // namespace toki::http
