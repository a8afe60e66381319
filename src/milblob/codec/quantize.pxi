# Part of _codec.pyx: linear quantization.

cdef class _View:
    """A buffer held for writing, or nothing for None."""
    cdef Py_buffer view
    cdef bint held
    cdef void *data

    def __cinit__(self, source, uint64_t nbytes, str name, size_t align=4):
        self.data = NULL
        if source is None:
            return
        PyObject_GetBuffer(source, &self.view, PyBUF_WRITABLE)
        self.held = True
        if <uint64_t>self.view.len != nbytes or <size_t>self.view.buf % align:
            raise ValueError(f"{name}: expected {nbytes} bytes, aligned to {align}, got {self.view.len}")
        self.data = self.view.buf

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Integers:
    """The integers that quantization makes: least to most, kept in nbits (4 or 8); is_linear: see quantize_scales."""
    cdef C.mb_integers to
    cdef readonly int nbits

    def __cinit__(self, int least, int most, int nbits, bint is_linear):
        if nbits not in (4, 8):
            raise ValueError(f"nbits: expected 4 or 8, got {nbits}")
        if not -(1 << (nbits - 1)) <= least <= most or most >= (1 << nbits if least >= 0 else 1 << (nbits - 1)):
            raise ValueError(f"least and most: expected a range of {nbits} bits, got {least} and {most}")
        self.to.least, self.to.most, self.to.nbits, self.to.is_linear = least, most, nbits, is_linear
        self.nbits = nbits


cdef object _figures(C.mb_sums *sums):
    return C.mb_sum_lanes(sums.squared), C.mb_sum_lanes(sums.power), C.mb_float_of(sums.largest)


cdef int _packed_check(Py_buffer *view, bint is_packed, int nbits, uint64_t count, str name) except -1:
    cdef uint64_t nbytes = count // 2 + count % 2 if is_packed and nbits == 4 else count
    if <uint64_t>view.len != nbytes:
        raise ValueError(f"{name}: expected {nbytes} bytes, got {view.len}")
    return 0


def not_finite(Buffer src not None, uint64_t offset, bint is_f16, uint64_t count):
    """Return how many of `count` float16 or float32 elements are NaN or infinite."""
    cdef uint64_t bad
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    with nogil:
        bad = C.mb_count_not_finite(src.data + offset, is_f16, count)
    return bad


def quantize_ranges(Buffer src not None, uint64_t offset, bint is_f16, uint64_t begin, uint64_t count, Grid grid not None,
                    least, most):
    """Widen the range of each block by elements [begin, begin + count); it is not finite if an element is not.

    Args:
        src: float16 or float32 elements from `offset` on, as many as the grid has.
        least, most: float32, one per parameter of the grid, infinite the wrong way at first.
    """
    cdef C.mb_grid walk = grid.grid
    cdef const C.mb_tier *tier = _tier
    _elements_check(src, offset, grid.count, 2 if is_f16 else 4)
    _grid_check(grid, begin, count)
    cdef _View low = _View(least, 4 * grid.parameter_count, "least"), high = _View(most, 4 * grid.parameter_count, "most")
    if low.data == NULL or high.data == NULL:
        raise ValueError("least and most: expected arrays, got None")
    with nogil:
        C.mb_quantize_ranges(tier, src.data + offset, is_f16, begin, count, &walk, <float *>low.data, <float *>high.data)


def quantize_scales(scale, zero, Buffer least not None, Buffer most not None, uint64_t count, bint is_f16,
                    Integers to not None):
    """Compute scales and zeros of `count` ranges as coremltools does; return whether all ranges are finite.

    Args:
        scale, zero: float32, one of each per range.
        least, most: likewise.
        is_f16: whether each step is rounded to float16.
        to: with is_linear, the least and the greatest integer are the ends of the range, which holds zero; else the range
            is symmetric around zero.
    """
    cdef const C.mb_tier *tier = _tier
    cdef const float *low = _weights(least, 0, count)
    cdef const float *high = _weights(most, 0, count)
    cdef _View scales = _View(scale, 4 * count, "scale"), zeros = _View(zero, 4 * count, "zero")
    cdef bint is_finite
    if scales.data == NULL or zeros.data == NULL:
        raise ValueError("scale and zero: expected arrays, got None")
    with nogil:
        is_finite = C.mb_quantize_scales(tier, low, high, count, is_f16, &to.to, <float *>scales.data, <float *>zeros.data)
    return is_finite


