// PinFile: the pins, in a small file of their own, so that they survive a restart. (The index of known
// prompts may lose what it cannot write; what a person asked for may not go with it.)
//
// Threads:   one at a time.
// Ownership: owns its file, `<path>`, made with mode 0600: it holds token ids. Writes go to
//            `<path>.new` first.
// Errors:    values. read(): Errc::corrupt for what it does not understand to the last byte; that file
//            is then moved to `<path>.bad`, in place of an earlier one.
// Cost:      read once; each write writes all of it and forces it to the disk.
#pragma once

#include <toki/export.hpp>
#include <toki/pin_record.hpp>
#include <toki/result.hpp>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace toki {

/// The file of pins: docs/store-format.md has its bytes.
class TOKI_EXPORT PinFile {
 public:
  /// Touches nothing yet.
  explicit PinFile(std::string path) : path_(std::move(path)) {}

  /// Nothing when there is no file.
  Result<std::vector<PinRecord>> read();
  /// Takes the place of the file as a whole, forced to disk: a crash leaves the old one or the new
  /// one.
  Status write(std::span<const PinRecord> pins);

 private:
  std::string path_;
};

}  // namespace toki
