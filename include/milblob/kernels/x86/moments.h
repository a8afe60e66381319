/* kernels/x86/moments.h: the kernels of moments.h for AVX2 and AVX-512.
 *
 * Most blocks hold nothing to count: no zero, no subnormal, nothing from 65520 on. Extremes show that, and then only sums and
 * extremes remain to be computed. The code of moments.h, compiled for the tier, handles other blocks, and partial ones. */
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

MB_DEFINE_WIDE_HASH(mb_wide_hash_avx2, MB_TARGET_AVX2, mb_distinct_keep)
MB_DEFINE_WIDE_HASH(mb_wide_hash_avx512, MB_TARGET_AVX512, mb_distinct_keep_avx512)

MB_DEFINE_MOMENTS(mb_moments_any_avx2, MB_TARGET_AVX2)
MB_DEFINE_MOMENTS(mb_moments_any_avx512, MB_TARGET_AVX512)

/* What the first loop has found of a block without NaNs; false if there is something to count. */
static inline bool mb_moments_is_ordinary(uint64_t tiny, const mb_moments *m) {
    const double limit = mb_f64_of_bits(MB_F64_65520);
    return m->least > -limit && m->most < limit && m->smallest >= mb_f64_of_bits(tiny);
}

/* vminpd and vmaxpd return their second operand if either one is a NaN, so extremes do not show NaNs. The sum does. */
MB_TARGET_AVX2 MB_KERNEL void mb_moments_block_avx2(double *block, uint32_t count, uint64_t tiny, mb_moments *m) {
    const __m256d magnitude = _mm256_castsi256_pd(_mm256_set1_epi64x((int64_t)MB_F64_ABS));
    __m256d least = _mm256_set1_pd(mb_f64_of_bits(MB_F64_INF)), smallest = least, most = _mm256_set1_pd(-mb_f64_of_bits(MB_F64_INF));
    __m256d low = _mm256_setzero_pd(), high = low;
    double lanes[8], found[12];
    for (uint32_t i = 0; i + 8 <= count; i += 8) {
        const __m256d a = _mm256_loadu_pd(block + i), b = _mm256_loadu_pd(block + i + 4);
        least = _mm256_min_pd(_mm256_min_pd(a, b), least), most = _mm256_max_pd(_mm256_max_pd(a, b), most);
        smallest = _mm256_min_pd(_mm256_min_pd(_mm256_and_pd(a, magnitude), _mm256_and_pd(b, magnitude)), smallest);
        low = _mm256_add_pd(low, a), high = _mm256_add_pd(high, b);
    }
    _mm256_storeu_pd(lanes, low), _mm256_storeu_pd(lanes + 4, high);
    _mm256_storeu_pd(found, least), _mm256_storeu_pd(found + 4, most), _mm256_storeu_pd(found + 8, smallest);
    mb_moments_clear(m);
    for (unsigned k = 0; k < 4; k++) {
        m->least = found[k] < m->least ? found[k] : m->least;
        m->most = found[4 + k] > m->most ? found[4 + k] : m->most;
        m->smallest = found[8 + k] < m->smallest ? found[8 + k] : m->smallest;
    }
    m->count = count, m->sum = mb_sum_eight(lanes);
    if (count % 8 != 0 || m->sum != m->sum || !mb_moments_is_ordinary(tiny, m)) {
        mb_moments_any_avx2(block, count, tiny, m);
        return;
    }
    const __m256d mean = _mm256_set1_pd(m->sum / (double)count);
    low = high = _mm256_setzero_pd();
    for (uint32_t i = 0; i < count; i += 8) {
        const __m256d a = _mm256_sub_pd(_mm256_loadu_pd(block + i), mean), b = _mm256_sub_pd(_mm256_loadu_pd(block + i + 4), mean);
        low = _mm256_add_pd(low, _mm256_mul_pd(a, a)), high = _mm256_add_pd(high, _mm256_mul_pd(b, b));
    }
    _mm256_storeu_pd(lanes, low), _mm256_storeu_pd(lanes + 4, high);
    m->spread = mb_sum_eight(lanes);
}

MB_TARGET_AVX512 MB_KERNEL void mb_moments_block_avx512(double *block, uint32_t count, uint64_t tiny, mb_moments *m) {
    const __m512i magnitude = _mm512_set1_epi64((int64_t)MB_F64_ABS);
    __m512d least = _mm512_set1_pd(mb_f64_of_bits(MB_F64_INF)), smallest = least, most = _mm512_set1_pd(-mb_f64_of_bits(MB_F64_INF));
    __m512d sums = _mm512_setzero_pd();
    double lanes[8];
    for (uint32_t i = 0; i + 8 <= count; i += 8) {
        const __m512d a = _mm512_loadu_pd(block + i);
        least = _mm512_min_pd(a, least), most = _mm512_max_pd(a, most);
        smallest = _mm512_min_pd(_mm512_castsi512_pd(_mm512_and_si512(_mm512_castpd_si512(a), magnitude)), smallest);
        sums = _mm512_add_pd(sums, a);
    }
    _mm512_storeu_pd(lanes, sums);
    mb_moments_clear(m);
    m->least = _mm512_reduce_min_pd(least), m->most = _mm512_reduce_max_pd(most), m->smallest = _mm512_reduce_min_pd(smallest);
    m->count = count, m->sum = mb_sum_eight(lanes);
    if (count % 8 != 0 || m->sum != m->sum || !mb_moments_is_ordinary(tiny, m)) {
        mb_moments_any_avx512(block, count, tiny, m);
        return;
    }
    const __m512d mean = _mm512_set1_pd(m->sum / (double)count);
    sums = _mm512_setzero_pd();
    for (uint32_t i = 0; i < count; i += 8) {
        const __m512d a = _mm512_sub_pd(_mm512_loadu_pd(block + i), mean);
        sums = _mm512_add_pd(sums, _mm512_mul_pd(a, a));
    }
    _mm512_storeu_pd(lanes, sums);
    m->spread = mb_sum_eight(lanes);
}

#endif
#endif
