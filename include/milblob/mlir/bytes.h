/* mlir/bytes.h: MLIR bytecode, version 6, in bytes: its varints, and the sections of a file (LLVM, mlir/docs/BytecodeFormat.md).
 *
 *   0  'M' 'L' 0xEF 'R' | version varint | producer, NUL-terminated | sections to the end of the file
 *
 *   section: id u8, | 0x80 if it is aligned; length varint; [alignment varint, 0xCB up to a multiple of it in the file]; data
 *   varint:  the zeros below the lowest set bit of the first byte count the bytes that follow it (0x00: eight); the number is
 *            what lies above that bit, little-endian. Longer forms than needed are legal. */
#ifndef MILBLOB_MLIR_BYTES_H
#define MILBLOB_MLIR_BYTES_H

#include "milblob/wire/wire.h"

enum { MB_MLIR_VERSION = 6, MB_MLIR_PADDING = 0xCB, MB_MLIR_MAX_ALIGNMENT = 1 << 20, MB_MLIR_ALIGNED = 0x80 };

enum mb_mlir_id {
    MB_MLIR_STRING = 0,
    MB_MLIR_DIALECT = 1,
    MB_MLIR_ATTR_TYPE = 2,
    MB_MLIR_ATTR_TYPE_OFFSET = 3,
    MB_MLIR_IR = 4,
    MB_MLIR_RESOURCE = 5,
    MB_MLIR_RESOURCE_OFFSET = 6,
    MB_MLIR_DIALECT_VERSIONS = 7,
    MB_MLIR_PROPERTIES = 8,
    MB_MLIR_IDS = 9
};

typedef struct mb_mlir_span {
    uint64_t offset, nbytes;
} mb_mlir_span;

typedef struct mb_mlir_section {
    uint64_t offset;      /* of its id; of a section that is not there, 0 */
    uint64_t data_offset; /* of its data; all `nbytes` lie inside the file */
    uint64_t nbytes;
    uint32_t id;
    uint32_t alignment;   /* 0: none is stated */
} mb_mlir_section;

/* Read one byte.                                     fails: MB_TRUNCATED */
static inline mb_status mb_mlir_byte(mb_cursor *cursor, uint8_t *value, const char *what, mb_error *error) {
    if (cursor->at == cursor->end) return mb_fail(error, MB_TRUNCATED, mb_offset(cursor), 1, 0, what);
    *value = *cursor->at++;
    return MB_OK;
}

/* Read one varint of 1 to 9 bytes.
 * over-reads: none      fails: MB_TRUNCATED                                                                           */
static inline mb_status mb_mlir_varint(mb_cursor *cursor, uint64_t *value, const char *what, mb_error *error) {
    const uint8_t *at = cursor->at;
    if (at == cursor->end) return mb_fail(error, MB_TRUNCATED, mb_offset(cursor), 1, 0, what);
    uint8_t first = *at;
    unsigned more = 0;
    while (more < 8 && !(first >> more & 1)) more++;
    if ((uint64_t)(cursor->end - at) <= more) return mb_fail(error, MB_TRUNCATED, mb_offset(cursor), more + 1, mb_left(cursor), what);
    uint64_t number = 0;
    for (unsigned i = more; i > 0; i--) number = number << 8 | at[i];
    *value = more == 8 ? number : number << (7 - more) | (uint64_t)(first >> (more + 1));
    cursor->at = at + more + 1;
    return MB_OK;
}

/* Read a varint below `limit`: the number of a row of a table.
 * fails: MB_TRUNCATED, MB_COUNT (the number is the limit or more)                                                     */
static inline mb_status mb_mlir_index(mb_cursor *cursor, uint64_t limit, uint32_t *value, const char *what, mb_error *error) {
    uint64_t start = mb_offset(cursor), number = 0;
    if (mb_mlir_varint(cursor, &number, what, error)) return error->status;
    if (number >= limit) return mb_fail(error, MB_COUNT, start, limit, number, what);
    *value = (uint32_t)number;
    return MB_OK;
}

/* Skip padding up to a multiple of `alignment` in the file.
 * fails: MB_NUMBER (no power of two, or too large), MB_TRUNCATED, MB_SENTINEL (another byte than 0xCB)                */
static inline mb_status mb_mlir_align(mb_cursor *cursor, uint64_t alignment, mb_error *error) {
    if (alignment == 0 || (alignment & (alignment - 1)) || alignment > MB_MLIR_MAX_ALIGNMENT)
        return mb_fail(error, MB_NUMBER, mb_offset(cursor), 0, alignment, "alignment: expected a power of two up to 2^20");
    while (mb_offset(cursor) & (alignment - 1)) {
        uint8_t byte = 0;
        uint64_t at = mb_offset(cursor);
        if (mb_mlir_byte(cursor, &byte, "padding", error)) return error->status;
        if (byte != MB_MLIR_PADDING) return mb_fail(error, MB_SENTINEL, at, MB_MLIR_PADDING, byte, "padding");
    }
    return MB_OK;
}

