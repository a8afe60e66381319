/* program/chains.h: which constants and operations each constexpr operation of a scan reads, and which of them compute weights.
 *
 * A part of a constexpr operation is a value of its own, or a name: of another one's output, or of a const operation in a block
 * around it. Names are found in a table of definitions. Two more passes are asked for only where they decide something: a scan
 * of every constant (a const operation below the threshold for weights may be a part), and the graph, which has every use of a name
 * (a part that another operation reads too is a weight as well). What is found are numbers of rows; the caller owns all memory. */
#ifndef MILBLOB_CHAINS_H
#define MILBLOB_CHAINS_H

#include "milblob/dtype.h"
#include "milblob/program/graph.h"
#include "milblob/program/names.h"

enum { MB_MAX_CHAIN = 32 };  /* constexpr operations that compute one weight; coremltools makes chains of three */
enum { MB_MAX_PARTS = 128 }; /* parts of all the operations that compute one weight; those that are known have at most four each */
#define MB_TARGET_OP 0x80000000u /* in a target: the number of a constexpr operation's output; else that of a constant */

enum mb_mark { MB_MARK_PART = 1, MB_MARK_SHARED = 2 };                                                 /* of a constant */
enum mb_chain_flag { MB_CHAIN_INNER = 1, MB_CHAIN_END = 2 };                                           /* of an output */
enum mb_definition_flag { MB_DEFINITION_LISTED = 1, MB_DEFINITION_OUTSIDE = 2 };                       /* of a name */
enum mb_chains_status { MB_CHAINS_DONE, MB_CHAINS_SMALL, MB_CHAINS_USES, MB_CHAINS_PARTS, MB_CHAINS_LONG, MB_CHAINS_CIRCLE };

/* One output of a constexpr operation. */
typedef struct mb_chain_op {
    uint32_t row;     /* of ops */
    uint32_t first;   /* constants of its operation, names that it reads among them: the first, and how many */
    uint32_t count;
    uint32_t message; /* number of the operation's first output, which represents the operation */
    uint32_t parts;   /* of the operation, no two with one name; counted by mb_chains_check */
    uint32_t flags;   /* enum mb_chain_flag; MB_CHAIN_INNER in that of the first output */
} mb_chain_op;

/* The definition of a name in a block. */
typedef struct mb_definition {
    mb_span name;
    uint64_t hash;
    uint32_t block;
    uint32_t target; /* or MB_NONE */
    uint32_t flags;  /* enum mb_definition_flag */
    uint32_t unused;
} mb_definition;

typedef struct mb_chains {
    const mb_scan *scan;
    const mb_scan *small; /* of every constant, once asked for */
    mb_chain_op *ops;     /* outputs of constexpr operations, in the order of the scan's */
    uint64_t op_count;
    uint32_t *numbers;    /* by row of the scan's ops: number in `ops`, or MB_NONE */
    uint32_t *targets;    /* by constant: what defines a name that it reads, or MB_NONE */
    uint8_t *marks;       /* by constant: enum mb_mark */
    uint32_t *small_rows; /* constants of `small` that are parts, numbered from entry_count on; room for as many as there are names */
    uint8_t *small_marks; /* of these */
    uint64_t small_count;
    mb_definition *definitions;
    uint64_t definition_count, definition_capacity; /* room for all operations of the scan, and of `small` */
    uint32_t *slots;      /* zeros, a power of two above the number of definitions */
    uint64_t slot_count;
    uint64_t name_count;  /* constants that are names */
    uint64_t at;          /* the constant looked at next */
    bool has_uses;
    uint32_t stopped;     /* number of the output that a refusal is about */
} mb_chains;

static inline uint64_t mb_definition_hash(const mb_siphash_key *key, const uint8_t *name, uint64_t nbytes, uint32_t block) {
    return mb_siphash(name, nbytes, key) + block * UINT64_C(0x9e3779b97f4a7c15);
}

