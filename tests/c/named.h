/* named.h: what must hold of the names of a scan's rows, of the table that finds them, and of the rows that are kept. */
#ifndef MILBLOB_TESTS_NAMED_H
#define MILBLOB_TESTS_NAMED_H

#include <stdio.h>

#include "milblob/kernels/utf8.h"
#include "milblob/program/chains.h"
#include "milblob/program/kept.h"
#include "promises.h"

static const mb_siphash_key names_key = {{0x0706050403020100u, 0x0f0e0d0c0b0a0908u}};
static const uint8_t names_prefix[] = "model0/";

/* A name put together in the slow, obvious way. */
typedef struct plain_name {
    uint8_t *bytes;
    uint64_t nbytes;
} plain_name;

static void plain_add(plain_name *name, const void *src, uint64_t nbytes) {
    uint8_t *larger = (uint8_t *)exactly(name->nbytes + nbytes);
    if (name->nbytes > 0) memcpy(larger, name->bytes, (size_t)name->nbytes);
    if (nbytes > 0) memcpy(larger + name->nbytes, src, (size_t)nbytes);
    free(name->bytes);
    name->bytes = larger;
    name->nbytes += nbytes;
}

static void plain_text(plain_name *name, const mb_scan *scan, mb_span span) { plain_add(name, scan->base + span.offset, span.nbytes); }

static void plain_word(plain_name *name, const char *word) { plain_add(name, word, strlen(word)); }

static void plain_number(plain_name *name, uint64_t number) {
    char text[32];
    snprintf(text, sizeof text, "[%llu]", (unsigned long long)number);
    plain_word(name, text);
}

static bool plain_is(const mb_scan *scan, mb_span span, const char *word) {
    return span.nbytes == strlen(word) && memcmp(scan->base + span.offset, word, strlen(word)) == 0;
}

static void plain_head(plain_name *name, const mb_scan *scan, uint32_t function) {
    plain_word(name, (const char *)names_prefix);
    if (scan->function_count < 2 || function == MB_NONE) return;
    plain_text(name, scan, scan->functions[function].name);
    plain_word(name, "/");
}

static plain_name plain_entry(const mb_scan *scan, const mb_entry *entry) {
    plain_name name = {NULL, 0};
    if (entry->storage == MB_STORAGE_NAME) return name;
    plain_head(&name, scan, entry->function);
    if (entry->op == MB_NONE) {
        plain_word(&name, entry->owner == MB_OWNER_PROGRAM ? "@program." : entry->owner == MB_OWNER_FUNCTION ? "@function." : "@block.");
        plain_text(&name, scan, entry->key);
    } else {
        const mb_op *op = &scan->ops[entry->op];
        plain_text(&name, scan, op->name);
        if (entry->owner != MB_OWNER_ATTRIBUTE || !plain_is(scan, entry->key, "val") || !plain_is(scan, op->type, "const")) {
            plain_word(&name, ".");
            plain_text(&name, scan, entry->key);
            if (entry->binding_count != 1) plain_number(&name, entry->binding);
        }
    }
    for (uint32_t i = 0; i < entry->step_count; i++) {
        const uint64_t step = scan->numbers[entry->steps + i];
        plain_number(&name, step / 4);
        if (step % 4 == MB_STEP_KEY) plain_word(&name, ".key");
        if (step % 4 == MB_STEP_VALUE) plain_word(&name, ".value");
    }
    return name;
}

static void require_name(const mb_names *names, uint64_t row, plain_name plain) {
    const mb_span name = mb_name_of(names, row);
    require(name.offset <= names->nbytes && name.nbytes <= names->nbytes - name.offset, "a name inside its table");
    require(name.nbytes == plain.nbytes && memcmp(names->bytes + name.offset, plain.bytes == NULL ? (const uint8_t *)"" : plain.bytes, (size_t)name.nbytes) == 0, "the name of a row");
    free(plain.bytes);
}

static mb_names make_names(const mb_scan *scan, uint64_t capacity, uint64_t rows) {
    mb_names names;
    memset(&names, 0, sizeof names);
    names.prefix = names_prefix;
    names.prefix_nbytes = sizeof names_prefix - 1;
    names.bytes = (uint8_t *)exactly(names.capacity = capacity);
    names.ends = (uint32_t *)exactly((names.end_capacity = rows) * sizeof *names.ends);
    mb_names_add_entries(&names, scan);
    mb_names_add_ops(&names, scan);
    return names;
}

static void free_names(mb_names *names) { free(names->bytes), free(names->ends); }

