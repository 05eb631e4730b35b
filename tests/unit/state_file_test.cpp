#include "store/state_file.hpp"

#include <toki/result.hpp>
#include <toki/token.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace toki;

namespace {

using Bytes = std::vector<std::byte>;

// A state as the test wants it, and the file that the server would write for it: built here from
// the description of the format alone, with nothing of the code under test.
struct State {
  std::uint32_t version = 4;
  bool packed = true;
  bool sequences = true;
  std::uint32_t streams = 1;
  bool transposed = false;
  std::uint32_t rotation = 0;
  std::vector<std::uint32_t> k_rows = {6, 10};  // bytes a token, per layer
  std::uint32_t v_elements = 5, v_element_bytes = 2;
  std::uint32_t slot = 0;
  Tokens tokens = {7, 1, 300, 2, 2};
  std::vector<std::size_t> order = {};  // which token each cell holds; empty: in order
  std::uint32_t salt = 0;               // of the rows

  std::size_t token_of(std::size_t cell) const { return order.empty() ? cell : order[cell]; }
};

class Builder {
 public:
  void word(std::uint64_t value, int bytes = 4) {
    for (int byte = 0; byte < bytes; ++byte) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * byte)));
    }
    head_.resize(bytes_.size(), true);
  }
  void row_byte(std::byte value) {
    bytes_.push_back(value);
    head_.resize(bytes_.size(), false);
  }
  const Bytes& bytes() const { return bytes_; }
  // Where the file's bytes are not those of rows.
  std::vector<std::size_t> head_offsets() const {
    std::vector<std::size_t> offsets;
    for (std::size_t at = 0; at < head_.size(); ++at) {
      if (head_[at]) {
        offsets.push_back(at);
      }
    }
    return offsets;
  }

 private:
  Bytes bytes_;
  std::vector<bool> head_;
};

// Rows are told apart by everything that says where they belong.
std::byte row_value(const State& state, std::size_t part, std::size_t token, std::size_t byte) {
  const std::size_t id = static_cast<std::size_t>(state.tokens[token]);
  return static_cast<std::byte>(
      (part * 31 + token * 7 + byte * 3 + id * 13 + state.salt * 101) * 0x9e3779b1U >> 11);
}

std::uint32_t row_bytes(const State& state, std::size_t part) {
  const std::size_t layers = state.k_rows.size();
  return part < layers ? state.k_rows[part] : state.v_elements * state.v_element_bytes;
}

void add_rows(Builder& file, const State& state, std::size_t part) {
  for (std::size_t cell = 0; cell < state.tokens.size(); ++cell) {
    for (std::size_t byte = 0; byte < row_bytes(state, part); ++byte) {
      file.row_byte(row_value(state, part, state.token_of(cell), byte));
    }
  }
}

void add_columns(Builder& file, const State& state, std::size_t part) {
  for (std::size_t element = 0; element < state.v_elements; ++element) {
    for (std::size_t cell = 0; cell < state.tokens.size(); ++cell) {
      const std::size_t token = state.token_of(cell);
      for (std::size_t byte = 0; byte < state.v_element_bytes; ++byte) {
        file.row_byte(row_value(state, part, token, element * state.v_element_bytes + byte));
      }
    }
  }
}

void add_parts(Builder& file, const State& state) {
  const std::size_t layers = state.k_rows.size();
  for (std::size_t part = 0; part < 2 * layers; ++part) {
    file.word(part < layers ? 8 : 1);  // type
    if (part < layers || !state.transposed) {
      file.word(row_bytes(state, part), 8);
      add_rows(file, state, part);
      continue;
    }
    file.word(state.v_element_bytes, state.version == 1 ? 8 : 4);
    if (state.version != 1) {
      file.word(state.v_elements);
    }
    add_columns(file, state, part);
  }
}

void add_tokens(Builder& file, const State& state) {
  const std::size_t count = state.tokens.size();
  file.word(0x67677371);
  file.word(state.version);
  file.word(state.packed ? count + 4 : count);
  if (state.packed) {
    file.word(0xffffffff);
    file.word(1);
    file.word(count);
  }
  for (const Token token : state.tokens) {
    file.word(static_cast<std::uint32_t>(token));
  }
  if (state.packed) {
    file.word(0);
  }
}

