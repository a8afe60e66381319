"""Cuts are chosen as by trying all of them."""

import itertools
import random

import pytest

from milblob.chunking.choose import Course, cheapest_cuts, matching_cuts, smallest_limit


def course(seed, steps=9, shared=4):
    """Steps of random sizes that share some things, and some cuts that are not possible."""
    draw = random.Random(seed)
    own = [draw.randrange(1, 30) for _ in range(steps)]
    sizes = [draw.choice((0, 5, 60)) for _ in range(shared)]
    needs = [sorted(draw.sample(range(shared), draw.randrange(0, 3))) for _ in range(steps)]
    barred = frozenset(draw.sample(range(1, steps), 2))
    return Course(own, needs, sizes, [0, *(draw.randrange(1, 50) for _ in range(steps - 1)), 0], barred)


def size(one, start, stop):
    things = set().union(*one.needs[start:stop])
    return sum(one.own[start:stop]) + sum(one.sizes[thing] for thing in things)


def all_cuts(one, parts):
    possible = [cut for cut in range(1, len(one.own)) if cut not in one.barred]
    return list(itertools.combinations(possible, parts - 1))


def largest(one, cuts):
    return max(size(one, a, b) for a, b in itertools.pairwise((0, *cuts, len(one.own))))


def least(one, cuts):
    return min(size(one, a, b) for a, b in itertools.pairwise((0, *cuts, len(one.own))))


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
def test_starts_are_the_first_with_which_a_range_fits(seed):
    one = course(seed)
    for limit in (0, 20, 70, 150, 10_000):
        starts = one.starts(limit)
        for stop in range(1, len(one.own) + 1):
            fitting = [start for start in range(stop) if size(one, start, stop) <= limit]
            assert starts[stop] == min(fitting, default=stop)


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_smallest_limit_is_found_to_a_64th(seed, parts):
    one = course(seed)
    best = min(largest(one, cuts) for cuts in all_cuts(one, parts))
    total = size(one, 0, len(one.own))
    assert best <= smallest_limit(one, parts) <= best + max(total // parts // 64, 1)


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
def test_filling_takes_the_fewest_parts(seed):
    one = course(seed)
    for limit in (40, 90, 150, 400):
        fewest = next((n for n in range(1, 8) if any(largest(one, cuts) <= limit for cuts in all_cuts(one, n))), None)
        found = one.fill(limit)
        assert (None if found is None else len(found) + 1) == fewest
        if found is not None:
            assert largest(one, found) <= limit


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_cuts_are_the_cheapest_of_those_that_balance(seed, parts):
    one = course(seed)
    most = int(smallest_limit(one, parts) * 1.2)
    floor = int(size(one, 0, len(one.own)) / parts * 0.5)
    fitting = [cuts for cuts in all_cuts(one, parts) if largest(one, cuts) <= most]
    balanced = [cuts for cuts in fitting if least(one, cuts) >= floor]
    best = min(sum(one.cost[cut] for cut in cuts) for cuts in balanced or fitting)
    found = cheapest_cuts(one, parts)
    assert tuple(found) in (balanced or fitting)
    assert sum(one.cost[cut] for cut in found) == best


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
def test_a_limit_that_is_given_holds(seed):
    one = course(seed)
    limit = max(90, largest(one, [cut for cut in range(1, 9) if cut not in one.barred]))
    count = len(one.fill(limit)) + 1
    if count > 1:
        assert largest(one, cheapest_cuts(one, count, limit)) <= limit


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
def test_cuts_that_follow_put_the_fewest_bytes_on_the_wrong_side(seed):
    one = course(seed)
    draw = random.Random(seed)
    sides = [draw.choice("BA-") for _ in one.sizes]
    before = {thing for thing, side in enumerate(sides) if side == "B"}
    after = {thing for thing, side in enumerate(sides) if side == "A"}

    def wrong(cut):
        early, late = set().union(*one.needs[:cut]), set().union(*one.needs[cut:])
        return sum(one.sizes[thing] for thing in (early & after) | (late & before))

    (found,) = matching_cuts(one, [before], [after])
    possible = [cut for cut in range(1, len(one.own)) if cut not in one.barred]
    assert (wrong(found), one.cost[found]) == min((wrong(cut), one.cost[cut]) for cut in possible)
