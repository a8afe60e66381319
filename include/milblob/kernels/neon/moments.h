/* kernels/neon/moments.h: the kernel of moments.h for AArch64.
 *
 * Most blocks hold nothing to count: no zero, no subnormal, nothing from 65520 on. Extremes show that, and then only sums and
 * extremes remain to be computed. The plain code handles other blocks, and partial ones. */
#ifndef MILBLOB_MOMENTS_NEON_H
#define MILBLOB_MOMENTS_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/moments.h"

#ifdef MB_HAS_NEON

/* The eight lanes of the plain code in four registers, combined in the same order. */
MB_STEP double mb_sum_lanes_neon(float64x2_t lanes_01, float64x2_t lanes_23, float64x2_t lanes_45, float64x2_t lanes_67) {
    const float64x2_t a = vaddq_f64(lanes_01, lanes_45), b = vaddq_f64(lanes_23, lanes_67);
    return (vgetq_lane_f64(a, 0) + vgetq_lane_f64(a, 1)) + (vgetq_lane_f64(b, 0) + vgetq_lane_f64(b, 1));
}

/* Eight numbers. Minima and maxima propagate NaNs. */
#define MB_SEE_MOMENTS_NEON(lane, i) \
    const float64x2_t x_##lane = vld1q_f64(block + (i) + lane); \
    least = vminq_f64(least, x_##lane), most = vmaxq_f64(most, x_##lane), smallest = vminq_f64(smallest, vabsq_f64(x_##lane)); \
    sum_##lane = vaddq_f64(sum_##lane, x_##lane);

#define MB_SQUARE_MOMENTS_NEON(lane, i) \
    const float64x2_t d_##lane = vsubq_f64(vld1q_f64(block + (i) + lane), means); \
    square_##lane = vaddq_f64(square_##lane, vmulq_f64(d_##lane, d_##lane));

MB_KERNEL void mb_moments_block_neon(double *block, uint32_t count, uint64_t tiny, mb_moments *m) {
    const float64x2_t zero = vdupq_n_f64(0);
    float64x2_t least = vdupq_n_f64(mb_f64_of_bits(MB_F64_INF)), smallest = least, most = vnegq_f64(least);
    float64x2_t sum_0 = zero, sum_2 = zero, sum_4 = zero, sum_6 = zero, square_0 = zero, square_2 = zero, square_4 = zero, square_6 = zero;
    if (count % 8 != 0) {
        mb_moments_block_plain(block, count, tiny, m);
        return;
    }
    for (uint32_t i = 0; i < count; i += 8) {
        MB_SEE_MOMENTS_NEON(0, i)
        MB_SEE_MOMENTS_NEON(2, i)
        MB_SEE_MOMENTS_NEON(4, i)
        MB_SEE_MOMENTS_NEON(6, i)
    }
    const double limit = mb_f64_of_bits(MB_F64_65520), low = vminvq_f64(least), high = vmaxvq_f64(most), nearest = vminvq_f64(smallest);
    if (!(low > -limit && high < limit && nearest >= mb_f64_of_bits(tiny))) {
        mb_moments_block_plain(block, count, tiny, m);
        return;
    }
    mb_moments_clear(m);
    m->count = count, m->least = low, m->most = high, m->smallest = nearest;
    m->sum = mb_sum_lanes_neon(sum_0, sum_2, sum_4, sum_6);
    const float64x2_t means = vdupq_n_f64(m->sum / (double)count);
    for (uint32_t i = 0; i < count; i += 8) {
        MB_SQUARE_MOMENTS_NEON(0, i)
        MB_SQUARE_MOMENTS_NEON(2, i)
        MB_SQUARE_MOMENTS_NEON(4, i)
        MB_SQUARE_MOMENTS_NEON(6, i)
    }
    m->spread = mb_sum_lanes_neon(square_0, square_2, square_4, square_6);
}

#endif
#endif
