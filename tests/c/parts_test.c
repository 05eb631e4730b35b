// Tree, index, pool and token cache, each alone.
#include <math.h>
#include <string.h>

#include "check.h"

static void tree_matches(void) {
  toki_tree* tree = NULL;
  toki_tree_options options;
  toki_init(&options);
  options.block_size = 16;
  CHECK(toki_tree_create(&options, &tree, NULL) == TOKI_OK);
  const prompt a = counting(1, 100);
  const prompt b = joined(a, 70, counting(500, 30));
  size_t added = 0;
  CHECK(toki_tree_insert(tree, NULL, a.tokens, a.count, &added, NULL) == TOKI_OK);
  CHECK(added == 7);
  CHECK(toki_tree_match(tree, NULL, b.tokens, b.count) == 70);
  CHECK(toki_tree_match(tree, NULL, NULL, 0) == 0);
  CHECK(toki_tree_blocks(tree) == 7);
  CHECK(toki_tree_bytes(tree) >= 100 * sizeof(toki_token));
  CHECK(toki_tree_insert(tree, NULL, NULL, 3, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_tree_clear(NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_tree_clear(tree, NULL) == TOKI_OK);
  CHECK(toki_tree_match(tree, NULL, a.tokens, a.count) == 0);
  CHECK(toki_tree_blocks(tree) == 0);
  toki_tree_free(tree);
}

static void tree_pins(void) {
  toki_tree* tree = NULL;
  toki_tree_options options;
  toki_init(&options);
  options.block_size = 8;
  options.max_blocks = 4;
  CHECK(toki_tree_create(&options, &tree, NULL) == TOKI_OK);
  const prompt pinned = counting(1, 16);
  const prompt other = counting(900, 64);
  bool whole = false;
  CHECK(toki_tree_pin(tree, NULL, pinned.tokens, 16, &whole, NULL) == TOKI_OK);
  CHECK(whole);
  CHECK(toki_tree_pin(tree, NULL, other.tokens, 64, &whole, NULL) == TOKI_OK);
  CHECK(!whole);
  CHECK(toki_tree_match(tree, NULL, pinned.tokens, 16) == 16);
  CHECK(toki_tree_unpin(tree, NULL, pinned.tokens, 16, NULL) == TOKI_OK);
  for (toki_token first = 2000; first < 6000; first += 1000) {
    const prompt filler = counting(first, 16);
    CHECK(toki_tree_insert(tree, NULL, filler.tokens, 16, NULL, NULL) == TOKI_OK);
  }
  CHECK(toki_tree_match(tree, NULL, pinned.tokens, 16) < 16);
  CHECK(toki_tree_pin(NULL, NULL, NULL, 0, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_tree_unpin(NULL, NULL, NULL, 0, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_tree_free(tree);
}

static void tree_bytes(void) {
  toki_tree* tree = NULL;
  toki_tree_options options;
  toki_init(&options);
  options.max_bytes = 64 << 10;
  CHECK(toki_tree_create(&options, &tree, NULL) == TOKI_OK);
  for (toki_token first = 0; first < 50000; first += 1000) {
    const prompt one = counting(first, 1000);
    CHECK(toki_tree_insert(tree, NULL, one.tokens, one.count, NULL, NULL) == TOKI_OK);
  }
  CHECK(toki_tree_blocks(tree) > 100 && toki_tree_blocks(tree) < 1024);  // of 1,600
  toki_tree_free(tree);
}

typedef struct hot {
  const toki_tree* tree;
  size_t calls;
  size_t count;
  double use;
} hot;

static void see_hot(void* user, const toki_scope* scope, const toki_token* tokens, size_t count,
                    double use) {
  hot* seen = user;
  ++seen->calls;
  seen->count = count;
  seen->use = use;
  CHECK(toki_tree_match(seen->tree, scope, tokens, count) == count);
}

static void tree_hottest(void) {
  const char* const parts[] = {"model"};
  toki_scope* scope = NULL;
  toki_tree* tree = NULL;
  CHECK(toki_scope_create(parts, 1, &scope, NULL) == TOKI_OK);
  CHECK(toki_tree_create(NULL, &tree, NULL) == TOKI_OK);
  for (toki_token i = 0; i < 10; ++i) {
    const prompt one = joined(counting(1, 320), 320, counting(1000 + 100 * i, 32));
    CHECK(toki_tree_insert(tree, scope, one.tokens, one.count, NULL, NULL) == TOKI_OK);
  }
  hot seen = {.tree = tree};
  CHECK(toki_tree_visit_hottest(tree, 1, 100, see_hot, &seen, NULL) == TOKI_OK);
  CHECK(seen.calls == 1);
  CHECK(seen.count == 320);
  CHECK(seen.use > 9 && seen.use <= 10);
  CHECK(toki_tree_visit_hottest(tree, 1, 100, NULL, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_tree_free(tree);
  toki_scope_free(scope);
}

static void tree_options(void) {
  toki_tree* tree = NULL;
  toki_tree_options options;
  toki_error error;
  toki_init(&options);
  options.block_size = 7;
  CHECK(toki_tree_create(&options, &tree, &error) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(tree == NULL && strstr(error.message, "block size") != NULL);
  options.block_size = 0;
  options.max_blocks = (size_t)1 << 33;
  CHECK(toki_tree_create(&options, &tree, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  options.max_blocks = 0;
  options.half_life = -1;
  CHECK(toki_tree_create(&options, &tree, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  options.half_life = 0;
  CHECK(toki_tree_create(&options, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
}

static void embed(const prompt* of, float* values) {
  CHECK(toki_embedding_hash(of->tokens, of->count, values, 384, NULL) == TOKI_OK);
}

static void index_finds(toki_index_kind kind) {
  toki_index* index = NULL;
  toki_index_options options;
  toki_init(&options);
  options.kind = kind;
  CHECK(toki_index_create(&options, &index, NULL) == TOKI_OK);
  float values[384];
  for (toki_token i = 0; i < 5; ++i) {
    const prompt one = counting(1000 * i, 200);
    embed(&one, values);
    CHECK(toki_index_put(index, (uint64_t)i, NULL, values, 384, NULL) == TOKI_OK);
  }
  CHECK(toki_index_size(index) == 5);
  const prompt asked = joined(counting(3000, 180), 180, counting(9000, 20));
  embed(&asked, values);
  toki_neighbour nearest[3];
  size_t found = 0;
  CHECK(toki_index_search(index, NULL, values, 384, 3, nearest, &found, NULL) == TOKI_OK);
  CHECK(found == 3);
  CHECK(nearest[0].id == 3);
  CHECK(nearest[0].cosine > 0.7F && nearest[0].cosine < 1.001F);
  CHECK(nearest[0].cosine > nearest[1].cosine);

  CHECK(toki_index_remove(index, 3, NULL) == TOKI_OK);
  CHECK(toki_index_remove(index, 3, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_index_search(index, NULL, values, 384, 3, nearest, &found, NULL) == TOKI_OK);
  CHECK(nearest[0].id != 3);
  toki_index_free(index);
}

static void every_index(void) {
  for (toki_index_kind kind = TOKI_INDEX_AUTO; kind <= TOKI_INDEX_GRAPH; ++kind) {
    index_finds(kind);
  }
}

static void index_errors(void) {
  toki_index* index = NULL;
  toki_index_options options;
  toki_init(&options);
  options.kind = 4;
  CHECK(toki_index_create(&options, &index, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  options.kind = TOKI_INDEX_AUTO;
  options.dimension = 65537;
  CHECK(toki_index_create(&options, &index, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  options.dimension = 2;
  CHECK(toki_index_create(&options, &index, NULL) == TOKI_OK);
  const float values[3] = {1, 0, 0};
  size_t found = 7;
  CHECK(toki_index_put(index, 1, NULL, values, 3, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_index_put(index, 1, NULL, NULL, 2, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_index_search(index, NULL, values, 3, 0, NULL, &found, NULL) ==
        TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_index_search(index, NULL, values, 2, 1, NULL, &found, NULL) ==
        TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(found == 7);
  CHECK(toki_index_search(index, NULL, values, 2, 0, NULL, &found, NULL) == TOKI_OK);
  CHECK(found == 0);
  CHECK(toki_index_remove(NULL, 1, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_index_free(index);
}

static void hash_embeddings(void) {
  const prompt some = counting(1, 50);
  float values[8];
  float sum = 0;
  CHECK(toki_embedding_hash(some.tokens, some.count, values, 8, NULL) == TOKI_OK);
  for (size_t i = 0; i < 8; ++i) {
    sum += values[i] * values[i];
  }
  CHECK(fabsf(sum - 1) < 1e-4F);
  CHECK(toki_embedding_hash(NULL, 0, values, 8, NULL) == TOKI_OK);
  CHECK(values[0] == 0 && values[7] == 0);
  CHECK(toki_embedding_hash(some.tokens, 50, values, 0, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_embedding_hash(some.tokens, 50, NULL, 8, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
}

static void pool_remembers(void) {
  toki_pool* pool = NULL;
  CHECK(toki_pool_create(2, TOKI_CONTENT_EMPTY, &pool, NULL) == TOKI_OK);
  const prompt a = counting(1, 100);
  const prompt b = joined(a, 60, counting(500, 10));
  CHECK(toki_pool_lease(pool, 1, NULL) == TOKI_OK);
  CHECK(toki_pool_lease(pool, 1, NULL) == TOKI_ERROR_BUSY);
  CHECK(toki_pool_hold(pool, 1, NULL, a.tokens, a.count, 5, NULL) == TOKI_OK);
  CHECK(toki_pool_common(pool, 1, NULL, b.tokens, b.count) == 60);
  CHECK(toki_pool_common(pool, 0, NULL, b.tokens, b.count) == 0);
  toki_slot_info info;
  toki_init(&info);
  CHECK(toki_pool_slot(pool, 1, &info, NULL) == TOKI_OK);
  CHECK(info.content == TOKI_CONTENT_KNOWN && info.leased && !info.fenced);
  CHECK(info.known_tokens == 100 && info.unknown_tail == 5 && info.last_used == 1);
  CHECK(toki_pool_release(pool, 1, NULL) == TOKI_OK);
  CHECK(toki_pool_set_content(pool, 1, TOKI_CONTENT_UNKNOWN, NULL) == TOKI_OK);
  CHECK(toki_pool_common(pool, 1, NULL, b.tokens, b.count) == 0);
  CHECK(toki_pool_slot(pool, 1, &info, NULL) == TOKI_OK);
  CHECK(info.content == TOKI_CONTENT_UNKNOWN && !info.leased);
  CHECK(toki_pool_set_content(pool, 1, TOKI_CONTENT_EMPTY, NULL) == TOKI_OK);
  CHECK(toki_pool_set_content(pool, 1, TOKI_CONTENT_KNOWN, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_pool_hold(pool, 1, NULL, NULL, 4, 0, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_pool_lease(pool, 2, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_pool_release(pool, 2, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_pool_hold(pool, 2, NULL, NULL, 0, 0, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_pool_set_content(pool, 2, TOKI_CONTENT_EMPTY, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_pool_slot(pool, 2, &info, NULL) == TOKI_ERROR_NOT_FOUND);
  CHECK(toki_pool_slot(NULL, 0, &info, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_pool_free(pool);
  CHECK(toki_pool_create(2, TOKI_CONTENT_KNOWN, &pool, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(pool == NULL);
}

static void token_cache(void) {
  toki_token_cache* cache = NULL;
  CHECK(toki_token_cache_create(1 << 20, &cache, NULL) == TOKI_OK);
  const toki_special_token specials[] = {{"<|a|>", 7}, {"<|b|>", 8}};
  CHECK(toki_token_cache_reset(cache, specials, 2, NULL) == TOKI_OK);
  const char* const known = "hello<|a|>world";
  const toki_token tokens[] = {100, 101, 7, 200};
  CHECK(toki_token_cache_put(cache, known, strlen(known), true, tokens, 4, NULL) == TOKI_OK);
  CHECK(toki_token_cache_bytes(cache) > 0);

  const char* const asked = "hello<|a|>moon";
  toki_token out[4] = {0, 0, 0, 0};
  size_t bytes = 0;
  size_t count = 0;
  CHECK(toki_token_cache_find(cache, asked, strlen(asked), true, out, 4, &bytes, &count, NULL) ==
        TOKI_OK);
  CHECK(bytes == 5 && count == 2 && out[0] == 100 && out[1] == 101);  // up to the special token
  CHECK(toki_token_cache_find(cache, known, strlen(known), true, out, 1, &bytes, &count, NULL) ==
        TOKI_OK);
  CHECK(bytes == strlen(known) && count == 4 && out[1] == 101);  // no more than there is room for
  CHECK(toki_token_cache_find(cache, known, strlen(known), false, out, 4, &bytes, &count, NULL) ==
        TOKI_OK);
  CHECK(bytes == 0 && count == 0);
  CHECK(toki_token_cache_find(cache, NULL, 3, true, out, 4, &bytes, &count, NULL) ==
        TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_token_cache_put(cache, known, 5, true, NULL, 2, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  const toki_special_token hole[] = {{NULL, 7}};
  CHECK(toki_token_cache_reset(cache, hole, 1, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_token_cache_create(1, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  toki_token_cache_free(cache);
}

void parts_tests(void) {
  run_case("a tree finds the longest known prefix, to the token", tree_matches);
  run_case("a pinned prefix stays in a tree whatever is evicted", tree_pins);
  run_case("a tree has a budget in bytes", tree_bytes);
  run_case("a tree tells which prefix most prompts share", tree_hottest);
  run_case("options of a tree that cannot be are refused", tree_options);
  run_case("every kind of index finds the nearest prompt", every_index);
  run_case("an index refuses vectors of another dimension", index_errors);
  run_case("hash embeddings have length 1, or are zero", hash_embeddings);
  run_case("a pool knows what each slot holds", pool_remembers);
  run_case("known texts need not be tokenized again", token_cache);
}
