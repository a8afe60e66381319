/* kernels.h: the kernels of each CPU tier, one row per tier, and which rows this machine can run.
 *
 * A row is chosen once, when milblob is imported; MILBLOB_TIER=plain overrides. Every tier gives the same bits. */
#ifndef MILBLOB_KERNELS_H
#define MILBLOB_KERNELS_H

#include "milblob/kernels/neon/blake3.h"
#include "milblob/kernels/x86/blake3.h"
#include "milblob/kernels/neon/compare.h"
#include "milblob/kernels/x86/compare.h"
#include "milblob/kernels/neon/decode.h"
#include "milblob/kernels/x86/expand_avx512.h"
#include "milblob/kernels/neon/moments.h"
#include "milblob/kernels/x86/moments.h"
#include "milblob/kernels/vectors_begin.h"
#include "milblob/kernels/neon/palette_values.h"
#include "milblob/kernels/neon/prune.h"
#include "milblob/kernels/neon/quantize.h"
#include "milblob/kernels/neon/squares.h"
#include "milblob/kernels/x86/prune.h"
#include "milblob/kernels/x86/quantize.h"
#include "milblob/kernels/x86/palette_avx512.h"
#include "milblob/kernels/neon/subbyte.h"
#include "milblob/kernels/x86/subbyte.h"
#include "milblob/kernels/neon/vectors.h"
#include "milblob/kernels/x86/varint_avx512.h"
#include "milblob/kernels/x86/squares.h"
#include "milblob/kernels/x86/vectors.h"

#ifdef MB_HAS_AVX2
MB_DEFINE_PALETTE_INDEX(mb_palette_index_32_avx2, MB_TARGET_AVX2, mb_palette_find)
MB_DEFINE_PALETTE_INDEX(mb_palette_index_32_avx512, MB_TARGET_AVX512, mb_palette_find)
#endif

typedef struct mb_tier {
    const char *name;
    mb_cast_kernel cast[MB_CAST_COUNT]; /* by enum mb_cast_kind */
    mb_wide_kernels wide;
    mb_blake3_kernel blake3;
    mb_compare_f32_kernel compare_f32;
    mb_compare_f64_kernel compare_f64;
    mb_unpack_kernel unpack[2]; /* by whether elements are signed */
    mb_scale_kernel scale[MB_FROM_COUNT][MB_TO_COUNT]; /* by enum mb_scale_from, mb_scale_to */
    mb_scale_kernel scale_packed[2][2];                /* of four bits; by whether elements are signed, and by steps; NULL: unpack, then scale */
    mb_lookup_kernel lookup[4];                        /* by mb_width_index */
    mb_lookup_kernel lookup_packed;                    /* indices of four bits, entries of 16; NULL: unpack, then look up */
    mb_expand_kernel expand[4];                        /* by mb_width_index */
    mb_ones_kernel ones;
    mb_pack_kernel pack;
    mb_varint_run_kernel varint_run[MB_RUN_COUNT]; /* by enum mb_varint_run_kind */
    mb_varint_nbytes_kernel varint_nbytes[4];      /* of int16, uint16, int32, int64 */
    mb_varint_encode_kernel varint_encode[4];
    mb_quantize_kernel quantize[2]; /* by whether elements are float16 */
    mb_range_kernel range[2];
    mb_split_kernel split[2]; /* as quantize */
    mb_nearest_kernel nearest;
    mb_add_squares_kernel add_squares[2]; /* as quantize */
    mb_square_kernel square[2];
    mb_above_kernel above[2];
    mb_split_chosen_kernel split_chosen[2];
    mb_neighbours_kernel neighbours[2];
    mb_palette_index_kernel palette_index_32;
} mb_tier;

/* The rows of mb_tiers, from the slowest to the fastest. */
enum mb_tier_row {
    MB_TIER_PLAIN,
#ifdef MB_HAS_AVX2
    MB_TIER_AVX2,
    MB_TIER_AVX512,
    MB_TIER_AVX512VBMI2,
#endif
#ifdef MB_HAS_NEON
    MB_TIER_NEON,
#endif
    MB_TIER_COUNT
};

