"""TVM's files wherever milblob takes files of arrays: diff, match, refit, hashes, open_arrays and save."""

import ml_dtypes
import numpy as np
import pytest

import milblob
import tvm_archives as made
from children import run_child
from milblob import DType, FormatError, UnsupportedError, tvm
from milblob.formats.read import array_kind, is_array_file, open_arrays
from milblob.formats.write import save

NEW = np.array([[5, 6]], np.float32)


@pytest.fixture(params=["tar", "tar.gz", "directory"])
def model(request, tmp_path):
    name = "m" if request.param == "directory" else f"m.{request.param}"
    return made.make(tmp_path / name, made.files_of(), request.param)


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "m.params"
    tvm.write_params({"p0": made.C}, path)
    return path


def test_kinds(model, params, tmp_path):
    assert [array_kind(str(path)) for path in (model, params)] == ["archive", "params"]
    assert all(is_array_file(name) for name in ("x.PARAMS", "x.tar", "x.TAR.GZ", "x.tgz", "tensor-cache.json"))
    assert not any(is_array_file(name) for name in ("x.json", "x.gz", "weight.bin", "metadata.json"))
    # A compiled Core ML model has a metadata.json too.
    for other in ("model.mil", "coremldata.bin", "Manifest.json", "model0"):
        folder = tmp_path / f"with {other}"
        folder.mkdir()
        (folder / "metadata.json").write_text("{}")
        assert is_array_file(str(folder))
        (folder / other).touch()
        assert not is_array_file(str(folder))


def test_open_arrays(model, params):
    for path in (model, params):
        with open_arrays(path) as arrays:
            assert list(arrays) == ["p0"] and len(arrays) == 1
            array = arrays["p0"]
            assert (array.mil_dtype, array.shape, array.nbytes) == (DType.FLOAT32, (1, 2), 8)
            values = array.read()
        assert values.tolist() == [[2, 4]] and not values.flags.writeable  # also once it is closed
        with pytest.raises(ValueError, match="closed"):
            array.read()


