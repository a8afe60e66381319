/* statistics.c: tally, moments, distinct values and BLAKE3 of every tier on buffers of their exact size. See choices.h. */
#include "milblob/kernels.h"
#include "choices.h"
#include "digest.h"

static void check_tally(mb_tally *tally, unsigned nbits, uint64_t count, uint64_t shift) {
    static const mb_tally empty;
    const uint64_t nbytes = nbits < 8 ? mb_packed_nbytes(count, nbits) : count * nbits / 8;
    uint8_t *src = random_bytes(nbytes + shift);
    uint64_t total = 0;
    for (uint64_t i = 0; count % 3 == 0 && i < nbytes + shift; i++) src[i] &= 1; /* few patterns: their counts have more than 8 bits */
    static uint64_t expected[MB_PATTERNS];
    memset(expected, 0, sizeof expected);
    for (uint64_t k = 0; k < count; k++) {
        uint32_t bits = 0;
        for (unsigned b = 0; b < nbits; b++) bits |= (uint32_t)(src[shift + (k * nbits + b) / 8] >> (k * nbits + b) % 8 & 1) << b;
        expected[bits]++;
    }
    mb_tally_elements(tally, src + shift, count, nbits);
    require(tally->count == count, "every element is counted");
    uint32_t found = mb_tally_gather(tally, nbits);
    for (uint32_t i = 0; i < found; i++) {
        require(tally->counts[i] > 0 && expected[tally->patterns[i]] == tally->counts[i], "each pattern as often as it occurs");
        total += tally->counts[i];
    }
    require(total == count, "no element is lost");
    require(memcmp(tally->low, empty.low, sizeof empty.low) == 0 && memcmp(tally->high, empty.high, sizeof empty.high) == 0 &&
                memcmp(tally->bytes, empty.bytes, sizeof empty.bytes) == 0 && tally->listed == 0 && !tally->is_long,
            "a gathered tally is empty");
    free(src);
}

static void digest_moments(const mb_moments *m) {
    const double numbers[] = {m->sum, m->sum_low, m->spread, m->spread_low, m->least, m->most, m->smallest};
    digest_add(m, offsetof(mb_moments, sum));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) digest_number(numbers[i]);
    digest_add(&m->least_whole, 8), digest_add(&m->most_whole, 8), digest_add(&m->smallest_whole, 8);
}

/* `way`: 0 any bytes, 1 numbers of ordinary size, of which nothing is counted, 2 these with a rare one among them. */
static void check_moments(int tier, int kind, uint64_t count, uint64_t shift, int way, mb_distinct *distinct) {
    static const double rare[] = {0.0, -0.0, 65519.0, 65520.0, -65520.0, 0x1p-126, -0x1p-127, 0x1p-149, 0x1p-1022, 0x1p-1040, 1e308};
    const size_t nbytes = (size_t)mb_wide_nbytes(kind);
    uint8_t *src = random_bytes(count * nbytes + shift);
    for (uint64_t i = 0; way > 0 && i < count; i++) {
        uint8_t *at = src + shift + i * nbytes;
        const bool is_rare = way == 2 && i % 700 == 6;
        if (kind == MB_WIDE_F32 || kind == MB_WIDE_F64) {
            double value = (at[0] - 99.5) * (at[1] + 1.0) / 17;
            if (is_rare) value = at[0] < 40 ? (at[0] < 20 ? 1e300 * 1e300 : 1e300 * 1e300 * 0) : rare[at[0] % 11];
            float narrow = kind == MB_WIDE_F32 && value <= 1e38 ? (float)value : (float)(at[0] < 20 ? 1e300 * 1e300 : 1);
            memcpy(at, kind == MB_WIDE_F32 ? (void *)&narrow : (void *)&value, nbytes);
        } else if (!is_rare) {
            memset(at + 2, at[1] >> 7 != 0 && kind != MB_WIDE_U32 && kind != MB_WIDE_U64 ? 0xff : 0, nbytes - 2);
            at[0] |= 1, at[1] &= 0xf7;
        }
    }
    mb_moments m, plain;
    memset(&m, 0, sizeof m), memset(&plain, 0, sizeof plain);
    mb_moments_of(&mb_tiers[tier], kind, src + shift, count, &m, distinct);
    mb_moments_of(&mb_tiers[0], kind, src + shift, count, &plain, NULL);
    require(m.count == count, "every element is counted");
    require(memcmp(&m, &plain, sizeof m) == 0, "every tier gives the same bits");
    if (tier == 0) digest_moments(&m);
    free(src);
}

