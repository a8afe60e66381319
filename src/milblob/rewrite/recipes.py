"""Recipes: how weights are compressed, as data that prints, compares, and goes to JSON and back."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..arguments import as_integer, require
from ..dtypes import DType, as_dtype
from ..errors import MilblobError
from ..values import palettize, prune, quantize
from ..values.tensorvalue import stored_bytes

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

    def apply(self, weight: Weight) -> CompressedParts:
        """Compress a weight.

        Raises:
            NotCompressibleError: it cannot be applied to this weight.
        """
        raise NotImplementedError

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

    def apply(self, weight: Weight) -> CompressedParts:
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
            made = quantize.quantize(array, self.dtype, mode=self.mode, blocks=tuple(sizes), search=self.search)
        except ValueError as error:
            raise NotCompressibleError(str(error)) from None
        figures = made.squared, made.power, made.largest
        if weight.opset >= BLOCKS_OPSET:
            parts = [_part("data", made.data, made.dtype), _part("scale", made.scale)]
            if made.zero_point is not None:
                parts.append(_part("offset", made.zero_point, made.dtype))
            return CompressedParts("constexpr_blockwise_shift_scale", tuple(parts), *figures)
        point = made.zero_point if made.zero_point is not None else np.zeros(made.scale.shape, made.dtype.numpy)
        axis = next((axis for axis, count in enumerate(made.scale.shape) if count > 1), 0)
        parts = [
            _part("quantized_data", made.data, made.dtype),
            _part("zero_point", point.squeeze(), made.dtype),
            _part("scale", made.scale.squeeze()),
            _part("axis", np.array(axis, np.int32)),
        ]
        return CompressedParts("constexpr_affine_dequantize", tuple(parts), *figures)


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

    def apply(self, weight: Weight) -> CompressedParts:
        """See Recipe."""
        array, axis, size = weight.array, None, None
        if self.granularity == "per_grouped_channel":
            axis = weight.axes[1] if self.channel_axis is None else self.channel_axis
            size = self.group_size
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
        for name, most in (("sparsity", 1.0), ("threshold", sys.float_info.max), ("least_sparsity", 1.0)):
            value = getattr(self, name)
            if value is None and name != "least_sparsity":
                continue
            _number(name, value)
            if not 0 <= value <= most:
                raise ValueError(f"{name}: expected 0 to {most:g}, got {value}")
        if self.n_m is not None:
            require("n_m", self.n_m, list | tuple, "two integers")
            pair = tuple(as_integer("n_m", number) for number in self.n_m)
            if len(pair) != 2 or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
                raise ValueError(f"n_m: expected (n, m) with n at most m, got {self.n_m}")
            _set(self, n_m=pair)
        if self.block is not None and (self.sparsity is None or as_integer("block", self.block) < 2):
            raise ValueError(f"block: expected 2 or more, with a sparsity, got {self.block}")
        if isinstance(self.dim, bool):
            raise TypeError("dim: expected 0 or 1, got bool")
        if self.dim is not None and (
            as_integer("dim", self.dim) not in (0, 1) or (self.block is None and self.n_m is None)
        ):
            raise ValueError(f"dim: expected 0 or 1, with block or n_m, got {self.dim}")

    @property
    def needs_axes(self) -> bool:
        """See Recipe."""
        return False

    def apply(self, weight: Weight) -> CompressedParts:
        """See Recipe."""
        array = weight.array
        if self.block is not None or self.n_m is not None:
            others = [use for use in weight.consumers if use not in (("conv", "weight"), ("linear", "weight"))]
            if others:
                raise NotCompressibleError(
                    f"expected only weights of conv and linear for blocks and n_m, got {'.'.join(others[0])}"
                )
        try:
            made = prune.prune(
                array, sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m, block=self.block, dim=self.dim
            )
        except ValueError as error:
            raise NotCompressibleError(str(error)) from None
        if self.threshold is not None and made.sparsity < self.least_sparsity:
            raise NotCompressibleError(
                f"expected a sparsity of {self.least_sparsity:g} or more, got {made.sparsity:.4g}"
            )
        nonzero = _part("nonzero_data", made.nonzero)
        figures = made.squared, made.power, made.largest
        if weight.opset >= BLOCKS_OPSET:
            mask = Part("mask", DType.UINT1, made.shape, None, memoryview(made.mask))  # type: ignore[arg-type]
            return CompressedParts("constexpr_sparse_to_dense", (nonzero, mask), *figures)
        parts = nonzero, _bytes_part("mask", made.mask), _part("shape", np.array(array.shape, np.uint32))
        return CompressedParts("constexpr_sparse_to_dense", parts, *figures)


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
        except (ValueError, RecursionError):
            raise ValueError(
                f"recipe: expected a Linear, Palette or Prune, or one as JSON, got {value!r:.60}"
            ) from None
    require("recipe", value, Mapping, "a Linear, Palette or Prune, or one as JSON")
    kind = RECIPES.get(value["recipe"]) if isinstance(value.get("recipe"), str) else None
    if kind is None:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {value.get('recipe')!r}")
    options = {key: option for key, option in value.items() if key != "recipe"}
    unknown = sorted(set(options) - {one.name for one in fields(kind)})
    if unknown:
        raise ValueError(f"{value['recipe']}: expected its options, got {unknown[0]!r}")
    return kind(**{key: tuple(option) if isinstance(option, list) else option for key, option in options.items()})


def _set(recipe: Recipe, **values: Any) -> None:
    """Normalise options of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(recipe, name, value)


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if isinstance(value, bool) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")


def _part(key: str, array: Any, dtype: Any = None) -> Part:
    array = np.asarray(array)
    dtype = as_dtype(array.dtype) if dtype is None else dtype
    return Part(key, dtype, array.shape, array if array.size < 10 else None, stored_bytes(array, dtype))


def _bytes_part(key: str, data: Any) -> Part:
    return _part(key, np.frombuffer(data, np.uint8))
