// Pins and slots: which slot keeps which pin, and how a pin gets into one.
//
// A slot keeps a pin from the moment it is known to begin with its tokens until it does not any more
// (the pool sees to that); meanwhile only prompts that begin with all of it run there. A pin that no
// slot keeps waits: for a request that leaves it in a slot, or, when nothing runs, for a ticket of its
// own, planned like a request for exactly its tokens (restored, copied or computed in the slot whose
// content is worth least), which computes in pieces.
#include <algorithm>
#include <utility>

#include "core/engine_state.hpp"

namespace toki {
namespace {

constexpr std::size_t kMinHotTokens = 256;
constexpr std::uint64_t kHotRequests = 8;  // completed, between two choices of hot pins
constexpr std::chrono::seconds kHotPause{10};
constexpr std::chrono::seconds kPinPause{60};  // after one that could not be put into a slot
constexpr double kPieceMs = 10000;             // of prefill in one call
constexpr double kMinPiece = 256;              // tokens
constexpr double kMaxPiece = 8192;

}  // namespace

// One slot that answers stays free of pins.
std::size_t Engine::Impl::most_pins() const {
  const std::size_t usable = pool.size() - pool.fenced();
  return usable > 0 ? usable - 1 : 0;
}

std::size_t Engine::Impl::pins_held() const {
  std::size_t held = 0;
  for (std::size_t i = 0; i < pool.size(); ++i) {
    held += pool[i].pin != 0 && !pool[i].fenced ? 1U : 0U;
  }
  return held;
}

std::optional<std::uint32_t> Engine::Impl::holder(std::uint64_t pin) const {
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    if (pool[i].pin == pin) {
      return i;
    }
  }
  return std::nullopt;
}

// Whether a prompt that goes on from the pin would find all of it there.
bool Engine::Impl::holds(std::uint32_t index, const PinRecord& pin) const {
  const Query query{.scope = pin.scope, .tokens = pin.tokens};
  return !pool[index].surrogate && pool[index].floor <= pin.tokens.size() &&
         reach(index, query) == pin.tokens.size();
}

bool Engine::Impl::barred(std::uint32_t index, const Query& query) const {
  const Slot& slot = pool[index];
  return slot.pin != 0 &&
         (query.bypass || pool.common(index, query.scope, query.tokens) < slot.pin_tokens);
}

// Memory only: gives pins the slots that hold them, and takes slots back that must not keep theirs.
void Engine::Impl::assign_pins() {
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    const PinRecord* pin = pool[i].pin != 0 ? pins.find(pool[i].pin) : nullptr;
    const bool useless = pin != nullptr && !abilities.rewinds && !pool[i].leased && !holds(i, *pin);
    if (pin == nullptr || useless) {
      pool.clear_pin(i);
    }
  }
  if (pin_scopes.empty() || !facts.pinning) {
    return;
  }
  const auto wanted = pins.of(pin_scopes);
  for (auto last = wanted.rbegin(); last != wanted.rend() && pins_held() > most_pins(); ++last) {
    if (const auto slot = holder((*last)->id)) {
      pool.clear_pin(*slot);
    }
  }
  for (const PinRecord* pin : wanted) {
    for (std::uint32_t i = 0; !holder(pin->id) && pins_held() < most_pins() && i < pool.size();
         ++i) {
      const bool free = !pool[i].leased && !pool[i].fenced && pool[i].pin == 0;
      if (free && holds(i, *pin)) {
        pool.set_pin(i, pin->id, pin->tokens.size());
      }
    }
  }
}

// The pin that is to get a slot next.
const PinRecord* Engine::Impl::next_pin() const {
  if (pin_scopes.empty() || !facts.pinning || pins_held() >= most_pins() ||
      clock() < pins_paused_until) {
    return nullptr;
  }
  const auto wanted = pins.of(pin_scopes);
  const auto waiting = std::find_if(wanted.begin(), wanted.end(),
                                    [&](const PinRecord* pin) { return !holder(pin->id); });
  return waiting == wanted.end() ? nullptr : *waiting;
}

