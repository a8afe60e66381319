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

/* As mb_distinct_keep_32 and mb_distinct_keep_64. Registers are stored over hashes that were loaded already. */
#define MB_DEFINE_KEEP_AVX512(width, lanes, mask) \
    MB_TARGET_AVX512 MB_STEP uint32_t mb_distinct_keep_##width##_avx512(uint##width##_t *hashes, uint32_t count, uint##width##_t most) { \
        const __m512i limit = _mm512_set1_epi##width((int##width##_t)most); \
        uint32_t kept = 0; \
        for (uint32_t i = 0; i < count; i += lanes) { \
            const mask here = (mask)(count - i >= lanes ? ~0u : (1u << (count - i)) - 1); \
            const __m512i some = _mm512_maskz_loadu_epi##width(here, hashes + i); \
            const mask keep = _mm512_mask_cmple_epu##width##_mask(here, some, limit); \
            _mm512_storeu_si512(hashes + kept, _mm512_maskz_compress_epi##width(keep, some)); \
            kept += (uint32_t)__builtin_popcount(keep); \
        } \
        return kept; \
    }

MB_DEFINE_KEEP_AVX512(32, 16, __mmask16)
MB_DEFINE_KEEP_AVX512(64, 8, __mmask8)

/* As mb_distinct_keep_32: the rare ones of 64 are found by their bits. */
MB_TARGET_AVX2 MB_STEP uint32_t mb_distinct_keep_32_avx2(uint32_t *hashes, uint32_t count, uint32_t most) {
    const __m256i limit = _mm256_set1_epi32((int)most);
    uint32_t kept = 0;
    for (uint32_t i = count; i % 64 != 0; i++) hashes[i] = UINT32_MAX;
    for (uint32_t i = 0; i < count; i += 64) {
        uint64_t few = 0;
        for (uint32_t k = 0; k < 64; k += 8) {
            const __m256i some = _mm256_loadu_si256((const __m256i *)(const void *)(hashes + i + k));
            few |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_min_epu32(some, limit), some))) << k;
        }
        for (; few != 0; few &= few - 1) hashes[kept++] = hashes[i + mb_lowest_bit(few)];
    }
    return kept;
}

MB_DEFINE_WIDE_HASHES(avx2, MB_TARGET_AVX2, mb_distinct_keep_32_avx2, mb_distinct_keep_64)
MB_DEFINE_WIDE_HASHES(avx512, MB_TARGET_AVX512, mb_distinct_keep_32_avx512, mb_distinct_keep_64_avx512)

#define MB_SQUARE_F32_AVX2(x, sum) _mm256_fmadd_pd(x, x, sum)
#define MB_SQUARE_F32_AVX512(x, sum) _mm512_fmadd_pd(x, x, sum)
#define MB_SQUARE_F64_AVX2(x, sum) _mm256_add_pd(_mm256_mul_pd(x, x), sum)
#define MB_SQUARE_F64_AVX512(x, sum) _mm512_add_pd(_mm512_mul_pd(x, x), sum)
#define MB_DOUBLES_F32_AVX2(at) _mm256_cvtps_pd(_mm_loadu_ps(at))
#define MB_DOUBLES_F32_AVX512(at) _mm512_cvtps_pd(_mm256_loadu_ps(at))
#define MB_ABS_F32_AVX2(x) _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(MB_F32_ABS)))
#define MB_ABS_F64_AVX2(x) _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(MB_F64_ABS)))

MB_DEFINE_SEE_MOMENTS(mb_moments_f32_avx2, MB_TARGET_FMA, 32, __m256d, 4, _mm256_set1_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, MB_SQUARE_F32_AVX2, MB_DOUBLES_F32_AVX2,
                      __m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_min_ps, _mm256_max_ps, MB_ABS_F32_AVX2)
MB_DEFINE_SEE_MOMENTS(mb_moments_f64_avx2, MB_TARGET_AVX2, 64, __m256d, 4, _mm256_set1_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, MB_SQUARE_F64_AVX2, _mm256_loadu_pd,
                      __m256d, 4, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_min_pd, _mm256_max_pd, MB_ABS_F64_AVX2)
MB_DEFINE_SEE_MOMENTS(mb_moments_f32_avx512, MB_TARGET_AVX512, 32, __m512d, 8, _mm512_set1_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, MB_SQUARE_F32_AVX512, MB_DOUBLES_F32_AVX512,
                      __m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_min_ps, _mm512_max_ps, _mm512_abs_ps)
MB_DEFINE_SEE_MOMENTS(mb_moments_f64_avx512, MB_TARGET_AVX512, 64, __m512d, 8, _mm512_set1_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, MB_SQUARE_F64_AVX512, _mm512_loadu_pd,
                      __m512d, 8, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_min_pd, _mm512_max_pd, _mm512_abs_pd)

#endif
#endif
