/* kernels/sums.h: the error when elements change: sums of squares that are the same in every tier.
 *
 * Sums are taken in MB_LANES of doubles: an element goes to the lane of its place in its run, so every tier adds the same
 * numbers in the same order. Squares of floats are exact in doubles: whether a machine rounds between the product and the
 * sum does not matter.
 *
 * Quantization of float16 adds up to MB_ROWS rows of lanes in float32 first, counted from the first row of a call of a kernel: half as
 * many instructions. Squares of float16 are in the range of float32, so the relative error of a sum is at most 2^-19 (0.00001 dB). */
#ifndef MILBLOB_SUMS_H
#define MILBLOB_SUMS_H

#include "milblob/base.h"

enum { MB_LANES = 16, MB_ROWS = 32 };

/* Added to. */
typedef struct mb_sums {
    double squared[MB_LANES]; /* squares of the differences between old and new elements */
    double power[MB_LANES];   /* squares of the elements */
    uint32_t largest;         /* difference: its bits, as a float32 without sign */
} mb_sums;

static inline double mb_sum_lanes(const double *lanes) {
    double sums[8]; /* in loops of known length, which need no loop */
    for (unsigned k = 0; k < 8; k++) sums[k] = lanes[k] + lanes[k + 8];
    for (unsigned k = 0; k < 4; k++) sums[k] += sums[k + 4];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

#endif
