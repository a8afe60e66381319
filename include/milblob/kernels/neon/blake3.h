/* kernels/neon/blake3.h: BLAKE3 with one input in each of the four lanes of a vector. See kernels/blake3.h, and
 * kernels/x86/blake3.h, which has the same structure. */
#ifndef MILBLOB_BLAKE3_NEON_H
#define MILBLOB_BLAKE3_NEON_H

#include "milblob/kernels/blake3.h"
#include "milblob/kernels/neon/float.h"

#ifdef MB_HAS_NEON

/* A rotation by 16 swaps halves, one by 8 moves bytes; the others shift one way and insert the bits shifted the other way. */
#define MB_BLAKE3_TURN16_NEON(x) vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(x)))
#define MB_BLAKE3_TURN8_NEON(x) vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), by8))
#define MB_BLAKE3_TURN_NEON(x, nbits) vsliq_n_u32(vshrq_n_u32(x, nbits), x, 32 - (nbits))

#define MB_BLAKE3_G_NEON(a, b, c, d, x, y) \
    v[a] = vaddq_u32(vaddq_u32(v[a], v[b]), m[x]), v[d] = veorq_u32(v[d], v[a]), v[d] = MB_BLAKE3_TURN16_NEON(v[d]); \
    v[c] = vaddq_u32(v[c], v[d]), v[b] = veorq_u32(v[b], v[c]), v[b] = MB_BLAKE3_TURN_NEON(v[b], 12); \
    v[a] = vaddq_u32(vaddq_u32(v[a], v[b]), m[y]), v[d] = veorq_u32(v[d], v[a]), v[d] = MB_BLAKE3_TURN8_NEON(v[d]); \
    v[c] = vaddq_u32(v[c], v[d]), v[b] = veorq_u32(v[b], v[c]), v[b] = MB_BLAKE3_TURN_NEON(v[b], 7);

/* rows[i] of four words -> words[i] of four rows */
MB_STEP void mb_blake3_transpose_neon(uint32x4_t rows[4]) {
    const uint32x4_t a = vtrn1q_u32(rows[0], rows[1]), b = vtrn2q_u32(rows[0], rows[1]);
    const uint32x4_t c = vtrn1q_u32(rows[2], rows[3]), d = vtrn2q_u32(rows[2], rows[3]);
    rows[0] = vcombine_u32(vget_low_u32(a), vget_low_u32(c)), rows[1] = vcombine_u32(vget_low_u32(b), vget_low_u32(d));
    rows[2] = vcombine_u32(vget_high_u32(a), vget_high_u32(c)), rows[3] = vcombine_u32(vget_high_u32(b), vget_high_u32(d));
}

MB_KERNEL void mb_blake3_neon(uint8_t *dst, const uint8_t *src, uint64_t count, uint32_t block_count, uint64_t chunk) {
    static const uint8_t by8_bytes[16] = {1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12};
    const uint8x16_t by8 = vld1q_u8(by8_bytes);
    const size_t stride = MB_BLAKE3_BLOCK * (size_t)block_count;
    for (; count >= 4; count -= 4, src += 4 * stride, dst += 4 * MB_BLAKE3_NBYTES, chunk += block_count > 1 ? 4 : 0) {
        uint32x4_t cv[8], low, high;
        uint32_t counters[2][4];
        for (uint32_t k = 0; k < 8; k++) cv[k] = vdupq_n_u32(mb_blake3_start[k]);
        for (uint32_t k = 0; k < 4; k++) {
            const uint64_t counter = block_count > 1 ? chunk + k : 0;
            counters[0][k] = (uint32_t)counter, counters[1][k] = (uint32_t)(counter >> 32);
        }
        low = vld1q_u32(counters[0]), high = vld1q_u32(counters[1]);
        for (uint32_t block = 0; block < block_count; block++) {
            uint32x4_t m[16], v[16];
            for (unsigned four = 0; four < 16; four += 4) {
                for (size_t k = 0; k < 4; k++) m[four + k] = mb_get_u32_neon(src + k * stride + MB_BLAKE3_BLOCK * (size_t)block + 4 * four);
                mb_blake3_transpose_neon(m + four);
            }
            for (int k = 0; k < 8; k++) v[k] = cv[k];
            for (int k = 0; k < 4; k++) v[8 + k] = vdupq_n_u32(mb_blake3_start[k]);
            v[12] = low, v[13] = high, v[14] = vdupq_n_u32(MB_BLAKE3_BLOCK), v[15] = vdupq_n_u32(mb_blake3_flags(block, block_count));
            MB_BLAKE3_ROUNDS(MB_BLAKE3_G_NEON)
            for (int k = 0; k < 8; k++) cv[k] = veorq_u32(v[k], v[k + 8]);
        }
        for (unsigned half = 0; half < 2; half++) {
            mb_blake3_transpose_neon(cv + 4 * half);
            for (unsigned k = 0; k < 4; k++) mb_put_u32_neon(dst + MB_BLAKE3_NBYTES * k + 16 * half, cv[4 * half + k]);
        }
    }
    mb_blake3_plain(dst, src, count, block_count, chunk);
}

#endif
#endif
