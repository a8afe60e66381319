/* fuzz_compare.c: libFuzzer entry for what tests/c/compare.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/compare.c"
