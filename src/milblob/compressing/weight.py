"""The data that a recipe needs about a weight."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType, as_dtype
from ..rewrite.parts import Put, WeightParts
from ..threads import ordered
from ..threads import parts as divided
from ..values.strided import PIECE_COUNT, Empty, computed, range_of
from .pieces import Pieces, require_finite_loss

Array = np.ndarray[Any, Any]

_FAR: dict[Any, tuple[Any, Any, int]] = {
    DType.FLOAT16: (np.int16, np.uint16, 0x7400),
    DType.FLOAT32: (np.int32, np.uint32, 0x7E000000),
}
"""Integers as wide as a float, and the bits of 2**(e - 3), where 2**e is the least power of two above all floats."""
_PART_COUNT = 1 << 22  # elements that one thread looks at: less is not worth starting one


class HeldBlocks(NamedTuple):
    """Integers and scales that the values of a weight are stored as somewhere."""

    dtype: Any  # of the integers
    block: tuple[int, ...]  # the size of a block in each dimension
    # called with what makes arrays, returns (integers, int8, in the shape of the weight; a scale for each block)
    read: Callable[[Empty], tuple[Array, Array]]


class Weight(NamedTuple):
    """What a recipe needs to know about a weight."""

    array: Array  # its values
    # (input channels, output channels); (1, 0) if the operations do not agree and the recipe needs none
    axes: tuple[int, int]
    opset: int  # iOS version of the opset that it is in
    # (operation, parameter) of each that reads it; none where they do not limit what is pruned
    consumers: tuple[tuple[str, str], ...]
    importance: Array | None = None  # of its elements, in its shape; None: all alike
    groups: int = 1  # how many groups the convolutions that read it divide its first dimension into
    pieces: Pieces | None = None  # what it is compressed to already, if the recipe continues from that
    nan: str = "skip"  # "keep" to keep NaN and infinity where the recipe can
    blocks: HeldBlocks | None = None  # integers and scales that its values are; None: they are floats
    empty: Empty = np.empty  # makes all arrays as long as the weight
    persistent: Empty = np.empty  # allocates the arrays that are kept until parts are written

    @property
    def first_pieces(self) -> Pieces:
        """The pieces that the first recipe takes."""
        return self.pieces if self.pieces is not None else Pieces(self.array, empty=self.empty)


def heavy_of(pieces: Pieces, weight: Weight) -> Array | None:
    """The importance of the elements that a fit counts: none of those that are pruned."""
    if pieces.bits is None:
        return weight.importance
    mask, heavy = pieces.mask, weight.importance
    if heavy is None:
        return mask
    return computed(mask.shape, np.float32, lambda box: mask[box] * heavy[box].astype(np.float32), pieces.empty)


def is_far_from_infinity(array: Array) -> bool:
    """Whether all elements are finite, and so far from the largest float that nothing made of them overflows."""
    kind = as_dtype(array.dtype)
    if kind not in _FAR:
        return False
    signed, unsigned, limit = _FAR[kind]

    def work(part: tuple[int, int]) -> bool:
        return all(is_far(part[0] + begin, count) for begin, count in divided(part[1], 1, PIECE_COUNT))

    def is_far(begin: int, count: int) -> bool:
        piece = range_of(array, begin, count, kind.numpy)  # magnitudes are ordered as their bits are
        most = np.iinfo(signed).max
        if int(np.bitwise_or.reduce(piece.view(unsigned))) & most < limit:  # so is each; mostly that is enough
            return True
        return max(int(piece.view(signed).max()), int(piece.view(unsigned).max()) & most) < limit

    return all(ordered(work, divided(array.size, 1, _PART_COUNT), array.size > _PART_COUNT))


def measured_now(parts: WeightParts, put: Put = lambda *row: None) -> WeightParts:
    """Return parts with their loss; those to compute later are computed now, and given to `put`.

    Raises: UnfitError: elements are not finite, or would not be.
    """
    if parts.compute is None:
        return parts
    loss = parts.compute(put)
    require_finite_loss(loss)
    return replace(parts, loss=loss, compute=None)


def placed(
    parts: WeightParts,
    take: Callable[[int], Any] = lambda nbytes: None,
    put: Callable[[Any, int, Any], None] = lambda *row: None,
) -> WeightParts:
    """Return parts with their loss, whose bytes are where they are kept until everything is written.

    `take`: returns a place for some bytes. `put`: called with a place, an offset in it and bytes to be kept there.
    Default: no bytes are kept.
    Raises: as `measured_now`.
    """
    places = {part.key: take(part.nbytes) for part in parts.parts if part.array is None}
    for part in parts.parts:
        if part.array is None and part.data is not None:
            put(places[part.key], 0, part.data)
    made = measured_now(parts, lambda key, offset, data: put(places[key], offset, data))
    return replace(made, parts=tuple(replace(part.small_copy(), data=places.get(part.key)) for part in parts.parts))
