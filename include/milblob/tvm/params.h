/* tvm/params.h: TVM's `.params` files: the names, and where the record of each tensor and its elements lie.
 *
 *   0    magic u64, reserved u64, count n u64
 *   24   n names: length u64, bytes                               then n u64 again
 *   ...  n records, nothing between them: magic u64, reserved u64, device type i32 (1), device id i32, ndim i32,
 *        code u8, bits u8, lanes u16, shape i64[ndim], nbytes i64, then the elements, C order
 *
 * All numbers are little-endian. Nothing is aligned. An element takes whole bytes; lanes are not counted in nbytes. */
#ifndef MILBLOB_PARAMS_H
#define MILBLOB_PARAMS_H

#include "milblob/wire/wire.h"

#define MB_PARAMS_MAGIC 0xF7E58D4F05049CB7ull
#define MB_PARAM_MAGIC 0xDD5E40F096B4A13Full

/* The fewest bytes of one tensor: an empty name, and the record of a scalar without its element. */
enum { MB_PARAM_LEAST_NBYTES = 8 + 40 };

typedef struct mb_param {
    uint64_t name_offset, name_nbytes;
    uint64_t offset;        /* of the record */
    uint64_t shape_offset;  /* of its dimensions: ndim times i64, none below 0 */
    uint64_t data_offset;   /* of the elements; all `nbytes` lie inside the file */
    uint64_t nbytes;
    uint64_t reserved;      /* 0, as TVM writes it; TVM takes any */
    uint32_t ndim;
    uint32_t device_id;     /* 0, as TVM writes it; TVM takes any */
    uint8_t code, bits;
    uint16_t lanes;
} mb_param;

/* Take `nbytes` bytes: *data, and the cursor after them. fails: MB_TRUNCATED */
static inline mb_status mb_param_take(mb_cursor *cursor, uint64_t nbytes, const char *what, const uint8_t **data, mb_error *error) {
    if (nbytes > mb_left(cursor)) return mb_fail(error, MB_TRUNCATED, mb_offset(cursor), nbytes, mb_left(cursor), what);
    *data = cursor->at;
    cursor->at += nbytes;
    return MB_OK;
}

/* Read the header of a file.
 * in   cursor: at its first byte                   out  *count: tensors, no more than fit; *reserved; cursor: at the names
 * over-reads: none      fails: MB_TRUNCATED, MB_SENTINEL (magic), MB_COUNT (more than the bytes that are left can hold) */
static inline mb_status mb_params_header(mb_cursor *cursor, uint64_t *count, uint64_t *reserved, mb_error *error) {
    uint64_t start = mb_offset(cursor);
    const uint8_t *head = NULL;
    if (mb_param_take(cursor, 24, "header of .params file", &head, error)) return error->status;
    if (mb_load_u64(head) != MB_PARAMS_MAGIC) return mb_fail(error, MB_SENTINEL, start, MB_PARAMS_MAGIC, mb_load_u64(head), "magic of .params file");
    *reserved = mb_load_u64(head + 8);
    *count = mb_load_u64(head + 16);
    uint64_t most = mb_left(cursor) / MB_PARAM_LEAST_NBYTES;
    if (*count > most) return mb_fail(error, MB_COUNT, start + 16, most, *count, "most tensors that the bytes can hold");
    return MB_OK;
}

/* Read the names, and the second count after them.
 * in   cursor: as mb_params_header leaves it       out  params[0 .. count): name_offset, name_nbytes; cursor: at the records
 * over-reads: none      fails: MB_TRUNCATED, MB_COUNT (the counts differ)                                              */
