/* text/value.h: parses types and values of MIL text.
 *
 * A type is written once, as the ValueType of the value that it belongs to. The payload is then read by that type,
 * and the type is read back from the bytes just written: elements of lists, tuples and dicts get theirs as a copy of
 * those bytes. So the text of a type is parsed once, however many elements it has. Positions into the written bytes
 * are good while the Value that holds the type is open. */
#ifndef MILBLOB_TEXT_VALUE_H
#define MILBLOB_TEXT_VALUE_H

#include "milblob/text/number.h"
#include "milblob/text/token.h"

/* Field numbers of ValueType; the number is also the kind of the type (MIL.proto). */
enum { MB_TYPE_TENSOR = 1, MB_TYPE_LIST = 2, MB_TYPE_TUPLE = 3, MB_TYPE_DICT = 4, MB_TYPE_STATE = 5 };

/* Bytes that were written: [at, end) of emit->out. */
typedef struct mb_written {
    uint64_t at;
    uint64_t end;
} mb_written;

/* Read back varints and prefixes that this parser wrote: minimal and whole, so nothing is left to check. The caller has
 * asked mb_text_room() first. */
static inline uint64_t mb_written_varint(const mb_text *text, mb_written *written) {
    uint64_t value = 0;
    for (uint32_t shift = 0; written->at < written->end && shift < 64; shift += 7) {
        uint8_t byte = text->emit.out[written->at++];
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) break;
    }
    return value;
}

static inline mb_written mb_written_message(const mb_text *text, mb_written *written) {
    mb_written inner;
    mb_written_varint(text, written); /* the tag: fields of these messages come in a fixed order */
    uint64_t nbytes = mb_written_varint(text, written);
    inner.at = written->at;
    inner.end = written->at += nbytes;
    return inner;
}

/* Dimension{1 constant{1 size}} or Dimension{2 unknown{}}, field given. */
static inline bool mb_text_dimension(mb_text *text, uint32_t field, const char *detail) {
    mb_emit *emit = &text->emit;
    uint64_t dimension = mb_emit_begin(emit, field);
    if (mb_text_try(text, '?')) {
        mb_emit_bytes(emit, 2, NULL, 0);
    } else {
        uint64_t count, constant = mb_emit_begin(emit, 1);
        if (!mb_text_count(text, UINT64_MAX, &count, detail)) return false;
        if (count != 0) mb_emit_field(emit, 1, count);
        mb_emit_end(emit, constant);
    }
    mb_emit_end(emit, dimension);
    return true;
}

static inline bool mb_text_scalar(mb_text *text, mb_text_span name, const mb_dtype **out) {
    *out = mb_dtype_of_text(text->text + name.start, (size_t)name.nbytes);
    if (*out != NULL) return true;
    text->at = name.start;
    return mb_text_want(text, "a type");
}

/* After "tensor": <SCALAR, [dims]> as the fields of TensorType. */
static inline bool mb_text_tensor_type(mb_text *text) {
    mb_text_span name;
    const mb_dtype *dtype;
    uint64_t rank = 0, dims_start;
    if (!mb_text_take(text, '<', "<") || !mb_text_identifier(text, &name, "an element type") ||
        !mb_text_scalar(text, name, &dtype) || !mb_text_take(text, ',', ",") || !mb_text_take(text, '[', "["))
        return false;
    mb_emit_field(&text->emit, 1, dtype->mil_code);
    dims_start = text->emit.at;
    if (!mb_text_try(text, ']')) {
        do {
            if (rank == MB_TEXT_MAX_RANK)
                return mb_text_fail(text, MB_RANK, text->at, MB_TEXT_MAX_RANK, rank + 1, "tensor type");
            if (!mb_text_dimension(text, 3, "a dimension")) return false;
            rank++;
        } while (mb_text_try(text, ','));
        if (!mb_text_take(text, ']', ", or ]")) return false;
        uint64_t dims_end = text->emit.at; /* the rank goes first and is known last */
        mb_emit_field(&text->emit, 2, rank);
        mb_emit_swap(&text->emit, dims_start, dims_end);
    }
    return mb_text_take(text, '>', ">");
}

