/* program/tables.h: the five tables that a scan of a Program fills, the scan's own state, and its first steps.
 *
 * See program.h for what is scanned. Rows are plain numbers, a multiple of eight bytes each, so that _codec.pyx can hand
 * a table to NumPy as a structured array. */
#ifndef MILBLOB_TABLES_H
#define MILBLOB_TABLES_H

#include "milblob/wire/wire.h"

#define MB_NONE UINT32_MAX        /* no such row */
#define MB_UNKNOWN UINT64_MAX     /* a dimension or an element count that the type leaves open */
enum { MB_MAP_KEYS = 1024 };      /* maps with more keys go through protobuf, which removes repeated keys */
enum { MB_MAP_FEW = 16 };         /* as many keys are compared one by one, which is all that operations have */
enum { MB_MAX_ROWS = 1 << 20 };   /* functions, blocks, operations or constants: thirty times what real Programs have.
                                     Empty messages of two bytes become rows and objects of a kilobyte (measured): with
                                     four times as many, a hostile file of 24 MB would take 3.4 GB */
enum { MB_MAX_NUMBERS = 1 << 22 }; /* dimensions of all types, and steps into lists */
enum { MB_TYPES = 8 };            /* types that are remembered: operations beside each other have few different ones */
enum { MB_WEIGHT_COUNT = 10 };    /* immediates of this many elements count as weights: coremltools' own threshold */

enum mb_scan_flags {
    MB_SCAN_ALL = 1,    /* every tensor constant; else blob-file values, numeric immediates of ten or more elements and
                           everything that belongs to a constexpr operation */
    MB_SCAN_PLAIN = 2,  /* the Program was rewritten: do not look for repeated map keys again */
    MB_SCAN_KNOWN = 4   /* refuse, by MB_TEXTLESS, fields that no specification names; for who makes text of the Program */
};

enum mb_owner { MB_OWNER_ATTRIBUTE = 1, MB_OWNER_INPUT = 2, MB_OWNER_BLOCK = 3, MB_OWNER_FUNCTION = 4, MB_OWNER_PROGRAM = 5 };
enum mb_storage { MB_STORAGE_IMMEDIATE = 1, MB_STORAGE_BLOB = 2, MB_STORAGE_NAME = 3 };
enum mb_step { MB_STEP_ITEM = 0, MB_STEP_KEY = 1, MB_STEP_VALUE = 2 };

typedef struct mb_span {
    uint64_t offset;
    uint64_t nbytes;
} mb_span;

typedef struct mb_function {
    mb_span name;
    mb_span opset;
    mb_span message;
} mb_function;

typedef struct mb_block {
    mb_span name;      /* of a function's block: its key in block_specializations; else of the operation that holds it */
    uint32_t function; /* row of functions */
    uint32_t parent;   /* row of blocks, or MB_NONE */
    uint32_t number;   /* which of its operation's blocks */
    uint32_t index;    /* which of the parent block's operations */
} mb_block;

/* The first output of an operation that owns a constant; of a constexpr operation each output, rows side by side. */
typedef struct mb_op {
    mb_span name;          /* of this row's output; of the operation's type where it has no output */
    mb_span type;
    mb_span message;
    uint32_t block;        /* row of blocks */
    uint32_t index;        /* which of the block's operations */
    uint32_t output_count;
    uint32_t mil_code;     /* of the output; 0: not a tensor */
    uint32_t rank;         /* of the output */
    uint32_t dims;         /* row of numbers: rank dimensions, MB_UNKNOWN where open */
} mb_op;

typedef struct mb_entry {
    mb_span value;         /* the Value message (MB_STORAGE_NAME: the Binding) */
    mb_span payload;       /* the TensorValue; the blob's fileName; the name */
    mb_span key;           /* name of the parameter or attribute */
    uint64_t blob_offset;
    uint64_t count;        /* elements by the declared type, or MB_UNKNOWN */
    uint32_t op;           /* row of ops, or MB_NONE */
    uint32_t block;        /* row of blocks, or MB_NONE */
    uint32_t function;     /* row of functions, or MB_NONE */
    uint32_t mil_code;     /* declared dtype; 0: an element of a list or tuple that states no type of its own */
    uint32_t rank;
    uint32_t dims;         /* row of numbers */
    uint32_t binding;      /* which of the argument's bindings, of how many */
    uint32_t binding_count;
    uint32_t step_count;   /* nesting in lists, tuples, dictionaries */
    uint32_t steps;        /* row of numbers: index * 4 + enum mb_step each */
    uint32_t owner;        /* enum mb_owner */
    uint32_t storage;      /* enum mb_storage */
} mb_entry;

