/* kernels/expand.h: expands sparse elements to dense ones, by a mask of one bit each, least significant bit first.
 *
 * A set bit takes the next nonzero element, a clear one gives a zero. Without branches: read the next element, keep it or
 * not, advance or not. That reads one element too many if no set bit is left, so the fast loop stops while a whole byte of
 * the mask can still be served, and the careful one finishes. */
#ifndef MILBLOB_EXPAND_H
#define MILBLOB_EXPAND_H

#include "milblob/kernels/float.h"

MB_STEP unsigned mb_bit(const uint8_t *bits, uint64_t index) { return (unsigned)bits[index / 8] >> index % 8 & 1u; }

MB_STEP uint64_t mb_ones_of(uint64_t word) {
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return word * 0x0101010101010101u >> 56;
}

/* Count the set bits among the first count bits of src.
 * over-reads: none: ceil(count / 8) bytes, bits past count do not matter      fails: never                              */
typedef uint64_t (*mb_ones_kernel)(const uint8_t *src, uint64_t count);

#define MB_DEFINE_ONES(name, target) \
    target MB_KERNEL uint64_t name(const uint8_t *src, uint64_t count) { \
        uint64_t ones = 0; \
        for (; count >= 64; count -= 64, src += 8) ones += mb_ones_of(mb_load_u64(src)); \
        for (; count >= 8; count -= 8, src++) ones += mb_ones_of(*src); \
        return count > 0 ? ones + mb_ones_of(*src & ((1u << count) - 1)) : ones; \
    }

/* Copy count bits that start at bit `begin` of src so that they start at bit 0 of dst; bits of dst past count are 0.
 * over-reads: none                                                                                                     */
MB_KERNEL void mb_copy_bits(uint8_t *dst, const uint8_t *src, uint64_t begin, uint64_t count) {
    const uint64_t nbytes = (count + 7) / 8;
    const unsigned shift = (unsigned)(begin % 8);
    src += begin / 8;
    if (shift == 0) {
        memcpy(dst, src, (size_t)nbytes);
    } else {
        const uint64_t src_nbytes = (shift + count + 7) / 8;
        for (uint64_t i = 0; i < nbytes; i++) {
            unsigned next = i + 1 < src_nbytes ? src[i + 1] : 0u;
            dst[i] = (uint8_t)((unsigned)src[i] >> shift | next << (8 - shift));
        }
    }
    if (count % 8 != 0) dst[nbytes - 1] &= (uint8_t)((1u << count % 8) - 1);
}

/* Expand to count elements.
 * in   bits: ceil(count / 8) bytes that no other thread changes; src: src_count elements, as many as there are set bits
 * out  dst: count elements, 0 for set bits past src_count; must not overlap src
 * over-reads: none, nothing past src_count elements, for any bits      fails: never                                  */
typedef void (*mb_expand_kernel)(uint8_t *dst, const uint8_t *src, uint64_t src_count, const uint8_t *bits, uint64_t count);

#define MB_DEFINE_EXPAND(name, type) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t src_count, const uint8_t *bits, uint64_t count) { \
        const size_t size = sizeof(type); \
        uint64_t next = 0, done = 0; \
        for (; count - done >= 8 && src_count - next >= 8; done += 8) { \
            const unsigned byte = bits[done / 8]; \
            for (unsigned k = 0; k < 8; k++) { \
                type value; \
                memcpy(&value, src + next * size, sizeof value); \
                value = (type)(value & (type)(0 - (type)(byte >> k & 1u))); \
                memcpy(dst + (done + k) * size, &value, sizeof value); \
                next += byte >> k & 1u; \
            } \
        } \
        for (; done < count; done++) { \
            const bool is_set = mb_bit(bits, done) != 0 && next < src_count; \
            if (is_set) memcpy(dst + done * size, src + next++ * size, sizeof(type)); \
            else memset(dst + done * size, 0, sizeof(type)); \
        } \
    }

MB_DEFINE_ONES(mb_ones_plain, )
MB_DEFINE_EXPAND(mb_expand_8_plain, uint8_t)
MB_DEFINE_EXPAND(mb_expand_16_plain, uint16_t)
MB_DEFINE_EXPAND(mb_expand_32_plain, uint32_t)
MB_DEFINE_EXPAND(mb_expand_64_plain, uint64_t)

/* Set those of count elements of dst to zero whose bit is clear. */
#define MB_DEFINE_KEEP(name, type) \
    MB_KERNEL void name(uint8_t *dst, const uint8_t *bits, uint64_t count) { \
        for (uint64_t i = 0; i < count; i++) { \
            type value; \
            memcpy(&value, dst + i * sizeof value, sizeof value); \
            value = (type)(value & (type)(0 - (type)mb_bit(bits, i))); \
            memcpy(dst + i * sizeof value, &value, sizeof value); \
        } \
    }

MB_DEFINE_KEEP(mb_keep_8, uint8_t)
MB_DEFINE_KEEP(mb_keep_16, uint16_t)
MB_DEFINE_KEEP(mb_keep_32, uint32_t)
MB_DEFINE_KEEP(mb_keep_64, uint64_t)

static inline void mb_keep(uint8_t *dst, const uint8_t *bits, uint64_t count, size_t size) {
    if (size == 1) mb_keep_8(dst, bits, count);
    else if (size == 2) mb_keep_16(dst, bits, count);
    else if (size == 4) mb_keep_32(dst, bits, count);
    else mb_keep_64(dst, bits, count);
}

#endif
