/* program/program.h: the one-pass scan of a serialized Program (MIL.proto) that finds every tensor constant.
 *
 * The scan reads the head of each message once and skips payloads by their length, so its cost is the number of messages,
 * not the bytes of the weights, and a mapped file of any size is touched only where messages begin. It finds
 * constants in `const` attributes, other operations' attributes and inputs, lists, tuples and dictionaries, nested
 * blocks, every function and specialization, and in attributes of the Program, its functions and blocks.
 *
 * Results are rows in five tables that the caller owns. Rows refer to each other by index and to names and payloads by
 * (offset, nbytes) in the scanned buffer: nothing is copied. If a table is too small, the scan continues counting and
 * returns MB_FULL; the caller makes room for the counts and scans again.
 *
 * protobuf allows a singular sub-message in pieces and a repeated map key. No known producer writes either; the scan detects
 * it, returns MB_SPLIT, and the caller lets protobuf rewrite the Program in plain form first. */
#ifndef MILBLOB_PROGRAM_H
#define MILBLOB_PROGRAM_H

#include "milblob/program/tables.h"
#include "milblob/wire/tensor.h"
#include "milblob/kernels/varint.h"

/* A Dimension: constant {size} or unknown. */
static inline mb_status mb_scan_dimension(mb_scan *scan, mb_cursor dimension, uint64_t *size) {
    const uint8_t *at = dimension.at;
    uint64_t nbytes = mb_left(&dimension);
    /* Nearly all are {1 constant {1 size}} with a size below 2^14: four or five bytes, taken at once. */
    if ((nbytes == 4 || nbytes == 5) && at[0] == 0x0a && at[1] == nbytes - 2 && at[2] == 0x08 && at[nbytes - 1] < 0x80 && (nbytes == 4 || at[3] >= 0x80)) {
        *size = nbytes == 4 ? at[3] : (uint64_t)(at[3] & 0x7f) | (uint64_t)at[4] << 7;
        return MB_OK;
    }
    *size = MB_UNKNOWN;
    bool have = false;
    while (dimension.at < dimension.end) {
        mb_wire wire;
        if (mb_read_field(&dimension, &wire, scan->error)) return scan->error->status;
        if (wire.number != 1 && wire.number != 2) continue;
        if (mb_scan_bytes(scan, &dimension, &wire, "dimension")) return scan->error->status;
        if (have) return mb_fail(scan->error, MB_SPLIT, (uint64_t)(wire.tag - scan->base), 1, 2, "dimension");
        have = true;
        if (wire.number == 2) continue;
        *size = 0; /* proto3 leaves a zero out */
        mb_cursor constant = mb_cursor_into(&dimension, &wire);
        while (constant.at < constant.end) {
            if (mb_read_field(&constant, &wire, scan->error)) return scan->error->status;
            if (wire.number != 1) continue;
            if (mb_expect_wire(&constant, &wire, MB_WIRE_VARINT, "size of a dimension", scan->error)) return scan->error->status;
            if (wire.value == MB_UNKNOWN) return mb_fail(scan->error, MB_COUNT, (uint64_t)(wire.tag - scan->base), MB_UNKNOWN - 1, MB_UNKNOWN, "size of a dimension");
            *size = wire.value;
        }
    }
    return MB_OK;
}

