/* kernels/decode.h: dense values of compressed weights: any range of them, in one pass.
 *
 * A cache-sized chunk of elements is unpacked to bytes, expanded by a mask if there is one, and converted run by run; the
 * elements of a run share a scale or a palette. All functions take the range [begin, begin + count) of the result, so the
 * cost of a slice depends on its size, and threads can share the work. */
#ifndef MILBLOB_DECODE_H
#define MILBLOB_DECODE_H

#include "milblob/kernels.h"

enum { MB_CHUNK = 2048, MB_GRID_NDIM = 160, MB_PARAMETERS = 256 };

/* Elements in their stored form. With a mask, they are those of its set bits. */
typedef struct mb_source {
    const uint8_t *data;
    uint64_t count;      /* elements in data */
    unsigned nbits;      /* of an element: 1 2 3 4 6 8 16 32 64 */
    bool is_signed;      /* of less than 8 bits: two's complement, to be widened as such */
    const uint8_t *mask; /* or NULL; as many bits as the result has elements */
    uint64_t rank;       /* set bits of the mask before the range; moves on */
} mb_source;

/* A chunk of a source: `elements` are of nbytes each; `bits` are those of the mask. */
typedef struct mb_chunk {
    const uint8_t *elements;
    size_t nbytes;
    uint8_t unpacked[MB_CHUNK + 8], spread[MB_CHUNK * 8], bits[MB_CHUNK / 8 + 1];
} mb_chunk;

/* Which scale or palette belongs to an element: dimensions, outermost first, each with a size and a stride in those
 * parameters. Adjacent dimensions are merged, so the last one's stride is 0 (a run shares one) or 1 (each has its own). */
typedef struct mb_grid {
    const uint64_t *sizes, *strides;
    uint32_t ndim;
    uint64_t at[MB_GRID_NDIM];
    uint64_t index;
} mb_grid;

MB_STEP uint64_t mb_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline void mb_grid_seek(mb_grid *grid, uint64_t begin) {
    grid->index = 0;
    for (uint32_t d = grid->ndim; d-- > 0;) {
        grid->at[d] = begin % grid->sizes[d];
        begin /= grid->sizes[d];
        grid->index += grid->at[d] * grid->strides[d];
    }
}

/* Go on by `count` in dimension d, at most to its end. */
MB_STEP void mb_grid_advance(mb_grid *grid, uint32_t d, uint64_t count) {
    grid->at[d] += count;
    grid->index += count * grid->strides[d];
    while (grid->at[d] == grid->sizes[d]) {
        grid->index -= grid->sizes[d] * grid->strides[d];
        grid->at[d] = 0;
        if (d-- == 0) break;
        grid->at[d]++;
        grid->index += grid->strides[d];
    }
}

/* Take elements that share one parameter, at most `most` of them: returns how many, *index is the parameter. */
MB_STEP uint64_t mb_grid_run(mb_grid *grid, uint64_t most, uint64_t *index) {
    const uint32_t d = grid->ndim - 1;
    const uint64_t run = grid->strides[d] != 0 ? 1 : mb_least(grid->sizes[d] - grid->at[d], most);
    *index = grid->index;
    mb_grid_advance(grid, d, run);
    return run;
}

/* Take elements whose parameters lie side by side from *index on, one for every *run elements, at most `most` elements and
 * MB_PARAMETERS parameters: returns how many elements. */
MB_STEP uint64_t mb_grid_runs(mb_grid *grid, uint64_t most, uint64_t *index, uint64_t *run) {
    uint32_t d = grid->ndim - 1;
    uint64_t count;
    *index = grid->index;
    *run = grid->strides[d] != 0 ? 1 : grid->sizes[d];
    if (grid->strides[d] == 0) {
        /* Whole runs, one after another, if a run begins here and the dimension outside it is that of the
         * parameters. */
        if (grid->at[d] > 0 || most < *run || d == 0 || grid->strides[d - 1] != 1) return mb_grid_run(grid, most, index);
        d--;
    }
    count = mb_least(mb_least(grid->sizes[d] - grid->at[d], most / *run), MB_PARAMETERS);
    mb_grid_advance(grid, d, count);
    return count * *run;
}

