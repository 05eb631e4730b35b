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

asio::awaitable<Result<Taken>> StoreWorker::end_save(const Step& step, std::string file,
                                                     Timed saved) {
  auto work = [this, step, file = std::move(file), saved] {
    return store_.end_save(step, file, saved);
  };
  co_return co_await run<Taken>(std::move(work));
}

asio::awaitable<Result<Restorable>> StoreWorker::begin_restore(const Step& step) {
  auto work = [this, step] { return store_.begin_restore(step); };
  co_return co_await run<Restorable>(std::move(work));
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

void StoreWorker::end_save_later(const Step& step, std::string file, Timed saved,
                                 std::function<void(const Status&)> done) {
  ++later_;
  asio::post(thread_, [this, step, file = std::move(file), saved, done = std::move(done)] {
    const auto taken = store_.end_save(step, file, saved);
    --later_;
    done(taken ? Status(Done{}) : Status(taken.error()));
  });
}

asio::awaitable<Status> StoreWorker::settled() {
  auto work = [] { return Status(Done{}); };
  co_return co_await run<Done>(std::move(work));
}

void StoreWorker::discard(std::string file) {
  auto task = [this, file = std::move(file)]() mutable {
    if (!store_.discard(file)) {
      unwanted_.push_back({std::move(file), std::chrono::steady_clock::now()});
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
    std::erase_if(unwanted_, [&](const Unwanted& gone) {
      return store_.discard(gone.file) || gone.since < oldest;
    });
    has_unwanted_ = !unwanted_.empty();
  });
}

void StoreWorker::discard_other_runs(std::string own) {
  asio::post(thread_, [this, own = std::move(own)] { store_.discard_other_runs(own); });
}

void StoreWorker::end_restore(std::string file, Result<Timed> restored) {
  auto work = [this, file = std::move(file), restored = std::move(restored)] {
    store_.end_restore(file, restored);
  };
  asio::post(thread_, std::move(work));
}

void StoreWorker::doubt(const Scope& scope, TokenSpan prompt) {
  auto work = [this, scope, prompt = Tokens(prompt.begin(), prompt.end())] {
    store_.doubt(scope, prompt);
  };
  asio::post(thread_, std::move(work));
}

void StoreWorker::maintain() {
  asio::post(thread_, [this] { store_.maintain(); });
}

}  // namespace toki::http
