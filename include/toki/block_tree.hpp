// BlockTree: every prompt that is worth remembering, cut into blocks of tokens that prompts with a
// common prefix share. Answers one question: how many leading tokens of this prompt are known?
//
// Threads:   concurrent const calls are safe while nobody writes.
// Ownership: copies the tokens it is given.
// Errors:    none; what does not fit the budget is evicted, leaves first, least recently used
// first. Cost:      match and insert compare each token once and take O(log siblings) per block.
//
// Exact: a prefix counts only after its token ids were compared; hashes are never trusted.
// Prefix-closed: a block is never present without its parent. A path is protected from its second
// use on, so that one giant prompt cannot flush the prefixes that many share.
#pragma once

#include <toki/export.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace toki {

struct BlockTreeOptions {
  std::size_t block_size =
      32;  ///< tokens a block, 8 to 512; smaller finds finer, larger needs less memory
  std::size_t max_blocks = 1 << 20;  ///< hard budget; at least 1
};

class TOKI_EXPORT BlockTree {
 public:
  struct Match {
    std::size_t tokens = 0;  ///< leading tokens known, exact, also into the last block
    std::size_t blocks = 0;  ///< whole blocks among them
  };

  explicit BlockTree(const BlockTreeOptions& options = {});
  ~BlockTree();
  BlockTree(BlockTree&&) noexcept;
  BlockTree& operator=(BlockTree&&) noexcept;

  Match match(const Scope& scope, TokenSpan prompt) const;

  /// Remembers the prompt and marks its path as used. Returns the number of blocks added. When the
  /// budget is smaller than the prompt, its first blocks are kept.
  std::size_t insert(const Scope& scope, TokenSpan prompt);

  void clear();

  std::size_t blocks() const noexcept;
  std::size_t bytes()
      const noexcept;  ///< memory held, token ids included, estimated from its own sizes
  const BlockTreeOptions& options() const noexcept;

  /// Walks everything and stops the program when the tree contradicts itself. For tests; O(blocks).
  void check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
