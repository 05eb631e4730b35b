// What the engine decides: the search for what is known of a prompt, the choice of its slot, and
// what it hears of the backend. How a request ends is in ticket.cpp.
//
// Every public function takes the one mutex, works in memory, and wakes the listener after letting
// go of it.
#include <toki/engine.hpp>

#include <algorithm>
#include <utility>

#include "core/engine_state.hpp"
#include "core/planner.hpp"

namespace toki {

std::string_view to_string(Reason value) noexcept {
  switch (value) {
    case Reason::slot_prefix: return "slot_prefix";
    case Reason::empty_slot: return "empty_slot";
    case Reason::displaced: return "displaced";
    case Reason::restored: return "restored";
    case Reason::copied: return "copied";
    case Reason::backend_cache: return "backend_cache";
    case Reason::requested_slot: return "requested_slot";
    case Reason::slot_pinned: return "slot_pinned";
    case Reason::pinning_off: return "pinning_off";
    case Reason::cache_prompt_false: return "cache_prompt_false";
    case Reason::several_models: return "several_models";
    case Reason::several_answers: return "several_answers";
    case Reason::tokenize_failed: return "tokenize_failed";
    case Reason::too_large: return "too_large";
    case Reason::media: return "media";
    case Reason::not_cacheable: return "not_cacheable";
  }
  return "unknown";
}

std::string_view to_string(Source value) noexcept {
  switch (value) {
    case Source::none: return "none";
    case Source::slot: return "slot";
    case Source::tree: return "tree";
    case Source::similar: return "similar";
    case Source::disk: return "disk";
    case Source::copy: return "copy";
  }
  return "none";
}

std::string_view to_string(Ending value) noexcept {
  switch (value) {
    case Ending::completed: return "completed";
    case Ending::refused: return "refused_by_backend";
    case Ending::failed: return "failed";
    case Ending::cancelled: return "cancelled";
    case Ending::stalled: return "stalled";
  }
  return "failed";
}

// Tokens back from its end to which every model with a sliding window is taken to rewind.
constexpr std::uint64_t kWindow = 32;

// What a slot is when nobody asks for anything.
SlotView Engine::Impl::view_of(std::uint32_t index) const {
  const Slot& slot = pool[index];
  SlotView view{.index = index, .idle = !slot.leased && !slot.fenced, .last_used = slot.last_used};
  view.empty = slot.content == SlotContent::empty;
  view.held = slot.tokens.size() + slot.unknown_tail;
  view.known = slot.tokens.size();
  if (exact()) {
    view.held = view.known = whole_batches(view.known);  // what else it holds is worth nothing
  }
  view.savable = slot.content == SlotContent::known && !slot.surrogate && !slot.tokens.empty() &&
                 (abilities.reads || abilities.cuts || view.held == view.known);
  view.turn_start = slot.turn_start;
  if (slot.content == SlotContent::known) {
    const StoredPrefix found = stored(slot.scope, slot.tokens);
    view.stored = exact() ? whole_batches(found.tokens)
                          : found.tokens + std::min(found.beyond, slot.unknown_tail);
  }
  return view;
}

std::vector<SlotView> Engine::Impl::view(const Query& query) const {
  std::vector<SlotView> views;
  views.reserve(pool.size());
  const auto now = clock();
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    const Slot& slot = pool[i];
    SlotView view = view_of(i);
    view.pinned = slot.pin != 0;
    view.barred = barred(i, query);
    const Ticket::Impl* user = lessee[i];
    if (user == nullptr || user->slot != i) {
      view.common = whole_batches(reach(i, query));
      view.superseded = pool.superseded_by(i, query.scope, query.tokens);
      if (user != nullptr && std::count(user->borrowed.begin(), user->borrowed.end(), i) > 0) {
        view.busy = !slot.fenced;  // it is saved just now
        view.remaining_ms = std::max(save.of(view.held) - milliseconds(now - slot.leased_at), 1.0);
      }
    } else if (user->tokens_known && user->scope == query.scope) {
      view.busy = !slot.fenced;
      view.common = common_prefix(user->tokens, query.tokens);
      view.held = view.known = user->tokens.size();
      view.savable = !user->surrogate;
      view.turn_start = user->common;
      const double taken = milliseconds(now - slot.leased_at);
      view.remaining_ms = service_ms > 0 ? std::max(service_ms - taken, service_ms / 4) : -1;
      if (user->leads) {
        const std::uint64_t computes =
            user->prefilled_cached ? 0 : user->tokens.size() - user->predicted;
        const double left = static_cast<double>(computes) * prefill_rate() - taken;
        view.lead_ms = std::max(left, 0.0) + save.of(view.common);
      }
    }
    views.push_back(view);
  }
  for (std::uint32_t i = 0; i < pool.size(); ++i) {  // behind all slots
    if (const auto leaving = view_of_leaving(i, query)) {
      views.push_back(*leaving);
    }
  }
  return views;
}

