/* kernels/x86/quantize_levels.h: float16 elements to integers with AVX-512, where many share a scale: dense values are looked up.
 *
 * The elements of a block become one of at most 256 dense values, its levels. Level d is d * scale, rounded to float16. An
 * element lies between the level of floor(element / scale) and the next one, and a bound says above which elements the next
 * one is nearer. So the levels and the bounds of a block, computed once, replace the two candidates of quantize_steps.h, each
 * of which is rounded to float16 and compared, for every element. The results are the same, and so are the ties: where both
 * are as near, the one that element / scale rounds to. */
#ifndef MILBLOB_QUANTIZE_LEVELS_X86_H
#define MILBLOB_QUANTIZE_LEVELS_X86_H

#include "milblob/kernels/x86/quantize.h"

#ifdef MB_HAS_AVX2

enum { MB_LEVELS_RUN = 512 }; /* elements that are worth 128 levels */

/* The bounds between 16 levels and those after them. `next`: their numbers, of those after them.
 * Bounds are exact: the sum of two neighbours has 13 bits at most. Where the element that equals the bound becomes the next
 * level, the bound goes down a little: no other float16 is so near. */
MB_TARGET_AVX512 MB_STEP __m512 mb_level_bounds_avx512(__m512 values, __m512 after, __m512 next, __m512 inverse) {
    const __m512 middle = _mm512_mul_ps(_mm512_add_ps(values, after), _mm512_set1_ps(0.5f));
    const __m512 nearest = _mm512_roundscale_ps(_mm512_mul_ps(middle, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 little = _mm512_mul_ps(_mm512_abs_ps(middle), _mm512_set1_ps(0x1p-20f));
    return _mm512_mask_sub_ps(middle, _mm512_cmp_ps_mask(nearest, next, _CMP_EQ_OQ), middle, little);
}

/* The greatest magnitude. */
MB_TARGET_AVX512 MB_STEP __m512i mb_larger_avx512(__m512i largest, __m512 above) { return _mm512_castps_si512(_mm512_range_ps(_mm512_castsi512_ps(largest), above, 0xb)); }

/* -------------------------------------------------------------------------------------------------- at most 16 levels */

/* Level d is in lane d & 15, so that the lookup needs no difference. */
typedef struct mb_levels_16_avx512 {
    __m512 values, bounds, inverse;
    __m512i least, most; /* d */
    __m128i zero;        /* what makes an integer of d */
} mb_levels_16_avx512;

MB_TARGET_AVX512 MB_STEP void mb_levels_16_begin_avx512(mb_levels_16_avx512 *own, float scale, int32_t least, int32_t most, int32_t zero) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    own->least = _mm512_set1_epi32(least), own->most = _mm512_set1_epi32(most);
    const __m512i number = _mm512_add_epi32(own->least, _mm512_and_si512(_mm512_sub_epi32(lanes, own->least), _mm512_set1_epi32(15)));
    const __m512 d = _mm512_cvtepi32_ps(number), next = _mm512_add_ps(d, _mm512_set1_ps(1.0f));
    own->inverse = _mm512_set1_ps(1.0f / scale);
    own->values = mb_round_half_avx512(_mm512_mul_ps(d, _mm512_set1_ps(scale)));
    const __m512 after = _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(own->values), _mm512_castps_si512(own->values), 1));
    const __mmask16 is_last = _mm512_cmpge_epi32_mask(number, own->most);
    own->bounds = _mm512_mask_mov_ps(mb_level_bounds_avx512(own->values, after, next, own->inverse), is_last, _mm512_set1_ps(mb_float_of(0x7f800000u)));
    own->zero = _mm_set1_epi8((char)zero);
}

