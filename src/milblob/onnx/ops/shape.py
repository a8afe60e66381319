"""Operations that move elements and change shapes: reshape, transpose, concat, pad."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ...values.tensorvalue import MAX_RANK
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable

_INT64 = ir.DataType.INT64
LAST = np.iinfo(np.int64).max
_MAX_SIZES = 2 * MAX_RANK
"""Of a computed parameter; `pad` has two for each dimension. ONNX's inference makes a dimension of each."""


def sizes(g: ModelComponentContainer, operator: Operator, key: str) -> ir.Value:
    """Return a parameter of integers as int64, of rank 1: a constant, or a computed one."""
    if operator.is_constant(key):
        return g.ints(operator.integers(key))
    variable = operator.input(key)
    count = _length(operator, key)
    value = g.cast(variable, _INT64)
    if variable.shape == ():
        value = g.node("Unsqueeze", value, g.ints([0]))
    elif count is None:
        value = g.node("Slice", value, g.ints([0]), g.ints([_MAX_SIZES]))
    return value


def _length(operator: Operator, key: str) -> int | None:
    """Return how many integers a computed parameter has, if that is known.

    Raises: UnsupportedError: more than _MAX_SIZES.
    """
    shape = operator.input(key).shape
    found = shape[0] if shape else None
    if found is not None and found > _MAX_SIZES:
        operator.refuse(f"at most {_MAX_SIZES} numbers in {key}", found)
    return found


