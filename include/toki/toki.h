// toki in C, for C11 and every language that can call it. toki finds, for each prompt, the slot of
// an LLM backend that has computed most of its beginning already, by exact token ids, and brings
// such beginnings back from disk.
//
//     toki_query query;
//     toki_init(&query);
//     query.tokens = tokens;
//     query.token_count = count;
//     status = toki_engine_begin(engine, &query, &ticket, &error);  // microseconds, no I/O
//     if (status == TOKI_ERROR_BUSY) ...                            // wait for on_slot_free
//     toki_ticket_run_steps(ticket, &backend, store, NULL);         // usually there are none
//     toki_ticket_sent(ticket);
//     ... compute the prompt in slot toki_ticket_slot(ticket), and generate ...
//     toki_ticket_finish(ticket, &outcome, NULL, NULL);             // what really happened
//
// Threads:   engine, store, scope: any threads at once. A ticket, an index, a pool, a token cache:
//            one thread at a time. A tree: one writer and any number of readers at once. Callbacks
//            come without locks, but for clock_ns, on a thread that calls the library; it has no
//            thread of its own.
// Ownership: what a create, open or begin gave goes back to the free, close, finish or abandon of
//            its kind, which takes NULL too; in any order, what others still need lives on.
//            Arguments are copied, or only looked at during the call. Texts that are returned are
//            not to be freed.
// Errors:    a toki_status, and the text in a toki_error that the caller may pass. A handle or
//            result pointer that is NULL is TOKI_ERROR_INVALID_ARGUMENT; in functions that return
//            no status it stops the program with one line, as broken REQUIRES do. No exception
//            leaves the library, and none may leave a callback. Results are not written when a call
//            fails, handles are set to NULL.
// Cost:      that of the C++ call behind it (the header of the same name says it), and a copy of
//            what goes in or out.
//
// Structs begin with their size, set by toki_init(), which makes all else zero; zero means the
// default everywhere. So they can grow: a smaller one, of a program built before, counts as if it
// were followed by zeros; of a larger one the unknown rest has to be zero, else it is
// TOKI_ERROR_UNSUPPORTED. Of a struct that is a result, as much is filled in as there is room, and
// the rest is made zero.
//
// Enumerations are int32_t, and their values never change. docs/c-api.md has a guide.
#ifndef TOKI_TOKI_H
#define TOKI_TOKI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// What the shared library offers.
#if defined(__GNUC__) || defined(__clang__)
#define TOKI_API __attribute__((visibility("default")))
#else
#define TOKI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// @name Common
/// @{

/// A token id as the backend numbers it.
typedef int32_t toki_token;

/// What became of a call. 1 to 99 are the numbers of toki::Errc.
typedef int32_t toki_status;
enum {
  TOKI_OK = 0,
  TOKI_ERROR_NOT_FOUND = 1,         ///< the thing asked for does not exist
  TOKI_ERROR_INVALID_ARGUMENT = 2,  ///< the call itself is wrong; repeating it does not help
  TOKI_ERROR_BUSY = 3,              ///< no slot is free; try again when one is
  TOKI_ERROR_TIMED_OUT = 4,         ///< a limit set by the caller ran out
  TOKI_ERROR_CANCELLED = 5,         ///< the caller gave up
  TOKI_ERROR_BACKEND = 6,           ///< the backend refused, failed or talks nonsense
  TOKI_ERROR_UNAVAILABLE = 7,       ///< the backend cannot be reached
  TOKI_ERROR_CORRUPT = 8,           ///< bytes that do not fit their format
  TOKI_ERROR_UNSUPPORTED = 9,       ///< the backend or this build cannot do it
  TOKI_ERROR_NO_SPACE = 10,         ///< the disk is full
  TOKI_ERROR_NO_MEMORY = 100,       ///< the call did not happen, for want of memory
  TOKI_ERROR_INTERNAL = 101         ///< a fault in the library, or in a callback that threw
};

/// Why a call failed, for people; never holds prompt text. Written on failure only. It has no size
/// in front because it never grows.
typedef struct toki_error {
  toki_status status;  ///< what the call returned
  char message[508];   ///< UTF-8, ends with a zero; what does not fit is cut off
} toki_error;

/// The version of the library, for example "0.1.0".
TOKI_API const char* toki_version(void);

/// The name of a status, for example "busy"; "unknown" for any other number.
TOKI_API const char* toki_status_name(toki_status status);

/// Makes a struct of this API ready: its first member gets its size, all else is zero.
#define toki_init(object) toki_struct_init((object), sizeof(*(object)))

/// The same for languages without macros. REQUIRES: `size` bytes of at least a size_t.
TOKI_API void toki_struct_init(void* object, size_t size);

/// @}
/// @name Scope: whose prompts may share KV cache. Nothing is ever shared between two scopes.
/// @{

/// Whose prompts may share KV cache. Never changes.
typedef struct toki_scope toki_scope;

