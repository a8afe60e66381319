/* fuzz_params.c: libFuzzer entry for what tests/c/walk_params.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/walk_params.c"
