/* kernels/quantize_steps.h: elements to integers on a linear scale, how far from them the dense values are, and the range of
 * elements.
 *
 * An integer q represents scale * (q - zero). float32: q = round(x / scale) + zero, clipped; coremltools computes the
 * same bits. float16: nearly the same in float32, with x * (1 / scale) (coremltools divides in float16). Then, because
 * the dense value is rounded to float16, q becomes the neighbour on the other side of x if its dense value is nearer.
 * So no integer is nearer, and the error is at most coremltools' with the same scale and zero.
 *
 * A scale of 0 (all elements are, or nearly) gives NaN for elements of 0, which becomes 0. */
#ifndef MILBLOB_QUANTIZE_STEPS_H
#define MILBLOB_QUANTIZE_STEPS_H

#include "milblob/kernels/scale.h"
#include "milblob/kernels/sums.h"

/* The integers that elements become. */
typedef struct mb_integers {
    int32_t least, most; /* for example -127 and 127 */
    unsigned nbits;      /* bits kept: 4 or 8 */
    bool is_linear;      /* the range need not be symmetric around zero */
} mb_integers;

/* Quantize count elements.
 * in   src: count finite elements, any alignment; scale, zero: one of each for every `run` (1 or more) elements; scales of
 *      float16 elements are numbers of float16, zeros are whole numbers
 * out  dst: count bytes, the low bits of the integers; off: NULL, or how far each element is from its dense value
 * over-reads: none      fails: never                                                                                   */
typedef void (*mb_quantize_kernel)(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums);

/* Widen the range of every `run` elements; zero is in each. Numbers are ordered by their bits, so a NaN is beyond the infinity
 * of its sign, and a range is finite only if all elements are.
 * in   src: count elements, any alignment      out  least, most: one of each for every run, -0 and 0 at first
 * over-reads: none      fails: never                                                                                   */
typedef void (*mb_range_kernel)(const uint8_t *src, uint64_t count, uint64_t run, float *least, float *most);

/* The steps work on bits and integers, because compilers vectorise conditions on those, but not on floats.
 *
 * The nearest integer to `value`, ties to even, for what is clipped to a byte afterwards: magnitudes above 4096 count as
 * that. The sum with 1.5 * 2^23 has the integer in its lowest bits. */
MB_STEP int32_t mb_nearest(float value) {
    const uint32_t bits = mb_bits_of(value);
    const int32_t magnitude = (int32_t)(bits & 0x7fffffffu), some = magnitude < 0x45800000 ? magnitude : 0x45800000;
    return (int32_t)mb_bits_of(mb_float_of((bits & 0x80000000u) | (uint32_t)some) + 12582912.0f) - 0x4b400000;
}

MB_STEP int32_t mb_clip(int32_t value, int32_t least, int32_t most) {
    value = value < least ? least : value;
    return value > most ? most : value;
}

/* The integer of an element at `at` on the scale; 0 for NaN. */
MB_STEP int32_t mb_quantize_at(float at, int32_t zero, int32_t least, int32_t most) {
    const int32_t magnitude = (int32_t)(mb_bits_of(at) & 0x7fffffffu), is_number = (magnitude - 0x7f800001) >> 31;
    return mb_clip(mb_nearest(at) + zero, least, most) & is_number;
}

/* Elements of 0 whose scale is 0 become 0, also where another integer represents zero: for tiers whose steps do not see NaNs. */
MB_STEP void mb_quantize_nothing(uint8_t *dst, const uint8_t *src, size_t count, const float *scale, size_t run, const bool is_f16) {
    bool is_there = false;
    for (size_t k = 0; k * run < count; k++) is_there |= scale[k] == 0;
    for (size_t i = 0; is_there && i < count; i++)
        if (scale[i / run] == 0 && ((is_f16 ? mb_load_u16(src + 2 * i) << 16 : mb_load_u32(src + 4 * i)) & 0x7fffffffu) == 0) dst[i] = 0;
}

