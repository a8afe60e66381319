/* program/kept.h: the rows of a scan in a quarter of their memory, for as long as a model is open.
 *
 * Thousands of rows share most of their fields: the parameter, the file, the dtype, the shape. These are a form, which
 * is kept once; a row keeps its place and the number of its form. Names are kept beside them (names.h). Rows refer to
 * the Program's bytes only by offset; a caller that needs a form's texts after the bytes are freed copies them
 * first. */
#ifndef MILBLOB_KEPT_H
#define MILBLOB_KEPT_H

#include "milblob/program/names.h"

/* The common fields of rows. Spans and rows of numbers are those of one of them. */
typedef struct mb_form {
    mb_span key;
    mb_span text;          /* of a constant in a blob file: the file's name; else empty */
    mb_span type;          /* of its operation */
    uint64_t count;
    uint32_t function, mil_code, rank, dims, binding, binding_count, step_count, steps, owner, storage;
    uint32_t has_op, op_mil_code, op_rank, op_dims, output_count;
    uint32_t head_nbytes;  /* of its name, what is before the operation's name, and after it */
    uint32_t tail_nbytes;
    uint32_t is_chain;     /* of a constexpr operation */
} mb_form;

typedef struct mb_kept_row {
    uint64_t value;          /* offset of the Value message */
    uint64_t blob_offset;
    uint32_t value_nbytes;
    uint32_t payload;        /* from the start of the Value message on */
    uint32_t payload_nbytes;
    uint32_t value_in_op;    /* where the Value message is in that of its operation */
    uint32_t op_nbytes;      /* of the operation's message */
    uint32_t block;          /* row of blocks, or MB_NONE */
    uint32_t index;          /* which of the block's operations; of a constexpr operation: its number in mb_kept.ops */
    uint32_t form;
} mb_kept_row;

/* An output of a constexpr operation. */
typedef struct mb_kept_op {
    uint64_t message;
    uint32_t nbytes, block, index, form;
} mb_kept_op;

typedef struct mb_kept {
    mb_kept_row *rows;   /* as many as the scan has entries */
    mb_kept_op *ops;     /* as many as it has outputs of constexpr operations */
    mb_form *forms;      /* room for as many as both; few are used */
    uint32_t *slots;     /* zeros, a power of two above that */
    uint64_t slot_count;
    uint64_t form_count;
    const uint32_t *numbers; /* by row of the scan's ops: number in `ops`, or MB_NONE; NULL if it has no constexpr operation */
    uint8_t *texts;      /* names that constexpr operations read, one after the other */
    uint64_t text_nbytes, text_capacity;
} mb_kept;

static inline bool mb_numbers_equal(const mb_scan *scan, uint32_t a, uint32_t b, uint32_t count) {
    return count == 0 || a == b || memcmp(scan->numbers + a, scan->numbers + b, (size_t)count * sizeof *scan->numbers) == 0;
}

static inline bool mb_forms_equal(const mb_scan *scan, const mb_form *a, const mb_form *b) {
    return a->count == b->count && a->function == b->function && a->mil_code == b->mil_code && a->rank == b->rank &&
           a->binding == b->binding && a->binding_count == b->binding_count && a->step_count == b->step_count &&
           a->owner == b->owner && a->storage == b->storage && a->has_op == b->has_op && a->op_mil_code == b->op_mil_code &&
           a->op_rank == b->op_rank && a->output_count == b->output_count && a->is_chain == b->is_chain && mb_numbers_equal(scan, a->dims, b->dims, a->rank) &&
           mb_numbers_equal(scan, a->steps, b->steps, a->step_count) && mb_numbers_equal(scan, a->op_dims, b->op_dims, a->op_rank) &&
           mb_spans_equal(scan, a->key, b->key) && mb_spans_equal(scan, a->text, b->text) && mb_spans_equal(scan, a->type, b->type);
}

