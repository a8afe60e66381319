/* kernels/x86/decode.h: the kernels of expand.h, scale.h and palette.h for x86 with AVX2 and F16C.
 *
 * Each does whole blocks and leaves its tail to the plain kernel, which also explains the algorithm. */
#ifndef MILBLOB_DECODE_X86_H
#define MILBLOB_DECODE_X86_H

#include "milblob/kernels/expand.h"
#include "milblob/kernels/expand_rows.h"
#include "milblob/kernels/x86/float.h"
#include "milblob/kernels/palette.h"
#include "milblob/kernels/scale.h"

#ifdef MB_HAS_AVX2

/* ------------------------------------------------------------------------------------------------------------- scale */

MB_DEFINE_SCALES(loop_avx2, MB_TARGET_AVX2)

#define MB_HALF_AVX2(value) _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)

/* Bytes to float16, by the instruction: a vector of elements a round. Results of arithmetic are no signalling NaNs, the only
 * numbers on which the instruction and float.h differ. `v` names the intrinsics of the vectors. */
#define MB_HALF_AVX512(value) _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)
#define MB_LOAD_BYTES_8(src) _mm_loadl_epi64((const __m128i *)(const void *)(src))
#define MB_LOAD_BYTES_16(src) _mm_loadu_si128((const __m128i *)(const void *)(src))
#define MB_STORE_HALVES_8(dst, halves) _mm_storeu_si128((__m128i *)(void *)(dst), halves)
#define MB_STORE_HALVES_16(dst, halves) _mm256_storeu_si256((__m256i *)(void *)(dst), halves)

#define MB_SCALE_ROUND(v, lanes, half, widen, steps) \
    value = v##_cvtepi32_ps(widen(MB_LOAD_BYTES_##lanes(src + i))); \
    value = v##_sub_ps(value, o); \
    if (steps) value = v##_cvtph_ps(half(value)); \
    MB_STORE_HALVES_##lanes(dst + 2 * i, half(v##_mul_ps(s, value)));

#define MB_DEFINE_SCALE_HALF(name, target, tail, vector, v, lanes, half, widen, steps) \
    target MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, const float *MB_RESTRICT scale, const float *MB_RESTRICT offset, uint64_t run) { \
        uint64_t i = 0; \
        vector value; \
        if (run == 1) { \
            for (; count - i >= lanes; i += lanes) { \
                const vector s = v##_loadu_ps(scale + i), o = v##_loadu_ps(offset + i); \
                MB_SCALE_ROUND(v, lanes, half, widen, steps) \
            } \
            tail(dst + 2 * i, src + i, count - i, scale + i, offset + i, 1); \
            return; \
        } \
        for (; i < count; scale++, offset++) { \
            const uint64_t end = count - i < run ? count : i + run; \
            const vector s = v##_set1_ps(*scale), o = v##_set1_ps(*offset); \
            for (; end - i >= lanes; i += lanes) { \
                MB_SCALE_ROUND(v, lanes, half, widen, steps) \
            } \
            if (i < end) tail(dst + 2 * i, src + i, end - i, scale, offset, run); \
            i = end; \
        } \
    }

