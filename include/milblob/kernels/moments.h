/* kernels/moments.h: count, extremes, sum, spread and special values of an array.
 *
 * All arithmetic is that of float64. Elements of 32 and 64 bits are taken in blocks of MB_MOMENTS_BLOCK that fit into the
 * first cache: one loop over a block adds up elements and their squares, others count what is special in blocks that have any
 * of it, and blocks are merged by the rule of Chan, Golub and LeVeque (1979), with compensated sums (Neumaier 1974). The
 * spread of a block is the difference of two sums only if its mean is at most twice its deviation; else another loop adds up
 * the squared distances from the mean, so a spread that is small compared with the mean is accurate too. Elements
 * of fewer bits come from a tally as (value, count); then the mean is known before distances are taken.
 *
 * Precision, with u = 2^-53 and only finite elements counted: |error of sum| <= 2^-45 * (sum of |x|);
 * relative error of the standard deviation <= 2^-44 * (1 + |mean| / deviation). From a tally both are 2^-50. Counts,
 * extremes and everything else are exact; int64 and uint64 keep their extremes as integers. A sum or spread that leaves
 * the range of float64 is infinite, as with NumPy.
 *
 * Sums have MB_LANES lanes with a fixed order: every tier gives the same bits. */
#ifndef MILBLOB_MOMENTS_H
#define MILBLOB_MOMENTS_H

#include "milblob/dtype.h"
#include "milblob/kernels/distinct.h"
#include "milblob/kernels/sums.h"
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

/* A block of numbers; the code that both widths share is written in macros, whose `width` is 32 or 64. */
typedef union mb_moments_block {
    float f32[MB_MOMENTS_BLOCK];
    double f64[MB_MOMENTS_BLOCK];
} mb_moments_block;

#define MB_F64_TURN 0x0010000000000000u
#define MB_F32_ABS 0x7fffffffu
#define MB_F32_TURN 0x00800000u
#define MB_F32_65520 MB_F32_F16_BIG

/* A number as an integer that is ordered as the numbers are. It goes from -NaN, -infinity, -largest up to largest, infinity,
 * NaN. When MB_Fwidth_TURN is subtracted, -largest becomes the least integer, and when it is added, largest becomes the
 * greatest: what is not finite lies at the end that a search for the least, or the most, never takes. No condition is needed
 * in the loop, which compilers would not make vectors of. */
#define MB_DEFINE_ORDER(width) \
    MB_STEP uint##width##_t mb_sorted_##width(uint##width##_t bits) { return bits ^ ((0u - (bits >> (width - 1))) & MB_F##width##_ABS); } \
    MB_STEP double mb_number_of_##width(uint##width##_t bits) { \
        mb_f##width value; \
        memcpy(&value, &bits, sizeof value); \
        return (double)value; \
    } \
    MB_STEP uint##width##_t mb_block_bits_##width(const mb_moments_block *block, uint32_t i) { \
        uint##width##_t bits; \
        memcpy(&bits, &block->f##width[i], sizeof bits); \
        return bits; \
    }

typedef float mb_f32;
typedef double mb_f64;
MB_DEFINE_ORDER(32)
MB_DEFINE_ORDER(64)

/* Moments of count (1..MB_MOMENTS_BLOCK) numbers. `tiny`: the bits of the smallest normal number of their dtype.
 * The block is filled up to a multiple of MB_LANES with NaNs, which are then not counted. */
typedef void (*mb_moments_kernel)(mb_moments_block *block, uint32_t count, uint64_t tiny, mb_moments *m);

/* The moments of a block, in short loops: of one with everything in it, compilers make no vectors.
 * see(block, filled, m): find sum, least, most and smallest, the last of zeros too, and the sum of the squares as spread, and
 *     return true; or return false: then nothing is known. It may do so for any block, and must for one that holds NaNs or magnitudes from 65520 on.
 * square(block, filled, mean): the sum of the squared distances, after `see` has returned true                         */
