// SegmentCatalogue: a copy of every segment's header, and how often each was used, in one SQLite
// file, so that a start reads one file instead of thousands. The segments themselves are the truth:
// what it does not know is read from them, and what it knows beyond them is forgotten.
//
// Threads:   one at a time.
// Ownership: owns its connection.
// Errors:    SQLite::Exception.
// Cost:      read: one pass over the file. write: one transaction; nobody waits for the disk, so
//            that a power failure may undo the last ones.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace toki {

class SegmentCatalogue {
 public:
  struct Use {
    std::uint64_t id = 0;
    double use = 0;
    std::int64_t last_used_ms = 0;
  };
  /// One transaction's worth. A segment is removed before it is put.
  struct Changes {
    struct Put {
      std::uint64_t id = 0;
      std::string header;  ///< as in its file
    };
    std::vector<std::uint64_t> removed;
    std::vector<Put> put;
    std::vector<Use> used;
  };

  static constexpr std::int32_t kApplication = 0x74726b76;  ///< "trkv"

  SegmentCatalogue(const std::string& path, const std::string& vfs);

  /// Every row. A use may be that of no segment, and the other way round; `header` may be anything.
  void read(const std::function<void(std::uint64_t id, std::string header)>& segment,
            const std::function<void(const Use&)>& use);
  void write(const Changes& changes);
  /// Cuts the write-ahead log. False: the file at the path is no longer this one.
  bool maintain();

 private:
  std::unique_ptr<SQLite::Database> database_;
};

}  // namespace toki
