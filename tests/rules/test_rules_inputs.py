"""The rule about types of outputs where the inputs of an operation fit none: shapes that do not go together."""

import contextlib

import pytest

from milblob.dtypes import DType
from milblob.program.types import TensorType
from milblob.rules.misfits import Misfit
from milblob.rules.operation_rules import Bound
from milblob.rules.output_rules import outputs_of

F32, I32 = DType.FLOAT32, DType.INT32


def typed(*shape):
    return Bound(TensorType(F32, shape, len(shape)), False)


def outputs(kind, given):
    """What the inputs make: tuples are shapes, lists of tuples several of them, lists of numbers constants."""
    arguments = []
    for key, value in given.items():
        if isinstance(value, tuple):
            bound = [typed(*value)]
        elif value and isinstance(value[0], tuple):
            bound = [typed(*shape) for shape in value]
        else:
            bound = [Bound(TensorType(I32, (len(value),), 1), True, tuple(value))]
        arguments.append((key, bound))
    return outputs_of(kind, arguments)


FITTING = [
    ("add", {"x": (2, 3, 4), "y": (3, 1)}, {"y": (2, 4)}, "shapes of add: expected ones that broadcast, got [2, 3, 4] and [2, 4]"),
    ("select", {"a": (2, 3), "b": (3,), "cond": (2, 3)}, {"b": (2,)}, "shapes of select: expected ones that broadcast"),
    ("linear", {"x": (2, 4), "weight": (5, 4)}, {"x": (2, 5)}, "the last dimension of x of linear: expected [4], got [5]"),
    ("matmul", {"x": (2, 4), "y": (4, 5)}, {"y": (5, 4)}, "x and y of matmul: expected ones that can be multiplied, got [2, 4] and [5, 4]"),
    ("matmul", {"x": (4, 2), "y": (5, 4), "transpose_x": [1], "transpose_y": [1]}, {"x": (2, 4)}, "x and y of matmul: "),
    ("matmul", {"x": (4,), "y": (4, 5)}, {"x": (5,)}, "x and y of matmul: "),
    ("matmul", {"x": (3, 2, 4), "y": (1, 4, 5)}, {"y": (2, 4, 5)}, "shapes of matmul: expected ones that broadcast, got [3] and [2]"),
    ("conv", {"x": (1, 4, 9), "weight": (6, 2, 3), "groups": [2]}, {"x": (1, 5, 9)}, "channels of x of conv: expected a multiple of 2, got 5"),
    ("conv", {"x": (1, 4, 9), "weight": (6, 4, 3)}, {"x": (1, 5, 9)}, "channels of weight of conv: expected [5], got [4]"),
    ("conv", {"x": (1, 4, 9), "weight": (6, 4, 3)}, {"x": (1, 4, 2)}, "x of conv: expected at least 3 along dimension 2, got [1, 4, 2]"),
    ("conv", {"x": (1, 4, 9), "weight": (6, 4, 3)}, {"x": (1, 4, 9, 9)}, "weight of conv: expected 4 dimensions, as x has, got [6, 4, 3]"),
    ("max_pool", {"x": (1, 4, 9), "kernel_sizes": [3]}, {"x": (1, 4, 2)}, "x of max_pool: expected at least 3 along dimension 2"),
    ("concat", {"values": [(2, 3), (2, 5)], "axis": [1]}, {"axis": [0]}, "shapes of values of concat: expected [?, 3], got [?, 5]"),
    ("concat", {"values": [(2, 3), (2, 5)], "axis": [1]}, {"values": [(2, 3), (2,)]}, "shapes of values of concat: "),
    ("concat", {"values": [(None, 3), (2, 5), (2, 1)], "axis": [1]}, {"values": [(None, 3), (2, 3), (4, 3)]},
     "shapes of values of concat: expected one size in each dimension, got [?, ?], [2, ?], [4, ?]"),
    ("stack", {"values": [(2, 3), (2, 3)], "axis": [0]}, {"values": [(2, 3), (2, 4)]}, "shapes of values of stack: expected [2, 3], got [2, 4]"),
    ("reshape", {"x": (2, 6), "shape": [3, 4]}, {"x": (2, 7)}, "shape of reshape: expected one of the 14 elements of x, [2, 7], got [3, 4]"),
    ("reshape", {"x": (2, 6), "shape": [4, -1]}, {"x": (2, 7)}, "shape of reshape: expected one of the 14 elements of x, [2, 7], got [4, -1]"),
    ("split", {"x": (6,), "axis": [0], "num_splits": [3]}, {"x": (7,)}, "the size along axis of split: expected a multiple of 3, got 7"),
    ("split", {"x": (6,), "axis": [0], "split_sizes": [2, 4]}, {"x": (7,)}, "split_sizes of split: expected a sum of 7, got 6"),
    ("slice_by_index", {"x": (5,), "begin": [1], "end": [3]}, {"begin": [1, 1]}, "begin of slice_by_index: expected a number for each of the 1 dimensions of x, got 2"),
    ("slice_by_size", {"x": (5,), "begin": [1], "size": [3]}, {"size": [3, 1]}, "size of slice_by_size: expected a number for each"),
    ("gather_along_axis", {"x": (4, 6), "indices": (4, 2), "axis": [1]}, {"x": (5, 6)}, "indices of gather_along_axis: expected [5, ?], got [4, 2]"),
    ("gather_nd", {"x": (4, 6), "indices": (3, 2)}, {"indices": (3, 3)}, "the last dimension of indices of gather_nd: expected at most 2, got 3"),
    ("scatter", {"data": (4, 6), "indices": (3,), "updates": (3, 6), "axis": [0]}, {"indices": (2,)}, "updates of scatter: expected [2, 6], got [3, 6]"),
    ("scatter_along_axis", {"data": (4, 6), "indices": (4, 2), "updates": (4, 2), "axis": [1]}, {"data": (3, 6)}, "indices of scatter_along_axis: "),
    ("scatter_along_axis", {"data": (4, 6), "indices": (4, 2), "updates": (4, 2), "axis": [1]}, {"updates": (4, 3)}, "updates of scatter_along_axis: "),
    ("scatter_nd", {"data": (4, 6), "indices": (3, 1), "updates": (3, 6)}, {"updates": (3, 5)}, "updates of scatter_nd: expected [3, 6], got [3, 5]"),
    ("scatter_nd", {"data": (4, 6), "indices": (3, 1), "updates": (3, 6)}, {"indices": (3, 3)}, "the last dimension of indices of scatter_nd: "),
    ("tile", {"x": (2, 3), "reps": [1, 2]}, {"x": (2,)}, "reps of tile: expected a number for each of the 1 dimensions of x, got 2"),
    ("depth_to_space", {"x": (1, 8, 1, 1), "block_size": [2]}, {"x": (1, 6, 1, 1)}, "a dimension of x of depth_to_space: expected a multiple of 4, got 6"),
    ("space_to_batch", {"x": (1, 2, 4, 4), "block_shape": [2, 2], "paddings": [0] * 4}, {"x": (1, 2, 4, 5)}, "a dimension of x of space_to_batch: "),
    ("topk", {"x": (5,), "k": [5]}, {"x": (4,)}, "k of topk: expected at most 4, got 5"),
    ("scaled_dot_product_attention", {"query": (2, 4, 8), "key": (2, 5, 8), "value": (2, 5, 9)}, {"query": (2, 4, 7)},
     "the last dimension of key of scaled_dot_product_attention: expected [7], got [8]"),
    ("scaled_dot_product_attention", {"query": (2, 4, 8), "key": (2, 5, 8), "value": (2, 5, 9)}, {"value": (2, 6, 9)},
     "value, but for its last dimension, of scaled_dot_product_attention: expected [2, 5], got [2, 6]"),
    ("scaled_dot_product_attention", {"query": (2, 4, 8), "key": (2, 5, 8), "value": (2, 5, 9)}, {"query": (3, 4, 8)},
     "the batch of key of scaled_dot_product_attention: expected [3], got [2]"),
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize(("kind", "given", "change", "words"), FITTING)
def test_inputs_that_do_not_fit(kind, given, change, words):
    assert outputs(kind, given)
    with pytest.raises(Misfit) as caught:
        outputs(kind, given | change)
    assert caught.value.words(kind).startswith(words)
    if all(ranks(value) == ranks(given[key]) for key, value in change.items()):  # an open dimension fits any size
        outputs(kind, {key: opened(value) for key, value in (given | change).items()})


def ranks(value):
    """The ranks of shapes, or how many numbers."""
    return [len(one) for one in value] if isinstance(value, list) and isinstance(value[0], tuple) else len(value)


def opened(value):
    if isinstance(value, tuple):
        return (None,) * len(value)
    return [opened(one) for one in value] if isinstance(value[0], tuple) else value


def test_a_shape_without_dimensions_is_of_one_element():
    shape = ("shape", [Bound(TensorType(I32, (0,), 1), True, ())])
    assert [str(one) for one in outputs_of("reshape", [("x", [typed(1, 1)]), shape])] == ["fp32"]
    with pytest.raises(Misfit):
        outputs_of("reshape", [("x", [typed(2, 4)]), shape])


@pytest.mark.parametrize("number", [0, -1, 1 << 62])
def test_numbers_that_no_operation_has_end_in_no_other_error(number):
    for kind, given, _, _ in FITTING:
        for key, value in given.items():
            if not isinstance(value, tuple) and not isinstance(value[0], tuple):
                with contextlib.suppress(Misfit):
                    outputs(kind, given | {key: [number] * len(value)})