/* The contents of a ValueType. */
typedef struct mb_type {
    uint32_t mil_code; /* 0: not a tensor */
    uint32_t rank;
    uint32_t dims;     /* row of numbers */
    uint64_t count;    /* product of the dimensions, or MB_UNKNOWN */
    uint64_t offset;   /* of the TensorType, for messages */
    uint64_t declared_rank;
} mb_type;

typedef struct mb_scan {
    const uint8_t *base;
    uint32_t flags;
    mb_function *functions;
    mb_block *blocks;
    mb_op *ops;
    mb_entry *entries;
    uint64_t *numbers;
    uint64_t function_capacity, block_capacity, op_capacity, entry_capacity, number_capacity;
    uint64_t function_count, block_count, op_count, entry_count, number_count;
    /* Where the scan is: rows of the tables to come, and the operation and parameter it is in. Kept for messages. */
    uint32_t function, block;
    uint32_t op;           /* MB_NONE until the operation has its row */
    mb_op current;
    mb_span output;        /* the operation's first output, read when its row is made; offset 0: none */
    bool in_op;
    bool has_block_attributes; /* some block has attributes, whose rows come before those of its operations */
    mb_entry owner;        /* what the next entries share: key, owner, binding */
    uint64_t steps[MB_MAX_DEPTH];
    uint32_t depth;        /* of steps */
    mb_span type_spans[MB_TYPES]; /* ValueTypes that were read, by length: the last of each length, and its contents */
    mb_type types[MB_TYPES];
    uint64_t version;      /* Program.version */
    mb_error *error;
} mb_scan;

static inline mb_span mb_span_of(const mb_scan *scan, const mb_wire *wire) {
    mb_span span = {(uint64_t)(wire->data - scan->base), wire->nbytes};
    return span;
}

static inline mb_cursor mb_cursor_at(const mb_scan *scan, mb_span span) { return mb_cursor_of(scan->base, scan->base + span.offset, span.nbytes); }

/* Read a field that must be length-delimited. */
static inline mb_status mb_scan_bytes(mb_scan *scan, const mb_cursor *cursor, const mb_wire *wire, const char *detail) {
    return mb_expect_wire(cursor, wire, MB_WIRE_BYTES, detail, scan->error);
}

/* Take a singular sub-message; the second piece of one ends the scan with MB_SPLIT. An absent one has offset 0, which
 * no message inside a buffer can have, since a tag comes before it. */
static inline mb_status mb_scan_single(mb_scan *scan, const mb_cursor *cursor, const mb_wire *wire, mb_span *span, const char *detail) {
    if (mb_scan_bytes(scan, cursor, wire, detail)) return scan->error->status;
    if (span->offset != 0) return mb_fail(scan->error, MB_SPLIT, (uint64_t)(wire->tag - scan->base), 1, 2, detail);
    *span = mb_span_of(scan, wire);
    return MB_OK;
}

/* A field with a number that the specification does not have. */
static inline mb_status mb_scan_unknown(mb_scan *scan, const mb_wire *wire) {
    if (!(scan->flags & MB_SCAN_KNOWN)) return MB_OK;
    return mb_fail(scan->error, MB_TEXTLESS, (uint64_t)(wire->tag - scan->base), 0, wire->number, "a field that the specification does not have");
}

static inline void mb_scan_number(mb_scan *scan, uint64_t number) {
    if (scan->number_count < scan->number_capacity) scan->numbers[scan->number_count] = number;
    scan->number_count++;
}

/* Forget the numbers from a row on, which no row of another table refers to. */
static inline void mb_scan_forget_numbers(mb_scan *scan, uint64_t count) {
    if (count == scan->number_count) return;
    scan->number_count = count;
    for (uint32_t i = 0; i < MB_TYPES; i++)
        if ((uint64_t)scan->types[i].dims + scan->types[i].rank > count) scan->type_spans[i].nbytes = 0;
}

