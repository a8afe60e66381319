/* kernels/x86/float.h: the casts of float.h for x86 with AVX2 and F16C.
 *
 * bfloat16 to float32 is the plain code compiled for wider vectors. The others have a fast path for blocks of 64, which is
 * correct for most numbers and counts nothing: one maximum and one minimum over the block show whether it holds a NaN
 * or anything to count. The plain code handles such blocks, and the tail. */
#ifndef MILBLOB_FLOAT_X86_H
#define MILBLOB_FLOAT_X86_H

#include "milblob/kernels/float.h"

/* Other compilers, MSVC included, have only the plain tier: these attributes are GNU's. */
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define MB_HAS_AVX2 1
#define MB_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define MB_TARGET_FMA __attribute__((target("avx2,f16c,fma")))
#define MB_TARGET_AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

#include <immintrin.h>

/* Prefetch ahead_nbytes bytes ahead. Only a hint: the address need not be valid. */
#define MB_PREFETCH(at, ahead_nbytes) _mm_prefetch((const char *)((uintptr_t)(at) + (ahead_nbytes)), _MM_HINT_T0)

MB_DEFINE_CASTS(loop_avx2, MB_TARGET_AVX2)

/* The test of a block of float32: the largest bits without sign, and the smallest of those less one (0 becomes the
 * largest, so zeros do not count as tiny). */
typedef struct mb_extremes_avx2 {
    __m256i most, least;
} mb_extremes_avx2;

MB_TARGET_AVX2 MB_STEP void mb_see_avx2(mb_extremes_avx2 *seen, __m256i bits) {
    __m256i a = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    seen->most = _mm256_max_epu32(seen->most, a);
    seen->least = _mm256_min_epu32(seen->least, _mm256_sub_epi32(a, _mm256_set1_epi32(1)));
}

/* Whether any was `big` or more, or among the first `tiny` above zero. There are signed comparisons only: `most` has no
 * top bit, and `least`, which may have it, is compared by a minimum. */
MB_TARGET_AVX2 MB_STEP bool mb_rare_avx2(const mb_extremes_avx2 *seen, uint32_t big, uint32_t tiny) {
    __m256i large = _mm256_cmpgt_epi32(seen->most, _mm256_set1_epi32((int)(big - 1)));
    __m256i small = _mm256_cmpeq_epi32(_mm256_min_epu32(seen->least, _mm256_set1_epi32((int)(tiny - 1))), seen->least);
    return _mm256_movemask_epi8(_mm256_or_si256(large, small)) != 0;
}

MB_TARGET_AVX2 MB_KERNEL void mb_cast_f32_f16_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    for (; count >= 64; count -= 64, src += 256, dst += 128) {
        mb_extremes_avx2 seen = {_mm256_setzero_si256(), _mm256_set1_epi32(-1)};
        for (int k = 0; k < 8; k++) {
            __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32 * k));
            mb_see_avx2(&seen, bits);
            _mm_storeu_si128((__m128i *)(void *)(dst + 16 * k), _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT));
        }
        if (mb_rare_avx2(&seen, MB_F32_F16_BIG, MB_F32_F16_TINY)) mb_cast_f32_f16_loop_avx2(dst, src, 64, clamp, counts);
    }
    mb_cast_f32_f16_loop_avx2(dst, src, count, clamp, counts);
}

MB_TARGET_AVX2 MB_STEP __m256i mb_round_bf16_avx2(__m256i bits) {
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last), 16);
}