MB_STEP int32_t mb_quantize_f32(float *off, float x, float s, int32_t z, int32_t least, int32_t most) {
    const int32_t q = mb_quantize_at(x / s, z, least, most);
    const float value = (float)(q - z) * s; /* a statement of its own: compilers may fuse operations of one statement */
    *off = mb_float_of(mb_bits_of(x - value) & 0x7fffffffu);
    return q;
}

MB_STEP int32_t mb_quantize_f16(float *off, float x, float s, int32_t z, int32_t least, int32_t most) {
    const float inverse = 1.0f / s, at = x * inverse;
    const int32_t q = mb_quantize_at(at, z, least, most);
    const int32_t up = 1 - (int32_t)(mb_bits_of(at - (float)(q - z)) >> 31 << 1); /* 1 or -1: towards x */
    const int32_t other = mb_clip(q + up, least, most);
    const float above = x - mb_to_half((float)(q - z) * s), beyond = x - mb_to_half((float)(other - z) * s);
    /* Magnitudes of floats compare like their bits. */
    const int32_t here = (int32_t)(mb_bits_of(above) & 0x7fffffffu), there = (int32_t)(mb_bits_of(beyond) & 0x7fffffffu), nearer = (there - here) >> 31;
    *off = mb_float_of((uint32_t)((there & nearer) | (here & ~nearer)));
    return (other & nearer) | (q & ~nearer);
}

/* Rows of float16, to be added; all zero at first. */
typedef struct mb_rows {
    float squared[MB_LANES], power[MB_LANES];
    unsigned count;
} mb_rows;

MB_STEP void mb_rows_end(mb_rows *rows, mb_sums *sums) {
    for (unsigned k = 0; k < MB_LANES; k++) sums->squared[k] += (double)rows->squared[k], sums->power[k] += (double)rows->power[k];
    memset(rows, 0, sizeof *rows);
}

/* Add a row: elements and how far they are from others, 0 where there is none. */
MB_STEP void mb_add_row(mb_sums *sums, mb_rows *rows, const float *x, const float *far, const bool is_f16) {
    for (unsigned k = 0; k < MB_LANES; k++) {
        const uint32_t size = mb_bits_of(far[k]);
        sums->largest = size > sums->largest ? size : sums->largest;
    }
    for (unsigned k = 0; !is_f16 && k < MB_LANES; k++) sums->squared[k] += (double)far[k] * (double)far[k], sums->power[k] += (double)x[k] * (double)x[k];
    for (unsigned k = 0; is_f16 && k < MB_LANES; k++) {
        const float square = far[k] * far[k], own = x[k] * x[k]; /* statements of their own: compilers may fuse operations of one */
        rows->squared[k] += square, rows->power[k] += own;
    }
    if (is_f16 && ++rows->count == MB_ROWS) mb_rows_end(rows, sums);
}

/* A row of up to MB_LANES elements; `step` is 0 where they share a scale, 1 where each has its own. */
#define MB_DEFINE_QUANTIZE(name, target, quantize, load, nbytes, is_f16) \
    target MB_STEP void name##_row(uint8_t *MB_RESTRICT dst, float *MB_RESTRICT off, const uint8_t *MB_RESTRICT src, const size_t n, const float *MB_RESTRICT scale, const float *MB_RESTRICT zero, const size_t step, const mb_integers *to, mb_sums *MB_RESTRICT sums, mb_rows *MB_RESTRICT rows) { \
        float x[MB_LANES] = {0}, far[MB_LANES] = {0}; \
        const uint32_t mask = (1u << to->nbits) - 1; \
        for (size_t i = 0; i < n; i++) { \
            x[i] = load(src, i); \
            dst[i] = (uint8_t)((uint32_t)quantize(far + i, x[i], scale[i * step], (int32_t)zero[i * step], to->least, to->most) & mask); \
        } \
        mb_add_row(sums, rows, x, far, is_f16); \
        if (off != NULL) memcpy(off, far, n * sizeof *off); \
    } \
    target MB_KERNEL void name(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) { \
        const size_t n = (size_t)count, step = run == 1; \
        mb_sums own = *sums; \
        mb_rows rows; \
        memset(&rows, 0, sizeof rows); \
        for (size_t begin = 0, end; begin < n; begin = end, scale++, zero++) { \
            end = run == 1 || n - begin < run ? n : begin + (size_t)run; \
            for (size_t i = begin; i < end; i += MB_LANES) { \
                const float *s = scale + i * step, *z = zero + i * step; \
                float *const far = off == NULL ? NULL : off + i; \
                if (end - i < MB_LANES) name##_row(dst + i, far, src + nbytes * i, end - i, s, z, step, to, &own, &rows); \
                else if (step) name##_row(dst + i, far, src + nbytes * i, MB_LANES, s, z, 1, to, &own, &rows); \
                else name##_row(dst + i, far, src + nbytes * i, MB_LANES, s, z, 0, to, &own, &rows); \
            } \
        } \
        mb_rows_end(&rows, &own); \
        *sums = own; \
    }

