/* mlir/operations.h: the operations of MLIR bytecode in one walk: their operands and results, and the readers of these.
 *
 *   IR section   a block: the operations at the top
 *   block        operations << 1 | 1 if it has arguments; [n, n times type << 1 | 1 if a location follows, [location];
 *                u8: 1 if orders of uses follow]; the operations
 *   operation    name, mask u8, location, [attributes], [properties], [n, types of results], [n, operands],
 *                [n, successors], [orders of uses], [regions << 1 | 1 if isolated; if so, an IR section of its own; regions]
 *   region       blocks; if there are any: values, the blocks
 *
 * A region states how many values its blocks define, and they are numbered on from those around it; an isolated one
 * begins at 0. So an operand is a number in its scope, and may be one that is defined later. Regions nest: the walk
 * keeps them
 * in MB_MAX_DEPTH frames and does not recurse. Every operation, block, region, result and operand takes a byte of the file
 * or more, which bounds all counts. */
#ifndef MILBLOB_MLIR_OPERATIONS_H
#define MILBLOB_MLIR_OPERATIONS_H

#include "milblob/mlir/tables.h"

enum mb_mlir_mask {
    MB_MLIR_ATTRIBUTES = 1,
    MB_MLIR_RESULTS = 2,
    MB_MLIR_OPERANDS = 4,
    MB_MLIR_SUCCESSORS = 8,
    MB_MLIR_REGIONS = 16,
    MB_MLIR_ORDERS = 32,
    MB_MLIR_HAS_PROPERTIES = 64
};

typedef struct mb_mlir_op {
    uint64_t offset;            /* in the file: of its name */
    uint32_t properties_at;     /* from `offset`: of the number of its properties; 0: it has none */
    uint32_t type_at;           /* from `offset`: of the type of its first result; 0: it has none */
    uint32_t name;              /* row of the names */
    uint32_t parent, depth;     /* operation around it, MB_MLIR_NONE at the top; depth 0 there */
    uint32_t location, attributes, properties; /* rows; MB_MLIR_NONE: it has none */
    uint32_t first_result, result_count;       /* values */
    uint32_t first_operand, operand_count;     /* operands */
    uint32_t section;           /* the IR section around it: row of the sections */
} mb_mlir_op;

typedef struct mb_mlir_value {
    uint32_t type;
    uint32_t op;                /* that makes it; of an argument of a block, the one around that */
    uint32_t number;            /* among its results, or among the arguments */
    uint32_t is_argument;
    uint32_t first_use;         /* operand; MB_MLIR_NONE: nothing reads it */
} mb_mlir_value;

typedef struct mb_mlir_operand {
    uint32_t value, op;
    uint32_t next_use;          /* the next operand with this value; MB_MLIR_NONE: the last one */
} mb_mlir_operand;

typedef struct mb_mlir_ir {
    uint32_t op_count, value_count, operand_count, section_count;
    mb_mlir_op *ops;            /* parents before children, in the order of the file */
    mb_mlir_value *values;
    mb_mlir_operand *operands;
    mb_mlir_section *sections;  /* IR sections: that of the file, then those of isolated regions, `owners` around them */
    uint32_t *owners;           /* the section around each; MB_MLIR_NONE of the first */
} mb_mlir_ir;

/* The regions of one operation that are not read to their end. */
typedef struct mb_mlir_frame {
    const uint8_t *end;         /* of the section that the regions lie in */
    uint64_t regions, blocks, ops; /* left: regions to begin, blocks of this region, operations of this block */
    uint32_t op, section;
    uint32_t first_value, value_count, defined; /* of this region */
    uint32_t floor;             /* first frame of the scope */
    bool is_open;               /* a region is being read */
    bool has_section;           /* of its own, which ends with it */
} mb_mlir_frame;

typedef struct mb_mlir_walk {
    const uint8_t *file;
    const mb_mlir_tables *tables;
    mb_mlir_ir *ir;
    mb_mlir_ir counted;         /* while rows are written: how many there are */
    bool is_filling;
    uint32_t depth;             /* frames in use */
    mb_mlir_frame frames[MB_MAX_DEPTH];
    mb_error *error;
} mb_mlir_walk;

