// The folder in which the backend reads and writes state files, as the KV store uses it.
//
// Threads:   one at a time for one file.
// Ownership: a SlotInput keeps its file in memory as long as it lives; a SlotOutput that was not
//            finished leaves no file.
// Errors:    as Files; Errc::invalid_argument for a name that is not a plain one.
// Cost:      the input is mapped, not copied. The output is written in large pieces and not forced
//            to the disk: it is read at once or never.
#pragma once

#include <toki/result.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/files.hpp"

namespace toki {

class SlotInput {
 public:
  /// Opens the file and deletes it: from then on nobody else changes it. It is deleted also when it
  /// cannot be opened.
  static Result<SlotInput> take(Files& files, const std::string& folder, std::string_view name);
  ~SlotInput();
  SlotInput(SlotInput&& other) noexcept;
  SlotInput(const SlotInput&) = delete;
  SlotInput& operator=(const SlotInput&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  SlotInput(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

  const std::byte* data_;
  std::size_t size_;
};

class SlotOutput {
 public:
  static Result<SlotOutput> make(Files& files, const std::string& folder, std::string_view name);
  ~SlotOutput();
  SlotOutput(SlotOutput&& other) noexcept = default;
  SlotOutput(const SlotOutput&) = delete;
  SlotOutput& operator=(const SlotOutput&) = delete;

  Status write(std::span<const std::byte> piece);
  /// Gives the file its name.
  Status finish();

 private:
  SlotOutput(Files& files, File file, std::string path)
      : files_(files), file_(std::move(file)), path_(std::move(path)) {}
  Status write_buffer();

  Files& files_;
  std::optional<File> file_;  // none: finished, or moved from
  std::string path_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
};

/// Deletes one. False: it is not there, or cannot be deleted.
bool remove_state_file(Files& files, const std::string& folder, std::string_view name);

/// Holds as long as the file is open: the folder is this process's. Errc::busy: it is another's, or
/// another store's. A file system that locks no folders refuses nobody.
Result<std::unique_ptr<File>> lock_slot_folder(Files& files, const std::string& folder);

/// Deletes the state files of other runs, "toki-<number>-...", whose names do not begin with `own`:
/// a backend may have written them after their run was over.
void remove_other_runs(Files& files, const std::string& folder, std::string_view own);

/// Deletes files that runs before this one left: named "toki-...", and untouched for `age`.
void remove_leftovers(Files& files, const std::string& folder, std::chrono::seconds age);

}  // namespace toki
