// Layout. A node is 40 bytes, its tokens a cell of block_size tokens; both live in pages of 1,024,
// by the node's number. A prompt's new blocks get consecutive numbers, so a path is a few runs of
// consecutive cells and is compared run by run.
//
//   scope ─► root ─► node ─► node ─► node          a page: │ 40 B │ 40 B │ … │ block │ block │ …
//                       └──► node ─► (7 tokens)
//
// Finding. Keys of whole blocks are in a KeyTable. The tree is prefix-closed, so the deepest known
// block is found by asking for the last of each group of blocks and, in the first group that is not
// known whole, by binary search. Nothing waits for memory that could be asked for before: a match
// is a pipeline whose steps work on neighbouring groups.
//
//   hash, fetch the entry ─► ask; the node tells where the next cells lie, fetch them ─► compare
//
// What hashes got wrong (a collision, a key without place) is set right by a walk down the
// children, which needs no hash. The same walk finds how far the prompt goes into the next block.
//
// Only leaves may be short: a prompt's last, partial block. A longer prompt that goes on from one
// replaces it.
//
// Leaving. Leaves without pins hang in one of two lists, coldest first: used once, used again. The
// colder of both gives way. But of what was used again one prompt takes no more than a fifth of the
// budget by its age, and where all leaves were used again, only what is beyond four fifths.
#include <toki/block_tree.hpp>
#include <toki/result.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/big_pages.hpp"
#include "core/hash.hpp"
#include "core/key_table.hpp"
#include "core/readers_lock.hpp"
#include "core/scope_map.hpp"
#include "core/siblings.hpp"
#include "core/stream_copy.hpp"

namespace toki {
namespace {

using NodeId = std::uint32_t;
constexpr NodeId kNone = KeyTable::kNone;
constexpr std::uint32_t kSeveral = 0x80000000;  // in Node::child: the number of a Siblings follows
constexpr unsigned kPageBits = 10;
constexpr std::size_t kPage = std::size_t{1} << kPageBits;

// What a match reads comes first, so that it mostly is on one cache line.
struct Node {
  NodeId parent = kNone;
  std::uint32_t child = kNone;
  std::uint16_t length = 0;  // tokens; 0 for a root
  std::uint16_t run = 0;     // ancestors with the numbers just below
  std::uint16_t pins = 0;
  bool reused = false;
  bool listed = false;
  std::uint64_t key = 0;
  NodeId colder = kNone;  // neighbours in the list of leaves
  NodeId hotter = kNone;
  std::uint32_t last_used = 0;
  float use = 0;
};
static_assert(sizeof(Node) == 40);

// The coldest first.
struct LeafList {
  NodeId coldest = kNone;
  NodeId hottest = kNone;
};

struct Place {
  NodeId node = kNone;
  std::size_t blocks = 0;
};

// Memory that is to be brought into the cache, some lines at a time: the CPU takes only so many
// requests at once and waits when it is given more.
struct Fetch {
  const char* next = nullptr;
  const char* end = nullptr;

  void some(std::size_t lines) {
    for (; lines > 0 && next < end; --lines, next += 64) {
      __builtin_prefetch(next);
    }
  }
  void rest() {
    for (; next < end; next += 64) {
      __builtin_prefetch(next);
    }
  }
};

}  // namespace

struct TOKI_HIDDEN BlockTree::Impl {
  // Most that one block takes.
  static std::size_t block_bytes(const BlockTreeOptions& o) {
    return sizeof(Node) + KeyTable::kMostBytesAnEntry + o.block_size * sizeof(Token);
  }
  // The blocks that the budget of bytes allows, beside the root of one scope.
  static std::size_t blocks_within(const BlockTreeOptions& o) {
    if (o.max_bytes == 0) {
      return std::numeric_limits<std::size_t>::max();
    }
    // Nodes come in whole pages, and the root is one of them; the table has a first segment. So much there is
    // in any case.
    const std::size_t fixed =
        KeyTable::reserved_bytes(1) + (o.max_bytes > BigPages::kHeap ? BigPages::kPage : 0);
    const std::size_t a_page = kPage * block_bytes(o);
    const std::size_t all_pages = o.max_bytes > fixed ? (o.max_bytes - fixed) / a_page : 0;
    return std::max<std::size_t>(all_pages, 1) * kPage - 1;
  }
  explicit Impl(const BlockTreeOptions& o)
      : options(o),
        size(o.block_size),
        within_bytes(blocks_within(o)),
        limit(std::min(o.max_blocks, within_bytes)),
        group(std::clamp<std::size_t>(1024 / o.block_size, 2, 32)),
        hash(best_hash_bytes()) {}

