/* kernels/prune_blocks.h: blocks of neighbours are kept or become zero together, by the sum of their squares.
 *
 * Sums are taken in the steps of NumPy, so that the same blocks are kept: where neighbours are apart in memory, one is added
 * after the other, rounded to the dtype each time; where they are next to each other, pairwise in float32, rounded at the end. */
#ifndef MILBLOB_PRUNE_BLOCKS_H
#define MILBLOB_PRUNE_BLOCKS_H

#include "milblob/kernels.h"

#define MB_BLOCKS_AT_ONCE 2048u /* elements: a multiple of 8 and of MB_LANES; few enough for the cache */
#define MB_PAIRWISE_MOST 128u   /* elements that NumPy adds in eight lanes; of more than these it adds the halves */

/* Elements as [outer][channels][inner]: every m of the channels, 1 or more, are a block; the last one may be shorter, as if
 * it were filled up with zeros. */
typedef struct mb_blocks {
    uint64_t outer, channels, inner, m;
} mb_blocks;

MB_STEP uint64_t mb_blocks_groups(const mb_blocks *shape) { return shape->channels / shape->m + (shape->channels % shape->m != 0); }

MB_STEP float mb_pairwise_few(const float *x, const uint64_t n) {
    float sum = 0, lanes[8];
    size_t i = 0;
    if (n >= 8) {
        for (unsigned k = 0; k < 8; k++) lanes[k] = x[k];
        for (i = 8; i + 8 <= (size_t)n; i += 8)
            for (unsigned k = 0; k < 8; k++) lanes[k] += x[i + k];
        sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
    for (; i < (size_t)n; i++) sum += x[i];
    return sum;
}

/* The sum of n squares, of which the first `there` are of elements and the others zero. Calls itself at most 57 times deep. */
static inline float mb_pairwise_squares(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t there, uint64_t n) {
    if (n > MB_PAIRWISE_MOST) {
        const uint64_t half = n / 2 - n / 2 % 8, own = there < half ? there : half;
        const float first = mb_pairwise_squares(tier, src, is_f16, own, half);
        return first + mb_pairwise_squares(tier, src + own * (is_f16 ? 2 : 4), is_f16, there - own, n - half);
    }
    float squares[MB_PAIRWISE_MOST];
    tier->square[is_f16](squares, src, there);
    for (size_t i = (size_t)there; i < (size_t)n; i++) squares[i] = 0;
    return mb_pairwise_few(squares, n);
}

MB_STEP void mb_put_sum(uint8_t *sums, uint64_t i, float sum, bool is_f16) {
    if (is_f16) mb_put_f16(sums, (size_t)i, sum);
    else mb_put_f32(sums, (size_t)i, sum);
}

/* Blocks that are next to each other, `channels` elements in all. */
static inline void mb_blocks_along(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t channels, uint64_t m, uint8_t *sums) {
    float squares[MB_BLOCKS_AT_ONCE];
    const uint64_t size = is_f16 ? 2 : 4, step = MB_BLOCKS_AT_ONCE / m * m;
    if (m > MB_PAIRWISE_MOST) {
        for (uint64_t begin = 0; begin < channels; begin += m)
            mb_put_sum(sums, begin / m, mb_pairwise_squares(tier, src + begin * size, is_f16, channels - begin < m ? channels - begin : m, m), is_f16);
        return;
    }
    for (uint64_t begin = 0; begin < channels; begin += step) {
        const uint64_t there = channels - begin < step ? channels - begin : step, blocks = (there + m - 1) / m;
        tier->square[is_f16](squares, src + begin * size, there);
        for (uint64_t i = there; i < blocks * m; i++) squares[i] = 0;
        if (m == 4)
            for (uint64_t i = 0; i < blocks; i++) mb_put_sum(sums, begin / 4 + i, ((squares[4 * i] + squares[4 * i + 1]) + squares[4 * i + 2]) + squares[4 * i + 3], is_f16);
        else
            for (uint64_t i = 0; i < blocks; i++) mb_put_sum(sums, begin / m + i, mb_pairwise_few(squares + i * m, m), is_f16);
    }
}

/* Sum the squares of each block.
 * in   src: outer * channels * inner elements, any alignment
 * out  sums: [outer][blocks of the channels][inner], in the dtype of the elements, any alignment; infinite where they overflow
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_block_sums(const mb_tier *tier, const uint8_t *src, bool is_f16, const mb_blocks *shape, uint8_t *sums) {
    const uint64_t size = is_f16 ? 2 : 4, groups = mb_blocks_groups(shape), m = shape->m, inner = shape->inner;
    if (inner == 1) {
        const bool is_whole = shape->channels % m == 0; /* then all rows are one */
        const uint64_t channels = is_whole ? shape->outer * shape->channels : shape->channels, rows = is_whole ? 1 : shape->outer;
        for (uint64_t row = 0; row < rows; row++) mb_blocks_along(tier, src + row * channels * size, is_f16, channels, m, sums + row * groups * size);
        return;
    }
    memset(sums, 0, (size_t)(shape->outer * groups * inner * size));
    for (uint64_t outer = 0; outer < shape->outer; outer++)
        for (uint64_t group = 0; group < groups; group++)
            for (uint64_t at = 0; at < inner; at += MB_BLOCKS_AT_ONCE) {
                const uint64_t count = inner - at < MB_BLOCKS_AT_ONCE ? inner - at : MB_BLOCKS_AT_ONCE;
                const uint64_t end = shape->channels - group * m < m ? shape->channels : (group + 1) * m;
                for (uint64_t channel = group * m; channel < end; channel++)
                    tier->add_squares[is_f16](sums + ((outer * groups + group) * inner + at) * size, src + ((outer * shape->channels + channel) * inner + at) * size, count);
            }
}

