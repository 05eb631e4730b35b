// IndexStore: known prompts on disk (SQLite), so that they survive a restart. Nobody waits for it:
// writes go through a bounded queue to one thread, and what does not fit is dropped and counted.
//
// Threads:   shareable; it has one thread of its own, which alone touches the database. The
//            callbacks given to open() run on that thread.
// Ownership: owns the file while it is open.
// Errors:    none reach the caller: a locked, full, damaged or foreign database is retried, set
//            aside or left alone, said once in the log and counted in stats().
// Cost:      put, use and remove: one lock and one move. Writes are gathered into transactions.
#pragma once

#include <toki/export.hpp>
#include <toki/log.hpp>
#include <toki/prompt_record.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace toki {

struct IndexStoreOptions {
  std::string path;                 ///< of the database file; its folder must exist
  std::size_t queue_length = 1024;  ///< most writes that wait; more are dropped
  std::uint64_t max_log_bytes = std::uint64_t{64} << 20;  ///< write-ahead log, once readers end
  std::chrono::milliseconds maintenance{10000};           ///< time between looks at the log's size
  std::chrono::milliseconds patience{30000};              ///< a locked database is retried so long
  std::size_t max_prompts = 4096;  ///< most prompts kept; the longest unused go first
};

struct IndexStoreStats {
  bool open = false;          ///< the database takes writes
  std::uint64_t loaded = 0;   ///< prompts read at the start
  std::uint64_t written = 0;  ///< writes done
  std::uint64_t dropped = 0;  ///< writes lost: queue full, database locked too long, full or broken
  std::uint64_t set_aside = 0;  ///< databases that could not be used and were renamed
  std::uint64_t queued = 0;
  std::uint64_t bytes = 0;      ///< of the database file
  std::uint64_t log_bytes = 0;  ///< of its write-ahead log
};

class TOKI_EXPORT IndexStore {
 public:
  /// `loaded` gets everything that was kept, once, most recently used first; it may come late when
  /// the database is locked.
  IndexStore(IndexStoreOptions options, LogSink log,
             std::function<void(std::vector<PromptRecord>)> loaded);
  /// Writes what is queued, for at most two seconds.
  ~IndexStore();
  IndexStore(const IndexStore&) = delete;
  IndexStore& operator=(const IndexStore&) = delete;

  /// Adds or replaces. False: dropped.
  bool put(PromptRecord record);
  /// A known prompt was used again.
  bool use(std::uint64_t id, double use, std::int64_t last_used_ms);
  bool remove(std::uint64_t id);

  /// Waits until everything queued before is on disk; false when that took too long or was lost.
  bool flush(std::chrono::milliseconds limit);
  IndexStoreStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
