// Layout. A node is 40 bytes, its tokens a cell of block_size tokens; both live in pages, by the
// node's number. A prompt's new blocks get consecutive numbers, so a path is a few runs of
// consecutive cells and is compared run by run.
//
//   scope ─► root ─► node ─► node ─► node          pages of nodes   │ 40 B │ 40 B │ …
//                       └──► node ─► (7 tokens)     pages of cells   │ block │ block │ …
//
// Finding. Keys of whole blocks are in a KeyTable. The tree is prefix-closed, so the deepest known
// block is found by binary search over the prompt's keys; then its path is compared with the
// prompt, token by token. What hashes got wrong (a collision, a key without place) is set right by
// a walk down the children, which needs no hash. The same walk finds how far the prompt goes into
// the next block.
//
// Only leaves may be short: a prompt's last, partial block. A longer prompt that goes on from one
// replaces it.
//
// Leaving. Leaves without pins hang in one of two lists, coldest first: used once, used again. The
// first gives way first; the second only while its blocks are more than four fifths of the budget.
#include <toki/block_tree.hpp>
#include <toki/result.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/hash.hpp"
#include "core/key_table.hpp"
#include "core/readers_lock.hpp"
#include "core/siblings.hpp"

namespace toki {
namespace {

using NodeId = std::uint32_t;
constexpr NodeId kNone = KeyTable::kNone;
constexpr std::uint32_t kSeveral = 0x80000000;  // in Node::child: the number of a Siblings follows
constexpr unsigned kPageBits = 10;
constexpr std::size_t kPage = std::size_t{1} << kPageBits;

struct Node {
  std::uint64_t key = 0;
  NodeId parent = kNone;
  std::uint32_t child = kNone;
  NodeId colder = kNone;  // neighbours in the list of leaves
  NodeId hotter = kNone;
  std::uint32_t last_used = 0;
  float use = 0;
  std::uint16_t length = 0;  // tokens; 0 for a root
  std::uint16_t run = 0;     // ancestors with the numbers just below
  std::uint16_t pins = 0;
  bool reused = false;
  bool listed = false;
};
static_assert(sizeof(Node) == 40);

struct ScopeHash {
  std::size_t operator()(const Scope& scope) const noexcept {
    return static_cast<std::size_t>(scope.seed());
  }
};

// The coldest first.
struct LeafList {
  NodeId coldest = kNone;
  NodeId hottest = kNone;
};

struct Place {
  NodeId node = kNone;
  std::size_t blocks = 0;
};

}  // namespace

struct BlockTree::Impl {
  explicit Impl(const BlockTreeOptions& o)
      : options(o),
        size(o.block_size),
        limit(o.max_bytes == 0
                  ? o.max_blocks
                  : std::min(o.max_blocks,
                             std::max<std::size_t>(
                                 o.max_bytes / (64 + o.block_size * sizeof(Token)), 1))),
        hash(best_hash_bytes()) {}

  BlockTreeOptions options;
  std::size_t size;   // tokens a block
  std::size_t limit;  // blocks, by both budgets
  HashBytes hash;
  mutable ReadersLock lock;

  std::vector<std::unique_ptr<Node[]>> nodes;
  std::vector<std::unique_ptr<Token[]>> cells;
  NodeId next_fresh = 0;
  NodeId free = kNone;  // list of freed numbers, through Node::hotter
  KeyTable table;
  std::vector<std::unique_ptr<Siblings>> siblings;
  std::vector<std::uint32_t> free_siblings;
  std::unordered_map<Scope, NodeId, ScopeHash> roots;
  LeafList once;
  LeafList again;
  std::size_t blocks = 0;
  std::size_t reused_blocks = 0;
  std::uint32_t tick = 0;

