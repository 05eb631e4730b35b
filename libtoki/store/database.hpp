// Opens a SQLite file the way this project wants one: private, owned, with a write-ahead log that
// has a limit; and moves aside what cannot be used.
//
// Threads:   one at a time; each function works on what it is given.
// Ownership: the caller owns the connection.
// Errors:    SQLite::Exception. Nothing waits for a lock: SQLITE_BUSY comes at once.
// Cost:      some file operations each.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <memory>
#include <string>

namespace toki {

struct DatabaseOptions {
  std::string path;               ///< its folder must exist; the file is made with mode 0600
  std::string vfs;                ///< empty: SQLite's own
  std::int32_t application = 0;   ///< PRAGMA application_id
  std::int32_t version = 0;       ///< PRAGMA user_version
  bool exclusive = false;         ///< no other connection, and no shared memory file that others
                                  ///< could cut under us
  const char* schema = "";        ///< statements that make a new database
  std::uint64_t usual_log_bytes;  ///< the log is started over at this size, readers permitting
};

/// Opens the database, or makes it when there is none. One of another application or version, or
/// one that is damaged, is left as it is and gives an exception that is_damage() knows.
std::unique_ptr<SQLite::Database> open_database(const DatabaseOptions& options);

/// The file cannot be used as it is, now or later: not a database, malformed, not ours. Our
/// statements are fixed, so that an error in them, too, means a schema that is not ours.
bool is_damage(const SQLite::Exception& fault) noexcept;
/// Another connection holds a lock; it may be over soon.
bool is_locked(const SQLite::Exception& fault) noexcept;

/// Renames the closed database to `<path>.aside-<unix seconds>`, with its log and journal, and
/// returns that name. Of files set aside that this application made, the newest three are kept;
/// others are never deleted, and when eight of them lie there, no more is set aside.
std::string set_aside(const std::string& path, std::int32_t application);

/// The file is no longer the one at its path.
bool has_moved(SQLite::Database& database);
/// Writes the log into the database and cuts it to nothing. False when a reader or a writer is in
/// the way; then what can be written was written.
bool empty_log(SQLite::Database& database);
/// Whether closing leaves the log as it is, which takes no time, or writes it into the database.
void keep_log_on_close(SQLite::Database& database, bool keep);

/// 0 when there is none.
std::uint64_t file_bytes(const std::string& path) noexcept;
std::uint64_t log_bytes(const std::string& path) noexcept;

}  // namespace toki
