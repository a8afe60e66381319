/* fuzz_program.c: libFuzzer entry for what tests/c/scan_program.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/scan_program.c"
