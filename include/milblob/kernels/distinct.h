/* kernels/distinct.h: counts the distinct values in a stream of 64-bit keys: exactly up to MB_DISTINCT_EXACT, then estimated.
 *
 * A hash set keeps the hashes whose top `level` bits are zero. The level is 0 at first, and rises when the set is full: then
 * half of its members leave it. So a member represents 2^level different keys (Flajolet 1990, "On adaptive sampling"), and of
 * the 2^15 to 2^16 members that remain the estimate has a standard error of at most 0.6%. What remains does not depend on
 * the order of the keys, so parts of an array can be counted separately and merged. */
#ifndef MILBLOB_DISTINCT_H
#define MILBLOB_DISTINCT_H

#include "milblob/base.h"

#define MB_DISTINCT_EXACT 65536u
#define MB_DISTINCT_SLOTS (2 * MB_DISTINCT_EXACT)
#define MB_DISTINCT_WAITING 512u /* hashes that are looked for together */
#define MB_DISTINCT_LEVELS 48u /* 2^16 hashes have 48 zeros at the top, and these fit into the set */

/* 1 MiB, from the caller; only the part in use is touched. All zero is an empty one. */
typedef struct mb_distinct {
    uint64_t slots[MB_DISTINCT_SLOTS]; /* hashes; 0: free */
    uint32_t count;                    /* members of the set, the hash 0 among them */
    uint32_t level;
    bool has_zero;
} mb_distinct;

/* A bijection of 64-bit words that mixes every bit into every other (the finalizer of SplitMix64): hashes differ where keys do. */
MB_STEP uint64_t mb_distinct_hash_64(uint64_t key) {
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9u;
    key = (key ^ key >> 27) * 0x94d049bb133111ebu;
    return key ^ key >> 31;
}

/* The same of 32-bit words (lowbias32 of Wellons) but for its last step, which leaves the upper 16 bits as they are: only these decide
 * whether a level keeps a hash, because no level of 32 bits is above 16. An array has keys of one width. */
MB_STEP uint32_t mb_distinct_begin_32(uint32_t key) {
    key += 0x9e3779b9u; /* zero, which is frequent, is not 0, which every level keeps */
    key = (key ^ key >> 16) * 0x7feb352du;
    return (key ^ key >> 15) * 0x846ca68bu;
}

/* The last step, and the hash as one of 64 bits: the set looks at its top and at its end. */
MB_STEP uint64_t mb_distinct_end_32(uint32_t hash) { return (hash ^ hash >> 16) * 0x100000001u; }

/* The largest hash that the set keeps. */
static inline uint64_t mb_distinct_most(const mb_distinct *distinct) { return UINT64_MAX >> distinct->level; }

/* The slot that has a hash, or the free one where it belongs. */
MB_STEP uint32_t mb_distinct_slot(const mb_distinct *distinct, uint64_t hash) {
    uint32_t slot = (uint32_t)hash & (MB_DISTINCT_SLOTS - 1);
    while (distinct->slots[slot] != 0 && distinct->slots[slot] != hash) slot = (slot + 1) & (MB_DISTINCT_SLOTS - 1);
    return slot;
}

/* Raise the level, and let go of members that it excludes. Members move up to where others have left, in the order in which
 * they are found: it begins after a free slot, so that none is found twice. */
static inline void mb_distinct_raise(mb_distinct *distinct) {
    distinct->level++;
    uint32_t first = 0;
    while (distinct->slots[first] != 0) first++; /* at most half of the slots, and one, are in use */
    for (uint32_t i = 1; i < MB_DISTINCT_SLOTS; i++) {
        const uint32_t slot = (first + i) & (MB_DISTINCT_SLOTS - 1);
        const uint64_t hash = distinct->slots[slot];
        if (hash == 0) continue;
        distinct->slots[slot] = 0;
        if (hash <= mb_distinct_most(distinct)) distinct->slots[mb_distinct_slot(distinct, hash)] = hash;
        else distinct->count--;
    }
}

MB_STEP void mb_distinct_add(mb_distinct *distinct, uint64_t hash) {
    if (hash > mb_distinct_most(distinct)) return;
    if (hash == 0) {
        distinct->count += !distinct->has_zero, distinct->has_zero = true;
    } else {
        const uint32_t slot = mb_distinct_slot(distinct, hash);
        distinct->count += distinct->slots[slot] == 0, distinct->slots[slot] = hash;
    }
    while (distinct->count > MB_DISTINCT_EXACT && distinct->level < MB_DISTINCT_LEVELS) mb_distinct_raise(distinct);
}

/* Move the hashes up to `most` to the front, and return how many there are; without a branch that would be guessed wrong. `hashes` has
 * room for a multiple of 64; what follows the kept ones is not specified afterwards. */
#define MB_DEFINE_DISTINCT_KEEP(width) \
    MB_STEP uint32_t mb_distinct_keep_##width(uint##width##_t *hashes, uint32_t count, uint##width##_t most) { \
        uint32_t kept = 0; \
        for (uint32_t i = 0; i < count; i++) { \
            const uint##width##_t hash = hashes[i]; \
            hashes[kept] = hash, kept += hash <= most; \
        } \
        return kept; \
    }

MB_DEFINE_DISTINCT_KEEP(32)
MB_DEFINE_DISTINCT_KEEP(64)

/* Add hashes up to mb_distinct_most. Most values of an array are not new: those in the slot where they belong leave first, then those
 * in the next slots, without a branch that would be guessed wrong, so that the CPU waits for several slots at a time. What remains
 * in hashes is not specified. */
MB_KERNEL void mb_distinct_add_all(mb_distinct *distinct, uint64_t *hashes, uint32_t count) {
    for (uint32_t step = 0; step < 4; step++) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < count; i++) {
            const uint64_t hash = hashes[i];
            hashes[left] = hash, left += distinct->slots[((uint32_t)hash + step) & (MB_DISTINCT_SLOTS - 1)] != hash || hash == 0;
        }
        count = left;
    }
    for (uint32_t i = 0; i < count; i++) mb_distinct_add(distinct, hashes[i]);
}

/* Add everything that another one has seen. */
MB_KERNEL void mb_distinct_merge(mb_distinct *distinct, const mb_distinct *other) {
    while (distinct->level < other->level) mb_distinct_raise(distinct);
    if (other->has_zero) mb_distinct_add(distinct, 0);
    for (uint32_t i = 0; i < MB_DISTINCT_SLOTS && other->count > 0; i++)
        if (other->slots[i] != 0) mb_distinct_add(distinct, other->slots[i]);
}

/* How many different keys there were: exact unless the level is above 0. */
static inline uint64_t mb_distinct_count(const mb_distinct *distinct) {
    return distinct->level < MB_DISTINCT_LEVELS ? (uint64_t)distinct->count << distinct->level : UINT64_MAX;
}

#endif
