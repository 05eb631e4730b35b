// The file, all little-endian:
//
//   u32 magic, u32 version, u32 n, n x i32: the token ids, or packed: -1, 1, count, ids, 0 (pictures)
//   u32 streams                                          (not in the oldest files of version 2)
//   each stream: u32 cells; where that is not 0:
//     each cell: i32 position, u32 sequences, each: i32 sequence     (0 sequences in the oldest)
//     u32 V is transposed, u32 layers; version 4: u32 K rotation, u32 V rotation
//     each layer: i32 type, u64 row bytes, rows                                            of K
//     each layer the same of V; or transposed: i32 type, u32 element bytes, u32 elements, then the
//       first element of each row, the second of each row, ...
//
// Version 1 has another memory, always with transposed V:
//   u32 8, u32 cells, u32 layers, u32 V elements, each cell: i32 position,
//   each layer: i32 type, u64 row bytes, rows; each layer: i32 type, u64 element bytes, elements
#include "store/state_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace toki {
namespace {

constexpr std::uint32_t kMagic = 0x67677371;  // "ggsq"
constexpr std::uint32_t kNewest = 4;
constexpr Token kPackedMarker = -1;
constexpr std::uint32_t kPackedVersion = 1;
constexpr std::size_t kPackedWords = 4;  // beside the ids

// Far above any model and server, and small enough that no sum of them overflows.
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 32;
constexpr std::size_t kMaxParts = std::size_t{1} << 16;
constexpr std::uint32_t kMaxStreams = std::uint32_t{1} << 16;
constexpr std::uint64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

constexpr std::uint32_t kNoCell = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kChunk = std::size_t{1} << 20;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }

  // False, and nothing read, when so many bytes are not left.
  bool skip(std::uint64_t count) {
    if (count > left()) {
      return false;
    }
    at_ += static_cast<std::size_t>(count);
    return true;
  }
  template <class T>
  bool number(T& value) {
    if (left() < sizeof(T)) {
      return false;
    }
    std::uint64_t bits = 0;
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
      bits |= std::to_integer<std::uint64_t>(bytes_[at_ + byte]) << (8 * byte);
    }
    at_ += sizeof(T);
    value = static_cast<T>(bits);
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

class Writer {
 public:
  template <class T>
  void number(T value) {
    const auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
      bytes_ += static_cast<char>((bits >> (8 * byte)) & 0xff);
    }
  }
  std::string take() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
};

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

// to[column][row] = from[row][column], of elements of `size` bytes; the strides are in bytes.
template <std::size_t kSize>
void transpose(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
               std::size_t rows, std::size_t columns, std::size_t size) {
  constexpr std::size_t kTile = 32;  // so that neither side leaves the cache within a tile
  const std::size_t bytes = kSize != 0 ? kSize : size;
  for (std::size_t row_tile = 0; row_tile < rows; row_tile += kTile) {
    const std::size_t row_end = std::min(rows, row_tile + kTile);
    for (std::size_t column_tile = 0; column_tile < columns; column_tile += kTile) {
      const std::size_t column_end = std::min(columns, column_tile + kTile);
      for (std::size_t row = row_tile; row < row_end; ++row) {
        for (std::size_t column = column_tile; column < column_end; ++column) {
          std::memcpy(to + column * to_stride + row * bytes,
                      from + row * from_stride + column * bytes, bytes);
        }
      }
    }
  }
}

void transpose(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
               std::size_t rows, std::size_t columns, std::size_t size) {
  const auto kernel = size == 2 ? transpose<2> : size == 4 ? transpose<4> : transpose<0>;
  kernel(from, from_stride, to, to_stride, rows, columns, size);
}

// The forms of the memory that were ever written.
struct Form {
  std::uint32_t version;
  bool cell_sequences;
  bool streams;
};
constexpr std::array<Form, 6> kForms = {{
    {1, false, false},  // April 2024
    {2, false, false},  // July 2024
    {2, true, false},   // some weeks of 2025
    {2, true, true},    // July 2025
    {3, true, true},    // August 2026: other M-RoPE cells, which are not understood anyway
    {4, true, true},    // September 2026
}};

