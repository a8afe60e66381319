/* text/write_value.h: writes tensors and other values of a Program as MIL text. */
#ifndef MILBLOB_TEXT_WRITE_VALUE_H
#define MILBLOB_TEXT_WRITE_VALUE_H

#include "milblob/kernels/varint.h"
#include "milblob/text/write_type.h"
#include "milblob/wire/tensor.h"

enum { MB_WRITE_HEAD = 8 }; /* elements that represent a whole tensor that is abridged */

/* ----------------------------------------------------------------------------------------------------------- tensors */

/* The elements of a tensor, read one after another. */
typedef struct mb_write_elements {
    mb_cursor strings; /* MB_FIELD_STRINGS: the message that holds them */
    const uint8_t *data;
    const uint8_t *end;
    uint64_t index;    /* of the next element, where all have one width */
} mb_write_elements;

/* A varint of a field, which must fit the dtype. */
static inline bool mb_write_varint(mb_writer *w, mb_write_elements *from, uint64_t *value) {
    uint64_t offset = (uint64_t)(from->data - w->base), index = from->index++;
    mb_cursor cursor = mb_cursor_of(w->base, from->data, (uint64_t)(from->end - from->data));
    if (mb_read_varint(&cursor, value, w->error)) return false;
    from->data = cursor.at;
    if (w->dtype->mil_code == MB_MIL_BOOL || w->dtype->nbits == 64) return true;
    const uint64_t half = (uint64_t)1 << (w->dtype->nbits - 1);
    bool fits = w->dtype->mil_code < MB_MIL_UINT8 ? *value + half < 2 * half : *value < 2 * half;
    if (!fits && !w->is_plain) return mb_write_split(w, offset, "values of a tensor"); /* protobuf cuts it, as it does int32 */
    return fits || mb_write_fail(w, MB_RANGE, offset, index, *value, w->dtype->text);
}

/* Write one element of a width that is fixed; `dst` has room for it. */
MB_STEP uint32_t mb_write_fixed(uint32_t mil_code, uint32_t nbits, const uint8_t *data, uint64_t index, uint8_t *dst) {
    uint64_t at = index * (nbits / 8), bit = index * nbits;
    MB_FOR_ALL_DTYPES(22);
    switch (mil_code) {
    case MB_MIL_FLOAT16: return mb_real_write(dst, (uint64_t)data[at] | (uint64_t)data[at + 1] << 8, 10, 5, false);
    case MB_MIL_BFLOAT16: return mb_real_write(dst, (uint64_t)data[at] | (uint64_t)data[at + 1] << 8, 7, 8, false);
    case MB_MIL_FLOAT32: return mb_real_write(dst, mb_load_u32(data + at), 23, 8, false);
    case MB_MIL_FLOAT64: return mb_real_write(dst, mb_load_u64(data + at), 52, 11, false);
    case MB_MIL_FLOAT8E4M3FN: return mb_real_write(dst, data[at], 3, 4, true);
    case MB_MIL_FLOAT8E5M2: return mb_real_write(dst, data[at], 2, 5, false);
    case MB_MIL_INT8: return mb_integer_write(dst, (uint64_t)(int64_t)(int8_t)data[at], true);
    case MB_MIL_UINT8: return mb_digits(dst, data[at]);
    case MB_MIL_UINT32: return mb_digits(dst, mb_load_u32(data + at));
    default: break; /* below eight bits: a bit stream, the least significant first; an element lies in one byte or two */
    }
    uint32_t low = (uint32_t)(bit & 7), value = (uint32_t)data[bit >> 3] >> low;
    if (low + nbits > 8) value |= (uint32_t)data[(bit >> 3) + 1] << (8 - low);
    value &= (1u << nbits) - 1;
    if (mil_code == MB_MIL_INT4 && value > 7) return mb_integer_write(dst, (uint64_t)value - 16, true);
    return mb_digits(dst, value);
}

/* A comma before each element but the first. */
MB_STEP uint8_t *mb_write_comma(uint8_t *dst, uint64_t i) {
    if (i == 0) return dst;
    dst[0] = ',';
    dst[1] = ' ';
    return dst + 2;
}

