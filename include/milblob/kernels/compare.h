/* kernels/compare.h: differences between two arrays of any dtypes: counts, the largest difference, and six sums.
 *
 * Elements are converted in blocks of MB_COMPARE_BLOCK, which fit into the L1 cache: to float32 if it holds every value
 * of the dtype, else to float64. Differences and sums are float64. A kernel handles blocks in which every element is
 * finite. Other blocks, and 64-bit integers, which float64 cannot hold, are compared element by element.
 *
 * Equal numbers do not differ; 0 equals -0. NaNs are equal if their bits agree (for different dtypes, if they agree as
 * float64), infinities if they have the same sign. Any other pair that is not finite on either side is `mismatched`:
 * unequal, outside any tolerance, and not part of the sums; nor are equal non-finite pairs.
 *
 * Four lanes in a fixed order: every tier gives the same bits. The sums of each block are added to the total, so the
 * relative error of a sum of positive terms is at most about (MB_COMPARE_BLOCK / 4 + blocks) * 2^-53. */
#ifndef MILBLOB_COMPARE_H
#define MILBLOB_COMPARE_H

#include "milblob/kernels/float.h"
#include "milblob/kernels/moments.h"

enum { MB_COMPARE_BLOCK = 1024, MB_COMPARE_SUMS = 7 };

enum mb_compare_sum {
    MB_SUM_A, MB_SUM_B, MB_SUM_AA, MB_SUM_BB, MB_SUM_AB,
    MB_SUM_DISTANCE, /* |b - a| */
    MB_SUM_NOISE     /* (b - a)^2 */
};

/* All zero is an empty one. */
typedef struct mb_comparison {
    uint64_t count;      /* pairs of elements */
    uint64_t finite;     /* pairs of finite elements; the sums are over these */
    uint64_t unequal;
    uint64_t outside;    /* |b - a| > atol + rtol * |a| */
    uint64_t mismatched; /* NaN or infinite on one side, and not the same on the other */
    double most;         /* the largest |b - a| of finite ones */
    double sums[MB_COMPARE_SUMS];
} mb_comparison;

typedef struct mb_tolerance {
    double atol, rtol; /* neither negative nor NaN */
} mb_tolerance;

static inline void mb_comparison_add(mb_comparison *total, const mb_comparison *part) {
    total->count += part->count, total->finite += part->finite, total->unequal += part->unequal;
    total->outside += part->outside, total->mismatched += part->mismatched;
    if (part->most > total->most) total->most = part->most;
    for (int i = 0; i < MB_COMPARE_SUMS; i++) total->sums[i] += part->sums[i];
}

/* ------------------------------------------------------------------------------------------------------------- numbers */

/* Bytes of an element in an array: those below 8 bits take one each. 0: no number. */
static inline size_t mb_number_nbytes(uint32_t mil_code) {
    MB_FOR_ALL_DTYPES(22);
    switch (mil_code) {
    case MB_MIL_FLOAT16: case MB_MIL_BFLOAT16: case MB_MIL_INT16: case MB_MIL_UINT16: return 2;
    case MB_MIL_FLOAT32: case MB_MIL_INT32: case MB_MIL_UINT32: return 4;
    case MB_MIL_FLOAT64: case MB_MIL_INT64: case MB_MIL_UINT64: return 8;
    case MB_MIL_BOOL: case MB_MIL_INT8: case MB_MIL_INT4: case MB_MIL_UINT8: case MB_MIL_UINT6: case MB_MIL_UINT4: case MB_MIL_UINT3:
    case MB_MIL_UINT2: case MB_MIL_UINT1: case MB_MIL_FLOAT8E4M3FN: case MB_MIL_FLOAT8E5M2: return 1;
    default: return 0;
    }
}

/* Whether float32 holds every value of a dtype. */
static inline bool mb_number_is_narrow(uint32_t mil_code) { return mb_number_nbytes(mil_code) < 4 || mil_code == MB_MIL_FLOAT32; }

/* Whether float64 does not. */
static inline bool mb_number_is_whole64(uint32_t mil_code) { return mil_code == MB_MIL_INT64 || mil_code == MB_MIL_UINT64; }

