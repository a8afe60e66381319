/* wire/splice.h: finds the length prefixes that change when ranges of a serialized message are replaced.
 *
 * An edit replaces the bytes [offset, offset + nbytes) by new_nbytes others: the whole payload of a length-delimited
 * field, or a run of whole fields with their tags. Every length prefix around the edit includes these bytes, and a
 * prefix that grows by a byte changes the next one out. The walk goes from the outermost message down, and only into
 * fields whose payload holds an edit: no schema is needed, and siblings cost only the reading of their heads. All other
 * bytes are left alone, including unknown fields, padded varints, groups and the order of maps.
 *
 * Results are rows in a table that the caller owns; if it is too small, the walk continues counting and returns MB_FULL. A
 * payload that equals an edit is the edit itself, whether its bytes mean a message or a string. */
#ifndef MILBLOB_SPLICE_H
#define MILBLOB_SPLICE_H

#include "milblob/wire/wire.h"

/* The deepest nesting that is followed. program.h finds constants below MB_MAX_DEPTH nested blocks of two messages each
 * and as many dictionaries of four: everything that it finds can be edited. */
enum { MB_SPLICE_DEPTH = 7 * MB_MAX_DEPTH };

typedef struct mb_edit {
    uint64_t offset;     /* from the start of the buffer */
    uint64_t nbytes;     /* that go; never 0 */
    uint64_t new_nbytes; /* that come in their place */
} mb_edit;

/* The length prefix of one field around an edit. */
typedef struct mb_prefix {
    uint64_t offset;     /* of its first byte, after the tag */
    uint64_t nbytes;     /* it takes now, padding included */
    uint64_t length;     /* it states now */
    uint64_t new_length; /* it must state; equal to length: no change */
} mb_prefix;

/* A message that the walk is in. */
typedef struct mb_level {
    const uint8_t *at;     /* next field */
    const uint8_t *end;
    const uint8_t *prefix; /* of the field that holds the message; not used for the outermost */
    const uint8_t *data;   /* first byte of the message */
    uint64_t row;          /* of prefixes */
    uint64_t removed;      /* bytes inside the message that go, and that come */
    uint64_t added;
} mb_level;

/* The size of the new outermost message, and the number of prefixes to look at. */
typedef struct mb_splice {
    uint64_t prefix_count;
    uint64_t new_nbytes; /* of the outermost message */
} mb_splice;

/* Bytes that a length takes as a minimal varint. */
static inline uint64_t mb_prefix_nbytes(uint64_t length) {
    uint64_t nbytes = 1;
    for (; length >= 0x80; length >>= 7) nbytes++;
    return nbytes;
}

static inline mb_status mb_splice_count(mb_level *level, uint64_t removed, uint64_t added, uint64_t offset, mb_error *error) {
    level->removed += removed; /* disjoint ranges inside the message: no overflow */
    if (!mb_add(level->added, added, &level->added)) return mb_fail(error, MB_OVERFLOW, offset, level->added, added, "bytes of all edits");
    return MB_OK;
}

/* Leave a message: its prefix becomes a row, and what it grows by counts in the message around it. */
static inline mb_status mb_splice_leave(const uint8_t *base, const mb_level *level, mb_level *outer, mb_prefix *rows, uint64_t capacity, mb_error *error) {
    mb_prefix row = {(uint64_t)(level->prefix - base), (uint64_t)(level->data - level->prefix), (uint64_t)(level->end - level->data), 0};
    if (!mb_add(row.length - level->removed, level->added, &row.new_length))
        return mb_fail(error, MB_OVERFLOW, row.offset, row.length, level->added, "length of a message");
    uint64_t removed = level->removed, added = level->added;
    if (row.new_length != row.length) {
        removed += row.nbytes;
        if (!mb_add(added, mb_prefix_nbytes(row.new_length), &added)) return mb_fail(error, MB_OVERFLOW, row.offset, added, 10, "length of a message");
    }
    if (level->row < capacity) rows[level->row] = row;
    return mb_splice_count(outer, removed, added, row.offset, error);
}

/* Check the edits by themselves: inside the message, in order, apart, none empty. */
static inline mb_status mb_splice_check(uint64_t offset, uint64_t nbytes, const mb_edit *edits, uint64_t count, mb_error *error) {
    uint64_t end = offset;
    for (uint64_t i = 0; i < count; i++) {
        const mb_edit *edit = &edits[i];
        if (edit->nbytes == 0) return mb_fail(error, MB_EDGE, edit->offset, 0, 0, "range of an edit");
        if (edit->offset < end) return mb_fail(error, MB_OVERLAP, edit->offset, end, edit->offset, "range of an edit");
        if (edit->offset - offset > nbytes || edit->nbytes > nbytes - (edit->offset - offset))
            return mb_fail(error, MB_LENGTH, edit->offset, edit->nbytes, edit->offset - offset > nbytes ? 0 : nbytes - (edit->offset - offset), "range of an edit");
        end = edit->offset + edit->nbytes;
    }
    return MB_OK;
}

