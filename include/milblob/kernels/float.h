/* kernels/float.h: casts between float32, float16 and bfloat16, in all six directions.
 *
 * All three have a sign, an exponent and a fraction: 1+8+23, 1+5+10, 1+8+7 bits. Widening is exact. Narrowing rounds to
 * nearest, ties to even: adding half of the last kept place minus one, plus the last kept bit, carries exactly when IEEE
 * 754 rounds up, and a carry out of the fraction correctly increments the exponent. float16 <-> bfloat16 goes through
 * float32, which holds both exactly, so it rounds once.
 *
 * NaNs are what NumPy (float16) and ml_dtypes (bfloat16) make of them, bit for bit, on every machine:
 *   float32 <- float16, bfloat16   payload kept on the left; a signalling NaN remains signalling
 *   float16 <- float32             the top ten bits of the payload, or 1 where they are 0 (that would be an infinity)
 *   bfloat16 <- any                sign | 0x7fc0                  float16 <- bfloat16   sign | 0x7e00
 * This is why the steps work on bit patterns: conversion instructions would quiet signalling NaNs.
 *
 * A step takes and gives bits in the low end of a uint32_t. Conditions are masks, not branches or ?:, because gcc's
 * vectoriser takes those only as long as nothing costly follows them. */
#ifndef MILBLOB_FLOAT_H
#define MILBLOB_FLOAT_H

#include "milblob/base.h"

#if defined(_MSC_VER) || defined(__GNUC__)
#define MB_RESTRICT __restrict
#else
#define MB_RESTRICT
#endif

/* Counts of the NaNs of a cast, and of numbers that did not fit. Kernels add to it. */
typedef struct mb_cast_counts {
    uint64_t overflow;  /* finite, and too large for the target: infinite afterwards, or the largest number if clamped */
    uint64_t nan;
    uint64_t underflow; /* not zero, and zero afterwards */
} mb_cast_counts;

/* Cast count elements.
 * in   src: count elements, any alignment; clamp: finite numbers that are too large become the largest of the target,
 *      not infinities; infinities are kept         out  dst: count elements, any alignment; must not overlap src
 * over-reads: none      fails: never                                                                                   */
typedef void (*mb_cast_kernel)(uint8_t *dst, const uint8_t *src, uint64_t count, bool clamp, mb_cast_counts *counts);

enum mb_cast_kind {
    MB_CAST_F32_F16, MB_CAST_F32_BF16, MB_CAST_F16_F32, MB_CAST_BF16_F32, MB_CAST_F16_BF16, MB_CAST_BF16_F16, MB_CAST_COUNT
};

/* Bit patterns without their sign. BIG: the smallest number that rounds to an infinity. TINY: how many numbers above
 * zero round to zero (0x33000000 is 2^-25, half of the smallest float16; it is a tie and rounds to zero too). */
#define MB_F32_INF 0x7f800000u
#define MB_F16_INF 0x7c00u
#define MB_BF16_INF 0x7f80u
#define MB_F32_F16_BIG 0x477ff000u
#define MB_F32_F16_TINY 0x33000000u
#define MB_F32_BF16_BIG 0x7f7f8000u
#define MB_F32_BF16_TINY 0x00008000u
#define MB_BF16_F16_BIG 0x4780u
#define MB_BF16_F16_TINY 0x3300u

MB_STEP uint32_t mb_load_u16(const uint8_t *src) { return (uint32_t)src[0] | (uint32_t)src[1] << 8; }

/* Little-endian stores. Not byte by byte as elsewhere: compilers do not vectorise loops over that. */
MB_STEP void mb_store_u16(uint8_t *dst, uint32_t value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    dst[0] = (uint8_t)value, dst[1] = (uint8_t)(value >> 8);
#else
    uint16_t bits = (uint16_t)value;
    memcpy(dst, &bits, 2);
#endif
}

MB_STEP void mb_store_u32(uint8_t *dst, uint32_t value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    dst[0] = (uint8_t)value, dst[1] = (uint8_t)(value >> 8), dst[2] = (uint8_t)(value >> 16), dst[3] = (uint8_t)(value >> 24);
#else
    memcpy(dst, &value, 4);
#endif
}

