/* wire/wire.h: the only cursor over protobuf wire bytes, checked. All foreign Programs and TensorValues are read through it.
 *
 * A cursor walks one message: [at, end) is what is left, `base` is the origin of offsets in errors. Nothing is
 * copied; field payloads point into the buffer, which the caller keeps alive. On failure the cursor does not move. */
#ifndef MILBLOB_WIRE_H
#define MILBLOB_WIRE_H

#include "milblob/base.h"

enum mb_wire_type { MB_WIRE_VARINT = 0, MB_WIRE_FIXED64 = 1, MB_WIRE_BYTES = 2, MB_WIRE_GROUP = 3, MB_WIRE_END = 4, MB_WIRE_FIXED32 = 5 };

/* The deepest nesting of messages that is followed; each level of nested blocks uses two or three. protobuf's own
 * parsers stop at 100. This number bounds recursion in C for any file. */
enum { MB_MAX_DEPTH = 200 };

#define MB_NUMBERS "field number: expected 1 to 536870911"

typedef struct mb_cursor {
    const uint8_t *base;
    const uint8_t *at;
    const uint8_t *end;
} mb_cursor;

typedef struct mb_wire {
    uint32_t number;      /* field number, 1 .. 2^29-1 */
    uint32_t type;        /* enum mb_wire_type, never MB_WIRE_END */
    uint64_t value;       /* MB_WIRE_VARINT: the number as 64 bits; else 0 */
    const uint8_t *tag;   /* first byte of the field, its tag */
    const uint8_t *prefix; /* MB_WIRE_BYTES: first byte of the length, after the tag; else not set */
    const uint8_t *data;  /* first byte of the payload (of a group: after its start tag) */
    uint64_t nbytes;      /* bytes of payload, length prefix not counted */
} mb_wire;

static inline mb_cursor mb_cursor_of(const uint8_t *base, const uint8_t *data, uint64_t nbytes) {
    mb_cursor cursor = {base, data, data + nbytes};
    return cursor;
}

/* A message inside the field, as a cursor of its own. */
static inline mb_cursor mb_cursor_into(const mb_cursor *outer, const mb_wire *wire) {
    return mb_cursor_of(outer->base, wire->data, wire->nbytes);
}

static inline uint64_t mb_offset(const mb_cursor *cursor) { return (uint64_t)(cursor->at - cursor->base); }
static inline uint64_t mb_left(const mb_cursor *cursor) { return (uint64_t)(cursor->end - cursor->at); }

/* Read one varint of 1..10 bytes.
 * in   cursor: anywhere in the message                          out  *value: the number, 64 bits
 * over-reads: none      fails: MB_TRUNCATED (no end before the message's end), MB_VARINT (11th byte, or bits past 64)
 * spec: protobuf encoding; padded forms (redundant 0x80 bytes) are legal up to ten bytes                              */
static inline mb_status mb_read_varint(mb_cursor *cursor, uint64_t *value, mb_error *error) {
    const uint8_t *at = cursor->at;
    if (at < cursor->end && *at < 0x80) { /* one byte: nearly every tag and most lengths */
        *value = *at;
        cursor->at = at + 1;
        return MB_OK;
    }
    uint64_t out = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (at == cursor->end) return mb_fail(error, MB_TRUNCATED, mb_offset(cursor), mb_left(cursor) + 1, mb_left(cursor), "varint");
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1) return mb_fail(error, MB_VARINT, mb_offset(cursor), 10, byte, "varint");
        out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            cursor->at = at;
            *value = out;
            return MB_OK;
        }
    }
    return mb_fail(error, MB_VARINT, mb_offset(cursor), 10, 11, "varint"); /* not reached: the tenth byte decides above */
}

MB_STEP mb_status mb_read_field(mb_cursor *cursor, mb_wire *wire, mb_error *error);

/* Skip to the end of an unknown group. Groups nest; an explicit stack of field numbers keeps this off the C stack. */
MB_KERNEL mb_status mb_skip_group(mb_cursor *cursor, mb_wire *group, mb_error *error) {
    uint32_t open[MB_MAX_DEPTH];
    unsigned depth = 0;
    open[depth++] = group->number;
    mb_cursor at = *cursor;
    while (depth > 0) {
        uint64_t tag;
        uint64_t start = mb_offset(&at);
        if (at.at == at.end) return mb_fail(error, MB_TRUNCATED, start, 1, 0, "end of group");
        mb_cursor peek = at;
        if (mb_read_varint(&peek, &tag, error)) return error->status;
        if ((tag & 7) == MB_WIRE_END) {
            if ((tag >> 3) != open[--depth]) {
                return mb_fail(error, MB_NUMBER, start, 0, tag >> 3, "end of group: expected the field number of its start");
            }
            at = peek;
        } else if ((tag & 7) == MB_WIRE_GROUP) {
            if ((tag >> 3) == 0 || tag > UINT32_MAX) return mb_fail(error, MB_NUMBER, start, 0, tag >> 3, MB_NUMBERS);
            if (depth == MB_MAX_DEPTH) return mb_fail(error, MB_DEPTH, start, MB_MAX_DEPTH, depth + 1, "groups");
            open[depth++] = (uint32_t)(tag >> 3);
            at = peek;
        } else {
            mb_wire inner;
            if (mb_read_field(&at, &inner, error)) return error->status;
        }
    }
    group->nbytes = (uint64_t)(at.at - group->data);
    *cursor = at;
    return MB_OK;
}

