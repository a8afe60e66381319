"""Elementwise operations of one and two inputs, casts and select."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import add_builtin, builtin
from ..topology import Operator, Scope
from ..types import BY_TEXT, FLOATS, NARROW

_INT32, _BOOL = ir.DataType.INT32, ir.DataType.BOOL

Value = ir.Value
_Binary = Callable[[ModelComponentContainer, Value, Value], Value]


def wide(g: ModelComponentContainer, value: Any) -> Value:
    """Return a value as int32 if it is of a narrow integer type, for which runtimes lack kernels."""
    found = g.dtype(value)
    if found in NARROW or found in (ir.DataType.INT4, ir.DataType.UINT4):
        return g.cast(value, _INT32)
    return g.cast(value, found)


def is_float(g: ModelComponentContainer, value: Any) -> bool:
    """Whether a value has floating-point elements."""
    return g.dtype(value) in FLOATS


def floor_div(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    """Divide and round down; ONNX's Div of integers truncates, so the dividend is made a multiple first."""
    if is_float(g, x):
        found: Value = g.node("Floor", g.node("Div", x, y))
    else:
        found = g.node("Div", g.node("Sub", x, g.node("Mod", x, y)), y)
    return found


def _mod(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    """The remainder has the sign of the divisor; ONNX's Mod has that for integers only."""
    if not is_float(g, x):
        found: Value = g.node("Mod", x, y)
    else:
        found = g.node("Sub", x, g.node("Mul", floor_div(g, x, y), y))
    return found


def _real_div(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    if is_float(g, x):
        found: Value = g.node("Div", x, y)
    else:
        found = g.node("Div", g.cast(x, ir.DataType.FLOAT), g.cast(y, ir.DataType.FLOAT))
    return found


def _one(kind: str) -> _Binary:
    def make(g: ModelComponentContainer, x: Value, y: Value) -> Value:
        found: Value = g.node(kind, x, y)
        return found

    return make


def _not_equal(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    found: Value = g.node("Not", g.node("Equal", x, y))
    return found


def _logical(kind: str) -> _Binary:
    def make(g: ModelComponentContainer, x: Value, y: Value) -> Value:
        found: Value = g.node(kind, g.cast(x, _BOOL), g.cast(y, _BOOL))
        return found

    return make


_BINARY: dict[str, tuple[str, _Binary]] = {
    "add": ("Add", _one("Add")),
    "sub": ("Sub", _one("Sub")),
    "mul": ("Mul", _one("Mul")),
    "pow": ("Pow", _one("Pow")),
    "maximum": ("Max", _one("Max")),
    "minimum": ("Min", _one("Min")),
    "real_div": ("Div", _real_div),
    "floor_div": ("Div, Floor; of integers Mod, Sub, Div", floor_div),
    "mod": ("Mod; of floats Div, Floor, Mul, Sub", _mod),
    "equal": ("Equal", _one("Equal")),
    "not_equal": ("Equal, Not", _not_equal),
    "greater": ("Greater", _one("Greater")),
    "greater_equal": ("GreaterOrEqual", _one("GreaterOrEqual")),
    "less": ("Less", _one("Less")),
    "less_equal": ("LessOrEqual", _one("LessOrEqual")),
    "logical_and": ("And", _logical("And")),
    "logical_or": ("Or", _logical("Or")),
    "logical_xor": ("Xor", _logical("Xor")),
}


def _binary(make: _Binary) -> Any:
    def convert(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
        x, y = wide(g, operator.input("x")), wide(g, operator.input("y"))
        g.bind(operator.output, make(g, x, y), convert=make is _real_div)

    return convert


for _type, (_mapping, _make) in _BINARY.items():
    add_builtin(_type, _binary(_make), "elementwise", _mapping)

# Those that become one operator of one input.
_UNARY = {
    "abs": "Abs", "acos": "Acos", "asin": "Asin", "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos",
    "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "round": "Round", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "identity": "Identity",
}  # fmt: skip


def _unary(kind: str) -> Any:
    def convert(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
        g.bind(operator.output, g.node(kind, operator.input("x")))

    return convert


for _type, _kind in _UNARY.items():
    add_builtin(_type, _unary(_kind), "elementwise", _kind)


def plus_epsilon(operator: Operator, g: ModelComponentContainer, default: float) -> Value:
    """Return x + epsilon; in half precision MIL's default is often zero, and then nothing is added."""
    x = operator.input("x")
    if not operator.is_constant("epsilon"):
        found: Value = g.node("Add", x, operator.input("epsilon"))
        return found
    epsilon = g.scalar(operator.number("epsilon", default), x)
    if not epsilon.const_value.numpy().any():  # type: ignore[union-attr]
        return g.cast(x, g.dtype(x))
    total: Value = g.node("Add", x, epsilon)
    return total


@builtin("log", onnx="Add, Log")
def _log(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.bind(operator.output, g.node("Log", plus_epsilon(operator, g, 1e-45)))


@builtin("inverse", onnx="Add, Reciprocal")
def _inverse(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.bind(operator.output, g.node("Reciprocal", plus_epsilon(operator, g, 1e-4)))


@builtin("rsqrt", onnx="Add, Sqrt, Reciprocal")
def _rsqrt(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.bind(operator.output, g.node("Reciprocal", g.node("Sqrt", plus_epsilon(operator, g, 1e-12))))


@builtin("exp2", onnx="Pow")
def _exp2(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = operator.input("x")
    g.bind(operator.output, g.node("Pow", g.scalar(2, x), x))


@builtin("square", onnx="Mul")
def _square(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = wide(g, operator.input("x"))
    g.bind(operator.output, g.node("Mul", x, x))


@builtin("logical_not", onnx="Not")
def _logical_not(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.bind(operator.output, g.node("Not", g.cast(operator.input("x"), _BOOL)))


@builtin("threshold", onnx="Max")
def _threshold(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = wide(g, operator.input("x"))
    g.bind(operator.output, g.node("Max", x, g.scalar(operator.number("alpha"), x)))


@builtin("clip", onnx="Clip")
def _clip(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x = wide(g, operator.input("x"))
    low, high = (g.scalar(operator.number(key), x) for key in ("alpha", "beta"))
    g.bind(operator.output, g.node("Clip", x, low, high))


@builtin("cast", onnx="Cast")
def _cast(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    text = operator.number("dtype")
    if text not in BY_TEXT:
        raise UnsupportedError(f"cast: expected one of {', '.join(BY_TEXT)}, got {text!r:.40}", where=operator.path)
    g.bind(operator.output, g.cast(operator.input("x"), BY_TEXT[text]))


@builtin("select", onnx="Where")
def _select(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    cond = g.cast(operator.input("cond"), _BOOL)
    g.bind(operator.output, g.node("Where", cond, operator.input("a"), operator.input("b")))
