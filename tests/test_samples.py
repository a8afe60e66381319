"""Real models by other people. They are not part of the repository: put them at ../shared/samples or name the folder in
MILBLOB_SAMPLES. What is expected is read from their bytes by coremltools, by tests/support/reference.py or by plain patterns.
"""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

import milblob
import reference
from cases import model_directory
from consumers import uses
from dtype_values import NUMPY
from milblob.program import schema
from paths import SAMPLES
from peers import WITHOUT
from protobuf_programs import blocks_of

ENCODER = "FluidInference+FluidAudio/streaming_encoder"
COMPLETE = [
    "adamsro+dtln-aec-coreml/DTLN_AEC_128_Part1.mlpackage",
    "spotify+basic-pitch/nmp.mlpackage",
    "rishabh01solanki+Forecasting-using-RNN/MyModel.mlpackage",
]
WITHOUT_WEIGHTS = [
    "FluidInference+FluidAudio/TitaNet-small-3.04s.mlpackage",
    f"{ENCODER}.mlpackage",
    f"{ENCODER}.mlmodelc",
]
TEXTS = [
    f"{ENCODER}.mlmodelc",
    "FluidInference+FluidAudio/TokenDurationPrediction.mlmodelc",
    "apple+coremltools/add_model.mlmodelc",
    "tmasolo0+MacOS_Voice_Input/silero_vad.mlmodelc",
    "rebeckerspecialties+mlmodelc-export/flexible-range/model.mil",
    "rebeckerspecialties+mlmodelc-export/quantized-constexpr/model.mil",
]

pytestmark = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no models by other people beside the repository: only our own are tested"
)


def stored_bytes(path, offset):
    """(MIL dtype, data) of a record, by the 32 bytes of its metadata."""
    with path.open("rb") as file:
        file.seek(offset)
        sentinel, code, nbytes, data_offset = struct.unpack("<IIQQ", file.read(24))
        assert sentinel == reference.SENTINEL
        file.seek(data_offset)
        return reference.BLOB_CODES[code], file.read(nbytes)


def constants(block):
    """Yield the const operations of a block and of those nested in it, with the path of their block."""
    for path, inner in blocks_of(block):
        for op in inner.operations:
            if op.type == "const":
                yield path, op


def message_of(path):
    return schema.parse("Model", next(model_directory(path).glob("*.mlmodel")).read_bytes())


# ------------------------------------------------------------------------------------------------------------ packages


@pytest.mark.parametrize("name", [*COMPLETE, *[n for n in WITHOUT_WEIGHTS if n.endswith("package")]])
def test_lists_what_the_protobuf_has(name):
    """Every const: name, dtype, shape, place; weights are those in blob files and numbers of ten elements or more."""
    path = SAMPLES / name
    (function,) = message_of(path).mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    expected, weights = {}, set()
    for _, op in constants(block):
        value, output = op.attributes["val"], op.outputs[0].name
        tensor = value.type.tensorType
        shape = tuple(d.constant.size for d in tensor.dimensions)
        dtype = next(name for name, row in reference.DTYPES.items() if row[1] == tensor.dataType)
        blob = value.blobFileValue if value.WhichOneof("value") == "blobFileValue" else None
        assert output not in expected
        expected[output] = (dtype, shape, blob and blob.offset, blob and blob.fileName.removeprefix("@model_path/"))
        if blob or (np.prod(shape) >= 10 and dtype not in ("STRING", "BOOL")):
            weights.add(output)
    with milblob.open(path, constants=True) as model:
        found = {t.name: t for t in model.values() if t.op == "const" and t.where.endswith(".val")}
        assert set(found) == set(expected)
        for key, (dtype, shape, offset, file) in expected.items():
            tensor = found[key]
            assert (tensor.mil_dtype.name, tensor.shape, tensor.is_blob) == (dtype, shape, offset is not None)
            if offset is not None:
                assert (tensor.offset, tensor.file) == (offset, str(model_directory(path) / file))
    with milblob.open(path) as model:
        assert {t.name for t in model.values() if t.op == "const"} == weights


@pytest.mark.parametrize("name", COMPLETE)
def test_values_equal_the_stored_bytes(name):
    for tensor in milblob.open(SAMPLES / name).values():
        if tensor.is_blob:
            dtype, data = stored_bytes(Path(tensor.file), tensor.offset)
            values = tensor.read()
            assert (dtype, values.tobytes()) == (tensor.mil_dtype.name, data)
            assert values.dtype == np.dtype(NUMPY[dtype])
    arrays = milblob.load(SAMPLES / name)
    with milblob.open(SAMPLES / name) as model:
        assert list(arrays) == list(model)
        assert all(arrays[key].tobytes() == model[key].read().tobytes() for key in model)


