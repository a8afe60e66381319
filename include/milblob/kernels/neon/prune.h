/* kernels/neon/prune.h: the kernels of prune.h for AArch64. TBL moves the elements that are kept together, four at a time.
 *
 * Masks become bits by a sum: each lane adds its bit and one more far above it, so one sum gives the set bits and their
 * number. */
#ifndef MILBLOB_PRUNE_NEON_H
#define MILBLOB_PRUNE_NEON_H

#include "milblob/kernels/neon/quantize.h"
#include "milblob/kernels/prune.h"

#ifdef MB_HAS_NEON

/* Which of four elements come first, for each mask of four bits; what stands after those does not matter. */
#define MB_KEPT_OF_4(ROW) \
    ROW(0, 0, 0, 0), ROW(0, 0, 0, 0), ROW(1, 0, 0, 0), ROW(0, 1, 0, 0), ROW(2, 0, 0, 0), ROW(0, 2, 0, 0), ROW(1, 2, 0, 0), ROW(0, 1, 2, 0), \
        ROW(3, 0, 0, 0), ROW(0, 3, 0, 0), ROW(1, 3, 0, 0), ROW(0, 1, 3, 0), ROW(2, 3, 0, 0), ROW(0, 2, 3, 0), ROW(1, 2, 3, 0), ROW(0, 1, 2, 3)
#define MB_BYTES_OF_16(e) 2 * (e), 2 * (e) + 1
#define MB_BYTES_OF_32(e) 4 * (e), 4 * (e) + 1, 4 * (e) + 2, 4 * (e) + 3
#define MB_ROW_OF_16(a, b, c, d) {MB_BYTES_OF_16(a), MB_BYTES_OF_16(b), MB_BYTES_OF_16(c), MB_BYTES_OF_16(d)}
#define MB_ROW_OF_32(a, b, c, d) {MB_BYTES_OF_32(a), MB_BYTES_OF_32(b), MB_BYTES_OF_32(c), MB_BYTES_OF_32(d)}
static const uint8_t mb_kept_16_neon[16][8] = {MB_KEPT_OF_4(MB_ROW_OF_16)}, mb_kept_32_neon[16][16] = {MB_KEPT_OF_4(MB_ROW_OF_32)};

/* Whole registers are stored: no more elements were kept than were read, so there is room for all that are still to come.
 * Both return how many of the elements are kept, and give their bits. */
MB_STEP uint32_t mb_keep_8_neon(uint8_t *kept, uint16x8_t elements, uint16x8_t is_kept, uint32_t *bits) {
    static const uint16_t weights[8] = {0x1101, 0x1102, 0x1104, 0x1108, 0x1010, 0x1020, 0x1040, 0x1080}; /* of all, of the first four, a bit */
    const uint32_t sum = vaddvq_u16(vandq_u16(is_kept, vld1q_u16(weights))), first = sum >> 8 & 7;
    const uint8x16_t bytes = vreinterpretq_u8_u16(elements);
    vst1_u8(kept, vtbl1_u8(vget_low_u8(bytes), vld1_u8(mb_kept_16_neon[sum & 15])));
    vst1_u8(kept + 2 * first, vtbl1_u8(vget_high_u8(bytes), vld1_u8(mb_kept_16_neon[sum >> 4 & 15])));
    *bits = sum & 255;
    return sum >> 12;
}

MB_STEP uint32_t mb_keep_4_neon(uint8_t *kept, uint32x4_t elements, uint32x4_t is_kept, uint32_t *bits) {
    static const uint32_t weights[4] = {0x101, 0x102, 0x104, 0x108};
    const uint32_t sum = vaddvq_u32(vandq_u32(is_kept, vld1q_u32(weights)));
    vst1q_u8(kept, vqtbl1q_u8(vreinterpretq_u8_u32(elements), vld1q_u8(mb_kept_32_neon[sum & 15])));
    *bits = sum & 15;
    return sum >> 8;
}

/* Sums of pruning in registers. */
typedef struct mb_pruned_neon {
    float64x2_t squared[8], power[8];
    uint32x4_t largest;
} mb_pruned_neon;

MB_STEP void mb_pruned_begin_neon(mb_pruned_neon *own, const mb_sums *sums) {
    for (unsigned k = 0; k < 8; k++) own->squared[k] = vld1q_f64(sums->squared + 2 * k), own->power[k] = vld1q_f64(sums->power + 2 * k);
    own->largest = vdupq_n_u32(sums->largest);
}

