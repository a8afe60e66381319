"""What every recipe is: data that prints, compares and goes to JSON, and is applied to a weight in pieces."""

import json
import math
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..lossy.unfit import UnfitError
from ..rewrite.planned import PartsPlan
from ..values.strided import Empty, computed
from .pieces import LINKED_OPSET, CompressedParts, NotCompressibleError, Pieces, applied

if TYPE_CHECKING:
    from .recipes import Joint

Array = np.ndarray[Any, Any]

FIRST_OPSET, BLOCKS_OPSET = 16, LINKED_OPSET

ORDERS = {
    ("Prune", "Palette"), ("Prune", "Linear"), ("Palette", "Linear"), ("Palette", "Prune"), ("Linear", "Prune"),
    ("Linear", "Palette"), ("Prune", "Palette", "Linear"), ("Palette", "Prune", "Linear"),
}  # fmt: skip


class HeldBlocks(NamedTuple):
    """Integers and scales that the values of a weight are stored as somewhere.

    Attributes:
        dtype: of the integers.
        block: the size of a block in each dimension.
        read: called with what makes arrays, returns (integers, int8, in the shape of the weight; a scale for each
            block).
    """

    dtype: Any
    block: tuple[int, ...]
    read: Callable[[Empty], tuple[Array, Array]]


class Weight(NamedTuple):
    """What a recipe needs to know about a weight.

    Attributes:
        array: its values.
        axes: (input channels, output channels); (1, 0) if the operations do not agree and the recipe needs none.
        opset: iOS version of the opset that it is in.
        consumers: (operation, parameter) of each that reads it; none where they do not limit what is pruned.
        importance: of its elements, in its shape; None: all alike.
        groups: how many groups the convolutions that read it divide its first dimension into.
        pieces: what it is compressed to already, if the recipe goes on from that.
        nan: "keep" to keep NaN and infinity where the recipe can.
        blocks: integers and scales that its values are; None: they are floats.
        empty: makes all arrays as long as the weight.
        lasting: makes those that a plan keeps until it is carried out.
    """

    array: Array
    axes: tuple[int, int]
    opset: int
    consumers: tuple[tuple[str, str], ...]
    importance: Array | None = None
    groups: int = 1
    pieces: Pieces | None = None
    nan: str = "skip"
    blocks: HeldBlocks | None = None
    empty: Empty = np.empty
    lasting: Empty = np.empty

    @property
    def begun(self) -> Pieces:
        """What the first recipe begins with."""
        return self.pieces if self.pieces is not None else Pieces(self.array, empty=self.empty)


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

    def plan(self, weight: Weight) -> PartsPlan | None:
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
        if plan is not None:
            return applied(plan, weight.empty)
        return self.step(weight.begun, weight).compressed(weight.opset)

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        """Return what of a weight's use, as in Weight, makes a difference: weights alike in it can share the result."""
        return None

    @property
    def weighs(self) -> bool:
        """Whether the importance of elements makes a difference."""
        return True

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

    def _is_alone(self, weight: Weight) -> bool:
        """Whether the values of a weight are all that counts, which a plan needs."""
        is_weighed = self.weighs and weight.importance is not None
        return not is_weighed and weight.pieces is None and weight.nan != "keep"

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
        from .recipes import Joint  # which needs this class

        first, second = (one.recipes if isinstance(one, Joint) else (one,) for one in (self, other))
        return Joint((*first, *second))


def order_objection(names: tuple[str, ...]) -> str | None:
    """Return why recipes cannot follow each other like this; None if they can."""
    if len(names) == 1 or names in ORDERS:
        return None
    orders = ", ".join(sorted(" + ".join(order) for order in ORDERS))
    return f"recipes: expected one of {orders}, got {' + '.join(names) or 'none'}"


def made_by(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of `values`; an array that it cannot take is a weight that cannot be compressed so."""
    try:
        return function(*arguments, **options)
    except UnfitError as error:
        raise NotCompressibleError(str(error)) from None


def heavy_of(pieces: Pieces, weight: Weight) -> Array | None:
    """The importance of the elements that a fit counts: none of those that are pruned."""
    if pieces.bits is None:
        return weight.importance
    mask, heavy = pieces.mask, weight.importance
    if heavy is None:
        return mask
    return computed(mask.shape, np.float32, lambda box: mask[box] * heavy[box].astype(np.float32), pieces.empty)


def set_options(recipe: Recipe, **values: Any) -> None:
    """Normalise options of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(recipe, name, value)


def require_number(name: str, value: Any) -> None:
    """Refuse what is no number. Raises: TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")


def as_float(name: str, value: Any) -> float:
    """Return a number as a float; an integer beyond all floats is infinite. Raises: TypeError: no number."""
    require_number(name, value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def require_one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse what is none of a few choices. Raises: ValueError."""
    # 4.0 and True equal integers, and are none.
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r:.100}")
