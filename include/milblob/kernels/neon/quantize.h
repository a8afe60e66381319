/* kernels/neon/quantize.h: the steps of quantize_steps.h for AArch64.
 *
 * As with AVX2, integers remain floats until they are stored. The plain code handles a scale of 0 and the rest of a
 * run. */
#ifndef MILBLOB_QUANTIZE_NEON_H
#define MILBLOB_QUANTIZE_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/quantize_steps.h"

#ifdef MB_HAS_NEON

typedef struct mb_quantize_neon {
    float64x2_t squared[8], power[8];
    uint32x4_t largest, mask;
    float32x4_t least, most, scale, inverse, zero; /* the first two less the zero */
} mb_quantize_neon;

MB_STEP uint32x4_t mb_size_neon(float32x4_t x) { return vreinterpretq_u32_f32(vabsq_f32(x)); }
MB_STEP float32x4_t mb_round_half_neon(float32x4_t x) { return vcvt_f32_f16(vcvt_f16_f32(x)); }
MB_STEP float32x4_t mb_limit_neon(const mb_quantize_neon *own, float32x4_t x) { return vmaxq_f32(vminq_f32(x, own->most), own->least); }

MB_STEP void mb_add_squares_neon(float64x2_t *sums, float32x4_t x) {
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(x)), high = vcvt_high_f64_f32(x);
    sums[0] = vfmaq_f64(sums[0], low, low), sums[1] = vfmaq_f64(sums[1], high, high);
}

/* Four elements, for the lanes 4 * quarter and on. Returns their integers. */
MB_STEP uint32x4_t mb_quantize_4_neon(mb_quantize_neon *own, float *off, float32x4_t x, const unsigned quarter, const bool is_f16) {
    const float32x4_t at = is_f16 ? vmulq_f32(x, own->inverse) : vdivq_f32(x, own->scale);
    float32x4_t q = vrndnq_f32(mb_limit_neon(own, at)), above;
    if (is_f16) {
        const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(vsubq_f32(at, q)), vdupq_n_u32(0x80000000u));
        const float32x4_t up = vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(vdupq_n_f32(1.0f)), sign));
        const float32x4_t other = mb_limit_neon(own, vaddq_f32(q, up)), beyond = vsubq_f32(x, mb_round_half_neon(vmulq_f32(other, own->scale)));
        above = vsubq_f32(x, mb_round_half_neon(vmulq_f32(q, own->scale)));
        const uint32x4_t nearer = vcltq_u32(mb_size_neon(beyond), mb_size_neon(above));
        q = vbslq_f32(nearer, other, q), above = vbslq_f32(nearer, beyond, above);
    } else {
        const float32x4_t value = vmulq_f32(q, own->scale);
        above = vsubq_f32(x, value);
    }
    own->largest = vmaxq_u32(own->largest, mb_size_neon(above));
    mb_add_squares_neon(own->squared + 2 * quarter, above), mb_add_squares_neon(own->power + 2 * quarter, x);
    if (off != NULL) vst1q_f32(off + 4 * quarter, vabsq_f32(above));
    return vandq_u32(vreinterpretq_u32_s32(vcvtq_s32_f32(vaddq_f32(q, own->zero))), own->mask);
}

MB_STEP void mb_quantize_scale_neon(mb_quantize_neon *own, const mb_integers *to, float32x4_t scale, float32x4_t zero) {
    own->scale = scale, own->inverse = vdivq_f32(vdupq_n_f32(1.0f), scale), own->zero = zero;
    own->least = vsubq_f32(vdupq_n_f32((float)to->least), zero), own->most = vsubq_f32(vdupq_n_f32((float)to->most), zero);
}

MB_STEP void mb_quantize_begin_neon(mb_quantize_neon *own, const mb_sums *sums) {
    for (unsigned k = 0; k < 8; k++) own->squared[k] = vld1q_f64(sums->squared + 2 * k), own->power[k] = vld1q_f64(sums->power + 2 * k);
    own->largest = vdupq_n_u32(sums->largest);
}

MB_STEP void mb_quantize_end_neon(const mb_quantize_neon *own, mb_sums *sums) {
    for (unsigned k = 0; k < 8; k++) vst1q_f64(sums->squared + 2 * k, own->squared[k]), vst1q_f64(sums->power + 2 * k, own->power[k]);
    sums->largest = vmaxvq_u32(own->largest);
}

