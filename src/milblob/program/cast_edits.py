"""Casts in a Program: the edits after which it still type-checks, and the operations that would not accept one.

docs/casts.md has the rules with their sources. In short: a float32 constant becomes a `constexpr_cast` of a float16
value, which its consumers read as float32 as before. Any other cast changes the type that they read.
"""

import re
from collections.abc import Sequence
from typing import Any, cast

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType, as_dtype
from ..errors import ProgramError
from ..values.cast import is_castable
from .scan import ProgramScan
from .splice import Edit
from .view import Consumer, Operation
from .wire_edits import (
    ATTRIBUTES,
    INPUTS,
    combined,
    field,
    fields_of,
    rewritten_operation,
    stored_value,
    text_value,
    type_edits,
    value_edit,
)

FIRST_CONSTEXPR, FIRST_INPUTS = 16, 18
"""The first opsets with constexpr operations, and where their parts are inputs, not attributes."""

_ANY = 15
_CAST = "constexpr_cast"
_CAST_PARTS = ("source_val", "output_dtype")

# Parameters whose value coremltools' type inference needs, but which a constexpr operation only has once the model is
# compiled. Everything else accepts a constexpr output wherever it accepts a const.
_NEEDS_VALUE = frozenset(
    {
        ("conv_transpose", "bias"),
        ("prelu", "alpha"),
        ("softplus_parametric", "alpha"),
        ("softplus_parametric", "beta"),
        ("non_zero", "x"),
    }
)

# (operation, parameter) -> the first opset in which it may be float16 or float32, for any types of the other inputs,
# with the same outputs; and parameters that must be absent then, because they would have to be of the same type.
_INDEPENDENT: dict[tuple[str, str], tuple[int, frozenset[str]]] = {
    **{
        (op, "x"): (_ANY, frozenset())
        for op in ("cast", "shape", "argsort", "reduce_argmax", "reduce_argmin", "non_zero")
    },
    ("fill_like", "ref_tensor"): (16, frozenset()),
    ("resample", "coordinates"): (16, frozenset()),
    ("conv", "weight"): (17, frozenset({"bias"})),
    ("matmul", "x"): (17, frozenset()),
    ("matmul", "y"): (17, frozenset()),
    ("prelu", "alpha"): (17, frozenset()),
    ("scaled_dot_product_attention", "attn_mask"): (18, frozenset()),
}


def cast_edits(
    program: ProgramScan, constant: _codec.Constant, dtype: Any, value: Any, consumers: Sequence[Consumer]
) -> list[Edit]:
    """Return the edits after which a constant of a Program is stored as another dtype, and everything type-checks.

    float32 as float16 makes a `const` operation a `constexpr_cast` of the same name, output and type. A
    `constexpr_cast` whose float16 source is cast to float32 becomes a `const` again. In all other cases (other dtypes,
    and opset iOS15, which has no constexpr) the declared types of the value and of the operation's output change, if
    every operation that reads the constant accepts that.

    Args:
        constant: a row of the scan: the `val` of a const operation, or the `source_val` of a constexpr_cast.
        dtype: the dtype to store it as.
        value: the new value: (file name, metadata offset) of a record, or a serialized TensorValue.
        consumers: the operations that read the constant.

    Raises:
        ProgramError: it would not type-check, or the value cannot be cast: it is inside another operation, an
            attribute, an element of a list, a part of a compressed weight, or a scalar. The message names the operation
            and parameter that prevent it.
    """
    target = as_dtype(dtype)
    message = refusal(program, constant, target, consumers)
    if message is not None:
        raise ProgramError(message, file=program.buffer.name, where=program.path(constant.op, constant))
    if constant.op is not None and constant.op.type == _CAST:
        return [_as_const(program, constant, value)]
    if _becomes_constexpr(program, constant, target):
        return [_as_constexpr(program, constant, value, opset(program, constant) >= FIRST_INPUTS)]
    held = {"reference": value} if isinstance(value, tuple) else {"tensor": value}
    return combined([*type_edits(program.buffer, constant, target), value_edit(program.buffer, constant, **held)])


def refusal(program: ProgramScan, constant: _codec.Constant, dtype: Any, consumers: Sequence[Consumer]) -> str | None:
    """Return why a constant cannot be cast, as the message of `cast_edits`' ProgramError; None if it can."""
    target = as_dtype(dtype)
    own = BY_MIL_CODE.get(constant.mil_code)
    op = constant.op
    what = f"cast of {own} to {target}"
    if own is target:
        return f"{what}: expected another dtype, got the same"
    if own is None or not is_castable(own, target):
        return f"{what}: expected dtypes of one kind"
    if constant.steps:
        return f"{what}: expected a constant of its own, got an element of a list or dictionary"
    if op is None:
        return f"{what}: expected a constant of its own, got an attribute of the Program, a function or a block"
    if op.type == _CAST and constant.key == "source_val":
        if target is DType.FLOAT32 and op.mil_code == DType.FLOAT32.mil_code:
            return None
        return f"{what}: expected float32, which {_CAST} yields"
    if op.type.startswith("constexpr_"):
        return f"{what}: expected a constant of its own, got a part of a compressed weight ({op.type}.{constant.key})"
    if op.type != "const" or constant.key != "val" or constant.owner != _codec.ATTRIBUTE:
        return (
            f"{what}: expected a constant of its own, got a value inside another operation ({op.type}.{constant.key})"
        )
    if not constant.shape and _becomes_constexpr(program, constant, target):
        return f"{what}: expected a tensor, got a scalar"
    objections = (_objection(program, constant, consumer, own, target) for consumer in consumers)
    return next((f"{what}: {message}" for message in objections if message is not None), None)