/* Puts a row at the place of its number, in any order of the rows; C++ has no words for that, and takes them in order. */
#ifdef __cplusplus
#define MB_TIER(row)
#else
#define MB_TIER(row) [row] =
#endif

/* A program of several units need not compile the kernels in each: one unit defines
 * MB_TIERS_HERE, the others MB_TIERS_ELSEWHERE. */
#ifdef MB_TIERS_ELSEWHERE
extern const mb_tier mb_tiers[];
#else
#ifdef MB_TIERS_HERE
extern const mb_tier mb_tiers[];
#else
static
#endif
const mb_tier mb_tiers[] = {
    MB_TIER(MB_TIER_PLAIN)
    {"plain", {mb_cast_f32_f16_plain, mb_cast_f32_bf16_plain, mb_cast_f16_f32_plain, mb_cast_bf16_f32_plain, mb_cast_f16_bf16_plain, mb_cast_bf16_f16_plain},
     {mb_wide_load_plain, {mb_moments_f32_plain, mb_moments_f64_plain}, {mb_wide_hash_32_plain, mb_wide_hash_64_plain}}, mb_blake3_plain, mb_compare_f32_plain, mb_compare_f64_plain,
     {mb_unpack_bits, mb_unpack_signed},
     {{mb_scale_u8_f32_plain, mb_scale_u8_f16_plain, mb_scale_u8_steps_plain},
      {mb_scale_i8_f32_plain, mb_scale_i8_f16_plain, mb_scale_i8_steps_plain},
      {mb_scale_f16_f32_plain, mb_scale_f16_f16_plain, mb_scale_f16_steps_plain},
      {mb_scale_f32_f32_plain, mb_scale_f32_f16_plain, mb_scale_f32_steps_plain}},
     {{NULL, NULL}, {NULL, NULL}},
     {mb_lookup_8_plain, mb_lookup_16_plain, mb_lookup_32_plain, mb_lookup_64_plain}, NULL,
     {mb_expand_8_plain, mb_expand_16_plain, mb_expand_32_plain, mb_expand_64_plain},
     mb_ones_plain, mb_pack_bits,
     {mb_varint_run_plain, mb_varint_run_plain, mb_varint_run_plain, mb_varint_run_plain, mb_varint_run_plain},
     {mb_varint_nbytes_i16, mb_varint_nbytes_u16, mb_varint_nbytes_i32, mb_varint_nbytes_i64},
     {mb_varint_encode_i16, mb_varint_encode_u16, mb_varint_encode_i32, mb_varint_encode_i64},
     {mb_quantize_f32_plain, mb_quantize_f16_plain}, {mb_range_f32_plain, mb_range_f16_plain}, {mb_split_f32_plain, mb_split_f16_plain}, mb_nearest_plain,
     {mb_add_squares_f32_plain, mb_add_squares_f16_plain}, {mb_square_f32_plain, mb_square_f16_plain},
     {mb_above_f32_plain, mb_above_f16_plain}, {mb_split_chosen_f32_plain, mb_split_chosen_f16_plain}, {mb_neighbours_f32_plain, mb_neighbours_f16_plain}, mb_palette_index_32_plain},
#ifdef MB_HAS_AVX2
    MB_TIER(MB_TIER_AVX2)
    {"avx2", {mb_cast_f32_f16_avx2, mb_cast_f32_bf16_avx2, mb_cast_f16_f32_avx2, mb_cast_bf16_f32_loop_avx2, mb_cast_f16_bf16_avx2, mb_cast_bf16_f16_avx2},
     {mb_wide_load_avx2, {mb_moments_f32_avx2, mb_moments_f64_avx2}, {mb_wide_hash_32_avx2, mb_wide_hash_64_avx2}}, mb_blake3_avx2, mb_compare_f32_avx2, mb_compare_f64_avx2,
     {mb_unpack_bits_avx2, mb_unpack_signed_avx2},
     {{mb_scale_u8_f32_loop_avx2, mb_scale_u8_f16_avx2, mb_scale_u8_steps_avx2},
      {mb_scale_i8_f32_loop_avx2, mb_scale_i8_f16_avx2, mb_scale_i8_steps_avx2},
      {mb_scale_f16_f32_loop_avx2, mb_scale_f16_f16_loop_avx2, mb_scale_f16_steps_loop_avx2},
      {mb_scale_f32_f32_loop_avx2, mb_scale_f32_f16_loop_avx2, mb_scale_f32_steps_loop_avx2}},
     {{NULL, NULL}, {NULL, NULL}},
     {mb_lookup_8_avx2, mb_lookup_16_avx2, mb_lookup_32_avx2, mb_lookup_64_plain}, NULL,
     {mb_expand_8_avx2, mb_expand_16_avx2, mb_expand_32_avx2, mb_expand_64_plain},
     mb_ones_avx2, mb_pack_bits_avx2,
     {mb_varint_run_8_avx2, mb_varint_run_16_avx2, mb_varint_run_32_avx2, mb_varint_run_64_avx2, mb_varint_run_ints_avx2},
     {mb_varint_nbytes_i16_avx2, mb_varint_nbytes_u16_avx2, mb_varint_nbytes_i32_avx2, mb_varint_nbytes_i64_avx2},
     {mb_varint_encode_i16_avx2, mb_varint_encode_u16_avx2, mb_varint_encode_i32_avx2, mb_varint_encode_i64_avx2},
     {mb_quantize_f32_avx2, mb_quantize_f16_avx2}, {mb_range_f32_avx2, mb_range_f16_avx2}, {mb_split_f32_plain, mb_split_f16_plain}, mb_nearest_avx2,
     {mb_add_squares_f32_plain, mb_add_squares_f16_avx2}, {mb_square_f32_plain, mb_square_f16_avx2},
     {mb_above_f32_avx2, mb_above_f16_avx2}, {mb_split_chosen_f32_avx2, mb_split_chosen_f16_avx2}, {mb_neighbours_f32_avx2, mb_neighbours_f16_avx2}, mb_palette_index_32_avx2},
    MB_TIER(MB_TIER_AVX512)
    {"avx512", {mb_cast_f32_f16_avx2, mb_cast_f32_bf16_avx2, mb_cast_f16_f32_avx2, mb_cast_bf16_f32_loop_avx2, mb_cast_f16_bf16_avx2, mb_cast_bf16_f16_avx2},
     {mb_wide_load_avx512, {mb_moments_f32_avx512, mb_moments_f64_avx512}, {mb_wide_hash_32_avx512, mb_wide_hash_64_avx512}}, mb_blake3_avx512, mb_compare_f32_avx2, mb_compare_f64_avx2,
     {mb_unpack_bits_avx2, mb_unpack_signed_avx2},
     {{mb_scale_u8_f32_loop_avx2, mb_scale_u8_f16_avx512, mb_scale_u8_steps_avx512},
      {mb_scale_i8_f32_loop_avx2, mb_scale_i8_f16_avx512, mb_scale_i8_steps_avx512},
      {mb_scale_f16_f32_loop_avx2, mb_scale_f16_f16_loop_avx2, mb_scale_f16_steps_loop_avx2},
      {mb_scale_f32_f32_loop_avx2, mb_scale_f32_f16_loop_avx2, mb_scale_f32_steps_loop_avx2}},
     {{mb_scale_u4_f16_avx512, mb_scale_u4_steps_avx512}, {mb_scale_i4_f16_avx512, mb_scale_i4_steps_avx512}},
     {mb_lookup_8_avx2, mb_lookup_16_avx512, mb_lookup_32_avx512, mb_lookup_64_plain}, mb_lookup_packed_avx512,
     {mb_expand_8_avx2, mb_expand_16_avx2, mb_expand_32_avx2, mb_expand_64_plain},
     mb_ones_avx2, mb_pack_bits_avx2,
     {mb_varint_run_8_avx2, mb_varint_run_16_avx2, mb_varint_run_32_avx2, mb_varint_run_64_avx2, mb_varint_run_ints_avx2},
     {mb_varint_nbytes_i16_avx2, mb_varint_nbytes_u16_avx2, mb_varint_nbytes_i32_avx2, mb_varint_nbytes_i64_avx2},
     {mb_varint_encode_i16_avx2, mb_varint_encode_u16_avx2, mb_varint_encode_i32_avx2, mb_varint_encode_i64_avx2},
     {mb_quantize_f32_avx512, mb_quantize_f16_avx512}, {mb_range_f32_avx2, mb_range_f16_avx2}, {mb_split_f32_avx512, mb_split_f16_plain}, mb_nearest_avx512,
     {mb_add_squares_f32_plain, mb_add_squares_f16_avx2}, {mb_square_f32_plain, mb_square_f16_avx2},
     {mb_above_f32_avx512, mb_above_f16_avx512}, {mb_split_chosen_f32_avx512, mb_split_chosen_f16_avx2}, {mb_neighbours_f32_avx2, mb_neighbours_f16_avx2}, mb_palette_index_32_avx512},
    MB_TIER(MB_TIER_AVX512VBMI2)
    {"avx512vbmi2", {mb_cast_f32_f16_avx2, mb_cast_f32_bf16_avx2, mb_cast_f16_f32_avx2, mb_cast_bf16_f32_loop_avx2, mb_cast_f16_bf16_avx2, mb_cast_bf16_f16_avx2},
     {mb_wide_load_avx512, {mb_moments_f32_avx512, mb_moments_f64_avx512}, {mb_wide_hash_32_avx512, mb_wide_hash_64_avx512}}, mb_blake3_avx512, mb_compare_f32_avx2, mb_compare_f64_avx2,
     {mb_unpack_bits_avx2, mb_unpack_signed_avx2},
     {{mb_scale_u8_f32_loop_avx2, mb_scale_u8_f16_avx512, mb_scale_u8_steps_avx512},
      {mb_scale_i8_f32_loop_avx2, mb_scale_i8_f16_avx512, mb_scale_i8_steps_avx512},
      {mb_scale_f16_f32_loop_avx2, mb_scale_f16_f16_loop_avx2, mb_scale_f16_steps_loop_avx2},
      {mb_scale_f32_f32_loop_avx2, mb_scale_f32_f16_loop_avx2, mb_scale_f32_steps_loop_avx2}},
     {{mb_scale_u4_f16_avx512, mb_scale_u4_steps_avx512}, {mb_scale_i4_f16_avx512, mb_scale_i4_steps_avx512}},
     {mb_lookup_8_vbmi, mb_lookup_16_avx512, mb_lookup_32_avx512, mb_lookup_64_plain}, mb_lookup_packed_avx512,
     {mb_expand_8_vbmi2, mb_expand_16_vbmi2, mb_expand_32_vbmi2, mb_expand_64_vbmi2},
     mb_ones_avx2, mb_pack_bits_avx2,
     {mb_varint_run_8_vbmi2, mb_varint_run_16_vbmi2, mb_varint_run_32_vbmi2, mb_varint_run_64_vbmi2, mb_varint_run_ints_vbmi2},
     {mb_varint_nbytes_i16_avx2, mb_varint_nbytes_u16_avx2, mb_varint_nbytes_i32_avx2, mb_varint_nbytes_i64_vbmi2},
     {mb_varint_encode_i16_vbmi2, mb_varint_encode_u16_vbmi2, mb_varint_encode_i32_vbmi2, mb_varint_encode_i64_vbmi2},
     {mb_quantize_f32_avx512, mb_quantize_f16_avx512}, {mb_range_f32_avx2, mb_range_f16_avx2}, {mb_split_f32_avx512, mb_split_f16_vbmi2}, mb_nearest_avx512,
     {mb_add_squares_f32_plain, mb_add_squares_f16_avx2}, {mb_square_f32_plain, mb_square_f16_avx2},
     {mb_above_f32_avx512, mb_above_f16_avx512}, {mb_split_chosen_f32_avx512, mb_split_chosen_f16_vbmi2}, {mb_neighbours_f32_avx2, mb_neighbours_f16_avx2}, mb_palette_index_32_avx512},
#endif
#ifdef MB_HAS_NEON
    MB_TIER(MB_TIER_NEON)
    {"neon", {mb_cast_f32_f16_neon, mb_cast_f32_bf16_neon, mb_cast_f16_f32_neon, mb_cast_bf16_f32_neon, mb_cast_f16_bf16_neon, mb_cast_bf16_f16_neon},
     {mb_wide_load_plain, {mb_moments_f32_neon, mb_moments_f64_neon}, {mb_wide_hash_32_plain, mb_wide_hash_64_plain}}, mb_blake3_neon, mb_compare_f32_neon, mb_compare_f64_neon,
     {mb_unpack_bits_neon, mb_unpack_signed_neon},
     {{mb_scale_u8_f32_plain, mb_scale_u8_f16_neon, mb_scale_u8_steps_neon},
      {mb_scale_i8_f32_plain, mb_scale_i8_f16_neon, mb_scale_i8_steps_neon},
      {mb_scale_f16_f32_neon, mb_scale_f16_f16_neon, mb_scale_f16_steps_neon},
      {mb_scale_f32_f32_plain, mb_scale_f32_f16_plain, mb_scale_f32_steps_plain}},
     {{NULL, NULL}, {NULL, NULL}},
     {mb_lookup_8_neon, mb_lookup_16_neon, mb_lookup_32_neon, mb_lookup_64_plain}, NULL,
     {mb_expand_8_neon, mb_expand_16_neon, mb_expand_32_neon, mb_expand_64_plain},
     mb_ones_neon, mb_pack_bits_neon,
     {mb_varint_run_plain, mb_varint_run_plain, mb_varint_run_plain, mb_varint_run_plain, mb_varint_run_plain},
     {mb_varint_nbytes_i16, mb_varint_nbytes_u16, mb_varint_nbytes_i32, mb_varint_nbytes_i64},
     {mb_varint_encode_i16, mb_varint_encode_u16, mb_varint_encode_i32, mb_varint_encode_i64},
     {mb_quantize_f32_neon, mb_quantize_f16_neon}, {mb_range_f32_neon, mb_range_f16_neon}, {mb_split_f32_neon, mb_split_f16_neon}, mb_nearest_neon,
     {mb_add_squares_f32_plain, mb_add_squares_f16_neon}, {mb_square_f32_plain, mb_square_f16_neon},
     {mb_above_f32_neon, mb_above_f16_neon}, {mb_split_chosen_f32_neon, mb_split_chosen_f16_neon}, {mb_neighbours_f32_plain, mb_neighbours_f16_plain}, mb_palette_index_32_neon},
#endif
};

