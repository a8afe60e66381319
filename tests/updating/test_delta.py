"""Patches: what they make, what they cost, which models they are for."""

import os
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milblob
import reference_patch as reference
from children import run_fork
from milblob.updating import frames, steps
from paths import DATA, DEMO
from repacking import copy_of, small_package, tree
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")


def files_of(path):
    """Path in the model -> bytes of every file; "" of a model that is a file."""
    found = tree(path)
    return {"": found} if isinstance(found, bytes) else {name: data for name, data in found.items() if data is not None}


def changed(weights, count=None, scale=1.001):
    """Every weight of floats, or the first ones, multiplied."""
    names = [name for name, array in weights.items() if array.dtype.kind == "f"][:count]
    return {name: (weights[name] * scale).astype(weights[name].dtype) for name in names}


def one_layer(old, new):
    milblob.refit(old, changed(milblob.load(old), 1), destination=new)


def every_layer(old, new):
    milblob.refit(old, changed(milblob.load(old)), destination=new)


def pages(old, new):
    milblob.repack(old, new, align=4096)


def float16(old, new):
    milblob.repack(old, new, cast={"float32": "float16"})


def palettes(old, new):
    milblob.compress(old, new, milblob.Palette(4), scope=milblob.Scope(min_size=64))


def int4(old, new):
    milblob.compress(
        old, new, milblob.Linear("int4", granularity="per_block", block=16), scope=milblob.Scope(min_size=64)
    )


def two_functions(old, new):
    milblob.merge_functions([(old, "a"), (old, "b")], new)


def other_files(old, new):
    """A file that is gone, a new one, another manifest, an empty file."""
    shutil.copytree(old, new)
    (new / "Manifest.json").write_text((new / "Manifest.json").read_text() + "\n")
    (new / "new").mkdir()
    (new / "new" / "notes.txt").write_bytes(b"notes" * 100)
    (new / "empty").write_bytes(b"")
    (old / "gone.txt").write_bytes(b"gone")


def no_weights(old, new):
    """The folder of the weights is an item of the manifest, and empty, as coremltools makes it."""
    milblob.repack(old, new, inline=1 << 40)
    folder = new / "Data" / "com.apple.CoreML" / "weights"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def nothing(old, new):
    shutil.copytree(old, new)


@pytest.mark.parametrize(
    "change",
    some(
        [one_layer, every_layer, pages, float16, palettes, int4, two_functions, other_files, no_weights, nothing],
        named=[one_layer, float16, two_functions, other_files, no_weights],
    ),
)
def test_patch_makes_the_new_model_byte_for_byte(tmp_path, change):
    old, new, patch = tmp_path / "old.mlpackage", tmp_path / "new.mlpackage", tmp_path / "p.milpatch"
    is_late = change in (int4, two_functions)
    shutil.copytree(DATA / "opset_ios18_fp32" / "model.mlpackage" if is_late else DEMO, old)
    change(old, new)
    report = milblob.delta(old, new, patch)
    contents = reference.unpacked(patch.read_bytes())
    assert reference.made(contents, files_of(old)) == files_of(new)
    assert [found.hex() for found in contents.hashes] == [report.old_hash, report.new_hash]
    assert report.old_hash == milblob.content_hash(old).model and report.new_hash == milblob.content_hash(new).model
    assert report.nbytes == patch.stat().st_size
    assert report.new_nbytes == sum(map(len, files_of(new).values())) == sum(file.nbytes for file in report.files)

    applied = milblob.apply(old, patch, tmp_path / "made.mlpackage")
    assert tree(tmp_path / "made.mlpackage") == tree(new)
    assert applied.new_hash == report.new_hash and not applied.through_journal
    before, after = files_of(old), files_of(new)
    assert set(applied.changed) == {name for name, data in after.items() if before.get(name) != data}
    assert set(applied.removed) == before.keys() - after.keys() == set(report.removed)

    kept = tree(old)
    milblob.apply(old, patch, dry_run=True)
    assert tree(old) == kept
    applied = milblob.apply(old, patch)
    assert files_of(old) == after
    assert applied.through_journal == (change not in (two_functions, other_files, no_weights))
    assert tree(old) == tree(new)
    again = milblob.apply(old, patch)
    assert again.changed == () and files_of(old) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("functions/model.mlmodelc", "constexpr_ios18/model.mlmodelc"),
        ("blob_all_dtypes/weight.bin", "blob_sub_byte/weight.bin"),
        ("blob_sub_byte/weight.bin", "blob_garbage/weight.bin"),
        ("blob_empty/weight.bin", "blob_all_dtypes/weight.bin"),
        ("immediates/model.mlmodel", "containers/model.mlmodel"),
    ],
)
def test_other_kinds_of_models(tmp_path, old, new):
    a, b, patch = copy_of(DATA / old, tmp_path, "a" + os.path.splitext(old)[1]), DATA / new, tmp_path / "p"
    milblob.delta(a, b, patch)
    assert reference.made(reference.unpacked(patch.read_bytes()), files_of(a)) == files_of(b)
    milblob.apply(a, patch, tmp_path / ("c" + os.path.splitext(old)[1]))
    assert files_of(tmp_path / ("c" + os.path.splitext(old)[1])) == files_of(b)
    milblob.apply(a, patch)
    assert files_of(a) == files_of(b)


