// The C API: engine, tickets, and the backend that a program lends them.
#include <toki/backend.hpp>
#include <toki/blocking_driver.hpp>
#include <toki/embedding.hpp>
#include <toki/engine.hpp>
#include <toki/stats.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api.hpp"

using namespace toki;
using namespace toki::c;

namespace {

Clock clock_of(const toki_engine_options& options) {
  if (options.clock_ns == nullptr) {
    return [] { return std::chrono::steady_clock::now(); };
  }
  return [call = options.clock_ns, user = options.clock_user] {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(call(user)));
  };
}

EngineOptions options_of(const toki_engine_options& given) {
  EngineOptions options;
  options.tree.block_size = given_or(given.tree_block_size, options.tree.block_size);
  options.tree.max_blocks = given_or(given.tree_max_blocks, options.tree.max_blocks);
  options.tree.max_bytes = given.tree_max_bytes;
  options.max_prompts = given_or(given.max_prompts, options.max_prompts);
  options.max_prompt_bytes = given_or(given.max_prompt_bytes, options.max_prompt_bytes);
  options.good_match = given_or(given.good_match, options.good_match);
  options.min_reuse_for_hit = given_or(given.min_reuse_for_hit, options.min_reuse_for_hit);
  options.hot_pins = given.hot_pins;
  options.prefill_ms_per_token = given_or(given.prefill_ms_per_token, options.prefill_ms_per_token);
  options.exact_batch = given.exact_batch;
  options.isolated = given.isolated;
  return options;
}

// A query and the embedding that it points to.
struct HeldQuery {
  Query query;
  Embedding embedding;
};

toki_status read_query(const toki_query* given, HeldQuery& held, toki_error* error) {
  toki_query query{};
  if (const toki_status status = read(given, query, error)) {
    return status;
  }
  if (!is_list(query.tokens, query.token_count) ||
      !is_list(query.boundaries, query.boundary_count) ||
      !is_list(query.embedding, query.embedding_count)) {
    return missing(error);
  }
  if (query.bypass != 0 &&
      (query.bypass < TOKI_REASON_CACHE_PROMPT_FALSE || query.bypass > TOKI_REASON_NOT_CACHEABLE)) {
    return wrong(error, "this reason is none for a bypass");
  }
  Query& out = held.query;
  out.scope = scope_of(query.scope);
  out.tokens = span_of(query.tokens, query.token_count);
  out.boundaries = {query.boundaries, query.boundary_count};
  out.waited = std::chrono::milliseconds(query.waited_ms);
  out.patience = std::chrono::milliseconds(query.patience_ms);
  out.lead_patience = std::chrono::milliseconds(query.lead_patience_ms);
  out.from_ids = query.from_ids;
  out.followed = query.followed;
  if (query.bypass != 0) {
    out.bypass = static_cast<Reason>(query.bypass);
  }
  if (query.embedding != nullptr) {
    const bool hash = query.embedding_model == nullptr;
    held.embedding.kind = hash ? EmbeddingKind::hash : EmbeddingKind::model;
    held.embedding.values.assign(query.embedding, query.embedding + query.embedding_count);
    held.embedding.model = hash ? "" : query.embedding_model;
    out.embedding = &held.embedding;
  }
  return kOk;
}

Error error_of(toki_status status, const toki_error& error) {
  const bool known = status >= TOKI_ERROR_NOT_FOUND && status <= TOKI_ERROR_NO_SPACE;
  return {known ? static_cast<Errc>(status) : Errc::backend, error.message};
}

// The program's functions as a Backend.
class LentBackend final : public Backend {
 public:
  explicit LentBackend(const toki_backend& table) : table_(table) {}

