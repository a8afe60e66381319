"""Programs through google's protobuf: built operation by operation, and walked."""

import numpy as np

from cases import model_directory
from milblob import pack_tensor
from milblob.program import schema
from reference import read_fields, write_varint

F32, U8, STRING = 11, 31, 2
LONG = np.arange(12, dtype=np.float32)


def set_type(value_type, code, shape):
    tensor = value_type.tensorType
    tensor.dataType, tensor.rank = code, len(shape)
    for size in shape:
        tensor.dimensions.add().constant.size = size


def set_value(value, array, code=F32):
    array = np.asarray(array, np.float32 if code == F32 else np.uint8)
    set_type(value.type, code, array.shape)
    value.immediateValue.tensor.ParseFromString(pack_tensor(array))


def add_const(block, name, array, code=F32):
    op = block.operations.add(type="const")
    set_value(op.attributes["val"], array, code)
    set_type(op.outputs.add(name=name).type, code, np.shape(array))
    return op


def add_op(block, kind, name, shape=(12,), **inputs):
    """Add an operation; an input is a name, an array, or a list of those."""
    op = block.operations.add(type=kind)
    if name is not None:
        set_type(op.outputs.add(name=name).type, F32, shape)
    for key, bindings in inputs.items():
        for binding in bindings if isinstance(bindings, list) else [bindings]:
            if isinstance(binding, str):
                op.inputs[key].arguments.add(name=binding)
            else:
                set_value(op.inputs[key].arguments.add().value, binding)
    return op


def new_program(*functions):
    """Return a Program, and the block of each function ("main" if none is named)."""
    program = schema.Program(version=1)
    blocks = []
    for name in functions or ("main",):
        program.functions[name].opset = "CoreML8"
        blocks.append(program.functions[name].block_specializations["CoreML8"])
    return program, blocks if len(blocks) > 1 else blocks[0]


def as_model(program):
    model = schema.Model(specificationVersion=9)
    model.mlProgram.CopyFrom(program)
    return model.SerializeToString(deterministic=True)


def programs(case):
    """Yield (model name, Program message) by google's parser."""

    def walk(model, name):
        kind = model.WhichOneof("Type")
        if kind and kind.startswith("pipeline"):
            pipeline = model.pipeline if kind == "pipeline" else getattr(model, kind).pipeline
            for i, inner in enumerate(pipeline.models):
                yield from walk(inner, f"{name}/model{i}" if name else f"model{i}")
        elif kind == "mlProgram":
            yield name, model.mlProgram

    path = case.path()
    data = path.read_bytes() if path.is_file() else next(model_directory(path).glob("*.mlmodel")).read_bytes()
    yield from walk(schema.parse("Model", data), "")


def blocks_of(block, path=""):
    """Yield (path, Block) of a block and those nested in it."""
    yield path, block
    for op in block.operations:
        for number, inner in enumerate(op.blocks):
            step = f"{op.outputs[0].name if op.outputs else op.type}[{number}]"
            yield from blocks_of(inner, f"{path}/{step}" if path else step)


def reverse_maps(descriptor, data):
    """The bytes of a message with the entries of every map in it, at any depth, in reverse order.

    Args:
        descriptor: of the message; fields that it lacks stay as they are.
        data: as protobuf writes it.
    """
    fields = []
    for number, wire, value in read_fields(data):
        field = descriptor.fields_by_number.get(number)
        is_entry = wire == 2 and field is not None and field.message_type is not None
        if is_entry:
            value = reverse_maps(field.message_type, value)
            is_entry = field.message_type.GetOptions().map_entry
        head = write_varint(number << 3 | wire) + (write_varint(len(value)) if wire == 2 else b"")
        fields.append((number if is_entry else 0, head + (write_varint(value) if wire == 0 else value)))
    entries = {}
    for number, encoded in fields:
        entries.setdefault(number, []).append(encoded)
    return b"".join(entries[number].pop() if number else encoded for number, encoded in fields)