/* A map entry {1 key, 2 value}; either may be absent, and then it is empty. */
static inline mb_status mb_scan_pair(mb_scan *scan, mb_cursor entry, mb_span *key, mb_span *value) {
    key->offset = key->nbytes = value->offset = value->nbytes = 0;
    while (entry.at < entry.end) {
        mb_wire wire;
        if (mb_read_field(&entry, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1) {
            if (mb_scan_bytes(scan, &entry, &wire, "key of a map")) return scan->error->status;
            *key = mb_span_of(scan, &wire);
        } else if (wire.number == 2) {
            if (mb_scan_single(scan, &entry, &wire, value, "value of a map")) return scan->error->status;
        } else if (mb_scan_unknown(scan, &wire)) {
            return scan->error->status;
        }
    }
    if (value->offset == 0) value->offset = mb_offset(&entry);
    return MB_OK;
}

/* Whether `key` is among keys[0..count); if not, it is added. A few keys are compared one by one; more are found through
 * `slots`, a table of row numbers + 1 by hash (FNV-1a), twice as large as MB_MAP_KEYS, so it always has a free slot. */
static inline bool mb_scan_seen(const uint8_t *base, mb_span *keys, uint32_t count, uint16_t *slots, mb_span key) {
    uint64_t hash = 0xcbf29ce484222325u;
    uint32_t slot = 0;
    if (count < MB_MAP_FEW) {
        for (uint32_t i = 0; i < count; i++)
            if (keys[i].nbytes == key.nbytes && memcmp(base + keys[i].offset, base + key.offset, key.nbytes) == 0) return true;
        keys[count] = key;
        return false;
    }
    for (uint32_t row = count == MB_MAP_FEW ? 0 : count; row <= count; row++) { /* the first time, the few go in as well */
        mb_span own = row < count ? keys[row] : key;
        hash = 0xcbf29ce484222325u;
        for (uint64_t i = 0; i < own.nbytes; i++) hash = (hash ^ base[own.offset + i]) * 0x100000001b3u;
        for (slot = (uint32_t)hash & (2 * MB_MAP_KEYS - 1); slots[slot] != 0; slot = (slot + 1) & (2 * MB_MAP_KEYS - 1)) {
            const mb_span *other = &keys[slots[slot] - 1];
            if (other->nbytes == own.nbytes && memcmp(base + other->offset, base + own.offset, own.nbytes) == 0) return true;
        }
        slots[slot] = (uint16_t)(row + 1);
        keys[row] = own;
    }
    return false;
}

/* Whether the map in field `number` of a message holds a key twice, or more keys than are compared here. */
static inline mb_status mb_scan_keys(mb_scan *scan, mb_cursor message, uint32_t number) {
    mb_span keys[MB_MAP_KEYS];
    uint16_t slots[2 * MB_MAP_KEYS];
    uint32_t count = 0;
    if (scan->flags & MB_SCAN_PLAIN) return MB_OK;
    while (message.at < message.end) {
        mb_wire wire;
        mb_span key, value;
        if (mb_read_field(&message, &wire, scan->error)) return scan->error->status;
        if (wire.number != number) continue;
        if (mb_scan_bytes(scan, &message, &wire, "map entry")) return scan->error->status;
        if (mb_scan_pair(scan, mb_cursor_into(&message, &wire), &key, &value)) return scan->error->status;
        if (count == MB_MAP_FEW) memset(slots, 0, sizeof slots);
        if (count == MB_MAP_KEYS || mb_scan_seen(scan->base, keys, count, slots, key))
            return mb_fail(scan->error, MB_SPLIT, (uint64_t)(wire.tag - scan->base), 1, 2, "map key");
        count++;
    }
    return MB_OK;
}

/* Whether the type of an operation is that of one that computes weights. */
static inline bool mb_type_is_constexpr(const mb_scan *scan, mb_span type) {
    return type.nbytes >= 10 && memcmp(scan->base + type.offset, "constexpr_", 10) == 0;
}

static inline bool mb_op_is_constexpr(const mb_scan *scan, const mb_op *op) { return mb_type_is_constexpr(scan, op->type); }

#endif
