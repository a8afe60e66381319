/* text/emit.h: writes protobuf forward into the caller's memory.
 *
 * Nothing here allocates: if room runs out, the writer sets `full` and continues without writing, so callers check `full`
 * once per statement and not after each byte. `at` never passes `capacity` and all of [0, at) has been written.
 *
 * A length-delimited message has its length before its content, and the length is known last. begin() leaves one byte
 * for it; end() moves the content up when it needs more, so prefixes are minimal, as protobuf's own are. A byte is
 * moved at most once per level of nesting. Source text whose order differs from the message's fields is written as it
 * comes; swap() then exchanges two neighbours. */
#ifndef MILBLOB_EMIT_H
#define MILBLOB_EMIT_H

#include "milblob/kernels/varint.h"

enum { MB_EMIT_VARINT = 0, MB_EMIT_BYTES = 2 }; /* the wire types that are written */

typedef struct mb_emit {
    uint8_t *out;      /* capacity bytes, owned by the caller; may be NULL when capacity is 0 */
    uint64_t capacity;
    uint64_t at;       /* bytes written so far */
    bool full;         /* something did not fit; the bytes are of no use */
} mb_emit;

/* Is there room for nbytes more? If not the writer is full from here on. */
static inline bool mb_emit_room(mb_emit *emit, uint64_t nbytes) {
    if (!emit->full && nbytes <= emit->capacity - emit->at) return true; /* at <= capacity: no wrap */
    emit->full = true;
    return false;
}

/* Append one varint; a negative int32 or int64 comes as its 64-bit pattern and takes ten bytes.
 * in   value                          out  1 to 10 bytes in emit
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: keeps nothing
 * spec: protobuf encoding, base 128 varints                                                                          */
static inline void mb_emit_varint(mb_emit *emit, uint64_t value) {
    if (value < 0x80) {
        if (mb_emit_room(emit, 1)) emit->out[emit->at++] = (uint8_t)value;
        return;
    }
    if (!mb_emit_room(emit, mb_varint_length(value))) return;
    emit->at += mb_varint_write(emit->out + emit->at, value);
}

/* Append bytes as they are, without tag or length.
 * in   src: nbytes bytes, not inside emit->out           out  nbytes bytes in emit
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: keeps nothing
 * spec: none, a building block                                                                                       */
static inline void mb_emit_raw(mb_emit *emit, const uint8_t *src, uint64_t nbytes) {
    if (nbytes == 0 || !mb_emit_room(emit, nbytes)) return;
    memcpy(emit->out + emit->at, src, (size_t)nbytes);
    emit->at += nbytes;
}

/* Append the nbytes (1 to 8) low bytes of value, little-endian: the payload of float, double and `bytes` elements.
 * in   value, nbytes                  out  nbytes bytes in emit
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: keeps nothing
 * spec: protobuf encoding, fixed 32 and 64 bit                                                                       */
static inline void mb_emit_fixed(mb_emit *emit, uint64_t value, uint32_t nbytes) {
    if (!mb_emit_room(emit, nbytes)) return;
    for (uint32_t i = 0; i < nbytes; i++) emit->out[emit->at++] = (uint8_t)(value >> (8 * i));
}

static inline void mb_emit_tag(mb_emit *emit, uint32_t field, uint32_t wire_type) {
    mb_emit_varint(emit, (uint64_t)field << 3 | wire_type);
}

/* Append field = value as a varint.
 * in   field: 1 to 2^29 - 1; value    out  tag and value in emit
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: keeps nothing
 * spec: protobuf encoding, tags                                                                                      */
static inline void mb_emit_field(mb_emit *emit, uint32_t field, uint64_t value) {
    mb_emit_tag(emit, field, MB_EMIT_VARINT);
    mb_emit_varint(emit, value);
}

/* Append field = nbytes bytes (a string, bytes, or a message that is serialized already).
 * in   field; src: nbytes bytes, not inside emit->out    out  tag, length and bytes in emit
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: keeps nothing
 * spec: protobuf encoding, length-delimited                                                                          */
static inline void mb_emit_bytes(mb_emit *emit, uint32_t field, const uint8_t *src, uint64_t nbytes) {
    mb_emit_tag(emit, field, MB_EMIT_BYTES);
    mb_emit_varint(emit, nbytes);
    mb_emit_raw(emit, src, nbytes);
}

/* Append field = a copy of the bytes [start, start + nbytes) that were written before.
 * in   field; start + nbytes <= emit->at                 out  tag, length and bytes in emit
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: keeps nothing; positions before emit->at do not change
 * spec: protobuf encoding, length-delimited                                                                          */
static inline void mb_emit_copy(mb_emit *emit, uint32_t field, uint64_t start, uint64_t nbytes) {
    mb_emit_tag(emit, field, MB_EMIT_BYTES);
    mb_emit_varint(emit, nbytes);
    if (nbytes == 0 || !mb_emit_room(emit, nbytes)) return;
    memcpy(emit->out + emit->at, emit->out + start, (size_t)nbytes); /* ends before emit->at: no overlap */
    emit->at += nbytes;
}

/* Open a length-delimited field; what is appended until end() is its content.
 * in   field                          out  tag and one byte for the length; returns the mark that end() wants
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: the mark is good until an enclosing message is closed
 * spec: protobuf encoding, length-delimited                                                                          */
static inline uint64_t mb_emit_begin(mb_emit *emit, uint32_t field) {
    mb_emit_tag(emit, field, MB_EMIT_BYTES);
    if (mb_emit_room(emit, 1)) emit->out[emit->at++] = 0;
    return emit->at;
}

/* Close the field that begin() opened: write its length, moving the content when that takes more than one byte.
 * in   mark: from the begin() of the innermost open field  out  the minimal length prefix
 * over-reads: none      fails: never; sets emit->full when room runs out
 * lifetime: marks inside the closed field are void
 * spec: protobuf encoding, length-delimited                                                                          */
static inline void mb_emit_end(mb_emit *emit, uint64_t mark) {
    if (emit->full) return; /* a mark made when full may have no length byte before it */
    uint64_t nbytes = emit->at - mark;
    uint32_t more = mb_varint_length(nbytes) - 1;
    if (more > 0) {
        if (!mb_emit_room(emit, more)) return;
        memmove(emit->out + mark + more, emit->out + mark, (size_t)nbytes);
        emit->at += more;
    }
    mb_varint_write(emit->out + mark - 1, nbytes);
}

/* Exchange the neighbours [start, middle) and [middle, emit->at).
 * in   start <= middle <= emit->at    out  the same bytes, the second range first
 * over-reads: none      fails: never; sets emit->full without spare room for the smaller of the two
 * lifetime: marks at or after start are void
 * spec: none; fields in ascending order are what protobuf's writers produce                                          */
static inline void mb_emit_swap(mb_emit *emit, uint64_t start, uint64_t middle) {
    if (emit->full) return;
    uint64_t end = emit->at, first = middle - start, second = end - middle;
    if (first == 0 || second == 0) return;
    if (!mb_emit_room(emit, first < second ? first : second)) return;
    uint8_t *out = emit->out;
    if (first <= second) { /* park the first after the end, then everything moves down */
        memcpy(out + end, out + start, (size_t)first);
        memmove(out + start, out + middle, (size_t)(second + first));
    } else { /* everything moves up, then the second is fetched from where it landed */
        memmove(out + start + second, out + start, (size_t)(first + second));
        memcpy(out + start, out + middle + second, (size_t)second);
    }
}

#endif
