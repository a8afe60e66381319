/* fuzz_text.c: libFuzzer entry for MIL text. The first byte chooses the first capacity, so that reruns are fuzzed too.
 *
 *   clang -O1 -g -Iinclude -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_text.c -o fuzz_text && ./fuzz_text corpus */
#include <stdlib.h>

#include "milblob/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes == 0) return 0;
    const uint8_t *text = data + 1;
    uint64_t text_nbytes = nbytes - 1, capacity = data[0] * 8u, out_nbytes;
    mb_error error;
    for (;;) {
        uint8_t *out = (uint8_t *)malloc(capacity > 0 ? (size_t)capacity : 1);
        if (out == NULL) abort();
        mb_status status = mb_text_to_program(text, text_nbytes, out, capacity, &out_nbytes, &error);
        free(out);
        if (status == MB_FULL) {
            if (out_nbytes <= capacity || out_nbytes > MB_TEXT_MAX_UNFOLD * text_nbytes + 4096) abort();
            capacity = out_nbytes;
            continue;
        }
        if (status == MB_OK ? out_nbytes > capacity : error.offset > text_nbytes || error.detail == NULL) abort();
        return 0;
    }
}
