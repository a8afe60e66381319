/* kernels/palette_fit.h: finds the best palette of numbers on a line: the k entries with the least weighted squared error.
 *
 * The best clusters of sorted numbers are runs of neighbours. The cost of the run (i, j], w(i, j) = sum of weight times
 * squared distance to its entry, fulfils w(a, c) + w(b, d) <= w(a, d) + w(b, c) for a <= b <= c <= d (Monge). This holds
 * also if entries must be numbers of a narrow type: the entry of a longer run is then the one nearest to its mean, and the
 * proof (swap the two entries) never needs the mean itself. So palettes here are best among those that can be stored.
 *
 * Monge costs make the least total cost D(k) convex in k. A price per run therefore finds D(k): with the price lambda, the
 * best number of runs is k for some lambda, and one pass over the numbers finds these runs, in O(n log n) and for any k
 * ("Aliens' trick"; Wu 1991, Gronlund et al. 2017). Where only fewer and more than k are best, at one and the same lambda,
 * the two solutions cross, and parts of both make one with exactly k (mb_palette_cross).
 *
 * Every pass also proves something: no palette of k entries costs less than its total minus lambda * k. `bound` is the
 * greatest of these, so the result is at most cost - bound above the optimum. Sums are doubles; values are taken
 * relative to `center`. */
#ifndef MILBLOB_PALETTE_FIT_H
#define MILBLOB_PALETTE_FIT_H

#include "milblob/base.h"

#define MB_PALETTE_PASSES 64u /* far more than needed: about 4 are */

#define MB_PALETTE_STEP 8u     /* a first search treats this many numbers as one */

/* Which numbers an entry can be: multiples of 2^lowest, with `digits` significant bits. */
typedef struct mb_palette_grid {
    unsigned digits; /* 53: any double */
    int lowest;
} mb_palette_grid;

typedef struct mb_palette_fit {
    uint32_t count;         /* numbers */
    double *values;         /* count numbers, rising strictly */
    double *weights;        /* of each, above zero */
    double *s0, *s1, *s2;   /* count + 1: sums of weight, weight * (value - center), weight * (value - center)^2 before it */
    double *best;           /* count + 1: by n: least cost of the first n numbers, with the price of each run */
    uint32_t *from;         /* count + 1: where the last run of that begins */
    uint32_t *first, *run;  /* a queue: from target `first` on, the last run begins at `run` */
    uint32_t *few, *many;   /* solutions: ends of runs, after a 0 */
    double *c0, *c1, *c2;   /* count / MB_PALETTE_STEP + 2: some of s0, s1, s2 */
    double center;
    double split, tiny, magic; /* rounding to the grid */
} mb_palette_fit;

static inline uint64_t mb_palette_fit_nbytes(uint64_t room) {
    return (room + 1) * (6 * sizeof(double) + 5 * sizeof(uint32_t)) + 3 * (room / MB_PALETTE_STEP + 2) * sizeof(double);
}

/* Divide memory of mb_palette_fit_nbytes(room), aligned for doubles, among the arrays. */
static inline void mb_palette_fit_place(mb_palette_fit *fit, void *memory, uint32_t room) {
    double *d = (double *)memory;
    const size_t n = (size_t)room + 1, some = (size_t)room / MB_PALETTE_STEP + 2;
    fit->values = d, fit->weights = d + n, fit->s0 = d + 2 * n, fit->s1 = d + 3 * n, fit->s2 = d + 4 * n, fit->best = d + 5 * n;
    fit->c0 = d + 6 * n, fit->c1 = fit->c0 + some, fit->c2 = fit->c1 + some;
    uint32_t *u = (uint32_t *)(void *)(d + 6 * n + 3 * some);
    fit->from = u, fit->first = u + n, fit->run = u + 2 * n, fit->few = u + 3 * n, fit->many = u + 4 * n;
    fit->count = 0;
}

static inline double mb_power_of_two(int exponent) {
    double result = 1, factor = exponent < 0 ? 0.5 : 2;
    for (int i = exponent < 0 ? -exponent : exponent; i > 0; i >>= 1, factor *= factor)
        if (i & 1) result *= factor;
    return result;
}

/* The number of the grid that is nearest to x. Veltkamp's splitting cuts a double to `digits` bits; below the least normal
 * number, adding and subtracting `magic` leaves multiples of 2^lowest. Ties go either way: both are as near. */
MB_STEP double mb_palette_round(const mb_palette_fit *fit, double x) {
    const double t = x * fit->split, normal = t - (t - x), small = (x + fit->magic) - fit->magic;
    return x < fit->tiny && x > -fit->tiny ? small : normal;
}

/* The entry of the run (i, j]: its mean. Beside weights that are 2^53 times as large, those of a run vanish in the sums, or
 * nearly: its mean is then unknown or outside, and the entry is in its middle, or at its end. */
