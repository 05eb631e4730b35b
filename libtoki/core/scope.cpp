#include <toki/scope.hpp>

#include "core/hash.hpp"

namespace toki {

Scope::Scope(std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    bytes_ += std::to_string(part.size());
    bytes_ += ':';
    bytes_ += part;
  }
  seed_ = hash_bytes(bytes_.data(), bytes_.size());
}

}  // namespace toki
