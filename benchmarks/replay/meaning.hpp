// Whether two answers that no exact rule tells apart mean the same: by the embeddings of a server,
// or by vectors made of their words where that was asked for. Without either they do not.
// Blocking; a call to the server has 60 s.
#pragma once

#include <toki/divergence.hpp>
#include <toki/http/embedder.hpp>
#include <toki/http/upstream.hpp>
#include <toki/result.hpp>

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace replay {

struct MeaningSettings {
  std::optional<toki::http::Address> server;  ///< a llama-server that makes embeddings
  bool words = false;                         ///< hash embeddings of the words; without a server
  double cosine = toki::kSameMeaning;         ///< from which two answers mean the same
};

class Meaning {
 public:
  explicit Meaning(const MeaningSettings& settings);

  /// Whether the server that was named makes embeddings.
  toki::Status probe();

  /// REQUIRES: `found.undecided`.
  void decide(toki::Comparison& found, std::string_view a, std::string_view b);

  /// Pairs that the server should have decided but did not, and the last reason.
  std::size_t missed() const { return missed_; }
  const std::string& why() const { return why_; }

 private:
  toki::Result<toki::Embedding> embed(std::string_view text);

  MeaningSettings settings_;
  boost::asio::io_context io_{1};
  std::optional<toki::http::Upstream> upstream_;
  std::optional<toki::http::Embedder> embedder_;
  std::size_t missed_ = 0;
  std::string why_;
};

/// Each word as a number that follows from it, so that hash_embedding() sees words: texts with the
/// same ones are near each other, whatever they mean.
toki::Tokens word_tokens(std::string_view text);

}  // namespace replay
