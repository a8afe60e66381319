/* kernels/x86/quantize_levels.h: float16 elements to integers with AVX-512, where many share a scale: dense values are looked up.
 *
 * The magnitudes of the elements of a block become one of at most 256 dense values, its levels. Level d is d * scale, rounded
 * to float16. A magnitude lies between the level of floor(magnitude / scale) and the next one; the next one is nearer
 * to magnitudes above a bound. So the levels and the bounds of a block, computed once, replace the two candidates of
 * quantize_steps.h, which are rounded to float16 and compared for every element. The results are the same, and so are
 * the ties: where both are as near, the one that magnitude / scale rounds to. */
#ifndef MILBLOB_QUANTIZE_LEVELS_X86_H
#define MILBLOB_QUANTIZE_LEVELS_X86_H

#include "milblob/kernels/x86/quantize.h"

#ifdef MB_HAS_AVX2

enum { MB_LEVELS_RUN = 512, MB_FEW_LEVELS_RUN = 24 }; /* elements of a block that are worth levels, more than 16 and at most 16 */

/* Levels and bounds: float16, whose bits compare as integers, in 1, 4 or 8 registers. */
typedef struct mb_levels_avx512 {
    __m512i values[8], bounds[8];
} mb_levels_avx512;

/* The constants of a block. */
typedef struct mb_leveled_avx512 {
    __m512 inverse;
    __m512i most, most_below; /* the greatest d of positive and of negative elements */
    __m512i zero;
    __m256i mask;
} mb_leveled_avx512;

MB_TARGET_AVX512 MB_STEP __m512i mb_lanes_16_avx512(void) {
    const __m256i low = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_add_epi16(low, _mm256_set1_epi16(16)), 1);
}

/* Sixteen levels, as float32. */
MB_TARGET_AVX512 MB_STEP __m512 mb_level_values_avx512(__m512 d, __m512 scale) { return mb_round_half_avx512(_mm512_mul_ps(d, scale)); }

/* The bounds between levels and those after them, d + 1.
 * Bounds are exact: the sum of two neighbours has 13 bits at most. Where the magnitude that equals the bound becomes the next
 * level, the bound goes down a little: no float16 is as near, so rounding to zero then gives the one before it. */
MB_TARGET_AVX512 MB_STEP __m256i mb_level_bounds_avx512(__m512 values, __m512 after, __m512 d, __m512 inverse) {
    const __m512 middle = _mm512_mul_ps(_mm512_add_ps(values, after), _mm512_set1_ps(0.5f));
    const __m512 nearest = _mm512_roundscale_ps(_mm512_mul_ps(middle, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 is_up = _mm512_cmp_ps_mask(nearest, d, _CMP_GT_OQ);
    return _mm512_cvtps_ph(_mm512_mask_mul_ps(middle, is_up, middle, _mm512_set1_ps(1 - 0x1p-20f)), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

MB_TARGET_AVX512 MB_STEP __m256i mb_halves_avx512(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
MB_TARGET_AVX512 MB_STEP __m512i mb_joined_avx512(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

/* 32 levels for each of `registers` registers. */
MB_TARGET_AVX512 MB_STEP void mb_levels_begin_avx512(mb_levels_avx512 *own, const unsigned registers, __m512 scale, __m512 inverse) {
    __m512 d = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), values = mb_level_values_avx512(d, scale);
    for (unsigned k = 0; k < registers; k++) {
        __m256i halves[2], bounds[2];
        for (unsigned side = 0; side < 2; side++) {
            const __m512 further = _mm512_add_ps(d, _mm512_set1_ps(16.0f)), beyond = mb_level_values_avx512(further, scale);
            const __m512 after = _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(beyond), _mm512_castps_si512(values), 1));
            halves[side] = mb_halves_avx512(values), bounds[side] = mb_level_bounds_avx512(values, after, d, inverse);
            d = further, values = beyond;
        }
        own->values[k] = mb_joined_avx512(halves[0], halves[1]), own->bounds[k] = mb_joined_avx512(bounds[0], bounds[1]);
    }
}

/* Levels 0 to 7 of four blocks, or 0 to 15 of two, with scales and inverses in the lowest lanes. The bound after the last one
 * is not used. */
MB_TARGET_AVX512 MB_STEP void mb_levels_few_avx512(__m512i *values, __m512i *bounds, const unsigned count, __m512 scale, __m512 inverse) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 d = _mm512_cvtepi32_ps(_mm512_and_si512(lanes, _mm512_set1_epi32((int)count - 1)));
    __m256i halves[2], between[2];
    for (unsigned side = 0; side < 2; side++) {
        const __m512i block = count == 8 ? _mm512_add_epi32(_mm512_srli_epi32(lanes, 3), _mm512_set1_epi32(2 * (int)side)) : _mm512_set1_epi32((int)side);
        const __m512 level = mb_level_values_avx512(d, _mm512_permutexvar_ps(block, scale));
        const __m512 after = _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(level), _mm512_castps_si512(level), 1));
        halves[side] = mb_halves_avx512(level), between[side] = mb_level_bounds_avx512(level, after, d, _mm512_permutexvar_ps(block, inverse));
    }
    *values = mb_joined_avx512(halves[0], halves[1]), *bounds = mb_joined_avx512(between[0], between[1]);
}

