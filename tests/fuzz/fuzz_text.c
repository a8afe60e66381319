/* fuzz_text.c: libFuzzer entry for MIL text; see docs/security.md.
 *
 * The first byte chooses the first capacity, so that reruns are fuzzed too. What comes out must not depend on it, and must
 * be a Program that the scan can read: the two know nothing of each other. */
#include "milblob/program/program.h"
#include "milblob/text/parse.h"
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void require(int holds, const char *promise) {
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", promise);
    abort();
}

static uint8_t *exactly(uint64_t nbytes) {
    uint8_t *memory = (uint8_t *)malloc(nbytes > 0 ? (size_t)nbytes : 1);
    if (memory == NULL) abort();
    return memory;
}

static void check_program(const uint8_t *program, uint64_t nbytes) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    mb_scan scan;
    mb_span all = {0, nbytes};
    memset(&scan, 0, sizeof scan); /* no room for any row: it counts them, and looks at everything */
    scan.base = program;
    scan.error = &error;
    scan.flags = MB_SCAN_ALL;
    switch (mb_program_scan(&scan, all)) {
    case MB_OK: case MB_FULL: case MB_SPLIT: case MB_DEPTH: case MB_RANK: case MB_COUNT: case MB_TYPE: case MB_DTYPE: return;
    default: fprintf(stderr, "status %d: %s at %llu\n", (int)error.status, error.detail, (unsigned long long)error.offset);
        require(0, "well-formed protobuf");
    }
}

/* Where the statements stand: with room for some of them, and for all. */
static void check_statements(const uint8_t *text, uint64_t nbytes, uint8_t *out, uint64_t capacity) {
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    uint64_t out_nbytes = 0, count = 0, again = 0, start = 0;
    require(mb_text_to_statements(text, nbytes, out, capacity, &out_nbytes, NULL, 0, &count, &error) == MB_OK, "the same without room for statements");
    for (uint64_t room = count / 2;; room = count) {
        mb_text_span *spans = (mb_text_span *)exactly(room * sizeof(mb_text_span));
        require(mb_text_to_statements(text, nbytes, out, capacity, &out_nbytes, spans, room, &again, &error) == MB_OK && again == count, "as many statements");
        start = 0;
        for (uint64_t i = 0; i < room; i++) {
            require(spans[i].nbytes > 0 && spans[i].start >= start && spans[i].start <= nbytes && spans[i].nbytes <= nbytes - spans[i].start, "a statement in the text, behind the one before");
            require(text[spans[i].start + spans[i].nbytes - 1] == ';', "a statement that ends");
            start = spans[i].start + 1;
        }
        free(spans);
        if (room == count) return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes == 0) return 0;
    const uint8_t *text = data + 1;
    uint64_t text_nbytes = nbytes - 1, capacity = data[0] * 8u, out_nbytes = 0;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    for (;;) {
        uint8_t *out = exactly(capacity);
        mb_status status = mb_text_to_program(text, text_nbytes, out, capacity, &out_nbytes, &error);
        if (status == MB_FULL) {
            require(out_nbytes > capacity && out_nbytes <= MB_TEXT_MAX_UNFOLD * text_nbytes + 4096, "more room, and not too much");
            capacity = out_nbytes;
            free(out);
            continue;
        }
        require(status == MB_OK ? out_nbytes <= capacity : error.offset <= text_nbytes && error.detail != NULL, "a Program, or an error with its place");
        if (status == MB_OK) {
            const uint64_t most = MB_TEXT_MAX_UNFOLD * text_nbytes + 4096;
            uint8_t *roomy = exactly(most), *exact = exactly(out_nbytes);
            uint64_t again = 0;
            memcpy(exact, out, (size_t)out_nbytes);
            require(mb_text_to_program(text, text_nbytes, roomy, most, &again, &error) == MB_OK && again == out_nbytes, "the same length with room for anything");
            require(memcmp(exact, roomy, (size_t)out_nbytes) == 0, "the same Program");
            check_statements(text, text_nbytes, roomy, most);
            free(roomy);
            check_program(exact, out_nbytes);
            free(exact);
        }
        free(out);
        return 0;
    }
}
