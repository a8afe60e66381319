/* changing.h: every kernel that looks at its source twice, or fills what another pass has counted, and what must hold of it
 * when somebody changes the source in between.
 *
 * An operation does its first pass, calls source_changes(), which the driver sets, and does the second one on buffers of their exact size. What it
 * then requires is true whatever the source became, so the same operations serve three drivers: between.c changes the source
 * where it is called, midway.c at the first touch of a page, races.c from another thread all the time. */
#ifndef MILBLOB_TESTS_CHANGING_H
#define MILBLOB_TESTS_CHANGING_H

#include "milblob/kernels/decode.h"
#include "milblob/kernels/difference.h"
#include "milblob/kernels/hash.h"
#include "milblob/kernels/palette_values.h"
#include "milblob/kernels/prune_blocks.h"
#include "milblob/kernels/prune_neighbours.h"
#include "milblob/kernels/quantize.h"
#include "milblob/wire/pack.h"
#include "milblob/program/kept.h"
#include "milblob/program/program.h"
#include "milblob/text/write.h"
#include "milblob/wire/splice.h"
#include "milblob/blob/store.h"
#include "milblob/text/parse.h"
#include "promises.h"
#include "scoped.h"

/* What an operation is given. Each byte of data is at any moment that of `before` or of `after`; where elements may be torn,
 * because a thread writes while they are read, `before` is NULL. data is aligned to 8 bytes. */
typedef struct source {
    const uint8_t *data, *before, *after;
    uint64_t nbytes;
} source;

static void (*source_changes)(void);

static uint64_t element_at(const uint8_t *array, unsigned itemsize, uint64_t index) {
    uint64_t value = 0;
    for (unsigned k = 0; k < itemsize; k++) value |= (uint64_t)array[index * itemsize + k] << (8 * k);
    return value;
}

static int64_t signed_at(const uint8_t *array, unsigned itemsize, uint64_t index) {
    const unsigned unused = 64 - 8 * itemsize;
    return (int64_t)(element_at(array, itemsize, index) << unused) >> unused;
}

/* -------------------------------------------------------------------------------------------------- encoding and packing */

static void encode(const mb_tier *tier, source s, int kind) {
    const unsigned itemsize = (unsigned)mb_pack_itemsize(kind);
    const uint64_t count = s.nbytes / itemsize, counted = mb_pack_nbytes(tier, kind, s.data, count);
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    source_changes();
    uint8_t *dst = (uint8_t *)exactly(counted), *back = (uint8_t *)exactly(count * itemsize);
    memset(dst, 0x80, (size_t)counted); /* what is not written never ends */
    const mb_status status = mb_pack(tier, kind, dst, counted, s.data, count, 0, 0, &error);
    require(status == MB_OK || status == MB_CHANGED, "encoded, or refused because it changed");
    if (status == MB_CHANGED) require(error.expected == counted && error.detail != NULL, "an error that has words");
    if (status == MB_OK) {
        const int64_t lo = kind == MB_PACK_I16 ? INT16_MIN : kind == MB_PACK_U16 ? 0 : kind == MB_PACK_I32 ? INT32_MIN : INT64_MIN;
        const int64_t hi = kind == MB_PACK_I16 ? INT16_MAX : kind == MB_PACK_U16 ? UINT16_MAX : kind == MB_PACK_I32 ? INT32_MAX : INT64_MAX;
        require(mb_varint_decode(&mb_tiers[0], back, itemsize, false, dst, counted, count, lo, hi, &error) == MB_OK, "whole varints, one for each element");
        for (uint64_t i = 0; i < count && s.before != NULL; i++) {
            const uint64_t found = element_at(back, itemsize, i);
            require(found == element_at(s.before, itemsize, i) || found == element_at(s.after, itemsize, i), "what each element was at some moment");
        }
    }
    free(dst), free(back);
}

/* One byte too few, or too many: an error, and nothing is written past it. */
static void encode_to_other_sizes(const mb_tier *tier, source s, int kind) {
    const uint64_t count = s.nbytes / mb_pack_itemsize(kind), counted = mb_pack_nbytes(tier, kind, s.data, count);
    mb_error error;
    source_changes();
    for (uint64_t nbytes = counted > 0 ? counted - 1 : 1; nbytes <= counted + 1; nbytes += 2) {
        uint8_t *dst = (uint8_t *)exactly(nbytes);
        const mb_status status = mb_pack(tier, kind, dst, nbytes, s.data, count, 0, kind < MB_PACK_BOOL ? (1 << kind) - 1 : 0, &error);
        if (s.before == s.after && s.before != NULL) require(status == MB_CHANGED, "another size is refused");
        else require(status == MB_CHANGED || (status == MB_OK && kind >= MB_PACK_I16), "another size is refused, unless it has become right");
        free(dst);
    }
}

