# Part of _codec.pyx: palettes of vectors.


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
    cdef uint64_t width = <uint64_t>k * dims
    if not 1 <= k <= 256 or not 1 <= dims <= 1 << 20:
        raise ValueError(f"entries: expected 1 to 256 of 1 to {1 << 20} elements, got {k} of {dims}")
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
