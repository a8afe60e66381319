/* between.c: the operations of changing.h on sources that change between two passes; see replay.h for the command line.
 *
 * A file is a byte that chooses the operation, and two contents of one length: what is there first, and what it becomes. */
#include <stdbool.h>
#include "changing.h"
#include "replay.h"

static uint8_t *shared;
static const uint8_t *next_content;
static uint64_t shared_nbytes;

static void replace_all(void) {
    if (shared_nbytes > 0) memcpy(shared, next_content, (size_t)shared_nbytes);
}

static void check(const uint8_t *data, uint64_t nbytes) {
    if (nbytes == 0) return;
    const uint64_t half = (nbytes - 1) / 2;
    source_changes = replace_all;
    const uint8_t *contents[2] = {data + 1, data + 1 + half};
    for (unsigned round = 0; round < 3; round++) { /* one way, the other way, and no change at all */
        const uint8_t *before = contents[round == 1], *after = contents[round == 0];
        for (int row = 0; row < mb_tier_usable(); row++) {
            shared = (uint8_t *)exactly(half), shared_nbytes = half, next_content = after;
            if (half > 0) memcpy(shared, before, (size_t)half);
            const source s = {shared, before, after, half};
            operate(&mb_tiers[row], s, data[0] % OPERATIONS);
            free(shared);
        }
    }
}
