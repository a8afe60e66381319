/* mlir/tables.h: the tables of MLIR bytecode: strings, names of operations, attributes, types, resources, properties.
 *
 *   String          n; n lengths, a NUL included, of the last string first; the strings
 *   Dialect         n; n times name << 1 | 1 if a DialectVersions section follows; the number of operations' names; then in
 *                   groups: dialect, n, n times name << 1 | 1 if it is registered
 *   AttrTypeOffset  n attributes, n types; then in groups, attributes first: dialect, n, n times size << 1 | 1 if custom
 *   AttrType        the attributes and types, one after the other
 *   ResourceOffset  groups of no dialect; then to the end groups: dialect, n, n times key, size, kind u8 (0: blob)
 *   Resource        one after the other: of a blob, alignment, nbytes, padding, the bytes
 *   Properties      n, n times size and bytes
 *
 * Each table is counted in one walk and filled in a second one, which never writes more rows than were counted. */
#ifndef MILBLOB_MLIR_TABLES_H
#define MILBLOB_MLIR_TABLES_H

#include "milblob/mlir/bytes.h"

#define MB_MLIR_NONE UINT32_MAX
/* Rows of one table: thirty times what a large model has. A row takes at most 25 times its bytes in the file. */
enum { MB_MLIR_MAX_ROWS = 1 << 22 };

typedef struct mb_mlir_dialect {
    mb_mlir_span version;  /* data of its DialectVersions section; nbytes 0: none */
    uint32_t name;         /* string */
} mb_mlir_dialect;

typedef struct mb_mlir_op_name {
    uint32_t name, dialect; /* string, row of the dialects */
} mb_mlir_op_name;

typedef struct mb_mlir_entry {
    uint64_t offset, nbytes; /* in the file: of an attribute or a type */
    uint32_t dialect;
    uint32_t is_custom;      /* encoded by its dialect, not as text */
} mb_mlir_entry;

typedef struct mb_mlir_resource {
    uint64_t offset, encoded_nbytes; /* of its entry in the Resource section */
    uint64_t data_offset, nbytes;    /* of a blob; else 0 */
    uint64_t size_offset;            /* of its encoded size, in the ResourceOffset section */
    uint32_t key;                    /* string */
    uint32_t alignment;
    uint32_t kind;                   /* 0: blob, 1: bool, 2: string */
    uint32_t dialect;                /* MB_MLIR_NONE: of none */
} mb_mlir_resource;

typedef struct mb_mlir_tables {
    uint32_t string_count, dialect_count, op_name_count, attribute_count, type_count, resource_count, property_count;
    mb_mlir_span *strings;
    mb_mlir_dialect *dialects;
    mb_mlir_op_name *op_names;
    mb_mlir_entry *attributes, *types;
    mb_mlir_resource *resources;
    mb_mlir_span *properties;
} mb_mlir_tables;

/* Read how many rows follow; each row takes a byte or more of what is left.
 * fails: MB_TRUNCATED, MB_COUNT (more than the bytes can hold, or than MB_MLIR_MAX_ROWS)                              */
static inline mb_status mb_mlir_count(mb_cursor *cursor, uint32_t *count, const char *what, mb_error *error) {
    uint64_t start = mb_offset(cursor), number = 0;
    if (mb_mlir_varint(cursor, &number, what, error)) return error->status;
    uint64_t most = mb_left(cursor) < (uint64_t)MB_MLIR_MAX_ROWS ? mb_left(cursor) : (uint64_t)MB_MLIR_MAX_ROWS;
    if (number > most) return mb_fail(error, MB_COUNT, start, most, number, what);
    *count = (uint32_t)number;
    return MB_OK;
}

static inline mb_status mb_mlir_at_end(const mb_cursor *cursor, const char *what, mb_error *error) {
    if (cursor->at != cursor->end) return mb_fail(error, MB_NUMBER, mb_offset(cursor), 0, mb_left(cursor), what);
    return MB_OK;
}

/* Whether a table may take `more` rows; with `rows`, they must have been counted before.
 * fails: MB_COUNT (too many), MB_CHANGED (the file changed between the two walks)                                     */
