// Engine: decides where each request runs so that the longest exact token prefix is reused, and
// keeps the books. It does no I/O and never waits: a driver runs what it decides.
//
// Threads:   shareable; one mutex, held for memory work only. Listeners (on_...) run without it;
//            clocks, StoreLookup and visits run under it.
// Ownership: copies tokens; tickets keep the engine's state alive, so either may die first.
// Errors:    begin() answers Errc::busy when there is no slot for the request now. Of the others
//            only those that return a Result fail, each as it says.
// Cost:      begin() compares the prompt with the tree and every slot: microseconds, some hundred
//            for very long prompts.
//
//     auto ticket = engine.begin({.scope = scope, .tokens = tokens});
//     if (!ticket) return wait();        // busy: on_slot_free tells when to ask again
//     run_steps(*ticket, backend, store);  // usually there are none
//     ticket->sent();
//     ticket->slot();                    // send the request there; none: the backend chooses
//     std::move(*ticket).finish({.ending = Ending::completed, .cached_tokens = 812, ...});
#pragma once

#include <toki/block_tree.hpp>
#include <toki/embedding.hpp>
#include <toki/export.hpp>
#include <toki/pin_record.hpp>
#include <toki/prompt_record.hpp>
#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/similarity_index.hpp>
#include <toki/slot_pool.hpp>
#include <toki/state_store.hpp>
#include <toki/stats.hpp>
#include <toki/token.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki {

/// Gives the time now. Called under the engine's lock: it must not call the engine.
using Clock = std::function<std::chrono::steady_clock::time_point()>;
using WallClock = std::function<std::int64_t()>;  ///< Unix time in ms

/// What an engine is made with; fixed once it is made.
struct EngineOptions {
  BlockTreeOptions tree;           ///< block size and budgets of the tree of known prompts
  std::size_t max_prompts = 4096;  ///< remembered whole
  std::size_t max_prompt_bytes = std::size_t{64} << 20;  ///< of their tokens and embeddings
  double good_match = 0.5;  ///< share of a prompt known to the tree that ends the search there
  std::uint64_t min_reuse_for_hit = 10;  ///< tokens from which reuse counts as a hit
  std::size_t hot_pins = 0;  ///< so many of the hottest prefixes are pinned without being asked to
  double prefill_ms_per_token = 1.0;  ///< used until the backend's real rate was measured
  /// Not 0: answers are to be those of a backend without any cache, whose physical batch this is. One
  /// request runs at a time, and only whole batches of a prompt are reused (docs/divergence.md).
  std::uint64_t exact_batch = 0;
  /// Nothing is shared between scopes by the backend either: what a slot holds is reused only where
  /// all of it was computed for prompts of the same scope, else may_reuse() is false. The backend's own
  /// cache is never counted on, and a client's choice of a slot is not followed.
  bool isolated = false;
  /// The index that finds prompts which are alike; none: make_similarity_index(). It is asked and
  /// changed under the engine's lock, and made anew when all is forgotten.
  IndexMaker make_index{};
};

/// Why a request runs where it runs; `x-toki-reason` and the log say it with these names.
enum class Reason : std::uint8_t {
  slot_prefix,         ///< the slot holds a prefix of it
  empty_slot,          ///< nothing known helps; an empty slot takes it
  displaced,           ///< nothing known helps; the slot whose content is worth least takes it
  restored,            ///< a stored prefix of it was put into the slot
  copied,              ///< what another slot holds of it was put into the slot
  backend_cache,       ///< no slot holds the known prefix, the backend's own cache may: it chooses
  requested_slot,      ///< the client named the slot
  slot_pinned,         ///< the client named a slot that keeps a pin; it runs in another
  pinning_off,         ///< the backend does not keep pinned slots, so it chooses
  cache_prompt_false,  ///< the client wants no reuse
  several_models,      ///< the backend serves several models, so what its slots hold is not known
  several_answers,     ///< one request, several sequences: the backend chooses
  tokenize_failed,     ///< its tokens could not be known in time
  too_large,           ///< too large to be worth tokenizing, or to be kept
  media,               ///< holds images or audio, and not known where in the prompt
  not_cacheable,       ///< a generation whose prompt toki does not read
};
/// The name of the enumerator. Static string.
TOKI_EXPORT std::string_view to_string(Reason value) noexcept;

