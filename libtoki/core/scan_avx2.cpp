// The scan compiled for AVX2 with FMA; only called on CPUs that have both. Nothing inline from
// other headers may be used here: the linker could keep this file's copy for all.
#include <immintrin.h>

#include "core/scan_kernels.hpp"

namespace toki {

namespace {

float sum_of(__m256 v) noexcept {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

float dot_float32(const float* row, std::size_t lines, const float* query) noexcept {
  __m256 a = _mm256_setzero_ps();
  __m256 b = a;
  __m256 c = a;
  __m256 d = a;
  std::size_t at = 0;
  const std::size_t end = lines * kLineFloats;
  for (; at + 2 * kLineFloats <= end; at += 2 * kLineFloats) {
    a = _mm256_fmadd_ps(_mm256_loadu_ps(row + at), _mm256_loadu_ps(query + at), a);
    b = _mm256_fmadd_ps(_mm256_loadu_ps(row + at + 8), _mm256_loadu_ps(query + at + 8), b);
    c = _mm256_fmadd_ps(_mm256_loadu_ps(row + at + 16), _mm256_loadu_ps(query + at + 16), c);
    d = _mm256_fmadd_ps(_mm256_loadu_ps(row + at + 24), _mm256_loadu_ps(query + at + 24), d);
  }
  if (at < end) {
    a = _mm256_fmadd_ps(_mm256_loadu_ps(row + at), _mm256_loadu_ps(query + at), a);
    b = _mm256_fmadd_ps(_mm256_loadu_ps(row + at + 8), _mm256_loadu_ps(query + at + 8), b);
  }
  return sum_of(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
}

void dots_float32(const float* rows, std::size_t lines, std::size_t count, const float* query,
                  float* dots) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    dots[i] = dot_float32(rows + i * lines * kLineFloats, lines, query);
  }
}

__m256i load_row(const std::uint8_t* at) noexcept {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

__m256i load_query(const std::int8_t* at) noexcept {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

std::int32_t sum_of(__m256i v) noexcept {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

std::int32_t dot_int8(const std::uint8_t* row, std::size_t lines,
                      const std::int8_t* query) noexcept {
  __m256i sum = _mm256_setzero_si256();
  for (std::size_t at = 0; at < lines * kLineBytes; at += 16) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(load_row(row + at), load_query(query + at)));
  }
  return sum_of(sum);
}

// Four rows at once, so that the query is widened once for all of them.
void dots_of_four(const std::uint8_t* row, std::size_t lines, const std::int8_t* query,
                  std::int32_t* dots) noexcept {
  const std::size_t width = lines * kLineBytes;
  __m256i a = _mm256_setzero_si256();
  __m256i b = a;
  __m256i c = a;
  __m256i d = a;
  for (std::size_t at = 0; at < width; at += 16, row += 16) {
    const __m256i q = load_query(query + at);
    a = _mm256_add_epi32(a, _mm256_madd_epi16(load_row(row), q));
    b = _mm256_add_epi32(b, _mm256_madd_epi16(load_row(row + width), q));
    c = _mm256_add_epi32(c, _mm256_madd_epi16(load_row(row + 2 * width), q));
    d = _mm256_add_epi32(d, _mm256_madd_epi16(load_row(row + 3 * width), q));
  }
  dots[0] = sum_of(a);
  dots[1] = sum_of(b);
  dots[2] = sum_of(c);
  dots[3] = sum_of(d);
}

void dots_int8(const std::uint8_t* rows, std::size_t lines, std::size_t count,
               const std::int8_t* query, std::int32_t* dots) noexcept {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    dots_of_four(rows + i * lines * kLineBytes, lines, query, dots + i);
  }
  for (; i < count; ++i) {
    dots[i] = dot_int8(rows + i * lines * kLineBytes, lines, query);
  }
}

}  // namespace

extern const ScanKernels kScanAvx2;
const ScanKernels kScanAvx2{"AVX2", dots_float32, dots_int8};

}  // namespace toki
