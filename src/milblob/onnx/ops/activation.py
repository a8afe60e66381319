"""Activations and softmax."""

from math import pi, sqrt
from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope, Variable
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
def _relu6(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = operator.input("x")
    g.bind(operator.output, g.node("Clip", x, g.scalar(0, x), g.scalar(6, x)))


@builtin("silu", onnx="Sigmoid, Mul")
def _silu(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = operator.input("x")
    g.bind(operator.output, g.node("Mul", x, g.node("Sigmoid", x)))


@builtin("gelu", onnx="Gelu", since_opset=20)
def _gelu(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    mode = operator.number("mode", "EXACT")
    if mode == "SIGMOID_APPROXIMATION":
        _gelu_decomposed(scope, operator, g)
        return
    approximate = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}.get(mode)
    if approximate is None:
        operator.refuse("a mode that is known", f"{mode!r:.60}")
    g.bind(operator.output, g.node("Gelu", operator.input("x"), approximate=approximate))


@builtin("gelu", onnx="Erf, Mul, Add")
def _gelu_decomposed(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x, mode = operator.input("x"), operator.number("mode", "EXACT")
    if mode == "SIGMOID_APPROXIMATION":
        g.bind(operator.output, g.node("Mul", x, g.node("Sigmoid", g.node("Mul", x, g.scalar(1.702, x)))))
        return
    if mode == "EXACT":
        inner = g.node("Erf", g.node("Mul", x, g.scalar(1 / sqrt(2), x)))
    elif mode == "TANH_APPROXIMATION":
        cube = g.node("Mul", x, g.node("Mul", x, x))
        total = g.node("Add", x, g.node("Mul", cube, g.scalar(0.044715, x)))
        inner = g.node("Tanh", g.node("Mul", total, g.scalar(sqrt(2 / pi), x)))
    else:
        operator.refuse("a mode that is known", f"{mode!r:.60}")
    half = g.node("Mul", x, g.scalar(0.5, x))
    g.bind(operator.output, g.node("Mul", half, g.node("Add", inner, g.scalar(1, x))))


def per_channel(operator: Operator, g: ModelComponentContainer, key: str, x: Variable) -> ir.Value:
    """Return a constant vector as it applies to axis 1 of x."""
    array = operator.constant(key)
    rank = g.rank(x, 2)
    return g.constant(np.asarray(array).reshape([-1, *[1] * (rank - 2)]), g.dtype(x))


@builtin("prelu", onnx="PRelu")
def _prelu(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = operator.input("x")
    g.bind(operator.output, g.node("PRelu", x, per_channel(operator, g, "alpha", x)))


@builtin("softplus_parametric", onnx="Mul, Softplus, Mul")
def _softplus_parametric(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = operator.input("x")
    alpha, beta = (per_channel(operator, g, key, x) for key in ("alpha", "beta"))
    g.bind(operator.output, g.node("Mul", alpha, g.node("Softplus", g.node("Mul", x, beta))))


@builtin("scaled_tanh", onnx="Mul, Tanh, Mul")
def _scaled_tanh(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    alpha, beta = _numbers(operator, g, "alpha", "beta")
    g.bind(operator.output, g.node("Mul", g.node("Tanh", g.node("Mul", operator.input("x"), beta)), alpha))


@builtin("clamped_relu", onnx="LeakyRelu, Min")
def _clamped_relu(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    leaky = g.node("LeakyRelu", operator.input("x"), alpha=float(operator.number("alpha")))
    g.bind(operator.output, g.node("Min", leaky, *_numbers(operator, g, "beta")))


@builtin("linear_activation", onnx="Mul, Add")
def _linear_activation(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    alpha, beta = _numbers(operator, g, "alpha", "beta")
    g.bind(operator.output, g.node("Add", g.node("Mul", operator.input("x"), alpha), beta))


@builtin("thresholded_relu", onnx="ThresholdedRelu; GreaterOrEqual, Where for an infinite alpha")
def _thresholded_relu(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """MIL keeps x where x >= alpha, ONNX where x > alpha: the float32 before alpha, for alpha itself has no other."""
    x = operator.input("x")
    alpha = np.float32(operator.number("alpha"))
    if np.isfinite(alpha):
        before = float(np.nextafter(alpha, np.float32(-np.inf)))
        g.bind(operator.output, g.node("ThresholdedRelu", x, alpha=before))
        return
    keep = g.node("GreaterOrEqual", x, *_numbers(operator, g, "alpha"))
    g.bind(operator.output, g.node("Where", keep, x, g.scalar(0, x)))


@builtin("softmax", onnx="Softmax")
def _softmax(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.bind(operator.output, g.node("Softmax", operator.input("x"), axis=int(operator.number("axis", -1))))


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