/* Whether two rows are of one form: as mb_forms_equal, without making forms, which takes longer than to compare them. */
static inline bool mb_entries_alike(const mb_scan *scan, const mb_entry *a, const mb_entry *b) {
    if ((a->op == MB_NONE) != (b->op == MB_NONE) || a->storage != b->storage || a->mil_code != b->mil_code || a->count != b->count ||
        a->function != b->function || a->owner != b->owner || a->binding != b->binding || a->binding_count != b->binding_count ||
        a->step_count != b->step_count || !mb_numbers_equal(scan, a->steps, b->steps, a->step_count))
        return false;
    if (a->mil_code != 0 && (a->rank != b->rank || !mb_numbers_equal(scan, a->dims, b->dims, a->rank))) return false;
    if (a->op != b->op) {
        const mb_op *x = &scan->ops[a->op], *y = &scan->ops[b->op];
        if (x->mil_code != y->mil_code || x->output_count != y->output_count) return false;
        if (x->mil_code != 0 && (x->rank != y->rank || !mb_numbers_equal(scan, x->dims, y->dims, x->rank))) return false;
        if (!mb_spans_equal(scan, x->type, y->type)) return false;
    }
    return mb_spans_equal(scan, a->key, b->key) && (a->storage != MB_STORAGE_BLOB || mb_spans_equal(scan, a->payload, b->payload));
}

/* Equal forms have equal hashes. Each part is hashed with the key, and what it gives is hashed in turn. */
static inline uint64_t mb_form_hash(const mb_scan *scan, const mb_form *form, const mb_siphash_key *key) {
    uint8_t bytes[12 * 8];
    const uint64_t words[12] = {
        mb_siphash(scan->base + form->key.offset, form->key.nbytes, key),
        mb_siphash(scan->base + form->text.offset, form->text.nbytes, key),
        mb_siphash(scan->base + form->type.offset, form->type.nbytes, key),
        mb_siphash((const uint8_t *)(scan->numbers + form->dims), form->rank * sizeof *scan->numbers, key),
        mb_siphash((const uint8_t *)(scan->numbers + form->steps), form->step_count * sizeof *scan->numbers, key),
        mb_siphash((const uint8_t *)(scan->numbers + form->op_dims), form->op_rank * sizeof *scan->numbers, key),
        form->function | (uint64_t)form->mil_code << 32, form->binding | (uint64_t)form->binding_count << 32,
        form->owner | (uint64_t)form->storage << 32, form->has_op | (uint64_t)form->op_mil_code << 32,
        form->output_count | (uint64_t)form->is_chain << 32, form->count,
    };
    for (unsigned i = 0; i < 12; i++) mb_store_u64(bytes + 8 * i, words[i]);
    return mb_siphash(bytes, sizeof bytes, key);
}

static inline mb_form mb_form_of(const mb_scan *scan, const mb_entry *entry) {
    mb_form form;
    memset(&form, 0, sizeof form);
    form.key = entry->key;
    if (entry->storage == MB_STORAGE_BLOB) form.text = entry->payload;
    form.count = entry->count;
    form.function = entry->function, form.mil_code = entry->mil_code;
    if (entry->mil_code != 0) form.rank = entry->rank, form.dims = entry->dims;
    form.binding = entry->binding, form.binding_count = entry->binding_count;
    form.step_count = entry->step_count;
    if (entry->step_count != 0) form.steps = entry->steps;
    form.owner = entry->owner, form.storage = entry->storage;
    if (entry->op != MB_NONE) {
        const mb_op *op = &scan->ops[entry->op];
        form.type = op->type;
        form.has_op = 1, form.op_mil_code = op->mil_code, form.output_count = op->output_count;
        if (op->mil_code != 0) form.op_rank = op->rank, form.op_dims = op->dims;
    }
    return form;
}

/* Number a form: that of an equal one, or a new one. */
static inline uint32_t mb_form_number(mb_kept *kept, const mb_names *names, const mb_scan *scan, const mb_entry *entry, mb_form *form, const mb_siphash_key *key) {
    uint64_t slot = mb_form_hash(scan, form, key) & (kept->slot_count - 1);
    for (; kept->slots[slot] != 0; slot = (slot + 1) & (kept->slot_count - 1))
        if (mb_forms_equal(scan, form, &kept->forms[kept->slots[slot] - 1])) return kept->slots[slot] - 1;
    mb_names part = {NULL, NULL, 0, 0, 0, 0, names->prefix, names->prefix_nbytes}; /* counts, and writes nothing */
    mb_names_put_head(&part, scan, entry->function);
    form->head_nbytes = (uint32_t)part.nbytes;
    part.nbytes = 0;
    if (entry->owner != 0) mb_names_put_tail(&part, scan, entry); /* the output of an operation has none */
    form->tail_nbytes = (uint32_t)part.nbytes;
    kept->forms[kept->form_count] = *form;
    kept->slots[slot] = (uint32_t)++kept->form_count;
    return kept->slots[slot] - 1;
}

