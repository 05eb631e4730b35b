// What NamedStates remembers, on disk: one small file for each name that holds a state, so that
// a change of one writes no other.
//
// Threads:   one at a time.
// Ownership: the folder is locked while it is open. Files must outlive it.
// Errors:    values. A record that is not whole, is of another version or belongs to another name
//            is removed at the start.
// Cost:      write(): the prompt's token ids once, and a rename.
//
// `<number>.state`, little-endian: "TOKINAM1", then u64 each: checksum of all that follows (XXH3),
// id, whole (0 or 1), tokens of unknown ids, use (bits of a double), last use (Unix ms), bytes of
// the name, bytes of the scope, tokens; then name, scope and the token ids (i32). `tag`: the
// folder's 16 hex digits.
#pragma once

#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/files.hpp"

namespace toki {

/// A state that lies under a name.
struct NamedState {
  std::uint64_t id = 0;
  Scope scope;
  Tokens tokens;              // known ids
  std::uint64_t unknown = 0;  // tokens behind them
  bool whole = false;         // serves only prompts that begin with all of it
  double use = 0;
  std::int64_t last_used_ms = 0;
};

class NamedRecords {
 public:
  static Result<NamedRecords> open(Files& files, const std::string& folder, std::size_t names);

  /// What was written before, one entry for each name.
  std::vector<std::optional<NamedState>> read_all();
  Status write(std::size_t name, const NamedState& state);
  Status remove(std::size_t name);

  std::string file_of(std::size_t name) const;
  std::optional<std::size_t> name_of(std::string_view file) const;

 private:
  NamedRecords(Files& files, std::string folder, std::size_t names, File lock)
      : files_(files), folder_(std::move(folder)), names_(names), lock_(std::move(lock)) {}
  Status find_tag();
  std::string path_of(std::size_t name) const;
  Status write_file(const std::string& path, std::string_view bytes);
  Result<std::string> read_file(const std::string& path) const;
  std::optional<NamedState> decode(std::size_t name, std::string_view bytes) const;

  Files& files_;
  std::string folder_;
  std::size_t names_;
  File lock_;
  std::string tag_;
};

}  // namespace toki
