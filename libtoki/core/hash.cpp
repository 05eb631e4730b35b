#include "core/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace toki {

std::uint64_t hash_bytes(const void* data, std::size_t size) noexcept {
  return XXH3_64bits(data, size);
}

}  // namespace toki
