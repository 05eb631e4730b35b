// What the engine and its tickets hold. Everything here is read and written under the engine's
// mutex, but for what a ticket's owner alone looks at.
#pragma once

#include <toki/engine.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <variant>

#include "core/known_prompts.hpp"
#include "core/pins.hpp"
#include "core/planner.hpp"

namespace toki {

inline double milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

inline void smooth(double& mean, double value) {
  constexpr double kNewest = 0.3;  // weight of the newest measurement
  mean = mean <= 0 ? value : mean + kNewest * (value - mean);
}

inline CacheClass class_of(bool bypass, std::uint64_t predicted, std::uint64_t min_hit) {
  return bypass                 ? CacheClass::bypass
         : predicted >= min_hit ? CacheClass::hit
         : predicted > 0        ? CacheClass::soft_hit
                                : CacheClass::miss;
}

// So many requests in a row that ran elsewhere than they were made to, and none is any more.
inline constexpr std::uint32_t kMaxFailedChoices = 8;

struct TOKI_HIDDEN Ticket::Impl {
  explicit Impl(std::shared_ptr<Engine::Impl> of);

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
  std::uint64_t in_slots = 0;      // tokens that were to be had without the backend's own cache
  std::uint64_t computed = 0;      // tokens that the backend computed since its start
  std::uint64_t similar_gain = 0;  // tokens that step 3 found and step 2 had not
  bool searched_similar = false;
  std::uint64_t min_hit = 10;
  std::vector<Step> steps;  // not done yet, the next one first
  bool step_begun = false;
  bool behind_begun = false;            // the step behind it too
  std::string trouble;                  // of the last step that failed
  std::vector<std::uint32_t> borrowed;  // slots leased for the steps only
  bool leads = false;                   // computes its prompt in a step; others may want a copy
  std::uint64_t wanted = 0;             // tokens of it that others wait for
  std::uint64_t restored = 0;           // tokens of it that a step put into the slot
  std::optional<std::uint64_t> prefilled_cached;  // the step's own word, before the request's
  bool alone = false;                             // see Query::alone
  bool clean = false;      // when it was sent, its slots held nothing of other scopes
  bool lost_slot = false;  // a step was given up that the backend may still be at
  bool spoilt = false;     // the request was sent behind a restore that failed
  bool overtaken = false;  // its answer began before the restore was reported: perhaps without it
  bool unnamed = false;    // the backend chooses the slot: it is made to choose this ticket's
  int choices_left = 4;    // so often at most
  std::optional<std::uint64_t> rival;  // Rivals::most when the request was sent
  std::chrono::steady_clock::time_point started;

  std::uint64_t pin = 0;                 // it only puts this pin into its slot
  std::optional<std::uint64_t> pin_had;  // so much of it was there before the last prefill
};

// What the search (steps 2 to 4) found of a prompt.
struct Found {
  std::uint64_t available = 0;
  std::uint64_t computed = 0;  // by the backend, since its start
  std::uint64_t stored = 0;    // that the store can restore
  std::uint64_t read = 0;      // and what it restores for them
  std::uint64_t similar_gain = 0;
  bool searched_similar = false;
};

// Two calls so far apart are read in their order where threads get a core at once. Where they wait
// for one it takes more: each call that overtook another doubles it, and calm brings it back.
constexpr double kMinApartMs = 10, kMaxApartMs = 80, kCalm = 0.995;

struct TOKI_HIDDEN Engine::Impl {
  EngineOptions options;
  Clock clock;
  WallClock wall;

