// The store alone.
#include <stdio.h>
#include <string.h>
#include <utime.h>

#include "check.h"

static void path_in(const folder* where, const char* file, char* path, size_t size) {
  snprintf(path, size, "%s/%s", where->slots, file);
}

static void take_and_compose(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  char path[128];
  const prompt a = counting(1, 500);
  const prompt b = joined(a, 400, counting(5000, 100));
  path_in(&where, "in.bin", path, sizeof(path));
  write_state(path, a.tokens, a.count, 2);
  uint64_t tokens = 0;
  CHECK(toki_store_take(store, NULL, a.tokens, a.count, "in.bin", false, 1, &tokens, NULL) ==
        TOKI_OK);
  CHECK(tokens == 500);
  CHECK(read_state(path).count == 0);  // it was taken
  CHECK(toki_store_match(store, NULL, b.tokens, b.count) == 400);

  path_in(&where, "out.bin", path, sizeof(path));
  CHECK(toki_store_compose(store, NULL, b.tokens, b.count, 1, "out.bin", &tokens, NULL) == TOKI_OK);
  CHECK(tokens == 400);
  const prompt read = read_state(path);
  CHECK(read.count == 400 && memcmp(read.tokens, a.tokens, 400 * sizeof(toki_token)) == 0);
  FILE* file = fopen(path, "rb");
  uint32_t slot = 0;  // of the first cell, behind the head, the tokens, and five words more
  CHECK(file != NULL && fseek(file, 24 + 4 * 400 + 20, SEEK_SET) == 0);
  CHECK(fread(&slot, 4, 1, file) == 1 && slot == 1);
  fclose(file);
  CHECK(toki_store_discard(store, "out.bin", NULL) == TOKI_OK);
  CHECK(read_state(path).count == 0);
  CHECK(toki_store_discard(store, "out.bin", NULL) == TOKI_ERROR_NOT_FOUND);
  const prompt strange = counting(7000, 10);
  CHECK(toki_store_compose(store, NULL, strange.tokens, 10, 1, "out.bin", &tokens, NULL) ==
        TOKI_ERROR_NOT_FOUND);
  CHECK(tokens == 400);

  path_in(&where, "toki-1-2.bin", path, sizeof(path));  // what a restore of long ago has left
  write_state(path, a.tokens, a.count, 0);
  const struct utimbuf long_ago = {.actime = 0, .modtime = 0};
  CHECK(utime(path, &long_ago) == 0);
  CHECK(toki_store_maintain(store, NULL) == TOKI_OK);
  CHECK(read_state(path).count == 0);
  uint64_t pieces = 0;
  CHECK(toki_store_forget_all(store, &pieces, NULL) == TOKI_OK);
  CHECK(pieces >= 1);
  CHECK(toki_store_match(store, NULL, a.tokens, a.count) == 0);
  toki_store_close(store);
  remove_folder(&where);
}

static void refused_state(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  char path[128];
  const prompt a = counting(1, 100);
  const prompt other = counting(2, 100);
  path_in(&where, "in.bin", path, sizeof(path));
  write_state(path, a.tokens, a.count, 0);
  toki_error error;
  CHECK(toki_store_take(store, NULL, other.tokens, 100, "in.bin", false, 1, NULL, &error) ==
        TOKI_ERROR_CORRUPT);
  CHECK(error.message[0] != 0);
  CHECK(toki_store_match(store, NULL, a.tokens, 100) == 0);
  CHECK(toki_store_take(store, NULL, a.tokens, 100, "in.bin", false, 1, NULL, NULL) != TOKI_OK);
  toki_store_close(store);
  remove_folder(&where);
}

static void snapshot(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  char path[128];
  const prompt a = counting(1, 100);
  path_in(&where, "in.bin", path, sizeof(path));
  write_state(path, a.tokens, a.count, 0);
  CHECK(toki_store_take(store, NULL, a.tokens, 100, "in.bin", true, 1, NULL, NULL) == TOKI_OK);
  CHECK(toki_store_match(store, NULL, a.tokens, 100) == 100);
  CHECK(toki_store_match(store, NULL, a.tokens, 99) == 0);
  toki_store_close(store);
  remove_folder(&where);
}

static void count_lines(void* user, toki_log_level level, const char* line) {
  CHECK(level >= TOKI_LOG_ERROR && level <= TOKI_LOG_DEBUG);
  CHECK(strlen(line) > 0);
  ++*(int*)user;
}

