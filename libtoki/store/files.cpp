#include "store/files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace toki {
namespace {

std::string name_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

int Files::open(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0600);
}
ssize_t Files::read(int file, void* to, std::size_t size, std::uint64_t offset) {
  return ::pread(file, to, size, static_cast<off_t>(offset));
}
ssize_t Files::write(int file, const void* from, std::size_t size, std::uint64_t offset) {
  return ::pwrite(file, from, size, static_cast<off_t>(offset));
}
int Files::sync(int file) {
  return ::fsync(file);
}
int Files::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}
int Files::remove(const std::string& path) {
  return ::unlink(path.c_str());
}

Error file_error(std::string_view attempt, const std::string& path) {
  const int reason = errno;
  std::string detail = "cannot ";
  detail += attempt;
  detail += " " + name_of(path) + ": " + std::strerror(reason);
  const bool full = reason == ENOSPC || reason == EDQUOT;
  return {reason == ENOENT ? Errc::not_found : full ? Errc::no_space : Errc::unavailable, detail};
}

Result<File> File::open(Files& files, std::string path, int flags) {
  const int handle = files.open(path, flags);
  if (handle < 0) {
    return file_error("open", path);
  }
  return File(files, std::move(path), handle);
}

File::~File() {
  if (handle_ >= 0) {
    ::close(handle_);
  }
}

File::File(File&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      handle_(std::exchange(other.handle_, -1)) {}

Status File::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = files_.read(handle_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return file_error("read", path_);
    }
    if (count == 0) {
      return Error{Errc::corrupt, name_of(path_) + " ends too early"};
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return Done{};
}

Status File::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = files_.write(handle_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return file_error("write", path_);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return Done{};
}

Status File::sync() const {
  if (files_.sync(handle_) != 0) {
    return file_error("write to the disk", path_);
  }
  return Done{};
}

Result<std::uint64_t> File::size() const {
  struct stat status {};
  if (::fstat(handle_, &status) != 0) {
    return file_error("look at", path_);
  }
  if (!S_ISREG(status.st_mode)) {
    return Error{Errc::corrupt, name_of(path_) + " is not a file"};
  }
  return static_cast<std::uint64_t>(status.st_size);
}

Status rename_file(Files& files, const std::string& from, const std::string& to) {
  if (files.rename(from, to) != 0) {
    return file_error("rename", from);
  }
  return Done{};
}

Status remove_file(Files& files, const std::string& path) {
  if (files.remove(path) != 0 && errno != ENOENT) {
    return file_error("remove", path);
  }
  return Done{};
}

Status sync_folder(Files& files, const std::string& folder) {
  auto opened = File::open(files, folder, O_RDONLY | O_DIRECTORY);
  return opened ? opened->sync() : Status(opened.error());
}

}  // namespace toki
