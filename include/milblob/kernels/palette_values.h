/* kernels/palette_values.h: the numbers that a palette is fitted to, and the index of the entry nearest to each element.
 *
 * Elements of 16 bits have at most 65536 values, which are counted (tally.h) or, where elements have weights, summed. float32
 * elements have any number: up to MB_PALETTE_DISTINCT of them are counted one by one, more are put into bins. Elements with
 * the same upper 16 bits share a range, which is divided into the more bins, the more elements it has. The mean of a
 * bin represents it, so the runs found are best among those that end between bins. Lloyd's steps on the elements then
 * move the ends.
 *
 * What bins cost: let a run of the best palette of all end inside a bin of n elements with the scatter S (squared distances
 * from their mean). The cost of x is x^2 plus the lesser of two lines whose slopes differ by 2d, d the distance of the two
 * entries. Moving the elements to their mean raises the lesser of the lines by d * (sum of distances from the mean) at most,
 * which is at most d * sqrt(n * S). All d together are the range at most.
 *
 * Negative zero counts as zero. NaNs and infinities have no place on the line: they are counted, and the caller refuses. */
#ifndef MILBLOB_PALETTE_VALUES_H
#define MILBLOB_PALETTE_VALUES_H

#include "milblob/kernels/float.h"
#include "milblob/kernels/palette_fit.h"
#include "milblob/kernels/sums.h"
#include "milblob/kernels/tally.h"

#define MB_PALETTE_DISTINCT 8192u
#define MB_PALETTE_SLOTS (4 * MB_PALETTE_DISTINCT)
#define MB_PALETTE_BINS 131072u

/* The number that a float16 or bfloat16 encodes; exact. */
MB_STEP double mb_palette_number_16(uint32_t bits, bool is_bf16) {
    const uint32_t wide = is_bf16 ? bits << 16 : mb_f16_to_f32(bits, 0);
    float number;
    memcpy(&number, &wide, 4);
    return number;
}

