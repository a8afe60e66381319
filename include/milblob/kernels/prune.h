/* kernels/prune.h: which elements of an array are kept, and those packed without the others.
 *
 * Magnitudes of floats compare like their bits without the sign, so a threshold is a bit pattern, for float16 and float32. */
#ifndef MILBLOB_PRUNE_H
#define MILBLOB_PRUNE_H

#include "milblob/kernels/scale.h"
#include "milblob/kernels/sums.h"

#define MB_MAGNITUDES 32768u

MB_STEP uint32_t mb_magnitude(const uint8_t *src, size_t i, bool is_f16) {
    return is_f16 ? mb_load_u16(src + 2 * i) & 0x7fffu : mb_load_u32(src + 4 * i) & 0x7fffffffu;
}

/* Flags to bits, eight to a byte, least significant first. flags: 0 or 1, zero up to the next multiple of eight. */
MB_STEP uint64_t mb_flags_pack(const uint8_t *flags, uint64_t count, uint8_t *mask) {
    uint64_t ones = 0;
    for (size_t i = 0; i < (size_t)count; i += 8) {
        uint64_t eight = 0;
        for (unsigned k = 0; k < 8; k++) eight |= (uint64_t)flags[i + k] << (8 * k);
        mask[i / 8] = (uint8_t)(eight * 0x0102040810204080u >> 56);
        ones += eight * 0x0101010101010101u >> 56;
    }
    return ones;
}

/* Count elements by the upper 15 bits of their magnitude (all of it, for float16).
 * A counter takes 32 bits, so that the counters of most weights fit into the L1 cache, and eight bytes of elements are
 * read at once: a CPU raises one counter per cycle if nothing else is in the way.
 * in   src: count elements, fewer than 2^32, any alignment      out  counts: MB_MAGNITUDES, added to
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_prune_count(const uint8_t *src, uint64_t count, bool is_f16, uint32_t *counts) {
    const size_t n = (size_t)count;
    size_t i = 0;
    for (; is_f16 && i + 4 <= n; i += 4) {
        const uint64_t four = mb_load_u64(src + 2 * i);
        counts[four & 0x7fffu]++, counts[four >> 16 & 0x7fffu]++, counts[four >> 32 & 0x7fffu]++, counts[four >> 48 & 0x7fffu]++;
    }
    for (; !is_f16 && i + 2 <= n; i += 2) {
        const uint64_t two = mb_load_u64(src + 4 * i);
        counts[two >> 16 & 0x7fffu]++, counts[two >> 48 & 0x7fffu]++;
    }
    for (; i < n; i++) counts[mb_magnitude(src, i, is_f16) >> (is_f16 ? 0 : 16)]++;
}

/* Count float32 elements whose upper 15 bits are `top` by their lower 16 bits.
 * in   src: count elements, any alignment      out  counts: 65536, added to      over-reads: none      fails: never     */
MB_KERNEL void mb_prune_count_below(const uint8_t *src, uint64_t count, uint32_t top, uint64_t *counts) {
    for (size_t i = 0; i < (size_t)count; i++) {
        const uint32_t magnitude = mb_magnitude(src, i, false);
        if (magnitude >> 16 == top) counts[magnitude & 0xffffu]++;
    }
}

/* Keep the elements whose magnitude is above `cut`.
 * in   src: count elements, any alignment
 * out  mask: (count + 7) / 8 bytes, a bit for each element, least significant first, 1 for those that are kept; kept: room
 *      for count elements; the first of them are those that are kept, the others are unspecified; sums: of float32: added
 *      to, the others become zero. For float16 the counts of mb_prune_count suffice, and sums is not used.
 * returns how many are kept      over-reads: none      fails: never                                                    */
typedef uint64_t (*mb_split_kernel)(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums);

/* Every element is stored where the next one that is kept goes; the next one overwrites it if it is not. */
MB_STEP uint64_t mb_split_plain(const uint8_t *src, uint64_t count, const bool is_f16, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    const size_t size = is_f16 ? 2 : 4;
    uint64_t found = 0;
    for (size_t begin = 0; begin < (size_t)count; begin += 8) {
        const size_t n = (size_t)count - begin < 8 ? (size_t)count - begin : 8;
        uint32_t bits = 0;
        for (size_t k = 0; k < n; k++) {
            uint8_t element[4];
            memcpy(element, src + (begin + k) * size, size);
            MB_ONCE(); /* a source may change: keep the value that was compared */
            const uint32_t magnitude = mb_magnitude(element, 0, is_f16), is_kept = magnitude > cut;
            memcpy(kept + found * size, element, size);
            bits |= is_kept << k, found += is_kept;
            if (is_f16) continue;
            const uint32_t lost = magnitude & (is_kept - 1u);
            const double x = mb_float_of(magnitude), off = mb_float_of(lost);
            sums->power[(begin + k) % MB_LANES] += x * x, sums->squared[(begin + k) % MB_LANES] += off * off;
            sums->largest = lost > sums->largest ? lost : sums->largest;
        }
        mask[begin / 8] = (uint8_t)bits;
    }
    return found;
}

MB_KERNEL uint64_t mb_split_f16_plain(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    return mb_split_plain(src, count, true, cut, mask, kept, sums);
}

MB_KERNEL uint64_t mb_split_f32_plain(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    return mb_split_plain(src, count, false, cut, mask, kept, sums);
}

