"""Programs of one operation that coremltools builds, for the rule about the types of outputs. Needs coremltools."""

import tempfile
from typing import NamedTuple

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.backend.mil.load import MILProtoExporter
from coremltools.converters.mil.mil import types

VERSIONS = {"iOS15": 6, "iOS16": 7, "iOS17": 8, "iOS18": 9}
TARGETS = {"iOS15": ct.target.iOS15, "iOS16": ct.target.iOS16, "iOS17": ct.target.iOS17, "iOS18": ct.target.iOS18}


class Case(NamedTuple):
    """One operation.

    Attributes:
        kind: its type.
        inputs: of the function: name -> shape.
        make: called with the inputs by their names.
        opset: of the function.
        dtypes: of inputs that are not fp32.
        open: dimensions of the first output that its inputs do not tell.
    """

    kind: str
    inputs: dict
    make: object
    opset: str = "iOS15"
    dtypes: dict = {}
    open: tuple = ()


def program_of(case, folder=None):
    """The Program of a case, as coremltools' exporter writes it, without its optimising passes; its weights in `folder`."""
    names = {"int32": types.int32, "bool": types.bool, "fp16": types.fp16, "int8": types.int8}
    specs = [
        mb.StateTensorSpec(shape=shape, dtype=types.fp16)
        if case.dtypes.get(name) == "state"
        else mb.TensorSpec(shape=shape, dtype=names.get(case.dtypes.get(name), types.fp32))
        for name, shape in case.inputs.items()
    ]
    variables = ", ".join(case.inputs)
    scope = {"make": case.make}
    exec(f"def body({variables}): return make({variables})", scope)  # the builder reads the names of the arguments
    program = mb.program(input_specs=specs, opset_version=TARGETS[case.opset])(scope["body"])
    with tempfile.TemporaryDirectory() as weights:
        return MILProtoExporter(program, folder or weights, VERSIONS[case.opset]).export()


def weights(*shape):
    return np.ones(shape, np.float32)


