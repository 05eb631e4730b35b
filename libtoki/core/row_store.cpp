#include "core/row_store.hpp"

#include <toki/embedding.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

namespace toki {

namespace {

constexpr std::size_t kChunkRows = 1024;  // a chunk's scores fit the fastest cache
constexpr std::size_t kFirstRows = 16;
constexpr int kCodeMax = 127;

std::size_t lines_for(std::size_t count, std::size_t in_a_line) {
  return (count + in_a_line - 1) / in_a_line;
}

// The scale that takes the largest value to kCodeMax; 0 for a vector of zeros.
float code_scale(const float* values, std::size_t dimension) {
  float largest = 0;
  for (std::size_t i = 0; i < dimension; ++i) {
    largest = std::max(largest, std::abs(values[i]));
  }
  return largest / static_cast<float>(kCodeMax);
}

int code_of(float value, float scale) {
  return scale > 0 ? static_cast<int>(std::lrint(value / scale)) : 0;
}

// How many the int8 scan hands on. Its error is a hundredth of the spread of random cosines, and
// twice the count reaches much further than that (docs/benchmarks.md has the recall).
std::size_t candidates_for(std::size_t count) {
  return std::max<std::size_t>(2 * count, 16);
}

void prefetch(const void* begin, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(static_cast<const char*>(begin) + at);
  }
}

}  // namespace

PaddedVector::PaddedVector(std::span<const float> vector)
    : lines_(lines_for(vector.size(), kLineFloats)), values_(lines_ * kLineFloats) {
  std::copy(vector.begin(), vector.end(), values_.data());
  std::fill(values_.data() + vector.size(), values_.data() + lines_ * kLineFloats, 0.0F);
  normalise({values_.data(), vector.size()});
}

// The best few of a scan: a heap with the worst in front.
class RowStore::Best {
 public:
  explicit Best(std::size_t count) : count_(count) { heap_.reserve(count); }

  /// What a row must at least score. It may come in by its id when it scores just that.
  float least() const noexcept {
    return heap_.size() < count_ ? -std::numeric_limits<float>::infinity() : heap_.front().score;
  }

  void offer(const Found& found) {
    if (heap_.size() == count_) {
      if (!better(found, heap_.front())) {
        return;
      }
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.pop_back();
    }
    heap_.push_back(found);
    std::push_heap(heap_.begin(), heap_.end(), better);
  }

  std::vector<Found>& found() noexcept { return heap_; }

  static bool better(const Found& a, const Found& b) noexcept {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  }

 private:
  std::size_t count_;
  std::vector<Found> heap_;
};

RowStore::RowStore(std::size_t dimension, Precision precision)
    : dimension_(dimension),
      lines_(lines_for(dimension, kLineFloats)),
      code_lines_(precision == Precision::int8 ? lines_for(dimension, kLineBytes) : 0),
      kernels_(usable_scan_kernels().front()) {}

std::size_t RowStore::bytes() const noexcept {
  const std::size_t row = (lines_ + code_lines_) * kLineBytes + sizeof(std::uint64_t) +
                          (code_lines_ == 0 ? 0 : sizeof(float));
  return std::accumulate(
      chunks_.begin(), chunks_.end(), chunks_.capacity() * sizeof(Chunk),
      [&](std::size_t sum, const Chunk& chunk) { return sum + chunk.room * row; });
}

std::uint64_t RowStore::id(std::size_t row) const noexcept {
  return chunks_[row / kChunkRows].ids[row % kChunkRows];
}

const float* RowStore::values(std::size_t row) const noexcept {
  return chunks_[row / kChunkRows].values.data() + row % kChunkRows * lines_ * kLineFloats;
}

void RowStore::push(std::uint64_t id, const PaddedVector& vector) {
  make_room();
  chunks_[size_ / kChunkRows].ids[size_ % kChunkRows] = id;
  ++size_;
  replace(size_ - 1, vector);
}

void RowStore::replace(std::size_t row, const PaddedVector& vector) {
  Chunk& chunk = chunks_[row / kChunkRows];
  const std::size_t at = row % kChunkRows;
  std::copy_n(vector.data(), lines_ * kLineFloats, chunk.values.data() + at * lines_ * kLineFloats);
  if (code_lines_ == 0) {
    return;
  }
  const float scale = code_scale(vector.data(), dimension_);
  std::uint8_t* const code = chunk.codes.data() + at * code_lines_ * kLineBytes;
  std::fill_n(code, code_lines_ * kLineBytes, std::uint8_t{0});
  for (std::size_t i = 0; i < dimension_; ++i) {
    code[i] = static_cast<std::uint8_t>(code_of(vector.data()[i], scale) + kCodeBias);
  }
  chunk.scales[at] = scale;
}

void RowStore::remove(std::size_t row) {
  const std::size_t last = size_ - 1;
  if (row != last) {
    copy_row(chunks_[last / kChunkRows], last % kChunkRows, chunks_[row / kChunkRows],
             row % kChunkRows);
  }
  --size_;
  // An empty chunk is kept until the one before is half empty: sizes go up and down by one.
  if (size_ + kChunkRows / 2 <= (chunks_.size() - 1) * kChunkRows) {
    chunks_.pop_back();
  }
}

RowStore::Chunk RowStore::make_chunk(std::size_t room) const {
  Chunk chunk;
  chunk.room = room;
  chunk.values = LineArray<float>(room * lines_ * kLineFloats);
  if (code_lines_ != 0) {
    chunk.codes = LineArray<std::uint8_t>(room * code_lines_ * kLineBytes);
    chunk.scales.resize(room);
  }
  chunk.ids.resize(room);
  return chunk;
}

