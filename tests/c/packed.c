/* packed.c: packed bits and varints, both ways, by the kernels of every tier, on buffers of their exact size. What the tiers
 * are compared with is a loop over bits, or the decoder that checks every byte. No arguments. */
#include "milblob/wire/pack.h"
#include "promises.h"
#include <stdio.h>
#include <stdlib.h>

static const unsigned widths[] = {1, 2, 3, 4, 6};

static uint64_t random_state = 1;

static uint64_t random_64(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state ^ random_state >> 29 ^ random_state << 32;
}

static uint64_t random_below(uint64_t limit) { return (random_64() >> 11) % limit; }

static bool same_error(const mb_error *a, const mb_error *b) { return a->status == b->status && a->offset == b->offset && a->expected == b->expected && a->got == b->got; }

/* --------------------------------------------------------------------------------------------------------- packed bits */

static unsigned element(const uint8_t *src, uint64_t index, unsigned nbits) {
    unsigned value = 0;
    for (unsigned k = 0; k < nbits; k++) value |= ((unsigned)src[(index * nbits + k) / 8] >> (index * nbits + k) % 8 & 1u) << k;
    return value;
}

/* Bytes at `shift` of an allocation that ends where they do. */
static void check_bits(const mb_tier *tier, const uint8_t *bytes, uint64_t count, unsigned nbits, uint64_t shift) {
    const uint64_t nbytes = mb_packed_nbytes(count, nbits);
    const unsigned used = (unsigned)(count * nbits % 8), mask = (1u << nbits) - 1;
    uint8_t *src = (uint8_t *)exactly(shift + nbytes), *dst = (uint8_t *)exactly(shift + count), *back = (uint8_t *)exactly(shift + nbytes);
    mb_error error;
    memcpy(src + shift, bytes, (size_t)nbytes);
    for (int is_signed = 1; is_signed >= 0; is_signed--) {
        const unsigned sign = is_signed ? 1u << (nbits - 1) : 0;
        tier->unpack[is_signed](dst + shift, src + shift, count, nbits);
        for (uint64_t i = 0; i < count; i++) require(dst[shift + i] == (uint8_t)((element(src + shift, i, nbits) ^ sign) - sign), "bits are unpacked");
        const int lo = is_signed ? -(1 << (nbits - 1)) : 0, hi = is_signed ? (1 << (nbits - 1)) - 1 : (int)mask;
        require(tier->pack(back + shift, dst + shift, count, nbits, lo, hi, lo < 0, &error) == MB_OK, "and packed");
        if (used > 0) src[shift + nbytes - 1] &= (uint8_t)((1u << used) - 1);
        require(memcmp(back + shift, src + shift, (size_t)nbytes) == 0, "to the same bytes");
    }
    free(src), free(dst), free(back);
}

/* One or two elements outside the range: the first is named, with its value, wherever it is. */
static void check_range(const mb_tier *tier, uint64_t count, unsigned nbits, int lo, int hi) {
    uint8_t *src = (uint8_t *)exactly(count), *dst = (uint8_t *)exactly(mb_packed_nbytes(count, nbits));
    mb_error error;
    for (uint64_t i = 0; i < count; i++) src[i] = (uint8_t)(lo + (int)random_below((uint64_t)(hi - lo + 1)));
    require(tier->pack(dst, src, count, nbits, lo, hi, lo < 0, &error) == MB_OK, "elements in range");
    for (uint64_t first = 0; first < count; first += 1 + first / 64 * 7) {
        const uint64_t second = first + random_below(count - first);
        const uint8_t kept[2] = {src[first], src[second]};
        const int bad = random_below(2) ? hi + 1 + (int)random_below((uint64_t)((lo < 0 ? 127 : 255) - hi)) : lo < 0 ? lo - 1 - (int)random_below((uint64_t)(128 + lo)) : 255;
        src[second] = (uint8_t)(hi + 1), src[first] = (uint8_t)bad;
        require(tier->pack(dst, src, count, nbits, lo, hi, lo < 0, &error) == MB_RANGE, "an element outside");
        require(error.expected == first && error.offset == first && (int64_t)error.got == (int64_t)bad, "the first, and its value");
        src[second] = kept[1], src[first] = kept[0];
    }
    free(src), free(dst);
}

