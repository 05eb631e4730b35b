// StateFile: llama.cpp's sequence state file (what llama-server writes for a slot), read and written
// row by row, so that a state can be cut to its first tokens and joined from several.
//
// Strict: a file is understood to its last byte, and written again from its layout, its token ids
// and its rows it is the same file; or it is refused. What is kept of it is bounded by its size.
// Understood is one attention memory whose cells hold the positions 0, 1, 2 and so on of a single
// sequence. In a unified memory they come to lie in any order, because slots take each other's
// place; such a file is written again in order, which the server takes as well. Sliding window, hybrid and recurrent memories, context checkpoints, M-RoPE and pictures
// are not, nor are models that keep no V.
//
// No input or output. A StateFile is a view: the file's bytes must outlive it.
#pragma once

#include <toki/result.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki {

/// Everything in a state file but its tokens, its slot and its rows.
struct StateLayout {
  /// The rows of one layer's K or V. Transposed V is stored by element instead of by token; its rows
  /// here are those of the tokens all the same.
  struct Part {
    std::int32_t type = 0;            ///< ggml's number of it, not interpreted
    std::uint32_t element_bytes = 0;  ///< transposed V only; else 0
    std::uint64_t row_bytes = 0;      ///< of one token
    friend bool operator==(const Part&, const Part&) = default;
  };

  std::uint32_t version = 4;   ///< of the sequence state; 1 to 4 are known
  bool packed_tokens = true;   ///< the token ids are wrapped in the server's own record
  bool cell_sequences = true;  ///< each cell names its sequence (mid 2025)
  std::uint32_t streams = 1;   ///< 1: unified, or one slot; 0: older than the count (mid 2025)
  std::uint32_t k_rot = 0, v_rot = 0;  ///< rotation of quantised rows; told since version 4
  std::vector<Part> parts;             ///< K of every layer, then V of every layer

  std::size_t layers() const { return parts.size() / 2; }
  bool v_transposed() const { return !parts.empty() && parts.back().element_bytes != 0; }
  std::uint64_t bytes_per_token() const;

  /// A canonical form: equal layouts, and only those, have equal bytes.
  std::string bytes() const;
  static Result<StateLayout> from_bytes(std::string_view bytes);  ///< strict; Errc::corrupt

  friend bool operator==(const StateLayout&, const StateLayout&) = default;
};

class StateFile {
 public:
  /// Errc::unsupported: not understood to the last byte, so only usable as it is. Errc::corrupt: no
  /// state file, or one that ends too early.
  static Result<StateFile> parse(std::span<const std::byte> file);
  /// The token record alone, also of a file whose memory is not understood. Errc::unsupported: the
  /// record is not understood either. Errc::corrupt: as above.
  static Result<Tokens> read_tokens(std::span<const std::byte> file);

  const StateLayout& layout() const { return layout_; }
  TokenSpan tokens() const { return tokens_; }
  std::uint32_t slot() const { return slot_; }  ///< that was saved; 0 where the file does not tell

  bool in_order() const { return cells_.empty(); }  ///< the cells are in the order of the tokens

  /// Rows [from, to) as they lie in the file. REQUIRES: in_order(), and the part is not transposed.
  std::span<const std::byte> rows(std::size_t part, std::size_t from, std::size_t to) const;
  /// Rows [from, to) of any part, token by token. REQUIRES: out.size() == (to - from) * row_bytes.
  void read_rows(std::size_t part, std::size_t from, std::size_t to,
                 std::span<std::byte> out) const;

 private:
  friend class StateParser;
  StateFile() = default;
  void read_run(std::size_t part, std::size_t cell, std::size_t count, std::byte* out) const;

  std::span<const std::byte> file_;
  StateLayout layout_;
  Tokens tokens_;
  std::uint32_t slot_ = 0;
  std::vector<std::size_t> part_offsets_;
  std::vector<std::uint32_t> cells_;  // of each token; empty: in order
};

/// Bytes of the file that write_state_file() makes. Errc::invalid_argument: no such file can be.
Result<std::uint64_t> state_file_size(const StateLayout& layout, std::size_t tokens);

/// Fills `out` with rows of `part`, token by token, beginning with that of token `from`.
using StateRowSource =
    std::function<Status(std::size_t part, std::size_t from, std::span<std::byte> out)>;
/// Takes the file's bytes in order, piece by piece.
using StateSink = std::function<Status(std::span<const std::byte> piece)>;

/// Writes a state of `tokens` as the server would have saved it from `slot`. Asks for the rows part
/// by part and in order, at most about 1 MiB at once. Errors of the callbacks end it and are
/// returned. Cost: one copy of the rows; with transposed V a second one, and one part in memory.
Status write_state_file(const StateLayout& layout, TokenSpan tokens, std::uint32_t slot,
                        const StateRowSource& rows, const StateSink& sink);

}  // namespace toki
