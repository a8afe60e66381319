"""milblob.repack(cast=...): the values, the types that a Program declares, what is reported, what is refused."""

import ml_dtypes
import numpy as np
import pytest

import milblob
from coremltools_view import load_pymil, weights_of
from dtype_values import tensor_value
from hostile_bytes import blob_value, field, function, immediate, operation
from peers import WITHOUT
from repacking import (
    FILE,
    WEIGHTS,
    blobs_of,
    findings,
    fixture_path,
    package_of,
    record_values,
    references,
    tree,
    value_type,
    values,
)

pytestmark = pytest.mark.usefixtures("unsynced")

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16}
CODES = {"float32": 2, "float16": 1, "bfloat16": 5}


def numbers(count, dtype, seed=1):
    return np.random.default_rng(seed).standard_normal(count, F32).astype(dtype)


# --------------------------------------------------------------------------------------------------------- weight files


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("options", [{}, {"dedupe": True, "align": 4096}], ids=str)
def test_weight_file(tmp_path, source, target, options):
    """As NumPy and ml_dtypes cast, for every count around what is done at once."""
    arrays = [numbers(count, DTYPES[source], count) for count in (0, 1, 2, 15, 31, 65535, 65536, 65537, 131072 + 3)]
    data, _ = blobs_of(
        *((CODES[source], a.tobytes()) for a in arrays), (4, b"abc"), *[(CODES[source], arrays[3].tobytes())]
    )
    (tmp_path / "w.bin").write_bytes(data)
    report = milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", cast={source: target}, **options)
    got = record_values(tmp_path / "out.bin")
    wanted = [(target, a.size, a.astype(DTYPES[target]).tobytes()) for a in arrays]
    wanted += [("int8", 3, b"abc")] + ([] if options else [wanted[3]])
    assert got == wanted
    assert report.counts().get("cast", 0) == (10 if source != target else 0)
    assert report.nbytes_after == sum(len(row[2]) for row in got)


def test_one_dtype_for_all_and_a_choice(tmp_path):
    arrays = {"float32": numbers(20, F32), "float16": numbers(20, F16), "bfloat16": numbers(20, BF16)}
    data, _ = blobs_of(*((CODES[name], array.tobytes()) for name, array in arrays.items()))
    (tmp_path / "w.bin").write_bytes(data)
    for cast, wanted in (
        ("float16", ["float16"] * 3), (np.float32, ["float32"] * 3), (BF16, ["bfloat16"] * 3), (milblob.DType.FLOAT16, ["float16"] * 3),
        ({"float32": "float16", F16: "float32"}, ["float16", "float32", "bfloat16"]),
        ({}, list(DTYPES)), (None, list(DTYPES)),
    ):  # fmt: skip
        milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", cast=cast, force=True)
        assert [row[0] for row in record_values(tmp_path / "out.bin")] == wanted
    milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", cast="float16", select="#[02]", force=True)
    assert [row[0] for row in record_values(tmp_path / "out.bin")] == ["float16", "float16", "float16"]
    milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", cast="float32", select="#1", force=True)
    assert [row[0] for row in record_values(tmp_path / "out.bin")] == ["float32", "float32", "bfloat16"]


def test_policies_and_counts(tmp_path):
    """Counted in the whole, whoever did which part; the first element is named with its place in the whole."""
    array = numbers(1_000_000, F32)
    array[[5, 700_001, 999_999]] = 1e6, -1e6, 65520
    array[[9, 800_000]] = np.nan
    array[[11, 12]] = 1e-30, -1e-30
    array[13] = np.inf
    (tmp_path / "w.bin").write_bytes(blobs_of((2, array.tobytes()), (2, array[100:200].tobytes()))[0])
    source, target = tmp_path / "w.bin", tmp_path / "out.bin"
    with pytest.raises(OverflowError, match="^#0: element 5: expected at most 65504 in magnitude, got 1000000$"):
        milblob.repack(source, target, cast="float16")
    array[5] = 0
    (tmp_path / "w.bin").write_bytes(blobs_of((2, array.tobytes()), (2, array[100:200].tobytes()))[0])
    with pytest.raises(OverflowError, match="^#0: element 700001: expected"):
        milblob.repack(source, target, cast="float16")
    with pytest.raises(ValueError, match="^#0: element 9: expected a number, got nan$"):
        milblob.repack(source, target, cast="float16", overflow="inf", nan="error")
    assert not target.exists()
    for policy, wanted in (("inf", [-np.inf, np.inf]), ("clamp", [-65504, 65504])):
        report = milblob.repack(source, target, cast="float16", overflow=policy, force=True)
        first, second = report.changes
        assert (first.overflow, first.nan, first.underflow) == (2, 2, 2) and second.overflow == second.nan == 0
        assert (
            report.to_dict()["tensors"][0] | {"overflow": 2, "nan": 2, "underflow": 2} == report.to_dict()["tensors"][0]
        )
        with milblob.BlobReader(target) as blobs:
            got = blobs.read(64)
        assert got[[700_001, 999_999]].tolist() == wanted and np.isinf(got[13]) and np.isnan(got[[9, 800_000]]).all()
    assert (
        "overflow"
        not in milblob.repack(source, target, cast="float16", dry_run=True, force=True).to_dict()["tensors"][0]
    )


