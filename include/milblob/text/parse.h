/* text/parse.h: parses MIL text (the model.mil of a compiled model) to the bytes of a Program message, in one pass.
 *
 * docs/mil-text.md describes the language, which files showed what, and what is refused. The parser is a recursive
 * descent over bytes; it builds no tree. Where the order of the text differs from the message's (attributes before
 * functions, results before operations), it is written as it comes and exchanged by mb_emit_swap(). */
#ifndef MILBLOB_TEXT_H
#define MILBLOB_TEXT_H

#include "milblob/text/value.h"

/* A program of several units need not compile what parses and writes text in each: one unit defines MB_TEXT_HERE, the
 * others MB_TEXT_ELSEWHERE. */

enum {
    /* One text may expand to at most 64 times its size and a little: elements of lists carry their types, so a long
     * type and many empty elements would otherwise give the product of their sizes. Real files remain below 1;
     * `list<int32, ?>([1, 2, ...])` without spaces gives 9. */
    MB_TEXT_MAX_UNFOLD = 64
};

/* Names of operator sets: those that Apple's compiler writes, with the names in the Program it read (coremltools,
 * _OPSET). */
static inline bool mb_text_opset(mb_text *text, mb_text_span *out, const uint8_t **name, uint64_t *nbytes) {
    static const char *const opsets[][2] = {{"ios13", "CoreML3"}, {"ios14", "CoreML4"}, {"ios15", "CoreML5"},
                                            {"ios16", "CoreML6"}, {"ios17", "CoreML7"}, {"ios18", "CoreML8"},
                                            {"ios26", "CoreML9"}};
    if (!mb_text_identifier(text, out, "an operator set")) return false;
    *name = text->text + out->start;
    *nbytes = out->nbytes;
    for (size_t i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++) {
        if (!mb_text_is(text, *out, opsets[i][0])) continue;
        *name = (const uint8_t *)opsets[i][1];
        *nbytes = strlen(opsets[i][1]);
    }
    return true;
}

/* NAME as the bytes of field. */
static inline bool mb_text_name(mb_text *text, uint32_t field, const char *detail) {
    mb_text_span name;
    if (!mb_text_identifier(text, &name, detail)) return false;
    mb_emit_bytes(&text->emit, field, text->text + name.start, name.nbytes);
    return true;
}

/* type NAME as a NamedValueType{1 name, 2 type} in field. */
static inline bool mb_text_named_type(mb_text *text, uint32_t field) {
    mb_emit *emit = &text->emit;
    uint64_t named = mb_emit_begin(emit, field);
    if (!mb_text_inner_type(text, 2)) return false;
    uint64_t name = emit->at;
    if (!mb_text_name(text, 1, "a name")) return false;
    mb_emit_swap(emit, named, name);
    mb_emit_end(emit, named);
    return true;
}

/* After "(": [type NAME {, type NAME}] ")" */
static inline bool mb_text_parameters(mb_text *text, uint32_t field) {
    if (mb_text_try(text, ')')) return true;
    do {
        if (!mb_text_named_type(text, field)) return false;
    } while (mb_text_try(text, ','));
    return mb_text_take(text, ')', ", or )");
}

/* After "[": NAME = value {, NAME = value} "]" as entries of a map<string, Value>. */
static inline bool mb_text_attributes(mb_text *text, uint32_t field) {
    do {
        uint64_t entry = mb_emit_begin(&text->emit, field);
        if (!mb_text_name(text, 1, "the name of an attribute") || !mb_text_take(text, '=', "=") ||
            !mb_text_value(text, 2))
            return false;
        mb_emit_end(&text->emit, entry);
    } while (mb_text_try(text, ','));
    return mb_text_take(text, ']', ", or ]");
}

/* NAME or value as one Binding{1 name, 2 value} of an Argument. */
static inline bool mb_text_binding(mb_text *text) {
    mb_text_span name;
    if (!mb_text_identifier(text, &name, "a name or a value")) return false;
    int next = mb_text_peek(text);
    if (next != '(' && next != '<' && (mb_text_is(text, name, "true") || mb_text_is(text, name, "false"))) {
        text->at = name.start; /* seen in one hand-written file; it would become a reference to nothing */
        return mb_text_want(text, "a name, or a value with its type");
    }
    uint64_t binding = mb_emit_begin(&text->emit, 1);
    if (next == '(' || next == '<') {
        text->at = name.start;
        if (!mb_text_value(text, 2)) return false;
    } else {
        mb_emit_bytes(&text->emit, 1, text->text + name.start, name.nbytes);
    }
    mb_emit_end(&text->emit, binding);
    return mb_text_room(text);
}

