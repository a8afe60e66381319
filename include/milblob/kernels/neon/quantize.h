/* kernels/neon/quantize.h: the steps of quantize_steps.h for AArch64.
 *
 * As with AVX2, integers remain floats until they are stored. The plain code handles a scale of 0, the rest of a run, and sums,
 * which compilers vectorize. */
#ifndef MILBLOB_QUANTIZE_NEON_H
#define MILBLOB_QUANTIZE_NEON_H

#include "milblob/kernels/neon/float.h"
#include "milblob/kernels/quantize_steps.h"

#ifdef MB_HAS_NEON

typedef struct mb_quantize_neon {
    uint32x4_t mask;
    float32x4_t least, most, scale, inverse, zero; /* the first two less the zero */
} mb_quantize_neon;

MB_STEP uint32x4_t mb_size_neon(float32x4_t x) { return vreinterpretq_u32_f32(vabsq_f32(x)); }
MB_STEP float32x4_t mb_round_half_neon(float32x4_t x) { return vcvt_f32_f16(vcvt_f16_f32(x)); }
MB_STEP float32x4_t mb_limit_neon(const mb_quantize_neon *own, float32x4_t x) { return vmaxq_f32(vminq_f32(x, own->most), own->least); }

/* Four elements: their integers, and how far they are from the dense values. */
MB_STEP uint32x4_t mb_quantize_4_neon(const mb_quantize_neon *own, float *off, float32x4_t x, const bool is_f16) {
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
    vst1q_f32(off, vabsq_f32(above));
    return vandq_u32(vreinterpretq_u32_s32(vcvtq_s32_f32(vaddq_f32(q, own->zero))), own->mask);
}

MB_STEP void mb_quantize_scale_neon(mb_quantize_neon *own, const mb_integers *to, float32x4_t scale, float32x4_t zero) {
    own->scale = scale, own->inverse = vdivq_f32(vdupq_n_f32(1.0f), scale), own->zero = zero;
    own->least = vsubq_f32(vdupq_n_f32((float)to->least), zero), own->most = vsubq_f32(vdupq_n_f32((float)to->most), zero);
}

MB_STEP float32x4_t mb_elements_neon(const uint8_t *src, const bool is_f16) {
    return is_f16 ? vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(src))) : vreinterpretq_f32_u8(vld1q_u8(src));
}

#define MB_DEFINE_QUANTIZE_NEON(name, plain, is_f16, nbytes) \
    MB_KERNEL void name(uint8_t *dst, float *off, const uint8_t *src, uint64_t count, const float *scale, const float *zero, uint64_t run, const mb_integers *to, mb_sums *sums) { \
        const size_t n = (size_t)count, step = run == 1; \
        mb_quantize_neon own; \
        mb_rows rows; \
        memset(&rows, 0, sizeof rows); \
        own.mask = vdupq_n_u32((1u << to->nbits) - 1); \
        for (size_t begin = 0, end; begin < n; begin = end, scale++, zero++) { \
            end = step || n - begin < run ? n : begin + (size_t)run; \
            bool is_zero = *scale == 0; \
            for (size_t i = 0; step && i < n; i++) is_zero |= scale[i] == 0; \
            mb_quantize_scale_neon(&own, to, vdupq_n_f32(*scale), vdupq_n_f32(*zero)); \
            for (size_t i = begin; i < end; i += MB_LANES) { \
                if (end - i < MB_LANES || is_zero) { \
                    const size_t some = end - i < MB_LANES ? end - i : (size_t)MB_LANES; \
                    plain##_row(dst + i, off == NULL ? NULL : off + i, src + nbytes * i, some, scale + i * step, zero + i * step, step, to, sums, &rows); \
                    continue; \
                } \
                float elements[MB_LANES], far[MB_LANES]; \
                uint32x4_t q[4]; \
                for (unsigned k = 0; k < 4; k++) { \
                    const float32x4_t x = mb_elements_neon(src + nbytes * (i + 4 * k), is_f16); \
                    if (step) mb_quantize_scale_neon(&own, to, vld1q_f32(scale + i + 4 * k), vld1q_f32(zero + i + 4 * k)); \
                    q[k] = mb_quantize_4_neon(&own, far + 4 * k, x, is_f16); \
                    vst1q_f32(elements + 4 * k, x); \
                } \
                const uint16x8_t low = vcombine_u16(vmovn_u32(q[0]), vmovn_u32(q[1])), high = vcombine_u16(vmovn_u32(q[2]), vmovn_u32(q[3])); \
                vst1q_u8(dst + i, vcombine_u8(vmovn_u16(low), vmovn_u16(high))); \
                mb_add_row(sums, &rows, elements, far, is_f16); \
                if (off != NULL) memcpy(off + i, far, sizeof far); \
            } \
        } \
        mb_rows_end(&rows, sums); \
    }

MB_DEFINE_QUANTIZE_NEON(mb_quantize_f32_neon, mb_quantize_f32_plain, false, 4)
MB_DEFINE_QUANTIZE_NEON(mb_quantize_f16_neon, mb_quantize_f16_plain, true, 2)

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
            uint##half##x##lanes##_t low = vreinterpretq_u##half##_u8(vld1q_u8(src + nbytes * (end - lanes))); \
            int##half##x##lanes##_t high = vreinterpretq_s##half##_u##half(low); \
            for (size_t i = begin; i + lanes < end; i += lanes) { \
                const uint8x16_t x = vld1q_u8(src + nbytes * i); \
                low = vmaxq_u##half(low, vreinterpretq_u##half##_u8(x)), high = vmaxq_s##half(high, vreinterpretq_s##half##_u8(x)); \
            } \
            mb_widen_range(mb_wide_##half(vmaxvq_u##half(low)), (int32_t)mb_wide_##half((uint##half##_t)vmaxvq_s##half(high)), least, most); \
        } \
    }

MB_DEFINE_RANGE_NEON(mb_range_f16_neon, mb_range_f16_plain, 16, 8, 2)
MB_DEFINE_RANGE_NEON(mb_range_f32_neon, mb_range_f32_plain, 32, 4, 4)

#endif
#endif