MB_STEP float mb_f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One element as float64, of a dtype of at most 16 bits. */
static inline double mb_short_number(uint32_t mil_code, const uint8_t *src) {
    return mb_narrow_value(mil_code, mb_number_nbytes(mil_code) == 1 ? src[0] : mb_load_u16(src));
}

/* Elements of a narrow dtype as float32. `widen`: the kernel for float16. */
static inline void mb_narrow_numbers(float *dst, uint32_t mil_code, const uint8_t *src, uint32_t count, mb_cast_kernel widen) {
    const size_t nbytes = mb_number_nbytes(mil_code);
    mb_cast_counts counts = {0, 0, 0};
    if (mil_code == MB_MIL_FLOAT16) {
        widen((uint8_t *)dst, src, count, false, &counts);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        for (uint32_t i = 0; i < count; i++) dst[i] = mb_f32_of_bits(mb_load_u32((const uint8_t *)&dst[i]));
#endif
    } else if (mil_code == MB_MIL_FLOAT32) {
        for (uint32_t i = 0; i < count; i++) dst[i] = mb_f32_of_bits(mb_load_u32(src + 4 * (size_t)i));
    } else if (mil_code == MB_MIL_BFLOAT16) {
        for (uint32_t i = 0; i < count; i++) dst[i] = mb_f32_of_bits(mb_load_u16(src + 2 * (size_t)i) << 16);
    } else if (mil_code == MB_MIL_INT8) {
        for (uint32_t i = 0; i < count; i++) dst[i] = (float)(int8_t)src[i];
    } else if (mil_code == MB_MIL_UINT8) {
        for (uint32_t i = 0; i < count; i++) dst[i] = (float)src[i];
    } else {
        for (uint32_t i = 0; i < count; i++) dst[i] = (float)mb_short_number(mil_code, src + nbytes * i);
    }
}

/* One element as float64, and the rest that float64 cannot hold of a 64-bit integer. */
static inline double mb_wide_number(uint32_t mil_code, const uint8_t *src, double *rest) {
    *rest = 0;
    MB_FOR_ALL_DTYPES(22);
    switch (mil_code) {
    case MB_MIL_FLOAT64: return mb_f64_of_bits(mb_load_u64(src));
    case MB_MIL_INT32: return (double)(int32_t)mb_load_u32(src);
    case MB_MIL_UINT32: return (double)mb_load_u32(src);
    case MB_MIL_INT64: case MB_MIL_UINT64: {
        const uint64_t bits = mb_load_u64(src);
        const bool negative = mil_code == MB_MIL_INT64 && bits >> 63;
        const uint64_t size = negative ? 0 - bits : bits, low = size & 0x7ff; /* eleven bits; 53 are left, which fit */
        const double sign = negative ? -1.0 : 1.0;
        *rest = sign * (double)low;
        return sign * (double)(size - low);
    }
    case MB_MIL_FLOAT32: return (double)mb_f32_of_bits(mb_load_u32(src));
    default: return mb_short_number(mil_code, src);
    }
}

