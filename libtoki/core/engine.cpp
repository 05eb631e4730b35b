// The books. A ticket leases slots from begin() to its end; what a slot holds afterwards follows
// from how the request ended (settle_content), and is never more than is certain:
//
//   completed         the prompt, then what was generated (ids if we were told, else a tail)
//   refused           what it held before: the backend did not work on the prompt
//   cancelled         the prompt if its answer had begun, else what prompt and content shared
//   failed, stalled   unknown
//
// Every public function takes the one mutex, works in memory, and wakes the listener after letting
// go of it.
#include <toki/engine.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/known_prompts.hpp"
#include "core/planner.hpp"

namespace toki {
namespace {

constexpr double kSmoothing = 0.3;  // weight of the newest measurement
constexpr std::uint64_t kMinMeasuredTokens =
    16;  // fewer computed tokens say nothing about the prefill rate

void smooth(double& mean, double value) {
  mean = mean <= 0 ? value : mean + kSmoothing * (value - mean);
}

double milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

std::string_view to_string(Reason value) noexcept {
  switch (value) {
    case Reason::slot_prefix: return "slot_prefix";
    case Reason::empty_slot: return "empty_slot";
    case Reason::displaced: return "displaced";
    case Reason::backend_cache: return "backend_cache";
    case Reason::requested_slot: return "requested_slot";
    case Reason::pinning_off: return "pinning_off";
    case Reason::cache_prompt_false: return "cache_prompt_false";
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

struct Ticket::Impl {
  std::shared_ptr<Engine::Impl> engine;
  std::uint64_t epoch = 0;  // of the backend's contents; an older ticket records nothing
  Scope scope;
  Tokens tokens;
  bool tokens_known = false;
  bool surrogate = false;
  std::optional<Reason> bypass;
  Reason reason = Reason::displaced;
  Source source = Source::none;
  Embedding embedding;                // a model's, for the record
  std::optional<std::uint32_t> slot;  // pinned
  std::vector<std::uint32_t>
      claimed;  // leased slots: the pinned one, or those the backend may choose from
  bool settled = false;
  bool sent = false;
  bool may_reuse = true;
  std::uint32_t sequences = 1;
  std::uint64_t common = 0;        // tokens that prompt and slot shared before
  std::uint64_t common_limit = 0;  // most that they can have shared
  std::uint64_t predicted = 0;
  std::uint64_t available = 0;
  std::uint64_t computed = 0;      // tokens that the backend computed since its start
  std::uint64_t similar_gain = 0;  // tokens that step 3 found and step 2 had not
  bool searched_similar = false;
  std::uint64_t min_hit = 10;
  std::vector<Step> steps;
  std::chrono::steady_clock::time_point started;
};

// What the search (steps 2 to 4) found of a prompt.
struct Found {
  std::uint64_t available = 0;
  std::uint64_t computed = 0;  // by the backend, since its start
  std::uint64_t similar_gain = 0;
  bool searched_similar = false;
};

struct Engine::Impl {
  EngineOptions options;
  Clock clock;
  WallClock wall;

  mutable std::mutex mutex;
  BlockTree tree;
  bool tree_overflowed = false;  // it had to forget something
  KnownPrompts known;
  std::uint64_t next_prompt = 0;
  SlotPool pool{0};
  std::vector<const Ticket::Impl*> lessee;  // per slot; null when free
  BackendFacts facts;
  std::uint64_t epoch = 0;
  double own_cache_trust = 1.0;  // share of what was hoped for that the backend's cache delivered
  double service_ms = 0;         // smoothed time a slot is taken
  double prefill_ms = 0;         // smoothed time to compute one token; 0: not measured yet
  bool foreign = true;           // the backend may hold prompts we never saw
  std::uint64_t longest_answer = 0;  // tokens: a known prompt may be followed by that many
  Stats stats;
  std::function<void()> wake;
  std::function<void(PromptChange)> tell;

  // Numbers of prompts begin with the time, so that they are not used twice across restarts.
  Impl(const EngineOptions& o, Clock c, WallClock w)
      : options(o),
        clock(std::move(c)),
        wall(std::move(w)),
        tree(o.tree),
        known({.prompts = o.max_prompts, .bytes = o.max_prompt_bytes}),
        next_prompt(static_cast<std::uint64_t>(now_ms()) * 1024 + 1) {}

  std::int64_t now_ms() const { return wall ? wall() : 0; }
  bool good(std::uint64_t common, TokenSpan tokens) const {
    return static_cast<double>(common) >= options.good_match * static_cast<double>(tokens.size());
  }
  Found search(const Query& query) const;
  Source source(std::uint64_t predicted, const Found& found) const;
  std::vector<SlotView> view(const Query& query) const;
  Plan choose(const Query& query, const Found& found) const;
  std::vector<PromptChange> remember(const Ticket::Impl& ticket, const Embedding& hash);
  double prefill_rate() const { return prefill_ms > 0 ? prefill_ms : options.prefill_ms_per_token; }
  bool trusts_own_cache() const { return facts.own_cache && own_cache_trust >= kMinOwnCacheTrust; }
  void lease(Ticket::Impl& ticket, const Plan& plan);
  void release(Ticket::Impl& ticket);
  void settle_content(Ticket::Impl& ticket, const Outcome& outcome, const Account& account);
  Account account(const Ticket::Impl& ticket, const Outcome& outcome);
  void count(const Ticket::Impl& ticket, const Outcome& outcome, const Account& account);
  void measure(const Ticket::Impl& ticket, const Outcome& outcome);
  bool impossible(const Ticket::Impl& ticket, std::uint64_t cached) const;
  void drop_contents(SlotContent content);
  void reset_slots(std::size_t slots, SlotContent content);
  void notify() {
    if (wake) {
      wake();
    }
  }
};

std::vector<SlotView> Engine::Impl::view(const Query& query) const {
  std::vector<SlotView> views;
  views.reserve(pool.size());
  const auto now = clock();
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    const Slot& slot = pool[i];
    SlotView view{.index = i, .idle = !slot.leased && !slot.fenced, .last_used = slot.last_used};
    const Ticket::Impl* user = lessee[i];
    if (user == nullptr || user->slot != i) {
      view.empty = slot.content == SlotContent::empty;
      view.common = pool.common(i, query.scope, query.tokens);
      view.held = slot.tokens.size() + slot.unknown_tail;
      view.known = slot.tokens.size();
      view.turn_start = slot.turn_start;
      view.superseded = pool.superseded_by(i, query.scope, query.tokens);
    } else if (user->tokens_known && user->scope == query.scope) {
      view.busy = !slot.fenced;
      view.common = common_prefix(user->tokens, query.tokens);
      view.held = view.known = user->tokens.size();
      view.turn_start = user->common;
      view.remaining_ms =
          service_ms > 0 ? std::max(service_ms - milliseconds(now - slot.leased_at), service_ms / 4)
                         : -1;
    }
    views.push_back(view);
  }
  return views;
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
  return found;
}

Source Engine::Impl::source(std::uint64_t predicted, const Found& found) const {
  if (found.similar_gain > 0 && predicted < found.available) {
    return Source::similar;
  }
  if (predicted > 0 && predicted + 1 >= found.available) {
    return Source::slot;
  }
  return found.available > 0 ? Source::tree : Source::none;
}

Plan Engine::Impl::choose(const Query& query, const Found& found) const {
  const bool no_reuse = query.bypass == Reason::cache_prompt_false;
  const PlanQuery plan_query{
      .prompt = query.tokens.size(),
      .available = found.computed,
      .reuse = !no_reuse && !query.bypass,
      .leave_to_backend =
          !query.slot && ((query.bypass && !no_reuse) || query.sequences > 1 || !facts.pinning),
      .slot = query.slot,
      .waited_ms = static_cast<double>(query.waited.count()),
      .patience_ms = static_cast<double>(query.patience.count()),
  };
  const PlanWorld world{
      .tick = pool.tick(),
      .prefill_ms_per_token = prefill_rate(),
      .own_cache_trust = facts.own_cache ? own_cache_trust : 0,
  };
  Plan result = plan(view(query), plan_query, world);
  if (result.action == Plan::Action::leave_to_backend && plan_query.leave_to_backend) {
    result.reason = query.bypass          ? *query.bypass
                    : query.sequences > 1 ? Reason::several_answers
                                          : Reason::pinning_off;
  }
  const std::size_t needed = std::min<std::size_t>(query.sequences, pool.size() - pool.fenced());
  if (result.action == Plan::Action::leave_to_backend && pool.idle() < needed) {
    result.action = Plan::Action::wait;
  }
  return result;
}

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
    if (pool[plan.slot].erase_first) {
      ticket.steps.push_back({.kind = Step::Kind::erase, .slot = {.index = plan.slot}});
    }
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

void Engine::Impl::release(Ticket::Impl& ticket) {
  for (const std::uint32_t i : ticket.claimed) {
    if (i < lessee.size() && lessee[i] == &ticket) {
      lessee[i] = nullptr;
      pool.release(i);
    }
  }
  ticket.claimed.clear();
}

// More reuse than any prompt we know of allows. A known prompt may be followed by what was
// generated after it.
bool Engine::Impl::impossible(const Ticket::Impl& ticket, std::uint64_t cached) const {
  if (!ticket.tokens_known || ticket.surrogate) {
    return false;
  }
  if (cached > ticket.tokens.size()) {
    return true;
  }
  if (ticket.slot && cached <= ticket.common_limit) {
    return false;
  }
  if (ticket.slot && !facts.own_cache) {
    return true;
  }
  return !foreign && cached > known.computed(ticket.scope, ticket.tokens) + longest_answer;
}

Account Engine::Impl::account(const Ticket::Impl& ticket, const Outcome& outcome) {
  Account result{.predicted = ticket.predicted};
  result.reused = outcome.cached_tokens.value_or(0);
  if (ticket.bypass) {
    result.cache_class = CacheClass::bypass;
  } else if (outcome.cached_tokens) {
    result.cache_class = result.reused >= options.min_reuse_for_hit ? CacheClass::hit
                         : result.reused > 0                        ? CacheClass::soft_hit
                                                                    : CacheClass::miss;
  }
  if (outcome.ending == Ending::completed) {
    result.tokenization_mismatch = ticket.tokens_known && !ticket.surrogate &&
                                   outcome.prompt_tokens &&
                                   *outcome.prompt_tokens != ticket.tokens.size();
    result.integrity_fault = outcome.cached_tokens && impossible(ticket, *outcome.cached_tokens);
  }
  return result;
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
    switch (ticket.source) {
      case Source::none: ++stats.source_none; break;
      case Source::slot: ++stats.source_slot; break;
      case Source::tree: ++stats.source_tree; break;
      case Source::similar: ++stats.source_similar; break;
    }
  }
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
  if (outcome.prompt_ms > 0 && prompt >= cached + kMinMeasuredTokens) {
    smooth(prefill_ms, outcome.prompt_ms / static_cast<double>(prompt - cached));
  }
  if (ticket.reason == Reason::backend_cache && outcome.cached_tokens && ticket.computed > 0) {
    const double share = static_cast<double>(cached) / static_cast<double>(ticket.computed);
    own_cache_trust += 0.5 * (std::min(share, 1.0) - own_cache_trust);
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
    const bool exact = one_slot && ticket.tokens_known && ticket.sequences == 1 && fits &&
                       !outcome.truncated && !account.tokenization_mismatch;
    const bool cancelled = outcome.ending == Ending::cancelled;
    if (exact && outcome.ending == Ending::completed) {
      Tokens held = ticket.tokens;
      // The last generated token was sampled but never computed, so the slot does not hold it.
      const std::size_t told =
          outcome.generated.size() == outcome.generated_tokens && !outcome.generated.empty()
              ? outcome.generated.size() - 1
              : 0;
      held.insert(held.end(), outcome.generated.begin(),
                  outcome.generated.begin() + static_cast<std::ptrdiff_t>(told));
      pool.hold(i, ticket.scope, std::move(held),
                told > 0 ? 0 : std::max<std::uint64_t>(outcome.generated_tokens, 1) - 1,
                ticket.common);
    } else if (exact && cancelled && outcome.computed) {
      pool.hold(i, ticket.scope, ticket.tokens,
                std::max<std::uint64_t>(outcome.generated_tokens, 1), ticket.common, true);
    } else if (exact && cancelled && ticket.slot && ticket.common > 0 && !facts.own_cache) {
      // Whether or not the backend had begun, what both had in common is still there.
      ticket.tokens.resize(ticket.common);
      pool.hold(i, ticket.scope, std::move(ticket.tokens), 1, 0, true);
    } else {
      pool.set_unknown(i);
      foreign = true;
    }
  }
}

void Engine::Impl::reset_slots(std::size_t slots, SlotContent content) {
  ++epoch;
  known.forget_computed();
  pool = SlotPool(slots, content);
  lessee.assign(slots, nullptr);
}

void Engine::Impl::drop_contents(SlotContent content) {
  ++epoch;
  known.forget_computed();
  foreign = content != SlotContent::empty;
  own_cache_trust = 1.0;
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    pool.fence(i, false);
    content == SlotContent::empty ? pool.set_empty(i) : pool.set_unknown(i);
  }
}

// What a completed request leaves behind, for the tree, the known prompts and whoever keeps them.
std::vector<PromptChange> Engine::Impl::remember(const Ticket::Impl& ticket,
                                                 const Embedding& hash) {
  tree.insert(ticket.scope, ticket.tokens);
  tree_overflowed = tree_overflowed || tree.blocks() >= tree.capacity();
  const Embedding* model =
      ticket.embedding.kind == EmbeddingKind::model ? &ticket.embedding : nullptr;
  const auto done = known.remember(next_prompt, ticket.scope, ticket.tokens, hash, model, now_ms());
  std::vector<PromptChange> changes;
  if (done.prompt != nullptr) {
    next_prompt += done.prompt->id == next_prompt ? 1 : 0;
    PromptChange change{.kind = PromptChange::Kind::used, .prompt = {}};
    if (tell && done.is_new) {
      change = {.kind = PromptChange::Kind::put, .prompt = *done.prompt};
    }
    change.prompt.id = done.prompt->id;
    change.prompt.use = done.prompt->use;
    change.prompt.last_used_ms = done.prompt->last_used_ms;
    changes.push_back(std::move(change));
  }
  for (const std::uint64_t id : done.evicted) {
    foreign = true;  // the backend's own cache may hold what is forgotten here
    changes.push_back({.kind = PromptChange::Kind::removed, .prompt = {.id = id}});
  }
  return changes;
}

namespace {

PromptInfo info_of(const PromptRecord& record) {
  return {.id = record.id,
          .tokens = record.tokens.size(),
          .embedding = record.embedding.kind,
          .use = record.use,
          .last_used_ms = record.last_used_ms};
}

CacheClass class_of(bool bypass, std::uint64_t predicted, std::uint64_t min_hit) {
  return bypass                 ? CacheClass::bypass
         : predicted >= min_hit ? CacheClass::hit
         : predicted > 0        ? CacheClass::soft_hit
                                : CacheClass::miss;
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

Result<Ticket> Engine::begin(const Query& query) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->pool.idle() == 0) {
    return Error{Errc::busy, "no slot is free"};
  }
  const Found found = impl_->search(query);
  const Plan plan = impl_->choose(query, found);
  if (plan.action == Plan::Action::wait) {
    return Error{Errc::busy, "a better slot is busy"};
  }
  auto ticket = std::make_unique<Ticket::Impl>();
  ticket->engine = impl_;
  ticket->epoch = impl_->epoch;
  ticket->scope = query.scope;
  ticket->tokens.assign(query.tokens.begin(), query.tokens.end());
  ticket->tokens_known = !query.tokens.empty();
  ticket->surrogate = query.surrogate;
  ticket->bypass = bypass_of(query, plan);
  ticket->reason = query.bypass ? *query.bypass : plan.reason;
  ticket->sequences = query.sequences;
  ticket->available = found.available;
  ticket->computed = found.computed;
  ticket->similar_gain = found.similar_gain;
  ticket->searched_similar = found.searched_similar;
  ticket->source = impl_->source(plan.predicted, found);
  if (query.embedding != nullptr && query.embedding->kind == EmbeddingKind::model) {
    ticket->embedding = *query.embedding;
  }
  ticket->min_hit = impl_->options.min_reuse_for_hit;
  ticket->predicted = plan.predicted;
  ticket->may_reuse = query.bypass != Reason::cache_prompt_false;
  ticket->started = impl_->clock();
  impl_->lease(*ticket, plan);
  return Ticket(std::move(ticket));
}

Lookup Engine::lookup(const Query& query) const {
  const std::lock_guard lock(impl_->mutex);
  const Found found = impl_->search(query);
  const Plan plan = impl_->choose(query, found);
  Lookup result{.available = found.available, .predicted = plan.predicted};
  const auto bypass = bypass_of(query, plan);
  result.predicted_class =
      class_of(bypass.has_value(), plan.predicted, impl_->options.min_reuse_for_hit);
  result.source = impl_->source(plan.predicted, found);
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
  PromptChange change;
  std::function<void(PromptChange)> tell;
  {
    const std::lock_guard lock(impl_->mutex);
    const PromptRecord* record = impl_->known.embed(id, std::move(embedding));
    if (record == nullptr) {
      return;
    }
    tell = impl_->tell;
    change = {.kind = PromptChange::Kind::put, .prompt = *record};
  }
  if (tell) {
    tell(std::move(change));
  }
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
  impl_->wake = std::move(wake);
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
    impl_->drop_contents(SlotContent::empty);
  }
  impl_->notify();
}

