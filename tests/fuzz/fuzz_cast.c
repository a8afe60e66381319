/* fuzz_cast.c: libFuzzer entry for what tests/c/cast.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/cast.c"
