"""The loop over cases in tests/support/matrix.py: it hides none of them."""

import pytest

from matrix import every


def test_all_cases_run_and_those_that_fail_are_named():
    seen = []

    def check(dtype, count):
        seen.append((dtype, count))
        assert count < 3, "too many"
        if (dtype, count) == ("int8", 1):
            raise ValueError("odd")

    with pytest.raises(AssertionError) as caught:
        every(check, ["int8", "uint4"], range(1, 4))
    assert seen == [(dtype, count) for dtype in ("int8", "uint4") for count in (1, 2, 3)]
    first, *lines = str(caught.value).splitlines()
    assert first == "3 of 6 cases failed"
    for start in (
        "int8, 1: ValueError: odd",
        "int8, 3: AssertionError: too many",
        "uint4, 3: AssertionError: too many",
    ):
        assert any(line.startswith(start) for line in lines), start
    assert isinstance(caught.value.__cause__, ValueError)


def test_no_cases_are_an_error():
    with pytest.raises(AssertionError, match="no case"):
        every(print, [1], [])
    every(lambda one: None, [1])