static inline mb_status mb_mlir_room(uint32_t count, uint32_t more, bool is_filling, uint32_t counted, uint64_t offset, const char *what, mb_error *error) {
    if (is_filling && (count > counted || more > counted - count)) return mb_fail(error, MB_CHANGED, offset, counted, 0, what);
    if (!is_filling && (count > MB_MLIR_MAX_ROWS || more > MB_MLIR_MAX_ROWS - count)) return mb_fail(error, MB_COUNT, offset, MB_MLIR_MAX_ROWS, (uint64_t)count + more, what);
    return MB_OK;
}

static inline mb_status mb_mlir_read_strings(const uint8_t *file, const mb_mlir_section *section, mb_mlir_tables *t, mb_mlir_span *out, mb_error *error) {
    mb_cursor cursor = mb_mlir_into(file, section);
    uint32_t count = 0;
    if (mb_mlir_count(&cursor, &count, "strings", error)) return error->status;
    if (out == NULL) {
        t->string_count = count;
        return MB_OK;
    }
    if (count != t->string_count) return mb_fail(error, MB_CHANGED, section->offset, t->string_count, 0, "strings");
    uint64_t nbytes = 0;
    for (uint32_t i = count; i > 0; i--) { /* lengths of the last string first */
        uint64_t length = 0, start = mb_offset(&cursor);
        if (mb_mlir_varint(&cursor, &length, "length of string", error)) return error->status;
        if (length == 0 || length > section->nbytes - nbytes) return mb_fail(error, MB_COUNT, start, section->nbytes - nbytes, length, "length of string");
        nbytes += length;
        out[i - 1].nbytes = length;
    }
    if (nbytes != mb_left(&cursor)) return mb_fail(error, MB_COUNT, mb_offset(&cursor), nbytes, mb_left(&cursor), "bytes of strings");
    uint64_t at = mb_offset(&cursor);
    for (uint32_t i = 0; i < count; i++) {
        out[i].offset = at;
        at += out[i].nbytes--;
        if (file[at - 1] != 0) return mb_fail(error, MB_SENTINEL, at - 1, 0, file[at - 1], "end of string");
    }
    return MB_OK;
}

static inline mb_status mb_mlir_read_dialects(const uint8_t *file, const mb_mlir_section *section, mb_mlir_tables *t, bool is_filling, mb_error *error) {
    mb_cursor cursor = mb_mlir_into(file, section);
    uint32_t count = 0, name_count = 0, names = 0;
    if (mb_mlir_count(&cursor, &count, "dialects", error)) return error->status;
    if (mb_mlir_room(0, count, is_filling, t->dialect_count, section->offset, "dialects", error)) return error->status;
    for (uint32_t i = 0; i < count; i++) {
        mb_mlir_dialect row = {{0, 0}, 0};
        uint32_t name = 0;
        if (mb_mlir_index(&cursor, (uint64_t)t->string_count << 1, &name, "name of dialect", error)) return error->status;
        row.name = name >> 1;
        if (name & 1) {
            mb_mlir_section version;
            if (mb_mlir_read_section(&cursor, &version, error)) return error->status;
            if (version.id != MB_MLIR_DIALECT_VERSIONS) return mb_fail(error, MB_NUMBER, version.offset, 7, version.id, "version of dialect: expected a section with id 7");
            row.version.offset = version.data_offset;
            row.version.nbytes = version.nbytes;
        }
        if (is_filling) t->dialects[i] = row;
    }
    if (mb_mlir_count(&cursor, &name_count, "names of operations", error)) return error->status;
    while (cursor.at < cursor.end) {
        uint32_t dialect = 0, in_group = 0;
        if (mb_mlir_index(&cursor, count, &dialect, "dialect of names", error) || mb_mlir_count(&cursor, &in_group, "names of a dialect", error)) return error->status;
        if (in_group > name_count - names) return mb_fail(error, MB_COUNT, mb_offset(&cursor), name_count - names, in_group, "names of a dialect");
        if (mb_mlir_room(names, in_group, is_filling, t->op_name_count, mb_offset(&cursor), "names of operations", error)) return error->status;
        for (uint32_t i = 0; i < in_group; i++) {
            uint32_t name = 0;
            if (mb_mlir_index(&cursor, (uint64_t)t->string_count << 1, &name, "name of operation", error)) return error->status;
            mb_mlir_op_name row = {name >> 1, dialect};
            if (is_filling) t->op_names[names + i] = row;
        }
        names += in_group;
    }
    if (names != name_count) return mb_fail(error, MB_COUNT, section->offset, name_count, names, "names of operations");
    if (!is_filling) t->dialect_count = count, t->op_name_count = names;
    return MB_OK;
}