bool known_form(const StateLayout& layout) {
  return std::any_of(kForms.begin(), kForms.end(), [&](const Form& form) {
    return form.version == layout.version && form.cell_sequences == layout.cell_sequences &&
           form.streams == (layout.streams != 0);
  });
}

bool valid_part(const StateLayout::Part& part, bool transposed) {
  if (part.row_bytes == 0 || part.row_bytes > kMaxRowBytes) {
    return false;
  }
  if (!transposed) {
    return part.element_bytes == 0;
  }
  return part.element_bytes != 0 && part.row_bytes % part.element_bytes == 0 &&
         part.row_bytes / part.element_bytes <= std::numeric_limits<std::uint32_t>::max();
}

// Can a file of this layout be?
bool valid(const StateLayout& layout) {
  const std::size_t layers = layout.layers();
  if (!known_form(layout) || layout.streams > kMaxStreams || layers == 0 ||
      layout.parts.size() != 2 * layers || layout.parts.size() > kMaxParts) {
    return false;
  }
  if (layout.version < 4 && (layout.k_rot != 0 || layout.v_rot != 0)) {
    return false;
  }
  const auto v = layout.parts.begin() + static_cast<std::ptrdiff_t>(layers);
  const auto fits_k = [](const auto& part) { return valid_part(part, false); };
  const auto fits_v = [&](const auto& part) { return valid_part(part, layout.v_transposed()); };
  if (!std::all_of(layout.parts.begin(), v, fits_k) ||
      !std::all_of(v, layout.parts.end(), fits_v)) {
    return false;
  }
  if (layout.version > 1) {
    return true;
  }
  const auto elements = [](const auto& part) { return part.row_bytes / part.element_bytes; };
  return !layout.packed_tokens && layout.v_transposed() &&
         std::all_of(v, layout.parts.end(),
                     [&](const auto& part) { return elements(part) == elements(*v); });
}

Error opaque(std::string why) {
  return {Errc::unsupported, "state file: " + std::move(why)};
}
Error broken(std::string why) {
  return {Errc::corrupt, "state file: " + std::move(why)};
}

}  // namespace

// ---- reading

// Tries the forms that a version's memory can have. Not more than one fits to the last byte; where
// none does, the one that got furthest says why.
class StateParser {
 public:
  static Result<StateFile> run(std::span<const std::byte> bytes) {
    StateFile file;
    Reader reader(bytes);
    if (const Verdict header = read_header(reader, file); header != Verdict::fits) {
      return error_of(header);
    }
    Verdict verdict = Verdict::other;
    std::size_t furthest = 0;
    for (const Form& form : kForms) {
      if (form.version != file.layout_.version) {
        continue;
      }
      StateParser attempt(reader, file, form);
      const Verdict result = attempt.read_memory();
      if (result == Verdict::fits) {
        attempt.file_.file_ = bytes;
        return std::move(attempt.file_);
      }
      if (attempt.reader_.at() > furthest) {
        furthest = attempt.reader_.at();
        verdict = result;
      }
    }
    return error_of(verdict);
  }

  static Result<Tokens> run_tokens(std::span<const std::byte> bytes) {
    StateFile file;
    Reader reader(bytes);
    const Verdict header = read_header(reader, file);
    return header == Verdict::fits ? Result<Tokens>(std::move(file.tokens_)) : error_of(header);
  }

 private:
  enum class Verdict { fits, ends_early, foreign, other };

  StateParser(const Reader& reader, const StateFile& file, const Form& form)
      : reader_(reader), file_(file), form_(form) {
    file_.layout_.cell_sequences = form.cell_sequences;
    file_.layout_.streams = 0;
  }

  static Error error_of(Verdict verdict) {
    switch (verdict) {
      case Verdict::ends_early: return broken("it ends too early");
      case Verdict::foreign: return broken("it does not begin like one");
      default: return opaque("not understood to the last byte");
    }
  }

