/* text/print.h: writes characters and numbers of MIL text through a buffer of the caller's.
 *
 * What fills the buffer goes to `flush`, so a text of any size passes through a small one. After a flush that refuses,
 * nothing more is written; callers look at `stopped` once per statement.
 *
 * Reals are the shortest C99 hexadecimal of the value as a double, as Apple's compiler writes them: 0x1.8a4p-4, 0x0p+0,
 * a half that is subnormal normalised. All bits but the payload of a NaN come back when number.h reads them. */
#ifndef MILBLOB_TEXT_PRINT_H
#define MILBLOB_TEXT_PRINT_H

#include "milblob/base.h"

enum { MB_PRINT_MOST = 64 }; /* no single thing that is written in one step is longer; the least capacity */

/* Takes bytes that are good until it returns; 0: it refuses, and wants no more. An int: it is often not written in C. */
typedef int (*mb_flush)(void *context, const uint8_t *bytes, uint64_t nbytes);

typedef struct mb_print {
    uint8_t *out;      /* capacity bytes, owned by the caller */
    uint64_t capacity; /* MB_PRINT_MOST or more */
    uint64_t at;
    mb_flush flush;    /* takes out[0, at); NULL: nothing is kept, for a run that only checks */
    void *context;
    bool stopped;      /* flush refused */
} mb_print;

/* Empty the buffer. */
static inline bool mb_print_flush(mb_print *print) {
    if (print->at > 0 && !print->stopped && print->flush != NULL) print->stopped = print->flush(print->context, print->out, print->at) == 0;
    print->at = 0;
    return !print->stopped;
}

/* Room for nbytes <= MB_PRINT_MOST; the caller writes there and adds what it wrote to `at`. */
MB_STEP uint8_t *mb_print_room(mb_print *print, uint64_t nbytes) {
    if (nbytes > print->capacity - print->at) mb_print_flush(print);
    return print->out + print->at;
}

MB_STEP void mb_print_bytes(mb_print *print, const uint8_t *bytes, uint64_t nbytes) {
    if (nbytes <= print->capacity - print->at) { /* nearly always */
        memcpy(print->out + print->at, bytes, (size_t)nbytes);
        print->at += nbytes;
        return;
    }
    while (nbytes > 0) {
        if (print->at == print->capacity) mb_print_flush(print);
        uint64_t part = print->capacity - print->at;
        if (part > nbytes) part = nbytes;
        memcpy(print->out + print->at, bytes, (size_t)part);
        print->at += part;
        bytes += part;
        nbytes -= part;
    }
}

MB_STEP void mb_print_text(mb_print *print, const char *text) { mb_print_bytes(print, (const uint8_t *)text, strlen(text)); }

/* A number of digits, most significant first, at dst, which has room for 20; returns how many characters. Two digits at a time: a division costs more than
 * all the rest. */
MB_STEP uint32_t mb_digits(uint8_t *dst, uint64_t value) {
    static const char pairs[201] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
                                   "49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
                                   "9899";
    uint8_t digits[40]; /* the upper half is only there to be copied along: a copy of one size is one move or two */
    uint32_t at = 20;
    memset(digits + 20, 0, 20);
    if (value < 10) { /* most integers in a Program */
        dst[0] = (uint8_t)('0' + value);
        return 1;
    }
    while (value > UINT32_MAX) {
        at -= 2;
        memcpy(digits + at, pairs + 2 * (value % 100), 2);
        value /= 100;
    }
    uint32_t small = (uint32_t)value; /* dividing 32 bits is several times faster */
    while (small >= 10) {
        at -= 2;
        memcpy(digits + at, pairs + 2 * (small % 100), 2);
        small /= 100;
    }
    if (small > 0) digits[--at] = (uint8_t)('0' + small);
    memcpy(dst, digits + at, 20);
    return 20 - at;
}

static inline void mb_print_count(mb_print *print, uint64_t value) {
    uint8_t *dst = mb_print_room(print, 20);
    print->at += mb_digits(dst, value);
}

/* An integer of at most 21 characters. */
MB_STEP uint32_t mb_integer_write(uint8_t *dst, uint64_t value, bool is_signed) {
    if (!is_signed || value >> 63 == 0) return mb_digits(dst, value);
    dst[0] = '-';
    return 1 + mb_digits(dst + 1, 0 - value);
}

/* A binary floating-point number from its bits; at most 26 characters: -0x1.fffffffffffffp+1023 is 24.
 * fraction_nbits, exponent_nbits: of the format; finite_only: no infinities, the all-ones pattern alone is NaN. */
MB_STEP uint32_t mb_real_write(uint8_t *dst, uint64_t bits, uint32_t fraction_nbits, uint32_t exponent_nbits, bool finite_only) {
    static const uint8_t hex[16] = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
    const uint8_t *start = dst;
    const uint64_t ones = ((uint64_t)1 << exponent_nbits) - 1;
    uint64_t fraction = bits & (((uint64_t)1 << fraction_nbits) - 1), biased = bits >> fraction_nbits & ones;
    if (bits >> (fraction_nbits + exponent_nbits) & 1) *dst++ = '-';
    if (biased == ones && (!finite_only || fraction == ((uint64_t)1 << fraction_nbits) - 1)) {
        memcpy(dst, fraction != 0 ? "nan" : "inf", 3);
        return (uint32_t)(dst + 3 - start);
    }
    dst[0] = '0';
    dst[1] = 'x';
    if (biased == 0 && fraction == 0) {
        memcpy(dst + 2, "0p+0", 4);
        return (uint32_t)(dst + 6 - start);
    }
    int32_t exponent = (int32_t)biased - (int32_t)(ones >> 1);
    fraction <<= 64 - fraction_nbits; /* the first bit after the point on top */
    if (biased == 0) {
        exponent++;
        bool one; /* the bit that goes before the point */
        do {
            one = fraction >> 63;
            fraction <<= 1;
            exponent--;
        } while (!one);
    }
    dst[2] = '1';
    dst += 3;
    if (fraction != 0) {
        *dst++ = '.';
        do {
            *dst++ = hex[fraction >> 60];
            fraction <<= 4;
        } while (fraction != 0);
    }
    *dst++ = 'p';
    *dst++ = exponent < 0 ? '-' : '+';
    uint32_t size = (uint32_t)(exponent < 0 ? -exponent : exponent);
    if (size >= 1000) *dst++ = (uint8_t)('0' + size / 1000);
    if (size >= 100) *dst++ = (uint8_t)('0' + size / 100 % 10);
    if (size >= 10) *dst++ = (uint8_t)('0' + size / 10 % 10);
    *dst++ = (uint8_t)('0' + size % 10);
    return (uint32_t)(dst - start);
}

#endif
