/* kernels/neon/float.h: the casts of float.h for AArch64, whose baseline has NEON and the conversions of float16.
 *
 * As with AVX2: a fast path for blocks of 64 is correct for most numbers and counts nothing; one maximum and one minimum over
 * the block show whether it holds a NaN or anything to count. The plain code handles such blocks, and the tail. */
#ifndef MILBLOB_FLOAT_NEON_H
#define MILBLOB_FLOAT_NEON_H

#include "milblob/kernels/float.h"

/* Big-endian machines and MSVC (_M_ARM64) were not tested and have only the plain tier. */
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__AARCH64EB__)
#define MB_HAS_NEON 1

#include <arm_neon.h>

MB_STEP uint16x8_t mb_get_u16_neon(const uint8_t *src) { return vreinterpretq_u16_u8(vld1q_u8(src)); }
MB_STEP uint32x4_t mb_get_u32_neon(const uint8_t *src) { return vreinterpretq_u32_u8(vld1q_u8(src)); }
MB_STEP void mb_put_u16_neon(uint8_t *dst, uint16x8_t bits) { vst1q_u8(dst, vreinterpretq_u8_u16(bits)); }
MB_STEP void mb_put_u32_neon(uint8_t *dst, uint32x4_t bits) { vst1q_u8(dst, vreinterpretq_u8_u32(bits)); }

/* The test of a block: the largest bits without sign, and the smallest of those less one (0 becomes the largest, so
 * zeros do not count as tiny). */
typedef struct mb_extremes_u32_neon {
    uint32x4_t most, least;
} mb_extremes_u32_neon;

typedef struct mb_extremes_u16_neon {
    uint16x8_t most, least;
} mb_extremes_u16_neon;

MB_STEP void mb_see_u32_neon(mb_extremes_u32_neon *seen, uint32x4_t bits) {
    const uint32x4_t a = vandq_u32(bits, vdupq_n_u32(UINT32_MAX >> 1));
    seen->most = vmaxq_u32(seen->most, a);
    seen->least = vminq_u32(seen->least, vsubq_u32(a, vdupq_n_u32(1)));
}

MB_STEP void mb_see_u16_neon(mb_extremes_u16_neon *seen, uint16x8_t bits) {
    const uint16x8_t a = vbicq_u16(bits, vdupq_n_u16(0x8000));
    seen->most = vmaxq_u16(seen->most, a);
    seen->least = vminq_u16(seen->least, vsubq_u16(a, vdupq_n_u16(1)));
}

/* Eight float32, as bits, to float16 and bfloat16; and back. vaddhn adds and takes the upper halves; a zip with zeros
 * makes lower halves of them. */
MB_STEP uint16x8_t mb_narrow_f16_neon(uint32x4_t low, uint32x4_t high) {
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(vreinterpretq_f32_u32(low)), vreinterpretq_f32_u32(high)));
}

MB_STEP uint32x4_t mb_with_last_neon(uint32x4_t bits) { return vaddq_u32(bits, vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1))); }

MB_STEP uint16x8_t mb_narrow_bf16_neon(uint32x4_t low, uint32x4_t high) {
    const uint32x4_t half = vdupq_n_u32(0x7fff);
    return vaddhn_high_u32(vaddhn_u32(mb_with_last_neon(low), half), mb_with_last_neon(high), half);
}

typedef struct mb_wide_neon {
    uint32x4_t low, high;
} mb_wide_neon;

MB_STEP mb_wide_neon mb_widen_f16_neon(uint16x8_t bits) {
    const float16x8_t half = vreinterpretq_f16_u16(bits);
    const mb_wide_neon wide = {vreinterpretq_u32_f32(vcvt_f32_f16(vget_low_f16(half))), vreinterpretq_u32_f32(vcvt_high_f32_f16(half))};
    return wide;
}

MB_STEP mb_wide_neon mb_widen_bf16_neon(uint16x8_t bits) {
    const uint16x8_t zero = vdupq_n_u16(0);
    const mb_wide_neon wide = {vreinterpretq_u32_u16(vzip1q_u16(zero, bits)), vreinterpretq_u32_u16(vzip2q_u16(zero, bits))};
    return wide;
}

MB_STEP uint16x8_t mb_f16_to_bf16_neon(uint16x8_t bits) {
    const mb_wide_neon wide = mb_widen_f16_neon(bits);
    return mb_narrow_bf16_neon(wide.low, wide.high);
}

