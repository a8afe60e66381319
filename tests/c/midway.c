/* midway.c: the operations of changing.h on sources that change in the middle of a pass, at a place that is always the same:
 * at the first touch of their second page, all that lies before it becomes something else. Linux and macOS. An argument n: only
 * every nth change, of each operation and tier other ones. */
#define _DEFAULT_SOURCE
#define _DARWIN_C_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>
#include "changing.h"

enum { PAGES = 3 }; /* two of the source, one that nobody may touch */

static uint8_t *pages;
static size_t page;
static const source *now;
static volatile sig_atomic_t is_armed;
static uint64_t changes;

static void replace(const uint8_t *content) { memcpy((uint8_t *)(uintptr_t)now->data, content, (size_t)now->nbytes); }

static void fault(int number, siginfo_t *info, void *context) {
    static const char words[] = "broken promise: nothing past the source is read\n";
    const uint8_t *at = (const uint8_t *)info->si_addr;
    (void)number, (void)context;
    if (!is_armed || at < pages + page || at >= pages + 2 * page) {
        if (write(2, words, sizeof words - 1) < 0) _exit(3);
        _exit(2);
    }
    is_armed = 0, changes++;
    if (mprotect(pages + page, page, PROT_READ | PROT_WRITE) != 0) _exit(4);
    replace(now->after);
}

/* From here on the second page is not there until it is touched. */
static void arm(void) {
    is_armed = 1;
    require(mprotect(pages + page, page, PROT_NONE) == 0, "pages can be protected");
}

static void arm_again(void) {
    if (!is_armed) arm(); /* the first pass has run into it: now the second one does */
}

static uint64_t random_state = 7;

static uint64_t random_64(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state ^ random_state >> 29 ^ random_state << 32;
}

enum { WAYS = 9, OTHER_WAYS = 11 }; /* the last two only as what something becomes */

/* Contents that kernels take apart differently: small numbers, numbers of any size, varints, bits, bytes. */
static void fill(uint8_t *dst, uint64_t nbytes, int way) {
    static const uint8_t text[] = "program(1.0)[buildInfo = dict<string, string>({{\"a\", \"b\"}})]{func main<ios16>(tensor<fp32, [1]> x) {tensor<int32, [4]> w = const()[val = tensor<int32, [4]>([1, 2, 3, 4])];} -> (x);}";
    const uint64_t wide = random_64();
    for (uint64_t i = 0; i < nbytes; i++) {
        const uint64_t any = random_64();
        dst[i] = way == 0 ? 1 : way == 1 ? (uint8_t)(i % 8 == 0) : way == 2 ? (uint8_t)any : way == 3 ? 0xff : way == 4 ? 0x80 : way == 5 ? (uint8_t)(i % 2 == 0 ? 0x81 : 0x01)
               : way == 6 ? text[i % (sizeof text - 1)] : way == 7 || way == 10 ? 0 : way == 9 ? (uint8_t)(i < 72 ? 0xff : i % 8 == 0) : (uint8_t)(i % 8 < (wide >> 60) / 2 ? any : 0);
    }
    /* Three messages in each other. The innermost has its tag in byte 7, and its length after that: in the second page, if the
     * first one ends there. */
    for (uint64_t depth = 0, at = 0; (way == 7 || way == 10) && depth < 3; depth++) {
        dst[at++] = depth == 1 || (depth == 2 && way == 10) ? 0x8a : 0x0a;
        if (depth == 1) dst[at++] = 0; /* a padded tag */
        const uint64_t length = nbytes - at - 2;
        dst[at++] = (uint8_t)(length | 0x80), dst[at++] = (uint8_t)(length >> 7);
    }
}

int main(int argc, char **argv) {
    const int nth = argc > 1 ? atoi(argv[1]) : 1;
    struct sigaction action;
    require(nth > 0, "a number");
    source_changes = arm_again;
    page = (size_t)sysconf(_SC_PAGESIZE);
    pages = (uint8_t *)mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(pages != (uint8_t *)MAP_FAILED, "three pages");
    require(mprotect(pages + 2 * page, page, PROT_NONE) == 0, "pages can be protected");
    memset(&action, 0, sizeof action);
    action.sa_sigaction = fault, action.sa_flags = SA_SIGINFO | SA_NODEFER;
    require(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0, "faults can be handled");
    uint8_t *before = (uint8_t *)exactly(2 * page), *after = (uint8_t *)exactly(2 * page);
    for (unsigned which = 0; which < OPERATIONS; which++)
        for (int row = 0; row < mb_tier_usable(); row++)
            for (int change = ((int)which + row) % nth; change < WAYS * OTHER_WAYS; change += nth)
                for (unsigned pass = 0; pass < 6; pass++) { /* change in the first pass that comes there, or the second one */
                    const size_t begins[] = {page - 72, page - 2048, page - 8}, begin = begins[pass / 2]; /* in the first page */
                    const source s = {pages + begin, before, after, 2 * page - begin};
                    fill(before, s.nbytes, change / OTHER_WAYS), fill(after, s.nbytes, change % OTHER_WAYS);
                    /* One element outside, or one long number, where the first page ends: it is seen, and then it is gone. */
                    if (change / OTHER_WAYS == 0 && begin < page - 8) before[page - begin - 5] = 0xf3;
                    now = &s;
                    replace(before);
                    if (pass % 2 == 0) arm();
                    operate(&mb_tiers[row], s, which);
                    is_armed = 0;
                    require(mprotect(pages + page, page, PROT_READ | PROT_WRITE) == 0, "pages can be protected");
                }
    require(changes * (uint64_t)nth > (uint64_t)OPERATIONS * WAYS * WAYS, "sources that did change");
    free(before), free(after);
    return 0;
}