Builder build(const State& state) {
  Builder file;
  const std::size_t count = state.tokens.size();
  add_tokens(file, state);
  if (state.version == 1) {
    file.word(8);
    file.word(count);
    file.word(state.k_rows.size());
    file.word(state.v_elements);
    for (std::size_t cell = 0; cell < count; ++cell) {
      file.word(state.token_of(cell));
    }
    add_parts(file, state);
    return file;
  }
  if (state.streams != 0) {
    file.word(state.streams);
  }
  for (std::uint32_t stream = 0; stream < std::max(state.streams, 1U); ++stream) {
    if (state.streams > 1 && stream != state.slot) {
      file.word(0);
      continue;
    }
    file.word(count);
    for (std::size_t cell = 0; cell < count; ++cell) {
      file.word(state.token_of(cell));
      file.word(state.sequences ? 1 : 0);
      if (state.sequences) {
        file.word(state.slot);
      }
    }
    file.word(state.transposed ? 1 : 0);
    file.word(state.k_rows.size());
    if (state.version >= 4) {
      file.word(state.rotation);
      file.word(state.rotation);
    }
    add_parts(file, state);
  }
  return file;
}

Bytes built(const State& state) {
  return build(state).bytes();
}

// Every form of file that was ever written, as far as it is understood.
std::vector<State> every_form() {
  std::vector<State> states;
  State first;
  first.version = 1;
  first.packed = first.sequences = false;
  first.streams = 0;
  first.transposed = true;
  states.push_back(first);
  for (const bool transposed : {false, true}) {
    for (const bool sequences : {false, true}) {
      State second;
      second.version = 2;
      second.packed = false;
      second.streams = 0;
      second.sequences = sequences;
      second.slot = sequences ? 2 : 0;
      second.transposed = transposed;
      states.push_back(second);
    }
    for (const std::uint32_t version : {2U, 3U, 4U}) {
      for (const bool packed : {false, true}) {
        State unified;
        unified.version = version;
        unified.packed = packed;
        unified.transposed = transposed;
        unified.slot = 5;
        unified.rotation = version == 4 && !transposed ? 64 : 0;
        states.push_back(unified);
        State separate = unified;
        separate.streams = 4;
        separate.slot = packed ? 2 : 3;
        states.push_back(separate);
      }
    }
  }
  return states;
}

std::string named(const State& state) {
  return "version " + std::to_string(state.version) + ", streams " + std::to_string(state.streams) +
         (state.packed ? ", packed" : "") + (state.sequences ? "" : ", no sequences") +
         (state.transposed ? ", transposed" : "");
}

StateFile parsed(const Bytes& bytes) {
  Result<StateFile> file = StateFile::parse(bytes);
  REQUIRE(file);
  return std::move(file).value();
}

Bytes written(const StateLayout& layout, TokenSpan tokens, std::uint32_t slot,
              const StateRowSource& rows) {
  Bytes bytes;
  const Status status =
      write_state_file(layout, tokens, slot, rows, [&](std::span<const std::byte> piece) {
        bytes.insert(bytes.end(), piece.begin(), piece.end());
        return Status(Done{});
      });
  REQUIRE(status);
  CHECK(state_file_size(layout, tokens.size()).value() == bytes.size());
  return bytes;
}

StateRowSource rows_of(const StateFile& file) {
  return [&file](std::size_t part, std::size_t from, std::span<std::byte> out) {
    const auto row = static_cast<std::size_t>(file.layout().parts[part].row_bytes);
    file.read_rows(part, from, from + out.size() / row, out);
    return Status(Done{});
  };
}

Bytes rewritten(const StateFile& file) {
  return written(file.layout(), file.tokens(), file.slot(), rows_of(file));
}

Bytes with_flip(Bytes bytes, std::size_t at, std::uint8_t mask) {
  bytes[at] ^= std::byte{mask};
  return bytes;
}

Errc refusal(const Bytes& bytes) {
  const Result<StateFile> file = StateFile::parse(bytes);
  REQUIRE_FALSE(file);
  return file.error().code;
}

// A copy with the word at `offset` replaced.
Bytes with_word(Bytes bytes, std::size_t offset, std::uint32_t value) {
  for (std::size_t byte = 0; byte < 4; ++byte) {
    bytes.at(offset + byte) = static_cast<std::byte>(value >> (8 * byte));
  }
  return bytes;
}

