"""Hostile models, as bytes decide: sound ones whose messages are changed, and Programs made of any operations.

The bytes are a fuzzer's (tests/fuzz/fuzz_public.py) or random ones (test_public_calls.py). Equal bytes give equal models.
coremltools is not needed: the messages are those of milblob.program.schema.
"""

import contextlib
import math
import struct

import numpy as np

from milblob import DType
from milblob.program import schema
from milblob.program.types import TensorType, read_type
from milblob.rules.misfits import Misfit
from milblob.rules.operation_rules import Bound, table
from milblob.rules.output_rules import outputs_of

NAMES = (
    "",
    "a/b",
    "x" * 5000,
    "\u202e",
    "main",
    "w\n",
    "cond_0[1]",
    "0",
    "y",
    "x",
    "\x00",
    "ä",
    "a" * 300,
    "../x",
    "CoreML5",
    "CoreML8",
)
SIZES = (0, 1, 2, 3, 7, 64, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1, 2**64 - 4)
NUMBERS = (0.0, -1.0, 1e-5, 0.5, 3.0, 65504.0, 1e38, float("inf"), float("-inf"), float("nan"))
INTEGERS = (0, 1, -1, 2, 3, -2, 4, 127, 300, 2**31 - 1, -(2**31))
STRINGS = ("valid", "same", "custom", "same_lower", "constant", "reflect", "replicate", "fp16", "fp32", "int32", "float16", "bool",
           "STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "bilinear", "zeros", "border", "normalized_minus_one_to_one",
           "unnormalized", "CORNERS_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST", "EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION",
           "forward", "reverse", "bidirectional", "tanh", "relu", "sigmoid", "linear", "hard_sigmoid", "scaled_tanh", "add", "mul", "max",
           "update", "ab,bc->ac", "abcd,adce->abce", "a->a", "", "ä", "lower_left")  # fmt: skip
SHAPES = (
    (),
    (1,),
    (2,),
    (4,),
    (0,),
    (2, 3),
    (3, 4),
    (4, 4),
    (1, 4, 8),
    (1, 4, 8, 8),
    (4, 4, 3, 3),
    (None, 4),
    (1, 2, 3, 4, 5),
    (2**33, 2),
)
PATCHES = ((b"weights/", b"\x00eights/"), (b"@model_path", b"@mod\xed\xa0\x80path"[:11]), (b"_to_fp16", b"\xed\xa0\x80o_fp16"),
           (b"main", b"\xed\xb0\x80n"), (b"weight", b"w\x00ight"), (b"weight", b"\xff\xfeight"), (b"const", b"con\xc3\x28"),
           (b"CoreML", b"Cor\xed\xa0\x80"))  # fmt: skip
"""What protobuf would not write: half a character, NUL in the name of a file."""

_TYPES = (*sorted(table().versions), "custom_layer", "nothing", "a.b", "", "\u202e")
_VALUE_DTYPES = {11: "floats", 12: "doubles", 1: "bools", 2: "strings", 23: "ints", 24: "longInts", 33: "ints"}
_MOST = 70  # a repeated field that grows: NumPy allows 64 dimensions


class Choices:
    """Decisions that bytes make, a byte or a few each. When the bytes have ended, each further decision is the first one."""

    def __init__(self, data):
        self._data, self._at = data, 0

    def below(self, count):
        """Return an integer from 0 to count - 1."""
        nbytes = 1 if count <= 1 << 8 else 2 if count <= 1 << 16 else 4
        taken = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return int.from_bytes(taken, "little") % count

    def one(self, items):
        """Return one of some items."""
        return items[self.below(len(items))]


def hostile(data, choices):
    """Return a serialized Model: a sound one with changes, or one of a few operations with any arguments."""
    if choices.below(3) == 2:
        model = made(choices)
        changes = choices.below(3)
    else:
        model = schema.parse("Model", data)
        changes = 1 + choices.below(3)
    for _ in range(changes):
        (change_field, _change_operation)[choices.below(2)](model, choices)
    data = model.SerializeToString(deterministic=True)
    if choices.below(4) == 3:
        old, new = choices.one(PATCHES)
        places = [at for at in range(len(data)) if data.startswith(old, at)]
        if places:
            at = choices.one(places)
            data = data[:at] + new + data[at + len(new) :]
    return data