/* Count the elements of blocks by the sum of their block, finite or not: by its upper 15 bits (all of it, for float16); or
 * (`is_below`, float32) those whose sum has `top` there, by its lower 16.
 * in   sums: as mb_block_sums writes them      out  counts: MB_MAGNITUDES (below: 65536), added to
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_block_count(const uint8_t *sums, bool is_f16, const mb_blocks *shape, bool is_below, uint32_t top, uint64_t *counts) {
    const uint64_t groups = mb_blocks_groups(shape);
    size_t i = 0;
    for (uint64_t outer = 0; outer < shape->outer; outer++)
        for (uint64_t group = 0; group < groups; group++) {
            const uint64_t left = shape->channels - group * shape->m, there = left < shape->m ? left : shape->m;
            const size_t end = i + (size_t)shape->inner;
            if (is_below) {
                for (; i < end; i++) {
                    const uint32_t sum = mb_magnitude(sums, i, false);
                    if (sum >> 16 == top) counts[sum & 0xffffu] += there;
                }
            } else if (is_f16) {
                for (; i < end; i++) counts[mb_magnitude(sums, i, true)] += there;
            } else {
                for (; i < end; i++) counts[mb_magnitude(sums, i, false) >> 16] += there;
            }
        }
}

/* Flags to bits, eight to a byte, least significant first. flags: 0 or 1, zero up to the next multiple of eight. */
MB_STEP uint64_t mb_flags_pack(const uint8_t *flags, uint64_t count, uint8_t *mask) {
    uint64_t ones = 0;
    for (size_t i = 0; i < (size_t)count; i += 8) {
        uint64_t eight = 0;
        for (unsigned k = 0; k < 8; k++) eight |= (uint64_t)flags[i + k] << (8 * k);
        mask[i / 8] = (uint8_t)(eight * 0x0102040810204080u >> 56);
        ones += eight * 0x0101010101010101u >> 56;
    }
    return ones;
}

/* Which elements stay: those that are not zero, of the blocks whose sum has more than the bits `cut`.
 * in   src, sums: as of mb_block_sums
 * out  mask: a bit for each element, least significant first; bits beyond them are zero
 * returns how many stay      over-reads: none      fails: never                                                         */
