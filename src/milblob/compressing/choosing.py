"""Choose one option for each unit so that the total error is least and the total size fits.

This is the multiple-choice knapsack problem, solved by the greedy method for its linear relaxation (Sinha and Zoltners,
1979): take the steps along the lower convex hull of (bytes, error) of each unit, greedy by error saved per byte. Each
point that this walk passes is a Lagrangian optimum: no choice of the same size has less error. Between two such points
the result exceeds the optimum by less than one step, and a model has many weights that are each small beside the whole,
so one step matters little. An exact solution needs time in proportion to the size in bytes. `Chosen.least` is the
optimum of the relaxation, a lower bound of the error.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..progress import NO_PROGRESS, ProgressCounter

_MOST_WALKS = 16
_NEAR = 1.001  # of an error to the least one: it is not worth another walk


class Point(NamedTuple):
    """A size and the error at it: of a unit with one of its choices, or of all weights of a model."""

    nbytes: int
    error: float  # zero or more; of a choice finite, of a model divided by `Measurements.divisor`


class ChoiceStep(NamedTuple):
    """A step of the walk: `unit` takes another choice, with `nbytes` more and `error` less."""

    unit: int  # number of the unit
    choice: int  # number of its choice after the step
    nbytes: int  # more than before, above zero
    error: float  # less than before, above zero


class Chosen(NamedTuple):
    """A choice for each unit."""

    choices: list[int]  # their numbers
    nbytes: int  # sums
    error: float
    least: float  # no choices of at most the size asked for have a smaller error than this


Unit = Sequence[Point]
"""Its choices."""


def hull(unit: Unit) -> list[int]:
    """Return the choices on the lower convex hull of (bytes, error), in order of bytes (Andrew's monotone chain)."""
    rising = sorted(range(len(unit)), key=lambda number: (unit[number], number))
    found: list[int] = []
    for number in rising:
        nbytes, error = unit[number]
        if found and error >= unit[found[-1]].error:
            continue  # more bytes for no less error
        while len(found) > 1:
            (first_nbytes, first_error), (last_nbytes, last_error) = unit[found[-2]], unit[found[-1]]
            falls = (last_error - error) * (last_nbytes - first_nbytes)
            if falls < (first_error - last_error) * (nbytes - last_nbytes):
                break
            found.pop()
        found.append(number)
    return found


def starts(units: Sequence[Unit]) -> list[int]:
    """Return the first choice of each unit in the walk: the fewest bytes and, among equal sizes, the least error."""
    return [min(range(len(unit)), key=lambda number: (unit[number], number)) for unit in units]


def walk(units: Sequence[Unit]) -> Iterator[ChoiceStep]:
    """Yield the steps along all hulls, greedy by error saved per byte. Each unit begins with its choice in `starts`."""
    hulls = [hull(unit) for unit in units]
    waiting: list[tuple[float, int, int]] = []

    def await_step(unit: int, place: int) -> None:
        if place < len(hulls[unit]):
            step = step_to(unit, place)
            heapq.heappush(waiting, (-step.error / step.nbytes, unit, place))

    def step_to(unit: int, place: int) -> ChoiceStep:
        before, after = units[unit][hulls[unit][place - 1]], units[unit][hulls[unit][place]]
        return ChoiceStep(unit, hulls[unit][place], after.nbytes - before.nbytes, before.error - after.error)

    for unit in range(len(units)):
        await_step(unit, 1)
    while waiting:  # one step per unit is queued, so the steps of a unit are in order even if rounding changes a slope
        _, unit, place = heapq.heappop(waiting)
        yield step_to(unit, place)
        await_step(unit, place + 1)


def choose(
    units: Sequence[Unit],
    most_nbytes: int,
    others: Iterable[Sequence[int]] = (),
    counter: ProgressCounter = NO_PROGRESS,
) -> Chosen:
    """Choose for a size.

    The walk takes every step that fits, and drops a unit once its next step does not fit. Then single units take any
    better choice that still fits, the greatest gain first. The error exceeds the least possible one by less than the
    error of the first step that did not fit; if all steps fit, the result is optimal. A large unit may block the walk,
    so the walk is repeated with that step taken first.

    The result is never worse than any of `others` that fits. If the limit is the size of one of `others`, the result is
    never worse than the result for the size of a smaller one.

    `units`: each with one choice or more. `most_nbytes`: limit of the total size. `others`: choices for all units,
    which are compared with the result. `counter`: notes each walk.
    Raises: ValueError: the smallest choices take more; the message gives their size.
    """
    smallest = chosen_of(units, starts(units))
    if smallest.nbytes > most_nbytes:
        message = f"size: expected {smallest.nbytes} bytes or more, which the smallest choices take, got {most_nbytes}"
        raise ValueError(message)
    fitting = [one for one in (chosen_of(units, other) for other in others) if one.nbytes <= most_nbytes]
    best = smallest
    for size in sorted({*(one.nbytes for one in fitting), most_nbytes}):
        found = [_filled(units, best, size), *counter.noting(_walked(units, size), lambda _: "")]
        found += [_filled(units, one, size) for one in fitting if one.nbytes == size]
        least = found[1].least
        best = min(found, key=lambda one: (one.error, one.nbytes))
    return best._replace(least=min(least, best.error))


def _walked(units: Sequence[Unit], most_nbytes: int) -> Iterator[Chosen]:
    """Yield the result of the walk, and then results with the first step that did not fit taken before all others.

    The first result starts from all choices, and its `least` is valid for this size. Yields more results until one is
    close to that bound.
    """
    taken: dict[int, int] = {}
    least = None
    for _ in range(_MOST_WALKS):
        choices = starts(units)
        for unit, number in taken.items():
            choices[unit] = number
        found = chosen_of(units, choices)
        room, gained, blocking = most_nbytes - found.nbytes, 0.0, None
        if room < 0:
            return
        closed = set(taken)
        for step in walk(units):
            if step.unit in closed:
                continue
            if step.nbytes <= room:
                choices[step.unit] = step.choice
                room -= step.nbytes
                gained += step.error
                continue
            if blocking is None:
                blocking = step
                if least is None:  # the optimum of the linear relaxation takes a fraction of this step
                    least = max(found.error - gained - step.error * room / step.nbytes, 0.0)
            closed.add(step.unit)
        result = _filled(units, chosen_of(units, choices), most_nbytes)
        least = result.error if least is None else least
        yield result._replace(least=least)
        if blocking is None or result.error <= least * _NEAR:
            return
        taken[blocking.unit] = blocking.choice


def chosen_of(units: Sequence[Unit], choices: Sequence[int]) -> Chosen:
    """Return choices with their sums; without a size limit `least` is 0."""
    rows = [unit[number] for unit, number in zip(units, choices, strict=True)]
    return Chosen(list(choices), sum(row.nbytes for row in rows), math.fsum(row.error for row in rows), 0.0)


def _filled(units: Sequence[Unit], chosen: Chosen, most_nbytes: int) -> Chosen:
    choices = list(chosen.choices)
    _fill(units, choices, most_nbytes - chosen.nbytes)
    return chosen_of(units, choices)


def _fill(units: Sequence[Unit], choices: list[int], room: int) -> None:
    """Improve single units while a better choice fits, the greatest gain first."""
    width = max(map(len, units), default=0)
    nbytes = np.full((len(units), width), np.iinfo(np.int64).max // 2)
    errors = np.full((len(units), width), np.inf)
    for number, unit in enumerate(units):
        nbytes[number, : len(unit)] = [choice.nbytes for choice in unit]
        errors[number, : len(unit)] = [choice.error for choice in unit]
    rows = np.arange(len(units))
    while units:
        extra = nbytes - nbytes[rows, choices][:, None]
        gains = np.where(extra <= room, errors[rows, choices][:, None] - errors, 0.0)
        row, column = divmod(int(np.argmax(gains)), width)
        if not gains[row, column] > 0:
            break
        room -= int(extra[row, column])
        choices[row] = column


def choose_within(units: Sequence[Unit], most_error: float) -> Chosen:
    """Choose the smallest option of each unit within an error; if none is within it, the option with the least error.

    The result is exact because the units are independent.
    """
    choices = []
    for unit in units:
        good = [number for number, choice in enumerate(unit) if choice.error <= most_error]
        if good:
            choices.append(min(good, key=lambda number: (unit[number], number)))
        else:
            choices.append(min(range(len(unit)), key=lambda number: (unit[number].error, unit[number].nbytes, number)))
    chosen = chosen_of(units, choices)
    return chosen._replace(least=chosen.error)