/* mb_read_field without the short ways. */
MB_KERNEL mb_status mb_read_any_field(mb_cursor *cursor, mb_wire *wire, mb_error *error) {
    mb_cursor at = *cursor;
    uint64_t tag;
    if (mb_read_varint(&at, &tag, error)) return error->status;
    if (tag > UINT32_MAX || (tag >> 3) == 0) return mb_fail(error, MB_NUMBER, mb_offset(cursor), 0, tag >> 3, MB_NUMBERS);
    wire->number = (uint32_t)(tag >> 3);
    wire->type = (uint32_t)(tag & 7);
    wire->value = wire->nbytes = 0;
    wire->tag = cursor->at;
    switch (wire->type) {
    case MB_WIRE_VARINT:
        wire->data = at.at;
        if (mb_read_varint(&at, &wire->value, error)) return error->status;
        wire->nbytes = (uint64_t)(at.at - wire->data);
        break;
    case MB_WIRE_BYTES: {
        uint64_t start = mb_offset(&at);
        wire->prefix = at.at;
        if (mb_read_varint(&at, &wire->nbytes, error)) return error->status;
        if (wire->nbytes > mb_left(&at)) return mb_fail(error, MB_LENGTH, start, wire->nbytes, mb_left(&at), "length prefix");
        wire->data = at.at;
        at.at += wire->nbytes;
        break;
    }
    case MB_WIRE_FIXED32:
    case MB_WIRE_FIXED64:
        wire->nbytes = wire->type == MB_WIRE_FIXED32 ? 4 : 8;
        if (wire->nbytes > mb_left(&at)) return mb_fail(error, MB_TRUNCATED, mb_offset(&at), wire->nbytes, mb_left(&at), "fixed-width field");
        wire->data = at.at;
        at.at += wire->nbytes;
        break;
    case MB_WIRE_GROUP:
        wire->data = at.at;
        if (mb_skip_group(&at, wire, error)) return error->status;
        break;
    default:
        return mb_fail(error, MB_NUMBER, mb_offset(cursor), 0, wire->type, "wire type: expected 0 to 3 or 5");
    }
    *cursor = at;
    return MB_OK;
}

/* Read one field: its tag, and where its payload lies.
 * in   cursor: at a tag, at < end                               out  *wire: see mb_wire
 * over-reads: none      fails: MB_TRUNCATED, MB_VARINT, MB_NUMBER, MB_LENGTH, MB_DEPTH (groups)
 * cost: constant for length-delimited payloads, which are not looked into
 *
 * Nearly every field of a Program has a tag of one byte and a length of one or two, or a number below 128: these are taken at
 * once, without a call, and all others, the wrong ones too, go the general way.                                        */
MB_STEP mb_status mb_read_field(mb_cursor *cursor, mb_wire *wire, mb_error *error) {
    const uint8_t *at = cursor->at;
    if (mb_left(cursor) >= 3 && at[0] < 0x80 && (at[0] & 7) == MB_WIRE_BYTES && at[0] >= 8 && (at[1] < 0x80 || at[2] < 0x80)) {
        const uint8_t *data = at[1] < 0x80 ? at + 2 : at + 3;
        uint64_t nbytes = at[1] < 0x80 ? at[1] : (uint64_t)(at[1] & 0x7f) | (uint64_t)at[2] << 7;
        if (nbytes <= (uint64_t)(cursor->end - data)) {
            wire->number = at[0] >> 3;
            wire->type = MB_WIRE_BYTES;
            wire->value = 0;
            wire->nbytes = nbytes;
            wire->tag = at;
            wire->prefix = at + 1;
            wire->data = data;
            cursor->at = data + nbytes;
            return MB_OK;
        }
    }
    if (mb_left(cursor) >= 2 && at[0] < 0x80 && (at[0] & 7) == MB_WIRE_VARINT && at[0] >= 8 && at[1] < 0x80) {
        wire->number = at[0] >> 3;
        wire->type = MB_WIRE_VARINT;
        wire->value = at[1];
        wire->nbytes = 1;
        wire->tag = at;
        wire->data = at + 1;
        cursor->at = at + 2;
        return MB_OK;
    }
    return mb_read_any_field(cursor, wire, error);
}

/* Refuse a known field that came with another wire type than its own. protobuf files it under unknown fields; no
 * producer writes that, and a weight that silently disappears is worse than an error. */
static inline mb_status mb_expect_wire(const mb_cursor *cursor, const mb_wire *wire, uint32_t type, const char *detail, mb_error *error) {
    if (wire->type == type) return MB_OK;
    return mb_fail(error, MB_TAG, (uint64_t)(wire->tag - cursor->base), type, wire->type, detail);
}

#endif