MB_STEP double mb_palette_entry(const mb_palette_fit *fit, uint32_t i, uint32_t j) {
    const double least = fit->values[i], most = fit->values[j - 1], w = fit->s0[j] - fit->s0[i];
    const double mean = w > 0 ? (fit->s1[j] - fit->s1[i]) / w + fit->center : least + (most - least) / 2;
    return mb_palette_round(fit, mean < least ? least : mean > most ? most : mean);
}

MB_STEP double mb_palette_cost(const mb_palette_fit *fit, uint32_t i, uint32_t j) {
    const double w = fit->s0[j] - fit->s0[i], a = fit->s1[j] - fit->s1[i], q = fit->s2[j] - fit->s2[i];
    if (!(w > 0)) return 0; /* as mb_palette_entry: what vanishes costs nothing */
    const double mean = a / w, at = mean + fit->center, off = at - mb_palette_round(fit, at);
    const double spread = q - mean * a;
    return (spread > 0 ? spread : 0) + w * (off * off);
}

/* Sum up the numbers; to be called once values, weights and count are filled. */
MB_KERNEL void mb_palette_sum(mb_palette_fit *fit, mb_palette_grid grid) {
    double total = 0, mean = 0;
    for (uint32_t i = 0; i < fit->count; i++) total += fit->weights[i];
    for (uint32_t i = 0; i < fit->count; i++) mean += fit->values[i] * (fit->weights[i] / total);
    fit->split = mb_power_of_two(53 - (int)grid.digits) + 1;
    fit->tiny = grid.digits >= 53 ? 0 : mb_power_of_two(grid.lowest + (int)grid.digits - 1);
    fit->magic = grid.digits >= 53 ? 0 : 1.5 * mb_power_of_two(52 + grid.lowest);
    fit->center = grid.digits >= 53 ? mean : mb_palette_round(fit, mean);
    fit->s0[0] = fit->s1[0] = fit->s2[0] = 0;
    for (uint32_t i = 0; i < fit->count; i++) {
        const double x = fit->values[i] - fit->center, w = fit->weights[i];
        fit->s0[i + 1] = fit->s0[i] + w, fit->s1[i + 1] = fit->s1[i] + w * x, fit->s2[i + 1] = fit->s2[i] + w * x * x;
    }
}

/* Whether, for the target t, a last run that begins at b is cheaper than one that begins at a < b. If it is, it is so
 * for all targets after t. */
MB_STEP bool mb_palette_later(const mb_palette_fit *fit, uint32_t a, uint32_t b, uint32_t t) {
    return fit->best[b] + mb_palette_cost(fit, b, t) < fit->best[a] + mb_palette_cost(fit, a, t);
}

/* Find the runs of least cost at that price each. Their ends go to `ends`, after a 0; returns how many there are. */
static inline uint32_t mb_palette_priced(mb_palette_fit *fit, double price, uint32_t *ends) {
    const uint32_t n = fit->count;
    uint32_t head = 0, tail = 0; /* first and last of the queue */
    fit->best[0] = 0, fit->first[0] = 1, fit->run[0] = 0;
    for (uint32_t j = 1; j <= n; j++) {
        while (head < tail && fit->first[head + 1] <= j) head++;
        const uint32_t i = fit->run[head];
        fit->from[j] = i;
        fit->best[j] = fit->best[i] + mb_palette_cost(fit, i, j) + price;
        if (j == n) break;
        /* j as the beginning of later runs: it replaces those at the end of the queue that never win again. */
        uint32_t t;
        for (;;) {
            t = fit->first[tail] > j ? fit->first[tail] : j + 1;
            if (!mb_palette_later(fit, fit->run[tail], j, t)) break;
            if (tail == head) { /* the only one */
                fit->run[head] = j, fit->first[head] = j + 1;
                break;
            }
            tail--;
        }
        if (fit->run[tail] == j) continue;
        /* The first target where j wins lies after t, usually not far: steps that double, then halves. */
        uint32_t lost = t, won = n + 1;
        for (uint32_t step = 1; won > n; step *= 2) {
            const uint32_t at = n - lost > step ? lost + step : n;
            if (at == lost) break;
            if (mb_palette_later(fit, fit->run[tail], j, at)) won = at;
            else lost = at;
        }
        if (won > n) continue; /* never */
        while (won - lost > 1) {
            const uint32_t at = lost + (won - lost) / 2;
            if (mb_palette_later(fit, fit->run[tail], j, at)) won = at;
            else lost = at;
        }
        tail++;
        fit->run[tail] = j, fit->first[tail] = won;
    }
    uint32_t runs = 0;
    for (uint32_t j = n; j > 0; j = fit->from[j]) runs++;
    uint32_t at = runs;
    for (uint32_t j = n; j > 0; j = fit->from[j]) ends[at--] = j;
    ends[0] = 0;
    return runs;
}

static inline double mb_palette_total(const mb_palette_fit *fit, const uint32_t *ends, uint32_t runs) {
    double total = 0;
    for (uint32_t r = 0; r < runs; r++) total += mb_palette_cost(fit, ends[r], ends[r + 1]);
    return total;
}

