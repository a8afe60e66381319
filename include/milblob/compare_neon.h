/* compare_neon.h: the kernels of compare.h for AArch64: its four lanes are two registers.
 *
 * All sums of a block are under way in one loop: 22 of the 32 registers hold them. */
#ifndef MILBLOB_COMPARE_NEON_H
#define MILBLOB_COMPARE_NEON_H

#include "milblob/compare.h"
#include "milblob/float_neon.h"

#ifdef MB_HAS_NEON

/* Lanes 0 and 1, or 2 and 3. */
typedef struct mb_compare_lanes_neon {
    float64x2_t sums[MB_COMPARE_SUMS], most;
    uint64x2_t equal, outside; /* both less than they are, by -1 for each */
} mb_compare_lanes_neon;

/* No fused multiply and add: every tier rounds as the plain one does. vmaxnm(distance, most) keeps `most` where the
 * distance is NaN, which the sum of distances tells. */
MB_STEP void mb_compare_step_neon(mb_compare_lanes_neon *lanes, float64x2_t x, float64x2_t y, float64x2_t atol, float64x2_t rtol) {
    const float64x2_t d = vsubq_f64(y, x), distance = vabsq_f64(d), limit = vaddq_f64(atol, vmulq_f64(rtol, vabsq_f64(x)));
    lanes->sums[MB_SUM_A] = vaddq_f64(lanes->sums[MB_SUM_A], x);
    lanes->sums[MB_SUM_B] = vaddq_f64(lanes->sums[MB_SUM_B], y);
    lanes->sums[MB_SUM_AA] = vaddq_f64(lanes->sums[MB_SUM_AA], vmulq_f64(x, x));
    lanes->sums[MB_SUM_BB] = vaddq_f64(lanes->sums[MB_SUM_BB], vmulq_f64(y, y));
    lanes->sums[MB_SUM_AB] = vaddq_f64(lanes->sums[MB_SUM_AB], vmulq_f64(x, y));
    lanes->sums[MB_SUM_DISTANCE] = vaddq_f64(lanes->sums[MB_SUM_DISTANCE], distance);
    lanes->sums[MB_SUM_NOISE] = vaddq_f64(lanes->sums[MB_SUM_NOISE], vmulq_f64(d, d));
    lanes->most = vmaxnmq_f64(distance, lanes->most);
    lanes->equal = vaddq_u64(lanes->equal, vceqzq_f64(d));
    lanes->outside = vaddq_u64(lanes->outside, vcgtq_f64(distance, limit));
}

#define MB_DEFINE_COMPARE_NEON(name, type, load) \
    MB_KERNEL bool name(const type *a, const type *b, uint32_t count, mb_tolerance tolerance, mb_comparison *part) { \
        const float64x2_t atol = vdupq_n_f64(tolerance.atol), rtol = vdupq_n_f64(tolerance.rtol); \
        mb_compare_lanes_neon lanes[2]; \
        double sums[MB_COMPARE_SUMS][4], most[4]; \
        uint64_t unequal[4], outside[4]; \
        for (int h = 0; h < 2; h++) { \
            for (int s = 0; s < MB_COMPARE_SUMS; s++) lanes[h].sums[s] = vdupq_n_f64(0); \
            lanes[h].most = vdupq_n_f64(0), lanes[h].equal = lanes[h].outside = vdupq_n_u64(0); \
        } \
        for (uint32_t i = 0; i < count; i += 4) { \
            mb_compare_step_neon(&lanes[0], load(a + i), load(b + i), atol, rtol); \
            mb_compare_step_neon(&lanes[1], load(a + i + 2), load(b + i + 2), atol, rtol); \
        } \
        for (int h = 0; h < 2; h++) { \
            for (int s = 0; s < MB_COMPARE_SUMS; s++) vst1q_f64(&sums[s][2 * h], lanes[h].sums[s]); \
            vst1q_f64(most + 2 * h, lanes[h].most); \
            vst1q_u64(unequal + 2 * h, vaddq_u64(vdupq_n_u64(count / 4), lanes[h].equal)); \
            vst1q_u64(outside + 2 * h, vsubq_u64(vdupq_n_u64(0), lanes[h].outside)); \
        } \
        return mb_compare_finish((const double (*)[4])sums, most, unequal, outside, part); \
    }

#define MB_LOAD_F32_NEON(at) vcvt_f64_f32(vld1_f32(at))
#define MB_LOAD_F64_NEON(at) vld1q_f64(at)

MB_DEFINE_COMPARE_NEON(mb_compare_f32_neon, float, MB_LOAD_F32_NEON)
MB_DEFINE_COMPARE_NEON(mb_compare_f64_neon, double, MB_LOAD_F64_NEON)

#endif
#endif
