// PromptTable: prompt records as rows of a SQLite table, each with checksums over all it holds.
//
// Threads:   one at a time.
// Ownership: prepared statements of a connection that must outlive it.
// Errors:    SQLite::Exception.
// Cost:      put copies a record twice; use and remove touch one row and its index entry. Nothing
//            here opens or ends a write transaction; no read lasts longer than its call.
#pragma once

#include <toki/prompt_record.hpp>

#include <SQLiteCpp/SQLiteCpp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace toki {

class PromptTable {
 public:
  static constexpr std::int32_t kApplication = 0x746f6b69;  ///< "toki"
  static constexpr std::int32_t kVersion = 1;
  /// What a use changes comes first: it lies in the row's own page, however long the prompt is.
  static constexpr const char* kSchema =
      "CREATE TABLE prompts("
      " id INTEGER PRIMARY KEY,"
      " last_used INTEGER NOT NULL,"  // milliseconds since 1970
      " use REAL NOT NULL,"
      " use_sum INTEGER NOT NULL,"  // XXH3 over id, use, last_used
      " kind INTEGER NOT NULL,"     // EmbeddingKind
      " scope BLOB NOT NULL,"
      " tokens BLOB NOT NULL,"         // little-endian i32
      " embedding BLOB NOT NULL,"      // little-endian f32
      " model BLOB NOT NULL,"          // that made the embedding
      " content_sum INTEGER NOT NULL"  // XXH3 over id, kind, scope, tokens, embedding, model
      ") STRICT;"
      "CREATE INDEX prompts_by_use ON prompts(last_used);";

  /// Records above these lengths are neither written nor read.
  static constexpr std::size_t kMostTokens = std::size_t{1} << 24;
  static constexpr std::size_t kMostValues = std::size_t{1} << 16;
  static constexpr std::size_t kMostScopeBytes = std::size_t{1} << 16;
  static bool fits(const PromptRecord& record) noexcept;

  explicit PromptTable(SQLite::Database& database);

  /// Every whole row, by id, and the ids of those that are not. On an exception, what was
  /// read before it is whole. Ends early when `stop` becomes true.
  void read(std::vector<PromptRecord>& records, std::vector<std::uint64_t>& bad,
            const std::atomic<bool>& stop);

  /// Adds or replaces. REQUIRES: fits(record).
  void put(const PromptRecord& record);
  void use(std::uint64_t id, double use, std::int64_t last_used_ms);
  void remove(std::uint64_t id);
  void clear();
  /// Deletes the longest unused rows above `most`. One comparison while there cannot be so many,
  /// otherwise a count.
  void evict(std::size_t most);
  /// Makes the index from the rows, whatever is in it.
  void make_index_again();

 private:
  std::size_t count();

  SQLite::Database& database_;
  SQLite::Statement put_;
  SQLite::Statement use_;
  SQLite::Statement remove_;
  SQLite::Statement count_;
  SQLite::Statement evict_;
  std::size_t rows_at_most_ = 0;
};

}  // namespace toki