void Engine::backend_slept() {
  const std::lock_guard lock(impl_->mutex);
  impl_->drop_contents(SlotContent::empty);
}

void Engine::set_pinning(bool on) {
  const std::lock_guard lock(impl_->mutex);
  impl_->facts.pinning = on;
}

void Engine::forget_residency() {
  const std::lock_guard lock(impl_->mutex);
  impl_->drop_contents(SlotContent::unknown);
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
  }
  impl_->notify();
}

std::size_t Engine::slots() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->pool.size();
}

std::size_t Engine::idle_slots() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->pool.idle();
}

std::vector<SlotInfo> Engine::slot_table() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<SlotInfo> table;
  for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
    const Slot& slot = impl_->pool[i];
    table.push_back({.content = slot.content,
                     .known_tokens = slot.tokens.size(),
                     .unknown_tail = slot.unknown_tail,
                     .leased = slot.leased,
                     .fenced = slot.fenced,
                     .last_used = slot.last_used});
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
  return result;
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
  return impl_->may_reuse;
}
Source Ticket::source() const noexcept {
  return impl_->source;
}
std::span<const Step> Ticket::steps() const noexcept {
  return impl_->steps;
}
bool Ticket::current() const noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  return impl_->epoch == impl_->engine->epoch;
}
bool Ticket::settled() const noexcept {
  return impl_->settled;
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

void Ticket::step_done(std::size_t index, const Status& status) {
  TOKI_CHECK(index < impl_->steps.size());
  const std::lock_guard lock(impl_->engine->mutex);
  const std::uint32_t slot = impl_->steps[index].slot.index;
  if (slot >= impl_->engine->pool.size() || impl_->epoch != impl_->engine->epoch) {
    return;
  }
  if (status) {
    impl_->engine->pool.set_empty(slot);
  } else {
    impl_->may_reuse = false;  // it could not be erased, so it must be computed over
  }
}

void Ticket::sent() noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  impl_->sent = true;
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

Account Ticket::finish(const Outcome& outcome) && {
  const auto ticket = std::move(impl_);
  TOKI_CHECK(ticket != nullptr);
  const auto engine = ticket->engine;
  Account account;
  std::vector<PromptChange> changes;
  std::function<void(PromptChange)> tell;
  const bool whole = outcome.ending == Ending::completed && ticket->tokens_known;
  const Embedding hash = whole ? hash_embedding(ticket->tokens) : Embedding{};
  {
    const std::lock_guard lock(engine->mutex);
    account = engine->account(*ticket, outcome);
    engine->count(*ticket, outcome, account);
    const bool current = ticket->epoch == engine->epoch;
    if (current && ticket->sent) {
      engine->measure(*ticket, outcome);
      engine->settle_content(*ticket, outcome, account);
      if (whole && !account.tokenization_mismatch && !account.integrity_fault) {
        changes = engine->remember(*ticket, hash);
        const PromptRecord* kept = engine->known.find(changes.empty() ? 0 : changes[0].prompt.id);
        account.prompt = kept == nullptr ? 0 : kept->id;
        account.wants_embedding = kept != nullptr && kept->embedding.kind != EmbeddingKind::model;
        tell = engine->tell;
      }
      if (outcome.ending == Ending::stalled) {  // of several it may be in, none is to be trusted
        for (const std::uint32_t slot : ticket->claimed) {
          engine->pool.fence(slot, true);
        }
      }
    } else if (!current && ticket->sent) {
      for (const std::uint32_t slot : ticket->claimed) {
        if (slot < engine->pool.size() && engine->lessee[slot] == ticket.get()) {
          engine->pool.set_unknown(slot);
        }
      }
    }
    engine->release(*ticket);
  }
  engine->notify();
  for (PromptChange& change : changes) {
    if (tell) {
      tell(std::move(change));
    }
  }
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
        content == SlotContent::empty ? engine->pool.set_empty(slot)
                                      : engine->pool.set_unknown(slot);
      }
    }
    engine->release(*ticket);
  }
  engine->notify();
}

}  // namespace toki
