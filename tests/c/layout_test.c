// Sizes and places of the public structs, where a pointer has eight bytes. A member is never moved and
// never fills a hole: an older program leaves anything in there. New ones come at or behind the size that
// stands here.
#include "check.h"

#if UINTPTR_MAX == UINT64_MAX
#define AT(type, member, place) \
  _Static_assert(offsetof(type, member) == (place), #type "." #member " was moved")
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "the size of " #type)

AT(toki_error, status, 0);
AT(toki_error, message, 4);
SIZE(toki_error, 512);

AT(toki_engine_options, size, 0);
AT(toki_engine_options, tree_block_size, 8);
AT(toki_engine_options, tree_max_blocks, 16);
AT(toki_engine_options, tree_max_bytes, 24);
AT(toki_engine_options, max_prompts, 32);
AT(toki_engine_options, max_prompt_bytes, 40);
AT(toki_engine_options, good_match, 48);
AT(toki_engine_options, min_reuse_for_hit, 56);
AT(toki_engine_options, hot_pins, 64);
AT(toki_engine_options, prefill_ms_per_token, 72);
AT(toki_engine_options, exact_batch, 80);
AT(toki_engine_options, clock_ns, 88);
AT(toki_engine_options, clock_user, 96);
AT(toki_engine_options, isolated, 104);
SIZE(toki_engine_options, 112);

AT(toki_backend_facts, size, 0);
AT(toki_backend_facts, slots, 8);
AT(toki_backend_facts, context, 16);
AT(toki_backend_facts, slots_empty, 24);
AT(toki_backend_facts, slots_only, 25);
SIZE(toki_backend_facts, 32);

AT(toki_abilities, size, 0);
AT(toki_abilities, saves, 8);
AT(toki_abilities, cuts, 9);
AT(toki_abilities, cannot_rewind, 10);
SIZE(toki_abilities, 16);

AT(toki_query, size, 0);
AT(toki_query, scope, 8);
AT(toki_query, tokens, 16);
AT(toki_query, token_count, 24);
AT(toki_query, boundaries, 32);
AT(toki_query, boundary_count, 40);
AT(toki_query, embedding, 48);
AT(toki_query, embedding_count, 56);
AT(toki_query, embedding_model, 64);
AT(toki_query, waited_ms, 72);
AT(toki_query, patience_ms, 80);
AT(toki_query, lead_patience_ms, 88);
AT(toki_query, bypass, 96);
AT(toki_query, from_ids, 100);
AT(toki_query, followed, 101);
SIZE(toki_query, 104);

AT(toki_lookup, size, 0);
AT(toki_lookup, available, 8);
AT(toki_lookup, predicted, 16);
AT(toki_lookup, nearest_id, 24);
AT(toki_lookup, nearest_tokens, 32);
AT(toki_lookup, common, 40);
AT(toki_lookup, slot, 48);
AT(toki_lookup, predicted_class, 52);
AT(toki_lookup, reason, 56);
AT(toki_lookup, source, 60);
AT(toki_lookup, busy, 64);
SIZE(toki_lookup, 72);

AT(toki_slot_info, size, 0);
AT(toki_slot_info, known_tokens, 8);
AT(toki_slot_info, unknown_tail, 16);
AT(toki_slot_info, last_used, 24);
AT(toki_slot_info, used_ago_ms, 32);
AT(toki_slot_info, pin, 40);
AT(toki_slot_info, content, 48);
AT(toki_slot_info, leased, 52);
AT(toki_slot_info, fenced, 53);
SIZE(toki_slot_info, 56);

AT(toki_pin_info, size, 0);
AT(toki_pin_info, id, 8);
AT(toki_pin_info, tokens, 16);
AT(toki_pin_info, slot, 24);
AT(toki_pin_info, state, 28);
AT(toki_pin_info, by_hand, 32);
SIZE(toki_pin_info, 40);

AT(toki_prefilled, size, 0);
AT(toki_prefilled, cached, 8);
AT(toki_prefilled, computed, 16);
AT(toki_prefilled, ms, 24);
SIZE(toki_prefilled, 32);

AT(toki_timed, size, 0);
AT(toki_timed, tokens, 8);
AT(toki_timed, ms, 16);
SIZE(toki_timed, 24);

AT(toki_backend, size, 0);
AT(toki_backend, user, 8);
AT(toki_backend, prefill, 16);
AT(toki_backend, save, 24);
AT(toki_backend, restore, 32);
AT(toki_backend, erase, 40);
SIZE(toki_backend, 48);

AT(toki_outcome, size, 0);
AT(toki_outcome, prompt_tokens, 8);
AT(toki_outcome, cached_tokens, 16);
AT(toki_outcome, prompt_ms, 24);
AT(toki_outcome, generated, 32);
AT(toki_outcome, generated_tokens, 40);
AT(toki_outcome, ending, 48);
AT(toki_outcome, computed, 52);
AT(toki_outcome, truncated, 53);
SIZE(toki_outcome, 56);

AT(toki_account, size, 0);
AT(toki_account, predicted, 8);
AT(toki_account, reused, 16);
AT(toki_account, prompt, 24);
AT(toki_account, cache_class, 32);
AT(toki_account, tokenization_mismatch, 36);
AT(toki_account, integrity_fault, 37);
AT(toki_account, restore_failed, 38);
SIZE(toki_account, 40);

AT(toki_stat, size, 0);
AT(toki_stat, name, 8);
AT(toki_stat, help, 16);
AT(toki_stat, value, 24);
AT(toki_stat, counter, 32);
SIZE(toki_stat, 40);

AT(toki_store_options, size, 0);
AT(toki_store_options, dir, 8);
AT(toki_store_options, slot_dir, 16);
AT(toki_store_options, max_bytes, 24);
AT(toki_store_options, log, 32);
AT(toki_store_options, log_user, 40);
SIZE(toki_store_options, 48);

AT(toki_tree_options, size, 0);
AT(toki_tree_options, block_size, 8);
AT(toki_tree_options, max_blocks, 16);
AT(toki_tree_options, max_bytes, 24);
AT(toki_tree_options, half_life, 32);
SIZE(toki_tree_options, 40);

AT(toki_index_options, size, 0);
AT(toki_index_options, dimension, 8);
AT(toki_index_options, kind, 16);
SIZE(toki_index_options, 24);

AT(toki_neighbour, id, 0);
AT(toki_neighbour, cosine, 8);
SIZE(toki_neighbour, 16);

AT(toki_special_token, text, 0);
AT(toki_special_token, id, 8);
SIZE(toki_special_token, 16);
#endif

_Static_assert(sizeof(bool) == 1, "a bool has one byte");

// What stands in an older program, byte for byte, is read as it was meant.
static void older_struct(void) {
  struct {
    size_t size;
    const toki_scope* scope;
    const toki_token* tokens;
    size_t token_count;
  } old;
  const prompt asked = counting(1, 64);
  toki_engine* engine = new_engine(1, NULL);
  old.size = sizeof(old);
  old.scope = NULL;
  old.tokens = asked.tokens;
  old.token_count = asked.count;
  toki_lookup lookup;
  toki_init(&lookup);
  CHECK(toki_engine_lookup(engine, (const toki_query*)(const void*)&old, &lookup, NULL) == TOKI_OK);
  CHECK(lookup.slot == 0);
  toki_engine_free(engine);
}

static void newer_struct(void) {
  struct {
    toki_query known;
    uint64_t fresh;
  } later;
  const prompt asked = counting(1, 64);
  toki_engine* engine = new_engine(1, NULL);
  toki_struct_init(&later, sizeof(later));
  later.known.tokens = asked.tokens;
  later.known.token_count = asked.count;
  toki_lookup lookup;
  toki_init(&lookup);
  CHECK(toki_engine_lookup(engine, &later.known, &lookup, NULL) == TOKI_OK);
  later.fresh = 1;
  toki_error error;
  CHECK(toki_engine_lookup(engine, &later.known, &lookup, &error) == TOKI_ERROR_UNSUPPORTED);
  CHECK(error.status == TOKI_ERROR_UNSUPPORTED);
  CHECK(error.message[0] != 0);
  toki_engine_free(engine);
}

static void results_of_any_size(void) {
  const prompt asked = counting(1, 64);
  const toki_query query = query_of(&asked);
  toki_engine* engine = new_engine(1, NULL);
  union {
    toki_lookup lookup;
    uint64_t words[64];
  } out;
  for (size_t i = 0; i < 64; ++i) {
    out.words[i] = 77;
  }
  out.lookup.size = offsetof(toki_lookup, predicted);
  CHECK(toki_engine_lookup(engine, &query, &out.lookup, NULL) == TOKI_OK);
  CHECK(out.lookup.size == offsetof(toki_lookup, predicted));
  CHECK(out.lookup.available == 0);
  CHECK(out.lookup.predicted == 77);  // behind what the caller has room for

  out.lookup.size = sizeof(out);
  CHECK(toki_engine_lookup(engine, &query, &out.lookup, NULL) == TOKI_OK);
  CHECK(out.lookup.predicted == 0);
  CHECK(out.lookup.slot == 0);
  CHECK(out.words[63] == 0);  // what this library does not know
  toki_engine_free(engine);
}

static void forgotten_size(void) {
  const prompt asked = counting(1, 64);
  toki_query query = query_of(&asked);
  toki_engine* engine = new_engine(1, NULL);
  toki_lookup lookup;
  toki_init(&lookup);
  query.size = 0;
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  query.size = (size_t)1 << 40;  // garbage is not read
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  query.size = sizeof(query);
  lookup.size = 0;
  CHECK(toki_engine_lookup(engine, &query, &lookup, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_engine_free(engine);
}

void layout_tests(void) {
  run_case("a struct of an older program counts as if zeros followed", older_struct);
  run_case("of a newer struct, what is not known has to be zero", newer_struct);
  run_case("results are written as far as there is room, the rest is zero", results_of_any_size);
  run_case("a struct whose size was not set is refused", forgotten_size);
}
