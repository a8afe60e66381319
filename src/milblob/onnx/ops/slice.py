"""Slices, and updates of slices."""

from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from .shape import LAST, sizes

_INT64 = ir.DataType.INT64


def _flags(operator: Operator, key: str, rank: int) -> list[bool]:
    return [bool(flag) for flag in operator.integers(key, [0] * rank, count=rank)]


def by_index(operator: Operator, g: ModelComponentContainer, x: Any, rank: int) -> ir.Value:
    """Return a slice as by slice_by_index: masks take precedence over numbers, and squeeze_mask over all.

    An axis to squeeze is indexed by its begin, so that -1 means the last one for any end.
    """
    strides = operator.integers("stride", [1] * rank, count=rank)
    begin_mask, end_mask, squeeze = (_flags(operator, f"{key}_mask", rank) for key in ("begin", "end", "squeeze"))
    kept = [axis for axis in range(rank) if not squeeze[axis]]
    bounds = []
    for key, mask, outer in (("begin", begin_mask, (0, LAST)), ("end", end_mask, (LAST, -LAST))):
        open_end = [outer[strides[axis] < 0] for axis in range(rank)]
        if operator.is_constant(key):
            given = operator.integers(key, count=rank)
            bounds.append(g.ints(open_end[axis] if mask[axis] else given[axis] for axis in kept))
        else:
            value = sizes(g, operator, key)
            if any(mask[axis] for axis in kept):
                value = g.node("Where", g.constant(np.array(mask)), g.ints(open_end), value)
            bounds.append(value if len(kept) == rank else g.node("Gather", value, g.ints(kept), axis=0))
    found = g.cast(x, g.dtype(x))
    whole = operator.is_constant("begin") and operator.is_constant("end")
    needed = [
        i for i, axis in enumerate(kept) if not (whole and begin_mask[axis] and end_mask[axis] and strides[axis] == 1)
    ]
    if needed:
        if whole and len(needed) < len(kept):
            bounds = [g.ints(b.const_value.numpy()[needed]) for b in bounds]  # type: ignore[union-attr]
            kept = [kept[i] for i in needed]
        steps = g.ints(strides[axis] for axis in kept) if any(strides[axis] != 1 for axis in kept) else None
        found = g.node("Slice", found, *bounds, g.ints(kept), steps)
    for axis in reversed(range(rank)):
        if squeeze[axis]:
            found = g.node("Gather", found, _element(operator, g, axis, begin_mask[axis]), axis=axis)
    return found


def _element(operator: Operator, g: ModelComponentContainer, axis: int, masked: bool) -> ir.Value:
    if masked:
        return g.scalar(0, _INT64)
    if operator.is_constant("begin"):
        return g.scalar(operator.integers("begin")[axis], _INT64)
    return g.node("Gather", sizes(g, operator, "begin"), g.scalar(axis, _INT64), axis=0)


@builtin("slice_by_index", onnx="Slice; Gather for axes to squeeze")
def _slice_by_index(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    return by_index(operator, g, x, g.rank(x))


@builtin("slice_by_size", onnx="Slice; Add, Where for computed numbers")
def _slice_by_size(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """A size of -1 is all that is left."""
    x = operator.input("x")
    rank = g.rank(x)
    if operator.is_constant("begin") and operator.is_constant("size"):
        begin, size = (operator.integers(key, count=rank) for key in ("begin", "size"))
        begins: ir.Value = g.ints(begin)
        # A negative begin whose slice reaches the last element would end at 0.
        ends: ir.Value = g.ints(
            LAST if s == -1 or (b < 0 and b + s >= 0) else b + s for b, s in zip(begin, size, strict=True)
        )
    else:
        begins, count = sizes(g, operator, "begin"), sizes(g, operator, "size")
        from_start = g.node(
            "Where", g.node("Less", begins, g.ints([0])), g.node("Add", begins, g.shape(x)), begins, dtype=_INT64
        )
        ends = g.node("Add", from_start, count)
        ends = g.node("Where", g.node("Less", count, g.ints([0])), g.ints([LAST]), ends, dtype=_INT64)
    return g.node("Slice", x, begins, ends, g.ints(range(rank)))


@builtin("slice_update", onnx="Range, Reshape, Slice, ScatterND")
def _slice_update(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Slice the numbers of all blocks in the same way: these are the places of the update."""
    x, update = operator.input("x"), operator.input("update")
    rank, block = g.rank(x), _block(operator, g)
    if x.shape is not None and None not in x.shape and 0 not in x.shape:
        outer = [*(size or 0 for size in x.shape[: rank - len(block)]), *[1] * len(block)]
        shape, grid, count = g.ints(size or 0 for size in x.shape), g.ints(outer), g.scalar(prod(outer), _INT64)
    else:
        shape = grid = g.shape(x)
        count = g.node("Size", x)
    numbers = g.node("Range", g.scalar(0, _INT64), count, g.scalar(1, _INT64))
    chosen = by_index(operator, g, g.node("Reshape", numbers, grid), rank)
    rows, blocks = g.ints([-1, *block]), g.node("Expand", update, g.shape(chosen))
    where = g.node("Reshape", chosen, g.ints([-1, 1]))
    found = g.node("ScatterND", g.node("Reshape", x, rows), where, g.node("Reshape", blocks, rows))
    return g.node("Reshape", found, shape)


def _block(operator: Operator, g: ModelComponentContainer) -> list[int]:
    """Return the sizes of the last axes that an update takes as a whole: a cache is written by rows, not elements."""
    sizes, new = g.dimensions(operator.input("x")), operator.input("update").shape or ()
    rank, found = len(sizes), list[int]()
    masks = [_flags(operator, f"{key}_mask", rank) for key in ("begin", "end")]
    squeeze, strides = _flags(operator, "squeeze_mask", rank), operator.integers("stride", [1] * rank, count=rank)
    for axis in reversed(range(rank) if None not in sizes else ()):
        at = axis - rank
        is_whole = masks[0][axis] and masks[1][axis] and strides[axis] == 1 and not squeeze[axis]
        if not is_whole or not sizes[axis] or len(new) < -at or new[at] != sizes[axis]:
            break
        found.insert(0, int(sizes[axis] or 0))
    return found
