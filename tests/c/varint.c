/* varint.c: the kernels of varint.h on each file, against one loop over bits; see replay.h for the command line.
 *
 * A file is a byte that chooses and then a payload: varints to be decoded, and elements to be encoded. */
#include "milblob/wire/pack.h"
#include "replay.h"

enum { SHIFTS = 8 };

/* ------------------------------------------------------------------------------------- what must come out, bit by bit */

typedef struct outcome {
    mb_status status;
    uint64_t offset, expected, got; /* of the error */
} outcome;

/* One varint at src: its length, or 0 and a status. */
static unsigned slow_varint(const uint8_t *src, uint64_t nbytes, uint64_t *value, mb_status *status) {
    uint64_t length = 0;
    while (length < nbytes && length < 10 && src[length] >= 128) length++;
    *value = 0;
    if (length == 10 || (length == 9 && length < nbytes && src[9] > 1)) return *status = MB_VARINT, 0u;
    if (length == nbytes) return *status = MB_TRUNCATED, 0u;
    for (unsigned bit = 0; bit < 64 && bit / 7 <= length; bit++) *value |= (uint64_t)(src[bit / 7] >> bit % 7 & 1) << bit;
    return (unsigned)length + 1;
}

static outcome slow_decode(uint64_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi) {
    outcome o = {MB_OK, 0, 0, 0};
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        unsigned length = slow_varint(src + at, nbytes - at, &dst[i], &o.status);
        o.offset = at;
        if (length == 0) return o.expected = count, o.got = i, o;
        if ((int64_t)dst[i] < lo || (int64_t)dst[i] > hi) return o.status = MB_RANGE, o.expected = i, o.got = dst[i], o;
        at += length;
    }
    o.offset = at;
    if (at != nbytes) o.status = MB_COUNT, o.expected = count, o.got = count + 1;
    return o;
}

static uint64_t element_at(const void *array, unsigned itemsize, uint64_t index) {
    uint64_t value = 0;
    for (unsigned k = 0; k < itemsize; k++) value |= (uint64_t)((const uint8_t *)array)[index * itemsize + k] << (8 * k);
    return value;
}

/* -------------------------------------------------------------------------------------------------------------- decode */

static void check_tier(const mb_tier *tier, const uint64_t *slow, outcome expected, const uint8_t *src, uint64_t nbytes, uint64_t count, unsigned itemsize, bool is_bool, int64_t lo, int64_t hi) {
    void *dst = exactly(itemsize * count);
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_status status = mb_varint_decode(tier, dst, itemsize, is_bool, src, nbytes, count, lo, hi, &error);
    require(status == expected.status, "the status of the slow decoder");
    if (status == MB_OK) {
        const uint64_t mask = itemsize == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * itemsize) - 1;
        for (uint64_t i = 0; i < count; i++) require(element_at(dst, itemsize, i) == (slow[i] & mask), "the values of the slow decoder");
    } else {
        require(error.status == status && error.detail != NULL, "an error that has words");
        require(error.offset == expected.offset, "the place of the slow decoder");
        if (status == MB_RANGE) require(error.expected == expected.expected && error.got == expected.got, "its element and value");
    }
    free(dst);
}

static void check_decode(const uint8_t *src, uint64_t nbytes, uint64_t count, unsigned itemsize, bool is_bool, int64_t lo, int64_t hi) {
    uint64_t *slow = (uint64_t *)exactly(8 * count);
    outcome expected = slow_decode(slow, src, nbytes, count, lo, hi);
    for (int tier = 0; tier < mb_tier_usable(); tier++) check_tier(&mb_tiers[tier], slow, expected, src, nbytes, count, itemsize, is_bool, lo, hi);
    free(slow);
}

static void check_all_decoders(const uint8_t *src, uint64_t nbytes, uint64_t count) {
    check_decode(src, nbytes, count, 1, true, 0, 1);
    check_decode(src, nbytes, count, 1, false, INT8_MIN, INT8_MAX);
    check_decode(src, nbytes, count, 1, false, 0, UINT8_MAX);
    check_decode(src, nbytes, count, 2, false, INT16_MIN, INT16_MAX);
    check_decode(src, nbytes, count, 2, false, 0, UINT16_MAX);
    check_decode(src, nbytes, count, 4, false, INT32_MIN, UINT32_MAX);
    check_decode(src, nbytes, count, 4, false, INT32_MIN, INT32_MAX);
    check_decode(src, nbytes, count, 8, false, INT64_MIN, INT64_MAX);
}

/* -------------------------------------------------------------------------------------------------------------- encode */

