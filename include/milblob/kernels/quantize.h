/* kernels/quantize.h: linear quantization of an array, any range of it: the range of each block, the integers, the error.
 *
 * A grid (decode.h) says which block an element belongs to; a block has one scale and one zero. */
#ifndef MILBLOB_QUANTIZE_H
#define MILBLOB_QUANTIZE_H

#include "milblob/kernels/decode.h"

/* Elements as float32, in memory that stays in the cache. */
static inline void mb_quantize_load(const mb_tier *tier, float *dst, const uint8_t *src, uint64_t begin, uint64_t count, bool is_f16) {
    mb_cast_counts counts = {0, 0, 0};
    if (is_f16) tier->cast[MB_CAST_F16_F32]((uint8_t *)dst, src + 2 * begin, count, false, &counts);
    else memcpy(dst, src + 4 * begin, 4 * (size_t)count);
}

MB_STEP void mb_range_of(const float *x, uint64_t count, float *least, float *most) {
    float low[8], high[8];
    for (unsigned k = 0; k < 8; k++) low[k] = *least, high[k] = *most;
    uint64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (unsigned k = 0; k < 8; k++) {
            low[k] = x[i + k] < low[k] ? x[i + k] : low[k];
            high[k] = x[i + k] > high[k] ? x[i + k] : high[k];
        }
    for (; i < count; i++) {
        low[0] = x[i] < low[0] ? x[i] : low[0];
        high[0] = x[i] > high[0] ? x[i] : high[0];
    }
    for (unsigned k = 0; k < 8; k++) {
        *least = low[k] < *least ? low[k] : *least;
        *most = high[k] > *most ? high[k] : *most;
    }
}

/* Widen the range of each block by elements [begin, begin + count).
 * in   src: elements, float16 or float32, any alignment; the grid's product of sizes is at least begin + count
 * out  least, most: one of each per parameter of the grid, +inf and -inf at first
 * returns how many elements are not finite (they may be in the ranges)      over-reads: none      fails: never             */
MB_KERNEL uint64_t mb_quantize_ranges(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t begin, uint64_t count, mb_grid *grid, float *least, float *most) {
    float x[MB_CHUNK];
    uint64_t bad = 0;
    mb_grid_seek(grid, begin);
    for (uint64_t n; count > 0; begin += n, count -= n) {
        n = mb_least(count, MB_CHUNK);
        mb_quantize_load(tier, x, src, begin, n, is_f16);
        uint32_t wrong = 0;
        for (uint64_t i = 0; i < n; i++) wrong += (mb_bits_of(x[i]) & 0x7f800000u) == 0x7f800000u;
        bad += wrong;
        for (uint64_t done = 0; done < n;) {
            uint64_t index, run;
            const uint64_t taken = mb_grid_runs(grid, n - done, &index, &run);
            const float *at = x + done;
            if (run == 1) {
                for (uint64_t i = 0; i < taken; i++) {
                    least[index + i] = at[i] < least[index + i] ? at[i] : least[index + i];
                    most[index + i] = at[i] > most[index + i] ? at[i] : most[index + i];
                }
            } else {
                for (uint64_t i = 0; i < taken; i += run, index++) mb_range_of(at + i, mb_least(run, taken - i), least + index, most + index);
            }
            done += taken;
        }
    }
    return bad;
}

/* What quantization does to elements; added to. */
typedef struct mb_quantize_error {
    double squared; /* sum of the squared distances from the dense values */
    double power;   /* sum of the squares of the elements */
    double largest; /* distance */
} mb_quantize_error;

/* Sum of squares, always in the same order. weights may be NULL. */
MB_STEP double mb_squares(const float *x, const float *weights, uint64_t count) {
    double lanes[8] = {0};
    uint64_t i = 0;
    for (; weights == NULL && i + 8 <= count; i += 8)
        for (unsigned k = 0; k < 8; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < count; i++) lanes[i & 7] += (double)x[i] * (double)x[i] * (weights == NULL ? 1 : (double)weights[i]);
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Quantize elements [begin, begin + count).
 * in   as mb_quantize_ranges, all finite; scale, zero: one of each per parameter; least, most: of the integers, for example
 *      -127 and 127
 * out  dst: count bytes, the low eight bits of the integers, or NULL; error: added to, or NULL
 * block_errors: NULL, or one per parameter: the squared error, times the weights (NULL, or as many as elements), is added
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_quantize(const mb_tier *tier, uint8_t *dst, const uint8_t *src, bool is_f16, uint64_t begin, uint64_t count, mb_grid *grid,
                           const float *scale, const float *zero, int32_t least, int32_t most, mb_quantize_error *error, double *block_errors, const float *weights) {
    float x[MB_CHUNK], off[MB_CHUNK];
    uint8_t spare[MB_CHUNK];
    mb_grid_seek(grid, begin);
    for (uint64_t n; count > 0; begin += n, count -= n) {
        n = mb_least(count, MB_CHUNK);
        mb_quantize_load(tier, x, src, begin, n, is_f16);
        uint8_t *to = dst == NULL ? spare : dst;
        for (uint64_t done = 0; done < n;) {
            uint64_t index, run;
            const uint64_t taken = mb_grid_runs(grid, n - done, &index, &run);
            tier->quantize[is_f16](to + done, off + done, x + done, taken, scale + index, zero + index, run, least, most);
            for (uint64_t i = 0; block_errors != NULL && i < taken; i += run, index++)
                block_errors[index] += mb_squares(off + done + i, weights == NULL ? NULL : weights + begin + done + i, mb_least(run, taken - i));
            done += taken;
        }
        if (dst != NULL) dst += n;
        if (error == NULL) continue;
        float low = 0, high = 0;
        mb_range_of(off, n, &low, &high);
        error->squared += mb_squares(off, NULL, n), error->power += mb_squares(x, NULL, n);
        error->largest = high > error->largest ? high : error->largest;
        error->largest = -low > error->largest ? -low : error->largest;
    }
}

#endif
