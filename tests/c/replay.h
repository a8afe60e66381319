/* replay.h: runs check(data, nbytes) over files, all their truncations and seeded mutations; or, as a libFuzzer entry.
 *
 *   scan_program FILE...                      each file whole, every truncation (at most 4000, evenly spread)
 *   scan_program --mutate COUNT SEED FILE...  COUNT copies of each file with a few changed bytes
 *   scan_program --whole FILE...              each file whole
 *
 * A check aborts where a promise is broken. Input lies in an allocation of its exact size, so that a sanitizer sees the
 * first byte out of bounds. With MILBLOB_FUZZ defined there is no main but LLVMFuzzerTestOneInput. */
#ifndef MILBLOB_TESTS_REPLAY_H
#define MILBLOB_TESTS_REPLAY_H

#include <stdbool.h>
#include "promises.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const uint8_t *data, uint64_t nbytes);

#ifdef MILBLOB_FUZZ

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    check(data, nbytes); /* libFuzzer's own copy is of the exact size */
    return 0;
}

#else

static void check_copy(const uint8_t *data, uint64_t nbytes) {
    uint8_t *copy = (uint8_t *)exactly(nbytes);
    if (nbytes > 0) memcpy(copy, data, (size_t)nbytes);
    check(copy, nbytes);
    free(copy);
}

static uint64_t random_state;

static uint64_t random_below(uint64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

static void mutate(uint8_t *copy, const uint8_t *data, uint64_t nbytes) {
    static const uint8_t marks[] = {0, 1, 2, 7, 8, 10, 18, 26, 34, 63, 64, 127, 128, 129, 254, 255};
    for (uint64_t edits = 1 + random_below(4); edits > 0; edits--) {
        uint64_t at = random_below(nbytes);
        switch (random_below(5)) {
        case 0: copy[at] ^= (uint8_t)(1u << random_below(8)); break;
        case 1: copy[at] = marks[random_below(sizeof marks)]; break;
        case 2: copy[at] = (uint8_t)random_below(256); break;
        case 3: memset(copy + at, (int)(random_below(2) * 255), (size_t)(nbytes - at < 12 ? nbytes - at : 12)); break;
        default: { /* a piece moves */
            uint64_t from = random_below(nbytes), n = random_below(40);
            if (n > nbytes - at) n = nbytes - at;
            if (n > nbytes - from) n = nbytes - from;
            memmove(copy + at, data + from, (size_t)n);
        }
        }
    }
}

static void replay(const uint8_t *data, uint64_t nbytes, bool only_whole, uint64_t mutations) {
    if (mutations == 0) {
        uint64_t step = nbytes / 4000 + 1;
        for (uint64_t cut = 0; cut < nbytes && !only_whole; cut += step) check_copy(data, cut);
        check_copy(data, nbytes);
    }
    for (uint64_t i = 0; i < mutations && nbytes > 0; i++) {
        uint8_t *copy = (uint8_t *)exactly(nbytes);
        memcpy(copy, data, (size_t)nbytes);
        mutate(copy, data, nbytes);
        check(copy, nbytes);
        free(copy);
    }
}

int main(int argc, char **argv) {
    int first = 1;
    uint64_t mutations = 0;
    bool only_whole = argc > 2 && strcmp(argv[1], "--whole") == 0;
    if (only_whole) first = 2;
    if (argc > 3 && strcmp(argv[1], "--mutate") == 0) {
        mutations = strtoull(argv[2], NULL, 10);
        random_state = strtoull(argv[3], NULL, 10);
        first = 4;
    }
    for (int i = first; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) return 2;
        fseek(file, 0, SEEK_END);
        uint64_t nbytes = (uint64_t)ftell(file);
        rewind(file);
        uint8_t *data = (uint8_t *)exactly(nbytes);
        if (fread(data, 1, (size_t)nbytes, file) != nbytes) return 2;
        fclose(file);
        replay(data, nbytes, only_whole, mutations);
        free(data);
    }
    return first < argc ? 0 : 2;
}

#endif
#endif
