/* text/number.h: parses the numbers of MIL text exactly.
 *
 * A real is read into mantissa * 2^exponent plus a "something is left" bit and rounded once (half to even) into the
 * required format, so an fp16 is correct even where going through a double would round twice. strtod is not used:
 * it follows the locale, needs a NUL and on some systems does not read hexadecimal.
 *
 * Hexadecimal (Apple's compiler writes nothing else): digits go into 64 bits, later ones only into the rest bit.
 * Decimal (hand-written files): the value is digits * 10^e = digits * 5^e * 2^e. A big integer holds the digits and is
 * multiplied by 5^e or, shifted left far enough, divided by 5^-e; the remainder of a division sets the rest bit. (Exact
 * scaling, as in Clinger's AlgorithmM, 1990; faster methods are not needed, because such files are small.) No double
 * and no midpoint between two has more than 768 significant digits, so digits past the 800th matter only as
 * "something is left". */
#ifndef MILBLOB_TEXT_NUMBER_H
#define MILBLOB_TEXT_NUMBER_H

#include "milblob/base.h"

enum {
    MB_REAL_MAX_DIGITS = 800, /* significant decimal digits that are kept */
    MB_REAL_MAX_DECADE = 400, /* 10^400 overflows and 10^-400 vanishes in every format */
    /* Worst case: 800 digits (2658 bits) shifted left for a division by 5^1200 (2787 bits) with 64 bits to spare. */
    MB_REAL_WORDS = 192
};

typedef enum mb_real_kind { MB_REAL_FINITE, MB_REAL_INF, MB_REAL_NAN } mb_real_kind;

/* mantissa * 2^exponent; the mantissa has its top bit set, or the value is zero. */
typedef struct mb_real {
    uint64_t mantissa;
    int64_t exponent;
    bool rest; /* the value is a little more than that, by less than one in the mantissa's last bit */
    bool negative;
    mb_real_kind kind;
} mb_real;

/* A binary floating-point format. */
typedef struct mb_real_format {
    uint32_t fraction_nbits;
    uint32_t exponent_nbits;
    bool finite_only; /* no infinities; the all-ones pattern alone is NaN (float8e4m3fn) */
} mb_real_format;

typedef struct mb_big {
    uint32_t word[MB_REAL_WORDS]; /* least significant first */
    uint32_t count;               /* words in use; the top one is not 0 */
} mb_big;

/* The bounds in the enum above keep count below MB_REAL_WORDS; a word that would not fit is dropped, never stored. */
static inline void mb_big_push(mb_big *big, uint32_t word) {
    if (word != 0 && big->count < MB_REAL_WORDS) big->word[big->count++] = word;
}

static inline void mb_big_multiply_add(mb_big *big, uint32_t factor, uint32_t addend) {
    uint64_t carry = addend;
    for (uint32_t i = 0; i < big->count; i++) {
        carry += (uint64_t)big->word[i] * factor;
        big->word[i] = (uint32_t)carry;
        carry >>= 32;
    }
    mb_big_push(big, (uint32_t)carry);
}

/* Divide in place and return the remainder. */
static inline uint32_t mb_big_divide(mb_big *big, uint32_t divisor) {
    uint64_t remainder = 0;
    for (uint32_t i = big->count; i-- > 0;) {
        remainder = remainder << 32 | big->word[i];
        big->word[i] = (uint32_t)(remainder / divisor);
        remainder %= divisor;
    }
    while (big->count > 0 && big->word[big->count - 1] == 0) big->count--;
    return (uint32_t)remainder;
}

/* Shift left by whole words. */
static inline void mb_big_shift(mb_big *big, uint32_t words) {
    if (words > MB_REAL_WORDS - big->count) return; /* ruled out by the bounds above */
    memmove(big->word + words, big->word, big->count * sizeof(uint32_t));
    memset(big->word, 0, words * sizeof(uint32_t));
    big->count += words;
}

/* Set the top bit of a mantissa that is not 0. */
static inline void mb_real_normalise(mb_real *real) {
    if (real->mantissa == 0) return;
    while (real->mantissa >> 63 == 0) {
        real->mantissa <<= 1;
        real->exponent--;
    }
}

