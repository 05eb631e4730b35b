// The books. A ticket leases slots from begin() to its end; what a slot holds afterwards follows
// from how the request ended (settle_content), and is never more than is certain:
//
//   completed         the prompt, then what was generated (ids if we were told, else a tail)
//   refused           what it held before: the backend did not work on the prompt
//   cancelled         the prompt if its answer had begun, else what prompt and content shared
//   failed, stalled   unknown
#include <algorithm>
#include <utility>

#include "core/engine_state.hpp"

namespace toki {
namespace {

constexpr std::uint64_t kMinMeasuredTokens =
    16;  // fewer computed tokens say nothing about the prefill rate
// So many restores in a row of which too little was reused, and the backend cannot restore.
constexpr std::uint32_t kMaxEmptyRestores = 3;

}  // namespace

// A pinned ticket leases its slot. One that leaves the choice to the backend leases every idle slot
// until it is known which it got; where slots do not matter anyway (pinning off), any will do for
// counting.
void Engine::Impl::lease(Ticket::Impl& ticket, const Plan& plan) {
  std::size_t wanted = pool.size();
  if (plan.action == Plan::Action::run) {
    ticket.slot = plan.slot;
    ticket.claimed = {plan.slot};
    ticket.settled = true;
    ticket.common = pool.common(plan.slot, ticket.scope, ticket.tokens);
    ticket.common_limit = pool.common_limit(plan.slot, ticket.scope, ticket.tokens);
    wanted = 0;
  } else if (!facts.pinning) {
    wanted = std::min<std::size_t>(ticket.sequences, pool.size());
    ticket.settled = true;
  }
  for (std::uint32_t i = 0; i < pool.size() && ticket.claimed.size() < wanted; ++i) {
    if (!pool[i].leased && !pool[i].fenced) {
      ticket.claimed.push_back(i);
    }
  }
  for (const std::uint32_t i : ticket.claimed) {
    pool.lease(i, ticket.started);
    lessee[i] = &ticket;
  }
}

// No slot that it may work in holds anything of another scope, and the backend has nowhere else to take
// it from.
bool Engine::Impl::only_own(const Ticket::Impl& ticket) const {
  const bool named = ticket.slot.has_value();
  if (distrusted > 0 || ticket.epoch != epoch || ticket.claimed.empty() ||
      (!named && (facts.own_cache || ticket.claimed.size() != pool.size()))) {
    return false;
  }
  return std::all_of(ticket.claimed.begin(), ticket.claimed.end(), [&](std::uint32_t slot) {
    return slot < pool.size() && pool.only_of(slot, ticket.scope);
  });
}

void Engine::Impl::release(Ticket::Impl& ticket) {
  for (const auto* slots : {&ticket.claimed, &ticket.borrowed}) {
    for (const std::uint32_t i : *slots) {
      if (i < lessee.size() && lessee[i] == &ticket) {
        lessee[i] = nullptr;
        pool.release(i);
      }
    }
  }
  ticket.claimed.clear();
  ticket.borrowed.clear();
}

// More reuse than any prompt we know of allows. A known prompt may be followed by what was
// generated after it.
bool Engine::Impl::impossible(const Ticket::Impl& ticket, std::uint64_t cached) const {
  if (!ticket.tokens_known || ticket.surrogate) {
    return false;
  }
  if (exact()) {  // no other reuse gives the answer of a cold run
    return cached > ticket.predicted || cached != whole_batches(cached);
  }
  if (cached > ticket.tokens.size()) {
    return true;
  }
  if (ticket.slot && cached <= ticket.common_limit) {
    return false;
  }
  if (ticket.slot && !facts.own_cache && !ticket.unnamed) {
    return true;
  }
  return !foreign && cached > known.computed(ticket.scope, ticket.tokens) + longest_answer;
}

Account Engine::Impl::account(const Ticket::Impl& ticket, const Outcome& outcome) {
  Account result{.predicted = ticket.predicted};
  result.reused = outcome.cached_tokens.value_or(0);
  if (ticket.prefilled_cached) {  // what a step of ours computed was not reused
    result.reused = std::min(result.reused, *ticket.prefilled_cached);
  }
  if (ticket.bypass) {
    result.cache_class = CacheClass::bypass;
  } else if (outcome.cached_tokens) {
    result.cache_class = result.reused >= options.min_reuse_for_hit ? CacheClass::hit
                         : result.reused > 0                        ? CacheClass::soft_hit
                                                                    : CacheClass::miss;
  }
  // What the backend says of a restore proves nothing; what its next request reuses does.
  // (Where it ran elsewhere the restored state was not asked.)
  result.restore_failed = ticket.restored > 0 && outcome.ending == Ending::completed &&
                          outcome.cached_tokens && 2 * result.reused < ticket.restored &&
                          (!ticket.unnamed || ran_in_slot(ticket, outcome));
  if (result.restore_failed && result.cache_class == CacheClass::hit) {
    result.cache_class = CacheClass::soft_hit;
  }
  if (outcome.ending == Ending::completed) {
    result.tokenization_mismatch = ticket.tokens_known && !ticket.surrogate &&
                                   outcome.prompt_tokens &&
                                   *outcome.prompt_tokens != ticket.tokens.size();
    result.integrity_fault = outcome.cached_tokens && impossible(ticket, result.reused);
  }
  return result;
}

// The request and the restore before it were answered in the wrong order. They were done in the right
// one if what was restored was reused; else the state came upon the answer.
void Engine::Impl::judge_overtaken(Ticket::Impl& ticket, const Outcome& outcome) {
  if (!ticket.overtaken || outcome.cached_tokens.value_or(0) >= ticket.predicted) {
    return;
  }
  set_apart(true);
  ticket.spoilt = true;
  ticket.restored = 0;
  ticket.common_limit = ticket.tokens.size();
  ticket.source = Source::none;
}

void Engine::Impl::judge_restore(const Ticket::Impl& ticket, const Account& account) {
  if (ticket.restored == 0 || account.cache_class == CacheClass::unreported) {
    return;
  }
  empty_restores = account.restore_failed ? empty_restores + 1 : 0;
  if (empty_restores >= kMaxEmptyRestores) {
    abilities.saves = abilities.cuts = false;  // until the next trial
  }
}

void Engine::Impl::count(const Ticket::Impl& ticket, const Outcome& outcome,
                         const Account& account) {
  ++stats.requests_total;
  if (outcome.ending == Ending::cancelled) {
    ++stats.requests_cancelled;
    return;
  }
  if (outcome.ending != Ending::completed) {
    ++stats.requests_failed;
    stats.progress_timeouts_total += outcome.ending == Ending::stalled ? 1 : 0;
    return;
  }
  ++stats.requests_completed;
  switch (account.cache_class) {
    case CacheClass::hit: ++stats.class_hit; break;
    case CacheClass::soft_hit: ++stats.class_soft_hit; break;
    case CacheClass::miss: ++stats.class_miss; break;
    case CacheClass::bypass: ++stats.class_bypass; break;
    case CacheClass::unreported: ++stats.class_unreported; break;
  }
  if (account.cache_class == CacheClass::hit || account.cache_class == CacheClass::soft_hit) {
    switch (account.restore_failed ? Source::none : ticket.source) {
      case Source::none: ++stats.source_none; break;
      case Source::slot: ++stats.source_slot; break;
      case Source::tree: ++stats.source_tree; break;
      case Source::similar: ++stats.source_similar; break;
      case Source::disk: ++stats.source_disk; break;
      case Source::copy: ++stats.source_copy; break;
    }
  }
  stats.restore_failures_total += account.restore_failed ? 1 : 0;
  stats.similar_searches_total += ticket.searched_similar ? 1 : 0;
  stats.similar_gained_tokens_total += ticket.similar_gain;
  const std::uint64_t prompt = outcome.prompt_tokens.value_or(ticket.tokens.size());
  stats.prompt_tokens_total += prompt;
  stats.available_tokens_total += ticket.available;
  stats.predicted_tokens_total += ticket.predicted;
  stats.tokenization_mismatch_total += account.tokenization_mismatch ? 1 : 0;
  stats.integrity_faults_total += account.integrity_fault ? 1 : 0;
  if (outcome.cached_tokens && !account.integrity_fault) {
    stats.reused_tokens_total += account.reused;
    stats.computed_tokens_total += prompt - std::min(prompt, account.reused);
    stats.saved_ms_total += static_cast<double>(account.reused) * prefill_rate();
  }
}

void Engine::Impl::measure(const Ticket::Impl& ticket, const Outcome& outcome) {
  if (outcome.ending != Ending::completed) {
    return;
  }
  smooth(service_ms, milliseconds(clock() - ticket.started));
  longest_answer = std::max(longest_answer, outcome.generated_tokens);
  const std::uint64_t cached = outcome.cached_tokens.value_or(0);
  const std::uint64_t prompt = outcome.prompt_tokens.value_or(0);
  if (outcome.prompt_ms > 0 && prompt >= cached + kMinMeasuredTokens && !ticket.prefilled_cached) {
    smooth(prefill_ms, outcome.prompt_ms / static_cast<double>(prompt - cached));
  }
  // What a slot would have given anyway is no merit of the backend's cache.
  if (ticket.reason == Reason::backend_cache && outcome.cached_tokens &&
      ticket.computed > ticket.in_slots) {
    const auto hoped = static_cast<double>(ticket.computed - ticket.in_slots);
    const double share = static_cast<double>(cached - std::min(cached, ticket.in_slots)) / hoped;
    own_cache_trust += 0.5 * (std::min(share, 1.0) - own_cache_trust);
  }
}

// Whether the backend is known to have chosen the ticket's slot: it reused more than another can have
// held, or the slot now holds the prompt and its answer. What the backend's own cache has may have come
// into any slot.
bool Engine::Impl::ran_in_slot(const Ticket::Impl& ticket, const Outcome& outcome) const {
  const std::uint64_t cached = outcome.cached_tokens.value_or(0);
  if (ticket.rival && cached > *ticket.rival && !facts.own_cache) {
    return true;
  }
  return outcome.held && cached > 0 && *outcome.held >= ticket.tokens.size() &&
         *outcome.held <= ticket.tokens.size() + outcome.generated_tokens;
}

// Where it is not known that it ran in the ticket's slot, it may have been any that was idle.
void Engine::Impl::judge_choice(const Ticket::Impl& ticket, const Outcome& outcome,
                                Account& account) {
  if (!ticket.unnamed || !ticket.slot || outcome.ending == Ending::refused) {
    return;
  }
  if (ran_in_slot(ticket, outcome)) {
    choice_proven = true;
    choices_failed = 0;
    return;
  }
  if (outcome.ending != Ending::completed && choice_proven) {
    return;  // it left too early to tell: nothing speaks against it
  }
  account.elsewhere = true;
  choices_failed += outcome.ending == Ending::completed ? 1 : 0;
  foreign = true;
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    if (!pool[i].leased) {
      pool.set_unknown(i);
    } else if (lessee[i] != nullptr && lessee[i] != &ticket) {
      lessee[i]->common = 0;  // nor what others found in theirs
    }
  }
}

