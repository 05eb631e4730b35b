// The C API: tree, index, pool and token cache, for programs that plan for themselves.
#include <toki/block_tree.hpp>
#include <toki/embedding.hpp>
#include <toki/similarity_index.hpp>
#include <toki/slot_pool.hpp>
#include <toki/token_cache.hpp>

#include <algorithm>
#include <memory>
#include <vector>

#include "c_api.hpp"

using namespace toki;
using namespace toki::c;

struct toki_tree {
  BlockTree tree;
};
struct toki_index {
  std::unique_ptr<SimilarityIndex> index;
};
struct toki_pool {
  SlotPool pool;
};
struct toki_token_cache {
  TokenCache cache;
};

namespace {

std::unique_ptr<SimilarityIndex> index_of(toki_index_kind kind, std::size_t dimension) {
  switch (kind) {
    case TOKI_INDEX_AUTO: return make_similarity_index(dimension);
    case TOKI_INDEX_SCAN: return make_scan_index(dimension);
    case TOKI_INDEX_EXACT: return make_scan_index(dimension, Precision::float32);
    case TOKI_INDEX_GRAPH: return make_hnsw_index(dimension);
    default: return nullptr;
  }
}

toki_status check_slot(const toki_pool* pool, std::size_t slot, toki_error* error) {
  if (pool == nullptr) {
    return missing(error);
  }
  return slot < pool->pool.size() ? kOk
                                  : fail(error, TOKI_ERROR_NOT_FOUND, "there is no such slot");
}

}  // namespace

toki_status toki::c::check_tree(const BlockTreeOptions& options, toki_error* error) noexcept {
  const bool good = options.block_size >= 8 && options.block_size <= 512 &&
                    options.max_blocks <= (std::size_t{1} << 31) - 2 && options.half_life > 0;
  return good ? kOk : wrong(error, "a tree's block size, budget or half-life is out of range");
}

toki_status toki_tree_create(const toki_tree_options* given, toki_tree** tree, toki_error* error) {
  toki_tree_options options{};
  if (const toki_status status = options_for(tree, given, options, error)) {
    return status;
  }
  BlockTreeOptions ours;
  ours.block_size = given_or(options.block_size, ours.block_size);
  ours.max_blocks = given_or(options.max_blocks, ours.max_blocks);
  ours.max_bytes = options.max_bytes;
  ours.half_life = given_or(options.half_life, ours.half_life);
  if (const toki_status status = check_tree(ours, error)) {
    return status;
  }
  return made(tree, error, [&] { return BlockTree(ours); });
}

void toki_tree_free(toki_tree* tree) {
  delete tree;
}

size_t toki_tree_match(const toki_tree* tree, const toki_scope* scope, const toki_token* tokens,
                       size_t count) {
  TOKI_CHECK(tree != nullptr);
  std::size_t known = 0;
  guarded(nullptr, [&] {
    known = tree->tree.match(scope_of(scope), span_of(tokens, count)).tokens;
    return kOk;
  });
  return known;
}

toki_status toki_tree_insert(toki_tree* tree, const toki_scope* scope, const toki_token* tokens,
                             size_t count, size_t* added, toki_error* error) {
  if (tree == nullptr || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    const std::size_t blocks = tree->tree.insert(scope_of(scope), span_of(tokens, count));
    if (added != nullptr) {
      *added = blocks;
    }
    return kOk;
  });
}

toki_status toki_tree_pin(toki_tree* tree, const toki_scope* scope, const toki_token* tokens,
                          size_t count, bool* whole, toki_error* error) {
  if (tree == nullptr || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    const bool all = tree->tree.pin(scope_of(scope), span_of(tokens, count));
    if (whole != nullptr) {
      *whole = all;
    }
    return kOk;
  });
}

toki_status toki_tree_unpin(toki_tree* tree, const toki_scope* scope, const toki_token* tokens,
                            size_t count, toki_error* error) {
  if (tree == nullptr || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    tree->tree.unpin(scope_of(scope), span_of(tokens, count));
    return kOk;
  });
}

