// Result<T>: a value, or an Error that says what was attempted, on what, and the foreign reason.
//
// Threads:   like any value type: distinct objects are independent.
// Ownership: holds its value or its error.
// Errors:    reading the wrong half is a broken precondition and stops the program (TOKI_CHECK).
// Cost:      no allocation for a value; one string for an error.
//
// Names follow std::expected (C++23), so that moving to it later is mechanical.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

/// Stops the program when a documented precondition is broken. Never used on input from outside.
#define TOKI_CHECK(condition)                                                               \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "toki: broken precondition %s at %s:%d\n", #condition, __FILE__, \
                   __LINE__);                                                               \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)

namespace toki {

/// What kind of failure it was. Append only: the numbers are part of the contract.
enum class Errc : std::uint8_t {
  not_found = 1,     ///< the thing asked for does not exist
  invalid_argument,  ///< the request itself is wrong; repeating it does not help
  busy,              ///< no slot is free; try again when one is
  timed_out,         ///< a limit set by the caller ran out
  cancelled,         ///< the caller gave up, or the completion was dropped
  backend,           ///< the backend refused, failed or talks nonsense
  unavailable,       ///< the backend cannot be reached
  corrupt,           ///< bytes that do not fit their format
  unsupported,       ///< the backend or this build cannot do it
  no_space,          ///< the disk is full
};

/// The name of the code, for example "not_found". Static string.
constexpr std::string_view to_string(Errc code) noexcept {
  switch (code) {
    case Errc::not_found: return "not_found";
    case Errc::invalid_argument: return "invalid_argument";
    case Errc::busy: return "busy";
    case Errc::timed_out: return "timed_out";
    case Errc::cancelled: return "cancelled";
    case Errc::backend: return "backend";
    case Errc::unavailable: return "unavailable";
    case Errc::corrupt: return "corrupt";
    case Errc::unsupported: return "unsupported";
    case Errc::no_space: return "no_space";
  }
  return "unknown";
}

/// A failure. `detail` is for people and never holds prompt text, keys or header values.
struct Error {
  Errc code = Errc::backend;  ///< what kind, for programs
  std::string detail;         ///< what was attempted, on what, and the foreign reason
};

/// A value of T or an Error. T must not be Error.
template <class T>
class [[nodiscard]] Result {
 public:
  // A value or an error stands for its result, so that functions can return either.
  /// A success.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  /// A failure.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  /// It is a success.
  bool has_value() const noexcept { return state_.index() == 0; }
  /// The same.
  explicit operator bool() const noexcept { return has_value(); }

  /// REQUIRES: has_value().
  T& value() & { return check_value(), *std::get_if<0>(&state_); }
  /// REQUIRES: has_value().
  const T& value() const& { return check_value(), *std::get_if<0>(&state_); }
  /// REQUIRES: has_value().
  T&& value() && { return check_value(), std::move(*std::get_if<0>(&state_)); }
  /// REQUIRES: has_value().
  T& operator*() & { return value(); }
  /// REQUIRES: has_value().
  const T& operator*() const& { return value(); }
  /// REQUIRES: has_value().
  T&& operator*() && { return std::move(*this).value(); }
  /// REQUIRES: has_value().
  T* operator->() { return &value(); }
  /// REQUIRES: has_value().
  const T* operator->() const { return &value(); }

  /// REQUIRES: !has_value().
  const Error& error() const& {
    TOKI_CHECK(!has_value());
    return *std::get_if<1>(&state_);
  }
  /// REQUIRES: !has_value().
  Error&& error() && {
    TOKI_CHECK(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

  /// The value, or `other` where it failed.
  T value_or(T other) && { return has_value() ? std::move(*this).value() : std::move(other); }

 private:
  void check_value() const { TOKI_CHECK(has_value()); }

  std::variant<T, Error> state_;
};

/// Success without a value.
using Done = std::monostate;
using Status = Result<Done>;  ///< of what has no value to give

}  // namespace toki