MB_TARGET_AVX512 MB_STEP void mb_levels_16_step_avx512(const mb_levels_16_avx512 *levels, mb_quantize_avx512 *own, uint8_t *dst, const uint8_t *src) {
    const __m512 x = mb_elements_avx512(src, 0xffff, true);
    const __m512i at = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x, levels->inverse), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const __m512i low = _mm512_min_epi32(_mm512_max_epi32(at, levels->least), levels->most);
    const __mmask16 is_next = _mm512_cmp_ps_mask(x, _mm512_permutexvar_ps(low, levels->bounds), _CMP_GT_OQ);
    const __m512i d = _mm512_mask_add_epi32(low, is_next, low, _mm512_set1_epi32(1));
    const __m512 above = _mm512_sub_ps(x, _mm512_permutexvar_ps(d, levels->values));
    own->largest = mb_larger_avx512(own->largest, above);
    mb_add_squares_avx512(own->squared, above), mb_add_squares_avx512(own->power, x);
    _mm_storeu_si128((__m128i *)(void *)dst, _mm_and_si128(_mm_add_epi8(_mm512_cvtepi32_epi8(d), levels->zero), own->mask));
}

/* -------------------------------------------------------------------------- at most 128 levels on both sides of zero */

/* Of magnitudes, whose levels are as those of negative elements: float16, whose bits compare as integers. */
typedef struct mb_levels_128_avx512 {
    __m512i values[4], bounds[4], most, zero;
    __m512 inverse;
    __m256i mask;
} mb_levels_128_avx512;

MB_TARGET_AVX512 MB_STEP void mb_levels_128_begin_avx512(mb_levels_128_avx512 *own, float scale, int32_t most, int32_t zero, unsigned nbits) {
    __m512 d = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), values = mb_round_half_avx512(_mm512_mul_ps(d, _mm512_set1_ps(scale)));
    own->inverse = _mm512_set1_ps(1.0f / scale);
    for (unsigned k = 0; k < 8; k++) {
        const __m512 further = _mm512_add_ps(d, _mm512_set1_ps(16.0f)), next = _mm512_add_ps(d, _mm512_set1_ps(1.0f)), beyond = mb_round_half_avx512(_mm512_mul_ps(further, _mm512_set1_ps(scale)));
        const __m512 after = _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(beyond), _mm512_castps_si512(values), 1));
        const __mmask16 is_last = _mm512_cmp_ps_mask(d, _mm512_set1_ps((float)most), _CMP_GE_OQ);
        const __m256i halves = _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i bounds = _mm256_mask_mov_epi16(_mm512_cvtps_ph(mb_level_bounds_avx512(values, after, next, own->inverse), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), is_last, _mm256_set1_epi16(0x7fff));
        own->values[k / 2] = k % 2 == 0 ? _mm512_castsi256_si512(halves) : _mm512_inserti64x4(own->values[k / 2], halves, 1);
        own->bounds[k / 2] = k % 2 == 0 ? _mm512_castsi256_si512(bounds) : _mm512_inserti64x4(own->bounds[k / 2], bounds, 1);
        d = further, values = beyond;
    }
    own->most = _mm512_set1_epi16((short)most), own->zero = _mm512_set1_epi16((short)zero), own->mask = _mm256_set1_epi8((char)((1 << nbits) - 1));
}

/* Elements of a table of 128, for numbers below that. */
MB_TARGET_AVX512 MB_STEP __m512i mb_lookup_128_avx512(const __m512i *table, __m512i number) {
    const __m512i low = _mm512_permutex2var_epi16(table[0], number, table[1]), high = _mm512_permutex2var_epi16(table[2], number, table[3]);
    return _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(number, _mm512_set1_epi16(64)), high);
}