static void pack_bools(const mb_tier *tier, source s) {
    uint8_t *dst = (uint8_t *)exactly(s.nbytes);
    mb_error error;
    source_changes();
    require(mb_pack(tier, MB_PACK_BOOL, dst, s.nbytes, s.data, s.nbytes, 0, 0, &error) == MB_OK, "every byte is a bool");
    for (uint64_t i = 0; i < s.nbytes; i++) require(dst[i] <= 1, "which is 0 or 1");
    free(dst);
}

static void pack_bits(const mb_tier *tier, source s, unsigned nbits, bool is_signed) {
    const int lo = is_signed ? -(1 << (nbits - 1)) : 0, hi = is_signed ? (1 << (nbits - 1)) - 1 : (1 << nbits) - 1;
    const uint64_t nbytes = mb_packed_nbytes(s.nbytes, nbits);
    uint8_t *dst = (uint8_t *)exactly(nbytes), *back = (uint8_t *)exactly(s.nbytes);
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    source_changes();
    const mb_status status = tier->pack(dst, s.data, s.nbytes, nbits, lo, hi, is_signed, &error);
    require(status == MB_OK || status == MB_RANGE, "packed, or an element outside");
    if (status == MB_RANGE) {
        require(error.expected < s.nbytes, "an element that there is");
        require((int64_t)error.got < lo || (int64_t)error.got > hi, "and that is outside");
    } else {
        tier->unpack[is_signed](back, dst, s.nbytes, nbits);
        for (uint64_t i = 0; i < s.nbytes && s.before != NULL; i++) require(back[i] == s.before[i] || back[i] == s.after[i], "what each element was at some moment");
    }
    free(dst), free(back);
}

/* --------------------------------------------------------------------------------------------------------------- decoding */

static void decode(const mb_tier *tier, source s, unsigned itemsize, bool is_bool, int64_t lo, int64_t hi) {
    const uint64_t count = mb_varint_count(s.data, s.nbytes);
    uint8_t *dst = (uint8_t *)exactly(count * itemsize);
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    source_changes();
    memset(dst, 0xee, (size_t)(count * itemsize));
    const mb_status status = mb_varint_decode(tier, dst, itemsize, is_bool, s.data, s.nbytes, count, lo, hi, &error);
    for (uint64_t i = 0; i < count && status == MB_OK; i++) {
        const int64_t value = lo < 0 && hi <= INT32_MAX ? signed_at(dst, itemsize, i) : itemsize < 8 ? (int64_t)element_at(dst, itemsize, i) : 0;
        require(hi == UINT32_MAX || (value >= lo && value <= hi), "every element is in the range");
    }
    require(status == MB_OK || (error.detail != NULL && error.offset <= s.nbytes), "an error with its place");
    free(dst);
}

static void gather(source s) {
    mb_tensor tensor;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    if (mb_tensor_locate(s.data, s.data, s.nbytes, &tensor, &error) || tensor.field == MB_FIELD_NONE) return;
    require(tensor.nbytes <= s.nbytes && tensor.count <= s.nbytes, "as much as there is");
    uint8_t *dst = (uint8_t *)exactly(tensor.nbytes);
    uint64_t *ranges = (uint64_t *)exactly(tensor.count * 16);
    const bool is_text = tensor.field == MB_FIELD_STRINGS;
    source_changes();
    memset(ranges, 0xff, (size_t)(tensor.count * 16));
    if (mb_tensor_gather(s.data, s.data + s.nbytes, &tensor, is_text ? NULL : dst, is_text ? ranges : NULL, &error) == MB_OK)
        for (uint64_t i = 0; is_text && i < tensor.count; i++) require(ranges[2 * i] <= s.nbytes && ranges[2 * i + 1] <= s.nbytes - ranges[2 * i], "strings inside");
    free(dst), free(ranges);
}