  Node& at(NodeId id) { return nodes[id >> kPageBits][id & (kPage - 1)]; }
  const Node& at(NodeId id) const { return nodes[id >> kPageBits][id & (kPage - 1)]; }
  Token* cell(NodeId id) { return cells[id >> kPageBits].get() + (id & (kPage - 1)) * size; }
  const Token* cell(NodeId id) const {
    return cells[id >> kPageBits].get() + (id & (kPage - 1)) * size;
  }
  TokenSpan tokens(NodeId id) const { return {cell(id), at(id).length}; }
  auto tokens_of() const {
    return [this](NodeId id) { return tokens(id); };
  }

  std::uint64_t block_hash(const Token* block) const {
    return options.hash != nullptr ? options.hash(block, size) : hash(block, size * sizeof(Token));
  }

  // Finding.
  static constexpr std::size_t kGroup = 16;  // blocks
  // Keys of a prompt's blocks: given, or room for them and the seed they start from.
  struct Keys {
    std::span<std::uint64_t> all;
    bool hashed;
    std::uint64_t seed;
  };
  // Keys that are hashed already are only read.
  static Keys given(std::span<const std::uint64_t> keys) {
    return {{const_cast<std::uint64_t*>(keys.data()), keys.size()}, true, 0};
  }
  NodeId find(std::uint64_t key) const {
    return table.find(key, [](NodeId) { return true; });
  }
  std::uint64_t hash_blocks(std::uint64_t parent, TokenSpan prompt,
                            std::span<std::uint64_t> keys) const;
  Place bisect(std::span<const std::uint64_t> keys, Place best, std::size_t unknown) const;
  Place deepest(NodeId root, TokenSpan prompt, Keys keys) const;
  void prefetch_cells(NodeId last, std::size_t count) const;
  Match match(const Scope& scope, TokenSpan prompt, Keys keys) const;
  bool path_equals(NodeId root, Place place, TokenSpan prompt) const;
  std::pair<NodeId, std::size_t> nearest(NodeId node, TokenSpan block) const;
  Place walk_down(Place from, TokenSpan prompt) const;

  // Changing.
  NodeId take_number();
  NodeId add(NodeId parent, TokenSpan block, std::optional<std::uint64_t> key);
  void remove(NodeId leaf);
  void adopt(NodeId parent, NodeId child);
  void disown(NodeId parent, NodeId child);
  void touch(NodeId node);
  bool make_room(NodeId keep);
  LeafList& list_of(const Node& node) { return node.reused ? again : once; }
  void hang(NodeId leaf, bool cold);
  void unhang(NodeId leaf);
  NodeId root_of(const Scope& scope);
  NodeId insert(const Scope& scope, TokenSpan prompt, std::span<const std::uint64_t> keys,
                std::size_t& added);
  double use_now(const Node& node) const {
    return static_cast<double>(node.use) *
           std::exp2(-static_cast<double>(tick - node.last_used) / options.half_life);
  }
};

// Hashes block by block, then chains: the hashes do not wait for each other. Returns the last key.
std::uint64_t BlockTree::Impl::hash_blocks(std::uint64_t parent, TokenSpan prompt,
                                           std::span<std::uint64_t> keys) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = block_hash(prompt.data() + i * size);
  }
  for (std::uint64_t& key : keys) {
    key = parent = chain_key(parent, key);
  }
  return parent;
}

// Binary search between `best` (known) and `unknown` blocks. Wrong only where hashes collide.
Place BlockTree::Impl::bisect(std::span<const std::uint64_t> keys, Place best,
                              std::size_t unknown) const {
  while (best.blocks + 1 < unknown) {
    const std::size_t probe = best.blocks + (unknown - best.blocks) / 2;
    const NodeId node = find(keys[probe - 1]);
    if (node == kNone) {
      unknown = probe;
    } else {
      best = {node, probe};
    }
  }
  return best;
}

