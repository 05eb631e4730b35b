#include "core/known_prompts.hpp"

#include <toki/result.hpp>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace toki {
namespace {

constexpr std::size_t kNominated = 64;              // by one search
constexpr double kHalfLifeMs = 24.0 * 3600 * 1000;  // after which a use counts half
constexpr std::size_t kOverhead = 256;              // bytes a prompt beside tokens and vectors

// Whether `prompt` shares more than `common` tokens with `other`: most do not, which one look tells.
bool shares_more(TokenSpan prompt, TokenSpan other, std::size_t common) {
  return other.size() > common && prompt.size() > common && other[common] == prompt[common];
}

// An embedding of a model that can be compared with others.
bool usable(const Embedding& embedding) {
  return embedding.kind == EmbeddingKind::model && !embedding.values.empty() &&
         embedding.values.size() <= kMaxDimension;
}

Scope scope_of(const Scope& scope, const Embedding& embedding) {
  return embedding.model.empty() ? scope : Scope({scope.bytes(), embedding.model});
}

}  // namespace

bool KnownPrompts::Before::operator()(const Key& a, const Key& b) const noexcept {
  if (a.scope->seed() != b.scope->seed()) {
    return a.scope->seed() < b.scope->seed();
  }
  if (const int order = a.scope->bytes().compare(b.scope->bytes()); order != 0) {
    return order < 0;
  }
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), b.tokens.begin(),
                                      b.tokens.end());
}

std::size_t KnownPrompts::cost(const PromptRecord& record) {
  return kOverhead + record.scope.bytes().size() + record.tokens.size() * sizeof(Token) +
         (record.embedding.values.size() + 2 * kHashDimension) * sizeof(float);
}

std::size_t KnownPrompts::bytes() const noexcept {
  return held_;
}

KnownPrompts::Nearest KnownPrompts::nearest(const Scope& scope, TokenSpan tokens) const {
  Nearest best;
  const auto weigh = [&](const Key& key) {
    if (!(*key.scope == scope)) {
      return;
    }
    const std::size_t common = common_prefix(key.tokens, tokens);
    if (common > best.common) {
      best = {&key.prompt->record, common};
    }
  };
  const auto after = order_.lower_bound({&scope, tokens, nullptr});
  if (after != order_.end()) {
    weigh(*after);
  }
  if (after != order_.begin()) {
    weigh(*std::prev(after));
  }
  return best;
}

// Outwards from the prompt's place: what is shared can only become less, so the first ones that
// share no more than the best end it.
std::size_t KnownPrompts::computed(const Scope& scope, TokenSpan tokens) const {
  std::size_t best = 0;
  const auto goes_on = [&](const Key& key) {
    const std::size_t common = *key.scope == scope ? common_prefix(key.tokens, tokens) : 0;
    best = std::max(best, std::min(common, key.prompt->computed));
    return common > best;
  };
  const auto place = computed_.lower_bound({&scope, tokens, nullptr});
  for (auto it = place; it != computed_.end() && goes_on(*it); ++it) {
  }
  for (auto it = place; it != computed_.begin() && goes_on(*std::prev(it)); --it) {
  }
  return best;
}

KnownPrompts::Nearest KnownPrompts::similar(const Scope& scope, TokenSpan tokens,
                                            const Embedding& embedding) const {
  const SimilarityIndex* index = embedding.kind == EmbeddingKind::hash    ? hash_index_.get()
                                 : embedding.kind == EmbeddingKind::model ? model_index_.get()
                                                                          : nullptr;
  if (index == nullptr || index->dimension() != embedding.values.size()) {
    return {};
  }
  std::vector<Candidate> candidates;
  for (const Neighbour& neighbour :
       index->search(scope_of(scope, embedding), embedding.values, kNominated)) {
    const auto found = prompts_.find(neighbour.id);
    if (found != prompts_.end()) {
      candidates.push_back({neighbour.id, neighbour.cosine, found->second->record.tokens.size()});
    }
  }
  keep_band(candidates);
  Nearest best;
  for (const Candidate& candidate : candidates) {
    const PromptRecord& record = prompts_.at(candidate.id)->record;
    if (shares_more(tokens, record.tokens, best.common)) {
      const std::size_t common = common_prefix(record.tokens, tokens);
      if (common > best.common) {
        best = {&record, common};
      }
    }
  }
  return best;
}