// What is saved of the slot at this moment, because its user displaces it: soon it can be restored.
std::optional<SlotView> Engine::Impl::view_of_leaving(std::uint32_t index,
                                                      const Query& query) const {
  const Ticket::Impl* user = lessee[index];
  if (user == nullptr || user->slot != index || !user->step_begun) {
    return std::nullopt;
  }
  const Step& step = user->steps.front();
  if (step.kind != Step::Kind::save || !step.later || step.slot.index != index ||
      step.scope != query.scope) {
    return std::nullopt;
  }
  SlotView view{.index = index, .busy = true, .savable = true, .leaving = true};
  view.common = common_prefix(step.tokens, query.tokens);
  view.held = view.known = step.tokens.size();
  view.lead_ms = std::max(save.of(view.held) - milliseconds(clock() - pool[index].leased_at), 1.0);
  return view;
}

// Tokens of the prompt that need no prefill in the slot. Without rewinding a slot only serves prompts
// that go on from all it holds; a sliding window is only rewound within itself.
std::uint64_t Engine::Impl::reach(std::uint32_t index, const Query& query) const {
  const std::uint64_t common = pool.common(index, query.scope, query.tokens);
  const Slot& slot = pool[index];
  if (!reuses(query) || (exact() && slot.surrogate)) {
    return 0;
  }
  const bool all = common == slot.tokens.size() && slot.unknown_tail == 0 && !slot.open_end;
  const bool window = abilities.saves && !abilities.cuts;
  const bool near = common + kWindow >= slot.tokens.size() + slot.unknown_tail;
  return all || (abilities.rewinds && (near || !window)) ? common : 0;
}

// Steps 2 to 4. The backend's own cache can only hold what was computed since its start.
Found Engine::Impl::search(const Query& query) const {
  Found found;
  if (query.tokens.empty() || query.bypass) {
    return found;
  }
  found.available = tree.match(query.scope, query.tokens).tokens;
  if (query.embedding != nullptr && !good(found.available, query.tokens)) {
    found.searched_similar = true;
    const std::uint64_t similar = known.similar(query.scope, query.tokens, *query.embedding).common;
    found.similar_gain = similar - std::min(similar, found.available);
    found.available += found.similar_gain;
  }
  if (facts.own_cache) {
    found.computed = known.computed(query.scope, query.tokens);
  }
  // The last token is computed in any case; what is restored whole cannot give it up again.
  const TokenSpan wanted = query.tokens.first(query.tokens.size() - (abilities.cuts ? 0 : 1));
  const StoredPrefix on_disk = stored(query.scope, wanted);
  found.stored = reuses(query) ? on_disk.tokens : 0;
  found.read = on_disk.read;
  return found;
}

// What the store has, or will have when it is asked to compose: it does one thing after the other.
StoredPrefix Engine::Impl::stored(const Scope& scope, TokenSpan tokens) const {
  if (!abilities.saves || store == nullptr) {
    return {};
  }
  StoredPrefix found = store(scope, tokens);
  for (const Pending& one : pending) {
    if (one.scope == scope) {
      const std::uint64_t common = common_prefix(one.tokens, tokens);
      const bool serves = abilities.cuts || common == one.tokens.size();
      if (serves && common > found.tokens) {
        found = {.tokens = common};
      }
    }
  }
  return found;
}

