/* kernels/x86/prune.h: pruning with AVX2 and AVX-512. Elements that are kept move together in a register, float16 ones with
 * AVX-512 VBMI2. */
#ifndef MILBLOB_PRUNE_X86_H
#define MILBLOB_PRUNE_X86_H

#include "milblob/kernels/prune_neighbours.h"
#include "milblob/kernels/x86/quantize.h"
#include "milblob/kernels/x86/varint_avx512.h"

#ifdef MB_HAS_AVX2

MB_DEFINE_NEIGHBOURS_TIER(avx2, MB_TARGET_AVX2)
MB_DEFINE_SPLIT_CHOSEN(mb_split_chosen_f16_avx2, MB_TARGET_AVX2, true, 2, mb_cast_f16_f32_avx2)
MB_DEFINE_SPLIT_CHOSEN(mb_split_chosen_f32_avx2, MB_TARGET_AVX2, false, 4, mb_cast_f16_f32_avx2)

MB_TARGET_AVX2 MB_STEP __m256i mb_load_avx2(const uint8_t *src) { return _mm256_loadu_si256((const __m256i *)(const void *)src); }

MB_TARGET_AVX2 MB_STEP __m256i mb_above_16_avx2(const uint8_t *src, __m256i top) { return _mm256_cmpgt_epi16(_mm256_and_si256(mb_load_avx2(src), _mm256_set1_epi16(0x7fff)), top); }

MB_TARGET_AVX2 MB_STEP __m256i mb_above_32_avx2(const uint8_t *src, __m256i top) {
    const __m256i low = _mm256_cmpgt_epi32(_mm256_and_si256(mb_load_avx2(src), _mm256_set1_epi32(0x7fffffff)), top);
    const __m256i high = _mm256_cmpgt_epi32(_mm256_and_si256(mb_load_avx2(src + 32), _mm256_set1_epi32(0x7fffffff)), top);
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

MB_TARGET_AVX2 MB_STEP uint32_t mb_flags_avx2(__m256i low, __m256i high) { return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8)); }

MB_TARGET_AVX2 MB_KERNEL void mb_above_f16_avx2(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask) {
    const __m256i top = _mm256_set1_epi16((short)(cut < 0x7fff ? cut : 0x7fff));
    size_t i = 0;
    for (; i + 32 <= (size_t)count; i += 32) mb_store_u32(mask + i / 8, mb_flags_avx2(mb_above_16_avx2(src + 2 * i, top), mb_above_16_avx2(src + 2 * i + 32, top)));
    mb_above_f16_plain(src + 2 * i, count - i, cut, mask + i / 8);
}

MB_TARGET_AVX2 MB_KERNEL void mb_above_f32_avx2(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask) {
    const __m256i top = _mm256_set1_epi32((int)(cut < 0x7fffffff ? cut : 0x7fffffff));
    size_t i = 0;
    for (; i + 32 <= (size_t)count; i += 32) mb_store_u32(mask + i / 8, mb_flags_avx2(mb_above_32_avx2(src + 4 * i, top), mb_above_32_avx2(src + 4 * i + 64, top)));
    mb_above_f32_plain(src + 4 * i, count - i, cut, mask + i / 8);
}

/* Sums of pruning in registers. */
typedef struct mb_pruned_avx512 {
    __m512d squared[2], power[2];
    __m512i largest;
} mb_pruned_avx512;

MB_TARGET_AVX512 MB_STEP mb_pruned_avx512 mb_pruned_begin_avx512(const mb_sums *sums) {
    mb_pruned_avx512 own;
    for (unsigned k = 0; k < 2; k++) own.squared[k] = _mm512_loadu_pd(sums->squared + 8 * k), own.power[k] = _mm512_loadu_pd(sums->power + 8 * k);
    own.largest = _mm512_set1_epi32((int)sums->largest);
    return own;
}

MB_TARGET_AVX512 MB_STEP void mb_pruned_end_avx512(const mb_pruned_avx512 *own, mb_sums *sums) {
    for (unsigned k = 0; k < 2; k++) _mm512_storeu_pd(sums->squared + 8 * k, own->squared[k]), _mm512_storeu_pd(sums->power + 8 * k, own->power[k]);
    sums->largest = _mm512_reduce_max_epu32(own->largest);
}

/* Count 16 magnitudes; is_chosen marks those that are kept, zeros or not. */
MB_TARGET_AVX512 MB_STEP void mb_measure_16_avx512(mb_pruned_avx512 *own, __m512i magnitudes, __mmask16 is_chosen) {
    const __m512i lost = _mm512_maskz_mov_epi32((__mmask16)~is_chosen, magnitudes);
    mb_add_squares_avx512(own->squared, _mm512_castsi512_ps(lost));
    mb_add_squares_avx512(own->power, _mm512_castsi512_ps(_mm512_maskz_mov_epi32(is_chosen, magnitudes)));
    own->largest = _mm512_max_epu32(own->largest, lost);
}