MB_TARGET_AVX512 MB_STEP void mb_levels_128_step_avx512(const mb_levels_128_avx512 *levels, mb_quantize_avx512 *own, uint8_t *dst, const uint8_t *src) {
    const __m512i bits = _mm512_loadu_si512(src), size = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    const __m512 x = _mm512_cvtph_ps(_mm512_castsi512_si256(size)), y = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(size, 1));
    const __m512i mixed = _mm512_packs_epi32(_mm512_cvttps_epi32(_mm512_mul_ps(x, levels->inverse)), _mm512_cvttps_epi32(_mm512_mul_ps(y, levels->inverse)));
    const __m512i at = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), mixed);
    const __m512i low = _mm512_min_epu16(at, levels->most); /* what overflowed is negative: greater than any */
    const __mmask32 is_next = _mm512_cmpgt_epi16_mask(size, mb_lookup_128_avx512(levels->bounds, low));
    const __m512i d = _mm512_mask_add_epi16(low, is_next, low, _mm512_set1_epi16(1)), values = mb_lookup_128_avx512(levels->values, d);
    const __m512 above = _mm512_sub_ps(x, _mm512_cvtph_ps(_mm512_castsi512_si256(values))), beyond = _mm512_sub_ps(y, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(values, 1)));
    own->largest = mb_larger_avx512(mb_larger_avx512(own->largest, above), beyond);
    mb_add_squares_avx512(own->squared, above), mb_add_squares_avx512(own->squared, beyond);
    mb_add_squares_avx512(own->power, x), mb_add_squares_avx512(own->power, y);
    const __m512i q = _mm512_add_epi16(_mm512_mask_sub_epi16(d, _mm512_movepi16_mask(bits), _mm512_setzero_si512(), d), levels->zero);
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_and_si256(_mm512_cvtepi16_epi8(q), levels->mask));
}

/* -------------------------------------------------------------------------------------------------------------- kernel */

/* What levels do not pay for, or do not hold, the general code does: short runs, distances, scales that no float16 has. */
MB_TARGET_AVX512 MB_KERNEL void mb_quantize_f16_levels_avx512(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) {
    const size_t n = (size_t)count;
    const bool is_few = to->most - to->least < 16;
    if (off != NULL || run < (is_few ? 32 : MB_LEVELS_RUN)) {
        mb_quantize_f16_avx512(dst, off, src, count, scale, zero, run, to, sums);
        return;
    }
    mb_quantize_avx512 own;
    mb_quantize_begin_avx512(&own, sums);
    own.mask = _mm_set1_epi8((char)((1 << to->nbits) - 1));
    for (size_t begin = 0, end; begin < n; begin = end, scale++, zero++) {
        end = n - begin < run ? n : begin + (size_t)run;
        const int32_t z = (int32_t)*zero, least = to->least - z, most = to->most - z;
        size_t i = begin;
        if (!(*scale >= 0x1p-24f && *scale <= 65504.0f) || (!is_few && (least != -most || most > 127))) {
            mb_quantize_end_avx512(&own, sums);
            mb_quantize_f16_avx512(dst + begin, NULL, src + 2 * begin, end - begin, scale, zero, end - begin, to, sums);
            mb_quantize_begin_avx512(&own, sums);
            continue;
        }
        if (is_few) {
            mb_levels_16_avx512 levels;
            mb_levels_16_begin_avx512(&levels, *scale, least, most, z);
            for (; i + 16 <= end; i += 16) mb_levels_16_step_avx512(&levels, &own, dst + i, src + 2 * i);
        } else if (end - begin >= 32) {
            mb_levels_128_avx512 levels;
            mb_levels_128_begin_avx512(&levels, *scale, most, z, to->nbits);
            for (; i + 32 <= end; i += 32) mb_levels_128_step_avx512(&levels, &own, dst + i, src + 2 * i);
        }
        if (i == end) continue;
        mb_quantize_scale_avx512(&own, to, _mm512_set1_ps(*scale), _mm512_set1_ps(*zero));
        for (; i < end; i += 16) {
            const __mmask16 lanes = (__mmask16)(end - i < 16 ? (1u << (end - i)) - 1 : 0xffffu);
            mb_quantize_16_avx512(&own, dst + i, NULL, mb_elements_avx512(src + 2 * i, lanes, true), lanes, true);
        }
    }
    mb_quantize_end_avx512(&own, sums);
}

#endif
#endif
