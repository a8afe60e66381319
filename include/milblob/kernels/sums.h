/* kernels/sums.h: the error when elements change: sums of squares that are the same in every tier.
 *
 * Sums are taken in MB_LANES of doubles: an element goes to the lane of its place in its run, so every tier adds the same
 * numbers in the same order. Squares of floats are exact in doubles: whether a machine rounds between the product and the
 * sum does not matter. */
#ifndef MILBLOB_SUMS_H
#define MILBLOB_SUMS_H

#include "milblob/base.h"

enum { MB_LANES = 16 };

/* Added to. */
typedef struct mb_sums {
    double squared[MB_LANES]; /* squares of the differences between old and new elements */
    double power[MB_LANES];   /* squares of the elements */
    uint32_t largest;         /* difference: its bits, as a float32 without sign */
} mb_sums;

static inline double mb_sum_lanes(const double *lanes) {
    double sums[MB_LANES];
    memcpy(sums, lanes, sizeof sums);
    for (unsigned left = MB_LANES / 2; left > 0; left /= 2)
        for (unsigned k = 0; k < left; k++) sums[k] += sums[k + left];
    return sums[0];
}

#endif
