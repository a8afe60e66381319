/* compress.c: quantization, pruning and palettes of every tier on buffers of their exact size, compared with the plain tier and
 * with what single elements should be. See choices.h. */
#include "milblob/kernels/palette_fit.h"
#include "milblob/kernels/palette_values.h"
#include "milblob/kernels/prune_blocks.h"
#include "milblob/kernels/prune_neighbours.h"
#include "milblob/kernels/quantize.h"
#include "choices.h"
#include "digest.h"

static const mb_integers targets[] = {{-127, 127, 8, false}, {-128, 127, 8, true}, {0, 254, 8, false}, {0, 255, 8, true}, {-7, 7, 4, false}, {-8, 7, 4, true}, {0, 14, 4, false}, {0, 15, 4, true}};

/* Elements from `shift` on; finite ones unless `any`. */
static uint8_t *elements(uint64_t count, uint64_t shift, bool is_f16, bool any) {
    const uint64_t size = is_f16 ? 2 : 4;
    uint8_t *src = random_bytes(count * size + shift);
    for (uint64_t i = 0; i < count && !any; i++) {
        uint8_t *top = src + shift + size * i + size - 1;
        if (is_f16) *top = (uint8_t)((*top & 0x80) | (0x20 + (*top & 0x1f))); /* 2^-7 to 255 */
        else *top = (uint8_t)((*top & 0x80) | 0x3c | (*top & 3));
    }
    return src;
}

static double element(const uint8_t *src, uint64_t i, bool is_f16) { return (double)(is_f16 ? mb_float_from_f16(src, (size_t)i) : mb_float_from_f32(src, (size_t)i)); }

static float *floats(uint64_t count) { return (float *)exactly(4 * count); }

static void check_quantize(int tier, bool is_f16, uint64_t count, uint64_t shift, uint64_t run, unsigned target, bool any) {
    const uint64_t parameters = count / run + 1;
    const mb_integers *to = targets + target;
    uint8_t *src = elements(count, shift, is_f16, any), *dst = exactly(count), *plain = exactly(count), *alone = exactly(count);
    float *scale = floats(parameters), *zero = floats(parameters), *off = floats(count), *plain_off = floats(count);
    mb_sums sums, plain_sums, alone_sums;
    memset(&sums, 0, sizeof sums), memset(&plain_sums, 0, sizeof sums), memset(&alone_sums, 0, sizeof sums);
    for (uint64_t i = 0; i < parameters; i++) {
        const uint8_t way = random_byte();
        scale[i] = way < 8 ? 0 : mb_to_half((float)(way + 1) * (way & 1 ? 0.01f : 0.0001f));
        zero[i] = to->is_linear ? (float)(to->least + (int32_t)random_below((uint32_t)(to->most - to->least + 1))) : to->least < 0 ? 0 : (float)(to->most / 2);
    }
    mb_tiers[0].quantize[is_f16](plain, plain_off, src + shift, count, scale, zero, run, to, &plain_sums);
    mb_tiers[tier].quantize[is_f16](dst, off, src + shift, count, scale, zero, run, to, &sums);
    mb_tiers[tier].quantize[is_f16](alone, NULL, src + shift, count, scale, zero, run, to, &alone_sums);
    for (uint64_t i = 0; i < count; i++) {
        const int32_t q = to->least < 0 ? (int8_t)(uint8_t)(dst[i] << (8 - to->nbits)) >> (8 - to->nbits) : dst[i];
        require(q >= to->least && q <= to->most, "integers in their range, whatever the elements");
        const double x = element(src + shift, i, is_f16), s = (double)scale[run == 1 ? i : i / run], z = (double)zero[run == 1 ? i : i / run];
        if (any || s == 0 || !is_f16) continue;
        for (int32_t other = q - 1; other <= q + 1; other += 2) { /* no neighbour is nearer */
            const double here = x - (double)mb_to_half((float)((q - z) * s)), there = x - (double)mb_to_half((float)((other - z) * s));
            require(other < to->least || other > to->most || here * here <= there * there, "the nearest integer");
        }
    }
    if (!any) {
        require(memcmp(dst, plain, (size_t)count) == 0 && memcmp(dst, alone, (size_t)count) == 0, "every tier gives the same integers");
        require(memcmp(off, plain_off, (size_t)(4 * count)) == 0, "and the same distances");
        require(memcmp(&sums, &plain_sums, sizeof sums) == 0 && memcmp(&sums, &alone_sums, sizeof sums) == 0, "and the same sums");
        if (tier == 0) digest_add(plain, count), digest_add(&sums.squared, sizeof sums.squared), digest_add(&sums.power, sizeof sums.power), digest_add(&sums.largest, 4);
    }
    free(src), free(dst), free(plain), free(alone), free(scale), free(zero), free(off), free(plain_off);
}

static void check_range(int tier, bool is_f16, uint64_t count, uint64_t shift, uint64_t run, bool any) {
    const uint64_t parameters = (count + run - 1) / run;
    uint8_t *src = elements(count, shift, is_f16, any);
    float *least = floats(parameters), *most = floats(parameters), *plain_least = floats(parameters), *plain_most = floats(parameters);
    for (uint64_t i = 0; i < parameters; i++) {
        least[i] = plain_least[i] = i % 3 == 0 ? -5 : mb_float_of(0x80000000u);
        most[i] = plain_most[i] = i % 3 == 0 ? 5 : 0;
    }
    mb_tiers[tier].range[is_f16](src + shift, count, run, least, most);
    mb_tiers[0].range[is_f16](src + shift, count, run, plain_least, plain_most);
    for (uint64_t k = 0; k < parameters; k++) {
        double low = k % 3 == 0 ? -5 : 0, high = k % 3 == 0 ? 5 : 0;
        bool is_finite = true;
        for (uint64_t i = k * run; i < count && i < (k + 1) * run; i++) {
            const double x = element(src + shift, i, is_f16);
            is_finite &= x - x == 0;
            low = x < low ? x : low, high = x > high ? x : high;
        }
        require(is_finite == (least[k] - least[k] == 0 && most[k] - most[k] == 0), "a range is finite if all elements are");
        if (is_finite) require((double)least[k] == low && (double)most[k] == high, "from the least to the greatest of zero and the elements");
    }
    if (!any) require(memcmp(least, plain_least, (size_t)(4 * parameters)) == 0 && memcmp(most, plain_most, (size_t)(4 * parameters)) == 0, "every tier gives the same ranges");
    if (!any && tier == 0) digest_add(least, 4 * parameters), digest_add(most, 4 * parameters);
    free(src), free(least), free(most), free(plain_least), free(plain_most);
}

