// Engine and tickets without a store.
#include <math.h>
#include <string.h>

#include "check.h"

static void reuse(void) {
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(2, NULL);
  const prompt first = counting(1, 300);
  const prompt other = counting(5000, 300);
  const prompt next = joined(first, 300, counting(900, 20));
  CHECK(run_request(engine, &backend, NULL, &first).cache_class == TOKI_CLASS_MISS);
  CHECK(run_request(engine, &backend, NULL, &other).cache_class == TOKI_CLASS_MISS);

  const toki_query query = query_of(&next);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  const int32_t slot = toki_ticket_slot(ticket);
  CHECK(slot >= 0 && backend.slots[slot].tokens[0] == 1);
  CHECK(toki_ticket_predicted(ticket) == 300);
  CHECK(toki_ticket_available(ticket) == 300);
  CHECK(toki_ticket_predicted_class(ticket) == TOKI_CLASS_HIT);
  CHECK(toki_ticket_reason(ticket) == TOKI_REASON_SLOT_PREFIX);
  CHECK(toki_ticket_source(ticket) == TOKI_SOURCE_SLOT);
  CHECK(toki_ticket_may_reuse(ticket));
  CHECK(toki_ticket_current(ticket));
  CHECK(strcmp(toki_ticket_trouble(ticket), "") == 0);
  toki_ticket_sent(ticket);
  const toki_token answer[] = {7, 8, 9};
  toki_outcome outcome;
  toki_init(&outcome);
  outcome.ending = TOKI_ENDING_COMPLETED;
  outcome.prompt_tokens = next.count;
  outcome.cached_tokens = (int64_t)compute(&backend, slot, &next);
  outcome.generated = answer;
  outcome.generated_tokens = 3;
  toki_account account;
  toki_init(&account);
  CHECK(toki_ticket_finish(ticket, &outcome, &account, NULL) == TOKI_OK);
  CHECK(account.cache_class == TOKI_CLASS_HIT);
  CHECK(account.reused == 300 && account.predicted == 300);
  CHECK(account.prompt != 0);
  CHECK(!account.tokenization_mismatch && !account.integrity_fault && !account.restore_failed);

  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slot(engine, (uint32_t)slot, &info, NULL) == TOKI_OK);
  CHECK(info.known_tokens == 322 && info.unknown_tail == 0);  // the last one was never computed
  CHECK(stat_of(engine, NULL, "class_hit") == 1);
  CHECK(stat_of(engine, NULL, "reused_tokens_total") == 300);
  toki_engine_free(engine);
}

static void look_before(void) {
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(1, NULL);
  const prompt known = counting(1, 100);
  const prompt asked = joined(known, 80, counting(900, 20));
  const toki_account account = run_request(engine, &backend, NULL, &known);
  const toki_query query = query_of(&asked);
  toki_lookup lookup;
  toki_init(&lookup);
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.available == 80 && lookup.predicted == 80 && lookup.common == 80);
  CHECK(lookup.nearest_id == account.prompt && lookup.nearest_tokens == 100);
  CHECK(lookup.slot == 0 && !lookup.busy);
  CHECK(lookup.predicted_class == TOKI_CLASS_HIT);
  CHECK(lookup.reason == TOKI_REASON_SLOT_PREFIX);
  CHECK(lookup.source == TOKI_SOURCE_SLOT);
  CHECK(stat_of(engine, NULL, "requests_total") == 1);

  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.busy && lookup.slot == -1);
  toki_ticket_abandon(ticket);
  CHECK(stat_of(engine, NULL, "requests_cancelled") == 1);
  toki_engine_free(engine);
}

static void count_up(void* user) {
  ++*(int*)user;
}