/* Set bits of a mask are counted, and then as many elements are spread by it. */
static void spread(const mb_tier *tier, source s, unsigned nbits) {
    const uint64_t count = s.nbytes * 8, ones = mb_count_ones(tier, s.data, 0, count), size = nbits < 8 ? 1 : nbits / 8;
    const uint64_t nbytes = nbits < 8 ? mb_packed_nbytes(ones, nbits) : ones * size;
    uint8_t *elements = (uint8_t *)exactly(nbytes), *dst = (uint8_t *)exactly(count * size);
    mb_source from = {elements, ones, nbits, false, s.data, 0};
    mb_error error;
    memset(elements, 1, (size_t)nbytes);
    source_changes();
    const mb_status status = mb_decode_sparse(tier, dst, 0, count, &from, &error);
    require(status == MB_OK || status == MB_COUNT, "spread, or more bits than elements");
    /* The kernel alone, on bits that are not its own: it is bounded by its elements too. */
    if (nbits >= 8) tier->expand[mb_width_index((size_t)size)](dst, elements, ones, s.data, count);
    free(elements), free(dst);
}

static void look_up(const mb_tier *tier, source s, unsigned nbits, size_t size) {
    const uint64_t count = s.nbytes * 8 / nbits, sizes[1] = {count}, strides[1] = {0};
    const unsigned entry_count = 1u << nbits;
    uint8_t *entries = (uint8_t *)exactly(entry_count * size), *dst = (uint8_t *)exactly(count * size);
    mb_source from = {s.data, count, nbits, false, NULL, 0};
    mb_grid grid = {sizes, strides, 1, {0}, 0};
    mb_palette palette = {entries, entry_count, size, 1, 1};
    mb_error error;
    memset(entries, 1, entry_count * size);
    source_changes();
    if (count > 0) require(mb_decode_palette(tier, dst, 0, count, &from, &grid, &palette, &error) == MB_OK, "every index has an entry");
    for (uint64_t i = 0; i < count * size; i++) require(dst[i] == 1, "which is what comes out");
    free(entries), free(dst);
}

/* ---------------------------------------------------------------------------------------------------- messages and tables */

/* The payload of the innermost of the fields that come first becomes larger, and so do the lengths around it. */
static void splice(source s) {
    static mb_level levels[MB_SPLICE_DEPTH];
    mb_cursor cursor = mb_cursor_of(s.data, s.data, s.nbytes);
    mb_edit edit = {0, 0, 300};
    mb_error error;
    mb_wire wire;
    mb_splice result;
    for (int depth = 0; depth < 6 && cursor.at < cursor.end && mb_read_field(&cursor, &wire, &error) == MB_OK && wire.type == MB_WIRE_BYTES; depth++) {
        if (wire.nbytes == 0) break;
        edit.offset = (uint64_t)(wire.data - s.data), edit.nbytes = wire.nbytes;
        cursor = mb_cursor_into(&cursor, &wire);
    }
    if (edit.nbytes == 0 || mb_splice_walk(s.data, 0, s.nbytes, &edit, 1, levels, NULL, 0, &result, &error) != MB_FULL) return;
    const uint64_t capacity = result.prefix_count;
    mb_prefix *rows = (mb_prefix *)exactly(capacity * sizeof *rows);
    source_changes();
    if (mb_splice_walk(s.data, 0, s.nbytes, &edit, 1, levels, rows, capacity, &result, &error) == MB_OK) {
        require(result.prefix_count <= capacity, "as many rows as there is room for");
        for (uint64_t i = 0; i < result.prefix_count; i++)
            require(rows[i].nbytes >= 1 && rows[i].nbytes <= 10 && rows[i].offset < s.nbytes && rows[i].nbytes <= s.nbytes - rows[i].offset && rows[i].length <= s.nbytes, "prefixes inside");
    }
    free(rows);
}

static mb_status scan_with(mb_scan *scan, source s, uint64_t functions, uint64_t blocks, uint64_t ops, uint64_t entries, uint64_t numbers, mb_error *error) {
    const mb_span all = {0, s.nbytes};
    memset(scan, 0, sizeof *scan);
    scan->base = s.data, scan->flags = MB_SCAN_ALL, scan->error = error;
    scan->function_capacity = functions, scan->block_capacity = blocks, scan->op_capacity = ops, scan->entry_capacity = entries, scan->number_capacity = numbers;
    scan->functions = (mb_function *)exactly(functions * sizeof(mb_function)), scan->blocks = (mb_block *)exactly(blocks * sizeof(mb_block));
    scan->ops = (mb_op *)exactly(ops * sizeof(mb_op)), scan->entries = (mb_entry *)exactly(entries * sizeof(mb_entry)), scan->numbers = (uint64_t *)exactly(numbers * 8);
    const mb_status status = mb_program_scan(scan, all);
    free(scan->functions), free(scan->blocks), free(scan->ops), free(scan->entries), free(scan->numbers);
    return status;
}

