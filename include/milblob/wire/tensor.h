/* wire/tensor.h: locates the data of one serialized TensorValue: which of its seven fields holds it, and where.
 *
 * TensorValue is a oneof of seven messages, each with one repeated field (or, for bytes, one string of bytes). Nearly
 * always the data is one packed run, used zero-copy. protobuf allows more: a run in several chunks,
 * elements one by one ("unpacked"), the inner message split in two (the pieces add up), or a oneof member that a later,
 * different one replaces. mb_tensor_locate sees all of it; mb_tensor_gather copies the chunks to one packed run. */
#ifndef MILBLOB_TENSOR_H
#define MILBLOB_TENSOR_H

#include "milblob/dtype.h"
#include "milblob/wire/wire.h"

typedef struct mb_tensor {
    uint32_t field;       /* enum mb_field; MB_FIELD_NONE: the message is empty */
    uint64_t start;       /* offset of the first byte that belongs to the winning oneof member */
    uint64_t offset;      /* of the first chunk's payload */
    uint64_t nbytes;      /* of all chunks together, as one packed run */
    uint64_t chunk_count; /* 0: present and empty; 1: [offset, offset + nbytes) is the packed run */
    uint64_t count;       /* strings: how many; other fields: 0 */
} mb_tensor;

/* The wire type of one element where it is not packed. */
static inline uint32_t mb_tensor_element_wire(uint32_t field) {
    switch (field) {
    case MB_FIELD_FLOATS: return MB_WIRE_FIXED32;
    case MB_FIELD_DOUBLES: return MB_WIRE_FIXED64;
    case MB_FIELD_STRINGS:
    case MB_FIELD_BYTES: return MB_WIRE_BYTES;
    default: return MB_WIRE_VARINT;
    }
}

/* One step over the chunks of a Repeated* message; *found: the field read was field 1, its values. */
static inline mb_status mb_tensor_chunk(mb_cursor *inner, uint32_t field, mb_wire *chunk, bool *found, mb_error *error) {
    if (mb_read_field(inner, chunk, error)) return error->status;
    *found = chunk->number == 1;
    if (*found && chunk->type != MB_WIRE_BYTES && chunk->type != mb_tensor_element_wire(field))
        return mb_fail(error, MB_TAG, (uint64_t)(chunk->tag - inner->base), mb_tensor_element_wire(field), chunk->type, "values of a tensor");
    return MB_OK;
}

/* Find the payload of a serialized TensorValue.
 * in   data: nbytes bytes at `base + something`; offsets count from base      out  *tensor: see the struct
 * over-reads: none      fails: as mb_read_field; MB_TAG where a known field has the wrong wire type
 * cost: one step per chunk; payloads are not looked into                                                              */
static inline mb_status mb_tensor_locate(const uint8_t *base, const uint8_t *data, uint64_t nbytes, mb_tensor *tensor, mb_error *error) {
    mb_cursor outer = mb_cursor_of(base, data, nbytes);
    memset(tensor, 0, sizeof *tensor);
    while (outer.at < outer.end) {
        mb_wire member;
        if (mb_read_field(&outer, &member, error)) return error->status;
        if (member.number < MB_FIELD_FLOATS || member.number > MB_FIELD_BYTES) continue;
        if (mb_expect_wire(&outer, &member, MB_WIRE_BYTES, "field of TensorValue", error)) return error->status;
        if (member.number != tensor->field) { /* another member of the oneof: earlier ones are void */
            memset(tensor, 0, sizeof *tensor);
            tensor->field = member.number;
            tensor->start = (uint64_t)(member.tag - base);
        }
        mb_cursor inner = mb_cursor_into(&outer, &member);
        while (inner.at < inner.end) {
            mb_wire chunk;
            bool found;
            if (mb_tensor_chunk(&inner, tensor->field, &chunk, &found, error)) return error->status;
            if (!found) continue;
            bool replaces = tensor->chunk_count == 0 || tensor->field == MB_FIELD_BYTES; /* a singular field: the last one wins */
            if (replaces) tensor->offset = (uint64_t)(chunk.data - base);
            /* Chunks lie side by side in one buffer, so the sum cannot pass its size. */
            tensor->nbytes = chunk.nbytes + (replaces ? 0 : tensor->nbytes);
            tensor->chunk_count = replaces ? 1 : tensor->chunk_count + 1;
            tensor->count += tensor->field == MB_FIELD_STRINGS;
        }
    }
    return MB_OK;
}

/* Copy the chunks of a located TensorValue to one packed run; or, for strings, list where each one lies.
 * in   base, end: the buffer and the end of the TensorValue inside it; tensor: as located
 * out  dst: tensor->nbytes bytes, or NULL      ranges: offset and nbytes of each string, 2 * tensor->count, or NULL
 * over-reads: none      fails: MB_CHANGED where there is more, or less, than was located: the bytes changed in between
 *                       (nothing is written past dst and ranges); else never on what mb_tensor_locate accepted          */
static inline mb_status mb_tensor_gather(const uint8_t *base, const uint8_t *end, const mb_tensor *tensor, uint8_t *dst, uint64_t *ranges, mb_error *error) {
    mb_cursor outer = mb_cursor_of(base, base + tensor->start, (uint64_t)(end - base) - tensor->start);
    uint64_t nbytes_left = tensor->nbytes, strings_left = tensor->count;
    while (outer.at < outer.end) {
        mb_wire member;
        if (mb_read_field(&outer, &member, error)) return error->status;
        if (member.number != tensor->field) continue;
        mb_cursor inner = mb_cursor_into(&outer, &member);
        while (inner.at < inner.end) {
            mb_wire chunk;
            bool found;
            if (mb_tensor_chunk(&inner, tensor->field, &chunk, &found, error)) return error->status;
            if (!found) continue;
            if (ranges != NULL) {
                if (strings_left-- == 0) return mb_fail(error, MB_CHANGED, (uint64_t)(chunk.tag - base), tensor->count, tensor->count + 1, "strings of a tensor");
                *ranges++ = (uint64_t)(chunk.data - base);
                *ranges++ = chunk.nbytes;
            }
            if (dst != NULL && chunk.nbytes > 0) {
                if (chunk.nbytes > nbytes_left) return mb_fail(error, MB_CHANGED, (uint64_t)(chunk.tag - base), tensor->nbytes, tensor->nbytes - nbytes_left + chunk.nbytes, "bytes of a tensor");
                nbytes_left -= chunk.nbytes;
                memcpy(dst, chunk.data, chunk.nbytes);
                dst += chunk.nbytes;
            }
        }
    }
    if (dst != NULL && nbytes_left != 0) return mb_fail(error, MB_CHANGED, tensor->start, tensor->nbytes, tensor->nbytes - nbytes_left, "bytes of a tensor");
    if (ranges != NULL && strings_left != 0) return mb_fail(error, MB_CHANGED, tensor->start, tensor->count, tensor->count - strings_left, "strings of a tensor");
    return MB_OK;
}

#endif
