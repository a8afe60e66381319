"""Many small cases in one test: all of them run, and those that fail are named."""

import itertools


def every(check, *axes):
    """Call `check` with each combination of the axes.

    Args:
        check: a function that asserts; its arguments are one value of each axis.
        axes: the values; an axis of dicts or objects is named by `str`.

    Raises:
        AssertionError: which cases failed, out of how many, and how each of the first ten did. Its cause is the first failure.
    """
    axes = [list(axis) for axis in axes]
    cases = list(itertools.product(*axes))
    assert cases, "no case"
    failures = []
    for case in cases:
        try:
            check(*case)
        except Exception as error:  # whatever it is, the other cases run and this one is named
            failures.append((case, error))
    if failures:
        lines = [f"{', '.join(map(str, case))}: {type(error).__name__}: {error}" for case, error in failures[:10]]
        message = f"{len(failures)} of {len(cases)} cases failed\n" + "\n".join(lines)
        raise AssertionError(message) from failures[0][1]