/* A ValueType. Lists, tuples, dictionaries and states are passed over: their elements state types of their own. */
static inline mb_status mb_scan_new_type(mb_scan *scan, uint64_t offset, uint64_t nbytes, mb_type *type) {
    mb_cursor value_type = mb_cursor_of(scan->base, scan->base + offset, nbytes);
    mb_span tensor = {0, 0}, other = {0, 0};
    memset(type, 0, sizeof *type);
    while (value_type.at < value_type.end) {
        mb_wire wire;
        if (mb_read_field(&value_type, &wire, scan->error)) return scan->error->status;
        if (wire.number < 1 || wire.number > 5) continue;
        mb_span *member = wire.number == 1 ? &tensor : &other;
        if (mb_scan_single(scan, &value_type, &wire, member, "member of ValueType")) return scan->error->status;
        if (tensor.offset != 0 && other.offset != 0) return mb_fail(scan->error, MB_SPLIT, (uint64_t)(wire.tag - scan->base), 1, 2, "member of ValueType");
    }
    if (tensor.offset == 0) return MB_OK;
    mb_cursor message = mb_cursor_at(scan, tensor);
    uint64_t mil_code = 0, dims = scan->number_count;
    bool empty = false, overflow = false;
    type->offset = tensor.offset;
    type->count = 1;
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1 || wire.number == 2) {
            if (mb_expect_wire(&message, &wire, MB_WIRE_VARINT, "dataType or rank", scan->error)) return scan->error->status;
            if (wire.number == 1) mil_code = wire.value;
            else type->declared_rank = wire.value;
        } else if (wire.number == 3) {
            uint64_t size;
            if (mb_scan_bytes(scan, &message, &wire, "dimension")) return scan->error->status;
            if (mb_scan_dimension(scan, mb_cursor_into(&message, &wire), &size)) return scan->error->status;
            mb_scan_number(scan, size);
            type->rank++;
            if (size == MB_UNKNOWN || type->count == MB_UNKNOWN) type->count = MB_UNKNOWN;
            else if (size == 0) empty = true;
            else if (!mb_mul(type->count, size, &type->count)) overflow = true;
        }
    }
    if (overflow && !empty) return mb_fail(scan->error, MB_OVERFLOW, tensor.offset, type->count, type->rank, "element count of a type");
    if (empty && type->count != MB_UNKNOWN) type->count = 0;
    if (mb_dtype_of_mil_code(mil_code) == NULL) return mb_fail(scan->error, MB_DTYPE, tensor.offset, 0, mil_code, "MIL dtype code");
    if (dims > UINT32_MAX) return mb_fail(scan->error, MB_OVERFLOW, tensor.offset, UINT32_MAX, dims, "dimensions of all types");
    type->mil_code = (uint32_t)mil_code;
    type->dims = (uint32_t)dims;
    return MB_OK;
}

/* A ValueType. Most are like one shortly before: the value of a const operation has the type of its output, names have that of
 * other names. Then the bytes are compared, and the dimensions have their rows already. */
static inline mb_status mb_scan_type(mb_scan *scan, uint64_t offset, uint64_t nbytes, mb_type *type) {
    mb_span *known = &scan->type_spans[nbytes % MB_TYPES];
    if (nbytes > 0 && nbytes == known->nbytes && memcmp(scan->base + offset, scan->base + known->offset, (size_t)nbytes) == 0) {
        *type = scan->types[nbytes % MB_TYPES];
        type->offset += offset - known->offset;
        return MB_OK;
    }
    if (mb_scan_new_type(scan, offset, nbytes, type)) return scan->error->status;
    known->offset = offset;
    known->nbytes = nbytes;
    scan->types[nbytes % MB_TYPES] = *type;
    return MB_OK;
}

/* Elements of an immediate whose type leaves the count open: as many as there are. */
static inline mb_status mb_scan_count(mb_scan *scan, mb_span payload, const mb_dtype *dtype, uint64_t *count) {
    mb_tensor tensor;
    if (mb_tensor_locate(scan->base, scan->base + payload.offset, payload.nbytes, &tensor, scan->error)) return scan->error->status;
    switch (tensor.field) {
    case MB_FIELD_FLOATS: *count = tensor.nbytes / 4; break;
    case MB_FIELD_DOUBLES: *count = tensor.nbytes / 8; break;
    case MB_FIELD_STRINGS: *count = tensor.count; break;
    case MB_FIELD_BYTES: *count = dtype->nbits == 0 ? 0 : tensor.nbytes * 8 / dtype->nbits; break;
    default: /* one chunk, or a lower bound that is enough for a threshold */
        *count = tensor.chunk_count == 1 ? mb_varint_count(scan->base + tensor.offset, tensor.nbytes) : tensor.chunk_count;
    }
    return MB_OK;
}

