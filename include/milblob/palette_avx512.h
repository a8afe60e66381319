/* palette_avx512.h: look-ups in palettes of 16-bit entries for CPUs with AVX-512 (F and BW).
 *
 * The other kernels of decoding are those of AVX2 there too: wider versions of them were no faster. */
#ifndef MILBLOB_PALETTE_AVX512_H
#define MILBLOB_PALETTE_AVX512_H

#include "milblob/decode_x86.h"

#ifdef MB_HAS_AVX2
/* Entries of 16 bits: one instruction looks up 32 indices in 64 entries; four of them, and bits 6 and 7 of the indices
 * that choose among their answers, do 256. */
MB_TARGET_AVX512 MB_KERNEL void mb_lookup_16_avx512(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint16_t all[256];
    __m512i tables[8];
    uint64_t i = 0;
    if (count < 64) {
        mb_lookup_16_plain(dst, indices, count, entries, entry_count);
        return;
    }
    memcpy(all, entries, 2 * (size_t)entry_count);
    for (unsigned k = entry_count; k < (entry_count <= 64 ? 64u : 256u); k++) all[k] = 0;
    for (unsigned k = 0; k < (entry_count <= 64 ? 2 : 8); k++) tables[k] = _mm512_loadu_si512(all + 32 * k);
    for (; count - i >= 32; i += 32) {
        const __m512i index = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(indices + i)));
        __m512i found = _mm512_permutex2var_epi16(tables[0], index, tables[1]);
        if (entry_count > 64) {
            const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64)), bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
            const __m512i upper = _mm512_permutex2var_epi16(tables[4], index, tables[5]);
            found = _mm512_mask_blend_epi16(bit6, found, _mm512_permutex2var_epi16(tables[2], index, tables[3]));
            found = _mm512_mask_blend_epi16(bit7, found, _mm512_mask_blend_epi16(bit6, upper, _mm512_permutex2var_epi16(tables[6], index, tables[7])));
        }
        _mm512_storeu_si512(dst + 2 * i, found);
    }
    mb_lookup_16_plain(dst + 2 * i, indices + i, count - i, entries, entry_count);
}

#endif
#endif
