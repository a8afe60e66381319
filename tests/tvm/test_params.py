"""milblob.tvm.read_params and write_params, compared with what TVM 0.27 itself said (tests/data/tvm/oracle.json)."""

import contextlib
import hashlib
import json
import os
import shutil
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milblob
import tvm_archives as made
from milblob import FormatError, ResolveError, UnsupportedError, tvm
from milblob.formats.read import open_arrays
from milblob.model.lazy import LazyTensor
from paths import DATA

ORACLE = json.loads((DATA / "tvm" / "oracle.json").read_text(encoding="utf-8"))
GOLDEN = "7c12fd9cc114ebc57f33630cdab655a4d191c98a1e9d400e8ef5b23f91e660a6"
WRITTEN = {row["what"]: row for row in ORACLE["written"]}
STRANGE = {row["what"]: row for row in ORACLE["read"]}


def kind(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def arrays_of(rows):
    return {name: np.frombuffer(bytes.fromhex(data), kind(dtype)).reshape(shape) for name, dtype, shape, data in rows}


def same(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


# ------------------------------------------------------------------------------------------------------- against TVM


def test_golden(tmp_path):
    path = tmp_path / "a.params"
    tvm.write_params({"p0": np.array([[2, 4]], "f4")}, path)
    assert path.stat().st_size == 106 and hashlib.sha256(path.read_bytes()).hexdigest() == GOLDEN
    tvm.write_params({}, path, force=True)
    assert path.stat().st_size == 32 and dict(tvm.read_params(path)) == {}


@pytest.mark.parametrize("what", WRITTEN)
@pytest.mark.sample(12)
def test_writes_the_bytes_that_tvm_writes(tmp_path, what):
    row = WRITTEN[what]
    path = tmp_path / "a.params"
    tvm.write_params(arrays_of(row["arrays"]), path)
    got, expected = path.read_bytes(), bytes.fromhex(row["hex"])
    if "float4" in what or what == "all":  # TVM leaves what was in memory after the packed half
        count = row["arrays"][-1][3]
        free = len(count) // 2 // 2
        assert len(got) == len(expected) and got[len(got) - free :] == bytes(free)
        got, expected = got[: len(got) - free], expected[: len(expected) - free]
    assert got == expected


@pytest.mark.parametrize("what", WRITTEN)
@pytest.mark.sample(12)
def test_reads_what_tvm_wrote(what):
    row = WRITTEN[what]
    read, expected = tvm.read_params(bytes.fromhex(row["hex"])), arrays_of(row["arrays"])
    assert list(read) == list(expected)
    for name, array in expected.items():
        same(read[name], array)
        assert not read[name].flags.writeable or not array.size or "float4" in str(array.dtype)  # which is a new array
        assert read.tensors[name].dtype == array.dtype and read.tensors[name].shape == array.shape
        assert read.tensors[name].nbytes == array.nbytes == read.tensors[name].stored_nbytes


REFUSED_HERE_ONLY = {
    "cut in the last tensor": "elements of tensor: expected 8 more bytes, got 5",
    "duplicate names": "names of tensors: expected each once, got 'a' twice",
}


def test_dtypes_that_mil_lacks_are_left_out_of_weight_files(tmp_path):
    (tmp_path / "a.params").write_bytes(bytes.fromhex(STRANGE["lanes"]["hex"]))
    names = list(tvm.read_params(tmp_path / "a.params"))
    with pytest.raises(UnsupportedError, match="float32x2"):
        milblob.convert(tmp_path / "a.params", tmp_path / "w.bin")
    np.savez(tmp_path / "b.npz", w=np.float16([1]))
    sources = [tmp_path / "a.params", tmp_path / "b.npz"]
    report = milblob.convert(sources, tmp_path / "w.bin", skip_unsupported=True)
    assert "a" in report.skipped and "float32x2" in report.skipped["a"]
    assert [*report.skipped, *(tensor.name for tensor in report.tensors)] == [*names, "w"]
    assert list(milblob.load(tmp_path / "w.json")) == [tensor.name for tensor in report.tensors]


@pytest.mark.parametrize("what", STRANGE)
def test_strange_files(what):
    """Whatever TVM takes is read with the same values or refused, never with others; what it refuses is refused."""
    row = STRANGE[what]
    data = bytes.fromhex(row["hex"])
    if what == "a name that is no UTF-8":  # TVM's C++ reads it, its Python cannot say it
        assert list(tvm.read_params(data)) == ["\udcff", "b"]
    elif what == "lanes":
        read = tvm.read_params(data)
        assert read.tensors["a"].dtype_text == "float32x2"
        with pytest.raises(UnsupportedError, match="float32x2"):
            read["a"]
    elif what in REFUSED_HERE_ONLY:
        assert "tensors" in row
        with pytest.raises(FormatError, match=REFUSED_HERE_ONLY[what]):
            tvm.read_params(data)
    elif "error" in row:
        with pytest.raises(FormatError):
            tvm.read_params(data)
    else:
        read = tvm.read_params(data)
        assert {name: array.tobytes().hex() for name, array in read.items()} == {t["name"]: t["hex"] for t in row["tensors"]}  # fmt: skip


def test_dtypes_that_tvm_makes_and_cannot_read():
    for row in ORACLE["odd"]:
        read = tvm.read_params(bytes.fromhex(row["hex"]))
        tensor = read.tensors["p"]
        assert tensor.stored().tobytes() == bytes.fromhex(row["hex"])[-tensor.stored_nbytes :]
        if row["what"] in ("int4", "float4_e2m1fn"):
            same(read["p"], np.frombuffer(bytes.fromhex(row["tensors"][0]["hex"]), kind(row["what"])).reshape(2, 3))
        elif row["what"] == "uint1":  # bool of TVM up to 0.22
            with pytest.raises(FormatError, match="expected 0 or 1"):
                read["p"]
        else:
            with pytest.raises(UnsupportedError, match="expected an element type"):
                read["p"]


# ----------------------------------------------------------------------------------------------- codes of two meanings


@pytest.mark.parametrize(
    ("version", "numbers", "expected"),
    [
        (None, (6, 8), "bool"), (None, (7, 8), "float8_e3m4"), (None, (1, 1), "bool"), (None, (10, 8), "float8_e4m3fn"),
        ("0.27.0.post1", (6, 8), "bool"), ("v0.23", (6, 8), "bool"), ("0.22", (6, 8), "bool"), ("0.21", (7, 8), "float8_e3m4"),
        ("0.20", (6, 8), "float8_e4m3fn"), ("0.20.0", (7, 8), "float8_e5m2"), ("0.14", (6, 8), "float8_e4m3fn"), ("0.14", (1, 1), "bool"),
        ("1.0", (6, 8), "bool"), ("0.9.dev0", (7, 8), "float8_e5m2"),
    ],
)  # fmt: skip
def test_codes_of_two_meanings(version, numbers, expected):
    data = made.one_file(*numbers, shape=(3,), data=b"\0\1\1")
    same(tvm.read_params(data, tvm=version)["p"], np.frombuffer(b"\0\1\1", kind(expected)))


def test_numbers_that_are_written_for_a_version(tmp_path):
    path = tmp_path / "a.params"
    cases = [("0.14", "bool", (1, 1)), ("0.22", "bool", (1, 1)), ("0.23", "bool", (6, 8)), ("0.20", "float8_e4m3fn", (6, 8)), ("0.21", "float8_e4m3fn", (10, 8)), ("0.14", "float8_e5m2", (7, 8))]  # fmt: skip
    for version, name, numbers in cases:
        array = np.zeros(3, kind(name))
        tvm.write_params({"p": array}, path, tvm=version, force=True)
        assert tuple(path.read_bytes()[24 + 9 + 8 + 28 :][:2]) == numbers
        same(tvm.read_params(path, tvm=version)["p"], array)
    with pytest.raises(TypeError, match="float8_e3m4 of 'p'"):
        tvm.write_params({"p": np.zeros(3, ml_dtypes.float8_e3m4)}, path, tvm="0.14", force=True)


@pytest.mark.parametrize("wrong", ["", "latest", "14", "0.x", "-1.2"])
def test_versions_that_are_none(wrong):
    with pytest.raises(ValueError, match="tvm: expected a version"):
        tvm.read_params(made.one_file(), tvm=wrong)


def test_a_version_must_be_a_text():
    with pytest.raises(TypeError, match="tvm: expected a version"):
        tvm.read_params(made.one_file(), tvm=0.14)


# -------------------------------------------------------------------------------------------------------- round trips


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
DTYPES = sorted({row[1] for row in WRITTEN["all"]["arrays"]})


@st.composite
def some_arrays(draw):
    found = {}
    for name in draw(st.lists(NAMES, max_size=6, unique=True)):
        dtype, shape = kind(draw(st.sampled_from(DTYPES))), tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
        count = int(np.prod(shape, dtype=int)) * dtype.itemsize
        raw = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.uint8)
        mask = {"bool": 1, "float4_e2m1fn": 15}.get(str(dtype), 255)
        found[name] = (raw & mask).view(dtype).reshape(shape)
    return found


@given(some_arrays())
def test_round_trip(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("params") / "a.params"
    tvm.write_params(arrays, path)
    with tvm.read_params(path) as read:
        assert list(read) == list(arrays)
        for name, array in arrays.items():
            same(read[name], array)
        again = path.with_name("b.params")
        tvm.write_params(read.tensors, again)
    assert again.read_bytes() == path.read_bytes()


def test_names_of_any_bytes(tmp_path):
    data = made.one_file(name=b"\xff\x80a")
    tvm.write_params(tvm.read_params(data), tmp_path / "a.params")
    assert (tmp_path / "a.params").read_bytes() == data


def test_arrays_of_every_kind_are_written_as_their_values(tmp_path):
    path = tmp_path / "a.params"
    base = np.arange(24, dtype="f4").reshape(4, 6)
    given = {
        "strided": base[::2, ::3], "turned": base.T, "big": base.astype(">f4"), "list": [[1, 2], [3, 4]], "number": 5.5,
        "view": base[1:], "int4": np.array([-8, 7, -1], ml_dtypes.int4), "uint4": np.array([15, 0], ml_dtypes.uint4), "uint1": np.array([1, 0], ml_dtypes.uint1),
    }  # fmt: skip
    tvm.write_params(given, path)
    read = tvm.read_params(path)
    for name in ("strided", "turned", "view"):
        same(read[name], np.ascontiguousarray(given[name]))
    same(read["big"], base)
    same(read["list"], np.array([[1, 2], [3, 4]]))
    same(read["number"], np.array(5.5))
    same(read["int4"], np.array([-8, 7, -1], "i1"))
    same(read["uint4"], np.array([15, 0], "u1"))
    same(read["uint1"], np.array([1, 0], "u1"))


def test_a_tensor_of_a_model_is_written(tmp_path):
    model = DATA / "blob_all_dtypes" / "weight.bin"
    with milblob.open(model) as source:
        tensors = {name: t for name, t in source.items() if t.dtype == np.float16}
        assert tensors
        tvm.write_params(tensors, tmp_path / "a.params")
        for name, tensor in tensors.items():
            same(tvm.read_params(tmp_path / "a.params")[name], tensor.read())


def test_many_tensors_are_written_in_batches(tmp_path):
    arrays = {f"p{number}": np.full(number % 7, number, "i4") for number in range(1500)}
    told = []
    tvm.write_params(arrays, tmp_path / "a.params", progress=lambda *told_of: told.append(told_of))
    read = tvm.read_params(tmp_path / "a.params")
    assert list(read) == list(arrays) and all((read[name] == array).all() for name, array in arrays.items())
    done = np.cumsum([array.nbytes for array in arrays.values()]).tolist()
    assert told[1:] == [(name, nbytes, done[-1]) for name, nbytes in zip(arrays, done, strict=True)]


# --------------------------------------------------------------------------------------------------------------- views


def test_views_lie_over_the_file_and_outlive_it(tmp_path):
    path = tmp_path / "a.params"
    tvm.write_params({"p0": np.array([[2, 4]], "f4"), "p12": np.arange(5)}, path)
    with tvm.read_params(path) as read:
        array = read["p0"]
        assert not array.flags.writeable and not array.flags.aligned and not array.flags.owndata
        assert read.tensors["p0"].offset + 8 <= read.tensors["p12"].offset
    assert array.tolist() == [[2, 4]]
    with pytest.raises(ValueError, match="closed file"):
        read["p12"]
    buffer = bytearray(path.read_bytes())
    view = tvm.read_params(buffer)["p0"]
    buffer[tvm.read_params(path).tensors["p0"].offset + 3] = 0x41
    assert view[0, 0] == 8.0


def test_a_file_that_shrinks(tmp_path):
    path = tmp_path / "a.params"
    tvm.write_params({"p": np.arange(5000)}, path)
    read = tvm.read_params(path)
    with open(path, "r+b") as file:
        file.truncate(5000)
    with pytest.raises(FormatError, match="size: expected 40089 bytes as when it was opened, got 5000"):
        read["p"]


def test_elements_are_not_touched_before_they_are_asked_for(tmp_path):
    """A sparse file of 1 TiB opens at once."""
    path = tmp_path / "a.params"
    count = 1 << 40
    head = made.one_file(1, 8, shape=(count,), data=b"", nbytes=count)
    with open(path, "wb") as file:
        file.write(head)
        try:
            file.truncate(len(head) + count)
        except OSError:
            pytest.skip("no sparse files of that size here: the limit of a .params file is not tested")
    assert tvm.read_params(path)["p"][-1] == 0


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.every
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "header of .params file: expected 24 more bytes, got 0 at byte 0"),
        (made.one_file(magic=1), "magic of .params file: expected 0xf7e58d4f05049cb7, got 0x00000001 at byte 0"),
        (made.one_file(count=1 << 63), "most tensors that the bytes can hold: expected 1, got 9223372036854775808 at byte 16"),
        (made.one_file(count=2), "most tensors that the bytes can hold: expected 1, got 2 at byte 16"),
        (made.one_file(name_nbytes=1 << 63), "name: expected 9223372036854775808 more bytes"),
        (made.one_file(name_nbytes=(1 << 64) - 1), "name: expected 18446744073709551615 more bytes"),
        (made.one_file(again=2), "count of tensors: expected 1, got 2 at byte 33"),
        (made.one_file(tensor_magic=5), "magic of tensor: expected 0xdd5e40f096b4a13f, got 0x00000005 at byte 41 - at tensor p"),
        (made.one_file(device=2), "device type: expected 1 (CPU), got 2 at byte 57 - at tensor p"),
        (made.one_file(device=-1), "device type: expected 1 (CPU), got 4294967295"),
        (made.one_file(ndim=-1), "number of dimensions: expected 0 to 2147483647, got 4294967295"),
        (made.one_file(ndim=0x7FFFFFFF), "shape of tensor: expected 17179869176 more bytes"),
        (made.one_file(shape=(-1,)), "dimension: expected 0 to 2^63 - 1, got 18446744073709551615"),
        (made.one_file(shape=(1 << 62, 1 << 62)), "product of dimensions: expected a number below 2^64"),
        (made.one_file(shape=(1 << 31, 1 << 30), nbytes=-(1 << 63)), "elements of tensor: expected 9223372036854775808 more bytes, got 8"),
        (made.one_file(nbytes=4), "bytes of tensor: expected 8, got 4 at byte 81 - at tensor p"),
        (made.one_file(nbytes=-8), "bytes of tensor: expected 8, got 18446744073709551608"),
        (made.one_file(shape=(1 << 40,), nbytes=1 << 42), "elements of tensor: expected 4398046511104 more bytes, got 8"),
    ],
)  # fmt: skip
def test_refusals(data, words):
    with pytest.raises(FormatError) as caught:
        tvm.read_params(data)
    assert words in str(caught.value)