static inline mb_status mb_params_names(mb_cursor *cursor, uint64_t count, mb_param *params, mb_error *error) {
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *head = NULL;
        if (mb_param_take(cursor, 8, "length of name", &head, error)) return error->status;
        params[i].name_nbytes = mb_load_u64(head);
        params[i].name_offset = mb_offset(cursor);
        const uint8_t *name = NULL;
        if (mb_param_take(cursor, params[i].name_nbytes, "name", &name, error)) return error->status;
    }
    const uint8_t *again = NULL;
    if (mb_param_take(cursor, 8, "count of tensors", &again, error)) return error->status;
    if (mb_load_u64(again) != count) return mb_fail(error, MB_COUNT, mb_offset(cursor) - 8, count, mb_load_u64(again), "count of tensors");
    return MB_OK;
}

/* Read one record. Its elements are not touched, and need not be in memory: a reader of a large file reads its records
 * only.
 * in   cursor: at a record; file_left: bytes of the file from there on, no fewer than the cursor has
 * out  *param: all but the name; cursor: after the record, at its elements
 * over-reads: none      fails: MB_TRUNCATED (the record in the cursor, its elements in the file), MB_SENTINEL, MB_NUMBER
 *                              (device type, ndim, a dimension), MB_OVERFLOW, MB_COUNT (nbytes are not those of the shape) */
static inline mb_status mb_params_record(mb_cursor *cursor, uint64_t file_left, mb_param *param, mb_error *error) {
    uint64_t start = mb_offset(cursor);
    const uint8_t *head = NULL;
    if (mb_param_take(cursor, 32, "record of tensor", &head, error)) return error->status;
    if (mb_load_u64(head) != MB_PARAM_MAGIC) return mb_fail(error, MB_SENTINEL, start, MB_PARAM_MAGIC, mb_load_u64(head), "magic of tensor");
    if (mb_load_u32(head + 16) != 1) return mb_fail(error, MB_NUMBER, start + 16, 1, mb_load_u32(head + 16), "device type: expected 1 (CPU)");
    param->offset = start;
    param->reserved = mb_load_u64(head + 8);
    param->device_id = mb_load_u32(head + 20);
    param->ndim = mb_load_u32(head + 24);
    param->code = head[28];
    param->bits = head[29];
    param->lanes = (uint16_t)(head[30] | head[31] << 8);
    param->shape_offset = mb_offset(cursor);
    if (param->ndim > INT32_MAX) return mb_fail(error, MB_NUMBER, start + 24, 0, param->ndim, "number of dimensions: expected 0 to 2147483647");
    const uint8_t *shape = NULL;
    if (mb_param_take(cursor, (uint64_t)param->ndim * 8, "shape of tensor", &shape, error)) return error->status;
    uint64_t nbytes = (param->bits + 7u) / 8u;
    bool is_empty = false;
    for (uint32_t i = 0; i < param->ndim; i++) {
        uint64_t size = mb_load_u64(shape + 8 * (uint64_t)i);
        if (size > INT64_MAX) return mb_fail(error, MB_NUMBER, param->shape_offset + 8 * (uint64_t)i, 0, size, "dimension: expected 0 to 2^63 - 1");
        is_empty = is_empty || size == 0;
    }
    for (uint32_t i = 0; i < param->ndim && !is_empty; i++) {
        uint64_t size = mb_load_u64(shape + 8 * (uint64_t)i);
        if (!mb_mul(nbytes, size, &nbytes)) return mb_fail(error, MB_OVERFLOW, param->shape_offset, nbytes, size, "product of dimensions");
    }
    if (is_empty) nbytes = 0;
    const uint8_t *size = NULL;
    if (mb_param_take(cursor, 8, "size of tensor", &size, error)) return error->status;
    param->nbytes = mb_load_u64(size);
    if (param->nbytes != nbytes) return mb_fail(error, MB_COUNT, mb_offset(cursor) - 8, nbytes, param->nbytes, "bytes of tensor");
    param->data_offset = mb_offset(cursor);
    uint64_t left = file_left - (param->data_offset - start);
    if (nbytes > left) return mb_fail(error, MB_TRUNCATED, param->data_offset, nbytes, left, "elements of tensor");
    return MB_OK;
}

#endif