/* Elements [begin, begin + count) of data, count <= MB_CHUNK: where they are, or where they were unpacked to. */
static inline const uint8_t *mb_source_elements(const mb_tier *tier, const mb_source *source, uint64_t begin, uint64_t count, mb_chunk *chunk) {
    if (source->nbits >= 8) return source->data + begin * (source->nbits / 8);
    const unsigned skip = (unsigned)(begin % 8);
    if (count == 0) return chunk->unpacked;
    tier->unpack[source->is_signed](chunk->unpacked, source->data + begin / 8 * source->nbits, skip + count, source->nbits);
    return chunk->unpacked + skip;
}

/* Spread elements to `dst` by the bits of the chunk. The mask is copied before it is counted: a mapped file may change.
 * fails: MB_COUNT: more set bits than elements                                                                         */
static inline mb_status mb_source_spread(const mb_tier *tier, mb_source *source, uint64_t begin, uint64_t count, mb_chunk *chunk, uint8_t *dst, mb_error *error) {
    mb_copy_bits(chunk->bits, source->mask, begin, count);
    const uint64_t ones = tier->ones(chunk->bits, count);
    if (ones > source->count - source->rank) return mb_fail(error, MB_COUNT, 0, source->count, source->rank + ones, "set bits of the mask");
    const uint8_t *elements = mb_source_elements(tier, source, source->rank, ones, chunk);
    tier->expand[mb_width_index(chunk->nbytes)](dst, elements, ones, chunk->bits, count);
    source->rank += ones;
    return MB_OK;
}

/* Make elements [begin, begin + count) ready, count <= MB_CHUNK. Where the mask is clear they are 0. */
static inline mb_status mb_source_chunk(const mb_tier *tier, mb_source *source, uint64_t begin, uint64_t count, mb_chunk *chunk, mb_error *error) {
    chunk->nbytes = source->nbits < 8 ? 1 : source->nbits / 8;
    if (source->mask == NULL) {
        chunk->elements = mb_source_elements(tier, source, begin, count, chunk);
        return MB_OK;
    }
    chunk->elements = chunk->spread;
    return mb_source_spread(tier, source, begin, count, chunk, chunk->spread, error);
}

/* Count the set bits among bits [begin, begin + count). */
static inline uint64_t mb_count_ones(const mb_tier *tier, const uint8_t *src, uint64_t begin, uint64_t count) {
    uint8_t head = 0;
    uint64_t before = begin % 8 == 0 ? 0 : mb_least(count, 8 - begin % 8);
    if (before > 0) mb_copy_bits(&head, src, begin, before);
    return tier->ones(&head, before) + tier->ones(src + (begin + before) / 8, count - before);
}

/* ------------------------------------------------------------------------------------------------------------- sparse */

/* Dense elements of a source with a mask.
 * out  dst: count elements, of one byte where they are stored in less (zero-extended)
 * fails: MB_COUNT: the mask has more set bits than there are elements                                                  */
MB_KERNEL mb_status mb_decode_sparse(const mb_tier *tier, uint8_t *dst, uint64_t begin, uint64_t count, mb_source *source, mb_error *error) {
    mb_chunk chunk;
    chunk.nbytes = source->nbits < 8 ? 1 : source->nbits / 8;
    while (count > 0) {
        const uint64_t n = mb_least(count, MB_CHUNK);
        const mb_status status = mb_source_spread(tier, source, begin, n, &chunk, dst, error);
        if (status != MB_OK) return status;
        dst += n * chunk.nbytes, begin += n, count -= n;
    }
    return MB_OK;
}

/* -------------------------------------------------------------------------------------------------------------- scale */

/* Parameters, one for each index of a grid; kind is an mb_scale_from. */
typedef struct mb_numbers {
    const uint8_t *data; /* or NULL: all 0 */
    int kind;
} mb_numbers;

