/* kernels/neon/palette_values.h: finds the entry nearest to each float32 element, for AArch64. */
#ifndef MILBLOB_PALETTE_VALUES_NEON_H
#define MILBLOB_PALETTE_VALUES_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/palette_values.h"

#ifdef MB_HAS_NEON

/* 32 elements with `begin` and every `step`th border after it: how many are below each, times 2^shift. */
MB_STEP void mb_palette_below_neon(int32_t *at, const int32_t *order, const int32_t *borders, uint32_t used, uint32_t begin, uint32_t step, const int shift) {
    int32x4_t own[8], found[8];
    for (unsigned k = 0; k < 8; k++) own[k] = vld1q_s32(order + 4 * k), found[k] = vdupq_n_s32(0);
    for (uint32_t border = begin; border + 1 < used; border += step) {
        const int32x4_t limit = vdupq_n_s32(borders[border]);
        for (unsigned k = 0; k < 8; k++) found[k] = vsubq_s32(found[k], vreinterpretq_s32_u32(vcgtq_s32(own[k], limit)));
    }
    for (unsigned k = 0; k < 8; k++) vst1q_s32(at + 4 * k, vshlq_s32(found[k], vdupq_n_s32(shift)));
}

/* More than 17 entries: every sixteenth border first, then the fifteen in between are divided in halves, one element at a time,
 * without a jump: which way it goes cannot be predicted. */
MB_STEP void mb_palette_find_neon(int32_t *at, const int32_t *order, const int32_t *borders, uint32_t used, uint32_t top) {
    (void)top;
    if (used <= 17) {
        for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i += 32) mb_palette_below_neon(at + i, order + i, borders, used, 0, 1, 0);
        return;
    }
    for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i += 32) mb_palette_below_neon(at + i, order + i, borders, used, 15, 16, 4);
    for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i++) {
        const int32_t own = order[i];
        size_t place = (size_t)at[i];
        for (size_t step = 8; step > 0; step /= 2) place += step & (0 - (size_t)(own > borders[place + step - 1]));
        at[i] = (int32_t)place;
    }
}

MB_DEFINE_PALETTE_INDEX(mb_palette_index_32_neon, , mb_palette_find_neon)

#endif
#endif
