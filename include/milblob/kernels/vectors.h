/* kernels/vectors.h: which entry of a palette of vectors is nearest to each vector, and the sums for the next
 * palette. */
#ifndef MILBLOB_VECTORS_H
#define MILBLOB_VECTORS_H

#include <string.h>

#include "milblob/base.h"

/* A palette of vectors.
 * entries: number d of entry j is entries[d * k + j]: the loop over the entries is the inner one, and vectorizes */
typedef struct mb_vectors {
    const float *entries;
    uint32_t k, dims;
} mb_vectors;

#define MB_VECTORS_LANES 8u

/* The index of the least number, the first of equals: eight candidates side by side, which vectorizes, then the best. */
MB_STEP uint32_t mb_vectors_least(const float *numbers, uint32_t k) {
    float least[MB_VECTORS_LANES];
    uint32_t at[MB_VECTORS_LANES], best = 0, j = MB_VECTORS_LANES;
    if (k < MB_VECTORS_LANES) {
        for (j = 1; j < k; j++) best = numbers[j] < numbers[best] ? j : best;
        return best;
    }
    for (uint32_t lane = 0; lane < MB_VECTORS_LANES; lane++) least[lane] = numbers[lane], at[lane] = lane;
    for (; j + MB_VECTORS_LANES <= k; j += MB_VECTORS_LANES) {
        for (uint32_t lane = 0; lane < MB_VECTORS_LANES; lane++) {
            const float number = numbers[j + lane];
            at[lane] = number < least[lane] ? j + lane : at[lane];
            least[lane] = number < least[lane] ? number : least[lane];
        }
    }
    for (uint32_t lane = 1; lane < MB_VECTORS_LANES; lane++) {
        const bool is_less = least[lane] < least[best] || (!(least[best] < least[lane]) && at[lane] < at[best]);
        best = is_less ? lane : best;
    }
    best = at[best];
    for (; j < k; j++) best = numbers[j] < numbers[best] ? j : best;
    return best;
}

#define MB_VECTORS_BLOCK 256u /* vectors that a kernel is called for at a time */
#define MB_VECTORS_WIDE 32u   /* elements of the longest vectors that kernels turn into lanes */

/* Find the nearest entry of each vector: the least sum of squared differences, in float32, added up in the order of the
 * elements; the first of equals.
 * in   src: count * dims floats, a vector after the other; weights: as many, of each difference, or NULL for all alike;
 *      count: at most MB_VECTORS_BLOCK; palette: k of 1 to 256, dims of 1 or more
 * out  at: the indices; least: the sums
 * scratch: k floats
 * over-reads: none      fails: never                                                                                  */
typedef void (*mb_nearest_kernel)(const float *src, const float *weights, uint32_t count, const mb_vectors *palette, float *scratch, uint8_t *at, float *least);

MB_KERNEL void mb_nearest_plain(const float *src, const float *weights, uint32_t count, const mb_vectors *palette, float *scratch, uint8_t *at, float *least) {
    const uint32_t k = palette->k, dims = palette->dims;
    for (uint32_t i = 0; i < count; i++) {
        const float *x = src + (size_t)i * dims, *w = weights == NULL ? NULL : weights + (size_t)i * dims;
        for (uint32_t j = 0; j < k; j++) scratch[j] = 0;
        for (uint32_t d = 0; d < dims; d++) {
            const float *entry = palette->entries + (size_t)d * k, number = x[d], heavy = w == NULL ? 1.0f : w[d];
            for (uint32_t j = 0; j < k; j++) {
                const float difference = number - entry[j], square = difference * difference, part = heavy * square;
                scratch[j] += part;
            }
        }
        const uint32_t best = mb_vectors_least(scratch, k);
        at[i] = (uint8_t)best, least[i] = scratch[best];
    }
}

/* The same with a vector in each lane of two registers: no distance is stored, and no register is searched for its least lane.
 * Elements of the last vectors that there are no lanes for go to the plain code.
 * V, WIDTH: a register of WIDTH floats; LOAD, STORE, SET, SUB, MUL, ADD: the operations of these names, each with its
 * own rounding;
 * LESS(distance, index, least, at): where the distance is less, it becomes the least, and the index that of the lane        */
