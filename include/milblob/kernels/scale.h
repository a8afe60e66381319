/* kernels/scale.h: scale * (element - offset), rounded as coremltools rounds.
 *
 * Everything is computed in float32, which equals computing in float16 and rounding after each step, provided that each
 * result is rounded to float16: 24 bits of fraction are more than twice 11 plus two, so double rounding is harmless. What
 * is rounded in between depends on the dtypes, hence three kinds of output:
 *   MB_TO_F32          nothing
 *   MB_TO_F16          the element (if it was a float32) and the result, the difference not: offsets that are integers
 *                      (differences of bytes are exact) or float32 (NumPy then computes in float32)
 *   MB_TO_F16_STEPS    the difference too: float16 offsets */
#ifndef MILBLOB_SCALE_H
#define MILBLOB_SCALE_H

#include "milblob/kernels/float.h"

enum mb_scale_from { MB_FROM_U8, MB_FROM_I8, MB_FROM_F16, MB_FROM_F32, MB_FROM_COUNT };
enum mb_scale_to { MB_TO_F32, MB_TO_F16, MB_TO_F16_STEPS, MB_TO_COUNT };

/* Compute count results.
 * in   src: count elements, any alignment; scale, offset: one of each for every `run` (1 or more) elements
 * out  dst: count elements, any alignment; must not overlap src      over-reads: none      fails: never                  */
typedef void (*mb_scale_kernel)(uint8_t *dst, const uint8_t *src, uint64_t count, const float *scale, const float *offset, uint64_t run);

MB_STEP float mb_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

MB_STEP uint32_t mb_bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

MB_STEP float mb_float_from_u8(const uint8_t *src, size_t i) { return (float)src[i]; }
MB_STEP float mb_float_from_i8(const uint8_t *src, size_t i) { return (float)(int8_t)src[i]; }
MB_STEP float mb_float_from_f16(const uint8_t *src, size_t i) { return mb_float_of(mb_f16_to_f32(mb_load_u16(src + 2 * i), 0)); }
MB_STEP float mb_float_from_f32(const uint8_t *src, size_t i) { return mb_float_of(mb_load_u32(src + 4 * i)); }

MB_STEP float mb_exact(float value) { return value; }
MB_STEP float mb_to_half(float value) { return mb_float_of(mb_f16_to_f32(mb_f32_to_f16(mb_bits_of(value), MB_F16_INF), 0)); }

MB_STEP void mb_put_f32(uint8_t *dst, size_t i, float value) { mb_store_u32(dst + 4 * i, mb_bits_of(value)); }
MB_STEP void mb_put_f16(uint8_t *dst, size_t i, float value) { mb_store_u16(dst + 2 * i, mb_f32_to_f16(mb_bits_of(value), MB_F16_INF)); }

/* `element` and `difference` are what rounds an element and a difference: mb_exact or mb_to_half. */
#define MB_DEFINE_SCALE(name, target, from, element, difference, put) \
    target MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, const float *MB_RESTRICT scale, const float *MB_RESTRICT offset, uint64_t run) { \
        const size_t n = (size_t)count; \
        if (run == 1) { \
            for (size_t i = 0; i < n; i++) put(dst, i, scale[i] * difference(element(from(src, i)) - offset[i])); \
        } else { \
            for (size_t begin = 0; begin < n; scale++, offset++) { \
                const size_t end = n - begin < run ? n : begin + (size_t)run; \
                const float s = *scale, o = *offset; \
                for (size_t i = begin; i < end; i++) put(dst, i, s * difference(element(from(src, i)) - o)); \
                begin = end; \
            } \
        } \
    }

/* The kernels of a tier: mb_scale_FROM_TO_TIER. A float16 is one already; a float32 is rounded first for float16 results. */
#define MB_DEFINE_SCALES(tier, target) \
    MB_DEFINE_SCALE(mb_scale_u8_f32_##tier, target, mb_float_from_u8, mb_exact, mb_exact, mb_put_f32) \
    MB_DEFINE_SCALE(mb_scale_i8_f32_##tier, target, mb_float_from_i8, mb_exact, mb_exact, mb_put_f32) \
    MB_DEFINE_SCALE(mb_scale_f16_f32_##tier, target, mb_float_from_f16, mb_exact, mb_exact, mb_put_f32) \
    MB_DEFINE_SCALE(mb_scale_f32_f32_##tier, target, mb_float_from_f32, mb_exact, mb_exact, mb_put_f32) \
    MB_DEFINE_SCALE(mb_scale_u8_f16_##tier, target, mb_float_from_u8, mb_exact, mb_exact, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_i8_f16_##tier, target, mb_float_from_i8, mb_exact, mb_exact, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_f16_f16_##tier, target, mb_float_from_f16, mb_exact, mb_exact, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_f32_f16_##tier, target, mb_float_from_f32, mb_to_half, mb_exact, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_u8_steps_##tier, target, mb_float_from_u8, mb_exact, mb_to_half, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_i8_steps_##tier, target, mb_float_from_i8, mb_exact, mb_to_half, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_f16_steps_##tier, target, mb_float_from_f16, mb_exact, mb_to_half, mb_put_f16) \
    MB_DEFINE_SCALE(mb_scale_f32_steps_##tier, target, mb_float_from_f32, mb_to_half, mb_to_half, mb_put_f16)

MB_DEFINE_SCALES(plain, )

#endif
