// The C API: the store on disk, and the statistics of store and engine.
#include <toki/kv_store.hpp>
#include <toki/stats.hpp>

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "c_api.hpp"

using namespace toki;
using namespace toki::c;

namespace {

LogSink log_of(const toki_store_options& options) {
  if (options.log == nullptr) {
    return [](LogLevel, std::string_view) {};
  }
  return [call = options.log, user = options.log_user](LogLevel level, std::string_view line) {
    call(user, static_cast<toki_log_level>(level), std::string(line).c_str());
  };
}

std::array<StatRow, kStatRows> rows_of(const toki_engine* engine, const toki_store* store) {
  Stats stats = engine != nullptr ? engine->engine.stats() : Stats{};
  if (store != nullptr) {
    store->store->add_to(stats);
  }
  std::array<StatRow, kStatRows> rows;
  stat_rows(stats, rows);
  return rows;
}

}  // namespace

toki_status toki_store_open(const toki_store_options* given, toki_store** store,
                            toki_error* error) {
  toki_store_options options{};
  if (const toki_status status = options_for(store, given, options, error)) {
    return status;
  }
  if (options.dir == nullptr || options.slot_dir == nullptr) {
    return missing(error);
  }
  return guarded(error, [&] {
    KvStoreOptions ours{.dir = options.dir, .slot_dir = options.slot_dir};
    ours.max_bytes = given_or(options.max_bytes, ours.max_bytes);
    auto opened = KvStore::open(ours, log_of(options));
    return opened ? made(store, error, [&] { return std::shared_ptr<KvStore>(std::move(*opened)); })
                  : fail(error, opened.error());
  });
}

void toki_store_close(toki_store* store) {
  delete store;
}

uint64_t toki_store_match(const toki_store* store, const toki_scope* scope,
                          const toki_token* tokens, size_t count) {
  TOKI_CHECK(store != nullptr);
  std::uint64_t stored = 0;
  guarded(nullptr, [&] {
    stored = store->store->match(scope_of(scope), span_of(tokens, count)).tokens;
    return kOk;
  });
  return stored;
}

toki_status toki_store_take(toki_store* store, const toki_scope* scope, const toki_token* tokens,
                            size_t count, const char* file, bool whole, double token_ms,
                            uint64_t* taken, toki_error* error) {
  if (store == nullptr || file == nullptr || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    const auto done =
        store->store->take(scope_of(scope), span_of(tokens, count), file, whole, token_ms);
    if (!done) {
      return fail(error, done.error());
    }
    if (taken != nullptr) {
      *taken = done->tokens.size();
    }
    return kOk;
  });
}

toki_status toki_store_compose(toki_store* store, const toki_scope* scope, const toki_token* tokens,
                               size_t count, uint32_t slot, const char* file, uint64_t* composed,
                               toki_error* error) {
  if (store == nullptr || file == nullptr || composed == nullptr || !is_list(tokens, count)) {
    return missing(error);
  }
  return guarded(error, [&] {
    const auto done =
        store->store->compose(scope_of(scope), span_of(tokens, count), count, slot, file);
    if (!done) {
      return fail(error, done.error());
    }
    *composed = *done;
    return kOk;
  });
}

toki_status toki_store_discard(toki_store* store, const char* file, toki_error* error) {
  return store == nullptr || file == nullptr ? missing(error) : guarded(error, [&] {
    return store->store->discard(file)
               ? kOk
               : fail(error, TOKI_ERROR_NOT_FOUND, "there is no such state file");
  });
}

toki_status toki_store_forget_all(toki_store* store, uint64_t* pieces, toki_error* error) {
  return store == nullptr ? missing(error) : guarded(error, [&] {
    const auto gone = store->store->forget(std::nullopt);
    if (!gone) {
      return fail(error, gone.error());
    }
    if (pieces != nullptr) {
      *pieces = *gone;
    }
    return kOk;
  });
}

toki_status toki_store_maintain(toki_store* store, toki_error* error) {
  return store == nullptr ? missing(error) : guarded(error, [&] {
    store->store->maintain();
    return kOk;
  });
}

toki_status toki_stats_get(const toki_engine* engine, const toki_store* store, const char* name,
                           double* value, toki_error* error) {
  if (name == nullptr || value == nullptr) {
    return missing(error);
  }
  return guarded(error, [&] {
    for (const StatRow& row : rows_of(engine, store)) {
      if (row.name == name) {
        *value = row.value;
        return kOk;
      }
    }
    return fail(error, TOKI_ERROR_NOT_FOUND, "there is no statistic of this name");
  });
}

toki_status toki_stats_visit(const toki_engine* engine, const toki_store* store,
                             void (*visit)(void* user, const toki_stat* stat), void* user,
                             toki_error* error) {
  return visit == nullptr ? missing(error) : guarded(error, [&] {
    for (const StatRow& row : rows_of(engine, store)) {
      auto stat = sized<toki_stat>();
      stat.name = row.name.data();  // literals, which end with a zero
      stat.help = row.help.data();
      stat.value = row.value;
      stat.counter = row.counter;
      visit(user, &stat);
    }
    return kOk;
  });
}