static void busy(void) {
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(1, NULL);
  int woken = 0;
  CHECK(toki_engine_on_slot_free(engine, count_up, &woken, NULL) == TOKI_OK);
  const prompt asked = counting(1, 100);
  const toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  toki_ticket* second = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_error error;
  second = ticket;
  CHECK(toki_engine_begin(engine, &query, &second, &error) == TOKI_ERROR_BUSY);
  CHECK(second == NULL);
  CHECK(error.status == TOKI_ERROR_BUSY && error.message[0] != 0);
  CHECK(woken == 0);
  toki_ticket_abandon(ticket);
  CHECK(woken == 1);
  CHECK(toki_engine_on_slot_free(engine, NULL, NULL, NULL) == TOKI_OK);
  run_request(engine, &backend, NULL, &asked);
  CHECK(woken == 1);
  toki_engine_free(engine);
}

static void patience(void) {
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(2, NULL);
  const prompt known = counting(1, 2000);
  run_request(engine, &backend, NULL, &known);
  toki_query query = query_of(&known);
  toki_ticket* first = NULL;
  toki_ticket* second = NULL;
  CHECK(toki_engine_begin(engine, &query, &first, NULL) == TOKI_OK);
  CHECK(toki_ticket_predicted(first) == 2000 || toki_ticket_predicted(first) == 1999);
  query.patience_ms = 60000;
  CHECK(toki_engine_begin(engine, &query, &second, NULL) == TOKI_ERROR_BUSY);
  query.patience_ms = 0;
  CHECK(toki_engine_begin(engine, &query, &second, NULL) == TOKI_OK);
  CHECK(toki_ticket_slot(second) != toki_ticket_slot(first));
  toki_ticket_abandon(first);
  toki_ticket_abandon(second);
  toki_engine_free(engine);
}

// Where nothing tells how long a request takes, nobody waits much longer than computing costs.
static void long_wait(void) {
  toki_engine* engine = new_engine(2, NULL);
  const prompt asked = counting(1, 2000);
  toki_query query = query_of(&asked);
  toki_ticket* first = NULL;
  toki_ticket* second = NULL;
  CHECK(toki_engine_begin(engine, &query, &first, NULL) == TOKI_OK);
  query.patience_ms = 60000;
  CHECK(toki_engine_begin(engine, &query, &second, NULL) == TOKI_ERROR_BUSY);
  query.waited_ms = 50000;
  CHECK(toki_engine_begin(engine, &query, &second, NULL) == TOKI_OK);
  toki_ticket_abandon(first);
  toki_ticket_abandon(second);
  toki_engine_free(engine);
}

// A ticket whose slot the backend chooses keeps all of them until it is known which.
static void backend_chooses(void) {
  toki_engine* engine = new_engine(2, NULL);
  toki_query query;
  toki_init(&query);
  query.bypass = TOKI_REASON_MEDIA;
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_slot(ticket) == -1);
  CHECK(toki_ticket_reason(ticket) == TOKI_REASON_MEDIA);
  CHECK(toki_ticket_predicted_class(ticket) == TOKI_CLASS_BYPASS);
  const prompt asked = counting(1, 50);
  const toki_query other = query_of(&asked);
  toki_ticket* second = NULL;
  CHECK(toki_engine_begin(engine, &other, &second, NULL) == TOKI_ERROR_BUSY);
  toki_ticket_sent(ticket);
  const uint32_t used[] = {1};
  CHECK(toki_ticket_settle(ticket, used, 1, NULL) == TOKI_OK);
  CHECK(toki_ticket_settle(ticket, NULL, 1, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_engine_begin(engine, &other, &second, NULL) == TOKI_OK);
  CHECK(toki_ticket_slot(second) == 0);
  toki_ticket_abandon(second);
  toki_ticket_abandon(ticket);
  toki_engine_free(engine);
}

static void stalled(void) {
  toki_engine* engine = new_engine(1, NULL);
  const prompt asked = counting(1, 50);
  const toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  toki_outcome outcome;
  toki_init(&outcome);
  outcome.ending = TOKI_ENDING_STALLED;
  outcome.cached_tokens = -1;
  CHECK(toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_OK);
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slot(engine, 0, &info, NULL) == TOKI_OK);
  CHECK(info.fenced && !info.leased);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_ERROR_BUSY);
  CHECK(toki_engine_unfence(engine, 0, NULL) == TOKI_OK);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_abandon(ticket);
  toki_engine_free(engine);
}

