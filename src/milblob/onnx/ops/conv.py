"""Convolutions and their transposes."""

from math import ceil
from typing import Any

import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable

SAME = {"same": "SAME_UPPER", "same_lower": "SAME_LOWER"}


def alike(g: ModelComponentContainer, x: Variable | ir.Value, value: Any) -> Any:
    """Return a parameter with the element type of x; from iOS 17 on, MIL lets them differ."""
    return g.cast(value, g.dtype(x))


def windows(operator: Operator, count: int) -> tuple[list[int], list[int]]:
    """Return strides and dilations for `count` spatial axes."""
    strides, dilations = (operator.integers(key, [1] * count, count=count, least=1) for key in ("strides", "dilations"))
    return strides, dilations


def same_pads(
    operator: Operator,
    sizes: list[int | None],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    lower: bool,
) -> list[int] | None:
    """Return begins and ends of the padding "same" for an operation that shrinks; None if open sizes decide them."""
    begins, ends = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (k - 1) * d + 1
        if size is None and s != 1:
            return None
        total = reach - 1 if size is None else max(0, (ceil(size / s) - 1) * s + reach - size)
        small, large = total // 2, total - total // 2
        begins.append(large if lower else small)
        ends.append(small if lower else large)
    return begins + ends


def custom_pads(operator: Operator, count: int) -> list[int]:
    """Return begins and ends of a custom padding, which MIL has as (begin, end) for each axis."""
    pad: list[int] = operator.integers("pad", [0] * (2 * count), count=2 * count)
    return pad[0::2] + pad[1::2]


def spatial(
    g: ModelComponentContainer, x: Variable, weight: Variable, operator: Operator
) -> tuple[list[int | None], list[int]]:
    """Return the spatial sizes of x and of the weight, which must be known."""
    sizes, kernel = list(g.dimensions(x)[2:]), g.dimensions(weight)[2:]
    if not kernel or None in kernel or len(kernel) != len(sizes):
        operator.refuse(f"{len(sizes)} known sizes of the weight's windows", kernel)
    return sizes, [int(size or 0) for size in kernel]


