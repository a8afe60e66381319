/* fuzz_tensor.c: libFuzzer entry for what tests/c/tensor_value.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/tensor_value.c"