Source Engine::Impl::source(const Plan& plan, const Found& found) const {
  const std::uint64_t predicted = plan.predicted;
  if (plan.restore > 0) {
    return plan.copied ? Source::copy : Source::disk;
  }
  if (found.similar_gain > 0 && predicted < found.available) {
    return Source::similar;
  }
  if (predicted > 0 && predicted + 1 >= found.available) {
    return Source::slot;
  }
  return found.available > 0 ? Source::tree : Source::none;
}

PlanWorld Engine::Impl::world() const {
  const auto prefills = [](const Ticket::Impl* user) {
    return user != nullptr && user->leads && !user->prefilled_cached;
  };
  return {
      .tick = pool.tick(),
      .prefill_ms_per_token = prefill_rate(),
      .unit = std::max<std::uint64_t>(options.exact_batch, 1),
      .prefilling = static_cast<std::size_t>(std::count_if(lessee.begin(), lessee.end(), prefills)),
      // Without a slot's name it might choose one that is fenced.
      .own_cache_trust = trusts_own_cache() && pool.fenced() == 0 ? own_cache_trust : 0,
      .restores = restores(),
      .saves = saves(),
      .copies = saves() && restores() && abilities.cuts,
      .save = save,
      .restore = restore};
}

Plan Engine::Impl::choose(const Query& query, const Found& found) const {
  if (available_slots() == 0) {
    return {.action = Plan::Action::wait};
  }
  const bool no_reuse = query.bypass == Reason::cache_prompt_false;
  const auto views = view(query);
  const bool others = std::any_of(views.begin(), views.end(), [](auto& s) { return s.barred; });
  const auto named = options.isolated ? std::nullopt : query.slot;
  const bool refused = named && *named < views.size() && views[*named].barred;
  const auto slot = refused ? std::nullopt : named;
  // With its say over the slot of one sequence toki keeps it away from pins.
  const bool directed = facts.pinning && query.sequences == 1 && !query.unnamed &&
                        (no_reuse || refused ||
                         ((others || options.isolated) && query.bypass != Reason::not_cacheable));
  const PlanQuery plan_query{
      .prompt = query.tokens.size(),
      .available = found.computed,
      .stored = found.stored,
      .read = found.read,
      .reuse = !no_reuse && !query.bypass,
      .leave_to_backend =
          !slot && ((query.bypass && !directed) || query.sequences > 1 || !facts.pinning),
      .slot = slot,
      .waited_ms = static_cast<double>(query.waited.count()),
      .patience_ms = static_cast<double>(query.patience.count()),
      .lead_patience_ms = static_cast<double>(query.lead_patience.count()),
  };
  Plan result = plan(views, plan_query, world());
  if (refused && result.action == Plan::Action::run) {
    result.reason = Reason::slot_pinned;
  }
  if (result.action == Plan::Action::leave_to_backend && plan_query.leave_to_backend) {
    result.reason = query.bypass          ? *query.bypass
                    : query.sequences > 1 ? Reason::several_answers
                                          : Reason::pinning_off;
  }
  const std::size_t needed =
      query.alone ? pool.size()
                  : std::min<std::size_t>(query.sequences, pool.size() - pool.fenced());
  if (result.action == Plan::Action::leave_to_backend && (pool.idle() < needed || unsettled())) {
    result.action = Plan::Action::wait;
  }
  return result;
}

// Of two requests whose slots the backend chooses nobody could tell which of them is seen to work.
bool Engine::Impl::unsettled() const {
  return std::any_of(lessee.begin(), lessee.end(), [](const Ticket::Impl* user) {
    return user != nullptr && !user->settled && !user->claimed.empty();
  });
}

void Engine::Impl::prompt_changed(PromptChange change) {
  if (tell) {
    news.emplace_back(std::move(change));
  }
}

void Engine::Impl::pins_changed() {
  if (tell_pins) {
    news.emplace_back(pins.records());
  }
}

void Engine::Impl::notify() {
  std::shared_ptr<const std::function<void()>> listener;
  {
    const std::lock_guard lock(mutex);
    listener = wake;
  }
  if (listener) {
    (*listener)();
  }
}

