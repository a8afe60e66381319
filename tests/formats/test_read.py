"""Reading npz, npy and safetensors files: values come back without a copy; hostile files are refused."""

import gc
import io
import json
import os
import random
import struct
import sys
import zipfile
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import milblob
from dtype_values import NUMPY, assert_same
from milblob import DType, FormatError, ResolveError, UnsupportedError
from milblob.formats import npy_dir, npz, read
from milblob.formats import safetensors as safetensors_format
from milblob.formats.read import array_kind
from milblob.storage import paths
from paths import DATA
from race import exchanging
from thorough import sized, some

SOURCES = [
    *[f"{case}/weight.bin" for case in ("blob_all_dtypes", "blob_sub_byte", "blob_empty", "blob_handmade")],
    "immediates/model.mlmodel",
    "immediates_odd/model.mlmodel",
]
SAVES = [(npz, "out.npz"), (npy_dir, "out"), (safetensors_format, "out.safetensors")]


def assert_equal(got, expected, name):
    """Bit for bit, objects by value."""
    assert got.dtype == expected.dtype, name
    assert got.shape == expected.shape, name
    if got.dtype == object:
        assert got.tolist() == expected.tolist(), name
    else:
        assert got.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("module", "name"), SAVES)
@pytest.mark.parametrize("source", some(SOURCES, 4))
def test_there_and_back(source, module, name, packed, tmp_path):
    target = str(tmp_path / name)
    with milblob.open(DATA / source, constants=True) as model:
        module.save(model, target, packed=packed)
        with read.open_arrays(target) as arrays:
            assert sorted(arrays) == sorted(model)
            assert len(arrays) == len(model)
            for key, tensor in model.items():
                array = arrays[key]
                assert (array.name, array.mil_dtype, array.shape) == (key, tensor.mil_dtype, tensor.shape)
                assert (array.dtype, array.size) == (tensor.dtype, tensor.size)
                values = array.read()
                assert_equal(values, tensor.read(), key)
                if tensor.mil_dtype is not DType.STRING:
                    assert array.nbytes == tensor.nbytes
                    assert array.read_packed().tobytes() == tensor.read_packed().tobytes(), key
                    assert array.read_packed().shape == (array.nbytes,)


def test_all_22_dtypes_are_in_those_sources():
    seen = set()
    for source in SOURCES:
        with milblob.open(DATA / source, constants=True) as model:
            seen |= {tensor.mil_dtype for tensor in model.values()}
    assert seen == set(DType)


# ------------------------------------------------------------------------------------------------------- others' files


def sample():
    """Arrays as other programs write them: all dtypes, odd layouts."""
    rng = np.random.default_rng(3)
    kinds = ["?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", ">f4", ">i8"]
    arrays = {f"a{i}": rng.integers(0, 2, (3, 4, 5)).astype(kind) for i, kind in enumerate(kinds)}
    arrays["fortran"] = np.asfortranarray(arrays["a10"])
    arrays["scalar"] = np.float32(2.5)
    arrays["empty"] = np.zeros((0, 7), np.int16)
    return arrays


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpy_s_npz(save, tmp_path):
    arrays = sample() | {"texts": np.array(["a", "größe"]), "empty_texts": np.array([], "U3")}
    save(tmp_path / "x.npz", **arrays)
    with read.open_arrays(tmp_path / "x.npz") as found:
        assert list(found) == list(arrays)
        for name, expected in arrays.items():
            expected = np.asarray(expected)
            got = found[name].read()
            if expected.dtype.kind == "U":
                assert (got.dtype, got.tolist()) == (object, expected.tolist())
                continue
            assert_equal(
                got, np.ascontiguousarray(expected, expected.dtype.newbyteorder("<")).reshape(expected.shape), name
            )
            assert got.flags.c_contiguous