def quantize(out, bint is_packed, Buffer src not None, uint64_t offset, bint is_f16, uint64_t begin, uint64_t count,
             Grid grid not None, Buffer scale not None, Buffer zero not None, Integers to not None):
    """Quantize finite elements [begin, begin + count).

    Args:
        out: a byte for each integer, its low bits; with is_packed, as many bits as it has.
        src, offset: as quantize_ranges.
        scale, zero: float32, one of each per parameter of the grid.

    Returns:
        (squared error, power, largest error) of the elements.
    """
    cdef C.mb_grid walk = grid.grid
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_sums sums
    cdef const float *scales = _weights(scale, 0, grid.parameter_count)
    cdef const float *zeros = _weights(zero, 0, grid.parameter_count)
    cdef Py_buffer view
    _elements_check(src, offset, grid.count, 2 if is_f16 else 4)
    _grid_check(grid, begin, count)
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        _packed_check(&view, is_packed, to.to.nbits, count, "out")
        memset(&sums, 0, sizeof(sums))
        with nogil:
            C.mb_quantize(tier, <uint8_t *>view.buf, is_packed, src.data + offset, is_f16, begin, count, &walk, scales,
                          zeros, &to.to, &sums)
    finally:
        PyBuffer_Release(&view)
    return _figures(&sums)


def quantize_errors(errors, Buffer src not None, uint64_t offset, bint is_f16, uint64_t begin, uint64_t count,
                    Grid grid not None, Buffer scale not None, Buffer zero not None, Integers to not None,
                    Buffer weights=None):
    """Add to `errors`, float64, one per parameter, the squared errors that quantize would make, times the weights.

    Args:
        weights: float32, one per element of the grid, or None.
    """
    cdef C.mb_grid walk = grid.grid
    cdef const C.mb_tier *tier = _tier
    cdef const float *w = _weights(weights, 0, grid.count)
    cdef const float *scales = _weights(scale, 0, grid.parameter_count)
    cdef const float *zeros = _weights(zero, 0, grid.parameter_count)
    cdef _View blocks = _View(errors, 8 * grid.parameter_count, "errors", 8)
    _elements_check(src, offset, grid.count, 2 if is_f16 else 4)
    _grid_check(grid, begin, count)
    if blocks.data == NULL:
        raise ValueError("errors: expected an array, got None")
    with nogil:
        C.mb_quantize_errors(tier, src.data + offset, is_f16, begin, count, &walk, scales, zeros, &to.to, w,
                             <double *>blocks.data)


def quantize_blocks(out, scale, zero, bint is_packed, Buffer src not None, uint64_t offset, bint is_f16, uint64_t begin,
                    uint64_t count, uint64_t unit, uint64_t parameters, Grid grid not None, Integers to not None):
    """Quantize elements [begin, begin + count), with the ranges of their blocks, which are all complete.

    Args:
        out: as quantize.
        scale: one per block of these, in the dtype of the elements.
        zero: likewise, a byte each, with is_packed as many bits as an integer has; or None.
        unit: number of elements that hold `parameters` whole blocks; begin and count are multiples of it.

    Returns:
        As quantize; None if an element is not finite.
    """
    cdef C.mb_grid walk = grid.grid
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_sums sums
    cdef Py_buffer view
    cdef void *spare = NULL
    cdef bint is_finite
    cdef uint64_t blocks
    _elements_check(src, offset, grid.count, 2 if is_f16 else 4)
    _grid_check(grid, begin, count)
    if unit == 0 or begin % unit or count % unit or grid.count % unit or (
            parameters != grid.parameter_count // (grid.count // unit) or grid.parameter_count % (grid.count // unit)):
        raise ValueError(f"unit: expected {grid.count} elements in whole units of {parameters} blocks, got {unit}")
    blocks = count // unit * parameters
    cdef _View scales = _View(scale, (2 if is_f16 else 4) * blocks, "scale", 1)
    cdef _View zeros = _View(zero, blocks // 2 + blocks % 2 if is_packed and to.to.nbits == 4 else blocks, "zero", 1)
    if scales.data == NULL:
        raise ValueError("scale: expected an array, got None")
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        _packed_check(&view, is_packed, to.to.nbits, count, "out")
        spare = malloc(16 * C.mb_quantize_units(unit) * parameters)
        if spare == NULL:
            raise MemoryError
        memset(&sums, 0, sizeof(sums))
        with nogil:
            is_finite = C.mb_quantize_blocks(tier, <uint8_t *>view.buf, is_packed, src.data + offset, is_f16, begin, count,
                                             unit, parameters, &walk, &to.to, <float *>spare, <uint8_t *>scales.data,
                                             <uint8_t *>zeros.data, &sums)
    finally:
        free(spare)
        PyBuffer_Release(&view)
    return _figures(&sums) if is_finite else None
