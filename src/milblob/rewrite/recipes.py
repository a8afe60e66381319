"""Recipes: how weights are compressed, as data that prints, compares, and goes to JSON and back."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np

from ..arguments import as_integer, require
from ..dtypes import as_dtype
from ..values import palettize, prune, quantize
from .pieces import LINKED_OPSET, CompressedParts, NotCompressibleError, Part, Pieces
from .planned import Plan, applied
from .plans import linear_plan, palette_plan, prune_plan

__all__ = ("CompressedParts", "Joint", "Linear", "NotCompressibleError", "Palette", "Part", "Prune", "Recipe", "Weight",
           "as_recipe")  # fmt: skip

Array = np.ndarray[Any, Any]

FIRST_OPSET, BLOCKS_OPSET = 16, LINKED_OPSET
_LEAST_ENTRIES = 10  # coremltools leaves palettes of fewer as they are


class Weight(NamedTuple):
    """What a recipe needs to know about a weight.

    Attributes:
        array: its values.
        axes: (input channels, output channels); (1, 0) if the operations do not agree and the recipe needs none.
        opset: iOS version of the opset that it is in.
        consumers: (operation, parameter) of each that reads it.
        importance: of its elements, in its shape; None: all alike.
        groups: how many groups the convolutions that read it divide its first dimension into.
    """

    array: Array
    axes: tuple[int, int]
    opset: int
    consumers: tuple[tuple[str, str], ...]
    importance: Array | None = None
    groups: int = 1


@dataclass(frozen=True)
class Recipe:
    """What all recipes have in common. `Prune(0.5) + Palette(4)` is the Joint that applies both, in that order."""

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
        return self.step(Pieces(weight.array), weight).compressed(weight.opset) if plan is None else applied(plan)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """Take the pieces that the recipes before have made, and return those of the next.

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

    def __add__(self, other: "Recipe") -> "Joint":
        """Return the recipe that applies this one, then the other."""
        if not isinstance(other, Recipe):
            return NotImplemented
        return Joint(_flat(self) + _flat(other))


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
        if self.search and weight.importance is not None:
            return None
        array, blocks = weight.array, self._blocks(weight)
        return linear_plan(array, self.dtype, self.mode, blocks, self.search, weight.opset)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
        if pieces.table is not None:
            return self._quantize_palettes(pieces)
        array = pieces.values()
        weights = _heavy(pieces, weight) if self.search else None
        made = _made(
            quantize.quantize, array, self.dtype, mode=self.mode, blocks=self._blocks(weight), search=self.search,
            importance=weights,
        )  # fmt: skip
        figures = None if pieces.steps else (made.squared, made.power, made.largest)
        return pieces._replace(steps=(*pieces.steps, "Linear"), coded=made, nonzero=None, figures=figures)

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
        made = _made(quantize.quantize, table.palettes, self.dtype, mode=self.mode, search=self.search)
        return pieces._replace(steps=steps, lut=made, figures=None)


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
            _set(self, nbits=int(self.nbits))  # type: ignore[arg-type]
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
        if self.nbits is None or (self.mode == "kmeans" and weight.importance is not None):
            return None
        return palette_plan(weight.array, self.nbits, self.mode, *self._groups(weight), weight.opset)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
        axis, size = self._groups(weight)
        weights = _heavy(pieces, weight) if self.mode == "kmeans" else None
        steps = (*pieces.steps, "Palette")
        if pieces.coded is not None:
            return _of_integers(pieces, self, axis, size, weights)._replace(steps=steps)
        made = _made(
            palettize.palettize, pieces.values(), self.nbits, mode=self.mode, axis=axis, group_size=size,
            importance=weights,
        )  # fmt: skip
        figures = None if pieces.steps else (made.squared, made.power, made.largest)
        return pieces._replace(steps=steps, table=made, nonzero=None, figures=figures)

    def _groups(self, weight: Weight) -> tuple[int | None, int | None]:
        """(axis, channels that share a palette), or None for both."""
        if self.granularity != "per_grouped_channel":
            return None, None
        return weight.axes[1] if self.channel_axis is None else self.channel_axis, self.group_size


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
            if isinstance(value, np.generic):
                value = value.item()
                _set(self, **{name: value})
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
        for name in ("block", "dim"):
            if getattr(self, name) is not None:
                _set(self, **{name: as_integer(name, getattr(self, name))})
        if self.dim is not None and (
            as_integer("dim", self.dim) not in (0, 1) or (self.block is None and self.n_m is None)
        ):
            raise ValueError(f"dim: expected 0 or 1, with block or n_m, got {self.dim}")

    @property
    def needs_axes(self) -> bool:
        """See Recipe."""
        return False

    def plan(self, weight: Weight) -> Plan | None:
        """See Recipe."""
        if weight.importance is not None:
            return None
        self._require_consumers(weight)
        options = {name: getattr(self, name) for name in ("sparsity", "threshold", "n_m", "block", "dim")}
        least = self.least_sparsity if self.threshold is not None else 0.0
        return prune_plan(weight.array, options, least, weight.opset)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """See Recipe."""
        array = pieces.values()
        self._require_consumers(weight)
        made = _made(
            prune.prune, array, sparsity=self.sparsity, threshold=self.threshold, n_m=self.n_m, block=self.block,
            dim=self.dim,
        )  # fmt: skip
        if self.threshold is not None and made.sparsity < self.least_sparsity:
            raise NotCompressibleError(
                f"expected a sparsity of {self.least_sparsity:g} or more, got {made.sparsity:.4g}"
            )
        figures = None if pieces.steps else (made.squared, made.power, made.largest)
        nonzero = None if pieces.steps else made.nonzero
        return pieces._replace(steps=(*pieces.steps, "Prune"), bits=made.mask, nonzero=nonzero, figures=figures)

    def _require_consumers(self, weight: Weight) -> None:
        """Raise NotCompressibleError for what coremltools does not prune so."""
        if self.block is not None or self.n_m is not None:
            others = [use for use in weight.consumers if use not in (("conv", "weight"), ("linear", "weight"))]
            if others:
                raise NotCompressibleError(
                    f"expected only weights of conv and linear for blocks and n_m, got {'.'.join(others[0])}"
                )