/* The slot of a definition, or the free one where it would be. */
static inline uint64_t mb_definition_slot(const mb_chains *chains, uint64_t hash, mb_span name, uint32_t block) {
    uint64_t slot = hash & (chains->slot_count - 1);
    for (; chains->slots[slot] != 0; slot = (slot + 1) & (chains->slot_count - 1)) {
        const mb_definition *other = &chains->definitions[chains->slots[slot] - 1];
        if (other->hash == hash && other->block == block && mb_spans_equal(chains->scan, other->name, name)) break;
    }
    return slot;
}

/* Find the definition of a name in a block itself; NULL if it is not defined there. */
static inline mb_definition *mb_definition_of(const mb_chains *chains, const mb_siphash_key *key, mb_span name, uint32_t block) {
    const uint64_t hash = mb_definition_hash(key, chains->scan->base + name.offset, name.nbytes, block);
    const uint32_t row = chains->slots[mb_definition_slot(chains, hash, name, block)];
    return row == 0 ? NULL : &chains->definitions[row - 1];
}

/* Return the definition of an operation's output; add it if missing. NULL without room: names change while they are
 * read. */
static inline mb_definition *mb_define(mb_chains *chains, const mb_siphash_key *key, const mb_op *op) {
    const uint64_t hash = mb_definition_hash(key, chains->scan->base + op->name.offset, op->name.nbytes, op->block);
    const uint64_t slot = mb_definition_slot(chains, hash, op->name, op->block);
    if (chains->slots[slot] == 0) {
        if (chains->definition_count == chains->definition_capacity) return NULL;
        const mb_definition made = {op->name, hash, op->block, MB_NONE, 0, 0};
        chains->definitions[chains->definition_count] = made;
        chains->slots[slot] = (uint32_t)++chains->definition_count;
    }
    return &chains->definitions[chains->slots[slot] - 1];
}

static inline bool mb_entry_defines(const mb_scan *scan, const mb_entry *entry) {
    return entry->op != MB_NONE && mb_span_is(scan, entry->key, "val", 3) && mb_span_is(scan, scan->ops[entry->op].type, "const", 5);
}

/* Number the outputs of constexpr operations, mark the values that they have as parts, and count the names that they read.
 * in   scan; ops, numbers, targets, marks: room for all      over-reads: none      fails: never                        */
MB_KERNEL void mb_chains_begin(mb_chains *chains) {
    const mb_scan *scan = chains->scan;
    for (uint64_t row = 0; row < scan->op_count; row++) {
        const mb_op *op = &scan->ops[row];
        chains->numbers[row] = MB_NONE;
        if (!mb_op_is_constexpr(scan, op)) continue;
        mb_chain_op made = {(uint32_t)row, 0, 0, (uint32_t)chains->op_count, 0, 0};
        if (chains->op_count > 0) {
            const mb_chain_op *last = &chains->ops[chains->op_count - 1];
            const mb_span message = scan->ops[last->row].message;
            if (message.offset == op->message.offset && message.nbytes == op->message.nbytes) made.message = last->message;
        }
        chains->numbers[row] = (uint32_t)chains->op_count;
        chains->ops[chains->op_count++] = made;
    }
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        const mb_entry *entry = &scan->entries[i];
        const uint32_t number = entry->op == MB_NONE ? MB_NONE : chains->numbers[entry->op];
        chains->targets[i] = MB_NONE;
        chains->marks[i] = 0;
        if (number == MB_NONE) continue;
        if (chains->ops[number].count++ == 0) chains->ops[number].first = (uint32_t)i;
        if (entry->storage == MB_STORAGE_NAME) chains->name_count++;
        else if (entry->mil_code != MB_MIL_STRING && !mb_span_is(scan, entry->key, "name", 4)) chains->marks[i] = MB_MARK_PART;
    }
    for (uint64_t k = 0; k < chains->op_count; k++) {
        const mb_chain_op *first = &chains->ops[chains->ops[k].message];
        chains->ops[k].first = first->first, chains->ops[k].count = first->count;
    }
}