  static Verdict read_header(Reader& reader, StateFile& file) {
    std::uint32_t magic = 0, words = 0;
    if (reader.number(magic) && magic != kMagic) {
      return Verdict::foreign;
    }
    if (!reader.number(file.layout_.version) || !reader.number(words)) {
      return Verdict::ends_early;
    }
    if (file.layout_.version == 0 || file.layout_.version > kNewest) {
      return Verdict::other;
    }
    if (words > reader.left() / sizeof(Token)) {
      return Verdict::ends_early;
    }
    return read_tokens(reader, words, file);
  }

  static Verdict read_tokens(Reader& reader, std::size_t words, StateFile& file) {
    Reader peek = reader;
    Token first = 0;
    file.layout_.packed_tokens = words != 0 && peek.number(first) && first == kPackedMarker;
    std::size_t count = words;
    if (file.layout_.packed_tokens) {
      std::uint32_t marker = 0, version = 0, ids = 0;
      if (file.layout_.version == 1 || words < kPackedWords || !reader.number(marker) ||
          !reader.number(version) || !reader.number(ids) || version != kPackedVersion ||
          ids != words - kPackedWords) {
        return Verdict::other;
      }
      count = ids;
    }
    file.tokens_.reserve(count);
    for (std::size_t token = 0; token < count; ++token) {
      Token id = 0;
      if (!reader.number(id)) {
        return Verdict::ends_early;
      }
      if (id < 0) {
        return Verdict::other;  // a place of a picture
      }
      file.tokens_.push_back(id);
    }
    std::uint32_t pictures = 0;
    if (file.layout_.packed_tokens && (!reader.number(pictures) || pictures != 0)) {
      return Verdict::other;
    }
    return count > kMaxTokens ? Verdict::other : Verdict::fits;
  }

  Verdict read_memory() {
    const Verdict verdict = form_.version == 1 ? read_version_1() : read_streams();
    if (verdict != Verdict::fits) {
      return verdict;
    }
    // An empty state tells nothing of its rows: most versions' have no parts, and version 1 has
    // heads of parts that no row bears out.
    return reader_.left() == 0 && tokens() != 0 && valid(file_.layout_) ? Verdict::fits
                                                                        : Verdict::other;
  }

