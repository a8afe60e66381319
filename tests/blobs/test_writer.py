"""BlobWriter, new files: the bytes that tests/support/reference.py writes, however the elements come; whole or not at all."""

import ctypes
import os
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from blob_files import BLOB_DTYPES, RANDOM, blob_file, values_of, written
from draws import restarts
from thorough import some

each_test_draws_the_same = restarts(RANDOM)

SUB_BYTE = [name for name in BLOB_DTYPES if reference.DTYPES[name][2] < 8]


def packed(array, nbits):
    """One-byte elements packed by NumPy: fast, for arrays that are too large for the reference."""
    bits = (np.ascontiguousarray(array).reshape(-1).view(np.uint8)[:, None] >> np.arange(nbits, dtype=np.uint8)) & 1
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()


# ----------------------------------------------------------------------------------------------------------- what is written


@pytest.mark.every
@pytest.mark.parametrize("dtype", BLOB_DTYPES)
def test_every_dtype(tmp_path, dtype):
    arrays = [values_of(dtype, count) for count in (0, 1, 2, 3, 7, 8, 9, 31, 64, 65, 300)]
    expected, offsets = blob_file(*((dtype, array) for array in arrays))
    for call in (
        lambda blobs, array: blobs.write(array, dtype),
        lambda blobs, array: blobs.write(array, milblob.DType[dtype]),
        lambda blobs, array: blobs.write_packed(milblob.pack_tensor(array, dtype)[-nbytes_of(array, dtype):] if array.size else b"", dtype, array.size)
        if dtype in SUB_BYTE else blobs.write_packed(array, dtype),
    ):  # fmt: skip
        assert written(tmp_path / "a", *(lambda b, a=array, c=call: c(b, a) for array in arrays)) == (expected, offsets)
    if dtype not in ("UINT3", "UINT6"):
        assert written(tmp_path / "a", lambda blobs: blobs.write_many(arrays)) == (expected, [offsets])
        assert written(tmp_path / "a", lambda blobs: blobs.write_many(iter(arrays))) == (expected, [offsets])


def nbytes_of(array, dtype):
    return (array.size * reference.DTYPES[dtype][2] + 7) // 8


def test_an_empty_file(tmp_path):
    assert written(tmp_path / "a") == blob_file()
    assert written(tmp_path / "a", lambda blobs: blobs.write_many([])) == (blob_file()[0], [[]])
    assert list(milblob.check(tmp_path / "a")) == []


@pytest.mark.parametrize("source, dtype, values", [
    ([1, 2, 7], "uint3", [1, 2, 7]), ([[1, 2], [3, -4]], "int8", [1, 2, 3, -4]), (5, "int32", [5]), (True, "uint1", [1]),
    ([], "uint16", []), ((1, 0), "uint1", [1, 0]), (range(4), "uint8", [0, 1, 2, 3]), (np.int8(-3), None, [-3]),
    (np.array([True, False, True]), "uint1", [1, 0, 1]), (np.array([True, False]), "int16", [1, 0]),
    (np.arange(5), "uint6", range(5)), (np.array([-8, 7], np.int8), "int4", [-8, 7]), (np.array(3, np.uint8), None, [3]),
    (np.array([-8, 7, -1]).astype(ml_dtypes.int4), None, [-8, 7, -1]), (np.array([0, 15], np.uint64), "int4", None),
    (np.array([-1, 15], np.int8).view(ml_dtypes.int4), None, [-1, -1]), (np.array([3, 2], np.uint16), "int4", [3, 2]),
    (bytearray(b"ab"), None, [97, 98]), (memoryview(b"ab"), "uint8", [97, 98]), (np.array([300], ">i2"), "uint16", [300]),
])  # fmt: skip
def test_integers_of_all_kinds(tmp_path, source, dtype, values):
    name = dtype or str(milblob.dtypes.as_dtype(np.asarray(source).dtype))
    if values is None:
        with pytest.raises(OverflowError, match="^element 1: expected -8 to 7, got 15$"):
            written(tmp_path / "a", lambda blobs: blobs.write(source, dtype))
        return
    expected = reference.write_blobs([(name.upper(), list(values))])[0]
    assert written(tmp_path / "a", lambda blobs: blobs.write(source, dtype))[0] == expected