/* Find the length prefixes that change.
 * in   base: the buffer; the outermost message at [offset, offset + nbytes); count edits in ascending order;
 *      levels: MB_SPLICE_DEPTH rows to work in
 * out  prefixes: up to capacity rows, by offset; *splice
 * over-reads: none
 * fails: MB_FULL (splice->prefix_count is the number of rows needed), MB_EDGE (a range that is neither one payload nor
 *      whole fields of the message it lies in, or empty), MB_OVERLAP (edits out of order or over each other), MB_OVERFLOW,
 *      MB_DEPTH, and the cursor's errors about broken messages on the way: MB_TRUNCATED, MB_VARINT, MB_NUMBER,
 *      MB_LENGTH
 * cost: the fields of the messages around edits, up to the last edit in each; payloads are not looked into
 * spec: protobuf encoding, length-delimited fields                                                                   */
static inline mb_status mb_splice_walk(const uint8_t *base, uint64_t offset, uint64_t nbytes, const mb_edit *edits, uint64_t count,
                                       mb_level *levels, mb_prefix *prefixes, uint64_t capacity, mb_splice *splice, mb_error *error) {
    uint64_t i = 0;
    uint32_t depth = 0;
    splice->prefix_count = 0;
    splice->new_nbytes = nbytes;
    if (mb_splice_check(offset, nbytes, edits, count, error)) return error->status;
    memset(&levels[0], 0, sizeof levels[0]);
    levels[0].at = levels[0].data = base + offset;
    levels[0].end = base + offset + nbytes;
    while (i < count || depth > 0) {
        mb_level *level = &levels[depth];
        const uint8_t *first = i < count ? base + edits[i].offset : NULL;
        if (first == NULL || first >= level->end) { /* no more edits in this message: only inner ones end so */
            if (mb_splice_leave(base, level, level - 1, prefixes, capacity, error)) return error->status;
            depth--;
            continue;
        }
        const uint8_t *last = first + edits[i].nbytes;
        if (last > level->end) return mb_fail(error, MB_EDGE, edits[i].offset, 0, edits[i].nbytes, "range of an edit");
        mb_cursor cursor = {base, level->at, level->end};
        mb_wire wire;
        if (mb_read_field(&cursor, &wire, error)) return error->status;
        level->at = cursor.at;
        if (first >= cursor.at) continue;
        if (first == wire.tag) { /* a run of whole fields */
            while (cursor.at < last)
                if (mb_read_field(&cursor, &wire, error)) return error->status;
            if (cursor.at != last) return mb_fail(error, MB_EDGE, edits[i].offset, 0, edits[i].nbytes, "range of an edit");
            level->at = last;
            if (mb_splice_count(level, edits[i].nbytes, edits[i].new_nbytes, edits[i].offset, error)) return error->status;
            i++;
            continue;
        }
        if (wire.type != MB_WIRE_BYTES || first < wire.data || last > cursor.at)
            return mb_fail(error, MB_EDGE, edits[i].offset, 0, edits[i].nbytes, "range of an edit");
        if (depth + 1 == MB_SPLICE_DEPTH) return mb_fail(error, MB_DEPTH, (uint64_t)(wire.tag - base), MB_SPLICE_DEPTH - 1, depth + 1, "messages around an edit");
        mb_level *inner = &levels[++depth];
        inner->at = inner->data = wire.data;
        inner->end = wire.data + wire.nbytes;
        inner->prefix = wire.prefix;
        inner->row = splice->prefix_count++;
        inner->removed = inner->added = 0;
        if (edits[i].nbytes == wire.nbytes) { /* the whole payload: nothing in it is looked at */
            inner->at = inner->end;
            inner->removed = wire.nbytes;
            inner->added = edits[i].new_nbytes;
            i++;
        }
    }
    if (!mb_add(nbytes - levels[0].removed, levels[0].added, &splice->new_nbytes))
        return mb_fail(error, MB_OVERFLOW, offset, nbytes, levels[0].added, "length of the outermost message");
    if (splice->prefix_count > capacity) return mb_fail(error, MB_FULL, offset, capacity, splice->prefix_count, "prefixes");
    return MB_OK;
}

#endif
