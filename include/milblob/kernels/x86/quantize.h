/* kernels/x86/quantize.h: the steps of quantize_steps.h for AVX2 with FMA and F16C, and for AVX-512.
 *
 * Integers remain floats until they are stored: clipping to whole numbers and rounding may change places, which saves
 * conversions. Two rows are processed together, step by step: a CPU does not look far enough ahead to begin the next row before one ends.
 *
 * The dense value of q, rounded to float16, takes two instructions (Dekker 1971): q * 8193 * scale, rounded to float32, less
 * q * 8192 * scale. 8193 * scale is exact for a scale of 11 bits, and 8193 * v = 2^13 * v + v, whose first part is a multiple of the
 * last place of v in float16: so the rounding is that of v to 11 bits, ties to even. Below 2^-14 nothing is rounded, because a
 * product is a multiple of 2^-24; products that would become infinite are excluded by the limits of q.
 *
 * Squares are compared instead of distances: in float32 numbers that differ have squares that differ, and the root of a square is the number. */
#ifndef MILBLOB_QUANTIZE_X86_H
#define MILBLOB_QUANTIZE_X86_H

#include "milblob/kernels/quantize_steps.h"
#include "milblob/kernels/x86/float.h"

#ifdef MB_HAS_AVX2

MB_DEFINE_RANGE(mb_range_f32_loop_avx2, MB_TARGET_AVX2, 32)
MB_DEFINE_RANGE(mb_range_f16_loop_avx2, MB_TARGET_AVX2, 16)

/* What runs, or elements with scales of their own, need. least, most: less the zero, the latter by so little that it rounds to the
 * greatest integer; zero: added to an integer, so that the lowest bits of the sum are those to store; fine: 0 for float32. */
typedef struct mb_constants {
    float inverse[MB_LANES], coarse[MB_LANES], fine[MB_LANES], least[MB_LANES], most[MB_LANES], zero[MB_LANES];
} mb_constants;

/* Of up to MB_LANES scales; `inverse` has the scales of float32, which are divided by. */
MB_TARGET_AVX2 MB_STEP void mb_constants_avx2(mb_constants *own, const mb_integers *to, const float *scale, const float *zero, size_t count, const bool is_f16) {
    const __m256 least = _mm256_set1_ps((float)to->least), most = _mm256_set1_ps((float)to->most), sign = _mm256_set1_ps(-0.0f);
    float scales[MB_LANES] = {0}, zeros[MB_LANES] = {0};
    if (count < MB_LANES) memcpy(scales, scale, count * sizeof *scales), memcpy(zeros, zero, count * sizeof *zeros), scale = scales, zero = zeros;
    for (unsigned k = 0; k < MB_LANES; k += 8) {
        const __m256 s = _mm256_loadu_ps(scale + k), z = _mm256_loadu_ps(zero + k), inverse = is_f16 ? _mm256_div_ps(_mm256_set1_ps(1), s) : s;
        __m256 low = _mm256_sub_ps(least, z), high = _mm256_sub_ps(most, z);
        if (is_f16) { /* products are multiples of 1/4 where they may be 65520 and more; 1 is for numbers that cannot be scales */
            const __m256 top = _mm256_max_ps(_mm256_floor_ps(_mm256_mul_ps(_mm256_set1_ps(65519.875f), inverse)), _mm256_set1_ps(1));
            low = _mm256_max_ps(low, _mm256_xor_ps(top, sign)), high = _mm256_min_ps(high, top);
        }
        _mm256_storeu_ps(own->inverse + k, inverse), _mm256_storeu_ps(own->zero + k, _mm256_add_ps(z, _mm256_set1_ps(12582912.0f)));
        _mm256_storeu_ps(own->coarse + k, is_f16 ? _mm256_mul_ps(s, _mm256_set1_ps(8193)) : s);
        _mm256_storeu_ps(own->fine + k, is_f16 ? _mm256_mul_ps(s, _mm256_set1_ps(8192)) : _mm256_setzero_ps());
        _mm256_storeu_ps(own->least + k, low), _mm256_storeu_ps(own->most + k, _mm256_sub_ps(high, _mm256_set1_ps(0x1p-16f)));
    }
}

