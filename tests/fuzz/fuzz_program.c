/* fuzz_program.c: libFuzzer entry for what tests/c/scan_program.c checks.
 *
 *   clang -O1 -g -Iinclude -Itests/c -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_program.c -o fuzz_program && ./fuzz_program corpus */
#define MILBLOB_FUZZ
#include "../c/scan_program.c"
