"""How much slow tests do: what `make test` has time for, or all of it (`make thorough`, which sets MILBLOB_THOROUGH=1).

The same tests with the same assertions; only counts of random inputs and sizes of large files differ.
"""

import os

from hypothesis import HealthCheck, settings


def sized(quick, thorough):
    """Return the second of two counts or sizes when everything is to be done, otherwise the first."""
    return thorough if os.environ.get("MILBLOB_THOROUGH") == "1" else quick


def half(cases, number):
    """Return every second of some cases, beginning with the first or the second; all of them in `make thorough`.

    A test of a product gives the sum of the numbers of its other factors: so each case meets each value of each of
    them, though not each pair of such values.

    Args:
        number: an even one for the first, third and so on; an odd one for the others.
    """
    return list(cases)[sized(number % 2, 0) :: sized(2, 1)]


# The profiles of hypothesis; MILBLOB_HYPOTHESIS chooses one. dev draws few examples, and the same ones each time:
# whether a commit passes must not depend on the day. The others draw new ones.
settings.register_profile(
    "dev", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=500, derandomize=False)
settings.register_profile("long", settings.get_profile("ci"), max_examples=20_000)
settings.load_profile(os.environ.get("MILBLOB_HYPOTHESIS", sized("dev", "ci")))
PROFILE = settings()
