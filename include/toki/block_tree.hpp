// BlockTree: every prompt that is worth remembering, cut into blocks of tokens that prompts with a
// common prefix share. Answers one question: how many leading tokens of this prompt are known?
//
// Threads:   one writer (insert, pin, unpin) and any number of readers (match, hottest, sizes) at
//            once; readers do not wait on each other. Several writers have to take turns; clear()
//            and moving want it alone.
// Ownership: copies the tokens it is given.
// Errors:    none; what does not fit the budget is evicted, leaves first, coldest first.
// Cost:      match: one hash pass over the prompt, some probes, one comparison pass over what
//            matches; insert: the same, and less than 0.1 us a new block. At most 64 bytes a block
//            beside its tokens and, above 16 MiB, room of less than 2 MiB (big pages). Growing
//            never copies anything as a whole.
//
// Exact: a prefix counts only after its token ids were compared; hashes only find. Prefix-closed: a
// block is never present without its parent. One giant prompt cannot flush the prefixes that many
// share: of what was used twice it takes a fifth of the budget at most.
//
// Block keys: XXH3-64 (https://xxhash.com) of the block's tokens as little-endian u32, chained over
// the path from the scope's seed on; equal on every machine and in every run.
#pragma once

#include <toki/export.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace toki {

/// Sizes and budgets of a tree; fixed once it is made.
struct BlockTreeOptions {
  std::size_t block_size =
      32;  ///< tokens a block, 8 to 512; smaller finds finer, larger needs less memory
  std::size_t max_blocks = 1 << 20;  ///< hard budget; at least 1, at most 2^31 - 2
  std::size_t max_bytes = 0;         ///< hard budget for bytes(), from 64 KiB and 1,024 blocks on:
                                     ///< so much a tree takes in any case; 0: none
  double half_life = 1024;           ///< inserts after which a use counts half; above 0
  /// Hash of one block; null: XXH3-64. Exactness does not depend on it, only speed does.
  std::uint64_t (*hash)(const Token* tokens, std::size_t count) = nullptr;
};

/// See the head of this file: exact, prefix-closed, bounded.
class TOKI_EXPORT BlockTree {
 public:
  /// How much of a prompt is known.
  struct Match {
    std::size_t tokens = 0;  ///< leading tokens known, exact, also into the last block
    std::size_t blocks = 0;  ///< whole blocks among them
  };

  /// A prefix that many prompts share: it ends where their ways part.
  struct HotPrefix {
    Scope scope;     ///< of the prompts that share it
    Tokens tokens;   ///< from the beginning of the prompt
    double use = 0;  ///< decayed number of inserts that went through its end
  };

  /// REQUIRES: a block size of 8 to 512, 1 to 2^31 - 2 blocks, a half life above 0.
  explicit BlockTree(const BlockTreeOptions& options = {});
  ~BlockTree();
  /// The source may only be destroyed or assigned to.
  BlockTree(BlockTree&&) noexcept;
  /// Frees what it held. The source may only be destroyed or assigned to.
  BlockTree& operator=(BlockTree&&) noexcept;

  /// Leading tokens of `prompt` that were inserted for this scope before, by comparing token ids.
  Match match(const Scope& scope, TokenSpan prompt) const;

  /// Keys of the prompt's whole blocks, for match() and insert() with keys: hash once, use often.
  std::vector<std::uint64_t> keys(const Scope& scope, TokenSpan prompt) const;
  /// REQUIRES: `keys` is keys(scope, prompt).
  Match match(const Scope& scope, TokenSpan prompt, std::span<const std::uint64_t> keys) const;

  /// Remembers the prompt and marks its path as used. Returns the number of blocks added. When the
  /// budget is smaller than the prompt, its first blocks are kept.
  std::size_t insert(const Scope& scope, TokenSpan prompt);
  /// REQUIRES: `keys` is keys(scope, prompt).
  std::size_t insert(const Scope& scope, TokenSpan prompt, std::span<const std::uint64_t> keys);

  /// Inserts the prompt and keeps it, whatever the budget evicts, until it is unpinned as often as
  /// it was pinned. False when the budget does not hold all of it, or when 65,535 pins end where this
  /// one does.
  bool pin(const Scope& scope, TokenSpan prompt);
  /// Takes back one pin() of the same prompt; without effect where there is none.
  void unpin(const Scope& scope, TokenSpan prompt);

  /// The deepest prefixes of at least `min_tokens` whose use is still close to their parent's, most
  /// used first, at most `count`. O(blocks).
  std::vector<HotPrefix> hottest(std::size_t count, std::size_t min_tokens) const;

  /// Forgets everything, pins too. No reader may be at work.
  void clear();
  /// Makes room for so many blocks now, so that no later insert has to ask for memory.
  void reserve(std::size_t blocks);

  /// Blocks that are known now.
  std::size_t blocks() const noexcept;
  /// Most blocks that both budgets allow, with the scopes that are known now.
  std::size_t capacity() const noexcept;
  std::size_t bytes() const noexcept;  ///< memory held for blocks, token ids included
  /// As it was made.
  const BlockTreeOptions& options() const noexcept;

  /// Walks everything and stops the program when the tree contradicts itself. For tests; O(blocks).
  void check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
