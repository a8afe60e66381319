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
    if (off != NULL) _mm512_mask_storeu_ps(off, lanes, _mm512_castsi512_ps(mb_size_avx512(above)));
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

enum { MB_TILE = 512, MB_RUNS = 16 }; /* elements, a multiple of MB_LANES; runs whose constants are computed together */

/* Elements, their integers and how far they are from their dense values. Each step is a loop of its own over some of them: in one
 * loop, a CPU would not look far enough ahead to work on several elements at a time, nor have registers for the sums. Each
 * run begins at a multiple of MB_LANES; zeros follow it. */
typedef struct mb_tile {
    float x[MB_TILE], q[MB_TILE], off[MB_TILE];
} mb_tile;

/* The constants of a run; least and most are less the zero. Eight levels: see quantize_levels.h. */
typedef struct mb_run_avx2 {
    __m256 least, most, scale, inverse, zero, values, bounds;
    __m256i mask;
    bool has_levels;
} mb_run_avx2;

MB_TARGET_AVX2 MB_STEP __m256 mb_size_avx2(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
MB_TARGET_AVX2 MB_STEP __m256 mb_round_half_avx2(__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
MB_TARGET_AVX2 MB_STEP __m256 mb_off_avx2(const mb_run_avx2 *own, __m256 x, __m256 q, const bool is_f16) {
    const __m256 value = _mm256_mul_ps(q, own->scale);
    return mb_size_avx2(_mm256_sub_ps(x, is_f16 ? mb_round_half_avx2(value) : value));
}

MB_TARGET_AVX2 MB_STEP void mb_run_begin_avx2(mb_run_avx2 *own, const mb_integers *to, __m256 scale, __m256 zero) {
    own->scale = scale, own->inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), scale), own->zero = zero;
    own->least = _mm256_sub_ps(_mm256_set1_ps((float)to->least), zero), own->most = _mm256_sub_ps(_mm256_set1_ps((float)to->most), zero);
    own->mask = _mm256_set1_epi16((short)((1 << to->nbits) - 1));
}

/* Whether levels can give the integers of a run: at most seven on either side of zero, and a scale that float16 has. */
MB_TARGET_AVX2 MB_STEP bool mb_levels_begin_avx2(mb_run_avx2 *own, const mb_integers *to, float scale, float zero) {
    const float most = (float)to->most - zero;
    if (most != zero - (float)to->least || !(most > 0 && most <= 7) || !(scale >= 0x1p-24f && scale <= 65504.0f)) return false;
    const __m256 d = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), last = _mm256_cmp_ps(d, own->most, _CMP_GE_OQ);
    own->values = mb_round_half_avx2(_mm256_mul_ps(d, own->scale));
    const __m256 after = _mm256_permutevar8x32_ps(own->values, _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 7));
    const __m256 middle = _mm256_mul_ps(_mm256_add_ps(own->values, after), _mm256_set1_ps(0.5f));
    const __m256 is_up = _mm256_cmp_ps(_mm256_round_ps(_mm256_mul_ps(middle, own->inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), d, _CMP_GT_OQ);
    const __m256 bounds = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(middle), _mm256_castps_si256(is_up))); /* the float before it */
    own->bounds = _mm256_blendv_ps(bounds, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)), last);
    return true;
}

/* Quantize MB_LANES elements of float16 by levels. */
MB_TARGET_AVX2 MB_STEP void mb_level_16_avx2(const mb_run_avx2 *own, float *x, float *q, float *off, const uint8_t *src) {
    for (unsigned k = 0; k < 2; k++) {
        const __m256 element = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 16 * k))), size = mb_size_avx2(element);
        const __m256i low = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_mul_ps(size, own->inverse), own->most));
        const __m256i is_next = _mm256_cmpgt_epi32(_mm256_castps_si256(size), _mm256_castps_si256(_mm256_permutevar8x32_ps(own->bounds, low)));
        const __m256i d = _mm256_sub_epi32(low, is_next);
        _mm256_storeu_ps(x + 8 * k, element);
        _mm256_storeu_ps(off + 8 * k, mb_size_avx2(_mm256_sub_ps(size, _mm256_permutevar8x32_ps(own->values, d))));
        _mm256_storeu_ps(q + 8 * k, _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_sign_epi32(d, _mm256_castps_si256(element))), own->zero));
    }
}