// One thread tells what all have to tell, so that it is told in order. Whoever comes meanwhile, a
// listener's own call too, leaves it to that one.
void Engine::Impl::tell_news() {
  std::unique_lock lock(mutex);
  if (telling) {
    return;
  }
  telling = true;
  while (!news.empty()) {
    News item = std::move(news.front());
    news.pop_front();
    const auto prompts = tell;
    const auto all_pins = tell_pins;
    lock.unlock();
    if (auto* change = std::get_if<PromptChange>(&item)) {
      if (prompts) {
        prompts(std::move(*change));
      }
    } else if (all_pins) {
      all_pins(std::get<std::vector<PinRecord>>(std::move(item)));
    }
    lock.lock();
  }
  telling = false;
}

void Engine::Impl::reset_slots(std::size_t slots, SlotContent content) {
  ++epoch;
  abilities = {};
  choice_proven = false;
  choices_failed = 0;
  pin_scopes.clear();
  known.forget_computed();
  pool = SlotPool(slots, content);
  lessee.assign(slots, nullptr);
}

void Engine::Impl::drop_contents(SlotContent content) {
  ++epoch;
  known.forget_computed();
  foreign = content != SlotContent::empty;
  own_cache_trust = first_trust();
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    if (content == SlotContent::empty) {
      pool.fence(i, false);  // nothing runs any more in a backend that was started again
      pool.set_empty(i);
    } else {
      pool.set_unknown(i);
    }
  }
}

namespace {

PromptInfo info_of(const PromptRecord& record) {
  return {.id = record.id,
          .tokens = record.tokens.size(),
          .embedding = record.embedding.kind,
          .use = record.use,
          .last_used_ms = record.last_used_ms};
}

std::optional<Reason> bypass_of(const Query& query, const Plan& plan) {
  if (query.bypass) {
    return query.bypass;
  }
  const bool left = plan.reason == Reason::pinning_off || plan.reason == Reason::several_answers;
  return left ? std::optional(plan.reason) : std::nullopt;
}

}  // namespace

Engine::Engine(const EngineOptions& options, Clock clock, WallClock wall)
    : impl_(std::make_shared<Impl>(options, std::move(clock), std::move(wall))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

// Where the backend cannot be made to choose a slot, or must not reuse what is in it.
Query Engine::Impl::answerable(const Query& query) const {
  Query result = query;
  if (query.unnamed && (exact() || options.isolated || choices_failed >= kMaxFailedChoices)) {
    result.bypass = Reason::not_cacheable;
    result.tokens = {};
    result.alone = options.isolated;
  }
  return result;
}

Result<Ticket> Engine::begin(const Query& asked) {
  const std::lock_guard lock(impl_->mutex);
  const Query query = impl_->answerable(asked);
  if (impl_->available_slots() == 0) {
    return Error{Errc::busy, "no slot is free"};
  }
  const Found found = impl_->search(query);
  const Plan plan = impl_->choose(query, found);
  if (plan.action == Plan::Action::wait) {
    impl_->note_waiter(query);
    return Error{Errc::busy, "a better slot is busy"};
  }
  auto ticket = std::make_unique<Ticket::Impl>(impl_);
  ticket->scope = query.scope;
  ticket->tokens.assign(query.tokens.begin(), query.tokens.end());
  ticket->tokens_known = !query.tokens.empty();
  ticket->surrogate = query.surrogate;
  ticket->bypass = bypass_of(query, plan);
  ticket->reason = query.bypass ? *query.bypass : plan.reason;
  ticket->sequences = query.sequences;
  ticket->alone = query.alone;
  ticket->unnamed = query.unnamed;
  ticket->available = found.available;
  ticket->computed = found.computed;
  ticket->in_slots = plan.known;
  ticket->similar_gain = found.similar_gain;
  ticket->searched_similar = found.searched_similar;
  ticket->source = impl_->source(plan, found);
  if (query.embedding != nullptr && query.embedding->kind == EmbeddingKind::model) {
    ticket->embedding = *query.embedding;
  }
  ticket->min_hit = impl_->options.min_reuse_for_hit;
  ticket->predicted = plan.predicted;
  ticket->may_reuse = query.bypass != Reason::cache_prompt_false;
  impl_->lease(*ticket, plan);
  impl_->add_steps(*ticket, plan, query);
  return Ticket(std::move(ticket));
}

Lookup Engine::lookup(const Query& asked) const {
  const std::lock_guard lock(impl_->mutex);
  const Query query = impl_->answerable(asked);
  const Found found = impl_->search(query);
  const Plan plan = impl_->choose(query, found);
  Lookup result{.available = found.available, .predicted = plan.predicted};
  const auto bypass = bypass_of(query, plan);
  result.predicted_class =
      class_of(bypass.has_value(), plan.predicted, impl_->options.min_reuse_for_hit);
  result.source = impl_->source(plan, found);
  result.busy = plan.action == Plan::Action::wait;
  result.reason = bypass.value_or(plan.reason);
  if (plan.action == Plan::Action::run) {
    result.slot = plan.slot;
  }
  const auto nearest = impl_->known.nearest(query.scope, query.tokens);
  if (nearest.prompt != nullptr) {
    result.nearest = info_of(*nearest.prompt);
    result.common = nearest.common;
  }
  return result;
}

double Engine::lead_ms(const Query& query) const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->may_lead(query)) {
    return 0;  // most prompts: they are not searched for twice
  }
  return impl_->lead_ms(query, impl_->choose(query, impl_->search(query)));
}

