/* fuzz_compress.c: libFuzzer entry for what tests/c/compress.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/compress.c"
