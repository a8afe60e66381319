/* program/graph.h: a table of the contents of a Program, in program order: functions, blocks, operations, their inputs
 * and outputs.
 *
 * The scan of program.h finds constants and passes over the rest; this walk keeps the rest and passes over constants. It
 * reads the head of each message once. Types, values and attributes remain in the buffer and are listed as (offset,
 * nbytes): the caller reads those it needs.
 *
 * Rows are in program order, an operation before those in its blocks, and `end` is the first row after them: so the
 * operations of a block are found by going from `end` to `end`. Tables that are too small are counted on and reported by
 * MB_FULL; singular messages in pieces and repeated keys of inputs by MB_SPLIT, as the scan does. */
#ifndef MILBLOB_GRAPH_H
#define MILBLOB_GRAPH_H

#include "milblob/program/tables.h"

enum mb_graph_owner { MB_GRAPH_OUTPUT = 0, MB_GRAPH_INPUT = 1, MB_GRAPH_PARAMETER = 2, MB_GRAPH_RETURN = 3, MB_GRAPH_UNUSED = 4 };

/* A NamedValueType; of an output of a block only the name. */
typedef struct mb_graph_name {
    mb_span name;
    mb_span type;            /* offset 0: none */
    uint32_t kind;           /* enum mb_graph_owner: output of an operation, input of a block or function, output of a block */
    uint32_t owner;          /* the row of that operation, block or function */
} mb_graph_name;

/* One input of an operation: a key and its bindings. */
typedef struct mb_graph_argument {
    mb_span key;
    uint32_t bindings;       /* first row of bindings */
    uint32_t binding_count;
    uint32_t operation;      /* row of operations */
    uint32_t reserved;
} mb_graph_argument;

typedef struct mb_graph_binding {
    mb_span span;            /* the name that is read, or a Value message */
    uint32_t argument;       /* row of arguments */
    uint32_t is_value;
} mb_graph_binding;

typedef struct mb_graph_operation {
    mb_span message;
    mb_span type;
    uint32_t block;          /* row of blocks */
    uint32_t index;          /* which of the block's operations */
    uint32_t end;            /* the row after this operation and those in its blocks */
    uint32_t outputs;        /* first row of names */
    uint32_t output_count;
    uint32_t arguments;      /* first row of arguments */
    uint32_t argument_count;
    uint32_t blocks;         /* first row of its blocks, the next one at that one's `end` */
    uint32_t block_count;
    uint32_t reserved;
} mb_graph_operation;

typedef struct mb_graph_block {
    mb_span name;            /* key in block_specializations; empty for a block of an operation */
    mb_span message;
    uint32_t function;       /* row of functions */
    uint32_t operation;      /* the row of the operation that holds it, or MB_NONE */
    uint32_t number;         /* which of that operation's blocks, or of the function's */
    uint32_t end;            /* the row after this block and those in it */
    uint32_t operations;     /* first row of its operations */
    uint32_t operation_end;  /* the row after the last */
    uint32_t inputs;         /* first row of names */
    uint32_t input_count;
    uint32_t outputs;        /* first row of names */
    uint32_t output_count;
} mb_graph_block;

typedef struct mb_graph_function {
    mb_span name;
    mb_span opset;
    mb_span message;
    uint32_t inputs;         /* first row of names */
    uint32_t input_count;
    uint32_t blocks;         /* first row of its blocks, the next one at that one's `end` */
    uint32_t block_end;      /* the row after the last */
} mb_graph_function;

typedef struct mb_graph {
    mb_scan scan;            /* base, flags and error; where the walk is: function, block, and in_op with current.index */
    mb_graph_function *functions;
    mb_graph_block *blocks;
    mb_graph_operation *operations;
    mb_graph_name *names;
    mb_graph_argument *arguments;
    mb_graph_binding *bindings;
    uint64_t function_capacity, block_capacity, operation_capacity, name_capacity, argument_capacity, binding_capacity;
    uint64_t function_count, block_count, operation_count, name_count, argument_count, binding_count;
} mb_graph;

