# Part of _codec.pyx: palettes of vectors.


cdef uint64_t _entries_width(uint32_t k, uint32_t dims) except 0:
    """Elements of k entries. Raises: ValueError: more or longer ones than a palette has."""
    if not 1 <= k <= 256 or not 1 <= dims <= 1 << 20:
        raise ValueError(f"entries: expected 1 to 256 of 1 to {1 << 20} elements, got {k} of {dims}")
    return <uint64_t>k * dims


def vectors_nearest(out, Buffer src not None, Buffer weights, uint64_t first, uint64_t count, entries, uint32_t k,
                    uint32_t dims, sums, totals):
    """Find the nearest entry of each of `count` vectors, from number `first` on; return the squared error.

    Args:
        out: count uint8 for the indices, or None.
        src: float32, a vector after the other.
        weights: likewise, of each element; None for all alike.
        entries: k * dims float32: all first elements, all second ones, and so on.
        sums, totals: k * dims float64, entry after entry; added to: the weighted elements nearest to each, their weights.
    """
    cdef uint64_t width = _entries_width(k, dims)
    if first >= 1 << 40 or count >= 1 << 40:
        raise ValueError(f"vectors: expected fewer than 2^40, got {first} and {count}")
    cdef _View into = _View(out, count, "out", 1)
    cdef _View sums_view = _View(sums, 8 * width, "sums", 8)
    cdef _View totals_view = _View(totals, 8 * width, "totals", 8)
    cdef Buffer palette_bytes = Buffer(entries)
    cdef const float *heavy = _weights(weights, first * dims, count * dims)
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_vectors palette
    cdef double squared
    _elements_check(src, 4 * first * dims, count * dims, 4)
    _elements_check(palette_bytes, 0, width, 4)
    if sums_view.data == NULL or totals_view.data == NULL:
        raise ValueError("sums and totals: expected arrays, got None")
    if <size_t>src.data % 4 or <size_t>palette_bytes.data % 4:
        raise ValueError("vectors: expected aligned float32")
    cdef float *scratch = <float *>malloc(k * sizeof(float))
    if scratch == NULL:
        raise MemoryError
    palette.entries, palette.k, palette.dims = <const float *>palette_bytes.data, k, dims
    with nogil:
        squared = C.mb_nearest_entries(
            tier, <const float *>src.data + first * dims, heavy, count, &palette, scratch, <uint8_t *>into.data,
            <double *>sums_view.data, <double *>totals_view.data)
    free(scratch)
    return squared


def vectors_begin(Buffer numbers not None, Buffer weights, uint64_t count, uint32_t dims, bint is_rows, uint32_t k,
                  uint32_t tries, points):
    """Choose the vectors that k-means begins with (k-means++). Return their numbers: k, or fewer if there are no more.

    Args:
        numbers: dims * count finite float32: all first elements, all second ones, and so on.
        is_rows: they are a vector after the other instead. Slower, unless vectors are long.
        weights: likewise, of each element; None for all alike.
        tries: vectors that are drawn for each entry after the first; the best of them is taken.
        points: 1 + (k - 1) * tries float64 of [0, 1): random numbers.
    """
    _entries_width(k, dims)
    if not 1 <= count < 1 << 40 or not 1 <= tries <= 1 << 10:
        raise ValueError(f"vectors: expected 1 to 2^40 and 1 to 1024 tries, got {count} and {tries}")
    cdef C.mb_columns source
    cdef Buffer drawn = Buffer(points)
    cdef uint64_t chosen[256]
    cdef uint32_t found
    _elements_check(numbers, 0, count * dims, 4)
    _elements_check(drawn, 0, 1 + <uint64_t>(k - 1) * tries, 8)
    if <size_t>numbers.data % 4 or <size_t>drawn.data % 8:
        raise ValueError("vectors: expected aligned numbers")
    source.weights = _weights(weights, 0, count * dims)
    source.numbers, source.count, source.dims, source.is_rows = <const float *>numbers.data, count, dims, is_rows
    cdef double *scratch = <double *>malloc(2 * count * sizeof(double))
    if scratch == NULL:
        raise MemoryError
    with nogil:
        found = C.mb_vectors_begin(
            &source, k, tries, <const double *>drawn.data, scratch, scratch + count, chosen)
    free(scratch)
    return [chosen[number] for number in range(found)]


def vectors_merges(entries, counts, uint32_t k, uint32_t dims):
    """Return up to 8 pairs of entries that can be merged at the least cost, the cheapest first.

    Args:
        entries: k * dims float32, entry after entry.
        counts: k float64: the vectors nearest to each.
    """
    cdef uint64_t width = _entries_width(k, dims)
    cdef Buffer palette_bytes = Buffer(entries), numbers = Buffer(counts)
    cdef uint32_t pairs[8]
    cdef double costs[8]
    cdef uint32_t found
    _elements_check(palette_bytes, 0, width, 4)
    _elements_check(numbers, 0, k, 8)
    if <size_t>palette_bytes.data % 4 or <size_t>numbers.data % 8:
        raise ValueError("entries: expected aligned numbers")
    with nogil:
        found = C.mb_vectors_merges(
            <const float *>palette_bytes.data, <const double *>numbers.data, k, dims, 8, costs, pairs)
    return [(pairs[number] // k, pairs[number] % k) for number in range(found)]
