# Part of _codec.pyx: palettes fitted to elements, and the indices of the nearest entries.

PALETTE_DISTINCT, PALETTE_BINS = C.MB_PALETTE_DISTINCT, C.MB_PALETTE_BINS - C.MB_PATTERNS


cdef const float *_weights(Buffer weights, uint64_t first, uint64_t count) except? NULL:
    """float32 weights of elements [first, first + count), or NULL for None."""
    if weights is None:
        return NULL
    if <size_t>weights.data % 4:
        raise ValueError("weights: expected aligned float32")
    _elements_check(weights, 4 * first, count, 4)
    return <const float *>(weights.data + 4 * first)


cdef C.mb_palette_grid _palette_grid(int nbits, bint is_bf16) noexcept nogil:
    cdef C.mb_palette_grid grid
    grid.digits = 24 if nbits == 32 else 8 if is_bf16 else 11
    grid.lowest = -149 if nbits == 32 else -133 if is_bf16 else -24
    return grid


def palette_range(Buffer src not None, uint64_t offset, uint64_t count):
    """Return (least, most, how many are not finite) of float32 elements; (inf, -inf) if no element is finite."""
    cdef double least = float("inf"), most = float("-inf")
    cdef uint64_t bad
    _elements_check(src, offset, count, 4)
    with nogil:
        bad = C.mb_palette_range_32(src.data + offset, count, &least, &most)
    return least, most, bad