/* A type as the content of a ValueType message. */
static inline bool mb_text_type(mb_text *text);

static inline bool mb_text_inner_type(mb_text *text, uint32_t field) {
    uint64_t mark = mb_emit_begin(&text->emit, field);
    if (!mb_text_type(text)) return false;
    mb_emit_end(&text->emit, mark);
    return true;
}

static inline bool mb_text_type(mb_text *text) {
    mb_emit *emit = &text->emit;
    mb_text_span name;
    uint64_t mark;
    if (!mb_text_identifier(text, &name, "a type") || !mb_text_deeper(text, "types")) return false;
    if (mb_text_is(text, name, "tensor")) {
        mark = mb_emit_begin(emit, MB_TYPE_TENSOR);
        if (!mb_text_tensor_type(text)) return false;
    } else if (mb_text_is(text, name, "list")) {
        mark = mb_emit_begin(emit, MB_TYPE_LIST);
        if (!mb_text_take(text, '<', "<") || !mb_text_inner_type(text, 1) || !mb_text_take(text, ',', ",") ||
            !mb_text_dimension(text, 2, "a list length") || !mb_text_take(text, '>', ">"))
            return false;
    } else if (mb_text_is(text, name, "tuple")) {
        mark = mb_emit_begin(emit, MB_TYPE_TUPLE);
        if (!mb_text_take(text, '<', "<")) return false;
        do {
            if (!mb_text_inner_type(text, 1)) return false;
        } while (mb_text_try(text, ','));
        if (!mb_text_take(text, '>', ", or >")) return false;
    } else if (mb_text_is(text, name, "dict")) {
        mark = mb_emit_begin(emit, MB_TYPE_DICT);
        if (!mb_text_take(text, '<', "<") || !mb_text_inner_type(text, 1) || !mb_text_take(text, ',', ",") ||
            !mb_text_inner_type(text, 2) || !mb_text_take(text, '>', ">"))
            return false;
    } else if (mb_text_is(text, name, "state")) {
        mark = mb_emit_begin(emit, MB_TYPE_STATE);
        if (!mb_text_take(text, '<', "<") || !mb_text_inner_type(text, 1) || !mb_text_take(text, '>', ">"))
            return false;
    } else { /* a scalar: a tensor of rank 0 */
        const mb_dtype *dtype;
        if (!mb_text_scalar(text, name, &dtype)) return false;
        mark = mb_emit_begin(emit, MB_TYPE_TENSOR);
        mb_emit_field(emit, 1, dtype->mil_code);
    }
    mb_emit_end(emit, mark);
    text->depth--;
    return true;
}

/* Read a TensorType back into text->dtype, rank, dims and count. */
static inline bool mb_text_read_tensor_type(mb_text *text, mb_written type) {
    uint64_t at = text->at;
    mb_written_varint(text, &type);
    text->dtype = mb_dtype_of_mil_code(mb_written_varint(text, &type));
    text->rank = 0;
    text->count = 1;
    text->count_known = true;
    if (type.at == type.end) return true;
    mb_written_varint(text, &type);
    mb_written_varint(text, &type); /* the rank; the dimensions are counted */
    bool zero = false, wraps = false;
    while (type.at < type.end && text->rank < MB_TEXT_MAX_RANK) {
        mb_written dimension = mb_written_message(text, &type), constant;
        uint64_t dim = UINT64_MAX;
        if (text->emit.out[dimension.at] >> 3 == 1) {
            constant = mb_written_message(text, &dimension);
            dim = 0;
            if (constant.at < constant.end) {
                mb_written_varint(text, &constant);
                dim = mb_written_varint(text, &constant);
            }
            zero |= dim == 0;
            wraps |= !mb_mul(text->count, dim, &text->count);
        } else {
            text->count_known = false;
        }
        text->dims[text->rank++] = dim;
    }
    if (zero) text->count = 0; /* even if the product of the others overflows */
    return zero || !wraps || mb_text_fail(text, MB_OVERFLOW, at, 0, 0, "number of elements of a tensor type");
}