#define MB_DEFINE_NEAREST(name, target, V, WIDTH, LOAD, STORE, SET, SUB, MUL, ADD, LESS) \
    target MB_STEP void name##_lanes(const float *xs, const float *ws, const mb_vectors *palette, const uint32_t dims, const bool is_heavy, float *least, float *at) { \
        const uint32_t k = palette->k; \
        V best[2] = {SET(0.0f), SET(0.0f)}, index[2] = {best[0], best[0]}, sum[2]; \
        for (uint32_t j = 0; j < k; j++) { \
            const float *entry = palette->entries + j; \
            sum[0] = sum[1] = SET(0.0f); \
            for (uint32_t d = 0; d < dims; d++) { \
                const V number = SET(entry[(size_t)d * k]); \
                for (uint32_t r = 0; r < 2; r++) { \
                    const V difference = SUB(LOAD(xs + (d * 2 + r) * WIDTH), number); \
                    V square = MUL(difference, difference); \
                    if (is_heavy) square = MUL(LOAD(ws + (d * 2 + r) * WIDTH), square); \
                    sum[r] = ADD(sum[r], square); \
                } \
            } \
            if (j == 0) best[0] = sum[0], best[1] = sum[1]; \
            else for (uint32_t r = 0; r < 2; r++) LESS(sum[r], SET((float)j), best[r], index[r]); \
        } \
        for (uint32_t r = 0; r < 2; r++) STORE(least + r * WIDTH, best[r]), STORE(at + r * WIDTH, index[r]); \
    } \
    target MB_KERNEL void name(const float *src, const float *weights, uint32_t count, const mb_vectors *palette, float *scratch, uint8_t *at, float *least) { \
        float xs[2 * WIDTH * MB_VECTORS_WIDE], ws[2 * WIDTH * MB_VECTORS_WIDE], places[2 * WIDTH]; \
        const uint32_t dims = palette->dims; \
        uint32_t i = 0; \
        if (dims <= MB_VECTORS_WIDE) { \
            for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) { \
                for (uint32_t lane = 0; lane < 2 * WIDTH; lane++) { \
                    for (uint32_t d = 0; d < dims; d++) { \
                        xs[d * 2 * WIDTH + lane] = src[(size_t)(i + lane) * dims + d]; \
                        if (weights != NULL) ws[d * 2 * WIDTH + lane] = weights[(size_t)(i + lane) * dims + d]; \
                    } \
                } \
                if (weights != NULL) name##_lanes(xs, ws, palette, dims, true, least + i, places); \
                else if (dims == 2) name##_lanes(xs, ws, palette, 2, false, least + i, places); \
                else if (dims == 4) name##_lanes(xs, ws, palette, 4, false, least + i, places); \
                else name##_lanes(xs, ws, palette, dims, false, least + i, places); \
                for (uint32_t lane = 0; lane < 2 * WIDTH; lane++) at[i + lane] = (uint8_t)places[lane]; \
            } \
        } \
        mb_nearest_plain(src + (size_t)i * dims, weights == NULL ? NULL : weights + (size_t)i * dims, count - i, palette, scratch, at + i, least + i); \
    }

/* Find the nearest entry of each of any number of vectors, and add up the sums for the next palette.
 * in   kernel; src, weights, count, palette, scratch: as for it
 * out  dst: count indices, or NULL; sums, totals: k * dims doubles, entry after entry, added to: the weighted elements that
 *      are nearest to each entry, and their weights
 * returns the sum of the squared differences, weighted      over-reads: none      fails: never                         */
MB_KERNEL double mb_vectors_nearest(mb_nearest_kernel kernel, const float *src, const float *weights, uint64_t count, const mb_vectors *palette, float *scratch,
                                    uint8_t *dst, double *sums, double *totals) {
    const uint32_t dims = palette->dims;
    uint8_t at[MB_VECTORS_BLOCK];
    float least[MB_VECTORS_BLOCK];
    double squared = 0;
    for (size_t first = 0; first < (size_t)count; first += MB_VECTORS_BLOCK) {
        const uint32_t number = (uint32_t)((size_t)count - first < MB_VECTORS_BLOCK ? (size_t)count - first : MB_VECTORS_BLOCK);
        const float *x = src + first * dims, *w = weights == NULL ? NULL : weights + first * dims;
        kernel(x, w, number, palette, scratch, at, least);
        if (dst != NULL) memcpy(dst + first, at, number);
        for (uint32_t i = 0; i < number; i++) {
            double *sum = sums + (size_t)at[i] * dims, *total = totals + (size_t)at[i] * dims;
            squared += (double)least[i];
            for (uint32_t d = 0; d < dims; d++, x++) {
                const double heavy = w == NULL ? 1.0 : (double)*w++;
                sum[d] += heavy * (double)*x;
                total[d] += heavy;
            }
        }
    }
    return squared;
}

#endif
