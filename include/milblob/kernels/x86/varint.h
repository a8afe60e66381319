/* kernels/x86/varint.h: runs of varints for x86 with AVX2, 64 bytes at a time.
 *
 * The top bits of 64 bytes make one word, `on`: a set bit means that the varint continues. Everything that depends on where
 * varints begin and end is read from that word, so no step waits for one varint to find the next, as the plain decoder does.
 * A block begins at a varint; one that is incomplete at its end begins the next block.
 *
 * Nothing here decides what is an error. A block with anything not plainly valid ends the run, and the plain decoder takes
 * over: it reports the error and its position, or accepts the bytes (a padded varint is legal).
 *
 * Varints are read from memory again once the block is known to be valid. If the memory changes in between, other bits are
 * used, which are still in the element's range (it is checked afterwards, or is the type's own); the number of elements and
 * of their bytes comes from the word that was made first. */
#ifndef MILBLOB_VARINT_X86_H
#define MILBLOB_VARINT_X86_H

#include "milblob/kernels/x86/float.h"
#include "milblob/kernels/varint.h"

#ifdef MB_HAS_AVX2
#define MB_TARGET_BMI __attribute__((target("avx2,f16c,bmi,lzcnt,popcnt")))

/* 64 bytes and their masks: bit k of each word is about byte k. */
typedef struct mb_block_avx2 {
    __m256i low, high;
    uint64_t on, after_4, after_8, after_9; /* after_n: n bytes or more of the same varint come before it */
} mb_block_avx2;

MB_TARGET_BMI MB_STEP uint64_t mb_bits_avx2(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

/* Bytes of at least `least`, and of exactly `value`. */
MB_TARGET_BMI MB_STEP uint64_t mb_at_least_avx2(const mb_block_avx2 *b, uint8_t least) {
    const __m256i bound = _mm256_set1_epi8((char)least);
    return mb_bits_avx2(_mm256_cmpeq_epi8(_mm256_max_epu8(b->low, bound), b->low), _mm256_cmpeq_epi8(_mm256_max_epu8(b->high, bound), b->high));
}

MB_TARGET_BMI MB_STEP uint64_t mb_equal_avx2(const mb_block_avx2 *b, uint8_t value) {
    const __m256i wanted = _mm256_set1_epi8((char)value);
    return mb_bits_avx2(_mm256_cmpeq_epi8(b->low, wanted), _mm256_cmpeq_epi8(b->high, wanted));
}

MB_TARGET_BMI MB_STEP void mb_see_block_avx2(mb_block_avx2 *b, const uint8_t *src) {
    b->low = _mm256_loadu_si256((const __m256i *)(const void *)src);
    b->high = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32));
    b->on = mb_bits_avx2(b->low, b->high);
    const uint64_t after_1 = b->on << 1, after_2 = after_1 & after_1 << 1;
    b->after_4 = after_2 & after_2 << 2;
    b->after_8 = b->after_4 & b->after_4 << 4;
    b->after_9 = b->after_8 & after_1 << 8;
}

/* Whether every varint has at most ten bytes and 64 bits. */
MB_TARGET_BMI MB_STEP bool mb_block_fits_64(const mb_block_avx2 *b) {
    return b->after_9 == 0 || (b->after_9 & mb_at_least_avx2(b, 2)) == 0;
}

/* Whether every varint is one to five bytes and 32 bits, or ten bytes and a negative 32-bit number. */
MB_TARGET_BMI MB_STEP bool mb_block_fits_ints(const mb_block_avx2 *b) {
    if (b->after_4 == 0) return true;
    const uint64_t after_5 = b->after_4 & b->on << 5, fifth = b->after_4 & ~after_5;
    const uint64_t ends = fifth & ~b->on & mb_at_least_avx2(b, 0x10), goes_on = fifth & b->on & ~mb_at_least_avx2(b, 0xf8);
    const uint64_t later = after_5 & ~mb_equal_avx2(b, 0xff) & ~(b->after_9 & mb_equal_avx2(b, 1));
    return (ends | goes_on | later | (b->after_9 & b->on)) == 0;
}