void Engine::Impl::settle_content(Ticket::Impl& ticket, const Outcome& outcome,
                                  const Account& account) {
  const bool one_slot = ticket.settled && ticket.claimed.size() == 1 && facts.pinning;
  for (const std::uint32_t i : ticket.claimed) {
    if (i >= pool.size() || lessee[i] != &ticket) {
      continue;
    }
    if (account.integrity_fault) {
      pool.erase_before_use(i);
      continue;
    }
    if (outcome.ending == Ending::refused && (ticket.slot || !ticket.settled)) {
      continue;  // nothing was seen to work on it
    }
    const bool fits =
        facts.context == 0 || ticket.tokens.size() + outcome.generated_tokens < facts.context;
    const bool certain = one_slot && ticket.tokens_known && ticket.sequences == 1 && fits &&
                         !outcome.truncated && !account.tokenization_mismatch && !account.elsewhere;
    const bool cancelled = outcome.ending == Ending::cancelled;
    if (certain && outcome.ending == Ending::completed) {
      Tokens held = ticket.tokens;
      // The last generated token was sampled but never computed, so the slot does not hold it.
      // In exact mode the others do not count either: not computed as a prompt's are.
      const std::size_t told = !exact() && outcome.generated.size() == outcome.generated_tokens &&
                                       !outcome.generated.empty()
                                   ? outcome.generated.size() - 1
                                   : 0;
      held.insert(held.end(), outcome.generated.begin(),
                  outcome.generated.begin() + static_cast<std::ptrdiff_t>(told));
      pool.hold(i, ticket.scope, std::move(held),
                told > 0 ? 0 : std::max<std::uint64_t>(outcome.generated_tokens, 1) - 1,
                ticket.common);
      pool.set_surrogate(i, ticket.surrogate);
    } else if (certain && cancelled && outcome.computed) {
      pool.hold(i, ticket.scope, ticket.tokens,
                std::max<std::uint64_t>(outcome.generated_tokens, 1), ticket.common, true);
      pool.set_surrogate(i, ticket.surrogate);
    } else if (certain && cancelled && ticket.slot && ticket.common > 0 && !facts.own_cache) {
      // Whether or not the backend had begun, what both had in common is still there.
      ticket.tokens.resize(ticket.common);
      pool.hold(i, ticket.scope, std::move(ticket.tokens), 1, 0, true);
      pool.set_surrogate(i, ticket.surrogate);
    } else {
      // What was sent with cache_prompt false, and completed in the one slot, is all that is there.
      const bool own = ticket.clean || (one_slot && outcome.ending == Ending::completed);
      options.isolated&& own ? pool.set_owned(i, ticket.scope) : pool.set_unknown(i);
      foreign = true;
    }
  }
}