def test_every_cut_is_refused():
    data = bytes.fromhex(WRITTEN["order"]["hex"])
    for cut in range(len(data)):
        with pytest.raises(FormatError):
            tvm.read_params(data[:cut])


def test_a_zero_in_a_shape_needs_no_product():
    read = tvm.read_params(made.one_file(shape=(1 << 62, 1 << 62, 0), data=b""))
    assert read.tensors["p"].shape == (1 << 62, 1 << 62, 0)


def test_more_dimensions_than_numpy_has():
    for ndim in (64, 65, 70_000):
        read = tvm.read_params(made.one_file(shape=(1,) * ndim, data=bytes(4)))
        if ndim <= 64:
            assert read["p"].shape == (1,) * ndim
        else:
            with pytest.raises(UnsupportedError, match="at most 64 dimensions"):
                read["p"]


def test_unknown_codes_are_listed_and_not_read():
    read = tvm.read_params(made.one_file(200, 32))
    assert read.tensors["p"].dtype_text == "code 200 with 32 bits"
    assert read.tensors["p"].stored().nbytes == 8
    with pytest.raises(UnsupportedError, match="parameter p: expected an element type"):
        read["p"]
    with pytest.raises(UnsupportedError):
        read.tensors["p"].mil_dtype  # noqa: B018


