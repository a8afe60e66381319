"""milblob.diff: which tensors are compared, what is said of them, and figures against NumPy."""

import dataclasses
import json
import math
import struct
import tracemalloc
from itertools import accumulate

import ml_dtypes
import numpy as np
import pytest

import milblob
from cases import CASES
from diffing import check_figures, kinds, listed, noise
from milblob import DType
from milblob.program import schema
from milblob.values import parallel
from paths import DATA
from progress_rows import steps
from thorough import some

COMPILED = [name for name in CASES if (DATA / name / "model.mlmodelc").exists()]


# ---------------------------------------------------------------------------------------------------------------- kinds


def test_every_kind():
    a = {
        "same": noise(), "zeros": np.zeros(3, "f4"), "cast": np.arange(20, dtype="f4"), "other": noise(), "shape": noise(),
        "gone": noise(4), "text": np.array(["x", "y"], object), "spoken": np.array(["x"], object),
    }  # fmt: skip
    b = {
        "same": noise(), "zeros": np.array([0, -0.0, 0], "f4"), "cast": np.arange(20, dtype="f2"), "other": noise() + 1,
        "shape": noise().reshape(10, 100), "text": np.array(["x", "y"], object), "spoken": np.array(["z"], object),
        "new": noise(4),
    }  # fmt: skip
    found = milblob.diff(a, b)
    assert kinds(found) == {
        "same": "same", "zeros": "close", "cast": "dtype", "other": "different", "shape": "shape", "gone": "only_a",
        "text": "same", "spoken": "different", "new": "only_b",
    }  # fmt: skip
    assert not found.is_same
    assert [row.name for row in found.rows if not row.is_different] == ["same", "zeros", "text"]
    assert found.totals["same"] == 2 and found.totals["only_b"] == 1 and found.totals["elements"] == 2026
    words = {row.name: row.message for row in found.rows}
    assert words["cast"] == "float32 in A, float16 in B, same values"
    assert words["zeros"] == "equal but for -0"
    assert words["shape"] == "shape [1000] in A, [10, 100] in B"
    assert words["gone"] == "only in A: float32 [4]" and words["new"] == "only in B: float32 [4]"
    assert words["other"].startswith("1,000 of 1,000 elements differ, max 1, mean 1, relative ")
    assert str(found).splitlines()[0].startswith("arrays and arrays: different, 9 tensors: 2 the same, 1 close, ")
    assert json.loads(json.dumps(found.to_dict()))["tensors"][1]["figures"]["sqnr"] is None
    assert [row.name for row in found.worst()][-1] == "zeros"
    assert milblob.diff(a, a).is_same


@pytest.mark.parametrize(("atol", "rtol", "kind", "outside"), [(0, 0, "different", 4), (0.5, 0, "different", 2), (1, 0, "close", 0), (0, 0.1, "different", 2), (0.5, 0.1, "close", 0)])  # fmt: skip
def test_tolerances(atol, rtol, kind, outside):
    a = np.array([10, 10, -10, 0, 0, 1], "f4")
    b = np.array([11, 9, -10, 0.5, -0.25, 1], "f4")
    (row,) = milblob.diff({"w": a}, {"w": b}, atol=atol, rtol=rtol).rows
    assert (row.kind, row.figures.outside, row.figures.unequal) == (kind, outside, 4)
    assert row.figures.outside == int((~np.isclose(b, a, rtol=rtol, atol=atol)).sum())


def test_with_a_tolerance_another_dtype_is_close():
    a = {"w": noise()}
    b = {"w": noise().astype(np.float16)}
    assert kinds(milblob.diff(a, b)) == {"w": "different"}
    found = milblob.diff(a, b, rtol=1e-3, atol=1e-7)
    assert kinds(found) == {"w": "close"} and found.is_same


