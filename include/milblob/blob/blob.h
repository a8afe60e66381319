/* blob/blob.h: blob v2 storage files ("weight.bin"): the header, one record, and the walk over all of them.
 *
 *   0    storage header, 64 bytes: count u32, version u32 (2), reserved
 *   64   record metadata, 64 bytes: sentinel u32, dtype u32, sizeInBytes u64, offset u64, padding_size_in_bits u64, reserved
 *   ...  data, then zero bytes to the next multiple of 64, then the next record
 *
 * Bytes 24..63 of a record with a byte-sized dtype were uninitialised memory before coremltools 8: they are not read. */
#ifndef MILBLOB_BLOB_H
#define MILBLOB_BLOB_H

#include "milblob/dtype.h"

enum { MB_BLOB_HEADER_NBYTES = 64, MB_BLOB_RECORD_NBYTES = 64, MB_BLOB_VERSION = 2 };
#define MB_BLOB_SENTINEL 0xDEADBEEFu

/* One row of a file's index: 48 bytes, no padding; _codec.pyx gives it to NumPy as a structured array. */
typedef struct mb_blob_record {
    uint64_t offset;        /* of the metadata: what a Program's BlobFileValue holds */
    uint64_t data_offset;   /* of the data */
    uint64_t nbytes;        /* of data */
    uint64_t count;         /* elements */
    uint64_t padding_nbits; /* unused bits at the end of the last byte; 0 for byte-sized dtypes */
    uint32_t blob_code;
    uint32_t mil_code;
} mb_blob_record;

/* Read the header of a storage file.
 * in   file: file_nbytes bytes                                  out  *count: records that the header announces
 * over-reads: none      fails: MB_TRUNCATED, MB_VERSION, MB_COUNT (more records than could fit in the file)
 * spec: MILBlob/Blob/StorageFormat.hpp (storage_header)                                                               */
static inline mb_status mb_blob_header(const uint8_t *file, uint64_t file_nbytes, uint32_t *count, mb_error *error) {
    if (file_nbytes < MB_BLOB_HEADER_NBYTES)
        return mb_fail(error, MB_TRUNCATED, 0, MB_BLOB_HEADER_NBYTES, file_nbytes, "storage header");
    uint32_t version = mb_load_u32(file + 4);
    if (version != MB_BLOB_VERSION) return mb_fail(error, MB_VERSION, 4, MB_BLOB_VERSION, version, "storage version");
    *count = mb_load_u32(file);
    uint64_t most = (file_nbytes - MB_BLOB_HEADER_NBYTES) / MB_BLOB_RECORD_NBYTES;
    if (*count > most) return mb_fail(error, MB_COUNT, 0, most, *count, "records that the file has room for");
    return MB_OK;
}

/* Whether 64 bytes of metadata at `offset` lie inside the file and after its header. */
static inline mb_status mb_blob_record_bounds(uint64_t file_nbytes, uint64_t offset, mb_error *error) {
    if (offset < MB_BLOB_HEADER_NBYTES || offset > file_nbytes || file_nbytes - offset < MB_BLOB_RECORD_NBYTES)
        return mb_fail(error, MB_BOUNDS, offset, MB_BLOB_RECORD_NBYTES, file_nbytes, "record metadata");
    return MB_OK;
}

/* Check the 64 bytes of metadata that were found at `offset`.
 * in   at: 64 bytes; offset: as mb_blob_record_bounds accepted it      out  *record: consistent, its data in the file
 * over-reads: none      fails: MB_SENTINEL, MB_BOUNDS, MB_DTYPE, MB_OVERFLOW, MB_PADDING, MB_COUNT
 * spec: MILBlob/Blob/StorageFormat.hpp (blob_metadata); element count as in SubByteTypes.cpp                          */