MB_STATIC_ASSERT(sizeof(mb_tiers) / sizeof(mb_tiers[0]) == MB_TIER_COUNT, "as many rows as enum mb_tier_row has");
#endif

#define MB_FOR_ALL_TIERS(count) MB_STATIC_ASSERT(MB_TIER_COUNT == (count), "a tier was added: ask the CPU for it in this function")

/* How many rows of mb_tiers, from the first, this machine can run. */
static inline int mb_tier_usable(void) {
#ifdef MB_HAS_AVX2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("popcnt")) return MB_TIER_PLAIN + 1;
#if !defined(__clang__) && __GNUC__ >= 11 /* others refuse the words; every CPU that has AVX2 has F16C and LZCNT */
    if (!__builtin_cpu_supports("f16c") || !__builtin_cpu_supports("lzcnt")) return MB_TIER_PLAIN + 1;
#endif
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) return MB_TIER_AVX2 + 1;
    if (!__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vbmi2")) return MB_TIER_AVX512 + 1;
    MB_FOR_ALL_TIERS(4);
#elif defined(MB_HAS_NEON)
    MB_FOR_ALL_TIERS(2); /* every CPU with AArch64 has NEON */
#else
    MB_FOR_ALL_TIERS(1);
#endif
    return MB_TIER_COUNT;
}