MB_STEP float mb_palette_number_32(const uint8_t *src) {
    const uint32_t bits = mb_load_u16(src) | mb_load_u16(src + 2) << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* Elements by pattern, in the order of their numbers. All zero is an empty one. */
typedef struct mb_palette_patterns {
    double counts[MB_PATTERNS], weights[MB_PATTERNS]; /* without weights, the second is not in use */
    uint64_t seen[MB_PATTERNS / 64];                  /* bit k: the k-th pattern occurred */
    uint16_t ranks[MB_PATTERNS];                      /* mb_palette_gather_16's result: those that occurred, rising */
    uint32_t count;
    bool is_weighted;
} mb_palette_patterns;

/* Patterns in the order of their numbers, and back: the negative ones reversed, then zero and the positive ones. */
MB_STEP uint32_t mb_palette_rank(uint32_t pattern) { return pattern ^ (0x8000u | ((0u - (pattern >> 15)) & 0x7fffu)); } /* signs are hard to predict */
MB_STEP uint32_t mb_palette_pattern(uint32_t rank) { return rank & 0x8000 ? rank & 0x7fff : 0xffffu - rank; }

/* Add the weights of elements of 16 bits that a tally counts too.
 * in   src: count elements, any alignment; weights: as many, zero or more      over-reads: none      fails: never         */
MB_KERNEL void mb_palette_weigh_16(mb_palette_patterns *patterns, const uint8_t *src, const float *weights, uint64_t count) {
    patterns->is_weighted = true;
    for (size_t i = 0; i < (size_t)count; i++) {
        const uint32_t pattern = mb_load_u16(src + 2 * i);
        patterns->weights[mb_palette_rank(pattern == 0x8000 ? 0 : pattern)] += weights[i];
    }
}

/* Move what a tally has counted, and the weights, to `fit` (room for MB_PATTERNS): the numbers that occurred, rising. Those
 * of weight zero are left out. Returns how many numbers occurred that are not finite; then
 * `fit` is of no use. Afterwards the tally is empty. */
MB_KERNEL uint32_t mb_palette_gather_16(mb_palette_patterns *patterns, mb_tally *tally, mb_palette_fit *fit, bool is_bf16) {
    const uint32_t infinite = is_bf16 ? MB_BF16_INF : MB_F16_INF, found = mb_tally_gather(tally, 16);
    uint32_t bad = 0;
    for (uint32_t i = 0; i < found; i++) {
        const uint32_t pattern = tally->patterns[i], rank = mb_palette_rank(pattern == 0x8000 ? 0 : pattern);
        bad += (pattern & 0x7fff) >= infinite;
        patterns->seen[rank >> 6] |= (uint64_t)1 << (rank & 63);
        patterns->counts[rank] += (double)tally->counts[i];
    }
    patterns->count = fit->count = 0;
    for (uint32_t i = 0; i < MB_PATTERNS / 64; i++)
        for (uint64_t seen = patterns->seen[i], rank = 64 * i; seen != 0; seen >>= 1, rank++)
            if (seen & 1) patterns->ranks[patterns->count++] = (uint16_t)rank;
    for (uint32_t i = 0; i < patterns->count && bad == 0; i++) {
        const uint32_t rank = patterns->ranks[i];
        const double weight = patterns->is_weighted ? patterns->weights[rank] : patterns->counts[rank];
        fit->values[fit->count] = mb_palette_number_16(mb_palette_pattern(rank), is_bf16), fit->weights[fit->count] = weight;
        fit->count += weight > 0;
    }
    return bad;
}

/* Empty the patterns that mb_palette_gather_16 gathered. */
static inline void mb_palette_patterns_clear(mb_palette_patterns *patterns) {
    for (uint32_t i = 0; i < patterns->count; i++) {
        const uint32_t rank = patterns->ranks[i];
        patterns->counts[rank] = patterns->weights[rank] = 0, patterns->seen[rank >> 6] = 0;
    }
    patterns->count = 0, patterns->is_weighted = false;
}

/* The elements of a bin: their weights, and of their distances beyond the number of their upper bits the sum and the squares. */
typedef struct mb_palette_bin {
    double weight, sum, squares;
} mb_palette_bin;

/* Values of float32 elements and their weights: all different ones while there are few, then sums in bins. */
typedef struct mb_palette_bins {
    uint32_t slots[MB_PALETTE_SLOTS]; /* bits of a number; it is free if its weight is negative */
    double slot_weights[MB_PALETTE_SLOTS];
    uint32_t distinct;                /* above MB_PALETTE_DISTINCT: too many, and the slots are void */
    uint64_t tops[MB_PATTERNS];       /* elements by the rank of their upper 16 bits */
    uint32_t starts[MB_PATTERNS + 1]; /* first bin of each rank; the last is how many there are */
    bool is_divided;
    mb_palette_bin bins[MB_PALETTE_BINS];
} mb_palette_bins;

static inline void mb_palette_bins_clear(mb_palette_bins *bins) {
    for (uint32_t i = 0; i < MB_PALETTE_SLOTS; i++) bins->slot_weights[i] = -1;
    bins->distinct = 0, bins->is_divided = false;
    memset(bins->tops, 0, sizeof bins->tops);
}

/* Count elements by their upper 16 bits. Returns how many are not finite. */
MB_KERNEL uint64_t mb_palette_tops_32(mb_palette_bins *bins, const uint8_t *src, uint64_t count) {
    uint64_t bad = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        const uint32_t top = mb_load_u16(src + 4 * i + 2);
        bins->tops[mb_palette_rank(top)]++, bad += (top & 0x7f80) == 0x7f80;
    }
    return bad;
}

/* The range of elements, and how many are not finite (those do not count for it). */
MB_KERNEL uint64_t mb_palette_range_32(const uint8_t *src, uint64_t count, double *least, double *most) {
    float low[8], high[8];
    uint64_t bad = 0;
    for (unsigned k = 0; k < 8; k++) low[k] = 3.4028234663852886e38f, high[k] = -3.4028234663852886e38f;
    for (size_t i = 0; i < (size_t)count; i++) {
        const float x = mb_palette_number_32(src + 4 * i);
        const unsigned k = i & 7;
        low[k] = x < low[k] ? x : low[k], high[k] = x > high[k] ? x : high[k];
        bad += !(x - x == 0);
    }
    for (unsigned k = 0; k < 8; k++) {
        if (low[k] < *least) *least = low[k];
        if (high[k] > *most) *most = high[k];
    }
    return bad;
}

/* Count the different numbers, until there are too many. weights: one per element, or NULL. */
MB_KERNEL void mb_palette_distinct_32(mb_palette_bins *bins, const uint8_t *src, const float *weights, uint64_t count) {
    for (size_t i = 0; i < (size_t)count && bins->distinct <= MB_PALETTE_DISTINCT; i++) {
        uint32_t bits = mb_load_u16(src + 4 * i) | mb_load_u16(src + 4 * i + 2) << 16;
        if (bits == 0x80000000u) bits = 0;
        uint32_t slot = bits * 0x9e3779b1u >> 17;
        while (bins->slot_weights[slot] >= 0 && bins->slots[slot] != bits) slot = (slot + 1) % MB_PALETTE_SLOTS;
        if (bins->slot_weights[slot] < 0) bins->slots[slot] = bits, bins->slot_weights[slot] = 0, bins->distinct++;
        bins->slot_weights[slot] += weights == NULL ? 1 : weights[i];
    }
}

