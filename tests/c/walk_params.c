/* walk_params.c: reads each file as a .params file of TVM; see replay.h for the command line. */
#include "milblob/tvm/params.h"
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

/* The same record from a copy of its bytes alone: nothing after it is touched. */
static void check_window(const mb_param *param, const uint8_t *data, uint64_t nbytes) {
    uint64_t size = param->data_offset - param->offset;
    for (uint64_t cut = 0; cut < 2; cut++) {
        uint8_t *window = (uint8_t *)exactly(size - cut);
        memcpy(window, data + param->offset, (size_t)(size - cut));
        mb_cursor cursor = mb_cursor_of(window, window, size - cut);
        mb_error error = {MB_OK, 0, 0, 0, NULL};
        mb_param again;
        memset(&again, 0, sizeof again);
        mb_status status = mb_params_record(&cursor, nbytes - param->offset, &again, &error);
        require(status == (cut ? MB_TRUNCATED : MB_OK), "a record of exactly its bytes");
        require(cut || (again.nbytes == param->nbytes && again.data_offset == size), "the same record");
        free(window);
    }
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
    for (; done < count; done++) {
        if (mb_params_record(&cursor, mb_left(&cursor), &params[done], &error)) {
            require(error.detail != NULL && error.offset <= nbytes, "an error with its place");
            break;
        }
        check_record(&params[done], data, nbytes);
        check_window(&params[done], data, nbytes);
        require(mb_offset(&cursor) == params[done].data_offset, "a cursor at the elements");
        cursor.at += params[done].nbytes;
    }
    free(params);
    for (uint64_t offset = 0; offset < nbytes && offset < 4096; offset++) { /* records anywhere */
        mb_param param;
        memset(&param, 0, sizeof param);
        cursor = mb_cursor_of(data, data + offset, nbytes - offset);
        if (mb_params_record(&cursor, mb_left(&cursor), &param, &error) == MB_OK) check_record(&param, data, nbytes);
    }
}