/// A scope from its parts, for example model, adapters, tenant: `count` texts that end with a zero.
/// Where a function takes a scope, NULL is the scope of no parts, enough for a program with one
/// model.
TOKI_API toki_status toki_scope_create(const char* const* parts, size_t count, toki_scope** scope,
                                       toki_error* error);
/// What was made with it keeps it.
TOKI_API void toki_scope_free(toki_scope* scope);

/// @}
/// @name Engine: where each request runs, and the books.
/// @{

/// Decides where requests run, and keeps the books.
typedef struct toki_engine toki_engine;
/// The right to use a slot for one request.
typedef struct toki_ticket toki_ticket;
/// KV cache on disk.
typedef struct toki_store toki_store;

/// What can be chosen when an engine is made.
typedef struct toki_engine_options {
  size_t size;                 ///< of this struct: toki_init()
  size_t tree_block_size;      ///< tokens a block, 8 to 512; 0: 32
  size_t tree_max_blocks;      ///< 1 to 2^31 - 2; 0: 2^20
  size_t tree_max_bytes;       ///< 0: no other limit than tree_max_blocks
  size_t max_prompts;          ///< remembered whole; 0: 4096
  size_t max_prompt_bytes;     ///< of their tokens and embeddings; 0: 64 MiB
  double good_match;           ///< share of a prompt, known to the tree, that makes a search by
                               ///< similarity needless; 0: 0.5
  uint64_t min_reuse_for_hit;  ///< tokens from which reuse counts as a hit; 0: 10
  size_t hot_pins;  ///< so many of the hottest prefixes are pinned without being asked to
  double prefill_ms_per_token;  ///< until the real rate was measured; 0: 1.0
  uint64_t exact_batch;         ///< not 0: answers are to be those of a backend without any cache,
                                ///< whose physical batch (tokens) this is; docs/divergence.md
  /// Nanoseconds of a clock that never goes back. NULL: the system's. Called with the engine's lock
  /// held: it must not call back.
  int64_t (*clock_ns)(void* user);
  void* clock_user;  ///< has to outlive the engine and its tickets
  bool isolated;     ///< what a slot holds is reused only where all of it was computed for the same
                     ///< scope; toki_ticket_may_reuse() has to be heeded
} toki_engine_options;

/// `options` may be NULL: all defaults. Before toki_engine_backend_changed() it has no slots.
TOKI_API toki_status toki_engine_create(const toki_engine_options* options, toki_engine** engine,
                                        toki_error* error);
/// Tickets that are still there work on, and keep what they need.
TOKI_API void toki_engine_free(toki_engine* engine);

/// What is true of the backend.
typedef struct toki_backend_facts {
  size_t size;       ///< of this struct: toki_init()
  uint32_t slots;    ///< 0: there is none now
  uint64_t context;  ///< tokens one slot can hold; 0: not known
  bool slots_empty;  ///< no slot has worked yet; false: what they hold is not known
  bool slots_only;   ///< it holds prompts in its slots alone: llama.cpp in this process, or a
                     ///< llama-server with --cache-ram 0. false: it may have a prompt cache too
} toki_backend_facts;

/// A backend is there, for the first time or with another shape or model. What was thought of its
/// slots is forgotten, and its abilities are none again; the known prompts stay.
TOKI_API toki_status toki_engine_backend_changed(toki_engine* engine,
                                                 const toki_backend_facts* facts,
                                                 toki_error* error);
/// The same backend was started again: its slots are empty, its abilities none until they are set.
TOKI_API toki_status toki_engine_backend_restarted(toki_engine* engine, toki_error* error);

/// What can be done with a slot's state, found by trying it out.
typedef struct toki_abilities {
  size_t size;         ///< of this struct: toki_init()
  bool saves;          ///< saved and restored exactly, into another slot too
  bool cuts;           ///< and a saved state serves any of its beginnings; false: only prompts that
                       ///< go on from all of it (recurrent models, sliding windows)
  bool cannot_rewind;  ///< a live slot does not keep the common prefix when a prompt parts from it
} toki_abilities;

/// None are taken for granted: without this nothing is saved or restored.
TOKI_API toki_status toki_engine_set_abilities(toki_engine* engine, const toki_abilities* abilities,
                                               toki_error* error);
/// From now on stored prefixes are considered; give the same store to toki_ticket_run_steps(). It
/// stays open, with its folder locked, while an engine uses it. NULL: none any more.
TOKI_API toki_status toki_engine_use_store(toki_engine* engine, toki_store* store,
                                           toki_error* error);

/// `wake` is called, without locks, by whoever frees a slot: ask again for a ticket. One listener,
/// NULL: none. `user` has to outlive the engine and its tickets.
TOKI_API toki_status toki_engine_on_slot_free(toki_engine* engine, void (*wake)(void* user),
                                              void* user, toki_error* error);

