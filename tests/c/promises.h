/* promises.h: what every driver needs: memory of an exact size, and an end to the program where a promise is broken. */
#ifndef MILBLOB_TESTS_PROMISES_H
#define MILBLOB_TESTS_PROMISES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Never NULL, and exactly nbytes large; the caller frees. Not inline: gcc would warn of memory that a loop over no
 * elements leaves unset. */
static void *exactly(uint64_t nbytes) {
    void *memory = malloc(nbytes > 0 ? (size_t)nbytes : 1);
    if (memory == NULL) abort();
    return memory;
}

static void require(int holds, const char *promise) {
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", promise);
    abort();
}

#endif
