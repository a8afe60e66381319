/* kernels/prune.h: which elements of an array are kept, and those packed without the others.
 *
 * Magnitudes of floats compare like their bits without the sign, so a threshold is a bit pattern, for float16 and float32. */
#ifndef MILBLOB_PRUNE_H
#define MILBLOB_PRUNE_H

#include "milblob/kernels/scale.h"

#define MB_MAGNITUDES 32768u

MB_STEP uint32_t mb_magnitude(const uint8_t *src, size_t i, bool is_f16) {
    return is_f16 ? mb_load_u16(src + 2 * i) & 0x7fffu : mb_load_u32(src + 4 * i) & 0x7fffffffu;
}

/* Count elements by the upper 15 bits of their magnitude (all of it, for float16).
 * in   src: count elements, any alignment      out  counts: MB_MAGNITUDES, added to
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_prune_count(const uint8_t *src, uint64_t count, bool is_f16, uint64_t *counts) {
    const unsigned shift = is_f16 ? 0 : 16;
    for (size_t i = 0; i < (size_t)count; i++) counts[mb_magnitude(src, i, is_f16) >> shift]++;
}

/* Collect the magnitudes of float32 elements whose upper 15 bits are `top`. At most `room` are written.
 * returns how many there are      over-reads: none      fails: never                                                   */
MB_KERNEL uint64_t mb_prune_collect(const uint8_t *src, uint64_t count, uint32_t top, uint32_t *dst, uint64_t room) {
    uint64_t found = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        const uint32_t magnitude = mb_magnitude(src, i, false);
        if (magnitude >> 16 != top) continue;
        if (found < room) dst[found] = magnitude;
        found++;
    }
    return found;
}

/* What pruning does to elements; added to. */
typedef struct mb_prune_error {
    double squared, power, largest;
} mb_prune_error;

/* Measure float32 elements of which those with a magnitude of at most `cut` become zero. For float16 the counts say it all. */
MB_KERNEL void mb_prune_measure(const uint8_t *src, uint64_t count, uint32_t cut, mb_prune_error *error) {
    double power[8] = {0}, squared[8] = {0};
    uint32_t largest = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        const uint32_t magnitude = mb_magnitude(src, i, false), mask = 0u - (uint32_t)(magnitude <= cut);
        const double x = mb_float_of(magnitude), lost = mb_float_of(magnitude & mask);
        power[i & 7] += x * x, squared[i & 7] += lost * lost;
        largest = (magnitude & mask) > largest ? magnitude & mask : largest;
    }
    for (unsigned k = 0; k < 8; k++) error->power += power[k], error->squared += squared[k];
    error->largest = mb_float_of(largest) > error->largest ? mb_float_of(largest) : error->largest;
}

/* Keep the elements whose magnitude is above `cut`. Every element is stored where the next one that is kept goes; the next
 * one overwrites it if it is not.
 * in   src: count elements, any alignment
 * out  mask: (count + 7) / 8 bytes, a bit for each element, least significant first, 1 for those that are kept; kept: room
 *      for count elements; the first of them are those that are kept, the others are unspecified
 * returns how many are kept      over-reads: none      fails: never                                                    */
MB_STEP uint64_t mb_prune_split_as(const uint8_t *src, uint64_t count, const bool is_f16, uint32_t cut, uint8_t *mask, uint8_t *kept) {
    uint64_t found = 0;
    for (size_t begin = 0; begin < (size_t)count; begin += 8) {
        const size_t n = (size_t)count - begin < 8 ? (size_t)count - begin : 8;
        uint32_t bits = 0;
        for (size_t k = 0; k < n; k++) {
            uint8_t element[4]; /* once: a source may change */
            memcpy(element, src + (begin + k) * (is_f16 ? 2u : 4u), is_f16 ? 2 : 4);
            const uint32_t is_kept = mb_magnitude(element, 0, is_f16) > cut;
            memcpy(kept + found * (is_f16 ? 2u : 4u), element, is_f16 ? 2 : 4);
            bits |= is_kept << k, found += is_kept;
        }
        mask[begin / 8] = (uint8_t)bits;
    }
    return found;
}

/* As above, each with its size as a constant. */
MB_KERNEL uint64_t mb_prune_split(const uint8_t *src, uint64_t count, bool is_f16, uint32_t cut, uint8_t *mask, uint8_t *kept) {
    if (is_f16) return mb_prune_split_as(src, count, true, cut, mask, kept);
    return mb_prune_split_as(src, count, false, cut, mask, kept);
}

#endif