def test_npy_files(tmp_path):
    for name, array in sample().items():
        np.save(tmp_path / f"{name}.npy", array)
    with read.open_arrays(tmp_path) as found:
        assert list(found) == sorted(sample())
        for name in found:
            assert found[name].read().tolist() == sample()[name].tolist()
    with read.open_arrays(tmp_path / "a3.npy") as found:
        assert list(found) == ["a3"]
        assert found["a3"].read().tolist() == sample()["a3"].tolist()


def test_an_npy_of_extract_has_the_dtype_and_shape_of_its_index(tmp_path):
    with milblob.open(DATA / "blob_sub_byte/weight.bin") as model:
        npy_dir.save(model, str(tmp_path / "out"))
        for name, tensor in model.items():
            with read.open_arrays(tmp_path / "out" / f"{name}.npy") as found:
                assert list(found) == [name]
                assert found[name].mil_dtype is tensor.mil_dtype
                assert_equal(found[name].read(), tensor.read(), name)


def test_safetensors_of_its_library(tmp_path):
    arrays = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for name, array in sample().items()
        if name != "scalar"
    }
    arrays["scalar"] = np.array(2.5, np.float32)
    arrays["bf16"] = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    arrays["fp8"] = np.arange(6).astype(ml_dtypes.float8_e4m3fn)
    arrays["e5m2"] = np.arange(6).astype(ml_dtypes.float8_e5m2)
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors", {"format": "pt"})
    with read.open_arrays(tmp_path / "x.safetensors") as found:
        assert sorted(found) == sorted(arrays)
        for name, array in arrays.items():
            assert_equal(found[name].read(), array, name)


# ----------------------------------------------------------------------------------------------------------- in place


@pytest.mark.parametrize(("module", "name"), [SAVES[0], SAVES[2]])
def test_arrays_lie_over_one_mapping(module, name, tmp_path):
    """No copy: reading twice gives the same memory, and arrays are where the file's bytes are."""
    target = str(tmp_path / name)
    with milblob.open(DATA / "blob_all_dtypes/weight.bin") as model:
        module.save(model, target, packed=True)
        shared = 0
        with read.open_arrays(target) as arrays:
            for key, array in arrays.items():
                if array.size and not array.mil_dtype.is_sub_byte:
                    assert np.shares_memory(array.read(), array.read()), key
                    assert not array.read().flags.writeable
                    shared += 1
                elif array.size:
                    assert np.shares_memory(array.read_packed(), array.read_packed()), key
                    shared += 1
            last = array.read()
        assert shared > 30
        with pytest.raises(ValueError):
            array.read()
        assert_equal(last, model[key].read(), key)  # valid after close