/* A TensorValue payload under construction: sub-byte elements wait in `pending` until they fill bytes. */
typedef struct mb_packer {
    uint64_t index;         /* elements read so far */
    uint32_t pending;       /* at most 7 + 6 bits */
    uint32_t pending_nbits;
} mb_packer;

static inline bool mb_text_real(mb_text *text, mb_packer *packer, mb_real_format format, uint32_t nbytes) {
    uint64_t start = text->at, bits = 0;
    mb_real real;
    const char *missing = mb_real_read(text->text, text->nbytes, &text->at, &real);
    if (missing != NULL) return mb_text_want(text, missing);
    if (!mb_real_round(&real, format, &bits)) {
        const mb_real_format binary64 = {52, 11, false};
        if (!mb_real_round(&real, binary64, &bits)) bits = (uint64_t)0x7FF << 52 | (uint64_t)real.negative << 63;
        return mb_text_fail(text, MB_RANGE, start, packer->index, bits, text->dtype->text);
    }
    mb_emit_fixed(&text->emit, bits, nbytes);
    return true;
}

static inline bool mb_text_integer(mb_text *text, mb_packer *packer) {
    const mb_dtype *dtype = text->dtype;
    uint64_t start = text->at, magnitude;
    bool negative, fits;
    if (!mb_integer_read(text->text, text->nbytes, &text->at, &magnitude, &negative, &fits))
        return mb_text_want(text, "an integer");
    bool is_signed = dtype->mil_code < MB_MIL_UINT8; /* the codes 21 to 25; 31 to 39 are unsigned */
    uint32_t nbits = dtype->nbits;
    uint64_t most = UINT64_MAX >> (64 - nbits + (is_signed ? 1 : 0));
    if (negative) most = is_signed ? most + 1 : 0; /* -0 is 0 */
    uint64_t value = negative ? 0 - magnitude : magnitude;
    if (!fits || magnitude > most) return mb_text_fail(text, MB_RANGE, start, packer->index, value, dtype->text);
    if (dtype->field != MB_FIELD_BYTES) {
        mb_emit_varint(&text->emit, value); /* sign-extended to 64 bits, as protobuf's int32 is */
    } else if (nbits >= 8) {
        mb_emit_fixed(&text->emit, value, nbits / 8);
    } else {
        packer->pending |= ((uint32_t)value & ((1u << nbits) - 1)) << packer->pending_nbits;
        packer->pending_nbits += nbits;
        if (packer->pending_nbits >= 8) {
            mb_emit_fixed(&text->emit, packer->pending, 1);
            packer->pending >>= 8;
            packer->pending_nbits -= 8;
        }
    }
    return true;
}

/* One element of the tensor that text->dtype is about. */
static inline bool mb_text_literal(mb_text *text, mb_packer *packer) {
    static const mb_real_format fp16 = {10, 5, false}, fp32 = {23, 8, false}, fp64 = {52, 11, false},
                                bf16 = {7, 8, false}, e4m3fn = {3, 4, true}, e5m2 = {2, 5, false};
    bool good;
    mb_text_span word;
    mb_text_peek(text);
    MB_FOR_ALL_DTYPES(22);
    switch (text->dtype->mil_code) {
    case MB_MIL_FLOAT16: good = mb_text_real(text, packer, fp16, 2); break;
    case MB_MIL_FLOAT32: good = mb_text_real(text, packer, fp32, 4); break;
    case MB_MIL_FLOAT64: good = mb_text_real(text, packer, fp64, 8); break;
    case MB_MIL_BFLOAT16: good = mb_text_real(text, packer, bf16, 2); break;
    case MB_MIL_FLOAT8E4M3FN: good = mb_text_real(text, packer, e4m3fn, 1); break;
    case MB_MIL_FLOAT8E5M2: good = mb_text_real(text, packer, e5m2, 1); break;
    case MB_MIL_STRING: good = mb_text_string(text, 1, false); break;
    case MB_MIL_BOOL:
        if (!mb_text_identifier(text, &word, "true or false")) return false;
        good = mb_text_is(text, word, "true");
        mb_emit_varint(&text->emit, good ? 1 : 0);
        if (!good && !mb_text_is(text, word, "false")) {
            text->at = word.start;
            return mb_text_want(text, "true or false");
        }
        good = true;
        break;
    default: good = mb_text_integer(text, packer);
    }
    packer->index++;
    return good && mb_text_room(text);
}