static void check_hash(int tier, uint64_t nbytes, uint64_t shift) {
    uint8_t *src = random_bytes(nbytes + shift), *dst = exactly(32), *plain = exactly(32);
    for (int is_root = 0; is_root < 2; is_root++) {
        mb_hash_stretch(&mb_tiers[tier], dst, src + shift, nbytes, is_root ? 0 : 5000000, is_root != 0);
        mb_hash_stretch(&mb_tiers[0], plain, src + shift, nbytes, is_root ? 0 : 5000000, is_root != 0);
        require(memcmp(dst, plain, 32) == 0, "every tier gives the same hash");
        if (tier == 0) digest_add(dst, 32);
    }
    free(src), free(dst), free(plain);
}

static void check_join(int tier, uint64_t count) {
    uint8_t *cvs = random_bytes(32 * count), *copy = exactly(32 * count);
    memcpy(copy, cvs, (size_t)(32 * count));
    mb_hash_join(&mb_tiers[tier], cvs, count, true);
    mb_hash_join(&mb_tiers[0], copy, count, true);
    require(memcmp(cvs, copy, 32) == 0, "every tier joins alike");
    free(cvs), free(copy);
}

static const unsigned nbits[] = {1, 2, 3, 4, 6, 8, 16};

static void one_round(void) {
    const int tier = (int)random_below((uint32_t)mb_tier_usable());
    const uint8_t what = random_byte();
    const uint64_t shift = random_below(9), count = random_below(what & 64 ? 3000 : 150);
    static mb_tally tally;       /* gathered and so emptied by each check */
    static mb_distinct distinct; /* goes on for ever, as for a long tensor */
    switch (what & 3) {
    case 0: check_tally(&tally, nbits[random_below(sizeof nbits / sizeof nbits[0])], count, shift); return;
    case 1: check_moments(tier, (int)random_below(MB_WIDE_COUNT), count, shift, what >> 3 & 3, what & 32 ? &distinct : NULL); return;
    case 2: check_hash(tier, what & 32 ? 16 * count + shift : count, shift); return;
    default: check_join(tier, 2 + count % 70); return;
    }
}

#ifndef MILBLOB_FUZZ

static void all_rounds(void) {
    static const uint64_t counts[] = {4095, 4096, 4097, 8200, 16384, 16385, 32768, 33001, 70001};
    mb_tally *tally = (mb_tally *)calloc(1, sizeof *tally);
    mb_distinct *distinct = (mb_distinct *)calloc(1, sizeof *distinct), *other = (mb_distinct *)calloc(1, sizeof *other);
    if (tally == NULL || distinct == NULL || other == NULL) abort();
    for (size_t n = 0; n < sizeof nbits / sizeof nbits[0]; n++) {
        for (uint64_t count = 0; count <= 130; count++) check_tally(tally, nbits[n], count, count % 9);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) check_tally(tally, nbits[n], counts[i], i);
    }
    for (int tier = 0; tier < mb_tier_usable(); tier++) {
        for (int kind = 0; kind < MB_WIDE_COUNT; kind++) {
            for (uint64_t count = 0; count <= 130; count++) check_moments(tier, kind, count, count % 9, (int)(count / 3 % 3), count % 2 ? distinct : NULL);
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) check_moments(tier, kind, counts[i], i, (int)(i % 3), i % 4 == 0 ? distinct : NULL);
        }
        for (uint64_t nbytes = 0; nbytes <= 130; nbytes++) check_hash(tier, nbytes, nbytes % 9);
        for (uint64_t chunks = 1; chunks <= 40; chunks++)
            for (uint64_t more = 0; more < 3; more++) check_hash(tier, chunks * 1024 - 1 + more, chunks % 9);
        check_hash(tier, MB_BLAKE3_STRETCH, 1);
        for (uint64_t count = 2; count <= 70; count++) check_join(tier, count);
    }
    require(distinct->level > 0, "random elements are more than are counted exactly");
    mb_distinct_merge(other, distinct);
    require(mb_distinct_count(other) == mb_distinct_count(distinct), "merging into an empty one copies");
    free(tally), free(distinct), free(other);
    digest_print();
}

#endif
