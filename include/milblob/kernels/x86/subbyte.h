/* kernels/x86/subbyte.h: the kernels of subbyte.h for x86 with AVX2.
 *
 * Each does whole blocks and leaves its tail to the plain kernel. Memory is the limit: neither AVX-512 with its byte
 * instructions nor stores that bypass the cache were faster. Prefetching some pages ahead was, for fresh output: the kernel
 * clears its pages in between, so the hardware does not detect a stream. */
#ifndef MILBLOB_SUBBYTE_X86_H
#define MILBLOB_SUBBYTE_X86_H

#include "milblob/kernels/x86/float.h"
#include "milblob/kernels/subbyte.h"

#ifdef MB_HAS_AVX2
enum { MB_AHEAD_NBYTES = 4096 };

/* ------------------------------------------------------------------------------------------------------- unpack, AVX2 */

/* An element of n bits lies in the two bytes that begin with its first bit's. So a shuffle puts those two bytes of eight
 * elements, n bytes, into eight words; a multiplication moves each element to the top of its word, where the neighbours
 * above fall out, and one shift to the bottom, where those below do. 32 elements a round; a load of 16 bytes may pass the
 * elements' own n, so rounds end while that many are left. Packing to bytes works on halves of 128 bits: one word of a round
 * has elements 0..7 and 16..23, the other the rest. For signed elements the shift and the packing are arithmetic. */
#define MB_DEFINE_UNPACK_AVX2(name, tail, lower_by, narrow) \
    MB_TARGET_AVX2 MB_KERNEL void name(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits) { \
        const uint64_t nbytes = mb_packed_nbytes(count, nbits); \
        uint8_t pick[16]; \
        uint16_t raise[8]; \
        uint64_t at = 0, done = 0; \
        for (unsigned k = 0; k < 8; k++) { \
            const unsigned byte = k * nbits / 8, shift = k * nbits % 8; \
            pick[2 * k] = (uint8_t)byte; \
            pick[2 * k + 1] = (uint8_t)(byte + 1 < nbits ? byte + 1 : 0x80u); \
            raise[k] = (uint16_t)(1u << (16 - nbits - shift)); \
        } \
        const __m256i picks = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)pick)); \
        const __m256i raises = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)raise)); \
        const __m128i lower = _mm_cvtsi32_si128((int)(16 - nbits)); \
        for (; count - done >= 32 && nbytes - at >= 3 * nbits + 16; done += 32, at += 4 * nbits) { \
            __m256i words[2]; \
            MB_PREFETCH(src + at, MB_AHEAD_NBYTES); \
            for (unsigned half = 0; half < 2; half++) { \
                const uint8_t *from = src + at + half * nbits; \
                __m256i bytes = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)from)); \
                bytes = _mm256_inserti128_si256(bytes, _mm_loadu_si128((const __m128i *)(const void *)(from + 2 * nbits)), 1); \
                words[half] = lower_by(_mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, picks), raises), lower); \
            } \
            _mm256_storeu_si256((__m256i *)(void *)(dst + done), narrow(words[0], words[1])); \
        } \
        tail(dst + done, src + at, count - done, nbits); \
    }

MB_DEFINE_UNPACK_AVX2(mb_unpack_more_avx2, mb_unpack_bits, _mm256_srl_epi16, _mm256_packus_epi16)
MB_DEFINE_UNPACK_AVX2(mb_unpack_signed_avx2, mb_unpack_signed, _mm256_sra_epi16, _mm256_packs_epi16)

/* Of one bit, a comparison with the bit in its place is enough: a third of the instructions. */
MB_TARGET_AVX2 MB_KERNEL void mb_unpack_bits_avx2(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits) {
    const __m256i picks = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i own = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    uint64_t done = 0;
    if (nbits != 1) {
        mb_unpack_more_avx2(dst, src, count, nbits);
        return;
    }
    for (; count - done >= 32; done += 32) {
        MB_PREFETCH(src + done / 8, MB_AHEAD_NBYTES);
        const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)mb_load_u32(src + done / 8)), picks);
        const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own), own);
        _mm256_storeu_si256((__m256i *)(void *)(dst + done), _mm256_abs_epi8(is_set));
    }
    mb_unpack_bits(dst + done, src + done / 8, count - done, 1);
}

