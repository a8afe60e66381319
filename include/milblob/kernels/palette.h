/* kernels/palette.h: looks up palette entries by indices of one byte each. */
#ifndef MILBLOB_PALETTE_H
#define MILBLOB_PALETTE_H

#include "milblob/kernels/float.h"

/* Look up count indices.
 * in   indices: count bytes, each below entry_count (1..256); entries: entry_count elements, any alignment
 * out  dst: count elements, any alignment; must not overlap      over-reads: none      fails: never                      */
typedef void (*mb_lookup_kernel)(uint8_t *dst, const uint8_t *indices, uint64_t count, const uint8_t *entries, unsigned entry_count);

#define MB_DEFINE_LOOKUP(name, type) \
    MB_KERNEL void name(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT indices, uint64_t count, const uint8_t *MB_RESTRICT entries, unsigned entry_count) { \
        (void)entry_count; \
        for (size_t i = 0; i < (size_t)count; i++) memcpy(dst + i * sizeof(type), entries + indices[i] * sizeof(type), sizeof(type)); \
    }

MB_DEFINE_LOOKUP(mb_lookup_8_plain, uint8_t)
MB_DEFINE_LOOKUP(mb_lookup_16_plain, uint16_t)
MB_DEFINE_LOOKUP(mb_lookup_32_plain, uint32_t)
MB_DEFINE_LOOKUP(mb_lookup_64_plain, uint64_t)

#endif
