/* fuzz_sub_byte.c: libFuzzer entry for what tests/c/sub_byte.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/sub_byte.c"