def test_what_cannot_be_written(tmp_path):
    path = tmp_path / "a.params"
    with pytest.raises(TypeError, match="complex64 of 'a', object of 'b'"):
        tvm.write_params({"a": np.zeros(2, "c8"), "good": np.zeros(2), "b": np.array(["x", None], object)}, path)
    with pytest.raises(TypeError, match="name of a tensor: expected a string, got int"):
        tvm.write_params({1: np.zeros(2)}, path)
    with pytest.raises(TypeError, match="cannot be encoded as UTF-8"):
        tvm.write_params({"\ud800": np.zeros(2)}, path)
    with pytest.raises(TypeError, match="tensors: expected a mapping"):
        tvm.write_params([np.zeros(2)], path)
    with pytest.raises(TypeError, match="force: expected True or False"):
        tvm.write_params({}, path, force="no")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_without_force(tmp_path):
    path = tmp_path / "a.params"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        tvm.write_params({}, path)
    assert path.read_bytes() == b"mine"


class Failing:
    """A tensor that cannot be read."""

    dtype, shape = np.dtype("f4"), (2,)

    def read(self):
        raise OSError("no")


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="no"):
        tvm.write_params({"a": np.zeros(1 << 20), "b": Failing()}, tmp_path / "a.params")
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_is_not_what_was_declared(tmp_path):
    class Liar(Failing):
        def read(self):
            return np.zeros(3, "f4")

    with pytest.raises(ValueError, match="expected 8 bytes for its shape and dtype, got 12"):
        tvm.write_params({"a": Liar()}, tmp_path / "a.params")
    assert list(tmp_path.iterdir()) == []


