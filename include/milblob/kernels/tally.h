/* kernels/tally.h: counts how often each pattern of 16 bits occurs in an array.
 *
 * All statistics of an array of elements of 1, 2, 4, 8 or 16 bits follow from these 65536 counts, exactly and without
 * reading the array again: two bytes, four nibbles or sixteen bits form one pattern, which is split when counting is
 * over. So one short loop is the whole pass for every such dtype. Its cost is that of the table: the low 8 bits of each
 * count are stored separately in 64 KiB; the part that real weights use fits the first cache. A count that wraps there,
 * once in 256 times, carries into `high`.
 *
 * A small array must not pay for 65536 counts: up to MB_TALLY_LIST elements, the patterns that occurred are also listed,
 * and only those are read and cleared afterwards. */
#ifndef MILBLOB_TALLY_H
#define MILBLOB_TALLY_H

#include "milblob/kernels/float.h"
#include "milblob/kernels/subbyte.h"

#define MB_TALLY_LIST 16384u
#define MB_PATTERNS 65536u

/* 1 MiB, from the caller. All zero is an empty one. */
typedef struct mb_tally {
    uint8_t low[MB_PATTERNS];   /* the number of times that a pattern occurred, */
    uint32_t high[MB_PATTERNS]; /* and 256 times this */
    uint64_t bytes[256];        /* elements that filled no pattern, by their bits */
    uint16_t list[MB_TALLY_LIST];
    uint32_t listed;
    bool is_long;               /* too many were counted for the list */
    uint64_t count;             /* elements */
    /* mb_tally_gather's result: the patterns that occurred, in rising order unless they are few, and how often. */
    uint16_t patterns[MB_PATTERNS];
    uint64_t counts[MB_PATTERNS];
} mb_tally;

/* Count `count` patterns of 16 bits. Any alignment; reads no more than them. */
MB_KERNEL void mb_tally_patterns(mb_tally *tally, const uint8_t *src, uint64_t count) {
    uint8_t *low = tally->low;
    if (!tally->is_long && count <= MB_TALLY_LIST - tally->listed) {
        uint32_t listed = tally->listed;
        for (uint64_t i = 0; i < count; i++) {
            uint32_t pattern = mb_load_u16(src + 2 * i);
            if (low[pattern] == 0 && tally->high[pattern] == 0) tally->list[listed++] = (uint16_t)pattern;
            if (++low[pattern] == 0) tally->high[pattern]++;
        }
        tally->listed = listed;
        return;
    }
    tally->is_long = true;
    /* Not through a pointer to the counts, with which gcc computes each address first. */
    for (; count >= 8; count -= 8, src += 16)
        for (unsigned k = 0; k < 8; k++) {
            uint32_t pattern = mb_load_u16(src + 2 * k);
            if (++tally->low[pattern] == 0) tally->high[pattern]++;
        }
    for (; count > 0; count--, src += 2) {
        uint32_t pattern = mb_load_u16(src);
        if (++tally->low[pattern] == 0) tally->high[pattern]++;
    }
}

/* Whether elements of nbits are counted one byte each: those that lie across the ends of bytes are unpacked first. */
static inline bool mb_tally_unpacks(unsigned nbits) { return 16 % nbits != 0; }

/* Count `count` elements of nbits (1, 2, 3, 4, 6, 8 or 16), packed as blob files hold them; all calls between two
 * mb_tally_gather with the same nbits. Bits after the last element are ignored.
 * in   src: mb_packed_nbytes(count, nbits) bytes (2 * count for 16), any alignment
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_tally_elements(mb_tally *tally, const uint8_t *src, uint64_t count, unsigned nbits) {
    uint8_t block[4096];
    tally->count += count;
    if (nbits == 16) {
        mb_tally_patterns(tally, src, count);
        return;
    }
    if (mb_tally_unpacks(nbits)) {
        for (; count >= sizeof block; count -= sizeof block, src += sizeof block / 8 * nbits) {
            mb_unpack_bits(block, src, sizeof block, nbits);
            mb_tally_patterns(tally, block, sizeof block / 2);
        }
    } else {
        const unsigned in_pattern = 16 / nbits;
        mb_tally_patterns(tally, src, count / in_pattern);
        src += count / in_pattern * 2, count %= in_pattern;
    }
    if (nbits == 8) memcpy(block, src, (size_t)count);
    else mb_unpack_bits(block, src, count, nbits);
    for (uint64_t i = 0; i < count; i++) tally->bytes[block[i]]++;
}

/* Add the counts of another tally, of elements of the same nbits. */
MB_KERNEL void mb_tally_add(mb_tally *tally, const mb_tally *other) {
    tally->is_long = true;
    tally->count += other->count;
    for (unsigned i = 0; i < MB_PATTERNS; i++) {
        uint32_t sum = (uint32_t)tally->low[i] + other->low[i];
        tally->low[i] = (uint8_t)sum;
        tally->high[i] += other->high[i] + (sum >> 8);
    }
    for (unsigned i = 0; i < 256; i++) tally->bytes[i] += other->bytes[i];
}

/* Put into patterns and counts which elements of nbits occurred and how often; return how many different ones. The tally
 * is empty afterwards. Negative zero and the NaNs are patterns like any other. */
MB_KERNEL uint32_t mb_tally_gather(mb_tally *tally, unsigned nbits) {
    const uint32_t steps = tally->is_long ? MB_PATTERNS : tally->listed;
    uint32_t found = 0;
    for (uint32_t i = 0; i < steps; i++) {
        const uint32_t pattern = tally->is_long ? i : tally->list[i];
        const uint64_t count = (uint64_t)tally->high[pattern] << 8 | tally->low[pattern];
        tally->patterns[found] = (uint16_t)pattern, tally->counts[found] = count;
        found += count != 0;
        if (!tally->is_long) tally->low[pattern] = 0, tally->high[pattern] = 0;
    }
    if (nbits < 16) {
        const unsigned width = mb_tally_unpacks(nbits) ? 8 : nbits;
        const uint32_t mask = (1u << width) - 1;
        for (uint32_t i = 0; i < found; i++)
            for (unsigned shift = 0; shift < 16; shift += width) tally->bytes[(uint32_t)tally->patterns[i] >> shift & mask] += tally->counts[i];
        found = 0;
        for (uint32_t pattern = 0; pattern < 256; pattern++) {
            tally->patterns[found] = (uint16_t)pattern, tally->counts[found] = tally->bytes[pattern];
            found += tally->bytes[pattern] != 0;
        }
        memset(tally->bytes, 0, sizeof tally->bytes);
    }
    if (tally->is_long) memset(tally->low, 0, sizeof tally->low), memset(tally->high, 0, sizeof tally->high);
    tally->listed = 0, tally->count = 0, tally->is_long = false;
    return found;
}

#endif
