/* fuzz_blob.c: libFuzzer entry for what tests/c/walk_blob.c checks.
 *
 *   clang -O1 -g -Iinclude -Itests/c -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_blob.c -o fuzz_blob && ./fuzz_blob corpus */
#define MILBLOB_FUZZ
#include "../c/walk_blob.c"
