/* written.h: writes a graph as MIL text, and requires that what was written can be read, and is written the same again. */
#ifndef MILBLOB_TESTS_WRITTEN_H
#define MILBLOB_TESTS_WRITTEN_H

#include "milblob/kernels.h"
#include "milblob/text/parse.h"
#include "milblob/text/write.h"
#include "promises.h"

enum { WRITTEN_MOST = 1 << 22 };

typedef struct written {
    uint8_t *bytes;
    uint64_t nbytes;
} written;

static int keep_text(void *context, const uint8_t *bytes, uint64_t nbytes) {
    written *text = (written *)context;
    if (nbytes > WRITTEN_MOST - text->nbytes) return 0;
    text->bytes = (uint8_t *)realloc(text->bytes, (size_t)(text->nbytes + nbytes));
    require(text->bytes != NULL, "memory");
    memcpy(text->bytes + text->nbytes, bytes, (size_t)nbytes);
    text->nbytes += nbytes;
    return 1;
}

/* The whole text with so many bytes and keys of room, and a tier's kernels or none; false unless all of it was written. */
static bool write_all(const mb_graph *graph, uint64_t nbytes, uint64_t keys, uint64_t capacity, const mb_tier *tier, written *text) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_writer w;
    mb_span program = {0, nbytes};
    memset(&w, 0, sizeof w);
    w.graph = graph, w.base = graph->scan.base, w.error = &error, w.has_scalars = true, w.is_plain = true;
    w.keys = (mb_write_key *)exactly((w.key_capacity = keys) * sizeof *w.keys);
    w.print.out = (uint8_t *)exactly(w.print.capacity = capacity);
    w.runs = tier != NULL ? tier->varint_run : NULL;
    w.print.flush = text != NULL ? keep_text : NULL;
    w.print.context = text;
    mb_status status = mb_text_write(&w, MB_WRITE_HEADER, program, 0, 3);
    for (uint32_t i = 0; i < graph->function_count && status == MB_OK; i++) status = mb_text_write(&w, MB_WRITE_FUNCTION, program, i, 0);
    require(status == MB_OK || error.detail != NULL, "an error that has words");
    require(status == MB_OK || status == MB_FULL || error.offset <= nbytes, "an error with its place");
    mb_print_text(&w.print, "}");
    mb_print_flush(&w.print);
    free(w.keys);
    free(w.print.out);
    return status == MB_OK && !w.print.stopped;
}

static void check_written(const mb_graph *graph, uint64_t nbytes) {
    written text = {NULL, 0}, small = {NULL, 0};
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    write_all(graph, nbytes, 0, MB_PRINT_MOST, NULL, NULL);
    if (write_all(graph, nbytes, 1 << 12, 1 << 12, NULL, &text)) {
        uint64_t capacity = 64 * text.nbytes + 4096, got = 0;
        uint8_t *out = (uint8_t *)exactly(capacity);
        mb_status status = mb_text_to_program(text.bytes, text.nbytes, out, capacity, &got, &error);
        require(status == MB_OK || status == MB_COUNT, "a text that can be read, if it does not unfold beyond its limit");
        free(out);
        const mb_tier *fastest = &mb_tiers[mb_tier_usable() - 1];
        require(write_all(graph, nbytes, 1 << 12, MB_PRINT_MOST, fastest, &small), "the same text through a small buffer, by the fastest kernels");
        require(small.nbytes == text.nbytes && memcmp(small.bytes, text.bytes, (size_t)text.nbytes) == 0, "the same text");
    }
    free(text.bytes);
    free(small.bytes);
}

#endif
