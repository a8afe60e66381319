"""Recipes: how weights are compressed, as data that prints, compares, and goes to JSON and back."""

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from ..arguments import as_count, as_integer, require
from ..dtypes import as_dtype
from ..errors import FormatError
from ..jsontext import parse_json
from ..lossy import palettize, prune, quantize
from ..rewrite.planned import PartsPlan
from ..values.strided import Empty, computed, is_finite, not_finite, selected, unpacked_mask
from . import palettes
from .not_finite import in_place_of, require_finite
from .pieces import NotCompressibleError, Pieces
from .plans import linear_plan, palette_plan, prune_plan
from .recipe import (
    BLOCKS_OPSET,
    FIRST_OPSET,
    ORDERS,
    HeldBlocks,
    Recipe,
    Weight,
    heavy_of,
    made_by,
    order_objection,
    require_number,
    require_one_of,
    set_options,
)

Array = np.ndarray[Any, Any]

_LEAST_ENTRIES = 10  # coremltools leaves palettes of fewer as they are


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
        """See Recipe."""
        return BLOCKS_OPSET if self.dtype.endswith("4") or self.granularity == "per_block" else FIRST_OPSET

    @property
    def needs_axes(self) -> bool:
        """See Recipe."""
        return self.granularity != "per_block" or not isinstance(self.block, tuple)

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        """See Recipe."""
        return axes if self.needs_axes and self.granularity != "per_tensor" else None

    @property
    def weighs(self) -> bool:
        """See Recipe."""
        return self.search

    def objection(self, before: tuple[str, ...]) -> str | None:
        """See Recipe."""
        if "Palette" in before and self.granularity != "per_tensor":
            return f"Linear after Palette: expected granularity 'per_tensor', got {self.granularity!r}"
        return super().objection(before)

    def plan(self, weight: Weight) -> PartsPlan | None:
        """See Recipe."""
        if not self._is_alone(weight) or self._held(weight) is not None:
            return None
        array, blocks = weight.array, self._blocks(weight)
        return linear_plan(array, self.dtype, self.mode, blocks, self.search, weight.opset, weight.empty)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
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
                coded = quantize.Quantized(data, exact, None, held.dtype, 0.0, 0.0, 0.0)
                return pieces._replace(steps=("Linear",), coded=coded)
        array = pieces.values()
        weights = heavy_of(pieces, weight) if self.search else None
        made = made_by(
            quantize.quantize, array, self.dtype, mode=self.mode, blocks=self._blocks(weight), search=self.search,
            importance=weights, empty=pieces.empty,
        )  # fmt: skip
        figures = None if pieces.steps else (made.squared, made.power, made.largest)
        return pieces._replace(steps=(*pieces.steps, "Linear"), coded=made, nonzero=None, figures=figures)

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
                raise NotCompressibleError(f"expected {len(self.block)} dimensions, as block has, got {ndim}")
            sizes = list(self.block)
        elif self.granularity != "per_tensor":
            if self.granularity == "per_block":
                sizes[inputs] = int(self.block)  # type: ignore[arg-type]
            sizes[outputs] = 1
        return tuple(sizes)

    def _quantize_palettes(self, pieces: Pieces) -> Pieces:
        """Quantize the entries of palettes; palettes of few entries stay, as in coremltools."""
        table = cast(palettize.Palettized, pieces.table)
        steps = (*pieces.steps, "Linear")
        if table.palettes.size < _LEAST_ENTRIES:
            return pieces._replace(steps=steps)
        made = made_by(quantize.quantize, table.palettes, self.dtype, mode=self.mode, search=self.search)
        return pieces._replace(steps=steps, lut=made, figures=None)


