"""milblob.open(path, "r+"): weights are assigned to, and written together or not at all."""

import os
import pathlib
import shutil
import sys

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from blob_files import blob_file
from cases import MODEL_CASES, case_paths, load_case
from editable_packages import (
    FULL,
    assign,
    assign_blobs,
    assign_in,
    code,
    files_of,
    left,
    make_package,
    number_of,
    recovered_number,
    turned,
)
from faults import EACH_FAILURE, read_only
from hostile_bytes import blob_value, const, model, program, write_package
from milblob import DType
from paths import DATA
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs POSIX file locks and links: writing in place is not tested here"
)


def assign_for_ever(path, first):
    for number in range(first, 1 << 30):
        assign(path, number % 250)


@pytest.fixture
def package(tmp_path):
    return make_package(tmp_path)


# ----------------------------------------------------------------------------------------------------- every fixture


@pytest.mark.parametrize(
    "name, path",
    some(
        [row for row in case_paths([name for name in MODEL_CASES if name != "wire"]) if not row[1].endswith(".pb")], 20
    ),
)
@pytest.mark.sample(7)
def test_every_tensor_of_every_fixture(tmp_path, name, path):
    """What can be assigned to reads as assigned; all other tensors and all other bytes stay."""
    source = load_case(name).folder / path
    target = tmp_path / source.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    if not source.is_dir() and (source.parent / "weights").exists():
        shutil.copytree(source.parent / "weights", tmp_path / "weights")
    before, expected, ranges = files_of(tmp_path), {}, {}
    in_place = True
    with milblob.open(target, "r+", **FULL) as opened:
        for key, tensor in opened.items():
            try:
                old = tensor.read()
            except milblob.MilblobError:
                continue
            new = turned(tensor)
            try:
                opened[key] = new
            except milblob.UnsupportedError:
                assert not tensor.is_blob
                new = old
            expected[key] = new.tolist() if new.dtype == object else (new.tobytes(), new.dtype, new.shape)
            got = opened[key].read()
            assert (got.tolist() if new.dtype == object else (got.tobytes(), got.dtype, got.shape)) == expected[key]
        shared = {}
        for key, staged in list(opened._staged.items()):  # those that are one blob get the same values
            place = str(staged.stored.mapping.name), staged.stored.offset, staged.tensor.is_blob
            if staged.tensor.is_blob and place in shared:
                other = opened._staged[shared[place]]
                assert other.data == staged.data
            shared.setdefault(place, key)
            if staged.stored.mapping.name.endswith(".mil"):
                continue  # a statement is written anew
            if len(staged.data) == staged.stored.nbytes:
                mapping, offset, nbytes = staged.stored
                ranges.setdefault(os.path.realpath(mapping.name), []).append((offset, nbytes))
            else:
                in_place = False
    assert expected
    with milblob.open(target, **FULL) as opened:
        for key, value in expected.items():
            got = opened[key].read()
            assert (got.tolist() if got.dtype == object else (got.tobytes(), got.dtype, got.shape)) == value, key
    after = files_of(tmp_path)
    assert after.keys() == before.keys()
    for file, old in before.items():
        if file.suffix == ".mlmodel" and not in_place:
            continue
        if file.suffix == ".mil":  # in which statement, and that the rest says what it did: test_repack_text.py
            assert old.count(b";") == after[file].count(b";")
            continue
        old, new = bytearray(old), bytearray(after[file])
        for offset, nbytes in ranges.get(os.path.realpath(file), ()):
            old[offset : offset + nbytes] = new[offset : offset + nbytes]
        assert old == new, file


# -------------------------------------------------------------------------------------------------------------- in place


@posix
def test_in_place(package):
    (weights,) = package.rglob("weight.bin")
    before, status = weights.read_bytes(), weights.stat()
    view = milblob.load(package)["floats"]
    with milblob.open(package, "r+") as opened:
        new = np.arange(300, dtype="<f4").reshape(3, 100)
        opened["floats"] = new
        offset = opened["floats"].data_offset
        assert weights.read_bytes() == before  # nothing is written yet
        assert np.array_equal(opened["floats"], new) and np.array_equal(opened["floats"][1], new[1])
        assert not opened["floats"].read().flags.writeable
        assert milblob.load(package)["floats"].max() == 0
    after = weights.read_bytes()
    assert after[offset : offset + 1200] == new.tobytes()
    assert after[:offset] + after[offset + 1200 :] == before[:offset] + before[offset + 1200 :]
    now = weights.stat()
    assert (now.st_ino, now.st_size, now.st_mode) == (status.st_ino, status.st_size, status.st_mode)
    assert np.array_equal(view, new)  # views show what is in the file
    assert left(package) == []


