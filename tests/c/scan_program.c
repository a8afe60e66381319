/* scan_program.c: scans each file as a Program, with tables that grow from nothing; see replay.h for the command line. */
#include "milblob/program/program.h"
#include "tensor_value.h"

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
        if (status == MB_OK) check_rows(&scan);
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

static void check(const uint8_t *data, uint64_t nbytes) {
    file_nbytes = nbytes;
    scan_with(data, nbytes, 0);
    scan_with(data, nbytes, MB_SCAN_ALL);
    scan_with(data, nbytes, MB_SCAN_USES);
    scan_with(data, nbytes, MB_SCAN_ALL | MB_SCAN_PLAIN);
}