/* Read the head of a section; the cursor moves past its data.
 * in   cursor: its base is the start of the file          over-reads: none
 * fails: as mb_mlir_align, and MB_NUMBER (id)                                                                         */
static inline mb_status mb_mlir_read_section(mb_cursor *cursor, mb_mlir_section *section, mb_error *error) {
    uint8_t id = 0;
    section->offset = mb_offset(cursor);
    if (mb_mlir_byte(cursor, &id, "section", error) || mb_mlir_varint(cursor, &section->nbytes, "length of section", error)) return error->status;
    section->id = id & (MB_MLIR_ALIGNED - 1);
    section->alignment = 0;
    if (section->id >= MB_MLIR_IDS) return mb_fail(error, MB_NUMBER, section->offset, 0, section->id, "section: expected an id of 0 to 8");
    if (id & MB_MLIR_ALIGNED) {
        uint64_t alignment = 0;
        if (mb_mlir_varint(cursor, &alignment, "alignment of section", error) || mb_mlir_align(cursor, alignment, error)) return error->status;
        section->alignment = (uint32_t)alignment;
    }
    section->data_offset = mb_offset(cursor);
    if (section->nbytes > mb_left(cursor)) return mb_fail(error, MB_TRUNCATED, section->data_offset, section->nbytes, mb_left(cursor), "section");
    cursor->at += section->nbytes;
    return MB_OK;
}

/* The data of a section as a cursor of its own. */
static inline mb_cursor mb_mlir_into(const uint8_t *file, const mb_mlir_section *section) {
    return mb_cursor_of(file, file + section->data_offset, section->nbytes);
}

/* Read the head of a file and find its sections, each at most once; those that every file has must be there.
 * out  sections[id], `order`: ids in the order of the file, `count` of them; *producer
 * over-reads: none      fails: MB_SENTINEL (magic), MB_NUMBER (version, a section twice or missing), as mb_mlir_read_section */
static inline mb_status mb_mlir_sections(const uint8_t *file, uint64_t nbytes, mb_mlir_section sections[MB_MLIR_IDS],
                                         uint8_t order[MB_MLIR_IDS], uint32_t *count, mb_mlir_span *producer, mb_error *error) {
    static const uint8_t magic[4] = {'M', 'L', 0xEF, 'R'};
    mb_cursor cursor = mb_cursor_of(file, file, nbytes);
    uint64_t version = 0;
    memset(sections, 0, MB_MLIR_IDS * sizeof *sections);
    *count = 0;
    if (nbytes < 4) return mb_fail(error, MB_TRUNCATED, 0, 4, nbytes, "magic of MLIR bytecode");
    if (memcmp(file, magic, 4)) return mb_fail(error, MB_SENTINEL, 0, mb_load_u32(magic), mb_load_u32(file), "magic of MLIR bytecode");
    cursor.at += 4;
    if (mb_mlir_varint(&cursor, &version, "version of MLIR bytecode", error)) return error->status;
    if (version != MB_MLIR_VERSION) return mb_fail(error, MB_NUMBER, 4, MB_MLIR_VERSION, version, "version of MLIR bytecode: expected 6");
    producer->offset = mb_offset(&cursor);
    const uint8_t *end = (const uint8_t *)memchr(cursor.at, 0, (size_t)mb_left(&cursor));
    if (end == NULL) return mb_fail(error, MB_TRUNCATED, producer->offset, mb_left(&cursor) + 1, mb_left(&cursor), "producer");
    producer->nbytes = (uint64_t)(end - cursor.at);
    cursor.at = end + 1;
    while (cursor.at < cursor.end) {
        mb_mlir_section found;
        if (mb_mlir_read_section(&cursor, &found, error)) return error->status;
        if (sections[found.id].offset) return mb_fail(error, MB_NUMBER, found.offset, 0, found.id, "section: expected each id once");
        if (found.id == MB_MLIR_DIALECT_VERSIONS) return mb_fail(error, MB_NUMBER, found.offset, 0, found.id, "section: expected one of a file");
        sections[found.id] = found;
        order[(*count)++] = (uint8_t)found.id;
    }
    for (uint32_t id = 0; id < MB_MLIR_IDS; id++) {
        bool may_lack = id == MB_MLIR_RESOURCE || id == MB_MLIR_RESOURCE_OFFSET || id == MB_MLIR_DIALECT_VERSIONS || id == MB_MLIR_PROPERTIES;
        if (!sections[id].offset && !may_lack) return mb_fail(error, MB_NUMBER, nbytes, 0, id, "sections: expected 0, 1, 2, 3 and 4, but without");
    }
    if (!sections[MB_MLIR_RESOURCE].offset != !sections[MB_MLIR_RESOURCE_OFFSET].offset)
        return mb_fail(error, MB_NUMBER, nbytes, 0, sections[MB_MLIR_RESOURCE].offset ? 5 : 6, "sections: expected 5 and 6 together, but only");
    return MB_OK;
}

#endif