# -------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("dtypes", some(map(pytest.param, [("f4", "f4"), ("f4", "f2"), ("f2", "f2"), ("f8", "f4"), ("f4", ml_dtypes.bfloat16), ("i4", "f2"), ("i1", "i1")]), 3), ids=str)  # fmt: skip
@pytest.mark.parametrize("count", [7, 5000, 1_500_000])
def test_figures(dtypes, count):
    rng = np.random.default_rng(count)
    a = (rng.standard_normal(count) * 20 + 5).astype(dtypes[0])
    b = (a.astype(float) + rng.standard_normal(count)).astype(dtypes[1])
    (row,) = milblob.diff({"w": a}, {"w": b}).rows
    assert row.kind == "different"
    check_figures(row.figures, a, b)


@pytest.mark.parametrize(("a", "b", "most"), [
    ([1e200], [-1e200], 2e200), ([1e-200], [-1e-200], 2e-200), ([1e-170, 2e-170], [2e-170, 4e-170], 2e-170),
    ([1.0, 2.0], [1e200, 2.0], 1e200), ([1e160, 1.0], [1e160, 2.0], 1.0),
])  # fmt: skip
def test_squares_that_float64_does_not_hold_are_in_no_figure(a, b, most):
    (row,) = milblob.diff({"w": np.array(a)}, {"w": np.array(b)}).rows
    assert row.figures.max_abs == most
    assert row.figures.relative is row.figures.cosine is row.figures.correlation is row.figures.sqnr is None


def test_a_mean_that_float64_does_not_hold_is_none():
    (row,) = milblob.diff({"w": np.full(9, 1e308)}, {"w": np.zeros(9)}).rows
    assert row.figures.max_abs == 1e308 and row.figures.mean_abs is None


def test_figures_of_packed_elements(tmp_path):
    """int4 and uint6 in weight files, 2^20 and some, against the elements themselves."""
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-8, 8, (1031, 1021)).astype(np.int8) for _ in range(2)]
    sixes = [rng.integers(0, 64, 600_001).astype(np.uint8) for _ in range(2)]
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.json")
        milblob.write_weights(
            {"four": arrays[number], "six": sixes[number]}, tmp_path / f"{number}.bin", listing=paths[-1],
            dtypes={"four": "int4", "six": "uint6"},
        )  # fmt: skip
    four, six = milblob.diff(*paths).rows
    assert four.dtypes == (DType.INT4, DType.INT4)
    check_figures(four.figures, *arrays)
    check_figures(six.figures, *sixes)
    assert kinds(milblob.diff(paths[0], {"four": arrays[0], "six": sixes[0]})) == {"four": "dtype", "six": "dtype"}


def figures_of(row):
    return dataclasses.astuple(row.figures)


def test_zero_and_constant_arrays():
    zero, one = np.zeros(8, "f4"), np.ones(8, "f4")
    (row,) = milblob.diff({"w": zero}, {"w": one}).rows
    assert figures_of(row)[3:] == (1.0, 1.0, None, None, None, None)
    (row,) = milblob.diff({"w": one}, {"w": one * 2}).rows
    assert figures_of(row)[3:] == pytest.approx((1.0, 1.0, 1.0, 1.0, None, 0.0))
    (row,) = milblob.diff({"w": zero}, {"w": -zero}).rows
    assert figures_of(row)[3:] == (0.0, 0.0, 0.0, None, None, math.inf)
    (row,) = milblob.diff({"w": zero[:0]}, {"w": zero[:0].astype("f2")}).rows
    assert row.kind == "dtype" and figures_of(row) == (0, 0, 0, *[None] * 6)


def test_what_is_not_finite():
    a = np.array([np.nan, np.inf, np.nan, 1, -np.inf], "f4")
    assert kinds(milblob.diff({"w": a}, {"w": a.copy()})) == {"w": "same"}
    b = np.array([np.nan, np.inf, 5, 3, np.inf], "f4")
    (row,) = milblob.diff({"w": a}, {"w": b}, atol=100).rows
    assert row.kind == "different"
    assert figures_of(row)[:5] == (3, 2, 2, 2.0, 2.0)
    assert "2 NaN or infinite on one side" in row.message
    (row,) = milblob.diff({"w": a[:3]}, {"w": np.array([1, 2, 3], "f4")}).rows
    assert figures_of(row) == (3, 3, 3, *[None] * 6)
    assert json.loads(json.dumps(row.to_dict()))["figures"]["max_abs"] is None


