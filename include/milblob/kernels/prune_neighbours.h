/* kernels/prune_neighbours.h: of every few neighbours, those of the least magnitude become zero.
 *
 * Groups go through in lanes. An element is among the least of its group if enough of its neighbours are greater and
 * not too many are less. Where elements are equal, this may not decide between them: the caller gets the numbers of
 * such groups. */
#ifndef MILBLOB_PRUNE_NEIGHBOURS_H
#define MILBLOB_PRUNE_NEIGHBOURS_H

#include "milblob/kernels/prune.h"

#define MB_NEIGHBOURS_LANES 64u
#define MB_NEIGHBOURS_MOST 32u /* neighbours in a group */

/* Elements as [outer][channels][inner]: every m of the channels are a group, the last one filled up with zeros. */
typedef struct mb_neighbours {
    uint64_t outer, channels, inner;
    uint32_t n, m; /* the n least of m are dropped; m of 1 to MB_NEIGHBOURS_MOST */
} mb_neighbours;

/* Choose the elements to keep: those that are not zero, and are not among the n least of their group.
 * in   src: outer * channels * inner elements, any alignment; each is read once
 * out  mask: a bit for each element, least significant first; bits beyond them are zero; ties: room for the number of every
 *      group; groups are counted through [outer][group][inner]. A group with equal magnitudes above zero on both sides
 *      of the cut is listed there, and all its nonzero elements are kept; largest: raised to the bits of the greatest
 *      magnitude
 * returns the length of ties      over-reads: none      fails: never                                                 */
typedef uint64_t (*mb_neighbours_kernel)(const uint8_t *src, const mb_neighbours *shape, uint8_t *mask, uint64_t *ties, uint32_t *largest);

/* Neighbours that lie side by side in memory, in as many lanes. */
typedef struct mb_neighbours_run {
    uint64_t begin;
    uint32_t own, lane, count; /* own: channels of the group */
} mb_neighbours_run;

/* Set bits [at, at + count) of a mask, 64 at most, to those of `bits`; they are zero. */
MB_STEP void mb_mask_put(uint8_t *mask, uint64_t at, uint64_t bits, uint32_t count) {
    const unsigned shift = at % 8, last = (shift + count - 1) / 8;
    uint8_t *const to = mask + at / 8;
    if (count == 64 && shift == 0) {
        mb_store_u64(to, bits);
        return;
    }
    if (count < 64) bits &= ((uint64_t)1 << count) - 1;
    for (unsigned k = 0; k <= last && k < 8; k++) to[k] |= (uint8_t)(bits << shift >> (8 * k));
    if (last == 8) to[8] |= (uint8_t)(bits >> (64 - shift));
}

/* Magnitudes of MB_NEIGHBOURS_LANES groups, [neighbour][lane]; the flags of kept and of tied ones: 0 or -1. name##_row:
 * whole groups one after the other; name##_runs: any others. */