static inline void mb_wide_numbers(double *dst, uint32_t mil_code, const uint8_t *src, uint32_t count) {
    const size_t nbytes = mb_number_nbytes(mil_code);
    double rest;
    for (uint32_t i = 0; i < count; i++) dst[i] = mb_wide_number(mil_code, src + nbytes * i, &rest);
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

/* Compare count (a multiple of 4, at most MB_COMPARE_BLOCK) numbers.
 * out  part: everything but `count` and `finite`, unless the result is false     over-reads: none
 * Returns false if some difference is not finite.                                                                       */
typedef bool (*mb_compare_f32_kernel)(const float *a, const float *b, uint32_t count, mb_tolerance tolerance, mb_comparison *part);
typedef bool (*mb_compare_f64_kernel)(const double *a, const double *b, uint32_t count, mb_tolerance tolerance, mb_comparison *part);

/* The lanes of a block, combined. */
static inline bool mb_compare_finish(const double sums[MB_COMPARE_SUMS][4], const double *most, const uint64_t *unequal, const uint64_t *outside, mb_comparison *part) {
    memset(part, 0, sizeof *part);
    for (int s = 0; s < MB_COMPARE_SUMS; s++) part->sums[s] = (sums[s][0] + sums[s][1]) + (sums[s][2] + sums[s][3]);
    for (int k = 0; k < 4; k++) {
        part->unequal += unequal[k], part->outside += outside[k];
        if (most[k] > part->most) part->most = most[k];
    }
    /* A NaN or an infinity on either side has gone into this sum, and nothing takes it out again. */
    return part->sums[MB_SUM_DISTANCE] <= 0x1.fffffffffffffp1023;
}

MB_STEP double mb_size(double value) { return mb_f64_of_bits(mb_f64_bits(value) & MB_F64_ABS); }

/* Three loops over a block: one with everything in it has more lanes than a CPU has registers. */
#define MB_DEFINE_COMPARE(name, type) \
    MB_KERNEL bool name(const type *a, const type *b, uint32_t count, mb_tolerance tolerance, mb_comparison *part) { \
        double sums[MB_COMPARE_SUMS][4] = {{0}}, most[4] = {0}; \
        uint64_t unequal[4] = {0}, outside[4] = {0}; \
        for (uint32_t i = 0; i < count; i += 4) \
            for (uint32_t k = 0; k < 4; k++) { \
                const double x = (double)a[i + k], y = (double)b[i + k]; \
                sums[MB_SUM_A][k] += x, sums[MB_SUM_B][k] += y; \
                sums[MB_SUM_AA][k] += x * x, sums[MB_SUM_BB][k] += y * y, sums[MB_SUM_AB][k] += x * y; \
            } \
        for (uint32_t i = 0; i < count; i += 4) \
            for (uint32_t k = 0; k < 4; k++) { \
                const double d = (double)b[i + k] - (double)a[i + k], distance = mb_size(d); \
                sums[MB_SUM_DISTANCE][k] += distance, sums[MB_SUM_NOISE][k] += d * d; \
                most[k] = distance > most[k] ? distance : most[k]; \
            } \
        for (uint32_t i = 0; i < count; i += 4) \
            for (uint32_t k = 0; k < 4; k++) { \
                const double x = (double)a[i + k], d = (double)b[i + k] - x; \
                unequal[k] += (uint64_t)(d != 0); \
                outside[k] += (uint64_t)(mb_size(d) > tolerance.atol + tolerance.rtol * mb_size(x)); \
            } \
        return mb_compare_finish((const double (*)[4])sums, most, unequal, outside, part); \
    }

MB_DEFINE_COMPARE(mb_compare_f32_plain, float)
MB_DEFINE_COMPARE(mb_compare_f64_plain, double)

/* Compare any elements one by one; the slow path. `count`: the elements of one block. */
static inline void mb_compare_any(uint32_t a_code, const uint8_t *a, uint32_t b_code, const uint8_t *b, uint64_t count, mb_tolerance tolerance, mb_comparison *part) {
    const size_t a_nbytes = mb_number_nbytes(a_code), b_nbytes = mb_number_nbytes(b_code);
    memset(part, 0, sizeof *part);
    for (uint64_t i = 0; i < count; i++, a += a_nbytes, b += b_nbytes) {
        double a_rest, b_rest;
        const double x = mb_wide_number(a_code, a, &a_rest), y = mb_wide_number(b_code, b, &b_rest);
        part->count++;
        if (x - x == 0 && y - y == 0) { /* both finite */
            const double d = (y - x) + (b_rest - a_rest), distance = mb_size(d);
            const double u = x + a_rest, v = y + b_rest;
            part->finite++;
            part->sums[MB_SUM_A] += u, part->sums[MB_SUM_B] += v;
            part->sums[MB_SUM_AA] += u * u, part->sums[MB_SUM_BB] += v * v, part->sums[MB_SUM_AB] += u * v;
            part->sums[MB_SUM_DISTANCE] += distance, part->sums[MB_SUM_NOISE] += d * d;
            if (distance > part->most) part->most = distance;
            part->unequal += d != 0;
            part->outside += distance > tolerance.atol + tolerance.rtol * mb_size(u);
        } else {
            const bool same = a_code == b_code ? memcmp(a, b, a_nbytes) == 0 : memcmp(&x, &y, sizeof x) == 0;
            part->mismatched += !same, part->unequal += !same, part->outside += !same;
        }
    }
}

#endif
