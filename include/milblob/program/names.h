/* program/names.h: the names of a Program's constants, made of the rows of a scan, and a table that finds them.
 *
 * All names lie in one stretch of bytes, one after the other. As in the scan, what does not fit is counted and not
 * written; the caller makes room for the counts and calls again. The names are those of docs/architecture.md, before any of
 * them that occur twice are made unique. */
#ifndef MILBLOB_NAMES_H
#define MILBLOB_NAMES_H

#include "milblob/kernels/siphash.h"
#include "milblob/kernels/utf8.h"
#include "milblob/program/tables.h"

#define MB_NAMELESS 0x80000000u  /* in an end: of a row that only reads a name, and has none */
#define MB_MAX_NAMES 0x7fffffffu /* bytes of all names together: ends need the highest bit */

typedef struct mb_names {
    uint8_t *bytes;
    uint32_t *ends;        /* name i is what lies between the ends of i - 1 and i */
    uint64_t capacity;     /* of bytes */
    uint64_t end_capacity; /* rows of ends */
    uint64_t nbytes;       /* needed; UINT64_MAX where that cannot be counted */
    uint64_t count;        /* rows needed */
    const uint8_t *prefix; /* put before every name */
    uint64_t prefix_nbytes;
} mb_names;

static inline void mb_names_put(mb_names *names, const void *src, uint64_t nbytes) {
    if (names->nbytes <= names->capacity && nbytes <= names->capacity - names->nbytes && nbytes > 0)
        memcpy(names->bytes + names->nbytes, src, (size_t)nbytes);
    if (!mb_add(names->nbytes, nbytes, &names->nbytes)) names->nbytes = UINT64_MAX;
}

static inline void mb_names_put_span(mb_names *names, const mb_scan *scan, mb_span span) {
    mb_names_put(names, scan->base + span.offset, span.nbytes);
}

/* "[12]" and what follows it. */
static inline void mb_names_put_index(mb_names *names, uint64_t index, const char *after) {
    char digits[24];
    unsigned at = sizeof digits;
    digits[--at] = ']';
    do digits[--at] = (char)('0' + index % 10);
    while ((index /= 10) != 0);
    digits[--at] = '[';
    mb_names_put(names, digits + at, sizeof digits - at);
    mb_names_put(names, after, strlen(after));
}

/* The prefix, and the function's name where there are several. */
static inline void mb_names_put_head(mb_names *names, const mb_scan *scan, uint32_t function) {
    mb_names_put(names, names->prefix, names->prefix_nbytes);
    if (scan->function_count > 1 && function != MB_NONE) {
        mb_names_put_span(names, scan, scan->functions[function].name);
        mb_names_put(names, "/", 1);
    }
}

static inline void mb_names_end(mb_names *names, uint32_t mark) {
    if (names->count < names->end_capacity)
        names->ends[names->count] = (names->nbytes < MB_MAX_NAMES ? (uint32_t)names->nbytes : MB_MAX_NAMES) | mark;
    names->count++;
}

static inline bool mb_spans_equal(const mb_scan *scan, mb_span a, mb_span b) {
    return a.nbytes == b.nbytes && (a.offset == b.offset || memcmp(scan->base + a.offset, scan->base + b.offset, (size_t)a.nbytes) == 0);
}

static inline bool mb_span_is(const mb_scan *scan, mb_span span, const char *word, uint64_t nbytes) {
    return span.nbytes == nbytes && memcmp(scan->base + span.offset, word, (size_t)nbytes) == 0;
}

/* Whether a constant is the value of a const operation, which has that operation's name. */
static inline bool mb_entry_is_value(const mb_scan *scan, const mb_entry *entry) {
    return entry->owner == MB_OWNER_ATTRIBUTE && entry->op != MB_NONE && mb_span_is(scan, entry->key, "val", 3) &&
           mb_span_is(scan, scan->ops[entry->op].type, "const", 5);
}

/* What a constant's name has after its operation's: ".parameter[1][0].key". Nothing for the value of a const operation. */
static inline void mb_names_put_tail(mb_names *names, const mb_scan *scan, const mb_entry *entry) {
    static const char *const after[4] = {"", ".key", ".value", ""};
    if (!mb_entry_is_value(scan, entry)) {
        mb_names_put(names, ".", 1);
        mb_names_put_span(names, scan, entry->key);
        if (entry->op != MB_NONE && entry->binding_count != 1) mb_names_put_index(names, entry->binding, "");
    }
    for (uint32_t i = 0; i < entry->step_count; i++) {
        const uint64_t step = scan->numbers[entry->steps + i];
        mb_names_put_index(names, step >> 2, after[step & 3]);
    }
}

