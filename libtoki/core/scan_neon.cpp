// The scan for NEON, which every AArch64 CPU has.
#include <arm_neon.h>

#include "core/scan_kernels.hpp"

namespace toki {

namespace {

float dot_float32(const float* row, std::size_t lines, const float* query) noexcept {
  float32x4_t a = vdupq_n_f32(0);
  float32x4_t b = a;
  float32x4_t c = a;
  float32x4_t d = a;
  for (std::size_t at = 0; at < lines * kLineFloats; at += kLineFloats) {
    a = vfmaq_f32(a, vld1q_f32(row + at), vld1q_f32(query + at));
    b = vfmaq_f32(b, vld1q_f32(row + at + 4), vld1q_f32(query + at + 4));
    c = vfmaq_f32(c, vld1q_f32(row + at + 8), vld1q_f32(query + at + 8));
    d = vfmaq_f32(d, vld1q_f32(row + at + 12), vld1q_f32(query + at + 12));
  }
  return vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d)));
}

void dots_float32(const float* rows, std::size_t lines, std::size_t count, const float* query,
                  float* dots) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    dots[i] = dot_float32(rows + i * lines * kLineFloats, lines, query);
  }
}

// NEON multiplies signed with signed: the row is widened as it is, the query with its sign.
std::int32_t dot_int8(const std::uint8_t* row, std::size_t lines,
                      const std::int8_t* query) noexcept {
  int32x4_t a = vdupq_n_s32(0);
  int32x4_t b = a;
  for (std::size_t at = 0; at < lines * kLineBytes; at += 16) {
    const uint8x16_t r = vld1q_u8(row + at);
    const int8x16_t q = vld1q_s8(query + at);
    const int16x8_t r_low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(r)));
    const int16x8_t r_high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(r)));
    const int16x8_t q_low = vmovl_s8(vget_low_s8(q));
    const int16x8_t q_high = vmovl_s8(vget_high_s8(q));
    a = vmlal_s16(a, vget_low_s16(r_low), vget_low_s16(q_low));
    b = vmlal_s16(b, vget_high_s16(r_low), vget_high_s16(q_low));
    a = vmlal_s16(a, vget_low_s16(r_high), vget_low_s16(q_high));
    b = vmlal_s16(b, vget_high_s16(r_high), vget_high_s16(q_high));
  }
  return vaddvq_s32(vaddq_s32(a, b));
}

void dots_int8(const std::uint8_t* rows, std::size_t lines, std::size_t count,
               const std::int8_t* query, std::int32_t* dots) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    dots[i] = dot_int8(rows + i * lines * kLineBytes, lines, query);
  }
}

}  // namespace

extern const ScanKernels kScanNeon;
const ScanKernels kScanNeon{"NEON", dots_float32, dots_int8};

}  // namespace toki