toki_status toki_tree_visit_hottest(const toki_tree* tree, size_t most, size_t min_tokens,
                                    void (*visit)(void* user, const toki_scope* scope,
                                                  const toki_token* tokens, size_t count,
                                                  double use),
                                    void* user, toki_error* error) {
  if (tree == nullptr || visit == nullptr) {
    return missing(error);
  }
  return guarded(error, [&] {
    for (const BlockTree::HotPrefix& prefix : tree->tree.hottest(most, min_tokens)) {
      const toki_scope scope{prefix.scope};
      visit(user, &scope, prefix.tokens.data(), prefix.tokens.size(), prefix.use);
    }
    return kOk;
  });
}

toki_status toki_tree_clear(toki_tree* tree, toki_error* error) {
  return tree == nullptr ? missing(error) : guarded(error, [&] {
    tree->tree.clear();
    return kOk;
  });
}
size_t toki_tree_blocks(const toki_tree* tree) {
  TOKI_CHECK(tree != nullptr);
  return tree->tree.blocks();
}
size_t toki_tree_bytes(const toki_tree* tree) {
  TOKI_CHECK(tree != nullptr);
  return tree->tree.bytes();
}

toki_status toki_index_create(const toki_index_options* given, toki_index** index,
                              toki_error* error) {
  toki_index_options options{};
  if (const toki_status status = options_for(index, given, options, error)) {
    return status;
  }
  const std::size_t dimension = given_or(options.dimension, kHashDimension);
  if (dimension > kMaxDimension || options.kind < TOKI_INDEX_AUTO ||
      options.kind > TOKI_INDEX_GRAPH) {
    return wrong(error, "an index of this kind or dimension does not exist");
  }
  return made(index, error, [&] { return index_of(options.kind, dimension); });
}

void toki_index_free(toki_index* index) {
  delete index;
}

toki_status toki_index_put(toki_index* index, uint64_t id, const toki_scope* scope,
                           const float* values, size_t count, toki_error* error) {
  if (index == nullptr || values == nullptr) {
    return missing(error);
  }
  if (count != index->index->dimension()) {
    return wrong(error, "the vector is of another dimension than the index");
  }
  return guarded(error, [&] {
    index->index->put(id, scope_of(scope), {values, count});
    return kOk;
  });
}

toki_status toki_index_remove(toki_index* index, uint64_t id, toki_error* error) {
  return index == nullptr ? missing(error) : guarded(error, [&] {
    return index->index->remove(id)
               ? kOk
               : fail(error, TOKI_ERROR_NOT_FOUND, "there is no vector of this id");
  });
}

toki_status toki_index_search(const toki_index* index, const toki_scope* scope, const float* values,
                              size_t count, size_t most, toki_neighbour* neighbours, size_t* found,
                              toki_error* error) {
  if (index == nullptr || values == nullptr || found == nullptr || !is_list(neighbours, most)) {
    return missing(error);
  }
  if (count != index->index->dimension()) {
    return wrong(error, "the vector is of another dimension than the index");
  }
  return guarded(error, [&] {
    const auto nearest = index->index->search(scope_of(scope), {values, count}, most);
    std::transform(nearest.begin(), nearest.end(), neighbours, [](const Neighbour& one) {
      return toki_neighbour{one.id, one.cosine};
    });
    *found = nearest.size();
    return kOk;
  });
}

size_t toki_index_size(const toki_index* index) {
  TOKI_CHECK(index != nullptr);
  return index->index->size();
}

toki_status toki_pool_create(size_t slots, toki_content content, toki_pool** pool,
                             toki_error* error) {
  if (const toki_status status = cleared(pool, error)) {
    return status;
  }
  if (content != TOKI_CONTENT_EMPTY && content != TOKI_CONTENT_UNKNOWN) {
    return wrong(error, "slots begin empty or unknown");
  }
  return made(pool, error, [&] { return SlotPool(slots, static_cast<SlotContent>(content)); });
}

void toki_pool_free(toki_pool* pool) {
  delete pool;
}

size_t toki_pool_common(const toki_pool* pool, uint32_t slot, const toki_scope* scope,
                        const toki_token* tokens, size_t count) {
  TOKI_CHECK(pool != nullptr);
  return pool->pool.common(slot, scope_of(scope), span_of(tokens, count));
}

