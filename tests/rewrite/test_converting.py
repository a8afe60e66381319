"""milblob.convert, save and open_arrays: one file of arrays from another, and what they refuse."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest

import milblob
from milblob.cli import main
from milblob.model import open as opening
from paths import DATA, DEMO

pytestmark = pytest.mark.usefixtures("unsynced")

SUB_BYTE = DATA / "constexpr_ios18" / "model.mlpackage"


@pytest.mark.parametrize("name", ["w.safetensors", "w.npz", "w.bin", "folder/", "w.params"])
def test_convert_keeps_names_and_values(name, tmp_path):
    target = f"{tmp_path}/{name}"
    report = milblob.convert(DEMO, target, select=["head*", "layers_0*"])
    expected = {key: array for key, array in milblob.load(DEMO).items() if key.startswith(("head", "layers_0"))}
    opened = report.listing or target
    with milblob.open_arrays(opened) as arrays:
        assert {*arrays} == {*expected} and [*expected] == [tensor.name for tensor in report.tensors]
        for key, array in expected.items():
            assert np.asarray(arrays[key]).tobytes() == array.tobytes()
    assert report.nbytes == sum(array.nbytes for array in expected.values())
    assert [row["name"] for row in report.to_dict()["tensors"]] == [*expected]
    with pytest.raises(FileExistsError):
        milblob.convert(DEMO, target)
    milblob.convert(DEMO, target, force=True)


@pytest.mark.parametrize("name", ["w.npz", "folder/"])
def test_convert_and_its_command_write_the_same(name, tmp_path):
    milblob.convert(DEMO, f"{tmp_path}/a-{name}", select="head*")
    assert main(["convert", str(DEMO), "-o", f"{tmp_path}/b-{name}", "-k", "head*"]) == 0
    milblob.convert(SUB_BYTE, f"{tmp_path}/c-{name}", stored=True, unpack=True)
    assert main(["convert", str(SUB_BYTE), "-o", f"{tmp_path}/d-{name}", "--stored", "--unpack"]) == 0
    for one, other in ("ab", "cd"):
        with (
            milblob.open_arrays(f"{tmp_path}/{one}-{name}") as first,
            milblob.open_arrays(f"{tmp_path}/{other}-{name}") as second,
        ):
            assert [*first] == [*second]
            assert all(first[key].read().tobytes() == second[key].read().tobytes() for key in first)


def test_unpack_stores_one_element_to_a_byte(tmp_path):
    """Without it the packed bytes; both open as the same values."""
    with milblob.open(SUB_BYTE, stored=True) as model:
        small = [name for name, tensor in model.items() if tensor.mil_dtype.is_sub_byte and tensor.size > 4]
        sizes = {name: (tensor.size, tensor.nbytes) for name, tensor in model.items()}
        values = {name: model[name].read() for name in small}
    assert small
    milblob.convert(SUB_BYTE, tmp_path / "a.npz", stored=True, select=small, unpack=True)
    milblob.convert(SUB_BYTE, tmp_path / "b.npz", stored=True, select=small)
    for name in small:
        assert np.load(tmp_path / "a.npz")[name].nbytes == sizes[name][0]
        assert np.load(tmp_path / "b.npz")[name].nbytes == sizes[name][1] < sizes[name][0]
    for file in ("a.npz", "b.npz"):
        with milblob.open_arrays(tmp_path / file) as arrays:
            assert all(np.array_equal(arrays[name].read(), values[name]) for name in small)


def test_an_open_model_is_a_source(tmp_path):
    with milblob.open(DEMO) as model:
        report = milblob.convert(model, tmp_path / "w.npz", function="main")
        with pytest.raises(ValueError, match="options: expected none of an open model"):
            milblob.convert(model, tmp_path / "x.npz", stored=True)
    assert np.load(tmp_path / "w.npz").files == [*milblob.load(DEMO)] and report.source == str(DEMO)


def test_several_sources_become_one_weight_file(tmp_path):
    """With dtypes by glob, of which the last one is taken; what is left out or noted is in the report."""
    np.savez(
        tmp_path / "a.npz", lut0=np.uint8([1, 7]), lut1=np.int64([3, 15]), steps=np.int64([1]), odd=np.complex64([1])
    )
    np.save(tmp_path / "b.npy", np.float16([0.5]))
    with milblob.open(DEMO) as model:
        sources = [tmp_path / "a.npz", str(tmp_path / "b.npy"), model]
        select, dtypes = (
            ["lut*", "steps", "odd", "b", "head_bias", "typo*"],
            {"lut*": "uint4", "lut0": milblob.DType.UINT3},
        )
        report = milblob.convert(sources, tmp_path / "w.bin", select=select, dtypes=dtypes, skip_unsupported=True)
        with pytest.raises(milblob.UnsupportedError, match="complex64"):
            milblob.convert(sources, tmp_path / "x.bin", select=select, dtypes=dtypes)
        noted = milblob.convert(sources, tmp_path / "noted.bin", select=["lut*", "steps"], dtypes=dtypes)
    assert report.source == (str(tmp_path / "a.npz"), str(tmp_path / "b.npy"), str(DEMO))
    assert (report.listing, report.unmatched, report.noted) == (str(tmp_path / "w.json"), ("typo*",), ())
    assert list(report.skipped) == ["odd", "steps"] and report.skipped["steps"] == "int64"
    assert [tensor.name for tensor in report.tensors] == ["lut0", "lut1", "b", "head_bias"]
    with milblob.open(tmp_path / "w.json") as written:
        assert [str(written[name].mil_dtype) for name in written] == ["uint3", "uint4", "float16", "float32"]
        assert written["lut1"].read().tolist() == [3, 15] and written["b"].read().tolist() == [0.5]
    assert (noted.noted, noted.skipped) == (("steps",), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.npz",
        "b.npy",
        "noted.bin",
        "noted.json",
        "w.bin",
        "w.json",
    ]


def test_narrow_dtypes_of_params_files_are_in_the_report(tmp_path):
    milblob.save({"a": np.array([-8, 7], ml_dtypes.int4), "b": np.float32([1])}, tmp_path / "x.bin")
    assert milblob.convert(tmp_path / "x.json", tmp_path / "x.params").widened == ("a",)
    assert milblob.convert(tmp_path / "x.json", tmp_path / "x.npz").widened == ()


@pytest.mark.parametrize("options", [[], ["-k", "head*"]])
def test_the_command_opens_a_model_once(tmp_path, monkeypatch, options):
    opened, real = [], opening.open_model
    monkeypatch.setattr(
        opening, "open_model", lambda source, *mode, **more: opened.append(source) or real(source, *mode, **more)
    )
    assert main(["convert", str(DEMO), "-o", f"{tmp_path}/w.npz", *options]) == 0
    assert opened == [str(DEMO)]


@pytest.mark.parametrize("name", ["w.safetensors", "w.npz", "w.bin", "folder/"])
def test_save_takes_what_numpy_makes_arrays_of(name, tmp_path):
    given = {
        "list": [1.0, 2.0], "half": np.arange(6, dtype=np.float16).reshape(2, 3).T, "flags": np.array([True, False]),
        "brain": np.ones(3, ml_dtypes.bfloat16), "wide": np.arange(3),
    }  # fmt: skip
    milblob.save(given, f"{tmp_path}/{name}")
    opened = f"{tmp_path}/w.json" if name == "w.bin" else f"{tmp_path}/{name}"
    with milblob.open_arrays(opened) as arrays:
        assert [*arrays] == [*given] if name != "w.safetensors" else {*arrays} == {*given}
        for key, value in given.items():
            assert np.array_equal(arrays[key].read(), np.asarray(value)), key
            assert arrays[key].read().dtype == np.asarray(value).dtype, key


def test_save_writes_the_listing_where_it_is_wanted(tmp_path):
    milblob.save({"w": np.ones(3, np.float32)}, tmp_path / "w.bin", listing=tmp_path / "names.json", align=4096)
    assert json.loads((tmp_path / "names.json").read_text())["tensors"]
    assert (milblob.load(tmp_path / "names.json")["w"] == 1).all()
    with milblob.BlobReader(tmp_path / "w.bin") as reader:
        assert reader[0].data_offset == 4096


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("w.txt", {}, r"expected .safetensors, .npz, .params, .bin or a directory \(ending in /\), got .txt"),
        ("w.gguf", {}, "milblob reads .gguf files and does not write them"),
        ("w.onnx", {}, r"got .onnx \(milblob to-onnx, or milblob.onnx.convert, converts a model\)"),
        ("w.tar", {}, "nothing makes a new one"),
        ("w.mlpackage", {}, "expected a file of arrays, got a model; `milblob repack MODEL -o` writes one"),
        ("w.npz", {"listing": "w.json"}, r"expected a weight file \(.bin\), which listing is about"),
        ("w.npz", {"align": 4096}, r"expected a weight file \(.bin\), which align is about"),
        ("w.npz", {"tvm": "0.20"}, "expected a .params file, which tvm is about"),
    ],
)
def test_save_refuses(name, options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        milblob.save({"w": np.ones(3)}, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_a_call_is_refused(tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    for error, words, options in (
        (
            ValueError,
            "select: no tensor in .* matches 'haed_bias'; did you mean .*head_bias",
            {"select": "haed_bias"},
        ),
        (KeyError, r"has no function 'nope' \(it has main\)", {"function": "nope"}),
        (ValueError, r"expected a weight file \(.bin\), which align is about", {"align": 64}),
        (ValueError, "which listing is about", {"listing": "w.json"}),
        (ValueError, "which dtypes is about", {"dtypes": {"w": "int4"}}),
        (ValueError, "which skip_unsupported is about", {"skip_unsupported": True}),
        (ValueError, "expected a .params file, which tvm is about", {"tvm": "0.20"}),
        (TypeError, "constants: expected True or False", {"constants": "no"}),
    ):
        with pytest.raises(error, match=words):
            milblob.convert(package, tmp_path / "w.npz", **options)
    with pytest.raises(ValueError, match="expected a place outside the model"):
        milblob.convert(package, package / "w.npz")
    for name in ("w.bin", "w.params"):
        with pytest.raises(ValueError, match=r"expected .safetensors, .npz or a directory, which unpack is about"):
            milblob.convert(package, tmp_path / name, unpack=True)
    for source in (3, [package, 3], [[package]]):
        with pytest.raises(TypeError, match="source: expected the path of a model"):
            milblob.convert(source, tmp_path / "w.npz")
    with pytest.raises(ValueError, match="source: expected at least one, got none"):
        milblob.convert([], tmp_path / "w.npz")
    with pytest.raises(ValueError, match="names of tensors: expected each once, got .* again in"):
        milblob.convert([package, package], tmp_path / "w.npz")
    for dtypes, error, words in (
        ({"none*": "int8"}, ValueError, r"dtypes: no tensor matches none\*"),
        ({"head*": "float64"}, ValueError, r"dtypes head\*: expected a dtype that weight files hold, got float64"),
        ({"head*": "uint5"}, TypeError, "dtype: expected"),
        (["head*"], TypeError, "dtypes: expected a mapping of names or globs to dtypes"),
    ):
        with pytest.raises(error, match=words):
            milblob.convert(package, tmp_path / "w.bin", dtypes=dtypes)
    assert [path.name for path in tmp_path.iterdir()] == ["m.mlpackage"]


def test_open_names_open_arrays(tmp_path):
    """A file of arrays is not a model: the error says which function opens it."""
    milblob.save({"w": np.ones(3, np.float32)}, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", w=np.ones(3))
    for name in ("w.safetensors", "w.npz"):
        with pytest.raises(milblob.UnsupportedError, match=r"milblob\.open_arrays opens it"):
            milblob.open(tmp_path / name)


def test_nan_has_the_same_words_in_compress_and_repack(tmp_path):
    """keep, skip and error, for a weight with NaN beside one without."""
    package = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    with milblob.open(package, "r+") as model:
        values = model["head_weight"].read().copy()
        values.flat[3] = np.nan
        model["head_weight"] = values
    changed = {}
    for nan in ("keep", "skip"):
        report = milblob.compress(package, tmp_path / f"{nan}.mlpackage", "palette4", nan=nan)
        changed[nan] = {weight.name for weight in report.weights}
        found = milblob.load(tmp_path / f"{nan}.mlpackage")["head_weight"]
        assert np.isnan(found.flat[3]) and np.isnan(found).sum() == 1
    assert changed["keep"] == changed["skip"] | {"head_weight"} != changed["skip"]
    for nan in ("keep", "skip"):
        report = milblob.repack(package, tmp_path / f"r-{nan}.mlpackage", cast="float16", select="*", nan=nan)
        cast = {change.name for change in report.changes if "cast" in change.actions}
        assert cast == ({"head_bias", "head_weight"} if nan == "keep" else {"head_bias"})
        found = milblob.load(tmp_path / f"r-{nan}.mlpackage")["head_weight"]
        assert np.isnan(found.flat[3]) and (nan == "keep" or found.tobytes() == values.tobytes())
    for call, words in (
        (
            lambda **how: milblob.compress(package, tmp_path / "x.mlpackage", "palette4", **how),
            "head_weight: expected finite elements",
        ),
        (
            lambda **how: milblob.repack(package, tmp_path / "x.mlpackage", cast="float16", select="*", **how),
            "head_weight",
        ),
        (lambda **how: milblob.compress_frontier(package, **how), "head_weight: expected finite elements"),
    ):
        with pytest.raises(ValueError, match=words):
            call(nan="error")
        with pytest.raises(ValueError, match="nan: expected one of keep, skip, error, got 'drop'"):
            call(nan="drop")
    assert not (tmp_path / "x.mlpackage").exists()


def test_nan_skip_leaves_records_of_a_weight_file(tmp_path):
    milblob.write_weights({"a": np.array([1, np.nan], "f4"), "b": np.ones(2, "f4")}, tmp_path / "a.bin")
    milblob.repack(tmp_path / "a.bin", tmp_path / "b.bin", cast="float16", nan="skip")
    assert [str(array.dtype) for array in milblob.load(tmp_path / "b.bin").values()] == ["float32", "float16"]


NAMES = {
    "int8": milblob.Linear("int8"), "uint8": milblob.Linear("uint8"), "int4": milblob.Linear("int4"),
    "uint4": milblob.Linear("uint4"), "unique": milblob.Palette(mode="unique"),
} | {f"palette{bits}": milblob.Palette(bits=bits) for bits in (1, 2, 3, 4, 6, 8)}  # fmt: skip


def test_recipes_by_name(tmp_path):
    for name in ("int8", "palette4"):
        milblob.compress(DEMO, tmp_path / f"{name}.mlpackage", name)
        report = milblob.compress(DEMO, tmp_path / "other.mlpackage", NAMES[name], force=True)
        assert {weight.recipe for weight in report.weights} == {NAMES[name]}
        first, second = (milblob.content_hash(tmp_path / f"{one}.mlpackage") for one in (name, "other"))
        assert first.model == second.model
    for name, recipe in NAMES.items():
        assert milblob.Goal(bits=4, recipes=[name]).recipes == (recipe,)
    assert milblob.Linear(8) == milblob.Linear("int8") and milblob.Linear(4).dtype == "int4"
    with pytest.raises(
        ValueError, match=f"recipe: expected .*one of {', '.join(['int8', 'uint8', 'int4', 'uint4'])}.*got 'int7'"
    ):
        milblob.compress(DEMO, tmp_path / "x.mlpackage", "int7")
    with pytest.raises(ValueError, match=r"CompressPlan\.load reads a plan"):
        milblob.compress(DEMO, tmp_path / "x.mlpackage", "plan.json")