static void check_split(int tier, bool is_f16, uint64_t count, uint64_t shift, uint32_t cut, bool any) {
    const uint64_t size = is_f16 ? 2 : 4;
    uint8_t *src = elements(count, shift, is_f16, any), *mask = exactly((count + 7) / 8), *plain_mask = exactly((count + 7) / 8);
    uint8_t *kept = exactly(count * size), *plain_kept = exactly(count * size);
    const bool is_counted = tier == 0; /* no tier counts on its own, and adding up takes far longer than all the rest */
    uint64_t found = 0;
    uint32_t *counts = is_counted ? (uint32_t *)calloc(MB_MAGNITUDES, 4) : NULL;
    mb_sums sums, plain_sums;
    if (is_counted && counts == NULL) abort();
    memset(&sums, 0, sizeof sums), memset(&plain_sums, 0, sizeof sums);
    const uint64_t number = mb_prune_split(&mb_tiers[tier], src + shift, count, is_f16, cut, mask, kept, &sums);
    require(number == mb_prune_split(&mb_tiers[0], src + shift, count, is_f16, cut, plain_mask, plain_kept, &plain_sums), "every tier keeps as many");
    require(memcmp(mask, plain_mask, (size_t)((count + 7) / 8)) == 0 && memcmp(kept, plain_kept, (size_t)(number * size)) == 0, "the same ones");
    for (uint64_t i = 0; i < count; i++) {
        const bool is_kept = mb_magnitude(src + shift, (size_t)i, is_f16) > cut;
        require((mask[i / 8] >> i % 8 & 1) == is_kept, "those above the cut");
        if (is_kept) require(memcmp(kept + size * found++, src + shift + size * i, (size_t)size) == 0, "in their order");
    }
    for (uint64_t i = count; i < (count + 7) / 8 * 8; i++) require((mask[i / 8] >> i % 8 & 1) == 0, "and no bit beyond them");
    if (!any) require(memcmp(&sums, &plain_sums, sizeof sums) == 0, "and the same sums");
    if (counts != NULL) {
        mb_prune_count(src + shift, count, is_f16, counts);
        uint64_t total = 0, above = 0;
        for (uint32_t k = 0; k < MB_MAGNITUDES; k++) total += counts[k], above += k > (is_f16 ? cut : cut >> 16) ? counts[k] : 0;
        require(total == count && above <= number && (!is_f16 || above == number), "every element is counted once");
    }
    if (tier == 0) digest_add(mask, (count + 7) / 8), digest_add(kept, number * size);
    free(src), free(mask), free(plain_mask), free(kept), free(plain_kept), free(counts);
}

/* Of every m neighbours the n least are dropped, and zeros, whatever the layout; where equals are on both sides, the group is
 * told. */
static void check_neighbours(int tier, bool is_f16, uint64_t outer, uint64_t channels, uint64_t inner, uint32_t n, uint32_t m, uint64_t shift, bool any) {
    const uint64_t size = is_f16 ? 2 : 4, count = outer * channels * inner, groups = channels / m + (channels % m != 0);
    uint8_t *src = elements(count, shift, is_f16, any), *mask = exactly((count + 7) / 8);
    uint64_t *ties = (uint64_t *)exactly(8 * outer * groups * inner), told = 0;
    uint32_t largest = 0, greatest = 0;
    for (uint64_t i = 0; i < count && !any; i += 3) memset(src + shift + size * i, i % 2 ? 0 : 0x3c, (size_t)size); /* equals */
    const mb_neighbours shape = {outer, channels, inner, n, m};
    const uint64_t found = mb_choose_neighbours(&mb_tiers[tier], src + shift, is_f16, &shape, mask, ties, &largest);
    for (uint64_t number = 0; number < outer * groups * inner; number++) {
        const uint64_t group = number / inner, begin = (group / groups * channels + group % groups * m) * inner + number % inner;
        const uint64_t there = channels - group % groups * m < m ? channels - group % groups * m : m;
        bool is_told = false;
        for (uint64_t i = 0; i < there; i++) {
            const uint32_t own = mb_magnitude(src + shift, (size_t)(begin + i * inner), is_f16);
            uint32_t less = own > 0 ? (uint32_t)(m - there) : 0, within = (uint32_t)(m - there);
            for (uint64_t j = 0; j < there; j++) {
                const uint32_t other = mb_magnitude(src + shift, (size_t)(begin + j * inner), is_f16);
                less += other < own, within += other <= own;
            }
            is_told |= own > 0 && less < n && within > n;
        }
        require(is_told == (told < found && ties[told] == number), "groups with equals on both sides are told, in order");
        for (uint64_t i = 0; i < there; i++) {
            const uint64_t at = begin + i * inner;
            const uint32_t own = mb_magnitude(src + shift, (size_t)at, is_f16);
            uint32_t within = (uint32_t)(m - there);
            for (uint64_t j = 0; j < there; j++) within += mb_magnitude(src + shift, (size_t)(begin + j * inner), is_f16) <= own;
            require((mask[at / 8] >> at % 8 & 1) == (own > 0 && (is_told || within > n)), "neither zeros nor the least stay, the others do");
            greatest = own > greatest ? own : greatest;
        }
        told += is_told;
    }
    require(told == found, "and no others");
    require(largest == greatest, "the greatest magnitude is known");
    for (uint64_t i = count; i < (count + 7) / 8 * 8; i++) require((mask[i / 8] >> i % 8 & 1) == 0, "and no bit beyond them");
    if (tier == 0) digest_add(mask, (count + 7) / 8);
    free(src), free(mask), free(ties);
}

/* Blocks are kept or dropped together by the sum of their squares, each step rounded to the dtype; where neighbours are next to
 * each other, float16 is rounded at the end. */