@pytest.mark.parametrize("name", COMPLETE)
def test_values_equal_what_coremltools_loads(name):
    ct_proto = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"]).proto
    from coremltools.converters.mil.frontend.milproto import load as milproto

    root = model_directory(SAMPLES / name)
    spec = ct_proto.Model_pb2.Model.FromString(next(root.glob("*.mlmodel")).read_bytes())
    program = milproto.load(
        spec, specification_version=spec.specificationVersion, file_weights_dir=str(root / "weights")
    )
    theirs = {}

    def collect(block):
        for op in block.operations:
            if op.op_type == "const":
                theirs[op.outputs[0].name] = op.outputs[0].val
            for inner in op.blocks:
                collect(inner)

    for function in program.functions.values():
        collect(function)
    with milblob.open(SAMPLES / name, constants=True) as model:
        ours = [t for t in model.values() if t.op == "const" and t.where.endswith(".val")]
        assert ours
        for tensor in ours:
            expected, values = theirs[tensor.name], tensor.read()
            if tensor.mil_dtype.name == "STRING":
                assert values.item() == str(expected)
                continue
            expected = np.asarray(expected)
            assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
            assert values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_absent_weights(name):
    """Listing works; reading says which file is missing, in one line."""
    with milblob.open(SAMPLES / name) as model:
        assert len(model) > 50
        tensor = next(t for t in model.values() if t.is_blob)
        assert not Path(tensor.file).exists()
        with pytest.raises(
            milblob.ResolveError, match=r"^weight file @model_path/weights/weight.bin: expected at .*, got no such file"
        ) as error:
            tensor.read()
        assert "\n" not in str(error.value)
        assert error.value.where == tensor.where
    with pytest.raises(milblob.ResolveError, match="got no such file"):
        milblob.load(SAMPLES / name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "findit-studio+coremlit/identity.mlmodel",
            "model type: expected an ML Program or a pipeline of them, got a neuralNetwork in ",
        ),
        (
            "rishabh01solanki+Forecasting-using-RNN/Image_model.mlmodel",
            "model type: expected an ML Program or a pipeline of them, got a neuralNetworkClassifier in ",
        ),
        (
            "apple+coremltools/simple_layer.mlmodel",
            r"specification version of an ML Program: expected 6 or more, .*\(a draft of the format\)",
        ),
    ],
)
def test_what_is_refused(name, words):
    for call in (milblob.open, milblob.load):
        with pytest.raises(milblob.UnsupportedError, match=f"^{words}") as error:
            call(SAMPLES / name)
        assert "\n" not in str(error.value)
        assert name in str(error.value)


# -------------------------------------------------------------------------------------------------------- compiled text

CONST = re.compile(r"^\s*(?P<type>\S.*?) (?P<name>\w+) = const\(\)\[(?P<attributes>.*)\];$", re.MULTILINE)
VALUE = re.compile(
    r"\bval = (?:tensor<(?P<scalar>\w+), \[(?P<dims>[\d, ]*)\]>|(?P<bare>\w+))\((?P<payload>.*)\)(?:, name = .*)?$"
)
BLOB = re.compile(
    r'BLOBFILE\(path = (?:tensor<string, \[\]>|string)\("@model_path/(?P<path>[^"]*)"\), '
    r"offset = (?:tensor<uint64, \[\]>|uint64)\((?P<offset>\d+)\)\)"
)
SCALARS = {
    "fp16": "FLOAT16",
    "fp32": "FLOAT32",
    "int32": "INT32",
    "bool": "BOOL",
    "string": "STRING",
    "uint16": "UINT16",
    "int16": "INT16",
    "int8": "INT8",
    "uint8": "UINT8",
}


def number(token):
    if token in ("true", "false"):
        return token == "true"
    return float.fromhex(token) if "x" in token or "inf" in token else int(token)


def text_of(path):
    return (path / "model.mil" if path.is_dir() else path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TEXTS)
