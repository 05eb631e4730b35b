#include "store/slot_folder.hpp"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

namespace toki {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOwn = "toki-";
constexpr std::string_view kUnfinished = "toki-unfinished-";
constexpr std::size_t kMaxName = 200;  // the unfinished one is longer
constexpr std::size_t kBuffer = std::size_t{256} << 10;

Result<std::string> path_of(const std::string& folder, std::string_view name) {
  const bool plain = !name.empty() && name.size() <= kMaxName && name != "." && name != ".." &&
                     name.find('/') == name.npos && name.find('\0') == name.npos;
  if (!plain) {
    return Error{Errc::invalid_argument, "the name of a state file must be a plain file name"};
  }
  return folder + "/" + std::string(name);
}

}  // namespace

Result<SlotInput> SlotInput::take(Files& files, const std::string& folder, std::string_view name) {
  const auto path = path_of(folder, name);
  if (!path) {
    return path.error();
  }
  auto file = File::open(files, *path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  (void)remove_file(files, *path);  // one that stays is a leftover
  if (!file) {
    return file.error();
  }
  const auto size = file->size();
  if (!size) {
    return size.error();
  }
  if (*size == 0) {
    return Error{Errc::corrupt, std::string(name) + " is empty"};
  }
  void* data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, file->handle(), 0);
  if (data == MAP_FAILED) {
    return file_error("read", *path);
  }
  ::madvise(data, *size, MADV_WILLNEED);
  return SlotInput(static_cast<const std::byte*>(data), *size);
}

SlotInput::~SlotInput() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

SlotInput::SlotInput(SlotInput&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Result<SlotOutput> SlotOutput::make(Files& files, const std::string& folder,
                                    std::string_view name) {
  auto path = path_of(folder, name);
  if (!path) {
    return path.error();
  }
  const std::string unfinished = folder + "/" + std::string(kUnfinished) + std::string(name);
  (void)remove_file(files, unfinished);
  auto file = File::open(files, unfinished, O_WRONLY | O_CREAT | O_EXCL);
  if (!file) {
    return file.error();
  }
  return SlotOutput(files, std::move(*file), std::move(*path));
}

SlotOutput::~SlotOutput() {
  if (file_ && file_->handle() >= 0) {
    (void)remove_file(files_, file_->path());
  }
}

Status SlotOutput::write(std::span<const std::byte> piece) {
  if (buffer_.size() + piece.size() < kBuffer) {
    buffer_.insert(buffer_.end(), piece.begin(), piece.end());
    return Done{};
  }
  if (auto written = write_buffer(); !written) {
    return written;
  }
  written_ += piece.size();
  return file_->write(written_ - piece.size(), piece);
}

Status SlotOutput::write_buffer() {
  written_ += buffer_.size();
  const Status written = file_->write(written_ - buffer_.size(), buffer_);
  buffer_.clear();
  return written;
}

Status SlotOutput::finish() {
  Status done = write_buffer();
  if (done) {
    done = rename_file(files_, file_->path(), path_);
  }
  if (done) {
    file_.reset();
  }
  return done;
}

bool remove_state_file(Files& files, const std::string& folder, std::string_view name) {
  const auto path = path_of(folder, name);
  return path && files.remove(*path) == 0;
}

Result<std::unique_ptr<File>> lock_slot_folder(Files& files, const std::string& folder) {
  auto opened = File::open(files, folder, O_RDONLY | O_DIRECTORY);
  if (!opened) {
    return opened.error();
  }
  auto lock = std::make_unique<File>(std::move(*opened));
  if (::flock(lock->handle(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{Errc::busy, "another process uses the folder of state files"};
  }
  return lock;
}

namespace {

// Calls visit(path, name) for each file that is named as toki names them.
template <class Visit>
void each_own(const std::string& folder, const Visit& visit) {
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kOwn) && it->symlink_status(ignored).type() == fs::file_type::regular) {
      visit(it->path(), name);
    }
  }
}

}  // namespace

void remove_other_runs(Files& files, const std::string& folder, std::string_view own) {
  each_own(folder, [&](const fs::path& path, std::string_view name) {
    if (name.starts_with(kUnfinished)) {
      name.remove_prefix(kUnfinished.size());
    }
    const bool numbered = name.starts_with(kOwn) && name.size() > kOwn.size() &&
                          name[kOwn.size()] >= '0' && name[kOwn.size()] <= '9';
    if (numbered && !name.starts_with(own)) {
      (void)remove_file(files, path.string());
    }
  });
}

void remove_leftovers(Files& files, const std::string& folder, std::chrono::seconds age) {
  const auto now = fs::file_time_type::clock::now();
  each_own(folder, [&](const fs::path& path, const std::string&) {
    std::error_code gone;
    const auto written = fs::last_write_time(path, gone);
    if (age.count() == 0 || (!gone && now - written >= age)) {
      (void)remove_file(files, path.string());
    }
  });
}

}  // namespace toki
