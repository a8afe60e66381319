/* dtype.h: the table of element types: their names, codes and sizes. Python's DType enum is built from it when milblob is imported.
 * DATA_TYPES in program/schema.py has the names and MIL codes once more, as the enum of protobuf.
 *
 * A row: X(NAME, MIL text, MIL code, blob code, bits per element, TensorValue field that coremltools writes).
 * The two numberings differ (FLOAT16 is 10 in a Program and 1 in a blob file) and must not be mixed: variables are named
 * mil_code or blob_code. Blob code 0 means that blob files cannot hold the type. STRING has no size: its bits are 0. */
#ifndef MILBLOB_DTYPE_H
#define MILBLOB_DTYPE_H

#include "milblob/base.h"

/* TensorValue's oneof: field numbers of the seven payloads (MIL.proto, message TensorValue). */
enum mb_field {
    MB_FIELD_NONE = 0,
    MB_FIELD_FLOATS = 1,
    MB_FIELD_INTS = 2,
    MB_FIELD_BOOLS = 3,
    MB_FIELD_STRINGS = 4,
    MB_FIELD_LONGINTS = 5,
    MB_FIELD_DOUBLES = 6,
    MB_FIELD_BYTES = 7
};

#define MB_DTYPES(X) \
    X(BOOL, "bool", 1, 0, 8, MB_FIELD_BOOLS) \
    X(STRING, "string", 2, 0, 0, MB_FIELD_STRINGS) \
    X(FLOAT16, "fp16", 10, 1, 16, MB_FIELD_BYTES) \
    X(FLOAT32, "fp32", 11, 2, 32, MB_FIELD_FLOATS) \
    X(FLOAT64, "fp64", 12, 0, 64, MB_FIELD_DOUBLES) \
    X(BFLOAT16, "bf16", 13, 5, 16, MB_FIELD_BYTES) \
    X(INT8, "int8", 21, 4, 8, MB_FIELD_BYTES) \
    X(INT16, "int16", 22, 6, 16, MB_FIELD_INTS) \
    X(INT32, "int32", 23, 14, 32, MB_FIELD_INTS) \
    X(INT64, "int64", 24, 0, 64, MB_FIELD_LONGINTS) \
    X(INT4, "int4", 25, 8, 4, MB_FIELD_BYTES) \
    X(UINT8, "uint8", 31, 3, 8, MB_FIELD_BYTES) \
    X(UINT16, "uint16", 32, 7, 16, MB_FIELD_INTS) \
    X(UINT32, "uint32", 33, 15, 32, MB_FIELD_BYTES) \
    X(UINT64, "uint64", 34, 0, 64, MB_FIELD_LONGINTS) \
    X(UINT4, "uint4", 35, 11, 4, MB_FIELD_BYTES) \
    X(UINT2, "uint2", 36, 10, 2, MB_FIELD_BYTES) \
    X(UINT1, "uint1", 37, 9, 1, MB_FIELD_BYTES) \
    X(UINT6, "uint6", 38, 13, 6, MB_FIELD_BYTES) \
    X(UINT3, "uint3", 39, 12, 3, MB_FIELD_BYTES) \
    X(FLOAT8E4M3FN, "fp8e4m3fn", 40, 16, 8, MB_FIELD_BYTES) \
    X(FLOAT8E5M2, "fp8e5m2", 41, 17, 8, MB_FIELD_BYTES)

enum mb_mil_code {
#define MB_ROW(name, text, mil_code, blob_code, nbits, field) MB_MIL_##name = mil_code,
    MB_DTYPES(MB_ROW)
#undef MB_ROW
};

enum mb_blob_code {
#define MB_ROW(name, text, mil_code, blob_code, nbits, field) MB_BLOB_##name = blob_code,
    MB_DTYPES(MB_ROW)
#undef MB_ROW
};

typedef struct mb_dtype {
    const char *name;      /* the name in MIL.proto, e.g. "FLOAT16" */
    const char *text;      /* the name in MIL text, e.g. "fp16" */
    uint32_t mil_code;
    uint32_t blob_code;    /* 0: not in blob files */
    uint32_t nbits;        /* 0: STRING */
    uint32_t field;        /* enum mb_field */
} mb_dtype;

static const mb_dtype mb_dtypes[] = {
#define MB_ROW(name, text, mil_code, blob_code, nbits, field) {#name, text, mil_code, blob_code, nbits, field},
    MB_DTYPES(MB_ROW)
#undef MB_ROW
};

enum { MB_DTYPE_COUNT = sizeof(mb_dtypes) / sizeof(mb_dtypes[0]) };

/* Stands before a switch over dtypes whose `default` is for integers. With another number of dtypes the compiler stops at each of
 * these switches, so that a new dtype gets its case. */
#define MB_FOR_ALL_DTYPES(count) MB_STATIC_ASSERT(MB_DTYPE_COUNT == (count), "a dtype was added: give it a case in this switch")

/* The widths of less than eight bits, each as the bit of its number. */
enum {
    MB_WIDTHS = 0
#define MB_ROW(name, text, mil_code, blob_code, nbits, field) | ((nbits) > 0 && (nbits) < 8 ? 1 << (nbits) % 8 : 0)
    MB_DTYPES(MB_ROW)
#undef MB_ROW
};

/* Stands before a switch over these widths. With another one the compiler stops at each of these switches. */
#define MB_FOR_ALL_WIDTHS(a, b, c, d, e) \
    MB_STATIC_ASSERT(MB_WIDTHS == (1 << (a) | 1 << (b) | 1 << (c) | 1 << (d) | 1 << (e)), "a width was added: give it a case in this switch")

/* The row of a code, or NULL. Twenty-two rows: a switch or an index table would not be measurably faster. */
static inline const mb_dtype *mb_dtype_of_blob_code(uint32_t blob_code) {
    if (blob_code == 0) return NULL;
    for (size_t i = 0; i < MB_DTYPE_COUNT; i++)
        if (mb_dtypes[i].blob_code == blob_code) return &mb_dtypes[i];
    return NULL;
}

static inline const mb_dtype *mb_dtype_of_mil_code(uint64_t mil_code) {
    for (size_t i = 0; i < MB_DTYPE_COUNT; i++)
        if (mb_dtypes[i].mil_code == mil_code) return &mb_dtypes[i];
    return NULL;
}

static inline const mb_dtype *mb_dtype_of_text(const uint8_t *text, size_t nbytes) {
    for (size_t i = 0; i < MB_DTYPE_COUNT; i++)
        if (strncmp(mb_dtypes[i].text, (const char *)text, nbytes) == 0 && strlen(mb_dtypes[i].text) == nbytes)
            return &mb_dtypes[i]; /* strncmp first: it leaves at the first letter, and never reads past `text` */
    return NULL;
}

#endif
