/* races.c: the operations of changing.h while another thread keeps changing their source. One argument: how many times each. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "changing.h"

enum { NBYTES = 6000 };

static uint8_t *shared;
static uint8_t contents[2][NBYTES];
static atomic_bool is_over;

static void keep_going(void) {}

/* Stretches of a random length, so that a pass sees some of either. */
static void *keep_changing(void *unused) {
    uint64_t state = 1;
    (void)unused;
    while (!atomic_load(&is_over)) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint64_t begin = (state >> 40) % NBYTES, most = (state >> 20) % 700 + 1, nbytes = most < NBYTES - begin ? most : NBYTES - begin;
        memcpy(shared + begin, contents[state >> 63] + begin, (size_t)nbytes);
        MB_ONCE();
    }
    return NULL;
}

static void fill_once(uint8_t *dst, int way) {
    static const uint8_t text[] = "program(1.0){func main<ios16>(tensor<fp32, [1]> x) {tensor<string, []> w = const()[val = tensor<string, []>(\"abcd\")];} -> (x);}";
    static uint64_t state = 99;
    for (unsigned i = 0; i < NBYTES; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint8_t any = (uint8_t)(state >> 50);
        dst[i] = way == 0 ? (uint8_t)(i % 4 == 0) : way == 1 ? any : way == 2 ? 1 : way == 3 ? (uint8_t)(any & 3 ? 0x81 : 1) : way == 4 ? text[i % (sizeof text - 1)] : (uint8_t)(i % 2 ? any & 63 : 0x0a);
    }
}

int main(int argc, char **argv) {
    static const int pairs[][2] = {{0, 1}, {2, 1}, {2, 3}, {3, 1}, {4, 1}, {5, 1}, {5, 4}};
    source_changes = keep_going; /* the other thread changes it */
    const unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 100;
    shared = (uint8_t *)exactly(NBYTES); /* a sanitizer sees the first byte after it */
    for (unsigned k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
        pthread_t thread;
        fill_once(contents[0], pairs[k][0]), fill_once(contents[1], pairs[k][1]);
        memcpy(shared, contents[0], NBYTES);
        atomic_store(&is_over, false);
        require(pthread_create(&thread, NULL, keep_changing, NULL) == 0, "a second thread");
        const source s = {shared, NULL, NULL, NBYTES};
        for (unsigned long round = 0; round < rounds; round++)
            for (unsigned which = 0; which < OPERATIONS; which++)
                for (int row = 0; row < mb_tier_usable(); row++) operate(&mb_tiers[row], s, which);
        atomic_store(&is_over, true);
        require(pthread_join(thread, NULL) == 0, "which ends");
    }
    free(shared);
    return 0;
}
