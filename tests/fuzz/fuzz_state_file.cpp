// Any bytes as a state file: refused, or written again from layout, ids and rows it is the same
// file (in order, if its cells were not), and so is its beginning after a second reading. The same
// bytes as a stored layout, too.
#include <toki/result.hpp>
#include <toki/token.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/require.hpp"
#include "store/state_file.hpp"

namespace {

using namespace toki;
using Bytes = std::vector<std::byte>;

Bytes write(const StateFile& file, const StateLayout& layout, std::size_t tokens,
            std::uint32_t slot) {
  Bytes bytes;
  const Status status = write_state_file(
      layout, file.tokens().first(tokens), slot,
      [&](std::size_t part, std::size_t from, std::span<std::byte> out) {
        const auto row = static_cast<std::size_t>(file.layout().parts[part].row_bytes);
        file.read_rows(part, from, from + out.size() / row, out);
        return Status(Done{});
      },
      [&](std::span<const std::byte> piece) {
        bytes.insert(bytes.end(), piece.begin(), piece.end());
        return Status(Done{});
      });
  require(status.has_value());
  require(state_file_size(layout, tokens).value() == bytes.size());
  return bytes;
}

void check_layout(std::string_view bytes) {
  const Result<StateLayout> layout = StateLayout::from_bytes(bytes);
  require(!layout || layout->bytes() == bytes);
}

void check_file(std::span<const std::byte> bytes) {
  const Result<StateFile> file = StateFile::parse(bytes);
  if (!file) {
    require(file.error().code == Errc::unsupported || file.error().code == Errc::corrupt);
    return;
  }
  const std::size_t tokens = file->tokens().size();
  const Bytes whole = write(*file, file->layout(), tokens, file->slot());
  require(whole.size() == bytes.size());
  require(std::ranges::equal(whole, bytes) == file->in_order());
  check_layout(file->layout().bytes());
  require(StateLayout::from_bytes(file->layout().bytes()).value() == file->layout());

  const std::size_t half = (tokens + 1) / 2;
  const Bytes cut = write(*file, file->layout(), half, file->slot());
  const Result<StateFile> again = StateFile::parse(cut);
  require(again && again->layout() == file->layout() && again->slot() == file->slot() &&
          std::ranges::equal(again->tokens(), file->tokens().first(half)));
  require(write(*again, again->layout(), half, again->slot()) == cut);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  check_file(bytes);
  check_layout(std::string(data, data + size));
  return 0;
}