/* The name and type of an operation's first output, a NamedValueType {1 name, 2 type}. */
static inline mb_status mb_scan_output(mb_scan *scan, mb_span span, mb_op *op) {
    mb_cursor output = mb_cursor_at(scan, span);
    mb_span type_span = {0, 0};
    mb_type type;
    op->name.offset = span.offset; /* proto3 leaves an empty name out */
    op->name.nbytes = 0;
    while (output.at < output.end) {
        mb_wire wire;
        if (mb_read_field(&output, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1) {
            if (mb_scan_bytes(scan, &output, &wire, "name of an output")) return scan->error->status;
            op->name = mb_span_of(scan, &wire);
        } else if (wire.number == 2) {
            if (mb_scan_single(scan, &output, &wire, &type_span, "type of an output")) return scan->error->status;
        }
    }
    if (mb_scan_type(scan, type_span.offset, type_span.nbytes, &type)) return scan->error->status;
    op->mil_code = type.mil_code;
    op->rank = type.rank;
    op->dims = type.dims;
    return MB_OK;
}

/* Give the current operation its row, once, when its first entry needs it: most operations own no weight, and then
 * their outputs are not looked at. */
static inline mb_status mb_scan_op(mb_scan *scan) {
    if (!scan->in_op || scan->op != MB_NONE) return MB_OK;
    if (scan->output.offset != 0 && mb_scan_output(scan, scan->output, &scan->current)) return scan->error->status;
    if (scan->op_count < scan->op_capacity) scan->ops[scan->op_count] = scan->current;
    scan->op = (uint32_t)scan->op_count++;
    return MB_OK;
}

/* Give the other outputs of a constexpr operation rows of their own, right after its first: each is a tensor that
 * another operation may name as its part (a mask, and the values that it leaves). */
static inline mb_status mb_scan_other_outputs(mb_scan *scan, mb_cursor message) {
    uint32_t seen = 0;
    while (seen < scan->current.output_count) {
        mb_wire wire;
        mb_op op = scan->current;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number != 3 || seen++ == 0) continue;
        op.name = op.type;
        if (mb_scan_output(scan, mb_span_of(scan, &wire), &op)) return scan->error->status;
        if (scan->op_count < scan->op_capacity) scan->ops[scan->op_count] = op;
        scan->op_count++;
    }
    return MB_OK;
}

/* Add a row of entries; *row is the new row, or NULL without room. */
static inline mb_status mb_scan_entry(mb_scan *scan, mb_span value, mb_span payload, uint32_t storage, const mb_type *type, mb_entry **row) {
    if (mb_scan_op(scan)) return scan->error->status;
    mb_entry entry = scan->owner;
    entry.value = value;
    entry.payload = payload;
    entry.storage = storage;
    entry.op = scan->in_op ? scan->op : MB_NONE;
    entry.block = scan->block;
    entry.function = scan->function;
    entry.mil_code = type->mil_code;
    entry.rank = type->rank;
    entry.dims = type->dims;
    entry.count = type->count;
    entry.step_count = scan->depth;
    entry.steps = (uint32_t)scan->number_count;
    for (uint32_t i = 0; i < scan->depth; i++) mb_scan_number(scan, scan->steps[i]);
    *row = scan->entry_count < scan->entry_capacity ? &scan->entries[scan->entry_count] : NULL;
    scan->entry_count++;
    if (*row != NULL) **row = entry;
    return MB_OK;
}

static inline bool mb_scan_is_constexpr(const mb_scan *scan) {
    return scan->in_op && mb_op_is_constexpr(scan, &scan->current);
}

static inline mb_status mb_scan_blob(mb_scan *scan, mb_span value, mb_span blob, const mb_type *type) {
    mb_cursor message = mb_cursor_at(scan, blob);
    mb_span name = {blob.offset, 0};
    uint64_t offset = 0;
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1) {
            if (mb_scan_bytes(scan, &message, &wire, "fileName")) return scan->error->status;
            name = mb_span_of(scan, &wire);
        } else if (wire.number == 2) {
            if (mb_expect_wire(&message, &wire, MB_WIRE_VARINT, "offset of a BlobFileValue", scan->error)) return scan->error->status;
            offset = wire.value;
        }
    }
    if (type->mil_code == 0) return mb_fail(scan->error, MB_TYPE, value.offset, 1, 0, "type of a BlobFileValue");
    mb_entry *row;
    if (mb_scan_entry(scan, value, name, MB_STORAGE_BLOB, type, &row)) return scan->error->status;
    if (row != NULL) row->blob_offset = offset;
    return MB_OK;
}

/* A span in two numbers: as one argument, compilers store it in halves and load it whole, which costs more than all the rest. */
static inline mb_status mb_scan_value(mb_scan *scan, uint64_t offset, uint64_t nbytes);

