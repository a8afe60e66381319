"""The recipe Linear: integers with scales."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import cast

import numpy as np

from ..arguments import as_integer, require
from ..dtypes import as_dtype
from ..lossy import palettize, quantize
from ..lossy.loss import Loss
from ..lossy.unfit import UnfitError
from ..rewrite.changes import WEIGHT_COUNT
from ..rewrite.parts import Put, WeightParts
from ..values.strided import computed, is_finite
from .pieces import LINKED_OPSET, Pieces, coming
from .recipe import BLOCKS_OPSET, FIRST_OPSET, Recipe, require_one_of, set_options
from .weight import HeldBlocks, Weight, heavy_of

_LEAST_ENTRIES = 10  # coremltools leaves palettes of fewer as they are


@dataclass(frozen=True)
class Linear(Recipe):
    """Linear quantization: integers, with a scale for each block.

    Attributes:
        dtype: "int8", "uint8", "int4" or "uint4"; or a number of bits, 8 or 4, of signed integers.
        mode: "linear_symmetric" or "linear" (with a zero point).
        granularity: "per_tensor", "per_channel" (output channels) or "per_block".
        block: with "per_block": how many input channels of an output channel share a scale; or the size of a block in
            each dimension, 0 for all of it.
        search: whether the range of each block is clipped where that lowers its squared error.

    Examples:
        >>> recipe = milblob.Linear("int8", granularity="per_tensor")
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", recipe)
        >>> str(milblob.open("small.mlpackage")["head_weight"].compression)
        'int8'
    """

    dtype: str | int = "int8"
    mode: str = "linear_symmetric"
    granularity: str = "per_channel"
    block: int | tuple[int, ...] = 32
    search: bool = False

    def __post_init__(self) -> None:
        is_bits = self.dtype in (4, 8) and not isinstance(self.dtype, bool)
        try:
            target = as_dtype(f"int{self.dtype}" if is_bits else self.dtype)
        except TypeError:
            raise TypeError(f"dtype: expected int8, uint8, int4 or uint4, got {self.dtype!r:.100}") from None
        if target not in quantize.DTYPES:
            raise ValueError(f"dtype: expected int8, uint8, int4 or uint4, got {target}")
        set_options(self, dtype=target.name.lower())
        require_one_of("mode", self.mode, quantize.MODES)
        require_one_of("granularity", self.granularity, ("per_tensor", "per_channel", "per_block"))
        if isinstance(self.block, list | tuple):
            set_options(self, block=tuple(as_integer("block", size) for size in self.block))
        else:
            set_options(self, block=as_integer("block", self.block, "a size, or one for each dimension"))
        sizes = self.block if isinstance(self.block, tuple) else (self.block - 1,)
        if any(size < 0 for size in sizes) or not sizes:
            raise ValueError(f"block: expected a size of 1 or more, or sizes of 0 or more, got {self.block}")
        if self.granularity != "per_block" and self.block != Linear.block:
            raise ValueError(f"block: expected it with granularity 'per_block', got it with {self.granularity!r}")
        require("search", self.search, bool, "True or False")

    @property
    def opset(self) -> int:
        return BLOCKS_OPSET if str(self.dtype).endswith("4") or self.granularity == "per_block" else FIRST_OPSET

    @property
    def needs_axes(self) -> bool:
        return self.granularity != "per_block" or not isinstance(self.block, tuple)

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        return axes if self.needs_axes and self.granularity != "per_tensor" else None

    @property
    def weighs(self) -> bool:
        return self.search

    def objection(self, before: tuple[str, ...]) -> str | None:
        if "Palette" in before and self.granularity != "per_tensor":
            return f"Linear after Palette: expected granularity 'per_tensor', got {self.granularity!r}"
        return super().objection(before)

    def streamed(self, weight: Weight) -> WeightParts | None:
        if self._held(weight) is not None:
            return None
        array = weight.array
        work = quantize.Quantizer(
            array, self.dtype, mode=self.mode, blocks=self._blocks(weight), search=self.search, empty=weight.empty
        )
        kind, data, scale = work.dtype.numpy, coming(array.shape, np.uint8), coming(work.counts, work.array_dtype)
        point = coming(work.counts, np.uint8) if work.has_zero_point else None
        if prod(work.counts) < WEIGHT_COUNT:  # they go into the Program
            scale, point = work.scales()
        if array.size < WEIGHT_COUNT:
            data = np.concatenate([one.data for one in work.stretches()]).reshape(array.shape)
        point = None if point is None else point.view(kind)
        coded = quantize.Quantized(data.view(kind), scale, point, work.dtype)
        is_early = weight.opset < LINKED_OPSET
        keys = ("quantized_data", "scale", "zero_point") if is_early else ("data", "scale", "offset")
        pieces = Pieces(array, ("Linear",), coded=coded)
        return pieces.parts_to_come(weight.opset, partial(_write_quantized, work, keys))

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        if pieces.table is not None:
            return self._quantize_palettes(pieces)
        held = None if pieces.steps else self._held(weight)
        if held is not None:
            data, scale = held.read(pieces.empty)
            if is_finite(scale):
                own, kind = pieces.array.dtype, held.dtype.numpy
                exact = computed(scale.shape, own, lambda box: scale[box].astype(own), pieces.empty)
                if data.dtype != kind:
                    integers = data
                    data = computed(data.shape, kind, lambda box: integers[box].astype(kind), pieces.empty)
                coded = quantize.Quantized(data, exact, None, held.dtype)
                return pieces._replace(steps=("Linear",), coded=coded)
        array = pieces.values()
        weights = heavy_of(pieces, weight) if self.search else None
        made = quantize.quantize(array, self.dtype, mode=self.mode, blocks=self._blocks(weight), search=self.search,
            importance=weights, empty=pieces.empty,
        )  # fmt: skip
        loss = None if pieces.steps else made.loss
        return pieces._replace(steps=(*pieces.steps, "Linear"), coded=made, nonzero=None, loss=loss)

    def _held(self, weight: Weight) -> HeldBlocks | None:
        """The integers and scales that the values of a weight are, if they are as this recipe makes them."""
        held = weight.blocks
        if held is None or self.mode != "linear_symmetric" or held.dtype is not as_dtype(self.dtype):
            return None
        sizes = zip(self._blocks(weight), weight.array.shape, strict=True)
        return held if tuple(size or length for size, length in sizes) == held.block else None

    def _blocks(self, weight: Weight) -> tuple[int, ...]:
        """The size of a block in each dimension, 0 for all of it."""
        ndim, (inputs, outputs) = weight.array.ndim, weight.axes
        sizes = [0] * ndim
        if self.granularity == "per_block" and isinstance(self.block, tuple):
            if len(self.block) != ndim:
                raise UnfitError(f"expected {len(self.block)} dimensions, as block has, got {ndim}")
            sizes = list(self.block)
        elif self.granularity != "per_tensor":
            if self.granularity == "per_block":
                sizes[inputs] = int(self.block)  # type: ignore[arg-type]
            sizes[outputs] = 1
        return tuple(sizes)

    def _quantize_palettes(self, pieces: Pieces) -> Pieces:
        """Quantize the entries of palettes; palettes of few entries are not quantized, as in coremltools."""
        table = cast(palettize.Palettized, pieces.table)
        steps = (*pieces.steps, "Linear")
        if table.palettes.size < _LEAST_ENTRIES:
            return pieces._replace(steps=steps)
        made = quantize.quantize(table.palettes, self.dtype, mode=self.mode, search=self.search)
        return pieces._replace(steps=steps, lut=made, loss=None)


def _write_quantized(work: quantize.Quantizer, keys: tuple[str, str, str], stored: set[str], put: Put) -> Loss:
    """Write those parts of a linear quantization (integers, scales, zero points) that are `stored`; see WeightParts."""
    loss, dtype = Loss(), work.dtype
    for one in work.stretches(is_packed=True):
        zeros = bytes(dtype.nbytes(one.scale.size)) if one.zero_point is None else one.zero_point
        rows = (one.begin * dtype.nbits // 8, one.data), (one.block * one.scale.itemsize, one.scale)
        for key, row in zip(keys, (*rows, (one.block * dtype.nbits // 8, zeros)), strict=True):
            if key in stored and len(row[1]):
                put(key, *row)
        loss = loss.plus(one.loss)
    return loss
