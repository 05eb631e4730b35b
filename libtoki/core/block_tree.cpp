// Nodes hold up to block_size tokens. Only leaves may be short (a prompt's last, partial block); a
// longer prompt that continues one replaces it. The children of a node are ordered by their tokens,
// so the child that shares most with a prompt is a neighbour of the place where the prompt would be
// put in.
//
//   scope -> root -> [32 tokens] -> [32 tokens] -> [7 tokens]
//                               \-> [32 tokens]
//
// Eviction takes leaves from two queues ordered by last use: first those used once, then those used
// again.
#include <toki/block_tree.hpp>
#include <toki/result.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace toki {
namespace {

struct Node;

struct ByTokens {
  using is_transparent = void;
  static bool less(TokenSpan a, TokenSpan b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
  bool operator()(const Tokens& a, const Tokens& b) const { return less(a, b); }
  bool operator()(const Tokens& a, TokenSpan b) const { return less(a, b); }
  bool operator()(TokenSpan a, const Tokens& b) const { return less(a, b); }
};

using Children = std::map<Tokens, std::unique_ptr<Node>, ByTokens>;

struct Node {
  Node* parent = nullptr;
  Children::iterator self;  // its place in parent->children; unused for roots
  Children children;
  std::uint64_t last_used = 0;
  bool reused = false;  // used more than once
};

struct ByLastUse {
  bool operator()(const Node* a, const Node* b) const {
    return std::tuple(a->reused, a->last_used, a) < std::tuple(b->reused, b->last_used, b);
  }
};

// A node, its place in the map and its two pointers; tokens are counted apart.
constexpr std::size_t kNodeBytes = sizeof(Node) + sizeof(Tokens) + 80;

}  // namespace

struct BlockTree::Impl {
  BlockTreeOptions options;
  std::map<std::string, Node> roots;  // by the scope's bytes
  std::set<Node*, ByLastUse> leaves;
  std::size_t blocks = 0;
  std::size_t tokens = 0;
  std::uint64_t tick = 0;
  std::size_t reused = 0;  // blocks used more than once

  // The child that shares the longest prefix with `rest`, and how long that is.
  static std::pair<Node*, std::size_t> nearest(const Node& node, TokenSpan rest) {
    std::pair<Node*, std::size_t> best{nullptr, 0};
    auto it = node.children.lower_bound(rest);
    const auto consider = [&](Children::const_iterator child) {
      const std::size_t common = common_prefix(child->first, rest);
      if (common > best.second) {
        best = {child->second.get(), common};
      }
    };
    if (it != node.children.end()) {
      consider(it);
    }
    if (it != node.children.begin()) {
      consider(std::prev(it));
    }
    return best;
  }

  void touch(Node& node) {
    const bool leaf = leaves.erase(&node) > 0;
    reused += node.reused ? 0U : 1U;
    node.reused = true;
    node.last_used = tick;
    if (leaf) {
      leaves.insert(&node);
    }
  }

  void remove(Node& leaf) {
    leaves.erase(&leaf);
    Node& parent = *leaf.parent;
    tokens -= leaf.self->first.size();
    reused -= leaf.reused ? 1U : 0U;
    --blocks;
    parent.children.erase(leaf.self);
    if (parent.children.empty() && parent.parent != nullptr) {
      leaves.insert(&parent);
    }
  }

  // Makes room for one block without touching `keep` or what lies above it. False when nothing may
  // go.
  bool make_room(const Node* keep) {
    while (blocks >= options.max_blocks) {
      auto victim = leaves.begin();
      if (victim != leaves.end() && *victim == keep) {
        ++victim;
      }
      const bool shared_is_too_much = reused > options.max_blocks / 5 * 4;
      if (victim == leaves.end() || ((*victim)->reused && !shared_is_too_much)) {
        return false;
      }
      remove(**victim);
    }
    return true;
  }

