// KeyTable: from a block key to the node that has it. Open addressing in segments of fixed size
// that are split when they fill (extendible hashing), so that growing never moves more than one
// segment.
//
//   directory, by the key's top bits  ->  segment of 2^13 entries, by its middle bits  ->  linear
//   probing
//
// An entry is the node and 32 bits of the key. It only finds: whoever asks compares the tokens.
// Keys may repeat.
#pragma once

#include <toki/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/big_pages.hpp"

namespace toki {

class KeyTable {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// Segments lie in `memory`, which has to outlive the table.
  explicit KeyTable(BigPages& memory) : memory_(memory) { directory_.push_back(add_segment(0)); }

  /// The first entry whose tag fits, for which `accept(node)` holds; kNone when there is none.
  template <class Accept>
  std::uint32_t find(std::uint64_t key, Accept accept) const {
    const Entry* entries = directory_[index(key)].entries;
    const std::uint32_t tag = tag_of(key);
    for (std::size_t at = place(key);; at = (at + 1) & kMask) {
      const Entry& entry = entries[at];
      if (entry.node == kNone) {
        return kNone;
      }
      if (entry.tag == tag && entry.node != kDeleted && accept(entry.node)) {
        return entry.node;
      }
    }
  }

  void prefetch(std::uint64_t key) const {
    __builtin_prefetch(&directory_[index(key)].entries[place(key)]);
  }

  /// `key_of(node)` is asked when a segment is split. False when hashes are so bad that there is no
  /// place: then the node is not found by key.
  template <class KeyOf>
  bool insert(std::uint64_t key, std::uint32_t node, KeyOf key_of) {
    while (segment_of(key).used >= kFull) {
      if (!make_room(key, key_of)) {
        return false;
      }
    }
    put(segment_of(key), key, node);
    return true;
  }

  /// Takes the node's entry out; nothing when it never found a place.
  void erase(std::uint64_t key, std::uint32_t node) {
    Segment& segment = segment_of(key);
    std::size_t at = place(key);
    while (segment.entries[at].node != node) {
      if (segment.entries[at].node == kNone) {
        return;
      }
      at = (at + 1) & kMask;
    }
    // A hole at the end of a chain needs no mark.
    const bool end = segment.entries[(at + 1) & kMask].node == kNone;
    segment.entries[at].node = end ? kNone : kDeleted;
    segment.used -= end ? 1U : 0U;
    --segment.live;
  }

  /// At worst: of segments that were split as soon as more than half of a full one was alive.
  static constexpr std::size_t kMostBytesAnEntry = 44;

  /// Bytes of the segments that reserve() makes for so many entries.
  static std::size_t reserved_bytes(std::size_t entries) {
    return sizeof(Entry) * kEntries << depth_for(entries);
  }

  /// Segments for so many entries, evenly spread keys given. Does nothing once it was used.
  void reserve(std::size_t entries) {
    if (segments_.size() > 1 || segments_[0].used > 0) {
      return;
    }
    depth_ = depth_for(entries);
    segments_[0].depth = depth_;
    directory_.reserve(std::size_t{1} << depth_);
    while (directory_.size() < std::size_t{1} << depth_) {
      directory_.push_back(add_segment(depth_));
    }
  }

  /// Beside the segments.
  std::size_t bytes() const noexcept {
    return segments_.size() * sizeof(Segment) + directory_.size() * sizeof(Way);
  }

 private:
  static constexpr unsigned kBits = 13;
  static constexpr std::size_t kEntries = std::size_t{1} << kBits;
  static constexpr std::size_t kMask = kEntries - 1;
  static constexpr std::size_t kFull = kEntries / 4 * 3;
  static constexpr std::uint32_t kDeleted = 0xfffffffe;
  static constexpr unsigned kMaxDepth =
      18;  // 2^31 entries; beyond it (bad hashes) segments just fill

