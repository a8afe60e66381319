/* fuzz_statistics.c: libFuzzer entry for what tests/c/statistics.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/statistics.c"
