/* compare.c: two arrays of any two dtypes compared by every tier, against plain, and one element after another. See choices.h. */
#include "milblob/difference.h"
#include "choices.h"

/* Bits of two results; a NaN, which two infinite sums may give, is one whatever its payload. */
static bool same_number(double a, double b) { return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

static void check(const mb_tier *tier, uint32_t a_code, uint32_t b_code, uint64_t count, uint64_t shift, mb_tolerance tolerance, int likeness) {
    const size_t a_nbytes = mb_number_nbytes(a_code), b_nbytes = mb_number_nbytes(b_code);
    uint8_t *a = random_bytes(count * a_nbytes + shift), *b = random_bytes(count * b_nbytes + shift);
    if (likeness > 0 && a_nbytes == b_nbytes) /* the same but for a few */
        for (uint64_t i = 0; i < count * a_nbytes; i++)
            if (likeness == 2 || i % 31 != 7) b[shift + i] = a[shift + i];
    mb_comparison quick, plain, slow;
    memset(&quick, 0, sizeof quick), memset(&plain, 0, sizeof plain), memset(&slow, 0, sizeof slow);
    mb_compare(tier, a_code, a + shift, b_code, b + shift, count, tolerance, &quick);
    mb_compare(&mb_tiers[0], a_code, a + shift, b_code, b + shift, count, tolerance, &plain);
    for (uint64_t i = 0; i < count; i++) {
        mb_comparison one;
        mb_compare_any(a_code, a + shift + i * a_nbytes, b_code, b + shift + i * b_nbytes, 1, tolerance, &one);
        mb_comparison_add(&slow, &one);
    }
    require(quick.count == count && quick.finite + quick.mismatched <= count, "every pair is counted");
    require(quick.finite == slow.finite && quick.unequal == slow.unequal && quick.outside == slow.outside && quick.mismatched == slow.mismatched, "counts of single elements");
    require(same_number(quick.most, slow.most), "the largest difference of single elements");
    require(memcmp(&quick, &plain, offsetof(mb_comparison, most)) == 0, "every tier counts the same");
    require(same_number(quick.most, plain.most), "every tier finds the same largest difference");
    for (int i = 0; i < MB_COMPARE_SUMS; i++) require(same_number(quick.sums[i], plain.sums[i]), "every tier gives the same sums");
    require(likeness < 2 || a_code != b_code || quick.unequal == 0, "equal arrays are equal");
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
    const mb_tier *tier = &mb_tiers[random_below((uint32_t)mb_tier_usable())];
    const uint32_t a_code = random_code(), b_code = random_below(2) ? random_code() : a_code;
    const mb_tolerance tolerance = tolerances[random_below(4)];
    const uint64_t shift = random_below(9), count = random_below(limit);
    check(tier, a_code, b_code, count, shift, tolerance, (int)random_below(3));
}

static void one_round(void) { check_some(random_byte() & 1 ? 3000 : 130); }

#ifndef MILBLOB_FUZZ

/* Every pair of dtypes, with counts around those of blocks and of the parts that a row of SIMD takes. */
static void check_every_pair(void) {
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 31, 64, 65, 1023, 1024, 1025, 2050};
    const mb_tolerance tolerance = {0.5, 0.25};
    for (uint32_t i = 0; i < MB_DTYPE_COUNT; i++)
        for (uint32_t k = 0; k < MB_DTYPE_COUNT; k++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                for (int tier = 0; tier < mb_tier_usable(); tier++)
                    if (mb_number_nbytes(mb_dtypes[i].mil_code) && mb_number_nbytes(mb_dtypes[k].mil_code))
                        check(&mb_tiers[tier], mb_dtypes[i].mil_code, mb_dtypes[k].mil_code, counts[c], (i + k + c) % 3, tolerance, (int)(c % 3));
}

static void all_rounds(void) {
    check_every_pair();
    for (int round = 0; round < 4000; round++) check_some(round % 8 == 0 ? 3000 : 130);
}

#endif
