"""The choice of a recipe for each weight: the least error within a size, or the least size at a quality."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec, decibels
from ..arguments import in_unit_of
from ..closeness import hint
from ..lossy.unfit import UnfitError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor
from ..progress import ProgressCounter
from ..rewrite.changes import is_counted
from ..rewrite.parts import WeightParts
from ..selection import selector
from ..threads import sized
from ..wording import escape
from .candidates import KEPT, Candidate
from .choosing import Choice, ChoiceStep, Chosen, choose, choose_within, chosen_of, starts, walk
from .far_weights import FarWeights
from .linear_recipe import Linear
from .options import Errors, Goal
from .palette_recipe import Palette
from .recipe import Recipe, as_float
from .recompress import all_weights

Array = np.ndarray[Any, Any]

_MOST_ERROR = 1e100  # of weights that get one recipe: keeps sums over all weights and products with bytes finite
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


class Measured(NamedTuple):
    """What a recipe makes of a weight.

    Attributes:
        own_nbytes: of the parts that every weight has its own of, in the Program.
        shared_nbytes: of the parts that equal weights share.
        relative: squared error over power, weighted by the importance of the elements; or what `Errors` returned.
    """

    own_nbytes: int
    shared_nbytes: int
    relative: float


class WeightUnit(NamedTuple):
    """Weights that get the same recipe, because they share their bytes or have equal ones.

    Attributes:
        candidates: their numbers.
        element_count: those of weights with equal bytes once.
        recipes: one for each choice; None to leave the weight as it is.
        choices: bytes, and error relative to the power, times the sensitivity. For a quality, that of the worst of the
            different ones; else their sum, each times its elements and the operations that read it.
    """

    candidates: list[int]
    element_count: int
    recipes: list[Recipe | None]
    choices: list[Choice]


class Point(NamedTuple):
    """A point of a frontier.

    Attributes:
        nbytes: of all weights as stored.
        error: of the weights, divided by `Measurements.divisor`.
    """

    nbytes: int
    error: float


class Measurements(NamedTuple):
    """All that is known about a model whose weights were measured with every recipe.

    Attributes:
        units: of the weights that have a choice.
        fixed_nbytes: of all weights that have none.
        nbytes_now: of all weights, as they are now.
        divisor: of errors: the elements of the weights in `units`, for each operation that reads them;
            1 where `Errors` returns them.
    """

    units: list[WeightUnit]
    fixed_nbytes: int
    nbytes_now: int
    divisor: int


class RecipeChoice:
    """Chooses a recipe for each weight.

    Args:
        goal: None to measure only.
        recipes: to choose from; None for the usual ones.
        sensitivity: glob of names -> factor of the error; the first match applies.
        errors: returns the cost of each recipe; None for squared errors.

    Attributes:
        measurements: what was measured.
        chosen: the result.
        outputs_sqnr: what that costs by `errors.of_all`, in dB; None if there is none.
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
        self.measurements = Measurements([], 0, 0, 1)
        self.chosen: Chosen | None = None
        self.outputs_sqnr: float | None = None

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
        far: FarWeights | None = None,
    ) -> list[tuple[Candidate, str]]:
        """Return each candidate with its chosen option and "", or with the reason to leave it as it is.

        Args:
            firsts: for each candidate the number of the first that is alike.
            counter: counts each weight that is measured, and each that is left as it is.
            far: workers that measure unless `errors` is given; None for this process.

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
            return _measured(candidates[number], names[number], self._errors)

        if far is None or self._errors is not None:
            measured = sized(work, unique, lambda number: candidates[number].tensor.size)
        else:
            measured = far.each(_measured_far, candidates, unique, names.__getitem__, work)
        for number, row in zip(unique, measured, strict=True):
            rows[number] = row
            counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
        stored = _Stored(model)
        is_quality = self._goal is not None and self._goal.sqnr is not None
        shares = None if is_quality else _shares(candidates, firsts, self._errors)
        units, reasons = _units(candidates, firsts, rows, factors, stored, shares)
        free = sum(_raw_nbytes(unit.candidates, candidates, stored) for unit in units)
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
            found = [choose(choices, most, same)]
            found += [one for one in (chosen_of(choices, other) for other in same) if one.nbytes <= most]
        if self._of_all is None:
            return found[0]
        costs: list[float] = []
        unique = [number for number, first in enumerate(firsts) if first == number]
        for one in [*found, *[None] * (self.passes - 1 - len(found))]:
            if one is not None:
                values = _values(self.measurements.units, one.choices, candidates, firsts)
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
        points.append(_moved(points[-1], step, measurements.divisor))
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
    rows = [unit.choices[number] for unit, number in zip(measurements.units, choices, strict=True)]
    nbytes = measurements.fixed_nbytes + sum(row.nbytes for row in rows)
    return Point(nbytes, math.fsum(row.error for row in rows) / measurements.divisor)


def _moved(point: Point, step: ChoiceStep, count: int) -> Point:
    return Point(point.nbytes + step.nbytes, max(point.error - step.error / count, 0.0))


# ------------------------------------------------------------------------------------------------------------ measuring


def _measured(candidate: Candidate, names: Sequence[str], errors: Errors | None) -> list[Measured | UnfitError]:
    """What each option makes of a weight, or why it cannot be applied.

    Args:
        names: of the weights that become the same.
    """
    found: list[Measured | UnfitError] = []
    for number in range(len(candidate.options)):
        try:
            if errors is None and candidate.about.importance is None:
                made, relative = _measured_alone(candidate, number)
            else:
                made, relative = _measured_by(candidate, number, names, errors)
        except UnfitError as reason:
            found.append(UnfitError(str(reason)))
            continue
        own, shared = (
            sum(part.nbytes for part in made.parts if (part.array is not None) == is_own) for is_own in (True, False)
        )
        found.append(Measured(own, shared, relative))
    return found


def _measured_far(candidate: Candidate, names: Sequence[str], room: Any) -> list[Measured | UnfitError]:
    return _measured(candidate, names, None)


def _measured_alone(candidate: Candidate, number: int) -> tuple[WeightParts, float]:
    """Return the stored parts, and the squared error over the power; of the values only sums are kept."""
    about = candidate.about._replace(persistent=candidate.about.empty)  # the parts do not last
    made = candidate._replace(about=about).parts(None, number)
    if isinstance(made, UnfitError):
        raise made
    lost = made.lost()
    return made, _relative(lost.squared, lost.power)


def _measured_by(
    candidate: Candidate, number: int, names: Sequence[str], errors: Errors | None
) -> tuple[WeightParts, float]:
    """As `_measured_alone`, from the decoded values; with `errors`, the sum of what it returns for these weights."""
    pieces = candidate.pieces(number)
    made = pieces.parts(candidate.about.opset)
    if errors is None:
        lost = pieces.measured(candidate.about.importance)
        return made, _relative(lost.squared, lost.power)
    values = pieces.values()
    return made, math.fsum(min(_cost(errors, name, pieces.array, values), _MOST_ERROR) for name in names)


def _cost(errors: Errors, name: str, before: Array, after: Array) -> float:
    cost = as_float(f"errors of {name}", errors(name, before, after))
    if not cost >= 0:
        raise ValueError(escape(f"errors of {name}: expected zero or more, got {cost}"))
    return cost


def _relative(squared: float, power: float) -> float:
    return squared / power if power else math.inf if squared else 0.0


class _Stored:
    """Where the weights of a model are stored, and how many bytes all of them take.

    Args:
        model: opened with all constants and stored parts.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._users: dict[Any, int] = {}
        self._nbytes: dict[Any, int] = {}
        readers: dict[int, Any] = {}
        for tensor in model.tensors.values():
            constant, program = tensor.constant, cast(OpenProgram, tensor.program)
            if constant is None or not is_counted(tensor, program.scan.is_part(constant)):
                continue
            key = self._key(tensor, constant)
            if key not in self._nbytes and constant.storage == _codec.BLOB:
                reader = readers.setdefault(key[0], self._reader(tensor, constant))
                self._nbytes[key] = reader.record(constant.blob_offset).nbytes
            elif key not in self._nbytes:
                self._nbytes[key] = tensor.nbytes
        for weight in all_weights(model):
            for key in self.keys(weight):
                self._users[key] = self._users.get(key, 0) + 1
        self.nbytes = sum(self._nbytes.values())
        for number, reader in readers.items():
            for offset in reader.index["offset"].tolist():
                if (number, offset) not in self._nbytes:  # nothing refers to it, and it is kept
                    self.nbytes += reader.record(offset).nbytes

    def _reader(self, tensor: Tensor, constant: Any) -> Any:
        return self._model.package.reader(cast(OpenProgram, tensor.program).source, constant.text)

    def _key(self, tensor: Tensor, constant: Any) -> Any:
        if constant.storage == _codec.BLOB:
            return id(self._reader(tensor, constant)), constant.blob_offset
        return constant

    def keys(self, tensor: Tensor) -> set[Any]:
        """What identifies the stored bytes of a weight, or of its parts: equal for those that share a record."""
        rows = [tensor.constant] if tensor.chain is None else tensor.chain.stored()
        return {self._key(tensor, row) for row in rows}

    def nbytes_of(self, tensors: Sequence[Tensor]) -> int:
        """Return the number of bytes freed by removing these."""
        users: dict[Any, int] = {}
        for tensor in tensors:
            for key in self.keys(tensor):
                users[key] = users.get(key, 0) + 1
        return sum(self._nbytes.get(key, 0) for key, count in users.items() if count == self._users.get(key))