// The deepest known block by keys, some blocks at a time: while one group is looked up and its
// cells are fetched, the next is hashed. The first block is a group of its own, because most
// prompts that are not known differ there.
Place BlockTree::Impl::deepest(NodeId root, TokenSpan prompt, Keys keys) const {
  Place best{root, 0};
  std::size_t asked = 0;  // blocks up to the last key whose entry is on its way
  const auto answer = [&] {
    const NodeId node = find(keys.all[asked - 1]);
    if (node != kNone) {
      prefetch_cells(node, asked - best.blocks);
      best = {node, asked};
    }
    return node != kNone;
  };
  while (asked < keys.all.size()) {
    const std::size_t count = std::min(asked == 0 ? 1 : kGroup, keys.all.size() - asked);
    if (!keys.hashed) {
      keys.seed =
          hash_blocks(keys.seed, prompt.subspan(asked * size), keys.all.subspan(asked, count));
    }
    table.prefetch(keys.all[asked + count - 1]);
    if (asked > 0 && !answer()) {
      return bisect(keys.all, best, asked);
    }
    asked += count;
  }
  return asked > 0 && !answer() ? bisect(keys.all, best, asked) : best;
}

// Fetches the tokens of `last` and of the blocks before it, if they lie as they mostly do: one
// after the other.
void BlockTree::Impl::prefetch_cells(NodeId last, std::size_t count) const {
  __builtin_prefetch(&at(last));
  const std::size_t in_page = std::min<std::size_t>(count, (last & (kPage - 1)) + 1);
  const auto* end = reinterpret_cast<const char*>(cell(last) + size);
  for (const char* line = end - in_page * size * sizeof(Token); line < end; line += 64) {
    __builtin_prefetch(line);
  }
}

// Compares the path from the root to `place` with the prompt, run by run, from its end.
bool BlockTree::Impl::path_equals(NodeId root, Place place, TokenSpan prompt) const {
  NodeId node = place.node;
  std::size_t left = place.blocks;
  while (left > 0) {
    if (node == kNone || at(node).length != size) {
      return false;
    }
    const std::size_t run = std::min<std::size_t>(at(node).run, left - 1);
    const NodeId first = node - static_cast<NodeId>(run);
    const std::size_t count = run + 1;
    if (std::memcmp(cell(first), prompt.data() + (left - count) * size,
                    count * size * sizeof(Token)) != 0) {
      return false;
    }
    left -= count;
    node = at(first).parent;
  }
  return node == root;
}

// The child that shares most with `block`, and how many tokens.
std::pair<NodeId, std::size_t> BlockTree::Impl::nearest(NodeId node, TokenSpan block) const {
  const std::uint32_t child = at(node).child;
  if (child == kNone || block.empty()) {
    return {kNone, 0};
  }
  if ((child & kSeveral) == 0) {
    return {child, common_prefix(tokens(child), block)};
  }
  std::pair<NodeId, std::size_t> best{kNone, 0};
  for (const NodeId candidate : siblings[child & ~kSeveral]->around(block, tokens_of())) {
    const std::size_t common = candidate == kNone ? 0 : common_prefix(tokens(candidate), block);
    if (common > best.second) {
      best = {candidate, common};
    }
  }
  return best;
}

// Goes on by whole blocks from `from`, comparing tokens only.
Place BlockTree::Impl::walk_down(Place from, TokenSpan prompt) const {
  while ((from.blocks + 1) * size <= prompt.size()) {
    const auto [child, common] = nearest(from.node, prompt.subspan(from.blocks * size, size));
    if (child == kNone || common < size) {
      break;
    }
    from = {child, from.blocks + 1};
  }
  return from;
}

NodeId BlockTree::Impl::take_number() {
  if (free != kNone) {
    const NodeId id = free;
    free = at(id).hotter;
    at(id) = Node{};
    return id;
  }
  if ((next_fresh >> kPageBits) == nodes.size()) {
    nodes.push_back(std::make_unique<Node[]>(kPage));
    cells.push_back(std::make_unique_for_overwrite<Token[]>(kPage * size));
  }
  return next_fresh++;
}

