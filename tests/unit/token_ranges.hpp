// Runs of token ids for tests.
#pragma once

#include <toki/token.hpp>

#include <cstddef>
#include <numeric>

namespace toki {

inline Tokens range(Token first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace toki