/* digits * 10^decade, digits > 0. */
static inline void mb_real_of_decimal(mb_big *big, int64_t decade, mb_real *real) {
    enum { FIVE13 = 1220703125 }; /* the largest power of 5 in 32 bits */
    static const uint32_t fives[13] = {1,     5,      25,      125,     625,      3125,     15625,
                                       78125, 390625, 1953125, 9765625, 48828125, 244140625};
    int64_t exponent = decade;
    uint32_t steps = (uint32_t)(decade < 0 ? -decade : decade); /* at most 1200, see the caller */
    if (decade < 0) {
        /* 5^13 < 2^31, so this many words leave at least 64 significant bits after the division, and 32 to spare. */
        uint32_t words = steps * 31 / 13 / 32 + 4;
        mb_big_shift(big, words);
        exponent -= (int64_t)words * 32;
        for (; steps >= 13; steps -= 13) real->rest |= mb_big_divide(big, FIVE13) != 0;
        real->rest |= mb_big_divide(big, fives[steps]) != 0;
    } else {
        for (; steps >= 13; steps -= 13) mb_big_multiply_add(big, FIVE13, 0);
        mb_big_multiply_add(big, fives[steps], 0);
    }
    /* The top three words hold 64 significant bits. */
    uint32_t i = big->count;
    uint64_t high = 0;
    uint32_t taken = 0;
    while (i > 0 && taken < 2) {
        high = high << 32 | big->word[--i];
        taken++;
    }
    real->mantissa = high;
    real->exponent = exponent + (int64_t)i * 32;
    uint32_t next = i > 0 ? big->word[--i] : 0; /* bits that normalising brings in */
    while (real->mantissa >> 63 == 0) {
        real->mantissa = real->mantissa << 1 | next >> 31;
        next <<= 1;
        real->exponent--;
    }
    real->rest |= next != 0;
    while (i > 0 && !real->rest) real->rest = big->word[--i] != 0;
}

/* Read [+-]digits at *at; saturates, so a million digits are fine. False: no digit there. */
static inline bool mb_real_exponent(const uint8_t *text, uint64_t nbytes, uint64_t *at, int64_t *out) {
    const int64_t most = (int64_t)1 << 60;
    bool negative = false;
    if (*at < nbytes && (text[*at] == '-' || text[*at] == '+')) negative = text[(*at)++] == '-';
    uint64_t start = *at;
    int64_t value = 0;
    for (; *at < nbytes && (unsigned)(text[*at] - '0') < 10; (*at)++)
        value = value > most / 16 ? most : value * 10 + (text[*at] - '0');
    *out = negative ? -value : value;
    return *at > start;
}

static inline int mb_hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Hexadecimal digits after "0x", with the exponent after the p. NULL, or what is missing at *at. */
static inline const char *mb_real_hex(const uint8_t *text, uint64_t nbytes, uint64_t *at, mb_real *real) {
    uint64_t i = *at, mantissa = 0, start = i, dots = 0;
    int64_t exponent = 0;
    for (; i < nbytes; i++) {
        int digit = mb_hex_digit(text[i]);
        if (digit < 0) {
            if (text[i] != '.' || dots > 0 || i == start) break;
            dots = 1;
            continue;
        }
        if (mantissa >> 60 == 0) { /* room for four bits more */
            mantissa = mantissa << 4 | (uint64_t)digit;
            exponent -= dots ? 4 : 0;
        } else {
            real->rest |= digit != 0;
            exponent += dots ? 0 : 4; /* at most 4 * nbytes, far from 2^60 */
        }
    }
    *at = i;
    if (i == start) return "a hexadecimal digit";
    if (i >= nbytes || (text[i] | 0x20) != 'p') return "p and an exponent";
    *at = i + 1;
    int64_t written;
    if (!mb_real_exponent(text, nbytes, at, &written)) return "the digits of an exponent";
    real->mantissa = mantissa;
    real->exponent = exponent + written;
    mb_real_normalise(real);
    return NULL;
}

