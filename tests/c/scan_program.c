/* scan_program.c: scans each file as a Program, makes its graph, with tables that grow from nothing, and writes its text; see
 * replay.h for the command line. */
#include "milblob/program/graph.h"
#include "milblob/program/program.h"
#include "named.h"
#include "scoped.h"
#include "tensor_value.h"
#include "written.h"

static uint64_t file_nbytes;

static void inside(mb_span span) {
    require(span.offset <= file_nbytes && span.nbytes <= file_nbytes - span.offset, "a span inside the buffer");
}

static void numbers_inside(const mb_scan *scan, uint64_t first, uint64_t count) {
    require(count == 0 || (first <= scan->number_count && count <= scan->number_count - first), "numbers inside their table");
}

static void check_rows(const mb_scan *scan) {
    for (uint64_t i = 0; i < scan->function_count; i++) {
        inside(scan->functions[i].name);
        inside(scan->functions[i].opset);
        inside(scan->functions[i].message);
    }
    for (uint64_t i = 0; i < scan->block_count; i++) {
        inside(scan->blocks[i].name);
        require(scan->blocks[i].function < scan->function_count, "a block of a function");
        require(scan->blocks[i].parent == MB_NONE || scan->blocks[i].parent < i, "parents first");
    }
    for (uint64_t i = 0; i < scan->op_count; i++) {
        const mb_op *op = &scan->ops[i];
        inside(op->name);
        inside(op->type);
        inside(op->message);
        require(op->block < scan->block_count, "an operation of a block");
        if (op->mil_code != 0) numbers_inside(scan, op->dims, op->rank);
    }
    for (uint64_t i = 0; i < scan->entry_count; i++) {
        const mb_entry *entry = &scan->entries[i];
        inside(entry->value);
        inside(entry->payload);
        inside(entry->key);
        require(entry->op == MB_NONE || entry->op < scan->op_count, "an operation that has a row");
        require(entry->block == MB_NONE || entry->block < scan->block_count, "a block that has a row");
        require(entry->function == MB_NONE || entry->function < scan->function_count, "a function that has a row");
        require(entry->mil_code == 0 || mb_dtype_of_mil_code(entry->mil_code) != NULL, "a dtype of the table");
        if (entry->mil_code != 0) numbers_inside(scan, entry->dims, entry->rank);
        numbers_inside(scan, entry->steps, entry->step_count);
        if (entry->storage == MB_STORAGE_IMMEDIATE)
            check_tensor_value(scan->base, scan->base + entry->payload.offset, entry->payload.nbytes);
    }
}

static void scan_with(const uint8_t *data, uint64_t nbytes, uint32_t flags) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_scan scan;
    mb_span program = {0, nbytes};
    uint64_t functions = 0, blocks = 0, ops = 0, entries = 0, numbers = 0;
    for (int pass = 0;; pass++) {
        require(pass < 2, "the counts of the first pass are enough for the second");
        memset(&scan, 0, sizeof scan);
        scan.base = data;
        scan.flags = flags;
        scan.error = &error;
        scan.functions = (mb_function *)exactly((scan.function_capacity = functions) * sizeof *scan.functions);
        scan.blocks = (mb_block *)exactly((scan.block_capacity = blocks) * sizeof *scan.blocks);
        scan.ops = (mb_op *)exactly((scan.op_capacity = ops) * sizeof *scan.ops);
        scan.entries = (mb_entry *)exactly((scan.entry_capacity = entries) * sizeof *scan.entries);
        scan.numbers = (uint64_t *)exactly((scan.number_capacity = numbers) * sizeof *scan.numbers);
        mb_status status = mb_program_scan(&scan, program);
        require(status == MB_OK || error.detail != NULL, "an error that has words");
        require(status == MB_OK || status == MB_FULL || error.offset <= nbytes, "an error with its place");
        require(status != MB_SPLIT || error.offset > 0, "a split is somewhere");
        if (status == MB_OK) {
            check_rows(&scan);
            check_names(&scan);
        }
        free(scan.functions);
        free(scan.blocks);
        free(scan.ops);
        free(scan.entries);
        free(scan.numbers);
        if (status != MB_FULL) return;
        functions = scan.function_count, blocks = scan.block_count, ops = scan.op_count;
        entries = scan.entry_count, numbers = scan.number_count;
    }
}