NodeId BlockTree::Impl::add(NodeId parent, TokenSpan block, std::optional<std::uint64_t> key) {
  const NodeId id = take_number();
  Node& node = at(id);
  node.parent = parent;
  node.length = static_cast<std::uint16_t>(block.size());
  node.last_used = tick;
  node.use = 1;
  std::copy(block.begin(), block.end(), cell(id));
  const Node& above = at(parent);
  const bool follows = id == parent + 1 && (id & (kPage - 1)) != 0 && above.length == size;
  node.run = follows && above.run < 0xffff ? static_cast<std::uint16_t>(above.run + 1) : 0;
  if (key) {
    node.key = *key;
    table.insert(*key, id, [this](NodeId other) { return at(other).key; });
  }
  unhang(parent);
  adopt(parent, id);
  ++blocks;
  return id;
}

void BlockTree::Impl::adopt(NodeId parent, NodeId child) {
  std::uint32_t& held = at(parent).child;
  if (held == kNone) {
    held = child;
    return;
  }
  if ((held & kSeveral) == 0) {
    const NodeId first = held;
    std::uint32_t number = 0;
    if (free_siblings.empty()) {
      number = static_cast<std::uint32_t>(siblings.size());
      siblings.push_back(std::make_unique<Siblings>());
    } else {
      number = free_siblings.back();
      free_siblings.pop_back();
      siblings[number] = std::make_unique<Siblings>();
    }
    held = number | kSeveral;
    siblings[number]->insert(first, tokens_of());
  }
  siblings[held & ~kSeveral]->insert(child, tokens_of());
}

void BlockTree::Impl::disown(NodeId parent, NodeId child) {
  std::uint32_t& held = at(parent).child;
  if ((held & kSeveral) == 0) {
    held = kNone;
    return;
  }
  const std::uint32_t number = held & ~kSeveral;
  siblings[number]->erase(child, tokens_of());
  if (siblings[number]->size() > 1) {
    return;
  }
  siblings[number]->for_each([&](NodeId last) { held = last; });
  siblings[number].reset();
  free_siblings.push_back(number);
}

// A leaf hangs in the list of its kind, at the hot end when it was just used.
void BlockTree::Impl::hang(NodeId leaf, bool cold) {
  Node& node = at(leaf);
  if (node.listed || node.pins > 0 || node.length == 0 || node.child != kNone) {
    return;
  }
  LeafList& list = list_of(node);
  node.listed = true;
  node.colder = cold ? kNone : list.hottest;
  node.hotter = cold ? list.coldest : kNone;
  if (list.coldest == kNone) {
    list.coldest = list.hottest = leaf;
  } else if (cold) {
    at(list.coldest).colder = leaf;
    list.coldest = leaf;
  } else {
    at(list.hottest).hotter = leaf;
    list.hottest = leaf;
  }
}

void BlockTree::Impl::unhang(NodeId leaf) {
  Node& node = at(leaf);
  if (!node.listed) {
    return;
  }
  LeafList& list = list_of(node);
  (node.colder == kNone ? list.coldest : at(node.colder).hotter) = node.hotter;
  (node.hotter == kNone ? list.hottest : at(node.hotter).colder) = node.colder;
  node.colder = node.hotter = kNone;
  node.listed = false;
}

void BlockTree::Impl::remove(NodeId leaf) {
  Node& node = at(leaf);
  unhang(leaf);
  if (node.length == size) {
    table.erase(node.key, leaf);
  }
  const NodeId parent = node.parent;
  disown(parent, leaf);
  --blocks;
  reused_blocks -= node.reused ? 1U : 0U;
  // The parent was used no earlier than its child: colder than all others if at the same time, else
  // as hot as any.
  hang(parent, at(parent).last_used == node.last_used);
  node = Node{};
  node.hotter = free;
  free = leaf;
}

void BlockTree::Impl::touch(NodeId id) {
  Node& node = at(id);
  const bool listed = node.listed;
  unhang(id);
  reused_blocks += node.reused ? 0U : 1U;
  node.reused = true;
  node.use = static_cast<float>(use_now(node) + 1);
  node.last_used = tick;
  if (listed) {
    hang(id, false);
  }
}