/* As an mb_quantize_kernel, by the steps of a tier. */
#define MB_DEFINE_QUANTIZE_ROWS(name, target, tier, is_f16, nbytes) \
    target MB_STEP void name##_runs(uint8_t *dst, float *off, const uint8_t *src, const size_t count, const float *scale, const float *zero, const size_t run, const mb_integers *to, mb_sums *sums, const size_t step) { \
        mb_constants constants; \
        mb_total_##tier total; \
        mb_total_begin_##tier(&total, to, sums, is_f16); \
        for (size_t at = 0, some; at < count; scale += some, zero += some) { \
            const size_t left = step ? count - at : (count - at - 1) / run + 1; \
            some = left < MB_LANES ? left : (size_t)MB_LANES; \
            mb_constants_avx2(&constants, to, scale, zero, some, is_f16); \
            for (size_t k = 0, end; k < (step ? 1 : some); k++) { \
                const mb_run_##tier own = mb_run_begin_##tier(&constants, k, step); \
                end = step ? at + some : count - at < run ? count : at + run; \
                for (; off == NULL && total.rows % 2 == 0 && at + 2 * MB_LANES <= end; at += 2 * MB_LANES) mb_rows_##tier(&total, &own, dst + at, NULL, src + nbytes * at, 2, MB_LANES, sums, step, is_f16); \
                for (size_t n; at < end; at += n) { \
                    n = end - at < MB_LANES ? end - at : (size_t)MB_LANES; \
                    mb_rows_##tier(&total, &own, dst + at, off == NULL ? NULL : off + at, src + nbytes * at, 1, n, sums, step, is_f16); \
                } \
            } \
        } \
        mb_total_end_##tier(&total, sums, is_f16); \
    } \
    target MB_KERNEL void name(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) { \
        if (run == 1) name##_runs(dst, off, src, (size_t)count, scale, zero, 1, to, sums, 1); \
        else name##_runs(dst, off, src, (size_t)count, scale, zero, (size_t)run, to, sums, 0); \
        mb_quantize_nothing(dst, src, (size_t)count, scale, (size_t)run, is_f16); \
    }

/* ---------------------------------------------------------------------------------------------------------------- AVX2 */

/* `squared` and `power` of float16, which are added to `sums` after MB_ROWS rows; the others of float32. */
typedef struct mb_total_avx2 {
    __m256 squared[2], power[2];
    __m256d squared_wide[4], power_wide[4];
    __m256i largest, mask; /* of float16 its square */
    unsigned rows;
} mb_total_avx2;

/* Constants of the first and of the last eight elements of a row; without `step` the first are those of all. */
typedef struct mb_run_avx2 {
    __m256 inverse[2], coarse[2], fine[2], least[2], most[2], zero[2];
} mb_run_avx2;

MB_TARGET_AVX2 MB_STEP __m256 mb_size_avx2(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
MB_TARGET_AVX2 MB_STEP __m256 mb_round_half_avx2(__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

MB_TARGET_AVX2 MB_STEP void mb_total_begin_avx2(mb_total_avx2 *own, const mb_integers *to, const mb_sums *sums, const bool is_f16) {
    for (unsigned k = 0; k < 2; k++) own->squared[k] = own->power[k] = _mm256_setzero_ps();
    for (unsigned k = 0; !is_f16 && k < 4; k++) own->squared_wide[k] = _mm256_loadu_pd(sums->squared + 4 * k), own->power_wide[k] = _mm256_loadu_pd(sums->power + 4 * k);
    own->largest = _mm256_setzero_si256(), own->mask = _mm256_set1_epi32((1 << to->nbits) - 1), own->rows = 0;
}

MB_TARGET_AVX2 MB_STEP void mb_add_8_avx2(double *sums, __m256 x) {
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_cvtps_pd(_mm256_castps256_ps128(x))));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))));
}

MB_TARGET_AVX2 MB_STEP void mb_rows_end_avx2(mb_total_avx2 *own, mb_sums *sums) {
    for (unsigned k = 0; k < 2; k++) {
        mb_add_8_avx2(sums->squared + 8 * k, own->squared[k]), mb_add_8_avx2(sums->power + 8 * k, own->power[k]);
        own->squared[k] = own->power[k] = _mm256_setzero_ps();
    }
    own->rows = 0;
}

MB_TARGET_AVX2 MB_STEP void mb_total_end_avx2(mb_total_avx2 *own, mb_sums *sums, const bool is_f16) {
    uint32_t each[8];
    _mm256_storeu_ps((float *)(void *)each, is_f16 ? _mm256_sqrt_ps(_mm256_castsi256_ps(own->largest)) : _mm256_castsi256_ps(own->largest));
    for (unsigned k = 0; k < 8; k++) sums->largest = each[k] > sums->largest ? each[k] : sums->largest;
    for (unsigned k = 0; !is_f16 && k < 4; k++) _mm256_storeu_pd(sums->squared + 4 * k, own->squared_wide[k]), _mm256_storeu_pd(sums->power + 4 * k, own->power_wide[k]);
    if (is_f16) mb_rows_end_avx2(own, sums);
}

