#include <toki/http/prompt_embeddings.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <utility>

namespace toki::http {

namespace asio = boost::asio;

// A server without embeddings may have been started again, with them.
constexpr std::chrono::seconds kAskAgain{60};

PromptEmbeddings::PromptEmbeddings(const asio::any_io_executor& executor, Embedder* embedder,
                                   Engine& engine, Millis limit, LogSink log)
    : embedder_(embedder),
      engine_(engine),
      limit_(limit),
      wake_(executor, asio::steady_timer::time_point::max()),
      log_(std::move(log)) {}

// Counts it, and says in the log when the server begins to make embeddings, or ends.
void PromptEmbeddings::note(const Result<Embedding>& made) {
  ++(made ? made_ : failed_);
  if (works_ == made.has_value() || !log_) {
    return;
  }
  works_ = made.has_value();
  if (made) {
    log_(LogLevel::info, "embeddings of " + std::to_string(made->values.size()) + " values");
  } else {
    log_(LogLevel::warn,
         "no embeddings (prompts get one made of their token ids): " + made.error().detail);
  }
}

asio::awaitable<Embedding> PromptEmbeddings::for_search(const std::string& json_string,
                                                        TokenSpan tokens) {
  using namespace asio::experimental::awaitable_operators;
  if (embedder_ == nullptr || json_string.empty()) {
    co_return hash_embedding(tokens);
  }
  asio::steady_timer limit(wake_.get_executor(), limit_);
  auto first = co_await (embedder_->async_embed(json_string) ||
                         limit.async_wait(asio::as_tuple(asio::use_awaitable)));
  if (first.index() != 0) {
    ++late_;
    co_return Embedding{};
  }
  auto& made = std::get<0>(first);
  note(made);
  if (!made) {
    co_return hash_embedding(tokens);
  }
  co_return std::move(*made);
}

void PromptEmbeddings::for_record(std::uint64_t id, std::string json_string) {
  if (embedder_ == nullptr || json_string.empty()) {
    return;
  }
  if (waiting_.size() >= kMaxWaiting || waiting_bytes_ + json_string.size() > kMaxWaitingBytes ||
      !embedder_->available()) {
    ++dropped_;
    return;
  }
  waiting_bytes_ += json_string.size();
  waiting_.push_back({id, std::move(json_string)});
  wake_.cancel();
}

asio::awaitable<void> PromptEmbeddings::run() {
  for (;;) {
    while (!waiting_.empty()) {
      const Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= next.json_string.size();
      auto made = co_await embedder_->async_embed(next.json_string);
      note(made);
      if (made) {
        engine_.embedded(next.id, std::move(*made));
      }
    }
    wake_.expires_after(kAskAgain);
    (void)co_await wake_.async_wait(asio::as_tuple(asio::use_awaitable));
    if ((co_await asio::this_coro::cancellation_state).cancelled() !=
        asio::cancellation_type::none) {
      co_return;
    }
    if (embedder_ != nullptr && !embedder_->available()) {
      embedder_->probe_again();
    }
  }
}

void PromptEmbeddings::add_to(Stats& stats) const noexcept {
  stats.embeddings_total = made_;
  stats.embeddings_late_total = late_;
  stats.embeddings_failed_total = failed_;
  stats.embeddings_dropped_total = dropped_;
}

}  // namespace toki::http