/* The values of a list or tuple {1 values}, or of a dictionary {1 pairs {1 key, 2 value}}. */
static inline mb_status mb_scan_items(mb_scan *scan, mb_span span, bool is_dictionary) {
    mb_cursor message = mb_cursor_at(scan, span);
    if (scan->depth == MB_MAX_DEPTH) return mb_fail(scan->error, MB_DEPTH, span.offset, MB_MAX_DEPTH, scan->depth + 1, "lists, tuples and dictionaries");
    for (uint64_t index = 0; message.at < message.end;) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number != 1) continue;
        if (mb_scan_bytes(scan, &message, &wire, "element of a list, tuple or dictionary")) return scan->error->status;
        mb_span item = mb_span_of(scan, &wire), pair[2] = {{0, 0}, {0, 0}};
        if (is_dictionary) {
            mb_cursor entry = mb_cursor_into(&message, &wire);
            while (entry.at < entry.end) {
                if (mb_read_field(&entry, &wire, scan->error)) return scan->error->status;
                if (wire.number != 1 && wire.number != 2) continue;
                if (mb_scan_single(scan, &entry, &wire, &pair[wire.number - 1], "key or value of a dictionary")) return scan->error->status;
            }
        }
        scan->depth++;
        for (uint32_t part = 0; part < (is_dictionary ? 2u : 1u); part++) {
            if (is_dictionary && pair[part].offset == 0) continue;
            scan->steps[scan->depth - 1] = index * 4 + (is_dictionary ? (uint64_t)MB_STEP_KEY + part : (uint64_t)MB_STEP_ITEM);
            const mb_span own = is_dictionary ? pair[part] : item;
            if (mb_scan_value(scan, own.offset, own.nbytes)) return scan->error->status;
        }
        scan->depth--;
        index++;
    }
    return MB_OK;
}

/* A Value {2 type, 3 immediateValue, 5 blobFileValue}. */
static inline mb_status mb_scan_value(mb_scan *scan, uint64_t offset, uint64_t nbytes) {
    const mb_span span = {offset, nbytes};
    mb_cursor value = mb_cursor_of(scan->base, scan->base + offset, nbytes);
    mb_span type_span = {0, 0}, immediate = {0, 0}, blob = {0, 0};
    while (value.at < value.end) {
        mb_wire wire;
        if (mb_read_field(&value, &wire, scan->error)) return scan->error->status;
        mb_span *member = wire.number == 2 ? &type_span : wire.number == 3 ? &immediate : wire.number == 5 ? &blob : NULL;
        if (member != NULL && mb_scan_single(scan, &value, &wire, member, "member of Value")) return scan->error->status;
    }
    if (immediate.offset != 0 && blob.offset != 0) return mb_fail(scan->error, MB_SPLIT, span.offset, 1, 2, "member of Value");
    if (immediate.offset == 0 && blob.offset == 0) return MB_OK;

    mb_type type;
    uint64_t numbers = scan->number_count;
    if (mb_scan_type(scan, type_span.offset, type_span.nbytes, &type)) return scan->error->status;
    if (type.mil_code != 0 && type.declared_rank != type.rank)
        return mb_fail(scan->error, MB_RANK, type.offset, type.declared_rank, type.rank, "rank of a type");
    if (blob.offset != 0) return mb_scan_blob(scan, span, blob, &type);

    /* ImmediateValue {1 tensor, 2 tuple, 3 list, 4 dictionary} */
    mb_cursor message = mb_cursor_at(scan, immediate);
    mb_span member = {0, 0};
    uint32_t number = 0;
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number < 1 || wire.number > 4) continue;
        if (mb_scan_single(scan, &message, &wire, &member, "member of ImmediateValue")) return scan->error->status;
        number = wire.number;
    }
    if (number != 1) {
        mb_scan_forget_numbers(scan, numbers);
        return number == 0 ? MB_OK : mb_scan_items(scan, member, number == 4);
    }
    const mb_dtype *dtype = mb_dtype_of_mil_code(type.mil_code);
    bool wanted = (scan->flags & MB_SCAN_ALL) != 0;
    if (!wanted && dtype != NULL && dtype->mil_code != MB_MIL_STRING) {
        wanted = mb_scan_is_constexpr(scan);
        if (!wanted && dtype->mil_code != MB_MIL_BOOL) {
            uint64_t count = type.count;
            if (count == MB_UNKNOWN && mb_scan_count(scan, member, dtype, &count)) return scan->error->status;
            wanted = count >= MB_WEIGHT_COUNT;
        }
    }
    if (wanted) {
        mb_entry *row;
        if (dtype == NULL) type.count = MB_UNKNOWN;
        return mb_scan_entry(scan, span, member, MB_STORAGE_IMMEDIATE, &type, &row);
    }
    mb_scan_forget_numbers(scan, numbers); /* the dimensions of a value that has no row are not kept */
    return MB_OK;
}