/// How much of a prompt is reused.
typedef int32_t toki_class;
enum {
  TOKI_CLASS_HIT = 0,        ///< at least min_reuse_for_hit tokens
  TOKI_CLASS_SOFT_HIT = 1,   ///< fewer, but some
  TOKI_CLASS_MISS = 2,       ///< none
  TOKI_CLASS_BYPASS = 3,     ///< toki had no say
  TOKI_CLASS_UNREPORTED = 4  ///< the backend did not say
};
/// "hit", "soft_hit", "miss", "bypass", "unreported".
TOKI_API const char* toki_class_name(toki_class value);

/// Why a request runs where it runs.
typedef int32_t toki_reason;
enum {
  TOKI_REASON_SLOT_PREFIX = 0,         ///< the slot holds a prefix of it
  TOKI_REASON_EMPTY_SLOT = 1,          ///< nothing known helps; an empty slot takes it
  TOKI_REASON_DISPLACED = 2,           ///< nothing known helps; the slot worth least takes it
  TOKI_REASON_RESTORED = 3,            ///< a stored prefix of it was put into the slot
  TOKI_REASON_COPIED = 4,              ///< what another slot holds of it was put into the slot
  TOKI_REASON_BACKEND_CACHE = 5,       ///< the backend's own cache may have it: it chooses
  TOKI_REASON_REQUESTED_SLOT = 6,      ///< the client named the slot
  TOKI_REASON_SLOT_PINNED = 7,         ///< the client named a slot that keeps a pin
  TOKI_REASON_PINNING_OFF = 8,         ///< the backend does not let anybody choose a slot
  TOKI_REASON_CACHE_PROMPT_FALSE = 9,  ///< the client wants no reuse
  TOKI_REASON_SEVERAL_MODELS = 10,     ///< what the backend's slots hold is not known
  TOKI_REASON_SEVERAL_ANSWERS = 11,    ///< one request, several sequences
  TOKI_REASON_TOKENIZE_FAILED = 12,    ///< its tokens could not be known in time
  TOKI_REASON_TOO_LARGE = 13,          ///< too large to be worth tokenizing
  TOKI_REASON_MEDIA = 14,              ///< holds images or audio, and not known where
  TOKI_REASON_NOT_CACHEABLE = 15       ///< a generation whose prompt is not read
};
/// The name in small letters, for example "slot_prefix"; "unknown" for any other number.
TOKI_API const char* toki_reason_name(toki_reason value);

/// Which step of the search found the longest known prefix.
typedef int32_t toki_source;
enum {
  TOKI_SOURCE_NONE = 0,     ///< nothing of it is known
  TOKI_SOURCE_SLOT = 1,     ///< the slot it runs in holds all that is known of it
  TOKI_SOURCE_TREE = 2,     ///< the tree of known prompts: more than that slot holds
  TOKI_SOURCE_SIMILAR = 3,  ///< a prompt that its embedding nominated: more than the tree knows
  TOKI_SOURCE_DISK = 4,     ///< the store
  TOKI_SOURCE_COPY = 5      ///< another slot
};
/// "none", "slot", "tree", "similar", "disk", "copy".
TOKI_API const char* toki_source_name(toki_source value);

/// One request, as far as toki needs to know it.
typedef struct toki_query {
  size_t size;                 ///< of this struct: toki_init()
  const toki_scope* scope;     ///< whose it is; NULL: the scope of no parts
  const toki_token* tokens;    ///< the whole prompt; NULL when it is not known
  size_t token_count;          ///< of those
  const uint64_t* boundaries;  ///< tokens after which other prompts may go on otherwise (the end of
                               ///< the system message), ascending; for states that are not cut
  size_t boundary_count;       ///< of those
  const float* embedding;  ///< of the prompt, where toki_engine_wants_embedding(); NULL: no search
                           ///< by similarity
  size_t embedding_count;  ///< of its values
  const char* embedding_model;  ///< which made it: only embeddings of one model are compared. NULL:
                                ///< toki_embedding_hash() did
  int64_t waited_ms;            ///< how long the caller has waited for a slot already
  int64_t patience_ms;          ///< how long it would still wait for a busy slot that fits better
  int64_t lead_patience_ms;     ///< and for a prefix that another request computes now
  /// TOKI_REASON_CACHE_PROMPT_FALSE to _NOT_CACHEABLE: toki has no say, for this reason. 0: it has.
  toki_reason bypass;
  bool from_ids;  ///< the prompt can be computed from its token ids alone (toki_backend::prefill)
  bool followed;  ///< others wait that share its beginning
} toki_query;

/// A ticket: the right to use a slot for one request. TOKI_ERROR_BUSY: there is no slot for it now,
/// or, within its patience, a better one is in use; ask again when a slot became free.
TOKI_API toki_status toki_engine_begin(toki_engine* engine, const toki_query* query,
                                       toki_ticket** ticket, toki_error* error);

/// What toki_engine_begin() would find and decide.
typedef struct toki_lookup {
  size_t size;                 ///< of this struct: toki_init()
  uint64_t available;          ///< leading tokens that are known, wherever they are
  uint64_t predicted;          ///< of those, reused in the slot it would get
  uint64_t nearest_id;         ///< the known prompt with the longest common prefix; 0: none
  uint64_t nearest_tokens;     ///< its length
  uint64_t common;             ///< and that of the prefix: the token at which they part
  int32_t slot;                ///< -1: none, or the backend chooses
  toki_class predicted_class;  ///< of `predicted`
  toki_reason reason;          ///< why there
  toki_source source;          ///< where most of it is known
  bool busy;                   ///< it would wait for a slot
} toki_lookup;

