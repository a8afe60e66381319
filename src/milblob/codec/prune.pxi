# Part of _codec.pyx: pruning.

MAGNITUDES = C.MB_MAGNITUDES
NEIGHBOURS = C.MB_NEIGHBOURS_MOST


def prune_count(counts, Buffer src not None, uint64_t offset, uint64_t count, bint is_f16):
    """Add to `counts`, MAGNITUDES uint32, how many elements have each of the upper 15 bits of a magnitude.

    Args:
        count: below 2^32.
    """
    cdef _View into = _View(counts, 4 * C.MB_MAGNITUDES, "counts")
    if count >> 32:
        raise ValueError(f"count: expected fewer than 2^32 elements, got {count}")
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    if into.data == NULL:
        raise ValueError("counts: expected an array, got None")
    with nogil:
        C.mb_prune_count(src.data + offset, count, is_f16, <uint32_t *>into.data)


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
        (how many, (squared error, power, largest error)); the latter for float32 only, else zeros: prune_count
        suffices.
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


cdef object _grouped_count(uint64_t outer, uint64_t channels, uint64_t inner):
    if outer >= 1 << 40 or channels >= 1 << 40 or inner >= 1 << 40:
        raise ValueError(f"sizes: expected fewer than 2^40, got {outer}, {channels} and {inner}")
    count = int(outer) * int(channels) * int(inner)
    if count >= 1 << 60:
        raise ValueError(f"elements: expected fewer than 2^60, got {count}")
    return count


