/* program/sound.h: whether a Value of a Program plainly matches its type: a tensor of known shape, in the field of
 * its data type and with as many elements; or a reference to a weight file, of a type that such files hold.
 *
 * "Plainly" is for the rules of the specification (program/rules_values.py): nearly all Values of a Program are passed
 * here, at the cost of one look at their heads. Of all others, the malformed ones too, Python finds out what is wrong
 * with them, if anything: lists, dictionaries, messages in pieces, fields that hold the type without being its own. */
#ifndef MILBLOB_SOUND_H
#define MILBLOB_SOUND_H

#include "milblob/program/tables.h"
#include "milblob/wire/tensor.h"

enum { MB_SOUND_RANK = 64 }; /* the most dimensions that NumPy holds */

/* The only field of a message, which holds bytes. False: there is none, or anything else. */
static inline bool mb_sound_only(mb_cursor message, uint32_t number, mb_cursor *inner, mb_error *error) {
    mb_wire wire;
    if (message.at == message.end || mb_read_field(&message, &wire, error)) return false;
    if (message.at != message.end || wire.number != number || wire.type != MB_WIRE_BYTES) return false;
    *inner = mb_cursor_into(&message, &wire);
    return true;
}

/* A ValueType {1 TensorType {1 dataType, 2 rank, 3 Dimension {1 constant {1 size}}}} whose shape is known. */
static inline bool mb_sound_type(mb_cursor type, const mb_dtype **dtype, uint64_t *count, mb_error *error) {
    mb_cursor tensor, dimension;
    mb_wire wire;
    uint64_t code = 0, rank = 0, dimensions = 0;
    *count = 1;
    if (!mb_sound_only(type, 1, &tensor, error)) return false;
    while (tensor.at < tensor.end) {
        if (mb_read_field(&tensor, &wire, error)) return false;
        if (wire.number == 1 || wire.number == 2) {
            if (wire.type != MB_WIRE_VARINT) return false;
            *(wire.number == 1 ? &code : &rank) = wire.value;
        } else if (wire.number == 3) {
            uint64_t size = 0;
            if (wire.type != MB_WIRE_BYTES) return false;
            if (!mb_sound_only(mb_cursor_into(&tensor, &wire), 1, &dimension, error)) return false;
            while (dimension.at < dimension.end) { /* empty for a size of 0 */
                if (mb_read_field(&dimension, &wire, error)) return false;
                if (wire.number != 1 || wire.type != MB_WIRE_VARINT) return false;
                size = wire.value;
            }
            if (++dimensions > MB_SOUND_RANK || size == 0 || !mb_mul(*count, size, count)) return false;
        } else {
            return false;
        }
    }
    *dtype = mb_dtype_of_mil_code(code);
    return *dtype != NULL && rank == dimensions;
}

/* Whether a packed run holds `count` integers that `dtype` has. */
static inline bool mb_sound_varints(mb_cursor run, const mb_dtype *dtype, uint64_t count, mb_error *error) {
    uint64_t value, found = 0;
    for (; run.at < run.end; found++) {
        if (found == count || mb_read_varint(&run, &value, error)) return false;
        int64_t number = (int64_t)value;
        MB_FOR_ALL_DTYPES(22);
        switch (dtype->mil_code) {
        case MB_MIL_INT16: if (number < INT16_MIN || number > INT16_MAX) return false; break;
        case MB_MIL_UINT16: if (value > UINT16_MAX) return false; break;
        case MB_MIL_INT32: if (number < INT32_MIN || number > INT32_MAX) return false; break;
        case MB_MIL_BOOL: if (value > 1) return false; break;
        default: break; /* 64 bits: any */
        }
    }
    return found == count;
}

