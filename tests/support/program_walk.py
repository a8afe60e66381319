"""A Program as plain tuples, once from google's message and once from milblob's view: equal if both say the same."""

import numpy as np

from milblob import MilblobError, unpack_tensor
from milblob.dtypes import BY_MIL_CODE
from milblob.program import types


def message_type(message):
    kind = message.WhichOneof("type")
    if kind is None:
        return None
    inner = getattr(message, kind)
    if kind == "tensorType":
        dims = tuple(message_dimension(d) for d in inner.dimensions)
        return kind, inner.dataType, inner.rank, dims
    if kind == "listType":
        length = message_dimension(inner.length) if inner.HasField("length") else None
        return kind, message_type(inner.type) if inner.HasField("type") else None, length if length != "..." else None
    if kind == "tupleType":
        return kind, tuple(message_type(t) for t in inner.types)
    names = {"dictionaryType": ("keyType", "valueType"), "stateType": ("wrappedType",)}[kind]
    return kind, *(message_type(getattr(inner, name)) if inner.HasField(name) else None for name in names)


def message_dimension(message):
    kind = message.WhichOneof("dimension")
    if kind == "constant":
        return message.constant.size
    return "..." if kind == "unknown" and message.unknown.variadic else None


def view_type(found):
    if found is None:
        return None
    if isinstance(found, types.TensorType):
        code = found.dtype if isinstance(found.dtype, int) else found.dtype.mil_code
        dims = tuple("..." if i in found.variadic else size for i, size in enumerate(found.shape))
        return "tensorType", code, found.rank, dims
    if isinstance(found, types.ListType):
        return "listType", view_type(found.element), found.length
    if isinstance(found, types.TupleType):
        return "tupleType", tuple(view_type(member) for member in found.members)
    if isinstance(found, types.DictionaryType):
        return "dictionaryType", view_type(found.key), view_type(found.value)
    return "stateType", view_type(found.wrapped)


def array_of(read):
    """Bytes, dtype and shape of an array; None if it cannot be read."""
    try:
        array = np.asarray(read())
    except (MilblobError, ValueError):
        return None
    return array.tolist() if array.dtype == object else array.tobytes(), str(array.dtype), array.shape


def message_value(message):
    kind = message.WhichOneof("value")
    declared = message_type(message.type) if message.HasField("type") else None
    head = message.docString, declared
    if kind == "blobFileValue":
        return *head, "blob", (message.blobFileValue.fileName, message.blobFileValue.offset)
    member = message.immediateValue.WhichOneof("value") if kind else None
    if member is None:
        return *head, "", None
    inner = getattr(message.immediateValue, member)
    if member == "tensor":
        if declared is None or declared[0] != "tensorType" or declared[1] not in BY_MIL_CODE:
            return *head, member, None
        shape = tuple(None if d == "..." else d for d in declared[3])
        return *head, member, array_of(lambda: unpack_tensor(inner, BY_MIL_CODE[declared[1]], shape))
    if member == "dictionary":
        return *head, member, tuple((message_value(pair.key), message_value(pair.value)) for pair in inner.values)
    return *head, member, tuple(message_value(item) for item in inner.values)


def view_value(value):
    declared = view_type(value.type)
    head = value.doc_string, declared, value.kind
    if value.kind == "blob":
        return *head, tuple(value.blob)
    if value.kind == "tensor":
        if declared is None or declared[0] != "tensorType" or declared[1] not in BY_MIL_CODE:
            return *head, None
        return *head, array_of(value.array)
    if value.kind == "dictionary":
        return *head, tuple((view_value(k), view_value(v)) for k, v in value.pairs)
    return *head, tuple(map(view_value, value.items)) if value.kind else None


def message_values(attributes):
    return {key: message_value(attributes[key]) for key in attributes}


def view_values(attributes):
    return {key: view_value(value) for key, value in attributes.items()}


def message_named(named):
    return tuple((n.name, message_type(n.type) if n.HasField("type") else None) for n in named)


def view_named(variables):
    return tuple((name, view_type(declared)) for name, declared in variables)


def message_binding(binding):
    return message_value(binding.value) if binding.WhichOneof("binding") == "value" else binding.name