  mutable std::mutex mutex;
  BlockTree tree;
  bool tree_overflowed = false;  // it had to forget something
  KnownPrompts known;
  std::uint64_t next_prompt = 0;
  std::uint64_t first_prompt = 0;
  SlotPool pool{0};
  std::vector<Ticket::Impl*> lessee;  // per slot; null when free
  BackendFacts facts;
  StateAbilities abilities;
  StoreLookup store;
  StoreDoubt doubt;
  Pace save{.fixed = 5, .per_token = 0.02};  // until measured
  Pace restore{.fixed = 5, .per_token = 0.02};
  double apart_ms = kMinApartMs;    // see Ticket::apart()
  std::uint32_t save_failures = 0;  // in a row
  std::chrono::steady_clock::time_point saves_paused_until{};
  struct Pending {  // saved, and not yet taken by the store
    std::uint64_t id = 0;
    Scope scope;
    Tokens tokens;
  };
  std::vector<Pending> pending;
  std::uint64_t next_pending = 0;
  std::uint32_t empty_restores = 0;  // in a row, of which the next request reused too little
  std::chrono::steady_clock::time_point restores_paused_until{};
  std::uint64_t files = 0;
  std::uint64_t epoch = 0;
  double own_cache_trust = 1.0;  // share of what was hoped for that the backend's cache delivered
  double service_ms = 0;         // smoothed time a slot is taken
  double prefill_ms = 0;         // smoothed time to compute one token; 0: not measured yet
  bool foreign = true;           // the backend may hold prompts we never saw
  bool choice_proven = false;    // it was seen to choose the slot that it was made to choose
  std::uint32_t choices_failed = 0;  // in a row
  std::uint64_t longest_answer = 0;  // tokens: a known prompt may be followed by that many
  Pins pins;
  std::vector<Scope> pin_scopes;  // none: no pin gets a slot now
  std::size_t distrusted = 0;     // see Engine::Distrust
  std::chrono::steady_clock::time_point pins_paused_until{};
  std::chrono::steady_clock::time_point hot_pins_at{};  // when they are chosen anew
  std::uint64_t hot_pins_seen = 0;  // completed requests when they were chosen last
  Stats stats;
  // Listeners, and what they are still to be told, in the order in which it came about.
  std::function<void(std::vector<PinRecord>)> tell_pins;
  std::function<void(PromptChange)> tell;
  std::shared_ptr<const std::function<void()>> wake;
  using News = std::variant<PromptChange, std::vector<PinRecord>>;
  std::deque<News> news;
  bool telling = false;  // somebody is at it

  // Numbers of prompts and pins begin with the time, so that they are not used twice across restarts.
  Impl(const EngineOptions& o, Clock c, WallClock w)
      : options(o),
        clock(std::move(c)),
        wall(std::move(w)),
        tree(o.tree),
        known({.prompts = o.max_prompts, .bytes = o.max_prompt_bytes}, o.make_index),
        next_prompt(number_now()),
        first_prompt(next_prompt),
        pins(next_prompt) {}

