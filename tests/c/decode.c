/* decode.c: every decoding kernel of every tier on buffers of their exact size: against plain, and a loop for each element.
 * See choices.h. */
#include "milblob/kernels/decode.h"
#include "choices.h"
#include "digest.h"

#ifdef MILBLOB_FUZZ
enum { RANGES = 2 };
#else
enum { RANGES = 12 };
#endif

static unsigned element(const uint8_t *src, uint64_t index, unsigned nbits) {
    unsigned value = 0;
    for (unsigned k = 0; k < nbits; k++) value |= mb_bit(src, index * nbits + k) << k;
    return value;
}

/* Buffers of elements begin so many bytes after an aligned address, and end where their allocation ends. */
static size_t misalignment = 0;

static uint8_t *buffer(uint64_t nbytes) { return exactly(nbytes + misalignment) + misalignment; }

static uint8_t *random_buffer(uint64_t nbytes) { return random_bytes(nbytes + misalignment) + misalignment; }

static void release(uint8_t *memory) {
    if (memory != NULL) free(memory - misalignment);
}

/* -------------------------------------------------------------------------------------------------------- kernels alone */

static void check_unpack(const mb_tier *tier, uint64_t count, unsigned nbits) {
    uint8_t *src = random_buffer(mb_packed_nbytes(count, nbits)), *dst = buffer(count);
    for (unsigned is_signed = 0; is_signed < 2; is_signed++) {
        const unsigned sign = is_signed ? 1u << (nbits - 1) : 0;
        tier->unpack[is_signed](dst, src, count, nbits);
        for (uint64_t i = 0; i < count; i++) require(dst[i] == (uint8_t)((element(src, i, nbits) ^ sign) - sign), "bits are unpacked");
        if (tier == &mb_tiers[0]) digest_add(dst, count);
    }
    release(src), release(dst);
}

/* bits: every second element, or all, or none. */
static void check_expand(const mb_tier *tier, uint64_t count, size_t size, unsigned way) {
    uint8_t *bits = random_buffer((count + 7) / 8), *dst = buffer(count * size), *copy = buffer((count + 7) / 8);
    uint64_t ones = 0, next = 0;
    if (way > 0) memset(bits, way == 1 ? 0xff : 0, (size_t)(count + 7) / 8);
    for (uint64_t i = 0; i < count; i++) ones += mb_bit(bits, i);
    uint8_t *src = random_buffer(ones * size);
    require(tier->ones(bits, count) == ones, "bits are counted");
    tier->expand[mb_width_index(size)](dst, src, ones, bits, count);
    for (uint64_t i = 0; i < count; i++)
        for (size_t k = 0; k < size; k++) {
            const bool is_set = mb_bit(bits, i) != 0;
            require(dst[i * size + k] == (is_set ? src[next * size + k] : 0), "elements are spread");
            if (is_set && k + 1 == size) next++;
        }
    memset(dst, 0xff, (size_t)(count * size));
    mb_keep(dst, bits, count, size);
    for (uint64_t i = 0; i < count * size; i++) require(dst[i] == (mb_bit(bits, i / size) ? 0xff : 0), "elements are kept");
    for (uint64_t begin = 0; begin <= count && begin < 20; begin++) {
        mb_copy_bits(copy, bits, begin, count - begin);
        for (uint64_t i = begin; i < count; i++) require(mb_bit(copy, i - begin) == mb_bit(bits, i), "bits are copied");
        if ((count - begin) % 8 != 0) require(copy[(count - begin) / 8] >> (count - begin) % 8 == 0, "and followed by zeros");
        uint64_t left = 0;
        for (uint64_t i = begin; i < count; i++) left += mb_bit(bits, i);
        require(mb_count_ones(tier, bits, begin, count - begin) == left, "bits of a range are counted");
    }
    release(src), release(dst), release(bits), release(copy);
}

