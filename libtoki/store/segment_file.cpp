#include "store/segment_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/hash.hpp"
#include "store/state_file.hpp"

namespace toki {
namespace {

constexpr std::string_view kMagic = "TRKV\r\n\x1a\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kFixedBytes = 120;
constexpr std::size_t kChecksumOffset = 112;
constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

// Bounds that keep every sum below in 64 bits.
constexpr std::uint64_t kMaxHeader = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxText = std::uint64_t{1} << 24;
constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxId =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

std::uint64_t checksum(const void* data, std::size_t size) {
  static const HashBytes hash = best_hash_bytes();
  return hash(data, size);
}

Error corrupt(std::string detail) {
  return {Errc::corrupt, std::move(detail)};
}

// Little-endian, whatever the machine is.
template <class T>
void put(std::string& out, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(static_cast<unsigned char>(bits >> (8 * i)));
  }
}

template <class T>
T get(const std::byte* from) {
  std::make_unsigned_t<T> bits = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) {
    bits = static_cast<std::make_unsigned_t<T>>(bits << 8 | std::to_integer<unsigned>(from[i]));
  }
  return static_cast<T>(bits);
}

void pad(std::string& out, std::uint64_t to) {
  out.resize(round_up(out.size(), to), '\0');
}

std::uint64_t encoded_bytes(std::uint64_t scope, std::uint64_t layout, std::uint64_t tokens,
                            std::uint64_t tiles) {
  const std::uint64_t texts = round_up(kFixedBytes + scope + layout, 8);
  return round_up(round_up(texts + 4 * tokens, 8) + 8 * tiles, kAlign);
}

// The rows of every part, before it is known where the data begins.
Result<SegmentPlan> plan_rows(const SegmentHeader& header) {
  SegmentPlan plan;
  if (header.snapshot()) {
    plan.rows = header.snapshot_bytes;
    plan.tile_rows = kSnapshotTileBytes;
    plan.parts.push_back({.row_bytes = 1});
    return plan;
  }
  const auto layout = StateLayout::from_bytes(header.layout);
  if (!layout) {
    return layout.error();
  }
  plan.rows = header.tokens.size();
  plan.tile_rows = kTileTokens;
  for (const StateLayout::Part& part : layout->parts) {
    plan.parts.push_back({.row_bytes = part.row_bytes});
  }
  return plan;
}

std::string hex_name(std::uint64_t id, std::string_view suffix) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name(16, '0');
  for (std::size_t i = 16; i-- > 0; id >>= 4) {
    name[i] = kDigits[id & 15];
  }
  name += suffix;
  return name;
}

std::optional<std::uint64_t> hex_id(std::string_view name, std::string_view suffix) {
  if (name.size() != 16 + suffix.size() || !name.ends_with(suffix)) {
    return std::nullopt;
  }
  std::uint64_t id = 0;
  for (const char digit : name.substr(0, 16)) {
    const bool decimal = digit >= '0' && digit <= '9';
    if (!decimal && !(digit >= 'a' && digit <= 'f')) {
      return std::nullopt;
    }
    id = id << 4 | static_cast<std::uint64_t>(decimal ? digit - '0' : digit - 'a' + 10);
  }
  return id != 0 && id <= kMaxId ? std::optional(id) : std::nullopt;
}

}  // namespace

Result<SegmentPlan> plan_segment(const SegmentHeader& header) {
  if (header.scope.size() > kMaxText || header.layout.size() > kMaxText || header.tokens.empty() ||
      header.tokens.size() > kMaxTokens || header.from > kMaxTokens ||
      header.snapshot_bytes > std::uint64_t{1} << 50) {
    return corrupt("a segment beyond the format's bounds");
  }
  auto plan = plan_rows(header);
  if (!plan) {
    return plan;
  }
  const std::uint64_t tiles_a_part = (plan->rows + plan->tile_rows - 1) / plan->tile_rows;
  if (plan->parts.empty() || plan->parts.size() > kMaxHeader / 8 / tiles_a_part) {
    return corrupt("a segment with no rows or too many tiles");
  }
  plan->tiles = tiles_a_part * plan->parts.size();
  plan->header_bytes =
      encoded_bytes(header.scope.size(), header.layout.size(), header.tokens.size(), plan->tiles);
  std::uint64_t end = plan->header_bytes, tile = 0;
  for (SegmentPlan::Part& part : plan->parts) {
    std::uint64_t bytes = 0;
    part.offset = round_up(end, kAlign);
    part.first_tile = tile;
    tile += tiles_a_part;
    if (part.row_bytes > kMaxRowBytes ||
        __builtin_mul_overflow(part.row_bytes, plan->rows, &bytes) ||
        __builtin_add_overflow(part.offset, bytes, &end) || end > kMaxId) {
      return corrupt("a segment with too many bytes");
    }
  }
  plan->file_bytes = end;
  return plan;
}