@posix
def test_model_file_is_rewritten_where_a_value_needs_another_length(package):
    (file,) = package.rglob("*.mlmodel")
    inode = file.stat().st_ino
    old = milblob.load(package)["ints"]
    assign(package, 0, ["ints"])
    assert file.stat().st_ino == inode  # as many bytes as before
    assign(package, 90, ["ints"])
    assert file.stat().st_ino != inode
    assert set(milblob.load(package)["ints"]) == {90000} and set(old) == {0}
    with milblob.open(package) as opened, milblob.open(make_package(package.parent / "fresh", 0)) as fresh:
        ours = opened.program
        ours.ClearField("docString")
        tensor = next(v for v in fresh.program.functions.values()).block_specializations["CoreML7"].operations[2]
        tensor.attributes["val"].immediateValue.tensor.ints.values[:] = [90000] * 40
        assert ours == fresh.program
    assert left(package) == []


def test_flush(package):
    with milblob.open(package, "r+") as opened:
        opened.flush()
        tensor = opened["floats"]
        assign_in(opened, 4, ["floats"])
        opened.flush()
        assert set(milblob.load(package)["floats"].reshape(-1)) == {4.0} == set(tensor.read().reshape(-1))
        opened.flush()
        old = opened["ints"]
        assign_in(opened, 4, ["ints", "bytes"])  # now the model file is a new one
        opened.flush()
        assert set(old.read()) == {0} and set(opened["ints"].read()) == {4000}
        assert number_of(package) == 4
        assign_in(opened, 5, ["ints", "bytes", "floats"])
        opened.discard()
        assert set(opened["ints"].read()) == {4000}
        assign_in(opened, 6, ["ints", "bytes", "floats"])
    assert number_of(package) == 6 and left(package) == []


def test_an_exception_writes_nothing(package):
    before = files_of(package)
    with pytest.raises(KeyboardInterrupt), milblob.open(package, "r+") as opened:
        assign_in(opened, 1, ["floats", "ints"])
        raise KeyboardInterrupt
    opened = milblob.open(package, "r+")
    assign_in(opened, 1, ["floats", "ints"])
    del opened
    assert files_of(package) == before
    opened = milblob.open(package, "r+")
    assign_in(opened, 1, ["floats", "ints", "bytes"])
    opened.close()
    opened.close()
    assert number_of(package) == 1
    with pytest.raises(ValueError, match="closed model"):
        opened["floats"] = np.zeros((3, 100), "<f4")


# --------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "name, values, kind, words",
    [
        ("floats", np.zeros((100, 3), "<f4"), ValueError, r"floats: expected shape \(3, 100\), got \(100, 3\)"),
        ("floats", np.zeros(300, "<f4"), ValueError, r"expected shape \(3, 100\), got \(300,\)"),
        ("floats", np.float32(0), ValueError, r"expected shape \(3, 100\), got \(\)"),
        ("floats", np.zeros((3, 100)), TypeError, "floats: expected elements of float32, got float64"),
        ("floats", np.zeros((3, 100), "<f2"), TypeError, "expected elements of float32, got float16"),
        ("floats", np.zeros((3, 100), "<i4"), TypeError, "expected elements of float32, got int32"),
        ("bytes", np.zeros(70, "i1"), TypeError, "expected elements of uint8, got int8"),
        ("floats", np.zeros((3, 100), "c8"), TypeError, "expected one that MIL has, got complex64"),
        ("nothing", np.zeros(3), KeyError, "nothing"),
    ],
)
def test_what_does_not_fit(package, name, values, kind, words):
    before = files_of(package)
    with milblob.open(package, "r+") as opened:
        with pytest.raises(kind, match=words):
            opened[name] = values
        assert not opened._staged
    assert files_of(package) == before


def test_forms_of_values(package):
    floats = np.arange(300, dtype="<f4").reshape(3, 100)
    for values in (floats.astype(">f4"), np.asfortranarray(floats), np.repeat(floats, 2, axis=1)[:, ::2]):
        assign(package, 0)
        with milblob.open(package, "r+") as opened:
            opened["floats"] = values
            assert np.array_equal(opened["floats"], floats)
        assert milblob.load(package)["floats"].tobytes() == floats.tobytes()
    with milblob.open(package) as other, milblob.open(make_package(package.parent / "b"), "r+") as opened:
        opened["floats"] = other["floats"]  # a tensor of another model
        assert np.array_equal(opened["floats"], floats)


