/* kernels/distinct.h: counts the distinct values in a stream of 64-bit keys: exactly up to MB_DISTINCT_EXACT, then estimated.
 *
 * The exact part is a hash set. When it is full its members go into a HyperLogLog sketch of 2^14 registers, and everything
 * after them too: a register holds the longest run of zeros that a hash began with, and the estimate (Ertl 2017, "New
 * cardinality estimation algorithms for HyperLogLog sketches", equation for the improved raw estimator) has a standard
 * error of 0.8%. Neither depends on the order of the keys, so parts of an array can be counted separately and merged. */
#ifndef MILBLOB_DISTINCT_H
#define MILBLOB_DISTINCT_H

#include "milblob/base.h"

#define MB_DISTINCT_EXACT 65536u
#define MB_DISTINCT_SLOTS (4 * MB_DISTINCT_EXACT)
#define MB_DISTINCT_NBITS 14u
#define MB_DISTINCT_REGISTERS (1u << MB_DISTINCT_NBITS)

/* 2 MiB, from the caller; only the part in use is touched. All zero is an empty one. */
typedef struct mb_distinct {
    uint64_t slots[MB_DISTINCT_SLOTS]; /* 0: free */
    uint8_t registers[MB_DISTINCT_REGISTERS];
    uint32_t count;                    /* members of the set, the key 0 among them */
    bool has_zero;
    bool is_estimated;
} mb_distinct;

/* A bijection of 64-bit words that mixes every bit into every other (the finalizer of SplitMix64). */
MB_STEP uint64_t mb_distinct_mix(uint64_t key) {
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9u;
    key = (key ^ key >> 27) * 0x94d049bb133111ebu;
    return key ^ key >> 31;
}

MB_STEP void mb_distinct_sketch(mb_distinct *distinct, uint64_t mixed) {
    const uint32_t index = (uint32_t)mixed & (MB_DISTINCT_REGISTERS - 1);
    const uint8_t old = distinct->registers[index];
    /* The run is longer than `old` - 1 only if the top `old` bits are zero, which is rare after the first few keys. */
    if ((mixed >> 1) >> (63 - old) != 0) return;
    uint8_t run = old;
    while (run < 64 - MB_DISTINCT_NBITS && (mixed >> 1) >> (63 - run) == 0) run++;
    distinct->registers[index] = run > old ? run : old;
}

static inline void mb_distinct_add_slow(mb_distinct *distinct, uint64_t key, uint64_t mixed) {
    if (key == 0) {
        distinct->count += !distinct->has_zero, distinct->has_zero = true;
    } else {
        uint32_t slot = (uint32_t)(mixed >> 40) & (MB_DISTINCT_SLOTS - 1);
        while (distinct->slots[slot] != 0 && distinct->slots[slot] != key) slot = (slot + 1) & (MB_DISTINCT_SLOTS - 1);
        distinct->count += distinct->slots[slot] == 0, distinct->slots[slot] = key;
    }
    if (distinct->count <= MB_DISTINCT_EXACT) return;
    distinct->is_estimated = true;
    if (distinct->has_zero) mb_distinct_sketch(distinct, mb_distinct_mix(0));
    for (uint32_t i = 0; i < MB_DISTINCT_SLOTS; i++)
        if (distinct->slots[i] != 0) mb_distinct_sketch(distinct, mb_distinct_mix(distinct->slots[i]));
}

MB_STEP void mb_distinct_add(mb_distinct *distinct, uint64_t key) {
    const uint64_t mixed = mb_distinct_mix(key);
    if (distinct->is_estimated) mb_distinct_sketch(distinct, mixed);
    else mb_distinct_add_slow(distinct, key, mixed);
}

/* Add everything that another one has seen. */
MB_KERNEL void mb_distinct_merge(mb_distinct *distinct, const mb_distinct *other) {
    if (!other->is_estimated) {
        if (other->has_zero) mb_distinct_add(distinct, 0);
        for (uint32_t i = 0; i < MB_DISTINCT_SLOTS && other->count > 0; i++)
            if (other->slots[i] != 0) mb_distinct_add(distinct, other->slots[i]);
        return;
    }
    if (!distinct->is_estimated) { /* what it has goes into its sketch */
        distinct->is_estimated = true;
        if (distinct->has_zero) mb_distinct_sketch(distinct, mb_distinct_mix(0));
        for (uint32_t i = 0; i < MB_DISTINCT_SLOTS && distinct->count > 0; i++)
            if (distinct->slots[i] != 0) mb_distinct_sketch(distinct, mb_distinct_mix(distinct->slots[i]));
    }
    for (uint32_t i = 0; i < MB_DISTINCT_REGISTERS; i++)
        if (distinct->registers[i] < other->registers[i]) distinct->registers[i] = other->registers[i];
}

/* How many different keys there were: exact unless is_estimated. */
static inline uint64_t mb_distinct_count(const mb_distinct *distinct) {
    if (!distinct->is_estimated) return distinct->count;
    const double m = MB_DISTINCT_REGISTERS;
    uint32_t with[64 - MB_DISTINCT_NBITS + 1] = {0};
    for (uint32_t i = 0; i < MB_DISTINCT_REGISTERS; i++) with[distinct->registers[i]]++;
    /* Registers stop at 50 here, which 2^50 keys would need: the correction for full ones (tau) is left out. */
    double z = 0, x = with[0] / m, sigma = x, y = 1, before = -1;
    for (unsigned k = 64 - MB_DISTINCT_NBITS; k >= 1; k--) z = 0.5 * (z + with[k]);
    if (with[0] == MB_DISTINCT_REGISTERS) return 0;
    while (sigma != before) x *= x, before = sigma, sigma += x * y, y += y;
    z += m * sigma;
    return (uint64_t)(m * m / (2 * 0.69314718055994530942) / z + 0.5);
}

#endif