/* -------------------------------------------------------------------------------------------------------- pack, AVX2 */

/* 32 elements a round. Two multiplications with additions join neighbours to 2n bits in words and 4n in double words; a shift
 * joins those to 8n bits, n bytes, in quadruple words, and a shuffle gathers the 2n bytes of each half. The 16 bytes that
 * are stored for them reach past the round, so rounds end while that many are left in dst. `most` gathers what the range
 * check of the plain kernel looks at; the legal range is that of nbits or smaller, so masking is right where nothing is
 * outside, and where something is, dst does not matter. */
MB_TARGET_AVX2 MB_STEP uint64_t mb_pack_rounds_avx2(uint8_t *dst, const uint8_t *src, uint64_t count, uint8_t shift, uint8_t *most, const unsigned nbits) {
    const uint64_t nbytes = mb_packed_nbytes(count, nbits);
    const __m256i shifts = _mm256_set1_epi8((char)shift), masks = _mm256_set1_epi8((char)((1 << nbits) - 1));
    const __m256i pairs = _mm256_set1_epi16((short)(1 | 256 << nbits)), fours = _mm256_set1_epi32(1 | 65536 << 2 * nbits);
    const __m256i lower = _mm256_set1_epi64x((1ll << 4 * nbits) - 1), upper = _mm256_set1_epi64x(((1ll << 4 * nbits) - 1) << 4 * nbits);
    uint8_t pick[16], lanes[32];
    uint64_t done = 0, at = 0;
    __m256i seen = _mm256_setzero_si256();
    for (unsigned k = 0; k < 16; k++) pick[k] = (uint8_t)(k < 2 * nbits ? k / nbits * 8 + k % nbits : 0x80u);
    const __m256i picks = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)pick));
    for (; count - done >= 32 && nbytes - at >= 2 * nbits + 16; done += 32, at += 4 * nbits) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(src + done));
        MB_ONCE();
        seen = _mm256_max_epu8(seen, _mm256_add_epi8(v, shifts));
        if (nbits == 1) {
            const uint32_t bits = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(v, 7));
            memcpy(dst + at, &bits, 4);
            continue;
        }
        v = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(v, masks), pairs), fours);
        v = _mm256_or_si256(_mm256_and_si256(v, lower), _mm256_and_si256(_mm256_srli_epi64(v, (int)(32 - 4 * nbits)), upper));
        v = _mm256_shuffle_epi8(v, picks);
        _mm_storeu_si128((__m128i *)(void *)(dst + at), _mm256_castsi256_si128(v));
        _mm_storeu_si128((__m128i *)(void *)(dst + at + 2 * nbits), _mm256_extracti128_si256(v, 1));
    }
    _mm256_storeu_si256((__m256i *)(void *)lanes, seen);
    for (unsigned k = 0; k < 32; k++) *most = lanes[k] > *most ? lanes[k] : *most;
    return done;
}

/* The plain kernel finds an element out of range again and reports it; if the element has changed by then, it packs
 * all. */
MB_TARGET_AVX2 MB_KERNEL mb_status mb_pack_bits_avx2(uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits, int lo, int hi, bool is_signed, mb_error *error) {
    const uint8_t shift = (uint8_t)(0 - lo), span = (uint8_t)(hi - lo);
    uint8_t most = 0;
    uint64_t done = 0;
    MB_FOR_ALL_WIDTHS(1, 2, 3, 4, 6);
    switch (nbits) { /* each with its masks and shifts as constants */
    case 1: done = mb_pack_rounds_avx2(dst, src, count, shift, &most, 1); break;
    case 2: done = mb_pack_rounds_avx2(dst, src, count, shift, &most, 2); break;
    case 3: done = mb_pack_rounds_avx2(dst, src, count, shift, &most, 3); break;
    case 4: done = mb_pack_rounds_avx2(dst, src, count, shift, &most, 4); break;
    case 6: done = mb_pack_rounds_avx2(dst, src, count, shift, &most, 6); break;
    }
    if (most > span) return mb_pack_bits(dst, src, count, nbits, lo, hi, is_signed, error);
    const mb_status status = mb_pack_bits(dst + done / 8 * nbits, src + done, count - done, nbits, lo, hi, is_signed, error);
    if (status != MB_OK) error->offset += done, error->expected += done;
    return status;
}

#endif
#endif