def test_values_that_are_views_of_what_changes(package):
    """Two weights swap their values, each given as a view of the other's bytes in the file."""
    data, offsets = blob_file(("UINT8", np.arange(50, dtype="u1")), ("UINT8", np.arange(50, 100, dtype="u1")))
    path = package.parent / "weight.bin"
    path.write_bytes(data)
    with milblob.open(path, "r+") as opened:
        first, second = opened["#0"].read(), opened["#1"].read()
        opened["#0"], opened["#1"] = second, first
    values = milblob.load(path)
    assert values["#0"].tolist() == list(range(50, 100)) and values["#1"].tolist() == list(range(50))
    assert len(offsets) == 2


def test_sub_byte(tmp_path):
    data, offsets = blob_file(
        *[(name, np.zeros(11, "u1")) for name in ("UINT1", "UINT2", "UINT3", "UINT4", "UINT6")],
        ("INT4", np.zeros(11, "u1").view(ml_dtypes.int4)),
    )
    path = tmp_path / "weight.bin"
    path.write_bytes(data)
    for number, (name, high) in enumerate(
        (("UINT1", 1), ("UINT2", 3), ("UINT3", 7), ("UINT4", 15), ("UINT6", 63), ("INT4", 7))
    ):
        dtype, key = DType[name], f"#{number}"
        values = np.arange(11) % (high + 1) - (8 if name == "INT4" else 0)
        own = [values.astype(np.int8), values.astype(dtype.numpy)] + (
            [values.astype(np.uint8)] if name != "INT4" else []
        )
        for array in own:
            with milblob.open(path, "r+") as opened:
                opened[key] = array
                assert opened[key].read().dtype == dtype.numpy
                assert opened[key].read_packed().tobytes() == reference.pack_elements(values.tolist(), name)
                assert np.array_equal(opened[key].read().astype(int), values)
            assert np.array_equal(milblob.load(path)[key].astype(int), values)
        with (
            milblob.open(path, "r+") as opened,
            pytest.raises(OverflowError, match=f"{key}: element 3: expected .* got {high + 1}"),
        ):
            array = values.astype(np.int8)
            array[3] = high + 1
            opened[key] = array
    assert len(path.read_bytes()) == len(data) and offsets[-1] < len(data)


def test_compressed_weights(tmp_path):
    package = pathlib.Path(shutil.copytree(DATA / "palette_4bit/model.mlpackage", tmp_path / "m.mlpackage"))
    with milblob.open(package, "r+") as opened:
        name = next(name for name in opened if opened[name].compression)
        with pytest.raises(
            milblob.UnsupportedError, match=r"expected a weight that is stored dense, got constexpr_.*stored=True"
        ):
            opened[name] = np.zeros(opened[name].shape, opened[name].dtype)
        lut = opened[name].parts["lut"].name
    with milblob.open(package, "r+", stored=True) as opened:
        new = (opened[lut].read().astype(np.float32) + 1).astype(opened[lut].dtype)
        opened[lut] = new
    assert milblob.load(package, stored=True)[lut].tobytes() == new.tobytes()


def test_values_in_mil_text(tmp_path):
    """The statement is written anew, and nothing else; earlier tensors keep the old values."""
    compiled = pathlib.Path(shutil.copytree(DATA / "immediates/model_1.0.mlmodelc", tmp_path / "m.mlmodelc"))
    before = (compiled / "model.mil").read_bytes().split(b"\n")
    with milblob.open(compiled, "r+") as opened:
        name = next(name for name in opened if not opened[name].is_blob and opened[name].mil_dtype.name == "FLOAT32")
        tensor = opened[name]
        old = tensor.read()
        opened[name] = old  # nothing new
        opened.flush()
        assert (compiled / "model.mil").read_bytes().split(b"\n") == before
        opened[name] = new = old + np.float32(0.5)
        opened.flush()
        assert opened[name].read().tobytes() == new.tobytes() and tensor.read().tobytes() == old.tobytes()
    assert milblob.load(compiled)[name].tobytes() == new.tobytes()
    after = (compiled / "model.mil").read_bytes().split(b"\n")
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1 and all(f" {name} = const()".encode() in line for line in changed[0])


