"""Which constants of a Program can become compressed weights, along which axes, and the edits that make them so.

The rules are those of coremltools.optimize.coreml.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, cast

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from .cast_edits import FIRST_INPUTS, constexpr_objection, opset
from .scan import ProgramScan
from .splice import Edit
from .types import TensorType
from .view import Consumer, Operation
from .wire_edits import (
    ATTRIBUTES,
    INPUTS,
    field,
    new_operation,
    preceded_operation,
    rewritten_operation,
    stored_value,
    unused_name,
)

Axes = tuple[int, int]
"""(input channels, output channels) of a weight."""


CONVOLUTIONS = ("conv", "conv_transpose")
"""Operations with a parameter `groups`."""


def refusal(constant: Any, least: int) -> str | None:
    """Return why a constant itself cannot become a compressed weight; None if it can.

    `constant`: a row of the scan. `least`: only constants of more elements are compressed.
    """
    op = constant.op
    if op is None or constant.steps:
        return "expected a value of an operation, got an attribute or an element of a list"
    if op.type.startswith("constexpr_"):
        return f"expected a dense weight, got a part of a compressed one ({op.type}.{constant.key})"
    if op.type != "const" or constant.key != "val" or constant.owner != _codec.ATTRIBUTE:
        return f"expected a const operation, got a value inside another one ({op.type}.{constant.key})"
    return weight_refusal(op, constant.mil_code, constant.shape, least)


def weight_refusal(op: Any, mil_code: int, shape: Any, least: int) -> str | None:
    """Return why the output of an operation itself cannot become a compressed weight; None if it can.

    `mil_code`, `shape`: of its output. `least`: as for `refusal`.
    """
    dtype = BY_MIL_CODE.get(mil_code)
    if dtype not in (DType.FLOAT16, DType.FLOAT32):
        return f"expected float16 or float32, got {dtype}"
    if op.output_count != 1:
        return f"expected an operation with one output, got one with {op.output_count}"
    if shape is None or None in shape:
        return "expected a known shape, got an open one"
    if len(shape) < 2:
        return f"expected two dimensions or more, got {len(shape)}"
    if prod(shape) <= least:
        return f"expected more than {least} elements, got {prod(shape)}"
    return None


def consumer_refusal(consumers: Sequence[Consumer]) -> str | None:
    """Return why the consumers of a weight do not accept a compressed one; None if they do."""
    if not any(isinstance(consumer.reader, Operation) for consumer in consumers):
        return "expected an operation that reads it, got none, or only an output of a block"
    objections = map(constexpr_objection, consumers)
    return next((message for message in objections if message is not None), None)


def channel_axes(rank: int, consumers: Sequence[Consumer]) -> Axes | None:
    """Return the axes of the input and the output channels, by the operations that read a weight.

    `rank`: its number of dimensions. `consumers`: the operations that read it.
    Returns: None if the operations do not agree.
    """
    found = set()
    for reader, key, _ in consumers:
        axes = (1, 0)
        if not isinstance(reader, Operation):
            continue
        if reader.type == "conv_transpose":
            axes = (0, 1)
        elif reader.type == "matmul":
            is_turned = bool(number(reader, "transpose_y" if key == "y" else "transpose_x", 0))
            axes = (rank - 1, rank - 2) if is_turned == (key == "y") else (rank - 2, rank - 1)
        found.add(axes)
    return found.pop() if len(found) == 1 else None


def number(operation: Operation, parameter: str, otherwise: int) -> int:
    """Return the value of a parameter that is one bool or int32: written in place, or a const operation.

    `otherwise`: the result if the operation does not have it, or computes it.
    """
    bound = operation.inputs.get(parameter, ())
    value = bound[0].constant if len(bound) == 1 else operation.attributes.get(parameter)
    declared = None if value is None else value.type
    if value is None or value.kind != "tensor" or not isinstance(declared, TensorType) or declared.shape:
        return otherwise
    return int(value.array()) if declared.dtype in (DType.BOOL, DType.INT32) else otherwise


class Link(NamedTuple):
    """A part of a compressed weight that another operation computes. Its own parts are named `key.part`."""

    op: str  # type of that operation
    outputs: tuple[tuple[Any, tuple[int, ...]], ...]  # (dtype, shape) of each of its outputs
    output: int = 0  # which of them is the part


class Same(NamedTuple):
    """A part that exists already."""

    key: str  # of a stored part, whose value is written a second time; or of a Link
    output: int | None = None  # of that Link; None for a stored part


Links = Mapping[str, Link | Same]
"""Part of a compressed weight -> where it comes from, if it is not stored."""


def constexpr_edit(
    program: ProgramScan,
    op: Any,
    gone: Collection[str],
    op_type: str,
    parts: Iterable[tuple[str, Any, Any, Any]],
    links: Links,
) -> Edit:
    """Replace an operation by one that computes a weight; its name and its output are kept.

    Args:
        gone: its parameters to remove: those of its old type.
        parts: (key, dtype, shape, value) of each that is stored. A value is (file name, metadata offset) of a record,
            or a serialized TensorValue.
        links: of the others. Operations that compute them are put before.
    """
    as_inputs = opset(program, op) >= FIRST_INPUTS
    where = INPUTS if as_inputs else ATTRIBUTES
    stored = {key: stored_value(*part) for key, *part in parts}
    names: dict[str, list[str]] = {}
    new: list[bytes] = []

    def parameters(prefix: str) -> list[tuple[int, bytes]]:
        """Encode the parameters one step below a prefix; add the operations that they need."""
        keys = [key for key in (*links, *stored) if key.startswith(prefix) and "." not in key[len(prefix) :]]
        arguments = {}
        for key in sorted(keys, key=lambda key: isinstance(links.get(key), Same)):
            link = links.get(key)
            if isinstance(link, Link):
                add(key, link)
            if link is None or (isinstance(link, Same) and link.output is None):
                value = stored[key if link is None else link.key]
                arguments[key] = field(1, field(2, value)) if as_inputs else value  # Argument {1 Binding {2 value}}
            else:
                name = names[link.key if isinstance(link, Same) else key][cast(int, link.output)]
                arguments[key] = field(1, field(1, name))  # Argument {1 Binding {1 name}}
        return [(where, field(1, key[len(prefix) :]) + field(2, argument)) for key, argument in arguments.items()]

    def add(key: str, link: Link) -> None:
        label = unused_name(program, f"{op.name}_{key.replace('.', '_')}")
        several = len(link.outputs) > 1
        names[key] = [f"{label}_{number}" if several else label for number in range(len(link.outputs))]
        outputs = [(name, *kind) for name, kind in zip(names[key], link.outputs, strict=True)]
        below = parameters(f"{key}.")
        new.append(new_operation(link.op, label, outputs, below))

    own = parameters("")
    edit = rewritten_operation(program.buffer, op, op_type, gone, own)
    return preceded_operation(program.buffer, op, edit, new) if new else edit
