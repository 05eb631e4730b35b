// KnownPrompts: the prompts that toki remembers whole, with their embeddings. Answers which of them
// is nearest, by order or by similarity, and how much of a prompt the backend has computed since it
// was started.
//
// Prompts of a scope are kept in the order of their token ids. The neighbours of a prompt in that
// order share the longest prefix with it that any does, so nearest() is two comparisons beside the
// search. None is the beginning of another: a prompt that goes on from a known one takes its place.
#pragma once

#include <toki/embedding.hpp>
#include <toki/prompt_record.hpp>
#include <toki/scope.hpp>
#include <toki/similarity_index.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace toki {

struct KnownPromptsLimits {
  std::size_t prompts = 4096;
  std::size_t bytes = std::size_t{64} << 20;  // token ids and embeddings
};

class KnownPrompts {
 public:
  struct Nearest {
    const PromptRecord* prompt = nullptr;
    std::size_t common = 0;  // leading tokens that both share
  };
  struct Remembered {
    const PromptRecord* prompt = nullptr;  // null: it does not fit
    bool is_new = false;                   // its record was added or replaced
    std::vector<std::uint64_t> evicted;
  };

  struct Placed {
    const PromptRecord* prompt = nullptr;
    std::size_t common = 0;  // leading tokens that it shares with the one before
  };

  // `make_index`: none is make_similarity_index().
  explicit KnownPrompts(const KnownPromptsLimits& limits, IndexMaker make_index = {})
      : limits_(limits),
        make_index_(std::move(make_index)),
        hash_index_(new_index(kHashDimension)) {}

  Nearest nearest(const Scope& scope, TokenSpan tokens) const;
  // The longest exact prefix among the prompts that the embedding nominates.
  Nearest similar(const Scope& scope, TokenSpan tokens, const Embedding& embedding) const;
  // Most leading tokens that the backend computed, as part of one prompt, since forget_computed().
  std::size_t computed(const Scope& scope, TokenSpan tokens) const;

  // The backend has computed this prompt now. `hash` is its hash embedding, `model` another or null.
  Remembered remember(std::uint64_t new_id, const Scope& scope, TokenSpan tokens,
                      const Embedding& hash, const Embedding* model, std::int64_t now_ms);
  // One from an earlier run; false when it does not fit, or says nothing new.
  bool adopt(PromptRecord record);
  // A late embedding; null when the prompt is gone or it does not fit.
  const PromptRecord* embed(std::uint64_t id, Embedding model);
  void forget_computed();
  // REQUIRES: there is one of this id.
  void forget(std::uint64_t id) { take_out(id); }
  void clear();

  std::size_t size() const noexcept { return prompts_.size(); }
  std::size_t bytes() const noexcept;
  // Most recently used first.
  std::vector<const PromptRecord*> list(std::size_t count) const;
  // The most recently used, in the order of their token ids. O(all that is remembered).
  std::vector<Placed> in_order(std::size_t count) const;
  const PromptRecord* find(std::uint64_t id) const;
  void check_invariants() const;

 private:
  struct Prompt {
    PromptRecord record;
    std::size_t computed = 0;  // leading tokens, since forget_computed()
    std::list<std::uint64_t>::iterator age;
  };
  struct Key {  // of a stored prompt, or of one that is asked for
    const Scope* scope;
    TokenSpan tokens;
    Prompt* prompt;
  };
  struct Before {
    bool operator()(const Key& a, const Key& b) const noexcept;
  };
  using Order = std::set<Key, Before>;

  static Key key_of(Prompt& prompt) {
    return {&prompt.record.scope, prompt.record.tokens, &prompt};
  }
  static std::size_t cost(const PromptRecord& record);
  Prompt* beginning_of(const Scope& scope, TokenSpan tokens);
  Prompt* going_on_from(const Scope& scope, TokenSpan tokens);
  Prompt& add(PromptRecord record, bool newest);
  void take_out(std::uint64_t id);
  std::unique_ptr<SimilarityIndex> new_index(std::size_t dimension) const;
  void index_model(const PromptRecord& record, bool fresh);
  void touch(Prompt& prompt, std::int64_t now_ms);

  KnownPromptsLimits limits_;
  IndexMaker make_index_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Prompt>> prompts_;
  Order order_;
  Order computed_;                 // of those, the ones computed since forget_computed()
  std::list<std::uint64_t> ages_;  // longest unused first
  std::size_t held_ = 0;           // bytes
  std::unique_ptr<SimilarityIndex> hash_index_;   // every prompt
  std::unique_ptr<SimilarityIndex> model_index_;  // those with a model's embedding
};

}  // namespace toki