  void prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) override {
    auto result = sized<toki_prefilled>();
    toki_error error{};
    if (table_.prefill == nullptr) {
      return done(cannot());
    }
    const toki_status status =
        table_.prefill(table_.user, slot.index, prompt.data(), prompt.size(), &result, &error);
    status == TOKI_OK
        ? done(Prefilled{.cached = result.cached, .computed = result.computed, .ms = result.ms})
        : done(error_of(status, error));
  }
  void save(SlotId slot, std::string_view name, Completion<Timed> done) override {
    move_state(table_.save, slot, name, std::move(done));
  }
  void restore(SlotId slot, std::string_view name, Completion<Timed> done) override {
    move_state(table_.restore, slot, name, std::move(done));
  }
  void erase(SlotId slot, Completion<Done> done) override {
    toki_error error{};
    if (table_.erase == nullptr) {
      return done(cannot());
    }
    const toki_status status = table_.erase(table_.user, slot.index, &error);
    status == TOKI_OK ? done(Done{}) : done(error_of(status, error));
  }

 private:
  static Error cannot() { return {Errc::unsupported, "the program's backend cannot do it"}; }

  void move_state(decltype(toki_backend::save) call, SlotId slot, std::string_view name,
                  Completion<Timed> done) {
    auto result = sized<toki_timed>();
    toki_error error{};
    if (call == nullptr) {
      return done(cannot());
    }
    const toki_status status =
        call(table_.user, slot.index, std::string(name).c_str(), &result, &error);
    status == TOKI_OK ? done(Timed{.tokens = result.tokens, .ms = result.ms})
                      : done(error_of(status, error));
  }

  const toki_backend table_;
};

void run(Ticket& ticket, const toki_backend& table, toki_store* store) {
  LentBackend backend(table);
  run_steps(ticket, backend, store != nullptr ? store->store.get() : nullptr);
}

}  // namespace

toki_status toki_engine_create(const toki_engine_options* given, toki_engine** engine,
                               toki_error* error) {
  toki_engine_options options{};
  if (const toki_status status = options_for(engine, given, options, error)) {
    return status;
  }
  const EngineOptions ours = options_of(options);
  if (const toki_status status = check_tree(ours.tree, error)) {
    return status;
  }
  if (!std::isfinite(ours.prefill_ms_per_token) || ours.prefill_ms_per_token < 0) {
    return wrong(error, "prefill_ms_per_token is no time");
  }
  return made(engine, error, [&] { return Engine(ours, clock_of(options)); });
}

void toki_engine_free(toki_engine* engine) {
  delete engine;
}

toki_status toki_engine_backend_changed(toki_engine* engine, const toki_backend_facts* given,
                                        toki_error* error) {
  toki_backend_facts facts{};
  if (const toki_status status = engine == nullptr ? missing(error) : read(given, facts, error)) {
    return status;
  }
  return guarded(error, [&] {
    engine->engine.backend_changed(
        {.slots = facts.slots,
         .slots_used = std::vector<bool>(facts.slots_empty ? facts.slots : 0, false),
         .context = facts.context,
         .own_cache = !facts.slots_only});
    return kOk;
  });
}

toki_status toki_engine_backend_restarted(toki_engine* engine, toki_error* error) {
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    engine->engine.backend_restarted();
    return kOk;
  });
}

toki_status toki_engine_set_abilities(toki_engine* engine, const toki_abilities* given,
                                      toki_error* error) {
  toki_abilities abilities{};
  if (const toki_status status =
          engine == nullptr ? missing(error) : read(given, abilities, error)) {
    return status;
  }
  return guarded(error, [&] {
    engine->engine.set_abilities(
        {.saves = abilities.saves, .cuts = abilities.cuts, .rewinds = !abilities.cannot_rewind});
    return kOk;
  });
}

toki_status toki_engine_use_store(toki_engine* engine, toki_store* store, toki_error* error) {
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    if (store == nullptr) {
      engine->engine.use_store(nullptr);
      return kOk;
    }
    engine->engine.use_store([held = store->store](const Scope& scope, TokenSpan tokens) {
      return held->match(scope, tokens);
    });
    return kOk;
  });
}

toki_status toki_engine_on_slot_free(toki_engine* engine, void (*wake)(void* user), void* user,
                                     toki_error* error) {
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    engine->engine.on_slot_free(wake == nullptr ? std::function<void()>()
                                                : [wake, user] { wake(user); });
    return kOk;
  });
}

toki_status toki_engine_begin(toki_engine* engine, const toki_query* query, toki_ticket** ticket,
                              toki_error* error) {
  if (const toki_status status = cleared(ticket, error)) {
    return status;
  }
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    HeldQuery held;
    if (const toki_status status = read_query(query, held, error)) {
      return status;
    }
    auto begun = engine->engine.begin(held.query);
    return begun ? made(ticket, error, [&] { return std::move(*begun); })
                 : fail(error, begun.error());
  });
}