@builtin("conv", onnx="Conv", limits="known window sizes; `same` with dilations: known sizes of x")
def _conv(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    return _convolve(operator, g, operator.input("weight"))


def _convolve(operator: Operator, g: ModelComponentContainer, weight: Any) -> ir.Value:
    x = operator.input("x")
    sizes, kernel = spatial(g, x, operator.input("weight"), operator)
    strides, dilations = windows(operator, len(kernel))
    pad_type = operator.number("pad_type", "valid")
    pads, auto_pad = None, None
    if pad_type == "custom":
        pads = custom_pads(operator, len(kernel))
    elif pad_type in SAME:
        pads = same_pads(operator, sizes, kernel, strides, dilations, pad_type == "same_lower")
        if pads is None:
            auto_pad = SAME[pad_type]
            if max(dilations) > 1:
                operator.refuse(f"known sizes for {pad_type} with dilations", "open ones")
    elif pad_type != "valid":
        operator.refuse("a known pad_type", f"{pad_type!r:.40}")
    bias = alike(g, x, operator.input("bias")) if operator.has("bias") else None
    return g.node(
        "Conv", x, alike(g, x, weight), bias, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad,
        kernel_shape=kernel, group=operator.integer("groups", 1, least=1),
    )  # fmt: skip


@builtin("conv_quantized", onnx="Cast, Mul, Add, Conv", limits="quantization_type linear; otherwise as conv")
def _conv_quantized(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """The weight is its numbers times quant_scale, plus quant_bias: one of each, or one for each output channel."""
    how = operator.number("quantization_type")
    if how != "linear":  # the operation has no parameter for a palette
        operator.refuse("the quantization_type linear", f"{how!r:.40}")
    x, weight = operator.input("x"), operator.input("weight")
    parts = []
    for key in ("quant_scale", "quant_bias"):
        rank = g.rank(operator.input(key))
        value = alike(g, x, operator.input(key))
        parts.append(g.node("Reshape", value, g.ints([-1, *[1] * (g.rank(weight) - 1)])) if rank == 1 else value)
    scale, offset = parts
    return _convolve(operator, g, g.node("Add", g.node("Mul", alike(g, x, weight), scale), offset))


@builtin("conv_transpose", onnx="ConvTranspose", limits="known window sizes; with `output_shape`: known sizes of x")
def _conv_transpose(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x, weight = operator.input("x"), operator.input("weight")
    sizes, kernel = spatial(g, x, weight, operator)
    strides, dilations = windows(operator, len(kernel))
    pad_type = operator.text("pad_type", ("valid", "custom", *SAME), "valid")
    count = len(kernel)
    pads = custom_pads(operator, count) if pad_type == "custom" else [0] * (2 * count)
    wanted = operator.integers("output_shape", [])[-count:]
    if wanted and len(wanted) < count:
        operator.refuse(f"{count} sizes or more in output_shape", len(wanted))
    extra = [0] * count
    for axis in range(count):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        size = sizes[axis]
        if wanted and size is not None:
            total = (size - 1) * strides[axis] + reach - wanted[axis]
            if pad_type == "custom":
                pads[count + axis] = total - pads[axis]
            else:
                pads[axis], pads[count + axis] = _halves(total, pad_type)
        elif pad_type in SAME:  # the output is strides times as large
            pads[axis], pads[count + axis] = _halves(reach - strides[axis], pad_type)
        if pads[count + axis] < 0:
            extra[axis], pads[count + axis] = -pads[count + axis], 0
    if wanted and None in sizes:
        operator.refuse("known sizes with output_shape", "open ones")
    bias = alike(g, x, operator.input("bias")) if operator.has("bias") else None
    return g.node(
        "ConvTranspose", x, alike(g, x, weight), bias, strides=strides, dilations=dilations, pads=pads,
        kernel_shape=kernel, output_padding=extra if any(extra) else None, group=operator.integer("groups", 1, least=1),
    )  # fmt: skip


def _halves(total: int, pad_type: str) -> tuple[int, int]:
    if total < 0:
        return 0, total
    small, large = total // 2, total - total // 2
    return (large, small) if pad_type == "same_lower" else (small, large)


def _pool(kind: str, **fixed: Any) -> Any:
    def convert(operator: Operator, g: ModelComponentContainer) -> Any:
        x = operator.input("x")
        sizes = list(g.dimensions(x, 3, 5)[2:])
        count = len(sizes)
        kernel = operator.integers("kernel_sizes", count=count, least=1)
        strides = operator.integers("strides", [1] * count, count=count, least=1)
        pad_type = operator.number("pad_type", "valid")
        attributes: dict[str, Any] = dict(fixed)
        if pad_type == "custom":
            attributes["pads"] = custom_pads(operator, count)
        elif pad_type in SAME:
            pads = same_pads(operator, sizes, kernel, strides, [1] * count, pad_type == "same_lower")
            attributes |= {"auto_pad": SAME[pad_type]} if pads is None else {"pads": pads}
        elif pad_type != "valid":
            operator.refuse("a known pad_type", f"{pad_type!r:.40}")
        if operator.number("ceil_mode", False):
            attributes["ceil_mode"] = 1
        if kind == "AveragePool" and not operator.number("exclude_padding_from_average", False):
            attributes["count_include_pad"] = 1
        return g.node(kind, x, kernel_shape=kernel, strides=strides, **attributes)

    return convert


for _type, _kind, _fixed in (
    ("max_pool", "MaxPool", {}),
    ("avg_pool", "AveragePool", {}),
    ("l2_pool", "LpPool", {"p": 2}),
):
    builtin(_type, onnx=_kind)(_pool(_kind, **_fixed))
