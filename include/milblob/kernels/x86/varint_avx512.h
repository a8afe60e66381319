/* kernels/x86/varint_avx512.h: encoding and decoding varints with AVX-512, VBMI and VBMI2: bytes are compacted in registers.
 *
 * Decoding works as in varint.h, which explains it, with eight or sixteen elements a round. */
#ifndef MILBLOB_VARINT_AVX512_H
#define MILBLOB_VARINT_AVX512_H

#include "milblob/kernels/x86/varint.h"

#ifdef MB_HAS_AVX2
#define MB_TARGET_VBMI2 __attribute__((target("avx2,f16c,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx512vbmi2")))

/* ------------------------------------------------------------------------------------------------------------- decode */

/* Places of the first and the last byte of each varint in a block, one byte each, are made by closing up the numbers 0..63.
 * `lane` bytes at each first place are gathered, those past the last one left out. */
MB_TARGET_VBMI2 MB_STEP __m512i mb_gather_vbmi2(__m512i bytes, __m512i first, __m512i last, __m512i number, __m512i within) {
    const __m512i from = _mm512_add_epi8(_mm512_permutexvar_epi8(number, first), within);
    const __mmask64 own = _mm512_cmple_epu8_mask(from, _mm512_permutexvar_epi8(number, last));
    return _mm512_maskz_permutexvar_epi8(own, from, bytes);
}

/* As mb_close_avx2 up to 28 bits for every four bytes. */
MB_TARGET_VBMI2 MB_STEP __m512i mb_close_28_vbmi2(__m512i bytes) {
    bytes = _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f));
    return _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi16((short)0x8001), bytes), _mm512_set1_epi32(0x40000001));
}

MB_TARGET_VBMI2 MB_STEP __m512i mb_close_56_vbmi2(__m512i bytes) {
    const __m512i low = _mm512_set1_epi64(0xfffffff), closed = mb_close_28_vbmi2(bytes);
    return _mm512_or_si512(_mm512_and_si512(closed, low), _mm512_srli_epi64(_mm512_andnot_si512(low, closed), 4));
}

MB_TARGET_VBMI2 MB_STEP bool mb_fits_64_vbmi2(__m512i bytes, uint64_t after_9) {
    return (after_9 & _mm512_cmpgt_epu8_mask(bytes, _mm512_set1_epi8(1))) == 0;
}

MB_TARGET_VBMI2 MB_STEP bool mb_fits_ints_vbmi2(__m512i bytes, uint64_t on, uint64_t after_4, uint64_t after_9) {
    const uint64_t after_5 = after_4 & on << 5, fifth = after_4 & ~after_5;
    const uint64_t ends = fifth & ~on & _mm512_cmpgt_epu8_mask(bytes, _mm512_set1_epi8(0x0f));
    const uint64_t goes_on = fifth & on & _mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8((char)0xf8));
    const uint64_t ninth = after_9 & _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(1));
    const uint64_t later = after_5 & ~ninth & _mm512_cmpneq_epi8_mask(bytes, _mm512_set1_epi8(-1));
    return (ends | goes_on | later | (after_9 & on)) == 0;
}

MB_TARGET_VBMI2 MB_STEP void mb_put_64_vbmi2(uint64_t *dst, __m512i words) { _mm512_storeu_si512(dst, words); }
MB_TARGET_VBMI2 MB_STEP void mb_put_32_vbmi2(uint32_t *dst, __m512i words) { _mm256_storeu_si256((__m256i *)(void *)dst, _mm512_cvtepi64_epi32(words)); }
MB_TARGET_VBMI2 MB_STEP void mb_put_16_vbmi2(uint16_t *dst, __m512i words) { _mm_storeu_si128((__m128i *)(void *)dst, _mm512_cvtepi64_epi16(words)); }
MB_TARGET_VBMI2 MB_STEP void mb_put_8_vbmi2(uint8_t *dst, __m512i words) { _mm_storel_epi64((__m128i *)(void *)dst, _mm512_cvtepi64_epi8(words)); }

/* Two rounds at a time, 16 elements: mispredicting whether there is another one costs more than a round. A block
 * with few long varints gets one round, of its first eight: the next block begins with the rest. The field `ints` does not
 * gain by this. */
