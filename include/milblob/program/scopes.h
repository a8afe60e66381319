/* program/scopes.h: the definition of each name that a Program reads, and the readers of each definition.
 *
 * A name is looked up in the block that reads it, then in those around it, then among the inputs of the function. Of two definitions
 * with one name in one block the first is read; the inputs of a block come before its operations. Texts are compared once: a
 * definition is known by the first row of names that has its text, and one walk over all blocks keeps what each text means where the
 * walk is. So the cost is one hash of each name, however deep blocks are nested. */
#ifndef MILBLOB_SCOPES_H
#define MILBLOB_SCOPES_H

#include "milblob/kernels/siphash.h"
#include "milblob/program/graph.h"

#define MB_READ_RETURN 0x80000000u /* in a read: the number of a row of names, an output of a block; else of a row of bindings */

/* Tables of the caller, which has filled `meanings` with MB_NONE and `slots` with zeros. */
typedef struct mb_scopes {
    const mb_graph *graph;
    uint32_t *definers;    /* out: by row of bindings, then by row of names: the row of names that defines what is read, or MB_NONE */
    uint32_t *reads;       /* out: reads of what is defined, in Program order; room for all bindings and names */
    uint64_t read_count;   /* out */
    uint32_t *readers;     /* out: the same by what they read: those of row i of names from readers_from[i] on */
    uint32_t *readers_from; /* out: two more than there are names */
    uint32_t *slots;       /* first rows of names by the hash of their text, + 1; a power of two above the number of names */
    uint64_t slot_count;
    uint32_t *firsts;      /* by row of names: the first with its text */
    uint32_t *meanings;    /* by first row: the row that defines the text where the walk is, or MB_NONE */
    uint32_t *blocks;      /* by first row: the block that the meaning is of */
    uint32_t *hidden;      /* what definitions hide, to be restored: (first row, meaning, block) each; room for all names */
    uint64_t hidden_count;
} mb_scopes;

/* The slot of a text, or the free one where it would be. */
static inline uint64_t mb_scope_slot(const mb_scopes *scopes, mb_span text, const mb_siphash_key *key) {
    const uint8_t *base = scopes->graph->scan.base;
    uint64_t slot = mb_siphash(base + text.offset, text.nbytes, key) & (scopes->slot_count - 1);
    for (; scopes->slots[slot] != 0; slot = (slot + 1) & (scopes->slot_count - 1)) {
        const mb_span other = scopes->graph->names[scopes->slots[slot] - 1].name;
        if (other.nbytes == text.nbytes && memcmp(base + other.offset, base + text.offset, (size_t)text.nbytes) == 0) break;
    }
    return slot;
}

static inline bool mb_name_is_definition(const mb_graph_name *name) { return name->kind != MB_GRAPH_RETURN && name->kind != MB_GRAPH_UNUSED; }

/* Note what rows of names define from here on, until the block ends. */
static inline void mb_scope_define(mb_scopes *scopes, uint32_t first, uint32_t count, uint32_t block) {
    for (uint32_t row = first; row < first + count; row++) {
        const uint32_t text = scopes->firsts[row];
        if (scopes->meanings[text] != MB_NONE && scopes->blocks[text] == block) continue;
        uint32_t *hidden = scopes->hidden + 3 * scopes->hidden_count++;
        hidden[0] = text, hidden[1] = scopes->meanings[text], hidden[2] = scopes->blocks[text];
        scopes->meanings[text] = row, scopes->blocks[text] = block;
    }
}

static inline void mb_scope_restore(mb_scopes *scopes, uint64_t count) {
    while (scopes->hidden_count > count) {
        const uint32_t *hidden = scopes->hidden + 3 * --scopes->hidden_count;
        scopes->meanings[hidden[0]] = hidden[1], scopes->blocks[hidden[0]] = hidden[2];
    }
}

