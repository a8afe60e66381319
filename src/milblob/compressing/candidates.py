"""Weights that can be compressed: the data that recipes need, and which weights give equal results."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..blobs.equal import Stretch, first_equal
from ..hashing import blake3
from ..lossy.unfit import UnfitError
from ..model.tensor import Tensor
from ..program import compress_edits
from ..progress import ProgressCounter
from ..rewrite.decompress import Identities
from ..rewrite.parts import WeightParts
from ..values.strided import Empty, ranges
from .pieces import Pieces
from .recipe import Recipe
from .recompress import dense_values, pieces_of
from .weight import Weight, is_far_from_infinity, placed

KEPT = "the plan keeps it as it is"
"""The reason given for a weight that could be compressed and that the plan leaves as it is."""


class Option(NamedTuple):
    """A recipe for one weight."""

    recipe: Recipe
    axes: compress_edits.Axes  # of its channels, as the recipe needs them
    is_continued: bool = False  # whether the recipe continues from the compressed form of the weight


class Candidate(NamedTuple):
    """A weight that can be compressed."""

    tensor: Tensor
    options: tuple[Option, ...]  # one or more to choose from
    may_stay: bool  # whether the weight may also be left as it is
    about: Weight  # what recipes need to know, without the values

    def parts(self, persistent: Empty | None, number: int = 0) -> WeightParts | UnfitError:
        """Return the stored parts for one of the recipes, or the reason why it cannot be applied.

        `persistent`: allocates the arrays that are kept until parts are written; None if only sizes and the loss are
        wanted.
        """
        recipe, weight = self.options[number].recipe, self.weight(number)
        try:
            made = recipe.parts(weight)
            if persistent is None:
                return placed(made)
            if self._can_wait(made, weight):
                return replace(made, parts=tuple(part.small_copy() for part in made.parts))
            return placed(made, lambda nbytes: persistent(nbytes, np.uint8), _put)
        except UnfitError as reason:
            return UnfitError(str(reason))  # without a traceback, which would keep the arrays of all functions in it

    def _can_wait(self, made: WeightParts, weight: Weight) -> bool:
        """Whether parts can be computed while they are written."""
        if made.compute is None or all(part.array is not None for part in made.parts):
            return False
        if self.tensor.chain is not None:  # computing later would hold the decoded values until then
            return False
        return made.is_sure or is_far_from_infinity(weight.array)

    def pieces(self, number: int) -> Pieces:
        """Return what one of the recipes makes of the weight, with its values.

        Raises: UnfitError: it cannot be applied.
        """
        weight = self.weight(number)
        return self.options[number].recipe.step(weight.first_pieces, weight)

    def weight(self, number: int = 0) -> Weight:
        """Return what one of the recipes is applied to."""
        option, about = self.options[number], self.about
        pieces = pieces_of(self.tensor, about.empty) if option.is_continued else None
        array = pieces.array if pieces is not None else dense_values(self.tensor, about.empty)
        return about._replace(array=array, axes=option.axes, pieces=pieces)

    def kind(self, identities: Identities) -> Hashable:
        """Return what two weights with equal bytes must have in common to be compressed alike."""
        heavy = None
        if self.about.importance is not None:
            wide = (piece.astype(np.float32, copy=False) for _, piece in ranges(self.about.importance))
            heavy = blake3((_codec.Buffer(piece), 0, piece.nbytes) for piece in wide)
        options = tuple(
            (one.recipe, one.is_continued, one.recipe.depends_on(one.axes, self.about.consumers, self.about.groups))
            for one in self.options
        )
        return (
            options, self.may_stay, self.about.opset, self.tensor.shape, self.tensor.mil_dtype.mil_code, heavy,
            self.about.blocks is None, None if self.tensor.chain is None else identities.of(self.tensor),
        )  # fmt: skip


def _put(array: Any, offset: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    array[offset : offset + view.nbytes] = view


def first_alike(candidates: Sequence[Candidate], counter: ProgressCounter) -> list[int]:
    """Return, for each candidate, the number of the first with equal bytes that can become the same.

    `counter`: notes each.
    """
    stretches, identities = [], Identities()
    for number, one in enumerate(counter.noting(candidates, lambda one: one.tensor.name)):
        packed = one.tensor.place.packed() if one.tensor.is_blob else None
        if packed is None:  # an immediate: rare, and then alone; or compressed already
            kind = number if one.tensor.chain is None else one.kind(identities)
            stretches.append(Stretch(_codec.Buffer(b""), 0, 0, kind))
        else:
            stretches.append(
                Stretch(packed.buffer, packed.offset, packed.dtype.nbytes(packed.size), one.kind(identities))
            )
    return first_equal(stretches)
