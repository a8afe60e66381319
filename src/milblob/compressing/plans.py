"""The recipes as plans: where the sizes of all parts are known before they are computed."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..dtypes import DType, as_dtype
from ..lossy import palettize, prune, quantize
from ..lossy.unfit import UnfitError
from ..rewrite.changes import WEIGHT_COUNT
from ..rewrite.planned import CompressionLoss, PartsPlan, PlannedPart, Put
from ..values.strided import Empty
from .pieces import INDICES, LINKED_OPSET, NotCompressibleError, require_finite


def linear_plan(
    array: Any, dtype: str, mode: str, blocks: tuple[int, ...], search: bool, opset: int, empty: Empty = np.empty
) -> PartsPlan:
    """Plan the linear quantization of a weight.

    Args:
        array: its values.
        dtype, mode, blocks, search: as for `quantize`.
        opset: iOS version of the opset that it is in.
        empty: makes what is as long as the weight.

    Raises:
        NotCompressibleError: it cannot be quantized so.
    """
    try:
        work = quantize.Quantizer(array, dtype, mode=mode, blocks=blocks, search=search, empty=empty)
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
    except UnfitError as error:
        raise NotCompressibleError(str(error)) from None
    parts = [PlannedPart(keys[0], work.dtype, array.shape, data), PlannedPart(keys[1], stored, shape, scale)]
    if has_point:
        parts.append(PlannedPart(keys[2], work.dtype, shape, point))
    write = partial(_write_quantized, work, keys, {part.key for part in parts if part.array is None})
    op = "constexpr_affine_dequantize" if more else "constexpr_blockwise_shift_scale"
    return PartsPlan(op, (*parts, *more), write)


def palette_plan(
    array: Any, nbits: int, mode: str, axis: int | None, group_size: int | None, opset: int, lasting: Empty = np.empty
) -> PartsPlan | None:
    """Plan the palettes of a weight; None where all of it must be looked at for that.

    Args:
        array: its values.
        nbits, mode, axis, group_size: as for `palettize`.
        opset: iOS version of the opset that it is in.
        lasting: makes what is kept until the plan is carried out.

    Raises:
        NotCompressibleError: it cannot be palettized so.
    """
    if array.size < 8 * WEIGHT_COUNT:
        return None
    is_new = opset >= LINKED_OPSET
    if nbits == 3 and not is_new:
        raise NotCompressibleError("expected an opset of iOS18 for 3 bits, got an earlier one")
    try:
        work = palettize.Palettizer(array, nbits, mode=mode, axis=axis, group_size=group_size, empty=lasting)
        if not work.is_apart:
            return None
        entries = 1 << nbits
        shape = (*work.counts, entries, 1) if is_new else (entries,)
        is_few = prod(shape) < WEIGHT_COUNT
        if is_few and array.size * nbits // 8 < work.kept_nbytes:
            return None  # the indices themselves are shorter than what is kept to compute them later
        few = work.fit().reshape(shape) if is_few else None
    except UnfitError as error:
        raise NotCompressibleError(str(error)) from None
    indices = PlannedPart("indices", INDICES[nbits], array.shape)
    if not is_new:
        indices = PlannedPart("indices", DType.UINT8, (indices.nbytes,))
    parts = [indices, PlannedPart("lut", as_dtype(array.dtype), shape, few)]
    if not is_new:
        parts.append(PlannedPart("shape", DType.UINT32, (array.ndim,), np.array(array.shape, np.uint32)))
    return PartsPlan("constexpr_lut_to_dense", tuple(parts), partial(_write_palettized, work, few is None))


def prune_plan(
    array: Any, options: Mapping[str, Any], least_sparsity: float, opset: int, lasting: Empty = np.empty
) -> PartsPlan:
    """Plan the pruning of a weight.

    Args:
        array: its values.
        options: keyword arguments of `prune`.
        least_sparsity: that pays.
        opset: iOS version of the opset that it is in.
        lasting: makes what is kept until the plan is carried out.

    Raises:
        NotCompressibleError: it cannot be pruned so, or too little becomes zero.
    """
    try:
        work = prune.Pruner(array, **options, empty=lasting)
        made = 1 - work.count / array.size
        if made < least_sparsity:
            raise NotCompressibleError(f"expected a sparsity of {least_sparsity:g} or more, got {made:.4g}")
        few = work.count < WEIGHT_COUNT
        nonzero = np.concatenate([one.nonzero for one in work.stretches()]) if few else None
    except UnfitError as error:
        raise NotCompressibleError(str(error)) from None
    parts = [
        PlannedPart("nonzero_data", as_dtype(array.dtype), (work.count,), nonzero),
        PlannedPart("mask", DType.UINT1, array.shape),
    ]
    if opset < LINKED_OPSET:
        mask: Any = None
        if parts[1].nbytes < WEIGHT_COUNT:
            mask = np.concatenate([one.mask for one in work.stretches()])
        parts[1] = PlannedPart("mask", DType.UINT8, (parts[1].nbytes,), mask)
        parts.append(PlannedPart("shape", DType.UINT32, (array.ndim,), np.array(array.shape, np.uint32)))
    stored = {part.key for part in parts if part.array is None}
    return PartsPlan("constexpr_sparse_to_dense", tuple(parts), partial(_write_pruned, work, stored))


def _write_quantized(
    work: quantize.Quantizer, keys: tuple[str, str, str], stored: set[str], put: Put
) -> CompressionLoss:
    """Write those parts of a linear quantization (integers, scales, zero points) that are `stored`; see PartsPlan."""
    squared, power, largest, dtype = 0.0, 0.0, 0.0, work.dtype
    try:
        for one in work.stretches(is_packed=True):
            zeros = bytes(dtype.nbytes(one.scale.size)) if one.zero_point is None else one.zero_point
            rows = (one.begin * dtype.nbits // 8, one.data), (one.block * one.scale.itemsize, one.scale)
            for key, row in zip(keys, (*rows, (one.block * dtype.nbits // 8, zeros)), strict=True):
                if key in stored and len(row[1]):
                    put(key, *row)
            squared, power, largest = squared + one.squared, power + one.power, max(largest, one.largest)
    except UnfitError as error:
        raise NotCompressibleError(str(error)) from None
    require_finite((squared, power, largest))
    return CompressionLoss(squared, power, largest)


def _write_palettized(work: palettize.Palettizer, has_palettes: bool, put: Put) -> CompressionLoss:
    """Write the indices, and perhaps the palettes; see PartsPlan."""
    try:
        for one in work.stretches():
            put("indices", one.begin * work.nbits // 8, one.indices)
            if has_palettes and one.palettes.size:
                put("lut", one.group * (one.palettes.itemsize << work.nbits), one.palettes)
    except UnfitError as error:
        raise NotCompressibleError(str(error)) from None
    require_finite(work.figures)
    return CompressionLoss(*work.figures, None if np.isnan(work.gap) else work.gap)


def _write_pruned(work: prune.Pruner, stored: set[str], put: Put) -> CompressionLoss:
    """Write those parts of a pruned weight that are `stored`; see PartsPlan."""
    for one in work.stretches():
        if "mask" in stored:
            put("mask", one.begin // 8, one.mask)
        if "nonzero_data" in stored and one.nonzero.size:
            put("nonzero_data", one.first * one.nonzero.itemsize, one.nonzero)
    return CompressionLoss(*work.figures)