static void check_lookup(const mb_tier *tier, uint64_t count, size_t size, unsigned entry_count) {
    uint8_t *entries = random_buffer(entry_count * size), *indices = buffer(count), *dst = buffer(count * size);
    for (uint64_t i = 0; i < count; i++) indices[i] = (uint8_t)random_below(entry_count);
    tier->lookup[mb_width_index(size)](dst, indices, count, entries, entry_count);
    for (uint64_t i = 0; i < count; i++) require(memcmp(dst + i * size, entries + indices[i] * size, size) == 0, "entries are found");
    release(entries), release(indices), release(dst);
}

/* `is_special`: floats have infinities and NaNs among them; which NaN comes of an infinity, CPUs do not agree on. */
static void check_scale(const mb_tier *tier, uint64_t count, int from, int to, uint64_t run, bool is_special) {
    const uint64_t from_nbytes = from == MB_FROM_F32 ? 4 : from == MB_FROM_F16 ? 2 : 1, to_nbytes = to == MB_TO_F32 ? 4 : 2;
    const uint64_t parameter_count = (count + run - 1) / run;
    float *scale = (float *)(void *)exactly(4 * parameter_count), *offset = (float *)(void *)exactly(4 * parameter_count);
    uint8_t *src = random_buffer(count * from_nbytes), *dst = buffer(count * to_nbytes), *plain = buffer(count * to_nbytes);
    for (uint64_t i = 0; i < parameter_count; i++) {
        scale[i] = (float)random_below(1 << 20) / 4096.0f - 128.0f;
        offset[i] = to == MB_TO_F16 ? (float)random_below(256) : (float)random_below(1 << 16) / 512.0f;
    }
    if (from == MB_FROM_F16 && !is_special)
        for (uint64_t i = 0; i < count; i++) src[2 * i + 1] &= 0xbf;
    if (from == MB_FROM_F32 && !is_special)
        for (uint64_t i = 0; i < count; i++) src[4 * i + 3] &= 0xbf;
    if (count > 0) tier->scale[from][to](dst, src, count, scale, offset, run);
    for (uint64_t i = 0; i < count; i++) /* one by one, with the plain kernel */
        mb_tiers[0].scale[from][to](plain + i * to_nbytes, src + i * from_nbytes, 1, scale + i / run, offset + i / run, 1);
    require(memcmp(dst, plain, (size_t)(count * to_nbytes)) == 0, "elements are scaled");
    if (tier == &mb_tiers[0] && !is_special) digest_add(dst, count * to_nbytes);
    free(scale), free(offset), release(src), release(dst), release(plain);
}

/* ------------------------------------------------------------------------------------------------------- whole passes */

/* A dense or sparse source of `total` elements and a grid of two dimensions with a parameter for each block of the last. */
typedef struct problem {
    mb_source source;
    mb_grid grid;
    uint64_t sizes[3], strides[3], total, parameter_count;
    uint8_t *data, *mask;
} problem;

static problem make_problem(unsigned nbits, uint64_t rows, uint64_t blocks, uint64_t block, bool is_sparse) {
    problem p;
    memset(&p, 0, sizeof p);
    p.total = rows * blocks * block, p.parameter_count = rows * blocks;
    p.source.count = p.total, p.source.nbits = nbits;
    if (is_sparse) {
        p.mask = random_buffer((p.total + 7) / 8);
        p.source.count = mb_count_ones(&mb_tiers[0], p.mask, 0, p.total);
        p.source.mask = p.mask;
    }
    p.source.data = p.data = random_buffer((p.source.count * nbits + 7) / 8);
    p.sizes[0] = rows, p.strides[0] = blocks, p.sizes[1] = blocks, p.strides[1] = 1, p.sizes[2] = block;
    p.grid.ndim = 3;
    if (block == 1) p.grid.ndim = 2;
    return p;
}

static bool bit(const problem *p, uint64_t index) { return p->mask == NULL || mb_bit(p->mask, index) != 0; }

