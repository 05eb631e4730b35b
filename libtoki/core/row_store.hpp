// RowStore: the vectors of one scope, in chunks whose rows lie one after the other. Growing never
// moves more than one chunk (the first one, while it is small); removing puts the last row into the
// hole. With Precision::int8 each vector is kept as int8 beside its float32 values.
#pragma once

#include <toki/similarity_index.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "core/scan_kernels.hpp"

namespace toki {

/// An array of numbers on a cache line's border; they have no value at first.
template <class T>
class LineArray {
 public:
  LineArray() = default;
  explicit LineArray(std::size_t size)
      : data_(static_cast<T*>(::operator new[](size * sizeof(T), std::align_val_t{kLineBytes}))) {}
  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }

 private:
  struct Free {
    void operator()(T* data) const noexcept {
      ::operator delete[](data, std::align_val_t{kLineBytes});
    }
  };
  std::unique_ptr<T[], Free> data_;
};

/// A vector as the kernels want it: normalised, padded with zeros to whole lines.
class PaddedVector {
 public:
  explicit PaddedVector(std::span<const float> vector);
  const float* data() const noexcept { return values_.data(); }
  std::size_t lines() const noexcept { return lines_; }

 private:
  std::size_t lines_;
  LineArray<float> values_;
};

class RowStore {
 public:
  RowStore(std::size_t dimension, Precision precision);

  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept;
  std::uint64_t id(std::size_t row) const noexcept;
  /// Padded as PaddedVector's.
  const float* values(std::size_t row) const noexcept;

  /// Appends a row, which gets the number size().
  void push(std::uint64_t id, const PaddedVector& vector);
  void replace(std::size_t row, const PaddedVector& vector);
  /// The row that was last takes the place of `row`.
  void remove(std::size_t row);

  /// The `count` nearest, best first; ties by id.
  std::vector<Neighbour> search(const PaddedVector& query, std::size_t count) const;

 private:
  struct Chunk {
    std::size_t room = 0;  // in rows
    LineArray<float> values;
    LineArray<std::uint8_t> codes;
    std::vector<float> scales;
    std::vector<std::uint64_t> ids;
  };
  struct Found {
    float score;
    std::uint64_t id;
    std::size_t row;
  };
  class Best;

  Chunk make_chunk(std::size_t room) const;
  void make_room();
  void copy_row(const Chunk& from, std::size_t row, Chunk& to, std::size_t at) const;
  std::size_t rows_in(std::size_t chunk) const noexcept;
  void rank_again(const PaddedVector& query, std::vector<Found>& found) const;
  void offer_rows(std::size_t chunk, std::span<const float> scores, const void* next,
                  Best& best) const;
  void scan_float32(const PaddedVector& query, Best& best) const;
  void scan_int8(const PaddedVector& query, Best& best) const;

  std::size_t dimension_;
  std::size_t lines_;       // of a row's values
  std::size_t code_lines_;  // of its int8 form; 0: there is none
  const ScanKernels& kernels_;
  std::size_t size_ = 0;
  std::vector<Chunk> chunks_;
};

}  // namespace toki