# -------------------------------------------------------------------------------------------------------------- pairing


def test_mapping():
    a, b = {"x": noise(), "y": noise(seed=1), "z": noise(3)}, {"u": noise(), "y": noise(seed=1)}
    found = milblob.diff(a, b, mapping={"x": "u", "z": None})
    assert [(row.name, row.other, row.kind) for row in found.rows] == [("x", "u", "same"), ("y", "y", "same")]
    assert milblob.diff(a, b, mapping={"x": "y", "y": "u", "z": None}).rows[0].other == "y"
    for mapping in ({"q": "u"}, {"x": "q"}):
        with pytest.raises(KeyError, match="mapping: arrays has no tensor 'q'"):
            milblob.diff(a, b, mapping=mapping)
    assert found.left_out == ["z"] and found.to_dict()["left_out"] == ["z"]
    with pytest.raises(ValueError, match="each name once"):
        milblob.diff(a, b, mapping={"x": ["u", "u"]})


def test_several_arrays_for_one_weight():
    """Converters store equal tensors once: each array is compared with the weight, whatever its number."""
    weight = noise()
    arrays = {"ln1": weight, "ln2": weight, "ln3": weight + 1}
    found = milblob.diff(arrays, {"w": weight}, mapping=dict.fromkeys(arrays, "w"))
    assert [(row.name, row.other, row.kind) for row in found.rows] == [
        ("ln1", "w", "same"),
        ("ln2", "w", "same"),
        ("ln3", "w", "different"),
    ]
    back = milblob.diff({"w": weight}, arrays, mapping={"w": ["ln1", "ln3", "ln2"]})
    assert [(row.other, row.kind) for row in back.rows] == [("ln1", "same"), ("ln3", "different"), ("ln2", "same")]
    assert not milblob.diff(arrays, {"w": weight}, mapping={"ln1": "w", "ln2": "w"}).is_same  # ln3 has no counterpart


def test_what_a_mapping_leaves_out_is_counted(cli, tmp_path):
    a, b = listed(tmp_path, "a", x=noise(), y=noise()), listed(tmp_path, "b", x=noise())
    (tmp_path / "map.json").write_text('{"y": null}')
    status, out, _ = cli("diff", a, b, "--mapping", tmp_path / "map.json")
    assert (status, out) == (0, "same: 1 tensor: 1 the same; 1 of A left out by the mapping: y\n")
    assert "1 of A left out by the mapping: y" in str(milblob.diff(a, b, mapping={"y": None}))


def test_selecting():
    a, b = {"x": noise(), "y": noise()}, {"x": noise(), "z": noise()}
    assert kinds(milblob.diff(a, b, select=lambda name: name in "xz")) == {"x": "same", "z": "only_b"}
    path = DATA / "functions" / "model.mlpackage"
    with milblob.open(path) as model:
        first, second = model.functions
        mine = [tensor.name for tensor in model.values() if tensor.function == second]
    assert [row.name for row in milblob.diff(path, path, function=second).rows] == mine
    with pytest.raises(KeyError, match="no function 'nonsense'"):
        milblob.diff(path, path, function="nonsense")
    with pytest.raises(KeyError, match="no function 'alpha'"):
        milblob.diff(a, b, function=first)


def two_functions(folder):
    """A model of two functions with a weight each: f/w and g/v."""
    model = schema.parse("Model", b"")
    model.specificationVersion = 9
    for number, (function, weight) in enumerate((("f", "w"), ("g", "v"))):
        block = model.mlProgram.functions[function].block_specializations["CoreML8"]
        model.mlProgram.functions[function].opset = "CoreML8"
        op = block.operations.add(type="const")
        op.outputs.add(name=weight)
        value = op.attributes["val"]
        value.type.tensorType.dataType, value.type.tensorType.rank = 11, 1
        value.type.tensorType.dimensions.add().constant.size = 12
        value.immediateValue.tensor.floats.values.extend([number] * 12)
        op.outputs[0].type.CopyFrom(value.type)
    path = folder / "two.mlmodel"
    path.write_bytes(model.SerializeToString())
    return path


