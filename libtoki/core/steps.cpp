// What is done before a request is sent: which steps a plan means, and what each leaves behind.
//
//   erase      a slot whose content must not be trusted, or whose restore failed
//   save       what is displaced and wanted again, or what is copied
//   restore    a stored prefix into the slot
//   prefill    a long cold prompt whose beginning others wait for, in a step of its own: when it is
//              computed they get a copy, while the request that computed it generates. (Its answer
//              then says of the prompt that it was cached; our account does not.)
//              Or a stage of a prompt, where states can only be used whole: see add_stages().
//              Or, in exact mode, what cuts the slot: see add_cut().
//              Or the beginning of a prompt whose slot the backend chooses: see make_choice().
//
// What is displaced, or saved as a stage, is taken by the store while the request goes on.
#include <algorithm>
#include <utility>

#include "core/engine_state.hpp"

namespace toki {
namespace {

constexpr std::uint64_t kMinStage = 16;  // tokens: a snapshot for fewer is not worth its place
constexpr double kLeadMs = 300;          // a shorter prefill is not worth a call of its own
// So many failures in a row (a full disk, say), or one that took too long, and nothing is saved for
// a while. After one restore that took too long nothing is restored for as long.
constexpr std::uint32_t kMaxSaveFailures = 3;
constexpr std::chrono::seconds kPause{60};

void learn(Pace& pace, std::uint64_t tokens, double ms) {
  if (ms > pace.fixed && tokens > 0) {
    smooth(pace.per_token, (ms - pace.fixed) / static_cast<double>(tokens));
  }
}

}  // namespace

// For its steps only.
void Engine::Impl::borrow(Ticket::Impl& ticket, std::uint32_t slot) {
  ticket.borrowed.push_back(slot);
  pool.borrow(slot, ticket.started);
  lessee[slot] = &ticket;
}

void Engine::Impl::add_save(Ticket::Impl& ticket, std::uint32_t slot, bool later) {
  add_save(ticket, slot, pool[slot].scope, pool[slot].tokens, later);
}

void Engine::Impl::add_save(Ticket::Impl& ticket, std::uint32_t slot, const Scope& scope,
                            Tokens tokens, bool later) {
  tokens.resize(whole_batches(tokens.size()));
  ticket.steps.push_back({.kind = Step::Kind::save,
                          .slot = {.index = slot},
                          .scope = scope,
                          .tokens = std::move(tokens),
                          .whole = !abilities.cuts,
                          .later = later,
                          .file = file_name(),
                          .token_ms = prefill_rate(),
                          .only = exact()});
}

// Whether it leads if it has to be computed: what can be told without looking for it.
bool Engine::Impl::may_lead(const Query& query) const {
  return query.from_ids && !query.surrogate && !query.bypass && !exact() && saves() && restores() &&
         abilities.cuts && query.tokens.size() > 1 && cold_ms(query, {}) >= kLeadMs;
}

double Engine::Impl::lead_ms(const Query& query, const Plan& plan) const {
  const double ms = plan.action == Plan::Action::run ? cold_ms(query, plan) : 0;
  return ms >= kLeadMs ? ms : 0;
}

// Others may begin with it too: somebody who does waits already; or others are at work, so that more
// may come while it is computed, and most of it was never seen.
bool Engine::Impl::leads(const Query& query, const Plan& plan) const {
  const bool likely = pool.leased() > 1 && 8 * plan.predicted < query.tokens.size();
  return (query.followed || likely) && may_lead(query) && lead_ms(query, plan) > 0;
}

void Engine::Impl::add_steps(Ticket::Impl& ticket, const Plan& plan, const Query& query) {
  if (plan.action != Plan::Action::run) {
    if (exact() && query.bypass == Reason::not_cacheable) {
      erase_claimed(ticket);
    } else if (query.alone) {
      erase_foreign(ticket);
    }
    return;
  }
  const SlotId slot{.index = plan.slot};
  const auto first = [&](std::uint64_t count) {
    return Tokens(ticket.tokens.begin(),
                  ticket.tokens.begin() + static_cast<std::ptrdiff_t>(count));
  };
  if (plan.save) {
    add_save(ticket, plan.slot, true);
    ticket.steps.back().needed = first(plan.copied ? 0 : plan.restore);
  }
  const bool below_floor = plan.restore == 0 && ticket.common < pool[plan.slot].floor;
  if (pool[plan.slot].erase_first || below_floor) {
    ticket.steps.push_back({.kind = Step::Kind::erase, .slot = slot});
  }
  if (plan.copied) {
    add_save(ticket, *plan.copied);
    borrow(ticket, *plan.copied);
    ++stats.copies_total;
  }
  if (plan.restore > 0) {
    ticket.steps.push_back({.kind = Step::Kind::restore,
                            .slot = slot,
                            .scope = ticket.scope,
                            .tokens = first(plan.restore),
                            .file = file_name()});
  } else if (exact()) {
    add_cut(ticket, plan.predicted);
  }
  add_stages(ticket, plan, query);
  if (leads(query, plan)) {
    ticket.steps.push_back({.kind = Step::Kind::prefill,
                            .slot = slot,
                            .scope = ticket.scope,
                            .tokens = first(ticket.tokens.size() - 1)});
    ticket.leads = true;
    ++stats.leads_total;
  }
  const auto computed =
      std::find_if(ticket.steps.begin(), ticket.steps.end(),
                   [](const Step& step) { return step.kind == Step::Kind::prefill; });
  if (options.isolated && plan.restore == 0 && computed != ticket.steps.end() &&
      !pool.only_of(plan.slot, ticket.scope) && !pool[plan.slot].erase_first) {
    ticket.steps.insert(computed, {.kind = Step::Kind::erase, .slot = slot});
  }
}

// Most tokens of the prompt that another slot may hold when the request comes to the backend; none: it
// is not known. What an idle slot holds of other adapters counts as well: only tokens are compared.
std::optional<std::uint64_t> Engine::Impl::rival(const Ticket::Impl& ticket,
                                                 std::uint32_t slot) const {
  const Ticket::Impl* user = lessee[slot];
  const bool works = user != nullptr && user->slot == slot;
  if (works ? !user->tokens_known
            : pool[slot].content == SlotContent::unknown || pool[slot].erase_first) {
    return std::nullopt;
  }
  const Tokens& held = works ? user->tokens : pool[slot].tokens;
  const std::uint64_t common = common_prefix(held, ticket.tokens);
  const bool goes_on = common == held.size() && !held.empty();
  const std::uint64_t tail =
      works || pool[slot].open_end ? ticket.tokens.size() : pool[slot].unknown_tail;
  return std::min<std::uint64_t>(common + (goes_on ? tail : 0), ticket.tokens.size());
}

Engine::Impl::Rivals Engine::Impl::rivals(const Ticket::Impl& ticket) const {
  Rivals result{.most = 0, .certain = 0};
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    const auto one = i == ticket.slot ? std::optional<std::uint64_t>(0) : rival(ticket, i);
    result.certain = std::max(result.certain, one.value_or(0));
    result.most = result.most && one ? std::optional(result.certain) : std::nullopt;
  }
  return result;
}