/* Quantize eight elements `at` on the scale, whose nearest integers are `nearest`: integers and distances. */
MB_TARGET_AVX2 MB_STEP __m256 mb_nearer_avx2(const mb_run_avx2 *own, __m256 x, __m256 at, __m256 nearest, __m256 *off) {
    const __m256 sign = _mm256_and_ps(_mm256_sub_ps(at, nearest), _mm256_set1_ps(-0.0f)), up = _mm256_or_ps(_mm256_set1_ps(1.0f), sign);
    const __m256 other = _mm256_min_ps(_mm256_add_ps(nearest, up), own->most); /* never below the least: `at` is not */
    const __m256i here = _mm256_castps_si256(mb_off_avx2(own, x, nearest, true)), there = _mm256_castps_si256(mb_off_avx2(own, x, other, true));
    *off = _mm256_castsi256_ps(_mm256_min_epi32(here, there));
    return _mm256_blendv_ps(nearest, other, _mm256_castsi256_ps(_mm256_cmpgt_epi32(here, there)));
}

/* MB_LANES elements as float32, and where they are on the scale. Here and below `step` is 0 where they share a scale, 1 where own[1]
 * has those of the last eight. */
MB_TARGET_AVX2 MB_STEP void mb_place_16_avx2(const mb_run_avx2 *own, const size_t step, float *x, float *at, const uint8_t *src, const bool is_f16) {
    for (unsigned k = 0; k < 2; k++) {
        const __m256 element = is_f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 16 * k))) : _mm256_loadu_ps((const float *)(const void *)(src + 32 * k));
        const __m256 place = is_f16 ? _mm256_mul_ps(element, own[k * step].inverse) : _mm256_div_ps(element, own[k * step].scale);
        _mm256_storeu_ps(x + 8 * k, element);
        _mm256_storeu_ps(at + 8 * k, _mm256_max_ps(_mm256_min_ps(place, own[k * step].most), own[k * step].least));
    }
}

/* MB_LANES places become integers. */
MB_TARGET_AVX2 MB_STEP void mb_round_16_avx2(const mb_run_avx2 *own, const size_t step, const float *x, float *q, float *off, const bool is_f16) {
    for (unsigned k = 0; k < 2; k++) {
        const __m256 element = _mm256_loadu_ps(x + 8 * k), at = _mm256_loadu_ps(q + 8 * k);
        __m256 near = _mm256_round_ps(at, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), far;
        if (is_f16) near = mb_nearer_avx2(own + k * step, element, at, near, &far);
        else far = mb_off_avx2(own + k * step, element, near, false);
        _mm256_storeu_ps(off + 8 * k, far), _mm256_storeu_ps(q + 8 * k, _mm256_add_ps(near, own[k * step].zero));
    }
}

MB_TARGET_AVX2 MB_STEP __m128i mb_bytes_16_avx2(const float *q, __m256i mask) {
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_loadu_ps(q)), _mm256_cvtps_epi32(_mm256_loadu_ps(q + 8)));
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_and_si256(both, mask), 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(mixed), _mm256_extracti128_si256(mixed, 1));
}

/* Quantize the last elements of a run, fewer than MB_LANES. */
MB_TARGET_AVX2 MB_STEP void mb_quantize_rest_avx2(mb_run_avx2 *own, const mb_integers *to, float *x, float *q, float *off, uint8_t *dst, const uint8_t *src, size_t count, const float *scale, const float *zero, const size_t step, const bool is_f16) {
    uint8_t elements[4 * MB_LANES] = {0}, bytes[MB_LANES];
    float scales[MB_LANES] = {0}, zeros[MB_LANES] = {0};
    memcpy(elements, src, (is_f16 ? 2 : 4) * count);
    if (step) memcpy(scales, scale, count * sizeof *scales), memcpy(zeros, zero, count * sizeof *zeros);
    for (unsigned k = 0; step && k < 2; k++) mb_run_begin_avx2(own + k, to, _mm256_loadu_ps(scales + 8 * k), _mm256_loadu_ps(zeros + 8 * k));
    mb_place_16_avx2(own, step, x, q, elements, is_f16);
    mb_round_16_avx2(own, step, x, q, off, is_f16);
    _mm_storeu_si128((__m128i *)(void *)bytes, mb_bytes_16_avx2(q, own->mask));
    memcpy(dst, bytes, count);
    memset(off + count, 0, (MB_LANES - count) * sizeof *off);
}