// True: other prefixes are pinned now.
bool Engine::Impl::choose_hot_pins() {
  if (options.hot_pins == 0 || pin_scopes.empty() || clock() < hot_pins_at ||
      stats.requests_completed < hot_pins_seen + kHotRequests) {
    return false;
  }
  hot_pins_at = clock() + kHotPause;
  hot_pins_seen = stats.requests_completed;
  pins.number_from(number_now());
  const auto prefixes = tree.hottest(2 * options.hot_pins + pins.size(), kMinHotTokens);
  return pins.choose_hot(pin_scopes, prefixes, options.hot_pins, most_pins());
}

// One token more than the pin has, because all of it is to be in the slot.
Plan Engine::Impl::plan_pin(const PinRecord& pin) const {
  const Query query{.scope = pin.scope, .tokens = pin.tokens};
  auto views = view(query);
  for (SlotView& slot : views) {
    slot.barred = pool[slot.index].pin != 0 || pool[slot.index].erase_first;
  }
  const PlanQuery wanted{.prompt = pin.tokens.size() + 1,
                         .stored = stored(pin.scope, pin.tokens).tokens};
  return plan(views, wanted, world());
}

// The steps planned so far are done: the slot holds the pin, or computes the next piece of it, or it
// is left for a while.
void Engine::Impl::go_on_with_pin(Ticket::Impl& ticket, bool failed) {
  const std::uint32_t slot = *ticket.slot;
  const PinRecord* pin = pins.find(ticket.pin);
  if (failed) {
    pool.set_unknown(slot);
  } else if (pin == nullptr) {
    return;  // it was given up meanwhile
  } else if (holds(slot, *pin)) {
    pool.set_pin(slot, pin->id, pin->tokens.size());
    tree.insert(pin->scope, pin->tokens);
    return;
  }
  const Query query{.scope = ticket.scope, .tokens = ticket.tokens};
  const std::uint64_t had = reach(slot, query);
  if (failed || !ticket.may_reuse || (ticket.pin_had && had <= *ticket.pin_had)) {
    pins_paused_until = clock() + kPinPause;
    return;
  }
  if (options.isolated && !pool.only_of(slot, ticket.scope)) {
    ticket.steps.push_back({.kind = Step::Kind::erase, .slot = {.index = slot}});
    return;
  }
  ticket.pin_had = had;
  const auto piece =
      static_cast<std::uint64_t>(std::clamp(kPieceMs / prefill_rate(), kMinPiece, kMaxPiece));
  const auto end = std::min<std::uint64_t>(had + piece, ticket.tokens.size());
  ticket.steps.push_back(
      {.kind = Step::Kind::prefill,
       .slot = {.index = slot},
       .scope = ticket.scope,
       .tokens = Tokens(ticket.tokens.begin(),
                        ticket.tokens.begin() + static_cast<std::ptrdiff_t>(end))});
}

Result<Ticket> Engine::begin_pin() {
  std::unique_ptr<Ticket::Impl> ticket;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->pool.leased() > 0) {
      return Error{Errc::not_found, "requests run"};
    }
    if (impl_->choose_hot_pins()) {
      impl_->pins_changed();
    }
    impl_->assign_pins();
    const PinRecord* pin = impl_->next_pin();
    const Plan plan = pin != nullptr ? impl_->plan_pin(*pin) : Plan{};
    if (plan.action == Plan::Action::run) {
      ticket = std::make_unique<Ticket::Impl>(impl_);
      ticket->scope = pin->scope;
      ticket->tokens = pin->tokens;
      ticket->tokens_known = true;
      ticket->pin = pin->id;
      ticket->leads = impl_->saves() && impl_->abilities.cuts;
      impl_->foreign =
          impl_->foreign || impl_->facts.own_cache;  // no prompt tells what it computes
      impl_->lease(*ticket, plan);
      impl_->add_steps(*ticket, plan, {.scope = pin->scope, .tokens = pin->tokens});
      if (ticket->steps.empty()) {
        impl_->go_on_with_pin(*ticket, false);
      }
    }
  }
  impl_->tell_news();
  return ticket != nullptr ? Result<Ticket>(Ticket(std::move(ticket)))
                           : Error{Errc::not_found, "no pin waits"};
}