MB_DEFINE_SCALE_HALF(mb_scale_u8_f16_avx2, MB_TARGET_AVX2, mb_scale_u8_f16_plain, __m256, _mm256, 8, MB_HALF_AVX2, _mm256_cvtepu8_epi32, false)
MB_DEFINE_SCALE_HALF(mb_scale_u8_f16_avx512, MB_TARGET_AVX512, mb_scale_u8_f16_avx2, __m512, _mm512, 16, MB_HALF_AVX512, _mm512_cvtepu8_epi32, false)
MB_DEFINE_SCALE_HALF(mb_scale_u8_steps_avx2, MB_TARGET_AVX2, mb_scale_u8_steps_plain, __m256, _mm256, 8, MB_HALF_AVX2, _mm256_cvtepu8_epi32, true)
MB_DEFINE_SCALE_HALF(mb_scale_u8_steps_avx512, MB_TARGET_AVX512, mb_scale_u8_steps_avx2, __m512, _mm512, 16, MB_HALF_AVX512, _mm512_cvtepu8_epi32, true)
MB_DEFINE_SCALE_HALF(mb_scale_i8_f16_avx2, MB_TARGET_AVX2, mb_scale_i8_f16_plain, __m256, _mm256, 8, MB_HALF_AVX2, _mm256_cvtepi8_epi32, false)
MB_DEFINE_SCALE_HALF(mb_scale_i8_f16_avx512, MB_TARGET_AVX512, mb_scale_i8_f16_avx2, __m512, _mm512, 16, MB_HALF_AVX512, _mm512_cvtepi8_epi32, false)
MB_DEFINE_SCALE_HALF(mb_scale_i8_steps_avx2, MB_TARGET_AVX2, mb_scale_i8_steps_plain, __m256, _mm256, 8, MB_HALF_AVX2, _mm256_cvtepi8_epi32, true)
MB_DEFINE_SCALE_HALF(mb_scale_i8_steps_avx512, MB_TARGET_AVX512, mb_scale_i8_steps_avx2, __m512, _mm512, 16, MB_HALF_AVX512, _mm512_cvtepi8_epi32, true)

/* Elements of four bits have sixteen results, which are computed once a run: a permutation then looks up 32 of them. It
 * takes the low five bits of each word, and the table has its sixteen entries twice. So what lies above the four bits does
 * not matter: the low word of a double word is a byte with both its elements, and the high word begins at the upper one. */
MB_TARGET_AVX512 MB_STEP __m512i mb_look_up_32_avx512(__m128i packed, __m512i table) {
    const __m512i bytes = _mm512_cvtepu8_epi32(packed);
    return _mm512_permutexvar_epi16(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)), table);
}

#define MB_DEFINE_SCALE_PACKED_AVX512(name, steps, ...) \
    MB_TARGET_AVX512 MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, const float *MB_RESTRICT scale, const float *MB_RESTRICT offset, uint64_t run) { \
        const __m512 elements = _mm512_setr_ps(__VA_ARGS__); \
        for (uint64_t i = 0; i < count; scale++, offset++) { \
            const uint64_t end = count - i < run ? count : i + run; \
            __m512 value = _mm512_sub_ps(elements, _mm512_set1_ps(*offset)); \
            if (steps) value = _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)); \
            const __m512i table = _mm512_broadcast_i64x4(_mm512_cvtps_ph(_mm512_mul_ps(_mm512_set1_ps(*scale), value), _MM_FROUND_TO_NEAREST_INT)); \
            for (; end - i >= 32; i += 32) \
                _mm512_storeu_si512(dst + 2 * i, mb_look_up_32_avx512(_mm_loadu_si128((const __m128i *)(const void *)(src + i / 2)), table)); \
            if (i == end) continue; \
            const unsigned left = (unsigned)(end - i); \
            const __m128i rest = _mm_maskz_loadu_epi8((__mmask16)((1u << (left + 1) / 2) - 1), src + i / 2); \
            _mm512_mask_storeu_epi16(dst + 2 * i, (1u << left) - 1, mb_look_up_32_avx512(rest, table)); \
            i = end; \
        } \
    }

#define MB_UNSIGNED_4 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define MB_SIGNED_4 0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1
MB_DEFINE_SCALE_PACKED_AVX512(mb_scale_u4_f16_avx512, false, MB_UNSIGNED_4)
MB_DEFINE_SCALE_PACKED_AVX512(mb_scale_u4_steps_avx512, true, MB_UNSIGNED_4)
MB_DEFINE_SCALE_PACKED_AVX512(mb_scale_i4_f16_avx512, false, MB_SIGNED_4)
MB_DEFINE_SCALE_PACKED_AVX512(mb_scale_i4_steps_avx512, true, MB_SIGNED_4)

