/* kernels/neon/moments.h: the kernel of moments.h for AArch64.
 *
 * Most blocks hold nothing to count: no zero, no subnormal, nothing from 65520 on. Extremes show that, and then only sums and
 * extremes remain to be computed. Loops of moments.h count what other blocks hold, and partial ones. */
#ifndef MILBLOB_MOMENTS_NEON_H
#define MILBLOB_MOMENTS_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/moments.h"

#ifdef MB_HAS_NEON

#define MB_SQUARE_F32_NEON(x, sum) vfmaq_f64(sum, x, x)
#define MB_SQUARE_F64_NEON(x, sum) vaddq_f64(vmulq_f64(x, x), sum)
#define MB_DOUBLES_F32_NEON(at) vcvt_f64_f32(vld1_f32(at))

MB_DEFINE_SEE_MOMENTS(mb_moments_f32_neon, , 32, float64x2_t, 2, vdupq_n_f64, vst1q_f64, vaddq_f64, vsubq_f64, vmulq_f64, MB_SQUARE_F32_NEON, MB_DOUBLES_F32_NEON,
                      float32x4_t, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, vminq_f32, vmaxq_f32, vabsq_f32)
MB_DEFINE_SEE_MOMENTS(mb_moments_f64_neon, , 64, float64x2_t, 2, vdupq_n_f64, vst1q_f64, vaddq_f64, vsubq_f64, vmulq_f64, MB_SQUARE_F64_NEON, vld1q_f64,
                      float64x2_t, 2, vdupq_n_f64, vld1q_f64, vst1q_f64, vminq_f64, vmaxq_f64, vabsq_f64)

#endif
#endif