MB_TARGET_AVX2 MB_STEP mb_run_avx2 mb_run_begin_avx2(const mb_constants *from, size_t index, const size_t step) {
    mb_run_avx2 own;
    for (unsigned k = 0; k <= step; k++) {
#define MB_CONSTANT(name) own.name[k] = step ? _mm256_loadu_ps(from->name + 8 * k) : _mm256_broadcast_ss(from->name + index)
        MB_CONSTANT(inverse), MB_CONSTANT(coarse), MB_CONSTANT(fine), MB_CONSTANT(least), MB_CONSTANT(most), MB_CONSTANT(zero);
#undef MB_CONSTANT
    }
    return own;
}

/* How far elements are from the dense values of q; of one sign or the other. */
MB_TARGET_FMA MB_STEP __m256 mb_off_avx2(const mb_run_avx2 *own, const size_t k, __m256 x, __m256 q) {
    return _mm256_sub_ps(x, _mm256_fnmadd_ps(q, own->fine[k], _mm256_mul_ps(q, own->coarse[k])));
}

MB_TARGET_FMA MB_STEP void mb_add_square_avx2(__m256d *sums, __m256 x) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sums[0] = _mm256_fmadd_pd(low, low, sums[0]), sums[1] = _mm256_fmadd_pd(high, high, sums[1]); /* the squares are exact */
}

/* Quantize the first `count` elements of a row, or two whole rows. */
MB_TARGET_FMA MB_STEP void mb_rows_avx2(mb_total_avx2 *total, const mb_run_avx2 *own, uint8_t *dst, float *off, const uint8_t *src, const unsigned rows, const size_t count, mb_sums *sums, const size_t step, const bool is_f16) {
    uint8_t elements[4 * MB_LANES], bytes[MB_LANES];
    float distances[MB_LANES];
    __m256 x[4], place[4], q[4], far[4], other[4], beyond[4];
    __m256i words[4];
    if (count < MB_LANES) memset(elements, 0, sizeof elements), memcpy(elements, src, (is_f16 ? 2 : 4) * count), src = elements;
    for (unsigned k = 0; k < 2 * rows; k++) {
        x[k] = is_f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 16 * k))) : _mm256_loadu_ps((const float *)(const void *)(src + 32 * k));
        place[k] = is_f16 ? _mm256_mul_ps(x[k], own->inverse[k % 2 * step]) : _mm256_div_ps(x[k], own->inverse[k % 2 * step]);
        place[k] = _mm256_max_ps(_mm256_min_ps(place[k], own->most[k % 2 * step]), own->least[k % 2 * step]); /* NaN: the most */
    }
    for (unsigned k = 0; k < 2 * rows; k++) q[k] = _mm256_round_ps(place[k], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), far[k] = mb_off_avx2(own, k % 2 * step, x[k], q[k]);
    for (unsigned k = 0; is_f16 && k < 2 * rows; k++) { /* the integer on the other side; not beyond the least or the most, because places are not */
        other[k] = _mm256_sub_ps(_mm256_fmadd_ps(_mm256_floor_ps(place[k]), _mm256_set1_ps(2), _mm256_set1_ps(1)), q[k]);
        beyond[k] = mb_off_avx2(own, k % 2 * step, x[k], other[k]);
    }
    for (unsigned k = 0; k < 2 * rows; k++) {
        const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count - 8 * (int)k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256 square = is_f16 ? _mm256_mul_ps(far[k], far[k]) : mb_size_avx2(far[k]);
        if (is_f16) {
            const __m256 further = _mm256_mul_ps(beyond[k], beyond[k]), is_nearer = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_castps_si256(square), _mm256_castps_si256(further)));
            q[k] = _mm256_blendv_ps(q[k], other[k], is_nearer), square = _mm256_castsi256_ps(_mm256_min_epi32(_mm256_castps_si256(square), _mm256_castps_si256(further)));
            if (off != NULL) far[k] = _mm256_blendv_ps(far[k], beyond[k], is_nearer);
        }
        if (count < MB_LANES) square = _mm256_and_ps(square, _mm256_castsi256_ps(lanes));
        total->largest = _mm256_max_epi32(total->largest, _mm256_castps_si256(square));
        if (is_f16) total->squared[k % 2] = _mm256_add_ps(total->squared[k % 2], square), total->power[k % 2] = _mm256_fmadd_ps(x[k], x[k], total->power[k % 2]); /* this square is exact */
        else mb_add_square_avx2(total->squared_wide + k % 2 * 2, square), mb_add_square_avx2(total->power_wide + k % 2 * 2, x[k]);
        if (off != NULL) _mm256_storeu_ps(count < MB_LANES ? distances + 8 * k : off + 8 * k, mb_size_avx2(far[k]));
        words[k] = _mm256_and_si256(_mm256_castps_si256(_mm256_add_ps(q[k], own->zero[k % 2 * step])), total->mask);
    }
    const __m256i first = _mm256_packus_epi32(words[0], words[1]), both = _mm256_packus_epi16(first, rows == 2 ? _mm256_packus_epi32(words[2], words[3]) : first);
    const __m256i found = _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    if (rows == 2) _mm256_storeu_si256((__m256i *)(void *)dst, found);
    else _mm_storeu_si128((__m128i *)(void *)(count < MB_LANES ? bytes : dst), _mm256_castsi256_si128(found));
    if (count < MB_LANES) memcpy(dst, bytes, count);
    if (count < MB_LANES && off != NULL) memcpy(off, distances, count * sizeof *off);
    total->rows += rows;
    if (is_f16 && total->rows == MB_ROWS) mb_rows_end_avx2(total, sums);
}

