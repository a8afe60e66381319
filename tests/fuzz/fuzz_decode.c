/* fuzz_decode.c: libFuzzer entry for what tests/c/decode.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/decode.c"