/* Names are found where they are; only a table of names that all differ says that it is one. */
static void check_index(const mb_names *names) {
    uint64_t slot_count = 4;
    while (slot_count <= names->count) slot_count *= 2; /* as full as it may be */
    uint32_t *slots = (uint32_t *)exactly(slot_count * sizeof *slots);
    memset(slots, 0, (size_t)(slot_count * sizeof *slots));
    const bool unique = mb_names_index(names, slots, slot_count, &names_key);
    bool twice = false;
    for (uint64_t i = 0; i < names->count && i < 400; i++) {
        const mb_span a = mb_name_of(names, i);
        if (names->ends[i] & MB_NAMELESS) continue;
        if (unique) require(mb_names_find(names, slots, slot_count, &names_key, names->bytes + a.offset, a.nbytes) == i, "a name is found");
        for (uint64_t k = 0; k < i && names->count <= 400; k++) {
            const mb_span b = mb_name_of(names, k);
            twice |= !(names->ends[k] & MB_NAMELESS) && a.nbytes == b.nbytes && memcmp(names->bytes + a.offset, names->bytes + b.offset, (size_t)a.nbytes) == 0;
        }
    }
    if (names->count <= 400) require(twice != unique, "a name that occurs twice is noticed");
    if (unique) require(mb_names_find(names, slots, slot_count, &names_key, (const uint8_t *)"no such name", 12) == MB_NONE, "other names are not found");
    free(slots);
}

static void check_kept(const mb_scan *scan, const mb_names *names) {
    mb_kept kept;
    memset(&kept, 0, sizeof kept);
    for (kept.slot_count = 2; kept.slot_count <= scan->entry_count;) kept.slot_count *= 2;
    kept.rows = (mb_kept_row *)exactly(scan->entry_count * sizeof *kept.rows);
    kept.forms = (mb_form *)exactly(scan->entry_count * sizeof *kept.forms);
    kept.slots = (uint32_t *)exactly(kept.slot_count * sizeof *kept.slots);
    memset(kept.slots, 0, (size_t)(kept.slot_count * sizeof *kept.slots));
    const bool good = mb_keep_rows(&kept, names, scan, &names_key);
    require(kept.form_count <= scan->entry_count, "no more forms than rows");
    for (uint64_t i = 0; i < scan->entry_count && good; i++) {
        const mb_entry *e = &scan->entries[i];
        const mb_kept_row *row = &kept.rows[i];
        require(row->form < kept.form_count, "a form that there is");
        const mb_form *form = &kept.forms[row->form];
        require(row->value == e->value.offset && row->value_nbytes == e->value.nbytes && row->value + row->payload == e->payload.offset && row->payload_nbytes == e->payload.nbytes, "the place of a row");
        require(row->blob_offset == e->blob_offset && row->block == e->block && form->function == e->function, "where a row belongs");
        require(form->mil_code == e->mil_code && form->count == e->count && form->owner == e->owner && form->storage == e->storage && form->step_count == e->step_count, "the form of a row");
        require(form->binding == e->binding && form->binding_count == e->binding_count && mb_spans_equal(scan, form->key, e->key), "the parameter of a row");
        require(mb_numbers_equal(scan, form->steps, e->steps, e->step_count) && (e->mil_code == 0 || (form->rank == e->rank && mb_numbers_equal(scan, form->dims, e->dims, e->rank))), "the numbers of a row");
        require(e->storage != MB_STORAGE_BLOB || mb_spans_equal(scan, form->text, e->payload), "the file of a row");
        require(form->has_op == (e->op != MB_NONE), "the operation of a row");
        if (e->op == MB_NONE) continue;
        const mb_op *op = &scan->ops[e->op];
        const mb_span name = mb_name_of(names, i);
        require(row->value - row->value_in_op == op->message.offset && row->op_nbytes == op->message.nbytes && row->index == op->index, "the place of an operation");
        require(form->op_mil_code == op->mil_code && form->output_count == op->output_count && mb_spans_equal(scan, form->type, op->type), "the form of an operation");
        require(op->mil_code == 0 || (form->op_rank == op->rank && mb_numbers_equal(scan, form->op_dims, op->dims, op->rank)), "the output of an operation");
        require((uint64_t)form->head_nbytes + form->tail_nbytes <= name.nbytes, "a name with a head and a tail");
        require(name.nbytes - form->head_nbytes - form->tail_nbytes == op->name.nbytes, "the name of an operation is in that of its row");
        require(memcmp(names->bytes + name.offset + form->head_nbytes, scan->base + op->name.offset, (size_t)op->name.nbytes) == 0, "and is equal");
    }
    free(kept.rows), free(kept.forms), free(kept.slots);
}

/* Memory for so many zeros of 32 bits. */
static uint32_t *zeros(uint64_t count) {
    uint32_t *found = (uint32_t *)exactly(count * sizeof *found);
    if (count > 0) memset(found, 0, (size_t)(count * sizeof *found));
    return found;
}