/* Decimal digits. NULL, or what is missing at *at. */
static inline const char *mb_real_decimal(const uint8_t *text, uint64_t nbytes, uint64_t *at, mb_real *real) {
    uint64_t i = *at, start = i, dots = 0, chunk = 0;
    uint32_t kept = 0, chunk_count = 0, scale = 1;
    int64_t decade = 0;
    mb_big big;
    big.count = 0;
    for (; i < nbytes; i++) {
        unsigned digit = (unsigned)(text[i] - '0');
        if (digit >= 10) {
            if (text[i] != '.' || dots > 0 || i == start) break;
            dots = 1;
            continue;
        }
        decade -= dots ? 1 : 0;
        if (kept == 0 && digit == 0) continue; /* leading zeros */
        if (kept == MB_REAL_MAX_DIGITS) {
            real->rest |= digit != 0;
            decade++;
            continue;
        }
        kept++;
        chunk = chunk * 10 + digit;
        scale *= 10;
        if (++chunk_count == 9) { /* 10^9 < 2^32 */
            mb_big_multiply_add(&big, scale, (uint32_t)chunk);
            chunk = chunk_count = 0;
            scale = 1;
        }
    }
    *at = i;
    if (i == start) return "a number";
    if (chunk_count > 0) mb_big_multiply_add(&big, scale, (uint32_t)chunk);
    if (i < nbytes && (text[i] | 0x20) == 'e') {
        int64_t written;
        *at = i + 1;
        if (!mb_real_exponent(text, nbytes, at, &written)) return "the digits of an exponent";
        decade += written; /* each below 2^61 in size */
    }
    if (kept == 0) return NULL; /* zero: mantissa 0 */
    if (decade + kept > MB_REAL_MAX_DECADE || decade + kept < -MB_REAL_MAX_DECADE) {
        real->mantissa = (uint64_t)1 << 63;
        real->exponent = decade + kept > 0 ? (int64_t)1 << 40 : -((int64_t)1 << 40);
        return NULL;
    }
    mb_real_of_decimal(&big, decade, real); /* -1200 <= decade <= 400 */
    return NULL;
}

/* Read the fraction bits of a NaN, (0x hexadecimal digits), where *at is at the parenthesis: at most 13 digits, not 0. */
static inline const char *mb_real_payload(const uint8_t *text, uint64_t nbytes, uint64_t *at, mb_real *real) {
    static const char expected[] = "nan, or nan(0x1) with its fraction bits";
    if (nbytes - *at < 3 || text[*at + 1] != '0' || text[*at + 2] != 'x') return expected;
    *at += 3;
    for (uint32_t count = 0; *at < nbytes && count < 13; count++, (*at)++) {
        uint8_t letter = text[*at], low = letter | 0x20;
        if (letter >= '0' && letter <= '9') real->mantissa = real->mantissa << 4 | (uint64_t)(letter - '0');
        else if (low >= 'a' && low <= 'f') real->mantissa = real->mantissa << 4 | (uint64_t)(low - 'a' + 10);
        else break;
    }
    if (*at >= nbytes || text[*at] != ')' || real->mantissa == 0) return expected;
    (*at)++;
    return NULL;
}

/* Read a real at *at: [-](nan | nan(0x1) | inf | hexadecimal float | decimal).
 * in   text, nbytes; *at: where it starts                out  *real; *at: after it, or where it went wrong
 * over-reads: none      fails: returns NULL when good, else static words for what was expected at *at
 * lifetime: keeps nothing
 * spec: docs/mil-text.md, numbers                                                                                    */
static inline const char *mb_real_read(const uint8_t *text, uint64_t nbytes, uint64_t *at, mb_real *real) {
    real->mantissa = 0;
    real->exponent = 0;
    real->rest = false;
    real->kind = MB_REAL_FINITE;
    real->negative = *at < nbytes && text[*at] == '-';
    if (real->negative) (*at)++;
    uint64_t left = nbytes - *at;
    const uint8_t *src = text + *at;
    if (left >= 2 && src[0] == '0' && (src[1] | 0x20) == 'x') {
        *at += 2;
        return mb_real_hex(text, nbytes, at, real);
    }
    if (left >= 3 && memcmp(src, "inf", 3) == 0) real->kind = MB_REAL_INF;
    if (left >= 3 && memcmp(src, "nan", 3) == 0) real->kind = MB_REAL_NAN;
    if (real->kind == MB_REAL_FINITE) return mb_real_decimal(text, nbytes, at, real);
    *at += 3;
    if (real->kind == MB_REAL_NAN && *at < nbytes && text[*at] == '(') return mb_real_payload(text, nbytes, at, real);
    return NULL;
}