/* The tables have room for what the first scan counted. */
static void scan_program(source s) {
    static mb_scan first, second;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    scan_with(&first, s, 0, 0, 0, 0, 0, &error);
    source_changes();
    if (scan_with(&second, s, first.function_count, first.block_count, first.op_count, first.entry_count, first.number_count, &error) != MB_OK) return;
    require(second.function_count <= first.function_count && second.block_count <= first.block_count && second.op_count <= first.op_count &&
                second.entry_count <= first.entry_count && second.number_count <= first.number_count, "no more rows than there is room for");
}

static void free_tables(mb_scan *scan) { free(scan->functions), free(scan->blocks), free(scan->ops), free(scan->entries), free(scan->numbers); }

/* A scan's tables, filled, for who reads the texts that they refer to; false if it does not fit any more. */
static bool filled(mb_scan *scan, source s) {
    const mb_span all = {0, s.nbytes};
    static mb_scan first;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    scan_with(&first, s, 0, 0, 0, 0, 0, &error);
    memset(scan, 0, sizeof *scan);
    scan->base = s.data, scan->flags = MB_SCAN_ALL, scan->error = &error;
    scan->functions = (mb_function *)exactly((scan->function_capacity = first.function_count) * sizeof(mb_function));
    scan->blocks = (mb_block *)exactly((scan->block_capacity = first.block_count) * sizeof(mb_block));
    scan->ops = (mb_op *)exactly((scan->op_capacity = first.op_count) * sizeof(mb_op));
    scan->entries = (mb_entry *)exactly((scan->entry_capacity = first.entry_count) * sizeof(mb_entry));
    scan->numbers = (uint64_t *)exactly((scan->number_capacity = first.number_count) * 8);
    const bool good = mb_program_scan(scan, all) == MB_OK;
    scan->error = NULL;
    return good;
}

/* Names have room for what the first pass counted, and rows are kept beside names that were made of other bytes. */
static void name_rows(source s) {
    static mb_scan scan;
    const mb_siphash_key key = {{1, 2}};
    mb_names counted, names;
    mb_kept kept;
    memset(&counted, 0, sizeof counted);
    memset(&kept, 0, sizeof kept);
    if (filled(&scan, s)) {
        mb_names_add_entries(&counted, &scan);
        mb_names_add_ops(&counted, &scan);
        names = counted;
        names.nbytes = names.count = 0;
        names.bytes = (uint8_t *)exactly(names.capacity = counted.nbytes);
        names.ends = (uint32_t *)exactly((names.end_capacity = counted.count) * sizeof *names.ends);
        source_changes();
        mb_names_add_entries(&names, &scan);
        mb_names_add_ops(&names, &scan);
        for (kept.slot_count = 2; kept.slot_count <= scan.entry_count;) kept.slot_count *= 2;
        kept.rows = (mb_kept_row *)exactly(scan.entry_count * sizeof *kept.rows);
        kept.forms = (mb_form *)exactly(scan.entry_count * sizeof *kept.forms);
        kept.slots = (uint32_t *)exactly(kept.slot_count * sizeof *kept.slots);
        memset(kept.slots, 0, (size_t)(kept.slot_count * sizeof *kept.slots));
        mb_keep_rows(&kept, &names, &scan, &key);
        require(kept.form_count <= scan.entry_count, "no more forms than rows");
        free(names.bytes), free(names.ends), free(kept.rows), free(kept.forms), free(kept.slots);
    }
    free_tables(&scan);
}

static mb_status graph_with(mb_graph *graph, source s, const mb_graph *room, mb_error *error) {
    const mb_span all = {0, s.nbytes};
    memset(graph, 0, sizeof *graph);
    graph->scan.base = s.data, graph->scan.error = error;
    graph->functions = (mb_graph_function *)exactly((graph->function_capacity = room->function_count) * sizeof *graph->functions);
    graph->blocks = (mb_graph_block *)exactly((graph->block_capacity = room->block_count) * sizeof *graph->blocks);
    graph->operations = (mb_graph_operation *)exactly((graph->operation_capacity = room->operation_count) * sizeof *graph->operations);
    graph->names = (mb_graph_name *)exactly((graph->name_capacity = room->name_count) * sizeof *graph->names);
    graph->arguments = (mb_graph_argument *)exactly((graph->argument_capacity = room->argument_count) * sizeof *graph->arguments);
    graph->bindings = (mb_graph_binding *)exactly((graph->binding_capacity = room->binding_count) * sizeof *graph->bindings);
    return mb_program_graph(graph, all);
}