/* Keep the text of a name that is read: where it is among such texts. Nothing is written beyond the room that there is. */
static inline uint64_t mb_keep_text(mb_kept *kept, const mb_scan *scan, mb_span text) {
    const uint64_t at = kept->text_nbytes;
    if (text.nbytes > kept->text_capacity - at) return at;
    if (text.nbytes > 0) memcpy(kept->texts + at, scan->base + text.offset, (size_t)text.nbytes);
    kept->text_nbytes += text.nbytes;
    return at;
}

/* Keep the outputs of constexpr operations, by numbers. fails: false if a message has 4 GiB or more */
MB_KERNEL bool mb_keep_ops(mb_kept *kept, const mb_names *names, const mb_scan *scan, const mb_siphash_key *key) {
    for (uint64_t row = 0; row < scan->op_count && kept->numbers != NULL; row++) {
        const mb_op *op = &scan->ops[row];
        if (kept->numbers[row] == MB_NONE) continue;
        if (op->message.nbytes > UINT32_MAX) return false;
        mb_entry entry;
        memset(&entry, 0, sizeof entry);
        entry.op = (uint32_t)row, entry.function = scan->blocks[op->block].function;
        mb_form form = mb_form_of(scan, &entry);
        form.is_chain = 1;
        const mb_kept_op made = {op->message.offset, (uint32_t)op->message.nbytes, op->block, op->index, mb_form_number(kept, names, scan, &entry, &form, key)};
        kept->ops[kept->numbers[row]] = made;
    }
    return true;
}

/* Keep the rows of a scan.
 * in   scan: complete, with its tables and bytes; names: made of it; kept: tables as described above, the rest zero
 * out  kept->rows and kept->forms, form_count of these; kept->ops
 * fails: false if a message has 4 GiB or more, or a row's place in its operation does not fit, or if an operation other
 *      than constexpr operations reads a name: such a scan cannot be kept in this form
 * over-reads: none      cost: one comparison of each row with the row before, one hash where their forms differ            */
MB_KERNEL bool mb_keep_rows(mb_kept *kept, const mb_names *names, const mb_scan *scan, const mb_siphash_key *key) {
    uint32_t last = 0;
    kept->form_count = kept->text_nbytes = 0;
    if (!mb_keep_ops(kept, names, scan, key)) return false;
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        const mb_entry *entry = &scan->entries[i];
        const mb_op *op = entry->op == MB_NONE ? NULL : &scan->ops[entry->op];
        const uint64_t in_op = op == NULL ? 0 : entry->value.offset - op->message.offset, op_nbytes = op == NULL ? 0 : op->message.nbytes;
        const uint64_t payload = entry->payload.offset - entry->value.offset;
        const uint32_t number = op == NULL || kept->numbers == NULL ? MB_NONE : kept->numbers[entry->op];
        mb_fetch_ahead(scan, i + 8);
        if (entry->storage == MB_STORAGE_NAME && number == MB_NONE) return false;
        if (entry->value.nbytes > UINT32_MAX || payload > UINT32_MAX || entry->payload.nbytes > UINT32_MAX || in_op > UINT32_MAX || op_nbytes > UINT32_MAX) return false;
        if (i == 0 || !mb_entries_alike(scan, entry, entry - 1)) {
            mb_form form = mb_form_of(scan, entry);
            form.is_chain = number != MB_NONE;
            last = mb_form_number(kept, names, scan, entry, &form, key);
        }
        const uint64_t blob_offset = entry->storage == MB_STORAGE_NAME ? mb_keep_text(kept, scan, entry->payload) : entry->blob_offset;
        const mb_kept_row row = {entry->value.offset, blob_offset, (uint32_t)entry->value.nbytes, (uint32_t)payload,
                                 (uint32_t)entry->payload.nbytes, (uint32_t)in_op, (uint32_t)op_nbytes, entry->block,
                                 op == NULL ? 0 : number != MB_NONE ? number : op->index, last};
        kept->rows[i] = row;
    }
    return true;
}

#endif