/* One attribute, an entry of a map<string, Value>. */
static inline mb_status mb_scan_attribute(mb_scan *scan, mb_cursor entry, uint32_t owner) {
    mb_span key, value;
    if (mb_scan_pair(scan, entry, &key, &value)) return scan->error->status;
    scan->owner.owner = owner;
    scan->owner.key = key;
    scan->owner.binding = 0;
    scan->owner.binding_count = 1;
    return mb_scan_value(scan, value.offset, value.nbytes);
}

/* The attributes of anything, in field `number` of a message. Whether a key is repeated matters only where a constant was
 * found, so only there it is looked for. */
static inline mb_status mb_scan_attributes(mb_scan *scan, mb_cursor message, uint32_t number, uint32_t owner) {
    mb_cursor start = message;
    uint64_t entries = scan->entry_count;
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number != number) continue;
        if (mb_scan_bytes(scan, &message, &wire, "attribute")) return scan->error->status;
        if (mb_scan_attribute(scan, mb_cursor_into(&message, &wire), owner)) return scan->error->status;
    }
    return scan->entry_count == entries ? MB_OK : mb_scan_keys(scan, start, number);
}

/* An Argument {1 arguments: Binding {1 name, 2 value}}: one operation input. */
static inline mb_status mb_scan_argument(mb_scan *scan, mb_span key, mb_span span) {
    mb_cursor argument = mb_cursor_at(scan, span);
    const mb_type no_type = {0, 0, 0, MB_UNKNOWN, 0, 0};
    const bool names = mb_scan_is_constexpr(scan);
    const uint64_t entries = scan->entry_count;
    uint32_t count = 0;
    mb_wire wire;
    mb_entry *row;
    scan->owner.owner = MB_OWNER_INPUT;
    scan->owner.key = key;
    for (; argument.at < argument.end;) {
        mb_span name = {0, 0}, value = {0, 0};
        if (mb_read_field(&argument, &wire, scan->error)) return scan->error->status;
        if (wire.number != 1) continue;
        if (mb_scan_bytes(scan, &argument, &wire, "binding")) return scan->error->status;
        mb_span message = mb_span_of(scan, &wire);
        mb_cursor binding = mb_cursor_into(&argument, &wire);
        while (binding.at < binding.end) {
            if (mb_read_field(&binding, &wire, scan->error)) return scan->error->status;
            if (wire.number != 1 && wire.number != 2) continue;
            if (mb_scan_single(scan, &binding, &wire, wire.number == 1 ? &name : &value, "member of Binding")) return scan->error->status;
        }
        if (name.offset != 0 && value.offset != 0) return mb_fail(scan->error, MB_SPLIT, message.offset, 1, 2, "member of Binding");
        scan->owner.binding = count++;
        if (name.offset != 0 && names && mb_scan_entry(scan, message, name, MB_STORAGE_NAME, &no_type, &row)) return scan->error->status;
        if (value.offset != 0 && mb_scan_value(scan, value.offset, value.nbytes)) return scan->error->status;
    }
    for (uint64_t i = entries; i < scan->entry_count && i < scan->entry_capacity; i++) scan->entries[i].binding_count = count;
    return MB_OK;
}

static inline mb_status mb_scan_block(mb_scan *scan, mb_span span, mb_block row, uint32_t depth);

enum { MB_OP_FEW = 8 }; /* attributes of an operation that are remembered; with more, they are looked for again */

