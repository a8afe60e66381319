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

/* Bytes of at least `least`. */
MB_TARGET_BMI MB_STEP uint64_t mb_at_least_avx2(const mb_block_avx2 *b, uint8_t least) {
    const __m256i bound = _mm256_set1_epi8((char)least);
    return mb_bits_avx2(_mm256_cmpeq_epi8(_mm256_max_epu8(b->low, bound), b->low), _mm256_cmpeq_epi8(_mm256_max_epu8(b->high, bound), b->high));
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

/* Whether every varint is one to five bytes and 32 bits, or ten bytes and a negative 32-bit number. The fifth byte of the
 * first kind is 0 to 15, of the second -8 to -1, for its top bit is set; bytes after it are -1, and the tenth, which ends, 1. */
MB_TARGET_BMI MB_STEP bool mb_block_fits_ints(const mb_block_avx2 *b) {
    if (b->after_4 == 0) return true;
    const __m256i eight = _mm256_set1_epi8(8), most = _mm256_set1_epi8(23), one = _mm256_set1_epi8(1);
    const __m256i low = _mm256_add_epi8(b->low, eight), high = _mm256_add_epi8(b->high, eight);
    const uint64_t is_fifth = mb_bits_avx2(_mm256_cmpeq_epi8(_mm256_max_epu8(low, most), most), _mm256_cmpeq_epi8(_mm256_max_epu8(high, most), most));
    const uint64_t is_later = mb_bits_avx2(_mm256_cmpeq_epi8(_mm256_abs_epi8(b->low), one), _mm256_cmpeq_epi8(_mm256_abs_epi8(b->high), one));
    const uint64_t after_5 = b->after_4 & b->on << 5;
    return ((b->after_4 & ~after_5 & ~is_fifth) | (after_5 & ~(is_later & (b->on ^ b->after_9)))) == 0;
}

/* The eight bytes at each of four places. */
MB_TARGET_BMI MB_STEP __m256i mb_words_avx2(const uint8_t *src, const int64_t *places) {
    const __m128i low = _mm_loadl_epi64((const __m128i *)(const void *)(src + places[0])), high = _mm_loadl_epi64((const __m128i *)(const void *)(src + places[2]));
    const __m128 first = _mm_loadh_pi(_mm_castsi128_ps(low), (const __m64 *)(const void *)(src + places[1])), second = _mm_loadh_pi(_mm_castsi128_ps(high), (const __m64 *)(const void *)(src + places[3]));
    return _mm256_castps_si256(_mm256_insertf128_ps(_mm256_castps128_ps256(first), second, 1));
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

/* The zero bits below the lowest set one, 64 for 0. From a condition and a builtin compilers make a branch for each varint. */
MB_TARGET_BMI MB_STEP int64_t mb_trailing_zeros_bmi(uint64_t word) {
#ifdef __x86_64__
    return (int64_t)_tzcnt_u64(word);
#else
    return word != 0 ? (int64_t)__builtin_ctzll(word) : 64;
#endif
}

/* The bytes before four varints, from *last on; each bit of *ends is the last byte of one. After the last varint it is 64. */
MB_TARGET_BMI MB_STEP void mb_four_places(int64_t *places, int64_t *last, uint64_t *ends) {
    for (unsigned k = 0; k < 4; k++) {
        places[k] = *last;
        *last = mb_trailing_zeros_bmi(*ends);
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
        const uint8_t *at = src, *end = src + nbytes; \
        uint64_t done = 0; \
        while (end - at >= 80 && count - done >= 64) { \
            mb_block_avx2 block; \
            mb_see_block_avx2(&block, at); \
            MB_PREFETCH(at, 1024); \
            if (block.on == 0 && small_fit) { \
                uint8_t small[64]; /* what was looked at: src itself may have changed */ \
                _mm256_storeu_si256((__m256i *)(void *)small, block.low), _mm256_storeu_si256((__m256i *)(void *)(small + 32), block.high); \
                for (unsigned k = 0; k < 64; k++) dst[done + k] = (type)small[k]; \
                at += 64, done += 64; \
                continue; \
            } \
            uint64_t ends = ~block.on; \
            int64_t last = -1, places[4]; \
            if (ends == 0 || !((is_ints) ? mb_block_fits_ints(&block) : mb_block_fits_64(&block))) break; \
            const uint64_t found = (uint64_t)__builtin_popcountll(ends), length = 64 - mb_leading_zeros(ends); \
            __m256i bad = _mm256_setzero_si256(), stop; \
            for (uint64_t k = 0; k < found; k += 4) { \
                mb_four_places(places, &last, &ends); \
                __m256i words = mb_close_avx2(mb_words_avx2(at + 1, places), &stop); \
                if (!(is_ints)) { \
                    if (block.after_8 != 0) words = _mm256_or_si256(words, mb_tail_avx2(mb_words_avx2(at + 3, places), stop)); \
                    const __m256i is_own = _mm256_cmpgt_epi64(_mm256_set1_epi64x((int64_t)(found - k)), _mm256_setr_epi64x(0, 1, 2, 3)); \
                    const __m256i outside = _mm256_cmpgt_epi64(_mm256_xor_si256(_mm256_sub_epi64(words, least), top), span); \
                    bad = _mm256_or_si256(bad, _mm256_and_si256(is_own, outside)); \
                } \
                put(dst + done + k, words); \
            } \
            if (!(is_ints) && _mm256_movemask_epi8(bad) != 0) break; \
            at += length, done += found; \
        } \
        *taken = (uint64_t)(at - src); \
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

/* One byte, and one more for each power of 2^7 that is reached; a negative number, which reaches none, has ten. */
MB_TARGET_BMI MB_KERNEL uint64_t mb_varint_nbytes_i64_avx2(const void *elements, uint64_t count) {
    const int64_t *src = (const int64_t *)elements;
    __m256i more = _mm256_setzero_si256();
    uint64_t done = 0, sums[4];
    for (; count - done >= 4; done += 4) {
        const __m256i four = _mm256_loadu_si256((const __m256i *)(const void *)(src + done));
        for (unsigned bits = 7; bits < 63; bits += 7) more = _mm256_sub_epi64(more, _mm256_cmpgt_epi64(four, _mm256_set1_epi64x((INT64_C(1) << bits) - 1)));
        const __m256i sign = _mm256_srli_epi64(four, 63);
        more = _mm256_add_epi64(more, _mm256_add_epi64(_mm256_slli_epi64(sign, 3), sign));
    }
    _mm256_storeu_si256((__m256i *)(void *)sums, more);
    return done + sums[0] + sums[1] + sums[2] + sums[3] + mb_varint_nbytes_i64(src + done, count - done);
}

/* ------------------------------------------------------------------------------------------------------------- encode */

/* Which bytes of two elements of four bytes each are varints: a row for each pair of lengths, at the bits that show after
 * which of the eight bytes a varint continues. */
typedef struct mb_pairs_avx2 {
    uint8_t picks[0x78][8], nbytes[0x78];
} mb_pairs_avx2;

static inline void mb_pairs_fill(mb_pairs_avx2 *pairs) {
    for (unsigned a = 0; a < 4; a++)
        for (unsigned b = 0; b < 4; b++) {
            const unsigned row = ((1u << a) - 1) | ((1u << b) - 1) << 4;
            for (unsigned k = 0; k < 8; k++) pairs->picks[row][k] = (uint8_t)(k <= a ? k : k <= a + 1 + b ? 4 + k - a - 1 : 0x80u);
            pairs->nbytes[row] = (uint8_t)(a + b + 2);
        }
}

/* Eight elements from 0 to 127. */
MB_TARGET_BMI MB_STEP void mb_put_small_avx2(uint8_t *dst, __m256i v) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i *)(void *)dst, _mm_packus_epi16(words, words));
}

/* Eight elements from 0 to 2^28 - 1: bytes of seven bits, the top bits of those that continue, and then pairs are closed up.
 * Writes up to 8 bytes past the bytes that it returns the number of. */
MB_TARGET_BMI MB_STEP uint64_t mb_put_eight_avx2(uint8_t *dst, __m256i v, const mb_pairs_avx2 *pairs) {
    const __m256i eighths = _mm256_set1_epi8((char)0x80);
    v = _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0x3fff)), _mm256_and_si256(_mm256_slli_epi32(v, 2), _mm256_set1_epi32(0x3fff0000)));
    v = _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi16(0x7f)), _mm256_and_si256(_mm256_slli_epi32(v, 1), _mm256_set1_epi16(0x7f00)));
    __m256i more = _mm256_and_si256(_mm256_add_epi8(v, _mm256_set1_epi8(0x7f)), eighths); /* of bytes that are not zero */
    more = _mm256_or_si256(_mm256_srli_epi32(more, 8), _mm256_srli_epi32(more, 16));
    more = _mm256_or_si256(more, _mm256_srli_epi32(more, 8));
    v = _mm256_or_si256(v, more);
    const uint32_t on = (uint32_t)_mm256_movemask_epi8(more);
    const uint8_t *at = dst;
    for (unsigned half = 0; half < 2; half++) {
        const unsigned a = on >> 16 * half & 0x77, b = on >> (16 * half + 8) & 0x77;
        __m128i picks = _mm_loadl_epi64((const __m128i *)(const void *)pairs->picks[a]);
        picks = _mm_unpacklo_epi64(picks, _mm_add_epi8(_mm_loadl_epi64((const __m128i *)(const void *)pairs->picks[b]), _mm_set1_epi8(8)));
        const __m128i bytes = _mm_shuffle_epi8(half ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v), picks);
        _mm_storel_epi64((__m128i *)(void *)dst, bytes), dst += pairs->nbytes[a];
        _mm_storel_epi64((__m128i *)(void *)dst, _mm_unpackhi_epi64(bytes, bytes)), dst += pairs->nbytes[b];
    }
    return (uint64_t)(dst - at);
}

