// A scope says whose prompts may share KV cache: model identity, adapters and, with isolation, the
// tenant. Nothing is ever shared between two scopes.
//
// Threads:   value type; distinct objects are independent.
// Ownership: owns its bytes.
// Errors:    none.
// Cost:      one string and one hash, made once per backend, adapter set and tenant.
#pragma once

#include <toki/export.hpp>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki {

/// See the head of this file. Two scopes are equal when their parts are.
class TOKI_EXPORT Scope {
 public:
  Scope() : Scope(std::initializer_list<std::string_view>{}) {}

  /// A scope from its parts. Parts are framed by their lengths, so ("org_1", "2345") and
  /// ("org_12345", "") differ.
  Scope(std::initializer_list<std::string_view> parts);
  /// The same of parts whose number is known when the program runs.
  static Scope from_parts(std::span<const std::string_view> parts);

  /// The scope whose bytes() these are, as they were stored.
  static Scope from_bytes(std::string bytes);

  /// Seeds the chain of block keys; equal on every machine and in every run. It only finds:
  /// equality is decided on bytes().
  std::uint64_t seed() const noexcept { return seed_; }
  /// What it is stored as; from_bytes() makes the same scope of it.
  const std::string& bytes() const noexcept { return bytes_; }
  /// The parts it was made from; none where its bytes are no parts. Valid as long as the scope.
  std::vector<std::string_view> parts() const;

  /// Compares all bytes, not only the seed.
  friend bool operator==(const Scope& a, const Scope& b) noexcept {
    return a.seed_ == b.seed_ && a.bytes_ == b.bytes_;
  }

 private:
  std::string bytes_;
  std::uint64_t seed_;
};

}  // namespace toki
