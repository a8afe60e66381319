"""The two tiers of tests: what `make test` has time for, and all of it (`make thorough`, which sets MILBLOB_THOROUGH=1).

Tests marked `thorough` run in the second tier only (conftest.py); `some` marks most cases of a table so. Tests of both
tiers make the same assertions; `sized` and `share` choose how many random inputs they draw, and how large their files are.
With MILBLOB_THOROUGH=cases all tests run, with the inputs of the first tier: under sanitizers there is no time for more.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

IS_THOROUGH = os.environ.get("MILBLOB_THOROUGH") in ("1", "cases")
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


# The profiles of hypothesis; MILBLOB_HYPOTHESIS chooses one. dev draws few examples, and the same ones each time:
# whether a commit passes must not depend on the day. The others draw new ones.
settings.register_profile(
    "dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=500, derandomize=False)
settings.register_profile("long", settings.get_profile("ci"), max_examples=20_000)
settings.load_profile(os.environ.get("MILBLOB_HYPOTHESIS", sized("dev", "ci")))
PROFILE = settings()
