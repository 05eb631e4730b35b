// IndexStore: known prompts on disk (SQLite), so that they survive a restart. Nobody waits for it:
// writes go through a bounded queue to one thread, and what does not fit is dropped and counted.
//
// Threads:   shareable; it has one thread of its own, which alone touches the database. `loaded`
//            and the log sink are called on that thread and must not throw.
// Ownership: owns the file while it is open. Files are made with mode 0600: prompts are in them.
// Errors:    none reach the caller: a locked, full, damaged or foreign database is retried, set
//            aside or left alone, said once in the log and counted in stats().
// Cost:      put, use and remove: one lock, one look-up and one move. Writes are gathered into
//            transactions, for 20 ms; several to one prompt that still wait are one.
//
// While the database cannot be written (locked, no space, no folder, a log that a foreign reader
// keeps from being shortened), writes wait in the queue. Once that has lasted for `patience`, they
// are dropped at every failed attempt; attempts come every 0.1 s when it is locked, and with pauses
// growing from `retry` to 30 s otherwise.
//
// What was written survives the end of the program, however it ends. A power failure may take the
// last seconds with it, never a part of a record.
//
// A file that is damaged, of another version or of another application is renamed to
// `<path>.aside-<unix seconds>` and a new one is begun. The newest three of our own making are
// kept; others are never deleted, and with eight of them there the store stays closed.
#pragma once

#include <toki/export.hpp>
#include <toki/log.hpp>
#include <toki/prompt_record.hpp>
#include <toki/stats.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace toki {

/// Where the index lies, and its limits.
struct IndexStoreOptions {
  std::string path;                 ///< of the database file; its folder must exist
  std::size_t queue_length = 1024;  ///< most prompts with writes that wait; more are dropped
  /// Most bytes of the write-ahead log: beyond it nothing is written before it is shortened. One
  /// transaction (4 MiB and one record) may go past it.
  std::uint64_t max_log_bytes = std::uint64_t{64} << 20;
  std::chrono::milliseconds maintenance{10000};  ///< time between looks at the log's size
  std::chrono::milliseconds patience{30000};     ///< writes wait so long for a database
  std::chrono::milliseconds retry{100};          ///< first pause after a fault
  std::size_t max_prompts = 4096;                ///< most prompts kept; the longest unused go first
  std::string vfs;                               ///< for tests: a SQLite VFS; empty: SQLite's own
};

/// What it has done and holds, now.
struct IndexStoreStats {
  bool open = false;            ///< the database takes writes
  std::uint64_t loaded = 0;     ///< prompts read at the start
  std::uint64_t written = 0;    ///< writes done
  std::uint64_t dropped = 0;    ///< writes lost: queue full, database unusable for too long
  std::uint64_t damaged = 0;    ///< prompts whose checksum was wrong: skipped and deleted
  std::uint64_t set_aside = 0;  ///< databases that could not be used and were renamed
  std::uint64_t queued = 0;     ///< writes that wait
  std::uint64_t bytes = 0;      ///< of the database file
  std::uint64_t log_bytes = 0;  ///< of its write-ahead log
};

/// Known prompts in a SQLite file, behind a queue and a thread of its own. Whatever happens to the
/// file costs memory of prompts, never a request.
class TOKI_EXPORT IndexStore {
 public:
  /// `loaded` gets everything that was kept, once, most recently used first: nothing, when the
  /// database is new or cannot be used, or is locked for longer than `patience`. It may run until the
  /// destructor returns, and does not begin much after that has begun. REQUIRES: queue_length and maintenance above 0.
  IndexStore(IndexStoreOptions options, LogSink log,
             std::function<void(std::vector<PromptRecord>)> loaded);
  /// Writes what is queued, for at most two seconds; not longer than one disk operation after it.
  ~IndexStore();
  IndexStore(const IndexStore&) = delete;
  IndexStore& operator=(const IndexStore&) = delete;

  /// Adds or replaces. False: dropped, because the queue is full or the record is longer than any
  /// prompt (2^24 tokens, 2^16 values or bytes of scope). A `use` that is no number counts as 0.
  bool put(PromptRecord record);
  /// A known prompt was used again; without effect when it is not kept.
  bool use(std::uint64_t id, double use, std::int64_t last_used_ms);
  /// Takes the place of whatever still waits to be written for this prompt.
  bool remove(std::uint64_t id);
  /// Removes all, also what waits to be written and what is still to be loaded.
  void clear();
  /// What was removed before is also to go from the database's log, and not only from the database,
  /// whose free pages are overwritten at once. Before a flush().
  void wipe();

  /// Waits until everything queued before is written; false when that took too long or was lost.
  bool flush(std::chrono::milliseconds limit);
  /// From any thread; waits for nothing but memory.
  IndexStoreStats stats() const;
  void add_to(Stats& stats) const;  ///< the same figures, among all others

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
