"""What the tests of repack share: what a model holds, as milblob and as coremltools see it, and models to try it on."""

import os
import pathlib
import shutil
import struct

import numpy as np
import pytest

import milblob
import reference
from conftest import DATA, load_case, model_directory
from hostile_bytes import blob_value, field, function, immediate, operation, write_package


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Tests of what is written need not wait for the disk; tests/test_files.py is about that."""
    monkeypatch.setattr(milblob.storage.output, "sync", lambda fd: None)


FIXTURES = [
    (name, path)
    for name in sorted(p.parent.relative_to(DATA).as_posix() for p in DATA.rglob("expected.json"))
    if name not in ("neural_network", "wire/odd_numbers")  # no ML Program; a value that cannot be read
    for path in load_case(name).expected["paths"]
    if not path.endswith((".pb", ".mil"))
]
PACKAGES = [(name, path) for name, path in FIXTURES if path.endswith(".mlpackage")]


def fixture_path(name, path):
    return DATA / name / path


def copy_of(source, folder, name=None):
    """A copy of a fixture that a test may change."""
    target = pathlib.Path(folder) / (name or pathlib.Path(source).name)
    return pathlib.Path(
        shutil.copytree(source, target) if pathlib.Path(source).is_dir() else shutil.copy(source, target)
    )


def tree(path):
    """Every file, link and directory below a path: name -> contents, target, or None."""
    path = pathlib.Path(path)
    if path.is_file():
        return path.read_bytes()
    found = {}
    for directory, folders, files in os.walk(path):
        for name in folders + files:
            entry = pathlib.Path(directory, name)
            inside = entry.relative_to(path).as_posix()
            found[inside] = (
                os.readlink(entry) if entry.is_symlink() else entry.read_bytes() if entry.is_file() else None
            )
    return found


def values(path, functions=None):
    """Every constant: name -> (dtype, shape, bytes or strings)."""
    with milblob.open(path, constants=True, stored=True) as opened:
        return {
            name: (str(t.mil_dtype), t.shape, t.read().tolist() if t.dtype == object else t.read().tobytes())
            for name, t in opened.items()
            if functions is None or t.function in functions
        }


def record_values(path):
    """Of a bare weight file: (dtype, count, packed bytes) of each record."""
    with milblob.BlobReader(path) as blobs:
        return [(str(r.dtype), r.count, bytes(blobs.read_packed(r.offset))) for r in blobs]


def findings(path):
    """What `check` says, but for offsets, which move."""
    return sorted({(f.severity, f.code) for f in milblob.check(path)})


def weight_file_names(path):
    return sorted(
        p.relative_to(path).as_posix() for p in pathlib.Path(path).rglob("*.bin") if p.parent.name != "analytics"
    )


def references(path):
    """Every reference: name -> (file name in the Program, offset)."""
    found = {}
    with milblob.open(path, constants=True, stored=True) as opened:
        for name, tensor in opened.items():
            if tensor.is_blob and tensor._constant is not None:
                found[name] = (tensor._constant.text, tensor._constant.blob_offset)
    return found


# ------------------------------------------------------------------------------------------------------- hand-made ones


def blobs_of(*records, garbage=0):
    """A weight file of (blob code, data[, padding bits]): (bytes, metadata offsets). `garbage` fills reserved bytes."""
    data, offsets = bytearray(struct.pack("<II", len(records), 2) + bytes([garbage]) * 56), []
    for code, content, *padding in records:
        data += bytes(reference.align64(len(data)) - len(data))
        offsets.append(len(data))
        nbits = padding[0] if padding else int.from_bytes(bytes([garbage]) * 8, "little")
        data += struct.pack("<IIQQQ", reference.SENTINEL, code, len(content), len(data) + 64, nbits)
        data += bytes([garbage]) * 32 + content
    return bytes(data), offsets


def package_of(folder, functions, files, others=None, spec_version=9):
    """A package by hand: functions {name: [(tensor, mil code, shape, file or None, offset or TensorValue)]}."""
    body = field(1, 1)
    described = b""
    for name, tensors in functions.items():
        ops = []
        for tensor, code, shape, file, place in tensors:
            value = immediate(code, shape, place) if file is None else blob_value(code, shape, file, place)
            ops.append(operation("const", tensor, [("val", value)], output_type=value_type(code, shape)))
        body += function(ops, name)
        described += field(20, field(1, name))
    description = field(2, described + field(21, next(iter(functions)))) if len(functions) > 1 else b""
    whole = field(1, spec_version) + description + field(502, body)
    package = write_package(folder, whole)
    inside = package / "Data" / "com.apple.CoreML"
    for file, data in {**files, **(others or {})}.items():
        (inside / file).parent.mkdir(parents=True, exist_ok=True)
        (inside / file).write_bytes(data)
    return package


def value_type(code, shape):
    dims = b"".join(field(3, field(1, field(1, size))) for size in shape)
    return field(1, field(1, code) + field(2, len(shape)) + dims)


WEIGHTS = "@model_path/weights/weight.bin"


def simple_package(folder, contents, code=11, blob_code=2, itemsize=4, file="weights/weight.bin", garbage=0):
    """One function, one tensor `w0`, `w1`, ... per content, in one weight file."""
    data, offsets = blobs_of(*((blob_code, content) for content in contents), garbage=garbage)
    tensors = [
        (f"w{i}", code, [len(content) // itemsize], f"@model_path/{file}", offset)
        for i, (content, offset) in enumerate(zip(contents, offsets, strict=True))
    ]
    return package_of(folder, {"main": tensors}, {file: data})


# --------------------------------------------------------------------------------------------------- coremltools' view


def theirs(path):
    """Every constant of a package as coremltools has it: place in the spec -> (dtype, shape, bytes).

    Its own protobuf classes, its own reader of weight files; references are followed by their whole path, as Core ML
    does (coremltools itself looks at the last part only).
    """
    from coremltools import proto
    from coremltools.libmilstoragepython import _BlobStorageReader

    names = proto.MIL_pb2.DataType.Name
    root = model_directory(path)
    spec = proto.Model_pb2.Model.FromString(
        next(p for p in [path, *root.glob("*.mlmodel")] if p.is_file()).read_bytes()
    )
    readers, found = {}, {}

    def visit_value(key, value):
        kind = names(value.type.tensorType.dataType)
        dims = tuple(d.constant.size for d in value.type.tensorType.dimensions)
        if value.HasField("blobFileValue"):
            file = root / value.blobFileValue.fileName.removeprefix("@model_path/")
            reader = readers.setdefault(file, _BlobStorageReader(str(file)))
            read = {"FLOAT16": "fp16", "FLOAT32": "float"}.get(kind, kind.lower())
            if kind in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"):  # which it cannot read
                with milblob.BlobReader(file) as blobs:
                    data = bytes(blobs.read_packed(value.blobFileValue.offset))
            else:
                data = np.asarray(getattr(reader, f"read_{read}_data")(value.blobFileValue.offset)).tobytes()
            found[key] = (kind, dims, data)
        elif value.immediateValue.WhichOneof("value") == "tensor":
            found[key] = (kind, dims, natural_bytes(kind, value.immediateValue.tensor, int(np.prod(dims))))
        elif value.HasField("immediateValue"):
            found[key] = ("", dims, value.immediateValue.SerializeToString(deterministic=True))

    def visit_block(key, block):
        for index, op in enumerate(block.operations):
            for name, value in op.attributes.items():
                visit_value((*key, index, op.type, name), value)
            for name, argument in op.inputs.items():
                for number, binding in enumerate(argument.arguments):
                    if binding.HasField("value"):
                        visit_value((*key, index, op.type, name, number), binding.value)
            for number, inner in enumerate(op.blocks):
                visit_block((*key, index, number), inner)

    def visit_model(key, message):
        for pipeline in ("pipeline", "pipelineClassifier", "pipelineRegressor"):
            if message.HasField(pipeline):
                inner = getattr(message, pipeline)
                for number, member in enumerate(getattr(inner, "pipeline", inner).models):
                    visit_model((*key, number), member)
        for name, body in message.mlProgram.functions.items():
            for block in body.block_specializations.values():
                visit_block((*key, name), block)

    visit_model((), spec)
    return found


def natural_bytes(kind, tensor, count):
    """The elements of an immediate, as coremltools' own reader of weight files would give them."""
    which = tensor.WhichOneof("value")
    if which is None:
        return b""
    content = getattr(tensor, which).values
    if which == "strings":
        return repr(list(content)).encode()
    nbits = reference.DTYPES[kind][2]
    if which == "bytes" and nbits >= 8:
        return bytes(content)
    if which == "bytes":
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[: count * nbits].reshape(count, nbits)
        numbers = bits @ (1 << np.arange(nbits))
        if kind == "INT4":
            numbers = np.where(numbers > 7, numbers - 16, numbers)
        return numbers.astype(np.int8 if kind == "INT4" else np.uint8).tobytes()
    dtype = {"FLOAT32": "<f4", "FLOAT64": "<f8", "BOOL": "?", "FLOAT16": "<f2"}.get(kind, kind.lower())
    return np.array(list(content)).astype(dtype).tobytes()


def load_pymil(path):
    """Have coremltools make its own program of a package."""
    from coremltools import proto
    from coremltools.converters.mil.frontend.milproto import load as milproto

    root = model_directory(path)
    spec = proto.Model_pb2.Model.FromString(next(root.glob("*.mlmodel")).read_bytes())
    return milproto.load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(root / "weights"))


def pymil_values(path):
    """Every value that coremltools' own program has: (function, output, parameter) -> bytes, sorted."""
    found = {}

    def visit(name, block):
        for op in block.operations:
            inputs = op.inputs if op.op_type.startswith("constexpr_") else {}
            for key, var in [*inputs.items(), *([("val", op.outputs[0])] if op.op_type == "const" else [])]:
                array = np.asarray(var.val)
                row = (
                    str(array.dtype),
                    array.shape,
                    array.tobytes() if array.dtype != object else repr(array.tolist()),
                )
                output = op.outputs[0].name.rstrip("0123456789")  # it counts up what has no name, from load to load
                found.setdefault((name, output, key), []).append(row)
            for inner in op.blocks:
                visit(name, inner)

    for name, body in load_pymil(path).functions.items():
        visit(name, body)
    return {key: sorted(rows) for key, rows in found.items()}