static inline void mb_graph_add_name(mb_graph *graph, mb_span name, mb_span type, uint32_t kind, uint64_t owner) {
    if (graph->name_count < graph->name_capacity) {
        mb_graph_name *row = &graph->names[graph->name_count];
        row->name = name;
        row->type = type;
        row->kind = kind;
        row->owner = (uint32_t)owner;
    }
    graph->name_count++;
}

/* A NamedValueType {1 name, 2 type} as a row of names. */
static inline mb_status mb_graph_named_type(mb_graph *graph, mb_cursor named, uint32_t kind, uint64_t owner) {
    mb_scan *scan = &graph->scan;
    mb_span name = {mb_offset(&named), 0}, type = {0, 0};
    while (named.at < named.end) {
        mb_wire wire;
        if (mb_read_field(&named, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1) {
            if (mb_scan_bytes(scan, &named, &wire, "name of an input or output")) return scan->error->status;
            name = mb_span_of(scan, &wire);
        } else if (wire.number == 2) {
            if (mb_scan_single(scan, &named, &wire, &type, "type of an input or output")) return scan->error->status;
        } else if (mb_scan_unknown(scan, &wire)) {
            return scan->error->status;
        }
    }
    mb_graph_add_name(graph, name, type, kind, owner);
    return MB_OK;
}

/* An entry of Operation.inputs {1 key, 2 Argument {1 arguments: Binding {1 name, 2 value}}}: a row of arguments. */
static inline mb_status mb_graph_input(mb_graph *graph, mb_cursor entry, uint64_t operation, mb_span *key) {
    mb_scan *scan = &graph->scan;
    mb_span span;
    mb_wire wire;
    uint64_t bindings = graph->binding_count;
    if (mb_scan_pair(scan, entry, key, &span)) return scan->error->status;
    mb_cursor argument = mb_cursor_at(scan, span);
    while (argument.at < argument.end) {
        mb_span name = {0, 0}, value = {0, 0};
        if (mb_read_field(&argument, &wire, scan->error)) return scan->error->status;
        if (wire.number != 1) {
            if (mb_scan_unknown(scan, &wire)) return scan->error->status;
            continue;
        }
        if (mb_scan_bytes(scan, &argument, &wire, "binding")) return scan->error->status;
        mb_cursor binding = mb_cursor_into(&argument, &wire);
        uint64_t start = mb_offset(&binding);
        while (binding.at < binding.end) {
            if (mb_read_field(&binding, &wire, scan->error)) return scan->error->status;
            if (wire.number != 1 && wire.number != 2) {
                if (mb_scan_unknown(scan, &wire)) return scan->error->status;
                continue;
            }
            if (mb_scan_single(scan, &binding, &wire, wire.number == 1 ? &name : &value, "member of Binding")) return scan->error->status;
            if (name.offset != 0 && value.offset != 0) return mb_fail(scan->error, MB_SPLIT, start, 1, 2, "member of Binding");
        }
        if (graph->binding_count < graph->binding_capacity) {
            mb_graph_binding *row = &graph->bindings[graph->binding_count];
            row->span = value.offset != 0 ? value : name;
            if (row->span.offset == 0) row->span.offset = start; /* neither: an empty name */
            row->argument = (uint32_t)graph->argument_count;
            row->is_value = value.offset != 0;
        }
        graph->binding_count++;
    }
    if (graph->argument_count < graph->argument_capacity) {
        mb_graph_argument *row = &graph->arguments[graph->argument_count];
        row->key = *key;
        row->bindings = (uint32_t)bindings;
        row->binding_count = (uint32_t)(graph->binding_count - bindings);
        row->operation = (uint32_t)operation;
    }
    graph->argument_count++;
    return MB_OK;
}

static inline mb_status mb_graph_walk_block(mb_graph *graph, mb_span span, mb_graph_block row, uint32_t depth);

/* An Operation {1 type, 2 inputs, 3 outputs, 4 blocks, 5 attributes}. */
static inline mb_status mb_graph_walk_operation(mb_graph *graph, mb_span span, uint32_t block, uint32_t index, uint32_t depth) {
    mb_scan *scan = &graph->scan;
    const mb_cursor message = mb_cursor_at(scan, span);
    mb_span keys[MB_MAP_FEW];
    mb_graph_operation row;
    mb_wire wire;
    memset(&row, 0, sizeof row);
    row.message = span;
    row.type.offset = span.offset;
    row.block = block;
    row.index = index;
    row.outputs = (uint32_t)graph->name_count;
    row.arguments = (uint32_t)graph->argument_count;
    row.blocks = (uint32_t)graph->block_count;
    scan->in_op = true;
    scan->block = block;
    scan->current.index = index;
    uint64_t number = graph->operation_count++;
    for (mb_cursor at = message; at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number > 5) {
            if (mb_scan_unknown(scan, &wire)) return scan->error->status;
            continue;
        }
        if (mb_scan_bytes(scan, &at, &wire, "field of Operation")) return scan->error->status;
        if (wire.number == 1) {
            row.type = mb_span_of(scan, &wire);
        } else if (wire.number == 2) {
            mb_span key;
            if (mb_graph_input(graph, mb_cursor_into(&at, &wire), number, &key)) return scan->error->status;
            for (uint32_t i = 0; i < row.argument_count && i < MB_MAP_FEW; i++)
                if (keys[i].nbytes == key.nbytes && memcmp(scan->base + keys[i].offset, scan->base + key.offset, key.nbytes) == 0)
                    return mb_fail(scan->error, MB_SPLIT, (uint64_t)(wire.tag - scan->base), 1, 2, "map key");
            if (row.argument_count < MB_MAP_FEW) keys[row.argument_count] = key;
            row.argument_count++;
        } else if (wire.number == 3) {
            if (mb_graph_named_type(graph, mb_cursor_into(&at, &wire), MB_GRAPH_OUTPUT, number)) return scan->error->status;
            row.output_count++;
        } else if (wire.number == 4) {
            row.block_count++;
        }
    }
    if (row.argument_count > MB_MAP_FEW && mb_scan_keys(scan, message, 2)) return scan->error->status;
    scan->in_op = false;
    mb_graph_block inner;
    memset(&inner, 0, sizeof inner);
    inner.function = scan->function;
    inner.operation = (uint32_t)number;
    for (mb_cursor at = message; row.block_count > 0 && at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number != 4) continue;
        inner.name.offset = (uint64_t)(wire.data - scan->base);
        if (mb_graph_walk_block(graph, mb_span_of(scan, &wire), inner, depth + 1)) return scan->error->status;
        inner.number++;
    }
    row.end = (uint32_t)graph->operation_count;
    if (number < graph->operation_capacity) graph->operations[number] = row;
    return MB_OK;
}

