/* kernels/quantize_steps.h: elements to integers on a linear scale, and how far from them the dense values are.
 *
 * An integer q stands for scale * (q - zero). float32: q = round(x / scale) + zero, clipped, which is what coremltools
 * computes, bit for bit. float16: the same in float32 (coremltools divides in float16), and then, because the dense value is
 * rounded to float16, the neighbour on the other side of x if its dense value is nearer. So no integer is nearer, and the
 * error is at most coremltools' with the same scale and zero.
 *
 * A scale of 0 (all elements are, or nearly) gives 0 / 0: NaN, which becomes 0. */
#ifndef MILBLOB_QUANTIZE_STEPS_H
#define MILBLOB_QUANTIZE_STEPS_H

#include "milblob/kernels/scale.h"

/* Quantize count elements.
 * in   src: count finite floats; scale, zero: one of each (zero: a whole number) for every `run` (1 or more) elements; least, most: of the integers
 * out  dst: count bytes, the low eight bits of the integers; off: how much the element is above its dense value
 * over-reads: none      fails: never                                                                                   */
typedef void (*mb_quantize_kernel)(uint8_t *dst, float *off, const float *src, uint64_t count, const float *scale, const float *zero, uint64_t run, int32_t least, int32_t most);

/* The steps work on bits and integers, because compilers vectorise conditions on those, but not on floats.
 *
 * The nearest integer to `value`, ties to even, for what is clipped to a byte afterwards: magnitudes above 4096 count as
 * that. The sum with 1.5 * 2^23 has the integer in its lowest bits. */
MB_STEP int32_t mb_nearest(float value) {
    const uint32_t bits = mb_bits_of(value);
    const int32_t magnitude = (int32_t)(bits & 0x7fffffffu), some = magnitude < 0x45800000 ? magnitude : 0x45800000;
    return (int32_t)mb_bits_of(mb_float_of((bits & 0x80000000u) | (uint32_t)some) + 12582912.0f) - 0x4b400000;
}

MB_STEP int32_t mb_clip(int32_t value, int32_t least, int32_t most) {
    value = value < least ? least : value;
    return value > most ? most : value;
}

/* The integer of an element at `at` on the scale; 0 for NaN. */
MB_STEP int32_t mb_quantize_at(float at, int32_t zero, int32_t least, int32_t most) {
    const int32_t magnitude = (int32_t)(mb_bits_of(at) & 0x7fffffffu), is_number = (magnitude - 0x7f800001) >> 31;
    return mb_clip(mb_nearest(at) + zero, least, most) & is_number;
}

MB_STEP int32_t mb_quantize_f32(float *off, float x, float s, int32_t z, int32_t least, int32_t most) {
    const int32_t q = mb_quantize_at(x / s, z, least, most);
    *off = x - (float)(q - z) * s;
    return q;
}

MB_STEP int32_t mb_quantize_f16(float *off, float x, float s, int32_t z, int32_t least, int32_t most) {
    const float at = x / s;
    const int32_t q = mb_quantize_at(at, z, least, most);
    const int32_t up = 1 - (int32_t)(mb_bits_of(at - (float)(q - z)) >> 31 << 1); /* 1 or -1: towards x */
    const int32_t other = mb_clip(q + up, least, most);
    const float above = x - mb_to_half((float)(q - z) * s), beyond = x - mb_to_half((float)(other - z) * s);
    /* Magnitudes of floats compare like their bits. */
    const int32_t nearer = ((int32_t)(mb_bits_of(beyond) & 0x7fffffffu) - (int32_t)(mb_bits_of(above) & 0x7fffffffu)) >> 31;
    *off = mb_float_of((mb_bits_of(beyond) & (uint32_t)nearer) | (mb_bits_of(above) & ~(uint32_t)nearer));
    return (other & nearer) | (q & ~nearer);
}

#define MB_DEFINE_QUANTIZE(name, target, step) \
    target MB_KERNEL void name(uint8_t *MB_RESTRICT dst, float *MB_RESTRICT off, const float *MB_RESTRICT src, uint64_t count, const float *MB_RESTRICT scale, const float *MB_RESTRICT zero, uint64_t run, int32_t least, int32_t most) { \
        const size_t n = (size_t)count; \
        if (run == 1) { \
            for (size_t i = 0; i < n; i++) dst[i] = (uint8_t)step(off + i, src[i], scale[i], (int32_t)zero[i], least, most); \
        } else { \
            for (size_t begin = 0; begin < n; scale++, zero++) { \
                const size_t end = n - begin < run ? n : begin + (size_t)run; \
                const float s = *scale; \
                const int32_t z = (int32_t)*zero; \
                for (size_t i = begin; i < end; i++) dst[i] = (uint8_t)step(off + i, src[i], s, z, least, most); \
                begin = end; \
            } \
        } \
    }

#define MB_DEFINE_QUANTIZES(tier, target) \
    MB_DEFINE_QUANTIZE(mb_quantize_f32_##tier, target, mb_quantize_f32) \
    MB_DEFINE_QUANTIZE(mb_quantize_f16_##tier, target, mb_quantize_f16)

MB_DEFINE_QUANTIZES(plain, )

#endif
