"""Random numbers: the same distributions, but not the same numbers as Core ML's."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from .shape import sizes

_FLOAT = ir.DataType.FLOAT
_OTHERS = "other numbers than Core ML's"


def _like(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Return zeros of the wanted shape, which may be computed."""
    return g.node("Expand", g.constant(np.zeros((), np.float32)), sizes(g, operator, "shape"))


def _seed(operator: Operator) -> dict[str, Any]:
    """A seed of -1 is none."""
    seed = int(operator.number("seed", -1))
    return {} if seed == -1 else {"seed": float(seed)}


def _moved(g: ModelComponentContainer, drawn: Any, offset: float, factor: float) -> Any:
    return g.node("Add", g.node("Mul", drawn, g.scalar(factor, drawn)), g.scalar(offset, drawn))


@builtin("random_normal", onnx="Expand, RandomNormalLike, Mul, Add", limits=_OTHERS, convert=True)
def _random_normal(operator: Operator, g: ModelComponentContainer) -> Any:
    """A deviation of 0 ends the process in onnxruntime: the factor is applied afterwards."""
    drawn = g.node("RandomNormalLike", _like(operator, g), mean=0.0, scale=1.0, **_seed(operator))
    return _moved(g, drawn, float(operator.number("mean", 0)), float(operator.number("stddev", 1)))


@builtin("random_uniform", onnx="Expand, RandomUniformLike, Mul, Add", limits=_OTHERS, convert=True)
def _random_uniform(operator: Operator, g: ModelComponentContainer) -> Any:
    low, high = float(operator.number("low", 0)), float(operator.number("high", 1))
    drawn = g.node("RandomUniformLike", _like(operator, g), low=0.0, high=1.0, **_seed(operator))
    return _moved(g, drawn, low, high - low)


@builtin("random_bernoulli", onnx="Expand, RandomUniformLike, Less, Cast", limits=_OTHERS, convert=True)
def _random_bernoulli(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    drawn = g.node("RandomUniformLike", _like(operator, g), low=0.0, high=1.0, **_seed(operator))
    return g.node("Less", drawn, g.scalar(float(operator.number("prob", 0.5)), _FLOAT))


@builtin("random_categorical", onnx="Log, Multinomial, Cast", limits=_OTHERS, convert=True)
def _random_categorical(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = g.cast(operator.input("x"), _FLOAT)
    if operator.text("mode", ("logits", "probs"), "logits") == "probs":
        x = g.node("Log", x)
    size, shape = operator.integer("size", 1, least=1), g.dimensions(operator.input("x"), 1)
    flat = x if len(shape) == 2 else g.node("Reshape", x, g.ints([-1, shape[-1] or 0]))
    drawn = g.node("Multinomial", flat, sample_size=size, **_seed(operator))
    drawn = g.set_dtype(drawn, ir.DataType.INT32)
    if len(shape) != 2:
        ahead = g.node("Shape", x, end=-1)
        drawn = g.node("Reshape", drawn, g.node("Concat", ahead, g.ints([size]), axis=0))
    return drawn
