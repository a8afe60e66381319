"""Properties, by hypothesis: what the reference writes milblob reads, and broken bytes give a value or MilblobError.

MILBLOB_HYPOTHESIS chooses how long: dev (default, about 15 seconds in all), ci, long.
"""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import milblob
import reference
from hostile_bytes import blob_value, const, field, function, immediate, model, operation, program, write_package
from thorough import PROFILE

NUMERIC = [member for member in milblob.DType if member is not milblob.DType.STRING]
BLOB_DTYPES = [member for member in NUMERIC if member.blob_code is not None]


def elements(dtype):
    """Numbers as reference.py wants them for a dtype."""
    _, _, nbits, kind = reference.DTYPES[dtype.name]
    if kind == "f":
        return st.floats(width=nbits, allow_nan=False)
    if kind == "b":
        return st.booleans()
    low = -(1 << nbits - 1) if kind == "i" else 0
    return st.integers(low, low + (1 << nbits) - 1)


def as_array(values, dtype):
    """The array that milblob should give for the reference's numbers."""
    _, _, nbits, kind = reference.DTYPES[dtype.name]
    if kind == "b":
        return np.array(values, bool)
    if nbits < 8:
        return np.array([value & (1 << nbits) - 1 for value in values], np.uint8).view(dtype.numpy)
    return np.frombuffer(reference.pack_elements(values, dtype.name), dtype.numpy)


records = st.lists(
    st.sampled_from(BLOB_DTYPES).flatmap(lambda d: st.tuples(st.just(d), st.lists(elements(d), max_size=40))),
    max_size=6,
)


@settings(PROFILE)
@given(records)
def test_blobs_of_the_reference(rows):
    data, offsets = reference.write_blobs([(dtype.name, values) for dtype, values in rows])
    with milblob.BlobReader(data) as blobs:
        assert [record.offset for record in blobs] == offsets
        for record, (dtype, values) in zip(blobs, rows, strict=True):
            assert (record.dtype, record.count) == (dtype, len(values))
            assert blobs.read(record).tobytes() == as_array(values, dtype).tobytes()
            assert blobs.read_packed(record).tobytes() == reference.pack_elements(values, dtype.name)


def change(data, edits):
    data = bytearray(data)
    for at, value, kind in edits:
        at %= len(data) + 1
        if kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = bytes([value])
        elif at < len(data):
            data[at] = value
    return bytes(data)


edits = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 255), st.sampled_from(["set", "set", "set", "insert", "cut"])),
    min_size=1,
    max_size=6,
)


@settings(PROFILE)
@given(records, edits)
def test_blobs_with_changed_bytes(rows, changes):
    data, offsets = reference.write_blobs([(dtype.name, values) for dtype, values in rows])
    data = change(data, changes)
    try:
        with milblob.BlobReader(data) as blobs:
            for record in list(blobs):
                values = blobs.read(record)
                assert values.shape == (record.count,)
    except milblob.MilblobError as error:
        assert str(error)
    for offset in offsets:
        try:
            dtype, values, data_offset, nbytes = reference.read_blob(data, offset)
        except (ValueError, struct.error):
            continue
        if data_offset < 64 or (data_offset + nbytes > offset and data_offset < offset + 64):
            continue  # data over the header or its own metadata: the reference does not mind
        try:
            with milblob.BlobReader(data) as blobs:
                found = blobs.read(offset)
        except milblob.MilblobError:
            assert (
                len(data) < 64
                or struct.unpack_from("<I", data, 4) != (2,)
                or struct.unpack_from("<I", data)[0] > len(data) // 64 - 1
            )
            continue
        kind = next(member for member in BLOB_DTYPES if member.name == dtype)
        if reference.DTYPES[dtype][3] != "f":  # a NaN need not come through a Python float
            assert found.tobytes() == as_array(values, kind).tobytes()


@settings(PROFILE)
@given(st.data())
def test_tensor_values_there_and_back(data):
    dtype = data.draw(st.sampled_from(NUMERIC))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    count = int(np.prod(shape, dtype=np.int64))
    values = data.draw(st.lists(elements(dtype), min_size=count, max_size=count))
    array = as_array(values, dtype).reshape(shape)
    packed = milblob.pack_tensor(array, dtype)
    again = milblob.unpack_tensor(packed, dtype, shape)
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    name, plain = reference.unpack_tensor_value(packed)
    assert name == reference.FIELDS[dtype.field]
    if dtype.field == 7:
        assert plain == reference.pack_elements(values, dtype.name) or not values
    elif dtype is milblob.DType.UINT64:
        assert [value & (1 << 64) - 1 for value in plain] == values
    else:
        assert plain == values


@settings(PROFILE)
@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=20))
def test_strings_there_and_back(texts):
    packed = milblob.pack_tensor(np.array(texts, object), "string")
    assert packed == reference.pack_tensor_value("strings", texts)
    assert milblob.unpack_tensor(packed, "string", (len(texts),)).tolist() == texts