static void check_all_bits(const mb_tier *tier) {
    uint8_t pairs[2 << 16], numbers[256];
    for (unsigned i = 0; i < 1 << 16; i++) pairs[2 * i] = (uint8_t)i, pairs[2 * i + 1] = (uint8_t)(i >> 8);
    for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) {
        const unsigned nbits = widths[k];
        check_bits(tier, pairs, sizeof pairs * 8 / nbits, nbits, k);
        check_bits(tier, pairs + 1, (sizeof pairs - 1) * 8 / nbits, nbits, 0); /* every pair at odd places too */
        for (uint64_t count = 0; count <= 130; count++) {
            for (unsigned i = 0; i < 256; i++) numbers[i] = (uint8_t)random_64();
            for (uint64_t shift = 0; shift < 4; shift++) check_bits(tier, numbers, count, nbits, shift * 3);
            if (count > 0) check_range(tier, count, nbits, 0, (1 << nbits) - 1);
            if (count > 0 && nbits == 4) check_range(tier, count, nbits, -8, 7), check_range(tier, count, nbits, -8, 15);
        }
        check_range(tier, 9000, nbits, 0, (1 << nbits) - 1);
    }
}

/* ------------------------------------------------------------------------------------------------------------- varints */

/* A number of some magnitude, either sign, or a limit of some width or length. */
static uint64_t some_number(unsigned nbits) {
    uint64_t value = random_64() >> (64 - nbits) >> random_below(nbits);
    if (random_below(4) == 0) value = (UINT64_C(1) << random_below(nbits)) - random_below(2);
    if (random_below(3) == 0) value = 0 - value;
    return nbits == 64 ? value : (uint64_t)((int64_t)(value << (64 - nbits)) >> (64 - nbits)); /* sign-extended */
}

enum { ODD_PADDED = 1, ODD_LONG, ODD_WIDE, ODD_ENDLESS, ODD_RANGE, ODD_FIVE, ODD_COUNT };

/* Write a varint that is legal but padded, too long, too wide, or not of 32 bits. */
static unsigned write_odd(uint8_t *dst, unsigned odd) {
    unsigned n = 0;
    switch (odd) {
    case ODD_PADDED:
        for (uint64_t last = random_below(9); n <= last;) dst[n++] = (uint8_t)(0x80 | random_64());
        dst[n++] = 0;
        return n;
    case ODD_LONG:
        for (uint64_t last = 10 + random_below(4); n < last;) dst[n++] = (uint8_t)(0x80 | random_64());
        dst[n++] = 1;
        return n;
    case ODD_WIDE:
        while (n < 9) dst[n++] = 0xff;
        dst[n++] = (uint8_t)(2 + random_below(126));
        return n;
    case ODD_ENDLESS:
        while (n < 90) dst[n++] = 0x80;
        return n;
    case ODD_FIVE: /* a negative int32 as some write it */
        while (n < 4) dst[n++] = (uint8_t)(0x80 | random_64());
        dst[n++] = (uint8_t)random_below(0x20);
        return n;
    default: return mb_varint_write(dst, some_number(64));
    }
}

/* What a tier decodes is what the careful decoder does, or the same error. dst is aligned and of its exact size, src is not. */
#define DEFINE_CHECK(name, type, careful) \
    static void name(const mb_tier *tier, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi) { \
        type *dst = (type *)exactly(count * sizeof(type)), *expected = (type *)exactly(count * sizeof(type)); \
        mb_error a = {MB_OK, 0, 0, 0, NULL}, b = a; \
        const mb_status status = mb_varint_decode(tier, dst, sizeof(type), false, src, nbytes, count, lo, hi, &a); \
        require(status == careful(expected, src, nbytes, count, lo, hi, &b), "the same status"); \
        require(same_error(&a, &b), "the same error"); \
        require(status != MB_OK || memcmp(dst, expected, (size_t)count * sizeof(type)) == 0, "the same values"); \
        free(dst), free(expected); \
    }

