// SlotPool: what toki knows about each slot of the backends: the exact tokens it holds, who uses
// it, and whether it may be used at all.
//
// Threads:   concurrent const calls are safe while nobody writes.
// Ownership: copies the tokens it is given.
// Errors:    none; an index outside the pool is a broken precondition.
// Cost:      memory for the tokens of each slot; common() is one comparison pass.
#pragma once

#include <toki/export.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace toki {

/// One slot of one backend. toki drives one backend today; the number is there so that many need no
/// new type.
struct SlotId {
  std::uint32_t backend = 0;  ///< 0 today
  std::uint32_t index = 0;    ///< llama-server's id_slot
  /// Both numbers are.
  friend bool operator==(const SlotId&, const SlotId&) = default;
};

/// How much is known of what a slot holds.
enum class SlotContent : std::uint8_t {
  empty,    ///< holds nothing
  known,    ///< holds `tokens`, followed by `unknown_tail` tokens whose ids we were not told
  unknown,  ///< holds something we cannot name
};

/// All that is known of one slot.
struct Slot {
  SlotContent content = SlotContent::unknown;  ///< says which of the rest means anything
  Scope scope;                                 ///< that `tokens` were computed for
  Tokens tokens;                               ///< leading tokens that it is known to hold
  std::uint64_t unknown_tail = 0;              ///< generated tokens behind `tokens`, of unknown ids
  std::uint64_t turn_start = 0;  ///< of `tokens`, those that the last request found here
  bool open_end = false;         ///< how many tokens follow `tokens` is not certain
  bool surrogate = false;        ///< `tokens` only stand for what it holds: it cannot be saved
  bool saved = false;            ///< its state was saved, or restored, since it changed
  bool leased = false;           ///< a ticket has it
  bool fenced = false;       ///< stopped answering: gets no work until the backend says it is idle
  std::uint64_t floor = 0;   ///< a prompt that shares fewer tokens must find it erased: what was
                             ///< restored there cannot be rewound
  bool erase_first = false;  ///< its content must not be trusted: erase before the next use
  bool owned = false;        ///< unknown, but all of it was computed for prompts of `scope`
  std::uint64_t pin = 0;     ///< the pin whose tokens it keeps; 0: none
  std::uint64_t pin_tokens = 0;                       ///< so many of `tokens` are the pin's
  std::uint64_t last_used = 0;                        ///< tick of the last lease; 0: never
  std::chrono::steady_clock::time_point leased_at{};  ///< when the last lease began
  std::chrono::steady_clock::time_point used_at{};    ///< when the last lease that counts began
};

/// The table of slots, and the rules by which what is known of them changes. An index is below
/// size() everywhere (REQUIRES).
class TOKI_EXPORT SlotPool {
 public:
  /// So many slots, all with this content.
  explicit SlotPool(std::size_t slots = 0, SlotContent content = SlotContent::unknown);

  /// Slots.
  std::size_t size() const noexcept { return slots_.size(); }
  /// Valid until the next call that is not const.
  const Slot& operator[](std::size_t index) const;
  std::size_t idle() const noexcept;  ///< neither leased nor fenced
  /// Held by tickets.
  std::size_t leased() const noexcept;
  /// Without work until fence(index, false).
  std::size_t fenced() const noexcept;
  /// Counts leases that are uses.
  std::uint64_t tick() const noexcept { return tick_; }

  /// Leading tokens of `prompt` that the slot is known to hold.
  std::size_t common(std::size_t index, const Scope& scope, TokenSpan prompt) const;

  /// Most tokens of `prompt` that the slot can possibly hold.
  std::size_t common_limit(std::size_t index, const Scope& scope, TokenSpan prompt) const;
  /// Nothing in the slot was computed for another scope: it is empty, or all of it is of this one.
  bool only_of(std::size_t index, const Scope& scope) const;
  /// The end of what the slot holds beyond the common prefix stands in `prompt` again, further on:
  /// the prompt is a newer form of it.
  bool superseded_by(std::size_t index, const Scope& scope, TokenSpan prompt) const;

  /// REQUIRES: the slot is idle.
  void lease(std::size_t index, std::chrono::steady_clock::time_point now);
  /// Leases it without counting it as a use.
  void borrow(std::size_t index, std::chrono::steady_clock::time_point now);
  /// REQUIRES: it is leased.
  void release(std::size_t index);
  /// `on`: it gets no work until this is taken back.
  void fence(std::size_t index, bool on);

  /// It is known to hold `tokens`, and so many unknown ones behind them; a pin with which they do
  /// not begin is gone.
  void hold(std::size_t index, const Scope& scope, Tokens tokens, std::uint64_t unknown_tail,
            std::uint64_t turn_start, bool open_end = false);
  /// It keeps the pin of that number from now on, until what it holds does not begin with its tokens
  /// any more. REQUIRES: it is known to begin with `tokens` tokens that are the pin's.
  void set_pin(std::size_t index, std::uint64_t pin, std::uint64_t tokens);
  /// It keeps no pin any more; what it holds stays.
  void clear_pin(std::size_t index);
  /// Slot::floor.
  void set_floor(std::size_t index, std::uint64_t tokens);
  /// Slot::surrogate.
  void set_surrogate(std::size_t index, bool on);
  /// Slot::saved, until what it holds changes.
  void set_saved(std::size_t index);
  /// It holds nothing.
  void set_empty(std::size_t index);
  /// Nothing is known of it any more.
  void set_unknown(std::size_t index);
  /// Unknown, but computed for prompts of this scope alone.
  void set_owned(std::size_t index, const Scope& scope);
  /// Slot::erase_first, until it is empty.
  void erase_before_use(std::size_t index);

 private:
  Slot& at(std::size_t index);

  std::vector<Slot> slots_;
  std::uint64_t tick_ = 0;
};

}  // namespace toki