def test_sources(tmp_path, package):
    data = blob_file(("UINT8", np.zeros(3, "u1")))[0]
    with pytest.raises(TypeError, match=r"source for mode 'r\+': expected a path, got bytes"):
        milblob.open(data, "r+")
    for inside in (next(package.rglob("weight.bin")), next(package.rglob("*.mlmodel"))):
        with pytest.raises(ValueError, match=r"expected the whole model .*m\.mlpackage, got"):
            milblob.open(inside, "r+")
    with milblob.open(package) as opened, pytest.raises(TypeError, match="opened to read; milblob.open"):
        opened["floats"] = 1
    with pytest.raises(FileNotFoundError):
        milblob.open(tmp_path / "none", "r+")


# --------------------------------------------------------------------------------------------------------- shared blobs


def test_two_names_of_one_blob(tmp_path):
    data, (offset,) = blob_file(("FLOAT32", np.zeros(20, "<f4")))
    names = ("@model_path/weights/weight.bin", "@model_path/weights/./weight.bin")
    body = program(*[const(blob_value(code("FLOAT32"), [20], file, offset), f"w{i}") for i, file in enumerate(names)])
    package = write_package(tmp_path, model(body), {"weight.bin": data})
    before = files_of(package)
    ones, twos = np.ones(20, "<f4"), np.full(20, 2, "<f4")
    opened = milblob.open(package, "r+")
    opened["w0"] = ones
    with pytest.raises(ValueError, match="w0: expected new values for w1 too, which is the same blob, got none"):
        opened.close()
    with milblob.open(package, "r+") as opened:
        opened["w0"], opened["w1"] = ones, twos
        with pytest.raises(ValueError, match="expected equal values for w1, which is the same blob, got others"):
            opened.flush()
        opened.discard()
    assert files_of(package) == before
    with milblob.open(package, "r+") as opened:
        opened["w0"], opened["w1"] = ones, ones.copy()
    assert milblob.load(package)["w1"].tobytes() == ones.tobytes()


# ----------------------------------------------------------------------------------------------- crashes, other writers


@pytest.mark.parametrize("mode, code", EACH_FAILURE)
@pytest.mark.parametrize("action", [assign, assign_blobs])
def test_at_every_call(faults, tmp_path, mode, code, action):
    (tmp_path / "a").mkdir()
    package, states = make_package(tmp_path / "a"), set()
    before = files_of(package)
    for outcome in faults.at_every_call(action, [str(package), 1], root=package, mode=mode, code=code):
        with milblob.open(package, "r+"):
            pass  # completes what was begun, and sweeps
        if action is assign_blobs:
            values = milblob.load(package)
            (number,) = {*np.unique(values["floats"]), *np.unique(values["bytes"])}
        else:
            number = number_of(package)
        assert number == 1 or outcome.exit != "ok", outcome
        assert left(package) == [], outcome
        states.add(number)
        for path, data in before.items():
            path.write_bytes(data)
    assert states == {0, 1} if mode != "short" else states == {1}


@pytest.mark.parametrize("mode, code", EACH_FAILURE)
def test_at_every_call_of_a_compiled_model(faults, tmp_path, mode, code):
    """Its text is replaced in the same step in which its weight file changes."""
    compiled, states = tmp_path / "m.mlmodelc", set()
    (compiled / "weights").mkdir(parents=True)
    with milblob.BlobWriter(compiled / "weights" / "weight.bin") as blobs:
        offset = blobs.write(np.zeros(70, np.uint8))
    blob = f'BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64({offset}))'
    zeros = ", ".join("0" * 12)
    constants = "".join(
        f"tensor<{dtype}, [{size}]> {name} = const()[val = tensor<{dtype}, [{size}]>({value})];\n"
        for name, dtype, size, value in (
            ("floats", "fp32", 12, f"[{zeros}]"),
            ("bytes", "uint8", 70, blob),
            ("ints", "int32", 12, f"[{zeros}]"),
        )
    )
    (compiled / "model.mil").write_text(f"program(1.3)\n{{func main<ios18>() {{\n{constants}}} -> (ints);}}")
    before = files_of(compiled)
    for outcome in faults.at_every_call(assign, [str(compiled), 1], root=compiled, mode=mode, code=code):
        with milblob.open(compiled, "r+"):
            pass  # completes what was begun, and sweeps
        number = number_of(compiled)
        assert number == 1 or outcome.exit != "ok", outcome
        assert left(compiled) == [], outcome
        states.add(number)
        for path, data in before.items():
            path.write_bytes(data)
    assert states == {0, 1} if mode != "short" else states == {1}