/* Where elements of 1, 2, 4 and 8 bytes have their kernel. */
static inline unsigned mb_width_index(size_t nbytes) { return nbytes == 1 ? 0 : nbytes == 2 ? 1 : nbytes == 4 ? 2 : 3; }

/* Bytes of one element before and after a cast. */
static inline uint64_t mb_cast_src_nbytes(int kind) { return kind == MB_CAST_F32_F16 || kind == MB_CAST_F32_BF16 ? 4 : 2; }
static inline uint64_t mb_cast_dst_nbytes(int kind) { return kind == MB_CAST_F16_F32 || kind == MB_CAST_BF16_F32 ? 4 : 2; }

/* Cast with the kernel of a tier; see mb_cast_kernel. */
static inline void mb_cast(const mb_tier *tier, int kind, uint8_t *dst, const uint8_t *src, uint64_t count, bool clamp, mb_cast_counts *counts) {
    tier->cast[kind](dst, src, count, clamp, counts);
}

/* Index of the first element that a cast counts as an overflow (is_nan: as a NaN); count if there is none. */
static inline uint64_t mb_cast_find(int kind, const uint8_t *src, uint64_t count, bool is_nan) {
    uint8_t element[4];
    for (uint64_t index = 0; index < count; index++, src += mb_cast_src_nbytes(kind)) {
        mb_cast_counts counts = {0, 0, 0};
        mb_tiers[0].cast[kind](element, src, 1, false, &counts);
        if ((is_nan ? counts.nan : counts.overflow) != 0) return index;
    }
    return count;
}