/* Note what a name that is read means here. row: of `definers`; read: what goes into `reads`. */
static inline void mb_scope_read(mb_scopes *scopes, mb_span text, uint64_t row, uint32_t read, const mb_siphash_key *key) {
    const uint32_t first = scopes->slots[mb_scope_slot(scopes, text, key)];
    const uint32_t found = first == 0 ? MB_NONE : scopes->meanings[first - 1];
    scopes->definers[row] = found;
    if (found == MB_NONE) return;
    scopes->reads[scopes->read_count++] = read;
    scopes->readers_from[found + 2]++;
}

/* Resolve what a block reads, and the blocks inside it; they are nested no deeper than MB_MAX_DEPTH. */
static inline void mb_scope_block(mb_scopes *scopes, uint32_t number, const mb_siphash_key *key) {
    const mb_graph *graph = scopes->graph;
    const mb_graph_block *block = &graph->blocks[number];
    const uint64_t hidden_count = scopes->hidden_count;
    mb_scope_define(scopes, block->inputs, block->input_count, number);
    for (uint32_t row = block->operations; row < block->operation_end; row = graph->operations[row].end)
        mb_scope_define(scopes, graph->operations[row].outputs, graph->operations[row].output_count, number);
    for (uint32_t row = block->operations; row < block->operation_end; row = graph->operations[row].end) {
        const mb_graph_operation *op = &graph->operations[row];
        uint32_t inner = op->blocks;
        for (uint32_t k = op->arguments; k < op->arguments + op->argument_count; k++)
            for (uint32_t i = graph->arguments[k].bindings; i < graph->arguments[k].bindings + graph->arguments[k].binding_count; i++)
                if (!graph->bindings[i].is_value) mb_scope_read(scopes, graph->bindings[i].span, i, i, key);
        for (uint32_t k = 0; k < op->block_count; k++, inner = graph->blocks[inner].end) mb_scope_block(scopes, inner, key);
    }
    for (uint32_t i = block->outputs; i < block->outputs + block->output_count; i++)
        mb_scope_read(scopes, graph->names[i].name, graph->binding_count + i, i | MB_READ_RETURN, key);
    mb_scope_restore(scopes, hidden_count);
}

/* Resolve all reads: find their definitions, and the readers of each definition.
 * in   scopes: graph and tables, see above; the Program's bytes      over-reads: none      fails: never
 * cost: one hash of each name that is defined or read                                                                   */
MB_KERNEL void mb_scopes_resolve(mb_scopes *scopes, const mb_siphash_key *key) {
    const mb_graph *graph = scopes->graph;
    memset(scopes->definers, 0xFF, (size_t)(graph->binding_count + graph->name_count) * sizeof *scopes->definers);
    memset(scopes->readers_from, 0, (size_t)(graph->name_count + 2) * sizeof *scopes->readers_from);
    for (uint64_t row = 0; row < graph->name_count; row++) {
        if (!mb_name_is_definition(&graph->names[row])) continue;
        uint32_t *slot = &scopes->slots[mb_scope_slot(scopes, graph->names[row].name, key)];
        if (*slot == 0) *slot = (uint32_t)row + 1;
        scopes->firsts[row] = *slot - 1;
    }
    for (uint64_t number = 0; number < graph->function_count; number++) {
        const mb_graph_function *function = &graph->functions[number];
        mb_scope_define(scopes, function->inputs, function->input_count, MB_NONE);
        for (uint32_t block = function->blocks; block < function->block_end; block = graph->blocks[block].end) mb_scope_block(scopes, block, key);
        mb_scope_restore(scopes, 0);
    }
    for (uint64_t row = 0; row < graph->name_count; row++) scopes->readers_from[row + 2] += scopes->readers_from[row + 1];
    for (uint64_t i = 0; i < scopes->read_count; i++) {
        const uint32_t read = scopes->reads[i];
        const uint64_t row = read & MB_READ_RETURN ? graph->binding_count + (read & ~MB_READ_RETURN) : read;
        scopes->readers[scopes->readers_from[scopes->definers[row] + 1]++] = read;
    }
}

#endif