static inline mb_status mb_mlir_define(mb_mlir_walk *walk, mb_mlir_frame *frame, uint64_t offset, uint32_t type, uint32_t op, uint32_t number, bool is_argument) {
    if (frame->defined == frame->value_count) return mb_fail(walk->error, MB_COUNT, offset, frame->value_count, (uint64_t)frame->defined + 1, "values of region");
    uint32_t row = frame->first_value + frame->defined++;
    mb_mlir_value value = {type, op, number, is_argument, MB_MLIR_NONE};
    if (walk->is_filling) walk->ir->values[row] = value; /* mb_mlir_read_ir refuses too few at the region's end */
    return MB_OK;
}

/* Orders of uses are about the order of uses in the writer's memory: nothing here needs them. */
static inline mb_status mb_mlir_skip_orders(mb_mlir_walk *walk, mb_cursor *cursor, uint64_t values) {
    uint64_t count = 1, number = 0;
    if (values > 1 && mb_mlir_varint(cursor, &count, "orders of uses", walk->error)) return walk->error->status;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t uses = 0;
        if (values > 1 && mb_mlir_varint(cursor, &number, "orders of uses", walk->error)) return walk->error->status;
        if (mb_mlir_varint(cursor, &uses, "orders of uses", walk->error)) return walk->error->status;
        for (uses >>= 1; uses > 0; uses--)
            if (mb_mlir_varint(cursor, &number, "orders of uses", walk->error)) return walk->error->status;
    }
    return MB_OK;
}

/* Begin a block: read how many operations it has, and its arguments. */
static inline mb_status mb_mlir_begin_block(mb_mlir_walk *walk, mb_cursor *cursor, mb_mlir_frame *frame) {
    uint64_t head = 0;
    if (mb_mlir_varint(cursor, &head, "block", walk->error)) return walk->error->status;
    frame->ops = head >> 1;
    if (!(head & 1)) return MB_OK;
    uint32_t count = 0, row = 0;
    uint8_t has_orders = 0;
    if (mb_mlir_count(cursor, &count, "arguments of block", walk->error)) return walk->error->status;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t offset = mb_offset(cursor);
        if (mb_mlir_index(cursor, (uint64_t)walk->tables->type_count << 1, &row, "type of argument", walk->error)) return walk->error->status;
        uint32_t type = row >> 1;
        if ((row & 1) && mb_mlir_index(cursor, walk->tables->attribute_count, &row, "location of argument", walk->error)) return walk->error->status;
        if (mb_mlir_define(walk, frame, offset, type, frame->op, i, true)) return walk->error->status;
    }
    if (mb_mlir_byte(cursor, &has_orders, "orders of uses", walk->error)) return walk->error->status;
    return has_orders ? mb_mlir_skip_orders(walk, cursor, count) : MB_OK;
}

/* Begin the next region of a frame: its values are numbered on. */
static inline mb_status mb_mlir_begin_region(mb_mlir_walk *walk, mb_cursor *cursor, mb_mlir_frame *frame) {
    uint64_t blocks = 0;
    uint32_t values = 0;
    frame->regions--;
    if (mb_mlir_varint(cursor, &blocks, "blocks of region", walk->error)) return walk->error->status;
    if (blocks == 0) return MB_OK;
    if (mb_mlir_count(cursor, &values, "values of region", walk->error) ||
        mb_mlir_room(walk->ir->value_count, values, walk->is_filling, walk->counted.value_count, mb_offset(cursor), "values", walk->error)) return walk->error->status;
    frame->first_value = walk->ir->value_count;
    frame->value_count = values;
    frame->defined = 0;
    frame->blocks = blocks - 1;
    frame->is_open = true;
    walk->ir->value_count += values;
    return mb_mlir_begin_block(walk, cursor, frame);
}

/* The value that an operand names: a number among those of the open regions of its scope. */
static inline mb_status mb_mlir_resolve(mb_mlir_walk *walk, mb_cursor *cursor, uint32_t *value) {
    uint64_t start = mb_offset(cursor), number = 0, before = 0;
    if (mb_mlir_varint(cursor, &number, "operand", walk->error)) return walk->error->status;
    for (uint32_t i = walk->frames[walk->depth - 1].floor; i < walk->depth; i++) {
        const mb_mlir_frame *frame = &walk->frames[i];
        uint64_t count = frame->is_open ? frame->value_count : 0;
        if (number - before < count) {
            *value = frame->first_value + (uint32_t)(number - before);
            return MB_OK;
        }
        before += count;
    }
    return mb_fail(walk->error, MB_COUNT, start, before, number, "operand: number of a value");
}

