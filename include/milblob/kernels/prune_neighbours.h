/* kernels/prune_neighbours.h: of every few neighbours, those of the least magnitude become zero.
 *
 * Groups go through in lanes: how many of its neighbours are less, and how many no greater, says of each element whether it is
 * one of the least. Where elements are equal, that need not say which of them: such groups are told to the caller. */
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

/* Magnitudes of up to MB_NEIGHBOURS_LANES groups, [neighbour][lane], and whether each is dropped: 0 or -1.
 * returns through `tied`: -1 where equal magnitudes above zero are on both sides */
#define MB_DEFINE_RANK(name, type) \
    MB_STEP void name(const type *magnitudes, uint32_t n, uint32_t m, type *drop, type *tied) { \
        const type most = (type)n; \
        for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) tied[lane] = 0; \
        for (uint32_t i = 0; i < m; i++) { \
            const type *own = magnitudes + i * MB_NEIGHBOURS_LANES; \
            type less[MB_NEIGHBOURS_LANES] = {0}, within[MB_NEIGHBOURS_LANES] = {0}; \
            for (uint32_t j = 0; j < m; j++) { \
                const type *other = magnitudes + j * MB_NEIGHBOURS_LANES; \
                for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) { \
                    less[lane] = (type)(less[lane] + (other[lane] < own[lane])); \
                    within[lane] = (type)(within[lane] + (other[lane] <= own[lane])); \
                } \
            } \
            for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) { \
                drop[i * MB_NEIGHBOURS_LANES + lane] = (type) - (within[lane] <= most); \
                tied[lane] = (type)(tied[lane] | -((less[lane] < most) & (within[lane] > most) & (own[lane] > 0))); \
            } \
        } \
    }

MB_DEFINE_RANK(mb_rank_16, int16_t)
MB_DEFINE_RANK(mb_rank_32, int32_t)

/* Copy elements, with zeros for those that are dropped.
 * in   src: outer * channels * inner elements, any alignment; each is read once
 * out  dst: as many, any alignment; ties: room for the number of every group; groups are counted through [outer][group][inner].
 *      A group that is told there is copied as it is
 * returns how many are told      over-reads: none      fails: never                                                      */
#define MB_DEFINE_DROP(name, type, rank, size, LOAD, STORE) \
    MB_STEP uint64_t name(const uint8_t *src, const mb_neighbours *shape, const uint32_t m, uint8_t *dst, uint64_t *ties) { \
        type bits[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST], sizes[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST], drop[MB_NEIGHBOURS_LANES * MB_NEIGHBOURS_MOST]; \
        type tied[MB_NEIGHBOURS_LANES]; \
        uint64_t begins[MB_NEIGHBOURS_LANES], number = 0, found = 0; \
        uint32_t own[MB_NEIGHBOURS_LANES], lanes = 0; \
        const uint64_t inner = shape->inner, groups = shape->channels / m + (shape->channels % m != 0); \
        for (uint64_t outer = 0; outer < shape->outer; outer++) \
            for (uint64_t group = 0; group < groups; group++) \
                for (uint64_t at = 0; at < inner; at++) { \
                    const uint64_t left = shape->channels - group * m; \
                    begins[lanes] = (outer * shape->channels + group * m) * inner + at, own[lanes] = left < m ? (uint32_t)left : m; \
                    const bool is_last = outer + 1 == shape->outer && group + 1 == groups && at + 1 == inner; \
                    if (++lanes < MB_NEIGHBOURS_LANES && !is_last) continue; \
                    memset(bits, 0, sizeof(type) * MB_NEIGHBOURS_LANES * m); \
                    for (uint32_t lane = 0; lane < lanes; lane++) \
                        for (uint32_t i = 0; i < own[lane]; i++) bits[i * MB_NEIGHBOURS_LANES + lane] = (type)LOAD(src + size * (begins[lane] + i * inner)); \
                    for (uint32_t i = 0; i < MB_NEIGHBOURS_LANES * m; i++) sizes[i] = bits[i] & (sizeof(type) == 2 ? 0x7fff : 0x7fffffff); \
                    rank(sizes, shape->n, m, drop, tied); \
                    for (uint32_t i = 0; i < m; i++) \
                        for (uint32_t lane = 0; lane < MB_NEIGHBOURS_LANES; lane++) bits[i * MB_NEIGHBOURS_LANES + lane] &= (type)(~drop[i * MB_NEIGHBOURS_LANES + lane] | tied[lane]); \
                    for (uint32_t lane = 0; lane < lanes; lane++) { \
                        for (uint32_t i = 0; i < own[lane]; i++) STORE(dst + size * (begins[lane] + i * inner), (uint32_t)bits[i * MB_NEIGHBOURS_LANES + lane] & (sizeof(type) == 2 ? 0xffffu : 0xffffffffu)); \
                        if (tied[lane]) ties[found++] = number + lane; \
                    } \
                    number += lanes, lanes = 0; \
                } \
        return found; \
    }

MB_DEFINE_DROP(mb_drop_least_16, int16_t, mb_rank_16, 2, mb_load_u16, mb_store_u16)
MB_DEFINE_DROP(mb_drop_least_32, int32_t, mb_rank_32, 4, mb_load_u32, mb_store_u32)

MB_KERNEL uint64_t mb_drop_least(const uint8_t *src, bool is_f16, const mb_neighbours *shape, uint8_t *dst, uint64_t *ties) {
    if (shape->outer == 0 || shape->channels == 0 || shape->inner == 0) return 0;
    if (shape->m == 4) return is_f16 ? mb_drop_least_16(src, shape, 4, dst, ties) : mb_drop_least_32(src, shape, 4, dst, ties);
    return is_f16 ? mb_drop_least_16(src, shape, shape->m, dst, ties) : mb_drop_least_32(src, shape, shape->m, dst, ties);
}

#endif
