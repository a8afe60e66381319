"""Weights that can be compressed: what a recipe needs to know, which are alike, and the work on many of them."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _codec
from ..blobs.equal import Stretch, first_equal
from ..hashing import blake3
from ..model.tensor import Tensor
from ..program import compress_edits
from ..rewrite.planned import PartsPlan
from ..threads import ordered
from ..values.strided import Empty, ranges
from .pieces import CompressedParts, NotCompressibleError, Pieces
from .recipe import HeldBlocks, Recipe, Weight
from .recompress import dense_values, identity, pieces_of

_T = TypeVar("_T")

ALONE_COUNT = 1 << 21
"""A weight of so many elements is shared out among the threads; smaller ones go one to each."""


class Option(NamedTuple):
    """A recipe for one weight.

    Attributes:
        axes: of its channels, as the recipe needs them.
        is_continued: whether the recipe goes on from what the weight is compressed to.
    """

    recipe: Recipe
    axes: compress_edits.Axes
    is_continued: bool = False


class Candidate(NamedTuple):
    """A weight that can be compressed.

    Attributes:
        options: one or more to choose from.
        may_stay: whether it may also stay as it is.
        empty, lasting: make all arrays as long as the weight; see Weight.
    """

    tensor: Tensor
    options: tuple[Option, ...]
    may_stay: bool
    opset: int
    consumers: tuple[tuple[str, str], ...]
    groups: int
    importance: Any
    nan: str
    blocks: HeldBlocks | None
    empty: Empty
    lasting: Empty

    def made(self, number: int = 0) -> PartsPlan | CompressedParts | NotCompressibleError:
        """Return what one of the recipes plans, or computes at once; or why there is nothing."""
        recipe, weight = self.options[number].recipe, self.weight(number)
        try:
            if self.tensor.chain is not None:  # a plan would hold its dense values until it is written
                return recipe.apply(weight)
            plan = recipe.plan(weight)
            return recipe.apply(weight) if plan is None else plan
        except NotCompressibleError as reason:
            return reason.alone()

    def pieces(self, number: int) -> Pieces | NotCompressibleError:
        """Return what one of the recipes makes of the weight, with its values; or why there is nothing."""
        recipe, weight = self.options[number].recipe, self.weight(number)
        try:
            return recipe.step(weight.begun, weight)
        except NotCompressibleError as reason:
            return reason.alone()

    def weight(self, number: int = 0) -> Weight:
        """Return what one of the recipes is applied to."""
        option = self.options[number]
        pieces = pieces_of(self.tensor, self.empty) if option.is_continued else None
        array = pieces.array if pieces is not None else dense_values(self.tensor, self.empty)
        return Weight(
            array, option.axes, self.opset, self.consumers, self.importance, self.groups, pieces, self.nan,
            self.blocks, self.empty, self.lasting,
        )  # fmt: skip

    @property
    def kind(self) -> Hashable:
        """What two weights with equal bytes must have in common to be compressed alike."""
        heavy = None
        if self.importance is not None:
            wide = (piece.astype(np.float32, copy=False) for _, piece in ranges(self.importance))
            heavy = blake3((_codec.Buffer(piece), 0, piece.nbytes) for piece in wide)
        options = tuple(
            (one.recipe, one.is_continued, one.recipe.depends_on(one.axes, self.consumers, self.groups))
            for one in self.options
        )
        return (
            options, self.may_stay, self.opset, self.tensor.shape, self.tensor.mil_dtype.mil_code, heavy,
            self.blocks is None, None if self.tensor.chain is None else identity(self.tensor),
        )  # fmt: skip


def first_alike(candidates: Sequence[Candidate]) -> list[int]:
    """Return, for each candidate, the number of the first with equal bytes that can become the same."""
    stretches = []
    for number, one in enumerate(candidates):
        packed = one.tensor.place.packed() if one.tensor.is_blob else None
        if packed is None:  # an immediate: rare, and then alone; or compressed already
            kind = number if one.tensor.chain is None else one.kind
            stretches.append(Stretch(_codec.Buffer(b""), 0, 0, kind))
        else:
            stretches.append(Stretch(packed.buffer, packed.offset, packed.dtype.nbytes(packed.size), one.kind))
    return first_equal(stretches)


def computed(candidates: Sequence[Candidate], numbers: Iterable[int], work: Callable[[int], _T]) -> Iterator[_T]:
    """Yield work(number) for the numbers of these candidates, in order; several small weights at a time."""
    small: list[int] = []
    for number in numbers:
        if candidates[number].tensor.size < ALONE_COUNT:
            small.append(number)
            continue
        yield from ordered(work, small)
        small = []
        yield work(number)
    yield from ordered(work, small)