/* Record a section of operations: that of the file, or of isolated regions. */
static inline mb_status mb_mlir_add_section(mb_mlir_walk *walk, const mb_mlir_section *section, uint32_t owner) {
    mb_mlir_ir *ir = walk->ir;
    if (mb_mlir_room(ir->section_count, 1, walk->is_filling, walk->counted.section_count, section->offset, "sections of operations", walk->error)) return walk->error->status;
    if (walk->is_filling) {
        ir->sections[ir->section_count] = *section;
        ir->owners[ir->section_count] = owner;
    }
    ir->section_count++;
    return MB_OK;
}

/* Read one operation up to its regions; open a frame if it has any. */
static inline mb_status mb_mlir_read_op(mb_mlir_walk *walk, mb_cursor *cursor) {
    mb_mlir_ir *ir = walk->ir;
    mb_error *error = walk->error;
    const mb_mlir_tables *t = walk->tables;
    mb_mlir_frame *frame = &walk->frames[walk->depth - 1];
    mb_mlir_op op = {mb_offset(cursor), 0, 0, 0, frame->op, walk->depth - 1, 0, MB_MLIR_NONE, MB_MLIR_NONE, 0, 0, 0, 0, frame->section};
    uint32_t row = ir->op_count;
    uint8_t mask = 0;
    frame->ops--;
    if (mb_mlir_room(row, 1, walk->is_filling, walk->counted.op_count, op.offset, "operations", error)) return error->status;
    if (mb_mlir_index(cursor, t->op_name_count, &op.name, "name of operation", error) || mb_mlir_byte(cursor, &mask, "mask of operation", error) ||
        mb_mlir_index(cursor, t->attribute_count, &op.location, "location of operation", error)) return error->status;
    if (mask & 0x80) return mb_fail(error, MB_NUMBER, op.offset, 0, mask, "mask of operation: expected bits that are known");
    if ((mask & MB_MLIR_ATTRIBUTES) && mb_mlir_index(cursor, t->attribute_count, &op.attributes, "attributes of operation", error)) return error->status;
    if (mask & MB_MLIR_HAS_PROPERTIES) {
        op.properties_at = (uint32_t)(mb_offset(cursor) - op.offset);
        if (mb_mlir_index(cursor, t->property_count, &op.properties, "properties of operation", error)) return error->status;
    }
    op.first_result = frame->first_value + frame->defined;
    if (mask & MB_MLIR_RESULTS) {
        if (mb_mlir_count(cursor, &op.result_count, "results of operation", error)) return error->status;
        op.type_at = (uint32_t)(mb_offset(cursor) - op.offset);
        for (uint32_t i = 0; i < op.result_count; i++) {
            uint32_t type = 0;
            uint64_t offset = mb_offset(cursor);
            if (mb_mlir_index(cursor, t->type_count, &type, "type of result", error) || mb_mlir_define(walk, frame, offset, type, row, i, false)) return error->status;
        }
    }
    op.first_operand = ir->operand_count;
    if (mask & MB_MLIR_OPERANDS) {
        if (mb_mlir_count(cursor, &op.operand_count, "operands of operation", error) ||
            mb_mlir_room(op.first_operand, op.operand_count, walk->is_filling, walk->counted.operand_count, mb_offset(cursor), "operands", error)) return error->status;
        for (uint32_t i = 0; i < op.operand_count; i++) {
            mb_mlir_operand operand = {0, row, MB_MLIR_NONE};
            if (mb_mlir_resolve(walk, cursor, &operand.value)) return error->status;
            if (walk->is_filling) ir->operands[op.first_operand + i] = operand;
        }
        ir->operand_count += op.operand_count;
    }
    if (mask & MB_MLIR_SUCCESSORS) {
        uint64_t count = 0, number = 0;
        if (mb_mlir_varint(cursor, &count, "successors", error)) return error->status;
        for (; count > 0; count--)
            if (mb_mlir_varint(cursor, &number, "successor", error)) return error->status;
    }
    if ((mask & MB_MLIR_ORDERS) && mb_mlir_skip_orders(walk, cursor, op.result_count)) return error->status;
    if (walk->is_filling) ir->ops[row] = op;
    ir->op_count++;
    if (!(mask & MB_MLIR_REGIONS)) return MB_OK;
    uint64_t regions = 0;
    if (mb_mlir_varint(cursor, &regions, "regions", error)) return error->status;
    if (walk->depth == MB_MAX_DEPTH) return mb_fail(error, MB_DEPTH, op.offset, MB_MAX_DEPTH, walk->depth, "regions");
    mb_mlir_frame inner;
    memset(&inner, 0, sizeof inner);
    inner.regions = regions >> 1;
    inner.op = row;
    inner.floor = regions & 1 ? walk->depth : frame->floor;
    inner.section = frame->section;
    inner.end = cursor->end;
    inner.has_section = (regions & 1) && inner.regions;
    if (inner.has_section) {
        mb_mlir_section section;
        if (mb_mlir_read_section(cursor, &section, error)) return error->status;
        if (section.id != MB_MLIR_IR) return mb_fail(error, MB_NUMBER, section.offset, 0, section.id, "section of regions: expected id 4");
        inner.section = ir->section_count;
        if (mb_mlir_add_section(walk, &section, frame->section)) return error->status;
        *cursor = mb_mlir_into(walk->file, &section);
        inner.end = cursor->end;
    }
    walk->frames[walk->depth++] = inner;
    return MB_OK;
}

