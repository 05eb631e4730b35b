#include <toki/token_cache.hpp>

#include <algorithm>
#include <array>
#include <bitset>
#include <limits>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/hash.hpp"

namespace toki {
namespace {

// Boundaries that are used in one text; what follows the last of them is one segment. Bounds what
// a text of nothing but special tokens costs.
constexpr std::size_t kMaxBoundaries = 8192;

// A place up to which tokens are known, or asked for: a boundary or the end of a text.
struct Cut {
  std::size_t bytes = 0;
  std::size_t tokens = 0;
  std::uint64_t key = 0;  // chained over the segments before it
};

// The special tokens, ready to be looked for.
class Specials {
 public:
  Specials() = default;
  explicit Specials(std::vector<SpecialToken> tokens) : longest_first_(std::move(tokens)) {
    std::erase_if(longest_first_, [](const SpecialToken& token) { return token.text.empty(); });
    std::stable_sort(longest_first_.begin(), longest_first_.end(),
                     [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
    for (const SpecialToken& token : longest_first_) {
      if (firsts_.find(token.text[0]) == std::string::npos) {
        firsts_ += token.text[0];
      }
      token.text.size() > 1 ? seconds_.set(byte(token.text[1])) : seconds_.set();
      ids_.push_back(token.id);
      maybe_id_.set(slot(token.id));
    }
    std::sort(ids_.begin(), ids_.end());
  }

  std::string_view firsts() const { return firsts_; }

  const SpecialToken* at(std::string_view rest) const {
    if (rest.size() > 1 && !seconds_[byte(rest[1])]) {
      return nullptr;
    }
    const auto found =
        std::find_if(longest_first_.begin(), longest_first_.end(),
                     [&](const SpecialToken& token) { return rest.starts_with(token.text); });
    return found == longest_first_.end() ? nullptr : &*found;
  }

  bool is_id(Token token) const {
    return maybe_id_[slot(token)] && std::binary_search(ids_.begin(), ids_.end(), token);
  }

 private:
  static std::size_t byte(char c) { return static_cast<unsigned char>(c); }
  static std::size_t slot(Token id) { return static_cast<std::uint32_t>(id) % 1024U; }

  std::vector<SpecialToken> longest_first_;
  std::string firsts_;          // each first character once
  std::bitset<256> seconds_;    // most places with a right first character fail here
  std::vector<Token> ids_;      // sorted
  std::bitset<1024> maybe_id_;  // and most tokens here
};

// Walks over the special tokens' texts in a text, from left to right.
class Walk {
 public:
  struct Found {
    std::size_t offset;
    Token id;
  };

  Walk(const Specials& specials, std::string_view text) : specials_(specials), text_(text) {
    for (const char first : specials.firsts()) {
      next_.push_back(text.find(first));
    }
  }

  std::optional<Found> next() {
    for (;;) {
      std::size_t at = std::string_view::npos;
      for (std::size_t i = 0; i < next_.size(); ++i) {
        if (next_[i] < from_) {
          next_[i] = text_.find(specials_.firsts()[i], from_);
        }
        at = std::min(at, next_[i]);
      }
      if (at == std::string_view::npos) {
        return std::nullopt;
      }
      from_ = at + 1;
      if (const SpecialToken* token = specials_.at(text_.substr(at))) {
        from_ = at + token->text.size();
        return Found{at, token->id};
      }
    }
  }

 private:
  const Specials& specials_;
  std::string_view text_;
  std::vector<std::size_t> next_;  // of each first character, npos: none
  std::size_t from_ = 0;
};

}  // namespace

struct TOKI_HIDDEN TokenCache::Impl {
  // What keeps texts apart that read the same.
  struct Space {
    bool start_token = false;
    std::string_view tenant;
  };
  struct Entry {
    std::string text;
    bool start_token = false;
    std::string tenant;
    Tokens tokens;
    std::vector<Cut> cuts;  // the last is the end of the text
    std::size_t cost = 0;
  };
  using Place = std::list<Entry>::iterator;
  struct Known {
    Place entry;
    std::size_t cut = 0;
  };

  std::size_t max_bytes = 0;
  HashBytes hash = best_hash_bytes();
  Specials specials;
  std::list<Entry> entries;  // latest used first
  std::unordered_map<std::uint64_t, Known> keys;
  std::size_t bytes = 0;