// Makes room for one block without touching `keep` or what lies above it. False when nothing may
// go.
bool BlockTree::Impl::make_room(NodeId keep) {
  while (blocks >= limit) {
    NodeId victim = once.coldest == keep && keep != kNone ? at(keep).hotter : once.coldest;
    if (victim == kNone && reused_blocks > limit / 5 * 4) {
      victim = again.coldest == keep && keep != kNone ? at(keep).hotter : again.coldest;
    }
    if (victim == kNone) {
      return false;
    }
    remove(victim);
  }
  return true;
}

NodeId BlockTree::Impl::root_of(const Scope& scope) {
  const auto [it, fresh] = roots.try_emplace(scope, kNone);
  if (fresh) {
    it->second = take_number();
    at(it->second).key = scope.seed();
  }
  return it->second;
}

// Returns the node of the prompt's last token, or the last that found room.
NodeId BlockTree::Impl::insert(const Scope& scope, TokenSpan prompt,
                               std::span<const std::uint64_t> keys, std::size_t& added) {
  ++tick;
  const NodeId root = root_of(scope);
  Place place = deepest(root, prompt, given(keys));
  if (!path_equals(root, place, prompt)) {
    place = {root, 0};
  }
  place = walk_down(place, prompt);
  for (NodeId node = place.node; node != root; node = at(node).parent) {
    touch(node);
  }
  for (std::size_t i = place.blocks; i < keys.size(); ++i) {
    table.prefetch(keys[i]);
  }
  NodeId node = place.node;
  bool fresh =
      false;  // a new node has no children, and hangs in no list before its prompt is whole
  for (std::size_t i = place.blocks; i * size < prompt.size(); ++i) {
    const TokenSpan block = prompt.subspan(i * size, std::min(size, prompt.size() - i * size));
    const auto [child, common] =
        fresh ? std::pair<NodeId, std::size_t>{kNone, 0} : nearest(node, block);
    if (child != kNone && common == block.size()) {  // the beginning of a known block
      touch(child);
      return child;
    }
    if (child != kNone && common == at(child).length &&
        at(child).pins == 0) {  // goes on from a short leaf
      remove(child);
    }
    if (!make_room(node)) {
      break;
    }
    node = add(node, block, i < keys.size() ? std::optional(keys[i]) : std::nullopt);
    fresh = true;
    ++added;
  }
  hang(node, false);
  return node;
}

BlockTree::BlockTree(const BlockTreeOptions& options) {
  TOKI_CHECK(options.block_size >= 8 && options.block_size <= 512 && options.max_blocks > 0 &&
             options.max_blocks <= (std::size_t{1} << 31) - 2 && options.half_life > 0);
  impl_ = std::make_unique<Impl>(options);
}
BlockTree::~BlockTree() = default;
BlockTree::BlockTree(BlockTree&&) noexcept = default;
BlockTree& BlockTree::operator=(BlockTree&&) noexcept = default;

std::vector<std::uint64_t> BlockTree::keys(const Scope& scope, TokenSpan prompt) const {
  std::vector<std::uint64_t> keys(prompt.size() / impl_->size);
  impl_->hash_blocks(scope.seed(), prompt, keys);
  return keys;
}

BlockTree::Match BlockTree::Impl::match(const Scope& scope, TokenSpan prompt, Keys keys) const {
  const ReadGuard guard(lock);
  const auto root = roots.find(scope);
  if (root == roots.end()) {
    return {};
  }
  Place place = deepest(root->second, prompt, keys);
  if (!path_equals(root->second, place, prompt)) {
    place = {root->second, 0};
  }
  place = walk_down(place, prompt);
  const std::size_t whole = place.blocks * size;
  const TokenSpan rest = prompt.subspan(whole, std::min(size, prompt.size() - whole));
  return {.tokens = whole + nearest(place.node, rest).second, .blocks = place.blocks};
}

