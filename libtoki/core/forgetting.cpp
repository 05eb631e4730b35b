// What the engine lets go of because somebody said so, and what it would lose if it ended now.
//
// The tree has no way to forget one prompt: it is made again from the prompts that are still
// remembered whole, and from the pins in slots. What it knew of others beyond those goes with it.
//
// What is pinned by hand somebody wants kept: it stays pinned, and is what others share. A hot pin is
// a part of remembered prompts, and goes with them.
#include <toki/engine.hpp>

#include <algorithm>
#include <utility>

#include "core/engine_state.hpp"

namespace toki {

void Engine::Impl::make_tree_again() {
  tree.clear();
  const auto prompts = known.list(known.size());
  for (auto prompt = prompts.rbegin(); prompt != prompts.rend(); ++prompt) {
    tree.insert((*prompt)->scope, (*prompt)->tokens);
  }
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    if (const PinRecord* pin = pool[i].pin != 0 ? pins.find(pool[i].pin) : nullptr) {
      tree.insert(pin->scope, pin->tokens);
    }
  }
}

std::uint64_t Engine::Impl::shared(const Scope& scope, TokenSpan tokens) const {
  return std::max<std::uint64_t>(known.nearest(scope, tokens).common,
                                 pins.common_by_hand(scope, tokens));
}

void Engine::Impl::forget_slots(const ForgottenPrompt& gone) {
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    const Slot& slot = pool[i];
    const bool holds = slot.content == SlotContent::known && slot.scope == gone.scope &&
                       common_prefix(slot.tokens, gone.tokens) > gone.shared;
    if (holds && !slot.leased) {
      pool.erase_before_use(i);
    }
  }
}

Result<ForgottenPrompt> Engine::forget(std::uint64_t id) {
  ForgottenPrompt gone;
  {
    const std::lock_guard lock(impl_->mutex);
    const PromptRecord* record = impl_->known.find(id);
    if (record == nullptr) {
      return Error{Errc::not_found, "no remembered prompt has this id"};
    }
    gone = {.scope = record->scope, .tokens = record->tokens};
    impl_->known.forget(id);
    impl_->prompt_changed({.kind = PromptChange::Kind::removed, .prompt = {.id = id}});
    gone.shared = impl_->shared(gone.scope, gone.tokens);
    if (impl_->pins.drop_hot(gone.scope, gone.tokens, gone.shared)) {
      impl_->pins_changed();
    }
    impl_->forget_slots(gone);
    impl_->assign_pins();
    impl_->make_tree_again();
    impl_->foreign = true;  // the backend's own cache may hold what is forgotten here
  }
  impl_->tell_news();
  return gone;
}

void Engine::forget_slots(const ForgottenPrompt& gone) {
  const std::lock_guard lock(impl_->mutex);
  impl_->forget_slots(gone);
}

std::size_t Engine::forget_all() {
  std::size_t count = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    count = impl_->known.size();
    ++impl_->epoch;  // what runs now leaves nothing behind
    impl_->known.clear();
    impl_->tree.clear();
    impl_->prompt_changed({.kind = PromptChange::Kind::cleared, .prompt = {}});
    if (impl_->pins.drop_hot()) {
      impl_->pins_changed();
    }
    impl_->tree_overflowed = false;
    impl_->foreign = true;
    for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
      const Slot& slot = impl_->pool[i];
      if (slot.content != SlotContent::empty || slot.leased) {
        impl_->pool.erase_before_use(i);
      }
    }
  }
  impl_->tell_news();
  return count;
}

std::uint64_t Engine::shared(const Scope& scope, TokenSpan tokens) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->shared(scope, tokens);
}

NearestPrompt Engine::nearest(const Scope& scope, TokenSpan tokens) const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->known.nearest(scope, tokens);
  if (found.prompt == nullptr) {
    return {};
  }
  return {.id = found.prompt->id, .tokens = found.prompt->tokens.size(), .common = found.common};
}

void Engine::each_prompt(std::size_t count, const PromptVisit& visit) const {
  const std::lock_guard lock(impl_->mutex);
  for (const PromptRecord* record : impl_->known.list(count)) {
    visit(*record);
  }
}

void Engine::each_prompt_in_order(std::size_t count, const PlacedVisit& visit) const {
  const std::lock_guard lock(impl_->mutex);
  for (const KnownPrompts::Placed& placed : impl_->known.in_order(count)) {
    visit(*placed.prompt, placed.common);
  }
}

Result<Ticket> Engine::begin_erasing() {
  const std::lock_guard lock(impl_->mutex);
  auto ticket = std::make_unique<Ticket::Impl>(impl_);
  for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
    const Slot& slot = impl_->pool[i];
    if (slot.erase_first && !slot.leased && !slot.fenced) {
      ticket->steps.push_back({.kind = Step::Kind::erase, .slot = {.index = i}});
      impl_->borrow(*ticket, i);
    }
  }
  if (ticket->steps.empty()) {
    return Error{Errc::not_found, "no idle slot is to be erased"};
  }
  return Ticket(std::move(ticket));
}

std::string Engine::file_prefix() const {
  return impl_->file_prefix();
}

std::vector<std::string> Engine::saving() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<std::string> names;
  for (const Ticket::Impl* user : impl_->lessee) {
    if (user == nullptr) {
      continue;
    }
    for (const Step& step : user->steps) {
      const bool listed = std::find(names.begin(), names.end(), step.file) != names.end();
      if (step.kind == Step::Kind::save && !listed) {
        names.push_back(step.file);
      }
    }
  }
  return names;
}

std::vector<std::uint32_t> Engine::unsaved() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<std::uint32_t> slots;
  if (!impl_->can_save()) {
    return slots;
  }
  PlanWorld world = impl_->world();
  world.saves = true;  // also while saving pauses
  for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
    const Slot& slot = impl_->pool[i];
    if (slot.leased || (!slot.saved && worth_saving(impl_->view_of(i), world))) {
      slots.push_back(i);
    }
  }
  return slots;
}

}  // namespace toki