static void endings(void) {
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(1, NULL);
  const prompt asked = counting(1, 50);
  run_request(engine, &backend, NULL, &asked);
  const toki_query query = query_of(&asked);
  toki_outcome outcome;
  toki_account account;
  toki_init(&outcome);
  toki_init(&account);
  const toki_ending wrong[] = {0, 6, -1, 257};
  for (size_t i = 0; i < 4; ++i) {  // the ticket is gone all the same
    toki_ticket* ticket = NULL;
    CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
    outcome.ending = wrong[i];
    CHECK(toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  }
  CHECK(stat_of(engine, NULL, "requests_cancelled") == 4);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_finish(ticket, NULL, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  account.size = 0;
  outcome.ending = TOKI_ENDING_COMPLETED;
  CHECK(toki_ticket_finish(ticket, &outcome, &account, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_init(&account);

  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  outcome.cached_tokens = -1;
  CHECK(toki_ticket_finish(ticket, &outcome, &account, NULL) == TOKI_OK);
  CHECK(account.cache_class == TOKI_CLASS_UNREPORTED);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  outcome.prompt_tokens = 51;
  outcome.cached_tokens = 0;
  CHECK(toki_ticket_finish(ticket, &outcome, &account, NULL) == TOKI_OK);
  CHECK(account.tokenization_mismatch);
  const toki_ending failures[] = {TOKI_ENDING_REFUSED, TOKI_ENDING_FAILED};
  for (size_t i = 0; i < 2; ++i) {
    CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
    toki_ticket_sent(ticket);
    outcome.ending = failures[i];
    CHECK(toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_OK);
  }
  CHECK(stat_of(engine, NULL, "requests_failed") == 2);
  toki_engine_free(engine);
}

static void client_left(void) {
  toki_engine* engine = new_engine(1, NULL);
  const prompt asked = counting(1, 50);
  const toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  toki_outcome outcome;
  toki_init(&outcome);
  outcome.ending = TOKI_ENDING_CANCELLED;
  outcome.computed = true;
  outcome.generated_tokens = 3;
  CHECK(toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_OK);
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slot(engine, 0, &info, NULL) == TOKI_OK);
  CHECK(info.content == TOKI_CONTENT_KNOWN && info.known_tokens == 50 && info.unknown_tail == 3);
  toki_engine_free(engine);
}

static void restarted(void) {
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(1, NULL);
  const prompt asked = counting(1, 50);
  run_request(engine, &backend, NULL, &asked);
  const toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_engine_backend_restarted(engine, NULL) == TOKI_OK);
  CHECK(!toki_ticket_current(ticket));
  toki_ticket_abandon(ticket);
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slot(engine, 0, &info, NULL) == TOKI_OK);
  CHECK(info.content == TOKI_CONTENT_EMPTY);
  CHECK(stat_of(engine, NULL, "can_save") == 0);
  toki_engine_free(engine);
}

static void pin_seen(void* user, const toki_pin_info* pin) {
  *(toki_pin_info*)user = *pin;
}

static void pins(void) {
  fake_backend backend = {.folder = NULL};
  const toki_backend table = table_of(&backend);
  toki_engine* engine = NULL;
  const prompt kept = counting(1, 300);
  uint64_t id = 0;
  CHECK(toki_engine_create(NULL, &engine, NULL) == TOKI_OK);
  CHECK(toki_engine_pin(engine, NULL, kept.tokens, 300, &id, NULL) == TOKI_ERROR_UNAVAILABLE);
  toki_engine_free(engine);

  engine = new_engine(2, NULL);
  const toki_scope* const served[] = {NULL};
  CHECK(toki_engine_pin(engine, NULL, NULL, 0, &id, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  const prompt too_long = counting(1, MOST_TOKENS);  // the context of a slot
  CHECK(toki_engine_pin(engine, NULL, too_long.tokens, MOST_TOKENS, &id, NULL) ==
        TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_engine_pin(engine, NULL, kept.tokens, 300, &id, NULL) == TOKI_OK);
  CHECK(id != 0);
  CHECK(toki_engine_run_chore(engine, &table, NULL, false, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_engine_serve_pins(engine, served, 1, NULL) == TOKI_OK);
  uint64_t second = 0;
  const prompt too_many = counting(4000, 300);
  CHECK(toki_engine_pin(engine, NULL, too_many.tokens, 300, &second, NULL) == TOKI_ERROR_BUSY);

  while (toki_engine_run_chore(engine, &table, NULL, false, NULL) == TOKI_OK) {
  }
  CHECK(backend.prefills == 1);
  CHECK(stat_of(engine, NULL, "requests_total") == 0);  // a chore is no request
  toki_pin_info seen;
  toki_init(&seen);
  CHECK(toki_engine_visit_pins(engine, pin_seen, &seen, NULL) == TOKI_OK);
  CHECK(seen.id == id && seen.tokens == 300 && seen.state == TOKI_PIN_HELD && seen.by_hand);
  CHECK(seen.slot >= 0);
  for (toki_token first = 5000; first < 9000; first += 1000) {
    const prompt other = counting(first, 300);
    run_request(engine, &backend, NULL, &other);
  }
  const prompt asked = joined(kept, 300, counting(800, 10));
  CHECK(run_request(engine, &backend, NULL, &asked).reused == 300);

  CHECK(toki_engine_unpin(engine, id, NULL) == TOKI_OK);
  CHECK(toki_engine_unpin(engine, id, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_engine_serve_pins(engine, NULL, 0, NULL) == TOKI_OK);
  toki_engine_free(engine);
}

static int64_t seconds(void* user) {
  return *(const int64_t*)user * 1000000000;
}

static void own_clock(void) {
  fake_backend backend = {.folder = NULL};
  int64_t now = 1000;
  toki_engine_options options;
  toki_init(&options);
  options.clock_ns = seconds;
  options.clock_user = &now;
  toki_engine* engine = new_engine(1, &options);
  const prompt asked = counting(1, 50);
  run_request(engine, &backend, NULL, &asked);
  now += 5;
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slot(engine, 0, &info, NULL) == TOKI_OK);
  CHECK(info.used_ago_ms == 5000);
  toki_engine_free(engine);
}

static void isolated(void) {
  const char* const parts[] = {"model", "b"};
  toki_scope* scope = NULL;
  CHECK(toki_scope_create(parts, 2, &scope, NULL) == TOKI_OK);
  toki_engine_options options;
  toki_init(&options);
  options.isolated = true;
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(1, &options);
  const prompt asked = counting(1, 50);
  run_request(engine, &backend, NULL, &asked);
  toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_may_reuse(ticket));
  toki_ticket_abandon(ticket);
  query.scope = scope;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(!toki_ticket_may_reuse(ticket));
  CHECK(toki_ticket_predicted(ticket) == 0);
  toki_ticket_abandon(ticket);
  toki_scope_free(scope);
  toki_engine_free(engine);
}

static void similarity(void) {
  toki_engine_options options;
  toki_init(&options);
  options.tree_block_size = 8;
  options.tree_max_blocks = 40;
  fake_backend backend = {.folder = NULL};
  toki_engine* engine = new_engine(1, &options);
  const prompt known = counting(1, 300);
  const prompt other = counting(5000, 300);
  const prompt asked = joined(known, 280, counting(9000, 40));
  CHECK(!toki_engine_wants_embedding(engine, NULL, asked.tokens, asked.count));
  run_request(engine, &backend, NULL, &known);
  run_request(engine, &backend, NULL, &other);
  CHECK(toki_engine_wants_embedding(engine, NULL, asked.tokens, asked.count));
  float values[384];
  CHECK(toki_embedding_hash(asked.tokens, asked.count, values, 384, NULL) == TOKI_OK);
  toki_query query = query_of(&asked);
  toki_lookup lookup;
  toki_init(&lookup);
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.source != TOKI_SOURCE_SIMILAR);
  query.embedding = values;
  query.embedding_count = 384;
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.source == TOKI_SOURCE_SIMILAR);
  CHECK(lookup.available == 280);
  query.embedding_model = "minilm";  // of which nothing is known
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.source != TOKI_SOURCE_SIMILAR);
  query.embedding = NULL;
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_engine_free(engine);
}