/* The elements of a tensor: a bare literal, a flat list, or lists nested by the shape. */
static inline bool mb_text_elements(mb_text *text, mb_packer *packer) {
    uint64_t counts[MB_TEXT_MAX_RANK]; /* entries seen so far in the open list of each level */
    uint64_t level = 0, deepest = 0, most = text->rank;
    bool seen = false; /* an element, which must stand at the deepest level */
    if (mb_text_peek(text) != '[') return mb_text_literal(text, packer);
    if (most == 0) return mb_text_want(text, "one element without brackets");
    do {
        if (mb_text_try(text, '[')) {
            if (level == most || (seen && level == deepest))
                return mb_text_fail(text, MB_RANK, text->at - 1, seen ? deepest : most, level + 1, "nested lists");
            counts[level++] = 0;
            if (level > deepest) deepest = level;
            if (mb_text_peek(text) != ']') continue;
        } else {
            if (level != deepest) return mb_text_want(text, "[ of a nested list");
            if (!mb_text_literal(text, packer)) return false;
            seen = true;
            counts[level - 1]++;
            if (mb_text_try(text, ',')) continue;
        }
        while (level > 0) { /* lists that end here */
            if (!mb_text_take(text, ']', ", or ]")) return false;
            level--;
            /* Nested as deep as the rank: each list has as many entries as its dimension, or as the first one had. */
            if (deepest == most) {
                uint64_t *dim = &text->dims[level];
                if (*dim == UINT64_MAX) *dim = counts[level];
                if (*dim != counts[level])
                    return mb_text_fail(text, MB_COUNT, text->at - 1, *dim, counts[level], "entries of a nested list");
            }
            if (level == 0) break;
            counts[level - 1]++;
            if (mb_text_try(text, ',')) break;
        }
    } while (level > 0);
    /* Lists without any element need not be as deep: [[]] is all there is of a shape of 1, 0, 5. */
    if (deepest > 1 && deepest != most && seen) return mb_text_fail(text, MB_RANK, text->at, most, deepest, "nested lists");
    return true;
}

/* A tensor literal as ImmediateValue{1 tensor{field{1 values}}}. */
static inline bool mb_text_tensor(mb_text *text) {
    mb_emit *emit = &text->emit;
    uint32_t field = text->dtype->field;
    mb_packer packer = {0, 0, 0};
    uint64_t start = text->at;
    uint64_t immediate = mb_emit_begin(emit, 3), tensor = mb_emit_begin(emit, 1);
    uint64_t repeated = mb_emit_begin(emit, field);
    uint64_t packed = field == MB_FIELD_STRINGS ? 0 : mb_emit_begin(emit, 1); /* strings are not packed */
    if (!mb_text_elements(text, &packer)) return false;
    if (packer.pending_nbits > 0) mb_emit_fixed(emit, packer.pending, 1);
    if (text->count_known && packer.index != text->count)
        return mb_text_fail(text, MB_COUNT, start, text->count, packer.index, "elements of a tensor");
    if (!mb_text_room(text)) return false;
    if (packer.index == 0) /* empty: the field is there, its values are not */
        emit->at = repeated;
    else if (field != MB_FIELD_STRINGS)
        mb_emit_end(emit, packed);
    mb_emit_end(emit, repeated);
    mb_emit_end(emit, tensor);
    mb_emit_end(emit, immediate);
    return true;
}

