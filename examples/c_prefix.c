// Reuses a prefix from C: two requests that begin alike, on a model whose slots are lists of tokens.
// Put your own calls where compute() and the answer are.
#include <toki/toki.h>

#include <stdio.h>
#include <string.h>

enum { SLOTS = 4, CONTEXT = 4096 };
static struct {
  toki_token tokens[CONTEXT];
  size_t count;
} slots[SLOTS];

// Computes the prompt in a slot: how many of its tokens need not be computed again.
static size_t compute(int32_t slot, const toki_token* tokens, size_t count) {
  size_t same = 0;
  while (same < slots[slot].count && same + 1 < count && slots[slot].tokens[same] == tokens[same]) {
    ++same;
  }
  memcpy(slots[slot].tokens, tokens, count * sizeof(*tokens));
  slots[slot].count = count;
  return same;
}

// [request]
static int serve(toki_engine* engine, const toki_token* tokens, size_t count) {
  toki_error error;
  toki_ticket* ticket;
  toki_query query;
  toki_init(&query);
  query.tokens = tokens;
  query.token_count = count;
  if (toki_engine_begin(engine, &query, &ticket, &error) != TOKI_OK) {
    fprintf(stderr, "no slot: %s\n", error.message);
    return 1;
  }
  toki_ticket_sent(ticket);
  toki_outcome outcome;
  toki_init(&outcome);
  outcome.ending = TOKI_ENDING_COMPLETED;
  outcome.prompt_tokens = count;
  outcome.cached_tokens = (int64_t)compute(toki_ticket_slot(ticket), tokens, count);
  toki_account account;
  toki_init(&account);
  toki_ticket_finish(ticket, &outcome, &account, NULL);
  printf("%zu tokens, %llu of them reused: %s\n", count, (unsigned long long)account.reused,
         toki_class_name(account.cache_class));
  return 0;
}

int main(void) {
  toki_token prompt[1000];
  for (int i = 0; i < 1000; ++i) {
    prompt[i] = i % 700;
  }
  toki_engine* engine;
  toki_engine_create(NULL, &engine, NULL);
  toki_backend_facts facts;
  toki_init(&facts);
  facts.slots = SLOTS;
  facts.context = CONTEXT;
  facts.slots_empty = facts.slots_only = true;
  toki_engine_backend_changed(engine, &facts, NULL);
  const int failed = serve(engine, prompt, 900) || serve(engine, prompt, 1000);
  toki_engine_free(engine);
  return failed;
}
// [/request]
