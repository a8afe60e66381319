/* varint.h: arrays of protobuf varints, the payload of TensorValue's ints, longInts and bools.
 *
 * A varint holds seven bits a byte, lowest first; the top bit of a byte says that another follows. A negative int32 or
 * int64 is its 64-bit two's complement, ten bytes. The kernels below look at eight bytes at a time: `~word & HIGH` has
 * the top bit of every byte that ends a varint, so its lowest set bit gives the length without a loop or a branch on it,
 * and three shift-and-mask steps close the gaps that the flag bits leave (7 -> 14 -> 28 -> 56 bits).
 *
 * Range is checked on the 64-bit value: lo <= (int64_t)value <= hi, or the element's index is reported. */
#ifndef MILBLOB_VARINT_H
#define MILBLOB_VARINT_H

#include "milblob/base.h"

#if defined(_MSC_VER)
#include <intrin.h>
#endif

#define MB_VARINT_HIGH 0x8080808080808080u

/* Index of the lowest set bit; value must not be 0. */
static inline unsigned mb_lowest_bit(uint64_t value) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanForward64(&index, value);
    return (unsigned)index;
#else
    return (unsigned)__builtin_ctzll(value);
#endif
}

/* Eight groups of seven bits, one per byte (top bits are ignored), to 56 bits in a row. */
static inline uint64_t mb_varint_close(uint64_t word) {
    word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
    word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
    return (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
}

/* The inverse: the low 56 bits spread to seven per byte, top bits 0. */
static inline uint64_t mb_varint_open(uint64_t value) {
    value = (value & 0x000000000fffffffu) | (value & 0x00fffffff0000000u) << 4;
    value = (value & 0x00003fff00003fffu) | (value & 0x0fffc0000fffc000u) << 2;
    return (value & 0x007f007f007f007fu) | (value & 0x3f803f803f803f80u) << 1;
}

/* The number of varints in a buffer: of bytes whose top bit is clear.
 * in   src: nbytes bytes, any alignment
 * over-reads: none      fails: never (an unfinished last varint is not counted; the decoder refuses it)               */
static inline uint64_t mb_varint_count(const uint8_t *src, uint64_t nbytes) {
    uint64_t count = 0;
    /* Blocks of 255 rows of 64 keep byte-wide sums from overflowing and let the compiler add 64 lanes at a time. */
    while (nbytes >= 64) {
        uint8_t lanes[64] = {0};
        uint64_t rows = nbytes / 64 < 255 ? nbytes / 64 : 255;
        for (uint64_t row = 0; row < rows; row++, src += 64)
            for (int lane = 0; lane < 64; lane++) lanes[lane] = (uint8_t)(lanes[lane] + (uint8_t)(src[lane] < 0x80));
        for (int lane = 0; lane < 64; lane++) count += lanes[lane];
        nbytes -= rows * 64;
    }
    for (uint64_t i = 0; i < nbytes; i++) count += src[i] < 0x80;
    return count;
}

/* Read one varint the slow way, every byte checked. Returns its length, or 0 with *status set. */
static inline unsigned mb_varint_read(const uint8_t *src, uint64_t nbytes, uint64_t *value, mb_status *status) {
    uint64_t out = 0;
    for (unsigned i = 0; i < 10; i++) {
        if (i == nbytes) return *status = MB_TRUNCATED, 0u;
        if (i == 9 && src[i] > 1) break;
        out |= (uint64_t)(src[i] & 0x7f) << (7 * i);
        if (src[i] < 0x80) return *value = out, i + 1;
    }
    return *status = MB_VARINT, 0u;
}

/* Take one varint from at least ten readable bytes; no branch depends on its length. Returns the length, 1..10, and
 * sets bit 0 of *bad if the tenth byte has bits past the 64th. Without a stop in the first eight bytes `more` is 1; with
 * a ninth byte that goes on, `two` is 1 as well.                                                                      */
static inline unsigned mb_varint_take(const uint8_t *at, uint64_t *value, uint64_t *bad) {
    uint64_t word = mb_load_u64(at);
    uint64_t stop = ~word & MB_VARINT_HIGH;
    uint64_t more = stop == 0, ninth = at[8], tenth = at[9], two = more & ninth >> 7;
    *value = mb_varint_close(word & (stop ^ (stop - 1))) | ((ninth & 0x7f) << 56 & (0 - more)) | (tenth << 63 & (0 - two));
    *bad |= two & (uint64_t)(tenth > 1);
    return (mb_lowest_bit(stop | UINT64_C(1) << 63) >> 3) + 1u + (unsigned)(more + two);
}

/* The same for -2^31 to 2^31 - 1 in their shortest form: one to five bytes, or ten of which the last five are known.
 * Anything else sets bits of *bad; it may then have gone one varint too far, and *value means nothing.                */
static inline unsigned mb_varint_take_32(const uint8_t *at, uint64_t *value, uint64_t *bad) {
    uint64_t word = mb_load_u64(at);
    uint64_t stop = ~word & MB_VARINT_HIGH;
    uint64_t sign = 0 - (uint64_t)(stop == 0), used = word & (stop ^ (stop - 1));
    uint64_t high = (used ^ sign) >> 35; /* bits from the 32nd on, and flags between them: all like the sign */
    uint32_t low = (uint32_t)used & 0x7f7f7f7fu;
    low = (low & 0x007f007fu) + ((low & 0x7f007f00u) >> 1);
    low = (low & 0x00003fffu) + ((low & 0x3fff0000u) >> 2);
    low |= (uint32_t)(used >> 32) << 28;
    *value = (uint64_t)low | sign << 32;
    *bad |= high | (sign & ((uint64_t)(at[8] ^ 0xff) | (uint64_t)(at[9] ^ 0x01)));
    return (mb_lowest_bit(stop | UINT64_C(1) << 63) >> 3) + 1u - 2u * (unsigned)sign;
}

/* Where the n-th varint ends; the end of src if there are fewer. */
static inline const uint8_t *mb_varint_skip(const uint8_t *src, const uint8_t *end, uint64_t n) {
    for (uint64_t seen; end - src >= 4096 && (seen = mb_varint_count(src, 4096)) <= n; src += 4096) n -= seen;
    while (n > 0 && src < end) n -= *src++ < 0x80;
    return src;
}

/* Decode count varints to elements of one width.
 * in   src: nbytes bytes, any alignment                         out  dst: count elements; must not overlap src
 * over-reads: none      fails: MB_TRUNCATED, MB_VARINT, MB_RANGE (index in error->expected, value in error->got),
 *                       MB_COUNT (bytes left after count elements); error->offset counts from src
 * what dst holds after a failure is unspecified
 *
 * The length of a varint is known only when its bytes are, so one cursor waits for itself at every element. Long arrays
 * are therefore cut in four parts of as many elements each, and four cursors take turns; the quick pass only notes that
 * something was wrong (or unusual), and the careful one, from the start, says what and where.
 *
 * No cursor passes the end of its part: it has as many final bytes (top bit clear) as elements, and a good step goes past
 * one of them. A bad one may go past two; no more than eight steps are made before `bad` is looked at. With eight and
 * eight and ten elements to come, ten bytes can therefore be read at each of them.
 *
 * whole: `take` itself accepts nothing outside lo..hi, so that the values need no look. */
#define MB_VARINT_STEP(k, type, take) \
    do { \
        uint64_t value; \
        at[k] += take(at[k], &value, &bad); \
        if (!whole) bad |= (uint64_t)(value - (uint64_t)lo > span); \
        to[k][i] = (type)value; \
    } while (0)

#define MB_DEFINE_VARINT_DECODE(name, type, take, least, most) \
    static inline mb_status name##_careful(type *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, mb_error *error) { \
        const uint8_t *at = src, *end = src + nbytes; \
        const uint64_t span = (uint64_t)hi - (uint64_t)lo; \
        for (uint64_t i = 0; i < count; i++) { \
            uint64_t value = 0; \
            mb_status status = MB_OK; \
            unsigned length = mb_varint_read(at, (uint64_t)(end - at), &value, &status); \
            if (length == 0) return mb_fail(error, status, (uint64_t)(at - src), count, i, "varint"); \
            if (value - (uint64_t)lo > span) return mb_fail(error, MB_RANGE, (uint64_t)(at - src), i, value, "element"); \
            at += length; \
            dst[i] = (type)value; \
        } \
        if (at != end) return mb_fail(error, MB_COUNT, (uint64_t)(at - src), count, count + 1, "elements"); \
        return MB_OK; \
    } \
    /* Decodes the first *done elements of each part, up to rest[k]; false if something was wrong. */ \
    static inline bool name##_quick(type *dst, const uint8_t *const *start, uint64_t count, int64_t lo, int64_t hi, const bool whole, const uint8_t **rest, uint64_t *done) { \
        const uint64_t span = (uint64_t)hi - (uint64_t)lo, each = count / 4; \
        const bool small_fit = lo <= 0 && hi >= 0x7f; \
        const uint8_t *at[4] = {start[0], start[1], start[2], start[3]}; \
        type *to[4] = {dst, dst + each, dst + 2 * each, dst + 3 * each}; \
        uint64_t bad = 0, i = 0; \
        while (i + 26 <= each && bad == 0) { \
            uint64_t any = mb_load_u64(at[0]) | mb_load_u64(at[1]) | mb_load_u64(at[2]) | mb_load_u64(at[3]); \
            if ((any & MB_VARINT_HIGH) == 0 && small_fit) { \
                for (int k = 0; k < 4; k++) { \
                    for (int j = 0; j < 8; j++) to[k][i + (uint64_t)j] = (type)at[k][j]; \
                    at[k] += 8; \
                } \
                i += 8; \
                continue; \
            } \
            for (uint64_t stop = i + 8; i < stop; i++) { \
                MB_VARINT_STEP(0, type, take); \
                MB_VARINT_STEP(1, type, take); \
                MB_VARINT_STEP(2, type, take); \
                MB_VARINT_STEP(3, type, take); \
            } \
        } \
        for (int k = 0; k < 4; k++) rest[k] = at[k]; \
        *done = i; \
        return bad == 0; \
    } \
    static inline mb_status name(type *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, mb_error *error) { \
        if (count < 128 || nbytes < count || src[nbytes - 1] >= 0x80) return name##_careful(dst, src, nbytes, count, lo, hi, error); \
        const uint8_t *end = src + nbytes, *start[5] = {src, NULL, NULL, NULL, end}, *rest[4]; \
        const uint64_t each = count / 4; \
        uint64_t done = 0; \
        for (int k = 1; k < 4; k++) start[k] = mb_varint_skip(start[k - 1], end, each); \
        bool good = mb_varint_count(start[3], (uint64_t)(end - start[3])) == count - each * 3; \
        if (good && lo <= (least) && hi >= (most)) good = name##_quick(dst, start, count, lo, hi, true, rest, &done); \
        else if (good) good = name##_quick(dst, start, count, lo, hi, false, rest, &done); \
        for (uint64_t k = 0; good && k < 4; k++) { \
            uint64_t left = (k < 3 ? each : count - each * 3) - done; \
            good = name##_careful(dst + each * k + done, rest[k], (uint64_t)(start[k + 1] - rest[k]), left, lo, hi, error) == MB_OK; \
        } \
        if (!good) return name##_careful(dst, src, nbytes, count, lo, hi, error); \
        return MB_OK; \
    }

