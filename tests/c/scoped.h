/* scoped.h: who defines and who reads the names of a graph, in tables of exactly the size that they need. */
#ifndef MILBLOB_TESTS_SCOPED_H
#define MILBLOB_TESTS_SCOPED_H

#include "milblob/program/scopes.h"
#include "promises.h"

static uint32_t *scope_rows(uint64_t count, int byte) {
    uint32_t *rows = (uint32_t *)exactly(count * sizeof *rows);
    if (count > 0) memset(rows, byte, (size_t)count * sizeof *rows);
    return rows;
}

static mb_scopes make_scopes(const mb_graph *graph, const mb_siphash_key *key) {
    const uint64_t names = graph->name_count, reads = graph->binding_count + names;
    mb_scopes scopes;
    memset(&scopes, 0, sizeof scopes);
    scopes.graph = graph;
    for (scopes.slot_count = 4; scopes.slot_count <= 2 * names;) scopes.slot_count *= 2;
    scopes.definers = scope_rows(reads, 0), scopes.reads = scope_rows(reads, 0);
    scopes.readers = scope_rows(reads, 0), scopes.readers_from = scope_rows(names + 2, 0);
    scopes.slots = scope_rows(scopes.slot_count, 0), scopes.firsts = scope_rows(names, 0), scopes.meanings = scope_rows(names, 0xFF);
    scopes.blocks = scope_rows(names, 0), scopes.hidden = scope_rows(3 * names, 0);
    mb_scopes_resolve(&scopes, key);
    return scopes;
}

static void free_scopes(mb_scopes *scopes) {
    free(scopes->definers), free(scopes->reads), free(scopes->readers), free(scopes->readers_from), free(scopes->slots);
    free(scopes->firsts), free(scopes->meanings), free(scopes->blocks), free(scopes->hidden);
}

#endif
