"""Arrays that compress makes on the way: each goes with the weight that it was made for, and nobody has to collect garbage."""

import gc
import weakref

import pytest

import milblob
from matrix import every
from milblob import Linear, Palette, Prune
from milblob.storage import scratch
from paths import DATA

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
        milblob.compress(MODEL, tmp_path / "out.mlpackage", least=0, force=True, progress=told, **asked, **options)
        assert not [one for one in mappings if one() is not None]
        most = max(made for made, _ in rows)
        assert all(alive <= 2 * most for _, alive in rows)
        seen.update([recipe] if mappings else [])

    every(check, RECIPES, [{}, {"nan": "keep"}, {"dry_run": True}, {"sqnr": 3}])
    assert len(seen) > len(RECIPES) // 2
