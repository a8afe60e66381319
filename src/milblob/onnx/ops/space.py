"""Operations between space and depth or batch, windows, crops."""

from math import prod

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator

_INT64 = ir.DataType.INT64
_MAX_LENGTH = 1 << 24
_MAX_TABLE = 1 << 16  # elements of indices that stand in the file


@builtin("depth_to_space", onnx="DepthToSpace")
def _depth_to_space(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    size = operator.integer("block_size", least=1)
    return g.node("DepthToSpace", operator.input("x"), blocksize=size, mode="DCR")


@builtin("pixel_shuffle", onnx="DepthToSpace")
def _pixel_shuffle(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    size = operator.integer("upscale_factor", least=1)
    return g.node("DepthToSpace", operator.input("x"), blocksize=size, mode="CRD")


@builtin("space_to_depth", onnx="SpaceToDepth")
def _space_to_depth(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    size = operator.integer("block_size", least=1)
    return g.node("SpaceToDepth", operator.input("x"), blocksize=size)


def known(operator: Operator, g: ModelComponentContainer, axes: slice) -> list[int]:
    """Return sizes of x that must be known."""
    found = g.dimensions(operator.input("x"))[axes]
    if None in found:
        operator.refuse("known sizes", list(found))
    return [size or 0 for size in found]


@builtin("pixel_unshuffle", onnx="Reshape, Transpose, Reshape", limits="known sizes")
def _pixel_unshuffle(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """The block's place comes after the channel, as in torch; SpaceToDepth has it before."""
    size = operator.integer("downscale_factor", least=1)
    g.rank(operator.input("x"), 4, 4)
    channels, height, width = known(operator, g, slice(1, 4))
    split = g.node("Reshape", operator.input("x"), g.ints([-1, channels, height // size, size, width // size, size]))
    moved = g.node("Transpose", split, perm=[0, 1, 3, 5, 2, 4])
    return g.node("Reshape", moved, g.ints([-1, channels * size**2, height // size, width // size]))


def _blocks(operator: Operator, g: ModelComponentContainer, key: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the sizes of a block, of the axes after batch and channels, and a pair of integers for each of them."""
    block = operator.integers("block_shape", least=1)
    numbers = operator.integers(key, count=2 * len(block))
    g.rank(operator.input("x"), 2 + len(block))
    return block, list(zip(numbers[0::2], numbers[1::2], strict=True))


@builtin("space_to_batch", onnx="Pad, Reshape, Transpose, Reshape", limits="known sizes")
def _space_to_batch(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    block, pads = _blocks(operator, g, "paddings")
    count = len(block)
    batch, *rest = known(operator, g, slice(None))
    firsts, lasts = zip(*pads, strict=True)
    x = g.node(
        "Pad",
        operator.input("x"),
        g.ints([0, 0, *firsts, *[0] * (len(rest) - 1 - count), 0, 0, *lasts, *[0] * (len(rest) - 1 - count)]),
    )
    channels, space, last = rest[0], rest[1 : 1 + count], rest[1 + count :]
    space = [size + a + b for size, (a, b) in zip(space, pads, strict=True)]
    inner = [n for size, b in zip(space, block, strict=True) for n in (size // b, b)]
    split = g.node("Reshape", x, g.ints([batch, channels, *inner, *last]))
    blocks = [3 + 2 * i for i in range(count)]
    outer = [2 + 2 * i for i in range(count)]
    tail = list(range(2 + 2 * count, 2 + 2 * count + len(last)))
    moved = g.node("Transpose", split, perm=[*blocks, 0, 1, *outer, *tail])
    sizes = [size // b for size, b in zip(space, block, strict=True)]
    return g.node("Reshape", moved, g.ints([batch * prod(block), channels, *sizes, *last]))


@builtin("batch_to_space", onnx="Reshape, Transpose, Reshape, Slice", limits="known sizes")
def _batch_to_space(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    block, crops = _blocks(operator, g, "crops")
    count = len(block)
    total, *rest = known(operator, g, slice(None))
    batch = total // prod(block)
    channels, space, last = rest[0], rest[1 : 1 + count], rest[1 + count :]
    split = g.node("Reshape", operator.input("x"), g.ints([*block, batch, channels, *space, *last]))
    perm = [count, count + 1]
    for i in range(count):
        perm += [count + 2 + i, i]
    perm += list(range(2 * count + 2, 2 * count + 2 + len(last)))
    sizes = [size * b for size, b in zip(space, block, strict=True)]
    whole = g.node("Reshape", g.node("Transpose", split, perm=perm), g.ints([batch, channels, *sizes, *last]))
    ends = [size - b for size, (_, b) in zip(sizes, crops, strict=True)]
    starts = [a for a, _ in crops]
    return g.node("Slice", whole, g.ints(starts), g.ints(ends), g.ints(range(2, 2 + count)))


@builtin("crop", onnx="Slice")
def _crop(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    crops = [operator.integers(key, count=2) for key in ("crop_height", "crop_width")]
    last = np.iinfo(np.int64).max
    starts = [pair[0] for pair in crops]
    ends = [-pair[1] if pair[1] else last for pair in crops]
    return g.node("Slice", operator.input("x"), g.ints(starts), g.ints(ends), g.ints([-2, -1]))


@builtin(
    "sliding_windows", onnx="Gather; Range, Add where the length is open or large", limits="up to 16,777,216 elements"
)
def _sliding_windows(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    axis = g.axis(operator, "axis", g.rank(x))
    length = g.dimensions(x)[axis]
    size, stride = int(operator.number("size")), int(operator.number("stride", 1))
    if not 0 < size <= _MAX_LENGTH or stride < 1 or (length or 0) > _MAX_LENGTH:
        operator.refuse(f"at most {_MAX_LENGTH} elements", f"windows of {size} over {length}")
    if length is not None and size * (length // stride + 1) <= _MAX_TABLE:
        starts = g.numbers(max(length - size, -1) // stride + 1, stride)
        table = g.constant(starts[:, None] + g.numbers(size))
    else:
        whole = g.node("Squeeze", g.node("Shape", x, start=axis, end=axis + 1), g.ints([0]))
        end = g.node("Sub", whole, g.scalar(size - 1, _INT64))
        begins = g.node("Range", g.scalar(0, _INT64), end, g.scalar(stride, _INT64))
        inside = g.node("Range", g.scalar(0, _INT64), g.scalar(size, _INT64), g.scalar(1, _INT64))
        table = g.node("Add", g.node("Unsqueeze", begins, g.ints([1])), inside)
    return g.node("Gather", x, table, axis=axis)


@builtin("reverse_sequence", onnx="ReverseSequence, Transpose")
def _reverse_sequence(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """ONNX reverses axis 0 or 1 along the other one only: these two axes go to the front."""
    x = operator.input("x")
    rank = g.rank(x)
    time, batch = g.axis(operator, "seq_axis", rank, 0), g.axis(operator, "batch_axis", rank, 0)
    perm = [batch, time, *(axis for axis in range(rank) if axis not in (batch, time))]
    moved = g.node("Transpose", x, perm=perm)
    lengths = g.cast(operator.input("lengths"), _INT64)
    found = g.node("ReverseSequence", moved, lengths, batch_axis=0, time_axis=1)
    return g.node("Transpose", found, perm=[int(i) for i in np.argsort(perm)])
