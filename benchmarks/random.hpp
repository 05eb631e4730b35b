// SplitMix64: the same numbers on every machine.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace bench {

inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() { return mix(state_ += 0x9e3779b97f4a7c15ULL); }
  std::size_t below(std::size_t bound) { return (*this)() % bound; }
  std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
  /// Small numbers more often: about as many below 8 as from 8 to 63 as from 64 to 511.
  std::size_t skewed(std::size_t bound) {
    const double share = static_cast<double>((*this)() >> 11) * 0x1p-53;
    return static_cast<std::size_t>(std::pow(static_cast<double>(bound), share)) - 1;
  }

 private:
  std::uint64_t state_;
};

}  // namespace bench