static void check_pruned_blocks(int tier, bool is_f16, uint64_t outer, uint64_t channels, uint64_t inner, uint64_t m, uint64_t shift, bool any) {
    const uint64_t size = is_f16 ? 2 : 4, count = outer * channels * inner, groups = channels / m + (channels % m != 0), blocks = outer * groups * inner, bytes = (count + 7) / 8;
    uint8_t *src = elements(count, shift, is_f16, any), *own = exactly(blocks * size), *plain = exactly(blocks * size), *mask = exactly(bytes);
    uint8_t *bits = exactly(bytes), *plain_bits = exactly(bytes), *kept = exactly(count * size), *plain_kept = exactly(count * size);
    uint64_t *counts = (uint64_t *)calloc(MB_MAGNITUDES, 8), *below = (uint64_t *)calloc(65536, 8), total = 0, inside = 0, wanted = 0, found = 0;
    const mb_blocks shape = {outer, channels, inner, m};
    mb_sums sums, plain_sums;
    if (counts == NULL || below == NULL) abort();
    memset(&sums, 0, sizeof sums), memset(&plain_sums, 0, sizeof sums);
    for (uint64_t i = 0; i < count && !any; i += 5) memset(src + shift + size * i, 0, (size_t)size);
    mb_block_sums(&mb_tiers[tier], src + shift, is_f16, &shape, own), mb_block_sums(&mb_tiers[0], src + shift, is_f16, &shape, plain);
    if (!any) require(memcmp(own, plain, (size_t)(blocks * size)) == 0, "every tier gives the same sums");
    for (uint64_t number = 0; number < blocks && !any; number++) {
        const uint64_t group = number / inner, first = group % groups * m, begin = (group / groups * channels + first) * inner + number % inner;
        float sum = 0;
        for (uint64_t i = 0; i < m && first + i < channels; i++) {
            const float x = (float)element(src + shift, begin + i * inner, is_f16), square = is_f16 ? mb_to_half(x * x) : x * x;
            sum += square;
            if (is_f16 && inner > 1) sum = mb_to_half(sum);
        }
        if (is_f16) sum = mb_to_half(sum);
        if (inner > 1 || m < 8) require((float)element(own, number, is_f16) == sum, "one square after the other");
        else require((float)element(own, number, is_f16) >= sum * 0.99f && (float)element(own, number, is_f16) <= sum * 1.01f, "squares in pairs");
    }
    const uint32_t cut = blocks > 0 ? mb_magnitude(own, (size_t)(blocks / 2), is_f16) : 0;
    mb_block_count(own, is_f16, &shape, false, 0, counts);
    if (!is_f16) mb_block_count(own, false, &shape, true, cut >> 16, below);
    for (uint32_t k = 0; k < MB_MAGNITUDES; k++) total += counts[k];
    for (uint32_t k = 0; k < 65536; k++) inside += below[k];
    require(total == count && (is_f16 || inside == counts[cut >> 16]), "every element is counted once");
    const uint64_t number = mb_block_mask(&mb_tiers[tier], src + shift, is_f16, &shape, own, cut, mask);
    for (uint64_t i = 0; i < bytes * 8; i++) {
        const uint64_t row = i / inner, block = (row / channels * groups + row % channels / m) * inner + i % inner;
        const bool stays = i < count && mb_magnitude(src + shift, (size_t)i, is_f16) > 0 && mb_magnitude(own, (size_t)block, is_f16) > cut;
        require((mask[i / 8] >> i % 8 & 1) == stays, "what is not zero, of the blocks above the cut");
        wanted += stays;
    }
    require(number == wanted, "as many as are set");
    require(mb_split_chosen(&mb_tiers[tier], src + shift, count, is_f16, mask, bits, kept, &sums) == number, "as many are kept");
    require(mb_split_chosen(&mb_tiers[0], src + shift, count, is_f16, mask, plain_bits, plain_kept, &plain_sums) == number, "in every tier");
    require(memcmp(bits, mask, (size_t)bytes) == 0 && memcmp(kept, plain_kept, (size_t)(number * size)) == 0, "the same ones");
    double squared = 0, power = 0, largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double x = element(src + shift, i, is_f16);
        if (mask[i / 8] >> i % 8 & 1) {
            require(memcmp(kept + size * found++, src + shift + size * i, (size_t)size) == 0, "in their order");
            power += x * x;
        } else {
            squared += x * x, largest = x > largest ? x : -x > largest ? -x : largest;
        }
    }
    if (!any) {
        require(memcmp(&sums, &plain_sums, sizeof sums) == 0, "and the same measures");
        const double off = mb_sum_lanes(sums.squared) - squared, beside = mb_sum_lanes(sums.power) - power;
        require(off * off <= squared * squared * 1e-20 && beside * beside <= power * power * 1e-20 && (double)mb_float_of(sums.largest) == largest, "of what is lost");
    }
    if (tier == 0 && !any) digest_add(plain, blocks * size), digest_add(mask, bytes), digest_add(kept, number * size);
    free(src), free(own), free(plain), free(mask), free(bits), free(plain_bits), free(kept), free(plain_kept), free(counts), free(below);
}

/* Each step of pruning alone, as the plain tier does it: `count` elements at `src`, which are finite unless `any`. */
static void check_steps(int tier, bool is_f16, const uint8_t *src, uint64_t count, bool any) {
    static const uint32_t cuts[2][6] = {{0, 0x400000, 0x3d123456, 0x3f800000, 0x7f800000, 0xffffffff}, {0, 0x3ff, 0x2c00, 0x3c00, 0x7c00, 0xffffffff}};
    const mb_tier *own = mb_tiers + tier, *plain = mb_tiers;
    const uint64_t size = is_f16 ? 2 : 4, bytes = (count + 7) / 8;
    uint8_t *mask = exactly(bytes), *plain_mask = exactly(bytes), *chosen = exactly(bytes), *kept = exactly(count * size), *plain_kept = exactly(count * size);
    float *squares = floats(count), *plain_squares = floats(count);
    mb_sums sums, plain_sums;
    memset(&sums, 0, sizeof sums), memset(&plain_sums, 0, sizeof sums);
    for (unsigned k = 0; k < 6; k++) {
        own->above[is_f16](src, count, cuts[is_f16][k], mask), plain->above[is_f16](src, count, cuts[is_f16][k], plain_mask);
        require(memcmp(mask, plain_mask, (size_t)bytes) == 0, "every tier finds the same above");
        for (uint64_t i = 0; i < bytes * 8; i++) require((mask[i / 8] >> i % 8 & 1) == (i < count && mb_magnitude(src, (size_t)i, is_f16) > cuts[is_f16][k]), "those that are");
    }
    for (uint64_t i = 0; i < bytes; i++) chosen[i] = (uint8_t)(i * 40503u >> 3);
    const uint64_t number = mb_split_chosen(own, src, count, is_f16, chosen, mask, kept, &sums);
    require(number == mb_split_chosen(plain, src, count, is_f16, chosen, plain_mask, plain_kept, &plain_sums), "every tier keeps as many");
    require(memcmp(mask, plain_mask, (size_t)bytes) == 0 && memcmp(kept, plain_kept, (size_t)(number * size)) == 0, "the same ones");
    if (!any) {
        require(memcmp(&sums, &plain_sums, sizeof sums) == 0, "and the same measures");
        own->square[is_f16](squares, src, count), plain->square[is_f16](plain_squares, src, count);
        require(memcmp(squares, plain_squares, (size_t)(4 * count)) == 0, "every tier gives the same squares");
        for (uint64_t i = 0; i < count; i++) { /* sums of any size: other elements without their sign */
            memcpy(kept + size * i, src + size * (i * 3 % count), (size_t)size), kept[size * i + size - 1] &= 0x7f;
        }
        memcpy(plain_kept, kept, (size_t)(count * size));
        own->add_squares[is_f16](kept, src, count), plain->add_squares[is_f16](plain_kept, src, count);
        require(memcmp(kept, plain_kept, (size_t)(count * size)) == 0, "and the same sums");
    }
    free(mask), free(plain_mask), free(chosen), free(kept), free(plain_kept), free(squares), free(plain_squares);
}

