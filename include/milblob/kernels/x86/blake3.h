/* kernels/x86/blake3.h: BLAKE3 with one input in each lane of a vector: eight with AVX2, sixteen with AVX-512. See blake3.h.
 *
 * The words of a block are adjacent in memory but belong in different vectors: a transposition, by interleaving words, pairs
 * of words, and then halves of vectors. The rest is the plain code with vectors in place of words.
 *
 * Inputs are many streams, each too short for a CPU to recognize: the next inputs are prefetched from memory, block by block. */
#ifndef MILBLOB_BLAKE3_X86_H
#define MILBLOB_BLAKE3_X86_H

#include "milblob/kernels/blake3.h"
#include "milblob/kernels/x86/float.h"

#ifdef MB_HAS_AVX2

#define MB_BLAKE3_VG(a, b, c, d, x, y) \
    v[a] = ADD(ADD(v[a], v[b]), m[x]), v[d] = TURN16(XOR(v[d], v[a])), v[c] = ADD(v[c], v[d]), v[b] = TURN12(XOR(v[b], v[c])); \
    v[a] = ADD(ADD(v[a], v[b]), m[y]), v[d] = TURN8(XOR(v[d], v[a])), v[c] = ADD(v[c], v[d]), v[b] = TURN7(XOR(v[b], v[c]));

#define ADD _mm256_add_epi32
#define XOR _mm256_xor_si256
#define TURN16(x) _mm256_shuffle_epi8(x, by16)
#define TURN8(x) _mm256_shuffle_epi8(x, by8)
#define TURN12(x) _mm256_or_si256(_mm256_srli_epi32(x, 12), _mm256_slli_epi32(x, 20))
#define TURN7(x) _mm256_or_si256(_mm256_srli_epi32(x, 7), _mm256_slli_epi32(x, 25))

/* rows[i] of eight words -> words[i] of eight rows */
MB_TARGET_AVX2 MB_STEP void mb_blake3_transpose_avx2(__m256i rows[8]) {
    __m256i pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]), fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]), fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
    }
}

MB_TARGET_AVX2 MB_KERNEL void mb_blake3_avx2(uint8_t *dst, const uint8_t *src, uint64_t count, uint32_t block_count, uint64_t chunk) {
    const __m256i by16 = _mm256_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2, 13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2);
    const __m256i by8 = _mm256_set_epi8(12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1, 12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1);
    const size_t stride = MB_BLAKE3_BLOCK * (size_t)block_count;
    for (; count >= 8; count -= 8, src += 8 * stride, dst += 8 * MB_BLAKE3_NBYTES, chunk += block_count > 1 ? 8 : 0) {
        __m256i cv[8], low, high;
        uint32_t counters[2][8];
        for (uint32_t k = 0; k < 8; k++) {
            cv[k] = _mm256_set1_epi32((int)mb_blake3_start[k]);
            const uint64_t counter = block_count > 1 ? chunk + k : 0;
            counters[0][k] = (uint32_t)counter, counters[1][k] = (uint32_t)(counter >> 32);
        }
        low = _mm256_loadu_si256((const __m256i *)(const void *)counters[0]), high = _mm256_loadu_si256((const __m256i *)(const void *)counters[1]);
        for (uint32_t block = 0; block < block_count; block++) {
            __m256i m[16], v[16];
            for (size_t k = 0; k < 8; k++) {
                const __m256i *row = (const __m256i *)(const void *)(src + k * stride + MB_BLAKE3_BLOCK * (size_t)block);
                m[k] = _mm256_loadu_si256(row), m[k + 8] = _mm256_loadu_si256(row + 1);
                MB_PREFETCH(row, 8 * stride);
            }
            mb_blake3_transpose_avx2(m), mb_blake3_transpose_avx2(m + 8);
            for (int k = 0; k < 8; k++) v[k] = cv[k];
            for (int k = 0; k < 4; k++) v[8 + k] = _mm256_set1_epi32((int)mb_blake3_start[k]);
            v[12] = low, v[13] = high, v[14] = _mm256_set1_epi32(MB_BLAKE3_BLOCK), v[15] = _mm256_set1_epi32((int)mb_blake3_flags(block, block_count));
            MB_BLAKE3_ROUNDS(MB_BLAKE3_VG)
            for (int k = 0; k < 8; k++) cv[k] = XOR(v[k], v[k + 8]);
        }
        mb_blake3_transpose_avx2(cv);
        for (unsigned k = 0; k < 8; k++) _mm256_storeu_si256((__m256i *)(void *)(dst + MB_BLAKE3_NBYTES * k), cv[k]);
    }
    mb_blake3_plain(dst, src, count, block_count, chunk);
}