static void free_graph(mb_graph *graph) {
    free(graph->functions), free(graph->blocks), free(graph->operations);
    free(graph->names), free(graph->arguments), free(graph->bindings);
}

static int drop_text(void *context, const uint8_t *bytes, uint64_t nbytes) {
    (void)context, (void)bytes;
    return nbytes > 0;
}

/* A graph has room for what the first walk counted; what it says is then written, from bytes that may be others. */
static void graph_program(source s) {
    static mb_graph nothing, first, second;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    const mb_span all = {0, s.nbytes};
    graph_with(&first, s, &nothing, &error);
    free_graph(&first);
    source_changes();
    if (graph_with(&second, s, &first, &error) == MB_OK) {
        mb_writer w;
        memset(&w, 0, sizeof w);
        w.graph = &second, w.base = s.data, w.error = &error, w.print.flush = drop_text;
        w.keys = (mb_write_key *)exactly((w.key_capacity = 64) * sizeof *w.keys);
        w.print.out = (uint8_t *)exactly(w.print.capacity = 4096);
        source_changes();
        if (mb_text_write(&w, MB_WRITE_HEADER, all, 0, 3) == MB_OK)
            for (uint32_t i = 0; i < second.function_count && mb_text_write(&w, MB_WRITE_FUNCTION, all, i, 0) == MB_OK; i++) source_changes();
        free(w.keys);
        free(w.print.out);
        const mb_siphash_key key = {{1, 2}};
        mb_scopes scopes = make_scopes(&second, &key);
        for (uint64_t i = 0; i < second.binding_count; i++) require(scopes.definers[i] == MB_NONE || scopes.definers[i] < second.name_count, "a definition that has a row");
        free_scopes(&scopes);
    }
    free_graph(&second);
}

static void walk_blob(source s) {
    uint32_t count = 0, done = 0;
    mb_error error;
    if (mb_blob_header(s.data, s.nbytes, &count, &error)) return;
    mb_blob_record *rows = (mb_blob_record *)exactly(count * sizeof *rows);
    source_changes();
    mb_blob_walk(s.data, s.nbytes, count, rows, &done, &error);
    require(done <= count, "no more rows than there is room for");
    for (uint32_t i = 0; i < done; i++) require(rows[i].data_offset <= s.nbytes && rows[i].nbytes <= s.nbytes - rows[i].data_offset, "data inside the file");
    free(rows);
}

static void parse_text(source s) {
    uint64_t capacity = 0, nbytes = 0;
    mb_error error;
    for (int round = 0; round < 12; round++) {
        uint8_t *out = (uint8_t *)exactly(capacity);
        const mb_status status = mb_text_to_program(s.data, s.nbytes, out, capacity, &nbytes, &error);
        require(status != MB_OK || nbytes <= capacity, "no more bytes than there is room for");
        free(out);
        if (status != MB_FULL) break;
        capacity = nbytes;
        source_changes();
    }
}

/* -------------------------------------------------------------------------------------------------------- whole arrays */

/* Their outputs have sizes that depend on no value: what is asked is only that nothing outside is touched. */
static void cast(const mb_tier *tier, source s, int kind) {
    const uint64_t count = s.nbytes / mb_cast_src_nbytes(kind);
    uint8_t *dst = (uint8_t *)exactly(count * mb_cast_dst_nbytes(kind));
    mb_cast_counts counts = {0, 0, 0};
    mb_cast(tier, kind, dst, s.data, count, false, &counts);
    source_changes();
    require(mb_cast_find(kind, s.data, count, counts.nan != 0) <= count, "an element that there is, or none");
    free(dst);
}

