/* fuzz_splice.c: libFuzzer entry for what tests/c/splice_edits.c checks.
 *
 *   clang -O1 -g -Iinclude -Itests/c -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_splice.c -o fuzz_splice && ./fuzz_splice corpus */
#define MILBLOB_FUZZ
#include "../c/splice_edits.c"
