/* kernels/hash.h: a fast 64-bit hash that selects candidates for equality. It proves nothing: compare the bytes before
 * relying on equality. The value depends on the seed and may change between versions; it is never stored. */
#ifndef MILBLOB_HASH_H
#define MILBLOB_HASH_H

#include "milblob/base.h"

#define MB_HASH_K 0x9e3779b97f4a7c15u /* 2^64 / golden ratio, odd */

MB_STEP uint64_t mb_hash_mix(uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * MB_HASH_K;
    return lane ^ lane >> 29;
}

/* Hash nbytes bytes at any alignment. Four lanes keep four multiplications in flight, so the speed is that of memory.
 * over-reads: none      fails: never                                                                                  */
MB_KERNEL uint64_t mb_hash(const uint8_t *src, uint64_t nbytes, uint64_t seed) {
    uint64_t lanes[4] = {seed, ~seed, seed ^ MB_HASH_K, ~seed ^ MB_HASH_K};
    uint64_t left = nbytes, word = 0, hash = seed ^ nbytes;
    for (; left >= 32; left -= 32, src += 32)
        for (unsigned k = 0; k < 4; k++) lanes[k] = mb_hash_mix(lanes[k], mb_load_u64(src + 8 * k));
    for (unsigned k = 0; left >= 8; left -= 8, src += 8, k++) lanes[k & 3] = mb_hash_mix(lanes[k & 3], mb_load_u64(src));
    for (unsigned k = 0; k < left; k++) word |= (uint64_t)src[k] << (8 * k);
    lanes[3] = mb_hash_mix(lanes[3], word);
    for (unsigned k = 0; k < 4; k++) hash = mb_hash_mix(hash, lanes[k]);
    return hash;
}

#endif
