"""Arrays and mapped files that others change while they are read: a right value or a MilblobError, nothing past an array.

The C drivers `between`, `midway` and `races` (test_c_drivers.py) show it of every kernel, at places that are always the same.
Here it goes through what users call. Each workflow runs in a child, since what was wrong here ended the process.
"""

import re
import sys
import types

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from children import run_fork
from hostile_bytes import blob_value, const, field, immediate, model, program, write_package
from milblob import DType, FormatError, _codec
from milblob.values import cast as casting
from milblob.values import tensorvalue
from thorough import some

TIERS = _codec.tiers()[0]
COUNT = 60_000
ROUNDS = 40

# A thread, or a process over a mapped file, fills an array with one value, then with the other, in steps that others see.
FLIP = """
import mmap, os, pathlib, subprocess, sys, threading, time
import numpy as np
import milblob
from milblob import _codec
from milblob.values import cast as casting

def flip(array, values, is_over):
    while not is_over():
        for value in values:
            for begin in range(0, len(array), 997):
                array[begin : begin + 997] = value

def in_thread(array, values):
    over = threading.Event()
    thread = threading.Thread(target=flip, args=(array, values, over.is_set), daemon=True)
    thread.start()
    return lambda: (over.set(), thread.join())

OTHER = '''
import os, sys, numpy as np
path, offset, count, dtype, low, high = sys.argv[1:]
array, parent = np.memmap(path, dtype, "r+", int(offset), (int(count),)), os.getppid()
print("ready", flush=True)
while os.getppid() == parent:
    for value in (int(low), int(high)):
        for begin in range(0, len(array), 997):
            array[begin : begin + 997] = value
'''

def in_process(path, offset, count, dtype, values):
    command = [sys.executable, "-c", OTHER, path, offset, count, dtype, *values]
    other = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"ready\\n"
    return lambda: (other.kill(), other.wait(), other.stdout.close())
"""

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="a mapped file cannot be written to by others there: one that is, is not tested"
)


@pytest.mark.parametrize("tier", some(TIERS, 1))
def test_pack_tensor_of_an_array_that_a_thread_changes(tier):
    """Small numbers become large ones and the other way: they take other numbers of bytes. Out of range and back too."""
    code = """
        tier, count, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        _codec.set_tier(tier)
        refused = 0
        for own, target, values in [
            ("i2", "int16", (1, -300)), ("u2", "uint16", (1, 40000)), ("i4", "int32", (1, -1)), ("i4", "int32", (127, 1 << 30)),
            ("i8", "int64", (3, -(1 << 60))), ("u8", "uint64", (1, (1 << 64) - 1)), ("u1", "uint4", (7, 200)), ("i1", "int4", (-8, 100)),
            ("u1", "uint1", (1, 2)), ("u1", "uint3", (7, 8)), ("u1", "uint6", (63, 64)), ("i4", "int16", (5, 70000)), ("u1", "bool", (1, 255)),
        ]:
            array = np.full(count, values[0], own)
            given = array.view(bool) if target == "bool" else array
            stop = in_thread(array, values)
            for _ in range(rounds):
                try:
                    value = milblob.pack_tensor(given, target)
                except (milblob.MilblobError, OverflowError):
                    refused += 1
                    continue
                found = milblob.unpack_tensor(value, target, (count,))
                wanted = (0, 1) if target == "bool" else values
                assert set(np.unique(found).tolist()) <= set(wanted), (target, np.unique(found))
            stop()
        print(refused)
    """
    run_fork(FLIP + "if True:" + code, tier, COUNT, ROUNDS)