MB_STEP uint32_t mb_pick(bool condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

/* The steps. `top` is the result for too large a number: the target's infinity, or the bits below it, its largest
 * number. */

MB_STEP uint32_t mb_f32_to_f16(uint32_t bits, uint32_t top) {
    uint32_t a = bits & 0x7fffffffu, payload = a >> 13 & 0x3ffu, small, result;
    float value;
    /* Normal results: the exponent's bias shrinks from 127 to 15, thirteen bits of the fraction are rounded away. */
    result = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
    /* Subnormal ones, below 2^-14: the last place of a float32 in [0.5, 1) is 2^-24, as that of a subnormal float16 is,
     * so adding 0.5 makes the machine round there. Exact for flushed subnormals too: they all go to zero. */
    memcpy(&value, &a, 4);
    value += 0.5f;
    memcpy(&small, &value, 4);
    result = mb_pick(a < 0x38800000u, small - 0x3f000000u, result);
    result = mb_pick(a >= MB_F32_F16_BIG, top, result);
    result = mb_pick(a >= MB_F32_INF, MB_F16_INF | payload | (uint32_t)((a > MB_F32_INF) & (payload == 0)), result);
    return result | (bits >> 16 & 0x8000u);
}

MB_STEP uint32_t mb_f32_to_bf16(uint32_t bits, uint32_t top) {
    uint32_t a = bits & 0x7fffffffu, result = (a + 0x7fffu + (a >> 16 & 1u)) >> 16;
    result = mb_pick(a >= MB_F32_BF16_BIG, top, result);
    result = mb_pick(a >= MB_F32_INF, MB_BF16_INF | (uint32_t)(a > MB_F32_INF) << 6, result);
    return result | (bits >> 16 & 0x8000u);
}

MB_STEP uint32_t mb_f16_to_f32(uint32_t bits, uint32_t top) {
    uint32_t a = bits & 0x7fffu, small, result = (a << 13) + (112u << 23);
    float value = (float)(int32_t)a * 0x1p-24f; /* a subnormal float16 counts 2^-24; exact, and normal as a float32 */
    memcpy(&small, &value, 4);
    (void)top;
    result = mb_pick(a < 0x400u, small, result);
    result = mb_pick(a >= MB_F16_INF, a << 13 | MB_F32_INF, result);
    return result | (bits & 0x8000u) << 16;
}

MB_STEP uint32_t mb_bf16_to_f32(uint32_t bits, uint32_t top) {
    (void)top;
    return bits << 16;
}

MB_STEP uint32_t mb_f16_to_bf16(uint32_t bits, uint32_t top) { return mb_f32_to_bf16(mb_f16_to_f32(bits, 0), top); }

MB_STEP uint32_t mb_bf16_to_f16(uint32_t bits, uint32_t top) {
    uint32_t nan = (bits & 0x8000u) | 0x7e00u;
    return mb_pick((bits & 0x7fffu) > MB_BF16_INF, nan, mb_f32_to_f16(bits << 16, top));
}

/* One kernel: `step` over all elements of src_nbits. `target` is empty or a tier's attribute, with which the compiler may
 * use wider vectors for the same code. Counters of 32 bits add up 4,096 elements at a time, so that they fit into vectors;
 * with TINY 0 nothing is below it. */
#define MB_DEFINE_CAST(name, target, step, src_nbits, dst_nbits, src_inf, src_big, src_tiny, dst_inf) \
    target MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) { \
        const uint32_t inf = src_inf, big = src_big, tiny = src_tiny, top = (dst_inf) - (uint32_t)clamp; \
        while (count > 0) { \
            const uint32_t block = count < 4096 ? (uint32_t)count : 4096; \
            uint32_t overflow = 0, nan = 0, underflow = 0; \
            for (uint32_t i = 0; i < block; i++) { \
                uint32_t bits = mb_load_u##src_nbits(src + (src_nbits) / 8 * (size_t)i), a = bits & (UINT##src_nbits##_MAX >> 1); \
                mb_store_u##dst_nbits(dst + (dst_nbits) / 8 * (size_t)i, step(bits, top)); \
                overflow += (a >= big) & (a < inf); \
                nan += a > inf; \
                underflow += a - 1u < tiny; \
            } \
            counts->overflow += overflow, counts->nan += nan, counts->underflow += underflow; \
            src += (src_nbits) / 8 * (size_t)block, dst += (dst_nbits) / 8 * (size_t)block, count -= block; \
        } \
    }

/* The six kernels of a tier, in the order of mb_cast_kind. */
#define MB_DEFINE_CASTS(tier, target) \
    MB_DEFINE_CAST(mb_cast_f32_f16_##tier, target, mb_f32_to_f16, 32, 16, MB_F32_INF, MB_F32_F16_BIG, MB_F32_F16_TINY, MB_F16_INF) \
    MB_DEFINE_CAST(mb_cast_f32_bf16_##tier, target, mb_f32_to_bf16, 32, 16, MB_F32_INF, MB_F32_BF16_BIG, MB_F32_BF16_TINY, MB_BF16_INF) \
    MB_DEFINE_CAST(mb_cast_f16_f32_##tier, target, mb_f16_to_f32, 16, 32, MB_F16_INF, MB_F16_INF, 0, MB_F32_INF) \
    MB_DEFINE_CAST(mb_cast_bf16_f32_##tier, target, mb_bf16_to_f32, 16, 32, MB_BF16_INF, MB_BF16_INF, 0, MB_F32_INF) \
    MB_DEFINE_CAST(mb_cast_f16_bf16_##tier, target, mb_f16_to_bf16, 16, 16, MB_F16_INF, MB_F16_INF, 0, MB_BF16_INF) \
    MB_DEFINE_CAST(mb_cast_bf16_f16_##tier, target, mb_bf16_to_f16, 16, 16, MB_BF16_INF, MB_BF16_F16_BIG, MB_BF16_F16_TINY, MB_F16_INF)

MB_DEFINE_CASTS(plain, )

#endif
