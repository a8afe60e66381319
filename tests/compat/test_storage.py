"""The reader and the writer for coremltools, called side by side with coremltools' own."""

import copy
import decimal
import fractions
import os
import pathlib
import pickle
import struct
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peers import WITHOUT
from thorough import sized

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools import libmilstoragepython as theirs

from milblob.compat import storage as ours

KINDS = {
    "float": np.float32, "fp16": np.uint16, "int8": np.int8, "int16": np.int16, "int32": np.int32, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "int4": np.int8, "uint1": np.uint8, "uint2": np.uint8, "uint3": np.uint8,
    "uint4": np.uint8, "uint6": np.uint8,
}  # fmt: skip
NBITS = {"int4": 4, "uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6}


class Index:
    def __index__(self):
        return 64


class Int:
    def __int__(self):
        return 64


class Bool:
    def __bool__(self):
        return True


class BadBool:
    def __bool__(self):
        raise KeyError


def outcome(call, *args, **kwargs):
    """What a call gives: the class of its error, or what it returns with its type and layout."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = call(*args, **kwargs)
    except Exception as error:
        return type(error)
    if isinstance(value, np.ndarray):
        flags = value.flags
        return value.dtype, value.shape, flags.writeable, flags.owndata or value.base.flags.owndata, value.tobytes()
    return type(value), value if isinstance(value, int) else None


def elements(kind, count, seed=0):
    rng = np.random.default_rng([count, seed])
    if kind == "float":
        return rng.standard_normal(count).astype(np.float32)
    if kind in NBITS:
        low = -8 if kind == "int4" else 0
        return rng.integers(low, low + (1 << NBITS[kind]), count).astype(KINDS[kind])
    return rng.integers(np.iinfo(KINDS[kind]).min, np.iinfo(KINDS[kind]).max, count, KINDS[kind], endpoint=True)


@pytest.mark.parametrize("name", ["_BlobStorageWriter", "_BlobStorageReader"])
def test_they_have_the_same_methods(name):
    def public(module):
        return {n for n in dir(getattr(module, name)) if not n.startswith("_")}

    assert public(ours) == public(theirs)
    for method in public(ours):
        assert getattr(getattr(ours, name), method).__name__ == method
        assert f"numpy.{np.dtype(KINDS[method.split('_')[1]]).name}" in getattr(getattr(theirs, name), method).__doc__


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(5)
def test_files_and_arrays_are_the_same(tmp_path, kind):
    writers = [m._BlobStorageWriter(str(tmp_path / n)) for m, n in ((theirs, "theirs"), (ours, "ours"))]
    offsets = []
    for count in [*range(1, 70), 0, 1000, 1 << 18, (1 << 18) + 1, 600_001]:
        array = elements(kind, count)
        a, b = (getattr(writer, f"write_{kind}_data")(array) for writer in writers)
        assert a == b and type(a) is type(b) is int
        offsets.append(a)
    del writers
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    readers = [m._BlobStorageReader(str(tmp_path / "ours")) for m in (theirs, ours)]
    for offset in offsets:
        a, b = (outcome(getattr(reader, f"read_{kind}_data"), offset) for reader in readers)
        assert a == b


ARGUMENTS = [
    1, 1.5, [1, 2], [], [[1, 2], [3, 4]], "5", "x", b"ab", None, [None], {}, object(), True, [True], np.array([1.7, 2.2]),
    np.array([1 + 2j]), np.array(["1", "2"]), np.array(["x"]), [300], [-1], np.array([300]), np.array([-1]), [1 << 40],
    np.float16([1.5]), np.array([], float), np.array(3), (1, 2), range(3), iter([1]), memoryview(b"abc"), bytearray(b"abc"),
    np.array([1, None], object), np.array([1, 2], object), np.ma.array([1, 2], mask=[0, 1]), np.array([float("nan")]),
    np.array([1], "M8[s]"), np.array([(1, 2)], "i1,i1"), np.array([1, 2], ml_dtypes.int4), np.array([1, 2], ">u2"),
    np.array([-3, 2], ml_dtypes.int4), np.array([1, 2], ml_dtypes.bfloat16), 10**30, [10**30], [[1], [2, 3]],
    np.array([-80, 2], np.float32), np.array([1, 80, 2, 0, 2]), np.float64(3), np.zeros((2, 0, 3)),
    decimal.Decimal(3), [decimal.Decimal(3)], np.array([0, 1], bool), np.arange(6).reshape(1, 2, 3), np.array([-9, 8]), [7, -8],
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(5)
def test_writers_take_and_refuse_the_same(tmp_path, kind):
    writers = [m._BlobStorageWriter(str(tmp_path / n)) for m, n in ((theirs, "theirs"), (ours, "ours"))]
    for argument in ARGUMENTS:
        a, b = (outcome(getattr(writer, f"write_{kind}_data"), argument) for writer in writers)
        assert a == b, repr(argument)
    writers.clear()
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_messages_for_values_outside_a_dtype(tmp_path):
    for kind, nbits in NBITS.items():
        for array in (np.array([0, 1, -80, 77]), np.array([1, 80, 200]), np.arange(-8, 9), np.arange(65)):
            words = []
            for module in (theirs, ours):
                with pytest.raises(ValueError) as error:
                    getattr(module._BlobStorageWriter(str(tmp_path / "w")), f"write_{kind}_data")(array)
                words.append(str(error.value))
            assert words[0] == words[1] and str(2 ** (nbits - (kind == "int4")) - 1) in words[0]


def test_methods_take_one_positional_argument(tmp_path):
    path = str(tmp_path / "w")
    for module in (theirs, ours):
        writer = module._BlobStorageWriter(path)
        writer.write_uint8_data([1])
        reader = module._BlobStorageReader(path)
        for call, argument in ((writer.write_uint8_data, [1]), (reader.read_uint8_data, 64)):
            for args, kwargs in (((), {}), ((argument, argument), {}), ((), {"arg0": argument})):
                with pytest.raises(TypeError):
                    call(*args, **kwargs)
        with pytest.raises(AttributeError):
            writer.anything = 1


OFFSETS = [
    64, 192, 0, 1, 63, 65, 128, 10**9, -1, 2**64, 2**64 - 1, 2**64 - 64, 2**63, True, np.int64(64), np.uint8(64), np.array(64),
    np.array([64]), np.array([64, 64]), 64.0, np.float32(64), np.float64(64), "64", b"64", None, 64 + 0j, Index(), Int(), Bool(),
    decimal.Decimal(64), fractions.Fraction(129, 2), object(), [64],
]  # fmt: skip


@pytest.mark.parametrize("kind", ["uint8", "fp16", "uint4", "int4"])
def test_readers_take_and_refuse_the_same_offsets(tmp_path, kind):
    path = str(tmp_path / "w")
    writer = theirs._BlobStorageWriter(path)
    getattr(writer, f"write_{kind}_data")([1, 2, 3])
    writer.write_float_data([1.5])
    del writer
    for offset in OFFSETS:
        results = [outcome(getattr(m._BlobStorageReader(path), f"read_{kind}_data"), offset) for m in (theirs, ours)]
        assert results[0] == results[1], repr(offset)


@pytest.mark.parametrize("name", ["_BlobStorageWriter", "_BlobStorageReader"])
def test_constructors_take_and_refuse_the_same(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    names = [
        "a", "none/x", "directory", b"b", bytearray(b"c"), pathlib.Path("d"), None, 3, "", "\udcff", "é", np.str_("e"),
        memoryview(b"f"), os.devnull,
    ]  # fmt: skip
    for file_name in names:
        results = [outcome(getattr(m, name), file_name) for m in (theirs, ours)]
        results = [r if isinstance(r, type) else r[0].__name__ for r in results]
        assert results[0] == results[1], file_name
    for kwargs in ({}, {"arg0": "a"}, {"file_name": "a"}, {"file_name": "a", "truncate_file": False}, {"other": 1}):
        results = [outcome(getattr(m, name), **kwargs) for m in (theirs, ours)]
        results = [r if isinstance(r, type) else r[0].__name__ for r in results]
        assert results[0] == results[1], kwargs


def test_truncate_file_means_the_same(tmp_path):
    values = [
        True, False, None, 0, 1, 2, "x", "", [], [1], np.bool_(0), np.int64(0), 1.0, 0.0, {}, Bool(), BadBool(), object(),
    ]  # fmt: skip
    for number, value in enumerate(values):
        results = []
        for module, name in ((theirs, "theirs"), (ours, "ours")):
            path = tmp_path / f"{name}{number}"
            module._BlobStorageWriter(str(path)).write_float_data([1, 2])
            result = outcome(module._BlobStorageWriter, str(path), value)
            results.append((result if isinstance(result, type) else None, path.read_bytes()))
        assert results[0] == results[1], repr(value)


def test_appending_is_the_same(tmp_path):
    for start in (
        b"",
        b"\1" * 10,
        b"\1" * 64,
        struct.pack("<II56x", 0, 2),
        struct.pack("<II56x", 7, 2) + b"odd",
        struct.pack("<II", 0, 2),
    ):
        results = []
        for module, name in ((theirs, "theirs"), (ours, "ours")):
            path = tmp_path / name
            path.write_bytes(start)

            def append(module=module, path=path):
                writer = module._BlobStorageWriter(str(path), False)
                return [writer.write_uint8_data([1, 2, 3]), writer.write_uint3_data([1, 2, 3])][-1]

            results.append((outcome(append), path.read_bytes()))
        assert results[0] == results[1], start
    with pytest.raises(RuntimeError, match="Incorrect file header, please use truncateFile=true"):
        (tmp_path / "w").write_bytes(b"x")
        ours._BlobStorageWriter(str(tmp_path / "w"), truncate_file=False)


def test_files_that_are_none(tmp_path):
    for name, content in (
        ("empty", b""),
        ("short", b"\1" * 10),
        ("almost", b"\1" * 63),
        ("version1", struct.pack("<II56x", 1, 1)),
        ("zeros", bytes(64)),
    ):
        (tmp_path / name).write_bytes(content)
    for name in ("empty", "short", "almost", "version1", "zeros", "missing", "."):
        results = [outcome(m._BlobStorageReader(str(tmp_path / name)).read_uint8_data, 64) for m in (theirs, ours)]
        assert results[0] == results[1] and results[0] in (ValueError, RuntimeError), name


def test_a_reader_opens_its_file_when_it_reads(tmp_path):
    path = str(tmp_path / "later")
    for module in (theirs, ours):
        reader = module._BlobStorageReader(path)
        with pytest.raises(RuntimeError):
            reader.read_uint8_data(64)
        module._BlobStorageWriter(path).write_uint8_data([5, 6])
        assert reader.read_uint8_data(64).tolist() == [5, 6]
        os.remove(path)


def patched(data, offset, fields):
    values = dict(
        zip(("sentinel", "code", "nbytes", "data", "padding"), struct.unpack_from("<IIQQQ", data, offset), strict=True)
    )
    struct.pack_into("<IIQQQ", data, offset, *{**values, **fields}.values())


@pytest.mark.parametrize("kind", ["uint8", "fp16", "float", "uint1", "uint3", "uint4", "int4", "uint6"])
def test_broken_metadata_ends_in_the_same_class(tmp_path, kind):
    path = tmp_path / "w"
    writer = ours._BlobStorageWriter(str(path))
    offset = getattr(writer, f"write_{kind}_data")(elements(kind, 16))
    getattr(writer, f"write_{kind}_data")(elements(kind, 16))
    good = path.read_bytes()
    size = len(good)
    changes = [
        {"sentinel": 0}, {"sentinel": 0, "code": 99}, {"code": 99}, {"code": 0}, {"nbytes": 0}, {"nbytes": size}, {"nbytes": size - 128},
        {"nbytes": 2**64 - 1, "data": 0}, {"nbytes": 2**63}, {"data": size}, {"data": size - 1}, {"data": 2**64 - 1},
        {"data": 2**63}, {"padding": 8}, {"padding": 2**64 - 1}, {"padding": 7}, {"padding": 1}, {"padding": 2},
        {"padding": 3}, {"padding": 4}, {"padding": 5}, {"padding": 6}, {"data": size - 16, "nbytes": 4},
    ]  # fmt: skip
    for change in changes:
        data = bytearray(good)
        patched(data, offset, change)
        path.write_bytes(data)
        results = [
            outcome(getattr(m._BlobStorageReader(str(path)), f"read_{kind}_data"), offset) for m in (theirs, ours)
        ]
        assert results[0] == results[1], change


def test_what_the_native_reader_would_read_beyond_is_refused(tmp_path):
    """Each of these is accepted by coremltools, or ends its process."""
    path = tmp_path / "w"
    ours._BlobStorageWriter(str(path)).write_float_data(np.arange(16))
    good = path.read_bytes()
    for change in (
        {"nbytes": 63},
        {"nbytes": 3},
        {"data": 0},
        {"data": 64},
        {"data": 100},
        {"data": 128, "nbytes": 2**64 - 100},
    ):
        data = bytearray(good)
        patched(data, 64, change)
        path.write_bytes(data)
        with pytest.raises((RuntimeError, ValueError)):
            ours._BlobStorageReader(str(path)).read_float_data(64)
    path.write_bytes(good)
    reader = ours._BlobStorageReader(str(path))
    kept = reader.read_float_data(64)
    os.truncate(path, 100)
    with pytest.raises(RuntimeError, match="size: expected 192 bytes as when it was opened, got 100"):
        reader.read_float_data(64)
    assert kept.tolist() == list(range(16))
    data = bytearray(good)
    struct.pack_into("<I", data, 0, 2**32 - 1)
    path.write_bytes(data)
    writer = ours._BlobStorageWriter(str(path), truncate_file=False)
    with pytest.raises(RuntimeError, match="records"):
        writer.write_float_data([1])
    assert path.read_bytes() == data
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n" + bytes(10))
    with pytest.raises(RuntimeError, match="git lfs pull"):
        ours._BlobStorageReader(str(path)).read_float_data(64)
    for name in ("a\0b", b"a\0b"):
        with pytest.raises(RuntimeError, match="(?i)nul"):
            ours._BlobStorageReader(name).read_float_data(64)
        with pytest.raises(RuntimeError, match="(?i)nul"):
            ours._BlobStorageWriter(name)


@settings(max_examples=sized(40, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_end_in_the_same_class_or_are_refused(tmp_path, data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    path = tmp_path / "w"
    writer = ours._BlobStorageWriter(str(path))
    offset = getattr(writer, f"write_{kind}_data")(elements(kind, data.draw(st.integers(1, 40))))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        # A length that wraps around 2^64 ends the native reader's process: its upper bytes stay.
        at = data.draw(st.sampled_from([at for at in range(len(content)) if at not in range(offset + 11, offset + 16)]))
        content[at] = data.draw(st.sampled_from([0, 1, 2, 3, 7, 63, 64, 128, 255]))
    del content[data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else len(content) :]
    path.write_bytes(content)
    a, b = (outcome(getattr(m._BlobStorageReader(str(path)), f"read_{kind}_data"), offset) for m in (theirs, ours))
    assert a == b or b is RuntimeError


def test_strided_arrays_are_written_element_by_element(tmp_path):
    """The native writer writes what follows the first element in memory."""
    path = str(tmp_path / "w")
    writer, reader = ours._BlobStorageWriter(path), ours._BlobStorageReader(path)
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for strided in (
        array[::2],
        array[:, ::-1],
        array.T,
        np.asfortranarray(array),
        np.broadcast_to(np.float32(7), (3, 4)),
    ):
        offset = writer.write_float_data(strided)
        assert (
            ours._BlobStorageReader(path).read_float_data(offset).tolist() == strided.reshape(-1).tolist()
        )  # complete while the writer is there
    with pytest.raises(RuntimeError):
        ours._BlobStorageReader(path + "x").read_float_data(64)
    assert reader.read_float_data(64).tolist() == array[::2].reshape(-1).tolist()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "w"
    writer = ours._BlobStorageWriter(str(path))
    writer.write_float_data([1, 2])
    before = path.read_bytes()

    def full(fd, pieces, offset):
        os.pwrite(fd, b"part of it", offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ours, "write_at", full)
        with pytest.raises(RuntimeError, match="Unknown error occurred while writing data to the file.*No space left"):
            writer.write_float_data([3])
    assert path.read_bytes() == before
    assert writer.write_uint8_data([3]) == 192
    assert ours._BlobStorageReader(str(path)).read_uint8_data(192).tolist() == [3]


def test_two_writers_of_one_file_append_one_after_the_other(tmp_path):
    files = []
    for module, name in ((theirs, "theirs"), (ours, "ours")):
        a = module._BlobStorageWriter(str(tmp_path / name))
        b = module._BlobStorageWriter(str(tmp_path / name), False)
        offsets = [writer.write_uint8_data([1, 2, 3]) for writer in (a, b, a)]
        del a, b
        # Whose count is in the header depends on who goes last.
        files.append((offsets, (tmp_path / name).read_bytes()[64:]))
    assert files[0] == files[1]


def test_threads_take_turns(tmp_path):
    path = str(tmp_path / "w")
    writer = ours._BlobStorageWriter(path)
    found = {}

    def work(number):
        for _ in range(50):
            found[writer.write_uint16_data(np.full(100, number))] = number

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = theirs._BlobStorageReader(path)
    assert len(found) == 400
    assert all((reader.read_uint16_data(offset) == number).all() for offset, number in found.items())
    assert struct.unpack("<I", pathlib.Path(path).read_bytes()[:4]) == (400,)


def test_a_call_inside_of_a_call_is_refused(tmp_path, monkeypatch):
    """As a signal handler makes it, or a destructor."""
    path = tmp_path / "w"
    writer, real, refused = ours._BlobStorageWriter(str(path)), ours.write_at, []

    def write(fd, pieces, offset):
        with pytest.raises(RuntimeError, match=f"^writer {path}: expected one call at a time, got another inside of"):
            writer.write_float_data([7])
        refused.append(offset)
        real(fd, pieces, offset)

    monkeypatch.setattr(ours, "write_at", write)
    thread = threading.Thread(target=writer.write_float_data, args=([1, 2],), daemon=True)
    thread.start()
    thread.join(30)
    assert refused == [64, 0]
    assert ours._BlobStorageReader(str(path)).read_float_data(64).tolist() == [1, 2]


def test_they_are_not_pickled(tmp_path):
    path = str(tmp_path / "w")
    for thing in (ours._BlobStorageWriter(path), ours._BlobStorageReader(path)):
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot pickle"):
                call(thing)


def test_a_writer_that_goes_closes_its_file(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here: open files are not counted")
    path = str(tmp_path / "w")
    writer = ours._BlobStorageWriter(path)

    def is_open():
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return path in [os.readlink(link) for link in links if os.path.lexists(link)]

    assert is_open()
    del writer
    assert not is_open()