/* Fill the table of definitions. Of two outputs with one name in a block the last is read; then come const operations, the first. */
MB_KERNEL void mb_chains_define(mb_chains *chains, const mb_siphash_key *key) {
    const mb_scan *scan = chains->scan;
    for (uint64_t row = 0; row < scan->op_count; row++) {
        mb_definition *found = mb_define(chains, key, &scan->ops[row]);
        if (found == NULL) return;
        found->flags |= MB_DEFINITION_LISTED;
        if (chains->numbers[row] != MB_NONE) found->target = chains->numbers[row] | MB_TARGET_OP;
    }
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        if (!mb_entry_defines(scan, &scan->entries[i])) continue;
        mb_definition *found = mb_define(chains, key, &scan->ops[scan->entries[i].op]);
        if (found != NULL && found->target == MB_NONE) found->target = (uint32_t)i;
    }
}

/* Add the const operations of a scan of every constant to the definitions. The caller has made room for them, and slots of zeros. */
MB_KERNEL void mb_chains_add_small(mb_chains *chains, const mb_scan *small, const mb_siphash_key *key) {
    for (uint64_t i = 0; i < chains->definition_count; i++) {
        const mb_definition *own = &chains->definitions[i];
        chains->slots[mb_definition_slot(chains, own->hash, own->name, own->block)] = (uint32_t)i + 1;
    }
    const uint64_t named = chains->scan->entry_count + chains->name_count;
    chains->small = small;
    for (uint64_t i = 0; i < small->entry_count; i++) {
        if (!mb_entry_defines(small, &small->entries[i])) continue;
        mb_definition *found = mb_define(chains, key, &small->ops[small->entries[i].op]);
        if (found != NULL && found->target >= named && (found->target == MB_NONE || !(found->target & MB_TARGET_OP)))
            found->target = (uint32_t)(named + i); /* no number yet; of several with one name the last, as they are all small */
    }
}

/* Note that something else than a constexpr operation reads a name in a block. */
static inline void mb_chains_add_use(mb_chains *chains, mb_span name, uint32_t block, const mb_siphash_key *key) {
    for (; block < chains->scan->block_count; block = chains->scan->blocks[block].parent) {
        mb_definition *found = mb_definition_of(chains, key, name, block);
        if (found == NULL || !(found->flags & MB_DEFINITION_LISTED)) continue;
        found->flags |= MB_DEFINITION_OUTSIDE;
        return;
    }
}

/* Note which definitions something else than a constexpr operation reads; graph: of the same bytes. */
MB_KERNEL void mb_chains_add_uses(mb_chains *chains, const mb_graph *graph, const mb_siphash_key *key) {
    chains->has_uses = true;
    for (uint64_t i = 0; i < graph->binding_count; i++) {
        const mb_graph_binding *binding = &graph->bindings[i];
        const mb_graph_operation *op = &graph->operations[graph->arguments[binding->argument].operation];
        if (!binding->is_value && !mb_type_is_constexpr(&graph->scan, op->type)) mb_chains_add_use(chains, binding->span, op->block, key);
    }
    for (uint64_t i = 0; i < graph->name_count; i++)
        if (graph->names[i].kind == MB_GRAPH_RETURN) mb_chains_add_use(chains, graph->names[i].name, graph->names[i].owner, key);
}

/* Give a constant of `small` that is a part its number, once. */
static inline uint32_t mb_small_number(mb_chains *chains, mb_definition *found) {
    const uint64_t named = chains->scan->entry_count + chains->name_count;
    if (found->target >= named) {
        chains->small_rows[chains->small_count] = (uint32_t)(found->target - named);
        chains->small_marks[chains->small_count] = 0;
        found->target = (uint32_t)(chains->scan->entry_count + chains->small_count++);
    }
    return found->target;
}

/* Resolve the names that constexpr operations read.
 * out  targets, marks      fails: MB_CHAINS_SMALL, MB_CHAINS_USES: call again after mb_chains_add_small or mb_chains_add_uses */