void RowStore::make_room() {
  if (chunks_.empty()) {
    chunks_.push_back(make_chunk(kFirstRows));
  } else if (size_ == chunks_.size() * kChunkRows) {
    chunks_.push_back(make_chunk(kChunkRows));
  } else if (chunks_.size() == 1 && size_ == chunks_.front().room) {
    Chunk wider = make_chunk(size_ * 2);
    for (std::size_t i = 0; i < size_; ++i) {
      copy_row(chunks_.front(), i, wider, i);
    }
    chunks_.front() = std::move(wider);
  }
}

void RowStore::copy_row(const Chunk& from, std::size_t row, Chunk& to, std::size_t at) const {
  const std::size_t width = lines_ * kLineFloats;
  std::copy_n(from.values.data() + row * width, width, to.values.data() + at * width);
  if (code_lines_ != 0) {
    const std::size_t code = code_lines_ * kLineBytes;
    std::copy_n(from.codes.data() + row * code, code, to.codes.data() + at * code);
    to.scales[at] = from.scales[row];
  }
  to.ids[at] = from.ids[row];
}

std::size_t RowStore::rows_in(std::size_t chunk) const noexcept {
  return std::min(kChunkRows, size_ - std::min(size_, chunk * kChunkRows));
}

std::vector<Neighbour> RowStore::search(const PaddedVector& query, std::size_t count) const {
  count = std::min(count, size_);
  if (count == 0) {
    return {};
  }
  Best best(code_lines_ == 0 ? count : std::min(size_, candidates_for(count)));
  std::vector<Found>& found = best.found();
  if (code_lines_ == 0) {
    scan_float32(query, best);
  } else {
    scan_int8(query, best);
    rank_again(query, found);
  }
  std::sort(found.begin(), found.end(), Best::better);
  std::vector<Neighbour> nearest(count);
  std::transform(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), nearest.begin(),
                 [](const Found& one) {
                   return Neighbour{one.id, one.score};
                 });
  return nearest;
}

// The candidates' values lie anywhere: fetched together they cost one wait, not one each.
void RowStore::rank_again(const PaddedVector& query, std::vector<Found>& found) const {
  constexpr std::size_t kAhead = 4;
  for (std::size_t i = 0; i < found.size() + kAhead; ++i) {
    if (i < found.size()) {
      prefetch(values(found[i].row), lines_ * kLineBytes);
    }
    if (i >= kAhead) {
      Found& one = found[i - kAhead];
      kernels_.dots_float32(values(one.row), lines_, 1, query.data(), &one.score);
    }
  }
}

// Offers a chunk's rows by their scores. Most blocks hold none that is good enough; asking for a
// whole block at once lets the compiler use SIMD. The memory would be idle meanwhile, so it is sent
// for the beginning of what is scanned next.
void RowStore::offer_rows(std::size_t c, std::span<const float> scores, const void* next,
                          Best& best) const {
  constexpr std::size_t kBlock = 32;
  constexpr std::size_t kAhead = 8 * kLineBytes;
  for (std::size_t begin = 0; begin < scores.size(); begin += kBlock) {
    if (next != nullptr) {
      prefetch(next, kAhead);
      next = static_cast<const char*>(next) + kAhead;
    }
    const std::size_t end = std::min(begin + kBlock, scores.size());
    const float least = best.least();
    unsigned reached = 0;
    for (std::size_t i = begin; i < end; ++i) {
      reached |= scores[i] >= least ? 1U : 0U;
    }
    for (std::size_t i = begin; reached != 0 && i < end; ++i) {
      if (scores[i] >= least) {
        best.offer({scores[i], chunks_[c].ids[i], c * kChunkRows + i});
      }
    }
  }
}

void RowStore::scan_float32(const PaddedVector& query, Best& best) const {
  std::array<float, kChunkRows> scores;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const std::size_t rows = rows_in(c);
    kernels_.dots_float32(chunks_[c].values.data(), lines_, rows, query.data(), scores.data());
    const bool last = c + 1 == chunks_.size();
    offer_rows(c, {scores.data(), rows}, last ? nullptr : chunks_[c + 1].values.data(), best);
  }
}

void RowStore::scan_int8(const PaddedVector& query, Best& best) const {
  const float scale = code_scale(query.data(), dimension_);
  LineArray<std::int8_t> code(code_lines_ * kLineBytes);
  std::fill_n(code.data(), code_lines_ * kLineBytes, std::int8_t{0});
  std::int32_t bias = 0;
  for (std::size_t i = 0; i < dimension_; ++i) {
    code.data()[i] = static_cast<std::int8_t>(code_of(query.data()[i], scale));
    bias += kCodeBias * code.data()[i];
  }
  std::array<std::int32_t, kChunkRows> dots;
  std::array<float, kChunkRows> scores;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const Chunk& chunk = chunks_[c];
    const std::size_t rows = rows_in(c);
    kernels_.dots_int8(chunk.codes.data(), code_lines_, rows, code.data(), dots.data());
    for (std::size_t i = 0; i < rows; ++i) {  // the query's scale changes no order
      scores[i] = static_cast<float>(dots[i] - bias) * chunk.scales[i];
    }
    const bool last = c + 1 == chunks_.size();
    offer_rows(c, {scores.data(), rows}, last ? nullptr : chunks_[c + 1].codes.data(), best);
  }
}

}  // namespace toki
