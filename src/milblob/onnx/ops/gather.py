"""Gathers and scatters."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable
from ..unpacking import rows
from .elementwise import is_float

_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


def _indices(operator: Operator, g: ModelComponentContainer, key: str = "x", axis: int = 0) -> Any:
    """Return indices of one axis, with `validate_indices` as in MIL.

    ONNX counts negative indices from the end, and runtimes refuse others outside of the tensor. MIL refuses both if
    they are validated; if they are not, it checks nothing, and has no result for them: a scatter wraps them.
    """
    variable = operator.input("indices")
    found = g.dtype(variable)
    at = g.cast(variable, found if found == ir.DataType.INT32 else _INT64)
    if not operator.has("validate_indices"):
        return at
    data = operator.input(key)
    return _bounded(operator, g, at, g.dimensions(data)[axis : axis + 1], (data, axis, axis + 1))


def _bounded(
    operator: Operator,
    g: ModelComponentContainer,
    at: Any,
    sizes: tuple[int | None, ...],
    axes: tuple[Variable, int, int],
) -> Any:
    """Return indices whose last axis counts the axes of `sizes`, or that are all of a single one."""
    validate = bool(operator.number("validate_indices", False))
    indices = operator.input("indices")
    if None not in sizes:
        limits = np.array(sizes, np.int64)
        if indices.constant is not None and np.all((indices.read() >= 0) & (indices.read() < limits)):
            return at
    if not validate and not operator.type.startswith("scatter"):
        return at
    data, first, last = axes
    if None not in sizes:
        bounds = g.ints(max(size or 0, 1) for size in sizes)
    else:  # of a tensor without elements, runtimes would divide by zero
        bounds = g.node("Max", g.node("Shape", data, start=first, end=last), g.ints([1]))
    at = g.cast(at, _INT64)
    if validate:
        return g.node("Where", g.node("Less", at, g.ints([0])), bounds, at)
    return g.node("Mod", at, bounds)


def _batch(operator: Operator, g: ModelComponentContainer, most: int) -> int:
    """Return how many axes, the first ones, x and the indices have in common.

    Raises:
        UnsupportedError: more than `most`, or than the indices have; the inference of ONNX reads beyond their sizes.
    """
    given, rank = int(operator.number("batch_dims", 0)), g.rank(operator.input("indices"))
    found = given + rank if given < 0 else given
    if not 0 <= found <= min(most, rank):
        operator.refuse(f"at most {min(most, rank)} for batch_dims", given)
    return found


@builtin("gather", onnx="Gather; GatherND, Transpose with batch dimensions")
def _gather(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    rank = g.rank(x)
    axis = g.axis(operator, "axis", rank, 0)
    batch = _batch(operator, g, axis)
    if g.gathered.get(x) is not None:
        return rows(g, g.gathered[x], _indices(operator, g, "x", axis), g.rank(operator.input("indices")))
    if batch == 0:
        return g.node("Gather", x, _indices(operator, g, "x", axis), axis=axis)
    value: Any = x
    if axis != batch:
        value = g.node("Transpose", x, perm=[*range(batch), axis, *(i for i in range(batch, rank) if i != axis)])
    at = g.node("Unsqueeze", g.cast(_indices(operator, g, "x", axis), _INT64), g.ints([-1]))
    found = g.node("GatherND", value, at, batch_dims=batch)
    if axis != batch:  # the axes between the batch and the axis go before the indices
        own = g.rank(operator.input("indices")) - batch
        between = range(batch + own, own + axis)
        total = rank - 1 + own
        found = g.node(
            "Transpose", found, perm=[*range(batch), *between, *range(batch, batch + own), *range(own + axis, total)]
        )
    return found


@builtin("gather_along_axis", onnx="GatherElements")
def _gather_along_axis(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    axis = g.axis(operator, "axis", g.rank(x), 0)
    return g.node("GatherElements", x, _indices(operator, g, "x", axis), axis=axis)


@builtin("gather_nd", onnx="GatherND")
def _gather_nd(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    batch = _batch(operator, g, min(g.rank(operator.input(key)) for key in ("x", "indices")) - 1)
    at = _tuples(operator, g, "x", batch)
    return g.node("GatherND", operator.input("x"), at, batch_dims=batch)


def _tuples(operator: Operator, g: ModelComponentContainer, key: str, batch: int) -> Any:
    """Return indices of several axes at once; as `_indices`."""
    at = g.cast(operator.input("indices"), _INT64)
    if not operator.has("validate_indices"):
        return at
    data, count = operator.input(key), g.dimensions(operator.input("indices"), 1)[-1]
    if count is None:
        return at
    sizes = g.dimensions(data, batch + count)[batch : batch + count]
    return _bounded(operator, g, at, sizes, (data, batch, batch + count))


_MODES = {"update": "none", "add": "add", "sub": "add", "mul": "mul", "div": "mul", "min": "min", "max": "max"}


def _scattered(operator: Operator, g: ModelComponentContainer, default: str) -> tuple[str, Any, Any]:
    """Return the reduction, and data and updates in an element type that has kernels for it.

    ONNX neither subtracts nor divides: the updates are negated or inverted.
    """
    mode = operator.number("mode", default)
    if mode not in _MODES:
        operator.refuse(f"one of {', '.join(_MODES)}", f"{mode!r:.40}")
    data, updates = operator.input("data"), operator.input("updates")
    if mode == "update":
        return "none", g.cast(data, g.dtype(data)), g.cast(updates, g.dtype(updates))
    if mode == "div" and not is_float(g, data):
        operator.refuse("floats to divide", "integers")
    wanted = _FLOAT if is_float(g, data) else ir.DataType.INT64
    x, y = g.cast(data, wanted), g.cast(updates, wanted)
    if mode == "sub":
        y = g.node("Neg", y)
    elif mode == "div":
        y = g.node("Reciprocal", y)
    return _MODES[mode], x, y


@builtin(
    "scatter",
    onnx="ScatterND, Transpose",
    limits="indices outside of the tensor: see Limits; modes that divide: floats only",
    convert=True,
)
def _scatter(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """The axis goes to the front, so that the indices choose rows."""
    rank, own = g.rank(operator.input("data")), g.rank(operator.input("indices"))
    axis = g.axis(operator, "axis", rank, 0)
    reduction, data, updates = _scattered(operator, g, "add")
    at = g.node("Unsqueeze", g.cast(_indices(operator, g, "data", axis), _INT64), g.ints([-1]))
    if axis:
        data = g.node("Transpose", data, perm=[axis, *(i for i in range(rank) if i != axis)])
        total = rank - 1 + own
        moved = [*range(axis, axis + own), *range(axis), *range(axis + own, total)]
        updates = g.node("Transpose", updates, perm=moved)
    found = g.node("ScatterND", data, at, updates, reduction=reduction)
    if axis:
        found = g.node("Transpose", found, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
    return found


@builtin("scatter_along_axis", onnx="ScatterElements", limits="as scatter", convert=True)
def _scatter_along_axis(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    reduction, data, updates = _scattered(operator, g, "add")
    axis = g.axis(operator, "axis", g.rank(operator.input("data")), 0)
    at = _indices(operator, g, "data", axis)
    return g.node("ScatterElements", data, at, updates, axis=axis, reduction=reduction)


@builtin("scatter_nd", onnx="ScatterND", limits="as scatter", convert=True)
def _scatter_nd(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    reduction, data, updates = _scattered(operator, g, "add")
    at = _tuples(operator, g, "data", 0)
    return g.node("ScatterND", data, at, updates, reduction=reduction)
