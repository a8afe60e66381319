/* fuzz_tensor.c: libFuzzer entry for what tests/c/tensor_value.c checks.
 *
 *   clang -O1 -g -Iinclude -Itests/c -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_tensor.c -o fuzz_tensor && ./fuzz_tensor corpus */
#define MILBLOB_FUZZ
#include "../c/tensor_value.c"
