/* text/write_type.h: writes names, strings and types of a Program as MIL text, and has the state of the writer.
 *
 * Everything is read from the Program's wire bytes and written as it is read: no tree is built. What text has no form for
 * is refused by MB_TEXTLESS with its offset, and so is what would come back as something else. Messages in pieces end in
 * MB_SPLIT: the caller lets protobuf bring the Program into plain form, and begins again. */
#ifndef MILBLOB_TEXT_WRITE_TYPE_H
#define MILBLOB_TEXT_WRITE_TYPE_H

#include "milblob/program/graph.h"
#include "milblob/text/print.h"
#include "milblob/text/token.h"

/* One entry of a map, to be sorted. */
typedef struct mb_write_key {
    mb_span key;
    mb_span value; /* of an input: its row of arguments in `offset` */
} mb_write_key;

typedef enum mb_write_weights { MB_WRITE_ALL, MB_WRITE_CUT, MB_WRITE_NONE } mb_write_weights;

typedef struct mb_writer {
    const mb_graph *graph;
    const uint8_t *base;
    mb_error *error;
    mb_print print;
    bool is_plain;     /* protobuf wrote these bytes: a message in pieces is refused */
    bool has_scalars;  /* write `fp16`, as program(1.3) does, not `tensor<fp16, []>` */
    mb_write_weights weights; /* of immediates of ten elements or more */
    const mb_varint_run_kernel *runs; /* of a tier, by enum mb_varint_run_kind; NULL: varints are read one by one */
    mb_write_key *keys;
    uint64_t key_capacity;
    uint32_t operation; /* row of the operation that is being written, or MB_NONE; for messages */
    uint32_t depth;     /* blocks and types in each other, as the parser counts them */
    /* The tensor type that was read last. */
    const mb_dtype *dtype;
    uint64_t rank;
    uint64_t dims[MB_TEXT_MAX_RANK]; /* MB_UNKNOWN: open */
} mb_writer;

static inline bool mb_write_fail(mb_writer *w, mb_status status, uint64_t offset, uint64_t expected, uint64_t got, const char *detail) {
    mb_fail(w->error, status, offset, expected, got, detail);
    return false;
}

static inline bool mb_write_refuse(mb_writer *w, uint64_t offset, const char *detail) {
    return mb_write_fail(w, MB_TEXTLESS, offset, 0, 0, detail);
}

static inline bool mb_write_split(mb_writer *w, uint64_t offset, const char *detail) {
    return w->is_plain ? mb_write_refuse(w, offset, detail) : mb_write_fail(w, MB_SPLIT, offset, 1, 2, detail);
}

static inline bool mb_write_deeper(mb_writer *w, uint64_t offset, const char *detail) {
    if (++w->depth <= MB_TEXT_MAX_DEPTH) return true;
    return mb_write_fail(w, MB_DEPTH, offset, MB_TEXT_MAX_DEPTH, w->depth, detail);
}

static inline mb_cursor mb_write_cursor(const mb_writer *w, mb_span span) { return mb_cursor_of(w->base, w->base + span.offset, span.nbytes); }

/* Read the members of a message whose fields are all sub-messages or strings: member[number], offset 0 where it is not there.
 * known: one bit for each number that the message has. */
static inline bool mb_write_members(mb_writer *w, mb_span span, uint32_t known, mb_span member[8], const char *detail) {
    mb_cursor message = mb_write_cursor(w, span);
    memset(member, 0, 8 * sizeof *member);
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, w->error)) return false;
        uint64_t offset = (uint64_t)(wire.tag - w->base);
        if (wire.number > 7 || !(known >> wire.number & 1)) return mb_write_refuse(w, offset, "a field that the specification does not have");
        if (mb_expect_wire(&message, &wire, MB_WIRE_BYTES, detail, w->error)) return false;
        if (member[wire.number].offset != 0) return mb_write_split(w, offset, detail);
        member[wire.number].offset = (uint64_t)(wire.data - w->base);
        member[wire.number].nbytes = wire.nbytes;
    }
    return true;
}

/* How many of the members in `which` are there; *number is the last of them. */
static inline uint32_t mb_write_chosen(const mb_span member[8], uint32_t which, uint32_t *number) {
    uint32_t count = 0;
    for (uint32_t i = 1; i < 8; i++) {
        if (!(which >> i & 1) || member[i].offset == 0) continue;
        *number = i;
        count++;
    }
    return count;
}

/* The next field 1 of a message that has nothing else, such as the values of a list; false at the end, or *good is false. */
static inline bool mb_write_next(mb_writer *w, mb_cursor *message, mb_span *item, const char *detail, bool *good) {
    mb_wire wire;
    *good = true;
    if (message->at == message->end) return false;
    *good = false;
    if (mb_read_field(message, &wire, w->error)) return false;
    if (wire.number != 1) return mb_write_refuse(w, (uint64_t)(wire.tag - w->base), "a field that the specification does not have");
    if (mb_expect_wire(message, &wire, MB_WIRE_BYTES, detail, w->error)) return false;
    item->offset = (uint64_t)(wire.data - w->base);
    item->nbytes = wire.nbytes;
    *good = true;
    return true;
}