/// Which step of the search found the longest known prefix of a prompt.
enum class Source : std::uint8_t {
  none,     ///< nothing of it is known
  slot,     ///< the slot it runs in holds all that is known of it
  tree,     ///< the tree of known prompts: more than that slot holds
  similar,  ///< a prompt that its embedding nominated: more than the tree knows
  disk,     ///< the store: restored into the slot
  copy,     ///< another slot: saved, and restored into this one
};
/// The name of the enumerator. Static string.
TOKI_EXPORT std::string_view to_string(Source value) noexcept;

/// What a request asks of the engine. Spans and pointers need only be valid during the call.
struct Query {
  Scope scope{};       ///< whose KV cache it may share
  TokenSpan tokens{};  ///< the whole prompt; empty when it is not known
  bool surrogate =
      false;  ///< `tokens` order requests by what they share, but are not the exact prompt
  bool from_ids =
      false;  ///< the prompt can be computed from its token ids alone, before the request
  bool followed = false;                 ///< others wait that share its beginning
  const Embedding* embedding = nullptr;  ///< of the prompt, where wants_embedding(); null: no
                                         ///< search by similarity
  std::optional<Reason> bypass{};        ///< set: toki has no say, for this reason
  /// The request cannot name its slot: the backend takes the idle one that shares most of the prompt,
  /// where that is more than a tenth of it, else the one that it used longest ago. A step makes that
  /// the ticket's own; see Ticket::wants_proof().
  bool unnamed = false;
  bool alone = false;  ///< the backend cannot be told what to reuse: it begins when every slot is
                       ///< idle, and those that hold something of other scopes are erased for it
  std::uint32_t sequences = 1;  ///< how many slots the request will take in the backend
  std::optional<std::uint32_t>
      slot{};  ///< the client's own choice, already checked against slots()
  std::chrono::milliseconds waited{0};  ///< how long the caller has waited already
  std::chrono::milliseconds patience{
      0};  ///< how long the caller would still wait for a busy slot that fits better
  std::chrono::milliseconds lead_patience{
      0};  ///< how long it would still wait for a prefix that another request computes now
  std::span<const std::uint64_t>
      boundaries{};  ///< where wants_boundaries(): tokens after which other prompts may go on
                     ///< otherwise (the end of the system message), ascending
};

/// Something to do before the request is sent. A value: it holds all that a driver needs.
struct Step {
  /// What a driver does; see StepReport for what it tells of each.
  enum class Kind : std::uint8_t {
    erase,    ///< empty the slot
    save,     ///< save the slot's state and give it to the store; the slot keeps it
    restore,  ///< let the store provide a state for `tokens`, and restore it into the slot
    prefill,  ///< compute `tokens` in the slot
  } kind = Kind::erase;  ///< what is to be done
  SlotId slot{};         ///< where
  Scope scope{};         ///< save, restore: under which the state is kept
  Tokens tokens{};       ///< save: what the slot is known to begin with
  bool whole = false;    ///< save: as a snapshot, because the backend cannot rewind
  bool later = false;    ///< save: the request need not wait until the store has taken it
  std::string file{};    ///< save, restore: name of the state file, never used twice in one run,
                         ///< for stores that have no names of their own
  double token_ms = 0;   ///< save: what computing one of its tokens costs
  Tokens needed{};       ///< save: tokens whose stored state is restored next, so it has to stay
  bool only = false;     ///< save: what the state holds behind `tokens` is not kept
};

