"""Rules of the specification about the outputs of operations: types that follow plainly from those of the inputs.

Of operations that are not here, and of dimensions that depend on values, nothing is said: a finding is never a guess.
"""

from collections.abc import Callable, Mapping, Sequence

from ..dtypes import DType
from .rules_operations import Bound
from .types import TensorType, ValueType

_LIKE_X = (
    "abs", "acos", "asin", "atan", "atanh", "band_part", "batch_norm", "ceil", "clamped_relu", "clip", "cos",
    "cosh", "cumsum", "elu", "erf", "exp", "exp2", "floor", "gelu", "identity", "instance_norm", "inverse",
    "l2_norm", "layer_norm", "leaky_relu", "linear_activation", "local_response_norm", "log", "logical_not",
    "prelu", "relu", "relu6", "reverse", "round", "rsqrt", "scaled_tanh", "sigmoid", "sigmoid_hard", "sign",
    "silu", "sin", "sinh", "softmax", "softplus", "softplus_parametric", "softsign", "sqrt", "square", "tan",
    "tanh", "threshold", "thresholded_relu",
)  # fmt: skip
_BROADCAST = (
    "add", "floor_div", "maximum", "minimum", "mod", "mul", "pow", "sub",
)  # fmt: skip
_COMPARED = (
    "equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "not_equal",
)  # fmt: skip
_MOVED = (
    "avg_pool", "crop", "expand_dims", "max_pool", "pad", "reshape", "slice_by_index", "squeeze", "tile",
)  # fmt: skip
"""The elements are those of x, or made of them in its data type; the shape depends on values."""


def output_of(kind: str, arguments: Sequence[tuple[str, Sequence[Bound | None]]]) -> ValueType | None:
    """Return the type of an operation's only output: open where its inputs do not tell; None if nothing is known.

    Args:
        kind: the type of the operation.
        arguments: as for `operation_breaches`.
    """
    make = _MAKERS.get(kind)
    if make is None:
        return None
    types = {key: bound[0].type for key, bound in arguments if len(bound) == 1 and bound[0] is not None}
    if any(isinstance(one, TensorType) and not _is_plain(one) for one in types.values()):
        return None  # broken itself
    return make(types)


def _is_plain(declared: TensorType) -> bool:
    return isinstance(declared.dtype, DType) and declared.rank in (-1, len(declared.shape))


_Types = Mapping[str, ValueType | None]


def _like_x(types: _Types) -> ValueType | None:
    return types.get("x")


def _moved(types: _Types) -> ValueType | None:
    x = types.get("x")
    return TensorType(x.dtype, (), -1) if isinstance(x, TensorType) else None


def _broadcast(types: _Types) -> ValueType | None:
    x, y = _ranked(types, "x"), _ranked(types, "y")
    if x is None or y is None or x.dtype != y.dtype:
        return None
    count = max(len(x.shape), len(y.shape))
    pairs = zip((1,) * (count - len(x.shape)) + x.shape, (1,) * (count - len(y.shape)) + y.shape, strict=True)
    return TensorType(x.dtype, tuple(b if a == 1 else a if b in (1, a) else None for a, b in pairs), count)


def _compared(types: _Types) -> ValueType | None:
    found = _broadcast(types)
    return TensorType(DType.BOOL, found.shape, found.rank) if isinstance(found, TensorType) else None


def _transpose(types: _Types) -> ValueType | None:
    x = _ranked(types, "x")
    return None if x is None else TensorType(x.dtype, (None,) * len(x.shape), len(x.shape))


def _linear(types: _Types) -> ValueType | None:
    x, weight = _ranked(types, "x"), _ranked(types, "weight")
    if x is None or weight is None or not x.shape or len(weight.shape) != 2:
        return None
    return TensorType(x.dtype, (*x.shape[:-1], weight.shape[0]), len(x.shape))


def _conv(types: _Types) -> ValueType | None:
    x, weight = _ranked(types, "x"), _ranked(types, "weight")
    if x is None or weight is None or len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        return None
    return TensorType(x.dtype, (x.shape[0], weight.shape[0], *(None,) * (len(x.shape) - 2)), len(x.shape))


def _matmul(types: _Types) -> ValueType | None:
    x, y = _ranked(types, "x"), _ranked(types, "y")
    if x is None or y is None or x.dtype != y.dtype or min(len(x.shape), len(y.shape)) < 2:
        return None
    count = max(len(x.shape), len(y.shape))
    return TensorType(x.dtype, (None,) * count, count)


def _ranked(types: _Types, key: str) -> TensorType | None:
    """The type of an argument that is a tensor of a known rank."""
    found = types.get(key)
    return found if isinstance(found, TensorType) and found.rank >= 0 and not found.variadic else None


_MAKERS: dict[str, Callable[[_Types], ValueType | None]] = {
    **dict.fromkeys(_LIKE_X, _like_x),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_COMPARED, _compared),
    **dict.fromkeys(_MOVED, _moved),
    "conv": _conv,
    "linear": _linear,
    "matmul": _matmul,
    "transpose": _transpose,
}