/// What toki_engine_begin() would do now. Takes no slot and counts nothing.
TOKI_API toki_status toki_engine_lookup(const toki_engine* engine, const toki_query* query,
                                        toki_lookup* lookup, toki_error* error);
/// Whether an embedding of this prompt could find more than the tree does.
TOKI_API bool toki_engine_wants_embedding(const toki_engine* engine, const toki_scope* scope,
                                          const toki_token* tokens, size_t count);

/// What is known of what a slot holds.
typedef int32_t toki_content;
enum {
  TOKI_CONTENT_EMPTY = 0,   ///< holds nothing
  TOKI_CONTENT_KNOWN = 1,   ///< holds known tokens, then perhaps a tail of unknown ones
  TOKI_CONTENT_UNKNOWN = 2  ///< holds something that is not known
};

/// What is known of a slot.
typedef struct toki_slot_info {
  size_t size;            ///< of this struct: toki_init()
  uint64_t known_tokens;  ///< tokens that it is known to hold
  uint64_t unknown_tail;  ///< generated tokens behind them whose ids were not told
  uint64_t last_used;     ///< grows with each use; 0: never used
  int64_t used_ago_ms;    ///< since that use began; always 0 of a pool's slot
  uint64_t pin;           ///< the pin that it keeps; 0: none
  toki_content content;   ///< whether that is known
  bool leased;            ///< a ticket has it
  bool fenced;            ///< stopped answering: gets no work until toki_engine_unfence()
} toki_slot_info;

/// Number of slots of the backend.
TOKI_API size_t toki_engine_slots(const toki_engine* engine);
/// What a slot holds. TOKI_ERROR_NOT_FOUND: there is no such slot.
TOKI_API toki_status toki_engine_slot(const toki_engine* engine, uint32_t slot,
                                      toki_slot_info* info, toki_error* error);
/// The backend says that the slot is idle again, after a request that ended TOKI_ENDING_STALLED.
TOKI_API toki_status toki_engine_unfence(toki_engine* engine, uint32_t slot, toki_error* error);
/// Forgets all prompts and what the slots hold; `prompts` (may be NULL) gets how many that were.
/// Pins stay. The store's part is toki_store_forget_all().
TOKI_API toki_status toki_engine_forget_all(toki_engine* engine, size_t* prompts,
                                            toki_error* error);

/// Pins a prefix: a slot is kept for it that serves only prompts that begin with all of it. It gets
/// into one by toki_engine_run_chore(), or by a request. `id` gets its number, also when it was
/// pinned before. One slot stays free of pins: TOKI_ERROR_BUSY when it would not.
/// TOKI_ERROR_UNAVAILABLE: there is no backend yet. TOKI_ERROR_UNSUPPORTED: in exact mode nothing is
/// pinned.
TOKI_API toki_status toki_engine_pin(toki_engine* engine, const toki_scope* scope,
                                     const toki_token* tokens, size_t count, uint64_t* id,
                                     toki_error* error);
/// TOKI_ERROR_NOT_FOUND: there is none of that number.
TOKI_API toki_status toki_engine_unpin(toki_engine* engine, uint64_t id, toki_error* error);
/// Pins get slots only in these scopes; none: no pin gets one. A change or restart of the backend
/// means none.
TOKI_API toki_status toki_engine_serve_pins(toki_engine* engine, const toki_scope* const* scopes,
                                            size_t count, toki_error* error);

/// Where a pin is.
typedef int32_t toki_pin_state;
enum {
  TOKI_PIN_HELD = 0,        ///< a slot holds it
  TOKI_PIN_WAITING = 1,     ///< none does yet, or not any more
  TOKI_PIN_OTHER_MODEL = 2  ///< it is of a scope that is not served
};

/// What became of a pin.
typedef struct toki_pin_info {
  size_t size;           ///< of this struct: toki_init()
  uint64_t id;           ///< for toki_engine_unpin()
  uint64_t tokens;       ///< its length
  int32_t slot;          ///< -1: none
  toki_pin_state state;  ///< whether a slot keeps it
  bool by_hand;          ///< false: chosen because many prompts begin with it
} toki_pin_info;

/// Calls `visit` for every pin.
TOKI_API toki_status toki_engine_visit_pins(const toki_engine* engine,
                                            void (*visit)(void* user, const toki_pin_info* pin),
                                            void* user, toki_error* error);

/// @}
/// @name Backend: what a program lends toki for a ticket's steps.
/// @{

/// What was computed.
typedef struct toki_prefilled {
  size_t size;        ///< of this struct: toki_init()
  uint64_t cached;    ///< tokens reused
  uint64_t computed;  ///< tokens computed
  double ms;          ///< 0: not measured
} toki_prefilled;

