/* fuzz_between.c: libFuzzer entry for what tests/c/between.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/between.c"