def test_changes_of_functions_are_in_the_order_of_the_model(tmp_path):
    names, paths = list("fghijkl"), [tmp_path / "a.mlmodel", tmp_path / "b.mlmodel"]
    for nbytes, path in enumerate(paths):
        model = schema.parse("Model", two_functions(tmp_path).read_bytes())
        for name in names:
            feature = model.description.functions.add(name=name).input.add(name="x")
            feature.type.multiArrayType.shape.append(8 + nbytes)
        path.write_bytes(model.SerializeToString())
    found = milblob.diff(*paths)
    assert [
        one.message.partition(":")[0].split(" ")[2] for one in found.metadata if one.message.startswith("input of")
    ] == names


def test_a_name_without_its_function(tmp_path):
    path = two_functions(tmp_path)
    arrays = {"w": np.zeros(12, "f4"), "v": np.ones(12, "f4")}
    found = milblob.diff(arrays, path).rows
    assert [(row.name, row.other, row.kind) for row in found] == [("w", "f/w", "same"), ("v", "g/v", "same")]
    assert {row.name: row.other for row in milblob.diff(path, arrays).rows} == {"f/w": "w", "g/v": "v"}
    crossed = milblob.diff(path, arrays, mapping={"w": "v", "v": "w"})
    assert {row.name: row.other for row in crossed.rows} == {"f/w": "v", "g/v": "w"}


def test_names_only():
    found = milblob.diff({"x": noise(), "y": noise()}, {"x": noise(3), "z": noise()}, names_only=True)
    assert kinds(found) == {"x": "named", "y": "only_a", "z": "only_b"} and not found.is_same
    assert milblob.diff({"x": noise()}, {"x": noise(3)}, names_only=True).is_same


def test_progress_and_open_models():
    path = DATA / "opset_ios18_fp16" / "model.mlpackage"
    told = []
    with milblob.open(path) as model:
        found = milblob.diff(model, path, progress=lambda *row: told.append(row))
        total = sum(tensor.nbytes for tensor in model.values())
        done = accumulate(tensor.nbytes for tensor in model.values())
        assert steps(told) == [(name, nbytes, total) for name, nbytes in zip(model, done, strict=True)]
        assert found.is_same and found.a == found.b == str(path)
        assert len(model) == len(found.rows)  # still open
        next(iter(model.values())).read()
    with pytest.raises(ValueError, match="tolerances"):
        milblob.diff(path, path, atol=-1)


# ------------------------------------------------------------------------------------------------ what does not count


