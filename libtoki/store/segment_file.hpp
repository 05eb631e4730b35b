// One segment as a file (`.trkv`; docs/store-format.md): a header that says which tokens of which
// scope it holds and where it hangs, then their rows part by part, with a checksum for every tile.
//
// Threads:   one at a time; a reader is used by one thread.
// Ownership: values. Files must outlive a reader.
// Errors:    Errc::corrupt: bytes that do not fit the format or their checksum. Others as Files.
// Cost:      writing: one pass of hashing and one write, in pieces of about 1 MiB, and an fsync.
//            Reading: whole tiles are read into place; the tile at an end that is wanted in part is
//            read beside it.
#pragma once

#include <toki/result.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/files.hpp"

namespace toki {

struct SegmentHeader {
  std::uint64_t id = 0;               ///< from 1; also the file's name
  std::uint64_t parent = 0;           ///< id of the segment that holds the token before `from`
  std::uint64_t parent_checksum = 0;  ///< of its header: a parent's tokens cannot change unseen
  std::uint64_t from = 0;             ///< place of the first token in the prompt
  std::uint64_t snapshot_bytes = 0;   ///< not 0: holds a whole state file, of all its tokens
  std::int64_t created_ms = 0;
  double prefill_ms = 0;  ///< what computing one of its tokens costs
  std::string scope;
  std::string layout;  ///< StateLayout::bytes(); empty for a snapshot
  Tokens tokens;
  std::vector<std::uint64_t> tiles;  ///< checksums, part by part

  bool snapshot() const { return snapshot_bytes != 0; }
};

/// Where the data of a segment lies. A snapshot is one part whose rows are single bytes.
struct SegmentPlan {
  struct Part {
    std::uint64_t row_bytes = 0;
    std::uint64_t offset = 0;    ///< in the file
    std::size_t first_tile = 0;  ///< in SegmentHeader::tiles
  };
  std::uint64_t rows = 0;
  std::uint64_t tile_rows = 0;
  std::vector<Part> parts;
  std::size_t tiles = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t file_bytes = 0;
};

inline constexpr std::uint64_t kTileTokens = 256;
inline constexpr std::uint64_t kSnapshotTileBytes = std::uint64_t{1} << 20;

/// From everything but id, times and tiles. Errc::corrupt: no such segment can be.
Result<SegmentPlan> plan_segment(const SegmentHeader& header);

std::string encode_header(const SegmentHeader& header, const SegmentPlan& plan);
/// Strict: what it takes, encode_header() would make again.
Result<SegmentHeader> decode_header(std::span<const std::byte> bytes);
/// The checksum that an encoded header carries.
std::uint64_t header_checksum(std::span<const std::byte> bytes);

/// "000000000000002a.trkv".
std::string segment_name(std::uint64_t id);
std::string unfinished_name(std::uint64_t id);
/// The id, where the name is one of segment_name() or of unfinished_name().
std::optional<std::uint64_t> segment_id(std::string_view name);
std::optional<std::uint64_t> unfinished_id(std::string_view name);

/// Rows [from, to) of a part; valid until the next call.
using SegmentSource = std::function<std::span<const std::byte>(std::size_t part, std::uint64_t from,
                                                               std::uint64_t to)>;

/// Writes the segment under an unfinished name, to the disk, and then gives it its name. Fills in
/// header.tiles and returns the encoded header. On an error no file is left, as far as removing one
/// still works.
Result<std::string> write_segment(Files& files, const std::string& folder, SegmentHeader& header,
                                  const SegmentPlan& plan, const SegmentSource& source);

/// Reads and decodes the header of a file and checks that the file has the size it says.
Result<std::string> read_header_bytes(Files& files, const std::string& path);

/// The tile that was last read beside its place, checked: the next read often begins in it.
struct TileAside {
  std::vector<std::byte> bytes;
  std::uint64_t segment = 0;
  std::size_t tile = 0;
};

class SegmentReader {
 public:
  /// Errc::corrupt also when the header is not the one with this checksum. Without `stay_open` the
  /// file is opened again for each read: for chains of more segments than a process may open.
  static Result<SegmentReader> open(Files& files, const std::string& path,
                                    std::uint64_t header_bytes, std::uint64_t checksum,
                                    bool stay_open);

  const SegmentPlan& plan() const { return plan_; }

  /// Rows of `part` from row `from` on, as many as `out` holds. REQUIRES: they are in the segment.
  Status read(std::size_t part, std::uint64_t from, std::span<std::byte> out,
              TileAside& aside) const;

 private:
  SegmentReader(Files& files, std::string path, SegmentHeader header, SegmentPlan plan)
      : files_(files), path_(std::move(path)), header_(std::move(header)), plan_(std::move(plan)) {}

  std::uint64_t tile_bytes(const SegmentPlan::Part& part, std::uint64_t tile) const;
  Status read_bytes(std::uint64_t offset, std::span<std::byte> out) const;
  Status read_whole(const SegmentPlan::Part& part, std::uint64_t tile,
                    std::span<std::byte> out) const;
  Status read_aside(const SegmentPlan::Part& part, std::uint64_t tile, TileAside& aside) const;

  Files& files_;
  std::string path_;
  std::optional<File> file_;
  SegmentHeader header_;
  SegmentPlan plan_;
};

}  // namespace toki
