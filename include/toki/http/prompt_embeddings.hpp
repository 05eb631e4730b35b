// PromptEmbeddings: when a prompt is embedded, and by what. For the search it must be there within a
// limit; for the record it is made later, one after the other, when its request has ended.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: Embedder and Engine must outlive it; it keeps copies of the texts that wait.
// Errors:    none: what fails becomes a hash embedding, what is late none, both counted.
// Cost:      for_search(): at most the limit. Waiting texts: at most kMaxWaiting of them and
//            kMaxWaitingBytes; the rest is dropped and counted.
#pragma once

#include <toki/embedding.hpp>
#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/embedder.hpp>
#include <toki/log.hpp>
#include <toki/result.hpp>
#include <toki/stats.hpp>
#include <toki/token.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace toki::http {

/// The embeddings of prompts: one in time for a search, or later for what is remembered.
class TOKI_EXPORT PromptEmbeddings {
 public:
  /// prompts whose embedding is made later; more get none
  static constexpr std::size_t kMaxWaiting = 64;
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{16} << 20;  ///< of their texts

  /// `embedder`: null when there is none; then all embeddings are made from token ids.
  PromptEmbeddings(const boost::asio::any_io_executor& executor, Embedder* embedder, Engine& engine,
                   Millis limit, LogSink log);

  /// `json_string`: the prompt as it stands in a JSON text; empty when its text is not known. Kind
  /// none: too late, do not search.
  boost::asio::awaitable<Embedding> for_search(const std::string& json_string, TokenSpan tokens);

  /// The prompt was remembered under `id`, without a model's embedding.
  void for_record(std::uint64_t id, std::string json_string);
  /// Makes the embeddings that were asked for by for_record(). Runs until it is cancelled.
  boost::asio::awaitable<void> run();

  /// Its figures, among all others.
  void add_to(Stats& stats) const noexcept;

 private:
  struct Waiting {
    std::uint64_t id;
    std::string json_string;
  };

  void note(const Result<Embedding>& made);

  Embedder* embedder_;
  Engine& engine_;
  Millis limit_;
  boost::asio::steady_timer wake_;
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  LogSink log_;
  std::optional<bool> works_;  // as it was last said in the log
  std::uint64_t made_ = 0, late_ = 0, failed_ = 0, dropped_ = 0;
};

}  // namespace toki::http
