// What the block tree is measured against. Plain, but not naive: the obvious structure with a good
// hash map.
#pragma once

#include <toki/token.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

using toki::Token;
using toki::Tokens;
using toki::TokenSpan;

/// Block keys in the order of their use, the oldest leaves first. The usual block cache: keys are
/// trusted, nothing is compared, and a block may lose its parent.
class BlockLru {
 public:
  explicit BlockLru(std::size_t capacity) : capacity_(capacity) {}

  /// How many leading keys are there.
  std::size_t match(std::span<const std::uint64_t> keys) const {
    std::size_t known = 0;
    while (known < keys.size() && places_.contains(keys[known])) {
      ++known;
    }
    return known;
  }

  /// Marks all as used, the last first, so that a prompt's end goes before its beginning.
  void insert(std::span<const std::uint64_t> keys) {
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      const auto [place, fresh] = places_.try_emplace(*key);
      if (!fresh) {
        order_.splice(order_.end(), order_, place->second);
        continue;
      }
      place->second = order_.insert(order_.end(), *key);
      if (order_.size() > capacity_) {
        places_.erase(order_.front());
        order_.pop_front();
      }
    }
  }

 private:
  std::size_t capacity_;
  std::list<std::uint64_t> order_;
  boost::unordered_flat_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

/// Whole prompts in the order of their use: found when the prompt goes on from one that is there.
/// A prompt is known by the key of its last whole block; `blocks` is the budget.
class PromptLru {
 public:
  explicit PromptLru(std::size_t blocks) : budget_(blocks) {}

  /// Blocks of the longest prompt there that this one begins with.
  std::size_t match(std::span<const std::uint64_t> keys) const {
    for (std::size_t blocks = keys.size(); blocks > 0; --blocks) {
      if (places_.contains(keys[blocks - 1])) {
        return blocks;
      }
    }
    return 0;
  }

  void insert(std::span<const std::uint64_t> keys) {
    if (keys.empty()) {
      return;
    }
    const auto [place, fresh] = places_.try_emplace(keys.back());
    if (!fresh) {
      order_.splice(order_.end(), order_, place->second);
      return;
    }
    place->second = order_.insert(order_.end(), {keys.back(), keys.size()});
    held_ += keys.size();
    while (held_ > budget_ && order_.size() > 1) {
      held_ -= order_.front().second;
      places_.erase(order_.front().first);
      order_.pop_front();
    }
  }

 private:
  using Order = std::list<std::pair<std::uint64_t, std::size_t>>;
  std::size_t budget_;
  std::size_t held_ = 0;
  Order order_;
  boost::unordered_flat_map<std::uint64_t, Order::iterator> places_;
};

/// A compressed trie over tokens: an edge is a run of tokens, split where prompts part.
class RadixTree {
 public:
  std::size_t match(TokenSpan prompt) const {
    const Node* node = &root_;
    std::size_t at = 0;
    while (at < prompt.size()) {
      const auto next = node->children.find(prompt[at]);
      if (next == node->children.end()) {
        break;
      }
      node = next->second.get();
      const std::size_t common = toki::common_prefix(node->edge, prompt.subspan(at));
      at += common;
      if (common < node->edge.size()) {
        break;
      }
    }
    return at;
  }

  void insert(TokenSpan prompt) {
    Node* node = &root_;
    while (!prompt.empty()) {
      std::unique_ptr<Node>& next = node->children[prompt.front()];
      if (!next) {
        next = std::make_unique<Node>();
        next->edge.assign(prompt.begin(), prompt.end());
        return;
      }
      const std::size_t common = toki::common_prefix(next->edge, prompt);
      if (common < next->edge.size()) {
        split(next, common);
      }
      node = next.get();
      prompt = prompt.subspan(common);
    }
  }

 private:
  struct Node {
    Tokens edge;
    boost::unordered_flat_map<Token, std::unique_ptr<Node>> children;
  };

  static void split(std::unique_ptr<Node>& node, std::size_t at) {
    auto upper = std::make_unique<Node>();
    const auto middle = node->edge.begin() + static_cast<std::ptrdiff_t>(at);
    upper->edge.assign(node->edge.begin(), middle);
    node->edge = Tokens(middle, node->edge.end());
    const Token first = node->edge.front();
    upper->children.emplace(first, std::move(node));
    node = std::move(upper);
  }

  Node root_;
};

}  // namespace bench
