/* tensor_value.h: what must hold of any bytes that are read as a TensorValue. */
#ifndef MILBLOB_TESTS_TENSOR_VALUE_H
#define MILBLOB_TESTS_TENSOR_VALUE_H

#include "milblob/kernels/subbyte.h"
#include "milblob/wire/tensor.h"
#include "milblob/kernels/varint.h"
#include "replay.h"

/* The quick decoder and the careful one agree, and neither writes past `count` elements. */
#define CHECK_DECODE(name, type, lo, hi) \
    static void check_##name(const uint8_t *src, uint64_t nbytes, uint64_t count) { \
        type *quick = (type *)exactly(count * sizeof(type)), *careful = (type *)exactly(count * sizeof(type)); \
        mb_error a = {MB_OK, 0, 0, 0, NULL}, b = a; \
        mb_status status = name(quick, src, nbytes, count, lo, hi, &a); \
        require(status == name##_careful(careful, src, nbytes, count, lo, hi, &b), "the same status"); \
        require(a.offset == b.offset && a.expected == b.expected && a.got == b.got, "the same error"); \
        require(status != MB_OK || count == 0 || memcmp(quick, careful, (size_t)count * sizeof(type)) == 0, "the same values"); \
        require(status == MB_OK || a.offset <= nbytes, "an offset inside the payload"); \
        free(quick); \
        free(careful); \
    }

CHECK_DECODE(mb_varint_decode_8, uint8_t, 0, 1)
CHECK_DECODE(mb_varint_decode_16, uint16_t, INT16_MIN, INT16_MAX)
CHECK_DECODE(mb_varint_decode_32, uint32_t, INT32_MIN, UINT32_MAX)
CHECK_DECODE(mb_varint_decode_64, uint64_t, INT64_MIN, INT64_MAX)

static void check_varints(const uint8_t *src, uint64_t nbytes) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint64_t count = mb_varint_count(src, nbytes);
    require(count <= nbytes, "a byte per varint");
    for (uint64_t wanted = count > 0 ? count - 1 : 0; wanted <= count + 1; wanted++) {
        uint8_t *bools = (uint8_t *)exactly(wanted);
        mb_status status = mb_varint_decode_bool(bools, src, nbytes, wanted, &error);
        require(status != MB_OK || wanted == count, "no values from nowhere");
        free(bools);
        check_mb_varint_decode_8(src, nbytes, wanted);
        check_mb_varint_decode_16(src, nbytes, wanted);
        check_mb_varint_decode_32(src, nbytes, wanted);
        check_mb_varint_decode_64(src, nbytes, wanted);
    }
}

static void check_bits(const uint8_t *src, uint64_t nbytes) {
    static const unsigned widths[] = {1, 2, 3, 4, 6};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        uint64_t count = nbytes * 8 / widths[i];
        uint8_t *values = (uint8_t *)exactly(count), *packed = (uint8_t *)exactly(mb_packed_nbytes(count, widths[i]));
        mb_error error;
        mb_unpack_bits(values, src, count, widths[i]);
        require(mb_pack_bits(packed, values, count, widths[i], 0, (1 << widths[i]) - 1, false, &error) == MB_OK, "packs again");
        require(count / 8 * widths[i] == 0 || memcmp(packed, src, (size_t)(count / 8 * widths[i])) == 0, "the same bits");
        free(values);
        free(packed);
    }
}

/* [data, data + nbytes) lies in a buffer that starts at base. */
static void check_tensor_value(const uint8_t *base, const uint8_t *data, uint64_t nbytes) {
    mb_tensor tensor;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint64_t end = (uint64_t)(data - base) + nbytes;
    if (mb_tensor_locate(base, data, nbytes, &tensor, &error)) {
        require(error.offset >= (uint64_t)(data - base) && error.offset <= end && error.detail != NULL, "an error with its place");
        return;
    }
    require(tensor.field <= MB_FIELD_BYTES, "a field that exists");
    if (tensor.field == MB_FIELD_NONE) return;
    require(tensor.chunk_count == 0 || (tensor.offset <= end && tensor.nbytes <= nbytes), "a payload inside");
    uint8_t *dst = (uint8_t *)exactly(tensor.nbytes);
    uint64_t *ranges = (uint64_t *)exactly(tensor.count * 16);
    if (tensor.field == MB_FIELD_STRINGS) {
        require(mb_tensor_gather(base, base + end, &tensor, NULL, ranges, &error) == MB_OK, "strings that were located");
        for (uint64_t i = 0; i < tensor.count; i++)
            require(ranges[2 * i] <= end && ranges[2 * i + 1] <= end - ranges[2 * i], "strings inside");
    } else if (tensor.field != MB_FIELD_BYTES) {
        require(mb_tensor_gather(base, base + end, &tensor, dst, NULL, &error) == MB_OK, "chunks that were located");
        if (tensor.chunk_count == 1)
            require(tensor.nbytes == 0 || memcmp(dst, base + tensor.offset, (size_t)tensor.nbytes) == 0, "one piece where it lies");
        /* As if the bytes had changed after they were located: room for less must be an error, not a write. */
        if (tensor.nbytes > 0) {
            uint8_t *less = (uint8_t *)exactly(tensor.nbytes - 1);
            tensor.nbytes--;
            require(mb_tensor_gather(base, base + end, &tensor, less, NULL, &error) == MB_COUNT, "nothing past dst");
            tensor.nbytes++;
            free(less);
        }
        check_varints(dst, tensor.nbytes);
    } else {
        memcpy(dst, base + tensor.offset, (size_t)tensor.nbytes);
        check_bits(dst, tensor.nbytes);
        check_varints(dst, tensor.nbytes);
    }
    free(dst);
    free(ranges);
}

#endif