/* An Operation {1 type, 2 inputs, 3 outputs, 4 blocks, 5 attributes}. */
static inline mb_status mb_scan_operation(mb_scan *scan, mb_span span, uint32_t block, uint32_t index, uint32_t depth) {
    const mb_cursor message = mb_cursor_at(scan, span);
    mb_op *op = &scan->current; /* filled where it is: a copy of a row just written waits for every store of it */
    mb_span attributes[MB_OP_FEW];
    uint32_t block_count = 0, input_count = 0;
    uint64_t attribute_count = 0;
    mb_wire wire;
    memset(op, 0, sizeof *op);
    memset(&scan->output, 0, sizeof scan->output);
    op->message = span;
    op->block = block;
    op->index = index;
    for (mb_cursor at = message; at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number < 1 || wire.number > 5) continue;
        if (mb_scan_bytes(scan, &at, &wire, "field of Operation")) return scan->error->status;
        if (wire.number == 1) op->type = mb_span_of(scan, &wire);
        else if (wire.number == 2) input_count++;
        else if (wire.number == 3 && op->output_count++ == 0) scan->output = mb_span_of(scan, &wire);
        else if (wire.number == 4) block_count++;
        else if (wire.number == 5 && attribute_count++ < MB_OP_FEW) attributes[attribute_count - 1] = mb_span_of(scan, &wire);
    }
    op->name = op->type;
    scan->in_op = true;
    scan->op = MB_NONE;
    scan->block = block;
    uint64_t entries = scan->entry_count;
    if (mb_scan_is_constexpr(scan)) {
        if (mb_scan_op(scan)) return scan->error->status;
        if (op->output_count > 1 && mb_scan_other_outputs(scan, message)) return scan->error->status;
    }
    for (mb_cursor at = message; input_count > 0 && at.at < at.end;) {
        mb_span key, argument;
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number != 2) continue;
        if (mb_scan_pair(scan, mb_cursor_into(&at, &wire), &key, &argument)) return scan->error->status;
        if (mb_scan_argument(scan, key, argument)) return scan->error->status;
    }
    if (scan->entry_count != entries && mb_scan_keys(scan, message, 2)) return scan->error->status;
    if (attribute_count > MB_OP_FEW) {
        if (mb_scan_attributes(scan, message, 5, MB_OWNER_ATTRIBUTE)) return scan->error->status;
    } else {
        entries = scan->entry_count;
        for (uint32_t i = 0; i < attribute_count; i++)
            if (mb_scan_attribute(scan, mb_cursor_at(scan, attributes[i]), MB_OWNER_ATTRIBUTE)) return scan->error->status;
        if (scan->entry_count != entries && mb_scan_keys(scan, message, 5)) return scan->error->status;
    }
    if (block_count == 0) {
        scan->in_op = false;
        return MB_OK;
    }
    /* Its blocks are called by its name, row or not. */
    uint64_t numbers = scan->number_count;
    mb_op named = *op;
    if (scan->op == MB_NONE && scan->output.offset != 0) {
        if (mb_scan_output(scan, scan->output, &named)) return scan->error->status;
        mb_scan_forget_numbers(scan, numbers);
    }
    scan->in_op = false;
    mb_block row = {named.name, scan->function, block, 0, index};
    for (mb_cursor at = message; at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number != 4) continue;
        if (mb_scan_block(scan, mb_span_of(scan, &wire), row, depth + 1)) return scan->error->status;
        row.number++;
    }
    return MB_OK;
}

/* A Block {1 inputs, 2 outputs, 3 operations, 4 attributes}. */
static inline mb_status mb_scan_block(mb_scan *scan, mb_span span, mb_block row, uint32_t depth) {
    mb_cursor message = mb_cursor_at(scan, span);
    if (depth > MB_MAX_DEPTH) return mb_fail(scan->error, MB_DEPTH, span.offset, MB_MAX_DEPTH, depth, "nested blocks");
    if (scan->block_count < scan->block_capacity) scan->blocks[scan->block_count] = row;
    uint32_t block = (uint32_t)scan->block_count++;
    scan->block = block;
    if (scan->has_block_attributes && mb_scan_attributes(scan, message, 4, MB_OWNER_BLOCK)) return scan->error->status;
    for (uint32_t index = 0; message.at < message.end;) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number == 4 && !scan->has_block_attributes) {
            scan->has_block_attributes = true; /* mb_program_scan begins again */
            return mb_fail(scan->error, MB_FULL, (uint64_t)(wire.tag - scan->base), 0, 0, "attributes of a block");
        }
        if (wire.number != 2 && wire.number != 3) continue;
        if (mb_scan_bytes(scan, &message, &wire, "field of Block")) return scan->error->status;
        if (wire.number == 2) continue;
        if (mb_scan_operation(scan, mb_span_of(scan, &wire), block, index++, depth)) return scan->error->status;
        scan->block = block;
    }
    return MB_OK;
}

