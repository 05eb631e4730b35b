#include "store/segment_catalogue.hpp"

#include <utility>

#include "store/database.hpp"

namespace toki {
namespace {

constexpr std::int32_t kVersion = 1;
constexpr std::uint64_t kUsualLogBytes = std::uint64_t{4} << 20;
// Uses change often and are small, headers are large and never change: two tables.
constexpr const char* kSchema =
    "CREATE TABLE segment (id INTEGER PRIMARY KEY, header BLOB NOT NULL) STRICT;"
    "CREATE TABLE used (id INTEGER PRIMARY KEY, use REAL NOT NULL, last_used_ms INTEGER NOT NULL) "
    "STRICT;";

std::int64_t key(std::uint64_t id) {
  return static_cast<std::int64_t>(id);
}

}  // namespace

SegmentCatalogue::SegmentCatalogue(const std::string& path, const std::string& vfs)
    : database_(open_database({.path = path,
                               .vfs = vfs,
                               .application = kApplication,
                               .version = kVersion,
                               .exclusive = true,
                               .schema = kSchema,
                               .usual_log_bytes = kUsualLogBytes})) {}

void SegmentCatalogue::read(
    const std::function<void(std::uint64_t id, std::string header)>& segment,
    const std::function<void(const Use&)>& use) {
  SQLite::Statement segments(*database_, "SELECT id, header FROM segment ORDER BY id");
  while (segments.executeStep()) {
    const SQLite::Column header = segments.getColumn(1);
    const auto size = static_cast<std::size_t>(header.getBytes());
    const auto* bytes = static_cast<const char*>(header.getBlob());
    segment(static_cast<std::uint64_t>(segments.getColumn(0).getInt64()),
            size == 0 ? std::string() : std::string(bytes, size));
  }
  SQLite::Statement uses(*database_, "SELECT id, use, last_used_ms FROM used");
  while (uses.executeStep()) {
    use({static_cast<std::uint64_t>(uses.getColumn(0).getInt64()), uses.getColumn(1).getDouble(),
         uses.getColumn(2).getInt64()});
  }
}

void SegmentCatalogue::write(const Changes& changes) {
  SQLite::Transaction transaction(*database_, SQLite::TransactionBehavior::IMMEDIATE);
  for (const char* table : {"segment", "used"}) {
    SQLite::Statement remove(*database_, std::string("DELETE FROM ") + table + " WHERE id = ?");
    for (const std::uint64_t id : changes.removed) {
      remove.bind(1, key(id));
      remove.exec();
      remove.reset();
    }
  }
  SQLite::Statement put(*database_, "INSERT OR REPLACE INTO segment VALUES (?, ?)");
  for (const Changes::Put& row : changes.put) {
    put.bind(1, key(row.id));
    put.bindNoCopy(2, row.header.data(), static_cast<int>(row.header.size()));
    put.exec();
    put.reset();
  }
  SQLite::Statement used(*database_, "INSERT OR REPLACE INTO used VALUES (?, ?, ?)");
  for (const Use& use : changes.used) {
    used.bind(1, key(use.id));
    used.bind(2, use.use);
    used.bind(3, use.last_used_ms);
    used.exec();
    used.reset();
  }
  transaction.commit();
}

bool SegmentCatalogue::maintain() {
  if (has_moved(*database_)) {
    return false;
  }
  empty_log(*database_);
  return true;
}

}  // namespace toki