/* Indices of four bits into sixteen entries of 16 bits, without unpacking them first. */
MB_TARGET_AVX512 MB_KERNEL void mb_lookup_packed_avx512(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    const __m512i table = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)entries));
    uint64_t i = 0;
    (void)entry_count;
    for (; count - i >= 32; i += 32)
        _mm512_storeu_si512(dst + 2 * i, mb_look_up_32_avx512(_mm_loadu_si128((const __m128i *)(const void *)(indices + i / 2)), table));
    if (i == count) return;
    const unsigned left = (unsigned)(count - i);
    const __m128i rest = _mm_maskz_loadu_epi8((__mmask16)((1u << (left + 1) / 2) - 1), indices + i / 2);
    _mm512_mask_storeu_epi16(dst + 2 * i, (1u << left) - 1, mb_look_up_32_avx512(rest, table));
}

/* ----------------------------------------------------------------------------------------------------------- palette */

/* Entries of 16 bits, up to 64 of them: a shuffle looks up 16 bytes, so the entries' low and high bytes are tables of 16,
 * and bits 4 and 5 of an index choose between the tables' answers. 32 indices a round. */
MB_TARGET_AVX2 MB_KERNEL void mb_lookup_16_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint8_t bytes[2][64];
    __m256i tables[2][4];
    uint64_t i = 0;
    if (entry_count > 64 || count < 64) {
        mb_lookup_16_plain(dst, indices, count, entries, entry_count);
        return;
    }
    for (unsigned k = 0; k < 64; k++) {
        bytes[0][k] = k < entry_count ? entries[2 * k] : 0;
        bytes[1][k] = k < entry_count ? entries[2 * k + 1] : 0;
    }
    for (unsigned k = 0; k < 8; k++) tables[k / 4][k % 4] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(bytes[k / 4] + 16 * (k % 4))));
    for (; count - i >= 32; i += 32) {
        const __m256i index = _mm256_loadu_si256((const __m256i *)(const void *)(indices + i));
        const __m256i bit5 = _mm256_slli_epi16(index, 2), bit4 = _mm256_slli_epi16(index, 3); /* to each byte's top */
        __m256i found[2];
        for (unsigned b = 0; b < 2; b++) {
            found[b] = _mm256_shuffle_epi8(tables[b][0], index);
            if (entry_count <= 16) continue;
            found[b] = _mm256_blendv_epi8(found[b], _mm256_shuffle_epi8(tables[b][1], index), bit4);
            const __m256i upper = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[b][2], index), _mm256_shuffle_epi8(tables[b][3], index), bit4);
            found[b] = _mm256_blendv_epi8(found[b], upper, bit5);
        }
        const __m256i low = _mm256_unpacklo_epi8(found[0], found[1]), high = _mm256_unpackhi_epi8(found[0], found[1]);
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i + 32), _mm256_permute2x128_si256(low, high, 0x31));
    }
    mb_lookup_16_plain(dst + 2 * i, indices + i, count - i, entries, entry_count);
}

/* Entries of 8 bits, up to 64 of them: the same with one table. */
MB_TARGET_AVX2 MB_KERNEL void mb_lookup_8_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint8_t bytes[64] = {0};
    __m256i tables[4];
    uint64_t i = 0;
    if (entry_count > 64 || count < 64) {
        mb_lookup_8_plain(dst, indices, count, entries, entry_count);
        return;
    }
    memcpy(bytes, entries, entry_count);
    for (unsigned k = 0; k < 4; k++) tables[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * k)));
    for (; count - i >= 32; i += 32) {
        const __m256i index = _mm256_loadu_si256((const __m256i *)(const void *)(indices + i));
        __m256i found = _mm256_shuffle_epi8(tables[0], index);
        if (entry_count > 16) {
            const __m256i bit5 = _mm256_slli_epi16(index, 2), bit4 = _mm256_slli_epi16(index, 3);
            const __m256i upper = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[2], index), _mm256_shuffle_epi8(tables[3], index), bit4);
            found = _mm256_blendv_epi8(_mm256_blendv_epi8(found, _mm256_shuffle_epi8(tables[1], index), bit4), upper, bit5);
        }
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), found);
    }
    mb_lookup_8_plain(dst + i, indices + i, count - i, entries, entry_count);
}

