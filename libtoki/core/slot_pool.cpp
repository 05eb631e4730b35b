#include <toki/result.hpp>
#include <toki/slot_pool.hpp>

#include <algorithm>

namespace toki {

SlotPool::SlotPool(std::size_t slots, SlotContent content) : slots_(slots) {
  for (Slot& slot : slots_) {
    slot.content = content;
  }
}

const Slot& SlotPool::operator[](std::size_t index) const {
  TOKI_CHECK(index < slots_.size());
  return slots_[index];
}

Slot& SlotPool::at(std::size_t index) {
  TOKI_CHECK(index < slots_.size());
  return slots_[index];
}

std::size_t SlotPool::idle() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& s) { return !s.leased && !s.fenced; }));
}

std::size_t SlotPool::leased() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.leased; }));
}

std::size_t SlotPool::fenced() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.fenced; }));
}

std::size_t SlotPool::common(std::size_t index, const Scope& scope, TokenSpan prompt) const {
  const Slot& slot = (*this)[index];
  if (slot.content != SlotContent::known || slot.erase_first || !(slot.scope == scope)) {
    return 0;
  }
  return common_prefix(slot.tokens, prompt);
}

std::size_t SlotPool::common_limit(std::size_t index, const Scope& scope, TokenSpan prompt) const {
  const Slot& slot = (*this)[index];
  if (slot.content == SlotContent::unknown) {
    return prompt.size();
  }
  const std::size_t shared = common(index, scope, prompt);
  if (slot.content == SlotContent::empty || shared < slot.tokens.size()) {
    return shared;
  }
  return slot.open_end ? prompt.size()
                       : std::min<std::size_t>(prompt.size(), shared + slot.unknown_tail);
}

bool SlotPool::only_of(std::size_t index, const Scope& scope) const {
  const Slot& slot = (*this)[index];
  const bool told = slot.content == SlotContent::known || slot.owned;
  return !slot.erase_first && (slot.content == SlotContent::empty || (told && slot.scope == scope));
}

bool SlotPool::superseded_by(std::size_t index, const Scope& scope, TokenSpan prompt) const {
  constexpr std::size_t kEnd = 32;  // tokens that two different conversations do not end with alike
  const Slot& slot = (*this)[index];
  const std::size_t shared = common(index, scope, prompt);
  if (shared < kEnd || slot.tokens.size() < shared + kEnd || prompt.size() < shared + kEnd) {
    return false;
  }
  const TokenSpan end = TokenSpan(slot.tokens).last(kEnd);
  return std::search(prompt.begin() + static_cast<std::ptrdiff_t>(shared), prompt.end(),
                     end.begin(), end.end()) != prompt.end();
}

void SlotPool::lease(std::size_t index, std::chrono::steady_clock::time_point now) {
  borrow(index, now);
  at(index).last_used = ++tick_;
  at(index).used_at = now;
}

void SlotPool::borrow(std::size_t index, std::chrono::steady_clock::time_point now) {
  Slot& slot = at(index);
  TOKI_CHECK(!slot.leased && !slot.fenced);
  slot.leased = true;
  slot.leased_at = now;
}

void SlotPool::release(std::size_t index) {
  at(index).leased = false;
}

void SlotPool::fence(std::size_t index, bool on) {
  at(index).fenced = on;
}

void SlotPool::hold(std::size_t index, const Scope& scope, Tokens tokens,
                    std::uint64_t unknown_tail, std::uint64_t turn_start, bool open_end) {
  Slot& slot = at(index);
  if (slot.pin != 0 && common(index, scope, tokens) < slot.pin_tokens) {
    clear_pin(index);
  }
  slot.content = SlotContent::known;
  slot.scope = scope;
  slot.tokens = std::move(tokens);
  slot.unknown_tail = unknown_tail;
  slot.turn_start = turn_start;
  slot.open_end = open_end;
  slot.surrogate = false;
  slot.saved = false;
  slot.erase_first = false;
  slot.owned = false;
}

void SlotPool::set_pin(std::size_t index, std::uint64_t pin, std::uint64_t tokens) {
  Slot& slot = at(index);
  TOKI_CHECK(pin != 0 && slot.content == SlotContent::known && slot.tokens.size() >= tokens);
  slot.pin = pin;
  slot.pin_tokens = tokens;
}

void SlotPool::clear_pin(std::size_t index) {
  at(index).pin = at(index).pin_tokens = 0;
}

void SlotPool::set_floor(std::size_t index, std::uint64_t tokens) {
  at(index).floor = tokens;
}

void SlotPool::set_surrogate(std::size_t index, bool on) {
  at(index).surrogate = on;
}

void SlotPool::set_saved(std::size_t index) {
  at(index).saved = true;
}

void SlotPool::set_empty(std::size_t index) {
  clear_pin(index);
  Slot& slot = at(index);
  slot.floor = 0;
  slot.content = SlotContent::empty;
  slot.tokens = {};
  slot.unknown_tail = 0;
  slot.turn_start = 0;
  slot.open_end = false;
  slot.erase_first = false;
  slot.owned = false;
}

void SlotPool::set_unknown(std::size_t index) {
  clear_pin(index);
  Slot& slot = at(index);
  slot.content = SlotContent::unknown;
  slot.tokens = {};
  slot.unknown_tail = 0;
  slot.turn_start = 0;
  slot.open_end = false;
  slot.owned = false;
}

void SlotPool::set_owned(std::size_t index, const Scope& scope) {
  set_unknown(index);
  at(index).scope = scope;
  at(index).owned = true;
}

void SlotPool::erase_before_use(std::size_t index) {
  set_unknown(index);
  at(index).erase_first = true;
}

}  // namespace toki
