"""Arguments of `compress` besides a recipe: the goal, the selection of weights, and the guidance."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import Names, Nbytes, as_count, as_float, as_integer, as_mapping, parse_nbytes, require_calls
from ..selection import Select, selector
from .parse_recipe import as_recipe
from .recipe import Recipe, set_options

Array = np.ndarray[Any, Any]

MIN_SIZE = 2048
"""coremltools' threshold: only weights of more elements are compressed."""

Errors = Callable[[str, Array, Array], float]
"""Called as `errors(name, before, after)` with the values of a weight before and after compression. Returns the cost,
zero or more, which replaces the squared error over the power. Called in several threads at a time. A method `of_all`,
if there is one, is called with new values by name and returns their joint cost."""


@dataclass(frozen=True)
class Goal:
    """A size or a quality to reach: each weight gets one of several recipes, or is left as it is.

    Exactly one of `size`, `bits` and `sqnr` is given.

    Attributes:
        size: all weights of the result take at most this many bytes as stored; a text such as "40MB" (of 2**20) becomes
            the number of bytes.
        bits: the weights that can be compressed take at most this many bits for each element, on average.
        sqnr: each weight is compressed with at least this signal-to-quantization-noise ratio in dB, in the fewest
            bytes, or is left as it is.
        recipes: to choose from: recipes or their names; None: some from 8 to 2 bits that the opset can hold.
        sensitivity: glob of names -> factor of the error of these weights; the first that fits is used, else 1.
        errors: called as `errors(name, before, after)` with the values of a weight and those that a recipe makes of
            them; returns what that costs, zero or more, in place of the squared error over the power (the dB are those
            of this number). Called in several threads at a time. If it has a method `of_all`, called with values by
            name, the final choice uses it: what was chosen for `size` or `bits` is compared with each recipe alone
            that fits. `milblob.OutputSensitivity` makes such an object.

    Raises:
        ValueError: none or several of the first three; a number that is negative or not finite; no recipe.
        TypeError: another type. As recipes from their names.

    Examples:
        >>> goal = milblob.Goal(size="60KB", recipes=["int8", "palette4"])
        >>> goal.nbytes
        61440
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", goal)
        >>> report.nbytes_after <= goal.nbytes
        True
    """

    size: str | int | None = None
    bits: float | None = None
    sqnr: float | None = None
    recipes: Iterable[Any] | None = None
    sensitivity: Mapping[str, float] | None = None
    errors: Errors | None = None

    @property
    def nbytes(self) -> int | None:
        """`size` in bytes."""
        return self.size  # type: ignore[return-value]  # set so when it was made

    def __post_init__(self) -> None:
        given = [name for name in ("size", "bits", "sqnr") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"goal: expected one of size, bits and sqnr, got {' and '.join(given) or 'none'}")
        if self.size is not None:
            size: Any = self.size
            nbytes = parse_nbytes(size) if isinstance(size, str) else size
            if not isinstance(nbytes, Nbytes):
                nbytes = as_integer("size", size, "bytes, or a text such as '40MB'")
            if nbytes < 0:
                raise ValueError(f"size: expected 0 bytes or more, got {nbytes}")
            set_options(self, size=nbytes)
        elif self.bits is not None:
            set_options(self, bits=_number("bits", self.bits, 0.0))
        else:
            set_options(self, sqnr=_number("sqnr", self.sqnr, -math.inf))
        require_calls(errors=self.errors)
        set_options(self, recipes=as_ladder(self.recipes), sensitivity=as_sensitivity(self.sensitivity))