/* After "(": [NAME = binding | NAME = (bindings) {, ...}] ")" as entries of Operation.inputs. */
static inline bool mb_text_arguments(mb_text *text) {
    mb_emit *emit = &text->emit;
    if (mb_text_try(text, ')')) return true;
    do {
        uint64_t entry = mb_emit_begin(emit, 2);
        if (!mb_text_name(text, 1, "the name of an argument") || !mb_text_take(text, '=', "=")) return false;
        uint64_t argument = mb_emit_begin(emit, 2);
        if (!mb_text_try(text, '(')) {
            if (!mb_text_binding(text)) return false;
        } else if (!mb_text_try(text, ')')) {
            do {
                if (!mb_text_binding(text)) return false;
            } while (mb_text_try(text, ','));
            if (!mb_text_take(text, ')', ", or )")) return false;
        }
        mb_emit_end(emit, argument);
        mb_emit_end(emit, entry);
    } while (mb_text_try(text, ','));
    return mb_text_take(text, ')', ", or )");
}

static inline bool mb_text_statement(mb_text *text);

/* "{" statements "}" -> (names) as fields 2 and 3 of a Block that the caller has opened. */
static inline bool mb_text_block(mb_text *text) {
    mb_emit *emit = &text->emit;
    uint64_t operations = emit->at;
    if (!mb_text_take(text, '{', "{") || !mb_text_deeper(text, "blocks")) return false;
    while (!mb_text_try(text, '}'))
        if (!mb_text_statement(text)) return false;
    uint64_t outputs = emit->at;
    if (!mb_text_arrow(text) || !mb_text_take(text, '(', "(")) return false;
    if (!mb_text_try(text, ')')) {
        do {
            if (!mb_text_name(text, 2, "the name of an output")) return false;
        } while (mb_text_try(text, ','));
        if (!mb_text_take(text, ')', ", or )")) return false;
    }
    mb_emit_swap(emit, operations, outputs);
    text->depth--;
    return mb_text_room(text);
}

/* The blocks of an operation: { [NAME] ["(" parameters ")"] block [","] }, as far as they go. */
static inline bool mb_text_nested_blocks(mb_text *text) {
    mb_text_span name;
    while (mb_text_peek(text) != ';') {
        uint64_t block = mb_emit_begin(&text->emit, 4);
        if (mb_is_letter(mb_text_peek(text)) && !mb_text_identifier(text, &name, "a block")) return false;
        if (mb_text_try(text, '(') && !mb_text_parameters(text, 1)) return false;
        if (!mb_text_block(text)) return false;
        mb_emit_end(&text->emit, block);
        if (mb_text_try(text, ',') && mb_text_peek(text) == ';') return mb_text_want(text, "a block");
    }
    return true;
}

/* [type NAME {, type NAME} =] OPERATION (arguments) [attributes] [blocks] ; as one Operation of a Block. */
static inline bool mb_text_statement(mb_text *text) {
    mb_emit *emit = &text->emit;
    mb_text_span name;
    uint64_t operation = mb_emit_begin(emit, 3), outputs_end = operation;
    if (!mb_text_identifier(text, &name, "a statement or }")) return false;
    const uint64_t row = text->statement_count++, start = name.start;
    if (mb_text_peek(text) != '(') { /* there are results: the identifier begins a type */
        text->at = name.start;
        do {
            if (!mb_text_named_type(text, 3)) return false;
        } while (mb_text_try(text, ','));
        if (!mb_text_take(text, '=', ", or =") || !mb_text_identifier(text, &name, "an operation")) return false;
        outputs_end = emit->at;
    }
    mb_emit_bytes(emit, 1, text->text + name.start, name.nbytes);
    if (!mb_text_take(text, '(', "(") || !mb_text_arguments(text)) return false;
    mb_emit_swap(emit, operation, outputs_end); /* type and inputs go before the outputs */
    uint64_t attributes = emit->at;
    if (mb_text_try(text, '[') && !mb_text_attributes(text, 5)) return false;
    if (mb_text_peek(text) != ';') {
        uint64_t blocks = emit->at;
        int next = mb_text_peek(text);
        if (next != '{' && next != '(' && !mb_is_letter(next)) return mb_text_want(text, "; or a block");
        if (!mb_text_nested_blocks(text)) return false;
        mb_emit_swap(emit, attributes, blocks);
    }
    mb_emit_end(emit, operation);
    if (!mb_text_take(text, ';', ";")) return false;
    if (row < text->statement_capacity) {
        text->statements[row].start = start;
        text->statements[row].nbytes = text->at - start;
    }
    return mb_text_room(text);
}

/* func NAME<OPSET>(parameters) [attributes] block ; as one entry of Program.functions. */
static inline bool mb_text_function(mb_text *text) {
    mb_emit *emit = &text->emit;
    mb_text_span span;
    const uint8_t *opset;
    uint64_t opset_nbytes, entry = mb_emit_begin(emit, 2);
    if (!mb_text_word(text, "func") || !mb_text_name(text, 1, "the name of a function")) return false;
    uint64_t function = mb_emit_begin(emit, 2);
    if (!mb_text_take(text, '<', "<") || !mb_text_opset(text, &span, &opset, &opset_nbytes) ||
        !mb_text_take(text, '>', ">") || !mb_text_take(text, '(', "(") || !mb_text_parameters(text, 1))
        return false;
    mb_emit_bytes(emit, 2, opset, opset_nbytes);
    uint64_t attributes = emit->at;
    if (mb_text_try(text, '[') && !mb_text_attributes(text, 4)) return false;
    uint64_t specialization = emit->at, mark = mb_emit_begin(emit, 3);
    mb_emit_bytes(emit, 1, opset, opset_nbytes);
    uint64_t block = mb_emit_begin(emit, 2);
    if (!mb_text_block(text) || !mb_text_take(text, ';', ";")) return false;
    mb_emit_end(emit, block);
    mb_emit_end(emit, mark);
    mb_emit_swap(emit, attributes, specialization);
    mb_emit_end(emit, function);
    mb_emit_end(emit, entry);
    return mb_text_room(text);
}

