#include "store/database.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <sqlite3.h>

namespace toki {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kOwnKept = 3;
constexpr std::size_t kForeignKept = 8;
// The main file last: when we are stopped in between, the database is found and set aside again.
constexpr std::array<const char*, 4> kSuffixes{"-wal", "-shm", "-journal", ""};

/// The file must be private before anything is in it; SQLite gives its mode to log and journal.
/// A file that exists is not opened here: closing it would end the locks that other connections of
/// this process hold on it.
void make_private_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file >= 0) {
    ::fchmod(file, 0600);  // whatever the umask is
    ::close(file);
  } else if (errno != EEXIST) {
    throw SQLite::Exception("it cannot be made: " + std::generic_category().message(errno),
                            SQLITE_CANTOPEN);
  }
}

std::int64_t number(SQLite::Database& database, const char* query) {
  return database.execAndGet(query).getInt64();
}

/// True: nothing is in it yet.
bool check_owner(SQLite::Database& database, const DatabaseOptions& options) {
  const auto application = number(database, "PRAGMA application_id");
  const auto version = number(database, "PRAGMA user_version");
  if (application == 0 && version == 0 &&
      number(database, "SELECT count(*) FROM sqlite_schema") == 0) {
    return true;
  }
  if (application != options.application) {
    throw SQLite::Exception("it was made by another application", SQLITE_NOTADB);
  }
  if (version != options.version) {
    throw SQLite::Exception("its schema has version " + std::to_string(version) + " instead of " +
                                std::to_string(options.version),
                            SQLITE_NOTADB);
  }
  return false;
}

bool is_new(SQLite::Database& database, const DatabaseOptions& options) {
  SQLite::Transaction together(database);  // another process may be making it just now
  const bool nothing = check_owner(database, options);
  if (sqlite3_db_readonly(database.getHandle(), "main") != 0) {
    // Where the file can be written, a header that forbids it is damaged.
    const bool writable = ::access(options.path.c_str(), W_OK) == 0;
    throw SQLite::Exception("it is read-only", writable ? SQLITE_NOTADB : SQLITE_READONLY);
  }
  together.commit();
  return nothing;
}

void make_schema(SQLite::Database& database, const DatabaseOptions& options) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  if (!check_owner(database, options)) {
    return;  // another process made it meanwhile
  }
  database.exec("PRAGMA application_id=" + std::to_string(options.application));
  database.exec("PRAGMA user_version=" + std::to_string(options.version));
  database.exec(options.schema);
  transaction.commit();
}

bool made_by(std::int32_t application, const fs::path& path) {
  std::array<char, 72> header{};
  std::ifstream(path, std::ios::binary).read(header.data(), header.size());
  std::uint32_t id = 0;
  for (std::size_t i = 68; i < 72; ++i) {
    id = id << 8 | static_cast<unsigned char>(header[i]);
  }
  return std::string_view(header.data(), 15) == "SQLite format 3" &&
         id == static_cast<std::uint32_t>(application);
}

/// Names are "<path>.aside-" and ten digits, so that they sort by age.
std::vector<fs::path> files_aside(const std::string& path) {
  const std::string begin = fs::path(path).filename().string() + ".aside-";
  std::vector<fs::path> files;
  std::error_code ignored;
  for (fs::directory_iterator it(fs::absolute(path).parent_path(), ignored), end; it != end;
       it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(begin) &&
        name.find_first_not_of("0123456789", begin.size()) == std::string::npos) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Makes room for one more, which is of our own making or is not.
void limit_aside(const std::string& path, std::int32_t application) {
  const bool own = made_by(application, path);
  auto files = files_aside(path);
  const auto foreign = std::stable_partition(
      files.begin(), files.end(), [&](const auto& file) { return made_by(application, file); });
  if (!own && files.end() - foreign >= static_cast<std::ptrdiff_t>(kForeignKept)) {
    throw SQLite::Exception("too many files were set aside already; look at " + path + ".aside-*",
                            SQLITE_CANTOPEN);
  }
  for (auto file = files.begin(); own && foreign - file >= static_cast<std::ptrdiff_t>(kOwnKept);
       ++file) {
    for (const char* suffix : kSuffixes) {
      std::error_code ignored;
      fs::remove(file->string() + suffix, ignored);
    }
  }
}

}  // namespace

std::unique_ptr<SQLite::Database> open_database(const DatabaseOptions& options) {
  make_private_file(options.path);
  auto database =
      std::make_unique<SQLite::Database>(options.path, SQLite::OPEN_READWRITE, 0, options.vfs);
  keep_log_on_close(*database, true);  // it may not be ours
  const bool made = is_new(*database, options);
  if (made) {
    ::chmod(options.path.c_str(), 0600);  // an empty file may have lain there
  }
  if (options.exclusive) {
    database->exec("PRAGMA locking_mode=EXCLUSIVE");
  }
  if (database->execAndGet("PRAGMA journal_mode=WAL").getString() != "wal") {
    throw SQLite::Exception("its file system has no shared memory for the log", SQLITE_CANTOPEN);
  }
  database->exec("PRAGMA secure_delete=ON");  // what is forgotten is not left in free pages
  database->exec("PRAGMA synchronous=NORMAL; PRAGMA cell_size_check=ON; PRAGMA trusted_schema=OFF");
  database->exec("PRAGMA journal_size_limit=" + std::to_string(options.usual_log_bytes));
  const auto page = static_cast<std::uint64_t>(number(*database, "PRAGMA page_size"));
  database->exec("PRAGMA wal_autocheckpoint=" +
                 std::to_string(std::max<std::uint64_t>(options.usual_log_bytes / page, 1)));
  if (made) {
    make_schema(*database, options);
  }
  keep_log_on_close(*database, false);
  return database;
}

bool is_damage(const SQLite::Exception& fault) noexcept {
  switch (fault.getErrorCode() & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH: return true;
    default: return fault.getExtendedErrorCode() == SQLITE_IOERR_DATA;
  }
}

bool is_locked(const SQLite::Exception& fault) noexcept {
  const int code = fault.getErrorCode() & 0xff;
  return code == SQLITE_BUSY || code == SQLITE_LOCKED;
}

std::string set_aside(const std::string& path, std::int32_t application) {
  limit_aside(path, application);
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  std::error_code reason;
  std::string name;
  do {
    name = path + ".aside-" + std::to_string(seconds++);
  } while (fs::exists(fs::symlink_status(name, reason)));
  for (const char* suffix : kSuffixes) {
    fs::rename(path + suffix, name + suffix, reason);
    if (reason && reason != std::errc::no_such_file_or_directory) {
      throw SQLite::Exception("it cannot be set aside: " + reason.message(), SQLITE_CANTOPEN);
    }
  }
  return name;
}

bool has_moved(SQLite::Database& database) {
  int moved = 0;
  return sqlite3_file_control(database.getHandle(), "main", SQLITE_FCNTL_HAS_MOVED, &moved) ==
             SQLITE_OK &&
         moved != 0;
}

bool empty_log(SQLite::Database& database) {
  const int code = sqlite3_wal_checkpoint_v2(database.getHandle(), "main",
                                             SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  if (code != SQLITE_OK && code != SQLITE_BUSY) {
    throw SQLite::Exception(database.getHandle(), code);
  }
  return code == SQLITE_OK;
}

void keep_log_on_close(SQLite::Database& database, bool keep) {
  sqlite3_db_config(database.getHandle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep ? 1 : 0, nullptr);
}

std::uint64_t file_bytes(const std::string& path) noexcept {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::uint64_t log_bytes(const std::string& path) noexcept {
  return file_bytes(path + "-wal");
}

}  // namespace toki