/* Blocks of `block` neighbours in rows of `blocks` of them: in one pass, and one pass after another. */
static void check_blocks(int tier, bool is_f16, uint64_t rows, uint64_t blocks, uint64_t block, uint64_t shift, unsigned target, bool is_packed, bool is_row) {
    const uint64_t count = rows * blocks * block, parameters = rows * blocks, size = is_f16 ? 2 : 4, unit = is_row ? blocks * block : block;
    const mb_integers *to = targets + target;
    const uint64_t sizes[2] = {parameters, block}, strides[2] = {1, 0}, nbytes = is_packed ? mb_packed_nbytes(count, to->nbits) : count;
    const uint64_t points = is_packed ? mb_packed_nbytes(parameters, to->nbits) : parameters;
    mb_grid grid = {sizes, strides, block == 1 ? 1u : 2u, {0}, 0}, walk = grid;
    uint8_t *src = elements(count, shift, is_f16, false), *dst = exactly(nbytes), *whole = exactly(nbytes), *scale = exactly(size * parameters), *zero = exactly(points);
    float *least = floats(parameters), *most = floats(parameters), *scales = floats(parameters), *zeros = floats(parameters);
    float *spare = floats(4 * mb_quantize_units(unit) * (unit / block));
    mb_sums sums;
    memset(&sums, 0, sizeof sums);
    for (uint64_t i = 0; i < parameters; i++) least[i] = mb_float_of(0x80000000u), most[i] = 0;
    require(mb_quantize_blocks(&mb_tiers[tier], dst, is_packed, src + shift, is_f16, 0, count, unit, unit / block, &walk, to, spare, scale, to->is_linear ? zero : NULL, &sums), "all is finite");
    walk = grid;
    mb_quantize_ranges(&mb_tiers[0], src + shift, is_f16, 0, count, &walk, least, most);
    require(mb_quantize_scales(&mb_tiers[0], least, most, parameters, is_f16, to, scales, zeros), "all is finite");
    mb_sums again;
    memset(&again, 0, sizeof again);
    walk = grid;
    mb_quantize(&mb_tiers[0], whole, is_packed, src + shift, is_f16, 0, count, &walk, scales, zeros, to, &again);
    require(memcmp(dst, whole, (size_t)nbytes) == 0, "the same integers in one pass");
    require(sums.largest == again.largest, "and the same largest distance");
    for (uint64_t i = 0; i < parameters; i++) {
        require((is_f16 ? mb_float_from_f16(scale, (size_t)i) : mb_float_from_f32(scale, (size_t)i)) == scales[i], "and scales");
        const uint32_t mask = (1u << to->nbits) - 1, point = is_packed && to->nbits == 4 ? (uint32_t)zero[i / 2] >> (i % 2 * 4) & 15 : zero[i];
        if (to->is_linear) require(point == ((uint32_t)(int32_t)zeros[i] & mask), "and zeros");
    }
    if (tier == 0) digest_add(dst, nbytes), digest_add(scale, size * parameters);
    if (count > 0) { /* an element that is not finite */
        memset(src + shift + size * (count - 1), 0xff, (size_t)size);
        walk = grid;
        require(!mb_quantize_blocks(&mb_tiers[tier], dst, is_packed, src + shift, is_f16, 0, count, unit, unit / block, &walk, to, spare, scale, NULL, &sums), "a NaN is noticed");
        require(mb_count_not_finite(src + shift, is_f16, count) == 1, "and counted");
    }
    free(src), free(dst), free(whole), free(scale), free(zero), free(least), free(most), free(scales), free(zeros), free(spare);
}

static void check_palette(int tier, bool is_f32, uint64_t count, uint64_t shift, uint32_t used, bool any) {
    uint8_t *src = elements(count, shift, !is_f32, any), *dst = exactly(count), *plain = exactly(count);
    float *weights = floats(count);
    double entries[256], totals[512] = {0}, plain_totals[512] = {0}, squared = 0, power = 0, largest = 0;
    mb_palette_error error = {0, 0, 0}, plain_error = {0, 0, 0};
    for (uint64_t i = 0; i < count; i++) weights[i] = (float)random_byte();
    for (uint32_t e = 0; e < used; e++) entries[e] = -3 + 6.0 * e / used;
    if (is_f32) {
        const float *own = count % 3 == 2 ? weights : NULL;
        mb_palette_index_32(&mb_tiers[tier], dst, src + shift, own, count, entries, used, totals, &error);
        mb_palette_index_32(&mb_tiers[0], plain, src + shift, own, count, entries, used, plain_totals, &plain_error);
        require(memcmp(dst, plain, (size_t)count) == 0, "every tier gives the same indices");
        for (uint64_t i = 0; i < count; i++) require(dst[i] < used, "an index that there is");
        for (uint64_t i = 0; i < count && !any; i++) {
            const double x = element(src + shift, i, false), off = x > entries[dst[i]] ? x - entries[dst[i]] : entries[dst[i]] - x;
            for (uint32_t e = 0; e < used; e++) require(off <= (x > entries[e] ? x - entries[e] : entries[e] - x), "of the nearest entry");
            require(dst[i] == 0 || off < (x > entries[dst[i] - 1] ? x - entries[dst[i] - 1] : entries[dst[i] - 1] - x), "the lower one of two");
            squared += off * off, power += x * x, largest = off > largest ? off : largest;
        }
        if (!any) {
            require(memcmp(totals, plain_totals, sizeof totals) == 0 && memcmp(&error, &plain_error, sizeof error) == 0, "and the same sums");
            require(error.squared <= squared * 1.000000001 && error.squared * 1.000000001 >= squared && error.largest == largest, "of what is lost");
            require(error.power <= power * 1.000000001 && error.power * 1.000000001 >= power, "and of the elements");
        }
    } else {
        uint8_t *table = random_bytes(MB_PATTERNS);
        mb_palette_index_16(dst, src + shift, count, table);
        for (uint64_t i = 0; i < count; i++) require(dst[i] == table[mb_load_u16(src + shift + 2 * i)], "what the table says");
        free(table);
    }
    if (tier == 0 && !any) digest_add(dst, count), digest_add(totals, sizeof totals);
    free(src), free(dst), free(plain), free(weights);
}