def test_open_arrays_names_the_error(params, tmp_path):
    params.write_bytes(params.read_bytes()[:-1])
    with pytest.raises(FormatError):
        open_arrays(params)
    with pytest.raises(FileNotFoundError):
        open_arrays(tmp_path / "none.params")
    with pytest.raises(FileNotFoundError):
        open_arrays(tmp_path / "none.tar")
    (tmp_path / "x.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(milblob.MilblobError):
        open_arrays(tmp_path / "x.tar")


def test_names_that_modules_make_the_same(tmp_path):
    files = made.files_of(modules=("a", "a/b"))
    broken = {name: data for name, data in files.items() if not name.startswith("parameters/")}
    broken["parameters/a.params"] = made.params_of({"b/p0": made.C})
    broken["parameters/a/b.params"] = made.params_of({"p0": made.C})
    path = made.make(tmp_path / "m.tar", broken, "tar")
    with pytest.raises(FormatError, match="got 'a/b/p0' in 'a' too"):
        open_arrays(path)


def test_save_writes_what_tvm_writes(params, tmp_path):
    with open_arrays(params) as arrays:
        save(arrays, str(tmp_path / "copy.params"))
    assert (tmp_path / "copy.params").read_bytes() == params.read_bytes()
    with pytest.raises(FileExistsError):
        save({}, str(params))
    with pytest.raises(ValueError, match="nothing makes a new one"):
        save({}, str(tmp_path / "x.tar"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint16, np.int64, np.bool_])
def test_values_that_are_not_aligned(dtype, tmp_path):
    """Statistics, hashes and comparison see the values of an aligned copy, wherever the elements lie."""
    rng = np.random.default_rng(3)
    array = rng.integers(0, 2, (1000, 301)).astype(dtype)
    for shift in range(8):
        name = "n" * (shift + 1)
        tvm.write_params({name: array}, tmp_path / "x.params", force=True)
        with open_arrays(tmp_path / "x.params") as arrays:
            tensor = arrays[name]
            assert milblob.statistics(tensor, histogram=True) == milblob.statistics(array, histogram=True)
            assert milblob.content_hash({name: tensor}) == milblob.content_hash({name: array})
            assert milblob.diff({name: tensor}, {name: array}).is_same
            other = array.copy()
            other[-1, -1] = not other[-1, -1]
            assert [row.figures.unequal for row in milblob.diff({name: tensor}, {name: other}).rows] == [1]


def test_hash_of_arrays_is_that_of_a_weight_file(tmp_path):
    arrays = {"a": np.float32([[1, 2]]), "b": np.int8([3]), "c": np.float16(2)}
    milblob.write_weights(arrays, tmp_path / "w.bin", listing=tmp_path / "w.json")
    tvm.write_params(arrays, tmp_path / "w.params")
    np.savez(tmp_path / "w.npz", **arrays)
    hashes = [milblob.content_hash(tmp_path / f"w.{suffix}") for suffix in ("json", "params", "npz")]
    assert hashes[0] == hashes[1] == hashes[2] == milblob.content_hash(arrays)
    assert milblob.content_hash({**arrays, "b": np.int8([4])}).model != hashes[0].model
    assert (
        milblob.content_hash({"z" if name == "a" else name: a for name, a in arrays.items()}).model != hashes[0].model
    )


def test_diff_and_match_take_parameters_of_modules(model):
    with tvm.open(model) as library:
        found = library.modules["default"].params
        assert milblob.diff(found, {"p0": made.C}).is_same and not milblob.diff(found, {"p0": NEW}).is_same
    assert milblob.diff(model, model).is_same
    matching = milblob.match(model, {"weight": made.C})
    assert [(row.given, row.name) for row in matching.matches] == [("weight", "p0")]
    assert matching.refit_mapping == {"weight": "p0"}
    report = milblob.refit(model, {"weight": made.C + 1}, mapping=matching.refit_mapping)
    assert report.done and [row.name for row in report.changes] == ["p0"]
    with tvm.open(model) as library:
        assert library.modules["default"].params["p0"].read().tolist() == [[3, 5]]


def test_match_reports_what_is_left(model):
    found = milblob.match(model, {"weight": NEW})
    assert (found.matches, found.unmatched_given, found.unmatched_names) == ([], ["weight"], ["p0"])
    with pytest.raises(ValueError, match="select: no tensor in "):
        milblob.match(model, {"weight": NEW}, select=lambda name: False)


def test_refit_reports(model, tmp_path):
    given = {"p0": NEW.astype(np.float64), "spare": NEW}
    for options in ({"mapping": {"spare": None}}, {"select": lambda name: name == "p0"}):
        report = milblob.refit(model, given, cast=True, dry_run=True, **options)
        assert (report.unused, report.done, report.nbytes) == (("spare",), False, 8)
        assert report.changes[0].given_dtype is DType.FLOAT64
    with pytest.raises(ValueError, match="2 problems"):
        milblob.refit(model, given)
    with pytest.raises(KeyError, match="mapping: no array "):
        milblob.refit(model, {"p0": NEW}, mapping={"nobody": "p0"})
    with pytest.raises(ValueError, match="expected one array for it, got p0 and spare"):
        milblob.refit(model, {"p0": NEW, "spare": NEW}, mapping={"spare": "p0"})
    with pytest.raises(ValueError, match=r"got p0 and spare\\x1b"):  # which a terminal would obey
        milblob.refit(model, {"p0": NEW, "spare\x1b": NEW}, mapping={"spare\x1b": "p0"})
    with pytest.raises(ValueError, match="expected at least one, got none"):
        milblob.refit(model, {"p0": NEW}, mapping={"p0": None})
    with tvm.open(model) as library:
        assert library.modules["default"].params["p0"].read().tolist() == [[2, 4]]


def test_refit_of_a_model_reports_what_is_unused(tmp_path):
    milblob.write_weights({"a": NEW}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    report = milblob.refit(tmp_path / "w.json", {"a": NEW, "b": NEW}, mapping={"b": None})
    assert report.unused == ("b",) and report.to_dict()["unused"] == ["b"]


def test_modules_without_parameters_are_refused_by_name(tmp_path):
    path = made.make(tmp_path / "aot.tar", made.files_of(executor="aot", modules=("one", "two")), "tar")
    with pytest.raises(UnsupportedError, match="module one: .* AOT executor"):
        milblob.refit(path, {"one/p0": NEW})
    path = made.make(tmp_path / "op.tar", made.operator_files(), "tar")
    with pytest.raises(UnsupportedError, match="module add: .* an operator"):
        milblob.refit(path, {"p0": NEW})


def test_check(model, params):
    assert list(milblob.check(model)) == list(milblob.check(params)) == []
    params.write_bytes(params.read_bytes() + b"x")
    assert [finding.code for finding in milblob.check(params)] == ["params-trailing"]
    assert milblob.check(params) == tvm.check_params(params)
    with pytest.raises(ValueError, match="expected a model"):
        milblob.check(model, values=True)


def test_archives_import_no_tvm_before_they_are_opened():
    code = """
        import milblob
        from milblob.formats.read import is_array_file
        print(is_array_file("x.tar"), any(name.startswith("milblob.tvm") for name in sys.modules))
    """
    assert run_child(code).split() == ["True", "False"]