/* The eight bytes at each of four places. */
MB_TARGET_BMI MB_STEP __m256i mb_words_avx2(const uint8_t *src, const uint64_t *places, unsigned offset) {
    const __m128i low = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(src + places[0] + offset)), _mm_loadl_epi64((const __m128i *)(const void *)(src + places[1] + offset)));
    const __m128i high = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(src + places[2] + offset)), _mm_loadl_epi64((const __m128i *)(const void *)(src + places[3] + offset)));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Up to eight bytes of a varint in each word to its first 56 bits; *stop has the top bits of bytes that end one. As
 * mb_varint_close, but multiplications with additions close the gaps: 7 -> 14 -> 28 bits. */
MB_TARGET_BMI MB_STEP __m256i mb_close_avx2(__m256i words, __m256i *stop) {
    *stop = _mm256_andnot_si256(words, _mm256_set1_epi8((char)0x80));
    const __m256i own = _mm256_xor_si256(*stop, _mm256_add_epi64(*stop, _mm256_set1_epi64x(-1)));
    words = _mm256_and_si256(words, _mm256_and_si256(own, _mm256_set1_epi8(0x7f)));
    words = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi16((short)0x8001), words), _mm256_set1_epi32(0x40000001));
    return _mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi64x(0xfffffff)), _mm256_srli_epi64(_mm256_andnot_si256(_mm256_set1_epi64x(0xfffffff), words), 4));
}

/* The bits that the ninth and the tenth byte add. `tails` has them in its top two bytes; `stop` as above. */
MB_TARGET_BMI MB_STEP __m256i mb_tail_avx2(__m256i tails, __m256i stop) {
    const __m256i tail = _mm256_and_si256(_mm256_srli_epi64(tails, 48), _mm256_cmpeq_epi64(stop, _mm256_setzero_si256()));
    const __m256i ninth = _mm256_slli_epi64(tail, 56), tenth = _mm256_slli_epi64(tail, 55), top = _mm256_slli_epi64(_mm256_set1_epi64x(1), 63);
    return _mm256_or_si256(_mm256_andnot_si256(top, ninth), _mm256_and_si256(top, _mm256_and_si256(ninth, tenth)));
}

/* Store four words as elements. */
MB_TARGET_BMI MB_STEP void mb_put_64_avx2(uint64_t *dst, __m256i words) { _mm256_storeu_si256((__m256i *)(void *)dst, words); }

MB_TARGET_BMI MB_STEP __m128i mb_narrow_avx2(__m256i words) {
    return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)));
}

MB_TARGET_BMI MB_STEP void mb_put_32_avx2(uint32_t *dst, __m256i words) { _mm_storeu_si128((__m128i *)(void *)dst, mb_narrow_avx2(words)); }

MB_TARGET_BMI MB_STEP void mb_put_16_avx2(uint16_t *dst, __m256i words) {
    _mm_storel_epi64((__m128i *)(void *)dst, _mm_shuffle_epi8(mb_narrow_avx2(words), _mm_set1_epi64x(0x0d0c090805040100)));
}

MB_TARGET_BMI MB_STEP void mb_put_8_avx2(uint8_t *dst, __m256i words) {
    const int four = _mm_cvtsi128_si32(_mm_shuffle_epi8(mb_narrow_avx2(words), _mm_set1_epi32(0x0c080400)));
    memcpy(dst, &four, 4);
}

/* Places of four varints that begin at *start and whose ends are bits of *ends; past the last one the place is 65. */
MB_TARGET_BMI MB_STEP void mb_four_places(uint64_t *places, uint64_t *start, uint64_t *ends) {
    for (unsigned k = 0; k < 4; k++) {
        places[k] = *start;
        *start = (*ends != 0 ? mb_lowest_bit(*ends) : 64) + 1;
        *ends &= *ends - 1;
    }
}

