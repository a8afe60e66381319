/* kernels/x86/palette_avx512.h: palette look-ups for CPUs with AVX-512 (F and BW), those of 8-bit entries with VBMI too.
 *
 * This tier's other decoding kernels are those of AVX2: wider versions were no faster. */
#ifndef MILBLOB_PALETTE_AVX512_H
#define MILBLOB_PALETTE_AVX512_H

#include "milblob/kernels/x86/decode.h"

#ifdef MB_HAS_AVX2
#define MB_TARGET_VBMI __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))

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

/* Entries of 32 bits: one instruction looks up 16 indices in 32 entries; eight of them do 256. */
MB_TARGET_AVX512 MB_KERNEL void mb_lookup_32_avx512(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint32_t all[256];
    __m512i tables[16];
    uint64_t i = 0;
    if (count < 64) {
        mb_lookup_32_plain(dst, indices, count, entries, entry_count);
        return;
    }
    const unsigned pairs = entry_count <= 32 ? 1 : entry_count <= 64 ? 2 : 8;
    memcpy(all, entries, 4 * (size_t)entry_count);
    for (unsigned k = entry_count; k < 32 * pairs; k++) all[k] = 0;
    for (unsigned k = 0; k < 2 * pairs; k++) tables[k] = _mm512_loadu_si512(all + 16 * k);
    for (; count - i >= 16; i += 16) {
        const __m512i index = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(indices + i)));
        __m512i found = _mm512_permutex2var_epi32(tables[0], index, tables[1]);
        if (pairs > 1) {
            const __mmask16 bit5 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
            found = _mm512_mask_blend_epi32(bit5, found, _mm512_permutex2var_epi32(tables[2], index, tables[3]));
            if (pairs > 2) {
                const __mmask16 bit6 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64)), bit7 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(128));
                __m512i part[3];
                for (unsigned k = 0; k < 3; k++)
                    part[k] = _mm512_mask_blend_epi32(bit5, _mm512_permutex2var_epi32(tables[4 * k + 4], index, tables[4 * k + 5]), _mm512_permutex2var_epi32(tables[4 * k + 6], index, tables[4 * k + 7]));
                found = _mm512_mask_blend_epi32(bit7, _mm512_mask_blend_epi32(bit6, found, part[0]), _mm512_mask_blend_epi32(bit6, part[1], part[2]));
            }
        }
        _mm512_storeu_si512(dst + 4 * i, found);
    }
    mb_lookup_32_plain(dst + 4 * i, indices + i, count - i, entries, entry_count);
}

/* Entries of 8 bits: one instruction looks up 64 indices in 128 entries. */
MB_TARGET_VBMI MB_KERNEL void mb_lookup_8_vbmi(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint8_t all[256] = {0};
    __m512i tables[4];
    uint64_t i = 0;
    if (count < 64) {
        mb_lookup_8_plain(dst, indices, count, entries, entry_count);
        return;
    }
    memcpy(all, entries, entry_count);
    for (unsigned k = 0; k < 4; k++) tables[k] = _mm512_loadu_si512(all + 64 * k);
    for (; count - i >= 64; i += 64) {
        const __m512i index = _mm512_loadu_si512(indices + i);
        __m512i found = _mm512_permutex2var_epi8(tables[0], index, tables[1]);
        if (entry_count > 128) found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), found, _mm512_permutex2var_epi8(tables[2], index, tables[3]));
        _mm512_storeu_si512(dst + i, found);
    }
    mb_lookup_8_plain(dst + i, indices + i, count - i, entries, entry_count);
}

#endif
#endif