std::string encode_header(const SegmentHeader& header, const SegmentPlan& plan) {
  std::string out(kMagic);
  out.reserve(plan.header_bytes);
  put(out, kVersion);
  put(out, std::uint32_t{header.snapshot()});
  put(out, plan.header_bytes);
  put(out, plan.file_bytes);
  put(out, header.id);
  put(out, header.parent);
  put(out, header.parent_checksum);
  put(out, header.from);
  put(out, header.snapshot_bytes);
  put(out, static_cast<std::uint32_t>(header.scope.size()));
  put(out, static_cast<std::uint32_t>(header.layout.size()));
  put(out, static_cast<std::uint32_t>(header.tokens.size()));
  put(out, static_cast<std::uint32_t>(plan.tile_rows));
  put(out, static_cast<std::uint64_t>(plan.tiles));
  put(out, header.created_ms);
  put(out, std::bit_cast<std::uint64_t>(header.prefill_ms));
  put(out, std::uint64_t{0});  // the checksum
  out += header.scope;
  out += header.layout;
  pad(out, 8);
  for (const Token token : header.tokens) {
    put(out, token);
  }
  pad(out, 8);
  for (const std::uint64_t tile : header.tiles) {
    put(out, tile);
  }
  pad(out, kAlign);
  std::string sum;
  put(sum, checksum(out.data(), out.size()));
  return out.replace(kChecksumOffset, sum.size(), sum);
}

std::uint64_t header_checksum(std::span<const std::byte> bytes) {
  return bytes.size() < kFixedBytes ? 0 : get<std::uint64_t>(bytes.data() + kChecksumOffset);
}

Result<SegmentHeader> decode_header(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  if (bytes.size() < kFixedBytes || std::memcmp(at, kMagic.data(), kMagic.size()) != 0) {
    return corrupt("not a segment");
  }
  if (get<std::uint32_t>(at + 8) != kVersion) {
    return corrupt("a segment of another format version");
  }
  const std::uint64_t scope = get<std::uint32_t>(at + 72), layout = get<std::uint32_t>(at + 76),
                      tokens = get<std::uint32_t>(at + 80), tiles = get<std::uint64_t>(at + 88);
  if (scope > kMaxText || layout > kMaxText || tokens > kMaxTokens || tiles > kMaxHeader / 8 ||
      encoded_bytes(scope, layout, tokens, tiles) != bytes.size()) {
    return corrupt("a segment's header with wrong sizes");
  }
  SegmentHeader header;
  header.id = get<std::uint64_t>(at + 32);
  header.parent = get<std::uint64_t>(at + 40);
  header.parent_checksum = get<std::uint64_t>(at + 48);
  header.from = get<std::uint64_t>(at + 56);
  header.snapshot_bytes = get<std::uint64_t>(at + 64);
  header.created_ms = get<std::int64_t>(at + 96);
  header.prefill_ms = std::bit_cast<double>(get<std::uint64_t>(at + 104));
  const auto* text = reinterpret_cast<const char*>(at + kFixedBytes);
  header.scope.assign(text, scope);
  header.layout.assign(text + scope, layout);
  std::uint64_t place = round_up(kFixedBytes + scope + layout, 8);
  header.tokens.reserve(tokens);
  for (std::uint64_t i = 0; i < tokens; ++i) {
    header.tokens.push_back(get<Token>(at + place + 4 * i));
  }
  place = round_up(place + 4 * tokens, 8);
  header.tiles.reserve(tiles);
  for (std::uint64_t i = 0; i < tiles; ++i) {
    header.tiles.push_back(get<std::uint64_t>(at + place + 8 * i));
  }
  const auto plan = plan_segment(header);
  if (!plan) {
    return plan.error();
  }
  // One comparison for the checksum and for every byte that only one value can have.
  const std::string again = encode_header(header, *plan);
  if (plan->tiles != tiles || header.id == 0 || header.id > kMaxId ||
      again.size() != bytes.size() || std::memcmp(again.data(), at, again.size()) != 0) {
    return corrupt("a segment's header with a wrong checksum");
  }
  return header;
}