cdef class PaletteFit:
    """Memory to fit palettes in, one after the other: 16 MiB at most. One thread at a time; work drops the GIL.

    For elements of 16 bits: `count` them, then `fit_16`. For float32: `count_tops`, `count_distinct`, and if there are too
    many, `divide`, `fill` and `merge`; then `fit_32`.
    """
    cdef C.mb_tally *tally
    cdef C.mb_palette_patterns *patterns
    cdef C.mb_palette_bins *bins
    cdef C.mb_palette_fit fit
    cdef void *memory
    cdef readonly uint32_t distinct
    """How many different numbers the last fit was made of: elements of 16 bits and few float32; else bins in use."""

    def __dealloc__(self):
        free(self.tally)
        free(self.patterns)
        free(self.bins)
        free(self.memory)

    cdef int _reserve(self, bint narrow, bint room) except -1:
        if narrow and self.tally == NULL:
            self.tally = <C.mb_tally *>calloc(1, sizeof(C.mb_tally))
        if narrow and self.patterns == NULL:
            self.patterns = <C.mb_palette_patterns *>calloc(1, sizeof(C.mb_palette_patterns))
        if not narrow and self.bins == NULL:
            self.bins = <C.mb_palette_bins *>calloc(1, sizeof(C.mb_palette_bins))
            if self.bins != NULL:
                C.mb_palette_bins_clear(self.bins)
        if room and self.memory == NULL:
            self.memory = malloc(C.mb_palette_fit_nbytes(C.MB_PALETTE_BINS))
            if self.memory != NULL:
                C.mb_palette_fit_place(&self.fit, self.memory, C.MB_PALETTE_BINS)
        if (narrow and (self.tally == NULL or self.patterns == NULL)) or (not narrow and self.bins == NULL) or (
                room and self.memory == NULL):
            raise MemoryError
        return 0

    def count(self, Buffer src not None, uint64_t offset, uint64_t count, Buffer weights=None, uint64_t first=0):
        """Count elements of 16 bits; with their weights, float32 from number `first` on."""
        cdef const float *w = _weights(weights, first, count)
        _elements_check(src, offset, count, 2)
        self._reserve(True, False)
        with nogil:
            C.mb_tally_elements(self.tally, src.data + offset, count, 16)
            if w != NULL:
                C.mb_palette_weigh_16(self.patterns, src.data + offset, w, count)

    def count_distinct(self, Buffer src not None, uint64_t offset, uint64_t count, Buffer weights=None, uint64_t first=0):
        """Count float32 elements by number, none of them NaN. Returns False when there are more than PALETTE_DISTINCT."""
        cdef const float *w = _weights(weights, first, count)
        _elements_check(src, offset, count, 4)
        self._reserve(False, False)
        with nogil:
            C.mb_palette_distinct_32(self.bins, src.data + offset, w, count)
        return self.bins.distinct <= C.MB_PALETTE_DISTINCT

    def count_tops(self, Buffer src not None, uint64_t offset, uint64_t count):
        """Count float32 elements by their upper 16 bits; return how many are not finite."""
        cdef uint64_t bad
        _elements_check(src, offset, count, 4)
        self._reserve(False, False)
        with nogil:
            bad = C.mb_palette_tops_32(self.bins, src.data + offset, count)
        return bad

    def merge_tops(self, PaletteFit other not None):
        """Add the counts by upper bits of another one."""
        self._reserve(False, False)
        other._reserve(False, False)
        for i in range(C.MB_PATTERNS):
            self.bins.tops[i] += other.bins.tops[i]

    def divide(self, uint32_t bins, PaletteFit like=None):
        """Divide the range of elements that count_tops counted (here, or in `like`) into about `bins` empty bins."""
        if not 1 <= bins <= C.MB_PALETTE_BINS - C.MB_PATTERNS:
            raise ValueError(f"bins: expected 1 to {C.MB_PALETTE_BINS - C.MB_PATTERNS}, got {bins}")
        self._reserve(False, False)
        if like is not None:
            like._reserve(False, False)
            memcpy(self.bins.tops, like.bins.tops, C.MB_PATTERNS * sizeof(uint64_t))
        C.mb_palette_divide(self.bins, bins)

    def fill(self, Buffer src not None, uint64_t offset, uint64_t count, Buffer weights=None, uint64_t first=0):
        """Add float32 elements that count_tops has counted to their bins."""
        cdef const float *w = _weights(weights, first, count)
        _elements_check(src, offset, count, 4)
        if self.bins == NULL or not self.bins.is_divided:
            raise ValueError("bins: expected some, got none: divide comes first")
        with nogil:
            C.mb_palette_fill_32(self.bins, src.data + offset, w, count)

    def merge(self, PaletteFit other not None):
        """Add the bins of another one, divided alike."""
        if (self.bins == NULL or other.bins == NULL or not self.bins.is_divided or not other.bins.is_divided
                or memcmp(self.bins.starts, other.bins.starts, (C.MB_PATTERNS + 1) * sizeof(uint32_t))):
            raise ValueError("bins: expected two that are divided alike")
        with nogil:
            C.mb_palette_bins_add(self.bins, other.bins)

    def merge_tally(self, Tally tally not None):
        """Add the counts of a tally of elements of 16 bits."""
        if tally.tally.count and tally.nbits != 16:
            raise ValueError(f"tally: expected one of elements of 16 bits, got {tally.nbits}")
        self._reserve(True, False)
        with nogil:
            C.mb_tally_add(self.tally, tally.tally)

    def fit_16(self, bint is_bf16, uint32_t k, entries=None):
        """Fit a palette to the counted elements, or take `entries`; make the table of indices.

        Args:
            entries: None for the best; else 1 to k rising numbers.

        Returns:
            None if an element is not finite; else (entries: k numbers, rising up to the last that is used, then zeros;
            how many are used; cost and bound of the fit, with the weights; table: 65536 bytes, for palette_indices;
            (squared error, power, largest error), without weights). Nothing is counted any more.
        """
        cdef double found[256]
        cdef double cost = 0, bound = 0
        cdef uint32_t bad, used = k
        cdef bint is_given = entries is not None
        cdef C.mb_palette_error error
        cdef bytes table = PyBytes_FromStringAndSize(NULL, C.MB_PATTERNS)
        cdef uint8_t *to = <uint8_t *>PyBytes_AsString(table)
        _palette_check(k, entries, found)
        if is_given:
            used = len(entries)
        self._reserve(True, True)
        with nogil:
            bad = C.mb_palette_gather_16(self.patterns, self.tally, &self.fit, is_bf16)
            if bad == 0 and self.fit.count > 0:
                memset(to, 0, C.MB_PATTERNS)
                if not is_given:
                    C.mb_palette_sum(&self.fit, _palette_grid(16, is_bf16))
                    used = C.mb_palette_best(&self.fit, k, found, &cost, &bound)
                C.mb_palette_table_16(self.patterns, to, found, used, is_bf16, &error)
            C.mb_palette_patterns_clear(self.patterns)
        self.distinct = self.fit.count
        if bad or self.fit.count == 0:
            return None
        return ([found[i] for i in range(k)], used, cost, bound, table, (error.squared, error.power, error.largest))

    def fit_32(self, uint32_t k):
        """Fit a palette to the counted or binned elements.

        Returns:
            (entries, how many are used, cost, bound, reach): as fit_16. The cost and the bound are those of bins, as if
            all their elements were at their mean; `reach` is how much less still is possible for the elements.
        """
        cdef double found[256]
        cdef double cost = 0, bound = 0, reach = 0
        cdef uint32_t used = 0, i
        _palette_check(k, None, found)
        self._reserve(False, True)
        with nogil:
            reach = C.mb_palette_gather_32(self.bins, &self.fit)
            C.mb_palette_sum(&self.fit, _palette_grid(32, False))
            used = C.mb_palette_best(&self.fit, k, found, &cost, &bound)
        self.distinct = self.fit.count
        span = self.fit.values[self.fit.count - 1] - self.fit.values[0] if self.fit.count else 0.0
        return [found[i] for i in range(k)], used, cost, bound, span * reach ** 0.5