def records_of(data):
    """Offsets of the metadata of every record of a weight file."""
    (count,) = struct.unpack_from("<I", data)
    offset, found = 64, []
    for _ in range(count):
        found.append(offset)
        nbytes, start = struct.unpack_from("<QQ", data, offset + 8)
        offset = -(-(start + nbytes) // 64) * 64
    return found


@pytest.mark.parametrize("source", ["opset_ios17_fp16", "palette_4bit"])
def test_bytes_that_nothing_initialised(source, tmp_path):
    """Three copies of one weight file with other noise in bytes 24..63 of its records, as old coremltools left it."""
    original = next((DATA / source).rglob("weight.bin")).read_bytes()
    places = records_of(original)
    assert len(places) > 2
    paths = []
    for seed in range(3):
        data, rng = bytearray(original), np.random.default_rng(seed)
        for offset in places:
            assert struct.unpack_from("<I", data, offset + 4)[0] in (1, 2, 3, 4)  # no padding to keep
            data[offset + 24 : offset + 64] = rng.bytes(40)
        paths.append(tmp_path / f"{seed}.bin")
        paths[-1].write_bytes(data)
    assert len({path.read_bytes() for path in paths}) == 3
    for a, b in ((0, 1), (1, 2), (0, 2)):
        found = milblob.diff(paths[a], paths[b])
        assert found.is_same and {row.kind for row in found.rows} == {"same"} and len(found.rows) == len(places)


def test_padding_bits_and_layout(tmp_path):
    four = np.array([1, -2, 3], np.int8)
    for name, align in (("a", 64), ("b", 4096)):
        milblob.write_weights({"w": four, "x": noise()}, tmp_path / f"{name}.bin", listing=tmp_path / f"{name}.json", dtypes={"w": "int4"}, align=align)  # fmt: skip
    data = bytearray((tmp_path / "b.bin").read_bytes())
    start = struct.unpack_from("<Q", data, records_of(data)[0] + 16)[0]
    data[start + 1] |= 0xF0  # four bits after the last element
    (tmp_path / "b.bin").write_bytes(data)
    assert kinds(milblob.diff(tmp_path / "a.json", tmp_path / "b.json")) == {"w": "same", "x": "same"}
    data[start + 1] ^= 0x01
    (tmp_path / "b.bin").write_bytes(data)
    assert kinds(milblob.diff(tmp_path / "a.json", tmp_path / "b.json")) == {"w": "different", "x": "same"}


def refuse_elements(monkeypatch):
    """Let no tensor of a comparison be decoded."""

    def refuse(tensor):
        raise AssertionError(f"{tensor.name}: expected a comparison of the stored bytes, got decoded elements")

    monkeypatch.setattr("milblob.analysis.diff.Elements", refuse)


def test_equal_records_are_compared_where_they_are(tmp_path, monkeypatch):
    """Small dense weights that are equal need no arrays, whatever their dtype."""
    dtypes = {"int4": np.int8, "uint3": np.uint8, "uint1": np.uint8, "float16": np.float16, "float32": np.float32}
    arrays = {name: np.ones(5, dtype) for name, dtype in dtypes.items()} | {"none": np.ones((2, 0), "f4")}
    for name in "ab":
        milblob.write_weights(arrays, tmp_path / f"{name}.bin", listing=tmp_path / f"{name}.json", dtypes={n: n for n in dtypes})  # fmt: skip
    refuse_elements(monkeypatch)
    found = milblob.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert kinds(found) == dict.fromkeys(arrays, "same")


@pytest.mark.parametrize("name", ["opset_ios17_fp16", "opset_ios15_fp32"])
def test_equal_weights_and_immediates_are_compared_where_they_are(name, tmp_path, monkeypatch):
    """Likewise of Programs, on either side inside or outside of the Program."""
    source = DATA / name / "model.mlpackage"
    paths = [source, tmp_path / "inside.mlpackage", tmp_path / "outside.mlpackage"]
    milblob.repack(source, paths[1], inline=True)
    milblob.repack(source, paths[2], externalize=1)
    refuse_elements(monkeypatch)
    for a, b in ((0, 0), (0, 1), (1, 2), (2, 0)):
        found = milblob.diff(paths[a], paths[b])
        assert found.is_same and len(found.rows) > 1 and {row.kind for row in found.rows} == {"same"}


@pytest.mark.parametrize("are_equal", [True, False])
def test_a_large_record_of_many_names_is_compared_once(tmp_path, monkeypatch, are_equal):
    """A file that holds one record under many names must not make the comparison any longer."""
    for name in "ab":
        listing = tmp_path / f"{name}.json"
        array = noise(1 << 14) + (name == "b" and not are_equal)
        milblob.write_weights({"w": array}, tmp_path / f"{name}.bin", listing=listing)
        document = json.loads(listing.read_text())
        (row,) = document["tensors"]
        document["tensors"] = [{**row, "name": f"w{number}"} for number in range(20)]
        listing.write_text(json.dumps(document))
    calls = []
    equal_bytes = parallel.equal_bytes
    monkeypatch.setattr(parallel, "equal_bytes", lambda *given: calls.append(given) or equal_bytes(*given))
    found = milblob.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert len(found.rows) == 20 and {row.kind for row in found.rows} == {"same" if are_equal else "different"}
    assert len(calls) == 1


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.sample(5)
def test_a_package_and_its_compiled_text(name):
    found = milblob.diff(DATA / name / "model.mlpackage", DATA / name / "model.mlmodelc")
    assert {row.kind for row in found.rows} == {"same"}
    assert found.structure == []
    if name != "flexible":  # its metadata.json has the default shape only
        assert found.metadata == []


def test_compressed_weights_against_what_coremltools_decompresses():
    """Fixtures hold the dense values of coremltools' own decompress()."""
    checked = 0
    for name in CASES:
        expected = json.loads((DATA / name / "expected.json").read_text())
        rows = [row for row in expected.get("dense", ()) if row["dtype"] != "BFLOAT16"]
        if not rows:
            continue
        arrays = np.load(DATA / name / "expected.npz")
        dense = {row["output"]: arrays[row["npz"]] for row in rows}
        path = DATA / name / expected["paths"][0]
        found = milblob.diff(path, dense, select=dense.__contains__)
        assert set(kinds(found)) == set(dense) and set(kinds(found).values()) <= {"stored", "same"}, (name, str(found))
        assert all(row.compressions[1] is None for row in found.rows)
        shifted = {key: array + array.dtype.type(0.25) for key, array in dense.items()}
        for row in milblob.diff(path, shifted, select=dense.__contains__).rows:
            if np.isfinite(shifted[row.name].astype(float)).all() and shifted[row.name].size > 1:
                assert (
                    row.figures.max_abs == np.abs(shifted[row.name].astype(float) - dense[row.name].astype(float)).max()
                )
                checked += 1
    assert checked > 20


def test_memory_does_not_grow(tmp_path):
    """Two files of 64 MiB that differ; what NumPy and Python allocate meanwhile."""
    paths = []
    for seed in range(2):
        path = tmp_path / f"{seed}.bin"
        with milblob.BlobWriter(path) as blobs:
            blobs.write(np.full(16 << 20, seed, np.float16))
            blobs.write(np.full(16 << 20, 3, np.float16))
        paths.append(path)
    tracemalloc.start()
    found = milblob.diff(*paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kinds(found) == {"#0": "different", "#1": "same"}
    assert found.rows[0].figures.mean_abs == 1
    assert peak < 24 << 20, peak


def test_a_source_that_is_not_an_array_is_refused():
    good = {"a": noise(4)}
    for value in (object(), None, [1, None], np.array(["x", 1], object)):
        for sides in (({"a": value}, good), (good, {"a": value})):
            with pytest.raises(TypeError, match=r"^array 'a': expected numbers or text, got (object|NoneType|int)$"):
                milblob.diff(*sides)
    with pytest.raises(TypeError, match="^names of arrays: expected str, got NoneType$"):
        milblob.diff({None: noise(4)}, good)
    for option in ({"atol": "x"}, {"rtol": None}):
        with pytest.raises(TypeError, match="^[ar]tol: expected a number, got (str|NoneType)$"):
            milblob.diff(good, good, **option)
    assert milblob.diff(good, good, atol=np.float32(0), rtol=0).is_same


# --------------------------------------------------------------------------------------------------------------- limits


def failing(a, b, **limits):
    return [(failure.row.name, failure.message) for failure in milblob.diff(a, b).failing(**limits)]


def test_limits():
    a = {"equal": noise(), "zeros": np.zeros(8, "f4"), "close": noise(seed=1), "far": noise(seed=2)}
    b = {"equal": noise(), "zeros": -np.zeros(8, "f4"), "close": noise(seed=1) * 1.001, "far": noise(seed=3)}
    for limits in ({"min_sqnr": 59.9}, {"min_cosine": 0.999}, {"max_abs": 0.01}):
        assert [name for name, _ in failing(a, b, **limits)] == ["far"]
    far, close = failing(a, b, min_sqnr=60.1)
    assert far[0] == "far" and close == ("close", "SQNR 59.9996 dB, below 60.1")
    (_, words), *_ = failing(a, b, min_sqnr=20, min_cosine=0.9, max_abs=1)
    assert words.startswith("SQNR -") and ", cosine " in words and ", below 0.9, max " in words and ", above 1" in words
    assert failing(a, a, min_sqnr=np.inf, min_cosine=1, max_abs=0) == []
    assert failing({"w": noise()}, {"w": noise().astype(np.float64)}, max_abs=0) == []  # another dtype, the same values


@pytest.mark.parametrize("limits", [{"min_sqnr": -1000}, {"min_cosine": -1}, {"max_abs": np.inf}])
def test_what_no_limit_admits(limits):
    one, other = np.ones(8, "f4"), np.array([1, 2, 3, 4, 5, 6, 7, np.nan], "f4")
    assert failing({"w": one}, {}, **limits) == [("w", "only in A")]
    assert failing({}, {"w": one}, **limits) == [("w", "only in B")]
    assert failing({"w": one}, {"w": one[:4]}, **limits) == [("w", "other shape")]
    assert failing({"w": one}, {"w": other}, **limits) == [("w", "1 NaN or infinite on one side")]
    assert failing({"w": np.array(["a"])}, {"w": np.array(["b"])}, **limits) == [("w", "other values")]
    if "max_abs" not in limits:
        ((_, words),) = failing({"w": np.zeros(8, "f4")}, {"w": one}, **limits)
        assert (
            words
            == f"no {'SQNR' if 'min_sqnr' in limits else 'cosine'}: one side is zero, or float64 cannot hold the sums"
        )


def test_limits_that_are_none():
    found = milblob.diff({"w": noise()}, {"w": noise()})
    for limits in ({}, {"min_cosine": 1.1}, {"max_abs": -1}, {"min_sqnr": np.nan}):
        with pytest.raises(ValueError, match=r"limits: expected at least one|: expected "):
            found.failing(**limits)
    with pytest.raises(TypeError, match="min_sqnr: expected a number, got str"):
        found.failing(min_sqnr="40")
    with pytest.raises(ValueError, match="limits: expected a comparison of values, got one of names only"):
        milblob.diff({}, {}, names_only=True).failing(max_abs=1)


def test_gate_command(cli, tmp_path):
    a = listed(tmp_path, "a", w=noise(), x=noise(seed=1), zeros=np.zeros(16, "f4"))
    b = listed(tmp_path, "b", w=noise() * 1.001, x=noise(seed=1) * 1.1, zeros=-np.zeros(16, "f4"))
    status, out, err = cli("diff", a, b, "--min-sqnr", "40")
    lines = out.splitlines()
    assert (status, err) == (1, "") and [line.split()[0] for line in lines[:2]] == ["name", "x"]
    assert "SQNR 20 dB, below 40" in lines[1]
    assert lines[-2:] == [
        "3 tensors: 1 close, 2 with other values",
        "fails: 1 weight is beyond a limit (SQNR 40 dB or more)",
    ]
    status, out, _ = cli("diff", a, b, "--min-sqnr", "15", "--min-cosine", "0.99", "--max-abs", "1")
    assert status == 0 and out.splitlines() == [
        "3 tensors: 1 close, 2 with other values",
        "passes: every weight is within the limits (SQNR 15 dB or more, cosine 0.99 or more, max 1 or less)",
    ]
    assert cli("diff", "-q", a, b, "--max-abs", "1") == (0, "", "")
    assert cli("diff", "-q", a, b, "--max-abs", "0.001") == (1, "", "")
    status, out, _ = cli("diff", a, b, "--min-sqnr", "40", "--json")
    document = json.loads(out)
    assert status == 1 and document["limits"] == {"min_sqnr": 40.0} and document["passes"] is False
    assert document["failing"] == [{"name": "x", "other": "x", "message": "SQNR 20 dB, below 40"}]
    assert "limits" not in json.loads(cli("diff", a, b, "--json")[1])
    assert "x " in cli("diff", a, b, "-v")[1] and "equal but for -0" in cli("diff", a, b)[1]
    assert cli("diff", a, b, "--min-sqnr", "40", "-k", "w")[0] == 0
    status, out, err = cli("diff", a, b, "--min-sqnr", "40", "-k", "nothing")
    assert (status, out) == (2, "") and "-k nothing" in err
    for wrong in (["--min-cosine", "2"], ["--max-abs", "-1"], ["--min-sqnr", "nan"], ["--min-sqnr", "loud"]):
        status, out, err = cli("diff", a, b, *wrong)
        assert (status, out) == (2, "") and "expected a number" in err
    assert cli("diff", a, b, "--min-sqnr", "1", "--names-only")[0] == 2
