/* cast.c: every cast kernel of every tier on buffers of their exact size, compared with the plain one. See choices.h. */
#include "milblob/kernels.h"
#include "choices.h"
#include "digest.h"

/* `ordinary`: numbers around 1, among which special ones are rare, so that blocks go the quick way. */
static void check(int tier, int kind, uint64_t count, uint64_t shift, bool ordinary, bool clamp) {
    const uint64_t from = mb_cast_src_nbytes(kind), to = mb_cast_dst_nbytes(kind);
    uint8_t *src = random_bytes(count * from + shift), *dst = exactly(count * to + shift), *plain = exactly(count * to);
    mb_cast_counts counts = {0, 0, 0}, plain_counts = {0, 0, 0};
    if (ordinary)
        for (uint64_t i = 0; i < count; i++)
            if (i % 150 != 7) src[shift + from * i + from - 1] = (uint8_t)(0x3f | (src[shift + from * i + from - 1] & 0x80));
    mb_cast(&mb_tiers[tier], kind, dst + shift, src + shift, count, clamp, &counts);
    mb_cast(&mb_tiers[0], kind, plain, src + shift, count, clamp, &plain_counts);
    require(memcmp(dst + shift, plain, (size_t)(count * to)) == 0, "every tier gives the same bits");
    require(memcmp(&counts, &plain_counts, sizeof counts) == 0, "and counts the same");
    if (tier == 0) digest_add(plain, count * to), digest_add(&counts, sizeof counts);
    for (int is_nan = 0; is_nan < 2; is_nan++) {
        uint64_t index = mb_cast_find(kind, src + shift, count, is_nan != 0);
        require(((is_nan ? counts.nan : counts.overflow) == 0) == (index == count), "what is counted is found");
    }
    free(src), free(dst), free(plain);
}

static void one_round(void) {
    const uint8_t way = random_byte();
    const int kind = (int)random_below(MB_CAST_COUNT);
    const uint64_t shift = random_below(9), count = random_below(way & 4 ? 10000 : 200);
    check((int)random_below((uint32_t)mb_tier_usable()), kind, count, shift, way & 1, way >> 1 & 1);
}

#ifndef MILBLOB_FUZZ

/* Fill src with every pattern of 16 bits; of float32 the upper half, under the given lower one. In order, so that blocks
 * with nothing to count go the quick way. */
static void fill(uint8_t *src, uint64_t nbytes, uint32_t low) {
    for (uint32_t pattern = 0; pattern < 65536; pattern++)
        if (nbytes == 2) mb_store_u16(src + 2 * (size_t)pattern, pattern);
        else mb_store_u32(src + 4 * (size_t)pattern, pattern << 16 | low);
}

static void check_all_patterns(int tier, int kind, uint32_t low, bool clamp) {
    const uint64_t from = mb_cast_src_nbytes(kind), to = mb_cast_dst_nbytes(kind);
    uint8_t *src = exactly(65536 * from), *dst = exactly(65536 * to), *plain = exactly(65536 * to);
    mb_cast_counts counts = {0, 0, 0}, plain_counts = {0, 0, 0};
    fill(src, from, low);
    mb_cast(&mb_tiers[tier], kind, dst, src, 65536, clamp, &counts);
    mb_cast(&mb_tiers[0], kind, plain, src, 65536, clamp, &plain_counts);
    require(memcmp(dst, plain, (size_t)(65536 * to)) == 0, "every tier gives the same bits of every pattern");
    require(memcmp(&counts, &plain_counts, sizeof counts) == 0, "and counts the same");
    if (tier == 0) digest_add(dst, 65536 * to), digest_add(&counts, sizeof counts);
    free(src), free(dst), free(plain);
}

static void all_rounds(void) {
    static const uint64_t counts[] = {4095, 4096, 4097, 8192, 10007};
    static const uint32_t lows[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff}; /* about ties */
    for (int tier = 0; tier < mb_tier_usable(); tier++)
        for (int kind = 0; kind < MB_CAST_COUNT; kind++)
            for (int way = 0; way < 4; way++) {
                for (uint64_t count = 0; count <= 200; count++) check(tier, kind, count, count % 9, way & 1, way >> 1);
                for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) check(tier, kind, counts[i], i, way & 1, way >> 1);
                for (size_t i = 0; i < sizeof lows / sizeof lows[0]; i++)
                    if (way < 2 && (i == 0 || mb_cast_src_nbytes(kind) == 4)) check_all_patterns(tier, kind, lows[i], way != 0);
            }
    digest_print();
}

#endif
