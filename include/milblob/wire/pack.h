/* wire/pack.h: converts an array to the payload of a TensorValue and back, whichever way its field stores the elements.
 *
 * A number selects the conversion: 0 copies the bytes; 1, 2, 3, 4, 6 packs one-byte elements to that many bits; 8 makes
 * 1 of every byte that is not 0; the rest encode elements of that width as varints. */
#ifndef MILBLOB_PACK_H
#define MILBLOB_PACK_H

#include "milblob/kernels.h"

enum mb_pack_kind { MB_PACK_RAW = 0, MB_PACK_BOOL = 8, MB_PACK_I16 = 16, MB_PACK_U16 = 17, MB_PACK_I32 = 32, MB_PACK_I64 = 64 };

/* Bytes of one source element. */
static inline uint64_t mb_pack_itemsize(int kind) { return kind < MB_PACK_I16 ? 1 : (uint64_t)kind / 8; }

/* Where a kind of integers has its kernels. */
static inline unsigned mb_integer_index(int kind) { return kind == MB_PACK_I16 ? 0 : kind == MB_PACK_U16 ? 1 : kind == MB_PACK_I32 ? 2 : 3; }

MB_KERNEL void mb_pack_bools(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count) {
    for (size_t i = 0; i < (size_t)count; i++) dst[i] = src[i] != 0;
}

/* Bytes that count elements take in the payload.
 * in   src: count * mb_pack_itemsize(kind) bytes, aligned to an element                                              */
static inline uint64_t mb_pack_nbytes(const mb_tier *tier, int kind, const void *src, uint64_t count) {
    if (kind == MB_PACK_RAW || kind == MB_PACK_BOOL) return count;
    if (kind < MB_PACK_I16) return mb_packed_nbytes(count, (unsigned)kind);
    return tier->varint_nbytes[mb_integer_index(kind)](src, count);
}

/* Write the payload: all of it and no more, or an error.
 * in   src: as above; lo..hi: range of packed elements, as int8 where lo < 0; unused by other kinds
 * out  dst: nbytes bytes, as mb_pack_nbytes gave; after an error it is of no use
 * fails: MB_RANGE (packed elements only); MB_CHANGED: src does not take the nbytes that were counted, so it has
 *        changed since. If only values changed, and not their sizes, each is a value that it had at some moment          */
static inline mb_status mb_pack(const mb_tier *tier, int kind, uint8_t *dst, uint64_t nbytes, const void *src, uint64_t count, int lo, int hi, mb_error *error) {
    if (kind >= MB_PACK_I16) {
        if (tier->varint_encode[mb_integer_index(kind)](dst, nbytes, src, count) == nbytes) return MB_OK;
    } else if (nbytes == mb_pack_nbytes(tier, kind, src, count)) {
        if (kind == MB_PACK_BOOL) mb_pack_bools(dst, (const uint8_t *)src, count);
        else if (kind != MB_PACK_RAW) return tier->pack(dst, (const uint8_t *)src, count, (unsigned)kind, lo, hi, lo < 0, error);
        else if (nbytes > 0) memcpy(dst, src, (size_t)nbytes);
        return MB_OK;
    }
    return mb_fail(error, MB_CHANGED, 0, nbytes, 0, "bytes of the elements");
}

/* Unpack with the kernel of a tier; see mb_unpack_bits. */
static inline void mb_unpack(const mb_tier *tier, uint8_t *dst, const uint8_t *src, uint64_t count, unsigned nbits) { tier->unpack[0](dst, src, count, nbits); }

/* Decode count varints to elements of itemsize bytes (1, 2, 4 or 8), or to bools; see MB_DEFINE_VARINT_DECODE. dst is
 * aligned to an element. Every tier gives the same values and the same errors: what is odd is left to the plain decoder. */
static inline mb_status mb_varint_decode(const mb_tier *tier, void *dst, unsigned itemsize, bool is_bool, const uint8_t *src, uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, mb_error *error) {
    const bool is_ints = itemsize == 4 && lo == INT32_MIN && hi == UINT32_MAX;
    mb_status status;
    if (is_bool) return mb_varint_decode_bool((uint8_t *)dst, src, nbytes, count, error);
    uint64_t taken, done = tier->varint_run[is_ints ? (unsigned)MB_RUN_INTS : mb_width_index(itemsize)](dst, src, nbytes, count, lo, hi, &taken);
    dst = (uint8_t *)dst + done * itemsize, src += taken, nbytes -= taken, count -= done;
    if (itemsize == 1) status = mb_varint_decode_8((uint8_t *)dst, src, nbytes, count, lo, hi, error);
    else if (itemsize == 2) status = mb_varint_decode_16((uint16_t *)dst, src, nbytes, count, lo, hi, error);
    else if (itemsize == 8) status = mb_varint_decode_64((uint64_t *)dst, src, nbytes, count, lo, hi, error);
    else if (is_ints) status = mb_varint_decode_ints((uint32_t *)dst, src, nbytes, count, lo, hi, error);
    else status = mb_varint_decode_32((uint32_t *)dst, src, nbytes, count, lo, hi, error);
    if (status != MB_OK) {
        error->offset += taken, error->expected += done;
        if (status != MB_RANGE) error->got += done;
    }
    return status;
}

#endif