/* Keep elements with the kernel of a tier; see mb_split_kernel. */
static inline uint64_t mb_prune_split(const mb_tier *tier, const uint8_t *src, uint64_t count, bool is_f16, uint32_t cut, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    return tier->split[is_f16](src, count, cut, mask, kept, sums);
}

/* Keep chosen elements, and choose neighbours, with the kernels of a tier; see mb_split_chosen_kernel, mb_neighbours_kernel. */
static inline uint64_t mb_split_chosen(const mb_tier *tier, const uint8_t *src, uint64_t count, bool is_f16, const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums) {
    return tier->split_chosen[is_f16](src, count, chosen, mask, kept, sums);
}

static inline uint64_t mb_choose_neighbours(const mb_tier *tier, const uint8_t *src, bool is_f16, const mb_neighbours *shape, uint8_t *mask, uint64_t *ties, uint32_t *largest) {
    return tier->neighbours[is_f16](src, shape, mask, ties, largest);
}

/* Look up the entries nearest to float32 elements with the kernel of a tier; see mb_palette_index_kernel. */
static inline void mb_palette_index_32(const mb_tier *tier, uint8_t *dst, const uint8_t *src, const float *weights, uint64_t count, const double *entries, uint32_t used, double *totals, mb_palette_error *error) {
    tier->palette_index_32(dst, src, weights, count, entries, used, totals, error);
}

/* As mb_vectors_nearest, with the kernel of a tier. */
static inline double mb_nearest_entries(const mb_tier *tier, const float *src, const float *weights, uint64_t count, const mb_vectors *palette, float *scratch, uint8_t *dst, double *sums, double *totals) {
    return mb_vectors_nearest(tier->nearest, src, weights, count, palette, scratch, dst, sums, totals);
}

/* As mb_wide_moments, and as the functions of blake3.h, with the kernels of a tier. */
static inline void mb_moments_of(const mb_tier *tier, int kind, const uint8_t *src, uint64_t count, mb_moments *m, mb_distinct *distinct) {
    mb_wide_moments(&tier->wide, kind, src, count, m, distinct);
}

static inline void mb_hash_stretch(const mb_tier *tier, uint8_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t index, bool is_root) {
    mb_blake3_stretch(tier->blake3, dst, src, nbytes, index, is_root);
}

static inline void mb_hash_join(const mb_tier *tier, uint8_t *cvs, uint64_t count, bool is_root) { mb_blake3_join(tier->blake3, cvs, count, is_root); }

#endif