/* Every range of the result is the same range of the whole, and outside of the range nothing is written. */
static void check_passes(const mb_tier *tier, unsigned nbits, uint64_t rows, uint64_t blocks, uint64_t block, bool is_sparse, uint64_t vector, uint64_t inner) {
    problem p = make_problem(nbits, rows, blocks, block, is_sparse);
    mb_error error;
    if (rows % 2 == 0) p.sizes[0] = p.total, p.strides[0] = 0, p.grid.ndim = 1, block = p.total; /* one for all */
    p.grid.sizes = p.sizes, p.grid.strides = p.strides;
    uint8_t *scales = random_buffer(2 * p.parameter_count), *shifts = random_buffer(p.parameter_count);
    for (uint64_t i = 0; i < p.parameter_count; i++) scales[2 * i + 1] = (uint8_t)(0x38 | (scales[2 * i + 1] & 0x83));
    const mb_numbers scale = {scales, MB_FROM_F16}, shift = {shifts, MB_FROM_I8};
    const unsigned entry_count = 1u << nbits;
    uint8_t *entries = random_buffer(p.parameter_count * entry_count * vector * 2);
    const mb_palette palette = {entries, entry_count, 2, vector, inner};
    for (int step = 0; step < RANGES; step++) {
        uint64_t begin = step == 0 ? 0 : random_below((uint32_t)p.total), count = step == 0 ? p.total : random_below((uint32_t)(p.total - begin) + 1);
        begin -= begin % inner, count -= count % inner;
        uint64_t rank = is_sparse ? mb_count_ones(tier, p.mask, 0, begin) : 0;
        uint8_t *dst = buffer(2 * count * vector);
        mb_source source = p.source;
        source.rank = rank;
        if (vector == 1) {
            require(mb_decode_scale(tier, dst, begin, count, &source, &p.grid, &scale, &shift, MB_FROM_U8, MB_TO_F16, &error) == MB_OK, "scaled");
            uint64_t next = rank;
            for (uint64_t i = 0; i < count; i++) {
                uint8_t expected[2] = {0, 0}, one;
                if (bit(&p, begin + i)) {
                    float s = mb_float_from_f16(scales, (begin + i) / block), o = mb_float_from_i8(shifts, (begin + i) / block);
                    one = (uint8_t)element(p.data, is_sparse ? next++ : begin + i, nbits);
                    mb_scale_u8_f16_plain(expected, &one, 1, &s, &o, 1);
                }
                require(memcmp(dst + 2 * i, expected, 2) == 0, "a range is scaled as each element");
            }
            if (tier == &mb_tiers[0]) digest_add(dst, 2 * count);
            source.rank = rank;
            if (is_sparse) {
                uint8_t *bytes = buffer(count);
                require(mb_decode_sparse(tier, bytes, begin, count, &source, &error) == MB_OK, "spread");
                next = rank;
                for (uint64_t i = 0; i < count; i++) require(bytes[i] == (bit(&p, begin + i) ? element(p.data, next++, nbits) : 0), "a range is spread as each element");
                release(bytes);
            }
        }
        source.rank = rank;
        require(mb_decode_palette(tier, dst, begin, count, &source, &p.grid, &palette, &error) == MB_OK, "looked up");
        uint64_t next = rank;
        for (uint64_t i = 0; i < count; i++) {
            const bool is_set = bit(&p, begin + i);
            const unsigned index = is_set ? element(p.data, is_sparse ? next++ : begin + i, nbits) : 0;
            const uint8_t *found = entries + (((begin + i) / block) * entry_count + index) * vector * 2;
            for (uint64_t v = 0; v < vector; v++) {
                const uint8_t zero[2] = {0, 0};
                const uint64_t at = inner == 1 ? i * vector + v : (i / inner * vector + v) * inner + i % inner;
                require(memcmp(dst + 2 * at, is_set ? found + 2 * v : zero, 2) == 0, "a range is looked up as each index");
            }
        }
        if (is_sparse && p.source.count > 0 && count == p.total) { /* a mask with one bit more than there are elements */
            mb_source broken = p.source;
            broken.count--;
            require(mb_decode_palette(tier, dst, 0, p.total, &broken, &p.grid, &palette, &error) == MB_COUNT, "too many bits are seen");
        }
        release(dst);
    }
    release(p.data), release(p.mask), release(scales), release(shifts), release(entries);
}