def test_large_npy_files_are_mapped_and_small_ones_hold_no_descriptor(tmp_path):
    np.save(tmp_path / "large.npy", np.arange(100_000))
    np.save(tmp_path / "small.npy", np.arange(10))
    with read.open_arrays(tmp_path) as found:
        large, small = found["large"].read(), found["small"].read()
    assert not large.flags.owndata and not large.flags.writeable
    assert large.tolist() == list(range(100_000)) and small.tolist() == list(range(10))
    if sys.platform == "linux":

        def held():
            return [
                name
                for name in map(os.path.realpath, [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")])
                if str(tmp_path) in name
            ]

        assert [os.path.basename(name) for name in held()] == ["large.npy"]
        del large
        gc.collect()
        assert held() == []


# ------------------------------------------------------------------------------------------------------------- hostile


def write_npz(path, members, compress=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compress) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compress)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def noted(tmp_path, note, array=b"\0\0\0\0"):
    """An npz with one array and a note on it."""
    path = str(tmp_path / "noted.npz")
    array = np.frombuffer(array, np.uint8)
    np.savez(path, w=array, __milblob__=np.array(note if isinstance(note, str) else json.dumps({"w": note})))
    return path


BAD_NOTES = {
    "dtype": {"dtype": "uint5"},
    "dtype type": {"dtype": ["int4"]},
    "dtype null": {"dtype": None},
    "width": {"dtype": "bfloat16"},
    "string shape": {"dtype": "string", "shape": "x"},
    "packed size": {"dtype": "int4", "shape": [9], "packed": True},
    "packed too small": {"dtype": "int4", "shape": [6], "packed": True},
    "packed negative": {"dtype": "int4", "shape": [-2, -4], "packed": True},
    "packed bool": {"dtype": "int4", "shape": [True, 8], "packed": True},
    "packed float": {"dtype": "int4", "shape": [8.0], "packed": True},
    "packed huge": {"dtype": "int4", "shape": [1 << 62, 1 << 62], "packed": True},
    "packed string": {"dtype": "string", "shape": [1 << 64], "packed": True},
    "shape": {"dtype": "int4", "shape": [5]},
    "list": [],
    "text": "{",
    "array": "[]",
    "null": "null",
    "twice": '{"w": {}, "w": {"dtype": "int4"}}',
    "deep": "[" * 100_000,
    "name": {"name": 3},
    "name null": {"name": None},
}


@pytest.mark.parametrize("what", BAD_NOTES)
def test_notes_that_do_not_fit(what, tmp_path):
    path = noted(tmp_path, BAD_NOTES[what])
    with pytest.raises(FormatError, match="note|name"), read.open_arrays(path) as arrays:
        arrays["w"].read()


def test_notes_with_the_same_name(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, a=1, b=2, __milblob__=np.array('{"a": {"name": "b"}}'))
    with pytest.raises(FormatError, match="each once, got 'b' twice"):
        read.open_arrays(path)
    np.savez(path, a=1, b=2, __milblob__=np.array('{"a": {"name": "b"}, "b": {"name": "a"}, "c": {"dtype": "no"}}'))
    with read.open_arrays(path) as arrays:
        assert {name: int(array.read()) for name, array in arrays.items()} == {"b": 1, "a": 2}


def test_elements_outside_the_noted_dtype(tmp_path):
    path = noted(tmp_path, {"dtype": "uint3"}, bytes([0, 7, 8, 1]))
    with read.open_arrays(path) as arrays, pytest.raises(FormatError, match="expected 3 bits of each byte, got 8"):
        arrays["w"].read()


@pytest.mark.parametrize("text", ["", "[1, 2, 3]", '["a"]', '["a", "b", "c", "d"]', '{"a": 1}', "\xff", "[" * 9999])
def test_strings_that_are_none(text, tmp_path):
    path = noted(tmp_path, {"dtype": "string", "shape": [3]}, text.encode("latin-1"))
    with read.open_arrays(path) as arrays, pytest.raises(FormatError, match="^strings of w"):
        arrays["w"].read()


def test_no_pickle_is_ever_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    bomb = np.array([Bomb()], object)
    for save, name in ((np.savez, "x.npz"), (np.savez_compressed, "y.npz"), (np.save, "z.npy")):
        save(tmp_path / name, bomb)
        with pytest.raises(UnsupportedError, match="none is ever loaded"), read.open_arrays(tmp_path / name) as arrays:
            next(iter(arrays.values())).read()
    np.savez(tmp_path / "n.npz", __milblob__=bomb)
    with pytest.raises(UnsupportedError):
        read.open_arrays(tmp_path / "n.npz")
    (tmp_path / "x.npy").write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(FormatError), read.open_arrays(tmp_path / "x.npy") as arrays:
        arrays["x"]
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "S3", "V2", "f2,f2", "g"])
def test_dtypes_that_mil_lacks(dtype, tmp_path):
    np.savez(tmp_path / "x.npz", good=1, bad=np.zeros(2, dtype))
    with read.open_arrays(tmp_path / "x.npz") as arrays:
        assert arrays["good"].read() == 1
        with pytest.raises(UnsupportedError, match="expected a dtype that MIL has|expected one that MIL has"):
            arrays["bad"].read()