/* Entries of 32 times as many as registers, for numbers below that. */
MB_TARGET_AVX512 MB_STEP __m512i mb_level_lookup_avx512(const __m512i *table, const unsigned registers, __m512i d) {
    if (registers == 1) return _mm512_permutexvar_epi16(d, table[0]);
    const __mmask32 odd = _mm512_test_epi16_mask(d, _mm512_set1_epi16(64));
    const __m512i low = _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(table[0], d, table[1]), odd, _mm512_permutex2var_epi16(table[2], d, table[3]));
    if (registers == 4) return low;
    const __m512i high = _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(table[4], d, table[5]), odd, _mm512_permutex2var_epi16(table[6], d, table[7]));
    return _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(d, _mm512_set1_epi16(128)), high);
}

/* The greatest magnitude. */
MB_TARGET_AVX512 MB_STEP __m512i mb_larger_avx512(__m512i largest, __m512 above) { return _mm512_castps_si512(_mm512_range_ps(_mm512_castsi512_ps(largest), above, 0xb)); }

/* Quantize 32 elements; only those of `lanes` exist. The others are 0, and so is their distance. */
MB_TARGET_AVX512 MB_STEP void mb_quantize_32_avx512(mb_quantize_avx512 *own, const mb_levels_avx512 *levels, const unsigned registers, const mb_leveled_avx512 *block, uint8_t *dst, const uint8_t *src, const __mmask32 lanes) {
    const __m512i bits = lanes == 0xffffffff ? _mm512_loadu_si512(src) : _mm512_maskz_loadu_epi16(lanes, src);
    const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    const __mmask32 is_negative = _mm512_movepi16_mask(bits);
    const __m512 x = mb_elements_avx512(src, (__mmask16)lanes, true), y = mb_elements_avx512(src + 32, (__mmask16)(lanes >> 16), true);
    const __m512i mixed = _mm512_packs_epi32(_mm512_cvttps_epi32(_mm512_mul_ps(_mm512_abs_ps(x), block->inverse)), _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_abs_ps(y), block->inverse)));
    const __m512i at = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), mixed), most = _mm512_mask_mov_epi16(block->most, is_negative, block->most_below);
    const __m512i low = _mm512_min_epu16(at, most); /* where it overflowed it is negative: greater than any */
    const __mmask32 is_next = _mm512_cmpgt_epi16_mask(size, mb_level_lookup_avx512(levels->bounds, registers, low));
    const __m512i d = _mm512_min_epu16(_mm512_mask_add_epi16(low, is_next, low, _mm512_set1_epi16(1)), most), values = mb_level_lookup_avx512(levels->values, registers, d);
    const __m512 above = _mm512_sub_ps(_mm512_abs_ps(x), _mm512_cvtph_ps(_mm512_castsi512_si256(values))), beyond = _mm512_sub_ps(_mm512_abs_ps(y), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(values, 1)));
    own->largest = mb_larger_avx512(mb_larger_avx512(own->largest, above), beyond);
    mb_add_squares_avx512(own->squared, above), mb_add_squares_avx512(own->squared, beyond);
    mb_add_squares_avx512(own->power, x), mb_add_squares_avx512(own->power, y);
    const __m512i q = _mm512_add_epi16(_mm512_mask_sub_epi16(d, is_negative, _mm512_setzero_si512(), d), block->zero);
    const __m256i bytes = _mm256_and_si256(_mm512_cvtepi16_epi8(q), block->mask);
    if (lanes == 0xffffffff) _mm256_storeu_si256((__m256i *)(void *)dst, bytes);
    else _mm256_mask_storeu_epi8(dst, lanes, bytes);
}

