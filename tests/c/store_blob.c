/* store_blob.c: lays out, packs and hashes what is in each file, in allocations of the exact size; see replay.h. */
#include "milblob/kernels/hash.h"
#include "milblob/blob/store.h"
#include "milblob/kernels/subbyte.h"
#include "replay.h"

static uint64_t number_at(const uint8_t *data, uint64_t nbytes, uint64_t at) {
    uint64_t value = 0;
    for (unsigned k = 0; k < 8; k++) value |= (uint64_t)(at + k < nbytes ? data[at + k] : 0) << (8 * k);
    return value;
}

/* Metadata that was stored is what is loaded, and a walk finds the records where they were placed. */
static void check_layout(const uint8_t *data, uint64_t nbytes, uint64_t align) {
    uint64_t end = 64, capacity = 64 + 8 * (align + 64 + 64 + 256) + 64;
    uint32_t count = 0, done = 0, found = 0;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint8_t *file = (uint8_t *)exactly(capacity);
    memset(file, 0xa5, (size_t)capacity);
    for (uint64_t at = 0; at < nbytes && count < 8; at += 3, count++) {
        const mb_dtype *dtype = &mb_dtypes[data[at] % MB_DTYPE_COUNT];
        if (dtype->blob_code == 0) dtype = mb_dtype_of_blob_code(1);
        uint64_t elements = data[(at + 1) % nbytes] % 32, size = mb_packed_nbytes(elements, dtype->nbits), offset, data_offset;
        if (dtype->nbits >= 8) size = elements * dtype->nbits / 8;
        require(mb_blob_place(end, align, &offset, &data_offset), "a place");
        require(offset % 64 == 0 && offset >= end && offset - end < 64, "metadata at the next multiple of 64");
        require(data_offset % align == 0 && data_offset - offset >= 64 && data_offset - offset < 64 + align, "data after it");
        mb_blob_record_store(file + offset, dtype->blob_code, size, data_offset, size * 8 - elements * dtype->nbits);
        end = data_offset + size;
        require(end <= capacity, "room");
    }
    mb_blob_header_store(file, count);
    uint8_t *whole = (uint8_t *)exactly(end); /* nothing after the end of the last data */
    memcpy(whole, file, (size_t)end);
    mb_blob_record records[8];
    require(mb_blob_header(whole, end, &found, &error) == MB_OK && found == count, "the count");
    require(mb_blob_walk(whole, end, count, records, &done, &error) == MB_OK && done == count, "every record");
    for (unsigned k = 8; k < 64; k++) require(whole[k] == 0, "reserved fields of the header");
    for (uint32_t i = 0; i < count; i++)
        for (unsigned k = 32; k < 64; k++) require(whole[records[i].offset + k] == 0, "reserved fields of a record");
    free(whole);
    free(file);
}

static void check_places(uint64_t end) {
    for (uint64_t align = 64; align <= 16384; align *= 2) {
        uint64_t offset = 1, data_offset = 1;
        if (mb_blob_place(end, align, &offset, &data_offset))
            require(offset >= end && data_offset >= offset + 64 && data_offset % align == 0, "sums that do not wrap");
        else
            require(end > UINT64_MAX - 64 - 64 - align && offset == 1 && data_offset == 1, "a reason to refuse");
    }
}

static void check_packing(const uint8_t *data, uint64_t nbytes, unsigned nbits) {
    const uint8_t mask = (uint8_t)((1u << nbits) - 1);
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint64_t size = mb_packed_nbytes(nbytes, nbits);
    uint8_t *small = (uint8_t *)exactly(nbytes), *packed = (uint8_t *)exactly(size), *back = (uint8_t *)exactly(nbytes);
    for (uint64_t i = 0; i < nbytes; i++) small[i] = data[i] & mask;
    require(mb_pack_bits(packed, small, nbytes, nbits, 0, mask, false, &error) == MB_OK, "elements in range");
    mb_unpack_bits(back, packed, nbytes, nbits);
    require(memcmp(back, small, (size_t)nbytes) == 0, "the same elements");
    unsigned used = (unsigned)(nbytes * nbits % 8);
    require(used == 0 || packed[size - 1] >> used == 0, "unused bits of 0");
    const int lo = -(1 << (nbits - 1)), hi = (1 << (nbits - 1)) - 1;
    for (int is_signed = 0; is_signed < 2; is_signed++) { /* the data as it is: the first outside is found */
        uint64_t first = 0;
        while (first < nbytes && (is_signed ? (int8_t)data[first] >= lo && (int8_t)data[first] <= hi : data[first] <= mask)) first++;
        mb_status status = mb_pack_bits(packed, data, nbytes, nbits, is_signed ? lo : 0, is_signed ? hi : mask, is_signed != 0, &error);
        require((status == MB_OK) == (first == nbytes), "a range error where there is one");
        if (status == MB_OK) continue;
        require(status == MB_RANGE && error.expected == first, "the first element outside");
        require((int64_t)error.got == (is_signed ? (int64_t)(int8_t)data[first] : (int64_t)data[first]), "its value");
    }
    free(small);
    free(packed);
    free(back);
}

static void check(const uint8_t *data, uint64_t nbytes) {
    static const unsigned widths[] = {1, 2, 3, 4, 6};
    for (uint64_t align = 64; align <= 16384; align *= 16) check_layout(data, nbytes, align);
    check_places(number_at(data, nbytes, 0));
    for (uint64_t back = 0; back < 20000; back += 1 + back / 8) check_places(UINT64_MAX - back);
    for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) check_packing(data, nbytes, widths[k]);
    uint64_t seed = number_at(data, nbytes, nbytes / 2), hash = mb_hash(data, nbytes, seed);
    uint8_t *moved = (uint8_t *)exactly(nbytes + 3); /* another alignment */
    if (nbytes > 0) memcpy(moved + 3, data, (size_t)nbytes);
    require(mb_hash(moved + 3, nbytes, seed) == hash, "a hash of the bytes alone");
    free(moved);
}