std::string segment_name(std::uint64_t id) {
  return hex_name(id, ".trkv");
}
std::string unfinished_name(std::uint64_t id) {
  return hex_name(id, ".tmp");
}
std::optional<std::uint64_t> segment_id(std::string_view name) {
  return hex_id(name, ".trkv");
}
std::optional<std::uint64_t> unfinished_id(std::string_view name) {
  return hex_id(name, ".tmp");
}

namespace {

Status write_rows(const File& file, SegmentHeader& header, const SegmentPlan& plan,
                  const SegmentSource& source) {
  header.tiles.clear();
  for (std::size_t number = 0; number < plan.parts.size(); ++number) {
    const SegmentPlan::Part& part = plan.parts[number];
    const std::uint64_t tile_bytes = std::max<std::uint64_t>(part.row_bytes * plan.tile_rows, 1);
    const std::uint64_t step = std::max<std::uint64_t>(kPiece / tile_bytes, 1) * plan.tile_rows;
    for (std::uint64_t from = 0; from < plan.rows; from += step) {
      const std::uint64_t to = std::min(plan.rows, from + step);
      const auto piece = source(number, from, to);
      for (std::uint64_t row = from; row < to; row += plan.tile_rows) {
        const std::uint64_t rows = std::min(to - row, plan.tile_rows);
        header.tiles.push_back(
            checksum(piece.data() + (row - from) * part.row_bytes, rows * part.row_bytes));
      }
      if (auto written = file.write(part.offset + from * part.row_bytes, piece); !written) {
        return written;
      }
    }
  }
  return Done{};
}

Result<std::string> write_unfinished(Files& files, const std::string& path, SegmentHeader& header,
                                     const SegmentPlan& plan, const SegmentSource& source) {
  auto file = File::open(files, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (!file) {
    return file.error();
  }
  Status done = write_rows(*file, header, plan, source);
  std::string encoded;
  if (done) {
    encoded = encode_header(header, plan);
    done = file->write(0, std::as_bytes(std::span(encoded)));
  }
  if (done) {
    done = file->sync();
  }
  return done ? Result<std::string>(std::move(encoded)) : done.error();
}

}  // namespace

Result<std::string> write_segment(Files& files, const std::string& folder, SegmentHeader& header,
                                  const SegmentPlan& plan, const SegmentSource& source) {
  const std::string unfinished = folder + "/" + unfinished_name(header.id);
  const std::string path = folder + "/" + segment_name(header.id);
  auto encoded = write_unfinished(files, unfinished, header, plan, source);
  Status done = encoded ? rename_file(files, unfinished, path) : Status(encoded.error());
  if (!done) {
    (void)remove_file(files, unfinished);
    return done.error();
  }
  done = sync_folder(files, folder);
  if (!done) {
    (void)remove_file(files, path);
    return done.error();
  }
  return encoded;
}

Result<std::string> read_header_bytes(Files& files, const std::string& path) {
  auto file = File::open(files, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file) {
    return file.error();
  }
  const auto size = file->size();
  if (!size) {
    return size.error();
  }
  std::string bytes(kFixedBytes, '\0');
  if (auto read = file->read(0, std::as_writable_bytes(std::span(bytes))); !read) {
    return read.error();
  }
  const auto* at = reinterpret_cast<const std::byte*>(bytes.data());
  const auto header_bytes = get<std::uint64_t>(at + 16), file_bytes = get<std::uint64_t>(at + 24);
  if (file_bytes != *size || header_bytes < kFixedBytes ||
      header_bytes > std::min(file_bytes, kMaxHeader)) {
    return corrupt(segment_name(get<std::uint64_t>(at + 32)) + " has not the size it should have");
  }
  bytes.resize(header_bytes);
  if (auto read = file->read(0, std::as_writable_bytes(std::span(bytes))); !read) {
    return read.error();
  }
  const auto header = decode_header(std::as_bytes(std::span(bytes)));
  return header ? Result<std::string>(std::move(bytes)) : header.error();
}

Result<SegmentReader> SegmentReader::open(Files& files, const std::string& path,
                                          std::uint64_t header_bytes, std::uint64_t checksum,
                                          bool stay_open) {
  auto file = File::open(files, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file) {
    return file.error();
  }
  std::vector<std::byte> bytes(header_bytes);
  if (auto read = file->read(0, bytes); !read) {
    return read.error();
  }
  auto header = decode_header(bytes);
  if (!header) {
    return header.error();
  }
  if (header_checksum(bytes) != checksum) {
    return corrupt(segment_name(header->id) + " is not the segment that was recorded");
  }
  auto plan = plan_segment(*header);
  TOKI_CHECK(plan.has_value());  // decode_header() made it too
  SegmentReader reader(files, path, std::move(*header), std::move(*plan));
  if (stay_open) {
    reader.file_.emplace(std::move(*file));
  }
  return reader;
}

std::uint64_t SegmentReader::tile_bytes(const SegmentPlan::Part& part, std::uint64_t tile) const {
  const std::uint64_t first = tile * plan_.tile_rows;
  return std::min(plan_.tile_rows, plan_.rows - first) * part.row_bytes;
}

Status SegmentReader::read_bytes(std::uint64_t offset, std::span<std::byte> out) const {
  if (file_) {
    return file_->read(offset, out);
  }
  const auto file = File::open(files_, path_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  return file ? file->read(offset, out) : Status(file.error());
}

// Tiles from `tile` on, as many whole ones as `out` holds.
Status SegmentReader::read_whole(const SegmentPlan::Part& part, std::uint64_t tile,
                                 std::span<std::byte> out) const {
  const std::uint64_t offset = part.offset + tile * plan_.tile_rows * part.row_bytes;
  if (auto read = read_bytes(offset, out); !read) {
    return read;
  }
  for (; !out.empty(); ++tile) {
    const std::uint64_t bytes = tile_bytes(part, tile);
    if (checksum(out.data(), bytes) != header_.tiles[part.first_tile + tile]) {
      return corrupt(segment_name(header_.id) + " has a tile with a wrong checksum");
    }
    out = out.subspan(bytes);
  }
  return Done{};
}

Status SegmentReader::read_aside(const SegmentPlan::Part& part, std::uint64_t tile,
                                 TileAside& aside) const {
  const std::size_t number = part.first_tile + tile;
  if (aside.segment == header_.id && aside.tile == number) {
    return Done{};
  }
  aside.segment = 0;
  aside.bytes.resize(tile_bytes(part, tile));
  const Status read = read_whole(part, tile, aside.bytes);
  if (read) {
    aside.segment = header_.id;
    aside.tile = number;
  }
  return read;
}

Status SegmentReader::read(std::size_t number, std::uint64_t from, std::span<std::byte> out,
                           TileAside& aside) const {
  const SegmentPlan::Part& part = plan_.parts[number];
  if (part.row_bytes == 0) {
    return Done{};
  }
  const std::uint64_t to = from + out.size() / part.row_bytes;
  TOKI_CHECK(out.size() % part.row_bytes == 0 && to <= plan_.rows);
  const std::uint64_t whole_to = to == plan_.rows ? to : to / plan_.tile_rows * plan_.tile_rows;
  while (from < to) {
    const std::uint64_t tile = from / plan_.tile_rows, first = tile * plan_.tile_rows;
    const bool whole = from == first && whole_to > from;
    const std::uint64_t next = whole ? whole_to : std::min(to, first + plan_.tile_rows);
    const std::span<std::byte> piece = out.first((next - from) * part.row_bytes);
    if (auto read = whole ? read_whole(part, tile, piece) : read_aside(part, tile, aside); !read) {
      return read;
    }
    if (!whole) {
      std::memcpy(piece.data(), aside.bytes.data() + (from - first) * part.row_bytes, piece.size());
    }
    out = out.subspan(piece.size());
    from = next;
  }
  return Done{};
}

}  // namespace toki
