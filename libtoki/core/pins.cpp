#include "core/pins.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace toki {
namespace {

constexpr double kMinUse = 4;           // fewer prompts that begin alike are not worth a slot
constexpr double kClearlyHotter = 1.5;  // times the use of the hot pin that gives way

// Whether both are one prefix that was looked at twice, or the longer one begins with the shorter.
bool related(TokenSpan a, TokenSpan b) {
  const std::size_t common = common_prefix(a, b);
  return common == std::min(a.size(), b.size()) || 2 * common >= std::max(a.size(), b.size());
}

bool among(std::span<const Scope> scopes, const Scope& scope) {
  return std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
}

bool equal(TokenSpan a, TokenSpan b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

std::string_view to_string(PinState value) noexcept {
  switch (value) {
    case PinState::held: return "held";
    case PinState::waiting: return "waiting";
    case PinState::other_model: return "other_model";
  }
  return "waiting";
}

std::size_t Pins::count(std::span<const Scope> scopes, bool by_hand) const {
  return static_cast<std::size_t>(std::count_if(pins_.begin(), pins_.end(), [&](const Pin& pin) {
    return pin.record.by_hand == by_hand && among(scopes, pin.record.scope);
  }));
}

std::size_t Pins::by_hand() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(pins_.begin(), pins_.end(), [](const Pin& pin) { return pin.record.by_hand; }));
}

// The hot pin of the scopes with the least use, if that is below `below`.
bool Pins::drop_coldest(std::span<const Scope> scopes, double below) {
  auto coldest = pins_.end();
  for (auto pin = pins_.begin(); pin != pins_.end(); ++pin) {
    if (!pin->record.by_hand && among(scopes, pin->record.scope) && pin->use < below &&
        (coldest == pins_.end() || pin->use < coldest->use)) {
      coldest = pin;
    }
  }
  if (coldest == pins_.end()) {
    return false;
  }
  pins_.erase(coldest);
  return true;
}

Result<std::uint64_t> Pins::add(const Scope& scope, TokenSpan tokens, std::size_t most,
                                std::span<const Scope> beside) {
  TOKI_CHECK(!tokens.empty());
  const std::span<const Scope> scopes = among(beside, scope) ? beside : std::span(&scope, 1);
  const auto known = std::find_if(pins_.begin(), pins_.end(), [&](const Pin& pin) {
    return pin.record.scope == scope && equal(pin.record.tokens, tokens);
  });
  if (known != pins_.end() && known->record.by_hand) {
    return known->record.id;
  }
  if (count(scopes, true) >= most) {
    return Error{Errc::busy, "one slot has to stay free of pins"};
  }
  if (known != pins_.end()) {
    known->record.by_hand = true;
    return known->record.id;
  }
  while (count(scopes, true) + count(scopes, false) >= most) {
    drop_coldest(scopes, std::numeric_limits<double>::infinity());
  }
  if (pins_.size() >= kMost) {
    return Error{Errc::busy, "there are too many pins, those of other models included"};
  }
  pins_.push_back({.record = {.id = next_id_++, .scope = scope, .tokens = {}, .by_hand = true}});
  pins_.back().record.tokens.assign(tokens.begin(), tokens.end());
  return pins_.back().record.id;
}

bool Pins::remove(std::uint64_t id) {
  return std::erase_if(pins_, [&](const Pin& pin) { return pin.record.id == id; }) > 0;
}

void Pins::adopt(std::vector<PinRecord> records, bool hot) {
  for (PinRecord& record : records) {
    const bool known = std::any_of(pins_.begin(), pins_.end(), [&](const Pin& pin) {
      return pin.record.id == record.id ||
             (pin.record.scope == record.scope && pin.record.tokens == record.tokens);
    });
    if (known || record.id == 0 || record.tokens.empty() || !(hot || record.by_hand) ||
        pins_.size() >= kMost) {
      continue;
    }
    next_id_ = std::max(next_id_, record.id + 1);
    pins_.push_back({.record = std::move(record)});
  }
  std::sort(pins_.begin(), pins_.end(),
            [](const Pin& a, const Pin& b) { return a.record.id < b.record.id; });
}

