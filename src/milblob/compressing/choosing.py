"""One of several choices for each of many things, with the least error at a size: convex hulls and a greedy walk.

The best choice for one multiplier of the size (Lagrange's) is on the lower convex hull of (bytes, error), so a walk
along all hulls, the steepest step first, passes through solutions that no other of their size beats. Between two of
them the walk may miss the best by less than the step that no longer fits; `Chosen.least` says how good one could be.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Choice(NamedTuple):
    """What something could become.

    Attributes:
        nbytes: that it then takes.
        error: finite, zero or more.
    """

    nbytes: int
    error: float


class ChoiceStep(NamedTuple):
    """A step of the walk: `unit` takes another choice, with `nbytes` more and `error` less.

    Attributes:
        unit: number of the thing.
        choice: number of its choice after the step.
        nbytes: more than before, above zero.
        error: less than before, above zero.
    """

    unit: int
    choice: int
    nbytes: int
    error: float


class Chosen(NamedTuple):
    """A choice for each unit.

    Attributes:
        choices: their numbers.
        nbytes, error: sums.
        least: no choices of at most the size asked for have a smaller error than this.
    """

    choices: list[int]
    nbytes: int
    error: float
    least: float


Unit = Sequence[Choice]


def hull(unit: Unit) -> list[int]:
    """Return the choices on the lower convex hull: bytes rise, errors fall, and fall less and less for each byte."""
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
    """Return the choice of each unit that the walk begins with: the fewest bytes, of these the least error."""
    return [min(range(len(unit)), key=lambda number: (unit[number], number)) for unit in units]


def walk(units: Sequence[Unit]) -> Iterator[ChoiceStep]:
    """Yield the steps along all hulls, the one with most error less for each byte first. Units begin as in `starts`."""
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
    while waiting:  # of each unit one step waits, so its steps come in their order whatever rounding does to the slopes
        _, unit, place = heapq.heappop(waiting)
        yield step_to(unit, place)
        await_step(unit, place + 1)


def choose(units: Sequence[Unit], most_nbytes: int) -> Chosen:
    """Choose for a size.

    The walk goes on as long as its steps fit, and leaves out units whose next one does not. Then single units take any
    better choice that still fits, the greatest gain first, until none does. The error is above the least possible by
    less than that of the first step that did not fit, and equal to it if all did.

    Args:
        units: each with one choice or more.
        most_nbytes: of all together.

    Raises:
        ValueError: the smallest choices take more; the message says how much.
    """
    choices = starts(units)
    nbytes = sum(unit[number].nbytes for unit, number in zip(units, choices, strict=True))
    if nbytes > most_nbytes:
        raise ValueError(f"size: expected {nbytes} bytes or more, which the smallest choices take, got {most_nbytes}")
    error = math.fsum(unit[number].error for unit, number in zip(units, choices, strict=True))
    room, least, gained = most_nbytes - nbytes, None, 0.0
    closed: set[int] = set()
    for step in walk(units):
        if step.nbytes <= room and step.unit not in closed:
            choices[step.unit] = step.choice
            room -= step.nbytes
            gained += step.error
            continue
        if least is None:  # a part of this step would give the least error of all mixtures
            least = error - gained - step.error * room / step.nbytes
        closed.add(step.unit)
    room = _fill(units, choices, room)
    error = math.fsum(unit[number].error for unit, number in zip(units, choices, strict=True))
    return Chosen(choices, most_nbytes - room, error, error if least is None else max(least, 0.0))


def _fill(units: Sequence[Unit], choices: list[int], room: int) -> int:
    """Let single units take better choices that fit, the greatest gain first; return the room that is left."""
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
    return room


def choose_within(units: Sequence[Unit], most_error: float) -> Chosen:
    """Choose the fewest bytes such that no unit has more error than this; where all choices have more, the least.

    The result is exact: the units do not depend on each other.
    """
    choices = []
    for unit in units:
        good = [number for number, choice in enumerate(unit) if choice.error <= most_error]
        if good:
            choices.append(min(good, key=lambda number: (unit[number], number)))
        else:
            choices.append(min(range(len(unit)), key=lambda number: (unit[number].error, unit[number].nbytes, number)))
    nbytes = sum(unit[number].nbytes for unit, number in zip(units, choices, strict=True))
    error = math.fsum(unit[number].error for unit, number in zip(units, choices, strict=True))
    return Chosen(choices, nbytes, error, error)