  struct Entry {
    std::uint32_t node = kNone;
    std::uint32_t tag = 0;
  };
  struct Segment {
    Entry* entries;
    unsigned depth;
    std::uint32_t used = 0;  // entries that are not empty, deleted ones too
    std::uint32_t live = 0;
  };
  // In the directory. The entries once more: finding then needs nothing of the segment's.
  struct Way {
    Entry* entries;
    std::uint32_t segment;
  };

  static std::uint32_t tag_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }
  static std::size_t place(std::uint64_t key) {
    return static_cast<std::size_t>(key >> 32) & kMask;
  }
  static unsigned depth_for(std::size_t entries) {
    unsigned depth = 0;
    while ((std::size_t{1} << depth) * (kFull / 4 * 3) < entries && depth < kMaxDepth) {
      ++depth;
    }
    return depth;
  }
  std::size_t index(std::uint64_t key) const {
    return depth_ == 0 ? 0 : static_cast<std::size_t>(key >> (64 - depth_));
  }
  Segment& segment_of(std::uint64_t key) { return segments_[directory_[index(key)].segment]; }

  Way add_segment(unsigned depth) {
    auto* entries = static_cast<Entry*>(memory_.take(kEntries * sizeof(Entry)));
    std::uninitialized_default_construct_n(entries, kEntries);
    segments_.push_back({.entries = entries, .depth = depth});
    return {entries, static_cast<std::uint32_t>(segments_.size() - 1)};
  }

  static void put(Segment& segment, std::uint64_t key, std::uint32_t node) {
    std::size_t at = place(key);
    while (segment.entries[at].node != kNone && segment.entries[at].node != kDeleted) {
      at = (at + 1) & kMask;
    }
    segment.used += segment.entries[at].node == kNone ? 1U : 0U;
    ++segment.live;
    segment.entries[at] = {node, tag_of(key)};
  }

  // Cleans the key's segment of deleted entries, or splits it. False when neither helps.
  template <class KeyOf>
  bool make_room(std::uint64_t key, KeyOf key_of) {
    const std::size_t at = index(key);
    Segment& segment = segments_[directory_[at].segment];
    if (segment.live <= kFull / 2) {
      refill(segment, key_of);
      return true;
    }
    if (segment.depth >= kMaxDepth) {
      return false;
    }
    split(at, key_of);
    return true;
  }

  template <class KeyOf>
  static std::vector<std::uint32_t> take_all(Segment& segment) {
    std::vector<std::uint32_t> nodes;
    nodes.reserve(segment.live);
    for (std::size_t i = 0; i < kEntries; ++i) {
      Entry& entry = segment.entries[i];
      if (entry.node != kNone && entry.node != kDeleted) {
        nodes.push_back(entry.node);
      }
      entry = {};
    }
    segment.used = segment.live = 0;
    return nodes;
  }

  template <class KeyOf>
  static void refill(Segment& segment, KeyOf key_of) {
    for (const std::uint32_t node : take_all<KeyOf>(segment)) {
      put(segment, key_of(node), node);
    }
  }

  template <class KeyOf>
  void split(std::size_t at, KeyOf key_of) {
    if (segments_[directory_[at].segment].depth == depth_) {
      std::vector<Way> wider(directory_.size() * 2);
      for (std::size_t i = 0; i < wider.size(); ++i) {
        wider[i] = directory_[i / 2];
      }
      directory_ = std::move(wider);
      ++depth_;
      at *= 2;
    }
    const std::uint32_t old = directory_[at].segment;
    const unsigned depth = ++segments_[old].depth;
    const Way fresh = add_segment(depth);
    const std::size_t span = std::size_t{1} << (depth_ - depth);
    const std::size_t first = at / (span * 2) * (span * 2) + span;
    for (std::size_t i = first; i < first + span; ++i) {
      directory_[i] = fresh;
    }
    for (const std::uint32_t node : take_all<KeyOf>(segments_[old])) {
      const std::uint64_t key = key_of(node);
      put(segment_of(key), key, node);
    }
  }

  BigPages& memory_;
  unsigned depth_ = 0;  // bits of the directory
  std::vector<Way> directory_;
  std::vector<Segment> segments_;
};

}  // namespace toki
