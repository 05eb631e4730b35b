#include "core/scan_kernels.hpp"

#include <array>

namespace toki {

namespace {

void dots_float32(const float* rows, std::size_t lines, std::size_t count, const float* query,
                  float* dots) noexcept {
  const std::size_t width = lines * kLineFloats;
  for (std::size_t i = 0; i < count; ++i, rows += width) {
    std::array<float, kLineFloats> sums{};  // apart, so that compilers may use SIMD
    for (std::size_t at = 0; at < width; at += kLineFloats) {
      for (std::size_t j = 0; j < kLineFloats; ++j) {
        sums[j] += rows[at + j] * query[at + j];
      }
    }
    float sum = 0;
    for (const float part : sums) {
      sum += part;
    }
    dots[i] = sum;
  }
}

void dots_int8(const std::uint8_t* rows, std::size_t lines, std::size_t count,
               const std::int8_t* query, std::int32_t* dots) noexcept {
  const std::size_t width = lines * kLineBytes;
  for (std::size_t i = 0; i < count; ++i, rows += width) {
    std::int32_t sum = 0;
    for (std::size_t j = 0; j < width; ++j) {
      sum += static_cast<std::int32_t>(rows[j]) * query[j];
    }
    dots[i] = sum;
  }
}

}  // namespace

#if defined(__x86_64__)
extern const ScanKernels kScanAvx2;    // scan_avx2.cpp
extern const ScanKernels kScanAvx512;  // scan_avx512.cpp
#elif defined(__aarch64__)
extern const ScanKernels kScanNeon;  // scan_neon.cpp
#endif

std::span<const ScanKernels> usable_scan_kernels() noexcept {
  struct Usable {
    std::array<ScanKernels, 3> kernels{};
    std::size_t count = 0;
    void add(const ScanKernels& k) { kernels[count++] = k; }
  };
  static const Usable usable = [] {
    Usable found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512vnni") != 0) {
      found.add(kScanAvx512);
    }
    if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
      found.add(kScanAvx2);
    }
#elif defined(__aarch64__)
    found.add(kScanNeon);
#endif
    found.add({"portable", dots_float32, dots_int8});
    return found;
  }();
  return {usable.kernels.data(), usable.count};
}

}  // namespace toki