/* Divide the ranges that mb_palette_tops_32 counted into empty bins: one for each rank that occurred, and `count` (up to
 * MB_PALETTE_BINS) less 65536 at most. The elements of a rank get as many as their share. */
static inline void mb_palette_divide(mb_palette_bins *bins, uint32_t count) {
    uint64_t elements = 0;
    uint32_t ranks = 0, next = 0;
    for (uint32_t rank = 0; rank < MB_PATTERNS; rank++) elements += bins->tops[rank], ranks += bins->tops[rank] != 0;
    const double each = elements == 0 || count <= ranks ? 0 : (double)(count - ranks) / (double)elements;
    for (uint32_t rank = 0; rank < MB_PATTERNS; rank++) {
        bins->starts[rank] = next;
        if (bins->tops[rank] == 0) continue;
        const double share = (double)bins->tops[rank] * each;
        next += 1 + (share < 65535 ? (uint32_t)share : 65535);
    }
    bins->starts[MB_PATTERNS] = next, bins->is_divided = true;
    memset(bins->bins, 0, next * sizeof *bins->bins);
}

/* Add elements that were counted before to their bins. (If the source has changed, new elements go to some bin.) */
MB_KERNEL void mb_palette_fill_32(mb_palette_bins *bins, const uint8_t *src, const float *weights, uint64_t count) {
    for (size_t i = 0; i < (size_t)count; i++) {
        const uint32_t top = mb_load_u16(src + 4 * i + 2), low = mb_load_u16(src + 4 * i), rank = mb_palette_rank(top);
        const uint32_t first = bins->starts[rank], room = bins->starts[rank + 1] - first;
        const uint32_t along = (uint32_t)((uint64_t)(low ^ ((0u - (top >> 15)) & 0xffffu)) * room >> 16);
        const uint32_t whole = top << 16, bits = whole | low, bin = first + along < MB_PALETTE_BINS ? first + along : 0;
        float x, base;
        memcpy(&x, &bits, 4), memcpy(&base, &whole, 4);
        const double beyond = (double)x - (double)base, w = weights == NULL ? 1 : weights[i];
        mb_palette_bin *const own = bins->bins + bin;
        own->weight += w, own->sum += w * beyond, own->squares += w * beyond * beyond;
    }
}

/* Add the bins of other elements, divided alike. */
MB_KERNEL void mb_palette_bins_add(mb_palette_bins *bins, const mb_palette_bins *other) {
    for (uint32_t i = 0; i < bins->starts[MB_PATTERNS]; i++)
        bins->bins[i].weight += other->bins[i].weight, bins->bins[i].sum += other->bins[i].sum, bins->bins[i].squares += other->bins[i].squares;
}

/* Merge sort of the numbers and their weights in the arrays of `fit`, with runs of 1, 2, 4...; uses `best` and `s0` as
 * scratch space. */
static inline void mb_palette_sort(mb_palette_fit *fit) {
    double *x = fit->values, *w = fit->weights, *to_x = fit->best, *to_w = fit->s0;
    const uint32_t n = fit->count;
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t begin = 0; begin < n; begin += 2 * width) {
            const uint32_t middle = n - begin < width ? n : begin + width, end = n - begin < 2 * width ? n : begin + 2 * width;
            for (uint32_t a = begin, b = middle, to = begin; to < end; to++) {
                const uint32_t from = a < middle && (b == end || x[a] <= x[b]) ? a++ : b++;
                to_x[to] = x[from], to_w[to] = w[from];
            }
        }
        double *swap = x;
        x = to_x, to_x = swap, swap = w, w = to_w, to_w = swap;
    }
    if (x != fit->values) memcpy(fit->values, x, n * sizeof *x), memcpy(fit->weights, w, n * sizeof *w);
}

/* Move the numbers to `fit` (room for MB_PALETTE_BINS): those of the slots, or the means of the bins. Those
 * of weight zero are left out. Empties all. Returns the greatest n * S of a bin: see above. */