toki_status toki_pool_lease(toki_pool* pool, uint32_t slot, toki_error* error) {
  if (const toki_status status = check_slot(pool, slot, error)) {
    return status;
  }
  if (pool->pool[slot].leased) {
    return fail(error, TOKI_ERROR_BUSY, "the slot is in use");
  }
  pool->pool.lease(slot, {});
  return kOk;
}

toki_status toki_pool_release(toki_pool* pool, uint32_t slot, toki_error* error) {
  if (const toki_status status = check_slot(pool, slot, error)) {
    return status;
  }
  pool->pool.release(slot);
  return kOk;
}

toki_status toki_pool_hold(toki_pool* pool, uint32_t slot, const toki_scope* scope,
                           const toki_token* tokens, size_t count, uint64_t unknown_tail,
                           toki_error* error) {
  if (const toki_status status = check_slot(pool, slot, error)) {
    return status;
  }
  if (!is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    pool->pool.hold(slot, scope_of(scope), Tokens(tokens, tokens + count), unknown_tail, 0);
    return kOk;
  });
}

toki_status toki_pool_set_content(toki_pool* pool, uint32_t slot, toki_content content,
                                  toki_error* error) {
  if (const toki_status status = check_slot(pool, slot, error)) {
    return status;
  }
  switch (content) {
    case TOKI_CONTENT_EMPTY: pool->pool.set_empty(slot); return kOk;
    case TOKI_CONTENT_UNKNOWN: pool->pool.set_unknown(slot); return kOk;
    default: return wrong(error, "a slot is made empty or unknown; toki_pool_hold() says more");
  }
}

toki_status toki_pool_slot(const toki_pool* pool, uint32_t slot, toki_slot_info* info,
                           toki_error* error) {
  if (const toki_status status = check_slot(pool, slot, error)) {
    return status;
  }
  if (const toki_status status = writable(info, error)) {
    return status;
  }
  const Slot& held = pool->pool[slot];
  write(info_of({.content = held.content,
                 .known_tokens = held.tokens.size(),
                 .unknown_tail = held.unknown_tail,
                 .leased = held.leased,
                 .last_used = held.last_used}),
        info);
  return kOk;
}

toki_status toki_token_cache_create(size_t max_bytes, toki_token_cache** cache, toki_error* error) {
  const toki_status status = cleared(cache, error);
  return status != TOKI_OK ? status : made(cache, error, [&] { return TokenCache(max_bytes); });
}

void toki_token_cache_free(toki_token_cache* cache) {
  delete cache;
}

toki_status toki_token_cache_reset(toki_token_cache* cache, const toki_special_token* specials,
                                   size_t count, toki_error* error) {
  if (cache == nullptr || !is_list(specials, count) ||
      std::any_of(specials, specials + count, [](auto& one) { return one.text == nullptr; })) {
    return missing(error);
  }
  return guarded(error, [&] {
    std::vector<SpecialToken> ours;
    for (std::size_t i = 0; i < count; ++i) {
      ours.push_back({specials[i].text, specials[i].id});
    }
    cache->cache.reset(std::move(ours));
    return kOk;
  });
}

toki_status toki_token_cache_find(toki_token_cache* cache, const char* text, size_t length,
                                  bool start_token, toki_token* tokens, size_t capacity,
                                  size_t* known_bytes, size_t* known_tokens, toki_error* error) {
  if (cache == nullptr || !is_list(text, length) || !is_list(tokens, capacity) ||
      known_bytes == nullptr || known_tokens == nullptr) {
    return missing(error);
  }
  return guarded(error, [&] {
    const auto known = cache->cache.find({text, length}, start_token);
    std::copy_n(known.tokens.begin(), std::min(capacity, known.tokens.size()), tokens);
    *known_bytes = known.bytes;
    *known_tokens = known.tokens.size();
    return kOk;
  });
}

toki_status toki_token_cache_put(toki_token_cache* cache, const char* text, size_t length,
                                 bool start_token, const toki_token* tokens, size_t count,
                                 toki_error* error) {
  if (cache == nullptr || !is_list(text, length) || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    cache->cache.put({text, length}, start_token, span_of(tokens, count));
    return kOk;
  });
}

size_t toki_token_cache_bytes(const toki_token_cache* cache) {
  TOKI_CHECK(cache != nullptr);
  return cache->cache.bytes();
}