#define MB_DEFINE_VARINT_RUN_VBMI2(name, type, put, is_ints) \
    MB_TARGET_VBMI2 MB_KERNEL uint64_t name(void *out, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, uint64_t *taken) { \
        const bool small_fit = lo <= 0 && hi >= 0x7f, fit_28 = (is_ints) || (sizeof(type) == 4 && lo <= 0 && hi >= 0xfffffff); \
        const __m512i least = _mm512_set1_epi64(lo), span = _mm512_set1_epi64((int64_t)((uint64_t)hi - (uint64_t)lo)); \
        uint8_t numbers[3][64]; \
        type *dst = (type *)out; \
        uint64_t at = 0, done = 0; \
        for (unsigned k = 0; k < 64; k++) numbers[0][k] = (uint8_t)k, numbers[1][k] = (uint8_t)(k / 8), numbers[2][k] = (uint8_t)(k / 4); \
        const __m512i iota = _mm512_loadu_si512(numbers[0]), eighths = _mm512_loadu_si512(numbers[1]), quarters = _mm512_loadu_si512(numbers[2]); \
        const __m512i in_8 = _mm512_and_si512(iota, _mm512_set1_epi8(7)), in_4 = _mm512_and_si512(iota, _mm512_set1_epi8(3)); \
        while (nbytes - at >= 64 && count - done >= 64) { \
            const __m512i bytes = _mm512_loadu_si512(src + at); \
            MB_ONCE(); \
            const uint64_t on = _mm512_movepi8_mask(bytes), ends = ~on; \
            MB_PREFETCH(src + at, 1024); \
            if (on == 0 && small_fit) { \
                uint8_t small[64]; \
                _mm512_storeu_si512(small, bytes); \
                for (unsigned k = 0; k < 64; k++) dst[done + k] = (type)small[k]; \
                at += 64, done += 64; \
                continue; \
            } \
            if (ends == 0) break; \
            const uint64_t after_1 = on << 1, after_2 = after_1 & after_1 << 1, after_4 = after_2 & after_2 << 2; \
            const uint64_t after_8 = after_4 & after_4 << 4, after_9 = after_8 & after_1 << 8; \
            uint64_t found = (uint64_t)__builtin_popcountll(ends), length = 64 - mb_leading_zeros(ends); \
            const __m512i first = _mm512_maskz_compress_epi8(ends << 1 | 1, iota), last = _mm512_maskz_compress_epi8(ends, iota); \
            __m512i number = eighths; \
            if (after_4 == 0 && fit_28) { \
                number = quarters; \
                for (uint64_t k = 0; k < found; k += 16, number = _mm512_add_epi8(number, _mm512_set1_epi8(16))) \
                    _mm512_storeu_si512(dst + done + k, mb_close_28_vbmi2(mb_gather_vbmi2(bytes, first, last, number, in_4))); \
                at += length, done += found; \
                continue; \
            } \
            if (!((is_ints) ? mb_fits_ints_vbmi2(bytes, on, after_4, after_9) : mb_fits_64_vbmi2(bytes, after_9))) break; \
            const uint64_t eighth = _pdep_u64(0x80, ends); \
            const unsigned some = (is_ints) || found > 12 ? 16 : 8; \
            if (some == 8) { \
                length = eighth != 0 ? mb_lowest_bit(eighth) + 1 : length; \
                found = found < 8 ? found : 8; \
            } \
            __m512i index = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7); \
            __mmask8 bad = 0; \
            for (uint64_t k = 0; k < found; k += some) { \
                for (unsigned half = 0; half < some; half += 8) { \
                    __m512i words = mb_close_56_vbmi2(mb_gather_vbmi2(bytes, first, last, number, in_8)); \
                    if (!(is_ints)) { \
                        if (after_8 != 0) { \
                            const __m512i tail = mb_gather_vbmi2(bytes, first, last, number, _mm512_add_epi8(in_8, _mm512_set1_epi8(8))); \
                            const __m512i ninth = _mm512_and_si512(tail, _mm512_set1_epi64(0x7f)), tenth = _mm512_srli_epi64(tail, 8); \
                            words = _mm512_or_si512(words, _mm512_or_si512(_mm512_slli_epi64(ninth, 56), _mm512_slli_epi64(tenth, 63))); \
                        } \
                        const __mmask8 is_own = _mm512_cmplt_epi64_mask(index, _mm512_set1_epi64((int64_t)found)); \
                        bad = (__mmask8)(bad | _mm512_mask_cmpgt_epu64_mask(is_own, _mm512_sub_epi64(words, least), span)); \
                    } \
                    put(dst + done + k + half, words); \
                    number = _mm512_add_epi8(number, _mm512_set1_epi8(8)), index = _mm512_add_epi64(index, _mm512_set1_epi64(8)); \
                } \
            } \
            if (bad != 0) break; \
            at += length, done += found; \
        } \
        *taken = at; \
        return done; \
    }