bool Engine::wants_boundaries() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->saves() && !impl_->abilities.cuts;
}

bool Engine::wants_embedding(const Scope& scope, TokenSpan tokens) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->tree_overflowed && impl_->known.size() > 0 && !tokens.empty() &&
         !impl_->good(impl_->tree.match(scope, tokens).tokens, tokens);
}

void Engine::adopt(std::vector<PromptRecord> prompts) {
  const std::lock_guard lock(impl_->mutex);
  for (const PromptRecord& prompt : prompts) {
    impl_->next_prompt = std::max(impl_->next_prompt, prompt.id + 1);
  }
  for (auto prompt = prompts.rbegin(); prompt != prompts.rend(); ++prompt) {
    impl_->tree.insert(prompt->scope, prompt->tokens);
  }
  impl_->tree_overflowed = impl_->tree_overflowed || impl_->tree.blocks() >= impl_->tree.capacity();
  for (PromptRecord& prompt : prompts) {
    (void)impl_->known.adopt(std::move(prompt));  // what does not fit is in the tree all the same
  }
}

void Engine::embedded(std::uint64_t id, Embedding embedding) {
  {
    const std::lock_guard lock(impl_->mutex);
    const PromptRecord* record = impl_->known.embed(id, std::move(embedding));
    if (record == nullptr) {
      return;
    }
    impl_->prompt_changed({.kind = PromptChange::Kind::put, .prompt = *record});
  }
  impl_->tell_news();
}

std::vector<PromptInfo> Engine::prompts(std::size_t count) const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<PromptInfo> result;
  for (const PromptRecord* record : impl_->known.list(count)) {
    result.push_back(info_of(*record));
  }
  return result;
}

void Engine::on_prompt_change(std::function<void(PromptChange)> tell) {
  const std::lock_guard lock(impl_->mutex);
  impl_->tell = std::move(tell);
}

void Engine::on_slot_free(std::function<void()> wake) {
  const std::lock_guard lock(impl_->mutex);
  impl_->wake = wake ? std::make_shared<const std::function<void()>>(std::move(wake)) : nullptr;
}

void Engine::backend_changed(const BackendFacts& facts) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->facts = facts;
    impl_->own_cache_trust = 1.0;
    impl_->reset_slots(facts.slots, SlotContent::unknown);
    impl_->foreign = facts.slots_used.empty();
    for (std::uint32_t i = 0; i < facts.slots_used.size() && i < facts.slots; ++i) {
      if (facts.slots_used[i]) {
        impl_->foreign = true;
      } else {
        impl_->pool.set_empty(i);
      }
    }
  }
  impl_->notify();
}

void Engine::backend_restarted() {
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->stats.upstream_restarts_total;
    impl_->abilities = {};  // until the next trial
    impl_->pin_scopes.clear();
    impl_->drop_contents(SlotContent::empty);
  }
  impl_->notify();
}

void Engine::backend_slept() {
  const std::lock_guard lock(impl_->mutex);
  impl_->pin_scopes.clear();  // they must not wake it
  impl_->drop_contents(SlotContent::empty);
}

