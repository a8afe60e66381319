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


def prune_count_below(counts, Buffer src not None, uint64_t offset, uint64_t count, uint32_t top):
    """Add to `counts`, 65536 uint64, how many float32 elements with these upper 15 bits have each of the lower 16."""
    cdef _View into = _View(counts, 8 << 16, "counts", 8)
    _elements_check(src, offset, count, 4)
    if into.data == NULL:
        raise ValueError("counts: expected an array, got None")
    with nogil:
        C.mb_prune_count_below(src.data + offset, count, top, <uint64_t *>into.data)


def prune_split(mask, kept, Buffer src not None, uint64_t offset, uint64_t count, bint is_f16, uint32_t cut):
    """Keep elements whose magnitude has more than the bits `cut`.

    Args:
        mask: (count + 7) // 8 bytes for a bit per element, least significant first.
        kept: memory for `count` elements; the first of them become those that are kept.

    Returns:
        (how many, (squared error, power, largest error)); the latter for float32 only, else zeros: counts tell.
    """
    cdef _View bits = _View(mask, count // 8 + (count % 8 != 0), "mask", 1)
    cdef _View into = _View(kept, count * (2 if is_f16 else 4), "kept", 1)
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_sums sums
    cdef uint64_t found
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    if bits.data == NULL or into.data == NULL:
        raise ValueError("mask and kept: expected arrays, got None")
    memset(&sums, 0, sizeof(sums))
    with nogil:
        found = C.mb_prune_split(tier, src.data + offset, count, is_f16, cut, <uint8_t *>bits.data, <uint8_t *>into.data,
                                 &sums)
    return found, _figures(&sums)