MB_DEFINE_VARINT_RUN_VBMI2(mb_varint_run_8_vbmi2, uint8_t, mb_put_8_vbmi2, false)
MB_DEFINE_VARINT_RUN_VBMI2(mb_varint_run_16_vbmi2, uint16_t, mb_put_16_vbmi2, false)
MB_DEFINE_VARINT_RUN_VBMI2(mb_varint_run_32_vbmi2, uint32_t, mb_put_32_vbmi2, false)
MB_DEFINE_VARINT_RUN_VBMI2(mb_varint_run_64_vbmi2, uint64_t, mb_put_64_vbmi2, false)
MB_DEFINE_VARINT_RUN_VBMI2(mb_varint_run_ints_vbmi2, uint32_t, mb_put_32_vbmi2, true)

/* ------------------------------------------------------------------------------------------------------------- encode */

/* Seven bits from each place of an element go to a byte of its lane, eight or sixteen bytes; bytes that are needed get their
 * top bit if the next is needed too; then the bytes that are needed are closed up. Byte k > 0 is needed if a number has a bit
 * at 7k or above: if fewer than 64 - 7k zeros lead it. A round writes 64 bytes. */
typedef struct mb_spread_vbmi2 {
    __m512i shifts, bits, bounds, zeros;
} mb_spread_vbmi2;

static const uint8_t mb_spread_bounds[16] = {255, 57, 50, 43, 36, 29, 22, 15, 8, 1, 0, 0, 0, 0, 0, 0};

MB_TARGET_VBMI2 MB_STEP mb_spread_vbmi2 mb_spread_of(const unsigned lane) {
    uint8_t shifts[64], bits[64], bounds[64], zeros[64];
    mb_spread_vbmi2 spread;
    for (unsigned k = 0; k < 64; k++) {
        const unsigned byte = k % lane;
        shifts[k] = (uint8_t)(byte * 7 % 64);
        bits[k] = byte < 9 ? 0x7f : byte == 9 ? 1 : 0;
        bounds[k] = mb_spread_bounds[byte];
        zeros[k] = (uint8_t)(k % 16 / 8 * 8);
    }
    spread.shifts = _mm512_loadu_si512(shifts), spread.bits = _mm512_loadu_si512(bits);
    spread.bounds = _mm512_loadu_si512(bounds), spread.zeros = _mm512_loadu_si512(zeros);
    return spread;
}

MB_TARGET_VBMI2 MB_STEP uint64_t mb_spread_store(uint8_t *dst, __m512i elements, const mb_spread_vbmi2 *spread, uint64_t not_last) {
    const __m512i zeros = _mm512_shuffle_epi8(_mm512_lzcnt_epi64(elements), spread->zeros);
    const uint64_t needed = _mm512_cmplt_epu8_mask(zeros, spread->bounds);
    __m512i bytes = _mm512_and_si512(_mm512_multishift_epi64_epi8(spread->shifts, elements), spread->bits);
    bytes = _mm512_mask_add_epi8(bytes, needed >> 1 & not_last, bytes, _mm512_set1_epi8((char)0x80));
    _mm512_storeu_si512(dst, _mm512_maskz_compress_epi8(needed, bytes));
    return (uint64_t)__builtin_popcountll(needed);
}

