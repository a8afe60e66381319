"""Edits against protobuf: the parsed result is the old message with the same thing set through protobuf."""

import copy

import numpy as np
import pytest

import milblob
from hostile_bytes import (
    FLOATS,
    blob_value,
    const,
    field,
    immediate,
    list_value,
    model,
    operation,
    program,
    tensor_type,
)
from milblob import _codec
from milblob.dtypes import DType
from milblob.model.open_program import OpenProgram
from milblob.model.package import Package
from milblob.program import schema
from milblob.program import wire_edits as edits
from milblob.program.splice import Edit, splice
from milblob.storage.mapped import MappedFile
from paths import DATA
from thorough import some

# In wire/unknown_in_entry, protobuf for Python hides map entries with unknown fields in them.
OTHERS = {"neural_network", "unknown_in_entry"}
IN_PIECES = {"duplicate_keys", "replaced", "split", "split_program"}
MODELS = {
    str(path.relative_to(DATA).parent): path
    for pattern in ("*/model.mlpackage", "*/model.mlmodel", "wire/*/model.mlmodel")
    for path in sorted(DATA.glob(pattern))
    if path.parent.name not in OTHERS | IN_PIECES
}


class Case:
    """A model file: its bytes, its message, and the scans of its Programs."""

    def __init__(self, source, constants=True):
        self.package = Package(source)
        self.mapping = self.package.mappings[0]
        self.buffer = self.mapping.live()
        self.message = schema.parse("Model", memoryview(self.buffer))
        self.opened = [OpenProgram(self.package, part, constants) for part in self.package.sources]
        self.programs = [(one.scan, one.prefix) for one in self.opened]

    def messages(self):
        """(Program message, scan) of each Program."""
        for found, prefix in self.programs:
            inside = self.message
            for step in prefix.split("/")[:-1]:
                kind = inside.WhichOneof("Type")
                pipeline = inside.pipeline if kind == "pipeline" else getattr(inside, kind).pipeline
                inside = pipeline.models[int(step.removeprefix("model"))]
            yield inside.mlProgram, found.table

    def rows(self):
        """(protobuf Value, its operation's message or None, Constant) of every constant that is there."""
        for message, scan in self.messages():
            for c in (row for row in scan.constants if row.storage != _codec.NAME):
                yield (*self.find(message, scan, c), c)

    @staticmethod
    def block_of(message, scan, row):
        path = []
        while row >= 0:
            name, function, parent, number, index = scan.blocks[row]
            path.append((name, number, index))
            row = parent
        if not path:
            return None
        block = message.functions[scan.functions[function][0]].block_specializations[path.pop()[0]]
        for _, number, index in reversed(path):
            block = block.operations[index].blocks[number]
        return block

    def find(self, message, scan, c):
        function = message.functions[scan.functions[c.function][0]] if c.function >= 0 else None
        block = self.block_of(message, scan, c.block)
        op = block.operations[c.op.index] if c.op is not None else None
        owner = {
            _codec.ATTRIBUTE: op, _codec.INPUT: op, _codec.BLOCK_ATTRIBUTE: block,
            _codec.FUNCTION_ATTRIBUTE: function, _codec.PROGRAM_ATTRIBUTE: message,
        }[c.owner]  # fmt: skip
        value = (
            owner.inputs[c.key].arguments[c.binding[0]].value if c.owner == _codec.INPUT else owner.attributes[c.key]
        )
        for index, kind in c.steps:
            held = value.immediateValue
            if kind == 0:
                value = (held.list if held.HasField("list") else held.tuple).values[index]
            else:
                value = getattr(held.dictionary.values[index], "key" if kind == 1 else "value")
        return value, op

    def after(self, changes):
        """The file with edits, parsed."""
        result = splice(self.mapping, (0, self.mapping.nbytes), edits.combined(changes)).tobytes()
        return schema.parse("Model", result)


@pytest.fixture(params=some(MODELS, 16))
def case(request):
    found = Case(MODELS[request.param])
    for one in found.opened:
        one.require_edits()
    yield found
    found.package.close()


