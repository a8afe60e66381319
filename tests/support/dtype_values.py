"""Elements of every dtype: how NumPy has them, how a TensorValue holds them, random ones, and comparison bit for bit."""

import ml_dtypes
import numpy as np

import reference

# What arrays must come as, written down here and not taken from milblob.
NUMPY = {
    "BOOL": "?", "STRING": object, "FLOAT16": "<f2", "FLOAT32": "<f4", "FLOAT64": "<f8", "BFLOAT16": ml_dtypes.bfloat16,
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "INT4": ml_dtypes.int4,
    "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "UINT4": ml_dtypes.uint4,
    "UINT2": ml_dtypes.uint2,
    "UINT1": ml_dtypes.uint1, "UINT6": "u1", "UINT3": "u1",
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip


# The field that coremltools picks (FORMATS.md), and those that hold the dtype without loss.
FIELD = {
    "BOOL": "bools",
    "STRING": "strings",
    "FLOAT16": "bytes",
    "FLOAT32": "floats",
    "FLOAT64": "doubles",
    "BFLOAT16": "bytes",
    "INT8": "bytes",
    "INT16": "ints",
    "INT32": "ints",
    "INT64": "longInts",
    "INT4": "bytes",
    "UINT8": "bytes",
    "UINT16": "ints",
    "UINT32": "bytes",
    "UINT64": "longInts",
    "UINT4": "bytes",
    "UINT2": "bytes",
    "UINT1": "bytes",
    "UINT6": "bytes",
    "UINT3": "bytes",
    "FLOAT8E4M3FN": "bytes",
    "FLOAT8E5M2": "bytes",
}
INTEGERS = [name for name in FIELD if "INT" in name]
SUB_BYTE = [name for name in FIELD if 0 < reference.DTYPES[name][2] < 8]
NUMERIC = [name for name in FIELD if name != "STRING"]
FIELDS = list(reference.FIELDS.values())


def natural(array, dtype):
    """View raw bits as expected.npz keeps them as the dtype that stands for them."""
    if dtype == "INT4":
        array = array & 15  # other_fields has them sign-extended, the others as nibbles: ml_dtypes keeps nibbles
    return np.ascontiguousarray(array).reshape(array.shape).view(NUMPY[dtype])


def assert_same(got, expected, dtype):
    """Assert equal dtype, shape and bits; NaN payloads count."""
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.dtype(NUMPY[dtype])
    if dtype == "STRING":
        assert got.reshape(-1).tolist() == list(expected)
        return
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def numbers(array, dtype):
    """The elements as tests/support/reference.py has them: Python numbers, raw bits for fp16, bfloat16 and fp8."""
    nbits, kind = reference.DTYPES[dtype][2:]
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind == "r":
        return flat.view(f"u{nbits // 8}").tolist()
    if nbits < 8:
        bits = flat.view("u1").tolist()
        return [v - (1 << nbits) if kind == "i" and v >> nbits - 1 else v for v in bits]
    return flat.tolist()


def tensor_value(field, array, dtype):
    """A TensorValue by tests/support/reference.py, with the values in the named field."""
    if field == "bytes" and dtype == "BOOL":
        return reference.pack_tensor_value(field, array.tobytes())
    if field == "bytes" and reference.DTYPES[dtype][2] >= 8:
        return reference.pack_tensor_value(field, array.tobytes())
    if field == "bytes":
        return reference.pack_tensor_value(field, reference.pack_elements(numbers(array, dtype), dtype))
    if field in ("floats", "doubles"):  # raw: a NaN in a Python float loses its payload
        width = "<f4" if field == "floats" else "<f8"
        data = array.astype(width, copy=False).tobytes()
        number = 1 if field == "floats" else 6
        return reference.write_field(number, reference.write_field(1, data) if data else b"")
    if (field, dtype) in (("ints", "UINT32"), ("longInts", "UINT64")):
        array = array.view(f"<i{array.itemsize}")  # a signed field: the same bits
        dtype = dtype[1:]
    return reference.pack_tensor_value(field, numbers(array, dtype))


def accepted(dtype):
    """The fields from which a dtype follows without loss."""
    fields = [FIELD[dtype]] + (["bytes"] if dtype != "STRING" else [])
    fields += ["ints", "longInts"] if dtype in INTEGERS else []
    fields += ["floats"] if dtype == "FLOAT64" else []
    return set(fields)


def bounds(dtype):
    nbits = reference.DTYPES[dtype][2]
    return (0, (1 << nbits) - 1) if dtype[0] == "U" else (-(1 << nbits - 1), (1 << nbits - 1) - 1)


def draw(dtype, count, seed=0):
    """Random elements with every bit pattern of the dtype possible, small numbers among the wide ones."""
    rng = np.random.default_rng([count, seed, NUMERIC.index(dtype)])
    nbits = max(8, reference.DTYPES[dtype][2])
    bits = np.frombuffer(rng.bytes(count * nbits // 8), f"<u{nbits // 8}")
    if dtype in INTEGERS and nbits > 8:
        bits = (bits.view(f"<i{nbits // 8}") >> rng.integers(0, nbits, count).astype(f"<i{nbits // 8}")).view(
            bits.dtype
        )
    if dtype == "BOOL":
        bits = bits & 1
    if dtype in SUB_BYTE:
        bits = bits & (1 << reference.DTYPES[dtype][2]) - 1
    return natural(bits, dtype)