@dataclass(frozen=True)
class Scope:
    """Which weights are compressed, and which of them with a recipe of their own.

    Attributes:
        select: glob, several, or a function of a name: the weights that are tried; None: all.
        op_types: type of an operation, such as "conv" -> recipe for the weights that it reads; None: they are left as
            they are.
        per_name: glob of names -> recipe, or None; the first that fits is used, before `op_types`. Where none fits, the
            whole name of an operation means the weights that it reads.
        min_size: only weights of more elements than this are compressed.

    Raises:
        TypeError: another type. ValueError: an unknown recipe, a negative size.

    Examples:
        >>> scope = milblob.Scope(select="layers_0_*", per_name={"*_mlp_*": "palette4"})
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8", scope=scope)
        >>> [(weight.name, weight.op) for weight in report.weights][-2:]
        [('layers_0_mlp_up_weight', 'constexpr_lut_to_dense'), ('layers_0_mlp_down_weight', 'constexpr_lut_to_dense')]
    """

    select: Select = None
    op_types: Mapping[str, Any] | None = None
    per_name: Mapping[str, Any] | None = None
    min_size: int = MIN_SIZE

    def __post_init__(self) -> None:
        selector(self.select)
        types = as_mapping("op_types", self.op_types, "a mapping from types of operations to recipes")
        names = as_mapping("per_name", self.per_name, "a mapping from globs of names to recipes")
        set_options(
            self,
            op_types={name: _recipe(one) for name, one in types.items()},
            per_name={name: _recipe(one) for name, one in names.items()},
            min_size=as_count("min_size", self.min_size),
        )

    @property
    def has_recipes(self) -> bool:
        """Whether some weights have a recipe of their own."""
        return any([*(self.op_types or {}).values(), *(self.per_name or {}).values()])


@dataclass(frozen=True)
class Guidance:
    """Values that guide a compression: new values of the weights, and the importance of their elements.

    Attributes:
        weights: new values for the model, as for `refit`: a mapping of arrays or the path of a file, such as .gguf. All
            weights that are named take them, cast to their dtypes; then the model is compressed. Integers and scales of
            Q8_0 and Q4_0 are kept as they are where the recipe has the same blocks (int8 or int4, 32 along the last
            dimension). Without a recipe, goal or plan, each weight that the file has in such blocks gets this recipe.
        mapping: with `weights`: name in them -> name in the model, as for `refit`.
        importance: name -> importance of the elements of a weight, zero or more: an array of its shape, or one number
            for each input channel. It weighs the errors of palettes, of the search of scales and of a goal; what is
            pruned is the magnitude times its root.

    Raises:
        ValueError: `mapping` without `weights`. TypeError: another type.

    Examples:
        >>> guidance = milblob.Guidance(importance={"head_weight": np.arange(48)})
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "palette4", guidance=guidance)
        >>> len(report.weights)
        26
    """

    weights: Any = None
    mapping: Mapping[str, Names] | None = None
    importance: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        as_mapping("importance", self.importance, "arrays by name of weight")
        as_mapping("mapping", self.mapping, "a mapping of names")
        if self.weights is None and self.mapping is not None:
            raise ValueError("mapping: expected weights, whose names it maps, got none")


def as_sensitivity(given: Mapping[str, Any] | None) -> dict[str, float]:
    """Return factors, checked. Raises: as `Goal`."""
    factors = as_mapping("sensitivity", given, "a mapping from globs of names to numbers")
    return {name: _number(f"sensitivity of {name}", factor, 0.0) for name, factor in factors.items()}


def as_ladder(given: Iterable[Any] | None) -> tuple[Recipe, ...] | None:
    """Return recipes to choose from, each once; None for the usual ones. Raises: as `as_recipe`; ValueError: none."""
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"recipes: expected several recipes, got {type(given).__name__}")
    found = tuple(dict.fromkeys(as_recipe(one) for one in given))
    if not found:
        raise ValueError("recipes: expected one or more to choose from, got none")
    return found


def _recipe(value: Any) -> Recipe | None:
    return None if value is None else as_recipe(value)


def _number(what: str, value: Any, least: float) -> float:
    number = as_float(what, value)
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{what}: expected a finite number{' of 0 or more' if least == 0 else ''}, got {value!s:.40}")
    return number