/// How a step ended.
struct StepReport {
  std::optional<Error> error{};  ///< why it failed; none: it is done
  Tokens tokens{};               ///< save: what the slot holds, by the state's own record; restore:
                                 ///< all that it holds now, where that is more than was asked for
  std::uint64_t unknown = 0;     ///< tokens behind them, of unknown ids
  std::uint64_t reused = 0;      ///< restore: tokens restored; prefill: tokens not computed
  std::uint64_t computed = 0;    ///< prefill: tokens computed
  double ms = 0;                 ///< that the backend took; 0: not known
  bool pending = false;  ///< save, where Step::later: the store still works on it; how that ends is
                         ///< told to Ticket::stored()
  bool overtaken = false;  ///< save, restore: what was asked for behind it was done first
};

/// How a request ended; decides what its slot holds now (docs/design.md).
enum class Ending : std::uint8_t {
  completed,  ///< the whole answer came
  refused,    ///< the backend answered with an error; it did not work on the prompt
  failed,     ///< the backend died, broke off or talked nonsense
  cancelled,  ///< the client left
  stalled,    ///< no progress within the limit: the slot is fenced
};

/// What really happened to a request. Absent values were not reported.
struct Outcome {
  Ending ending = Ending::failed;  ///< decides what the slot holds now
  bool computed = false;  ///< the prompt is known to have been computed whole (an answer began)
  std::optional<std::uint64_t> prompt_tokens{};  ///< as the backend counted
  std::optional<std::uint64_t> cached_tokens{};  ///< reused, of those
  double prompt_ms = 0;                ///< time for the tokens that were not reused; 0: not said
  std::uint64_t generated_tokens = 0;  ///< of the answer, as the backend counted
  bool truncated =
      false;  ///< the backend dropped part of the prompt: what the slot holds is not known
  TokenSpan generated{};  ///< their ids, when all are known
  std::optional<std::uint64_t>
      held{};  ///< tokens in the ticket's slot now, as the backend says; asked
               ///< where Ticket::wants_proof()
};

/// What finish() made of it, for the log and the headers.
struct Account {
  CacheClass cache_class = CacheClass::unreported;  ///< by the backend's own word
  std::uint64_t predicted = 0;                      ///< as Ticket::predicted() said
  std::uint64_t reused = 0;  ///< as the backend says, less what a step of the ticket had computed
  /// The backend counted another number of prompt tokens: the prompt is not remembered.
  bool tokenization_mismatch = false;
  /// More was reused than anything known explains: the slot is erased before its next use.
  bool integrity_fault = false;
  bool restore_failed = false;  ///< less than half of what was restored was then reused
  bool elsewhere = false;    ///< Query::unnamed: it is not certain that the slot was the ticket's
  std::uint64_t prompt = 0;  ///< the id under which it is remembered; 0: it is not
  bool wants_embedding = false;  ///< it is remembered without a model's embedding
};

/// The name of the enumerator, but `refused` is "refused_by_backend": tokid refuses too. Static
/// string.
TOKI_EXPORT std::string_view to_string(Ending value) noexcept;

class Engine;

/// The right to use a slot for one request. Move-only. A ticket that dies without finish() counts
/// as cancelled and leaves of the slot's content only what is certain.
/// Threads: one at a time, not always the same; distinct tickets are independent. What stored()
/// gives: any thread.
class TOKI_EXPORT Ticket {
 public:
  /// The source may only be destroyed or assigned to.
  Ticket(Ticket&&) noexcept;
  /// What it held before ends as cancelled. The source may only be destroyed or assigned to.
  Ticket& operator=(Ticket&&) noexcept;
  ~Ticket();

  /// Where to send the request; none: let the backend choose.
  std::optional<SlotId> slot() const noexcept;
  std::uint64_t predicted()
      const noexcept;  ///< tokens expected to be reused; never more than the slot is known to hold
  std::uint64_t available()
      const noexcept;  ///< tokens of it that were ever known, wherever they are
  /// What predicted() would count as.
  CacheClass predicted_class() const noexcept;
  /// Why it runs where it runs.
  Reason reason() const noexcept;
  /// Which step of the search found the most of the prompt.
  Source source() const noexcept;
  /// False: send `cache_prompt: false`, because what the slot holds must not be reused. Known when
  /// the steps are done.
  bool may_reuse() const noexcept;