def write_pair(path):
    tvm.write_params({"a": np.arange(9.0), "b": np.ones(3, "i1")}, path, force=True)


def test_every_failing_call_leaves_the_old_file_or_the_new_one(faults, tmp_path):
    path = tmp_path / "a.params"
    write_pair(path)
    new, old = path.read_bytes(), b"old"
    for mode in ("fail", "short then fail", "kill before", "kill middle", "kill after"):
        path.write_bytes(old)
        for outcome in faults.at_every_call(write_pair, [str(path)], root=tmp_path, mode=mode, code="ENOSPC"):
            now = path.read_bytes()
            assert now in (old, new), outcome
            assert outcome.exit != "ok" or now == new
            path.write_bytes(old)


# ---------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize("name", ["", "tensor-cache.json", "tensor-cache-b16.json"])
def test_tensor_cache_as_tvm_reads_it(name):
    read = tvm.read_params(DATA / "tvm" / "cache" / name)
    assert list(read) == [row["name"] for row in ORACLE["cache"]]
    for row in ORACLE["cache"]:
        array = read[row["name"]]
        expected = np.frombuffer(bytes.fromhex(row["hex"]), kind(row["dtype"])).reshape(row["shape"])
        if name.endswith("b16.json") and row["name"] in ("short", "none"):
            assert array.dtype == ml_dtypes.bfloat16
            array = array.astype("f4")
        same(array, expected)


