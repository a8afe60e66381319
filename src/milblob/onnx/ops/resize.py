"""Resizing of images."""

from math import floor, inf
from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable
from .elementwise import is_float
from .shape import LAST
from .shape import sizes as sizes_of

_INT64, _DOUBLE = ir.DataType.INT64, ir.DataType.DOUBLE


def _scaled(operator: Operator, g: ModelComponentContainer, **attributes: Any) -> Any:
    """Return a resize of the last two axes by factors: MIL computes the sizes, and from these the factors again."""
    x = operator.input("x")
    shape = g.dimensions(x, 2)
    factors = [1.0] * (len(shape) - 2)
    for key in ("scale_factor_height", "scale_factor_width"):
        factors.append(float(operator.number(key, 1)))
        if not 0 < factors[-1] < inf:
            operator.refuse(f"a positive number for {key}", factors[-1])
    if None in shape and all(factor.is_integer() for factor in factors):
        return g.node("Resize", x, None, g.constant(np.array(factors, np.float32)), **attributes)
    if None in shape:
        sizes = g.node("Mul", g.cast(g.shape(x), ir.DataType.DOUBLE), g.constant(np.array(factors)))
        sizes = g.cast(g.node("Floor", sizes), ir.DataType.INT64)
    else:
        sizes = g.ints(floor((size or 0) * factor) for size, factor in zip(shape, factors, strict=True))
    return g.node("Resize", x, None, None, sizes, **attributes)