// The known prompt that `tokens` begins with; none is the beginning of another, so it stands right
// before.
KnownPrompts::Prompt* KnownPrompts::beginning_of(const Scope& scope, TokenSpan tokens) {
  auto after = order_.upper_bound({&scope, tokens, nullptr});
  if (after == order_.begin()) {
    return nullptr;
  }
  const Key& key = *std::prev(after);
  const bool begins = *key.scope == scope && key.tokens.size() <= tokens.size() &&
                      common_prefix(key.tokens, tokens) == key.tokens.size();
  return begins ? key.prompt : nullptr;
}

// A known prompt that begins with `tokens`.
KnownPrompts::Prompt* KnownPrompts::going_on_from(const Scope& scope, TokenSpan tokens) {
  const auto after = order_.lower_bound({&scope, tokens, nullptr});
  const bool begins = after != order_.end() && *after->scope == scope &&
                      after->tokens.size() >= tokens.size() &&
                      common_prefix(after->tokens, tokens) == tokens.size();
  return begins ? after->prompt : nullptr;
}

void KnownPrompts::touch(Prompt& prompt, std::int64_t now_ms) {
  PromptRecord& record = prompt.record;
  const auto age = static_cast<double>(std::max<std::int64_t>(now_ms - record.last_used_ms, 0));
  record.use = record.use * std::exp2(-age / kHalfLifeMs) + 1;
  record.last_used_ms = now_ms;
  ages_.splice(ages_.end(), ages_, prompt.age);
}

KnownPrompts::Prompt& KnownPrompts::add(PromptRecord record, bool newest) {
  auto owned = std::make_unique<Prompt>();
  owned->record = std::move(record);
  const std::uint64_t id = owned->record.id;
  owned->age = ages_.insert(newest ? ages_.end() : ages_.begin(), id);
  held_ += cost(owned->record);
  order_.insert(key_of(*owned));
  return *prompts_.emplace(id, std::move(owned)).first->second;
}

void KnownPrompts::take_out(std::uint64_t id) {
  const auto found = prompts_.find(id);
  Prompt& prompt = *found->second;
  held_ -= cost(prompt.record);
  order_.erase(key_of(prompt));
  computed_.erase(key_of(prompt));
  ages_.erase(prompt.age);
  for (SimilarityIndex* index : {hash_index_.get(), model_index_.get()}) {
    if (index != nullptr) {
      index->remove(id);
    }
  }
  prompts_.erase(found);
}

std::unique_ptr<SimilarityIndex> KnownPrompts::new_index(std::size_t dimension) const {
  return make_index_ ? make_index_(dimension) : make_similarity_index(dimension);
}

// Vectors of two models are never compared. A fresh one of another dimension begins the index anew.
void KnownPrompts::index_model(const PromptRecord& record, bool fresh) {
  const Embedding& embedding = record.embedding;
  if (!usable(embedding)) {
    return;
  }
  if (model_index_ == nullptr || (fresh && model_index_->dimension() != embedding.values.size())) {
    model_index_ = new_index(embedding.values.size());
  }
  if (model_index_->dimension() == embedding.values.size()) {
    model_index_->put(record.id, scope_of(record.scope, embedding), embedding.values);
  }
}

KnownPrompts::Remembered KnownPrompts::remember(std::uint64_t new_id, const Scope& scope,
                                                TokenSpan tokens, const Embedding& hash,
                                                const Embedding* model, std::int64_t now_ms) {
  Remembered result;
  if (Prompt* known = going_on_from(scope, tokens)) {
    touch(*known, now_ms);
    known->computed = std::max(known->computed, tokens.size());
    computed_.insert(key_of(*known));
    result.prompt = &known->record;
    return result;
  }
  PromptRecord record{.id = new_id, .scope = scope, .tokens = {tokens.begin(), tokens.end()}};
  if (Prompt* shorter = beginning_of(scope, tokens)) {
    touch(*shorter, now_ms);
    record.id = shorter->record.id;
    record.use = shorter->record.use - 1;
    record.last_used_ms = now_ms;
    take_out(record.id);
  }
  record.embedding = model != nullptr && usable(*model) ? *model : hash;
  if (cost(record) > limits_.bytes || limits_.prompts == 0) {
    result.evicted.push_back(record.id);
    return result;
  }
  while (!ages_.empty() &&
         (prompts_.size() >= limits_.prompts || held_ + cost(record) > limits_.bytes)) {
    result.evicted.push_back(ages_.front());
    take_out(ages_.front());
  }
  Prompt& added = add(std::move(record), true);
  touch(added, now_ms);
  added.computed = tokens.size();
  computed_.insert(key_of(added));
  hash_index_->put(added.record.id, scope, hash.values);
  index_model(added.record, true);
  result.prompt = &added.record;
  result.is_new = true;
  return result;
}

