# Part of _codec.pyx: comparing two arrays, and finding arrays that differ only in the order of their elements.

cdef class Comparison:
    """Differences between elements; those of consecutive parts of two arrays can be merged, in order.

    include/milblob/kernels/compare.h defines each figure and the handling of NaNs and infinities.
    """
    cdef C.mb_comparison c

    def __cinit__(self):
        memset(&self.c, 0, sizeof(self.c))

    def add(self, Comparison other not None):
        """Add the figures of other elements."""
        C.mb_comparison_add(&self.c, &other.c)

    @property
    def counts(self):
        """(count, finite, unequal, outside, mismatched) pairs of elements."""
        return self.c.count, self.c.finite, self.c.unequal, self.c.outside, self.c.mismatched

    @property
    def most(self):
        """The largest |b - a|."""
        return self.c.most

    @property
    def sums(self):
        """Sums of a, b, a*a, b*b, a*b, |b - a| and (b - a)^2 over pairs of finite elements."""
        return tuple([self.c.sums[i] for i in range(C.MB_COMPARE_SUMS)])


def compare(uint32_t a_code, a, uint32_t b_code, b, double atol=0, double rtol=0):
    """Compare the elements of two arrays in their order.

    Args:
        a_code, b_code: MIL codes of their dtypes; not STRING.
        a, b: buffers of as many elements, little-endian, at any alignment; those below 8 bits take a byte each.
        atol, rtol: elements with |b - a| > atol + rtol * |a| are counted as outside.

    Returns:
        Comparison.
    """
    cdef Comparison result = Comparison()
    cdef const C.mb_tier *tier = _tier
    cdef Py_buffer x, y
    cdef C.mb_tolerance tolerance
    cdef size_t a_nbytes = C.mb_number_nbytes(a_code), b_nbytes = C.mb_number_nbytes(b_code)
    cdef uint64_t count
    if not a_nbytes or not b_nbytes:
        raise ValueError(f"dtype: expected the MIL codes of numbers, got {a_code} and {b_code}")
    if not (atol >= 0 and rtol >= 0):
        raise ValueError(f"tolerances: expected 0 or more, got {atol} and {rtol}")
    tolerance.atol, tolerance.rtol = atol, rtol
    PyObject_GetBuffer(a, &x, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(b, &y, PyBUF_SIMPLE)
        try:
            count = <uint64_t>x.len // a_nbytes
            if <uint64_t>x.len % a_nbytes or <uint64_t>y.len % b_nbytes or count != <uint64_t>y.len // b_nbytes:
                raise ValueError(f"arrays: expected as many elements in both, got {x.len} and {y.len} bytes")
            with nogil:
                C.mb_compare(tier, a_code, <const uint8_t *>x.buf, b_code, <const uint8_t *>y.buf, count, tolerance, &result.c)
        finally:
            PyBuffer_Release(&y)
    finally:
        PyBuffer_Release(&x)
    return result


def hash_elements(array, size_t nbytes):
    """Hash the elements of a buffer, each of 1, 2, 4 or 8 bytes, regardless of their order: an int below 2^64.

    Not collision-resistant.
    """
    cdef Py_buffer view
    cdef uint64_t result
    if nbytes not in (1, 2, 4, 8):
        raise ValueError(f"nbytes: expected 1, 2, 4 or 8, got {nbytes}")
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    try:
        if <size_t>view.len % nbytes:
            raise ValueError(f"array: expected whole elements of {nbytes} bytes, got {view.len} bytes")
        with nogil:
            result = C.mb_hash_elements(<const uint8_t *>view.buf, <uint64_t>view.len // nbytes, nbytes)
    finally:
        PyBuffer_Release(&view)
    return result