  /// What to do next before the request is sent; null: nothing any more. Valid until step_done().
  /// Once it is sent nothing is begun any more.
  const Step* next_step();
  /// The restore behind a save of the same slot, when the caller begins both, in this order, before
  /// either is done; their reports come one by one all the same. Null: there is none. Valid until it
  /// is reported.
  /// REQUIRES: next_step() gave a step that is not done.
  const Step* begin_behind() noexcept;
  /// Whether the request may be sent while the restore is under way that is the last step, apart()
  /// after that was begun. A backend that works off what it is asked in the order of asking then
  /// does both between the same two batches. Where the answer begins first all the same, the
  /// restore is reported as overtaken.
  /// REQUIRES: next_step() gave a step that is not done.
  bool may_send_behind() const noexcept;
  /// How long after one call the next is made, so that the backend reads them in this order: 10 to
  /// 80 ms, by how that went.
  std::chrono::milliseconds apart() const noexcept;
  /// To be called once, by any thread and after the ticket's end too, when the store is done with
  /// the save that next_step() gave.
  std::function<void(const Status&)> stored();
  /// REQUIRES: next_step() gave a step that is not done.
  void step_done(StepReport report);
  /// Why a step failed; empty: none did.
  const std::string& trouble() const noexcept;

  /// False when the backend was started again or changed since, or may still be at a step that
  /// took too long: take a new ticket.
  bool current() const noexcept;
  /// The request goes to the backend now; from here on the slot's old content is at risk. Where steps
  /// are left, what is in its slots is erased before they are used again.
  void sent() noexcept;
  /// For tickets without a slot: these slots are the ones it works in; the others are free again.
  void settle(std::span<const std::uint32_t> in_use);
  /// It is known which slots the ticket works in: it has one, or settle() told.
  bool settled() const noexcept;
  /// Query::unnamed: that so many tokens were reused does not tell alone that the request ran in the
  /// ticket's slot. Outcome::held may tell it; where nothing does, what idle slots hold is not known
  /// any more.
  bool wants_proof(std::optional<std::uint64_t> cached_tokens) const noexcept;
  /// How many of these slots the ticket holds.
  std::size_t claimed_among(std::span<const std::uint32_t> slots) const noexcept;

  /// Ends the ticket, counts the request, and frees its slots: on_slot_free() is told. What is
  /// known of the slot follows from `outcome`.
  Account finish(const Outcome& outcome) &&;
  /// Ends the ticket without counting it: it was no request. `touched` slots hold `content` now.
  void dismiss(std::span<const std::uint32_t> touched, SlotContent content) &&;

