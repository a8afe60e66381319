/* walk_mlir.c: reads each file as MLIR bytecode; see replay.h for the command line. */
#include "milblob/mlir/operations.h"
#include "replay.h"

static void check_span(uint64_t offset, uint64_t size, uint64_t nbytes, const char *what) {
    require(offset <= nbytes && size <= nbytes - offset, what);
}

static void check_tables(const mb_mlir_tables *t, uint64_t nbytes) {
    for (uint32_t i = 0; i < t->string_count; i++) check_span(t->strings[i].offset, t->strings[i].nbytes, nbytes, "a string inside the file");
    for (uint32_t i = 0; i < t->dialect_count; i++) {
        require(t->dialects[i].name < t->string_count, "a name of a dialect");
        check_span(t->dialects[i].version.offset, t->dialects[i].version.nbytes, nbytes, "a version inside the file");
    }
    for (uint32_t i = 0; i < t->op_name_count; i++) require(t->op_names[i].name < t->string_count && t->op_names[i].dialect < t->dialect_count, "a name of an operation");
    for (uint32_t i = 0; i < t->attribute_count; i++) check_span(t->attributes[i].offset, t->attributes[i].nbytes, nbytes, "an attribute inside the file");
    for (uint32_t i = 0; i < t->type_count; i++) check_span(t->types[i].offset, t->types[i].nbytes, nbytes, "a type inside the file");
    for (uint32_t i = 0; i < t->resource_count; i++) {
        const mb_mlir_resource *row = &t->resources[i];
        require(row->key < t->string_count && row->kind <= 2, "a key and a kind");
        check_span(row->offset, row->encoded_nbytes, nbytes, "a resource inside the file");
        check_span(row->data_offset, row->nbytes, nbytes, "its bytes inside the file");
        require(row->kind || row->data_offset % row->alignment == 0, "aligned bytes");
    }
    for (uint32_t i = 0; i < t->property_count; i++) check_span(t->properties[i].offset, t->properties[i].nbytes, nbytes, "properties inside the file");
}

static void check_ir(const mb_mlir_ir *ir, const mb_mlir_tables *t, uint64_t nbytes) {
    uint32_t uses = 0;
    for (uint32_t i = 0; i < ir->op_count; i++) {
        const mb_mlir_op *op = &ir->ops[i];
        require(op->offset < nbytes && op->name < t->op_name_count && op->location < t->attribute_count, "an operation");
        require(op->parent == MB_MLIR_NONE ? op->depth == 0 : op->parent < i && op->depth == ir->ops[op->parent].depth + 1, "its place");
        require(op->properties == MB_MLIR_NONE || op->properties < t->property_count, "its properties");
        require((op->properties == MB_MLIR_NONE) == (op->properties_at == 0), "where they are");
        require(op->first_result <= ir->value_count && op->result_count <= ir->value_count - op->first_result, "its results");
        require(op->first_operand <= ir->operand_count && op->operand_count <= ir->operand_count - op->first_operand, "its operands");
        require(op->section < ir->section_count, "its section");
    }
    for (uint32_t i = 0; i < ir->value_count; i++) {
        const mb_mlir_value *value = &ir->values[i];
        require(value->type < t->type_count && (value->op < ir->op_count || (value->is_argument && value->op == MB_MLIR_NONE)), "a value");
        uint32_t last = 0;
        for (uint32_t use = value->first_use, first = 1; use != MB_MLIR_NONE; use = ir->operands[use].next_use, first = 0) {
            require(use < ir->operand_count && ir->operands[use].value == i && (first || use > last), "its uses, in order");
            last = use;
            uses++;
        }
    }
    require(uses == ir->operand_count, "a use for each operand");
    for (uint32_t i = 0; i < ir->section_count; i++) {
        check_span(ir->sections[i].data_offset, ir->sections[i].nbytes, nbytes, "a section inside the file");
        require(i == 0 ? ir->owners[i] == MB_MLIR_NONE : ir->owners[i] < i, "a section around it");
    }
}

static void check(const uint8_t *data, uint64_t nbytes) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_mlir_section sections[MB_MLIR_IDS];
    uint8_t order[MB_MLIR_IDS];
    uint32_t count = 0;
    mb_mlir_span producer = {0, 0};
    mb_mlir_tables t;
    mb_mlir_ir ir;
    memset(&t, 0, sizeof t);
    memset(&ir, 0, sizeof ir);
    if (mb_mlir_sections(data, nbytes, sections, order, &count, &producer, &error)) {
        require(error.detail != NULL && error.offset <= nbytes, "an error with its place");
        return;
    }
    check_span(producer.offset, producer.nbytes, nbytes, "a producer inside the file");
    if (mb_mlir_read_tables(data, sections, &t, false, &error) || mb_mlir_read_ir(data, &sections[MB_MLIR_IR], &t, &ir, false, &error)) {
        require(error.detail != NULL && error.offset <= nbytes, "an error with its place");
        return;
    }
    require(t.string_count <= nbytes && t.attribute_count <= nbytes && ir.op_count <= nbytes / 3 && ir.value_count <= nbytes && ir.operand_count <= nbytes, "no more rows than bytes");
    t.strings = (mb_mlir_span *)exactly(t.string_count * sizeof *t.strings);
    t.dialects = (mb_mlir_dialect *)exactly(t.dialect_count * sizeof *t.dialects);
    t.op_names = (mb_mlir_op_name *)exactly(t.op_name_count * sizeof *t.op_names);
    t.attributes = (mb_mlir_entry *)exactly(t.attribute_count * sizeof *t.attributes);
    t.types = (mb_mlir_entry *)exactly(t.type_count * sizeof *t.types);
    t.resources = (mb_mlir_resource *)exactly(t.resource_count * sizeof *t.resources);
    t.properties = (mb_mlir_span *)exactly(t.property_count * sizeof *t.properties);
    ir.ops = (mb_mlir_op *)exactly(ir.op_count * sizeof *ir.ops);
    ir.values = (mb_mlir_value *)exactly(ir.value_count * sizeof *ir.values);
    ir.operands = (mb_mlir_operand *)exactly(ir.operand_count * sizeof *ir.operands);
    ir.sections = (mb_mlir_section *)exactly(ir.section_count * sizeof *ir.sections);
    ir.owners = (uint32_t *)exactly(ir.section_count * sizeof *ir.owners);
    if (mb_mlir_read_tables(data, sections, &t, true, &error)) { /* counted only, such as the lengths of strings */
        require(error.detail != NULL && error.offset <= nbytes && error.status != MB_CHANGED, "an error with its place");
    } else {
        require(mb_mlir_read_ir(data, &sections[MB_MLIR_IR], &t, &ir, true, &error) == MB_OK, "the same operations again");
        check_tables(&t, nbytes);
        check_ir(&ir, &t, nbytes);
    }
    free(t.strings), free(t.dialects), free(t.op_names), free(t.attributes), free(t.types), free(t.resources), free(t.properties);
    free(ir.ops), free(ir.values), free(ir.operands), free(ir.sections), free(ir.owners);
}
