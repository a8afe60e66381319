/* kernels/x86/quantize.h: the steps of quantize_steps.h for AVX2 with F16C, and for AVX-512.
 *
 * Integers remain floats until they are stored: clipping to whole numbers and rounding may change places, which saves
 * conversions of 32-bit integers. A scale of 0 is rare, and only it makes NaNs: the plain code handles it. */
#ifndef MILBLOB_QUANTIZE_X86_H
#define MILBLOB_QUANTIZE_X86_H

#include "milblob/kernels/quantize_steps.h"
#include "milblob/kernels/x86/float.h"

#ifdef MB_HAS_AVX2

MB_DEFINE_QUANTIZES(loop_avx2, MB_TARGET_AVX2)

/* -------------------------------------------------------------------------------------------------------------- AVX-512 */

/* Lanes of sums, and the results, in registers. */
typedef struct mb_quantize_avx512 {
    __m512d squared[2], power[2];
    __m512i largest;
    __m512 least, most; /* integers less the zero */
    __m512 scale, inverse, zero;
    __m128i mask;
} mb_quantize_avx512;

MB_TARGET_AVX512 MB_STEP __m512i mb_size_avx512(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
MB_TARGET_AVX512 MB_STEP __m512 mb_round_half_avx512(__m512 x) { return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
MB_TARGET_AVX512 MB_STEP __m512 mb_limit_avx512(const mb_quantize_avx512 *own, __m512 x) { return _mm512_max_ps(_mm512_min_ps(x, own->most), own->least); }

MB_TARGET_AVX512 MB_STEP void mb_add_squares_avx512(__m512d *sums, __m512 x) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sums[0] = _mm512_fmadd_pd(low, low, sums[0]), sums[1] = _mm512_fmadd_pd(high, high, sums[1]);
}

/* Quantize 16 elements; only those of `lanes` exist. */
MB_TARGET_AVX512 MB_STEP void mb_quantize_16_avx512(mb_quantize_avx512 *own, uint8_t *dst, float *off, __m512 x, __mmask16 lanes, const bool is_f16) {
    const __m512 at = is_f16 ? _mm512_mul_ps(x, own->inverse) : _mm512_div_ps(x, own->scale);
    __m512 q = _mm512_roundscale_ps(mb_limit_avx512(own, at), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), above;
    if (is_f16) {
        const __m512 one = _mm512_set1_ps(1.0f), up = _mm512_mask_sub_ps(_mm512_add_ps(q, one), _mm512_movepi32_mask(_mm512_castps_si512(_mm512_sub_ps(at, q))), q, one);
        const __m512 other = mb_limit_avx512(own, up), beyond = _mm512_sub_ps(x, mb_round_half_avx512(_mm512_mul_ps(other, own->scale)));
        above = _mm512_sub_ps(x, mb_round_half_avx512(_mm512_mul_ps(q, own->scale)));
        const __mmask16 nearer = _mm512_cmplt_epi32_mask(mb_size_avx512(beyond), mb_size_avx512(above));
        q = _mm512_mask_mov_ps(q, nearer, other), above = _mm512_mask_mov_ps(above, nearer, beyond);
    } else {
        above = _mm512_sub_ps(x, _mm512_mul_ps(q, own->scale));
    }
    if (lanes != 0xffff) above = _mm512_maskz_mov_ps(lanes, above);
    own->largest = _mm512_max_epu32(own->largest, mb_size_avx512(above));
    mb_add_squares_avx512(own->squared, above), mb_add_squares_avx512(own->power, x);
    const __m128i bytes = _mm_and_si128(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_add_ps(q, own->zero))), own->mask);
    if (lanes == 0xffff) _mm_storeu_si128((__m128i *)(void *)dst, bytes);
    else _mm_mask_storeu_epi8(dst, lanes, bytes);
    if (off != NULL) _mm512_mask_storeu_ps(off, lanes, above);
}