def test_a_truncated_npz(tmp_path):
    """Cut anywhere: FormatError, or the arrays whose bytes are all there."""
    np.savez(tmp_path / "whole.npz", a=np.arange(30), b=np.arange(5.0))
    data = (tmp_path / "whole.npz").read_bytes()
    for size in range(len(data)):
        (tmp_path / "cut.npz").write_bytes(data[:size])
        with pytest.raises(FormatError):
            read.open_arrays(tmp_path / "cut.npz")


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_byte_of_an_npz_is_noticed_or_harmless(compress, tmp_path):
    expected = {"a": np.arange(30), "b": np.arange(5.0)}
    (np.savez_compressed if compress else np.savez)(tmp_path / "whole.npz", **expected)
    data = (tmp_path / "whole.npz").read_bytes()
    noticed = 0
    places = range(sized(int(compress), 0), len(data), sized(3, 1))
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 0x55
        (tmp_path / "flipped.npz").write_bytes(flipped)
        try:
            with read.open_arrays(tmp_path / "flipped.npz") as arrays:
                for array in arrays.values():  # a name may be another, no value may
                    values = array.read()
                    assert any(values.tobytes() == right.tobytes() for right in expected.values()), at
        except milblob.MilblobError:
            noticed += 1
    assert noticed > len(places) // 3


def test_npz_members_that_are_none(tmp_path):
    path = tmp_path / "x.npz"
    write_npz(path, [("a.npy", npy(np.arange(3))), ("readme.txt", b"hello")])
    with pytest.raises(FormatError, match="member 'readme.txt': expected an .npy file"):
        read.open_arrays(path)
    with pytest.warns(UserWarning, match="Duplicate"):
        write_npz(path, [("a.npy", npy(np.arange(3))), ("a.npy", npy(np.arange(4)))])
    with pytest.raises(FormatError, match="each name once, got 'a.npy' twice"):
        read.open_arrays(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError):
        read.open_arrays(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n")
    with pytest.raises(FormatError, match="got a Git LFS pointer"):
        read.open_arrays(path)
    with pytest.raises(FileNotFoundError):
        read.open_arrays(tmp_path / "none.npz")
    with pytest.raises(UnsupportedError, match="expected .safetensors, .npz, .npy"):
        read.open_arrays(tmp_path / "x.pickle")


@pytest.mark.parametrize("compress", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(4,), (1 << 40,), (1 << 62, 4), (0, 1 << 62), (-3,), (True,), (2,), (3.0,)])
def test_headers_of_another_size(shape, compress, tmp_path):
    """A member of three bytes that announces an exabyte allocates nothing."""
    head = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    data = b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + b"abc"
    write_npz(tmp_path / "x.npz", [("a.npy", data)], compress)
    (tmp_path / "x.npy").write_bytes(data)
    for name in ("x.npz", "x.npy"):
        with pytest.raises((FormatError, UnsupportedError)), read.open_arrays(tmp_path / name) as arrays:
            next(iter(arrays.values())).read()


@pytest.mark.parametrize(
    "head",
    [
        "(" * 9000,
        "{}",
        "1",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': (3,)}",
        "\\",
        "{'descr': " + "[" * 500,
        "a" * 60000,
        "\n\n  x",
        "'",
    ],
)
def test_headers_that_are_none(head, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + b"abc")
    with (
        pytest.raises(FormatError, match="^array: expected an .npy file"),
        read.open_arrays(tmp_path / "x.npy") as arrays,
    ):
        arrays["x"]


def test_a_bomb_of_names(tmp_path):
    """Twenty thousand empty members: opened, not multiplied."""
    write_npz(tmp_path / "x.npz", [(f"{i}.npy", npy(np.zeros(0, np.uint8))) for i in range(20_000)])
    with read.open_arrays(tmp_path / "x.npz") as arrays:
        assert len(arrays) == 20_000
        assert arrays["19999"].shape == (0,)