  Verdict read_version_1() {
    std::uint32_t word_bytes = 0, cells = 0, layers = 0, elements = 0;
    if (!reader_.number(word_bytes) || !reader_.number(cells) || !reader_.number(layers) ||
        !reader_.number(elements)) {
      return Verdict::ends_early;
    }
    if (word_bytes != 8 || cells != tokens()) {
      return Verdict::other;
    }
    for (std::uint32_t cell = 0; cell < cells; ++cell) {
      if (const Verdict position = read_position(cell); position != Verdict::fits) {
        return position;
      }
    }
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      if (const Verdict k = read_part(); k != Verdict::fits) {
        return k;
      }
    }
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      std::int32_t type = 0;
      std::uint64_t element_bytes = 0;
      if (!reader_.number(type) || !reader_.number(element_bytes)) {
        return Verdict::ends_early;
      }
      if (const Verdict v = add_transposed(type, element_bytes, elements); v != Verdict::fits) {
        // With flash attention, builds of that time wrote whole rows of V, and nothing tells.
        return Verdict::other;
      }
    }
    return Verdict::fits;
  }

  // Exactly one stream holds cells: that of the saved slot.
  Verdict read_streams() {
    std::uint32_t streams = 1;
    if (form_.streams) {
      if (!reader_.number(streams)) {
        return Verdict::ends_early;
      }
      if (streams == 0) {
        return Verdict::other;
      }
      file_.layout_.streams = streams;
    }
    for (std::uint32_t stream = 0; stream < streams; ++stream) {
      std::uint32_t cells = 0;
      if (!reader_.number(cells)) {
        return Verdict::ends_early;
      }
      if (cells == 0) {
        continue;
      }
      if (cells != tokens() || !file_.part_offsets_.empty()) {
        return Verdict::other;
      }
      if (const Verdict memory = read_stream(streams - stream - 1); memory != Verdict::fits) {
        return memory;
      }
      if (streams > 1 && file_.slot_ != stream) {
        return Verdict::other;
      }
    }
    return Verdict::fits;
  }

  Verdict read_stream(std::uint32_t streams_behind) {
    if (const Verdict cells = read_cells(); cells != Verdict::fits) {
      return cells;
    }
    std::uint32_t transposed = 0, layers = 0;
    if (!reader_.number(transposed) || !reader_.number(layers)) {
      return Verdict::ends_early;
    }
    if (transposed > 1) {
      return Verdict::other;
    }
    if (form_.version >= 4 &&
        (!reader_.number(file_.layout_.k_rot) || !reader_.number(file_.layout_.v_rot))) {
      return Verdict::ends_early;
    }
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      if (const Verdict k = read_part(); k != Verdict::fits) {
        return k;
      }
    }
    if (reader_.left() <= sizeof(std::uint32_t) * streams_behind) {
      return Verdict::other;  // models with latent attention (MLA) have no V
    }
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const Verdict v = transposed != 0 ? read_transposed() : read_part();
      if (v != Verdict::fits) {
        return v;
      }
    }
    return Verdict::fits;
  }

  Verdict read_cells() {
    const std::uint32_t sequences = form_.cell_sequences ? 1 : 0;
    for (std::uint32_t cell = 0; cell < tokens(); ++cell) {
      if (const Verdict position = read_position(cell); position != Verdict::fits) {
        return position;
      }
      std::uint32_t count = 0, sequence = 0;
      if (!reader_.number(count) || (sequences != 0 && !reader_.number(sequence))) {
        return Verdict::ends_early;
      }
      if (count != sequences || sequence > kMaxTokens || (cell != 0 && sequence != file_.slot_)) {
        return Verdict::other;
      }
      file_.slot_ = sequence;
    }
    return Verdict::fits;
  }

  // The cells hold each position once, in whatever order.
  Verdict read_position(std::uint32_t cell) {
    std::uint32_t position = 0;
    if (!reader_.number(position)) {
      return Verdict::ends_early;
    }
    std::vector<std::uint32_t>& cells = file_.cells_;
    if (position == cell && cells.empty()) {
      return Verdict::fits;
    }
    if (cells.empty()) {
      cells.resize(tokens(), kNoCell);
      std::iota(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(cell), 0U);
    }
    if (position >= tokens() || cells[position] != kNoCell) {
      return Verdict::other;
    }
    cells[position] = cell;
    return Verdict::fits;
  }

  Verdict read_part() {
    StateLayout::Part part;
    if (!reader_.number(part.type) || !reader_.number(part.row_bytes)) {
      return Verdict::ends_early;
    }
    return add_part(part);
  }

  Verdict read_transposed() {
    std::int32_t type = 0;
    std::uint32_t element_bytes = 0, elements = 0;
    if (!reader_.number(type) || !reader_.number(element_bytes) || !reader_.number(elements)) {
      return Verdict::ends_early;
    }
    return add_transposed(type, element_bytes, elements);
  }

  Verdict add_transposed(std::int32_t type, std::uint64_t element_bytes, std::uint64_t elements) {
    StateLayout::Part part;
    part.type = type;
    part.element_bytes = static_cast<std::uint32_t>(element_bytes);
    if (part.element_bytes != element_bytes || !multiply(element_bytes, elements, part.row_bytes)) {
      return Verdict::other;
    }
    return add_part(part);
  }

  Verdict add_part(const StateLayout::Part& part) {
    std::uint64_t size = 0;
    if (!multiply(part.row_bytes, tokens(), size)) {
      return Verdict::other;
    }
    const std::size_t offset = reader_.at();
    if (!reader_.skip(size)) {
      return Verdict::ends_early;
    }
    file_.layout_.parts.push_back(part);
    file_.part_offsets_.push_back(offset);
    return Verdict::fits;
  }

  std::size_t tokens() const { return file_.tokens_.size(); }

  Reader reader_;
  StateFile file_;
  Form form_;
};

