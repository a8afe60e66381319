/* kernels/neon/decode.h: the kernels of scale.h, palette.h and expand.h for AArch64.
 *
 * Each does whole blocks and leaves its tail to the plain kernel, which also explains the algorithm. TBL looks up 16 bytes at
 * once in a table of 16, 32 or 64, and gives 0 for an index beyond it. */
#ifndef MILBLOB_DECODE_NEON_H
#define MILBLOB_DECODE_NEON_H

#include "milblob/kernels/expand.h"
#include "milblob/kernels/expand_rows.h"
#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/palette.h"
#include "milblob/kernels/scale.h"

#ifdef MB_HAS_NEON

/* ------------------------------------------------------------------------------------------------------------- scale */

MB_STEP float32x4_t mb_half_neon(float32x4_t value) { return vcvt_f32_f16(vcvt_f16_f32(value)); }

typedef struct mb_floats_neon {
    float32x4_t low, high;
} mb_floats_neon;

MB_STEP mb_floats_neon mb_floats_from_u8_neon(const uint8_t *src) {
    const uint16x8_t words = vmovl_u8(vld1_u8(src));
    const mb_floats_neon floats = {vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))), vcvtq_f32_u32(vmovl_high_u16(words))};
    return floats;
}

MB_STEP mb_floats_neon mb_floats_from_i8_neon(const uint8_t *src) {
    const int16x8_t words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(src)));
    const mb_floats_neon floats = {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
    return floats;
}

MB_STEP mb_floats_neon mb_floats_from_f16_neon(const uint8_t *src) {
    const mb_wide_neon wide = mb_widen_f16_neon(mb_get_u16_neon(src));
    const mb_floats_neon floats = {vreinterpretq_f32_u32(wide.low), vreinterpretq_f32_u32(wide.high)};
    return floats;
}

MB_STEP void mb_floats_to_f16_neon(uint8_t *dst, float32x4_t low, float32x4_t high) {
    mb_put_u16_neon(dst, mb_narrow_f16_neon(vreinterpretq_u32_f32(low), vreinterpretq_u32_f32(high)));
}

MB_STEP void mb_floats_to_f32_neon(uint8_t *dst, float32x4_t low, float32x4_t high) {
    mb_put_u32_neon(dst, vreinterpretq_u32_f32(low));
    mb_put_u32_neon(dst + 16, vreinterpretq_u32_f32(high));
}

/* Eight elements a round: `from` makes float32 of them, `to` results. Conversions are those of the CPU, which quiets NaNs: of
 * a float16 that changes nothing, as the subtraction would do it too, and results of arithmetic are quiet. A float32
 * that is rounded to float16 first may have a payload that float.h keeps otherwise: those kernels are the plain ones. */
#define MB_SCALE_8_NEON(from_nbytes, from, to_nbytes, to, s_low, o_low, s_high, o_high, steps) \
    const mb_floats_neon value = from(src + (from_nbytes) * i); \
    float32x4_t low = vsubq_f32(value.low, o_low), high = vsubq_f32(value.high, o_high); \
    if (steps) low = mb_half_neon(low), high = mb_half_neon(high); \
    to(dst + (to_nbytes) * i, vmulq_f32(s_low, low), vmulq_f32(s_high, high));

#define MB_DEFINE_SCALE_NEON(name, tail, from_nbytes, from, to_nbytes, to, steps) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, const float *MB_RESTRICT scale, const float *MB_RESTRICT offset, uint64_t run) { \
        uint64_t i = 0; \
        if (run == 1) { \
            for (; count - i >= 8; i += 8) { \
                const float32x4_t s_low = vld1q_f32(scale + i), o_low = vld1q_f32(offset + i), s_high = vld1q_f32(scale + i + 4), o_high = vld1q_f32(offset + i + 4); \
                MB_SCALE_8_NEON(from_nbytes, from, to_nbytes, to, s_low, o_low, s_high, o_high, steps) \
            } \
            tail(dst + (to_nbytes) * i, src + (from_nbytes) * i, count - i, scale + i, offset + i, 1); \
            return; \
        } \
        for (; i < count; scale++, offset++) { \
            const uint64_t end = count - i < run ? count : i + run; \
            const float32x4_t s = vdupq_n_f32(*scale), o = vdupq_n_f32(*offset); \
            for (; end - i >= 8; i += 8) { \
                MB_SCALE_8_NEON(from_nbytes, from, to_nbytes, to, s, o, s, o, steps) \
            } \
            if (i < end) tail(dst + (to_nbytes) * i, src + (from_nbytes) * i, end - i, scale, offset, run); \
            i = end; \
        } \
    }

