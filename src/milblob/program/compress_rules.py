"""Which constants of a Program can become compressed weights, along which axes, and the edits that make them so.

The rules are those of coremltools.optimize.coreml.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from .cast_rules import FIRST_INPUTS, constexpr_objection, opset
from .scan import Program, reading_op
from .splice import Edit
from .wire_edits import ATTRIBUTES, INPUTS, blob_value, field, immediate_value, rewritten_operation, tensor_type

Axes = tuple[int, int]
"""(input channels, output channels) of a weight."""


def refusal(program: Program, constant: Any, least: int) -> str | None:
    """Return why a constant cannot become a compressed weight; None if it can.

    Args:
        constant: a row of the scan.
        least: only constants of more elements are compressed.
    """
    op = constant.op
    if op is None or constant.steps:
        return "expected a value of an operation, got an attribute or an element of a list"
    if op.type.startswith("constexpr_"):
        return f"expected a dense weight, got a part of a compressed one ({op.type}.{constant.key})"
    if op.type != "const" or constant.key != "val" or constant.owner != _codec.ATTRIBUTE:
        return f"expected a const operation, got a value inside another one ({op.type}.{constant.key})"
    dtype, shape = BY_MIL_CODE.get(constant.mil_code), constant.shape
    if dtype not in (DType.FLOAT16, DType.FLOAT32):
        return f"expected float16 or float32, got {dtype}"
    if shape is None or None in shape:
        return "expected a known shape, got an open one"
    if len(shape) < 2:
        return f"expected two dimensions or more, got {len(shape)}"
    if prod(shape) <= least:
        return f"expected more than {least} elements, got {prod(shape)}"
    rows = program.readers().get((constant.block, op.name), ())
    readers = [(row, reader) for row in rows if (reader := reading_op(row)) is not None]
    if not readers:
        return "expected an operation that reads it, got none, or only an output of a block"
    objections = (constexpr_objection(reader, row.key) for row, reader in readers)
    return next((words for words in objections if words is not None), None)


def consumers(program: Program, constant: Any) -> list[tuple[Any, str]]:
    """Return the operations that read a const operation, each with its parameter."""
    rows = program.readers().get((constant.block, constant.op.name), ())
    return [(op, row.key) for row in rows if (op := reading_op(row)) is not None]


def channel_axes(program: Program, constant: Any, flag: Callable[[Any, str], bool]) -> Axes | None:
    """Return the axes of the input and the output channels, by the operations that read a weight.

    Args:
        flag: returns the value of a bool parameter of an operation, False if it is absent.

    Returns:
        None if the operations do not agree.
    """
    rank, found = len(constant.shape), set()
    for op, key in consumers(program, constant):
        axes = (1, 0)
        if op.type == "conv_transpose":
            axes = (0, 1)
        elif op.type == "matmul":
            is_turned = flag(op, "transpose_y" if key == "y" else "transpose_x")
            axes = (rank - 1, rank - 2) if is_turned == (key == "y") else (rank - 2, rank - 1)
        found.add(axes)
    return found.pop() if len(found) == 1 else None


def constexpr_edit(program: Program, constant: Any, op_type: str, parts: Iterable[tuple[str, Any, Any, Any]]) -> Edit:
    """Make a const operation one that computes its value; its name and its output stay.

    Args:
        parts: (name, dtype, shape, value) of each. A value is (file name, metadata offset) of a record, or a serialized
            TensorValue.
    """
    as_inputs = opset(program, constant) >= FIRST_INPUTS
    new = []
    for key, dtype, shape, value in parts:
        type_bytes = tensor_type(dtype, shape)
        part = blob_value(type_bytes, *value) if isinstance(value, tuple) else immediate_value(type_bytes, value)
        argument = field(1, field(2, part)) if as_inputs else part  # Argument {1 Binding {2 value}}
        new.append((INPUTS if as_inputs else ATTRIBUTES, field(1, key) + field(2, argument)))
    return rewritten_operation(program.buffer, constant.op, op_type, ("val",), new)