MB_TARGET_AVX512 MB_STEP void mb_quantize_run_avx512(mb_quantize_avx512 *own, const mb_levels_avx512 *levels, const unsigned registers, const mb_leveled_avx512 *block, uint8_t *dst, const uint8_t *src, size_t count) {
    size_t i = 0;
    for (; i + 32 <= count; i += 32) mb_quantize_32_avx512(own, levels, registers, block, dst + i, src + 2 * i, 0xffffffff);
    if (i == count) return;
    const __mmask32 lanes = (__mmask32)((1ull << (count - i)) - 1);
    mb_quantize_32_avx512(own, levels, registers, block, dst + i, src + 2 * i, lanes);
}

/* Whether levels can give the integers of elements: on both sides of zero, of a scale that float16 has. */
MB_STEP bool mb_has_levels(float scale, int32_t least, int32_t most, int32_t greatest) { return scale >= 0x1p-24f && scale <= 65504.0f && least <= 0 && most >= 0 && least >= -greatest && most <= greatest; }

/* What levels do not pay for, or do not hold, the general code does: short runs, and where distances are asked for. */
MB_TARGET_AVX512 MB_KERNEL void mb_quantize_f16_levels_avx512(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) {
    const size_t n = (size_t)count, few = to->most - to->least > 15 ? 0 : to->is_linear ? 16 : 8, group = few == 0 ? 1 : 32 / few;
    if (off != NULL || run < (few == 0 ? MB_LEVELS_RUN : MB_FEW_LEVELS_RUN)) {
        mb_quantize_f16_avx512(dst, off, src, count, scale, zero, run, to, sums);
        return;
    }
    mb_quantize_avx512 own;
    mb_quantize_begin_avx512(&own, sums);
    mb_leveled_avx512 block;
    block.mask = _mm256_set1_epi8((char)((1 << to->nbits) - 1));
    for (size_t begin = 0, end, left = n == 0 ? 0 : (n - 1) / (size_t)run + 1, blocks; left > 0; left -= blocks, scale += blocks, zero += blocks) {
        blocks = left < group ? left : group;
        float inverses[4];
        __m512i values = _mm512_setzero_si512(), bounds = values;
        mb_levels_avx512 levels;
        const __m128 scales = _mm_maskz_loadu_ps((__mmask8)((1u << blocks) - 1), scale), inverse = _mm_div_ps(_mm_set1_ps(1.0f), scales);
        _mm_storeu_ps(inverses, inverse);
        if (few == 8) mb_levels_few_avx512(&values, &bounds, 8, _mm512_castps128_ps512(scales), _mm512_castps128_ps512(inverse));
        if (few == 16) mb_levels_few_avx512(&values, &bounds, 16, _mm512_castps128_ps512(scales), _mm512_castps128_ps512(inverse));
        for (size_t b = 0; b < blocks; b++, begin = end) {
            end = n - begin < run ? n : begin + (size_t)run;
            const int32_t z = (int32_t)zero[b], least = to->least - z, most = to->most - z;
            if (!mb_has_levels(scale[b], least, most, few == 0 ? 255 : (int32_t)few - 1)) {
                mb_quantize_end_avx512(&own, sums);
                mb_quantize_f16_avx512(dst + begin, NULL, src + 2 * begin, end - begin, scale + b, zero + b, end - begin, to, sums);
                mb_quantize_begin_avx512(&own, sums);
                continue;
            }
            block.inverse = _mm512_set1_ps(inverses[b]), block.zero = _mm512_set1_epi16((short)z);
            block.most = _mm512_set1_epi16((short)most), block.most_below = _mm512_set1_epi16((short)-least);
            if (few != 0) {
                const __m512i at = _mm512_add_epi16(mb_lanes_16_avx512(), _mm512_set1_epi16((short)(b * few)));
                levels.values[0] = _mm512_permutexvar_epi16(at, values), levels.bounds[0] = _mm512_permutexvar_epi16(at, bounds);
                mb_quantize_run_avx512(&own, &levels, 1, &block, dst + begin, src + 2 * begin, end - begin);
            } else if (most <= 127 && least >= -127) {
                mb_levels_begin_avx512(&levels, 4, _mm512_set1_ps(scale[b]), block.inverse);
                mb_quantize_run_avx512(&own, &levels, 4, &block, dst + begin, src + 2 * begin, end - begin);
            } else {
                mb_levels_begin_avx512(&levels, 8, _mm512_set1_ps(scale[b]), block.inverse);
                mb_quantize_run_avx512(&own, &levels, 8, &block, dst + begin, src + 2 * begin, end - begin);
            }
        }
    }
    mb_quantize_end_avx512(&own, sums);
}

#endif
#endif
