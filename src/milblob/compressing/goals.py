"""The choice of a recipe for each weight: the least error within a size, or the least size at a quality."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from .. import decibels
from ..arguments import as_float, in_unit_of
from ..closeness import hint
from ..lossy.unfit import UnfitError
from ..model.model import Model
from ..progress import ProgressCounter
from ..selection import selector
from ..wording import escape
from .candidates import KEPT, Candidate
from .choosing import Chosen, Point, choose, choose_within, chosen_of, starts, walk
from .far_weights import FarWeights
from .linear_recipe import Linear
from .measuring import Measured, Measurements, StoredWeights, measured, measured_far, shares_of, units_of, values_of
from .options import Errors, Goal
from .palette_recipe import Palette
from .recipe import Recipe

Array = np.ndarray[Any, Any]

_MOST_BITS = 2.0**32  # per element: more than any weight takes, and keeps the product with the element count finite

LADDER: tuple[Recipe, ...] = (
    Linear("int8"),
    Palette(8),
    Palette(6),
    Palette(4, granularity="per_grouped_channel", group_size=16),
    Palette(4),
    Palette(3),
    Palette(2),
)
"""The default recipes to choose from; before iOS 18 only those that the system can hold."""


class RecipeChoice:
    """Chooses a recipe for each weight.

    Args:
        goal: None to measure only.
        recipes: to choose from; None for the usual ones.
        sensitivity: glob of names -> factor of the error; the first match applies.
        errors: returns the cost of each recipe; None for squared errors.
    """

    def __init__(
        self,
        goal: Goal | None,
        recipes: Iterable[Recipe] | None,
        sensitivity: Mapping[str, float] | None = None,
        errors: Errors | None = None,
    ) -> None:
        self._errors = errors
        self._goal = goal
        self._given = None if recipes is None else tuple(recipes)
        self._sensitivity = [(glob, selector(glob), factor) for glob, factor in (sensitivity or {}).items()]
        self._of_all: Callable[[Mapping[str, Array]], float] | None = getattr(errors, "of_all", None)
        self.measurements = Measurements([], 0, 0, 1)  # what was measured
        self.chosen: Chosen | None = None  # the result
        self.outputs_sqnr: float | None = None  # what that costs by `errors.of_all`, in dB; None if there is none

    @property
    def passes(self) -> int:
        """How often `choose` goes through the distinct candidates and advances the counter."""
        if self._goal is None or self._of_all is None:
            return 1
        return 2 if self._goal.sqnr is not None else 2 + len(LADDER if self._given is None else self._given)

    def recipes(self, opset: int) -> tuple[Recipe, ...]:
        """Return those to choose from."""
        return self._given if self._given is not None else tuple(one for one in LADDER if one.opset <= opset)

    def choose(
        self,
        model: Model,
        candidates: list[Candidate],
        firsts: list[int],
        counter: ProgressCounter,
        far: FarWeights,
    ) -> list[tuple[Candidate, str]]:
        """Return each candidate with its chosen option and "", or with the reason to leave it as it is.

        Args:
            firsts: for each candidate the number of the first that is alike.
            counter: counts each weight that is measured, and each that is left as it is.
            far: measure; this process does if `errors` is given.

        Raises:
            ValueError: a size that cannot be reached; the least that can is named. A sensitivity of nothing.
        """
        factors = self._factors(model, candidates)
        unique = [number for number, first in enumerate(firsts) if first == number]
        rows: dict[int, list[Measured | UnfitError]] = {}
        names: dict[int, list[str]] = {}
        for candidate, first in zip(candidates, firsts, strict=True):
            names.setdefault(first, []).append(candidate.tensor.name)

        def work(number: int) -> list[Measured | UnfitError]:
            return measured(candidates[number], names[number], self._errors)

        far = far if self._errors is None else far._replace(workers=None)
        found = far.each(measured_far, candidates, unique, names.__getitem__, work)
        for number, row in zip(unique, found, strict=True):
            rows[number] = row
            counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
        stored = StoredWeights(model, counter)
        is_quality = self._goal is not None and self._goal.sqnr is not None
        shares = None if is_quality else shares_of(candidates, firsts, self._errors)
        units, reasons = units_of(candidates, firsts, rows, factors, stored, shares, counter)
        free = sum(stored.nbytes_of([candidates[number].tensor for number in unit.candidates]) for unit in units)
        used = {firsts[number] for unit in units for number in unit.candidates}
        count = sum(shares[first] for first in used) if shares is not None and self._errors is None else 1
        self.measurements = Measurements(units, stored.nbytes - free, stored.nbytes, max(count, 1))
        result = [(candidate, reasons.get(number, "")) for number, candidate in enumerate(candidates)]
        if self._goal is None:
            return [(candidate, reason or KEPT) for candidate, reason in result]
        self.chosen = self._solve(self._goal, candidates, firsts, counter)
        for unit, number in zip(units, self.chosen.choices, strict=True):
            recipe = unit.recipes[number]
            for index in unit.candidates:
                one = candidates[index]
                if recipe is None:
                    result[index] = one, KEPT
                    counter.add_tensor(one.tensor.name, one.tensor) if firsts[index] == index else None
                    continue
                option = next(option for option in one.options if option.recipe == recipe)
                result[index] = one._replace(options=(option,)), ""
        for number in unique:
            if number in reasons:
                counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
        return result

    def _factors(self, model: Model, candidates: list[Candidate]) -> list[float]:
        """The factor of each candidate."""
        names = [one.tensor.name for one in candidates]
        for glob, is_named, _ in self._sensitivity:
            if not any(map(is_named, names)):
                message = f"sensitivity: expected names of weights that can be compressed in {model.path}, got {glob!r}"
                raise ValueError(escape(f"{message}{hint(glob.strip('*'), names)}"))
        return [next((factor for _, is_named, factor in self._sensitivity if is_named(name)), 1.0) for name in names]

    def _solve(self, goal: Goal, candidates: list[Candidate], firsts: list[int], counter: ProgressCounter) -> Chosen:
        """Solve the multiple-choice knapsack problem for the goal (see `choosing`).

        Where `errors` can measure all weights together, the result is compared with one recipe for all weights.
        """
        choices = [unit.choices for unit in self.measurements.units]
        same = list(alike(self.measurements).values())
        if goal.sqnr is not None:
            found = [choose_within(choices, 10 ** min(-goal.sqnr / 10, 300.0))]  # more than any error
        else:
            most = self._most_nbytes(goal)
            found = [choose(choices, most, same, counter)]
            found += [one for one in (chosen_of(choices, other) for other in same) if one.nbytes <= most]
        if self._of_all is None:
            return found[0]
        costs: list[float] = []
        unique = [number for number, first in enumerate(firsts) if first == number]
        for one in [*found, *[None] * (self.passes - 1 - len(found))]:
            if one is not None:
                values = values_of(self.measurements.units, one.choices, candidates, firsts)
                costs.append(as_float("errors.of_all", self._of_all(values)))
            for number in unique:
                counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
        self.outputs_sqnr = decibels.of_power(1.0, min(costs))
        return found[costs.index(min(costs))]

    def _most_nbytes(self, goal: Goal) -> int:
        """The bytes that the units may take."""
        units, fixed = self.measurements.units, self.measurements.fixed_nbytes
        choices = [unit.choices for unit in units]
        smallest = sum(unit[number].nbytes for unit, number in zip(choices, starts(choices), strict=True))
        if goal.nbytes is not None:
            if goal.nbytes < fixed + smallest:
                needed, rest, got = (
                    in_unit_of(goal.nbytes, nbytes) for nbytes in (fixed + smallest, fixed, int(goal.nbytes))
                )
                message = f"size: expected {needed} or more, which the smallest recipes take"
                raise ValueError(f"{message} ({rest} of them for what cannot be compressed), got {got}")
            return goal.nbytes - fixed
        count = sum(unit.element_count for unit in units)
        most = int(min(cast(float, goal.bits), _MOST_BITS) * count / 8)
        if most < smallest:
            least = math.ceil(8000 * smallest / count) / 1000
            raise ValueError(f"bits: expected {least:g} or more, which the smallest recipes take, got {goal.bits:g}")
        return most


def walked(measurements: Measurements) -> list[Point]:
    """Return the points that the walk passes through, from the fewest bytes to the least error."""
    units = [unit.choices for unit in measurements.units]
    choices = starts(units)
    points = [point_of(measurements, choices)]
    for step in walk(units):
        nbytes, error = points[-1]
        points.append(Point(nbytes + step.nbytes, max(error - step.error / measurements.divisor, 0.0)))
        choices[step.unit] = step.choice
    points[-1] = point_of(measurements, choices)  # without the rounding of many differences
    return points


def alike(measurements: Measurements) -> dict[Recipe, list[int]]:
    """Return, for each recipe, the choices with that recipe where possible, and the least error for other weights."""
    units = measurements.units
    found: dict[Recipe, list[int]] = {}
    for recipe in dict.fromkeys(one for unit in units for one in unit.recipes if one is not None):
        best = [min(range(len(unit.choices)), key=lambda n: (unit.choices[n].error, n)) for unit in units]
        found[recipe] = [
            unit.recipes.index(recipe) if recipe in unit.recipes else number
            for unit, number in zip(units, best, strict=True)
        ]
    return found


def point_of(measurements: Measurements, choices: Sequence[int]) -> Point:
    """Return the total size and error of choices for all units."""
    chosen = chosen_of([unit.choices for unit in measurements.units], choices)
    return Point(measurements.fixed_nbytes + chosen.nbytes, chosen.error / measurements.divisor)