MB_DEFINE_QUANTIZE_ROWS(mb_quantize_f32_avx2, MB_TARGET_FMA, avx2, false, 4)
MB_DEFINE_QUANTIZE_ROWS(mb_quantize_f16_avx2, MB_TARGET_FMA, avx2, true, 2)

/* -------------------------------------------------------------------------------------------------------------- AVX-512 */

/* As with AVX2. */
typedef struct mb_total_avx512 {
    __m512 squared, power;
    __m512d squared_wide[2], power_wide[2];
    __m512 largest;
    __m512i mask;
    unsigned rows;
} mb_total_avx512;

typedef struct mb_run_avx512 {
    __m512 inverse, coarse, fine, least, most, zero;
} mb_run_avx512;

MB_TARGET_AVX512 MB_STEP void mb_add_squares_avx512(__m512d *sums, __m512 x) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sums[0] = _mm512_fmadd_pd(low, low, sums[0]), sums[1] = _mm512_fmadd_pd(high, high, sums[1]);
}

MB_TARGET_AVX512 MB_STEP void mb_total_begin_avx512(mb_total_avx512 *own, const mb_integers *to, const mb_sums *sums, const bool is_f16) {
    own->squared = own->power = _mm512_setzero_ps();
    for (unsigned k = 0; !is_f16 && k < 2; k++) own->squared_wide[k] = _mm512_loadu_pd(sums->squared + 8 * k), own->power_wide[k] = _mm512_loadu_pd(sums->power + 8 * k);
    own->largest = _mm512_setzero_ps(), own->mask = _mm512_set1_epi32((1 << to->nbits) - 1), own->rows = 0;
}

MB_TARGET_AVX512 MB_STEP void mb_rows_end_avx512(mb_total_avx512 *own, mb_sums *sums) {
    mb_add_8_avx2(sums->squared, _mm512_castps512_ps256(own->squared)), mb_add_8_avx2(sums->squared + 8, _mm512_extractf32x8_ps(own->squared, 1));
    mb_add_8_avx2(sums->power, _mm512_castps512_ps256(own->power)), mb_add_8_avx2(sums->power + 8, _mm512_extractf32x8_ps(own->power, 1));
    own->squared = own->power = _mm512_setzero_ps(), own->rows = 0;
}

MB_TARGET_AVX512 MB_STEP void mb_total_end_avx512(mb_total_avx512 *own, mb_sums *sums, const bool is_f16) {
    const uint32_t largest = mb_bits_of(_mm512_reduce_max_ps(is_f16 ? _mm512_sqrt_ps(own->largest) : own->largest));
    sums->largest = largest > sums->largest ? largest : sums->largest;
    for (unsigned k = 0; !is_f16 && k < 2; k++) _mm512_storeu_pd(sums->squared + 8 * k, own->squared_wide[k]), _mm512_storeu_pd(sums->power + 8 * k, own->power_wide[k]);
    if (is_f16) mb_rows_end_avx512(own, sums);
}