toki_status toki_engine_lookup(const toki_engine* engine, const toki_query* query,
                               toki_lookup* lookup, toki_error* error) {
  if (const toki_status status = engine == nullptr ? missing(error) : writable(lookup, error)) {
    return status;
  }
  return guarded(error, [&] {
    HeldQuery held;
    if (const toki_status status = read_query(query, held, error)) {
      return status;
    }
    const Lookup found = engine->engine.lookup(held.query);
    auto out = sized<toki_lookup>();
    out.available = found.available;
    out.predicted = found.predicted;
    out.nearest_id = found.nearest ? found.nearest->id : 0;
    out.nearest_tokens = found.nearest ? found.nearest->tokens : 0;
    out.common = found.common;
    out.slot = found.slot ? static_cast<std::int32_t>(*found.slot) : -1;
    out.predicted_class = static_cast<toki_class>(found.predicted_class);
    out.reason = static_cast<toki_reason>(found.reason);
    out.source = static_cast<toki_source>(found.source);
    out.busy = found.busy;
    write(out, lookup);
    return kOk;
  });
}

bool toki_engine_wants_embedding(const toki_engine* engine, const toki_scope* scope,
                                 const toki_token* tokens, size_t count) {
  TOKI_CHECK(engine != nullptr);
  bool wants = false;
  guarded(nullptr, [&] {
    wants = engine->engine.wants_embedding(scope_of(scope), span_of(tokens, count));
    return kOk;
  });
  return wants;
}

size_t toki_engine_slots(const toki_engine* engine) {
  TOKI_CHECK(engine != nullptr);
  return engine->engine.slots();
}

toki_status toki_engine_slot(const toki_engine* engine, uint32_t slot, toki_slot_info* info,
                             toki_error* error) {
  if (const toki_status status = engine == nullptr ? missing(error) : writable(info, error)) {
    return status;
  }
  return guarded(error, [&] {
    const auto table = engine->engine.slot_table();
    if (slot >= table.size()) {
      return fail(error, TOKI_ERROR_NOT_FOUND, "there is no such slot");
    }
    write(info_of(table[slot]), info);
    return kOk;
  });
}

toki_status toki_engine_unfence(toki_engine* engine, uint32_t slot, toki_error* error) {
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    engine->engine.unfence(slot);
    return kOk;
  });
}

toki_status toki_engine_forget_all(toki_engine* engine, size_t* prompts, toki_error* error) {
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    const std::size_t gone = engine->engine.forget_all();
    if (prompts != nullptr) {
      *prompts = gone;
    }
    return kOk;
  });
}

toki_status toki_engine_pin(toki_engine* engine, const toki_scope* scope, const toki_token* tokens,
                            size_t count, uint64_t* id, toki_error* error) {
  if (engine == nullptr || id == nullptr || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    const auto pinned = engine->engine.pin(scope_of(scope), span_of(tokens, count));
    if (!pinned) {
      return fail(error, pinned.error());
    }
    *id = *pinned;
    return kOk;
  });
}

toki_status toki_engine_unpin(toki_engine* engine, uint64_t id, toki_error* error) {
  return engine == nullptr ? missing(error) : guarded(error, [&] {
    return engine->engine.unpin(id)
               ? kOk
               : fail(error, TOKI_ERROR_NOT_FOUND, "there is no pin of this number");
  });
}

toki_status toki_engine_serve_pins(toki_engine* engine, const toki_scope* const* scopes,
                                   size_t count, toki_error* error) {
  if (engine == nullptr || !is_list(scopes, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    std::vector<Scope> served;
    for (std::size_t i = 0; i < count; ++i) {
      served.push_back(scope_of(scopes[i]));
    }
    engine->engine.serve_pins(std::move(served));
    return kOk;
  });
}

toki_status toki_engine_visit_pins(const toki_engine* engine,
                                   void (*visit)(void* user, const toki_pin_info* pin), void* user,
                                   toki_error* error) {
  if (engine == nullptr || visit == nullptr) {
    return missing(error);
  }
  return guarded(error, [&] {
    for (const PinInfo& pin : engine->engine.pins()) {
      auto info = sized<toki_pin_info>();
      info.id = pin.id;
      info.tokens = pin.tokens;
      info.slot = pin.slot ? static_cast<std::int32_t>(*pin.slot) : -1;
      info.state = static_cast<toki_pin_state>(pin.state);
      info.by_hand = pin.by_hand;
      visit(user, &info);
    }
    return kOk;
  });
}