State plain_state() {
  State state;
  state.tokens = {11, 12, 13};
  return state;
}
constexpr std::size_t kMemoryAt = 4 * (3 + 3 + 3 + 1);  // in the file of plain_state()
constexpr std::size_t kCellsAt = kMemoryAt + 8;
constexpr std::size_t kShapeAt = kCellsAt + 3 * 12;

}  // namespace

TEST_CASE("state file: every form of every version is read, and says what it was made of") {
  for (const State& state : every_form()) {
    INFO(named(state));
    const Bytes bytes = built(state);
    const StateFile file = parsed(bytes);
    const StateLayout& layout = file.layout();
    CHECK(layout.version == state.version);
    CHECK(layout.packed_tokens == state.packed);
    CHECK(layout.cell_sequences == state.sequences);
    CHECK(layout.streams == state.streams);
    CHECK(layout.v_transposed() == state.transposed);
    CHECK(layout.k_rot == state.rotation);
    CHECK(layout.v_rot == state.rotation);
    CHECK(layout.bytes_per_token() == 6 + 10 + 2 * 10);
    CHECK(file.slot() == state.slot);
    CHECK(std::ranges::equal(file.tokens(), state.tokens));
    REQUIRE(layout.parts.size() == 4);
    for (std::size_t part = 0; part < 4; ++part) {
      REQUIRE(layout.parts[part].row_bytes == row_bytes(state, part));
      CHECK(layout.parts[part].type == (part < 2 ? 8 : 1));
      for (std::size_t from = 0; from <= state.tokens.size(); ++from) {
        for (std::size_t to = from; to <= state.tokens.size(); ++to) {
          Bytes rows((to - from) * row_bytes(state, part));
          file.read_rows(part, from, to, rows);
          Bytes wanted;
          for (std::size_t token = from; token < to; ++token) {
            for (std::size_t byte = 0; byte < row_bytes(state, part); ++byte) {
              wanted.push_back(row_value(state, part, token, byte));
            }
          }
          CHECK(rows == wanted);
          if (layout.parts[part].element_bytes == 0) {
            CHECK(std::ranges::equal(file.rows(part, from, to), wanted));
          }
        }
      }
    }
  }
}

TEST_CASE("state file: what is read and written again is the same file") {
  for (const State& state : every_form()) {
    INFO(named(state));
    const Bytes bytes = built(state);
    CHECK(rewritten(parsed(bytes)) == bytes);
  }
}

TEST_CASE("state file: a file that ends early is refused, at every length") {
  for (const State& state : every_form()) {
    INFO(named(state));
    const Bytes bytes = built(state);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      INFO(length);
      CHECK_FALSE(StateFile::parse(std::span(bytes).first(length)));
    }
  }
  const Bytes bytes = built(plain_state());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    INFO(length);
    const Result<StateFile> file = StateFile::parse(std::span(bytes).first(length));
    REQUIRE_FALSE(file);
    // Where the V of a model begins that has none, a shorter file may be a whole one.
    const bool may_be_another = length == kShapeAt + 16 + 2 * 12 + 3 * (6 + 10);
    CHECK(file.error().code == (may_be_another ? Errc::unsupported : Errc::corrupt));
  }
}

TEST_CASE("state file: anything behind the end makes it opaque") {
  for (const State& state : every_form()) {
    INFO(named(state));
    Bytes bytes = built(state);
    for (std::size_t more = 0; more < 40; ++more) {
      bytes.push_back(std::byte{0});
      CHECK(refusal(bytes) == Errc::unsupported);
    }
  }
}

TEST_CASE("state file: whatever byte beside the rows changes, it is refused or still exact") {
  for (const State& state : every_form()) {
    INFO(named(state));
    const Builder builder = build(state);
    std::size_t accepted = 0, refused = 0;
    for (const std::size_t at : builder.head_offsets()) {
      for (int mask = 1; mask < 256; ++mask) {
        const Bytes bytes = with_flip(builder.bytes(), at, static_cast<std::uint8_t>(mask));
        const Result<StateFile> file = StateFile::parse(bytes);
        file ? ++accepted : ++refused;
        if (file && rewritten(file.value()) != bytes) {
          FAIL("byte " << at << " mask " << mask << " is read but not written again");
        }
      }
    }
    CHECK(accepted > 0);  // token ids, types
    CHECK(refused > accepted);
  }
}

