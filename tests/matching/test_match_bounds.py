"""`match` of weights that were made to be alike: its work has an end, and what was trained does not reach it."""

import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import milblob
from children import run_fork
from milblob.matching import checkpoint, similarity
from milblob.matching.agreeing import _words, agreeing
from paths import DATA
from thorough import some


def pairwise(given, names):
    """The slow, obvious way: each name with each."""
    ours, theirs = {name: _words(name) for name in given}, {name: _words(name) for name in names}
    choices = {}
    for name, text in theirs.items():
        if name in ours:
            choices.setdefault(name, []).insert(0, name)
            continue
        fitting = [old for old, part in ours.items() if part in text or text in part]
        longest = max((min(len(ours[old]), len(text)) for old in fitting), default=0)
        fitting = [old for old in fitting if min(len(ours[old]), len(text)) == longest]
        if len(fitting) == 1:
            choices.setdefault(fitting[0], []).append(name)
    return [(old, new[0]) for old, new in choices.items() if new[0] == old or len(new) == 1]


NAMES = st.lists(st.text("ab.1_", max_size=7), max_size=8, unique=True)


@given(NAMES, NAMES)
@example(["", "a"], ["_", "a_b"])
@example(["a.b", "a.b.a"], ["x_a_b_a_b"])
def test_names_agree_as_each_compared_with_each(ours, theirs):
    assert agreeing(ours, theirs) == pairwise(ours, theirs)


def test_names_that_are_too_long_are_like_the_same_ones_only():
    """By words and by characters; those at the limit are still like others."""
    many = ".".join("w" for _ in range(40))
    for long in (many, "x" * 2000 + ".w"):
        assert agreeing([long], [f"{long}.more"]) == []
        assert agreeing([long.upper()], [long]) == [(long.upper(), long)]
    assert agreeing(["l." * 20 + "w"], ["model_" + "l_" * 20 + "w"]) != []


BOUNDED = {
    # Long names with no words in common, and equal values: names are all that could tell them apart.
    "long names": """
        ours = {f"a{i}" + ".x" * 2_000: np.full(16, 7, "<f4") for i in range(1_500)}
        theirs = {f"b{i}" + "_y" * 2_000: np.full(16, 7, "<f4") for i in range(1_500)}
    """,
    "one long name": """
        ours = {"a" * 1_000_000: np.ones(16, "<f4"), "b." * 300_000: np.ones(16, "<f4")}
        theirs = {"a" * 999_999 + "b": np.ones(16, "<f4"), "b_" * 299_999: np.ones(16, "<f4")}
    """,
    # Each weight is as like each training tensor: candidates of candidates.
    "all alike": """
        base = rng.random(64).astype("<f4")
        ours = {f"n.{i}.w": base + rng.random(64).astype("<f4") * 1e-4 for i in range(800)}
        theirs = {f"m_{i}_w": base + rng.random(64).astype("<f4") * 1e-4 for i in range(800)}
    """,
    # The same elements in any number of orders and shapes.
    "orders": """
        ours = {f"a{g}.{i}": rng.permutation(24).astype("<f4").reshape(2, 3, 4) + 24 * g for g in range(8) for i in range(60)}
        theirs = {f"b{g}_{i}": rng.permutation(24).astype("<f4").reshape(4, 2, 3) + 24 * g for g in range(8) for i in range(60)}
    """,
    "shapes": """
        shapes = [s for s in product(*[(1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)] * 5) if np.prod(s) == 720][:60]
        ours = {f"a{i}": rng.random(s).astype("<f4") for i, s in enumerate(shapes)}
        theirs = {f"b{i}": rng.random(s).astype("<f4") for i, s in enumerate(reversed(shapes))}
    """,
}  # fmt: skip


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has RLIMIT_AS: memory that hostile input takes is not limited here",
)
@pytest.mark.parametrize("name", some(BOUNDED, 2))
def test_work_has_an_end(name):
    """The timeout is a guard; pairs of these take from minutes to hours."""
    code = f"""
    import pathlib, tempfile
    from itertools import product
    import numpy as np
    import milblob
    rng = np.random.default_rng(1)
{BOUNDED[name]}
    path = pathlib.Path(tempfile.mkdtemp()) / "w.bin"
    milblob.write_weights(theirs, path, listing=path.with_suffix(".json"))
    found = milblob.match(ours, path.with_suffix(".json"))
    assert len(found.matches) + len(found.ties) + len(found.unmatched_names) > 0
    found.to_dict(), str(found)
    """.replace("\n        ", "\n    ")
    run_fork(code, timeout=300, memory_nbytes=3 << 30)


def test_without_work_nothing_is_claimed(monkeypatch, tmp_path):
    """Where the work ends, weights stay unmatched: none is paired without being compared."""
    rng = np.random.default_rng(2)
    given = {f"n.{i}.w": rng.random((8, 8)).astype("<f4") for i in range(20)}
    model = {f"n_{i}_w": array.T.copy() + np.float32(1e-3) for i, array in enumerate(given.values())}
    milblob.write_weights(model, tmp_path / "w.bin", listing=tmp_path / "w.json")
    assert len(milblob.match(tmp_path / "w.json", given).matches) == 20
    monkeypatch.setattr(checkpoint, "_MIN_WORK", 0)
    monkeypatch.setattr(checkpoint, "_WORK_PER_ELEMENT", 0)
    found = milblob.match(tmp_path / "w.json", given)
    assert found.matches == [] and len(found.unmatched_names) == 20


def test_trained_weights_do_not_reach_the_end(monkeypatch, tmp_path):
    """Of thousands of tensors, noisy and transposed, less than a hundredth of the work is taken."""
    rng = np.random.default_rng(3)
    given = {f"layers.{i}.w": rng.standard_normal((32, 48)).astype("<f4") for i in range(300)}
    model = {f"layers_{i}_w": array.T + np.float32(1e-2) * array.T**2 for i, array in enumerate(given.values())}
    milblob.write_weights(model, tmp_path / "w.bin", listing=tmp_path / "w.json")
    works = []
    make = checkpoint.Work.__init__
    monkeypatch.setattr(checkpoint.Work, "__init__", lambda self, *args: make(self, *args) or works.append(self))
    assert len(milblob.match(tmp_path / "w.json", given).matches) == 300
    assert works[0].left > 0.9 * checkpoint._MIN_WORK


def test_work_counts_what_has_to_be_decoded(tmp_path):
    """Elements of compressed weights and of packed ones are had by decoding others too; that is reckoned as work."""
    milblob.tvm.write_params({"p": np.ones((2, 2), np.float32)}, tmp_path / "p.params")
    with milblob.tvm.open_params(tmp_path / "p.params") as found:
        assert not similarity._is_decoded(found["p"])
    with milblob.open(DATA / "palette_4bit/model.mlpackage") as model:
        compressed = [tensor for tensor in model.values() if tensor.parts]
        assert compressed and all(similarity._is_decoded(tensor) for tensor in compressed)
        plain = [tensor for tensor in model.values() if not tensor.parts and not tensor.mil_dtype.is_sub_byte]
        assert not any(similarity._is_decoded(tensor) for tensor in plain)
