/* compare.c: two arrays compared in every tier, on buffers of their exact size and with every pair of dtypes. No arguments. */
#include "digest.h"
#include "milblob/difference.h"
#include <stdio.h>
#include <stdlib.h>

static uint64_t random_state = 1;

static uint8_t random_byte(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(random_state >> 56);
}

static void require(int holds, const char *promise) {
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", promise);
    abort();
}

static uint8_t *random_bytes(uint64_t nbytes) {
    uint8_t *bytes = (uint8_t *)malloc(nbytes > 0 ? (size_t)nbytes : 1);
    if (bytes == NULL) abort();
    for (uint64_t i = 0; i < nbytes; i++) bytes[i] = random_byte();
    return bytes;
}

/* Whether two results have the same bits; a NaN among the sums (of infinities that overflow) may be any NaN. */
static int equal(const mb_comparison *a, const mb_comparison *b) {
    int same = a->count == b->count && a->finite == b->finite && a->unequal == b->unequal && a->outside == b->outside && a->mismatched == b->mismatched;
    same &= a->most == b->most || (a->most != a->most && b->most != b->most);
    for (int i = 0; i < MB_COMPARE_SUMS; i++) same &= a->sums[i] == b->sums[i] || (a->sums[i] != a->sums[i] && b->sums[i] != b->sums[i]);
    return same;
}

/* Make floats finite and near 1, and every third element that of `same` if there is one. */
static void calm(uint8_t *at, uint32_t code, uint64_t count, const uint8_t *same) {
    const size_t nbytes = mb_number_nbytes(code);
    const bool is_float = code == MB_MIL_FLOAT16 || code == MB_MIL_BFLOAT16 || code == MB_MIL_FLOAT32 || code == MB_MIL_FLOAT64;
    for (uint64_t i = 0; i < count; i++, at += nbytes) {
        if (is_float) at[nbytes - 1] = (uint8_t)(0x3b | (at[nbytes - 1] & 0x84));
        if (same != NULL && i % 3 == 0) memcpy(at, same + i * nbytes, nbytes);
    }
}

static void check(uint32_t a_code, uint32_t b_code, uint64_t count, uint64_t shift, bool is_calm) {
    const size_t a_nbytes = mb_number_nbytes(a_code), b_nbytes = mb_number_nbytes(b_code);
    const mb_tolerance tolerance = {0.5, 0.25};
    uint8_t *a = random_bytes(count * a_nbytes + shift), *b = random_bytes(count * b_nbytes + shift);
    mb_comparison plain, other, any;
    if (is_calm) calm(a + shift, a_code, count, NULL), calm(b + shift, b_code, count, a_code == b_code ? a + shift : NULL);
    memset(&plain, 0, sizeof plain);
    mb_compare(&mb_tiers[0], a_code, a + shift, b_code, b + shift, count, tolerance, &plain);
    digest_add(&plain, offsetof(mb_comparison, most));
    digest_number(plain.most);
    for (int i = 0; i < MB_COMPARE_SUMS; i++) digest_number(plain.sums[i]);
    for (int tier = 1; tier < mb_tier_usable(); tier++) {
        memset(&other, 0, sizeof other);
        mb_compare(&mb_tiers[tier], a_code, a + shift, b_code, b + shift, count, tolerance, &other);
        require(equal(&plain, &other), "every tier gives the same bits");
    }
    mb_compare_any(a_code, a + shift, b_code, b + shift, count, tolerance, &any);
    require(any.count == plain.count && any.finite == plain.finite && any.unequal == plain.unequal && any.outside == plain.outside &&
                any.mismatched == plain.mismatched && any.most == plain.most,
            "blocks count what single elements count");
    memset(&other, 0, sizeof other);
    if (a_code == b_code) mb_compare(&mb_tiers[0], a_code, a + shift, a_code, a + shift, count, tolerance, &other);
    require(other.unequal == 0 && other.outside == 0 && other.mismatched == 0 && other.most == 0, "an array equals itself");
    mb_hash_elements(a + shift, count, a_nbytes);
    free(a), free(b);
}

int main(void) {
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 31, 64, 65, 1025};
    static const uint64_t more[] = {1023, 1024, 2050};
    for (uint32_t i = 0; i < MB_DTYPE_COUNT; i++)
        for (uint32_t k = 0; k < MB_DTYPE_COUNT; k++) {
            const uint32_t a_code = mb_dtypes[i].mil_code, b_code = mb_dtypes[k].mil_code;
            if (mb_number_nbytes(a_code) == 0 || mb_number_nbytes(b_code) == 0) continue;
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) check(a_code, b_code, counts[c], (i + k + c) % 3, (i + k + c) % 2 != 0);
            for (size_t c = 0; i == k && c < sizeof more / sizeof more[0]; c++) check(a_code, b_code, more[c], c, i % 2 != 0);
            for (uint64_t count = 0; i == k && count <= 130; count++) check(a_code, b_code, count, count % 9, count % 5 != 0);
        }
    digest_print();
    return 0;
}
