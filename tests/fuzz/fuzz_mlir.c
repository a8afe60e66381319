/* fuzz_mlir.c: libFuzzer entry for what tests/c/walk_mlir.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/walk_mlir.c"