MB_TARGET_AVX512 MB_STEP void mb_quantize_scale_avx512(mb_quantize_avx512 *own, const mb_integers *to, __m512 scale, __m512 zero) {
    own->scale = scale, own->inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), scale), own->zero = zero;
    own->least = _mm512_sub_ps(_mm512_set1_ps((float)to->least), zero), own->most = _mm512_sub_ps(_mm512_set1_ps((float)to->most), zero);
}

MB_TARGET_AVX512 MB_STEP void mb_quantize_begin_avx512(mb_quantize_avx512 *own, const mb_sums *sums) {
    for (unsigned k = 0; k < 2; k++) own->squared[k] = _mm512_loadu_pd(sums->squared + 8 * k), own->power[k] = _mm512_loadu_pd(sums->power + 8 * k);
    own->largest = _mm512_set1_epi32((int)sums->largest);
}

MB_TARGET_AVX512 MB_STEP void mb_quantize_end_avx512(const mb_quantize_avx512 *own, mb_sums *sums) {
    for (unsigned k = 0; k < 2; k++) _mm512_storeu_pd(sums->squared + 8 * k, own->squared[k]), _mm512_storeu_pd(sums->power + 8 * k, own->power[k]);
    sums->largest = _mm512_reduce_max_epu32(own->largest);
}

MB_TARGET_AVX512 MB_STEP __m512 mb_elements_avx512(const uint8_t *src, __mmask16 lanes, const bool is_f16) {
    if (lanes == 0xffff) return is_f16 ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)src)) : _mm512_loadu_ps(src);
    return is_f16 ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, src)) : _mm512_maskz_loadu_ps(lanes, src);
}

#define MB_DEFINE_QUANTIZE_AVX512(name, plain, is_f16, nbytes) \
    MB_TARGET_AVX512 MB_KERNEL void name(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) { \
        const size_t n = (size_t)count; \
        mb_quantize_avx512 own; \
        mb_quantize_begin_avx512(&own, sums); \
        own.mask = _mm_set1_epi8((char)((1 << to->nbits) - 1)); \
        for (size_t begin = 0, end; begin < n; begin = end, scale++, zero++) { \
            end = run == 1 || n - begin < run ? n : begin + (size_t)run; \
            bool is_zero = *scale == 0; \
            for (size_t i = 0; run == 1 && i < n; i++) is_zero |= scale[i] == 0; \
            if (is_zero) { \
                mb_quantize_end_avx512(&own, sums); \
                plain(dst + begin, off == NULL ? NULL : off + begin, src + nbytes * begin, end - begin, scale, zero, run, to, sums); \
                mb_quantize_begin_avx512(&own, sums); \
                continue; \
            } \
            mb_quantize_scale_avx512(&own, to, _mm512_set1_ps(*scale), _mm512_set1_ps(*zero)); \
            size_t i = begin; \
            if (run != 1 && off == NULL) \
                for (; i + 16 <= end; i += 16) mb_quantize_16_avx512(&own, dst + i, NULL, mb_elements_avx512(src + nbytes * i, 0xffff, is_f16), 0xffff, is_f16); \
            for (; i < end; i += 16) { \
                const __mmask16 lanes = (__mmask16)(end - i < 16 ? (1u << (end - i)) - 1 : 0xffffu); \
                if (run == 1) mb_quantize_scale_avx512(&own, to, _mm512_mask_loadu_ps(_mm512_set1_ps(1.0f), lanes, scale + i), _mm512_maskz_loadu_ps(lanes, zero + i)); \
                mb_quantize_16_avx512(&own, dst + i, off == NULL ? NULL : off + i, mb_elements_avx512(src + nbytes * i, lanes, is_f16), lanes, is_f16); \
            } \
        } \
        mb_quantize_end_avx512(&own, sums); \
    }

MB_DEFINE_QUANTIZE_AVX512(mb_quantize_f32_avx512, mb_quantize_f32_loop_avx2, false, 4)
MB_DEFINE_QUANTIZE_AVX512(mb_quantize_f16_avx512, mb_quantize_f16_loop_avx2, true, 2)

/* ---------------------------------------------------------------------------------------------------------------- AVX2 */

