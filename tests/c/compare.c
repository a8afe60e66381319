/* compare.c: two arrays of any two dtypes compared by every tier, against plain, and one element after another. See choices.h. */
#include "milblob/kernels/difference.h"
#include "choices.h"
#include "digest.h"

/* Bits of two results; a NaN, which two infinite sums may give, is one whatever its payload. */
static bool same_number(double a, double b) { return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

/* Make floats finite and near 1: of any bytes, a block has a NaN too often to be done by a kernel. */
static void calm(uint8_t *at, uint32_t code, uint64_t count) {
    const size_t nbytes = mb_number_nbytes(code);
    if (code == MB_MIL_FLOAT16 || code == MB_MIL_BFLOAT16 || code == MB_MIL_FLOAT32 || code == MB_MIL_FLOAT64)
        for (uint64_t i = 0; i < count; i++) at[(i + 1) * nbytes - 1] = (uint8_t)(0x3b | (at[(i + 1) * nbytes - 1] & 0x84));
}

static void digest_comparison(const mb_comparison *c) {
    digest_add(c, offsetof(mb_comparison, most));
    digest_number(c->most);
    for (int i = 0; i < MB_COMPARE_SUMS; i++) digest_number(c->sums[i]);
}

static void check(uint32_t a_code, uint32_t b_code, uint64_t count, uint64_t shift, mb_tolerance tolerance, int likeness, bool is_calm) {
    const size_t a_nbytes = mb_number_nbytes(a_code), b_nbytes = mb_number_nbytes(b_code);
    uint8_t *a = random_bytes(count * a_nbytes + shift), *b = random_bytes(count * b_nbytes + shift);
    if (is_calm) calm(a + shift, a_code, count), calm(b + shift, b_code, count);
    if (likeness > 0 && a_nbytes == b_nbytes) /* the same but for a few */
        for (uint64_t i = 0; i < count * a_nbytes; i++)
            if (likeness == 2 || i % 31 != 7) b[shift + i] = a[shift + i];
    mb_comparison quick, plain, slow;
    memset(&plain, 0, sizeof plain), memset(&slow, 0, sizeof slow);
    mb_compare(&mb_tiers[0], a_code, a + shift, b_code, b + shift, count, tolerance, &plain);
    digest_comparison(&plain);
    for (uint64_t i = 0; i < count; i++) {
        mb_comparison one;
        mb_compare_any(a_code, a + shift + i * a_nbytes, b_code, b + shift + i * b_nbytes, 1, tolerance, &one);
        mb_comparison_add(&slow, &one);
    }
    require(plain.count == count && plain.finite + plain.mismatched <= count, "every pair is counted");
    require(plain.finite == slow.finite && plain.unequal == slow.unequal && plain.outside == slow.outside && plain.mismatched == slow.mismatched, "counts of single elements");
    require(same_number(plain.most, slow.most), "the largest difference of single elements");
    require(likeness < 2 || a_code != b_code || plain.unequal == 0, "equal arrays are equal");
    for (int tier = 1; tier < mb_tier_usable(); tier++) {
        memset(&quick, 0, sizeof quick);
        mb_compare(&mb_tiers[tier], a_code, a + shift, b_code, b + shift, count, tolerance, &quick);
        require(memcmp(&quick, &plain, offsetof(mb_comparison, most)) == 0, "every tier counts the same");
        require(same_number(quick.most, plain.most), "every tier finds the same largest difference");
        for (int i = 0; i < MB_COMPARE_SUMS; i++) require(same_number(quick.sums[i], plain.sums[i]), "every tier gives the same sums");
    }
    free(a), free(b);
}

static uint32_t random_code(void) {
    const mb_dtype *dtype;
    do dtype = &mb_dtypes[random_below(MB_DTYPE_COUNT)];
    while (mb_number_nbytes(dtype->mil_code) == 0);
    return dtype->mil_code;
}

static void check_some(uint32_t limit) {
    static const mb_tolerance tolerances[] = {{0, 0}, {1e-3, 1e-3}, {0, 1}, {1e300, 0}};
    const uint32_t a_code = random_code(), b_code = random_below(2) ? random_code() : a_code;
    const mb_tolerance tolerance = tolerances[random_below(sizeof tolerances / sizeof tolerances[0])];
    const uint64_t shift = random_below(9), count = random_below(limit);
    const int likeness = (int)random_below(3);
    check(a_code, b_code, count, shift, tolerance, likeness, random_below(2) != 0);
}

static void one_round(void) { check_some(random_byte() & 1 ? 3000 : 130); }

#ifndef MILBLOB_FUZZ

/* Every pair of dtypes, with counts around those of blocks and of the parts that a row of SIMD takes; like ones with more. */
static void check_every_pair(void) {
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 31, 64, 65, 1025}, more[] = {1023, 1024, 2050};
    const mb_tolerance tolerance = {0.5, 0.25};
    for (uint32_t i = 0; i < MB_DTYPE_COUNT; i++)
        for (uint32_t k = 0; k < MB_DTYPE_COUNT; k++) {
            const uint32_t a_code = mb_dtypes[i].mil_code, b_code = mb_dtypes[k].mil_code;
            if (mb_number_nbytes(a_code) == 0 || mb_number_nbytes(b_code) == 0) continue;
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) check(a_code, b_code, counts[c], (i + k + c) % 3, tolerance, (int)(c % 3), (i + k) % 2 == 0);
            for (size_t c = 0; i == k && c < sizeof more / sizeof more[0]; c++) check(a_code, b_code, more[c], c, tolerance, (int)(c % 3), true);
            for (uint64_t count = 0; i == k && count <= 130; count++) check(a_code, b_code, count, count % 9, tolerance, (int)(count % 3), count % 5 != 0);
        }
}

static void all_rounds(void) {
    check_every_pair();
    for (int round = 0; round < 4000; round++) check_some(round % 8 == 0 ? 3000 : 130);
    digest_print();
}

#endif