def test_a_shard_that_is_not_the_one_of_its_cache(tmp_path):
    """TVM writes the MD5 of each shard: one of another cache, or one that was changed, is listed and not read."""
    shutil.copytree(DATA / "tvm" / "cache", tmp_path / "c")
    shard = tmp_path / "c" / "params_shard_0.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with open_arrays(tmp_path / "c") as arrays:
        names = [name for name in arrays if arrays[name].file == os.fspath(shard)]
        assert names and len(names) < len(arrays)
        for name in arrays:
            with pytest.raises(FormatError, match="MD5 of shard") if name in names else contextlib.nullcontext():
                arrays[name].read()


def cache_of(tmp_path, name="tensor-cache.json", **changes):
    """A cache of one tensor, with fields of its shard or record changed."""
    record = {"name": "w", "shape": [2], "dtype": "float32", "format": "raw", "nbytes": 8, "byteOffset": 0}
    shard = {"dataPath": "s.bin", "format": "raw-shard", "nbytes": 8, "records": [record]}
    for key, value in changes.items():
        (shard if key in ("dataPath", "records", "size", "shard") else record)[
            {"size": "nbytes", "shard": "format"}.get(key, key)
        ] = value
    (tmp_path / "s.bin").write_bytes(struct.pack("<ff", 1, 2))
    (tmp_path / name).write_text(json.dumps({"metadata": {}, "records": [shard]}), encoding="utf-8")
    return tmp_path / name