Result<StateFile> StateFile::parse(std::span<const std::byte> file) {
  return StateParser::run(file);
}

Result<Tokens> StateFile::read_tokens(std::span<const std::byte> file) {
  return StateParser::run_tokens(file);
}

std::span<const std::byte> StateFile::rows(std::size_t part, std::size_t from,
                                           std::size_t to) const {
  TOKI_CHECK(part < layout_.parts.size() && from <= to && to <= tokens_.size());
  TOKI_CHECK(in_order() && layout_.parts[part].element_bytes == 0);
  const auto row = static_cast<std::size_t>(layout_.parts[part].row_bytes);
  return file_.subspan(part_offsets_[part] + from * row, (to - from) * row);
}

void StateFile::read_rows(std::size_t part, std::size_t from, std::size_t to,
                          std::span<std::byte> out) const {
  TOKI_CHECK(part < layout_.parts.size() && from <= to && to <= tokens_.size());
  const auto row = static_cast<std::size_t>(layout_.parts[part].row_bytes);
  TOKI_CHECK(out.size() == (to - from) * row);
  if (in_order()) {
    read_run(part, from, to - from, out.data());
    return;
  }
  for (std::size_t token = from; token < to;) {
    const std::size_t cell = cells_[token];
    std::size_t count = 1;
    while (token + count < to && cells_[token + count] == cell + count) {
      ++count;
    }
    read_run(part, cell, count, out.data() + (token - from) * row);
    token += count;
  }
}

// The rows of neighbouring cells.
void StateFile::read_run(std::size_t part, std::size_t cell, std::size_t count,
                         std::byte* out) const {
  const StateLayout::Part& shape = layout_.parts[part];
  const auto row = static_cast<std::size_t>(shape.row_bytes);
  const std::byte* const start = file_.data() + part_offsets_[part];
  if (shape.element_bytes == 0) {
    std::copy_n(start + cell * row, count * row, out);
    return;
  }
  const std::size_t element = shape.element_bytes;
  transpose(start + cell * element, tokens_.size() * element, out, row, row / element, count,
            element);
}

// ---- layout

std::uint64_t StateLayout::bytes_per_token() const {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.row_bytes;
  }
  return bytes;
}

namespace {

constexpr std::uint32_t kLayoutFormat = 1;
constexpr std::uint32_t kFlagPackedTokens = 1, kFlagCellSequences = 2;

}  // namespace

std::string StateLayout::bytes() const {
  Writer writer;
  writer.number(kLayoutFormat);
  writer.number(version);
  writer.number((packed_tokens ? kFlagPackedTokens : 0) |
                (cell_sequences ? kFlagCellSequences : 0));
  for (const std::uint32_t value : {streams, k_rot, v_rot}) {
    writer.number(value);
  }
  writer.number(static_cast<std::uint32_t>(parts.size()));
  for (const Part& part : parts) {
    writer.number(part.type);
    writer.number(part.element_bytes);
    writer.number(part.row_bytes);
  }
  return writer.take();
}

Result<StateLayout> StateLayout::from_bytes(std::string_view bytes) {
  constexpr std::size_t kPartBytes = 16;
  Reader reader(std::as_bytes(std::span(bytes)));
  StateLayout layout;
  std::uint32_t format = 0, flags = 0, parts = 0;
  if (!reader.number(format) || !reader.number(layout.version) || !reader.number(flags) ||
      !reader.number(layout.streams) || !reader.number(layout.k_rot) ||
      !reader.number(layout.v_rot) || !reader.number(parts) || format != kLayoutFormat ||
      flags > (kFlagPackedTokens | kFlagCellSequences) || parts > kMaxParts ||
      reader.left() != parts * kPartBytes) {
    return broken("bytes that are no layout");
  }
  layout.packed_tokens = (flags & kFlagPackedTokens) != 0;
  layout.cell_sequences = (flags & kFlagCellSequences) != 0;
  layout.parts.resize(parts);
  for (Part& part : layout.parts) {
    static_cast<void>(reader.number(part.type) && reader.number(part.element_bytes) &&
                      reader.number(part.row_bytes));
  }
  if (!valid(layout)) {
    return broken("a layout that cannot be");
  }
  return layout;
}