  Node& add(Node& parent, TokenSpan block) {
    leaves.erase(&parent);
    const auto [it, fresh] =
        parent.children.emplace(Tokens(block.begin(), block.end()), std::make_unique<Node>());
    TOKI_CHECK(fresh);
    Node& node = *it->second;
    node.parent = &parent;
    node.self = it;
    node.last_used = tick;
    leaves.insert(&node);
    tokens += block.size();
    ++blocks;
    return node;
  }
};

BlockTree::BlockTree(const BlockTreeOptions& options) : impl_(std::make_unique<Impl>()) {
  TOKI_CHECK(options.block_size >= 8 && options.block_size <= 512 && options.max_blocks > 0);
  impl_->options = options;
}
BlockTree::~BlockTree() = default;
BlockTree::BlockTree(BlockTree&&) noexcept = default;
BlockTree& BlockTree::operator=(BlockTree&&) noexcept = default;

BlockTree::Match BlockTree::match(const Scope& scope, TokenSpan prompt) const {
  Match result;
  const auto root = impl_->roots.find(scope.bytes());
  if (root == impl_->roots.end()) {
    return result;
  }
  const std::size_t size = impl_->options.block_size;
  const Node* node = &root->second;
  while (!prompt.empty()) {
    const auto [child, common] = Impl::nearest(*node, prompt.first(std::min(size, prompt.size())));
    result.tokens += common;
    if (child == nullptr || common < size) {
      return result;
    }
    ++result.blocks;
    node = child;
    prompt = prompt.subspan(size);
  }
  return result;
}

std::size_t BlockTree::insert(const Scope& scope, TokenSpan prompt) {
  ++impl_->tick;
  const std::size_t size = impl_->options.block_size;
  std::size_t added = 0;
  Node* node = &impl_->roots[scope.bytes()];
  for (; !prompt.empty(); prompt = prompt.subspan(std::min(size, prompt.size()))) {
    const TokenSpan block = prompt.first(std::min(size, prompt.size()));
    const auto [child, common] = Impl::nearest(*node, block);
    if (child != nullptr && common == block.size()) {  // known, or the beginning of a known one
      impl_->touch(*child);
      node = child;
      continue;
    }
    if (child != nullptr && common == child->self->first.size()) {  // continues a short leaf
      impl_->remove(*child);
    } else if (!impl_->make_room(node)) {
      break;
    }
    node = &impl_->add(*node, block);
    ++added;
  }
  return added;
}

void BlockTree::clear() {
  impl_->leaves.clear();
  impl_->roots.clear();
  impl_->blocks = 0;
  impl_->tokens = 0;
  impl_->reused = 0;
}

std::size_t BlockTree::blocks() const noexcept {
  return impl_->blocks;
}
std::size_t BlockTree::bytes() const noexcept {
  return impl_->blocks * kNodeBytes + impl_->tokens * sizeof(Token);
}
const BlockTreeOptions& BlockTree::options() const noexcept {
  return impl_->options;
}

void BlockTree::check_invariants() const {
  std::size_t blocks = 0;
  std::size_t tokens = 0;
  std::size_t leaves = 0;
  std::size_t reused = 0;
  std::vector<const Node*> pending;
  for (const auto& [scope, root] : impl_->roots) {
    pending.push_back(&root);
  }
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    for (const auto& [block, child] : node->children) {
      TOKI_CHECK(child->parent == node && child->self->first == block);
      TOKI_CHECK(!block.empty() && block.size() <= impl_->options.block_size);
      TOKI_CHECK(block.size() == impl_->options.block_size || child->children.empty());
      TOKI_CHECK(impl_->leaves.contains(child.get()) == child->children.empty());
      ++blocks;
      tokens += block.size();
      leaves += child->children.empty() ? 1U : 0U;
      reused += child->reused ? 1U : 0U;
      pending.push_back(child.get());
    }
  }
  TOKI_CHECK(blocks == impl_->blocks && tokens == impl_->tokens && leaves == impl_->leaves.size());
  TOKI_CHECK(reused == impl_->reused && blocks <= impl_->options.max_blocks);
}

}  // namespace toki