TEST_CASE("state file: a changed byte of a row changes that row and nothing else") {
  for (const bool transposed : {false, true}) {
    State state;
    state.transposed = transposed;
    const Builder builder = build(state);
    const std::vector<std::size_t> heads = builder.head_offsets();
    for (std::size_t at = 0; at < builder.bytes().size(); ++at) {
      if (std::binary_search(heads.begin(), heads.end(), at)) {
        continue;
      }
      const Bytes bytes = with_flip(builder.bytes(), at, 0x40);
      const StateFile file = parsed(bytes);
      std::size_t changed = 0;
      for (std::size_t part = 0; part < 4; ++part) {
        Bytes rows(state.tokens.size() * row_bytes(state, part));
        file.read_rows(part, 0, state.tokens.size(), rows);
        for (std::size_t byte = 0; byte < rows.size(); ++byte) {
          const std::size_t row = row_bytes(state, part);
          changed += rows[byte] != row_value(state, part, byte / row, byte % row) ? 1U : 0U;
        }
      }
      CHECK(changed == 1);
    }
  }
}

TEST_CASE("state file: cut to its first tokens it is the file of those tokens") {
  for (const State& state : every_form()) {
    INFO(named(state));
    const Bytes bytes = built(state);
    const StateFile file = parsed(bytes);
    for (std::size_t count = 1; count <= state.tokens.size(); ++count) {
      State shorter = state;
      shorter.tokens.resize(count);
      CHECK(written(file.layout(), file.tokens().first(count), file.slot(), rows_of(file)) ==
            built(shorter));
    }
  }
}

TEST_CASE("state file: written for another slot it is the file of that slot") {
  for (const State& state : every_form()) {
    INFO(named(state));
    const Bytes bytes = built(state);
    const StateFile file = parsed(bytes);
    for (std::uint32_t slot = 0; slot < 4; ++slot) {
      State other = state;
      other.slot = state.sequences || state.streams > 1 ? slot : 0;
      const Bytes moved = written(file.layout(), file.tokens(), slot, rows_of(file));
      CHECK(moved == built(other));
      CHECK(parsed(moved).slot() == other.slot);
    }
  }
}

TEST_CASE("state file: rows of any layout go into any other that holds the same") {
  std::vector<State> states;
  for (State state : every_form()) {
    state.rotation = 0;
    states.push_back(state);
  }
  for (const State& from : states) {
    const Bytes bytes = built(from);
    const StateFile file = parsed(bytes);
    for (const State& to : states) {
      INFO(named(from) << " to " << named(to));
      const StateLayout layout = parsed(built(to)).layout();
      CHECK(written(layout, file.tokens(), to.slot, rows_of(file)) == built(to));
    }
  }
}

TEST_CASE("state file: two prompts are joined where they part, like the file of the whole") {
  std::mt19937 random(20);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  for (int round = 0; round < 300; ++round) {
    State a;
    a.transposed = below(2) == 0;
    a.streams = below(2) == 0 ? 1 : 4;
    a.version = below(2) == 0 ? 4 : 2;
    a.packed = below(2) == 0;
    a.k_rows.assign(1 + below(4), static_cast<std::uint32_t>(1 + below(40)));
    a.v_elements = static_cast<std::uint32_t>(1 + below(70));
    a.v_element_bytes = std::vector<std::uint32_t>{1, 2, 3, 4, 8}[below(5)];
    a.slot = static_cast<std::uint32_t>(below(4));
    a.tokens.clear();
    for (std::size_t left = 1 + below(200); left > 0; --left) {
      a.tokens.push_back(static_cast<Token>(below(1000)));
    }
    State b = a;
    b.slot = static_cast<std::uint32_t>(below(4));
    const std::size_t shared = 1 + below(a.tokens.size());
    b.tokens.resize(shared);
    for (std::size_t left = below(100); left > 0; --left) {
      b.tokens.push_back(static_cast<Token>(1000 + below(1000)));
    }
    const Bytes a_bytes = built(a), b_bytes = built(b);
    const StateFile file_a = parsed(a_bytes), file_b = parsed(b_bytes);
    State whole = b;  // the shared rows are equal in both, as they are in the server's files
    whole.slot = static_cast<std::uint32_t>(below(4));
    std::size_t from_a = 0;
    const Bytes joined =
        written(file_b.layout(), file_b.tokens(), whole.slot,
                [&](std::size_t part, std::size_t from, std::span<std::byte> out) {
                  const auto row = static_cast<std::size_t>(file_b.layout().parts[part].row_bytes);
                  const std::size_t to = from + out.size() / row;
                  const std::size_t parting = std::clamp(shared, from, to);
                  file_a.read_rows(part, from, parting, out.first((parting - from) * row));
                  file_b.read_rows(part, parting, to, out.subspan((parting - from) * row));
                  from_a += parting - from;
                  return Status(Done{});
                });
    CHECK(joined == built(whole));
    CHECK(from_a == shared * file_a.layout().parts.size());
  }
}

