/* base.h: shared by every header: status codes, the error report, little-endian access, checked arithmetic.
 *
 * No header here includes Python.h, allocates or prints. A function that can fail returns an mb_status and, where it
 * takes an mb_error, fills it; messages are made one layer up (_codec.pyx), where file names and paths are known. */
#ifndef MILBLOB_BASE_H
#define MILBLOB_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* a * b + c rounds twice in every tier: if some CPUs fused the two operations, the tiers would give different bits. gcc
 * does not fuse with -std=c11 or c17. With gnu17, with C++, and under an option `fast`, which clang ranks above its
 * pragma, -ffp-contract=off is needed. Compilers that reorder sums, or assume that no NaN exists, cannot be used. */
#if defined(__FAST_MATH__) || defined(_M_FP_FAST) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "milblob computes with NaNs, and every CPU gives the same bits: compile it without -ffast-math, -Ofast or /fp:fast"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(_MSC_VER)
#pragma fp_contract(off)
#endif

/* MB_STEP: the few steps of inner loops that lose half their speed as calls; in a large unit compilers stop inlining
 * them. MB_KERNEL: whole loops, which lose as much when they are inlined into a caller and share its registers. */
#if defined(_MSC_VER)
#define MB_STEP static __forceinline
#define MB_KERNEL static __declspec(noinline)
#else
#define MB_STEP static inline __attribute__((always_inline))
#if defined(__clang__)
#define MB_KERNEL static __attribute__((noinline, unused))
#else /* GCC clears the upper halves of vector registers before a call only if it knows nothing of the callee */
#define MB_KERNEL static __attribute__((noipa, unused))
#endif
#endif

/* The source may change while it is read: by another thread, or by another process through a mapped file. Values copied
 * from it before MB_ONCE() are not read from it again afterwards. Without it, a compiler may read twice, and the value used
 * may differ from the one checked. Costs no instruction. */
#if defined(_MSC_VER)
#include <intrin.h>
#define MB_ONCE() _ReadWriteBarrier()
#else
#define MB_ONCE() __asm__ __volatile__("" ::: "memory")
#endif

/* Ask for memory that is read soon. It never faults, wherever it points. */
#if defined(_MSC_VER)
#define MB_FETCH(at) ((void)(at))
#else
#define MB_FETCH(at) __builtin_prefetch(at)
#endif

/* Stop the compiler where a condition does not hold: before a switch, and after a table. */
#ifdef __cplusplus
#define MB_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define MB_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

typedef enum mb_status {
    MB_OK = 0,
    MB_FULL,        /* not an error: the caller's output is too small; the result gives the size needed */
    MB_SPLIT,       /* not an error: a singular message came in pieces, or a map key twice; normalise, then retry */
    MB_TRUNCATED,   /* a structure of `expected` bytes starts at `offset`, only `got` bytes are left */
    MB_SENTINEL,    /* record sentinel is `got`, not 0xDEADBEEF */
    MB_VERSION,     /* storage version is `got`, not 2 */
    MB_COUNT,       /* a count of `got` where `expected` is right, or the most that fits */
    MB_DTYPE,       /* dtype code `got` is not in the table */
    MB_BOUNDS,      /* bytes [offset, offset + expected) reach past the end, which is at `got` */
    MB_OVERLAP,     /* bytes that start at `got` lie on others that end at `expected` */
    MB_OVERFLOW,    /* a sum or product found in the file does not fit 64 bits */
    MB_PADDING,     /* `got` padding bits do not leave a whole number of elements */
    MB_VARINT,      /* a varint of more than 10 bytes, or of more than 64 bits */
    MB_TAG,         /* wire type `got` where `expected` belongs */
    MB_NUMBER,      /* an impossible tag with the number `got`; `detail`: what was expected */
    MB_LENGTH,      /* a length prefix of `expected` bytes, only `got` bytes left in the message */
    MB_DEPTH,       /* messages, types or values nested deeper than `expected` */
    MB_RANGE,       /* element number `expected` has the value `got` (as its 64-bit pattern), outside its dtype */
    MB_UTF8,        /* bytes that are not UTF-8 */
    MB_SYNTAX,      /* MIL text: `detail`: what was expected at `offset` */
    MB_RANK,        /* a tensor type whose rank is `expected` lists `got` dimensions */
    MB_TYPE,        /* a value with no type, or whose type cannot hold it */
    MB_EDGE,        /* an edit of `got` bytes that does not begin and end where fields do */
    MB_TEXTLESS,    /* MIL text has no form for this; `detail` names it */
    MB_CHANGED      /* a source changed between two readings: the first one counted `expected` */
} mb_status;

/* Filled when a function returns anything but MB_OK. The meaning of `expected` and `got` stands beside each code. */
typedef struct mb_error {
    mb_status status;
    uint64_t offset;    /* from the start of the buffer that the function was given */
    uint64_t expected;
    uint64_t got;
    const char *detail; /* static text or NULL: what was being read, e.g. "record metadata" */
} mb_error;

static inline mb_status mb_fail(mb_error *error, mb_status status, uint64_t offset, uint64_t expected, uint64_t got,
                                const char *detail) {
    error->status = status;
    error->offset = offset;
    error->expected = expected;
    error->got = got;
    error->detail = detail;
    return status;
}

/* Little-endian loads and stores at any alignment. Bytes are combined by shifts, so the host's order and alignment
 * rules do not matter; compilers turn each into one move where they can. */
MB_STEP uint32_t mb_load_u32(const uint8_t *src) {
    return (uint32_t)src[0] | (uint32_t)src[1] << 8 | (uint32_t)src[2] << 16 | (uint32_t)src[3] << 24;
}

MB_STEP uint64_t mb_load_u64(const uint8_t *src) {
    return (uint64_t)src[0] | (uint64_t)src[1] << 8 | (uint64_t)src[2] << 16 | (uint64_t)src[3] << 24 |
           (uint64_t)src[4] << 32 | (uint64_t)src[5] << 40 | (uint64_t)src[6] << 48 | (uint64_t)src[7] << 56;
}

MB_STEP void mb_store_u64(uint8_t *dst, uint64_t value) {
    dst[0] = (uint8_t)value, dst[1] = (uint8_t)(value >> 8), dst[2] = (uint8_t)(value >> 16), dst[3] = (uint8_t)(value >> 24);
    dst[4] = (uint8_t)(value >> 32), dst[5] = (uint8_t)(value >> 40), dst[6] = (uint8_t)(value >> 48), dst[7] = (uint8_t)(value >> 56);
}

/* Index of the lowest set bit; value must not be 0. */
MB_STEP unsigned mb_lowest_bit(uint64_t value) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanForward64(&index, value);
    return (unsigned)index;
#else
    return (unsigned)__builtin_ctzll(value);
#endif
}

/* Checked arithmetic on numbers found in a file: true and *out set, or false and *out untouched. */
static inline bool mb_add(uint64_t a, uint64_t b, uint64_t *out) {
    if (a > UINT64_MAX - b) return false;
    *out = a + b;
    return true;
}

static inline bool mb_mul(uint64_t a, uint64_t b, uint64_t *out) {
    if (b != 0 && a > UINT64_MAX / b) return false;
    *out = a * b;
    return true;
}

/* The next multiple of 64 at or after `offset`, checked. */
static inline bool mb_align64(uint64_t offset, uint64_t *out) {
    if (!mb_add(offset, 63, out)) return false;
    *out &= ~(uint64_t)63;
    return true;
}

#endif
