/* kernels/vectors.h: which entry of a palette of vectors is nearest to each vector, and what the next palette needs. */
#ifndef MILBLOB_VECTORS_H
#define MILBLOB_VECTORS_H

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

/* Find the nearest entry of each vector: the least sum of squared differences, in float32; the first of equals.
 * in   src: count * dims floats, a vector after the other; weights: as many, of each difference, or NULL for all alike;
 *      palette: k of 1 to 256, dims of 1 or more
 * out  dst: count indices, or NULL; sums, totals: k * dims doubles, entry after entry, added to: the weighted elements that
 *      are nearest to each entry, and their weights
 * scratch: k floats
 * returns the sum of the squared differences, weighted      over-reads: none      fails: never                         */
MB_KERNEL double mb_vectors_nearest(const float *src, const float *weights, uint64_t count, const mb_vectors *palette,
                                    float *scratch, uint8_t *dst, double *sums, double *totals) {
    const uint32_t k = palette->k, dims = palette->dims;
    double squared = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        const float *x = src + i * dims, *w = weights == NULL ? NULL : weights + i * dims;
        for (uint32_t j = 0; j < k; j++) scratch[j] = 0;
        for (uint32_t d = 0; d < dims; d++) {
            const float *entry = palette->entries + (size_t)d * k, at = x[d], heavy = w == NULL ? 1.0f : w[d];
            for (uint32_t j = 0; j < k; j++) {
                const float difference = at - entry[j], square = difference * difference;
                scratch[j] += heavy * square;
            }
        }
        const uint32_t best = mb_vectors_least(scratch, k);
        squared += (double)scratch[best];
        if (dst != NULL) dst[i] = (uint8_t)best;
        for (uint32_t d = 0; d < dims; d++) {
            const double heavy = w == NULL ? 1.0 : (double)w[d];
            sums[(size_t)best * dims + d] += heavy * (double)x[d];
            totals[(size_t)best * dims + d] += heavy;
        }
    }
    return squared;
}

#endif