bool Pins::choose_hot(std::span<const Scope> scopes, std::span<const BlockTree::HotPrefix> prefixes,
                      std::size_t count, std::size_t most) {
  const std::size_t by_hand = this->count(scopes, true);
  count = std::min(count, most - std::min(by_hand, most));
  for (Pin& pin : pins_) {
    pin.use = among(scopes, pin.record.scope) ? 0 : pin.use;
    for (const auto& prefix : prefixes) {
      if (among(scopes, prefix.scope) && pin.record.scope == prefix.scope &&
          related(prefix.tokens, pin.record.tokens)) {
        pin.use = std::max(pin.use, prefix.use);
      }
    }
  }
  bool changed = false;
  while (this->count(scopes, false) > count) {
    changed = drop_coldest(scopes, std::numeric_limits<double>::infinity());
  }
  for (const auto& prefix : prefixes) {
    const bool pinned = std::any_of(pins_.begin(), pins_.end(), [&](const Pin& pin) {
      return pin.record.scope == prefix.scope && related(prefix.tokens, pin.record.tokens);
    });
    const bool computable = std::all_of(prefix.tokens.begin(), prefix.tokens.end(),
                                        [](Token token) { return token >= 0; });  // no media
    if (!among(scopes, prefix.scope) || prefix.use < kMinUse || pinned || !computable ||
        count == 0) {
      continue;
    }
    if (this->count(scopes, false) >= count && !drop_coldest(scopes, prefix.use / kClearlyHotter)) {
      continue;
    }
    if (pins_.size() >= kMost) {
      break;
    }
    pins_.push_back({.record = {.id = next_id_++,
                                .scope = prefix.scope,
                                .tokens = prefix.tokens,
                                .by_hand = false},
                     .use = prefix.use});
    changed = true;
  }
  return changed;
}

bool Pins::drop_hot() {
  return std::erase_if(pins_, [](const Pin& pin) { return !pin.record.by_hand; }) > 0;
}

bool Pins::drop_hot(const Scope& scope, TokenSpan prompt, std::uint64_t shared) {
  return std::erase_if(pins_, [&](const Pin& pin) {
           return !pin.record.by_hand && pin.record.scope == scope &&
                  common_prefix(pin.record.tokens, prompt) > shared;
         }) > 0;
}

std::uint64_t Pins::common_by_hand(const Scope& scope, TokenSpan prompt) const {
  std::uint64_t common = 0;
  for (const Pin& pin : pins_) {
    if (pin.record.by_hand && pin.record.scope == scope) {
      common = std::max<std::uint64_t>(common, common_prefix(pin.record.tokens, prompt));
    }
  }
  return common;
}

const PinRecord* Pins::find(std::uint64_t id) const {
  const auto found =
      std::find_if(pins_.begin(), pins_.end(), [&](const Pin& pin) { return pin.record.id == id; });
  return found == pins_.end() ? nullptr : &found->record;
}

std::vector<const PinRecord*> Pins::of(std::span<const Scope> scopes) const {
  std::vector<const Pin*> found;
  for (const Pin& pin : pins_) {
    if (among(scopes, pin.record.scope)) {
      found.push_back(&pin);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Pin* a, const Pin* b) {
    return a->record.by_hand != b->record.by_hand ? a->record.by_hand
                                                  : !a->record.by_hand && a->use > b->use;
  });
  std::vector<const PinRecord*> result;
  for (const Pin* pin : found) {
    result.push_back(&pin->record);
  }
  return result;
}

std::vector<PinRecord> Pins::records() const {
  std::vector<PinRecord> result;
  for (const Pin& pin : pins_) {
    result.push_back(pin.record);
  }
  return result;
}

}  // namespace toki
