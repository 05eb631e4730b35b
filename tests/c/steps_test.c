// What a ticket asks of the backend and the store before its request.
#include <string.h>

#include "check.h"

static void displaced_prompt_comes_back(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  toki_engine* engine = new_engine(1, NULL);
  CHECK(toki_engine_use_store(engine, store, NULL) == TOKI_OK);
  const prompt a = counting(1, 1500);
  const prompt b = counting(5000, 1500);
  run_request(engine, &backend, store, &a);
  run_request(engine, &backend, store, &b);
  CHECK(backend.saves == 1 && backend.restores == 0);

  const prompt again = joined(a, 1400, counting(9000, 50));
  const toki_query query = query_of(&again);
  toki_lookup lookup;
  toki_init(&lookup);
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.source == TOKI_SOURCE_DISK && lookup.reason == TOKI_REASON_RESTORED);
  const toki_account account = run_request(engine, &backend, store, &again);
  CHECK(backend.restores == 1);
  CHECK(account.reused == 1400 && account.predicted == 1400);
  CHECK(account.cache_class == TOKI_CLASS_HIT);
  CHECK(stat_of(engine, store, "restores_total") == 1);
  CHECK(stat_of(engine, store, "kv_tokens") >= 1500);
  CHECK(stat_of(NULL, store, "kv_segments") > 0);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

// The agents that a program ran yesterday are there today.
static void restart(void) {
  const folder where = new_folder();
  const prompt a = counting(1, 600);
  {
    toki_store* store = open_store(&where);
    fake_backend backend = {.folder = where.slots};
    const toki_backend table = table_of(&backend);
    toki_engine* engine = new_engine(2, NULL);
    toki_engine_use_store(engine, store, NULL);
    run_request(engine, &backend, store, &a);
    while (toki_engine_run_chore(engine, &table, store, false, NULL) == TOKI_OK) {
    }
    CHECK(backend.saves == 1);
    toki_engine_free(engine);
    toki_store_close(store);
  }
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  toki_engine* engine = new_engine(2, NULL);
  toki_engine_use_store(engine, store, NULL);
  CHECK(toki_store_match(store, NULL, a.tokens, a.count) == 600);
  const prompt next = joined(a, 600, counting(9000, 30));
  CHECK(run_request(engine, &backend, store, &next).reused == 600);
  CHECK(backend.restores == 1);
  CHECK(toki_engine_use_store(engine, NULL, NULL) == TOKI_OK);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

// An idle slot may be saved beside a request that runs, if the program says so.
static void saves_beside_requests(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  const toki_backend table = table_of(&backend);
  toki_engine* engine = new_engine(2, NULL);
  toki_engine_use_store(engine, store, NULL);
  const prompt idle = counting(1, 1000);
  const prompt runs = counting(5000, 1000);
  run_request(engine, &backend, store, &idle);
  const toki_query query = query_of(&runs);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_engine_run_chore(engine, &table, store, false, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_engine_run_chore(engine, &table, store, true, NULL) == TOKI_OK);
  CHECK(toki_store_match(store, NULL, idle.tokens, idle.count) == 1000);
  toki_ticket_abandon(ticket);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

static void broken_restore(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  const toki_backend table = table_of(&backend);
  toki_engine* engine = new_engine(1, NULL);
  toki_engine_use_store(engine, store, NULL);
  const prompt a = counting(1, 1500);
  const prompt b = counting(5000, 1500);
  run_request(engine, &backend, store, &a);
  run_request(engine, &backend, store, &b);
  backend.broken = 12345;  // no status of ours: it counts as a failure of the backend
  const toki_query query = query_of(&a);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_predicted(ticket) > 0);
  CHECK(toki_ticket_run_steps(ticket, &table, store, NULL) == TOKI_OK);
  CHECK(toki_ticket_predicted(ticket) == 0);
  CHECK(backend.restores == 1 && backend.erases == 1);
  CHECK(stat_of(engine, store, "restore_failures_total") == 1);
  toki_ticket_abandon(ticket);

  backend.broken = TOKI_ERROR_UNAVAILABLE;
  run_request(engine, &backend, store, &b);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_run_steps(ticket, &table, store, NULL) == TOKI_OK);
  toki_ticket_abandon(ticket);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

static toki_status refuse(void* user, uint32_t slot, const char* file, toki_timed* done,
                          toki_error* error) {
  (void)user;
  (void)slot;
  (void)file;
  (void)done;
  strcpy(error->message, "no restores on Mondays");
  return TOKI_ERROR_BACKEND;
}

static void trouble(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  toki_backend table = table_of(&backend);
  toki_engine* engine = new_engine(1, NULL);
  toki_engine_use_store(engine, store, NULL);
  const prompt a = counting(1, 1500);
  const prompt b = counting(5000, 1500);
  run_request(engine, &backend, store, &a);
  run_request(engine, &backend, store, &b);
  table.restore = refuse;
  const toki_query query = query_of(&a);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_run_steps(ticket, &table, store, NULL) == TOKI_OK);
  CHECK(strcmp(toki_ticket_trouble(ticket), "no restores on Mondays") == 0);
  toki_ticket_abandon(ticket);

  toki_backend nothing;  // a program that can do none of it
  toki_init(&nothing);
  run_request(engine, &backend, store, &b);
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_run_steps(ticket, &nothing, store, NULL) == TOKI_OK);
  CHECK(toki_ticket_predicted(ticket) == 0);
  CHECK(strstr(toki_ticket_trouble(ticket), "cannot") != NULL);
  toki_ticket_abandon(ticket);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

