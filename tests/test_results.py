"""What every result has in common: frozen, a short repr however large the model, and all of it as JSON."""

import copy
import dataclasses
import importlib
import json
import math
import pathlib
import pickle
import pkgutil
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import milblob
from milblob.analysis.check_report import CheckReport, Finding
from milblob.compressing.frontier import Frontier
from milblob.matching.derivations.layouts import Layout
from milblob.refitting.refit_report import RefitReport
from milblob.results import Result, plain
from milblob.rewrite.repack_report import RepackReport, TensorChange
from milblob.values.cast import CastCounts
from paths import ROOT

DEMO = ROOT / "examples" / "demo.mlpackage"
MAX_NCHARS = 1500
PUBLIC = [
    "Change", "CheckReport", "CompressPlan", "CompressReport", "Compression", "ContentHash", "ConvertReport", "ConvertedTensor", "Diff", "Failure", "Figures",
    "Finding", "Frontier", "Info", "Match", "Matching", "MergeReport", "MergedFunction", "OutputDifference",
    "PlannedWeight", "RecoverReport", "Recovered", "RefitReport", "Refitted", "RepackReport", "Statistics",
    "StatisticsReport", "TensorDiff", "Tie", "VerifyReport", "WeightReport",
]  # fmt: skip


def subclasses(cls):
    """Every class of milblob that is a Result."""
    for module in pkgutil.walk_packages(milblob.__path__, "milblob."):
        if module.name.split(".")[1] in ("analysis", "compressing", "matching", "refitting", "rewrite", "running"):
            importlib.import_module(module.name)
    found = list(cls.__subclasses__())
    for one in found:
        found += one.__subclasses__()
    return found


def test_public_results_have_one_base():
    for name in PUBLIC:
        assert issubclass(getattr(milblob, name), Result), name
    every = subclasses(Result)
    assert {getattr(milblob, name) for name in PUBLIC} <= set(every)
    for cls in every:
        assert dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen, cls
        assert cls.__repr__ is Result.__repr__ and cls._repr_html_ is Result._repr_html_, cls
        assert set(cls._keys) <= set(dir(cls)) | {field.name for field in dataclasses.fields(cls)}, cls


# One result of each kind that grows with the model, with `count` rows of names that are `name` and a number.


def statistics_of(count, name):
    one = milblob.statistics(np.arange(6.0))
    return milblob.analysis.statistics.StatisticsReport(f"{name}.mlpackage", {f"{name}{i}": one for i in range(count)})


def diff_of(count, name):
    a = {f"{name}{i}": np.full(2, i, np.float32) for i in range(count)}
    return milblob.diff(a, {key: array + 1 for key, array in a.items()})


def check_of(count, name):
    rows = [Finding("note" if i % 2 else "error", "nan", f"{name}{i}: expected", name, i) for i in range(count)]
    return CheckReport(name, tuple(rows))


def matching_of(count, name):
    f32 = milblob.DType.FLOAT32
    rows = [
        milblob.Match(f"{name}{i}", f"m{i}", "similar", f32, (2, 3), f32, (2, 3), Layout((2, 3)), "", 0.9)
        for i in range(count)
    ]
    return milblob.Matching(name, name, rows, [milblob.Tie([name], [name])] * count, [name] * count, [name] * count)


def compress_of(count, name):
    linear = milblob.Linear()
    rows = [milblob.WeightReport(f"{name}{i}", linear, "op", 9, 5, 1.0 + i, 1e3, 0.1) for i in range(count)]
    return milblob.CompressReport(name, name, rows, [], 9, 5, False, [name] * count, (name,) * count)


def plan_of(count, name):
    return milblob.CompressPlan({f"{name}{i}": milblob.PlannedWeight(None) for i in range(count)})


def frontier_of(count, name):
    return Frontier(name, 9, 1, 3, [(1, 0.5)] * count, [], [(name, name)] * count)


def verify_of(count, name):
    rows = [milblob.OutputDifference(f"{name}{i}", "float32", 1.0, i, 20.0, 1, 2, 0, 1e-5) for i in range(count)]
    return milblob.VerifyReport(name, name, rows, 4, [{name: np.zeros(9)}] * count)


def refit_of(count, name):
    f16 = milblob.DType.FLOAT16
    row = milblob.Refitted(name, name, f16, (2, 3), 12, f16, CastCounts(0, 0, 0), name, True, 20.0, "fit")
    return RefitReport(name, name, [row] * count, True, (name,) * count, {f"{name}{i}": name for i in range(count)})


def repack_of(count, name):
    rows = [TensorChange(f"{name}{i}", milblob.DType.FLOAT16, 2, name, 64) for i in range(count)]
    return RepackReport(name, name, rows, [(name, 1, 2)] * count, 1, 2, True)


def merge_of(count, name):
    return milblob.MergeReport(name, (milblob.MergedFunction(name, name, name),) * count, name, 3, 4, 5)


def hash_of(count, name):
    return milblob.ContentHash("0" * 64, {f"{name}{i}": "0" * 64 for i in range(count)})