MB_KERNEL double mb_palette_gather_32(mb_palette_bins *bins, mb_palette_fit *fit) {
    double reach = 0;
    fit->count = 0;
    for (uint32_t i = 0; i < MB_PALETTE_SLOTS && !bins->is_divided; i++) {
        if (!(bins->slot_weights[i] > 0)) continue;
        fit->values[fit->count] = mb_palette_number_32((const uint8_t *)&bins->slots[i]);
        fit->weights[fit->count++] = bins->slot_weights[i];
    }
    for (uint32_t rank = 0; rank < MB_PATTERNS && bins->is_divided; rank++)
        for (uint32_t bin = bins->starts[rank]; bin < bins->starts[rank + 1]; bin++) {
            const double w = bins->bins[bin].weight, sum = bins->bins[bin].sum, nearly = w * bins->bins[bin].squares - sum * sum;
            if (!(w > 0)) continue;
            const double base = mb_palette_number_16(mb_palette_pattern(rank), true);
            fit->values[fit->count] = base + sum / w, fit->weights[fit->count++] = w;
            if (nearly > reach) reach = nearly;
        }
    mb_palette_sort(fit);
    mb_palette_bins_clear(bins);
    return reach;
}

/* The error of elements that got indices. */
typedef struct mb_palette_error {
    double squared; /* sum of the squared distances from their entries */
    double power;   /* sum of the squares of the elements */
    double largest; /* distance */
} mb_palette_error;

MB_STEP void mb_palette_measure(mb_palette_error *error, double x, double entry, double count) {
    const double off = x > entry ? x - entry : entry - x;
    error->squared += count * off * off, error->power += count * x * x;
    error->largest = off > error->largest ? off : error->largest;
}

/* The entry nearest to x among `used` rising ones, from `at` on; the lower one of two as near. */
MB_STEP uint32_t mb_palette_nearest(const double *entries, uint32_t used, double x, uint32_t at) {
    while (at + 1 < used && entries[at + 1] - x < x - entries[at]) at++;
    return at;
}

/* Fill the table from patterns of 16 bits to the index of the nearest entry, for all that were gathered, and measure. */
MB_KERNEL void mb_palette_table_16(const mb_palette_patterns *patterns, uint8_t *table, const double *entries, uint32_t used, bool is_bf16, mb_palette_error *error) {
    uint32_t at = 0;
    memset(error, 0, sizeof *error);
    for (uint32_t i = 0; i < patterns->count; i++) {
        const uint32_t rank = patterns->ranks[i], pattern = mb_palette_pattern(rank);
        const double x = mb_palette_number_16(pattern, is_bf16);
        at = mb_palette_nearest(entries, used, x, at);
        table[pattern] = (uint8_t)at;
        if (pattern == 0) table[0x8000] = (uint8_t)at;
        mb_palette_measure(error, x, entries[at], patterns->counts[rank]);
    }
}

/* Look up the indices of elements of 16 bits.
 * in   src: count elements, any alignment      out  dst: count bytes      over-reads: none      fails: never               */
MB_KERNEL void mb_palette_index_16(uint8_t *MB_RESTRICT dst, const uint8_t *MB_RESTRICT src, uint64_t count, const uint8_t *MB_RESTRICT table) {
    for (size_t i = 0; i < (size_t)count; i++) dst[i] = table[mb_load_u16(src + 2 * i)];
}

#define MB_PALETTE_AT_ONCE 256u /* elements */

/* Numbers of the order of floats, and back; zero and negative zero are one. */
MB_STEP int32_t mb_palette_order(uint32_t bits) {
    const int32_t sign = (int32_t)bits >> 31;
    return ((int32_t)(bits & 0x7fffffffu) ^ sign) - sign;
}