# ------------------------------------------------------------------------------------------------------------- Programs


@pytest.mark.parametrize("name", ["opset_ios16_fp32", "opset_ios17_fp32", "opset_ios18_fp32"])
def test_float32_stored_as_float16(tmp_path, name):
    """The weight is half as long, and what reads it reads float32, as coremltools computes it."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    source, target = fixture_path(name, "model.mlpackage"), tmp_path / "out.mlpackage"
    plan = milblob.repack(source, target, cast={"float32": "float16"}, dry_run=True)
    report = milblob.repack(source, target, cast={"float32": "float16"})
    cast = [change.name for change in report.changes if change.actions == ["cast"]]
    assert "fc_weight" in cast and [c.actions for c in plan.changes] == [c.actions for c in report.changes]
    before, after = weights_of(load_pymil(source)), weights_of(load_pymil(target))
    for weight, (op, dtype, array) in after.items():
        if weight in cast:
            assert (op, dtype) == ("constexpr_cast", F32)
            assert array.tobytes() == before[weight][2].astype(F16).astype(F32).tobytes()
        elif weight in before and not weight.rstrip("0123456789").endswith("const_"):
            assert (op, dtype, array.tobytes()) == (before[weight][0], before[weight][1], before[weight][2].tobytes())
    assert set(findings(target)) <= set(findings(source))
    (change,) = [c for c in report.changes if c.name == "fc_weight"]
    assert (str(change.dtype), str(change.dtype_after), change.nbytes_after * 2) == (
        "float32",
        "float16",
        change.nbytes,
    )
    milblob.repack(target, tmp_path / "again.mlpackage", cast={"float32": "float16"})
    assert tree(tmp_path / "again.mlpackage") == tree(target)
    milblob.repack(target, tmp_path / "back.mlpackage", cast={"float16": "float32"})
    back = weights_of(load_pymil(tmp_path / "back.mlpackage"))
    named = [key for key in before if key in back]  # it counts up names of its own from load to load
    assert [back[key][:2] for key in named] == [before[key][:2] for key in named] and set(cast) <= set(named)
    assert back["fc_weight"][2].tobytes() == before["fc_weight"][2].astype(F16).astype(F32).tobytes()


def test_two_constants_of_one_record(tmp_path):
    """Both cast: one record. One of them: two records."""
    array = numbers(24, F32)
    data, (at,) = blobs_of((2, array.tobytes()))
    tensors = [("a", 11, [4, 6], WEIGHTS, at), ("b", 11, [6, 4], WEIGHTS, at)]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})
    milblob.repack(source, tmp_path / "both.mlpackage", cast="float16")
    assert record_values(tmp_path / "both.mlpackage" / FILE) == [("float16", 24, array.astype(F16).tobytes())]
    assert len(set(references(tmp_path / "both.mlpackage").values())) == 1
    milblob.repack(source, tmp_path / "one.mlpackage", cast="float16", select="b")
    kinds = [row[0] for row in record_values(tmp_path / "one.mlpackage" / FILE)]
    assert sorted(kinds) == ["float16", "float32"] and len(set(references(tmp_path / "one.mlpackage").values())) == 2
    assert values(tmp_path / "one.mlpackage")["a"] == ("float32", (4, 6), array.tobytes())
    milblob.repack(
        source,
        tmp_path / "all.mlpackage",
        cast="float16",
        canonical=True,
        dedupe=True,
        gc=True,
        align=4096,
        split="function",
    )
    assert [
        row[0] for row in record_values(tmp_path / "all.mlpackage/Data/com.apple.CoreML/weights/main-weight.bin")
    ] == ["float16"]


def test_immediates(tmp_path):
    """In the Program, or on the way out of it, or into it."""
    array = numbers(24, F32)
    value = tensor_value("floats", array, "FLOAT32")
    data, (at,) = blobs_of((2, array.tobytes()))
    tensors = [("in", 11, [4, 6], None, value), ("out", 11, [4, 6], WEIGHTS, at)]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})
    half = ("float16", (4, 6), array.astype(F16).tobytes())
    for number, (options, where) in enumerate([
        ({}, {"out"}), ({"externalize": True}, {"in", "out"}), ({"inline": 100}, set()), ({"externalize": 24, "inline": 24}, {"in", "out"}),
    ]):  # fmt: skip
        target = tmp_path / f"{number}.mlpackage"
        report = milblob.repack(source, target, cast="float16", overflow="inf", **options)
        held = values(target)
        assert held["in.source_val"] == held["out.source_val"] == half
        assert {name.partition(".")[0] for name in references(target)} == where
        assert report.counts()["cast"] == 2
    big = array.copy()
    big[3] = 1e9
    tensors = [("w", 11, [4, 6], None, tensor_value("floats", big, "FLOAT32"))]
    (tmp_path / "x").mkdir()
    source = package_of(tmp_path / "x", {"main": tensors}, {})
    with pytest.raises(OverflowError, match="^w: element 3: expected at most"):
        milblob.repack(source, tmp_path / "x.mlpackage", cast="float16")
    report = milblob.repack(source, tmp_path / "x.mlpackage", cast="float16", overflow="clamp")
    assert report.changes[0].overflow == 1 and report.to_dict()["tensors"][0]["overflow"] == 1
    (tmp_path / "y").mkdir()
    pieces = field(1, field(1, array[:5].tobytes())) + field(1, field(1, array[5:].tobytes()))
    source = package_of(tmp_path / "y", {"main": [("w", 11, [4, 6], None, pieces)]}, {})
    milblob.repack(source, tmp_path / "y.mlpackage", cast="float16")
    assert values(tmp_path / "y.mlpackage")["w.source_val"] == half


def test_vectors_are_cast_only_if_selected(tmp_path):
    """As coremltools leaves them; docs/casts.md says why."""
    data, at = blobs_of((2, numbers(24, F32).tobytes()), (2, numbers(12, F32).tobytes()))
    tensors = [("weight", 11, [4, 6], WEIGHTS, at[0]), ("bias", 11, [12], WEIGHTS, at[1])]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})
    report = milblob.repack(source, tmp_path / "out.mlpackage", cast="float16")
    assert [c.actions for c in report.changes] == [["cast"], []]
    report = milblob.repack(source, tmp_path / "all.mlpackage", cast="float16", select=["*"])
    assert [c.actions for c in report.changes] == [["cast"], ["cast"]]


def with_consumer(folder, op_type, key, opset=b"CoreML7"):
    """A weight, and an operation that reads it."""
    data, (at,) = blobs_of((2, numbers(24, F32).tobytes()))
    source = package_of(folder, {"main": [("w", 11, [4, 6], WEIGHTS, at)]}, {"weights/weight.bin": data})
    weight = operation("const", "w", [("val", blob_value(11, [4, 6], WEIGHTS, at))], output_type=value_type(11, [4, 6]))
    argument = field(2, field(1, key) + field(2, field(1, field(1, "w"))))
    reader = operation(op_type, "reader", inputs=argument, output_type=value_type(11, [4, 6]))
    name = next(source.rglob("*.mlmodel"))
    name.write_bytes(field(1, 8) + field(502, field(1, 1) + function([weight, reader]).replace(b"CoreML7", opset)))
    return source


@pytest.mark.parametrize(("op_type", "key", "opset", "cast", "words"), [
    ("prelu", "alpha", b"CoreML7", "float16", "prelu 'reader' reads it as alpha: expected a const there"),
    ("linear", "weight", b"CoreML5", "float16", "linear 'reader' reads it as weight: expected float32"),
    ("linear", "weight", b"CoreML7", "bfloat16", "linear 'reader' reads it as weight: expected float32"),
])  # fmt: skip
def test_consumers_that_object_are_named(tmp_path, op_type, key, opset, cast, words):
    source = with_consumer(tmp_path, op_type, key, opset)
    before = tree(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(milblob.ProgramError) as raised:
            milblob.repack(source, tmp_path / "out.mlpackage", cast=cast, dry_run=dry_run)
        assert words in str(raised.value) and "main.block" in str(raised.value)
        assert tree(tmp_path) == before


def test_values_inside_other_operations_are_not_cast(tmp_path):
    """They are no constants of their own: left alone when all weights are cast, refused when asked for by name."""
    array = numbers(24, F32)
    source = package_of(tmp_path, {"main": []}, {})
    argument = field(
        2, field(1, "y") + field(2, field(1, field(2, immediate(11, [24], tensor_value("floats", array, "FLOAT32")))))
    )
    body = function([operation("add", "sum", inputs=argument, output_type=value_type(11, [24]))])
    next(source.rglob("*.mlmodel")).write_bytes(field(1, 8) + field(502, field(1, 1) + body))
    before = tree(source)
    report = milblob.repack(source, tmp_path / "out.mlpackage", cast="float16")
    assert tree(tmp_path / "out.mlpackage") == before and [c.name for c in report.changes] == ["sum.y"]
    with pytest.raises(milblob.ProgramError, match="got a value inside another operation"):
        milblob.repack(source, tmp_path / "other.mlpackage", cast="float16", select="sum.*")


def test_parts_of_compressed_weights_are_not_cast(tmp_path):
    source, target = fixture_path("palette_scaled", "model.mlpackage"), tmp_path / "out.mlpackage"
    before = values(source)
    parts = {name for name, tensor in milblob.open(source, stored=True).items() if tensor.op.startswith("constexpr")}
    report = milblob.repack(source, target, cast="float16")
    assert parts and all(c.actions == [] for c in report.changes if c.name in parts)
    assert {name: row for name, row in values(target).items() if name in parts} == {
        n: r for n, r in before.items() if n in parts
    }


def test_model_file_alone(tmp_path):
    """Edits of its Program."""
    array = numbers(24, F32)
    source = package_of(tmp_path, {"main": [("w", 11, [4, 6], None, tensor_value("floats", array, "FLOAT32"))]}, {})
    path, seen = next(source.rglob("*.mlmodel")), []
    milblob.repack(path, tmp_path / "out.mlmodel", cast="float16", progress=lambda *row: seen.append(row))
    assert values(tmp_path / "out.mlmodel")["w.source_val"] == ("float16", (4, 6), array.astype(F16).tobytes())
    assert seen[-1][1] == seen[-1][2] == (tmp_path / "out.mlmodel").stat().st_size
    milblob.repack(source, tmp_path / "out.mlpackage", cast="float16")
    assert next((tmp_path / "out.mlpackage").rglob("*.mlmodel")).read_bytes() == (tmp_path / "out.mlmodel").read_bytes()


def test_value_in_pieces_that_is_cast_on_its_way_out(tmp_path):
    array = numbers(24, F32)
    pieces = field(1, field(1, array[:5].tobytes()) + field(1, array[5:].tobytes()))
    source = package_of(tmp_path, {"main": [("w", 11, [4, 6], None, pieces)]}, {})
    with pytest.raises(
        milblob.UnsupportedError, match="cast of a value that is written in pieces: expected one piece, got 2"
    ):
        milblob.repack(source, tmp_path / "out.mlpackage", cast="float16", externalize=True)
    milblob.repack(source, tmp_path / "moved.mlpackage", externalize=True)
    assert values(tmp_path / "moved.mlpackage") == values(source)
    assert record_values(tmp_path / "moved.mlpackage" / FILE) == [("float32", 24, array.tobytes())]


def test_file_that_breaks_while_it_is_cast(tmp_path, monkeypatch):
    """What is wrong with a file is no matter of the policies of casts."""
    (tmp_path / "w.bin").write_bytes(blobs_of((2, numbers(24, F32).tobytes()))[0])

    def fail(*_, **__):
        raise milblob.FormatError("size: expected 160 bytes as when it was opened, got 7")

    monkeypatch.setattr(milblob.rewrite.execute, "convert_into", fail)
    with pytest.raises(milblob.FormatError, match="^size: expected"):
        milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", cast="float16")
    assert not (tmp_path / "out.bin").exists()
