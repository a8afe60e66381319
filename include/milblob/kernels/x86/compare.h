/* kernels/x86/compare.h: the kernels of compare.h for x86 with AVX2: its four lanes are one register. */
#ifndef MILBLOB_COMPARE_X86_H
#define MILBLOB_COMPARE_X86_H

#include "milblob/kernels/compare.h"
#include "milblob/kernels/x86/float.h"

#ifdef MB_HAS_AVX2

/* No fused multiply and add: every tier rounds as the plain one does. max(distance, most) keeps `most` where the distance is
 * NaN, which shows in the sum of distances. */
#define MB_DEFINE_COMPARE_AVX2(name, type, load) \
    MB_TARGET_AVX2 MB_KERNEL bool name(const type *a, const type *b, uint32_t count, mb_tolerance tolerance, mb_comparison *part) { \
        const __m256d sign = _mm256_set1_pd(-0.0), atol = _mm256_set1_pd(tolerance.atol), rtol = _mm256_set1_pd(tolerance.rtol); \
        __m256d sum_a = _mm256_setzero_pd(), sum_b = sum_a, sum_aa = sum_a, sum_bb = sum_a, sum_ab = sum_a, sum_distance = sum_a, sum_noise = sum_a, most = sum_a; \
        __m256i unequal = _mm256_setzero_si256(), outside = unequal; \
        for (uint32_t i = 0; i < count; i += 4) { \
            const __m256d x = load(a + i), y = load(b + i), d = _mm256_sub_pd(y, x), distance = _mm256_andnot_pd(sign, d); \
            const __m256d limit = _mm256_add_pd(atol, _mm256_mul_pd(rtol, _mm256_andnot_pd(sign, x))); \
            sum_a = _mm256_add_pd(sum_a, x), sum_b = _mm256_add_pd(sum_b, y); \
            sum_aa = _mm256_add_pd(sum_aa, _mm256_mul_pd(x, x)), sum_bb = _mm256_add_pd(sum_bb, _mm256_mul_pd(y, y)); \
            sum_ab = _mm256_add_pd(sum_ab, _mm256_mul_pd(x, y)); \
            sum_distance = _mm256_add_pd(sum_distance, distance), sum_noise = _mm256_add_pd(sum_noise, _mm256_mul_pd(d, d)); \
            most = _mm256_max_pd(distance, most); \
            unequal = _mm256_sub_epi64(unequal, _mm256_castpd_si256(_mm256_cmp_pd(d, _mm256_setzero_pd(), _CMP_NEQ_UQ))); \
            outside = _mm256_sub_epi64(outside, _mm256_castpd_si256(_mm256_cmp_pd(distance, limit, _CMP_GT_OQ))); \
        } \
        double sums[MB_COMPARE_SUMS][4], largest[4]; \
        uint64_t counts[2][4]; \
        const __m256d all[MB_COMPARE_SUMS] = {sum_a, sum_b, sum_aa, sum_bb, sum_ab, sum_distance, sum_noise}; \
        for (int s = 0; s < MB_COMPARE_SUMS; s++) _mm256_storeu_pd(sums[s], all[s]); \
        _mm256_storeu_pd(largest, most); \
        _mm256_storeu_si256((__m256i *)(void *)counts[0], unequal); \
        _mm256_storeu_si256((__m256i *)(void *)counts[1], outside); \
        return mb_compare_finish((const double (*)[4])sums, largest, counts[0], counts[1], part); \
    }

#define MB_LOAD_F32_AVX2(at) _mm256_cvtps_pd(_mm_loadu_ps(at))
#define MB_LOAD_F64_AVX2(at) _mm256_loadu_pd(at)

MB_DEFINE_COMPARE_AVX2(mb_compare_f32_avx2, float, MB_LOAD_F32_AVX2)
MB_DEFINE_COMPARE_AVX2(mb_compare_f64_avx2, double, MB_LOAD_F64_AVX2)

#endif
#endif
