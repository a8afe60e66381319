"""What each recipe makes of each weight of a model: its bytes and its error, for weights that share bytes together."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..arguments import as_float
from ..lossy.loss import Loss
from ..lossy.unfit import UnfitError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor
from ..progress import ProgressCounter
from ..rewrite.changes import is_counted
from ..rewrite.parts import WeightParts
from ..threads import sized
from ..wording import escape
from .candidates import Candidate
from .choosing import Point
from .options import Errors
from .recipe import Recipe
from .recompress import all_weights

Array = np.ndarray[Any, Any]

_MOST_ERROR = 1e100  # of weights that get one recipe: keeps sums over all weights and products with bytes finite


class Measured(NamedTuple):
    """What a recipe makes of a weight."""

    own_nbytes: int  # of the parts that every weight has its own of, in the Program
    shared_nbytes: int  # of the parts that equal weights share
    relative: float  # squared error over power, weighted by the importance of the elements; or what `Errors` returned


class WeightUnit(NamedTuple):
    """Weights that get the same recipe, because they share their bytes or have equal ones."""

    candidates: list[int]  # their numbers
    element_count: int  # those of weights with equal bytes once
    recipes: list[Recipe | None]  # one for each choice; None to leave the weight as it is
    # bytes, and error relative to the power, times the sensitivity. For a quality, that of the worst of the different
    # ones; else their sum, each times its elements and the operations that read it.
    choices: list[Point]


class Measurements(NamedTuple):
    """All that is known about a model whose weights were measured with every recipe."""

    units: list[WeightUnit]  # of the weights that have a choice
    fixed_nbytes: int  # of all weights that have none
    nbytes_now: int  # of all weights, as they are now
    # of errors: the elements of the weights in `units`, for each operation that reads them; 1 where `Errors` returns
    # them
    divisor: int


def measured(candidate: Candidate, names: Sequence[str], errors: Errors | None) -> list[Measured | UnfitError]:
    """What each option makes of a weight, or why it cannot be applied. `names`: of the weights that become the same."""
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


def measured_far(candidate: Candidate, names: Sequence[str], room: Any) -> list[Measured | UnfitError]:
    """As `measured`, as `FarWeights.each` calls it."""
    return measured(candidate, names, None)


def _measured_alone(candidate: Candidate, number: int) -> tuple[WeightParts, float]:
    """Return the stored parts, and the squared error over the power; of the values only sums are kept."""
    about = candidate.about._replace(persistent=candidate.about.empty)  # the parts do not last
    made = candidate._replace(about=about).parts(None, number)
    if isinstance(made, UnfitError):
        raise made
    lost = cast(Loss, made.loss)
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


class StoredWeights:
    """Where the weights of a model are stored, and how many bytes all of them take.

    `model`: opened with all constants and stored parts. `counter`: notes each tensor.
    """

    def __init__(self, model: Model, counter: ProgressCounter) -> None:
        self._model = model
        self._users: dict[Any, int] = {}
        self._nbytes: dict[Any, int] = {}
        readers: dict[int, Any] = {}
        for tensor in counter.noting(model.tensors.values()):
            constant, program = tensor.constant, cast(OpenProgram, tensor.program)
            if constant is None or not is_counted(tensor, program.scan.is_part(constant)):
                continue
            key = self._key(tensor, constant)
            if key not in self._nbytes and constant.storage == _codec.BLOB:
                reader = readers.setdefault(key[0], self._reader(tensor, constant))
                self._nbytes[key] = reader.record(constant.blob_offset).nbytes
            elif key not in self._nbytes:
                self._nbytes[key] = tensor.nbytes
        for weight in counter.noting(all_weights(model)):
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


def units_of(
    candidates: Sequence[Candidate],
    firsts: Sequence[int],
    rows: Mapping[int, list[Measured | UnfitError]],
    factors: Sequence[float],
    stored: StoredWeights,
    shares: Mapping[int, int] | None,
    counter: ProgressCounter,
) -> tuple[list[WeightUnit], dict[int, str]]:
    """Return the units, and the reason for each candidate that takes no recipe.

    `shares`: factor of the error of each distinct weight; None: the error of a unit is that of its worst weight.
    `counter`: notes each weight.
    """
    units: list[WeightUnit] = []
    reasons: dict[int, str] = {}
    for numbers in _groups(candidates, firsts, stored, counter):
        counter.note(candidates[numbers[0]].tensor.name)
        different = sorted({firsts[number] for number in numbers})
        heaviest = {first: max(factors[n] for n in numbers if firsts[n] == first) for first in different}
        bases = {first: [_base(candidates[n]) for n in numbers if firsts[n] == first] for first in different}
        recipes: list[Recipe | None] = []
        choices: list[Point] = []
        for recipe in dict.fromkeys(option.recipe for option in candidates[numbers[0]].options):
            found = [
                {option.recipe: one for option, one in zip(candidates[first].options, rows[first], strict=True)}.get(
                    recipe
                )
                for first in different
            ]
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
            choices.append(Point(nbytes, error))
        if not recipes:
            reasons |= {number: _reason(rows[firsts[number]]) for number in numbers}
            continue
        if candidates[numbers[0]].may_stay:
            recipes.append(None)
            choices.append(Point(stored.nbytes_of([candidates[number].tensor for number in numbers]), 0.0))
        count = sum(candidates[first].tensor.size for first in different)
        units.append(WeightUnit(numbers, count, recipes, choices))
    return units, reasons


def shares_of(candidates: Sequence[Candidate], firsts: Sequence[int], errors: Errors | None) -> dict[int, int]:
    """How much the errors of different weights count: their elements, once for each operation that reads them.

    All alike where `errors` knows better.
    """
    shares: dict[int, int] = {}
    for candidate, first in zip(candidates, firsts, strict=True):
        reads = candidate.tensor.size * max(len(candidate.about.consumers), 1)
        shares[first] = shares.get(first, 0) + reads if errors is None else 1
    return shares


def values_of(
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


def _reason(row: Sequence[Measured | UnfitError]) -> str:
    found = next((str(one) for one in row if isinstance(one, UnfitError)), None)
    return found or "expected one recipe that fits all weights with these bytes, got none"


def _base(candidate: Candidate) -> Any:
    """What parts are stored beside: the models of a pipeline share none."""
    directory = cast(OpenProgram, candidate.tensor.program).directory
    return None if directory is None else directory.real()


def _groups(
    candidates: Sequence[Candidate], firsts: Sequence[int], stored: StoredWeights, counter: ProgressCounter
) -> list[list[int]]:
    """Numbers of the candidates that share a record or have equal bytes, and have the same recipes."""
    parents = list(range(len(candidates)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    by_record: dict[Any, int] = {}
    for number, one in enumerate(counter.noting(candidates, lambda one: one.tensor.name)):
        parents[root(number)] = root(firsts[number])
        for key in stored.keys(one.tensor):
            kind = key, tuple(option.recipe for option in one.options), one.may_stay
            parents[root(number)] = root(by_record.setdefault(kind, number))
    groups: dict[int, list[int]] = {}
    for number in range(len(candidates)):
        groups.setdefault(root(number), []).append(number)
    return list(groups.values())
