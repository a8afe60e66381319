/* float_x86.h: the casts of float.h for x86 with AVX2 and F16C.
 *
 * Five of the six are the plain code compiled for wider vectors. float32 -> float16 has an instruction, which is right
 * but for NaNs and counts nothing. So it does blocks of 64 in which no element is a NaN, infinite, too large or too
 * small: one maximum and one minimum over the block tell. All other blocks, and the tail, are the plain kernel's. */
#ifndef MILBLOB_FLOAT_X86_H
#define MILBLOB_FLOAT_X86_H

#include "milblob/float.h"

/* Other compilers, MSVC among them, have the plain tier only: these attributes are GNU's. */
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define MB_HAS_AVX2 1
#define MB_TARGET_AVX2 __attribute__((target("avx2,f16c")))

#include <immintrin.h>

MB_DEFINE_CASTS(loop_avx2, MB_TARGET_AVX2)

MB_TARGET_AVX2 MB_KERNEL void mb_cast_f32_f16_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    const __m256i abs = _mm256_set1_epi32(0x7fffffff), one = _mm256_set1_epi32(1);
    const __m256i big = _mm256_set1_epi32((int)MB_F32_F16_BIG - 1), tiny = _mm256_set1_epi32((int)MB_F32_F16_TINY);
    for (; count >= 64; count -= 64, src += 256, dst += 128) {
        __m256i most = _mm256_setzero_si256(), least = _mm256_set1_epi32(-1);
        for (int k = 0; k < 8; k++) {
            __m256 value = _mm256_loadu_ps((const float *)(const void *)(src + 32 * k));
            __m256i a = _mm256_and_si256(_mm256_castps_si256(value), abs);
            most = _mm256_max_epu32(most, a);
            least = _mm256_min_epu32(least, _mm256_sub_epi32(a, one)); /* zero becomes the largest: it may stay zero */
            _mm_storeu_si128((__m128i *)(void *)(dst + 16 * k), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
        }
        /* `most` has no top bit, so a signed comparison does; `least` may have it, then it is negative and tells nothing. */
        __m256i rare = _mm256_or_si256(_mm256_cmpgt_epi32(most, big),
                                       _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_setzero_si256(), least), _mm256_cmpgt_epi32(tiny, least)));
        if (_mm256_movemask_epi8(rare)) mb_cast_f32_f16_loop_avx2(dst, src, 64, clamp, counts);
    }
    mb_cast_f32_f16_loop_avx2(dst, src, count, clamp, counts);
}

#endif
#endif
