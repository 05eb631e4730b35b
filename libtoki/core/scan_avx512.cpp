// The scan compiled for AVX-512 with VNNI; only called on CPUs that have both. Nothing inline from
// other headers may be used here: the linker could keep this file's copy for all.
#include <immintrin.h>

#include "core/scan_kernels.hpp"

namespace toki {

namespace {

// One row with four sums at once: a single one would wait for each addition.
float dot_float32(const float* row, std::size_t lines, const float* query) noexcept {
  __m512 a = _mm512_setzero_ps();
  __m512 b = a;
  __m512 c = a;
  __m512 d = a;
  std::size_t at = 0;
  const std::size_t end = lines * kLineFloats;
  for (; at + 4 * kLineFloats <= end; at += 4 * kLineFloats) {
    a = _mm512_fmadd_ps(_mm512_loadu_ps(row + at), _mm512_loadu_ps(query + at), a);
    b = _mm512_fmadd_ps(_mm512_loadu_ps(row + at + 16), _mm512_loadu_ps(query + at + 16), b);
    c = _mm512_fmadd_ps(_mm512_loadu_ps(row + at + 32), _mm512_loadu_ps(query + at + 32), c);
    d = _mm512_fmadd_ps(_mm512_loadu_ps(row + at + 48), _mm512_loadu_ps(query + at + 48), d);
  }
  for (; at < end; at += kLineFloats) {
    a = _mm512_fmadd_ps(_mm512_loadu_ps(row + at), _mm512_loadu_ps(query + at), a);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
}

void dots_float32(const float* rows, std::size_t lines, std::size_t count, const float* query,
                  float* dots) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    dots[i] = dot_float32(rows + i * lines * kLineFloats, lines, query);
  }
}

std::int32_t dot_int8(const std::uint8_t* row, std::size_t lines,
                      const std::int8_t* query) noexcept {
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
    sum = _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(row + at), _mm512_loadu_si512(query + at));
  }
  return _mm512_reduce_add_epi32(sum);
}

// Adds up the lanes of all four, each to one of the result's.
__m128i sums_of(__m512i a, __m512i b, __m512i c, __m512i d) noexcept {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all =
      _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half =
      _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Four rows at once share the loads of the query and the adding up at the end: at memory's speed a
// row of 384 bytes has some 12 ns.
void dots_of_four(const std::uint8_t* row, std::size_t lines, const std::int8_t* query,
                  std::int32_t* dots) noexcept {
  const std::size_t width = lines * kLineBytes;
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  for (std::size_t at = 0; at < width; at += kLineBytes, row += kLineBytes) {
    const __m512i q = _mm512_loadu_si512(query + at);
    a = _mm512_dpbusd_epi32(a, _mm512_loadu_si512(row), q);
    b = _mm512_dpbusd_epi32(b, _mm512_loadu_si512(row + width), q);
    c = _mm512_dpbusd_epi32(c, _mm512_loadu_si512(row + 2 * width), q);
    d = _mm512_dpbusd_epi32(d, _mm512_loadu_si512(row + 3 * width), q);
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dots), sums_of(a, b, c, d));
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

extern const ScanKernels kScanAvx512;
const ScanKernels kScanAvx512{"AVX-512 VNNI", dots_float32, dots_int8};

}  // namespace toki
