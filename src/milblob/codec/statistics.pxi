# Part of _codec.pyx: counts, extremes, moments and hashes of whole arrays.

cdef class Moments:
    """Counts, extremes, sum and spread of elements; those of consecutive parts of an array can be merged, in order.

    Attributes are those of mb_moments (include/milblob/kernels/moments.h, which states their precision): `sum` and `spread`
    with their rounding errors; `least`, `most` and `smallest` are infinite if there are no finite elements.
    """
    cdef C.mb_moments m

    def __cinit__(self):
        C.mb_moments_clear(&self.m)

    def add(self, Moments other not None):
        """Add the moments of other elements."""
        C.mb_moments_add(&self.m, &other.m)

    @property
    def counts(self):
        """(count, nan, positive infinite, negative infinite, zeros, negative zeros, subnormal, overflow)."""
        m = &self.m
        return (m.count, m.nan, m.positive_infinite, m.negative_infinite, m.zeros, m.negative_zeros, m.subnormal,
                m.overflow)

    @property
    def sums(self):
        """(sum, its rounding error, spread, its rounding error)."""
        return self.m.sum, self.m.sum_low, self.m.spread, self.m.spread_low

    @property
    def extremes(self):
        """(least, most, smallest magnitude that is not zero; the same of int64, or of uint64, less 2^63 the first two)."""
        m = &self.m
        return m.least, m.most, m.smallest, m.least_whole, m.most_whole, m.smallest_whole


