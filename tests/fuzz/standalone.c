/* standalone.c: a main for the harnesses where there is no libFuzzer: runs each file once, in an allocation of its exact size.
 *
 *   cc -Iinclude -Itests/c -fsanitize=address,undefined tests/fuzz/fuzz_blob.c tests/fuzz/standalone.c -o replay
 *   ./replay tests/fuzz/corpus/blob/FILE...                                                                             */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) return 2;
        fseek(file, 0, SEEK_END);
        const size_t nbytes = (size_t)ftell(file);
        rewind(file);
        uint8_t *data = (uint8_t *)malloc(nbytes > 0 ? nbytes : 1);
        if (data == NULL || fread(data, 1, nbytes, file) != nbytes) return 2;
        fclose(file);
        fprintf(stderr, "%s\n", argv[i]); /* the last line before a crash names the input */
        LLVMFuzzerTestOneInput(data, nbytes);
        free(data);
    }
    printf("%d inputs\n", argc - 1);
    return argc > 1 ? 0 : 2;
}
