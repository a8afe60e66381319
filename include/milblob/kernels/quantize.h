/* kernels/quantize.h: linear quantization of an array, any range of it: the range of each block, the integers, the error.
 *
 * A grid (decode.h) maps an element to its block; a block has one scale and one zero. */
#ifndef MILBLOB_QUANTIZE_H
#define MILBLOB_QUANTIZE_H

#include "milblob/kernels/decode.h"

enum { MB_QUANTIZE_COUNT = 16384 }; /* elements; they remain in the cache between the two passes */

/* Widen the range of each block by the next count elements of a grid; src: the first of them. */
static inline void mb_quantize_ranges_on(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t count, mb_grid *grid, float *least, float *most) {
    while (count > 0) {
        uint64_t index, run;
        const uint64_t taken = mb_grid_runs(grid, count, &index, &run);
        tier->range[is_f16](src, taken, run, least + index, most + index);
        src += (is_f16 ? 2 : 4) * taken, count -= taken;
    }
}

/* Widen the range of each block by elements [begin, begin + count).
 * in   src: elements, float16 or float32, any alignment; the grid's product of sizes is at least begin + count
 * out  least, most: one of each per parameter of the grid, -0 and 0 at first; not finite if an element is not
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_quantize_ranges(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t begin, uint64_t count, mb_grid *grid, float *least, float *most) {
    mb_grid_seek(grid, begin);
    mb_quantize_ranges_on(tier, src + (is_f16 ? 2 : 4) * begin, is_f16, count, grid, least, most);
}

/* How many of count elements are not finite. */
MB_KERNEL uint64_t mb_count_not_finite(const uint8_t *src, bool is_f16, uint64_t count) {
    const uint64_t most = MB_QUANTIZE_COUNT; /* few enough for a counter of 16 bits */
    uint64_t bad = 0;
    for (uint64_t begin = 0; begin < count; begin += most) {
        const size_t n = (size_t)(count - begin < most ? count - begin : most);
        uint16_t narrow = 0;
        uint32_t wide = 0;
        if (is_f16)
            for (size_t i = 0; i < n; i++) narrow = (uint16_t)(narrow + ((mb_load_u16(src + 2 * (begin + i)) & 0x7c00u) == 0x7c00u));
        else
            for (size_t i = 0; i < n; i++) wide += (mb_load_u32(src + 4 * (begin + i)) & 0x7f800000u) == 0x7f800000u;
        bad += narrow + wide;
    }
    return bad;
}

/* What a range becomes where a step of mb_quantize_scales overflows: the same formulas in doubles. */
static inline void mb_quantize_scale_wide(double low, double high, bool is_f16, const mb_integers *to, float *scale, float *zero) {
    const double at = (to->least * high - to->most * low) / (high - low);
    *scale = (float)((high - low) / (to->most - to->least));
    if (is_f16) *scale = mb_to_half(*scale);
    if (to->is_linear) *zero = (float)mb_quantize_at(at < -4096 ? -4096.0f : at > 4096 ? 4096.0f : (float)at, 0, to->least, to->most);
}

/* The scale and the zero of each range: coremltools' formulas, each step rounded to the dtype of the elements. -0 is 0.
 * in   least, most: count of each      out  scale, zero: likewise
 * returns whether all ranges are finite      over-reads: none      fails: never                                          */
