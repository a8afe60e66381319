/* kernels/neon/vectors.h: the kernel of vectors.h for AArch64. */
#ifndef MILBLOB_VECTORS_NEON_H
#define MILBLOB_VECTORS_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/vectors.h"

#ifdef MB_HAS_NEON

#define MB_LESS_NEON(distance, index, least, at) \
    do { \
        const uint32x4_t is_less = vcltq_f32(distance, least); \
        least = vbslq_f32(is_less, distance, least), at = vbslq_f32(is_less, index, at); \
    } while (0)

MB_DEFINE_NEAREST(mb_nearest_neon, , float32x4_t, 4, vld1q_f32, vst1q_f32, vdupq_n_f32, vsubq_f32, vmulq_f32, vaddq_f32, MB_LESS_NEON)

#endif
#endif