// A program that does what is due until nothing is left comes to an end, whatever fails.
static void chores_end(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  toki_backend table = table_of(&backend);
  table.save = refuse;
  toki_engine* engine = new_engine(4, NULL);
  toki_engine_use_store(engine, store, NULL);
  for (toki_token first = 0; first < 40000; first += 10000) {
    const prompt one = counting(first, 1000);
    run_request(engine, &backend, store, &one);
  }
  int chores = 0;
  while (chores < 1000 && toki_engine_run_chore(engine, &table, store, true, NULL) == TOKI_OK) {
    ++chores;
  }
  CHECK(chores > 0 && chores < 10);
  CHECK(stat_of(engine, store, "save_failures_total") == chores);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

// A model that cannot rewind: a snapshot is kept where the system message ends.
static void boundaries(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  const toki_backend table = table_of(&backend);
  toki_engine* engine = new_engine(2, NULL);
  toki_abilities abilities;
  toki_init(&abilities);
  abilities.saves = true;
  abilities.cannot_rewind = true;
  CHECK(toki_engine_set_abilities(engine, &abilities, NULL) == TOKI_OK);
  CHECK(stat_of(engine, store, "can_rewind") == 0);
  toki_engine_use_store(engine, store, NULL);
  const prompt a = counting(1, 1000);
  const uint64_t ends[] = {600};
  toki_query query = query_of(&a);
  query.from_ids = true;
  query.boundaries = ends;
  query.boundary_count = 1;
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_run_steps(ticket, &table, store, NULL) == TOKI_OK);
  CHECK(backend.prefills >= 1 && backend.saves >= 1);
  toki_ticket_abandon(ticket);
  const prompt b = joined(a, 600, counting(5000, 100));
  CHECK(toki_store_match(store, NULL, b.tokens, b.count) == 600);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

// Others wait for the same cold beginning: it is computed in a step of its own.
static void leader(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  fake_backend backend = {.folder = where.slots};
  const toki_backend table = table_of(&backend);
  toki_engine* engine = new_engine(2, NULL);
  toki_engine_use_store(engine, store, NULL);
  const prompt a = counting(1, 1500);
  toki_query query = query_of(&a);
  query.from_ids = true;
  query.followed = true;
  toki_ticket* first = NULL;
  toki_ticket* second = NULL;
  CHECK(toki_engine_begin(engine, &query, &first, NULL) == TOKI_OK);
  const prompt b = joined(a, 1400, counting(5000, 100));
  query = query_of(&b);
  query.from_ids = true;
  query.lead_patience_ms = 60000;
  CHECK(toki_engine_begin(engine, &query, &second, NULL) == TOKI_ERROR_BUSY);
  CHECK(toki_ticket_run_steps(first, &table, store, NULL) == TOKI_OK);
  CHECK(backend.prefills == 1 && backend.saves == 1);
  CHECK(toki_engine_begin(engine, &query, &second, NULL) == TOKI_OK);
  CHECK(toki_ticket_predicted(second) == 1400);
  toki_ticket_abandon(first);
  toki_ticket_abandon(second);
  toki_engine_free(engine);
  toki_store_close(store);
  remove_folder(&where);
}

void steps_tests(void) {
  run_case("what was displaced is saved, and restored when it is asked for again",
           displaced_prompt_comes_back);
  run_case("what idle slots hold is saved, and reused after a restart", restart);
  run_case("idle slots are saved beside requests where that is wanted", saves_beside_requests);
  run_case("a failed restore costs the reuse, not the request", broken_restore);
  run_case("a ticket says what the backend said, and does without what it cannot do", trouble);
  run_case("what is due comes to an end, also when all of it fails", chores_end);
  run_case("a backend that cannot rewind keeps a state where the system message ends", boundaries);
  run_case("one request computes what others wait for", leader);
}