MB_KERNEL bool mb_quantize_scales(const mb_tier *tier, const float *least, const float *most, uint64_t count, bool is_f16, const mb_integers *to, float *scale, float *zero) {
    const float lowest = (float)to->least, highest = (float)to->most, steps = highest - lowest, middle = to->least < 0 ? 0 : (float)(to->most / 2);
    float low[MB_PARAMETERS], high[MB_PARAMETERS], width[MB_PARAMETERS], at[MB_PARAMETERS], other[MB_PARAMETERS];
    uint8_t halves[2 * MB_PARAMETERS];
    mb_cast_counts counts = {0, 0, 0};
    uint32_t bad = 0;
#define MB_ROUND(values) \
    do { \
        if (is_f16) tier->cast[MB_CAST_F32_F16](halves, (const uint8_t *)(values), n, false, &counts), tier->cast[MB_CAST_F16_F32]((uint8_t *)(values), halves, n, false, &counts); \
    } while (0)
    for (uint64_t n; count > 0; count -= n, least += n, most += n, scale += n, zero += n) {
        n = mb_least(count, MB_PARAMETERS);
        for (size_t i = 0; i < n; i++) bad |= (uint32_t)((mb_bits_of(least[i]) & 0x7f800000u) == 0x7f800000u) | (uint32_t)((mb_bits_of(most[i]) & 0x7f800000u) == 0x7f800000u);
        memcpy(low, least, n * sizeof *low), memcpy(high, most, n * sizeof *high);
        MB_ROUND(low);
        MB_ROUND(high);
        for (size_t i = 0; i < n && to->is_linear; i++) low[i] = low[i] < 0 ? low[i] : 0.0f, high[i] = high[i] > 0 ? high[i] : 0.0f;
        for (size_t i = 0; i < n && !to->is_linear; i++) {
            const uint32_t a = mb_bits_of(low[i]) & 0x7fffffffu, b = mb_bits_of(high[i]) & 0x7fffffffu;
            high[i] = mb_float_of(a > b ? a : b), low[i] = 0.0f - high[i];
        }
        for (size_t i = 0; i < n; i++) width[i] = high[i] - low[i];
        MB_ROUND(width);
        for (size_t i = 0; i < n; i++) scale[i] = width[i] / steps, zero[i] = middle;
        MB_ROUND(scale);
        if (to->is_linear) {
            for (size_t i = 0; i < n; i++) at[i] = lowest * high[i], other[i] = highest * low[i];
            MB_ROUND(at);
            MB_ROUND(other);
            for (size_t i = 0; i < n; i++) at[i] = at[i] - other[i];
            MB_ROUND(at);
            for (size_t i = 0; i < n; i++) at[i] = at[i] / width[i];
            MB_ROUND(at);
            for (size_t i = 0; i < n; i++) zero[i] = (float)mb_clip(mb_quantize_at(at[i], 0, -4096, 4096), to->least, to->most);
        }
        for (size_t i = 0; i < n; i++) /* rare: the width or a product overflows */
            if (!(scale[i] - scale[i] == 0) || (to->is_linear && at[i] != at[i] && high[i] > low[i])) mb_quantize_scale_wide(low[i], high[i], is_f16, to, scale + i, zero + i);
    }
#undef MB_ROUND
    return bad == 0;
}

