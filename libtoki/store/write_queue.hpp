// WriteQueue: writes to prompts that wait for the database, at most one a prompt.
//
// Threads:   none of its own; its user locks.
// Ownership: owns what waits.
// Errors:    none.
// Cost:      one look-up and one move a write.
#pragma once

#include <toki/prompt_record.hpp>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace toki {

struct Write {
  enum class Kind : std::uint8_t { put, use, remove };
  Kind kind;
  PromptRecord record;  ///< of a use and a removal only what they need
};

class WriteQueue {
 public:
  /// Makes of two writes to one prompt the one that has the effect of both. False: `write` is new,
  /// and `most` already wait. What the write takes the place of is left in it, so that it is freed
  /// where the user likes.
  bool add(Write& write, std::size_t most) {
    const std::uint64_t id = write.record.id;
    if (const auto place = places_.find(id); place != places_.end()) {
      merge(writes_[place->second], write);
      return true;
    }
    if (writes_.size() >= most) {
      return false;
    }
    writes_.push_back(std::move(write));
    places_.emplace(id, writes_.size() - 1);
    return true;
  }

  /// All that wait, in the order of their prompts' first writes.
  std::vector<Write> take() {
    places_.clear();
    return std::exchange(writes_, {});
  }

  std::size_t size() const noexcept { return writes_.size(); }

 private:
  static void merge(Write& waiting, Write& next) {
    if (next.kind != Write::Kind::use) {
      std::swap(waiting, next);
    } else if (waiting.kind != Write::Kind::remove) {
      waiting.record.use = next.record.use;
      waiting.record.last_used_ms = next.record.last_used_ms;
    }
  }

  std::vector<Write> writes_;
  std::unordered_map<std::uint64_t, std::size_t> places_;  // in writes_, by prompt
};

}  // namespace toki
