/* blob/store.h: writes the header and record metadata of blob v2 files. blob/blob.h has the layout and reads them. */
#ifndef MILBLOB_STORE_H
#define MILBLOB_STORE_H

#include "milblob/blob/blob.h"

/* Write the 64 bytes of storage header.
 * in   count: records that follow     out  dst: 64 bytes, reserved fields zero
 * spec: MILBlob/Blob/StorageFormat.hpp (storage_header)                                                               */
static inline void mb_blob_header_store(uint8_t *dst, uint32_t count) {
    memset(dst, 0, MB_BLOB_HEADER_NBYTES);
    mb_store_u64(dst, (uint64_t)MB_BLOB_VERSION << 32 | count);
}

/* Write the 64 bytes of a record's metadata.
 * in   padding_nbits: 0 for byte-sized dtypes     out  dst: 64 bytes, reserved fields zero
 * spec: MILBlob/Blob/StorageFormat.hpp (blob_metadata)                                                                */
static inline void mb_blob_record_store(uint8_t *dst, uint32_t blob_code, uint64_t nbytes, uint64_t data_offset, uint64_t padding_nbits) {
    mb_store_u64(dst, (uint64_t)blob_code << 32 | MB_BLOB_SENTINEL);
    mb_store_u64(dst + 8, nbytes);
    mb_store_u64(dst + 16, data_offset);
    mb_store_u64(dst + 24, padding_nbits);
    memset(dst + 32, 0, MB_BLOB_RECORD_NBYTES - 32);
}

/* Where the next record goes in a file whose last data ends at `end`: its metadata at the next multiple of 64, where a walk
 * looks for it, and its data at the next multiple of `align` after that.
 * in   align: a power of two, 64 or more      out  *offset, *data_offset      false: past 64 bits                      */
static inline bool mb_blob_place(uint64_t end, uint64_t align, uint64_t *offset, uint64_t *data_offset) {
    uint64_t at, data;
    if (!mb_align64(end, &at) || !mb_add(at, MB_BLOB_RECORD_NBYTES, &data) || !mb_add(data, align - 1, &data)) return false;
    *offset = at;
    *data_offset = data & ~(align - 1);
    return true;
}

#endif