@settings(PROFILE)
@given(
    st.sampled_from([2, 3, 5]),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=150),
    st.sampled_from(["packed", "unpacked", "chunks"]),
)
def test_varints_in_every_encoding(number, values, encoding):
    """Each value of the reference is the one milblob gives, or it is out of range and milblob says so."""
    dtype = {2: "int32", 3: "bool", 5: "int64"}[number]
    if number == 3:
        values = [value & 1 for value in values]
    elif number == 2:
        values = [reference.as_int(value >> (value & 31), 32) for value in values]
    pieces = [reference.write_varint(value) for value in values]
    if encoding == "packed":
        body = field(1, b"".join(pieces))
    elif encoding == "unpacked":
        body = b"".join(b"\x08" + piece for piece in pieces)
    else:
        body = b"".join(field(1, b"".join(pieces[i : i + 7])) for i in range(0, len(pieces), 7))
    data = field(number, body)
    _, expected = reference.unpack_tensor_value(data)
    assert milblob.unpack_tensor(data, dtype, (len(values),)).tolist() == expected
    assert milblob.unpack_tensor(data, dtype, (None,)).tolist() == expected


@settings(PROFILE)
@given(st.sampled_from(NUMERIC), st.integers(1, 7), st.binary(max_size=200), st.one_of(st.none(), st.integers(0, 300)))
def test_any_bytes_as_a_tensor_value(dtype, number, data, count):
    for value in (data, field(number, data), field(number, field(1, data))):
        try:
            assert milblob.unpack_tensor(value, dtype, (count,)).ndim == 1
        except milblob.MilblobError as error:
            assert str(error)


names = st.text("ab_/[]#0.@é", max_size=6)
leaf = st.builds(
    lambda name, code: operation("const", name, [("val", immediate(code, [10], VALUES[code]))]),
    names,
    st.sampled_from([11, 21]),
)
VALUES = {
    11: reference.pack_tensor_value("floats", [float(i) for i in range(10)]),
    21: field(7, field(1, bytes(range(10)))),
}
listed = st.builds(
    lambda name, n: operation(
        "const", name, [("val", field(3, field(3, field(1, immediate(11, [10], VALUES[11])) * n)))]
    ),
    names,
    st.integers(0, 3),
)
operations = st.recursive(
    st.lists(leaf | listed, max_size=4),
    lambda inner: st.lists(
        leaf | listed | st.builds(
            lambda name, blocks: operation("cond", name, blocks=b"".join(field(4, b"".join(field(3, op) for op in block)) for block in blocks)),
            names, st.lists(inner, min_size=1, max_size=2),
        ),
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(PROFILE)
@given(st.dictionaries(names, operations, min_size=1, max_size=3), st.booleans())
def test_names_of_any_program(functions, constants):
    source = model(field(1, 1) + b"".join(function(ops, name) for name, ops in functions.items()))
    with milblob.open(source, constants=constants) as opened:
        loaded = milblob.load(source, constants=constants)
        assert list(opened) == list(loaded)
        assert source.count(VALUES[11]) + source.count(VALUES[21]) == len(opened)  # none is lost under another's name
        for name, tensor in opened.items():
            assert opened[name] == tensor and tensor.name == name and name in opened
            assert tensor.read().tolist() == list(range(10))
            assert tensor.function in functions


@settings(PROFILE)
@given(operations, edits)
def test_programs_with_changed_bytes(ops, changes):
    source = change(model(program(*ops)), changes)
    try:
        with milblob.open(source, constants=True, stored=True) as opened:
            for name, tensor in opened.items():
                assert opened[name].name == name
                try:
                    tensor.read()
                except milblob.MilblobError as error:
                    assert error.where
    except milblob.MilblobError as error:
        assert str(error)


TOKENS = [
    "program", "(", ")", "1.0", "{", "}", "func", "main", "<", ">", "ios16", "tensor", "fp16", "int32", "string", "bool", "[", "]", ",", "=",
    "const", "val", "x", ";", "->", "0x1p+0", "7", "true", '"a"', "?", "list", "tuple", "dict", "state", "BLOBFILE", "path", "offset", "uint64", "\\",
]  # fmt: skip
START = "program(1.0)\n{\n    func main<ios16>() {\n"


@settings(PROFILE)
@given(st.booleans(), st.lists(st.sampled_from(TOKENS), max_size=40))
def test_any_tokens_as_text(start, tokens):
    text = (START if start else "program") + " ".join(tokens)
    try:
        milblob.load(text.encode(), constants=True)
    except milblob.MilblobError as error:
        assert error.where.startswith("line ") or error.where.startswith("main") or error.offset is None


@settings(PROFILE, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(BLOB_DTYPES), st.sampled_from(BLOB_DTYPES), st.integers(0, 12), st.integers(0, 12))
def test_a_reference_is_followed_only_to_what_was_declared(tmp_path_factory, stored, declared, count, wanted):
    data, (offset,) = reference.write_blobs(
        [(stored.name, [0] * count if reference.DTYPES[stored.name][3] != "f" else [0.0] * count)]
    )
    spec = model(program(const(blob_value(declared.mil_code, [wanted], "@model_path/weights/weight.bin", offset))))
    package = write_package(tmp_path_factory.mktemp("p"), spec, {"weight.bin": data})
    if (stored, count) == (declared, wanted):
        assert milblob.load(package)["w"].shape == (count,)
    else:
        with pytest.raises(milblob.ResolveError):
            milblob.load(package)
