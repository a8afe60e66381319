/* kernels/subbyte.h: packed 1, 2, 3, 4 and 6-bit integers <-> one byte per element.
 *
 * A packed array is one bit stream, least significant bit first: element i is bits [i*n, i*n + n), counted from bit 0 of
 * byte 0. Eight elements are exactly n bytes, so whole groups of eight fit one 64-bit word and never straddle; the tail is a
 * group padded with zeros. One byte per element in memory is zero-extended, also for int4: ml_dtypes stores it that way
 * (-1 is 0x0F). */
#ifndef MILBLOB_SUBBYTE_H
#define MILBLOB_SUBBYTE_H

#include "milblob/dtype.h"

enum { MB_PACK_BLOCK = 4096 }; /* whole groups of eight; fits into the L1 cache */

/* The bytes that count elements of nbits (1..8) take when packed; count comes from an array, so count * 8 fits. */
static inline uint64_t mb_packed_nbytes(uint64_t count, unsigned nbits) { return count / 8 * nbits + (count % 8 * nbits + 7) / 8; }

/* Unpack count elements of nbits (1, 2, 3, 4 or 6), one per output byte, zero-extended.
 * in   src: mb_packed_nbytes(count, nbits) bytes, any alignment  out  dst: count bytes; must not overlap src
 * over-reads: none      fails: never
 * spec: MILBlob/SubByteTypes.cpp (a value may straddle two bytes; unused high bits are ignored)                       */
MB_KERNEL void mb_unpack_bits(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits) {
    const uint8_t mask = (uint8_t)((1u << nbits) - 1);
    for (; count >= 8; count -= 8, src += nbits, dst += 8) {
        uint64_t word = 0;
        for (unsigned k = 0; k < nbits; k++) word |= (uint64_t)src[k] << (8 * k);
        for (unsigned k = 0; k < 8; k++) dst[k] = (uint8_t)(word >> (k * nbits)) & mask;
    }
    uint64_t word = 0;
    for (unsigned k = 0; k < mb_packed_nbytes(count, nbits); k++) word |= (uint64_t)src[k] << (8 * k);
    for (unsigned k = 0; k < count; k++) dst[k] = (uint8_t)(word >> (k * nbits)) & mask;
}

/* As mb_unpack_bits, but two's complement: sign-extended. */
MB_KERNEL void mb_unpack_signed(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits) {
    const uint8_t sign = (uint8_t)(1u << (nbits - 1));
    mb_unpack_bits(dst, src, count, nbits);
    for (size_t i = 0; i < (size_t)count; i++) dst[i] = (uint8_t)((uint8_t)(dst[i] ^ sign) - sign);
}

typedef void (*mb_unpack_kernel)(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits);

/* Pack whole groups of eight elements, each to nbits bytes. Neighbours move together in three steps: pairs of elements in
 * 16 bits, fours in 32, all eight in 64.                                                                               */
MB_STEP void mb_pack_groups(uint8_t *dst, const uint8_t *src, uint64_t groups, const unsigned nbits) {
    const uint64_t one = (1u << nbits) - 1, two = (1u << 2 * nbits) - 1, four = (1u << 4 * nbits) - 1;
    const uint64_t in_16 = 0x0001000100010001u, in_32 = 0x0000000100000001u;
    for (; groups > 0; groups--, src += 8, dst += nbits) {
        uint64_t word = mb_load_u64(src);
        word = (word & one * in_16) | (word >> (8 - nbits) & (one << nbits) * in_16);
        word = (word & two * in_32) | (word >> (16 - 2 * nbits) & (two << 2 * nbits) * in_32);
        word = (word & four) | (word >> (32 - 4 * nbits) & four << 4 * nbits);
        for (unsigned k = 0; k < nbits; k++) dst[k] = (uint8_t)(word >> (8 * k));
    }
}

/* Pack count elements, one per input byte, to nbits (1, 2, 3, 4 or 6) each.
 * in   src: count bytes; lo..hi: the range as int8 where is_signed, else as uint8      out  dst: mb_packed_nbytes bytes
 * over-reads: none      fails: MB_RANGE (index in error->expected, value in error->got); dst is then unspecified
 * Every element is read once, into a block: src may change; the values checked are those packed and reported.
 * spec: MILBlob/SubByteTypes.cpp (unused high bits of the last byte are 0)                                             */
MB_KERNEL mb_status mb_pack_bits(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits, int lo, int hi, bool is_signed, mb_error *error) {
    const uint8_t mask = (uint8_t)((1u << nbits) - 1), shift = (uint8_t)(0 - lo), span = (uint8_t)(hi - lo);
    /* Adding -lo maps the legal range to 0..span; values outside wrap past it. Signed and unsigned bytes alike. */
    uint8_t block[MB_PACK_BLOCK];
    for (uint64_t done = 0; done < count;) {
        const uint64_t some = count - done < MB_PACK_BLOCK ? count - done : (uint64_t)MB_PACK_BLOCK, groups = some / 8;
        uint8_t bad = 0;
        memcpy(block, src + done, (size_t)some);
        MB_ONCE();
        for (uint64_t i = 0; i < some; i++) bad |= (uint8_t)((uint8_t)(block[i] + shift) > span);
        for (uint64_t i = 0; bad && i < some; i++) {
            if ((uint8_t)(block[i] + shift) <= span) continue;
            const int64_t value = is_signed ? (int64_t)(int8_t)block[i] : (int64_t)block[i];
            return mb_fail(error, MB_RANGE, done + i, done + i, (uint64_t)value, "element");
        }
        MB_FOR_ALL_WIDTHS(1, 2, 3, 4, 6);
        switch (nbits) { /* each with its masks and shifts as constants */
        case 1: mb_pack_groups(dst, block, groups, 1); break;
        case 2: mb_pack_groups(dst, block, groups, 2); break;
        case 3: mb_pack_groups(dst, block, groups, 3); break;
        case 4: mb_pack_groups(dst, block, groups, 4); break;
        case 6: mb_pack_groups(dst, block, groups, 6); break;
        }
        dst += groups * nbits, done += some;
        const unsigned left = (unsigned)(some % 8); /* only of the last block */
        uint64_t word = 0;
        for (unsigned k = 0; k < left; k++) word |= (uint64_t)(block[groups * 8 + k] & mask) << (k * nbits);
        for (unsigned k = 0; k < mb_packed_nbytes(left, nbits); k++) dst[k] = (uint8_t)(word >> (8 * k));
    }
    return MB_OK;
}

typedef mb_status (*mb_pack_kernel)(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits, int lo, int hi, bool is_signed, mb_error *error);

#endif
