"""What refit writes and holds: every byte once to a copy or to a file that changes for the most part, one weight at a time."""

import tracemalloc

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from editable_packages import left
from hostile_bytes import blob_value, const, program, write_package
from hostile_bytes import model as model_bytes
from milblob import DType
from milblob.blobs import appended
from milblob.refitting import write as refit_write
from milblob.storage import journal, transfer

pytestmark = pytest.mark.usefixtures("unsynced")

COUNT, WEIGHTS = 1 << 17, 16
NBYTES = 4 * COUNT * WEIGHTS


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "weight.bin"
    milblob.write_weights({f"#{i}": np.full(COUNT, i, np.float32) for i in range(WEIGHTS)}, path)
    return path


@pytest.fixture
def moved(monkeypatch):
    """Bytes written to files, and copied between files."""
    counts = {"written": 0, "copied": 0}
    write_at, copy_some = transfer.write_at, transfer._copy_some

    def counting_write(fd, pieces, offset):
        counts["written"] += sum(memoryview(piece).nbytes for piece in pieces)
        write_at(fd, pieces, offset)

    def counting_copy(*arguments):
        done = copy_some(*arguments)
        counts["copied"] += done
        return done

    for module in (transfer, journal, refit_write, appended):
        monkeypatch.setattr(module, "write_at", counting_write)
    monkeypatch.setattr(transfer, "_copy_some", counting_copy)
    return counts


def new_arrays(numbers, dtype=np.float32):
    return {f"#{i}": np.full(COUNT, i + 100, dtype) for i in numbers}


def values_of(path):
    return [int(values[0]) for values in milblob.load(path).values() if (values == values[0]).all()]


@pytest.mark.parametrize("count", [1, WEIGHTS // 2 - 1, WEIGHTS // 2 + 1, WEIGHTS])
def test_a_copy_is_written_once(tmp_path, model, moved, count):
    milblob.refit(model, new_arrays(range(count)), destination=tmp_path / "out.bin")
    assert values_of(tmp_path / "out.bin") == [i + 100 if i < count else i for i in range(WEIGHTS)]
    changed = NBYTES * count // WEIGHTS
    assert moved["written"] + moved["copied"] < NBYTES + (1 << 16)
    assert abs(moved["written"] - changed) < 1 << 16 or not moved["copied"]  # no copy_file_range here


@pytest.mark.parametrize("count", [1, WEIGHTS // 2 - 1, WEIGHTS // 2 + 1, WEIGHTS])
def test_in_place_the_lesser_of_two_ways(tmp_path, model, moved, count):
    """A journal takes twice the changed bytes, a new file all of them once."""
    milblob.refit(model, new_arrays(range(count)))
    assert values_of(model) == [i + 100 if i < count else i for i in range(WEIGHTS)] and left(tmp_path) == []
    changed = NBYTES * count // WEIGHTS
    assert moved["written"] + moved["copied"] < min(2 * changed, NBYTES) + (1 << 16)


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("count", [2, WEIGHTS])
def test_one_weight_is_in_memory_at_a_time(tmp_path, model, output, count):
    """Casts are made as they are written: not all values of the model at once."""
    np.savez(tmp_path / "w.npz", **new_arrays(range(count), np.float64))
    target = tmp_path / "out.bin" if output else None
    milblob.refit(model, tmp_path / "w.npz", cast=True, destination=target, dry_run=True)  # imports
    tracemalloc.start()
    try:
        milblob.refit(model, tmp_path / "w.npz", cast=True, destination=target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * 4 * COUNT  # of 16 weights; npz unpacks the one that is read


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("count", [2, WEIGHTS])
def test_what_turns_out_late_changes_nothing(tmp_path, model, output, count):
    """Numbers that do not fit are found while the values are written; all of them are named, and nothing is changed."""
    before = model.read_bytes()
    given = new_arrays(range(count), np.float64)
    given["#1"][7] = given[f"#{count - 1}"][9] = given["#0"][1] = 1e300
    with pytest.raises(ValueError) as caught:
        milblob.refit(model, given, cast=True, destination=tmp_path / "out.bin" if output else None)
    bad = sorted({0, 1, count - 1})
    assert f"got {len(bad)} problems" in str(caught.value)
    assert all(f"#{i}: element" in str(caught.value) for i in bad)
    assert model.read_bytes() == before and not (tmp_path / "out.bin").exists() and left(tmp_path) == []
    milblob.refit(model, new_arrays(range(count), np.float64), cast=True)
    assert values_of(model)[:count] == [i + 100 for i in range(count)]


def test_a_rewritten_file_keeps_permissions_and_other_names(tmp_path, model):
    """Permissions stay, other names keep the old values, and so do arrays that were read."""
    model.chmod(0o640)
    (tmp_path / "other.bin").hardlink_to(model)
    old = milblob.load(model)
    milblob.refit(model, new_arrays(range(WEIGHTS)))
    assert model.stat().st_mode & 0o777 == 0o640
    assert values_of(tmp_path / "other.bin") == list(range(WEIGHTS)) == [int(v[5]) for v in old.values()]


def test_records_that_overlap_are_refused(tmp_path):
    """Metadata that points into the data of another record: whichever is written last would spoil the other."""
    data, (first, second) = blob_file(("UINT8", np.zeros(128, "u1")), ("UINT8", np.zeros(128, "u1")))
    data = bytearray(data)
    at = int.from_bytes(data[second + 16 : second + 24], "little")
    data[first + 16 : first + 24] = (at + 64 - 128).to_bytes(8, "little")
    file, code = "@model_path/weights/weight.bin", DType.UINT8.mil_code
    body = program(*(const(blob_value(code, [128], file, at), f"w{at}") for at in (first, second)))
    package = write_package(tmp_path, model_bytes(body), {"weight.bin": bytes(data)})
    given = {name: np.ones(128, "u1") for name in milblob.load(package)}
    with pytest.raises(milblob.FormatError, match="expected none of another record"):
        milblob.refit(package, given)
    assert next(package.rglob("weight.bin")).read_bytes() == data