// The request cannot say where it is to run, so its slot first gets more of the prompt than the backend
// can find in any other: mostly it has it already, and nothing is to be done. Asked again when that is
// done, because others may have come meanwhile.
void Engine::Impl::make_choice(Ticket::Impl& ticket) {
  constexpr std::uint64_t kShare = 8;  // the backend wants more than a tenth
  const std::uint64_t size = ticket.tokens.size();
  if (!ticket.unnamed || !ticket.slot || ticket.sent || ticket.choices_left == 0 ||
      ticket.epoch != epoch || size < 2) {
    return;
  }
  --ticket.choices_left;
  const std::uint32_t slot = *ticket.slot;
  const std::uint64_t least = std::max(size / kShare, rivals(ticket).certain);
  const std::uint64_t held = pool.common(slot, ticket.scope, ticket.tokens);
  // The backend may still be at a request there that was given up: it is free when a step is done.
  const bool free = pool[slot].content != SlotContent::unknown && !pool[slot].open_end;
  // What follows the known tokens may be what the prompt goes on with: no step may cut it off.
  const std::uint64_t limit = held > 0 ? pool.common_limit(slot, ticket.scope, ticket.tokens) : 0;
  const std::uint64_t end = std::min(std::max(least + 1, limit), size - 1);
  if ((free && held > least) || end <= held) {
    return;
  }
  const TokenSpan beginning = TokenSpan(ticket.tokens).first(end);
  ticket.steps.push_back({.kind = Step::Kind::prefill,
                          .slot = {.index = slot},
                          .scope = ticket.scope,
                          .tokens = Tokens(beginning.begin(), beginning.end())});
}