static const unsigned widths[] = {1, 2, 3, 4, 6, 8};

static void one_round(void) {
    const mb_tier *tier = &mb_tiers[random_below((uint32_t)mb_tier_usable())];
    const uint8_t what = random_byte();
    misalignment = what % 9;
    const bool is_long = (what & 128) != 0, is_fine = (what & 64) != 0;
    const uint64_t count = random_below(is_fine ? 2200 : 150);
    const size_t size = (size_t)1 << (what >> 4 & 3);
    const unsigned nbits = widths[random_below(sizeof widths / sizeof widths[0])];
    switch (what & 7) {
    case 0: check_unpack(tier, count, nbits == 8 ? 4 : nbits); return;
    case 1: check_expand(tier, count, size, what >> 6); return;
    case 2: check_lookup(tier, count, size, 1u << nbits); return;
    case 3: check_scale(tier, count, (int)random_below(MB_FROM_COUNT), (int)random_below(MB_TO_COUNT), 1 + random_below(is_long ? 2201 : 40), is_fine); return;
    default: {
        const uint64_t rows = 1 + random_below(3), blocks = 1 + random_below(is_fine ? 150 : 5), block = 1 + random_below(is_long ? 150 : is_fine ? 3 : 20);
        const uint64_t inners[] = {1, block, blocks * block, rows * blocks * block};
        const uint64_t vector = 1 + random_below(4);
        check_passes(tier, nbits, rows, blocks, block, (what & 4) != 0, vector, vector == 1 ? 1 : inners[what & 3]);
    }
    }
}

#ifndef MILBLOB_FUZZ

static void all_rounds(void) {
    static const uint64_t more[] = {255, 256, 257, 1000, 2047, 2048, 2049};
    for (int row = 0; row < mb_tier_usable(); row++) {
        const mb_tier *tier = &mb_tiers[row];
        for (uint64_t n = 0; n <= 130 + sizeof more / sizeof more[0]; n++) {
            const uint64_t count = n <= 130 ? n : more[n - 131];
            misalignment = (size_t)(count % 9);
            for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++)
                if (widths[k] < 8) check_unpack(tier, count, widths[k]);
            for (size_t size = 1; size <= 8; size *= 2) {
                for (unsigned way = 0; way < 3; way++) check_expand(tier, count, size, way);
                for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) check_lookup(tier, count, size, 1u << widths[k]);
            }
            for (int from = 0; from < MB_FROM_COUNT; from++)
                for (int to = 0; to < MB_TO_COUNT; to++) {
                    check_scale(tier, count, from, to, 1, count % 2 != 0);
                    check_scale(tier, count, from, to, 1 + random_below(40), count % 3 == 0);
                    check_scale(tier, count, from, to, count + 1, count % 3 == 1);
                }
        }
        for (int round = 0; round < 400; round++) {
            const unsigned nbits = widths[random_below(sizeof widths / sizeof widths[0])];
            const bool is_sparse = round % 2 != 0, is_long = round % 8 < 2, is_fine = round % 8 >= 6;
            const uint64_t rows = 1 + random_below(3), blocks = 1 + random_below(is_fine ? 900 : 9);
            const uint64_t block = 1 + random_below(is_long ? 900 : is_fine ? 3 : 40);
            const uint64_t inners[] = {1, block, blocks * block, rows * blocks * block};
            check_passes(tier, nbits, rows, blocks, block, is_sparse, 1, 1);
            check_passes(tier, nbits, rows, blocks, block, is_sparse, 2 + random_below(3), inners[round / 8 % 4]);
        }
    }
    digest_print();
}

#endif
