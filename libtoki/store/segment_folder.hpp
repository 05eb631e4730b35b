// SegmentFolder: the store's own folder. Holds its lock, lists its segments, and takes files out of
// it: removed, or into quarantine/, where the newest few stay for someone to look at.
//
// Threads:   one at a time.
// Ownership: the lock, as long as it lives; the system gives it up when the process ends.
// Errors:    as Files; Errc::busy: another process has the folder.
// Cost:      open: a pass over the folder, one call a file. The rest: one or two calls.
#pragma once

#include <toki/result.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "store/files.hpp"

namespace toki {

class SegmentFolder {
 public:
  static constexpr std::size_t kQuarantineFiles = 4;

  /// Makes the folder when it is missing, takes its lock, and removes unfinished files.
  static Result<SegmentFolder> open(Files& files, const std::string& path);

  const std::string& path() const { return path_; }
  std::string path_of(std::uint64_t id) const;
  /// Size by id of the segments that were there when it was opened, whole or not.
  const std::map<std::uint64_t, std::uint64_t>& found() const { return found_; }

  /// A file that cannot be removed now counts in other_bytes(), and remove_again() tries it again.
  Status remove(std::uint64_t id, std::uint64_t bytes);
  Status remove_again();
  /// Out of use; one that cannot be moved is removed.
  void quarantine(std::uint64_t id, std::uint64_t bytes, std::int64_t now_ms);
  void empty_quarantine();

  /// Of files that are no segments: in quarantine, or not to be removed.
  std::uint64_t other_bytes() const;

 private:
  SegmentFolder(Files& files, std::string path, File lock)
      : files_(files), path_(std::move(path)), lock_(std::move(lock)) {}
  Status list();
  void list_quarantine();
  void limit_quarantine(std::size_t most);

  Files& files_;
  std::string path_;
  File lock_;
  std::map<std::uint64_t, std::uint64_t> found_;
  std::map<std::uint64_t, std::uint64_t> unremoved_;  // size by id
  std::map<std::string, std::uint64_t> quarantine_;   // size by name; the oldest first
};

}  // namespace toki
