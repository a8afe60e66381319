/* kernels/moments.h: count, extremes, sum, spread and special values of an array.
 *
 * Elements become float64 first. Those of 32 and 64 bits do so in blocks of MB_MOMENTS_BLOCK that fit into the first
 * cache: one loop over a block counts and sums, a second adds up the squared distances from the block's own mean, and
 * blocks are merged by the rule of Chan, Golub and LeVeque (1979), with compensated sums (Neumaier 1974). Nothing is ever
 * computed as the difference of two large sums, so a spread that is small compared with the mean is accurate too. Elements
 * of fewer bits come from a tally as (value, count); then the mean is known before distances are taken.
 *
 * Precision, with u = 2^-53 and only finite elements counted: |error of sum| <= 2^-45 * (sum of |x|);
 * relative error of the standard deviation <= 2^-44 * (1 + |mean| / deviation). From a tally both are 2^-50. Counts,
 * extremes and everything else are exact; int64 and uint64 keep their extremes as integers. A sum or spread that leaves
 * the range of float64 is infinite, as with NumPy.
 *
 * The loops are plain C in eight lanes with a fixed order: every tier gives the same bits. */
#ifndef MILBLOB_MOMENTS_H
#define MILBLOB_MOMENTS_H

#include "milblob/kernels/distinct.h"
#include "milblob/dtype.h"
#include "milblob/kernels/tally.h"

#define MB_MOMENTS_BLOCK 1024u

#define MB_F64_INF 0x7ff0000000000000u
#define MB_F64_ABS 0x7fffffffffffffffu
#define MB_F64_65520 0x40effe0000000000u /* the smallest magnitude that rounds to an infinity of float16 */

/* All zero but for least, most and smallest is an empty one: mb_moments_clear. */
typedef struct mb_moments {
    uint64_t count;              /* elements */
    uint64_t nan;
    uint64_t positive_infinite;
    uint64_t negative_infinite;
    uint64_t zeros;              /* of either sign */
    uint64_t negative_zeros;
    uint64_t subnormal;          /* not zero, and below the smallest normal number of the dtype */
    uint64_t overflow;           /* finite, and infinite in float16 */
    double sum, sum_low;         /* of the finite ones; sum_low is the rounding error of sum */
    double spread, spread_low;   /* sum of the squared distances of the finite ones from their mean */
    double least, most;          /* of the finite ones; infinity and minus infinity where there are none */
    double smallest;             /* the least magnitude that is not zero; infinity where there is none */
    int64_t least_whole;         /* extremes of int64; of uint64 less 2^63 */
    int64_t most_whole;
    uint64_t smallest_whole;     /* as smallest, of int64 and uint64; UINT64_MAX where there is none */
} mb_moments;

static inline double mb_f64_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t mb_f64_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void mb_moments_clear(mb_moments *m) {
    memset(m, 0, sizeof *m);
    m->least = m->smallest = mb_f64_of_bits(MB_F64_INF);
    m->most = -m->least;
    m->least_whole = INT64_MAX, m->most_whole = INT64_MIN, m->smallest_whole = UINT64_MAX;
}

/* sum + low += value; low holds what rounding loses (Neumaier). An infinite sum remains infinite. */
static inline void mb_add_exactly(double *sum, double *low, double value) {
    const double total = *sum + value;
    const bool sum_is_larger = (mb_f64_bits(*sum) & MB_F64_ABS) >= (mb_f64_bits(value) & MB_F64_ABS);
    if ((mb_f64_bits(total) & MB_F64_ABS) < MB_F64_INF)
        *low += sum_is_larger ? (*sum - total) + value : (value - total) + *sum;
    *sum = total;
}

static inline uint64_t mb_moments_finite(const mb_moments *m) { return m->count - m->nan - m->positive_infinite - m->negative_infinite; }