static inline mb_status mb_blob_record_load(const uint8_t *at, uint64_t file_nbytes, uint64_t offset, mb_blob_record *record, mb_error *error) {
    if (mb_load_u32(at) != MB_BLOB_SENTINEL)
        return mb_fail(error, MB_SENTINEL, offset, MB_BLOB_SENTINEL, mb_load_u32(at), "record sentinel");
    const mb_dtype *dtype = mb_dtype_of_blob_code(mb_load_u32(at + 4));
    if (dtype == NULL) return mb_fail(error, MB_DTYPE, offset + 4, 0, mb_load_u32(at + 4), "blob dtype code");
    record->offset = offset;
    record->blob_code = dtype->blob_code;
    record->mil_code = dtype->mil_code;
    record->nbytes = mb_load_u64(at + 8);
    record->data_offset = mb_load_u64(at + 16);
    record->padding_nbits = 0;

    uint64_t data_end;
    if (!mb_add(record->data_offset, record->nbytes, &data_end))
        return mb_fail(error, MB_OVERFLOW, offset + 8, record->data_offset, record->nbytes, "data offset + size");
    if (data_end > file_nbytes)
        return mb_fail(error, MB_BOUNDS, record->data_offset, record->nbytes, file_nbytes, "record data");
    /* Data may not lie on the header or on its own metadata. Anything else is legal, if odd; overlap between
     * different records is found by the walk and by milblob.check. */
    if (record->data_offset < MB_BLOB_HEADER_NBYTES || (data_end > offset && record->data_offset < offset + MB_BLOB_RECORD_NBYTES))
        return mb_fail(error, MB_OVERLAP, record->data_offset, offset + MB_BLOB_RECORD_NBYTES, record->data_offset, "record data");

    if (dtype->nbits >= 8) {
        uint64_t itemsize = dtype->nbits / 8;
        if (record->nbytes % itemsize != 0)
            return mb_fail(error, MB_COUNT, offset + 8, itemsize, record->nbytes, "size of data");
        record->count = record->nbytes / itemsize;
        return MB_OK;
    }
    /* Sub-byte: padding must be under 8 bits, not more than there are, and leave whole elements. nbytes <= file size
     * <= 2^63 in practice, but it came from a file: the multiplication is checked all the same. */
    record->padding_nbits = mb_load_u64(at + 24);
    uint64_t nbits;
    if (!mb_mul(record->nbytes, 8, &nbits)) return mb_fail(error, MB_OVERFLOW, offset + 8, 8, record->nbytes, "size in bits");
    if (record->padding_nbits >= 8 || record->padding_nbits > nbits || (nbits - record->padding_nbits) % dtype->nbits != 0)
        return mb_fail(error, MB_PADDING, offset + 24, dtype->nbits, record->padding_nbits, "padding bits");
    record->count = (nbits - record->padding_nbits) / dtype->nbits;
    return MB_OK;
}

/* Read and check the record whose metadata is at `offset` of a file of file_nbytes bytes. */
static inline mb_status mb_blob_record_at(const uint8_t *file, uint64_t file_nbytes, uint64_t offset, mb_blob_record *record, mb_error *error) {
    if (mb_blob_record_bounds(file_nbytes, offset, error)) return error->status;
    return mb_blob_record_load(file + offset, file_nbytes, offset, record, error);
}

/* Walk a file: fill one index row per record, in file order.
 * in   count: as mb_blob_header gave it                         out  records: count rows; *done: rows that are good
 * over-reads: none      fails: as mb_blob_record_at, and MB_OVERLAP where data lies before its metadata's end
 * cost: reads 64 bytes per record and nothing else, so advise the kernel of random access first                      */
static inline mb_status mb_blob_walk(const uint8_t *file, uint64_t file_nbytes, uint32_t count, mb_blob_record *records, uint32_t *done, mb_error *error) {
    uint64_t offset = MB_BLOB_HEADER_NBYTES;
    for (*done = 0; *done < count; ++*done) {
        mb_blob_record *record = &records[*done];
        if (mb_blob_record_at(file, file_nbytes, offset, record, error)) return error->status;
        if (record->data_offset < offset + MB_BLOB_RECORD_NBYTES)
            return mb_fail(error, MB_OVERLAP, record->data_offset, offset + MB_BLOB_RECORD_NBYTES, record->data_offset, "record data");
        /* data_offset + nbytes was checked above to lie inside the file; rounding it up may still wrap. */
        if (!mb_align64(record->data_offset + record->nbytes, &offset))
            return mb_fail(error, MB_OVERFLOW, record->data_offset, 64, record->nbytes, "offset of the next record");
    }
    return MB_OK;
}

/* Many records by their offsets, in the caller's order: what resolving a Program's references needs.
 * in   offsets: count numbers                                   out  records: count rows; *done: rows that are good
 *      metadata: NULL, or count * 64 bytes that the caller has read at those offsets already, so that file is not touched
 * over-reads: none      fails: as mb_blob_record_bounds and mb_blob_record_load                                       */
static inline mb_status mb_blob_records_at(const uint8_t *file, uint64_t file_nbytes, const uint8_t *metadata, const uint64_t *offsets, uint64_t count, mb_blob_record *records, uint64_t *done, mb_error *error) {
    for (*done = 0; *done < count; ++*done) {
        uint64_t offset = offsets[*done];
        if (mb_blob_record_bounds(file_nbytes, offset, error)) return error->status;
        const uint8_t *at = metadata == NULL ? file + offset : metadata + *done * MB_BLOB_RECORD_NBYTES;
        if (mb_blob_record_load(at, file_nbytes, offset, &records[*done], error)) return error->status;
    }
    return MB_OK;
}

#endif
