"""Which choice each unit takes: against all combinations of small cases."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milblob.compressing.choosing import Point, choose, choose_within, chosen_of, hull, starts, walk

CHOICES = st.builds(Point, st.integers(0, 40), st.integers(0, 60).map(lambda eighths: eighths / 8))
UNITS = st.lists(st.lists(CHOICES, min_size=1, max_size=5), min_size=1, max_size=4)


def combinations(units):
    """(bytes, error) of every combination of choices."""
    for row in itertools.product(*units):
        yield sum(choice.nbytes for choice in row), sum(choice.error for choice in row)


def test_hull_of_an_example():
    unit = [
        Point(10, 0.0),
        Point(2, 5.0),
        Point(4, 3.5),
        Point(5, 1.0),
        Point(8, 0.9),
        Point(5, 1.5),
        Point(12, 0.0),
    ]
    assert hull(unit) == [1, 3, 0]  # 4 bytes lie above the line from 2 to 5, 8 above that from 5 to 10


@given(UNITS)
def test_hull_is_that_of_all_multipliers(units):
    """A choice on the hull is the best for some price of a byte, and whatever is the best for a price has no more bytes and error."""
    for unit in units:
        found = hull(unit)
        rows = [unit[number] for number in found]
        assert all(a.nbytes < b.nbytes and a.error > b.error for a, b in itertools.pairwise(rows))
        slopes = [(a.error - b.error) / (b.nbytes - a.nbytes) for a, b in itertools.pairwise(rows)]
        assert all(a > b for a, b in itertools.pairwise(slopes))
        for price in [*slopes, 0.0, 1e9, *(slope * 1.001 for slope in slopes)]:
            cost = min(choice.error + price * choice.nbytes for choice in unit)
            assert min(choice.error + price * choice.nbytes for choice in rows) == pytest.approx(cost)


@given(UNITS, st.integers(0, 160))
def test_error_is_within_one_step_of_the_least(units, most):
    fitting = [row for row in combinations(units) if row[0] <= most]
    if not fitting:
        with pytest.raises(ValueError, match=rf"size: expected {min(combinations(units))[0]} bytes or more"):
            choose(units, most)
        return
    found = choose(units, most)
    best = min(error for _, error in fitting)
    picked = [unit[number] for unit, number in zip(units, found.choices, strict=True)]
    assert (found.nbytes, found.error) == (sum(c.nbytes for c in picked), sum(c.error for c in picked))
    assert found.nbytes <= most
    assert found.least <= best + 1e-9 and best <= found.error
    room = most - sum(units[number][choice].nbytes for number, choice in enumerate(starts(units)))
    for step in walk(units):
        if step.nbytes > room:
            assert found.error <= best + step.error
            assert found.error < best + step.error or step.error == 0
            break
        room -= step.nbytes
    else:
        assert found.error == best == found.least


@given(UNITS, st.integers(0, 160))
def test_the_least_error_is_that_of_all_mixtures(units, most):
    """Of any two combinations, one that fits and one that does not: the line between them, at the size."""
    rows = set(combinations(units))
    fitting = [row for row in rows if row[0] <= most]
    if not fitting:
        return
    least = min(error for _, error in fitting)
    for nbytes, error in fitting:
        for more, less in rows:
            if more > most:
                least = min(least, error + (less - error) * (most - nbytes) / (more - nbytes))
    assert choose(units, most).least == pytest.approx(max(least, 0.0), abs=1e-9)


def test_the_least_error_of_an_example():
    assert choose([[Point(0, 1.0), Point(10, 0.0)]], 9) == ([0], 0, 1.0, pytest.approx(0.1))


@given(UNITS)
def test_what_the_walk_visits_is_best_at_its_size(units):
    choices = starts(units)
    rows = list(combinations(units))
    steps = [None, *walk(units)]
    for step in steps:
        if step is not None:
            choices[step.unit] = step.choice
        picked = [unit[number] for unit, number in zip(units, choices, strict=True)]
        nbytes, error = sum(c.nbytes for c in picked), sum(c.error for c in picked)
        assert error == min(other for size, other in rows if size <= nbytes)
        assert choose(units, nbytes).error == error
    assert error == sum(min(choice.error for choice in unit) for unit in units)


@given(UNITS, st.integers(0, 160))
def test_no_better_choice_of_one_unit_fits_what_is_left(units, most):
    if min(nbytes for nbytes, _ in combinations(units)) > most:
        return
    found = choose(units, most)
    for unit, number in zip(units, found.choices, strict=True):
        for choice in unit:
            fits = found.nbytes - unit[number].nbytes + choice.nbytes <= most
            assert not (fits and choice.error < unit[number].error)


def test_what_lies_above_the_hull_fills_the_rest():
    units = [[Point(0, 8.0), Point(4, 6.0), Point(10, 0.0)]]  # the middle is on no hull
    assert choose(units, 9).choices == [1]
    units = [[Point(0, 9.0), Point(10, 0.0)], [Point(0, 4.0), Point(6, 0.0)]]
    assert choose(units, 9).choices == [0, 1]  # the first step does not fit, the second does


def test_what_fits_to_the_byte_is_taken():
    units = [[Point(0, 8.0), Point(4, 6.0), Point(10, 0.0)]]
    assert [choose(units, size).choices for size in (3, 4, 9, 10)] == [[0], [1], [1], [2]]


def test_choices_above_the_hull_are_not_steps():
    assert hull([Point(0, 8.0), Point(4, 4.0), Point(8, 0.0)]) == [0, 2]


@given(UNITS, st.integers(0, 60).map(lambda eighths: eighths / 8))
def test_within_an_error_the_bytes_are_the_fewest(units, most):
    found = choose_within(units, most)
    allowed = [max(most, min(choice.error for choice in unit)) for unit in units]
    rows = [
        sum(choice.nbytes for choice in row)
        for row in itertools.product(*units)
        if all(choice.error <= limit for choice, limit in zip(row, allowed, strict=True))
    ]
    assert found.nbytes == min(rows)
    assert all(unit[n].error <= limit for unit, n, limit in zip(units, found.choices, allowed, strict=True))


@given(UNITS, st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=4))
def test_never_worse_than_others_that_fit_nor_than_at_their_smaller_sizes(units, numbers):
    others = [[number % len(unit) for number, unit in zip(row, units, strict=False)] for row in numbers]
    rows = [chosen_of(units, other) for other in others]
    found = [choose(units, row.nbytes, others) for row in sorted(rows, key=lambda row: row.nbytes)]
    assert all(one.error <= row.error for one in found for row in rows if row.nbytes <= one.nbytes)
    assert all(a.error >= b.error for a, b in itertools.pairwise(found))
    assert all(choose(units, row.nbytes + 1, others).error <= row.error for row in rows)


def test_others_make_room_for_a_large_unit():
    """Its step gains less for each byte than theirs and comes last, but fills the room that they leave."""
    small = [Point(0, 6.0), Point(11, 0.0)]
    units = [[Point(0, 54.5), Point(100, 0.0)], *[small] * 10]
    assert choose(units, 99).choices == [0, *[1] * 9, 0]
    assert choose(units, 100).choices == [1, *[0] * 10]


def test_nothing_to_choose():
    assert choose([], 0) == ([], 0, 0.0, 0.0)
    assert choose_within([], 1.0) == ([], 0, 0.0, 0.0)
    assert not math.isnan(choose([[Point(3, 0.0)]], 3).least)
