/* kernels/vectors_begin.h: the vectors that a palette of vectors begins with, and the entries of one that can be merged. */
#ifndef MILBLOB_VECTORS_BEGIN_H
#define MILBLOB_VECTORS_BEGIN_H

#include "milblob/kernels/scale.h"

/* Vectors by columns: all first elements, all second ones, and so on; or by rows: a vector after the other.
 * numbers: dims * count floats; weights: as many, of each element, or NULL for all alike                               */
typedef struct mb_columns {
    const float *numbers, *weights;
    uint64_t count;
    uint32_t dims;
    bool is_rows;
} mb_columns;

MB_STEP size_t mb_column_at(const mb_columns *from, size_t vector, uint32_t d) {
    return from->is_rows ? vector * from->dims + d : (size_t)d * (size_t)from->count + vector;
}

#define MB_BEGIN_BLOCK 64u /* vectors whose distances are computed side by side: the loop over them vectorizes */
#define MB_BEGIN_LANES 8u

/* Add the squares of element d's differences to the distances of some vectors. x: element d of the first of them; w: its
 * weight; step: from a vector to the next. */
MB_STEP void mb_begin_add(const float *x, const float *w, size_t step, double at, size_t number, double *now) {
    for (size_t i = 0; i < number; i++) {
        const double difference = (double)x[i * step] - at, square = difference * difference;
        const double part = w == NULL ? square : square * (double)w[i * step];
        now[i] += part;
    }
}

/* Compute the squared distances of vectors `first` to `first + number - 1` from vector `entry`, weighted; where those before
 * are less, these. The elements are added up in their order. */
MB_STEP void mb_begin_block(const mb_columns *from, uint64_t entry, const double *before, size_t first, size_t number, double *now) {
    for (size_t i = 0; i < number; i++) now[i] = 0;
    for (uint32_t d = 0; d < from->dims; d++) {
        const size_t place = mb_column_at(from, first, d);
        const double at = (double)from->numbers[mb_column_at(from, (size_t)entry, d)];
        const float *x = from->numbers + place, *w = from->weights == NULL ? NULL : from->weights + place;
        if (from->is_rows) mb_begin_add(x, w, from->dims, at, number, now);
        else if (w == NULL) mb_begin_add(x, NULL, 1, at, number, now);
        else mb_begin_add(x, w, 1, at, number, now);
    }
    for (size_t i = 0; i < number; i++) now[i] = before[first + i] < now[i] ? before[first + i] : now[i];
}

/* The sum of the squared distances if vector `entry` were one more entry; `kept` takes the distances unless it is NULL.
 * May be the same as `before`. */
MB_KERNEL double mb_begin_with(const mb_columns *from, uint64_t entry, const double *before, double *kept) {
    double lanes[MB_BEGIN_LANES] = {0}, now[MB_BEGIN_BLOCK], total = 0;
    for (size_t first = 0; first < (size_t)from->count; first += MB_BEGIN_BLOCK) {
        const size_t left = (size_t)from->count - first, number = left < MB_BEGIN_BLOCK ? left : MB_BEGIN_BLOCK;
        if (number == MB_BEGIN_BLOCK) mb_begin_block(from, entry, before, first, MB_BEGIN_BLOCK, now);
        else mb_begin_block(from, entry, before, first, number, now);
        for (size_t i = number; i % MB_BEGIN_LANES; i++) now[i] = 0;
        for (size_t i = 0; i < number; i += MB_BEGIN_LANES) {
            for (uint32_t lane = 0; lane < MB_BEGIN_LANES; lane++) lanes[lane] += now[i + lane];
        }
        if (kept != NULL) memcpy(kept + first, now, number * sizeof *now);
    }
    for (uint32_t lane = 0; lane < MB_BEGIN_LANES; lane++) total += lanes[lane];
    return total;
}

/* Draw the number of a vector. ends: the sums of the chances up to each; point: of [0, 1), a place among them. */
MB_STEP uint64_t mb_begin_draw(const double *ends, uint64_t count, double point) {
    const double total = ends[count - 1];
    const bool is_any = !(total > 0);
    const double place = point * (is_any ? (double)count : total);
    uint64_t low = 0, high = count - 1; /* the first whose end lies beyond the place, or the last */
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (is_any ? (double)(middle + 1) > place : ends[middle] > place) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Choose the vectors that k-means begins with (k-means++): the first is drawn by the weights; each of the others is the best
 * of a few, which are drawn by the squared distances from those before.
 * in   from: finite, one vector or more; k: 1 to 256; tries: for each entry; points: 1 + (k - 1) * tries numbers of [0, 1)
 * out  chosen: k numbers of vectors
 * scratch: distances, ends: a double for each vector
 * returns how many were chosen: fewer than k if each vector equals one of these     over-reads: none    fails: never   */
MB_KERNEL uint32_t mb_vectors_begin(const mb_columns *from, uint32_t k, uint32_t tries, const double *points, double *distances, double *ends, uint64_t *chosen) {
    const uint64_t count = from->count;
    const double infinite = (double)mb_float_of(0x7f800000u);
    double sum = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        double heavy = from->weights == NULL ? 1 : 0;
        for (uint32_t d = 0; d < from->dims && from->weights != NULL; d++) heavy += (double)from->weights[mb_column_at(from, i, d)];
        ends[i] = sum += heavy;
        distances[i] = infinite;
    }
    chosen[0] = mb_begin_draw(ends, count, *points++);
    sum = mb_begin_with(from, chosen[0], distances, distances);
    for (uint32_t number = 1; number < k; number++) {
        double least = infinite;
        if (!(sum > 0)) return number;
        sum = 0;
        for (size_t i = 0; i < (size_t)count; i++) ends[i] = sum += distances[i];
        chosen[number] = 0;
        for (uint32_t one = 0; one < tries; one++) {
            const uint64_t entry = mb_begin_draw(ends, count, *points++);
            const double now = mb_begin_with(from, entry, distances, NULL);
            if (one == 0 || now < least) least = now, chosen[number] = entry;
        }
        sum = mb_begin_with(from, chosen[number], distances, distances);
    }
    return k;
}

/* Find the pairs of entries that can be merged into one at the least cost: their squared distance times a * b / (a + b) for
 * entries that are nearest to a and b vectors; nothing if both are 0.
 * in   entries: dims floats of each of k; counts: of each; most: room in pairs
 * out  pairs: i * k + j with i < j, the cheapest first, of equals the first
 * scratch: costs: `most` doubles
 * returns how many there are, at most `most`      over-reads: none      fails: never                                   */
MB_KERNEL uint32_t mb_vectors_merges(const float *entries, const double *counts, uint32_t k, uint32_t dims, uint32_t most, double *costs, uint32_t *pairs) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < k; i++) {
        for (uint32_t j = i + 1; j < k; j++) {
            const double both = counts[i] + counts[j], weight = both > 0 ? counts[i] * counts[j] / both : 0;
            double apart = 0;
            for (uint32_t d = 0; d < dims; d++) {
                const double difference = (double)entries[(size_t)i * dims + d] - (double)entries[(size_t)j * dims + d], square = difference * difference;
                apart += square;
            }
            const double cost = apart * weight;
            uint32_t at = found;
            if (found == most && !(cost < costs[most - 1])) continue;
            if (found < most) found++;
            else at--;
            for (; at > 0 && cost < costs[at - 1]; at--) costs[at] = costs[at - 1], pairs[at] = pairs[at - 1];
            costs[at] = cost, pairs[at] = i * k + j;
        }
    }
    return found;
}

#endif