/* How many of `count` elements, one or more, there is room for: loops keep the place of the next in a register for so
 * long. In memory it would cost the time of a store and a load for each, because the characters might be stored over it. */
MB_STEP uint64_t mb_write_batch(mb_print *print, uint64_t count) {
    mb_print_room(print, MB_PRINT_MOST);
    const uint64_t most = (print->capacity - print->at) / MB_PRINT_MOST;
    return count < most ? count : most;
}

enum { MB_WRITE_CELL = 16, MB_WRITE_TABLE_COUNT = 2048 }; /* elements from which on making a table is cheaper than doing without */

/* Elements of at most eight bits: there are at most 256, so each is written once, with a comma before it, and then copied.
 * The last byte of a cell is its length: at most 14 characters, ", -0x1.cp-16". */
MB_STEP void mb_write_small_row(mb_print *print, uint32_t mil_code, uint32_t nbits, const uint8_t *data, uint64_t first, uint64_t count) {
    uint8_t cells[256][MB_WRITE_CELL], text[MB_PRINT_MOST];
    for (uint32_t value = 0; value < 1u << nbits; value++) {
        const uint8_t one[2] = {(uint8_t)value, 0};
        uint32_t nbytes = mb_write_fixed(mil_code, nbits, one, 0, text);
        memset(cells[value], 0, MB_WRITE_CELL);
        memcpy(cells[value], ", ", 2);
        memcpy(cells[value] + 2, text, nbytes < MB_WRITE_CELL - 3 ? nbytes : MB_WRITE_CELL - 3);
        cells[value][MB_WRITE_CELL - 1] = (uint8_t)(nbytes + 2);
    }
    print->at += mb_write_fixed(mil_code, nbits, data, first, mb_print_room(print, MB_PRINT_MOST)); /* no comma before it */
    const uint32_t mask = (1u << nbits) - 1;
    for (uint64_t i = first + 1, end = first + count; i < end;) {
        const uint64_t batch = i + mb_write_batch(print, end - i);
        uint8_t *dst = print->out + print->at;
        for (; i < batch; i++) {
            const uint64_t bit = i * nbits, at = bit >> 3;
            const uint32_t low = (uint32_t)(bit & 7);
            uint32_t value = (uint32_t)data[at] >> low;
            if (low + nbits > 8) value |= (uint32_t)data[at + 1] << (8 - low);
            const uint8_t *cell = cells[value & mask];
            memcpy(dst, cell, MB_WRITE_CELL);
            dst += cell[MB_WRITE_CELL - 1];
        }
        print->at = (uint64_t)(dst - print->out);
    }
}

/* Elements of one dtype, which the compiler knows. */
MB_STEP void mb_write_fixed_row(mb_print *print, uint32_t mil_code, uint32_t nbits, const uint8_t *data, uint64_t first, uint64_t count) {
    if (nbits <= 8 && count >= MB_WRITE_TABLE_COUNT) {
        mb_write_small_row(print, mil_code, nbits, data, first, count);
        return;
    }
    for (uint64_t i = 0; i < count;) {
        const uint64_t batch = i + mb_write_batch(print, count - i);
        uint8_t *dst = print->out + print->at;
        for (; i < batch; i++) {
            dst = mb_write_comma(dst, i);
            dst += mb_write_fixed(mil_code, nbits, data, first + i, dst);
        }
        print->at = (uint64_t)(dst - print->out);
    }
}

typedef enum mb_write_integer { MB_WRITE_SIGNED, MB_WRITE_UNSIGNED, MB_WRITE_BOOL } mb_write_integer;

/* Returns where the next element goes. */
MB_STEP uint8_t *mb_write_integer_at(uint8_t *dst, uint64_t i, uint64_t value, mb_write_integer kind) {
    static const char words[2][8] = {"false", "true"};
    dst = mb_write_comma(dst, i);
    if (kind != MB_WRITE_BOOL) return dst + mb_integer_write(dst, value, kind == MB_WRITE_SIGNED);
    memcpy(dst, words[value != 0], 8);
    return dst + (value != 0 ? 4 : 5);
}