// Most of what was restored was not reused, by the backend's word: the state was not what the store
// said. A prompt that is restored whole is left out: without rewinding its last token costs it all.
bool Engine::Impl::doubts(const Ticket::Impl& ticket, const Outcome& outcome) const {
  return doubt != nullptr && outcome.ending == Ending::completed && outcome.cached_tokens &&
         ticket.restored < ticket.tokens.size() && 2 * *outcome.cached_tokens < ticket.restored;
}

// What a completed request leaves behind, for the tree, the known prompts and whoever keeps them.
void Engine::Impl::remember(const Ticket::Impl& ticket, const Embedding& hash, Account& account) {
  tree.insert(ticket.scope, ticket.tokens);
  tree_overflowed = tree_overflowed || tree.blocks() >= tree.capacity();
  const Embedding* model =
      ticket.embedding.kind == EmbeddingKind::model ? &ticket.embedding : nullptr;
  const auto done = known.remember(next_prompt, ticket.scope, ticket.tokens, hash, model, now_ms());
  if (done.prompt != nullptr) {
    next_prompt += done.prompt->id == next_prompt ? 1 : 0;
    account.prompt = done.prompt->id;
    account.wants_embedding = done.prompt->embedding.kind != EmbeddingKind::model;
    PromptChange change{.kind = PromptChange::Kind::used, .prompt = {}};
    if (tell && done.is_new) {
      change = {.kind = PromptChange::Kind::put, .prompt = *done.prompt};
    }
    change.prompt.id = done.prompt->id;
    change.prompt.use = done.prompt->use;
    change.prompt.last_used_ms = done.prompt->last_used_ms;
    prompt_changed(std::move(change));
  }
  for (const std::uint64_t id : done.evicted) {
    foreign = true;  // the backend's own cache may hold what is forgotten here
    prompt_changed({.kind = PromptChange::Kind::removed, .prompt = {.id = id}});
  }
}

