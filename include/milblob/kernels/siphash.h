/* kernels/siphash.h: SipHash-1-3, a hash with a secret key, for tables whose keys come from files.
 *
 * An author of a file who does not know the key cannot choose names that share a slot, so looking names up remains
 * fast. Python hashes its own strings the same way. The value is never stored. */
#ifndef MILBLOB_SIPHASH_H
#define MILBLOB_SIPHASH_H

#include "milblob/base.h"

typedef struct mb_siphash_key {
    uint64_t words[2];
} mb_siphash_key;

MB_STEP uint64_t mb_rotate_left(uint64_t word, unsigned by) { return word << by | word >> (64 - by); }

MB_STEP void mb_siphash_round(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = mb_rotate_left(v[1], 13) ^ v[0], v[3] = mb_rotate_left(v[3], 16) ^ v[2];
    v[0] = mb_rotate_left(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = mb_rotate_left(v[1], 17) ^ v[2], v[3] = mb_rotate_left(v[3], 21) ^ v[0];
    v[2] = mb_rotate_left(v[2], 32);
}

/* Hash nbytes bytes at any alignment.
 * spec: Aumasson and Bernstein, "SipHash: a fast short-input PRF", with one round per word and three at the end
 * over-reads: none      fails: never                                                                                  */
MB_KERNEL uint64_t mb_siphash(const uint8_t *src, uint64_t nbytes, const mb_siphash_key *key) {
    uint64_t v[4] = {key->words[0] ^ 0x736f6d6570736575u, key->words[1] ^ 0x646f72616e646f6du,
                     key->words[0] ^ 0x6c7967656e657261u, key->words[1] ^ 0x7465646279746573u};
    uint64_t last = nbytes << 56;
    uint64_t at = 0;
    for (; nbytes - at >= 8; at += 8) {
        const uint64_t word = mb_load_u64(src + at);
        v[3] ^= word;
        mb_siphash_round(v);
        v[0] ^= word;
    }
    for (unsigned shift = 0; at < nbytes; at++, shift += 8) last |= (uint64_t)src[at] << shift;
    v[3] ^= last;
    mb_siphash_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (unsigned i = 0; i < 3; i++) mb_siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