def test_the_former_name_of_a_cache(tmp_path):
    cache_of(tmp_path, "ndarray-cache.json")
    assert tvm.read_params(tmp_path)["w"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataPath": "../s.bin"}, "expected a file beside the cache"), ({"dataPath": "/etc/passwd"}, "expected a file beside the cache"),
        ({"dataPath": ".."}, "expected a file beside the cache"), ({"dataPath": "a\\b"}, "expected a file beside the cache"), ({"dataPath": ""}, "expected a file beside the cache"),
        ({"dataPath": "a\0b"}, "expected a file beside the cache"),
        ({"dataPath": 5}, "dataPath in tensor cache: expected a string"), ({"size": 9}, "expected 9 bytes, got 8"), ({"size": True}, "expected an integer"),
        ({"shard": "other"}, "expected raw-shard, got 'other'"), ({"records": 5}, "expected a list, got int"), ({"records": [5]}, "expected a string, got None"),
        ({"byteOffset": 4}, "expected one inside the 8 bytes"), ({"byteOffset": -8}, "expected one inside"), ({"byteOffset": 1 << 70}, "expected one inside"),
        ({"nbytes": 4}, "expected 8 for float32"), ({"shape": [3]}, "expected 12 for float32"), ({"shape": [-2]}, "expected a list of sizes"), ({"shape": 5}, "expected a list of sizes"),
        ({"format": "gz"}, "expected raw or f32-to-bf16, got 'gz'"), ({"format": "f32-to-bf16"}, "expected 4 for float32"),
    ],
)  # fmt: skip
def test_caches_that_are_refused(tmp_path, changes, words):
    with pytest.raises((FormatError, UnsupportedError), match=words):
        tvm.read_params(cache_of(tmp_path, **changes))


