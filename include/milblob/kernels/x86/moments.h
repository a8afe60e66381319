/* kernels/x86/moments.h: the kernels of moments.h for AVX2 and AVX-512.
 *
 * Most blocks hold nothing to count: no zero, no subnormal, nothing from 65520 on. Extremes show that, and then only sums and
 * extremes remain to be computed. Loops of moments.h, compiled for the tier, count what other blocks hold, and partial ones. */
#ifndef MILBLOB_MOMENTS_X86_H
#define MILBLOB_MOMENTS_X86_H

#include "milblob/kernels/moments.h"
#include "milblob/kernels/x86/float.h"

#ifdef MB_HAS_AVX2

MB_DEFINE_WIDE_LOAD(mb_wide_load_avx2, MB_TARGET_AVX2)
MB_DEFINE_WIDE_LOAD(mb_wide_load_avx512, MB_TARGET_AVX512)

MB_TARGET_AVX512 static inline uint32_t mb_distinct_keep_avx512(uint64_t *hashes, uint32_t count, uint64_t most) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i += 8) {
        const __mmask8 here = (__mmask8)(count - i >= 8 ? 0xff : (1u << (count - i)) - 1);
        const __m512i some = _mm512_maskz_loadu_epi64(here, hashes + i);
        const __mmask8 keep = _mm512_mask_cmple_epu64_mask(here, some, _mm512_set1_epi64((int64_t)most));
        _mm512_mask_storeu_epi64(hashes + kept, here, _mm512_maskz_compress_epi64(keep, some)); /* over hashes that were loaded already */
        kept += (uint32_t)__builtin_popcount(keep);
    }
    return kept;
}

/* As mb_distinct_mask. */
MB_TARGET_AVX2 MB_STEP uint32_t mb_distinct_mask_avx2(const uint32_t *hashes, uint32_t most) {
    const __m256i limit = _mm256_set1_epi32((int)most);
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)hashes), b = _mm256_loadu_si256((const __m256i *)(const void *)(hashes + 8));
    const __m256i is_a = _mm256_cmpeq_epi32(_mm256_min_epu32(a, limit), a), is_b = _mm256_cmpeq_epi32(_mm256_min_epu32(b, limit), b);
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_a)) | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_b)) << 8;
}

MB_TARGET_AVX512 MB_STEP uint32_t mb_distinct_mask_avx512(const uint32_t *hashes, uint32_t most) {
    return _mm512_cmple_epu32_mask(_mm512_loadu_si512(hashes), _mm512_set1_epi32((int)most));
}

MB_DEFINE_WIDE_HASHES(avx2, MB_TARGET_AVX2, mb_distinct_keep, mb_distinct_mask_avx2)
MB_DEFINE_WIDE_HASHES(avx512, MB_TARGET_AVX512, mb_distinct_keep_avx512, mb_distinct_mask_avx512)

#define MB_DOUBLES_F32_AVX2(at) _mm256_cvtps_pd(_mm_loadu_ps(at))
#define MB_DOUBLES_F32_AVX512(at) _mm512_cvtps_pd(_mm256_loadu_ps(at))
#define MB_ABS_F32_AVX2(x) _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(MB_F32_ABS)))
#define MB_ABS_F64_AVX2(x) _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(MB_F64_ABS)))

MB_DEFINE_SEE_MOMENTS(mb_moments_f32_avx2, MB_TARGET_AVX2, 32, __m256d, 4, _mm256_set1_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, MB_DOUBLES_F32_AVX2,
                      __m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_min_ps, _mm256_max_ps, MB_ABS_F32_AVX2)
MB_DEFINE_SEE_MOMENTS(mb_moments_f64_avx2, MB_TARGET_AVX2, 64, __m256d, 4, _mm256_set1_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_loadu_pd,
                      __m256d, 4, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_min_pd, _mm256_max_pd, MB_ABS_F64_AVX2)
MB_DEFINE_SEE_MOMENTS(mb_moments_f32_avx512, MB_TARGET_AVX512, 32, __m512d, 8, _mm512_set1_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, MB_DOUBLES_F32_AVX512,
                      __m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_min_ps, _mm512_max_ps, _mm512_abs_ps)
MB_DEFINE_SEE_MOMENTS(mb_moments_f64_avx512, MB_TARGET_AVX512, 64, __m512d, 8, _mm512_set1_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_loadu_pd,
                      __m512d, 8, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_min_pd, _mm512_max_pd, _mm512_abs_pd)

#endif
#endif