MB_STEP void mb_write_one_integer(mb_print *print, uint64_t i, uint64_t value, mb_write_integer kind) {
    print->at = (uint64_t)(mb_write_integer_at(mb_print_room(print, MB_PRINT_MOST), i, value, kind) - print->out);
}

enum { MB_WRITE_RUN = 256, MB_WRITE_FEW = 32 }; /* varints that are decoded before they are written; and one by one, where that failed */

typedef union mb_write_run {
    uint16_t of_16[MB_WRITE_RUN];
    uint32_t of_32[MB_WRITE_RUN];
    uint64_t of_64[MB_WRITE_RUN];
} mb_write_run;

/* A decoded element as 64 bits. */
MB_STEP uint64_t mb_write_element_of(const mb_write_run *run, uint64_t index, uint64_t nbits, mb_write_integer kind) {
    const uint64_t value = nbits == 16 ? run->of_16[index] : nbits == 32 ? run->of_32[index] : run->of_64[index];
    const uint64_t top = kind == MB_WRITE_SIGNED ? (uint64_t)1 << (nbits - 1) : 0;
    return (value ^ top) - top;
}

/* Varints; their kind and size are constants for the compiler. As many as possible are decoded at once. The others, all
 * but the last few and malformed ones, are read one by one without a branch on their length. */
MB_STEP bool mb_write_varint_row(mb_writer *w, mb_write_elements *from, uint64_t count, mb_write_integer kind, uint64_t size) {
    mb_print *print = &w->print;
    const bool is_written = print->flush != NULL;
    const uint64_t nbits = kind == MB_WRITE_BOOL ? 64 : size, half = (uint64_t)1 << (nbits - 1);
    const uint64_t shift = kind == MB_WRITE_SIGNED ? half : 0, most = nbits == 64 ? UINT64_MAX : 2 * half - 1;
    const bool has_runs = kind != MB_WRITE_BOOL && w->runs != NULL;
    const unsigned which = nbits == 16 ? MB_RUN_16 : nbits == 32 ? MB_RUN_32 : MB_RUN_64;
    const int64_t lo = nbits == 64 ? INT64_MIN : -(int64_t)shift, hi = nbits == 64 ? INT64_MAX : (int64_t)(most - shift);
    const uint8_t *at = from->data;
    uint64_t i = 0, value, bad = 0;
    mb_write_run run;
    while (i < count && from->end - at >= 10 && bad == 0) {
        uint64_t taken = 0, done = 0, few = count;
        if (has_runs && count - i >= MB_WRITE_FEW) {
            done = w->runs[which](&run, at, (uint64_t)(from->end - at), count - i < MB_WRITE_RUN ? count - i : (uint64_t)MB_WRITE_RUN, lo, hi, &taken);
            if (count - i > MB_WRITE_RUN + MB_WRITE_FEW) few = i + done + MB_WRITE_FEW;
        }
        at += taken;
        for (uint64_t k = 0; k < done && is_written;) {
            const uint64_t batch = k + mb_write_batch(print, done - k);
            uint8_t *dst = print->out + print->at;
            for (; k < batch; k++) dst = mb_write_integer_at(dst, i + k, mb_write_element_of(&run, k, nbits, kind), kind);
            print->at = (uint64_t)(dst - print->out);
        }
        i += done;
        if (done >= MB_WRITE_RUN / 2) continue;
        while (i < few && from->end - at >= 10 && bad == 0) {
            const uint64_t batch = is_written ? i + mb_write_batch(print, few - i) : few;
            uint8_t *dst = print->out + print->at;
            for (; i < batch && from->end - at >= 10; i++) {
                const unsigned length = kind == MB_WRITE_BOOL && *at < 0x80 ? 1 : mb_varint_take(at, &value, &bad);
                if (length == 1) value = *at;
                bad |= (uint64_t)(value + shift > most);
                if (bad != 0) break;
                at += length;
                if (is_written) dst = mb_write_integer_at(dst, i, value, kind);
            }
            print->at = (uint64_t)(dst - print->out);
        }
    }
    from->data = at;
    from->index += i;
    for (; i < count; i++) {
        if (!mb_write_varint(w, from, &value)) return false;
        if (is_written) mb_write_one_integer(print, i, value, kind);
    }
    return true;
}

