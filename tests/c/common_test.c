#include <string.h>

#include "check.h"

static void names(void) {
  CHECK(strcmp(toki_version(), "0.1.0") == 0 || strchr(toki_version(), '.') != NULL);
  CHECK(strcmp(toki_status_name(TOKI_OK), "ok") == 0);
  CHECK(strcmp(toki_status_name(TOKI_ERROR_BUSY), "busy") == 0);
  CHECK(strcmp(toki_status_name(TOKI_ERROR_NO_SPACE), "no_space") == 0);
  CHECK(strcmp(toki_status_name(TOKI_ERROR_NO_MEMORY), "no_memory") == 0);
  CHECK(strcmp(toki_status_name(TOKI_ERROR_INTERNAL), "internal") == 0);
  CHECK(strcmp(toki_class_name(TOKI_CLASS_SOFT_HIT), "soft_hit") == 0);
  CHECK(strcmp(toki_reason_name(TOKI_REASON_NOT_CACHEABLE), "not_cacheable") == 0);
  CHECK(strcmp(toki_source_name(TOKI_SOURCE_COPY), "copy") == 0);
  const int32_t strange[] = {-1, 11, 99, 102, 256, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); ++i) {
    CHECK(strcmp(toki_status_name(strange[i]), "unknown") == 0);
    CHECK(strcmp(toki_source_name(strange[i]), "unknown") == 0);
    CHECK(strcmp(toki_class_name(strange[i]), "unknown") == 0);
  }
  CHECK(strcmp(toki_reason_name(16), "unknown") == 0);
}

static void init(void) {
  toki_query query;
  memset(&query, 0xff, sizeof(query));
  toki_init(&query);
  toki_query zero;
  memset(&zero, 0, sizeof(zero));
  zero.size = sizeof(zero);
  CHECK(memcmp(&query, &zero, sizeof(zero)) == 0);
}

static void scopes(void) {
  const char* const model[] = {"model"};
  const char* const tenant[] = {"model", "tenant"};
  const char* const hole[] = {"model", NULL};
  toki_scope* a = NULL;
  toki_scope* b = NULL;
  toki_scope* same = NULL;
  toki_scope* none = NULL;
  CHECK(toki_scope_create(model, 1, &a, NULL) == TOKI_OK);
  CHECK(toki_scope_create(tenant, 2, &b, NULL) == TOKI_OK);
  CHECK(toki_scope_create(model, 1, &same, NULL) == TOKI_OK);
  CHECK(toki_scope_create(NULL, 0, &none, NULL) == TOKI_OK);

  toki_tree* tree = NULL;
  const prompt known = counting(1, 100);
  CHECK(toki_tree_create(NULL, &tree, NULL) == TOKI_OK);
  CHECK(toki_tree_insert(tree, a, known.tokens, known.count, NULL, NULL) == TOKI_OK);
  CHECK(toki_tree_match(tree, same, known.tokens, known.count) == 100);
  CHECK(toki_tree_match(tree, b, known.tokens, known.count) == 0);
  CHECK(toki_tree_match(tree, NULL, known.tokens, known.count) == 0);
  CHECK(toki_tree_insert(tree, NULL, known.tokens, 50, NULL, NULL) == TOKI_OK);
  CHECK(toki_tree_match(tree, none, known.tokens, known.count) == 50);
  toki_tree_free(tree);
  toki_scope_free(a);
  toki_scope_free(b);
  toki_scope_free(same);
  toki_scope_free(none);

  toki_error error;
  a = (toki_scope*)&error;
  CHECK(toki_scope_create(hole, 2, &a, &error) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(a == NULL);
  CHECK(error.status == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_scope_create(NULL, 1, &a, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(toki_scope_create(model, 1, NULL, NULL) == TOKI_ERROR_INVALID_ARGUMENT);
}

static void free_null(void) {
  toki_scope_free(NULL);
  toki_engine_free(NULL);
  toki_ticket_abandon(NULL);
  toki_store_close(NULL);
  toki_tree_free(NULL);
  toki_index_free(NULL);
  toki_pool_free(NULL);
  toki_token_cache_free(NULL);
}

static void untouched_on_success(void) {
  toki_error error = {77, "mine"};
  toki_tree* tree = NULL;
  CHECK(toki_tree_create(NULL, &tree, &error) == TOKI_OK);
  CHECK(error.status == 77);
  CHECK(strcmp(error.message, "mine") == 0);
  CHECK(toki_tree_insert(NULL, NULL, NULL, 0, NULL, &error) == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(error.status == TOKI_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "NULL") != NULL);
  toki_tree_free(tree);
}

static void out_of_memory(void) {
  toki_token token = 1;
  toki_pool* pool = (toki_pool*)&token;
  toki_error error;
  CHECK(toki_pool_create(SIZE_MAX / 2, TOKI_CONTENT_EMPTY, &pool, &error) == TOKI_ERROR_NO_MEMORY);
  CHECK(pool == NULL);
  CHECK(error.status == TOKI_ERROR_NO_MEMORY);
  CHECK(error.message[0] != 0);
}

void common_tests(void) {
  run_case("every number has a name", names);
  run_case("toki_init sets the size and nothing else", init);
  run_case("nothing is shared between two scopes", scopes);
  run_case("NULL can be given back", free_null);
  run_case("the error is written on failure only", untouched_on_success);
  run_case("what needs more than all memory fails, and makes no handle", out_of_memory);
}