  std::vector<Cut> cuts_of(std::string_view text, const Space& space) const;
  bool place(std::string_view text, TokenSpan tokens, std::size_t skip,
             std::vector<Cut>& cuts) const;
  std::optional<Known> longest(std::string_view text, const Space& space,
                               const std::vector<Cut>& cuts) const;
  void forget(Place entry);
};

// Without token offsets.
std::vector<Cut> TokenCache::Impl::cuts_of(std::string_view text, const Space& space) const {
  std::vector<Cut> cuts;
  std::uint64_t key = space.start_token ? 1 : 2;
  if (!space.tenant.empty()) {
    key = chain_key(key, hash(space.tenant.data(), space.tenant.size()));
  }
  std::size_t from = 0;
  const auto cut = [&](std::size_t to) {
    key = chain_key(key, hash(text.data() + from, to - from));
    cuts.push_back({.bytes = to, .tokens = 0, .key = key});
    from = to;
  };
  Walk walk(specials, text);
  while (cuts.size() < kMaxBoundaries) {
    const auto found = walk.next();
    if (!found) {
      break;
    }
    if (found->offset > 0) {
      cut(found->offset);
    }
  }
  cut(text.size());
  return cuts;
}

// Finds the token of each boundary. False when the special tokens in the text, from the first to
// the last, are not those among its tokens: then it was tokenized in another way than we look at
// it, for example because one of them is written with an escape or is part of a longer one.
bool TokenCache::Impl::place(std::string_view text, TokenSpan tokens, std::size_t skip,
                             std::vector<Cut>& cuts) const {
  std::size_t at = skip;
  std::size_t cut = 0;
  const auto at_special = [&] {
    while (at < tokens.size() && !specials.is_id(tokens[at])) {
      ++at;
    }
    return at < tokens.size();
  };
  Walk walk(specials, text);
  while (const auto found = walk.next()) {
    if (!at_special() || tokens[at] != found->id) {
      return false;
    }
    if (found->offset > 0 && cut + 1 < cuts.size()) {
      cuts[cut++].tokens = at;
    }
    ++at;
  }
  return !at_special();
}

std::optional<TokenCache::Impl::Known> TokenCache::Impl::longest(
    std::string_view text, const Space& space, const std::vector<Cut>& cuts) const {
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const auto found = keys.find(cut->key);
    if (found == keys.end()) {
      continue;
    }
    const Entry& entry = *found->second.entry;
    if (entry.start_token == space.start_token && entry.tenant == space.tenant &&
        entry.cuts[found->second.cut].bytes == cut->bytes &&
        text.substr(0, cut->bytes) == std::string_view(entry.text).substr(0, cut->bytes)) {
      return found->second;
    }
  }
  return std::nullopt;
}

void TokenCache::Impl::forget(Place entry) {
  for (const Cut& cut : entry->cuts) {
    const auto found = keys.find(cut.key);
    if (found != keys.end() && found->second.entry == entry) {
      keys.erase(found);
    }
  }
  bytes -= entry->cost;
  entries.erase(entry);
}

TokenCache::TokenCache(std::size_t max_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->max_bytes = max_bytes;
}
TokenCache::~TokenCache() = default;
TokenCache::TokenCache(TokenCache&&) noexcept = default;
TokenCache& TokenCache::operator=(TokenCache&&) noexcept = default;

void TokenCache::clear() {
  impl_->keys.clear();
  impl_->entries.clear();
  impl_->bytes = 0;
}

void TokenCache::reset(std::vector<SpecialToken> specials) {
  clear();
  impl_->specials = Specials(std::move(specials));
}

TokenCache::Known TokenCache::find(std::string_view text, bool start_token,
                                   std::string_view tenant) {
  if (text.empty() || impl_->entries.empty()) {
    return {};
  }
  const Impl::Space space{.start_token = start_token, .tenant = tenant};
  const auto known = impl_->longest(text, space, impl_->cuts_of(text, space));
  if (!known) {
    return {};
  }
  impl_->entries.splice(impl_->entries.begin(), impl_->entries, known->entry);
  const Cut& cut = known->entry->cuts[known->cut];
  const auto begin = known->entry->tokens.begin();
  return {.bytes = cut.bytes,
          .tokens = Tokens(begin, begin + static_cast<std::ptrdiff_t>(cut.tokens))};
}

void TokenCache::put(std::string_view text, bool start_token, TokenSpan tokens,
                     std::string_view tenant) {
  if (text.empty() || text.size() > impl_->max_bytes) {
    return;
  }
  const Impl::Space space{.start_token = start_token, .tenant = tenant};
  std::vector<Cut> cuts = impl_->cuts_of(text, space);
  // The start token that the tokenizer put in front may itself be one of the special tokens.
  if (!impl_->place(text, tokens, 0, cuts) &&
      !(start_token && !tokens.empty() && impl_->place(text, tokens, 1, cuts))) {
    cuts.erase(cuts.begin(), cuts.end() - 1);
  }
  cuts.back().tokens = tokens.size();

  // A text that goes on from all of another one knows all that the other one is asked for: when a
  // conversation grows, its latest prompt takes the place of the one before.
  if (const auto known = impl_->longest(text, space, cuts)) {
    const std::string_view other = known->entry->text;
    if (text == other || (cuts.size() > 1 && text.starts_with(other))) {
      impl_->forget(known->entry);
    }
  }

  constexpr std::size_t kMapNode = 64;  // with its share of the buckets
  const std::size_t cost = sizeof(Impl::Entry) + 2 * sizeof(void*) + text.size() + tenant.size() +
                           tokens.size() * sizeof(Token) + cuts.size() * (sizeof(Cut) + kMapNode);
  if (cost > impl_->max_bytes) {
    return;
  }
  while (impl_->bytes > impl_->max_bytes - cost) {
    impl_->forget(std::prev(impl_->entries.end()));
  }
  impl_->bytes += cost;
  impl_->entries.push_front({.text = std::string(text),
                             .start_token = start_token,
                             .tenant = std::string(tenant),
                             .tokens = Tokens(tokens.begin(), tokens.end()),
                             .cuts = std::move(cuts),
                             .cost = cost});
  // Where others have a prefix in common with it, the latest is asked: it is forgotten last.
  const auto entry = impl_->entries.begin();
  for (std::size_t i = 0; i < entry->cuts.size(); ++i) {
    impl_->keys[entry->cuts[i].key] = {.entry = entry, .cut = i};
  }
}

std::size_t TokenCache::texts() const noexcept {
  return impl_->entries.size();
}
std::size_t TokenCache::bytes() const noexcept {
  return impl_->bytes;
}

}  // namespace toki