MB_DEFINE_SCALE_NEON(mb_scale_f16_f32_neon, mb_scale_f16_f32_plain, 2, mb_floats_from_f16_neon, 4, mb_floats_to_f32_neon, false)
MB_DEFINE_SCALE_NEON(mb_scale_u8_f16_neon, mb_scale_u8_f16_plain, 1, mb_floats_from_u8_neon, 2, mb_floats_to_f16_neon, false)
MB_DEFINE_SCALE_NEON(mb_scale_i8_f16_neon, mb_scale_i8_f16_plain, 1, mb_floats_from_i8_neon, 2, mb_floats_to_f16_neon, false)
MB_DEFINE_SCALE_NEON(mb_scale_f16_f16_neon, mb_scale_f16_f16_plain, 2, mb_floats_from_f16_neon, 2, mb_floats_to_f16_neon, false)
MB_DEFINE_SCALE_NEON(mb_scale_u8_steps_neon, mb_scale_u8_steps_plain, 1, mb_floats_from_u8_neon, 2, mb_floats_to_f16_neon, true)
MB_DEFINE_SCALE_NEON(mb_scale_i8_steps_neon, mb_scale_i8_steps_plain, 1, mb_floats_from_i8_neon, 2, mb_floats_to_f16_neon, true)
MB_DEFINE_SCALE_NEON(mb_scale_f16_steps_neon, mb_scale_f16_steps_plain, 2, mb_floats_from_f16_neon, 2, mb_floats_to_f16_neon, true)

/* ----------------------------------------------------------------------------------------------------------- palette */

/* Up to 64 entries of 1, 2 or 4 bytes: a table for each byte of an entry, whose answers are stored in turns. 16 indices a
 * round. `load` takes the bytes of 16 entries apart, `store` puts those of 16 results together. */
#define MB_DEFINE_LOOKUP_NEON(name, plain, nbytes, vectors, load, store) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) { \
        uint8_t all[64 * (nbytes)] = {0}; \
        uint8x16x4_t tables[nbytes]; \
        uint64_t i = 0; \
        if (entry_count > 64 || count < 32) { \
            plain(dst, indices, count, entries, entry_count); \
            return; \
        } \
        memcpy(all, entries, (nbytes) * (size_t)entry_count); \
        for (unsigned k = 0; k < 4; k++) { \
            const vectors bytes = load(all + 16 * (nbytes) * k); \
            for (unsigned b = 0; b < (nbytes); b++) tables[b].val[k] = bytes.val[b]; \
        } \
        if (entry_count <= 16) \
            for (; count - i >= 16; i += 16) { \
                const uint8x16_t index = vld1q_u8(indices + i); \
                vectors found; \
                for (unsigned b = 0; b < (nbytes); b++) found.val[b] = vqtbl1q_u8(tables[b].val[0], index); \
                store(dst + (nbytes) * i, found); \
            } \
        else \
            for (; count - i >= 16; i += 16) { \
                const uint8x16_t index = vld1q_u8(indices + i); \
                vectors found; \
                for (unsigned b = 0; b < (nbytes); b++) found.val[b] = vqtbl4q_u8(tables[b], index); \
                store(dst + (nbytes) * i, found); \
            } \
        plain(dst + (nbytes) * i, indices + i, count - i, entries, entry_count); \
    }

MB_DEFINE_LOOKUP_NEON(mb_lookup_16_neon, mb_lookup_16_plain, 2, uint8x16x2_t, vld2q_u8, vst2q_u8)
MB_DEFINE_LOOKUP_NEON(mb_lookup_32_neon, mb_lookup_32_plain, 4, uint8x16x4_t, vld4q_u8, vst4q_u8)

/* Entries of one byte, up to 256 of them: TBX leaves alone what lies beyond its table, so four in a row, each with the
 * index less 64 more, find the one that has it. */