/* Load count numbers from the index-th on. */
static inline void mb_numbers_load(const mb_numbers *numbers, uint64_t index, uint64_t count, float *out) {
    const size_t n = (size_t)count;
    const uint8_t *data = numbers->data;
    if (data == NULL) {
        for (size_t i = 0; i < n; i++) out[i] = 0.0f;
    } else if (numbers->kind == MB_FROM_U8) {
        for (size_t i = 0; i < n; i++) out[i] = mb_float_from_u8(data + index, i);
    } else if (numbers->kind == MB_FROM_I8) {
        for (size_t i = 0; i < n; i++) out[i] = mb_float_from_i8(data + index, i);
    } else if (numbers->kind == MB_FROM_F16) {
        for (size_t i = 0; i < n; i++) out[i] = mb_float_from_f16(data + 2 * index, i);
    } else {
        for (size_t i = 0; i < n; i++) out[i] = mb_float_from_f32(data + 4 * index, i);
    }
}

/* scale * (element - offset); see scale.h for `from` and `to`. Elements of four bits are not unpacked first where the tier has
 * a kernel for them: then runs must begin at whole bytes, and be long enough for a table of sixteen results. Where the mask is clear the result is 0.
 * in   the grid's product of sizes is at least begin + count, its indices are below the counts of scale and offset
 * fails: as mb_decode_sparse                                                                                           */
MB_KERNEL mb_status mb_decode_scale(const mb_tier *tier, uint8_t *dst, uint64_t begin, uint64_t count, mb_source *source, mb_grid *grid,
                                    const mb_numbers *scale, const mb_numbers *offset, int from, int to, mb_error *error) {
    const bool is_packed = source->nbits == 4 && source->mask == NULL && to != MB_TO_F32;
    const mb_scale_kernel kernel = tier->scale[from][to], packed = is_packed ? tier->scale_packed[source->is_signed][to == MB_TO_F16_STEPS] : NULL;
    const size_t result_nbytes = to == MB_TO_F32 ? 4 : 2;
    float scales[MB_PARAMETERS], offsets[MB_PARAMETERS];
    mb_chunk chunk;
    mb_grid_seek(grid, begin);
    while (count > 0) {
        const uint64_t n = mb_least(count, MB_CHUNK);
        bool is_ready = false;
        for (uint64_t done = 0; done < n;) {
            uint64_t index, run;
            const uint64_t taken = mb_grid_runs(grid, n - done, &index, &run);
            mb_numbers_load(scale, index, (taken + run - 1) / run, scales);
            mb_numbers_load(offset, index, (taken + run - 1) / run, offsets);
            if (packed != NULL && (begin + done) % 2 == 0 && run % 2 == 0 && run >= 16) {
                packed(dst + done * result_nbytes, source->data + (begin + done) / 2, taken, scales, offsets, run);
            } else {
                if (!is_ready) {
                    const mb_status status = mb_source_chunk(tier, source, begin, n, &chunk, error);
                    if (status != MB_OK) return status;
                    is_ready = true;
                }
                kernel(dst + done * result_nbytes, chunk.elements + done * chunk.nbytes, taken, scales, offsets, run);
            }
            done += taken;
        }
        if (source->mask != NULL) mb_keep(dst, chunk.bits, n, result_nbytes);
        dst += n * result_nbytes, begin += n, count -= n;
    }
    return MB_OK;
}

/* ------------------------------------------------------------------------------------------------------------ palette */

/* Palettes of entry_count entries, each a vector of `vector` elements of nbytes. `inner`: how many indices lie between two
 * neighbours along the axis along which the vectors are laid; 1 for scalars. */
typedef struct mb_palette {
    const uint8_t *data;
    unsigned entry_count;
    size_t nbytes;
    uint64_t vector, inner;
} mb_palette;

/* Look up a run of indices in one palette. Element v of the entry of the run's index i goes to dst, counted in elements
 * from place[v * inner + i] where they are laid across, from dst[i * vector + v] where inner is 1. */