toki_status toki_engine_run_chore(toki_engine* engine, const toki_backend* backend,
                                  toki_store* store, bool while_busy, toki_error* error) {
  toki_backend table{};
  if (const toki_status status = engine == nullptr ? missing(error) : read(backend, table, error)) {
    return status;
  }
  return guarded(error, [&] {
    auto chore = engine->engine.begin_chore(while_busy);
    if (!chore) {
      return fail(error, chore.error());
    }
    run(*chore, table, store);
    std::move(*chore).dismiss({}, SlotContent::unknown);
    return kOk;
  });
}

toki_status toki_ticket_run_steps(toki_ticket* ticket, const toki_backend* backend,
                                  toki_store* store, toki_error* error) {
  toki_backend table{};
  if (const toki_status status = ticket == nullptr ? missing(error) : read(backend, table, error)) {
    return status;
  }
  return guarded(error, [&] {
    run(ticket->ticket, table, store);
    return kOk;
  });
}

int32_t toki_ticket_slot(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  const auto slot = ticket->ticket.slot();
  return slot ? static_cast<std::int32_t>(slot->index) : -1;
}
uint64_t toki_ticket_predicted(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return ticket->ticket.predicted();
}
uint64_t toki_ticket_available(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return ticket->ticket.available();
}
toki_class toki_ticket_predicted_class(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return static_cast<toki_class>(ticket->ticket.predicted_class());
}
toki_reason toki_ticket_reason(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return static_cast<toki_reason>(ticket->ticket.reason());
}
toki_source toki_ticket_source(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return static_cast<toki_source>(ticket->ticket.source());
}
bool toki_ticket_may_reuse(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return ticket->ticket.may_reuse();
}
bool toki_ticket_current(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return ticket->ticket.current();
}
const char* toki_ticket_trouble(const toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  return ticket->ticket.trouble().c_str();
}
void toki_ticket_sent(toki_ticket* ticket) {
  TOKI_CHECK(ticket != nullptr);
  ticket->ticket.sent();
}

toki_status toki_ticket_settle(toki_ticket* ticket, const uint32_t* slots, size_t count,
                               toki_error* error) {
  if (ticket == nullptr || !is_list(slots, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    ticket->ticket.settle({slots, count});
    return kOk;
  });
}

toki_status toki_ticket_finish(toki_ticket* ticket, const toki_outcome* given,
                               toki_account* account, toki_error* error) {
  const std::unique_ptr<toki_ticket> owned(ticket);
  toki_outcome outcome{};
  toki_status status = ticket == nullptr ? missing(error) : read(given, outcome, error);
  if (status == TOKI_OK && account != nullptr) {
    status = writable(account, error);
  }
  if (status != TOKI_OK) {
    return status;
  }
  if (outcome.ending < TOKI_ENDING_COMPLETED || outcome.ending > TOKI_ENDING_STALLED) {
    return wrong(error, "the outcome does not say how the request ended");
  }
  return guarded(error, [&] {
    Outcome told{.ending = static_cast<Ending>(outcome.ending - TOKI_ENDING_COMPLETED),
                 .computed = outcome.computed,
                 .prompt_ms = outcome.prompt_ms,
                 .generated_tokens = outcome.generated_tokens,
                 .truncated = outcome.truncated};
    if (outcome.prompt_tokens > 0) {
      told.prompt_tokens = outcome.prompt_tokens;
    }
    if (outcome.cached_tokens >= 0) {
      told.cached_tokens = static_cast<std::uint64_t>(outcome.cached_tokens);
    }
    if (outcome.generated != nullptr) {
      told.generated = {outcome.generated, outcome.generated_tokens};
    }
    const Account made_of_it = std::move(owned->ticket).finish(told);
    if (account != nullptr) {
      auto out = sized<toki_account>();
      out.predicted = made_of_it.predicted;
      out.reused = made_of_it.reused;
      out.prompt = made_of_it.prompt;
      out.cache_class = static_cast<toki_class>(made_of_it.cache_class);
      out.tokenization_mismatch = made_of_it.tokenization_mismatch;
      out.integrity_fault = made_of_it.integrity_fault;
      out.restore_failed = made_of_it.restore_failed;
      write(out, account);
    }
    return kOk;
  });
}

void toki_ticket_abandon(toki_ticket* ticket) {
  delete ticket;
}
