/* kernels/squares.h: squares and sums of them, each rounded to the dtype of the elements, as NumPy rounds.
 *
 * Only float16 has kernels of other tiers: compilers vectorize the plain ones of float32. */
#ifndef MILBLOB_SQUARES_H
#define MILBLOB_SQUARES_H

#include "milblob/kernels/scale.h"

/* Add the squares of count elements to as many sums.
 * in   src: any alignment; must not overlap sums      out  sums: of the same dtype, any alignment; each becomes
 *      round(sum + round(element * element))          over-reads: none      fails: never                                 */
typedef void (*mb_add_squares_kernel)(uint8_t *sums, const uint8_t *src, uint64_t count);

/* Square count elements: dst becomes round(element * element), as float32. As mb_add_squares_kernel otherwise. */
typedef void (*mb_square_kernel)(float *dst, const uint8_t *src, uint64_t count);

MB_KERNEL void mb_add_squares_f32_plain(uint8_t *MB_RESTRICT sums, const uint8_t *MB_RESTRICT src, uint64_t count) {
    for (size_t i = 0; i < (size_t)count; i++) {
        const float x = mb_float_from_f32(src, i);
        const float square = x * x;
        mb_put_f32(sums, i, mb_float_from_f32(sums, i) + square);
    }
}

MB_KERNEL void mb_add_squares_f16_plain(uint8_t *MB_RESTRICT sums, const uint8_t *MB_RESTRICT src, uint64_t count) {
    for (size_t i = 0; i < (size_t)count; i++) {
        const float x = mb_float_from_f16(src, i);
        mb_put_f16(sums, i, mb_float_from_f16(sums, i) + mb_to_half(x * x));
    }
}

MB_KERNEL void mb_square_f32_plain(float *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count) {
    for (size_t i = 0; i < (size_t)count; i++) {
        const float x = mb_float_from_f32(src, i);
        dst[i] = x * x;
    }
}

MB_KERNEL void mb_square_f16_plain(float *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count) {
    for (size_t i = 0; i < (size_t)count; i++) {
        const float x = mb_float_from_f16(src, i);
        dst[i] = mb_to_half(x * x);
    }
}

#endif
