// What a scan computes, once for each instruction set. A row is padded to whole lines of 64 bytes,
// so no kernel has a tail to treat; the query's padding is zero, that of int8 rows may be anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace toki {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kLineFloats = kLineBytes / sizeof(float);

/// int8 rows are stored with this added, as the multiply instructions want one side unsigned.
inline constexpr int kCodeBias = 128;

struct ScanKernels {
  const char* name;

  /// dots[i] = row i times query; rows of `lines` lines, `count` of them, one after the other.
  void (*dots_float32)(const float* rows, std::size_t lines, std::size_t count, const float* query,
                       float* dots) noexcept;

  /// The same for biased int8 rows: whoever asks takes kCodeBias times the query's sum off.
  void (*dots_int8)(const std::uint8_t* rows, std::size_t lines, std::size_t count,
                    const std::int8_t* query, std::int32_t* dots) noexcept;
};

/// All that this CPU can run, the fastest first, the portable one last.
std::span<const ScanKernels> usable_scan_kernels() noexcept;

}  // namespace toki
