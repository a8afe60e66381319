"""Operations that count, order and find: range, cumsum, topk, one_hot, non_zero."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from ..types import FLOATS
from .elementwise import wide
from .shape import sizes

_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


@builtin("range_1d", onnx="Range", convert=True)
def _range_1d(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """ONNX's Range has no half precision: it is computed in single precision."""
    dtype = g.dtype(operator.output)
    inner = _FLOAT if dtype == ir.DataType.FLOAT16 else dtype
    parts = []
    for key in ("start", "end", "step"):
        value = g.cast(operator.input(key), inner)
        parts.append(g.node("Reshape", value, g.ints([])) if operator.input(key).shape == (1,) else value)
    return g.node("Range", *parts)


@builtin("cumsum", onnx="CumSum")
def _cumsum(operator: Operator, g: ModelComponentContainer) -> Any:
    flags: dict[str, Any] = {key: int(bool(operator.number(key, False))) for key in ("exclusive", "reverse")}
    axis = g.scalar(int(operator.number("axis", 0)), _INT64)
    return g.node("CumSum", wide(g, operator.input("x")), axis, **flags)


@builtin("topk", onnx="TopK, Cast")
def _topk(operator: Operator, g: ModelComponentContainer) -> None:
    x = wide(g, operator.input("x"))
    k = sizes(g, operator, "k") if operator.has("k") else g.ints([1])
    largest = int(not operator.number("ascending", False))
    values, indices = g.node("TopK", x, k, outputs=2, axis=int(operator.number("axis", -1)), largest=largest)
    g.bind(operator.outputs[0], values)
    if len(operator.outputs) > 1:
        g.bind(operator.outputs[1], g.set_dtype(indices, _INT64))


@builtin("argsort", onnx="TopK, Cast")
def _argsort(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    axis = g.axis(operator, "axis", g.rank(x), -1)
    size = g.dimensions(x)[axis]
    count = g.ints([size]) if size is not None else g.node("Shape", x, start=axis, end=axis + 1)
    largest = int(not operator.number("ascending", False))
    _, indices = g.node("TopK", wide(g, x), count, outputs=2, axis=axis, largest=largest)
    return g.set_dtype(indices, _INT64)


@builtin("non_zero", onnx="NonZero, Transpose, Cast")
def _non_zero(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    found = g.node("NonZero", wide(g, operator.input("x")))
    return g.node("Transpose", found, perm=[1, 0])


@builtin("one_hot", onnx="OneHot", convert=True)
def _one_hot(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Runtimes have kernels for float and int64."""
    dtype = g.dtype(operator.output)
    inner = _FLOAT if dtype in FLOATS else _INT64
    values = []
    for key, default in (("off_value", 0), ("on_value", 1)):
        value = g.cast(operator.input(key), inner) if operator.has(key) else g.scalar(default, inner)
        values.append(g.node("Unsqueeze", value, g.ints([0])))
    depth = sizes(g, operator, "one_hot_vector_size")
    pair = g.node("Concat", *values, axis=0)
    indices = g.cast(operator.input("indices"), _INT64)
    return g.node("OneHot", indices, depth, pair, axis=int(operator.number("axis", -1)), dtype=inner)


@builtin("band_part", onnx="Trilu")
def _band_part(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """A negative number of diagonals keeps that whole side."""
    x = operator.input("x")
    found = wide(g, x)
    is_integer = g.dtype(found) == ir.DataType.INT32
    if is_integer:
        found = g.cast(found, _INT64)
    lower, upper = (int(operator.number(key, -1)) for key in ("lower", "upper"))
    if lower >= 0:
        found = g.node("Trilu", found, g.constant(np.array(-lower, np.int64)), upper=1)
    if upper >= 0:
        found = g.node("Trilu", found, g.constant(np.array(upper, np.int64)), upper=0)
    return found
