"""What milblob puts in the place of coremltools' slow functions gives the same, bit for bit, and ends in the same errors."""

import importlib
import types as pytypes
import warnings

import numpy as np
import pytest

from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools import proto
from coremltools.converters.mil.backend.mil import helper
from coremltools.converters.mil.frontend.milproto import load
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.passes.defs.quantization import FP16ComputePrecision
from coremltools.optimize import _utils

from milblob.compat import fastpaths, storage
from thorough import some

PATHS = {path.name: path for path in fastpaths.FAST_PATHS}
COUNTS = [0, 1, 10, 63, 64, 65, 1000, 4097]
SHAPES = [(), (3,), (64,), (65, 3), (2, 0, 40), (4, 5, 6, 7)]
SUB_BYTE = ["int4", "uint1", "uint2", "uint3", "uint4", "uint6"]


@pytest.fixture
def fast(monkeypatch):
    """A function that makes the replacement, and refuses to call what it replaces if `alone` is asked for."""

    def make(name, alone=False):
        path = PATHS[name]
        module = importlib.import_module(path.module)
        original = module
        for part in path.name.split("."):
            original = getattr(original, part)

        def never(*args, **kwargs):
            raise AssertionError(f"{name} was left to coremltools")

        return path.make(never if alone else original, module)

    monkeypatch.setattr(load, "BlobReader", storage._BlobStorageReader)
    return make


