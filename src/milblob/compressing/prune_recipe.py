"""The recipe Prune: a mask, and the elements that are not zero."""

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arguments import as_count, as_integer, require, require_number
from ..dtypes import DType, as_dtype
from ..lossy import prune
from ..lossy.loss import Loss
from ..lossy.unfit import UnfitError
from ..rewrite.changes import WEIGHT_COUNT
from ..rewrite.parts import Put, WeightParts
from ..values.strided import Empty, computed, not_finite, selected, unpacked_mask
from .not_finite import in_place_of, require_finite
from .pieces import Pieces, coming
from .recipe import Recipe, require_one_of, set_options
from .weight import Weight

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Prune(Recipe):
    """Pruning: elements become zero, and only the others are stored. Exactly one of the first three is given.

    Attributes:
        sparsity: the part of the elements, 0 to 1, that become zero: those of the least magnitude.
        threshold: the greatest magnitude that becomes zero.
        n_m: (n, m): of every m neighbours along `dim`, the n of the least magnitude become zero.
        block: with sparsity: block size along `dim`; the elements of a block are kept or become zero together.
        dim: 0 or 1; None: 0 for blocks, 1 for n_m.
        min_sparsity: with threshold: a weight with a smaller part of zeros is skipped.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", milblob.Prune(sparsity=0.75))
        >>> values = milblob.load("small.mlpackage")["head_weight"]
        >>> float((values == 0).mean())
        0.75
    """

    sparsity: float | None = None
    threshold: float | None = None
    n_m: tuple[int, int] | None = None
    block: int | None = None
    dim: int | None = None
    min_sparsity: float = 0.5

    def __post_init__(self) -> None:
        prune.require_one(sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m)
        for name, most in (("sparsity", 1.0), ("threshold", sys.float_info.max), ("min_sparsity", 1.0)):
            value = getattr(self, name)
            if value is None and name != "min_sparsity":
                continue
            require_number(name, value)
            if isinstance(value, np.generic):
                value = value.item()
                set_options(self, **{name: value})
            if not 0 <= value <= most:
                raise ValueError(f"{name}: expected 0 to {most:g}, got {value!s:.40}")
        if self.threshold is None and self.min_sparsity != Prune.min_sparsity:
            raise ValueError("min_sparsity: expected it with a threshold, got it without")
        if self.n_m is not None:
            require("n_m", self.n_m, list | tuple, "two integers")
            pair = tuple(as_integer("n_m", number) for number in self.n_m)
            if len(pair) != 2 or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
                raise ValueError(f"n_m: expected (n, m) with n at most m, got {self.n_m}")
            set_options(self, n_m=pair)
        if self.block is not None:
            if self.sparsity is None:
                raise ValueError("block: expected it with a sparsity, got it without")
            set_options(self, block=as_count("block", self.block, 2))
        if self.dim is not None:
            if isinstance(self.dim, bool):
                raise TypeError("dim: expected 0 or 1, got bool")
            if self.block is None and self.n_m is None:
                raise ValueError("dim: expected it with block or n_m, got it without")
            set_options(self, dim=as_integer("dim", self.dim))
            require_one_of("dim", self.dim, (0, 1))

    @property
    def needs_axes(self) -> bool:
        return False

    @property
    def can_keep_nan(self) -> bool:
        return True

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        return self._unsuited(consumers)

    def streamed(self, weight: Weight) -> WeightParts | None:
        self._require_consumers(weight)
        array = weight.array
        options = {name: getattr(self, name) for name in ("sparsity", "threshold", "n_m", "block", "dim")}
        work = prune.Pruner(array, **options, empty=weight.persistent)
        self._require_sparsity(1 - work.count / array.size)
        nonzero = coming((work.count,), as_dtype(array.dtype).numpy)
        if nonzero.size < WEIGHT_COUNT:  # it goes into the Program
            nonzero = np.concatenate([nonzero for *_, nonzero in work.stretches()])
        bits = coming((DType.UINT1.nbytes(array.size),), np.uint8)
        if bits.size < WEIGHT_COUNT:
            bits = np.concatenate([bits for _, bits, *_ in work.stretches()])
        pieces = Pieces(array, ("Prune",), bits=bits, nonzero=nonzero)
        return pieces.parts_to_come(weight.opset, partial(_write_pruned, work), is_sure=True)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        array = pieces.values()
        self._require_consumers(weight)
        ranked = array
        if weight.nan == "keep":
            ranked = in_place_of(array, pieces.empty)
        elif weight.importance is not None:
            require_finite(array)  # magnitudes that are weighted are finite
        if weight.importance is not None:
            ranked = _weighted_magnitudes(ranked, weight.importance, pieces.empty)
        made = prune.prune(ranked, sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m, block=self.block,
            dim=self.dim, empty=pieces.empty,
        )  # fmt: skip
        self._require_sparsity(made.sparsity)
        loss = None if pieces.steps else made.loss
        nonzero = None if pieces.steps else made.nonzero
        if ranked is not array:
            kept = unpacked_mask(made.mask, array.shape, pieces.empty)
            chosen = selected(array, kept, pieces.empty)
            lost = not_finite(array) - not_finite(chosen)
            if lost:
                raise UnfitError(f"expected to keep NaN and infinity, got {lost} that would become zero")
            loss, nonzero = None, None if pieces.steps else chosen
        found = pieces._replace(steps=(*pieces.steps, "Prune"), bits=made.mask, nonzero=nonzero, loss=loss)
        found.require_whole_vectors()
        return found

    def _unsuited(self, consumers: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
        """Return the first consumer of those that coremltools does not prune neighbours for."""
        if self.block is None and self.n_m is None:
            return None
        return next((use for use in consumers if use not in (("conv", "weight"), ("linear", "weight"))), None)

    def _require_sparsity(self, made: float) -> None:
        if self.threshold is not None and made < self.min_sparsity:
            raise UnfitError(f"expected a sparsity of {self.min_sparsity:g} or more, got {made:.4g}")

    def _require_consumers(self, weight: Weight) -> None:
        """Raise UnfitError for what coremltools does not prune so."""
        use = self._unsuited(weight.consumers)
        if use is not None:
            message = f"expected only weights of conv and linear for blocks and n_m, got {'.'.join(use)}"
            raise UnfitError(message)


def _write_pruned(work: prune.Pruner, stored: set[str], put: Put) -> Loss:
    """Write those parts of a pruned weight that are `stored`; see WeightParts."""
    for begin, mask, first, nonzero in work.stretches():
        if "mask" in stored:
            put("mask", begin // 8, mask)
        if "nonzero_data" in stored and nonzero.size:
            put("nonzero_data", first * nonzero.itemsize, nonzero)
    return work.loss


def _weighted_magnitudes(array: Array, importance: Array, empty: Empty) -> Array:
    """What is pruned by: magnitudes times the root of the importance, float32; zero for zeros alone."""
    limits = np.finfo(np.float32)

    def work(box: tuple[slice, ...]) -> Array:
        heavy = importance[box].astype(np.float32).astype(np.float64)
        wide = np.abs(array[box].astype(np.float64)) * np.sqrt(heavy)
        return np.where(array[box] == 0, 0, np.clip(wide, limits.smallest_subnormal, limits.max))

    return computed(array.shape, np.float32, work, empty)