// A backend reuses all that its slot and the prompt share. To make it reuse these tokens and no more,
// the slot first gets a prompt that parts from the other one right behind them: one token is computed.
void Engine::Impl::add_cut(Ticket::Impl& ticket, std::uint64_t tokens) {
  ticket.common = std::min(ticket.common, tokens);
  ticket.predicted = tokens;
  if (tokens == 0) {
    return;  // see Ticket::may_reuse()
  }
  const auto end = ticket.tokens.begin() + static_cast<std::ptrdiff_t>(tokens);
  Tokens parting(ticket.tokens.begin(), end);
  parting.push_back(*end > 0 ? *end - 1 : *end + 1);
  ticket.steps.push_back({.kind = Step::Kind::prefill,
                          .slot = {.index = *ticket.slot},
                          .scope = ticket.scope,
                          .tokens = std::move(parting)});
}

// For a request that cannot be told to compute all of its prompt.
void Engine::Impl::erase_claimed(Ticket::Impl& ticket) {
  for (const std::uint32_t slot : ticket.claimed) {
    if (pool[slot].content != SlotContent::empty) {
      ticket.steps.push_back({.kind = Step::Kind::erase, .slot = {.index = slot}});
    }
  }
}

// The same where scopes share nothing. What is lost is saved where that pays.
void Engine::Impl::erase_foreign(Ticket::Impl& ticket) {
  const PlanWorld now = world();
  for (const std::uint32_t slot : ticket.claimed) {
    if (pool.only_of(slot, ticket.scope)) {
      continue;
    }
    SlotView view = view_of(slot);
    view.idle = true;  // but for this ticket
    if (worth_saving(view, now)) {
      add_save(ticket, slot, true);
    }
    ticket.steps.push_back({.kind = Step::Kind::erase, .slot = {.index = slot}});
  }
}

// Where a state serves only prompts that go on from all of it, a prompt is computed in stages, and a
// snapshot kept of each that another may begin with: where the system message ends, where known
// prompts part, and one token before its end (asked again, one token must be computed). So two
// conversations share their system message although the model cannot rewind to it.
void Engine::Impl::add_stages(Ticket::Impl& ticket, const Plan& plan, const Query& query) {
  const bool whole = saves() && !abilities.cuts;
  if (!whole || !query.from_ids || query.surrogate || query.tokens.size() < kMinStage) {
    return;
  }
  std::vector<std::uint64_t> ends(query.boundaries.begin(), query.boundaries.end());
  ends.insert(ends.end(), {ticket.available, query.tokens.size() - 1});
  std::sort(ends.begin(), ends.end());
  std::uint64_t from = plan.predicted;
  for (const std::uint64_t end : ends) {
    const bool pays =
        static_cast<double>(end - std::min(from, end)) * prefill_rate() > save.of(end);
    if (end >= query.tokens.size() || end < from + kMinStage || !pays) {
      continue;
    }
    const TokenSpan span = query.tokens.first(end);
    Tokens stage(span.begin(), span.end());
    ticket.steps.push_back({.kind = Step::Kind::prefill,
                            .slot = {.index = plan.slot},
                            .scope = ticket.scope,
                            .tokens = stage});
    add_save(ticket, plan.slot, ticket.scope, std::move(stage), true);
    from = end;
  }
}

// Somebody waits: those who compute what it shares with them keep a copy for it.
void Engine::Impl::note_waiter(const Query& query) {
  for (Ticket::Impl* user : lessee) {
    if (user != nullptr && user->leads && user->scope == query.scope) {
      const std::uint64_t common = common_prefix(user->tokens, query.tokens);
      user->wanted = std::max(user->wanted, common);
    }
  }
}

void Engine::Impl::save_failed(const Error& error) {
  ++stats.save_failures_total;
  if (error.code == Errc::unsupported) {
    abilities.saves = false;
  } else if (++save_failures >= kMaxSaveFailures || error.code == Errc::timed_out) {
    save_failures = 0;
    saves_paused_until = clock() + kPause;
  }
}

