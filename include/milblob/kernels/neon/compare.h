/* kernels/neon/compare.h: the kernels of compare.h for AArch64: its four lanes are two registers.
 *
 * Lanes 0 and 1 process the block first, then lanes 2 and 3: the ten accumulators, and the temporaries of a step, all fit
 * in registers, and ten independent additions hide the latency of one. */
#ifndef MILBLOB_COMPARE_NEON_H
#define MILBLOB_COMPARE_NEON_H

#include "milblob/kernels/compare.h"
#include "milblob/kernels/neon/float.h"

#ifdef MB_HAS_NEON

/* No fused multiply and add: every tier rounds as the plain one does. vmaxnm(distance, most) keeps `most` where the distance
 * is NaN, which shows in the sum of distances. Comparisons give -1: `equal` and `outside` count downwards. */
#define MB_DEFINE_COMPARE_NEON(name, type, load) \
    MB_KERNEL bool name(const type *a, const type *b, uint32_t count, mb_tolerance tolerance, mb_comparison *part) { \
        const float64x2_t zero = vdupq_n_f64(0), atol = vdupq_n_f64(tolerance.atol), rtol = vdupq_n_f64(tolerance.rtol); \
        double sums[MB_COMPARE_SUMS][4], largest[4]; \
        uint64_t unequal[4], outsiders[4]; \
        for (uint32_t lane = 0; lane < 4; lane += 2) { \
            float64x2_t sum_a = zero, sum_b = zero, sum_aa = zero, sum_bb = zero, sum_ab = zero, sum_distance = zero, sum_noise = zero, most = zero; \
            uint64x2_t equal = vdupq_n_u64(0), outside = equal; \
            for (uint32_t i = lane; i < count; i += 4) { \
                const float64x2_t x = load(a + i), y = load(b + i), d = vsubq_f64(y, x), distance = vabsq_f64(d); \
                const float64x2_t limit = vaddq_f64(atol, vmulq_f64(rtol, vabsq_f64(x))); \
                sum_a = vaddq_f64(sum_a, x), sum_b = vaddq_f64(sum_b, y); \
                sum_aa = vaddq_f64(sum_aa, vmulq_f64(x, x)), sum_bb = vaddq_f64(sum_bb, vmulq_f64(y, y)), sum_ab = vaddq_f64(sum_ab, vmulq_f64(x, y)); \
                sum_distance = vaddq_f64(sum_distance, distance), sum_noise = vaddq_f64(sum_noise, vmulq_f64(d, d)); \
                most = vmaxnmq_f64(distance, most); \
                equal = vaddq_u64(equal, vceqzq_f64(d)), outside = vaddq_u64(outside, vcgtq_f64(distance, limit)); \
            } \
            const float64x2_t all[MB_COMPARE_SUMS] = {sum_a, sum_b, sum_aa, sum_bb, sum_ab, sum_distance, sum_noise}; \
            for (int s = 0; s < MB_COMPARE_SUMS; s++) vst1q_f64(&sums[s][lane], all[s]); \
            vst1q_f64(largest + lane, most); \
            vst1q_u64(unequal + lane, vaddq_u64(vdupq_n_u64(count / 4), equal)); \
            vst1q_u64(outsiders + lane, vsubq_u64(vdupq_n_u64(0), outside)); \
        } \
        return mb_compare_finish((const double (*)[4])sums, largest, unequal, outsiders, part); \
    }

#define MB_LOAD_F32_NEON(at) vcvt_f64_f32(vld1_f32(at))
#define MB_LOAD_F64_NEON(at) vld1q_f64(at)

MB_DEFINE_COMPARE_NEON(mb_compare_f32_neon, float, MB_LOAD_F32_NEON)
MB_DEFINE_COMPARE_NEON(mb_compare_f64_neon, double, MB_LOAD_F64_NEON)

#endif
#endif
