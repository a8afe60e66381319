"""milblob.program.schema: the tables are Core ML's, the pool is private, protobuf comes late, bad bytes are FormatErrors."""

import contextlib
import mmap
import os
import random
import re
import subprocess
import sys

import pytest

from milblob.errors import FormatError, UnsupportedError
from milblob.program import schema
from paths import ROOT
from peers import WITHOUT

pytestmark = pytest.mark.wheel


def run(code: str) -> str:
    """Run code in a new interpreter with this one's import path; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, payload: bytes) -> bytes:
    """Return a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def small_program():
    """Return a Program with every kind of field: maps, both oneofs of Value, nested blocks, packed values, an enum."""
    program = schema.Program(version=1, docString="small")
    function = program.functions["main"]
    function.opset = "CoreML7"
    tensor = function.inputs.add(name="x").type.tensorType
    tensor.dataType = schema.DataType.Value("FLOAT16")
    tensor.rank = 2
    tensor.dimensions.add().constant.size = 3
    tensor.dimensions.add().unknown.variadic = False
    block = function.block_specializations["CoreML7"]
    block.outputs.append("y")
    const = block.operations.add(type="const")
    const.attributes["val"].blobFileValue.fileName = "@model_path/weights/weight.bin"
    const.attributes["val"].blobFileValue.offset = 2**63
    const.outputs.add(name="w")
    loop = block.operations.add(type="while_loop")
    loop.inputs["loop_vars"].arguments.add(name="w")
    loop.inputs["loop_vars"].arguments.add().value.immediateValue.tensor.ints.values.extend([-1, 2**31 - 1])
    loop.blocks.add().outputs.append("z")
    return program


# -- laziness and privacy --------------------------------------------------------------------------------------------


def test_importing_does_not_load_protobuf_until_a_class_is_asked_for():
    code = """
import sys
import milblob.program.schema as schema
loaded = lambda: any(name.split(".")[0:2] == ["google", "protobuf"] for name in sys.modules)
before = loaded()
hasattr(schema, "NoSuchMessage"); dir(schema); schema.MESSAGES["Program"]; schema.DATA_TYPES["INT4"]
still = loaded()
schema.Program
print(before, still, loaded())
"""
    assert run(code) == "False False True"


def test_default_pool_has_no_core_ml_messages():
    code = """
from milblob.program import schema
schema.Model
from google.protobuf import descriptor_pool
try:
    descriptor_pool.Default().FindMessageTypeByName("CoreML.Specification.Model")
except KeyError:
    print("absent")
"""
    assert run(code) == "absent"


def test_threads_that_come_first_together_get_one_class():
    code = """
import threading
from milblob.program import schema
barrier, found = threading.Barrier(8), []
def work():
    barrier.wait()
    found.append(schema.Program)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(found), len(set(map(id, found))))
"""
    assert run(code) == "8 1"


# -- the classes -----------------------------------------------------------------------------------------------------


def test_every_message_has_a_class_of_its_full_name():
    for name, full_name in schema.MESSAGES.items():
        assert schema.message_class(name).DESCRIPTOR.full_name == full_name
        assert getattr(schema, name) is schema.message_class(name)
    assert schema.MESSAGES["Program"] == "CoreML.Specification.MILSpec.Program"
    assert schema.MESSAGES["Model"] == "CoreML.Specification.Model"


def test_enum_is_the_table():
    assert dict(schema.DataType.items()) == schema.DATA_TYPES
    assert schema.DataType.Name(10) == "FLOAT16"


def test_enum_agrees_with_the_dtype_table():
    header = ROOT / "include" / "milblob" / "dtype.h"
    rows = re.findall(r'\bX\((\w+), "\w+", (\d+), ', header.read_text(encoding="utf-8"))
    assert {name: int(code) for name, code in rows} == {n: c for n, c in schema.DATA_TYPES.items() if c}


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(KeyError, match="expected one of"):
        schema.message_class("Programme")
    with pytest.raises(AttributeError, match="Programme"):
        schema.Programme  # noqa: B018
    assert "Program" in dir(schema)
    assert "DataType" in dir(schema)


def test_unknown_enum_values_survive():
    tensor = schema.parse("TensorType", b"\x08\x63")  # dataType 99
    assert tensor.dataType == 99
    assert tensor.SerializeToString() == b"\x08\x63"


# -- parse -----------------------------------------------------------------------------------------------------------


def test_parse_gives_back_what_was_serialized():
    program = small_program()
    data = program.SerializeToString()
    assert schema.parse("Program", data) == program
    for buffer in (bytearray(data), memoryview(data), memoryview(b"-" + data)[1:]):
        assert schema.parse("Program", buffer) == program
    with mmap.mmap(-1, len(data)) as mapped:
        mapped[:] = data
        assert schema.parse("Program", mapped) == program


def test_empty_input_is_an_empty_message():
    assert schema.parse("Program", b"") == schema.Program()


def test_unknown_fields_are_written_back():
    unknown = field(2047, b"abc")
    program = small_program().SerializeToString(deterministic=True) + unknown
    assert schema.parse("Program", program).SerializeToString(deterministic=True) == program
    # Inside a message whose fields are not in the tables: a neural network, all of it unknown.
    model = b"\x08\x04" + field(500, unknown)
    parsed = schema.parse("Model", model)
    assert parsed.WhichOneof("Type") == "neuralNetwork"
    assert parsed.SerializeToString() == model


