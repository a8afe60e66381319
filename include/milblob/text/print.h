/* text/print.h: writes characters and numbers of MIL text through a buffer of the caller's.
 *
 * A full buffer goes to `flush`, so a text of any size passes through a small one. After a flush that refuses,
 * nothing more is written; callers look at `stopped` once per statement.
 *
 * Reals are the shortest C99 hexadecimal of the value as a double, as Apple's compiler writes them: 0x1.8a4p-4, 0x0p+0,
 * a half that is subnormal normalised. All bits but the payload of a NaN come back when number.h reads them. */
#ifndef MILBLOB_TEXT_PRINT_H
#define MILBLOB_TEXT_PRINT_H

#include "milblob/kernels/varint.h"

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

/* The eight digits of a number below 10^8, one in each byte, the first in the lowest. All at once: quotients by 10,000,
 * then of both halves by 100, then of all quarters by 10. The factors are exact for so few digits. */
MB_STEP uint64_t mb_eight_digits(uint32_t value) {
    uint64_t word = value / 10000 | (uint64_t)(value % 10000) << 32;
    uint64_t hundreds = word * 10486 >> 20 & 0x0000007f0000007fu;
    word = hundreds | (word - 100 * hundreds) << 16;
    uint64_t tens = word * 103 >> 10 & 0x000f000f000f000fu;
    return tens | (word - 10 * tens) << 8;
}

/* The same without leading zeros; writes eight bytes, returns how many of them are digits. */
MB_STEP uint32_t mb_few_digits(uint8_t *dst, uint32_t value) {
    uint64_t word = mb_eight_digits(value);
    uint32_t zeros = mb_lowest_bit(word | (uint64_t)1 << 56) / 8; /* the last digit is one in any case */
    mb_store_u64(dst, (word + 0x3030303030303030u) >> 8 * zeros);
    return 8 - zeros;
}

/* A number of digits, most significant first, at dst, which has room for 24; returns how many characters. Random lengths
 * would cost a wrong guess of the processor each, so there is a branch only for each eight digits. */
MB_STEP uint32_t mb_digits(uint8_t *dst, uint64_t value) {
    if (value < 100000000) return mb_few_digits(dst, (uint32_t)value);
    uint64_t high = value / 100000000;
    uint32_t at;
    if (high < 100000000) {
        at = mb_few_digits(dst, (uint32_t)high);
    } else {
        at = mb_few_digits(dst, (uint32_t)(high / 100000000));
        mb_store_u64(dst + at, mb_eight_digits((uint32_t)(high % 100000000)) + 0x3030303030303030u);
        at += 8;
    }
    mb_store_u64(dst + at, mb_eight_digits((uint32_t)(value % 100000000)) + 0x3030303030303030u);
    return at + 8;
}

static inline void mb_print_count(mb_print *print, uint64_t value) {
    uint8_t *dst = mb_print_room(print, MB_PRINT_MOST);
    print->at += mb_digits(dst, value);
}

/* An integer of at most 21 characters. */
MB_STEP uint32_t mb_integer_write(uint8_t *dst, uint64_t value, bool is_signed) {
    uint64_t negative = is_signed ? value >> 63 : 0; /* without a branch: weights have either sign */
    dst[0] = '-';
    return (uint32_t)negative + mb_digits(dst + negative, (value ^ (0 - negative)) + negative);
}

/* The hexadecimal digits of 32 bits as eight characters, the highest first in memory. */
MB_STEP void mb_hex_write(uint8_t *dst, uint32_t value) {
    uint64_t word = (value >> 24) | (value >> 8 & 0xff00) | (value << 8 & 0xff0000) | (value << 24);
    word = (word | word << 16) & 0x0000ffff0000ffffu; /* four bytes, each to sixteen bits, the highest below */
    word = (word | word << 8) & 0x00ff00ff00ff00ffu;
    word = (word >> 4 & 0x000f000f000f000fu) | (word & 0x000f000f000f000fu) << 8;
    uint64_t letters = (word + 0x0606060606060606u) >> 4 & 0x0101010101010101u; /* 1 where the digit is above 9 */
    mb_store_u64(dst, word + 0x3030303030303030u + letters * ('a' - '0' - 10));
}

/* A binary floating-point number from its bits; at most 26 characters: -0x1.fffffffffffffp+1023 is 24. Up to 32 are
 * written at dst.
 * fraction_nbits, exponent_nbits: of the format; finite_only: no infinities, the all-ones pattern alone is NaN. */
MB_STEP uint32_t mb_real_write(uint8_t *dst, uint64_t bits, uint32_t fraction_nbits, uint32_t exponent_nbits, bool finite_only) {
    const uint8_t *start = dst;
    const uint64_t ones = ((uint64_t)1 << exponent_nbits) - 1;
    uint64_t fraction = bits & (((uint64_t)1 << fraction_nbits) - 1), biased = bits >> fraction_nbits & ones;
    dst[0] = '-';
    dst += bits >> (fraction_nbits + exponent_nbits) & 1; /* without a branch: weights have either sign */
    if (biased == ones && (!finite_only || fraction == ((uint64_t)1 << fraction_nbits) - 1)) {
        memcpy(dst, fraction != 0 ? "nan" : "inf", 3);
        dst += 3;
        if (fraction == 0 || finite_only || fraction == (uint64_t)1 << (fraction_nbits - 1)) return (uint32_t)(dst - start);
        memcpy(dst, "(0x", 3); /* a NaN that is not the usual quiet one, as C writes it: nan(0x1) */
        dst += 3;
        for (uint32_t nbits = (63 - mb_leading_zeros(fraction)) / 4 * 4 + 4; nbits != 0; nbits -= 4)
            *dst++ = (uint8_t)"0123456789abcdef"[fraction >> (nbits - 4) & 15];
        *dst++ = ')';
        return (uint32_t)(dst - start);
    }
    if (biased == 0 && fraction == 0) {
        memcpy(dst, "0x0p+0", 6);
        return (uint32_t)(dst + 6 - start);
    }
    int32_t exponent = (int32_t)biased - (int32_t)(ones >> 1);
    fraction <<= 64 - fraction_nbits; /* the first bit after the point on top */
    if (biased == 0) { /* subnormal: its highest bit goes before the point */
        uint32_t zeros = mb_leading_zeros(fraction);
        fraction = fraction << zeros << 1;
        exponent -= (int32_t)zeros;
    }
    memcpy(dst, "0x1.", 4);
    mb_hex_write(dst + 4, (uint32_t)(fraction >> 32));
    if (fraction_nbits > 32) mb_hex_write(dst + 12, (uint32_t)fraction);
    /* The digits up to the last that is not 0; without digits the point is left out too. */
    dst += 3 + (fraction != 0 ? 17 - mb_lowest_bit(fraction | (fraction == 0)) / 4 : 0);
    dst[0] = 'p';
    dst[1] = exponent < 0 ? '-' : '+';
    uint32_t size = (uint32_t)(exponent < 0 ? -exponent : exponent);
    dst += 2; /* nearly all have one digit or two: a branch is guessed right */
    if (size < 10) dst[0] = (uint8_t)('0' + size);
    else if (size < 100) dst[0] = (uint8_t)('0' + size / 10), dst[1] = (uint8_t)('0' + size % 10);
    else return (uint32_t)(dst - start) + mb_few_digits(dst, size);
    return (uint32_t)(dst - start) + (size < 10 ? 1 : 2);
}

#endif