/// A state that was saved or restored.
typedef struct toki_timed {
  size_t size;      ///< of this struct: toki_init()
  uint64_t tokens;  ///< of the state
  double ms;        ///< that the backend was held up; 0: not measured
} toki_timed;

/// Functions that block until the work is done and say how it ended; the text of `error` (never
/// NULL here) is theirs to fill with what toki_ticket_trouble() is to say. A function that is NULL
/// cannot be done. `slot` counts from 0. `file` is a name in the slot_dir of the store's options.
/// Several threads call them at once where several run the steps of tickets, but never two for one
/// slot: what slots share is theirs to guard.
typedef struct toki_backend {
  size_t size;  ///< of this struct: toki_init()
  void* user;   ///< given to each
  /// Computes the tokens in the slot, keeping the common prefix that it holds.
  toki_status (*prefill)(void* user, uint32_t slot, const toki_token* tokens, size_t count,
                         toki_prefilled* done, toki_error* error);
  /// Writes the slot's state to the file: POST /slots/N?action=save of llama-server, or
  /// llama_state_seq_save_file() with the tokens that the slot holds.
  toki_status (*save)(void* user, uint32_t slot, const char* file, toki_timed* done,
                      toki_error* error);
  /// Reads the file into the slot, in place of what it holds: action=restore, or
  /// llama_state_seq_load_file().
  toki_status (*restore)(void* user, uint32_t slot, const char* file, toki_timed* done,
                         toki_error* error);
  /// Empties the slot: action=erase, or llama_memory_seq_rm().
  toki_status (*erase)(void* user, uint32_t slot, toki_error* error);
} toki_backend;

/// Does one thing that is due while nobody asks: puts a pin into a slot, or saves an idle slot
/// whose content is worth it. TOKI_ERROR_NOT_FOUND: nothing is. Only while no request runs;
/// `while_busy`: saves whatever runs. `store` may be NULL. Before the program ends:
///     while (toki_engine_run_chore(engine, &backend, store, false, NULL) == TOKI_OK) {}
TOKI_API toki_status toki_engine_run_chore(toki_engine* engine, const toki_backend* backend,
                                           toki_store* store, bool while_busy, toki_error* error);

/// @}
/// @name Ticket: one request, from toki_engine_begin() to finish or abandon.
/// @{

/// Does what has to be done in the slot before the request is sent: restore, save, copy, erase.
/// What fails costs reuse, not the request: toki_ticket_trouble(). `store`: that of
/// toki_engine_use_store(), or NULL.
TOKI_API toki_status toki_ticket_run_steps(toki_ticket* ticket, const toki_backend* backend,
                                           toki_store* store, toki_error* error);
/// Where to compute it: id_slot, or a llama_seq_id. -1: the backend chooses.
TOKI_API int32_t toki_ticket_slot(const toki_ticket* ticket);
/// Tokens expected to be reused; never more than the slot is known to hold.
TOKI_API uint64_t toki_ticket_predicted(const toki_ticket* ticket);
/// Tokens of the prompt that are known, wherever they are.
TOKI_API uint64_t toki_ticket_available(const toki_ticket* ticket);
/// Whether that is a hit.
TOKI_API toki_class toki_ticket_predicted_class(const toki_ticket* ticket);
/// Why it runs there.
TOKI_API toki_reason toki_ticket_reason(const toki_ticket* ticket);
/// Where most of the prompt is known.
TOKI_API toki_source toki_ticket_source(const toki_ticket* ticket);
/// false: what the slot holds must not be reused (cache_prompt: false). Ask when the steps are
/// done.
TOKI_API bool toki_ticket_may_reuse(const toki_ticket* ticket);
/// false: the backend was started again or changed since: abandon it and take a new ticket.
TOKI_API bool toki_ticket_current(const toki_ticket* ticket);
/// Why a step failed; "": none did. Valid until the ticket is used again.
TOKI_API const char* toki_ticket_trouble(const toki_ticket* ticket);
/// The request goes to the backend now: from here on the slot's old content is at risk.
TOKI_API void toki_ticket_sent(toki_ticket* ticket);
/// For a ticket whose slot is -1: it works in these slots, the others are free again.
TOKI_API toki_status toki_ticket_settle(toki_ticket* ticket, const uint32_t* slots, size_t count,
                                        toki_error* error);

/// How a request ended. There is no default.
typedef int32_t toki_ending;
enum {
  TOKI_ENDING_COMPLETED = 1,  ///< the whole answer came
  TOKI_ENDING_REFUSED = 2,    ///< the backend answered with an error and did not work on the prompt
  TOKI_ENDING_FAILED = 3,     ///< the backend died, broke off or talked nonsense
  TOKI_ENDING_CANCELLED = 4,  ///< the client left
  TOKI_ENDING_STALLED = 5     ///< no progress within the limit: the slot is fenced
};

