// Maps by scope, and what a map of the standard library takes.
#pragma once

#include <toki/scope.hpp>

#include <cstddef>
#include <unordered_map>

namespace toki {

struct ScopeHash {
  std::size_t operator()(const Scope& scope) const noexcept {
    return static_cast<std::size_t>(scope.seed());
  }
};

template <class Value>
using ScopeMap = std::unordered_map<Scope, Value, ScopeHash>;

/// Buckets, and for each entry its node with a pointer and the allocator's own word.
template <class Map>
std::size_t map_bytes(const Map& map) noexcept {
  return map.bucket_count() * sizeof(void*) +
         map.size() * (sizeof(typename Map::value_type) + 2 * sizeof(void*));
}

}  // namespace toki