bool KnownPrompts::adopt(PromptRecord record) {
  const bool says_nothing_new = record.tokens.empty() || prompts_.contains(record.id) ||
                                going_on_from(record.scope, record.tokens) != nullptr ||
                                beginning_of(record.scope, record.tokens) != nullptr;
  if (says_nothing_new || prompts_.size() >= limits_.prompts ||
      held_ + cost(record) > limits_.bytes) {
    return false;
  }
  const bool has_hash = record.embedding.kind == EmbeddingKind::hash &&
                        record.embedding.values.size() == kHashDimension;
  const Embedding hash = has_hash ? record.embedding : hash_embedding(record.tokens);
  if (!usable(record.embedding)) {
    record.embedding = hash;
  }
  const PromptRecord& kept = add(std::move(record), false).record;
  hash_index_->put(kept.id, kept.scope, hash.values);
  index_model(kept, false);
  return true;
}

const PromptRecord* KnownPrompts::embed(std::uint64_t id, Embedding model) {
  const auto found = prompts_.find(id);
  if (found == prompts_.end() || !usable(model)) {
    return nullptr;
  }
  PromptRecord& record = found->second->record;
  const std::size_t others = held_ - cost(record);
  std::swap(record.embedding, model);
  if (others + cost(record) > limits_.bytes) {
    record.embedding = std::move(model);
    return nullptr;
  }
  held_ = others + cost(record);
  index_model(record, true);
  return &record;
}

void KnownPrompts::forget_computed() {
  for (const Key& key : computed_) {
    key.prompt->computed = 0;
  }
  computed_.clear();
}

void KnownPrompts::clear() {
  *this = KnownPrompts(limits_, make_index_);
}

std::vector<const PromptRecord*> KnownPrompts::list(std::size_t count) const {
  std::vector<const PromptRecord*> result;
  for (auto id = ages_.rbegin(); id != ages_.rend() && result.size() < count; ++id) {
    result.push_back(&prompts_.at(*id)->record);
  }
  return result;
}

std::vector<KnownPrompts::Placed> KnownPrompts::in_order(std::size_t count) const {
  std::unordered_set<const PromptRecord*> wanted;
  for (const PromptRecord* record : list(count)) {
    wanted.insert(record);
  }
  std::vector<Placed> result;
  for (const Key& key : order_) {
    const PromptRecord& record = key.prompt->record;
    if (!wanted.contains(&record)) {
      continue;
    }
    const PromptRecord* before = result.empty() ? nullptr : result.back().prompt;
    const bool alike = before != nullptr && before->scope == record.scope;
    result.push_back({&record, alike ? common_prefix(before->tokens, record.tokens) : 0});
  }
  return result;
}

const PromptRecord* KnownPrompts::find(std::uint64_t id) const {
  const auto found = prompts_.find(id);
  return found == prompts_.end() ? nullptr : &found->second->record;
}

void KnownPrompts::check_invariants() const {
  TOKI_CHECK(order_.size() == prompts_.size() && ages_.size() == prompts_.size());
  TOKI_CHECK(prompts_.size() <= limits_.prompts && held_ <= limits_.bytes);
  std::size_t held = 0;
  std::size_t computed = 0;
  const Key* before = nullptr;
  for (const Key& key : order_) {
    held += cost(key.prompt->record);
    computed += key.prompt->computed > 0 ? 1U : 0U;
    TOKI_CHECK(key.prompt->computed <= key.tokens.size());
    TOKI_CHECK(key.tokens.data() == key.prompt->record.tokens.data());
    const bool begins = before != nullptr && *before->scope == *key.scope &&
                        common_prefix(before->tokens, key.tokens) == before->tokens.size();
    TOKI_CHECK(!begins);
    before = &key;
  }
  TOKI_CHECK(held == held_ && computed == computed_.size());
  TOKI_CHECK(hash_index_->size() == prompts_.size());
}

}  // namespace toki