/* Quantize elements of one run, or with `step` of runs of one, none of whose scales is 0; `used`: elements of the tile, which has room. */
MB_TARGET_AVX2 MB_STEP void mb_quantize_run_avx2(mb_run_avx2 *own, const mb_integers *to, mb_tile *tile, size_t used, uint8_t *dst, const uint8_t *src, size_t count, const float *scale, const float *zero, const size_t step, const bool is_f16, const bool has_levels) {
    const size_t nbytes = is_f16 ? 2 : 4, whole = count / MB_LANES * MB_LANES;
    float *const x = tile->x + used, *const q = tile->q + used, *const off = tile->off + used;
    for (size_t i = 0; has_levels && i < whole; i += MB_LANES) mb_level_16_avx2(own, x + i, q + i, off + i, src + nbytes * i);
    for (size_t i = 0; !step && !has_levels && i < whole; i += MB_LANES) mb_place_16_avx2(own, 0, x + i, q + i, src + nbytes * i, is_f16);
    for (size_t i = 0; !has_levels && i < whole; i += MB_LANES) {
        for (unsigned k = 0; step && k < 2; k++) mb_run_begin_avx2(own + k, to, _mm256_loadu_ps(scale + i + 8 * k), _mm256_loadu_ps(zero + i + 8 * k));
        if (step) mb_place_16_avx2(own, 1, x + i, q + i, src + nbytes * i, is_f16);
        mb_round_16_avx2(own, step, x + i, q + i, off + i, is_f16);
    }
    for (size_t i = 0; i < whole; i += MB_LANES) _mm_storeu_si128((__m128i *)(void *)(dst + i), mb_bytes_16_avx2(q + i, own->mask));
    if (whole < count) mb_quantize_rest_avx2(own, to, x + whole, q + whole, off + whole, dst + whole, src + nbytes * whole, count - whole, scale + whole, zero + whole, step, is_f16);
}

MB_TARGET_FMA MB_STEP __m256d mb_add_square_avx2(__m256d sum, const float *x) {
    const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x));
    return _mm256_fmadd_pd(wide, wide, sum); /* the square is exact */
}

MB_TARGET_FMA MB_STEP void mb_tile_sums_avx2(const mb_tile *tile, size_t count, mb_sums *sums) {
    __m256d squared[4], power[4];
    __m256i largest = _mm256_set1_epi32((int)sums->largest);
    uint32_t each[8];
    for (unsigned k = 0; k < 4; k++) squared[k] = _mm256_loadu_pd(sums->squared + 4 * k), power[k] = _mm256_loadu_pd(sums->power + 4 * k);
    for (size_t i = 0; i < count; i += MB_LANES)
        for (unsigned k = 0; k < 4; k++) {
            if (k % 2 == 0) largest = _mm256_max_epu32(largest, _mm256_loadu_si256((const __m256i *)(const void *)(tile->off + i + 4 * k)));
            squared[k] = mb_add_square_avx2(squared[k], tile->off + i + 4 * k), power[k] = mb_add_square_avx2(power[k], tile->x + i + 4 * k);
        }
    for (unsigned k = 0; k < 4; k++) _mm256_storeu_pd(sums->squared + 4 * k, squared[k]), _mm256_storeu_pd(sums->power + 4 * k, power[k]);
    _mm256_storeu_si256((__m256i *)(void *)each, largest);
    for (unsigned k = 0; k < 8; k++) sums->largest = each[k] > sums->largest ? each[k] : sums->largest;
}

/* As an mb_quantize_kernel; `plain` handles scales of 0. */
MB_TARGET_FMA MB_STEP void mb_quantize_runs_avx2(mb_quantize_kernel plain, uint8_t *dst, float *off, const uint8_t *src, size_t count, const float *scale, const float *zero, size_t run, const mb_integers *to, mb_sums *sums, const size_t step, const bool is_f16, const bool is_few) {
    const size_t nbytes = is_f16 ? 2 : 4;
    mb_tile tile;
    mb_run_avx2 own[MB_RUNS];
    size_t used = 0, runs = count == 0 ? 0 : step ? 1 : (count - 1) / run + 1;
    bool is_zero = false;
    for (size_t i = 0; step && i < count; i++) is_zero |= scale[i] == 0;
    for (size_t begin = 0, end, some; runs > 0; runs -= some, scale += some, zero += some) {
        some = runs < (size_t)MB_RUNS ? runs : (size_t)MB_RUNS;
        for (size_t k = 0; k < some; k++) {
            mb_run_begin_avx2(own + k, to, _mm256_set1_ps(scale[k]), _mm256_set1_ps(zero[k]));
            own[k].has_levels = is_few && mb_levels_begin_avx2(own + k, to, scale[k], zero[k]);
        }
        for (size_t k = 0; k < some; k++, begin = end) {
            end = step || count - begin < run ? count : begin + run;
            if (step ? is_zero : scale[k] == 0) {
                mb_tile_sums_avx2(&tile, used, sums);
                used = 0;
                plain(dst + begin, off == NULL ? NULL : off + begin, src + nbytes * begin, end - begin, scale + k, zero + k, step ? 1 : end - begin + 1, to, sums);
                continue;
            }
            for (size_t i = begin, taken; i < end; i += taken) {
                taken = end - i < MB_TILE - used ? end - i : MB_TILE - used;
                if (is_few && own[k].has_levels) mb_quantize_run_avx2(own + k, to, &tile, used, dst + i, src + nbytes * i, taken, NULL, NULL, 0, is_f16, true);
                else mb_quantize_run_avx2(own + k, to, &tile, used, dst + i, src + nbytes * i, taken, scale + i * step, zero + i * step, step, is_f16, false);
                if (off != NULL) memcpy(off + i, tile.off + used, taken * sizeof *off);
                used += (taken + MB_LANES - 1) / MB_LANES * MB_LANES;
                if (used < MB_TILE) continue;
                mb_tile_sums_avx2(&tile, used, sums);
                used = 0;
            }
        }
    }
    mb_tile_sums_avx2(&tile, used, sums);
}