def damaged_weights(data, choices):
    """Return the bytes of a weight file with a few changes: mostly none."""
    if choices.below(8) != 7:
        return data
    data = bytearray(data)
    for _ in range(1 + choices.below(3)):
        at = choices.below(min(len(data), 4096)) if data else 0
        data[at : at + 4] = choices.one(
            (b"\0\0\0\0", b"\xff\xff\xff\xff", struct.pack("<f", float("nan")), b"\1\0\0\0")
        )
    return bytes(data[: len(data) // 2] if choices.below(8) == 7 else data)


# --------------------------------------------------------------------------------------------------------- any message


def _messages(message, found):
    """Append a message and all messages in it, in an order that depends on its content alone."""
    found.append(message)
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if _is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):
                    _messages(value[key], found)
        elif _is_repeated(field):
            for one in value:
                _messages(one, found)
        else:
            _messages(value, found)
    return found


def _is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field):
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def change_field(model, choices):
    """Change one field of one message: remove it, or give it another value; also one that is not there yet."""
    found = _messages(model, [])
    message = choices.one(found)
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    is_there = [field for field, _ in message.ListFields()]
    field = choices.one(is_there if is_there and choices.below(4) else fields)
    if field.message_type is not None and field.message_type.name in schema.OPAQUE:
        return
    value = getattr(message, field.name)
    if _is_map(field):
        _change_map(value, field, found, choices)
    elif _is_repeated(field):
        _change_list(value, field, found, choices)
    elif field.message_type is None:
        setattr(message, field.name, _scalar(field, found, choices))
    elif choices.below(3) == 0:
        message.ClearField(field.name)
    else:
        value.SetInParent()
        _become(value, found, choices)


def _become(value, found, choices):
    """Give a message the content of another one of its type; or none."""
    alike = [one for one in found if one.DESCRIPTOR is value.DESCRIPTOR and one is not value]
    content = choices.one(alike).SerializeToString(deterministic=True) if alike and choices.below(4) else b""
    value.Clear()
    value.ParseFromString(content)


def _change_map(value, field, found, choices):
    keys, entry = sorted(value), field.message_type.fields_by_name["value"]
    action = choices.below(4)
    if action == 0 and keys:
        del value[choices.one(keys)]
        return
    new = choices.one((*NAMES, *keys, "x", "weight", "val", "name"))
    if entry.message_type is None:
        value[new] = choices.one(NAMES)
    elif action == 1 and keys:
        value[new].CopyFrom(value[choices.one(keys)])
    else:
        _become(value[choices.one(keys) if keys and action == 2 else new], found, choices)


def _change_list(value, field, found, choices):
    action, count = choices.below(6), len(value)
    if action == 0 and count:
        del value[choices.below(count)]
    elif action == 1 and count:
        one = value[choices.below(count)]
        value.extend([one] * (_MOST if choices.below(4) == 3 else 1))
    elif action == 2 and count > 1:
        value.insert(choices.below(count), value.pop())
    elif action == 3 and count:
        del value[:]
    elif field.message_type is None:
        new = _scalar(field, found, choices)
        if count and action == 4:
            value[choices.below(count)] = new
        else:
            value.extend([new] * (_MOST if choices.below(8) == 7 else 1))
    else:
        _become(value[choices.below(count)] if count and action == 4 else value.add(), found, choices)


def _scalar(field, found, choices):
    if field.cpp_type == field.CPPTYPE_STRING and field.type != field.TYPE_BYTES:
        outputs = [one.name for one in found if one.DESCRIPTOR.name == "NamedValueType"]
        return choices.one((*NAMES, *_TYPES, *STRINGS, *outputs[:40]))
    if field.type == field.TYPE_BYTES:
        return bytes([choices.below(256)]) * choices.one((0, 1, 2, 7, 64, 200))
    if field.cpp_type == field.CPPTYPE_ENUM:
        others = () if field.enum_type.is_closed else (99, -1)
        return choices.one((*sorted(one.number for one in field.enum_type.values), *others))
    if field.cpp_type == field.CPPTYPE_BOOL:
        return bool(choices.below(2))
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return choices.one(NUMBERS)
    size = choices.one((*SIZES, *(1 << 64) + np.array(INTEGERS, object))) % (1 << 64)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return size
    nbits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    size %= 1 << nbits
    return size - (1 << nbits) if size >> (nbits - 1) else size


