/* digest.h: one number for all results of the plain tier, printed at the end: it has to be the same on every CPU.
 *
 * Results that tests/codec/test_c_drivers.py knows; of a harness for fuzzing there is none. */
#ifndef DIGEST_H
#define DIGEST_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

static uint64_t digest_state = 0xcbf29ce484222325u;

static inline void digest_add(const void *bytes, uint64_t nbytes) {
#ifdef MILBLOB_FUZZ
    nbytes = 0;
#endif
    for (uint64_t i = 0; i < nbytes; i++) digest_state = (digest_state ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
}

/* A NaN that comes of infinities has the sign that the CPU likes: any NaN is the same here. */
static inline void digest_number(double number) {
    if (number == number) digest_add(&number, sizeof number);
    else digest_add("NaN", 3);
}

static inline void digest_print(void) { printf("digest %016" PRIx64 "\n", digest_state); }

#endif