MB_TARGET_FMA MB_KERNEL void mb_quantize_f32_avx2(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) {
    if (run == 1) mb_quantize_runs_avx2(mb_quantize_f32_loop_avx2, dst, off, src, (size_t)count, scale, zero, 1, to, sums, 1, false, false);
    else mb_quantize_runs_avx2(mb_quantize_f32_loop_avx2, dst, off, src, (size_t)count, scale, zero, (size_t)run, to, sums, 0, false, false);
}

MB_TARGET_FMA MB_KERNEL void mb_quantize_f16_avx2(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) {
    if (run == 1) mb_quantize_runs_avx2(mb_quantize_f16_loop_avx2, dst, off, src, (size_t)count, scale, zero, 1, to, sums, 1, true, false);
    else if (to->nbits == 4) mb_quantize_runs_avx2(mb_quantize_f16_loop_avx2, dst, off, src, (size_t)count, scale, zero, (size_t)run, to, sums, 0, true, true);
    else mb_quantize_runs_avx2(mb_quantize_f16_loop_avx2, dst, off, src, (size_t)count, scale, zero, (size_t)run, to, sums, 0, true, false);
}

/* -------------------------------------------------------------------------------------------------------------- ranges */

MB_TARGET_AVX2 MB_STEP __m256i mb_order_16_avx2(__m256i bits) { return _mm256_xor_si256(bits, _mm256_srli_epi16(_mm256_srai_epi16(bits, 15), 1)); }
MB_TARGET_AVX2 MB_STEP __m256i mb_order_8_avx2(__m256i bits) { return _mm256_xor_si256(bits, _mm256_srli_epi32(_mm256_srai_epi32(bits, 31), 1)); }

/* Widen up to eight ranges, by numbers in the order of floats. */
MB_TARGET_AVX2 MB_STEP void mb_widen_avx2(__m256i low, __m256i high, size_t count, float *least, float *most) {
    const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i a = mb_order_8_avx2(_mm256_castps_si256(_mm256_maskload_ps(least, lanes))), b = mb_order_8_avx2(_mm256_castps_si256(_mm256_maskload_ps(most, lanes)));
    _mm256_maskstore_ps(least, lanes, _mm256_castsi256_ps(mb_order_8_avx2(_mm256_min_epi32(a, low))));
    _mm256_maskstore_ps(most, lanes, _mm256_castsi256_ps(mb_order_8_avx2(_mm256_max_epi32(b, high))));
}

/* The least of `low` and the greatest of `high`, 16 numbers in the order of floats each. _mm_minpos_epu16 finds the least of eight. */
MB_TARGET_AVX2 MB_STEP void mb_fold_16_avx2(__m256i low, __m256i high, uint16_t *least, uint16_t *most) {
    const __m128i low_8 = _mm_min_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const __m128i high_8 = _mm_max_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    *least = (uint16_t)_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(low_8, _mm_set1_epi16((short)0x8000))), 0);
    *most = (uint16_t)_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(high_8, _mm_set1_epi16(0x7fff))), 0);
}