def _raw_nbytes(numbers: Sequence[int], candidates: Sequence[Candidate], stored: _Stored) -> int:
    return stored.nbytes_of([candidates[number].tensor for number in numbers])


def _units(
    candidates: Sequence[Candidate],
    firsts: Sequence[int],
    rows: Mapping[int, list[Measured | UnfitError]],
    factors: Sequence[float],
    stored: _Stored,
    shares: Mapping[int, int] | None,
) -> tuple[list[WeightUnit], dict[int, str]]:
    """Return the units, and the reason for each candidate that takes no recipe.

    Args:
        shares: factor of the error of each distinct weight; None: the error of a unit is that of its worst weight.
    """
    units: list[WeightUnit] = []
    reasons: dict[int, str] = {}
    for numbers in _groups(candidates, firsts, stored):
        different = sorted({firsts[number] for number in numbers})
        heaviest = {first: max(factors[n] for n in numbers if firsts[n] == first) for first in different}
        bases = {first: [_base(candidates[n]) for n in numbers if firsts[n] == first] for first in different}
        recipes: list[Recipe | None] = []
        choices: list[Choice] = []
        for recipe in dict.fromkeys(option.recipe for option in candidates[numbers[0]].options):
            found = [_of_recipe(recipe, candidates[first], rows[first]) for first in different]
            good = [one for one in found if isinstance(one, Measured) and math.isfinite(one.relative)]
            if len(good) < len(found):
                continue
            nbytes = sum(
                one.own_nbytes * len(bases[first]) + one.shared_nbytes * len(set(bases[first]))
                for first, one in zip(different, good, strict=True)
            )
            errors = {
                first: min(one.relative * heaviest[first], _MOST_ERROR)
                for first, one in zip(different, good, strict=True)
            }
            if shares is None:
                error = max(errors.values())
            else:
                error = min(math.fsum(shares[first] * error for first, error in errors.items()), _MOST_ERROR)
            recipes.append(recipe)
            choices.append(Choice(nbytes, error))
        if not recipes:
            reasons |= {number: _reason(rows[firsts[number]]) for number in numbers}
            continue
        if candidates[numbers[0]].may_stay:
            recipes.append(None)
            choices.append(Choice(_raw_nbytes(numbers, candidates, stored), 0.0))
        count = sum(candidates[first].tensor.size for first in different)
        units.append(WeightUnit(numbers, count, recipes, choices))
    return units, reasons


