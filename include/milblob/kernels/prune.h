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

/* Keep the elements whose magnitude is above `cut`.
 * in   src: count elements, any alignment; room: elements that `kept` holds
 * out  mask: (count + 7) / 8 bytes, a bit for each element, least significant first, 1 for those that are kept; kept: they,
 *      one after another, not more than `room`
 * returns how many are kept      over-reads: none      fails: never                                                    */
MB_KERNEL uint64_t mb_prune_split(const uint8_t *src, uint64_t count, bool is_f16, uint32_t cut, uint8_t *mask, uint8_t *kept, uint64_t room, mb_prune_error *error) {
    const size_t nbytes = is_f16 ? 2 : 4;
    uint64_t found = 0;
    memset(mask, 0, (size_t)(count / 8 + (count % 8 != 0)));
    for (size_t i = 0; i < (size_t)count; i++) {
        uint8_t element[4];
        memcpy(element, src + i * nbytes, nbytes); /* once: a source may change */
        const bool is_kept = mb_magnitude(element, 0, is_f16) > cut;
        const double x = is_f16 ? mb_float_from_f16(element, 0) : mb_float_from_f32(element, 0), lost = is_kept ? 0 : x;
        mask[i >> 3] |= (uint8_t)(is_kept << (i & 7));
        if (found < room) memcpy(kept + found * nbytes, element, nbytes);
        found += is_kept;
        error->squared += lost * lost, error->power += x * x;
        error->largest = lost > error->largest ? lost : -lost > error->largest ? -lost : error->largest;
    }
    return found;
}

#endif