void Engine::set_abilities(const StateAbilities& abilities) {
  const std::lock_guard lock(impl_->mutex);
  impl_->abilities = abilities;
  impl_->own_cache_trust = std::min(impl_->own_cache_trust, impl_->first_trust());
  impl_->save_failures = 0;
  impl_->saves_paused_until = {};
  impl_->empty_restores = 0;
  impl_->restores_paused_until = {};
}

void Engine::use_store(StoreLookup lookup, StoreDoubt doubt) {
  const std::lock_guard lock(impl_->mutex);
  impl_->store = std::move(lookup);
  impl_->doubt = std::move(doubt);
}

void Engine::set_pinning(bool on) {
  const std::lock_guard lock(impl_->mutex);
  impl_->facts.pinning = on;
}

void Engine::forget_residency(bool erase) {
  const std::lock_guard lock(impl_->mutex);
  impl_->drop_contents(SlotContent::unknown);
  for (std::uint32_t i = 0; erase && i < impl_->pool.size(); ++i) {
    impl_->pool.erase_before_use(i);
  }
}

std::vector<std::uint32_t> Engine::fenced() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<std::uint32_t> result;
  for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
    if (impl_->pool[i].fenced) {
      result.push_back(i);
    }
  }
  return result;
}

void Engine::unfence(std::uint32_t slot) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (slot >= impl_->pool.size()) {
      return;
    }
    impl_->pool.fence(slot, false);
    impl_->assign_pins();
  }
  impl_->notify();
}

bool Engine::isolated() const {
  return impl_->options.isolated;
}

Engine::Distrust::Distrust(Engine& engine) {
  if (engine.isolated()) {
    impl_ = engine.impl_;
    const std::lock_guard lock(impl_->mutex);
    ++impl_->distrusted;
  }
}

Engine::Distrust::~Distrust() {
  if (impl_ != nullptr) {
    const std::lock_guard lock(impl_->mutex);
    --impl_->distrusted;
    impl_->known.forget_computed();
    impl_->foreign = true;
    for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
      impl_->pool.set_unknown(i);
      if (impl_->lessee[i] != nullptr) {
        impl_->lessee[i]->common = 0;  // nor what requests under way found there
      }
    }
  }
}

std::size_t Engine::slots() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->pool.size();
}

std::size_t Engine::idle_slots() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->available_slots();
}

std::vector<SlotInfo> Engine::slot_table() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<SlotInfo> table;
  const auto now = impl_->clock();
  for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
    const Slot& slot = impl_->pool[i];
    const auto nearest = impl_->known.nearest(slot.scope, slot.tokens);
    table.push_back({.content = slot.content,
                     .known_tokens = slot.tokens.size(),
                     .unknown_tail = slot.unknown_tail,
                     .leased = slot.leased,
                     .fenced = slot.fenced,
                     .last_used = slot.last_used,
                     .used_ago = std::chrono::duration_cast<std::chrono::milliseconds>(
                         now - (slot.last_used > 0 ? slot.used_at : now)),
                     .pin = slot.pin,
                     .prompt = nearest.prompt != nullptr ? nearest.prompt->id : 0,
                     .common = nearest.common});
  }
  return table;
}

Stats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  Stats result = impl_->stats;
  result.slots_total = impl_->pool.size();
  result.slots_busy = impl_->pool.leased();
  result.slots_fenced = impl_->pool.fenced();
  result.prefill_ms_per_token = impl_->prefill_rate();
  result.tree_blocks = impl_->tree.blocks();
  result.tree_bytes = impl_->tree.bytes();
  result.prompts_known = impl_->known.size();
  result.prompt_bytes = impl_->known.bytes();
  result.pinning = impl_->facts.pinning ? 1 : 0;
  result.own_cache = impl_->trusts_own_cache() ? 1 : 0;
  result.can_save = impl_->saves() ? 1 : 0;
  result.can_cut = impl_->saves() && impl_->abilities.cuts ? 1 : 0;
  result.can_rewind = impl_->abilities.rewinds ? 1 : 0;
  result.pins_by_hand = impl_->pins.by_hand();
  result.pins_hot = impl_->pins.size() - result.pins_by_hand;
  result.pins_held = impl_->pins_held();
  return result;
}

}  // namespace toki