/* Make k runs of the solutions `few` and `many`, of fewer and more than k runs and both best at one price. A run of `many`,
 * `over` runs further on, lies inside one of `few`. Up to its beginning the result is that of `many`, then that of `few`. */
static inline void mb_palette_cross(mb_palette_fit *fit, uint32_t few, uint32_t k) {
    const uint32_t over = k - few;
    uint32_t i = 0;
    while (fit->many[i + 1 + over] > fit->few[i + 1]) i++;
    for (uint32_t r = few; r > i; r--) fit->few[r + over] = fit->few[r];
    for (uint32_t r = 0; r <= i + over; r++) fit->few[r] = fit->many[r];
}

/* Find k runs of least cost, 1 < k < count, into `few`.
 * price: in: where to begin, or 0; out: the last one
 * bound: raised to the greatest total minus price * k that was seen                                                     */
static inline void mb_palette_search(mb_palette_fit *fit, uint32_t k, double *price, double *bound) {
    uint32_t few = 1, many = fit->count;
    for (uint32_t i = 0; i <= many; i++) fit->many[i] = i;
    fit->few[0] = 0, fit->few[1] = many;
    double few_cost = mb_palette_cost(fit, 0, many), many_cost = mb_palette_total(fit, fit->many, many);
    if (!(*price > 0)) *price = 4 * few_cost / ((double)k * k * k);
    double high = 0, low = 0; /* prices at which few and many were found; 0 before */
    bool is_chord = false;
    for (uint32_t pass = 0; pass < MB_PALETTE_PASSES; pass++) {
        uint32_t *ends = fit->first; /* free once the queue is: the ends are written when it is */
        const uint32_t runs = mb_palette_priced(fit, *price, ends);
        const double total = mb_palette_total(fit, ends, runs), least = total + *price * runs - *price * k;
        const bool is_new = runs > few && runs < many;
        if (least > *bound) *bound = least;
        if (is_new && runs <= k) few = runs, few_cost = total, memcpy(fit->few, ends, (runs + 1) * sizeof *ends);
        else if (is_new) many = runs, many_cost = total, memcpy(fit->many, ends, (runs + 1) * sizeof *ends);
        if (few == k || (is_chord && !is_new)) break; /* the latter: both are best at this price, nothing between them is */
        if (runs < k) high = *price;
        else low = *price;
        /* The number of runs falls about as the cube root of the price. Where that leads nowhere new: the price at which
         * both solutions cost the same, so that nothing between them can be missed. */
        const double ratio = (double)runs / k, next = *price * ratio * ratio * ratio;
        is_chord = !is_new || !(next > low) || (high > 0 && next >= high) || pass % 8 == 7;
        *price = is_chord ? (few_cost - many_cost) / (many - few) : next;
    }
    if (few < k) mb_palette_cross(fit, few, k);
}

/* Find the best palette of k entries for the numbers that mb_palette_sum summed up.
 * in   k: 1..256
 * out  entries: k numbers, rising; unused ones are 0 (fewer numbers than entries); cost: the squared error; bound: the least
 *      error that any palette of k entries can have
 * returns how many entries are used      over-reads: none      fails: never                                              */
MB_KERNEL uint32_t mb_palette_best(mb_palette_fit *fit, uint32_t k, double *entries, double *cost, double *bound) {
    const uint32_t n = fit->count;
    for (uint32_t e = 0; e < k; e++) entries[e] = 0;
    fit->few[0] = 0, fit->few[1] = n, *bound = 0;
    if (n <= k) {
        for (uint32_t i = 0; i < n; i++) entries[i] = mb_palette_round(fit, fit->values[i]), fit->few[i + 1] = i + 1;
        *cost = *bound = mb_palette_total(fit, fit->few, n);
        return n;
    }
    if (k > 1) {
        double price = 0, ignored = 0;
        if (n / MB_PALETTE_STEP >= 8 * k) { /* runs that end at every eighth number, in an eighth of the time */
            mb_palette_fit coarse = *fit;
            coarse.s0 = fit->c0, coarse.s1 = fit->c1, coarse.s2 = fit->c2;
            coarse.count = (n + MB_PALETTE_STEP - 1) / MB_PALETTE_STEP;
            for (uint32_t i = 0; i <= coarse.count; i++) {
                const uint32_t at = i < coarse.count ? i * MB_PALETTE_STEP : n;
                fit->c0[i] = fit->s0[at], fit->c1[i] = fit->s1[at], fit->c2[i] = fit->s2[at];
            }
            mb_palette_search(&coarse, k, &price, &ignored);
        }
        mb_palette_search(fit, k, &price, bound);
    }
    for (uint32_t e = 0; e < k; e++) entries[e] = mb_palette_entry(fit, fit->few[e], fit->few[e + 1]);
    *cost = mb_palette_total(fit, fit->few, k);
    if (k == 1 || *bound > *cost) *bound = *cost; /* the second by rounding */
    return k;
}

#endif