TEST_CASE("state file: cells in any order are read by position, and written again in order") {
  std::mt19937 random(7);
  for (State state : every_form()) {
    INFO(named(state));
    const Bytes ordered = built(state);
    CHECK(parsed(ordered).in_order());
    for (int round = 0; round < 20; ++round) {
      state.order = {0, 1, 2, 3, 4};
      std::shuffle(state.order.begin(), state.order.end(), random);
      const Bytes bytes = built(state);
      const StateFile file = parsed(bytes);
      CHECK(file.in_order() == (bytes == ordered));
      CHECK(file.layout() == parsed(ordered).layout());
      CHECK(rewritten(file) == ordered);
      for (std::size_t part = 0; part < 4; ++part) {
        for (std::size_t from = 0; from < 5; ++from) {
          Bytes rows((5 - from) * row_bytes(state, part)), wanted = rows;
          file.read_rows(part, from, 5, rows);
          parsed(ordered).read_rows(part, from, 5, wanted);
          CHECK(rows == wanted);
        }
      }
    }
  }
}

TEST_CASE(
    "state file: out of order, too, it is refused when it ends early or a position is wrong") {
  for (State state : every_form()) {
    INFO(named(state));
    state.order = {3, 4, 0, 1, 2};
    const Builder builder = build(state);
    for (std::size_t length = 0; length < builder.bytes().size(); ++length) {
      CHECK_FALSE(StateFile::parse(std::span(builder.bytes()).first(length)));
    }
    for (const std::size_t at : builder.head_offsets()) {
      for (int mask = 1; mask < 256; ++mask) {
        const Bytes bytes = with_flip(builder.bytes(), at, static_cast<std::uint8_t>(mask));
        const Result<StateFile> file = StateFile::parse(bytes);
        if (!file) {
          continue;
        }
        const Bytes again = rewritten(file.value());
        if (file->in_order() || again.size() != bytes.size() || rewritten(parsed(again)) != again) {
          FAIL("byte " << at << " mask " << mask << " is read as what it is not");
        }
      }
    }
  }
}

TEST_CASE("state file: rows larger than a chunk are asked for in order and without a gap") {
  State state;
  state.k_rows = {300000, 7};
  state.v_elements = 300000;
  state.tokens.assign(9, 4);
  for (const bool transposed : {false, true}) {
    state.transposed = transposed;
    const Bytes bytes = built(state);
    const StateFile file = parsed(bytes);
    std::size_t next_part = 0, next_token = 0;
    const StateRowSource source = rows_of(file);
    const Bytes again = written(file.layout(), file.tokens(), 0,
                                [&](std::size_t part, std::size_t from, std::span<std::byte> out) {
                                  if (next_token == state.tokens.size()) {
                                    ++next_part;
                                    next_token = 0;
                                  }
                                  CHECK(part == next_part);
                                  CHECK(from == next_token);
                                  CHECK(out.size() <= (std::size_t{1} << 20));
                                  next_token += out.size() / row_bytes(state, part);
                                  return source(part, from, out);
                                });
    CHECK(next_part == 3);
    CHECK(again == bytes);
  }
}

