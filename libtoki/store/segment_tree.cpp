#include "store/segment_tree.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>
#include <utility>

#include "store/segment_file.hpp"

namespace toki {
namespace {

constexpr double kHalfLifeMs = 24.0 * 3600 * 1000;

bool less(TokenSpan a, TokenSpan b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

double Segment::use_at(std::int64_t now_ms) const {
  const auto age = static_cast<double>(std::max<std::int64_t>(now_ms - last_used_ms, 0));
  return use * std::exp2(-age / kHalfLifeMs);
}

double Segment::worth_at(std::int64_t now_ms) const {
  const double ms = std::max(prefill_ms, 1e-6);  // unknown: uses still tell them apart
  return use_at(now_ms) * static_cast<double>(tokens.size()) * ms / static_cast<double>(file_bytes);
}

template <class Visit>
std::uint64_t SegmentTrie::walk(TokenSpan prompt, const Visit& visit) const {
  std::uint64_t matched = 0;
  for (const SegmentChildren* children = &roots_; matched < prompt.size();) {
    const auto next = children->find({matched, prompt[matched]});
    if (next == children->end()) {
      break;
    }
    matched += common_prefix(prompt.subspan(matched), next->second->tokens);
    visit(next->second);
    children = &next->second->children;
  }
  return matched;
}

std::uint64_t SegmentTrie::match(TokenSpan prompt) const {
  return walk(prompt, [](Segment*) {});
}

SegmentPath SegmentTrie::path(TokenSpan prompt) const {
  SegmentPath path;
  path.tokens = walk(prompt, [&](Segment* segment) { path.segments.push_back(segment); });
  return path;
}

bool SegmentTree::ByTokens::operator()(const Segment* a, const Segment* b) const {
  return less(a->tokens, b->tokens);
}
bool SegmentTree::ByTokens::operator()(TokenSpan a, const Segment* b) const {
  return less(a, b->tokens);
}
bool SegmentTree::ByTokens::operator()(const Segment* a, TokenSpan b) const {
  return less(a->tokens, b);
}

const SegmentTrie* SegmentTree::current(const std::string& scope) const {
  const auto space = spaces_.find(scope);
  const SegmentTrie* newest = nullptr;
  if (space != spaces_.end()) {
    for (const auto& [layout, trie] : space->second.tries) {
      newest = newest == nullptr || trie->newest_ > newest->newest_ ? trie.get() : newest;
    }
  }
  return newest;
}

SegmentTrie* SegmentTree::find_trie(const std::string& scope, const std::string& layout) const {
  const auto space = spaces_.find(scope);
  if (space == spaces_.end()) {
    return nullptr;
  }
  const auto trie = space->second.tries.find(layout);
  return trie == space->second.tries.end() ? nullptr : trie->second.get();
}

const SegmentTrie* SegmentTree::find(const std::string& scope, const std::string& layout) const {
  return find_trie(scope, layout);
}

std::vector<const SegmentTrie*> SegmentTree::tries(const std::string& scope) const {
  std::vector<const SegmentTrie*> all;
  if (const auto space = spaces_.find(scope); space != spaces_.end()) {
    for (const auto& [layout, trie] : space->second.tries) {
      all.push_back(trie.get());
    }
  }
  return all;
}

void SegmentTree::make_current(const std::string& scope, const std::string& layout) {
  if (SegmentTrie* trie = find_trie(scope, layout); trie != nullptr) {
    trie->newest_ = ++newest_;
  }
}

// What begins with the prompt is ordered behind it, and its longest stored prefix is the last
// before or at it, unless something that parts from it earlier lies between; then the search goes on with
// what they share, of which that prefix is one, too.
Segment* SegmentTree::snapshot(const std::string& scope, TokenSpan prompt) const {
  const auto space = spaces_.find(scope);
  if (space == spaces_.end()) {
    return nullptr;
  }
  const auto& snapshots = space->second.snapshots;
  while (!prompt.empty()) {
    const auto after = snapshots.upper_bound(prompt);
    if (after == snapshots.begin()) {
      return nullptr;
    }
    Segment* before = *std::prev(after);
    const std::size_t shared = common_prefix(before->tokens, prompt);
    if (shared == before->tokens.size()) {
      return before;
    }
    prompt = prompt.first(shared);
  }
  return nullptr;
}

Segment* SegmentTree::by_id(std::uint64_t id) const {
  const auto found = segments_.find(id);
  return found == segments_.end() ? nullptr : found->second.get();
}

Segment* SegmentTree::replaceable(const SegmentHeader& header) const {
  const SegmentTrie* trie = header.snapshot() ? nullptr : find(header.scope, header.layout);
  const Segment* parent = header.parent == 0 ? nullptr : by_id(header.parent);
  if (trie == nullptr || (header.parent != 0 && parent == nullptr)) {
    return nullptr;
  }
  const SegmentChildren& siblings = parent == nullptr ? trie->roots_ : parent->children;
  const auto rival = siblings.find({header.from, header.tokens.front()});
  if (rival == siblings.end() || !rival->second->children.empty()) {
    return nullptr;
  }
  const Tokens& shorter = rival->second->tokens;
  const bool begins = shorter.size() < header.tokens.size() &&
                      common_prefix(shorter, header.tokens) == shorter.size();
  return begins ? rival->second : nullptr;
}

bool SegmentTree::has_place(const SegmentHeader& header) const {
  const Token first = header.tokens.front();
  const bool at_start = header.parent == 0 && header.from == 0 && header.parent_checksum == 0;
  if (header.snapshot()) {
    const auto space = spaces_.find(header.scope);
    return at_start &&
           (space == spaces_.end() || !space->second.snapshots.contains(TokenSpan(header.tokens)));
  }
  const SegmentTrie* trie = find_trie(header.scope, header.layout);
  if (header.parent == 0) {
    return at_start && (trie == nullptr || !trie->roots_.contains({0, first}));
  }
  const Segment* parent = by_id(header.parent);
  return parent != nullptr && trie != nullptr && parent->trie == trie &&
         parent->checksum == header.parent_checksum && header.from > parent->from &&
         header.from <= parent->end() &&
         (header.from == parent->end() || parent->tokens[header.from - parent->from] != first) &&
         !parent->children.contains({header.from, first});
}

void SegmentTree::place(Segment& segment, const SegmentHeader& header) {
  Space& space = spaces_[header.scope];
  if (header.snapshot()) {
    space.snapshots.insert(&segment);
    ++snapshots_;
    return;
  }
  auto& trie = space.tries[header.layout];
  if (trie == nullptr) {
    trie = std::make_unique<SegmentTrie>(header.layout);
  }
  segment.trie = trie.get();
  segment.parent = by_id(header.parent);
  SegmentChildren& siblings = segment.parent == nullptr ? trie->roots_ : segment.parent->children;
  siblings.emplace(std::pair(header.from, header.tokens.front()), &segment);
}

Segment* SegmentTree::add(SegmentHeader&& header, std::uint64_t checksum,
                          std::uint64_t header_bytes, std::uint64_t file_bytes) {
  if (segments_.contains(header.id) || !has_place(header)) {
    return nullptr;
  }
  auto owned = std::make_unique<Segment>();
  Segment& segment = *owned;
  segment.id = header.id;
  segment.checksum = checksum;
  segment.from = header.from;
  segment.header_bytes = header_bytes;
  segment.file_bytes = file_bytes;
  segment.prefill_ms = std::isfinite(header.prefill_ms) ? header.prefill_ms : 0;
  segment.last_used_ms = header.created_ms;
  segment.tokens = header.tokens;
  segment.scope = header.scope;
  place(segment, header);
  bytes_ += file_bytes;
  tokens_ += segment.tokens.size();
  segments_.emplace(segment.id, std::move(owned));
  return &segment;
}

void SegmentTree::remove(Segment& leaf) {
  TOKI_CHECK(leaf.children.empty());
  const auto space = spaces_.find(leaf.scope);
  if (leaf.snapshot()) {
    space->second.snapshots.erase(&leaf);
    --snapshots_;
  } else {
    SegmentChildren& siblings = leaf.parent == nullptr ? leaf.trie->roots_ : leaf.parent->children;
    siblings.erase({leaf.from, leaf.tokens.front()});
    if (leaf.trie->roots_.empty()) {
      space->second.tries.erase(space->second.tries.find(leaf.trie->layout_));
    }
  }
  if (space->second.tries.empty() && space->second.snapshots.empty()) {
    spaces_.erase(space);
  }
  bytes_ -= leaf.file_bytes;
  tokens_ -= leaf.tokens.size();
  segments_.erase(leaf.id);
}

std::vector<Segment*> SegmentTree::below(Segment& segment) {
  std::vector<Segment*> all{&segment};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const auto& [place, child] : all[i]->children) {
      all.push_back(child);
    }
  }
  std::reverse(all.begin(), all.end());
  return all;
}

std::vector<Segment*> SegmentTree::cheapest(std::uint64_t bytes,
                                            const std::set<const Segment*>& keep,
                                            std::int64_t now_ms) const {
  using Worth = std::tuple<double, std::uint64_t, Segment*>;
  std::priority_queue<Worth, std::vector<Worth>, std::greater<>> leaves;
  std::unordered_map<const Segment*, std::size_t> children;  // that are not chosen yet
  const auto offer = [&](Segment* segment) {
    if (!keep.contains(segment)) {
      leaves.emplace(segment->worth_at(now_ms), segment->id, segment);
    }
  };
  for (const auto& [id, segment] : segments_) {
    if (segment->children.empty()) {
      offer(segment.get());
    }
  }
  std::vector<Segment*> chosen;
  std::uint64_t sum = 0;
  while (sum < bytes && !leaves.empty()) {
    Segment* leaf = std::get<Segment*>(leaves.top());
    leaves.pop();
    chosen.push_back(leaf);
    sum += leaf->file_bytes;
    if (Segment* parent = leaf->parent; parent != nullptr) {
      auto& left = children.try_emplace(parent, parent->children.size()).first->second;
      if (--left == 0) {
        offer(parent);
      }
    }
  }
  return sum < bytes ? std::vector<Segment*>{} : chosen;
}

}  // namespace toki