MB_DEFINE_VARINT_DECODE(mb_varint_decode_8, uint8_t, mb_varint_take_32, -INT64_C(0x80000000), INT64_C(0x7fffffff))
MB_DEFINE_VARINT_DECODE(mb_varint_decode_16, uint16_t, mb_varint_take_32, -INT64_C(0x80000000), INT64_C(0x7fffffff))
MB_DEFINE_VARINT_DECODE(mb_varint_decode_32, uint32_t, mb_varint_take_32, -INT64_C(0x80000000), INT64_C(0x7fffffff))
MB_DEFINE_VARINT_DECODE(mb_varint_decode_64, uint64_t, mb_varint_take, INT64_MIN, INT64_MAX)

/* Decode count bools: the common case, every byte 0 or 1, is a check and a copy; anything else goes the general way.   */
static inline mb_status mb_varint_decode_bool(uint8_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, mb_error *error) {
    uint64_t done = 0;
    while (nbytes == count && count - done >= 64) {
        uint8_t seen = 0;
        for (int k = 0; k < 64; k++) seen |= src[done + (uint64_t)k];
        if (seen > 1) break;
        memcpy(dst + done, src + done, 64);
        done += 64;
    }
    mb_status status = mb_varint_decode_8(dst + done, src + done, nbytes - done, count - done, 0, 1, error);
    if (status) {
        error->offset += done;
        if (status == MB_RANGE) error->expected += done;
    }
    return status;
}

