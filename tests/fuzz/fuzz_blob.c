/* fuzz_blob.c: libFuzzer entry for what tests/c/walk_blob.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/walk_blob.c"