# ---------------------------------------------------------------------------------------------------------- operations


def _blocks(model):
    """Return all blocks of a model's Programs, those of functions and of operations."""
    return [one for one in _messages(model, []) if one.DESCRIPTOR.name == "Block"]


def _change_operation(model, choices):
    operations = [op for block in _blocks(model) for op in block.operations]
    if not operations:
        return
    op, kind = choices.one(operations), choices.below(10)
    keys = sorted(op.inputs)
    names = [one.outputs[0].name for one in operations[:60] if one.outputs]
    if kind == 0 and keys:
        del op.inputs[choices.one(keys)]
    elif kind == 1 and op.attributes:
        del op.attributes[choices.one(sorted(op.attributes))]
    elif kind == 2:
        op.type = choices.one(_TYPES)
    elif kind == 3 and op.outputs:
        choices.one(op.outputs).name = choices.one((*NAMES, *names))
    elif kind == 4 and op.outputs:
        _change_dimensions(choices.one(op.outputs).type.tensorType, choices)
    elif kind == 5 and op.outputs:
        choices.one(op.outputs).type.tensorType.dataType = choices.one((0, 99, *sorted(schema.DATA_TYPES.values())))
    elif kind == 6:
        other = choices.one(operations)
        op.inputs.clear()
        for key, argument in other.inputs.items():
            op.inputs[key].CopyFrom(argument)
    elif kind == 7:
        for key in sorted(op.attributes):
            value = op.attributes[key]
            if value.HasField("blobFileValue"):
                at = value.blobFileValue.offset
                value.blobFileValue.offset = choices.one((0, 63, 64, 2**40, 2**64 - 1, at // 2 + 64, (at + 64) % 2**64))
    elif keys:
        argument = op.inputs[choices.one(keys)]
        if argument.arguments and kind == 8:
            argument.arguments[0].name = choices.one((*NAMES, *names))
        elif argument.arguments:
            _fill(argument.arguments[0].value, choices.one(list(DType)), choices.one(SHAPES), choices)


def _change_dimensions(tensor, choices):
    if not tensor.dimensions or choices.below(4) == 3:
        for _ in range(choices.one((1, 2, _MOST))):
            tensor.dimensions.add().constant.size = choices.one((1, 2))
        if choices.below(2):
            tensor.rank = len(tensor.dimensions)
    elif choices.below(4) == 2:
        choices.one(tensor.dimensions).unknown.variadic = bool(choices.below(2))
    else:
        choices.one(tensor.dimensions).constant.size = choices.one(SIZES)


def _tensor_type(message, dtype, shape):
    message.dataType, message.rank = dtype.mil_code, len(shape)
    for size in shape:
        dimension = message.dimensions.add()
        if size is None:
            dimension.unknown.SetInParent()
        else:
            dimension.constant.size = max(size, 0)


def _fill(value, dtype, shape, choices):
    """Make a Value an immediate tensor of a type; mostly with as many elements as it has."""
    value.Clear()
    shape = tuple(size or 0 for size in shape)
    _tensor_type(value.type.tensorType, dtype, shape)
    count = min(math.prod(shape), 300) + (choices.below(64) == 63)
    tensor, field = value.immediateValue.tensor, _VALUE_DTYPES.get(dtype.mil_code, "bytes")
    if field == "bytes":
        pattern = choices.one((b"\0\x3c", b"\1\0", b"\0\0", b"\xff\xff", b"\0\x7e", b"\2\0"))
        tensor.bytes.values = (pattern * 301)[: -(-count * dtype.nbits // 8)]
    elif field == "strings":
        tensor.strings.values.extend(choices.one(STRINGS) for _ in range(count))
    elif field in ("floats", "doubles"):
        getattr(tensor, field).values.extend([choices.one(NUMBERS)] * count)
    elif field == "bools":
        tensor.bools.values.extend([bool(choices.below(2))] * count)
    else:
        first, step = choices.one(INTEGERS), choices.below(2)
        values = [(first + step * number) % (1 << 31) if step else first for number in range(count)]
        getattr(tensor, field).values.extend(values)


def made(choices, first=None):
    """Return a Model of up to three operations of MIL, with arguments of about the right kind.

    Args:
        choices: what decides.
        first: the type of the first operation; default: any.
    """
    model = schema.message_class("Model")(specificationVersion=9)
    operators = table()
    opset = choices.below(len(operators.opsets))
    model.mlProgram.version = 1
    function = model.mlProgram.functions["main"]
    function.opset = operators.opsets[opset]
    block = function.block_specializations[function.opset]
    defined = {}
    for name in ("x", "y"):
        dtype = choices.one((DType.FLOAT32, DType.FLOAT16, DType.INT32))
        _tensor_type(function.inputs.add(name=name).type.tensorType, dtype, choices.one(SHAPES))
        defined[name] = Bound(read_type(function.inputs[-1].type.SerializeToString()), False)
        _describe(model.description.input.add(name=name), dtype, function.inputs[-1].type.tensorType)
    for number in range(1 + choices.below(3)):
        name = first if first and not number else choices.one(sorted(operators.versions))
        _operation(block, name, opset, defined, number, choices)
    last = block.operations[-1].outputs[0]
    block.outputs.append(last.name)
    dtype = next((one for one in DType if one.mil_code == last.type.tensorType.dataType), DType.FLOAT32)
    _describe(model.description.output.add(name=last.name), dtype, last.type.tensorType)
    return model


def _describe(feature, dtype, tensor):
    array = feature.type.multiArrayType
    array.dataType = {DType.FLOAT16: 65552, DType.FLOAT32: 65568}.get(dtype, 131104)
    if all(0 < one.constant.size < 1 << 40 for one in tensor.dimensions):
        array.shape.extend(one.constant.size for one in tensor.dimensions)


_WORDS = {
    "pad_type": STRINGS[:4], "dtype": STRINGS[7:12], "output_dtype": STRINGS[7:12], "sampling_mode": STRINGS[12:17],
    "padding_mode": ("constant", "reflect", "zeros", "border"), "coordinates_mode": STRINGS[18:20], "direction": STRINGS[25:28],
    "box_coordinate_mode": STRINGS[20:22], "equation": ("ab,bc->ac", "abcd,adce->abce", "a->a", "ab,ab->ab"), "quantization_type": ("linear",),
}  # fmt: skip
_VECTORS = {
    "axes", "perm", "shape", "begin", "end", "size", "pad", "strides", "kernel_sizes", "dilations", "crops", "block_shape", "reps",
    "split_sizes", "output_shape", "crop_height", "crop_width", "paddings", "stride", "x_shape", "begin_mask", "end_mask", "squeeze_mask",
}  # fmt: skip
"""Arguments that are mostly vectors, where others are numbers."""


def _operation(block, name, opset, defined, number, choices):
    """Append an operation after its constants. `defined` are the names that it may read, each with its Bound."""
    op = schema.message_class("Operation")(type=name)
    arguments = table().find(name, opset) or table().versions[name][-1][1]
    groups, given = {}, []
    for key, argument in arguments.items():
        if argument.is_optional and choices.below(2):
            continue
        bindings = op.inputs[key].arguments
        if argument.kind == "tuple":
            for _ in range(choices.below(4)):
                bindings.add(name=choices.one(sorted(defined)))
        elif argument.kind != "tensor":
            _list(block, bindings, f"{key}{number}", defined, choices)
        else:
            allowed = sorted(argument.dtypes, key=lambda dtype: dtype.mil_code) or [DType.FLOAT32]
            dtype = groups.setdefault(argument.group or key, choices.one(allowed))
            fitting = [one for one, bound in sorted(defined.items()) if getattr(bound.type, "dtype", None) == dtype]
            if fitting and not argument.is_constant and choices.below(4):
                bindings.add(name=choices.one(fitting))
            else:
                bindings.add(name=_constant(block, f"{key}{number}", dtype, key, argument, defined, choices))
        given.append((key, [defined.get(binding.name) for binding in bindings]))
    if name in ("cond", "while_loop"):
        for _ in range(2):
            inner = op.blocks.add()
            if choices.below(2):
                inner.inputs.add(name=f"a{number}").type.CopyFrom(_any_type(choices))
            _operation(
                inner, choices.one(("relu", "add", "less", "logical_not")), opset, dict(defined), number + 10, choices
            )
            inner.outputs.append(inner.operations[-1].outputs[0].name)
    made_types = None
    if choices.below(8) < 7:
        with contextlib.suppress(Misfit):
            made_types = outputs_of(name, given)
    count = len(made_types) if made_types else choices.one((1, 1, 1, 2, 3))
    for index in range(count):
        output = op.outputs.add(name=f"out{number}_{index}")
        found = made_types[index] if made_types else None
        if isinstance(found, TensorType) and isinstance(found.dtype, DType) and found.rank >= 0:
            _tensor_type(output.type.tensorType, found.dtype, found.shape)
        else:
            output.type.CopyFrom(_any_type(choices))
        defined[output.name] = Bound(read_type(output.type.SerializeToString()), False)
    block.operations.add().CopyFrom(op)


def _constant(block, name, dtype, key, argument, defined, choices):
    """Append a const, and return its name: a scalar or a vector where most operations take one."""
    shapes = SHAPES[:-1]
    if argument.is_constant and choices.below(8):
        is_small = dtype in (DType.INT32, DType.STRING, DType.BOOL)
        shapes = (
            (*SHAPES[1:5], (3,), (4,), (8,)) if key in _VECTORS else SHAPES[:1] if is_small else ((), (), *SHAPES[:9])
        )
    constant = block.operations.add(type="const")
    value = constant.attributes["val"]
    _fill(value, dtype, choices.one(shapes), choices)
    if dtype == DType.STRING and key in _WORDS and choices.below(8):
        value.immediateValue.tensor.strings.values[:] = [choices.one(_WORDS[key])]
    constant.outputs.add(name=name).type.CopyFrom(value.type)
    tensor = value.immediateValue.tensor
    elements = (*tensor.ints.values, *map(int, tensor.bools.values), *tensor.strings.values)
    elements = elements if dtype in (DType.INT32, DType.BOOL, DType.STRING) else None
    defined[name] = Bound(read_type(value.type.SerializeToString()), True, elements)
    return name


def _any_type(choices):
    message = schema.message_class("ValueType")()
    kind = choices.below(32)
    if kind == 31:
        _tensor_type(message.listType.type.tensorType, DType.STRING, ())
    elif kind == 30:
        _tensor_type(message.stateType.wrappedType.tensorType, DType.FLOAT16, choices.one(SHAPES))
    else:
        dtype = choices.one(
            (DType.FLOAT32, DType.FLOAT16, DType.FLOAT32, DType.INT32, DType.BOOL, DType.INT8, DType.STRING)
        )
        _tensor_type(message.tensorType, dtype, choices.one(SHAPES))
    return message


def _list(block, bindings, name, defined, choices):
    """Bind a list of strings or integers, as classify has one; or any name."""
    if not choices.below(8):
        bindings.add(name=choices.one(sorted(defined)))
        return
    constant = block.operations.add(type="const")
    output, value = constant.outputs.add(name=name), constant.attributes["val"]
    dtype = choices.one((DType.STRING, DType.INT64, DType.STRING, DType.FLOAT32))
    value.type.listType.type.tensorType.dataType = dtype.mil_code
    count = choices.below(5)
    value.type.listType.length.constant.size = count if choices.below(4) else choices.one((2, 3, 0))
    for _ in range(count):
        _fill(value.immediateValue.list.values.add(), dtype, choices.one(((), (), (), (1,))), choices)
    output.type.CopyFrom(value.type)
    bindings.add(name=name)
