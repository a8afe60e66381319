/* pack.h: the payload of a TensorValue from an array, whichever way its field stores the elements.
 *
 * One number says how: 0 copies the bytes; 1, 2, 3, 4, 6 packs one-byte elements to so many bits; the rest encode
 * elements of that width as varints. */
#ifndef MILBLOB_PACK_H
#define MILBLOB_PACK_H

#include "milblob/subbyte.h"
#include "milblob/varint.h"

enum mb_pack_kind { MB_PACK_RAW = 0, MB_PACK_I16 = 16, MB_PACK_U16 = 17, MB_PACK_I32 = 32, MB_PACK_I64 = 64 };

/* Bytes of one source element. */
static inline uint64_t mb_pack_itemsize(int kind) { return kind < MB_PACK_I16 ? 1 : (uint64_t)kind / 8; }

/* Bytes that count elements take in the payload.
 * in   src: count * mb_pack_itemsize(kind) bytes, aligned to an element                                              */
static inline uint64_t mb_pack_nbytes(int kind, const void *src, uint64_t count) {
    switch (kind) {
    case MB_PACK_RAW: return count;
    case MB_PACK_I16: return mb_varint_nbytes_i16((const int16_t *)src, count);
    case MB_PACK_U16: return mb_varint_nbytes_u16((const uint16_t *)src, count);
    case MB_PACK_I32: return mb_varint_nbytes_i32((const int32_t *)src, count);
    case MB_PACK_I64: return mb_varint_nbytes_i64((const int64_t *)src, count);
    default: return mb_packed_nbytes(count, (unsigned)kind);
    }
}

/* Write the payload.
 * in   src: as above; lo..hi: range of packed elements, as int8 where lo < 0; unused by other kinds
 * out  dst: nbytes bytes, as mb_pack_nbytes gave              fails: MB_RANGE (packed elements only)                  */
static inline mb_status mb_pack(int kind, uint8_t *dst, uint64_t nbytes, const void *src, uint64_t count, int lo, int hi, mb_error *error) {
    switch (kind) {
    case MB_PACK_RAW: memcpy(dst, src, nbytes); return MB_OK;
    case MB_PACK_I16: mb_varint_encode_i16(dst, nbytes, (const int16_t *)src, count); return MB_OK;
    case MB_PACK_U16: mb_varint_encode_u16(dst, nbytes, (const uint16_t *)src, count); return MB_OK;
    case MB_PACK_I32: mb_varint_encode_i32(dst, nbytes, (const int32_t *)src, count); return MB_OK;
    case MB_PACK_I64: mb_varint_encode_i64(dst, nbytes, (const int64_t *)src, count); return MB_OK;
    default: return mb_pack_bits(dst, (const uint8_t *)src, count, (unsigned)kind, lo, hi, lo < 0, error);
    }
}

#endif
