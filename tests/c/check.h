// What the tests of the C API stand on: checks, and a fake backend whose slots are lists of tokens.
#ifndef TOKI_TESTS_C_CHECK_H
#define TOKI_TESTS_C_CHECK_H

#include <toki/toki.h>

extern int check_failures;
void check_failed(const char* file, int line, const char* what);
#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

/// Runs one case and says what it shows.
void run_case(const char* behaviour, void (*test)(void));

void common_tests(void);
void engine_tests(void);
void layout_tests(void);
void parts_tests(void);
void steps_tests(void);
void store_tests(void);
void threads_tests(void);

enum { MOST_TOKENS = 2048, MOST_SLOTS = 4 };

typedef struct prompt {
  toki_token tokens[MOST_TOKENS];
  size_t count;
} prompt;

/// `first`, `first` + 1, ...
prompt counting(toki_token first, size_t count);
prompt joined(prompt a, size_t of_a, prompt b);

/// A folder of its own, with "slots" in it; new_folder() gives it, remove_folder() takes all away.
typedef struct folder {
  char path[64];
  char store[80];
  char slots[80];
} folder;
folder new_folder(void);
void remove_folder(const folder* self);

/// A backend with slots that keep what they computed, and write it to files as llama.cpp does.
typedef struct fake_backend {
  prompt slots[MOST_SLOTS];
  const char* folder;
  unsigned prefills, saves, restores, erases;
  toki_status broken;  ///< what restore() and erase() return
} fake_backend;

toki_backend table_of(fake_backend* self);
/// Computes the prompt in the slot: how many of its tokens were there already.
uint64_t compute(fake_backend* self, int32_t slot, const prompt* asked);
/// Writes the file that llama.cpp would write for the tokens.
void write_state(const char* path, const toki_token* tokens, size_t count, uint32_t slot);
/// The tokens of such a file; count 0: there is none.
prompt read_state(const char* path);

toki_query query_of(const prompt* asked);
/// An engine over a backend with empty slots and no cache beside them, that has saved and restored.
toki_engine* new_engine(uint32_t slots, const toki_engine_options* options);
/// One request from begin to finish, completed; what was made of it.
toki_account run_request(toki_engine* engine, fake_backend* backend, toki_store* store,
                         const prompt* asked);
double stat_of(const toki_engine* engine, const toki_store* store, const char* name);
toki_store* open_store(const folder* where);

#endif
