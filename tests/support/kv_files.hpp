// What tests of the KV store stand on: a folder of their own, state files whose every byte follows
// from their tokens, and file system calls that fail or end the process when they are told to.
#pragma once

#include <toki/kv_store.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "store/files.hpp"
#include "store/kv_store_setup.hpp"
#include "support/fault_vfs.hpp"
#include "support/state_bytes.hpp"

namespace toki::test {

class TempFolder {
 public:
  TempFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "toki-kv-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      throw std::runtime_error("no temporary folder");
    }
    path_ = path;
    std::filesystem::create_directory(path_ / "slots");
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path store() const { return path_ / "store"; }
  std::filesystem::path slots() const { return path_ / "slots"; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The system's calls, counted; from a set one on they fail, or end the process.
class FaultFiles : public Files {
 public:
  enum class Kind { once, onwards, kill };

  void arm(long call, Kind kind, int reason) {
    calls_ = 0;
    at_ = call;
    kind_ = kind;
    reason_ = reason;
  }
  void heal() { arm(-1, Kind::once, 0); }
  /// From now on no write works that may make the files of these folders larger than `bytes`
  /// together, as if it wrote over nothing; 0: all do.
  void full_at(std::uint64_t bytes, std::vector<std::filesystem::path> folders) {
    full_at_ = bytes;
    folders_ = std::move(folders);
  }
  long calls() const { return calls_; }

  int open(const std::string& path, int flags) override {
    return fails() ? -1 : Files::open(path, flags);
  }
  ssize_t read(int file, void* to, std::size_t size, std::uint64_t offset) override {
    return fails() ? -1 : Files::read(file, to, size, offset);
  }
  ssize_t write(int file, const void* from, std::size_t size, std::uint64_t offset) override {
    if (calls_ == at_) {
      Files::write(file, from, size / 2, offset);
    }
    if (full_at_ != 0 && held() + size > full_at_) {
      errno = ENOSPC;
      return -1;
    }
    return fails() ? -1 : Files::write(file, from, size, offset);
  }
  /// Does not wait for the disk: tests end processes, not the power.
  int sync(int) override { return fails() ? -1 : 0; }
  int rename(const std::string& from, const std::string& to) override {
    return fails() ? -1 : Files::rename(from, to);
  }
  int remove(const std::string& path) override { return fails() ? -1 : Files::remove(path); }

 private:
  bool fails() {
    const long call = calls_++;
    const bool hit = at_ >= 0 && (call == at_ || (kind_ == Kind::onwards && call > at_));
    if (hit && kind_ == Kind::kill) {
      ::kill(::getpid(), SIGKILL);
    }
    errno = hit ? reason_ : errno;
    return hit;
  }

  std::uint64_t held() const {
    std::uint64_t sum = 0;
    for (const auto& folder : folders_) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        const auto name = entry.path().extension();
        sum += name == ".trkv" || name == ".tmp" || name == ".bin" ? entry.file_size() : 0;
      }
    }
    return sum;
  }

  std::uint64_t full_at_ = 0;
  std::vector<std::filesystem::path> folders_;
  long calls_ = 0;
  long at_ = -1;
  Kind kind_ = Kind::once;
  int reason_ = 0;
};

/// A folder, and a store in it whose clock stands still until it is moved.
struct KvBench {
  explicit KvBench(StateShape given = {}) : shape(std::move(given)) {}

  KvStoreOptions options() const {
    return {.dir = folder.store().string(),
            .slot_dir = folder.slots().string(),
            .max_bytes = max_bytes};
  }
  Status open() {
    store.reset();
    FaultVfs::get();
    KvStoreSetup setup{.files = files, .vfs = kFaultVfs, .now_ms = [this] { return now_ms; }};
    auto opened = setup.open(
        options(), [this](LogLevel, std::string_view line) { log += std::string(line) + "\n"; });
    if (!opened) {
      return opened.error();
    }
    store = std::move(*opened);
    return Done{};
  }
  Result<Taken> take(TokenSpan tokens, bool whole = false, std::uint32_t slot = 2) {
    write_file(folder.slots() / "toki-in.bin", state_file(shape, tokens, slot));
    return store->take(scope, tokens, "toki-in.bin", whole, prefill_ms);
  }
  /// The composed file's bytes; empty: nothing stored, or an error.
  std::string compose(TokenSpan prompt, std::uint64_t limit = UINT64_MAX, std::uint32_t slot = 1) {
    auto tokens = store->compose(scope, prompt, limit, slot, "toki-out.bin");
    composed = tokens ? *tokens : 0;
    const std::string bytes = tokens ? read_file(folder.slots() / "toki-out.bin") : "";
    std::filesystem::remove(folder.slots() / "toki-out.bin");
    return bytes;
  }
  /// The tokens that a compose gives, after a look at every byte of them; -1: a wrong file.
  std::int64_t restored(TokenSpan prompt, std::uint64_t limit = UINT64_MAX,
                        std::uint32_t slot = 1) {
    const std::string bytes = compose(prompt, limit, slot);
    const bool right =
        composed == 0 ? bytes.empty() : bytes == state_file(shape, prompt.first(composed), slot);
    return right ? static_cast<std::int64_t>(composed) : -1;
  }
  std::vector<std::filesystem::path> segment_files() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder.store())) {
      if (entry.path().extension() == ".trkv") {
        paths.push_back(entry.path());
      }
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  std::uint64_t bytes_on_disk() const {
    std::uint64_t sum = 0;
    for (const auto& path : segment_files()) {
      sum += std::filesystem::file_size(path);
    }
    return sum;
  }

  TempFolder folder;
  StateShape shape;
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
  std::shared_ptr<FaultFiles> files = std::make_shared<FaultFiles>();
  std::int64_t now_ms = 1700000000000;
  double prefill_ms = 2;
  Scope scope{"model", "tenant"};
  std::string log;
  std::uint64_t composed = 0;
  std::unique_ptr<KvStore> store;
};

/// first, first + 1, ...
inline Tokens counting(Token first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = first + static_cast<Token>(i);
  }
  return tokens;
}

inline Tokens joined(TokenSpan a, TokenSpan b) {
  Tokens tokens(a.begin(), a.end());
  tokens.insert(tokens.end(), b.begin(), b.end());
  return tokens;
}

}  // namespace toki::test