@pytest.mark.parametrize("name", sorted(IN_PIECES))
def test_programs_in_pieces_are_refused(name):
    found = Case(DATA / "wire" / name / "model.mlmodel")
    (program,) = found.opened
    with pytest.raises(milblob.UnsupportedError, match="lies in the file in one piece, got one that was put together"):
        program.require_edits()
    found.package.close()


@pytest.mark.sample(6)
def test_references(case):
    changes, unchanged = [], []
    for number, (value, _, c) in enumerate(case.rows()):
        if c.storage == _codec.BLOB:
            unchanged.append(edits.reference_edit(case.buffer, c, c.text, c.blob_offset))
            name = c.text if number % 3 else "@model_path/weights/" + "n" * number + ".bin"
            offset = 64 * number << (number % 40) if number % 5 else c.blob_offset
            changes.append(edits.reference_edit(case.buffer, c, name, offset))
            value.blobFileValue.fileName, value.blobFileValue.offset = name, offset
    assert set(unchanged) <= {None}
    assert case.after(changes) == case.message


@pytest.mark.sample(6)
def test_values_there_and_back(case):
    """Blob references become immediates and the reverse, each with its type changed as well."""
    changes = []
    for number, (value, op, c) in enumerate(case.rows()):
        if c.mil_code == 0:
            continue
        dtype = DType.BFLOAT16 if number % 2 else DType.INT4
        if c.storage == _codec.BLOB or number % 3 == 0:
            tensor = milblob.pack_tensor(np.arange(number % 400, dtype=np.float32))
            changes.append(edits.value_edit(case.buffer, c, tensor=tensor))
            value.immediateValue.tensor.ParseFromString(tensor)
        else:
            changes.append(edits.value_edit(case.buffer, c, reference=("@model_path/w", number << 20)))
            value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/w", number << 20
        changes += edits.type_edits(case.buffer, c, dtype)
        value.type.tensorType.dataType = dtype.mil_code
        if op is not None and op.type == "const" and c.key == "val" and not c.steps:
            op.outputs[0].type.tensorType.dataType = dtype.mil_code
    assert len(changes) > 0 or not list(case.rows())
    assert case.after(changes) == case.message


@pytest.mark.sample(6)
def test_values_that_are_not_edited_are_kept(case):
    """Setting what is there already changes nothing: no edits at all."""
    changes = []
    for _, _, c in case.rows():
        if c.storage == _codec.BLOB:
            changes.append(edits.value_edit(case.buffer, c, reference=(c.text, c.blob_offset)))
        else:
            offset, nbytes = c.payload
            changes.append(edits.value_edit(case.buffer, c, tensor=memoryview(case.buffer)[offset : offset + nbytes]))
        if c.mil_code and (c.op is None or c.op.mil_code in (0, c.mil_code)):  # those of wire/ contradict themselves
            changes += edits.type_edits(case.buffer, c, next(d for d in DType if d.mil_code == c.mil_code))
    assert edits.combined(changes) == []


@pytest.mark.sample(6)
def test_types_of_outputs(case):
    changes = []
    for message, scan in case.messages():
        for row in scan.ops:
            if row.mil_code:
                changes += edits.type_edits(case.buffer, row, DType.UINT3)
                op = case.block_of(message, scan, row.block).operations[row.index]
                next(o for o in op.outputs if o.name == row.name).type.tensorType.dataType = 39
    assert case.after(changes) == case.message


@pytest.mark.sample(6)
def test_operations(case):
    replaced = set()
    changes = []
    new = schema.message_class("Operation")(type="identity", outputs=[{"name": "other"}])
    for _, op, c in list(case.rows()):
        if op is not None and not op.blocks and c.op.message not in replaced:
            replaced.add(c.op.message)
            changes.append(edits.Edit(*c.op.message, new.SerializeToString()))
            op.CopyFrom(new)
    assert case.after(changes) == case.message


# -------------------------------------------------------------------------------------------- by hand: what no file has


def handmade(*operations):
    data = model(program(*operations))
    return Case(data)


UNKNOWN = field(9, b"kept") + b"\x53\x08\x01\x54"  # with a group


