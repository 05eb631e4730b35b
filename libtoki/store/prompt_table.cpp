#include "store/prompt_table.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>

#include "core/hash.hpp"

#include <sqlite3.h>

namespace toki {
namespace {

static_assert(sizeof(Token) == 4 && sizeof(float) == 4);

template <class Value>
void append_number(std::string& bytes, Value value) {
  for (std::size_t shift = 0; shift < 8 * sizeof(Value); shift += 8) {
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> shift));
  }
}

/// Four little-endian bytes a value.
template <class Value>
std::string to_blob(const std::vector<Value>& values) {
  std::string blob(4 * values.size(), '\0');
  if constexpr (std::endian::native == std::endian::little) {
    if (!values.empty()) {
      std::memcpy(blob.data(), values.data(), blob.size());
    }
  } else {
    blob.clear();
    for (const Value value : values) {
      append_number(blob, std::bit_cast<std::uint32_t>(value));
    }
  }
  return blob;
}

/// REQUIRES: four bytes a value.
template <class Value>
std::vector<Value> from_blob(std::string_view blob) {
  std::vector<Value> values(blob.size() / 4);
  if constexpr (std::endian::native == std::endian::little) {
    if (!values.empty()) {
      std::memcpy(values.data(), blob.data(), blob.size());
    }
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits = 0;
      for (std::size_t byte = 4; byte-- > 0;) {
        bits = bits << 8 | static_cast<unsigned char>(blob[4 * i + byte]);
      }
      values[i] = std::bit_cast<Value>(bits);
    }
  }
  return values;
}

std::int64_t hash(const std::string& bytes) noexcept {
  return static_cast<std::int64_t>(hash_bytes(bytes.data(), bytes.size()));
}

/// Over all that never changes. Parts are framed by their lengths.
std::int64_t content_sum(std::uint64_t id, std::int64_t kind, std::string_view scope,
                         std::string_view tokens, std::string_view embedding,
                         std::string_view model) {
  std::string bytes;
  bytes.reserve(48 + scope.size() + tokens.size() + embedding.size() + model.size());
  append_number(bytes, id);
  append_number(bytes, kind);
  for (const std::string_view part : {scope, tokens, embedding, model}) {
    append_number(bytes, std::uint64_t{part.size()});
    bytes += part;
  }
  return hash(bytes);
}

/// Over what changes at each use, so that a use need not read the content.
std::int64_t use_sum(std::uint64_t id, double use, std::int64_t last_used_ms) {
  std::string bytes;
  append_number(bytes, id);
  append_number(bytes, std::bit_cast<std::uint64_t>(use));
  append_number(bytes, last_used_ms);
  return hash(bytes);
}

void bind_blob(SQLite::Statement& statement, int index, std::string_view blob) {
  statement.bindNoCopy(index, blob.data(), static_cast<int>(blob.size()));
}

int run(SQLite::Statement& statement) {
  const int changes = statement.exec();
  statement.reset();
  return changes;
}

/// What the column holds; a view of nothing when it is no blob, or too long.
std::string_view blob_of(const SQLite::Column& column, std::size_t most, bool& whole) {
  const auto size = static_cast<std::size_t>(column.getBytes());
  if (!column.isBlob() || size > most) {
    whole = false;
    return {};
  }
  return {static_cast<const char*>(column.getBlob()), size};
}

/// Columns as read() selects them. False: damaged.
bool to_record(SQLite::Statement& row, PromptRecord& record) {
  bool whole = row.getColumn(2).isFloat();
  const auto kind = row.getColumn(4).getInt64();
  const auto scope = blob_of(row.getColumn(5), PromptTable::kMostScopeBytes, whole);
  const auto tokens = blob_of(row.getColumn(6), 4 * PromptTable::kMostTokens, whole);
  const auto values = blob_of(row.getColumn(7), 4 * PromptTable::kMostValues, whole);
  const auto model = blob_of(row.getColumn(8), PromptTable::kMostScopeBytes, whole);
  record.id = static_cast<std::uint64_t>(row.getColumn(0).getInt64());
  record.last_used_ms = row.getColumn(1).getInt64();
  record.use = row.getColumn(2).getDouble();
  if (!whole || tokens.size() % 4 != 0 || values.size() % 4 != 0 || kind < 0 ||
      kind > static_cast<std::int64_t>(EmbeddingKind::hash) ||
      row.getColumn(3).getInt64() != use_sum(record.id, record.use, record.last_used_ms) ||
      row.getColumn(9).getInt64() != content_sum(record.id, kind, scope, tokens, values, model)) {
    return false;
  }
  record.scope = Scope::from_bytes(std::string(scope));
  record.tokens = from_blob<Token>(tokens);
  record.embedding = {static_cast<EmbeddingKind>(kind), from_blob<float>(values),
                      std::string(model)};
  return true;
}

}  // namespace