/* Which elements have a magnitude with more than the bits `cut`: a bit for each.
 * in   src: count elements, any alignment      out  mask: (count + 7) / 8 bytes, least significant first; bits beyond the
 *      elements are zero      over-reads: none      fails: never                                                        */
typedef void (*mb_above_kernel)(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask);

#define MB_ABOVE_AT_ONCE 512u

#define MB_DEFINE_ABOVE(name, type, size, LOAD, MAGNITUDE) \
    MB_KERNEL void name(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask) { \
        const type top = (type)(cut < MAGNITUDE ? cut : MAGNITUDE); \
        for (uint64_t begin = 0; begin < count; begin += MB_ABOVE_AT_ONCE) { \
            const size_t n = count - begin < MB_ABOVE_AT_ONCE ? (size_t)(count - begin) : MB_ABOVE_AT_ONCE; \
            uint8_t flags[MB_ABOVE_AT_ONCE]; \
            for (size_t i = 0; i < n; i++) flags[i] = (uint8_t)((type)(LOAD(src + size * (begin + i)) & MAGNITUDE) > top); \
            for (size_t i = n; i % 8 != 0; i++) flags[i] = 0; \
            mb_flags_pack(flags, n, mask + begin / 8); \
        } \
    }

MB_DEFINE_ABOVE(mb_above_f16_plain, int16_t, 2, mb_load_u16, 0x7fff)
MB_DEFINE_ABOVE(mb_above_f32_plain, int32_t, 4, mb_load_u32, 0x7fffffff)

/* Keep the elements that are chosen and not zero, and measure the others.
 * in   src: count elements, any alignment; each is read once; chosen: (count + 7) / 8 bytes, a bit for each
 * out  mask, kept: as of mb_split_kernel; sums: added to; `power` is that of the kept elements only
 * returns how many are kept      over-reads: none      fails: never                                                    */
typedef uint64_t (*mb_split_chosen_kernel)(const uint8_t *src, uint64_t count, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums);

#define MB_CHOSEN_AT_ONCE 512u

#define MB_DEFINE_SPLIT_CHOSEN(name, target, is_f16, size, cast) \
    target MB_KERNEL uint64_t name(const uint8_t *src, uint64_t count, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) { \
        static const uint32_t lanes[8] = {1, 2, 4, 8, 16, 32, 64, 128}; \
        uint8_t raw[size * MB_CHOSEN_AT_ONCE], wide[4 * MB_CHOSEN_AT_ONCE], bits[MB_CHOSEN_AT_ONCE / 8] = {0}; \
        uint32_t most[MB_LANES] = {0}; \
        uint64_t found = 0; \
        for (uint64_t begin = 0; begin < count; begin += MB_CHOSEN_AT_ONCE) { \
            const size_t n = count - begin < MB_CHOSEN_AT_ONCE ? (size_t)(count - begin) : MB_CHOSEN_AT_ONCE, whole = (n + MB_LANES - 1) / MB_LANES * MB_LANES; \
            mb_cast_counts counts = {0, 0, 0}; \
            memcpy(bits, chosen + begin / 8, (n + 7) / 8); \
            memcpy(raw, src + size * begin, size * n), memset(raw + size * n, 0, size * (whole - n)); \
            MB_ONCE(); /* a source may change: measure the value that is not kept */ \
            if (is_f16) cast(wide, raw, whole, false, &counts); \
            else memcpy(wide, raw, 4 * whole); \
            for (size_t i = 0; i < whole; i += MB_LANES) { \
                uint32_t lost[MB_LANES], stays[MB_LANES]; \
                for (size_t half = 0; half < MB_LANES; half += 8) \
                    for (size_t k = 0; k < 8; k++) { \
                        const uint32_t own = mb_load_u32(wide + 4 * (i + half + k)) & 0x7fffffffu; \
                        stays[half + k] = (bits[(i + half) / 8] & lanes[k]) == lanes[k] ? own : 0; \
                        lost[half + k] = own - stays[half + k]; \
                    } \
                for (size_t k = 0; k < MB_LANES; k++) { \
                    const double x = mb_float_of(lost[k]); \
                    sums->squared[k] += x * x; \
                    most[k] = (int32_t)lost[k] > (int32_t)most[k] ? lost[k] : most[k]; \
                } \
                for (size_t k = 0; k < MB_LANES; k++) { \
                    const double x = mb_float_of(stays[k]); \
                    sums->power[k] += x * x; \
                } \
            } \
            for (size_t i = 0; i < n; i += 8) { \
                uint32_t byte = 0; \
                for (unsigned k = 0; k < 8 && i + k < n; k++) { \
                    const uint32_t is_kept = ((uint32_t)bits[i / 8] >> k & 1u) & (mb_magnitude(raw, i + k, is_f16) > 0); \
                    memcpy(kept + size * found, raw + size * (i + k), size); \
                    byte |= is_kept << k, found += is_kept; \
                } \
                mask[(begin + i) / 8] = (uint8_t)byte; \
            } \
        } \
        for (size_t k = 0; k < MB_LANES; k++) sums->largest = most[k] > sums->largest ? most[k] : sums->largest; \
        return found; \
    }

MB_DEFINE_SPLIT_CHOSEN(mb_split_chosen_f16_plain, , true, 2, mb_cast_f16_f32_plain)
MB_DEFINE_SPLIT_CHOSEN(mb_split_chosen_f32_plain, , false, 4, mb_cast_f16_f32_plain)

#endif