/* A round writes four elements and reads at most 65 + 10 bytes of any content: a run ends while there is room for
 * that. */
#define MB_DEFINE_VARINT_RUN_AVX2(name, type, put, is_ints) \
    MB_TARGET_BMI MB_KERNEL uint64_t name(void *out, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, uint64_t *taken) { \
        const bool small_fit = lo <= 0 && hi >= 0x7f; \
        const __m256i top = _mm256_slli_epi64(_mm256_set1_epi64x(1), 63), least = _mm256_set1_epi64x(lo); \
        const __m256i span = _mm256_xor_si256(_mm256_sub_epi64(_mm256_set1_epi64x(hi), least), top); \
        type *dst = (type *)out; \
        uint64_t at = 0, done = 0; \
        while (nbytes - at >= 80 && count - done >= 64) { \
            mb_block_avx2 block; \
            mb_see_block_avx2(&block, src + at); \
            MB_PREFETCH(src + at, 1024); \
            if (block.on == 0 && small_fit) { \
                uint8_t small[64]; /* what was looked at: src itself may have changed */ \
                _mm256_storeu_si256((__m256i *)(void *)small, block.low), _mm256_storeu_si256((__m256i *)(void *)(small + 32), block.high); \
                for (unsigned k = 0; k < 64; k++) dst[done + k] = (type)small[k]; \
                at += 64, done += 64; \
                continue; \
            } \
            uint64_t ends = ~block.on, start = 0, places[4]; \
            if (ends == 0 || !((is_ints) ? mb_block_fits_ints(&block) : mb_block_fits_64(&block))) break; \
            const uint64_t found = (uint64_t)__builtin_popcountll(ends), length = 64 - mb_leading_zeros(ends); \
            __m256i bad = _mm256_setzero_si256(), stop; \
            for (uint64_t k = 0; k < found; k += 4) { \
                mb_four_places(places, &start, &ends); \
                __m256i words = mb_close_avx2(mb_words_avx2(src + at, places, 0), &stop); \
                if (!(is_ints)) { \
                    if (block.after_8 != 0) words = _mm256_or_si256(words, mb_tail_avx2(mb_words_avx2(src + at, places, 2), stop)); \
                    const __m256i is_own = _mm256_cmpgt_epi64(_mm256_set1_epi64x((int64_t)(found - k)), _mm256_setr_epi64x(0, 1, 2, 3)); \
                    const __m256i outside = _mm256_cmpgt_epi64(_mm256_xor_si256(_mm256_sub_epi64(words, least), top), span); \
                    bad = _mm256_or_si256(bad, _mm256_and_si256(is_own, outside)); \
                } \
                put(dst + done + k, words); \
            } \
            if (!(is_ints) && _mm256_movemask_epi8(bad) != 0) break; \
            at += length, done += found; \
        } \
        *taken = at; \
        return done; \
    }

MB_DEFINE_VARINT_RUN_AVX2(mb_varint_run_8_avx2, uint8_t, mb_put_8_avx2, false)
MB_DEFINE_VARINT_RUN_AVX2(mb_varint_run_16_avx2, uint16_t, mb_put_16_avx2, false)
MB_DEFINE_VARINT_RUN_AVX2(mb_varint_run_32_avx2, uint32_t, mb_put_32_avx2, false)
MB_DEFINE_VARINT_RUN_AVX2(mb_varint_run_64_avx2, uint64_t, mb_put_64_avx2, false)
MB_DEFINE_VARINT_RUN_AVX2(mb_varint_run_ints_avx2, uint32_t, mb_put_32_avx2, true)

MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i16_avx2, int16_t, MB_TARGET_AVX2)
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_u16_avx2, uint16_t, MB_TARGET_AVX2)
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i32_avx2, int32_t, MB_TARGET_AVX2)

#endif
#endif