typedef struct mb_quantize_avx2 {
    __m256d squared[4], power[4];
    __m256i largest;
    __m256 least, most, scale, inverse, zero;
    __m256i mask;
} mb_quantize_avx2;

MB_TARGET_AVX2 MB_STEP __m256 mb_size_avx2(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
MB_TARGET_AVX2 MB_STEP __m256 mb_round_half_avx2(__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
MB_TARGET_AVX2 MB_STEP __m256 mb_limit_avx2(const mb_quantize_avx2 *own, __m256 x) { return _mm256_max_ps(_mm256_min_ps(x, own->most), own->least); }

MB_TARGET_FMA MB_STEP void mb_add_squares_avx2(__m256d *sums, __m256 x) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sums[0] = _mm256_fmadd_pd(low, low, sums[0]), sums[1] = _mm256_fmadd_pd(high, high, sums[1]); /* the squares are exact */
}

/* Eight elements, for the lanes 8 * half and on. Returns their integers. */
MB_TARGET_FMA MB_STEP __m256i mb_quantize_8_avx2(mb_quantize_avx2 *own, float *off, __m256 x, const unsigned half, const bool is_f16) {
    const __m256 at = is_f16 ? _mm256_mul_ps(x, own->inverse) : _mm256_div_ps(x, own->scale);
    __m256 q = _mm256_round_ps(mb_limit_avx2(own, at), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), above;
    if (is_f16) {
        const __m256 sign = _mm256_and_ps(_mm256_sub_ps(at, q), _mm256_set1_ps(-0.0f)), up = _mm256_or_ps(_mm256_set1_ps(1.0f), sign);
        const __m256 other = mb_limit_avx2(own, _mm256_add_ps(q, up)), beyond = _mm256_sub_ps(x, mb_round_half_avx2(_mm256_mul_ps(other, own->scale)));
        above = _mm256_sub_ps(x, mb_round_half_avx2(_mm256_mul_ps(q, own->scale)));
        const __m256 nearer = _mm256_cmp_ps(mb_size_avx2(beyond), mb_size_avx2(above), _CMP_LT_OQ);
        q = _mm256_blendv_ps(q, other, nearer), above = _mm256_blendv_ps(above, beyond, nearer);
    } else {
        above = _mm256_sub_ps(x, _mm256_mul_ps(q, own->scale));
    }
    own->largest = _mm256_max_epu32(own->largest, _mm256_castps_si256(mb_size_avx2(above)));
    mb_add_squares_avx2(own->squared + 2 * half, above), mb_add_squares_avx2(own->power + 2 * half, x);
    if (off != NULL) _mm256_storeu_ps(off + 8 * half, above);
    return _mm256_and_si256(_mm256_cvtps_epi32(_mm256_add_ps(q, own->zero)), own->mask);
}

MB_TARGET_FMA MB_STEP void mb_quantize_scale_avx2(mb_quantize_avx2 *own, const mb_integers *to, __m256 scale, __m256 zero) {
    own->scale = scale, own->inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), scale), own->zero = zero;
    own->least = _mm256_sub_ps(_mm256_set1_ps((float)to->least), zero), own->most = _mm256_sub_ps(_mm256_set1_ps((float)to->most), zero);
}

MB_TARGET_FMA MB_STEP void mb_quantize_begin_avx2(mb_quantize_avx2 *own, const mb_sums *sums) {
    for (unsigned k = 0; k < 4; k++) own->squared[k] = _mm256_loadu_pd(sums->squared + 4 * k), own->power[k] = _mm256_loadu_pd(sums->power + 4 * k);
    own->largest = _mm256_set1_epi32((int)sums->largest);
}

MB_TARGET_FMA MB_STEP void mb_quantize_end_avx2(const mb_quantize_avx2 *own, mb_sums *sums) {
    uint32_t largest[8];
    for (unsigned k = 0; k < 4; k++) _mm256_storeu_pd(sums->squared + 4 * k, own->squared[k]), _mm256_storeu_pd(sums->power + 4 * k, own->power[k]);
    _mm256_storeu_si256((__m256i *)(void *)largest, own->largest);
    for (unsigned k = 0; k < 8; k++) sums->largest = largest[k] > sums->largest ? largest[k] : sums->largest;
}