/* Write `count` elements with commas between them. A run that only checks writes none of those that are numbers. */
static inline bool mb_write_row(mb_writer *w, mb_write_elements *from, uint64_t count) {
    mb_print *print = &w->print;
    const uint64_t first = from->index;
    bool good = true;
    switch (w->dtype->field) {
    case MB_FIELD_STRINGS:
        for (uint64_t i = 0; i < count; i++) {
            mb_span text;
            print->at = (uint64_t)(mb_write_comma(mb_print_room(print, MB_PRINT_MOST), i) - print->out);
            if (!mb_write_next(w, &from->strings, &text, "strings of a tensor", &good))
                return good ? mb_write_fail(w, MB_CHANGED, 0, count, i, "strings of a tensor") : false;
            if (!mb_write_string(w, text)) return false;
        }
        break;
    case MB_FIELD_BOOLS:
        if (!mb_write_varint_row(w, from, count, MB_WRITE_BOOL, 64)) return false;
        break;
    case MB_FIELD_INTS:
    case MB_FIELD_LONGINTS:
        switch (w->dtype->mil_code) {
            MB_FOR_ALL_DTYPES(22);
        case MB_MIL_INT16: good = mb_write_varint_row(w, from, count, MB_WRITE_SIGNED, 16); break;
        case MB_MIL_INT32: good = mb_write_varint_row(w, from, count, MB_WRITE_SIGNED, 32); break;
        case MB_MIL_INT64: good = mb_write_varint_row(w, from, count, MB_WRITE_SIGNED, 64); break;
        case MB_MIL_UINT16: good = mb_write_varint_row(w, from, count, MB_WRITE_UNSIGNED, 16); break;
        default: good = mb_write_varint_row(w, from, count, MB_WRITE_UNSIGNED, 64); break;
        }
        if (!good) return false;
        break;
    default:
        from->index += count;
        if (print->flush == NULL) break;
        switch (w->dtype->mil_code) {
#define MB_ROW(name, text, code, blob_code, bits, field) \
    case code: mb_write_fixed_row(print, code, bits, from->data, first, count); break;
            MB_DTYPES(MB_ROW)
#undef MB_ROW
        }
    }
    return !print->stopped || mb_write_fail(w, MB_FULL, 0, 0, 0, "room for the text");
}

/* Brackets of a tensor without elements, as deep as its shape, or one pair where that would be too many. */
static inline void mb_write_empty(mb_writer *w, uint64_t level) {
    uint64_t size = level < w->rank ? w->dims[level] : 0;
    mb_print_text(&w->print, "[");
    for (uint64_t i = 0; i < size && level + 1 < w->rank; i++) {
        if (i > 0) mb_print_text(&w->print, ", ");
        mb_write_empty(w, level + 1);
    }
    mb_print_text(&w->print, "]");
}

/* How many pairs of brackets mb_write_empty would write, up to a limit. */
static inline bool mb_write_is_short(const mb_writer *w) {
    uint64_t all = 1, level = 1;
    for (uint64_t i = 0; i + 1 < w->rank && level != 0; i++) {
        if (!mb_mul(level, w->dims[i], &level) || !mb_add(all, level, &all) || all > 1024) return false;
    }
    return true;
}