// A second store waits for nothing: the folder is the first one's while anybody uses that.
static void one_at_a_time(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  toki_engine* engine = new_engine(1, NULL);
  CHECK(toki_engine_use_store(engine, store, NULL) == TOKI_OK);
  toki_store_options options;
  toki_init(&options);
  options.dir = where.store;
  options.slot_dir = where.slots;
  toki_store* second = store;
  CHECK(toki_store_open(&options, &second, NULL) == TOKI_ERROR_BUSY);
  CHECK(second == NULL);
  toki_store_close(store);
  CHECK(toki_store_open(&options, &second, NULL) == TOKI_ERROR_BUSY);
  toki_engine_free(engine);
  CHECK(toki_store_open(&options, &second, NULL) == TOKI_OK);
  toki_store_close(second);
  remove_folder(&where);
}

static void log_lines(void) {
  const folder where = new_folder();
  toki_store* store = open_store(&where);
  char path[128];
  const prompt a = counting(1, 100);
  path_in(&where, "in.bin", path, sizeof(path));
  write_state(path, a.tokens, a.count, 0);
  CHECK(toki_store_take(store, NULL, a.tokens, 100, "in.bin", false, 1, NULL, NULL) == TOKI_OK);
  toki_store_close(store);
  path_in(&where, "../store/catalogue.sqlite", path, sizeof(path));
  FILE* catalogue = fopen(path, "wb");
  CHECK(catalogue != NULL && fputs("no database", catalogue) >= 0);
  fclose(catalogue);
  int lines = 0;
  toki_store_options options;
  toki_init(&options);
  options.dir = where.store;
  options.slot_dir = where.slots;
  options.max_bytes = 1 << 20;
  options.log = count_lines;
  options.log_user = &lines;
  CHECK(toki_store_open(&options, &store, NULL) == TOKI_OK);
  CHECK(toki_store_match(store, NULL, a.tokens, 100) == 100);
  CHECK(lines > 0);
  CHECK(stat_of(NULL, store, "kv_limit_bytes") == 1 << 20);
  toki_store_close(store);
  remove_folder(&where);
}

static void store_arguments(void) {
  const folder where = new_folder();
  toki_store* store = NULL;
  toki_store_options options;
  toki_error error;
  const toki_status invalid = TOKI_ERROR_INVALID_ARGUMENT;
  toki_init(&options);
  CHECK(toki_store_open(NULL, &store, NULL) != TOKI_OK);
  CHECK(toki_store_open(&options, &store, NULL) == invalid);
  options.dir = where.store;
  CHECK(toki_store_open(&options, &store, NULL) == invalid);
  options.slot_dir = "/no/such/folder";
  CHECK(toki_store_open(&options, &store, &error) == TOKI_ERROR_NOT_FOUND);
  CHECK(store == NULL && strstr(error.message, "does not exist") != NULL);
  store = open_store(&where);
  uint64_t tokens = 0;
  CHECK(toki_store_take(store, NULL, NULL, 1, "in.bin", false, 1, NULL, NULL) == invalid);
  CHECK(toki_store_take(store, NULL, NULL, 0, NULL, false, 1, NULL, NULL) == invalid);
  CHECK(toki_store_compose(store, NULL, NULL, 0, 0, "x", NULL, NULL) == invalid);
  CHECK(toki_store_compose(NULL, NULL, NULL, 0, 0, "x", &tokens, NULL) == invalid);
  CHECK(toki_store_discard(store, NULL, NULL) == invalid);
  CHECK(toki_store_forget_all(NULL, NULL, NULL) == invalid);
  CHECK(toki_store_maintain(NULL, NULL) == invalid);
  CHECK(toki_store_match(store, NULL, NULL, 0) == 0);
  toki_store_close(store);
  remove_folder(&where);
}

void store_tests(void) {
  run_case("a state that was taken is put together again, in part", take_and_compose);
  run_case("a state that holds other tokens is refused", refused_state);
  run_case("a snapshot serves only what begins with all of it", snapshot);
  run_case("a folder has one store, also while an engine alone uses it", one_at_a_time);
  run_case("what the store has to say goes to the program's log", log_lines);
  run_case("a store without folders is refused", store_arguments);
}
