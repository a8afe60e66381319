/* text/write.h: writes a Program as MIL text, in the layout of Apple's compiler.
 *
 * docs/mil-text.md describes that layout, the guesses in it, and the limits of text. Functions, arguments and
 * attributes are maps, and come in the order of their keys; everything else in the order of the Program. */
#ifndef MILBLOB_TEXT_WRITE_H
#define MILBLOB_TEXT_WRITE_H

#include "milblob/text/write_value.h"

enum { MB_WRITE_INDENT = 12 }; /* blanks before a statement of a function; eight more in each nested block */

/* Names of operator sets, as mb_text_opset reads them. */
static inline bool mb_write_opset(mb_writer *w, mb_span span) {
    static const char digits[] = "13141516171826"; /* CoreML3 to CoreML9 */
    const uint8_t *src = w->base + span.offset;
    if (span.nbytes == 7 && memcmp(src, "CoreML", 6) == 0 && src[6] >= '3' && src[6] <= '9') {
        mb_print_text(&w->print, "ios");
        mb_print_bytes(&w->print, (const uint8_t *)digits + 2 * (src[6] - '3'), 2);
        return true;
    }
    for (uint32_t i = 0; i < 7; i++)
        if (span.nbytes == 5 && memcmp(src, "ios", 3) == 0 && memcmp(src + 3, digits + 2 * i, 2) == 0)
            return mb_write_refuse(w, span.offset, "an opset that text reads as another one");
    return mb_write_name(w, span, "the name of an opset");
}

static inline int mb_write_order(const mb_writer *w, const mb_write_key *a, const mb_write_key *b) {
    uint64_t least = a->key.nbytes < b->key.nbytes ? a->key.nbytes : b->key.nbytes;
    int order = memcmp(w->base + a->key.offset, w->base + b->key.offset, (size_t)least);
    if (order != 0) return order;
    if (a->key.nbytes != b->key.nbytes) return a->key.nbytes < b->key.nbytes ? -1 : 1;
    return a->key.offset < b->key.offset ? -1 : a->key.offset > b->key.offset;
}

/* Let keys[at] sink to its place in a heap of `count`. */
static inline void mb_write_sink(mb_writer *w, uint64_t at, uint64_t count) {
    mb_write_key moved = w->keys[at];
    for (uint64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && mb_write_order(w, &w->keys[child], &w->keys[child + 1]) < 0) child++;
        if (mb_write_order(w, &moved, &w->keys[child]) >= 0) break;
        w->keys[at] = w->keys[child];
    }
    w->keys[at] = moved;
}

/* Sort by key; of equal keys the last is kept, as in protobuf. Returns how many are left. */
static inline uint64_t mb_write_sort(mb_writer *w, uint64_t count) {
    uint64_t left = 0;
    for (uint64_t at = count / 2; at-- > 0;) mb_write_sink(w, at, count);
    for (uint64_t end = count; end > 1;) {
        mb_write_key greatest = w->keys[0];
        w->keys[0] = w->keys[--end];
        w->keys[end] = greatest;
        mb_write_sink(w, 0, end);
    }
    for (uint64_t i = 0; i < count; i++) {
        mb_span key = w->keys[i].key;
        bool again = i + 1 < count && w->keys[i + 1].key.nbytes == key.nbytes &&
                     memcmp(w->base + w->keys[i + 1].key.offset, w->base + key.offset, (size_t)key.nbytes) == 0;
        if (!again) w->keys[left++] = w->keys[i];
    }
    return left;
}

/* Room for one key more; without it the caller begins again with twice as many. */
static inline bool mb_write_has_room(mb_writer *w, uint64_t count) {
    return count < w->key_capacity || mb_write_fail(w, MB_FULL, 0, 0, 0, "keys of a map");
}

/* [NAME = value, ...] of a map<string, Value>, after `before`; nothing if it is empty. */
static inline bool mb_write_attributes(mb_writer *w, mb_span span, uint32_t number, const char *before, const char *after) {
    mb_cursor message = mb_write_cursor(w, span);
    uint64_t count = 0;
    while (message.at < message.end) {
        mb_wire wire;
        mb_span member[8];
        if (mb_read_field(&message, &wire, w->error)) return false;
        if (wire.number != number) continue;
        if (mb_expect_wire(&message, &wire, MB_WIRE_BYTES, "attribute", w->error)) return false;
        mb_span entry = {(uint64_t)(wire.data - w->base), wire.nbytes};
        if (!mb_write_members(w, entry, 1u << 1 | 1u << 2, member, "attribute") || !mb_write_has_room(w, count)) return false;
        if (member[2].offset == 0) return mb_write_refuse(w, entry.offset, "an attribute without a value");
        w->keys[count].key = member[1];
        w->keys[count++].value = member[2];
    }
    if (count == 0) return true;
    count = mb_write_sort(w, count);
    mb_print_text(&w->print, before);
    for (uint64_t i = 0; i < count; i++) {
        mb_print_text(&w->print, i == 0 ? "[" : ", ");
        if (!mb_write_name(w, w->keys[i].key, "the name of an attribute")) return false;
        mb_print_text(&w->print, " = ");
        if (!mb_write_value(w, w->keys[i].value)) return false;
    }
    mb_print_text(&w->print, "]");
    mb_print_text(&w->print, after);
    return true;
}