#define MB_DEFINE_NEIGHBOURS(name, type, size, LOAD, MAGNITUDE) \
    MB_STEP void name##_rank(const type *sizes, uint32_t n, const uint32_t m, type *stays, type *tied, type *most) { \
        const type left = (type)(m - n), least = (type)n; \
        for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) tied[lane] = 0; \
        for (uint32_t i = 0; i < m; i++) { \
            const type *own = sizes + i * MB_NEIGHBOURS_LANES; \
            type less[MB_NEIGHBOURS_LANES] = {0}, more[MB_NEIGHBOURS_LANES] = {0}; \
            for (uint32_t j = 0; j < m; j++) { \
                const type *other = sizes + j * MB_NEIGHBOURS_LANES; \
                for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) { \
                    less[lane] = (type)(less[lane] + (other[lane] < own[lane])); \
                    more[lane] = (type)(more[lane] + (other[lane] > own[lane])); \
                } \
            } \
            for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) { \
                stays[i * MB_NEIGHBOURS_LANES + lane] = (type) - (more[lane] < left); \
                tied[lane] = (type)(tied[lane] | -((less[lane] < least) & (more[lane] < left) & (own[lane] > 0))); \
                most[lane] = own[lane] > most[lane] ? own[lane] : most[lane]; \
            } \
        } \
        for (uint32_t i = 0; i < m; i++) \
            for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) { \
                const uint32_t at = i * MB_NEIGHBOURS_LANES + lane; \
                stays[at] = (type)((stays[at] | tied[lane]) & (type) - (sizes[at] > 0)); \
            } \
    } \
    MB_STEP uint64_t name##_ties(const type *tied, uint32_t lanes, uint64_t number, uint64_t *ties) { \
        uint64_t found = 0; \
        type any = 0; \
        for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) any = (type)(any | tied[lane]); \
        if (any == 0) return 0; \
        for (uint32_t lane = 0; lane < lanes; lane++) \
            if (tied[lane]) ties[found++] = number + lane; \
        return found; \
    } \
    MB_STEP uint64_t name##_row(const uint8_t *src, uint64_t groups, uint32_t n, const uint32_t m, uint8_t *mask, uint64_t *ties, type *most) { \
        type sizes[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST] = {0}, stays[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST], tied[MB_NEIGHBOURS_LANES]; \
        type bits[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST / 8]; \
        uint64_t found = 0, word = 0; \
        uint32_t used = 0; \
        for (uint64_t begin = 0; begin < groups; begin += MB_NEIGHBOURS_LANES) { \
            const uint32_t lanes = groups - begin < MB_NEIGHBOURS_LANES ? (uint32_t)(groups - begin) : MB_NEIGHBOURS_LANES; \
            const uint8_t *const from = src + size * m * begin; \
            if (lanes == MB_NEIGHBOURS_LANES) { \
                for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) \
                    for (uint32_t i = 0; i < m; i++) sizes[i * MB_NEIGHBOURS_LANES + lane] = (type)(LOAD(from + size * (lane * m + i)) & MAGNITUDE); \
            } else { \
                for (uint32_t lane = 0; lane < lanes; lane++) \
                    for (uint32_t i = 0; i < m; i++) sizes[i * MB_NEIGHBOURS_LANES + lane] = (type)(LOAD(from + size * (lane * m + i)) & MAGNITUDE); \
            } \
            MB_ONCE(); \
            name##_rank(sizes, n, m, stays, tied, most); \
            memset(bits, 0, sizeof bits); \
            for (uint32_t i = 0; i < m; i++) \
                for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) \
                    bits[i / 8 * MB_NEIGHBOURS_LANES + lane] = (type)(bits[i / 8 * MB_NEIGHBOURS_LANES + lane] | (stays[i * MB_NEIGHBOURS_LANES + lane] & (1 << i % 8))); \
            for (uint32_t lane = 0; lane < lanes; lane++) \
                for (uint32_t i = 0; i < m; i += 8) { \
                    word |= (uint64_t)(uint32_t)bits[i / 8 * MB_NEIGHBOURS_LANES + lane] << used, used += m - i < 8 ? m - i : 8; \
                    if (used < 32) continue; \
                    mb_store_u32(mask, (uint32_t)word), mask += 4; \
                    word >>= 32, used -= 32; \
                } \
            found += name##_ties(tied, lanes, begin, ties + found); \
        } \
        for (; used > 0; used = used > 8 ? used - 8 : 0, word >>= 8) *mask++ = (uint8_t)word; \
        return found; \
    } \
    MB_STEP uint64_t name##_runs(const uint8_t *src, const mb_neighbours *shape, const uint32_t m, uint8_t *mask, uint64_t *ties, type *most) { \
        type sizes[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST] = {0}, stays[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST], tied[MB_NEIGHBOURS_LANES]; \
        mb_neighbours_run runs[MB_NEIGHBOURS_LANES]; \
        uint64_t number = 0, found = 0, bits[MB_NEIGHBOURS_MOST]; \
        uint32_t lanes = 0, used = 0; \
        const uint64_t inner = shape->inner, groups = shape->channels / m + (shape->channels % m != 0); \
        memset(mask, 0, (size_t)((shape->outer * shape->channels * inner + 7) / 8)); \
        for (uint64_t outer = 0; outer < shape->outer; outer++) \
            for (uint64_t group = 0; group < groups; group++) \
                for (uint64_t at = 0; at < inner;) { \
                    const uint64_t left = shape->channels - group * m; \
                    mb_neighbours_run run = {(outer * shape->channels + group * m) * inner + at, left < m ? (uint32_t)left : m, lanes, 0}; \
                    run.count = inner - at < MB_NEIGHBOURS_LANES - lanes ? (uint32_t)(inner - at) : MB_NEIGHBOURS_LANES - lanes; \
                    for (uint32_t i = 0; i < m; i++) { \
                        const uint8_t *const from = src + size * (run.begin + (i < run.own ? i : 0) * inner); \
                        type *const to = sizes + i * MB_NEIGHBOURS_LANES + lanes; \
                        if (i >= run.own) memset(to, 0, size * run.count); \
                        else if (run.count == MB_NEIGHBOURS_LANES) \
                            for (uint32_t k = 0; k < MB_NEIGHBOURS_LANES; k++) to[k] = (type)(LOAD(from + size * k) & MAGNITUDE); \
                        else \
                            for (uint32_t k = 0; k < run.count; k++) to[k] = (type)(LOAD(from + size * k) & MAGNITUDE); \
                    } \
                    MB_ONCE(); \
                    runs[used++] = run, lanes += run.count, at += run.count; \
                    if (lanes < MB_NEIGHBOURS_LANES && (outer + 1 < shape->outer || group + 1 < groups || at < inner)) continue; \
                    name##_rank(sizes, shape->n, m, stays, tied, most); \
                    for (uint32_t i = 0; i < m; i++) { \
                        uint8_t flags[MB_NEIGHBOURS_LANES], eighths[8]; \
                        for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) flags[lane] = (uint8_t)(stays[i * MB_NEIGHBOURS_LANES + lane] & 1); \
                        mb_flags_pack(flags, MB_NEIGHBOURS_LANES, eighths); \
                        bits[i] = mb_load_u64(eighths); \
                    } \
                    for (uint32_t k = 0; k < used; k++) \
                        for (uint32_t i = 0; i < runs[k].own; i++) mb_mask_put(mask, runs[k].begin + i * inner, bits[i] >> runs[k].lane, runs[k].count); \
                    found += name##_ties(tied, lanes, number, ties + found); \
                    number += lanes, lanes = used = 0; \
                } \
        return found; \
    } \
    MB_STEP uint64_t name(const uint8_t *src, const mb_neighbours *shape, uint8_t *mask, uint64_t *ties, uint32_t *largest) { \
        type most[MB_NEIGHBOURS_LANES] = {0}; \
        uint64_t found = 0; \
        if (shape->outer == 0 || shape->channels == 0 || shape->inner == 0) return 0; \
        if (shape->inner > 1 || shape->channels % shape->m != 0) { \
            if (shape->m == 4) found = name##_runs(src, shape, 4, mask, ties, most); \
            else if (shape->m == 2) found = name##_runs(src, shape, 2, mask, ties, most); \
            else if (shape->m == 16) found = name##_runs(src, shape, 16, mask, ties, most); \
            else if (shape->m == 8) found = name##_runs(src, shape, 8, mask, ties, most); \
            else found = name##_runs(src, shape, shape->m, mask, ties, most); \
        } else { \
            const uint64_t groups = shape->outer * shape->channels / shape->m; \
            if (shape->m == 4) found = name##_row(src, groups, shape->n, 4, mask, ties, most); \
            else if (shape->m == 2) found = name##_row(src, groups, shape->n, 2, mask, ties, most); \
            else if (shape->m == 16) found = name##_row(src, groups, shape->n, 16, mask, ties, most); \
            else if (shape->m == 8) found = name##_row(src, groups, shape->n, 8, mask, ties, most); \
            else found = name##_row(src, groups, shape->n, shape->m, mask, ties, most); \
        } \
        for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) *largest = (uint32_t)most[lane] > *largest ? (uint32_t)most[lane] : *largest; \
        return found; \
    }

MB_DEFINE_NEIGHBOURS(mb_neighbours_16, int16_t, 2, mb_load_u16, 0x7fff)
MB_DEFINE_NEIGHBOURS(mb_neighbours_32, int32_t, 4, mb_load_u32, 0x7fffffff)

#define MB_DEFINE_NEIGHBOURS_TIER(name, target) \
    target MB_KERNEL uint64_t mb_neighbours_f16_##name(const uint8_t *src, const mb_neighbours *shape, uint8_t *mask, uint64_t *ties, uint32_t *largest) { return mb_neighbours_16(src, shape, mask, ties, largest); } \
    target MB_KERNEL uint64_t mb_neighbours_f32_##name(const uint8_t *src, const mb_neighbours *shape, uint8_t *mask, uint64_t *ties, uint32_t *largest) { return mb_neighbours_32(src, shape, mask, ties, largest); }

MB_DEFINE_NEIGHBOURS_TIER(plain, )

#endif