def blobs(path, arrays):
    with milblob.BlobWriter(path, sync=False) as file:
        for array in arrays:
            file.write(array)
    return path


def noise(count, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


def test_records_that_the_old_model_has_anywhere_cost_nothing(tmp_path):
    arrays = [noise(5000, seed) for seed in range(8)]
    old = blobs(tmp_path / "old.bin", arrays)
    new = blobs(tmp_path / "new.bin", [arrays[5], arrays[0], arrays[0], *arrays[3:]])
    report = milblob.delta(old, new, tmp_path / "p")
    assert report.nbytes < 1500
    assert report.files[0].copied_nbytes >= 8 * 10_000


@pytest.mark.parametrize(("dtype", "share"), [(np.float16, 0.6), (np.float32, 0.6), (np.int8, 0.2)])
def test_small_differences_cost_a_part_of_the_record(tmp_path, dtype, share):
    """Also in a file whose first record is new, so that all others have other numbers and places."""
    old = noise(40_000, 1, np.float32) * 30
    new = old * (1 + noise(40_000, 2, np.float32) / 500)
    if dtype is np.int8:
        new = old + (noise(40_000, 2, np.float32) > 1)
    a = blobs(tmp_path / "a.bin", [old.astype(dtype)])
    b = blobs(tmp_path / "b.bin", [noise(100, 3), new.astype(dtype)])
    report = milblob.delta(a, b, tmp_path / "p")
    assert report.nbytes < share * new.astype(dtype).nbytes + 800
    milblob.apply(a, tmp_path / "p", tmp_path / "c.bin")
    assert (tmp_path / "c.bin").read_bytes() == b.read_bytes()


def test_raw_is_stored_where_it_is_smaller(tmp_path):
    a, b = blobs(tmp_path / "a.bin", [noise(20_000)]), blobs(tmp_path / "b.bin", [np.zeros(20_000, np.float16)])
    report = milblob.delta(a, b, tmp_path / "p")
    assert report.nbytes < 1000
    kinds = [step[0] for step in reference.unpacked((tmp_path / "p").read_bytes()).new[0].steps]
    assert reference.RAW in kinds and reference.CHANGE not in kinds


def test_a_part_of_a_large_record_that_differs_costs_that_part(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "PIECE_NBYTES", 4096)
    old = noise(50_000)
    new = old.copy()
    new[20_000:20_100] = 7
    a, b = blobs(tmp_path / "a.bin", [old]), blobs(tmp_path / "b.bin", [new])
    assert milblob.delta(a, b, tmp_path / "p").nbytes < 4000
    milblob.apply(a, tmp_path / "p")
    assert a.read_bytes() == b.read_bytes()


def test_equal_and_other_stretches_of_large_records_have_digests_of_their_own(tmp_path):
    """The bytes of two models are hashed once where they are equal: in stretches of 1 MiB of a record, and of small ones."""
    sizes = [(3 << 20) + 10, 1 << 20, 700, 64, (1 << 20) + 2, 5 << 20]
    old = [noise(size // 2, number) for number, size in enumerate(sizes)]
    new = [array.copy() for array in old]
    new[0][-1] += 1  # the last stretch only
    new[3][0] += 1
    new[5][1 << 19] += 1  # the first byte of the second stretch
    a, b = blobs(tmp_path / "a.bin", old), blobs(tmp_path / "b.bin", [*new, noise(9, 9)])
    report = milblob.delta(a, b, tmp_path / "p")
    contents = reference.unpacked((tmp_path / "p").read_bytes())
    for path, [file] in ((a, contents.old), (b, contents.new)):
        assert reference.file_digest(path.read_bytes(), file.parts) == file.digest
    assert [found.hex() for found in contents.hashes] == [report.old_hash, report.new_hash]
    assert [milblob.content_hash(path).model for path in (a, b)] == [report.old_hash, report.new_hash]
    milblob.apply(a, tmp_path / "p")
    assert a.read_bytes() == b.read_bytes()


def test_program_is_stored_against_the_old_one(tmp_path):
    """An operation of 20,000 bytes more in front of the others: the patch has that operation."""
    text = noise(200_000, 1, np.float32).tobytes()
    old, new = (copy_of(DEMO, tmp_path, name) for name in ("old.mlpackage", "new.mlpackage"))
    (old / "large").write_bytes(text)
    (new / "large").write_bytes(text[:1000] + b"inserted" + text[1000:])
    assert milblob.delta(old, new, tmp_path / "p").nbytes < 5000


def test_change_in_place_leaves_other_files_and_bytes_alone(tmp_path):
    """The same file is changed: hard work of a copy is what the journal saves."""
    old, new = tmp_path / "old.mlpackage", tmp_path / "new.mlpackage"
    shutil.copytree(DEMO, old)
    one_layer(old, new)
    milblob.delta(old, new, tmp_path / "p")
    before = {path: path.stat().st_ino for path in old.rglob("*")}
    milblob.apply(old, tmp_path / "p")
    assert {path: path.stat().st_ino for path in old.rglob("*")} == before
    assert tree(old) == tree(new)


def test_reader_that_maps_the_old_weights_sees_the_new_ones_in_place(tmp_path):
    old, new = tmp_path / "old.mlpackage", tmp_path / "new.mlpackage"
    shutil.copytree(DEMO, old)
    one_layer(old, new)
    milblob.delta(old, new, tmp_path / "p")
    view = milblob.load(old)
    [name] = changed(view, 1)
    milblob.apply(old, tmp_path / "p")
    np.testing.assert_array_equal(view[name], milblob.load(new)[name])


OTHERS = {
    "other bytes": (lambda path: milblob.refit(path, changed(milblob.load(path), 2, 2)), "other bytes in Data"),
    "another file": (lambda path: (path / "more.txt").write_text("more"), "with the file more.txt too"),
    "a file less": (lambda path: (path / "notes.txt").unlink(), "one without notes.txt"),
    "another size": (lambda path: (path / "notes.txt").write_text("longer notes"), "notes.txt of 12 bytes instead of 5"),
}  # fmt: skip


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("is_in_place", [False, True])
def test_another_model_is_refused(tmp_path, how, is_in_place):
    old, new = tmp_path / "old.mlpackage", tmp_path / "new.mlpackage"
    shutil.copytree(DEMO, old)
    (old / "notes.txt").write_text("notes")
    one_layer(old, new)
    milblob.delta(old, new, tmp_path / "p")
    expected = milblob.content_hash(old).model
    OTHERS[how][0](old)
    before = tree(tmp_path)
    with pytest.raises(milblob.FormatError, match=f"content hash {expected}, got .*{OTHERS[how][1]}") as caught:
        milblob.apply(old, tmp_path / "p", None if is_in_place else tmp_path / "made.mlpackage")
    assert tree(tmp_path) == before
    assert caught.value.code == "another-model" and caught.value.file == str(old)


def test_new_model_is_refused_as_the_old_one(tmp_path):
    a, b = blobs(tmp_path / "a.bin", [noise(10)]), blobs(tmp_path / "b.bin", [noise(10, 1)])
    report = milblob.delta(a, b, tmp_path / "p")
    with pytest.raises(milblob.FormatError, match=f"got the one that the patch makes \\({report.new_hash}\\)"):
        milblob.apply(b, tmp_path / "p", tmp_path / "c.bin")
    assert not (tmp_path / "c.bin").exists()


def test_models_of_two_kinds_are_refused(tmp_path):
    a, b = blobs(tmp_path / "a.bin", [noise(10)]), blobs(tmp_path / "b.bin", [noise(10, 1)])
    with pytest.raises(milblob.FormatError, match="expected a blob as the old one is, got a mlpackage"):
        milblob.delta(a, DEMO, tmp_path / "p")
    milblob.delta(a, b, tmp_path / "p")
    with pytest.raises(milblob.FormatError, match="got a mlpackage, and the patch is for a blob"):
        milblob.apply(DEMO, tmp_path / "p", tmp_path / "c.mlpackage")


def test_models_whose_weights_are_elsewhere_are_refused(tmp_path):
    package = small_package(tmp_path)
    model = package / "Data" / "com.apple.CoreML" / "model.mlmodel"
    with pytest.raises(milblob.UnsupportedError, match="got a file that refers to others"):
        milblob.delta(model, model, tmp_path / "p")
    milblob.write_weights({"a": noise(10)}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    with pytest.raises(milblob.UnsupportedError, match="got a listing of weights"):
        milblob.delta(tmp_path / "w.json", tmp_path / "w.json", tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_destinations_are_kept_without_force(tmp_path):
    a, b = blobs(tmp_path / "a.bin", [noise(10)]), blobs(tmp_path / "b.bin", [noise(10, 1)])
    milblob.delta(a, b, tmp_path / "p")
    for call in (lambda: milblob.delta(a, b, tmp_path / "p"), lambda: milblob.apply(a, tmp_path / "p", b)):
        with pytest.raises(FileExistsError, match="already exists"):
            call()
    package = copy_of(DEMO, tmp_path)
    with pytest.raises(ValueError, match="expected a place outside of models"):
        milblob.delta(package, package, package / "Manifest.json", force=True)
    with pytest.raises(ValueError, match="expected a place outside of models"):
        milblob.apply(package, _patch(package, tmp_path), package / "inside.mlpackage")
    with pytest.raises(ValueError, match="level: expected at most 22, got 23"):
        milblob.delta(a, b, tmp_path / "p", level=23, force=True)


@pytest.mark.parametrize("where", ["old", "new", "another"])
def test_no_patch_is_written_into_a_model(tmp_path, where):
    folders = {name: copy_of(DEMO, tmp_path / name) for name in ("old", "new", "another")}
    before = files_of(folders[where])
    with pytest.raises(ValueError, match="expected a place outside of models"):
        milblob.delta(folders["old"], folders["new"], folders[where] / "Data/update.milpatch")
    assert files_of(folders[where]) == before


def _patch(package, folder):
    milblob.delta(package, package, folder / "same")
    return folder / "same"


def test_extra_is_named_where_zstd_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    words = "backports.zstd is not installed; run: pip install backports.zstd .milblob's extra delta"
    for call in (
        lambda: milblob.delta(DEMO, DEMO, tmp_path / "p"),
        lambda: milblob.apply(DEMO, tmp_path / "p", tmp_path / "q.mlpackage"),
    ):
        with pytest.raises(ImportError, match=words):
            call()
    assert not os.listdir(tmp_path)


MEMORY = """
    import resource
    import numpy as np
    import milblob
    from children import peak_rss_nbytes

    folder = sys.argv[1]
    base = np.random.default_rng(0).standard_normal(1 << 21).astype(np.float16)
    for name, change in (("old", 0), ("new", 1)):
        with milblob.BlobWriter(f"{folder}/{name}.bin", sync=False) as file:
            for number in range(COUNT):
                base[:100] = number
                file.write(base * np.float16(1 + change * (number % 8 == 3) / 100))
    before = peak_rss_nbytes()
    milblob.delta(f"{folder}/old.bin", f"{folder}/new.bin", f"{folder}/p")
    milblob.apply(f"{folder}/old.bin", f"{folder}/p", f"{folder}/made.bin")
    milblob.apply(f"{folder}/old.bin", f"{folder}/p")
    print(peak_rss_nbytes() - before)
"""


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_model(tmp_path):
    grown = int(run_fork(MEMORY.replace("COUNT", "128"), str(tmp_path), timeout=600))
    assert grown < 160 << 20  # of models of 512 MiB
    assert (
        (tmp_path / "made.bin").read_bytes()
        == (tmp_path / "new.bin").read_bytes()
        == (tmp_path / "old.bin").read_bytes()
    )


RECORDS = st.lists(
    st.tuples(st.sampled_from(["<f2", "<f4", "i1", "<u2"]), st.integers(1, 40), st.integers(0, 3)), max_size=6
)


@given(RECORDS, RECORDS, st.sampled_from([64, 1 << 20]))
def test_any_weight_file_from_any_other(tmp_path_factory, a, b, piece):
    folder = tmp_path_factory.mktemp("any")
    old, new = (
        blobs(folder / name, [np.arange(count).astype(dtype) * seed for dtype, count, seed in records])
        for name, records in (("a.bin", a), ("b.bin", b))
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps, "PIECE_NBYTES", piece)
        milblob.delta(old, new, folder / "p")
    assert reference.made(reference.unpacked((folder / "p").read_bytes()), files_of(old)) == files_of(new)
    milblob.apply(old, folder / "p")
    assert old.read_bytes() == new.read_bytes()
    shutil.rmtree(folder)


@given(st.binary(min_size=8, max_size=64), st.binary(min_size=8, max_size=64), st.sampled_from([0, 1, 2, 4, 8]))
def test_differences_and_planes_are_undone(new, old, width):
    count = min(len(new), len(old)) // max(width, 1) * max(width, 1)
    new, old = new[:count], old[:count]
    found = frames.planes(frames.difference(new, old, width), width)
    assert reference.elements(found.tobytes(), width, old) == new
    assert frames.restored(frames.from_planes(found, width), old, width).tobytes() == new