void Engine::Impl::saved(Ticket::Impl& ticket, const Step& step, StepReport report) {
  const std::uint32_t slot = step.slot.index;
  ticket.leads = ticket.leads && ticket.slot != slot;
  if (report.error) {
    save_failed(*report.error);
    return;
  }
  learn(save, step.tokens.size(), report.ms);
  if (report.pending) {
    return;
  }
  save_failures = 0;
  ++stats.saves_total;
  if (step.only) {
    pool.set_saved(slot);
  } else if (common_prefix(report.tokens, step.tokens) == step.tokens.size()) {
    const std::uint64_t turn_start = pool[slot].turn_start;
    pool.hold(slot, step.scope, std::move(report.tokens), report.unknown, turn_start);
    pool.set_saved(slot);
  }
}

void Engine::Impl::restored(Ticket::Impl& ticket, const Step& step, StepReport report) {
  const std::uint32_t slot = step.slot.index;
  if (report.error || report.reused == 0 || report.reused > step.tokens.size()) {
    // A failed restore leaves the slot in a state that nobody knows.
    ++stats.restore_failures_total;
    pool.erase_before_use(slot);
    ticket.spoilt = ticket.sent;
    if (report.error && report.error->code == Errc::timed_out) {
      // The backend may still be at it, so the slot gets no work before it says that it is idle.
      restores_paused_until = clock() + kPause;
      pool.fence(slot, true);
      ticket.steps.clear();
      ticket.choices_left = 0;
      ticket.lost_slot = true;
      return;
    }
    ticket.source = Source::none;
    ticket.common = ticket.predicted = 0;
    if (!ticket.sent) {
      ticket.steps.insert(ticket.steps.begin(), {.kind = Step::Kind::erase, .slot = step.slot});
    }
    ticket.common_limit = ticket.sent ? ticket.tokens.size() : 0;
    return;
  }
  ++stats.restores_total;
  ticket.overtaken = report.overtaken;
  stats.restored_tokens_total += report.reused;
  learn(restore, std::max<std::uint64_t>(report.reused, report.tokens.size() + report.unknown),
        report.ms);
  const auto count = static_cast<std::ptrdiff_t>(report.reused);
  const bool more = report.tokens.size() + report.unknown > 0;  // than was asked for
  Tokens held = report.tokens.empty() ? Tokens(step.tokens.begin(), step.tokens.begin() + count)
                                      : std::move(report.tokens);
  pool.hold(slot, step.scope, std::move(held), report.unknown, 0);
  pool.set_saved(slot);
  pool.set_floor(slot, abilities.cuts ? 0 : report.reused);
  ticket.restored = ticket.common = report.reused;
  ticket.common_limit = pool.common_limit(slot, ticket.scope, ticket.tokens);
  ticket.predicted = std::min<std::uint64_t>(report.reused, ticket.tokens.size() - 1);
  if (exact() && (more || ticket.predicted != whole_batches(ticket.predicted))) {
    add_cut(ticket, whole_batches(ticket.predicted));
  }
}

void Engine::Impl::prefilled(Ticket::Impl& ticket, const Step& step, const StepReport& report) {
  const std::uint32_t slot = step.slot.index;
  if (exact()) {
    was_cut(ticket, step, report);
    return;
  }
  if (report.error || report.reused + report.computed != step.tokens.size()) {
    ticket.leads = false;
    ticket.steps.clear();  // the request computes it
    return;
  }
  ticket.prefilled_cached =
      std::min(ticket.prefilled_cached.value_or(report.reused), report.reused);
  if (report.computed > 0 && report.ms > 0) {
    smooth(prefill_ms, report.ms / static_cast<double>(report.computed));
  }
  pool.hold(slot, step.scope, step.tokens, 0, ticket.common);
  ticket.common_limit = ticket.tokens.size();
  ticket.leads = ticket.leads && ticket.wanted > report.reused;
  if (ticket.leads) {
    add_save(ticket, slot);
  }
}

void Engine::Impl::set_apart(bool overtaken) {
  apart_ms =
      overtaken ? std::min(2 * apart_ms, kMaxApartMs) : std::max(kCalm * apart_ms, kMinApartMs);
}

