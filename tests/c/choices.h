/* choices.h: where a driver takes its shapes and bytes from: a generator with a fixed seed, or what a fuzzer gives.
 *
 *   decode                the rounds that all_rounds() chooses
 *   decode FILE...        one_round() for each file, with its bytes as choices; where these end, those of the generator
 *
 * With MILBLOB_FUZZ defined there is no main but LLVMFuzzerTestOneInput, which calls one_round(). */
#ifndef MILBLOB_TESTS_CHOICES_H
#define MILBLOB_TESTS_CHOICES_H

#include "promises.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1;

static const uint8_t *given;
static uint64_t given_nbytes;

static inline uint8_t random_byte(void) {
    if (given_nbytes > 0) return given_nbytes--, *given++;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(random_state >> 56);
}

/* A number below limit (at least 1), of as many bytes as limit - 1 has. */
static inline uint32_t random_below(uint32_t limit) {
    uint32_t value = 0;
    for (uint32_t rest = limit - 1; rest > 0; rest >>= 8) value = value << 8 | random_byte();
    return value % limit;
}

static inline uint8_t *random_bytes(uint64_t nbytes) {
    uint8_t *memory = exactly(nbytes);
    for (uint64_t i = 0; i < nbytes; i++) memory[i] = random_byte();
    return memory;
}

static void one_round(void);

static inline void round_of(const uint8_t *data, uint64_t nbytes) {
    given = data, given_nbytes = nbytes, random_state = nbytes;
    one_round();
}

#ifdef MILBLOB_FUZZ

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    round_of(data, nbytes);
    return 0;
}

#else

static void all_rounds(void);

int main(int argc, char **argv) {
    if (argc < 2) all_rounds();
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) return 2;
        fseek(file, 0, SEEK_END);
        const uint64_t nbytes = (uint64_t)ftell(file);
        rewind(file);
        uint8_t *data = exactly(nbytes);
        if (fread(data, 1, (size_t)nbytes, file) != nbytes) return 2;
        fclose(file);
        round_of(data, nbytes);
        free(data);
    }
    return 0;
}

#endif
#endif