static void engine_options(void) {
  toki_engine* engine = NULL;
  toki_engine_options options;
  toki_init(&options);
  options.tree_block_size = 1000;
  CHECK(toki_engine_create(&options, &engine, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(engine == NULL);
  toki_init(&options);
  options.prefill_ms_per_token = NAN;
  CHECK(toki_engine_create(&options, &engine, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(engine == NULL);

  toki_init(&options);
  options.min_reuse_for_hit = 90;
  options.max_prompts = 1;
  options.prefill_ms_per_token = 3;
  fake_backend backend = {.folder = NULL};
  engine = new_engine(1, &options);
  const prompt known = counting(1, 80);
  const prompt more = joined(known, 80, counting(900, 40));
  run_request(engine, &backend, NULL, &known);
  CHECK(run_request(engine, &backend, NULL, &more).cache_class == TOKI_CLASS_SOFT_HIT);
  CHECK(stat_of(engine, NULL, "prompts_known") == 1);
  CHECK(stat_of(engine, NULL, "prefill_ms_per_token") == 3);
  size_t gone = 0;
  CHECK(toki_engine_forget_all(engine, &gone, NULL) == TOKI_OK);
  CHECK(gone == 1);
  CHECK(stat_of(engine, NULL, "prompts_known") == 0);
  toki_engine_free(engine);

  toki_init(&options);
  options.exact_batch = 64;
  engine = new_engine(2, &options);
  uint64_t id = 0;
  CHECK(toki_engine_pin(engine, NULL, known.tokens, 80, &id, NULL) == TOKI_ERROR_UNSUPPORTED);
  toki_engine_free(engine);
}

static void other_options(void) {
  fake_backend backend = {.folder = NULL};
  const toki_backend table = table_of(&backend);
  toki_engine_options options;
  toki_init(&options);
  options.hot_pins = 1;
  options.tree_block_size = 8;
  options.tree_max_bytes = 64 << 10;
  options.max_prompt_bytes = 32 << 10;
  options.good_match = 0.01;
  toki_engine* engine = new_engine(3, &options);
  const toki_scope* const served[] = {NULL};
  CHECK(toki_engine_serve_pins(engine, served, 1, NULL) == TOKI_OK);
  const prompt system = counting(1, 400);
  for (toki_token i = 0; i < 12; ++i) {
    const prompt one = joined(system, 400, counting(5000 + 100 * i, 40));
    run_request(engine, &backend, NULL, &one);
  }
  while (toki_engine_run_chore(engine, &table, NULL, false, NULL) == TOKI_OK) {
  }
  CHECK(stat_of(engine, NULL, "pins_hot") == 1);
  toki_pin_info seen;
  toki_init(&seen);
  CHECK(toki_engine_visit_pins(engine, pin_seen, &seen, NULL) == TOKI_OK);
  CHECK(seen.tokens == 400 && !seen.by_hand);

  for (toki_token i = 0; i < 12; ++i) {
    const prompt filler = counting(100000 + 2000 * i, 1000);
    run_request(engine, &backend, NULL, &filler);
  }
  CHECK(stat_of(engine, NULL, "tree_blocks") < 1024);  // of 1500: 64 bytes each, at least
  CHECK(stat_of(engine, NULL, "prompt_bytes") <= 32 << 10);
  CHECK(stat_of(engine, NULL, "prompts_known") < 20);
  const prompt asked = joined(counting(122000, 20), 20, counting(9000, 80));
  CHECK(!toki_engine_wants_embedding(engine, NULL, asked.tokens, asked.count));
  toki_engine_free(engine);
}

// What a completed request tells beside its tokens.
static void outcomes(void) {
  toki_engine* engine = new_engine(1, NULL);
  const prompt asked = counting(1, 100);
  const toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  toki_outcome outcome;
  toki_init(&outcome);
  outcome.ending = TOKI_ENDING_COMPLETED;
  outcome.prompt_tokens = 100;
  outcome.prompt_ms = 700;
  outcome.truncated = true;
  CHECK(toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_OK);
  CHECK(stat_of(engine, NULL, "prefill_ms_per_token") == 7);
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slot(engine, 0, &info, NULL) == TOKI_OK);
  CHECK(info.content == TOKI_CONTENT_UNKNOWN);

  outcome.truncated = false;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  CHECK(toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_OK);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  outcome.cached_tokens = 1000;  // more than the prompt has
  toki_account account;
  toki_init(&account);
  CHECK(toki_ticket_finish(ticket, &outcome, &account, NULL) == TOKI_OK);
  CHECK(account.integrity_fault);
  toki_engine_free(engine);
}

static void facts_about(toki_engine* engine, bool known, toki_content content, double own_cache) {
  toki_backend_facts facts;
  toki_init(&facts);
  facts.slots = 2;
  facts.slots_empty = facts.slots_only = known;
  CHECK(toki_engine_backend_changed(engine, &facts, NULL) == TOKI_OK);
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_engine_slots(engine) == 2);
  CHECK(toki_engine_slot(engine, 1, &info, NULL) == TOKI_OK);
  CHECK(info.content == content);
  CHECK(stat_of(engine, NULL, "own_cache") == own_cache);
}

static void backends(void) {
  toki_engine* engine = NULL;
  CHECK(toki_engine_create(NULL, &engine, NULL) == TOKI_OK);
  CHECK(toki_engine_slots(engine) == 0);
  facts_about(engine, true, TOKI_CONTENT_EMPTY, 0);
  facts_about(engine, false, TOKI_CONTENT_UNKNOWN, 1);
  toki_engine_free(engine);
}

typedef struct stats_seen {
  size_t rows;
  size_t counters;
  double slots;
} stats_seen;

static void stat_seen(void* user, const toki_stat* stat) {
  stats_seen* seen = user;
  ++seen->rows;
  seen->counters += stat->counter ? 1 : 0;
  CHECK(stat->size == sizeof(*stat));
  CHECK(strlen(stat->name) > 0 && strlen(stat->name) < 40 && strlen(stat->help) < 120);
  if (strcmp(stat->name, "slots_total") == 0) {
    seen->slots = stat->value;
  }
}

static void statistics(void) {
  toki_engine* engine = new_engine(3, NULL);
  CHECK(toki_engine_slots(engine) == 3);
  stats_seen seen = {.rows = 0};
  CHECK(toki_stats_visit(engine, NULL, stat_seen, &seen, NULL) == TOKI_OK);
  CHECK(seen.rows > 100 && seen.counters > 40 && seen.counters < seen.rows);
  CHECK(seen.slots == 3);
  double value = 5;
  CHECK(toki_stats_get(engine, NULL, "no_such", &value, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(value == 5);
  CHECK(stat_of(NULL, NULL, "slots_total") == 0);
  CHECK(toki_stats_get(engine, NULL, NULL, &value, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_stats_visit(engine, NULL, NULL, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_engine_free(engine);
}

static void null_arguments(void) {
  toki_engine* engine = new_engine(1, NULL);
  const prompt asked = counting(1, 50);
  toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  toki_slot_info info;
  toki_lookup lookup;
  uint64_t id = 0;
  const toki_status invalid = TOKI_ERROR_INVALID_ARGUMENT;
  toki_init(&info);
  toki_init(&lookup);
  CHECK(toki_engine_create(NULL, NULL, NULL) == invalid);
  CHECK(toki_engine_backend_changed(NULL, NULL, NULL) == invalid);
  CHECK(toki_engine_backend_changed(engine, NULL, NULL) == invalid);
  CHECK(toki_engine_backend_restarted(NULL, NULL) == invalid);
  CHECK(toki_engine_set_abilities(engine, NULL, NULL) == invalid);
  CHECK(toki_engine_use_store(NULL, NULL, NULL) == invalid);
  CHECK(toki_engine_on_slot_free(NULL, NULL, NULL, NULL) == invalid);
  CHECK(toki_engine_begin(NULL, &query, &ticket, NULL) == invalid);
  CHECK(toki_engine_begin(engine, NULL, &ticket, NULL) == invalid);
  CHECK(toki_engine_begin(engine, &query, NULL, NULL) == invalid);
  CHECK(toki_engine_lookup(NULL, &query, &lookup, NULL) == invalid);
  CHECK(toki_engine_lookup(engine, &query, NULL, NULL) == invalid);
  CHECK(toki_engine_slot(NULL, 0, &info, NULL) == invalid);
  CHECK(toki_engine_slot(engine, 1, &info, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_engine_unfence(NULL, 0, NULL) == invalid);
  CHECK(toki_engine_forget_all(NULL, NULL, NULL) == invalid);
  CHECK(toki_engine_pin(engine, NULL, NULL, 3, &id, NULL) == invalid);
  CHECK(toki_engine_pin(engine, NULL, asked.tokens, 3, NULL, NULL) == invalid);
  CHECK(toki_engine_unpin(NULL, 1, NULL) == invalid);
  CHECK(toki_engine_serve_pins(engine, NULL, 1, NULL) == invalid);
  CHECK(toki_engine_visit_pins(engine, NULL, NULL, NULL) == invalid);
  CHECK(toki_engine_run_chore(NULL, NULL, NULL, false, NULL) == invalid);
  CHECK(toki_ticket_run_steps(NULL, NULL, NULL, NULL) == invalid);
  CHECK(toki_ticket_finish(NULL, NULL, NULL, NULL) == invalid);
  query.tokens = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == invalid);
  query = query_of(&asked);
  query.bypass = TOKI_REASON_COPIED;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == invalid);
  query.bypass = 16;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == invalid);
  query = query_of(&asked);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_run_steps(ticket, NULL, NULL, NULL) == invalid);
  toki_engine_free(engine);  // the ticket keeps what it needs
  CHECK(toki_ticket_slot(ticket) == 0);
  toki_ticket_abandon(ticket);
}

void engine_tests(void) {
  run_case("a prompt that goes on from another runs in its slot and reuses it", reuse);
  run_case("a lookup says what begin would do, and does nothing", look_before);
  run_case("a busy engine says so, and wakes who waits with his own data", busy);
  run_case("a patient request waits for the slot that fits better", patience);
  run_case("what it has waited already counts", long_wait);
  run_case("where the backend chooses the slot, the others are given back", backend_chooses);
  run_case("a slot that stalled gets no work until the backend says so", stalled);
  run_case("every ending counts, an impossible one as cancelled", endings);
  run_case("a client that left leaves the prompt and an unknown tail", client_left);
  run_case("a ticket knows that the backend was started again", restarted);
  run_case("a pinned prefix keeps its slot", pins);
  run_case("the clock is the program's where it gives one", own_clock);
  run_case("with isolation nothing of another scope may be reused", isolated);
  run_case("similarity finds what the tree has forgotten", similarity);
  run_case("an engine has the options that it was given", engine_options);
  run_case("budgets, hot pins and what a good match is are chosen", other_options);
  run_case("rate, truncation and impossible reuse are told by the outcome", outcomes);
  run_case("what is not said of a backend is not taken for granted", backends);
  run_case("statistics by name, and all of them", statistics);
  run_case("what is NULL and must not be is refused", null_arguments);
}