@builtin("reshape", onnx="Reshape; Shape, Where for zeros that mean another dimension")
def _reshape(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Zeros copy a dimension; MIL counts dimensions from the last one, ONNX from the first."""
    x = operator.input("x")
    return g.node("Reshape", x, _without_zeros(operator, g, x))


def _without_zeros(operator: Operator, g: ModelComponentContainer, x: Variable) -> ir.Value:
    """Return the shape with those zeros replaced that mean another dimension in MIL than in ONNX."""
    given = operator.integers("shape") if operator.is_constant("shape") else None
    count = len(given) if given is not None else _length(operator, "shape")
    if x.shape is None or count is None:
        return sizes(g, operator, "shape")
    ahead = len(x.shape) - count  # MIL's dimension i is ONNX's i + ahead
    if ahead == 0 or (given is not None and 0 not in given):
        return sizes(g, operator, "shape")
    sources = [x.shape[i + ahead] if i + ahead >= 0 else 1 for i in range(count)]
    if given is not None and all(size is not None for size, old in zip(sources, given, strict=True) if old == 0):
        return g.ints((size or 0) if old == 0 else old for size, old in zip(sources, given, strict=True))
    known = g.shape(x) if ahead > 0 else g.node("Concat", g.ints([1] * -ahead), g.shape(x), axis=0)
    if ahead > 0:
        known = g.node("Slice", known, g.ints([ahead]), g.ints([LAST]))
    wanted = sizes(g, operator, "shape")
    return g.node("Where", g.node("Equal", wanted, g.ints([0])), known, wanted, dtype=_INT64)


@builtin("reshape_like", onnx="Shape, Slice, Concat, Reshape")
def _reshape_like(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    parts = []
    refs = operator.inputs.get("ref_tensors", [])
    begins, ends, masks = (operator.integers(key, count=len(refs)) for key in ("begins", "ends", "end_masks"))
    for ref, begin, end, mask in zip(refs, begins, ends, masks, strict=True):
        stop = LAST if mask else end
        parts.append(g.node("Slice", g.shape(ref), g.ints([begin]), g.ints([stop])))
    return g.node("Reshape", operator.input("x"), g.node("Concat", *parts, axis=0))


@builtin("expand_dims", onnx="Unsqueeze")
def _expand_dims(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Unsqueeze", operator.input("x"), sizes(g, operator, "axes"))


@builtin("squeeze", onnx="Squeeze")
def _squeeze(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    axes = sizes(g, operator, "axes") if operator.has("axes") else None
    return g.node("Squeeze", operator.input("x"), axes)


@builtin("flatten2d", onnx="Flatten")
def _flatten2d(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Flatten", operator.input("x"), axis=int(operator.number("axis", 1)))


@builtin("transpose", onnx="Transpose")
def _transpose(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    perm = operator.integers("perm", count=g.rank(operator.input("x")))
    return g.node("Transpose", operator.input("x"), perm=[axis % len(perm) for axis in perm])


@builtin(
    "concat",
    onnx="Concat; Unsqueeze, Concat, Reshape to interleave",
    limits="to interleave: known sizes after the axis",
)
def _concat(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    bound = operator.inputs.get("values", [])
    rank = g.rank(operator.output)
    values = [g.node("Unsqueeze", one, g.ints([0])) if one.shape == () else g.value(one) for one in bound]
    axis = g.axis(operator, "axis", rank)
    if not operator.number("interleave", False):
        return g.node("Concat", *values, axis=axis)
    after = g.ints([axis + 1])
    stacked = g.node("Concat", *(g.node("Unsqueeze", value, after) for value in values), axis=axis + 1)
    shape = [0] * axis + [-1] + list(g.dimensions(operator.output)[axis + 1 :])
    if None in shape:
        operator.refuse("known sizes after the axis to interleave", "open ones")
    return g.node("Reshape", stacked, g.ints([size or 0 for size in shape]))


@builtin("stack", onnx="Unsqueeze, Concat")
def _stack(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    axis = g.axis(operator, "axis", g.rank(operator.output))
    at = g.ints([axis])
    parts = [g.node("Unsqueeze", value, at) for value in operator.inputs.get("values", [])]
    return g.node("Concat", *parts, axis=axis)


@builtin("split", onnx="Split")
def _split(operator: Operator, g: ModelComponentContainer) -> None:
    axis = g.axis(operator, "axis", g.rank(operator.input("x")))
    count = len(operator.outputs)
    if operator.has("split_sizes"):
        made = g.node("Split", operator.input("x"), sizes(g, operator, "split_sizes"), outputs=count, axis=axis)
    else:
        made = g.node("Split", operator.input("x"), outputs=count, axis=axis, num_outputs=count)
    for variable, value in zip(operator.outputs, [made] if count == 1 else made, strict=True):
        g.bind(variable, value)


@builtin("tile", onnx="Tile")
def _tile(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Tile", operator.input("x"), sizes(g, operator, "reps"))


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


@builtin("pad", onnx="Pad", limits="modes constant, reflect, replicate; a computed `pad` of known length")
def _pad(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """MIL has pairs (begin, end) for the last axes, ONNX all begins and then all ends."""
    x = operator.input("x")
    rank = g.rank(x)
    mode = operator.number("mode", "constant")
    if mode not in _PAD_MODES:
        operator.refuse(f"one of {', '.join(_PAD_MODES)}", f"{mode!r:.40}")
    if operator.is_constant("pad"):
        pairs = operator.integers("pad")
        if len(pairs) % 2 or len(pairs) > 2 * rank:
            operator.refuse(f"up to {rank} pairs of numbers in pad", f"{len(pairs)} numbers")
        count, pads = len(pairs) // 2, g.ints(pairs[0::2] + pairs[1::2])
    else:
        length = _length(operator, "pad")
        if length is None:
            operator.refuse("a known number of axes", "an open one")
        count = length // 2
        pairs = g.node("Reshape", sizes(g, operator, "pad"), g.ints([count, 2]))
        pads = g.node("Reshape", g.node("Transpose", pairs, perm=[1, 0]), g.ints([-1]))
    value: Any = None
    if mode == "constant":
        given = operator.has("constant_val") and not operator.is_constant("constant_val")
        value = (
            g.cast(operator.input("constant_val"), g.dtype(x))
            if given
            else g.scalar(operator.number("constant_val", 0), x)
        )
    axes = None if count == rank else g.ints(range(rank - count, rank))
    return g.node("Pad", x, pads, value, axes, mode=_PAD_MODES[mode])


@builtin("reverse", onnx="Slice")
def _reverse(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    axes = operator.integers("axes", list(range(g.rank(x))))
    if not axes:
        return g.cast(x, g.dtype(x))
    backwards = g.ints([-1] * len(axes))
    return g.node("Slice", x, backwards, g.ints([-LAST] * len(axes)), g.ints(axes), backwards)


@builtin("shape", onnx="Shape, Cast")
def _shape(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.shape(operator.input("x"))


def filled(operator: Operator, g: ModelComponentContainer, shape: ir.Value) -> ir.Value:
    """Return a tensor of one value."""
    like = g.dtype(operator.output)
    value = operator.input("value") if operator.has("value") else g.scalar(0, like)
    return g.node("Expand", g.cast(value, like), shape)


@builtin("fill", onnx="Expand")
def _fill(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return filled(operator, g, sizes(g, operator, "shape"))


@builtin("fill_like", onnx="Shape, Expand")
def _fill_like(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return filled(operator, g, g.shape(operator.input("ref_tensor")))