TEST_CASE("state file: other memories are opaque") {
  const Bytes plain = built(plain_state());
  REQUIRE(StateFile::parse(plain));
  SECTION("a second one behind the first, as of sliding windows") {
    Bytes two = plain;
    two.insert(two.end(), plain.begin() + static_cast<std::ptrdiff_t>(kMemoryAt), plain.end());
    CHECK(refusal(two) == Errc::unsupported);
  }
  SECTION("positions that do not begin at 0, leave one out, or come twice") {
    for (std::size_t cell = 0; cell < 3; ++cell) {
      for (const std::uint32_t position : {0U, 1U, 2U, 3U, 0x7fffffffU, 0xffffffffU}) {
        if (position != cell) {
          CHECK(refusal(with_word(plain, kCellsAt + cell * 12, position)) == Errc::unsupported);
        }
      }
    }
  }
  SECTION("cells of no, two or different sequences") {
    CHECK(refusal(with_word(plain, kCellsAt + 4, 0)) == Errc::unsupported);
    CHECK(refusal(with_word(plain, kCellsAt + 4, 2)) == Errc::unsupported);
    CHECK(refusal(with_word(plain, kCellsAt + 20, 1)) == Errc::unsupported);
    Bytes negative = plain;
    for (std::size_t cell = 0; cell < 3; ++cell) {
      negative = with_word(negative, kCellsAt + cell * 12 + 8, 0x80000000);
    }
    CHECK(refusal(negative) == Errc::unsupported);
  }
  SECTION("fewer or more cells than token ids") {
    for (const std::uint32_t cells : {0U, 1U, 2U, 4U, 1000U, 0xffffffffU}) {
      CHECK(refusal(with_word(plain, kMemoryAt + 4, cells)) == Errc::unsupported);
    }
  }
  SECTION("no V") {
    const std::size_t v_at = kShapeAt + 16 + 2 * 12 + 3 * (6 + 10);
    const Bytes no_v(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(v_at));
    CHECK(refusal(no_v) == Errc::unsupported);
  }
  SECTION("M-RoPE cells, with 8 or 12 bytes more") {
    for (const int more : {2, 3}) {
      Bytes cells = plain;
      for (int cell = 2; cell >= 0; --cell) {
        const auto at = cells.begin() + static_cast<std::ptrdiff_t>(kCellsAt) + cell * 12 + 8;
        cells.insert(at, static_cast<std::size_t>(4 * more), static_cast<std::byte>(0));
      }
      CHECK(refusal(cells) == Errc::unsupported);
    }
  }
  SECTION("pictures among the tokens") {
    CHECK(refusal(with_word(plain, 24 + 4, 0xffffffff)) == Errc::unsupported);
    CHECK(refusal(with_word(plain, kMemoryAt - 4, 1)) == Errc::unsupported);
  }
  SECTION("token records of another version or length") {
    CHECK(refusal(with_word(plain, 16, 2)) == Errc::unsupported);
    CHECK(refusal(with_word(plain, 20, 2)) == Errc::unsupported);
    CHECK(refusal(with_word(plain, 20, 0xfffffffb)) == Errc::unsupported);
  }
  SECTION("versions that are not known") {
    for (const std::uint32_t version : {0U, 5U, 0xffffffffU}) {
      const Bytes bytes = with_word(plain, 4, version);
      CHECK(refusal(bytes) == Errc::unsupported);
      CHECK(refusal(with_word(bytes, 8, 1000000)) == Errc::unsupported);
    }
  }
  SECTION("a stream that is not the sequence's") {
    State separate = plain_state();
    separate.streams = 4;
    separate.slot = 2;
    Bytes bytes = built(separate);
    REQUIRE(StateFile::parse(bytes));
    for (std::size_t cell = 0; cell < 3; ++cell) {
      bytes = with_word(bytes, kMemoryAt + 4 * 4 + cell * 12 + 8, 1);
    }
    CHECK(refusal(bytes) == Errc::unsupported);
  }
  SECTION("two streams with cells, and token ids without any") {
    State separate = plain_state();
    separate.streams = 2;
    separate.slot = 0;
    Bytes bytes = built(separate);
    separate.slot = 1;
    const Bytes second = built(separate);
    bytes.resize(bytes.size() - 4);
    bytes.insert(bytes.end(), second.begin() + static_cast<std::ptrdiff_t>(kMemoryAt) + 8,
                 second.end());
    CHECK(refusal(bytes) == Errc::unsupported);
    bytes.resize(kMemoryAt + 4 + 2 * 4);
    CHECK(refusal(with_word(with_word(bytes, kMemoryAt + 4, 0), kMemoryAt + 8, 0)) ==
          Errc::unsupported);
  }
  SECTION("no layers") {
    Bytes bytes = with_word(plain, kShapeAt + 4, 0);
    CHECK(refusal(bytes) == Errc::unsupported);
    bytes.resize(kShapeAt + 16);
    CHECK(refusal(bytes) == Errc::unsupported);
  }
  SECTION("an empty slot") {
    State state;
    state.tokens.clear();
    for (const bool packed : {false, true}) {
      Builder file;
      state.packed = packed;
      add_tokens(file, state);
      file.word(1);
      file.word(0);
      CHECK(refusal(file.bytes()) == Errc::unsupported);
    }
    for (State every : every_form()) {
      every.tokens.clear();
      CHECK(refusal(built(every)) == Errc::unsupported);
    }
  }
}