def is_vector(constant: _codec.Constant) -> bool:
    """Whether a constant is one that coremltools skips when it makes constexpr operations.

    Its compression skips tensors of rank 1 because of a bug of Core ML (docs/casts.md). They type-check, but a cast of
    all weights of a model should leave them out: they are a few bytes.
    """
    return constant.shape is not None and len(constant.shape) < 2


def _becomes_constexpr(program: ProgramScan, constant: _codec.Constant, target: DType) -> bool:
    return (
        target is DType.FLOAT16
        and constant.mil_code == DType.FLOAT32.mil_code
        and opset(program, constant) >= FIRST_CONSTEXPR
    )


def opset(program: ProgramScan, constant: _codec.Constant | _codec.Op) -> int:
    """The iOS version of the opset of the block that a constant or an operation is in: 15 for CoreML5, or unknown."""
    blocks = program.table.blocks
    block = constant.block
    while block >= 0 and blocks[block][2] >= 0:
        block = blocks[block][2]
    name = blocks[block][0] if block >= 0 else ""
    found = re.fullmatch(r"CoreML(\d{1,3})", name)
    return max(int(found[1]) + 10, _ANY) if found else _ANY


# ----------------------------------------------------------------------------------------------------------- consumers


def _objection(
    program: ProgramScan, constant: _codec.Constant, consumer: Consumer, own: Any, target: DType
) -> str | None:
    """Return why one consumer of the constant does not accept its new form; None if it does."""
    op, key, _ = consumer
    if _becomes_constexpr(program, constant, target):
        return constexpr_objection(consumer)
    if not isinstance(op, Operation):
        return f"it is an output of its block: expected {own} there, which others rely on"
    reader = f"{op.type} {op.label!r} reads it as {key}"
    since, without = _INDEPENDENT.get((op.type, key), (None, frozenset()))
    both = {own, target} <= {DType.FLOAT16, DType.FLOAT32}
    if not both or since is None or opset(program, constant) < since:
        return f"{reader}: expected {own}, which its type follows from"
    present = without & op.inputs.keys()
    if present:
        return f"{reader}: expected the type of its {', '.join(sorted(present))}, which is {own}"
    return None


def constexpr_objection(consumer: Consumer) -> str | None:
    """Return why a consumer does not accept a constexpr output instead of a const's; None if it does.

    A block that returns it does: the type is the same, and readers of the block's output see nothing else.
    """
    op, key, _ = consumer
    if not isinstance(op, Operation):
        return None
    reader = f"{op.type} {op.label!r} reads it as {key}"
    if op.type.startswith("constexpr_"):
        return f"{reader}: expected a weight, got a part of a compressed one"
    if op.type == "custom_layer":
        return f"{reader}: expected an operation that is known to take a constexpr output"
    if (op.type, key) in _NEEDS_VALUE:
        return f"{reader}: expected a const there, which a constexpr output is not taken for"
    return None


# ---------------------------------------------------------------------------------------------------------- operations


def _as_constexpr(program: ProgramScan, constant: _codec.Constant, value: Any, as_inputs: bool) -> Edit:
    """Make a const operation a constexpr_cast: its parts are attributes before iOS18 and inputs from then on."""
    source = _value(program, constant, DType.FLOAT16, value)
    new = []
    for key, part in zip(_CAST_PARTS, (source, text_value("fp32")), strict=True):
        argument = field(1, field(2, part)) if as_inputs else part  # Argument {1 Binding {2 value}}
        new.append((INPUTS if as_inputs else ATTRIBUTES, field(1, key) + field(2, argument)))
    return rewritten_operation(program.buffer, _op(constant), _CAST, ("val",), new)


def _as_const(program: ProgramScan, constant: _codec.Constant, value: Any) -> Edit:
    """Make a constexpr_cast a const operation again."""
    new = field(1, "val") + field(2, _value(program, constant, DType.FLOAT32, value))
    return rewritten_operation(program.buffer, _op(constant), "const", _CAST_PARTS, [(ATTRIBUTES, new)])


def _value(program: ProgramScan, constant: _codec.Constant, dtype: DType, value: Any) -> bytes:
    """Return the constant's Value with another type and content; its docString and unknown fields are kept."""
    buffer = program.buffer
    kept = [
        bytes(memoryview(buffer)[f.start : f.end])
        for f in fields_of(buffer, constant.value)
        if f.number not in (2, 3, 5)
    ]
    return b"".join([*kept, stored_value(dtype, constant.shape or (), value)])


def _op(constant: _codec.Constant) -> _codec.Op:
    return cast(_codec.Op, constant.op)  # `refusal` has checked that it exists