static void measure(const mb_tier *tier, source s) {
    static mb_tally tally;
    static mb_distinct distinct;
    static const unsigned widths[] = {1, 3, 4, 8, 16};
    mb_tolerance none = {0, 0};
    mb_comparison comparison;
    mb_moments moments;
    uint8_t hash[MB_BLAKE3_NBYTES];
    for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) {
        uint64_t sum = 0;
        memset(&tally, 0, sizeof tally);
        mb_tally_elements(&tally, s.data, s.nbytes * 8 / widths[k], widths[k]);
        source_changes();
        const uint32_t found = mb_tally_gather(&tally, widths[k]);
        for (uint32_t i = 0; i < found; i++) sum += tally.counts[i];
        require(sum == s.nbytes * 8 / widths[k], "every element is counted once");
    }
    memset(&distinct, 0, sizeof distinct), memset(&comparison, 0, sizeof comparison);
    mb_moments_of(tier, MB_WIDE_I64, s.data, s.nbytes / 8, &moments, &distinct);
    require(mb_distinct_count(&distinct) <= s.nbytes / 8, "no more values than elements");
    mb_compare(tier, MB_MIL_FLOAT16, s.data, MB_MIL_INT16, s.data, s.nbytes / 2, none, &comparison);
    mb_hash_stretch(tier, hash, s.data, s.nbytes < MB_BLAKE3_STRETCH ? s.nbytes : MB_BLAKE3_STRETCH, 0, true);
    (void)mb_hash(s.data, s.nbytes, 1);
}

/* Blocks are read for their range and again for their integers; elements are counted, and then divided by a cut. */
static void compress(const mb_tier *tier, source s, bool is_f16, bool is_linear) {
    static uint32_t counts[MB_MAGNITUDES];
    const uint64_t size = is_f16 ? 2 : 4, count = s.nbytes / size / 32 * 32, blocks = count / 32, all = s.nbytes / size, sizes[2] = {blocks, 32}, strides[2] = {1, 0};
    const mb_integers to = {is_linear ? 0 : -7, is_linear ? 15 : 7, 4, is_linear};
    mb_grid grid = {sizes, strides, 2, {0}, 0};
    mb_sums sums;
    memset(&sums, 0, sizeof sums), memset(counts, 0, sizeof counts);
    mb_prune_count(s.data, all, is_f16, counts);
    source_changes();
    if (blocks > 0) {
        uint8_t *dst = (uint8_t *)exactly(count / 2), *scale = (uint8_t *)exactly(blocks * size), *zero = (uint8_t *)exactly((blocks + 1) / 2);
        float *spare = (float *)exactly(16 * mb_quantize_units(32));
        (void)mb_quantize_blocks(tier, dst, true, s.data, is_f16, 0, count, 32, 1, &grid, &to, spare, scale, is_linear ? zero : NULL, &sums);
        free(dst), free(scale), free(zero), free(spare);
    }
    uint8_t *mask = (uint8_t *)exactly((all + 7) / 8), *kept = (uint8_t *)exactly(all * size);
    const uint32_t cut = is_f16 ? 0x3000 : 0x3f000000;
    const uint64_t found = mb_prune_split(tier, s.data, all, is_f16, cut, mask, kept, &sums);
    require(found <= all && found == mb_count_ones(tier, mask, 0, all), "as many are kept as the mask says");
    for (uint64_t i = 0; i < found; i++) require(mb_magnitude(kept, (size_t)i, is_f16) > cut, "what is kept was above the cut");
    const mb_blocks shape = {1, all, 1, 4};
    uint8_t *squares = (uint8_t *)exactly((all + 3) / 4 * size), *chosen = (uint8_t *)exactly((all + 7) / 8);
    mb_block_sums(tier, s.data, is_f16, &shape, squares);
    source_changes();
    const uint64_t told = mb_block_mask(tier, s.data, is_f16, &shape, squares, cut, chosen);
    require(told <= all && told == mb_count_ones(tier, chosen, 0, all), "as many are chosen as the mask says");
    source_changes();
    const uint64_t left = mb_split_chosen(tier, s.data, all, is_f16, chosen, mask, kept, &sums);
    require(left <= told && left == mb_count_ones(tier, mask, 0, all), "no more are kept than were chosen");
    for (uint64_t i = 0; i < left; i++) require(mb_magnitude(kept, (size_t)i, is_f16) > 0, "what is kept is not zero");
    free(mask), free(kept), free(squares), free(chosen);
}

