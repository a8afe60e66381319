"""The base of all recipes: data with repr, equality and a JSON form, applied to a weight; and sequences of recipes."""

import json
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..arguments import require
from ..rewrite.parts import WeightParts
from ..wording import enumerated
from .pieces import LINKED_OPSET, Pieces
from .weight import Weight

FIRST_OPSET, BLOCKS_OPSET = 16, LINKED_OPSET

ORDERS = {
    ("Prune", "Palette"), ("Prune", "Linear"), ("Palette", "Linear"), ("Palette", "Prune"), ("Linear", "Prune"),
    ("Linear", "Palette"), ("Prune", "Palette", "Linear"), ("Palette", "Prune", "Linear"),
}  # fmt: skip
_STEPS = enumerated(sorted({name for order in ORDERS for name in order}), "and")


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

    def parts(self, weight: Weight) -> WeightParts:
        """Compress a weight, perhaps into parts that are not computed yet.

        Raises:
            UnfitError: it cannot be applied to this weight.
        """
        is_weighed = self.weighs and weight.importance is not None
        if not is_weighed and weight.pieces is None and weight.nan != "keep":
            streamed = self.streamed(weight)
            if streamed is not None:
                return streamed
        return self.step(weight.first_pieces, weight).parts(weight.opset)

    def streamed(self, weight: Weight) -> WeightParts | None:
        """Return parts that are not computed yet. Unless they are `is_sure`, computing them may raise UnfitError.

        Args:
            weight: only its values are used.

        Returns:
            None if more than a few values must be computed first.

        Raises:
            UnfitError: it cannot be applied to this weight.
        """
        return None

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        """Return what of a weight's use, as in Weight, makes a difference: weights alike in it can share the result."""
        return None

    @property
    def weighs(self) -> bool:
        """Whether the importance of elements makes a difference."""
        return True

    @property
    def can_keep_nan(self) -> bool:
        """Whether it keeps NaN and infinity with `nan="keep"`, at least with some of its options."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of compression that it applies, in order."""
        return (type(self).__name__,)

    @property
    def is_data(self) -> bool:
        """Whether the recipe comes back from its JSON: it holds no function."""
        return True

    def objection(self, before: tuple[str, ...]) -> str | None:
        """Return why the recipe cannot come after others; None if it can.

        Args:
            before: names of these.
        """
        return order_objection((*before, *self.names))

    def objection_to_others(self) -> str | None:
        """Return why the recipe cannot be applied together with others; None if it can."""
        return None

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        """Take the pieces that the recipes before have made, and return those of the next.

        Raises:
            UnfitError: it cannot be applied to this weight.
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
        first, second = (one.recipes if isinstance(one, Joint) else (one,) for one in (self, other))
        return Joint((*first, *second))


@dataclass(frozen=True, repr=False)
class Joint(Recipe):
    """Several recipes, one after the other, as coremltools' joint compression has them: `Prune(0.5) + Palette(4)`.

    Attributes:
        recipes: in order. What is pruned can be palettized or quantized, and the other way round; Linear after a
            Palette quantizes its entries (if there are 10 or more), and a Palette after Linear holds integers.

    Examples:
        >>> recipe = milblob.Prune(0.5) + milblob.Palette(4)
        >>> recipe.recipes[0], recipe.names
        (Prune(sparsity=0.5, threshold=None, n_m=None, block=None, dim=None, min_sparsity=0.5), ('Prune', 'Palette'))
        >>> report = milblob.compress("states.mlpackage", "small.mlpackage", recipe, scope=milblob.Scope(min_size=0))
        >>> report.weights[0].op
        'constexpr_sparse_to_dense'
    """

    recipes: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        require("recipes", self.recipes, list | tuple, "a list of recipes")
        for one in self.recipes:
            require("recipes", one, Recipe, _STEPS)
        if any(isinstance(one, Joint) for one in self.recipes):
            raise nested_error()
        set_options(self, recipes=tuple(self.recipes))
        names = self.names
        message = self.objection(()) if names in ORDERS else order_objection(names)
        if message is not None:
            raise ValueError(message)

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        return tuple(one.depends_on(axes, consumers, groups) for one in self.recipes)

    @property
    def weighs(self) -> bool:
        return any(one.weighs for one in self.recipes)

    @property
    def can_keep_nan(self) -> bool:
        return any(one.can_keep_nan for one in self.recipes)

    @property
    def is_data(self) -> bool:
        return all(one.is_data for one in self.recipes)

    def objection(self, before: tuple[str, ...]) -> str | None:
        for one in self.recipes:
            message = one.objection(before) or one.objection_to_others()
            if message is not None:
                return message
            before = (*before, *one.names)
        return None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for one in self.recipes for name in one.names)

    @property
    def opset(self) -> int:
        return BLOCKS_OPSET

    @property
    def needs_axes(self) -> bool:
        return any(one.needs_axes for one in self.recipes)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        for one in self.recipes:
            pieces = one.step(pieces, weight)
        return pieces

    def to_dict(self) -> dict[str, Any]:
        return {"recipe": "Joint", "recipes": [one.to_dict() for one in self.recipes]}

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.recipes))


def nested_error() -> ValueError:
    """Return the error about a Joint inside a Joint."""
    return ValueError(f"recipes: expected {_STEPS}, got a Joint")


def order_objection(names: tuple[str, ...]) -> str | None:
    """Return why recipes cannot follow each other like this; None if they can."""
    if len(names) == 1 or names in ORDERS:
        return None
    orders = ", ".join(sorted(" + ".join(order) for order in ORDERS))
    return f"recipes: expected one of {orders}, got {' + '.join(names) or 'none'}"


def set_options(made: object, **values: Any) -> None:
    """Normalise options of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(made, name, value)


def require_one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse what is none of a few choices. Raises: ValueError."""
    # 4.0 and True equal integers, and are none.
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r:.100}")