/* Vectors and entries of few different numbers, so that there are equal distances; of any bits if `any`. */
static float *numbers(uint64_t count, bool any) {
    uint8_t *bytes = elements(count, 0, false, any);
    float *found = (float *)bytes;
    for (uint64_t i = 0; i < count && !any; i++) found[i] = i % 3 == 0 ? found[i] : (float)(random_below(9)) / 4 - 1;
    return found;
}

static void check_nearest(int tier, uint64_t count, uint32_t k, uint32_t dims, bool is_heavy, bool any) {
    float *src = numbers(count * dims, any), *entries = numbers((uint64_t)k * dims, any), *heavy = numbers(count * dims, any), *spare = floats(k);
    uint8_t *dst = exactly(count), *plain = exactly(count);
    const uint64_t room = 8 * (uint64_t)k * dims;
    double *sums[4];
    for (unsigned i = 0; i < 4; i++) sums[i] = (double *)exactly(room), memset(sums[i], 0, (size_t)room);
    for (uint64_t i = 0; i < count * dims; i++) heavy[i] = heavy[i] < 0 ? -heavy[i] : heavy[i];
    const mb_vectors palette = {entries, k, dims};
    const float *weights = is_heavy ? heavy : NULL;
    const double squared = mb_nearest_entries(&mb_tiers[tier], src, weights, count, &palette, spare, dst, sums[0], sums[1]);
    const double again = mb_nearest_entries(&mb_tiers[0], src, weights, count, &palette, spare, plain, sums[2], sums[3]);
    for (uint64_t i = 0; i < count; i++) {
        float best = 0;
        uint32_t at = 0;
        require(dst[i] < k, "an index that there is");
        for (uint32_t j = 0; j < k && !any; j++) {
            float sum = 0;
            for (uint32_t d = 0; d < dims; d++) {
                const float difference = src[i * dims + d] - entries[(uint64_t)d * k + j], square = difference * difference, part = (is_heavy ? heavy[i * dims + d] : 1.0f) * square;
                sum += part;
            }
            if (j == 0 || sum < best) best = sum, at = j;
        }
        require(any || dst[i] == at, "the first of the nearest entries");
    }
    if (!any) {
        require(memcmp(dst, plain, (size_t)count) == 0 && memcmp(&squared, &again, sizeof squared) == 0, "every tier gives the same indices");
        require(memcmp(sums[0], sums[2], (size_t)room) == 0 && memcmp(sums[1], sums[3], (size_t)room) == 0, "and the same sums");
        if (tier == 0) digest_add(dst, count), digest_add(&squared, sizeof squared), digest_add(sums[0], room), digest_add(sums[1], room);
    }
    for (unsigned i = 0; i < 4; i++) free(sums[i]);
    free(src), free(entries), free(heavy), free(spare), free(dst), free(plain);
}

/* What vector `at` is away from the nearest of the chosen ones; quarters, so every sum is exact. */
static double away(const mb_columns *from, const uint64_t *chosen, uint32_t number, uint64_t at) {
    double least = 0;
    for (uint32_t one = 0; one < number; one++) {
        double sum = 0;
        for (uint32_t d = 0; d < from->dims; d++) {
            const uint64_t row = from->is_rows ? d : d * from->count, step = from->is_rows ? from->dims : 1;
            const double difference = (double)from->numbers[row + at * step] - (double)from->numbers[row + chosen[one] * step];
            sum += difference * difference * (from->weights == NULL ? 1 : (double)from->weights[row + at * step]);
        }
        least = one == 0 || sum < least ? sum : least;
    }
    return least;
}

/* k-means++ step by step, the slow way; of any bits only that it ends, and chooses what there is. */
static void check_begin(uint64_t count, uint32_t k, uint32_t dims, uint32_t tries, bool is_rows, bool is_heavy, bool any) {
    float *columns = numbers(count * dims, any), *heavy = numbers(count * dims, any);
    double *distances = (double *)exactly(8 * count), *ends = (double *)exactly(8 * count), *points = (double *)exactly(8 * (1 + (uint64_t)(k - 1) * tries));
    uint64_t *chosen = (uint64_t *)exactly(8 * (uint64_t)k);
    for (uint64_t i = 0; i < count * dims && !any; i++) columns[i] = (float)random_below(9) / 4 - 1, heavy[i] = (float)random_below(3) / 4;
    for (uint64_t i = 0; i < 1 + (uint64_t)(k - 1) * tries; i++) points[i] = (double)random_below(1u << 30) / (1u << 30);
    const mb_columns from = {columns, is_heavy ? heavy : NULL, count, dims, is_rows};
    const uint32_t found = mb_vectors_begin(&from, k, tries, points, distances, ends, chosen);
    require(found >= 1 && found <= k, "one vector or more, at most as many as asked for");
    for (uint32_t number = 0; number < found; number++) require(chosen[number] < count, "a vector that there is");
    for (uint32_t number = 1; number < k && !any; number++) {
        double total = 0, best = 0;
        uint64_t taken = 0;
        for (uint64_t i = 0; i < count; i++) total += away(&from, chosen, number, i);
        require((number >= found) == (total == 0), "more are chosen as long as something is left to gain");
        if (total == 0) break;
        for (uint32_t one = 0; one < tries; one++) {
            const double place = points[1 + (number - 1) * tries + one] * total;
            uint64_t drawn = 0;
            double end = away(&from, chosen, number, 0), now = 0;
            while (!(end > place)) end += away(&from, chosen, number, ++drawn);
            const uint64_t kept = chosen[number];
            chosen[number] = drawn;
            for (uint64_t i = 0; i < count; i++) now += away(&from, chosen, number + 1, i);
            chosen[number] = kept;
            if (one == 0 || now < best) best = now, taken = drawn;
        }
        require(chosen[number] == taken, "the best of those drawn");
    }
    if (!any) digest_add(chosen, 8 * (uint64_t)found);
    free(columns), free(heavy), free(distances), free(ends), free(points), free(chosen);
}

