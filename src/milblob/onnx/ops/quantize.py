"""Quantized activations."""

from typing import Any

import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope


def _parts(operator: Operator, g: ModelComponentContainer, stored: ir.DataType) -> tuple[Any, Any, int]:
    """Return scale, zero point and axis; where the zero point is left out, it is zero."""
    scale = operator.input("scale")
    if operator.has("zero_point"):
        return scale, operator.input("zero_point"), int(operator.number("axis", 0) or 0)
    shape = [size or 0 for size in g.dimensions(scale)]
    zero = g.full(shape, 0, stored)
    return scale, zero, int(operator.number("axis", 0) or 0)


@builtin("quantize", onnx="QuantizeLinear", since_opset=19)
def _quantize(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    stored = g.dtype(operator.output)
    scale, zero, axis = _parts(operator, g, stored)
    g.bind(operator.output, g.node("QuantizeLinear", operator.input("input"), scale, zero, axis=axis, dtype=stored))


@builtin("dequantize", onnx="DequantizeLinear", since_opset=19)
def _dequantize(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    scale, zero, axis = _parts(operator, g, g.dtype(operator.input("input")))
    g.bind(operator.output, g.node("DequantizeLinear", operator.input("input"), scale, zero, axis=axis))