def test_model_types_name_every_kind_of_model():
    assert schema.MODEL_TYPES[502] == "mlProgram"
    oneof = schema.Model.DESCRIPTOR.oneofs_by_name["Type"]
    assert {f.number: f.name for f in oneof.fields} == schema.MODEL_TYPES
    for number, name in schema.MODEL_TYPES.items():
        assert schema.parse("Model", field(number, b"")).WhichOneof("Type") == name


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a", id="tag without value"),
        pytest.param(b"\x12\xff", id="length cut short"),
        pytest.param(b"\x12\x05\x0a", id="length past the end"),
        pytest.param(b"\x08" + b"\xff" * 11, id="varint of 11 bytes"),
        pytest.param(b"\x00\x00", id="field number 0"),
        pytest.param(b"\x1a\x02\xff\xfe", id="text that is not UTF-8"),
        pytest.param(b"\x0c", id="end of a group that did not start"),
        pytest.param(b"\x0b" * 5000, id="groups nested 5000 deep"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", id="a git-lfs pointer"),
    ],
)
def test_bytes_that_are_no_message_are_a_format_error(data):
    with pytest.raises(FormatError, match=r"^Program message: expected protobuf wire format, got \d+ bytes") as caught:
        schema.parse("Program", data, file="model.mlmodel")
    assert caught.value.file == "model.mlmodel"
    assert not str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_nesting_bomb_is_a_format_error():
    data = b""
    for depth in range(2001):  # a tuple type of one tuple type of one ...
        data = field(3 if depth % 2 else 1, data)
    with pytest.raises(FormatError):
        schema.parse("TupleType", data)


def test_every_truncation_and_many_mutations_are_values_or_format_errors():
    data = small_program().SerializeToString()
    generator = random.Random(20)
    cases = [data[:nbytes] for nbytes in range(len(data))]
    for _ in range(3000):
        case = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            case[generator.randrange(len(case))] = generator.randrange(256)
        cases.append(bytes(case))
    for case in cases:
        with contextlib.suppress(FormatError):
            schema.parse("Program", case)


def test_wrong_arguments_are_type_errors():
    for data in ("text", None, 5, [1]):
        with pytest.raises(TypeError):
            schema.parse("Program", data)


def test_limit_of_protobuf_is_named(monkeypatch):
    assert schema.MAX_NBYTES == 2**31 - 1
    monkeypatch.setattr(schema, "MAX_NBYTES", 3)
    assert schema.parse("Program", b"\x08\x01").version == 1
    with pytest.raises(UnsupportedError, match=r"expected at most 3 bytes \(the limit of protobuf\), got 4"):
        schema.parse("Program", b"\x08\x01\x08\x01")


@pytest.mark.skipif(
    sys.platform == "win32",
    reason="an anonymous mapping takes its whole size from memory there: no huge Program is read",
)
def test_two_gibibytes_are_refused_before_they_are_copied():
    with mmap.mmap(-1, 2**31) as mapped, pytest.raises(UnsupportedError, match="got 2147483648"):
        schema.parse("Program", mapped)


# -- against coremltools ---------------------------------------------------------------------------------------------


def rows(descriptor):
    """Return everything a message descriptor says about its fields, in comparable form."""

    def repeated(field):
        return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED

    return {
        (
            field.name,
            field.number,
            field.type,
            repeated(field),
            field.message_type and field.message_type.full_name,
            field.enum_type and field.enum_type.full_name,
            field.containing_oneof and field.containing_oneof.name,
            bool(field.message_type and field.message_type.GetOptions().map_entry),
            field.has_presence,
            field.is_packed,
        )
        for field in descriptor.fields
    }


def with_nested(descriptor):
    yield descriptor
    for nested in descriptor.nested_types:
        yield from with_nested(nested)


def test_tables_are_coremltools_descriptors_field_by_field():
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.proto import FeatureTypes_pb2, MIL_pb2, Model_pb2

    theirs = {
        descriptor.full_name: descriptor
        for file in (Model_pb2, FeatureTypes_pb2, MIL_pb2)
        for top in file.DESCRIPTOR.message_types_by_name.values()
        for descriptor in with_nested(top)
    }
    ours = {
        descriptor.full_name: descriptor
        for name in schema.MESSAGES
        if name not in schema.OPAQUE
        for descriptor in with_nested(schema.message_class(name).DESCRIPTOR)
    }
    assert set(ours) == set(theirs)
    for full_name, descriptor in theirs.items():
        assert rows(ours[full_name]) == rows(descriptor), full_name
        for enum in descriptor.enum_types:
            mine = ours[full_name].enum_types_by_name[enum.name]
            assert {v.name: v.number for v in mine.values} == {v.name: v.number for v in enum.values}, enum.full_name
    assert dict(MIL_pb2.DataType.items()) == schema.DATA_TYPES


def test_opaque_messages_exist_in_coremltools_and_have_no_fields_here():
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.proto import Model_pb2

    theirs = {f.message_type.full_name for f in Model_pb2.Model.DESCRIPTOR.oneofs_by_name["Type"].fields}
    assert {schema.MESSAGES[name] for name in schema.OPAQUE} < theirs
    assert not any(schema.message_class(name).DESCRIPTOR.fields for name in schema.OPAQUE)


def test_bytes_go_to_coremltools_and_back():
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.proto import MIL_pb2, Model_pb2

    data = small_program().SerializeToString(deterministic=True)
    assert MIL_pb2.Program.FromString(data).SerializeToString(deterministic=True) == data

    network = Model_pb2.Model(specificationVersion=4)
    layer = network.neuralNetwork.layers.add(name="dense")
    layer.innerProduct.weights.floatValue.extend([1.0, 2.0])
    network.description.metadata.userDefined["key"] = "value"
    data = network.SerializeToString(deterministic=True)
    parsed = schema.parse("Model", data)
    assert parsed.WhichOneof("Type") == "neuralNetwork"
    assert Model_pb2.Model.FromString(parsed.SerializeToString()) == network