def _shares(candidates: Sequence[Candidate], firsts: Sequence[int], errors: Errors | None) -> dict[int, int]:
    """How much the errors of different weights count: their elements, once for each operation that reads them.

    All alike where `errors` knows better.
    """
    shares: dict[int, int] = {}
    for candidate, first in zip(candidates, firsts, strict=True):
        reads = candidate.tensor.size * max(len(candidate.about.consumers), 1)
        shares[first] = shares.get(first, 0) + reads if errors is None else 1
    return shares


def _values(
    units: Sequence[WeightUnit], choices: Sequence[int], candidates: Sequence[Candidate], firsts: Sequence[int]
) -> dict[str, Array]:
    """The values of the weights that choices change, by name."""
    recipes = {
        index: unit.recipes[number] for unit, number in zip(units, choices, strict=True) for index in unit.candidates
    }
    changed = [index for index in sorted(recipes) if recipes[index] is not None]
    unique = list(dict.fromkeys(firsts[index] for index in changed))

    def work(number: int) -> Array:
        options = [option.recipe for option in candidates[number].options]
        return candidates[number].pieces(options.index(cast(Recipe, recipes[number]))).values()

    values = dict(zip(unique, sized(work, unique, lambda n: candidates[n].tensor.size), strict=True))
    return {candidates[index].tensor.name: values[firsts[index]] for index in changed}


def _of_recipe(
    recipe: Recipe, candidate: Candidate, row: Sequence[Measured | UnfitError]
) -> Measured | UnfitError | None:
    return next((one for option, one in zip(candidate.options, row, strict=True) if option.recipe == recipe), None)


def _reason(row: Sequence[Measured | UnfitError]) -> str:
    found = next((str(one) for one in row if isinstance(one, UnfitError)), None)
    return found or "expected one recipe that fits all weights with these bytes, got none"


def _base(candidate: Candidate) -> Any:
    """What parts are stored beside: the models of a pipeline share none."""
    directory = cast(OpenProgram, candidate.tensor.program).directory
    return None if directory is None else directory.real()


def _groups(candidates: Sequence[Candidate], firsts: Sequence[int], stored: _Stored) -> list[list[int]]:
    """Numbers of the candidates that share a record or have equal bytes, and have the same recipes."""
    parents = list(range(len(candidates)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    by_record: dict[Any, int] = {}
    for number, one in enumerate(candidates):
        parents[root(number)] = root(firsts[number])
        for key in stored.keys(one.tensor):
            kind = key, tuple(option.recipe for option in one.options), one.may_stay
            parents[root(number)] = root(by_record.setdefault(kind, number))
    groups: dict[int, list[int]] = {}
    for number in range(len(candidates)):
        groups.setdefault(root(number), []).append(number)
    return list(groups.values())
