"""Recipes: how weights are compressed, as data that prints, compares, and goes to JSON and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..arguments import as_integer, require
from ..dtypes import DType, as_dtype
from ..errors import MilblobError
from ..values import palettize, prune, quantize
from ..values.tensorvalue import stored_bytes
from .changes import WEIGHT_COUNT
from .planned import Figures, Plan, PlannedPart, Put

Array = np.ndarray[Any, Any]
_R = TypeVar("_R", bound="Recipe")

FIRST_OPSET, BLOCKS_OPSET = 16, 18
_PALETTE_INDICES = {1: DType.UINT1, 2: DType.UINT2, 3: DType.UINT3, 4: DType.UINT4, 6: DType.UINT6, 8: DType.UINT8}


class NotCompressibleError(MilblobError):
    """A recipe cannot be applied to a weight; the message has the reason."""


class Part(NamedTuple):
    """A part of a compressed weight, as it is stored.

    Attributes:
        array: the values, for parts of few elements; else None.
        data: the stored bytes.
    """

    key: str
    dtype: Any
    shape: tuple[int, ...]
    array: Array | None
    data: Any


class CompressedParts(NamedTuple):
    """A compressed weight.

    Attributes:
        op: type of the operation that computes it.
        parts: its parts.
        squared, power, largest: what was lost: sum of the squared differences, sum of the squares of the weight,
            largest difference.
    """

    op: str
    parts: tuple[Part, ...]
    squared: float
    power: float
    largest: float


class Weight(NamedTuple):
    """What a recipe needs to know about a weight.

    Attributes:
        array: its values.
        axes: (input channels, output channels); (1, 0) if the operations do not agree and the recipe needs none.
        opset: iOS version of the opset that it is in.
        consumers: (operation, parameter) of each that reads it.
    """

    array: Array
    axes: tuple[int, int]
    opset: int
    consumers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Recipe:
    """What all recipes have in common."""

    @property
    def opset(self) -> int:
        """The iOS version of the first opset that can hold the result."""
        return FIRST_OPSET

    @property
    def needs_axes(self) -> bool:
        """Whether the operations that read a weight must agree on its channels, as coremltools wants it."""
        return True

    def plan(self, weight: Weight) -> Plan | None:
        """Say what a weight becomes, so that its values are computed while they are written.

        Returns:
            None if more than a few values must be known for that: then `apply` is called.

        Raises:
            NotCompressibleError: it cannot be applied to this weight.
        """
        return None

    def apply(self, weight: Weight) -> CompressedParts:
        """Compress a weight.

        Raises:
            NotCompressibleError: it cannot be applied to this weight.
        """
        plan = self.plan(weight)
        if plan is None:
            raise NotImplementedError
        return _applied(plan)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON can hold it: its class and every option."""
        return {"recipe": type(self).__name__, **asdict(self)}

    def to_json(self) -> str:
        """Return the recipe as JSON."""
        return json.dumps(self.to_dict())


