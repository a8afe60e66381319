/* count_neon.c: every kernel of the tiers plain and neon once, over 2048 ordinary elements, for count_neon.py. */
#include "milblob/kernels.h"

enum { COUNT = 2048 };

static uint8_t src[COUNT * 8], dst[COUNT * 8], bits[COUNT / 8], indices[COUNT], entries[256 * 8];
static float a[COUNT], b[COUNT], scale[COUNT], offset[COUNT];
static double wide[1024], near[1024];

static void cast_all(const mb_tier *tier) {
    mb_cast_counts counts = {0, 0, 0};
    for (int kind = 0; kind < MB_CAST_COUNT; kind++) {
        const bool is_bf16 = kind == MB_CAST_BF16_F32 || kind == MB_CAST_BF16_F16;
        for (size_t i = 0; i < COUNT; i++) {
            const uint32_t number = mb_bits_of(a[i]);
            if (mb_cast_src_nbytes(kind) == 4) mb_store_u32(src + 4 * i, number);
            else mb_store_u16(src + 2 * i, is_bf16 ? number >> 16 : mb_f32_to_f16(number, MB_F16_INF));
        }
        tier->cast[kind](dst, src, COUNT, false, &counts);
    }
}

int main(void) {
    const mb_tolerance tolerance = {0.1, 0.1};
    mb_moments moments;
    mb_comparison part;
    mb_error error;
    for (size_t i = 0; i < COUNT; i++) {
        a[i] = (float)(i % 97 + 1) * (i % 2 ? -0.37f : 0.37f), b[i] = a[i] * 1.001f;
        scale[i] = 0.01f, offset[i] = 3, bits[i / 8] = (uint8_t)(i / 8 * 37);
        if (i < 1024) wide[i] = a[i], near[i] = b[i];
    }
    for (int t = 0; t < MB_TIER_COUNT; t++) {
        const mb_tier *tier = &mb_tiers[t];
        cast_all(tier);
        for (size_t i = 0; i < COUNT; i++) indices[i] = (uint8_t)(i % ENTRIES);
        for (size_t width = 0; width < 4; width++) tier->lookup[width](dst, indices, COUNT, entries, ENTRIES);
        for (size_t width = 0; width < 4; width++) tier->expand[width](dst, src, COUNT, bits, COUNT);
        for (int from = 0; from < MB_FROM_COUNT; from++)
            for (int to = 0; to < MB_TO_COUNT; to++) tier->scale[from][to](dst, src, COUNT, scale, offset, 32);
        for (int is_signed = 0; is_signed < 2; is_signed++) tier->unpack[is_signed](dst, src, COUNT, NBITS);
        memset(indices, 1, COUNT);
        tier->pack(dst, indices, COUNT, NBITS, 0, (1 << NBITS) - 1, false, &error);
        dst[0] = (uint8_t)tier->ones(src, COUNT);
        tier->compare_f32(a, b, 1024, tolerance, &part);
        tier->compare_f64(wide, near, 1024, tolerance, &part);
        tier->moments(wide, 1024, 1, &moments);
        tier->blake3(dst, src, 16, 16, 0);
    }
    return 0;
}
