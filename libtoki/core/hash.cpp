#include "core/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace toki {

std::uint64_t hash_bytes(const void* data, std::size_t size) noexcept {
  return XXH3_64bits(data, size);
}

#if defined(__x86_64__)
std::uint64_t hash_bytes_avx2(const void* data, std::size_t size) noexcept;  // hash_avx2.cpp
#endif

HashBytes best_hash_bytes() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) {
    return hash_bytes_avx2;
  }
#endif
  return hash_bytes;
}

}  // namespace toki