/// What really happened.
typedef struct toki_outcome {
  size_t size;                  ///< of this struct: toki_init()
  uint64_t prompt_tokens;       ///< as the backend counted; 0: not said
  int64_t cached_tokens;        ///< reused, of those; -1: not said
  double prompt_ms;             ///< for the tokens that were not reused; 0: not said
  const toki_token* generated;  ///< ids of all generated tokens; NULL: not known
  uint64_t generated_tokens;    ///< their number
  toki_ending ending;           ///< has to be set
  bool computed;   ///< the prompt is known to have been computed whole (an answer began)
  bool truncated;  ///< the backend dropped part of the prompt
} toki_outcome;

/// What was made of it.
typedef struct toki_account {
  size_t size;                 ///< of this struct: toki_init()
  uint64_t predicted;          ///< tokens that were expected to be reused
  uint64_t reused;             ///< tokens that were, by the backend's word
  uint64_t prompt;             ///< the number under which it is remembered; 0: it is not
  toki_class cache_class;      ///< of `reused`
  bool tokenization_mismatch;  ///< the backend counted another number of prompt tokens
  bool integrity_fault;        ///< it claims more reuse than any known prompt allows
  bool restore_failed;         ///< less than half of what was restored was then reused
} toki_account;

/// Ends the ticket, counts it, and frees it, whatever is returned; after
/// TOKI_ERROR_INVALID_ARGUMENT or _UNSUPPORTED as if it had been abandoned. `account` may be NULL.
TOKI_API toki_status toki_ticket_finish(toki_ticket* ticket, const toki_outcome* outcome,
                                        toki_account* account, toki_error* error);
/// Ends and frees a ticket that came to nothing. It counts as cancelled, and what its slot holds is
/// as much as is certain.
TOKI_API void toki_ticket_abandon(toki_ticket* ticket);

/// @}
/// @name Statistics. Counters only grow; gauges are the state now. docs/http.md lists the names.
/// @{

/// One line of the statistics: times in ms, sizes in bytes, the rest numbers of things.
typedef struct toki_stat {
  size_t size;       ///< of this struct: toki_init()
  const char* name;  ///< static
  const char* help;  ///< what it counts, for people; static
  double value;      ///< now
  bool counter;      ///< it only grows
} toki_stat;

/// The value of one name, for example "class_hit", "reused_tokens_total" or "kv_bytes". Of `engine`
/// and `store` either may be NULL: its values are 0 then. TOKI_ERROR_NOT_FOUND: there is no such
/// name.
TOKI_API toki_status toki_stats_get(const toki_engine* engine, const toki_store* store,
                                    const char* name, double* value, toki_error* error);
/// Calls `visit` for all of them.
TOKI_API toki_status toki_stats_visit(const toki_engine* engine, const toki_store* store,
                                      void (*visit)(void* user, const toki_stat* stat), void* user,
                                      toki_error* error);

/// @}
/// @name Store: computed KV cache on disk, each token's rows once, whatever prompts share them.
/// @{

/// How much a line of the log matters.
typedef int32_t toki_log_level;
enum { TOKI_LOG_ERROR = 0, TOKI_LOG_WARN = 1, TOKI_LOG_INFO = 2, TOKI_LOG_DEBUG = 3 };

/// What can be chosen when a store is opened.
typedef struct toki_store_options {
  size_t size;      ///< of this struct: toki_init()
  const char* dir;  ///< its own folder, made when missing
  /// Where the backend reads and writes state files; has to exist. It is locked, and state files of
  /// earlier runs are removed.
  const char* slot_dir;
  uint64_t max_bytes;                                               ///< on disk; 0: 32 GiB
  void (*log)(void* user, toki_log_level level, const char* line);  ///< NULL: silent
  void* log_user;  ///< has to outlive the store and the engines that use it
} toki_store_options;

/// TOKI_ERROR_BUSY: another store, here or in another process, has one of the folders.
TOKI_API toki_status toki_store_open(const toki_store_options* options, toki_store** store,
                                     toki_error* error);
/// While an engine uses it, it lives on unseen.
TOKI_API void toki_store_close(toki_store* store);

/// Leading tokens of the prompt that can be restored. No I/O.
TOKI_API uint64_t toki_store_match(const toki_store* store, const toki_scope* scope,
                                   const toki_token* tokens, size_t count);
/// Takes the state file `file` of slot_dir in, and deletes it there in any case. `tokens`: what it
/// is known to begin with; one that begins otherwise is refused (TOKI_ERROR_CORRUPT). `whole`: keep
/// it as a snapshot, usable only for prompts that begin with all of it. `token_ms`: what computing
/// one token costs, for its worth. `taken` (may be NULL) gets the number of tokens whose ids it
/// holds.
TOKI_API toki_status toki_store_take(toki_store* store, const toki_scope* scope,
                                     const toki_token* tokens, size_t count, const char* file,
                                     bool whole, double token_ms, uint64_t* taken,
                                     toki_error* error);