MB_TARGET_AVX2 MB_STEP void mb_widen_16_avx2(const uint16_t *low, const uint16_t *high, size_t count, float *least, float *most) {
    __m128i found[2] = {_mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)low), _mm_set1_epi16((short)0x8000)),
                        _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)high), _mm_set1_epi16(0x7fff))};
    __m256i wide[2];
    for (unsigned k = 0; k < 2; k++) found[k] = _mm_xor_si128(found[k], _mm_srli_epi16(_mm_srai_epi16(found[k], 15), 1)), wide[k] = mb_order_8_avx2(_mm256_castps_si256(_mm256_cvtph_ps(found[k])));
    mb_widen_avx2(wide[0], wide[1], count, least, most);
}

/* The last round of a run may take elements once more. */
MB_TARGET_AVX2 MB_KERNEL void mb_range_f16_avx2(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) {
    const size_t n = (size_t)count;
    uint16_t lows[8] = {0}, highs[8] = {0};
    size_t some = 0, begin = 0;
    for (size_t end; begin < n && run >= 16; begin = end) {
        end = n - begin < run ? n : begin + (size_t)run;
        if (end - begin < 16) break;
        __m256i low = mb_order_16_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * (end - 16)))), high = low;
        for (size_t i = begin; i + 16 < end; i += 16) {
            const __m256i x = mb_order_16_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i)));
            low = _mm256_min_epi16(low, x), high = _mm256_max_epi16(high, x);
        }
        mb_fold_16_avx2(low, high, lows + some, highs + some);
        if (++some < 8) continue;
        mb_widen_16_avx2(lows, highs, some, least, most);
        least += some, most += some, some = 0;
    }
    mb_widen_16_avx2(lows, highs, some, least, most);
    if (begin < n) mb_range_f16_loop_avx2(src + 2 * begin, n - begin, run, least + some, most + some);
}

MB_TARGET_AVX2 MB_KERNEL void mb_range_f32_avx2(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) {
    const size_t n = (size_t)count;
    int32_t lows[8] = {0}, highs[8] = {0};
    size_t some = 0, begin = 0;
    for (size_t end; begin < n && run >= 8; begin = end) {
        end = n - begin < run ? n : begin + (size_t)run;
        if (end - begin < 8) break;
        __m256i low = mb_order_8_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(src + 4 * (end - 8)))), high = low;
        for (size_t i = begin; i + 8 < end; i += 8) {
            const __m256i x = mb_order_8_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(src + 4 * i)));
            low = _mm256_min_epi32(low, x), high = _mm256_max_epi32(high, x);
        }
        const __m128i low_4 = _mm_min_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)), high_4 = _mm_max_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        const __m128i low_2 = _mm_min_epi32(low_4, _mm_srli_si128(low_4, 8)), high_2 = _mm_max_epi32(high_4, _mm_srli_si128(high_4, 8));
        lows[some] = _mm_cvtsi128_si32(_mm_min_epi32(low_2, _mm_srli_si128(low_2, 4))), highs[some] = _mm_cvtsi128_si32(_mm_max_epi32(high_2, _mm_srli_si128(high_2, 4)));
        if (++some < 8) continue;
        mb_widen_avx2(_mm256_loadu_si256((const __m256i *)(const void *)lows), _mm256_loadu_si256((const __m256i *)(const void *)highs), some, least, most);
        least += some, most += some, some = 0;
    }
    mb_widen_avx2(_mm256_loadu_si256((const __m256i *)(const void *)lows), _mm256_loadu_si256((const __m256i *)(const void *)highs), some, least, most);
    if (begin < n) mb_range_f32_loop_avx2(src + 4 * begin, n - begin, run, least + some, most + some);
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
        uint16_t lows[8] = {0}, highs[8] = {0};
        mb_fold_16_avx2(_mm256_min_epi16(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1)),
                        _mm256_max_epi16(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64(high, 1)), lows, highs);
        mb_widen_16_avx2(lows, highs, 1, least, most);
    }
}

MB_TARGET_AVX512 MB_STEP __m512i mb_order_32_avx512(__m512i bits) { return _mm512_xor_si512(bits, _mm512_srli_epi32(_mm512_srai_epi32(bits, 31), 1)); }

MB_TARGET_AVX512 MB_KERNEL void mb_range_f32_avx512(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) {
    const size_t n = (size_t)count;
    if (run < 16) {
        mb_range_f32_avx2(src, count, run, least, most);
        return;
    }
    for (size_t begin = 0, end; begin < n; begin = end, least++, most++) {
        end = n - begin < run ? n : begin + (size_t)run;
        if (end - begin < 16) {
            mb_range_f32_avx2(src + 4 * begin, end - begin, run, least, most);
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
