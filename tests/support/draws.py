"""The random generator that a test module shares among its tests."""

import pytest


def restarts(*generators):
    """Return a fixture for a test module: each of its tests draws the same values, whichever tests ran before it.

    A fixture of a wider scope must not draw from these generators: when it runs depends on the tests before it.
    """
    states = [generator.bit_generator.state for generator in generators]

    @pytest.fixture(autouse=True)
    def restart():
        for generator, state in zip(generators, states, strict=True):
            generator.bit_generator.state = state

    return restart
