// What the library makes of llama-server's state files, for tests against a real one.
//
//   state_tool info FILE                 its layout, one `name value` a line; exit 3: opaque
//   state_tool cut FILE TOKENS SLOT OUT  its first TOKENS tokens, for SLOT
//   state_tool join A B TOKENS SLOT OUT  tokens and layout of B, the rows of the first TOKENS from A
//   state_tool as FILE LIKE SLOT OUT     its tokens and rows in the layout of LIKE
#include <toki/result.hpp>
#include <toki/token.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <ios>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "store/state_file.hpp"

namespace {

using namespace toki;
using Bytes = std::vector<std::byte>;

struct Opaque : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (!file || size < 0) {
    throw std::runtime_error("cannot read " + path);
  }
  Bytes bytes(static_cast<std::size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  return bytes;
}

// A state file with the bytes that it looks at.
struct Loaded {
  explicit Loaded(const std::string& path) : bytes(read(path)), file(parse(path, bytes)) {}

  static StateFile parse(const std::string& path, const Bytes& bytes) {
    Result<StateFile> file = StateFile::parse(bytes);
    if (!file) {
      throw Opaque(path + ": " + std::string(to_string(file.error().code)) + ": " +
                   file.error().detail);
    }
    return std::move(file).value();
  }

  Bytes bytes;
  StateFile file;
};

std::uint32_t number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::runtime_error("not a number: " + std::string(text));
  }
  return value;
}

void info(const std::string& path) {
  const Loaded loaded(path);
  const StateLayout& layout = loaded.file.layout();
  std::printf("version %u\ntokens %zu\nslot %u\nstreams %u\npacked %d\nlayers %zu\n",
              layout.version, loaded.file.tokens().size(), loaded.file.slot(), layout.streams,
              layout.packed_tokens ? 1 : 0, layout.layers());
  std::printf("in_order %d\n", loaded.file.in_order() ? 1 : 0);
  std::printf("v_transposed %d\nk_rot %u\nv_rot %u\nbytes_per_token %llu\n",
              layout.v_transposed() ? 1 : 0, layout.k_rot, layout.v_rot,
              static_cast<unsigned long long>(layout.bytes_per_token()));
}

void write(const StateLayout& layout, TokenSpan tokens, std::uint32_t slot,
           const StateRowSource& rows, const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const Status status =
      write_state_file(layout, tokens, slot, rows, [&](std::span<const std::byte> piece) -> Status {
        out.write(reinterpret_cast<const char*>(piece.data()),
                  static_cast<std::streamsize>(piece.size()));
        return out ? Status(Done{}) : Status(Error{Errc::unavailable, "cannot write " + path});
      });
  out.close();
  if (!status || !out) {
    throw std::runtime_error(status ? "cannot write " + path : status.error().detail);
  }
}

// The rows of the first `shared` tokens from `a`, the others from `b`.
StateRowSource rows_of(const StateFile& a, const StateFile& b, std::size_t shared) {
  return [&a, &b, shared](std::size_t part, std::size_t from, std::span<std::byte> out) {
    const auto row = static_cast<std::size_t>(b.layout().parts[part].row_bytes);
    const std::size_t to = from + out.size() / row;
    const std::size_t parting = std::clamp(shared, from, to);
    a.read_rows(part, from, parting, out.first((parting - from) * row));
    b.read_rows(part, parting, to, out.subspan((parting - from) * row));
    return Status(Done{});
  };
}

// Rows of files of either layout mean the same: only the frame around them differs, for example because
// the server was started with another number of slots, or V is transposed in one.
bool same_rows(const StateLayout& one, const StateLayout& other) {
  const auto same = [](const StateLayout::Part& a, const StateLayout::Part& b) {
    return a.type == b.type && a.row_bytes == b.row_bytes;
  };
  // Older versions do not tell whether rows are rotated.
  return (one.version < 4) == (other.version < 4) && one.k_rot == other.k_rot &&
         one.v_rot == other.v_rot &&
         std::equal(one.parts.begin(), one.parts.end(), other.parts.begin(), other.parts.end(),
                    same);
}

void cut(const std::string& path, std::size_t tokens, std::uint32_t slot, const std::string& out) {
  const Loaded loaded(path);
  if (tokens > loaded.file.tokens().size()) {
    throw std::runtime_error("not so many tokens");
  }
  write(loaded.file.layout(), loaded.file.tokens().first(tokens), slot,
        rows_of(loaded.file, loaded.file, 0), out);
}

void join(const std::string& a_path, const std::string& b_path, std::size_t tokens,
          std::uint32_t slot, const std::string& out) {
  const Loaded a(a_path), b(b_path);
  if (common_prefix(a.file.tokens(), b.file.tokens()) < tokens) {
    throw std::runtime_error("they part earlier");
  }
  if (!same_rows(a.file.layout(), b.file.layout())) {
    throw std::runtime_error("their rows differ in kind");
  }
  write(b.file.layout(), b.file.tokens(), slot, rows_of(a.file, b.file, tokens), out);
}

void as(const std::string& path, const std::string& like_path, std::uint32_t slot,
        const std::string& out) {
  const Loaded loaded(path), like(like_path);
  if (!same_rows(loaded.file.layout(), like.file.layout())) {
    throw std::runtime_error("their rows differ in kind");
  }
  write(like.file.layout(), loaded.file.tokens(), slot, rows_of(loaded.file, loaded.file, 0), out);
}

bool run(std::span<const std::string> words) {
  const auto is = [&](std::string_view name, std::size_t size) {
    return words.size() == size && words[0] == name;
  };
  if (is("info", 2)) {
    info(words[1]);
  } else if (is("cut", 5)) {
    cut(words[1], number(words[2]), number(words[3]), words[4]);
  } else if (is("join", 6)) {
    join(words[1], words[2], number(words[3]), number(words[4]), words[5]);
  } else if (is("as", 5)) {
    as(words[1], words[2], number(words[3]), words[4]);
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (run(words)) {
      return 0;
    }
    std::fputs(
        "usage: state_tool info FILE | cut FILE TOKENS SLOT OUT | join A B TOKENS SLOT OUT\n"
        "       | as FILE LIKE SLOT OUT\n",
        stderr);
    return 2;
  } catch (const Opaque& error) {
    std::fprintf(stderr, "state_tool: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "state_tool: %s\n", error.what());
    return 1;
  }
}
