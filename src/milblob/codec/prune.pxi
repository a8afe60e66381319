# Part of _codec.pyx: pruning.

MAGNITUDES = C.MB_MAGNITUDES


def prune_count(counts, Buffer src not None, uint64_t offset, uint64_t count, bint is_f16):
    """Add to `counts`, MAGNITUDES uint64, how many elements have each of the upper 15 bits of a magnitude."""
    cdef _View into = _View(counts, 8 * C.MB_MAGNITUDES, "counts", 8)
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    if into.data == NULL:
        raise ValueError("counts: expected an array, got None")
    with nogil:
        C.mb_prune_count(src.data + offset, count, is_f16, <uint64_t *>into.data)


def prune_collect(out, uint64_t room, Buffer src not None, uint64_t offset, uint64_t count, uint32_t top):
    """Write to `out`, `room` uint32, the magnitudes of float32 elements with these upper 15 bits; return how many."""
    cdef _View into = _View(out, 4 * room, "out")
    cdef uint64_t found
    _elements_check(src, offset, count, 4)
    with nogil:
        found = C.mb_prune_collect(src.data + offset, count, top, <uint32_t *>into.data, room if into.data else 0)
    return found


def prune_measure(Buffer src not None, uint64_t offset, uint64_t count, uint32_t cut):
    """(squared error, power, largest error) of float32 elements if magnitudes of at most the bits `cut` become zero."""
    cdef C.mb_prune_error error
    _elements_check(src, offset, count, 4)
    memset(&error, 0, sizeof(error))
    with nogil:
        C.mb_prune_measure(src.data + offset, count, cut, &error)
    return error.squared, error.power, error.largest


def prune_split(mask, kept, Buffer src not None, uint64_t offset, uint64_t count, bint is_f16, uint32_t cut):
    """Keep elements whose magnitude has more than the bits `cut`; return how many.

    Args:
        mask: (count + 7) // 8 bytes for a bit per element, least significant first.
        kept: memory for `count` elements; the first of them become those that are kept.
    """
    cdef _View bits = _View(mask, count // 8 + (count % 8 != 0), "mask", 1)
    cdef _View into = _View(kept, count * (2 if is_f16 else 4), "kept", 1)
    cdef uint64_t found
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    if bits.data == NULL or into.data == NULL:
        raise ValueError("mask and kept: expected arrays, got None")
    with nogil:
        found = C.mb_prune_split(src.data + offset, count, is_f16, cut, <uint8_t *>bits.data, <uint8_t *>into.data)
    return found
