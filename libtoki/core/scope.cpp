#include <toki/scope.hpp>

#include <utility>

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

Scope Scope::from_bytes(std::string bytes) {
  Scope scope;
  scope.bytes_ = std::move(bytes);
  scope.seed_ = hash_bytes(scope.bytes_.data(), scope.bytes_.size());
  return scope;
}

}  // namespace toki