/* A Function {1 inputs, 2 opset, 3 block_specializations, 4 attributes}. */
static inline mb_status mb_scan_function(mb_scan *scan, mb_span name, mb_span span) {
    mb_cursor message = mb_cursor_at(scan, span);
    mb_function row = {name, {span.offset, 0}, span};
    mb_wire wire;
    for (mb_cursor at = message; at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number != 2) continue;
        if (mb_scan_bytes(scan, &at, &wire, "opset")) return scan->error->status;
        row.opset = mb_span_of(scan, &wire);
    }
    if (scan->function_count < scan->function_capacity) scan->functions[scan->function_count] = row;
    scan->function = (uint32_t)scan->function_count++;
    scan->block = MB_NONE;
    if (mb_scan_attributes(scan, message, 4, MB_OWNER_FUNCTION)) return scan->error->status;
    if (mb_scan_keys(scan, message, 3)) return scan->error->status;
    while (message.at < message.end) {
        mb_span key, block;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number != 3) continue;
        if (mb_scan_bytes(scan, &message, &wire, "block specialization")) return scan->error->status;
        if (mb_scan_pair(scan, mb_cursor_into(&message, &wire), &key, &block)) return scan->error->status;
        mb_block top = {key, scan->function, MB_NONE, 0, 0};
        if (mb_scan_block(scan, block, top, 1)) return scan->error->status;
    }
    return MB_OK;
}

/* The messages of a Program, without a look at what they sum up to. */
static inline mb_status mb_scan_messages(mb_scan *scan, mb_span program) {
    mb_cursor message = mb_cursor_at(scan, program);
    scan->function = scan->block = scan->op = MB_NONE;
    for (mb_cursor at = message; at.at < at.end;) {
        mb_wire wire;
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1) {
            if (mb_expect_wire(&at, &wire, MB_WIRE_VARINT, "version of the Program", scan->error)) return scan->error->status;
            scan->version = wire.value;
        }
    }
    if (mb_scan_attributes(scan, message, 4, MB_OWNER_PROGRAM)) return scan->error->status;
    if (mb_scan_keys(scan, message, 2)) return scan->error->status;
    while (message.at < message.end) {
        mb_wire wire;
        mb_span name, function;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number != 2) continue;
        if (mb_scan_bytes(scan, &message, &wire, "function")) return scan->error->status;
        if (mb_scan_pair(scan, mb_cursor_into(&message, &wire), &name, &function)) return scan->error->status;
        if (mb_scan_function(scan, name, function)) return scan->error->status;
    }
    return MB_OK;
}

/* Scan a Program {1 version, 2 functions, 3 docString, 4 attributes}.
 * in   scan: base, flags, tables and capacities set, the rest zero; program: the message's place in the buffer
 * out  tables filled up to their capacities, counts as needed     fails: MB_FULL, MB_SPLIT (see above); as mb_read_field;
 *      MB_TAG, MB_NUMBER, MB_DTYPE, MB_RANK, MB_OVERFLOW, MB_DEPTH, MB_TYPE. After a failure the scan's position is
 *      that of the fault.
 * over-reads: none      cost: one visit to the head of each message; payloads are not touched. Attributes of blocks, which nobody writes, need a way
 *      over all operations of their own: the scan begins again with these once it has met the first.                      */
static inline mb_status mb_program_scan(mb_scan *scan, mb_span program) {
    const mb_scan empty = *scan;
    mb_status status = mb_scan_messages(scan, program);
    if (status == MB_FULL && scan->has_block_attributes) {
        *scan = empty;
        scan->has_block_attributes = true;
        status = mb_scan_messages(scan, program);
    }
    if (status != MB_OK) return status;
    uint64_t most = scan->function_count | scan->block_count | scan->op_count | scan->entry_count;
    if (most >= MB_MAX_ROWS) return mb_fail(scan->error, MB_COUNT, program.offset, MB_MAX_ROWS - 1, most, "functions, blocks, operations or constants");
    if (scan->number_count >= MB_MAX_NUMBERS) return mb_fail(scan->error, MB_COUNT, program.offset, MB_MAX_NUMBERS - 1, scan->number_count, "dimensions of all types");
    bool fits = scan->function_count <= scan->function_capacity && scan->block_count <= scan->block_capacity &&
                scan->op_count <= scan->op_capacity && scan->entry_count <= scan->entry_capacity &&
                scan->number_count <= scan->number_capacity;
    return fits ? MB_OK : mb_fail(scan->error, MB_FULL, 0, 0, 0, "tables of the scan");
}

#endif