Result<std::uint64_t> Engine::pin(const Scope& scope, TokenSpan tokens) {
  Result<std::uint64_t> id = Error{Errc::unavailable, "the backend is not known yet"};
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->exact()) {
      return Error{Errc::unsupported, "nothing is pinned in exact mode"};
    }
    const std::uint64_t context = impl_->facts.context;
    if (impl_->pool.size() == 0) {
      return id;
    }
    if (tokens.empty() || (context > 0 && tokens.size() >= context)) {
      return Error{Errc::invalid_argument, tokens.empty()
                                               ? "a pin needs tokens"
                                               : "the pin is longer than a slot's context"};
    }
    impl_->pins.number_from(impl_->number_now());
    id = impl_->pins.add(scope, tokens, impl_->pool.size() - 1, impl_->pin_scopes);
    if (!id) {
      return id;
    }
    impl_->pins_paused_until = {};
    impl_->assign_pins();
    impl_->pins_changed();
  }
  impl_->tell_news();
  return id;
}

Result<std::uint64_t> Engine::pin_prompt(std::uint64_t id, std::uint64_t length) {
  Scope scope;
  Tokens tokens;
  {
    const std::lock_guard lock(impl_->mutex);
    const PromptRecord* record = impl_->known.find(id);
    if (record == nullptr) {
      return Error{Errc::not_found, "no remembered prompt has this id"};
    }
    if (length > record->tokens.size()) {
      return Error{Errc::invalid_argument, "the prompt is shorter than that"};
    }
    if (!impl_->served(record->scope)) {
      return Error{Errc::invalid_argument,
                   "the prompt is of another model or call, or of other adapters, than pins are"};
    }
    scope = record->scope;
    tokens = record->tokens;
  }
  if (length > 0) {
    tokens.resize(length);
  }
  if (std::any_of(tokens.begin(), tokens.end(), [](Token token) { return token < 0; })) {
    return Error{Errc::invalid_argument, "what holds media cannot be pinned"};
  }
  return pin(scope, tokens);
}

bool Engine::unpin(std::uint64_t id) {
  {
    const std::lock_guard lock(impl_->mutex);
    const auto slot = impl_->holder(id);
    if (!impl_->pins.remove(id)) {
      return false;
    }
    if (slot) {
      impl_->pool.clear_pin(*slot);
    }
    impl_->assign_pins();  // another may take its place
    impl_->pins_changed();
  }
  impl_->tell_news();
  impl_->notify();
  return true;
}

std::vector<PinInfo> Engine::pins() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<PinInfo> result;
  for (const PinRecord& pin : impl_->pins.records()) {
    const auto slot = impl_->holder(pin.id);
    const bool other = !impl_->pin_scopes.empty() && !impl_->served(pin.scope);
    const auto nearest = impl_->known.nearest(pin.scope, pin.tokens);
    result.push_back({.id = pin.id,
                      .scope = pin.scope,
                      .tokens = pin.tokens.size(),
                      .by_hand = pin.by_hand,
                      .state = slot    ? PinState::held
                               : other ? PinState::other_model
                                       : PinState::waiting,
                      .slot = slot,
                      .prompt = nearest.common == pin.tokens.size() ? nearest.prompt->id : 0});
  }
  return result;
}

void Engine::adopt_pins(std::vector<PinRecord> pins) {
  const std::lock_guard lock(impl_->mutex);
  impl_->pins.adopt(std::move(pins), impl_->options.hot_pins > 0);
  impl_->assign_pins();
}

void Engine::on_pins_change(std::function<void(std::vector<PinRecord>)> tell) {
  const std::lock_guard lock(impl_->mutex);
  impl_->tell_pins = std::move(tell);
}

void Engine::serve_pins(std::vector<Scope> scopes) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->exact()) {
    scopes.clear();  // a pin is computed in pieces of its own
  }
  if (scopes == impl_->pin_scopes) {
    return;
  }
  impl_->pin_scopes = std::move(scopes);
  impl_->pins_paused_until = {};
  impl_->assign_pins();
}

}  // namespace toki