  BlockTreeOptions options;
  std::size_t size;          // tokens a block
  std::size_t within_bytes;  // blocks, by the budget of bytes
  std::size_t limit;         // blocks, by both budgets
  std::size_t group;         // blocks that are looked up at once
  HashBytes hash;
  mutable ReadersLock lock;

  BigPages memory;
  std::vector<Node*> pages;  // the nodes of each page, its cells right behind them
  NodeId next_fresh = 0;
  NodeId free = kNone;  // list of freed numbers, through Node::hotter
  KeyTable table{memory};
  std::vector<std::unique_ptr<Siblings>> siblings;
  std::vector<std::uint32_t> free_siblings;
  ScopeMap<NodeId> roots;
  std::unordered_map<NodeId, const Scope*> scopes;  // of the roots
  std::vector<NodeId> barren;    // roots without blocks, or they were: gone before the next insert
  std::size_t scope_blocks = 0;  // blocks' worth of memory that the scopes take
  LeafList once;
  LeafList again;
  std::size_t blocks = 0;
  std::size_t reused_blocks = 0;
  std::uint32_t tick = 0;
  std::uint32_t decay_age = 0;  // touch() computes no power twice in a row
  double decay = 1;

  Node& at(NodeId id) { return pages[id >> kPageBits][id & (kPage - 1)]; }
  const Node& at(NodeId id) const { return pages[id >> kPageBits][id & (kPage - 1)]; }
  Token* cell(NodeId id) {
    return reinterpret_cast<Token*>(pages[id >> kPageBits] + kPage) + (id & (kPage - 1)) * size;
  }
  const Token* cell(NodeId id) const { return const_cast<Impl*>(this)->cell(id); }
  std::size_t page_bytes() const { return kPage * (sizeof(Node) + size * sizeof(Token)); }
  TokenSpan tokens(NodeId id) const { return {cell(id), at(id).length}; }
  auto tokens_of() const {
    return [this](NodeId id) { return tokens(id); };
  }

  std::uint64_t block_hash(const Token* block) const {
    return options.hash != nullptr ? options.hash(block, size) : hash(block, size * sizeof(Token));
  }

  // Finding.
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
  std::uint64_t hash_blocks(std::uint64_t parent, TokenSpan prompt, std::span<std::uint64_t> keys,
                            Fetch& fetch) const;
  Fetch cells_near(NodeId node, std::size_t skip, std::size_t count) const;
  Place bisect(std::span<const std::uint64_t> keys, Place best, std::size_t unknown) const;
  Place deepest(NodeId root, TokenSpan prompt, Keys keys) const;
  Match match(const Scope& scope, TokenSpan prompt, Keys keys) const;
  bool path_equals(Place above, Place below, TokenSpan prompt) const;
  std::pair<NodeId, std::size_t> nearest(NodeId node, TokenSpan block) const;
  Place walk_down(Place from, TokenSpan prompt) const;