/* A scalar type inside BLOBFILE(...): its dtype, nothing written. */
static inline bool mb_text_scalar_type(mb_text *text, const char *detail) {
    uint64_t start = text->at, before = text->emit.at;
    if (!mb_text_type(text) || !mb_text_room(text)) return false;
    mb_written type = {before, text->emit.at};
    uint32_t kind = text->emit.out[before] >> 3;
    type = mb_written_message(text, &type);
    if (kind == MB_TYPE_TENSOR && !mb_text_read_tensor_type(text, type)) return false;
    text->emit.at = before;
    if (kind != MB_TYPE_TENSOR || text->rank != 0) return mb_text_fail(text, MB_TYPE, start, 0, 0, detail);
    return true;
}

/* After BLOBFILE: (path = <string>, offset = <whole number>) as BlobFileValue{1 fileName, 2 offset}. */
static inline bool mb_text_blob_file(mb_text *text) {
    uint64_t blob = mb_emit_begin(&text->emit, 5), offset;
    if (!mb_text_take(text, '(', "(") || !mb_text_word(text, "path") || !mb_text_take(text, '=', "=") ||
        !mb_text_scalar_type(text, "path of a blob file"))
        return false;
    if (text->dtype->mil_code != MB_MIL_STRING)
        return mb_text_fail(text, MB_TYPE, text->at, MB_MIL_STRING, text->dtype->mil_code, "path of a blob file");
    if (!mb_text_take(text, '(', "(") || !mb_text_string(text, 1, true) || !mb_text_take(text, ')', ")") ||
        !mb_text_take(text, ',', ",") || !mb_text_word(text, "offset") || !mb_text_take(text, '=', "=") ||
        !mb_text_scalar_type(text, "offset in a blob file"))
        return false;
    uint32_t code = text->dtype->mil_code;
    if (code < MB_MIL_INT8 || code > MB_MIL_UINT3)
        return mb_text_fail(text, MB_TYPE, text->at, MB_MIL_UINT64, code, "offset in a blob file");
    uint64_t most = UINT64_MAX >> (64 - text->dtype->nbits + (code < MB_MIL_UINT8 ? 1 : 0));
    if (!mb_text_take(text, '(', "(") || !mb_text_count(text, most, &offset, "offset in a blob file") ||
        !mb_text_take(text, ')', ")") || !mb_text_take(text, ')', ")"))
        return false;
    if (offset != 0) mb_emit_field(&text->emit, 2, offset);
    mb_emit_end(&text->emit, blob);
    return true;
}

/* The rest of an open Value, after its type, which stands at `type`. */
static inline bool mb_text_payload(mb_text *text, mb_written type);

/* One element of a list, tuple or dict: a whole Value, its type a copy. */
static inline bool mb_text_element(mb_text *text, uint32_t field, mb_written type) {
    uint64_t value = mb_emit_begin(&text->emit, field);
    mb_emit_copy(&text->emit, 2, type.at, type.end - type.at);
    if (!mb_text_payload(text, type)) return false;
    mb_emit_end(&text->emit, value);
    return mb_text_room(text);
}

static inline bool mb_text_list(mb_text *text, mb_written list_type) {
    mb_emit *emit = &text->emit;
    mb_written element_type = mb_written_message(text, &list_type);
    mb_written length = mb_written_message(text, &list_type);
    bool known = text->emit.out[length.at] >> 3 == 1;
    uint64_t expected = 0, count = 0;
    if (known) {
        length = mb_written_message(text, &length);
        mb_written_varint(text, &length); /* the tag; where a length of 0 was left out both reads give 0 */
        expected = mb_written_varint(text, &length);
    }
    if (!mb_text_take(text, '[', "[")) return false;
    uint64_t start = text->at, immediate = mb_emit_begin(emit, 3), list = mb_emit_begin(emit, 3);
    if (!mb_text_try(text, ']')) {
        do {
            if (!mb_text_element(text, 1, element_type)) return false;
            count++;
        } while (mb_text_try(text, ','));
        if (!mb_text_take(text, ']', ", or ]")) return false;
    }
    if (known && count != expected)
        return mb_text_fail(text, MB_COUNT, start - 1, expected, count, "elements of a list");
    mb_emit_end(emit, list);
    mb_emit_end(emit, immediate);
    return true;
}

