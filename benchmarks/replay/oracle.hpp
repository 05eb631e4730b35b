// The oracle computes each distinct prefix of the prompts once, whenever it was seen before: no
// prefix cache computes less, as long as answers are not found again.
#pragma once

#include <toki/result.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>

#include "http.hpp"

namespace replay {

class Oracle {
 public:
  /// The tokens of this prompt that no earlier one begins with. Prefixes are told apart by chained
  /// 64-bit hashes: with a million of them the chance of one wrong is below 10^-6.
  std::size_t add(toki::TokenSpan prompt);
  std::size_t total() const { return seen_.size(); }

 private:
  std::unordered_set<std::uint64_t> seen_;
};

/// The tokens of the prompt in a request's body, as the llama-server there makes them.
/// Errc::unsupported for paths whose prompt only the server knows.
toki::Result<toki::Tokens> tokens_of(const Address& server, const std::string& path,
                                     const std::string& body);

}  // namespace replay