BlockTree::Match BlockTree::match(const Scope& scope, TokenSpan prompt,
                                  std::span<const std::uint64_t> keys) const {
  return impl_->match(scope, prompt, Impl::given(keys));
}

BlockTree::Match BlockTree::match(const Scope& scope, TokenSpan prompt) const {
  constexpr std::size_t kOnStack = 512;
  const std::size_t count = prompt.size() / impl_->size;
  if (count > kOnStack) {
    std::vector<std::uint64_t> keys(count);
    return impl_->match(scope, prompt, {keys, false, scope.seed()});
  }
  std::array<std::uint64_t, kOnStack> keys;  // NOLINT: filled as far as it is read
  return impl_->match(scope, prompt, {std::span(keys).first(count), false, scope.seed()});
}

std::size_t BlockTree::insert(const Scope& scope, TokenSpan prompt) {
  return insert(scope, prompt, keys(scope, prompt));
}

std::size_t BlockTree::insert(const Scope& scope, TokenSpan prompt,
                              std::span<const std::uint64_t> keys) {
  std::size_t added = 0;
  const WriteGuard guard(impl_->lock);
  impl_->insert(scope, prompt, keys, added);
  return added;
}

bool BlockTree::pin(const Scope& scope, TokenSpan prompt) {
  std::size_t added = 0;
  const auto hashed = keys(scope, prompt);
  const WriteGuard guard(impl_->lock);
  const NodeId node = impl_->insert(scope, prompt, hashed, added);
  std::size_t depth = 0;  // tokens down to the node
  for (NodeId above = node; above != kNone; above = impl_->at(above).parent) {
    depth += impl_->at(above).length;
  }
  if (depth < prompt.size() || impl_->at(node).pins == 0xffff) {
    return false;
  }
  impl_->unhang(node);
  ++impl_->at(node).pins;
  return true;
}

void BlockTree::unpin(const Scope& scope, TokenSpan prompt) {
  const WriteGuard guard(impl_->lock);
  const auto root = impl_->roots.find(scope);
  if (root == impl_->roots.end()) {
    return;
  }
  const Place place = impl_->walk_down({root->second, 0}, prompt);
  const TokenSpan rest = prompt.subspan(place.blocks * impl_->size);
  const NodeId node = rest.empty() ? place.node : impl_->nearest(place.node, rest).first;
  if (node != kNone && impl_->at(node).pins > 0) {
    --impl_->at(node).pins;
    impl_->hang(node, false);
  }
}