MB_TARGET_AVX2 MB_KERNEL void mb_cast_f32_bf16_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    for (; count >= 64; count -= 64, src += 256, dst += 128) {
        mb_extremes_avx2 seen = {_mm256_setzero_si256(), _mm256_set1_epi32(-1)};
        for (int k = 0; k < 4; k++) {
            __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(src + 64 * k));
            __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(src + 64 * k + 32));
            mb_see_avx2(&seen, low);
            mb_see_avx2(&seen, high);
            /* Packing goes by halves of 128 bits; the permutation puts the quarters in order. */
            __m256i both = _mm256_packus_epi32(mb_round_bf16_avx2(low), mb_round_bf16_avx2(high));
            _mm256_storeu_si256((__m256i *)(void *)(dst + 32 * k), _mm256_permute4x64_epi64(both, 0xd8));
        }
        if (mb_rare_avx2(&seen, MB_F32_BF16_BIG, MB_F32_BF16_TINY)) mb_cast_f32_bf16_loop_avx2(dst, src, 64, clamp, counts);
    }
    mb_cast_f32_bf16_loop_avx2(dst, src, count, clamp, counts);
}

MB_TARGET_AVX2 MB_KERNEL void mb_cast_f16_f32_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    for (; count >= 64; count -= 64, src += 128, dst += 256) {
        __m128i most = _mm_setzero_si128();
        for (int k = 0; k < 8; k++) {
            __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)(src + 16 * k));
            most = _mm_max_epi16(most, _mm_and_si128(bits, _mm_set1_epi16(0x7fff)));
            _mm256_storeu_ps((float *)(void *)(dst + 32 * k), _mm256_cvtph_ps(bits));
        }
        if (_mm_movemask_epi8(_mm_cmpgt_epi16(most, _mm_set1_epi16((short)MB_F16_INF)))) mb_cast_f16_f32_loop_avx2(dst, src, 64, clamp, counts);
    }
    mb_cast_f16_f32_loop_avx2(dst, src, count, clamp, counts);
}

/* float16 <-> bfloat16 by way of float32, as the plain code goes. */
MB_TARGET_AVX2 MB_KERNEL void mb_cast_f16_bf16_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    for (; count >= 64; count -= 64, src += 128, dst += 128) {
        __m128i most = _mm_setzero_si128();
        for (int k = 0; k < 4; k++) {
            const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(src + 32 * k)), high = _mm_loadu_si128((const __m128i *)(const void *)(src + 32 * k + 16));
            most = _mm_max_epi16(most, _mm_and_si128(_mm_set1_epi16(0x7fff), low));
            most = _mm_max_epi16(most, _mm_and_si128(_mm_set1_epi16(0x7fff), high));
            const __m256i a = mb_round_bf16_avx2(_mm256_castps_si256(_mm256_cvtph_ps(low))), b = mb_round_bf16_avx2(_mm256_castps_si256(_mm256_cvtph_ps(high)));
            _mm256_storeu_si256((__m256i *)(void *)(dst + 32 * k), _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
        }
        if (_mm_movemask_epi8(_mm_cmpgt_epi16(most, _mm_set1_epi16((short)MB_F16_INF)))) mb_cast_f16_bf16_loop_avx2(dst, src, 64, clamp, counts);
    }
    mb_cast_f16_bf16_loop_avx2(dst, src, count, clamp, counts);
}

/* No bfloat16 lies between the bounds of float32 and its own, so the bounds of float32 find the rare cases. */
MB_TARGET_AVX2 MB_KERNEL void mb_cast_bf16_f16_avx2(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    for (; count >= 64; count -= 64, src += 128, dst += 128) {
        mb_extremes_avx2 seen = {_mm256_setzero_si256(), _mm256_set1_epi32(-1)};
        for (int k = 0; k < 8; k++) {
            const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(src + 16 * k))), 16);
            mb_see_avx2(&seen, bits);
            _mm_storeu_si128((__m128i *)(void *)(dst + 16 * k), _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT));
        }
        if (mb_rare_avx2(&seen, MB_F32_F16_BIG, MB_F32_F16_TINY)) mb_cast_bf16_f16_loop_avx2(dst, src, 64, clamp, counts);
    }
    mb_cast_bf16_f16_loop_avx2(dst, src, count, clamp, counts);
}

#endif
#endif