/* Attributes, or types: `rows` of them, in groups of a dialect. */
static inline mb_status mb_mlir_read_entries(mb_cursor *cursor, uint32_t count, uint32_t dialect_count, uint64_t *at, uint64_t end, mb_mlir_entry *rows, mb_error *error) {
    uint32_t done = 0;
    while (done < count) {
        uint32_t dialect = 0, in_group = 0;
        if (mb_mlir_index(cursor, dialect_count, &dialect, "dialect of attributes or types", error) || mb_mlir_count(cursor, &in_group, "attributes or types of a dialect", error)) return error->status;
        if (in_group == 0 || in_group > count - done) return mb_fail(error, MB_COUNT, mb_offset(cursor), count - done, in_group, "attributes or types of a dialect");
        for (uint32_t i = 0; i < in_group; i++) {
            uint64_t size = 0, start = mb_offset(cursor);
            if (mb_mlir_varint(cursor, &size, "size of attribute or type", error)) return error->status;
            if (size >> 1 > end - *at) return mb_fail(error, MB_TRUNCATED, start, size >> 1, end - *at, "attribute or type");
            mb_mlir_entry row = {*at, size >> 1, dialect, (uint32_t)(size & 1)};
            if (rows != NULL) rows[done + i] = row;
            *at += size >> 1;
        }
        done += in_group;
    }
    return MB_OK;
}

static inline mb_status mb_mlir_read_attributes(const uint8_t *file, const mb_mlir_section *sections, mb_mlir_tables *t, bool is_filling, mb_error *error) {
    mb_cursor cursor = mb_mlir_into(file, &sections[MB_MLIR_ATTR_TYPE_OFFSET]);
    uint64_t at = sections[MB_MLIR_ATTR_TYPE].data_offset, end = at + sections[MB_MLIR_ATTR_TYPE].nbytes;
    uint32_t attributes = 0, types = 0;
    if (mb_mlir_count(&cursor, &attributes, "attributes", error) || mb_mlir_count(&cursor, &types, "types", error)) return error->status;
    if (mb_mlir_room(0, attributes, is_filling, t->attribute_count, mb_offset(&cursor), "attributes", error) ||
        mb_mlir_room(0, types, is_filling, t->type_count, mb_offset(&cursor), "types", error)) return error->status;
    if (mb_mlir_read_entries(&cursor, attributes, t->dialect_count, &at, end, is_filling ? t->attributes : NULL, error) ||
        mb_mlir_read_entries(&cursor, types, t->dialect_count, &at, end, is_filling ? t->types : NULL, error) ||
        mb_mlir_at_end(&cursor, "offsets of attributes: expected their end, but bytes", error)) return error->status;
    if (at != end) return mb_fail(error, MB_COUNT, at, end - sections[MB_MLIR_ATTR_TYPE].data_offset, at - sections[MB_MLIR_ATTR_TYPE].data_offset, "bytes of attributes and types");
    if (!is_filling) t->attribute_count = attributes, t->type_count = types;
    return MB_OK;
}

static inline mb_status mb_mlir_read_blob(const uint8_t *file, mb_mlir_resource *row, mb_error *error) {
    mb_cursor cursor = mb_cursor_of(file, file + row->offset, row->encoded_nbytes);
    uint64_t alignment = 0;
    if (mb_mlir_varint(&cursor, &alignment, "alignment of resource", error) || mb_mlir_varint(&cursor, &row->nbytes, "size of resource", error) ||
        mb_mlir_align(&cursor, alignment, error)) return error->status;
    row->alignment = (uint32_t)alignment;
    row->data_offset = mb_offset(&cursor);
    if (row->nbytes != mb_left(&cursor)) return mb_fail(error, MB_COUNT, row->offset, mb_left(&cursor), row->nbytes, "bytes of resource");
    return MB_OK;
}

