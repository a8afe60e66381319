/* kernels/x86/vectors.h: the kernel of vectors.h for AVX2 and AVX-512. */
#ifndef MILBLOB_VECTORS_X86_H
#define MILBLOB_VECTORS_X86_H

#include "milblob/kernels/vectors.h"
#include "milblob/kernels/x86/float.h"

#ifdef MB_HAS_AVX2

#define MB_LESS_AVX2(distance, index, least, at) \
    do { \
        const __m256 is_less = _mm256_cmp_ps(distance, least, _CMP_LT_OQ); \
        least = _mm256_blendv_ps(least, distance, is_less), at = _mm256_blendv_ps(at, index, is_less); \
    } while (0)

#define MB_LESS_AVX512(distance, index, least, at) \
    do { \
        const __mmask16 is_less = _mm512_cmp_ps_mask(distance, least, _CMP_LT_OQ); \
        least = _mm512_mask_mov_ps(least, is_less, distance), at = _mm512_mask_mov_ps(at, is_less, index); \
    } while (0)

MB_DEFINE_NEAREST(mb_nearest_avx2, MB_TARGET_AVX2, __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_add_ps, MB_LESS_AVX2)
MB_DEFINE_NEAREST(mb_nearest_avx512, MB_TARGET_AVX512, __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_add_ps, MB_LESS_AVX512)

#endif
#endif