/* All elements, in lists nested by the shape: w->dims, all known. */
static inline bool mb_write_nested(mb_writer *w, mb_write_elements *from, uint64_t count) {
    uint64_t counts[MB_TEXT_MAX_RANK] = {0}, inner = w->rank > 0 ? w->dims[w->rank - 1] : 1, done = 0, open = 0;
    while (done < count) {
        if (done > 0) mb_print_text(&w->print, ", ");
        for (; open < w->rank; open++) mb_print_text(&w->print, "[");
        if (!mb_write_row(w, from, inner)) return false;
        done += inner;
        /* Lists that end here: the innermost, and each one around it that has all its entries. */
        for (; open > 0; open--) {
            uint64_t level = open - 1;
            if (level + 1 < w->rank) {
                if (++counts[level] < w->dims[level]) break;
                counts[level] = 0;
            }
            mb_print_text(&w->print, "]");
        }
    }
    return true;
}

/* Count the elements, and fill in an open dimension. */
static inline bool mb_write_count(mb_writer *w, mb_span span, const mb_tensor *tensor, uint64_t *count) {
    const uint8_t *data = w->base + tensor->offset;
    uint64_t known = 1, open = 0, last = 0, nbits = w->dtype->nbits, want;
    bool is_empty = false, wraps = false;
    for (uint64_t i = 0; i < w->rank; i++) {
        if (w->dims[i] == MB_UNKNOWN) {
            open++;
            last = i;
        } else {
            is_empty |= w->dims[i] == 0;
            wraps |= !mb_mul(known, w->dims[i], &known);
        }
    }
    if (is_empty) known = 0;
    else if (wraps) return mb_write_fail(w, MB_OVERFLOW, span.offset, known, w->rank, "element count of a type");
    if (open > 1) return mb_write_refuse(w, span.offset, "a value with more than one open dimension");
    switch (tensor->field) {
    case MB_FIELD_NONE: *count = 0; break;
    case MB_FIELD_STRINGS: *count = tensor->count; break;
    case MB_FIELD_INTS:
    case MB_FIELD_LONGINTS:
    case MB_FIELD_BOOLS: *count = mb_varint_count(data, tensor->nbytes); break;
    default:
        *count = tensor->nbytes / nbits * 8 + tensor->nbytes % nbits * 8 / nbits;
        /* The unused bits of the last byte are no elements; other widths leave no such bits. */
        if (open == 0 && mb_mul(known, nbits, &want) && mb_add(want, 7, &want) && want / 8 == tensor->nbytes) *count = known;
        else if (nbits >= 8 && tensor->nbytes % (nbits / 8) != 0) return mb_write_fail(w, MB_COUNT, span.offset, known, *count, "elements of a tensor");
    }
    if (open == 1) {
        if (known == 0 ? *count != 0 : *count % known != 0) return mb_write_fail(w, MB_COUNT, span.offset, known, *count, "elements of a tensor");
        w->dims[last] = known == 0 ? 0 : *count / known;
    } else if (*count != known) {
        return mb_write_fail(w, MB_COUNT, span.offset, known, *count, "elements of a tensor");
    }
    return true;
}

