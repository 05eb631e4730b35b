// XXH3-64 without a seed, little-endian input: the same value on every machine and in every run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace toki {

std::uint64_t hash_bytes(const void* data, std::size_t size) noexcept;

}  // namespace toki