/* Elements are counted, put into the bins that were made for them, and looked up; neighbours are compared. */
static void palettes(const mb_tier *tier, source s) {
    static mb_palette_bins bins;
    static uint8_t table[MB_PATTERNS];
    const uint64_t wide = s.nbytes / 4, narrow = s.nbytes / 2;
    const mb_neighbours shape = {1, narrow, 1, 2, 4};
    double least = 1e300, most = -1e300, entries[3] = {-1, 0, 2}, totals[512] = {0};
    mb_palette_error error = {0, 0, 0};
    uint8_t *dst = (uint8_t *)exactly(narrow), *mask = (uint8_t *)exactly((narrow + 7) / 8);
    uint64_t *ties = (uint64_t *)exactly(8 * (narrow / 4 + 1));
    uint32_t largest = 0;
    mb_palette_bins_clear(&bins);
    (void)mb_palette_range_32(s.data, wide, &least, &most);
    mb_palette_distinct_32(&bins, s.data, NULL, wide);
    require(bins.distinct <= MB_PALETTE_DISTINCT + 1, "no more numbers than there is room for");
    (void)mb_palette_tops_32(&bins, s.data, wide);
    mb_palette_divide(&bins, 65537);
    source_changes();
    mb_palette_fill_32(&bins, s.data, NULL, wide);
    mb_palette_index_32(tier, dst, s.data, NULL, wide, entries, 3, totals, &error);
    for (uint64_t i = 0; i < wide; i++) require(dst[i] < 3, "an index that there is");
    memset(table, 3, sizeof table);
    mb_palette_index_16(dst, s.data, narrow, table);
    for (uint64_t i = 0; i < narrow; i++) require(dst[i] == 3, "an index of the table");
    const uint64_t found = mb_choose_neighbours(tier, s.data, true, &shape, mask, ties, &largest);
    require(found <= narrow / 4 + 1, "no more groups than there are");
    for (uint64_t i = 0, told = 0; i < narrow / 4; i++) {
        if (told < found && ties[told] == i) { told++; continue; }
        require(mb_ones_of((uint32_t)mask[i / 2] >> i % 2 * 4 & 15u) <= 2, "two of four are zero");
    }
    free(dst), free(mask), free(ties);
}

/* ------------------------------------------------------------------------------------------------------------ all of them */

enum { OPERATIONS = 39 };

static void operate(const mb_tier *tier, source s, unsigned which) {
    static const int kinds[] = {MB_PACK_I16, MB_PACK_U16, MB_PACK_I32, MB_PACK_I64, MB_PACK_RAW, MB_PACK_BOOL, 1, 2, 3, 4, 6};
    static const unsigned widths[] = {1, 2, 3, 4, 6};
    if (which < 4) encode(tier, s, kinds[which]);
    else if (which < 8) for (size_t k = which - 4; k < sizeof kinds / sizeof kinds[0]; k += 4) encode_to_other_sizes(tier, s, kinds[k]);
    else if (which < 13) pack_bits(tier, s, widths[which - 8], false);
    else if (which < 18) pack_bits(tier, s, widths[which - 13], true);
    else if (which == 18) pack_bools(tier, s);
    else if (which == 19) decode(tier, s, 1, true, 0, 1);
    else if (which == 20) decode(tier, s, 1, false, INT8_MIN, INT8_MAX);
    else if (which == 21) decode(tier, s, 1, false, 0, 15);
    else if (which == 22) decode(tier, s, 2, false, INT16_MIN, INT16_MAX);
    else if (which == 23) decode(tier, s, 4, false, INT32_MIN, UINT32_MAX);
    else if (which == 24) decode(tier, s, 4, false, INT32_MIN, INT32_MAX);
    else if (which == 25) decode(tier, s, 8, false, INT64_MIN, INT64_MAX);
    else if (which == 26) gather(s);
    else if (which == 27) spread(tier, s, 1), spread(tier, s, 6);
    else if (which < 32) spread(tier, s, 8u << (which - 28));
    else if (which == 32) look_up(tier, s, 4, 2), look_up(tier, s, 8, 1), look_up(tier, s, 8, 2), look_up(tier, s, 8, 4), look_up(tier, s, 6, 1);
    else if (which == 33) splice(s), scan_program(s), name_rows(s), graph_program(s), walk_blob(s);
    else if (which == 34) parse_text(s);
    else if (which == 35) for (int kind = 0; kind < MB_CAST_COUNT; kind++) cast(tier, s, kind);
    else if (which == 36) measure(tier, s);
    else if (which == 37) palettes(tier, s);
    else for (unsigned way = 0; way < 4; way++) compress(tier, s, way & 1, way >> 1);
}

#endif
