"""Arrays that compress makes on the way: each goes with the weight that it was made for, and nobody has to collect garbage."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import milblob
from compress_options import grouped
from matrix import every
from milblob import Linear, Palette, Prune
from milblob.compressing.weight import Weight
from milblob.storage import scratch
from paths import DATA
from thorough import some

MODEL = DATA / "opset_ios18_fp16" / "model.mlpackage"
GROUPED = Palette(2, granularity="per_grouped_channel", group_size=3)
RECIPES = [
    Linear(), Linear(search=True, granularity="per_tensor"), Palette(2), GROUPED, Palette(2, vector=2), Palette(2, scale=True),
    Palette(None, "unique"), Palette(6, lut_dtype="int8"), Prune(0.5), Prune(threshold=1e9), Prune(n_m=(1, 2)), Prune(0.5, block=2),
    Prune(0.5) + Palette(2), Prune(0.5) + Linear(), Prune(0.5) + Palette(2, vector=2), Palette(2) + Prune(0.5), Linear() + Prune(0.5),
    Linear() + Palette(2), Prune(0.5) + Palette(6) + Linear(granularity="per_tensor"),
]  # fmt: skip


@pytest.fixture
def mappings(monkeypatch):
    """References to the mapped files of all arrays, which are large from 64 bytes on; garbage stays."""
    found = []
    empty = scratch.Scratch.empty

    def recorded(self, shape, dtype):
        array = empty(self, shape, dtype)
        if array.base is not None:
            found.append(weakref.ref(array.base))
        return array

    monkeypatch.setattr(scratch, "_HELD_NBYTES", 64)
    monkeypatch.setattr(scratch.Scratch, "empty", recorded)
    monkeypatch.setenv("MILBLOB_THREADS", "1")
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


def test_arrays_go_with_their_weights(mappings, tmp_path):
    seen = set()

    def check(recipe, options):
        mappings.clear()
        rows, before = [], [0]

        def told(name, done, total):
            rows.append((len(mappings) - before[0], sum(one() is not None for one in mappings)))
            before[0] = len(mappings)

        asked = {"recipe": recipe} if "sqnr" not in options else {"recipes": [recipe]}
        milblob.compress(
            MODEL, tmp_path / "out.mlpackage", **grouped(min_size=0, force=True, progress=told, **asked, **options)
        )
        assert not [one for one in mappings if one() is not None]
        most = max(made for made, _ in rows)
        assert all(alive <= 2 * most for _, alive in rows)
        seen.update([recipe] if mappings else [])

    every(check, RECIPES, [{}, {"nan": "keep"}, {"dry_run": True}, {"sqnr": 3}])
    assert len(seen) > len(RECIPES) // 2


WEIGHT = np.random.default_rng(3).standard_normal((1 << 12, 1 << 9)).astype(np.float16)
ROWS = len(WEIGHT)
PLANNED = {
    Linear(): (ROWS, 0), Prune(0.5): (ROWS, 0), Prune(n_m=(2, 4)): (ROWS, WEIGHT.size // 8), Palette(4): (ROWS, 0),
    Prune(0.5, block=4): (ROWS, WEIGHT.size // 8), Palette(1): (ROWS, 1 << 16), Palette(2): (ROWS, 1 << 16),
    Palette(2, "uniform"): (ROWS, 1 << 16), Palette(1, granularity="per_grouped_channel", group_size=1 << 10): (ROWS, 4 << 16),
    Prune(n_m=(1, 4)): (8, 8 * WEIGHT.shape[1] // 8), Palette(3, "uniform"): (8, None), Palette(1, "uniform"): (8, None),
}  # fmt: skip
"""Recipes that plan -> rows of the weight, and bytes that the plan keeps until it is carried out; None: there is none."""


@pytest.mark.parametrize("recipe", some(PLANNED, 4), ids=str)
def test_what_plans_keep_lies_in_arrays_that_last(recipe, tmp_path):
    """Thousands of plans wait at once. No plan keeps more than what it makes: of small weights that is made at once."""
    rows, expected = PLANNED[recipe]
    lasted = []

    def persistent(shape, dtype):
        lasted.append(np.memmap(tmp_path / f"{len(lasted)}", dtype, "w+", shape=shape))
        return lasted[-1]

    weight = Weight(WEIGHT[:rows], (1, 0), 18, (("linear", "weight"),), persistent=persistent)
    plan = recipe.streamed(weight)  # for the first time: what is made once, for any number of plans, does not count
    if expected is None:
        assert plan is None and not lasted
        return
    lasted.clear()
    del plan
    gc.collect()
    tracemalloc.start()
    try:
        plan = recipe.streamed(weight)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert sum(array.nbytes for array in lasted) == expected
    assert kept < 32 << 10
    once = recipe.streamed(Weight(WEIGHT[:rows], (1, 0), 18, (("linear", "weight"),)))
    written = [[], []]
    figures = [
        one.compute(lambda *row, into=into: into.append((*row[:2], row[2].tobytes())))
        for one, into in zip((plan, once), written, strict=True)
    ]
    assert written[0] and written[0] == written[1]
    assert figures[0] == figures[1]