def test_a_size_that_nothing_inflates_to(tmp_path):
    """The directory and the header agree on two gibibytes; the bytes between them can never give so many."""
    head = repr({"descr": "|u1", "fortran_order": False, "shape": (1 << 31,)}).encode().ljust(117) + b"\n"
    write_npz(tmp_path / "x.npz", [("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", 118) + head)], zipfile.ZIP_DEFLATED)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 24, 128 + (1 << 31))
    (tmp_path / "x.npz").write_bytes(data)
    with read.open_arrays(tmp_path / "x.npz") as arrays, pytest.raises(FormatError, match="got a size of 2147483776"):
        arrays["a"]


def test_encrypted_members(tmp_path):
    write_npz(tmp_path / "x.npz", [("a.npy", npy(np.arange(3)))])
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    (tmp_path / "x.npz").write_bytes(data)
    with read.open_arrays(tmp_path / "x.npz") as arrays, pytest.raises(UnsupportedError, match="not encrypted"):
        arrays["a"]


def write_safetensors(path, header, data=b""):
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


ROW = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
BAD_SAFETENSORS = {
    "key twice": ("{" + ROW + "," + ROW + "}", b"1"),
    "other twice": ("{" + ROW + "," + ROW.replace("U8", "I8") + "}", b"1"),
    "notes twice": ('{"__metadata__":{"milblob":"{}","milblob":"{}"},' + ROW + "}", b"1"),
    "notes": ('{"__metadata__":{"milblob":"x"},' + ROW + "}", b"1"),
    "field twice": ('{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "dtype": ("{" + ROW.replace("U8", "X9") + "}", b"1"),
    "size": ("{" + ROW + "}", b"12"),
    "hole": ("{" + ROW.replace("[0,1]", "[1,2]") + "}", b"12"),
    "overlap": ("{" + ROW + "," + ROW.replace('"a"', '"b"') + "}", b"1"),
    "backwards": ("{" + ROW.replace("[0,1]", "[1,0]") + "}", b"1"),
    "shape": ("{" + ROW.replace("[1]", "[2]") + "}", b"1"),
    "negative": ("{" + ROW.replace("[1]", "[-1]") + "}", b"1"),
    "huge": ("{" + ROW.replace("[1]", "[4294967296,4294967296,4294967296]") + "}", b"1"),
    "no json": ("{", b""),
    "list": ("[]", b""),
}


@pytest.mark.every
@pytest.mark.parametrize("what", BAD_SAFETENSORS)
def test_hostile_safetensors(what, tmp_path):
    write_safetensors(tmp_path / "x.safetensors", *BAD_SAFETENSORS[what])
    with pytest.raises(FormatError), read.open_arrays(tmp_path / "x.safetensors") as arrays:
        arrays["a"].read()


def test_truncated_safetensors(tmp_path):
    write_safetensors(tmp_path / "whole", "{" + ROW + "}", b"1")
    data = (tmp_path / "whole").read_bytes()
    for size in range(len(data)):
        (tmp_path / "x.safetensors").write_bytes(data[:size])
        with pytest.raises(FormatError):
            read.open_arrays(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 1 << 63) + data[8:])
    with pytest.raises(FormatError, match="safetensors file"):
        read.open_arrays(tmp_path / "x.safetensors")


def test_safetensors_dtypes_that_mil_lacks(tmp_path):
    write_safetensors(
        tmp_path / "x.safetensors", "{" + ROW + ',"b":{"dtype":"F4","shape":[2],"data_offsets":[1,2]}}', b"12"
    )
    if tuple(map(int, safetensors.__version__.split(".")[:2])) < (0, 6):  # these have not heard of F4 themselves
        with pytest.raises(FormatError, match="^safetensors file"):
            read.open_arrays(tmp_path / "x.safetensors")
        return
    with read.open_arrays(tmp_path / "x.safetensors") as arrays:
        assert arrays["a"].read().tolist() == [0x31]
        with pytest.raises(UnsupportedError, match="dtype of b: expected one that MIL has, got F4"):
            arrays["b"]