/* Walk all operations of a file.
 * in   tables: read; is_filling: write the rows, for which the caller gave room as counted in a walk before, and
 *      `ir` still has those counts
 * out  *ir: the counts, and the rows
 * over-reads: none      fails: MB_TRUNCATED, MB_NUMBER, MB_COUNT (numbers of rows, values, operands), MB_SENTINEL (padding),
 *                              MB_DEPTH, MB_CHANGED (another file than was counted)                                   */
static inline mb_status mb_mlir_read_ir(const uint8_t *file, const mb_mlir_section *section, const mb_mlir_tables *tables, mb_mlir_ir *ir, bool is_filling, mb_error *error) {
    mb_mlir_walk walk; /* 13 KB; its frames are written before they are read */
    mb_cursor cursor = mb_mlir_into(file, section);
    walk.file = file, walk.tables = tables, walk.ir = ir, walk.counted = *ir, walk.is_filling = is_filling, walk.error = error;
    ir->op_count = ir->value_count = ir->operand_count = ir->section_count = 0;
    mb_mlir_frame top;
    memset(&top, 0, sizeof top);
    top.end = cursor.end, top.op = MB_MLIR_NONE, top.has_section = top.is_open = true;
    walk.frames[0] = top;
    walk.depth = 1;
    if (mb_mlir_add_section(&walk, section, MB_MLIR_NONE) || mb_mlir_begin_block(&walk, &cursor, &walk.frames[0])) return error->status;
    while (walk.depth > 0) {
        mb_mlir_frame *frame = &walk.frames[walk.depth - 1];
        if (frame->is_open && frame->ops > 0) {
            if (mb_mlir_read_op(&walk, &cursor)) return error->status;
        } else if (frame->is_open && frame->blocks > 0) {
            frame->blocks--;
            if (mb_mlir_begin_block(&walk, &cursor, frame)) return error->status;
        } else if (frame->is_open) {
            frame->is_open = false;
            if (frame->defined != frame->value_count) return mb_fail(error, MB_COUNT, mb_offset(&cursor), frame->value_count, frame->defined, "values of region");
        } else if (frame->regions > 0) {
            if (mb_mlir_begin_region(&walk, &cursor, frame)) return error->status;
        } else {
            if (frame->has_section && cursor.at != cursor.end)
                return mb_fail(error, MB_NUMBER, mb_offset(&cursor), 0, mb_left(&cursor), "section of operations: expected its end, but bytes");
            walk.depth--;
            if (walk.depth > 0) cursor.end = walk.frames[walk.depth - 1].end;
        }
    }
    if (!is_filling) return MB_OK;
    if (ir->op_count != walk.counted.op_count || ir->value_count != walk.counted.value_count || ir->operand_count != walk.counted.operand_count ||
        ir->section_count != walk.counted.section_count) return mb_fail(error, MB_CHANGED, section->offset, walk.counted.op_count, 0, "operations");
    for (uint32_t i = ir->operand_count; i > 0; i--) { /* backwards, so that uses are in the order of the file */
        mb_mlir_operand *operand = &ir->operands[i - 1];
        operand->next_use = ir->values[operand->value].first_use;
        ir->values[operand->value].first_use = i - 1;
    }
    return MB_OK;
}

#endif
