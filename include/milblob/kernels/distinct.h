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

/* The same of 32-bit words (lowbias32 of Wellons); an array has keys of one width. */
MB_STEP uint32_t mb_distinct_hash_32(uint32_t key) {
    key += 0x9e3779b9u; /* zero, which is frequent, is not 0, which every level keeps */
    key = (key ^ key >> 16) * 0x7feb352du;
    key = (key ^ key >> 15) * 0x846ca68bu;
    return key ^ key >> 16;
}

/* A hash of 32 bits as one of 64: the set looks at its top and at its end. */
MB_STEP uint64_t mb_distinct_widen(uint32_t hash) { return (uint64_t)hash << 32 | hash; }

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

/* Move the hashes up to `most` to the front, and return how many there are; without a branch that would be guessed wrong. */
MB_STEP uint32_t mb_distinct_keep(uint64_t *hashes, uint32_t count, uint64_t most) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t hash = hashes[i];
        hashes[kept] = hash, kept += hash <= most;
    }
    return kept;
}

/* Which of 16 hashes of 32 bits are up to `most`: a bit of each. */
MB_STEP uint32_t mb_distinct_mask(const uint32_t *hashes, uint32_t most) {
    uint32_t mask = 0;
    for (unsigned k = 0; k < 16; k++) mask |= (uint32_t)(hashes[k] <= most) << k;
    return mask;
}

/* Add hashes up to mb_distinct_most. Most values of an array are not new: those in the slot where they belong leave first, without a
 * branch that would be guessed wrong, so that the CPU waits for several slots at a time. What remains in hashes is not specified. */
MB_KERNEL void mb_distinct_add_all(mb_distinct *distinct, uint64_t *hashes, uint32_t count) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t hash = hashes[i];
        hashes[left] = hash, left += distinct->slots[(uint32_t)hash & (MB_DISTINCT_SLOTS - 1)] != hash || hash == 0;
    }
    for (uint32_t i = 0; i < left; i++) mb_distinct_add(distinct, hashes[i]);
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