/// Writes the state of the longest stored prefix of the prompt as `file` of slot_dir, to be
/// restored into `slot`; `composed` gets its tokens. TOKI_ERROR_NOT_FOUND: nothing is stored of it.
TOKI_API toki_status toki_store_compose(toki_store* store, const toki_scope* scope,
                                        const toki_token* tokens, size_t count, uint32_t slot,
                                        const char* file, uint64_t* composed, toki_error* error);
/// Deletes a state file that was composed. TOKI_ERROR_NOT_FOUND: it is not there.
TOKI_API toki_status toki_store_discard(toki_store* store, const char* file, toki_error* error);
/// Forgets everything; `pieces` (may be NULL) gets how many files went.
TOKI_API toki_status toki_store_forget_all(toki_store* store, uint64_t* pieces, toki_error* error);
/// Quota, catalogue, leftovers: call it now and then when nothing waits.
TOKI_API toki_status toki_store_maintain(toki_store* store, toki_error* error);

/// @}
/// @name Tree: the longest known prefix of a prompt, exact. For programs that plan for themselves.
/// @{

/// Known prompts, in blocks of tokens that prompts with a common prefix share.
typedef struct toki_tree toki_tree;

/// What can be chosen when a tree is made.
typedef struct toki_tree_options {
  size_t size;        ///< of this struct: toki_init()
  size_t block_size;  ///< tokens, 8 to 512; 0: 32
  size_t max_blocks;  ///< 1 to 2^31 - 2; 0: 2^20. The coldest leaves give way
  size_t max_bytes;   ///< 0: no other limit
  double half_life;   ///< inserts after which a use counts half; 0: 1024
} toki_tree_options;

/// `options` may be NULL: all defaults.
TOKI_API toki_status toki_tree_create(const toki_tree_options* options, toki_tree** tree,
                                      toki_error* error);
/// Gives all its memory back.
TOKI_API void toki_tree_free(toki_tree* tree);
/// Leading tokens of the prompt that are known; 0 also where memory is wanting.
TOKI_API size_t toki_tree_match(const toki_tree* tree, const toki_scope* scope,
                                const toki_token* tokens, size_t count);
/// Remembers the prompt; `added` (may be NULL) gets the number of new blocks.
TOKI_API toki_status toki_tree_insert(toki_tree* tree, const toki_scope* scope,
                                      const toki_token* tokens, size_t count, size_t* added,
                                      toki_error* error);
/// Inserts it and keeps it until it is unpinned as often. `whole` (may be NULL) gets whether the
/// budget holds all of it.
TOKI_API toki_status toki_tree_pin(toki_tree* tree, const toki_scope* scope,
                                   const toki_token* tokens, size_t count, bool* whole,
                                   toki_error* error);
/// Takes back one toki_tree_pin() of the same prompt; without effect where there was none.
TOKI_API toki_status toki_tree_unpin(toki_tree* tree, const toki_scope* scope,
                                     const toki_token* tokens, size_t count, toki_error* error);
/// Calls `visit` for the prefixes of at least `min_tokens` that most prompts share, most used
/// first, at most `most` of them. `use`: decayed number of inserts through its end. What `visit`
/// gets is valid during its call. O(blocks).
TOKI_API toki_status toki_tree_visit_hottest(const toki_tree* tree, size_t most, size_t min_tokens,
                                             void (*visit)(void* user, const toki_scope* scope,
                                                           const toki_token* tokens, size_t count,
                                                           double use),
                                             void* user, toki_error* error);
/// Forgets everything, pins too. Nobody may read meanwhile.
TOKI_API toki_status toki_tree_clear(toki_tree* tree, toki_error* error);
/// Number of blocks.
TOKI_API size_t toki_tree_blocks(const toki_tree* tree);
/// Memory held, token ids included.
TOKI_API size_t toki_tree_bytes(const toki_tree* tree);

/// @}
/// @name Index: the nearest known prompts by cosine. It only nominates; compare token ids
/// afterwards.
/// @{

/// Vectors of prompts.
typedef struct toki_index toki_index;

/// How an index searches.
typedef int32_t toki_index_kind;
enum {
  TOKI_INDEX_AUTO = 0,  ///< a scan; beside it a graph for each scope with more than 100,000 vectors
  TOKI_INDEX_SCAN = 1,  ///< compares with every vector, as int8 first: exact but for rounding
  TOKI_INDEX_EXACT = 2,  ///< compares with every vector in float32
  TOKI_INDEX_GRAPH = 3   ///< approximate (HNSW): now and then a neighbour is missed
};

/// What can be chosen when an index is made.
typedef struct toki_index_options {
  size_t size;       ///< of this struct: toki_init()
  size_t dimension;  ///< values of a vector, at most 65,536; 0: 384, that of toki_embedding_hash()
  toki_index_kind kind;  ///< 0: TOKI_INDEX_AUTO
} toki_index_options;

/// A vector that was found. Never grows.
typedef struct toki_neighbour {
  uint64_t id;   ///< as it was put
  float cosine;  ///< 1: the same direction
} toki_neighbour;