_ORDERS = {
    ("Prune", "Palette"), ("Prune", "Linear"), ("Palette", "Linear"), ("Palette", "Prune"), ("Linear", "Prune"),
    ("Linear", "Palette"), ("Prune", "Palette", "Linear"), ("Palette", "Prune", "Linear"),
}  # fmt: skip


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
        _set(self, recipes=tuple(as_recipe(one) for one in self.recipes))
        names = tuple(type(one).__name__ for one in self.recipes)
        if names not in _ORDERS:
            orders = ", ".join(sorted(" + ".join(order) for order in _ORDERS))
            raise ValueError(f"recipes: expected one of {orders}, got {' + '.join(names) or 'none'}")
        last = self.recipes[-1]
        if isinstance(last, Linear) and "Palette" in names and last.granularity != "per_tensor":
            raise ValueError(f"Linear after Palette: expected granularity 'per_tensor', got {last.granularity!r}")

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


def _flat(recipe: Recipe) -> tuple[Recipe, ...]:
    return recipe.recipes if isinstance(recipe, Joint) else (recipe,)


def _made(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of `values`; what it refuses is a weight that cannot be compressed so."""
    try:
        return function(*arguments, **options)
    except ValueError as error:
        raise NotCompressibleError(str(error)) from None


def _heavy(pieces: Pieces, weight: Weight) -> Array | None:
    """The importance of the elements that a fit counts: none of those that are pruned."""
    if pieces.bits is None:
        return weight.importance
    mask = pieces.mask.astype(np.float32)
    return mask if weight.importance is None else mask * weight.importance


def _of_integers(pieces: Pieces, recipe: Palette, axis: int | None, size: int | None, weights: Array | None) -> Pieces:
    """Palettes of quantized integers. The scales then are those of palettes, which are repeated for each."""
    coded = cast(quantize.Quantized, pieces.coded)
    integers = coded.data.astype(np.float32)
    by = np.asarray(coded.scale, np.float64)
    for dim, length in enumerate(integers.shape):
        by = np.repeat(by, length // by.shape[dim], dim)
    if recipe.mode == "kmeans":
        weights = (by * by).astype(np.float32) * (1 if weights is None else weights)
    made = _made(
        palettize.palettize, integers, recipe.nbits, mode=recipe.mode, axis=axis, group_size=size, importance=weights
    )
    entries = np.rint(made.palettes).astype(coded.data.dtype)
    counts = coded.scale.shape
    groups = made.palettes.shape[: integers.ndim]
    for dim, (count, own) in enumerate(zip(counts, groups, strict=True)):
        if count > own:
            if count % own:
                raise NotCompressibleError(
                    f"expected scales that palettes can be repeated for, got {counts} and {groups}"
                )
            entries = np.repeat(entries, count // own, dim)
    wide = (*counts, 1, 1)
    point = None if coded.zero_point is None else coded.zero_point.reshape(wide)
    lut = coded._replace(data=entries, scale=coded.scale.reshape(wide), zero_point=point)
    return pieces._replace(coded=None, lut=lut, table=made._replace(palettes=entries, gap=float("nan")), figures=None)


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
    # 4.0 and True equal integers, and are none.
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")