/* Inputs and outputs of a Block, up to its first operation or to its end, as rows of names side by side. */
static inline mb_status mb_graph_block_names(mb_graph *graph, mb_cursor *message, mb_graph_block *row, uint64_t number, bool whole) {
    mb_scan *scan = &graph->scan;
    const mb_span no_type = {0, 0};
    const mb_cursor start = *message;
    mb_wire wire;
    bool has_outputs = false;
    row->inputs = (uint32_t)graph->name_count;
    row->input_count = row->output_count = 0;
    while (message->at < message->end) {
        mb_cursor before = *message;
        if (mb_read_field(message, &wire, scan->error)) return scan->error->status;
        if (wire.number == 3 && !whole) {
            *message = before;
            break;
        }
        if (wire.number > 4 && mb_scan_unknown(scan, &wire)) return scan->error->status;
        if (wire.number != 1 && wire.number != 2) continue;
        if (mb_scan_bytes(scan, message, &wire, "field of Block")) return scan->error->status;
        has_outputs |= wire.number == 2;
        if (wire.number == 2) continue;
        if (mb_graph_named_type(graph, mb_cursor_into(message, &wire), MB_GRAPH_INPUT, number)) return scan->error->status;
        row->input_count++;
    }
    row->outputs = (uint32_t)graph->name_count;
    for (mb_cursor at = start; has_outputs && at.at < message->at;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number != 2) continue;
        mb_graph_add_name(graph, mb_span_of(scan, &wire), no_type, MB_GRAPH_RETURN, number);
        row->output_count++;
    }
    return MB_OK;
}

