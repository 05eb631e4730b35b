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

void remove_leftovers(Files& files, const std::string& folder, std::chrono::seconds age) {
  std::error_code ignored;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    const bool own = it->path().filename().string().starts_with(kOwn) &&
                     it->symlink_status(ignored).type() == fs::file_type::regular;
    if (own && (age.count() == 0 || now - it->last_write_time(ignored) >= age)) {
      (void)remove_file(files, it->path().string());
    }
  }
}

}  // namespace toki