TEST_CASE("state file: another kind of file is corrupt, not opaque") {
  CHECK(refusal({}) == Errc::corrupt);
  CHECK(refusal(with_word(built(plain_state()), 0, 0x6767736e)) == Errc::corrupt);
  CHECK(refusal(Bytes(1000)) == Errc::corrupt);
}

TEST_CASE("state file: sizes that the file does not hold are refused before they are used") {
  const Bytes plain = built(plain_state());
  const std::size_t row_bytes_at = kShapeAt + 16 + 4;
  for (const std::uint32_t high : {0U, 1U, 0x55555555U, 0x7fffffffU, 0xffffffffU}) {
    for (const std::uint32_t low : {0U, 7U, 0x55555556U, 0x80000000U, 0xffffffffU}) {
      const Bytes bytes = with_word(with_word(plain, row_bytes_at, low), row_bytes_at + 4, high);
      CHECK_FALSE(StateFile::parse(bytes));  // times 3 tokens, some of them wrap around to little
    }
  }
  for (const std::uint32_t huge : {0x10000U, 0x10001U, 0x40000000U, 0xffffffffU}) {
    CHECK(refusal(with_word(plain, 8, huge)) == Errc::corrupt);           // words
    CHECK_FALSE(StateFile::parse(with_word(plain, kMemoryAt, huge)));     // streams
    CHECK_FALSE(StateFile::parse(with_word(plain, kShapeAt + 4, huge)));  // layers
  }
  State state = plain_state();
  state.transposed = true;
  const Bytes transposed = built(state);
  const std::size_t element_at = kShapeAt + 16 + 2 * 12 + 3 * (6 + 10) + 4;
  for (const std::uint32_t bytes : {0U, 1U, 3U, 0x80000000U, 0xffffffffU}) {
    for (const std::uint32_t elements : {0U, 1U, 0x80000000U, 0xffffffffU}) {
      CHECK_FALSE(StateFile::parse(
          with_word(with_word(transposed, element_at, bytes), element_at + 4, elements)));
    }
  }
}

TEST_CASE("state file: a layout's bytes are read back to the same layout, and nothing else is") {
  std::vector<std::string> seen;
  for (const State& state : every_form()) {
    INFO(named(state));
    const StateLayout layout = parsed(built(state)).layout();
    const std::string bytes = layout.bytes();
    CHECK(StateLayout::from_bytes(bytes).value() == layout);
    CHECK(std::find(seen.begin(), seen.end(), bytes) == seen.end());
    seen.push_back(bytes);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CHECK_FALSE(StateLayout::from_bytes(std::string_view(bytes).substr(0, length)));
    }
    CHECK_FALSE(StateLayout::from_bytes(bytes + '\0'));
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (int mask = 1; mask < 256; ++mask) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ mask);
        const Result<StateLayout> other = StateLayout::from_bytes(changed);
        if (other && (other->bytes() != changed || *other == layout)) {
          FAIL("byte " << at << " mask " << mask << " is read as what it is not");
        }
        if (!other) {
          CHECK(other.error().code == Errc::corrupt);
        }
      }
    }
  }
}