MB_KERNEL int mb_chains_resolve(mb_chains *chains, const mb_siphash_key *key) {
    const mb_scan *scan = chains->scan;
    for (; chains->at < scan->entry_count && chains->name_count > 0; chains->at++) {
        const mb_entry *entry = &scan->entries[chains->at];
        mb_definition *found = NULL;
        if (entry->storage != MB_STORAGE_NAME || entry->op == MB_NONE || chains->numbers[entry->op] == MB_NONE) continue;
        for (uint32_t block = entry->block; block != MB_NONE; block = scan->blocks[block].parent) {
            found = mb_definition_of(chains, key, entry->payload, block);
            if (found != NULL && found->target != MB_NONE) break;
            found = NULL;
        }
        if (found == NULL && chains->small == NULL) return MB_CHAINS_SMALL;
        if (found == NULL) continue; /* the name of something that is not a constant, so not a part */
        if (found->target & MB_TARGET_OP) {
            mb_chain_op *op = &chains->ops[found->target & ~MB_TARGET_OP];
            chains->ops[op->message].flags |= MB_CHAIN_INNER;
            chains->targets[chains->at] = found->target;
            continue;
        }
        const uint32_t target = mb_small_number(chains, found);
        uint8_t *mark = target < scan->entry_count ? &chains->marks[target] : &chains->small_marks[target - scan->entry_count];
        if (!(*mark & MB_MARK_PART)) {
            if (!chains->has_uses) return MB_CHAINS_USES;
            *mark |= MB_MARK_PART | (found->flags & MB_DEFINITION_OUTSIDE ? MB_MARK_SHARED : 0);
        }
        chains->targets[chains->at] = target;
    }
    return MB_CHAINS_DONE;
}

/* Mark the outputs that are weights. A chain that only other constexpr operations read is a part, and so is one with several
 * outputs (a mask, and values). fails: MB_CHAINS_USES, as mb_chains_resolve. */
MB_KERNEL int mb_chains_ends(mb_chains *chains, const mb_siphash_key *key) {
    for (uint64_t k = 0; k < chains->op_count; k++) {
        const mb_op *op = &chains->scan->ops[chains->ops[k].row];
        if (op->output_count != 1) continue;
        if (chains->ops[chains->ops[k].message].flags & MB_CHAIN_INNER) {
            if (!chains->has_uses) return MB_CHAINS_USES;
            const mb_definition *found = mb_definition_of(chains, key, op->name, op->block);
            if (found == NULL || !(found->flags & MB_DEFINITION_OUTSIDE)) continue;
        }
        chains->ops[k].flags |= MB_CHAIN_END;
    }
    return MB_CHAINS_DONE;
}

/* Whether a constant is a part of its operation: a value marked as one, or a name of one. */
static inline bool mb_chain_has(const mb_chains *chains, uint64_t i) {
    return chains->scan->entries[i].storage == MB_STORAGE_NAME ? chains->targets[i] != MB_NONE : chains->marks[i] & MB_MARK_PART;
}

/* Whether two parts have one name: the parameter's, with "[1]" where it has several bindings. */
static inline bool mb_parts_alike(const mb_scan *scan, const mb_entry *a, const mb_entry *b) {
    uint8_t text[2][24];
    mb_names ends[2];
    memset(ends, 0, sizeof ends);
    for (int i = 0; i < 2; i++) {
        const mb_entry *entry = i == 0 ? a : b;
        ends[i].bytes = text[i], ends[i].capacity = sizeof text[i];
        if (entry->binding_count != 1) mb_names_put_index(&ends[i], entry->binding, "");
    }
    if (a->key.nbytes + ends[0].nbytes != b->key.nbytes + ends[1].nbytes) return false;
    const uint8_t *x = scan->base + a->key.offset, *y = scan->base + b->key.offset;
    for (uint64_t i = 0; i < a->key.nbytes + ends[0].nbytes; i++) {
        const uint8_t own = i < a->key.nbytes ? x[i] : text[0][i - a->key.nbytes], other = i < b->key.nbytes ? y[i] : text[1][i - b->key.nbytes];
        if (own != other) return false;
    }
    return true;
}

/* Count the parts of an operation, no two with one name; more than MB_MAX_PARTS need not be exact. A parameter's name can be that
 * of an input, of an attribute and, with its "[1]", of a binding: so three times as many have as many different ones. */