/* A Block {1 inputs, 2 outputs, 3 operations, 4 attributes}. */
static inline mb_status mb_graph_walk_block(mb_graph *graph, mb_span span, mb_graph_block row, uint32_t depth) {
    mb_scan *scan = &graph->scan;
    const mb_cursor message = mb_cursor_at(scan, span);
    mb_wire wire;
    if (depth > MB_MAX_DEPTH) return mb_fail(scan->error, MB_DEPTH, span.offset, MB_MAX_DEPTH, depth, "nested blocks");
    uint64_t number = graph->block_count++;
    row.message = span;
    row.operations = (uint32_t)graph->operation_count;
    scan->block = (uint32_t)number;
    /* The row goes in now, for the path of an error inside, and again once it is complete. */
    if (number < graph->block_capacity) graph->blocks[number] = row;
    mb_cursor at = message;
    if (mb_graph_block_names(graph, &at, &row, number, false)) return scan->error->status;
    bool is_late = false; /* a name after the first operation: no writer of protobuf does that */
    for (uint32_t index = 0; at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        is_late |= wire.number == 1 || wire.number == 2;
        if (wire.number > 4 && mb_scan_unknown(scan, &wire)) return scan->error->status;
        if (wire.number != 3) continue;
        if (mb_scan_bytes(scan, &at, &wire, "field of Block")) return scan->error->status;
        if (mb_graph_walk_operation(graph, mb_span_of(scan, &wire), (uint32_t)number, index++, depth)) return scan->error->status;
        scan->block = (uint32_t)number;
    }
    if (is_late) { /* all of them again, side by side; the rows of the first ones are out of use */
        for (uint64_t i = row.inputs; i < (uint64_t)row.inputs + row.input_count + row.output_count && i < graph->name_capacity; i++)
            graph->names[i].kind = MB_GRAPH_UNUSED;
        at = message;
        if (mb_graph_block_names(graph, &at, &row, number, true)) return scan->error->status;
    }
    row.operation_end = (uint32_t)graph->operation_count;
    row.end = (uint32_t)graph->block_count;
    if (number < graph->block_capacity) graph->blocks[number] = row;
    return MB_OK;
}