/* Add the moments of other elements. */
static inline void mb_moments_add(mb_moments *m, const mb_moments *other) {
    const double a = (double)mb_moments_finite(m), b = (double)mb_moments_finite(other);
    if (b > 0) {
        if (a > 0) {
            const double distance = (other->sum + other->sum_low) / b - (m->sum + m->sum_low) / a;
            mb_add_exactly(&m->spread, &m->spread_low, distance * distance * (a * (b / (a + b))));
        }
        mb_add_exactly(&m->spread, &m->spread_low, other->spread);
        mb_add_exactly(&m->sum, &m->sum_low, other->sum);
        m->spread_low += other->spread_low, m->sum_low += other->sum_low;
    }
    m->count += other->count, m->nan += other->nan, m->zeros += other->zeros, m->negative_zeros += other->negative_zeros;
    m->positive_infinite += other->positive_infinite, m->negative_infinite += other->negative_infinite;
    m->subnormal += other->subnormal, m->overflow += other->overflow;
    if (other->least < m->least) m->least = other->least;
    if (other->most > m->most) m->most = other->most;
    if (other->smallest < m->smallest) m->smallest = other->smallest;
    if (other->least_whole < m->least_whole) m->least_whole = other->least_whole;
    if (other->most_whole > m->most_whole) m->most_whole = other->most_whole;
    if (other->smallest_whole < m->smallest_whole) m->smallest_whole = other->smallest_whole;
}

/* float64 as an integer that is ordered as the numbers are, -0 before +0. It goes from -NaN, -infinity, -largest up to
 * largest, infinity, NaN. Turned by one of the constants, what is not finite lies at the end that a search for the least,
 * or the most, never takes: no condition is needed in the loop, which compilers would not make vectors of. */
MB_STEP uint64_t mb_f64_order(uint64_t bits) { return bits ^ ((0u - (bits >> 63)) & MB_F64_ABS); }
#define MB_TURN_LEAST 0x0010000000000000u                    /* subtracted: -largest becomes the least int64 */
#define MB_TURN_MOST (MB_F64_ABS - (MB_F64_INF - 1))         /* added: largest becomes the greatest int64 */
static inline double mb_f64_of_order(uint64_t order) { return mb_f64_of_bits(mb_f64_order(order)); }

