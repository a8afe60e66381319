/* kernels/varint.h: arrays of protobuf varints, the payload of TensorValue's ints, longInts and bools.
 *
 * A varint holds seven bits a byte, lowest first; the top bit of a byte is set if another follows. A negative int32 or
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

/* Number of zero bits above the highest set one; value must not be 0. */
MB_STEP unsigned mb_leading_zeros(uint64_t value) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanReverse64(&index, value);
    return 63u - (unsigned)index;
#else
    return (unsigned)__builtin_clzll(value);
#endif
}

/* Eight groups of seven bits, one per byte (top bits are ignored), to 56 bits in a row. */
MB_STEP uint64_t mb_varint_close(uint64_t word) {
    word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
    word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
    return (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
}

/* The inverse: the low 56 bits spread to seven per byte, top bits 0. */
MB_STEP uint64_t mb_varint_open(uint64_t value) {
    value = (value & 0x000000000fffffffu) | (value & 0x00fffffff0000000u) << 4;
    value = (value & 0x00003fff00003fffu) | (value & 0x0fffc0000fffc000u) << 2;
    return (value & 0x007f007f007f007fu) | (value & 0x3f803f803f803f80u) << 1;
}

/* The number of varints in a buffer: of bytes whose top bit is clear.
 * in   src: nbytes bytes, any alignment
 * over-reads: none      fails: never (an unfinished last varint is not counted; the decoder refuses it)               */
MB_KERNEL uint64_t mb_varint_count(const uint8_t *src, uint64_t nbytes) {
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
MB_STEP unsigned mb_varint_take(const uint8_t *at, uint64_t *value, uint64_t *bad) {
    uint64_t word = mb_load_u64(at);
    uint64_t stop = ~word & MB_VARINT_HIGH;
    uint64_t more = stop == 0, ninth = at[8], tenth = at[9], two = more & ninth >> 7;
    *value = mb_varint_close(word & (stop ^ (stop - 1))) | ((ninth & 0x7f) << 56 & (0 - more)) | (tenth << 63 & (0 - two));
    *bad |= two & (uint64_t)(tenth > 1);
    return (mb_lowest_bit(stop | UINT64_C(1) << 63) >> 3) + 1u + (unsigned)(more + two);
}

/* The same for the field `ints`, whose values are 32 bits: one to five bytes, or ten for a negative one. Any other form
 * (padded, or too wide) sets *bad, and the careful pass decides whether it is legal.                                  */
MB_STEP unsigned mb_varint_take_ints(const uint8_t *at, uint64_t *value, uint64_t *bad) {
    uint64_t word = mb_load_u64(at);
    uint64_t stop = ~word & MB_VARINT_HIGH;
    uint64_t more = stop == 0, tail = (uint64_t)at[8] | (uint64_t)at[9] << 8;
    uint64_t own = word & (stop ^ (stop - 1));
    *value = (own & 0x7f) | (own >> 1 & 0x3f80) | (own >> 2 & 0x1fc000) | (own >> 3 & 0xfe00000) | (own >> 4 & 0xf0000000u);
    *bad |= (own >> 36 ^ (0x0fffffff & (0 - more))) | (more & ((uint64_t)(tail != 0x01ff) | (~own >> 35 & 1)));
    return (mb_lowest_bit(stop | UINT64_C(1) << 63) >> 3) + 1u + 2u * (unsigned)more;
}

/* The first varint boundary at or after byte `at` of src, at most nbytes. */
static inline uint64_t mb_varint_boundary(const uint8_t *src, uint64_t at, uint64_t nbytes) {
    while (at > 0 && at < nbytes && src[at - 1] >= 0x80) at++;
    return at;
}

/* Decode count varints to elements of one width.
 * in   src: nbytes bytes, any alignment                         out  dst: count elements; must not overlap src
 * over-reads: none      fails: MB_TRUNCATED, MB_VARINT, MB_RANGE (index in error->expected, value in error->got),
 *                       MB_COUNT (bytes left after count elements); error->offset counts from src
 * what dst holds after a failure is unspecified
 *
 * The length of a varint is known only when its bytes are, so one cursor waits for itself about twelve cycles per
 * element. Long arrays are therefore cut in two at a varint boundary and two cursors take turns (three and four were
 * slower: too few registers); the quick pass only notes that something was odd, and the careful one, from the start,
 * names the fault and its place.                                                                                     */
#define MB_DEFINE_VARINT_DECODE(name, type, take, ranged) \
    MB_KERNEL mb_status name##_careful(type *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, mb_error *error) { \
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
    MB_KERNEL mb_status name(type *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, mb_error *error) { \
        /* The last byte ends a varint, so either part ends with one too, and the quick pass counted everything that \
         * is taken from a part up to the first malformed one. Nothing is taken after that: a run of 0x80 would be \
         * many bad elements, counted once. */ \
        if (count < 64 || nbytes < count || src[nbytes - 1] >= 0x80) return name##_careful(dst, src, nbytes, count, lo, hi, error); \
        const uint64_t span = (uint64_t)hi - (uint64_t)lo; \
        const bool small_fit = lo <= 0 && hi >= 0x7f; \
        const uint8_t *half = src + mb_varint_boundary(src, nbytes / 2, nbytes); \
        const uint8_t *at[2] = {src, half}, *end[2] = {half, src + nbytes}; \
        uint64_t first = mb_varint_count(src, (uint64_t)(half - src)); \
        if (first + mb_varint_count(half, (uint64_t)(end[1] - half)) != count) return name##_careful(dst, src, nbytes, count, lo, hi, error); \
        type *to[2] = {dst, dst + first}; \
        uint64_t bad = 0; \
        /* A part's cursor is always before its end. The distance to the end of src guarantees ten readable bytes, so \
         * the last part stops early. Each part ends at a boundary, so its elements are exactly its own. */ \
        const uint8_t *last = src + nbytes - 10; \
        const uint8_t *stop[2] = {end[0] < last ? end[0] : last, last}; \
        /* The bounds of writing do not depend on the counts alone: another thread may change the bytes in the \
         * meantime. */ \
        type *limit[2] = {dst + first, dst + count}; \
        uint64_t left = first < count - first ? first : count - first; \
        while (bad == 0 && left >= 8 && at[0] < stop[0] && at[1] < stop[1]) { \
            const uint64_t words[2] = {mb_load_u64(at[0]), mb_load_u64(at[1])}, any = words[0] | words[1]; \
            bool room = stop[0] - at[0] >= 8 && stop[1] - at[1] >= 8; \
            if ((any & MB_VARINT_HIGH) == 0 && small_fit && room) { \
                for (int k = 0; k < 2; k++) { \
                    uint8_t eight[8]; \
                    mb_store_u64(eight, words[k]); /* what was looked at: src itself may have changed */ \
                    for (int j = 0; j < 8; j++) to[k][j] = (type)eight[j]; \
                    to[k] += 8; \
                    at[k] += 8; \
                } \
                left -= 8; \
                continue; \
            } \
            left--; \
            for (int k = 0; k < 2; k++) { \
                uint64_t value; \
                at[k] += take(at[k], &value, &bad); \
                if (ranged) bad |= (uint64_t)(value - (uint64_t)lo > span); \
                *to[k]++ = (type)value; \
            } \
        } \
        for (int k = 0; k < 2; k++) { \
            while (at[k] < stop[k] && to[k] < limit[k] && bad == 0) { \
                uint64_t value; \
                at[k] += take(at[k], &value, &bad); \
                if (ranged) bad |= (uint64_t)(value - (uint64_t)lo > span); \
                *to[k]++ = (type)value; \
            } \
            while (at[k] < end[k] && to[k] < limit[k] && bad == 0) { \
                uint64_t value = 0; \
                mb_status status = MB_OK; \
                unsigned length = mb_varint_read(at[k], (uint64_t)(end[k] - at[k]), &value, &status); \
                bad |= (uint64_t)(length == 0) | (uint64_t)(value - (uint64_t)lo > span); \
                at[k] += length; \
                *to[k]++ = (type)value; \
            } \
        } \
        bad |= (uint64_t)(to[0] != limit[0] || to[1] != limit[1]); \
        return bad ? name##_careful(dst, src, nbytes, count, lo, hi, error) : MB_OK; \
    }

MB_DEFINE_VARINT_DECODE(mb_varint_decode_8, uint8_t, mb_varint_take, true)
MB_DEFINE_VARINT_DECODE(mb_varint_decode_16, uint16_t, mb_varint_take, true)
MB_DEFINE_VARINT_DECODE(mb_varint_decode_32, uint32_t, mb_varint_take, true)
MB_DEFINE_VARINT_DECODE(mb_varint_decode_64, uint64_t, mb_varint_take, true)

/* For 32-bit elements of the field `ints`: lo is INT32_MIN and hi UINT32_MAX, the range of five bytes. */
MB_DEFINE_VARINT_DECODE(mb_varint_decode_ints, uint32_t, mb_varint_take_ints, false)

enum { MB_BOOLS_BLOCK = 256 }; /* of 64 it is slower by a sixth, of 512 by half: compilers unroll this one */

/* Decode count bools: the common case, every byte 0 or 1, is a check and a copy; anything else goes the general way.   */
MB_KERNEL mb_status mb_varint_decode_bool(uint8_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, mb_error *error) {
    uint64_t done = 0;
    while (nbytes == count && count - done >= MB_BOOLS_BLOCK) {
        uint8_t seen = 0;
        memcpy(dst + done, src + done, MB_BOOLS_BLOCK); /* before they are looked at: src may change in between */
        MB_ONCE();
        for (uint64_t k = 0; k < MB_BOOLS_BLOCK; k++) seen |= dst[done + k];
        if (seen > 1) break;
        done += MB_BOOLS_BLOCK;
    }
    mb_status status = mb_varint_decode_8(dst + done, src + done, nbytes - done, count - done, 0, 1, error);
    if (status != MB_OK) {
        error->offset += done, error->expected += done;
        if (status != MB_RANGE) error->got += done;
    }
    return status;
}

/* Decode as many varints as are plainly right, from the first on: kernels of a tier, which the plain decoder follows.
 * in   src: nbytes bytes, any alignment; lo..hi as above
 * out  dst: count elements of the kind, aligned; must not overlap src      *taken: bytes of src that are done
 * returns the elements that are done; src + *taken begins the next varint      over-reads: none      fails: never       */
enum mb_varint_run_kind { MB_RUN_8, MB_RUN_16, MB_RUN_32, MB_RUN_64, MB_RUN_INTS, MB_RUN_COUNT };
typedef uint64_t (*mb_varint_run_kernel)(void *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, uint64_t *taken);

MB_KERNEL uint64_t mb_varint_run_plain(void *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, uint64_t *taken) {
    (void)dst, (void)src, (void)nbytes, (void)count, (void)lo, (void)hi;
    return *taken = 0;
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

/* The same without a loop: (bits + 6) / 7, where zero has one bit. */
MB_STEP unsigned mb_varint_length_of(uint64_t value) { return ((63u - mb_leading_zeros(value | 1)) * 9 + 73) / 64; }

/* Kernels of encoding: the bytes that count elements, aligned, take as varints; and the encoder, see MB_DEFINE_VARINT_ENCODE. */
typedef uint64_t (*mb_varint_nbytes_kernel)(const void *elements, uint64_t count);
typedef uint64_t (*mb_varint_encode_kernel)(uint8_t *dst, uint64_t dst_nbytes, const void *elements, uint64_t count);

/* The bytes that count elements take as varints. Only compares with zero: compilers make vector code of it. The narrow
 * form is for types of 32 bits or less, which take one to five bytes, or ten when negative.                          */
#define MB_DEFINE_VARINT_NBYTES(name, type, target) \
    target MB_KERNEL uint64_t name(const void *elements, uint64_t count) { \
        const type *src = (const type *)elements; \
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

MB_KERNEL uint64_t mb_varint_nbytes_i64(const void *elements, uint64_t count) {
    const int64_t *src = (const int64_t *)elements;
    uint64_t nbytes = 0;
    for (uint64_t i = 0; i < count; i++) nbytes += mb_varint_length_of((uint64_t)src[i]);
    return nbytes;
}

/* Encode count elements as varints.
 * in   elements: aligned                                         out  dst: dst_nbytes bytes, as the _nbytes twin gave
 * over-writes: none, even if the elements have changed since they were counted      fails: never
 * returns the bytes written, or dst_nbytes + 1 if the elements take more than there is room for; unless all dst_nbytes were
 * written the elements have changed, and dst is of no use                                                              */
#define MB_DEFINE_VARINT_ENCODE(name, type, put, wide) \
    MB_KERNEL uint64_t name(uint8_t *dst, uint64_t dst_nbytes, const void *elements, uint64_t count) { \
        const type *src = (const type *)elements; \
        uint8_t *at = dst, *end = dst + dst_nbytes; \
        uint64_t i = 0; \
        for (; count - i >= 8 && end - at >= 80; i += 8) { \
            /* In registers: from an array, even one of its own, compilers make code that is slower by a fifth. */ \
            const wide a = src[i], b = src[i + 1], c = src[i + 2], d = src[i + 3], e = src[i + 4], f = src[i + 5], g = src[i + 6], h = src[i + 7]; \
            MB_ONCE(); \
            if ((uint64_t)(int64_t)(a | b | c | d | e | f | g | h) < 0x80) { /* eight small ones in a row, the common case, are eight bytes */ \
                const uint64_t low = (uint64_t)a | (uint64_t)b << 8 | (uint64_t)c << 16 | (uint64_t)d << 24; \
                mb_store_u64(at, low | (uint64_t)e << 32 | (uint64_t)f << 40 | (uint64_t)g << 48 | (uint64_t)h << 56); \
                at += 8; \
                continue; \
            } \
            /* There is room for ten bytes each: all ten are stored, and what is too much the next one overwrites. */ \
            at += put(at, a), at += put(at, b), at += put(at, c), at += put(at, d); \
            at += put(at, e), at += put(at, f), at += put(at, g), at += put(at, h); \
        } \
        for (; i < count; i++) { \
            const uint64_t value = (uint64_t)(int64_t)src[i]; \
            MB_ONCE(); \
            if (mb_varint_length_of(value) > (uint64_t)(end - at)) return dst_nbytes + 1; \
            at += mb_varint_write(at, value); \
        } \
        return (uint64_t)(at - dst); \
    }

/* Write one varint where ten bytes may be written; no branch depends on its length, which is returned. */
MB_STEP unsigned mb_varint_put(uint8_t *dst, int64_t element) {
    uint64_t value = (uint64_t)element;
    unsigned length = mb_varint_length_of(value);
    unsigned whole = length < 9 ? length - 1 : 7;
    uint64_t more = MB_VARINT_HIGH & ((UINT64_C(1) << (8 * whole)) - 1);
    mb_store_u64(dst, mb_varint_open(value) | more | (uint64_t)(length > 8) << 63);
    dst[8] = (uint8_t)((value >> 56 & 0x7f) | (value >> 63) << 7);
    dst[9] = 1; /* the tenth byte can only be bit 63 */
    return length;
}

/* The same for 32 bits. The number of leading zeros decides everything: of a negative element it is 0, and then bytes
 * five to eight are all ones and the tenth is 1. Length and continuation bits come from a table of 33 rows.           */
MB_STEP unsigned mb_varint_put_32(uint8_t *dst, int32_t element) {
    static const uint64_t more[11] = {0, 0, 0x80, 0x8080, 0x808080, 0x80808080u, 0, 0, 0, 0, 0};
    static const uint8_t lengths[33] = {10, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1};
    uint64_t value = (uint32_t)element, negative = 0 - (value >> 31);
    unsigned length = lengths[mb_leading_zeros(value | 1) - 32];
    uint64_t word = (value & 0x3fff) | (value & 0xfffc000) << 2;
    word = (word & 0x007f007f) | (word & 0x3f803f80) << 1;
    word |= (value & 0xf0000000u) << 4 | (negative & 0xfffffff080808080u) | more[length];
    mb_store_u64(dst, word);
    dst[8] = 0xff;
    dst[9] = 1;
    return length;
}

MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i16, int16_t, )
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_u16, uint16_t, )
MB_DEFINE_VARINT_NBYTES(mb_varint_nbytes_i32, int32_t, )

MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i16, int16_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_u16, uint16_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i32, int32_t, mb_varint_put_32, int32_t)
MB_DEFINE_VARINT_ENCODE(mb_varint_encode_i64, int64_t, mb_varint_put, int64_t)

#endif