 private:
  friend class Engine;
  struct Impl;
  explicit Ticket(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// One row of the slot table, for people.
struct SlotInfo {
  SlotContent content = SlotContent::unknown;  ///< what is known of it
  std::uint64_t known_tokens = 0;              ///< leading tokens whose ids are known
  std::uint64_t unknown_tail = 0;              ///< tokens behind them, of unknown ids
  bool leased = false;                         ///< a ticket has it
  bool fenced = false;                         ///< stopped answering; gets no work
  std::uint64_t last_used = 0;                 ///< tick of the last lease; 0: never
  std::chrono::milliseconds used_ago{0};       ///< since that lease began
  std::uint64_t pin = 0;                       ///< the pin that it keeps; 0: none
  std::uint64_t prompt = 0;  ///< the remembered prompt that shares most with it; 0: none
  std::uint64_t common = 0;  ///< leading tokens that both share
};

/// What is true of the backend, found by asking and by trial.
struct BackendFacts {
  std::uint32_t slots = 0;       ///< there are; 0: it cannot serve now
  std::vector<bool> slots_used;  ///< see BackendDescription
  std::uint64_t context = 0;     ///< tokens one slot can hold; 0: not known
  bool own_cache = true;  ///< may hold prompts outside its slots (llama-server's --cache-ram)
  bool pinning = true;    ///< a named slot keeps its prompt while others work
};

/// What a trial found that can be done with a slot's state.
struct StateAbilities {
  bool saves = false;  ///< saved and restored exactly, into another slot too, and a store is there
  bool cuts = false;   ///< and what is saved serves any of its beginnings: cut to it, or restored
                       ///< whole and rewound
  bool rewinds =
      true;           ///< a live slot keeps the common prefix when a prompt parts from its content
  bool reads = true;  ///< the store reads from a state which tokens it holds, those too whose ids
                      ///< nobody told
};

/// What the store can restore of a prompt.
using StoreLookup = std::function<StoredPrefix(const Scope&, TokenSpan)>;
/// What was restored of a prompt was not there for it (StateStore::doubt()).
using StoreDoubt = std::function<void(const Scope&, TokenSpan)>;

/// A change of what is remembered, for whoever keeps it across restarts.
struct PromptChange {
  /// What happened.
  enum class Kind : std::uint8_t {
    put,                ///< `prompt` is new, or replaces the one with its id
    used,               ///< only `use` and `last_used_ms` of `prompt` changed
    removed,            ///< the prompt with this id is forgotten
    cleared             ///< all are forgotten
  } kind = Kind::put;   ///< what happened
  PromptRecord prompt;  ///< whole with `put`; only the named fields otherwise
};

/// One remembered prompt, for people.
struct PromptInfo {
  std::uint64_t id = 0;                           ///< as PromptRecord has it
  std::uint64_t tokens = 0;                       ///< its length
  EmbeddingKind embedding = EmbeddingKind::none;  ///< who made it
  double use = 0;                                 ///< decayed number of uses
  std::int64_t last_used_ms = 0;                  ///< Unix time; 0: not known
};

/// A prompt that was forgotten, for whoever holds more of it.
struct ForgottenPrompt {
  Scope scope;               ///< it was remembered under
  Tokens tokens;             ///< the whole prompt
  std::uint64_t shared = 0;  ///< as Engine::shared() says of it
};

/// The remembered prompt that shares most with another.
struct NearestPrompt {
  std::uint64_t id = 0;      ///< of the remembered prompt; 0: there is none
  std::uint64_t tokens = 0;  ///< its length; 0: there is none
  std::uint64_t common = 0;  ///< leading tokens that both share
};

/// Called for each prompt in turn; the record is valid during the call only.
using PromptVisit = std::function<void(const PromptRecord&)>;
/// `common`: leading tokens that the prompt shares with the one visited before.
using PlacedVisit = std::function<void(const PromptRecord&, std::uint64_t common)>;

/// What begin() would find and decide now.
struct Lookup {
  std::uint64_t available = 0;  ///< leading tokens that are known, wherever they are
  std::uint64_t predicted = 0;  ///< of those, reused in the slot it would get
  CacheClass predicted_class = CacheClass::miss;  ///< what `predicted` would count as
  Source source = Source::none;                   ///< which step of the search found the most
  bool busy = false;                              ///< it would wait for a slot
  /// it would get; none: it would wait, or the backend would choose
  std::optional<std::uint32_t> slot{};
  Reason reason = Reason::displaced;    ///< why that one
  std::optional<PromptInfo> nearest{};  ///< the known prompt with the longest common prefix
  std::uint64_t common = 0;             ///< its length: the token at which they part
};

/// Decides and keeps the books; see the head of this file. Whoever drives it tells it of the
/// backend first: until backend_changed() every request is Errc::busy.
class TOKI_EXPORT Engine {
 public:
  /// Without a wall clock, prompts are remembered without the time of their last use.
  Engine(const EngineOptions& options, Clock clock, WallClock wall = {});
  ~Engine();
  /// The source may only be destroyed or assigned to.
  Engine(Engine&&) noexcept;
  /// The source may only be destroyed or assigned to. Tickets of the old engine keep its state
  /// alive.
  Engine& operator=(Engine&&) noexcept;

  /// Takes a slot for the request, and plans what is to be done in it first. Errc::busy: none is
  /// free for it now, or one that is busy is worth waiting for within Query::patience;
  /// on_slot_free() tells when to ask again.
  Result<Ticket> begin(const Query& query);
  /// What begin() would do, without taking a slot. Nothing is counted.
  Lookup lookup(const Query& query) const;
  /// Expected time to compute the prompt, in ms, where it would be worth a step of its own if others
  /// waited for its beginning; 0: it is not. A caller may wait a little to see whether they come.
  double lead_ms(const Query& query) const;
  /// Whether the backend keeps states that can only be used whole, so that it pays to know
  /// Query::boundaries.
  bool wants_boundaries() const;
  /// Whether an embedding of this prompt could find more than the tree does: the tree knows less
  /// than `good_match` of it and has had to forget something.
  bool wants_embedding(const Scope& scope, TokenSpan tokens) const;

  /// Remembers prompts from an earlier run, the most recently used first.
  void adopt(std::vector<PromptRecord> prompts);
  /// A model's embedding for a prompt that was remembered without one.
  void embedded(std::uint64_t id, Embedding embedding);
  /// The most recently used prompts, at most `count`.
  std::vector<PromptInfo> prompts(std::size_t count) const;
  /// Called, without locks, for every change of what is remembered, by one thread at a time and in the
  /// order of the changes: one that is made meanwhile is told by that thread too. One listener, set
  /// before the first request.
  void on_prompt_change(std::function<void(PromptChange)> tell);

  /// Called, without locks, whenever a slot became free; by several threads at once where several free
  /// slots, and perhaps once more while another listener is set. One listener.
  void on_slot_free(std::function<void()> wake);

  /// A backend is there (first time, or with another shape or model): all residency claims are
  /// dropped.
  void backend_changed(const BackendFacts& facts);
  /// The same backend was started again, or slept: its slots are empty now.
  void backend_restarted();
  /// The model was unloaded, so that its slots are empty; it comes back with the next request.
  void backend_slept();
  /// Whether a named slot keeps its prompt while others work, as a trial found. Off: the backend
  /// chooses the slot of every request.
  void set_pinning(bool on);
  /// After a trial; a change or restart of the backend takes all back until the next one.
  void set_abilities(const StateAbilities& abilities);
  /// `lookup`: memory only, it is asked under the engine's lock. `doubt` is called without it.
  void use_store(StoreLookup lookup, StoreDoubt doubt = {});
  /// A ticket to put a pin into a slot, or to save an idle slot whose content is worth it, only while
  /// no request runs; `while_busy`: to save, whatever runs. Run its steps, then dismiss it.
  /// Errc::not_found: nothing is to be done.
  Result<Ticket> begin_chore(bool while_busy = false);

  /// Pins the prefix by hand: from then on, whenever nothing else is to be done, it is put into a slot
  /// that serves only prompts that begin with all of it. The id, also of one pinned before. One slot
  /// stays free of pins: Errc::busy when it would not, or when there are too many. Errc::unavailable
  /// before the backend is known; Errc::invalid_argument: no tokens, or more than a slot holds;
  /// Errc::unsupported: in exact mode nothing is pinned.
  Result<std::uint64_t> pin(const Scope& scope, TokenSpan tokens);
  /// The same for the first `length` tokens of a remembered prompt; 0: for all of it. Errc::not_found:
  /// it is not remembered; Errc::invalid_argument also when it is of another model or other adapters,
  /// or holds media there.
  Result<std::uint64_t> pin_prompt(std::uint64_t id, std::uint64_t length);
  /// False: there is none of that id. What its slot holds stays there, like any other content.
  bool unpin(std::uint64_t id);
  /// All pins, those of other models too, by hand and hot.
  std::vector<PinInfo> pins() const;
  /// Those of an earlier run.
  void adopt_pins(std::vector<PinRecord> pins);
  /// Called, without locks, with all pins, whenever one was added or removed; in order, as
  /// on_prompt_change(). One listener, set before the first pin.
  void on_pins_change(std::function<void(std::vector<PinRecord>)> tell);
  /// The scopes of requests without adapters (one; or one a tenant), once it is known what the backend
  /// can do: pins of them get slots. None: the backend is not ready. A change or restart of the backend,
  /// or its sleep, means none.
  void serve_pins(std::vector<Scope> scopes);

  /// Slots that begin_chore() would save if they were idle and saving did not pause.
  std::vector<std::uint32_t> unsaved() const;
  /// What the names of this engine's state files begin with.
  std::string file_prefix() const;
  /// Names of the state files that tickets are to save, or save now.
  std::vector<std::string> saving() const;

  /// Forgets a remembered prompt: no slot is matched any more beyond what others share with it, and
  /// idle ones are erased before their next use. A request with it that runs now is remembered when
  /// it ends. Pins by hand stay, hot ones with what goes of it do not. Errc::not_found. O(all that is
  /// remembered).
  Result<ForgottenPrompt> forget(std::uint64_t id);
  /// The slots' part of it again, when those that were saved meanwhile are idle. Also for a prompt
  /// that is not remembered.
  void forget_slots(const ForgottenPrompt& gone);
  /// Forgets all, also what the requests that run now will have done; how many prompts that were.
  /// Pins by hand stay, and are computed again.
  std::size_t forget_all();
  /// A ticket to erase the idle slots that are to be erased before their next use. Run its steps,
  /// then dismiss it. Errc::not_found: there are none.
  Result<Ticket> begin_erasing();
  /// The remembered prompt of the scope with the longest common prefix. O(log of what is
  /// remembered).
  NearestPrompt nearest(const Scope& scope, TokenSpan tokens) const;
  /// Leading tokens that a remembered prompt or a pin by hand begins with, too.
  std::uint64_t shared(const Scope& scope, TokenSpan tokens) const;
  /// Visits the most recently used prompts, under the engine's lock: memory only.
  void each_prompt(std::size_t count, const PromptVisit& visit) const;
  /// The same prompts in the order of their token ids, in which neighbours share most: any two share
  /// the least `common` of those behind the first, up to the second.
  void each_prompt_in_order(std::size_t count, const PlacedVisit& visit) const;
  /// A ticket for an idle slot whose content is worth nothing, or that is stored (its steps save it
  /// first), only while no request runs. For work that is nobody's request: dismiss it, with its
  /// slot as touched once it was sent. Errc::not_found: there is none.
  Result<Ticket> begin_spare();
  /// The slots' content is not what we think. `erase`: nor may it be reused (other adapters made it).
  void forget_residency(bool erase = false);

  /// Slots that get no work until unfence().
  std::vector<std::uint32_t> fenced() const;
  /// The backend says the slot is idle again.
  void unfence(std::uint32_t slot);

  /// While one is held nobody reuses what a slot holds: something works in slots that we do not see.
  /// When it goes, what the slots hold is unknown. Only where EngineOptions::isolated; else it does
  /// nothing.
  class Distrust;

  /// As EngineOptions has it.
  bool isolated() const;
  /// Slots of the backend; 0: it is not known, or cannot serve.
  std::size_t slots() const;
  /// That a request could have now: in exact mode none while another runs.
  std::size_t idle_slots() const;
  /// One row a slot, in order.
  std::vector<SlotInfo> slot_table() const;
  Stats stats() const;  ///< the engine's own part; other parts stay 0

 private:
  friend class Ticket;
  struct Impl;
  Result<Ticket> begin_pin();
  std::shared_ptr<Impl> impl_;
};

/// Held while something that is no ticket works in the backend's slots. Keeps the engine's state
/// alive.
class TOKI_EXPORT Engine::Distrust {
 public:
  /// Nobody reuses anything from now on.
  explicit Distrust(Engine& engine);
  /// What the slots hold is unknown from now on.
  ~Distrust();
  Distrust(const Distrust&) = delete;
  Distrust& operator=(const Distrust&) = delete;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace toki