/* Whether a TensorValue holds `count` elements in the field that is the data type's own. */
static inline bool mb_sound_tensor(mb_cursor value, const mb_dtype *dtype, uint64_t count, mb_error *error) {
    mb_tensor tensor;
    uint64_t nbits;
    if (mb_tensor_locate(value.base, value.at, mb_left(&value), &tensor, error)) return false;
    if (tensor.field != dtype->field) return false;
    if (tensor.field == MB_FIELD_STRINGS) {
        for (const uint8_t *at = value.at; at < value.end; at++) /* text that is not ASCII is looked at again */
            if (*at >= 0x80) return false;
        return tensor.count == count;
    }
    if (tensor.chunk_count != 1) return false;
    switch (tensor.field) {
    case MB_FIELD_INTS:
    case MB_FIELD_BOOLS:
    case MB_FIELD_LONGINTS:
        return mb_sound_varints(mb_cursor_of(value.base, value.base + tensor.offset, tensor.nbytes), dtype, count, error);
    default:
        if (!mb_mul(count, dtype->nbits, &nbits)) return false;
        return tensor.nbytes == nbits / 8 + (nbits % 8 != 0);
    }
}

/* Whether the message at `at`, a Value {1 docString, 2 type, 3 immediateValue, 5 blobFileValue}, is plainly sound.
 * out  *type: where its type stands, also of a Value that is not sound; nbytes 0 where it has none, or one in pieces
 * over-reads: none      fails: never      cost: constant, but for strings and integers, which are read once          */
static inline bool mb_sound_value(const uint8_t *base, mb_span at, mb_span *type) {
    mb_cursor message = mb_cursor_of(base, base + at.offset, at.nbytes), immediate = message, blob = message, inner;
    mb_error error;
    mb_wire wire;
    const mb_dtype *dtype;
    uint64_t count, types = 0, immediates = 0, blobs = 0;
    bool is_plain = true;
    type->offset = type->nbytes = 0;
    while (message.at < message.end) {
        if (mb_read_field(&message, &wire, &error)) return false;
        if (wire.type != MB_WIRE_BYTES) {
            is_plain = false;
        } else if (wire.number == 2) {
            type->offset = (uint64_t)(wire.data - base);
            type->nbytes = types++ ? 0 : wire.nbytes;
        } else if (wire.number == 3) {
            immediate = mb_cursor_into(&message, &wire);
            immediates++;
        } else if (wire.number == 5) {
            blob = mb_cursor_into(&message, &wire);
            blobs++;
        } else {
            is_plain = is_plain && wire.number == 1;
        }
    }
    if (!is_plain || types != 1 || immediates + blobs != 1) return false;
    if (!mb_sound_type(mb_cursor_of(base, base + type->offset, type->nbytes), &dtype, &count, &error)) return false;
    if (immediates) return mb_sound_only(immediate, 1, &inner, &error) && mb_sound_tensor(inner, dtype, count, &error);
    uint64_t names = 0;
    while (blob.at < blob.end) { /* {1 fileName, 2 offset} */
        if (mb_read_field(&blob, &wire, &error)) return false;
        if (wire.number == 1 && wire.type == MB_WIRE_BYTES && wire.nbytes != 0) names++;
        else if (wire.number != 2 || wire.type != MB_WIRE_VARINT) return false;
    }
    return names == 1 && dtype->blob_code != 0;
}

/* An entry {1 key, 2 value: Value} of a map of attributes: as mb_sound_value, and where key and value stand.
 * value->nbytes and offset are 0 where the entry comes in pieces or is malformed: protobuf has to read the map.       */
static inline bool mb_sound_attribute(const uint8_t *base, mb_span entry, mb_span *key, mb_span *type, mb_span *value) {
    mb_error error;
    mb_scan scan;
    scan.base = base;
    scan.flags = 0;
    scan.error = &error;
    if (mb_scan_pair(&scan, mb_cursor_of(base, base + entry.offset, entry.nbytes), key, value)) {
        value->offset = value->nbytes = 0;
        return false;
    }
    return mb_sound_value(base, *value, type);
}

#endif