/* A Function {1 inputs, 2 opset, 3 block_specializations, 4 attributes}. */
static inline mb_status mb_graph_walk_function(mb_graph *graph, mb_span name, mb_span span) {
    mb_scan *scan = &graph->scan;
    const mb_cursor message = mb_cursor_at(scan, span);
    mb_graph_function row;
    mb_graph_block block;
    mb_wire wire;
    memset(&row, 0, sizeof row);
    memset(&block, 0, sizeof block);
    row.name = name;
    row.opset.offset = span.offset;
    row.message = span;
    row.inputs = (uint32_t)graph->name_count;
    row.blocks = (uint32_t)graph->block_count;
    scan->function = (uint32_t)graph->function_count;
    scan->block = MB_NONE;
    uint64_t number = graph->function_count++;
    if (number < graph->function_capacity) graph->functions[number] = row;
    for (mb_cursor at = message; at.at < at.end;) {
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number > 4) {
            if (mb_scan_unknown(scan, &wire)) return scan->error->status;
            continue;
        }
        if (mb_scan_bytes(scan, &at, &wire, "field of Function")) return scan->error->status;
        if (wire.number == 1) {
            if (mb_graph_named_type(graph, mb_cursor_into(&at, &wire), MB_GRAPH_PARAMETER, number)) return scan->error->status;
            row.input_count++;
        } else if (wire.number == 2) {
            row.opset = mb_span_of(scan, &wire);
        }
    }
    if (mb_scan_keys(scan, message, 3)) return scan->error->status;
    block.function = scan->function;
    block.operation = MB_NONE;
    for (mb_cursor at = message; at.at < at.end;) {
        mb_span body;
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number != 3) continue;
        if (mb_scan_pair(scan, mb_cursor_into(&at, &wire), &block.name, &body)) return scan->error->status;
        if (block.name.offset == 0) block.name.offset = body.offset; /* no key: an empty one */
        if (mb_graph_walk_block(graph, body, block, 1)) return scan->error->status;
        block.number++;
    }
    row.block_end = (uint32_t)graph->block_count;
    if (number < graph->function_capacity) graph->functions[number] = row;
    return MB_OK;
}

/* Walk a Program {1 version, 2 functions, 3 docString, 4 attributes}.
 * in   graph: scan.base, scan.flags and scan.error, tables and capacities set, the rest zero; program: its place in the buffer
 * out  tables filled up to their capacities, counts as needed     fails: MB_FULL, MB_SPLIT (see above); as mb_read_field;
 *      MB_TAG, MB_DEPTH, MB_COUNT. After a failure scan's position is that of the fault.
 * over-reads: none      cost: two or three visits to the head of each message; values are not touched                 */
static inline mb_status mb_program_graph(mb_graph *graph, mb_span program) {
    mb_scan *scan = &graph->scan;
    const mb_cursor message = mb_cursor_at(scan, program);
    scan->function = scan->block = MB_NONE;
    if (mb_scan_keys(scan, message, 2)) return scan->error->status;
    for (mb_cursor at = message; at.at < at.end;) {
        mb_wire wire;
        mb_span name, function;
        if (mb_read_field(&at, &wire, scan->error)) return scan->error->status;
        if (wire.number == 1) {
            if (mb_expect_wire(&at, &wire, MB_WIRE_VARINT, "version of the Program", scan->error)) return scan->error->status;
            scan->version = wire.value;
        } else if (wire.number == 2) {
            if (mb_scan_bytes(scan, &at, &wire, "function")) return scan->error->status;
            if (mb_scan_pair(scan, mb_cursor_into(&at, &wire), &name, &function)) return scan->error->status;
            if (name.offset == 0) name.offset = function.offset; /* no key: an empty one */
            if (mb_graph_walk_function(graph, name, function)) return scan->error->status;
        } else if (wire.number > 4 && mb_scan_unknown(scan, &wire)) {
            return scan->error->status;
        }
    }
    uint64_t most = graph->function_count | graph->block_count | graph->operation_count;
    if (most >= MB_MAX_ROWS) return mb_fail(scan->error, MB_COUNT, program.offset, MB_MAX_ROWS - 1, most, "functions, blocks or operations");
    most = graph->name_count | graph->argument_count | graph->binding_count;
    if (most >= MB_MAX_NUMBERS) return mb_fail(scan->error, MB_COUNT, program.offset, MB_MAX_NUMBERS - 1, most, "inputs and outputs of operations");
    bool fits = graph->function_count <= graph->function_capacity && graph->block_count <= graph->block_capacity &&
                graph->operation_count <= graph->operation_capacity && graph->name_count <= graph->name_capacity &&
                graph->argument_count <= graph->argument_capacity && graph->binding_count <= graph->binding_capacity;
    return fits ? MB_OK : mb_fail(scan->error, MB_FULL, 0, 0, 0, "tables of the graph");
}

#endif