// ---- writing

namespace {

// Bytes of the file beside the rows.
std::uint64_t frame_bytes(const StateLayout& layout, std::uint64_t tokens) {
  const std::uint64_t layers = layout.layers();
  const std::uint64_t record = 4 * (3 + tokens + (layout.packed_tokens ? kPackedWords : 0));
  if (layout.version == 1) {
    return record + 4 * (4 + tokens) + 24 * layers;
  }
  const std::uint64_t streams = layout.streams == 0 ? 1 : 1 + std::uint64_t{layout.streams};
  const std::uint64_t cells = (layout.cell_sequences ? 12 : 8) * tokens;
  return record + 4 * streams + cells + (layout.version >= 4 ? 16 : 8) + 24 * layers;
}

class StateWriter {
 public:
  StateWriter(const StateLayout& layout, TokenSpan tokens, std::uint32_t slot,
              const StateRowSource& rows, const StateSink& sink)
      : layout_(layout), tokens_(tokens), slot_(slot), rows_(rows), sink_(sink) {}

  Status run() {
    write_tokens();
    if (layout_.version == 1) {
      write_version_1();
    } else {
      write_cells();
    }
    for (std::size_t part = 0; part < layout_.parts.size(); ++part) {
      write_part_head(part);
      Status written = flush();
      if (written) {
        written = layout_.parts[part].element_bytes == 0 ? write_rows(part) : write_columns(part);
      }
      if (!written) {
        return written;
      }
    }
    for (std::uint32_t stream = slot_ + 1; stream < layout_.streams; ++stream) {
      head_.number(std::uint32_t{0});
    }
    return flush();
  }

 private:
  std::uint32_t count() const { return static_cast<std::uint32_t>(tokens_.size()); }

  void write_tokens() {
    head_.number(kMagic);
    head_.number(layout_.version);
    const std::size_t packing = layout_.packed_tokens ? kPackedWords : 0;
    head_.number(static_cast<std::uint32_t>(tokens_.size() + packing));
    if (layout_.packed_tokens) {
      head_.number(kPackedMarker);
      head_.number(kPackedVersion);
      head_.number(count());
    }
    for (const Token token : tokens_) {
      head_.number(token);
    }
    if (layout_.packed_tokens) {
      head_.number(std::uint32_t{0});
    }
  }

  void write_version_1() {
    const StateLayout::Part& v = layout_.parts.back();
    head_.number(std::uint32_t{8});
    head_.number(count());
    head_.number(static_cast<std::uint32_t>(layout_.layers()));
    head_.number(static_cast<std::uint32_t>(v.row_bytes / v.element_bytes));
    for (std::uint32_t cell = 0; cell < count(); ++cell) {
      head_.number(cell);
    }
  }

  void write_cells() {
    if (layout_.streams != 0) {
      head_.number(layout_.streams);
    }
    for (std::uint32_t stream = 0; layout_.streams > 1 && stream < slot_; ++stream) {
      head_.number(std::uint32_t{0});
    }
    head_.number(count());
    for (std::uint32_t cell = 0; cell < count(); ++cell) {
      head_.number(cell);
      head_.number(std::uint32_t{layout_.cell_sequences ? 1U : 0U});
      if (layout_.cell_sequences) {
        head_.number(slot_);
      }
    }
    head_.number(std::uint32_t{layout_.v_transposed() ? 1U : 0U});
    head_.number(static_cast<std::uint32_t>(layout_.layers()));
    if (layout_.version >= 4) {
      head_.number(layout_.k_rot);
      head_.number(layout_.v_rot);
    }
  }