MB_TARGET_AVX512 MB_KERNEL void mb_above_f16_avx512(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask) {
    const __m512i top = _mm512_set1_epi16((short)(cut < 0x7fff ? cut : 0x7fff)), sign = _mm512_set1_epi16(0x7fff);
    size_t i = 0;
    for (; i + 32 <= (size_t)count; i += 32) mb_store_u32(mask + i / 8, (uint32_t)_mm512_cmpgt_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(src + 2 * i), sign), top));
    mb_above_f16_plain(src + 2 * i, count - i, cut, mask + i / 8);
}

MB_TARGET_AVX512 MB_KERNEL void mb_above_f32_avx512(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask) {
    const __m512i top = _mm512_set1_epi32((int)(cut < 0x7fffffff ? cut : 0x7fffffff)), sign = _mm512_set1_epi32(0x7fffffff);
    size_t i = 0;
    for (; i + 16 <= (size_t)count; i += 16) mb_store_u16(mask + i / 8, (uint32_t)_mm512_cmpgt_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(src + 4 * i), sign), top));
    mb_above_f32_plain(src + 4 * i, count - i, cut, mask + i / 8);
}

MB_TARGET_AVX512 MB_KERNEL uint64_t mb_split_chosen_f32_avx512(const uint8_t *src, uint64_t count, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    mb_pruned_avx512 own = mb_pruned_begin_avx512(sums);
    uint64_t found = 0;
    size_t i = 0;
    for (; i + 16 <= (size_t)count; i += 16) {
        const __m512i bits = _mm512_loadu_si512(src + 4 * i);
        MB_ONCE();
        const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
        const __mmask16 is_chosen = (__mmask16)mb_load_u16(chosen + i / 8), is_kept = _mm512_mask_test_epi32_mask(is_chosen, magnitudes, magnitudes);
        _mm512_storeu_si512(kept + 4 * found, _mm512_maskz_compress_epi32(is_kept, bits));
        mb_store_u16(mask + i / 8, is_kept);
        found += (uint64_t)__builtin_popcount(is_kept);
        mb_measure_16_avx512(&own, magnitudes, is_chosen);
    }
    mb_pruned_end_avx512(&own, sums);
    return found + mb_split_chosen_f32_plain(src + 4 * i, count - i, chosen + i / 8, mask + i / 8, kept + 4 * found, sums);
}

MB_TARGET_VBMI2 MB_KERNEL uint64_t mb_split_chosen_f16_vbmi2(const uint8_t *src, uint64_t count, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    mb_pruned_avx512 own = mb_pruned_begin_avx512(sums);
    uint64_t found = 0;
    size_t i = 0;
    for (; i + 32 <= (size_t)count; i += 32) {
        const __m512i bits = _mm512_loadu_si512(src + 2 * i);
        MB_ONCE();
        const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
        const uint32_t is_chosen = mb_load_u32(chosen + i / 8), is_kept = (uint32_t)_mm512_mask_test_epi16_mask(is_chosen, magnitudes, magnitudes);
        _mm512_storeu_si512(kept + 2 * found, _mm512_maskz_compress_epi16(is_kept, bits));
        mb_store_u32(mask + i / 8, is_kept);
        found += (uint64_t)__builtin_popcount(is_kept);
        mb_measure_16_avx512(&own, _mm512_castps_si512(_mm512_cvtph_ps(_mm512_castsi512_si256(magnitudes))), (__mmask16)is_chosen);
        mb_measure_16_avx512(&own, _mm512_castps_si512(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(magnitudes, 1))), (__mmask16)(is_chosen >> 16));
    }
    mb_pruned_end_avx512(&own, sums);
    return found + mb_split_chosen_f16_plain(src + 2 * i, count - i, chosen + i / 8, mask + i / 8, kept + 2 * found, sums);
}

/* Whole registers are stored: no more elements were kept than were read, so there is room for all that are still to come. */
MB_TARGET_AVX512 MB_KERNEL uint64_t mb_split_f32_avx512(const uint8_t *src, uint64_t count, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    const __m512i top = _mm512_set1_epi32((int)cut);
    mb_pruned_avx512 own = mb_pruned_begin_avx512(sums);
    uint64_t found = 0;
    size_t i = 0;
    for (; i + 16 <= (size_t)count; i += 16) {
        const __m512i bits = _mm512_loadu_si512(src + 4 * i);
        MB_ONCE();
        const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
        const __mmask16 is_kept = _mm512_cmpgt_epu32_mask(magnitudes, top);
        const __m512i lost = _mm512_maskz_mov_epi32((__mmask16)~is_kept, magnitudes);
        _mm512_storeu_si512(kept + 4 * found, _mm512_maskz_compress_epi32(is_kept, bits));
        mask[i / 8] = (uint8_t)is_kept, mask[i / 8 + 1] = (uint8_t)(is_kept >> 8);
        found += (uint64_t)__builtin_popcount(is_kept);
        mb_add_squares_avx512(own.squared, _mm512_castsi512_ps(lost)), mb_add_squares_avx512(own.power, _mm512_castsi512_ps(magnitudes));
        own.largest = _mm512_max_epu32(own.largest, lost);
    }
    mb_pruned_end_avx512(&own, sums);
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