def test_constants_of_a_text_are_those_of_its_statements(name):
    """Every const statement of the text, read a second time with regular expressions."""
    path = SAMPLES / name
    count = 0
    with milblob.open(path, constants=True) as model:
        for statement in CONST.finditer(text_of(path)):
            value = VALUE.search(statement["attributes"])
            assert value, statement[0][:200]
            dtype = SCALARS[value["scalar"] or value["bare"]]
            shape = tuple(int(size) for size in (value["dims"] or "").split(",") if size)
            tensor = model[statement["name"]]
            assert (tensor.mil_dtype.name, tensor.shape, tensor.op) == (dtype, shape, "const")
            count += 1
            blob = BLOB.fullmatch(value["payload"])
            assert tensor.is_blob is (blob is not None)
            if blob is not None:
                root = path if path.is_dir() else path.parent
                assert (tensor.offset, tensor.file) == (int(blob["offset"]), str(root / blob["path"]))
            elif dtype == "STRING":
                assert tensor.read().tolist() == value["payload"].strip('"')
            else:
                tokens = re.findall(r"[-\w.+]+", value["payload"])
                expected = np.array([number(token) for token in tokens], np.float64 if "FLOAT" in dtype else None)
                assert tensor.read().tobytes() == expected.astype(NUMPY[dtype]).tobytes()
        found = [t for t in model.values() if t.op == "const" and t.where.endswith(".val")]
        assert count == len(found) == len(re.findall(r"= const\(\)", text_of(path)))


def test_text_without_a_file_around_it():
    with milblob.open(SAMPLES / "rebeckerspecialties+mlmodelc-export/quantized-constexpr/model.mil") as model:
        (tensor,) = model.values()
        assert (tensor.op, tensor.compression.scheme) == ("constexpr_affine_dequantize", "affine_dequantize")
        assert set(tensor.parts) == {"axis", "quantized_data", "scale", "zero_point"}


def test_compiled_weights():
    path = SAMPLES / "tmasolo0+MacOS_Voice_Input/silero_vad.mlmodelc"
    arrays = milblob.load(path)
    with milblob.open(path) as model:
        assert len(model) == len(arrays) > 0
        for name, tensor in model.items():
            if tensor.is_blob:
                dtype, data = stored_bytes(Path(tensor.file), tensor.offset)
                assert (tensor.mil_dtype.name, arrays[name].tobytes()) == (dtype, data)


def test_protobuf_and_text_of_one_model():
    """The same tensors at the same offsets under the same names, but for what the compiler adds to buildInfo."""

    def table(path, **options):
        with milblob.open(path, **options) as model:
            root = str(path if path.suffix == ".mlmodelc" else model_directory(path))
            return {
                name: (
                    t.mil_dtype,
                    t.shape,
                    t.function,
                    t.op,
                    t.where,
                    t.is_blob,
                    t.offset if t.is_blob else None,
                    t.file.removeprefix(root) if t.is_blob else None,
                    sorted(t.parts),
                    sorted(uses(t)),
                )
                for name, t in model.items()
            }

    package, compiled = SAMPLES / f"{ENCODER}.mlpackage", SAMPLES / f"{ENCODER}.mlmodelc"
    ours, theirs = table(package), table(compiled)
    assert len(ours) > 400
    assert ours == theirs
    assert list(ours) == list(theirs)
    ours, theirs = table(package, constants=True, stored=True), table(compiled, constants=True, stored=True)
    assert len(ours) > 4000
    assert {k: v for k, v in theirs.items() if "buildInfo" not in k} == {
        k: v for k, v in ours.items() if "buildInfo" not in k
    }
    with milblob.open(package, constants=True) as first, milblob.open(compiled, constants=True) as second:
        for name, tensor in first.items():
            if not tensor.is_blob and "buildInfo" not in name:
                ours, theirs = tensor.read(), second[name].read()
                assert (ours.dtype, ours.shape, ours.tolist()) == (theirs.dtype, theirs.shape, theirs.tolist())
        assert first.metadata.opset == second.metadata.opset
        assert sorted(f.name for f in first.metadata.inputs) == sorted(f.name for f in second.metadata.inputs)


def test_every_sample_opens_or_raises_an_error_with_the_reason():
    """Also those that nobody has written a test for yet."""
    found = [p for p in SAMPLES.rglob("*") if p.suffix in (".mlpackage", ".mlmodelc", ".mlmodel", ".mil")]
    assert found
    for path in found:
        try:
            with milblob.open(path, constants=True) as model:
                assert model.functions
                assert model.metadata.opset
                assert len(model.programs) >= 1
        except milblob.UnsupportedError as error:
            assert re.fullmatch(r"[a-z].*: expected .*, got .*", str(error))