@dataclass(frozen=True)
class Linear(Recipe):
    """Linear quantization: integers, with a scale for each block.

    Attributes:
        dtype: "int8", "uint8", "int4" or "uint4".
        mode: "linear_symmetric" or "linear" (with a zero point).
        granularity: "per_tensor", "per_channel" (output channels) or "per_block".
        block: with "per_block": so many input channels of an output channel share a scale; or the size of a block in
            each dimension, 0 for all of it.
        search: whether the range of each block is clipped where that lowers its squared error.
    """

    dtype: str = "int8"
    mode: str = "linear_symmetric"
    granularity: str = "per_channel"
    block: int | tuple[int, ...] = 32
    search: bool = False

    def __post_init__(self) -> None:
        target = as_dtype(self.dtype)
        if target not in quantize.DTYPES:
            raise ValueError(f"dtype: expected int8, uint8, int4 or uint4, got {target}")
        _set(self, dtype=target.name.lower())
        _one_of("mode", self.mode, quantize.MODES)
        _one_of("granularity", self.granularity, ("per_tensor", "per_channel", "per_block"))
        if isinstance(self.block, list | tuple):
            _set(self, block=tuple(as_integer("block", size) for size in self.block))
        else:
            _set(self, block=as_integer("block", self.block, "a size, or one for each dimension"))
        sizes = self.block if isinstance(self.block, tuple) else (self.block - 1,)
        if any(size < 0 for size in sizes) or not sizes:
            raise ValueError(f"block: expected a size of 1 or more, or sizes of 0 or more, got {self.block}")
        require("search", self.search, bool, "True or False")

    @property
    def opset(self) -> int:
        """See Recipe."""
        return BLOCKS_OPSET if self.dtype.endswith("4") or self.granularity == "per_block" else FIRST_OPSET

    @property
    def needs_axes(self) -> bool:
        """See Recipe."""
        return self.granularity != "per_block" or not isinstance(self.block, tuple)

    def plan(self, weight: Weight) -> Plan | None:
        """See Recipe."""
        array, (inputs, outputs) = weight.array, weight.axes
        sizes = [0] * array.ndim
        if self.granularity == "per_block" and isinstance(self.block, tuple):
            if len(self.block) != array.ndim:
                raise NotCompressibleError(f"expected {len(self.block)} dimensions, as block has, got {array.ndim}")
            sizes = list(self.block)
        elif self.granularity != "per_tensor":
            if self.granularity == "per_block":
                sizes[inputs] = int(self.block)  # type: ignore[arg-type]
            sizes[outputs] = 1
        try:
            work = quantize.Quantizer(array, self.dtype, mode=self.mode, blocks=tuple(sizes), search=self.search)
            counts, stored, point = work.counts, as_dtype(work.array_dtype), None
            keys, shape = ("data", "scale", "offset"), counts
            more: tuple[PlannedPart, ...] = ()
            has_point = work.has_zero_point
            if weight.opset < BLOCKS_OPSET:
                keys, has_point = ("quantized_data", "scale", "zero_point"), True
                shape = tuple(count for count in counts if count > 1)
                axis = next((axis for axis, count in enumerate(counts) if count > 1), 0)
                more = (PlannedPart("axis", DType.INT32, (), np.array(axis, np.int32)),)
            scale = None
            if prod(counts) < WEIGHT_COUNT:  # they go into the Program
                scale, point = work.scales()
                point = np.zeros(counts, np.uint8) if point is None else point
                scale, point = scale.reshape(shape), point.reshape(shape).view(work.dtype.numpy)
            data = None
            if array.size < WEIGHT_COUNT:
                data = (
                    np.concatenate([one.data for one in work.stretches()]).reshape(array.shape).view(work.dtype.numpy)
                )
        except ValueError as error:
            raise NotCompressibleError(str(error)) from None
        parts = [PlannedPart(keys[0], work.dtype, array.shape, data), PlannedPart(keys[1], stored, shape, scale)]
        if has_point:
            parts.append(PlannedPart(keys[2], work.dtype, shape, point))
        write = partial(_write_quantized, work, keys, {part.key for part in parts if part.array is None})
        return Plan(
            "constexpr_affine_dequantize" if more else "constexpr_blockwise_shift_scale", (*parts, *more), write
        )