Ticket::Ticket(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Ticket::Ticket(Ticket&&) noexcept = default;
Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    if (impl_ != nullptr) {
      std::move(*this).finish({.ending = Ending::cancelled});
    }
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Ticket::~Ticket() {
  if (impl_ != nullptr) {
    std::move(*this).finish({.ending = Ending::cancelled});
  }
}

std::optional<SlotId> Ticket::slot() const noexcept {
  return impl_->slot ? std::optional(SlotId{.index = *impl_->slot}) : std::nullopt;
}
std::uint64_t Ticket::predicted() const noexcept {
  return impl_->predicted;
}
std::uint64_t Ticket::available() const noexcept {
  return impl_->available;
}
Reason Ticket::reason() const noexcept {
  return impl_->reason;
}
bool Ticket::may_reuse() const noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  const bool some = impl_->predicted > 0 || impl_->alone || !impl_->engine->exact();
  return impl_->may_reuse && some &&
         (!impl_->engine->options.isolated || impl_->engine->only_own(*impl_));
}
Source Ticket::source() const noexcept {
  return impl_->source;
}
bool Ticket::current() const noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  return impl_->epoch == impl_->engine->epoch && !impl_->lost_slot;
}
bool Ticket::settled() const noexcept {
  return impl_->settled;
}

bool Ticket::wants_proof(std::optional<std::uint64_t> cached_tokens) const noexcept {
  if (!impl_->unnamed || !impl_->slot) {
    return false;
  }
  const std::lock_guard lock(impl_->engine->mutex);
  const Outcome told{.cached_tokens = cached_tokens};
  return !impl_->engine->ran_in_slot(*impl_, told);
}

std::size_t Ticket::claimed_among(std::span<const std::uint32_t> slots) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(slots.begin(), slots.end(), [&](std::uint32_t slot) {
        return std::find(impl_->claimed.begin(), impl_->claimed.end(), slot) !=
               impl_->claimed.end();
      }));
}

CacheClass Ticket::predicted_class() const noexcept {
  return class_of(impl_->bypass.has_value(), impl_->predicted, impl_->min_hit);
}

void Ticket::sent() noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  impl_->sent = true;
  impl_->clean = impl_->engine->only_own(*impl_);
  if (impl_->unnamed && impl_->slot && impl_->epoch == impl_->engine->epoch) {
    impl_->rival = impl_->engine->rivals(*impl_).most;
  }
  impl_->engine->foreign = impl_->engine->foreign || !impl_->tokens_known || impl_->surrogate;
}