def outcome(call, *args, **kwargs):
    """What a call gives: the class and words of its error, or its value in a form that compares."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    if isinstance(value, np.ndarray):
        return value.dtype, value.dtype.metadata, value.shape, value.tobytes()
    return value


def draw(dtype, shape):
    rng = np.random.default_rng(7)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "fc":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
        mixed = rng.integers(low, high, shape, endpoint=True)
        return np.where(rng.integers(0, 2, shape), mixed, mixed % 100).astype(dtype)
    return np.resize(np.array(["a", "ü", ""], dtype), shape)


# ------------------------------------------------------------------------------------------------- create_tensor_value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "U3", ">i4", ">f4", "c8"]
)
def test_tensor_values_are_the_same(fast, dtype, shape):
    array = draw(dtype, shape)
    for given in (array, array.T, array[..., ::-1] if array.ndim else array):
        a, b = outcome(helper.create_tensor_value, given), outcome(fast("create_tensor_value"), given)
        assert a == b
        if not isinstance(a, tuple):
            assert a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)
    if dtype in ("?", "i4", "f4", "i2", "u2", "f8") and array.size >= 64:
        fast("create_tensor_value", alone=True)(array)  # it is the quick way that was compared


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # a signalling NaN as float64
def test_odd_floats_and_bools_in_tensor_values(fast):
    quiet, loud = 0x7FC00001, 0x7F800001
    floats = np.resize(np.array([0, 1 << 31, 1, 0x7F800000, 0xFF800000, 0x7F7FFFFF, quiet, loud], np.uint32), 80).view(
        np.float32
    )
    bools = np.resize(np.array([0, 1, 2, 255], np.uint8), 80).view(bool)
    for array in (
        floats,
        floats[:64].copy(),
        bools,
        np.where(np.isnan(floats), np.float32(0), floats),
        floats.astype(np.float64),
    ):
        a, b = helper.create_tensor_value(array), fast("create_tensor_value")(array)
        assert a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def test_what_protobuf_refuses_is_refused(fast):
    for value in (np.full(100, 2**64 - 1, np.uint64), np.full(100, None), "text", 3, [1] * 100, np.float32(3)):
        a, b = outcome(helper.create_tensor_value, value), outcome(fast("create_tensor_value"), value)
        assert (a[0] is b[0]) if isinstance(a, tuple) else a == b


# ----------------------------------------------------------------------------------------- _get_offset_by_writing_data


def var(array, dtype):
    return pytypes.SimpleNamespace(val=array, dtype=dtype)


def test_written_weights_are_the_same(fast, tmp_path):
    from coremltools.libmilstoragepython import _BlobStorageWriter

    writers = {"a": _BlobStorageWriter(str(tmp_path / "a")), "b": storage._BlobStorageWriter(str(tmp_path / "b"))}
    replaced = fast("_get_offset_by_writing_data")
    for count in COUNTS[1:]:
        for dtype in ("f4", "f2", "u1", "i1", "u2", "i2", "i4", "u4", "f8", "i8", "?"):
            array = draw(dtype, count)
            for given in (array, array.reshape(-1, 1).T, array[::-1]):
                v = var(given, types.numpy_type_to_builtin_type(given.dtype))
                assert outcome(helper._get_offset_by_writing_data, v, writers["a"]) == outcome(
                    replaced, v, writers["b"]
                )
        for name in SUB_BYTE:
            dtype = types.string_to_builtin(name)
            array = (draw("u1", count) % (1 << dtype.get_bitwidth())).astype(types.nptype_from_builtin(dtype))
            for given in (array, array.astype(np.int64), array.astype(np.float32)):
                v = var(given, dtype)
                assert outcome(helper._get_offset_by_writing_data, v, writers["a"]) == outcome(
                    replaced, v, writers["b"]
                )
            v = var(np.full(count, 100, array.dtype), dtype)
            assert outcome(helper._get_offset_by_writing_data, v, writers["a"]) == outcome(replaced, v, writers["b"])
    for dtype in ("f4", "f2", "u1", "i4"):
        fast("_get_offset_by_writing_data", alone=True)(var(draw(dtype, 100), types.fp32), writers["b"])
        helper._get_offset_by_writing_data(var(draw(dtype, 100), types.fp32), writers["a"])
    for name in SUB_BYTE:
        ones = var(
            np.ones(100, types.nptype_from_builtin(types.string_to_builtin(name))), types.string_to_builtin(name)
        )
        fast("_get_offset_by_writing_data", alone=True)(ones, writers["b"])
        helper._get_offset_by_writing_data(ones, writers["a"])
    swapped = var(draw(">f4", 100), types.fp32)
    assert outcome(helper._get_offset_by_writing_data, swapped, writers["a"]) == outcome(
        replaced, swapped, writers["b"]
    )
    theirs = _BlobStorageWriter(str(tmp_path / "c"))
    assert replaced(var(draw("f2", 100), types.fp16), theirs) == 64  # a native writer: left to coremltools
    writers.clear()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --------------------------------------------------------------------------------------------------------- _load_value


def file_values(tmp_path):
    """(Value, its dtype) for a record of every dtype that weight files hold, in the shapes (100,) and (4, 5, 5)."""
    writer = storage._BlobStorageWriter(str(tmp_path / "weight.bin"))
    names = ["fp16", "fp32", "int8", "uint8", "int16", "uint16", "int32", "uint32", *SUB_BYTE]
    for name in names:
        dtype = types.string_to_builtin(name)
        array = draw(types.nptype_from_builtin(dtype), 100)
        if name in SUB_BYTE:
            array %= 1 << (dtype.get_bitwidth() - (name == "int4"))
        offset = helper._get_offset_by_writing_data(var(array, dtype), writer)
        for shape in ((100,), (4, 5, 5)):
            primitive = types.BUILTIN_TO_PROTO_TYPES[dtype]
            yield helper.create_file_value_tensor("@model_path/weights/weight.bin", offset, shape, primitive)


def test_loaded_weights_are_the_same(fast, tmp_path, monkeypatch):
    alone = fast("_load_value", alone=True)
    results = []
    for value in list(file_values(tmp_path)):
        contexts = [load.TranscriptionContext(str(tmp_path)) for _ in range(3)]
        a = load._load_value(contexts[0], value)
        with monkeypatch.context() as patch:
            patch.setattr(load, "_load_file_value", fast("_load_file_value"))
            b = fast("_load_value")(contexts[1], value)
            c = alone(contexts[2], value)
        for found in (b, c):
            assert outcome(lambda found=found: found) == outcome(lambda a=a: a)
            assert found.flags.writeable and found.flags.aligned
        results.append(b)
    assert len({id(r.base if r.base is not None else r) for r in results}) == len(results)  # nobody shares memory


def test_weights_that_do_not_fit_end_in_the_same_class(fast, tmp_path, monkeypatch):
    good = list(file_values(tmp_path))
    bad = []
    for value in good[:6]:
        for change in ("shape", "offset", "dtype", "doc", "file", "type"):
            other = proto.MIL_pb2.Value.FromString(value.SerializeToString())
            if change == "shape":
                other.type.tensorType.dimensions[0].constant.size += 1
            elif change == "offset":
                other.blobFileValue.offset += 64
            elif change == "dtype":
                other.type.tensorType.dataType = types.BUILTIN_TO_PROTO_TYPES[types.bool]
            elif change == "doc":
                other.docString = "lost"
            elif change == "file":
                other.blobFileValue.fileName = "none.bin"
            else:
                other.type.Clear()
            bad.append(other)
    monkeypatch.setattr(load, "_load_file_value", load._load_file_value)
    for value in [*bad, None, proto.MIL_pb2.Value()]:
        a = outcome(load._load_value, load.TranscriptionContext(str(tmp_path)), value)
        with monkeypatch.context() as patch:
            patch.setattr(load, "_load_file_value", fast("_load_file_value"))
            b = outcome(fast("_load_value"), load.TranscriptionContext(str(tmp_path)), value)
        assert a[0] is b[0], value


def test_a_native_reader_is_left_to_coremltools(fast, tmp_path, monkeypatch):
    from coremltools.libmilstoragepython import _BlobStorageReader

    value = next(file_values(tmp_path))
    expected = load._load_value(load.TranscriptionContext(str(tmp_path)), value)
    context = load.TranscriptionContext(str(tmp_path))
    context.blob_reader_from_filename[str(tmp_path / "weight.bin")] = _BlobStorageReader(str(tmp_path / "weight.bin"))
    found = fast("_load_file_value")(context, value.blobFileValue, types.fp16)
    assert found.tobytes() == expected.tobytes()
    monkeypatch.setattr(load, "BlobReader", _BlobStorageReader)
    context = load.TranscriptionContext(str(tmp_path))
    found = fast("_load_value")(context, value)
    assert found.tobytes() == expected.tobytes()
    assert isinstance(next(iter(context.blob_reader_from_filename.values())), _BlobStorageReader)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4"])
def test_loaded_immediates_are_the_same(fast, dtype, shape):
    value = helper.create_tensor_value(draw(dtype, shape))
    context = load.TranscriptionContext()
    a, b = outcome(load._load_value, context, value), outcome(fast("_load_value"), context, value)
    assert a == b
    if dtype in ("?", "i2", "u2", "i4", "i8", "f4") and np.prod(shape) >= 64 and not isinstance(a[0], type):
        found = fast("_load_value", alone=True)(context, value)
        assert found.flags.writeable and found.flags.aligned and found.tobytes() == a[3]


def test_odd_immediates(fast):
    context = load.TranscriptionContext()
    values = []
    for dtype in (types.int16, types.uint16, types.int32, types.bool, types.fp32, types.int64, types.fp64):
        for field, content in (
            ("ints", [70000, -70000] * 40),
            ("floats", [0.5, float("nan")] * 40),
            ("bools", [True] * 80),
            ("longInts", [1 << 40] * 80),
            ("ints", [1] * 79),
            ("strings", ["x"] * 80),
            ("doubles", [0.5] * 80),
        ):
            value = helper.create_tensor_value(np.zeros(80, np.int32))
            value.type.tensorType.dataType = types.BUILTIN_TO_PROTO_TYPES[dtype]
            value.immediateValue.tensor.Clear()
            getattr(value.immediateValue.tensor, field).values.extend(content)
            values.append(value)
    values.append(helper.create_list_scalarvalue([str(n) for n in range(100)], str))
    values.append(helper.create_scalar_value("text"))
    values.append(helper.create_scalar_value(3.5))
    for value in values:
        a, b = outcome(load._load_value, context, value), outcome(fast("_load_value"), context, value)
        assert a == b, value


# --------------------------------------------------------------------------------------------- fp16_overflow, optimize


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0], False), ([65504.0, -65504.0], False), ([65505.0], True), ([-65505.0], True), ([1e37], True), ([2e38], False),
        ([np.inf, 1.0], False), ([-np.inf], False), ([np.nan], False), ([np.nan, 7e4], True), ([np.inf, -7e4], True), ([], False),
    ],
)  # fmt: skip
def test_fp16_overflow_gives_the_same_message(fast, values, expected):
    def program(value):
        @mb.program(input_specs=[mb.TensorSpec((1,))])
        def prog(x):
            return mb.add(x=x, y=value)

        return prog.functions["main"].find_ops(op_type="add")[0]

    value = np.array([*values, *np.linspace(-1, 1, 100)] if values else [0.25] * 3, np.float32)
    for op in (program(value), program(np.float32(value[0]))):
        assert fast("FP16ComputePrecision.fp16_overflow")(op) is FP16ComputePrecision.fp16_overflow(op)
    assert FP16ComputePrecision.fp16_overflow(program(value)) is expected
    if np.abs(value).max() <= 65504:
        assert fast("FP16ComputePrecision.fp16_overflow", alone=True)(program(value)) is False


@pytest.mark.parametrize("nbits", some(range(1, 9), 10))
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "f4"])
def test_packed_bits_are_the_same(fast, dtype, nbits):
    pack, unpack = fast("pack_elements_into_bits"), fast("restore_elements_from_packed_bits")
    for count in COUNTS:
        array = draw("u1" if dtype == "f4" else dtype, count)
        inside = (array.astype(np.int64) % (1 << max(nbits - (dtype[0] == "i"), 1))).astype(dtype)
        for given in (array, inside, inside.reshape(1, -1), inside[::-1]):
            assert outcome(pack, given, nbits) == outcome(_utils.pack_elements_into_bits, given, nbits)
        packed = draw("u1", count)
        for values in (packed, packed.view(np.int8), packed[::-1], packed.reshape(1, -1), packed.astype(np.int32)):
            for number in (
                0,
                1,
                count,
                count * 8 // nbits,
                count * 8 // nbits - 1,
                count * 8 // nbits + 1,
                np.int64(count),
            ):
                for is_signed in (False, True):
                    args = (values, nbits, number, is_signed)
                    assert outcome(unpack, *args) == outcome(_utils.restore_elements_from_packed_bits, *args)
    if nbits in (1, 2, 3, 4, 6):
        fast("pack_elements_into_bits", alone=True)(np.ones(100, np.uint8), nbits)
        fast("restore_elements_from_packed_bits", alone=True)(np.ones(100, np.uint8), nbits, 100)
    fast("pack_elements_into_bits", alone=True)(np.full(100, -8, np.int8), 4)
    fast("restore_elements_from_packed_bits", alone=True)(np.ones(100, np.uint8), 4, 100, True)


@pytest.mark.parametrize("palette", [1, 2, 4, 8, 16, 32, 64, 256])
@pytest.mark.parametrize("dtype", ["f2", "f4", "i1", "f8"])
def test_palettes_are_looked_up_the_same(fast, dtype, palette):
    rng = np.random.default_rng(palette)
    replaced = fast("lut_to_dense")
    for shape, counts in (
        ((8, 16), (1, 1)),
        ((8, 16), (4, 1)),
        ((8, 16), (2, 8)),
        ((4, 3, 8), (2, 3, 4)),
        ((3, 3), (1, 1)),
        ((8, 16), (3, 1)),
        ((100,), (100,)),
        ((8, 0), (1, 1)),
    ):
        indices = rng.integers(0, palette, shape).astype(np.uint8)
        lut = draw(dtype, (*counts, palette, 1))
        for given in (indices, indices.T if len(set(counts)) == 1 else indices, indices.astype(np.int32)):
            table = lut.reshape(*[1] * given.ndim, palette, 1) if max(counts) == 1 else lut
            assert outcome(replaced, given, table) == outcome(_utils.lut_to_dense, given, table)
        outside = np.full(shape, palette % 256, np.uint8)
        assert outcome(replaced, outside, lut)[0] == outcome(_utils.lut_to_dense, outside, lut)[0]
    if palette in (2, 4, 8, 16, 64, 256) and dtype in ("f2", "f4"):
        fast("lut_to_dense", alone=True)(np.zeros((8, 16), np.uint8), draw(dtype, (2, 4, palette, 1)))
    vectors = draw(dtype, (1, 1, palette, 2))
    indices = rng.integers(0, palette, (8, 16)).astype(np.uint8)
    for axis in (0, 1, -1):
        assert outcome(replaced, indices, vectors, axis) == outcome(_utils.lut_to_dense, indices, vectors, axis)