@dataclass(frozen=True)
class Palette(Recipe):
    """Palettes: an index of a few bits for each element.

    Attributes:
        nbits: 1, 2, 3, 4, 6 or 8; None in the mode "unique", which takes as few as it needs.
        mode: "kmeans" (the least squared error), "uniform" or "unique" (nothing is lost, or the weight is skipped).
        granularity: "per_tensor" or "per_grouped_channel".
        group_size: with "per_grouped_channel": so many channels share a palette.
        channel_axis: of those channels; None: the output channels.
    """

    nbits: int | None = 4
    mode: str = "kmeans"
    granularity: str = "per_tensor"
    group_size: int = 32
    channel_axis: int | None = None

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, palettize.MODES)
        if self.mode == "unique":
            _set(self, nbits=None)
        else:
            _one_of("nbits", self.nbits, palettize.NBITS)
        _one_of("granularity", self.granularity, ("per_tensor", "per_grouped_channel"))
        _set(self, group_size=as_integer("group_size", self.group_size))
        if self.group_size < 1:
            raise ValueError(f"group_size: expected 1 or more, got {self.group_size}")
        if self.channel_axis is not None:
            _set(self, channel_axis=as_integer("channel_axis", self.channel_axis))
            if self.granularity == "per_tensor":
                raise ValueError(f"channel_axis: expected None with one palette per tensor, got {self.channel_axis}")

    @property
    def opset(self) -> int:
        """See Recipe."""
        return BLOCKS_OPSET if self.granularity != "per_tensor" or self.nbits == 3 else FIRST_OPSET

    def plan(self, weight: Weight) -> Plan | None:
        """See Recipe."""
        array, (axis, size) = weight.array, self._groups(weight)
        if self.nbits is None or array.size < 8 * WEIGHT_COUNT:
            return None
        if self.nbits == 3 and weight.opset < BLOCKS_OPSET:
            raise NotCompressibleError("expected an opset of iOS18 for 3 bits, got an earlier one")
        try:
            work = palettize.Palettizer(array, self.nbits, mode=self.mode, axis=axis, group_size=size)
            if not work.is_apart:
                return None
            entries = 1 << self.nbits
            is_new = weight.opset >= BLOCKS_OPSET
            shape = (*work.counts, entries, 1) if is_new else (entries,)
            few = work.fit().reshape(shape) if prod(shape) < WEIGHT_COUNT else None
        except ValueError as error:
            raise NotCompressibleError(str(error)) from None
        dtype = _PALETTE_INDICES[self.nbits]
        indices = PlannedPart("indices", dtype, array.shape)
        if not is_new:
            indices = PlannedPart("indices", DType.UINT8, (indices.nbytes,))
        parts = [indices, PlannedPart("lut", as_dtype(array.dtype), shape, few)]
        if not is_new:
            parts.append(PlannedPart("shape", DType.UINT32, (array.ndim,), np.array(array.shape, np.uint32)))
        return Plan("constexpr_lut_to_dense", tuple(parts), partial(_write_palettized, work, few is None))

    def _groups(self, weight: Weight) -> tuple[int | None, int | None]:
        """(axis, channels that share a palette), or None for both."""
        if self.granularity != "per_grouped_channel":
            return None, None
        return weight.axes[1] if self.channel_axis is None else self.channel_axis, self.group_size

    def apply(self, weight: Weight) -> CompressedParts:
        """See Recipe."""
        array, (axis, size) = weight.array, self._groups(weight)
        try:
            made = palettize.palettize(array, self.nbits, mode=self.mode, axis=axis, group_size=size)
        except ValueError as error:
            raise NotCompressibleError(str(error)) from None
        figures = made.squared, made.power, made.largest
        index = _PALETTE_INDICES[made.nbits]
        indices = _part("indices", made.indices.view(index.numpy), index)
        if weight.opset >= BLOCKS_OPSET:
            parts = [indices, _part("lut", made.palettes)]
            return CompressedParts("constexpr_lut_to_dense", tuple(parts), *figures)
        if made.nbits == 3:
            raise NotCompressibleError("expected an opset of iOS18 for 3 bits, got an earlier one")
        parts = [
            _bytes_part("indices", indices.data),
            _part("lut", made.palettes.reshape(-1)),
            _part("shape", np.array(array.shape, np.uint32)),
        ]
        return CompressedParts("constexpr_lut_to_dense", tuple(parts), *figures)


