"""Lists, as tensors whose first axis counts the elements; all elements of a list have one shape."""

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from ..types import BY_TEXT
from .shape import sizes

_INT64 = ir.DataType.INT64


@builtin("make_list", onnx="Expand", limits="elements of known shape")
def _make_list(operator: Operator, g: ModelComponentContainer) -> None:
    bound = operator.inputs.get("elem_shape", [])
    if any(v.constant is None or np.asarray(v.read()).dtype.kind not in "iu" for v in bound):
        operator.refuse("elements of known shape", "open sizes")
    shape = operator.integers("elem_shape", [])
    text = operator.number("dtype", "fp32")
    if text not in BY_TEXT:
        operator.refuse("a known dtype", f"{text!r:.40}")
    length = sizes(g, operator, "init_length") if operator.has("init_length") else g.ints([1])
    whole = g.node("Concat", length, g.ints(shape), axis=0)
    g.let(operator.output, g.node("Expand", g.scalar(0, BY_TEXT[text]), whole))


def _grown(operator: Operator, g: ModelComponentContainer, last: ir.Value) -> ir.Value:
    """Return the list with room for element number `last` (rank 1, one element): zeros are added as needed."""
    held = g.value(operator.input("ls"))
    lack = g.node("Sub", g.node("Add", last, g.ints([1])), g.node("Shape", held, end=1))
    more = g.node("Concat", g.node("Max", lack, g.ints([0])), g.node("Shape", held, start=1), axis=0)
    return g.node("Concat", held, g.node("Expand", g.scalar(0, held), more), axis=0)


@builtin("list_write", onnx="ScatterND; Expand, Concat where the list grows")
def _list_write(operator: Operator, g: ModelComponentContainer) -> None:
    at = g.node("Reshape", g.cast(operator.input("index"), _INT64), g.ints([1]))
    held = _grown(operator, g, at)
    value = g.node("Unsqueeze", g.cast(operator.input("value"), g.dtype(held)), g.ints([0]))
    g.let(operator.output, g.node("ScatterND", held, g.node("Reshape", at, g.ints([1, 1])), value))


@builtin("list_scatter", onnx="ScatterND; Expand, Concat where the list grows")
def _list_scatter(operator: Operator, g: ModelComponentContainer) -> None:
    at = g.cast(operator.input("indices"), _INT64)
    held = _grown(operator, g, g.node("ReduceMax", at, g.ints([0]), keepdims=1))
    value = g.cast(operator.input("value"), g.dtype(held))
    g.let(operator.output, g.node("ScatterND", held, g.node("Unsqueeze", at, g.ints([-1])), value))


@builtin("list_read", onnx="Gather")
def _list_read(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    at = g.node("Reshape", g.cast(operator.input("index"), _INT64), g.ints([]))
    return g.node("Gather", operator.input("ls"), at, axis=0)


@builtin("list_gather", onnx="Gather")
def _list_gather(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    at = g.cast(operator.input("indices"), _INT64)
    return g.node("Gather", operator.input("ls"), at, axis=0)


@builtin("list_length", onnx="Shape, Gather")
def _list_length(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Gather", g.node("Shape", operator.input("ls"), end=1), g.scalar(0, _INT64), axis=0)