#undef ADD
#undef XOR
#undef TURN16
#undef TURN12
#undef TURN8
#undef TURN7
#define ADD _mm512_add_epi32
#define XOR _mm512_xor_si512
#define TURN16(x) _mm512_ror_epi32(x, 16)
#define TURN12(x) _mm512_ror_epi32(x, 12)
#define TURN8(x) _mm512_ror_epi32(x, 8)
#define TURN7(x) _mm512_ror_epi32(x, 7)

/* rows[i] of sixteen words -> words[i] of sixteen rows */
MB_TARGET_AVX512 MB_STEP void mb_blake3_transpose_avx512(__m512i rows[16]) {
    __m512i pairs[16], fours[16], eights[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]), fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]), fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; i++) /* fours[4 * j + i] has words i, i + 4, i + 8, i + 12 of rows 4 * j to 4 * j + 3 */
        for (int j = 0; j < 16; j += 8) {
            eights[j + i] = _mm512_shuffle_i32x4(fours[j + i], fours[j + 4 + i], 0x88);     /* words i, i + 8 */
            eights[j + 4 + i] = _mm512_shuffle_i32x4(fours[j + i], fours[j + 4 + i], 0xdd); /* words i + 4, i + 12 */
        }
    for (int i = 0; i < 8; i++) {
        rows[i] = _mm512_shuffle_i32x4(eights[i], eights[8 + i], 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(eights[i], eights[8 + i], 0xdd);
    }
}

MB_TARGET_AVX512 MB_KERNEL void mb_blake3_avx512(uint8_t *dst, const uint8_t *src, uint64_t count, uint32_t block_count, uint64_t chunk) {
    const size_t stride = MB_BLAKE3_BLOCK * (size_t)block_count;
    for (; count >= 16; count -= 16, src += 16 * stride, dst += 16 * MB_BLAKE3_NBYTES, chunk += block_count > 1 ? 16 : 0) {
        __m512i cv[16], low, high;
        uint32_t counters[2][16];
        for (uint32_t k = 0; k < 16; k++) {
            const uint64_t counter = block_count > 1 ? chunk + k : 0;
            counters[0][k] = (uint32_t)counter, counters[1][k] = (uint32_t)(counter >> 32);
        }
        for (int k = 0; k < 8; k++) cv[k] = _mm512_set1_epi32((int)mb_blake3_start[k]), cv[k + 8] = _mm512_setzero_si512();
        low = _mm512_loadu_si512(counters[0]), high = _mm512_loadu_si512(counters[1]);
        for (uint32_t block = 0; block < block_count; block++) {
            __m512i m[16], v[16];
            for (size_t k = 0; k < 16; k++) {
                const uint8_t *row = src + k * stride + MB_BLAKE3_BLOCK * (size_t)block;
                m[k] = _mm512_loadu_si512(row);
                MB_PREFETCH(row, 16 * stride);
            }
            mb_blake3_transpose_avx512(m);
            for (int k = 0; k < 8; k++) v[k] = cv[k];
            for (int k = 0; k < 4; k++) v[8 + k] = _mm512_set1_epi32((int)mb_blake3_start[k]);
            v[12] = low, v[13] = high, v[14] = _mm512_set1_epi32(MB_BLAKE3_BLOCK), v[15] = _mm512_set1_epi32((int)mb_blake3_flags(block, block_count));
            MB_BLAKE3_ROUNDS(MB_BLAKE3_VG)
            for (int k = 0; k < 8; k++) cv[k] = XOR(v[k], v[k + 8]);
        }
        mb_blake3_transpose_avx512(cv); /* the upper halves remain zero */
        for (unsigned k = 0; k < 16; k++) _mm256_storeu_si256((__m256i *)(void *)(dst + MB_BLAKE3_NBYTES * k), _mm512_castsi512_si256(cv[k]));
    }
    mb_blake3_avx2(dst, src, count, block_count, chunk);
}

#undef ADD
#undef XOR
#undef TURN16
#undef TURN12
#undef TURN8
#undef TURN7
#endif
#endif