MB_STEP uint16x8_t mb_bf16_to_f16_neon(uint16x8_t bits) {
    const mb_wide_neon wide = mb_widen_bf16_neon(bits);
    return mb_narrow_f16_neon(wide.low, wide.high);
}

/* From float32. `big` and `tiny` as in float.h: where something lies outside, there is something to count. */
#define MB_DEFINE_NARROW_NEON(name, plain, narrow, big, tiny) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) { \
        for (; count >= 64; count -= 64, src += 256, dst += 128) { \
            mb_extremes_u32_neon seen = {vdupq_n_u32(0), vdupq_n_u32(UINT32_MAX)}; \
            for (unsigned k = 0; k < 8; k++) { \
                const uint32x4_t low = mb_get_u32_neon(src + 32 * k), high = mb_get_u32_neon(src + 32 * k + 16); \
                mb_see_u32_neon(&seen, low); \
                mb_see_u32_neon(&seen, high); \
                mb_put_u16_neon(dst + 16 * k, narrow(low, high)); \
            } \
            if (vmaxvq_u32(seen.most) >= (big) || vminvq_u32(seen.least) < (tiny)) plain(dst, src, 64, clamp, counts); \
        } \
        plain(dst, src, count, clamp, counts); \
    }

/* To float32, where only NaNs are counted: `most` is the largest pattern that is none. */
#define MB_DEFINE_WIDEN_NEON(name, plain, widen, inf) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) { \
        for (; count >= 64; count -= 64, src += 128, dst += 256) { \
            uint16x8_t most = vdupq_n_u16(0); \
            for (unsigned k = 0; k < 8; k++) { \
                const uint16x8_t bits = mb_get_u16_neon(src + 16 * k); \
                const mb_wide_neon wide = widen(bits); \
                most = vmaxq_u16(most, vbicq_u16(bits, vdupq_n_u16(0x8000))); \
                mb_put_u32_neon(dst + 32 * k, wide.low); \
                mb_put_u32_neon(dst + 32 * k + 16, wide.high); \
            } \
            if (vmaxvq_u16(most) > (inf)) plain(dst, src, 64, clamp, counts); \
        } \
        plain(dst, src, count, clamp, counts); \
    }

/* Between the two of 16 bits. */
#define MB_DEFINE_CROSS_NEON(name, plain, step, big, tiny) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) { \
        for (; count >= 64; count -= 64, src += 128, dst += 128) { \
            mb_extremes_u16_neon seen = {vdupq_n_u16(0), vdupq_n_u16(UINT16_MAX)}; \
            for (unsigned k = 0; k < 8; k++) { \
                const uint16x8_t bits = mb_get_u16_neon(src + 16 * k); \
                mb_see_u16_neon(&seen, bits); \
                mb_put_u16_neon(dst + 16 * k, step(bits)); \
            } \
            if (vmaxvq_u16(seen.most) >= (big) || vminvq_u16(seen.least) < (tiny)) plain(dst, src, 64, clamp, counts); \
        } \
        plain(dst, src, count, clamp, counts); \
    }

MB_DEFINE_NARROW_NEON(mb_cast_f32_f16_neon, mb_cast_f32_f16_plain, mb_narrow_f16_neon, MB_F32_F16_BIG, MB_F32_F16_TINY)
MB_DEFINE_NARROW_NEON(mb_cast_f32_bf16_neon, mb_cast_f32_bf16_plain, mb_narrow_bf16_neon, MB_F32_BF16_BIG, MB_F32_BF16_TINY)
MB_DEFINE_WIDEN_NEON(mb_cast_f16_f32_neon, mb_cast_f16_f32_plain, mb_widen_f16_neon, MB_F16_INF)
MB_DEFINE_WIDEN_NEON(mb_cast_bf16_f32_neon, mb_cast_bf16_f32_plain, mb_widen_bf16_neon, MB_BF16_INF)
MB_DEFINE_CROSS_NEON(mb_cast_f16_bf16_neon, mb_cast_f16_bf16_plain, mb_f16_to_bf16_neon, MB_F16_INF + 1, 0u)
MB_DEFINE_CROSS_NEON(mb_cast_bf16_f16_neon, mb_cast_bf16_f16_plain, mb_bf16_to_f16_neon, MB_BF16_F16_BIG, MB_BF16_F16_TINY)

#endif
#endif
