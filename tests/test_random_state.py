"""Tests have the same random values whatever their worker ran before them."""

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