@builtin("upsample_nearest_neighbor", onnx="Resize")
def _upsample_nearest(operator: Operator, g: ModelComponentContainer) -> Any:
    return _scaled(operator, g, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@builtin("upsample_bilinear", onnx="Resize")
def _upsample_bilinear(operator: Operator, g: ModelComponentContainer) -> Any:
    """Without align_corners, half_pixel_centers is its opposite unless it is given."""
    align = bool(operator.number("align_corners", True))
    half = bool(operator.number("half_pixel_centers", not align))
    mode = "align_corners" if align else "half_pixel" if half else "asymmetric"
    return _scaled(operator, g, mode="linear", coordinate_transformation_mode=mode)


def _sized(operator: Operator, g: ModelComponentContainer, sizes: list[int], **attributes: Any) -> Any:
    x = operator.input("x")
    shape = list(g.dimensions(x, 2))
    if None not in shape[:-2]:
        target: ir.Value = g.ints([size or 0 for size in shape[:-2]] + sizes)
    else:
        target = g.node("Concat", g.node("Shape", x, end=-2), g.ints(sizes), axis=0)
    return g.node("Resize", x, None, None, target, **attributes)


@builtin("resize_nearest_neighbor", onnx="Resize")
def _resize_nearest(operator: Operator, g: ModelComponentContainer) -> Any:
    sizes = [int(operator.number(f"target_size_{key}")) for key in ("height", "width")]
    return _sized(operator, g, sizes, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


_SAMPLING = {
    "STRICT_ALIGN_CORNERS": "align_corners", "ALIGN_CORNERS": "align_corners", "DEFAULT": "asymmetric",
    "UNALIGN_CORNERS": "half_pixel", "OFFSET_CORNERS": "",
}  # fmt: skip
"""ONNX's name for the places where MIL samples; "" if it has none."""
_MATRIX = "MatMul with matrices for OFFSET_CORNERS, and for ALIGN_CORNERS where a new size may be 1"


@builtin("resize_bilinear", onnx=f"Resize; {_MATRIX}")
def _resize_bilinear(operator: Operator, g: ModelComponentContainer) -> None:
    x = operator.input("x")
    sizes = [int(operator.number(f"target_size_{key}", 1)) for key in ("height", "width")]
    mode = operator.text("sampling_mode", _SAMPLING, "DEFAULT")
    if mode == "OFFSET_CORNERS" or (mode == "ALIGN_CORNERS" and 1 in sizes):
        rank = g.rank(x, 2)
        wanted = {axis: g.scalar(size, _INT64) for axis, size in zip((rank - 2, rank - 1), sizes, strict=True)}
        g.bind(operator.output, _by_matrices(g, x, wanted, mode), convert=True)
        return
    found = _sized(operator, g, sizes, mode="linear", coordinate_transformation_mode=_SAMPLING[mode])
    g.bind(operator.output, found)


def _by_matrices(
    g: ModelComponentContainer, x: Variable, sizes: dict[int, Any], mode: str, nearest: bool = False
) -> Any:
    """Return x, resized by a product for each of some axes, where ONNX or runtimes have no Resize.

    Args:
        g: the container.
        x: the image to resize.
        sizes: axis -> the new size, int64 of rank 0.
        mode: where it is sampled.
        nearest: take the nearest neighbour, of two the first one.
    """
    rank = g.rank(x)
    dtype = g.dtype(x) if is_float(g, x) else ir.DataType.FLOAT
    found: Any = g.cast(x, dtype)
    for axis, size in sizes.items():
        own = g.node("Squeeze", g.node("Shape", x, start=axis, end=axis + 1), g.ints([0]))
        weights = g.cast(_weights(g, own, size, mode, nearest), dtype)  # [new, old]
        perm = [*(i for i in range(rank) if i != axis), axis]
        moved = found if axis == rank - 1 else g.node("Transpose", found, perm=perm)
        moved = g.node("MatMul", moved, g.node("Transpose", weights, perm=[1, 0]))
        found = moved if axis == rank - 1 else g.node("Transpose", moved, perm=[int(i) for i in np.argsort(perm)])
    return found


def _weights(g: ModelComponentContainer, count: Any, size: Any, mode: str, nearest: bool) -> Any:
    """Return how much each of `count` elements adds to each of `size` new ones, in double precision."""

    def number(value: float) -> Any:
        return g.scalar(value, _DOUBLE)

    def every(many: Any) -> Any:
        zero, one = g.scalar(0, _INT64), g.scalar(1, _INT64)
        return g.cast(g.node("Range", zero, many, one), _DOUBLE)

    at, old, new = every(size), g.cast(count, _DOUBLE), g.cast(size, _DOUBLE)
    last = g.node("Sub", old, number(1))
    if mode == "OFFSET_CORNERS":
        step = g.node("Div", g.node("Max", last, number(1)), new)
        grid = g.node("Mul", g.node("Add", at, number(0.5)), step)
    elif mode == "UNALIGN_CORNERS":
        grid = g.node("Mul", g.node("Add", at, number(0.5)), g.node("Div", old, new))
        grid = g.node("Sub", grid, number(0.5))
    elif mode == "DEFAULT":
        grid = g.node("Mul", at, g.node("Div", old, new))
    else:
        gaps = g.node("Sub", new, number(1))
        step = g.node("Div", last, g.node("Max", gaps, number(1)))
        middle = g.node("Mul", last, number(0.5 if mode == "ALIGN_CORNERS" else 0))
        grid = g.node("Where", g.node("Greater", gaps, number(0)), g.node("Mul", at, step), middle)
    grid = g.node("Min", g.node("Max", grid, number(0)), last)
    if nearest:
        grid = g.node("Ceil", g.node("Sub", grid, number(0.5)))
    apart = g.node("Sub", g.node("Unsqueeze", grid, g.ints([1])), every(count))
    return g.node("Max", g.node("Sub", number(1), g.node("Abs", apart)), number(0))


@builtin(
    "resize",
    onnx=f"Resize, Shape, Slice, Where, Concat; {_MATRIX}, and for more than two axes",
    limits="of two nearest neighbours the first one",
)
def _resize(operator: Operator, g: ModelComponentContainer) -> None:
    """The last sizes are those at the end of `shape`; a zero keeps the size of x."""
    x = operator.input("x")
    rank, count = g.rank(x), int(operator.number("resized_dims"))
    mode = operator.text("sampling_mode", _SAMPLING, "DEFAULT")
    nearest = operator.text("interpolation_mode", ("LINEAR", "NEAREST_NEIGHBOR"), "LINEAR") == "NEAREST_NEIGHBOR"
    if not 0 < count <= rank:
        operator.refuse(f"1 to {rank} for resized_dims", count)
    own = g.shape(x)
    wanted = sizes_of(g, operator, "shape")
    last = g.node("Slice", wanted, g.ints([-count]), g.ints([LAST]))
    kept = g.node("Slice", own, g.ints([rank - count]), g.ints([LAST]))
    last = g.node("Where", g.node("Equal", last, g.ints([0])), kept, last, dtype=_INT64)
    known = operator.integers("shape")[-count:] if operator.is_constant("shape") else [1]
    is_new = mode == "OFFSET_CORNERS" or (mode == "ALIGN_CORNERS" and not min(known) > 1)  # 0 may be 1 as well
    if is_new or (count > 2 and not nearest):
        sizes = {rank - count + i: g.node("Gather", last, g.scalar(i, _INT64), axis=0) for i in range(count)}
        g.bind(operator.output, _by_matrices(g, x, sizes, mode, nearest), convert=True)
        return
    target = g.node("Concat", g.node("Slice", own, g.ints([0]), g.ints([rank - count])), last, axis=0)
    options: dict[str, Any] = (
        {"mode": "nearest", "nearest_mode": "round_prefer_floor"} if nearest else {"mode": "linear"}
    )
    transformation = _SAMPLING[mode]
    g.bind(
        operator.output,
        g.node("Resize", x, None, None, target, coordinate_transformation_mode=transformation, **options),
    )