MAKERS = [
    statistics_of, diff_of, check_of, matching_of, compress_of, plan_of, frontier_of, verify_of, refit_of, repack_of,
    merge_of, hash_of,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_a_repr_does_not_grow_with_the_model(make):
    small, large = make(40, "w"), make(20_000, "w")
    assert 20 < len(repr(large)) <= len(repr(small)) + 60 and len(repr(large)) < MAX_NCHARS
    assert "20,000" in repr(large) and "\n" not in repr(large)
    assert len(str(large)) < 4000 and str(large).count("\n") < 24
    assert len(large._repr_html_()) < 3 * MAX_NCHARS


@pytest.mark.parametrize("make", MAKERS)
def test_a_repr_is_one_line_of_names_that_attack(make):
    """Names come from files: they are cut, escaped for terminals, and for HTML."""
    found = make(40, "\x1b[31m<script>alert('x')</script>\n" + "a" * 5000)
    assert len(repr(found)) < MAX_NCHARS and repr(found).isprintable()
    assert "\x1b" not in str(found) and "\x1b" not in found._repr_html_()
    assert "<script" not in found._repr_html_() and len(found._repr_html_()) < 5 * MAX_NCHARS


def test_a_repr_shows_the_worst_rows():
    assert "worst=w39: SQNR 14" in repr(compress_of(40, "w"))
    assert "worst=w39: relative error 39 (limit 1e-05); w38: relative error 38" in repr(verify_of(40, "w"))
    assert "worst=error[nan] w0: expected" in repr(check_of(40, "w")) and "w1:" not in repr(check_of(40, "w"))
    found = milblob.diff({"a": np.ones(3), "b": np.ones(3)}, {"a": np.ones(3), "b": np.full(3, 2.0)})
    assert "worst=b: 3 of 3 elements differ" in repr(found) and "is_same=False" in repr(found)
    assert repr(found.rows[0]).startswith("TensorDiff(name='a', other='a', kind='same'")


@pytest.mark.parametrize("make", MAKERS)
def test_results_are_values(make):
    found = make(3, "w")
    if make not in (verify_of, repack_of):  # arrays do not compare to one bool; the rows of a repack are no values
        assert copy.deepcopy(found) == found == pickle.loads(pickle.dumps(found)) and found != make(4, "w")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(found, dataclasses.fields(found)[0].name, None)


@pytest.mark.parametrize("make", [make for make in MAKERS if make is not frontier_of])
def test_results_as_json(make):
    document = make(3, "w").to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document and all(type(key) is str for key in document)


class Pair(NamedTuple):
    key: str
    value: float


@dataclasses.dataclass(frozen=True, repr=False)
class Sample(Result):
    dtype: milblob.DType
    path: pathlib.PurePosixPath
    numbers: tuple
    rows: list
    inner: "Sample | None" = None

    _keys = {"rows": "tensors", "size": "size", "path": None}

    @property
    def size(self):
        return np.int64(len(self.rows))


def test_to_dict_follows_fields_keys_and_properties():
    numbers = (
        math.inf,
        -math.inf,
        math.nan,
        1.5,
        np.float32(0.5),
        np.float64(math.nan),
        np.int8(-3),
        True,
        np.bool_(0),
    )
    inner = Sample(milblob.DType.INT4, pathlib.PurePosixPath("x"), (), [])
    found = Sample(milblob.DType.BFLOAT16, pathlib.PurePosixPath("a/b"), numbers, [Pair("k", math.inf)], inner)
    assert found.to_dict() == {
        "dtype": "bfloat16",
        "numbers": [None, None, None, 1.5, 0.5, None, -3, True, False],
        "tensors": [{"key": "k", "value": None}],
        "inner": {"dtype": "int4", "numbers": [], "tensors": [], "inner": None, "size": 0},
        "size": 1,
    }
    assert [type(one) for one in found.to_dict()["numbers"][3:]] == [float, float, type(None), int, bool, bool]
    assert plain(pathlib.PurePosixPath("a/b")) == "a/b" and plain({1: {2}}) == {"1": [2]}
    assert plain(np.array([[1.0, np.nan]], np.float16)) == [[1.0, None]] and plain(ml_dtypes.bfloat16(0.5)) == 0.5
    with pytest.raises(TypeError, match="expected something that JSON can hold, got object"):
        plain(object())


def test_verdicts_are_no_truth_values():
    """`if diff(a, b)` read as well one way as the other."""
    for found, attribute in (
        (milblob.diff(DEMO, DEMO), "is_same"), (verify_of(1, "w"), "is_same"), (milblob.check(DEMO), "is_sound"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=rf"{type(found).__name__} is ambiguous; use \.{attribute}$"):
            bool(found)
        assert isinstance(getattr(found, attribute), bool)


def test_a_check_is_a_sequence_that_knows_its_errors():
    found = check_of(4, "w")
    assert len(found) == 4 and found[0] is found.findings[0] and found[1:] == found.findings[1:]
    assert (found.errors, found.warnings, found.notes) == (found.findings[::2], (), found.findings[1::2])
    assert not found.is_sound and found.summary == "2 errors, 2 notes" and str(found).endswith("\nw: 2 errors, 2 notes")
    assert CheckReport("w", found.notes).is_sound and milblob.check(DEMO).is_sound
    warning = Finding("warning", "nan", "w: expected")
    assert not CheckReport("w", (warning,)).is_sound and warning.to_dict()["severity"] == "warning"


def test_a_diff_and_its_rows_agree():
    found = milblob.diff({"a": np.ones(3), "b": np.ones(3)}, {"a": np.ones(3), "b": np.zeros(3)})
    assert [row.is_same for row in found.rows] == [True, False] == [not row.is_different for row in found.rows]
    assert not found.is_same and found.to_dict()["is_same"] is False
    assert "SQNR" in found.rows[1].message and found.failing(min_sqnr=3)[0].message == "SQNR -0 dB, below 3"


def test_names_that_are_keys_are_escaped_in_a_repr():
    @dataclasses.dataclass(frozen=True, repr=False)
    class Row(Result):
        names: dict[str, str]

    for name in ("\x1b[31m", "a\nb", "\u202e", "\u2028", "\udcff"):
        assert repr(Row({name: "x"})).isprintable()
