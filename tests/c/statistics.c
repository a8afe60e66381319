/* statistics.c: tally, moments, distinct values and BLAKE3 of every tier on buffers of their exact size. See choices.h. */
#include "milblob/kernels.h"
#include "choices.h"

static void check_tally(mb_tally *tally, unsigned nbits, uint64_t count, uint64_t shift) {
    static const mb_tally empty;
    const uint64_t nbytes = nbits < 8 ? mb_packed_nbytes(count, nbits) : count * nbits / 8;
    uint8_t *src = random_bytes(nbytes + shift);
    uint64_t total = 0;
    mb_tally_elements(tally, src + shift, count, nbits);
    require(tally->count == count, "every element is counted");
    uint32_t found = mb_tally_gather(tally, nbits);
    for (uint32_t i = 0; i < found; i++) {
        uint64_t expected = 0, pattern = tally->patterns[i];
        for (uint64_t k = 0; k < count && (found < 400 || i % 97 == 0); k++) {
            uint64_t bits = 0;
            for (unsigned b = 0; b < nbits; b++) bits |= (uint64_t)(src[shift + (k * nbits + b) / 8] >> (k * nbits + b) % 8 & 1) << b;
            expected += bits == pattern;
        }
        require((found >= 400 && i % 97 != 0) || expected == tally->counts[i], "each pattern as often as it occurs");
        total += tally->counts[i];
    }
    require(total == count, "no element is lost");
    require(memcmp(tally->low, empty.low, sizeof empty.low) == 0 && memcmp(tally->high, empty.high, sizeof empty.high) == 0 &&
                memcmp(tally->bytes, empty.bytes, sizeof empty.bytes) == 0 && tally->listed == 0 && !tally->is_long,
            "a gathered tally is empty");
    free(src);
}

static void check_moments(int tier, int kind, uint64_t count, uint64_t shift, mb_distinct *distinct) {
    uint8_t *src = random_bytes(count * mb_wide_nbytes(kind) + shift);
    mb_moments m, plain;
    memset(&m, 0, sizeof m), memset(&plain, 0, sizeof plain);
    mb_moments_of(&mb_tiers[tier], kind, src + shift, count, &m, distinct);
    mb_moments_of(&mb_tiers[0], kind, src + shift, count, &plain, NULL);
    require(m.count == count, "every element is counted");
    require(memcmp(&m, &plain, sizeof m) == 0, "every tier gives the same bits");
    free(src);
}

static void check_hash(int tier, uint64_t nbytes, uint64_t shift) {
    uint8_t *src = random_bytes(nbytes + shift), *dst = exactly(32), *plain = exactly(32);
    for (int is_root = 0; is_root < 2; is_root++) {
        mb_hash_stretch(&mb_tiers[tier], dst, src + shift, nbytes, is_root ? 0 : 5000000, is_root != 0);
        mb_hash_stretch(&mb_tiers[0], plain, src + shift, nbytes, is_root ? 0 : 5000000, is_root != 0);
        require(memcmp(dst, plain, 32) == 0, "every tier gives the same hash");
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
    case 0: check_tally(&tally, nbits[random_below(7)], count, shift); return;
    case 1: check_moments(tier, (int)random_below(MB_WIDE_COUNT), count, shift, what & 32 ? &distinct : NULL); return;
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
            for (uint64_t count = 0; count <= 130; count++) check_moments(tier, kind, count, count % 9, count % 2 ? distinct : NULL);
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) check_moments(tier, kind, counts[i], i, distinct);
        }
        for (uint64_t nbytes = 0; nbytes <= 130; nbytes++) check_hash(tier, nbytes, nbytes % 9);
        for (uint64_t chunks = 1; chunks <= 40; chunks++)
            for (uint64_t more = 0; more < 3; more++) check_hash(tier, chunks * 1024 - 1 + more, chunks % 9);
        check_hash(tier, MB_BLAKE3_STRETCH, 1);
        for (uint64_t count = 2; count <= 70; count++) check_join(tier, count);
    }
    require(distinct->is_estimated, "random elements are more than are counted exactly");
    mb_distinct_merge(other, distinct);
    require(mb_distinct_count(other) == mb_distinct_count(distinct), "merging into an empty one copies");
    free(tally), free(distinct), free(other);
}

#endif