/* Rows of `count` from `first` on lie in a table of `all`. */
static void rows_inside(uint64_t first, uint64_t count, uint64_t all) {
    require(first <= all && count <= all - first, "rows inside their table");
}

static void check_graph(const mb_graph *graph) {
    for (uint64_t i = 0; i < graph->function_count; i++) {
        const mb_graph_function *f = &graph->functions[i];
        inside(f->name);
        inside(f->opset);
        inside(f->message);
        rows_inside(f->inputs, f->input_count, graph->name_count);
        require(f->blocks <= f->block_end && f->block_end <= graph->block_count, "blocks of a function");
    }
    for (uint64_t i = 0; i < graph->block_count; i++) {
        const mb_graph_block *b = &graph->blocks[i];
        inside(b->name);
        inside(b->message);
        require(b->function < graph->function_count, "a block of a function");
        require(b->operation == MB_NONE || b->operation < graph->operation_count, "a block of an operation");
        require(i < b->end && b->end <= graph->block_count, "a block ends after it begins");
        require(b->operations <= b->operation_end && b->operation_end <= graph->operation_count, "operations of a block");
        rows_inside(b->inputs, b->input_count, graph->name_count);
        rows_inside(b->outputs, b->output_count, graph->name_count);
    }
    for (uint64_t i = 0; i < graph->operation_count; i++) {
        const mb_graph_operation *o = &graph->operations[i];
        inside(o->type);
        inside(o->message);
        require(o->block < graph->block_count, "an operation of a block");
        require(i < o->end && o->end <= graph->operation_count, "an operation ends after it begins");
        require(o->block_count == 0 || o->blocks < graph->block_count, "blocks of an operation");
        rows_inside(o->outputs, o->output_count, graph->name_count);
        rows_inside(o->arguments, o->argument_count, graph->argument_count);
    }
    for (uint64_t i = 0; i < graph->name_count; i++) {
        const mb_graph_name *n = &graph->names[i];
        inside(n->name);
        inside(n->type);
        uint64_t owners = n->kind == MB_GRAPH_OUTPUT ? graph->operation_count : n->kind == MB_GRAPH_PARAMETER ? graph->function_count : graph->block_count;
        require(n->kind <= MB_GRAPH_UNUSED && n->owner < owners, "the owner of a name");
    }
    for (uint64_t i = 0; i < graph->argument_count; i++) {
        inside(graph->arguments[i].key);
        require(graph->arguments[i].operation < graph->operation_count, "an argument of an operation");
        rows_inside(graph->arguments[i].bindings, graph->arguments[i].binding_count, graph->binding_count);
    }
    for (uint64_t i = 0; i < graph->binding_count; i++) {
        inside(graph->bindings[i].span);
        require(graph->bindings[i].argument < graph->argument_count, "a binding of an argument");
    }
}

