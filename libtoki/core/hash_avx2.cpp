// XXH3 compiled for AVX2; only called on CPUs that have it.
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace toki {

std::uint64_t hash_bytes_avx2(const void* data, std::size_t size) noexcept;
std::uint64_t hash_bytes_avx2(const void* data, std::size_t size) noexcept {
  return XXH3_64bits(data, size);
}

}  // namespace toki