static inline uint32_t mb_chain_parts(const mb_chains *chains, const mb_chain_op *op) {
    uint32_t found[3 * MB_MAX_PARTS], count = 0, distinct = 0;
    const mb_entry *last = NULL;
    for (uint64_t i = op->first; i < (uint64_t)op->first + op->count; i++) {
        const mb_entry *entry = &chains->scan->entries[i];
        if (!mb_chain_has(chains, i)) continue;
        if (last != NULL && last->key.offset == entry->key.offset && last->binding == entry->binding) continue; /* elements of one list */
        last = entry;
        if (count == 3 * MB_MAX_PARTS) return MB_MAX_PARTS + 1;
        found[count++] = (uint32_t)i;
    }
    for (uint32_t i = 0; i < count; i++) {
        bool is_new = true;
        for (uint32_t k = 0; k < i && is_new; k++) is_new = !mb_parts_alike(chains->scan, &chains->scan->entries[found[i]], &chains->scan->entries[found[k]]);
        distinct += is_new;
    }
    return distinct;
}

/* The working memory of mb_chains_check. */
typedef struct mb_chain_links {
    uint32_t *reads;      /* operations that others read, side by side for each reader, in order, no two alike; room for all names */
    uint32_t *reads_from; /* by output, one more than there are: where those of an operation begin */
    uint32_t *readers;    /* the same the other way round */
    uint32_t *readers_from;
    uint32_t *waiting;    /* by output: how many of its inputs have a chain of unknown length */
    uint32_t *ready;      /* operations whose inputs all have known lengths; room for all */
    uint32_t *seen;       /* by output: zeros */
} mb_chain_links;

/* Note the inputs of each operation. */
static inline int mb_chain_links_fill(mb_chains *chains, mb_chain_links *links) {
    uint64_t total = 0;
    for (uint64_t k = 0; k < chains->op_count; k++) {
        mb_chain_op *op = &chains->ops[k];
        links->reads_from[k] = (uint32_t)total;
        if (op->message != k) continue;
        op->parts = mb_chain_parts(chains, op);
        if (op->parts > MB_MAX_PARTS) {
            chains->stopped = (uint32_t)k;
            return MB_CHAINS_PARTS;
        }
        for (uint64_t i = op->first; i < (uint64_t)op->first + op->count; i++) {
            const mb_entry *entry = &chains->scan->entries[i];
            bool is_hidden = entry->storage != MB_STORAGE_NAME || chains->targets[i] == MB_NONE || !(chains->targets[i] & MB_TARGET_OP);
            for (uint64_t later = i + 1; later < (uint64_t)op->first + op->count && !is_hidden; later++) /* which has its name has its place */
                is_hidden = chains->targets[later] != MB_NONE && mb_parts_alike(chains->scan, entry, &chains->scan->entries[later]);
            if (is_hidden) continue;
            const uint32_t read = chains->ops[chains->targets[i] & ~MB_TARGET_OP].message;
            uint64_t at = total;
            while (at > links->reads_from[k] && links->reads[at - 1] > read) at--;
            if (at > links->reads_from[k] && links->reads[at - 1] == read) continue;
            memmove(links->reads + at + 1, links->reads + at, (size_t)(total++ - at) * sizeof *links->reads);
            links->reads[at] = read;
        }
    }
    links->reads_from[chains->op_count] = (uint32_t)total;
    return MB_CHAINS_DONE;
}

/* Turn the links round: for each operation that is read, its readers in order. Room for those to come is counted one row ahead. */
static inline void mb_chain_links_turn(const mb_chains *chains, mb_chain_links *links) {
    const uint64_t count = chains->op_count;
    uint32_t *from = links->readers_from;
    memset(from, 0, (size_t)(count + 2) * sizeof *from);
    for (uint64_t i = 0; i < links->reads_from[count]; i++) from[links->reads[i] + 2]++;
    for (uint64_t k = 0; k < count; k++) from[k + 2] += from[k + 1];
    for (uint64_t k = 0; k < count; k++)
        for (uint64_t i = links->reads_from[k]; i < links->reads_from[k + 1]; i++) links->readers[from[links->reads[i] + 1]++] = (uint32_t)k;
}

