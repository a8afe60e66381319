# Part of _codec.pyx: casts between float dtypes, and which kernels this CPU runs.

# The row of kernels in use. Written at import, before any thread can use it, and by tests. All other state that this
# module's functions share is constant after import.
cdef const C.mb_tier *_tier = &C.mb_tiers[C.mb_tier_usable() - 1]


def tiers():
    """Return the names of the tiers that this CPU can run, slowest first, and the name of the one in use."""
    return [C.mb_tiers[i].name.decode() for i in range(C.mb_tier_usable())], _tier.name.decode()


def set_tier(str name not None):
    """Use the kernels of a tier from now on; for tests, and for MILBLOB_TIER at import."""
    global _tier
    names = tiers()[0]
    if name not in names:
        raise ValueError(f"MILBLOB_TIER: expected one of {', '.join(names)}, got {name!r}")
    _tier = &C.mb_tiers[names.index(name)]


def build():
    """Return how this module was compiled: (compiler, hexadecimal version of the stable ABI or 0)."""
    return C.MB_COMPILER.decode(), C.MB_STABLE_ABI


if _environ.get("MILBLOB_TIER"):
    set_tier(_environ["MILBLOB_TIER"])


cdef _kind_check(int kind):
    if not 0 <= kind < C.MB_CAST_COUNT:
        raise ValueError(f"kind: expected one of CAST_*, got {kind}")


cdef bint _overlap(const uint8_t *a, uint64_t a_nbytes, const uint8_t *b, uint64_t b_nbytes):
    return a < b + b_nbytes and b < a + a_nbytes


cdef _elements_check(Buffer src, uint64_t src_offset, uint64_t count, uint64_t element_nbytes):
    if count > src.nbytes // element_nbytes:  # also prevents overflow of the product below
        message = f"elements: expected at most {src.nbytes // element_nbytes}, which the buffer holds, got {count}"
        raise FormatError(message, offset=src_offset, file=src.name)
    _span_check(src, src_offset, count * element_nbytes)


def cast(int kind, Buffer src not None, uint64_t src_offset, uint64_t count, dst, bint clamp=False, uint64_t begin=0,
         uint64_t number=-1):
    """Cast `count` little-endian elements at `src_offset` (any alignment) into `dst`.

    Args:
        kind: one of CAST_*.
        dst: writable buffer of exactly `count` elements of the target, any alignment; must not overlap `src`.
        clamp: finite numbers that are too large become the target's largest finite number instead of an infinity.
        begin, number: cast only `number` elements from `begin` on; for threads that share the work.

    Returns:
        (overflow, nan, underflow): numbers of elements that were finite and too large, NaN, or nonzero and rounded to
        zero.
    """
    cdef Py_buffer out
    cdef C.mb_cast_counts counts
    cdef const C.mb_tier *tier = _tier
    _kind_check(kind)
    _elements_check(src, src_offset, count, C.mb_cast_src_nbytes(kind))
    begin = min(begin, count)
    number = min(number, count - begin)
    memset(&counts, 0, sizeof(counts))
    PyObject_GetBuffer(dst, &out, PyBUF_WRITABLE)
    try:
        if <uint64_t>out.len != count * C.mb_cast_dst_nbytes(kind):
            raise ValueError(f"dst: expected {count * C.mb_cast_dst_nbytes(kind)} bytes, got {out.len}")
        if _overlap(src.data + src_offset, count * C.mb_cast_src_nbytes(kind), <const uint8_t *>out.buf, <uint64_t>out.len):
            raise ValueError("dst: expected memory of its own, got a part of src")
        with nogil:
            C.mb_cast(tier, kind, <uint8_t *>out.buf + begin * C.mb_cast_dst_nbytes(kind),
                      src.data + src_offset + begin * C.mb_cast_src_nbytes(kind), number, clamp, &counts)
    finally:
        PyBuffer_Release(&out)
    return counts.overflow, counts.nan, counts.underflow


def cast_find(int kind, Buffer src not None, uint64_t src_offset, uint64_t count, bint is_nan):
    """Return the index of the first element that a cast counts as an overflow, or as a NaN; `count` if there is none."""
    cdef uint64_t index
    _kind_check(kind)
    _elements_check(src, src_offset, count, C.mb_cast_src_nbytes(kind))
    with nogil:
        index = C.mb_cast_find(kind, src.data + src_offset, count, is_nan)
    return index