/* Four elements, as mb_varint_put_32 writes each. */
MB_TARGET_BMI MB_STEP uint64_t mb_put_four_avx2(uint8_t *dst, __m128i v, const uint8_t *lengths) {
    const uint8_t *at = dst;
    const __m256i x = _mm256_cvtepu32_epi64(v), negative = _mm256_cvtepi32_epi64(_mm_srai_epi32(v, 31));
    uint64_t words[4];
    __m256i word = _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi64x(0x3fff)), _mm256_and_si256(_mm256_slli_epi64(x, 2), _mm256_set1_epi64x(0x3fff0000)));
    word = _mm256_or_si256(_mm256_and_si256(word, _mm256_set1_epi16(0x7f)), _mm256_and_si256(_mm256_slli_epi64(word, 1), _mm256_set1_epi16(0x7f00)));
    word = _mm256_or_si256(word, _mm256_and_si256(_mm256_slli_epi64(x, 4), _mm256_set1_epi64x(0xf00000000)));
    __m256i more = _mm256_add_epi64(word, _mm256_set1_epi64x(0x7f7f7f7f7f));
    more = _mm256_or_si256(_mm256_srli_epi64(more, 8), _mm256_srli_epi64(more, 16));
    more = _mm256_and_si256(_mm256_or_si256(more, _mm256_srli_epi64(more, 16)), _mm256_set1_epi64x(0x80808080));
    word = _mm256_or_si256(word, _mm256_or_si256(more, _mm256_and_si256(negative, _mm256_set1_epi64x((int64_t)0xfffffff080808080u))));
    const uint32_t on = (uint32_t)_mm256_movemask_epi8(word);
    _mm256_storeu_si256((__m256i *)(void *)words, word);
    for (unsigned k = 0; k < 4; k++) {
        mb_store_u64(dst, words[k]);
        dst[8] = 0xff, dst[9] = 1;
        dst += lengths[on >> 8 * k & 0xff];
    }
    return (uint64_t)(dst - at);
}