/* Who defines and who reads what: each definition is the one of that name that its reader sees. */
static void check_scopes(const mb_graph *graph) {
    const uint64_t names = graph->name_count, reads = graph->binding_count + names;
    mb_scopes scopes = make_scopes(graph, &names_key);
    uint64_t found = 0;
    for (uint64_t i = 0; i < reads; i++) {
        const uint32_t row = scopes.definers[i];
        const mb_span text = i < graph->binding_count ? graph->bindings[i].span : graph->names[i - graph->binding_count].name;
        if (row == MB_NONE) continue;
        require(row < names && mb_name_is_definition(&graph->names[row]), "a definition that has a row");
        const mb_span name = graph->names[row].name;
        require(name.nbytes == text.nbytes && memcmp(graph->scan.base + name.offset, graph->scan.base + text.offset, (size_t)name.nbytes) == 0, "the name that is read");
        bool is_reader = false;
        for (uint32_t k = scopes.readers_from[row]; k < scopes.readers_from[row + 1]; k++)
            is_reader |= (scopes.readers[k] & MB_READ_RETURN ? graph->binding_count + (scopes.readers[k] & ~MB_READ_RETURN) : scopes.readers[k]) == i;
        require(is_reader, "what reads a name is among its readers");
        found++;
    }
    require(found == scopes.read_count && scopes.readers_from[names] == found, "each read once");
    free_scopes(&scopes);
}

static void free_graph(mb_graph *graph) {
    free(graph->functions), free(graph->blocks), free(graph->operations);
    free(graph->names), free(graph->arguments), free(graph->bindings);
}

/* Make the graph; false if it has none. Its tables are the caller's then. */
static bool make_graph(mb_graph *made, const uint8_t *data, uint64_t nbytes, uint32_t flags) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_graph graph;
    mb_span program = {0, nbytes};
    uint64_t functions = 0, blocks = 0, operations = 0, names = 0, arguments = 0, bindings = 0;
    for (int pass = 0;; pass++) {
        require(pass < 2, "the counts of the first pass are enough for the second");
        memset(&graph, 0, sizeof graph);
        graph.scan.base = data;
        graph.scan.flags = flags;
        graph.scan.error = &error;
        graph.functions = (mb_graph_function *)exactly((graph.function_capacity = functions) * sizeof *graph.functions);
        graph.blocks = (mb_graph_block *)exactly((graph.block_capacity = blocks) * sizeof *graph.blocks);
        graph.operations = (mb_graph_operation *)exactly((graph.operation_capacity = operations) * sizeof *graph.operations);
        graph.names = (mb_graph_name *)exactly((graph.name_capacity = names) * sizeof *graph.names);
        graph.arguments = (mb_graph_argument *)exactly((graph.argument_capacity = arguments) * sizeof *graph.arguments);
        graph.bindings = (mb_graph_binding *)exactly((graph.binding_capacity = bindings) * sizeof *graph.bindings);
        mb_status status = mb_program_graph(&graph, program);
        require(status == MB_OK || error.detail != NULL, "an error that has words");
        require(status == MB_OK || status == MB_FULL || error.offset <= nbytes, "an error with its place");
        graph.scan.error = NULL;
        *made = graph;
        if (status == MB_OK) return true;
        free_graph(&graph);
        if (status != MB_FULL) return false;
        functions = graph.function_count, blocks = graph.block_count, operations = graph.operation_count;
        names = graph.name_count, arguments = graph.argument_count, bindings = graph.binding_count;
    }
}

static void graph_with(const uint8_t *data, uint64_t nbytes, uint32_t flags) {
    mb_graph graph;
    if (!make_graph(&graph, data, nbytes, flags)) return;
    check_graph(&graph);
    if (flags & MB_SCAN_KNOWN) check_written(&graph, nbytes);
    free_graph(&graph);
}

static void check(const uint8_t *data, uint64_t nbytes) {
    file_nbytes = nbytes;
    graph_with(data, nbytes, 0);
    graph_with(data, nbytes, MB_SCAN_KNOWN);
    mb_graph graph;
    const bool has_graph = make_graph(&graph, data, nbytes, MB_SCAN_PLAIN);
    file_graph = has_graph ? &graph : NULL;
    scan_with(data, nbytes, 0);
    scan_with(data, nbytes, MB_SCAN_ALL);
    scan_with(data, nbytes, MB_SCAN_ALL | MB_SCAN_PLAIN);
    if (has_graph) check_graph(&graph), check_scopes(&graph), free_graph(&graph);
}
