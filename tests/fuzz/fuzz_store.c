/* fuzz_store.c: libFuzzer entry for what tests/c/store_blob.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/store_blob.c"
