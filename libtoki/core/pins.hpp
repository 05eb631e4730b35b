// Pins: which prefixes are pinned, by hand or because they are hot. Which slot holds which is the
// slot pool's to know.
#pragma once

#include <toki/block_tree.hpp>
#include <toki/pin_record.hpp>
#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace toki {

class Pins {
 public:
  /// Most pins kept, those of other models included.
  static constexpr std::size_t kMost = 256;

  /// Ids begin there; they grow.
  explicit Pins(std::uint64_t first_id) : next_id_(first_id) {}
  /// New pins get ids from here on. Ids that were only counted would tell how many others make.
  void number_from(std::uint64_t id) noexcept { next_id_ = std::max(next_id_, id); }

  /// Pins the prefix by hand; the id of one that is there already. At most `most` of its scope and of
  /// those it shares slots with, `beside`, are pinned by hand, and a hot one makes way: then
  /// Errc::busy. REQUIRES: tokens.
  Result<std::uint64_t> add(const Scope& scope, TokenSpan tokens, std::size_t most,
                            std::span<const Scope> beside = {});
  bool remove(std::uint64_t id);
  /// Pins of an earlier run. One whose tokens or id are there already, or without tokens, is not
  /// taken. `hot`: whether those not pinned by hand are.
  void adopt(std::vector<PinRecord> records, bool hot);

  /// Chooses the hot pins of the scopes among the tree's hottest prefixes: at most `count`, and with
  /// those pinned by hand at most `most`. A hot pin only gives way to a prefix that is clearly hotter.
  /// True: something changed.
  bool choose_hot(std::span<const Scope> scopes, std::span<const BlockTree::HotPrefix> prefixes,
                  std::size_t count, std::size_t most);

  /// The hot ones of prompts that are forgotten: all; or those of the scope that share more than
  /// `shared` tokens with this one. True: something changed.
  bool drop_hot();
  bool drop_hot(const Scope& scope, TokenSpan prompt, std::uint64_t shared);
  /// Leading tokens that a prefix pinned by hand has in common with the prompt.
  std::uint64_t common_by_hand(const Scope& scope, TokenSpan prompt) const;

  const PinRecord* find(std::uint64_t id) const;
  /// Those of the scopes, in the order in which they get slots: by hand, then the hottest first.
  std::vector<const PinRecord*> of(std::span<const Scope> scopes) const;
  /// By id.
  std::vector<PinRecord> records() const;
  std::size_t size() const noexcept { return pins_.size(); }
  std::size_t by_hand() const noexcept;

 private:
  struct Pin {
    PinRecord record;
    double use = 0;  // of a hot one, when it was last looked at
  };
  std::size_t count(std::span<const Scope> scopes, bool by_hand) const;
  bool drop_coldest(std::span<const Scope> scopes, double below);

  std::vector<Pin> pins_;  // by id
  std::uint64_t next_id_;
};

}  // namespace toki
