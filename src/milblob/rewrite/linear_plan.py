"""Linear quantization as a plan: the sizes of its parts are known before a value is read."""

from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..dtypes import DType, as_dtype
from ..values import quantize
from .changes import WEIGHT_COUNT
from .pieces import LINKED_OPSET, NotCompressibleError
from .planned import Figures, Plan, PlannedPart, Put


def linear_plan(array: Any, dtype: str, mode: str, blocks: tuple[int, ...], search: bool, opset: int) -> Plan:
    """Plan the linear quantization of a weight.

    Args:
        array: its values.
        dtype, mode, blocks, search: as for `quantize`.
        opset: iOS version of the opset that it is in.

    Raises:
        NotCompressibleError: it cannot be quantized so.
    """
    try:
        work = quantize.Quantizer(array, dtype, mode=mode, blocks=blocks, search=search)
        counts, stored, point = work.counts, as_dtype(work.array_dtype), None
        keys, shape = ("data", "scale", "offset"), counts
        more: tuple[PlannedPart, ...] = ()
        has_point = work.has_zero_point
        if opset < LINKED_OPSET:
            keys, has_point = ("quantized_data", "scale", "zero_point"), True
            shape = tuple(count for count in counts if count > 1)
            axis = next((axis for axis, count in enumerate(counts) if count > 1), 0)
            more = (PlannedPart("axis", DType.INT32, (), np.array(axis, np.int32)),)
        scale = None
        if prod(counts) < WEIGHT_COUNT:  # they go into the Program
            scale, point = work.scales()
            point = np.zeros(counts, np.uint8) if point is None else point
            scale, point = scale.reshape(shape), point.reshape(shape).view(work.dtype.numpy)
        data = None
        if array.size < WEIGHT_COUNT:
            data = np.concatenate([one.data for one in work.stretches()]).reshape(array.shape).view(work.dtype.numpy)
    except ValueError as error:
        raise NotCompressibleError(str(error)) from None
    parts = [PlannedPart(keys[0], work.dtype, array.shape, data), PlannedPart(keys[1], stored, shape, scale)]
    if has_point:
        parts.append(PlannedPart(keys[2], work.dtype, shape, point))
    write = partial(_write, work, keys, {part.key for part in parts if part.array is None})
    op = "constexpr_affine_dequantize" if more else "constexpr_blockwise_shift_scale"
    return Plan(op, (*parts, *more), write)


def _write(work: quantize.Quantizer, keys: tuple[str, str, str], stored: set[str], put: Put) -> Figures:
    """Write those parts of a linear quantization (integers, scales, zero points) that are `stored`; see Plan."""
    squared, power, largest, dtype = 0.0, 0.0, 0.0, work.dtype
    try:
        for one in work.stretches(is_packed=True):
            zeros = bytes(dtype.nbytes(one.scale.size)) if one.zero_point is None else one.zero_point
            rows = (one.begin * dtype.nbits // 8, one.data), (one.block * one.scale.itemsize, one.scale)
            for key, row in zip(keys, (*rows, (one.block * dtype.nbits // 8, zeros)), strict=True):
                if key in stored and len(row[1]):
                    put(key, *row)
            squared, power, largest = squared + one.squared, power + one.power, max(largest, one.largest)
    except ValueError as error:
        raise NotCompressibleError(str(error)) from None
    return Figures(squared, power, largest)