DEFINE_CHECK(check_8, uint8_t, mb_varint_decode_8_careful)
DEFINE_CHECK(check_16, uint16_t, mb_varint_decode_16_careful)
DEFINE_CHECK(check_32, uint32_t, mb_varint_decode_32_careful)
DEFINE_CHECK(check_64, uint64_t, mb_varint_decode_64_careful)

static void check_bools(const mb_tier *tier, const uint8_t *src, uint64_t nbytes, uint64_t count) {
    uint8_t *dst = (uint8_t *)exactly(count), *expected = (uint8_t *)exactly(count);
    mb_error a = {MB_OK, 0, 0, 0, NULL}, b = a;
    const mb_status status = mb_varint_decode(tier, dst, 1, true, src, nbytes, count, 0, 1, &a);
    require(status == mb_varint_decode_8_careful(expected, src, nbytes, count, 0, 1, &b), "the same status of bools");
    require(same_error(&a, &b), "the same error of bools");
    require(status != MB_OK || memcmp(dst, expected, (size_t)count) == 0, "the same bools");
    free(dst), free(expected);
}

/* Every kind of element, and counts that are right, one less and one more. */
static void check_varints(const mb_tier *tier, const uint8_t *bytes, uint64_t nbytes) {
    uint8_t *src = (uint8_t *)exactly(nbytes); /* of its exact size */
    const uint64_t count = mb_varint_count(bytes, nbytes);
    memcpy(src, bytes, (size_t)nbytes);
    for (uint64_t wanted = count > 0 ? count - 1 : 0; wanted <= count + 1; wanted++) {
        check_8(tier, src, nbytes, wanted, INT8_MIN, INT8_MAX);
        check_8(tier, src, nbytes, wanted, -8, 7);
        check_16(tier, src, nbytes, wanted, 0, UINT16_MAX);
        check_32(tier, src, nbytes, wanted, INT32_MIN, UINT32_MAX); /* the field `ints` */
        check_32(tier, src, nbytes, wanted, INT32_MIN, INT32_MAX);
        check_32(tier, src, nbytes, wanted, 100, 1 << 20);
        check_64(tier, src, nbytes, wanted, INT64_MIN, INT64_MAX);
        check_64(tier, src, nbytes, wanted, 0, INT64_MAX);
        check_bools(tier, src, nbytes, wanted);
    }
    free(src);
}

static void check_decoding(const mb_tier *tier) {
    static const unsigned magnitudes[] = {1, 7, 8, 14, 16, 28, 32, 56, 64};
    uint8_t *bytes = (uint8_t *)exactly(20 * 1100);
    for (size_t m = 0; m < sizeof magnitudes / sizeof magnitudes[0]; m++) /* plainly right */
        for (uint64_t count = 0; count < 1000; count += count < 130 ? 1 : 290) {
            uint64_t nbytes = 0;
            for (uint64_t i = 0; i < count; i++) nbytes += mb_varint_write(bytes + nbytes, m < 2 ? random_64() >> (64 - magnitudes[m]) : some_number(magnitudes[m]));
            check_varints(tier, bytes, nbytes);
        }
    for (unsigned odd = 1; odd <= ODD_COUNT; odd++) /* something odd at every place of a block, and across its end */
        for (uint64_t place = 0; place < 150; place++) {
            uint64_t nbytes = 0;
            const unsigned nbits = magnitudes[random_below(sizeof magnitudes / sizeof magnitudes[0])];
            while (nbytes < place) nbytes += mb_varint_write(bytes + nbytes, random_below(2) ? random_below(128) : nbits < 2 ? 1 : some_number(nbits));
            nbytes += write_odd(bytes + nbytes, odd);
            for (uint64_t i = random_below(100); i > 0; i--) nbytes += mb_varint_write(bytes + nbytes, some_number(32));
            check_varints(tier, bytes, nbytes);
        }
    for (unsigned round = 0; round < 400; round++) { /* bytes changed, cut off, or all at random */
        uint64_t nbytes = 0, count = random_below(300);
        const unsigned nbits = magnitudes[2 + random_below(sizeof magnitudes / sizeof magnitudes[0] - 2)];
        for (uint64_t i = 0; i < count; i++) nbytes += random_below(20) ? mb_varint_write(bytes + nbytes, some_number(nbits)) : write_odd(bytes + nbytes, (unsigned)(round % 5 == 0 ? 1 + random_below(ODD_COUNT) : 0));
        for (uint64_t i = random_below(4); i > 0 && nbytes > 0; i--) bytes[random_below(nbytes)] = (uint8_t)random_64();
        if (round % 3 == 0) nbytes = random_below(nbytes + 1);
        if (round % 11 == 0)
            for (uint64_t i = 0; i < nbytes; i++) bytes[i] = (uint8_t)random_64();
        check_varints(tier, bytes, nbytes);
    }
    free(bytes);
}