/* A TensorValue; its type is the one that was read last. */
static inline bool mb_write_tensor_value(mb_writer *w, mb_span span) {
    mb_tensor tensor;
    mb_write_elements from;
    uint64_t count;
    if (mb_tensor_locate(w->base, w->base + span.offset, span.nbytes, &tensor, w->error)) return false;
    if (tensor.field != MB_FIELD_NONE && tensor.field != w->dtype->field) return mb_write_refuse(w, span.offset, "a value in another field than that of its dtype");
    if (tensor.chunk_count > 1 && tensor.field != MB_FIELD_STRINGS) return mb_write_split(w, span.offset, "values of a tensor");
    if (!mb_write_count(w, span, &tensor, &count)) return false;
    from.data = w->base + tensor.offset;
    from.end = from.data + tensor.nbytes;
    from.index = 0;
    if (tensor.field == MB_FIELD_STRINGS) {
        mb_span member[8];
        if (!mb_write_members(w, span, 1u << MB_FIELD_STRINGS, member, "strings of a tensor")) return false;
        from.strings = mb_write_cursor(w, member[MB_FIELD_STRINGS]);
    }
    if (count == 0) {
        if (w->rank == 0) return mb_write_fail(w, MB_COUNT, span.offset, 1, 0, "elements of a tensor");
        if (mb_write_is_short(w)) mb_write_empty(w, 0);
        else mb_print_text(&w->print, "[]");
        return true;
    }
    if (w->weights == MB_WRITE_ALL || count < MB_WEIGHT_COUNT) return mb_write_nested(w, &from, count);
    mb_print_text(&w->print, "[");
    if (w->weights == MB_WRITE_CUT) {
        if (!mb_write_row(w, &from, count < MB_WRITE_HEAD ? count : (uint64_t)MB_WRITE_HEAD)) return false;
        mb_print_text(&w->print, ", ");
    }
    mb_print_text(&w->print, "...]");
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ values */

/* BlobFileValue {1 fileName, 2 offset} */
static inline bool mb_write_blob(mb_writer *w, mb_span span) {
    mb_cursor message = mb_write_cursor(w, span);
    mb_span name = {span.offset, 0};
    uint64_t offset = 0;
    mb_wire wire;
    while (message.at < message.end) {
        if (mb_read_field(&message, &wire, w->error)) return false;
        if (wire.number > 2) return mb_write_refuse(w, (uint64_t)(wire.tag - w->base), "a field that the specification does not have");
        if (mb_expect_wire(&message, &wire, wire.number == 1 ? MB_WIRE_BYTES : MB_WIRE_VARINT, "field of BlobFileValue", w->error)) return false;
        if (wire.number == 2) offset = wire.value;
        else name.offset = (uint64_t)(wire.data - w->base), name.nbytes = wire.nbytes;
    }
    mb_print_text(&w->print, "BLOBFILE(path = ");
    mb_write_scalar(w, "string");
    mb_print_text(&w->print, "(");
    if (!mb_write_string(w, name)) return false;
    mb_print_text(&w->print, "), offset = ");
    mb_write_scalar(w, "uint64");
    mb_print_text(&w->print, "(");
    mb_print_count(&w->print, offset);
    mb_print_text(&w->print, "))");
    return true;
}

static inline bool mb_write_payload(mb_writer *w, mb_span type, mb_span value[8]);

/* The members of a Value, which must have a type and one value. */
static inline bool mb_write_value_members(mb_writer *w, mb_span span, mb_span member[8]) {
    if (!mb_write_members(w, span, 1u << 1 | 1u << 2 | 1u << 3 | 1u << 5, member, "member of Value")) return false;
    if (member[3].offset != 0 && member[5].offset != 0) return mb_write_split(w, span.offset, "member of Value");
    if (member[1].nbytes != 0) return mb_write_refuse(w, member[1].offset, "a docString");
    if (member[2].offset == 0) return mb_write_refuse(w, span.offset, "a value without a type");
    return member[3].offset != 0 || member[5].offset != 0 || mb_write_refuse(w, span.offset, "a type without a value");
}

/* One element of a list, tuple or dictionary: its type must be the one that is declared around it. */
static inline bool mb_write_element(mb_writer *w, mb_span span, mb_span type) {
    mb_span member[8];
    if (!mb_write_value_members(w, span, member)) return false;
    if (member[2].nbytes != type.nbytes || memcmp(w->base + member[2].offset, w->base + type.offset, type.nbytes) != 0)
        return mb_write_split(w, member[2].offset, "an element of another type than its list, tuple or dictionary declares");
    return mb_write_payload(w, type, member);
}

static inline bool mb_write_list(mb_writer *w, mb_span type, mb_span list) {
    mb_cursor items = mb_write_cursor(w, list);
    mb_span member[8], item;
    uint64_t size, count = 0;
    bool good;
    if (!mb_write_pair(w, type, member, "type of a list") || !mb_write_read_dimension(w, member[2], &size)) return false;
    mb_print_text(&w->print, "[");
    for (; mb_write_next(w, &items, &item, "element of a list", &good); count++) {
        if (count > 0) mb_print_text(&w->print, ", ");
        if (!mb_write_element(w, item, member[1])) return false;
    }
    if (good && size != MB_UNKNOWN && size != count) return mb_write_fail(w, MB_COUNT, list.offset, size, count, "elements of a list");
    mb_print_text(&w->print, "]");
    return good;
}

static inline bool mb_write_tuple(mb_writer *w, mb_span type, mb_span tuple) {
    mb_cursor types = mb_write_cursor(w, type), items = mb_write_cursor(w, tuple);
    mb_span item, item_type;
    uint64_t count = 0;
    bool good, is_typed;
    mb_print_text(&w->print, "(");
    for (; mb_write_next(w, &types, &item_type, "type of a tuple", &is_typed); count++) {
        if (!mb_write_next(w, &items, &item, "member of a tuple", &good))
            return good ? mb_write_fail(w, MB_COUNT, tuple.offset, count + 1, count, "members of a tuple") : false;
        if (count > 0) mb_print_text(&w->print, ", ");
        if (!mb_write_element(w, item, item_type)) return false;
    }
    if (!is_typed) return false;
    if (items.at < items.end) return mb_write_fail(w, MB_COUNT, tuple.offset, count, count + 1, "members of a tuple");
    mb_print_text(&w->print, ")");
    return true;
}

static inline bool mb_write_dictionary(mb_writer *w, mb_span type, mb_span dictionary) {
    mb_cursor pairs = mb_write_cursor(w, dictionary);
    mb_span types[8], pair, member[8];
    bool good, first = true;
    if (!mb_write_pair(w, type, types, "type of a dictionary")) return false;
    mb_print_text(&w->print, "{");
    for (; mb_write_next(w, &pairs, &pair, "pair of a dictionary", &good); first = false) {
        if (!mb_write_members(w, pair, 1u << 1 | 1u << 2, member, "key or value of a dictionary")) return false;
        if (member[1].offset == 0 || member[2].offset == 0) return mb_write_refuse(w, pair.offset, "a pair without key or value");
        mb_print_text(&w->print, first ? "{" : ", {");
        if (!mb_write_element(w, member[1], types[1])) return false;
        mb_print_text(&w->print, ", ");
        if (!mb_write_element(w, member[2], types[2])) return false;
        mb_print_text(&w->print, "}");
    }
    mb_print_text(&w->print, "}");
    return good;
}

/* What stands in the parentheses after a type: value[3] is the ImmediateValue {1 tensor, 2 tuple, 3 list, 4 dictionary},
 * value[5] the BlobFileValue. Nests as deep as the type, whose depth is limited. */
static inline bool mb_write_payload(mb_writer *w, mb_span type, mb_span value[8]) {
    mb_span inner, member[8];
    uint32_t kind = 0, number = 0;
    const uint32_t all = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4;
    if (value[5].offset != 0) return mb_write_blob(w, value[5]);
    if (!mb_write_kind(w, type, &kind, &inner) || !mb_write_members(w, value[3], all, member, "member of ImmediateValue")) return false;
    uint32_t count = mb_write_chosen(member, all, &number);
    if (count > 1) return mb_write_split(w, value[3].offset, "member of ImmediateValue");
    if (count == 0) return mb_write_refuse(w, value[3].offset, "a type without a value");
    static const uint32_t kinds[5] = {0, 1, 3, 2, 4}; /* of the types, by number of the value */
    if (kind != kinds[number]) return mb_write_refuse(w, value[3].offset, "a value of another kind than its type");
    switch (number) {
    case 1: return mb_write_read_tensor(w, inner) && mb_write_tensor_value(w, member[1]);
    case 2: return mb_write_tuple(w, inner, member[2]);
    case 3: return mb_write_list(w, inner, member[3]);
    default: return mb_write_dictionary(w, inner, member[4]);
    }
}

/* type(payload) */
static inline bool mb_write_value(mb_writer *w, mb_span span) {
    mb_span member[8];
    if (!mb_write_value_members(w, span, member) || !mb_write_type(w, member[2])) return false;
    mb_print_text(&w->print, "(");
    if (!mb_write_payload(w, member[2], member)) return false;
    mb_print_text(&w->print, ")");
    return true;
}

#endif
