/* kernels/neon/squares.h: squares of float16 elements, and sums of them, for AArch64. */
#ifndef MILBLOB_SQUARES_NEON_H
#define MILBLOB_SQUARES_NEON_H

#include "milblob/kernels/neon/quantize.h"
#include "milblob/kernels/squares.h"

#ifdef MB_HAS_NEON

MB_STEP float32x4_t mb_half_squares_neon(const uint8_t *src) {
    const float32x4_t x = mb_elements_neon(src, true);
    return mb_round_half_neon(vmulq_f32(x, x));
}

MB_STEP void mb_add_half_squares_neon(uint8_t *sums, const uint8_t *src) {
    const float32x4_t low = vaddq_f32(mb_elements_neon(sums, true), mb_half_squares_neon(src));
    const float32x4_t high = vaddq_f32(mb_elements_neon(sums + 8, true), mb_half_squares_neon(src + 8));
    mb_put_u16_neon(sums, mb_narrow_f16_neon(vreinterpretq_u32_f32(low), vreinterpretq_u32_f32(high)));
}

MB_KERNEL void mb_add_squares_f16_neon(uint8_t *sums, const uint8_t *src, uint64_t count) {
    size_t i = 0;
    for (; i + 8 <= (size_t)count; i += 8) mb_add_half_squares_neon(sums + 2 * i, src + 2 * i);
    mb_add_squares_f16_plain(sums + 2 * i, src + 2 * i, count - i);
}

MB_KERNEL void mb_square_f16_neon(float *dst, const uint8_t *src, uint64_t count) {
    size_t i = 0;
    for (; i + 8 <= (size_t)count; i += 8) vst1q_f32(dst + i, mb_half_squares_neon(src + 2 * i)), vst1q_f32(dst + i + 4, mb_half_squares_neon(src + 2 * i + 8));
    mb_square_f16_plain(dst + i, src + 2 * i, count - i);
}

#endif
#endif