cdef int _palette_check(uint32_t k, entries, double *found) except -1:
    if not 1 <= k <= 256:
        raise ValueError(f"entries: expected 1 to 256, got {k}")
    if entries is not None:
        if not 1 <= len(entries) <= k:
            raise ValueError(f"entries: expected 1 to {k}, got {len(entries)}")
        for i in range(k):
            found[i] = entries[i] if i < <uint32_t>len(entries) else 0
    return 0


def palette_indices_16(out, Buffer src not None, uint64_t offset, uint64_t count, bytes table not None):
    """Look up the indices of `count` elements of 16 bits in a table of fit_16; `out` has a byte for each."""
    cdef Py_buffer view
    cdef const uint8_t *rows = <const uint8_t *>PyBytes_AsString(table)
    _elements_check(src, offset, count, 2)
    if len(table) != C.MB_PATTERNS:
        raise ValueError(f"table: expected {C.MB_PATTERNS} bytes, got {len(table)}")
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        if <uint64_t>view.len != count:
            raise ValueError(f"out: expected {count} bytes, got {view.len}")
        with nogil:
            C.mb_palette_index_16(<uint8_t *>view.buf, src.data + offset, count, rows)
    finally:
        PyBuffer_Release(&view)


def palette_indices_32(out, Buffer src not None, uint64_t offset, uint64_t count, entries, Buffer weights=None,
                       uint64_t first=0):
    """Write the indices of the nearest entries of `count` float32 elements, none of them NaN; `out` has a byte for each.

    Args:
        entries: 1 to 256 rising numbers.
        weights: as many float32 as elements, from number `first` on, or None.

    Returns:
        (weights of the elements of each entry, sums of weight times element, (squared error, power, largest error),
        without weights).
    """
    cdef Py_buffer view
    cdef double found[256]
    cdef double totals[512]
    cdef C.mb_palette_error error
    cdef const C.mb_tier *tier = _tier
    cdef const float *w = _weights(weights, first, count)
    cdef uint32_t used = len(entries), e
    _palette_check(used, entries, found)
    _elements_check(src, offset, count, 4)
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        if <uint64_t>view.len != count:
            raise ValueError(f"out: expected {count} bytes, got {view.len}")
        memset(&error, 0, sizeof(error))
        memset(totals, 0, sizeof(totals))
        with nogil:
            C.mb_palette_index_32(tier, <uint8_t *>view.buf, src.data + offset, w, count, found, used, totals, &error)
    finally:
        PyBuffer_Release(&view)
    return ([totals[e] for e in range(used)], [totals[256 + e] for e in range(used)],
            (error.squared, error.power, error.largest))