void Ticket::settle(std::span<const std::uint32_t> in_use) {
  {
    const std::lock_guard lock(impl_->engine->mutex);
    if (impl_->settled || in_use.empty() || impl_->epoch != impl_->engine->epoch) {
      return;
    }
    const auto working = [&](std::uint32_t slot) {
      return std::find(in_use.begin(), in_use.end(), slot) != in_use.end();
    };
    if (std::none_of(impl_->claimed.begin(), impl_->claimed.end(), working)) {
      return;
    }
    for (const std::uint32_t slot : impl_->claimed) {
      if (!working(slot)) {
        impl_->engine->lessee[slot] = nullptr;
        impl_->engine->pool.release(slot);
      }
    }
    std::erase_if(impl_->claimed, [&](std::uint32_t slot) { return !working(slot); });
    impl_->settled = true;
  }
  impl_->engine->notify();
}

// The slot of an ended request. REQUIRES the backend to be that of its ticket, and it to be sent.
void Engine::Impl::settle_slots(Ticket::Impl& ticket, const Outcome& outcome,
                                const Account& account) {
  settle_content(ticket, outcome, account);
  if (ticket.spoilt || !ticket.steps.empty()) {
    for (const std::uint32_t slot : ticket.claimed) {
      pool.erase_before_use(slot);
    }
  }
  // Of several it may be in, none is to be trusted. In exact mode nobody runs beside one that is left
  // either.
  const bool left = outcome.ending == Ending::cancelled || outcome.ending == Ending::failed;
  if (outcome.ending == Ending::stalled || (exact() && left)) {
    for (const std::uint32_t slot : ticket.claimed) {
      pool.fence(slot, true);
    }
  }
}

// The backend was started again, or is another one, since the request was sent.
void Engine::Impl::settle_outdated(const Ticket::Impl& ticket) {
  for (const std::uint32_t slot : ticket.claimed) {
    if (slot < pool.size() && lessee[slot] == &ticket) {
      pool.set_unknown(slot);
    }
  }
}

Account Ticket::finish(const Outcome& outcome) && {
  const auto ticket = std::move(impl_);
  TOKI_CHECK(ticket != nullptr);
  const auto engine = ticket->engine;
  Account account;
  StoreDoubt doubt;
  const bool whole = outcome.ending == Ending::completed && ticket->tokens_known;
  const Embedding hash = whole ? hash_embedding(ticket->tokens) : Embedding{};
  {
    const std::lock_guard lock(engine->mutex);
    engine->judge_overtaken(*ticket, outcome);
    account = engine->account(*ticket, outcome);
    engine->count(*ticket, outcome, account);
    const bool current = ticket->epoch == engine->epoch;
    if (current && ticket->sent) {
      engine->measure(*ticket, outcome);
      engine->judge_restore(*ticket, account);
      engine->judge_choice(*ticket, outcome, account);
      const bool doubted = !account.elsewhere && engine->doubts(*ticket, outcome);
      doubt = doubted ? engine->doubt : nullptr;
      engine->settle_slots(*ticket, outcome, account);
      if (whole && !account.tokenization_mismatch && !account.integrity_fault) {
        engine->remember(*ticket, hash, account);
      }
    } else if (current && ticket->step_begun) {
      engine->broken_off(*ticket);
    } else if (!current && ticket->sent) {
      engine->settle_outdated(*ticket);
    }
    engine->release(*ticket);
    engine->assign_pins();
  }
  engine->notify();
  if (doubt) {
    doubt(ticket->scope, ticket->tokens);
  }
  engine->tell_news();
  return account;
}

void Ticket::dismiss(std::span<const std::uint32_t> touched, SlotContent content) && {
  const auto ticket = std::move(impl_);
  TOKI_CHECK(ticket != nullptr);
  const auto engine = ticket->engine;
  {
    const std::lock_guard lock(engine->mutex);
    for (const std::uint32_t slot : touched) {
      if (slot < engine->pool.size() && engine->lessee[slot] == ticket.get()) {
        if (engine->exact() && content != SlotContent::empty) {
          engine->pool.fence(slot, true);  // it may still be at it
        }
        content == SlotContent::empty ? engine->pool.set_empty(slot)
                                      : engine->pool.set_unknown(slot);
      }
    }
    engine->release(*ticket);
    engine->assign_pins();
  }
  engine->notify();
}

}  // namespace toki