MB_KERNEL void mb_lookup_8_neon(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint8_t all[256] = {0};
    uint8x16x4_t tables[4];
    uint64_t i = 0;
    if (count < 32) {
        mb_lookup_8_plain(dst, indices, count, entries, entry_count);
        return;
    }
    memcpy(all, entries, entry_count);
    for (unsigned t = 0; t < 4; t++)
        for (unsigned k = 0; k < 4; k++) tables[t].val[k] = vld1q_u8(all + 64 * t + 16 * k);
    if (entry_count <= 64) {
        for (; count - i >= 16; i += 16) vst1q_u8(dst + i, vqtbl4q_u8(tables[0], vld1q_u8(indices + i)));
    } else {
        for (; count - i >= 16; i += 16) {
            uint8x16_t index = vld1q_u8(indices + i), found = vqtbl4q_u8(tables[0], index);
            for (unsigned t = 1; t < 4; t++) {
                index = vsubq_u8(index, vdupq_n_u8(64));
                found = vqtbx4q_u8(found, tables[t], index);
            }
            vst1q_u8(dst + i, found);
        }
    }
    mb_lookup_8_plain(dst + i, indices + i, count - i, entries, entry_count);
}

/* ------------------------------------------------------------------------------------------------------------ expand */

MB_KERNEL uint64_t mb_ones_neon(const uint8_t *src, uint64_t count) {
    uint64x2_t ones = vdupq_n_u64(0);
    for (; count >= 512; count -= 512, src += 64) {
        const uint8x16_t a = vaddq_u8(vcntq_u8(vld1q_u8(src)), vcntq_u8(vld1q_u8(src + 16)));
        const uint8x16_t b = vaddq_u8(vcntq_u8(vld1q_u8(src + 32)), vcntq_u8(vld1q_u8(src + 48)));
        ones = vpadalq_u32(ones, vpaddlq_u16(vpaddlq_u8(vaddq_u8(a, b))));
    }
    return vaddvq_u64(ones) + mb_ones_plain(src, count);
}

/* One byte of the mask a round: `place` turns eight elements and a row of the table, where a clear bit has 0x80, into
 * eight places. */
#define MB_DEFINE_EXPAND_NEON(name, tail, nbytes, place) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t src_count, const uint8_t *bits, uint64_t count) { \
        uint64_t done = 0, next = 0; \
        for (; count - done >= 8 && src_count - next >= 8; done += 8) { \
            const unsigned byte = bits[done / 8]; \
            place(dst + (nbytes) * done, src + (nbytes) * next, vld1_u8(mb_expand_rows[byte])); \
            next += (uint64_t)__builtin_popcount(byte); \
        } \
        tail(dst + (nbytes) * done, src + (nbytes) * next, src_count - next, bits + done / 8, count - done); \
    }

MB_STEP void mb_place_8_neon(uint8_t *dst, const uint8_t *src, uint8x8_t row) { vst1_u8(dst, vtbl1_u8(vld1_u8(src), vshr_n_u8(row, 1))); }

/* Element i is bytes 2 * i and 2 * i + 1. */
MB_STEP void mb_place_16_neon(uint8_t *dst, const uint8_t *src, uint8x8_t row) {
    const uint8x16_t twice = vcombine_u8(vzip1_u8(row, row), vzip2_u8(row, row));
    vst1q_u8(dst, vqtbl1q_u8(vld1q_u8(src), vorrq_u8(twice, vreinterpretq_u8_u16(vdupq_n_u16(0x0100)))));
}

/* Twice the row, because the table picks bytes; 0x80 saturates to 0xff, which still lies beyond the table of 32. */
MB_STEP void mb_place_32_neon(uint8_t *dst, const uint8_t *src, uint8x8_t row) {
    const uint8x8_t begin = vqshl_n_u8(row, 1);
    const uint8x16_t twice = vcombine_u8(vzip1_u8(begin, begin), vzip2_u8(begin, begin)), bytes = vreinterpretq_u8_u32(vdupq_n_u32(0x03020100));
    uint8x16x2_t elements;
    elements.val[0] = vld1q_u8(src), elements.val[1] = vld1q_u8(src + 16);
    vst1q_u8(dst, vqtbl2q_u8(elements, vorrq_u8(vzip1q_u8(twice, twice), bytes)));
    vst1q_u8(dst + 16, vqtbl2q_u8(elements, vorrq_u8(vzip2q_u8(twice, twice), bytes)));
}

MB_DEFINE_EXPAND_NEON(mb_expand_8_neon, mb_expand_8_plain, 1, mb_place_8_neon)
MB_DEFINE_EXPAND_NEON(mb_expand_16_neon, mb_expand_16_plain, 2, mb_place_16_neon)
MB_DEFINE_EXPAND_NEON(mb_expand_32_neon, mb_expand_32_plain, 4, mb_place_32_neon)

#endif
#endif