/* ------------------------------------------------------------------------------------------------ names and strings */

/* [A-Za-z_][A-Za-z0-9_@]* */
static inline bool mb_write_name(mb_writer *w, mb_span span, const char *detail) {
    const uint8_t *src = w->base + span.offset;
    bool good = span.nbytes > 0 && mb_is_letter(src[0]);
    for (uint64_t i = 1; i < span.nbytes && good; i++) good = mb_is_letter(src[i]) || mb_is_digit(src[i]) || src[i] == '@';
    if (!good) return mb_write_refuse(w, span.offset, detail);
    mb_print_bytes(&w->print, src, span.nbytes);
    return true;
}

static inline bool mb_write_string(mb_writer *w, mb_span span) {
    const uint8_t *src = w->base + span.offset;
    uint64_t run = 0, at = 0;
    mb_print_text(&w->print, "\"");
    while (at < span.nbytes) {
        uint8_t c = src[at];
        if (c >= 0x80) {
            uint32_t sequence = mb_utf8_sequence(src + at, span.nbytes - at);
            if (sequence == 0) return mb_write_fail(w, MB_UTF8, span.offset + at, 0, c, "a string");
            at += sequence;
            continue;
        }
        if (c == 0) return mb_write_refuse(w, span.offset + at, "a NUL character in a string");
        char letter = c == '"' ? '"' : c == '\\' ? '\\' : c == '\n' ? 'n' : c == '\t' ? 't' : c == '\r' ? 'r' : 0;
        if (letter != 0) {
            char escaped[3] = {'\\', letter, 0};
            mb_print_bytes(&w->print, src + run, at - run);
            mb_print_text(&w->print, escaped);
            run = at + 1;
        }
        at++;
    }
    mb_print_bytes(&w->print, src + run, at - run);
    mb_print_text(&w->print, "\"");
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- types */

/* Dimension{1 constant{1 size}} or Dimension{2 unknown{1 variadic}}. */
static inline bool mb_write_read_dimension(mb_writer *w, mb_span span, uint64_t *size) {
    mb_span member[8];
    uint32_t number = 0;
    mb_wire wire;
    if (!mb_write_members(w, span, 1u << 1 | 1u << 2, member, "dimension")) return false;
    uint32_t count = mb_write_chosen(member, 1u << 1 | 1u << 2, &number);
    if (count > 1) return mb_write_split(w, span.offset, "dimension");
    if (count == 0) return mb_write_refuse(w, span.offset, "a dimension that is neither a number nor open");
    mb_cursor inner = mb_write_cursor(w, member[number]);
    uint64_t value = 0;
    while (inner.at < inner.end) {
        if (mb_read_field(&inner, &wire, w->error)) return false;
        if (wire.number != 1) return mb_write_refuse(w, (uint64_t)(wire.tag - w->base), "a field that the specification does not have");
        if (mb_expect_wire(&inner, &wire, MB_WIRE_VARINT, "size of a dimension", w->error)) return false;
        value = wire.value;
    }
    if (number == 2 && value != 0) return mb_write_refuse(w, span.offset, "a dimension that represents any number of dimensions");
    if (number == 1 && value == MB_UNKNOWN) return mb_write_refuse(w, span.offset, "a dimension of 2^64 - 1");
    *size = number == 1 ? value : MB_UNKNOWN;
    return true;
}

/* TensorType {1 dataType, 2 rank, 3 dimensions, 4 attributes} into dtype, rank and dims of the writer. */
static inline bool mb_write_read_tensor(mb_writer *w, mb_span span) {
    mb_cursor message = mb_write_cursor(w, span);
    mb_wire wire;
    uint64_t code = 0, declared = 0;
    w->rank = 0;
    while (message.at < message.end) {
        if (mb_read_field(&message, &wire, w->error)) return false;
        uint64_t offset = (uint64_t)(wire.tag - w->base);
        if (wire.number == 1 || wire.number == 2) {
            if (mb_expect_wire(&message, &wire, MB_WIRE_VARINT, "dataType or rank", w->error)) return false;
            if (wire.number == 1) code = wire.value;
            else declared = wire.value;
        } else if (wire.number == 3) {
            mb_span dimension = {(uint64_t)(wire.data - w->base), wire.nbytes};
            if (mb_expect_wire(&message, &wire, MB_WIRE_BYTES, "dimension", w->error)) return false;
            if (w->rank == MB_TEXT_MAX_RANK) return mb_write_fail(w, MB_RANK, offset, MB_TEXT_MAX_RANK, w->rank + 1, "tensor type");
            if (!mb_write_read_dimension(w, dimension, &w->dims[w->rank++])) return false;
        } else {
            return mb_write_refuse(w, offset, wire.number == 4 ? "attributes of a tensor type" : "a field that the specification does not have");
        }
    }
    w->dtype = mb_dtype_of_mil_code(code);
    if (w->dtype == NULL) return mb_write_fail(w, MB_DTYPE, span.offset, 0, code, "MIL dtype code");
    if (declared == UINT64_MAX) return mb_write_refuse(w, span.offset, "a tensor of any rank");
    if (declared != w->rank) return mb_write_fail(w, MB_RANK, span.offset, declared, w->rank, "rank of a type");
    return true;
}

static inline void mb_write_scalar(mb_writer *w, const char *name) {
    if (!w->has_scalars) mb_print_text(&w->print, "tensor<");
    mb_print_text(&w->print, name);
    if (!w->has_scalars) mb_print_text(&w->print, ", []>");
}

static inline void mb_write_size(mb_writer *w, uint64_t size) {
    if (size == MB_UNKNOWN) mb_print_text(&w->print, "?");
    else mb_print_count(&w->print, size);
}

static inline void mb_write_tensor(mb_writer *w) {
    if (w->rank == 0) {
        mb_write_scalar(w, w->dtype->text);
        return;
    }
    mb_print_text(&w->print, "tensor<");
    mb_print_text(&w->print, w->dtype->text);
    mb_print_text(&w->print, ", [");
    for (uint64_t i = 0; i < w->rank; i++) {
        if (i > 0) mb_print_text(&w->print, ", ");
        mb_write_size(w, w->dims[i]);
    }
    mb_print_text(&w->print, "]>");
}

/* The kind of a ValueType, an MB_TYPE_*, and the message inside. */
static inline bool mb_write_kind(mb_writer *w, mb_span span, uint32_t *kind, mb_span *inner) {
    mb_span member[8];
    const uint32_t all = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5;
    if (!mb_write_members(w, span, all, member, "member of ValueType")) return false;
    uint32_t count = mb_write_chosen(member, all, kind);
    if (count > 1) return mb_write_split(w, span.offset, "member of ValueType");
    if (count == 0) return mb_write_refuse(w, span.offset, "a type that states none");
    *inner = member[*kind];
    return true;
}

/* The two members of a ListType or DictionaryType; both must be present. */
static inline bool mb_write_pair(mb_writer *w, mb_span span, mb_span member[8], const char *detail) {
    if (!mb_write_members(w, span, 1u << 1 | 1u << 2, member, detail)) return false;
    return (member[1].offset != 0 && member[2].offset != 0) || mb_write_refuse(w, span.offset, "a type of a list or dictionary with a part missing");
}

static inline bool mb_write_type(mb_writer *w, mb_span span);

static inline bool mb_write_tuple_type(mb_writer *w, mb_span span) {
    mb_cursor members = mb_write_cursor(w, span);
    mb_span item;
    bool good, first = true;
    mb_print_text(&w->print, "tuple<");
    for (; mb_write_next(w, &members, &item, "type of a tuple", &good); first = false) {
        if (!first) mb_print_text(&w->print, ", ");
        if (!mb_write_type(w, item)) return false;
    }
    if (good && first) return mb_write_refuse(w, span.offset, "a tuple without members");
    mb_print_text(&w->print, ">");
    return good;
}

/* A ValueType {1 tensorType, 2 listType, 3 tupleType, 4 dictionaryType, 5 stateType}. */
static inline bool mb_write_type(mb_writer *w, mb_span span) {
    mb_span inner, member[8];
    uint32_t kind = 0;
    uint64_t size;
    if (!mb_write_deeper(w, span.offset, "types") || !mb_write_kind(w, span, &kind, &inner)) return false;
    switch (kind) {
    case 1:
        if (!mb_write_read_tensor(w, inner)) return false;
        mb_write_tensor(w);
        break;
    case 2:
        if (!mb_write_pair(w, inner, member, "type of a list")) return false;
        mb_print_text(&w->print, "list<");
        if (!mb_write_type(w, member[1]) || !mb_write_read_dimension(w, member[2], &size)) return false;
        mb_print_text(&w->print, ", ");
        mb_write_size(w, size);
        mb_print_text(&w->print, ">");
        break;
    case 3:
        if (!mb_write_tuple_type(w, inner)) return false;
        break;
    case 4:
        if (!mb_write_pair(w, inner, member, "type of a dictionary")) return false;
        mb_print_text(&w->print, "dict<");
        if (!mb_write_type(w, member[1])) return false;
        mb_print_text(&w->print, ", ");
        if (!mb_write_type(w, member[2])) return false;
        mb_print_text(&w->print, ">");
        break;
    default:
        if (!mb_write_members(w, inner, 1u << 1, member, "type of a state")) return false;
        if (member[1].offset == 0) return mb_write_refuse(w, inner.offset, "a state of no type");
        mb_print_text(&w->print, "state<");
        if (!mb_write_type(w, member[1])) return false;
        mb_print_text(&w->print, ">");
    }
    w->depth--;
    return true;
}

#endif
