/* kernels/x86/expand_avx512.h: expands sparse elements to dense ones with the instruction of AVX-512 VBMI2. */
#ifndef MILBLOB_EXPAND_AVX512_H
#define MILBLOB_EXPAND_AVX512_H

#include "milblob/kernels/x86/decode.h"
#include "milblob/kernels/x86/varint_avx512.h"

#ifdef MB_HAS_AVX2

/* `lanes` elements a round, those of 64 bytes; as many are read, so the loop stops where fewer are left. The empty asm keeps
 * compilers from making the load a part of the expansion: that form is microcode on AMD, and slower than a table of shuffles. */
#define MB_DEFINE_EXPAND_VBMI2(name, tail, size, lanes, mask_type, load_mask, expand) \
    MB_TARGET_VBMI2 MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t src_count, const uint8_t *bits, uint64_t count) { \
        uint64_t done = 0, next = 0; \
        for (; count - done >= (lanes) && src_count - next >= (lanes); done += (lanes)) { \
            const mask_type mask = (mask_type)load_mask(bits + done / 8); \
            __m512i elements = _mm512_loadu_si512(src + (size) * next); \
            __asm__("" : "+v"(elements)); \
            _mm512_storeu_si512(dst + (size) * done, expand(mask, elements)); \
            next += (uint64_t)__builtin_popcountll(mask); \
        } \
        tail(dst + (size) * done, src + (size) * next, src_count - next, bits + done / 8, count - done); \
    }

MB_STEP uint16_t mb_load_mask_16(const uint8_t *src) { return (uint16_t)(src[0] | src[1] << 8); }
MB_STEP uint8_t mb_load_mask_8(const uint8_t *src) { return *src; }

MB_DEFINE_EXPAND_VBMI2(mb_expand_8_vbmi2, mb_expand_8_avx2, 1, 64, __mmask64, mb_load_u64, _mm512_maskz_expand_epi8)
MB_DEFINE_EXPAND_VBMI2(mb_expand_16_vbmi2, mb_expand_16_avx2, 2, 32, __mmask32, mb_load_u32, _mm512_maskz_expand_epi16)
MB_DEFINE_EXPAND_VBMI2(mb_expand_32_vbmi2, mb_expand_32_avx2, 4, 16, __mmask16, mb_load_mask_16, _mm512_maskz_expand_epi32)
MB_DEFINE_EXPAND_VBMI2(mb_expand_64_vbmi2, mb_expand_64_plain, 8, 8, __mmask8, mb_load_mask_8, _mm512_maskz_expand_epi64)

#endif
#endif