cdef class Tally:
    """Counts of each bit pattern among elements of up to 16 bits: 1 MiB; few elements touch little of it.

    One thread at a time; adding drops the GIL.
    """
    cdef C.mb_tally *tally
    cdef unsigned int nbits
    cdef uint32_t found  # patterns that `gather` has left in the tally

    def __cinit__(self):
        self.tally = <C.mb_tally *>calloc(1, sizeof(C.mb_tally))
        if self.tally == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.tally)

    def add(self, Buffer src not None, uint64_t offset, uint64_t count, unsigned int nbits):
        """Count `count` elements of `nbits` (1, 2, 3, 4, 6, 8 or 16), packed below 8, at `offset`.

        Until `gather`, all with the same nbits.
        """
        if nbits not in (1, 2, 3, 4, 6, 8, 16) or (self.tally.count and nbits != self.nbits):
            raise ValueError(f"nbits: expected 1, 2, 3, 4, 6, 8 or 16, the same until they are gathered, got {nbits}")
        if count > src.nbytes * 8 // nbits:
            message = f"elements: expected at most {src.nbytes * 8 // nbits}, which the buffer holds, got {count}"
            raise FormatError(message, offset=offset, file=src.name)
        _span_check(src, offset, C.mb_packed_nbytes(count, nbits) if nbits < 8 else count * (nbits // 8))
        self.nbits = nbits
        with nogil:
            C.mb_tally_elements(self.tally, src.data + offset, count, nbits)

    def merge(self, Tally other not None):
        """Add the counts of another tally, of elements with the same number of bits."""
        if self.tally.count and other.tally.count and self.nbits != other.nbits:
            raise ValueError(f"nbits: expected {self.nbits}, got {other.nbits}")
        if other.tally.count:
            self.nbits = other.nbits
            with nogil:
                C.mb_tally_add(self.tally, other.tally)

    def gather(self, uint32_t mil_code):
        """Return the results and empty the tally.

        Returns:
            (moments, distinct, patterns, counts): Moments of the elements read as `mil_code`; number of distinct values;
            the patterns that occurred, uint16, and their counts, uint64, as bytes.
        """
        cdef Moments result = Moments()
        cdef uint32_t distinct = 0
        cdef unsigned int nbits = self.nbits if self.tally.count else 16
        with nogil:
            self.found = C.mb_tally_gather(self.tally, nbits)
            distinct = C.mb_narrow_moments(mil_code, self.tally.patterns, self.tally.counts, self.found, &result.m)
        return (result, distinct, PyBytes_FromStringAndSize(<char *>self.tally.patterns, 2 * <Py_ssize_t>self.found),
                PyBytes_FromStringAndSize(<char *>self.tally.counts, 8 * <Py_ssize_t>self.found))

    def bins(self, uint32_t mil_code, edges):
        """Return how many of the finite elements that `gather` met are between edges, as a list; before the next `add`.

        Args:
            edges: at most 63 rising numbers. The first bin is below the first one; each begins with its edge.
        """
        cdef double[63] numbers
        cdef uint64_t[64] counts
        cdef Py_ssize_t edge_count = len(edges), i
        if edge_count > 63:
            raise ValueError(f"edges: expected at most 63, got {edge_count}")
        for i in range(edge_count):
            numbers[i] = edges[i]
        with nogil:
            C.mb_narrow_bins(mil_code, self.tally.patterns, self.tally.counts, self.found, numbers,
                             <uint32_t>edge_count, counts)
        return [counts[i] for i in range(edge_count + 1)]


cdef class Distinct:
    """Number of distinct values among elements of 32 or 64 bits. See distinct.h. Not thread-safe.

    Args:
        whole: what this one will be merged into: values that it leaves out already are left out here too.
    """
    cdef C.mb_distinct *distinct

    def __cinit__(self, Distinct whole=None):
        self.distinct = <C.mb_distinct *>calloc(1, sizeof(C.mb_distinct))
        if self.distinct == NULL:
            raise MemoryError
        if whole is not None:
            self.distinct.level = whole.distinct.level

    def __dealloc__(self):
        free(self.distinct)

    def merge(self, Distinct other not None):
        """Add everything that another one has counted."""
        if other is not self:
            C.mb_distinct_merge(self.distinct, other.distinct)

    @property
    def count(self):
        """The number of distinct values: exact unless `is_estimated`."""
        return C.mb_distinct_count(self.distinct)

    @property
    def is_estimated(self):
        """Whether there were too many for an exact count."""
        return self.distinct.level > 0


def wide_moments(int kind, Buffer src not None, uint64_t offset, uint64_t count, Distinct distinct=None):
    """Moments of `count` elements of 32 or 64 bits at `offset` (any alignment); `kind` is one of WIDE_*.

    Their values are added to `distinct`, unless it is None.
    """
    cdef Moments result = Moments()
    cdef C.mb_distinct *seen = NULL if distinct is None else distinct.distinct
    cdef const C.mb_tier *tier = _tier
    if not 0 <= kind < C.MB_WIDE_COUNT:
        raise ValueError(f"kind: expected one of WIDE_*, got {kind}")
    _elements_check(src, offset, count, C.mb_wide_nbytes(kind))
    with nogil:
        C.mb_moments_of(tier, kind, src.data + offset, count, &result.m, seen)
    return result


def hash_stretches(Buffer src not None, uint64_t offset, uint64_t nbytes, uint64_t first, bint is_root=False):
    """BLAKE3 chaining values of the stretches of HASH_STRETCH_NBYTES in [offset, offset + nbytes), 32 bytes each.

    Args:
        first: index of the first stretch in the whole input. Only the input's last stretch may be short.
        is_root: these bytes are the whole input and at most one stretch: the result is its hash.
    """
    cdef uint64_t count = nbytes // C.MB_BLAKE3_STRETCH + (nbytes % C.MB_BLAKE3_STRETCH != 0 or nbytes == 0), i, some
    cdef const C.mb_tier *tier = _tier
    cdef bytes result
    cdef uint8_t *at
    cdef const uint8_t *data
    _span_check(src, offset, nbytes)
    if is_root and (count != 1 or first != 0):
        raise ValueError(f"stretches: expected one that is the whole input, got {count} from number {first} on")
    result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * C.MB_BLAKE3_NBYTES))
    at = <uint8_t *>PyBytes_AsString(result)
    data = src.data + offset
    with nogil:
        for i in range(count):
            some = nbytes if nbytes < <uint64_t>C.MB_BLAKE3_STRETCH else C.MB_BLAKE3_STRETCH
            C.mb_hash_stretch(tier, at + i * C.MB_BLAKE3_NBYTES, data, some, first + i, is_root)
            data += some
            nbytes -= some
    return result


def hash_join(bytes cvs not None):
    """Join the chaining values of two or more stretches, in order, to the hash of the whole input: 32 bytes."""
    cdef uint64_t count = <uint64_t>len(cvs) // C.MB_BLAKE3_NBYTES
    cdef const C.mb_tier *tier = _tier
    cdef uint8_t *work
    if count < 2 or len(cvs) % C.MB_BLAKE3_NBYTES:
        raise ValueError(f"chaining values: expected two or more of {C.MB_BLAKE3_NBYTES} bytes, got {len(cvs)} bytes")
    work = <uint8_t *>malloc(len(cvs))
    if work == NULL:
        raise MemoryError
    try:
        memcpy(work, PyBytes_AsString(cvs), len(cvs))
        with nogil:
            C.mb_hash_join(tier, work, count, True)
        return PyBytes_FromStringAndSize(<char *>work, C.MB_BLAKE3_NBYTES)
    finally:
        free(work)