/* Whether the operations that compute an output, and their parts, are few enough. */
static inline int mb_chain_measure(const mb_chains *chains, mb_chain_links *links, uint32_t number) {
    uint32_t chain[MB_MAX_CHAIN], count = 0, parts = 0;
    chain[count++] = number;
    links->seen[number] = number + 1;
    for (uint32_t i = 0; i < count; i++) { /* grows */
        parts += chains->ops[chain[i]].parts;
        for (uint32_t at = links->reads_from[chain[i]]; at < links->reads_from[chain[i] + 1]; at++) {
            const uint32_t read = links->reads[at];
            if (links->seen[read] == number + 1) continue;
            if (count == MB_MAX_CHAIN) return MB_CHAINS_LONG;
            links->seen[read] = number + 1;
            chain[count++] = read;
        }
    }
    return parts > MB_MAX_PARTS ? MB_CHAINS_PARTS : MB_CHAINS_DONE;
}

/* Refuse operations that read each other in a circle, and weights of too many operations. This bounds the work of a
 * caller that walks through the operations of each weight in turn, even if operations share what they read and the
 * number of paths is exponential.
 * out  stopped: which one      fails: MB_CHAINS_PARTS, MB_CHAINS_LONG, MB_CHAINS_CIRCLE
 * cost: for each operation that others read, or that reads others, at most MB_MAX_CHAIN times MB_MAX_PARTS steps           */
MB_KERNEL int mb_chains_check(mb_chains *chains, mb_chain_links *links) {
    const uint64_t count = chains->op_count;
    uint64_t ready = 0;
    if (mb_chain_links_fill(chains, links) != MB_CHAINS_DONE) return MB_CHAINS_PARTS;
    if (links->reads_from[count] == 0) return MB_CHAINS_DONE;
    mb_chain_links_turn(chains, links);
    for (uint64_t k = 0; k < count; k++) links->waiting[k] = links->reads_from[k + 1] - links->reads_from[k];
    for (uint64_t i = 0; i < links->reads_from[count]; i++) { /* those that are read and read nothing, as they come */
        const uint32_t read = links->reads[i];
        if (links->waiting[read] != 0 || links->seen[read] != 0) continue;
        links->seen[read] = MB_NONE;
        links->ready[ready++] = read;
    }
    for (uint64_t i = 0; i < ready; i++) { /* grows: an operation comes once all that it reads have come */
        const uint32_t number = links->ready[i];
        const int status = mb_chain_measure(chains, links, number);
        chains->stopped = number;
        if (status != MB_CHAINS_DONE) return status;
        for (uint64_t at = links->readers_from[number]; at < links->readers_from[number + 1]; at++)
            if (--links->waiting[links->readers[at]] == 0) links->ready[ready++] = links->readers[at];
    }
    uint32_t at = 0;
    while (at < count && links->waiting[at] == 0) at++;
    if (at == count) return MB_CHAINS_DONE;
    for (memset(links->seen, 0, (size_t)count * sizeof *links->seen); links->seen[at] == 0;) { /* back from one that waits, until one comes again */
        uint32_t i = links->reads_from[at];
        links->seen[at] = 1;
        while (i + 1 < links->reads_from[at + 1] && links->waiting[links->reads[i]] == 0) i++;
        at = links->reads[i];
    }
    chains->stopped = at;
    return MB_CHAINS_CIRCLE;
}

/* Whether all texts of a scan's rows are UTF-8: names and types of operations, parameters, files, names that are read.
 * over-reads: none      fails: never                                                                                  */
MB_KERNEL bool mb_scan_utf8(const mb_scan *scan) {
    mb_span type = {0, 0}, key = {0, 0}, text = {0, 0};
    for (uint64_t i = 0; i < scan->op_count; i++) {
        const mb_op *op = &scan->ops[i];
        if (!mb_utf8_all(scan->base + op->name.offset, op->name.nbytes)) return false;
        if (!mb_spans_equal(scan, type, op->type) && !mb_utf8_all(scan->base + op->type.offset, op->type.nbytes)) return false;
        type = op->type;
    }
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        const mb_entry *entry = &scan->entries[i];
        if (!mb_spans_equal(scan, key, entry->key) && !mb_utf8_all(scan->base + entry->key.offset, entry->key.nbytes)) return false;
        key = entry->key;
        if (entry->storage == MB_STORAGE_IMMEDIATE) continue;
        if (!mb_spans_equal(scan, text, entry->payload) && !mb_utf8_all(scan->base + entry->payload.offset, entry->payload.nbytes)) return false;
        text = entry->payload;
    }
    return true;
}

#endif