MB_STEP float32x4_t mb_elements_neon(const uint8_t *src, const bool is_f16) {
    return is_f16 ? vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(src))) : vreinterpretq_f32_u8(vld1q_u8(src));
}

#define MB_DEFINE_QUANTIZE_NEON(name, plain, is_f16, nbytes) \
    MB_KERNEL void name(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) { \
        const size_t n = (size_t)count, step = run == 1; \
        mb_quantize_neon own; \
        mb_quantize_begin_neon(&own, sums); \
        own.mask = vdupq_n_u32((1u << to->nbits) - 1); \
        for (size_t begin = 0, end; begin < n; begin = end, scale++, zero++) { \
            end = step || n - begin < run ? n : begin + (size_t)run; \
            bool is_zero = *scale == 0; \
            for (size_t i = 0; step && i < n; i++) is_zero |= scale[i] == 0; \
            mb_quantize_scale_neon(&own, to, vdupq_n_f32(*scale), vdupq_n_f32(*zero)); \
            size_t i = begin; \
            for (; i + 16 <= end && !is_zero; i += 16) { \
                uint32x4_t q[4]; \
                for (unsigned k = 0; k < 4; k++) { \
                    if (step) mb_quantize_scale_neon(&own, to, vld1q_f32(scale + i + 4 * k), vld1q_f32(zero + i + 4 * k)); \
                    q[k] = mb_quantize_4_neon(&own, off == NULL ? NULL : off + i, mb_elements_neon(src + nbytes * (i + 4 * k), is_f16), k, is_f16); \
                } \
                const uint16x8_t low = vcombine_u16(vmovn_u32(q[0]), vmovn_u32(q[1])), high = vcombine_u16(vmovn_u32(q[2]), vmovn_u32(q[3])); \
                vst1q_u8(dst + i, vcombine_u8(vmovn_u16(low), vmovn_u16(high))); \
            } \
            if (i == end) continue; \
            mb_quantize_end_neon(&own, sums); \
            plain(dst + i, off == NULL ? NULL : off + i, src + nbytes * i, end - i, scale + i * step, zero + i * step, step ? 1 : end - i + 1, to, sums); \
            mb_quantize_begin_neon(&own, sums); \
        } \
        mb_quantize_end_neon(&own, sums); \
    }

MB_DEFINE_QUANTIZE_NEON(mb_quantize_f32_neon, mb_quantize_f32_plain, false, 4)
MB_DEFINE_QUANTIZE_NEON(mb_quantize_f16_neon, mb_quantize_f16_plain, true, 2)

MB_STEP int16x8_t mb_order_16_neon(const uint8_t *src) {
    const int16x8_t bits = vreinterpretq_s16_u8(vld1q_u8(src));
    return veorq_s16(bits, vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(vshrq_n_s16(bits, 15)), 1)));
}

MB_STEP int32x4_t mb_order_32_neon(const uint8_t *src) {
    const int32x4_t bits = vreinterpretq_s32_u8(vld1q_u8(src));
    return veorq_s32(bits, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(vshrq_n_s32(bits, 31)), 1)));
}

/* The last round of a run may take elements once more. */
#define MB_DEFINE_RANGE_NEON(name, plain, half, lanes, nbytes) \
    MB_KERNEL void name(const uint8_t *src, uint64_t count, uint64_t run, float *MB_RESTRICT least, float *MB_RESTRICT most) { \
        const size_t n = (size_t)count; \
        for (size_t begin = 0, end; begin < n; begin = end, least++, most++) { \
            end = run < lanes || n - begin < run ? n : begin + (size_t)run; \
            if (run < lanes || end - begin < lanes) { \
                plain(src + nbytes * begin, end - begin, run, least, most); \
                return; \
            } \
            int##half##x##lanes##_t low = mb_order_##half##_neon(src + nbytes * (end - lanes)), high = low; \
            for (size_t i = begin; i + lanes < end; i += lanes) { \
                const int##half##x##lanes##_t x = mb_order_##half##_neon(src + nbytes * i); \
                low = vminq_s##half(low, x), high = vmaxq_s##half(high, x); \
            } \
            mb_widen_range(mb_ordered_##half(vminvq_s##half(low)), mb_ordered_##half(vmaxvq_s##half(high)), least, most); \
        } \
    }

MB_DEFINE_RANGE_NEON(mb_range_f16_neon, mb_range_f16_plain, 16, 8, 2)
MB_DEFINE_RANGE_NEON(mb_range_f32_neon, mb_range_f32_plain, 32, 4, 4)

#endif
#endif