void Engine::Impl::was_cut(Ticket::Impl& ticket, const Step& step, const StepReport& report) {
  const std::uint32_t slot = step.slot.index;
  if (report.error || report.reused + 1 != step.tokens.size()) {
    pool.set_unknown(slot);
    ticket.common = ticket.predicted = 0;
    ticket.source = Source::none;
    return;
  }
  pool.hold(slot, step.scope, step.tokens, 0, report.reused);
}

void Engine::Impl::step_done(Ticket::Impl& ticket, const Step& step, StepReport report) {
  const bool failed = report.error.has_value();
  set_apart(step.kind == Step::Kind::save && report.overtaken);
  switch (step.kind) {
    case Step::Kind::erase:
      if (report.error) {
        ticket.may_reuse = false;  // it could not be erased, so it must be computed over
        if (options.isolated) {
          ticket.steps.clear();  // a step that computes would reuse what is there
          ticket.leads = false;
        }
      } else {
        pool.set_empty(step.slot.index);
        ticket.common = ticket.common_limit = 0;
      }
      break;
    case Step::Kind::save: saved(ticket, step, std::move(report)); break;
    case Step::Kind::restore: restored(ticket, step, std::move(report)); break;
    case Step::Kind::prefill: prefilled(ticket, step, report); break;
  }
  if (ticket.pin != 0 && ticket.steps.empty()) {
    go_on_with_pin(ticket, failed && step.kind == Step::Kind::prefill);
  }
  if (ticket.steps.empty()) {
    for (const std::uint32_t slot : ticket.borrowed) {
      lessee[slot] = nullptr;
      pool.release(slot);
    }
    ticket.borrowed.clear();
  }
}

// The client left while a step ran.
void Engine::Impl::broken_off(Ticket::Impl& ticket) {
  const Step& step = ticket.steps.front();
  const std::uint32_t slot = step.slot.index;
  if (step.kind == Step::Kind::restore || ticket.behind_begun) {
    pool.erase_before_use(slot);
  } else if (step.kind == Step::Kind::prefill) {
    ticket.tokens.resize(ticket.common);
    ticket.common > 0 ? pool.hold(slot, ticket.scope, std::move(ticket.tokens), 1, 0, true)
                      : pool.set_unknown(slot);
    if (exact()) {
      pool.fence(slot, true);  // it may still be at it
    }
  }
}

Result<Ticket> Engine::begin_chore(bool while_busy) {
  if (!while_busy) {
    if (auto pin = begin_pin()) {
      return pin;
    }
  }
  const std::lock_guard lock(impl_->mutex);
  if ((!while_busy && impl_->pool.leased() > 0) || !impl_->saves()) {
    return Error{Errc::not_found, "nothing is to be done"};
  }
  const PlanWorld world = impl_->world();
  for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
    // Once: where there are more slots than room they would give way to each other for ever.
    if (impl_->pool[i].saved || !worth_saving(impl_->view_of(i), world)) {
      continue;
    }
    auto ticket = std::make_unique<Ticket::Impl>(impl_);
    impl_->add_save(*ticket, i);
    impl_->borrow(*ticket, i);
    return Ticket(std::move(ticket));
  }
  return Error{Errc::not_found, "nothing is worth a save"};
}

// How little is lost when somebody else works in the slot: 0 nothing, higher is worse, negative: no.
int Engine::Impl::spare_rank(std::uint32_t slot) const {
  const SlotView view = view_of(slot);
  if (!view.idle || pool[slot].pin != 0) {
    return -1;
  }
  if (view.empty || pool[slot].content == SlotContent::unknown) {
    return view.empty ? 0 : 1;
  }
  if (view.stored >= view.known) {
    return 2;
  }
  return saves() && view.savable ? 3 : -1;
}

Result<Ticket> Engine::begin_spare() {
  const std::lock_guard lock(impl_->mutex);
  std::optional<std::uint32_t> best;
  if (impl_->pool.leased() == 0 && impl_->facts.pinning) {
    const auto worse = [&](std::uint32_t slot) {
      return std::pair(impl_->spare_rank(slot), impl_->pool[slot].last_used);
    };
    for (std::uint32_t i = 0; i < impl_->pool.size(); ++i) {
      if (impl_->spare_rank(i) >= 0 && (!best || worse(i) < worse(*best))) {
        best = i;
      }
    }
  }
  if (!best) {
    return Error{Errc::not_found, "no slot can be spared"};
  }
  auto ticket = std::make_unique<Ticket::Impl>(impl_);
  ticket->bypass = ticket->reason = Reason::cache_prompt_false;
  ticket->may_reuse = false;
  ticket->slot = *best;
  ticket->settled = true;
  if (impl_->spare_rank(*best) == 3) {
    impl_->add_save(*ticket, *best);
  }
  ticket->claimed = {*best};
  impl_->pool.borrow(*best, ticket->started);
  impl_->lessee[*best] = ticket.get();
  return Ticket(std::move(ticket));
}