/* The bytes that one value takes as a varint: 1..10. */
static inline unsigned mb_varint_length(uint64_t value) {
    unsigned length = 1;
    for (; value >= 0x80; value >>= 7) length++;
    return length;
}

/* Write one varint the slow way; dst has room for mb_varint_length(value) bytes. Returns the length. */
static inline unsigned mb_varint_write(uint8_t *dst, uint64_t value) {
    unsigned length = 0;
    for (; value >= 0x80; value >>= 7) dst[length++] = (uint8_t)(value | 0x80);
    dst[length++] = (uint8_t)value;
    return length;
}

/* The bytes that count elements take as varints. Only compares with zero: compilers make vector code of it. The narrow
 * form is for types of 32 bits or less, which take one to five bytes, or ten when negative.                          */
#define MB_DEFINE_VARINT_NBYTES(name, type) \
    MB_NOINLINE static uint64_t name(const type *src, uint64_t count) { \
        uint64_t nbytes = 0; \
        while (count > 0) { \
            uint64_t block = count < 4096 ? count : 4096; /* ten bytes each: a 32-bit sum cannot overflow */ \
            uint32_t sum = 0; \
            for (uint64_t i = 0; i < block; i++) { \
                uint32_t value = (uint32_t)(int32_t)src[i]; \
                sum += 1 + (uint32_t)(value >> 7 != 0) + (uint32_t)(value >> 14 != 0) + (uint32_t)(value >> 21 != 0) + \
                       (uint32_t)(value >> 28 != 0) + 5 * (value >> 31); \
            } \
            nbytes += sum; \
            src += block; \
            count -= block; \
        } \
        return nbytes; \
    }