/* Four elements, as mb_varint_put writes each. The ninth byte is the element's top one, whose
 * top bit is set if the tenth is needed, and the tenth is 1. */
MB_TARGET_BMI MB_STEP uint64_t mb_put_four_64_avx2(uint8_t *dst, __m256i v) {
    const uint8_t *at = dst;
    const __m256i eighths = _mm256_set1_epi8((char)0x80);
    uint64_t words[4], values[4];
    __m256i word = _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi64x(0xfffffff)), _mm256_and_si256(_mm256_slli_epi64(v, 4), _mm256_set1_epi64x(0x0fffffff00000000)));
    word = _mm256_or_si256(_mm256_and_si256(word, _mm256_set1_epi32(0x3fff)), _mm256_and_si256(_mm256_slli_epi32(word, 2), _mm256_set1_epi32(0x3fff0000)));
    word = _mm256_or_si256(_mm256_and_si256(word, _mm256_set1_epi16(0x7f)), _mm256_and_si256(_mm256_slli_epi16(word, 1), _mm256_set1_epi16(0x7f00)));
    __m256i more = _mm256_srli_epi64(_mm256_and_si256(_mm256_add_epi8(word, _mm256_set1_epi8(0x7f)), eighths), 8); /* of bytes that are not zero */
    more = _mm256_or_si256(more, _mm256_srli_epi64(more, 8));
    more = _mm256_or_si256(more, _mm256_srli_epi64(more, 16));
    more = _mm256_or_si256(more, _mm256_srli_epi64(more, 32));
    more = _mm256_or_si256(more, _mm256_andnot_si256(_mm256_cmpeq_epi64(_mm256_srli_epi64(v, 56), _mm256_setzero_si256()), eighths));
    const uint32_t on = (uint32_t)_mm256_movemask_epi8(more);
    _mm256_storeu_si256((__m256i *)(void *)words, _mm256_or_si256(word, more));
    _mm256_storeu_si256((__m256i *)(void *)values, v);
    for (unsigned k = 0; k < 4; k++) {
        const uint64_t last = values[k] >> 56;
        mb_store_u64(dst, words[k]);
        dst[8] = (uint8_t)last, dst[9] = 1;
        dst += 1 + (unsigned)__builtin_popcount(on >> 8 * k & 0xff) + (last >> 7);
    }
    return (uint64_t)(dst - at);
}

