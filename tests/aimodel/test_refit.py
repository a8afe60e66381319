"""New values in bundles: in place with the hash, copies, shared values, parts; what does not fit changes nothing."""

import shutil

import ml_dtypes
import numpy as np
import pytest

import milblob
import mlir_bytes as m
from bundles import FOLDER, bundle, copy_of, is_hashed
from milblob import FormatError, UnsupportedError
from milblob.storage import journal

pytestmark = pytest.mark.usefixtures("unsynced")


def contents(folder):
    """Name -> bytes of every file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def new_values(path, seed=1):
    """Other values for every weight."""
    source = np.random.default_rng(seed)
    return {name: source.standard_normal(a.shape).astype(a.dtype) for name, a in milblob.load(path).items()}


@pytest.mark.parametrize(
    "name", ["linear_f32", "linear_f16", "linear_bf16", "linear_f32_b1", "linear_f32_debug", "conv_f32"]
)
def test_all_weights_in_place(name, tmp_path):
    folder = copy_of(name, tmp_path)
    before, weights = contents(folder), new_values(folder)
    report = milblob.refit(folder, weights)
    assert report.done and all(row.in_place for row in report.changes) and len(report.changes) == len(weights)
    for key, array in milblob.load(folder).items():
        assert array.tobytes() == weights[key].tobytes()
    after = contents(folder)
    assert is_hashed(folder) and set(after) == set(before) and after["metadata.json"] == before["metadata.json"]
    changed = sum(x != y for x, y in zip(before["main.mlirb"], after["main.mlirb"], strict=True))
    assert 0 < changed <= report.nbytes and not [row for row in milblob.check(folder) if row.severity != "note"]


def test_a_copy_holds_what_a_change_in_place_does(tmp_path):
    folder, weights = copy_of("linear_f32", tmp_path), new_values(bundle("linear_f32"))
    (folder / "notes.txt").write_text("kept")
    before = contents(folder)
    report = milblob.refit(folder, weights, destination=tmp_path / "new.aimodel")
    assert contents(folder) == before and report.output.endswith("new.aimodel") and not report.changes[0].in_place
    milblob.refit(folder, weights)
    assert contents(folder) == contents(tmp_path / "new.aimodel")
    with pytest.raises(FileExistsError):
        milblob.refit(folder, weights, destination=tmp_path / "new.aimodel")
    milblob.refit(folder, weights, destination=tmp_path / "new.aimodel", force=True)
    for place in (folder / "inside.aimodel", tmp_path):
        with pytest.raises((ValueError, FileExistsError)):
            milblob.refit(folder, weights, destination=place, force=True)
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "thesis.txt").write_text("x")
    with pytest.raises(FileExistsError):
        milblob.refit(folder, weights, destination=tmp_path / "user", force=True)
    with pytest.raises(ValueError, match="expected a name for a aimodel"):
        milblob.refit(folder, weights, destination=tmp_path / "new.mlpackage")


def test_a_dry_run_writes_nothing(tmp_path):
    folder, weights = copy_of("linear_f32", tmp_path), new_values(bundle("linear_f32"))
    before = contents(folder)
    report = milblob.refit(folder, weights, dry_run=True)
    assert not report.done and len(report.changes) == 4 and contents(folder) == before


@pytest.mark.parametrize(
    "weights, options, error, words",
    [
        ({"nothing": np.zeros(3, "f4")}, {}, KeyError, "has no weight"),
        ({"#0": np.zeros((3, 3), "f4")}, {}, ValueError, r"expected shape \(32, 24\), got \(3, 3\)"),
        ({"#0": np.zeros((32, 24), "f8")}, {}, TypeError, "expected elements of float32, got float64"),
        ({"#0": np.full((32, 24), 1e300)}, {"cast": True}, OverflowError, "main/"),
        ({"main/relu_0/#0": np.zeros((), "f4")}, {}, UnsupportedError, "inside the decomposition"),
        ({"#0": np.zeros((32, 24), "f4")}, {"requantize": "fit"}, ValueError, "requantize"),
        ({}, {}, ValueError, "at least one"),
    ],
)
def test_what_does_not_fit_changes_nothing(weights, options, error, words, tmp_path):
    folder = copy_of("linear_f32", tmp_path)
    before = contents(folder)
    with pytest.raises(error, match=words):
        milblob.refit(folder, weights, **options)
    assert contents(folder) == before


def test_casts_and_mappings(tmp_path):
    folder = copy_of("linear_f16", tmp_path)
    values = np.random.default_rng(3).standard_normal((32, 24)).astype(np.float32)
    with pytest.raises(TypeError, match="add --cast|cast"):
        milblob.refit(folder, {"fc1.weight": values}, mapping={"fc1.weight": "#0"})
    report = milblob.refit(
        folder, {"fc1.weight": values, "other": values}, mapping={"fc1.weight": "#0", "other": None}, cast=True
    )
    assert report.unused == ("other",) and report.changes[0].name == "main/broadcasting_batch_matmul_0.y"
    np.testing.assert_array_equal(milblob.load(folder)[report.changes[0].name], values.astype(np.float16))


def test_values_that_functions_share(tmp_path):
    folder = copy_of("functions_f32", tmp_path)
    old = milblob.load(folder)
    main, second = "main/broadcasting_batch_matmul_0.y", "second/broadcasting_batch_matmul_0.y"
    bias = "main/broadcasting_add_0.other"
    values, before = np.ones_like(old[main]), contents(folder)
    with pytest.raises(ValueError, match=f"{main}: expected a value of its own, got one that {second} has too"):
        milblob.refit(folder, {main: values})
    with pytest.raises(ValueError, match="expected equal new values"):
        milblob.refit(folder, {main: values, second: values * 2})
    assert contents(folder) == before
    both = copy_of("functions_f32", tmp_path, "Both.aimodel")
    report = milblob.refit(both, {"w": values}, mapping={"w": [main, second]})
    assert all(row.in_place for row in report.changes)
    new = milblob.load(both)
    assert all(new[name].tobytes() == (values if name in (main, second) else old[name]).tobytes() for name in old)
    # Apart: one is a resource, one is written inline.
    report = milblob.refit(folder, {main: values, bias: np.full_like(old[bias], 2)}, unshare=True)
    assert [row.unshared for row in report.changes] == [second, "second/broadcasting_add_0.other"]
    new = milblob.load(folder)
    expected = {main: values, bias: np.full_like(old[bias], 2)}
    assert all(new[name].tobytes() == expected.get(name, old[name]).tobytes() for name in old)
    assert is_hashed(folder) and not [row for row in milblob.check(folder) if row.severity != "note"]
    different = milblob.refit(both, {main: values * 3, second: values * 4}, unshare=True)
    assert len(different.changes) == 2
    assert [milblob.load(both)[name].flat[0] for name in (main, second)] == [3, 4]


def test_one_element_that_is_all_of_them_grows(tmp_path):
    """The gamma of a new layer norm is all ones, and stored as one."""
    folder = copy_of("attention_f32", tmp_path)
    name = "main/layer_norm_0.gamma"
    with milblob.open(folder) as asset:
        assert asset[name].stored_nbytes == 4 and asset[name].shape == (16,)
    old = milblob.load(folder)
    report = milblob.refit(folder, {name: np.arange(16, dtype="f4")})
    assert not report.changes[0].in_place
    new = milblob.load(folder)
    assert new[name].tolist() == list(range(16)) and is_hashed(folder)
    assert all(new[key].tobytes() == old[key].tobytes() for key in old if key != name)


@pytest.mark.parametrize(
    "name, part, dtype",
    [
        ("bare_f16_int4_symm_per_block", "data", ml_dtypes.int4), ("bare_f16_uint4_asym_per_channel", "data", np.uint8),
        ("bare_f16_palette6", "indices", np.uint8), ("bare_f16_sparse", "values", np.float16),
        ("bare_f16_fp8_e4m3fn", "data", ml_dtypes.float8_e4m3fn), ("bare_f16_int8_symm_per_channel", "scale", np.float16),
    ],
)  # fmt: skip
def test_parts_of_compressed_weights(name, part, dtype, tmp_path):
    folder = copy_of(name, tmp_path)
    (weight,) = milblob.load(folder)
    with pytest.raises(UnsupportedError, match=f"expected a weight that is stored dense, got a compressed one.*{part}"):
        milblob.refit(folder, {weight: np.zeros((32, 64), np.float16)})
    with milblob.open(folder, stored=True) as asset:
        key = f"{weight}.{part}"
        old = asset[key].read()
    values = np.ascontiguousarray(old[::-1])
    report = milblob.refit(folder, {key: values})
    assert report.changes[0].in_place and is_hashed(folder)
    with milblob.open(folder, stored=True) as asset:
        assert asset[key].read().tobytes() == values.tobytes()
    assert np.dtype(dtype).itemsize == old.dtype.itemsize


def test_a_base_identifies_the_weights(tmp_path):
    """The weights lie as trained, so all follow from the checkpoint, under any names."""
    folder, names = copy_of("linear_f32", tmp_path), ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    base = dict(zip(names, map(np.array, milblob.load(folder).values()), strict=True))
    tuned = {name: array + np.float32(0.25) for name, array in base.items()}
    np.savez(tmp_path / "base.npz", **base)
    np.savez(tmp_path / "tuned.npz", **tuned)
    report = milblob.refit(folder, tmp_path / "tuned.npz", base=tmp_path / "base.npz")
    assert len(report.changes) == 4
    assert [a.tobytes() for a in milblob.load(folder).values()] == [tuned[name].tobytes() for name in names]
    other = {name: np.random.default_rng(9).standard_normal(array.shape).astype("f4") for name, array in base.items()}
    with pytest.raises(ValueError, match="cannot compute from the base"):
        milblob.refit(folder, other, base={name: array * array for name, array in other.items()})


def test_a_bare_file_and_the_bytecode_of_a_bundle(tmp_path):
    (tmp_path / "x.mlirb").write_bytes(m.file())
    values = np.arange(10, dtype="f4").reshape(m.SHAPE)
    milblob.refit(tmp_path / "x.mlirb", {"#0": values})
    assert milblob.load(tmp_path / "x.mlirb")["main/output_0.0"].tolist() == values.tolist()
    milblob.refit(tmp_path / "x.mlirb", {"#0": values + 1}, destination=tmp_path / "y.mlirb")
    assert milblob.load(tmp_path / "y.mlirb")["main/output_0.0"].tolist() == (values + 1).tolist()
    folder = copy_of("linear_f32", tmp_path)
    before = contents(folder)
    with pytest.raises(UnsupportedError, match=r"got the main\.mlirb of a bundle"):
        milblob.refit(folder / "main.mlirb", {"#1": np.zeros(32, "f4")})
    (folder / "main.hash").unlink()
    with pytest.raises(milblob.FormatError, match=r"expected main\.hash in it"):
        milblob.refit(folder, {"#1": np.zeros(32, "f4")})
    assert contents(folder) == {name: data for name, data in before.items() if name != "main.hash"}


def test_a_change_that_was_interrupted_is_completed(tmp_path, monkeypatch):
    """The bytecode and its hash change in one step: a process that dies in between leaves a journal."""
    folder, weights = copy_of("linear_f32", tmp_path), new_values(bundle("linear_f32"))
    before = contents(folder)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "_finish", killed)
    with pytest.raises(KeyboardInterrupt):
        milblob.refit(folder, weights)
    monkeypatch.undo()
    assert contents(folder)["main.mlirb"] == before["main.mlirb"] and ".milblob-journal" in contents(folder)
    with pytest.raises(milblob.PendingChangeError, match="milblob recover"):
        milblob.load(folder)
    assert [row.code for row in milblob.check(folder)].count("pending-change") == 1
    milblob.recover(folder)
    assert all(a.tobytes() == weights[name].tobytes() for name, a in milblob.load(folder).items())
    assert is_hashed(folder) and set(contents(folder)) == set(before)


def test_a_journal_changes_no_other_file(tmp_path):
    """A journal may come with a bundle from anywhere."""
    folder = copy_of("linear_f32", tmp_path)
    (folder / "other.bin").write_bytes(bytes(64))
    shutil.copy(folder / "main.hash", tmp_path / "kept")

    def killed(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_finish", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.commit(str(folder), "", [journal.Patch("other.bin", 0, b"x" * 64)])
    with pytest.raises(milblob.PendingChangeError, match="journal"):
        milblob.open(folder)
    with pytest.raises(milblob.FormatError, match="other.bin"):
        milblob.recover(folder)
    assert (folder / "other.bin").read_bytes() == bytes(64)
    assert any(row.code == "pending-change" for row in milblob.check(folder))


@pytest.mark.parametrize("place", ["main.mlirb", "link.mlirb"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_saving_to_the_bytecode_of_a_bundle_is_refused(place, dry_run, tmp_path):
    """Nor is a link to it: `main.hash` would be that of other bytes, and devices would run the old model."""
    folder = copy_of("linear_f32", tmp_path)
    target = folder / place
    if place == "link.mlirb":
        target = tmp_path / place
        target.symlink_to(folder / "main.mlirb")
    bare = tmp_path / "bare.mlirb"
    bare.write_bytes((FOLDER / "linear_f32_again.aimodel" / "main.mlirb").read_bytes())
    weights = milblob.load(bare)
    before = (folder / "main.mlirb").read_bytes()
    for call in (
        lambda: milblob.repack(bare, target, gc=True, force=True, dry_run=dry_run),
        lambda: milblob.refit(bare, weights, destination=target, force=True, dry_run=dry_run),
        lambda: milblob.refit(target, milblob.load(folder), dry_run=dry_run),
        lambda: milblob.repack(target, target, gc=True, force=True, dry_run=dry_run),
    ):
        with pytest.raises(UnsupportedError, match="the main.mlirb of a bundle; give"):
            call()
    assert (folder / "main.mlirb").read_bytes() == before and is_hashed(folder)


def test_a_copy_has_the_folders_of_the_bundle(tmp_path):
    path = copy_of("linear_f32", tmp_path)
    (path / "notes" / "old").mkdir(parents=True)
    (path / "notes" / "old" / "read.me").write_text("kept")
    milblob.refit(path, new_values(path), destination=tmp_path / "new.aimodel")
    assert (tmp_path / "new.aimodel" / "notes" / "old" / "read.me").read_text() == "kept"
    assert is_hashed(tmp_path / "new.aimodel")


@pytest.mark.parametrize("kind", ["a link", "a directory"])
def test_a_hash_that_is_not_a_file_is_refused_and_nothing_is_written(kind, tmp_path):
    path = copy_of("linear_f32", tmp_path)
    digest = path / "main.hash"
    if kind == "a link":
        digest.rename(tmp_path / "elsewhere")
        digest.symlink_to(tmp_path / "elsewhere")
    else:
        digest.unlink()
        digest.mkdir()
    before = (path / "main.mlirb").read_bytes()
    with pytest.raises(FormatError, match=f"main.hash: expected a regular file, got {kind}"):
        milblob.refit(path, new_values(path))
    assert (path / "main.mlirb").read_bytes() == before


def test_a_file_inside_a_bundle_is_refused_as_a_model(tmp_path):
    path = copy_of("linear_f32", tmp_path)
    (path / "data.npz").write_bytes(b"PK\3\4")
    with pytest.raises(UnsupportedError, match="open .*aimodel"):
        milblob.open(path / "metadata.json")