/* The sum of eight lanes, in the order that every tier keeps. */
MB_STEP double mb_sum_eight(const double lanes[8]) {
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/* Moments of count (1..MB_MOMENTS_BLOCK) numbers. `tiny`: the bits of the smallest normal number of their dtype.
 * The block is filled up to a multiple of 8 with NaNs, which are then not counted. */
typedef void (*mb_moments_kernel)(double *block, uint32_t count, uint64_t tiny, mb_moments *m);

/* Several short loops: of one with everything in it, compilers make no vectors. */
#define MB_DEFINE_MOMENTS(name, target) \
    target MB_KERNEL void name(double *block, uint32_t count, uint64_t tiny, mb_moments *m) { \
        const uint32_t filled = (count + 7) & ~7u; \
        for (uint32_t i = count; i < filled; i++) block[i] = mb_f64_of_bits(MB_F64_INF | 1); \
        uint64_t nan = 0, positive = 0, negative = 0, zeros = 0, minus = 0, subnormal = 0, overflow = 0; \
        int64_t least = INT64_MAX, most = INT64_MIN, smallest = INT64_MAX; \
        double lanes[8] = {0}, squares[8] = {0}; \
        for (uint32_t i = 0; i < filled; i++) { \
            const uint64_t bits = mb_f64_bits(block[i]), a = bits & MB_F64_ABS; \
            nan += a > MB_F64_INF; \
            positive += bits == MB_F64_INF; \
            negative += bits == (MB_F64_INF | ~MB_F64_ABS); \
            zeros += a == 0; \
            minus += bits == ~MB_F64_ABS; \
            subnormal += a - 1 < tiny - 1; \
            overflow += (a >= MB_F64_65520) & (a < MB_F64_INF); \
        } \
        for (uint32_t i = 0; i < filled; i++) { \
            const int64_t order = (int64_t)(mb_f64_order(mb_f64_bits(block[i])) - MB_TURN_LEAST); \
            least = order < least ? order : least; \
        } \
        for (uint32_t i = 0; i < filled; i++) { \
            const int64_t order = (int64_t)(mb_f64_order(mb_f64_bits(block[i])) + MB_TURN_MOST); \
            most = order > most ? order : most; \
        } \
        for (uint32_t i = 0; i < filled; i++) { \
            const int64_t order = (int64_t)(((mb_f64_bits(block[i]) & MB_F64_ABS) - 1) & MB_F64_ABS); /* zero becomes the largest */ \
            smallest = order < smallest ? order : smallest; \
        } \
        for (uint32_t i = 0; i < filled; i += 8) \
            for (unsigned k = 0; k < 8; k++) { \
                const uint64_t bits = mb_f64_bits(block[i + k]); \
                lanes[k] += mb_f64_of_bits(bits & (0u - (uint64_t)((bits & MB_F64_ABS) < MB_F64_INF))); \
            } \
        memset(m, 0, sizeof *m); \
        m->count = count, m->nan = nan - (filled - count), m->positive_infinite = positive, m->negative_infinite = negative; \
        m->zeros = zeros, m->negative_zeros = minus, m->subnormal = subnormal, m->overflow = overflow; \
        const double finite = (double)mb_moments_finite(m); \
        m->sum = mb_sum_eight(lanes); \
        const double mean = finite > 0 ? m->sum / finite : 0; \
        for (uint32_t i = 0; i < filled; i += 8) \
            for (unsigned k = 0; k < 8; k++) { \
                const double distance = block[i + k] - mean; \
                const uint64_t mask = 0u - (uint64_t)((mb_f64_bits(block[i + k]) & MB_F64_ABS) < MB_F64_INF); \
                const double finite_distance = mb_f64_of_bits(mb_f64_bits(distance) & mask); \
                squares[k] += finite_distance * finite_distance; \
            } \
        m->spread = mb_sum_eight(squares); \
        m->least = m->smallest = mb_f64_of_bits(MB_F64_INF), m->most = -m->least; \
        if (finite > 0) { \
            m->least = mb_f64_of_order((uint64_t)least + MB_TURN_LEAST), m->most = mb_f64_of_order((uint64_t)most - MB_TURN_MOST); \
            if ((uint64_t)smallest + 1 < MB_F64_INF) m->smallest = mb_f64_of_bits((uint64_t)smallest + 1); \
        } \
        m->least_whole = INT64_MAX, m->most_whole = INT64_MIN, m->smallest_whole = UINT64_MAX; \
    }

MB_DEFINE_MOMENTS(mb_moments_block_plain, )

/* The element types of arrays of 32 and 64 bits. */
enum mb_wide_kind { MB_WIDE_F32, MB_WIDE_F64, MB_WIDE_I32, MB_WIDE_U32, MB_WIDE_I64, MB_WIDE_U64, MB_WIDE_COUNT };

static inline uint64_t mb_wide_nbytes(int kind) { return kind == MB_WIDE_F64 || kind == MB_WIDE_I64 || kind == MB_WIDE_U64 ? 8 : 4; }

/* Make float64 of up to a block of elements. */
typedef void (*mb_wide_load_kernel)(int kind, double *dst, const uint8_t *src, uint32_t count);

#define MB_DEFINE_WIDE_LOAD(name, target) \
    target MB_KERNEL void name(int kind, double *dst, const uint8_t *src, uint32_t count) { \
        switch (kind) { \
        case MB_WIDE_F32: \
            for (uint32_t i = 0; i < count; i++) { \
                const uint32_t bits = mb_load_u32(src + 4 * (size_t)i); \
                float value; \
                memcpy(&value, &bits, sizeof value); \
                dst[i] = (double)value; \
            } \
            break; \
        case MB_WIDE_F64: \
            for (uint32_t i = 0; i < count; i++) dst[i] = mb_f64_of_bits(mb_load_u64(src + 8 * (size_t)i)); \
            break; \
        case MB_WIDE_I32: \
            for (uint32_t i = 0; i < count; i++) dst[i] = (double)(int32_t)mb_load_u32(src + 4 * (size_t)i); \
            break; \
        case MB_WIDE_U32: \
            for (uint32_t i = 0; i < count; i++) dst[i] = (double)mb_load_u32(src + 4 * (size_t)i); \
            break; \
        case MB_WIDE_I64: \
            for (uint32_t i = 0; i < count; i++) dst[i] = (double)(int64_t)mb_load_u64(src + 8 * (size_t)i); \
            break; \
        default: \
            for (uint32_t i = 0; i < count; i++) dst[i] = (double)mb_load_u64(src + 8 * (size_t)i); \
        } \
    }

MB_DEFINE_WIDE_LOAD(mb_wide_load_plain, )

/* Hash up to a block of elements for mb_distinct: floats as the float64 in `block`, NaNs as one and zeros of either sign
 * as one, integers as their bits at `src`. Returns how many hashes are up to `most`; only those are left. */
typedef uint32_t (*mb_wide_hash_kernel)(int kind, uint64_t *hashes, const double *block, const uint8_t *src, uint32_t count, uint64_t most);

#define MB_DEFINE_WIDE_HASH(name, target, keep) \
    target MB_KERNEL uint32_t name(int kind, uint64_t *hashes, const double *block, const uint8_t *src, uint32_t count, uint64_t most) { \
        if (kind == MB_WIDE_F32 || kind == MB_WIDE_F64) \
            for (uint32_t i = 0; i < count; i++) { \
                const uint64_t bits = mb_f64_bits(block[i]), a = bits & MB_F64_ABS; \
                const uint64_t number = bits & (0u - (uint64_t)(a != 0)); \
                hashes[i] = mb_distinct_hash(a > MB_F64_INF ? MB_F64_INF | 1 : number); \
            } \
        else if (mb_wide_nbytes(kind) == 8) \
            for (uint32_t i = 0; i < count; i++) hashes[i] = mb_distinct_hash(mb_load_u64(src + 8 * (size_t)i)); \
        else \
            for (uint32_t i = 0; i < count; i++) hashes[i] = mb_distinct_hash(mb_load_u32(src + 4 * (size_t)i)); \
        return most == UINT64_MAX ? count : keep(hashes, count, most); \
    }

MB_DEFINE_WIDE_HASH(mb_wide_hash_plain, , mb_distinct_keep)

/* What a tier has for elements of 32 and 64 bits. */
typedef struct mb_wide_kernels {
    mb_wide_load_kernel load;
    mb_moments_kernel moments;
    mb_wide_hash_kernel hash;
} mb_wide_kernels;

/* Moments of count elements, and which different values they have: NaNs are one, zeros of either sign are one.
 * in   src: elements at any alignment; distinct: NULL if not wanted      out  m: of these alone; distinct: added to
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_wide_moments(const mb_wide_kernels *kernels, int kind, const uint8_t *src, uint64_t count, mb_moments *m, mb_distinct *distinct) {
    double block[MB_MOMENTS_BLOCK];
    uint64_t hashes[MB_MOMENTS_BLOCK];
    const uint64_t tiny = kind == MB_WIDE_F32 ? 0x3810000000000000u : kind == MB_WIDE_F64 ? 0x0010000000000000u : 1;
    const uint64_t bias = kind == MB_WIDE_U64 ? ~MB_F64_ABS : 0;
    mb_moments_clear(m);
    while (count > 0) {
        const uint32_t some = count < MB_MOMENTS_BLOCK ? (uint32_t)count : MB_MOMENTS_BLOCK;
        mb_moments part;
        kernels->load(kind, block, src, some);
        kernels->moments(block, some, tiny, &part);
        if (kind == MB_WIDE_I64 || kind == MB_WIDE_U64)
            for (uint32_t i = 0; i < some; i++) {
                const uint64_t bits = mb_load_u64(src + 8 * (size_t)i);
                const uint64_t magnitude = bias == 0 && bits >> 63 ? 0 - bits : bits;
                const int64_t whole = (int64_t)(bits ^ bias);
                part.smallest_whole = magnitude - 1 < part.smallest_whole - 1 ? magnitude : part.smallest_whole; /* zero becomes the largest */
                part.least_whole = whole < part.least_whole ? whole : part.least_whole;
                part.most_whole = whole > part.most_whole ? whole : part.most_whole;
            }
        mb_moments_add(m, &part);
        if (distinct != NULL) mb_distinct_add_all(distinct, hashes, kernels->hash(kind, hashes, block, src, some, mb_distinct_most(distinct)));
        src += mb_wide_nbytes(kind) * some, count -= some;
    }
}