def prune_neighbours(mask, ties, Buffer src not None, uint64_t offset, uint64_t outer, uint64_t channels, uint64_t inner,
                     bint is_f16, uint32_t n, uint32_t m):
    """Write a bit for each element: clear where it is zero, or one of the n of the least magnitude of every m neighbours
    along the channels.

    Args:
        mask: a bit for each of outer * channels * inner elements, least significant first, in whole bytes.
        ties: a uint64 for each group: outer times the channels over m, rounded up, times inner.
        n, m: m from 1 to NEIGHBOURS.

    Returns:
        (how many are set; how many groups have equal magnitudes on both sides of the cut: `ties` has their numbers, and
        all their nonzero elements are set; whether all elements are finite).
    """
    if not 1 <= m <= C.MB_NEIGHBOURS_MOST or n > m:
        raise ValueError(f"n and m: expected n up to m, and m from 1 to {C.MB_NEIGHBOURS_MOST}, got {n} and {m}")
    count = _grouped_count(outer, channels, inner)
    cdef _View bits = _View(mask, count // 8 + (count % 8 != 0), "mask", 1)
    cdef _View numbers = _View(ties, 8 * int(outer) * (int(channels) // m + (channels % m != 0)) * int(inner), "ties", 8)
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_neighbours shape
    cdef uint64_t found, stay, elements = count
    cdef uint32_t largest = 0
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    if bits.data == NULL or numbers.data == NULL:
        raise ValueError("mask and ties: expected arrays, got None")
    # Without elements, do not loop over rows, for any stated number of them.
    shape.outer, shape.channels, shape.inner, shape.n, shape.m = outer if elements else 0, channels, inner, n, m
    with nogil:
        found = C.mb_choose_neighbours(tier, src.data + offset, is_f16, &shape, <uint8_t *>bits.data,
                                       <uint64_t *>numbers.data, &largest)
        stay = C.mb_count_ones(tier, <uint8_t *>bits.data, 0, elements)
    return stay, found, largest < <uint32_t>(0x7C00 if is_f16 else 0x7F800000)


@cython.final
cdef class PruneBlocks:
    """Elements as [outer][channels][inner], where every m of the channels, the last ones perhaps fewer, are a block.

    Args:
        outer, channels, inner: below 2^40 each, and fewer than 2^60 elements.
        m: one or more.
        is_f16: float16, else float32.
    """
    cdef C.mb_blocks _shape
    cdef bint _is_f16
    cdef readonly uint64_t count
    """Elements."""
    cdef readonly uint64_t sums_count
    """Number of blocks; each has one sum."""

    def __cinit__(self, uint64_t outer, uint64_t channels, uint64_t inner, uint64_t m, bint is_f16):
        self.count = _grouped_count(outer, channels, inner)
        if m < 1:
            raise ValueError(f"m: expected 1 or more, got {m}")
        self.sums_count = int(outer) * (int(channels) // m + (channels % m != 0)) * int(inner)
        self._shape.outer = outer if self.count else 0  # as in prune_neighbours
        self._shape.channels, self._shape.inner, self._shape.m = channels, inner, m
        self._is_f16 = is_f16

    cdef uint64_t _nbytes(self, uint64_t count) except *:
        return count * (2 if self._is_f16 else 4)

    def sums(self, out, Buffer src not None, uint64_t offset):
        """Write the sum of the squares of each block, in the dtype of the elements and with NumPy's steps, to `out`.

        Returns:
            How many elements are NaN or infinite.
        """
        cdef _View into = _View(out, self._nbytes(self.sums_count), "out", 1)
        cdef const C.mb_tier *tier = _tier
        cdef bint is_f16 = self._is_f16
        cdef uint64_t bad
        _elements_check(src, offset, self.count, 2 if is_f16 else 4)
        if into.data == NULL:
            raise ValueError("out: expected an array, got None")
        with nogil:
            C.mb_block_sums(tier, src.data + offset, is_f16, &self._shape, <uint8_t *>into.data)
            bad = C.mb_count_not_finite(<uint8_t *>into.data, is_f16, self.sums_count)
            if bad:  # such an element makes its sum so; but finite ones may overflow, too
                bad = C.mb_count_not_finite(src.data + offset, is_f16, self.count)
        return bad

    def tally(self, counts, Buffer sums not None, top=None):
        """Add to `counts`, MAGNITUDES uint64, how many elements are in blocks whose sum has each of the upper 15 bits.

        Args:
            counts: with `top`, 65536 uint64.
            top: count only sums, float32, that have these upper 15 bits, by their lower 16.
        """
        cdef bint is_below = top is not None
        cdef uint32_t wanted = top if is_below else 0
        cdef _View into = _View(counts, 8 << 16 if is_below else 8 * C.MB_MAGNITUDES, "counts", 8)
        cdef bint is_f16 = self._is_f16
        _elements_check(sums, 0, self.sums_count, 2 if is_f16 else 4)
        if into.data == NULL:
            raise ValueError("counts: expected an array, got None")
        if is_below and is_f16:
            raise ValueError("top: expected None for float16, got a number")
        with nogil:
            C.mb_block_count(sums.data, is_f16, &self._shape, is_below, wanted, <uint64_t *>into.data)

    def choose(self, mask, Buffer src not None, uint64_t offset, Buffer sums not None, uint32_t cut):
        """Write a bit for each element: set where it is not zero and the sum of its block has more than the bits `cut`.

        Returns:
            How many are set.
        """
        cdef _View bits = _View(mask, self.count // 8 + (self.count % 8 != 0), "mask", 1)
        cdef const C.mb_tier *tier = _tier
        cdef bint is_f16 = self._is_f16
        cdef uint64_t found
        _elements_check(src, offset, self.count, 2 if is_f16 else 4)
        _elements_check(sums, 0, self.sums_count, 2 if is_f16 else 4)
        if bits.data == NULL:
            raise ValueError("mask: expected an array, got None")
        with nogil:
            found = C.mb_block_mask(tier, src.data + offset, is_f16, &self._shape, sums.data, cut,
                                    <uint8_t *>bits.data)
        return found


def prune_chosen(mask, kept, Buffer chosen not None, Buffer src not None, uint64_t offset, uint64_t count, bint is_f16):
    """Keep elements that are not zero and whose bit in `chosen`, (count + 7) // 8 bytes, is set.

    Args:
        mask, kept: as of prune_split.

    Returns:
        (how many, (squared error, power, largest error)).
    """
    cdef _View bits = _View(mask, count // 8 + (count % 8 != 0), "mask", 1)
    cdef _View into = _View(kept, count * (2 if is_f16 else 4), "kept", 1)
    cdef const C.mb_tier *tier = _tier
    cdef C.mb_sums sums
    cdef uint64_t found
    _elements_check(src, offset, count, 2 if is_f16 else 4)
    _elements_check(chosen, 0, count // 8 + (count % 8 != 0), 1)
    if bits.data == NULL or into.data == NULL:
        raise ValueError("mask and kept: expected arrays, got None")
    memset(&sums, 0, sizeof(sums))
    with nogil:
        found = C.mb_split_chosen(tier, src.data + offset, count, is_f16, chosen.data, <uint8_t *>bits.data,
                                  <uint8_t *>into.data, &sums)
    squared, power, largest = _figures(&sums)
    return found, (squared, squared + power, largest)