@pytest.mark.parametrize("name", ["a.npz", "c.npz", "a.safetensors", "a.npy", "w.json", "dir/index.json"])
def test_random_damage(name, tmp_path):
    """Whatever is done to a file: values, or an error of ours."""
    draw = random.Random(name)
    with milblob.open(DATA / "blob_sub_byte/weight.bin") as model:
        some = {key: model[key] for key in list(model)[:6]}
        npz.save(some, str(tmp_path / "a.npz"), packed=True)
        safetensors_format.save(some, str(tmp_path / "a.safetensors"), packed=True)
        npy_dir.save(some, str(tmp_path / "dir"))
        milblob.write_weights(some, tmp_path / "w.bin", listing=tmp_path / "w.json")
    np.savez_compressed(tmp_path / "c.npz", a=np.arange(40), b=np.array(["x", "y"]))
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(12).reshape(3, 4)))
    path = tmp_path / name
    whole = path.read_bytes()
    good = bad = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 4])):
            at = draw.randrange(len(data))
            kind = draw.randrange(4)
            if kind < 2:
                data[at] = draw.choice([0, 255, 128, *b'09"[{-,', draw.randrange(256)])
            elif kind == 2:
                del data[at : at + draw.randrange(1, 8)]
            else:
                data[at:at] = data[at : at + draw.randrange(40)]
            data = data or bytearray(b"x")
        path.write_bytes(data)
        try:
            with read.open_arrays(path.parent if path.name == "index.json" else path) as arrays:
                for array in arrays.values():
                    assert array.read().shape == array.shape
                    assert array.mil_dtype is DType.STRING or array.read_packed().nbytes == array.nbytes
            good += 1
        except (milblob.MilblobError, FileNotFoundError):  # the name of a file may be what was damaged
            bad += 1
    assert good + bad == 300 and bad > 50


def test_the_library_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "safetensors.numpy")
    with pytest.raises(
        ImportError, match=r"safetensors is not installed; run: pip install safetensors \(milblob's extra safetensors "
    ):
        read.open_arrays(tmp_path / "x.safetensors")


INDEXES = {
    "no rows": {"format": "milblob"},
    "row": {"format": "milblob", "tensors": {"a": []}},
    "no file": {"format": "milblob", "tensors": {"a": {}}},
    "file type": {"format": "milblob", "tensors": {"a": {"file": 3}}},
    "dtype": {"format": "milblob", "tensors": {"a": {"file": "a.npy", "dtype": "float32"}}},
    "shape": {"format": "milblob", "tensors": {"a": {"file": "a.npy", "dtype": "int64", "shape": [4]}}},
}


@pytest.mark.parametrize("what", INDEXES)
def test_hostile_indexes(what, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "index.json").write_text(json.dumps(INDEXES[what]))
    with pytest.raises(FormatError), read.open_arrays(tmp_path) as arrays:
        arrays["a"].read()