/* The number that a pattern of at most 16 bits encodes. */
static inline double mb_narrow_value(uint32_t mil_code, uint32_t pattern) {
    uint32_t bits;
    float value;
    MB_FOR_ALL_DTYPES(22);
    switch (mil_code) {
    case MB_MIL_BOOL: return pattern != 0;
    case MB_MIL_INT16: return (int16_t)pattern;
    case MB_MIL_INT8: return (int8_t)pattern;
    case MB_MIL_INT4: return (double)(int)((pattern & 15) ^ 8) - 8;
    case MB_MIL_BFLOAT16: bits = pattern << 16; break;
    case MB_MIL_FLOAT16: bits = mb_f16_to_f32(pattern, 0); break;
    case MB_MIL_FLOAT8E5M2: bits = mb_f16_to_f32(pattern << 8, 0); break; /* the upper half of a float16 */
    case MB_MIL_FLOAT8E4M3FN: {
        const uint32_t a = pattern & 0x7f, exponent = a >> 3;
        double magnitude = exponent == 0 ? a / 512.0 : ((a & 7) | 8) / 1024.0;
        for (uint32_t i = 0; i < exponent; i++) magnitude *= 2;
        if (a == 0x7f) magnitude = mb_f64_of_bits(MB_F64_INF | 1);
        return pattern & 0x80 ? -magnitude : magnitude;
    }
    default: return pattern; /* unsigned integers */
    }
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* The smallest normal number of a dtype of at most 16 bits, as bits of a float64; 1, below which nothing is, for integers. */
static inline uint64_t mb_narrow_tiny(uint32_t mil_code) {
    MB_FOR_ALL_DTYPES(22);
    switch (mil_code) {
    case MB_MIL_FLOAT16: case MB_MIL_FLOAT8E5M2: return 0x3f10000000000000u; /* 2^-14 */
    case MB_MIL_BFLOAT16: return 0x3810000000000000u;                        /* 2^-126 */
    case MB_MIL_FLOAT8E4M3FN: return 0x3f90000000000000u;                    /* 2^-6 */
    default: return 1;
    }
}

/* Moments of the elements whose patterns and counts mb_tally_gather has left; returns how many different values they
 * have: NaNs are one, zeros of either sign are one. */
MB_KERNEL uint32_t mb_narrow_moments(uint32_t mil_code, const uint16_t *patterns, const uint64_t *counts, uint32_t found, mb_moments *m) {
    const uint64_t tiny = mb_narrow_tiny(mil_code);
    uint32_t distinct = 0;
    bool has_nan = false, has_zero = false;
    mb_moments_clear(m);
    for (uint32_t i = 0; i < found; i++) {
        const double value = mb_narrow_value(mil_code, patterns[i]);
        const uint64_t bits = mb_f64_bits(value), a = bits & MB_F64_ABS, count = counts[i];
        m->count += count;
        if (a > MB_F64_INF) m->nan += count, distinct += !has_nan, has_nan = true;
        else if (a == 0) m->zeros += count, m->negative_zeros += bits != 0 ? count : 0, distinct += !has_zero, has_zero = true;
        else distinct++;
        if (a == MB_F64_INF) *(bits == a ? &m->positive_infinite : &m->negative_infinite) += count;
        if (a >= MB_F64_INF) continue;
        if (a - 1 < tiny - 1) m->subnormal += count;
        if (a >= MB_F64_65520) m->overflow += count;
        if (value < m->least) m->least = value;
        if (value > m->most) m->most = value;
        if (a != 0 && a < mb_f64_bits(m->smallest)) m->smallest = mb_f64_of_bits(a);
        mb_add_exactly(&m->sum, &m->sum_low, (double)count * value); /* exact: at most 16 and, for 2^37 elements, 37 bits */
    }
    const double mean = (m->sum + m->sum_low) / (double)mb_moments_finite(m);
    for (uint32_t i = 0; i < found; i++) {
        const double distance = mb_narrow_value(mil_code, patterns[i]) - mean;
        if ((mb_f64_bits(distance) & MB_F64_ABS) < MB_F64_INF) mb_add_exactly(&m->spread, &m->spread_low, (double)counts[i] * (distance * distance));
    }
    return distinct;
}

/* Count the finite elements between rising edges: the first bin gets those below edges[0], bin b those with
 * edges[b - 1] <= value < edges[b], the last one the rest.
 * in   patterns, counts: found of each, as mb_tally_gather has left them; edges: edge_count numbers, not NaN
 * out  bins: edge_count + 1 counts                                                                                 */
MB_KERNEL void mb_narrow_bins(uint32_t mil_code, const uint16_t *patterns, const uint64_t *counts, uint32_t found, const double *edges,
                              uint32_t edge_count, uint64_t *bins) {
    memset(bins, 0, (edge_count + 1) * sizeof *bins);
    uint32_t bin = 0; /* of the pattern before: patterns rise, so their values are neighbours and few leave the bin */
    for (uint32_t i = 0; i < found; i++) {
        const double value = mb_narrow_value(mil_code, patterns[i]);
        if ((mb_f64_bits(value) & MB_F64_ABS) >= MB_F64_INF) continue;
        while (bin < edge_count && value >= edges[bin]) bin++;
        while (bin > 0 && value < edges[bin - 1]) bin--;
        bins[bin] += counts[i];
    }
}

#endif