static inline mb_status mb_mlir_read_resources(const uint8_t *file, const mb_mlir_section *sections, mb_mlir_tables *t, bool is_filling, mb_error *error) {
    const mb_mlir_section *data = &sections[MB_MLIR_RESOURCE];
    mb_cursor cursor = mb_mlir_into(file, &sections[MB_MLIR_RESOURCE_OFFSET]);
    uint64_t at = data->data_offset, end = at + data->nbytes;
    uint32_t external = 0, done = 0;
    if (!data->offset) return MB_OK; /* a file without resources */
    if (mb_mlir_count(&cursor, &external, "groups of external resources", error)) return error->status;
    for (uint32_t group = 0; group < external || cursor.at < cursor.end; group++) {
        bool is_external = group < external;
        uint32_t owner = 0, in_group = 0;
        if (mb_mlir_index(&cursor, is_external ? t->string_count : t->dialect_count, &owner, "owner of resources", error) ||
            mb_mlir_count(&cursor, &in_group, "resources", error) ||
            mb_mlir_room(done, in_group, is_filling, t->resource_count, mb_offset(&cursor), "resources", error)) return error->status;
        for (uint32_t i = 0; i < in_group; i++) {
            mb_mlir_resource row = {at, 0, 0, 0, 0, 0, 0, 0, is_external ? MB_MLIR_NONE : owner};
            uint8_t kind = 0;
            if (mb_mlir_index(&cursor, t->string_count, &row.key, "key of resource", error)) return error->status;
            row.size_offset = mb_offset(&cursor);
            if (mb_mlir_varint(&cursor, &row.encoded_nbytes, "size of resource", error) || mb_mlir_byte(&cursor, &kind, "kind of resource", error)) return error->status;
            if (kind > 2) return mb_fail(error, MB_NUMBER, mb_offset(&cursor) - 1, 0, kind, "kind of resource: expected 0, 1 or 2");
            if (row.encoded_nbytes > end - at) return mb_fail(error, MB_TRUNCATED, row.size_offset, row.encoded_nbytes, end - at, "resource");
            row.kind = kind;
            if (kind == 0 && mb_mlir_read_blob(file, &row, error)) return error->status;
            if (is_filling) t->resources[done + i] = row;
            at += row.encoded_nbytes;
        }
        done += in_group;
    }
    if (at != end) return mb_fail(error, MB_COUNT, at, data->nbytes, at - data->data_offset, "bytes of resources");
    if (!is_filling) t->resource_count = done;
    return MB_OK;
}

static inline mb_status mb_mlir_read_properties(const uint8_t *file, const mb_mlir_section *section, mb_mlir_tables *t, bool is_filling, mb_error *error) {
    mb_cursor cursor = mb_mlir_into(file, section);
    uint32_t count = 0;
    if (!section->offset) return MB_OK;
    if (mb_mlir_count(&cursor, &count, "properties", error) ||
        mb_mlir_room(0, count, is_filling, t->property_count, section->offset, "properties", error)) return error->status;
    for (uint32_t i = 0; i < count; i++) {
        mb_mlir_span row = {0, 0};
        if (mb_mlir_varint(&cursor, &row.nbytes, "size of properties", error)) return error->status;
        row.offset = mb_offset(&cursor);
        if (row.nbytes > mb_left(&cursor)) return mb_fail(error, MB_TRUNCATED, row.offset, row.nbytes, mb_left(&cursor), "properties");
        cursor.at += row.nbytes;
        if (is_filling) t->properties[i] = row;
    }
    if (mb_mlir_at_end(&cursor, "properties: expected their end, but bytes", error)) return error->status;
    if (!is_filling) t->property_count = count;
    return MB_OK;
}

/* Count the rows of every table; with `is_filling`, write them: the caller gave room for as many as were counted.
 * over-reads: none      fails: as above                                                                               */
static inline mb_status mb_mlir_read_tables(const uint8_t *file, const mb_mlir_section *sections, mb_mlir_tables *t, bool is_filling, mb_error *error) {
    if (mb_mlir_read_strings(file, &sections[MB_MLIR_STRING], t, is_filling ? t->strings : NULL, error) ||
        mb_mlir_read_dialects(file, &sections[MB_MLIR_DIALECT], t, is_filling, error) ||
        mb_mlir_read_attributes(file, sections, t, is_filling, error) ||
        mb_mlir_read_resources(file, sections, t, is_filling, error)) return error->status;
    return mb_mlir_read_properties(file, &sections[MB_MLIR_PROPERTIES], t, is_filling, error);
}

#endif