def test_unknown_fields_and_odd_encodings_are_kept():
    reference = field(7, 1) + b"\x0a\x83\x00abc" + UNKNOWN + b"\x10\x80\x80\x00"  # padded, and offset 0 written out
    value = field(1, "doc") + field(2, tensor_type(11, [10])) + UNKNOWN + field(5, reference)
    case = handmade(const(value))
    ((message, _, c),) = case.rows()
    assert (c.text, c.blob_offset) == ("abc", 0)
    result = splice(
        case.buffer, (0, case.buffer.nbytes), [edits.reference_edit(case.buffer, c, "abc", 1 << 40)]
    ).tobytes()
    assert field(7, 1) + b"\x0a\x83\x00abc" + UNKNOWN + field(2, 1 << 40) in result  # the name's prefix is as it was
    result = splice(case.buffer, (0, case.buffer.nbytes), [edits.reference_edit(case.buffer, c, "x", 0)]).tobytes()
    assert field(7, 1) + field(1, "x") + UNKNOWN + b"\x10\x80\x80\x00" in result
    result = splice(case.buffer, (0, case.buffer.nbytes), [edits.value_edit(case.buffer, c, tensor=FLOATS)]).tobytes()
    assert field(1, "doc") + field(2, tensor_type(11, [10])) + UNKNOWN + field(3, field(1, FLOATS)) in result
    assert message.docString == "doc"


def test_reference_without_fields():
    """An empty BlobFileValue: no name, offset 0."""
    case = handmade(const(field(2, tensor_type(11, [10])) + field(5, b"")))
    ((message, _, c),) = case.rows()
    assert edits.reference_edit(case.buffer, c, "", 0) is None
    change = edits.reference_edit(case.buffer, c, "@model_path/w", 64)
    message.blobFileValue.fileName, message.blobFileValue.offset = "@model_path/w", 64
    assert case.after([change]) == case.message


def test_last_of_repeated_numbers_counts():
    reference = field(1, "old") + field(2, 1) + field(2, 128) + field(1, "new")
    tensor = field(1, 11) + field(2, 1) + field(1, 10) + field(3, field(1, field(1, 10)))
    case = handmade(const(field(2, field(1, tensor)) + field(5, reference)))
    ((message, _, c),) = case.rows()
    assert (c.text, c.blob_offset, c.mil_code) == ("new", 128, 10)
    assert edits.type_edits(case.buffer, c, DType.FLOAT16) == []
    changes = [edits.reference_edit(case.buffer, c, "newer", 192), *edits.type_edits(case.buffer, c, DType.INT8)[:1]]
    message.blobFileValue.fileName, message.blobFileValue.offset = "newer", 192
    message.type.tensorType.dataType = 21
    assert case.after(changes) == case.message


def test_type_without_a_dtype():
    """The scan refuses one in a Value, but a type may be read from elsewhere; with dimensions, and with nothing."""
    for tensor in (field(2, 1) + field(3, field(1, field(1, 10))), b""):
        data = field(2, field(1, tensor))
        buffer = _codec.Buffer(data)
        found = edits._type_of(buffer, (0, len(data)), 2)
        (change,) = edits._dtype_edits(buffer, found, DType.FLOAT16)
        result = splice(buffer, (0, len(data)), [change]).tobytes()
        assert result == field(2, field(1, field(1, 10) + tensor))


def test_values_in_lists():
    case = handmade(const(list_value([immediate(11, [10], FLOATS), blob_value(10, [20], "@model_path/w", 64)])))
    first, second = (row for row in case.rows())
    changes = [
        edits.value_edit(case.buffer, first[2], reference=("@model_path/w", 128)),
        edits.value_edit(case.buffer, second[2], tensor=FLOATS),
        *edits.type_edits(case.buffer, first[2], DType.INT8),
    ]
    first[0].blobFileValue.fileName, first[0].blobFileValue.offset = "@model_path/w", 128
    first[0].type.tensorType.dataType = 21
    second[0].immediateValue.tensor.ParseFromString(FLOATS)
    assert case.after(changes) == case.message