  // Changing.
  void add_page() { pages.push_back(static_cast<Node*>(memory.take(page_bytes()))); }
  NodeId take_number();
  NodeId add_chain(NodeId parent, TokenSpan prompt, std::size_t from,
                   std::span<const std::uint64_t> keys, std::size_t& added);
  void copy(NodeId last, TokenSpan prompt, std::size_t from, std::size_t to);
  void remove(NodeId leaf);
  void adopt(NodeId parent, NodeId child);
  void disown(NodeId parent, NodeId child);
  void touch(NodeId node);
  std::size_t make_room(NodeId keep, std::size_t wanted);
  LeafList& list_of(const Node& node) { return node.reused ? again : once; }
  void hang(NodeId leaf, bool cold);
  void unhang(NodeId leaf);
  NodeId root_of(const Scope& scope);
  void drop_barren();
  // Of a root with its scope. They come with requests, so that a client may send many, and long ones.
  std::size_t cost_of(const Scope& scope) const {
    const std::size_t text = sizeof(Scope) + scope.bytes().size();
    return 1 + (text + block_bytes(options) - 1) / block_bytes(options);
  }
  // Blocks that may be added as it is.
  std::size_t room() const {
    const std::size_t taken = blocks + scope_blocks - std::min<std::size_t>(scope_blocks, 1);
    return std::min(limit - std::min(limit, blocks), within_bytes - std::min(within_bytes, taken));
  }
  enum class End { anywhere, own_node };  // where a prompt's last token may lie
  NodeId insert(const Scope& scope, TokenSpan prompt, std::span<const std::uint64_t> keys, End end,
                std::size_t& added);
  double decay_over(std::uint32_t age) const {
    return std::exp2(-static_cast<double>(age) / options.half_life);
  }
  double use_now(const Node& node) const {
    return static_cast<double>(node.use) * decay_over(tick - node.last_used);
  }
};

// Hashes block by block, then chains: the hashes do not wait for each other. Returns the last key.
std::uint64_t BlockTree::Impl::hash_blocks(std::uint64_t parent, TokenSpan prompt,
                                           std::span<std::uint64_t> keys, Fetch& fetch) const {
  const std::size_t lines = size * sizeof(Token) / 64 + 1;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = block_hash(prompt.data() + i * size);
    fetch.some(lines);
  }
  for (std::uint64_t& key : keys) {
    key = parent = chain_key(parent, key);
  }
  return parent;
}

// The cells of `count` nodes numbered from `node` + `skip` on, as far as they are in its page.
Fetch BlockTree::Impl::cells_near(NodeId node, std::size_t skip, std::size_t count) const {
  const std::size_t in_page = kPage - (node & (kPage - 1));
  const auto* begin = reinterpret_cast<const char*>(cell(node));
  const std::size_t bytes = size * sizeof(Token);
  return {begin + skip * bytes, begin + std::min(skip + count, in_page) * bytes};
}