static inline bool mb_write_binding(mb_writer *w, const mb_graph_binding *binding) {
    const uint8_t *src = w->base + binding->span.offset;
    uint64_t nbytes = binding->span.nbytes;
    if (binding->is_value) return mb_write_value(w, binding->span);
    if ((nbytes == 4 && memcmp(src, "true", 4) == 0) || (nbytes == 5 && memcmp(src, "false", 5) == 0))
        return mb_write_refuse(w, binding->span.offset, "an argument that reads something called true or false");
    return mb_write_name(w, binding->span, "the name that an argument reads");
}

/* (NAME = binding, NAME = (binding, ...), ...) */
static inline bool mb_write_arguments(mb_writer *w, const mb_graph_operation *operation) {
    const mb_graph *graph = w->graph;
    uint64_t count = 0;
    for (uint32_t i = 0; i < operation->argument_count; i++) {
        if (!mb_write_has_room(w, count)) return false;
        w->keys[count].key = graph->arguments[operation->arguments + i].key;
        w->keys[count++].value.offset = operation->arguments + i;
    }
    count = mb_write_sort(w, count);
    mb_print_text(&w->print, "(");
    for (uint64_t i = 0; i < count; i++) {
        const mb_graph_argument *argument = &graph->arguments[w->keys[i].value.offset];
        if (i > 0) mb_print_text(&w->print, ", ");
        if (!mb_write_name(w, argument->key, "the name of an argument")) return false;
        mb_print_text(&w->print, argument->binding_count == 1 ? " = " : " = (");
        for (uint32_t k = 0; k < argument->binding_count; k++) {
            if (k > 0) mb_print_text(&w->print, ", ");
            if (!mb_write_binding(w, &graph->bindings[argument->bindings + k])) return false;
        }
        if (argument->binding_count != 1) mb_print_text(&w->print, ")");
    }
    mb_print_text(&w->print, ")");
    return true;
}

/* type NAME, type NAME, ... */
static inline bool mb_write_variables(mb_writer *w, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; i++) {
        const mb_graph_name *name = &w->graph->names[i];
        if (i > first) mb_print_text(&w->print, ", ");
        if (name->type.offset == 0) return mb_write_refuse(w, name->name.offset, "an input or output without a type");
        if (!mb_write_type(w, name->type)) return false;
        mb_print_text(&w->print, " ");
        if (!mb_write_name(w, name->name, "the name of an input or output")) return false;
    }
    return true;
}

static inline void mb_write_indent(mb_writer *w, uint64_t count) {
    for (; count > 0; count--) mb_print_text(&w->print, " ");
}

static inline bool mb_write_block(mb_writer *w, uint32_t row, uint64_t indent);

/* One statement, its nested blocks included, without the blanks before it. */
static inline bool mb_write_statement(mb_writer *w, uint32_t row, uint64_t indent) {
    const mb_graph_operation *operation = &w->graph->operations[row];
    w->operation = row;
    if (!mb_write_variables(w, operation->outputs, operation->output_count)) return false;
    if (operation->output_count > 0) mb_print_text(&w->print, " = ");
    if (!mb_write_name(w, operation->type, "the type of an operation") || !mb_write_arguments(w, operation) ||
        !mb_write_attributes(w, operation->message, 5, "", ""))
        return false;
    for (uint32_t i = 0, block = operation->blocks; i < operation->block_count; i++, block = w->graph->blocks[block].end) {
        const mb_graph_block *inner = &w->graph->blocks[block];
        mb_print_text(&w->print, " ");
        if (inner->input_count > 0) {
            mb_print_text(&w->print, "(");
            if (!mb_write_variables(w, inner->inputs, inner->input_count)) return false;
            mb_print_text(&w->print, ") ");
        }
        if (!mb_write_block(w, block, indent + 8)) return false;
        w->operation = row;
    }
    mb_print_text(&w->print, ";\n");
    return !w->print.stopped || mb_write_fail(w, MB_FULL, 0, 0, 0, "room for the text");
}

