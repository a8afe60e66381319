/* fuzz_varint.c: libFuzzer entry for what tests/c/varint.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/varint.c"