/// `options` may be NULL: all defaults.
TOKI_API toki_status toki_index_create(const toki_index_options* options, toki_index** index,
                                       toki_error* error);
/// Gives all its memory back.
TOKI_API void toki_index_free(toki_index* index);
/// Adds a vector, or replaces the one of that id. `count` has to be the index's dimension. It need
/// not have the length 1.
TOKI_API toki_status toki_index_put(toki_index* index, uint64_t id, const toki_scope* scope,
                                    const float* values, size_t count, toki_error* error);
/// TOKI_ERROR_NOT_FOUND: there is none of that id.
TOKI_API toki_status toki_index_remove(toki_index* index, uint64_t id, toki_error* error);
/// The nearest of the scope, best first; `found` gets how many, at most `most`: so many
/// `neighbours` there must be room for.
TOKI_API toki_status toki_index_search(const toki_index* index, const toki_scope* scope,
                                       const float* values, size_t count, size_t most,
                                       toki_neighbour* neighbours, size_t* found,
                                       toki_error* error);
/// Number of vectors.
TOKI_API size_t toki_index_size(const toki_index* index);

/// What a prompt is about, made from its token ids alone, the same on every machine: `dimension`
/// values of length 1, or all zero for no tokens.
TOKI_API toki_status toki_embedding_hash(const toki_token* tokens, size_t count, float* values,
                                         size_t dimension, toki_error* error);

/// @}
/// @name Pool: the tokens that each slot holds. For programs that plan for themselves.
/// @{

/// What each slot holds.
typedef struct toki_pool toki_pool;

/// `content`: of all slots, empty or unknown.
TOKI_API toki_status toki_pool_create(size_t slots, toki_content content, toki_pool** pool,
                                      toki_error* error);
/// Gives all its memory back.
TOKI_API void toki_pool_free(toki_pool* pool);
/// Leading tokens of the prompt that the slot is known to hold. REQUIRES: there is such a slot.
TOKI_API size_t toki_pool_common(const toki_pool* pool, uint32_t slot, const toki_scope* scope,
                                 const toki_token* tokens, size_t count);
/// Somebody works in it. TOKI_ERROR_BUSY: somebody does already.
TOKI_API toki_status toki_pool_lease(toki_pool* pool, uint32_t slot, toki_error* error);
/// Nobody works in it any more.
TOKI_API toki_status toki_pool_release(toki_pool* pool, uint32_t slot, toki_error* error);
/// It holds these tokens now, and behind them `unknown_tail` others.
TOKI_API toki_status toki_pool_hold(toki_pool* pool, uint32_t slot, const toki_scope* scope,
                                    const toki_token* tokens, size_t count, uint64_t unknown_tail,
                                    toki_error* error);
/// It is empty now, or holds something unknown.
TOKI_API toki_status toki_pool_set_content(toki_pool* pool, uint32_t slot, toki_content content,
                                           toki_error* error);
/// What it holds. In all of these, TOKI_ERROR_NOT_FOUND: there is no such slot.
TOKI_API toki_status toki_pool_slot(const toki_pool* pool, uint32_t slot, toki_slot_info* info,
                                    toki_error* error);

/// @}
/// @name Token cache: tokens of texts that were tokenized before, so that only what is new is
/// tokenized.
/// @{

/// Texts and their tokens.
typedef struct toki_token_cache toki_token_cache;

/// A special token: its text becomes exactly this token wherever it stands. Never grows.
typedef struct toki_special_token {
  const char* text;  ///< ends with a zero
  toki_token id;     ///< what it becomes
} toki_special_token;

/// One that takes at most `max_bytes` of memory; 0: it remembers nothing.
TOKI_API toki_status toki_token_cache_create(size_t max_bytes, toki_token_cache** cache,
                                             toki_error* error);
/// Gives all its memory back.
TOKI_API void toki_token_cache_free(toki_token_cache* cache);
/// Forgets everything and takes these as the places where a text may be cut; none: only whole texts
/// are found.
TOKI_API toki_status toki_token_cache_reset(toki_token_cache* cache,
                                            const toki_special_token* specials, size_t count,
                                            toki_error* error);
/// Finds the leading part of a text (`length` bytes) whose tokens are known: `known_bytes` of it, 0
/// for nothing, and `known_tokens` of them. At most `capacity` are copied to `tokens`.
/// `start_token`: the tokenizer puts its start token in front; texts with and without are kept
/// apart.
TOKI_API toki_status toki_token_cache_find(toki_token_cache* cache, const char* text, size_t length,
                                           bool start_token, toki_token* tokens, size_t capacity,
                                           size_t* known_bytes, size_t* known_tokens,
                                           toki_error* error);
/// Remembers the tokens of a whole text.
TOKI_API toki_status toki_token_cache_put(toki_token_cache* cache, const char* text, size_t length,
                                          bool start_token, const toki_token* tokens, size_t count,
                                          toki_error* error);
/// Memory held.
TOKI_API size_t toki_token_cache_bytes(const toki_token_cache* cache);

/// @}

#ifdef __cplusplus
}
#endif

#endif