MB_TARGET_FMA MB_STEP __m256 mb_elements_avx2(const uint8_t *src, const bool is_f16) {
    return is_f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src)) : _mm256_loadu_ps((const float *)(const void *)src);
}

/* The plain code handles the rest of a run. */
#define MB_DEFINE_QUANTIZE_AVX2(name, plain, is_f16, nbytes) \
    MB_TARGET_FMA MB_KERNEL void name(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) { \
        const size_t n = (size_t)count, step = run == 1; \
        mb_quantize_avx2 own; \
        mb_quantize_begin_avx2(&own, sums); \
        own.mask = _mm256_set1_epi32((1 << to->nbits) - 1); \
        for (size_t begin = 0, end; begin < n; begin = end, scale++, zero++) { \
            end = step || n - begin < run ? n : begin + (size_t)run; \
            bool is_zero = *scale == 0; \
            for (size_t i = 0; step && i < n; i++) is_zero |= scale[i] == 0; \
            mb_quantize_scale_avx2(&own, to, _mm256_set1_ps(*scale), _mm256_set1_ps(*zero)); \
            size_t i = begin; \
            for (; i + 16 <= end && !is_zero; i += 16) { \
                float *const above = off == NULL ? NULL : off + i; \
                if (step) mb_quantize_scale_avx2(&own, to, _mm256_loadu_ps(scale + i), _mm256_loadu_ps(zero + i)); \
                const __m256i low = mb_quantize_8_avx2(&own, above, mb_elements_avx2(src + nbytes * i, is_f16), 0, is_f16); \
                if (step) mb_quantize_scale_avx2(&own, to, _mm256_loadu_ps(scale + i + 8), _mm256_loadu_ps(zero + i + 8)); \
                const __m256i high = mb_quantize_8_avx2(&own, above, mb_elements_avx2(src + nbytes * (i + 8), is_f16), 1, is_f16); \
                const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8); \
                _mm_storeu_si128((__m128i *)(void *)(dst + i), _mm_packus_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1))); \
            } \
            if (i == end) continue; \
            mb_quantize_end_avx2(&own, sums); \
            plain(dst + i, off == NULL ? NULL : off + i, src + nbytes * i, end - i, scale + i * step, zero + i * step, step ? 1 : end - i + 1, to, sums); \
            mb_quantize_begin_avx2(&own, sums); \
        } \
        mb_quantize_end_avx2(&own, sums); \
    }

MB_DEFINE_QUANTIZE_AVX2(mb_quantize_f32_avx2, mb_quantize_f32_loop_avx2, false, 4)
MB_DEFINE_QUANTIZE_AVX2(mb_quantize_f16_avx2, mb_quantize_f16_loop_avx2, true, 2)

/* -------------------------------------------------------------------------------------------------------------- ranges */

MB_TARGET_AVX2 MB_STEP __m256i mb_order_16_avx2(__m256i bits) { return _mm256_xor_si256(bits, _mm256_srli_epi16(_mm256_srai_epi16(bits, 15), 1)); }
MB_TARGET_AVX2 MB_STEP __m256i mb_order_8_avx2(__m256i bits) { return _mm256_xor_si256(bits, _mm256_srli_epi32(_mm256_srai_epi32(bits, 31), 1)); }
MB_TARGET_AVX2 MB_STEP __m128i mb_order_4_avx2(__m128i bits) { return _mm_xor_si128(bits, _mm_srli_epi32(_mm_srai_epi32(bits, 31), 1)); }

/* Widen one range by the least of `low` and the greatest of `high`: 16 numbers in the order of floats each.
 * _mm_minpos_epu16 finds the least of eight. */
