/* text_to_program.c: reads a model.mil, writes the bytes of its Program to stdout.
 *
 *   cc -std=c11 -O2 -Wall -Wextra -Wconversion -Werror -Iinclude tests/c/text_to_program.c -o text_to_program
 *   ./text_to_program model.mil > program.bin           failure: one line on stderr, exit 1
 *   ./text_to_program --truncate STEP model.mil         every STEP-th prefix must fail with MB_SYNTAX
 *   ./text_to_program --mutate COUNT SEED model.mil     COUNT copies with a few changed bytes; any status will do
 *   ./text_to_program --time ROUNDS model.mil           MB/s of text, best of ROUNDS
 *
 * Text and output live in allocations of their exact size, so that a sanitizer sees the first byte out of bounds. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "milblob/text/parse.h"

/* The rerun protocol: grow to what MB_FULL asked for. */
static mb_status translate(const uint8_t *text, uint64_t nbytes, uint64_t capacity, uint8_t **out, uint64_t *out_nbytes,
                           mb_error *error) {
    for (;;) {
        *out = (uint8_t *)malloc(capacity > 0 ? (size_t)capacity : 1);
        if (*out == NULL) abort();
        mb_status status = mb_text_to_program(text, nbytes, *out, capacity, out_nbytes, error);
        if (status != MB_FULL) return status;
        free(*out);
        if (*out_nbytes <= capacity) abort();
        capacity = *out_nbytes;
    }
}

static uint8_t *exact_copy(const uint8_t *src, uint64_t nbytes) {
    uint8_t *copy = (uint8_t *)malloc(nbytes > 0 ? (size_t)nbytes : 1);
    if (copy == NULL) abort();
    if (nbytes > 0) memcpy(copy, src, (size_t)nbytes);
    return copy;
}

static int truncate_all(const uint8_t *text, uint64_t nbytes, uint64_t step) {
    while (nbytes > 0 && text[nbytes - 1] <= ' ') nbytes--; /* white space at the end may go */
    uint64_t count = 0;
    for (uint64_t cut = 0; cut < nbytes; cut += step, count++) {
        uint8_t *copy = exact_copy(text, cut), *out;
        uint64_t out_nbytes;
        mb_error error;
        mb_status status = translate(copy, cut, count % 2 ? nbytes : 0, &out, &out_nbytes, &error);
        if (status != MB_SYNTAX || error.offset > cut || error.detail == NULL) {
            printf("cut at %llu: status %d at %llu\n", (unsigned long long)cut, (int)status,
                   (unsigned long long)error.offset);
            return 1;
        }
        free(out);
        free(copy);
    }
    printf("%llu truncations, all MB_SYNTAX\n", (unsigned long long)count);
    return 0;
}

static uint64_t random_state;

static uint64_t random_below(uint64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

static int mutate(const uint8_t *text, uint64_t nbytes, uint64_t count, uint64_t seed) {
    static const char marks[] = "()[]{}<>,;=\"\\?-.0x9pe~ \n\xC3tnBLv";
    uint64_t seen[MB_TYPE + 1] = {0};
    random_state = seed;
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *copy = exact_copy(text, nbytes), *out;
        uint64_t out_nbytes;
        mb_error error;
        for (uint64_t edits = 1 + random_below(3); edits > 0; edits--) {
            uint64_t at = random_below(nbytes);
            switch (random_below(4)) {
            case 0: copy[at] = (uint8_t)random_below(256); break;
            case 1: copy[at] = (uint8_t)marks[random_below(sizeof(marks))]; break;
            case 2: copy[at] = text[random_below(nbytes)]; break;
            default: { /* a piece moves */
                uint64_t from = random_below(nbytes), n = random_below(40);
                if (n > nbytes - at) n = nbytes - at;
                if (n > nbytes - from) n = nbytes - from;
                memmove(copy + at, text + from, (size_t)n);
            }
            }
        }
        seen[translate(copy, nbytes, i % 4 ? nbytes : i % 300, &out, &out_nbytes, &error)]++;
        free(out);
        free(copy);
    }
    for (int status = 0; status <= MB_TYPE; status++)
        if (seen[status]) printf("status %d: %llu  ", status, (unsigned long long)seen[status]);
    printf("\n");
    return 0;
}

static int time_it(const uint8_t *text, uint64_t nbytes, uint64_t rounds) {
    uint64_t capacity = nbytes + 4096, out_nbytes = 0;
    uint8_t *out = (uint8_t *)malloc((size_t)capacity);
    double best = 1e9;
    if (out == NULL) abort();
    for (uint64_t i = 0; i < rounds; i++) {
        struct timespec start, end;
        mb_error error;
        timespec_get(&start, TIME_UTC);
        if (mb_text_to_program(text, nbytes, out, capacity, &out_nbytes, &error) != MB_OK) return 1;
        timespec_get(&end, TIME_UTC);
        double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
        if (seconds < best) best = seconds;
    }
    printf("%.0f MB/s of text, %llu -> %llu bytes\n", (double)nbytes / best * 1e-6, (unsigned long long)nbytes,
           (unsigned long long)out_nbytes);
    free(out);
    return 0;
}

static int print_program(const uint8_t *text, uint64_t nbytes) {
    uint8_t *out;
    uint64_t out_nbytes;
    mb_error error;
    mb_status status = translate(text, nbytes, 0, &out, &out_nbytes, &error);
    if (status == MB_OK)
        fwrite(out, 1, (size_t)out_nbytes, stdout);
    else
        fprintf(stderr, "status %d at byte %llu: %s: expected %llu, got %llu\n", (int)status,
                (unsigned long long)error.offset, error.detail ? error.detail : "", (unsigned long long)error.expected,
                (unsigned long long)error.got);
    free(out);
    return status == MB_OK ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    FILE *file = fopen(argv[argc - 1], "rb");
    if (file == NULL) return 2;
    fseek(file, 0, SEEK_END);
    uint64_t nbytes = (uint64_t)ftell(file);
    rewind(file);
    uint8_t *text = (uint8_t *)malloc(nbytes > 0 ? (size_t)nbytes : 1);
    if (text == NULL || fread(text, 1, (size_t)nbytes, file) != nbytes) return 2;
    fclose(file);
    int result = 2;
    if (argc == 2)
        result = print_program(text, nbytes);
    else if (argc > 3 && strcmp(argv[1], "--truncate") == 0)
        result = truncate_all(text, nbytes, strtoull(argv[2], NULL, 10));
    else if (argc > 3 && strcmp(argv[1], "--time") == 0)
        result = time_it(text, nbytes, strtoull(argv[2], NULL, 10));
    else if (argc > 4 && strcmp(argv[1], "--mutate") == 0)
        result = mutate(text, nbytes, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    free(text);
    return result;
}