@dataclass(frozen=True)
class Prune(Recipe):
    """Pruning: elements become zero, and only the others are stored. Exactly one of the first three is given.

    Attributes:
        sparsity: the part of the elements, 0 to 1, that become zero: those of the least magnitude.
        threshold: the greatest magnitude that becomes zero.
        n_m: (n, m): of every m neighbours along `dim`, the n of the least magnitude become zero.
        block: with sparsity: so many neighbours along `dim` stay or become zero together.
        dim: 0 or 1; None: 0 for blocks, 1 for n_m.
        least_sparsity: with threshold: a weight with a smaller part of zeros is skipped.
    """

    sparsity: float | None = None
    threshold: float | None = None
    n_m: tuple[int, int] | None = None
    block: int | None = None
    dim: int | None = None
    least_sparsity: float = 0.5

    def __post_init__(self) -> None:
        if sum(option is not None for option in (self.sparsity, self.threshold, self.n_m)) != 1:
            raise ValueError("prune: expected exactly one of sparsity, threshold and n_m, got another number of them")
        for name, most in (("sparsity", 1.0), ("threshold", float("inf")), ("least_sparsity", 1.0)):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise ValueError(f"{name}: expected 0 to {most:g}, got {value}")
        if self.n_m is not None:
            pair = tuple(as_integer("n_m", number) for number in self.n_m)
            if len(pair) != 2 or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
                raise ValueError(f"n_m: expected (n, m) with n at most m, got {self.n_m}")
            _set(self, n_m=pair)
        if self.block is not None and (self.sparsity is None or as_integer("block", self.block) < 2):
            raise ValueError(f"block: expected 2 or more, with a sparsity, got {self.block}")
        if self.dim is not None and (self.dim not in (0, 1) or (self.block is None and self.n_m is None)):
            raise ValueError(f"dim: expected 0 or 1, with block or n_m, got {self.dim}")

    @property
    def needs_axes(self) -> bool:
        """See Recipe."""
        return False

    def plan(self, weight: Weight) -> Plan | None:
        """See Recipe."""
        array = weight.array
        if self.block is not None or self.n_m is not None:
            others = [use for use in weight.consumers if use not in (("conv", "weight"), ("linear", "weight"))]
            if others:
                raise NotCompressibleError(
                    f"expected only weights of conv and linear for blocks and n_m, got {'.'.join(others[0])}"
                )
        try:
            work = prune.Pruner(
                array, sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m, block=self.block, dim=self.dim
            )
            made = 1 - work.count / array.size
            if self.threshold is not None and made < self.least_sparsity:
                raise NotCompressibleError(f"expected a sparsity of {self.least_sparsity:g} or more, got {made:.4g}")
            few = work.count < WEIGHT_COUNT
            nonzero = np.concatenate([one.nonzero for one in work.stretches()]) if few else None
        except ValueError as error:
            raise NotCompressibleError(str(error)) from None
        parts = [
            PlannedPart("nonzero_data", as_dtype(array.dtype), (work.count,), nonzero),
            PlannedPart("mask", DType.UINT1, array.shape),
        ]
        if weight.opset < BLOCKS_OPSET:
            mask: Any = None
            if parts[1].nbytes < WEIGHT_COUNT:
                mask = np.concatenate([one.mask for one in work.stretches()])
            parts[1] = PlannedPart("mask", DType.UINT8, (parts[1].nbytes,), mask)
            parts.append(PlannedPart("shape", DType.UINT32, (array.ndim,), np.array(array.shape, np.uint32)))
        stored = {part.key for part in parts if part.array is None}
        return Plan("constexpr_sparse_to_dense", tuple(parts), partial(_write_pruned, work, stored))


RECIPES: dict[str, type[Recipe]] = {"Linear": Linear, "Palette": Palette, "Prune": Prune}