/* The cheapest pairs, one after the other, by a search through all that are left. */
static void check_merges(uint32_t k, uint32_t dims, uint32_t most, bool any) {
    float *entries = numbers((uint64_t)k * dims, any);
    double *counts = (double *)exactly(8 * (uint64_t)k), *costs = (double *)exactly(8 * (uint64_t)most);
    uint32_t *pairs = (uint32_t *)exactly(4 * (uint64_t)most);
    uint8_t *gone = exactly((uint64_t)k * k);
    memset(gone, 0, (size_t)k * k);
    for (uint64_t i = 0; i < (uint64_t)k * dims && !any; i++) entries[i] = (float)random_below(9) / 4 - 1;
    for (uint32_t i = 0; i < k; i++) counts[i] = random_below(4);
    const uint32_t found = mb_vectors_merges(entries, counts, k, dims, most, costs, pairs);
    require(found == (k * (k - 1) / 2 < most ? k * (k - 1) / 2 : most), "as many as there are, or as there is room for");
    for (uint32_t number = 0; number < found; number++) {
        double least = 0;
        uint32_t at = k * k;
        for (uint32_t i = 0; i < k && !any; i++) {
            for (uint32_t j = i + 1; j < k; j++) {
                const double both = counts[i] + counts[j], weight = both > 0 ? counts[i] * counts[j] / both : 0;
                double apart = 0;
                for (uint32_t d = 0; d < dims; d++) {
                    const double difference = (double)entries[(uint64_t)i * dims + d] - (double)entries[(uint64_t)j * dims + d];
                    apart += difference * difference;
                }
                if (!gone[i * k + j] && (at == k * k || apart * weight < least)) least = apart * weight, at = i * k + j;
            }
        }
        require(pairs[number] / k < pairs[number] % k && pairs[number] < k * k && !gone[pairs[number]], "a pair, once");
        gone[pairs[number]] = 1;
        require(any || pairs[number] == at, "the first of the cheapest that are left");
    }
    if (!any) digest_add(pairs, 4 * (uint64_t)found);
    free(entries), free(counts), free(costs), free(pairs), free(gone);
}

/* A number of a grid, from bits that may be any. */
static double number_on(const mb_palette_grid *grid, uint32_t bits) {
    if (grid->digits == 11) return (double)mb_float_of(mb_f16_to_f32(bits & 0xffffu, 0));
    return (double)mb_float_of(grid->digits == 8 ? bits << 16 : bits);
}

static int rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The least cost of k runs, by trying where each begins. */
static double least_cost(const mb_palette_fit *fit, uint32_t k) {
    const uint32_t n = fit->count;
    double *cost = (double *)exactly((uint64_t)(n + 1) * 8), *next = (double *)exactly((uint64_t)(n + 1) * 8);
    for (uint32_t j = 0; j <= n; j++) cost[j] = j == 0 ? 0 : 1e300;
    for (uint32_t runs = 1; runs <= k; runs++) {
        for (uint32_t j = 0; j <= n; j++) next[j] = cost[j]; /* or one run fewer */
        for (uint32_t i = 0; i < n; i++) {
            double weight = 0, mean = 0, spread = 0; /* Welford: no difference of large sums, as the kernel has */
            for (uint32_t j = i + 1; j <= n; j++) {
                const double x = fit->values[j - 1], w = fit->weights[j - 1], before = mean;
                weight += w, mean += (x - mean) * (w / weight), spread += w * (x - before) * (x - mean);
                const double off = mean - mb_palette_round(fit, mean), total = cost[i] + spread + weight * (off * off);
                if (total < next[j]) next[j] = total;
            }
        }
        memcpy(cost, next, (size_t)(n + 1) * 8);
    }
    const double least = cost[n];
    free(cost), free(next);
    return least;
}

/* The best palette costs what trying all runs finds, and no more than one can be is the bound. */
static void check_fit(uint32_t count, uint32_t k, uint8_t way, bool any) {
    static const mb_palette_grid grids[] = {{11, -24}, {8, -133}, {24, -149}, {53, 0}};
    const mb_palette_grid *grid = grids + way % 4;
    void *memory = exactly(mb_palette_fit_nbytes(count));
    double *entries = (double *)exactly(8 * (uint64_t)k), cost = -1, bound = -1, spread = 0;
    const double step = number_on(grids, 0x2000 + random_below(0x1000));
    mb_palette_fit fit;
    mb_palette_fit_place(&fit, memory, count);
    int32_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        last += 1 + (int32_t)random_below(way & 16 ? 200 : 2);
        double x = way & 8 ? step * (last - (int32_t)count) : number_on(grid, any ? random_below(0xffffffffu) : 0x3c000000u + random_below(0x04000000u)); /* evenly, or by their bits */
        if (!(x - x == 0)) x = 0;
        fit.values[i] = way & 8 && grid->digits < 53 ? number_on(grid, grid->digits == 11 ? mb_f32_to_f16(mb_bits_of((float)x), MB_F16_INF) : mb_bits_of((float)x) >> (grid->digits == 8 ? 16 : 0)) : x;
        fit.weights[i] = way & 32 ? 1 : any ? (double)mb_float_of(0x00800000u + random_below(0x7e000000u)) : 1 + random_below(way & 64 ? 60000 : 4);
    }
    qsort(fit.values, count, sizeof(double), rising);
    for (uint32_t i = 0; i < count; i++) /* those that are equal count once */
        if (i == 0 || fit.values[i] > fit.values[fit.count - 1]) fit.values[fit.count] = fit.values[i], fit.weights[fit.count++] = fit.weights[i];
    mb_palette_sum(&fit, *grid);
    const uint32_t used = mb_palette_best(&fit, k, entries, &cost, &bound);
    require(used == (fit.count < k ? fit.count : k), "as many entries as there are numbers, or all");
    for (uint32_t e = 0; e < k; e++) require(e < used ? e == 0 || entries[e] >= entries[e - 1] : entries[e] == 0, "entries rise, and unused ones are zero");
    for (uint32_t e = 0; e < used && grid->digits < 53; e++) require(mb_palette_round(&fit, entries[e]) == entries[e], "entries can be stored");
    require(bound <= cost && bound >= 0, "no palette costs less than the bound");
    for (uint32_t i = 0; i < fit.count; i++) spread += fit.weights[i] * (fit.values[i] - fit.center) * (fit.values[i] - fit.center);
    if (!any && fit.count <= 140) {
        const double least = least_cost(&fit, k), little = 1e-12 * spread; /* the kernel subtracts sums */
        require(cost <= least + little + 1e-9 * least && cost >= least - little - 1e-9 * least, "no palette is better");
        require(bound <= least + little + 1e-9 * least, "the bound is below the best");
    }
    digest_add(entries, 8 * (uint64_t)k), digest_add(&used, sizeof used);
    free(memory), free(entries);
}

