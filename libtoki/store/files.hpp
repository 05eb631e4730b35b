// The file system as the KV store uses it: the few calls that can fail, so that tests can make the
// n-th of them fail, and the loops around them.
//
// Threads:   Files has no state. A File is used by one thread at a time.
// Ownership: a File closes what it opened; Files must outlive it.
// Errors:    Files as POSIX: -1 and errno. The rest: Errc::not_found for what does not exist,
//            Errc::corrupt for a file that ends too early, otherwise Errc::unavailable; the detail
//            names the attempt, the file's name without its folder, and the reason.
// Cost:      the system calls.
#pragma once

#include <toki/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace toki {

class Files {
 public:
  virtual ~Files() = default;
  /// With O_CLOEXEC; what it makes has mode 0600.
  virtual int open(const std::string& path, int flags);
  virtual ssize_t read(int file, void* to, std::size_t size, std::uint64_t offset);
  virtual ssize_t write(int file, const void* from, std::size_t size, std::uint64_t offset);
  virtual int sync(int file);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove(const std::string& path);
};

/// The error of the call that just set errno.
Error file_error(std::string_view attempt, const std::string& path);

class File {
 public:
  static Result<File> open(Files& files, std::string path, int flags);
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Status read(std::uint64_t offset, std::span<std::byte> out) const;
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  Status sync() const;
  /// Of a regular file; anything else is Errc::corrupt.
  Result<std::uint64_t> size() const;
  int handle() const { return handle_; }
  const std::string& path() const { return path_; }

 private:
  File(Files& files, std::string path, int handle)
      : files_(files), path_(std::move(path)), handle_(handle) {}

  Files& files_;
  std::string path_;
  int handle_;
};

Status rename_file(Files& files, const std::string& from, const std::string& to);
/// One that is not there counts as removed.
Status remove_file(Files& files, const std::string& path);
/// Makes what was renamed into the folder, or removed from it, survive a power failure.
Status sync_folder(Files& files, const std::string& folder);

}  // namespace toki