MB_TARGET_BMI MB_STEP __m256i mb_get_i16_avx2(const int16_t *src) { return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)src)); }
MB_TARGET_BMI MB_STEP __m256i mb_get_u16_avx2(const uint16_t *src) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)src)); }
MB_TARGET_BMI MB_STEP __m256i mb_get_i32_avx2(const int32_t *src) { return _mm256_loadu_si256((const __m256i *)(const void *)src); }

/* Eight elements a round, which write at most 80 bytes; the plain code does the rest. */
#define MB_DEFINE_VARINT_ENCODE_AVX2(kind, type, get) \
    MB_TARGET_BMI MB_KERNEL uint64_t mb_varint_encode_##kind##_avx2(uint8_t *dst, uint64_t dst_nbytes, const void *elements, uint64_t count) { \
        const type *src = (const type *)elements; \
        uint64_t at = 0, done = 0; \
        mb_pairs_avx2 pairs; \
        uint8_t lengths[256]; \
        if (count >= 64) { \
            mb_pairs_fill(&pairs); \
            for (unsigned k = 0; k < 5; k++) lengths[(1u << k) - 1] = (uint8_t)(k + 1); \
            lengths[0xff] = 10; \
            for (; count - done >= 8 && dst_nbytes - at >= 88; done += 8) { \
                const __m256i eight = get(src + done); \
                MB_ONCE(); \
                if (_mm256_testz_si256(eight, _mm256_set1_epi32(~0x7f))) { \
                    mb_put_small_avx2(dst + at, eight); \
                    at += 8; \
                } else if (_mm256_testz_si256(eight, _mm256_set1_epi32((int)0xf0000000u))) { \
                    at += mb_put_eight_avx2(dst + at, eight, &pairs); \
                } else { \
                    at += mb_put_four_avx2(dst + at, _mm256_castsi256_si128(eight), lengths); \
                    at += mb_put_four_avx2(dst + at, _mm256_extracti128_si256(eight, 1), lengths); \
                } \
            } \
        } \
        return at + mb_varint_encode_##kind(dst + at, dst_nbytes - at, src + done, count - done); \
    }

MB_DEFINE_VARINT_ENCODE_AVX2(i16, int16_t, mb_get_i16_avx2)
MB_DEFINE_VARINT_ENCODE_AVX2(u16, uint16_t, mb_get_u16_avx2)
MB_DEFINE_VARINT_ENCODE_AVX2(i32, int32_t, mb_get_i32_avx2)

/* The same for 64 bits. */
MB_TARGET_BMI MB_KERNEL uint64_t mb_varint_encode_i64_avx2(uint8_t *dst, uint64_t dst_nbytes, const void *elements, uint64_t count) {
    const int64_t *src = (const int64_t *)elements;
    uint64_t at = 0, done = 0;
    mb_pairs_avx2 pairs;
    if (count >= 64) {
        mb_pairs_fill(&pairs);
        for (; count - done >= 8 && dst_nbytes - at >= 88; done += 8) {
            const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(src + done)), high = _mm256_loadu_si256((const __m256i *)(const void *)(src + done + 4));
            const __m256i any = _mm256_or_si256(low, high);
            MB_ONCE();
            if (_mm256_testz_si256(any, _mm256_set1_epi64x(~(int64_t)0xfffffff))) {
                const __m256i eight = _mm256_inserti128_si256(_mm256_castsi128_si256(mb_narrow_avx2(low)), mb_narrow_avx2(high), 1);
                if (_mm256_testz_si256(any, _mm256_set1_epi64x(~(int64_t)0x7f))) {
                    mb_put_small_avx2(dst + at, eight);
                    at += 8;
                } else {
                    at += mb_put_eight_avx2(dst + at, eight, &pairs);
                }
            } else {
                at += mb_put_four_64_avx2(dst + at, low);
                at += mb_put_four_64_avx2(dst + at, high);
            }
        }
    }
    return at + mb_varint_encode_i64(dst + at, dst_nbytes - at, src + done, count - done);
}

#endif
#endif