/* value must not be 0. */
static inline unsigned mb_leading_zeros(uint64_t value) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanReverse64(&index, value);
    return 63u - (unsigned)index;
#else
    return (unsigned)__builtin_clzll(value);
#endif
}

/* The bytes that a value takes: (bits + 6) / 7 for 1 to 64 bits. */
static inline unsigned mb_varint_nbytes(uint64_t value) { return ((63u - mb_leading_zeros(value | 1)) * 9 + 73) / 64; }

static inline uint64_t mb_varint_nbytes_i64(const int64_t *src, uint64_t count) {
    uint64_t nbytes = 0;
    for (uint64_t i = 0; i < count; i++) nbytes += mb_varint_nbytes((uint64_t)src[i]);
    return nbytes;
}

/* Write one varint where ten bytes may be written; no branch depends on its length, which is returned. */
static inline unsigned mb_varint_put(uint8_t *dst, uint64_t value) {
    unsigned length = mb_varint_nbytes(value);
    unsigned whole = length < 9 ? length - 1 : 7;
    uint64_t more = MB_VARINT_HIGH & ((UINT64_C(1) << (8 * whole)) - 1);
    mb_store_u64(dst, mb_varint_open(value) | more | (uint64_t)(length > 8) << 63);
    dst[8] = (uint8_t)((value >> 56 & 0x7f) | (value >> 63) << 7);
    dst[9] = 1; /* the tenth byte can only be bit 63 */
    return length;
}

/* Write one varint of a 32-bit value, sign-extended, where ten bytes may be written. What a length adds to the seven-bit
 * groups (top bits, and the sign's bytes) depends on the number of leading zeros only. Returns the length.            */
static inline unsigned mb_varint_put_32(uint8_t *dst, int32_t value) {
    static const uint64_t flags[32] = {
        0xfffffff080808080u, /* negative: ten bytes, of which these are the fifth to eighth */
        0x80808080u, 0x80808080u, 0x80808080u,
        0x808080u, 0x808080u, 0x808080u, 0x808080u, 0x808080u, 0x808080u, 0x808080u,
        0x8080u, 0x8080u, 0x8080u, 0x8080u, 0x8080u, 0x8080u, 0x8080u,
        0x80u, 0x80u, 0x80u, 0x80u, 0x80u, 0x80u, 0x80u,
    };
    static const uint8_t lengths[32] = {10, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1};
    uint32_t bits = (uint32_t)value, low = (bits & 0x3fffu) | (bits & 0x0fffc000u) << 2;
    unsigned zeros = mb_leading_zeros((uint64_t)bits | 1) - 32u;
    low = (low & 0x007f007fu) | (low & 0x3f803f80u) << 1;
    mb_store_u64(dst, (uint64_t)low | (uint64_t)(bits >> 28) << 32 | flags[zeros]);
    dst[8] = 0xff;
    dst[9] = 0x01;
    return lengths[zeros];
}

/* Encode count elements as varints.
 * in   src: count elements, aligned                             out  dst: dst_nbytes bytes, as the _nbytes twin gave
 * over-writes: none     fails: never; returns the bytes written                                                       */
#define MB_DEFINE_VARINT_ENCODE(name, type, put, wide) \
    static inline uint64_t name(uint8_t *dst, uint64_t dst_nbytes, const type *src, uint64_t count) { \
        uint8_t *at = dst, *end = dst + dst_nbytes; \
        uint64_t i = 0; \
        for (; count - i >= 8 && end - at >= 80; i += 8) { \
            uint64_t any = 0; \
            for (uint64_t k = 0; k < 8; k++) any |= (uint64_t)(int64_t)src[i + k]; \
            if (any < 0x80) { /* eight small ones in a row, the common case, are eight bytes */ \
                for (uint64_t k = 0; k < 8; k++) at[k] = (uint8_t)src[i + k]; \
                at += 8; \
                continue; \
            } \
            /* There is room for ten bytes each: all ten are stored, and what is too much the next one overwrites. */ \
            for (uint64_t k = 0; k < 8; k++) at += put(at, (wide)src[i + k]); \
        } \
        for (; i < count; i++) at += mb_varint_write(at, (uint64_t)(int64_t)src[i]); \
        return (uint64_t)(at - dst); \
    }

MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i8, int8_t)
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_u8, uint8_t)
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i16, int16_t)
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_u16, uint16_t)
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i32, int32_t)

MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i8, int8_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_u8, uint8_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i16, int16_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_u16, uint16_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i32, int32_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i64, int64_t, mb_varint_put, uint64_t)

#endif