MB_TARGET_AVX512 MB_STEP mb_run_avx512 mb_run_begin_avx512(const mb_constants *from, size_t index, const size_t step) {
#define MB_CONSTANT(name) step ? _mm512_loadu_ps(from->name) : _mm512_set1_ps(from->name[index])
    const mb_run_avx512 own = {MB_CONSTANT(inverse), MB_CONSTANT(coarse), MB_CONSTANT(fine), MB_CONSTANT(least), MB_CONSTANT(most), MB_CONSTANT(zero)};
    return own;
#undef MB_CONSTANT
}

MB_TARGET_AVX512 MB_STEP __m512 mb_off_avx512(const mb_run_avx512 *own, __m512 x, __m512 q) {
    return _mm512_sub_ps(x, _mm512_fnmadd_ps(q, own->fine, _mm512_mul_ps(q, own->coarse)));
}

MB_TARGET_AVX512 MB_STEP void mb_rows_avx512(mb_total_avx512 *total, const mb_run_avx512 *own, uint8_t *dst, float *off, const uint8_t *src, const unsigned rows, const size_t count, mb_sums *sums, const size_t step, const bool is_f16) {
    const __mmask16 lanes = (__mmask16)((1u << count) - 1);
    __m512 x[2], place[2], q[2], far[2], other[2], beyond[2];
    (void)step;
    for (unsigned k = 0; k < rows; k++) {
        if (count == MB_LANES) x[k] = is_f16 ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(src + 32 * k))) : _mm512_loadu_ps(src + 64 * k);
        else x[k] = is_f16 ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, src)) : _mm512_maskz_loadu_ps(lanes, src);
        place[k] = _mm512_max_ps(_mm512_min_ps(is_f16 ? _mm512_mul_ps(x[k], own->inverse) : _mm512_div_ps(x[k], own->inverse), own->most), own->least);
    }
    for (unsigned k = 0; k < rows; k++) q[k] = _mm512_roundscale_ps(place[k], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), far[k] = mb_off_avx512(own, x[k], q[k]);
    for (unsigned k = 0; is_f16 && k < rows; k++) {
        other[k] = _mm512_sub_ps(_mm512_fmadd_ps(_mm512_roundscale_ps(place[k], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), _mm512_set1_ps(2), _mm512_set1_ps(1)), q[k]);
        beyond[k] = mb_off_avx512(own, x[k], other[k]);
    }
    for (unsigned k = 0; k < rows; k++) {
        __m512 square = is_f16 ? _mm512_mul_ps(far[k], far[k]) : _mm512_abs_ps(far[k]);
        if (is_f16) {
            const __m512 further = _mm512_mul_ps(beyond[k], beyond[k]);
            const __mmask16 is_nearer = _mm512_cmp_ps_mask(further, square, _CMP_LT_OQ);
            q[k] = _mm512_mask_mov_ps(q[k], is_nearer, other[k]), square = _mm512_min_ps(square, further);
            if (off != NULL) far[k] = _mm512_mask_mov_ps(far[k], is_nearer, beyond[k]);
        }
        if (count < MB_LANES) square = _mm512_maskz_mov_ps(lanes, square);
        total->largest = _mm512_max_ps(total->largest, square);
        if (is_f16) total->squared = _mm512_add_ps(total->squared, square), total->power = _mm512_fmadd_ps(x[k], x[k], total->power);
        else mb_add_squares_avx512(total->squared_wide, square), mb_add_squares_avx512(total->power_wide, x[k]);
        if (off != NULL) _mm512_mask_storeu_ps(off, lanes, _mm512_abs_ps(far[k]));
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_castps_si512(_mm512_add_ps(q[k], own->zero)), total->mask));
        if (count == MB_LANES) _mm_storeu_si128((__m128i *)(void *)(dst + MB_LANES * k), bytes);
        else _mm_mask_storeu_epi8(dst, lanes, bytes);
    }
    total->rows += rows;
    if (is_f16 && total->rows == MB_ROWS) mb_rows_end_avx512(total, sums);
}

MB_DEFINE_QUANTIZE_ROWS(mb_quantize_f32_avx512, MB_TARGET_AVX512, avx512, false, 4)
MB_DEFINE_QUANTIZE_ROWS(mb_quantize_f16_avx512, MB_TARGET_AVX512, avx512, true, 2)

/* -------------------------------------------------------------------------------------------------------------- ranges */