#define MB_DEFINE_MOMENTS(name, target, width, see, square) \
    target MB_KERNEL void name##_large(const mb_moments_block *block, uint32_t filled, mb_moments *m) { \
        uint##width##_t nan = 0, positive = 0, negative = 0, overflow = 0; \
        int##width##_t least = INT##width##_MAX, most = INT##width##_MIN; \
        double lanes[MB_LANES] = {0}, squares[MB_LANES] = {0}; \
        for (uint32_t i = 0; i < filled; i++) { \
            const uint##width##_t bits = mb_block_bits_##width(block, i), a = bits & MB_F##width##_ABS; \
            nan += a > MB_F##width##_INF; \
            positive += bits == MB_F##width##_INF; \
            negative += bits == (MB_F##width##_INF | ~MB_F##width##_ABS); \
            overflow += (a >= MB_F##width##_65520) & (a < MB_F##width##_INF); \
        } \
        for (uint32_t i = 0; i < filled; i++) { \
            const int##width##_t order = (int##width##_t)(mb_sorted_##width(mb_block_bits_##width(block, i)) - MB_F##width##_TURN); \
            least = order < least ? order : least; \
        } \
        for (uint32_t i = 0; i < filled; i++) { \
            const int##width##_t order = (int##width##_t)(mb_sorted_##width(mb_block_bits_##width(block, i)) + MB_F##width##_TURN); \
            most = order > most ? order : most; \
        } \
        for (uint32_t i = 0; i < filled; i += MB_LANES) \
            for (uint32_t k = 0; k < MB_LANES; k++) { \
                const uint##width##_t bits = mb_block_bits_##width(block, i + k); \
                const double value = mb_number_of_##width(bits & (0u - (uint##width##_t)((bits & MB_F##width##_ABS) < MB_F##width##_INF))); \
                lanes[k] += value, squares[k] += value * value; \
            } \
        m->nan = nan, m->positive_infinite = positive, m->negative_infinite = negative, m->overflow = overflow; \
        m->sum = mb_sum_lanes(lanes), m->spread = mb_sum_lanes(squares); \
        if (filled > nan + positive + negative) { \
            m->least = mb_number_of_##width(mb_sorted_##width((uint##width##_t)least + MB_F##width##_TURN)); \
            m->most = mb_number_of_##width(mb_sorted_##width((uint##width##_t)most - MB_F##width##_TURN)); \
        } \
    } \
    target MB_KERNEL void name##_small(const mb_moments_block *block, uint32_t filled, uint64_t tiny, mb_moments *m) { \
        uint##width##_t zeros = 0, minus = 0, subnormal = 0, least = MB_F##width##_ABS; \
        for (uint32_t i = 0; i < filled; i++) { \
            const uint##width##_t bits = mb_block_bits_##width(block, i), a = bits & MB_F##width##_ABS; \
            zeros += a == 0; \
            minus += bits == (uint##width##_t)~MB_F##width##_ABS; \
            subnormal += a - 1 < (uint##width##_t)tiny - 1; \
        } \
        for (uint32_t i = 0; i < filled; i++) { \
            const uint##width##_t order = (mb_block_bits_##width(block, i) - 1) & MB_F##width##_ABS; /* either zero becomes the largest */ \
            least = order < least ? order : least; \
        } \
        m->zeros = zeros, m->negative_zeros = minus, m->subnormal = subnormal; \
        m->smallest = mb_f64_of_bits(MB_F64_INF); \
        if (least + 1 < MB_F##width##_INF) m->smallest = mb_number_of_##width(least + 1); \
    } \
    target MB_KERNEL double name##_squares(const mb_moments_block *block, uint32_t filled, double mean) { \
        double lanes[MB_LANES] = {0}; \
        for (uint32_t i = 0; i < filled; i += MB_LANES) \
            for (uint32_t k = 0; k < MB_LANES; k++) { \
                const uint##width##_t bits = mb_block_bits_##width(block, i + k); \
                const uint64_t mask = 0u - (uint64_t)((bits & MB_F##width##_ABS) < MB_F##width##_INF); \
                const double distance = mb_f64_of_bits(mb_f64_bits(mb_number_of_##width(bits) - mean) & mask); \
                lanes[k] += distance * distance; \
            } \
        return mb_sum_lanes(lanes); \
    } \
    target MB_KERNEL void name(mb_moments_block *block, uint32_t count, uint64_t tiny, mb_moments *m) { \
        const uint32_t filled = (count + MB_LANES - 1) / MB_LANES * MB_LANES; \
        const uint##width##_t nan = MB_F##width##_INF | 1; \
        for (uint32_t i = count; i < filled; i++) memcpy(&block->f##width[i], &nan, sizeof nan); \
        mb_moments_clear(m); \
        const bool is_seen = see(block, filled, m); \
        if (!is_seen) name##_large(block, filled, m); \
        if (!is_seen || m->smallest < mb_number_of_##width((uint##width##_t)tiny)) name##_small(block, filled, tiny, m); \
        m->count = count, m->nan -= is_seen ? 0 : filled - count; \
        m->least += 0.0, m->most += 0.0; /* an extreme of zero has no sign */ \
        const double finite = (double)mb_moments_finite(m), mean = finite > 0 ? m->sum / finite : 0, around = m->sum * mean; \
        m->spread -= around; \
        if (!(m->spread >= around / 4 && m->spread < mb_f64_of_bits(MB_F64_INF))) \
            m->spread = is_seen ? square(block, filled, mean) : name##_squares(block, filled, mean); \
    }

MB_STEP bool mb_see_nothing(const mb_moments_block *block, uint32_t filled, mb_moments *m) { return (void)block, (void)filled, (void)m, false; }
MB_STEP double mb_square_nothing(const mb_moments_block *block, uint32_t filled, double mean) { return (void)block, (void)filled, mean; }
MB_DEFINE_MOMENTS(mb_moments_f32_plain, , 32, mb_see_nothing, mb_square_nothing)
MB_DEFINE_MOMENTS(mb_moments_f64_plain, , 64, mb_see_nothing, mb_square_nothing)

/* `see` and `square` with vectors. Minima and maxima may or may not show NaNs; the sum does.
 * D, DN: a register of DN doubles and its operations; DSQUARE(x, sum): x * x + sum, rounded twice unless x * x is exact
 * DOUBLES(at): load DN numbers as doubles
 * E, EN: a register of EN numbers of this width and its operations                                                      */
#define MB_DEFINE_SEE_MOMENTS(name, target, width, D, DN, DSET, DSTORE, DADD, DSUB, DMUL, DSQUARE, DOUBLES, E, EN, ESET, ELOAD, ESTORE, EMIN, EMAX, EABS) \
    target MB_STEP bool name##_see(const mb_moments_block *block, uint32_t filled, mb_moments *m) { \
        const mb_f64 infinite = mb_f64_of_bits(MB_F64_INF), limit = mb_f64_of_bits(MB_F64_65520); \
        E least = ESET((mb_f##width)infinite), smallest = least, most = ESET((mb_f##width)-infinite); \
        D sums[MB_LANES / DN], squares[MB_LANES / DN]; \
        double lanes[MB_LANES]; \
        mb_f##width found[3][EN]; \
        for (uint32_t r = 0; r < MB_LANES / DN; r++) sums[r] = squares[r] = DSET(0); \
        for (uint32_t i = 0; i < filled; i += MB_LANES) { \
            const mb_f##width *at = block->f##width + i; \
            E low = ELOAD(at), high = low, near = EABS(low); \
            for (uint32_t e = EN; e < MB_LANES; e += EN) { \
                const E x = ELOAD(at + e); \
                low = EMIN(low, x), high = EMAX(high, x), near = EMIN(near, EABS(x)); \
            } \
            least = EMIN(low, least), most = EMAX(high, most), smallest = EMIN(near, smallest); \
            for (uint32_t r = 0; r < MB_LANES / DN; r++) { \
                const D x = DOUBLES(at + r * DN); \
                sums[r] = DADD(sums[r], x), squares[r] = DSQUARE(x, squares[r]); \
            } \
        } \
        for (uint32_t r = 0; r < MB_LANES / DN; r++) DSTORE(lanes + r * DN, sums[r]); \
        ESTORE(found[0], least), ESTORE(found[1], most), ESTORE(found[2], smallest); \
        m->smallest = infinite; \
        for (uint32_t k = 0; k < EN; k++) { \
            m->least = (double)found[0][k] < m->least ? (double)found[0][k] : m->least; \
            m->most = (double)found[1][k] > m->most ? (double)found[1][k] : m->most; \
            m->smallest = (double)found[2][k] < m->smallest ? (double)found[2][k] : m->smallest; \
        } \
        m->sum = mb_sum_lanes(lanes); \
        for (uint32_t r = 0; r < MB_LANES / DN; r++) DSTORE(lanes + r * DN, squares[r]); \
        m->spread = mb_sum_lanes(lanes); \
        if (m->sum == m->sum && m->least > -limit && m->most < limit) return true; \
        mb_moments_clear(m); \
        return false; \
    } \
    target MB_STEP double name##_square(const mb_moments_block *block, uint32_t filled, double mean) { \
        const D means = DSET(mean); \
        D sums[MB_LANES / DN]; \
        double lanes[MB_LANES]; \
        for (uint32_t r = 0; r < MB_LANES / DN; r++) sums[r] = DSET(0); \
        for (uint32_t i = 0; i < filled; i += MB_LANES) \
            for (uint32_t r = 0; r < MB_LANES / DN; r++) { \
                const D distance = DSUB(DOUBLES(block->f##width + i + r * DN), means); \
                sums[r] = DADD(sums[r], DMUL(distance, distance)); \
            } \
        for (uint32_t r = 0; r < MB_LANES / DN; r++) DSTORE(lanes + r * DN, sums[r]); \
        return mb_sum_lanes(lanes); \
    } \
    MB_DEFINE_MOMENTS(name, target, width, name##_see, name##_square)

/* The element types of arrays of 32 and 64 bits. */
enum mb_wide_kind { MB_WIDE_F32, MB_WIDE_F64, MB_WIDE_I32, MB_WIDE_U32, MB_WIDE_I64, MB_WIDE_U64, MB_WIDE_COUNT };

static inline uint64_t mb_wide_nbytes(int kind) { return kind == MB_WIDE_F64 || kind == MB_WIDE_I64 || kind == MB_WIDE_U64 ? 8 : 4; }

/* Load up to a block of elements at any alignment: float32 as they are, others as float64. */
typedef void (*mb_wide_load_kernel)(int kind, mb_moments_block *dst, const uint8_t *src, uint32_t count);

#define MB_DEFINE_WIDE_LOAD(name, target) \
    target MB_KERNEL void name(int kind, mb_moments_block *dst, const uint8_t *src, uint32_t count) { \
        double *wide = dst->f64; \
        switch (kind) { \
        case MB_WIDE_F32: \
            for (uint32_t i = 0; i < count; i++) { \
                const uint32_t bits = mb_load_u32(src + 4 * (size_t)i); \
                memcpy(&dst->f32[i], &bits, sizeof bits); \
            } \
            break; \
        case MB_WIDE_F64: \
            for (uint32_t i = 0; i < count; i++) wide[i] = mb_f64_of_bits(mb_load_u64(src + 8 * (size_t)i)); \
            break; \
        case MB_WIDE_I32: \
            for (uint32_t i = 0; i < count; i++) wide[i] = (double)(int32_t)mb_load_u32(src + 4 * (size_t)i); \
            break; \
        case MB_WIDE_U32: \
            for (uint32_t i = 0; i < count; i++) wide[i] = (double)mb_load_u32(src + 4 * (size_t)i); \
            break; \
        case MB_WIDE_I64: \
            for (uint32_t i = 0; i < count; i++) wide[i] = (double)(int64_t)mb_load_u64(src + 8 * (size_t)i); \
            break; \
        default: \
            for (uint32_t i = 0; i < count; i++) wide[i] = (double)mb_load_u64(src + 8 * (size_t)i); \
        } \
    }

MB_DEFINE_WIDE_LOAD(mb_wide_load_plain, )

/* Hash up to a block of elements of 4 or 8 bytes at `src` for mb_distinct, by their bits. If there may be NaNs or negative
 * zeros of floats among them, is_float: NaNs become one, and zeros of either sign. Returns how many hashes are up to `most`;
 * only those are left. */
typedef uint32_t (*mb_wide_hash_kernel)(bool is_float, uint64_t *hashes, const uint8_t *src, uint32_t count, uint64_t most);

/* keep_32, keep_64: of distinct.h. */
#define MB_DEFINE_WIDE_HASHES(tier, target, keep_32, keep_64) \
    target MB_KERNEL uint32_t mb_wide_hash_64_##tier(bool is_float, uint64_t *hashes, const uint8_t *src, uint32_t count, uint64_t most) { \
        for (uint32_t i = 0; i < count; i++) { \
            uint64_t bits = mb_load_u64(src + 8 * (size_t)i); \
            const uint64_t a = bits & MB_F64_ABS; \
            if (is_float) bits = a > MB_F64_INF ? MB_F64_INF | 1 : bits & (0u - (uint64_t)(a != 0)); \
            hashes[i] = mb_distinct_hash_64(bits); \
        } \
        return most == UINT64_MAX ? count : keep_64(hashes, count, most); \
    } \
    target MB_KERNEL uint32_t mb_wide_hash_32_##tier(bool is_float, uint64_t *hashes, const uint8_t *src, uint32_t count, uint64_t most) { \
        uint32_t narrow[MB_MOMENTS_BLOCK]; \
        if (is_float) \
            for (uint32_t i = 0; i < count; i++) { \
                const uint32_t bits = mb_load_u32(src + 4 * (size_t)i), a = bits & MB_F32_ABS; \
                narrow[i] = mb_distinct_begin_32(a > MB_F32_INF ? MB_F32_INF | 1 : bits & (0u - (uint32_t)(a != 0))); \
            } \
        else \
            for (uint32_t i = 0; i < count; i++) narrow[i] = mb_distinct_begin_32(mb_load_u32(src + 4 * (size_t)i)); \
        if (most != UINT64_MAX) count = keep_32(narrow, count, (uint32_t)(most >> 32)); \
        for (uint32_t i = 0; i < count; i++) hashes[i] = mb_distinct_end_32(narrow[i]); \
        return count; \
    }

MB_DEFINE_WIDE_HASHES(plain, , mb_distinct_keep_32, mb_distinct_keep_64)

/* What a tier has for elements of 32 and 64 bits. */
typedef struct mb_wide_kernels {
    mb_wide_load_kernel load;
    mb_moments_kernel moments[2]; /* of float32, of float64 */
    mb_wide_hash_kernel hash[2];  /* of 4 bytes, of 8 */
} mb_wide_kernels;

/* Moments of count elements, and which different values they have: NaNs are one, zeros of either sign are one.
 * in   src: elements at any alignment; distinct: NULL if not wanted      out  m: of these alone; distinct: added to
 * over-reads: none      fails: never                                                                                   */
MB_KERNEL void mb_wide_moments(const mb_wide_kernels *kernels, int kind, const uint8_t *src, uint64_t count, mb_moments *m, mb_distinct *distinct) {
    mb_moments_block block;
    uint64_t hashes[MB_MOMENTS_BLOCK + MB_DISTINCT_WAITING];
    uint32_t waiting = 0;
    const uint64_t tiny = kind == MB_WIDE_F32 ? MB_F32_TURN : kind == MB_WIDE_F64 ? MB_F64_TURN : 1;
    const uint64_t bias = kind == MB_WIDE_U64 ? ~MB_F64_ABS : 0;
    const bool is_float = kind == MB_WIDE_F32 || kind == MB_WIDE_F64, is_long = mb_wide_nbytes(kind) == 8;
    mb_moments_clear(m);
    while (count > 0) {
        const uint32_t some = count < MB_MOMENTS_BLOCK ? (uint32_t)count : MB_MOMENTS_BLOCK;
        mb_moments part;
        kernels->load(kind, &block, src, some);
        kernels->moments[kind != MB_WIDE_F32](&block, some, tiny, &part);
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
        if (distinct != NULL) {
            const bool has_alike = is_float && part.nan + part.negative_zeros > 0;
            waiting += kernels->hash[is_long](has_alike, hashes + waiting, src, some, mb_distinct_most(distinct));
            if (waiting >= MB_DISTINCT_WAITING || count == some) mb_distinct_add_all(distinct, hashes, waiting), waiting = 0;
        }
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
        if (value < m->least) m->least = value + 0.0; /* an extreme of zero has no sign */
        if (value > m->most) m->most = value + 0.0;
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
