# Part of _codec.pyx: dense values of compressed weights.

cdef class PackedElements:
    """Held elements in their stored form: `count` of `nbits` each at a byte offset; with a mask, those of its set bits.

    Args:
        nbits: of an element: 1 to 8, 16, 32 or 64.
        is_signed: whether elements of 4 bits are two's complement.
        mask, mask_offset, mask_count: bits, least significant bit first: one for each element of the result.

    Raises:
        FormatError: they reach past the end of the buffer.
    """
    cdef C.mb_source source
    cdef Buffer buffer, mask
    cdef uint64_t mask_count

    def __cinit__(self, Buffer buffer not None, uint64_t offset, uint64_t count, unsigned int nbits, bint is_signed=False,
                  Buffer mask=None, uint64_t mask_offset=0, uint64_t mask_count=0):
        if not (1 <= nbits <= 8 or nbits in (16, 32, 64)):
            raise ValueError(f"nbits: expected 1 to 8, 16, 32 or 64, got {nbits}")
        if nbits < 8:
            _bits_check(buffer, offset, count, nbits)
        else:
            _elements_check(buffer, offset, count, nbits // 8)
        memset(&self.source, 0, sizeof(self.source))
        self.buffer, self.mask, self.mask_count = buffer, mask, mask_count
        self.source.data, self.source.count = buffer.data + offset, count
        self.source.nbits, self.source.is_signed = nbits, is_signed
        if mask is not None:
            _bits_check(mask, mask_offset, mask_count, 1)
            self.source.mask = mask.data + mask_offset

    cdef C.mb_source range(self, uint64_t begin, uint64_t count, uint64_t rank) except *:
        """The source for a range of the result. `rank`: set bits of the mask before it."""
        cdef uint64_t total = self.source.count if self.mask is None else self.mask_count
        cdef C.mb_source source = self.source
        if begin > total or count > total - begin:
            raise ValueError(f"range: expected one inside {total} elements, got {count} at {begin}")
        if rank > source.count:
            raise ValueError(f"rank: expected at most {source.count}, got {rank}")
        source.rank = rank
        return source


cdef _bits_check(Buffer buffer, uint64_t offset, uint64_t count, unsigned int nbits):
    if count // 8 > buffer.nbytes:  # also prevents overflow of the product below
        message = f"elements: expected at most {8 * buffer.nbytes}, which the buffer holds, got {count}"
        raise FormatError(message, offset=offset, file=buffer.name)
    _span_check(buffer, offset, C.mb_packed_nbytes(count, nbits))


cdef class Grid:
    """Maps each element to its parameter (scale, palette).

    Args:
        sizes, strides: sequences of numbers, one per dimension, outermost first: its size (1 or more) and the distance
            between its parameters. The last stride is 0 or 1.
    """
    cdef C.mb_grid grid
    cdef uint64_t *memory
    cdef readonly uint64_t count
    """Number of elements: the product of the sizes."""
    cdef readonly uint64_t parameter_count

    def __cinit__(self, sizes, strides):
        cdef uint32_t ndim = len(sizes), i
        if not 1 <= ndim <= <uint32_t>C.MB_GRID_NDIM or len(strides) != ndim:
            raise ValueError(f"sizes: expected 1 to {C.MB_GRID_NDIM}, and as many strides, got {ndim} and {len(strides)}")
        self.memory = <uint64_t *>malloc(2 * ndim * sizeof(uint64_t))
        if self.memory == NULL:
            raise MemoryError
        count, last = 1, 0
        for i in range(ndim):
            if not (0 < sizes[i] and 0 <= strides[i]):
                raise ValueError(f"sizes: expected 1 or more, and strides of 0 or more, got {sizes[i]} and {strides[i]}")
            count *= sizes[i]
            last += (sizes[i] - 1) * strides[i]
            self.memory[i], self.memory[ndim + i] = sizes[i], strides[i]
        if strides[ndim - 1] > 1 or count >= 1 << 63 or last >= 1 << 63:
            raise ValueError(f"grid: expected a last stride of 0 or 1 and fewer than 2^63 elements, got {sizes}, {strides}")
        self.count, self.parameter_count = count, last + 1
        memset(&self.grid, 0, sizeof(self.grid))
        self.grid.sizes, self.grid.strides, self.grid.ndim = self.memory, self.memory + ndim, ndim

    def __dealloc__(self):
        free(self.memory)


cdef _grid_check(Grid grid, uint64_t begin, uint64_t count):
    if begin > grid.count or count > grid.count - begin:
        raise ValueError(f"range: expected one inside the grid's {grid.count} elements, got {count} at {begin}")


cdef _out_check(Py_buffer *out, uint64_t count, uint64_t nbytes):
    if <uint64_t>out.len // nbytes != count or <uint64_t>out.len % nbytes:
        raise ValueError(f"out: expected {count} elements of {nbytes} bytes, got {out.len} bytes")


def count_ones(Buffer buffer not None, uint64_t offset, uint64_t begin, uint64_t count):
    """Count the set bits among bits [begin, begin + count) of the bytes at `offset`."""
    cdef uint64_t ones
    cdef const C.mb_tier *tier = _tier
    if begin > <uint64_t>-1 - count:
        raise ValueError(f"bits: expected fewer than 2^64, got {count} at {begin}")
    _bits_check(buffer, offset, begin + count, 1)
    with nogil:
        ones = C.mb_count_ones(tier, buffer.data + offset, begin, count)
    return ones


def decode_sparse(out, uint64_t begin, uint64_t count, PackedElements elements not None, uint64_t rank):
    """Fill `out` with elements [begin, begin + count) of a sparse tensor.

    Args:
        out: writable buffer of exactly `count` elements; sub-byte elements take one byte each, zero-extended.
        elements: with a mask.
        rank: number of set bits in the mask before `begin`.

    Raises:
        FormatError: the mask has more set bits than there are elements.
    """
    cdef Py_buffer dst
    cdef C.mb_error e
    cdef C.mb_status status
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_source source = elements.range(begin, count, rank)
    if elements.mask is None:
        raise ValueError("elements: expected a mask, got none")
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    try:
        _out_check(&dst, count, max(source.nbits // 8, 1))
        with nogil:
            status = C.mb_decode_sparse(tier, <uint8_t *>dst.buf, begin, count, &source, &e)
    finally:
        PyBuffer_Release(&dst)
    if status:
        raise _error(&e, elements.buffer.name)


def decode_scale(out, uint64_t begin, uint64_t count, PackedElements elements not None, uint64_t rank, Grid grid not None,
                 Buffer scale not None, uint64_t scale_offset, int scale_kind, Buffer shift, uint64_t shift_offset,
                 int shift_kind, int source_kind, int to):
    """Fill `out` with scale * (element - shift) for elements [begin, begin + count); 0 where the mask is clear.

    Args:
        out: writable buffer of exactly `count` float32 (TO_F32) or float16.
        rank: as for decode_sparse.
        grid: maps elements to scales and shifts.
        scale, shift: numbers of FROM_F32, FROM_F16, FROM_I8 or FROM_U8 at a byte offset; `shift` may be None.
        source_kind: kind of the elements; FROM_U8 and FROM_I8 also for packed ones.
        to: TO_F32, TO_F16, or TO_F16_STEPS to round the difference to float16 too (scale.h).

    Raises:
        FormatError: as decode_sparse; too few scales.
    """
    cdef Py_buffer dst
    cdef C.mb_error e
    cdef C.mb_status status
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_grid walk = grid.grid
    cdef C.mb_numbers scales, shifts
    cdef C.mb_source source = elements.range(begin, count, rank)
    cdef unsigned int expected_nbits = 16 if source_kind == C.MB_FROM_F16 else 32
    if not (0 <= source_kind <= C.MB_FROM_F32 and 0 <= to <= C.MB_TO_F16_STEPS):
        raise ValueError(f"kinds: expected FROM_* and TO_*, got {source_kind} and {to}")
    if (source.nbits > 8) if source_kind <= C.MB_FROM_I8 else (source.nbits != expected_nbits):
        raise ValueError(f"elements: expected those of kind {source_kind}, got {source.nbits} bits")
    _grid_check(grid, begin, count)
    scales.data, scales.kind = _numbers(scale, scale_offset, scale_kind, grid.parameter_count), scale_kind
    shifts.data, shifts.kind = NULL, 0
    if shift is not None:
        shifts.data, shifts.kind = _numbers(shift, shift_offset, shift_kind, grid.parameter_count), shift_kind
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    try:
        _out_check(&dst, count, 4 if to == C.MB_TO_F32 else 2)
        with nogil:
            status = C.mb_decode_scale(tier, <uint8_t *>dst.buf, begin, count, &source, &walk, &scales, &shifts,
                                       source_kind, to, &e)
    finally:
        PyBuffer_Release(&dst)
    if status:
        raise _error(&e, elements.buffer.name)


cdef const uint8_t *_numbers(Buffer buffer, uint64_t offset, int kind, uint64_t count) except NULL:
    if not 0 <= kind <= C.MB_FROM_F32:
        raise ValueError(f"kind: expected FROM_*, got {kind}")
    _elements_check(buffer, offset, count, 4 if kind == C.MB_FROM_F32 else 2 if kind == C.MB_FROM_F16 else 1)
    return buffer.data + offset


def decode_palette(out, uint64_t begin, uint64_t count, PackedElements elements not None, uint64_t rank, Grid grid not None,
                   Buffer palette not None, uint64_t palette_offset, unsigned int entry_count, unsigned int nbytes,
                   uint64_t vector, uint64_t inner):
    """Fill `out` with the palette entries of indices [begin, begin + count); 0 where the mask is clear.

    Args:
        out: writable buffer of exactly `count` * `vector` elements of `nbytes`.
        elements: the indices, of at most 8 bits, without a sign.
        rank: as for decode_sparse.
        grid: maps indices to palettes.
        palette: palettes of `entry_count` entries, at least 2^nbits of the indices, of `vector` elements of `nbytes`
            (1, 2, 4 or 8) at a byte offset.
        inner: distance between neighbouring indices along the axis of the vectors; 1 for scalars. `begin` and
            `count` are multiples of it.

    Raises:
        FormatError: as decode_sparse; too few palettes.
    """
    cdef Py_buffer dst
    cdef C.mb_error e
    cdef C.mb_status status
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_grid walk = grid.grid
    cdef C.mb_palette table
    cdef C.mb_source source = elements.range(begin, count, rank)
    if source.is_signed:
        raise ValueError("palette: expected indices without a sign, got elements that have one")
    if source.nbits > 8 or not (<unsigned int>1 << source.nbits) <= entry_count <= 256 or nbytes not in (1, 2, 4, 8):
        message = f"palette: expected indices of at most 8 bits, entries for all of them, of 1, 2, 4 or 8 bytes"
        raise ValueError(f"{message}, got {source.nbits} bits, {entry_count} entries of {nbytes}")
    if vector < 1 or inner < 1 or begin % inner or count % inner or (vector == 1 and inner != 1):
        raise ValueError(f"inner: expected a divisor of the range, 1 for scalars, got {inner}")
    _grid_check(grid, begin, count)
    _elements_check(palette, palette_offset, grid.parameter_count, entry_count * nbytes)  # so the product below cannot overflow
    if vector > palette.nbytes:
        message = f"palette: expected vectors of {vector} elements, got {palette.nbytes} bytes"
        raise FormatError(message, offset=palette_offset, file=palette.name)
    _elements_check(palette, palette_offset, grid.parameter_count * entry_count, vector * nbytes)
    table.data, table.entry_count, table.nbytes = palette.data + palette_offset, entry_count, nbytes
    table.vector, table.inner = vector, inner
    PyObject_GetBuffer(out, &dst, PyBUF_WRITABLE)
    try:
        _out_check(&dst, count, vector * nbytes)
        with nogil:
            status = C.mb_decode_palette(tier, <uint8_t *>dst.buf, begin, count, &source, &walk, &table, &e)
    finally:
        PyBuffer_Release(&dst)
    if status:
        raise _error(&e, elements.buffer.name)
