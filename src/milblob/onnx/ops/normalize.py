"""Normalisations."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from ..types import onnx_dtype, tensor_type
from .conv import alike


def _input(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Return x with the element type of the output: for iOS 15, coremltools leaves out a cast of x to that of mean."""
    return g.cast(operator.input("x"), onnx_dtype(tensor_type(operator.outputs[0].type).dtype))


def _vector(
    operator: Operator, g: ModelComponentContainer, x: ir.Value, key: str, fill: float, shape: list[int]
) -> Any:
    """Return a parameter, or a constant of one value where it is left out."""
    if operator.has(key):
        return alike(g, x, operator.input(key))
    return g.full(shape, fill, g.dtype(x))


def _epsilon(operator: Operator) -> float:
    return float(operator.number("epsilon", 1e-5))


@builtin("batch_norm", onnx="BatchNormalization")
def _batch_norm(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    shape = [int(size or 0) for size in g.dimensions(operator.input("mean"))]
    x = _input(operator, g)
    scale, offset = _vector(operator, g, x, "gamma", 1, shape), _vector(operator, g, x, "beta", 0, shape)
    mean, variance = (alike(g, x, operator.input(key)) for key in ("mean", "variance"))
    return g.node("BatchNormalization", x, scale, offset, mean, variance, epsilon=_epsilon(operator))


@builtin(
    "instance_norm", onnx="InstanceNormalization", limits="a known number of channels, unless gamma and beta are given"
)
def _instance_norm(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = _input(operator, g)
    channels = g.dimensions(operator.input("x"), 2)[1]
    if channels is None and not (operator.has("gamma") and operator.has("beta")):
        operator.refuse("a known number of channels", "an open one")
    shape = [channels or 0]
    scale, offset = _vector(operator, g, x, "gamma", 1, shape), _vector(operator, g, x, "beta", 0, shape)
    return g.node("InstanceNormalization", x, scale, offset, epsilon=_epsilon(operator))


@builtin("layer_norm", onnx="LayerNormalization; ReduceMean, Sub, Mul, Sqrt, Div where the axes are not the last ones")
def _layer_norm(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x, declared = _input(operator, g), operator.input("x")
    shape, rank = g.dimensions(declared, 1), g.rank(declared)
    axes = g.axes(operator, "axes", rank)
    last = axes == list(range(rank - len(axes), rank))
    sizes = [shape[axis] for axis in axes]
    if last and (operator.has("gamma") or None not in sizes):
        scale = _vector(operator, g, x, "gamma", 1, [size or 0 for size in sizes])
        offset = alike(g, x, operator.input("beta")) if operator.has("beta") else None
        return g.node("LayerNormalization", x, scale, offset, axis=-len(axes), epsilon=_epsilon(operator))
    over = g.ints(sorted(axes))
    centred = g.node("Sub", x, g.node("ReduceMean", x, over))
    variance = g.node("ReduceMean", g.node("Mul", centred, centred), over)
    found = g.node("Div", centred, g.node("Sqrt", g.node("Add", variance, g.scalar(_epsilon(operator), x))))
    for key, kind in (("gamma", "Mul"), ("beta", "Add")):
        if operator.has(key):
            found = g.node(kind, found, _spread(operator, g, x, key, axes, rank))
    return found


def _spread(
    operator: Operator, g: ModelComponentContainer, x: ir.Value, key: str, axes: list[int], rank: int
) -> ir.Value:
    """Return gamma or beta, whose axes are `axes` in this order, as it applies to all axes."""
    array = np.asarray(operator.constant(key))
    if array.ndim != len(axes):
        operator.refuse(f"{len(axes)} dimensions of {key}", array.ndim)
    array = np.transpose(array, np.argsort(axes))
    sizes = dict(zip(sorted(axes), array.shape, strict=True))
    return g.constant(array.reshape([sizes.get(axis, 1) for axis in range(rank)]), g.dtype(x))


@builtin("l2_norm", onnx="ReduceSumSquare, Add, Sqrt, Div")
def _l2_norm(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Over the last three axes; epsilon is inside the root."""
    x = operator.input("x")
    total = g.node("ReduceSumSquare", x, g.ints([-3, -2, -1]))
    root = g.node("Sqrt", g.node("Add", total, g.scalar(operator.number("epsilon", 1e-6), x)))
    return g.node("Div", x, root)


@builtin(
    "local_response_norm",
    onnx="LRN; AveragePool over the channels where runtimes have no LRN",
    limits="a known number of channels",
)
def _local_response_norm(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """ONNX's LRN is for odd sizes, and runtimes have it for four dimensions."""
    x = operator.input("x")
    alpha, beta, bias = (float(operator.number(k, d)) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("k", 1.0)))
    size, shape = operator.integer("size", least=1), g.dimensions(x, 2)
    if size % 2 and len(shape) == 4:
        return g.node("LRN", x, size=size, alpha=alpha, beta=beta, bias=bias)
    # Of three dimensions, Core ML takes the first for the channels.
    flat = g.node("Reshape", g.node("Mul", x, x), _planes(g, shape))
    mean = g.node(
        "AveragePool",
        flat,
        kernel_shape=[size, 1],
        pads=[size // 2, 0, (size - 1) // 2, 0],
        count_include_pad=1,
    )
    mean = g.node("Reshape", mean, g.shape(x))
    total = g.node("Add", g.node("Mul", mean, g.scalar(alpha, x)), g.scalar(bias, x))
    return g.node("Div", x, g.node("Pow", total, g.scalar(beta, x)))


def _planes(g: ModelComponentContainer, shape: tuple[int | None, ...]) -> ir.Value:
    channels = shape[0] if len(shape) == 3 else shape[1]
    if channels is None:
        raise UnsupportedError("local_response_norm: expected a known number of channels, got an open one")
    return g.ints([1 if len(shape) == 3 else 0, 1, channels, -1])
