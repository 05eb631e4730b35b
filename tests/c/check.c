#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int check_failures = 0;

void check_failed(const char* file, int line, const char* what) {
  printf("%s:%d: not so: %s\n", file, line, what);
  ++check_failures;
}

void run_case(const char* behaviour, void (*test)(void)) {
  const int before = check_failures;
  test();
  printf("%s  %s\n", check_failures == before ? "ok    " : "FAILED", behaviour);
}

prompt counting(toki_token first, size_t count) {
  prompt result = {.count = count};
  for (size_t i = 0; i < count; ++i) {
    result.tokens[i] = first + (toki_token)i;
  }
  return result;
}

prompt joined(prompt a, size_t of_a, prompt b) {
  memcpy(a.tokens + of_a, b.tokens, b.count * sizeof(toki_token));
  a.count = of_a + b.count;
  return a;
}

folder new_folder(void) {
  folder self = {.path = "/tmp/toki-c-XXXXXX"};
  if (mkdtemp(self.path) == NULL) {
    perror("mkdtemp");
    exit(1);
  }
  snprintf(self.store, sizeof(self.store), "%s/store", self.path);
  snprintf(self.slots, sizeof(self.slots), "%s/slots", self.path);
  mkdir(self.slots, 0700);
  return self;
}

void remove_folder(const folder* self) {
  char command[96];
  snprintf(command, sizeof(command), "rm -rf '%s'", self->path);
  CHECK(system(command) == 0);
}

static void put(FILE* file, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    fputc((int)(value >> (8 * i) & 0xff), file);
  }
}

// One layer, rows of 8 bytes; docs/store-format.md has the form.
void write_state(const char* path, const toki_token* tokens, size_t count, uint32_t slot) {
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL);
  const uint32_t head[] = {0x67677371, 4, (uint32_t)count + 4, 0xffffffff, 1, (uint32_t)count};
  for (size_t i = 0; i < 6; ++i) {
    put(file, head[i], 4);
  }
  for (size_t i = 0; i < count; ++i) {
    put(file, (uint32_t)tokens[i], 4);
  }
  put(file, 0, 4);
  put(file, 1, 4);  // streams
  put(file, count, 4);
  for (size_t i = 0; i < count; ++i) {
    put(file, i, 4);
    put(file, 1, 4);
    put(file, slot, 4);
  }
  put(file, 0, 4);  // V is not transposed
  put(file, 1, 4);  // layers
  put(file, 0, 4);
  put(file, 0, 4);
  for (int part = 0; part < 2; ++part) {
    put(file, 1, 4);
    put(file, 8, 8);
    for (size_t i = 0; i < count; ++i) {
      put(file, (uint64_t)tokens[i] * 31 + i, 8);
    }
  }
  fclose(file);
}

prompt read_state(const char* path) {
  prompt result = {.count = 0};
  uint32_t head[6];
  FILE* file = fopen(path, "rb");
  if (file != NULL && fread(head, 4, 6, file) == 6 && head[5] <= MOST_TOKENS) {
    result.count = fread(result.tokens, 4, head[5], file);
  }
  if (file != NULL) {
    fclose(file);
  }
  return result;
}

static size_t common(const prompt* held, const toki_token* tokens, size_t count) {
  size_t same = 0;
  while (same < held->count && same < count && held->tokens[same] == tokens[same]) {
    ++same;
  }
  return same;
}

static toki_status prefill(void* user, uint32_t slot, const toki_token* tokens, size_t count,
                           toki_prefilled* done, toki_error* error) {
  fake_backend* self = user;
  (void)error;
  ++self->prefills;
  done->cached = common(&self->slots[slot], tokens, count);
  done->computed = count - done->cached;
  done->ms = (double)done->computed;
  memcpy(self->slots[slot].tokens, tokens, count * sizeof(*tokens));
  self->slots[slot].count = count;
  return TOKI_OK;
}

static void path_of(const fake_backend* self, const char* file, char* path, size_t size) {
  snprintf(path, size, "%s/%s", self->folder, file);
}