/* Sum of squares times weights. */
MB_STEP double mb_weighted_squares(const float *x, const float *weights, uint64_t count) {
    double lanes[8] = {0};
    for (uint64_t i = 0; i < count; i++) lanes[i & 7] += (double)x[i] * (double)x[i] * (double)weights[i];
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Sum of the squares of at most MB_LANES numbers, added as mb_sum_lanes adds those of one for each lane. */
MB_STEP double mb_few_squares(const float *x, unsigned count) {
    double lanes[MB_LANES];
    unsigned left = 1;
    while (left < count) left *= 2;
    for (unsigned k = 0; k < left; k++) lanes[k] = k < count ? (double)x[k] * (double)x[k] : 0;
    while (left > 1) {
        left /= 2;
        for (unsigned k = 0; k < left; k++) lanes[k] += lanes[k + left];
    }
    return lanes[0];
}

/* Quantize the next count elements of a grid; src: the first of them. */
static inline void mb_quantize_on(const mb_tier *tier, uint8_t *dst, bool is_packed, const uint8_t *src, bool is_f16, uint64_t count, mb_grid *grid,
                                  const float *scale, const float *zero, const mb_integers *to, mb_sums *sums) {
    uint8_t bytes[MB_CHUNK];
    const bool packs = is_packed && to->nbits < 8;
    mb_error ignored; /* no integer has more bits than it may */
    for (uint64_t n; count > 0; count -= n) {
        n = mb_least(count, MB_CHUNK);
        for (uint64_t done = 0; done < n;) {
            uint64_t index, run;
            const uint64_t taken = mb_grid_runs(grid, n - done, &index, &run);
            tier->quantize[is_f16]((packs ? bytes : dst) + done, NULL, src, taken, scale + index, zero + index, run, to, sums);
            src += (is_f16 ? 2 : 4) * taken, done += taken;
        }
        if (packs) tier->pack(dst, bytes, n, to->nbits, 0, (1 << to->nbits) - 1, false, &ignored);
        dst += packs ? mb_packed_nbytes(n, to->nbits) : n;
    }
}

/* Quantize elements [begin, begin + count).
 * in   as mb_quantize_ranges, all finite; scale, zero: one of each per parameter
 * out  dst: count bytes, the low bits of the integers, or with `is_packed` to->nbits each; sums: added to
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_quantize(const mb_tier *tier, uint8_t *dst, bool is_packed, const uint8_t *src, bool is_f16, uint64_t begin, uint64_t count, mb_grid *grid,
                           const float *scale, const float *zero, const mb_integers *to, mb_sums *sums) {
    mb_grid_seek(grid, begin);
    mb_quantize_on(tier, dst, is_packed, src + (is_f16 ? 2 : 4) * begin, is_f16, count, grid, scale, zero, to, sums);
}

/* The squared errors of blocks of run elements, at most MB_LANES: all are quantized together, each element with a scale of its own.
 * taken: elements, at most MB_CHUNK; scale, zero, errors: one per block                                                 */
static inline void mb_few_errors(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t taken, uint64_t run, const float *scale, const float *zero,
                                 const mb_integers *to, const float *weights, double *errors) {
    uint8_t bytes[MB_CHUNK];
    float off[MB_CHUNK], scales[MB_CHUNK], zeros[MB_CHUNK];
    mb_sums ignored;
    memset(&ignored, 0, sizeof ignored);
    for (size_t i = 0, k = 0; run > 1 && i < (size_t)taken; i += (size_t)run, k++)
        for (size_t j = i; j < i + (size_t)run && j < (size_t)taken; j++) scales[j] = scale[k], zeros[j] = zero[k];
    tier->quantize[is_f16](bytes, off, src, taken, run > 1 ? scales : scale, run > 1 ? zeros : zero, 1, to, &ignored);
    if (run == 1 && weights == NULL) { /* the loop below, vectorized */
        for (size_t i = 0; i < (size_t)taken; i++) errors[i] += (double)off[i] * (double)off[i];
        return;
    }
    for (uint64_t i = 0, n; i < taken; i += n, errors++) {
        n = mb_least(run, taken - i);
        *errors += weights == NULL ? mb_few_squares(off + i, (unsigned)n) : mb_weighted_squares(off + i, weights + i, n);
    }
}

/* The squared error of each block, without the integers.
 * in   as mb_quantize; weights: as many as elements, or NULL      out  errors: one per parameter, added to               */
MB_KERNEL void mb_quantize_errors(const mb_tier *tier, const uint8_t *src, bool is_f16, uint64_t begin, uint64_t count, mb_grid *grid,
                                  const float *scale, const float *zero, const mb_integers *to, const float *weights, double *errors) {
    uint8_t bytes[MB_CHUNK];
    float off[MB_CHUNK];
    src += (is_f16 ? 2 : 4) * begin;
    mb_grid_seek(grid, begin);
    for (uint64_t done = 0; done < count;) {
        uint64_t index, run;
        const uint64_t taken = mb_grid_runs(grid, mb_least(count - done, MB_CHUNK), &index, &run);
        if (run <= MB_LANES) mb_few_errors(tier, src, is_f16, taken, run, scale + index, zero + index, to, weights == NULL ? NULL : weights + begin + done, errors + index);
        for (uint64_t i = 0, n; run > MB_LANES && i < taken; i += n, index++) {
            mb_sums sums;
            memset(&sums, 0, sizeof sums);
            n = mb_least(run, taken - i);
            tier->quantize[is_f16](bytes, off, src + (is_f16 ? 2 : 4) * i, n, scale + index, zero + index, n, to, &sums);
            errors[index] += weights == NULL ? mb_sum_lanes(sums.squared) : mb_weighted_squares(off, weights + begin + done + i, n);
        }
        src += (is_f16 ? 2 : 4) * taken, done += taken;
    }
}

/* How many units mb_quantize_blocks takes at a time: an even number, so that four bits of each fill whole bytes. */
static inline uint64_t mb_quantize_units(uint64_t unit) { return unit <= MB_QUANTIZE_COUNT / 4 ? MB_QUANTIZE_COUNT / unit / 2 * 2 : 2; }

/* Quantize elements [begin, begin + count), whose blocks are complete and lie among them: each is read from memory once.
 * unit: elements after which no block goes on, with unit_parameters blocks; begin and count are multiples of it
 * in   as mb_quantize_ranges; spare: 4 * mb_quantize_units(unit) * unit_parameters floats
 * out  dst: as mb_quantize; scale: one per block, of the dtype of the elements; zero: NULL, or a byte per block, with
 *      `is_packed` to->nbits; sums: added to
 * returns whether all elements are finite; if not, it has stopped      over-reads: none      fails: never              */
MB_KERNEL bool mb_quantize_blocks(const mb_tier *tier, uint8_t *dst, bool is_packed, const uint8_t *src, bool is_f16, uint64_t begin, uint64_t count, uint64_t unit, uint64_t unit_parameters,
                                  mb_grid *grid, const mb_integers *to, float *spare, uint8_t *scale, uint8_t *zero, mb_sums *sums) {
    const uint64_t step = mb_quantize_units(unit) * unit, room = mb_quantize_units(unit) * unit_parameters;
    const unsigned size = is_f16 ? 2 : 4;
    const bool packs = is_packed && to->nbits < 8;
    float *const least = spare, *const most = least + room, *const scales = most + room, *const zeros = scales + room;
    mb_cast_counts counts = {0, 0, 0};
    mb_error ignored;
    uint8_t bytes[MB_CHUNK];
    src += size * begin;
    mb_grid_seek(grid, begin);
    mb_grid own = *grid;
    for (uint64_t done = 0, n; done < count; done += n) {
        n = mb_least(step, count - done);
        const uint64_t parameters = n / unit * unit_parameters;
        for (size_t i = 0; i < (size_t)parameters; i++) least[i] = mb_float_of(0x80000000u), most[i] = 0;
        grid->index = own.index = 0; /* blocks are counted from the first of these */
        mb_quantize_ranges_on(tier, src, is_f16, n, grid, least, most);
        if (!mb_quantize_scales(tier, least, most, parameters, is_f16, to, scales, zeros)) return false;
        mb_quantize_on(tier, dst, is_packed, src, is_f16, n, &own, scales, zeros, to, sums);
        if (is_f16) tier->cast[MB_CAST_F32_F16](scale, (const uint8_t *)scales, parameters, false, &counts);
        else memcpy(scale, scales, 4 * (size_t)parameters);
        for (uint64_t i = 0, some; zero != NULL && i < parameters; i += some) {
            some = mb_least(parameters - i, MB_CHUNK);
            uint8_t *to_zero = packs ? bytes : zero;
            for (size_t k = 0; k < (size_t)some; k++) to_zero[k] = (uint8_t)((uint32_t)(int32_t)zeros[i + k] & ((1u << to->nbits) - 1));
            if (packs) tier->pack(zero, bytes, some, to->nbits, 0, (1 << to->nbits) - 1, false, &ignored);
            zero += packs ? mb_packed_nbytes(some, to->nbits) : some;
        }
        src += size * n, dst += packs ? mb_packed_nbytes(n, to->nbits) : n, scale += size * parameters;
    }
    return true;
}

#endif