def test_python_floats_take_the_dtype_that_is_asked_for(tmp_path):
    for dtype in ("float16", "bfloat16", "float32", "float8e4m3fn", "float8e5m2"):
        expected = written(
            tmp_path / "a", lambda b, d=dtype: b.write(np.array([1.5, -2, 0], milblob.DType[d.upper()].numpy))
        )
        assert written(tmp_path / "b", lambda b, d=dtype: b.write([1.5, -2, 0], d)) == expected
        with pytest.raises(OverflowError, match=f"^element 1: expected a finite {dtype}, got 1e\\+39$"):
            written(tmp_path / "b", lambda b, d=dtype: b.write([0, 1e39], d))
    data, _ = written(tmp_path / "a", lambda blobs: blobs.write([float("inf"), float("-inf")], "float16"))
    assert data[128:] == b"\0\x7c\0\xfc"


class Arraylike:
    """What a Tensor of another library is."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype=np.float32)


@pytest.mark.every
@pytest.mark.parametrize("source, dtype, words", [
    ([1.5], None, "dtype: expected one that blob files hold, got float64"),
    ([1], None, "dtype: expected one that blob files hold, got int64"),
    (np.zeros(2, bool), None, "dtype: expected one that blob files hold, got bool"),
    (["a"], None, "dtype: expected one that blob files hold, got string"),
    (b"abc", None, "dtype: expected one that blob files hold, got string"),
    (np.zeros(2, object), None, "dtype: expected one that blob files hold, got string"),
    (np.zeros(2, "c8"), None, "dtype: expected one that MIL has, got complex64"),
    (np.zeros(2, ml_dtypes.float8_e4m3), None, "dtype: expected one that MIL has, got float8_e4m3"),
    (np.zeros(2, "M8[s]"), None, "dtype: expected one that MIL has, got datetime64[s]"),
    (np.zeros(2, "f4"), "float64", "dtype: expected one that blob files hold, got float64"),
    (np.zeros(2, "f4"), "float16", "array: expected elements of float16, got float32; convert them first"),
    (Arraylike(), "float16", "array: expected elements of float16, got float32; convert them first"),
    ([np.float32(0.1)], "float16", "array: expected elements of float16, got float32; convert them first"),
    (np.zeros(2, "f4"), "int8", "array: expected elements of int8, got float32; convert them first"),
    ([1.0], "int8", "array: expected elements of int8, got float64; convert them first"),
    ([None], "float16", "array: expected elements of float16, got string; convert them first"),
    (np.zeros(2, "i4"), "float16", "array: expected elements of float16, got int32; convert them first"),
    (np.zeros(2, "u1"), "float8e5m2", "array: expected elements of float8e5m2, got uint8; convert them first"),
    (np.zeros(2, bool), "float16", "array: expected elements of float16, got bool; convert them first"),
    (np.zeros(2, "f2"), "nonsense", "dtype: expected a DType, a NumPy dtype or a name such as 'float16', got 'nonsense'"),
])  # fmt: skip
def test_what_cannot_be_written(tmp_path, source, dtype, words):
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        blobs.write(np.arange(3, dtype="f4"))
        with pytest.raises(TypeError) as caught:
            blobs.write(source, dtype)
        assert str(caught.value) == words
        if dtype is None:
            with pytest.raises(TypeError) as caught:
                blobs.write_many([np.zeros(3, "u1"), source])
            assert str(caught.value) == words
        assert len(blobs) == 1
        blobs.write(np.arange(3, dtype="i1"))
    expected = blob_file(("FLOAT32", np.arange(3, dtype="f4")), ("INT8", np.arange(3, dtype="i1")))[0]
    assert (tmp_path / "a").read_bytes() == expected


@pytest.mark.parametrize("data, dtype, count, error, words", [
    (b"abc", "float16", None, ValueError, "data: expected 2 bytes for 1 x float16, got 3"),
    (b"abc", "uint8", 2, ValueError, "data: expected 2 bytes for 2 x uint8, got 3"),
    (b"abc", "uint3", 9, ValueError, "data: expected 4 bytes for 9 x uint3, got 3"),
    (b"abc", "uint3", -1, ValueError, "data: expected 0 bytes for -1 x uint3, got 3"),
    (b"abc", "int64", None, TypeError, "dtype: expected one that blob files hold, got int64"),
    (np.zeros(6, "u1")[::2], "uint8", None, BufferError, "ndarray is not C-contiguous"),
    ([1, 2], "uint8", None, TypeError, "a bytes-like object is required, not 'list'"),
])  # fmt: skip
def test_packed_data_that_is_refused(tmp_path, data, dtype, count, error, words):
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        with pytest.raises(error) as caught:
            blobs.write_packed(data, dtype, count)
        assert str(caught.value) == words
        assert len(blobs) == 0


@pytest.mark.parametrize("data", [
    np.array([None, "a"], object), memoryview(np.array([None, "a"], object)), np.zeros(0, object),
    (ctypes.py_object * 2)(1, 2), np.zeros(2, [("a", "f4"), ("b", object)]),
    memoryview(np.zeros(2, [("O", "f4"), ("b", object)])),
])  # fmt: skip
def test_addresses_of_python_objects_are_no_data(tmp_path, data):
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        offset = blobs.reserve(64, "uint8")
        for call in (lambda: blobs.write_packed(data, "uint8"), lambda: blobs.fill(offset, data)):
            with pytest.raises(TypeError, match="data: expected a buffer of elements .*, got one of Python objects"):
                call()
        blobs.fill(offset, memoryview(np.zeros(16, [("O", "f4")])))  # the name of a field is none of its type
    assert not milblob.BlobReader(tmp_path / "a").read(offset).any()


def test_packed_data_of_all_kinds(tmp_path):
    array = values_of("BFLOAT16", 12).reshape(3, 4)
    expected, _ = blob_file(("BFLOAT16", array), ("BFLOAT16", array[:0]), ("UINT3", np.array([7, 1, 5], "u1")))
    data, _ = written(
        tmp_path / "a",
        lambda blobs: blobs.write_packed(array, "bfloat16"),
        lambda blobs: blobs.write_packed(np.zeros((0, 3), "f4"), "bfloat16"),
        lambda blobs: blobs.write_packed(bytes([0b01001111, 0xFF]), "uint3", 3),  # unused bits are set to zero
    )
    assert data == expected


# ---------------------------------------------------------------------------------------------------------- large arrays

LARGE = {
    "columns": lambda n, dtype: values_of(dtype, n // 3 * 7).reshape(-1, 7)[:, 2:5],
    "every other": lambda n, dtype: values_of(dtype, n * 2)[::2],
    "Fortran": lambda n, dtype: np.asfortranarray(values_of(dtype, n // 1000 * 1000).reshape(1000, -1)),
    "reversed": lambda n, dtype: values_of(dtype, n // 5 * 5).reshape(-1, 5)[::-1, ::-1],
    "middle": lambda n, dtype: values_of(dtype, n // 8 * 8).reshape(4, -1, 2).transpose(2, 0, 1),
    "broadcast": lambda n, dtype: np.broadcast_to(values_of(dtype, n // 7)[:, None], (n // 7, 7)),
    "contiguous": lambda n, dtype: values_of(dtype, n),
}


@pytest.mark.parametrize("layout", some(LARGE, 12))
@pytest.mark.parametrize("dtype", ["UINT3", "INT4", "UINT1", "FLOAT16", "BFLOAT16", "INT32", "UINT8"])
def test_large_arrays_of_every_layout(tmp_path, layout, dtype):
    """Several chunks, whatever lengths NumPy iterates in: packed bytes must not be cut inside of one."""
    array = LARGE[layout](700_001, dtype)
    data, _ = written(
        tmp_path / "a", lambda blobs: blobs.write(array, dtype), lambda blobs: blobs.write(array[:1], dtype)
    )
    nbits = reference.DTYPES[dtype][2]
    expected = packed(array, nbits) if nbits < 8 else np.ascontiguousarray(array).tobytes()
    assert data[128 : 128 + len(expected)] == expected
    with milblob.BlobReader(data) as blobs:
        assert [record.count for record in blobs] == [array.size, array[:1].size]
        assert blobs.read(64).tobytes() == np.ascontiguousarray(array).tobytes()
        assert blobs.read(blobs[1]).tobytes() == np.ascontiguousarray(array[:1]).tobytes()


@pytest.mark.parametrize("make", [
    lambda: np.zeros((1 << 13, 1 << 12), np.float16)[:, ::2], lambda: np.zeros((1 << 12, 1 << 12), np.float16).T,
    lambda: np.zeros(1 << 25, ">f2")[1:], lambda: np.zeros(1 << 25, ml_dtypes.int4), lambda: np.zeros(1 << 23, np.int64),
])  # fmt: skip
def test_large_arrays_are_never_copied_whole(tmp_path, make):
    array = make()
    dtype = "uint6" if array.dtype == np.int64 else None
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        blobs.write(np.zeros(10, np.uint8))
        tracemalloc.start()
        blobs.write(array, dtype)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 12 << 20 < array.nbytes


@pytest.mark.parametrize("array, dtype, words", [
    (np.arange(600_000) % 8, "uint3", "element 500001: expected 0 to 7, got 9"),
    (np.arange(600_000, dtype=np.uint8) % 8, "uint3", "element 500001: expected 0 to 7, got 9"),
    (np.arange(600_000, dtype=np.int8) % 8, "int4", "element 500001: expected -8 to 7, got 9"),
    ((np.arange(600_000, dtype=np.uint8) % 8).view(ml_dtypes.uint2), None, "element 4: expected 0 to 3, got 4"),
    (np.zeros(600_000, np.int32), "int8", None),
    (np.zeros((200_000, 3), np.uint8, "F"), "uint3", "element 500001: expected 0 to 7, got 9"),
    (np.zeros(1_200_000, np.uint8)[::2], "uint3", "element 500001: expected 0 to 7, got 9"),
])  # fmt: skip
def test_elements_out_of_range_are_named_and_the_writer_remains_usable(tmp_path, array, dtype, words):
    flat = array.reshape(-1) if array.flags.c_contiguous else None
    if array.dtype != ml_dtypes.uint2:
        if flat is not None:
            flat[500_001] = 9
        else:
            array[np.unravel_index(500_001, array.shape)] = 9
    if words is None:
        flat[500_001] = -129
        words = "element 500001: expected -128 to 127, got -129"
    good = np.arange(40, dtype=np.uint8)
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        first = blobs.write(good)
        for _ in range(2):
            with pytest.raises(OverflowError) as caught:
                blobs.write(array, dtype)
            assert str(caught.value) == words
        assert len(blobs) == 1
        second = blobs.write(good[::-1])
    expected, offsets = blob_file(("UINT8", good), ("UINT8", good[::-1]))
    assert (tmp_path / "a").read_bytes() == expected and [first, second] == offsets


def test_write_many_is_all_or_nothing(tmp_path):
    large, small = np.zeros((1 << 20) + 64, np.uint8), np.arange(5, dtype=np.uint8)
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        blobs.write(small)
        for arrays in ([small, large, np.zeros(3)], [small] * 20_000 + ["a"], iter([large, small, large, [1]])):
            with pytest.raises(TypeError):
                blobs.write_many(arrays)
            assert len(blobs) == 1 and blobs.nbytes == 133

        def broken():
            yield from [small, large, small]
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            blobs.write_many(broken())
        assert blobs.write_many((small[::2], large)) == [192, 320]
    assert (tmp_path / "a").read_bytes() == blob_file(("UINT8", small), ("UINT8", small[::2]), ("UINT8", large))[0]


def test_write_many_does_not_hold_what_an_iterator_gives(tmp_path):
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        tracemalloc.start()
        blobs.write_many(np.zeros(2 << 20, np.uint8) for _ in range(20))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 10 << 20
    assert len(milblob.BlobReader(tmp_path / "a")) == 20


@pytest.mark.parametrize("nbytes", [None, float("nan"), len])
def test_write_many_takes_arrays_that_do_not_know_their_size(tmp_path, nbytes):
    class Odd:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3, dtype=np.uint8)

    odd = Odd()
    odd.nbytes = nbytes
    with milblob.BlobWriter(tmp_path / "a") as blobs:
        assert blobs.write_many(iter([odd, odd])) == [64, 192]


def test_write_many_mixes_what_it_copies_and_what_it_converts(tmp_path):
    arrays = []
    for number in range(300):
        array = values_of(["FLOAT16", "UINT1", "BFLOAT16", "INT8"][number % 4], number * 37 % 500)
        arrays.append(array[::-1] if number % 5 == 0 else array.reshape(1, -1) if number % 7 == 0 else array)
    arrays[50:50] = [values_of("FLOAT32", 500_000), values_of("INT8", 1 << 20), values_of("UINT16", 262_144 // 2)]
    expected = written(tmp_path / "a", *(lambda blobs, array=array: blobs.write(array) for array in arrays))
    data, (offsets,) = written(tmp_path / "b", lambda blobs: blobs.write_many(arrays))
    assert (data, offsets) == expected
    assert not [finding for finding in milblob.check(tmp_path / "b") if finding.severity != "note"]


def test_small_records_fill_the_staging_buffer_again_and_again(tmp_path):
    arrays = [values_of("UINT8", count) for count in [200_000] * 8 + [5, 262_144, 262_145, 7, 262_000] + [100_001] * 20]
    data, offsets = written(tmp_path / "a", *(lambda blobs, a=array: blobs.write(a) for array in arrays))
    end = 64
    for array, offset in zip(arrays, offsets, strict=True):
        assert offset == reference.align64(end) and not any(data[end:offset])
        end = offset + 64 + array.size
        assert data[offset + 64 : end] == array.tobytes()
    assert len(data) == end


# ------------------------------------------------------------------------------------------------------- reserve and fill


def test_reserve_and_fill(tmp_path):
    array, bits = values_of("FLOAT32", 20_000), values_of("UINT3", 11)
    expected, offsets = blob_file(
        ("UINT8", np.arange(3, dtype="u1")), ("FLOAT32", array), ("UINT3", bits), ("INT8", values_of("INT8", 0))
    )
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        found = [
            blobs.write(np.arange(3, dtype="u1")),
            blobs.reserve(array.nbytes, "float32"),
            blobs.reserve(5, "uint3", 11),
        ]
        found.append(blobs.reserve(0, "int8"))
        blobs.fill(found[1], array[10_000:], 40_000)
        blobs.fill(found[2], packed(bits, 3))
        blobs.fill(found[1], array[:5_000].tobytes())
        blobs.fill(found[1], array[5_000:10_000], start=20_000)
        assert len(blobs) == 4 and found == offsets
    assert (tmp_path / "a").read_bytes() == expected


def test_reserved_records_must_be_filled(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    blobs = milblob.BlobWriter(tmp_path / "a")
    offset = blobs.reserve(100, "int8")
    blobs.fill(offset, bytes(40))
    blobs.fill(offset, bytes(50), 41)
    with pytest.raises(
        ValueError, match="^reserved record at byte 64: expected its 100 bytes to be filled, got none for byte 40$"
    ):
        blobs.close()
    assert (tmp_path / "a").read_bytes() == b"old"
    with pytest.raises(ValueError, match="closed"):
        blobs.fill(offset, b"x")


def test_what_reserve_and_fill_refuse(tmp_path):
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        for nbytes, dtype, count, words in [
            (3, "float16", None, "nbytes: expected 2 bytes for 1 x float16, got 3"), (-2, "int8", None, "nbytes: expected 0 or more, got -2"),
            (3, "int4", 4, "nbytes: expected 2 bytes for 4 x int4, got 3"),
        ]:  # fmt: skip
            with pytest.raises(ValueError) as caught:
                blobs.reserve(nbytes, dtype, count)
            assert str(caught.value) == words
        with pytest.raises(TypeError):
            blobs.reserve(1.5, "int8")
        with pytest.raises(TypeError, match="got bool"):
            blobs.reserve(8, "bool")
        for nbytes in ((1 << 63) - 100, 1 << 63, 1 << 70):
            with pytest.raises(OverflowError, match="^size of the file: expected less than 2\\^63 bytes, got"):
                blobs.reserve(nbytes, "int8")
        offset = blobs.reserve(4, "int8")
        for data, start in [(bytes(5), 0), (bytes(2), 3), (b"", 5), (bytes(1), -1)]:
            with pytest.raises(ValueError, match=f"^data: expected bytes inside the 4 of the record, got {start} to"):
                blobs.fill(offset, data, start)
        with pytest.raises(KeyError, match="expected one that is reserved, got offset 63"):
            blobs.fill(63, b"x")
        assert len(blobs) == 1
        blobs.fill(offset, b"abcd")
    assert (tmp_path / "a").read_bytes()[128:] == b"abcd"


# ------------------------------------------------------------------------------------------------------------------ copy


def test_copy(tmp_path):
    arrays = [(name, values_of(name, count)) for name in BLOB_DTYPES for count in (0, 5, 64, 700_003)]
    source, _ = blob_file(*((name, array[:999]) for name, array in arrays))
    with milblob.BlobReader(source) as blobs:
        assert written(tmp_path / "a", *(lambda b, r=record: b.copy(blobs, r) for record in blobs))[0] == source
        assert written(tmp_path / "a", *(lambda b, r=record: b.copy(blobs, r.offset) for record in blobs))[0] == source
    large = written(tmp_path / "a", *(lambda b, n=name, a=array: b.write(a, n) for name, array in arrays))
    with milblob.BlobReader(tmp_path / "a") as blobs:  # the kernel copies
        assert written(tmp_path / "b", *(lambda b, r=record: b.copy(blobs, r) for record in blobs)) == large
        with milblob.BlobReader((tmp_path / "b").read_bytes()) as memory:
            assert written(tmp_path / "b", *(lambda b, r=record: b.copy(memory, r) for record in blobs)) == large


def test_copy_into_a_file_of_the_same_name(tmp_path):
    arrays = [values_of("FLOAT16", 300_000), values_of("INT8", 10), values_of("FLOAT32", 400_000)]
    written(tmp_path / "a", lambda blobs: blobs.write_many(arrays))
    with milblob.BlobReader(tmp_path / "a") as source:
        views = [source.read(record) for record in source]
        with milblob.BlobWriter(tmp_path / "a") as blobs:
            for record in reversed(list(source)):
                blobs.copy(source, record)
        assert all(np.array_equal(view.view("u1"), array.view("u1")) for view, array in zip(views, arrays, strict=True))
        assert len(source) == 3 and source.read(source[0]).tobytes() == arrays[0].tobytes()
    with milblob.BlobReader(tmp_path / "a") as blobs:
        assert [blobs.read(record).tobytes() for record in blobs] == [array.tobytes() for array in reversed(arrays)]


def test_what_copy_refuses(tmp_path):
    source = milblob.BlobReader(blob_file(("INT8", np.arange(3, dtype="i1")))[0])
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        with pytest.raises(milblob.FormatError, match="record sentinel"):
            blobs.copy(source, 66)
        with pytest.raises(TypeError, match="^reader: expected a BlobReader, got str$"):
            blobs.copy("weight.bin", 64)
        source.close()
        with pytest.raises(ValueError, match="closed"):
            blobs.copy(source, 64)
        assert len(blobs) == 0


# ------------------------------------------------------------------------------------------------------------- alignment


@pytest.mark.parametrize("align", [64, 4096, 16384])
def test_alignment(tmp_path, align):
    arrays = [values_of("UINT8", count) for count in (0, 1, 4096, 5000, 30_000, 0, 7, 0)]
    data, (offsets,) = written(tmp_path / "a", lambda blobs: blobs.write_many(arrays), align=align)
    assert written(tmp_path / "b", *(lambda b, a=array: b.write(a) for array in arrays), align=align) == (data, offsets)
    with milblob.BlobReader(data) as blobs:
        assert [record.offset for record in blobs] == offsets
        assert all(record.data_offset % align == 0 and record.offset % 64 == 0 for record in blobs)
        assert [blobs.read(record).tobytes() for record in blobs] == [array.tobytes() for array in arrays]
        assert len(data) == blobs[-1].data_offset
    assert list(reference.walk_blobs(data)) == offsets
    assert not [finding for finding in milblob.check(tmp_path / "a") if finding.severity == "error"]
    if align == 64:
        assert data == blob_file(*(("UINT8", array) for array in arrays))[0]


@pytest.mark.parametrize("options, words", [
    ({"align": 63}, "align: expected one of 64, 4096, 16384, got 63"), ({"align": None}, "align: expected one of 64, 4096, 16384, got None"),
    ({"mode": "r+"}, "mode: expected 'w' or 'a', got 'r\\+'"),
])  # fmt: skip
def test_options_that_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        milblob.BlobWriter(tmp_path / "a", **options)
    assert os.listdir(tmp_path) == []
    with pytest.raises(TypeError):
        milblob.BlobWriter()
    with pytest.raises(TypeError):
        milblob.BlobWriter(7)