X4 = {"x": (1, 8, 12, 16)}
CASES = [
    Case("add", {"x": (3, 1), "y": (5,)}, lambda x, y: mb.add(x=x, y=y)),
    Case("less", {"x": (3, 1), "y": (5,)}, lambda x, y: mb.less(x=x, y=y)),
    Case("real_div", {"x": (3, 1), "y": (5,)}, lambda x, y: mb.real_div(x=x, y=y)),
    Case("select", {"c": (2, 3), "x": (2, 1), "y": (3,)}, lambda c, x, y: mb.select(cond=c, a=x, b=y), dtypes={"c": "bool"}),
    Case("cast", {"x": (2, 3)}, lambda x: mb.cast(x=x, dtype="int32")),
    Case("cast", {"x": (2, 3)}, lambda x: mb.cast(x=x, dtype="fp16")),
    Case("cast", {"x": (2, 3)}, lambda x: mb.cast(x=x, dtype="uint8"), opset="iOS17"),
    Case("quantize", X4, lambda x: mb.quantize(input=x, scale=np.float32(0.5), output_dtype="uint8"), opset="iOS17"),
    Case("dequantize", {"x": (2, 3)}, lambda x: mb.dequantize(input=x, scale=np.float32(0.5)), opset="iOS17", dtypes={"x": "int8"}),
    Case("reduce_sum", X4, lambda x: mb.reduce_sum(x=x, axes=[-1, 1])),
    Case("reduce_max", X4, lambda x: mb.reduce_max(x=x, axes=[2], keep_dims=True)),
    Case("reduce_mean", X4, lambda x: mb.reduce_mean(x=x, keep_dims=True)),
    Case("reduce_argmax", X4, lambda x: mb.reduce_argmax(x=x, axis=1)),
    Case("reduce_argmin", X4, lambda x: mb.reduce_argmin(x=x, keep_dims=True, output_dtype="uint16"), opset="iOS17"),
    Case("argsort", X4, lambda x: mb.argsort(x=x, axis=1)),
    Case("topk", X4, lambda x: mb.topk(x=x, k=3, axis=2)),
    Case("topk", X4, lambda x: mb.topk(x=x, k=3, axis=2, return_indices=False), opset="iOS16"),
    Case("topk", X4, lambda x: mb.topk(x=x, k=3, output_indices_dtype="uint16"), opset="iOS17"),
    Case("linear", {"x": (7, 3)}, lambda x: mb.linear(x=x, weight=weights(5, 3), bias=weights(5))),
    Case("matmul", {"x": (2, 1, 3, 4), "y": (5, 6, 4)}, lambda x, y: mb.matmul(x=x, y=y, transpose_y=True)),
    Case("matmul", {"x": (2, 4, 3), "y": (4, 6)}, lambda x, y: mb.matmul(x=x, y=y, transpose_x=True)),
    Case("einsum", {"x": (2, 3, 4, 5), "y": (2, 5, 4, 6)}, lambda x, y: mb.einsum(values=(x, y), equation="nchw,nwhr->nchr")),
    Case("scaled_dot_product_attention", {"q": (1, 5, 8), "k": (1, 7, 8), "v": (1, 7, 6)},
         lambda q, k, v: mb.scaled_dot_product_attention(query=q, key=k, value=v), opset="iOS18"),
    Case("read_state", {"x": (2, 3)}, lambda x: mb.read_state(input=x), opset="iOS18", dtypes={"x": "state"}),
    Case("shape", X4, lambda x: mb.shape(x=mb.relu(x=x))),
    Case("non_zero", X4, lambda x: mb.non_zero(x=x), open=(0,)),
    Case("fill", {"n": (3,)}, lambda n: mb.fill(shape=n, value=2.0), dtypes={"n": "int32"}, open=(0, 1, 2)),
    Case("fill_like", X4, lambda x: mb.fill_like(ref_tensor=x, value=2), opset="iOS16"),
    Case("random_normal", X4, lambda x: mb.random_normal(shape=[2, 3], mean=0.0, stddev=1.0)),
    Case("random_uniform", X4, lambda x: mb.random_uniform(shape=[2, 3], low=0.0, high=1.0)),
    Case("random_bernoulli", X4, lambda x: mb.random_bernoulli(shape=[2, 3], prob=0.5)),
    Case("random_categorical", {"x": (2, 6)}, lambda x: mb.random_categorical(x=x, size=5)),
    Case("range_1d", {"x": (3,)}, lambda x: mb.range_1d(start=0.0, end=mb.reduce_sum(x=x), step=1.0), open=(0,)),
    Case("one_hot", {"x": (2, 3)}, lambda x: mb.one_hot(indices=x, one_hot_vector_size=7, axis=1), dtypes={"x": "int32"}),
    Case("reshape", {"x": (2, 6)}, lambda x: mb.reshape(x=x, shape=[3, 4])),
    Case("reshape", {"x": (2, 6)}, lambda x: mb.reshape(x=x, shape=[0, -1])),
    Case("reshape", {"x": (2, 6, 2)}, lambda x: mb.reshape(x=x, shape=[4, -1])),
    Case("reshape", {"x": (2, 6), "n": (3,)}, lambda x, n: mb.reshape(x=x, shape=n), dtypes={"n": "int32"}, open=(0, 1, 2)),
    Case("reshape_like", {"x": (6, 4), "y": (2, 3), "z": (4,)}, lambda x, y, z: mb.reshape_like(
        x=x, ref_tensors=(y, z), begins=(0, 0), ends=(2, 1), end_masks=(False, True)), opset="iOS16"),
    Case("transpose", X4, lambda x: mb.transpose(x=x, perm=[0, 3, -3, 2])),
    Case("expand_dims", {"x": (2, 3)}, lambda x: mb.expand_dims(x=x, axes=[0, -1])),
    Case("squeeze", {"x": (1, 2, 1, 3)}, lambda x: mb.squeeze(x=x, axes=[-2])),
    Case("squeeze", {"x": (1, 2, 1, 3)}, lambda x: mb.squeeze(x=x)),
    Case("slice_by_index", X4, lambda x: mb.slice_by_index(
        x=x, begin=[0, 1, -5, 0], end=[1, 7, -1, 0], stride=[1, 2, 1, 3], end_mask=[False, False, False, True],
        squeeze_mask=[True, False, False, False])),
    Case("slice_by_index", {"x": (9,)}, lambda x: mb.slice_by_index(x=x, begin=[7], end=[2], stride=[-2])),
    Case("slice_by_index", {"x": (4, 9), "b": (2,)}, lambda x, b: mb.slice_by_index(
        x=x, begin=b, end=[0, 3], begin_mask=[True, False], end_mask=[True, False]), dtypes={"b": "int32"}, open=(1,)),
    Case("slice_by_size", X4, lambda x: mb.slice_by_size(x=x, begin=[0, 2, 3, 4], size=[1, 2, -1, 5])),
    Case("gather", X4, lambda x: mb.gather(x=x, indices=[[0, 1, 2], [3, 4, 5]], axis=-2)),
    Case("gather", {"x": (2, 5, 6)}, lambda x: mb.gather(x=x, indices=[[0, 1, 2], [3, 4, 5]], axis=1, batch_dims=1), opset="iOS17"),
    Case("gather_along_axis", {"x": (2, 5)}, lambda x: mb.gather_along_axis(x=x, indices=[[0, 1, 2], [3, 4, 0]], axis=1)),
    Case("gather_nd", {"x": (4, 5, 6)}, lambda x: mb.gather_nd(x=x, indices=[[0, 1], [3, 4], [0, 2]])),
    Case("gather_nd", {"x": (2, 5, 6)}, lambda x: mb.gather_nd(x=x, indices=[[1], [3]], batch_dims=1), opset="iOS16"),
    Case("scatter", {"x": (4, 5), "u": (2, 5)}, lambda x, u: mb.scatter(data=x, indices=[0, 2], updates=u)),
    Case("scatter_along_axis", {"x": (4, 5), "u": (2, 5)}, lambda x, u: mb.scatter_along_axis(
        data=x, indices=np.zeros((2, 5), np.int32), updates=u)),
    Case("scatter_nd", {"x": (4, 5), "u": (2, 5)}, lambda x, u: mb.scatter_nd(data=x, indices=[[0], [2]], updates=u)),
    Case("concat", {"x": (2, 3), "y": (2, 4)}, lambda x, y: mb.concat(values=(x, y), axis=-1)),
    Case("stack", {"x": (2, 3), "y": (2, 3)}, lambda x, y: mb.stack(values=(x, y), axis=1)),
    Case("split", {"x": (2, 6)}, lambda x: mb.split(x=x, num_splits=3, axis=1)),
    Case("split", {"x": (2, 6)}, lambda x: mb.split(x=x, split_sizes=[1, 5], axis=1)),
    Case("tile", {"x": (2, 3)}, lambda x: mb.tile(x=x, reps=[2, 4])),
    Case("pad", X4, lambda x: mb.pad(x=x, pad=[1, 2, 3, 4], mode="constant", constant_val=0.0)),
    Case("flatten2d", X4, lambda x: mb.flatten2d(x=x, axis=2)),
    Case("sliding_windows", {"x": (2, 9)}, lambda x: mb.sliding_windows(x=x, axis=1, size=4, stride=2)),
    Case("depth_to_space", X4, lambda x: mb.depth_to_space(x=x, block_size=2)),
    Case("space_to_depth", X4, lambda x: mb.space_to_depth(x=x, block_size=2)),
    Case("pixel_shuffle", X4, lambda x: mb.pixel_shuffle(x=x, upscale_factor=2)),
    Case("pixel_unshuffle", X4, lambda x: mb.pixel_unshuffle(x=x, downscale_factor=np.uint32(2)), opset="iOS16"),
    Case("space_to_batch", X4, lambda x: mb.space_to_batch(x=x, block_shape=[2, 3], paddings=[[1, 1], [0, 2]])),
    Case("batch_to_space", {"x": (12, 4, 6, 8)}, lambda x: mb.batch_to_space(x=x, block_shape=[2, 3], crops=[[1, 1], [0, 2]])),
    Case("conv", X4, lambda x: mb.conv(x=x, weight=weights(6, 8, 3, 3), strides=[2, 3], dilations=[2, 1])),
    Case("conv", X4, lambda x: mb.conv(x=x, weight=weights(6, 4, 3, 3), strides=[2, 3], groups=2, pad_type="same")),
    Case("conv", X4, lambda x: mb.conv(x=x, weight=weights(6, 8, 3, 3), pad_type="custom", pad=[1, 2, 0, 3], strides=[2, 2])),
    Case("conv", {"x": (1, 8, 12)}, lambda x: mb.conv(x=x, weight=weights(6, 8, 3), strides=[5], pad_type="same_lower"), opset="iOS16"),
    Case("conv_transpose", X4, lambda x: mb.conv_transpose(x=x, weight=weights(8, 3, 3, 4), strides=[2, 3], dilations=[1, 2])),
    Case("conv_transpose", X4, lambda x: mb.conv_transpose(x=x, weight=weights(8, 3, 3, 4), strides=[2, 3], pad_type="same", groups=2)),
    Case("conv_transpose", X4, lambda x: mb.conv_transpose(
        x=x, weight=weights(8, 3, 3, 4), strides=[2, 3], pad_type="custom", pad=[1, 2, 0, 1])),
    Case("conv_transpose", X4, lambda x: mb.conv_transpose(
        x=x, weight=weights(8, 3, 3, 3), strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], output_shape=[1, 3, 24, 32])),
    Case("max_pool", X4, lambda x: mb.max_pool(x=x, kernel_sizes=[3, 2], strides=[2, 3], pad_type="valid")),
    Case("avg_pool", X4, lambda x: mb.avg_pool(
        x=x, kernel_sizes=[3, 3], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], ceil_mode=True)),
    Case("avg_pool", {"x": (1, 2, 7)}, lambda x: mb.avg_pool(x=x, kernel_sizes=[1], strides=[2], pad_type="custom", pad=[1, 1], ceil_mode=True)),
    Case("l2_pool", X4, lambda x: mb.l2_pool(x=x, kernel_sizes=[3, 3], strides=[5, 5], pad_type="same")),
    Case("affine", X4, lambda x: mb.affine(
        x=x, transform_matrix=weights(1, 6), output_height=5, output_width=6, sampling_mode="bilinear",
        padding_mode="constant", padding_value=0.0, coordinates_mode="normalized_minus_one_to_one", align_corners=True)),
    Case("crop", X4, lambda x: mb.crop(x=x, crop_height=[1, 2], crop_width=[3, 0])),
    Case("crop_resize", {"x": (1, 8, 12, 16)}, lambda x: mb.crop_resize(
        x=x, roi=weights(1, 1, 5, 1, 1), target_height=5, target_width=6)),
    Case("crop_resize", {"x": (1, 8, 12, 16)}, lambda x: mb.crop_resize(
        x=x, boxes=weights(1, 4), target_height=5, target_width=6), opset="iOS17"),
    Case("resample", X4, lambda x: mb.resample(
        x=x, coordinates=weights(1, 5, 6, 2), sampling_mode="bilinear", padding_mode="constant", padding_value=0.0,
        coordinates_mode="normalized_minus_one_to_one", align_corners=True)),
    Case("resize", X4, lambda x: mb.resize(
        x=x, shape=[1, 8, 5, 0], resized_dims=np.uint32(2), sampling_mode="DEFAULT", interpolation_mode="LINEAR"), opset="iOS17"),
    Case("resize_bilinear", X4, lambda x: mb.resize_bilinear(x=x, target_size_height=5, target_size_width=6)),
    Case("resize_nearest_neighbor", X4, lambda x: mb.resize_nearest_neighbor(x=x, target_size_height=5, target_size_width=6)),
    Case("upsample_bilinear", X4, lambda x: mb.upsample_bilinear(x=x, scale_factor_height=2.5, scale_factor_width=2.0), open=(2, 3)),
    Case("upsample_nearest_neighbor", X4, lambda x: mb.upsample_nearest_neighbor(x=x, scale_factor_height=2, scale_factor_width=3), open=(2, 3)),
    Case("lstm", {"x": (5, 2, 3)}, lambda x: mb.lstm(
        x=x, initial_h=weights(2, 8), initial_c=weights(2, 8), weight_ih=weights(16, 3), weight_hh=weights(16, 4),
        weight_ih_back=weights(16, 3), weight_hh_back=weights(16, 4), direction="bidirectional", output_sequence=True)),
    Case("gru", {"x": (5, 2, 3)}, lambda x: mb.gru(
        x=x, initial_h=weights(2, 4), weight_ih=weights(12, 3), weight_hh=weights(12, 4))),
    Case("rnn", {"x": (5, 2, 3)}, lambda x: mb.rnn(
        x=x, initial_h=weights(2, 4), weight_ih=weights(4, 3), weight_hh=weights(4, 4), output_sequence=True)),
]  # fmt: skip


def _lists(kind):
    """An operation on a list of two vectors."""

    def make(x):
        made = mb.make_list(init_length=2, elem_shape=(3,), dtype="fp32", dynamic_length=False)
        written = mb.list_write(ls=made, index=0, value=x)
        if kind == "list_write":
            return mb.list_read(ls=written, index=1)
        if kind == "list_scatter":
            scattered = mb.list_scatter(ls=written, indices=[0, 1], value=mb.stack(values=(x, x), axis=0))
            return mb.list_read(ls=scattered, index=1)
        if kind == "list_read":
            return mb.list_read(ls=written, index=1)
        if kind == "list_gather":
            return mb.list_gather(ls=written, indices=[0, 1, 1, 0])
        return mb.list_length(ls=written)

    return make


CASES += [
    Case(kind, {"x": (3,)}, _lists(kind))
    for kind in ("list_write", "list_scatter", "list_read", "list_gather", "list_length")
]