  void write_part_head(std::size_t part) {
    const StateLayout::Part& shape = layout_.parts[part];
    head_.number(shape.type);
    if (shape.element_bytes == 0) {
      head_.number(shape.row_bytes);
    } else if (layout_.version == 1) {
      head_.number(std::uint64_t{shape.element_bytes});
    } else {
      head_.number(shape.element_bytes);
      head_.number(static_cast<std::uint32_t>(shape.row_bytes / shape.element_bytes));
    }
  }

  Status flush() {
    const std::string piece = head_.take();
    return piece.empty() ? Status(Done{}) : sink_(std::as_bytes(std::span(piece)));
  }

  // Hands the part's rows, about a chunk at a time, to take(from, to, rows).
  template <class Take>
  Status for_each_chunk(std::size_t part, Take take) {
    const auto row = static_cast<std::size_t>(layout_.parts[part].row_bytes);
    const std::size_t step = std::min(std::max<std::size_t>(1, kChunk / row), tokens_.size());
    chunk_.resize(std::max(chunk_.size(), step * row));
    for (std::size_t from = 0; from < tokens_.size(); from += step) {
      const std::size_t to = std::min(tokens_.size(), from + step);
      const auto rows = std::span(chunk_).first((to - from) * row);
      Status done = rows_(part, from, rows);
      if (done) {
        done = take(from, to, rows);
      }
      if (!done) {
        return done;
      }
    }
    return Done{};
  }

  Status write_rows(std::size_t part) {
    return for_each_chunk(part, [&](std::size_t, std::size_t, std::span<const std::byte> rows) {
      return sink_(rows);
    });
  }

  Status write_columns(std::size_t part) {
    const StateLayout::Part& shape = layout_.parts[part];
    const auto row = static_cast<std::size_t>(shape.row_bytes);
    const std::size_t element = shape.element_bytes;
    columns_.resize(std::max(columns_.size(), row * tokens_.size()));
    Status read = for_each_chunk(
        part, [&](std::size_t from, std::size_t to, std::span<const std::byte> rows) {
          transpose(rows.data(), row, columns_.data() + from * element, tokens_.size() * element,
                    to - from, row / element, element);
          return Status(Done{});
        });
    return read ? sink_(std::span(columns_).first(row * tokens_.size())) : read;
  }

  const StateLayout& layout_;
  TokenSpan tokens_;
  std::uint32_t slot_;
  const StateRowSource& rows_;
  const StateSink& sink_;
  Writer head_;
  std::vector<std::byte> chunk_, columns_;
};

}  // namespace

Result<std::uint64_t> state_file_size(const StateLayout& layout, std::size_t tokens) {
  std::uint64_t rows = 0, size = 0;
  if (!valid(layout) || tokens == 0 || tokens > kMaxTokens ||
      !multiply(layout.bytes_per_token(), tokens, rows) ||
      __builtin_add_overflow(rows, frame_bytes(layout, tokens), &size)) {
    return Error{Errc::invalid_argument, "state file: none of such a layout and length"};
  }
  return size;
}

Status write_state_file(const StateLayout& layout, TokenSpan tokens, std::uint32_t slot,
                        const StateRowSource& rows, const StateSink& sink) {
  const Result<std::uint64_t> size = state_file_size(layout, tokens.size());
  if (!size) {
    return size.error();
  }
  const bool has_slot = layout.streams > 1 ? slot < layout.streams : slot <= kMaxTokens;
  if (!has_slot || std::ranges::any_of(tokens, [](Token token) { return token < 0; })) {
    return Error{Errc::invalid_argument, "state file: no such slot, or no such token"};
  }
  // A file without sequences, or with one stream, does not depend on the slot's place.
  return StateWriter(layout, tokens, layout.streams > 1 || layout.cell_sequences ? slot : 0, rows,
                     sink)
      .run();
}

}  // namespace toki
