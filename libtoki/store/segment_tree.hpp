// SegmentTree: what is stored, in memory. For each scope and layout a compressed trie of segments
// over token ids, and for each scope its snapshots in the order of their tokens.
//
// A segment hangs behind a token of its parent. No two that hang at one place begin with the same
// token, and none begins with the token with which its parent goes on there, so the way of a prompt
// through the tree is the only one.
//
// Threads:   const calls at the same time; changes alone.
// Ownership: owns its segments; pointers hold until the segment is removed.
// Errors:    none.
// Cost:      a match is one comparison pass and one look-up a segment; for snapshots a binary
//            search of whole comparisons, repeated where prompts part. Token ids are kept: 4 bytes each,
//            beside some KiB of rows on the disk.
#pragma once

#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace toki {

struct SegmentHeader;
class SegmentTrie;

/// Segments that hang from one place, by the place in the prompt and their first token.
struct Segment;
using SegmentChildren = std::map<std::pair<std::uint64_t, Token>, Segment*>;

struct Segment {
  std::uint64_t id = 0;
  std::uint64_t checksum = 0;  ///< of its header
  std::uint64_t from = 0;      ///< place of its first token in the prompt
  Tokens tokens;
  std::string scope;
  Segment* parent = nullptr;
  SegmentTrie* trie = nullptr;  ///< null: a snapshot
  SegmentChildren children;
  std::uint64_t header_bytes = 0, file_bytes = 0;
  double prefill_ms = 0;  ///< of one token
  double use = 0;         ///< decayed number of uses, as of last_used_ms
  std::int64_t last_used_ms = 0;

  bool snapshot() const { return trie == nullptr; }
  std::uint64_t end() const { return from + tokens.size(); }
  /// A use halves in a day.
  double use_at(std::int64_t now_ms) const;
  /// Milliseconds of computing that a byte of it is expected to save.
  double worth_at(std::int64_t now_ms) const;
};

/// Segments from the first on, and how many tokens they give together; of the last one maybe only
/// its beginning.
struct SegmentPath {
  std::vector<Segment*> segments;
  std::uint64_t tokens = 0;
};

class SegmentTrie {
 public:
  explicit SegmentTrie(std::string layout) : layout_(std::move(layout)) {}

  const std::string& layout() const { return layout_; }
  std::uint64_t match(TokenSpan prompt) const;
  SegmentPath path(TokenSpan prompt) const;

 private:
  friend class SegmentTree;
  template <class Visit>
  std::uint64_t walk(TokenSpan prompt, const Visit& visit) const;

  std::string layout_;
  SegmentChildren roots_;
  std::uint64_t newest_ = 0;
};

class SegmentTree {
 public:
  /// The trie of the scope whose rows the backend has now: the one that was used last by a take.
  const SegmentTrie* current(const std::string& scope) const;
  const SegmentTrie* find(const std::string& scope, const std::string& layout) const;
  /// All layouts of the scope.
  std::vector<const SegmentTrie*> tries(const std::string& scope) const;
  /// From now on this is the current one of its scope.
  void make_current(const std::string& scope, const std::string& layout);
  /// The longest snapshot, all of whose tokens the prompt begins with; null: none.
  Segment* snapshot(const std::string& scope, TokenSpan prompt) const;
  Segment* by_id(std::uint64_t id) const;

  /// A leaf that this one can take the place of: it hangs at the same place, and its tokens are the
  /// first ones of this one.
  Segment* replaceable(const SegmentHeader& header) const;
  /// Null: there is no place for it. The parent is not there or another than the header says, or
  /// another segment has its place.
  Segment* add(SegmentHeader&& header, std::uint64_t checksum, std::uint64_t header_bytes,
               std::uint64_t file_bytes);
  /// REQUIRES: a leaf.
  void remove(Segment& leaf);

  /// The segment and all below it, leaves first.
  static std::vector<Segment*> below(Segment& segment);
  /// The least worth leaves, one after the other, that have `bytes` together; none of `keep`.
  /// Empty: there are not so many bytes.
  std::vector<Segment*> cheapest(std::uint64_t bytes, const std::set<const Segment*>& keep,
                                 std::int64_t now_ms) const;

  template <class Visit>
  void each(const Visit& visit) const {
    for (const auto& [id, segment] : segments_) {
      visit(*segment);
    }
  }
  std::size_t size() const { return segments_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t snapshots() const { return snapshots_; }

 private:
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const Segment* a, const Segment* b) const;
    bool operator()(TokenSpan a, const Segment* b) const;
    bool operator()(const Segment* a, TokenSpan b) const;
  };
  struct Space {
    std::map<std::string, std::unique_ptr<SegmentTrie>> tries;  // by layout
    std::set<Segment*, ByTokens> snapshots;
  };

  SegmentTrie* find_trie(const std::string& scope, const std::string& layout) const;
  bool has_place(const SegmentHeader& header) const;
  void place(Segment& segment, const SegmentHeader& header);

  std::unordered_map<std::string, Space> spaces_;  // by scope
  std::unordered_map<std::uint64_t, std::unique_ptr<Segment>> segments_;
  std::uint64_t bytes_ = 0, tokens_ = 0, snapshots_ = 0, newest_ = 0;
};

}  // namespace toki