MB_TARGET_AVX2 MB_STEP void mb_widen_16_avx2(__m256i low, __m256i high, float *least, float *most) {
    const __m128i low_8 = _mm_min_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const __m128i high_8 = _mm_max_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    const __m128i a = _mm_minpos_epu16(_mm_xor_si128(low_8, _mm_set1_epi16((short)0x8000))), b = _mm_minpos_epu16(_mm_xor_si128(high_8, _mm_set1_epi16(0x7fff)));
    const __m128i both = _mm_xor_si128(_mm_unpacklo_epi16(a, b), _mm_set1_epi32(0x7fff8000)); /* a and b in order again */
    const __m128i halves = _mm_xor_si128(both, _mm_srli_epi16(_mm_srai_epi16(both, 15), 1));
    const __m128i found = mb_order_4_avx2(_mm_castps_si128(_mm_cvtph_ps(halves)));
    const __m128i known = mb_order_4_avx2(_mm_castps_si128(_mm_unpacklo_ps(_mm_load_ss(least), _mm_load_ss(most))));
    const __m128i wide = mb_order_4_avx2(_mm_blend_epi16(_mm_min_epi32(found, known), _mm_max_epi32(found, known), 0x0c));
    _mm_store_ss(least, _mm_castsi128_ps(wide)), _mm_store_ss(most, _mm_castsi128_ps(_mm_srli_si128(wide, 4)));
}

MB_TARGET_AVX2 MB_KERNEL void mb_range_f16_avx2(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) {
    const size_t n = (size_t)count;
    if (run < 16) {
        mb_range_f16_loop_avx2(src, count, run, least, most);
        return;
    }
    for (size_t begin = 0, end; begin < n; begin = end, least++, most++) {
        end = n - begin < run ? n : begin + (size_t)run;
        if (end - begin < 16) {
            mb_range_f16_loop_avx2(src + 2 * begin, end - begin, run, least, most);
            return;
        }
        /* The last round may take elements once more. */
        __m256i low = mb_order_16_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * (end - 16)))), high = low;
        for (size_t i = begin; i + 16 < end; i += 16) {
            const __m256i x = mb_order_16_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i)));
            low = _mm256_min_epi16(low, x), high = _mm256_max_epi16(high, x);
        }
        mb_widen_16_avx2(low, high, least, most);
    }
}

MB_TARGET_AVX512 MB_STEP __m512i mb_order_16_avx512(__m512i bits) { return _mm512_xor_si512(bits, _mm512_srli_epi16(_mm512_srai_epi16(bits, 15), 1)); }

/* Eight vectors of numbers to one, whose lanes of 128 bits have the least, or the greatest, of each in such a lane. */
MB_TARGET_AVX512 MB_STEP __m512i mb_farther_avx512(__m512i a, __m512i b, const bool is_most) { return is_most ? _mm512_max_epi16(a, b) : _mm512_min_epi16(a, b); }
MB_TARGET_AVX512 MB_STEP __m512i mb_fold_8_avx512(const __m512i *x, const bool is_most) {
    __m512i two[4], four[2];
    for (unsigned k = 0; k < 4; k++) two[k] = mb_farther_avx512(_mm512_unpacklo_epi16(x[2 * k], x[2 * k + 1]), _mm512_unpackhi_epi16(x[2 * k], x[2 * k + 1]), is_most);
    for (unsigned k = 0; k < 2; k++) four[k] = mb_farther_avx512(_mm512_unpacklo_epi32(two[2 * k], two[2 * k + 1]), _mm512_unpackhi_epi32(two[2 * k], two[2 * k + 1]), is_most);
    return mb_farther_avx512(_mm512_unpacklo_epi64(four[0], four[1]), _mm512_unpackhi_epi64(four[0], four[1]), is_most);
}