def test_writing_blobs_from_an_array_that_a_thread_changes(tmp_path):
    code = """
        folder, count, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        for own, target, values in [("u1", "uint4", (7, 200)), ("i4", "int8", (5, 70000)), ("i4", "int32", (5, 70000)), ("f4", "float16", (1, 1e30))]:
            array = np.full(count, values[0], own)
            stop = in_thread(array, values)
            for number in range(rounds):
                path = f"{folder}/{target}-{number}"
                try:
                    with milblob.BlobWriter(path) as blobs:
                        given = array if own != "f4" else casting.cast_array(array, target)[0]
                        offset = blobs.write(given, dtype=target)
                except (milblob.MilblobError, OverflowError):
                    assert not os.path.exists(path)
                    continue
                with milblob.BlobReader(path) as blobs:
                    assert set(np.unique(blobs.read(offset)).tolist()) <= set(values), target
            stop()
    """
    run_fork(FLIP + "if True:" + code, tmp_path, COUNT, ROUNDS // 4)


@posix
def test_refit_from_a_file_that_a_process_changes(tmp_path):
    """Immediate int32: as many bytes as its values take, all counted before they are written."""
    values = milblob.pack_tensor(np.zeros(COUNT, "<i4"))
    (tmp_path / "m.mlmodel").write_bytes(model(program(const(immediate(DType.INT32.mil_code, [COUNT], values)))))
    np.save(tmp_path / "w.npy", np.ones(COUNT, "<i4"))
    code = """
        folder, count, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
        offset = len((folder / "w.npy").read_bytes()) - 4 * count
        stop = in_process(folder / "w.npy", offset, count, "<i4", (1, -7))
        done = 0
        for _ in range(rounds):
            try:
                milblob.refit(folder / "m.mlmodel", folder / "w.npy", destination=folder / "out.mlmodel", force=True)
            except milblob.MilblobError:
                continue
            found = milblob.load(folder / "out.mlmodel")["w"]
            assert found.shape == (count,) and set(np.unique(found).tolist()) <= {1, -7}
            done += 1
        stop()
        milblob.refit(folder / "m.mlmodel", folder / "w.npy", destination=folder / "out.mlmodel", force=True)
    """
    run_fork(FLIP + "if True:" + code, tmp_path, COUNT, ROUNDS)


@posix
@pytest.mark.parametrize("what", some(["inline", "cast", "decompress", "dedupe"], 2))
def test_repack_of_a_package_that_a_process_changes(tmp_path, what):
    """Whole and readable, or refused. That a source has changed is noticed at the end at the latest."""
    dtype = DType.FLOAT32 if what == "cast" else DType.INT32
    data, offsets = blob_file((dtype.name, np.ones(COUNT, dtype.numpy)))
    value = blob_value(dtype.mil_code, [COUNT], "@model_path/weights/w.bin", offsets[0])
    package = write_package(tmp_path, model(program(const(value))), {"w.bin": data})
    code = """
        package, out, count, rounds, what = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
        weights = f"{package}/Data/com.apple.CoreML/weights/w.bin"
        offset = os.path.getsize(weights) - 4 * count
        options = {"inline": {"inline": count + 1}, "cast": {"cast": "float16"}, "decompress": {"decompress": True}, "dedupe": {"dedupe": True}}
        stop = in_process(weights, offset, count, "<f4" if what == "cast" else "<i4", (1, -7))
        for _ in range(rounds):
            try:
                milblob.repack(package, out, force=True, **options[what])
            except (milblob.MilblobError, OverflowError):
                continue
            found = milblob.load(out)["w"]
            assert found.shape == (count,) and set(np.unique(found).tolist()) <= {1, -7}
        stop()
    """
    run_fork(FLIP + "if True:" + code, package, tmp_path / "out.mlpackage", COUNT, ROUNDS // 8, what, timeout=300)


@posix
def test_reading_a_model_that_a_process_changes(tmp_path):
    """Varints inside a mapped model whose lengths change under the reader, and the tags around them."""
    values = milblob.pack_tensor(np.full(COUNT, 300, "<i4"))
    one = immediate(DType.INT32.mil_code, [COUNT], values)
    flags = immediate(DType.BOOL.mil_code, [COUNT], field(3, field(1, b"\1" * COUNT)))
    strings = immediate(DType.STRING.mil_code, [50], field(4, field(1, b"abcd") * 50))
    (tmp_path / "m.mlmodel").write_bytes(
        model(program(const(one, "w"), const(flags, "flags"), const(strings, "strings")))
    )
    code = """
        path, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
        nbytes = path.stat().st_size
        for values in [(0x81, 1), (0, 255), (10, 18)]:
            before = path.read_bytes()
            stop = in_process(path, nbytes // 3, nbytes - nbytes // 3, "u1", values)
            for _ in range(rounds):
                try:
                    with milblob.open(path, constants=True) as opened:
                        for name in opened:
                            value = opened[name].read()
                            assert value.dtype != bool or value.view("u1").max() <= 1
                except milblob.MilblobError:
                    pass
            stop()
            path.write_bytes(before)
    """
    run_fork(FLIP + "if True:" + code, tmp_path / "m.mlmodel", ROUNDS // 4)


# ----------------------------------------------------------------------------------------- at a place that is always the same


def test_an_element_that_did_not_fit_and_is_gone(monkeypatch):
    """The kernel counts an overflow; looked for again, there is none: an error of ours, and no reading after the array."""
    array = np.array([1, 1e30, 2], "<f4")

    def counted_before(kind, source, offset, count, dst, clamp):
        counts = _codec.cast(kind, source, offset, count, dst, clamp)
        array[1] = 1
        return counts

    monkeypatch.setattr(casting.parallel, "cast", counted_before)
    with pytest.raises(FormatError, match="changed while they were read"):
        casting.cast_array(array, "float16")


@pytest.mark.parametrize("own", ["<i4", "<u4", "<i8", "<f8"])
def test_checked_and_kept_values_are_the_same_ones(own, monkeypatch):
    """Integers that are narrowed, and floats without a kernel, are copied before they are looked at."""
    seen = []
    array = np.ones(100, own)

    class Source(np.ndarray):
        def copy(self, *arguments, **names):
            seen.append(self.size)
            copied = np.array(self, copy=True)
            array[:] = 70000  # too large for int8 and float16: whoever looks again sees it
            return copied.view(np.ndarray)

    given = array.view(Source)
    if own == "<f8":
        numpy = types.SimpleNamespace(**{name: getattr(np, name) for name in dir(np)})
        numpy.ndarray = lambda *arguments: given
        monkeypatch.setattr(casting, "np", numpy)
        out = np.empty(100, np.float16)
        casting.convert_into(out, _codec.Buffer(array), 0, 100, "float64", "float16")
    else:
        out = tensorvalue.narrow(given, DType.INT8)
    assert seen == [100] and set(out.tolist()) == {1}


def test_another_size_is_refused_by_the_codec():
    """What the codec raises where a kernel says that its source has changed, in words and as a class."""
    words = (
        "bytes of the elements: expected {} as counted before, got another number: they changed while they were read"
    )
    stub = """
        array = np.zeros(40_000_000, "<i4")
        stop = in_thread(array, (1, -1))
        for _ in range(300):
            try:
                milblob.pack_tensor(array)
            except milblob.FormatError as error:
                assert error.offset is None and error.file is None
                print(error)
                break
        stop()
    """
    found = run_fork(FLIP + "if True:" + stub)
    assert re.fullmatch(re.escape(words).replace(r"\{\}", r"\d+") + "\n", found)


@pytest.mark.parametrize("tier", some(TIERS, 1))
def test_compressing_an_array_that_a_thread_changes(tier):
    """Palettes of numbers and of vectors, and pruned neighbours: what comes out is whole, or a refusal by name."""
    code = """
        from milblob.lossy import palettize, prune, vectors

        tier, count, rounds = sys.argv[1], int(sys.argv[2]) // 32 * 32, int(sys.argv[3])
        _codec.set_tier(tier)
        rng, done = np.random.default_rng(0), 0
        for dtype in ("f2", "f4"):
            low, high = (rng.standard_normal(997).astype(dtype) for _ in range(2))
            for last in (1.0, np.nan):  # finite all the time, or not
                high[-1] = last
                array = np.resize(low, count).reshape(-1, 32)
                stop = in_thread(array.reshape(-1)[: count // 997 * 997], (low, high))
                for call in (
                    lambda: palettize.palettize(array, 4), lambda: palettize.palettize(array, 2, axis=0, group_size=count // 64),
                    lambda: list(palettize.Palettizer(array, 4).stretches()), lambda: palettize.palettize(array, 4, mode="uniform"),
                    lambda: vectors.palettize_vectors(array, 2, vector=2, axis=1, restarts=1),
                    lambda: prune.prune(array, n_m=(2, 4)), lambda: prune.prune(array, sparsity=0.5, block=4),
                    lambda: prune.prune(array, sparsity=0.5),
                ):
                    for _ in range(rounds):
                        try:
                            made = call()
                        except ValueError as error:
                            assert "expected" in str(error)
                            continue
                        done += 1
                        if isinstance(made, palettize.Palettized):
                            assert made.indices.max() < 1 << made.nbits
                        elif isinstance(made, prune.Pruned):
                            assert made.nonzero.size == np.unpackbits(made.mask).sum()
                stop()
        assert done
    """
    run_fork(FLIP + "if True:" + code, tier, COUNT // 4, 2)