def test_outputs_of_a_constexpr_are_distinct():
    outputs = b"".join(field(3, field(1, name) + field(2, tensor_type(11, [10]))) for name in ("mask", "data"))
    case = handmade(
        field(1, "constexpr_lut_to_sparse")
        + outputs
        + field(5, field(1, "lut") + field(2, immediate(11, [10], FLOATS)))
    )
    ops = {op.name: op for op in case.programs[0][0].table.ops}
    ((_, message, _),) = case.rows()
    message.outputs[1].type.tensorType.dataType = 37
    assert case.after(edits.type_edits(case.buffer, ops["data"], DType.UINT1)) == case.message


def test_what_cannot_be_edited():
    case = handmade(
        operation("add", "y", inputs=field(2, field(1, "x") + field(2, field(1, field(1, "other"))))),
        const(immediate(11, [10], FLOATS)),
        const(list_value([field(3, field(1, FLOATS))]), "untyped"),
        field(1, "const") + field(5, field(1, "val") + field(2, immediate(11, [10], FLOATS))),
    )
    _, value, untyped, nameless = [None, *(c for _, _, c in case.rows())]
    reading = handmade(
        operation("constexpr_cast", "y", inputs=field(2, field(1, "x") + field(2, field(1, field(1, "w")))))
    )
    (name,) = reading.programs[0][0].constants
    with pytest.raises(milblob.ProgramError, match="reference: expected a value in a weight file, got an immediate"):
        edits.reference_edit(case.buffer, value, "w", 64)
    with pytest.raises(milblob.ProgramError, match="value: expected a constant, got a name that is read"):
        edits.value_edit(reading.buffer, name, tensor=FLOATS)
    with pytest.raises(TypeError, match="either a reference or a tensor"):
        edits.value_edit(case.buffer, value)
    with pytest.raises(TypeError, match="either a reference or a tensor"):
        edits.value_edit(case.buffer, value, reference=("w", 64), tensor=FLOATS)
    with pytest.raises(milblob.ProgramError, match="type: expected one of a tensor, got 0"):
        edits.type_edits(case.buffer, untyped, DType.INT8)
    with pytest.raises(milblob.ProgramError, match="operation 'const': expected an output of that name, got none"):
        edits.type_edits(case.buffer, nameless.op, DType.INT8)


# ------------------------------------------------------------------------------------------------------------ functions


@pytest.fixture
def several():
    found = Case(DATA / "functions/model.mlpackage")
    yield found
    found.package.close()


def spans(case):
    source = case.package.sources[0]
    return source.program[1:], source.description


def kept(case, names, default):
    for name in set(case.message.mlProgram.functions) - set(names):
        del case.message.mlProgram.functions[name]
    described = [copy.deepcopy(f) for f in case.message.description.functions if f.name in names]
    del case.message.description.functions[:]
    case.message.description.functions.extend(described)
    case.message.description.defaultFunctionName = default
    return case.message


def test_functions_are_dropped(several):
    names = [f.name for f in several.message.description.functions]
    old = several.message.description.defaultFunctionName
    assert len(names) > 1 and old in names
    assert edits.function_edits(several.buffer, *spans(several), names) == []
    other = next(name for name in names if name != old)
    changes = edits.function_edits(several.buffer, *spans(several), [other])
    # Edits in functions that go are of no matter.
    changes += [edits.value_edit(several.buffer, c, tensor=FLOATS) for _, _, c in several.rows() if several.programs[0][0].table.functions[c.function][0] != other]  # fmt: skip
    assert several.after(changes) == kept(several, [other], other)


def test_default_function_where_none_was_named():
    description = field(2, field(20, field(1, "a")) + field(20, field(1, "b")))
    functions = b"".join(field(2, field(1, name) + field(2, b"")) for name in ("a", "b"))
    case = Case(field(1, 9) + description + field(502, field(1, 1) + functions))
    assert case.after(edits.function_edits(case.buffer, *spans(case), ["a"])) == kept(case, ["a"], "a")


