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

struct PinRecord {
  std::uint64_t id = 0;  ///< not 0, never used twice in one engine
  Scope scope;
  Tokens tokens;
  bool by_hand = true;  ///< false: chosen because many prompts begin with it
};

enum class PinState : std::uint8_t {
  held,         ///< a slot holds it
  waiting,      ///< none does yet, or not any more: it is put into one when no request runs
  other_model,  ///< it was pinned for another model, or other adapters, than the backend has now
};
TOKI_EXPORT std::string_view to_string(PinState value) noexcept;

struct PinInfo {
  std::uint64_t id = 0;
  Scope scope{};
  std::uint64_t tokens = 0;
  bool by_hand = true;
  PinState state = PinState::waiting;
  std::optional<std::uint32_t> slot{};
  std::uint64_t prompt = 0;  ///< a remembered prompt that begins with it; 0: none does
};

}  // namespace toki