MB_STEP double mb_palette_ordered(int32_t order) {
    const int32_t sign = order >> 31;
    const uint32_t bits = (uint32_t)((order ^ sign) - sign) | ((uint32_t)sign & 0x80000000u);
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* The greatest number, in that order, that is not nearer to the entry `next` than to `entry` before it. */
static inline int32_t mb_palette_border(double entry, double next) {
    int32_t low = -0x7f800000, high = 0x7f800000;
    while (high - (int64_t)low > 1) {
        const int32_t at = (int32_t)(((int64_t)low + high) >> 1);
        const double x = mb_palette_ordered(at);
        if (next - x < x - entry) high = at;
        else low = at;
    }
    return low;
}

/* Give float32 elements the indices of their nearest entries, the lower one of two as near, and measure. Sums are taken in
 * lanes, an element in that of its place, so every tier adds the same numbers in the same order.
 * in   src: count elements, none NaN; weights: as many, or NULL; entries: `used` (1..256) rising numbers
 * out  dst: count bytes; added to: per entry, totals[e] (weights) and totals[256 + e] (weight * element); error
 * over-reads: none      fails: never                                                                                   */
typedef void (*mb_palette_index_kernel)(uint8_t *dst, const uint8_t *src, const float *weights, uint64_t count, const double *entries, uint32_t used, double *totals, mb_palette_error *error);

/* The index of an element is the number of borders below it: up to 16 are compared one by one, more are divided in halves, of
 * which `top` is the first. Of the 256 borders, those after used - 1 are above all elements. */
MB_STEP void mb_palette_find(int32_t *at, const int32_t *order, const int32_t *borders, uint32_t used, uint32_t top) {
    for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i++) at[i] = 0;
    if (used <= 17) {
        for (uint32_t k = 0; k + 1 < used; k++) {
            const int32_t border = borders[k];
            for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i++) at[i] += order[i] > border;
        }
    } else {
        for (uint32_t step = top; step > 0; step /= 2)
            for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i++) at[i] += order[i] > borders[at[i] + (int32_t)step - 1] ? (int32_t)step : 0;
    }
}

/* find: mb_palette_find, or its equal. */
#define MB_DEFINE_PALETTE_INDEX(name, target, find) \
    target MB_KERNEL void name(uint8_t *dst, const uint8_t *src, const float *weights, uint64_t count, const double *entries, uint32_t used, double *totals, mb_palette_error *error) { \
        int32_t borders[256], order[MB_PALETTE_AT_ONCE], at[MB_PALETTE_AT_ONCE]; \
        double sums[4][256] = {{0}}, heavy[4][256] = {{0}}, squared[MB_LANES] = {0}, power[MB_LANES] = {0}, largest[MB_LANES] = {0}, near[MB_PALETTE_AT_ONCE]; \
        float x[MB_PALETTE_AT_ONCE] = {0}; \
        uint32_t top = 1; \
        for (uint32_t k = 0; k < 256; k++) borders[k] = k + 1 < used ? mb_palette_border(entries[k], entries[k + 1]) : INT32_MAX; \
        while (2 * top < used) top *= 2; \
        for (uint64_t begin = 0; begin < count; begin += MB_PALETTE_AT_ONCE) { \
            const size_t n = count - begin < MB_PALETTE_AT_ONCE ? (size_t)(count - begin) : MB_PALETTE_AT_ONCE; \
            memcpy(x, src + 4 * begin, 4 * n); \
            MB_ONCE(); /* a source may change: measure the value that got the index */ \
            for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i++) { \
                uint32_t bits; \
                memcpy(&bits, x + i, 4); \
                order[i] = mb_palette_order(bits); \
            } \
            find(at, order, borders, used, top); \
            for (size_t i = 0; i < n; i++) dst[begin + i] = (uint8_t)at[i]; \
            for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i++) near[i] = entries[at[i]]; \
            if (weights == NULL) \
                for (size_t i = 0; i < n; i++) heavy[i % 4][at[i]] += 1, sums[i % 4][at[i]] += (double)x[i]; \
            else \
                for (size_t i = 0; i < n; i++) { \
                    const double w = (double)weights[begin + i]; \
                    heavy[i % 4][at[i]] += w, sums[i % 4][at[i]] += w * (double)x[i]; \
                } \
            for (size_t i = n; i < MB_PALETTE_AT_ONCE; i++) x[i] = 0, near[i] = 0; \
            for (size_t i = 0; i < MB_PALETTE_AT_ONCE; i += MB_LANES) \
                for (size_t k = 0; k < MB_LANES; k++) { \
                    const double own = (double)x[i + k], above = own - near[i + k], off = above < 0 ? -above : above; \
                    const double square = off * off, of_own = own * own; \
                    squared[k] += square, power[k] += of_own; \
                    largest[k] = off > largest[k] ? off : largest[k]; \
                } \
        } \
        for (uint32_t e = 0; e < used; e++) \
            totals[e] += (heavy[0][e] + heavy[1][e]) + (heavy[2][e] + heavy[3][e]), totals[256 + e] += (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]); \
        error->squared += mb_sum_lanes(squared), error->power += mb_sum_lanes(power); \
        for (size_t k = 0; k < MB_LANES; k++) error->largest = largest[k] > error->largest ? largest[k] : error->largest; \
    }

MB_DEFINE_PALETTE_INDEX(mb_palette_index_32_plain, , mb_palette_find)

#endif
