// XXH3-64 without a seed, little-endian input: the same value on every machine and in every run.
#pragma once

#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>

namespace toki {

std::uint64_t hash_bytes(const void* data, std::size_t size) noexcept;

/// The best implementation that this CPU can run; all give the same values.
using HashBytes = std::uint64_t (*)(const void* data, std::size_t size) noexcept;
HashBytes best_hash_bytes() noexcept;

/// The key of a block from its parent's key and its own hash. Blocks are hashed independently of
/// each other and only these eight bytes are chained, so that a prompt's blocks are hashed at full
/// speed.
inline std::uint64_t chain_key(std::uint64_t parent, std::uint64_t block) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(parent ^ 0x9e3779b97f4a7c15ULL) *
                       static_cast<Wide>(block ^ 0xd1b54a32d192ed03ULL);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace toki