/* Elements of `kind` at src, aligned, of 1 to 10 bytes each when encoded. */
static void check_encode(int kind, const void *src, uint64_t count) {
    const unsigned itemsize = (unsigned)mb_pack_itemsize(kind);
    uint8_t *slow = (uint8_t *)exactly(10 * count);
    uint64_t slow_nbytes = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = element_at(src, itemsize, i);
        if (kind == MB_PACK_I16) value = (uint64_t)(int64_t)(int16_t)(uint16_t)value;
        if (kind == MB_PACK_I32) value = (uint64_t)(int64_t)(int32_t)(uint32_t)value;
        do slow[slow_nbytes++] = (uint8_t)((value & 127) | (uint64_t)(value > 127) << 7);
        while ((value >>= 7) != 0);
    }
    const int64_t lo = kind == MB_PACK_I16 ? INT16_MIN : kind == MB_PACK_U16 ? 0 : kind == MB_PACK_I32 ? INT32_MIN : INT64_MIN;
    const int64_t hi = kind == MB_PACK_I16 ? INT16_MAX : kind == MB_PACK_U16 ? UINT16_MAX : kind == MB_PACK_I32 ? UINT32_MAX : INT64_MAX;
    for (int row = 0; row < mb_tier_usable(); row++) {
        const mb_tier *tier = &mb_tiers[row];
        uint8_t *quick = (uint8_t *)exactly(slow_nbytes);
        void *back = exactly(itemsize * count);
        mb_error error;
        require(mb_pack_nbytes(tier, kind, src, count) == slow_nbytes, "the length of the slow encoder");
        require(mb_pack(tier, kind, quick, slow_nbytes, src, count, 0, 0, &error) == MB_OK, "every element can be encoded");
        require(memcmp(quick, slow, (size_t)slow_nbytes) == 0, "the bytes of the slow encoder");
        require(mb_varint_decode(tier, back, itemsize, false, quick, slow_nbytes, count, lo, hi, &error) == MB_OK, "decodes again");
        require(memcmp(back, src, (size_t)(itemsize * count)) == 0, "to the same elements");
        free(quick);
        free(back);
    }
    free(slow);
}

/* Elements of any length: each takes a byte that says how many of the bytes after it are its own, and its sign. */
static void check_encoders(const uint8_t *data, uint64_t nbytes) {
    static const int kinds[] = {MB_PACK_I16, MB_PACK_U16, MB_PACK_I32, MB_PACK_I64};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const unsigned itemsize = (unsigned)mb_pack_itemsize(kinds[k]);
        uint8_t *elements = (uint8_t *)exactly(nbytes * itemsize);
        uint64_t count = 0, at = 0;
        while (at < nbytes) {
            const uint8_t how = data[at++];
            uint64_t value = how & 128 ? UINT64_MAX : 0;
            for (unsigned own = how & 7; own > 0 && at < nbytes; own--) value = value << 8 | data[at++];
            value ^= (uint64_t)(how >> 3 & 15);
            for (unsigned b = 0; b < itemsize; b++) elements[count * itemsize + b] = (uint8_t)(value >> 8 * b);
            count++;
        }
        const uint64_t counts[] = {count, count == 0 ? 0 : 64 + count % 61}; /* tiers have quick ways for 64 elements and more: repeated */
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
            uint8_t *exact = (uint8_t *)exactly(counts[n] * itemsize);
            for (uint64_t i = 0; i < counts[n]; i++) memcpy(exact + i * itemsize, elements + i % count * itemsize, itemsize);
            check_encode(kinds[k], exact, counts[n]);
            free(exact);
        }
        free(elements);
    }
}

static void check(const uint8_t *data, uint64_t nbytes) {
    if (nbytes == 0) return;
    const uint64_t shift = data[0] % SHIFTS, left = nbytes - 1;
    uint8_t *moved = (uint8_t *)exactly(left + shift); /* another alignment; still the end of an allocation */
    const uint8_t *src = moved + shift;
    memcpy(moved + shift, data + 1, (size_t)left);
    uint64_t count = 0;
    for (uint64_t i = 0; i < left; i++) count += src[i] < 128;
    require(mb_varint_count(src, left) == count, "bytes without a flag are counted");
    check_all_decoders(src, left, count);
    if (data[0] & 64) check_all_decoders(src, left, count + 1);
    if (data[0] & 32 && count > 0) check_all_decoders(src, left, count - 1);
    if (data[0] & 16) check_all_decoders(src, left, left / 2);
    check_encoders(src, left);
    free(moved);
}
