"""Activations and softmax."""

from math import pi, sqrt
from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable
from .elementwise import unary

_ONE = {
    "relu": "Relu", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign", "tanh": "Tanh",
    "leaky_relu": "LeakyRelu", "elu": "Elu", "sigmoid_hard": "HardSigmoid",
}  # fmt: skip
for _type, _kind in _ONE.items():
    builtin(_type, onnx=_kind)(unary(_kind))


def _numbers(operator: Operator, g: ModelComponentContainer, *keys: str) -> list[ir.Value]:
    return [g.scalar(operator.number(key), operator.input("x")) for key in keys]


@builtin("relu6", onnx="Clip")
def _relu6(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    return g.node("Clip", x, g.scalar(0, x), g.scalar(6, x))


@builtin("silu", onnx="Sigmoid, Mul")
def _silu(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    return g.node("Mul", x, g.node("Sigmoid", x))


@builtin("gelu", onnx="Gelu", since_opset=20)
def _gelu(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    mode = operator.number("mode", "EXACT")
    if mode == "SIGMOID_APPROXIMATION":
        return _gelu_decomposed(operator, g)
    approximate = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}.get(mode)
    if approximate is None:
        operator.refuse("a mode that is known", f"{mode!r:.60}")
    return g.node("Gelu", operator.input("x"), approximate=approximate)


@builtin("gelu", onnx="Erf, Mul, Add")
def _gelu_decomposed(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x, mode = operator.input("x"), operator.number("mode", "EXACT")
    if mode == "SIGMOID_APPROXIMATION":
        return g.node("Mul", x, g.node("Sigmoid", g.node("Mul", x, g.scalar(1.702, x))))
    if mode == "EXACT":
        inner = g.node("Erf", g.node("Mul", x, g.scalar(1 / sqrt(2), x)))
    elif mode == "TANH_APPROXIMATION":
        cube = g.node("Mul", x, g.node("Mul", x, x))
        total = g.node("Add", x, g.node("Mul", cube, g.scalar(0.044715, x)))
        inner = g.node("Tanh", g.node("Mul", total, g.scalar(sqrt(2 / pi), x)))
    else:
        operator.refuse("a mode that is known", f"{mode!r:.60}")
    half = g.node("Mul", x, g.scalar(0.5, x))
    return g.node("Mul", half, g.node("Add", inner, g.scalar(1, x)))


def per_channel(operator: Operator, g: ModelComponentContainer, key: str, x: Variable) -> ir.Value:
    """Return a constant vector as it applies to axis 1 of x."""
    array = operator.constant(key)
    rank = g.rank(x, 2)
    return g.constant(np.asarray(array).reshape([-1, *[1] * (rank - 2)]), g.dtype(x))


@builtin("prelu", onnx="PRelu")
def _prelu(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    return g.node("PRelu", x, per_channel(operator, g, "alpha", x))


@builtin("softplus_parametric", onnx="Mul, Softplus, Mul")
def _softplus_parametric(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    alpha, beta = (per_channel(operator, g, key, x) for key in ("alpha", "beta"))
    return g.node("Mul", alpha, g.node("Softplus", g.node("Mul", x, beta)))


@builtin("scaled_tanh", onnx="Mul, Tanh, Mul")
def _scaled_tanh(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    alpha, beta = _numbers(operator, g, "alpha", "beta")
    return g.node("Mul", g.node("Tanh", g.node("Mul", operator.input("x"), beta)), alpha)


@builtin("clamped_relu", onnx="LeakyRelu, Min")
def _clamped_relu(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    leaky = g.node("LeakyRelu", operator.input("x"), alpha=float(operator.number("alpha")))
    return g.node("Min", leaky, *_numbers(operator, g, "beta"))


@builtin("linear_activation", onnx="Mul, Add")
def _linear_activation(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    alpha, beta = _numbers(operator, g, "alpha", "beta")
    return g.node("Add", g.node("Mul", operator.input("x"), alpha), beta)


@builtin("thresholded_relu", onnx="ThresholdedRelu; GreaterOrEqual, Where for an infinite alpha")
def _thresholded_relu(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """MIL keeps x where x >= alpha, ONNX where x > alpha: the float32 before alpha, for alpha itself has no other."""
    x = operator.input("x")
    alpha = np.float32(operator.number("alpha"))
    if np.isfinite(alpha):
        before = float(np.nextafter(alpha, np.float32(-np.inf)))
        return g.node("ThresholdedRelu", x, alpha=before)
    keep = g.node("GreaterOrEqual", x, *_numbers(operator, g, "alpha"))
    return g.node("Where", keep, x, g.scalar(0, x))


@builtin("softmax", onnx="Softmax")
def _softmax(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Softmax", operator.input("x"), axis=int(operator.number("axis", -1)))


def _parts(operator: Operator, g: ModelComponentContainer, stored: ir.DataType) -> tuple[Any, Any, int]:
    """Return scale, zero point and axis; where the zero point is left out, it is zero."""
    scale = operator.input("scale")
    if operator.has("zero_point"):
        return scale, operator.input("zero_point"), int(operator.number("axis", 0) or 0)
    shape = [size or 0 for size in g.dimensions(scale)]
    zero = g.full(shape, 0, stored)
    return scale, zero, int(operator.number("axis", 0) or 0)


@builtin("quantize", onnx="QuantizeLinear", since_opset=19)
def _quantize(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    stored = g.dtype(operator.output)
    scale, zero, axis = _parts(operator, g, stored)
    return g.node("QuantizeLinear", operator.input("input"), scale, zero, axis=axis, dtype=stored)


@builtin("dequantize", onnx="DequantizeLinear", since_opset=19)
def _dequantize(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    scale, zero, axis = _parts(operator, g, g.dtype(operator.input("input")))
    return g.node("DequantizeLinear", operator.input("input"), scale, zero, axis=axis)
