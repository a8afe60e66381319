/* kernels/x86/squares.h: squares of float16 elements, and sums of them, with AVX2 and F16C. */
#ifndef MILBLOB_SQUARES_X86_H
#define MILBLOB_SQUARES_X86_H

#include "milblob/kernels/squares.h"
#include "milblob/kernels/x86/quantize.h"

#ifdef MB_HAS_AVX2

MB_TARGET_AVX2 MB_STEP __m256 mb_load_halves_avx2(const uint8_t *src) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src)); }

MB_TARGET_AVX2 MB_STEP __m256 mb_half_squares_avx2(const uint8_t *src) {
    const __m256 x = mb_load_halves_avx2(src);
    return mb_round_half_avx2(_mm256_mul_ps(x, x));
}

MB_TARGET_AVX2 MB_STEP void mb_add_half_squares_avx2(uint8_t *sums, const uint8_t *src) {
    _mm_storeu_si128((__m128i *)(void *)sums, _mm256_cvtps_ph(_mm256_add_ps(mb_load_halves_avx2(sums), mb_half_squares_avx2(src)), _MM_FROUND_TO_NEAREST_INT));
}

MB_TARGET_AVX2 MB_KERNEL void mb_add_squares_f16_avx2(uint8_t *sums, const uint8_t *src, uint64_t count) {
    uint8_t last[16] = {0}, own[16] = {0};
    size_t i = 0;
    for (; i + 8 <= (size_t)count; i += 8) mb_add_half_squares_avx2(sums + 2 * i, src + 2 * i);
    if (i == (size_t)count) return;
    memcpy(last, src + 2 * i, 2 * ((size_t)count - i)), memcpy(own, sums + 2 * i, 2 * ((size_t)count - i));
    mb_add_half_squares_avx2(own, last);
    memcpy(sums + 2 * i, own, 2 * ((size_t)count - i));
}

MB_TARGET_AVX2 MB_KERNEL void mb_square_f16_avx2(float *dst, const uint8_t *src, uint64_t count) {
    size_t i = 0;
    for (; i + 8 <= (size_t)count; i += 8) _mm256_storeu_ps(dst + i, mb_half_squares_avx2(src + 2 * i));
    mb_square_f16_plain(dst + i, src + 2 * i, count - i);
}

#endif
#endif