/* { statements } -> (names), the statements `indent` blanks from the left. */
static inline bool mb_write_block(mb_writer *w, uint32_t row, uint64_t indent) {
    const mb_graph_block *block = &w->graph->blocks[row];
    mb_cursor message = mb_write_cursor(w, block->message);
    if (!mb_write_deeper(w, block->message.offset, "blocks")) return false;
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, w->error)) return false;
        if (wire.number == 4) return mb_write_refuse(w, (uint64_t)(wire.tag - w->base), "attributes of a block");
    }
    mb_print_text(&w->print, "{\n");
    for (uint32_t i = block->operations; i < block->operation_end; i = w->graph->operations[i].end) {
        mb_write_indent(w, indent);
        if (!mb_write_statement(w, i, indent)) return false;
    }
    mb_write_indent(w, indent - 4);
    mb_print_text(&w->print, "} -> (");
    for (uint32_t i = block->outputs; i < block->outputs + block->output_count; i++) {
        if (i > block->outputs) mb_print_text(&w->print, ", ");
        if (!mb_write_name(w, w->graph->names[i].name, "the name that a block returns")) return false;
    }
    mb_print_text(&w->print, ")");
    w->depth--;
    return true;
}

static inline bool mb_write_function(mb_writer *w, uint32_t row) {
    const mb_graph_function *function = &w->graph->functions[row];
    w->operation = MB_NONE;
    if (function->blocks == function->block_end || w->graph->blocks[function->blocks].end != function->block_end)
        return mb_write_refuse(w, function->message.offset, "a function with no block, or with blocks for several opsets");
    const mb_graph_block *block = &w->graph->blocks[function->blocks];
    if (block->name.nbytes != function->opset.nbytes || memcmp(w->base + block->name.offset, w->base + function->opset.offset, (size_t)block->name.nbytes) != 0)
        return mb_write_refuse(w, function->message.offset, "a function whose block is for another opset");
    if (block->input_count > 0) return mb_write_refuse(w, block->message.offset, "inputs of a function's block");
    mb_print_text(&w->print, "    func ");
    if (!mb_write_name(w, function->name, "the name of a function")) return false;
    mb_print_text(&w->print, "<");
    if (!mb_write_opset(w, function->opset)) return false;
    mb_print_text(&w->print, ">(");
    if (!mb_write_variables(w, function->inputs, function->input_count)) return false;
    mb_print_text(&w->print, ") ");
    if (!mb_write_attributes(w, function->message, 4, "", " ") || !mb_write_block(w, function->blocks, MB_WRITE_INDENT)) return false;
    mb_print_text(&w->print, ";\n");
    return true;
}

/* program(1.3), the attributes of the Program and the brace; `minor` is the number after the point. */
static inline bool mb_write_head(mb_writer *w, mb_span program, uint64_t minor) {
    mb_cursor message = mb_write_cursor(w, program);
    uint64_t version = w->graph->scan.version;
    w->operation = MB_NONE;
    while (message.at < message.end) {
        mb_wire wire;
        if (mb_read_field(&message, &wire, w->error)) return false;
        if (wire.number == 3 && wire.nbytes > 0) return mb_write_refuse(w, (uint64_t)(wire.tag - w->base), "a docString");
    }
    if (version > INT64_MAX) return mb_write_refuse(w, program.offset, "a version below 0");
    mb_print_text(&w->print, "program(");
    mb_print_count(&w->print, version);
    mb_print_text(&w->print, ".");
    mb_print_count(&w->print, minor);
    mb_print_text(&w->print, ")\n");
    if (!mb_write_attributes(w, program, 4, "", "\n")) return false;
    mb_print_text(&w->print, "{\n");
    return true;
}

/* The part that is written in one step: the steps in this order are the whole text, but for the last brace, "}". */
typedef enum mb_write_step { MB_WRITE_HEADER, MB_WRITE_FUNCTION, MB_WRITE_STATEMENT } mb_write_step;

/* Write the head of the text, one function, or one statement alone.
 * in   w: graph, base, error, print, keys and options set, the rest zero; graph: made with MB_SCAN_KNOWN; program: the
 *      message; row: of the function or operation
 * out  characters, through w->print; the caller flushes the rest at the end
 * fails: MB_TEXTLESS, MB_SPLIT; MB_FULL: more keys than there is room for, or flush refused (print.stopped); as reading
 *      the wire; MB_RANGE, MB_COUNT, MB_RANK, MB_DTYPE, MB_DEPTH, MB_UTF8
 * over-reads: none     cost: linear in Program and text, but for sorting keys; the C stack as deep as blocks and types */
#ifdef MB_TEXT_ELSEWHERE
mb_status mb_text_write(mb_writer *w, mb_write_step step, mb_span program, uint32_t row, uint64_t minor);
#else
#ifndef MB_TEXT_HERE
static inline
#endif
mb_status mb_text_write(mb_writer *w, mb_write_step step, mb_span program, uint32_t row, uint64_t minor) {
    bool good;
    w->depth = 0;
    if (step == MB_WRITE_HEADER) good = mb_write_head(w, program, minor);
    else if (step == MB_WRITE_FUNCTION) good = mb_write_function(w, row);
    else good = mb_write_statement(w, row, MB_WRITE_INDENT);
    return good ? MB_OK : w->error->status;
}
#endif

#endif
