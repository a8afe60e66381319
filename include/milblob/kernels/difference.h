/* kernels/difference.h: compares two whole arrays with a tier's kernels; and an order-independent hash of elements. */
#ifndef MILBLOB_DIFFERENCE_H
#define MILBLOB_DIFFERENCE_H

#include "milblob/kernels.h"

/* Compare count elements of two arrays; see compare.h.
 * in   a, b: elements of the two dtypes, little-endian, any alignment, those below 8 bits one to a byte
 * out  total: added to                                                        over-reads: none      fails: never         */
static inline void mb_compare(const mb_tier *tier, uint32_t a_code, const uint8_t *a, uint32_t b_code, const uint8_t *b, uint64_t count, mb_tolerance tolerance, mb_comparison *total) {
    const size_t a_nbytes = mb_number_nbytes(a_code), b_nbytes = mb_number_nbytes(b_code);
    const bool is_narrow = mb_number_is_narrow(a_code) && mb_number_is_narrow(b_code);
    const bool is_whole64 = mb_number_is_whole64(a_code) || mb_number_is_whole64(b_code);
    double numbers[2][MB_COMPARE_BLOCK];
    for (uint32_t some; count > 0; count -= some, a += some * a_nbytes, b += some * b_nbytes) {
        mb_comparison part;
        bool done = false;
        some = count < MB_COMPARE_BLOCK ? (uint32_t)count : (uint32_t)MB_COMPARE_BLOCK;
        const uint32_t filled = (some + 3) & ~3u; /* with zeros, which change nothing */
        if (is_narrow) {
            float *x = (float *)(void *)numbers[0], *y = (float *)(void *)numbers[1];
            mb_narrow_numbers(x, a_code, a, some, tier->cast[MB_CAST_F16_F32]);
            mb_narrow_numbers(y, b_code, b, some, tier->cast[MB_CAST_F16_F32]);
            for (uint32_t i = some; i < filled; i++) x[i] = y[i] = 0;
            done = tier->compare_f32(x, y, filled, tolerance, &part);
        } else if (!is_whole64) {
            mb_wide_numbers(numbers[0], a_code, a, some);
            mb_wide_numbers(numbers[1], b_code, b, some);
            for (uint32_t i = some; i < filled; i++) numbers[0][i] = numbers[1][i] = 0;
            done = tier->compare_f64(numbers[0], numbers[1], filled, tolerance, &part);
        }
        if (done) part.count = part.finite = some;
        else mb_compare_any(a_code, a, b_code, b, some, tolerance, &part);
        mb_comparison_add(total, &part);
    }
}

/* The sum of a hash of every element: equal for the same elements in another order. The hash is the finaliser of
 * splitmix64 (Steele, Lea and Flood 2014).
 * in   src: count elements of nbytes (1, 2, 4 or 8), little-endian, any alignment        over-reads: none      fails: never */
static inline uint64_t mb_hash_elements(const uint8_t *src, uint64_t count, size_t nbytes) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++, src += nbytes) {
        uint64_t x = nbytes == 1 ? src[0] : nbytes == 2 ? mb_load_u16(src) : nbytes == 4 ? mb_load_u32(src) : mb_load_u64(src);
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        sum += x ^ x >> 31;
    }
    return sum;
}

#endif