def test_a_cache_with_a_shard_that_no_file_can_be(tmp_path):
    """JSON can spell an unpaired surrogate."""
    with pytest.raises(ResolveError, match="expected a path that can be a file name"):
        tvm.read_params(cache_of(tmp_path, dataPath="\ud800.bin"))


def test_caches_that_are_none(tmp_path):
    with pytest.raises(FormatError, match="got a directory with neither"):
        tvm.read_params(tmp_path)
    path = tmp_path / "tensor-cache.json"
    for text, words in [("[]", "an object with a list"), ("{", "expected a document"), ("[" * 100_000, "nesting too deep"), ('{"records": [5]}', "expected a string"), ('{"records": 1}', "list of records"), ('{"records": [], "records": []}', "every key once")]:  # fmt: skip
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FormatError, match=words):
            tvm.read_params(path)
    cache_of(tmp_path)
    (tmp_path / "s.bin").unlink()
    with pytest.raises(FileNotFoundError):
        tvm.read_params(path)
    (tmp_path / "s.bin").symlink_to(path)
    with pytest.raises(ResolveError, match="symbolic link"):
        tvm.read_params(path)


def test_a_name_twice_in_a_cache(tmp_path):
    path = cache_of(tmp_path)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["records"][0]["records"] *= 2
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FormatError, match="got 'w' twice"):
        tvm.read_params(path)


@pytest.mark.parametrize("text", ["float32", "int4", "float8_e4m3fnuz"])
def test_a_parameter_reads_as_every_lazy_tensor(tmp_path, text):
    """Whole, in part, into an array, as an array: also where MIL lacks the element type, which only `mil_dtype` needs."""
    values = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, text, text))
    record = {"name": "p", "dtype": text, "shape": [2, 3], "format": "raw", "byteOffset": 0, "nbytes": values.nbytes}
    (tmp_path / "shard.bin").write_bytes(values.tobytes())
    shard = {"dataPath": "shard.bin", "format": "raw-shard", "nbytes": values.nbytes, "records": [record]}
    (tmp_path / "tensor-cache.json").write_text(json.dumps({"metadata": {}, "records": [shard]}))
    with open_arrays(tmp_path) as found:
        tensor = found["p"]
        assert isinstance(tensor, LazyTensor) and isinstance(tensor, tvm.Parameter)
        want = tensor.read()
        assert (tensor.shape, tensor.declared_shape, tensor.ndim, tensor.size, len(tensor)) == ((2, 3), (2, 3), 2, 6, 2)
        assert tensor.place.file == tensor.file and tensor.place.where == "p" and tensor.place.shape == (2, 3)
        got = np.zeros((3, 2), tensor.dtype).T
        assert tensor.read(out=got) is got
        for array in (got, np.asarray(tensor), np.stack(list(tensor)), tensor[:], tensor.place.read()):
            assert array.dtype == want.dtype and array.tobytes() == want.tobytes()
        assert tensor[1, 2] == want[1, 2]
        with pytest.raises((TypeError, ValueError)):
            tensor.read(out=np.zeros((2, 2), tensor.dtype))
        with pytest.raises(ValueError, match="expected a copy to be allowed"):
            np.asarray(tensor, np.float64, copy=False)
        if text == "float8_e4m3fnuz":
            for call in (lambda: tensor.mil_dtype, lambda: tensor.place.dtype, tensor.read_packed):
                with pytest.raises(UnsupportedError, match="an element type that MIL has"):
                    call()
        else:
            assert tensor.place.dtype is tensor.mil_dtype