bool PromptTable::fits(const PromptRecord& record) noexcept {
  return record.tokens.size() <= kMostTokens && record.embedding.values.size() <= kMostValues &&
         record.scope.bytes().size() <= kMostScopeBytes &&
         record.embedding.model.size() <= kMostScopeBytes;
}

PromptTable::PromptTable(SQLite::Database& database)
    : database_(database),
      put_(database, "INSERT OR REPLACE INTO prompts VALUES(?,?,?,?,?,?,?,?,?,?)"),
      use_(database, "UPDATE prompts SET last_used=?, use=?, use_sum=? WHERE id=?"),
      remove_(database, "DELETE FROM prompts WHERE id=?"),
      count_(database, "SELECT count(*) FROM prompts"),
      evict_(database,
             "DELETE FROM prompts WHERE id IN"
             " (SELECT id FROM prompts ORDER BY last_used, id LIMIT ?)") {
  rows_at_most_ = count();
}

void PromptTable::read(std::vector<PromptRecord>& records, std::vector<std::uint64_t>& bad,
                       const std::atomic<bool>& stop) {
  SQLite::Statement rows(database_,
                         "SELECT id, last_used, use, use_sum, kind, scope, tokens, embedding,"
                         " model, content_sum FROM prompts NOT INDEXED ORDER BY id");
  std::int64_t last = 0;
  for (bool first = true; !stop && rows.executeStep(); first = false) {
    const std::int64_t id = rows.getColumn(0).getInt64();
    if (!first && id <= last) {
      throw SQLite::Exception("its rows are in no order", SQLITE_CORRUPT);
    }
    last = id;
    PromptRecord record;
    if (to_record(rows, record)) {
      records.push_back(std::move(record));
    } else {
      bad.push_back(static_cast<std::uint64_t>(id));
    }
  }
}

void PromptTable::put(const PromptRecord& record) {
  const auto kind = static_cast<std::int64_t>(record.embedding.kind);
  const std::string tokens = to_blob(record.tokens);
  const std::string values = to_blob(record.embedding.values);
  const std::string& scope = record.scope.bytes();
  put_.bind(1, static_cast<std::int64_t>(record.id));
  put_.bind(2, record.last_used_ms);
  put_.bind(3, record.use);
  put_.bind(4, use_sum(record.id, record.use, record.last_used_ms));
  put_.bind(5, kind);
  bind_blob(put_, 6, scope);
  bind_blob(put_, 7, tokens);
  bind_blob(put_, 8, values);
  bind_blob(put_, 9, record.embedding.model);
  put_.bind(10, content_sum(record.id, kind, scope, tokens, values, record.embedding.model));
  run(put_);
  ++rows_at_most_;
}

void PromptTable::use(std::uint64_t id, double use, std::int64_t last_used_ms) {
  use_.bind(1, last_used_ms);
  use_.bind(2, use);
  use_.bind(3, use_sum(id, use, last_used_ms));
  use_.bind(4, static_cast<std::int64_t>(id));
  run(use_);
}

void PromptTable::remove(std::uint64_t id) {
  remove_.bind(1, static_cast<std::int64_t>(id));
  run(remove_);
}

void PromptTable::clear() {
  database_.exec("DELETE FROM prompts");
  rows_at_most_ = 0;
}

void PromptTable::evict(std::size_t most) {
  if (rows_at_most_ <= most) {
    return;
  }
  const std::size_t rows = count();
  rows_at_most_ = std::min(rows, most);
  if (rows > most) {
    evict_.bind(1, static_cast<std::int64_t>(rows - most));
    if (static_cast<std::size_t>(run(evict_)) != rows - most) {
      throw SQLite::Exception("its index names rows that it does not have", SQLITE_CORRUPT);
    }
  }
}

void PromptTable::make_index_again() {
  database_.exec("REINDEX prompts_by_use");
}

std::size_t PromptTable::count() {
  count_.executeStep();
  const auto rows = static_cast<std::size_t>(count_.getColumn(0).getInt64());
  count_.reset();
  return rows;
}

}  // namespace toki