def as_recipe(value: Any) -> Recipe:
    """Return the recipe that a recipe, its dict or its JSON stands for.

    Raises:
        TypeError: something else. ValueError: an unknown recipe or option, or a wrong value; it is named.
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(
                f"recipe: expected a Linear, Palette or Prune, or one as JSON, got {value!r:.60}"
            ) from None
    require("recipe", value, Mapping, "a Linear, Palette or Prune, or one as JSON")
    kind = RECIPES.get(value.get("recipe"))
    if kind is None:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {value.get('recipe')!r}")
    options = {key: option for key, option in value.items() if key != "recipe"}
    unknown = sorted(set(options) - {one.name for one in fields(kind)})
    if unknown:
        raise ValueError(f"{value['recipe']}: expected its options, got {unknown[0]!r}")
    return kind(**{key: tuple(option) if isinstance(option, list) else option for key, option in options.items()})


def _write_quantized(work: quantize.Quantizer, keys: tuple[str, str, str], stored: set[str], put: Put) -> Figures:
    """Write those parts of a linear quantization (integers, scales, zero points) that are `stored`; see Plan."""
    squared, power, largest, dtype = 0.0, 0.0, 0.0, work.dtype
    try:
        for one in work.stretches(is_packed=True):
            zeros = bytes(dtype.nbytes(one.scale.size)) if one.zero_point is None else one.zero_point
            rows = (one.begin * dtype.nbits // 8, one.data), (one.block * one.scale.itemsize, one.scale)
            for key, row in zip(keys, (*rows, (one.block * dtype.nbits // 8, zeros)), strict=True):
                if key in stored and len(row[1]):
                    put(key, *row)
            squared, power, largest = squared + one.squared, power + one.power, max(largest, one.largest)
    except ValueError as error:
        raise NotCompressibleError(str(error)) from None
    return Figures(squared, power, largest)


def _write_palettized(work: palettize.Palettizer, has_palettes: bool, put: Put) -> Figures:
    """Write the indices, and perhaps the palettes; see Plan."""
    try:
        for one in work.stretches():
            put("indices", one.begin * work.nbits // 8, one.indices)
            if has_palettes and one.palettes.size:
                put("lut", one.group * (one.palettes.itemsize << work.nbits), one.palettes)
    except ValueError as error:
        raise NotCompressibleError(str(error)) from None
    return Figures(*work.figures)


def _write_pruned(work: prune.Pruner, stored: set[str], put: Put) -> Figures:
    """Write those parts of a pruned weight that are `stored`; see Plan."""
    for one in work.stretches():
        if "mask" in stored:
            put("mask", one.begin // 8, one.mask)
        if "nonzero_data" in stored and one.nonzero.size:
            put("nonzero_data", one.first * one.nonzero.itemsize, one.nonzero)
    return Figures(*work.figures)


def _applied(plan: Plan) -> CompressedParts:
    """Compute the parts of a plan now."""
    made = {part.key: np.zeros(part.nbytes, np.uint8) for part in plan.parts if part.array is None}

    def put(key: str, offset: int, data: Any) -> None:
        view = np.frombuffer(data, np.uint8)
        made[key][offset : offset + view.size] = view

    figures = plan.write(put)
    parts = [
        Part(
            part.key,
            part.dtype,
            part.shape,
            part.array,
            made[part.key] if part.array is None else stored_bytes(part.array, part.dtype),
        )
        for part in plan.parts
    ]
    return CompressedParts(plan.op, tuple(parts), *figures)


def _set(recipe: Recipe, **values: Any) -> None:
    """Normalise options of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(recipe, name, value)


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")


def _part(key: str, array: Any, dtype: Any = None) -> Part:
    array = np.asarray(array)
    dtype = as_dtype(array.dtype) if dtype is None else dtype
    return Part(key, dtype, array.shape, array if array.size < 10 else None, stored_bytes(array, dtype))


def _bytes_part(key: str, data: Any) -> Part:
    return _part(key, np.frombuffer(data, np.uint8))
