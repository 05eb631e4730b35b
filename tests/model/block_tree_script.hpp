// Bytes as a script of operations on a tree and on a naive twin: the list of all prompts ever
// given. Without a budget both agree; with one the twin is an upper bound. The model test feeds
// random bytes, the fuzz target whatever libFuzzer finds.
//
//   first byte: bit 0 the hash that is 0 for every block; bit 1 a budget; the rest the block size
//   then operations of one byte (what to do, how much), some followed by another byte
//
// Prompts branch a lot: one prompt is built up from few distinct tokens, cut, continued, and
// exchanged for an earlier one.
#pragma once

#include <toki/block_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace toki::test {

class BlockTreeScript {
 public:
  explicit BlockTreeScript(std::span<const std::uint8_t> bytes)
      : bytes_(bytes), options_(options_of(next())), tree_(options_) {}

  /// Runs all of it. What contradicted, and where; empty when nothing did. A tree that contradicts
  /// itself stops the program.
  std::string run() {
    for (std::size_t step = 0; !bytes_.empty(); ++step) {
      const std::string fault = run_one(next());
      if (!fault.empty()) {
        return "step " + std::to_string(step) + ": " + fault;
      }
    }
    return {};
  }

 private:
  static constexpr std::size_t kScopes = 2;
  static constexpr std::size_t kLongest = 700;  // tokens: some groups of blocks

  static BlockTreeOptions options_of(std::uint8_t byte) {
    const std::size_t rest = byte / 4U;
    BlockTreeOptions options{.block_size = 8 + rest % 3 * 4, .max_blocks = 1 << 20};
    if (byte % 2 != 0) {
      options.hash = [](const Token*, std::size_t) { return std::uint64_t{0}; };
    }
    if (byte / 2 % 2 != 0) {
      options.max_blocks = 1 + rest;
    }
    return options;
  }

