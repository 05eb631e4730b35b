// llama-server's state files as bytes, made from the format's description alone: nothing of the code
// under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki::test {

/// The shape of a state file, and a salt that stands for the model: another one, other rows.
struct StateShape {
  std::uint32_t streams = 4;
  std::vector<std::uint32_t> k_rows = {6, 10};
  std::uint32_t v_elements = 5, v_element_bytes = 2;
  bool transposed = false;
  std::uint64_t salt = 1;
  bool reversed = false;  // cells from the last token to the first
};

/// The file that a server would write. Each row depends on all tokens up to its own, as it does in
/// a model, so that a row from another prompt is seen. Made from the format's description alone.
inline std::string state_file(const StateShape& shape, std::span<const std::int32_t> tokens,
                              std::uint32_t slot) {
  std::string out;
  const auto word = [&](std::uint64_t value, int bytes) {
    for (int byte = 0; byte < bytes; ++byte) {
      out += static_cast<char>(static_cast<unsigned char>(value >> (8 * byte)));
    }
  };
  const auto count = static_cast<std::uint32_t>(tokens.size());
  std::vector<std::uint64_t> prefixes;
  std::uint64_t prefix = shape.salt;
  for (const std::int32_t token : tokens) {
    prefix = (prefix ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15U;
    prefix ^= prefix >> 29;
    prefixes.push_back(prefix);
  }
  const auto row_byte = [&](std::size_t part, std::size_t cell, std::size_t byte) {
    const std::size_t token = shape.reversed ? count - 1 - cell : cell;
    const std::uint64_t mixed =
        (prefixes[token] + part * 0x632be59bU + byte / 8) * 0xd1342543de82ef95U;
    return static_cast<char>(static_cast<unsigned char>(mixed >> (8 * (byte % 8))));
  };
  word(0x67677371, 4);
  word(4, 4);
  word(count + 4, 4);
  word(0xffffffff, 4);
  word(1, 4);
  word(count, 4);
  for (const std::int32_t token : tokens) {
    word(static_cast<std::uint32_t>(token), 4);
  }
  word(0, 4);
  word(shape.streams, 4);
  for (std::uint32_t stream = 0; stream < shape.streams; ++stream) {
    if (shape.streams > 1 && stream != slot) {
      word(0, 4);
      continue;
    }
    word(count, 4);
    for (std::uint32_t cell = 0; cell < count; ++cell) {
      word(shape.reversed ? count - 1 - cell : cell, 4);
      word(1, 4);
      word(slot, 4);
    }
    word(shape.transposed ? 1 : 0, 4);
    word(shape.k_rows.size(), 4);
    word(0, 4);
    word(0, 4);
    const std::size_t layers = shape.k_rows.size();
    for (std::size_t part = 0; part < 2 * layers; ++part) {
      const std::uint32_t row =
          part < layers ? shape.k_rows[part] : shape.v_elements * shape.v_element_bytes;
      word(1, 4);
      if (part < layers || !shape.transposed) {
        word(row, 8);
        for (std::size_t cell = 0; cell < count; ++cell) {
          for (std::size_t byte = 0; byte < row; ++byte) {
            out += row_byte(part, cell, byte);
          }
        }
        continue;
      }
      word(shape.v_element_bytes, 4);
      word(shape.v_elements, 4);
      for (std::size_t element = 0; element < shape.v_elements; ++element) {
        for (std::size_t cell = 0; cell < count; ++cell) {
          for (std::size_t byte = 0; byte < shape.v_element_bytes; ++byte) {
            out += row_byte(part, cell, element * shape.v_element_bytes + byte);
          }
        }
      }
    }
  }
  return out;
}

/// The tokens that a file as above says it holds; nothing when it is none.
inline std::optional<std::vector<std::int32_t>> tokens_of_state_file(std::string_view file) {
  constexpr std::size_t kHead = 6 * 4;
  std::uint32_t count = 0;
  if (file.size() < kHead) {
    return std::nullopt;
  }
  std::memcpy(&count, file.data() + kHead - 4, 4);
  if (count > (file.size() - kHead) / 4) {
    return std::nullopt;
  }
  std::vector<std::int32_t> tokens(count);
  if (count > 0) {
    std::memcpy(tokens.data(), file.data() + kHead, 4 * std::size_t{count});
  }
  return tokens;
}

}  // namespace toki::test