  std::int64_t now_ms() const { return wall ? wall() : 0; }
  std::uint64_t number_now() const { return static_cast<std::uint64_t>(now_ms()) * 1024 + 1; }
  bool good(std::uint64_t common, TokenSpan tokens) const {
    return static_cast<double>(common) >= options.good_match * static_cast<double>(tokens.size());
  }
  Found search(const Query& query) const;
  Query answerable(const Query& query) const;
  bool exact() const { return options.exact_batch > 0; }
  // Where states cannot be cut the backend computes in other batches, and nothing it holds is of use.
  bool reuses(const Query& query) const { return !exact() || (abilities.cuts && !query.surrogate); }
  // Of so many leading tokens of a prompt, those that were computed as a cold run would.
  std::uint64_t whole_batches(std::uint64_t tokens) const {
    return exact() ? tokens - tokens % options.exact_batch : tokens;
  }
  // Idle slots that may get a request now: another one must not share its batches.
  std::size_t available_slots() const {
    return exact() && pool.idle() < pool.size() ? 0 : pool.idle();
  }
  Source source(const Plan& plan, const Found& found) const;
  std::uint64_t reach(std::uint32_t slot, const Query& query) const;
  std::vector<SlotView> view(const Query& query) const;
  Plan choose(const Query& query, const Found& found) const;
  bool unsettled() const;
  void remember(const Ticket::Impl& ticket, const Embedding& hash, Account& account);
  double prefill_rate() const { return prefill_ms > 0 ? prefill_ms : options.prefill_ms_per_token; }
  // Where the store gives most of what is known anyway, the backend's cache has to earn it.
  double first_trust() const { return abilities.saves && store != nullptr ? 0.5 : 1.0; }
  bool trusts_own_cache() const {
    return facts.own_cache && !exact() && !options.isolated && own_cache_trust >= kMinOwnCacheTrust;
  }
  std::string file_prefix() const { return "toki-" + std::to_string(first_prompt) + "-"; }
  // No two processes have the same names in one folder.
  std::string file_name() { return file_prefix() + std::to_string(++files) + ".bin"; }
  PlanWorld world() const;
  bool can_save() const {
    return abilities.saves && store != nullptr && (abilities.cuts || !exact());
  }
  bool saves() const { return can_save() && clock() >= saves_paused_until; }
  StoredPrefix stored(const Scope& scope, TokenSpan tokens) const;
  bool restores() const { return can_save() && clock() >= restores_paused_until; }
  SlotView view_of(std::uint32_t slot) const;
  std::optional<SlotView> view_of_leaving(std::uint32_t slot, const Query& query) const;
  void note_waiter(const Query& query);
  void lease(Ticket::Impl& ticket, const Plan& plan);
  double cold_ms(const Query& query, const Plan& plan) const {
    return static_cast<double>(query.tokens.size() - plan.predicted) * prefill_rate();
  }
  bool may_lead(const Query& query) const;
  double lead_ms(const Query& query, const Plan& plan) const;
  bool leads(const Query& query, const Plan& plan) const;
  void add_steps(Ticket::Impl& ticket, const Plan& plan, const Query& query);
  void borrow(Ticket::Impl& ticket, std::uint32_t slot);
  void add_save(Ticket::Impl& ticket, std::uint32_t slot, bool later = false);
  void add_save(Ticket::Impl& ticket, std::uint32_t slot, const Scope& scope, Tokens tokens,
                bool later);
  void add_stages(Ticket::Impl& ticket, const Plan& plan, const Query& query);
  void add_cut(Ticket::Impl& ticket, std::uint64_t tokens);
  void erase_claimed(Ticket::Impl& ticket);
  void erase_foreign(Ticket::Impl& ticket);
  bool only_own(const Ticket::Impl& ticket) const;
  bool served(const Scope& scope) const {
    return std::find(pin_scopes.begin(), pin_scopes.end(), scope) != pin_scopes.end();
  }
  void make_choice(Ticket::Impl& ticket);
  struct Rivals {                       // of a ticket's slot, when the backend chooses
    std::optional<std::uint64_t> most;  // tokens of its prompt that another holds; none: any number
    std::uint64_t certain = 0;          // that another is known to hold
  };
  std::optional<std::uint64_t> rival(const Ticket::Impl& ticket, std::uint32_t slot) const;
  Rivals rivals(const Ticket::Impl& ticket) const;
  bool ran_in_slot(const Ticket::Impl& ticket, const Outcome& outcome) const;
  void judge_choice(const Ticket::Impl& ticket, const Outcome& outcome, Account& account);
  void save_failed(const Error& error);
  int spare_rank(std::uint32_t slot) const;
  void step_done(Ticket::Impl& ticket, const Step& step, StepReport report);
  void saved(Ticket::Impl& ticket, const Step& step, StepReport report);
  void restored(Ticket::Impl& ticket, const Step& step, StepReport report);
  bool doubts(const Ticket::Impl& ticket, const Outcome& outcome) const;
  void prefilled(Ticket::Impl& ticket, const Step& step, const StepReport& report);
  void was_cut(Ticket::Impl& ticket, const Step& step, const StepReport& report);
  void set_apart(bool overtaken);
  void judge_overtaken(Ticket::Impl& ticket, const Outcome& outcome);
  void broken_off(Ticket::Impl& ticket);
  void release(Ticket::Impl& ticket);
  void settle_content(Ticket::Impl& ticket, const Outcome& outcome, const Account& account);
  void settle_slots(Ticket::Impl& ticket, const Outcome& outcome, const Account& account);
  void settle_outdated(const Ticket::Impl& ticket);
  Account account(const Ticket::Impl& ticket, const Outcome& outcome);
  void judge_restore(const Ticket::Impl& ticket, const Account& account);
  void count(const Ticket::Impl& ticket, const Outcome& outcome, const Account& account);
  void measure(const Ticket::Impl& ticket, const Outcome& outcome);
  bool impossible(const Ticket::Impl& ticket, std::uint64_t cached) const;
  // Pins, in pinning.cpp.
  std::size_t most_pins() const;
  std::size_t pins_held() const;
  std::optional<std::uint32_t> holder(std::uint64_t pin) const;
  bool holds(std::uint32_t slot, const PinRecord& pin) const;
  bool barred(std::uint32_t slot, const Query& query) const;
  void assign_pins();
  const PinRecord* next_pin() const;
  bool choose_hot_pins();
  Plan plan_pin(const PinRecord& pin) const;
  void go_on_with_pin(Ticket::Impl& ticket, bool failed);
  void drop_contents(SlotContent content);
  void make_tree_again();
  std::uint64_t shared(const Scope& scope, TokenSpan tokens) const;
  void forget_slots(const ForgottenPrompt& gone);
  void reset_slots(std::size_t slots, SlotContent content);
  void prompt_changed(PromptChange change);
  void pins_changed();
  void notify();  // REQUIRES the mutex not to be held, as the next
  void tell_news();
};

inline Ticket::Impl::Impl(std::shared_ptr<Engine::Impl> of)
    : engine(std::move(of)), epoch(engine->epoch), started(engine->clock()) {}

}  // namespace toki
