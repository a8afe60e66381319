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


def quantize_ranges(Buffer src not None, uint64_t offset, bint is_f16, uint64_t begin, uint64_t count, Grid grid not None,
                    least, most):
    """Widen the range of each block by elements [begin, begin + count); return how many are not finite.

    Args:
        src: float16 or float32 elements from `offset` on, as many as the grid has.
        least, most: float32, one per parameter of the grid, infinite the wrong way at first.
    """
    cdef C.mb_grid walk = grid.grid
    cdef const C.mb_tier *tier = _tier
    cdef uint64_t bad
    _elements_check(src, offset, grid.count, 2 if is_f16 else 4)
    _grid_check(grid, begin, count)
    cdef _View low = _View(least, 4 * grid.parameter_count, "least"), high = _View(most, 4 * grid.parameter_count, "most")
    if low.data == NULL or high.data == NULL:
        raise ValueError("least and most: expected arrays, got None")
    with nogil:
        bad = C.mb_quantize_ranges(tier, src.data + offset, is_f16, begin, count, &walk, <float *>low.data,
                                   <float *>high.data)
    return bad


def quantize(out, Buffer src not None, uint64_t offset, bint is_f16, uint64_t begin, uint64_t count, Grid grid not None,
             Buffer scale not None, Buffer zero not None, int least, int most, block_errors=None,
             Buffer weights=None):
    """Quantize finite elements [begin, begin + count).

    Args:
        out: `count` bytes for the low eight bits of the integers, or None.
        src, offset: as quantize_ranges.
        scale, zero: float32, one of each per parameter of the grid.
        least, most: of the integers; whole numbers of -128 to 255.
        block_errors: float64, one per parameter, to add the squared errors to, times the weights; or None.
        weights: float32, one per element of the grid, or None.

    Returns:
        (squared error, power, largest error) of the elements, without weights.
    """
    cdef C.mb_grid walk = grid.grid
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_quantize_error error
    cdef const float *w = _weights(weights, 0, grid.count)
    cdef const float *scales = _weights(scale, 0, grid.parameter_count)
    cdef const float *zeros = _weights(zero, 0, grid.parameter_count)
    _elements_check(src, offset, grid.count, 2 if is_f16 else 4)
    _grid_check(grid, begin, count)
    if not -128 <= least <= most <= 255:
        raise ValueError(f"least and most: expected a range of bytes, got {least} and {most}")
    cdef _View dst = _View(out, count, "out", 1)
    cdef _View blocks = _View(block_errors, 8 * grid.parameter_count, "block_errors", 8)
    memset(&error, 0, sizeof(error))
    with nogil:
        C.mb_quantize(tier, <uint8_t *>dst.data, src.data + offset, is_f16, begin, count, &walk, scales, zeros, least, most,
                      &error, <double *>blocks.data, w)
    return error.squared, error.power, error.largest
