"""The two tiers of tests: what `make test` has time for, and all of it (`make thorough`, which sets MILBLOB_THOROUGH=1).

Tests marked `thorough` run in the second tier only (conftest.py); `some` marks most cases of a table so. Of a product of
parameters the first tier runs each value of each parameter once, not each combination. Of more than `MOST` of these cases it
runs `FEW`, spread evenly (`first_tier`): the mark `sample(count)` sets another number for both, and `every` keeps all rows of a table in which
each row is a rule or a finding of its own. Tests of both tiers make the same assertions; `sized` and `share` choose how many
random inputs they draw, and how large their files are.
With MILBLOB_THOROUGH=cases all tests run, with the inputs of the first tier: under sanitizers there is no time for more.
"""

import os
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings

IS_THOROUGH = os.environ.get("MILBLOB_THOROUGH") in ("1", "cases")
MOST, FEW = 5, 3
"""The first tier runs up to 5 cases of a test that has neither `sample` nor `every`; of more it runs 3."""
EVERY = {"tier", "every_way"}
"""Fixtures with several values that each promise something: tests that use them are as those marked `every`."""
LONGEST = "test_faults.py"
"""A case of it takes minutes in `make thorough`."""
IS_LARGE = os.environ.get("MILBLOB_THOROUGH") == "1"


def sized(quick, thorough):
    """Return the first of two counts or sizes in `make test`, the second in `make thorough`."""
    return thorough if IS_LARGE else quick


def some(cases, count=None, *, named=()):
    """Return cases for `parametrize`: all run in `make thorough`, and some of them in `make test`.

    Args:
        cases: values; a tuple has a value for each of several names. `pytest.param` holds one that is a tuple itself.
        count: how many run in both tiers, spread evenly from the first on.
        named: instead of a count, the cases that run in both tiers: one for each mechanism, where cases differ in that.
    """
    cases = list(cases)
    chosen = {cases.index(case) for case in named} or {i * len(cases) // count for i in range(count)}
    return [case if i in chosen else _thorough(case) for i, case in enumerate(cases)]


def _thorough(case):
    if not isinstance(case, type(pytest.param())):
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.thorough])


def share(cases, number, of):
    """Return every nth of some cases in `make test`, all of them in `make thorough`.

    A test of a product gives the sum of the numbers of its other factors: so each case meets each value of each of
    them, though not each pair of such values.

    Args:
        number: of the first case, from 0 on; modulo `of`.
        of: how many shares there are.
    """
    return list(cases)[sized(number % of, 0) :: sized(of, 1)]


def first_tier(items):
    """Return the tests that `make test` runs, in their order."""
    items = [item for item in items if item.get_closest_marker("thorough") is None]
    return [one for _, cases in groupby(items, _function) for one in _cases(list(cases))]


def _function(item):
    return item.nodeid.partition("[")[0]


def _cases(cases):
    """Return the cases of one test function that run in the first tier."""
    sample = cases[0].get_closest_marker("sample")
    most, few = sample.args * 2 if sample else (MOST, FEW)
    keeps_all = sample is None and (cases[0].get_closest_marker("every") or EVERY & set(cases[0].fixturenames))
    cases = _each_choice(cases)
    if keeps_all or len(cases) <= most:
        return cases
    return [cases[i * len(cases) // few] for i in range(few)]


def _each_choice(cases):
    """Return cases that together have each value of each parameter: each-choice coverage, chosen greedily.

    A table whose rows have several values is one parameter: all its rows are kept.
    """
    values = [_values(case) for case in cases]
    missing = set().union(*values)
    if len({names for names, _ in missing}) <= 1:
        return cases
    chosen = set()
    while missing:
        best = max(range(len(cases)), key=lambda i: len(values[i] & missing))
        missing -= values[best]
        chosen.add(best)
    return [case for i, case in enumerate(cases) if i in chosen]


def _values(case):
    """Return the value that a case has of each parameter, by identity: (names, ids)."""
    if not hasattr(case, "callspec"):
        return set()
    rest, found = dict(case.callspec.params), set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
        found.add((names, tuple(id(rest.pop(name, None)) for name in names)))
    return found | {(name, id(value)) for name, value in rest.items()}


# The profiles of hypothesis; MILBLOB_HYPOTHESIS chooses one. dev draws few examples, and the same ones each time:
# whether a commit passes must not depend on the day. The others draw new ones.
settings.register_profile(
    "dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=500, derandomize=False)
settings.register_profile("long", settings.get_profile("ci"), max_examples=20_000)
settings.load_profile(os.environ.get("MILBLOB_HYPOTHESIS", sized("dev", "ci")))
PROFILE = settings()
FEWER = settings(PROFILE, max_examples=8) if PROFILE.max_examples == 25 else PROFILE
"""For tests whose examples take a tenth of a second each."""
