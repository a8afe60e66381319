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

/* The sum of n squares: of the first `there` elements; the others are zero. Calls itself at most 57 times deep. */
static inline float mb_pairwise_squares(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t there, uint64_t n) {
    if (there == 0) return 0; /* or a block that is longer than its channels would take time for each element that is not there */
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

/* Store sums in the dtype of the elements. */
static inline void mb_put_sums(const mb_tier *tier, uint8_t *sums, const float *found, uint64_t count, bool is_f16) {
    mb_cast_counts counts = {0, 0, 0};
    if (is_f16) tier->cast[MB_CAST_F32_F16](sums, (const uint8_t *)found, count, false, &counts);
    else memcpy(sums, found, 4 * (size_t)count);
}

/* The sums of few numbers each, `count` of them; squares: count * m. */
MB_STEP void mb_pairwise_rows(float *MB_RESTRICT found, const float *MB_RESTRICT squares, uint64_t count, const uint64_t m) {
    for (size_t i = 0; i < (size_t)count; i++) found[i] = mb_pairwise_few(squares + i * m, m);
}

/* Blocks that are next to each other, `channels` elements in all. */
static inline void mb_blocks_along(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t channels, uint64_t m, uint8_t *sums) {
    float squares[MB_BLOCKS_AT_ONCE], found[MB_BLOCKS_AT_ONCE];
    const uint64_t size = is_f16 ? 2 : 4, step = MB_BLOCKS_AT_ONCE / m * m;
    if (m > MB_PAIRWISE_MOST) {
        for (uint64_t begin = 0; begin < channels; begin += m) {
            const float sum = mb_pairwise_squares(tier, src + begin * size, is_f16, channels - begin < m ? channels - begin : m, m);
            mb_put_sums(tier, sums + begin / m * size, &sum, 1, is_f16);
        }
        return;
    }
    for (uint64_t begin = 0; begin < channels; begin += step) {
        const uint64_t there = channels - begin < step ? channels - begin : step, blocks = (there + m - 1) / m;
        tier->square[is_f16](squares, src + begin * size, there);
        for (uint64_t i = there; i < blocks * m; i++) squares[i] = 0;
        if (m == 4)
            for (size_t i = 0; i < (size_t)blocks; i++) found[i] = ((squares[4 * i] + squares[4 * i + 1]) + squares[4 * i + 2]) + squares[4 * i + 3];
        else if (m == 8) mb_pairwise_rows(found, squares, blocks, 8);
        else if (m == 16) mb_pairwise_rows(found, squares, blocks, 16);
        else if (m == 32) mb_pairwise_rows(found, squares, blocks, 32);
        else mb_pairwise_rows(found, squares, blocks, m);
        mb_put_sums(tier, sums + begin / m * size, found, blocks, is_f16);
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

/* Clear bits [at, at + count) of a mask unless they are set in `bits` too. */
static inline void mb_mask_and(uint8_t *mask, uint64_t at, const uint8_t *bits, uint64_t count) {
    const unsigned shift = at % 8;
    uint8_t *const to = mask + at / 8;
    uint32_t before = (1u << shift) - 1; /* bits that go to the next byte; those before the first are kept */
    size_t i = 0;
    if (shift == 0)
        for (; 8 * (i + 1) <= count; i++) to[i] &= bits[i];
    for (; 8 * (uint64_t)i < count + shift; i++) {
        const uint32_t there = 8 * (uint64_t)i < count ? bits[i] : 0, all = before | there << shift;
        const uint64_t left = count + shift - 8 * (uint64_t)i;
        to[i] &= (uint8_t)(all | (left < 8 ? 0xffu << left : 0));
        before = all >> 8;
    }
}

/* Clear the bits of blocks next to each other that are not above: blocks of m bits but for the last of each row. */
static inline void mb_mask_blocks(uint8_t *mask, const mb_tier *tier, const uint8_t *sums, bool is_f16, const mb_blocks *shape, uint32_t cut) {
    static const uint16_t spread[16] = {0, 0xf, 0xf0, 0xff, 0xf00, 0xf0f, 0xff0, 0xfff, 0xf000, 0xf00f, 0xf0f0, 0xf0ff, 0xff00, 0xff0f, 0xfff0, 0xffff};
    uint8_t above[MB_BLOCKS_AT_ONCE / 8];
    const uint64_t m = shape->m, groups = mb_blocks_groups(shape), blocks = shape->outer * groups, count = shape->outer * shape->channels;
    const uint64_t short_by = groups * m - shape->channels;
    uint64_t word = 0, at = 0, group = 0;
    uint32_t used = 0;
    for (uint64_t begin = 0; begin < blocks; begin += MB_BLOCKS_AT_ONCE) {
        const uint64_t n = blocks - begin < MB_BLOCKS_AT_ONCE ? blocks - begin : MB_BLOCKS_AT_ONCE;
        uint64_t i = 0;
        tier->above[is_f16](sums + (is_f16 ? 2 : 4) * begin, n, cut, above);
        if (m == 4 && short_by == 0)
            for (; i + 8 <= n; i += 8, at += 32) {
                const uint32_t some = above[i / 8];
                mb_store_u32(mask + at / 8, mb_load_u32(mask + at / 8) & ((uint32_t)spread[some & 15] | (uint32_t)spread[some >> 4] << 16));
            }
        for (; i < n; i++) {
            const uint32_t is_above = (uint32_t)above[i / 8] >> i % 8 & 1u;
            const bool is_last = ++group == groups;
            group = is_last ? 0 : group;
            for (uint64_t left = m - (is_last ? short_by : 0); left > 0;) {
                const uint32_t some = left < 32 - used ? (uint32_t)left : 32 - used;
                word |= (((uint64_t)is_above << some) - is_above) << used;
                used += some, left -= some;
                if (used < 32) continue;
                mb_store_u32(mask + at / 8, mb_load_u32(mask + at / 8) & (uint32_t)word);
                word = 0, used = 0, at += 32;
            }
        }
    }
    for (; at < count; at += 8, word >>= 8) mask[at / 8] &= (uint8_t)word;
}

/* Choose the elements to keep: those that are not zero, of the blocks whose sum has more than the bits `cut`.
 * in   src, sums: as of mb_block_sums
 * out  mask: a bit for each element, least significant first; bits beyond them are zero
 * returns how many are kept      over-reads: none      fails: never                                                  */
MB_KERNEL uint64_t mb_block_mask(const mb_tier *tier, const uint8_t *src, bool is_f16, const mb_blocks *shape, const uint8_t *sums, uint32_t cut, uint8_t *mask) {
    uint8_t above[MB_BLOCKS_AT_ONCE / 8];
    const uint64_t groups = mb_blocks_groups(shape), inner = shape->inner, m = shape->m, count = shape->outer * shape->channels * inner;
    tier->above[is_f16](src, count, 0, mask);
    if (inner == 1) mb_mask_blocks(mask, tier, sums, is_f16, shape, cut);
    for (uint64_t outer = 0; inner > 1 && outer < shape->outer; outer++)
        for (uint64_t group = 0; group < groups; group++) {
            const uint64_t end = shape->channels - group * m < m ? shape->channels : (group + 1) * m;
            for (uint64_t at = 0; at < inner; at += MB_BLOCKS_AT_ONCE) {
                const uint64_t n = inner - at < MB_BLOCKS_AT_ONCE ? inner - at : MB_BLOCKS_AT_ONCE;
                tier->above[is_f16](sums + ((outer * groups + group) * inner + at) * (is_f16 ? 2 : 4), n, cut, above);
                for (uint64_t channel = group * m; channel < end; channel++) mb_mask_and(mask, (outer * shape->channels + channel) * inner + at, above, n);
            }
        }
    return tier->ones(mask, count);
}

#endif