/* Add the name of one constant. */
static inline void mb_names_add_entry(mb_names *names, const mb_scan *scan, const mb_entry *entry) {
    if (entry->storage == MB_STORAGE_NAME) {
        mb_names_end(names, MB_NAMELESS);
        return;
    }
    mb_names_put_head(names, scan, entry->function);
    if (entry->op != MB_NONE) {
        mb_names_put_span(names, scan, scan->ops[entry->op].name);
    } else {
        const char *own = entry->owner == MB_OWNER_PROGRAM ? "@program" : entry->owner == MB_OWNER_FUNCTION ? "@function" : "@block";
        mb_names_put(names, own, strlen(own));
    }
    mb_names_put_tail(names, scan, entry);
    mb_names_end(names, 0);
}

/* Ask for the texts of a row to come: each is somewhere else in the Program, and waiting for them would take most of the time. */
static inline void mb_fetch_ahead(const mb_scan *scan, uint64_t row) {
    if (row >= scan->entry_count) return;
    const mb_entry *entry = &scan->entries[row];
    MB_FETCH(scan->base + entry->key.offset);
    MB_FETCH(scan->base + entry->payload.offset);
    if (entry->op == MB_NONE) return;
    MB_FETCH(scan->base + scan->ops[entry->op].name.offset);
    MB_FETCH(scan->base + scan->ops[entry->op].type.offset);
}

/* Add the names of all constants of a scan, in its order.
 * in   scan: complete; names: empty or partly filled; its tables may be too small      out  names->nbytes, names->count
 *      as needed
 * over-reads: none      fails: never (the caller compares the counts with what it has room for)                       */
MB_KERNEL void mb_names_add_entries(mb_names *names, const mb_scan *scan) {
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        mb_fetch_ahead(scan, i + 8);
        mb_names_add_entry(names, scan, &scan->entries[i]);
    }
}

/* Add the names of the outputs of all constexpr operations of a scan, in its order; as mb_names_add_entries. */
MB_KERNEL void mb_names_add_ops(mb_names *names, const mb_scan *scan) {
    for (uint64_t i = 0; i < scan->op_count; i++) {
        const mb_op *op = &scan->ops[i];
        if (!mb_op_is_constexpr(scan, op)) continue;
        mb_names_put_head(names, scan, scan->blocks[op->block].function);
        mb_names_put_span(names, scan, op->name);
        mb_names_end(names, 0);
    }
}

static inline mb_span mb_name_of(const mb_names *names, uint64_t row) {
    const uint32_t start = row == 0 ? 0 : names->ends[row - 1] & ~MB_NAMELESS;
    const mb_span name = {start, (names->ends[row] & ~MB_NAMELESS) - start};
    return name;
}

/* Whether each name is UTF-8. All of them together may be where one is not: a sequence that begins in it can end in the next.
 * over-reads: none      fails: never                                                                                  */
MB_KERNEL bool mb_names_utf8(const mb_names *names) {
    for (uint64_t row = 0; row < names->count; row++) {
        const mb_span name = mb_name_of(names, row);
        if (name.nbytes > 0 && (names->bytes[name.offset] & 0xC0) == 0x80) return false;
    }
    return mb_utf8_all(names->bytes, names->nbytes);
}

/* Find a name in a table of row numbers + 1: its slot, or the free one where it would be. */
static inline uint64_t mb_name_slot(const mb_names *names, const uint32_t *slots, uint64_t slot_count, const mb_siphash_key *key, const uint8_t *name, uint64_t nbytes) {
    uint64_t slot = mb_siphash(name, nbytes, key) & (slot_count - 1);
    for (; slots[slot] != 0; slot = (slot + 1) & (slot_count - 1)) {
        const mb_span other = mb_name_of(names, slots[slot] - 1);
        if (other.nbytes == nbytes && memcmp(names->bytes + other.offset, name, (size_t)nbytes) == 0) break;
    }
    return slot;
}

/* Fill the table that finds names.
 * in   slots: zeros, slot_count of them, a power of two above the number of names
 * out  false if a name occurs twice; the table then is of no use      cost: one hash of each name                      */
MB_KERNEL bool mb_names_index(const mb_names *names, uint32_t *slots, uint64_t slot_count, const mb_siphash_key *key) {
    for (uint64_t row = 0; row < names->count; row++) {
        if (names->ends[row] & MB_NAMELESS) continue;
        const mb_span name = mb_name_of(names, row);
        const uint64_t slot = mb_name_slot(names, slots, slot_count, key, names->bytes + name.offset, name.nbytes);
        if (slots[slot] != 0) return false;
        slots[slot] = (uint32_t)row + 1;
    }
    return true;
}

/* Find a name: its row, or MB_NONE. */
static inline uint32_t mb_names_find(const mb_names *names, const uint32_t *slots, uint64_t slot_count, const mb_siphash_key *key, const uint8_t *name, uint64_t nbytes) {
    return slots[mb_name_slot(names, slots, slot_count, key, name, nbytes)] - 1; /* 0 - 1: MB_NONE */
}

#endif