/* Eight vectors to one: place k has the greatest number of vector k; of 16 bits twice, in each lane of 128 bits. */
#define MB_DEFINE_FOLDS(type) \
    MB_TARGET_AVX2 MB_STEP __m256i mb_fold_##type##16(const __m256i *x) { \
        __m256i two[4], four[2]; \
        for (unsigned k = 0; k < 4; k++) two[k] = _mm256_max_##type##16(_mm256_unpacklo_epi16(x[2 * k], x[2 * k + 1]), _mm256_unpackhi_epi16(x[2 * k], x[2 * k + 1])); \
        for (unsigned k = 0; k < 2; k++) four[k] = _mm256_max_##type##16(_mm256_unpacklo_epi32(two[2 * k], two[2 * k + 1]), _mm256_unpackhi_epi32(two[2 * k], two[2 * k + 1])); \
        const __m256i found = _mm256_max_##type##16(_mm256_unpacklo_epi64(four[0], four[1]), _mm256_unpackhi_epi64(four[0], four[1])); \
        return _mm256_max_##type##16(found, _mm256_permute4x64_epi64(found, 0x4e)); \
    } \
    MB_TARGET_AVX2 MB_STEP __m256i mb_fold_##type##32(const __m256i *x) { \
        __m256i two[4], four[2]; \
        for (unsigned k = 0; k < 4; k++) two[k] = _mm256_max_##type##32(_mm256_unpacklo_epi32(x[2 * k], x[2 * k + 1]), _mm256_unpackhi_epi32(x[2 * k], x[2 * k + 1])); \
        for (unsigned k = 0; k < 2; k++) four[k] = _mm256_max_##type##32(_mm256_unpacklo_epi64(two[2 * k], two[2 * k + 1]), _mm256_unpackhi_epi64(two[2 * k], two[2 * k + 1])); \
        return _mm256_max_##type##32(_mm256_permute2x128_si256(four[0], four[1], 0x20), _mm256_permute2x128_si256(four[0], four[1], 0x31)); \
    }

MB_DEFINE_FOLDS(epu)
MB_DEFINE_FOLDS(epi)

MB_TARGET_AVX2 MB_STEP __m256i mb_widen_16_avx2(__m256i x) { return _mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(x))); }
MB_TARGET_AVX2 MB_STEP __m256i mb_widen_32_avx2(__m256i x) { return x; }

/* Eight runs end together. The last round of a run may take elements once more. */
#define MB_DEFINE_RANGE_AVX2(name, plain, half, lanes, nbytes) \
    MB_TARGET_AVX2 MB_KERNEL void name(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) { \
        const size_t n = (size_t)count; \
        size_t begin = 0, some = 8; \
        for (; run >= lanes && some == 8 && begin < n; least += some, most += some) { \
            __m256i low[8], high[8]; \
            for (some = 0; some < 8 && begin < n; some++) { \
                const size_t end = n - begin < run ? n : begin + (size_t)run; \
                if (end - begin < lanes) break; \
                __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(src + nbytes * (end - lanes))), below = x, above = x; \
                for (; begin + lanes < end; begin += lanes) { \
                    x = _mm256_loadu_si256((const __m256i *)(const void *)(src + nbytes * begin)); \
                    below = _mm256_max_epu##half(below, x), above = _mm256_max_epi##half(above, x); \
                } \
                low[some] = below, high[some] = above, begin = end; \
            } \
            for (size_t k = some; k < 8; k++) low[k] = high[k] = _mm256_setzero_si256(); \
            const __m256i which = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)some), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); \
            const __m256i known_low = _mm256_castps_si256(_mm256_maskload_ps(least, which)), known_high = _mm256_castps_si256(_mm256_maskload_ps(most, which)); \
            _mm256_maskstore_ps(least, which, _mm256_castsi256_ps(_mm256_max_epu32(known_low, mb_widen_##half##_avx2(mb_fold_epu##half(low))))); \
            _mm256_maskstore_ps(most, which, _mm256_castsi256_ps(_mm256_max_epi32(known_high, mb_widen_##half##_avx2(mb_fold_epi##half(high))))); \
        } \
        if (begin < n) plain(src + nbytes * begin, n - begin, run, least, most); \
    }

MB_DEFINE_RANGE_AVX2(mb_range_f16_avx2, mb_range_f16_loop_avx2, 16, 16, 2)
MB_DEFINE_RANGE_AVX2(mb_range_f32_avx2, mb_range_f32_loop_avx2, 32, 8, 4)

#endif
#endif