/* Widen eight ranges by numbers in the order of float16; each is the farthest of those in its place in a lane. */
MB_TARGET_AVX512 MB_STEP void mb_widen_8_avx512(__m512i found, float *bounds, const bool is_most) {
    found = mb_farther_avx512(found, _mm512_shuffle_i64x2(found, found, 0x4e), is_most);
    const __m128i eight = _mm512_castsi512_si128(mb_farther_avx512(found, _mm512_shuffle_i64x2(found, found, 0xb1), is_most));
    const __m256 wide = _mm256_cvtph_ps(_mm_xor_si128(eight, _mm_srli_epi16(_mm_srai_epi16(eight, 15), 1)));
    const __m256i own = mb_order_8_avx2(_mm256_castps_si256(wide)), known = mb_order_8_avx2(_mm256_loadu_si256((const __m256i *)(const void *)bounds));
    _mm256_storeu_si256((__m256i *)(void *)bounds, mb_order_8_avx2(is_most ? _mm256_max_epi32(own, known) : _mm256_min_epi32(own, known)));
}

MB_TARGET_AVX512 MB_KERNEL void mb_range_f16_avx512(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) {
    const size_t n = (size_t)count;
    if (run < 32) {
        mb_range_f16_avx2(src, count, run, least, most);
        return;
    }
    size_t whole = 0; /* eight short runs at a time, so that they share the steps that find one number in a vector */
    for (; run % 32 == 0 && run <= 512 && n - whole >= 8 * run; least += 8, most += 8) {
        __m512i low[8], high[8];
        for (unsigned k = 0; k < 8; k++, whole += (size_t)run) {
            low[k] = high[k] = mb_order_16_avx512(_mm512_loadu_si512(src + 2 * whole));
            for (size_t i = 32; i < run; i += 32) {
                const __m512i x = mb_order_16_avx512(_mm512_loadu_si512(src + 2 * (whole + i)));
                low[k] = _mm512_min_epi16(low[k], x), high[k] = _mm512_max_epi16(high[k], x);
            }
        }
        mb_widen_8_avx512(mb_fold_8_avx512(low, false), least, false), mb_widen_8_avx512(mb_fold_8_avx512(high, true), most, true);
    }
    for (size_t begin = whole, end; begin < n; begin = end, least++, most++) {
        end = n - begin < run ? n : begin + (size_t)run;
        if (end - begin < 32) {
            mb_range_f16_avx2(src + 2 * begin, end - begin, run, least, most);
            return;
        }
        __m512i low = mb_order_16_avx512(_mm512_loadu_si512(src + 2 * (end - 32))), high = low;
        for (size_t i = begin; i + 32 < end; i += 32) {
            const __m512i x = mb_order_16_avx512(_mm512_loadu_si512(src + 2 * i));
            low = _mm512_min_epi16(low, x), high = _mm512_max_epi16(high, x);
        }
        mb_widen_16_avx2(_mm256_min_epi16(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1)),
                         _mm256_max_epi16(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64(high, 1)), least, most);
    }
}

MB_TARGET_AVX512 MB_STEP __m512i mb_order_32_avx512(__m512i bits) { return _mm512_xor_si512(bits, _mm512_srli_epi32(_mm512_srai_epi32(bits, 31), 1)); }

MB_TARGET_AVX512 MB_KERNEL void mb_range_f32_avx512(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) {
    const size_t n = (size_t)count;
    if (run < 16) {
        mb_range_f32_loop_avx2(src, count, run, least, most);
        return;
    }
    for (size_t begin = 0, end; begin < n; begin = end, least++, most++) {
        end = n - begin < run ? n : begin + (size_t)run;
        if (end - begin < 16) {
            mb_range_f32_loop_avx2(src + 4 * begin, end - begin, run, least, most);
            return;
        }
        __m512i low = mb_order_32_avx512(_mm512_loadu_si512(src + 4 * (end - 16))), high = low;
        for (size_t i = begin; i + 16 < end; i += 16) {
            const __m512i x = mb_order_32_avx512(_mm512_loadu_si512(src + 4 * i));
            low = _mm512_min_epi32(low, x), high = _mm512_max_epi32(high, x);
        }
        mb_widen_range(mb_ordered_32(_mm512_reduce_min_epi32(low)), mb_ordered_32(_mm512_reduce_max_epi32(high)), least, most);
    }
}

#endif
#endif