static void one_round(void) {
    const int tier = (int)random_below((uint32_t)mb_tier_usable());
    const uint8_t what = random_byte(), way = random_byte();
    const uint64_t shift = random_below(9), count = random_below(way & 64 ? 5000 : 150), run = 1 + random_below(way & 32 ? 600 : 40);
    const bool is_f16 = way & 1, any = (way & 30) == 2;
    switch (what % 8) {
    case 0: check_quantize(tier, is_f16, count, shift, run, what / 5 % 8, any); return;
    case 1: check_range(tier, is_f16, count, shift, run, any); return;
    case 2: check_split(tier, is_f16, count, shift, random_below(way & 128 ? 0x8000 : is_f16 ? 0x5c00 : 0x40000000), any); return;
    case 3: check_blocks(tier, is_f16, 1 + random_below(5), 1 + random_below(9), run, shift, what / 5 % 8, way >> 1 & 1, way >> 2 & 1); return;
    case 4:
        if (what / 8 % 4 == 1) check_begin(1 + count % 300, 1 + random_below(way & 32 ? 40 : 5), 1 + random_below(5), 1 + random_below(4), way >> 7 & 1, way >> 1 & 1, any);
        else if (what / 8 % 4 == 2) check_merges(1 + random_below(way & 32 ? 40 : 5), 1 + random_below(5), 1 + random_below(9), any);
        else check_nearest(tier, count % 700, 1 + random_below(256), 1 + random_below(way & 32 ? 40 : 5), way >> 1 & 1, any);
        return;
    case 5: check_neighbours(tier, is_f16, 1 + random_below(4), 1 + random_below(70), 1 + random_below(way & 32 ? way & 64 ? 90 : 20 : 2), random_below(2 + what / 7 % 31), 1 + what / 7 % 31, shift, any); return;
    case 6: check_pruned_blocks(tier, is_f16, 1 + random_below(4), 1 + random_below(way & 32 ? 300 : 40), 1 + random_below(way & 64 ? 40 : 2), 1 + random_below(way & 128 ? 280 : 9), shift, any); return;
    default: break;
    }
    if (way & 128) check_fit(1 + random_below(way & 64 ? 3000 : 140), 1 + random_below(way & 32 ? 256 : 12), random_byte(), any);
    else check_palette(tier, is_f16, count, shift, 1 + random_below(256), any);
}

#ifndef MILBLOB_FUZZ

/* Every finite float16, and float32 numbers with the same upper bits. */
static void check_all(int tier, bool is_f16, unsigned target, float scale, float zero) {
    uint8_t *src = exactly(is_f16 ? 65536 * 2 : 65536 * 4), *dst = exactly(65536), *plain = exactly(65536);
    uint64_t count = 0;
    mb_sums sums, plain_sums;
    memset(&sums, 0, sizeof sums), memset(&plain_sums, 0, sizeof sums);
    for (uint32_t pattern = 0; pattern < 65536; pattern++) {
        if ((pattern & (is_f16 ? 0x7c00 : 0x7f80)) == (is_f16 ? 0x7c00 : 0x7f80)) continue;
        if (is_f16) mb_store_u16(src + 2 * count++, pattern);
        else mb_store_u32(src + 4 * count++, pattern << 16 | (pattern * 40503u & 0xffff));
    }
    mb_tiers[0].quantize[is_f16](plain, NULL, src, count, &scale, &zero, count, targets + target, &plain_sums);
    mb_tiers[tier].quantize[is_f16](dst, NULL, src, count, &scale, &zero, count, targets + target, &sums);
    require(memcmp(dst, plain, (size_t)count) == 0 && memcmp(&sums, &plain_sums, sizeof sums) == 0, "every tier gives the same bits");
    if (tier == 0) digest_add(plain, count), digest_add(sums.power, sizeof sums.power), digest_add(&sums.largest, 4);
    free(src), free(dst), free(plain);
}

/* Every float16, and float32 numbers with the same upper bits: all of them, and the finite ones alone. */
static void check_all_steps(int tier, bool is_f16) {
    for (int any = 0; any < 2; any++) {
        uint8_t *src = exactly(is_f16 ? 65536 * 2 : 65536 * 4);
        uint64_t count = 0;
        for (uint32_t pattern = 0; pattern < 65536; pattern++) {
            const uint32_t infinite = is_f16 ? 0x7c00 : 0x7f80;
            if (!any && (pattern & infinite) == infinite) continue;
            if (is_f16) mb_store_u16(src + 2 * count++, pattern);
            else mb_store_u32(src + 4 * count++, pattern << 16 | (pattern * 40503u & 0xffff));
        }
        check_steps(tier, is_f16, src, count, any);
        free(src);
    }
}