const Step* Ticket::next_step() {
  const std::lock_guard lock(impl_->engine->mutex);
  const bool too_late = impl_->sent && !impl_->step_begun && !impl_->behind_begun;
  if (impl_->steps.empty() && impl_->unnamed) {
    impl_->engine->make_choice(*impl_);
  }
  if (impl_->steps.empty() || too_late) {
    return nullptr;
  }
  impl_->step_begun = true;
  return &impl_->steps.front();
}

const Step* Ticket::begin_behind() noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  const auto& steps = impl_->steps;
  if (steps.size() < 2 || steps[0].kind != Step::Kind::save ||
      steps[1].kind != Step::Kind::restore || steps[0].slot.index != steps[1].slot.index) {
    return nullptr;
  }
  impl_->behind_begun = true;
  return &steps[1];
}

bool Ticket::may_send_behind() const noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  const auto& steps = impl_->steps;
  const bool last = steps.size() == (impl_->behind_begun ? 2 : 1);
  return last && steps.back().kind == Step::Kind::restore && impl_->slot && impl_->pin == 0 &&
         !impl_->unnamed && impl_->engine->abilities.cuts && !impl_->engine->exact() &&
         (!impl_->engine->options.isolated ||  // without the restore it would reuse what is there
          impl_->engine->pool.only_of(*impl_->slot, impl_->scope));
}

std::chrono::milliseconds Ticket::apart() const noexcept {
  const std::lock_guard lock(impl_->engine->mutex);
  return std::chrono::milliseconds(static_cast<std::int64_t>(impl_->engine->apart_ms));
}

std::function<void(const Status&)> Ticket::stored() {
  const auto engine = impl_->engine;
  const Step& step = impl_->steps.front();
  const std::lock_guard lock(engine->mutex);
  const std::uint64_t id = ++engine->next_pending;
  engine->pending.push_back({.id = id, .scope = step.scope, .tokens = step.tokens});
  return [engine, id, epoch = impl_->epoch](const Status& status) {
    const std::lock_guard now(engine->mutex);
    std::erase_if(engine->pending, [&](const Engine::Impl::Pending& one) { return one.id == id; });
    if (status) {
      engine->save_failures = 0;
      ++engine->stats.saves_total;
    } else if (epoch == engine->epoch) {
      engine->save_failed(status.error());
    }
  };
}

const std::string& Ticket::trouble() const noexcept {
  return impl_->trouble;
}

void Ticket::step_done(StepReport report) {
  const auto engine = impl_->engine;
  {
    const std::lock_guard lock(engine->mutex);
    TOKI_CHECK(impl_->step_begun);
    impl_->step_begun = false;
    const bool left = report.error && report.error->code == Errc::cancelled &&
                      impl_->steps.front().kind != Step::Kind::erase;
    if (left && impl_->epoch == engine->epoch) {
      engine->broken_off(*impl_);  // its client is gone: that is nobody's failure
    }
    if (left) {
      impl_->steps.clear();
      impl_->choices_left = 0;
      return;
    }
    const Step step = std::move(impl_->steps.front());
    impl_->steps.erase(impl_->steps.begin());
    impl_->behind_begun = impl_->behind_begun && step.kind == Step::Kind::save;
    if (impl_->epoch != engine->epoch || step.slot.index >= engine->pool.size()) {
      if (impl_->pin != 0 && step.slot.index < engine->pool.size() &&
          engine->lessee[step.slot.index] == impl_.get()) {
        engine->pool.set_unknown(step.slot.index);  // nothing follows that would tell
      }
      impl_->steps.clear();
      return;
    }
    if (report.error) {
      impl_->trouble = report.error->detail;
    }
    engine->step_done(*impl_, step, std::move(report));
  }
  engine->notify();  // what was stored, or who is free, may be what somebody waits for
}

}  // namespace toki