MB_STEP void mb_pruned_end_neon(const mb_pruned_neon *own, mb_sums *sums) {
    for (unsigned k = 0; k < 8; k++) vst1q_f64(sums->squared + 2 * k, own->squared[k]), vst1q_f64(sums->power + 2 * k, own->power[k]);
    sums->largest = vmaxvq_u32(own->largest);
}

MB_STEP void mb_add_squares_neon(float64x2_t *sums, float32x4_t x) {
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(x)), high = vcvt_high_f64_f32(x);
    sums[0] = vfmaq_f64(sums[0], low, low), sums[1] = vfmaq_f64(sums[1], high, high);
}

/* Four magnitudes for the lanes 4 * quarter and on: those that are lost, and those whose squares are the power. */
MB_STEP void mb_measure_4_neon(mb_pruned_neon *own, uint32x4_t lost, uint32x4_t power, const unsigned quarter) {
    mb_add_squares_neon(own->squared + 2 * quarter, vreinterpretq_f32_u32(lost));
    mb_add_squares_neon(own->power + 2 * quarter, vreinterpretq_f32_u32(power));
    own->largest = vmaxq_u32(own->largest, lost);
}

MB_KERNEL uint64_t mb_split_f16_neon(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    const uint16x8_t top = vdupq_n_u16((uint16_t)(cut < 0x7fff ? cut : 0x7fff));
    uint64_t found = 0;
    size_t i = 0;
    for (; i + 8 <= (size_t)count; i += 8) {
        const uint16x8_t elements = mb_get_u16_neon(src + 2 * i);
        MB_ONCE();
        uint32_t bits;
        found += mb_keep_8_neon(kept + 2 * found, elements, vcgtq_u16(vbicq_u16(elements, vdupq_n_u16(0x8000)), top), &bits);
        mask[i / 8] = (uint8_t)bits;
    }
    return found + mb_split_f16_plain(src + 2 * i, count - i, cut, mask + i / 8, kept + 2 * found, sums);
}

MB_KERNEL uint64_t mb_split_f32_neon(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    const uint32x4_t top = vdupq_n_u32(cut);
    mb_pruned_neon own;
    uint64_t found = 0;
    size_t i = 0;
    mb_pruned_begin_neon(&own, sums);
    for (; i + 16 <= (size_t)count; i += 16) {
        uint32_t word = 0;
        for (unsigned quarter = 0; quarter < 4; quarter++) {
            const uint32x4_t elements = mb_get_u32_neon(src + 4 * i + 16 * quarter);
            MB_ONCE();
            const uint32x4_t sizes = vandq_u32(elements, vdupq_n_u32(0x7fffffff)), is_kept = vcgtq_u32(sizes, top);
            uint32_t bits;
            found += mb_keep_4_neon(kept + 4 * found, elements, is_kept, &bits);
            mb_measure_4_neon(&own, vbicq_u32(sizes, is_kept), sizes, quarter);
            word |= bits << (4 * quarter);
        }
        mb_store_u16(mask + i / 8, word);
    }
    mb_pruned_end_neon(&own, sums);
    return found + mb_split_f32_plain(src + 4 * i, count - i, cut, mask + i / 8, kept + 4 * found, sums);
}

MB_KERNEL uint64_t mb_split_chosen_f32_neon(const uint8_t *src, uint64_t count, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    static const uint32_t bit_of[4] = {1, 2, 4, 8};
    const uint32x4_t places = vld1q_u32(bit_of);
    mb_pruned_neon own;
    uint64_t found = 0;
    size_t i = 0;
    mb_pruned_begin_neon(&own, sums);
    for (; i + 16 <= (size_t)count; i += 16) {
        const uint32_t all = mb_load_u16(chosen + i / 8);
        uint32_t word = 0;
        for (unsigned quarter = 0; quarter < 4; quarter++) {
            const uint32x4_t elements = mb_get_u32_neon(src + 4 * i + 16 * quarter);
            MB_ONCE();
            const uint32x4_t sizes = vandq_u32(elements, vdupq_n_u32(0x7fffffff)), is_chosen = vtstq_u32(vdupq_n_u32(all >> (4 * quarter)), places);
            const uint32x4_t stays = vandq_u32(sizes, is_chosen);
            uint32_t bits;
            found += mb_keep_4_neon(kept + 4 * found, elements, vtstq_u32(stays, stays), &bits);
            mb_measure_4_neon(&own, vbicq_u32(sizes, is_chosen), stays, quarter);
            word |= bits << (4 * quarter);
        }
        mb_store_u16(mask + i / 8, word);
    }
    mb_pruned_end_neon(&own, sums);
    return found + mb_split_chosen_f32_plain(src + 4 * i, count - i, chosen + i / 8, mask + i / 8, kept + 4 * found, sums);
}