  // 0 after the end.
  std::uint8_t next() {
    if (bytes_.empty()) {
      return 0;
    }
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  std::string run_one(std::uint8_t byte) {
    const std::size_t much = byte / 8U;  // 0 to 31
    scope_ = much % kScopes;
    switch (byte % 8) {
      case 0:
      case 1: return append(2 * much, next());
      case 2: prompt_.resize(prompt_.size() * (much + 33) / 64); return {};
      case 3:
        if (!seen_[scope_].empty()) {
          prompt_ = seen_[scope_][(much * 256 + next()) % seen_[scope_].size()];
        }
        return {};
      case 4: return insert(much / 2 % 2 != 0);
      case 5:
      case 6: return match(much);
      default: return seldom(much);
    }
  }

  std::string append(std::size_t count, std::uint8_t pattern) {
    for (std::size_t i = 0; i <= count && prompt_.size() < kLongest; ++i) {
      // Half of the patterns repeat one token; the others change, some of them below zero.
      prompt_.push_back(pattern % 2 == 0 ? pattern / 2 % 3 : (pattern >> (i % 8)) % 3 - 1);
    }
    return {};
  }

  std::size_t longest(TokenSpan prompt) const {
    std::size_t best = 0;
    for (const Tokens& other : seen_[scope_]) {
      best = std::max(best, common_prefix(other, prompt));
    }
    return best;
  }

  bool bounded() const { return options_.max_blocks < 1 << 20; }

  std::string insert(bool with_keys) {
    const std::size_t before = tree_.blocks();
    const std::size_t known = longest(prompt_);
    const std::size_t added =
        with_keys ? tree_.insert(scopes_[scope_], prompt_, tree_.keys(scopes_[scope_], prompt_))
                  : tree_.insert(scopes_[scope_], prompt_);
    seen_[scope_].push_back(prompt_);
    const std::size_t whole = (prompt_.size() + options_.block_size - 1) / options_.block_size;
    if (!bounded() && added != whole - whole_blocks_of(known)) {
      return "insert added " + std::to_string(added) + " blocks";
    }
    // One short leaf may have gone.
    if (!bounded() && tree_.blocks() != before + added && tree_.blocks() + 1 != before + added) {
      return "insert left " + std::to_string(tree_.blocks()) + " blocks";
    }
    return check();
  }

  // Blocks of the prompt that need not be added when so many tokens are known.
  std::size_t whole_blocks_of(std::size_t known) const {
    return known == prompt_.size() ? (known + options_.block_size - 1) / options_.block_size
                                   : known / options_.block_size;
  }

  std::string check() const {
    tree_.check_invariants();
    if (tree_.blocks() > options_.max_blocks) {
      return "more blocks than the budget";
    }
    for (const auto& [scope, prompt] : pinned_) {
      if (tree_.match(scopes_[scope], prompt).tokens != prompt.size()) {
        return "a pinned prompt is gone";
      }
    }
    return {};
  }

  // A match, the same with keys, and one of a beginning of the prompt, which is as exact.
  std::string match(std::size_t much) const {
    const BlockTree::Match found = tree_.match(scopes_[scope_], prompt_);
    const std::size_t known = longest(prompt_);
    if (found.tokens > known || (!bounded() && found.tokens < known)) {
      return "matched " + std::to_string(found.tokens) + " tokens of " + std::to_string(known);
    }
    if (found.blocks > found.tokens / options_.block_size ||
        (found.tokens == prompt_.size() && found.blocks != whole(found.tokens))) {
      return "matched " + std::to_string(found.blocks) + " blocks";
    }
    const auto keys = tree_.keys(scopes_[scope_], prompt_);
    const BlockTree::Match same = tree_.match(scopes_[scope_], prompt_, keys);
    if (same.tokens != found.tokens || same.blocks != found.blocks) {
      return "another match with keys";
    }
    const TokenSpan beginning = TokenSpan(prompt_).first(prompt_.size() * much / 32);
    if (tree_.match(scopes_[scope_], beginning).tokens !=
        std::min(found.tokens, beginning.size())) {
      return "another match of the prompt's beginning";
    }
    return {};
  }

  std::size_t whole(std::size_t tokens) const { return tokens / options_.block_size; }

  std::string seldom(std::size_t much) {
    if (much < 12) {
      return pin();
    }
    if (much < 24) {
      return unpin(next());
    }
    if (much < 30) {
      return hottest();
    }
    if (much == 30) {
      tree_.reserve(next());
      return check();
    }
    if (next() % 8 != 0) {  // so that trees have time to grow
      return {};
    }
    tree_.clear();
    seen_.assign(kScopes, {});
    pinned_.clear();
    return tree_.blocks() == 0 ? check() : "clear left blocks";
  }

  std::string pin() {
    const bool kept = tree_.pin(scopes_[scope_], prompt_);
    seen_[scope_].push_back(prompt_);
    if (kept) {
      pinned_.emplace_back(scope_, prompt_);
    } else if (!bounded()) {
      return "not pinned without a budget";
    }
    return check();
  }

  std::string unpin(std::size_t which) {
    if (!pinned_.empty()) {
      const auto place = pinned_.begin() + static_cast<std::ptrdiff_t>(which % pinned_.size());
      tree_.unpin(scopes_[place->first], place->second);
      pinned_.erase(place);
    }
    return check();
  }

  std::string hottest() {
    const auto hot = tree_.hottest(4, 9);
    for (std::size_t i = 0; i < hot.size(); ++i) {
      scope_ = hot[i].scope == scopes_[0] ? 0 : 1;
      if (longest(hot[i].tokens) != hot[i].tokens.size() || hot[i].tokens.size() < 9) {
        return "hottest names what was never given";
      }
      if (i > 0 && hot[i - 1].use < hot[i].use) {
        return "hottest is out of order";
      }
    }
    return {};
  }

  std::span<const std::uint8_t> bytes_;
  BlockTreeOptions options_;
  BlockTree tree_;
  std::vector<Scope> scopes_{Scope({"a"}), Scope({"b"})};
  std::size_t scope_ = 0;
  Tokens prompt_;
  std::vector<std::vector<Tokens>> seen_ = std::vector<std::vector<Tokens>>(kScopes);
  std::vector<std::pair<std::size_t, Tokens>> pinned_;
};

}  // namespace toki::test
