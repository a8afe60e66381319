/* kernels/neon/subbyte.h: the kernels of subbyte.h for AArch64. Whole blocks; the plain kernel does the tail. */
#ifndef MILBLOB_SUBBYTE_NEON_H
#define MILBLOB_SUBBYTE_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/subbyte.h"

#ifdef MB_HAS_NEON

/* Sixteen elements of n bits are 2 * n bytes, so every round is alike. TBL gives each element the byte where it begins and,
 * where elements may straddle, the next one; shifts that differ from lane to lane put the element at the bottom of its byte,
 * where a mask cuts it off, or at the top, from where an arithmetic shift brings it down. A load of 16 bytes may pass the
 * elements' own: rounds end while that many are left. */
#define MB_DEFINE_UNPACK_NEON(name, tail, is_signed) \
    MB_KERNEL void name(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits) { \
        const uint64_t nbytes = mb_packed_nbytes(count, nbits); \
        const bool straddles = 8 % nbits != 0; \
        uint8_t pick[2][16]; \
        int8_t shift[2][16]; \
        uint64_t at = 0, done = 0; \
        for (unsigned k = 0; k < 16; k++) { \
            const unsigned byte = k * nbits / 8, bit = k * nbits % 8, raise = (is_signed) ? 8 - nbits : 0; \
            pick[0][k] = (uint8_t)byte, pick[1][k] = (uint8_t)(byte + 1); \
            shift[0][k] = (int8_t)((int)raise - (int)bit), shift[1][k] = (int8_t)(raise + 8 - bit); /* 8 and more leave nothing */ \
        } \
        const uint8x16_t first = vld1q_u8(pick[0]), next = vld1q_u8(pick[1]), mask = vdupq_n_u8((uint8_t)((1u << nbits) - 1)); \
        const int8x16_t down = vld1q_s8(shift[0]), up = vld1q_s8(shift[1]), lower = vdupq_n_s8((int8_t)((int)nbits - 8)); \
        for (; count - done >= 16 && nbytes - at >= 16; done += 16, at += 2 * nbits) { \
            const uint8x16_t bytes = vld1q_u8(src + at); \
            uint8x16_t found = vshlq_u8(vqtbl1q_u8(bytes, first), down); \
            if (straddles) found = vorrq_u8(found, vshlq_u8(vqtbl1q_u8(bytes, next), up)); \
            found = (is_signed) ? vreinterpretq_u8_s8(vshlq_s8(vreinterpretq_s8_u8(found), lower)) : vandq_u8(found, mask); \
            vst1q_u8(dst + done, found); \
        } \
        tail(dst + done, src + at, count - done, nbits); \
    }

MB_DEFINE_UNPACK_NEON(mb_unpack_bits_neon, mb_unpack_bits, false)
MB_DEFINE_UNPACK_NEON(mb_unpack_signed_neon, mb_unpack_signed, true)

/* Neighbours move together in three steps, as in the plain code, but without masks: SLI shifts the upper one of two into the
 * lower one and leaves only as many bits of that as it should have; what stands above the eighth element is not among the n
 * bytes of each half that TBL gathers. 32 elements a round. The 16 bytes that are stored for eight and eight reach past the
 * round, so rounds end while that many are left in dst. `most` gathers what the range check of the plain kernel looks at. */
#define MB_DEFINE_PACK_ROUNDS_NEON(nbits) \
    MB_KERNEL uint64_t mb_pack_rounds_##nbits##_neon(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, uint8_t shift, uint8_t *most) { \
        const uint64_t nbytes = mb_packed_nbytes(count, nbits); \
        const uint8x16_t shifts = vdupq_n_u8(shift); \
        uint8x16_t seen = vdupq_n_u8(0); \
        uint8_t pick[16]; \
        uint64_t done = 0; \
        for (unsigned k = 0; k < 16; k++) pick[k] = (uint8_t)(k < 2 * nbits ? k / nbits * 8 + k % nbits : 0x80u); \
        const uint8x16_t picks = vld1q_u8(pick); \
        for (uint64_t at = 0; count - done >= 32 && nbytes - at >= 2 * nbits + 16; done += 32, at += 4 * nbits) \
            for (unsigned half = 0; half < 2; half++) { \
                const uint8x16_t elements = vld1q_u8(src + done + 16 * half); \
                MB_ONCE(); \
                seen = vmaxq_u8(seen, vaddq_u8(elements, shifts)); \
                const uint16x8_t ones = vreinterpretq_u16_u8(elements); \
                const uint32x4_t twos = vreinterpretq_u32_u16(vsliq_n_u16(ones, vshrq_n_u16(ones, 8), nbits)); \
                const uint64x2_t fours = vreinterpretq_u64_u32(vsliq_n_u32(twos, vshrq_n_u32(twos, 16), 2 * nbits)); \
                const uint64x2_t eights = vsliq_n_u64(fours, vshrq_n_u64(fours, 32), 4 * nbits); \
                vst1q_u8(dst + at + 2 * nbits * half, vqtbl1q_u8(vreinterpretq_u8_u64(eights), picks)); \
            } \
        *most = vmaxvq_u8(seen); \
        return done; \
    }

MB_DEFINE_PACK_ROUNDS_NEON(1)
MB_DEFINE_PACK_ROUNDS_NEON(2)
MB_DEFINE_PACK_ROUNDS_NEON(3)
MB_DEFINE_PACK_ROUNDS_NEON(4)
MB_DEFINE_PACK_ROUNDS_NEON(6)

/* The plain kernel finds the element out of range again and reports it; if it is gone by then, it packs everything. */
MB_KERNEL mb_status mb_pack_bits_neon(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits, int lo, int hi, bool is_signed, mb_error *error) {
    const uint8_t shift = (uint8_t)(0 - lo);
    uint8_t most = 0;
    uint64_t done = 0;
    MB_FOR_ALL_WIDTHS(1, 2, 3, 4, 6);
    switch (nbits) {
    case 1: done = mb_pack_rounds_1_neon(dst, src, count, shift, &most); break;
    case 2: done = mb_pack_rounds_2_neon(dst, src, count, shift, &most); break;
    case 3: done = mb_pack_rounds_3_neon(dst, src, count, shift, &most); break;
    case 4: done = mb_pack_rounds_4_neon(dst, src, count, shift, &most); break;
    case 6: done = mb_pack_rounds_6_neon(dst, src, count, shift, &most); break;
    }
    if (most > (uint8_t)(hi - lo)) return mb_pack_bits(dst, src, count, nbits, lo, hi, is_signed, error);
    const mb_status status = mb_pack_bits(dst + done / 8 * nbits, src + done, count - done, nbits, lo, hi, is_signed, error);
    if (status != MB_OK) error->offset += done, error->expected += done;
    return status;
}

#endif
#endif