/* Encode by a tier and by a loop. */
static void check_encoding(const mb_tier *tier, int kind, const void *elements, uint64_t count) {
    uint8_t *expected = (uint8_t *)exactly(10 * count);
    uint64_t nbytes = 0;
    mb_error error;
    for (uint64_t i = 0; i < count; i++) {
        int64_t value;
        if (kind == MB_PACK_I16) value = ((const int16_t *)elements)[i];
        else if (kind == MB_PACK_U16) value = ((const uint16_t *)elements)[i];
        else if (kind == MB_PACK_I32) value = ((const int32_t *)elements)[i];
        else value = ((const int64_t *)elements)[i];
        nbytes += mb_varint_write(expected + nbytes, (uint64_t)value);
    }
    require(mb_pack_nbytes(tier, kind, elements, count) == nbytes, "bytes are counted");
    uint8_t *dst = (uint8_t *)exactly(nbytes);
    require(mb_pack(tier, kind, dst, nbytes, elements, count, 0, 0, &error) == MB_OK, "numbers are encoded");
    require(memcmp(dst, expected, (size_t)nbytes) == 0, "to the same bytes");
    free(expected), free(dst);
}

static void check_all_encoding(const mb_tier *tier) {
    static const int kinds[] = {MB_PACK_I16, MB_PACK_U16, MB_PACK_I32, MB_PACK_I64};
    uint16_t *all = (uint16_t *)exactly(2 << 16);
    for (unsigned i = 0; i < 1 << 16; i++) all[i] = (uint16_t)i;
    check_encoding(tier, MB_PACK_I16, all, 1 << 16);
    check_encoding(tier, MB_PACK_U16, all, 1 << 16);
    free(all);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const uint64_t itemsize = mb_pack_itemsize(kinds[k]);
        for (uint64_t count = 0; count < 5000; count += count < 200 ? 1 : 1599)
            for (unsigned way = 0; way < 4; way++) { /* small, of eight bytes at most, of any size, and mixed by stretches */
                uint8_t *elements = (uint8_t *)exactly(count * itemsize);
                for (uint64_t i = 0; i < count; i++) {
                    const unsigned now = way < 3 ? way : (unsigned)(i / 16 % 3);
                    const uint64_t value = now == 0 ? random_below(128) : now == 1 ? random_64() >> (8 + random_below(56)) : some_number((unsigned)itemsize * 8);
                    for (uint64_t b = 0; b < itemsize; b++) elements[i * itemsize + b] = (uint8_t)(value >> 8 * b);
                }
                check_encoding(tier, kinds[k], elements, count);
                free(elements);
            }
    }
}

int main(void) {
    for (int tier = 0; tier < mb_tier_usable(); tier++) {
        check_all_bits(&mb_tiers[tier]);
        check_decoding(&mb_tiers[tier]);
        check_all_encoding(&mb_tiers[tier]);
    }
    return 0;
}
