#include <toki/scope.hpp>

#include <charconv>
#include <utility>

#include "core/hash.hpp"

namespace toki {
namespace {

std::string framed(std::span<const std::string_view> parts) {
  std::string bytes;
  for (const std::string_view part : parts) {
    bytes += std::to_string(part.size());
    bytes += ':';
    bytes += part;
  }
  return bytes;
}

}  // namespace

Scope::Scope(std::initializer_list<std::string_view> parts)
    : bytes_(framed({parts.begin(), parts.size()})),
      seed_(hash_bytes(bytes_.data(), bytes_.size())) {}

Scope Scope::from_parts(std::span<const std::string_view> parts) {
  return from_bytes(framed(parts));
}

Scope Scope::from_bytes(std::string bytes) {
  Scope scope;
  scope.bytes_ = std::move(bytes);
  scope.seed_ = hash_bytes(scope.bytes_.data(), scope.bytes_.size());
  return scope;
}

std::vector<std::string_view> Scope::parts() const {
  std::vector<std::string_view> result;
  std::string_view rest = bytes_;
  while (!rest.empty()) {
    std::size_t size = 0;
    const auto [end, fault] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    if (fault != std::errc() || digits >= rest.size() || *end != ':' ||
        size > rest.size() - digits - 1) {
      return {};
    }
    result.push_back(rest.substr(digits + 1, size));
    rest.remove_prefix(digits + 1 + size);
  }
  return result;
}

}  // namespace toki
