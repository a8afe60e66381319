"""Resizing of images."""

from math import floor
from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope
from .shape import LAST
from .shape import sizes as sizes_of


def _scaled(operator: Operator, g: ModelComponentContainer, **attributes: Any) -> None:
    """Bind a resize of the last two axes by factors: MIL computes the sizes, and from these the factors again."""
    x = operator.input("x")
    shape = g.dimensions(x)
    factors = [1.0] * (len(shape) - 2) + [
        float(operator.number(f"scale_factor_{key}", 1)) for key in ("height", "width")
    ]
    if None in shape and all(factor.is_integer() for factor in factors):
        g.bind(operator.output, g.node("Resize", x, None, g.constant(np.array(factors, np.float32)), **attributes))
        return
    if None in shape:
        sizes = g.node("Mul", g.cast(g.shape(x), ir.DataType.DOUBLE), g.constant(np.array(factors)))
        sizes = g.cast(g.node("Floor", sizes), ir.DataType.INT64)
    else:
        sizes = g.ints(floor((size or 0) * factor) for size, factor in zip(shape, factors, strict=True))
    g.bind(operator.output, g.node("Resize", x, None, None, sizes, **attributes))


@builtin("upsample_nearest_neighbor", onnx="Resize")
def _upsample_nearest(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    _scaled(operator, g, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@builtin("upsample_bilinear", onnx="Resize")
def _upsample_bilinear(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """Without align_corners, half_pixel_centers is its opposite unless it is given."""
    align = bool(operator.number("align_corners", True))
    half = bool(operator.number("half_pixel_centers", not align))
    mode = "align_corners" if align else "half_pixel" if half else "asymmetric"
    _scaled(operator, g, mode="linear", coordinate_transformation_mode=mode)


def _sized(operator: Operator, g: ModelComponentContainer, sizes: list[int], **attributes: Any) -> None:
    x = operator.input("x")
    shape = list(g.dimensions(x))
    if None not in shape[:-2]:
        target: ir.Value = g.ints([size or 0 for size in shape[:-2]] + sizes)
    else:
        target = g.node("Concat", g.node("Shape", x, end=-2), g.ints(sizes), axis=0)
    g.bind(operator.output, g.node("Resize", x, None, None, target, **attributes))


@builtin("resize_nearest_neighbor", onnx="Resize")
def _resize_nearest(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    sizes = [int(operator.number(f"target_size_{key}")) for key in ("height", "width")]
    _sized(operator, g, sizes, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


_SAMPLING = {
    "STRICT_ALIGN_CORNERS": "align_corners", "ALIGN_CORNERS": "align_corners", "DEFAULT": "asymmetric",
    "UNALIGN_CORNERS": "half_pixel",
}  # fmt: skip
_MAX_SIZE = 1 << 14


@builtin(
    "resize_bilinear",
    onnx="Resize; MatMul with a constant for OFFSET_CORNERS",
    limits="OFFSET_CORNERS: known sizes up to 16,384",
)
def _resize_bilinear(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    sizes = [int(operator.number(f"target_size_{key}", 1)) for key in ("height", "width")]
    mode = operator.number("sampling_mode", "DEFAULT")
    if mode == "OFFSET_CORNERS" or (mode == "ALIGN_CORNERS" and 1 in sizes):
        _by_matrices(operator, g, sizes, mode)
        return
    _sized(operator, g, sizes, mode="linear", coordinate_transformation_mode=_known(operator, mode))


def _known(operator: Operator, mode: str) -> str:
    found = _SAMPLING.get(mode)
    if found is None:
        words = f"{operator.type}: expected one of {', '.join(_SAMPLING)}, got {mode!r:.40}"
        raise UnsupportedError(words, where=operator.path)
    return found


def _by_matrices(operator: Operator, g: ModelComponentContainer, sizes: list[int], mode: str) -> None:
    """Resize by two products: ONNX has no mode that samples where these do."""
    x = operator.input("x")
    rows, columns = g.dimensions(x)[-2:]
    if rows is None or columns is None or max(rows, columns, *sizes) > _MAX_SIZE:
        words = f"{operator.type}: expected known sizes up to {_MAX_SIZE} for {mode}, got {list(g.dimensions(x))}"
        raise UnsupportedError(words, where=operator.path)
    vertical, horizontal = (_weights(n, size, mode) for n, size in zip((rows, columns), sizes, strict=True))
    dtype = g.dtype(x)
    left = g.constant(vertical.astype(dtype.numpy()), dtype)
    right = g.constant(np.ascontiguousarray(horizontal.T).astype(dtype.numpy()), dtype)
    g.bind(operator.output, g.node("MatMul", g.node("MatMul", left, x), right))


def _weights(count: int, size: int, mode: str) -> "np.ndarray[Any, Any]":
    """Return how much each of `count` elements adds to each of `size` new ones."""
    at = np.arange(size, dtype=np.float64)
    if mode == "OFFSET_CORNERS":
        grid = (at + 0.5) * max(1, count - 1) / size
    else:
        grid = at * (count - 1) / (size - 1) if size > 1 else np.array([(count - 1) / 2])
    grid = np.clip(grid, 0, count - 1)
    found: np.ndarray[Any, Any] = np.maximum(0, 1 - np.abs(grid[:, None] - np.arange(count)))
    return found


@builtin(
    "resize", onnx="Resize, Shape, Slice, Where, Concat", limits="the nearest neighbour only with sampling mode DEFAULT"
)
def _resize(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """The last sizes are those at the end of `shape`; a zero keeps the size of x."""
    x = operator.input("x")
    rank, count = g.rank(x), int(operator.number("resized_dims"))
    mode = _known(operator, operator.number("sampling_mode", "DEFAULT"))
    nearest = operator.number("interpolation_mode", "LINEAR") == "NEAREST_NEIGHBOR"
    if (nearest and mode != "asymmetric") or not 0 < count <= rank:
        words = "resize: expected DEFAULT for the nearest neighbour, and resized_dims of x, got others"
        raise UnsupportedError(words, where=operator.path)
    own = g.shape(x)
    wanted = sizes_of(g, operator, "shape")
    last = g.node("Slice", wanted, g.ints([-count]), g.ints([LAST]))
    kept = g.node("Slice", own, g.ints([rank - count]), g.ints([LAST]))
    last = g.node("Where", g.node("Equal", last, g.ints([0])), kept, last, dtype=ir.DataType.INT64)
    target = g.node("Concat", g.node("Slice", own, g.ints([0]), g.ints([rank - count])), last, axis=0)
    options: dict[str, Any] = (
        {"mode": "nearest", "nearest_mode": "round_prefer_floor"} if nearest else {"mode": "linear"}
    )
    g.bind(operator.output, g.node("Resize", x, None, None, target, coordinate_transformation_mode=mode, **options))