MB_KERNEL uint64_t mb_block_mask(const uint8_t *src, bool is_f16, const mb_blocks *shape, const uint8_t *sums, uint32_t cut, uint8_t *mask) {
    uint8_t flags[MB_BLOCKS_AT_ONCE];
    const uint64_t groups = mb_blocks_groups(shape), inner = shape->inner, size = is_f16 ? 2 : 4;
    const int16_t cut16 = (int16_t)(cut < 0x7fff ? cut : 0x7fff);
    uint64_t ones = 0, done = 0;
    size_t used = 0;
    if (inner == 0) return 0;
    for (uint64_t outer = 0; outer < shape->outer; outer++)
        for (uint64_t channel = 0, run; channel < shape->channels; channel += inner == 1 ? run : 1) {
            const uint64_t block = outer * groups + channel / shape->m, left = shape->channels - channel;
            run = inner > 1 ? inner : left < shape->m ? left : shape->m; /* elements in a row, each with its sum or all with one */
            const uint32_t own = mb_magnitude(sums, (size_t)(block * inner), is_f16);
            for (uint64_t at = 0; at < run;) {
                const size_t room = MB_BLOCKS_AT_ONCE - used, n = run - at < room ? (size_t)(run - at) : room;
                const uint8_t *x = src + (done + used) * size, *s = sums + (block * inner + at) * size;
                uint8_t *flag = flags + used;
                if (inner == 1)
                    for (size_t i = 0; i < n; i++) flag[i] = (uint8_t)((mb_magnitude(x, i, is_f16) > 0) & (own > cut));
                else if (is_f16)
                    for (size_t i = 0; i < n; i++) flag[i] = (uint8_t)(((int16_t)(mb_load_u16(x + 2 * i) & 0x7fff) > 0) & ((int16_t)(mb_load_u16(s + 2 * i) & 0x7fff) > cut16));
                else
                    for (size_t i = 0; i < n; i++) flag[i] = (uint8_t)(((int32_t)mb_magnitude(x, i, false) > 0) & ((int32_t)mb_magnitude(s, i, false) > (int32_t)(cut & 0x7fffffff)));
                used += n, at += n;
                if (used < MB_BLOCKS_AT_ONCE) continue;
                ones += mb_flags_pack(flags, used, mask + done / 8);
                done += used, used = 0;
            }
        }
    for (size_t i = used; i % 8 != 0; i++) flags[i] = 0;
    return ones + mb_flags_pack(flags, used, mask + done / 8);
}

/* Elements whose bit is set, and zeros for the others. dst may be src; both have room for count elements, a multiple of 8. */
#define MB_DEFINE_CHOOSE(name, type, size, LOAD, STORE) \
    MB_STEP void name(uint8_t *dst, const uint8_t *src, const uint8_t *chosen, size_t count) { \
        static const type lanes[8] = {1, 2, 4, 8, 16, 32, 64, 128}; \
        for (size_t i = 0; i < count; i += 8) \
            for (unsigned k = 0; k < 8; k++) STORE(dst + size * (i + k), (type)(LOAD(src + size * (i + k)) & ((chosen[i / 8] & lanes[k]) == lanes[k] ? (type)~(type)0 : 0))); \
    }

MB_DEFINE_CHOOSE(mb_choose_16, uint16_t, 2, mb_load_u16, mb_store_u16)
MB_DEFINE_CHOOSE(mb_choose_32, uint32_t, 4, mb_load_u32, mb_store_u32)

/* Keep the elements whose bit is set in a mask, and measure the others.
 * in   src: count elements, any alignment; each is read once; chosen: (count + 7) / 8 bytes
 * out  mask, kept: as of mb_split_kernel; a chosen element that is zero is not kept; sums: added to; `power` is that of the
 *      kept elements only
 * returns how many are kept      over-reads: none      fails: never                                                    */
MB_KERNEL uint64_t mb_split_chosen(const mb_tier *tier, const uint8_t *src, uint64_t count, bool is_f16, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    uint8_t wide[4 * MB_BLOCKS_AT_ONCE], half[2 * MB_BLOCKS_AT_ONCE], bits[MB_BLOCKS_AT_ONCE / 8];
    uint8_t *raw = is_f16 ? half : wide;
    const size_t size = is_f16 ? 2 : 4;
    uint64_t found = 0;
    for (uint64_t begin = 0; begin < count; begin += MB_BLOCKS_AT_ONCE) {
        const size_t n = count - begin < MB_BLOCKS_AT_ONCE ? (size_t)(count - begin) : MB_BLOCKS_AT_ONCE, whole = (n + MB_LANES - 1) / MB_LANES * MB_LANES;
        mb_cast_counts counts = {0, 0, 0};
        memset(bits, 0, sizeof bits), memcpy(bits, chosen + begin / 8, (n + 7) / 8);
        memcpy(raw, src + begin * size, n * size), memset(raw + n * size, 0, (whole - n) * size);
        MB_ONCE(); /* a source may change: what is measured is what is not kept */
        if (is_f16) tier->cast[MB_CAST_F16_F32](wide, raw, whole, false, &counts);
        tier->measure(wide, whole, bits, is_f16, sums);
        if (is_f16) mb_choose_16(raw, raw, bits, whole);
        else mb_choose_32(raw, raw, bits, whole);
        found += tier->split[is_f16](raw, n, 0, mask + begin / 8, kept + found * size, sums); /* of float32, it adds to the power */
    }
    return found;
}

#endif