@dataclass(frozen=True)
class Palette(Recipe):
    """Palettes: an index of a few bits for each element.

    Attributes:
        nbits: 1, 2, 3, 4, 6 or 8; None in the modes "unique" and "custom", which take as few as they need.
        mode: "kmeans" (the least squared error), "uniform", "unique" (nothing is lost, or the weight is skipped) or
            "custom".
        granularity: "per_tensor" or "per_grouped_channel".
        group_size: with "per_grouped_channel": so many channels share a palette.
        channel_axis: of those channels, of vectors and of scales; None: the output channels.
        vector: elements of an entry: so many neighbours along the channels share an index.
        scale: whether elements are divided by the greatest magnitude along the channels before.
        lut_dtype: "int8", "uint8", "int4" or "uint4": the entries become such integers with one scale, as by
            `+ Linear(lut_dtype, granularity="per_tensor")`; None: they are floats.
        lut_function: in the mode "custom": called with the elements that share a palette, their channels first; returns
            (entries, indices).
    """

    nbits: int | None = 4
    mode: str = "kmeans"
    granularity: str = "per_tensor"
    group_size: int = 32
    channel_axis: int | None = None
    vector: int = 1
    scale: bool = False
    lut_dtype: str | None = None
    lut_function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        require_one_of("mode", self.mode, (*palettize.MODES, "custom"))
        if not (callable(self.lut_function) if self.mode == "custom" else self.lut_function is None):
            words = "a function" if self.mode == "custom" else "None, except in the mode 'custom'"
            raise ValueError(f"lut_function: expected {words}, got {self.lut_function!r}")
        set_options(self, vector=as_integer("vector", self.vector))
        if self.vector < 1 or (self.vector > 1 and self.mode == "uniform"):
            words = "1" if self.mode == "uniform" else "1 or more"
            raise ValueError(f"vector: expected {words} in the mode {self.mode!r}, got {self.vector}")
        require("scale", self.scale, bool, "True or False")
        if self.lut_dtype is not None:
            set_options(self, lut_dtype=self._of_entries.dtype)
            if self.scale:
                raise ValueError("lut_dtype: expected None with scale, whose scales are those of the entries, got both")
        if self.mode in ("unique", "custom"):
            if self.nbits not in (None, Palette.nbits):  # not the default: somebody wants it
                words = f"None in the mode {self.mode!r}, which takes as many as it needs"
                raise ValueError(f"nbits: expected {words}, got {self.nbits}")
            set_options(self, nbits=None)
        else:
            require_one_of("nbits", self.nbits, palettize.NBITS)
            set_options(self, nbits=int(self.nbits))  # type: ignore[arg-type]
        require_one_of("granularity", self.granularity, ("per_tensor", "per_grouped_channel"))
        set_options(self, group_size=as_count("group_size", self.group_size, 1))
        if self.granularity == "per_tensor" and self.group_size != Palette.group_size:
            raise ValueError("group_size: expected it with granularity 'per_grouped_channel', got it with 'per_tensor'")
        if self.channel_axis is not None:
            set_options(self, channel_axis=as_integer("channel_axis", self.channel_axis))
            if self.granularity == "per_tensor" and self.vector == 1 and not self.scale:
                raise ValueError(f"channel_axis: expected None with one palette per tensor, got {self.channel_axis}")

    @property
    def opset(self) -> int:
        """See Recipe."""
        is_late = self.granularity != "per_tensor" or self.nbits == 3 or self.vector > 1 or self.scale
        is_late = is_late or self.lut_dtype is not None
        return BLOCKS_OPSET if is_late else FIRST_OPSET

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        """See Recipe."""
        is_whole = self.granularity == "per_tensor" and self.vector == 1 and not self.scale and self.mode != "custom"
        return None if is_whole else (axes if self.channel_axis is None else None, groups if self.vector > 1 else 1)

    @property
    def weighs(self) -> bool:
        """See Recipe."""
        return self.mode == "kmeans"

    @property
    def names(self) -> tuple[str, ...]:
        """See Recipe."""
        return ("Palette",) if self.lut_dtype is None else ("Palette", "Linear")

    @property
    def is_data(self) -> bool:
        """See Recipe."""
        return self.lut_function is None

    def objection(self, before: tuple[str, ...]) -> str | None:
        """See Recipe."""
        if self.vector > 1 and before[-1:] == ("Linear",):
            return f"Palette after Linear: expected vector=1: Core ML has no operation for others, got {self.vector}"
        return (self.objection_to_scale() if before else None) or super().objection(before)

    def objection_to_scale(self) -> str | None:
        """Return why the scales do not go together with other recipes; None without scales."""
        if self.scale:
            return "Palette with others: expected scale=False: Core ML has no operation for it, got True"
        return None

    def plan(self, weight: Weight) -> PartsPlan | None:
        """See Recipe."""
        if self.nbits is None or self.vector > 1 or self.scale or self.lut_dtype or not self._is_alone(weight):
            return None
        axis, size = self._groups(weight)
        along = None if size is None else axis
        return palette_plan(weight.array, self.nbits, self.mode, along, size, weight.opset, weight.lasting)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
        axis, size = self._groups(weight)
        per_group = weight.array.shape[0] // weight.groups
        if self.vector > 1 and axis == 0 and weight.groups > 1 and per_group % self.vector:
            words = f"expected vectors that divide the {per_group} output channels of a group of the convolution"
            raise NotCompressibleError(f"{words}, got {self.vector}")
        weights = heavy_of(pieces, weight) if self.mode == "kmeans" else None
        is_kept = weight.nan == "keep" and self.vector == 1 and self.mode in ("kmeans", "unique")
        choice = palettes.PaletteOptions(
            self.nbits, self.mode, axis, size, self.vector, self.lut_function, weights, is_kept
        )
        made = made_by(palettes.scaled if self.scale else palettes.palettized, pieces, choice)
        found: Pieces = made._replace(steps=(*pieces.steps, "Palette"))
        return found if self.lut_dtype is None else self._of_entries.step(found, weight)

    def to_dict(self) -> dict[str, Any]:
        """See Recipe. A function is only named: JSON cannot hold it, so it does not come back."""
        function = self.lut_function
        name = None if function is None else getattr(function, "__qualname__", repr(function))
        return super().to_dict() | {"lut_function": name}

    @property
    def _of_entries(self) -> Linear:
        """How the entries are quantized."""
        return Linear(cast(str, self.lut_dtype), granularity="per_tensor")

    def _groups(self, weight: Weight) -> tuple[int, int | None]:
        """(axis of the channels, how many share a palette; None: all)."""
        rank = weight.array.ndim
        axis = weight.axes[1] if self.channel_axis is None else self.channel_axis
        if not -rank <= axis < rank:
            raise NotCompressibleError(f"channel_axis: expected a dimension of {rank}, got {axis}")
        return axis % rank, self.group_size if self.granularity == "per_grouped_channel" else None


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
        prune.require_one(sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m)
        for name, most in (("sparsity", 1.0), ("threshold", sys.float_info.max), ("least_sparsity", 1.0)):
            value = getattr(self, name)
            if value is None and name != "least_sparsity":
                continue
            require_number(name, value)
            if isinstance(value, np.generic):
                value = value.item()
                set_options(self, **{name: value})
            if not 0 <= value <= most:
                raise ValueError(f"{name}: expected 0 to {most:g}, got {value!s:.40}")
        if self.threshold is None and self.least_sparsity != Prune.least_sparsity:
            raise ValueError("least_sparsity: expected it with a threshold, got it without")
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
        """See Recipe."""
        return False

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        """See Recipe."""
        return self._unsuited(consumers)

    def plan(self, weight: Weight) -> PartsPlan | None:
        """See Recipe."""
        if not self._is_alone(weight):
            return None
        self._require_consumers(weight)
        options = {name: getattr(self, name) for name in ("sparsity", "threshold", "n_m", "block", "dim")}
        least = self.least_sparsity if self.threshold is not None else 0.0
        return prune_plan(weight.array, options, least, weight.opset, weight.lasting)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
        array = pieces.values()
        self._require_consumers(weight)
        ranked = array
        if weight.nan == "keep":
            ranked = in_place_of(array, pieces.empty)
        elif weight.importance is not None:
            require_finite(array)  # magnitudes that are weighted are finite
        if weight.importance is not None:
            ranked = _weighted_magnitudes(ranked, weight.importance, pieces.empty)
        made = made_by(
            prune.prune, ranked, sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m, block=self.block,
            dim=self.dim, empty=pieces.empty,
        )  # fmt: skip
        if self.threshold is not None and made.sparsity < self.least_sparsity:
            raise NotCompressibleError(
                f"expected a sparsity of {self.least_sparsity:g} or more, got {made.sparsity:.4g}"
            )
        figures = None if pieces.steps else (made.squared, made.power, made.largest)
        nonzero = None if pieces.steps else made.nonzero
        if ranked is not array:
            kept = unpacked_mask(made.mask, array.shape, pieces.empty)
            chosen = selected(array, kept, pieces.empty)
            lost = not_finite(array) - not_finite(chosen)
            if lost:
                raise NotCompressibleError(f"expected to keep NaN and infinity, got {lost} that would become zero")
            figures, nonzero = None, None if pieces.steps else chosen
        found = pieces._replace(steps=(*pieces.steps, "Prune"), bits=made.mask, nonzero=nonzero, figures=figures)
        palettes.require_whole_vectors(found)
        return found

    def _unsuited(self, consumers: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
        """Return the first consumer of those that coremltools does not prune neighbours for."""
        if self.block is None and self.n_m is None:
            return None
        return next((use for use in consumers if use not in (("conv", "weight"), ("linear", "weight"))), None)

    def _require_consumers(self, weight: Weight) -> None:
        """Raise NotCompressibleError for what coremltools does not prune so."""
        use = self._unsuited(weight.consumers)
        if use is not None:
            words = f"expected only weights of conv and linear for blocks and n_m, got {'.'.join(use)}"
            raise NotCompressibleError(words)


@dataclass(frozen=True, repr=False)
class Joint(Recipe):
    """Several recipes, one after the other, as coremltools' joint compression has them: `Prune(0.5) + Palette(4)`.

    Attributes:
        recipes: in order. What is pruned can be palettized or quantized, and the other way round; Linear after a
            Palette quantizes its entries (if there are 10 or more), and a Palette after Linear holds integers.
    """

    recipes: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        require("recipes", self.recipes, list | tuple, "a list of recipes")
        # Before it is made, for it may hold another in turn, and so on.
        if any(isinstance(one, Mapping) and one.get("recipe") == "Joint" for one in self.recipes):
            raise ValueError("recipes: expected Linear, Palette and Prune, got a Joint")
        set_options(self, recipes=tuple(as_recipe(one) for one in self.recipes))
        names = self.names
        words = self.objection(()) if names in ORDERS else order_objection(names)
        if words is not None:
            raise ValueError(words)

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        """See Recipe."""
        return tuple(one.depends_on(axes, consumers, groups) for one in self.recipes)

    @property
    def weighs(self) -> bool:
        """See Recipe."""
        return any(one.weighs for one in self.recipes)

    @property
    def is_data(self) -> bool:
        """See Recipe."""
        return all(one.is_data for one in self.recipes)

    def objection(self, before: tuple[str, ...]) -> str | None:
        """See Recipe."""
        for one in self.recipes:
            words = one.objection(before)
            if words is None and isinstance(one, Palette):
                words = one.objection_to_scale()
            if words is not None:
                return words
            before = (*before, *one.names)
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """See Recipe."""
        return tuple(name for one in self.recipes for name in one.names)

    @property
    def opset(self) -> int:
        """See Recipe."""
        return BLOCKS_OPSET

    @property
    def needs_axes(self) -> bool:
        """See Recipe."""
        return any(one.needs_axes for one in self.recipes)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
        for one in self.recipes:
            pieces = one.step(pieces, weight)
        return pieces

    def to_dict(self) -> dict[str, Any]:
        """See Recipe."""
        return {"recipe": "Joint", "recipes": [one.to_dict() for one in self.recipes]}

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.recipes))


