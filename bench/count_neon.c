/* count_neon.c: every kernel of the tiers plain and neon once, over ordinary elements, for count_neon.py.
 *
 * A row is what happens between two calls of row_begin and row_end. With an argument the program says what its rows are. */
#include <stdio.h>

#include "milblob/kernels.h"
#include "milblob/kernels/quantize.h"

enum { COUNT = 2048, SHORT = 1024, LONG = 32768, CHUNKS = 16 };

static uint8_t src[COUNT * 8], dst[COUNT * 8], bits[COUNT / 8], mask[COUNT / 8 + 8], indices[COUNT], entries[256 * 8];
static uint8_t halves[COUNT * 2], found[LONG];
static float many[LONG], a[COUNT], b[COUNT], scale[COUNT], offset[COUNT];
static double wide[SHORT], near[SHORT], numbers[256], totals[512];
static uint64_t ties[COUNT], counts[MB_MAGNITUDES];
static uint8_t table[MB_PATTERNS];
static mb_tally tally;
static bool tells;
static char text[80];

__attribute__((noinline)) void row_begin(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void row_end(void) { __asm__ volatile("" ::: "memory"); }

#define ROW(elements, call, ...) \
    do { \
        snprintf(text, sizeof text, __VA_ARGS__); \
        if (tells) printf("%s\t%u\t%s\n", tier->name, (unsigned)(elements), text); \
        row_begin(); \
        call; \
        row_end(); \
    } while (0)

static void cast(const mb_tier *tier) {
    static const char *const names[] = {"float32 to float16", "float32 to bfloat16", "float16 to float32", "bfloat16 to float32", "float16 to bfloat16", "bfloat16 to float16"};
    mb_cast_counts counts = {0, 0, 0};
    for (int kind = 0; kind < MB_CAST_COUNT; kind++) {
        const bool is_bf16 = kind == MB_CAST_BF16_F32 || kind == MB_CAST_BF16_F16;
        for (size_t i = 0; i < COUNT; i++) {
            const uint32_t number = mb_bits_of(a[i]);
            if (mb_cast_src_nbytes(kind) == 4) mb_store_u32(src + 4 * i, number);
            else mb_store_u16(src + 2 * i, is_bf16 ? number >> 16 : mb_f32_to_f16(number, MB_F16_INF));
        }
        ROW(COUNT, tier->cast[kind](dst, src, COUNT, false, &counts), "cast %s", names[kind]);
    }
}

static void decode(const mb_tier *tier) {
    static const char *const from_names[] = {"uint8", "int8", "float16", "float32"}, *const to_names[] = {"float32", "float16", "float16 in steps"};
    static const unsigned sizes[] = {16, 64, 256};
    for (size_t i = 0; i < COUNT; i++) mb_store_u16(src + 2 * i, mb_load_u16(halves + 2 * i));
    for (int from = 0; from < MB_FROM_COUNT; from++)
        for (int to = 0; to < MB_TO_COUNT; to++)
            ROW(COUNT, tier->scale[from][to](dst, from == MB_FROM_F32 ? (const uint8_t *)a : src, COUNT, scale, offset, 32), "scale %s to %s", from_names[from], to_names[to]);
    for (unsigned k = 0; k < 3; k++) {
        for (size_t i = 0; i < COUNT; i++) indices[i] = (uint8_t)(i % sizes[k]);
        for (size_t width = 0; width < 3; width++) ROW(COUNT, tier->lookup[width](dst, indices, COUNT, entries, sizes[k]), "look up %u entries of %u bits", sizes[k], 8u << width);
    }
    for (size_t width = 0; width < 4; width++) ROW(COUNT, tier->expand[width](dst, src, COUNT, bits, COUNT), "expand elements of %u bits", 8u << width);
    ROW(COUNT, dst[0] = (uint8_t)tier->ones(bits, COUNT), "count ones of a mask");
    for (unsigned nbits = 3; nbits <= 6; nbits += nbits == 3 ? 1 : 2) {
        mb_error error;
        for (int is_signed = 0; is_signed < 2; is_signed++) ROW(COUNT, tier->unpack[is_signed](dst, src, COUNT, nbits), "unpack %u bits%s", nbits, is_signed ? ", signed" : "");
        memset(indices, 1, COUNT);
        ROW(COUNT, tier->pack(dst, indices, COUNT, nbits, 0, (1 << nbits) - 1, false, &error), "pack %u bits", nbits);
    }
}

static void compress(const mb_tier *tier) {
    static const char *const names[] = {"float32", "float16"};
    static const mb_integers to = {-127, 127, 8, false};
    mb_sums sums;
    memset(&sums, 0, sizeof sums);
    for (int is_f16 = 0; is_f16 < 2; is_f16++) {
        const uint8_t *own = is_f16 ? halves : (const uint8_t *)a;
        const uint32_t cut = is_f16 ? mb_f32_to_f16(mb_bits_of(20), MB_F16_INF) : mb_bits_of(20);
        const mb_neighbours pairs = {COUNT / 4, 4, 1, 2, 4}, apart = {1, 4, COUNT / 4, 2, 4}, wide_ones = {COUNT / 16, 16, 1, 8, 16};
        uint32_t largest = 0;
        float low[COUNT / 32], high[COUNT / 32];
        for (size_t i = 0; i < COUNT / 32; i++) low[i] = high[i] = 0;
        ROW(COUNT, tier->range[is_f16](own, COUNT, 32, low, high), "range of blocks of 32, %s", names[is_f16]);
        ROW(COUNT, tier->quantize[is_f16](dst, NULL, own, COUNT, scale, offset, 32, &to, &sums), "quantize blocks of 32, %s", names[is_f16]);
        ROW(COUNT, tier->quantize[is_f16](dst, NULL, own, COUNT, scale, offset, COUNT, &to, &sums), "quantize, %s", names[is_f16]);
        ROW(COUNT, tier->split[is_f16](own, COUNT, cut, mask, dst, &sums), "keep the greatest, %s", names[is_f16]);
        ROW(COUNT, tier->above[is_f16](own, COUNT, cut, mask), "which are above, %s", names[is_f16]);
        ROW(COUNT, tier->split_chosen[is_f16](own, COUNT, bits, mask, dst, &sums), "keep the chosen, %s", names[is_f16]);
        ROW(COUNT, tier->neighbours[is_f16](own, &pairs, mask, ties, &largest), "two of four neighbours, %s", names[is_f16]);
        ROW(COUNT, tier->neighbours[is_f16](own, &apart, mask, ties, &largest), "two of four, apart, %s", names[is_f16]);
        ROW(COUNT, tier->neighbours[is_f16](own, &wide_ones, mask, ties, &largest), "eight of sixteen, %s", names[is_f16]);
        ROW(COUNT, tier->square[is_f16](scale, own, COUNT), "square, %s", names[is_f16]);
        ROW(COUNT, tier->add_squares[is_f16](src, own, COUNT), "add squares, %s", names[is_f16]);
        for (size_t i = 0; i < COUNT; i++) scale[i] = 0.01f;
    }
    for (size_t i = 0; i < LONG; i++) many[i] = a[i % COUNT];
    for (unsigned used = 4; used <= 256; used *= 2) {
        mb_palette_error error = {0, 0, 0};
        for (unsigned e = 0; e < used; e++) numbers[e] = -36 + 72.0 * e / used;
        ROW(LONG, tier->palette_index_32(found, (const uint8_t *)many, NULL, LONG, numbers, used, totals, &error), "nearest of %u, float32", used);
    }
    if (tier == mb_tiers) { /* these no tier has: what they do is to look something up, or to count in a table */
        ROW(LONG, mb_tally_elements(&tally, (const uint8_t *)many, LONG, 16), "count patterns of 16 bits");
        ROW(LONG / 2, mb_prune_count((const uint8_t *)many, LONG / 2, false, counts), "count magnitudes, float32");
        ROW(LONG / 2, mb_palette_index_16(found, (const uint8_t *)many, LONG / 2, table), "index by a table, float16");
        ROW(COUNT, dst[0] = (uint8_t)mb_count_not_finite(halves, true, COUNT), "count what is not finite, float16");
        ROW(COUNT, dst[0] = (uint8_t)mb_count_not_finite((const uint8_t *)a, false, COUNT), "count what is not finite, float32");
    }
    const mb_vectors palette = {b, 256, 4};
    ROW(256, tier->nearest(a, NULL, 64, &palette, scale, dst, offset), "nearest of 256 vectors of 4");
    for (size_t i = 0; i < COUNT; i++) scale[i] = 0.01f, offset[i] = 3;
}

static void read_all(const mb_tier *tier) {
    const mb_tolerance tolerance = {0.1, 0.1};
    mb_moments moments;
    mb_moments_block block;
    mb_comparison part;
    int16_t shorts[COUNT];
    ROW(SHORT, tier->compare_f32(a, b, SHORT, tolerance, &part), "compare float32");
    ROW(SHORT, tier->compare_f64(wide, near, SHORT, tolerance, &part), "compare float64");
    for (uint32_t i = 0; i < SHORT; i++) block.f64[i] = wide[i];
    ROW(SHORT, tier->wide.moments[1](&block, SHORT, 1, &moments), "moments of float64");
    for (uint32_t i = 0; i < SHORT; i++) block.f32[i] = a[i];
    ROW(SHORT, tier->wide.moments[0](&block, SHORT, 1, &moments), "moments of float32");
    ROW(CHUNKS * 1024, tier->blake3(dst, src, CHUNKS, 16, 0), "BLAKE3, a byte");
    for (size_t i = 0; i < COUNT; i++) shorts[i] = (int16_t)(i % 300), dst[i] = 1;
    uint64_t nbytes = 0;
    ROW(COUNT, nbytes = tier->varint_nbytes[0](shorts, COUNT), "bytes of varints, int16");
    ROW(COUNT, tier->varint_encode[0](dst, nbytes, shorts, COUNT), "encode varints, int16");
}

int main(int argc, char **argv) {
    (void)argv;
    tells = argc > 1;
    for (size_t i = 0; i < COUNT; i++) {
        a[i] = (float)(i * 40503u % 97 + 1) * (i * 2654435761u >> 7 & 1 ? -0.37f : 0.37f), b[i] = a[i] * 1.001f;
        scale[i] = 0.01f, offset[i] = 3, bits[i / 8] = (uint8_t)(i / 8 * 37);
        mb_store_u16(halves + 2 * i, mb_f32_to_f16(mb_bits_of(a[i]), MB_F16_INF));
        if (i < SHORT) wide[i] = a[i], near[i] = b[i];
    }
    for (size_t i = 0; i < MB_PATTERNS; i++) table[i] = (uint8_t)(i >> 8);
    for (int t = 0; t < MB_TIER_COUNT; t++) {
        const mb_tier *tier = &mb_tiers[t];
        cast(tier), decode(tier), compress(tier), read_all(tier);
    }
    return 0;
}
