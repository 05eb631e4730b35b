// Embedder: embeddings by a llama-server that was started with --embeddings.
//
// Threads:   the executor's; one thread or strand at a time; calls may overlap.
// Ownership: the Upstream must outlive it and be its own, also when the server is the same as
//            another's; it must outlive its calls.
// Errors:    values. Errc::unsupported: the server makes no embeddings, and is not asked again
//            before probe_again(). After any other failure calls fail at once for a while
//            (EmbedderLimits::pause), so that a dead server does not cost every request a time-out.
// Cost:      two exchanges a text (and two small ones every few seconds), and what the model needs.
//
// A text is tokenized by the server without special tokens; each segment gets those that the model
// wants around a text. A text longer than the model takes at once is cut into segments that overlap by an eighth; its
// embedding is the mean of theirs, weighted by length. At most kMaxSegments are embedded: of a
// longer text so many, evenly spread from the first to the last.
#pragma once

#include <toki/embedding.hpp>
#include <toki/export.hpp>
#include <toki/http/upstream.hpp>
#include <toki/result.hpp>
#include <toki/token.hpp>

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

/// How long it waits.
struct EmbedderLimits {
  Millis call{5000};   ///< each exchange with the server
  Millis pause{5000};  ///< after a failure
};

/// Embeddings by a llama-server that makes them. A text that is longer than the model takes is cut
/// into segments whose vectors are averaged.
class TOKI_EXPORT Embedder {
 public:
  static constexpr std::size_t kMaxSegments = 32;  ///< of one text, evenly spread over it
  static constexpr std::size_t kMinWindow = 32;    ///< tokens; a model that takes fewer is not used

  /// `upstream` must outlive it.
  explicit Embedder(Upstream& upstream, EmbedderLimits limits = {});

  /// `json_string` as it stands in a JSON text, with its quotes. An empty text is
  /// Errc::invalid_argument.
  boost::asio::awaitable<Result<Embedding>> async_embed(std::string_view json_string);

  /// Equal only for embeddings that may be compared (their `model`): it says model file, size and
  /// dimension, and is empty until the first embedding was made.
  const std::string& identity() const noexcept { return identity_; }
  /// False while calls fail at once.
  bool available() const;
  /// Ask again, also a server that makes no embeddings.
  void probe_again();

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Vectors = std::vector<std::vector<float>>;

  boost::asio::awaitable<Result<Embedding>> embed(std::string_view escaped);
  boost::asio::awaitable<Status> look();
  boost::asio::awaitable<Status> learn_ends();
  boost::asio::awaitable<Result<Vectors>> post(TokenSpan tokens,
                                               const std::vector<Segment>& segments);
  std::vector<Segment> segments_of(std::size_t tokens) const;

  Upstream& upstream_;
  EmbedderLimits limits_;
  std::string model_;  // file and size, from the last look
  std::string identity_;
  std::uint64_t context_ = 0;
  std::size_t window_ = 0;  // tokens of a text that the model takes at once; 0: not known
  Tokens before_, after_;   // what the model wants around each text
  Time looked_{};
  Time retry_at_{};
  bool unsupported_ = false;
};

}  // namespace toki::http
