"""Elementwise operations of one and two inputs, casts and select."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
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
    """Divide and round down; ONNX's Div of integers truncates, so the quotient is one less if the remainders differ."""
    found = g.node("Div", x, y)
    if is_float(g, x):
        return g.node("Floor", found)
    rest = g.node("Sub", x, g.node("Mul", found, y))  # no step wraps, as making x a multiple of y first would
    is_less = g.node("Not", g.node("Equal", rest, g.node("Mod", x, y)))
    return g.node("Sub", found, g.cast(is_less, g.dtype(x)))


def _mod(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    """The remainder has the sign of the divisor; ONNX's Mod has that for integers only."""
    return g.node("Sub", x, g.node("Mul", floor_div(g, x, y), y)) if is_float(g, x) else g.node("Mod", x, y)


def _real_div(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    if is_float(g, x):
        return g.node("Div", x, y)
    # float64, for float32 holds integers to 2^24 only
    return g.node("Div", g.cast(x, ir.DataType.DOUBLE), g.cast(y, ir.DataType.DOUBLE))


def _not_equal(g: ModelComponentContainer, x: Value, y: Value) -> Value:
    return g.node("Not", g.node("Equal", x, y))


# Those that become one operator of two inputs, of one input, and of two inputs of bool; and several operators.
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "pow": "Pow", "maximum": "Max", "minimum": "Min", "equal": "Equal",
    "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less", "less_equal": "LessOrEqual",
}  # fmt: skip
_UNARY = {
    "abs": "Abs", "acos": "Acos", "asin": "Asin", "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos",
    "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "round": "Round", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "identity": "Identity",
}  # fmt: skip
_LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
_SEVERAL: dict[str, tuple[str, _Binary]] = {
    "real_div": ("Div", _real_div),
    "floor_div": ("Div, Floor; of integers Div, Mul, Sub, Mod, Equal, Not", floor_div),
    "mod": ("Mod; of floats Div, Floor, Mul, Sub", _mod),
    "not_equal": ("Equal, Not", _not_equal),
}


def _binary(make: str | _Binary, dtype: ir.DataType | None = None) -> Any:
    def convert(operator: Operator, g: ModelComponentContainer) -> Value:
        x, y = wide(g, operator.input("x")), wide(g, operator.input("y"))
        if dtype is not None:
            x, y = g.cast(x, dtype), g.cast(y, dtype)
        return g.node(make, x, y) if isinstance(make, str) else make(g, x, y)

    return convert


def unary(kind: str) -> Any:
    """Return the converter to one operator of one input, with alpha and beta as attributes where MIL has them."""

    def convert(operator: Operator, g: ModelComponentContainer) -> Any:
        numbers: dict[str, Any] = {key: float(operator.number(key)) for key in ("alpha", "beta") if operator.has(key)}
        return g.node(kind, operator.input("x"), **numbers)

    return convert


for _type, _kind in _BINARY.items():
    builtin(_type, onnx=_kind)(_binary(_kind))
for _type, _kind in _LOGICAL.items():
    builtin(_type, onnx=_kind)(_binary(_kind, _BOOL))
for _type, (_mapping, _make) in _SEVERAL.items():
    builtin(_type, onnx=_mapping, convert=_make is _real_div)(_binary(_make))
for _type, _kind in _UNARY.items():
    builtin(_type, onnx=_kind)(unary(_kind))


def plus_epsilon(operator: Operator, g: ModelComponentContainer, default: float) -> Value:
    """Return x + epsilon; in half precision MIL's default is often zero, and then nothing is added."""
    x = operator.input("x")
    if not operator.is_constant("epsilon"):
        return g.node("Add", x, operator.input("epsilon"))
    epsilon = g.scalar(operator.number("epsilon", default), x)
    if not epsilon.const_value.numpy().any():  # type: ignore[union-attr]
        return g.cast(x, g.dtype(x))
    return g.node("Add", x, epsilon)


@builtin("log", onnx="Add, Log")
def _log(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Log", plus_epsilon(operator, g, 1e-45))


@builtin("inverse", onnx="Add, Reciprocal")
def _inverse(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Reciprocal", plus_epsilon(operator, g, 1e-4))


@builtin("rsqrt", onnx="Add, Sqrt, Reciprocal")
def _rsqrt(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Reciprocal", g.node("Sqrt", plus_epsilon(operator, g, 1e-12)))


@builtin("exp2", onnx="Pow")
def _exp2(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    return g.node("Pow", g.scalar(2, x), x)


@builtin("square", onnx="Mul")
def _square(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = wide(g, operator.input("x"))
    return g.node("Mul", x, x)


@builtin("logical_not", onnx="Not")
def _logical_not(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return g.node("Not", g.cast(operator.input("x"), _BOOL))


@builtin("threshold", onnx="Max")
def _threshold(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = wide(g, operator.input("x"))
    return g.node("Max", x, g.scalar(operator.number("alpha"), x))


@builtin("clip", onnx="Clip")
def _clip(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = wide(g, operator.input("x"))
    low, high = (g.scalar(operator.number(key), x) for key in ("alpha", "beta"))
    return g.node("Clip", x, low, high)


@builtin("cast", onnx="Cast")
def _cast(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    text = operator.number("dtype")
    if text not in BY_TEXT:
        operator.refuse(f"one of {', '.join(BY_TEXT)}", f"{text!r:.40}")
    return g.cast(operator.input("x"), BY_TEXT[text])


@builtin("select", onnx="Where")
def _select(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    cond = g.cast(operator.input("cond"), _BOOL)
    return g.node("Where", cond, operator.input("a"), operator.input("b"))