def test_functions_without_description():
    case = Case(field(1, 9) + field(502, field(1, 1) + b"".join(field(2, field(1, name)) for name in "ab")))
    changes = edits.function_edits(case.buffer, *spans(case), ["b"])
    del case.message.mlProgram.functions["a"]
    assert case.after(changes) == case.message


def test_functions_that_are_not_there(several):
    old = several.message.description.defaultFunctionName
    with pytest.raises(milblob.ProgramError, match="functions to keep: expected some of .*, got nothing_like_it"):
        edits.function_edits(several.buffer, *spans(several), [old, "nothing_like_it"])
    with pytest.raises(milblob.ProgramError, match="functions to keep: expected some of .*, got none"):
        edits.function_edits(several.buffer, *spans(several), [])


def test_default_function_of_several_is_kept():
    description = field(2, b"".join(field(20, field(1, name)) for name in "abc") + field(21, "c"))
    functions = b"".join(field(2, field(1, name)) for name in "abc")
    case = Case(field(1, 9) + description + field(502, field(1, 1) + functions))
    with pytest.raises(
        milblob.ProgramError,
        match="functions to keep: expected one, or several with the default function 'c', got a, b",
    ):
        edits.function_edits(case.buffer, *spans(case), ["a", "b"])
    assert case.after(edits.function_edits(case.buffer, *spans(case), ["a", "c"])) == kept(case, ["a", "c"], "c")


# ------------------------------------------------------------------------------------------------- encoders, combining


def test_encoders_are_those_of_protobuf():
    tensor = milblob.pack_tensor(np.arange(12, dtype=np.float32))
    for dtype, shape in [(DType.FLOAT16, (3, 4)), (DType.INT4, ()), (DType.BOOL, (0, None, 1 << 40))]:
        kind = schema.message_class("ValueType")()
        kind.tensorType.dataType, kind.tensorType.rank = dtype.mil_code, len(shape)
        for size in shape:
            dimension = kind.tensorType.dimensions.add()
            if size is None:
                dimension.unknown.SetInParent()
            else:
                dimension.constant.size = size
        assert edits.tensor_type(dtype, shape) == kind.SerializeToString()
        value = schema.message_class("Value")()
        value.type.CopyFrom(kind)
        value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/w", 1 << 33
        assert edits.blob_value(kind.SerializeToString(), "@model_path/w", 1 << 33) == value.SerializeToString()
        value.immediateValue.tensor.ParseFromString(tensor)
        assert edits.immediate_value(kind.SerializeToString(), tensor) == value.SerializeToString()
    for number in (0, 1, 127, 128, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -(1 << 63)):
        assert field(3, number) == edits.field(3, number)
    for number in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            edits.varint(number)
    assert edits.field(20, "ü") == field(20, "ü") and edits.field(1, bytearray(300)) == field(1, bytes(300))
    assert edits.field(1, np.arange(3, dtype=np.float16)) == field(1, np.arange(3, dtype=np.float16).tobytes())


def test_combined():
    assert edits.combined([]) == []
    a, b, gone = Edit(10, 5, b"a"), Edit(20, 5, b"b"), Edit(8, 20, b"")
    assert edits.combined([b, None, a]) == [a, b]
    assert edits.combined([a, Edit(10, 5, bytearray(b"a"))]) == [a]
    assert edits.combined([a, gone, b, Edit(28, 1, b"")]) == [gone, Edit(28, 1, b"")]
    assert edits.combined([Edit(10, 5, b""), a]) == edits.combined([a, Edit(10, 5, b"")]) == [Edit(10, 5, b"")]
    for pair in ([a, Edit(10, 5, b"b")], [Edit(8, 20, b"x"), a], [gone, Edit(20, 9, b"")], [a, Edit(12, 5, b"")]):
        with pytest.raises(milblob.ProgramError, match="edits: expected one of bytes .* got another inside"):
            edits.combined(pair)


def test_a_file_with_nothing_to_do_is_the_same_file():
    path = DATA / "opset_ios18_fp16/model.mlpackage/Data/com.apple.CoreML/model.mlmodel"
    mapping = MappedFile(path)
    assert splice(mapping, (0, mapping.nbytes), edits.combined([])).tobytes() == path.read_bytes()
    mapping.close()
