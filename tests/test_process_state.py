"""Tests have the same random values, and names from coremltools, whatever their worker ran before them."""

import random

import numpy as np
import pytest

RANDOM, OTHER = np.random.default_rng(7), random.Random(7)
EXPECTED = np.random.default_rng(7).random(), random.Random(7).random()


@pytest.fixture(scope="module")
def drawn_once():
    return RANDOM.random(), OTHER.random()


@pytest.fixture
def drawn():
    return RANDOM.random(), OTHER.random()


@pytest.mark.parametrize("turn", range(3))
def test_each_fixture_and_each_test_begins_with_the_same_values(drawn_once, drawn, turn):
    assert drawn_once == drawn == EXPECTED
    assert (RANDOM.random(), OTHER.random()) == EXPECTED


@pytest.mark.parametrize("turn", range(2))
def test_a_program_that_nobody_converts_gives_later_ones_no_other_names(turn):
    builder = pytest.importorskip("coremltools.converters.mil").Builder

    @builder.program(input_specs=[builder.TensorSpec(shape=(1, 2))])
    def program(x):
        return builder.relu(x=x)

    assert [op.name for op in program.functions["main"].operations] == ["relu_0"]
