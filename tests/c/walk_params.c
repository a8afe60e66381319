/* walk_params.c: reads each file as a .params file of TVM; see replay.h for the command line. */
#include "milblob/params.h"
#include "replay.h"

static void check_record(const mb_param *param, const uint8_t *data, uint64_t nbytes) {
    uint64_t expected = (param->bits + 7u) / 8u;
    require(param->shape_offset <= nbytes && param->ndim <= (nbytes - param->shape_offset) / 8, "a shape inside the file");
    require(param->data_offset <= nbytes && param->nbytes <= nbytes - param->data_offset, "elements inside the file");
    require(param->shape_offset == param->offset + 32 && param->data_offset == param->shape_offset + 8 * (uint64_t)param->ndim + 8, "a record without gaps");
    bool is_empty = false;
    for (uint32_t i = 0; i < param->ndim; i++) is_empty = is_empty || mb_load_u64(data + param->shape_offset + 8 * (uint64_t)i) == 0;
    for (uint32_t i = 0; i < param->ndim && !is_empty; i++) {
        uint64_t size = mb_load_u64(data + param->shape_offset + 8 * (uint64_t)i);
        require(size <= INT64_MAX && mb_mul(expected, size, &expected), "a product of 64 bits");
    }
    require(param->nbytes == (is_empty ? 0 : expected), "as many bytes as the shape says");
}

static void check(const uint8_t *data, uint64_t nbytes) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint64_t count = 0, reserved = 0, done = 0;
    mb_cursor cursor = mb_cursor_of(data, data, nbytes);
    if (mb_params_header(&cursor, &count, &reserved, &error)) {
        require(error.detail != NULL && error.offset <= nbytes, "an error with its place");
        count = 3; /* go on as if it had been good */
        cursor.at = data + (nbytes < 24 ? nbytes : 24);
    }
    require(count == 3 || count <= nbytes / MB_PARAM_LEAST_NBYTES, "no more tensors than fit");
    mb_param *params = (mb_param *)exactly(count * sizeof *params);
    memset(params, 0, count * sizeof *params);
    if (mb_params_names(&cursor, count, params, &error)) {
        require(error.detail != NULL && error.offset <= nbytes, "an error with its place");
    } else {
        for (uint64_t i = 0; i < count; i++) {
            require(params[i].name_offset <= nbytes && params[i].name_nbytes <= nbytes - params[i].name_offset, "names inside the file");
        }
    }
    mb_status status = mb_params_records(&cursor, count, params, &done, &error);
    require(status != MB_OK ? done < count && error.detail != NULL && error.offset <= nbytes : done == count, "as many rows as were good");
    for (uint64_t i = 0; i < done; i++) {
        check_record(&params[i], data, nbytes);
        require(i == 0 || params[i].offset == params[i - 1].data_offset + params[i - 1].nbytes, "records in a row");
    }
    free(params);
    for (uint64_t offset = 0; offset < nbytes && offset < 4096; offset++) { /* records anywhere */
        mb_param param;
        memset(&param, 0, sizeof param);
        cursor = mb_cursor_of(data, data + offset, nbytes - offset);
        if (mb_params_record(&cursor, &param, &error) == MB_OK) check_record(&param, data, nbytes);
    }
}