TEST_CASE("state file: layouts that no file can have are refused") {
  const StateLayout layout = parsed(built(plain_state())).layout();
  State transposed_state = plain_state();
  transposed_state.transposed = true;
  const StateLayout transposed = parsed(built(transposed_state)).layout();
  const auto refused = [](StateLayout changed, const std::function<void(StateLayout&)>& change) {
    change(changed);
    const bool unreadable = !StateLayout::from_bytes(changed.bytes());
    CHECK(unreadable == !state_file_size(changed, 3));
    return unreadable;
  };
  CHECK_FALSE(refused(layout, [](StateLayout&) {}));
  CHECK_FALSE(refused(transposed, [](StateLayout&) {}));
  CHECK(refused(layout, [](StateLayout& bad) { bad.version = 5; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.version = 1; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.streams = 0; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.streams = 65537; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.cell_sequences = false; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.version = 3, bad.k_rot = 64; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.version = 2, bad.v_rot = 64; }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.parts.clear(); }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.parts.pop_back(); }));
  CHECK(refused(layout, [](StateLayout& bad) { bad.parts.resize(70000, bad.parts[0]); }));
  for (std::size_t part = 0; part < 4; ++part) {
    CHECK(refused(layout, [&](StateLayout& bad) { bad.parts[part].row_bytes = 0; }));
    CHECK(refused(layout, [&](StateLayout& bad) {
      bad.parts[part].row_bytes = (std::uint64_t{1} << 32) + 1;
    }));
    CHECK(refused(layout, [&](StateLayout& bad) { bad.parts[part].element_bytes = 2; }));
  }
  CHECK(refused(transposed, [](StateLayout& bad) { bad.parts[2].row_bytes = 9; }));
  CHECK(refused(transposed, [](StateLayout& bad) { bad.parts[2].element_bytes = 0; }));
  CHECK(refused(transposed, [](StateLayout& bad) { bad.parts[0].element_bytes = 2; }));
  const StateLayout first = parsed(built(every_form().front())).layout();
  REQUIRE(first.version == 1);
  CHECK(refused(first, [](StateLayout& bad) { bad.parts[2].row_bytes += 2; }));
  CHECK(refused(first, [](StateLayout& bad) { bad.packed_tokens = true; }));
}

TEST_CASE("state file: what cannot be written is refused, and errors of others are handed on") {
  const Bytes bytes = built(plain_state());
  const StateFile file = parsed(bytes);
  const StateRowSource rows = rows_of(file);
  const StateSink sink = [](std::span<const std::byte>) { return Status(Done{}); };
  const auto code = [&](const StateLayout& layout, TokenSpan tokens, std::uint32_t slot) {
    const Status status = write_state_file(layout, tokens, slot, rows, sink);
    REQUIRE_FALSE(status);
    return status.error().code;
  };
  const Tokens picture = {1, -1};
  StateLayout separate = file.layout();
  separate.streams = 2;
  CHECK(code(separate, file.tokens(), 2) == Errc::invalid_argument);
  CHECK(code(file.layout(), file.tokens(), 0x80000000) == Errc::invalid_argument);
  CHECK(code(file.layout(), {}, 0) == Errc::invalid_argument);
  CHECK(code(file.layout(), picture, 0) == Errc::invalid_argument);
  CHECK(code(StateLayout{}, file.tokens(), 0) == Errc::invalid_argument);
  CHECK_FALSE(state_file_size(file.layout(), std::numeric_limits<std::size_t>::max()));

  StateLayout wide = file.layout();
  for (StateLayout::Part& part : wide.parts) {
    part.row_bytes = std::uint64_t{1} << 32;
  }
  REQUIRE(state_file_size(wide, 1'000'000'000));
  wide.parts.resize(8, wide.parts.back());
  CHECK_FALSE(state_file_size(wide, 2'000'000'000));  // more than 64 bits can tell

  for (std::size_t good = 0; good < 4; ++good) {
    std::size_t calls = 0;
    const Status status = write_state_file(
        file.layout(), file.tokens(), 0,
        [&](std::size_t, std::size_t, std::span<std::byte>) -> Status {
          return calls++ < good ? Status(Done{}) : Status(Error{Errc::corrupt, "rows"});
        },
        sink);
    REQUIRE_FALSE(status);
    CHECK(status.error().detail == "rows");
    CHECK(calls == good + 1);
  }
  for (std::size_t good = 0; good < 8; ++good) {
    std::size_t calls = 0;
    const Status status = write_state_file(
        file.layout(), file.tokens(), 0, rows, [&](std::span<const std::byte>) -> Status {
          return calls++ < good ? Status(Done{}) : Status(Error{Errc::unavailable, "disk"});
        });
    REQUIRE_FALSE(status);
    CHECK(status.error().detail == "disk");
    CHECK(calls == good + 1);
  }
}