static void all_rounds(void) {
    for (uint32_t way = 0; way < 128; way += 3)
        for (uint32_t count = 1; count <= 140; count += 1 + count / (way % 4 + 1)) check_fit(count, 1 + (count + way) % (way & 1 ? 20 : 3), (uint8_t)way, way % 11 == 5);
    static const uint64_t counts[] = {500, 2047, 2048, 2049, 4100}, runs[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 4096};
    static const float scales[] = {0x1p-24f, 3 * 0x1p-24f, 0.000123f, 0.01f, 0.7f, 515.0f, 9360.0f, 0};
    for (int tier = 0; tier < mb_tier_usable(); tier++) {
        for (uint64_t count = 0; count <= 130; count++) check_palette(tier, count & 1, count, count % 9, 1 + (uint32_t)(count % 35), count % 11 == 4);
        for (uint32_t used = 1; used <= 256; used += 5) check_palette(tier, true, 500 + used, used % 5, used, false);
        check_palette(tier, true, 5000, 1, 256, false), check_palette(tier, false, 5000, 1, 256, false);
    }
    random_state = 2;
    for (int tier = 0; tier < mb_tier_usable(); tier++)
        for (int is_f16 = 0; is_f16 < 2; is_f16++) {
            for (unsigned target = 0; target < sizeof targets / sizeof targets[0]; target++)
                for (unsigned k = 0; k < sizeof scales / sizeof *scales; k++) { /* a zero at one end, in between, or at the other end */
                    const mb_integers *to = targets + target;
                    check_all(tier, is_f16, target, mb_to_half(scales[k]), to->least < 0 ? 0 : 7);
                    if (to->is_linear) check_all(tier, is_f16, target, mb_to_half(scales[k]), (float)(k % 3 == 0 ? to->least : k % 3 == 1 ? to->most : to->least + to->most / 2));
                }
            for (unsigned r = 0; r < sizeof runs / sizeof runs[0]; r++) {
                for (uint64_t count = 0; count <= 130; count++) {
                    check_quantize(tier, is_f16, count, count % 9, runs[r], (unsigned)(count % 8), count % 5 == 4);
                    check_range(tier, is_f16, count, count % 9, runs[r], count % 3 == 1);
                }
                for (unsigned k = 0; k < sizeof counts / sizeof counts[0]; k++) check_quantize(tier, is_f16, counts[k], k, runs[r], k, k == 4), check_range(tier, is_f16, counts[k], k, runs[r], k == 4);
                for (unsigned target = 0; target < sizeof targets / sizeof targets[0]; target++)
                    for (unsigned way = 0; way < 4; way++) check_blocks(tier, is_f16, 1 + target % 3, 1 + (target + way) % 9, runs[r], target, target, way & 1, way >> 1);
            }
            check_blocks(tier, is_f16, 70, 300, 1, 0, 3, true, true), check_blocks(tier, is_f16, 3, 1, 9001, 1, 5, true, true), check_blocks(tier, is_f16, 40, 33, 32, 0, 4, true, false);
            for (uint64_t count = 0; count <= 130; count++)
                for (unsigned k = 0; k < 4; k++) check_split(tier, is_f16, count, count % 9, (uint32_t[]){0, is_f16 ? 0x3800 : 0x3d000000, is_f16 ? 0x7c00 : 0x3f800000, 0x7fffffff}[k], count % 4 == 3);
            for (uint64_t m = 1; m <= 40; m += 1 + m / 9)
                for (uint64_t inner = 1; inner <= 33; inner += 1 + inner / 2) check_pruned_blocks(tier, is_f16, 1 + m % 3, 1 + (11 * m + inner) % 67, inner, m, (m + inner) % 9, (m + inner) % 7 == 1);
            check_pruned_blocks(tier, is_f16, 2, 3000, 1, 4, 1, false), check_pruned_blocks(tier, is_f16, 3, 1001, 1, 300, 0, false), check_pruned_blocks(tier, is_f16, 1, 9, 3000, 4, 3, false);
            for (unsigned k = 0; k < sizeof counts / sizeof counts[0]; k++) check_split(tier, is_f16, counts[k], k, is_f16 ? 0x3c00 : 0x3e000000, k == 4);
        }
    random_state = 3;
    for (int tier = 0; tier < mb_tier_usable(); tier++)
        for (int is_f16 = 0; is_f16 < 2; is_f16++) {
            check_all_steps(tier, is_f16);
            for (uint64_t count = 0; count <= 130; count++) {
                uint8_t *src = elements(count, count % 9, is_f16, count % 5 == 4);
                check_steps(tier, is_f16, src + count % 9, count, count % 5 == 4);
                free(src);
            }
        }
    random_state = 1; /* how far it came depends on how many tiers the CPU has, and the digest must not */
    for (int tier = 0; tier < mb_tier_usable(); tier++)
        for (unsigned way = 0; way < 2; way++)
            for (uint32_t m = 1; m <= 32; m++)
                for (uint32_t n = 0; n <= m; n += 1 + m / 5) {
                    check_neighbours(tier, way, 1 + m % 3, 1 + (7 * m + n) % 67, 1, n, m, m % 9, (m + n) % 5 == 1);
                    check_neighbours(tier, way, 1 + m % 3, m * (1 + (7 * m + n) % 67), 1, n, m, m % 9, (m + n) % 5 == 1);
                    check_neighbours(tier, way, 1 + n % 2, m + n, 1 + (n + m) % 40, n, m, n % 9, false);
                    if (n == m / 2) check_neighbours(tier, way, 1, 2 * m, 60 + 8 * m, n, m, 0, false);
                }
    random_state = 1;
    for (int tier = 0; tier < mb_tier_usable(); tier++) {
        static const uint32_t entries[] = {1, 2, 7, 8, 9, 16, 64, 255, 256}, lengths[] = {1, 2, 3, 4, 8, 31, 32, 33, 40};
        for (unsigned k = 0; k < sizeof entries / sizeof entries[0]; k++)
            for (unsigned d = 0; d < sizeof lengths / sizeof lengths[0]; d++)
                for (uint64_t count = 0; count <= 300; count += count < 40 ? 1 + (k + d) % 5 : 65) check_nearest(tier, count, entries[k], lengths[d], (k + d) % 3 == 1, (k + count) % 7 == 3);
    }
    random_state = 1;
    for (uint64_t count = 1; count <= 200; count += count < 20 ? 1 : 9)
        for (uint32_t k = 1; k <= 64; k += 1 + k / 2) check_begin(count, k, 1 + k % 4, 1 + (uint32_t)(count % 4), (count + k) % 2, count % 3 == 1, count % 7 == 3);
    for (uint32_t k = 1; k <= 40; k++)
        for (uint32_t most = 1; most <= 9; most += 4) check_merges(k, 1 + k % 5, most, k % 7 == 3);
    digest_print();
}

#endif