MB_TARGET_VBMI2 MB_STEP __m512i mb_get_i16_vbmi2(const int16_t *src) { return _mm512_cvtepi16_epi64(_mm_loadu_si128((const __m128i *)(const void *)src)); }
MB_TARGET_VBMI2 MB_STEP __m512i mb_get_u16_vbmi2(const uint16_t *src) { return _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)(const void *)src)); }
MB_TARGET_VBMI2 MB_STEP __m512i mb_get_i32_vbmi2(const int32_t *src) { return _mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i *)(const void *)src)); }
MB_TARGET_VBMI2 MB_STEP __m512i mb_get_i64_vbmi2(const int64_t *src) { return _mm512_loadu_si512(src); }

/* Eight elements a round, in lanes of eight bytes if all are below 2^56, else four and four in lanes of sixteen. */
#define MB_DEFINE_VARINT_ENCODE_VBMI2(kind, type, get) \
    MB_TARGET_VBMI2 MB_KERNEL uint64_t mb_varint_encode_##kind##_vbmi2(uint8_t *dst, uint64_t dst_nbytes, const void *elements, uint64_t count) { \
        const mb_spread_vbmi2 narrow = mb_spread_of(8), wide = mb_spread_of(16); \
        const __m512i twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), twice_upper = _mm512_setr_epi64(4, 4, 5, 5, 6, 6, 7, 7); \
        const type *src = (const type *)elements; \
        uint64_t at = 0, done = 0; \
        for (; count - done >= 8 && dst_nbytes - at >= 40 + 64; done += 8) { \
            const __m512i eight = get(src + done); \
            MB_ONCE(); \
            MB_PREFETCH(src + done, 2048); \
            if (_mm512_cmpgt_epu64_mask(eight, _mm512_set1_epi64(0x7f)) == 0) { \
                _mm_storel_epi64((__m128i *)(void *)(dst + at), _mm512_cvtepi64_epi8(eight)); \
                at += 8; \
            } else if (_mm512_cmpgt_epu64_mask(eight, _mm512_set1_epi64(0xffffffffffffff)) == 0) { \
                at += mb_spread_store(dst + at, eight, &narrow, 0x7f7f7f7f7f7f7f7f); \
            } else { \
                at += mb_spread_store(dst + at, _mm512_permutexvar_epi64(twice, eight), &wide, ~(uint64_t)0); \
                at += mb_spread_store(dst + at, _mm512_permutexvar_epi64(twice_upper, eight), &wide, ~(uint64_t)0); \
            } \
        } \
        return at + mb_varint_encode_##kind(dst + at, dst_nbytes - at, src + done, count - done); \
    }

MB_DEFINE_VARINT_ENCODE_VBMI2(i16, int16_t, mb_get_i16_vbmi2)
MB_DEFINE_VARINT_ENCODE_VBMI2(u16, uint16_t, mb_get_u16_vbmi2)
MB_DEFINE_VARINT_ENCODE_VBMI2(i32, int32_t, mb_get_i32_vbmi2)
MB_DEFINE_VARINT_ENCODE_VBMI2(i64, int64_t, mb_get_i64_vbmi2)

/* As mb_varint_length_of. */
MB_TARGET_VBMI2 MB_KERNEL uint64_t mb_varint_nbytes_i64_vbmi2(const void *elements, uint64_t count) {
    const int64_t *src = (const int64_t *)elements;
    __m512i sum = _mm512_setzero_si512();
    uint64_t done = 0;
    for (; count - done >= 8; done += 8) {
        const __m512i zeros = _mm512_lzcnt_epi64(_mm512_or_si512(_mm512_loadu_si512(src + done), _mm512_set1_epi64(1)));
        const __m512i bits = _mm512_sub_epi64(_mm512_set1_epi64(63), zeros);
        sum = _mm512_add_epi64(sum, _mm512_srli_epi64(_mm512_add_epi64(_mm512_add_epi64(_mm512_slli_epi64(bits, 3), bits), _mm512_set1_epi64(73)), 6));
    }
    return (uint64_t)_mm512_reduce_add_epi64(sum) + mb_varint_nbytes_i64(src + done, count - done);
}

#endif
#endif