@pytest.mark.parametrize("file", ["../secret.npy", "/etc/passwd", "link.npy", "a\0b.npy"])
def test_an_index_does_not_lead_outside(file, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", np.arange(3))
    (folder / "link.npy").symlink_to(tmp_path / "secret.npy")
    (folder / "index.json").write_text(json.dumps({"format": "milblob", "tensors": {"a": {"file": file}}}))
    with read.open_arrays(folder) as arrays, pytest.raises(ResolveError):
        arrays["a"].read()


def test_which_directories_hold_arrays(tmp_path):
    assert not read.is_array_file(str(tmp_path))
    assert read.is_array_file("x.NPZ") and read.is_array_file("x.safetensors") and not read.is_array_file("weight.bin")
    np.save(tmp_path / "a.npy", 1)
    assert read.is_array_file(str(tmp_path))
    (tmp_path / "Manifest.json").write_text("{}")
    assert not read.is_array_file(str(tmp_path))
    with pytest.raises(FormatError, match="expected index.json or .npy files"):
        (tmp_path / "empty").mkdir()
        read.open_arrays(tmp_path / "empty")


def test_values_of_every_dtype_without_milblob_s_own_reader(tmp_path):
    """The arrays that come back are those that tests/data recorded, not only what milblob reads."""
    from cases import load_case

    case = load_case("blob_all_dtypes")
    with milblob.open(case.path()) as model:
        npz.save(model, str(tmp_path / "x.npz"), packed=True)
    with read.open_arrays(tmp_path / "x.npz") as arrays:
        for number, row in enumerate(case.rows):
            assert_same(arrays[f"#{number}"].read(), case.values(row), row["dtype"])
    assert set(NUMPY) >= {row["dtype"] for row in case.rows}


@pytest.mark.parametrize("name", ["a.bin", "a.npz", "a.tar", "tensor-cache.json", "a.mlmodel", "not there"])
def test_a_file_is_known_by_its_name_and_one_question(name, tmp_path, monkeypatch):
    """Whether it is a directory is all that the file system is asked: opening a small file takes no longer."""
    asked = []
    monkeypatch.setattr(paths, "status", lambda path, **options: asked.append(path))  # nothing is there
    kind = {"a.npz": "npz", "a.tar": "archive", "tensor-cache.json": "tensor-cache"}.get(name)
    assert array_kind(str(tmp_path / name)) == kind and asked == [str(tmp_path / name)]


def test_a_file_of_another_type_in_the_place_of_one_that_was_opened(tmp_path):
    """Its header is read again with its values: what was float32 does not become other numbers of the same size."""
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "w.npy"
    np.save(file, np.arange(16, dtype=np.float32))
    (tmp_path / "a" / "index.json").write_text('{"format": "milblob", "tensors": {"w": {"file": "w.npy"}}}')
    with read.open_arrays(tmp_path / "a") as arrays:
        array = arrays["w"]
        np.save(file, np.full(16, 7, np.float32))
        assert array.read().tolist() == [7] * 16
        np.save(file, np.arange(16, dtype=np.int32))
        with pytest.raises(FormatError, match="header: expected the one that was there when it was opened"):
            array.read()


@pytest.mark.parametrize("suffix", some([".npz", ".safetensors"], 1))
def test_race_of_files(suffix, tmp_path):
    """Of two files that are exchanged all the time, one or the other is read: never the header of one over the other."""
    module = {".npz": npz, ".safetensors": safetensors_format}[suffix]
    expected = {}
    for name, dtype, first in (("one", ml_dtypes.uint4, 0), ("two", np.uint8, 100)):  # of one header; one has notes
        array = (np.arange(16, dtype=np.uint8) + first).astype(dtype)
        expected[str(array.dtype)] = array.tolist()
        milblob.write_weights({"w": array}, tmp_path / "w.bin", listing=tmp_path / "w.json", force=True)
        with milblob.open(tmp_path / "w.json") as model:
            module.save(model, str(tmp_path / f"{name}{suffix}"))
    met = Counter()
    with exchanging(tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"):
        while met.total() < sized(500, 4000) or (len(met) < 2 and met.total() < 80_000):
            with read.open_arrays(tmp_path / f"one{suffix}") as arrays:
                array = arrays["w"].read()
            assert array.tolist() == expected[str(array.dtype)]
            met[str(array.dtype)] += 1
    assert len(met) == 2, met


@pytest.mark.parametrize("name", ["\ud800", "a\0", "..\\a", "C:a"])
def test_an_index_names_what_no_file_can_be(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": f"{name}.safetensors"}}))
    with pytest.raises(milblob.ResolveError, match="expected a path"):
        milblob.open_arrays(index)