// Binary search between `best` (known) and `unknown` blocks. Wrong only where hashes collide.
Place BlockTree::Impl::bisect(std::span<const std::uint64_t> keys, Place best,
                              std::size_t unknown) const {
  for (std::size_t i = best.blocks; i + 1 < unknown; ++i) {
    table.prefetch(keys[i]);
  }
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

// The deepest known block by keys, compared with the prompt. The first block is a group of its own,
// because most prompts that are not known differ there.
Place BlockTree::Impl::deepest(NodeId root, TokenSpan prompt, Keys keys) const {
  Place compared{root, 0};
  Place found{root, 0};
  Fetch fetch;
  std::size_t asked = 0;  // blocks up to the last key whose entry is on its way
  for (std::size_t count = 1;; count = group) {
    count = std::min(count, keys.all.size() - asked);
    if (!keys.hashed) {
      keys.seed = hash_blocks(keys.seed, prompt.subspan(asked * size),
                              keys.all.subspan(asked, count), fetch);
    }
    if (count > 0) {
      table.prefetch(keys.all[asked + count - 1]);
    }
    fetch.rest();
    if (asked > 0) {
      const NodeId node = find(keys.all[asked - 1]);
      if (node == kNone) {
        found = bisect(keys.all, found, asked);
        break;
      }
      __builtin_prefetch(&at(node));
      const bool expected = node == found.node + (asked - found.blocks);
      fetch = cells_near(node, expected ? 1 : 0, count);
      if (!path_equals(compared, found, prompt)) {
        return compared;
      }
      compared = found;
      found = {node, asked};
    }
    if (count == 0) {
      break;
    }
    asked += count;
  }
  return path_equals(compared, found, prompt) ? found : compared;
}

// Compares the path from below `above` to `below` with the prompt, run by run, from its end.
bool BlockTree::Impl::path_equals(Place above, Place below, TokenSpan prompt) const {
  NodeId node = below.node;
  std::size_t left = below.blocks;
  while (left > above.blocks) {
    if (node == kNone || at(node).length != size) {
      return false;
    }
    const std::size_t run = std::min<std::size_t>(at(node).run, left - above.blocks - 1);
    const NodeId first = node - static_cast<NodeId>(run);
    const std::size_t count = run + 1;
    if (std::memcmp(cell(first), prompt.data() + (left - count) * size,
                    count * size * sizeof(Token)) != 0) {
      return false;
    }
    left -= count;
    node = at(first).parent;
  }
  return node == above.node;
}

// The child that shares most with `block`, and how many tokens.
std::pair<NodeId, std::size_t> BlockTree::Impl::nearest(NodeId node, TokenSpan block) const {
  const std::uint32_t child = block.empty() ? kNone : at(node).child;
  if (child == kNone) {
    return {kNone, 0};
  }
  if ((child & kSeveral) == 0) {
    return {child, common_prefix(tokens(child), block)};
  }
  return siblings[child & ~kSeveral]->nearest(block, tokens_of());
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
  if ((next_fresh >> kPageBits) == pages.size()) {
    add_page();
  }
  std::construct_at(&at(next_fresh));
  return next_fresh++;
}

// Adds the prompt's blocks from `from` on below `parent`, none of whose children begins like them:
// all that find room. Only the first meets what is there; those after it are a chain, and as many
// as have consecutive numbers are copied at once. Returns the last node.
NodeId BlockTree::Impl::add_chain(NodeId parent, TokenSpan prompt, std::size_t from,
                                  std::span<const std::uint64_t> keys, std::size_t& added) {
  constexpr std::size_t kAhead = 24;
  const std::size_t wanted = (prompt.size() + size - 1) / size - from;
  const std::size_t end = from + make_room(parent, wanted);
  for (std::size_t i = from; i < std::min(from + kAhead, keys.size()); ++i) {
    table.prefetch(keys[i]);
  }
  NodeId last = parent;
  std::size_t copied = from;  // blocks whose tokens are in their cells
  for (std::size_t i = from; i < end; ++i) {
    const NodeId id = take_number();
    const bool follows = id == last + 1 && (id & (kPage - 1)) != 0;
    if (!follows) {
      copy(last, prompt, copied, i);
      copied = i;
    }
    Node& node = at(id);
    node.parent = last;
    node.length = static_cast<std::uint16_t>(std::min(size, prompt.size() - i * size));
    node.last_used = tick;
    node.use = 1;
    const Node& above = at(last);
    node.run = follows && above.length == size && above.run < 0xffff
                   ? static_cast<std::uint16_t>(above.run + 1)
                   : 0;
    if (i < keys.size()) {
      node.key = keys[i];
      table.insert(keys[i], id, [this](NodeId other) { return at(other).key; });
      if (i + kAhead < keys.size()) {
        table.prefetch(keys[i + kAhead]);
      }
    }
    if (i == from) {
      std::memcpy(cell(id), prompt.data() + i * size, node.length * sizeof(Token));
      copied = i + 1;
      unhang(parent);
      adopt(parent, id);
    } else {
      at(last).child = id;
    }
    last = id;
  }
  copy(last, prompt, copied, end);
  blocks += end - from;
  added += end - from;
  return last;
}

// Copies the prompt's blocks from `from` to before `to` into consecutive cells that end with `last`.
void BlockTree::Impl::copy(NodeId last, TokenSpan prompt, std::size_t from, std::size_t to) {
  if (from < to) {
    const TokenSpan tokens =
        prompt.subspan(from * size, std::min(to * size, prompt.size()) - from * size);
    stream_copy(cell(last - static_cast<NodeId>(to - from - 1)), tokens.data(),
                tokens.size_bytes());
  }
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
  constexpr NodeId kFollowing = 12;
  Node& node = at(leaf);
  unhang(leaf);
  if (node.length == size) {
    table.erase(node.key, leaf);
  }
  // When a path goes, its blocks go one after the other: fetch what one of the next will need.
  if (node.run >= kFollowing) {
    table.prefetch(at(leaf - kFollowing).key);
  }
  const NodeId parent = node.parent;
  disown(parent, leaf);
  --blocks;
  reused_blocks -= node.reused ? 1U : 0U;
  // The parent was used no earlier than its child: colder than all others if at the same time, else
  // as hot as any.
  hang(parent, at(parent).last_used == node.last_used);
  if (at(parent).length == 0 && at(parent).child == kNone) {
    barren.push_back(parent);
  }
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
  if (tick - node.last_used != decay_age) {  // most of a path was used last at the same time
    decay_age = tick - node.last_used;
    decay = decay_over(decay_age);
  }
  node.use = static_cast<float>(static_cast<double>(node.use) * decay + 1);
  node.last_used = tick;
  if (listed) {
    hang(id, false);
  }
}

// Makes room for up to `wanted` blocks without touching `keep` or what lies above it. Returns for
// how many there is room. All at once, so that their numbers are freed from a path's end up and
// taken again from its beginning down.
std::size_t BlockTree::Impl::make_room(NodeId keep, std::size_t wanted) {
  const std::size_t fifth = limit / 5;
  const auto coldest = [&](const LeafList& list) {
    return list.coldest == keep && keep != kNone ? at(keep).hotter : list.coldest;
  };
  std::size_t taken_again = 0;
  while (room() < wanted) {
    const NodeId first = coldest(once);
    const NodeId second = coldest(again);
    const bool second_goes =
        second != kNone &&
        (first == kNone ? reused_blocks > 4 * fifth
                        : taken_again <= fifth && at(second).last_used < at(first).last_used);
    const NodeId victim = second_goes ? second : first;
    if (victim == kNone) {
      return room();
    }
    taken_again += second_goes ? 1U : 0U;
    remove(victim);
  }
  return wanted;
}

NodeId BlockTree::Impl::root_of(const Scope& scope) {
  drop_barren();
  const auto [it, fresh] = roots.try_emplace(scope, kNone);
  if (fresh) {
    it->second = take_number();
    at(it->second).key = scope.seed();
    scopes.emplace(it->second, &it->first);
    barren.push_back(it->second);  // should nothing be added
    scope_blocks += cost_of(scope);
  }
  return it->second;
}

void BlockTree::Impl::drop_barren() {
  for (const NodeId root : barren) {
    const auto found = scopes.find(root);
    if (found == scopes.end() || at(root).child != kNone || at(root).pins > 0) {
      continue;
    }
    scope_blocks -= cost_of(*found->second);
    roots.erase(roots.find(*found->second));
    scopes.erase(found);
    at(root) = Node{};
    at(root).hotter = free;
    free = root;
  }
  barren.clear();
}

// Returns the node of the prompt's last token, or the last that found room.
NodeId BlockTree::Impl::insert(const Scope& scope, TokenSpan prompt,
                               std::span<const std::uint64_t> keys, End end, std::size_t& added) {
  ++tick;
  const NodeId root = root_of(scope);
  const Place place = walk_down(deepest(root, prompt, given(keys)), prompt);
  for (NodeId node = place.node; node != root; node = at(node).parent) {
    touch(node);
  }
  const std::size_t whole = place.blocks * size;
  NodeId node = place.node;
  if (whole < prompt.size()) {
    const TokenSpan rest = prompt.subspan(whole, std::min(size, prompt.size() - whole));
    const auto [child, common] = nearest(node, rest);
    if (child != kNone && common == rest.size() &&
        (end == End::anywhere || at(child).length == common)) {  // the beginning of a known block
      touch(child);
      return child;
    }
    if (child != kNone && common == at(child).length && at(child).pins == 0) {
      remove(child);  // the prompt goes on from this short leaf
    }
    node = add_chain(node, prompt, place.blocks, keys, added);
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
  Fetch nothing;
  impl_->hash_blocks(scope.seed(), prompt, keys, nothing);
  return keys;
}

BlockTree::Match BlockTree::Impl::match(const Scope& scope, TokenSpan prompt, Keys keys) const {
  const ReadGuard guard(lock);
  const auto root = roots.find(scope);
  if (root == roots.end()) {
    return {};
  }
  const Place place = walk_down(deepest(root->second, prompt, keys), prompt);
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
  impl_->insert(scope, prompt, keys, Impl::End::anywhere, added);
  return added;
}

bool BlockTree::pin(const Scope& scope, TokenSpan prompt) {
  std::size_t added = 0;
  const auto hashed = keys(scope, prompt);
  const WriteGuard guard(impl_->lock);
  const NodeId node = impl_->insert(scope, prompt, hashed, Impl::End::own_node, added);
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
  NodeId node = place.node;
  if (!rest.empty()) {
    const auto [child, common] = impl_->nearest(node, rest);
    if (child == kNone || common < rest.size() || impl_->at(child).length != common) {
      return;
    }
    node = child;
  }
  if (impl_->at(node).pins > 0) {
    --impl_->at(node).pins;
    impl_->hang(node, false);
    if (impl_->at(node).length == 0) {
      impl_->barren.push_back(node);  // of no tokens at all
    }
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
  const std::size_t pages = blocks / kPage + 1;
  impl_->memory.expect(KeyTable::reserved_bytes(blocks) + pages * impl_->page_bytes());
  impl_->table.reserve(blocks);
  while (impl_->pages.size() < pages) {
    impl_->add_page();
    std::memset(static_cast<void*>(impl_->pages.back()), 0, impl_->page_bytes());
  }
}

std::size_t BlockTree::blocks() const noexcept {
  const ReadGuard guard(impl_->lock);
  return impl_->blocks;
}

std::size_t BlockTree::capacity() const noexcept {
  const ReadGuard guard(impl_->lock);
  return impl_->blocks + impl_->room();
}

std::size_t BlockTree::bytes() const noexcept {
  const ReadGuard guard(impl_->lock);
  std::size_t bytes =
      impl_->memory.bytes() + impl_->table.bytes() + impl_->pages.capacity() * sizeof(Node*);
  for (const auto& siblings : impl_->siblings) {
    bytes += siblings ? siblings->bytes() : sizeof(siblings);
  }
  for (const auto& [scope, root] : impl_->roots) {
    bytes += sizeof(scope) + scope.bytes().size();
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
  std::size_t taken = 0;
  std::vector<NodeId> pending;
  for (const auto& [scope, root] : impl.roots) {
    TOKI_CHECK(impl.at(root).length == 0 && impl.at(root).parent == kNone);
    TOKI_CHECK(impl.scopes.at(root) == &scope);
    taken += impl.cost_of(scope);
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
  TOKI_CHECK(blocks <= impl.limit && taken == impl.scope_blocks);
}

}  // namespace toki
