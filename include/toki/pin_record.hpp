// PinRecord: one pinned prefix, as it is remembered across restarts, and what people see of it.
//
// Threads:   plain data.
// Ownership: values only.
// Errors:    none.
// Cost:      four bytes a token.
#pragma once

#include <toki/export.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace toki {

/// One pinned prefix, as it is kept across restarts.
struct PinRecord {
  std::uint64_t id = 0;  ///< not 0, never used twice in one engine
  Scope scope;           ///< it is pinned for
  Tokens tokens;         ///< from the beginning of a prompt
  bool by_hand = true;   ///< false: chosen because many prompts begin with it
};

/// Whether a pin keeps a slot now.
enum class PinState : std::uint8_t {
  held,         ///< a slot holds it
  waiting,      ///< none does yet, or not any more: it is put into one when no request runs
  other_model,  ///< it was pinned for another model, or other adapters, than the backend has now
};
/// The name of the enumerator. Static string.
TOKI_EXPORT std::string_view to_string(PinState value) noexcept;

/// One pin, for people.
struct PinInfo {
  std::uint64_t id = 0;                 ///< as PinRecord has it
  Scope scope{};                        ///< it is pinned for
  std::uint64_t tokens = 0;             ///< its length
  bool by_hand = true;                  ///< false: chosen because many prompts begin with it
  PinState state = PinState::waiting;   ///< whether it keeps a slot now
  std::optional<std::uint32_t> slot{};  ///< that holds it; none: it waits
  std::uint64_t prompt = 0;             ///< a remembered prompt that begins with it; 0: none does
};

}  // namespace toki