/* Round a real to the bit pattern of a format, half to even.
 * in   real, format                   out  *bits: sign, exponent, fraction in the low bits
 * over-reads: none      fails: false when the format cannot hold it (too large, or no infinity); *bits untouched
 * lifetime: keeps nothing
 * spec: IEEE 754; float8e4m3fn and float8e5m2 as in ml_dtypes, but what would become NaN or inf is refused */
static inline bool mb_real_round(const mb_real *real, mb_real_format format, uint64_t *bits) {
    uint32_t nfraction = format.fraction_nbits;
    uint64_t sign = (uint64_t)real->negative << (nfraction + format.exponent_nbits);
    uint64_t all_ones = (((uint64_t)1 << format.exponent_nbits) - 1) << nfraction; /* infinity's exponent field */
    uint64_t most = format.finite_only ? (all_ones | (((uint64_t)1 << nfraction) - 1)) - 1 : all_ones - 1;
    if (real->kind == MB_REAL_INF) {
        if (format.finite_only) return false;
        *bits = sign | all_ones;
        return true;
    }
    if (real->kind == MB_REAL_NAN) {
        if (real->mantissa != 0 && (format.finite_only || real->mantissa >> nfraction != 0)) return false;
        uint64_t fraction = real->mantissa != 0 ? real->mantissa : (uint64_t)1 << (nfraction - 1);
        *bits = sign | (format.finite_only ? most + 1 : all_ones | fraction);
        return true;
    }
    if (real->mantissa == 0) {
        *bits = sign;
        return true;
    }
    int64_t bias = ((int64_t)1 << (format.exponent_nbits - 1)) - 1;
    int64_t power = real->exponent + 63; /* 2^power <= value < 2^(power + 1) */
    int64_t keep = (int64_t)nfraction + 1;
    if (power > bias + 1) return false;
    if (power < 1 - bias) keep -= 1 - bias - power; /* subnormal */
    uint64_t pattern = 0;
    if (keep >= 0) { /* else below half of the smallest subnormal: zero */
        uint32_t drop = (uint32_t)(64 - keep); /* 11 to 64 */
        uint64_t kept = drop == 64 ? 0 : real->mantissa >> drop;
        uint64_t half = (uint64_t)1 << (drop - 1);
        bool above = (real->mantissa & (half - 1)) != 0 || real->rest;
        bool up = (real->mantissa & half) != 0 && (above || (kept & 1) != 0);
        /* A normal value's implicit bit adds the last one to the exponent field; so does a carry. */
        pattern = kept + (up ? 1 : 0);
        if (power >= 1 - bias) pattern += (uint64_t)(power + bias - 1) << nfraction;
    }
    if (pattern > most) return false;
    *bits = sign | pattern;
    return true;
}

/* Read a decimal integer at *at: [-]digits, saturating at 2^64 - 1.
 * in   text, nbytes; *at: where it starts      out  *magnitude, *negative, *fits (false: saturated); *at: after it
 * over-reads: none      fails: false without a digit at *at
 * lifetime: keeps nothing
 * spec: docs/mil-text.md, numbers                                                                                    */
static inline bool mb_integer_read(const uint8_t *text, uint64_t nbytes, uint64_t *at, uint64_t *magnitude,
                                   bool *negative, bool *fits) {
    uint64_t i = *at, value = 0;
    bool good = true;
    *negative = i < nbytes && text[i] == '-';
    if (*negative) i++;
    uint64_t start = i;
    for (; i < nbytes && (unsigned)(text[i] - '0') < 10; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) good = false;
        value = good ? value * 10 + digit : UINT64_MAX;
    }
    *at = i;
    *magnitude = value;
    *fits = good;
    return i > start;
}

#endif