std::vector<BlockTree::HotPrefix> BlockTree::hottest(std::size_t count,
                                                     std::size_t min_tokens) const {
  struct Candidate {
    NodeId node;
    std::size_t tokens;
    double use;
    const Scope* scope;
  };
  constexpr double kClose = 0.5;  // of the parent's use
  const Impl& impl = *impl_;
  const ReadGuard guard(impl.lock);
  std::vector<Candidate> found;
  std::vector<Candidate> pending;
  for (const auto& [scope, root] : impl.roots) {
    pending.push_back({root, 0, 0, &scope});
  }
  while (!pending.empty()) {
    const Candidate here = pending.back();
    pending.pop_back();
    bool goes_on = false;
    const auto visit = [&](NodeId child) {
      const double use = impl.use_now(impl.at(child));
      goes_on = goes_on || (here.tokens > 0 && use >= kClose * here.use);
      pending.push_back({child, here.tokens + impl.at(child).length, use, here.scope});
    };
    const std::uint32_t child = impl.at(here.node).child;
    if (child != kNone && (child & kSeveral) != 0) {
      impl.siblings[child & ~kSeveral]->for_each(visit);
    } else if (child != kNone) {
      visit(child);
    }
    if (!goes_on && here.tokens >= std::max<std::size_t>(min_tokens, 1)) {
      found.push_back(here);
    }
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.use != b.use ? a.use > b.use : a.tokens > b.tokens;
  });
  found.resize(std::min(found.size(), count));
  std::vector<HotPrefix> result;
  for (const Candidate& hot : found) {
    HotPrefix prefix{.scope = *hot.scope, .tokens = Tokens(hot.tokens), .use = hot.use};
    std::size_t end = hot.tokens;
    for (NodeId node = hot.node; end > 0; node = impl.at(node).parent) {
      const TokenSpan block = impl.tokens(node);
      end -= block.size();
      std::copy(block.begin(), block.end(),
                prefix.tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
    result.push_back(std::move(prefix));
  }
  return result;
}

void BlockTree::clear() {
  impl_ = std::make_unique<Impl>(impl_->options);
}

void BlockTree::reserve(std::size_t blocks) {
  const WriteGuard guard(impl_->lock);
  if (impl_->blocks == 0 && impl_->next_fresh == 0) {
    impl_->table.reserve(blocks);
  }
  while (impl_->nodes.size() * kPage < blocks + kPage) {
    impl_->nodes.push_back(std::make_unique<Node[]>(kPage));
    impl_->cells.push_back(std::make_unique<Token[]>(kPage * impl_->size));
  }
}

std::size_t BlockTree::blocks() const noexcept {
  const ReadGuard guard(impl_->lock);
  return impl_->blocks;
}

std::size_t BlockTree::capacity() const noexcept {
  return impl_->limit;
}

std::size_t BlockTree::bytes() const noexcept {
  const ReadGuard guard(impl_->lock);
  std::size_t bytes = impl_->nodes.size() * kPage * (sizeof(Node) + impl_->size * sizeof(Token)) +
                      impl_->table.bytes();
  for (const auto& siblings : impl_->siblings) {
    bytes += siblings ? siblings->bytes() : sizeof(siblings);
  }
  return bytes;
}

const BlockTreeOptions& BlockTree::options() const noexcept {
  return impl_->options;
}

void BlockTree::check_invariants() const {
  const Impl& impl = *impl_;
  const ReadGuard guard(impl.lock);
  std::size_t blocks = 0;
  std::size_t reused = 0;
  std::size_t hanging = 0;
  std::vector<NodeId> pending;
  for (const auto& [scope, root] : impl.roots) {
    TOKI_CHECK(impl.at(root).length == 0 && impl.at(root).parent == kNone);
    pending.push_back(root);
  }
  while (!pending.empty()) {
    const NodeId parent = pending.back();
    pending.pop_back();
    const auto visit = [&](NodeId id) {
      const Node& node = impl.at(id);
      TOKI_CHECK(node.parent == parent && node.length > 0 && node.length <= impl.size);
      TOKI_CHECK(node.length == impl.size || node.child == kNone);
      TOKI_CHECK(node.listed == (node.child == kNone && node.pins == 0));
      TOKI_CHECK(node.run == 0 || node.parent == id - 1);
      if (node.length == impl.size && impl.options.hash == nullptr) {
        TOKI_CHECK(impl.table.find(node.key, [&](NodeId other) { return other == id; }) == id);
      }
      ++blocks;
      reused += node.reused ? 1U : 0U;
      hanging += node.listed ? 1U : 0U;
      pending.push_back(id);
    };
    const std::uint32_t child = impl.at(parent).child;
    if (child != kNone && (child & kSeveral) != 0) {
      TOKI_CHECK(impl.siblings[child & ~kSeveral]->size() > 1);
      impl.siblings[child & ~kSeveral]->for_each(visit);
    } else if (child != kNone) {
      visit(child);
    }
  }
  std::size_t listed = 0;
  for (const LeafList* list : {&impl.once, &impl.again}) {
    for (NodeId id = list->coldest; id != kNone; id = impl.at(id).hotter) {
      TOKI_CHECK(impl.at(id).reused == (list == &impl.again));
      TOKI_CHECK(impl.at(id).hotter != kNone || id == list->hottest);
      ++listed;
    }
  }
  TOKI_CHECK(blocks == impl.blocks && reused == impl.reused_blocks && listed == hanging);
  TOKI_CHECK(blocks <= impl.limit);
}

}  // namespace toki
