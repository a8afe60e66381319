/* kernels/x86/prune_avx512.h: elements that are kept move together in a register, float16 ones with AVX-512 VBMI2; what is
 * lost is measured with AVX2 and AVX-512. */
#ifndef MILBLOB_PRUNE_AVX512_H
#define MILBLOB_PRUNE_AVX512_H

#include "milblob/kernels/prune.h"
#include "milblob/kernels/x86/quantize.h"
#include "milblob/kernels/x86/varint_avx512.h"

#ifdef MB_HAS_AVX2

MB_DEFINE_MEASURE(mb_measure_avx2, MB_TARGET_AVX2)

MB_TARGET_AVX512 MB_KERNEL void mb_measure_avx512(const uint8_t *src, uint64_t count, const uint8_t *chosen, bool has_power, mb_sums *sums) {
    __m512d squared[2], power[2];
    __m512i largest = _mm512_set1_epi32((int)sums->largest);
    for (unsigned k = 0; k < 2; k++) squared[k] = _mm512_loadu_pd(sums->squared + 8 * k), power[k] = _mm512_loadu_pd(sums->power + 8 * k);
    for (size_t i = 0; i < (size_t)count; i += 16) {
        const __m512i magnitudes = _mm512_and_si512(_mm512_loadu_si512(src + 4 * i), _mm512_set1_epi32(0x7fffffff));
        const __mmask16 is_kept = (__mmask16)mb_load_u16(chosen + i / 8);
        const __m512i lost = _mm512_maskz_mov_epi32((__mmask16)~is_kept, magnitudes);
        mb_add_squares_avx512(squared, _mm512_castsi512_ps(lost));
        if (has_power) mb_add_squares_avx512(power, _mm512_castsi512_ps(_mm512_maskz_mov_epi32(is_kept, magnitudes)));
        largest = _mm512_max_epu32(largest, lost);
    }
    for (unsigned k = 0; k < 2; k++) _mm512_storeu_pd(sums->squared + 8 * k, squared[k]), _mm512_storeu_pd(sums->power + 8 * k, power[k]);
    sums->largest = _mm512_reduce_max_epu32(largest);
}

/* Whole registers are stored: no more elements were kept than were read, so there is room for all that are still to come. */
MB_TARGET_AVX512 MB_KERNEL uint64_t mb_split_f32_avx512(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    const __m512i top = _mm512_set1_epi32((int)cut);
    __m512d squared[2], power[2];
    __m512i largest = _mm512_set1_epi32((int)sums->largest);
    uint64_t found = 0;
    size_t i = 0;
    for (unsigned k = 0; k < 2; k++) squared[k] = _mm512_loadu_pd(sums->squared + 8 * k), power[k] = _mm512_loadu_pd(sums->power + 8 * k);
    for (; i + 16 <= (size_t)count; i += 16) {
        const __m512i bits = _mm512_loadu_si512(src + 4 * i);
        MB_ONCE();
        const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
        const __mmask16 is_kept = _mm512_cmpgt_epu32_mask(magnitudes, top);
        const __m512i lost = _mm512_maskz_mov_epi32((__mmask16)~is_kept, magnitudes);
        _mm512_storeu_si512(kept + 4 * found, _mm512_maskz_compress_epi32(is_kept, bits));
        mask[i / 8] = (uint8_t)is_kept, mask[i / 8 + 1] = (uint8_t)(is_kept >> 8);
        found += (uint64_t)__builtin_popcount(is_kept);
        mb_add_squares_avx512(squared, _mm512_castsi512_ps(lost)), mb_add_squares_avx512(power, _mm512_castsi512_ps(magnitudes));
        largest = _mm512_max_epu32(largest, lost);
    }
    for (unsigned k = 0; k < 2; k++) _mm512_storeu_pd(sums->squared + 8 * k, squared[k]), _mm512_storeu_pd(sums->power + 8 * k, power[k]);
    sums->largest = _mm512_reduce_max_epu32(largest);
    return found + mb_split_f32_plain(src + 4 * i, count - i, cut, mask + i / 8, kept + 4 * found, sums);
}

MB_TARGET_VBMI2 MB_KERNEL uint64_t mb_split_f16_vbmi2(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    const __m512i top = _mm512_set1_epi16((short)(cut < 0x7fff ? cut : 0x7fff));
    uint64_t found = 0;
    size_t i = 0;
    for (; i + 32 <= (size_t)count; i += 32) {
        const __m512i bits = _mm512_loadu_si512(src + 2 * i);
        MB_ONCE();
        const __mmask32 is_kept = _mm512_cmpgt_epi16_mask(_mm512_and_si512(bits, _mm512_set1_epi16(0x7fff)), top);
        const uint32_t word = (uint32_t)is_kept;
        _mm512_storeu_si512(kept + 2 * found, _mm512_maskz_compress_epi16(is_kept, bits));
        memcpy(mask + i / 8, &word, 4);
        found += (uint64_t)__builtin_popcount(word);
    }
    return found + mb_split_f16_plain(src + 2 * i, count - i, cut, mask + i / 8, kept + 2 * found, sums);
}

#endif
#endif