MB_STEP uint32_t mb_bits_f16(const uint8_t *src, size_t i) { return mb_load_u16(src + 2 * i); }
MB_STEP uint32_t mb_bits_f32(const uint8_t *src, size_t i) { return mb_load_u32(src + 4 * i); }

/* Of numbers below zero the bits grow with the magnitude, and are greater than those of others; as signed integers they are less. */
MB_STEP void mb_widen_range(uint32_t low, int32_t high, float *least, float *most) {
    const uint32_t a = mb_bits_of(*least);
    const int32_t b = (int32_t)mb_bits_of(*most);
    *least = mb_float_of(low > a ? low : a), *most = mb_float_of((uint32_t)(high > b ? high : b));
}

MB_STEP uint32_t mb_wide_16(uint32_t bits) { return mb_f16_to_f32(bits, 0); }
MB_STEP uint32_t mb_wide_32(uint32_t bits) { return bits; }

#define MB_DEFINE_RANGE(name, target, half) \
    target MB_KERNEL void name(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) { \
        const size_t n = (size_t)count; \
        for (size_t i = 0; run == 1 && i < n; i++) { \
            const uint32_t bits = mb_wide_##half(mb_bits_f##half(src, i)); \
            mb_widen_range(bits, (int32_t)bits, least + i, most + i); \
        } \
        for (size_t begin = 0, end; run != 1 && begin < n; begin = end, least++, most++) { \
            uint##half##_t low[32] = {0}; \
            int##half##_t high[32] = {0}; \
            end = n - begin < run ? n : begin + (size_t)run; \
            size_t i = begin; \
            for (; i + 32 <= end; i += 32) \
                for (unsigned k = 0; k < 32; k++) { \
                    const uint##half##_t x = (uint##half##_t)mb_bits_f##half(src, i + k); \
                    low[k] = x > low[k] ? x : low[k]; \
                    high[k] = (int##half##_t)x > high[k] ? (int##half##_t)x : high[k]; \
                } \
            for (; i < end; i++) { \
                const uint##half##_t x = (uint##half##_t)mb_bits_f##half(src, i); \
                low[0] = x > low[0] ? x : low[0]; \
                high[0] = (int##half##_t)x > high[0] ? (int##half##_t)x : high[0]; \
            } \
            for (unsigned left = 16; left > 0; left /= 2) \
                for (unsigned k = 0; k < left; k++) { \
                    low[k] = low[k + left] > low[k] ? low[k + left] : low[k]; \
                    high[k] = high[k + left] > high[k] ? high[k + left] : high[k]; \
                } \
            mb_widen_range(mb_wide_##half(low[0]), (int32_t)mb_wide_##half((uint##half##_t)high[0]), least, most); \
        } \
    }

#define MB_DEFINE_QUANTIZES(tier, target) \
    MB_DEFINE_QUANTIZE(mb_quantize_f32_##tier, target, mb_quantize_f32, mb_float_from_f32, 4, false) \
    MB_DEFINE_QUANTIZE(mb_quantize_f16_##tier, target, mb_quantize_f16, mb_float_from_f16, 2, true) \
    MB_DEFINE_RANGE(mb_range_f32_##tier, target, 32) \
    MB_DEFINE_RANGE(mb_range_f16_##tier, target, 16)

MB_DEFINE_QUANTIZES(plain, )

#endif