def test_kill_9_while_assigning(faults, tmp_path):
    package = make_package(tmp_path)
    seen = set()
    for _ in faults.kill_often(
        assign_for_ever,
        lambda: [str(package), 1 + max(seen, default=0) % 200],
        root=package,
        seed="editing",
        count=sized(10, 70),
        is_enough=lambda: len(seen) > 5,
    ):
        seen.add(recovered_number(package))
        with milblob.open(package, "r+"):
            pass
        assert left(package) == []


@posix
def test_two_writers(package):
    with milblob.open(package, "r+") as first:
        with pytest.raises(BlockingIOError, match="only writer"):
            milblob.open(package, "r+")
        with pytest.raises(BlockingIOError, match="only writer"):
            milblob.refit(package, {"bytes": np.zeros(70, "u1")})
        assert len(milblob.load(package)) == 3  # readers may
        assign_in(first, 1, ["floats"])
    (weights,) = package.rglob("weight.bin")
    with milblob.BlobWriter(weights, "a"), milblob.open(package, "r+") as second, pytest.raises(BlockingIOError):
        assign_in(second, 1, ["bytes"])
    alone = package.parent / "alone.bin"
    shutil.copy(weights, alone)
    with milblob.open(alone, "r+"), milblob.open(alone), pytest.raises(BlockingIOError):
        milblob.open(alone, "r+")


@posix
def test_fork(package):
    """A copy of the model in a forked process writes nothing, and does not keep the lock."""
    opened = milblob.open(package, "r+")
    assign_in(opened, 1, ["floats", "bytes", "ints"])
    reader, writer = os.pipe()
    waiting, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            opened.close()
        except RuntimeError as error:
            os.write(writer, str(error).encode())
            os.read(waiting, 1)  # lives on while the parent goes on
        finally:
            os._exit(0)
    assert b"expected to be written by the process that opened it" in os.read(reader, 1000)
    assert number_of(package) == 0
    with pytest.raises(BlockingIOError):
        milblob.open(package, "r+")
    opened.close()
    assert number_of(package) == 1
    milblob.open(package, "r+").close()
    os.write(end, b"x")
    os.waitpid(pid, 0)
    for fd in (reader, writer, waiting, end):
        os.close(fd)


@posix
def test_a_file_that_is_replaced_during_the_call(package):
    (weights,) = package.rglob("weight.bin")
    with milblob.open(package, "r+") as opened:
        opened["floats"].read()
        shutil.copy(weights, weights.with_name("other"))
        os.replace(weights.with_name("other"), weights)
        with pytest.raises(milblob.FormatError, match="expected the one that was opened, got another by that name"):
            assign_in(opened, 1, ["floats"])


@posix
def test_hard_links_keep_the_old_values(package, tmp_path):
    (weights,), (file,) = package.rglob("weight.bin"), package.rglob("*.mlmodel")
    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(package, copy, copy_function=os.link)
    with milblob.open(package, "r+") as opened:
        assign_in(opened, 1, ["floats", "bytes", "ints"])
        opened.flush()
        assign_in(opened, 2, ["floats", "bytes", "ints"])
    assert number_of(copy) == 0 and number_of(package) == 2
    assert weights.stat().st_nlink == file.stat().st_nlink == 1 and left(tmp_path) == []


@posix
def test_links(package, tmp_path):
    (tmp_path / "way.mlpackage").symlink_to(package.name)
    assign(tmp_path / "way.mlpackage", 3)
    assert number_of(package) == 3
    data = blob_file(("UINT8", np.zeros(3, "u1")))[0]
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "weight.bin").write_bytes(data)
    (tmp_path / "link.bin").symlink_to("real/weight.bin")
    with milblob.open(tmp_path / "link.bin", "r+") as opened:
        opened["#0"] = np.ones(3, "u1")
    assert (tmp_path / "link.bin").is_symlink()
    assert milblob.load(tmp_path / "real/weight.bin")["#0"].tolist() == [1, 1, 1]
    assert left(tmp_path) == []


@posix
def test_read_only_package(package):
    (weights,) = package.rglob("weight.bin")
    with read_only(weights.parent), read_only(package):
        if os.geteuid() != 0:
            weights.chmod(0o444)
        with milblob.open(package, "r+") as opened:
            try:
                assign_in(opened, 1, ["floats"])
                with pytest.raises(PermissionError):
                    opened.flush()
            except PermissionError:
                pass  # at the assignment, where the file itself may not be written
            opened.discard()
    assert number_of(package) == 0 and left(package) == []
