/* sub_byte.c: the kernels of every tier for 1, 2, 3, 4 and 6-bit elements on each file, against one loop over bits; see
 * replay.h for the command line.
 *
 * A file is a byte that chooses and then a payload: packed elements, and elements to be packed. */
#include "milblob/kernels.h"
#include "replay.h"

enum { SHIFTS = 8 };

static unsigned element(const uint8_t *src, uint64_t index, unsigned nbits) {
    unsigned value = 0;
    for (unsigned k = 0; k < nbits; k++) value |= (unsigned)(src[(index * nbits + k) / 8] >> (index * nbits + k) % 8 & 1) << k;
    return value;
}

static void check_unpack(const mb_tier *tier, const uint8_t *src, uint64_t nbytes, unsigned nbits, uint64_t fewer, uint64_t shift) {
    uint64_t count = nbytes * 8 / nbits;
    count -= fewer < count ? fewer : count;
    uint8_t *packed = (uint8_t *)exactly(mb_packed_nbytes(count, nbits)), *dst = (uint8_t *)exactly(count + shift);
    require(mb_packed_nbytes(count, nbits) == (count * nbits + 7) / 8, "as many bytes as the bits need");
    memcpy(packed, src, (size_t)mb_packed_nbytes(count, nbits)); /* nothing after the last element's byte */
    for (unsigned is_signed = 0; is_signed < 2; is_signed++) {
        const unsigned sign = is_signed ? 1u << (nbits - 1) : 0;
        tier->unpack[is_signed](dst + shift, packed, count, nbits);
        for (uint64_t i = 0; i < count; i++) require(dst[shift + i] == (uint8_t)((element(packed, i, nbits) ^ sign) - sign), "bits are unpacked");
    }
    free(packed);
    free(dst);
}

typedef struct range {
    int lo, hi;
    bool is_signed;
} range;

/* The data as it is: the first element outside of the range is found, or all are packed. */
static void check_range(const mb_tier *tier, const uint8_t *src, uint64_t count, unsigned nbits, range r) {
    const uint64_t nbytes = mb_packed_nbytes(count, nbits);
    uint8_t *packed = (uint8_t *)exactly(nbytes), *slow = (uint8_t *)exactly(nbytes);
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint64_t first = 0;
    memset(slow, 0, (size_t)nbytes);
    while (first < count) {
        const int value = r.is_signed ? (int)(int8_t)src[first] : (int)src[first];
        if (value < r.lo || value > r.hi) break;
        for (unsigned k = 0; k < nbits; k++) slow[(first * nbits + k) / 8] |= (uint8_t)((src[first] >> k & 1) << (first * nbits + k) % 8);
        first++;
    }
    const mb_status status = tier->pack(packed, src, count, nbits, r.lo, r.hi, r.is_signed, &error);
    require((status == MB_OK) == (first == count), "a range error where there is one");
    if (status == MB_OK) {
        require(memcmp(packed, slow, (size_t)nbytes) == 0, "bits are packed, those not used are 0");
    } else {
        require(status == MB_RANGE && error.expected == first, "the first element outside");
        require((int64_t)error.got == (r.is_signed ? (int64_t)(int8_t)src[first] : (int64_t)src[first]), "its value");
    }
    free(packed);
    free(slow);
}

static void check_pack(const mb_tier *tier, const uint8_t *src, uint64_t count, unsigned nbits, uint64_t shift) {
    const int most = (1 << nbits) - 1, half = 1 << (nbits - 1);
    const range ranges[] = {{0, most, false}, {-half, half - 1, true}};
    uint8_t *moved = (uint8_t *)exactly(count + shift);
    for (int which = 0; which < 2; which++) {
        memcpy(moved + shift, src, (size_t)count);
        check_range(tier, moved + shift, count, nbits, ranges[which]);
        for (uint64_t i = 0; i < count; i++) { /* all of them inside, then the last but a few not */
            const uint8_t inside = (uint8_t)(src[i] & most);
            moved[shift + i] = which == 1 && inside & half ? (uint8_t)(inside | (0xff & ~most)) : inside;
        }
        check_range(tier, moved + shift, count, nbits, ranges[which]);
        if (count > 0) {
            moved[shift + count - 1 - src[0] % count] = src[count / 2];
            check_range(tier, moved + shift, count, nbits, ranges[which]);
        }
    }
    free(moved);
}

static void check(const uint8_t *data, uint64_t nbytes) {
    static const unsigned widths[] = {1, 2, 3, 4, 6};
    if (nbytes == 0) return;
    const uint64_t shift = data[0] % SHIFTS, fewer = data[0] / SHIFTS;
    for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) {
        for (int row = 0; row < mb_tier_usable(); row++) {
            check_unpack(&mb_tiers[row], data + 1, nbytes - 1, widths[k], fewer, shift);
            check_pack(&mb_tiers[row], data + 1, nbytes - 1, widths[k], shift);
        }
    }
}
