#include "store/segment_folder.hpp"

#include <cerrno>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <utility>

#include "store/segment_file.hpp"

namespace toki {
namespace {

constexpr const char* kLock = "/lock";
constexpr const char* kQuarantine = "/quarantine";

Status make_folder(const std::string& path) {
  // An existing one may have been made by hand with the usual mode: prompts are in it.
  if ((::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) || ::chmod(path.c_str(), 0700) != 0) {
    return file_error("make", path);
  }
  return Done{};
}

// Calls visit(name, size) for each regular file.
template <class Visit>
Status each_file(const std::string& path, const Visit& visit) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) {
    return file_error("list", path);
  }
  Status done = Done{};
  for (errno = 0; const dirent* entry = ::readdir(folder); errno = 0) {
    struct stat status {};
    if (::fstatat(::dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      done = file_error("look at", entry->d_name);
      break;
    }
    if (S_ISREG(status.st_mode)) {
      visit(std::string(entry->d_name), static_cast<std::uint64_t>(status.st_size));
    }
  }
  if (done && errno != 0) {
    done = file_error("list", path);
  }
  ::closedir(folder);
  return done;
}

}  // namespace

Result<SegmentFolder> SegmentFolder::open(Files& files, const std::string& path) {
  for (const std::string& folder : {path, path + kQuarantine}) {
    if (auto made = make_folder(folder); !made) {
      return made.error();
    }
  }
  auto lock = File::open(files, path + kLock, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!lock) {
    return lock.error();
  }
  if (::flock(lock->handle(), LOCK_EX | LOCK_NB) != 0) {
    const bool taken = errno == EWOULDBLOCK;
    return taken ? Error{Errc::busy, "another process uses the KV store's folder"}
                 : file_error("lock", path + kLock);
  }
  SegmentFolder folder(files, path, std::move(*lock));
  if (auto listed = folder.list(); !listed) {
    return listed.error();
  }
  return folder;
}

Status SegmentFolder::list() {
  std::map<std::uint64_t, std::uint64_t> unfinished;
  Status listed = each_file(path_, [&](const std::string& name, std::uint64_t bytes) {
    if (const auto id = segment_id(name)) {
      found_.emplace(*id, bytes);
    } else if (const auto rest = unfinished_id(name)) {
      unfinished.emplace(*rest, bytes);
    }
  });
  for (const auto& [id, bytes] : unfinished) {
    (void)remove_file(files_, path_ + "/" + unfinished_name(id));
  }
  list_quarantine();
  return listed;
}

void SegmentFolder::list_quarantine() {
  quarantine_.clear();
  (void)each_file(path_ + kQuarantine, [&](const std::string& name, std::uint64_t bytes) {
    quarantine_.emplace(name, bytes);
  });
}

std::string SegmentFolder::path_of(std::uint64_t id) const {
  return path_ + "/" + segment_name(id);
}

Status SegmentFolder::remove(std::uint64_t id, std::uint64_t bytes) {
  Status removed = remove_file(files_, path_of(id));
  if (!removed) {
    unremoved_.emplace(id, bytes);
  }
  return removed;
}

Status SegmentFolder::remove_again() {
  Status done = Done{};
  for (const auto& [id, bytes] : std::exchange(unremoved_, {})) {
    if (auto removed = remove(id, bytes); !removed) {
      done = removed;
    }
  }
  return done;
}

void SegmentFolder::quarantine(std::uint64_t id, std::uint64_t bytes, std::int64_t now_ms) {
  // Names sort by age.
  char name[64];
  std::snprintf(name, sizeof(name), "%015lld-%s", static_cast<long long>(now_ms),
                segment_name(id).c_str());
  const auto moved = rename_file(files_, path_of(id), path_ + kQuarantine + "/" + name);
  if (moved) {
    quarantine_.emplace(name, bytes);
    limit_quarantine(kQuarantineFiles);
  } else if (moved.error().code != Errc::not_found) {
    (void)remove(id, bytes);
  }
}

void SegmentFolder::empty_quarantine() {
  limit_quarantine(0);
}

void SegmentFolder::limit_quarantine(std::size_t most) {
  while (quarantine_.size() > most) {
    const auto oldest = quarantine_.begin();
    if (!remove_file(files_, path_ + kQuarantine + "/" + oldest->first)) {
      return;
    }
    quarantine_.erase(oldest);
  }
}

std::uint64_t SegmentFolder::other_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [id, bytes] : unremoved_) {
    sum += bytes;
  }
  for (const auto& [name, bytes] : quarantine_) {
    sum += bytes;
  }
  return sum;
}

}  // namespace toki