def message_block(block):
    return (
        message_named(block.inputs),
        tuple(block.outputs),
        tuple(
            (
                op.type,
                message_named(op.outputs),
                {key: tuple(map(message_binding, op.inputs[key].arguments)) for key in op.inputs},
                message_values(op.attributes),
                tuple(map(message_block, op.blocks)),
            )
            for op in block.operations
        ),
        message_values(block.attributes),
    )


def view_block(block):
    return (
        view_named(block.inputs),
        block.outputs,
        tuple(
            (
                op.type,
                view_named(op.outputs),
                {
                    key: tuple(b.name if b.value is None else view_value(b.value) for b in bindings)
                    for key, bindings in op.inputs.items()
                },
                view_values(op.attributes),
                tuple(map(view_block, op.blocks)),
            )
            for op in block.operations
        ),
        view_values(block.attributes),
    )


def message_program(program):
    functions = {
        name: (
            message_named(f.inputs),
            f.opset,
            {key: message_block(f.block_specializations[key]) for key in f.block_specializations},
            message_values(f.attributes),
        )
        for name, f in program.functions.items()
    }
    return program.version, program.docString, functions, message_values(program.attributes)


def view_program(view):
    functions = {
        name.removeprefix(view.prefix): (
            view_named(f.inputs),
            f.opset,
            {key: view_block(block) for key, block in f.blocks.items()},
            view_values(f.attributes),
        )
        for name, f in view.functions.items()
    }
    return view.version, view.doc_string, functions, view_values(view.attributes)


# ------------------------------------------------------------------------------------------------- who defines, who reads


def message_uses(function):
    """By scope, over the message: {(path of the definer, name): [(path of the reader, parameter)]}, in Program order.

    A path is a tuple: the key of the block, then index of the operation and number of the block in turn; it ends with
    an index for an operation, is () for the function. A name that is defined twice in a block is the first one.
    """
    uses = {}

    def visit(block, path, scope):
        scope = dict(scope)
        own = {}
        for n in block.inputs:
            own.setdefault(n.name, path)
        for index, op in enumerate(block.operations):
            for n in op.outputs:
                own.setdefault(n.name, (*path, index))
        scope |= own
        for index, op in enumerate(block.operations):
            for key in op.inputs:
                for binding in op.inputs[key].arguments:
                    if binding.WhichOneof("binding") != "value" and binding.name in scope:
                        uses.setdefault((scope[binding.name], binding.name), set()).add(((*path, index), key))
            for number, inner in enumerate(op.blocks):
                visit(inner, (*path, index, number), scope)
        for name in block.outputs:
            if name in scope:
                uses.setdefault((scope[name], name), set()).add((path, ""))

    for key in function.block_specializations:
        visit(function.block_specializations[key], (key,), {n.name: () for n in function.inputs})
    return uses


def view_path(found):
    """The path of an object of the view, as in message_uses."""
    if not hasattr(found, "path"):
        return ()
    if hasattr(found, "index"):
        return *view_path(found.block), found.index
    outer = found.operation
    return (found.name,) if outer is None else (*view_path(outer), found.number)


def view_uses(function):
    """The same of a Function of the view, from the definition of each binding and output of a block."""
    uses = {}

    def visit(block):
        for op in block.operations:
            for key, bindings in op.inputs.items():
                for binding in bindings:
                    definer = binding.definition
                    if definer is not None:
                        assert definer == block.defining(binding.name)
                        uses.setdefault((view_path(definer), binding.name), set()).add((view_path(op), key))
            for inner in op.blocks:
                assert inner.operation == op and inner.parent == block
                visit(inner)
        for name in block.outputs:
            definer = block.defining(name)
            if definer is not None:
                uses.setdefault((view_path(definer), name), set()).add((view_path(block), ""))

    for block in function.blocks.values():
        visit(block)
    return uses


def view_consumers(function):
    """The same, from the consumers of each operation and block; inputs of the function have none of their own."""
    uses = {}
    for block in function.blocks.values():
        inner = [block] + [b for op in block.walk() for b in op.blocks]
        for definer in [*inner, *block.walk()]:
            for reader, parameter, name in definer.consumers:
                uses.setdefault((view_path(definer), name), set()).add((view_path(reader), parameter))
    return uses