def _weighted_magnitudes(array: Array, importance: Array, empty: Empty) -> Array:
    """What is pruned by: magnitudes times the root of the importance, float32; zero for zeros alone."""
    limits = np.finfo(np.float32)

    def work(box: tuple[slice, ...]) -> Array:
        heavy = importance[box].astype(np.float32).astype(np.float64)
        wide = np.abs(array[box].astype(np.float64)) * np.sqrt(heavy)
        return np.where(array[box] == 0, 0, np.clip(wide, limits.smallest_subnormal, limits.max))

    return computed(array.shape, np.float32, work, empty)


RECIPES: dict[str, type[Recipe]] = {"Linear": Linear, "Palette": Palette, "Prune": Prune, "Joint": Joint}


def as_recipe(value: Any) -> Recipe:
    """Return the recipe that a recipe, its dict or its JSON stands for.

    Raises:
        TypeError: something else. ValueError: an unknown recipe or option, or a wrong value; it is named.
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        try:
            value = parse_json(value, "JSON", None, unique=True)
        except FormatError as error:
            words = "recipe: expected a Linear, Palette or Prune, or one as JSON"
            raise ValueError(f"{words}, got {value!r:.60} ({error})") from None
    require("recipe", value, Mapping, "a Linear, Palette or Prune, or one as JSON")
    kind = RECIPES.get(value["recipe"]) if isinstance(value.get("recipe"), str) else None
    if kind is None:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {value.get('recipe')!r:.60}")
    options = {key: option for key, option in value.items() if key != "recipe"}
    known = [one.name for one in fields(kind)]
    unknown = sorted(set(options).difference(known), key=str)
    if unknown:
        raise ValueError(f"{value['recipe']}: expected its options {', '.join(known)}, got {unknown[0]!r:.60}")
    if kind is Joint and not options:
        raise ValueError("Joint: expected recipes, got none")
    return kind(**{key: tuple(option) if isinstance(option, list) else option for key, option in options.items()})