MB_KERNEL uint64_t mb_split_chosen_f16_neon(const uint8_t *src, uint64_t count, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    static const uint16_t bit_of[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t places = vld1q_u16(bit_of);
    mb_pruned_neon own;
    uint64_t found = 0;
    size_t i = 0;
    mb_pruned_begin_neon(&own, sums);
    for (; i + 16 <= (size_t)count; i += 16)
        for (unsigned half = 0; half < 2; half++) {
            const uint16x8_t elements = mb_get_u16_neon(src + 2 * i + 16 * half);
            MB_ONCE();
            const uint16x8_t sizes = vbicq_u16(elements, vdupq_n_u16(0x8000)), is_chosen = vtstq_u16(vdupq_n_u16(chosen[i / 8 + half]), places);
            const uint16x8_t stays = vandq_u16(sizes, is_chosen);
            const mb_wide_neon lost = mb_widen_f16_neon(vbicq_u16(sizes, is_chosen)), power = mb_widen_f16_neon(stays);
            uint32_t bits;
            found += mb_keep_8_neon(kept + 2 * found, elements, vtstq_u16(stays, stays), &bits);
            mb_measure_4_neon(&own, lost.low, power.low, 2 * half), mb_measure_4_neon(&own, lost.high, power.high, 2 * half + 1);
            mask[i / 8 + half] = (uint8_t)bits;
        }
    mb_pruned_end_neon(&own, sums);
    return found + mb_split_chosen_f16_plain(src + 2 * i, count - i, chosen + i / 8, mask + i / 8, kept + 2 * found, sums);
}

/* Lanes of 0 and -1 to bits: each of 16 bytes has the bit of its place, and neighbours are added three times. */
MB_STEP uint8x16_t mb_weighed_neon(uint16x8_t low, uint16x8_t high) {
    return vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)), vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u)));
}

MB_STEP uint16x8_t mb_above_16_neon(const uint8_t *src, uint16x8_t top) { return vcgtq_u16(vbicq_u16(mb_get_u16_neon(src), vdupq_n_u16(0x8000)), top); }

MB_STEP uint16x8_t mb_above_32_neon(const uint8_t *src, uint32x4_t top) {
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    const uint32x4_t low = vcgtq_u32(vbicq_u32(mb_get_u32_neon(src), sign), top), high = vcgtq_u32(vbicq_u32(mb_get_u32_neon(src + 16), sign), top);
    return vuzp1q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}

#define MB_DEFINE_ABOVE_NEON(name, plain, vector, set, type, most, nbytes, above) \
    MB_KERNEL void name(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask) { \
        const vector top = set((type)(cut < (most) ? cut : (most))); \
        size_t i = 0; \
        for (; i + 64 <= (size_t)count; i += 64) { \
            uint8x16_t some[4]; \
            for (unsigned k = 0; k < 4; k++) some[k] = mb_weighed_neon(above(src + nbytes * (i + 16 * k), top), above(src + nbytes * (i + 16 * k + 8), top)); \
            const uint8x16_t pairs = vpaddq_u8(vpaddq_u8(some[0], some[1]), vpaddq_u8(some[2], some[3])); \
            vst1_u8(mask + i / 8, vget_low_u8(vpaddq_u8(pairs, pairs))); \
        } \
        plain(src + nbytes * i, count - i, cut, mask + i / 8); \
    }

MB_DEFINE_ABOVE_NEON(mb_above_f16_neon, mb_above_f16_plain, uint16x8_t, vdupq_n_u16, uint16_t, 0x7fff, 2, mb_above_16_neon)
MB_DEFINE_ABOVE_NEON(mb_above_f32_neon, mb_above_f32_plain, uint32x4_t, vdupq_n_u32, uint32_t, 0x7fffffff, 4, mb_above_32_neon)

#endif
#endif
