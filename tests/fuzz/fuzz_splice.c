/* fuzz_splice.c: libFuzzer entry for what tests/c/splice_edits.c checks; see docs/security.md. */
#define MILBLOB_FUZZ
#include "../c/splice_edits.c"