static toki_status save(void* user, uint32_t slot, const char* file, toki_timed* done,
                        toki_error* error) {
  fake_backend* self = user;
  char path[256];
  (void)error;
  ++self->saves;
  path_of(self, file, path, sizeof(path));
  write_state(path, self->slots[slot].tokens, self->slots[slot].count, slot);
  done->tokens = self->slots[slot].count;
  return TOKI_OK;
}

static toki_status restore(void* user, uint32_t slot, const char* file, toki_timed* done,
                           toki_error* error) {
  fake_backend* self = user;
  char path[256];
  ++self->restores;
  if (self->broken != TOKI_OK) {
    snprintf(error->message, sizeof(error->message), "slot %u is on strike", slot);
    return self->broken;
  }
  path_of(self, file, path, sizeof(path));
  self->slots[slot] = read_state(path);
  done->tokens = self->slots[slot].count;
  return TOKI_OK;
}

static toki_status erase(void* user, uint32_t slot, toki_error* error) {
  fake_backend* self = user;
  (void)error;
  ++self->erases;
  self->slots[slot].count = 0;
  return self->broken;
}

toki_backend table_of(fake_backend* self) {
  toki_backend table;
  toki_init(&table);
  table.user = self;
  table.prefill = prefill;
  table.save = save;
  table.restore = restore;
  table.erase = erase;
  return table;
}

uint64_t compute(fake_backend* self, int32_t slot, const prompt* asked) {
  CHECK(slot >= 0 && slot < MOST_SLOTS);
  // The last token is computed in any case.
  const size_t same = common(&self->slots[slot], asked->tokens, asked->count - 1);
  self->slots[slot] = *asked;
  return same;
}

toki_query query_of(const prompt* asked) {
  toki_query query;
  toki_init(&query);
  query.tokens = asked->tokens;
  query.token_count = asked->count;
  return query;
}

toki_engine* new_engine(uint32_t slots, const toki_engine_options* options) {
  toki_engine* engine = NULL;
  CHECK(toki_engine_create(options, &engine, NULL) == TOKI_OK);
  toki_backend_facts facts;
  toki_init(&facts);
  facts.slots = slots;
  facts.context = MOST_TOKENS;
  facts.slots_empty = true;
  facts.slots_only = true;
  CHECK(toki_engine_backend_changed(engine, &facts, NULL) == TOKI_OK);
  toki_abilities abilities;
  toki_init(&abilities);
  abilities.saves = true;
  abilities.cuts = true;
  CHECK(toki_engine_set_abilities(engine, &abilities, NULL) == TOKI_OK);
  return engine;
}

toki_account run_request(toki_engine* engine, fake_backend* backend, toki_store* store,
                         const prompt* asked) {
  const toki_query query = query_of(asked);
  const toki_backend table = table_of(backend);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  CHECK(toki_ticket_run_steps(ticket, &table, store, NULL) == TOKI_OK);
  toki_ticket_sent(ticket);
  toki_outcome outcome;
  toki_init(&outcome);
  outcome.ending = TOKI_ENDING_COMPLETED;
  outcome.computed = true;
  outcome.prompt_tokens = asked->count;
  outcome.cached_tokens = (int64_t)compute(backend, toki_ticket_slot(ticket), asked);
  outcome.generated_tokens = 1;
  toki_account account;
  toki_init(&account);
  CHECK(toki_ticket_finish(ticket, &outcome, &account, NULL) == TOKI_OK);
  return account;
}

double stat_of(const toki_engine* engine, const toki_store* store, const char* name) {
  double value = -1;
  CHECK(toki_stats_get(engine, store, name, &value, NULL) == TOKI_OK);
  return value;
}

toki_store* open_store(const folder* where) {
  toki_store_options options;
  toki_init(&options);
  options.dir = where->store;
  options.slot_dir = where->slots;
  toki_store* store = NULL;
  toki_error error = {TOKI_OK, ""};
  CHECK(toki_store_open(&options, &store, &error) == TOKI_OK);
  if (store == NULL) {
    printf("%s\n", error.message);
    exit(1);
  }
  return store;
}

int main(void) {
  layout_tests();
  common_tests();
  engine_tests();
  steps_tests();
  store_tests();
  parts_tests();
  threads_tests();
  printf("%d checks failed\n", check_failures);
  return check_failures == 0 ? 0 : 1;
}