static inline void mb_palette_run(const mb_tier *tier, const mb_palette *palette, uint8_t *dst, const uint8_t *indices, uint64_t count, uint64_t number) {
    const size_t size = palette->nbytes, vector_nbytes = (size_t)palette->vector * size;
    const uint8_t *entries = palette->data + number * palette->entry_count * vector_nbytes;
    uint8_t column[256 * 8];
    if (palette->vector == 1) {
        tier->lookup[mb_width_index(size)](dst, indices, count, entries, palette->entry_count);
    } else if (palette->inner == 1) {
        for (uint64_t i = 0; i < count; i++) memcpy(dst + i * vector_nbytes, entries + indices[i] * vector_nbytes, vector_nbytes);
    } else {
        for (uint64_t v = 0; v < palette->vector; v++, dst += palette->inner * size) {
            if (count < palette->entry_count) {
                for (uint64_t i = 0; i < count; i++) memcpy(dst + i * size, entries + indices[i] * vector_nbytes + v * size, size);
                continue;
            }
            for (unsigned e = 0; e < palette->entry_count; e++) memcpy(column + e * size, entries + e * vector_nbytes + v * size, size);
            tier->lookup[mb_width_index(size)](dst, indices, count, column, palette->entry_count);
        }
    }
}

/* Look up indices of four bits where they are, if the tier can and they begin at a whole byte. */
static inline bool mb_palette_packed(const mb_tier *tier, const mb_source *source, const mb_palette *palette, uint8_t *dst, uint64_t begin, uint64_t count, uint64_t number) {
    if (tier->lookup_packed == NULL || source->mask != NULL || source->nbits != 4 || palette->vector != 1 || palette->nbytes != 2 || begin % 2 != 0) return false;
    tier->lookup_packed(dst, source->data + begin / 2, count, palette->data + number * palette->entry_count * 2, palette->entry_count);
    return true;
}

/* Look up indices [begin, begin + count), which must be whole multiples of `inner`. Where the mask is clear (one bit for
 * each index) the result is 0.
 * in   every index is below entry_count: entry_count is at least 2^nbits of the source; the grid as for mb_decode_scale
 * out  dst: count * vector elements      fails: as mb_decode_sparse                                                    */
MB_KERNEL mb_status mb_decode_palette(const mb_tier *tier, uint8_t *dst, uint64_t begin, uint64_t count, mb_source *source, mb_grid *grid,
                                      const mb_palette *palette, mb_error *error) {
    const uint64_t inner = palette->inner, vector = palette->vector;
    uint64_t row = 0, column = 0; /* of the next index in units of `inner`, and inside */
    mb_chunk chunk;
    mb_grid_seek(grid, begin);
    while (count > 0) {
        const uint64_t n = mb_least(count, MB_CHUNK);
        bool is_ready = false;
        for (uint64_t done = 0; done < n;) {
            uint64_t index, most = n - done;
            if (inner > 1) most = mb_least(most, inner - column);
            const uint64_t run = mb_grid_run(grid, most, &index);
            uint8_t *at = dst + (row * vector * inner + column) * palette->nbytes;
            if (!mb_palette_packed(tier, source, palette, at, begin + done, run, index)) {
                if (!is_ready) {
                    const mb_status status = mb_source_chunk(tier, source, begin, n, &chunk, error);
                    if (status != MB_OK) return status;
                    is_ready = true;
                }
                mb_palette_run(tier, palette, at, chunk.elements + done, run, index);
            }
            if (source->mask != NULL)
                for (uint64_t i = 0; i < run; i++)
                    if (mb_bit(chunk.bits, done + i) == 0)
                        for (uint64_t v = 0; v < vector; v++) memset(at + (inner == 1 ? i * vector + v : v * inner + i) * palette->nbytes, 0, palette->nbytes);
            done += run;
            if (inner == 1) row += run;
            else if ((column += run) == inner) column = 0, row++;
        }
        begin += n, count -= n;
    }
    return MB_OK;
}

#endif
