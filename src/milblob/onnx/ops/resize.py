"""Resizing of images."""

from math import floor
from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope


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
    "UNALIGN_CORNERS": "half_pixel", "OFFSET_CORNERS": "half_pixel",
}  # fmt: skip


@builtin("resize_bilinear", onnx="Resize")
def _resize_bilinear(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    sizes = [int(operator.number(f"target_size_{key}", 1)) for key in ("height", "width")]
    mode = operator.number("sampling_mode", "DEFAULT")
    if mode not in _SAMPLING:
        words = f"resize_bilinear: expected one of {', '.join(_SAMPLING)}, got {mode!r:.40}"
        raise UnsupportedError(words, where=operator.path)
    if mode == "ALIGN_CORNERS" and 1 in sizes:
        raise UnsupportedError("resize_bilinear: expected more than one row and column, got one", where=operator.path)
    _sized(operator, g, sizes, mode="linear", coordinate_transformation_mode=_SAMPLING[mode])