/* Entries of 32 bits, up to 16 of them: two tables of eight, and bit 3 of an index chooses. */
MB_TARGET_AVX2 MB_KERNEL void mb_lookup_32_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) {
    uint8_t words[64] = {0};
    uint64_t i = 0;
    if (entry_count > 16 || count < 64) {
        mb_lookup_32_plain(dst, indices, count, entries, entry_count);
        return;
    }
    memcpy(words, entries, 4 * (size_t)entry_count);
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)words), high = _mm256_loadu_si256((const __m256i *)(const void *)(words + 32));
    for (; count - i >= 8; i += 8) {
        const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(indices + i)));
        const __m256 a = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, index)), b = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, index));
        _mm256_storeu_ps((float *)(void *)(dst + 4 * i), _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
    }
    mb_lookup_32_plain(dst + 4 * i, indices + i, count - i, entries, entry_count);
}

/* ------------------------------------------------------------------------------------------------------------ expand */

#define MB_TARGET_POPCNT __attribute__((target("avx2,f16c,popcnt")))

MB_TARGET_POPCNT MB_KERNEL uint64_t mb_ones_avx2(const uint8_t *src, uint64_t count) {
    uint64_t ones = 0;
    for (; count >= 64; count -= 64, src += 8) ones += (uint64_t)__builtin_popcountll(mb_load_u64(src));
    return ones + mb_ones_plain(src, count);
}

/* One byte of the mask a round: `place` turns eight elements and a row of the table into eight places. */
#define MB_DEFINE_EXPAND_AVX2(name, tail, size, place) \
    MB_TARGET_POPCNT MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t src_count, const uint8_t *bits, uint64_t count) { \
        uint64_t done = 0, next = 0; \
        for (; count - done >= 8 && src_count - next >= 8; done += 8) { \
            const unsigned byte = bits[done / 8]; \
            const __m128i row = _mm_loadl_epi64((const __m128i *)(const void *)mb_expand_rows[byte]); \
            place(dst + (size) * done, src + (size) * next, row); \
            next += (uint64_t)__builtin_popcount(byte); \
        } \
        tail(dst + (size) * done, src + (size) * next, src_count - next, bits + done / 8, count - done); \
    }

MB_TARGET_AVX2 static inline void mb_place_8(uint8_t *dst, const uint8_t *src, __m128i row) {
    const __m128i half = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(row, 1), _mm_set1_epi8(7)), _mm_and_si128(row, _mm_set1_epi8((char)0x80)));
    _mm_storel_epi64((__m128i *)(void *)dst, _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)(const void *)src), half));
}

/* Element i is bytes 2 * i and 2 * i + 1; 0x81 has its top bit too. */
MB_TARGET_AVX2 static inline void mb_place_16(uint8_t *dst, const uint8_t *src, __m128i row) {
    const __m128i pairs = _mm_or_si128(_mm_unpacklo_epi8(row, row), _mm_set1_epi16(0x0100));
    _mm_storeu_si128((__m128i *)(void *)dst, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)src), pairs));
}

MB_TARGET_AVX2 static inline void mb_place_32(uint8_t *dst, const uint8_t *src, __m128i row) {
    const __m256i wide = _mm256_srai_epi32(_mm256_cvtepi8_epi32(row), 1), is_clear = _mm256_srai_epi32(wide, 31);
    const __m256i found = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)(const void *)src), wide);
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_andnot_si256(is_clear, found));
}

MB_DEFINE_EXPAND_AVX2(mb_expand_8_avx2, mb_expand_8_plain, 1, mb_place_8)
MB_DEFINE_EXPAND_AVX2(mb_expand_16_avx2, mb_expand_16_plain, 2, mb_place_16)
MB_DEFINE_EXPAND_AVX2(mb_expand_32_avx2, mb_expand_32_plain, 4, mb_place_32)

#endif
#endif