static inline bool mb_text_tuple(mb_text *text, mb_written tuple_type) {
    mb_emit *emit = &text->emit;
    uint64_t immediate = mb_emit_begin(emit, 3), tuple = mb_emit_begin(emit, 2);
    char before = '(';
    while (tuple_type.at < tuple_type.end) {
        mb_written type = mb_written_message(text, &tuple_type);
        if (!mb_text_take(text, before, before == '(' ? "(" : "a comma: the tuple has more members") ||
            !mb_text_element(text, 1, type))
            return false;
        before = ',';
    }
    if (!mb_text_take(text, ')', ") after the last member of a tuple")) return false;
    mb_emit_end(emit, tuple);
    mb_emit_end(emit, immediate);
    return true;
}

static inline bool mb_text_dict(mb_text *text, mb_written dict_type) {
    mb_emit *emit = &text->emit;
    mb_written key = mb_written_message(text, &dict_type), value = mb_written_message(text, &dict_type);
    uint64_t immediate = mb_emit_begin(emit, 3), dict = mb_emit_begin(emit, 4);
    if (!mb_text_take(text, '{', "{")) return false;
    if (!mb_text_try(text, '}')) {
        do {
            uint64_t pair = mb_emit_begin(emit, 1);
            if (!mb_text_take(text, '{', "{ before a key") || !mb_text_element(text, 1, key) ||
                !mb_text_take(text, ',', ", before a value") || !mb_text_element(text, 2, value) ||
                !mb_text_take(text, '}', "} after a value"))
                return false;
            mb_emit_end(emit, pair);
        } while (mb_text_try(text, ','));
        if (!mb_text_take(text, '}', ", or }")) return false;
    }
    mb_emit_end(emit, dict);
    mb_emit_end(emit, immediate);
    return true;
}

static inline bool mb_text_payload(mb_text *text, mb_written type) {
    mb_text_span word;
    if (!mb_text_room(text)) return false; /* the type is about to be read back */
    uint64_t start = text->at;
    if (mb_text_peek(text) == 'B' && mb_text_identifier(text, &word, "a value")) {
        if (mb_text_is(text, word, "BLOBFILE")) return mb_text_blob_file(text);
        text->at = word.start;
    }
    uint32_t kind = text->emit.out[type.at] >> 3;
    type = mb_written_message(text, &type);
    switch (kind) { /* nests as deep as the type, whose depth is limited */
    case MB_TYPE_TENSOR: return mb_text_read_tensor_type(text, type) && mb_text_tensor(text);
    case MB_TYPE_LIST: return mb_text_list(text, type);
    case MB_TYPE_TUPLE: return mb_text_tuple(text, type);
    case MB_TYPE_DICT: return mb_text_dict(text, type);
    default: return mb_text_fail(text, MB_TYPE, start, 0, kind, "a state has no literal");
    }
}

/* type(payload) as a Value message in `field`. */
static inline bool mb_text_value(mb_text *text, uint32_t field) {
    mb_emit *emit = &text->emit;
    uint64_t value = mb_emit_begin(emit, field), mark = mb_emit_begin(emit, 2);
    if (!mb_text_type(text)) return false;
    uint64_t nbytes = emit->at - mark;
    mb_emit_end(emit, mark);
    mb_written type = {emit->at - nbytes, emit->at}; /* end() may have moved it up */
    if (!mb_text_take(text, '(', "(") || !mb_text_payload(text, type) || !mb_text_take(text, ')', ")")) return false;
    mb_emit_end(emit, value);
    return true;
}

#endif