static void check_links(mb_chains *chains) {
    const uint64_t count = chains->op_count;
    mb_chain_links links = {zeros(chains->name_count), zeros(count + 1), zeros(chains->name_count), zeros(count + 2), zeros(count), zeros(count), zeros(count)};
    const int status = mb_chains_check(chains, &links);
    require(status == MB_CHAINS_DONE || chains->stopped < count, "a refusal about an operation");
    require(links.reads_from[count] <= chains->name_count || status == MB_CHAINS_PARTS, "no more links than names");
    free(links.reads), free(links.reads_from), free(links.readers), free(links.readers_from), free(links.waiting), free(links.ready), free(links.seen);
}

/* The graph of the scanned bytes; NULL if they have none. */
static const mb_graph *file_graph;

static void add_uses(mb_chains *chains) {
    if (file_graph != NULL) mb_chains_add_uses(chains, file_graph, &names_key);
    else chains->has_uses = true;
}

/* The scan replaces the other one that may be asked for: its rows are as good as those. */
static void check_chains(const mb_scan *scan) {
    mb_chains chains;
    memset(&chains, 0, sizeof chains);
    chains.scan = scan;
    chains.ops = (mb_chain_op *)exactly(scan->op_count * sizeof *chains.ops);
    chains.numbers = zeros(scan->op_count), chains.targets = zeros(scan->entry_count);
    chains.marks = (uint8_t *)exactly(scan->entry_count);
    mb_chains_begin(&chains);
    chains.small_rows = zeros(chains.name_count), chains.small_marks = (uint8_t *)exactly(chains.name_count);
    for (chains.slot_count = 4; chains.slot_count < 2 * scan->op_count + 2;) chains.slot_count *= 2;
    chains.definition_capacity = scan->op_count;
    chains.definitions = (mb_definition *)exactly(chains.definition_capacity * sizeof *chains.definitions);
    chains.slots = zeros(chains.slot_count);
    mb_chains_define(&chains, &names_key);
    require(chains.definition_count <= scan->op_count, "no more definitions than operations");
    int status = MB_CHAINS_SMALL;
    for (int asked = 0; asked < 3 && status != MB_CHAINS_DONE; asked++) {
        status = mb_chains_resolve(&chains, &names_key);
        if (status == MB_CHAINS_SMALL) {
            memset(chains.slots, 0, (size_t)(chains.slot_count * sizeof *chains.slots));
            mb_chains_add_small(&chains, scan, &names_key);
        }
        if (status == MB_CHAINS_USES) add_uses(&chains);
    }
    require(status == MB_CHAINS_DONE, "each scan is asked for once");
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        const uint32_t target = chains.targets[i];
        require(target == MB_NONE || scan->entries[i].storage == MB_STORAGE_NAME, "what a name stands for");
        if (target == MB_NONE) continue;
        if (target & MB_TARGET_OP) require((target & ~MB_TARGET_OP) < chains.op_count, "an output that there is");
        else require(target < scan->entry_count + chains.small_count, "a constant that there is");
    }
    check_links(&chains);
    if (mb_chains_ends(&chains, &names_key) == MB_CHAINS_USES) {
        add_uses(&chains);
        require(mb_chains_ends(&chains, &names_key) == MB_CHAINS_DONE, "the uses are asked for once");
    }
    mb_scan_utf8(scan); /* for what it reads */
    free(chains.ops), free(chains.numbers), free(chains.targets), free(chains.marks), free(chains.small_rows), free(chains.small_marks);
    free(chains.definitions), free(chains.slots);
}

static void check_names(const mb_scan *scan) {
    mb_names needed = make_names(scan, 0, 0);
    mb_names names = make_names(scan, needed.nbytes, needed.count);
    require(names.nbytes == needed.nbytes && names.count == needed.count, "the counts of the first pass are enough for the second");
    for (uint64_t i = 0; i < scan->entry_count; i++) require_name(&names, i, plain_entry(scan, &scan->entries[i]));
    uint64_t row = scan->entry_count;
    for (uint64_t i = 0; i < scan->op_count; i++) {
        const mb_op *op = &scan->ops[i];
        plain_name plain = {NULL, 0};
        if (op->type.nbytes < 10 || memcmp(scan->base + op->type.offset, "constexpr_", 10) != 0) continue;
        plain_head(&plain, scan, scan->blocks[op->block].function);
        plain_text(&plain, scan, op->name);
        require_name(&names, row++, plain);
    }
    require(row == names.count, "a name for each row");
    mb_utf8_all(names.bytes, names.nbytes); /* for what it reads */
    check_index(&names);
    check_kept(scan, &names);
    check_chains(scan);
    free_names(&names), free_names(&needed);
    for (uint64_t less = 1; less <= 9 && less <= names.nbytes && less <= names.count; less += 4) { /* memory beyond what there is stays as it was */
        names = make_names(scan, needed.nbytes - less, needed.count - less);
        require(names.nbytes == needed.nbytes && names.count == needed.count, "what does not fit is counted");
        free_names(&names);
    }
}

#endif