/* program(MAJOR.MINOR) [attributes] "{" functions "}" */
static inline bool mb_text_program(mb_text *text) {
    mb_emit *emit = &text->emit;
    uint64_t version, minor;
    if (!mb_text_word(text, "program") || !mb_text_take(text, '(', "(") ||
        !mb_text_count(text, INT64_MAX, &version, "a version"))
        return false;
    if (mb_text_try(text, '.') && !mb_text_count(text, INT64_MAX, &minor, "a version")) return false;
    if (!mb_text_take(text, ')', ")")) return false;
    if (version != 0) mb_emit_field(emit, 1, version);
    uint64_t attributes = emit->at;
    if (mb_text_try(text, '[') && !mb_text_attributes(text, 4)) return false;
    uint64_t functions = emit->at;
    if (!mb_text_take(text, '{', "{")) return false;
    while (!mb_text_try(text, '}'))
        if (!mb_text_function(text)) return false;
    mb_emit_swap(emit, attributes, functions);
    return mb_text_peek(text) == MB_TEXT_END ? mb_text_room(text) : mb_text_want(text, "the end of the text");
}

/* Translate the text of a Program into its protobuf bytes, fields in ascending order, prefixes minimal.
 * in   text: nbytes bytes, no NUL at the end needed; out: capacity bytes, not overlapping text; capacity nbytes + 4096
 *      is enough for every file seen; statements: room for statement_capacity spans, NULL for none
 * out  *out_nbytes: bytes written; for MB_FULL the capacity to call again with (at most 64 * nbytes + 4096)
 *      statements: where each stands in the text, its semicolon included, in the order of the rows of operations that
 *      graph.h makes of the message; *statement_count: how many there are, which may be more than there was room for
 * over-reads: none     fails: MB_FULL, MB_SYNTAX, MB_UTF8, MB_RANGE, MB_COUNT, MB_RANK, MB_TYPE, MB_OVERFLOW, MB_DEPTH,
 *      with error->offset in the text; out then holds nothing of use. Keys that occur twice in a map are kept
 * lifetime: keeps nothing; allocates nothing; about 20 kB of stack
 * spec: docs/mil-text.md                                                                                             */
#ifdef MB_TEXT_ELSEWHERE
mb_status mb_text_to_statements(const uint8_t *text, uint64_t nbytes, uint8_t *out, uint64_t capacity,
                                uint64_t *out_nbytes, mb_text_span *statements, uint64_t statement_capacity,
                                uint64_t *statement_count, mb_error *error);
#else
#ifndef MB_TEXT_HERE
static inline
#endif
mb_status mb_text_to_statements(const uint8_t *text, uint64_t nbytes, uint8_t *out, uint64_t capacity,
                                uint64_t *out_nbytes, mb_text_span *statements, uint64_t statement_capacity,
                                uint64_t *statement_count, mb_error *error) {
    mb_text parser;
    uint64_t most;
    if (!mb_mul(nbytes, MB_TEXT_MAX_UNFOLD, &most) || !mb_add(most, 4096, &most)) most = UINT64_MAX;
    parser.text = text;
    parser.nbytes = nbytes;
    parser.at = 0;
    parser.depth = 0;
    parser.error = error;
    parser.emit.out = out;
    parser.emit.capacity = capacity < most ? capacity : most;
    parser.emit.at = 0;
    parser.emit.full = false;
    parser.statements = statements;
    parser.statement_capacity = statement_capacity;
    parser.statement_count = 0;
    *out_nbytes = *statement_count = 0;
    mb_fail(error, MB_OK, 0, 0, 0, NULL);
    if (mb_text_program(&parser)) {
        *out_nbytes = parser.emit.at;
        *statement_count = parser.statement_count;
        return MB_OK;
    }
    if (error->status != MB_FULL) return error->status;
    if (capacity >= most) return mb_fail(error, MB_COUNT, error->offset, most, most + 1, "bytes of output");
    uint64_t next = capacity < nbytes ? nbytes : capacity;
    *out_nbytes = next > most / 2 ? most : next * 2 + 64;
    if (*out_nbytes > most) *out_nbytes = most;
    return MB_FULL;
}
#endif

/* As mb_text_to_statements, without the statements. */
static inline mb_status mb_text_to_program(const uint8_t *text, uint64_t nbytes, uint8_t *out, uint64_t capacity,
                                           uint64_t *out_nbytes, mb_error *error) {
    uint64_t statement_count;
    return mb_text_to_statements(text, nbytes, out, capacity, out_nbytes, NULL, 0, &statement_count, error);
}

#endif
